"""The loop guard of re-asserting: a value that is lost again and again is left alone, for somebody fights for it.

The count lies in /run/tuner, is kept under the lock, and ends with the boot. Times are of CLOCK_BOOTTIME, which nobody
sets (clock_gettime(2)).
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from typing import Any

from tuner.host import Host, Unrecorded
from tuner.host.door import make_parents
from tuner.journal import At

PATH = "/run/tuner/losses.json"
TIMES = 3
"""Losses of one value after which it is left alone."""
WINDOW = 600.0
"""Seconds in which they count."""
MOST = 256
"""Values that are counted; the oldest are forgotten first."""

Counts = dict[At, list[float]]


def clock() -> float:
    """Seconds since this machine came up, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def counts(host: Host, now: float) -> Counts:
    """When each value was made so again, within the window; a file that is not ours to understand counts nothing."""
    try:
        rows = json.loads(host.peek(PATH))
        found = {(row["knob"], row["target"]): row["times"] for row in rows}
        return {at: recent for at, times in found.items() if (recent := _recent(times, now))}
    except (OSError, Unrecorded, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}


def _recent(times: list[Any], now: float) -> list[float]:
    return [float(when) for when in times if 0 <= now - float(when) < WINDOW][-TIMES:]


def given_up(host: Host, now: float | None = None) -> frozenset[At]:
    """The values that were lost too often: they are left alone until the window has passed."""
    known = counts(host, clock() if now is None else now)
    return frozenset(at for at, times in known.items() if len(times) >= TIMES)


def note(host: Host, places: Collection[At], now: float | None = None) -> None:
    """Counts one loss for each of these values; the lock must be held. OSError when it cannot be kept."""
    moment = clock() if now is None else now
    known = counts(host, moment)
    for at in places:
        known[at] = [*known.pop(at, []), moment][-TIMES:]
    rows = [{"knob": at[0], "target": at[1], "times": times} for at, times in list(known.items())[-MOST:]]
    make_parents(host, PATH)
    host.put(PATH, f"{json.dumps(rows)}\n".encode("ascii"), 0o644)


def said(host: Host, now: float | None = None) -> list[str]:
    """A line for each value that is left alone, for `tuner status`."""
    span = f"{WINDOW / 60:.0f} minutes"
    return [f"{at[0]} {at[1]}: lost {TIMES} times in {span}, left alone" for at in sorted(given_up(host, now))]
