"""The GFX clock of AMD Instinct MI300X: level and range as amdgpu keeps them in sysfs.

Linux drivers/gpu/drm/amd/pm: amdgpu_pm.c (the files), swsmu/smu13/smu_v13_0_6_ppt.c (what this GPU takes of them).
Determinism: ROCm/rocm-systems projects/amdsmi/docs/conceptual/perf-determinism.md.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, bounded, number, reading, scalar
from tuner.model import Absent, Leaf, Reading, Unreadable, Value
from tuner.pci import DEVICES, devices, named

LEVEL, TABLE, MEMORY = "power_dpm_force_performance_level", "pp_od_clk_voltage", "pp_dpm_mclk"
"""Files of the PCI device: the level, the range in force, the clocks that the memory can have."""

AUTO, MANUAL, CAPPED = "auto", "manual", "perf_determinism"
TAKES: dict[str, tuple[str, ...]] = {AUTO: (), MANUAL: ("min", "max"), CAPPED: ("max",)}
"""The levels that an MI300X takes, and the limits in MHz that each needs."""

REFUSED = re.compile(r"high|low|profile_\w+")
"""Words of the driver that an MI300X refuses."""

SPAN = (500, 2100)
"""MHz an MI300X can be limited to, where its level hides that: every public listing has these."""

DRIVER, MI300X = "amdgpu", "1002:74a1"
OTHERS = {"1002:74b5": "virtual function: the host sets clocks", "1002:74a2": "MI308X: other limits, no determinism"}
NO_FILES = "no clock files: virtual function, the host sets clocks"

BUSY = frozenset({errno.EPERM, errno.EBUSY})
"""A GPU in reset or suspend: the driver of older kernels answers the first, that of newer ones the second."""

READING, WRITING, PAUSE = 0.2, 1.5, 0.1
"""Seconds that a busy GPU is asked again: for a reading, for a whole write; and between two tries."""

LINE = re.compile(r"\s*(\w+):\s*(\d+)Mhz(?:\s+(\d+)Mhz)?\s*", re.IGNORECASE)

WHY = {
    AUTO: "auto has no limits: the firmware chooses within the whole range",
    MANUAL: "manual by itself sets nothing: the file reads manual and the clock runs as under auto. `high` before it"
    " changes nothing either: an MI300X refuses it, and that alone ends a determinism cap",
    CAPPED: "perf_determinism is a cap, by max alone: without it the level reads so and nothing is capped",
}
HINT = "auto, {level: perf_determinism, max: 1900} or {level: manual, min: 800, max: 1700}"

Fields = Mapping[str, Any]
Step = tuple[str, str]
"""(file, text): one write."""

Found = TypeVar("Found")


class State(NamedTuple):
    """What a GPU holds, and the lowest and highest MHz that it takes."""

    record: dict[str, Leaf]
    span: tuple[int, int]


class AmdgpuClock(Knob):
    """The GFX clock of an MI300X: `auto`, a determinism cap, or a soft range.

    Targets are PCI addresses; the numbers of DRM cards and of tools change over reboots. A record `{level, min, max}`
    in MHz: `auto` alone, `{level: perf_determinism, max}`, `{level: manual, min, max}`. A cap is a ceiling, not a lock:
    power and heat may lower the clock. No level of an MI300X pins a clock; `high`, `low` and `profile_*` are refused
    by it and end a cap, so tuner never tries them. Read with `memory` where a manual limit of the memory clock would
    be lost. Gone after a reboot, a reload of the driver or a reset.
    """

    name = "amdgpu.clock"
    persist = "boot unit"
    main = "level"
    bounds = False

    def canonical(self, target: str) -> str:
        """The PCI address with its domain, or a pattern over addresses."""
        address = named(target)
        if not address:
            hint = 'such as "0000:05:00.0", or "*" for all: numbers of cards and tools change over reboots'
            raise BadValue(f"{target!r} is no PCI address", hint)
        return address

    def parse(self, target: str, raw: Raw) -> Value:
        """A level, or a record of the level and exactly the limits that it needs."""
        fields: dict[str, Raw] = raw if isinstance(raw, dict) else {"level": raw}
        unknown = [name for name in fields if name not in ("level", "min", "max")]
        if unknown or "level" not in fields:
            raise BadValue(f"unknown field {unknown[0]!r}" if unknown else "no level", HINT)
        level = _level(scalar(fields["level"]))
        if {*fields} != {"level", *TAKES[level]}:
            raise BadValue(WHY[level], HINT)
        ends = [bounded(number(fields[name]), 1, 65534) for name in TAKES[level]]
        if ends != sorted(set(ends)):
            raise BadValue(f"min {ends[0]} is not below max {ends[1]}", "no MI300X clock can be pinned")
        record: dict[str, Leaf] = {"level": level}
        return {**record, **dict(zip(TAKES[level], ends, strict=True))}

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Every MI300X that the driver has, and those relatives of it that get a reason instead of a value."""
        known = {MI300X, *OTHERS}
        return [device.address for device in devices(host) if device.id in known and device.driver == DRIVER]

    def search_root(self, pattern: str) -> str:
        """One look finds them all."""
        return ""

    def files(self, host: Host, target: str) -> list[str]:
        """The level and the range."""
        return [f"{DEVICES}/{target}/{name}" for name in (LEVEL, TABLE)]

    def identity(self, host: Host, target: str) -> str:
        """What tells this GPU from another at the same address."""
        found = {}
        for name, word in (("serial_number", "serial"), ("unique_id", "unique id")):
            with contextlib.suppress(OSError, Unrecorded):
                found[word] = host.text(f"{DEVICES}/{target}/{name}").strip()
        return ", ".join(f"{word} {text}" for word, text in found.items() if text)

    def read(self, host: Host, target: str) -> Reading:
        """{level, min, max}: the limits are those in force, and what says whether a cap is."""
        try:
            found = reading(lambda: _seen(host, target))
        except Refused as unfit:
            return Absent(unfit.why)
        if isinstance(found, Unreadable) and found.fault == "device":
            return Unreadable(f"{found.why} ({self.identity(host, target) or 'serial not readable'})", "device")
        return Absent(NO_FILES) if isinstance(found, Absent) else found

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """Limits must lie within the range of this GPU, and a cap below its top."""
        fields: Fields = value if isinstance(value, Mapping) else {"level": value}
        if len(fields) == 1:
            return value
        low, high = _state(host, target, time.monotonic() + READING).span
        for name in TAKES[fields["level"]]:
            if not low <= fields[name] <= high:
                raise BadValue(f"{name} {fields[name]} MHz is out of range", f"this GPU takes {low}..{high}")
        if fields["level"] == CAPPED and fields["max"] == high:
            raise BadValue(f"{high} MHz is the top: nothing tells such a cap from none", "auto, or a lower max")
        return value

    def write(self, host: Host, target: str, value: Value) -> None:
        """Level and range in separate writes; what comes out otherwise is put back and Refused."""
        if not isinstance(value, Mapping) or value.get("level") not in TAKES:
            raise Refused(f"not tried: an MI300X refuses {_said(value)}, and the try alone ends a determinism cap")
        until, written = time.monotonic() + WRITING, list[str]()
        before: State | None = None
        try:
            before = _state(host, target, until)
            carried = value["level"] == CAPPED and value.get("min") == before.record["min"]  # a cap sets that itself
            goal = {name: mhz for name, mhz in value.items() if not (carried and name == "min")}
            _lead(host, target, goal, until, written)
        except (OSError, ValueError, Refused) as failure:
            left = _put_back(host, target, before, written) if before and written else ""
            raise Refused(f"{_why(failure, value)}{left} ({self.identity(host, target)})") from failure

    def disruption(self, target: str) -> str:
        """Running jobs change their speed."""
        return "clocks"

    def note(self, before: Value, value: Value, target: str) -> str:
        """What the change means for jobs that run."""
        was, will = (v if isinstance(v, Mapping) else {} for v in (before, value))
        if will.get("level") == CAPPED:
            return f"a ceiling of {will.get('max')} MHz, not a lock: power and heat may lower the clock"
        return f"ends {_said(was)}" if will.get("level") == AUTO and was.get("level") != AUTO else ""

    def about(self, target: str) -> str:
        """Where it is documented, and what tools say about it."""
        return (
            "ROCm amdsmi docs/conceptual/perf-determinism.md; Documentation/gpu/amdgpu/thermal.rst. rocm-smi exits 0"
            " when the driver refused: only the files power_dpm_force_performance_level and pp_od_clk_voltage tell."
        )


def _level(word: str) -> str:
    if word in TAKES:
        return word
    if REFUSED.fullmatch(word):
        what = f"an MI300X refuses {word}, and the try alone ends a determinism cap that is in force"
        raise BadValue(f"{what}; manual after it sets nothing", HINT)
    raise BadValue(f"{word!r} is no level", HINT)


def _seen(host: Host, target: str) -> Value:
    """The record. Refused says why this is no device for this knob, ENODEV that it fell off the bus."""
    folder = f"{DEVICES}/{target}"
    try:
        kind = ":".join(host.text(f"{folder}/{name}").strip().removeprefix("0x") for name in ("vendor", "device"))
    except FileNotFoundError:
        raise Refused("no device at this address") from None
    if kind != MI300X:
        raise Refused(OTHERS.get(kind, f"{kind} is no MI300X ({MI300X})"))
    driver = ""
    with contextlib.suppress(FileNotFoundError):
        driver = posixpath.basename(host.link(f"{folder}/driver"))
    if driver != DRIVER:
        raise Refused(f"bound to {driver or 'no driver'}, not to {DRIVER}")
    with contextlib.suppress(FileNotFoundError, PermissionError, Unrecorded):
        if host.head(f"{folder}/config", 4) == b"\xff" * 4:  # the driver would answer from memory
            raise OSError(errno.ENODEV, "off the bus: its configuration space reads all ones")
    return _state(host, target, time.monotonic() + READING).record


def _patient(ask: Callable[[], Found], until: float) -> Found:
    """Asks a busy GPU again until then."""
    while True:
        try:
            return ask()
        except OSError as error:
            if error.errno not in BUSY:
                raise
            if time.monotonic() >= until:
                name = errno.errorcode[error.errno]
                raise OSError(errno.EBUSY, f"in reset or suspended: the driver answers {name}") from error
        time.sleep(PAUSE)


def _state(host: Host, target: str, until: float) -> State:
    """Reads level and limits. FileNotFoundError without the files, ValueError for what no MI300X shows."""
    folder = f"{DEVICES}/{target}"
    level = _patient(partial(host.text, f"{folder}/{LEVEL}"), until).strip()
    blocks = _blocks(_patient(partial(host.text, f"{folder}/{TABLE}"), until))
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


def _lead(host: Host, target: str, goal: Fields, until: float, written: list[str]) -> None:
    """Writes until it reads as `goal`: once more, by way of auto, where a staged value made something else of it."""
    after: Fields = {}
    for again in (False, True):
        for name, text in _steps(_state(host, target, until), goal, again):
            _patient(partial(host.write, f"{DEVICES}/{target}/{name}", f"{text}\n"), until)
            written.append(text)
        after = _state(host, target, until).record
        if _holds(after, goal):
            return
    raise Refused(f"the driver took {_said(goal)} and made {_said(after)} of it")


def _steps(now: State, goal: Fields, again: bool) -> list[Step]:
    """The writes that lead from one state to another, none where it is reached."""
    held: Fields = now.record
    level = goal["level"]
    if _holds(held, goal):
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


def _holds(after: Fields, goal: Fields) -> bool:
    """Whether it reads as it should, by what the level gives a meaning to."""
    names = {AUTO: ["level"], MANUAL: ["level", "min", "max", "memory"], CAPPED: ["level", "min", "max"]}[goal["level"]]
    return all(after.get(name) == goal.get(name, after.get(name) if name == "min" else None) for name in names)


def _put_back(host: Host, target: str, before: State, written: list[str]) -> str:
    """What was there before a try that failed, with what the try staged; returns what is to be said about it."""
    held: Fields = before.record
    limited = held["level"] == MANUAL or (held["level"] == CAPPED and held["max"] < before.span[1])
    with contextlib.suppress(OSError, ValueError, Unrecorded, Refused):
        if limited and _state(host, target, 0).record == held and any(text[0] == "s" for text in written):
            for name, text in _range(held):
                host.write(f"{DEVICES}/{target}/{name}", f"{text}\n")
        _lead(host, target, held, 0, [])
        return "; put back"
    return "; could not be put back"


def _why(failure: Exception, goal: Fields) -> str:
    if isinstance(failure, Refused):
        return failure.why
    if getattr(failure, "errno", None) == errno.EINVAL:
        doubt = ": no determinism in this firmware, or a virtual function" if goal["level"] == CAPPED else ""
        return f"the driver refuses {_said(goal)} (EINVAL){doubt}"
    return str(getattr(failure, "strerror", None) or failure)


def _said(value: Value) -> str:
    """A record in a few words: `perf_determinism 500-1900 MHz`."""
    if not isinstance(value, Mapping):
        return str(value)
    ends = [str(value[name]) for name in ("min", "max") if name in value and value.get("level") != AUTO]
    return f"{value.get('level')} {'-'.join(ends)} MHz" if ends else f"{value.get('level')}"
