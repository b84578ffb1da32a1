"""Level and range of an MI300X in its files: how they are read, and the writes that lead from one to another.

Linux drivers/gpu/drm/amd/pm: amdgpu_pm.c (the files), swsmu/smu13/smu_v13_0_6_ppt.c (what this GPU takes of them).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from tuner.errors import Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.amdgpu_device import patient
from tuner.model import Leaf, Value
from tuner.pci import DEVICES

LEVEL, TABLE, MEMORY = "power_dpm_force_performance_level", "pp_od_clk_voltage", "pp_dpm_mclk"
"""Files of the PCI device: the level, the range in force, the clocks that the memory can have."""

AUTO, MANUAL, CAPPED = "auto", "manual", "perf_determinism"
TAKES: dict[str, tuple[str, ...]] = {AUTO: (), MANUAL: ("min", "max"), CAPPED: ("max",)}
"""The levels that an MI300X takes, and the limits in MHz that each needs."""

SPAN = (500, 2100)
"""MHz an MI300X can be limited to, where its level hides that: every public listing has these."""

LINE = re.compile(r"\s*(\w+):\s*(\d+)Mhz(?:\s+(\d+)Mhz)?\s*", re.IGNORECASE)

Fields = Mapping[str, Any]
Step = tuple[str, str]
"""(file, text): one write."""


class State(NamedTuple):
    """What a GPU holds, and the lowest and highest MHz that it takes."""

    record: dict[str, Leaf]
    span: tuple[int, int]


def state(host: Host, target: str, until: float) -> State:
    """Reads level and limits. FileNotFoundError without the files, ValueError for what no MI300X shows."""
    folder = f"{DEVICES}/{target}"
    level = patient(partial(host.text, f"{folder}/{LEVEL}"), until).strip()
    blocks = _blocks(patient(partial(host.text, f"{folder}/{TABLE}"), until))
    shown = blocks.get("OD_SCLK", {})
    if level not in TAKES or "0" not in shown or "1" not in shown:
        raise ValueError(f"level {level[:60]!r}, limits {', '.join(shown) or 'none'}")
    low, high = shown["0"][0], shown["1"][0]
    record: dict[str, Leaf] = {"level": level, "min": low, "max": high}
    if level == MANUAL and "1" in blocks.get("OD_MCLK", {}):
        memory, clocks = blocks["OD_MCLK"]["1"][0], ""
        with contextlib.suppress(OSError, Unrecorded):
            clocks = host.peek(f"{folder}/{MEMORY}")  # its mark moves with the load; the table is the firmware's
        if memory != max(map(int, re.findall(r": *(\d+)Mhz", clocks)), default=memory):
            record["memory"] = memory
    span = (low, high) if level == AUTO else (min(low, SPAN[0]), max(high, SPAN[1]))
    given = blocks.get("OD_RANGE", {}).get("SCLK", span)
    return State(record, (given[0], given[-1]))


def _blocks(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """pp_od_clk_voltage by block and label; blocks of other kernels (OD_FCLK) are kept and not looked at."""
    blocks: dict[str, dict[str, tuple[int, ...]]] = {}
    lines: dict[str, tuple[int, ...]] = {}
    for line in text.splitlines():
        if found := LINE.fullmatch(line):
            lines[found.group(1)] = tuple(int(mhz) for mhz in found.groups()[1:] if mhz)
        elif line.startswith("OD_"):
            lines = blocks.setdefault(line.strip().rstrip(":"), {})
    return blocks


def lead(host: Host, target: str, goal: Fields, until: float, written: list[str]) -> None:
    """Writes until it reads as `goal`: once more, by way of auto, where a staged value made something else of it."""
    after: Fields = {}
    for again in (False, True):
        for name, text in _steps(state(host, target, until), goal, again):
            patient(partial(host.write, f"{DEVICES}/{target}/{name}", f"{text}\n"), until)
            written.append(text)
        after = state(host, target, until).record
        if holds(after, goal):
            return
    raise Refused(f"the driver took {said(goal)} and made {said(after)} of it")


def _steps(now: State, goal: Fields, again: bool) -> list[Step]:
    """The writes that lead from one state to another, none where it is reached."""
    held: Fields = now.record
    level = goal["level"]
    if holds(held, goal):
        return []
    fresh = [] if held["level"] == AUTO else [(LEVEL, AUTO)]  # drops a memory clock that somebody staged
    if level == AUTO:
        return [(LEVEL, AUTO)]
    if level == MANUAL:
        return _to_manual(now, goal)
    if goal.get("min", now.span[0]) != now.span[0]:  # a range that somebody took determinism over: no cap
        return [*_to_manual(now, goal), (LEVEL, CAPPED)]
    if goal["max"] == now.span[1]:
        return [*fresh, (LEVEL, CAPPED)]
    capped = held["level"] == CAPPED and held["max"] < now.span[1] and not again
    enter = [] if capped else [*fresh, (LEVEL, CAPPED)]  # jobs do not run without a cap in between
    return [*enter, *_range(goal)]


def _to_manual(now: State, goal: Fields) -> list[Step]:
    """Manual with a range, which is written only where it differs then: leaving determinism ends its cap."""
    held: Fields = {**now.record, "max": now.span[1]} if now.record["level"] == CAPPED else now.record
    enter = [] if held["level"] == MANUAL else [(LEVEL, MANUAL)]
    if all(goal.get(name) == held.get(name) for name in ("min", "max", "memory")):
        return enter
    fresh = [] if held["level"] == AUTO else [(LEVEL, AUTO)]
    return [*fresh, (LEVEL, MANUAL), *_range({**goal, "level": MANUAL})]


def _range(goal: Fields) -> list[Step]:
    """Every end before the commit, which also takes what somebody staged and never committed."""
    ends = [(TABLE, f"s {int(name == 'max')} {goal[name]}") for name in TAKES[goal["level"]]]
    limit = [(TABLE, f"m 1 {goal['memory']}")] if goal["level"] == MANUAL and "memory" in goal else []
    return [*ends, *limit, (TABLE, "c")]


def holds(after: Fields, goal: Fields) -> bool:
    """Whether it reads as it should, by what the level gives a meaning to."""
    names = {AUTO: ["level"], MANUAL: ["level", "min", "max", "memory"], CAPPED: ["level", "min", "max"]}[goal["level"]]
    return all(after.get(name) == goal.get(name, after.get(name) if name == "min" else None) for name in names)


def put_back(host: Host, target: str, before: State, written: list[str]) -> str:
    """What was there before a try that failed, with what the try staged; returns what is to be said about it."""
    held: Fields = before.record
    limited = held["level"] == MANUAL or (held["level"] == CAPPED and held["max"] < before.span[1])
    with contextlib.suppress(OSError, ValueError, Unrecorded, Refused):
        if limited and state(host, target, 0).record == held and any(text[0] == "s" for text in written):
            for name, text in _range(held):
                host.write(f"{DEVICES}/{target}/{name}", f"{text}\n")
        lead(host, target, held, 0, [])
        return "; put back"
    return "; could not be put back"


def taken(value: Value) -> Fields:
    """The record, if an MI300X takes its level; else Refused, before anything is tried."""
    if not isinstance(value, Mapping) or value.get("level") not in TAKES:
        raise Refused(f"not tried: an MI300X refuses {said(value)}, and the try alone ends a determinism cap")
    return value


def goal_of(before: State, value: Fields) -> Fields:
    """What is to be reached: a cap sets its lower end itself, so that one which stays as it was is left out."""
    carried = value["level"] == CAPPED and value.get("min") == before.record["min"]
    return {name: mhz for name, mhz in value.items() if not (carried and name == "min")}


def refusal(failure: Exception, goal: Fields) -> str:
    """Why the files do not hold what was written to them, in a few words."""
    if isinstance(failure, Refused):
        return failure.why
    if getattr(failure, "errno", None) == errno.EINVAL:
        doubt = ": this firmware has no determinism; apply without the cap" if goal["level"] == CAPPED else ""
        return f"the driver refuses {said(goal)} (EINVAL){doubt}"
    return str(getattr(failure, "strerror", None) or failure)


def said(value: Value) -> str:
    """A record in a few words: `perf_determinism 500-1900 MHz`."""
    if not isinstance(value, Mapping):
        return str(value)
    ends = [str(value[name]) for name in ("min", "max") if name in value and value.get("level") != AUTO]
    return f"{value.get('level')} {'-'.join(ends)} MHz" if ends else f"{value.get('level')}"
