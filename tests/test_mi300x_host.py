"""mi300x-cx7 is what its generator gives, and answers as public sources say that an MI300X server does.

Values: Linux drivers/gpu/drm/amd (pm/amdgpu_pm.c, pm/swsmu/smu13/smu_v13_0_6_ppt.c, include/kgd_pp_interface.h),
ROCm/k8s-device-plugin testdata/topo-mi300-cpx and issue 157, ROCm/amdsmi unit tests, the AMD Instinct MI300X system
optimization guide, Linux Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import errno
import posixpath
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import make_hosts
from tests.conftest import HOSTS, Result, tree
from tests.make_hosts import Variant
from tuner.host import Host, Unrecorded, manifest, open_host
from tuner.host.manifest import Entry
from tuner.idle import busy
from tuner.sim import faults, store

DEVICES = "/sys/bus/pci/devices"
NODES = "/sys/class/kfd/kfd/topology/nodes"
BUSES = ("05", "27", "47", "65", "85", "a7", "c7", "e5")
GPUS = [f"0000:{bus}:00.0" for bus in BUSES]
LEVEL = "power_dpm_force_performance_level"


@pytest.fixture(scope="module")
def host(masters: Callable[..., Path]) -> Host:
    """The host, only read."""
    return open_host(str(masters("mi300x-cx7")))


def real(host: Host, path: str) -> str:
    return host.tree.real(path)


def addresses(host: Host, device: str) -> list[str]:
    """PCI addresses with this vendor and device."""
    return [a for a in host.list(DEVICES) if ids(host, a) == device]


def ids(host: Host, address: str) -> str:
    return " ".join(host.text(f"{DEVICES}/{address}/{name}").strip() for name in ("vendor", "device"))


def properties(host: Host, node: int) -> dict[str, int]:
    lines = host.text(f"{NODES}/{node}/properties").splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def missing(host: Host, path: str) -> bool:
    """Whether the host says that the file is not there; Unrecorded would fail the test."""
    return not host.exists(path)


def test_the_manifest_is_what_the_generator_gives() -> None:
    text = (HOSTS / "mi300x-cx7.host").read_text(encoding="utf-8")
    assert text == manifest.render(make_hosts.whole())


def test_it_is_marked_synthetic_and_stays_readable() -> None:
    text = (HOSTS / "mi300x-cx7.host").read_text(encoding="utf-8")
    assert "|synthetic: true" in text.split("file 0644 /.tuner-host/kernel.yaml")[0]
    assert text.count("\n") < 26000
    assert len(text) < 1_500_000


def test_eight_mi300x_at_the_addresses_of_the_public_dump(host: Host) -> None:
    assert addresses(host, "0x1002 0x74a1") == GPUS
    assert {host.link(f"{DEVICES}/{a}/driver").rpartition("/")[2] for a in GPUS} == {"amdgpu"}


@pytest.mark.parametrize(("address", "node"), [(a, "0" if a < "0000:80" else "1") for a in GPUS])
def test_each_gpu_tells_its_size_link_and_numa_node(host: Host, address: str, node: str) -> None:
    device = f"{DEVICES}/{address}"
    assert host.text(f"{device}/mem_info_vram_total") == "206141652992\n"
    assert host.text(f"{device}/current_link_speed") == "32.0 GT/s PCIe\n"
    assert host.text(f"{device}/current_link_width") == "16\n"
    assert host.text(f"{device}/numa_node") == f"{node}\n"
    assert host.text(f"{device}/subsystem_device") == "0x74a1\n"


def test_cards_step_by_eight_after_the_card_of_the_bmc(host: Host) -> None:
    names = [host.list(f"{DEVICES}/{address}/drm") for address in GPUS]
    assert names == [[f"card{1 + 8 * n}", f"renderD{128 + 8 * n}"] for n in range(8)]
    assert ids(host, "0000:2a:00.0") == "0x1a03 0x2000"
    assert host.text("/sys/class/drm/card0/device/vendor") == "0x1a03\n"


@pytest.mark.parametrize(("card", "part"), [("card2", 0), ("card53", 45), ("card192", 55), ("renderD191", 55)])
def test_reserved_minors_are_platform_devices_without_any_power_file(host: Host, card: str, part: int) -> None:
    device = f"/sys/class/drm/{card}/device"
    assert real(host, device) == f"/sys/devices/platform/amdgpu_xcp.{part}"
    assert all(missing(host, f"{device}/{name}") for name in ("vendor", LEVEL, "hwmon"))


def test_exactly_the_gpus_pass_the_filter_that_tools_use(host: Host) -> None:
    cards = [n for n in host.list("/sys/class/drm") if n.removeprefix("card").isdigit()]
    assert len(cards) == 1 + 8 * 8
    found = [n for n in cards if host.exists(f"/sys/class/drm/{n}/device/{LEVEL}")]
    assert sorted(found, key=lambda n: int(n[4:])) == [f"card{n}" for n in (1, 9, 17, 25, 33, 41, 49, 57)]


@pytest.mark.parametrize("address", GPUS)
def test_power_files_read_as_the_driver_writes_them(host: Host, address: str) -> None:
    device = f"{DEVICES}/{address}"
    assert host.text(f"{device}/{LEVEL}") == "auto\n"
    assert (
        host.text(f"{device}/pp_od_clk_voltage") == "OD_SCLK:\n0: 500Mhz\n1: 2100Mhz\nOD_MCLK:\n0: 900Mhz\n1: 1300Mhz\n"
    )
    assert host.text(f"{device}/current_compute_partition") == "SPX\n"
    assert host.text(f"{device}/available_compute_partition") == "SPX, DPX, QPX, CPX\n"
    assert host.text(f"{device}/current_memory_partition") == "NPS1\n"
    assert host.text(f"{device}/pm_policy/soc_pstate").startswith("0 : soc_pstate_default*\n")
    assert host.text(f"{device}/pm_policy/xgmi_plpd").splitlines()[1] == "1 : plpd_default*"
    assert host.stat(f"{device}/{LEVEL}").st_mode & 0o777 == 0o644


def test_every_form_of_pp_dpm_sclk_occurs(host: Host) -> None:
    forms = {host.text(f"{DEVICES}/{address}/pp_dpm_sclk") for address in GPUS}
    assert forms == {
        "S: 132Mhz *\n0: 500Mhz\n1: 2100Mhz\n",
        "0: 500Mhz\n1: 1427Mhz *\n2: 2100Mhz\n",
        "0: 500Mhz *\n1: 2100Mhz \n",
    }


@pytest.mark.parametrize("name", ["pp_dpm_pcie", "pp_dpm_dcefclk", "pp_power_profile_mode"])
def test_files_that_an_mi300x_does_not_have_are_not_there(host: Host, name: str) -> None:
    assert all(missing(host, f"{DEVICES}/{address}/{name}") for address in GPUS)


def test_what_no_source_tells_is_unrecorded_not_absent(host: Host) -> None:
    with pytest.raises(Unrecorded):
        host.text(f"{DEVICES}/{GPUS[0]}/pcie_bw")


@pytest.mark.parametrize("address", GPUS)
def test_hwmon_has_junction_and_memory_and_a_cap_of_750_w(host: Host, address: str) -> None:
    (number,) = host.list(f"{DEVICES}/{address}/hwmon")
    folder = f"{DEVICES}/{address}/hwmon/{number}"
    labels = [host.text(f"{folder}/{name}_label") for name in ("temp2", "temp3", "power1", "freq1", "freq2")]
    assert labels == ["junction\n", "mem\n", "PPT\n", "sclk\n", "mclk\n"]
    assert host.text(f"{folder}/power1_cap") == host.text(f"{folder}/power1_cap_max") == "750000000\n"
    assert all(missing(host, f"{folder}/{name}") for name in ("temp1_input", "in0_input", "fan1_input", "pwm1"))


def test_identity_is_one_number_in_hex_and_in_the_topology(host: Host) -> None:
    assert host.text(f"{DEVICES}/0000:05:00.0/unique_id") == "e3aa140f9a5f9e31\n"
    assert properties(host, 2)["unique_id"] == 16404946649897475633
    hexed = [int(host.text(f"{DEVICES}/{address}/unique_id"), 16) for address in GPUS]
    assert hexed == [properties(host, node)["unique_id"] for node in range(2, 10)]
    assert len({host.text(f"{DEVICES}/{address}/serial_number") for address in GPUS}) == 8


def test_topology_has_two_cpu_nodes_and_eight_gpus(host: Host) -> None:
    assert host.list(NODES) == [str(n) for n in range(10)]
    assert [properties(host, n)["cpu_cores_count"] for n in (0, 1)] == [96, 96]
    assert [properties(host, n)["simd_count"] for n in range(10)] == [0, 0, *[1216] * 8]
    for node, bus in enumerate(BUSES, 2):
        found = properties(host, node)
        assert (found["vendor_id"], found["device_id"], found["gfx_target_version"]) == (4098, 29857, 90402)
        assert found["location_id"] == int(bus, 16) << 8
        assert found["drm_render_minor"] == 128 + 8 * (node - 2)
        assert found["local_mem_size"] == 0
        assert "size_in_bytes 206141652992\n" in host.text(f"{NODES}/{node}/mem_banks/0/properties")


def test_each_gpu_links_to_its_cpu_and_to_seven_peers(host: Host) -> None:
    for node in range(2, 10):
        links = [host.text(f"{NODES}/{node}/io_links/{n}/properties").split() for n in range(8)]
        found = [dict(zip(link[::2], map(int, link[1::2]), strict=True)) for link in links]
        assert len(found) == properties(host, node)["io_links_count"] == 8
        assert (found[0]["type"], found[0]["weight"], found[0]["node_to"]) == (2, 20, 0 if node < 6 else 1)
        assert {(link["type"], link["weight"]) for link in found[1:]} == {(11, 15)}
        assert [link["node_to"] for link in found[1:]] == [n for n in range(2, 10) if n != node]


def test_all_gpus_are_in_one_hive(host: Host) -> None:
    hives = {host.text(f"{DEVICES}/{address}/xgmi_hive_info/xgmi_hive_id") for address in GPUS}
    assert hives == {"10631624818852212319\n"}
    assert {properties(host, n)["hive_id"] for n in range(2, 10)} == {10631624818852212319}
    assert host.text(f"{DEVICES}/{GPUS[2]}/xgmi_num_hops") == "41 41 00 41 41 41 41 41\n"


def test_gpu_metrics_is_a_whole_v1_6_structure(host: Host) -> None:
    data = host.read(f"{DEVICES}/{GPUS[6]}/gpu_metrics")
    assert struct.unpack_from("<HBB", data) == (1664, 1, 6)
    assert len(data) == 1664
    assert struct.unpack_from("<2H", data, 60) == (16, 320)  # lanes, 0.1 GT/s
    assert struct.unpack_from("<8H", data, 264) == (1427,) * 8  # GFX clock of each of the 8 dies, as in pp_dpm_sclk


def test_each_gpu_shares_its_switch_with_one_connectx7(host: Host) -> None:
    nics = addresses(host, "0x15b3 0x1021")
    assert len(nics) == 8
    switches = {n: _common(host, n) for n in nics}
    for gpu in GPUS:
        place = real(host, f"{DEVICES}/{gpu}")
        (nic,) = [n for n, switch in switches.items() if place.startswith(f"{switch}/")]
        upstream = posixpath.basename(switches[nic])
        assert ids(host, upstream) == "0x1000 0xc030"
        assert host.text(f"{DEVICES}/{nic}/numa_node") == host.text(f"{DEVICES}/{gpu}/numa_node")


def _common(host: Host, nic: str) -> str:
    """The upstream port of the switch above a NIC."""
    return posixpath.dirname(posixpath.dirname(real(host, f"{DEVICES}/{nic}")))


def test_the_front_end_nic_is_on_a_root_of_its_own(host: Host) -> None:
    ports = addresses(host, "0x15b3 0x101d")
    assert ports == ["0000:07:00.0", "0000:07:00.1"]
    parent = posixpath.dirname(real(host, f"{DEVICES}/{ports[0]}"))
    assert posixpath.dirname(parent) == "/sys/devices/pci0000:00"
    assert not any(real(host, f"{DEVICES}/{gpu}").startswith(f"{parent}/") for gpu in GPUS)


def test_rdma_numbers_do_not_tell_the_rails(host: Host) -> None:
    fast = [n for n in host.list("/sys/class/infiniband") if "400 Gb" in host.text(_port(n, "rate"))]
    assert fast == [f"mlx5_{n}" for n in (0, 3, 4, 5, 6, 7, 8, 9)]
    assert {host.text(_port(n, "state")) for n in fast} == {"4: ACTIVE\n"}
    assert {host.text(_port(n, "link_layer")) for n in fast} == {"Ethernet\n"}
    assert host.text(_port("mlx5_2", "state")) == "1: DOWN\n"


def _port(device: str, name: str) -> str:
    return f"/sys/class/infiniband/{device}/ports/1/{name}"


def test_a_rdma_device_leads_to_its_netdev(host: Host) -> None:
    assert host.list("/sys/class/infiniband/mlx5_3/device/net") == ["enp40s0np0"]
    assert host.text("/sys/class/net/enp40s0np0/speed") == "400000\n"
    assert host.text(_port("mlx5_3", "gid_attrs/types/3")) == "RoCE v2\n"
    assert host.text(_port("mlx5_3", "gids/3")).startswith("0000:0000:0000:0000:0000:ffff:")
    with pytest.raises(OSError) as caught:
        host.text(_port("mlx5_3", "gid_attrs/types/4"))
    assert caught.value.errno == errno.EINVAL


def test_192_cpus_with_governors_and_c2(host: Host) -> None:
    cpus = "/sys/devices/system/cpu"
    assert host.text(f"{cpus}/online") == "0-191\n"
    for cpu in range(192):
        folder = f"{cpus}/cpu{cpu}"
        assert host.text(f"{folder}/cpufreq/scaling_driver") == "acpi-cpufreq\n"
        assert "performance" in host.text(f"{folder}/cpufreq/scaling_available_governors").split()
        states = [host.text(f"{folder}/cpuidle/{s}/name").strip() for s in host.list(f"{folder}/cpuidle")]
        assert states == ["POLL", "C1", "C2"]
        assert host.text(f"{folder}/cpuidle/state2/disable") == "0\n"


def test_acpi_cpufreq_has_boost_and_no_energy_preference(host: Host) -> None:
    policy = "/sys/devices/system/cpu/cpu95/cpufreq"
    assert host.text(f"{policy}/affected_cpus") == "95\n"
    assert host.text(f"{policy}/boost") == host.text("/sys/devices/system/cpu/cpufreq/boost") == "1\n"
    assert missing(host, f"{policy}/energy_performance_preference")
    assert missing(host, "/sys/devices/system/cpu/intel_pstate")


def test_two_numa_nodes_and_the_boot_line_of_amds_guide(host: Host) -> None:
    nodes = "/sys/devices/system/node"
    assert [host.text(f"{nodes}/node{n}/cpulist") for n in (0, 1)] == ["0-95\n", "96-191\n"]
    assert {"iommu=pt", "pci=realloc=off"} <= set(host.text("/proc/cmdline").split())
    assert host.text("/sys/module/amdgpu/initstate") == "live\n"


def test_nobody_holds_a_gpu(host: Host) -> None:
    assert host.exists("/dev/kfd")
    assert host.exists("/dev/dri/renderD184")
    assert host.exists("/dev/infiniband/uverbs9")
    assert busy(host) == ""


def test_profile_linux_gpu_is_applied_verified_and_undone(
    copy_host: Callable[..., Path], tuner: Callable[..., Result]
) -> None:
    """One round trip; rmem_max and numa_balancing are among what changes on a stock Ubuntu 22.04."""
    root = copy_host("mi300x-cx7")
    before = tree(root)
    plan = tuner("plan", "--root", root, "--profile", "linux-gpu", "--json")
    assert plan.code == 10
    assert {verdict["state"] for verdict in plan.document["verdicts"]} <= {"ok", "drift", "unsupported"}
    changed = {change["target"] for change in plan.document["changes"]}
    assert {"net.core.rmem_max", "kernel.numa_balancing", "vm.swappiness"} <= changed
    assert tuner("apply", "--root", root, "--profile", "linux-gpu").code == 0
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_kernel_files_answer_as_the_hardware_does(copy_host: Callable[..., Path]) -> None:
    """Words that an MI300X refuses, a governor that is not there, more huge pages than a node has."""
    host = open_host(str(copy_host("mi300x-cx7")))
    level = f"{DEVICES}/{GPUS[0]}/{LEVEL}"
    for word in ("high", "low", "profile_peak", "profile_standard", "banana"):
        assert _errno(host, level, word) == errno.EINVAL
        assert host.text(level) == "auto\n"
    assert _errno(host, f"{DEVICES}/{GPUS[0]}/pp_od_clk_voltage", "s 1 1900") == errno.EINVAL
    assert _errno(host, f"{DEVICES}/{GPUS[0]}/pp_dpm_mclk", "1") == errno.EINVAL
    governor = "/sys/devices/system/cpu/cpu191/cpufreq/scaling_governor"
    assert _errno(host, governor, "turbo") == errno.EINVAL
    assert _errno(host, governor, "performance") == 0
    assert host.text("/sys/devices/system/cpu/cpufreq/policy191/scaling_governor") == "performance\n"
    cap = f"{DEVICES}/{GPUS[0]}/hwmon/hwmon11/power1_cap"
    assert _errno(host, cap, "751000000") == errno.EINVAL
    assert _errno(host, cap, "699999999") == 0
    assert host.text(cap) == "699000000\n", "the driver knows whole watts"
    boost = "/sys/devices/system/cpu/cpufreq"
    assert _errno(host, f"{boost}/policy5/boost", "0") == 0
    assert [host.text(f"{boost}/{name}boost") for name in ("policy5/", "policy6/", "")] == ["0\n", "1\n", "1\n"]
    assert _errno(host, f"{boost}/boost", "0") == 0
    assert {host.text(f"{boost}/policy{n}/boost") for n in range(192)} == {"0\n"}
    policy = f"{DEVICES}/{GPUS[0]}/pm_policy/soc_pstate"
    assert _errno(host, policy, "2") == 0
    assert host.text(policy) == "0 : soc_pstate_default\n1 : soc_pstate_0\n2 : soc_pstate_1*\n3 : soc_pstate_2\n"
    pool = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
    assert _errno(host, pool, "100000") == 0
    assert host.text(pool) == "100000\n"


def _errno(host: Host, path: str, text: str) -> int:
    try:
        host.write(path, f"{text}\n")
    except OSError as error:
        return error.errno or -1
    return 0


def _gpus(entries: dict[str, Entry]) -> list[str]:
    texts = {p: e.data for p, e in entries.items() if p.endswith("/device") and e.kind == "file"}
    found = [p.split("/")[-2] for p, data in texts.items() if data in (b"0x74a1\n", b"0x74b5\n")]
    return sorted(found)


def _cards(entries: dict[str, Entry]) -> list[int]:
    """Card numbers of the GPUs themselves."""
    links = [p for p, e in entries.items() if p.startswith("/sys/class/drm/card") and b"/pci" in e.data]
    return sorted(int(p.rpartition("card")[2]) for p in links if "VGA" not in p and p != "/sys/class/drm/card0")


def _nodes(entries: dict[str, Entry]) -> int:
    """GPU nodes of the topology."""
    texts = [e.data for p, e in entries.items() if p.startswith(NODES) and p.count("/") == NODES.count("/") + 2]
    return sum(b"\nsimd_count 0\n" not in text for text in texts if text.startswith(b"cpu_cores_count"))


@pytest.mark.parametrize("fault", make_hosts.FAULTS)
def test_an_overlay_laid_over_the_plain_host_is_the_faulty_one(fault: str) -> None:
    over = make_hosts.overlay(fault)
    gone = {path for path, entry in over.items() if entry.kind == "absent"}
    merged = faults.merge(make_hosts.build(Variant()), over)
    other = make_hosts.build(Variant(fault))
    assert over
    assert {path: entry for path, entry in merged.items() if path not in gone} == other
    assert not gone & set(other)


@pytest.fixture(scope="module")
def faulty(masters: Callable[..., Path]) -> Callable[[str], Host]:
    """The host with a fault, only read."""
    return lambda fault: open_host(str(masters("mi300x-cx7", fault)))


def _shown(host: Host) -> list[str]:
    """Cards whose directory has a level file."""
    cards = [n for n in host.list("/sys/class/drm") if n.removeprefix("card").isdigit()]
    return sorted((n for n in cards if host.exists(f"/sys/class/drm/{n}/device/{LEVEL}")), key=lambda n: int(n[4:]))


def test_a_lost_gpu_is_nowhere(faulty: Callable[[str], Host]) -> None:
    """Not on the bus, in no class, without device nodes or a node of the topology; its NIC and switch stay."""
    host, left = faulty("gpu-lost"), [a for a in GPUS if a != "0000:c7:00.0"]
    assert addresses(host, "0x1002 0x74a1") == left
    assert [a for a in host.list("/sys/bus/pci/drivers/amdgpu") if a.startswith("0000:")] == left
    assert _shown(host) == [f"card{n}" for n in (1, 9, 17, 25, 33, 41, 57)]
    gone = ("/sys/class/drm/card49", "/sys/class/drm/renderD176", "/dev/dri/card49", "/dev/dri/renderD176")
    assert all(missing(host, path) for path in (*gone, f"{DEVICES}/0000:c7:00.0/{LEVEL}", f"{NODES}/9/properties"))
    assert host.list(NODES) == [str(n) for n in range(9)]
    assert addresses(host, "0x15b3 0x1021")[6] == "0000:c8:00.0"
    assert len(host.list("/sys/class/hwmon")) == len(host.list("/sys/class/infiniband")) - 3


def test_a_reset_is_eperm_on_read_and_write_of_what_asks_the_firmware(faulty: Callable[[str], Host]) -> None:
    host = faulty("gpu-in-reset")
    for address in GPUS:
        for name in (LEVEL, "pp_od_clk_voltage", "pp_dpm_sclk", "gpu_metrics"):
            with pytest.raises(PermissionError) as caught:
                host.read(f"{DEVICES}/{address}/{name}")
            assert caught.value.errno == errno.EPERM
        assert _errno(host, f"{DEVICES}/{address}/{LEVEL}", "auto") == errno.EPERM
        assert host.text(f"{DEVICES}/{address}/current_compute_partition") == "SPX\n"


def test_a_guest_sees_virtual_functions_without_power_files(faulty: Callable[[str], Host]) -> None:
    host = faulty("vf")
    assert addresses(host, "0x1002 0x74b5") == GPUS
    assert addresses(host, "0x1002 0x74a1") == []
    assert _shown(host) == []
    names = (LEVEL, "pp_od_clk_voltage", "hwmon", "pm_policy", "pp_dpm_sclk")
    assert all(missing(host, f"{DEVICES}/{GPUS[0]}/{name}") for name in names)
    assert properties(host, 2)["device_id"] == 0x74B5


def test_cpx_has_63_nodes_and_no_last_render_node(faulty: Callable[[str], Host]) -> None:
    host = faulty("cpx")
    assert host.list(NODES) == sorted(str(n) for n in range(65))
    assert {properties(host, n)["simd_count"] for n in range(2, 65)} == {152}
    assert [properties(host, n)["drm_render_minor"] for n in range(2, 65)] == list(range(128, 191))
    with pytest.raises(Unrecorded):  # there are links, 63 for each, but they are not recorded
        host.list(f"{NODES}/2/io_links")
    assert [properties(host, n)["location_id"] for n in (2, 9, 10, 64)] == [0x0500, 0x0507, 0x2700, 0xE506]
    assert missing(host, "/dev/dri/renderD191")
    assert host.text(f"{DEVICES}/{GPUS[0]}/current_compute_partition") == "CPX\n"


def test_without_a_bmc_every_card_moves_down_by_one(faulty: Callable[[str], Host]) -> None:
    host = faulty("ast-absent")
    assert _shown(host) == [f"card{n}" for n in (0, 8, 16, 24, 32, 40, 48, 56)]
    assert [real(host, f"/sys/class/drm/card{8 * n}/device")[-12:] for n in range(8)] == GPUS
    assert all(missing(host, p) for p in (f"{DEVICES}/0000:2a:00.0", "/sys/class/drm/card0-VGA-1", "/dev/dri/card192"))


def test_old_firmware_takes_the_word_and_refuses_its_commit(copy_host: Callable[..., Path]) -> None:
    host = open_host(str(copy_host("mi300x-cx7", "old-ifwi")))
    device = f"{DEVICES}/{GPUS[3]}"
    assert _errno(host, f"{device}/{LEVEL}", "perf_determinism") == 0
    assert _errno(host, f"{device}/pp_od_clk_voltage", "m 1 1100") == errno.EINVAL
    assert _errno(host, f"{device}/pp_od_clk_voltage", "s 1 1900") == 0
    assert _errno(host, f"{device}/pp_od_clk_voltage", "c") == errno.EINVAL
    assert host.text(f"{device}/pp_od_clk_voltage") == "OD_SCLK:\n0: 500Mhz\n1: 2100Mhz\n"


def test_a_gpu_is_lost_and_comes_back_while_the_others_are_in_use(copy_host: Callable[..., Path]) -> None:
    root = copy_host("mi300x-cx7")
    host, before = open_host(str(root)), tree(root)
    for address in GPUS:
        for name, text in ((LEVEL, "perf_determinism"), ("pp_od_clk_voltage", "s 1 1900"), ("pp_od_clk_voltage", "c")):
            assert _errno(host, f"{DEVICES}/{address}/{name}", text) == 0
    store.break_copy(str(root), "gpu-lost")
    broken = open_host(str(root))
    assert missing(broken, f"{DEVICES}/0000:c7:00.0")
    assert broken.text(f"{DEVICES}/0000:a7:00.0/{LEVEL}") == "perf_determinism\n"
    assert "1: 1900Mhz" in broken.text(f"{DEVICES}/0000:a7:00.0/pp_od_clk_voltage")
    store.mend_copy(str(root))
    mended = open_host(str(root))
    levels = [mended.text(f"{DEVICES}/{address}/{LEVEL}") for address in GPUS[5:]]
    assert levels == ["perf_determinism\n", "auto\n", "perf_determinism\n"]
    for address in GPUS:
        assert _errno(mended, f"{DEVICES}/{address}/{LEVEL}", "auto") == 0
    staged = f".tuner-host/state/od_table-{GPUS[6]}"
    after = tree(root)
    assert staged not in after, "a device that goes takes along what its driver had staged"
    assert {p: e for p, e in after.items() if not p.startswith(".tuner-host/state")} == before


def test_a_lost_gpu_leaves_the_numbers_of_the_others() -> None:
    entries = make_hosts.build(Variant("gpu-lost"))
    assert _gpus(entries) == [a for a in GPUS if a != "0000:c7:00.0"]
    assert _cards(entries) == [1, 9, 17, 25, 33, 41, 57]
    assert _nodes(entries) == 7


def test_a_reset_of_the_hive_is_eperm_on_all_gpus() -> None:
    entries = make_hosts.build(Variant("gpu-in-reset"))
    levels = [entry for path, entry in entries.items() if path.endswith(f"/{LEVEL}")]
    assert [entry.errno for entry in levels] == [errno.EPERM] * 8


def test_virtual_functions_have_another_id_and_no_power_files() -> None:
    entries = make_hosts.build(Variant("vf"))
    texts = [e.data for p, e in entries.items() if p.endswith("/device") and b"0x74" in e.data]
    assert texts == [b"0x74b5\n"] * 8
    assert not [path for path in entries if path.endswith((f"/{LEVEL}", "/pp_od_clk_voltage", "/power1_cap"))]


def test_cpx_shows_63_of_64_partitions() -> None:
    entries = make_hosts.build(Variant("cpx"))
    assert _nodes(entries) == 63
    assert "/dev/dri/renderD190" in entries
    assert "/dev/dri/renderD191" not in entries


def test_without_a_bmc_the_first_gpu_is_card0() -> None:
    entries = make_hosts.build(Variant("ast-absent"))
    links = [p for p, e in entries.items() if p.startswith("/sys/class/drm/card") and b"/pci" in e.data]
    assert sorted(int(p.rpartition("card")[2]) for p in links) == [0, 8, 16, 24, 32, 40, 48, 56]


def test_old_firmware_has_no_memory_clock_limit() -> None:
    entries = make_hosts.build(Variant("old-ifwi"))
    tables = {entry.data for path, entry in entries.items() if path.endswith("/pp_od_clk_voltage")}
    assert tables == {b"OD_SCLK:\n0: 500Mhz\n1: 2100Mhz\n"}
