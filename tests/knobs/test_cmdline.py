"""The boot line as the kernel reads it: whole tokens, the last one, lists, quotes, what has no effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import Result, tree, write_profile
from tuner.boot.tokens import kernel_part
from tuner.errors import BadValue, Refused
from tuner.host import Host, open_host
from tuner.knobs.cmdline import Cmdline
from tuner.model import Absent, Seen, Unreadable, Want, WantKind, met
from tuner.sim import store

KNOB = Cmdline()
BLANK = st.text(" \t", min_size=1, max_size=3)
NAME = st.from_regex(r"[a-z][a-z0-9_.]{0,5}", fullmatch=True)
PLAIN = st.from_regex(r"[a-z0-9,=:.-]{0,6}", fullmatch=True)
SPACED = st.from_regex(r"[a-z0-9, =-]{0,8}", fullmatch=True)


def manifest(*entries: str) -> str:
    """A recorded host of these entries."""
    about = ("file 0644 /.tuner-host/host.yaml", "|name: boot", "|kernel: 6.8.0-60-generic")
    return "\n".join(["tuner-host 1", *about, *entries, ""])


@pytest.fixture
def booted(tmp_path: Path) -> Callable[[str], Host]:
    """booted(line) -> a recorded host that was booted with this line."""

    def make(line: str) -> Host:
        return recorded(tmp_path, "file 0444 /proc/cmdline", f"|{line}")

    return make


def recorded(tmp_path: Path, *entries: str) -> Host:
    """A copied host of these entries."""
    path = tmp_path / "boot.host"
    path.write_text(manifest(*entries), encoding="utf-8")
    root = tmp_path / f"root-{len(list(tmp_path.iterdir()))}"
    store.copy(path, str(root), [])
    return open_host(str(root))


def state(host: Host, target: str, raw: str, kind: WantKind = "value") -> str:
    """How the line stands to what a profile wants, by the steps that a plan takes."""
    name = KNOB.canonical(target)
    found = KNOB.read(host, name)
    assert isinstance(found, Seen)
    return met(Want(kind, KNOB.normalise(host, name, KNOB.parse(name, raw))), found.value, KNOB.key)


def advice(host: Host, target: str, raw: str) -> str:
    """What the operator is told about a token that differs."""
    name = KNOB.canonical(target)
    return KNOB.advice(host, name, KNOB.normalise(host, name, KNOB.parse(name, raw)))


# --- reading


@pytest.mark.parametrize(
    ("line", "target", "value"),
    [
        ("ro quiet iommu=pt", "iommu", "pt"),
        ("ro quiet", "iommu", "absent"),
        ("ro nosmt quiet", "nosmt", "present"),
        ("nosmt=force", "nosmt", "force"),
        ("root=", "root", ""),
        ("root=UUID=1-2 ro", "root", "UUID=1-2"),
        ("  iommu=pt\t ro ", "iommu", "pt"),
        ("nmi_watchdog=0", "nmi_watchdog", "0"),
        ("BOOT_IMAGE=/vmlinuz iommu=PT", "iommu", "PT"),
    ],
)
def test_the_value_of_a_token(booted: Callable[[str], Host], line: str, target: str, value: str) -> None:
    assert KNOB.read(booted(line), target) == Seen(value)


@pytest.mark.parametrize("line", ["foo_iommu=pt", "iommu_foo=pt", "xiommu=pt", "iommu.pt", "pt=iommu", "amd_iommu=pt"])
def test_only_the_whole_name_counts(booted: Callable[[str], Host], line: str) -> None:
    assert KNOB.read(booted(line), "iommu") == Seen("absent")


@pytest.mark.parametrize(
    ("line", "target", "value"),
    [
        ("iommu.passthrough=0 ro iommu.passthrough=1", "iommu.passthrough", "1"),
        ("iommu.passthrough=1 ro iommu.passthrough=0", "iommu.passthrough", "0"),
        ("nosmt nosmt=force", "nosmt", "force"),
        ("nosmt=force nosmt", "nosmt", "present"),
        ("transparent_hugepage=always transparent_hugepage=madvise", "transparent_hugepage", "madvise"),
    ],
)
def test_the_last_token_wins(booted: Callable[[str], Host], line: str, target: str, value: str) -> None:
    assert KNOB.read(booted(line), target) == Seen(value)


@pytest.mark.parametrize("line", ["init-on-alloc=0", "init_on_alloc=0", "init-on_alloc=0"])
@pytest.mark.parametrize("target", ["init_on_alloc", "init-on-alloc"])
def test_dash_and_underscore_are_one_in_names(booted: Callable[[str], Host], line: str, target: str) -> None:
    """kernel/params.c, parameq."""
    assert state(booted(line), target, "0") == "ok"


def test_dash_and_underscore_differ_in_values(booted: Callable[[str], Host]) -> None:
    assert KNOB.read(booted("root=a-b"), "root") == Seen("a-b")
    assert state(booted("root=a-b"), "root", "a_b") == "drift"


@pytest.mark.parametrize(
    ("line", "target", "value"),
    [
        ('dyndbg="file a.c +p" iommu=pt', "dyndbg", "file a.c +p"),
        ('dyndbg="file iommu=off +p" iommu=pt', "iommu", "pt"),
        ('"dyndbg=file a.c +p" iommu=pt', "dyndbg", "file a.c +p"),
        ('"a b" iommu=pt', "a b", "present"),
        ('foo=a"b c"d iommu=pt', "foo", 'a"b c"d'),
        ('foo="" iommu=pt', "foo", ""),
        ('foo="open iommu=pt', "foo", "open iommu=pt"),
        ('foo="open iommu=pt', "iommu", "absent"),
    ],
)
def test_quotes_keep_blanks_together(booted: Callable[[str], Host], line: str, target: str, value: str) -> None:
    """lib/cmdline.c, next_arg: the outer quotes go, inner ones stay, one that is left open runs to the end."""
    assert KNOB.read(booted(line), target) == Seen(value)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("ro -- iommu=pt", "absent"),
        ("iommu=pt -- iommu=soft", "pt"),
        ("ro --=x iommu=pt", "pt"),
        ("ro --verbose iommu=pt", "pt"),
    ],
)
def test_after_two_dashes_come_arguments_of_init(booted: Callable[[str], Host], line: str, value: str) -> None:
    """kernel/params.c, parse_args: only a bare -- ends the kernel's own part."""
    assert KNOB.read(booted(line), "iommu") == Seen(value)


@pytest.mark.parametrize("word", ["absent", "present"])
def test_our_own_words_on_the_line_are_no_verdict(booted: Callable[[str], Host], word: str) -> None:
    """nosmt=absent is neither a flag nor none."""
    assert state(booted(f"nosmt={word}"), "nosmt", word) == "drift"


def test_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    assert KNOB.read(
        recorded(tmp_path, "absent /proc/cmdline", "file 0444 /proc/version", "|Linux"), "iommu"
    ) == Absent("not on this host")
    assert KNOB.read(recorded(tmp_path, "errno EIO /proc/cmdline"), "iommu") == Unreadable(
        "Input/output error", "device"
    )
    unknown = KNOB.read(recorded(tmp_path, "file 0444 /proc/version", "|Linux"), "iommu")
    assert unknown == Unreadable("not recorded /proc/cmdline")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A line from a boot loader need not be UTF-8; tokens beside it are read."""
    host = recorded(tmp_path, "base64 0444 /proc/cmdline", "|Zm9vPf8gaW9tbXU9cHQK")
    assert KNOB.read(host, "iommu") == Seen("pt")
    assert KNOB.advice(host, "foo", "bar").isprintable()


def test_targets_are_the_parameters_of_the_line(booted: Callable[[str], Host]) -> None:
    host = booted("ro pci=noaer init-on-alloc=0 pci=nomsi -- single")
    assert KNOB.targets(host) == ["ro", "pci", "init_on_alloc"]


@pytest.mark.parametrize(
    ("line", "ours", "others"),
    [
        ("ro -- single iommu=pt", [("ro", None)], [("single", None), ("iommu", "pt")]),
        ("ro --", [("ro", None)], []),
        ("=x =a=b", [("=x", None), ("=a", "b")], []),
        ("a==b", [("a", "=b")], []),
        ("", [], []),
    ],
)
def test_the_parts_of_a_line(
    line: str, ours: list[tuple[str, str | None]], others: list[tuple[str, str | None]]
) -> None:
    """A '=' that begins a token belongs to its name (next_arg counts it for none)."""
    assert kernel_part(line) == (ours, others)


TOKEN = st.tuples(NAME, st.none() | PLAIN | SPACED, st.booleans())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(BLANK, TOKEN), max_size=6))
@example([(" ", ("a", "b c", True)), (" ", ("a", None, False))])
def test_what_is_put_on_a_line_is_found_there(parts: list[tuple[str, tuple[str, str | None, bool]]]) -> None:
    """Tokens in any order, values with blanks in either way of quoting."""
    line = ""
    for blank, (name, value, outside) in parts:
        spaced = value is not None and " " in value
        token = name if value is None else f"{name}={value}"
        line += blank + (f'"{token}"' if spaced and outside else f'{name}="{value}"' if spaced else token)
    assert kernel_part(line + "\n") == ([(name, value) for _, (name, value, _) in parts], [])


@settings(max_examples=150, deadline=None)
@given(st.text('ab=-_" \t\n,.', max_size=30))
def test_any_line_can_be_split(line: str) -> None:
    """Whatever stands there, nothing is lost but quotes, blanks and the dashes."""
    ours, others = kernel_part(line)
    found = "".join(name + (value or "") for name, value in (*ours, *others))
    letters = [c for c in line if c in "ab"]
    assert [c for c in found if c in "ab"] == letters


# --- verdicts


@pytest.mark.parametrize(
    ("line", "target", "raw", "verdict"),
    [
        ("iommu=pt", "iommu", "pt", "ok"),
        ("iommu=soft", "iommu", "pt", "drift"),
        ("ro", "iommu", "pt", "drift"),
        ("ro", "iommu", "absent", "ok"),
        ("iommu=pt", "iommu", "absent", "drift"),
        ("nosmt", "nosmt", "present", "ok"),
        ("ro", "nosmt", "present", "drift"),
        ("nosmt", "nosmt", "absent", "drift"),
        ("nosmt=force", "nosmt", "present", "drift"),
        ("pci", "pci", "present", "ok"),
        ("root=", "root", "", "ok"),
        ("ro", "root", "", "drift"),
    ],
)
def test_a_token_as_wanted(booted: Callable[[str], Host], line: str, target: str, raw: str, verdict: str) -> None:
    assert state(booted(line), target, raw) == verdict


@pytest.mark.parametrize(
    ("line", "target", "raw", "verdict"),
    [
        ("pci=noaer,realloc=off", "pci", "realloc=off", "ok"),
        ("pci=realloc=off,noaer", "pci", "noaer,realloc=off", "ok"),
        ("pci=noaer pci=realloc=off", "pci", "noaer,realloc=off", "ok"),
        ("pci=noaer", "pci", "realloc=off", "drift"),
        ("pci=realloc=off", "pci", "noaer,realloc=off", "drift"),
        ("pci=norealloc=off", "pci", "realloc=off", "drift"),
        ("pci=realloc=off2", "pci", "realloc=off", "drift"),
        ("pci=realloc", "pci", "realloc=off", "drift"),
        ("pci=realloc=off,realloc=on", "pci", "realloc=off", "drift"),
        ("pci=realloc=on pci=realloc=off", "pci", "realloc=off", "ok"),
        ("pci=pcie_bus_perf,pcie_bus_safe", "pci", "pcie_bus_perf", "drift"),
        ("iommu=soft iommu=pt", "iommu", "pt", "ok"),
        ("iommu=pt iommu=soft", "iommu", "pt", "ok"),
        ("iommu=pt,nopt", "iommu", "pt", "drift"),
        ("iommu=nopt,pt", "iommu", "pt", "ok"),
        ("intel_iommu=on,sm_on", "intel_iommu", "on", "ok"),
        ("intel_iommu=on intel_iommu=off", "intel_iommu", "on", "drift"),
        ("intel_iommu=igfx_off,on", "intel_iommu", "on", "ok"),
        ("modprobe.blacklist=nouveau,amdgpu", "modprobe.blacklist", "amdgpu", "ok"),
        ("modprobe.blacklist=nouveau modprobe.blacklist=amdgpu", "modprobe.blacklist", "nouveau", "ok"),
        ("modprobe.blacklist=nopfs,pfs", "modprobe.blacklist", "nopfs", "ok"),
        ("hugepagesz=2M hugepages=4 hugepagesz=1G", "hugepagesz", "2M", "ok"),
        ("hugepagesz=2M", "hugepagesz", "1G", "drift"),
        ("console=tty0 console=ttyS0,115200", "console", "ttyS0,115200", "ok"),
        ("isolcpus=1,2,3", "isolcpus", "2", "drift"),
    ],
)
def test_items_of_a_list(booted: Callable[[str], Host], line: str, target: str, raw: str, verdict: str) -> None:
    """An item is met beside others, whole, in any occurrence, unless a later one contradicts it."""
    assert state(booted(line), target, raw) == verdict


@pytest.mark.parametrize(
    ("line", "raw", "verdict"),
    [
        ("iommu.passthrough=0 x iommu.passthrough=1", "1", "ok"),
        ("ro", "1", "drift"),
        ("iommu.passthrough=2", "1", "drift"),
        ("iommu.passthrough=2", "0", "drift"),
        ("iommu.passthrough", "1", "drift"),
        ("iommu.passthrough=1 iommu.passthrough=2", "1", "ok"),
        ("iommu.passthrough=y", "1", "ok"),
        ("iommu.passthrough=on", "1", "ok"),
        ("iommu.passthrough=1", "on", "ok"),
        ("iommu.passthrough=off", "0", "ok"),
        ("iommu.passthrough=no", "0", "ok"),
    ],
)
def test_switches_as_kstrtobool_reads_them(booted: Callable[[str], Host], line: str, raw: str, verdict: str) -> None:
    """drivers/iommu/iommu.c: what kstrtobool refuses leaves the switch as it was (NVIDIA/nodewright-packages#122)."""
    assert state(booted(line), "iommu.passthrough", raw) == verdict


@pytest.mark.parametrize(
    ("line", "kind", "raw", "verdict"),
    [
        ("hugepages=512", "at_least", "64", "raised"),
        ("hugepages=64", "at_least", "512", "drift"),
        ("ro", "at_least", "1", "drift"),
        ("ro", "at_most", "1", "drift"),
        ("hugepages=0:4,1:4", "at_least", "1", "drift"),
        ("nr_cpus=8", "at_most", "16", "ok"),
    ],
)
def test_numbers_have_an_order_and_words_have_none(
    booted: Callable[[str], Host], line: str, kind: WantKind, raw: str, verdict: str
) -> None:
    assert state(booted(line), line.partition("=")[0] if "=" in line else "hugepages", raw, kind) == verdict


def test_several_pools_are_not_guessed_at(booted: Callable[[str], Host]) -> None:
    """hugepages counts for the hugepagesz before it: neither number is the answer."""
    found = KNOB.read(booted("hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512"), "hugepages")
    assert isinstance(found, Unreadable)
    assert "knob hugepages" in found.why


# --- what a profile may say


@pytest.mark.parametrize("target", ["pci-realloc", "pci_realloc"])
def test_pci_realloc_is_named_as_having_no_effect(target: str) -> None:
    with pytest.raises(BadValue, match="no effect") as bad:
        KNOB.canonical(target)
    assert "pci=realloc=off" in bad.value.hint


@pytest.mark.parametrize("raw", ["on", "pgtbl_v2,on"])
def test_amd_iommu_on_is_named_as_having_no_effect(booted: Callable[[str], Host], raw: str) -> None:
    with pytest.raises(BadValue, match=r"amd_iommu=on has no effect.*on by default") as bad:
        KNOB.parse("amd_iommu", raw)
    assert "iommu" in bad.value.hint
    with pytest.raises(BadValue, match="no effect"):
        KNOB.normalise(booted("ro"), "amd_iommu", raw)


@pytest.mark.parametrize("raw", ["off", "force_isolation", "absent"])
def test_other_values_of_amd_iommu_are_taken(raw: str) -> None:
    assert KNOB.parse("amd_iommu", raw) == raw


@pytest.mark.parametrize("target", ["", "iommu=pt", "a b", 'a"b', "--", "-x", "a\n", "a\\b"])
def test_what_is_no_name(target: str) -> None:
    with pytest.raises(BadValue, match="no name"):
        KNOB.canonical(target)


@pytest.mark.parametrize(
    ("target", "raw"),
    [
        ("root", None),
        ("root", ["a"]),
        ("root", {"a": "b"}),
        ("root", "a\nb"),
        ("root", 'a"b'),
        ("iommu", "iommu=pt"),
        ("pci", "pci=realloc=off"),
        ("iommu.passthrough", "2"),
        ("iommu.passthrough", "present"),
        ("init_on_alloc", "disable"),
        ("transparent_hugepage", "on"),
        ("numa_balancing", "0"),
    ],
)
def test_what_is_no_value(target: str, raw: str | None) -> None:
    with pytest.raises(BadValue):
        KNOB.parse(target, raw)


@pytest.mark.parametrize(
    ("target", "raw", "value"),
    [
        ("root", "/dev/sda 1", "/dev/sda 1"),
        ("nmi_watchdog", "010", "010"),
        ("quiet", "on", "on"),
        ("init_on_alloc", "off", "0"),
        ("numa_balancing", "disable", "disable"),
        ("pci", "noaer,,noaer,realloc=off", "noaer,realloc=off"),
        ("iommu", "present", "present"),
    ],
)
def test_values_stay_text(target: str, raw: str, value: str) -> None:
    assert KNOB.parse(target, raw) == value


def test_patterns_are_judged_by_the_name_they_meet(booted: Callable[[str], Host]) -> None:
    host = booted("iommu.strict=off pci=noaer,nomsi")
    assert KNOB.canonical("iommu.*") == "iommu.*"
    assert KNOB.normalise(host, "iommu.strict", KNOB.parse("iommu.*", "no")) == "0"
    assert KNOB.normalise(host, "pci", KNOB.parse("pc*", "nomsi")) == "noaer,nomsi"


# --- what the operator is told


@pytest.mark.parametrize(
    ("line", "target", "raw", "text"),
    [
        ("ro", "iommu", "pt", "boot with iommu=pt: add it to the boot line; takes effect after a reboot"),
        ("ro", "nosmt", "present", "boot with nosmt: add it to the boot line; takes effect after a reboot"),
        ("nosmt", "nosmt", "absent", "boot without nosmt: take it off the boot line; takes effect after a reboot"),
        ("x=1", "x", "2", "boot with x=2 in place of x=1; takes effect after a reboot"),
        ("x=1", "x", "a b", 'boot with x="a b" in place of x=1; takes effect after a reboot'),
        ("pci=noaer", "pci", "realloc=off", "boot with pci=noaer,realloc=off in place of pci=noaer; takes"),
        ("pci=realloc=on,noaer", "pci", "realloc=off", "boot with pci=noaer,realloc=off in place of"),
        ("hugepagesz=2M", "hugepagesz", "1G", "boot with hugepagesz=1G: add it to the boot line; takes"),
        ("hugepages=4", "hugepages", "8", "boot with hugepages=8 in place of hugepages=4; takes"),
        ("nosmt=absent", "nosmt", "absent", "boot without nosmt=absent: take it off"),
    ],
)
def test_what_to_put_on_the_line(booted: Callable[[str], Host], line: str, target: str, raw: str, text: str) -> None:
    assert advice(booted(line), target, raw).startswith(text)


@pytest.mark.parametrize(
    ("line", "target", "raw", "remark"),
    [
        ("ro", "iommu", "pt", "not on the line now, the kernel's default is in force"),
        ("iommu.passthrough=2", "iommu.passthrough", "1", "the kernel refuses iommu.passthrough=2, its default"),
        ("numa_balancing=0", "numa_balancing", "disable", "the kernel refuses numa_balancing=0, its default"),
        ("init_on_alloc", "init_on_alloc", "0", "the kernel refuses init_on_alloc, its default"),
        ("ro -- iommu=pt", "iommu", "pt", "it stands after --, where it is an argument of init"),
        ("pci-realloc=off", "pci", "realloc=off", "pci-realloc is on the line and has no effect"),
        ("amd_iommu=on", "iommu", "pt", "amd_iommu=on is on the line and has no effect"),
        ("amd_iommu=on", "amd_iommu", "absent", "amd_iommu=on is on the line and has no effect"),
    ],
)
def test_what_is_wrong_with_the_line(
    booted: Callable[[str], Host], line: str, target: str, raw: str, remark: str
) -> None:
    assert remark in advice(booted(line), target, raw)


def test_nothing_is_said_about_what_works(booted: Callable[[str], Host]) -> None:
    assert "effect:" not in advice(booted("amd_iommu=off"), "iommu", "pt")
    assert "init" not in advice(booted("ro -- single"), "iommu", "pt")


def test_it_is_never_written(booted: Callable[[str], Host]) -> None:
    assert KNOB.read_only
    assert KNOB.disruption("iommu") == "boot"
    with pytest.raises(Refused):
        KNOB.write(booted("ro"), "iommu", "pt")


@pytest.mark.parametrize("target", ["iommu", "quiet"])
def test_about_names_the_kernel_document(target: str) -> None:
    assert "kernel-parameters.txt" in KNOB.about(target)


def test_plan_and_apply_leave_it_to_the_operator(root: Path, tmp_path: Path, tuner: Callable[..., Result]) -> None:
    """A host that was booted with `quiet` and without iommu=pt: drift with advice, and no write."""
    (root / "proc/cmdline").write_text("root=/dev/vda ro quiet\n")
    profile = write_profile(tmp_path / "p.yaml", "cmdline:\n  quiet: present\n  iommu: pt")
    before = tree(root)
    plan = tuner("plan", "--root", root, "--profile", profile, "--json")
    assert plan.code == 10
    assert {s["target"]: s["state"] for s in plan.document["verdicts"]} == {"quiet": "ok", "iommu": "drift"}
    assert plan.document["changes"] == []
    assert "boot with iommu=pt" in tuner("plan", "--root", root, "--profile", profile).out
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert {path: entry for path, entry in tree(root).items() if path != "etc/tuner"} == before
    assert tuner("verify", "--root", root, "--profile", profile).code == 10
