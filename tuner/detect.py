"""What a host has: GPUs, NICs, the PCI bridges above them, NUMA nodes, and which NIC is nearest to which GPU.

Everything is joined by PCI address, never by cardN, mlx5_N or a tool's index: these change with every boot
(Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net, stable/sysfs-class-infiniband, proc_net_route of Linux).
A value that cannot be read is None and noted with its path; what a driver writes for "unknown" is None too.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tuner.hardware import Bridge, Function, Gpu, Inventory, Link, Looker, Nic, Node, Pcie, Rail
from tuner.host import Host
from tuner.pci import DEVICES, INFINIBAND, PciDevice
from tuner.pci_names import VIRTUAL, name_of
from tuner.probes import topology

AMD, NVIDIA = "1002", "10de"
DISPLAY, ACCELERATOR, BRIDGE = 0x03, 0x12, 0x0604
"""Base classes of GPUs, and the class of PCI-to-PCI bridges."""

NETS = "/sys/class/net"
RDMA = "/sys/class/infiniband"
NODES = "/sys/devices/system/node"
ROUTES, ROUTES6 = "/proc/net/route", "/proc/net/ipv6_route"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
ROUTE = re.compile(r"^(\S+)\s+([0-9A-F]{8})\s+[0-9A-F]{8}\s+([0-9A-F]+)(?:\s+-?\d+){3}\s+([0-9A-F]{8})\s", re.MULTILINE)
UP, REJECT = 0x1, 0x200
"""Flags of a route: include/uapi/linux/route.h."""


def inventory(host: Host) -> Inventory:
    """What the host has. Never raises for what cannot be read: it is left out or None, and listed in `unread`."""
    if host.kind == "image":
        return Inventory(listed=False, unread=(("/sys", "an image has no hardware"),))
    looker = Looker(host)
    names = looker.names(DEVICES)
    found = [f for address in names or [] if (f := _function(looker, address))]
    gpus = tuple(_gpu(looker, f) for f in found if is_gpu(f))
    routed = _default_routes(looker)
    nics = _nics(looker, [f for f in found if f.is_nic], routed)
    places = {f.address: f for f in found}
    shown = [places[pci] for pci in (*(gpu.pci for gpu in gpus), *(nic.pci for nic in nics))]
    rail = rails(gpus, nics, {address: f.above for address, f in places.items()})
    told, disagreements = topology.compare(host, gpus, candidates(nics), rail)
    return Inventory(
        gpus,
        nics,
        tuple(f for f in found if f.pci_class >> 16 == DISPLAY and not is_gpu(f)),
        tuple(_bridges(shown, places)),
        tuple(_nodes(looker)),
        rail,
        tuple((f.address, f.above) for f in found),
        routed is not None,
        names is not None,
        tuple(sorted(looker.unread.items())),
        told,
        disagreements,
    )


def is_gpu(found: PciDevice) -> bool:
    """A display or accelerator function of AMD or NVIDIA, whatever driver it has: not the display of a BMC or a VM."""
    return found.pci_class >> 16 in (DISPLAY, ACCELERATOR) and found.id[:4] in (AMD, NVIDIA)


def _function(looker: Looker, address: str) -> Function | None:
    folder = f"{DEVICES}/{address}"
    vendor, device, kind = (looker.text(f"{folder}/{name}") for name in ("vendor", "device", "class"))
    try:
        number = int(kind or "", 16)
    except ValueError:
        return None
    driver = posixpath.basename(looker.link(f"{folder}/driver", optional=True) or "")
    pci_id = ":".join((part or "").removeprefix("0x") for part in (vendor, device))
    wanted = number >> 16 in (DISPLAY, ACCELERATOR) or number >> 8 in (0x0200, INFINIBAND, BRIDGE)
    numa = looker.number(f"{folder}/numa_node") if wanted else None
    return Function(address, pci_id, number, driver, numa, _above(looker.link(folder) or ""))


def _above(place: str) -> tuple[str, ...]:
    """The root and the bridges in the path of a device below /sys/devices, without the device itself."""
    parts = place.split("/")
    roots = [at for at, part in enumerate(parts) if ROOT.fullmatch(part)]
    if not roots:
        return ()
    return (parts[roots[-1]], *(part for part in parts[roots[-1] + 1 : -1] if ADDRESS.fullmatch(part)))


def _pcie(looker: Looker, folder: str) -> Pcie:
    """32.0 GT/s PCIe and 16; `Unknown speed` and a width of 0 are None."""
    speed = re.match(r"(\d+(?:\.\d+)?) GT/s", looker.text(f"{folder}/current_link_speed") or "")
    width = looker.number(f"{folder}/current_link_width")
    return Pcie(float(speed.group(1)) if speed else None, width if width and width < 255 else None)


def _virtual(looker: Looker, found: Function) -> bool | None:
    """By its id, as a guest sees it, or by the link to the function that it belongs to."""
    path = f"{DEVICES}/{found.address}/physfn"
    if found.id in VIRTUAL or looker.link(path, optional=True) is not None:
        return True
    return None if path in looker.unread else False


def _gpu(looker: Looker, found: Function) -> Gpu:
    folder = f"{DEVICES}/{found.address}"
    vendor, _, device = found.id.partition(":")
    partition = looker.text(f"{folder}/current_compute_partition", optional=True) if vendor == AMD else None
    lost = looker.off_the_bus(found.address)
    return Gpu(
        found.address,
        found.id,
        name_of(found.id),
        vendor,
        device,
        found.numa,
        _serial(looker, found, folder),
        found.driver or None,
        _virtual(looker, found),
        partition or None,
        tuple(name for name in looker.names(f"{folder}/drm") or [] if re.fullmatch(r"(card|renderD)\d+", name)),
        Pcie(None, None) if lost else _pcie(looker, folder),  # its registers read all ones: 63 lanes
        lost,
    )


def _serial(looker: Looker, found: Function, folder: str) -> str | None:
    """unique_id of amdgpu; of nvidia the UUID, which is question marks until the GPU was used."""
    if found.driver == "amdgpu":
        text = looker.text(f"{folder}/unique_id") or ""
        return text if text.strip("0x") and text.upper() != "N/A" else None
    if found.driver == "nvidia":
        text = looker.text(f"/proc/driver/nvidia/gpus/{found.address}/information") or ""
        uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", text, re.MULTILINE)
        return uuid.group(1) if uuid else None
    return None


def _nics(looker: Looker, found: list[Function], routed: set[str] | None) -> tuple[Nic, ...]:
    netdevs = _by_function(looker, NETS)
    rdma = _by_function(looker, RDMA)
    return tuple(_nic(looker, f, netdevs.get(f.address, []), rdma.get(f.address, []), routed) for f in found)


def _by_function(looker: Looker, folder: str) -> dict[str, list[str]]:
    """The members of a class of devices, by the PCI function that they lie on; those on none are left out."""
    members: dict[str, list[str]] = {}
    for name in looker.names(folder) or []:
        place = looker.link(f"{folder}/{name}", optional=True) or ""
        device = posixpath.basename(looker.link(f"{folder}/{name}/device", optional=True) or "")
        found = ADDRESS.fullmatch(device) or next(filter(None, map(ADDRESS.fullmatch, place.split("/")[::-1])), None)
        if found:
            members.setdefault(found.group(), []).append(name)
    return members


def _nic(looker: Looker, found: Function, netdevs: list[str], rdma: list[str], routed: set[str] | None) -> Nic:
    vendor, _, device = found.id.partition(":")
    netdev = min(netdevs, key=lambda name: _rank(looker, name), default=None)
    return Nic(
        found.address,
        found.id,
        name_of(found.id),
        vendor,
        device,
        netdev,
        rdma[0] if rdma else None,
        found.driver or None,
        found.numa,
        _virtual(looker, found),
        None if routed is None else bool(routed & set(netdevs)),
        _link(looker, netdev, rdma[0] if rdma else None),
        _pcie(looker, f"{DEVICES}/{found.address}"),
    )


def _rank(looker: Looker, netdev: str) -> tuple[bool, int, str]:
    """The port itself before the representors of its virtual functions, which lie on the same PCI function."""
    port = looker.text(f"{NETS}/{netdev}/phys_port_name", optional=True) if "pf" in netdev else ""
    return bool(re.search(r"pf\d+(vf|sf)\d+", f"{netdev} {port}")), len(netdev), netdev


def _link(looker: Looker, netdev: str | None, rdma: str | None) -> Link:
    """The rate of a port that is not active is that of no cable, and left out."""
    link = Link()
    if netdev:
        state = looker.text(f"{NETS}/{netdev}/operstate")
        speed, mtu = (looker.number(f"{NETS}/{netdev}/{name}") for name in ("speed", "mtu"))
        link = Link(state if state != "unknown" else None, speed, mtu)
    ports = looker.names(f"{RDMA}/{rdma}/ports") if rdma else []
    if not ports:
        return link
    port = f"{RDMA}/{rdma}/ports/{ports[0]}"
    state, physical = (_word(looker.text(f"{port}/{name}")) for name in ("state", "phys_state"))
    rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", looker.text(f"{port}/rate") or "")
    return replace(
        link,
        layer=looker.text(f"{port}/link_layer") or None,
        port_state=state,
        port_physical=physical,
        rate=float(rate.group(1)) if rate and state == "ACTIVE" else None,
    )


def _word(text: str | None) -> str | None:
    """ACTIVE of `4: ACTIVE`."""
    return (text or "").rpartition(":")[2].strip() or None


def _default_routes(looker: Looker) -> set[str] | None:
    """The interfaces that carry a default route, and those below them; None where that cannot be read."""
    routes = looker.text(ROUTES)
    if routes is None:
        return None
    names: set[str] = set()
    for name, target, flags, mask in ROUTE.findall(routes):
        if target == mask == "0" * 8 and int(flags, 16) & (UP | REJECT) == UP:
            names.add(name)
    for line in (looker.text(ROUTES6, optional=True) or "").splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo":
            names.add(fields[9])
    return names | {lower for name in names for lower in _lower(looker, name)}


def _lower(looker: Looker, name: str, depth: int = 4) -> Iterator[str]:
    """The devices that a bond, a bridge or a VLAN stands on."""
    for entry in (looker.names(f"{NETS}/{name}") or []) if depth else []:
        if entry.startswith("lower_"):
            yield entry[6:]
            yield from _lower(looker, entry[6:], depth - 1)


def _bridges(shown: list[Function], places: dict[str, Function]) -> Iterator[Bridge]:
    """The bridges above any of `shown`, by address."""
    for address in sorted({bridge for f in shown for bridge in f.above[1:]}):
        found = places.get(address)
        if found:
            kind = "root port" if len(found.above) == 1 else "switch port"
            upstream = found.above[-1] if found.above else ""
            yield Bridge(address, found.id, name_of(found.id), kind, upstream, found.numa, found.driver or None)


def _nodes(looker: Looker) -> Iterator[Node]:
    names = [name for name in looker.names(NODES) or [] if re.fullmatch(r"node\d+", name)]
    for name in sorted(names, key=lambda name: int(name[4:])):
        total = re.search(r"MemTotal:\s*(\d+) kB", looker.text(f"{NODES}/{name}/meminfo") or "")
        cpus = looker.text(f"{NODES}/{name}/cpulist")
        yield Node(int(name[4:]), cpus, int(total.group(1)) if total else None)


def rails(gpus: tuple[Gpu, ...], nics: tuple[Nic, ...], above: dict[str, tuple[str, ...]]) -> tuple[Rail, ...]:
    """The nearest NIC of each GPU: by the deepest bridge they share, then the NUMA node, then the root.

    Of NICs that are equally near one of the most frequent kind is taken, then one that no GPU before has.
    """
    able = candidates(nics)
    kinds = Counter(nic.id for nic in able)
    used: Counter[str] = Counter()
    found = []
    for gpu in gpus:
        near = [(_near(gpu, nic, above), nic) for nic in able]
        (_, kind, via), nic = min(
            near,
            key=lambda one: (-one[0][0], -kinds[one[1].id], used[one[1].pci], one[1].pci),
            default=((0, "none", None), None),
        )
        found.append(Rail(gpu.pci, nic.pci if nic else None, via, kind))
        used.update([nic.pci] if nic else [])
    return tuple(found)


def candidates(nics: tuple[Nic, ...]) -> list[Nic]:
    """NICs that can be a rail: with RDMA where any has it, and without the default route where any is."""
    able = [nic for nic in nics if nic.rdma] or list(nics)
    return [nic for nic in able if not nic.default_route] or able


def _near(gpu: Gpu, nic: Nic, above: dict[str, tuple[str, ...]]) -> tuple[int, str, str | None]:
    """(how near, by what, its name)."""
    shared = []
    for one, other in zip(above.get(gpu.pci, ()), above.get(nic.pci, ()), strict=False):
        if one != other:
            break
        shared.append(one)
    if len(shared) > 1:
        return 2 + len(shared), "switch", shared[-1]
    if gpu.numa is not None and gpu.numa == nic.numa:
        return (3, "root", shared[0]) if shared else (2, "numa", f"node{gpu.numa}")
    return (1, "root", shared[0]) if shared else (0, "far", None)
