"""linux-gpu on the live machine: applied and verified as far as this kernel allows, given back to the letter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import Machine
from tuner.host import open_host
from tuner.profile import load_profile

pytestmark = pytest.mark.xdist_group("live")

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
RESERVE = Path("/proc/sys/vm/min_free_kbytes")


def places() -> list[Path]:
    """The kernel files of the profile's sysctls."""
    targets = [s.target for s in load_profile(open_host(), "linux-gpu").settings if s.knob == "sysctl"]
    return [path for path in (Path("/proc/sys", *target.split(".")) for target in targets) if path.exists()]


@pytest.fixture
def before(machine: Machine) -> Iterator[dict[Path, str]]:
    """What every file of the profile holds; written back whatever the test does."""
    held = {path: path.read_text(encoding="ascii") for path in [*places(), RESERVE]}
    chosen = THP.read_text(encoding="ascii") if THP.exists() else ""
    yield held
    with contextlib.suppress(OSError):
        if chosen:
            THP.write_text(chosen.partition("[")[2].partition("]")[0], encoding="ascii")
    for path, text in held.items():
        if path.read_text(encoding="ascii") != text:
            path.write_text(text, encoding="ascii")


def test_linux_gpu_is_applied_verified_and_given_back(machine: Machine, before: dict[Path, str]) -> None:
    """What is left over is only what a write cannot mend: the boot line, services, hardware that is not here."""
    code, document, said = machine.tuner("apply", "--profile", "linux-gpu")
    assert code in (0, 12), said
    assert {o["result"] for o in document["outcomes"]} <= {"done"}
    _, verdicts, _ = machine.tuner("verify")
    states = {(v["knob"], v["target"]): v["state"] for v in verdicts["verdicts"]}
    wrong = {
        at: s
        for at, s in states.items()
        if at[0] in ("sysctl", "thp", "cpu") and s not in ("ok", "raised", "unsupported")
    }
    assert wrong == {}
    assert states["sysctl", "vm.swappiness"] == "ok"
    assert Path("/proc/sys/vm/swappiness").read_text(encoding="ascii") == "1\n"
    _, again, _ = machine.tuner("apply", "--profile", "linux-gpu")
    assert again["generation"] is None
    code, _, said = machine.tuner("rollback")
    assert code == 0, said
    assert {path: path.read_text(encoding="ascii") for path in before} == before
