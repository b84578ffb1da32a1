"""Child processes for the crash and signal tests: the command line behind a door that counts, kills or waits.

A forked child is a process of its own and costs no start of an interpreter. Run as a script, this file does the same
to a real `python -m tuner`:

    python tests/crash_child.py kill N WORDS...       SIGKILL at point N
    python tests/crash_child.py slow SECONDS WORDS... sleeps before each write to a kernel file
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tuner.cli
from tuner.host.recorded import RecordedHost
from tuner.host.tree import Tree

CHANGING = ("write", "put", "append", "mkdir", "rmdir", "unlink", "truncate", "lock_file")
"""Everything at the door that changes a file; what a recorded kernel does on one write is one change."""

Point = Callable[[str], None]


def watch(point: Point) -> None:
    """From now on calls `point` before and after every change at the door: only ever in a child."""
    inside_kernel = False

    def wrapped(name: str, real: Callable[..., Any], path_at: int, kernel: bool) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal inside_kernel
            if inside_kernel:
                return real(*args, **more)
            point(f"before {name} {args[path_at]}")
            inside_kernel = kernel
            try:
                result = real(*args, **more)
            finally:
                inside_kernel = False
            point(f"after {name} {args[path_at]}")
            return result

        return call

    setattr(RecordedHost, "write", wrapped("kernel write", RecordedHost.write, 1, True))  # noqa: B010
    for name in CHANGING:
        setattr(Tree, name, wrapped(name, getattr(Tree, name), 1, False))
    setattr(os, "rename", wrapped("rename", os.rename, 0, False))  # noqa: B010


def kill_at(number: int) -> Point:
    """SIGKILL to this process at point `number`, counted from 1."""
    reached = 0

    def point(_: str) -> None:
        nonlocal reached
        reached += 1
        if reached == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return point


def command(words: list[str]) -> int:
    """`tuner WORDS` in this process."""
    return tuner.cli.main(words)


def load_all() -> None:
    """Imports every module of tuner, so that no child has to: one without rights may not see the files."""
    for module in pkgutil.walk_packages(tuner.__path__, "tuner."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def fork(work: Callable[[], int], log: Path | None = None) -> int:
    """Starts a child that does `work` and exits with what it returns; its output goes to `log`. Returns its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner do not matter to the child
        pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        sys.stdout = sys.stderr = open(log or os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(pid: int) -> int:
    """Waits for a child; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(words: list[str], number: int) -> bool:
    """`tuner WORDS` in a child that is killed at point `number`; False when it ended before that point."""

    def work() -> int:
        watch(kill_at(number))
        return command(words)

    code = ended(fork(work))
    assert code != 99, "the child raised"
    return code == -signal.SIGKILL


def points(words: list[str], log: Path) -> list[str]:
    """The points that `tuner WORDS` passes, in order; the command is run to its end in a child."""
    names: list[str] = []

    def work() -> int:
        watch(names.append)
        code = command(words)
        log.write_text("\n".join(names), encoding="utf-8")
        return code

    code = ended(fork(work))
    assert code != 99, "the child raised"
    return log.read_text(encoding="utf-8").split("\n")


class Paused:
    """A child running `tuner WORDS` that stops inside its write number `number` to a kernel file until `go`.

    `pid` is the child's; when the object is made, the child is inside that write.
    """

    def __init__(self, words: list[str], number: int, log: Path) -> None:
        there, says = os.pipe()
        self._waits, self._go = os.pipe()
        passed = 0

        def point(name: str) -> None:
            nonlocal passed
            if name.startswith("before kernel write"):
                passed += 1
                if passed == number:
                    os.write(says, b"!")
                    os.read(self._waits, 1)

        def work() -> int:
            os.close(self._go)
            watch(point)
            return command(words)

        self.log, self.over = log, False
        self.pid = fork(work, log)
        os.close(says)
        os.close(self._waits)
        if not os.read(there, 1):
            ended(self.pid)
            raise AssertionError(f"the child never came to its write number {number}: {log.read_text()}")
        os.close(there)

    def go(self) -> None:
        """Lets the child finish its write and go on."""
        os.write(self._go, b"!")
        os.close(self._go)

    def end(self) -> int:
        """Lets the child go on and waits for its exit code."""
        with contextlib.suppress(BrokenPipeError):
            self.go()
        self.over = True
        return ended(self.pid)


def _slow(seconds: float) -> Point:
    def point(name: str) -> None:
        if name.startswith("before kernel write"):
            time.sleep(seconds)

    return point


if __name__ == "__main__":
    how, amount, *rest = sys.argv[1:]
    watch(kill_at(int(amount)) if how == "kill" else _slow(float(amount)))
    sys.argv = ["tuner", *rest]
    runpy.run_module("tuner", run_name="__main__", alter_sys=True)
