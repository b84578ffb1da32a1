"""Refused writes, full and read-only disks, vanished targets, torn and lost journals: all undone, or said plainly."""

from __future__ import annotations

import datetime
import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import crash_child
from tests.conftest import tree, unavailable, write_profile
from tuner.host.tree import Tree

Tuner = Callable[..., Any]
Host = Callable[..., Path]

MIDDLE = """
thp: {enabled: madvise}
sysctl:
  net.core.rmem_max: 16777216
  vm.swappiness: 1
  net.core.wmem_max: 16777216
file:
  /etc/modprobe.d/made/by/us.conf: "options a b=1\\n"
  /etc/modules: "replaced\\n"
"""
"""vm.swappiness is the third of four writes to kernel files."""


@pytest.fixture
def middle(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "middle.yaml", MIDDLE)


def value(root: Path, name: str) -> str:
    return (root / "proc/sys" / name).read_text().strip()


def generations(root: Path) -> list[Path]:
    return sorted((root / "var/lib/tuner/generations").iterdir())


# a write in the middle that is refused


@pytest.mark.parametrize("fault", ["swappiness-refused", "swappiness-ignored"])
def test_refused_write_undoes_everything(fault: str, copy_host: Host, middle: Path, tuner: Tuner) -> None:
    root = copy_host("plain-vm", fault)
    first = tree(root)
    result = tuner("apply", "--root", root, "--profile", middle, "--json")
    assert result.code == 20
    assert result.document["undone"] is True
    assert result.document["not_restored"] == []
    assert "vm.swappiness" in result.document["reason"]
    assert [o["result"] for o in result.document["outcomes"]] == ["done", "done", "refused"]
    assert tree(root) == first
    assert tuner("rollback", "--root", root).code == 64


@pytest.mark.parametrize("fault", ["swappiness-refused", "swappiness-ignored"])
def test_on_error_keep_keeps_the_others(fault: str, copy_host: Host, middle: Path, tuner: Tuner) -> None:
    root = copy_host("plain-vm", fault)
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", middle, "--on-error", "keep").code == 10
    assert value(root, "net/core/rmem_max") == value(root, "net/core/wmem_max") == "16777216"
    assert value(root, "vm/swappiness") == "60"
    assert (root / "etc/modules").read_text() == "replaced\n"
    verify = tuner("verify", "--root", root, "--json")
    assert verify.code == 10
    assert [v["target"] for v in verify.document["verdicts"] if v["state"] == "drift"] == ["vm.swappiness"]
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == first


def test_failed_apply_keeps_what_was_applied_before(copy_host: Host, tmp_path: Path, tuner: Tuner) -> None:
    """The generation before the failed one is still the applied one, and still holds."""
    root = copy_host("plain-vm", "swappiness-refused")
    good = write_profile(tmp_path / "good.yaml", "sysctl:\n  net.core.rmem_max: 4194304")
    bad = write_profile(tmp_path / "bad.yaml", "sysctl:\n  net.core.wmem_max: 16777216\n  vm.swappiness: 1")
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", good).code == 0
    applied = tree(root)
    assert tuner("apply", "--root", root, "--profile", bad).code == 20
    assert tree(root) == applied
    verify = tuner("verify", "--root", root, "--json")
    assert (verify.code, verify.document["generation"]) == (0, 1)
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == first


# a write that moves another setting: khugepaged raises vm.min_free_kbytes when THP is switched


def test_side_effect_is_given_back_though_no_profile_names_it(copy_host: Host, tmp_path: Path, tuner: Tuner) -> None:
    root = copy_host("plain-vm", "thp-raises-reserve")
    profile = write_profile(tmp_path / "thp.yaml", "thp: {enabled: madvise}")
    first = tree(root)
    assert value(root, "vm/min_free_kbytes") == "67584"
    result = tuner("apply", "--root", root, "--profile", profile, "--json")
    assert result.code == 0
    assert result.document["moved"] == ["sysctl vm.min_free_kbytes"]
    assert value(root, "vm/min_free_kbytes") == "90112"
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == first


def test_side_effect_is_undone_with_a_failed_run(copy_host: Host, middle: Path, tuner: Tuner) -> None:
    root = copy_host("plain-vm", "thp-raises-reserve", "swappiness-refused")
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", middle).code == 20
    assert value(root, "vm/min_free_kbytes") == "67584"
    assert tree(root) == first


@pytest.mark.parametrize("wanted", ["{at_least: 80000}", "100000"])
def test_side_effect_on_a_setting_of_the_profile_is_not_stale(
    wanted: str, copy_host: Host, tmp_path: Path, tuner: Tuner
) -> None:
    """THP comes first and raises the reserve: at_least is then met already, a plain value is written after it."""
    root = copy_host("plain-vm", "thp-raises-reserve")
    settings = f"sysctl:\n  vm.min_free_kbytes: {wanted}\nthp: {{enabled: madvise}}"
    profile = write_profile(tmp_path / "both.yaml", settings)
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert value(root, "vm/min_free_kbytes") == ("90112" if "at_least" in wanted else "100000")
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == first


# targets that give less than asked, or vanish


def test_shortfall_of_huge_pages_is_kept_and_drift(copy_host: Host, tmp_path: Path, tuner: Tuner) -> None:
    """Each node has room for 100 pages; 200 are wanted."""
    root = copy_host("plain-vm", "hugepages-short")
    profile = write_profile(tmp_path / "pages.yaml", "hugepages: {node0/2MB: 200}")
    pool = root / "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
    result = tuner("apply", "--root", root, "--profile", profile, "--json")
    assert result.code == 10
    assert [(o["result"], o["before"], o["after"]) for o in result.document["outcomes"]] == [("short", 0, 100)]
    assert pool.read_text() == "100\n"
    verify = tuner("verify", "--root", root, "--json")
    assert verify.code == 10
    assert [v["state"] for v in verify.document["verdicts"]] == ["drift"]
    assert tuner("rollback", "--root", root).code == 0
    assert pool.read_text() == "0\n"


def test_rollback_of_a_shortfall_restores_the_tree(copy_host: Host, tmp_path: Path, tuner: Tuner) -> None:
    root = copy_host("plain-vm", "hugepages-short")
    profile = write_profile(tmp_path / "pages.yaml", "hugepages: {node0/2MB: 200}")
    first = tree(root)
    tuner("apply", "--root", root, "--profile", profile)
    tuner("rollback", "--root", root)
    now = {path: held for path, held in tree(root).items() if not path.startswith(".tuner-host/state")}
    assert now == first


def test_target_that_disappears_is_missing(root: Path, middle: Path, tuner: Tuner) -> None:
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    (root / "proc/sys/net/core/rmem_max").unlink()
    verify = tuner("verify", "--root", root, "--json")
    assert verify.code == 11
    assert verify.document["state"] == "missing"
    assert {v["target"]: v["state"] for v in verify.document["verdicts"]}["net.core.rmem_max"] == "missing"
    assert tuner("plan", "--root", root, "--profile", middle).code == 11
    assert tuner("apply", "--root", root, "--profile", middle).code == 11
    assert tuner("status", "--root", root).code == 11


def test_target_that_is_required_but_was_never_there(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    """Not missing: this kernel never had it. 10 where the profile requires it, else nothing fails."""
    for required, code in (("true", 10), ("false", 0)):
        profile = write_profile(
            tmp_path / "p.yaml",
            f"sysctl: {{kernel.sched_min_granularity_ns: {{value: 1000000, required: {required}}}}}",
        )
        assert tuner("apply", "--root", root, "--profile", profile).code == code


def test_rollback_goes_on_past_a_target_that_is_gone(root: Path, middle: Path, tuner: Tuner) -> None:
    """Skipped and named (10), so that hardware which never comes back does not block every later rollback."""
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    lost = root / "proc/sys/net/core/rmem_max"
    lost.unlink()
    result = tuner("rollback", "--root", root)
    assert result.code == 10
    assert "net.core.rmem_max" in result.out
    assert "gone" in result.out
    lost.write_text("212992\n")
    assert tree(root) == first
    assert tuner("rollback", "--root", root).code == 64, "nothing is live any more"


def test_value_changed_by_somebody_else_is_left(root: Path, middle: Path, tuner: Tuner) -> None:
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    (root / "proc/sys/vm/swappiness").write_text("33\n")
    result = tuner("rollback", "--root", root)
    assert result.code == 10
    assert "not ours any more" in result.out
    assert value(root, "vm/swappiness") == "33"
    (root / "proc/sys/vm/swappiness").write_text("60\n")
    assert tree(root) == first


def test_force_restores_what_somebody_else_changed(root: Path, middle: Path, tuner: Tuner) -> None:
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    (root / "proc/sys/vm/swappiness").write_text("33\n")
    (root / "etc/modules").write_text("by hand\n")
    assert tuner("rollback", "--root", root, "--force").code == 0
    assert tree(root) == first


# no room for the journal


@pytest.mark.parametrize("number", range(1, 12))
def test_no_room_for_the_journal(
    number: int, root: Path, middle: Path, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's write number `number` and all after it find the disk full, the file system of /etc not."""
    first = tree(root)
    done = 0

    def full(real: Callable[..., None]) -> Callable[..., None]:
        def write(self: Tree, path: str, *rest: Any) -> None:
            nonlocal done
            if path.startswith("/var/lib/tuner"):
                done += 1
                if done >= number:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            real(self, path, *rest)

        return write

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "append", full(Tree.append))
        patch.setattr(Tree, "put", full(Tree.put))
        result = tuner("apply", "--root", root, "--profile", middle)
    assert done >= number
    assert result.code == 20
    assert "No space left" in result.out + result.err
    assert tree(root) == first
    assert tuner("rollback", "--root", root).code in (0, 64)
    assert tree(root) == first
    assert tuner("apply", "--root", root, "--profile", middle).code == 0


@pytest.fixture
def mounted() -> Iterator[Callable[..., None]]:
    """mounted(directory, *options) mounts a tmpfs there, or with options that begin with --bind, itself."""
    if os.geteuid() != 0:
        unavailable("only root can mount")
    places: list[Path] = []

    def mount(directory: Path, *options: str) -> None:
        words = list(options) if "--bind" in options else ["-t", "tmpfs", *options, "tmpfs"]
        if "--bind" in options:
            words.append(str(directory))
        done = subprocess.run(["mount", *words, str(directory)], capture_output=True, text=True, check=False)
        if done.returncode:
            unavailable(f"mount: {done.stderr.strip()}")
        places.append(directory)

    yield mount
    for place in reversed(places):
        subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.mark.parametrize("pages", range(8))
def test_full_disk(pages: int, root: Path, middle: Path, tuner: Tuner, mounted: Callable[..., None]) -> None:
    """A real file system with room for so many pages: either there was enough, or all is as before."""
    first = tree(root)
    folder = root / "var/lib/tuner"
    folder.mkdir()
    mounted(folder, "-o", "size=64k")
    with (folder / "ballast").open("wb") as ballast:
        ballast.write(bytes(4096 * (16 - pages)))
    result = tuner("apply", "--root", root, "--profile", middle)
    assert result.code in ((20,) if pages < 2 else (0, 20))
    if result.code == 20:
        assert tree(root) == first
        (folder / "ballast").unlink()
        assert tuner("apply", "--root", root, "--profile", middle).code == 0
    else:
        (folder / "ballast").unlink()
    assert tuner("rollback", "--root", root, "--to", 0).code == 0
    assert tree(root) == first


def test_rollback_on_a_full_disk(root: Path, middle: Path, tuner: Tuner, mounted: Callable[..., None]) -> None:
    """It restores nothing, rather than something nobody would know of; with room again it does all."""
    first = tree(root)
    folder = root / "var/lib/tuner"
    folder.mkdir()
    mounted(folder, "-o", "size=256k")
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    applied = tree(root)
    with (folder / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
        while True:
            ballast.write(bytes(4096))
    for file in generations(root):  # the rest of its last page too
        with pytest.raises(OSError, match="No space left"), file.open("ab", buffering=0) as journal:
            size = journal.tell()
            while journal.write(b"\n" * 64):
                pass
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.truncate(file, size)
    result = tuner("rollback", "--root", root)
    if result.code == 21:
        assert tree(root) == applied
    (folder / "ballast").unlink()
    tuner("rollback", "--root", root)
    assert tree(root) == first


# read-only file systems


def test_read_only_host(root: Path, middle: Path, tuner: Tuner, mounted: Callable[..., None]) -> None:
    """plan, verify and status look; apply and rollback write nothing and say why."""
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    applied = tree(root)
    mounted(root, "--bind")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
    apply = tuner("apply", "--root", root, "--profile", middle)
    assert apply.code == 20
    assert "Read-only file system" in apply.err
    assert "hint:" in apply.err
    rollback = tuner("rollback", "--root", root)
    assert rollback.code in (20, 21)
    assert "Read-only file system" in rollback.err
    assert tuner("verify", "--root", root).code == 0
    assert tuner("plan", "--root", root, "--profile", middle).code == 0
    off = tuner("off", "--why", "test", "--root", root)
    assert off.code == 64
    assert "Read-only file system" in off.err
    assert tree(root) == applied


def test_read_only_etc_undoes_the_rest(root: Path, middle: Path, tuner: Tuner, mounted: Callable[..., None]) -> None:
    """The kernel files are written before the files; the refused file brings them back."""
    first = tree(root)
    mounted(root / "etc", "--bind")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root / "etc")], check=True)
    result = tuner("apply", "--root", root, "--profile", middle)
    assert result.code == 20
    assert "Read-only file system" in result.out
    assert tree(root) == first


# a journal that was damaged or lost


def test_torn_last_line_is_ignored_and_cut(root: Path, middle: Path, tuner: Tuner) -> None:
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    (file,) = generations(root)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"seq":99,"op":"int')
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert file.read_bytes().startswith(whole)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-1]["op"] == "end"
    assert tree(root) == first


@pytest.mark.parametrize("cut", [1, 10, 200, 600])
def test_torn_end_of_a_run_is_an_interrupted_run(cut: int, root: Path, middle: Path, tuner: Tuner) -> None:
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    (file,) = generations(root)
    os.truncate(file, file.stat().st_size - cut)
    result = tuner("rollback", "--root", root)
    assert result.code == 0
    assert "interrupted" in result.out
    assert tree(root) == first


def test_generation_torn_in_its_first_line_is_none(root: Path, middle: Path, tuner: Tuner) -> None:
    """Such a file is from before the first write: nothing is applied, and its number is not used again."""
    folder = root / "var/lib/tuner/generations"
    folder.mkdir(parents=True)
    (folder / "000001.jsonl").write_text('{"seq":1,"op":"beg')
    assert tuner("verify", "--root", root).code == 64
    assert tuner("rollback", "--root", root).code == 64
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    assert tuner("verify", "--root", root, "--json").document["generation"] == 2


BAD_LINES = [
    b"garbage\n",
    b"\xff\xfe\n",
    b"[]\n",
    b"{}\n",
    b"\n",
    b'"op"\n',
    b'{"op":"end","seq":"x"}\n',
    b'{"op":"end","seq":2}\n',
    b'{"op":"intent","seq":2,"run":"apply"}\n',
    b'{"op":["end"],"seq":2}\n',
]


@pytest.mark.parametrize("bad", BAD_LINES)
@pytest.mark.parametrize("verb", ["verify", "rollback", "apply", "history", "status"])
def test_bad_line_in_the_middle_is_one_error(bad: bytes, verb: str, root: Path, middle: Path, tuner: Tuner) -> None:
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    before = tree(root)
    (file,) = generations(root)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], bad, *lines[2:]]))
    damaged = file.read_bytes()
    result = tuner(verb, "--root", root, *(["--profile", middle] if verb == "apply" else []))
    assert result.code == 12
    assert "000001.jsonl:3: " in result.err
    assert len(result.err.splitlines()) == 2
    assert "hint:" in result.err
    assert tree(root) == before
    assert file.read_bytes() == damaged


def test_first_before_outlives_the_generations_that_are_kept(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    """55 applies leave 50 generations; what only the first five knew still leads back to the very first state."""
    first = tree(root)
    settings = (
        "sysctl:\n  vm.swappiness: {}\n  net.core.rmem_max: 16777216\nfile:\n  /etc/modprobe.d/made/first.conf: kept"
    )
    for number in range(55):
        profile = write_profile(tmp_path / "p.yaml", settings.format(number))
        assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert len(generations(root)) == 50
    assert not (root / "var/lib/tuner/generations/000005.jsonl").exists()
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root, "--to", 0).code == 0
    assert tree(root) == first


# an empty /var


def empty_var(root: Path) -> None:
    shutil.rmtree(root / "var/lib/tuner")


def test_empty_var_verify_judges_what_was_applied(root: Path, middle: Path, tuner: Tuner) -> None:
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    full = tuner("verify", "--root", root, "--json").document
    empty_var(root)
    verify = tuner("verify", "--root", root, "--json")
    assert verify.code == 0
    assert verify.document["settings_id"] == full["settings_id"]
    assert [v["state"] for v in verify.document["verdicts"]] == ["ok"] * 7, "six settings, and the file of the sysctls"
    (root / "proc/sys/vm/swappiness").write_text("60\n")
    assert tuner("verify", "--root", root).code == 10
    (root / "proc/sys/net/core/rmem_max").unlink()
    assert tuner("verify", "--root", root).code == 11


def test_empty_var_held_settings_are_still_held(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    profile = write_profile(tmp_path / "held.yaml", "hugepages: {node0/2MB: 8}\nsysctl: {vm.swappiness: 1}")
    assert tuner("apply", "--root", root, "--profile", profile, "--allow", "none").code == 0
    assert tuner("verify", "--root", root).code == 14
    empty_var(root)
    assert tuner("verify", "--root", root).code == 14


def test_empty_var_nothing_to_roll_back(root: Path, middle: Path, tuner: Tuner) -> None:
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    empty_var(root)
    applied = tree(root)
    assert tuner("rollback", "--root", root).code == 64
    assert tree(root) == applied


def test_cache_is_made_again_by_the_next_apply(root: Path, middle: Path, tuner: Tuner) -> None:
    """It is only a cache: lost or cut short, the journal answers, and the next apply writes it anew."""
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    cache = root / "etc/tuner/applied/current.json"
    whole = cache.read_bytes()
    for damage in (cache.unlink, lambda: cache.write_bytes(whole[:50]), lambda: cache.write_bytes(b"")):
        damage()
        assert tuner("verify", "--root", root).code == 0
        assert tuner("apply", "--root", root, "--profile", middle).code == 0
        assert cache.read_bytes() == whole


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"generation": 1}', b"\xff\xff", b"7"])
def test_damaged_cache_and_empty_var_is_nothing_applied(text: bytes, root: Path, middle: Path, tuner: Tuner) -> None:
    assert tuner("apply", "--root", root, "--profile", middle).code == 0
    empty_var(root)
    (root / "etc/tuner/applied/current.json").write_bytes(text)
    assert tuner("verify", "--root", root).code == 64


def test_what_everybody_may_read_shows_no_former_text(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    """A file that is replaced or removed may have held a secret: only root's journal has it."""
    (root / "etc/modules").write_text("password=hunter2\n")
    (root / "etc/modules").chmod(0o600)
    (root / "etc/modprobe.d/old.conf").write_text("token=swordfish\n")
    first = tree(root)
    profile = write_profile(tmp_path / "p.yaml", 'file:\n  /etc/modules: "new\\n"\n  /etc/modprobe.d/old.conf: null')
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink() and path.stat().st_mode & 0o077:
                text = path.read_bytes()
                assert b"hunter2" not in text and b"swordfish" not in text, path
    assert (root / "etc/modules").stat().st_mode & 0o777 == 0o600
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == first


def test_modes_of_our_own_state(root: Path, middle: Path, tuner: Tuner) -> None:
    """The journal is for root alone, what was applied is for everybody, whatever the umask."""
    former = os.umask(0o077)
    try:
        assert tuner("apply", "--root", root, "--profile", middle).code == 0
    finally:
        os.umask(former)
    modes = {
        "var/lib/tuner": 0o700,
        "var/lib/tuner/generations/000001.jsonl": 0o600,
        "etc/tuner/applied": 0o755,
        "etc/tuner/applied/current.json": 0o644,
        "etc/modprobe.d/made/by": 0o755,
        "etc/modprobe.d/made/by/us.conf": 0o644,
    }
    assert {path: (root / path).stat().st_mode & 0o777 for path in modes} == modes


@pytest.fixture
def open_root(copy_host: Host) -> Iterator[Path]:
    """A host in a place that every user can reach."""
    if os.geteuid() != 0:
        unavailable("only root can become somebody else")
    folder = Path(tempfile.mkdtemp(prefix="tuner-test-"))
    folder.chmod(0o755)
    root = folder / "host"
    shutil.copytree(copy_host(), root, symlinks=True)
    yield root
    shutil.rmtree(folder)


def as_nobody(root: Path, log: Path, *words: str) -> tuple[int, str]:
    """Exit code and output of `tuner WORDS` run by a user without rights."""
    crash_child.load_all()

    def work() -> int:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        return crash_child.command([*words, "--root", str(root)])

    code = crash_child.ended(crash_child.fork(work, log))
    return code, log.read_text()


def test_without_root_verify_answers_from_the_cache(
    open_root: Path, middle: Path, tmp_path: Path, tuner: Tuner
) -> None:
    assert tuner("apply", "--root", open_root, "--profile", middle).code == 0
    code, out = as_nobody(open_root, tmp_path / "log", "verify")
    assert code == 0, out
    (open_root / "proc/sys/vm/swappiness").write_text("60\n")
    code, out = as_nobody(open_root, tmp_path / "log", "verify")
    assert code == 10, out
    assert "vm.swappiness" in out


def test_without_root_the_journal_is_closed(open_root: Path, middle: Path, tmp_path: Path, tuner: Tuner) -> None:
    assert tuner("apply", "--root", open_root, "--profile", middle).code == 0
    code, out = as_nobody(open_root, tmp_path / "log", "history")
    assert (code, "Traceback" in out) == (64, False)
    code, out = as_nobody(open_root, tmp_path / "log", "status")
    assert code == 0, out


@pytest.mark.parametrize("verb", ["rollback", "apply"])
def test_without_rights_nothing_is_written(
    verb: str, open_root: Path, middle: Path, tmp_path: Path, tuner: Tuner
) -> None:
    """A user without the rights to the files of a copied host: one error, no traceback."""
    assert tuner("apply", "--root", open_root, "--profile", middle).code == 0
    before = tree(open_root)
    code, out = as_nobody(open_root, tmp_path / "log", verb, *(["--profile", "linux-gpu"] if verb == "apply" else []))
    assert code in (20, 64), out
    assert "Permission denied" in out
    assert "hint:" in out
    assert "Traceback" not in out
    assert tree(open_root) == before


# the off-switch


def test_off_and_on(root: Path, middle: Path, tuner: Tuner) -> None:
    """An operator's apply and rollback still run and say that it is off; nothing is left of the switch afterwards."""
    first = tree(root)
    assert tuner("off", "--root", root, "--why", "kernel debugging").code == 0
    status = tuner("status", "--root", root, "--json").document
    assert "kernel debugging" in status["off"]
    assert "until tuner on" in status["off"]
    for verb, words in (("plan", ["--profile", middle]), ("apply", ["--profile", middle]), ("rollback", [])):
        result = tuner(verb, "--root", root, *words)
        assert result.code == (10 if verb == "plan" else 0)
        assert "tuner is off: kernel debugging" in result.out
    assert tuner("on", "--root", root).code == 0
    assert tuner("status", "--root", root, "--json").document["off"] is None
    assert tuner("on", "--root", root).code == 0
    assert tree(root) == first


@pytest.mark.parametrize(("span", "minutes"), [("30m", 30), ("2h", 120), ("1d", 1440)])
def test_off_for_a_while(span: str, minutes: int, root: Path, tuner: Tuner) -> None:
    before = datetime.datetime.now(datetime.timezone.utc)
    assert tuner("off", "--root", root, "--why", "test", "--for", span).code == 0
    until = datetime.datetime.fromisoformat(json.loads((root / "etc/tuner/off").read_text())["until"])
    assert abs((until - before).total_seconds() - 60 * minutes) < 10
    assert tuner("status", "--root", root, "--json").document["off"]


def test_off_that_has_expired_is_on(root: Path, tuner: Tuner) -> None:
    assert tuner("off", "--root", root, "--why", "test", "--for", "30m").code == 0
    file = root / "etc/tuner/off"
    file.write_text(json.dumps({**json.loads(file.read_text()), "until": "2020-01-01T00:00:00+00:00"}))
    assert tuner("status", "--root", root, "--json").document["off"] is None


@pytest.mark.parametrize("span", ["2", "h", "0h", "-1h", "2 h", "2w", "999999h", "", "1.5h"])
def test_off_for_what_is_no_span(span: str, root: Path, tuner: Tuner) -> None:
    first = tree(root)
    result = tuner("off", "--root", root, "--why", "test", f"--for={span}")
    assert result.code == 64
    assert "hint:" in result.err
    assert tree(root) == first


def test_off_by_the_boot_line(root: Path, middle: Path, tuner: Tuner) -> None:
    """tuner.off as a word of its own, not as part of another."""
    line = root / "proc/cmdline"
    line.chmod(0o644)
    for text, off in (("ro tuner.off quiet\n", True), ("ro xtuner.off tuner.offset=1\n", False)):
        line.write_text(text)
        found = tuner("status", "--root", root, "--json").document["off"]
        assert (found is not None) is off
    line.write_text("ro tuner.off\n")
    assert tuner("on", "--root", root).code == 0
    assert "tuner.off" in tuner("status", "--root", root, "--json").document["off"]
    assert tuner("apply", "--root", root, "--profile", middle).code == 0


@pytest.mark.parametrize("text", [b"", b"garbage", b"[1]", b"{}", b"\xff", b'{"until": 7}', b'{"until": "x"}', b"null"])
def test_switch_that_cannot_be_understood_is_off(text: bytes, root: Path, tuner: Tuner) -> None:
    """touch /etc/tuner/off by hand in an emergency must do."""
    (root / "etc/tuner").mkdir()
    (root / "etc/tuner/off").write_bytes(text)
    assert tuner("status", "--root", root, "--json").document["off"]
    assert tuner("on", "--root", root).code == 0
    assert tuner("status", "--root", root, "--json").document["off"] is None


def test_applied_state_and_switch_share_their_folder(root: Path, middle: Path, tuner: Tuner) -> None:
    """/etc/tuner goes when the last of the two is gone, in either order."""
    first = tree(root)
    for last in ("on", "rollback"):
        assert tuner("apply", "--root", root, "--profile", middle).code == 0
        assert tuner("off", "--root", root, "--why", "x").code == 0
        for verb in ("rollback", "on") if last == "on" else ("on", "rollback"):
            assert tuner(verb, "--root", root).code == 0
        assert tree(root) == first
