"""The GFX clock of AMD Instinct MI300X: level and range as amdgpu keeps them in sysfs.

Linux drivers/gpu/drm/amd/pm: amdgpu_pm.c (the files), swsmu/smu13/smu_v13_0_6_ppt.c (what this GPU takes of them).
Determinism: ROCm/rocm-systems projects/amdsmi/docs/conceptual/perf-determinism.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.host.door import Host
from tuner.knobs import rocm_smi
from tuner.knobs.amdgpu_device import MI308X, READING, VIRTUAL, WRITING, GpuKnob, read_gpu
from tuner.knobs.amdgpu_levels import (
    AUTO,
    CAPPED,
    LEVEL,
    MANUAL,
    TABLE,
    TAKES,
    Fields,
    State,
    goal_of,
    lead,
    put_back,
    refusal,
    said,
    state,
    taken,
)
from tuner.knobs.base import Raw, bounded, number, scalar
from tuner.model import Absent, Leaf, Reading, Seen, Setting, Value
from tuner.pci import DEVICES

REFUSED = re.compile(r"high|low|profile_\w+")
"""Words of the driver that an MI300X refuses."""

OTHERS = {VIRTUAL: "virtual function: the host sets clocks", MI308X: "MI308X: other limits, no determinism"}
NO_FILES = "no clock files: virtual function, the host sets clocks"

WHY = {
    AUTO: "auto has no limits: the firmware chooses within the whole range",
    MANUAL: "manual by itself sets nothing: the file reads manual and the clock runs as under auto. `high` before it"
    " changes nothing either: an MI300X refuses it, and that alone ends a determinism cap",
    CAPPED: "perf_determinism is a cap, by max alone: without it the level reads so and nothing is capped",
}
HINT = "auto, {level: perf_determinism, max: 1900} or {level: manual, min: 800, max: 1700}"


class AmdgpuClock(GpuKnob):
    """The GFX clock of an MI300X: `auto`, a determinism cap, or a soft range.

    Targets are PCI addresses; the numbers of DRM cards and of tools change over reboots. A record `{level, min, max}`
    in MHz: `auto` alone, `{level: perf_determinism, max}`, `{level: manual, min, max}`. A cap is a ceiling, not a lock:
    power and heat may lower the clock. No level of an MI300X pins a clock; `high`, `low` and `profile_*` are refused
    by it and end a cap, so tuner never tries them. Read with `memory` where a manual limit of the memory clock would
    be lost. Gone after a reboot, a reload of the driver or a reset.
    """

    name = "amdgpu.clock"
    of_function = True
    persist = "boot unit"
    main = "level"
    bounds = False
    ways = ("auto", "sysfs", "rocm-smi")

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

    def files(self, host: Host, target: str) -> list[str]:
        """The level and the range."""
        return [f"{DEVICES}/{target}/{name}" for name in (LEVEL, TABLE)]

    def read(self, host: Host, target: str) -> Reading:
        """{level, min, max}: the limits are those in force, and what says whether a cap is."""
        return read_gpu(host, target, lambda: state(host, target, time.monotonic() + READING).record, OTHERS, NO_FILES)

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """Limits must lie within the range of this GPU, and a cap below its top."""
        fields: Fields = value if isinstance(value, Mapping) else {"level": value}
        if len(fields) == 1:
            return value
        low, high = state(host, target, time.monotonic() + READING).span
        for name in TAKES[fields["level"]]:
            if not low <= fields[name] <= high:
                raise BadValue(f"{name} {fields[name]} MHz is out of range", f"this GPU takes {low}..{high}")
        if fields["level"] == CAPPED and fields["max"] == high:
            raise BadValue(f"{high} MHz is the top: nothing tells such a cap from none", "auto, or a lower max")
        return value

    def write(self, host: Host, target: str, value: Value) -> None:
        """Level and range in separate writes; what comes out otherwise is put back and Refused."""
        value = taken(value)
        until, written = time.monotonic() + WRITING, list[str]()
        before: State | None = None
        try:
            before = state(host, target, until)
            lead(host, target, goal_of(before, value), until, written)
        except (OSError, ValueError, Refused) as failure:
            left = put_back(host, target, before, written) if before and written else ""
            raise Refused(f"{refusal(failure, value)}{left} ({self.identity(host, target)})") from failure

    def writer(self, via: str) -> Callable[[Host, str, Value], None]:
        """The files, unless a profile asks for rocm-smi."""
        return rocm_smi.write if via == rocm_smi.NAME else self.write

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """A driver that is loaded starts with `auto`, whoever makes the rest so again (mi300x.rst)."""
        ahead = super().next_boot(boots, setting)
        stock = setting.want.choices()[0] == {"level": AUTO}
        return Next(Seen({"level": AUTO})) if stock and isinstance(ahead.reading, Absent) else ahead

    def disruption(self, target: str) -> str:
        """Running jobs change their speed."""
        return "clocks"

    def note(self, before: Value, value: Value, target: str) -> str:
        """What the change means for jobs that run."""
        was, will = (v if isinstance(v, Mapping) else {} for v in (before, value))
        if will.get("level") == CAPPED:
            return f"a ceiling of {will.get('max')} MHz, not a lock: power and heat may lower the clock"
        return f"ends {said(was)}" if will.get("level") == AUTO and was.get("level") != AUTO else ""

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
