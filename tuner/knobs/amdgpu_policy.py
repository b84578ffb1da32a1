"""The policies that an AMD Instinct GPU offers: pm_policy of amdgpu.

Linux drivers/gpu/drm/amd/pm/amdgpu_pm.c: a file for each, with a line `number : word` for each choice, a star right
behind the word in force; the number is what is written.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import ClassVar

from tuner.errors import BadValue, Refused
from tuner.host.door import Host
from tuner.knobs.amdgpu_device import VIRTUAL, WRITING, GpuKnob, attribute, failure, identity, patient, read_gpu
from tuner.knobs.base import Raw, bounded, number, scalar
from tuner.model import Reading, Value
from tuner.pci import DEVICES

LINE = re.compile(r"\s*(\d{1,9})\s*:\s*([^\s*]+)\s*(\*?)\s*")
WORD = re.compile(r"[A-Za-z]\w*")
MOST = 255
ABOUT = (
    "Linux drivers/gpu/drm/amd/pm/amdgpu_pm.c (pm_policy). amd-smi writes the same file, by options whose names changed"
    " over its releases."
)
UNFIT = {VIRTUAL: "virtual function: the host sets policies"}


class _Policy(GpuKnob):
    file: ClassVar[str]
    persist = "boot unit"
    bounds = False

    def parse(self, target: str, raw: Raw) -> Value:
        """The word of a choice, or its number."""
        word = scalar(raw).strip()
        if WORD.fullmatch(word):
            return word
        return bounded(number(word), 0, MOST)

    def files(self, host: Host, target: str) -> list[str]:
        """The file of the policy."""
        return [f"{DEVICES}/{target}/{self.file}"]

    def read(self, host: Host, target: str) -> Reading:
        """The word in force."""
        lacking = f"no {self.file}: not offered by this driver and firmware"
        return read_gpu(host, target, lambda: choices(self._text(host, target))[1], UNFIT, lacking)

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """The word as the driver prints it."""
        offered = choices(self._text(host, target))[0]
        word = offered.get(value) if isinstance(value, int) else value
        if word not in offered.values():
            known = ", ".join(f"{number} or {name}" for number, name in offered.items())
            raise BadValue(f"{value!r} is no choice of this GPU", f"it has {known}")
        return word

    def write(self, host: Host, target: str, value: Value) -> None:
        """By its number. Refused with the driver's answer."""
        until = time.monotonic() + WRITING
        try:
            offered, now = patient(lambda: choices(self._text(host, target)), until)
            if value == now:
                return
            numbers = [number for number, word in offered.items() if value in (word, number)]
            if not numbers:
                raise Refused(f"{value} is no choice of this GPU: it has {', '.join(offered.values())}")
            patient(partial(host.write, f"{DEVICES}/{target}/{self.file}", f"{numbers[0]}\n"), until)
        except (OSError, ValueError, Refused) as error:
            raise Refused(f"{failure(error, str(value))} ({identity(host, target)})") from error

    def disruption(self, target: str) -> str:
        """Running jobs change their speed."""
        return "clocks"

    def _text(self, host: Host, target: str) -> str:
        return attribute(host, target, self.file)


class AmdgpuSocPstate(_Policy):
    """The SoC p-state policy of an MI300X: a word as the driver prints it, such as `soc_pstate_default`, or its number.

    Targets are PCI addresses. AMD's default is number 0. Gone after a reboot, a reload of the driver or a reset.
    """

    name = "amdgpu.soc_pstate"
    file = "pm_policy/soc_pstate"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return ABOUT


class AmdgpuXgmiPlpd(_Policy):
    """Whether the xGMI links of an MI300X power down one by one: `plpd_disallow`, `plpd_default`, `plpd_optimized`.

    Targets are PCI addresses; the number of a choice is taken too. AMD's default is plpd_default. Gone after a
    reboot, a reload of the driver or a reset.
    """

    name = "amdgpu.xgmi_plpd"
    file = "pm_policy/xgmi_plpd"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return ABOUT


def choices(text: str) -> tuple[dict[int, str], str]:
    """({number: word}, the word in force) of such a file; ValueError for what is none."""
    offered, now = {}, []
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        if found is None:
            raise ValueError(line[:60])
        offered[int(found.group(1))] = found.group(2)
        now += [found.group(2)] if found.group(3) else []
    if len(now) != 1 or len({*offered.values()}) != len(text.splitlines()):
        raise ValueError(text[:60])
    return offered, now[0]
