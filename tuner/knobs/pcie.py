"""The PCIe link of a GPU or a NIC, as it was trained: sysfs files current_link_speed and current_link_width.

Linux Documentation/ABI/testing/sysfs-bus-pci; the words for speeds: drivers/pci/probe.c, pci_speed_string.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Mapping

from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, bounded, number, reading
from tuner.knobs.nvidia import DISPLAYS, VENDOR, address, identity
from tuner.model import Absent, Leaf, Reading, Record, Seen, Unreadable, Value
from tuner.pci import DEVICES, OFF_THE_BUS, PciDevice, devices, off_the_bus

AMD, ACCELERATOR, DISPLAY = "1002", 0x1200, 0x0380
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6, "128.0": 7}
"""GT/s of a lane, as the kernel prints them."""

SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s(?: PCIe)?")
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
FIELDS = ("generation", "width")
KINDS = ("gpu", "nic")
VIRTUAL = "a virtual function has no link of its own"


class PcieLink(Knob):
    """The PCIe link of a GPU or NIC as it was trained, {generation, width}: judged only, best with at_least.

    Targets are `gpu/ADDRESS` and `nic/ADDRESS`, so that a pattern can mean the ones without the others: management and
    front-end NICs have links of all kinds. A GPU of NVIDIA may lower the generation while it is idle; a link that is
    too narrow, or slow under load, is a fault of slot, riser or board.
    """

    name = "pcie.link"
    read_only = True

    def canonical(self, target: str) -> str:
        """gpu/ or nic/ and the PCI address with its domain, or a pattern."""
        kind, _, place = target.partition("/")
        if kind not in KINDS or not place:
            raise BadValue(
                f"{target!r} is no link", 'gpu/ADDRESS or nic/ADDRESS, such as "gpu/0000:1b:00.0", or "gpu/*"'
            )
        return f"{kind}/{address(place)}"

    def parse(self, target: str, raw: Raw) -> Value:
        """A mapping of generation and width, or of one of them."""
        if not isinstance(raw, dict) or not raw or set(raw) - set(FIELDS):
            raise BadValue("a link has generation and width", "{generation: 5, width: 16}")
        found: dict[str, Leaf] = {name: number(raw[name]) for name in FIELDS if name in raw}
        if "generation" in found:
            bounded(number(raw["generation"]), 1, max(GENERATIONS.values()))
        if found.get("width", 1) not in WIDTHS:
            raise BadValue(f"{found['width']} is no width of a link", f"one of {', '.join(map(str, WIDTHS))}")
        return found

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Every GPU and every NIC that has a link of its own."""
        kinds = [(_kind(device), device.address) for device in devices(host)]
        return [f"{kind}/{place}" for kind, place in kinds if kind and _has_link(host, place)]

    def search_root(self, pattern: str) -> str:
        """One look finds them all."""
        return ""

    def identity(self, host: Host, target: str) -> str:
        """The UUID of a GPU of NVIDIA; others have none that a file shows."""
        place = _place(target)
        found = reading(lambda: host.text(f"{DEVICES}/{place}/vendor").strip())
        return identity(host, place) if found == Seen(f"0x{VENDOR}") else ""

    def read(self, host: Host, target: str) -> Reading:
        """{generation, width}."""
        target = _place(target)
        if off_the_bus(host, target):
            return Unreadable(OFF_THE_BUS, "device")
        if host.exists(f"{DEVICES}/{target}/physfn"):
            return Absent(VIRTUAL)
        found = reading(lambda: _link(host, target, "current"))
        if isinstance(found, Absent):
            there = host.exists(f"{DEVICES}/{target}")
            return Absent("it has no PCIe link" if there else "no device at this address")
        return found

    def write(self, host: Host, target: str, value: Value) -> None:
        """Links are trained by the hardware."""
        raise Refused("judged only: links are trained by the hardware")

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What device and port above it can do, and where to look."""
        target = _place(target)
        now = _ability(host, target, "current")
        able = {"the device": _ability(host, target, "max"), "the port above it": _above(host, target)}
        words = [f"{who} can do {_said(found)}" for who, found in able.items() if found]
        slow = "generation" in now and any(f and f["generation"] != now["generation"] for f in able.values())
        idle = "; a GPU of NVIDIA lowers it while idle: look again under load" if slow and _lowers(host, target) else ""
        return f"{', '.join([*words, 'check slot, riser and BIOS'])}{idle}"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "Documentation/ABI/testing/sysfs-bus-pci; lspci -vv shows LnkCap and LnkSta."


def _place(target: str) -> str:
    return target.partition("/")[2]


def _kind(device: PciDevice) -> str:
    """gpu, nic, or empty for another device."""
    gpus = {VENDOR: DISPLAYS, AMD: DISPLAYS | {ACCELERATOR, DISPLAY}}
    if device.pci_class >> 8 in gpus.get(device.id.partition(":")[0], ()):
        return "gpu"
    return "nic" if device.is_nic else ""


def _has_link(host: Host, target: str) -> bool:
    """Whether it is a physical function on PCIe; what cannot be looked at counts as one."""
    try:
        folder = f"{DEVICES}/{target}"
        return host.exists(f"{folder}/current_link_width") and not host.exists(f"{folder}/physfn")
    except (OSError, Unrecorded):
        return True


def _link(host: Host, target: str, which: str) -> Record:
    """{generation, width} of the link as it is (`current`) or could be (`max`); ValueError for what is no link."""
    folder = f"{DEVICES}/{target}"
    speed, width = (host.text(f"{folder}/{which}_link_{what}").strip() for what in ("speed", "width"))
    found = SPEED.fullmatch(speed)
    generation = GENERATIONS.get(f"{float(found.group(1)):.1f}") if found else None
    if generation is None or not width.isascii() or not width.isdigit() or int(width) not in WIDTHS:
        raise ValueError(f"speed {speed[:40]!r}, width {width[:40]!r}: the link is down or not reported")
    return {"generation": generation, "width": int(width)}


def _ability(host: Host, target: str, which: str) -> Record:
    with contextlib.suppress(OSError, Unrecorded, ValueError):
        return _link(host, target, which)
    return {}


def _above(host: Host, target: str) -> Record:
    """What the port can do that the device hangs on."""
    with contextlib.suppress(OSError, Unrecorded):
        above = posixpath.basename(posixpath.dirname(host.link(f"{DEVICES}/{target}")))
        return _ability(host, above, "max")
    return {}


def _lowers(host: Host, target: str) -> bool:
    """Whether the driver trains the link down while the device is idle: no MI300X has PCIe levels (pp_dpm_pcie)."""
    with contextlib.suppress(OSError, Unrecorded):
        kind = host.text(f"{DEVICES}/{target}/class").strip()
        return host.text(f"{DEVICES}/{target}/vendor").strip() == f"0x{VENDOR}" and int(kind, 16) >> 8 in DISPLAYS
    return False


def _said(link: Record | Mapping[str, Leaf]) -> str:
    return f"generation {link['generation']} x{link['width']}"
