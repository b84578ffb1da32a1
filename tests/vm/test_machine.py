"""The machine itself: a test that hangs says why, and no qemu is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.vm import image as images
from tests.vm import recipe
from tests.vm.image import Image
from tests.vm.machine import Hung, Machine, Snapshot

CHILD = """
import sys, time
from pathlib import Path
from tests.vm.image import Image
from tests.vm.machine import Machine
vm = Machine(Image(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
vm._start(vm._direct())
print(vm._qemu.pid, vm._sockets, flush=True)
time.sleep(300)
"""


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for a skip says which package to install."""
    monkeypatch.setattr(images, "PROGRAMS", {"no-such-program": "its-package", "sh": "dash"})
    assert images.missing() == "a virtual machine needs the packages its-package"


def test_one_worker_has_the_machine(request: pytest.FixtureRequest) -> None:
    """pytest-xdist saw the group, and says so in the name of each test."""
    assert request.node.get_closest_marker("xdist_group").args == ("vm",)
    assert request.node.nodeid.endswith("@vm") == bool(getattr(request.config.option, "loadgroup", False))


def test_lock_is_waited_for_and_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second holder waits; after its limit it says who is in its way."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with (
        images.locked("x"),
        pytest.raises(TimeoutError, match=r"another test run holds .*/x\.lock"),
        images.locked("x", 0),
    ):
        pass
    with images.locked("x", 0):
        pass


def test_a_broken_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a half nor a folder with the image's name; unreachable packages are said to be that."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(recipe, "SUITE", "no-such-suite")
    if reason := images.missing():
        unavailable(reason)
    with images.locked("x"), pytest.raises(images.Unreachable, match="no-such-suite"):
        images.image()
    assert [path.name for path in images.cache().iterdir()] == ["x.lock"]


def test_commands(vm: Machine, tmp_path: Path) -> None:
    """Words stay words, a text is a script, the exit code and both outputs come back; files arrive as they are."""
    odd = "a b'c\"$HOME\n*"
    assert vm.ok(["printf", "%s", odd]) == odd
    found = vm.run("echo out; echo err >&2; exit 3")
    assert (found.code, found.out, found.err) == (3, "out\n", "err\n")
    (tmp_path / "in/below").mkdir(parents=True)
    (tmp_path / "in/below/file").write_bytes(b"\0\xff")
    vm.copy_in(tmp_path / "in", "/srv/there")
    vm.copy_in(tmp_path / "in/below/file", "/srv/one/more")
    assert vm.ok("cd /srv; stat -c '%U %s' there/below/file one/more").splitlines() == ["root 2", "root 2"]
    assert abs(float(vm.ok(["date", "+%s"])) - time.time()) < 30


def test_every_test_has_a_fresh_machine(vm: Machine, prepared: tuple[Image, Snapshot], tmp_path: Path) -> None:
    """What one wrote is not there in the next: two NUMA nodes, the product of root, nothing applied."""
    vm.write("/srv/mark", "")
    vm.off()
    (tmp_path / "next").mkdir()
    image, snapshot = prepared
    other = Machine(image, tmp_path / "next", str(snapshot.disk))
    try:
        other.restore(snapshot)
        assert other.run(["test", "-e", "/srv/mark"]).code == 1
        assert other.ok("echo /sys/devices/system/node/node[0-9]*/meminfo").count("meminfo") == 2
        assert other.ok("stat -c %U /opt/tuner/bin/tuner; tuner --version").startswith("root\ntuner ")
        assert other.tuner("verify")[0] == 64
    finally:
        other.close()


def test_power_cut(vm: Machine) -> None:
    """What was not synced is lost or not, but the machine comes up again from the same disk, in another boot."""
    boot = vm.read("/proc/sys/kernel/random/boot_id")
    vm.write("/srv/synced", "here")
    vm.ok(["sync"])
    vm.cut_power()
    assert vm.read("/srv/synced") == "here"
    assert vm.read("/proc/sys/kernel/random/boot_id") != boot


def test_a_hung_command_shows_the_serial_log(vm: Machine) -> None:
    """Within its limit, with what the kernel said last."""
    vm.ok("echo 'a last word' > /dev/ttyS0")
    with pytest.raises(Hung, match=r"(?s)no end of: sleep 60 \(2 s\).*a last word"):
        vm.run(["sleep", "60"], limit=2)


def test_a_panic_is_seen_at_once(vm: Machine) -> None:
    """The machine ends instead of standing still, and the test says so with the kernel's text."""
    with pytest.raises(Hung, match=r"(?s)the connection was lost.*sysrq triggered crash"):
        vm.run("echo c > /proc/sysrq-trigger", limit=120)


def test_nothing_is_left_when_the_tests_are_killed(prepared: tuple[Image, Snapshot], tmp_path: Path) -> None:
    """qemu dies with the process that started it, even when that had no chance to clean up."""
    image, _ = prepared
    words = [sys.executable, "-c", CHILD, str(image.folder), str(tmp_path), str(image.disk)]
    with images.locked("machine"), subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid, sockets = child.stdout.readline().split()
        assert b"qemu-system" in Path(f"/proc/{pid}/cmdline").read_bytes()
        child.send_signal(signal.SIGKILL)
        child.wait()
    end = time.monotonic() + 20
    while (alive := _alive(int(pid))) and time.monotonic() < end:
        time.sleep(0.1)
    shutil.rmtree(sockets)
    if alive:
        os.kill(int(pid), signal.SIGKILL)
    assert not alive


def _alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
