"""Processes of ours that hang in the kernel: where, and which of them still live.

A process in state D takes no signal (proc_pid_stat(5)); who waits for it hangs too. So it is killed, left alone and
named here: a file per process in /run/tuner/hung, its name PID.START (START: field 22 of /proc/PID/stat, which tells
the process from a later one with that number), its text the path that it was looking at and when. While it lives,
nobody of ours looks there again. This module imports posix alone: the prolog loads it before every job.
"""

import posix
import time

TYPE_CHECKING = False  # typing's own costs more than the whole answer
if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "/run/tuner/hung"
SIGKILL = 9
GONE = 20
"""Times that a killed child is looked for, 5 ms apart."""

LONGEST = 8192
"""Bytes of a record that are read."""


def living(root: str) -> list[str]:
    """The paths, as the host names them, at which a process of ours hangs now; records of ended ones are removed."""
    try:
        folder = _folder(root)
    except OSError:
        return []
    try:
        found = set()
        for name in filter(_is_record, posix.listdir(folder)):
            if _lives(name):
                found.add(_path(name, folder))
            else:
                _forget(name, folder)
    finally:
        posix.close(folder)
    return sorted(path for path in found if path)


def started(pid: int) -> tuple[str, str]:
    """(state letter, start time in ticks) of a process; empty where there is none."""
    try:
        opened = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return "", ""
    try:
        fields = posix.read(opened, 4096).rpartition(b")")[2].split()
    except OSError:
        return "", ""
    finally:
        posix.close(opened)
    return (fields[0].decode(), fields[19].decode()) if len(fields) > 19 else ("", "")


def record(root: str, pid: int, path: str, when: str) -> None:
    """Names a process that hangs at `path`. OSError where /run takes nothing."""
    folder = _folder(root, make=True)
    try:
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        opened = posix.open(f"{pid}.{started(pid)[1]}", flags, 0o644, dir_fd=folder)
        try:
            posix.write(opened, f"{path}\n{when}\n".encode("utf-8", "surrogateescape"))
        finally:
            posix.close(opened)
    finally:
        posix.close(folder)


DEVICES = ("/sys/class/", "/sys/devices/", "/sys/bus/", "/sys/block/")


def ended(child: int) -> bool:
    """Kills a child with all that it started, and looks whether it is gone; never waits for it.

    One that is alive and not in state D is only short of a CPU.
    """
    for kill in (posix.killpg, posix.kill):
        _killed(kill, child)
    for _ in range(GONE):
        if _reaped(child):
            return True
        time.sleep(0.005)
    return started(child)[0] != "D"


def device(path: str) -> str:
    """What hangs with a path: the folder of a device in sysfs, elsewhere the path alone."""
    return path.rpartition("/")[0] if path.startswith(DEVICES) and path.count("/") > 3 else path


def touches(path: str, hanging: str) -> bool:
    """Whether a look at `path` would meet what hangs at `hanging`; a device has more than one way to it."""
    place = device(hanging)
    if path == hanging or path.startswith(f"{place}/"):
        return True
    address = _address(hanging)
    return bool(address) and path.startswith("/sys/") and _address(path) == address


def _address(path: str) -> str:
    """The last PCI address in a path; empty where none is in it."""
    for part in reversed(path.split("/")):
        if len(part) == 12 and part[4] == part[7] == ":" and part[10] == ".":
            return part
    return ""


def _reaped(child: int) -> bool:
    try:
        return bool(posix.waitpid(child, posix.WNOHANG)[0])
    except OSError:  # ECHILD: it was reaped before
        return True


def remove(root: str, path: str) -> None:
    """Removes a file below a root, no link followed on the way; nothing where there is none."""
    above, _, name = path.rpartition("/")
    try:
        folder = _folder(root, above)
    except OSError:
        return
    _forget(name, folder)
    posix.close(folder)


def _folder(root: str, path: str = FOLDER, make: bool = False) -> int:
    """A handle of a folder below a root. No link is followed: a tree of somebody else leads nowhere out of it."""
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
    here = posix.open(root or "/", flags)
    for name in path.split("/")[1:]:
        above = here
        try:
            if make and name != "run":
                _make(name, above)
            here = posix.open(name, flags | posix.O_NOFOLLOW, dir_fd=above)
        finally:
            posix.close(above)
    return here


def _make(name: str, folder: int) -> None:
    try:
        posix.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        return


def _killed(kill: "Callable[[int, int], None]", child: int) -> None:
    try:
        kill(child, SIGKILL)
    except OSError:
        return


def _is_record(name: str) -> bool:
    pid, _, start = name.partition(".")
    return pid.isdigit() and start.isdigit()


def _lives(name: str) -> bool:
    """Whether the very process is there; one that only waits to be reaped hangs nowhere."""
    pid, _, start = name.partition(".")
    state, now = started(int(pid))
    return now == start and state not in "ZX"


def _path(record: str, folder: int) -> str:
    try:
        flags = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
        opened = posix.open(record, flags, dir_fd=folder)
    except OSError:
        return ""
    try:
        return posix.read(opened, LONGEST).partition(b"\n")[0].decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        posix.close(opened)


def _forget(record: str, folder: int) -> None:
    try:
        posix.unlink(record, dir_fd=folder)
    except OSError:
        return
