"""There and back: plan, apply, nothing left to do, nothing written twice, rollback, byte for byte as before."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import Result, tree, write_profile
from tuner.cli import main
from tuner.host import Host, RecordedHost, open_host
from tuner.host.tree import Tree
from tuner.knobs import KNOBS

Tuner = Callable[..., Result]
MUTATING = ("write", "put", "append", "mkdir", "rmdir", "unlink", "truncate")
RMEM = "proc/sys/net/core/rmem_max"
THP = "sys/kernel/mm/transparent_hugepage/enabled"

EVERY_KNOB = """
sysctl:
  net.core.rmem_max: {at_least: 0x1000000}
  net.ipv4.tcp_rmem: {at_least: "4096 131072 16777216"}
  net.ipv4.tcp_congestion_control: {one_of: [bbr, reno]}
  net.ipv4.conf.*.rp_filter: 2
  kernel.core_pattern: core.%p
  kernel.panic: -1
  vm.lowmem_reserve_ratio: 128 128 32 0 0
  vm.min_free_kbytes: {at_least: 135168}
sysctl.pair:
  vm.dirty: {value: {bytes: 1073741824}}
  vm.dirty_background: {value: {ratio: 3}}
  vm.overcommit: {value: {bytes: 4194304}}
thp:
  enabled: never
  defrag: defer+madvise
  khugepaged/max_ptes_none: 0
sysfs:
  block/*/read_ahead_kb: {at_least: 4096}
  block/vda/scheduler: mq-deadline
  mm/ksm/run: 2
hugepages:
  node*/2MB: {at_least: 96}
file:
  /etc/modprobe.d/tuner-test/deep/one.conf: "options one a=1\\n"
  /etc/modprobe.d/tuner-test/two.conf: {value: {text: "options two b=2\\n", mode: "0600"}}
  /etc/sysctl.conf: null
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call at the door that changes something, as it is made; the lock's own file is no part of it."""
    made: list[str] = []

    def spy(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def called(self: Any, path: str, *args: Any, **more: Any) -> Any:
            made.append(f"{name} {path}")
            return real(self, path, *args, **more)

        monkeypatch.setattr(owner, name, called)

    for name in MUTATING:
        spy(Tree, name)
    spy(RecordedHost, "write")
    return made


@pytest.fixture
def profiles(tmp_path: Path) -> Callable[..., Path]:
    """profiles(NAME, SETTINGS) -> the file of a profile."""
    return lambda name, text: write_profile(tmp_path / f"{name}.yaml", text, name)


def all_bytes(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time and content of every file, tuner's own state with it, but for the lock."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink() and name != "lock":
                found[str(path)] = (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
    return found


def put(root: Path, path: str, text: str) -> None:
    """A change by hand: in the file, as `echo` on a recorded host has it."""
    (root / path).write_text(text, encoding="utf-8")


def get(root: Path, path: str) -> str:
    """The text of a file of the host."""
    return (root / path).read_text(encoding="utf-8")


def test_the_profile_of_this_test_uses_every_knob(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """A new knob needs its lines in EVERY_KNOB; and every line of it is a change on the plain host.

    Only irq has none: no CPU is nearer to a NIC of a virtual machine than another.
    """
    plan = tuner("plan", "--root", root, "--json", "--profile", profiles("every", EVERY_KNOB)).document
    host = open_host(str(root))
    writable = {knob.name for knob in KNOBS if not knob.read_only and knob.targets(host)} - {"irq"}
    assert {change["knob"] for change in plan["changes"]} == writable
    assert {v["state"] for v in plan["verdicts"]} == {"drift"}


@pytest.mark.parametrize("name", ["linux-gpu", "every"])
def test_round_trip(root: Path, tuner: Tuner, profiles: Callable[..., Path], calls: list[str], name: str) -> None:
    """plan -> apply -> no change -> nothing written -> rollback -> the tree of before."""
    profile = profiles("every", EVERY_KNOB) if name == "every" else name
    before = tree(root)
    plan = tuner("plan", "--root", root, "--json", "--profile", profile)
    assert (plan.code, calls) == (10, [])
    assert tree(root) == before

    apply = tuner("apply", "--root", root, "--json", "--profile", profile)
    assert apply.code == 0
    assert {o["result"] for o in apply.document["outcomes"]} == {"done"}
    wanted = [(c["knob"], c["target"], c["after"]) for c in plan.document["changes"]]
    assert [(o["knob"], o["target"]) for o in apply.document["outcomes"]] == [w[:2] for w in wanted]
    assert tree(root) != before

    again = tuner("plan", "--root", root, "--json", "--profile", profile)
    assert (again.code, again.document["changes"]) == (0, [])

    calls.clear()
    files = all_bytes(root)
    second = tuner("apply", "--root", root, "--json", "--profile", profile)
    assert (second.code, second.document["generation"], second.document["outcomes"]) == (0, None, [])
    assert calls == []
    assert all_bytes(root) == files

    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before
    assert tuner("rollback", "--root", root).code == 64


ONE = """
sysctl:
  net.core.rmem_max: 8388608
  vm.swappiness: 10
thp:
  enabled: madvise
file:
  /etc/modprobe.d/tuner-test/one.conf: "one\\n"
"""

TWO = """
sysctl:
  net.core.rmem_max: 33554432
  net.core.wmem_max: 33554432
sysctl.pair:
  vm.dirty: {value: {ratio: 5}}
file:
  /etc/modprobe.d/tuner-test/two.conf: "two\\n"
"""


def test_two_profiles_and_two_rollbacks(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """Each rollback gives back just what was there before its generation."""
    before = tree(root)
    assert tuner("apply", "--root", root, "--profile", profiles("one", ONE)).code == 0
    between = tree(root)
    assert tuner("apply", "--root", root, "--profile", profiles("two", TWO)).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == between
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_rollback_to_0_is_before_the_first(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """Straight there over two generations; afterwards nothing is applied."""
    before = tree(root)
    tuner("apply", "--root", root, "--profile", profiles("one", ONE))
    tuner("apply", "--root", root, "--profile", profiles("two", TWO))
    back = tuner("rollback", "--root", root, "--to", 0, "--json")
    assert (back.code, sorted(back.document["undone"])) == (0, [1, 2])
    assert tree(root) == before
    assert tuner("verify", "--root", root).code == 64


def test_switching_gives_back_what_is_no_longer_named(
    root: Path, tuner: Tuner, profiles: Callable[..., Path], calls: list[str]
) -> None:
    """To the first recorded `before`, not to what the generation between had; in place, by one write each."""
    tuner("apply", "--root", root, "--profile", profiles("one", ONE))
    tuner("apply", "--root", root, "--profile", profiles("more", ONE.replace("swappiness: 10", "swappiness: 1")))
    plan = tuner("plan", "--root", root, "--json", "--profile", profiles("two", TWO))
    back = {c["target"]: (c["before"], c["after"]) for c in plan.document["changes"] if c["returning"]}
    assert back["vm.swappiness"] == (1, 60)
    assert back["enabled"] == ("madvise", "always")
    assert set(back) == {"vm.swappiness", "enabled", "/etc/modprobe.d/tuner-test/one.conf"}
    assert "no longer in the profile" in tuner("plan", "--root", root, "--profile", profiles("two", TWO)).out

    calls.clear()
    assert tuner("apply", "--root", root, "--profile", profiles("two", TWO)).code == 0
    assert calls.count("write /proc/sys/vm/swappiness") == 1
    assert get(root, "proc/sys/vm/swappiness") == "60\n"
    assert get(root, THP) == "[always] madvise never\n"
    assert get(root, RMEM) == "33554432\n"
    assert not (root / "etc/modprobe.d/tuner-test/one.conf").exists()


def test_switching_leaves_what_somebody_else_changed(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """What is not ours any more is named and left."""
    tuner("apply", "--root", root, "--profile", profiles("one", ONE))
    put(root, "proc/sys/vm/swappiness", "33\n")
    plan = tuner("plan", "--root", root, "--json", "--profile", profiles("two", TWO)).document
    assert not [c for c in plan["changes"] if c["target"] == "vm.swappiness"]
    assert [line for line in plan["left"] if "vm.swappiness" in line and "not ours any more" in line]
    tuner("apply", "--root", root, "--profile", profiles("two", TWO))
    assert get(root, "proc/sys/vm/swappiness") == "33\n"


def test_keep_unmentioned(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """--keep-unmentioned leaves what the new profile does not name, and rollbacks still lead to the start."""
    before = tree(root)
    tuner("apply", "--root", root, "--profile", profiles("one", ONE))
    two = profiles("two", TWO)
    plan = tuner("plan", "--root", root, "--json", "--profile", two, "--keep-unmentioned")
    assert not [c for c in plan.document["changes"] if c["returning"]]
    assert tuner("apply", "--root", root, "--profile", two, "--keep-unmentioned").code == 0
    assert get(root, "proc/sys/vm/swappiness") == "10\n"
    assert tuner("rollback", "--root", root, "--to", 0).code == 0
    assert tree(root) == before


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_directories_go_with_the_last_file_in_them(
    root: Path, tuner: Tuner, profiles: Callable[..., Path], first: str, second: str
) -> None:
    """A directory that tuner made for one file and used for a second is gone when a profile names neither."""
    before = tree(root / "etc/modprobe.d")
    line = '  /etc/modprobe.d/tuner-test/{}.conf: "x\\n"\n'
    tuner("apply", "--root", root, "--profile", profiles("first", "file:\n" + line.format(first)))
    both = "file:\n" + line.format(first) + line.format(second)
    tuner("apply", "--root", root, "--profile", profiles("both", both))
    assert tuner("apply", "--root", root, "--profile", profiles("none", "sysctl:\n  vm.swappiness: 60")).code == 0
    assert tree(root / "etc/modprobe.d") == before


def test_drift_and_mend(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """verify names the drift, apply mends it; rollbacks in a row reach the first `before` by way of the drift."""
    before, profile = tree(root), profiles("one", ONE)
    tuner("apply", "--root", root, "--profile", profile)
    assert tuner("verify", "--root", root).code == 0
    put(root, RMEM, "212992\n")
    drifted = tree(root)
    verify = tuner("verify", "--root", root, "--json")
    assert (verify.code, verify.document["state"]) == (10, "drift")
    assert [v["target"] for v in verify.document["verdicts"] if v["state"] == "drift"] == ["net.core.rmem_max"]

    mend = tuner("apply", "--root", root, "--json", "--profile", profile)
    assert [(o["target"], o["before"], o["after"]) for o in mend.document["outcomes"]] == [
        ("net.core.rmem_max", 212992, 8388608)
    ]
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == drifted
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_not_ours_any_more(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """What somebody changed since is named and left, all else restored: exit 10."""
    before = tree(root)
    tuner("apply", "--root", root, "--profile", profiles("one", ONE))
    put(root, RMEM, "9999999\n")
    put(root, "etc/modprobe.d/tuner-test/one.conf", "theirs\n")
    back = tuner("rollback", "--root", root, "--json")
    left = {o["target"] for o in back.document["outcomes"] if o["result"] == "not ours any more"}
    assert (back.code, left) == (10, {"net.core.rmem_max", "/etc/modprobe.d/tuner-test/one.conf"})
    assert get(root, RMEM) == "9999999\n"
    assert get(root, "etc/modprobe.d/tuner-test/one.conf") == "theirs\n"
    put(root, RMEM, "212992\n")
    shutil.rmtree(root / "etc/modprobe.d/tuner-test")
    assert tree(root) == before


def test_force_restores_what_is_not_ours_any_more(root: Path, tuner: Tuner, profiles: Callable[..., Path]) -> None:
    """--force gives the first value back whoever changed it since."""
    before = tree(root)
    tuner("apply", "--root", root, "--profile", profiles("one", ONE))
    put(root, RMEM, "9999999\n")
    put(root, "etc/modprobe.d/tuner-test/one.conf", "theirs\n")
    assert tuner("rollback", "--root", root, "--force").code == 0
    assert tree(root) == before


@pytest.mark.parametrize(("least", "held"), [(20000, "90112\n"), (100000, "100000\n")])
def test_side_effects_go_back_too(
    copy_host: Callable[..., Path], tuner: Tuner, profiles: Callable[..., Path], least: int, held: str
) -> None:
    """THP raises vm.min_free_kbytes, the run may write it too: not stale by it, and rollback gives the first back."""
    root = copy_host("plain-vm", "thp-raises-reserve")
    put(root, "proc/sys/vm/min_free_kbytes", "11419\n")
    before = tree(root)
    wanted = f"thp:\n  enabled: never\nsysctl:\n  vm.min_free_kbytes: {{at_least: {least}}}"
    assert tuner("apply", "--root", root, "--profile", profiles("one", wanted)).code == 0
    assert get(root, "proc/sys/vm/min_free_kbytes") == held
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


@pytest.mark.parametrize("pages", [1, 500])
def test_compaction_leaves_nothing_behind(root: Path, tuner: Tuner, profiles: Callable[..., Path], pages: int) -> None:
    """More pages than there is room for: memory was compacted, and after rollback the tree is as before."""
    before = tree(root)
    tuner("apply", "--root", root, "--profile", profiles("one", f"hugepages:\n  node0/2MB: {pages}"))
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


# Random plans over random foreign states.

SYS, POOL = "/proc/sys", "hugepages/hugepages-2048kB/nr_hugepages"
NUMBERS = st.sampled_from([0, 1, 2, 64, 4096, 65536, 1048576, 16777216, 2**31 - 1])
BUFFERS = st.integers(4608, 2**31 - 1)
TRIPLES = st.tuples(BUFFERS, BUFFERS, BUFFERS).map(lambda t: " ".join(map(str, t)))
BOUNDS = st.sampled_from(["value", "at_least", "at_most"])
WORDS = st.just("value")

PLACES: dict[tuple[str, str], tuple[str, st.SearchStrategy[Any], st.SearchStrategy[str]]] = {
    ("sysctl", "net.core.rmem_max"): (f"{SYS}/net/core/rmem_max", BUFFERS, BOUNDS),
    ("sysctl", "net.core.somaxconn"): (f"{SYS}/net/core/somaxconn", NUMBERS, BOUNDS),
    ("sysctl", "net.core.rps_sock_flow_entries"): (
        f"{SYS}/net/core/rps_sock_flow_entries", st.integers(0, 100000), BOUNDS,
    ),
    ("sysctl", "net.ipv4.tcp_rmem"): (f"{SYS}/net/ipv4/tcp_rmem", TRIPLES, BOUNDS),
    ("sysctl", "net.ipv4.tcp_wmem"): (f"{SYS}/net/ipv4/tcp_wmem", TRIPLES, BOUNDS),
    ("sysctl", "net.core.default_qdisc"): (
        f"{SYS}/net/core/default_qdisc", st.sampled_from(["fq", "fq_codel", "pfifo_fast"]), WORDS,
    ),
    ("sysctl", "vm.swappiness"): (f"{SYS}/vm/swappiness", st.integers(0, 100), BOUNDS),
    ("sysctl", "vm.min_free_kbytes"): (f"{SYS}/vm/min_free_kbytes", st.integers(1024, 200000), BOUNDS),
    ("sysctl.pair", "vm.dirty"): (f"{SYS}/vm/dirty_bytes", st.integers(8192, 2**40), WORDS),
    ("sysctl.pair", "vm.dirty_background"): (f"{SYS}/vm/dirty_background_ratio", st.integers(0, 100), WORDS),
    ("thp", "enabled"): (
        "/sys/kernel/mm/transparent_hugepage/enabled", st.sampled_from(["always", "madvise", "never"]), WORDS,
    ),
    ("thp", "khugepaged/max_ptes_none"): (
        "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none", st.integers(0, 511), BOUNDS,
    ),
    ("hugepages", "node0/2MB"): (f"/sys/devices/system/node/node0/{POOL}", st.integers(0, 500), BOUNDS),
    ("hugepages", "node1/2MB"): (f"/sys/devices/system/node/node1/{POOL}", st.integers(0, 500), BOUNDS),
}  # fmt: skip
HALF = {"vm.dirty": "bytes", "vm.dirty_background": "ratio"}
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking: an example takes a third of a second, and a failure would outlast the time limit of a test."""
PATHS = [f"/etc/modprobe.d/{name}" for name in ("a.conf", "made/a.conf", "made/b.conf", "made/deep/c.conf")]
TEXTS = st.one_of(st.none(), st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=30))


@st.composite
def plans(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """A random profile: some places, each with a legal Want, in random order."""
    found: dict[str, dict[str, Any]] = {}
    for knob, target in draw(st.lists(st.sampled_from(sorted(PLACES)), unique=True, max_size=8)):
        _, values, kinds = PLACES[knob, target]
        value = draw(values)
        found.setdefault(knob, {})[target] = {draw(kinds): {HALF[target]: value} if target in HALF else value}
    for path in draw(st.lists(st.sampled_from(PATHS), unique=True, max_size=3)):
        found.setdefault("file", {})[path] = {"value": draw(TEXTS)}
    return found or {"sysctl": {"vm.swappiness": {"value": draw(st.integers(0, 100))}}}


STARTS = st.fixed_dictionaries({}, optional={at: values for at, (_, values, _) in PLACES.items()})
FILES = st.fixed_dictionaries({}, optional={path: st.binary(max_size=40) for path in PATHS})


def run(*words: object) -> tuple[int, str]:
    """Exit code and output of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([str(word) for word in words])
    assert "Traceback" not in out.getvalue()
    return code, out.getvalue()


def start(host: Host, values: dict[tuple[str, str], Any], files: dict[str, bytes]) -> None:
    """The foreign state to start from."""
    for at, value in values.items():
        host.write(PLACES[at][0], f"{value}\n")
    for path, data in files.items():
        place = Path(host.root + path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


@pytest.mark.parametrize("fault", ["", "thp-raises-reserve", "hugepages-fragmented"])
@settings(max_examples=14, deadline=None, phases=QUICK, suppress_health_check=list(HealthCheck))
@given(values=STARTS, files=FILES, one=plans(), two=plans())
def test_random_plans_keep_the_round_trip(
    masters: Callable[..., Path],
    fault: str,
    values: dict[tuple[str, str], Any],
    files: dict[str, bytes],
    one: dict[str, Any],
    two: dict[str, Any],
) -> None:
    """Whatever was there, whatever two profiles want: no change is left, and two rollbacks give it all back."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        root = Path(scratch, "host")
        shutil.copytree(masters("plain-vm", *filter(None, [fault])), root, symlinks=True)
        start(open_host(str(root)), values, files)
        trees = [tree(root)]
        for name, wanted in (("one", one), ("two", two)):
            text = json.dumps({"name": name, "summary": "Random", "settings": wanted})
            Path(scratch, f"{name}.yaml").write_text(text, encoding="utf-8")
            if apply_until_met(root, f"{scratch}/{name}.yaml"):
                trees.append(tree(root))
        for expected in reversed(trees[:-1]):
            code, out = run("rollback", "--root", root)
            assert code == 0, out
            assert tree(root) == expected
        assert run("rollback", "--root", root)[0] == 64


def apply_until_met(root: Path, profile: str) -> bool:
    """Applies; what still differs is short of pages or held by a guard.

    Returns whether there is a generation to roll back: none was made when nothing had to be written.
    """
    words = ("--root", root, "--profile", profile, "--json")
    code, out = run("apply", *words)
    document = json.loads(out)
    results = {o["knob"]: o["result"] for o in document["outcomes"] if o["result"] != "done"}
    assert (code, set(results.values())) in ((0, set()), (10, {"short"})), out
    assert set(results) <= {"hugepages"}
    plan = json.loads(run("plan", *words)[1])
    assert {c["knob"] for c in plan["changes"]} <= {"hugepages"}, plan["changes"]
    return document["generation"] is not None
