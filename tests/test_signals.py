"""Signals in mid-apply, and what other commands do while a run holds the lock."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lock_seen_taken, tree, write_profile
from tests.crash_child import Paused, command, ended, fork, watch

Tuner = Callable[..., Any]

SETTINGS = """
thp: {enabled: madvise}
sysctl:
  vm.swappiness: 1
  net.core.rmem_max: 16777216
  net.core.wmem_max: 16777216
file:
  /etc/modprobe.d/made/by/us.conf: "options a b=1\\n"
"""
"""Four writes to kernel files, in this order, then a file in new directories."""

STOPPING = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Whoever started the tests may ignore some (nohup, a shell's `&`), and tuner then leaves them ignored."""
    former = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    }
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "four.yaml", SETTINGS)


@pytest.fixture
def paused(root: Path, profile: Path, tmp_path: Path) -> Iterator[Callable[..., Paused]]:
    """paused(number) -> an apply of `profile` that waits inside its write `number`; it is ended in any case."""
    started: list[Paused] = []

    def start(number: int, *words: str) -> Paused:
        line = list(words) or ["apply", "--root", str(root), "--profile", str(profile)]
        started.append(Paused(line, number, tmp_path / "child.log"))
        return started[-1]

    yield start
    for child in started:
        if not child.over:
            os.kill(child.pid, signal.SIGKILL)
            ended(child.pid)


def journal(root: Path, generation: int = 1) -> list[dict[str, Any]]:
    text = (root / f"var/lib/tuner/generations/{generation:06d}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def value(root: Path, name: str) -> str:
    return (root / "proc/sys" / name).read_text().strip()


@pytest.mark.parametrize("number", STOPPING)
def test_signal_inside_a_write_finishes_it_and_undoes_all(
    number: signal.Signals, root: Path, paused: Callable[..., Paused]
) -> None:
    first = tree(root)
    child = paused(3)
    os.kill(child.pid, number)
    assert child.end() == 20
    assert tree(root) == first
    lines = [line for line in journal(root) if line["op"] in ("outcome", "end")]
    applied = [line["target"] for line in lines if line.get("run") == "apply" and line["op"] == "outcome"]
    undone = [line["target"] for line in lines if line.get("run") == "undo" and line["op"] == "outcome"]
    assert applied == ["enabled", "vm.swappiness", "net.core.rmem_max"]
    assert undone[:3] == applied[::-1]
    assert lines[-1]["state"] == "undone"
    assert f"stopped by {number.name}" in child.log.read_text()


def test_nothing_is_left_to_roll_back_after_a_signal(root: Path, paused: Callable[..., Paused], tuner: Tuner) -> None:
    child = paused(2)
    os.kill(child.pid, signal.SIGTERM)
    assert child.end() == 20
    assert tuner("rollback", "--root", root).code == 64
    assert tuner("verify", "--root", root).code == 64


def test_signals_over_and_over_change_nothing_more(root: Path, paused: Callable[..., Paused]) -> None:
    """A second SIGTERM, and a SIGINT while undoing (write 5 is the first one of the undo), do not cut it short."""
    first = tree(root)
    child = paused(3)
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGHUP)
    assert child.end() == 20
    assert tree(root) == first


@pytest.mark.parametrize("number", STOPPING)
def test_signal_while_undoing_does_not_stop_the_undo(
    number: signal.Signals, copy_host: Callable[..., Path], tmp_path: Path, paused: Callable[..., Paused]
) -> None:
    """vm.swappiness refuses write 4, so that write 5 is the first one of the undo."""
    host = copy_host("plain-vm", "swappiness-refused")
    settings = "sysctl:\n  net.core.rmem_max: 16777216\n  net.core.wmem_max: 16777216\n  vm.swappiness: 1"
    profile = write_profile(tmp_path / "refused.yaml", "thp: {enabled: madvise}\n" + settings)
    first = tree(host)
    child = paused(5, "apply", "--root", str(host), "--profile", str(profile))
    os.kill(child.pid, number)
    assert child.end() == 20
    assert tree(host) == first


@pytest.mark.parametrize("number", STOPPING)
def test_signal_does_not_stop_a_rollback_half_way(
    number: signal.Signals, root: Path, profile: Path, tuner: Tuner, paused: Callable[..., Paused]
) -> None:
    first = tree(root)
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    child = paused(2, "rollback", "--root", str(root))
    os.kill(child.pid, number)
    assert child.end() == 0
    assert tree(root) == first


def test_signal_during_the_last_write_still_undoes(root: Path, paused: Callable[..., Paused]) -> None:
    """The file comes after the four kernel files; a signal in the fourth leaves it unmade."""
    first = tree(root)
    child = paused(4)
    os.kill(child.pid, signal.SIGTERM)
    assert child.end() == 20
    assert tree(root) == first
    assert [line["target"] for line in journal(root) if line["op"] == "intent" and line["run"] == "apply"] == [
        "enabled",
        "vm.swappiness",
        "net.core.rmem_max",
        "net.core.wmem_max",
    ]


def test_sigterm_to_python_m_tuner(root: Path, profile: Path) -> None:
    """A process started as an operator starts it, with a door that takes its time."""
    first = tree(root)
    words = ["slow", "0.4", "apply", "--root", str(root), "--profile", str(profile)]
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.crash_child", *words],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 30
    while value(root, "vm/swappiness") != "1":
        assert time.monotonic() < limit and started.poll() is None
        time.sleep(0.01)
    started.send_signal(signal.SIGTERM)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 20
    assert "stopped by SIGTERM" in out
    assert "Traceback" not in err
    assert tree(root) == first


def test_second_apply_names_the_holder(root: Path, profile: Path, paused: Callable[..., Paused], tuner: Tuner) -> None:
    child = paused(2)
    before = tree(root)
    for words in (["apply", "--profile", profile], ["rollback"]):
        result = tuner(*words, "--root", root)
        assert result.code == 30
        assert f"pid {child.pid}" in result.err
        assert "hint:" in result.err
    assert tree(root) == before
    assert child.end() == 0


def test_second_apply_as_json(root: Path, profile: Path, paused: Callable[..., Paused], tuner: Tuner) -> None:
    child = paused(2)
    result = tuner("apply", "--profile", profile, "--root", root, "--json")
    assert result.code == 30
    assert result.document["schema"] == "tuner.error/1"
    assert result.document["exit"] == 30
    assert f"pid {child.pid}" in result.document["errors"][0]["what"]
    assert child.end() == 0


def test_lock_is_free_after_the_holder_was_killed(
    root: Path, profile: Path, paused: Callable[..., Paused], tuner: Tuner
) -> None:
    child = paused(2)
    os.kill(child.pid, signal.SIGKILL)
    assert child.end() == -signal.SIGKILL
    assert tuner("apply", "--profile", profile, "--root", root).code == 0


@pytest.fixture
def lock(root: Path, profile: Path, tuner: Tuner) -> Iterator[int]:
    """The lock of an applied host, held by somebody who writes nothing."""
    assert tuner("apply", "--profile", profile, "--root", root).code == 0
    handle = os.open(root / "run/tuner/lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield handle
    os.close(handle)


@pytest.mark.parametrize("verb", ["verify", "status", "history", "plan"])
def test_looking_does_not_wait_for_the_lock(verb: str, root: Path, profile: Path, lock: int, tuner: Tuner) -> None:
    words = ["--profile", profile] if verb == "plan" else []
    assert tuner(verb, "--root", root, *words).code == 0


@pytest.mark.parametrize("verb", ["verify", "status"])
def test_looking_never_holds_the_lock(
    verb: str, root: Path, profile: Path, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no moment would an apply that starts meanwhile find the lock taken."""
    assert tuner("apply", "--profile", profile, "--root", root).code == 0
    refused = lock_seen_taken(root, monkeypatch)
    assert tuner(verb, "--root", root).code == 0
    assert refused == []


@pytest.fixture
def drifted(root: Path, profile: Path, tuner: Tuner) -> Path:
    """An applied host with two values changed by hand."""
    assert tuner("apply", "--profile", profile, "--root", root).code == 0
    (root / "proc/sys/vm/swappiness").write_text("60\n")
    (root / "proc/sys/net/core/rmem_max").write_text("212992\n")
    return root


def test_verify_during_an_apply_waits_and_says_so(drifted: Path, paused: Callable[..., Paused], tuner: Tuner) -> None:
    """Both drifted values are still so when the second look is over: not known, rather than drift."""
    child = paused(1)
    start = time.monotonic()
    result = tuner("verify", "--root", drifted, "--json")
    assert time.monotonic() - start >= 1
    assert result.code == 12
    found = {v["target"]: (v["state"], v["state_why"]) for v in result.document["verdicts"]}
    assert found["vm.swappiness"] == ("unknown", "apply in progress")
    assert found["net.core.rmem_max"] == ("unknown", "apply in progress")
    assert found["net.core.wmem_max"][0] == "ok"
    assert child.end() == 0
    assert tuner("verify", "--root", drifted).code == 0


def test_verify_during_the_first_apply(root: Path, paused: Callable[..., Paused], tuner: Tuner) -> None:
    child = paused(2)
    result = tuner("verify", "--root", root)
    assert result.code == 12
    assert "apply in progress" in result.out
    assert child.end() == 0


def test_verify_reads_once_more_when_the_apply_ends(drifted: Path, paused: Callable[..., Paused], tuner: Tuner) -> None:
    child = paused(1)
    timer = threading.Timer(0.3, child.go)
    timer.start()
    try:
        assert tuner("verify", "--root", drifted).code == 0
    finally:
        timer.join()
    assert ended(child.pid) == 0
    child.over = True


def test_verify_of_a_dead_run_does_not_wait(drifted: Path, paused: Callable[..., Paused], tuner: Tuner) -> None:
    """An open intent without a lock is a crash: what differs is drift."""
    child = paused(1)
    os.kill(child.pid, signal.SIGKILL)
    child.end()
    result = tuner("verify", "--root", drifted)
    assert result.code == 10
    assert "apply in progress" not in result.out


def test_signal_handlers_are_given_back(root: Path, profile: Path, tuner: Tuner) -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    tuner("apply", "--profile", profile, "--root", root)
    tuner("rollback", "--root", root)
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_interrupt_before_the_first_write(root: Path, profile: Path) -> None:
    """Ctrl-C while nothing is under way ends quietly and writes nothing."""
    first = tree(root)

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    def work() -> int:
        watch(interrupted)
        return command(["apply", "--root", str(root), "--profile", str(profile)])

    log = profile.with_suffix(".log")
    assert ended(fork(work, log)) == 130
    assert "Traceback" not in log.read_text()
    assert tree(root) == first
