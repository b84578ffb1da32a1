"""A recorded host: the tree is the truth, the manifest answers for what is not there, nothing else is 'not there'."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.errors import Exit, TunerError
from tuner.host import Host, RecordedHost, Unrecorded, open_host
from tuner.readings import read
from tuner.sim import store

Tuner = Callable[..., Result]

MANIFEST = """\
tuner-host 1
file 0644 /.tuner-host/host.yaml
|name: x
|kernel: 6.1.0
absent /dev/kfd
dir 0755 /etc/sysctl.d
|10-a.conf
|unseen.conf
file 0644 /etc/sysctl.d/10-a.conf
|a = 1
errno EACCES /opt/secret
dir 0555 /proc/sys/vm
|compact_memory
|swappiness
|stat_refresh
file 0200 /proc/sys/vm/compact_memory
|
file 0444 /proc/sys/vm/stat_refresh
|7
file 0644 /proc/sys/vm/swappiness
|60
dir 0755 /sys/class/net
|eth0
|eth1
link 0777 /sys/class/net/eth0
+../../devices/eth0
errno EINVAL /sys/devices/eth0/speed
file 0444 /sys/devices/eth0/mtu
|1500
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The copy of a host of a dozen paths."""
    (tmp_path / "x.host").write_text(MANIFEST, encoding="utf-8")
    store.copy(tmp_path / "x.host", str(tmp_path / "x"), [])
    return tmp_path / "x"


def number_of(call: Callable[[], object]) -> int | None:
    """The errno that a call raises."""
    with pytest.raises(OSError) as raised:
        call()
    return raised.value.errno


# the tree is the truth


def test_the_kind_the_name_and_the_kernel_are_as_recorded(small: Path) -> None:
    host = open_host(str(small))
    assert (host.kind, host.name, host.kernel, str(host)) == ("recorded", "x", "6.1.0", "RECORDED x")


def test_a_hand_edit_is_read(small: Path) -> None:
    (small / "proc/sys/vm/swappiness").write_text("7\n")
    assert open_host(str(small)).text("/proc/sys/vm/swappiness") == "7\n"


def test_a_file_put_in_by_hand_is_there_and_listed(small: Path) -> None:
    (small / "etc/sysctl.d/99-mine.conf").write_text("b = 2\n")
    host = open_host(str(small))
    assert host.text("/etc/sysctl.d/99-mine.conf") == "b = 2\n"
    assert "99-mine.conf" in host.list("/etc/sysctl.d")


def test_what_was_recorded_as_absent_is_there_once_made_by_hand(small: Path) -> None:
    (small / "dev").mkdir(exist_ok=True)
    (small / "dev/kfd").touch()
    assert open_host(str(small)).exists("/dev/kfd")


@pytest.mark.parametrize(
    "path", ["/proc/sys/vm/swappiness", "/sys/class/net/eth0", "/sys/class/net", "/etc/sysctl.d", "/sys/devices/eth0"]
)
def test_what_was_removed_by_hand_is_not_there(small: Path, path: str) -> None:
    """Recorded as file, link or directory (implied ones too): ENOENT."""
    place = small / path[1:]
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()
    host = open_host(str(small))
    assert number_of(lambda: host.stat(path)) == errno.ENOENT
    assert not host.exists(path)


def test_a_file_removed_by_hand_is_no_longer_listed(small: Path) -> None:
    (small / "proc/sys/vm/swappiness").unlink()
    assert open_host(str(small)).list("/proc/sys/vm") == ["compact_memory", "stat_refresh"]


def test_what_lies_below_a_directory_removed_by_hand_is_not_there(small: Path) -> None:
    shutil.rmtree(small / "etc/sysctl.d")
    assert number_of(lambda: open_host(str(small)).read("/etc/sysctl.d/10-a.conf")) == errno.ENOENT
    assert number_of(lambda: open_host(str(small)).read("/etc/sysctl.d/unseen.conf")) == errno.ENOENT


# what the manifest answers


@pytest.mark.parametrize("path", ["/dev/kfd", "/etc/sysctl.d/50-b.conf", "/proc/sys/vm/nothing", "/sys/class/net/lo"])
def test_recorded_as_absent_or_not_in_the_recorded_listing_is_enoent(small: Path, path: str) -> None:
    host = open_host(str(small))
    assert number_of(lambda: host.read(path)) == errno.ENOENT
    assert not host.exists(path)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/opt/secret", errno.EACCES),
        ("/sys/devices/eth0/speed", errno.EINVAL),
        ("/sys/class/net/eth0/speed", errno.EINVAL),
    ],
)
def test_a_recorded_errno_is_raised_through_links_too(small: Path, path: str, number: int) -> None:
    assert number_of(lambda: open_host(str(small)).read(path)) == number


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/etc/passwd", "/etc/passwd"),
        ("/etc/sysctl.d/unseen.conf", "/etc/sysctl.d/unseen.conf"),
        ("/sys/class/net/eth1", "/sys/class/net/eth1"),
        ("/sys/class/net/eth1/mtu", "/sys/class/net/eth1"),
        ("/sys/class/net/eth0/address", "/sys/devices/eth0/address"),
        ("/proc/cpuinfo", "/proc/cpuinfo"),
        ("/proc/sys/net/core/rmem_max", "/proc/sys/net"),
        ("/home/user/file", "/home"),
        ("/opt/other", "/opt/other"),
        ("/run/systemd/private", "/run/systemd"),
        ("/var/lib/dpkg/status", "/var/lib/dpkg"),
        ("/var/log", "/var/log"),
    ],
)
def test_all_else_is_unrecorded_and_never_not_there(small: Path, path: str, named: str) -> None:
    host = open_host(str(small))
    for ask in (host.read, host.list, host.stat, host.exists, host.link):
        with pytest.raises(Unrecorded) as raised:
            ask(path)
        assert raised.value.path.split(" ")[0] == named


@pytest.mark.parametrize("path", ["/", "/etc", "/proc", "/proc/sys", "/sys/devices", "/sys/devices/eth0"])
def test_the_listing_of_an_implied_directory_is_unrecorded(small: Path, path: str) -> None:
    with pytest.raises(Unrecorded):
        open_host(str(small)).list(path)


def test_a_listing_has_the_names_that_cannot_lie_in_a_tree(tmp_path: Path) -> None:
    """An errno entry, and a name whose content nobody recorded, are names all the same."""
    text = MANIFEST + "dir 0755 /sys/devices/eth0\n|address\n|mtu\n|speed\n"
    (tmp_path / "x.host").write_text(text, encoding="utf-8")
    store.copy(tmp_path / "x.host", str(tmp_path / "x"), [])
    host = open_host(str(tmp_path / "x"))
    assert host.list("/sys/devices/eth0") == ["address", "mtu", "speed"]
    assert host.list("/sys/class/net/eth0") == ["address", "mtu", "speed"]
    assert host.list("/etc/sysctl.d") == ["10-a.conf", "unseen.conf"]


def test_the_mark_is_hidden_in_the_listing_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "x.host").write_text(MANIFEST + "dir 0755 /\n|etc\n|proc\n|sys\n", encoding="utf-8")
    store.copy(tmp_path / "x.host", str(tmp_path / "x"), [])
    host = open_host(str(tmp_path / "x"))
    assert ".tuner-host" in os.listdir(tmp_path / "x")
    assert ".tuner-host" not in host.list("/")
    assert {"etc", "proc", "sys"} <= set(host.list("/"))


@pytest.mark.parametrize(
    "path",
    [
        "/run/tuner/lock",
        "/run/tuner",
        "/var/lib/tuner/generations",
        "/var/lib/tuner",
        "/etc/tuner/applied/current.json",
    ],
)
def test_tuners_own_state_is_never_unrecorded(small: Path, path: str) -> None:
    """No capture knows it: not there means not there."""
    host = open_host(str(small))
    assert host.exists(path) is False
    assert number_of(lambda: host.read(path)) == errno.ENOENT


# modes


def test_a_file_that_may_only_be_written_cannot_be_read_by_root_either(small: Path) -> None:
    host = open_host(str(small))
    assert number_of(lambda: host.read("/proc/sys/vm/compact_memory")) == errno.EACCES
    assert host.writable("/proc/sys/vm/compact_memory")


def test_a_file_without_a_write_bit_cannot_be_written_by_root_either(small: Path) -> None:
    host = open_host(str(small))
    assert not host.writable("/proc/sys/vm/stat_refresh")
    assert number_of(lambda: host.write("/proc/sys/vm/stat_refresh", "1\n")) == errno.EACCES
    assert (small / "proc/sys/vm/stat_refresh").read_text() == "7\n"


def test_a_path_recorded_as_absent_is_not_there_whatever_is_known_above_it(root: Path) -> None:
    """A capture looks for /usr/local/lib/sysctl.d: nothing else below /usr/local need be known."""
    assert not open_host(str(root)).exists("/usr/local/lib/sysctl.d")


def test_a_write_never_creates_a_kernel_file(small: Path) -> None:
    host = open_host(str(small))
    assert number_of(lambda: host.write("/proc/sys/vm/nothing", "1\n")) == errno.ENOENT
    with pytest.raises(Unrecorded):
        host.write("/proc/sys/net/core/rmem_max", "1\n")
    assert not (small / "proc/sys/net").exists()


def test_kernel_files_are_written_and_ordinary_files_are_put(small: Path) -> None:
    host = open_host(str(small))
    with pytest.raises(ValueError):
        host.put("/proc/sys/vm/swappiness", b"1\n")
    with pytest.raises(ValueError):
        host.write("/etc/sysctl.d/10-a.conf", "a = 2\n")


def test_a_default_write_is_stripped_and_ends_with_a_newline(small: Path) -> None:
    """A kernel file without a rule: strip, keep the separators it has, one newline."""
    host = open_host(str(small))
    host.write("/proc/sys/vm/swappiness", "  1 2 \n\n")
    assert (small / "proc/sys/vm/swappiness").read_text() == "1 2\n"
    (small / "proc/sys/vm/swappiness").write_text("1\t2\t3\n")
    host.write("/proc/sys/vm/swappiness", "4 5 6")
    assert (small / "proc/sys/vm/swappiness").read_text() == "4\t5\t6\n"


# verdicts


def test_an_unrecorded_path_is_the_verdict_unknown(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "p.yaml", "file:\n  /opt/vendor/conf: x\nthp:\n  enabled: always")
    result = tuner("plan", "--profile", profile, "--root", root, "--json")
    found = {v["target"]: v for v in result.document["verdicts"]}
    assert result.code == Exit.UNKNOWN
    assert found["/opt/vendor/conf"]["state"] == "unknown"
    assert found["/opt/vendor/conf"]["state_why"].startswith("not recorded /opt")
    assert found["/opt/vendor/conf"]["running"] is None
    assert found["enabled"]["state"] == "ok"


def test_what_is_unknown_is_not_written(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    before = tree(root)
    profile = write_profile(tmp_path / "p.yaml", "file:\n  /opt/vendor/conf: x")
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.UNKNOWN
    after = tree(root)
    assert {p for p in after if p not in before} <= {"etc/tuner", "run", "var/lib"}
    assert all(after[path] == before[path] for path in before)


def test_a_file_below_tuners_own_directory_in_run_does_not_hide_other_files(root: Path) -> None:
    """run/ and var/lib/ are made for tuner's state; what else lies there was never looked at."""
    host = open_host(str(root))
    with pytest.raises(Unrecorded):
        host.exists("/run/udev")
    assert not host.exists("/run/sysctl.d")


# a broken copy is bad input before the first write

BROKEN: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda mark: (mark / "manifest").unlink(),
    "a manifest that is none": lambda mark: (mark / "manifest").write_text("hello\n"),
    "a directory for a manifest": lambda mark: (
        (mark / "manifest").rename(mark / "other").parent.joinpath("manifest").mkdir()
    ),
    "no host.yaml": lambda mark: (mark / "host.yaml").unlink(),
    "an empty host.yaml": lambda mark: (mark / "host.yaml").write_text(""),
    "a host.yaml without kernel": lambda mark: (mark / "host.yaml").write_text("name: x\n"),
    "a host.yaml that is a list": lambda mark: (mark / "host.yaml").write_text("- name\n- kernel\n"),
    "a host.yaml that is no YAML": lambda mark: (mark / "host.yaml").write_text("{name: x\n"),
    "a host.yaml that is no UTF-8": lambda mark: (mark / "host.yaml").write_bytes(b"name: \xff\nkernel: 6.1\n"),
    "a host.yaml of many parts": lambda mark: (mark / "host.yaml").write_text("name: [a]\nkernel: {b: c}\n"),
    "a kernel.yaml that is no YAML": lambda mark: (mark / "kernel.yaml").write_text("rules: {\n"),
    "a kernel.yaml that is a list": lambda mark: (mark / "kernel.yaml").write_text("[1, 2]\n"),
    "a kernel.yaml with an unknown part": lambda mark: (mark / "kernel.yaml").write_text("rulez: {}\n"),
    "a kernel.yaml that is no UTF-8": lambda mark: (mark / "kernel.yaml").write_bytes(b"rules: {\xff: {}}\n"),
    "rules that are a list": lambda mark: (mark / "kernel.yaml").write_text("rules: [a]\n"),
    "rules of null": lambda mark: (mark / "kernel.yaml").write_text("rules:\nfaults:\n  x:\n"),
    "an unknown behaviour": lambda mark: (mark / "kernel.yaml").write_text("rules: {/proc/x: {is: magic}}\n"),
    "a chosen fault that is not offered": lambda mark: (mark / "faults").write_text("nothing-like-it\n"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_copy_is_bad_input_and_nothing_is_written(small: Path, tuner: Tuner, tmp_path: Path, how: str) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl:\n  vm.swappiness: 1\n")
    BROKEN[how](small / ".tuner-host")
    before = tree(small)
    result = tuner("apply", "--profile", profile, "--root", small)
    assert result.code == Exit.BAD_INPUT
    assert ".tuner-host" in result.err
    assert "hint:" in result.err
    assert tree(small) == before


def test_a_copy_without_rules_takes_what_is_written(small: Path) -> None:
    host = open_host(str(small))
    host.ready()
    host.write("/proc/sys/vm/swappiness", "5\n")
    assert host.text("/proc/sys/vm/swappiness") == "5\n"


def test_a_recorded_host_never_reads_this_machine(small: Path) -> None:
    """An absolute link leads into the copy, never to the machine that runs tuner."""
    (small / "etc/hostname").symlink_to("/etc/hostname")
    (small / "etc/passwd").symlink_to("/proc/self/status")
    host: Host = open_host(str(small))
    assert isinstance(host, RecordedHost)
    assert number_of(lambda: host.read("/etc/hostname")) == errno.ELOOP
    with pytest.raises(Unrecorded):
        host.read("/etc/passwd")


@pytest.mark.parametrize("missing", ["nowhere", "file"])
def test_a_root_that_is_no_host_is_bad_input(tmp_path: Path, missing: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in (missing, "empty"):
        with pytest.raises(TunerError) as raised:
            open_host(str(tmp_path / name))
        assert raised.value.code == Exit.BAD_INPUT


@pytest.mark.parametrize("root", ["/", "//", "/.", "/../", "/proc/self/root"])
def test_this_machine_is_live_however_it_is_written(root: str) -> None:
    """An image needs no root and no lock of the machine: the running system must not pass for one."""
    if os.path.isdir(root):
        assert open_host(root).kind == "live"


def test_an_image_has_no_running_values(tmp_path: Path) -> None:
    """A tree without the mark is an image: only files are judged there."""
    from tuner.knobs import BY_NAME
    from tuner.model import Absent

    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/swappiness").write_text("60\n")
    host = open_host(str(tmp_path))
    assert str(host) == f"IMAGE {tmp_path}"
    assert read(host, BY_NAME["sysctl"], "vm.swappiness") == Absent("image")
