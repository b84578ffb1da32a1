"""The next boot: what keeps settings over it, what every verdict says of it, and who else decides it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Result, tree, write_profile
from tuner.cli.change import retried
from tuner.errors import Exit
from tuner.host import open_host
from tuner.journal import Journal

Tuner = Callable[..., Result]
OURS = "/etc/sysctl.d/99-zz-tuner.conf"
LATE = "/etc/sysctl.d/zz-local.conf"
SWAPPINESS = "proc/sys/vm/swappiness"
WANTED = "sysctl: {vm.swappiness: 1}"


@pytest.fixture
def call(root: Path, tuner: Tuner, tmp_path: Path) -> Callable[..., Result]:
    """call(verb, settings, *words) -> `tuner VERB --json` of a profile of these settings; of what is applied if ""."""

    def call(verb: str, wanted: str = "", *words: object) -> Result:
        given_ = ("--profile", write_profile(tmp_path / "p.yaml", wanted)) if wanted else ()
        return tuner(verb, "--root", root, "--json", *given_, *words)

    return call


def put(root: Path, path: str, text: str) -> None:
    """A file of another hand."""
    place = root / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def of(result: Result, target: str) -> dict[str, Any]:
    """The verdict on a target."""
    (found,) = (v for v in result.document["verdicts"] if v["target"] == target)
    return dict(found)


def lines(root: Path, path: str = OURS) -> list[str]:
    """The lines of our file but for its heading; empty when it is not there."""
    place = root / path[1:]
    if not place.exists():
        return []
    heading, *found = place.read_text().splitlines()
    assert heading == "# Written by tuner"
    return found


# our file


def test_apply_writes_one_file_and_rollback_removes_it_with_its_directory(
    root: Path, call: Callable[..., Result], tuner: Tuner
) -> None:
    """Sorted lines of both knobs of kernel parameters, for everybody to read, journalled like any change."""
    shutil.rmtree(root / "etc/sysctl.d")
    before = tree(root)
    wanted = "sysctl: {vm.swappiness: 1, net.core.somaxconn: 8192}\nsysctl.pair: {vm.dirty: {value: {ratio: 5}}}"
    result = call("apply", wanted)
    assert (result.code, result.document["outcomes"][-1]["target"]) == (Exit.OK, OURS)
    assert lines(root) == ["net.core.somaxconn = 8192", "vm.swappiness = 1", "vm.dirty_ratio = 5"]
    assert (root / OURS[1:]).stat().st_mode & 0o777 == 0o644
    verified = call("verify")
    assert {v["next_boot_by"] for v in verified.document["verdicts"] if v["knob"] != "file"} == {
        f"{OURS}:2",
        f"{OURS}:3",
        f"{OURS}:4",
    }
    assert call("verify", "", "--next-boot").code == Exit.OK
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert tree(root) == before


def test_what_reserves_memory_and_what_is_held_is_in_no_file(root: Path, call: Callable[..., Result]) -> None:
    """The kernel that kdump starts reads sysctl.d too."""
    for allow in ("none", "memory"):
        assert call("apply", "sysctl: {vm.min_free_kbytes: 200000}", "--allow", allow).code == Exit.OK
        assert lines(root) == []
    assert (root / "proc/sys/vm/min_free_kbytes").read_text() == "200000\n"


def test_a_file_that_the_profile_sets_itself_is_the_profiles(root: Path, call: Callable[..., Result]) -> None:
    assert call("apply", f"{WANTED}\nfile: {{{OURS}: '# mine'}}").code == Exit.OK
    assert (root / OURS[1:]).read_text() == "# mine"
    assert of(call("verify"), "vm.swappiness")["next_boot_why"].startswith("lost: ")


@pytest.mark.parametrize("key", ["kernel.ngroups_max", "net.rdma_ucm.max_backlog", "dev.hpet.*"])
def test_what_apply_would_never_write_is_not_kept(root: Path, call: Callable[..., Result], key: str) -> None:
    """Read-only here, not there, and a pattern over what nobody could list."""
    call("apply", f'sysctl: {{vm.swappiness: 1, "{key}": 7}}')
    assert lines(root) == ["vm.swappiness = 1"]


def test_what_is_gone_since_apply_keeps_its_line(root: Path, call: Callable[..., Result]) -> None:
    """Its hardware may come again; until then it is missing, and our file is no second finding."""
    wanted = "sysctl: {vm.swappiness: 1, net.ipv4.conf.ens4.arp_ignore: 1}"
    call("apply", wanted)
    shutil.rmtree(root / "proc/sys/net/ipv4/conf/ens4")
    found = call("plan", wanted)
    assert (found.code, found.document["changes"]) == (Exit.MISSING, [])
    assert of(found, OURS)["state"] == "ok"


# another file


def test_a_later_file_of_others_shadows_and_is_named(root: Path, call: Callable[..., Result], tuner: Tuner) -> None:
    put(root, LATE, "# site\n\nvm.swappiness = 60\n")
    assert call("apply", WANTED).code == Exit.OK
    found = call("verify")
    verdict = of(found, "vm.swappiness")
    assert (found.code, verdict["state"], verdict["running"], verdict["next_boot"]) == (10, "shadowed", 1, 60)
    assert verdict["next_boot_by"] == f"{LATE}:3"
    assert f"{LATE}:3 wins" in verdict["state_why"]
    row = next(line for line in tuner("verify", "--root", root).out.splitlines() if "vm.swappiness" in line)
    assert row.split()[0] == "shadowed"
    assert f"{LATE}:3" in row
    (root / LATE[1:]).unlink()
    found = call("verify")
    verdict = of(found, "vm.swappiness")
    assert (found.code, verdict["state"], verdict["next_boot"]) == (Exit.OK, "ok", 1)
    assert verdict["next_boot_by"] == f"{OURS}:2"


def test_a_plan_sees_past_its_own_file(root: Path, call: Callable[..., Result]) -> None:
    """What runs is right and our file is still to be written: it will not win, so the plan says so."""
    put(root, LATE, "vm.swappiness = 60\n")
    (root / SWAPPINESS).write_text("1\n")
    found = call("plan", WANTED)
    assert (found.code, of(found, "vm.swappiness")["state"]) == (Exit.DIFFERS, "shadowed")
    (root / LATE[1:]).rename(root / "etc/sysctl.d/50-early.conf")
    found = call("plan", WANTED)
    verdict = of(found, "vm.swappiness")
    assert (verdict["state"], verdict["next_boot"]) == ("ok", 60), "as it stands, before the file is there"


def test_a_later_file_that_gives_the_same_shadows_nothing(root: Path, call: Callable[..., Result]) -> None:
    put(root, LATE, "vm.swappiness = 0x1\n")
    call("apply", WANTED)
    assert call("verify", "", "--next-boot").code == Exit.OK


def test_a_key_by_its_name_beats_a_later_pattern(root: Path, call: Callable[..., Result]) -> None:
    """sysctl.d(5): what is set by a whole name is left alone by every pattern."""
    put(root, LATE, "net.core.*mem_max = 212992\n")
    call("apply", "sysctl: {net.core.rmem_max: 16777216}")
    verdict = of(call("verify"), "net.core.rmem_max")
    assert (verdict["state"], verdict["next_boot"], verdict["next_boot_by"]) == ("ok", 16777216, f"{OURS}:2")


def test_our_file_may_have_a_later_name(root: Path, call: Callable[..., Result]) -> None:
    """sysctl_file of site.yaml: the file moves with the next apply, and wins over what shadowed it."""
    put(root, LATE, "vm.swappiness = 60\n")
    call("apply", WANTED)
    put(root, "/etc/tuner/site.yaml", "sysctl_file: zzz-tuner.conf\n")
    assert call("apply", WANTED).code == Exit.OK
    assert (lines(root), lines(root, "/etc/sysctl.d/zzz-tuner.conf")) == ([], ["vm.swappiness = 1"])
    found = call("verify")
    verdict = of(found, "vm.swappiness")
    assert (found.code, verdict["next_boot"]) == (Exit.OK, 1)
    assert verdict["next_boot_by"] == "/etc/sysctl.d/zzz-tuner.conf:2"


# bounds


@pytest.mark.parametrize(
    ("theirs", "key", "want", "line", "then"),
    [
        ("net.core.rmem_max = 33554432", "net.core.rmem_max", "{at_least: 16777216}", "", 33554432),
        ("net.core.rmem_max = 16777216", "net.core.rmem_max", "{at_least: 16777216}", "", 16777216),
        ("net.core.rmem_max = 8388608", "net.core.rmem_max", "{at_least: 16777216}", "16777216", 16777216),
        ("net.core.rmem_max = 33554432", "net.core.rmem_max", "16777216", "16777216", 16777216),
        ("vm.swappiness = 5", "vm.swappiness", "{at_most: 10}", "", 5),
        ("vm.swappiness = 60", "vm.swappiness", "{at_most: 10}", "10", 10),
        ("vm.swappiness = 20", "vm.swappiness", "{one_of: [10, 20]}", "", 20),
        (
            "net.ipv4.tcp_rmem = 8192 131072 8388608",
            "net.ipv4.tcp_rmem",
            '{at_least: "4096 131072 16777216"}',
            "8192 131072 16777216",
            [8192, 131072, 16777216],
        ),
    ],
)
def test_a_bound_gets_a_line_only_where_the_next_boot_would_break_it(
    root: Path, call: Callable[..., Result], theirs: str, key: str, want: str, line: str, then: Any
) -> None:
    """What others' files make larger stays so, number by number; a plain value always has its line."""
    put(root, "/etc/sysctl.d/60-other.conf", f"{theirs}\n")
    assert call("apply", f"sysctl: {{{key}: {want}}}").code == Exit.OK
    assert lines(root) == ([f"{key} = {line}"] if line else [])
    found = call("verify")
    verdict = of(found, key)
    assert (found.code, verdict["next_boot"]) == (Exit.OK, then)
    assert verdict["next_boot_by"] == (f"{OURS}:2" if line else "/etc/sysctl.d/60-other.conf:1")


@pytest.mark.parametrize(
    ("theirs", "want", "then"),
    [
        ("vm.swappiness = 010", "sysctl: {vm.swappiness: 8}", 8),
        ("vm.swappiness = 0x10", "sysctl: {vm.swappiness: 16}", 16),
        ("net.ipv4.tcp_rmem = 010000\t0x20000  6291456", 'sysctl: {net.ipv4.tcp_rmem: "4096 131072 6291456"}', None),
        ("vm.dirty_ratio = 024", "sysctl.pair: {vm.dirty: {value: {ratio: 20}}}", {"bytes": 0, "ratio": 20}),
    ],
)
def test_numbers_of_others_are_read_as_the_kernel_reads_them(
    root: Path, call: Callable[..., Result], theirs: str, want: str, then: Any
) -> None:
    """A leading zero is octal in a file, which no profile may write."""
    put(root, LATE, f"{theirs}\n")
    call("apply", want)
    verdict = call("verify").document["verdicts"][0]
    assert (verdict["state"], verdict["next_boot_by"]) == ("ok", f"{LATE}:1")
    assert verdict["next_boot"] == (then or [4096, 131072, 6291456])


@pytest.mark.parametrize(
    ("theirs", "want"),
    [
        ("net.ipv4.tcp_rmem = 8192", 'sysctl: {net.ipv4.tcp_rmem: "4096 131072 6291456"}'),
        ("net.ipv4.conf.all.rp_filter = 7", "sysctl: {net.ipv4.conf.all.rp_filter: 1}"),
    ],
)
def test_what_the_kernel_may_take_is_not_predicted(
    root: Path, call: Callable[..., Result], theirs: str, want: str
) -> None:
    """Fewer numbers than the key has change the first ones; a number without a meaning is taken all the same."""
    put(root, LATE, f"{theirs}\n")
    call("apply", want)
    found = call("verify")
    assert (found.code, found.document["verdicts"][0]["next_boot"]) == (Exit.OK, None)
    assert found.document["verdicts"][0]["next_boot_why"].startswith("not predicted: whether the kernel takes")


@pytest.mark.parametrize("theirs", ["vm.dirty_bytes = 100", "vm.dirty_bytes = many"])
def test_half_of_a_pair_that_the_kernel_refuses_shadows_nothing(
    root: Path, call: Callable[..., Result], theirs: str
) -> None:
    """mm/page-writeback.c refuses less than two pages."""
    put(root, LATE, f"{theirs}\n")
    call("apply", "sysctl.pair: {vm.dirty: {value: {ratio: 30}}}")
    verdict = of(call("verify"), "vm.dirty")
    assert (verdict["state"], verdict["next_boot"]) == ("ok", None)
    assert verdict["next_boot_why"].startswith(f"not predicted: the kernel refuses what {LATE}:1 sets")


@pytest.mark.parametrize(
    ("theirs", "state", "then"),
    [
        ("vm.dirty_background_bytes = 8192", "ok", {"bytes": 0, "ratio": 30}),
        ("vm.dirty_bytes = 8192", "shadowed", {"bytes": 8192, "ratio": 0}),
    ],
)
def test_the_half_that_is_written_last_counts(
    root: Path, call: Callable[..., Result], theirs: str, state: str, then: Any
) -> None:
    put(root, LATE, f"{theirs}\n")
    call("apply", "sysctl.pair: {vm.dirty: {value: {ratio: 30}}}")
    verdict = of(call("verify"), "vm.dirty")
    assert (verdict["state"], verdict["next_boot"]) == (state, then)


# nobody keeps it, or nobody can tell


@pytest.mark.parametrize(
    ("wanted", "target", "then"),
    [
        ("thp: {enabled: never}", "enabled", "never"),
        ("hugepages: {node0/2MB: 16}", "node0/2MB", 16),
        ("sysctl: {vm.min_free_kbytes: 200000}", "vm.min_free_kbytes", 200000),
    ],
)
def test_what_only_runs_is_lost_without_the_boot_unit(
    root: Path, call: Callable[..., Result], tuner: Tuner, wanted: str, target: str, then: Any
) -> None:
    """It is right now, so the exit code stays, unless somebody asks about the next boot."""
    assert call("apply", wanted, "--allow", "memory").code == Exit.OK
    found = call("verify")
    verdict = of(found, target)
    assert (found.code, verdict["state"], verdict["next_boot"]) == (Exit.OK, "ok", None)
    assert verdict["next_boot_why"] == "lost: no tuner-apply.service: tuner persist install"
    assert call("verify", "", "--next-boot").code == Exit.DIFFERS
    assert "tuner persist install" in tuner("verify", "--root", root).out
    assert tuner("persist", "install", "--root", root).code == Exit.OK
    verdict = of(call("verify"), target)
    assert (verdict["next_boot"], verdict["next_boot_why"]) == (then, "")
    assert call("verify", "", "--next-boot").code == Exit.OK


def test_what_cannot_be_told_is_not_predicted(root: Path, call: Callable[..., Result]) -> None:
    """Without systemd-sysctl nobody knows which files are read, in which order."""
    call("apply", WANTED)
    (root / "usr/lib/systemd/system/systemd-sysctl.service").unlink()
    found = call("verify")
    verdict = of(found, "vm.swappiness")
    assert (found.code, verdict["state"], verdict["next_boot"]) == (Exit.OK, "ok", None)
    assert verdict["next_boot_why"].startswith("not predicted: boot order not known")
    assert call("verify", "", "--next-boot").code == Exit.UNKNOWN


def test_lost_is_worse_than_not_predicted(root: Path, call: Callable[..., Result]) -> None:
    """10 over 12."""
    call("apply", f"{WANTED}\nthp: {{enabled: never}}")
    (root / "usr/lib/systemd/system/systemd-sysctl.service").unlink()
    assert call("verify", "", "--next-boot").code == Exit.DIFFERS


def mounted(root: Path, kind: str) -> None:
    """The root file system, as the kernel shows it."""
    place = root / "proc/self/mountinfo"
    place.chmod(0o644)
    place.write_text(place.read_text().replace("- ext4 /dev/vda rw", f"- {kind} root rw"))


def _by_site(root: Path) -> None:
    put(root, "/etc/tuner/site.yaml", "boots_from: image\n")


IMAGES: list[tuple[str, Callable[[Path], None]]] = [
    ("site.yaml", _by_site),
    *((kind, lambda root, kind=kind: mounted(root, kind)) for kind in ("tmpfs", "overlay", "squashfs", "nfs4")),
    ("Warewulf", lambda root: put(root, "/warewulf/config", "")),
]


@pytest.mark.parametrize(("says", "make"), IMAGES, ids=[row[0] for row in IMAGES])
def test_on_a_node_that_boots_from_an_image_nothing_claims_the_next_boot(
    root: Path, call: Callable[..., Result], says: str, make: Callable[[Path], None]
) -> None:
    """Its files do not last: neither ours nor those that would win over it."""
    make(root)
    put(root, LATE, "vm.swappiness = 60\n")
    assert call("apply", f"{WANTED}\nthp: {{enabled: never}}").code == Exit.OK
    found = call("verify")
    assert found.code == Exit.OK
    for verdict in found.document["verdicts"]:
        assert (verdict["state"], verdict["next_boot"]) == ("ok", None), verdict["target"]
        assert verdict["next_boot_why"].startswith("not predicted: ")
        assert says in verdict["next_boot_why"]
    assert call("verify", "", "--next-boot").code == Exit.UNKNOWN


def test_the_site_knows_better(root: Path, call: Callable[..., Result]) -> None:
    mounted(root, "overlay")
    put(root, "/etc/tuner/site.yaml", "boots_from: disk\n")
    call("apply", WANTED)
    assert of(call("verify"), "vm.swappiness")["next_boot"] == 1


# images


@pytest.fixture
def image(root: Path, tmp_path: Path) -> Path:
    """The files of a Debian image: nothing runs in it."""
    image = tmp_path / "image"
    shutil.copytree(root / "etc", image / "etc", symlinks=True)
    shutil.copytree(root / "usr/lib/sysctl.d", image / "usr/lib/sysctl.d", symlinks=True)
    units = image / "usr/lib/systemd"
    shutil.copytree(root / "usr/lib/systemd/system", units / "system", symlinks=True)
    (units / "libsystemd-shared-252.so").write_text("")
    for folder in ("usr/sbin", "var/lib", "run"):
        (image / folder).mkdir(parents=True)
    (image / "usr/sbin/init").symlink_to("/lib/systemd/systemd")
    return image


def test_an_image_is_judged_by_its_next_boot(image: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Drift before its files are written, pending after: nothing runs there that could be right."""
    profile = write_profile(tmp_path / "p.yaml", f"{WANTED}\nthp: {{enabled: never}}")
    words, first = ("--root", image, "--json"), tree(image)
    plan = tuner("plan", *words, "--profile", profile)
    assert (plan.code, of(plan, "vm.swappiness")["state"], of(plan, "enabled")["state"]) == (
        Exit.DIFFERS,
        "drift",
        "unsupported",
    )
    assert [c["target"] for c in plan.document["changes"]] == [OURS]
    assert tuner("apply", *words, "--profile", profile).code == Exit.OK
    assert lines(image) == ["vm.swappiness = 1"]
    found = tuner("verify", *words)
    verdict = of(found, "vm.swappiness")
    assert (found.code, verdict["state"], verdict["next_boot"]) == (Exit.PENDING, "pending", 1)
    put(image, LATE, "vm.swappiness = 60\n")
    found = tuner("verify", *words)
    verdict = of(found, "vm.swappiness")
    assert (found.code, verdict["state"], verdict["next_boot_by"]) == (Exit.DIFFERS, "drift", f"{LATE}:1")
    (image / LATE[1:]).unlink()
    assert tuner("rollback", *words).code == Exit.OK
    assert tree(image) == first


# any files

NAMES = st.sampled_from(
    ["10-a.conf", "60-b.conf", "99-zz-a.conf", "99-zz-tuner.conf.bak", "99-zz-tunes.conf", LATE[14:]]
)
NUMBERS = st.integers(min_value=2304, max_value=2**31 - 1)
RMEM_MAX = 212992
"""The kernel's own net.core.rmem_max (SK_RMEM_MAX in include/net/sock.h), which plain-vm has."""


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(theirs=st.dictionaries(NAMES, NUMBERS, max_size=4), bound=NUMBERS)
def test_with_any_files_of_others_nothing_is_lowered_and_all_is_given_back(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path, theirs: dict[str, int], bound: int
) -> None:
    """The last name wins (sysctl.d(5)): ours raises what is too low and comes before it, and touches nothing else."""
    root = copy_host()
    for name, number in theirs.items():
        put(root, f"/etc/sysctl.d/{name}", f"net.core.rmem_max = {number}\n")
    before = tree(root)
    last = max((name for name in theirs if name.endswith(".conf")), default="")
    theirs_then = theirs.get(last, 0)
    profile = write_profile(tmp_path / "p.yaml", f"sysctl: {{net.core.rmem_max: {{at_least: {bound}}}}}")
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    verdict = of(tuner("verify", "--root", root, "--json"), "net.core.rmem_max")
    line = theirs_then < bound if last else bound > RMEM_MAX
    beaten = line and last > "99-zz-tuner.conf"
    assert lines(root) == ([f"net.core.rmem_max = {bound}"] if line else [])
    own = None if not last and not line else theirs_then
    assert verdict["next_boot"] == (own if beaten or not line else bound)
    assert (verdict["state"] == "shadowed") is beaten
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert tree(root) == before
    shutil.rmtree(root)


def test_a_bound_that_the_kernel_s_own_value_meets_is_not_lowered_by_our_file(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    """212992 runs and nobody sets it: a line of ours with 4096 would lower it at the next boot."""
    root = copy_host()
    low = write_profile(tmp_path / "low.yaml", "sysctl: {net.core.rmem_max: {at_least: 4096}, vm.swappiness: 1}")
    assert tuner("apply", "--root", root, "--profile", low).code == Exit.OK
    assert lines(root) == ["vm.swappiness = 1"]


def test_a_bound_that_we_raised_keeps_its_line(copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path) -> None:
    """It runs as wanted because of us: a second apply keeps the line, without a journal too."""
    root = copy_host()
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {net.core.rmem_max: {at_least: 16777216}}")
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    shutil.rmtree(root / "var/lib/tuner")
    assert tuner("plan", "--root", root, "--profile", profile, "--json").document["changes"] == []
    assert lines(root) == ["net.core.rmem_max = 16777216"]


def test_s20_a_right_file_and_a_value_that_was_reset_after_boot(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    """stephrobert/pavois#154: not `file missing`, but who sets it at boot and that it was changed since."""
    root = copy_host()
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {net.ipv4.conf.all.log_martians: 1}")
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    (root / "proc/sys/net/ipv4/conf/all/log_martians").write_text("0\n")
    verdict = of(tuner("verify", "--root", root, "--json"), "net.ipv4.conf.all.log_martians")
    assert verdict["state"] == "drift"
    assert verdict["next_boot"] == 1
    assert verdict["state_why"].startswith("/etc/sysctl.d/99-zz-tuner.conf:2 sets it at boot: changed since")
    assert "came up later" in verdict["state_why"]


# --- found by a hostile review: bounds that we raised keep their line -----------------------------------------------

BOUND = "sysctl: {net.core.rmem_max: {at_least: 16777216}, vm.swappiness: 1}"
KEPT = ["net.core.rmem_max = 16777216", "vm.swappiness = 1"]


def test_a_renamed_file_holds_all_that_the_former_held(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    """What runs as wanted because of us is not the kernel's own; and the old name goes."""
    root = copy_host()
    before = tree(root)
    profile = write_profile(tmp_path / "p.yaml", BOUND)
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    put(root, "/etc/tuner/site.yaml", "sysctl_file: zzz-site.conf\n")
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    assert not (root / "etc/sysctl.d/99-zz-tuner.conf").exists()
    assert (root / "etc/sysctl.d/zzz-site.conf").read_text().splitlines()[1:] == KEPT
    assert tuner("rollback", "--root", root, "--to", "0").code == Exit.OK
    shutil.rmtree(root / "etc/tuner")
    assert tree(root) == before


@pytest.mark.parametrize("how", ["file removed", "line removed", "foreign file came and went"])
def test_a_bound_gets_its_line_back(copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path, how: str) -> None:
    root = copy_host()
    ours, theirs = root / "etc/sysctl.d/99-zz-tuner.conf", root / "etc/sysctl.d/50-x.conf"
    profile = write_profile(tmp_path / "p.yaml", BOUND)
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    match how:
        case "file removed":
            ours.unlink()
        case "line removed":
            ours.write_text("".join(x for x in ours.read_text().splitlines(keepends=True) if "rmem" not in x))
        case _:
            theirs.write_text("net.core.rmem_max = 33554432\n")
            assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
            assert lines(root) == KEPT[1:]
            theirs.unlink()
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    assert lines(root) == KEPT
    assert tuner("plan", "--root", root, "--profile", profile, "--json").document["changes"] == []


def test_boots_from_that_changed_is_adopted_by_the_next_apply(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    root = copy_host()
    profile = write_profile(tmp_path / "p.yaml", BOUND)
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    put(root, "/etc/tuner/site.yaml", "boots_from: image\n")
    assert tuner("apply", "--root", root, "--profile", profile).code == Exit.OK
    found = tuner("verify", "--root", root, "--json").document["verdicts"]
    assert all(v["next_boot"] is None for v in found)
    assert {v["next_boot_why"].partition(":")[0] for v in found} == {"not predicted"}


def test_missing_folders_above_the_journal_are_for_everybody(tuner: Tuner, tmp_path: Path) -> None:
    """Only what is tuner's own is for root alone: services live in /var too."""
    image = tmp_path / "image"
    (image / "etc").mkdir(parents=True)
    profile = write_profile(tmp_path / "p.yaml", "file: {/etc/x.conf: text}")
    assert tuner("apply", "--root", image, "--profile", profile).code == Exit.OK
    modes = {name: (image / name).stat().st_mode & 0o777 for name in ("var", "var/lib", "var/lib/tuner")}
    assert modes == {"var": 0o755, "var/lib": 0o755, "var/lib/tuner": 0o700}


def test_what_the_system_could_not_be_told_is_told_by_the_next_run(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/boot was full: the file is right and means nothing, so that no later run may find nothing to do."""
    root = copy_host("mi300x-cx7")
    profile = write_profile(tmp_path / "p.yaml", "cmdline: {nosmt: present}")
    assert tuner("apply", "--root", root, "--profile", profile, "--allow", "boot").code == Exit.OK
    host = open_host(str(root))
    host.kind = "live"
    answers = [(False, "/boot is full"), (True, "")]
    monkeypatch.setattr("tuner.cli.change.act", lambda host, action: answers.pop(0))
    assert retried(host, Journal(host), [("update-grub", "tried in this run")]) == []
    assert retried(host, Journal(host), []) == [("update-grub", "/boot is full")]
    assert retried(host, Journal(host), []) == [("update-grub", "")]
    assert retried(host, Journal(host), []) == []
