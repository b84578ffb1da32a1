"""shm: sizes as tmpfs takes them, the size that a mount has, and what to do about one that is too small."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, again, write_profile
from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue
from tuner.evidence import note
from tuner.host import Host, open_host
from tuner.knobs.shm import SHM, Shm
from tuner.model import Absent, Seen, Setting, Unreadable, Value, Want
from tuner.nextboot import ask

Tuner = Callable[..., Result]
KNOB = Shm()
MOUNTS = "proc/self/mountinfo"
GIB = 1024**3
RAM = 2017036 * 1024
"""MemTotal of the guest."""

MOUNT = "27 22 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs"


def mounted(root: Path, *lines: str) -> Host:
    """The copied host with these mounts."""
    (root / MOUNTS).chmod(0o644)
    (root / MOUNTS).write_text("".join(f"{line}\n" for line in lines))
    return open_host(str(root))


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ("rw,size=24684084k", 24684084 * 1024),
        ("rw,size=65536k,inode64", 64 * 1024**2),
        ("rw,size=0k", 0),
        ("rw,inode64", 252129 * 4096),
        ("rw", 252129 * 4096),
    ],
)
def test_the_size_of_the_mount(root: Path, options: str, size: int) -> None:
    """Shown in kB; where it is not, half of the memory's pages (shmem_default_max_blocks): 504259 of them here."""
    assert KNOB.read(mounted(root, f"{MOUNT} {options}"), SHM) == Seen(size)


def test_the_topmost_mount_counts(root: Path) -> None:
    """A sandbox mounts its own over that of the host; other places do not count."""
    lines = (
        "25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw,size=1024k",
        "30 25 0:27 / /dev/shm rw - tmpfs shm rw,size=8k",
        "31 25 0:28 / /dev/shm/deep rw - tmpfs tmpfs rw,size=4k",
        "32 1 0:29 / /run rw - tmpfs tmpfs rw,size=12k",
    )
    assert KNOB.read(mounted(root, *lines), SHM) == Seen(8192)


@pytest.mark.parametrize("lines", [(), ("27 22 0:23 / /dev/shm rw - ramfs none rw",), ("1 1 0:1 / / rw - ext4 a rw",)])
def test_no_tmpfs(root: Path, lines: tuple[str, ...]) -> None:
    """Nothing mounted there, or something else: absent, and no target of a pattern."""
    host = mounted(root, *lines)
    assert KNOB.read(host, SHM) == Absent("no tmpfs is mounted on /dev/shm")
    assert KNOB.targets(host) == []


@pytest.mark.parametrize("options", ["rw,size=8G", "rw,size=", "rw,size=-1k"])
def test_a_size_that_no_kernel_shows(root: Path, options: str) -> None:
    """Never taken for a number."""
    assert isinstance(KNOB.read(mounted(root, f"{MOUNT} {options}"), SHM), Unreadable)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("0", 0), ("8589934592", 8 * GIB), ("8G", 8 * GIB), ("8g", 8 * GIB), ("0x10M", 16 * 1024**2), ("64k", 65536),
        ("2T", 2048 * GIB), ("50%", {"percent": 50}), ("100%", {"percent": 100}), (" 1G ", GIB),
    ],
)  # fmt: skip
def test_sizes_as_tmpfs_takes_them(raw: str, value: Value) -> None:
    """Documentation/filesystems/tmpfs.rst: a suffix k, m or g, or a share of the memory; memparse knows t too."""
    assert KNOB.parse(SHM, raw) == value


@pytest.mark.parametrize(
    "raw", ["", "G", "8 G", "8GB", "8GiB", "1.5G", "-1", "0%", "50 %", "half", "010M", "16E", None, ["8G"], "99999999T"]
)
def test_refused_sizes(raw: object) -> None:
    """What tmpfs refuses or takes for something else, and more than any file system can have."""
    with pytest.raises(BadValue) as error:
        KNOB.parse(SHM, raw)  # type: ignore[arg-type]
    assert error.value.hint


@given(st.integers(0, 2**32), st.sampled_from(["", "k", "M", "G"]))
def test_every_number_with_every_unit(count: int, unit: str) -> None:
    """Bytes, whole pages after rounding up."""
    value = KNOB.parse(SHM, f"{count}{unit}")
    assert value == count * {"": 1, "k": 1024, "M": 1024**2, "G": GIB}[unit]
    held = KNOB.normalise(Host("/nonexistent", "recorded", "", ""), SHM, value)
    assert isinstance(held, int)
    assert 0 <= held - int(str(value)) < 4096
    assert held % 4096 == 0


@pytest.mark.parametrize(("share", "size"), [("50%", 252130 * 4096), ("100%", 504259 * 4096), ("1%", 5043 * 4096)])
def test_a_share_of_the_memory(root: Path, share: str, size: int) -> None:
    """mm/shmem.c: the share of 504259 pages in bytes, rounded up to pages; its own default rounds down."""
    assert KNOB.normalise(open_host(str(root)), SHM, KNOB.parse(SHM, share)) == size


def test_pages_of_64_kb(monkeypatch: pytest.MonkeyPatch) -> None:
    """arm64 as Grace hosts boot it."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 65536}.__getitem__)
    assert KNOB.normalise(Host("/", "live", "", ""), SHM, 1) == 65536


@pytest.mark.parametrize("target", ["/dev", "/dev/shm/", "*", "/run/shm", ""])
def test_other_targets_are_refused(target: str) -> None:
    """There is one."""
    with pytest.raises(BadValue):
        KNOB.canonical(target)


@pytest.mark.parametrize(
    ("options", "want", "state"),
    [
        ("rw,size=8388608k", "{at_least: 8G}", "ok"),
        ("rw,size=8388604k", "{at_least: 8G}", "drift"),
        ("rw,size=16777216k", "{at_least: 8G}", "raised"),
        ("rw,size=0k", "{at_least: 8G}", "raised"),
        ("rw", "{at_least: 25%}", "raised"),
        ("rw", "{at_least: 75%}", "drift"),
        ("rw,size=65536k", "64M", "ok"),
        ("rw,size=0k", "{at_most: 8G}", "drift"),
    ],
)
def test_verdicts(root: Path, tuner: Tuner, tmp_path: Path, options: str, want: str, state: str) -> None:
    """Bounds go by the size, no limit is more than any; nothing is ever planned to be written."""
    mounted(root, f"{MOUNT} {options}")
    profile = write_profile(tmp_path / "p.yaml", f"shm:\n  /dev/shm: {want}")
    result = tuner("plan", "--root", root, "--json", "--profile", profile)
    assert result.document["counts"] == {state: 1}
    assert result.document["changes"] == []
    assert result.code == (10 if state == "drift" else 0)


def test_what_to_do(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """The command for now, and the line of /etc/fstab with the options that the mount has; apply writes nothing."""
    mounted(root, f"{MOUNT} rw,size=65536k,inode64")
    profile = write_profile(tmp_path / "p.yaml", "shm:\n  /dev/shm: {at_least: 8G}")
    result = tuner("apply", "--root", root, "--json", "--profile", profile)
    assert result.document["outcomes"] == []
    (verdict,) = tuner("plan", "--root", root, "--json", "--profile", profile).document["verdicts"]
    assert "mount -o remount,size=8G /dev/shm" in verdict["state_why"]
    assert "/etc/fstab: tmpfs /dev/shm tmpfs nosuid,nodev,size=8G 0 0" in verdict["state_why"]


@pytest.mark.parametrize(("size", "text"), [(8 * GIB, "8G"), (3 * GIB // 2, "1536M"), (12288, "12k"), (0, "0")])
def test_sizes_in_commands(root: Path, size: int, text: str) -> None:
    """The largest unit that divides it, so that a person can read it; mount takes it back for the same size."""
    assert f"size={text} " in KNOB.advice(mounted(root, f"{MOUNT} rw"), SHM, size)
    assert KNOB.parse(SHM, text) == size


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
@pytest.mark.parametrize(
    ("path", "line", "same"),
    [
        ("proc/self/mountinfo", "99 24 0:99 / /run/user/1000 rw - tmpfs tmpfs rw,size=1024k", True),
        ("proc/self/mountinfo", "99 27 0:99 / /dev/shm rw - tmpfs tmpfs rw,size=1024k", False),
        ("proc/meminfo", "Dirty:                12 kB", True),
        ("proc/meminfo", "MemTotal:        2017040 kB", False),
    ],
)
def test_other_mounts_are_no_evidence_and_one_above_it_is(root: Path, path: str, line: str, same: bool) -> None:
    """Mounts come and go on a node, and so does memory: only the lines that decide are looked at."""
    host = mounted(root, f"{MOUNT} rw")
    noted = note(host)
    assert KNOB.read(host, SHM) == Seen(252129 * 4096)
    assert again(noted)
    (root / path).write_text(f"{(root / path).read_text()}{line}\n")
    assert again(noted) is same


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
def test_a_first_mount_is_seen(root: Path) -> None:
    """That there was none is evidence too."""
    host = mounted(root, "30 24 0:30 / /tmp rw - tmpfs tmpfs rw")
    noted = note(host)
    assert isinstance(KNOB.read(host, SHM), Absent)
    assert again(noted)
    mounted(root, f"{MOUNT} rw")
    assert not again(noted)


# --- the next boot


@pytest.mark.parametrize(
    ("fstab", "size", "line"),
    [
        ("tmpfs /dev/shm tmpfs nosuid,nodev,size=8G 0 0\n", 8 * GIB, 1),
        ("# a comment\n\nnone /dev/shm/ tmpfs size=50% 0 0\n", 252130 * 4096, 3),
        ("tmpfs /dev/shm tmpfs size=1G,size=2G 0 0\n", 2 * GIB, 1),
        ("tmpfs /dev/shm tmpfs size=0 0 0\n", 0, 1),
        ("tmpfs /dev/shm tmpfs defaults 0 0\n", 252129 * 4096, 1),
        ("#tmpfs /dev/shm tmpfs size=8G 0 0\n", 252129 * 4096, 0),
        ("tmpfs /tmp tmpfs size=8G 0 0\n", 252129 * 4096, 0),
        ("", 252129 * 4096, 0),
    ],
)
def test_the_size_after_the_next_boot(root: Path, fstab: str, size: int, line: int) -> None:
    """systemd-remount-fs(8) applies the line of /etc/fstab; without one it is half of the memory, whatever runs now."""
    (root / "etc/fstab").write_text(fstab)
    host = mounted(root, f"{MOUNT} rw,size=65536k")
    assert ahead(host) == Next(Seen(size), f"/etc/fstab:{line}" if line else "")


def test_what_is_not_predicted(root: Path) -> None:
    (root / "etc/fstab").write_text("tmpfs /dev/shm tmpfs size=lots 0 0\n")
    host = mounted(root, f"{MOUNT} rw")
    assert isinstance(ahead(host).reading, Unreadable)
    (root / "etc/systemd/system/dev-shm.mount").write_text("[Mount]\nOptions=size=1G\n")
    found = ahead(host).reading
    assert isinstance(found, Unreadable)
    assert "dev-shm.mount mounts it" in found.why


def ahead(host: Host) -> Next:
    """The next boot of the one target."""
    return ask(KNOB, Boots(host), Setting("shm", SHM, SHM, Want("value", GIB), "p.yaml:1", "why", "source"))
