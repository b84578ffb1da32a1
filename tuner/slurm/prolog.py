"""What runs before each job: starts it, or keeps it from this node (exit 86), within the budget of the policy.

All looks are made by a child in a session of its own, with its standard streams on /dev/null. This process opens no
device file: it waits for the end of a pipe, kills what is late and never waits for what it killed. Where the child is,
what its budget is and what it found stand in memory that both share (memfd_create(2)): a pipe would wake this process
at each look. As tuner.fast, this module needs posix, marshal and what an interpreter has loaded anyway.
"""

import _signal  # type: ignore[import-not-found]  # what signal wraps, without its enums
import marshal
import posix
import sys
import time

from tuner import fast, hung
from tuner.slurm import BROKEN, KEY, START

TYPE_CHECKING = False  # typing's own costs more than the whole answer
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

BUDGET = 5.0
"""Seconds, where no policy says otherwise."""
FIRST = 1.0
"""Seconds after which the policy must have said what the budget is: the shortest budget there is."""
SHARE, RESERVE = 0.1, 0.4
"""Of the budget, and in seconds at most: what is left for the decision once the child is given up."""

WHERE, LIMIT, FOUND = 0, 8192, 8448
"""Places in the shared memory: the path that is looked at, the budget, the answer."""

KEPT = b"kept"

LONGEST = 180
"""Seconds after which a child ends by itself: slurmd may have killed the one that would have ended it."""
AGAIN = 0.1
"""Seconds until a write to syslog that was interrupted is interrupted once more: the C library tries it twice."""


class Over(Exception):
    """The time is up."""


def main() -> "NoReturn":
    """`python -I -c 'from tuner.slurm.prolog import main; main()' [--root DIR]`: what the script starts."""
    code = BROKEN
    try:
        root = sys.argv[2] if sys.argv[1:2] == ["--root"] and len(sys.argv) > 2 else "/"
        code = run(root)[0]
    except BaseException as error:  # no traceback in Slurm's log
        say(f"failed, the job starts: {type(error).__name__}: {error}")
    finally:
        posix._exit(code)


def run(root: str, acting: bool = True) -> tuple[int, list[str]]:
    """(exit code, what was said): the decision for the job that is about to start on the host below `root`.

    Not `acting`: what it would be; nothing is remembered or logged, no drain is counted and no reason left.
    """
    began = time.monotonic()
    paths = hung.living(root)
    kept = None if paths else _kept(root)
    child, shared, late = _judged(root, kept, began, acting)
    if late is not None:
        from tuner.slurm import late as giving_up

        code, lines = giving_up.given_up(root, child, late, *_where(shared), acting)
    else:
        code, lines = _answer(root, kept, posix.pread(shared, fast.LARGEST, FOUND), acting)
    posix.close(shared)
    for line in lines if acting else []:
        say(line)
    return code, lines


def _judged(
    root: str, kept: "tuple[fast.Kept, float, str] | None", began: float, acting: bool
) -> "tuple[int, int, float | None]":
    """(child, the memory shared with it, seconds after which it was given up; None where it ended by itself)."""
    shared = posix.memfd_create("tuner", posix.MFD_CLOEXEC)
    pipe, end = posix.pipe2(posix.O_CLOEXEC)
    child = posix.fork()
    if child == 0:
        _child(root, kept, shared, acting)
    posix.close(end)
    budget, said = 0.0, FIRST
    over = True
    while over and said > budget:
        budget = said
        over = _waited(child, pipe, began + budget - min(SHARE * budget, RESERVE))
        said = _budget(shared, kept[1] if kept else BUDGET)
    posix.close(pipe)
    return child, shared, budget if over else None


def _kept(root: str) -> "tuple[fast.Kept, float, str] | None":
    """(evidence, budget, line for the log) of a kept answer that is not too old; None where there is none."""
    try:
        evidence = fast.load(root)
        if evidence is None:
            return None
        until, budget, line = marshal.loads(evidence[-1][KEY][1])  # noqa: S302  (sealed, and root's own)
    except (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError):
        return None
    return None if until and time.clock_gettime(time.CLOCK_BOOTTIME) > until else (evidence, budget, line)


def _child(root: str, kept: "tuple[fast.Kept, float, str] | None", shared: int, acting: bool) -> "NoReturn":
    """The looks, and what came of them in the shared memory. Ends the process: the pipe closes with it."""
    try:
        _apart()
        tell = _teller(shared)
        if kept is not None and _holds(kept[0], root, tell):
            posix.pwrite(shared, marshal.dumps(KEPT), FOUND)
        else:
            tell("")  # what is loaded now is no look at a device
            from tuner.slurm.look import looked

            posix.pwrite(shared, marshal.dumps(looked(root, tell, _limiter(shared), acting)), FOUND)
    except BaseException as error:  # whatever it is: the parent says it, and the job starts
        posix.pwrite(shared, marshal.dumps(f"{type(error).__name__}: {error}"), FOUND)
    finally:
        posix._exit(0)


def _holds(evidence: "fast.Kept", root: str, tell: "Callable[[str], object]") -> bool:
    try:
        return fast.holds(evidence, root, tell)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _apart() -> None:
    """A session of its own, so that one signal ends whatever it starts, and no stream that slurmd reads."""
    posix.setsid()
    null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
    for stream in (0, 1, 2):
        posix.dup2(null, stream)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
    _signal.alarm(LONGEST)


def _teller(shared: int) -> "Callable[[str], object]":
    """What keeps the path of the current look in the shared memory."""
    write = posix.pwrite
    return lambda path: write(shared, path.encode("utf-8", "surrogateescape")[: LIMIT - 1] + b"\0", WHERE)


def _limiter(shared: int) -> "Callable[[float], object]":
    return lambda budget: posix.pwrite(shared, marshal.dumps(float(budget)), LIMIT)


def _where(shared: int) -> tuple[str, float]:
    """(the path that is looked at, for how many seconds already): each look is a write, which the memory dates."""
    path = posix.pread(shared, LIMIT, WHERE).partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return path, time.time() - posix.fstat(shared).st_mtime


def _budget(shared: int, known: float) -> float:
    """What the child says that the policy says; what is `known` while it has not come so far."""
    try:
        return float(marshal.loads(posix.pread(shared, FOUND - LIMIT, LIMIT)))  # noqa: S302  (our own child's)
    except (ValueError, EOFError, TypeError):
        return known


def _waited(child: int, pipe: int, end: float) -> bool:
    """Waits until the child has closed the pipe and ended; True when the monotonic clock came to `end` before."""
    left = end - time.monotonic()
    if left <= 0:
        return True
    try:
        return _ended(child, pipe, left)
    except Over:  # it may ring once more between the end of the read and its being disarmed
        return True
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)


def _ended(child: int, pipe: int, left: float) -> bool:
    _signal.signal(_signal.SIGALRM, _ring)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGALRM])
    _signal.setitimer(_signal.ITIMER_REAL, left)
    while posix.read(pipe, 1):
        pass
    posix.waitpid(child, 0)
    return False


def _ring(*_: object) -> None:
    raise Over


def _answer(
    root: str, kept: "tuple[fast.Kept, float, str] | None", found: bytes, acting: bool
) -> tuple[int, list[str]]:
    """What the child's answer means; a child that left none is a failure of ours."""
    try:
        answer: Any = marshal.loads(found)  # noqa: S302  (our own child's)
    except (ValueError, EOFError, TypeError):
        answer = "the process that judges ended without an answer"
    if answer == KEPT and kept is not None:
        return START, [kept[2]] if kept[2] else []
    if isinstance(answer, str):
        return BROKEN, [f"failed, the job starts: {answer}"]
    if not answer["drain"]:
        return START, list(answer["lines"])
    from tuner.slurm.late import drained

    return drained(root, answer, acting)


def say(line: str) -> None:
    """A line to syslog, for which nobody waits longer than half a second; also to a person at a terminal."""
    import syslog

    text = "".join(c if c.isprintable() else "?" for c in line)
    if posix.isatty(2):
        posix.write(2, f"tuner: {text}\n".encode("ascii", "replace"))
    try:
        _signal.signal(_signal.SIGALRM, _quiet)
        _signal.setitimer(_signal.ITIMER_REAL, 0.5, AGAIN)
        syslog.openlog("tuner-prolog", syslog.LOG_PID, syslog.LOG_DAEMON)
        syslog.syslog(syslog.LOG_NOTICE, text)
    except OSError:
        pass
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)


def _quiet(*_: object) -> None:
    """The ring alone ends the call; nothing is raised, so that no decision is lost."""
