"""sysctl: names, forms and ranges of kernel parameters, and writes that the kernel takes by halves."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import Result, tree, write_profile
from tuner.errors import BadValue
from tuner.host import Host, open_host
from tuner.knobs.sysctl import STORE, Sysctl
from tuner.model import Absent, Seen, Value

Tuner = Callable[..., Result]
Verb = Callable[..., Result]
KNOB = Sysctl()
RMEM = "proc/sys/net/core/rmem_max"
TCP_RMEM = "proc/sys/net/ipv4/tcp_rmem"


@pytest.fixture
def verb(tuner: Tuner, tmp_path: Path, root: Path) -> Verb:
    """verb("plan", KEY, WANT) -> the result under a profile of one line."""

    def call(name: str, key: str, want: object) -> Result:
        profile = write_profile(tmp_path / "p.yaml", f"sysctl:\n  {key}: {want}")
        return tuner(name, "--root", root, "--json", "--profile", profile)

    return call


def put(root: Path, path: str, text: str) -> None:
    """What the kernel shows from now on."""
    (root / path).write_text(text)


# Names


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("net.core.rmem_max", "/proc/sys/net/core/rmem_max"),
        ("net/core/rmem_max", "/proc/sys/net/core/rmem_max"),
        ("net.ipv4.conf.renamed0/10.rp_filter", "/proc/sys/net/ipv4/conf/renamed0.10/rp_filter"),
        ("net/ipv4/conf/renamed0.10/rp_filter", "/proc/sys/net/ipv4/conf/renamed0.10/rp_filter"),
        ("net.ipv4.conf.renamed0.10.rp_filter", "/proc/sys/net/ipv4/conf/renamed0/10/rp_filter"),
    ],
)
def test_the_first_separator_decides(root: Path, written: str, path: str) -> None:
    """sysctl.d(5): a dot or a slash, whichever comes first, separates; the other is then part of a name."""
    assert KNOB.files(open_host(str(root)), KNOB.canonical(written)) == [path]


def test_both_spellings_are_one_target() -> None:
    """So that a profile cannot set one key twice without noticing."""
    assert KNOB.canonical("net/ipv4/conf/bond0.10/rp_filter") == KNOB.canonical("net.ipv4.conf.bond0/10.rp_filter")


@pytest.mark.parametrize("key", ["rp_filter", "arp_ignore", "arp_evict_nocarrier"])
def test_a_vlan_name_taken_apart_is_named(verb: Verb, key: str) -> None:
    """The third spelling means .../renamed0/10/..., which is not there: a probable VLAN mistake."""
    verdict = verb("plan", f"net.ipv4.conf.renamed0.10.{key}", 1).document["verdicts"][0]
    assert verdict["state"] == "unsupported"
    assert f"net.ipv4.conf.renamed0/10.{key}" in verdict["state_why"]


def test_a_vlan_interface_is_set_by_either_spelling(root: Path, verb: Verb) -> None:
    """The directory of a VLAN interface has a dot in its name."""
    folder = root / "proc/sys/net/ipv4/conf/ens3.10"
    folder.mkdir()
    (folder / "rp_filter").write_text("0\n")
    assert verb("apply", "net.ipv4.conf.ens3/10.rp_filter", 2).code == 0
    assert (folder / "rp_filter").read_text() == "2\n"
    assert verb("plan", "net/ipv4/conf/ens3.10/rp_filter", 2).document["changes"] == []
    matched = verb("plan", "net.ipv4.conf.*.rp_filter", 2).document["verdicts"]
    assert "net.ipv4.conf.ens3/10.rp_filter" in [v["target"] for v in matched]


@pytest.mark.parametrize(
    "name",
    [
        "../../kernel", "net.ipv4.conf.../../kernel.rp_filter", "net/ipv4/conf/../../kernel/panic",
        "net/ipv4/conf/eth0/../all/rp_filter", "net.ipv4.conf.eth0/../all.rp_filter", "net.ipv4.conf.//.rp_filter",
        "/proc/sys/net/core/rmem_max", "/etc/passwd", "net..core", "net//core", "net.core.", "-net.core.rmem_max",
        ".net.core", "net.core.rmem max", "net.core.rmem_max\n", "net.core.\0", "",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    """Nothing with '..', blanks, an empty part or a leading slash is a key."""
    with pytest.raises(BadValue) as error:
        KNOB.canonical(name)
    assert "is not a kernel parameter" in error.value.what


def test_a_refused_name_is_never_opened(
    root: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit 64 with the line; no file of the host's kernel is touched on the way."""
    opened: list[str] = []
    for name in ("read", "stat", "list", "write"):
        real = getattr(Host, name)

        def spy(self: Host, path: str, *args: Any, real: Any = real, **more: Any) -> Any:
            opened.append(path)
            return real(self, path, *args, **more)

        monkeypatch.setattr(Host, name, spy)
    result = verb("plan", "net/ipv4/conf/../../../kernel/panic", 1)
    assert result.code == 64
    assert result.document["errors"][0]["where"] == f"{tmp_path}/p.yaml:5"
    assert [path for path in opened if path.startswith(("/proc", "/sys"))] == []


@given(st.text(st.sampled_from("./ab_-*\0\n~"), max_size=16))
@settings(max_examples=300, deadline=None)
@example("a.b/../c")
@example("a/b..c/d")
@example("a.//.b")
def test_no_name_leads_out_of_proc_sys(name: str) -> None:
    """Either refused, or a plain path below /proc/sys."""
    try:
        target = KNOB.canonical(name)
    except BadValue:
        return
    (path,) = KNOB.files(Host("/nonexistent", "image", "", ""), target)
    assert posixpath.normpath(path) == path
    assert path.startswith("/proc/sys/")
    assert KNOB.canonical(target) == target


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("vm.dirty_bytes", ("sysctl.pair", "vm.dirty")),
        ("vm.dirty_ratio", ("sysctl.pair", "vm.dirty")),
        ("vm/dirty_background_bytes", ("sysctl.pair", "vm.dirty_background")),
        ("vm.dirty_background_ratio", ("sysctl.pair", "vm.dirty_background")),
        ("vm.overcommit_kbytes", ("sysctl.pair", "vm.overcommit")),
        ("vm.overcommit_ratio", ("sysctl.pair", "vm.overcommit")),
        ("vm.nr_hugepages", ("hugepages",)),
        ("vm.nr_hugepages_mempolicy", ("hugepages",)),
    ],
)
def test_keys_of_other_knobs_name_them(verb: Verb, key: str, names: tuple[str, ...]) -> None:
    """The hint says where the value belongs."""
    result = verb("plan", key, 1)
    assert result.code == 64
    hint = result.document["errors"][0]["hint"]
    assert all(name in hint for name in names)


@pytest.mark.parametrize("key", ["vm.compact_memory", "vm.drop_caches", "vm.stat_refresh", "net.ipv4.route.flush"])
def test_actions_are_no_settings(verb: Verb, key: str) -> None:
    """They hold no value: nothing to verify, nothing to undo."""
    result = verb("plan", key, 1)
    assert result.code == 64
    assert "is an action, not a setting" in result.document["errors"][0]["what"]


def test_a_pattern_takes_neither_halves_nor_actions(root: Path) -> None:
    """`vm.*` means keys of this knob only."""
    found = set(KNOB.targets(open_host(str(root)), "vm.*"))
    assert {"vm.swappiness", "vm.min_free_kbytes"} <= found
    assert not found & {"vm.dirty_bytes", "vm.dirty_ratio", "vm.overcommit_ratio", "vm.drop_caches", "vm.nr_hugepages"}


# Forms


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("net.core.rmem_max", "0x1000000", 16777216),
        ("net.core.rmem_max", " 16777216 ", 16777216),
        ("kernel.panic", "-1", -1),
        ("net.ipv4.tcp_rmem", "4096\t131072  16777216", (4096, 131072, 16777216)),
        ("net.ipv4.tcp_rmem", ["0x1000", "131072", "16777216"], (4096, 131072, 16777216)),
        ("net.ipv4.tcp_congestion_control", "bbr", "bbr"),
        ("kernel.printk_devkmsg", "on", "on"),
    ],
)
def test_forms(key: str, raw: Any, value: Value) -> None:
    """Hex, tabs and lists: what counts is the number."""
    assert KNOB.parse(key, raw) == value


@pytest.mark.parametrize(
    ("key", "raw", "what"),
    [
        ("net.core.rmem_max", "016777216", "leading zero"),
        ("net.ipv4.tcp_rmem", "4096 0131072 16777216", "leading zero"),
        ("net.core.rmem_max", "16M", "not a number"),
        ("net.core.rmem_max", "1e6", "not a number"),
        ("net.core.rmem_max", "", "not a number"),
        ("net.core.rmem_max", "2303", "out of range"),
        ("net.core.rmem_max", "2147483648", "out of range"),
        ("net.core.rmem_max", "-1", "out of range"),
        ("net.core.rmem_max", None, "null"),
        ("net.core.rmem_max", {"a": "1"}, "not a single value"),
        ("net.core.rmem_max", "1\n2", "one line"),
        ("net.ipv4.tcp_rmem", "4096 131072", "2 numbers where the key has 3"),
        ("net.ipv4.tcp_rmem", "4096 131072 16777216 1", "4 numbers where the key has 3"),
        ("net.ipv4.tcp_rmem", "4096,131072,16777216", "1 numbers where the key has 3"),
        ("net.ipv4.tcp_mtu_probing", "3", "out of range"),
        ("net.ipv4.conf.all.rp_filter", "7", "out of range"),
        ("net.ipv4.conf.all.arp_ignore", "9", "out of range"),
        ("kernel.printk_devkmsg", "yes", "not a choice"),
    ],
)
def test_refused_values(key: str, raw: Any, what: str) -> None:
    """Among them numbers that the kernel takes without a word, such as rp_filter 7 (ip-sysctl.rst: 0 to 2)."""
    with pytest.raises(BadValue) as error:
        KNOB.parse(key, raw)
    assert what in error.value.what


@pytest.mark.parametrize(
    ("path", "shows", "key", "want"),
    [
        ("proc/sys/kernel/sem", "1000\t32000\t32\t512\n", "kernel.sem", "1000 32000 32 512"),
        (TCP_RMEM, "4096\t131072\t6291456\n", "net.ipv4.tcp_rmem", "0x1000 0x20000 0x600000"),
        (RMEM, "16777216\n", "net.core.rmem_max", "0x1000000"),
        ("proc/sys/vm/lowmem_reserve_ratio", "256\t256\t32\t0\t0\n", "vm.lowmem_reserve_ratio", "256 256 0x20 0 0"),
        ("proc/sys/net/core/rps_sock_flow_entries", "32768\n", "net.core.rps_sock_flow_entries", "32767"),
    ],
)
def test_another_form_of_the_same_value_is_no_change(
    root: Path, verb: Verb, path: str, shows: str, key: str, want: str
) -> None:
    """Tabs or blanks, hex or decimal, and a number that the kernel rounds up to what it holds."""
    put(root, path, shows)
    first = verb("apply", key, f'"{want}"')
    assert [o["target"] for o in first.document["outcomes"]] == [STORE], "the file that keeps it, and nothing else"
    plan = verb("plan", key, f'"{want}"')
    assert (plan.code, plan.document["changes"]) == (0, [])


def test_text_is_kept_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks inside a line of text are part of it: what was read is what an undo writes."""
    written: list[str] = []
    put(root, "proc/sys/kernel/core_pattern", "|/usr/bin/dump  %p  %e\n")
    host = open_host(str(root))
    found = KNOB.read(host, "kernel.core_pattern")
    assert found == Seen("|/usr/bin/dump  %p  %e")
    put(root, "proc/sys/kernel/core_pattern", "core\n")
    monkeypatch.setattr(host, "write", lambda path, text: written.append(text))
    KNOB.write(host, "kernel.core_pattern", found.value)
    assert written == ["|/usr/bin/dump  %p  %e\n"]


# Keys that are not in the table


def test_an_unknown_key_takes_the_shape_it_reads_now(root: Path, verb: Verb) -> None:
    """A number where a number is, checked before anything is written."""
    assert verb("apply", "vm.page_lock_unfairness", "0x7").code == 0
    assert (root / "proc/sys/vm/page_lock_unfairness").read_text() == "7\n"
    bad = verb("apply", "vm.page_lock_unfairness", "many")
    assert (bad.code, bad.document["errors"][0]["what"]) == (
        64,
        "sysctl vm.page_lock_unfairness: 'many' is not a number",
    )
    octal = verb("apply", "vm.page_lock_unfairness", "010")
    assert (octal.code, "leading zero" in octal.document["errors"][0]["what"]) == (64, True)
    assert (root / "proc/sys/vm/page_lock_unfairness").read_text() == "7\n"


def test_a_key_that_nobody_knows_is_unsupported(verb: Verb) -> None:
    """Not an error: another kernel may have it."""
    plan = verb("plan", "vm.no_such_key", 1)
    assert (plan.code, plan.document["verdicts"][0]["state"]) == (0, "unsupported")


@pytest.mark.parametrize(
    ("key", "release", "place"),
    [
        ("kernel.sched_latency_ns", "5.13", "/sys/kernel/debug/sched/latency_ns"),
        ("kernel.sched_min_granularity_ns", "5.13", "/sys/kernel/debug/sched/min_granularity_ns"),
        ("kernel.sched_wakeup_granularity_ns", "5.13", "/sys/kernel/debug/sched/wakeup_granularity_ns"),
        ("kernel.sched_migration_cost_ns", "5.13", "/sys/kernel/debug/sched/migration_cost_ns"),
        ("vm.percpu_pagelist_fraction", "5.14", "vm.percpu_pagelist_high_fraction"),
        ("net.ipv4.tcp_tw_recycle", "4.12", ""),
    ],
)
def test_a_dropped_key_names_the_release(verb: Verb, key: str, release: str, place: str) -> None:
    """Commit 8a99b6833c88 moved the scheduler's keys to debugfs in 5.13; the plain host runs 6.1."""
    plan = verb("plan", key, 1)
    verdict = plan.document["verdicts"][0]
    assert (plan.code, verdict["state"]) == (0, "unsupported")
    assert release in verdict["state_why"]
    assert place in verdict["state_why"]
    assert verb("plan", key, "{value: 1, required: true}").code == 10


def test_a_newer_key_names_the_release(verb: Verb) -> None:
    """kernel.io_uring_disabled came with 6.6; a key that 6.1 has is not said to be too new for it."""
    why = verb("plan", "kernel.io_uring_disabled", 1).document["verdicts"][0]["state_why"]
    assert "6.6" in why
    why = verb("plan", "net.ipv4.conf.nosuch0.arp_evict_nocarrier", 1).document["verdicts"][0]["state_why"]
    assert "5.16" not in why


# Writes


def test_a_vector_that_fails_half_way_is_put_back(root: Path) -> None:
    """The kernel sets number by number: the first two are in before the third is refused."""
    host = open_host(str(root))
    before = tree(root)
    with pytest.raises(OSError, match="Invalid argument"):
        host.write("/proc/sys/net/ipv4/tcp_rmem", "8192 262144 1\n")
    assert (root / TCP_RMEM).read_text() == "8192\t262144\t6291456\n"
    put(root, TCP_RMEM, "4096\t131072\t6291456\n")
    with pytest.raises(OSError, match="Invalid argument"):
        KNOB.write(host, "net.ipv4.tcp_rmem", (8192, 262144, 1))
    assert tree(root) == before


def test_a_refused_vector_undoes_the_run(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Exit 20, with what the run wrote before undone and no number of the vector moved."""
    before = tree(root)
    text = 'sysctl:\n  vm.swappiness: 1\n  net.ipv4.tcp_rmem: "8192 262144 1"\n  net.core.rmem_max: 16777216'
    profile = write_profile(tmp_path / "p.yaml", text)
    result = tuner("apply", "--root", root, "--json", "--profile", profile)
    assert (result.code, result.document["undone"]) == (20, True)
    assert [(o["target"], o["result"]) for o in result.document["outcomes"]] == [
        ("vm.swappiness", "done"),
        ("net.ipv4.tcp_rmem", "refused"),
    ]
    assert tree(root) == before


def test_a_write_that_changes_nothing_is_refused(copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path) -> None:
    """The kernel said success; the read-back decides."""
    root = copy_host("plain-vm", "swappiness-ignored")
    before = tree(root)
    profile = write_profile(tmp_path / "p.yaml", "sysctl:\n  vm.swappiness: 1")
    assert tuner("apply", "--root", root, "--profile", profile).code == 20
    assert tree(root) == before


def test_a_file_without_a_write_bit_is_read_only_here(root: Path, verb: Verb) -> None:
    """As in a network namespace: decided at plan, nothing is tried, nor kept; a right value is ok all the same."""
    (root / RMEM).chmod(0o444)
    before = tree(root)
    plan = verb("plan", "net.core.rmem_max", 16777216)
    verdict = plan.document["verdicts"][0]
    assert (plan.code, verdict["state"], verdict["state_why"]) == (0, "unsupported", "read-only here")
    assert plan.document["changes"] == []
    assert verb("apply", "net.core.rmem_max", 16777216).document["outcomes"] == []
    assert verb("plan", "net.core.rmem_max", 212992).document["verdicts"][0]["state"] == "ok"
    now = tree(root)
    assert {path: now[path] for path in before if path.startswith("proc/")} == {
        path: item for path, item in before.items() if path.startswith("proc/")
    }


# Vectors and bounds


@pytest.mark.parametrize(
    ("path", "shows", "key", "want"),
    [
        (TCP_RMEM, "4096\t131072\n", "net.ipv4.tcp_rmem", '{at_least: "4096 131072 1000000"}'),
        (TCP_RMEM, "4096\t131072\t6291456\t1\n", "net.ipv4.tcp_rmem", '"4096 131072 6291456"'),
    ],
)
def test_a_vector_of_the_wrong_length_is_drift(
    root: Path, verb: Verb, path: str, shows: str, key: str, want: str
) -> None:
    """Whatever its numbers are."""
    put(root, path, shows)
    assert verb("plan", key, want).document["verdicts"][0]["state"] == "drift"


def test_a_want_of_the_wrong_length_is_an_error(verb: Verb) -> None:
    """lowmem_reserve_ratio reads five numbers; a want of two would leave three to chance."""
    for want in ('"256 256"', '{at_least: "1 1"}'):
        result = verb("plan", "vm.lowmem_reserve_ratio", want)
        assert result.code == 64
        assert "2 numbers where the key has 5" in result.document["errors"][0]["what"]


def test_at_least_is_judged_number_by_number_and_lowers_none(root: Path, tuner: Tuner, verb: Verb) -> None:
    """The first and the third are larger already and stay; only the second is raised."""
    put(root, TCP_RMEM, "8192\t87380\t33554432\n")
    assert verb("apply", "net.ipv4.tcp_rmem", '{at_least: "4096 131072 16777216"}').code == 0
    assert (root / TCP_RMEM).read_text() == "8192\t131072\t33554432\n"
    assert tuner("rollback", "--root", root).code == 0
    assert (root / TCP_RMEM).read_text() == "8192\t87380\t33554432\n"


@pytest.mark.parametrize(
    ("held", "want", "state"),
    [
        ("225280", "{at_least: 135168}", "raised"),
        ("135168", "{at_least: 135168}", "ok"),
        ("135167", "{at_least: 135168}", "drift"),
        ("225280", "{at_most: 135168}", "drift"),
        ("1", "{at_most: 135168}", "ok"),
        ("225280", "{one_of: [135168, 225280]}", "ok"),
        ("225280", "135168", "drift"),
    ],
)
def test_bounds(root: Path, verb: Verb, held: str, want: str, state: str) -> None:
    """khugepaged raises vm.min_free_kbytes: a minimum passes, and is not lowered again on every run."""
    put(root, "proc/sys/vm/min_free_kbytes", f"{held}\n")
    plan = verb("plan", "vm.min_free_kbytes", want)
    assert plan.document["verdicts"][0]["state"] == state
    assert len(plan.document["changes"]) == (state == "drift")


def test_what_moves_the_reserve_is_disruptive() -> None:
    """Memory is reclaimed from running processes at once; other keys are harmless."""
    assert KNOB.disruption("vm.min_free_kbytes") == "memory"
    assert KNOB.disruption("vm.compaction_proactiveness") == "memory"
    assert KNOB.disruption("net.core.rmem_max") == "none"


def test_a_key_that_is_gone_reads_absent(root: Path) -> None:
    """A hand removal in a copied host is the truth: the file is not there."""
    (root / RMEM).unlink()
    assert isinstance(KNOB.read(open_host(str(root)), "net.core.rmem_max"), Absent)
