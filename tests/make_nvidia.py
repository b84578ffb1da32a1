"""Writes the manifest of a synthetic recorded host: python -m tests.make_nvidia a100-cx7 > tests/hosts/a100-cx7.host

a100-cx7 and h800-cx7 are servers with 8 GPUs of NVIDIA behind NVSwitch and 8 ConnectX-7. No public listing of one is
complete, so they are put together from documents and public dumps: PCI ids from NVIDIA/open-gpu-kernel-modules README
and pci-ids.ucw.cz; clocks and power of the A100 from NVIDIA/nvidia-docker#1648, clocks of the H800 from
NVIDIA/DCGM#120; files of the driver from open-gpu-kernel-modules kernel-open/nvidia (nv-procfs.c, nv-reg.h); the matrix
in the form that `nvidia-smi topo -m` has. What no source tells is left out. What a kernel has apart from these devices
is that of mi300x-cx7, with fewer CPUs.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from errno import ETIMEDOUT
from functools import cache
from typing import Any

from tests import make_hosts
from tests.make_hosts import Tree, Variant
from tuner.host import manifest
from tuner.host.manifest import Entry
from tuner.host.replay import command_path, nvml_path, shown
from tuner.sim import faults

# fmt: off
MARK, DRIVER, OTHER = ".tuner-host", "550.90.07", "535.183.06"
OTHERS = "550.127.05"
"""The version of the libraries where they are not of the loaded driver."""

CPUS, CORES, BASE_CORES = 64, 32, 96
"""CPUs of the host, those of one node, and those of one node of mi300x-cx7."""

GEN4, GEN5 = ("16.0 GT/s PCIe", 16), ("32.0 GT/s PCIe", 16)
DISKS = ("pci0000:20/0000:20:03.2/0000:21:00.0", "pci0000:a0/0000:a0:03.2/0000:a1:00.0")
DEVICES = "/sys/bus/pci/devices"
PERSISTENCED, FABRIC = "nvidia-persistenced.service", "nvidia-fabricmanager.service"
UNITS = {
    PERSISTENCED: "[Service]\nType=forking\nExecStart=/usr/bin/nvidia-persistenced --user "
                                   "nvidia-persistenced --no-persistence-mode --verbose",
    FABRIC: "[Service]\nType=forking\nExecStart=/usr/bin/nv-fabricmanager -c "
                                    "/usr/share/nvidia/nvswitch/fabricmanager.cfg",
}
DROP_IN = ("[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose")
"""What an operator puts beside the unit of the distribution, which starts it with --no-persistence-mode."""

PARAMS = {
    "RmLogonRC": 1, "ModifyDeviceFiles": 1, "DeviceFileUID": 0, "DeviceFileGID": 0, "DeviceFileMode": 438,
    "InitializeSystemMemoryAllocations": 1, "UsePageAttributeTable": 4294967295, "EnableMSI": 1,
    "EnableStreamMemOPs": 0, "NvLinkDisable": 0, "RmProfilingAdminOnly": 1, "PreserveVideoMemoryAllocations": 0,
    "EnablePCIERelaxedOrderingMode": 0, "EnableResizableBar": 0, "EnableGpuFirmware": 18, "DmaRemapPeerMmio": 1,
    "GrdmaPciTopoCheckOverride": 0, "RegistryDwords": '""',
}
MODULES = "nvidia_uvm nvidia mlx5_ib ib_uverbs ib_core mlx5_core mlxfw nvme nvme_core"
GONE = re.compile(
    r"/(sys/(devices/(pci|platform/amdgpu)|bus/pci|class/|block|kernel/iommu_groups|module/(amdgpu|nvidia)$)"
    r"|sys/module/amdgpu/|dev$|dev/(dri|kfd|infiniband)|proc/irq|\.tuner-host/).*"
)
FRONT = ("enp7s0f0np0", "enp7s0f1np1")
AMD_RULES = re.compile(
    r"^  (# The driver's answers|\S*/(power_dpm|pp_|pm_policy|thermal|current_\*|hwmon)).*\n", re.MULTILINE
)
NODE_TEXTS = {f"0-{BASE_CORES - 1}": f"0-{CORES - 1}", f"{BASE_CORES}-{2 * BASE_CORES - 1}": f"{CORES}-{CPUS - 1}",
              f"0-{2 * BASE_CORES - 1}": f"0-{CPUS - 1}"}
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:
"""
# fmt: on


@dataclass(frozen=True)
class Kind:
    """A product: PCI device and subsystem, name, clocks in MHz, memory in bytes (0: no source), limits in W."""

    device: str
    subsystem: str
    product: str
    idle: int
    top: int
    memory_clock: int
    memory: int
    watts: tuple[int, int]
    links: int

    def graphics(self) -> list[int]:
        """The graphics clocks in MHz, highest first: steps of 15."""
        return list(range(self.top, self.idle - 1, -15))


# The 40 GB board: NVIDIA/nvidia-docker#1648. No dump of the 80 GB board shows its lowest clock and limit: taken as its.
A100_40 = Kind("20b0", "1450", "NVIDIA A100-SXM4-40GB", 210, 1410, 1215, 40960 << 20, (100, 400), 12)
A100_80 = Kind("20b2", "1463", "NVIDIA A100-SXM4-80GB", 210, 1410, 1593, 81920 << 20, (100, 400), 12)
# NVIDIA/DCGM#120 for clocks; 8 links follow from 400 GB/s (deepseek-ai/DeepEP#16); the lowest limit is a guess.
H800 = Kind("2324", "17a6", "NVIDIA H800", 345, 1980, 2619, 0, (200, 700), 8)


@dataclass(frozen=True)
class Server:
    """A host. `switches`: root bus, first bus of the switch, buses below it; those in `gpus` are GPUs, others NICs."""

    name: str
    cpu: str
    kind: Kind
    root_port: str
    bridge: str
    link: tuple[str, int]
    gbps: int
    gpus: tuple[int, ...]
    switches: tuple[tuple[int, int, tuple[int, ...]], ...]
    nvswitches: tuple[str, int, tuple[int, ...]]
    open_driver: bool
    mig: str
    more: tuple[str, ...] = field(default=())

    def address(self, number: int) -> str:
        """The PCI address of a GPU by its index in nvidia-smi."""
        return f"0000:{self.gpus[number]:02x}:00.0"

    def addresses(self) -> list[str]:
        """Those of all GPUs."""
        return [self.address(number) for number in range(len(self.gpus))]

    def nics(self) -> list[int]:
        """Buses of the NICs, in order."""
        return sorted(bus for *_, members in self.switches for bus in members if bus not in self.gpus)

    def summary(self) -> str:
        """What `tuner host list` says."""
        what = "8 A100-SXM4-80GB" if self.kind is A100_80 else "8 H800 SXM"
        return (
            f"Ubuntu 22.04, 2 x EPYC {self.cpu}, {what} behind NVSwitch, 8 ConnectX-7 at {self.gbps} Gb/s; made from"
            " public sources, no such machine was read"
        )


SERVERS = {
    "a100-cx7": Server(
        "a100-cx7", "7543", A100_80, "1483", "c010", GEN4, 200,
        (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD),
        ((0x00, 0x01, (0x07, 0x0C, 0x0F, 0x12)), (0x40, 0x41, (0x47, 0x4B, 0x4E, 0x54)),
         (0x80, 0x81, (0x87, 0x8D, 0x90, 0x94)), (0xB0, 0xB1, (0xB7, 0xBA, 0xBD, 0xBE))),
        ("1af1", 0xC0, (0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9)), False, "reset", ("a100-40gb",),
    ),
    "h800-cx7": Server(
        "h800-cx7", "9354", H800, "14ab", "c030", GEN5, 400,
        (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF),
        ((0x15, 0x16, (0x18, 0x1B)), (0x3D, 0x3E, (0x40, 0x43)), (0x4C, 0x4D, (0x4F, 0x52)),
         (0x5B, 0x5C, (0x5E, 0x61)), (0x97, 0x98, (0x9A, 0x9D)), (0xBD, 0xBE, (0xC0, 0xC3)),
         (0xCB, 0xCC, (0xCE, 0xD1)), (0xD9, 0xDA, (0xDC, 0xDF))),
        ("22a3", 0x00, (0x05, 0x06, 0x07, 0x08)), True, "now",
    ),
}  # fmt: skip


def build(server: Server) -> Tree:
    """Every entry of the host but those of its faults."""
    tree = _base(server)
    _devices(tree, server)
    _narrow(tree)
    _driver(tree, server)
    for number in range(len(server.gpus)):
        tree |= _nvml(server, number, server.kind)
    tree[nvml_path(MARK, "", "driver")] = _answer(DRIVER)
    tree[nvml_path(MARK, "", "gpus")] = _answer(server.addresses())
    tree |= {**_commands(server), **_command(TOPO, _matrix(server))}
    _units(tree)
    make_hosts._listings(tree)
    tree.file(f"/{MARK}/kernel.yaml", _kernel_yaml(server), 0o644)
    about = f"name: {server.name}\nkernel: {make_hosts.KERNEL}\nsynthetic: true\nsummary: {server.summary()}"
    tree.file(f"/{MARK}/host.yaml", about, 0o644)
    return tree


@cache
def _mi300x() -> Mapping[str, Entry]:
    return make_hosts.build(Variant("ast-absent"))


def _base(server: Server) -> Tree:
    """The kernel, the CPUs and the distribution of mi300x-cx7, without its devices."""
    old = [f"enp{bus + 1}s0np0" for bus in make_hosts.GPUS]
    names = dict(zip(old, (f"enp{bus}s0np0" for bus in server.nics()), strict=True))
    tree = Tree()
    for path, entry in _mi300x().items():
        parts = path.split("/")
        if not GONE.fullmatch(path) and not set(parts) & set(FRONT):
            listed = tuple(sorted(names.get(name, name) for name in entry.names if name not in FRONT))
            tree["/".join(names.get(part, part) for part in parts)] = replace(entry, names=listed)
    for path in ("/etc/hostname", "/proc/sys/kernel/hostname"):
        tree.file(path, server.name, tree[path].mode)
    dev = set(_mi300x()["/dev"].names) - {"dri", "kfd"}
    nodes = [*(f"nvidia{n}" for n in range(8)), *(f"nvidia-nvswitch{n}" for n in range(len(server.nvswitches[2])))]
    nodes += ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-nvswitchctl"]
    tree.folder("/dev", [*dev, *nodes, "nvidia-caps"])
    caps = ("nvidia-cap1", "nvidia-cap2")
    tree.folder("/dev/nvidia-caps", caps)
    tree |= {f"/dev/{name}": Entry("file", 0o666) for name in nodes}
    tree |= {f"/dev/nvidia-caps/{name}": Entry("file", 0o400) for name in caps}
    tree |= {f"/dev/infiniband/{name}": Entry("file", 0o666) for name in ["rdma_cm", *(f"uverbs{n}" for n in range(8))]}
    tree.file("/proc/modules", "\n".join(f"{name} 4096 0 - Live 0x0000000000000000" for name in MODULES.split()))
    model = f"AMD EPYC {server.cpu} 32-Core Processor"
    cores = (f"processor\t: {n}\nmodel name\t: {model}\nphysical id\t: {n // CORES}\n" for n in range(CPUS))
    tree.file("/proc/cpuinfo", "\n".join(cores))
    return tree


def _narrow(tree: Tree) -> None:
    """Fewer CPUs than mi300x-cx7 has: those that go, and the lists that name them."""
    for path in [path for path in tree if _beyond(path)]:
        del tree[path]
    for path, entry in list(tree.items()):
        text = entry.data.decode("utf-8", "surrogateescape").rstrip("\n")
        if path.startswith("/proc/irq/") and text.isdigit():
            node, core = divmod(int(text), BASE_CORES)
            tree.file(path, CORES * node + core % CORES, entry.mode)
        elif text in NODE_TEXTS and ("/system/" in path or path.endswith("watchdog_cpumask")):
            tree.file(path, NODE_TEXTS[text], entry.mode)
        elif path.startswith("/sys/devices/system/cpu") and entry.kind == "dir":
            tree[path] = replace(entry, names=tuple(name for name in entry.names if not _beyond(f"{path}/{name}")))


def _beyond(path: str) -> bool:
    found = re.match(r"/sys/devices/system/cpu/(?:cpufreq/policy|cpu)(\d+)(?=/|$)", path)
    return found is not None and int(found.group(1)) >= CPUS


def _devices(tree: Tree, server: Server) -> None:
    make_hosts._disks(tree)
    moved = dict(zip(make_hosts.DISKS, DISKS, strict=True))
    for path in [path for path in tree if any(old in path for old in moved) or path.startswith("/sys/block/")]:
        entry, new = tree.pop(path), path
        for before, after in moved.items():
            new = new.replace(before, after)
            entry = replace(entry, data=entry.data.replace(before.encode(), after.encode()))
        tree[new] = entry
    for switch in server.switches:
        _switch(tree, server, *switch)
    device, root, members = server.nvswitches
    for above, bus in _ports(tree, server, root, root + 1, members):
        place = tree.pci(f"{above}/0000:{bus:02x}:00.0", f"10de {device}", "068000", "nvidia-nvswitch")
        for name in ("speed", "width"):  # no source tells its link
            del tree[f"{place}/current_link_{name}"]


def _ports(tree: Tree, server: Server, root: int, first: int, members: Iterable[int]) -> Iterator[tuple[str, int]]:
    """A root port and a PCI switch; yields each downstream port's directory and the bus below it."""
    port = f"pci0000:{root:02x}/0000:{root:02x}:01.1"
    upstream = f"{port}/0000:{first:02x}:00.0"
    tree.pci(port, f"1022 {server.root_port}", "060400", "pcieport", server.link)
    tree.pci(upstream, f"1000 {server.bridge}", "060400", "pcieport", server.link)
    for number, bus in enumerate(members):
        down = f"{upstream}/0000:{first + 1:02x}:{number:02x}.0"
        tree.pci(down, f"1000 {server.bridge}", "060400", "pcieport", server.link)
        tree.files(f"/sys/devices/{down}", {"max_link_speed": server.link[0], "max_link_width": server.link[1]})
        yield down, bus


def _switch(tree: Tree, server: Server, root: int, first: int, members: Sequence[int]) -> None:
    """A PCI switch with its GPUs and NICs."""
    for down, bus in _ports(tree, server, root, first, members):
        path, kind = f"{down}/0000:{bus:02x}:00.0", server.kind
        if bus in server.gpus:
            tree.pci(path, f"10de {kind.device} 10de {kind.subsystem}", "030200", "nvidia", server.link)
            continue
        place = tree.pci(path, "15b3 1021 15b3 0041", "020000", "mlx5_core", server.link)
        number = server.nics().index(bus)
        make_hosts._nic(tree, place, number, f"enp{bus}s0np0", 400)
        if server.gbps == 200:
            tree.file(f"{place}/net/enp{bus}s0np0/speed", 200000)
            tree.file(f"{place}/infiniband/mlx5_{number}/ports/1/rate", "200 Gb/sec (4X HDR)")


def uuid(server: Server, number: int) -> str:
    """The UUID of a GPU, made up."""
    return f"GPU-{server.kind.device}0000-0000-4000-8000-0000000000{server.gpus[number]:02x}"


def _driver(tree: Tree, server: Server) -> None:
    """Files of the driver below /proc/driver/nvidia and /sys/module."""
    which = "Open Kernel Module for x86_64" if server.open_driver else "x86_64 Kernel Module"
    compiler = "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)"
    version = f"NVRM version: NVIDIA UNIX {which}  {DRIVER}  Release Build\n{compiler}"
    tree.files("/proc/driver/nvidia", {"version": version, "params": "\n".join(f"{k}: {v}" for k, v in PARAMS.items())})
    tree.files("/sys/module/nvidia", {"version": DRIVER, "initstate": "live"})
    tree.file("/sys/module/nvidia_uvm/initstate", "live")
    for number in range(len(server.gpus)):
        tree |= _information(server, number, server.kind)


def _information(server: Server, number: int, kind: Kind) -> dict[str, Entry]:
    address = server.address(number)
    text = (
        f"Model: \t\t {kind.product}\nGPU UUID: \t {uuid(server, number)}\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n"
        f"DMA Mask: \t 0x7fffffffffff\nBus Location: \t {address}\nDevice Minor: \t {number}\n"
        f"GPU Firmware: \t {DRIVER if server.open_driver else 'N/A'}\nGPU Excluded:\t No\n"
    )
    return {f"/proc/driver/nvidia/gpus/{address}/information": Entry("file", 0o444, text.encode())}


def _answer(value: Any) -> Entry:
    return Entry("file", 0o644, shown(value).encode())


def _error(name: str) -> Entry:
    return Entry("file", 0o644, f"error {name}\n".encode())


def _said(server: Server, number: int, values: Mapping[str, Any]) -> dict[str, Entry]:
    """Answers of NVML about one GPU."""
    return {nvml_path(MARK, server.address(number), name): _answer(value) for name, value in values.items()}


def _all(server: Server, values: Mapping[str, Any]) -> dict[str, Entry]:
    """The same answers about all of them."""
    return {path: entry for number in range(len(server.gpus)) for path, entry in _said(server, number, values).items()}


def _nvml(server: Server, number: int, kind: Kind) -> dict[str, Entry]:
    """What NVML says of a healthy, idle GPU."""
    low, high = (1000 * watts for watts in kind.watts)
    clocks = {"graphics": kind.idle, "sm": kind.idle, "memory": kind.memory_clock}
    modes = {"current": "disabled", "pending": "disabled"}
    hopper = kind is H800
    found = _said(server, number, {
        "uuid": uuid(server, number), "serial": f"16501230000{number:02}", "name": kind.product,
        "persistence": "enabled", "clocks": clocks, "max_clocks": {**clocks, "graphics": kind.top, "sm": kind.top},
        "supported_clocks": {str(kind.memory_clock): kind.graphics()},
        "power": {"limit": high, "enforced": high, "min": low, "max": high, "default": high},
        "ecc": dict.fromkeys(modes, "enabled"), "mig": modes, "compute_mode": "default", "event_reasons": 1,
        "nvlinks": ["active"] * kind.links,
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        **({"memory": kind.memory} if kind.memory else {}),
        **({"fabric": {"state": "completed", "status": "SUCCESS", "health": None}} if hopper else {}),
    })  # fmt: skip
    if not hopper:
        found[nvml_path(MARK, server.address(number), "fabric")] = _error("NOT_SUPPORTED")
    return found


def _command(argv: Sequence[str], out: str, code: int = 0) -> dict[str, Entry]:
    return {command_path(MARK, argv): Entry("file", 0o644, f"exit {code}\n{out}\n".encode())}


TOPO = ("nvidia-smi", "topo", "-m")
INDEX = ("nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader")
MANAGER = ("nv-fabricmanager", "--version")


def _commands(server: Server, there: Iterable[int] = range(8), manager: str = DRIVER) -> dict[str, Entry]:
    """Programs of the driver and of the fabric manager."""
    lines = [f"{index}, 0000{server.address(number).upper()}" for index, number in enumerate(there)]
    return _command(INDEX, "\n".join(lines)) | _command(MANAGER, f"Fabric Manager version is : {manager}")


def _matrix(server: Server, there: Iterable[int] = range(8)) -> str:
    """`nvidia-smi topo -m`: from what shares a switch, what a node, and what neither."""
    behind = {bus: first for _, first, members in server.switches for bus in members}
    gpus, nics = [server.gpus[number] for number in there], server.nics()
    labels = {bus: f"GPU{n}" for n, bus in enumerate(gpus)} | {bus: f"NIC{n}" for n, bus in enumerate(nics)}

    def cell(one: int, other: int) -> str:
        if one == other:
            return " X "
        if one in gpus and other in gpus:
            return f"NV{server.kind.links}"
        if behind[one] == behind[other]:
            return "PIX"
        return "NODE" if (one < 0x80) == (other < 0x80) else "SYS"

    rows = ["\t" + "\t".join([*labels.values(), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for one in labels:
        node = int(one >= 0x80)
        near = [f"{CORES * node}-{CORES * node + CORES - 1}", str(node), "\tN/A"] if one in gpus else []
        rows.append("\t".join([labels[one], *(cell(one, other) for other in labels), *near]))
    return "\n".join([*rows, LEGEND, *(f"  NIC{n}: mlx5_{n}" for n in range(len(nics))), ""])


def _units(tree: Tree) -> None:
    """Persistence daemon and fabric manager, which run and start at boot."""
    units, wants = "/usr/lib/systemd/system", "/etc/systemd/system/multi-user.target.wants"
    for pid, (unit, text) in enumerate(UNITS.items(), 900):
        tree.file(f"{units}/{unit}", text, 0o644)
        tree[f"{wants}/{unit}"] = Entry("link", 0o777, f"/lib/systemd/system/{unit}".encode())
        tree[f"/run/systemd/units/invocation:{unit}"] = Entry("link", 0o777, f"{pid:032x}".encode())
        tree.file(f"/sys/fs/cgroup/system.slice/{unit}/cgroup.procs", pid, 0o644)
    tree.folder(f"/etc/systemd/system/{PERSISTENCED}.d", ["persistence.conf"])
    tree.file(f"/etc/systemd/system/{PERSISTENCED}.d/persistence.conf", DROP_IN, 0o644)


# --- rules and faults


@dataclass(frozen=True)
class Fault:
    """What `tuner host list` says, the entries that change, and lines of YAML for the rest."""

    about: str
    entries: Mapping[str, Entry] = field(default_factory=dict)
    lines: str = ""


def _kernel_yaml(server: Server) -> str:
    text = _mi300x()[f"/{MARK}/kernel.yaml"].data.decode().partition("faults:")[0]
    text = AMD_RULES.sub("", text).replace(f"high: {2 * BASE_CORES - 1}", f"high: {CPUS - 1}")
    text += "  # NVML: how MIG comes into force differs; the rest is as tuner/sim/nvidia.py has it.\n"
    text += f"  /{MARK}/nvml/*: {{is: nvidia, mig: {server.mig}}}\nfaults:\n"
    for name, fault in broken(server).items():
        text += f'  {name}:\n    about: "{fault.about}"\n'
        text += "    overlay: true\n" if fault.entries else ""
        text += "".join(f"    {line}\n" for line in fault.lines.splitlines())
    return text.rstrip("\n")


def _rules(where: str, rule: str) -> str:
    return f"rules:\n  /{MARK}/nvml/{where}: {{is: {rule}}}"


def broken(server: Server) -> dict[str, Fault]:
    """The faults of a host, by name."""
    found = {**_lost(server), **_library(server), **_states(server), **_fabric(server), **_others(server)}
    return found | ({"a100-40gb": _forty(server)} if "a100-40gb" in server.more else {})


def _place(server: Server, bus: int) -> str:
    """The directory of a GPU or NIC."""
    root, first, members = next(switch for switch in server.switches if bus in switch[2])
    above = f"pci0000:{root:02x}/0000:{root:02x}:01.1/0000:{first:02x}:00.0"
    return f"/sys/devices/{above}/0000:{first + 1:02x}:{members.index(bus):02x}.0/0000:{bus:02x}:00.0"


def _lost(server: Server) -> dict[str, Fault]:
    """GPU 3 does not answer, or is not there at all; the driver was loaded again."""
    gpu, place = server.address(3), _place(server, server.gpus[3])
    left = [n for n in range(8) if n != 3]
    names = _nvml(server, 3, server.kind)
    others = {nvml_path(MARK, "", "gpus"): _answer([server.address(n) for n in left]), **_commands(server, left)}
    others |= _command(TOPO, _matrix(server, left))
    dead = {
        **dict.fromkeys(names, _error("GPU_IS_LOST")), f"{place}/config": Entry("file", 0o644, b"\xff" * 64),
        **_command(INDEX, f"Unable to determine the device handle for GPU{gpu}: GPU is lost.", 15),
        nvml_path(MARK, "", "gpus"): others[nvml_path(MARK, "", "gpus")],
    }  # fmt: skip
    paths = [f"{DEVICES}/{gpu}", f"/sys/bus/pci/drivers/nvidia/{gpu}", place, "/dev/nvidia3",
             f"/proc/driver/nvidia/gpus/{gpu}", f"/{MARK}/nvml/{gpu}"]  # fmt: skip
    fresh = {nvml_path(MARK, a, "persistence"): _answer("disabled") for a in server.addresses()}
    forgets = [
        "/sys/module/nvidia", *(f"/{MARK}/nvml/*/{name}" for name in ("clocks", "power")), f"/{MARK}/state/nvidia-*",
    ]  # fmt: skip
    return {
        "driver-reload": Fault("the driver was loaded again: persistence off, locks and power limit forgotten",
                               fresh, f"anew: {json.dumps(forgets)}"),
        "gpu-lost": Fault(f"{gpu} fell off the bus (Xid 79)", dead, _rules(f"{gpu}/*", "nvidia, lost: true")),
        "gpu-gone": Fault(f"{gpu} is not there after a boot", others, "remove:\n" + "\n".join(f"- {p}" for p in paths)),
    }  # fmt: skip


def _library(server: Server) -> dict[str, Fault]:
    """What keeps NVML from answering."""
    every = [path for n in range(8) for path in _nvml(server, n, server.kind)]
    every += [nvml_path(MARK, "", name) for name in ("driver", "gpus")]
    smi = command_path(MARK, INDEX), command_path(MARK, TOPO)

    def failing(error: str, out: str, code: int) -> dict[str, Entry]:
        said = Entry("file", 0o644, f"exit {code}\n{out}\n".encode())
        return {**dict.fromkeys(every, _error(error)), **dict.fromkeys(smi, said)}

    mismatch = f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {OTHERS}"
    missing = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."
    hung = {**dict.fromkeys(every, _error("TIMEOUT")), **dict.fromkeys(smi, Entry("errno", errno=ETIMEDOUT))}
    return {
        "nvml-denied": Fault("NVML answers, and may set nothing", lines=_rules("*", "nvidia, deny: true")),
        "nvml-hangs": Fault("the driver hangs: NVML never answers", hung),
        "no-nvml": Fault("libnvidia-ml.so is not installed", failing("LIBRARY_NOT_FOUND", missing, 12)),
        "version-mismatch": Fault(f"libraries of {OTHERS} beside the loaded driver {DRIVER}",
                                  failing("LIB_RM_VERSION_MISMATCH", mismatch, 18)),
    }  # fmt: skip


def _states(server: Server) -> dict[str, Fault]:
    """GPUs that answer, and are not as they should be."""
    first, two, kind = server.address(0), server.address(2), server.kind
    high = 1000 * kind.watts[1]
    power = {"limit": high, "enforced": 300000, "min": 1000 * kind.watts[0], "max": high, "default": high}
    clean = {"correctable": 0, "uncorrectable": 1, "pending": False, "failure": False}
    down = ["active"] * 5 + ["inactive"] + ["active"] * (kind.links - 6)
    on = {"current": "enabled", "pending": "enabled"}
    narrow = {f"{_place(server, server.gpus[0])}/current_link_width": Entry("file", 0o444, b"8\n")}
    return {
        "ecc-pending": Fault(f"ECC of {first} is off until the next reset",
                             _said(server, 0, {"ecc": {"current": "disabled", "pending": "enabled"}})),
        "mig-on": Fault("MIG is enabled on all GPUs", _all(server, {"mig": on})),
        "mig-in-use": Fault("a monitor holds the GPUs: MIG does not come into force",
                            _process(5200, "nv-hostengine", "nvidia-dcgm.service"), _rules("*", "nvidia, mig: in_use")),
        "job-runs": Fault("a job of a user has a GPU open", _process(4711, "python3", "slurmd.service")),
        "row-remap-pending": Fault(f"a bad row of {two} is remapped at the next reset",
                                   _said(server, 2, {"remapped_rows": {**clean, "pending": True}})),
        "row-remap-failed": Fault(f"{two} has no spare row left",
                                  _said(server, 2, {"remapped_rows": {**clean, "uncorrectable": 8, "failure": True}})),
        "nvlink-down": Fault(f"NVLink 5 of {first} is inactive", _said(server, 0, {"nvlinks": down})),
        "enforced-power": Fault(f"the chassis holds {first} at 300 W", _said(server, 0, {"power": power}),
                                _rules(f"{first}/*", f"nvidia, mig: {server.mig}, enforced: 300000")),
        "pcie-degraded": Fault(f"{first} was trained with 8 lanes", narrow),
        "refuses-lock": Fault("the driver refuses every lock of clocks",
                              lines=_rules("*_clocks", "refuse, errno: EINVAL")),
    }  # fmt: skip


def _process(pid: int, name: str, unit: str) -> dict[str, Entry]:
    """A process of a unit that has /dev/nvidia3 open."""
    place = f"/proc/{pid}"
    files = {"comm": f"{name}\n", "cgroup": f"0::/system.slice/{unit}\n", "cmdline": f"{name}\0"}
    return {
        place: Entry("dir", 0o555, names=("cgroup", "cmdline", "comm", "fd")),
        f"{place}/fd": Entry("dir", 0o500, names=("7",)),
        f"{place}/fd/7": Entry("link", 0o700, b"/dev/nvidia3"),
        **{f"{place}/{what}": Entry("file", 0o444, text.encode()) for what, text in files.items()},
    }


def _fabric(server: Server) -> dict[str, Fault]:
    """The fabric manager stands still, or is of another version."""
    paths = [f"/sys/fs/cgroup/system.slice/{FABRIC}", f"/run/systemd/units/invocation:{FABRIC}"]
    waits = {"state": "in_progress", "status": None, "health": None}
    states = _all(server, {"fabric": waits})
    return {
        "fabric-stopped": Fault("the fabric manager does not run", states if server.kind is H800 else {},
                                "remove:\n" + "\n".join(f"- {path}" for path in paths)),
        "fabric-version": Fault(f"a fabric manager of {OTHER} beside driver {DRIVER}",
                                _command(MANAGER, f"Fabric Manager version is : {OTHER}")),
    }  # fmt: skip


def _others(server: Server) -> dict[str, Fault]:
    """Somebody else sets the clocks."""
    script = "#!/bin/bash\nfunction check_app_clocks() {\n   nvidia-smi -ac 1593,1410 || die 1 clocks\n}\n"
    path = "/etc/nhc/scripts/app_clocks.nhc"
    return {"clocks-reset": Fault("a node health check sets clocks", {path: Entry("file", 0o644, script.encode()),
                                  "/etc/nhc/scripts": Entry("dir", 0o755, names=("app_clocks.nhc",)),
                                  "/etc/nhc": Entry("dir", 0o755, names=("scripts",))})}  # fmt: skip


def _forty(server: Server) -> Fault:
    """The same server with A100 of 40 GB."""
    entries: dict[str, Entry] = {}
    plain = Tree()
    for number, bus in enumerate(server.gpus):
        entries |= {**_nvml(server, number, A100_40), **_information(server, number, A100_40)}
        place = _place(server, bus)
        plain.files(place, {"device": f"0x{A100_40.device}", "subsystem_device": f"0x{A100_40.subsystem}"})
        pci_id = f"PCI_CLASS=030200\nPCI_ID=10DE:{A100_40.device.upper()}"
        plain.file(f"{place}/uevent", f"DRIVER=nvidia\n{pci_id}\nPCI_SLOT_NAME={posixpath.basename(place)}", 0o644)
    return Fault("8 x A100-SXM4-40GB (10de:20b0) in place of the 80 GB boards", {**entries, **plain})


def whole(server: Server) -> dict[str, Entry]:
    """The host with the overlays of all its faults."""
    texts = {name: manifest.render(dict(f.entries)) for name, f in broken(server).items() if f.entries}
    return {**build(server), **{f"{faults.OVERLAYS}/{n}": Entry("file", 0o644, t.encode()) for n, t in texts.items()}}


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SERVERS:
        sys.exit(f"usage: python -m tests.make_nvidia {'|'.join(SERVERS)}")
    print(manifest.render(whole(SERVERS[sys.argv[1]])), end="")
