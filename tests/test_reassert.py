"""apply --boot and --device: what was applied comes back after a reboot or with a device, and stays undoable."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import crash_child
from tests.conftest import HOSTS, Result, tree, unavailable, write_profile
from tests.reboot import kernel, reboot, renew
from tests.test_idle import node, processes
from tuner import devices, journal, losses, reassert
from tuner.cli import again
from tuner.errors import TunerError
from tuner.host import Host, open_host
from tuner.journal import Journal
from tuner.knobs import BY_NAME
from tuner.ledger import Applied, applied, fold
from tuner.lock import locked
from tuner.model import DISRUPTIONS
from tuner.reassert import allowed, frozen
from tuner.run import Stop
from tuner.sim import store

Tuner = Callable[..., Result]
Copy = Callable[..., Path]

SETTINGS = """
thp:
  enabled: madvise
sysctl:
  vm.swappiness: 1
  net.core.rmem_max: {at_least: 16777216}
  net.ipv4.tcp_rmem: {at_least: "4096 131072 16777216"}
  net.ipv4.conf.ens3.rp_filter: 2
  net.ipv4.neigh.ens3.gc_stale_time: 240
hugepages:
  node0/2MB: 256
file:
  /etc/modprobe.d/new.conf: "options a b=1\\n"
"""

SWAPPINESS = "proc/sys/vm/swappiness"
RMEM = "proc/sys/net/core/rmem_max"
POOL = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
OWN = "proc/sys/net/ipv4/conf/ens3"
NEIGHBOURS = "proc/sys/net/ipv4/neigh/ens3"
FIRST = "var/lib/tuner/generations/000001.jsonl"


def text(root: Path, name: str) -> str:
    """The content of a kernel file, blanks at its ends taken off."""
    return (root / name).read_text(encoding="ascii").strip()


def put(root: Path, name: str, value: object) -> None:
    """A kernel file changed by another hand."""
    (root / name).write_text(f"{value}\n", encoding="ascii")


def lines(root: Path, number: int = 1) -> list[dict[str, Any]]:
    """The journal of a generation."""
    place = root / f"var/lib/tuner/generations/{number:06d}.jsonl"
    return [json.loads(line) for line in place.read_text(encoding="ascii").splitlines()]


@pytest.fixture(scope="session")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """As everywhere, and with the neighbours of an interface, which plain-vm does not record."""
    made: dict[tuple[str, ...], Path] = {}

    def master(name: str = "plain-vm", *faults: str) -> Path:
        key = (name, *faults)
        if key not in made:
            path = tmp_path_factory.mktemp("master") / name
            store.copy(HOSTS / f"{name}.host", str(path), list(faults))
            if name == "plain-vm":
                (path / NEIGHBOURS).mkdir(parents=True)
                put(path, f"{NEIGHBOURS}/gc_stale_time", 60)
            made[key] = path
        return made[key]

    return master


@pytest.fixture
def node_(root: Path, tuner: Tuner, tmp_path: Path) -> Path:
    """A copy of plain-vm with the settings applied."""
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", SETTINGS)).code == 0
    return root


# --- boot ---------------------------------------------------------------------------------------------------------


def test_after_a_reboot_one_call_brings_all_back(node_: Path, masters: Copy, tuner: Tuner) -> None:
    wanted = kernel(node_)
    reboot(node_, masters())
    assert tuner("verify", "--root", node_).code == 10
    assert text(node_, SWAPPINESS) == "60"
    result = tuner("apply", "--root", node_, "--boot", "--json")
    assert result.code == 0
    assert {o["result"] for o in result.document["outcomes"]} == {"done"}
    assert result.document["generation"] == 1
    assert kernel(node_) == wanted
    assert tuner("verify", "--root", node_).code == 0
    assert sorted(p.name for p in (node_ / FIRST).parent.iterdir()) == ["000001.jsonl"]


def test_it_writes_only_what_differs_and_a_second_run_nothing(node_: Path, tuner: Tuner) -> None:
    put(node_, SWAPPINESS, 60)
    result = tuner("apply", "--root", node_, "--boot", "--json")
    assert [(o["target"], o["before"], o["after"]) for o in result.document["outcomes"]] == [("vm.swappiness", 60, 1)]
    before = (node_ / FIRST).read_bytes()
    assert tuner("apply", "--root", node_, "--boot", "--json").document["outcomes"] == []
    assert (node_ / FIRST).read_bytes() == before


def test_it_is_in_the_journal_of_the_live_generation_and_no_undo_data(node_: Path, masters: Copy, tuner: Tuner) -> None:
    before = Journal(open_host(str(node_))).generations[1]
    entries, state, count = before.entries(), before.state, len(before.lines)
    reboot(node_, masters("plain-vm", "hugepages-short"))
    assert tuner("apply", "--root", node_, "--boot").code == 10
    found = Journal(open_host(str(node_)))
    fresh = found.generations[1].lines[count:]
    assert [fresh[0]["op"], fresh[-1]["op"]] == ["reassert", "end"]
    assert {line["run"] for line in fresh} == {"boot"}
    assert (found.generations[1].entries(), found.generations[1].state) == (entries, state)
    assert fold(found).left["hugepages", "node0/2MB"] == 100
    assert fold(found).first["hugepages", "node0/2MB"].before == 0


def test_rollback_knows_what_the_boot_left(node_: Path, masters: Copy, tuner: Tuner) -> None:
    """The pool fell short at boot: its 100 pages are ours all the same, and go."""
    short = masters("plain-vm", "hugepages-short")
    reboot(node_, short)
    result = tuner("apply", "--root", node_, "--boot", "--json")
    assert {o["target"]: o["result"] for o in result.document["outcomes"]}["node0/2MB"] == "short"
    assert text(node_, POOL) == "100"
    assert text(node_, SWAPPINESS) == "1"
    result = tuner("rollback", "--root", node_, "--json")
    assert result.code == 0
    assert {o["result"] for o in result.document["outcomes"]} <= {"done", "unchanged"}
    assert kernel(node_) == kernel(short)
    assert tree(node_).keys() == tree(short).keys()


def test_what_somebody_changed_after_the_boot_is_not_ours(node_: Path, masters: Copy, tuner: Tuner) -> None:
    reboot(node_, masters())
    tuner("apply", "--root", node_, "--boot")
    put(node_, SWAPPINESS, 33)
    result = tuner("rollback", "--root", node_, "--json")
    assert result.code == 10
    states = {o["target"]: o["result"] for o in result.document["outcomes"]}
    assert states["vm.swappiness"] == "not ours any more"
    assert {state for target, state in states.items() if target != "vm.swappiness"} <= {"done", "unchanged"}


def test_a_side_effect_of_the_boot_is_given_back_too(
    copy_host: Copy, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    root = copy_host("plain-vm", "thp-raises-reserve")
    profile = write_profile(tmp_path / "p.yaml", SETTINGS)
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    reboot(root, masters("plain-vm", "thp-raises-reserve"))
    result = tuner("apply", "--root", root, "--boot", "--json")
    assert result.document["moved"] == ["sysctl vm.min_free_kbytes"]
    assert text(root, "proc/sys/vm/min_free_kbytes") == "90112"
    assert tuner("rollback", "--root", root).code == 0
    assert kernel(root) == kernel(masters("plain-vm", "thp-raises-reserve"))


def test_a_refused_value_is_reported_and_the_others_stay(node_: Path, masters: Copy, tuner: Tuner) -> None:
    reboot(node_, masters("plain-vm", "swappiness-refused"))
    result = tuner("apply", "--root", node_, "--boot", "--json")
    states = {o["target"]: o["result"] for o in result.document["outcomes"]}
    assert (result.code, states["vm.swappiness"], states["net.core.rmem_max"]) == (10, "refused", "done")
    assert text(node_, RMEM) == "16777216"
    assert lines(node_)[-1] == {"seq": lines(node_)[-1]["seq"], "op": "end", "run": "boot", "state": "re-asserted"}


def test_a_target_that_is_gone_is_missing_and_the_others_are_made_so(node_: Path, masters: Copy, tuner: Tuner) -> None:
    reboot(node_, masters())
    (node_ / OWN / "rp_filter").unlink()
    result = tuner("apply", "--root", node_, "--boot", "--json")
    assert result.code == 11
    assert [(v["target"], v["state"]) for v in result.document["rest"]] == [("net.ipv4.conf.ens3.rp_filter", "missing")]
    assert text(node_, SWAPPINESS) == "1"


def test_a_device_that_is_late_is_waited_for(node_: Path, masters: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that udev still loads brings its interface while the boot's run looks again."""
    reboot(node_, masters())
    late = node_ / OWN / "rp_filter"
    late.rename(late.with_name("aside"))
    monkeypatch.setattr(reassert, "LOOK_AGAIN", 0.05)
    host = open_host(str(node_))
    found = Journal(host)
    ledger = fold(found)
    session = reassert.Session(
        host, found, anew(node_, "auto"), ledger, "boot", "x", "now", frozen(host, anew(node_, "auto"))
    )
    looked = [0]

    def pause(_: float) -> None:
        looked[0] += 1
        if looked[0] == 3:
            late.with_name("aside").rename(late)

    monkeypatch.setattr("tuner.reassert.time.sleep", pause)
    result = reassert.reassert(session, Stop(), patience=30.0)
    assert (result.rest, looked[0], text(node_, f"{OWN}/rp_filter")) == ([], 3, "2")
    assert sum(line["op"] == "reassert" for line in lines(node_)) == 1


def test_a_value_that_this_kernel_does_not_take_spoils_no_other(
    copy_host: Copy, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    """A key that tuner does not know has another number of numbers after a new kernel came."""
    root, key = copy_host(), "proc/sys/vm/example_reserve"
    put(root, key, "1 2 3")
    settings = 'sysctl: {vm.example_reserve: "4 5 6", vm.swappiness: 1}'
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", settings)).code == 0
    reboot(root, masters())
    put(root, key, "1 2")
    result = tuner("apply", "--root", root, "--boot", "--json")
    assert (result.code, text(root, SWAPPINESS), text(root, key)) == (12, "1", "1 2")
    assert [(v["target"], v["state"]) for v in result.document["rest"]] == [("vm.example_reserve", "unknown")]


def test_a_fresh_node_does_not_fail_its_boot(root: Path, tuner: Tuner) -> None:
    before = tree(root)
    for words in (["--boot"], ["--device", "net:ens3"], ["--device", "queue"]):
        result = tuner("apply", "--root", root, *words)
        assert (result.code, len(result.out.splitlines())) == (0, 1)
    assert tuner("apply", "--root", root, "--boot", "--json").document["skipped"] == "nothing is applied"
    assert tree(root) == before


def test_after_a_rollback_to_nothing_there_is_nothing(node_: Path, masters: Copy, tuner: Tuner) -> None:
    tuner("rollback", "--root", node_)
    reboot(node_, masters())
    assert tuner("apply", "--root", node_, "--boot", "--json").document["skipped"] == "nothing is applied"
    assert kernel(node_) == kernel(masters())


def test_the_older_generation_after_a_rollback(node_: Path, masters: Copy, tuner: Tuner, tmp_path: Path) -> None:
    other = write_profile(tmp_path / "other.yaml", "sysctl:\n  vm.swappiness: 7")
    tuner("apply", "--root", node_, "--profile", other)
    tuner("rollback", "--root", node_)
    reboot(node_, masters())
    assert tuner("apply", "--root", node_, "--boot", "--json").document["generation"] == 1
    assert text(node_, SWAPPINESS) == "1"


def test_a_changed_profile_changes_nothing(node_: Path, masters: Copy, tuner: Tuner, tmp_path: Path) -> None:
    """Pinned is what an operator applied, not what the files of the profile have become."""
    wanted = kernel(node_)
    write_profile(tmp_path / "p.yaml", "sysctl:\n  vm.swappiness: 100\n  kernel.numa_balancing: 0")
    reboot(node_, masters())
    assert tuner("apply", "--root", node_, "--boot").code == 0
    assert kernel(node_) == wanted


def test_a_pattern_is_the_targets_that_it_had_at_apply(
    copy_host: Copy, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    root, late = copy_host(), "proc/sys/net/ipv4/conf/zlate/rp_filter"
    profile = write_profile(tmp_path / "p.yaml", "sysctl:\n  net.ipv4.conf.*.rp_filter: 2")
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    reboot(root, masters())
    shutil.copytree(root / OWN, (root / late).parent)
    put(root, late, 0)
    assert tuner("apply", "--root", root, "--boot").code == 0
    assert (text(root, f"{OWN}/rp_filter"), text(root, late)) == ("2", "0")


def test_a_file_that_would_follow_only_now_is_not_made(node_: Path, tuner: Tuner) -> None:
    """Files are settings of their own, frozen as the others; one that the generation does not have is not added."""
    files = {name for name, entry in tree(node_).items() if name.startswith("etc/") and entry[0] == "file"}
    put(node_, RMEM, 4096)
    (node_ / "etc/sysctl.d/zz-site.conf").write_text("net.core.rmem_max = 4096\n")
    tuner("apply", "--root", node_, "--device", "net:ens3")
    tuner("apply", "--root", node_, "--boot")
    now = {name for name, entry in tree(node_).items() if name.startswith("etc/") and entry[0] == "file"}
    assert now == {*files, "etc/sysctl.d/zz-site.conf"}


# --- an empty /var ------------------------------------------------------------------------------------------------


def test_an_image_booted_node_has_an_empty_var(node_: Path, masters: Copy, tuner: Tuner) -> None:
    wanted = kernel(node_)
    reboot(node_, masters())
    shutil.rmtree(node_ / "var/lib/tuner")
    cache = (node_ / "etc/tuner/applied/current.json").read_bytes()
    result = tuner("apply", "--root", node_, "--boot", "--json")
    assert (result.code, result.document["generation"]) == (0, 1)
    assert kernel(node_) == wanted
    assert not (node_ / "var/lib/tuner").exists()
    assert (node_ / "etc/tuner/applied/current.json").read_bytes() == cache
    assert tuner("verify", "--root", node_).code == 0


def test_a_text_that_the_cache_does_not_have_is_not_made_up(
    copy_host: Copy, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    root = copy_host()
    secret = 'file:\n  /etc/modprobe.d/secret.conf: {value: {text: "key\\n", mode: "0600"}}\nsysctl: {vm.swappiness: 1}'
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", secret)).code == 0
    reboot(root, masters())
    shutil.rmtree(root / "var/lib/tuner")
    (root / "etc/modprobe.d/secret.conf").unlink()
    result = tuner("apply", "--root", root, "--boot", "--json")
    assert result.code in (10, 11, 12)
    assert not (root / "etc/modprobe.d/secret.conf").exists()
    assert text(root, SWAPPINESS) == "1"


def test_a_journal_that_cannot_be_written_stops_nothing(
    node_: Path, masters: Copy, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    reboot(node_, masters())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tuner.host.tree.Tree.append", full)
    before = (node_ / FIRST).read_bytes()
    result = tuner("apply", "--root", node_, "--boot")
    assert result.code == 0
    assert "the journal cannot be written: No space left on device" in result.out
    assert (text(node_, SWAPPINESS), (node_ / FIRST).read_bytes()) == ("1", before)


@pytest.mark.parametrize(("mode", "code"), [(0o644, 0), (0o666, 64), (0o664, 64)])
def test_without_a_journal_a_live_host_believes_root_s_own_file_only(node_: Path, mode: int, code: int) -> None:
    """What anybody may write is no order to root."""
    if os.geteuid() != 0:
        unavailable("root")
    shutil.rmtree(node_ / "var/lib/tuner")
    (node_ / "etc/tuner/applied/current.json").chmod(mode)
    host = Host(str(node_), "live", "test", "6.1.0")
    if code:
        with pytest.raises(TunerError, match="written by others"):
            again._pinned(host, Journal(host))
    else:
        assert again._pinned(host, Journal(host))[0] is not None


# --- off, the lock, classes ---------------------------------------------------------------------------------------


def test_off_is_one_line_and_exit_0(node_: Path, masters: Copy, tuner: Tuner) -> None:
    reboot(node_, masters())
    tuner("off", "--root", node_, "--why", "maintenance")
    queue(node_, "net:ens3")
    before = kernel(node_)
    for words in (["--boot"], ["--device", "net:ens3"], ["--device", "queue"]):
        result = tuner("apply", "--root", node_, *words)
        assert (result.code, len(result.out.splitlines())) == (0, 1)
        assert "tuner is off: maintenance" in result.out
    assert kernel(node_) == before
    assert list((node_ / "run/tuner/queue").iterdir()) == [], "or the path unit starts the service for ever"
    tuner("on", "--root", node_)
    assert tuner("apply", "--root", node_, "--boot").code == 0


def test_the_boot_token_switches_off(node_: Path, masters: Copy, tuner: Tuner) -> None:
    reboot(node_, masters())
    line = node_ / "proc/cmdline"
    line.chmod(0o644)
    line.write_text(line.read_text().strip() + " tuner.off\n")
    assert "boot token" in tuner("apply", "--root", node_, "--boot").out
    assert text(node_, SWAPPINESS) == "60"


def test_it_waits_for_the_lock(node_: Path, masters: Copy, tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    reboot(node_, masters())
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(open_host(str(node_)), "a test"):
            held.set()
            free.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    monkeypatch.setattr(again, "WAIT", 0.3)
    result = tuner("apply", "--root", node_, "--boot")
    assert (result.code, "a test" in result.err, text(node_, SWAPPINESS)) == (30, True, "60")
    monkeypatch.setattr(again, "WAIT", 20.0)
    timer = threading.Timer(0.3, free.set)
    timer.start()
    assert tuner("apply", "--root", node_, "--boot").code == 0
    thread.join()


def test_what_was_held_at_apply_stays_held(root: Path, masters: Copy, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "p.yaml", SETTINGS)
    tuner("apply", "--root", root, "--profile", profile, "--allow", "none")
    reboot(root, masters())
    result = tuner("apply", "--root", root, "--boot", "--json")
    assert (result.code, text(root, POOL), text(root, SWAPPINESS)) == (0, "0", "1")
    assert [(c["target"], c["held"]) for c in result.document["held"]] == [("node0/2MB", "held at apply")]


def anew(root: Path, *allow: str) -> Applied:
    """The applied generation, as if applied with this --allow."""
    newest = fold(Journal(open_host(str(root)))).newest
    assert newest is not None
    return replace(applied(newest), allow=allow)


@pytest.mark.parametrize(
    ("allow", "idle", "busy"),
    [
        (("auto",), {"memory", "clocks"}, set()),
        (("link",), {"memory", "clocks"}, set()),
        (("all",), {"memory", "clocks"}, {"memory", "clocks"}),
        (("memory",), {"memory", "clocks"}, {"memory"}),
    ],
)
def test_classes_are_asked_anew_and_severe_ones_never(
    node_: Path, allow: tuple[str, ...], idle: set[str], busy: set[str]
) -> None:
    """On a node that is up for long; one that has just booted runs nothing yet."""
    host = open_host(str(node_))
    assert allowed(host, anew(node_, *allow), "boot").classes == {"none", "app"} | idle
    node(node_, "/dev/kfd")
    processes(node_, (4321, "python3", ["/dev/kfd"]))
    host = open_host(str(node_))
    assert allowed(host, anew(node_, *allow), "boot").classes == {"none", "app"} | busy
    assert allowed(host, anew(node_, *allow), "device").classes == {"none", "app", "clocks"} | busy
    put(node_, "proc/uptime", "31.7 400.2")
    assert allowed(host, anew(node_, *allow), "boot").classes == {"none", "app", "memory", "clocks"}
    assert allowed(host, anew(node_, "none"), "boot").classes == {"none"}


def test_what_was_allowed_is_kept_with_the_generation(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "p.yaml", SETTINGS)
    tuner("apply", "--root", root, "--profile", profile, "--allow", "memory,link")
    assert lines(root)[0]["allow"] == ["memory", "link"]
    assert json.loads((root / "etc/tuner/applied/current.json").read_text())["allow"] == ["memory", "link"]
    assert set(DISRUPTIONS) >= {"link", "gpu", "boot", "nv"}


# --- crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remainder", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_a_crash_at_any_point_loses_nothing(
    node_: Path, masters: Copy, tuner: Tuner, tmp_path: Path, remainder: int
) -> None:
    """Killed during the boot's run: the next boot settles, rollback gives everything back, nothing is half-known."""
    words = ["apply", "--root", str(node_), "--boot"]
    reboot(node_, masters())
    saved = tmp_path / "saved"
    shutil.copytree(node_, saved, symlinks=True)
    names = crash_child.points(words, tmp_path / "points")
    names = names[: next((n for n, name in enumerate(names) if "evidence" in name), len(names))]
    assert len(names) > 20
    for number in range(1 + remainder, len(names) + 1, 6):
        shutil.rmtree(node_)
        shutil.copytree(saved, node_, symlinks=True)
        assert crash_child.killed(words, number), names[number - 1]
        assert tuner(*words).code in (0, 10), names[number - 1]
        found = Journal(open_host(str(node_)))
        assert (found.generations[1].state, found.generations[1].open_run()) == ("applied", None)
        result = tuner("rollback", "--root", node_)
        assert result.code == 0, f"{names[number - 1]}\n{result.out}"
        assert kernel(node_) == kernel(masters()), names[number - 1]


def test_the_write_that_the_machine_went_down_with_is_left_alone(
    node_: Path, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    """Or a value that a kernel does not survive would take the node down at every boot."""
    words = ["apply", "--root", str(node_), "--boot"]
    reboot(node_, masters())
    saved = tmp_path / "saved"
    shutil.copytree(node_, saved, symlinks=True)
    names = crash_child.points(words, tmp_path / "points")
    shutil.rmtree(node_)
    shutil.copytree(saved, node_, symlinks=True)
    inside = names.index(f"before kernel write /{SWAPPINESS}") + 1
    for _ in range(2):
        reboot(node_, masters())
        crash_child.killed(words, inside)
        result = tuner(*words, "--json")
        assert result.code == 10
        assert [row["target"] for row in result.document["left"]] == ["vm.swappiness"]
        assert (text(node_, SWAPPINESS), text(node_, RMEM)) == ("60", "16777216")
        inside = len(names) * 2
    profile = tmp_path / "p.yaml"
    assert tuner("apply", "--root", node_, "--profile", profile).code == 0
    reboot(node_, masters())
    assert tuner(*words).code == 0
    assert text(node_, SWAPPINESS) == "1"


def test_an_apply_that_a_crash_ended_is_not_repeated(root: Path, masters: Copy, tuner: Tuner, tmp_path: Path) -> None:
    """What the machine may have gone down with waits for an operator."""
    profile = write_profile(tmp_path / "p.yaml", SETTINGS)
    words = ["apply", "--root", str(root), "--profile", str(profile)]
    shutil.copytree(root, tmp_path / "trial", symlinks=True)
    names = crash_child.points(["apply", "--root", str(tmp_path / "trial"), *words[3:]], tmp_path / "points")
    last = max(n for n, name in enumerate(names, 1) if "sysctl.d/99-zz-tuner.conf" in name)
    assert crash_child.killed(words, last)
    reboot(root, masters())
    result = tuner("apply", "--root", root, "--boot")
    assert result.code == 10
    assert "did not end well" in result.out
    assert text(root, SWAPPINESS) == "60"


def test_a_signal_stops_between_two_writes(node_: Path, masters: Copy, tmp_path: Path) -> None:
    reboot(node_, masters())
    child = crash_child.Paused(["apply", "--root", str(node_), "--boot"], 2, tmp_path / "log")
    os.kill(child.pid, signal.SIGTERM)
    assert child.end() == 10
    assert "stopped by SIGTERM" in child.log.read_text()
    assert lines(node_)[-1]["state"] == "stopped"
    assert sum(line["op"] == "outcome" and line["run"] == "boot" for line in lines(node_)) == 2


# --- the journal stays small --------------------------------------------------------------------------------------


def test_a_generation_that_is_reasserted_for_ever_stays_small(
    node_: Path, tuner: Tuner, monkeypatch: pytest.MonkeyPatch, masters: Copy
) -> None:
    monkeypatch.setattr(journal, "KEEP_AGAIN", 12)
    count = len(lines(node_))
    for value in range(60, 75):
        put(node_, SWAPPINESS, value)
        assert tuner("apply", "--root", node_, "--boot").code == 0
        assert len(lines(node_)) <= count + 12 + 4
    assert tuner("rollback", "--root", node_).code == 0
    assert kernel(node_) == kernel(masters())


def test_what_the_boot_left_survives_its_generation(
    node_: Path, masters: Copy, tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool of the oldest generation fell short at boot; its file is dropped, and the pages are ours still."""
    short = masters("plain-vm", "hugepages-short")
    reboot(node_, short)
    tuner("apply", "--root", node_, "--boot")
    monkeypatch.setattr(journal, "KEEP", 1)
    other = write_profile(tmp_path / "other.yaml", "sysctl:\n  vm.swappiness: 7")
    assert tuner("apply", "--root", node_, "--profile", other, "--keep-unmentioned").code == 0
    assert not (node_ / FIRST).exists()
    assert tuner("rollback", "--root", node_, "--to", 0).code == 0
    assert kernel(node_) == kernel(short)


# --- devices ------------------------------------------------------------------------------------------------------


def queue(root: Path, *names: str) -> None:
    """Devices as udev's rules name them."""
    folder = root / "run/tuner/queue"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_a_device_gets_what_is_its_own_and_nothing_else(node_: Path, masters: Copy, tuner: Tuner) -> None:
    renew(node_, masters(), OWN, NEIGHBOURS)
    put(node_, SWAPPINESS, 60)
    result = tuner("apply", "--root", node_, "--device", "net:ens3", "--json")
    assert result.code == 0
    assert sorted(o["target"] for o in result.document["outcomes"]) == [
        "net.ipv4.conf.ens3.rp_filter",
        "net.ipv4.neigh.ens3.gc_stale_time",
    ]
    assert text(node_, SWAPPINESS) == "60"
    assert {line["run"] for line in lines(node_)[-2:]} == {"device"}
    assert tuner("apply", "--root", node_, "--device", "net:lo", "pci:0000:ff:00.0").code == 0


def test_an_interface_with_a_dot_is_told_from_its_base(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    for name in ("bond0", "bond0.10"):
        shutil.copytree(root / OWN, root / f"proc/sys/net/ipv4/conf/{name}")
    settings = "sysctl:\n  net.ipv4.conf.bond0/10.rp_filter: 2\n  net.ipv4.conf.bond0.rp_filter: 2"
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", settings)).code == 0
    for name in ("bond0", "bond0.10"):
        put(root, f"proc/sys/net/ipv4/conf/{name}/rp_filter", 0)
    tuner("apply", "--root", root, "--device", "net:bond0.10")
    assert text(root, "proc/sys/net/ipv4/conf/bond0/rp_filter") == "0"
    assert text(root, "proc/sys/net/ipv4/conf/bond0.10/rp_filter") == "2"


def test_clocks_and_interrupts_of_a_function_come_back(
    copy_host: Copy, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    root, master = copy_host("mi300x-cx7"), masters("mi300x-cx7")
    gpus = BY_NAME["amdgpu.clock"].targets(open_host(str(root)))
    settings = 'amdgpu.clock:\n  "*": {value: {level: perf_determinism, max: 1900}}'
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", settings)).code == 0
    one, other = gpus[:2]
    level = (
        os.path.relpath((root / f"sys/bus/pci/devices/{one}").resolve(), root) + "/power_dpm_force_performance_level"
    )
    elsewhere = os.path.relpath((root / f"sys/bus/pci/devices/{other}").resolve(), root)
    assert text(root, level) == "perf_determinism"
    renew(root, master, os.path.dirname(level), elsewhere)
    shutil.rmtree(root / ".tuner-host/state", ignore_errors=True)
    assert text(root, level) == "auto"
    result = tuner("apply", "--root", root, "--device", f"pci:{one}", "--json")
    assert (result.code, [o["target"] for o in result.document["outcomes"]]) == (0, [one])
    assert text(root, level) == "perf_determinism"
    assert text(root, f"{elsewhere}/power_dpm_force_performance_level") == "auto"


def test_other_hardware_in_the_same_place_gets_nothing(copy_host: Copy, tuner: Tuner, tmp_path: Path) -> None:
    root = copy_host("mi300x-cx7")
    settings = 'amdgpu.clock:\n  "*": {value: {level: perf_determinism, max: 1900}}'
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", settings)).code == 0
    one = BY_NAME["amdgpu.clock"].targets(open_host(str(root)))[0]
    folder = (root / f"sys/bus/pci/devices/{one}").resolve()
    for name, value in (
        ("unique_id", "feedfacefeedface"),
        ("serial_number", "other"),
        ("power_dpm_force_performance_level", "auto"),
    ):
        (folder / name).chmod(0o644)
        (folder / name).write_text(f"{value}\n")
    open_host(str(root)).write(f"/sys/bus/pci/devices/{one}/power_dpm_force_performance_level", "auto\n")
    result = tuner("apply", "--root", root, "--device", f"pci:{one}", "--json")
    assert (result.code, result.document["outcomes"]) == (11, []), result.document["rest"][0]["state_why"]
    assert "other hardware" in result.document["rest"][0]["state_why"]


@pytest.mark.parametrize("word", ["net:enp102s0np0", "pci:0000:66:00.0", "infiniband:mlx5_5"])
def test_a_card_is_known_by_each_of_its_names(masters: Copy, word: str) -> None:
    """Of the recorded node: enp102s0np0 and its RDMA device are of the function 0000:66:00.0."""
    host = open_host(str(masters("mi300x-cx7")))
    (rdma,) = host.list("/sys/bus/pci/devices/0000:66:00.0/infiniband")
    word = f"infiniband:{rdma}" if word.startswith("infiniband") else word
    found = devices.places(host, [word])
    assert found == devices.Places(frozenset({"enp102s0np0"}), frozenset({"0000:66:00.0"}))


def test_interrupts_come_back_with_their_interface(
    copy_host: Copy, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    root, master = copy_host("mi300x-cx7"), masters("mi300x-cx7")
    (root / "run/systemd/units/invocation:irqbalance.service").unlink()
    shutil.rmtree(root / "sys/fs/cgroup/system.slice/irqbalance.service")
    profile = write_profile(tmp_path / "p.yaml", 'irq:\n  "*": local')
    tuner("apply", "--root", root, "--profile", profile)
    done = {line["target"] for line in lines(root) if line["op"] == "outcome"}
    assert "0000:66:00.0" in done
    wanted = kernel(root)
    renew(root, master, "proc/irq")
    result = tuner("apply", "--root", root, "--device", "net:enp102s0np0", "--json")
    assert [o["target"] for o in result.document["outcomes"]] == ["0000:66:00.0"]
    for target in sorted(done):
        tuner("apply", "--root", root, "--device", f"pci:{target}")
    assert kernel(root) == wanted


@pytest.mark.parametrize(
    "words",
    [
        ["--device", "ens3"],
        ["--device", "net:"],
        ["--device", "net:a/b"],
        ["--device", "pci:05:00.0"],
        ["--device", "pci:0000:05:00.8"],
        ["--device", "queue", "net:ens3", "x"],
        ["--boot", "--device", "net:ens3"],
        ["--boot", "--allow", "all"],
        ["--boot", "--profile", "linux-gpu"],
        ["--boot", "--set", "sysctl:vm.swappiness=1"],
        ["--boot", "--expect", "b1631aa9"],
        ["--boot", "--keep-unmentioned"],
        ["--boot", "--on-error", "keep"],
        ["plan.json", "--boot"],
    ],
)
def test_what_does_not_go_together_is_bad_input(node_: Path, tuner: Tuner, words: list[str]) -> None:
    before = kernel(node_)
    assert tuner("apply", "--root", node_, *words).code == 64
    assert kernel(node_) == before


def test_an_image_runs_nothing(tmp_path: Path, tuner: Tuner) -> None:
    (tmp_path / "image/etc").mkdir(parents=True)
    assert tuner("apply", "--root", tmp_path / "image", "--boot").code == 64


# --- the queue ----------------------------------------------------------------------------------------------------


def test_a_burst_of_devices_is_one_run(node_: Path, masters: Copy, tuner: Tuner) -> None:
    renew(node_, masters(), OWN, NEIGHBOURS)
    queue(node_, "net:ens3", *(f"net:eth{n}" for n in range(200)), "pci:0000:00:03.0", "junk", "net:")
    result = tuner("apply", "--root", node_, "--device", "queue", "--json")
    assert (result.code, len(result.document["outcomes"])) == (0, 2)
    assert list((node_ / "run/tuner/queue").iterdir()) == []
    assert sum(line["op"] == "reassert" for line in lines(node_)) == 1


def test_the_queue_is_given_time_to_fill_and_no_more_than_that(node_: Path) -> None:
    """Each pause brings another device: the burst is served in time all the same."""
    host, waited = open_host(str(node_)), [0.0]
    queue(node_, "net:eth0")

    def pause(seconds: float) -> None:
        waited.append(seconds)
        queue(node_, f"net:eth{len(waited)}")

    devices.settled(host, pause)
    assert sum(waited) <= devices.LONGEST + devices.QUIET
    assert len(devices.take(host)) == len(waited)
    devices.settled(host, pause)
    assert devices.take(host) == []


def test_a_device_that_comes_while_it_is_served_is_served_again(
    node_: Path, masters: Copy, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew(node_, masters(), OWN)
    queue(node_, "net:ens3")
    real, count = reassert.reassert, [0]

    def during(*given: Any) -> Any:
        found = real(*given)
        count[0] += 1
        if count[0] == 1:
            renew(node_, masters(), OWN)
            queue(node_, "net:ens3")
        return found

    monkeypatch.setattr(reassert, "reassert", during)
    assert tuner("apply", "--root", node_, "--device", "queue").code == 0
    assert (count[0], text(node_, f"{OWN}/rp_filter")) == (2, "2")


# --- the loop guard -----------------------------------------------------------------------------------------------


def test_a_value_that_is_lost_three_times_is_left_alone(
    node_: Path, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{OWN}/rp_filter"
    now = [1000.0]
    monkeypatch.setattr(losses, "clock", lambda: now[0])
    for _ in range(3):
        put(node_, key, 0)
        assert tuner("apply", "--root", node_, "--device", "net:ens3").code == 0
        assert text(node_, key) == "2"
        now[0] += 60
    put(node_, key, 0)
    put(node_, f"{NEIGHBOURS}/gc_stale_time", 60)
    result = tuner("apply", "--root", node_, "--device", "net:ens3", "--json")
    assert result.code == 10
    assert [row["target"] for row in result.document["left"]] == ["net.ipv4.conf.ens3.rp_filter"]
    assert (text(node_, key), text(node_, f"{NEIGHBOURS}/gc_stale_time")) == ("0", "240")
    said = losses.said(open_host(str(node_)))
    assert said == ["sysctl net.ipv4.conf.ens3.rp_filter: lost 3 times in 10 minutes, left alone"]
    now[0] = 1000.0 + losses.WINDOW
    assert tuner("apply", "--root", node_, "--device", "net:ens3").code == 0
    assert text(node_, key) == "2"


def test_a_boot_does_not_count(node_: Path, tuner: Tuner) -> None:
    for _ in range(5):
        put(node_, f"{OWN}/rp_filter", 0)
        assert tuner("apply", "--root", node_, "--boot").code == 0
    assert losses.said(open_host(str(node_))) == []


def test_runs_at_the_same_time_lose_no_count(node_: Path, tmp_path: Path) -> None:
    """Each waits for the lock, and finds what the one before it counted."""
    put(node_, f"{OWN}/rp_filter", 0)
    words = ["apply", "--root", str(node_), "--device", "net:ens3"]
    children = [crash_child.fork(lambda: crash_child.command(words), tmp_path / f"log{n}") for n in range(6)]
    assert {crash_child.ended(child) for child in children} == {0}
    host = open_host(str(node_))
    assert len(losses.counts(host, losses.clock())["sysctl", "net.ipv4.conf.ens3.rp_filter"]) == 1
    assert sum(line["op"] == "outcome" and line["run"] == "device" for line in lines(node_)) == 1


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(0, 300)), max_size=60))
def test_the_count_is_bounded_and_right(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, float]]
) -> None:
    root = tmp_path_factory.mktemp("node")
    (root / "etc").mkdir()
    host, now = open_host(str(root)), 0.0
    known: dict[tuple[str, str], list[float]] = {}
    for number, pause in events:
        now += pause
        at = ("sysctl", f"net.ipv4.conf.eth{number}.rp_filter")
        losses.note(host, [at], now)
        known.setdefault(at, []).append(now)
        recent = {place: [t for t in times if now - t < losses.WINDOW] for place, times in known.items()}
        assert losses.given_up(host, now) == {place for place, times in recent.items() if len(times) >= losses.TIMES}


def test_more_values_than_are_counted_push_out_the_oldest(root: Path) -> None:
    host = open_host(str(root))
    places = [("sysctl", f"net.ipv4.conf.eth{n}.rp_filter") for n in range(losses.MOST + 50)]
    for _ in range(5):
        losses.note(host, places, 1.0)
    assert len(losses.counts(host, 1.0)) == losses.MOST
    assert (root / "run/tuner/losses.json").stat().st_size < 100 * losses.MOST


@pytest.mark.parametrize("junk", ["", "{", "[1]", '[{"knob": 1}]', '[{"knob":"a","target":"b","times":"x"}]', "null"])
def test_a_count_that_is_no_count_is_none(root: Path, junk: str) -> None:
    (root / "run/tuner").mkdir(parents=True, exist_ok=True)
    (root / "run/tuner/losses.json").write_text(junk)
    host = open_host(str(root))
    assert losses.given_up(host) == frozenset()
    losses.note(host, [("sysctl", "vm.swappiness")])


def test_frozen_settings_keep_their_names_and_lose_their_patterns(node_: Path) -> None:
    found = frozen(open_host(str(node_)), anew(node_, "auto"))
    assert found
    assert all(s.written == s.target for s in found)
