"""detect: what a host has, by PCI address; what is no GPU and no rail; what cannot be read stays unknown.

Shapes of files: Linux Documentation/ABI (sysfs-bus-pci, sysfs-class-net, sysfs-class-infiniband). Field cases:
ROCm/rocm_smi_lib#207, ROCm/amdgpu#62, ROCm/k8s-device-plugin#157, prometheus/node_exporter#1967, mej/nhc#90,
leptonai/gpud#482, stackhpc/ansible-slurm-appliance#988, NVIDIA/NVSentinel#1221, NVIDIA/mitten#5.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import sys
import time
from collections.abc import Callable
from errno import EINVAL
from pathlib import Path
from typing import Any

import pytest

from tests import make_hosts, make_nvidia
from tests.conftest import check_schema
from tests.make_hosts import Tree, Variant
from tuner.cli import inventory as verbs
from tuner.detect import inventory
from tuner.errors import Exit
from tuner.hardware import Inventory
from tuner.host import Host, manifest, open_host
from tuner.host.manifest import Entry
from tuner.sim import store

BUSES = ("05", "27", "47", "65", "85", "a7", "c7", "e5")
GPUS = [f"0000:{bus}:00.0" for bus in BUSES]
RAILS = {  # GPU bus: NIC bus, and the upstream port of the switch that both hang on
    "05": ("06", "01"), "27": ("28", "23"), "47": ("48", "43"), "65": ("66", "61"),
    "85": ("86", "81"), "a7": ("a8", "a3"), "c7": ("c8", "c3"), "e5": ("e6", "e1"),
}  # fmt: skip
CLASSES = ("/sys/bus/pci/devices", "/sys/class/net", "/sys/class/infiniband", "/sys/devices/system/node")
ROUTE = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def root_of(tree: Tree, where: Path) -> Path:
    """The copy of a host of these entries; the folders that detect lists get complete listings."""
    if "/.tuner-host/host.yaml" not in tree:
        tree.file("/.tuner-host/host.yaml", "name: small\nkernel: 6.8.0", 0o644)
        tree.folder("/etc", [])
        for folder in CLASSES:
            below = [path.removeprefix(f"{folder}/").split("/")[0] for path in tree if path.startswith(f"{folder}/")]
            tree.folder(folder, below)
    path = where / "made.host"
    path.write_text(manifest.render(tree), encoding="utf-8")
    store.copy(path, str(where / "root"), [])
    return where / "root"


def found(tree: Tree, where: Path) -> Inventory:
    return inventory(open_host(str(root_of(tree, where))))


def gpu(tree: Tree, path: str, ids: str = "1002 74a1") -> str:
    place = tree.pci(path, f"{ids} {ids}", "120000", "amdgpu" if ids.startswith("1002") else "nvidia")
    tree.file(f"{place}/unique_id", f"{len(tree):016x}")
    return place


def nic(tree: Tree, path: str, netdev: str, rdma: str = "", *, ids: str = "15b3 1021", speed: object = 400000) -> str:
    place = tree.pci(path, f"{ids} {ids}", "020000", "mlx5_core")
    tree.files(f"{place}/net/{netdev}", {"operstate": "up", "speed": speed, "mtu": 1500})
    names = [("net", netdev), *([("infiniband", rdma)] if rdma else [])]
    for kind, name in names:
        tree.link(f"{place}/{kind}/{name}/device", place)
        tree.link(f"/sys/class/{kind}/{name}", f"{place}/{kind}/{name}")
    return place


def routes(tree: Tree, *lines: str) -> None:
    tree.file("/proc/net/route", ROUTE + "\n".join(lines))


def default(iface: str) -> str:
    return f"{iface}\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0"


@pytest.fixture(scope="module")
def mi300x(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Inventory]:
    """mi300x(fault="") -> what the host has; each is read once."""

    @functools.cache
    def read(fault: str = "") -> Inventory:
        return found(make_hosts.build(Variant(fault)), tmp_path_factory.mktemp("mi300x"))

    return read


def test_eight_mi300x_with_their_serials_and_numa_nodes(mi300x: Callable[..., Inventory]) -> None:
    gpus = mi300x().gpus
    assert [g.pci for g in gpus] == GPUS
    assert {(g.id, g.name, g.vendor, g.device, g.driver, g.vf) for g in gpus} == {
        ("1002:74a1", "MI300X", "1002", "74a1", "amdgpu", False)
    }
    assert [g.numa for g in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (gpus[0].serial, gpus[7].serial) == ("e3aa140f9a5f9e31", "dd197ad1b50577f6")
    assert gpus[1].drm == ("card9", "renderD136")
    assert (gpus[0].pcie.speed, gpus[0].pcie.width) == (32.0, 16)


def test_each_rail_is_the_nic_behind_the_same_switch(mi300x: Callable[..., Inventory]) -> None:
    rails = mi300x().rails
    assert {r.gpu[5:7]: ((r.nic or "")[5:7], (r.via or "")[5:7]) for r in rails} == RAILS
    assert {r.kind for r in rails} == {"switch"}


def test_nics_are_joined_to_netdev_and_rdma_device_by_pci_address(mi300x: Callable[..., Inventory]) -> None:
    nics = {n.pci: n for n in mi300x().nics}
    assert len(nics) == 10
    fast = nics["0000:28:00.0"]
    assert (fast.netdev, fast.rdma, fast.name, fast.numa) == ("enp40s0np0", "mlx5_3", "ConnectX-7", 0)
    assert (fast.link.state, fast.link.speed, fast.link.layer, fast.link.rate) == ("up", 400000, "Ethernet", 400.0)


def test_a_port_that_is_down_says_so_and_has_no_rate(mi300x: Callable[..., Inventory]) -> None:
    link = next(n.link for n in mi300x().nics if n.rdma == "mlx5_2")
    assert (link.state, link.port_state, link.port_physical) == ("down", "DOWN", "Disabled")
    assert (link.speed, link.rate) == (None, None)


def test_routes_that_nobody_recorded_are_unknown(mi300x: Callable[..., Inventory]) -> None:
    seen = mi300x()
    assert not seen.routes_known
    assert {n.default_route for n in seen.nics} == {None}
    assert "/proc/net/route" in dict(seen.unread)


def test_a_lost_gpu_leaves_seven_and_their_rails(mi300x: Callable[..., Inventory]) -> None:
    seen = mi300x("gpu-lost")
    assert [g.pci for g in seen.gpus] == [g for g in GPUS if g != "0000:c7:00.0"]
    assert {r.gpu[5:7]: (r.nic or "")[5:7] for r in seen.rails} == {
        bus: nic for bus, (nic, _) in RAILS.items() if bus != "c7"
    }


def test_virtual_functions_are_named_as_such(mi300x: Callable[..., Inventory]) -> None:
    gpus = mi300x("vf").gpus
    assert [(g.pci, g.name, g.vf) for g in gpus] == [(pci, "MI300X VF", True) for pci in GPUS]


def test_partitions_are_not_gpus(mi300x: Callable[..., Inventory]) -> None:
    gpus = mi300x("cpx").gpus
    assert [g.pci for g in gpus] == GPUS
    assert {g.partition for g in gpus} == {"CPX"}


def test_without_the_bmc_card_numbers_move_and_addresses_stay(mi300x: Callable[..., Inventory]) -> None:
    gpus = mi300x("ast-absent").gpus
    assert [(g.pci, g.drm[0]) for g in gpus] == [(pci, f"card{8 * n}") for n, pci in enumerate(GPUS)]


@pytest.mark.parametrize("ids", ["1a03 2000", "102b 0536", "1234 1111", "1b36 0100", "1af4 1050", "8086 56c0"])
def test_displays_of_bmcs_guests_and_other_makers_are_no_gpus(tmp_path: Path, ids: str) -> None:
    tree = Tree()
    tree.pci("pci0000:00/0000:00:02.0", f"{ids} {ids}", "030000", "drm")
    gpu(tree, "pci0000:20/0000:21:00.0")
    seen = found(tree, tmp_path)
    assert [g.pci for g in seen.gpus] == ["0000:21:00.0"]
    assert [d.address for d in seen.displays] == ["0000:00:02.0"]


@pytest.mark.parametrize(("ids", "name"), [
    ("10de 20b0", "A100 SXM4 40GB"), ("10de 20b2", "A100 SXM4 80GB"), ("10de 2324", "H800 SXM5"),
    ("10de 2330", "H100 SXM5"), ("1002 74a0", "MI300A"), ("10de ffff", "10de:ffff"),
])  # fmt: skip
def test_names_are_known_or_the_id_itself(tmp_path: Path, ids: str, name: str) -> None:
    tree = Tree()
    tree.pci("pci0000:00/0000:01:00.0", f"{ids} {ids}", "030200", "nvidia")
    assert [g.name for g in found(tree, tmp_path).gpus] == [name]


def test_the_uuid_of_an_nvidia_gpu_is_its_serial_once_it_is_known(tmp_path: Path) -> None:
    tree = Tree()
    uuid = "GPU-0a1b2c3d-1111-2222-3333-444455556666"
    for bus, text in (("01", uuid), ("02", "GPU-????????-????-????-????-????????????")):
        tree.pci(f"pci0000:00/0000:{bus}:00.0", "10de 20b2 10de 1463", "030200", "nvidia")
        tree.file(f"/proc/driver/nvidia/gpus/0000:{bus}:00.0/information", f"Model: \t\t x\nGPU UUID: \t {text}")
    assert [g.serial for g in found(tree, tmp_path).gpus] == [uuid, None]


def test_a_gpu_without_a_driver_is_a_gpu(tmp_path: Path) -> None:
    tree = Tree()
    gpu(tree, "pci0000:00/0000:01:00.0")
    for path in [p for p in tree if "/driver" in p]:
        del tree[path]
    tree["/sys/devices/pci0000:00/0000:01:00.0/driver"] = Entry("absent")
    assert [(g.pci, g.driver, g.serial) for g in found(tree, tmp_path).gpus] == [("0000:01:00.0", None, None)]


@pytest.mark.parametrize("speed", ["-1", "65535", "4294967295", "N/A (no PMA)", "", None])
def test_no_sentinel_is_a_speed(tmp_path: Path, speed: str | None) -> None:
    """None stands for EINVAL, the answer of a netdev that is down."""
    tree = Tree()
    place = nic(tree, "pci0000:00/0000:01:00.0", "eth1", speed=speed)
    nic(tree, "pci0000:00/0000:02:00.0", "eth2", speed=100000)
    if speed is None:
        tree[f"{place}/net/eth1/speed"] = Entry("errno", errno=EINVAL)
    seen = found(tree, tmp_path)
    assert [n.link.speed for n in seen.nics] == [None, 100000]
    assert ("/sys/class/net/eth1/speed" in dict(seen.unread)) == (speed is None)


def test_a_missing_link_speed_is_unknown_and_not_that_of_the_device_before(tmp_path: Path) -> None:
    tree = Tree()
    gpu(tree, "pci0000:00/0000:01:00.0")
    place = gpu(tree, "pci0000:00/0000:02:00.0")
    for name in ("current_link_speed", "current_link_width"):
        tree[f"{place}/{name}"] = Entry("absent")
    seen = found(tree, tmp_path)
    assert [(g.pcie.speed, g.pcie.width) for g in seen.gpus] == [(32.0, 16), (None, None)]
    assert dict(seen.unread)["/sys/bus/pci/devices/0000:02:00.0/current_link_speed"] == "not there"


def test_no_numa_node_is_null(tmp_path: Path) -> None:
    tree = Tree()
    place = gpu(tree, "pci0000:00/0000:01:00.0")
    tree.file(f"{place}/numa_node", -1)
    seen = found(tree, tmp_path)
    assert [g.numa for g in seen.gpus] == [None]
    assert seen.nodes == ()


def test_the_nic_with_the_default_route_is_no_rail(tmp_path: Path) -> None:
    """It is nearer than the other one, which is only on the same NUMA node."""
    tree = Tree()
    gpu(tree, "pci0000:00/0000:00:01.0/0000:01:00.0")
    nic(tree, "pci0000:00/0000:00:01.0/0000:01:00.1", "eth0", "mlx5_0")
    nic(tree, "pci0000:20/0000:21:00.0", "eth1", "mlx5_1")
    routes(tree, default("eth0"))
    seen = found(tree, tmp_path)
    assert [n.default_route for n in seen.nics] == [True, False]
    assert [(r.nic, r.kind, r.via) for r in seen.rails] == [("0000:21:00.0", "numa", "node0")]


def test_a_default_route_over_a_bond_counts_for_its_ports(tmp_path: Path) -> None:
    tree = Tree()
    gpu(tree, "pci0000:00/0000:01:00.0")
    nic(tree, "pci0000:00/0000:02:00.0", "eth0", "mlx5_0")
    nic(tree, "pci0000:00/0000:03:00.0", "eth1", "mlx5_1")
    tree.folder("/sys/devices/virtual/net/bond0", ["lower_eth0", "mtu"])
    tree.link("/sys/class/net/bond0", "/sys/devices/virtual/net/bond0")
    routes(tree, default("bond0"))
    assert [r.nic for r in found(tree, tmp_path).rails] == ["0000:03:00.0"]


def test_the_only_nic_is_a_rail_in_spite_of_the_default_route(tmp_path: Path) -> None:
    tree = Tree()
    gpu(tree, "pci0000:00/0000:01:00.0")
    nic(tree, "pci0000:00/0000:02:00.0", "eth0", "mlx5_0")
    routes(tree, default("eth0"))
    assert [r.nic for r in found(tree, tmp_path).rails] == ["0000:02:00.0"]


@pytest.mark.parametrize("line", [
    "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0",
    "eth0\t00000000\t0100000A\t0002\t0\t0\t0\t00000000\t0\t0\t0",
    "eth0\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0",
    "not a route",
])  # fmt: skip
def test_other_routes_are_no_default_route(tmp_path: Path, line: str) -> None:
    """A network, a route that is not up, one that rejects."""
    tree = Tree()
    nic(tree, "pci0000:00/0000:02:00.0", "eth0", "mlx5_0")
    routes(tree, line)
    assert [n.default_route for n in found(tree, tmp_path).nics] == [False]


def test_an_ipv6_default_route_counts(tmp_path: Path) -> None:
    tree = Tree()
    nic(tree, "pci0000:00/0000:02:00.0", "eth0")
    routes(tree)
    zero, hop = "0" * 32, "fe80000000000000000000000000 0001".replace(" ", "")
    tree.file("/proc/net/ipv6_route", f"{zero} 00 {zero} 00 {hop} 00000400 00000001 00000000 00000003     eth0")
    assert [n.default_route for n in found(tree, tmp_path).nics] == [True]


def test_an_ethernet_port_without_rdma_is_no_rail_beside_those_with(tmp_path: Path) -> None:
    tree = Tree()
    gpu(tree, "pci0000:00/0000:00:01.0/0000:01:00.0")
    nic(tree, "pci0000:00/0000:00:01.0/0000:02:00.0", "eno1", ids="8086 1563")
    nic(tree, "pci0000:80/0000:81:00.0", "ib0", "mlx5_0")
    routes(tree)
    assert [(r.nic, r.kind, r.via) for r in found(tree, tmp_path).rails] == [("0000:81:00.0", "far", None)]


def test_two_gpus_and_two_nics_on_one_switch_are_paired(tmp_path: Path) -> None:
    tree = Tree()
    port = "pci0000:00/0000:00:01.0/0000:01:00.0"
    tree.pci("pci0000:00/0000:00:01.0", "8086 347a", "060400", "pcieport")
    tree.pci(port, "1000 c010", "060400", "pcieport")
    for bus in ("02", "03"):
        gpu(tree, f"{port}/0000:{bus}:00.0", "10de 20b2")
    for bus in ("04", "05"):
        nic(tree, f"{port}/0000:{bus}:00.0", f"eth{bus}", f"mlx5_{bus}")
    seen = found(tree, tmp_path)
    assert [(r.gpu[5:7], (r.nic or "")[5:7], r.via) for r in seen.rails] == [
        ("02", "04", "0000:01:00.0"),
        ("03", "05", "0000:01:00.0"),
    ]
    assert [(b.pci, b.kind, b.upstream) for b in seen.bridges] == [
        ("0000:00:01.0", "root port", "pci0000:00"),
        ("0000:01:00.0", "switch port", "0000:00:01.0"),
    ]


def test_by_numa_node_rails_are_of_one_kind(tmp_path: Path) -> None:
    """A front-end card on the same node, at a lower address, is not mixed in."""
    tree = Tree()
    gpu(tree, "pci0000:10/0000:11:00.0")
    gpu(tree, "pci0000:18/0000:19:00.0")
    nic(tree, "pci0000:00/0000:01:00.0", "front", "mlx5_0", ids="15b3 101d")
    nic(tree, "pci0000:20/0000:21:00.0", "rail0", "mlx5_1")
    nic(tree, "pci0000:28/0000:29:00.0", "rail1", "mlx5_2")
    assert [(r.nic, r.kind) for r in found(tree, tmp_path).rails] == [
        ("0000:21:00.0", "numa"),
        ("0000:29:00.0", "numa"),
    ]


def test_a_gpu_without_any_nic_has_no_rail(tmp_path: Path) -> None:
    tree = Tree()
    gpu(tree, "pci0000:00/0000:01:00.0")
    assert [(r.nic, r.kind) for r in found(tree, tmp_path).rails] == [(None, "none")]


def test_the_netdev_of_a_virtio_card_is_found_below_its_virtio_device(tmp_path: Path) -> None:
    tree = Tree()
    place = tree.pci("pci0000:00/0000:00:03.0", "1af4 1000 1af4 0001", "020000", "virtio-pci")
    tree.files(f"{place}/virtio0/net/ens3", {"operstate": "up", "speed": "-1", "mtu": 1500})
    tree.link(f"{place}/virtio0/net/ens3/device", f"{place}/virtio0")
    tree.link("/sys/class/net/ens3", f"{place}/virtio0/net/ens3")
    assert [(n.pci, n.netdev, n.rdma) for n in found(tree, tmp_path).nics] == [("0000:00:03.0", "ens3", None)]


def test_the_port_is_the_netdev_not_a_representor_of_a_virtual_function(tmp_path: Path) -> None:
    tree = Tree()
    place = nic(tree, "pci0000:00/0000:01:00.0", "enp1s0f0np0", "mlx5_0")
    for name, port in (("enp1s0f0np0", "p0"), ("enp1npf0vf0", "pf0vf0")):
        tree.files(f"{place}/net/{name}", {"phys_port_name": port, "operstate": "up", "speed": 100000, "mtu": 1500})
        tree.link(f"{place}/net/{name}/device", place)
        tree.link(f"/sys/class/net/{name}", f"{place}/net/{name}")
    assert [n.netdev for n in found(tree, tmp_path).nics] == ["enp1s0f0np0"]


def test_a_host_whose_devices_nobody_recorded_is_unknown_not_empty(tmp_path: Path) -> None:
    tree = Tree()
    tree.file("/.tuner-host/host.yaml", "name: bare\nkernel: 6.8.0", 0o644)
    tree.file("/sys/bus/pci/drivers/x", "")
    root = root_of(tree, tmp_path)
    code, document, _ = call(root)
    assert code == Exit.UNKNOWN
    assert document["gpus"] == []
    assert {row["path"] for row in document["unread"]} >= {"/sys/bus/pci/devices"}


def call(root: Path | None) -> tuple[Exit, dict[str, Any], list[str]]:
    """The verb; its document is checked against the schema."""
    answer = verbs.detect(argparse.Namespace(root=None if root is None else str(root), json=False))
    check_schema(answer[1])
    return answer


@pytest.mark.parametrize("name", ["plain-vm", None])
def test_the_document_keeps_its_schema(copy_host: Callable[..., Path], name: str | None) -> None:
    code, document, _ = call(copy_host(name) if name else None)
    assert code == Exit.OK
    assert document["host"]["kind"] == ("recorded" if name else "live")


def test_profiles_say_which_fits_and_why_not(copy_host: Callable[..., Path]) -> None:
    root = copy_host("mi300x-cx7")
    (root / "etc/tuner/profiles").mkdir(parents=True)
    for name, device in (("eight-mi300x", "1002:74a1"), ("eight-a100", "10de:20b2")):
        text = f'name: {name}\nsummary: x\nmatch: {{gpus: {{ids: ["{device}"], count: 8}}}}\nsettings: {{}}\n'
        (root / f"etc/tuner/profiles/{name}.yaml").write_text(text)
    _, document, lines = call(root)
    fits = {row["name"]: row for row in document["profiles"]}
    assert fits["eight-mi300x"] == {"name": "eight-mi300x", "fits": True, "why": []}
    assert fits["linux-gpu"]["fits"] is True
    assert fits["eight-a100"]["fits"] is False
    (why,) = fits["eight-a100"]["why"]
    assert "10de:20b2" in why
    assert "1002:74a1" in why
    assert any("eight-a100" in line and "does not fit" in line for line in lines)


def test_an_image_has_no_hardware(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    code, document, lines = call(tmp_path)
    assert code == Exit.OK
    assert (document["gpus"], document["nics"], document["numa"]) == ([], [], [])
    assert lines[0].startswith("IMAGE ")


def test_the_table_and_the_tree(copy_host: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    _, _, lines = call(copy_host("mi300x-cx7"))
    assert lines[1] == "8 x MI300X, 8 x ConnectX-7, 2 x ConnectX-6 Dx"
    start = lines.index("  pci0000:20")
    assert lines[start : start + 5] == [
        "  pci0000:20",
        "  ├─ 0000:20:03.1 > 0000:23:00.0",
        "  │  ├─ 0000:24:00.0 > 0000:25:00.0 > 0000:26:00.0 > 0000:27:00.0 GPU 1 MI300X (NUMA 0)",
        "  │  └─ 0000:24:01.0 > 0000:28:00.0 NIC ConnectX-7 enp40s0np0 mlx5_3 up 400 Gb/s (NUMA 0)",
        "  └─ 0000:20:05.2 > 0000:29:00.0 > 0000:2a:00.0 ASPEED BMC display (no GPU)",
    ]
    assert any(line.split()[:3] == ["3", "0000:65:00.0", "MI300X"] for line in lines)


def test_a_terminal_without_unicode_gets_a_plain_tree(
    copy_host: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    _, _, lines = call(copy_host("mi300x-cx7"))
    assert all(line.isascii() for line in lines)
    assert "  |- 0000:20:03.1 > 0000:23:00.0" in lines


# --- what the tools say ---------------------------------------------------------------------------------------------

OUTPUTS = Path(__file__).parent / "probes" / "outputs"
LIST = "nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader"
MATRIX = "nvidia-smi topo -m"
ORDER = "0, 00000000:9B:00.0\n1, 00000000:1B:00.0\n"
"""The tool counts from the other end than PCI does."""
HEAD = "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
ROWS = "GPU0\t X \tNV18\tPIX\tSYS\t48-95\t1\t\tN/A\nGPU1\tNV18\t X \tSYS\tPIX\t0-47\t0\t\tN/A\n"
LEGEND = "NIC0\tPIX\tSYS\t X \tSYS\nNIC1\tSYS\tPIX\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
BUS = "rocm-smi --showbus"
TOPO = "rocm-smi --showtopo"


def nvidia(where: Path, said: dict[str, str]) -> Path:
    """Two H100, each behind one root port with a ConnectX-7, and what the tools said; mlx5_0 is on the other socket."""
    tree = Tree()
    for bus, number in (("1", 1), ("9", 0)):
        port = f"pci0000:{bus}0/0000:{bus}0:01.0"
        tree.pci(port, "8086 352a", "060400", "pcieport")
        gpu(tree, f"{port}/0000:{bus}b:00.0", "10de 2330")
        nic(tree, f"{port}/0000:{bus}c:00.0", f"rail{number}", f"mlx5_{number}")
    routes(tree)
    for words, text in said.items():
        tree[f"/.tuner-host/cmd/{words}"] = Entry("file", 0o644, answer(text).encode())
    return root_of(tree, where)


def tell(root: Path, said: dict[str, str]) -> None:
    """What commands of a copied host answer."""
    (root / ".tuner-host/cmd").mkdir()
    for words, text in said.items():
        (root / ".tuner-host/cmd" / words).write_text(answer(text), encoding="utf-8")


def answer(text: str) -> str:
    """As it is recorded; `9|text` is exit code 9."""
    code, out = text.split("|", 1) if text[:2].strip("0123456789") == "|" else ("0", text)
    return f"exit {code}\n{out}"


def ties(rows: list[dict[str, str]]) -> list[str]:
    return sorted(" ".join(part[5:7] if part.startswith("0000:") else part for part in row.values()) for row in rows)


def test_a_matrix_that_agrees_is_joined_by_address(tmp_path: Path) -> None:
    code, document, lines = call(nvidia(tmp_path, {LIST: ORDER, MATRIX: HEAD + ROWS + LEGEND}))
    (told,) = document["topology"]
    assert (told["tool"], told["why"]) == (MATRIX, None)
    assert ties(told["links"]) == ["1b 1c PIX", "1b 9c SYS", "9b 1b NV18", "9b 1c SYS", "9b 9c PIX"]
    assert ties(told["nearest"]) == ["1b 1c PIX", "9b 9c PIX"]
    assert {(r["gpu"][5:7], (r["nic"] or "")[5:7]) for r in document["rails"]} == {("1b", "1c"), ("9b", "9c")}
    assert document["disagreements"] == []
    assert code == Exit.OK
    assert lines[lines.index("Topology") + 2].split() == [*MATRIX.split(), "1", "x", "NV18", "2", "x", "PIX"]


@pytest.mark.parametrize(("change", "wanted"), [
    ((LIST, "0, 00000000:1B:00.0\n1, 00000000:9B:00.0\n"), [
        "nvidia-smi: 0000:1b:00.0 is on NUMA node 1, by PCI on 0",
        "nvidia-smi: 0000:9b:00.0 is on NUMA node 0, by PCI on 1",
        "nvidia-smi: nearest to 0000:1b:00.0 is 0000:9c:00.0 (PIX), by PCI 0000:1c:00.0 (switch)",
        "nvidia-smi: nearest to 0000:9b:00.0 is 0000:1c:00.0 (PIX), by PCI 0000:9c:00.0 (switch)",
    ]),
    ((MATRIX, (HEAD + ROWS + LEGEND).replace("mlx5_1", "mlx5_x").replace("mlx5_0", "mlx5_1").replace("_x", "_0")), [
        "nvidia-smi: nearest to 0000:1b:00.0 is 0000:9c:00.0 (PIX), by PCI 0000:1c:00.0 (switch)",
        "nvidia-smi: nearest to 0000:9b:00.0 is 0000:1c:00.0 (PIX), by PCI 0000:9c:00.0 (switch)",
    ]),
    ((MATRIX, (HEAD + ROWS + LEGEND).replace("48-95\t1", "48-95\t0")), [
        "nvidia-smi: 0000:9b:00.0 is on NUMA node 0, by PCI on 1",
    ]),
    ((MATRIX, (HEAD + ROWS + LEGEND).replace("NV18", "SYS")), [
        "nvidia-smi: shows no NVLink between any of 2 x H100 SXM5",
    ]),
    ((LIST, "0, 00000000:9B:00.0\n"), ["nvidia-smi: does not show 0000:1b:00.0, which PCI has"]),
    ((LIST, ORDER + "2, 00000000:BB:00.0\n"), ["nvidia-smi: shows 0000:bb:00.0, which PCI has not"]),
])  # fmt: skip
def test_each_disagreement_is_a_line_and_no_failure(tmp_path: Path, change: tuple[str, str], wanted: list[str]) -> None:
    said = {LIST: ORDER, MATRIX: HEAD + ROWS + LEGEND, change[0]: change[1]}
    code, document, lines = call(nvidia(tmp_path, said))
    assert document["disagreements"] == wanted
    assert code == Exit.OK
    assert [line for line in lines if line.startswith("Not as PCI has it: ")] == [
        f"Not as PCI has it: {line}" for line in wanted
    ]


@pytest.mark.parametrize("affinity", ["", "N/A"])
def test_a_node_that_the_tool_does_not_know_is_no_disagreement(tmp_path: Path, affinity: str) -> None:
    said = {LIST: ORDER, MATRIX: (HEAD + ROWS + LEGEND).replace("48-95\t1", f"48-95\t{affinity}")}
    assert call(nvidia(tmp_path, said))[1]["disagreements"] == []


@pytest.mark.parametrize(("said", "why"), [
    ({}, "not recorded"),
    ({LIST: ORDER}, "not recorded"),
    ({LIST: "9|NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"}, "driver"),
    ({LIST: ORDER, MATRIX: "The -i command line argument must be used in conjunction with -n or -p.\n"}, "usage error"),
    ({LIST: ORDER, MATRIX: ""}, "no output"),
    ({LIST: ORDER, MATRIX: "\x00\x1b[4mbla\n{[\n"}, "no matrix"),
    ({LIST: "bla\n", MATRIX: HEAD + ROWS + LEGEND}, "no GPU"),
])  # fmt: skip
def test_a_tool_without_an_answer_is_one_line(tmp_path: Path, said: dict[str, str], why: str) -> None:
    code, document, lines = call(nvidia(tmp_path, said))
    (told,) = document["topology"]
    assert (told["links"], told["nearest"], document["disagreements"]) == ([], [], [])
    assert why in told["why"]
    assert "\n" not in told["why"]
    assert sum(told["why"] in line for line in lines) == 1
    assert code == Exit.OK
    assert len(document["rails"]) == 2


@pytest.mark.parametrize(("text", "links", "nearest"), [
    (HEAD + ROWS, ["9b 1b NV18"], []),
    (HEAD + ROWS[:-20] + "\n", ["9b 1b NV18"], []),
    (HEAD + ROWS.partition("\n")[0] + "\nGPU1\tNV1", ["9b 1b NV18"], []),
    (HEAD + ROWS.partition("\n")[0] + "\n" + LEGEND, ["9b 1b NV18", "9b 1c SYS", "9b 9c PIX"], ["9b 9c PIX"]),
    ((HEAD + ROWS + LEGEND).partition("  NIC1")[0], ["1b 9c SYS", "9b 1b NV18", "9b 9c PIX"], ["9b 9c PIX"]),
])  # fmt: skip
def test_a_matrix_that_is_cut_is_used_as_far_as_it_goes(
    tmp_path: Path, text: str, links: list[str], nearest: list[str]
) -> None:
    """No NIC without its name; and what is nearest among some of them is not what is nearest."""
    _, document, _ = call(nvidia(tmp_path, {LIST: ORDER, MATRIX: text}))
    (told,) = document["topology"]
    assert "not whole" in told["why"]
    assert ties(told["links"]) == links
    assert ties(told["nearest"]) == nearest


def test_gpus_of_amd_are_joined_by_address_too(copy_host: Callable[..., Path]) -> None:
    root = copy_host("mi300x-cx7")
    buses = "".join(f"GPU[{number}]\t\t: PCI Bus: {place.upper()}\n" for number, place in enumerate(GPUS))
    tell(root, {BUS: buses, TOPO: (OUTPUTS / "rocm_smi_01_showtopo_mi300_warning_first.txt").read_text()})
    code, document, lines = call(root)
    (told,) = document["topology"]
    assert (told["tool"], told["why"], told["nearest"]) == (TOPO, None, [])
    assert {row["link"] for row in told["links"]} == {"XGMI"}
    assert {frozenset((row["a"], row["b"])) for row in told["links"]} == {
        frozenset((a, b)) for a in GPUS for b in GPUS if a != b
    }
    assert len(told["links"]) == 28
    assert document["disagreements"] == []
    assert code == Exit.OK
    assert any(line.split()[:5] == [*TOPO.split(), "28", "x", "XGMI"] for line in lines)


def test_the_index_of_rocm_smi_is_not_that_of_pci(copy_host: Callable[..., Path]) -> None:
    """Its GPU 0 is the last one here: its NUMA nodes belong to the other socket (ROCm/amdgpu#62)."""
    root = copy_host("mi300x-cx7")
    buses = "".join(f"GPU[{number}]\t\t: PCI Bus: {place}\n" for number, place in enumerate(reversed(GPUS)))
    tell(root, {BUS: buses, TOPO: (OUTPUTS / "rocm_smi_01_showtopo_mi300_warning_first.txt").read_text()})
    _, document, _ = call(root)
    assert document["disagreements"] == [
        f"rocm-smi: {place} is on NUMA node {int(at < 4)}, by PCI on {int(at >= 4)}" for at, place in enumerate(GPUS)
    ]


def test_partitions_are_the_gpu_that_they_are_of(copy_host: Callable[..., Path]) -> None:
    root = copy_host("mi300x-cx7", "cpx")
    every = [f"{place[:-1]}{part}" for place in GPUS for part in range(8)]
    tell(root, {BUS: "".join(f"GPU[{number}]\t\t: PCI Bus: {place}\n" for number, place in enumerate(every))})
    assert call(root)[1]["disagreements"] == []


def test_a_lost_gpu_is_missing_from_pci_alone(copy_host: Callable[..., Path]) -> None:
    root = copy_host("mi300x-cx7", "gpu-lost")
    tell(root, {BUS: "".join(f"GPU[{number}]\t\t: PCI Bus: {place}\n" for number, place in enumerate(GPUS))})
    _, document, _ = call(root)
    assert document["disagreements"] == ["rocm-smi: shows 0000:c7:00.0, which PCI has not"]


# --- a GPU that is not there for all


def all_ones(root: Path, address: str) -> Path:
    """The file of a function's configuration space, which now reads as that of one that no longer answers."""
    config = (root / f"sys/bus/pci/devices/{address}").resolve() / "config"
    config.write_bytes(b"\xff" * 64)
    return config


@pytest.mark.parametrize(("name", "fault", "gpu", "headline", "profile"), [
    ("h800-cx7", "gpu-lost", "0000:61:00.0", "8 x H800 SXM5, 1 off the bus, 8 x ConnectX-7", "h800"),
    ("a100-cx7", "gpu-lost", "0000:4e:00.0", "8 x A100 SXM4 80GB, 1 off the bus, 8 x ConnectX-7", "a100"),
    ("mi300x-cx7", "", "0000:65:00.0", "8 x MI300X, 1 off the bus, 8 x ConnectX-7, 2 x ConnectX-6 Dx", "mi300x"),
])  # fmt: skip
def test_a_gpu_off_the_bus_is_marked_wherever_it_is_shown(
    copy_host: Callable[..., Path], name: str, fault: str, gpu: str, headline: str, profile: str
) -> None:
    """The kernel and the driver go on answering from memory; no fault of mi300x-cx7 keeps the device in its place."""
    root = copy_host(name, *filter(None, [fault]))
    if not fault:
        all_ones(root, gpu)
    _, document, lines = call(root)
    assert lines[1] == headline
    assert {row["pci"]: row["off_the_bus"] for row in document["gpus"] if row["off_the_bus"]} == {gpu: True}
    (row,) = (row for row in document["gpus"] if row["pci"] == gpu)
    assert row["pcie"] == {"speed": None, "width": None}
    shown = [line for line in lines if gpu in line and "off the bus" in line]
    assert [line.split()[0] for line in shown][:1] == ["3"]
    assert len(shown) == 3  # the table, the tree, the profile
    fits = {row["name"]: row for row in document["profiles"]}
    assert fits[profile] == {"name": profile, "fits": True, "why": [f"{gpu} is off the bus"]}
    assert fits["linux-gpu"]["why"] == []


def test_four_bytes_decide_and_whoever_may_not_look_accuses_nobody(copy_host: Callable[..., Path]) -> None:
    """A register of its own may read all ones; a file that fails is noted."""
    root = copy_host("mi300x-cx7")
    all_ones(root, GPUS[0]).write_bytes(bytes.fromhex("0210a174") + b"\xff" * 60)
    all_ones(root, GPUS[1]).write_bytes(b"")
    broken = all_ones(root, GPUS[2])
    broken.unlink()
    broken.mkdir()
    _, document, lines = call(root)
    assert not any(row["off_the_bus"] for row in document["gpus"])
    assert lines[1].startswith("8 x MI300X, 8 x")
    assert [row["path"] for row in document["unread"] if row["path"].endswith("/config")] == [
        f"/sys/bus/pci/devices/{GPUS[2]}/config"
    ]


def gone(root: Path, server: make_nvidia.Server, listed: int, drawn: int) -> None:
    """nvidia-smi lists that many GPUs, and its matrix has another number; number 3 is the one that may be missing."""
    there = {7: [0, 1, 2, 4, 5, 6, 7], 8: range(8)}
    told = make_nvidia._commands(server, there[listed])
    told |= make_nvidia._command(make_nvidia.TOPO, make_nvidia._matrix(server, there[drawn]))
    for path, entry in told.items():
        (root / path.lstrip("/")).write_bytes(entry.data)


@pytest.mark.parametrize("name", ["a100-cx7", "h800-cx7"])
@pytest.mark.parametrize(("pci", "listed", "drawn"), [(7, 7, 8), (8, 7, 8), (8, 8, 7), (7, 8, 8), (8, 7, 7), (7, 8, 7)])
def test_a_matrix_of_another_number_of_gpus_is_joined_to_nothing(
    copy_host: Callable[..., Path], name: str, pci: int, listed: int, drawn: int
) -> None:
    """Of eight, the fourth is missing somewhere: by index its neighbours would be on the wrong node and NIC."""
    server = make_nvidia.SERVERS[name]
    root = copy_host(name, *(["gpu-gone"] if pci == 7 else []))
    gone(root, server, listed, drawn)
    _, document, lines = call(root)
    counts = f"the matrix {drawn}, the tool's own list {listed}, PCI {pci}"
    why = f"not as many GPUs everywhere ({counts}): nothing is compared"
    assert document["topology"] == [{"tool": MATRIX, "links": [], "nearest": [], "why": why}]
    assert sum(why in line for line in lines) == 1
    words = {(8, 7): "does not show {}, which PCI has", (7, 8): "shows {}, which PCI has not"}
    by_address = words.get((pci, listed), "").format(server.address(3))
    assert document["disagreements"] == ([f"nvidia-smi: {by_address}"] if by_address else [])


@pytest.mark.parametrize("name", ["a100-cx7", "h800-cx7"])
def test_seven_of_eight_that_all_agree_on_are_compared(copy_host: Callable[..., Path], name: str) -> None:
    _, document, _ = call(copy_host(name, "gpu-gone"))
    (told,) = document["topology"]
    assert (len(document["gpus"]), told["why"], document["disagreements"]) == (7, None, [])
    near = {(row["gpu"], row["nic"]) for row in told["nearest"]}
    assert {(row["gpu"], row["nic"]) for row in document["rails"]} <= near
    assert sum(row["link"].startswith("NV") for row in told["links"]) == 21


def test_a_matrix_of_rocm_smi_is_joined_to_no_other_number_of_gpus(copy_host: Callable[..., Path]) -> None:
    root = copy_host("mi300x-cx7", "gpu-lost")
    left = [place for place in GPUS if place != "0000:c7:00.0"]
    buses = "".join(f"GPU[{number}]\t\t: PCI Bus: {place}\n" for number, place in enumerate(left))
    tell(root, {BUS: buses, TOPO: (OUTPUTS / "rocm_smi_01_showtopo_mi300_warning_first.txt").read_text()})
    _, document, _ = call(root)
    (told,) = document["topology"]
    assert (told["links"], document["disagreements"]) == ([], [])
    assert told["why"] == "not as many GPUs everywhere (the matrix 8, the tool's own list 7): nothing is compared"


# --- amd-smi


AMD = "amd-smi topology --json"
"""Of ROCm 6.2 and later, whose links are in a list: ROCm/amdsmi CHANGELOG.md, 6.1.1."""


def amd(places: list[str], kind: str = "XGMI") -> str:
    """What amd-smi says of these GPUs; weight and hops as its tables have them for eight MI300X (fixture 08)."""

    def link(one: int, other: int, place: str) -> dict[str, object]:
        how = {"link_type": kind, "weight": 15, "num_hops": 1, "bandwidth": "50000-100000"}
        own = {"link_type": "SELF", "weight": 0, "num_hops": 0, "bandwidth": "N/A"}
        return {"gpu": other, "bdf": place, "link_status": "ENABLED", **(own if one == other else how)}

    rows = [
        {"gpu": n, "bdf": place, "links": [link(n, other, end) for other, end in enumerate(places)]}
        for n, place in enumerate(places)
    ]
    return json.dumps(rows)


def buses(places: list[str]) -> str:
    return "".join(f"GPU[{number}]\t\t: PCI Bus: {place}\n" for number, place in enumerate(places))


@pytest.mark.parametrize("places", [GPUS, GPUS[::-1]])
def test_amd_smi_is_asked_first_and_has_the_addresses_itself(copy_host: Callable[..., Path], places: list[str]) -> None:
    """ROCm builds no rocm-smi since 7.15 (ROCm/rocm-systems projects/rocm-smi-lib/README.md). Order means nothing."""
    root = copy_host("mi300x-cx7")
    tell(root, {AMD: amd(places), BUS: buses(GPUS[1:]), TOPO: "no answer of it counts"})
    code, document, lines = call(root)
    (told,) = document["topology"]
    assert (told["tool"], told["why"], told["nearest"], document["disagreements"]) == (AMD, None, [], [])
    assert {frozenset((row["a"], row["b"])) for row in told["links"]} == {
        frozenset((a, b)) for a in GPUS for b in GPUS if a != b
    }
    assert (len(told["links"]), {row["link"] for row in told["links"]}, code) == (28, {"XGMI"}, Exit.OK)
    assert any(line.split()[:6] == [*AMD.split(), "28", "x", "XGMI"] for line in lines)


@pytest.mark.parametrize(("places", "kind", "wanted"), [
    (GPUS[:-1], "XGMI", ["does not show 0000:e5:00.0, which PCI has"]),
    ([*GPUS, "0000:f5:00.0"], "XGMI", ["shows 0000:f5:00.0, which PCI has not"]),
    (GPUS, "PCIE", ["shows no xGMI between any of 8 x MI300X"]),
])  # fmt: skip
def test_amd_smi_is_compared_in_the_words_of_the_others(
    copy_host: Callable[..., Path], places: list[str], kind: str, wanted: list[str]
) -> None:
    root = copy_host("mi300x-cx7")
    tell(root, {AMD: amd(places, kind)})
    assert call(root)[1]["disagreements"] == [f"amd-smi: {line}" for line in wanted]


def test_partitions_by_amd_smi_are_the_gpu_that_they_are_of(copy_host: Callable[..., Path]) -> None:
    root = copy_host("mi300x-cx7", "cpx")
    tell(root, {AMD: amd([f"{place[:-1]}{part}" for place in GPUS for part in range(8)])})
    _, document, _ = call(root)
    assert (document["disagreements"], len(document["topology"][0]["links"])) == ([], 28)


def two_radeons(where: Path, said: dict[str, str]) -> Path:
    """The host of the outputs in ROCm/amdsmi's CHANGELOG."""
    tree = Tree()
    for path in ("pci0000:00/0000:08:00.0", "pci0000:40/0000:44:00.0"):
        gpu(tree, path, "1002 744c")
    routes(tree)
    for words, text in said.items():
        tree[f"/.tuner-host/cmd/{words}"] = Entry("file", 0o644, answer(text).encode())
    return root_of(tree, where)


def test_a_real_answer_of_amd_smi(tmp_path: Path) -> None:
    said = {AMD: (OUTPUTS / "amd_smi_07_topology_json_new_ok.json").read_text()}
    (told,) = call(two_radeons(tmp_path, said))[1]["topology"]
    assert (told["tool"], told["why"]) == (AMD, None)
    assert told["links"] == [{"a": "0000:08:00.0", "b": "0000:44:00.0", "link": "PCIE"}]


PLACES = ["0000:08:00.0", "0000:44:00.0"]


@pytest.mark.parametrize(("said", "tool", "why"), [
    ({AMD: (OUTPUTS / "amd_smi_05_topology_json_old.json").read_text(), BUS: buses(PLACES)}, TOPO,
     f"{TOPO}: not recorded"),
    ({BUS: buses(PLACES)}, TOPO, f"{TOPO}: not recorded"),
    ({}, TOPO, f"{AMD}: not recorded; {BUS}: not recorded"),
    ({AMD: (OUTPUTS / "amd_smi_05_topology_json_old.json").read_text()}, TOPO,
     f"{AMD}: no PCI address in the output; {BUS}: not recorded"),
    ({AMD: "9|ERROR: amdgpu driver not loaded\n", BUS: buses(PLACES)}, AMD, "driver"),
    ({AMD: "", BUS: buses(PLACES)}, AMD, "no output"),
    ({AMD: "2|amd-smi: error: unrecognized arguments: --json\n", BUS: buses(PLACES)}, AMD, "usage error"),
])  # fmt: skip
def test_rocm_smi_is_asked_where_amd_smi_is_not_there_or_names_no_address(
    tmp_path: Path, said: dict[str, str], tool: str, why: str
) -> None:
    """One that is there and fails is said: the other would only hide it."""
    code, document, _ = call(two_radeons(tmp_path, said))
    (told,) = document["topology"]
    assert told["tool"] == tool
    assert why in told["why"]
    assert (told["links"], document["disagreements"], code) == ([], [], Exit.OK)


@pytest.mark.parametrize("there", ["amd-smi", "rocm-smi", ""])
def test_the_programs_of_amd_that_a_node_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    root, tools = two_radeons(tmp_path, {}), tmp_path / "bin"
    tools.mkdir()
    new = OUTPUTS / "amd_smi_07_topology_json_new_ok.json"
    text = f"exec /bin/cat '{new}'" if there == "amd-smi" else f"printf '{buses(PLACES)}'"
    if there:
        (tools / there).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tools / there).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    (told,) = inventory(Host(str(root), "live", "small", "6.8.0")).topologies
    absent = "cannot be started: No such file or directory"
    said = {"amd-smi": None, "": f"amd-smi {absent}; rocm-smi {absent}", "rocm-smi": f"{TOPO}: no matrix in the output"}
    assert told.tool == (AMD if there == "amd-smi" else TOPO)
    assert (told.why or "").startswith(said[there] or "")
    assert (told.why is None) == (there == "amd-smi")


# --- tools that run


def live(root: Path, tools: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    """The tree as a live host, with a program nvidia-smi of these shell lines."""
    tools.mkdir()
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return inventory(Host(str(root), "live", "small", "6.8.0"))


def test_a_live_tool_is_run_where_its_driver_has_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"case $1 in topo) printf '{HEAD}{ROWS}{LEGEND}'; exit 3;; *) printf '{ORDER}';; esac"
    seen = live(nvidia(tmp_path, {}), tmp_path / "bin", script, monkeypatch)
    assert [(t.tool, len(t.nearest), t.why) for t in seen.topologies] == [(MATRIX, 2, None)]


@pytest.mark.parametrize("ids", ["1002 74a1", "10de 2330"])
def test_no_tool_is_run_without_such_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str) -> None:
    """A GPU of another maker; one that vfio-pci has, for a guest."""
    tree = Tree()
    place = "pci0000:00/0000:01:00.0"
    tree.pci(place, f"{ids} {ids}", "030200", "vfio-pci" if ids.startswith("10de") else "amdgpu-other")
    routes(tree)
    seen = live(root_of(tree, tmp_path), tmp_path / "bin", f"touch {tmp_path}/ran", monkeypatch)
    assert len(seen.gpus) == 1
    assert seen.topologies == ()
    assert not (tmp_path / "ran").exists()


def test_a_tool_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = nvidia(tmp_path, {})
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    (told,) = inventory(Host(str(root), "live", "small", "6.8.0")).topologies
    assert told.why == "nvidia-smi cannot be started: No such file or directory"


def test_a_tool_that_hangs_costs_its_time_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """leptonai/gpud#117: killed after 10 s, and not asked a second thing; the rest comes out."""
    start = time.monotonic()
    seen = live(nvidia(tmp_path, {}), tmp_path / "bin", "trap '' TERM; sleep 60", monkeypatch)
    assert time.monotonic() - start < 18
    (told,) = seen.topologies
    assert told.why == "nvidia-smi did not end within 10 s and was killed"
    assert (len(seen.gpus), len(seen.rails)) == (2, 2)
