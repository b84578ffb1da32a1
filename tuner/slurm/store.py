"""What the prolog keeps in /run/tuner, and so until the next boot: what was seen ok, its drains, the last reason.

All is written whole and by rename, under a name of its own for each process: prologs of several jobs may run at once.
Nothing here is trusted with more than it says: a file that cannot be understood counts as not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tuner import applied as cache
from tuner.fast import BOOT
from tuner.host import Host, Unrecorded
from tuner.host.door import make_parents
from tuner.host.replacing import fill

SEEN = "/run/tuner/seen"
ALONE = "/run/tuner/slurm/lock"
"""Held by a process while it adds to one of these files; never the lock of a run."""
DRAINS = "/run/tuner/slurm/drains"
REASON = "/run/tuner/slurm/reason"
HOUR = 3600.0
ONE = 60.0
"""Seconds in which all jobs that are kept away are one drain: several may be on their way to a node at once."""
PATIENCE = 0.3
"""Seconds that one waits for another to have added; then it adds all the same."""
MOST = 4096
"""Places and drains that are remembered."""


@dataclass(frozen=True)
class Place:
    """A setting that was as wanted: what it takes to judge it when nobody can look any more."""

    knob: str
    target: str
    gate: str
    want: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Drained:
    """The last drain of ours: its reason, of which node, for which job, when."""

    reason: str
    node: str
    job: str
    when: str


def clock() -> float:
    """Seconds since this machine came up, sleep included: nobody sets this clock (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot(host: Host) -> str:
    """The boot id; empty where none can be read."""
    try:
        return host.peek(BOOT).strip()
    except (OSError, Unrecorded):
        return ""


Places = dict[tuple[str, str], Place]


def known(host: Host, settings_id: str) -> tuple[Places, Places]:
    """The places that were ok in this boot: under these settings, and under whatever settings.

    The latter have the former in them: a device that was there once, and may be gone.
    """
    found = _read(host, SEEN)
    if not isinstance(found, dict) or found.get("boot") != boot(host):
        return {}, {}
    last = _places(found.get("seen"))
    return last if found.get("settings_id") == settings_id else {}, {**_places(found.get("former")), **last}


def _places(rows: Any) -> Places:
    try:
        places = [Place(row[0], row[1], row[2], row[3], tuple(row[4])) for row in rows or ()]
    except (TypeError, KeyError, IndexError):
        return {}
    return {(place.knob, place.target): place for place in places}


def see(host: Host, settings_id: str, places: Iterable[Place]) -> str:
    """Adds places that are ok now; returns why it could not, empty when it did.

    What was judged under settings that are no longer applied is not kept: it would take the place of what is.
    """
    new = {(place.knob, place.target): place for place in places}
    before = known(host, settings_id)[0]
    if {**before, **new} == before:
        return ""
    with _alone(host):
        applied = cache.current(host)[0]
        if applied is None or applied.settings_id != settings_id:
            return "other settings were applied meanwhile"
        now, there = known(host, settings_id)
        now = {**now, **new}
        former = {at: place for at, place in there.items() if at not in now}
        rows = {"seen": _rows(now), "former": _rows(former)}
        return put(host, SEEN, {"boot": boot(host), "settings_id": settings_id, **rows})


def _rows(places: Places) -> list[list[Any]]:
    return [list(asdict(place).values()) for place in list(places.values())[:MOST]]


def drains(host: Host, settings_id: str, cause: str) -> int:
    """How often this node was drained for that cause under these settings in the last hour, but for one just now."""
    return sum(clock() - row[0] >= ONE for row in _recent(host) if row[1:] == [settings_id, cause])


def count(host: Host, settings_id: str, cause: str) -> str:
    """Counts a drain, unless it is one with the last; returns why it could not, empty when it did."""
    with _alone(host):
        if any(clock() - row[0] < ONE for row in _recent(host) if row[1:] == [settings_id, cause]):
            return ""
        return put(host, DRAINS, [*_recent(host)[-MOST:], [clock(), settings_id, cause]])


def leave(host: Host, drained: Drained) -> str:
    """Leaves the reason for tuner-slurm-reason.path; returns why it could not, empty when it did."""
    return put(host, REASON, asdict(drained))


def left(host: Host) -> Drained | None:
    """The last reason that was left; None where there is none."""
    found = _read(host, REASON)
    try:
        drained = Drained(**{name: found[name] for name in Drained.__dataclass_fields__})
    except (TypeError, KeyError):
        return None
    return drained if all(isinstance(word, str) for word in asdict(drained).values()) else None


def put(host: Host, path: str, data: Any) -> str:
    """Writes a document whole; returns why it could not, empty when it did."""
    try:
        _folders(host, path)
        place(host, path, json.dumps(data).encode("ascii") + b"\n", 0o644)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def place(host: Host, path: str, data: bytes, mode: int) -> None:
    """Writes a file whole, under a hidden name until it is: slurmd fails at a file of prolog.d that it cannot run."""
    fresh = f".{os.path.basename(path)}.{os.getpid()}"
    with host.tree.at(path, follow=False) as (handle, name, _):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=handle)
        opened = os.open(fresh, flags, 0o600, dir_fd=handle)
        try:
            fill(opened, data, mode, None, None)
            os.rename(fresh, name, src_dir_fd=handle, dst_dir_fd=handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=handle)
            raise
        finally:
            os.close(opened)


def _folders(host: Host, path: str) -> None:
    """Makes the folders above a file of ours: that one was not there is no evidence, it is there from now on."""
    with host.tree.unnoted():
        make_parents(host, path)


@contextlib.contextmanager
def _alone(host: Host) -> Iterator[None]:
    """Nobody else adds meanwhile; where that cannot be had soon, it is done without."""
    try:
        _folders(host, ALONE)
        handle = host.lock_file(ALONE)
    except OSError:
        yield
        return
    try:
        end = time.monotonic() + PATIENCE
        while not _taken(handle) and time.monotonic() < end:
            time.sleep(PATIENCE / 30)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _recent(host: Host) -> list[list[Any]]:
    found, now = _read(host, DRAINS), clock()
    rows = found if isinstance(found, list) else []
    whole = [row for row in rows if isinstance(row, list) and len(row) == 3 and isinstance(row[0], (int, float))]
    return [row for row in whole if 0 <= now - row[0] < HOUR]


def _read(host: Host, path: str) -> Any:
    try:
        return json.loads(host.peek(path))
    except (OSError, Unrecorded, ValueError, RecursionError):
        return None
