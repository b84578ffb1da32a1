"""PCI devices as sysfs shows them: Documentation/ABI/testing/sysfs-bus-pci of the Linux kernel."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from tuner.host.door import Host

DEVICES = "/sys/bus/pci/devices"
ETHERNET = 0x0200
INFINIBAND = 0x0207


@dataclass(frozen=True)
class PciDevice:
    """One function: its address, `vendor:device` and class in hex, the bound driver and the NUMA node (None: none)."""

    address: str
    id: str
    pci_class: int
    driver: str
    numa: int | None

    @property
    def is_nic(self) -> bool:
        """Whether it is an Ethernet or InfiniBand controller."""
        return self.pci_class >> 8 in (ETHERNET, INFINIBAND)


def devices(host: Host) -> list[PciDevice]:
    """Every PCI function, by address. Raises Unrecorded and OSError as the host does; no PCI bus is an empty list."""
    try:
        addresses = host.list(DEVICES)
    except FileNotFoundError:
        return []
    return [_device(host, address) for address in addresses]


def _device(host: Host, address: str) -> PciDevice:
    folder = f"{DEVICES}/{address}"
    vendor, device = (host.text(f"{folder}/{name}").strip().removeprefix("0x") for name in ("vendor", "device"))
    node = _optional(host, f"{folder}/numa_node")
    try:
        driver = posixpath.basename(host.link(f"{folder}/driver"))
    except OSError:
        driver = ""
    numa = int(node) if node.lstrip("-").isdigit() and int(node) >= 0 else None
    return PciDevice(address, f"{vendor}:{device}", int(host.text(f"{folder}/class").strip(), 16), driver, numa)


def _optional(host: Host, path: str) -> str:
    try:
        return host.text(path).strip()
    except OSError:
        return ""
