"""The power limit of an AMD Instinct GPU in watts: hwmon of amdgpu.

Linux drivers/gpu/drm/amd/pm/amdgpu_pm.c (the files, in microwatts) and swsmu/amdgpu_smu.c (what a write does);
Documentation/gpu/amdgpu/thermal.rst.
"""

from __future__ import annotations

import time
from functools import partial

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.host.door import Host
from tuner.knobs.amdgpu_device import (
    VIRTUAL,
    WRITING,
    GpuKnob,
    attribute,
    failure,
    identity,
    patient,
    read_gpu,
)
from tuner.knobs.base import Raw, bounded, number
from tuner.model import Absent, Reading, Seen, Setting, Value, met
from tuner.pci import DEVICES

CAP, LEAST, MOST, DEFAULT = "power1_cap", "power1_cap_min", "power1_cap_max", "power1_cap_default"
MICRO = 1_000_000
HIGHEST = (2**32 - 1) // MICRO
"""Watts: what the driver's 32 bits of microwatts hold."""

UNFIT = {VIRTUAL: "virtual function: the host sets power"}
LACKING = "no power limit: not offered by this driver, or the host sets it"


class AmdgpuPowerCap(GpuKnob):
    """The power limit (PPT) of an MI300X in whole watts, within what the GPU itself allows: 750 on an MI300X.

    Targets are PCI addresses. The limit is for the package: below it the firmware lowers clocks. Gone after a reboot,
    a reload of the driver or a reset, when it is the GPU's default again.
    """

    name = "amdgpu.power_cap"
    persist = "boot unit"

    def parse(self, target: str, raw: Raw) -> Value:
        """Watts; 0 would not be taken for a limit."""
        watts = number(raw)
        if watts == 0:
            raise BadValue("0 W is no limit: the driver takes 0 for the limit that is in force", "watts, such as 750")
        return bounded(watts, 1, HIGHEST)

    def files(self, host: Host, target: str) -> list[str]:
        """The limit; where there is none, what it would be below."""
        try:
            return [f"{DEVICES}/{target}/{folder(host, target)}/{CAP}"]
        except OSError:
            return [f"{DEVICES}/{target}/hwmon"]

    def read(self, host: Host, target: str) -> Reading:
        """Watts."""
        return read_gpu(host, target, partial(_watts, host, target, CAP), UNFIT, LACKING)

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """Within the bounds of this GPU."""
        watts = int(str(value))
        low, high, default = (_watts(host, target, name) for name in (LEAST, MOST, DEFAULT))
        if not low <= watts <= high:
            raise BadValue(
                f"{watts} W is out of range", f"this GPU takes {max(low, 1)}..{high} W, {default} by default"
            )
        return watts

    def write(self, host: Host, target: str, value: Value) -> None:
        """Refused with the driver's answer; what it made of it is for the caller to read."""
        watts, until = int(str(value)), time.monotonic() + WRITING
        try:
            if watts < 1:
                raise Refused("not tried: the driver takes 0 for the limit that is in force")
            if patient(partial(_watts, host, target, CAP), until) != watts:
                path = f"{DEVICES}/{target}/{folder(host, target)}/{CAP}"
                patient(partial(host.write, path, f"{watts * MICRO}\n"), until)
        except (OSError, ValueError, Refused) as error:
            raise Refused(f"{failure(error, f'{watts} W')} ({identity(host, target)})") from error

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """A driver that is loaded starts with the GPU's default (thermal.rst)."""
        ahead = super().next_boot(boots, setting)
        if not isinstance(ahead.reading, Absent):
            return ahead
        default = _watts(boots.host, setting.target, DEFAULT)
        return Next(Seen(default)) if met(setting.want, default, self.key) != "drift" else ahead

    def disruption(self, target: str) -> str:
        """Running jobs change their speed."""
        return "clocks"

    def note(self, before: Value, value: Value, target: str) -> str:
        """What the change means for jobs that run."""
        lower = isinstance(before, int) and isinstance(value, int) and value < before
        return "a lower limit: jobs that reach it run slower" if lower else ""

    def about(self, target: str) -> str:
        """Where it is documented, and what tools say about it."""
        return (
            f"Documentation/gpu/amdgpu/thermal.rst: hwmon's {CAP}, with {LEAST}, {MOST} and {DEFAULT} beside it, in"
            " microwatts. amd-smi exits 0 after `Power cap must be between`: only the file tells."
        )


def folder(host: Host, target: str) -> str:
    """hwmon/hwmonK of the GPU, found by its name, for K follows no order. FileNotFoundError where there is none."""
    for found in host.list(f"{DEVICES}/{target}/hwmon"):
        if found.startswith("hwmon") and host.text(f"{DEVICES}/{target}/hwmon/{found}/name").strip() == "amdgpu":
            return f"hwmon/{found}"
    raise FileNotFoundError(f"{DEVICES}/{target}/hwmon")


def _watts(host: Host, target: str, name: str) -> int:
    text = attribute(host, target, f"{folder(host, target)}/{name}")
    if not text.isascii() or not text.isdecimal() or int(text) % MICRO or int(text) > HIGHEST * MICRO:
        raise ValueError(f"{name} {text[:40]!r}")  # all bits set, or empty as a virtual function has it
    return int(text) // MICRO
