"""The live machine, as root: a second, independent reader (sysctl, cat) says what the kernel holds."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_profile
from tests.live.conftest import FOLDERS, PAGES, SYSCTLS, Machine, put

pytestmark = pytest.mark.xdist_group("live")

EVERY = ("rmem_max", "tcp_rmem", "swappiness", "hugepages", "thp")


@pytest.fixture
def profile(machine: Machine, tmp_path: Path) -> Path:
    """What this machine allows of the five settings, each another value than the present one."""
    lines: list[str] = []
    for knob in ("sysctl", "thp", "hugepages"):
        rows = [f'  {p.target}: "{p.wanted}"' for p in machine.places.values() if p.knob == knob]
        lines += [f"{knob}:", *rows] if rows else []
    return write_profile(tmp_path / "live.yaml", "\n".join(lines).replace("\t", " "), name="live")


def files(machine: Machine) -> int:
    """How many files keep these settings: one for all kernel parameters."""
    return int(any(place.knob == "sysctl" for place in machine.places.values()))


@pytest.fixture
def applied(machine: Machine, profile: Path) -> dict[str, Any]:
    """The document of a first apply, which must have changed every setting."""
    code, document, said = machine.tuner("apply", "--profile", profile, "--allow", "memory")
    assert code == 0, said
    return document


def independent(knob: str, target: str, path: str) -> str:
    """What `sysctl -n` says of a key and `cat` of a file; `cat` for both where there is no sysctl command."""
    command = ["cat", path]
    if knob == "sysctl" and shutil.which("sysctl"):
        command = ["sysctl", "-n", target]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def test_every_write_is_an_outcome(machine: Machine, applied: dict[str, Any]) -> None:
    """Generation 1 of a live host: each setting `done`, with what it held before."""
    assert applied["host"]["kind"] == "live"
    assert applied["generation"] == 1
    assert applied["changed"] == len(machine.places) + files(machine)
    outcomes = {o["target"]: o for o in applied["outcomes"]}
    for name, place in machine.places.items():
        assert outcomes[place.target]["result"] == "done", name
    if "swappiness" in machine.places:
        assert outcomes["vm.swappiness"]["before"] == int(machine.before["swappiness"])


@pytest.mark.parametrize("name", EVERY)
def test_the_kernel_holds_it(machine: Machine, applied: dict[str, Any], name: str) -> None:
    """Read back with `sysctl -n` and `cat`; of a choice the word in brackets."""
    if machine.refused[name]:
        pytest.skip(machine.refused[name])
    place = machine.places[name]
    found = independent(place.knob, place.target, place.path)
    if name == "thp":
        assert f"[{place.wanted}]" in found
    else:
        assert found.split() == place.wanted.split()
    if name == "hugepages":
        assert int(found) == int(machine.before[name]) + PAGES


def test_second_apply_changes_nothing(machine: Machine, applied: dict[str, Any], profile: Path) -> None:
    """No outcome, no generation, no byte of tuner's state."""

    def state() -> dict[str, bytes]:
        found = [p for folder in FOLDERS for p in Path(folder).rglob("*") if p.is_file() and p.name != "lock"]
        found += [Path(SYSCTLS)] if files(machine) else []
        return {str(path): path.read_bytes() for path in found}

    values, before = machine.values(), state()
    code, document, _ = machine.tuner("apply", "--profile", profile, "--allow", "memory")
    assert code == 0
    assert document["outcomes"] == []
    assert document["changed"] == 0
    assert document["generation"] is None
    assert machine.values() == values
    assert state() == before
    generations = machine.tuner("history")[1]["generations"]
    assert [g["generation"] for g in generations] == [1]


def test_verify_is_clean_after_apply(machine: Machine, applied: dict[str, Any]) -> None:
    """Exit 0, every verdict ok, judged by the settings that were applied."""
    code, document, _ = machine.tuner("verify")
    assert code == 0
    assert document["settings_id"] == applied["settings_id"]
    assert document["counts"] == {"ok": len(machine.places) + files(machine)}


@pytest.mark.parametrize("name", EVERY)
def test_drift_is_named(machine: Machine, applied: dict[str, Any], name: str) -> None:
    """One value changed by hand: exit 10, that one is drift and nothing else is."""
    if machine.refused[name]:
        pytest.skip(machine.refused[name])
    put(machine.places[name].path, machine.places[name].other)
    code, document, _ = machine.tuner("verify")
    assert code == 10
    assert [v["target"] for v in document["verdicts"] if v["state"] == "drift"] == [machine.places[name].target]
    assert document["state"] == "drift"


def test_apply_mends_drift(machine: Machine, applied: dict[str, Any], profile: Path) -> None:
    """Apply writes what drifted, only that, and rollback still reaches what was there before tuner came."""
    name = "swappiness" if "swappiness" in machine.places else next(iter(machine.places))
    place = machine.places[name]
    put(place.path, place.other)
    code, document, _ = machine.tuner("apply", "--profile", profile, "--allow", "memory")
    assert code == 0
    assert [o["target"] for o in document["outcomes"]] == [place.target]
    assert machine.values()[name] == place.wanted
    assert machine.tuner("rollback", "--to", "0")[0] == 0
    assert machine.values() == machine.before


def test_rollback_gives_back_the_exact_values(machine: Machine, applied: dict[str, Any]) -> None:
    """Every setting as before, as the independent reader sees it; then there is nothing to roll back."""
    code, document, _ = machine.tuner("rollback")
    assert code == 0
    assert document["undone"] == [1]
    assert {o["result"] for o in document["outcomes"]} == {"done"}
    for name, place in machine.places.items():
        found = independent(place.knob, place.target, place.path)
        if name == "thp":
            assert f"[{machine.before[name]}]" in found
        else:
            assert found == machine.before[name]
    assert not os.path.lexists(SYSCTLS)
    assert machine.tuner("rollback")[0] == 64


@pytest.mark.parametrize("name", ["rmem_max", "tcp_rmem", "swappiness", "thp"])
def test_rollback_leaves_what_is_not_ours_any_more(machine: Machine, applied: dict[str, Any], name: str) -> None:
    """What somebody changed meanwhile stays as they set it: exit 10 and named; all else is restored."""
    if machine.refused[name]:
        pytest.skip(machine.refused[name])
    place = machine.places[name]
    put(place.path, place.other)
    code, document, _ = machine.tuner("rollback")
    assert code == 10
    results = {o["target"]: o["result"] for o in document["outcomes"]}
    assert results.pop(place.target) == "not ours any more"
    assert set(results.values()) <= {"done"}
    assert machine.values() == {**machine.before, name: place.other}


def test_rollback_with_force_restores_it_all(machine: Machine, applied: dict[str, Any]) -> None:
    """--force takes back what somebody else set."""
    place = next(iter(machine.places.values()))
    put(place.path, place.other)
    assert machine.tuner("rollback", "--force")[0] == 0
    assert machine.values() == machine.before


@pytest.fixture
def log(machine: Machine) -> Iterator[Callable[[], list[str]]]:
    """A system log of our own where the machine has none: the lines that came since."""
    if os.path.lexists("/dev/log"):
        pytest.skip("/dev/log belongs to this machine's own system log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("/dev/log")
        receiver.setblocking(False)

        def lines() -> list[str]:
            found = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(receiver.recv(4096).decode("utf-8"))
            return found

        try:
            yield lines
        finally:
            os.unlink("/dev/log")


def ours(lines: list[str]) -> list[str]:
    """Lines of this test's operator: other programs of this machine log too, Ansible among them."""
    return [line for line in lines if "operator7" in line]


def test_one_syslog_line_per_write(machine: Machine, profile: Path, log: Callable[[], list[str]]) -> None:
    """Who, settings id, knob and target, before and after: for every write of apply and of rollback, for no other."""
    operator = {"SUDO_USER": "operator7"}
    code, document, _ = machine.tuner("apply", "--profile", profile, "--allow", "memory", **operator)
    assert code == 0
    forth = ours(log())
    machine.tuner("verify", **operator)
    machine.tuner("apply", "--profile", profile, "--allow", "memory", **operator)
    assert ours(log()) == []
    assert machine.tuner("rollback", **operator)[0] == 0
    back = ours(log())
    for lines in (forth, back):
        assert len(lines) == len(machine.places) + files(machine)
        for place in machine.places.values():
            (line,) = [line for line in lines if f"{place.knob} {place.target} " in line]
            assert "tuner[" in line
            assert "operator7" in line
            assert document["settings_id"][:8] in line
    if "swappiness" in machine.places:
        was, now = machine.before["swappiness"], machine.places["swappiness"].wanted
        assert any(line.endswith(f"vm.swappiness {was} -> {now}") for line in (x.rstrip("\0\n") for x in forth))
        assert any(line.endswith(f"vm.swappiness {now} -> {was}") for line in (x.rstrip("\0\n") for x in back))


def test_who_may_read_what_tuner_keeps(applied: dict[str, Any]) -> None:
    """The folders of tuner on a real machine: the journal for root alone, the applied settings for everybody."""
    assert os.stat("/var/lib/tuner/generations").st_mode & 0o077 == 0
    assert os.stat("/etc/tuner/applied").st_mode & 0o777 == 0o755
    assert os.stat("/etc/tuner/applied/current.json").st_mode & 0o777 == 0o644
