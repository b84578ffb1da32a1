"""The knob `irq`: a NIC's interrupts on its own NUMA node, unless irqbalance owns them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.errors import BadValue
from tuner.host.recorded import RecordedHost
from tuner.knobs.irq import Irq
from tuner.model import Absent, Seen, Unreadable
from tuner.plan import read_only
from tuner.sim import store

KNOB = Irq()
NIC = "0000:41:00.0"
DEVICES = "/sys/bus/pci/devices"
PLACE = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0"
NODES = "/sys/devices/system/node"
BASE: dict[str, str] = {
    "/.tuner-host/host.yaml": "name: node\nkernel: 6.8.0",
    "/.tuner-host/kernel.yaml": "rules:\n  /proc/irq/*/smp_affinity_list: {is: cpulist, high: 15}",
    f"{NODES}/node0/cpulist": "0-3,8-11",
    f"{NODES}/node1/cpulist": "4-7,12-15",
    "/sys/devices/system/cpu/online": "0-15",
    f"{DEVICES}/{NIC}": f"-> ../../..{PLACE[4:]}",
    f"{PLACE}/class": "0x020000",
    f"{PLACE}/vendor": "0x15b3",
    f"{PLACE}/device": "0x1021",
    f"{PLACE}/numa_node": "0",
    f"{PLACE}/driver": "-> ../../../../bus/pci/drivers/mlx5_core",
    f"{PLACE}/infiniband/mlx5_0/node_guid": "0200:5eff:fe10:000a",
    "/run/systemd/system": "dir",
    "/sys/fs/cgroup/system.slice": "dir",
    "/proc": "dir 812 irq",
    PLACE: "dir",
    f"{PLACE}/msi_irqs": "dir",
    f"{PLACE}/infiniband": "dir",
    **dict.fromkeys(("/etc/systemd/system", "/usr/lib/systemd/system", "/lib", "/run/systemd/units"), "dir"),
}
RUNNING = {
    "/usr/lib/systemd/system/irqbalance.service": "[Service]\nExecStart=/usr/sbin/irqbalance",
    "/run/systemd/units/invocation:irqbalance.service": "-> 0000000000000000000000000000000a",
    "/sys/fs/cgroup/system.slice/irqbalance.service/cgroup.procs": "812",
}

Make = Callable[..., RecordedHost]


def interrupts(lists: Mapping[int, str]) -> dict[str, str]:
    """Vectors of the NIC, each with its list of CPUs."""
    return {
        **{f"{PLACE}/msi_irqs/{number}": "msix" for number in lists},
        **{f"/proc/irq/{number}/smp_affinity_list": text for number, text in lists.items()},
    }


def entry(path: str, what: str) -> list[str]:
    """An entry of the manifest: a link, a folder with its names, or a file."""
    if what.startswith("-> "):
        return [f"link 0777 {path}", f"+{what[3:]}"]
    if what.partition(" ")[0] == "dir":
        return [f"dir 0755 {path}", *(f"|{name}" for name in what.split()[1:])]
    mode = "0444" if what.startswith("readonly ") else "0644"
    return [f"file {mode} {path}", *(f"|{line}" for line in what.removeprefix("readonly ").splitlines())]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(files ...) -> a host with these over BASE; None takes a file out."""

    def build(*layers: Mapping[str, str | None]) -> RecordedHost:
        files: dict[str, str | None] = dict(BASE)
        for layer in layers:
            files.update(layer)
        known = {path: what for path, what in files.items() if what is not None}
        for path in sorted(known):
            above = path.rpartition("/")[0]
            if known.get(above, "").partition(" ")[0] == "dir":
                known[above] += f" {path.rpartition('/')[2]}"
        for folder in [path for path in known if known[path].partition(" ")[0] == "dir"]:
            below = {path[len(folder) + 1 :].partition("/")[0] for path in known if path.startswith(f"{folder}/")}
            known[folder] = " ".join(["dir", *sorted(below | set(known[folder].split()[1:]))])
        text = ["tuner-host 1", *(line for path in sorted(known) for line in entry(path, known[path]))]
        manifest = tmp_path / "node.host"
        manifest.write_text("\n".join(text) + "\n", encoding="utf-8")
        store.copy(manifest, str(tmp_path / "node"), [])
        return RecordedHost(str(tmp_path / "node"))

    return build


def lists(host: RecordedHost, *numbers: int) -> list[str]:
    """What the interrupts' files show."""
    return [host.text(f"/proc/irq/{number}/smp_affinity_list").strip() for number in numbers]


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "record"),
    [
        ({60: "0-3,8-11", 61: "2", 62: "8-11"}, {"all": "local"}),
        ({60: "0-15", 61: "0-15", 62: "3"}, {"all": "remote", "irq60-61": "0-15"}),
        ({60: "4", 61: "3", 62: "4"}, {"all": "remote", "irq60,62": "4"}),
        ({60: "3-4", 61: "12", 62: "0"}, {"all": "remote", "irq60": "3-4", "irq61": "12"}),
    ],
)
def test_a_list_within_the_node_is_local(make: Make, shown: dict[int, str], record: dict[str, str]) -> None:
    assert KNOB.read(make(interrupts(shown)), NIC) == Seen(record)


def test_cpus_that_are_not_online_handle_nothing(make: Make) -> None:
    """A fresh interrupt shows every CPU that there could be, plugged in or not."""
    online = {"/sys/devices/system/cpu/online": "0-3", f"{NODES}/node0/cpulist": "0-3"}
    assert KNOB.read(make(online, interrupts({60: "0-15"})), NIC) == Seen({"all": "local"})


def test_a_list_of_offline_cpus_only_says_nothing_of_where_it_is_handled(make: Make) -> None:
    online = {"/sys/devices/system/cpu/online": "0-10", f"{NODES}/node0/cpulist": "0-3,8-10"}
    assert KNOB.read(make(online, interrupts({60: "11"})), NIC) == Seen({"all": "remote", "irq60": "11"})


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        ({f"{PLACE}/numa_node": "-1"}, "no NUMA node is nearer: a virtual machine, or the firmware does not say"),
        ({f"{NODES}/node0/cpulist": ""}, "NUMA node 0 has no CPUs"),
        ({f"{PLACE}/class": "0x120000"}, "no network function (class 0x120000)"),
        ({f"{PLACE}/msi_irqs": None}, "no interrupts of its own (MSI): no driver uses it, or it shares a line"),
    ],
)
def test_without_a_nearer_node_nothing_is_judged(make: Make, layer: dict[str, str | None], why: str) -> None:
    interrupt = {} if f"{PLACE}/msi_irqs" in layer else interrupts({60: "0-15"})
    assert KNOB.read(make(interrupt, layer), NIC) == Absent(why)


def test_no_device_there(make: Make) -> None:
    host = make(interrupts({60: "0-15"}), {DEVICES: "dir"})
    assert KNOB.read(host, "0000:99:00.0") == Absent("not on this host")


def test_an_unexpected_list_is_not_taken_for_local(make: Make) -> None:
    found = KNOB.read(make(interrupts({60: "many"})), NIC)
    assert isinstance(found, Unreadable)
    assert found.why.startswith("unexpected content")


def test_a_vector_that_is_not_in_use_is_left_out(make: Make) -> None:
    """The kernel lists an allocated vector; /proc/irq has it once somebody asks for the interrupt."""
    host = make(interrupts({60: "2"}), {f"{PLACE}/msi_irqs/61": "msix", "/proc/irq": "dir"})
    assert KNOB.read(host, NIC) == Seen({"all": "local"})


def test_targets_are_network_functions_with_a_driver(make: Make) -> None:
    def function(bus: str, kind: str, driver: str) -> dict[str, str]:
        place = f"{DEVICES}/0000:{bus}:00.0"
        link = {f"{place}/driver": f"-> ../../drivers/{driver}"} if driver else {}
        return {f"{place}/class": kind, f"{place}/vendor": "0x15b3", f"{place}/device": "0x1021", **link}

    others = (
        function("42", "0x020700", "mlx5_core") | function("43", "0x020000", "") | function("44", "0x010802", "nvme")
    )
    host = make(interrupts({60: "2"}), others, {DEVICES: "dir"})
    assert KNOB.targets(host) == [NIC, "0000:42:00.0"]


# --- writing ---------------------------------------------------------------------------------------------------------


def test_only_what_is_remote_is_moved_to_its_part_of_the_node_or_to_all_of_it(make: Make) -> None:
    """An administrator's choice of CPUs is narrowed to the node, never widened on it."""
    host = make(interrupts({60: "0-15", 61: "2", 62: "0-1,4-5", 63: "12"}))
    before, held = tree(Path(host.root)), KNOB.read(host, NIC)
    assert isinstance(held, Seen)
    assert isinstance(held.value, Mapping)
    KNOB.write(host, NIC, {**held.value, "all": "local"})
    assert lists(host, 60, 61, 62, 63) == ["0-3,8-11", "2", "0-1", "0-3,8-11"]
    assert KNOB.read(host, NIC) == Seen({"all": "local"})
    KNOB.write(host, NIC, held.value)
    assert tree(Path(host.root)) == before


def test_an_interrupt_that_went_to_another_device_is_not_given_back(make: Make) -> None:
    """Numbers change hands when rings change or a driver is loaded anew."""
    host = make(interrupts({60: "0-15", 61: "4"}))
    held = KNOB.read(host, NIC)
    assert isinstance(held, Seen)
    KNOB.write(host, NIC, {"all": "local"})
    (Path(host.root) / f"{PLACE[1:]}/msi_irqs/61").unlink()
    KNOB.write(host, NIC, held.value)
    assert lists(host, 60, 61) == ["0-15", "0-3,8-11"]
    after = KNOB.read(host, NIC)
    assert isinstance(after, Seen)
    assert not KNOB.restored(held.value, after.value)


@pytest.mark.parametrize("answer", ["EIO", "EPERM"])
def test_a_managed_interrupt_stays_and_the_others_are_moved(make: Make, answer: str) -> None:
    rules = BASE["/.tuner-host/kernel.yaml"].replace("rules:", f"rules:\n  {path(61)}: {{is: refuse, errno: {answer}}}")
    host = make(interrupts({60: "0-15", 61: "12-15", 62: "7"}), {"/.tuner-host/kernel.yaml": rules})
    KNOB.write(host, NIC, {"all": "local"})
    after = KNOB.read(host, NIC)
    assert isinstance(after, Seen)
    assert after.value == {"all": "remote", "irq61": "12-15"}
    said = KNOB.shortfall(NIC, {"all": "local"}, after.value)
    assert said == "not moved: irq61; the kernel places managed interrupts itself"


def test_managed_interrupts_without_a_write_bit_are_no_part_of_it(make: Make) -> None:
    host = make(interrupts({60: "2", 61: "readonly 12-15"}))
    assert KNOB.read(host, NIC) == Seen({"all": "local"})
    assert KNOB.files(host, NIC) == [path(60)]
    assert read_only(host, KNOB, NIC) == ""


def test_where_all_are_managed_the_kernel_is_named(make: Make) -> None:
    found = KNOB.read(make(interrupts({60: "readonly 0-15"})), NIC)
    assert isinstance(found, Absent)
    assert "the kernel places managed ones itself" in found.why


def test_another_refusal_gives_everything_back_and_names_the_interrupt(make: Make) -> None:
    """No vector is free on those CPUs: ENOSPC, Irqbalance/irqbalance#303."""
    rules = BASE["/.tuner-host/kernel.yaml"].replace("rules:", f"rules:\n  {path(62)}: {{is: refuse, errno: ENOSPC}}")
    host = make(interrupts({60: "0-15", 61: "5", 62: "7"}), {"/.tuner-host/kernel.yaml": rules})
    with pytest.raises(OSError, match=r"No space left on device \(interrupt 62 to 0-3,8-11\)"):
        KNOB.write(host, NIC, {"all": "local"})
    assert lists(host, 60, 61, 62) == ["0-15", "5", "7"]


def path(number: int) -> str:
    """The file of an interrupt."""
    return f"/proc/irq/{number}/smp_affinity_list"


# --- irqbalance ------------------------------------------------------------------------------------------------------


def guard(host: RecordedHost, first: Any = None) -> str:
    """Why a write must not be made."""
    return KNOB.guard(host, NIC, {"all": "local", "irq60-61": "0-15"}, first)


def test_without_irqbalance_nothing_holds_a_write(make: Make) -> None:
    assert guard(make(interrupts({60: "0-15", 61: "0-15"}))) == ""


@pytest.mark.parametrize(
    ("arguments", "alone"),
    [
        (None, False),
        ("/usr/sbin/irqbalance\0--foreground\0", False),
        ("/usr/sbin/irqbalance\0--banirq=60\0", False),
        ("/usr/sbin/irqbalance\0--banirq=60\0--banirq=61\0", True),
        ("/usr/sbin/irqbalance\0-i\00060\0-i61\0", True),
        ("/usr/sbin/irqbalance\0--banirq\00060\0--banirq\00061\0", True),
        ("/usr/sbin/irqbalance\0--banmod=mlx5_core\0", True),
        ("/usr/sbin/irqbalance\0-m\0mlx5_core\0", True),
        ("/usr/sbin/irqbalance\0--banmod=nvme\0", False),
    ],
)
def test_irqbalance_owns_them_unless_it_was_told_to_leave_them_alone(
    make: Make, arguments: str | None, alone: bool
) -> None:
    host = make(interrupts({60: "0-15", 61: "0-15"}), RUNNING)
    if arguments is not None:
        told = Path(host.root) / "proc/812/cmdline"
        told.parent.mkdir(parents=True, exist_ok=True)
        told.write_text(arguments)
    why = guard(host)
    assert (why == "") == alone
    assert alone or ("irqbalance runs" in why and "--banmod=mlx5_core" in why)


def test_every_irqbalance_must_have_been_told(make: Make) -> None:
    procs = {"/sys/fs/cgroup/system.slice/irqbalance.service/cgroup.procs": "812\n813"}
    host = make(interrupts({60: "0-15", 61: "0-15"}), RUNNING, procs, {"/proc/813/none": ""})
    for pid, told in (("812", "irqbalance\0--banmod=mlx5_core\0"), ("813", "irqbalance\0")):
        (Path(host.root) / f"proc/{pid}").mkdir(exist_ok=True)
        (Path(host.root) / f"proc/{pid}/cmdline").write_text(told)
    assert "irqbalance runs" in guard(host)


def test_giving_back_what_was_there_fights_nobody(make: Make) -> None:
    host = make(interrupts({60: "0-15", 61: "0-15"}), RUNNING)
    assert guard(host, Seen({"all": "local", "irq60-61": "0-15"})) == ""
    assert guard(host, Seen({"all": "local"})) != ""


PROFILE = 'irq: {"*": local}'
NODE_0 = ("0000:28:00.0", "0000:66:00.0")


@pytest.fixture
def server(copy_host: Callable[..., Path]) -> Path:
    """mi300x-cx7 on which nobody runs irqbalance."""
    root = copy_host("mi300x-cx7")
    shutil.rmtree(root / "sys/fs/cgroup/system.slice/irqbalance.service")
    (root / "run/systemd/units/invocation:irqbalance.service").unlink()
    return root


def test_held_while_irqbalance_runs(
    copy_host: Callable[..., Path], tuner: Callable[..., Result], tmp_path: Path
) -> None:
    root, profile = copy_host("mi300x-cx7"), write_profile(tmp_path / "p.yaml", PROFILE)
    before = (root / "proc/irq/124/smp_affinity_list").read_text()
    result = tuner("apply", "--root", root, "--profile", profile, "--json", "--allow", "all")
    assert result.document["outcomes"] == []
    assert (root / "proc/irq/124/smp_affinity_list").read_text() == before == "120\n"
    plan = tuner("plan", "--root", root, "--profile", profile, "--json")
    assert plan.code == 14
    held = [v for v in plan.document["verdicts"] if v["state"] == "held"]
    assert [v["target"] for v in held if v["target"] in NODE_0] == list(NODE_0)
    assert all("irqbalance runs and places interrupts" in v["state_why"] for v in held)
    assert {v["state"] for v in plan.document["verdicts"]} == {"ok", "held"}


def test_there_and_back(server: Path, tuner: Callable[..., Result], tmp_path: Path) -> None:
    profile, before = write_profile(tmp_path / "p.yaml", PROFILE), tree(server)
    done = tuner("apply", "--root", server, "--profile", profile, "--json")
    assert done.code == 0
    assert {o["result"] for o in done.document["outcomes"]} == {"done"}
    assert (server / "proc/irq/124/smp_affinity_list").read_text() == "0-95\n"
    assert (server / "proc/irq/126/smp_affinity_list").read_text() == "26\n"
    assert tuner("verify", "--root", server).code == 0
    assert tuner("rollback", "--root", server).code == 0
    assert tree(server) == before


@pytest.mark.parametrize("other", ["120", "5"])
def test_one_that_stays_is_reported_and_the_others_are_kept(
    server: Path, tuner: Callable[..., Result], tmp_path: Path, other: str
) -> None:
    """Also where it is the only one that would have to move: that is no reason to undo the run."""
    (server / "proc/irq/124/smp_affinity_list").write_text(f"{other}\n")
    rules = server / ".tuner-host/kernel.yaml"
    refused = "rules:\n  /proc/irq/125/smp_affinity_list: {is: refuse, errno: EIO}"
    rules.write_text(rules.read_text().replace("rules:", refused, 1))
    profile, before = write_profile(tmp_path / "p.yaml", 'irq: {"0000:28:00.0": local}'), tree(server)
    result = tuner("apply", "--root", server, "--profile", profile, "--json")
    (outcome,) = result.document["outcomes"]
    assert (result.code, outcome["result"]) == (10, "short")
    assert outcome["why"] == "not moved: irq125; the kernel places managed interrupts itself"
    assert (server / "proc/irq/124/smp_affinity_list").read_text() == ("5\n" if other == "5" else "0-95\n")
    assert tuner("rollback", "--root", server).code == 0
    assert tree(server) == before


def test_started_again_irqbalance_is_named_by_verify(
    server: Path, tuner: Callable[..., Result], tmp_path: Path
) -> None:
    """It moved one: no longer as applied, and the reason is there to be read."""
    profile = write_profile(tmp_path / "p.yaml", PROFILE)
    assert tuner("apply", "--root", server, "--profile", profile).code == 0
    procs = server / "sys/fs/cgroup/system.slice/irqbalance.service/cgroup.procs"
    procs.parent.mkdir()
    procs.write_text("800\n")
    (server / "run/systemd/units/invocation:irqbalance.service").symlink_to("0" * 32)
    (server / "proc/irq/124/smp_affinity_list").write_text("120\n")
    result = tuner("verify", "--root", server, "--json")
    (wrong,) = [v for v in result.document["verdicts"] if v["state"] != "ok"]
    assert (result.code, wrong["target"], wrong["state"]) == (10, "0000:28:00.0", "drift")
    assert "irqbalance runs" in wrong["state_why"]


def test_the_overlay_claims_the_interrupts_from_irqbalance(
    copy_host: Callable[..., Path], server: Path, tuner: Callable[..., Result]
) -> None:
    """While irqbalance runs it says what to stop and writes nothing; afterwards it places them."""
    words = ("--profile", "mi300x", "--with", "irq-local", "--json")
    plan = tuner("plan", "--root", copy_host("mi300x-cx7"), *words).document
    states = {v["state"] for v in plan["verdicts"] if v["knob"] == "irq"}
    (service,) = [v for v in plan["verdicts"] if v["target"] == "irqbalance.service"]
    assert (states, service["state"]) == ({"ok", "held"}, "drift")
    assert "systemctl disable --now irqbalance" in service["state_why"]
    assert tuner("apply", "--root", server, *words).code == 0
    verify = tuner("verify", "--root", server, "--json").document
    assert {v["state"] for v in verify["verdicts"] if v["knob"] == "irq"} == {"ok"}


def test_other_hardware_at_the_address_is_noticed(server: Path) -> None:
    host = RecordedHost(str(server))
    assert KNOB.identity(host, "0000:06:00.0") == "guid 0200:5eff:fe10:000a"
    assert KNOB.identity(host, "0000:00:05.1") == ""


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "target"), [("41:00.0", NIC), ("0000:41:00.0", NIC), ("0001:AB:00.1", "0001:ab:00.1"), ("*", "*")]
)
def test_the_name_of_a_target(written: str, target: str) -> None:
    assert KNOB.canonical(written) == target


@pytest.mark.parametrize("written", ["eth0", "mlx5_0", "41:00", ""])
def test_interfaces_are_no_targets(written: str) -> None:
    with pytest.raises(BadValue):
        KNOB.canonical(written)


@pytest.mark.parametrize("raw", ["remote", "0-3", "irqbalance", None, ["local"], {"all": "local"}])
def test_local_is_the_only_placement(raw: Any) -> None:
    assert KNOB.parse(NIC, "local") == {"all": "local"}
    with pytest.raises(BadValue):
        KNOB.parse(NIC, raw)
