"""A shell and the live door, against a mounted recorded host: what a program meets there is what our code meets.

The live door is `Host(MOUNTPOINT, "live", ...)`: it opens, reads and writes files as on a machine, and the errors come
out of the kernel's own read(2) and write(2).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import tree
from tests.fuse.conftest import PATIENCE, REPO, is_mounted, mounted
from tuner import applied as cache
from tuner import idle, lock
from tuner import plan as planning
from tuner.apply import apply
from tuner.cli.common import begin_line
from tuner.host import Host, RecordedHost
from tuner.journal import Journal
from tuner.knobs.amdgpu import AmdgpuClock
from tuner.ledger import fold
from tuner.model import Plan, Reading, Seen
from tuner.profile import load_profile
from tuner.run import Report, Stop
from tuner.undo import rollback

Mount = Callable[[Path], Path]

THP = "/sys/kernel/mm/transparent_hugepage/enabled"
SWAPPINESS = "/proc/sys/vm/swappiness"
GPU = "/sys/bus/pci/devices/0000:05:00.0"
RMEM = "/proc/sys/net/core/rmem_max"
LIVE = {"name": "plain-vm", "kernel": "6.1.0"}

REFUSALS = (
    (THP, "sometimes", errno.EINVAL),
    (THP, "Always", errno.EINVAL),
    ("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "2", errno.EINVAL),
    ("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none", "512", errno.EINVAL),
    ("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "0x10", errno.EINVAL),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "many", errno.EINVAL),
    ("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "4096", errno.EACCES),
    (SWAPPINESS, "08", errno.EINVAL),
    (SWAPPINESS, "-1", errno.EINVAL),
    (SWAPPINESS, "201", errno.EINVAL),
    (SWAPPINESS, "ten", errno.EINVAL),
    (RMEM, "2303", errno.EINVAL),
    (RMEM, "16M", errno.EINVAL),
    ("/proc/sys/vm/overcommit_memory", "3", errno.EINVAL),
    ("/proc/sys/vm/watermark_scale_factor", "0", errno.EINVAL),
    ("/proc/sys/net/ipv4/tcp_rmem", "0 131072 6291456", errno.EINVAL),
    ("/proc/sys/net/ipv4/tcp_congestion_control", "vegas", errno.ENOENT),
    ("/proc/sys/net/core/default_qdisc", "nosuch", errno.ENOENT),
    ("/proc/sys/kernel/nmi_watchdog", "1", errno.EOPNOTSUPP),
    ("/proc/sys/kernel/ostype", "BSD", errno.EACCES),
)
"""Documentation/admin-guide/sysctl/, networking/ip-sysctl.rst and admin-guide/mm/transhuge.rst say what is taken."""

UNREADABLE = (
    ("/proc/sys/vm/compact_memory", errno.EACCES),
    ("/proc/sys/vm/drop_caches", errno.EACCES),
    ("/sys/class/net/lo/speed", errno.EINVAL),
    ("/proc/sys/net/ipv6/conf/lo/stable_secret", errno.EIO),
)
"""A write bit only; no speed on loopback; a secret that was never set."""


@pytest.fixture(scope="module")
def shared(masters: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """(root, mountpoint) of one plain-vm, for tests that must change nothing."""
    folder = tmp_path_factory.mktemp("fuse")
    root = folder / "plain-vm"
    subprocess.run(["cp", "-a", masters(), root], check=True, timeout=PATIENCE)
    with mounted(root, folder / "mounted") as at:
        yield root, at


def sh(script: str, *words: object) -> tuple[str, str]:
    """stdout and stderr of a bash script; $1 and on are the words."""
    argv = ["bash", "-c", script, "sh", *map(str, words)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    return done.stdout, done.stderr


def refused(call: Callable[[], object]) -> int | None:
    """The errno that a call fails with."""
    with pytest.raises(OSError) as caught:
        call()
    return caught.value.errno


def kinds(path: str) -> str:
    """A parametrised path in short."""
    return path.rpartition("/")[2]


@pytest.mark.parametrize(("path", "text", "number"), REFUSALS, ids=[f"{kinds(p)}={t}" for p, t, _ in REFUSALS])
def test_echo_is_refused_as_our_code_is(shared: tuple[Path, Path], path: str, text: str, number: int) -> None:
    """The same errno out of the shell's write(2), the live door's and the recorded door's; the value stays."""
    root, at = shared
    before = (root / path[1:]).read_bytes()
    _, said = sh('echo "$1" > "$2"', text, f"{at}{path}")
    assert said.strip().endswith(os.strerror(number))
    assert refused(lambda: Host(str(at), "live", **LIVE).write(path, f"{text}\n")) == number
    assert refused(lambda: RecordedHost(str(root)).write(path, f"{text}\n")) == number
    assert (root / path[1:]).read_bytes() == before


@pytest.mark.parametrize(("path", "number"), UNREADABLE, ids=[kinds(path) for path, _ in UNREADABLE])
def test_cat_fails_as_our_code_does(shared: tuple[Path, Path], path: str, number: int) -> None:
    """What the kernel does not let even root read, and reads that were recorded as failing."""
    root, at = shared
    out, said = sh('cat "$1"', f"{at}{path}")
    assert out == ""
    assert said.strip().endswith(os.strerror(number))
    assert refused(lambda: Host(str(at), "live", **LIVE).read(path)) == number
    assert refused(lambda: RecordedHost(str(root)).read(path)) == number


def test_cat_reads_every_byte(shared: tuple[Path, Path]) -> None:
    """Every file of /proc/sys/vm and the boot line, as they lie in the copy."""
    root, at = shared
    folder = root / "proc/sys/vm"
    paths = [p for p in folder.iterdir() if p.is_file() and p.stat().st_mode & 0o444] + [root / "proc/cmdline"]
    assert len(paths) > 30
    for path in paths:
        assert sh('cat "$1"', at / path.relative_to(root)) == (path.read_text(), "")


def test_the_mark_is_not_shown(shared: tuple[Path, Path]) -> None:
    """Nobody meets `.tuner-host`, so that the mount is taken for a machine."""
    root, at = shared
    assert (root / ".tuner-host/manifest").exists()
    for name in (".tuner-host", ".tuner-host/manifest", ".tuner-host/kernel.yaml"):
        assert refused(lambda name=name: os.stat(at / name)) == errno.ENOENT  # type: ignore[misc]


def test_what_nobody_recorded_is_not_absent(shared: tuple[Path, Path]) -> None:
    """The listing of / was not recorded: nobody may look, which is neither ENOENT nor an empty listing."""
    assert refused(lambda: os.listdir(shared[1])) == errno.EACCES


def test_nothing_is_made_or_removed_below_proc_and_sys(shared: tuple[Path, Path]) -> None:
    """As on a machine: touch, mkdir and rm fail, and the copy is as before."""
    root, at = shared
    before = tree(root)
    assert sh("touch $1/proc/sys/vm/mine", at)[1].strip().endswith(os.strerror(errno.ENOENT))
    assert sh("touch $1/sys/kernel/mm/transparent_hugepage/mine", at)[1].strip().endswith(os.strerror(errno.EACCES))
    assert sh("mkdir $1/sys/kernel/mm/transparent_hugepage/mine", at)[1].strip().endswith(os.strerror(errno.EPERM))
    assert sh("rm -f $1/proc/sys/vm/swappiness", at)[1]
    assert sh("mv $1/sys/kernel/mm/transparent_hugepage/defrag $1/etc/sysctl.d/", at)[1]
    assert tree(root) == before


def test_echo_goes_through_the_rules(root: Path, mount: Mount) -> None:
    """A chosen word gets the brackets, a number is rounded up, hex becomes decimal, one of a pair zeroes the other."""
    at = mount(root)
    assert sh("echo never > $1; cat $1", f"{at}{THP}") == ("always madvise [never]\n", "")
    assert sh("echo 3000 > $1; cat $1", at / "proc/sys/net/core/rps_sock_flow_entries") == ("4096\n", "")
    assert sh("echo 0x10 > $1; cat $1", f"{at}{SWAPPINESS}") == ("16\n", "")
    assert sh("echo 1048576 > $1/dirty_bytes; cat $1/dirty_ratio", at / "proc/sys/vm") == ("0\n", "")
    assert (root / SWAPPINESS[1:]).read_text() == "16\n"


def test_every_write_is_one_write_of_the_kernel(root: Path, mount: Mount) -> None:
    """Two echoes into one redirection: the first is taken, the second refused; nothing is gathered or put off."""
    at = mount(root)
    _, said = sh("{ echo never; echo bogus; } > $1", f"{at}{THP}")
    assert said.count(os.strerror(errno.EINVAL)) == 1
    assert (root / THP[1:]).read_text() == "always madvise [never]\n"


def test_appending_and_truncating_are_plain_writes(root: Path, mount: Mount) -> None:
    """`>>` as on a machine, and a `>` that writes nothing leaves the value."""
    path = f"{mount(root)}{SWAPPINESS}"
    assert sh("echo 7 >> $1; cat $1; : > $1; cat $1", path) == ("7\n7\n", "")


def test_reads_are_never_cached(root: Path, mount: Mount) -> None:
    """A handle that is read, rewound and read again sees what was written to the copy meanwhile; so does a new one."""
    at = mount(root)
    with open(f"{at}{SWAPPINESS}", "rb", buffering=0) as file:
        assert file.read() == b"60\n"
        (root / SWAPPINESS[1:]).write_text("17\n")
        file.seek(0)
        assert file.read() == b"17\n"
    assert sh("cat $1", f"{at}{SWAPPINESS}")[0] == "17\n"


def test_ordinary_files(root: Path, mount: Mount) -> None:
    """Made, appended to, cut, replaced by a rename and removed by a shell, as in any folder."""
    folder = mount(root) / "etc/sysctl.d"
    make = "umask 022; cd $1; echo one > a; echo two >> a; cp a b; chmod 600 b; truncate -s 4 a; mkdir d; mv a d/c"
    assert sh(f"{make}; cat d/c b", folder) == ("one\none\ntwo\n", "")
    assert (root / "etc/sysctl.d/b").read_text() == "one\ntwo\n"
    assert (root / "etc/sysctl.d/b").stat().st_mode & 0o777 == 0o600
    assert sh("cd $1; rm d/c b; rmdir d", folder) == ("", "")
    assert not {"a", "b", "d"} & set(os.listdir(root / "etc/sysctl.d"))


def live(at: Path) -> Host:
    """The door to a machine, over the mount."""
    return Host(str(at), "live", **LIVE)


def planned(host: Host) -> Plan:
    """The plan of linux-gpu, with what an idle node allows."""
    settings = load_profile(host, "linux-gpu").settings
    return planning.make(host, "linux-gpu", settings, idle.allowed(host, ["auto"]), fold(Journal(host)))


def applied_by(host: Host) -> Report:
    """Plan and apply under the lock, as the verb does."""
    profile = load_profile(host, "linux-gpu")
    with lock.locked(host, "test"):
        journal = Journal(host)
        report = apply(host, journal, planned(host), begin_line(host, profile), Stop(), adopt=True)
        assert cache.publish(host, journal) == ""
    return report


def states(host: Host) -> dict[str, int]:
    """Verify of what is applied: how many verdicts in which state."""
    found = fold(Journal(host)).newest
    assert found is not None
    judged = cache.current(host)[0]
    assert judged is not None
    return planning.verify(host, judged).counts()


def test_the_live_door_plans_what_the_recorded_one_plans(shared: tuple[Path, Path]) -> None:
    """Same settings, same verdicts, same changes in the same order: the doors differ in nothing that is judged."""
    root, at = shared
    one, other = planned(live(at)), planned(RecordedHost(str(root)))
    assert [(v.setting.at, v.reading, v.state) for v in one.verdicts] == [
        (v.setting.at, v.reading, v.state) for v in other.verdicts
    ]
    assert one.changes == other.changes
    assert one.id == other.id


def test_round_trip_through_the_live_door(root: Path, mount: Mount) -> None:
    """plan, apply, verify, a shell breaks one value, apply mends it, rollback: the copy is as before, byte for byte."""
    before = tree(root)
    at = mount(root)
    host = live(at)
    report = applied_by(host)
    assert {o.result for o in report.outcomes} == {"done"}
    assert report.generation == 1
    assert report.after == []
    assert sh("cat $1$2 $1$3", at, SWAPPINESS, RMEM) == ("1\n16777216\n", "")
    assert set(states(host)) <= {"ok", "raised", "unsupported"}

    assert sh("echo 30 > $1", f"{at}{SWAPPINESS}") == ("", "")
    assert states(host)["drift"] == 1
    assert [(o.target, o.before, o.after) for o in applied_by(host).outcomes] == [("vm.swappiness", 30, 1)]

    with lock.locked(host, "test"):
        journal = Journal(host)
        undone, numbers = rollback(host, journal, 0, "test")
        assert cache.publish(host, journal) == ""
    assert numbers == [1, 2]
    assert {o.result for o in undone.outcomes} == {"done"}
    assert undone.not_restored == []
    assert tree(root) == before


def test_a_refused_write_undoes_the_run(copy_host: Callable[..., Path], mount: Mount) -> None:
    """EINVAL out of write(2) on the live door: the run ends and takes back what it had written."""
    root = copy_host("plain-vm", "swappiness-refused")
    before = tree(root)
    report = applied_by(live(mount(root)))
    assert report.undone
    assert os.strerror(errno.EINVAL) in report.reason
    assert "vm.swappiness" in report.reason
    assert len(report.outcomes) > 1
    assert tree(root) == before


def test_high_is_refused_and_drops_a_cap(copy_host: Callable[..., Path], mount: Mount) -> None:
    """An MI300X under perf_determinism: EINVAL to the shell, the level still reads so, and the 1900 MHz are gone.

    Our code sees it through either door; no other GPU moves.
    """
    root = copy_host("mi300x-cx7")
    at = mount(root)
    before = clocks_of(RecordedHost(str(root)))
    level, table = (f"{at}{GPU}/{name}" for name in ("power_dpm_force_performance_level", "pp_od_clk_voltage"))
    assert sh("echo perf_determinism > $1; echo s 1 1900 > $2; echo c > $2", level, table) == ("", "")
    assert sh("cat $1; head -n 3 $2", level, table) == ("perf_determinism\nOD_SCLK:\n0: 500Mhz\n1: 1900Mhz\n", "")
    assert sh("echo high > $1", level)[1].strip().endswith(os.strerror(errno.EINVAL))
    assert sh("cat $1; head -n 3 $2", level, table) == ("perf_determinism\nOD_SCLK:\n0: 500Mhz\n1: 2100Mhz\n", "")
    for host in (live(at), RecordedHost(str(root))):
        clocks = clocks_of(host)
        assert clocks.pop("0000:05:00.0") == Seen({"level": "perf_determinism", "min": 500, "max": 2100})
        assert len(clocks) == 7
        assert clocks.items() <= before.items()


def test_the_live_door_looks_inside_its_root_for_a_read_only_mount(
    copy_host: Callable[..., Path], mount: Mount
) -> None:
    """Whether a file can be written is asked of the file below the root, not of one of that name on this machine."""
    at = mount(copy_host("mi300x-cx7"))
    assert live(at).writable(f"{GPU}/power_dpm_force_performance_level")
    assert not live(at).writable(f"{GPU}/vendor")


def clocks_of(host: Host) -> dict[str, Reading]:
    """The reading of every GPU's clock by its PCI address."""
    knob = AmdgpuClock()
    return {target: knob.read(host, target) for target in knob.targets(host)}


def test_a_test_that_fails_leaves_no_mount(root: Path, tmp_path: Path) -> None:
    """Even with a file below it open."""
    folder = tmp_path / "mounted"
    with contextlib.ExitStack() as held:
        with pytest.raises(ZeroDivisionError), mounted(root, folder):
            held.enter_context(open(f"{folder}{SWAPPINESS}", "rb", buffering=0))
            raise ZeroDivisionError
        assert not is_mounted(folder)
    assert list(folder.iterdir()) == []


def test_a_test_run_that_is_killed_leaves_no_mount(root: Path, tmp_path: Path) -> None:
    """SIGKILL of whoever mounted: the process of the mount hears of it and unmounts."""
    folder = tmp_path / "mounted"
    code = (
        "import sys, time; from pathlib import Path; from tests.fuse.conftest import mounted\n"
        "with mounted(Path(sys.argv[1]), Path(sys.argv[2])): print('on', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(root), str(folder)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        was = is_mounted(folder)
        process.send_signal(signal.SIGKILL)
    if not was:
        with mounted(root, tmp_path / "probe"):
            pass
    assert (said, was) == ("on\n", True)
    end = time.monotonic() + PATIENCE
    while is_mounted(folder) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_mounted(folder)
