"""The knobs, in the one list whose order is the order of writing within a class of disruption."""

from __future__ import annotations

from tuner.knobs.amdgpu import AmdgpuClock
from tuner.knobs.amdgpu_firmware import AmdgpuFirmware
from tuner.knobs.amdgpu_policy import AmdgpuSocPstate, AmdgpuXgmiPlpd
from tuner.knobs.amdgpu_power import AmdgpuPowerCap
from tuner.knobs.amdgpu_state import AmdgpuHive, AmdgpuPartition, AmdgpuVram, AmdgpuXgmiErrors, AmdgpuXnack
from tuner.knobs.base import Knob
from tuner.knobs.cmdline import Cmdline
from tuner.knobs.cpu import Cpu
from tuner.knobs.file import File
from tuner.knobs.hugepages import Hugepages
from tuner.knobs.irq import Irq
from tuner.knobs.limits import Limits
from tuner.knobs.module import Module
from tuner.knobs.nvidia_clocks import GpuClocks, MemClocks
from tuner.knobs.nvidia_modes import ComputeMode, Ecc, Mig, Persistence
from tuner.knobs.nvidia_power import PowerLimit
from tuner.knobs.nvidia_state import Fabric, FabricManager, NvLinks, RowRemap
from tuner.knobs.pcie import PcieLink
from tuner.knobs.service import Service
from tuner.knobs.shm import Shm
from tuner.knobs.sysctl import Sysctl
from tuner.knobs.sysctl_pair import SysctlPair
from tuner.knobs.sysfs import Sysfs
from tuner.knobs.thp import Thp

KNOBS: tuple[Knob, ...] = (
    Thp(),
    Sysctl(),
    SysctlPair(),
    Sysfs(),
    Irq(),
    Cpu(),
    AmdgpuClock(),
    AmdgpuPowerCap(),
    AmdgpuSocPstate(),
    AmdgpuXgmiPlpd(),
    AmdgpuPartition(),
    AmdgpuVram(),
    AmdgpuHive(),
    AmdgpuXgmiErrors(),
    AmdgpuFirmware(),
    AmdgpuXnack(),
    Persistence(),
    Ecc(),
    Mig(),
    ComputeMode(),
    MemClocks(),
    GpuClocks(),
    PowerLimit(),
    Fabric(),
    FabricManager(),
    NvLinks(),
    RowRemap(),
    PcieLink(),
    Hugepages(),
    Limits(),
    Shm(),
    Service(),
    Cmdline(),
    Module(),
    File(),
)
"""NUMA balancing (sysctl) before huge pages; THP before vm.min_free_kbytes, which it raises; files last.
Persistence mode of an NVIDIA GPU before what its driver forgets without; memory clocks before those they decide on."""

BY_NAME: dict[str, Knob] = {knob.name: knob for knob in KNOBS}


def number_of(name: str) -> int:
    """The place of a knob in the list."""
    return [knob.name for knob in KNOBS].index(name)


__all__ = ["BY_NAME", "KNOBS", "Knob", "number_of"]
