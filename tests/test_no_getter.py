"""A value that nothing can be asked for, through a whole life: locked clocks of NVIDIA GPUs on a recorded host."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.errors import Exit
from tuner.host import RecordedHost, open_host
from tuner.host.nvml import fault
from tuner.host.replay import RecordedNvml

Tuner = Callable[..., Result]
GPU, OTHER = "0000:07:00.0", "0000:0f:00.0"
RECORD = "run/tuner/locked-clocks.json"
LOCK = f'nvidia.gpu_clocks: {{"{GPU}": 1155}}\nsysctl: {{vm.swappiness: 3}}'
KNOB = "nvidia.gpu_clocks"


@pytest.fixture
def root(copy_host: Callable[..., Path]) -> Path:
    """A fresh copy of a host with 8 A100."""
    return copy_host("a100-cx7")


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A profile with a lock of one GPU and a kernel parameter."""
    return write_profile(tmp_path / "locks.yaml", LOCK)


def clock(root: Path, gpu: str = GPU) -> int:
    """The graphics clock of the moment, in MHz."""
    return int(open_host(str(root)).nvml.get(gpu, "clocks")["graphics"])


def only(result: Result, kind: str) -> dict[str, Any]:
    """The one row about the lock."""
    (row,) = (row for row in result.document[kind] if row["knob"] == KNOB)
    return dict(row)


def load_again(root: Path) -> None:
    """The driver is loaded again: its folder is another one."""
    folder = root / "sys/module/nvidia"
    shutil.move(folder, folder.with_name("away"))
    shutil.copytree(folder.with_name("away"), folder, symlinks=True)
    shutil.rmtree(folder.with_name("away"))


def boot_again(root: Path) -> None:
    """Another boot."""
    (root / "proc/sys/kernel/random/boot_id").write_text("99999999-2222-4333-8444-555555555555\n")


FORGOTTEN: list[tuple[Callable[[Path], None], str]] = [(load_again, "driver was loaded again"), (boot_again, "reboot")]


def crash(root: Path, tuner: Tuner, locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is taken by the driver, and the power goes before the record says so."""
    real = RecordedHost.put
    count = 0

    def put(self: RecordedHost, path: str, *rest: Any) -> None:
        nonlocal count
        if path.endswith("locked-clocks.json"):
            count += 1
            if count > 1:
                raise KeyboardInterrupt
        real(self, path, *rest)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RecordedHost, "put", put)
        tuner("apply", "--profile", locks, "--root", root, "--debug")


def test_it_is_planned_with_before_null_and_the_way_back_is_said(root: Path, tuner: Tuner, locks: Path) -> None:
    plan = tuner("plan", "--profile", locks, "--root", root, "--json")
    change, verdict = only(plan, "changes"), only(plan, "verdicts")
    assert (change["before"], change["after"]) == (None, {"min": 1155, "max": 1155})
    assert "vendor's reset (nvidia-smi -rgc)" in change["note"]
    assert (verdict["state"], verdict["running"]) == ("drift", None)
    assert verdict["running_why"].startswith("no getter")
    assert "no getter" in tuner("plan", "--profile", locks, "--root", root).out


def test_unlocked_is_planned_too_where_nobody_knows(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Somebody else may have locked it; what we reset ourselves is known."""
    profile = write_profile(tmp_path / "u.yaml", f'nvidia.gpu_clocks: {{"{GPU}": unlocked}}')
    assert tuner("apply", "--profile", profile, "--root", root, "--json").document["changed"] == 1
    assert tuner("plan", "--profile", profile, "--root", root).code == Exit.OK
    assert tuner("apply", "--profile", profile, "--root", root, "--json").document["changed"] == 0


def test_apply_verify_rollback(root: Path, tuner: Tuner, locks: Path) -> None:
    before = tree(root)
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    verify = tuner("verify", "--root", root, "--json")
    assert (verify.code, only(verify, "verdicts")["running"]) == (Exit.OK, {"min": 1155, "max": 1155})
    assert tuner("apply", "--profile", locks, "--root", root, "--json").document["generation"] is None
    rolled = tuner("rollback", "--root", root, "--json")
    assert (rolled.code, only(rolled, "outcomes")["result"]) == (Exit.OK, "done")
    assert only(rolled, "outcomes")["after"] == "unlocked"
    assert tree(root) == before


@pytest.mark.parametrize(("forget", "words"), FORGOTTEN)
def test_what_the_driver_forgot_is_drift_with_a_reason(
    root: Path, tuner: Tuner, locks: Path, forget: Callable[[Path], None], words: str
) -> None:
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    forget(root)
    verify = tuner("verify", "--root", root, "--json")
    row = only(verify, "verdicts")
    assert (verify.code, row["state"], row["running"]) == (Exit.DIFFERS, "drift", None)
    assert words in row["state_why"]
    assert words in tuner("verify", "--root", root).out


@pytest.mark.parametrize(("forget", "words"), FORGOTTEN)
def test_a_rollback_after_that_has_nothing_to_give_back(
    root: Path, tuner: Tuner, locks: Path, forget: Callable[[Path], None], words: str
) -> None:
    """And does not reset what somebody may have locked since."""
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    forget(root)
    open_host(str(root)).nvml.set(GPU, "gpu_clocks", [210, 210])
    rolled = tuner("rollback", "--root", root, "--json")
    row = only(rolled, "outcomes")
    assert (rolled.code, row["result"]) == (Exit.OK, "unchanged")
    assert words in row["why"]
    assert clock(root) == 210


def test_a_boot_makes_it_so_again_and_rollback_still_resets(root: Path, tuner: Tuner, locks: Path) -> None:
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    boot_again(root)
    assert tuner("apply", "--boot", "--root", root).code == Exit.OK
    assert tuner("verify", "--root", root).code == Exit.OK
    rolled = tuner("rollback", "--root", root, "--json")
    assert only(rolled, "outcomes")["result"] == "done"


def test_a_device_that_came_again_gets_its_lock(root: Path, tuner: Tuner, locks: Path) -> None:
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    load_again(root)
    done = tuner("apply", "--device", f"pci:{GPU}", "--root", root, "--json")
    assert (done.code, done.document["changed"]) == (Exit.OK, 1)
    assert tuner("verify", "--root", root).code == Exit.OK


def test_another_profile_gives_it_back_and_keeps_its_hands_off_what_is_forgotten(
    root: Path, tuner: Tuner, locks: Path, tmp_path: Path
) -> None:
    other = write_profile(tmp_path / "o.yaml", "sysctl: {vm.swappiness: 3}")
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    plan = tuner("plan", "--profile", other, "--root", root, "--json")
    assert (only(plan, "changes")["after"], only(plan, "changes")["returning"]) == (None, True)
    load_again(root)
    plan = tuner("plan", "--profile", other, "--root", root, "--json")
    assert [c for c in plan.document["changes"] if c["knob"] == KNOB] == []
    assert tuner("apply", "--profile", other, "--root", root).code == Exit.OK


def test_given_back_by_another_profile(root: Path, tuner: Tuner, locks: Path, tmp_path: Path) -> None:
    free = clock(root)
    other = write_profile(tmp_path / "o.yaml", "sysctl: {vm.swappiness: 3}")
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    assert clock(root) == 1155
    assert tuner("apply", "--profile", other, "--root", root).code == Exit.OK
    assert clock(root) == free
    assert json.loads((root / RECORD).read_text())[GPU]["gpu"]["range"] is None


def test_a_kept_plan_is_not_stale_because_nobody_can_ask(root: Path, tuner: Tuner, locks: Path, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    assert tuner("plan", "--profile", locks, "--root", root, "-o", kept).code == Exit.DIFFERS
    assert tuner("apply", kept, "--root", root).code == Exit.OK
    assert clock(root) == 1155


def test_a_crash_between_set_and_record_reads_as_no_getter(
    root: Path, tuner: Tuner, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power goes right after the driver took it: nobody knows, so it is planned again."""
    crash(root, tuner, locks, monkeypatch)
    assert clock(root) == 1155
    plan = tuner("plan", "--profile", locks, "--root", root, "--json")
    assert only(plan, "changes")["before"] is None
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    assert tuner("verify", "--root", root).code == Exit.OK


def test_a_crash_between_set_and_record_is_undone(
    root: Path, tuner: Tuner, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = clock(root)
    crash(root, tuner, locks, monkeypatch)
    assert "cut short" in tuner("verify", "--profile", locks, "--root", root).out
    rolled = tuner("rollback", "--root", root, "--json")
    assert (rolled.code, only(rolled, "outcomes")["result"]) == (Exit.OK, "done")
    assert clock(root) == free


def test_a_crash_between_set_and_record_is_given_back_by_another_profile(
    root: Path, tuner: Tuner, locks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = clock(root)
    crash(root, tuner, locks, monkeypatch)
    other = write_profile(tmp_path / "o.yaml", "sysctl: {vm.swappiness: 3}")
    assert tuner("apply", "--profile", other, "--root", root).code == Exit.OK
    assert clock(root) == free


def test_a_crash_before_a_reboot_leaves_nothing_to_give_back(
    root: Path, tuner: Tuner, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the record outlived it or not."""
    crash(root, tuner, locks, monkeypatch)
    boot_again(root)
    open_host(str(root)).nvml.set(GPU, "gpu_clocks", [210, 210])
    assert only(tuner("rollback", "--root", root, "--json"), "outcomes")["result"] == "unchanged"
    assert clock(root) == 210


def test_persistence_that_was_switched_off_does_not_keep_rollback_from_the_lock(
    root: Path, tuner: Tuner, locks: Path
) -> None:
    """While a client holds the GPU the lock is in force, and nobody can see for how long."""
    free = clock(root)
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    open_host(str(root)).nvml.set(GPU, "persistence", "disabled")
    assert tuner("verify", "--root", root).code == Exit.DIFFERS
    refused = tuner("apply", "--profile", locks, "--root", root)
    assert (refused.code, clock(root)) == (Exit.UNDONE, 1155)
    rolled = tuner("rollback", "--root", root, "--json")
    assert (rolled.code, only(rolled, "outcomes")["result"]) == (Exit.OK, "done")
    assert clock(root) == free


@pytest.mark.parametrize("taken", [True, False])
def test_a_lock_that_ends_in_an_error_is_undone(
    root: Path, tuner: Tuner, locks: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """Whether the driver took it nobody knows; a reset that fails as well is not undone."""
    free, real = clock(root), RecordedNvml.set
    for resets, code in ((True, Exit.UNDONE), (False, Exit.NOT_RESTORED)):

        def set_(self: RecordedNvml, address: str, name: str, value: Any, resets: bool = resets) -> Any:
            if value is not None and taken:
                real(self, address, name, value)
            if value is not None or not resets:
                raise fault("IN_USE")
            return real(self, address, name, value)

        with monkeypatch.context() as patched:
            patched.setattr(RecordedNvml, "set", set_)
            assert tuner("apply", "--profile", locks, "--root", root).code == code
        assert clock(root) == (free if resets or not taken else 1155)


def test_nothing_else_that_cannot_be_read_is_written_over(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """A driver that does not answer: unknown, and no change."""
    root = copy_host("a100-cx7", "nvml-hangs")
    plan = tuner("plan", "--profile", "a100", "--with", "locked-clocks", "--root", root, "--json")
    assert [c for c in plan.document["changes"] if c["knob"].startswith("nvidia.")] == []
    states = {v["state"] for v in plan.document["verdicts"] if v["knob"] == KNOB}
    assert states == {"unknown"}


def test_a_lock_of_another_gpu_is_not_touched(root: Path, tuner: Tuner, locks: Path) -> None:
    free = clock(root, OTHER)
    assert tuner("apply", "--profile", locks, "--root", root).code == Exit.OK
    assert clock(root, OTHER) == free
    assert set(json.loads((root / RECORD).read_text())) == {GPU}
