"""a100-cx7 and h800-cx7 are what their generator gives, and each of their faults shows as an operator has to see it.

Values: NVIDIA/nvidia-docker#1648 (A100-SXM4-40GB: clocks, limits), NVIDIA/DCGM#120 (H800: clocks, a fabric in
progress), NVIDIA/open-gpu-kernel-modules README (PCI ids) and kernel-open/nvidia (files), deepseek-ai/DeepSeek-V3#28
and deepseek-ai/DeepEP#16 (400 GB/s between H800), pci-ids.ucw.cz (NVSwitch), NVIDIA's A100 data sheet (600 GB/s).
"""

from __future__ import annotations

import dataclasses
import errno
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import make_nvidia
from tests.conftest import HOSTS, Result, tree, write_profile
from tests.make_nvidia import A100_40, A100_80, H800, SERVERS
from tuner.detect import inventory
from tuner.holders import holder
from tuner.host import Host, manifest, open_host
from tuner.host.nvml import GETS
from tuner.idle import busy
from tuner.probes.nvidia_smi import INDEX
from tuner.probes.nvidia_topo import MATRIX
from tuner.sim import store

DEVICES = "/sys/bus/pci/devices"
A100 = [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")]
H800S = [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
NAMES = {"a100-cx7": A100, "h800-cx7": H800S}
PROFILES = {"a100-cx7": "a100", "h800-cx7": "h800"}
BOTH = pytest.mark.parametrize("name", sorted(NAMES))
Tuner = Callable[..., Result]


@pytest.fixture(scope="module")
def read(masters: Callable[..., Path]) -> Callable[..., Host]:
    """read(NAME, *FAULTS) -> the host, only read."""
    return lambda name, *faults: open_host(str(masters(name, *faults)))


def ids(host: Host, address: str) -> str:
    return " ".join(host.text(f"{DEVICES}/{address}/{name}").strip() for name in ("vendor", "device", "class"))


def having(host: Host, wanted: str) -> list[str]:
    """PCI addresses with this vendor, device and class."""
    return [address for address in host.list(DEVICES) if ids(host, address) == wanted]


def failure(ask: Callable[[], Any]) -> int | None:
    """The errno of what is asked; None for an answer."""
    try:
        ask()
    except OSError as error:
        return error.errno
    return None


# --- what was put together


@BOTH
def test_the_manifest_is_what_the_generator_gives(name: str) -> None:
    text = (HOSTS / f"{name}.host").read_text(encoding="utf-8")
    assert text == manifest.render(make_nvidia.whole(SERVERS[name]))
    assert text.index("|synthetic: true") < text.index("file 0644 /.tuner-host/kernel.yaml")
    assert len(text) < 600_000


@BOTH
def test_nothing_of_the_server_with_mi300x_is_left(name: str) -> None:
    """No GPU of AMD, no driver of it, none of its NICs; fewer CPUs in every list."""
    text = (HOSTS / f"{name}.host").read_text(encoding="utf-8")
    words = ("amdgpu", "kfd", "0x1002", "MI300X", "mi300x", "enp7s0f0np0", "enp40s0np0", "0-191", "96-191", "EPYC 9654")
    assert [word for word in words if word in text] == []
    assert not re.search(r"/cpu(6[4-9]|[7-9]\d|1\d\d)\b", text)


@pytest.mark.parametrize(
    ("name", "found"), [("a100-cx7", "0x10de 0x20b2 0x030200"), ("h800-cx7", "0x10de 0x2324 0x030200")]
)
def test_eight_gpus_with_the_driver(read: Callable[..., Host], name: str, found: str) -> None:
    host = read(name)
    assert having(host, found) == NAMES[name]
    assert {host.link(f"{DEVICES}/{a}/driver").rpartition("/")[2] for a in NAMES[name]} == {"nvidia"}
    assert host.nvml.get("", "gpus") == NAMES[name]
    assert host.nvml.get("", "driver") == host.text("/sys/module/nvidia/version").strip() == "550.90.07"
    assert len({host.nvml.get(a, "uuid") for a in NAMES[name]}) == 8
    for number, address in enumerate(NAMES[name]):
        text = host.text(f"/proc/driver/nvidia/gpus/{address}/information")
        assert f"GPU UUID: \t {host.nvml.get(address, 'uuid')}\n" in text
        assert f"Device Minor: \t {number}\n" in text
        assert host.exists(f"/dev/nvidia{number}")


@pytest.mark.parametrize(
    ("name", "switch", "count", "line"),
    [("a100-cx7", "0x10de 0x1af1 0x068000", 6, "x86_64 Kernel Module"),
     ("h800-cx7", "0x10de 0x22a3 0x068000", 4, "Open Kernel Module for x86_64")],
)  # fmt: skip
def test_nvswitches_are_bridges_and_the_driver_says_which_it_is(
    read: Callable[..., Host], name: str, switch: str, count: int, line: str
) -> None:
    host = read(name)
    assert len(having(host, switch)) == count
    assert f"NVIDIA UNIX {line}  550.90.07" in host.text("/proc/driver/nvidia/version")
    assert "EnablePCIERelaxedOrderingMode: 0\n" in host.text("/proc/driver/nvidia/params")


CLOCKS = {  # fault: top, lowest, memory, count of graphics clocks
    ("a100-cx7", ""): (1410, 210, 1593, 81),
    ("a100-cx7", "a100-40gb"): (1410, 210, 1215, 81),
    ("h800-cx7", ""): (1980, 345, 2619, 110),
}


@pytest.mark.parametrize(("name", "fault"), CLOCKS)
def test_clocks_are_those_of_the_dumps(read: Callable[..., Host], name: str, fault: str) -> None:
    top, low, memory, count = CLOCKS[name, fault]
    host = read(name, *filter(None, [fault]))
    for address in NAMES[name]:
        assert host.nvml.get(address, "max_clocks") == {"graphics": top, "sm": top, "memory": memory}
        table = host.nvml.get(address, "supported_clocks")
        assert list(table) == [str(memory)]
        assert (table[str(memory)][0], table[str(memory)][-1], len(table[str(memory)])) == (top, low, count)


def test_the_two_a100_are_told_apart_by_id_name_and_memory(read: Callable[..., Host]) -> None:
    large, small = read("a100-cx7"), read("a100-cx7", "a100-40gb")
    for host, pci, size in ((large, "0x20b2", 80), (small, "0x20b0", 40)):
        assert {host.text(f"{DEVICES}/{a}/device").strip() for a in A100} == {pci}
        assert {host.nvml.get(a, "name") for a in A100} == {f"NVIDIA A100-SXM4-{size}GB"}
        assert {host.nvml.get(a, "memory") for a in A100} == {size * 2**30}
    assert large.nvml.get(A100[0], "power") == small.nvml.get(A100[0], "power")


@BOTH
def test_links_make_the_bandwidth_that_is_published(read: Callable[..., Host], name: str) -> None:
    """12 x 50 GB/s are the 600 of an A100, 8 x 50 the 400 of an H800; never the 18 links of an H100."""
    host = read(name)
    counts = {host.nvml.get(a, "nvlinks").count("active") for a in NAMES[name]}
    assert {50 * count for count in counts} == {600 if name == "a100-cx7" else 400}
    pairs = MATRIX.parse(host.command(MATRIX.argv, 5).out).nvlinks()
    assert len(pairs) == 56
    assert set(pairs.values()) == counts


def test_an_a100_has_no_fabric_state_and_an_h800_has_completed_it(read: Callable[..., Host]) -> None:
    assert failure(lambda: read("a100-cx7").nvml.get(A100[0], "fabric")) == errno.ENOTSUP
    assert read("h800-cx7").nvml.get(H800S[0], "fabric")["state"] == "completed"


@BOTH
def test_every_question_to_nvml_is_answered_or_named(read: Callable[..., Host], name: str) -> None:
    """Only the memory of an H800 has no source."""
    host = read(name)
    asked = set(GETS) - {"driver", "gpus"}
    missing = {n for n in asked if not Path(host.root, f".tuner-host/nvml/{NAMES[name][0]}/{n}").exists()}
    assert missing == (set() if name == "a100-cx7" else {"memory"})


@BOTH
def test_rails_are_by_switch_and_the_matrix_says_the_same(read: Callable[..., Host], name: str) -> None:
    host = read(name)
    found = inventory(host)
    assert [rail.gpu for rail in found.rails] == NAMES[name]
    assert {rail.kind for rail in found.rails} == {"switch"}
    assert len({rail.nic for rail in found.rails}) == 8
    gbps, gts = (200.0, 16.0) if name == "a100-cx7" else (400.0, 32.0)
    assert {(nic.name, nic.link.rate, nic.pcie.speed, nic.pcie.width) for nic in found.nics} == {
        ("ConnectX-7", gbps, gts, 16)
    }
    assert {(gpu.pcie.speed, gpu.pcie.width) for gpu in found.gpus} == {(gts, 16)}
    assert [gpu.numa for gpu in found.gpus] == [0] * 4 + [1] * 4
    topo, named = MATRIX.parse(host.command(MATRIX.argv, 5).out), {nic.pci: nic.rdma for nic in found.nics}
    for number, rail in enumerate(found.rails):
        near, how = topo.best(f"GPU{number}")
        assert how == "PIX"
        assert named[rail.nic or ""] in {topo.device(label) for label in near}
    index = host.command(INDEX.argv, 5).out.splitlines()
    assert index == [f"{n}, 0000{address.upper()}" for n, address in enumerate(NAMES[name])]


@BOTH
def test_nobody_holds_a_gpu_and_both_services_run(read: Callable[..., Host], name: str) -> None:
    host = read(name)
    assert busy(host) == ""
    assert host.command(("nv-fabricmanager", "--version"), 5).out == "Fabric Manager version is : 550.90.07\n"
    for unit in ("nvidia-persistenced.service", "nvidia-fabricmanager.service"):
        assert host.text(f"/sys/fs/cgroup/system.slice/{unit}/cgroup.procs").strip().isdigit()


def test_every_fault_is_told_and_tested() -> None:
    for name, server in SERVERS.items():
        told = store.about(HOSTS / f"{name}.host")[1]
        assert list(told) == list(make_nvidia.broken(server))
        assert all(told.values())
        assert set(told) == {*SEEN, *SET, "driver-reload"} | ({"a100-40gb"} if name == "a100-cx7" else set())


def test_h800_is_not_h100() -> None:
    """No figure of an H100 or of an A100 in it."""
    assert dataclasses.astuple(H800)[3:] == (345, 1980, 2619, 0, (200, 700), 8)
    assert (A100_80.memory_clock, A100_40.memory_clock) == (1593, 1215)
    text = "".join(path.read_text() for path in Path(__file__).parent.parent.glob("profiles/h800.yaml"))
    wanted = re.findall(r"(?:value|at_least): (.*)", text)
    assert not [line for line in wanted if re.search(r"\b(18|900|1410|1593|80)\b", line)]


# --- what a fault looks like in verify, on a host where profile and lock are applied


GPU_KNOBS = ("persistence", "ecc", "mig", "compute_mode", "power_limit", "nvlinks", "row_remap", "gpu_clocks")
ALL = {f"nvidia.{name}" for name in GPU_KNOBS}
TIMEOUT = "NVML did not answer in time: the driver may hang, see Xid in dmesg"
SEEN: dict[str, tuple[int, str, set[str], str, str]] = {
    # fault: exit code, state, knobs, which GPUs (index in nvidia-smi), words
    "gpu-lost": (11, "missing", ALL | {"pcie.link"}, "3", "off the bus"),
    "gpu-gone": (11, "missing", ALL | {"pcie.link"}, "3", "no device at this address"),
    "nvml-hangs": (12, "unknown", ALL, "01234567", TIMEOUT),
    "no-nvml": (12, "unknown", ALL, "01234567", "install the libraries of driver 550.90.07"),
    "version-mismatch": (12, "unknown", ALL, "01234567", "not that of the loaded driver (550.90.07)"),
    "ecc-pending": (13, "pending", {"nvidia.ecc"}, "0", "in force after a reset of the GPU or a reboot"),
    "mig-on": (10, "drift", {"nvidia.mig"}, "01234567", ""),
    "row-remap-pending": (10, "drift", {"nvidia.row_remap"}, "2", "a reset remaps the bad row: drain the node"),
    "row-remap-failed": (10, "drift", {"nvidia.row_remap"}, "2", "replace the GPU"),
    "nvlink-down": (10, "drift", {"nvidia.nvlinks"}, "0", "link 5 down"),
    "pcie-degraded": (10, "drift", {"pcie.link"}, "0", "check slot, riser and BIOS"),
    "enforced-power": (0, "ok", set(), "0", "only 300 W are enforced: something outside the driver"),
    "clocks-reset": (0, "ok", set(), "", "/etc/nhc/scripts/app_clocks.nhc runs nvidia-smi -ac"),
    "fabric-stopped": (10, "drift", {"nvidia.fabric_manager"}, "", "systemctl"),
    "fabric-version": (10, "drift", {"nvidia.fabric_manager"}, "", "in place of 535.183.06"),
}
SET = {"nvml-denied", "refuses-lock", "mig-in-use", "job-runs"}
"""Faults that show only where something is set: tests of their own."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of each host for all of these tests, each of which mends it."""
    made = {name: tmp_path_factory.mktemp("copies") / name for name in NAMES}
    for name, root in made.items():
        store.copy(HOSTS / f"{name}.host", str(root), [])
    return made


def lock(root: Path, name: str, tuner: Tuner) -> None:
    """Applies profile and lock."""
    done = tuner("apply", "--root", root, "--profile", PROFILES[name], "--with", "locked-clocks")
    assert done.code == 0, done.out


@pytest.fixture
def broken(copies: dict[str, Path], tuner: Tuner) -> Iterator[Callable[[str, str], Result]]:
    """broken(NAME, FAULT) -> what verify says where profile and lock are applied."""
    used: list[Path] = []

    def verify(name: str, fault: str) -> Result:
        root = copies[name]
        if not (root / "etc/tuner/applied").exists():
            lock(root, name, tuner)
        store.break_copy(str(root), fault)
        used.append(root)
        return tuner("verify", "--root", root, "--json")

    yield verify
    for root in used:
        store.mend_copy(str(root))


def apart(result: Result) -> dict[tuple[str, str], str]:
    """What is not as wanted, by knob and target; what this host never has is left out."""
    rows = result.document["verdicts"]
    return {(r["knob"], r["target"]): r["state"] for r in rows if r["state"] not in ("ok", "unsupported")}


def said(result: Result) -> list[str]:
    """The reasons and remarks."""
    return [f"{row['state_why']} {row['remark']}" for row in result.document["verdicts"]]


CASES = [("a100-cx7", fault) for fault in SEEN]
CASES += [("h800-cx7", fault) for fault in ("gpu-lost", "nvml-hangs", "nvlink-down", "fabric-stopped")]


@pytest.mark.parametrize(("name", "fault"), CASES)
def test_a_fault_shows_as_an_operator_has_to_see_it(
    broken: Callable[[str, str], Result], name: str, fault: str
) -> None:
    code, state, knobs, which, words = SEEN[fault]
    result = broken(name, fault)
    found = apart(result)
    if name == "h800-cx7" and knobs >= ALL:
        knobs = knobs | {"nvidia.fabric"}
    if name == "h800-cx7" and fault == "fabric-stopped":
        assert [found.pop(("nvidia.fabric", gpu)) for gpu in H800S] == ["drift"] * 8
        assert any("nvidia-fabricmanager.service is inactive" in line for line in said(result))
    targets = [NAMES[name][int(n)] for n in which] or ["nvidia-fabricmanager.service"]
    kinds = {"pcie.link": "gpu/"}
    assert found == {(knob, f"{kinds.get(knob, '')}{target}"): state for knob in knobs for target in targets}
    assert result.code == code
    assert any(words in line for line in said(result)), said(result)


def test_a_lost_gpu_is_named_with_its_uuid(broken: Callable[[str, str], Result]) -> None:
    rows = broken("a100-cx7", "gpu-lost").document["verdicts"]
    uuid = make_nvidia.uuid(SERVERS["a100-cx7"], 3)
    assert {uuid in row["state_why"] for row in rows if row["target"] == A100[3] and row["knob"] in ALL} == {True}


def test_mended_hosts_are_as_applied(
    copies: dict[str, Path], broken: Callable[[str, str], Result], tuner: Tuner
) -> None:
    """What a fault took away comes back without a trace, so that the table above stands on firm ground."""
    broken("a100-cx7", "gpu-gone")
    store.mend_copy(str(copies["a100-cx7"]))
    assert tuner("verify", "--root", copies["a100-cx7"]).code == 0


@BOTH
@pytest.mark.parametrize(("enabled", "code"), [(True, 0), (False, 12)])
def test_a_manager_that_runs_and_is_not_enabled_is_no_clean_next_boot(
    copy_host: Callable[..., Path], tmp_path: Path, tuner: Tuner, name: str, enabled: bool, code: int
) -> None:
    """Now it runs as wanted; what starts it then is not known."""
    root = copy_host(name)
    profile = write_profile(tmp_path / "p.yaml", "nvidia.fabric_manager:\n  nvidia-fabricmanager.service: running")
    if not enabled:
        (root / "etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service").unlink()
    assert tuner("verify", "--root", root, "--profile", profile).code == 0
    assert tuner("verify", "--root", root, "--profile", profile, "--next-boot").code == code


@pytest.mark.parametrize("health", ["unhealthy", "limited"])
def test_a_fabric_that_is_complete_and_not_healthy_is_seen(
    copy_host: Callable[..., Path], tuner: Tuner, health: str
) -> None:
    """As drift, so that monitoring sees it, with the word and what to do."""
    root = copy_host("h800-cx7")
    text = f'{{"state": "completed", "status": "SUCCESS", "health": "{health}"}}\n'
    (root / f".tuner-host/nvml/{H800S[2]}/fabric").write_text(text)
    result = tuner("verify", "--root", root, "--profile", "h800", "--json")
    (row,) = [r for r in result.document["verdicts"] if r["knob"] == "nvidia.fabric" and r["state"] != "ok"]
    assert (result.code, row["target"], row["state"], row["running"]) == (10, H800S[2], "drift", health)
    assert f"the fabric is {health}: nvidia-smi -q -i {H800S[2]}" in row["state_why"]


def test_undo_locks_again_what_a_switch_of_persistence_mode_cost(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """All was undone is true of the locks too: the driver may have forgotten them while the mode was off."""
    root = copy_host("a100-cx7")
    words = ["apply", "--root", root, "--profile", "a100", "--with", "locked-clocks", "--allow", "all"]
    assert tuner(*words).code == 0
    assert tuner("verify", "--root", root).code == 0
    done = tuner(*words, "--set", "nvidia.persistence:*=disabled", "--set", "nvidia.power_limit:*=300", "--json")
    assert (done.code, done.document["not_restored"]) == (20, [])
    verified = tuner("verify", "--root", root)
    assert verified.code == 0, verified.out


@pytest.mark.parametrize("text", ["[]", '"x"', "5", "null", "{}", '{"limit": []}'])
def test_nonsense_for_the_power_limit_is_unknown(copy_host: Callable[..., Path], tuner: Tuner, text: str) -> None:
    root = copy_host("h800-cx7")
    (root / f".tuner-host/nvml/{H800S[0]}/power").write_text(f"{text}\n")
    for verb in ("plan", "verify"):
        result = tuner(verb, "--root", root, "--profile", "h800", "--json")
        (row,) = [
            v for v in result.document["verdicts"] if (v["knob"], v["target"]) == ("nvidia.power_limit", H800S[0])
        ]
        assert row["state"] in ("unknown", "unsupported"), row


def test_one_gpu_without_that_clock_is_drift_before_anything_is_locked(
    copy_host: Callable[..., Path], tuner: Tuner
) -> None:
    """A lock that nobody of ours set has no getter: whether a GPU takes the clock is known all the same."""
    root = copy_host("a100-cx7")
    place = root / f".tuner-host/nvml/{A100[2]}/supported_clocks"
    place.write_text(place.read_text().replace("1155, ", "").replace("1155,", ""))
    words = ["--root", root, "--profile", "a100", "--with", "locked-clocks"]
    planned = tuner("plan", *words, "--json")
    assert planned.code == 10, planned.err
    odd = [v for v in planned.document["verdicts"] if v["target"] == A100[2] and v["knob"] == "nvidia.gpu_clocks"]
    assert [v["state"] for v in odd] == ["drift"]
    assert tuner("apply", *words, "--allow", "all").code == 10, "that GPU is not as wanted"


@pytest.mark.parametrize(("name", "code", "current"), [("a100-cx7", 13, "enabled"), ("h800-cx7", 0, "disabled")])
def test_mig_goes_off_at_a_reset_or_at_once(
    copy_host: Callable[..., Path], tuner: Tuner, name: str, code: int, current: str
) -> None:
    root = copy_host(name, "mig-on")
    assert tuner("apply", "--root", root, "--profile", PROFILES[name], "--allow", "gpu").code in (0, code)
    host = open_host(str(root))
    assert {tuple(host.nvml.get(gpu, "mig").values()) for gpu in NAMES[name]} == {(current, "disabled")}
    assert tuner("verify", "--root", root).code == code


def test_a_job_holds_the_lock_back(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("a100-cx7", "job-runs")
    result = tuner("apply", "--root", root, "--profile", "a100", "--with", "locked-clocks")
    assert "python3 4711 has /dev/nvidia3 open" in result.out
    assert tuner("plan", "--root", root, "--profile", "a100", "--with", "locked-clocks").code == 14
    assert open_host(str(root)).nvml.get(A100[0], "clocks")["graphics"] == 210


def test_a_driver_that_is_loaded_again_forgets_the_lock(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """Drift, never a lock that is still believed; apply makes all so again and rollback gives all back."""
    root = copy_host("a100-cx7")
    before = tree(root)
    lock(root, "a100-cx7", tuner)
    store.break_copy(str(root), "driver-reload")
    nvml = open_host(str(root)).nvml
    assert {nvml.get(gpu, "clocks")["graphics"] for gpu in A100} == {210}
    result = tuner("verify", "--root", root, "--json")
    assert result.code == 10
    assert apart(result) == {(k, gpu): "drift" for k in ("nvidia.persistence", "nvidia.gpu_clocks") for gpu in A100}
    why = {r["running_why"] for r in result.document["verdicts"] if r["knob"] == "nvidia.gpu_clocks"}
    assert why == {"no getter: locked before the driver was loaded again: it forgets"}
    lock(root, "a100-cx7", tuner)
    assert {(nvml.get(gpu, "persistence"), nvml.get(gpu, "clocks")["graphics"]) for gpu in A100} == {("enabled", 1155)}
    for _ in range(2):
        assert tuner("rollback", "--root", root).code == 0
    assert {nvml.get(gpu, "persistence") for gpu in A100} == {"disabled"}
    store.mend_copy(str(root))
    assert tree(root) == before


LOCK = ("--profile", "a100", "--with", "locked-clocks")
REFUSALS = [("nvml-denied", "no permission"), ("refuses-lock", "the driver refuses this value (INVALID_ARGUMENT)")]


@pytest.mark.parametrize(("fault", "words"), REFUSALS)
def test_a_lock_that_is_refused_leaves_nothing_behind(
    copy_host: Callable[..., Path], tuner: Tuner, fault: str, words: str
) -> None:
    """The changes of the kernel's parameters that went before are undone too."""
    root = copy_host("a100-cx7", fault)
    before = tree(root)
    result = tuner("apply", "--root", root, *LOCK)
    assert (result.code, "NOT RESTORED" in result.out) == (20, False)
    assert words in result.out + result.err
    assert tree(root) == before


def test_a_monitor_keeps_mig_from_coming_into_force(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """It is known as a service of the node, so it holds nothing up; the driver answers IN_USE, and all is undone."""
    root = copy_host("a100-cx7", "mig-on", "mig-in-use")
    before = tree(root)
    assert holder(open_host(str(root)), ("/dev/nvidia*",)) == ""
    result = tuner("apply", "--root", root, "--profile", "a100", "--allow", "gpu")
    assert result.code == 20
    assert "stop what monitors it" in result.out + result.err
    assert tree(root) == before


@pytest.mark.parametrize(
    ("faults", "words", "more"),
    [(("mig-on",), "needs --allow gpu", ()), (("mig-on", "job-runs"), "python3 4711", ("--allow", "gpu"))],
)
def test_mig_is_held_while_a_job_runs_and_never_changed_unasked(
    copy_host: Callable[..., Path], tuner: Tuner, faults: tuple[str, ...], words: str, more: tuple[str, ...]
) -> None:
    root = copy_host("a100-cx7", *faults)
    result = tuner("apply", "--root", root, "--profile", "a100", *more)
    assert words in result.out
    host = open_host(str(root))
    assert {host.nvml.get(gpu, "mig")["pending"] for gpu in A100} == {"enabled"}
