"""Evidence: the answer of the last full verify is given again only while everything behind it reads the same."""

from __future__ import annotations

import errno
import marshal
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Result, write_profile
from tuner import fast
from tuner.host import open_host
from tuner.shipped import PACKAGE

Call = Callable[..., Result]
Copy = Callable[..., Path]
LAUNCHER = PACKAGE / "launcher"
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
ENVIRONMENT["PYTHONPATH"] = str(PACKAGE.parent)
FORMS = {"text": [], "all": ["--all"], "json": ["--json"]}
PROFILE = """
sysctl: {net.core.rmem_max: {at_least: 16777216}, vm.swappiness: 1}
thp: {enabled: madvise}
hugepages: {total/2MB: {at_least: 64}}
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")


def evidence(root: Path) -> Path:
    return root / fast.PATH.lstrip("/")


def holds(root: Path) -> bool:
    """Whether the fast path would answer: asked in a process of its own, since it changes its root."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            kept = fast.load(str(root))
            code = 0 if kept is not None and fast.holds(kept, str(root)) else 1
        except (OSError, ValueError, EOFError, TypeError):
            code = 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


def kept_text(root: Path, form: str = "text") -> tuple[int, str]:
    """What the fast path would say."""
    kept = fast.load(str(root))
    assert kept is not None
    code, text = kept[-1][form]
    return code, text.decode()


def launch(*words: object, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The launcher as it is installed, with the modules that it loads on stderr."""
    line = [sys.executable, *python, "-X", "importtime", str(LAUNCHER), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)


def by_evidence(done: subprocess.CompletedProcess[str]) -> bool:
    return "tuner.cli" not in done.stderr


@pytest.fixture
def applied(copy_host: Copy, tuner: Call, tmp_path: Path) -> Path:
    """plain-vm with a profile applied and evidence of it."""
    root = copy_host()
    profile = write_profile(tmp_path / "p.yaml", PROFILE)
    assert tuner("apply", "--profile", profile, "--root", root, "--allow", "all").code == 0
    assert holds(root)
    return root


# --- the answer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_the_fast_answer_is_the_full_one(applied: Path, tuner: Call, form: str) -> None:
    """Byte for byte and with its exit code, in each form."""
    full = tuner("verify", "--root", applied, *FORMS[form])
    done = launch("verify", "--root", applied, *FORMS[form])
    assert by_evidence(done)
    assert (done.returncode, done.stdout) == (full.code, full.out)


def test_a_drift_is_kept_as_evidence_too(applied: Path, tuner: Call) -> None:
    """The exit code is part of the answer."""
    (applied / "proc/sys/vm/swappiness").write_text("60\n")
    assert not holds(applied)
    assert tuner("verify", "--root", applied).code == 10
    done = launch("verify", "--root", applied)
    assert by_evidence(done)
    assert done.returncode == 10
    assert "drift" in done.stdout


def test_the_fast_path_loads_next_to_nothing(applied: Path) -> None:
    """Nothing that a bare interpreter has not loaded anyway, but our own two modules."""
    line = [sys.executable, "-X", "importtime", "-c", "pass"]
    bare = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, check=True).stderr
    loaded, before = (
        {row.rpartition("|")[2].strip() for row in text.splitlines()}
        for text in (launch("verify", "--root", applied).stderr, bare)
    )
    assert loaded - before == {"tuner", "tuner.fast"}


def test_memory_stays_under_thirty_megabytes(applied: Path) -> None:
    """Fast and full alike."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    for words in (["verify", "--root", applied], ["verify", "--root", applied, "--debug"]):
        line = [sys.executable, "-c", code, sys.executable, str(LAUNCHER), *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, check=True)
        assert int(done.stdout) < 30 * 1024


OTHER_WORDS = (
    ["--debug"], ["--profile", "linux-gpu"], ["--json", "--all"], ["--format", "odd"], ["--root="], ["--root"], ["-h"],
)  # fmt: skip


@pytest.mark.parametrize("words", OTHER_WORDS)
def test_what_is_no_plain_verify_is_for_the_command_line(applied: Path, words: list[str]) -> None:
    assert not by_evidence(launch("verify", "--root", applied, *words))


def test_a_root_under_another_name_is_judged_anew(applied: Path, tmp_path: Path) -> None:
    """The answer names the root as it was called."""
    (tmp_path / "link").symlink_to(applied)
    done = launch("verify", "--root", tmp_path / "link", "--json")
    assert not by_evidence(done)
    assert str(tmp_path / "link") in done.stdout


def test_a_reader_that_goes_away_is_quiet(applied: Path) -> None:
    """As everywhere: a closed pipe changes no exit code and says nothing."""
    line = [sys.executable, str(LAUNCHER), "verify", "--root", str(applied)]
    end, other = os.pipe()
    os.close(end)
    with os.fdopen(other, "wb") as pipe:
        done = subprocess.run(line, stdout=pipe, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_behind_the_output_is_said(applied: Path) -> None:
    line = [sys.executable, str(LAUNCHER), "verify", "--root", str(applied)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    assert done.returncode == 0
    assert b"the output cannot be written" in done.stderr


# --- truth --------------------------------------------------------------------------------------------------------


def paths_behind(root: Path) -> list[str]:
    """The paths that the verdicts rest on, as they lie in the tree."""
    kept = fast.load(str(root))
    assert kept is not None
    found = {path for _, rows in kept[6] for path, _, _ in rows}
    return sorted(path for path in found if not path.startswith("/var/lib/tuner"))


FIXED = ("/affected_cpus", "/name", "/scaling_driver")
"""What the kernel fixes for as long as a driver is loaded: looked at on the first CPU only."""


class Hand:
    """Somebody with root and odd ideas: one change of the tree, drawn at random."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        walked = (Path(folder, name) for folder, names, files in os.walk(root) for name in [*names, *files])
        own = ("run/tuner", "var/lib/tuner", ".tuner-host", "etc/tuner/applied")
        self.all = sorted(p for p in walked if not str(p.relative_to(root)).startswith(own))
        self.all = [p for p in self.all if "/cpu/" not in str(p) or "cpu0/" in str(p) or not str(p).endswith(FIXED)]

    def change(self) -> str:
        """Makes one change and says which."""
        behind = [self.root / p.lstrip("/") for p in paths_behind(self.root) if p != "/"]
        pool = behind if self.random.random() < 0.8 else self.all
        path = self.random.choice(pool)
        how = self.random.choice([self.value, self.value, self.remove, self.point, self.rights, self.turn, self.add])
        try:
            return f"{how.__name__} {path}: {how(path)}"
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            return f"{how.__name__} {path}: {error.strerror}"

    def value(self, path: Path) -> str:
        """Another value, of the same length or not."""
        old = path.read_bytes()
        new = self.random.choice([b"0\n", b"1\n", b"performance\n", old + b"\n", old[:-1], b"", bytes(reversed(old))])
        path.write_bytes(new)
        return f"{old[:30]!r} -> {new[:30]!r}"

    def remove(self, path: Path) -> str:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        return "gone"

    def point(self, path: Path) -> str:
        """A link to something else, or a link where there was none."""
        goal = self.random.choice(self.all)
        whole = self.random.random() < 0.5
        text = f"/{goal.relative_to(self.root)}" if whole else os.path.relpath(goal, path.parent)
        self.remove(path)
        path.symlink_to(text)
        return text

    def rights(self, path: Path) -> str:
        mode = self.random.choice([0o000, 0o200, 0o444, 0o600, 0o644])
        if path.is_dir():
            mode |= 0o700
        os.chmod(path, mode)
        return oct(mode)

    def turn(self, path: Path) -> str:
        """A folder or a pipe where there was something else."""
        self.remove(path)
        if self.random.random() < 0.5:
            path.mkdir()
            return "folder"
        os.mkfifo(path)
        return "pipe"

    def add(self, path: Path) -> str:
        """A new name beside it."""
        name = self.random.choice(["policy7", "node7", "cpu900", "zz-late.conf", "hugepages-1048576kB", "x"])
        fresh = path.parent / name
        if self.random.random() < 0.5:
            fresh.mkdir()
        else:
            fresh.write_text("1\n")
        return name


def outcome(tuner: Call, root: Path) -> tuple[int, str]:
    found = tuner("verify", "--root", root)
    return found.code, found.out


def follow(root: Path, tuner: Call, changes: int, seed: int) -> list[bool]:
    """After each change: where the evidence still holds, a full verify says the same, to the byte."""
    hand, held = Hand(root, seed), []
    for _ in range(changes):
        assert holds(root)
        said = kept_text(root)
        what = hand.change()
        fine = holds(root)
        full = outcome(tuner, root)
        if fine:
            assert said == full, what
        held.append(fine)
        if not evidence(root).exists() or not holds(root):
            break
    return held


@pytest.mark.parametrize("seed", range(4))
def test_every_change_is_seen_and_none_is_invented(
    masters: Callable[..., Path], tmp_path: Path, tuner: Call, seed: int
) -> None:
    """Fifty each of four hands, on a recorded MI300X node; a hand starts anew when it broke what verify stands on."""
    held: list[bool] = []
    count = 0
    while len(held) < 50:
        root = tmp_path / f"node{count}"
        shutil.copytree(masters("mi300x-cx7"), root, symlinks=True)
        assert tuner("apply", "--profile", "mi300x", "--root", root, "--allow", "all").code == 0
        held += follow(root, tuner, 50 - len(held), seed * 1000 + count)
        shutil.rmtree(root)
        count += 1
    assert 5 < sum(held) < 45  # some changes are behind no verdict, most are


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_any_short_story_of_changes_on_a_plain_host(
    masters: Callable[..., Path], tmp_path: Path, tuner: Call, seed: int
) -> None:
    """The same against the naive full verify, whatever the changes and their order."""
    root, profile = tmp_path / "host", tmp_path / "p.yaml"
    if not profile.exists():
        write_profile(profile, PROFILE)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(masters("plain-vm"), root, symlinks=True)
    tuner("apply", "--profile", profile, "--root", root, "--allow", "all")
    follow(root, tuner, 4, seed)


# --- never an answer from old evidence ----------------------------------------------------------------------------


def rewritten(root: Path, change: Callable[[list[Any]], None]) -> None:
    """The evidence with one part changed, sealed as if it had been written so."""
    data = evidence(root).read_bytes()
    kept = list(marshal.loads(data[len(fast.MAGIC) + 8 :]))
    change(kept)
    data = marshal.dumps(tuple(kept), 4)
    evidence(root).write_bytes(fast.MAGIC + fast.sealed(data) + data)


def test_another_boot(applied: Path) -> None:
    (applied / fast.BOOT.lstrip("/")).write_text("0b9c5f0e-6f2e-4d0c-9d0e-1f2a3b4c5d6e\n")
    assert not holds(applied)


def test_without_a_boot_id_nothing_is_kept(applied: Path, tuner: Call) -> None:
    (applied / fast.BOOT.lstrip("/")).unlink()
    evidence(applied).unlink()
    assert tuner("verify", "--root", applied).code == 0
    assert not evidence(applied).exists()


def test_a_new_generation_has_its_own(applied: Path, tuner: Call, tmp_path: Path) -> None:
    """Also when what is read stays the same: the settings are others."""
    former = evidence(applied).read_bytes()
    other = write_profile(tmp_path / "q.yaml", "sysctl: {vm.swappiness: 1}", name="other")
    assert tuner("apply", "--profile", other, "--root", applied, "--keep-unmentioned").code == 0
    evidence(applied).write_bytes(former)
    assert not holds(applied)


def test_a_rollback_leaves_none_of_the_old_answer(applied: Path, tuner: Call) -> None:
    assert tuner("rollback", "--root", applied).code == 0
    done = launch("verify", "--root", applied)
    assert done.returncode == 64
    assert "nothing applied yet" in done.stderr


@pytest.mark.parametrize("place", ["etc/tuner/site.yaml", "etc/tuner/host.d/plain-vm.yaml"])
def test_a_changed_policy(applied: Path, place: str) -> None:
    """The site's file changes what apply would do, and verify says so."""
    path = applied / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("settings: {sysctl: {vm.swappiness: 10}}\n")
    assert not holds(applied)
    assert "Profile changed since apply" in launch("verify", "--root", applied).stdout


def test_a_changed_profile(applied: Path, tmp_path: Path) -> None:
    """The file is not below the root; its text is evidence all the same."""
    (tmp_path / "p.yaml").write_text((tmp_path / "p.yaml").read_text().replace("swappiness: 1", "swappiness: 2"))
    assert not holds(applied)


def test_a_profile_that_anybody_may_write_is_said_at_once(applied: Path, tmp_path: Path) -> None:
    former = stat.S_IMODE(tmp_path.stat().st_mode)
    os.chmod(tmp_path, 0o777)
    assert not holds(applied)
    os.chmod(tmp_path, former)
    assert holds(applied)


def test_code_younger_than_the_tick_leaves_none(applied: Path, tuner: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within one tick of the clock have the same stamp: none is trusted then."""
    monkeypatch.setattr("tuner.evidence.TICK", 10 * 365 * 86400 * 10**9)
    evidence(applied).unlink()
    assert tuner("verify", "--root", applied).code == 0
    assert not evidence(applied).exists()
    monkeypatch.undo()
    assert tuner("verify", "--root", applied).code == 0
    assert holds(applied)


def test_a_profile_rewritten_in_the_same_tick_is_seen(applied: Path, tmp_path: Path) -> None:
    """Of a profile the text counts, not its times: here all of them are put back."""
    profile = tmp_path / "p.yaml"
    about = profile.stat()
    profile.write_text(profile.read_text().replace("swappiness: 1", "swappiness: 2"))
    os.utime(profile, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert not holds(applied)


def test_the_off_switch_is_not_answered_from_evidence(applied: Path, tuner: Call) -> None:
    """It ends by itself at an hour, which no file tells."""
    assert tuner("off", "--why", "test", "--for", "2h", "--root", applied).code == 0
    assert not holds(applied)
    assert "tuner is off" in tuner("verify", "--root", applied).out
    assert not holds(applied)


def test_a_package_upgrade(applied: Path, tmp_path: Path) -> None:
    """The same files in the same place, one of them replaced by another release."""
    package = tmp_path / "site"
    shutil.copytree(PACKAGE, package / "tuner", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE.parent / "profiles", package / "profiles")
    time.sleep(0.05)

    def run() -> subprocess.CompletedProcess[str]:
        launcher = str(package / "tuner/launcher")
        line = [sys.executable, "-X", "importtime", launcher, "verify", "--root", str(applied)]
        environment = {**ENVIRONMENT, "PYTHONPATH": str(package)}
        return subprocess.run(line, capture_output=True, text=True, env=environment, check=False)

    assert not by_evidence(run())  # kept by the code of the checkout
    assert by_evidence(run())
    for name in ("knobs/sysctl.py", "__init__.py", "render.py", "fast.py"):
        path = package / "tuner" / name
        path.write_text(path.read_text() + "\n")
        time.sleep(0.05)
        assert not by_evidence(run()), name
        assert by_evidence(run()), name


def test_a_clock_that_was_set_back(applied: Path) -> None:
    def later(kept: list[Any]) -> None:
        kept[2] += 3600 * 10**9

    rewritten(applied, later)
    assert not holds(applied)


@pytest.mark.parametrize(("part", "value"), [(1, "3.0 (other)"), (3, "/elsewhere"), (4, (0, 0, "other", "6.8"))])
def test_another_interpreter_root_or_machine(applied: Path, part: int, value: object) -> None:
    def other(kept: list[Any]) -> None:
        kept[part] = value

    rewritten(applied, other)
    assert not holds(applied)


def test_evidence_of_another_host(applied: Path, tmp_path: Path) -> None:
    """A copy of the same recorded host, in the same boot, with the same journal: still another host."""
    other = tmp_path / "other"
    shutil.copytree(applied, other, symlinks=True)
    assert evidence(other).read_bytes() == evidence(applied).read_bytes()
    assert not holds(other)
    assert holds(applied)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_or_a_cut_is_no_evidence(sound: Path, data: st.DataObject) -> None:
    """Anywhere in the file."""
    whole = evidence(sound).read_bytes()
    place = data.draw(st.integers(0, len(whole) * 8 - 1))
    broken = bytearray(whole)
    broken[place // 8] ^= 1 << place % 8
    if data.draw(st.booleans()):
        broken = bytearray(whole[: place // 8])
    try:
        evidence(sound).write_bytes(broken)
        assert fast.load(str(sound)) is None
    finally:
        evidence(sound).write_bytes(whole)


@pytest.fixture
def sound(applied: Path) -> Iterator[Path]:
    yield applied


def test_only_root_s_own_file_is_believed(applied: Path, tmp_path: Path) -> None:
    """0600, of uid 0, and no link."""
    path = evidence(applied)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.chmod(path, 0o644)
    assert not holds(applied)
    os.chmod(path, 0o600)
    os.chown(path, 65534, 0)
    assert not holds(applied)
    os.chown(path, 0, 0)
    assert holds(applied)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert not holds(applied)


# --- its loss costs time only -------------------------------------------------------------------------------------


def test_lost_evidence_comes_back(applied: Path) -> None:
    evidence(applied).unlink()
    assert not by_evidence(launch("verify", "--root", applied))
    assert by_evidence(launch("verify", "--root", applied))


def test_many_verifies_at_once(applied: Path) -> None:
    """Each gives the right answer, and what is kept in the end is whole."""
    evidence(applied).unlink()
    line = [sys.executable, str(LAUNCHER), "verify", "--root", str(applied)]
    running = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) for _ in range(8)]
    answers = {(process.communicate()[0], process.returncode) for process in running}
    assert len(answers) == 1
    assert holds(applied)
    assert sorted(p.name for p in (applied / "run/tuner").iterdir()) == ["evidence", "lock", "seen", "slurm"]


def test_a_disk_that_is_full_or_read_only(applied: Path, tuner: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is right; there is no evidence, and nothing half-written."""
    (applied / "proc/sys/vm/swappiness").write_text("60\n")
    put = type(open_host(str(applied))).put

    def full(self: Any, path: str, *rest: Any, **more: Any) -> None:
        if path == fast.PATH:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(self, path, *rest, **more)

    monkeypatch.setattr(type(open_host(str(applied))), "put", full)
    assert tuner("verify", "--root", applied).code == 10
    assert not holds(applied)
    monkeypatch.undo()
    assert tuner("verify", "--root", applied).code == 10
    assert holds(applied)


def test_verify_while_somebody_applies(applied: Path) -> None:
    """A run that has begun: its journal line makes the evidence void, and the full verify waits and says so."""
    journal = max((applied / "var/lib/tuner/generations").iterdir())
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True);"
    line = [sys.executable, "-c", f"{code} time.sleep(60)", str(applied / "run/tuner/lock")]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert holds(applied)  # the lock alone changes nothing
        lines = journal.read_text().splitlines()
        journal.write_text("\n".join(lines[:-1]) + "\n")  # without its end the run is open
        (applied / "proc/sys/vm/swappiness").write_text("7\n")
        done = launch("verify", "--root", applied)
        assert not by_evidence(done)
        assert "apply in progress" in done.stdout
        assert not holds(applied)
        child.send_signal(signal.SIGKILL)


# --- found by a hostile review --------------------------------------------------------------------------------------


def test_a_folder_made_on_the_way_to_what_is_not_recorded(copy_host: Copy, tuner: Call, tmp_path: Path) -> None:
    """It turns `not recorded` into `not there`."""
    root = copy_host()
    profile = write_profile(tmp_path / "p.yaml", "file: {/opt/aa/bb/x: text}\nsysctl: {vm.swappiness: 1}")
    tuner("apply", "--profile", profile, "--root", root)
    assert tuner("verify", "--root", root).code == 12
    for folder in ("opt", "opt/aa", "opt/aa/bb"):
        said = kept_text(root)
        (root / folder).mkdir()
        assert not holds(root) or outcome(tuner, root) == said
        tuner("verify", "--root", root)


def test_an_interpreter_that_reads_names_otherwise(applied: Path) -> None:
    """What an ASCII locale cannot name is unknown there, and not elsewhere."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(LAUNCHER), "verify", "--root", str(applied)],
        env={**ENVIRONMENT, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not by_evidence(done)


def test_no_evidence_while_a_crashed_run_is_open(applied: Path, tuner: Call) -> None:
    """Whether it is alive is the lock's to say, which is no evidence."""
    journal = max((applied / "var/lib/tuner/generations").iterdir())
    journal.write_text("\n".join(journal.read_text().splitlines()[:-1]) + "\n")
    tuner("verify", "--root", applied)
    assert not holds(applied)


@pytest.mark.parametrize("streams", [">/dev/full 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full", ">&-"])
def test_nobody_who_listens_changes_the_exit_code(applied: Path, streams: str) -> None:
    """1 would be a crash of ours."""
    (applied / "proc/sys/vm/swappiness").write_text("60\n")
    for _ in range(2):
        line = f'exec "{sys.executable}" "{LAUNCHER}" verify --root "{applied}" {streams}'
        done = subprocess.run(["/bin/sh", "-c", line], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 10
        assert not done.stderr


def test_a_root_that_looks_like_an_option_is_bad_usage(applied: Path, tmp_path: Path) -> None:
    (tmp_path / "--json").symlink_to(applied)
    line = [sys.executable, str(LAUNCHER), "verify", "--root", "--json"]
    done = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 64


def test_a_working_directory_that_is_gone(applied: Path, tmp_path: Path) -> None:
    """A whole path still works; a relative one is bad input, in one line."""
    (tmp_path / "gone").mkdir()
    line = f'cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && exec "{sys.executable}" "{LAUNCHER}" verify --root '
    for root, code in ((str(applied), 0), ("rel", 64)):
        (tmp_path / "gone").mkdir(exist_ok=True)
        done = subprocess.run(["/bin/sh", "-c", line + root], env=ENVIRONMENT, capture_output=True, check=False)
        assert done.returncode == code
        assert b"Traceback" not in done.stderr


def test_a_relative_extends_is_meant_from_its_file(copy_host: Copy, tuner: Call, tmp_path: Path) -> None:
    """Wherever tuner is called."""
    (tmp_path / "in").mkdir()
    write_profile(tmp_path / "in/base.yaml", "sysctl: {vm.swappiness: 1}", name="base")
    child = tmp_path / "in/child.yaml"
    child.write_text("name: child\nsummary: s\nextends: [./base.yaml]\n")
    root = copy_host()
    assert tuner("apply", "--profile", child, "--root", root).code == 0
    assert "cannot be read now" not in tuner("verify", "--root", root).out


def test_an_image_keeps_none(tmp_path: Path, tuner: Call) -> None:
    (tmp_path / "img/etc").mkdir(parents=True)
    profile = write_profile(tmp_path / "p.yaml", 'file: {/etc/x.conf: {value: {text: "a", mode: "0644"}}}')
    assert tuner("apply", "--profile", profile, "--root", tmp_path / "img").code == 0
    assert not evidence(tmp_path / "img").exists()
