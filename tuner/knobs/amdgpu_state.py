"""What an AMD Instinct GPU is, judged and never written: partitions, memory, hive, errors of xGMI, page retry.

Linux drivers/gpu/drm/amd/amdgpu: amdgpu_gfx.c and amdgpu_gmc.c (partitions), amdgpu_vram_mgr.c, amdgpu_xgmi.c,
amdgpu_ras.c; drivers/gpu/drm/amd/amdkfd: kfd_topology.c, kfd_process.c. Partitions: ROCm/amdgpu-docs gpu-partitioning.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue
from tuner.host.door import Host, Unrecorded
from tuner.knobs.amdgpu_device import VIRTUAL, GpuKnob, attribute, read_gpu
from tuner.knobs.base import Raw, bounded, number, scalar
from tuner.knobs.module import Module
from tuner.model import Reading, Seen, Setting, Unreadable, Value, Want
from tuner.pci import ADDRESS
from tuner.probes.cells import SENTINELS

COMPUTE, MEMORY = "current_compute_partition", "current_memory_partition"
MODES = {"compute": ("SPX", "DPX", "TPX", "QPX", "CPX"), "memory": ("NPS1", "NPS2", "NPS4", "NPS8")}
FILES = {"compute": COMPUTE, "memory": MEMORY}

VRAM, HIVE = "mem_info_vram_total", "xgmi_hive_info/xgmi_hive_id"
BOUND = "/sys/bus/pci/drivers/amdgpu"
"""The functions that the driver has, each by its address, among files of the driver's own."""
NODES = "/sys/class/kfd/kfd/topology/nodes"
ERRORS = "ras/xgmi_wafl_err_count"
KINDS_OF_ERROR = {"uncorrectable": "ue", "correctable": "ce"}
BUSY = "Query currently inaccessible"

RETRY, PARAMETER = "amdgpu/noretry", "/sys/module/amdgpu/parameters/noretry"
XNACK = {0: "on", 1: "off", -1: "off"}
"""What noretry means on an MI300X (GC 9.4.3), whose driver takes 1 for -1: amdgpu_gmc_noretry_set in amdgpu_gmc.c."""


class _State(GpuKnob):
    """Judged only; what the hardware is like stays over a reboot."""

    read_only = True
    unfit: ClassVar[Mapping[str, str]] = {}
    lacking: ClassVar[str]

    def ask(self, host: Host, target: str) -> Value:
        """What the driver shows; OSError, and ValueError for what it should not show."""
        raise NotImplementedError

    def read(self, host: Host, target: str) -> Reading:
        """What the driver shows now."""
        return read_gpu(host, target, lambda: self.ask(host, target), self.unfit, self.lacking)


def _partition(host: Host, target: str) -> Value:
    found = {name: attribute(host, target, file) for name, file in FILES.items()}
    wrong = [text for name, text in found.items() if text not in MODES[name]]
    if wrong:
        raise ValueError(wrong[0][:40])
    return found


class AmdgpuPartition(_State):
    """How an MI300X is divided: {compute: SPX, memory: NPS1}; a single word means compute. Judged only.

    Targets are PCI addresses. A change needs a GPU without any process and gives GPUs other numbers, so that an
    operator makes it. Compute reverts to SPX at a reboot or a reload of the driver.
    """

    name = "amdgpu.partition"
    main = "compute"
    bounds = False
    lacking = f"no {COMPUTE} or no {MEMORY}: virtual function, or a driver without partitions"

    def ask(self, host: Host, target: str) -> Value:
        """Both modes."""
        return _partition(host, target)

    def parse(self, target: str, raw: Raw) -> Value:
        """AMD's words."""
        fields: dict[str, Raw] = raw if isinstance(raw, dict) else {"compute": raw}
        found = {}
        for name, text in fields.items():
            if name not in MODES:
                raise BadValue(f"unknown field {name!r}", "compute, memory or both")
            found[name] = scalar(text)
            if found[name] not in MODES[name]:
                raise BadValue(f"{text!r} is no {name} partition", f"one of {', '.join(MODES[name])}")
        if not found:
            raise BadValue("no field", "compute, memory or both")
        return found

    def advice(self, host: Host, target: str, value: Value) -> str:
        """How an operator changes it, by what differs: memory first, which decides what compute may be."""
        wanted: Mapping[str, object] = value if isinstance(value, Mapping) else {}
        with contextlib.suppress(OSError, ValueError):
            held = {name: attribute(host, target, file) for name, file in FILES.items()}
            wrong = [name for name in ("memory", "compute") if name in wanted and wanted[name] != held[name]]
            ways = {"compute": AFTERWARDS if "memory" in wrong else COMPUTE_HOW, "memory": MEMORY_HOW}
            said = [ways[name].format(word=wanted[name], target=target) for name in wrong]
            if wrong == ["memory", "compute"] and wanted["compute"] == "SPX":
                said.pop()  # what it comes back with anyway
            return "; ".join([*said, *_refusals(host, target, wanted, wrong)])
        return ""

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """Compute is SPX; of the memory mode over a cold boot nothing is published."""
        named = setting.want.choices()[0]
        if isinstance(named, Mapping) and "memory" in named:
            return Next(Unreadable("what memory mode a GPU comes up with is not published"))
        return Next(Seen({"compute": "SPX"}))

    def about(self, target: str) -> str:
        """Where it is documented."""
        return (
            "ROCm/amdgpu-docs gpu-partitioning; ROCm/rocm-systems projects/amdsmi/docs (partition.md). Which pairs go"
            " together differs between these: available_compute_partition and available_memory_partition tell."
        )


COMPUTE_HOW = "with no process on the GPU: amd-smi set -g {target} -C {word}"
MEMORY_HOW = (
    "with no process on any GPU: amd-smi set -g {target} -M {word}, then load amdgpu again for the whole hive, which "
    "resets the compute partition too"
)
AFTERWARDS = "after that: amd-smi set -g {target} -C {word}"


def _refusals(host: Host, target: str, wanted: Mapping[str, object], wrong: list[str]) -> Iterator[str]:
    """What of it this GPU does not offer now; which compute partitions it offers depends on its memory mode."""
    for name in wrong[:1]:
        with contextlib.suppress(FileNotFoundError, Unrecorded):
            offered = set(re.split(r"[,\s]+", attribute(host, target, f"available_{name}_partition"))) & {*MODES[name]}
            if offered and wanted[name] not in offered:
                yield f"now it offers only {', '.join(sorted(offered, key=MODES[name].index))}"


def _vram(host: Host, target: str) -> Value:
    return counted(attribute(host, target, VRAM))


class AmdgpuVram(_State):
    """The memory of an MI300X in bytes: 206141652992, less than 192 GiB, so compare with at_least. Judged only."""

    name = "amdgpu.vram"
    lacking = f"no {VRAM} in this driver"

    def ask(self, host: Host, target: str) -> Value:
        """Bytes."""
        return _vram(host, target)

    def parse(self, target: str, raw: Raw) -> Value:
        """Bytes."""
        return bounded(number(raw), 1, 2**63 - 1)

    def advice(self, host: Host, target: str, value: Value) -> str:
        """It is not a setting."""
        return "bad pages, or other hardware: look for RAS lines of amdgpu in the kernel's log, have the GPU replaced"

    def about(self, target: str) -> str:
        """Where it comes from."""
        return f"{VRAM} of Linux drivers/gpu/drm/amd/amdgpu/amdgpu_vram_mgr.c. KFD's local_mem_size is 0 there."


def _hive(host: Host, target: str) -> Value:
    mine, count = _hive_id(host, target), 1
    for other in host.list(BOUND) if mine else ():
        with contextlib.suppress(OSError, ValueError):  # one that does not answer is no member
            count += bool(ADDRESS.fullmatch(other)) and other != target and _hive_id(host, other) == mine
    return count if mine else 0


def _hive_id(host: Host, target: str) -> int:
    """That of amdgpu, else that of KFD's node for the GPU; 0 where the GPU is in no hive."""
    try:
        return counted(attribute(host, target, HIVE))
    except FileNotFoundError:
        return _in_kfd(host, target)


def _in_kfd(host: Host, target: str) -> int:
    """FileNotFoundError where KFD has no node for it."""
    domain, bus, rest = target.split(":")
    place = int(bus, 16) << 8 | int(rest[:2], 16) << 3 | int(rest[3])
    for node in host.list(NODES):
        lines = (line.split() for line in host.text(f"{NODES}/{node}/properties").splitlines())
        found = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}
        if found.get("simd_count") and (found.get("domain", 0), found.get("location_id")) == (int(domain, 16), place):
            return found.get("hive_id", 0)
    raise FileNotFoundError(NODES)


class AmdgpuHive(_State):
    """How many GPUs of the node share the xGMI hive of this one, itself included: 8 on a full MI300X node; 0 is none.

    Targets are PCI addresses. Judged only: a GPU that is out of the hive reaches the others over PCIe.
    """

    name = "amdgpu.hive"
    lacking = "neither amdgpu nor KFD shows a hive"

    def ask(self, host: Host, target: str) -> Value:
        """Members of the hive."""
        return _hive(host, target)

    def parse(self, target: str, raw: Raw) -> Value:
        """A number of GPUs."""
        return bounded(number(raw), 0, 64)

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What to look at."""
        return "a GPU is out of the hive or gone: amd-smi topology, the kernel's log, then the hardware"

    def about(self, target: str) -> str:
        """Where it comes from."""
        return f"{HIVE} (amdgpu_xgmi.c), equal on all GPUs of a hive; without it hive_id of KFD's topology."


def _errors(host: Host, target: str) -> Value:
    text = attribute(host, target, ERRORS)
    if text == BUSY:
        raise OSError(errno.EBUSY, f"in reset, or the counters are off: {BUSY}")
    lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return {name: counted(lines.get(key, "")) for name, key in KINDS_OF_ERROR.items()}


class AmdgpuXgmiErrors(_State):
    """Errors of the xGMI links since the driver was loaded: {uncorrectable: 0, correctable: 0}. Judged only.

    Targets are PCI addresses; a single number means uncorrectable. Read from the RAS counters, which add up in the
    driver, so that looking takes nothing away. `xgmi_error` is not read: reading it clears what it reports, it counts
    to 2, and an MI300X has no such register (EINVAL).
    """

    name = "amdgpu.xgmi_errors"
    main = "uncorrectable"
    lacking = f"no {ERRORS}: RAS is off, or a virtual function"

    def ask(self, host: Host, target: str) -> Value:
        """Both counts."""
        return _errors(host, target)

    def parse(self, target: str, raw: Raw) -> Value:
        """Counts, of one kind or both."""
        fields: dict[str, Raw] = raw if isinstance(raw, dict) else {self.main: raw}
        unknown = [name for name in fields if name not in KINDS_OF_ERROR]
        if unknown or not fields:
            raise BadValue(
                f"unknown field {unknown[0]!r}" if unknown else "no field", "uncorrectable, correctable or both"
            )
        return {name: bounded(number(text), 0, 2**63 - 1) for name, text in fields.items()}

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What to do about a link."""
        return "a link of this GPU had errors: drain the node, look at the kernel's log, have the link looked at"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """Counting starts anew."""
        return Next(Unreadable("errors are counted from when the driver is loaded"))

    def about(self, target: str) -> str:
        """Where it comes from, and what is not read."""
        return (
            f"{ERRORS}: Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c (RAS sysfs error count interface). xgmi_error"
            " beside it is cleared by each read (amdgpu_xgmi_show_error in amdgpu_xgmi.c): rocm-smi --showxgmierr,"
            " whoever runs it, takes the report away from the next one."
        )


def _xnack(host: Host, target: str) -> Value:
    text = host.text(PARAMETER).strip()
    if text not in map(str, XNACK):
        raise ValueError(f"noretry {text[:40]!r}")
    return XNACK[int(text)]


class AmdgpuXnack(_State):
    """Whether processes on an MI300X retry after a page fault (XNACK) unless HSA_XNACK says otherwise: on or off.

    Targets are PCI addresses. Judged only: it is a parameter of the driver, for all GPUs: knob module, amdgpu/noretry,
    0 for on. The driver's own default is off on this GPU. A parameter that was changed after the driver was loaded
    reads as changed and is not in force.
    """

    name = "amdgpu.xnack"
    bounds = False
    unfit: ClassVar[Mapping[str, str]] = {VIRTUAL: "virtual function: the host decides whether pages are retried"}
    lacking = f"no {PARAMETER}"

    def ask(self, host: Host, target: str) -> Value:
        """On or off, by the parameter."""
        return _xnack(host, target)

    def parse(self, target: str, raw: Raw) -> Value:
        """One of the two words."""
        word = scalar(raw)
        if word not in XNACK.values():
            raise BadValue(f"{raw!r} is neither", "on or off")
        return word

    def advice(self, host: Host, target: str, value: Value) -> str:
        """Which parameter it is."""
        wanted = 0 if value == "on" else 1
        return f"knob module: {{{RETRY}: {wanted}}}, then a reload of amdgpu; for one job: HSA_XNACK={1 - wanted}"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """What the parameter will be, as far as files tell; without any it is the driver's default."""
        parameter = replace(setting, knob=Module.name, target=RETRY, want=Want("value", 0))
        found = Module().next_boot(boots, parameter)
        if isinstance(found.reading, Seen):
            return replace(found, reading=Seen(XNACK.get(int(str(found.reading.value)), "off")))
        return found if isinstance(found.reading, Unreadable) else Next(Seen(XNACK[-1]))

    def about(self, target: str) -> str:
        """Where it is documented."""
        return (
            "noretry in Linux drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c; kfd_process_xnack_mode in amdkfd/kfd_process.c:"
            " an MI300X takes the mode per process, noretry is the default. KFD's topology does not show it."
        )


def counted(text: str) -> int:
    """A number that the driver shows; ValueError for what is none, and for a number with all bits set."""
    if not text.isascii() or not text.isdecimal():
        raise ValueError(text[:40] or "nothing")
    if int(text) in SENTINELS:
        raise ValueError(f"{text}: all bits set, which is no number")
    return int(text)
