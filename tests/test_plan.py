"""Settings judged: states, exit codes, patterns, the order of changes, and the names of plans and settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.errors import Exit
from tuner.expand import expand
from tuner.host import open_host
from tuner.ledger import Ledger
from tuner.model import DISRUPTIONS, Change, Setting, Want, settings_id
from tuner.plan import Allowed, make, order
from tuner.profile import load_profile

Tuner = Callable[..., Result]
VM = "proc/sys/vm"
KEPT = "/etc/sysctl.d/99-zz-tuner.conf"
"""The file that keeps sysctls over a reboot: every plan that has some has it as well."""


@pytest.fixture
def planned(root: Path, tuner: Tuner, tmp_path: Path) -> Callable[..., Result]:
    """planned(settings, *words) -> `tuner plan --json` of a profile with these settings."""

    def call(settings: str, *words: object) -> Result:
        return tuner(
            "plan", "--profile", write_profile(tmp_path / "p.yaml", settings), "--root", root, "--json", *words
        )

    return call


@pytest.fixture
def kept(planned: Callable[..., Result], root: Path) -> Callable[..., Result]:
    """As `planned`, once the file that keeps the sysctls is in place: all that is left is about what runs."""

    def call(settings: str, *words: object) -> Result:
        for change in planned(settings, *words).document["changes"]:
            if change["target"] == KEPT:
                (root / KEPT[1:]).write_text(change["after"]["text"])
        result = planned(settings, *words)
        assert KEPT not in changed(result)
        return result

    return call


def states(result: Result) -> dict[str, str]:
    """Target -> state, but for the file that keeps the sysctls."""
    return {v["target"]: v["state"] for v in result.document["verdicts"] if v["target"] != KEPT}


def wanted_values(result: Result) -> dict[str, Any]:
    """Sysctl -> value."""
    return {v["target"]: v["want"]["value"] for v in result.document["verdicts"] if v["knob"] == "sysctl"}


def changed(result: Result) -> list[str]:
    """The targets of the changes, in order."""
    return [c["target"] for c in result.document["changes"]]


# states and exit codes (the stock guest has swappiness 60 and rmem_max 212992)


@pytest.mark.parametrize(
    ("settings", "target", "state", "code"),
    [
        ("sysctl: {vm.swappiness: 60}", "vm.swappiness", "ok", Exit.OK),
        ("sysctl: {vm.swappiness: 0x3c}", "vm.swappiness", "ok", Exit.OK),
        ("sysctl: {vm.swappiness: 1}", "vm.swappiness", "drift", Exit.DIFFERS),
        ("sysctl: {vm.swappiness: 0}", "vm.swappiness", "drift", Exit.DIFFERS),
        ("sysctl: {vm.swappiness: {at_least: 60}}", "vm.swappiness", "ok", Exit.OK),
        ("sysctl: {vm.swappiness: {at_least: 10}}", "vm.swappiness", "raised", Exit.OK),
        ("sysctl: {vm.swappiness: {at_least: 61}}", "vm.swappiness", "drift", Exit.DIFFERS),
        ("sysctl: {vm.swappiness: {at_most: 60}}", "vm.swappiness", "ok", Exit.OK),
        ("sysctl: {vm.swappiness: {at_most: 10}}", "vm.swappiness", "drift", Exit.DIFFERS),
        ("sysctl: {vm.swappiness: {one_of: [10, 60]}}", "vm.swappiness", "ok", Exit.OK),
        ("sysctl: {vm.swappiness: {one_of: [10, 20]}}", "vm.swappiness", "drift", Exit.DIFFERS),
        ("sysctl: {net.rdma_ucm.max_backlog: 1024}", "net.rdma_ucm.max_backlog", "unsupported", Exit.OK),
        (
            "sysctl: {net.rdma_ucm.max_backlog: {value: 1024, required: true}}",
            "net.rdma_ucm.max_backlog",
            "unsupported",
            Exit.DIFFERS,
        ),
        ("file: {/opt/x: text}", "/opt/x", "unknown", Exit.UNKNOWN),
        ("file: {/etc/default/grub.d/50-x.cfg: text}", "/etc/default/grub.d/50-x.cfg", "held", Exit.HELD),
        ("file: {/etc/sysctl.d/50-none.conf: null}", "/etc/sysctl.d/50-none.conf", "ok", Exit.OK),
        ("sysctl: {kernel.ngroups_max: 1}", "kernel.ngroups_max", "unsupported", Exit.OK),
    ],
)
def test_a_state_and_what_it_costs(
    kept: Callable[..., Result], settings: str, target: str, state: str, code: Exit
) -> None:
    result = kept(settings)
    assert states(result) == {target: state}
    assert result.code == code


def test_a_setting_that_only_the_file_lacks_is_a_change(planned: Callable[..., Result]) -> None:
    """Right now, and gone with the next boot: the plan writes one file."""
    result = planned("sysctl: {vm.swappiness: 60}")
    assert (result.code, changed(result)) == (Exit.DIFFERS, [KEPT])
    assert states(result) == {"vm.swappiness": "ok"}


def test_a_device_that_no_longer_answers_is_missing(planned: Callable[..., Result]) -> None:
    """EIO is the device's fault, not ours: 11 and not 12. What could not be read is never written, nor kept."""
    result = planned("sysctl: {net.ipv6.conf.lo.stable_secret: x}")
    assert changed(result) == []
    assert states(result) == {"net.ipv6.conf.lo.stable_secret": "missing"}
    assert result.code == Exit.MISSING


def test_a_file_without_a_write_bit_is_read_only_here(planned: Callable[..., Result], root: Path) -> None:
    (root / VM / "swappiness").chmod(0o444)
    result = planned("sysctl: {vm.swappiness: 1}")
    assert states(result) == {"vm.swappiness": "unsupported"}
    assert "read-only here" in result.document["verdicts"][0]["state_why"]
    assert changed(result) == [], "no line for what the kernel would refuse at boot as well"
    assert planned("sysctl: {vm.swappiness: 60}").document["verdicts"][0]["state"] == "ok"


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("drift", "unknown", "held", "missing"), Exit.MISSING),
        (("drift", "unknown", "held"), Exit.DIFFERS),
        (("unknown", "held"), Exit.UNKNOWN),
        (("held",), Exit.HELD),
        ((), Exit.OK),
    ],
)
def test_the_worst_state_decides_the_exit_code(kept: Callable[..., Result], names: tuple[str, ...], code: Exit) -> None:
    """11 over 10 over 12 over 14 over 0. Besides the named ones, a sysctl, its file and another file are ok."""
    lines = {
        "drift": "vm.swappiness: 1",
        "missing": "net.ipv6.conf.lo.stable_secret: x",
        "unknown": "/opt/x: text",
        "held": "/etc/default/grub.d/50-x.cfg: text",
    }
    sysctl = ", ".join(["net.core.somaxconn: 4096", *(lines[n] for n in names if n in ("drift", "missing"))])
    file = ", ".join(["/etc/sysctl.d/50-none.conf: null", *(lines[n] for n in names if n in ("unknown", "held"))])
    result = kept(f"sysctl: {{{sysctl}}}\nfile: {{{file}}}")
    assert set(states(result).values()) == {"ok", *names}
    assert result.code == code
    assert result.document["counts"] == {"ok": 3, **dict.fromkeys(names, 1)}


def test_a_vector_of_the_wrong_length_is_drift(kept: Callable[..., Result], root: Path) -> None:
    """What the kernel shows has two numbers where three are wanted."""
    (root / "proc/sys/net/ipv4/tcp_rmem").write_text("4096\t131072\n")
    result = kept('sysctl: {net.ipv4.tcp_rmem: "4096 131072 6291456"}')
    assert states(result) == {"net.ipv4.tcp_rmem": "drift"}
    assert result.code == Exit.DIFFERS


def test_at_least_is_judged_number_by_number(planned: Callable[..., Result], root: Path) -> None:
    (root / "proc/sys/net/ipv4/tcp_rmem").write_text("8192\t131072\t6291456\n")
    result = planned('sysctl: {net.ipv4.tcp_rmem: {at_least: "4096 131072 16777216"}}')
    (change,) = (c for c in result.document["changes"] if c["knob"] == "sysctl")
    assert change["after"] == [8192, 131072, 16777216], "nothing is lowered"
    result = planned('sysctl: {net.ipv4.tcp_rmem: {at_least: "4096 131072 4194304"}}')
    assert states(result) == {"net.ipv4.tcp_rmem": "raised"}


def test_what_cannot_be_read_is_null_with_its_reason(planned: Callable[..., Result]) -> None:
    """`running: null` alone is the value null (no file)."""
    result = planned("file: {/opt/x: text, /etc/sysctl.d/50-none.conf: text}\nsysctl: {net.rdma_ucm.max_backlog: 1}")
    found: dict[str, Any] = {v["target"]: v for v in result.document["verdicts"]}
    assert found["/opt/x"]["running"] is None
    assert found["/opt/x"]["running_why"]
    assert "rdma_ucm" in found["net.rdma_ucm.max_backlog"]["running_why"]
    assert "running_why" not in found["/etc/sysctl.d/50-none.conf"]
    assert found["/etc/sysctl.d/50-none.conf"]["running"]["text"] is None


def test_next_boot_is_null_with_its_reason(planned: Callable[..., Result], kept: Callable[..., Result]) -> None:
    """No file of the stock guest sets it; ours does once it is there."""
    verdict = planned("sysctl: {vm.swappiness: 60}").document["verdicts"][0]
    assert (verdict["target"], verdict["next_boot"]) == ("vm.swappiness", None)
    assert verdict["next_boot_why"].startswith("lost: no file sets it")
    verdict = kept("sysctl: {vm.swappiness: 60}").document["verdicts"][0]
    assert (verdict["next_boot"], verdict["next_boot_why"], verdict["next_boot_by"]) == (60, "", f"{KEPT}:2")


# held


def test_a_held_change_is_planned_and_not_made(planned: Callable[..., Result], root: Path, tuner: Tuner) -> None:
    result = planned("hugepages: {node0/2MB: 16}", "--allow", "none")
    assert states(result) == {"node0/2MB": "held"}
    assert result.document["changes"][0]["held"]
    assert result.code == Exit.HELD
    profile = write_profile(root.parent / "p.yaml", "hugepages: {node0/2MB: 16}\nsysctl: {vm.swappiness: 1}")
    assert tuner("apply", "--profile", profile, "--root", root, "--allow", "none").code == Exit.OK
    assert (root / "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages").read_text() == "0\n"
    assert (root / VM / "swappiness").read_text() == "1\n"
    verified = tuner("verify", "--root", root, "--json")
    assert states(verified) == {"node0/2MB": "held", "vm.swappiness": "ok"}
    assert verified.code == Exit.HELD


# order


def test_changes_stand_in_the_order_of_writing(planned: Callable[..., Result]) -> None:
    """Mildest class, then the list of knobs (thp, sysctl, pairs, huge pages, files), then the profile's own order.

    The file that keeps sysctls comes last in its class.
    """
    settings = """
file:
  /etc/default/grub.d/50-x.cfg: boot
  /etc/sysctl.d/50-x.conf: text
hugepages: {node1/2MB: 4, node0/2MB: 4}
sysctl.pair: {vm.dirty: {value: {ratio: 5}}}
sysctl:
  vm.min_free_kbytes: 200000
  vm.swappiness: 1
  kernel.numa_balancing: 0
thp: {defrag: never, enabled: never}
"""
    assert changed(planned(settings, "--allow", "all")) == [
        "defrag", "enabled", "vm.swappiness", "kernel.numa_balancing", "vm.dirty", "/etc/sysctl.d/50-x.conf",
        KEPT, "vm.min_free_kbytes", "node1/2MB", "node0/2MB", "/etc/default/grub.d/50-x.cfg",
    ]  # fmt: skip


def test_classes_of_disruption_go_from_mild_to_harsh() -> None:
    want = Want("value", 1)
    places = [order(Change("sysctl", "x", 0, 1, want, name), 0) for name in DISRUPTIONS]
    assert DISRUPTIONS == ("none", "app", "memory", "clocks", "link", "gpu", "boot", "nv")
    assert places == sorted(places)


# names of settings and plans


def setting(**more: Any) -> Setting:
    """vm.swappiness = 1, with differences."""
    base: dict[str, Any] = {"knob": "sysctl", "target": "vm.swappiness", "written": "vm.swappiness"}
    base |= {"want": Want("value", 1), "origin": "a.yaml:3", "why": "", "source": ""}
    return Setting(**{**base, **more})


@pytest.mark.parametrize(
    "more", [{"why": "x"}, {"source": "x"}, {"origin": "b.yaml:9"}, {"layer": 5}, {"target": "vm.other"}]
)
def test_the_settings_id_does_not_depend_on(more: dict[str, Any]) -> None:
    assert settings_id([setting(**more)]) == settings_id([setting()])


@pytest.mark.parametrize(
    "more",
    [
        {"want": Want("value", 2)},
        {"want": Want("value", "1")},
        {"want": Want("at_least", 1)},
        {"want": Want("at_most", 1)},
        {"want": Want("one_of", (1,))},
        {"required": True},
        {"gate": "enforce"},
        {"written": "vm.*"},
        {"knob": "thp"},
    ],
)
def test_the_settings_id_changes_with(more: dict[str, Any]) -> None:
    assert settings_id([setting(**more)]) != settings_id([setting()])


def test_the_settings_id_does_not_depend_on_the_order_nor_on_expansion() -> None:
    one, two = setting(), setting(written="net.core.rmem_max", target="net.core.rmem_max")
    assert settings_id([one, two]) == settings_id([two, one])
    wide = [setting(written="net.*", target=f"net.{n}") for n in range(3)]
    assert settings_id(wide) == settings_id(wide[:1])
    assert len(settings_id([])) == 64
    assert settings_id([]) != settings_id([one])


def test_equal_profiles_in_other_words_have_one_settings_id(planned: Callable[..., Result]) -> None:
    one = planned("sysctl:\n  vm.swappiness: {value: 1, why: because}\n  net.core.rmem_max: 0x1000")
    two = planned("# a remark\nsysctl:\n  net/core/rmem_max: 4096\n\n  vm.swappiness: 1")
    assert one.document["settings_id"] == two.document["settings_id"]


def test_the_plan_id_names_the_changes_with_what_is_there(planned: Callable[..., Result], root: Path) -> None:
    first = planned("sysctl: {vm.swappiness: {value: 1, why: one}}").document["id"]
    also = "file: {/etc/sysctl.d/50-none.conf: null}"
    assert planned(f"sysctl: {{vm.swappiness: {{value: 1, why: two}}}}\n{also}").document["id"] == first
    assert planned("sysctl: {vm.swappiness: 2}").document["id"] != first
    (root / VM / "swappiness").write_text("50\n")
    assert planned("sysctl: {vm.swappiness: 1}").document["id"] != first


# patterns

RP = "net.ipv4.conf.{}.rp_filter"


def test_a_pattern_meets_every_target_and_a_name_beats_it(planned: Callable[..., Result]) -> None:
    result = planned("sysctl:\n  net.ipv4.conf.ens4.rp_filter: 1\n  net.ipv4.conf.*.rp_filter: 2")
    wanted = wanted_values(result)
    names = ("all", "default", "ens3", "ens5", "lo")
    assert wanted == {**{RP.format(name): 2 for name in names}, RP.format("ens4"): 1}


@pytest.mark.parametrize(
    ("parent", "child", "right"),
    [
        ("net.ipv4.conf.ens4.rp_filter: 1", "net.ipv4.conf.*.rp_filter: 2", 2),
        ("net.ipv4.conf.*.rp_filter: 2", "net.ipv4.conf.ens4.rp_filter: 1", 1),
        ("net.ipv4.conf.e*.rp_filter: 2", "net.ipv4.conf.ens[4-5].rp_filter: 0", 0),
    ],
)
def test_the_higher_layer_wins_whatever_is_a_pattern(
    root: Path, tuner: Tuner, tmp_path: Path, parent: str, child: str, right: int
) -> None:
    write_profile(tmp_path / "parent.yaml", f"sysctl:\n  {parent}")
    below = tmp_path / "child.yaml"
    below.write_text(
        f"name: child\nsummary: x\nextends: {tmp_path}/parent.yaml\nsettings:\n  sysctl:\n    {child}\n",
        encoding="utf-8",
    )
    result = tuner("plan", "--profile", below, "--root", root, "--json")
    wanted = wanted_values(result)
    assert wanted[RP.format("ens4")] == right


def test_two_patterns_of_one_layer_that_meet_are_an_error_naming_both_lines(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    text = "sysctl:\n  net.ipv4.conf.ens*.rp_filter: 2\n  net.ipv4.conf.*4.rp_filter: 1"
    profile = write_profile(tmp_path / "p.yaml", text)
    result = tuner("plan", "--profile", profile, "--root", root)
    assert result.code == Exit.BAD_INPUT
    assert f"{profile}:5" in result.err
    assert f"{profile}:6" in result.err
    assert "ens4" in result.err
    assert "hint:" in result.err


def test_two_patterns_that_do_not_meet_are_fine(planned: Callable[..., Result]) -> None:
    result = planned("sysctl:\n  net.ipv4.conf.ens*.rp_filter: 2\n  net.ipv4.conf.l*.rp_filter: 1")
    assert result.code == Exit.DIFFERS


def test_a_name_settles_what_two_patterns_dispute(planned: Callable[..., Result]) -> None:
    """The hint of the error: name the target in one of them."""
    result = planned(
        "sysctl:\n  net.ipv4.conf.ens*.rp_filter: 2\n  net.ipv4.conf.*4.rp_filter: 1\n  net.ipv4.conf.ens4.rp_filter: 0"
    )
    assert result.code == Exit.DIFFERS
    assert wanted_values(result) == {RP.format("ens3"): 2, RP.format("ens4"): 0, RP.format("ens5"): 2}


def test_a_pattern_that_meets_nothing_is_one_line(planned: Callable[..., Result]) -> None:
    result = planned("sysctl: {net.ipv4.conf.bond*.rp_filter: 2}")
    (verdict,) = result.document["verdicts"]
    assert (verdict["target"], verdict["state"]) == ("net.ipv4.conf.bond*.rp_filter", "unsupported")
    assert "no such target" in verdict["state_why"]
    assert result.code == Exit.OK
    assert planned("sysctl: {net.ipv4.conf.bond*.rp_filter: {value: 2, required: true}}").code == Exit.DIFFERS


def test_a_pattern_over_a_directory_that_nobody_recorded_is_unknown(planned: Callable[..., Result]) -> None:
    """/proc/sys/dev was not captured: whether keys match there cannot be told."""
    result = planned("sysctl: {dev.hpet.*: 1}")
    assert set(states(result).values()) == {"unknown"}
    assert changed(result) == [], "a pattern that meets nothing is kept by no file"
    assert "not recorded" in result.document["verdicts"][0]["state_why"]
    assert result.code == Exit.UNKNOWN


def test_what_is_applied_is_frozen_so_a_later_target_of_a_pattern_is_not_judged(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {net.ipv4.conf.ens*.rp_filter: 2}")
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.OK
    fresh = root / "proc/sys/net/ipv4/conf/ens9"
    fresh.mkdir()
    (fresh / "rp_filter").write_text("0\n")
    verified = tuner("verify", "--root", root, "--json")
    assert sorted(states(verified)) == [RP.format(f"ens{n}") for n in (3, 4, 5)]
    assert verified.code == Exit.OK
    afresh = tuner("verify", "--profile", profile, "--root", root, "--json")
    assert states(afresh)[RP.format("ens9")] == "drift"


def test_expansion_keeps_how_the_profile_names_it(root: Path, tmp_path: Path) -> None:
    host = open_host(str(root))
    profile = load_profile(host, str(write_profile(tmp_path / "p.yaml", "sysctl: {net.ipv4.conf.ens*.rp_filter: 2}")))
    expanded = expand(host, profile.settings)
    assert {s.written for s in expanded} == {"net.ipv4.conf.ens*.rp_filter"}
    assert settings_id(expanded) == settings_id(list(profile.settings))
    made = make(host, profile.name, profile.settings, Allowed(), Ledger())
    assert made.settings_id == settings_id(list(profile.settings))


# missing and unsupported


def test_a_target_that_goes_after_apply_is_missing_and_one_that_never_was_is_unsupported(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1, net.rdma_ucm.max_backlog: 1024}")
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.OK
    assert tuner("verify", "--root", root).code == Exit.OK
    (root / VM / "swappiness").unlink()
    for words in (("verify",), ("plan", "--profile", profile), ("verify", "--profile", profile)):
        result = tuner(*words, "--root", root, "--json")
        assert states(result) == {"vm.swappiness": "missing", "net.rdma_ucm.max_backlog": "unsupported"}, words
        assert result.code == Exit.MISSING


def test_a_key_that_was_never_there_before_apply_is_no_hardware_loss(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    (root / VM / "swappiness").unlink()
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    assert tuner("plan", "--profile", profile, "--root", root, "--json").code == Exit.OK


# apply, and the generation that verify judges


def generations(root: Path) -> list[str]:
    """Names of the journal's files."""
    folder = root / "var/lib/tuner/generations"
    return sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []


THP = "sys/kernel/mm/transparent_hugepage/enabled"
ONE, TWO = "thp: {enabled: never}", "thp: {enabled: {one_of: [never, madvise]}}"
"""What TWO wants is so once ONE is applied; no file keeps either."""


def test_verify_before_any_apply_is_bad_input(root: Path, tuner: Tuner) -> None:
    result = tuner("verify", "--root", root)
    assert result.code == Exit.BAD_INPUT
    assert "nothing applied yet" in result.err


def test_an_apply_of_what_is_already_so_is_recorded_when_the_settings_are_others(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    """Otherwise verify would judge yesterday's settings."""
    one = write_profile(tmp_path / "one.yaml", ONE)
    two = write_profile(tmp_path / "two.yaml", TWO)
    assert tuner("apply", "--profile", one, "--root", root, "--json").document["generation"] == 1
    result = tuner("apply", "--profile", two, "--root", root, "--json")
    assert (result.code, result.document["generation"], result.document["changed"]) == (Exit.OK, 2, 0)
    (root / THP).write_text("always [madvise] never\n")
    verified = tuner("verify", "--root", root, "--json")
    assert (verified.code, verified.document["generation"]) == (Exit.OK, 2)
    assert verified.document["settings_id"] == result.document["settings_id"]


def test_an_apply_of_the_same_settings_again_writes_nothing(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "one.yaml", "sysctl: {vm.swappiness: 1}")
    tuner("apply", "--profile", profile, "--root", root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file() and path.name != "lock"}
    result = tuner("apply", "--profile", profile, "--root", root, "--json")
    assert (result.code, result.document["generation"], result.document["outcomes"]) == (Exit.OK, None, [])
    after = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before


def test_a_generation_without_writes_is_rolled_back_to_the_settings_before(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    one = write_profile(tmp_path / "one.yaml", ONE)
    two = write_profile(tmp_path / "two.yaml", TWO)
    before = (root / THP).read_text()
    first = tuner("apply", "--profile", one, "--root", root, "--json").document["settings_id"]
    assert tuner("apply", "--profile", two, "--root", root, "--json").document["changed"] == 0
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert (root / THP).read_text() == "always madvise [never]\n"
    assert tuner("verify", "--root", root, "--json").document["settings_id"] == first
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert (root / THP).read_text() == before
    assert tuner("rollback", "--root", root).code == Exit.BAD_INPUT


def test_a_profile_that_changed_since_apply_is_said_and_changes_nothing(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    tuner("apply", "--profile", profile, "--root", root)
    assert "changed since apply" not in tuner("verify", "--root", root).out
    write_profile(profile, "sysctl: {vm.swappiness: 2}")
    result = tuner("verify", "--root", root)
    assert result.code == Exit.OK
    assert "profile changed since apply" in result.out.lower()
    afresh = tuner("verify", "--profile", profile, "--root", root, "--json")
    assert (afresh.code, states(afresh)) == (Exit.DIFFERS, {"vm.swappiness": "drift"})
    profile.unlink()
    assert tuner("verify", "--root", root).code == Exit.OK


def test_verify_of_a_profile_needs_no_apply_and_writes_nothing(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    before = tree(root)
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 60, net.core.rmem_max: 1048576}")
    result = tuner("verify", "--profile", profile, "--root", root, "--json")
    assert (result.code, result.document["state"]) == (Exit.DIFFERS, "drift")
    assert result.document["generation"] is None
    assert tree(root) == before
    assert generations(root) == []


def test_plan_writes_nothing(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    before = tree(root)
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}\nfile: {/etc/sysctl.d/50-x.conf: text}")
    assert tuner("plan", "--profile", profile, "--root", root).code == Exit.DIFFERS
    assert tree(root) == before
    assert not (root / "run/tuner").exists()
    assert generations(root) == []


def test_a_required_setting_without_target_is_no_success(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """apply does the rest, and ends with 10."""
    text = "sysctl: {vm.swappiness: 1, net.rdma_ucm.max_backlog: {value: 1024, required: true}}"
    profile = write_profile(tmp_path / "p.yaml", text)
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.DIFFERS
    assert (root / VM / "swappiness").read_text() == "1\n"
    verified = tuner("verify", "--root", root, "--json")
    assert verified.code == Exit.DIFFERS
    assert states(verified)["net.rdma_ucm.max_backlog"] == "unsupported"


def test_drift_names_what_runs_and_what_is_wanted(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1, net.core.somaxconn: 4096}")
    tuner("apply", "--profile", profile, "--root", root)
    (root / VM / "swappiness").write_text("33\n")
    result = tuner("verify", "--root", root)
    assert result.code == Exit.DIFFERS
    line = next(line for line in result.out.splitlines() if "vm.swappiness" in line)
    assert line.split()[:4] == ["drift", "sysctl", "vm.swappiness", "33"]
    assert "somaxconn" not in result.out
    assert result.out.splitlines()[0].startswith("RECORDED plain-vm")


# switching profiles


def test_what_the_next_profile_does_not_name_is_given_back(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    one = write_profile(tmp_path / "one.yaml", "sysctl: {vm.swappiness: 1, net.core.somaxconn: 8192}")
    two = write_profile(tmp_path / "two.yaml", "sysctl: {net.core.somaxconn: 16384}")
    tuner("apply", "--profile", one, "--root", root)
    plan = tuner("plan", "--profile", two, "--root", root, "--json")
    back = {c["target"]: c for c in plan.document["changes"] if c["returning"]}
    assert list(back) == ["vm.swappiness"]
    assert back["vm.swappiness"]["after"] == 60
    assert "no longer in the profile" in tuner("plan", "--profile", two, "--root", root).out
    kept = tuner("plan", "--profile", two, "--root", root, "--json", "--keep-unmentioned")
    assert changed(kept) == ["net.core.somaxconn", KEPT]
    assert (root / KEPT[1:]).read_text().splitlines()[1:] == ["net.core.somaxconn = 8192", "vm.swappiness = 1"]
    assert tuner("apply", "--profile", two, "--root", root).code == Exit.OK
    assert (root / KEPT[1:]).read_text().splitlines()[1:] == ["net.core.somaxconn = 16384"]
    assert (root / VM / "swappiness").read_text() == "60\n"
    assert (root / "proc/sys/net/core/somaxconn").read_text() == "16384\n"


def test_what_somebody_else_changed_since_is_left_when_profiles_are_switched(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    one = write_profile(tmp_path / "one.yaml", "sysctl: {vm.swappiness: 1, net.core.somaxconn: 8192}")
    two = write_profile(tmp_path / "two.yaml", "sysctl: {net.core.somaxconn: 8192}")
    tuner("apply", "--profile", one, "--root", root)
    (root / VM / "swappiness").write_text("33\n")
    plan = tuner("plan", "--profile", two, "--root", root, "--json")
    assert changed(plan) == [KEPT], "our own file loses the line"
    assert any("vm.swappiness" in line for line in plan.document["left"])
    tuner("apply", "--profile", two, "--root", root)
    assert (root / VM / "swappiness").read_text() == "33\n"


def test_the_document_of_an_error_is_json_too(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: abc}\nnothing: {x: 1}")
    result = tuner("plan", "--profile", profile, "--root", root, "--json")
    assert result.document["schema"] == "tuner.error/1"
    assert result.document["exit"] == result.code == Exit.BAD_INPUT
    assert [e["where"] for e in result.document["errors"]] == [f"{profile}:4", f"{profile}:5"]
    assert all(e["hint"] for e in result.document["errors"])
    assert json.dumps(result.document)


# what must not slip through


@pytest.mark.parametrize("pattern", ["vm.nr_hugepage?", "vm.nr_hugepages*", "vm.dirty_rati?"])
def test_a_pattern_never_reaches_what_is_another_knobs(planned: Callable[..., Result], pattern: str) -> None:
    """The name is refused under sysctl; a pattern over it must not pass the guards of the pool either."""
    result = planned(f'sysctl: {{"{pattern}": 16}}')
    assert states(result) == {pattern: "unsupported"}
    assert result.document["changes"] == []


@pytest.mark.parametrize("wanted", ["5", "{at_least: 5}", '"1 2"', '"1 2 3 4"'])
def test_a_vector_that_is_in_no_table_is_checked_against_its_length(
    planned: Callable[..., Result], root: Path, wanted: str
) -> None:
    (root / "proc/sys/net/core/site_vector").write_text("1\t2\t3\n")
    result = planned(f"sysctl: {{net.core.site_vector: {wanted}}}")
    assert result.code == Exit.BAD_INPUT
    assert result.document["errors"][0]["where"].endswith("p.yaml:4")


def test_a_bound_on_a_word_is_bad_input_before_anything_is_written(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """kernel.domainname reads (none): no number is at least 10 there."""
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {kernel.domainname: {at_least: 10}}")
    before = tree(root)
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.BAD_INPUT
    after = tree(root)
    assert {p for p, was in before.items() if after.get(p) != was} == set()


def test_a_bound_on_the_half_of_a_couple_that_is_not_in_force_is_not_met(planned: Callable[..., Result]) -> None:
    """dirty_bytes reads 0 because the ratio counts: 20 % of memory is not at most 1 MiB, so no bound is taken."""
    result = planned("sysctl.pair: {vm.dirty: {at_most: {bytes: 1048576}}}")
    assert result.code == Exit.BAD_INPUT
    assert "at_most says nothing here" in result.document["errors"][0]["what"]


def test_a_pool_set_per_node_is_given_back_before_it_is_set_in_total(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Two targets, one pool: undo could not tell whose pages are whose, so the switch asks for a rollback first."""
    before = tree(root)
    one = write_profile(tmp_path / "one.yaml", "hugepages: {node0/2MB: 5}")
    two = write_profile(tmp_path / "two.yaml", "hugepages: {total/2MB: 9}")
    assert tuner("apply", "--profile", one, "--root", root).code == Exit.OK
    refused = tuner("apply", "--profile", two, "--root", root)
    assert refused.code == Exit.BAD_INPUT
    assert "tuner rollback" in refused.err
    assert (root / "proc/sys/vm/nr_hugepages").read_text() == "5\n"
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert tuner("apply", "--profile", two, "--root", root).code == Exit.OK
    assert (root / "proc/sys/vm/nr_hugepages").read_text() == "9\n"
    assert tuner("rollback", "--root", root).code == Exit.OK
    after = tree(root)
    assert {path for path, was in before.items() if after.get(path) != was} == set()


def test_the_undo_of_a_text_gives_back_every_blank(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    former = '|/usr/bin/handler  %p "a  b" \n'
    (root / "proc/sys/kernel/core_pattern").write_text(former)
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {kernel.core_pattern: core}")
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.OK
    assert (root / "proc/sys/kernel/core_pattern").read_text() == "core\n"
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert (root / "proc/sys/kernel/core_pattern").read_text().rstrip("\n") == former.rstrip("\n")


def test_a_large_binary_file_can_be_replaced_and_given_back(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """A journal that grew must still be read: it is all there is for the undo."""
    place = root / "etc/sysctl.d/50-big.conf"
    place.write_bytes(b"\xff" * 1_000_000)
    profile = write_profile(tmp_path / "p.yaml", "file: {/etc/sysctl.d/50-big.conf: short}")
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.OK
    assert place.read_bytes() == b"short"
    assert tuner("status", "--root", root).code == Exit.OK
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert place.read_bytes() == b"\xff" * 1_000_000


def test_a_run_killed_after_its_write_stops_no_verb_that_only_looks(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """An intent without an outcome is on the disk, and nobody has taken the lock since."""
    one = write_profile(tmp_path / "one.yaml", "sysctl: {vm.swappiness: 1}")
    two = write_profile(tmp_path / "two.yaml", "sysctl: {net.core.somaxconn: 8192}")
    tuner("apply", "--profile", one, "--root", root)
    (journal,) = (root / "var/lib/tuner/generations").iterdir()
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[: 1 + next(n for n, x in enumerate(lines) if json.loads(x)["op"] == "intent")]))
    for words in (("plan", "--profile", two), ("plan", "--profile", one), ("verify",), ("status",), ("history", "1")):
        assert tuner(*words, "--root", root).code in (Exit.OK, Exit.DIFFERS), words
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert (root / VM / "swappiness").read_text() == "60\n"


def test_a_directory_of_ours_that_others_use_by_now_does_not_hold_up_rollback(
    root: Path, tuner: Tuner, tmp_path: Path
) -> None:
    """Our file goes, theirs stays with the directory, and the generation before can be reached."""
    profile = write_profile(tmp_path / "p.yaml", "file: {/etc/sysctl.d/ours/x.conf: text}")
    tuner("apply", "--profile", profile, "--root", root)
    (root / "etc/sysctl.d/ours/theirs").write_text("x")
    assert tuner("rollback", "--root", root).code in (Exit.OK, Exit.DIFFERS)
    assert [path.name for path in (root / "etc/sysctl.d/ours").iterdir()] == ["theirs"]
    assert tuner("rollback", "--root", root).code == Exit.BAD_INPUT, "nothing is live any more"


@pytest.mark.parametrize("settings", ["sysctl: {vm.swappiness: 60}", "sysctl: {vm.swappiness: 1}"])
def test_a_journal_that_cannot_be_made_ends_the_run_in_one_line(
    root: Path, tuner: Tuner, tmp_path: Path, settings: str
) -> None:
    (root / "var/lib/tuner").write_text("in the way")
    assert tuner("apply", "--profile", write_profile(tmp_path / "p.yaml", settings), "--root", root).code == Exit.UNDONE
    assert (root / VM / "swappiness").read_text() == "60\n"


def test_an_outcome_that_could_not_be_journalled_is_still_ours(
    root: Path, tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full for a moment: without its outcome a write is not kept, whatever --on-error says."""
    from tuner.host.tree import Tree

    real, calls = Tree.append, iter([True])

    def full_once(self: Tree, path: str, data: bytes) -> None:
        if next(calls, False):
            raise OSError(28, "No space left on device")
        real(self, path, data)

    monkeypatch.setattr(Tree, "append", full_once)
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1, net.core.somaxconn: 8192}")
    assert tuner("apply", "--profile", profile, "--root", root, "--on-error", "keep").code == Exit.UNDONE
    assert (root / VM / "swappiness").read_text() == "60\n"
    assert (root / "proc/sys/net/core/somaxconn").read_text() == "4096\n"
