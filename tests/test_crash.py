"""SIGKILL before and after every change at the door: the next command settles, and the first state comes back.

Every point is tried: `remainder` r takes the points whose number leaves r when divided by ten, so that `make fast`
tries every tenth and the whole suite all of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import crash_child
from tests.conftest import HOSTS, STATE, tree, write_profile
from tuner.host import manifest
from tuner.sim import store

Tuner = Callable[..., Any]
Small = Callable[..., Path]

EVERYTHING = """
thp:
  enabled: madvise
  khugepaged/max_ptes_none: 0
sysctl:
  vm.swappiness: 1
  net.core.rmem_max: {at_least: 16777216}
  net.ipv4.tcp_rmem: {at_least: "4096 131072 16777216"}
sysctl.pair:
  vm.dirty: {value: {bytes: 1073741824}}
hugepages:
  node0/2MB: 32
file:
  /etc/modprobe.d/new.conf: "options a b=1\\n"
  /etc/modprobe.d/made/by/us.conf: {value: {text: "deep\\n", mode: "0600"}}
  /etc/modules: "replaced\\n"
  /etc/sysctl.d/README.sysctl: null
"""
"""Every knob: words, numbers, a vector, a couple, a pool; files that are new, in new directories, replaced, removed."""

LESS = """
sysctl:
  vm.swappiness: 10
  kernel.numa_balancing: 0
file:
  /etc/modules: "other\\n"
"""

all_points = pytest.mark.parametrize("remainder", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))])


KERNEL = "/.tuner-host/kernel.yaml"
KEPT = (
    "/.tuner-host/",
    "/etc/mod",
    "/etc/sysctl",
    "/etc/tuner",
    "/dev",
    "/proc/cmdline",
    "/proc/sys/kernel",
    "/proc/sys/net/core/rmem",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/vm",
    "/sys/devices/system/node",
    "/sys/kernel/mm",
)
"""What of plain-vm the profiles touch: a host of that alone is copied and compared many times faster."""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """small(directory, *faults) makes a copy of the part of plain-vm that is KEPT."""
    recorded = store.load(HOSTS / "plain-vm.host").entries
    file = tmp_path_factory.mktemp("small") / "small.host"
    part = {path: entry for path, entry in recorded.items() if path.startswith(KEPT)}
    kernel = yaml.safe_load(part[KERNEL].data)
    rules = {path: rule for path, rule in kernel["rules"].items() if path.startswith(KEPT)}
    faults = {"swappiness-refused": kernel["faults"]["swappiness-refused"]}
    part[KERNEL] = replace(part[KERNEL], data=yaml.safe_dump({"rules": rules, "faults": faults}).encode())
    file.write_text(manifest.render(part), encoding="utf-8")

    def copy(directory: Path, *faults: str) -> Path:
        store.copy(file, str(directory), list(faults))
        return directory

    return copy


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that it wrote, with fsync or without: the disk need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "everything.yaml", EVERYTHING)


@pytest.fixture
def less(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "less.yaml", LESS, name="less")


def chosen(words: list[str], remainder: int, tmp_path: Path, at_least: int) -> Iterator[int]:
    """The numbers of the points of `tuner WORDS` that leave this remainder. The command is run to count them."""
    names = crash_child.points(words, tmp_path / "points")
    assert len(names) >= at_least, names
    return (number for number in range(1, len(names) + 1) if number % 10 == remainder)


def forget(root: Path) -> None:
    """Removes tuner's own state, as if it had never run."""
    for path in (*STATE, "etc/tuner"):
        shutil.rmtree(root / path, ignore_errors=True)


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    return target


class Check:
    """Gathers what is wrong at each point, so that one run shows all of them."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner, self.wrong = tuner, list[str]()

    def run(self, where: str, codes: set[int], *words: object) -> int:
        """Runs a command that must end with one of these codes."""
        result = self.tuner(*words)
        if result.code not in codes:
            self.wrong.append(f"{where}: {words[0]} gave {result.code}: {result.out}{result.err}")
        return int(result.code)

    def same(self, where: str, root: Path, first: dict[str, Any]) -> None:
        """The tree must be `first`."""
        now = tree(root)
        names = [name for name in {**first, **now} if first.get(name) != now.get(name)]
        if names:
            self.wrong.append(f"{where}: differs: {', '.join(sorted(names))}")


@all_points
def test_killed_apply_is_rolled_back(
    remainder: int, small: Small, everything: Path, tmp_path: Path, tuner: Tuner
) -> None:
    """64 (nothing to roll back) is right where nothing had been written yet, or the settling has cleaned up."""
    root, check = small(tmp_path / "host"), Check(tuner)
    first = tree(root)
    words = ["apply", "--root", str(root), "--profile", str(everything)]
    numbers = chosen(words, remainder, tmp_path, at_least=90)
    for number in [0, *numbers]:
        where = f"point {number}"
        if number and not crash_child.killed(words, number):
            check.wrong.append(f"{where} was not reached")
        check.run(where, {0} if not number else {0, 64}, "rollback", "--root", root)
        check.run(where, {64}, "rollback", "--root", root)
        check.same(where, root, first)
        forget(root)
    assert check.wrong == []


@all_points
def test_killed_apply_is_completed_by_the_next(
    remainder: int, small: Small, everything: Path, tmp_path: Path, tuner: Tuner
) -> None:
    root, check = small(tmp_path / "host"), Check(tuner)
    first = tree(root)
    words = ["apply", "--root", str(root), "--profile", str(everything)]
    numbers = chosen(words, remainder, tmp_path, at_least=90)
    applied = tree(root)
    tuner("rollback", "--root", root)
    forget(root)
    for number in numbers:
        where = f"point {number}"
        crash_child.killed(words, number)
        check.run(where, {0}, *words)
        check.same(f"{where} applied", root, applied)
        check.run(where, {0}, "verify", "--root", root)
        check.run(where, {0}, "rollback", "--root", root, "--to", 0)
        check.same(where, root, first)
        forget(root)
    assert check.wrong == []


@all_points
def test_killed_rollback_is_done_by_the_next(
    remainder: int, small: Small, everything: Path, tmp_path: Path, tuner: Tuner
) -> None:
    root, check = small(tmp_path / "host"), Check(tuner)
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", everything).code == 0
    applied = copied(root, tmp_path / "applied")
    words = ["rollback", "--root", str(root)]
    numbers = chosen(words, remainder, tmp_path, at_least=60)
    for number in numbers:
        where = f"point {number}"
        copied(applied, root)
        crash_child.killed(words, number)
        check.run(where, {0, 64}, *words)
        check.same(where, root, first)
        check.run(where, {64}, *words)
        check.run(where, {64}, "verify", "--root", root)
    assert check.wrong == []


@all_points
def test_killed_rollback_then_another_apply(
    remainder: int, small: Small, everything: Path, tmp_path: Path, tuner: Tuner
) -> None:
    """What the rollback gave back and what it did not are both known: the first state is still reached."""
    root, check = small(tmp_path / "host"), Check(tuner)
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", everything).code == 0
    applied = copied(root, tmp_path / "applied")
    words = ["rollback", "--root", str(root)]
    for number in chosen(words, remainder, tmp_path, at_least=60):
        where = f"point {number}"
        copied(applied, root)
        crash_child.killed(words, number)
        check.run(where, {0}, "apply", "--root", root, "--profile", everything)
        check.run(where, {0}, "verify", "--root", root)
        check.run(where, {0}, "rollback", "--root", root, "--to", 0)
        check.same(where, root, first)
    assert check.wrong == []


def drift(root: Path) -> None:
    """What somebody else does to an applied host: two values, one file changed, one file removed."""
    (root / "proc/sys/vm/swappiness").write_text("77\n")
    (root / "proc/sys/net/ipv4/tcp_rmem").write_text("4096\t87380\t1048576\n")
    (root / "etc/modules").write_text("by hand\n")
    (root / "etc/modprobe.d/made/by/us.conf").unlink()


@all_points
def test_killed_mending_of_drift(remainder: int, small: Small, everything: Path, tmp_path: Path, tuner: Tuner) -> None:
    """Completed by the next apply, or forced back at once: both end in the first state."""
    root, check = small(tmp_path / "host"), Check(tuner)
    first = tree(root)
    words = ["apply", "--root", str(root), "--profile", str(everything)]
    tuner(*words)
    applied = tree(root)
    drift(root)
    drifted = copied(root, tmp_path / "drifted")
    for number in chosen(words, remainder, tmp_path, at_least=30):
        where = f"point {number}"
        copied(drifted, root)
        crash_child.killed(words, number)
        check.run(where, {0}, *words)
        check.same(f"{where} mended", root, applied)
        check.run(where, {0}, "rollback", "--root", root, "--to", 0)
        check.same(f"{where} mended, rolled back", root, first)
        copied(drifted, root)
        crash_child.killed(words, number)
        check.run(where, {0}, "rollback", "--root", root, "--to", 0, "--force")
        check.same(f"{where} forced back", root, first)
    assert check.wrong == []


@all_points
def test_killed_switch_of_profiles(
    remainder: int, small: Small, everything: Path, less: Path, tmp_path: Path, tuner: Tuner
) -> None:
    root, check = small(tmp_path / "host"), Check(tuner)
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", everything).code == 0
    applied = copied(root, tmp_path / "applied")
    words = ["apply", "--root", str(root), "--profile", str(less)]
    for number in chosen(words, remainder, tmp_path, at_least=60):
        where = f"point {number}"
        copied(applied, root)
        crash_child.killed(words, number)
        check.run(where, {0}, "rollback", "--root", root, "--to", 0)
        check.same(where, root, first)
        check.run(where, {64}, "rollback", "--root", root)
    assert check.wrong == []


@all_points
def test_killed_undo_of_a_refused_apply(
    remainder: int, small: Small, everything: Path, tmp_path: Path, tuner: Tuner
) -> None:
    """vm.swappiness refuses, so the run undoes itself; killed in that, the next command finishes it."""
    root, check = small(tmp_path / "host", "swappiness-refused"), Check(tuner)
    settings = EVERYTHING.replace("  vm.swappiness: 1\n", "").replace(
        "sysctl.pair:", "  vm.swappiness: 1\nsysctl.pair:"
    )
    write_profile(everything, settings)
    first = tree(root)
    words = ["apply", "--root", str(root), "--profile", str(everything)]
    for number in chosen(words, remainder, tmp_path, at_least=40):
        where = f"point {number}"
        forget(root)
        crash_child.killed(words, number)
        check.run(where, {0, 64}, "rollback", "--root", root)
        check.same(where, root, first)
    assert check.wrong == []


@all_points
def test_killed_while_old_generations_are_dropped(
    remainder: int, many: tuple[Path, dict[str, Any]], less: Path, tmp_path: Path, tuner: Tuner
) -> None:
    """The 51st generation makes the first one go; what only that one knew survives every crash."""
    full, first = many
    root, check = tmp_path / "host", Check(tuner)
    words = ["apply", "--root", str(root), "--profile", str(less)]
    copied(full, root)
    for number in chosen(words, remainder, tmp_path, at_least=10):
        where = f"point {number}"
        copied(full, root)
        crash_child.killed(words, number)
        check.run(where, {0}, "rollback", "--root", root, "--to", 0)
        check.same(where, root, first)
    assert check.wrong == []


@pytest.fixture(scope="module")
def many(small: Small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A host with 50 live generations, and its tree before the first."""
    folder = tmp_path_factory.mktemp("many")
    root = small(folder / "host")
    first = tree(root)
    settings = 'sysctl:\n  vm.swappiness: {}\nfile:\n  /etc/modprobe.d/made/first.conf: "kept\\n"'
    for number in range(50):
        profile = write_profile(folder / "p.yaml", settings.format(10 + number))
        words = ["apply", "--root", str(root), "--profile", str(profile)]
        assert crash_child.ended(crash_child.fork(lambda words=words: crash_child.command(words))) == 0  # type: ignore[misc]
    return root, first


@pytest.mark.parametrize("number", [1, 6, 13, 38, 71])
def test_killed_python_m_tuner(number: int, root: Path, everything: Path, tuner: Tuner) -> None:
    """The same to a process that was started as an operator starts it."""
    first = tree(root)
    words = ["apply", "--root", str(root), "--profile", str(everything)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash_child", "kill", str(number), *words],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    again = subprocess.run(
        [sys.executable, "-m", "tuner", "rollback", "--root", str(root)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert again.returncode in (0, 64)
    assert "Traceback" not in again.stderr
    assert tree(root) == first
