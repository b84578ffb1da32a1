"""One run at a time: flock on /run/tuner/lock below the root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from tuner.errors import Exit, Problem, TunerError
from tuner.host import Host, Unrecorded
from tuner.host.door import make_parents

PATH = "/run/tuner/lock"
PAUSE = 0.1
"""Seconds between two attempts of who waits."""


@contextlib.contextmanager
def locked(host: Host, who: str, wait: float = 0.0) -> Iterator[None]:
    """Holds the lock, for which it waits up to `wait` seconds.

    TunerError with exit 30 names who has it, exit 20 says why it cannot be made.
    """
    try:
        make_parents(host, PATH)
        handle = host.lock_file(PATH)
    except OSError as error:
        hint = "nothing was written; tuner needs a writable /run and /var/lib"
        raise TunerError(Problem(PATH, f"cannot be made: {error.strerror}", hint), Exit.UNDONE) from None
    try:
        if not _taken(handle, time.monotonic() + wait):
            holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip() or "another run"
            raise TunerError(Problem("", f"another run holds the lock: {holder}", "wait for it to end"), Exit.LOCKED)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}, {who}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _taken(handle: int, end: float) -> bool:
    """Whether the lock is ours before `end` of the monotonic clock; one attempt is always made."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(PAUSE)
        else:
            return True


def held(host: Host) -> bool:
    """Whether a run holds the lock now: asks the kernel's own list, and takes no lock that could be in a run's way."""
    try:
        status = host.stat(PATH, follow=False)
        with open("/proc/locks", encoding="ascii") as locks:
            lines = locks.read().splitlines()
    except (OSError, Unrecorded):
        return False
    return any(" FLOCK " in line and f":{status.st_ino} " in line and "->" not in line for line in lines)
