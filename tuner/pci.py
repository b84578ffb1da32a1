"""PCI devices as sysfs shows them: Documentation/ABI/testing/sysfs-bus-pci of the Linux kernel."""

from __future__ import annotations

import contextlib
import posixpath
import re
from dataclasses import dataclass

from tuner.errors import BadValue
from tuner.host.door import Host, Unrecorded

DEVICES = "/sys/bus/pci/devices"
HEX = re.compile(r"0x[0-9a-fA-F]{1,8}")
ADDRESS = re.compile(r"(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])")
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


def named(target: str) -> str:
    """The address with its domain, in small letters; a pattern over addresses as it is; empty for what is neither."""
    word = target.lower()
    found = ADDRESS.fullmatch(word)
    if found:
        return f"{found.group(1) or '0000'}:{found.group(2)}"
    return word if any(c in word for c in "*?[") else ""


def target_of(target: str, hint: str) -> str:
    """As `named`; BadValue with that hint for what is neither."""
    found = named(target)
    if not found:
        raise BadValue(f"{target!r} is no PCI address", hint)
    return found


OFF_THE_BUS = "off the bus: its configuration space reads all ones"


def off_the_bus(host: Host, address: str) -> bool:
    """Whether a function no longer answers, though its driver may, from memory. Not being allowed to look is no."""
    with contextlib.suppress(FileNotFoundError, PermissionError, Unrecorded):
        return host.head(f"{DEVICES}/{address}/config", 4) == b"\xff" * 4
    return False


def devices(host: Host) -> list[PciDevice]:
    """Every PCI function, by address; of one that no longer answers the id is ":" and the class 0.

    Raises Unrecorded and OSError as the host does for the listing; no PCI bus is an empty list.
    """
    try:
        addresses = host.list(DEVICES)
    except FileNotFoundError:
        return []
    return [_device(host, address) for address in addresses]


def _device(host: Host, address: str) -> PciDevice:
    folder = f"{DEVICES}/{address}"
    vendor, device = (_optional(host, f"{folder}/{name}").removeprefix("0x") for name in ("vendor", "device"))
    kind = _optional(host, f"{folder}/class")
    node = _optional(host, f"{folder}/numa_node")
    try:
        driver = posixpath.basename(host.link(f"{folder}/driver"))
    except (OSError, Unrecorded):
        driver = ""
    numa = int(node) if node.lstrip("-").isdigit() and int(node) >= 0 else None
    return PciDevice(address, f"{vendor}:{device}", int(kind, 16) if HEX.fullmatch(kind) else 0, driver, numa)


def _optional(host: Host, path: str) -> str:
    try:
        return host.text(path).strip()
    except (OSError, Unrecorded):
        return ""
