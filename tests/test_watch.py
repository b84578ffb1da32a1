"""verify --watch: a real process that looks on while somebody changes a copied host by hand.

No test rests on how long a look takes: each waits for the line it wants, or for the end of the process, up to LIMIT.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, check_schema, lock_seen_taken, write_profile
from tuner.cli import watch as watching
from tuner.host.replay import RecordedNvml

Tuner = Callable[..., Result]

LIMIT = 60
"""Seconds that a line or an end is waited for: far more than it takes."""

CLOCK = r"\d\d:\d\d:\d\d  "


class Watch:
    """A `tuner verify --watch` that runs; its lines in the order of their coming."""

    def __init__(self, root: Path, words: list[str]) -> None:
        command = [sys.executable, "-m", "tuner", "verify", "--root", str(root), "--watch", "0.5", *words]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._coming: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._coming.put(line.rstrip("\n"))
        self._coming.put(None)

    def until(self, pattern: str) -> str:
        """The next line that the pattern matches whole; fails at the end of the output."""
        limit = time.monotonic() + LIMIT
        while True:
            line = self._coming.get(timeout=max(0.0, limit - time.monotonic()))
            assert line is not None, f"ended without {pattern!r}: {self.lines}"
            self.lines.append(line)
            if re.fullmatch(pattern, line):
                return line

    def event(self, name: str) -> dict[str, Any]:
        """The next document with this event; every line on the way is one JSON document of the schema."""
        line = self.until(rf'.*"event": "{name}".*')
        for each in self.lines:
            check_schema(json.loads(each))
        document: dict[str, Any] = json.loads(line)
        return document

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Sends the signal; exit code and what was said on stderr."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Waits for the end; exit code and what was said on stderr."""
        code = self.process.wait(timeout=LIMIT)
        while (line := self._coming.get(timeout=LIMIT)) is not None:
            self.lines.append(line)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Whoever started the tests may ignore some (nohup, a shell's `&`), and a child would inherit that."""
    former = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "site.yaml", "sysctl:\n  vm.swappiness: 1\n  net.core.rmem_max: 16777216", "site")


@pytest.fixture
def host(root: Path, profile: Path, tuner: Tuner) -> Path:
    """A copied host with two settings applied."""
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    return root


@pytest.fixture
def watch(host: Path) -> Iterator[Callable[..., Watch]]:
    """watch(*words) -> a Watch of the host that has printed its first look; it is ended in any case."""
    started: list[Watch] = []

    def start(*words: str) -> Watch:
        started.append(Watch(host, list(words)))
        started[-1].until(r'\d settings: .*|.*"event": "begin".*')
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        for stream in (one.process.stdout, one.process.stderr):
            assert stream is not None
            stream.close()


def swappiness(host: Path, value: int) -> None:
    (host / "proc/sys/vm/swappiness").write_text(f"{value}\n")


def test_only_changes_are_printed(watch: Callable[..., Watch], host: Path) -> None:
    """Head and counts once; a drift, another wrong value, the way back; nothing between them."""
    found = watch()
    swappiness(host, 60)
    found.until(CLOCK + r"sysctl vm\.swappiness  ok -> drift  \(60, want 1; \S+:\d+ sets it at boot: .*\)")
    swappiness(host, 70)
    found.until(CLOCK + r"sysctl vm\.swappiness  drift  \(60 -> 70, want 1; .* sets it at boot: .*\)")
    swappiness(host, 1)
    found.until(CLOCK + r"sysctl vm\.swappiness  drift -> ok  \(1, want 1\)")
    (host / "proc/sys/vm/swappiness").unlink()
    found.until(CLOCK + r"sysctl vm\.swappiness  ok -> missing  \(-, want 1; .*\)")
    assert found.end() == (11, "")
    assert found.lines[0].startswith("RECORDED plain-vm ")
    assert found.lines[1] == "3 settings: 3 ok"
    assert re.fullmatch(r"Applied: generation 1, profile site, \S+ by .*", found.lines[2])
    assert len(found.lines) == 3 + 4


def test_what_is_wrong_already_is_named_at_the_start(watch: Callable[..., Watch], host: Path) -> None:
    swappiness(host, 60)
    found = watch()
    found.until(CLOCK + r"sysctl vm\.swappiness  drift  \(60, want 1; \S+:\d+ sets it at boot: .*\)")
    assert found.end()[0] == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("value", [1, 60])
def test_a_signal_ends_it_with_the_last_state(
    number: signal.Signals, value: int, watch: Callable[..., Watch], host: Path
) -> None:
    found = watch()
    if value != 1:
        swappiness(host, value)
        found.until(".*ok -> drift.*")
    assert found.end(number) == (0 if value == 1 else 10, "")


def test_an_ignored_hangup_stays_ignored(watch: Callable[..., Watch], host: Path) -> None:
    """Under nohup it outlives the terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits it; the fixture above takes it back
    found = watch()
    found.process.send_signal(signal.SIGHUP)
    swappiness(host, 60)
    found.until(".*ok -> drift.*")
    assert found.end() == (10, "")


def test_lines_of_json(watch: Callable[..., Watch], host: Path) -> None:
    """One document of tuner.watch/1 a line, flushed at once."""
    found = watch("--json")
    begun = json.loads(found.lines[0])
    check_schema(begun)
    assert (begun["exit"], begun["state"], begun["generation"], begun["counts"]) == (0, "ok", 1, {"ok": 3})
    swappiness(host, 60)
    changed = found.event("changed")
    assert (changed["exit"], changed["state"], changed["counts"]) == (10, "drift", {"ok": 2, "drift": 1})
    assert changed["was"] == {"state": "ok", "running": 1}
    verdict = changed["verdict"]
    assert (verdict["knob"], verdict["target"], verdict["state"]) == ("sysctl", "vm.swappiness", "drift")
    assert (verdict["running"], verdict["want"]) == (60, {"value": 1})
    assert found.end() == (10, "")
    assert [json.loads(line)["event"] for line in found.lines] == ["begin", "changed"]


def test_a_generation_applied_meanwhile_is_judged(
    watch: Callable[..., Watch], host: Path, tuner: Tuner, tmp_path: Path
) -> None:
    """So is the one before after a rollback; a rollback to nothing is said, and so is what comes after it."""
    other = write_profile(tmp_path / "other.yaml", "sysctl: {vm.swappiness: 10}", "other")
    found = watch("--json")
    assert tuner("apply", "--root", host, "--profile", other).code == 0
    now = found.event("settings")
    assert (now["generation"], now["profile"]) == (2, "other")
    swappiness(host, 11)
    assert found.event("changed")["verdict"]["want"] == {"value": 10}
    swappiness(host, 10)
    assert found.event("changed")["exit"] == 0
    assert tuner("rollback", "--root", host).code == 0
    now = found.event("settings")
    assert (now["generation"], now["profile"], now["exit"]) == (1, "site", 0)
    assert tuner("rollback", "--root", host).code == 0
    failed = found.event("failed")
    assert "nothing applied" in failed["why"]
    assert (failed["exit"], failed["state"], failed["generation"], failed["profile"]) == (64, None, None, None)
    assert tuner("apply", "--root", host, "--profile", other).code == 0
    assert found.event("settings")["profile"] == "other"
    assert found.end() == (0, "")


def test_a_new_generation_in_words(watch: Callable[..., Watch], host: Path, tuner: Tuner, tmp_path: Path) -> None:
    found = watch()
    other = write_profile(tmp_path / "other.yaml", "sysctl: {vm.swappiness: 10}", "other")
    assert tuner("apply", "--root", host, "--profile", other).code == 0
    found.until(CLOCK + r"judged from here on: generation 2, profile other, \S+ by .*: 2 settings: 2 ok")
    assert tuner("rollback", "--root", host, "--to", "0").code == 0
    found.until(CLOCK + r"cannot judge: .*nothing applied yet")
    assert found.end() == (64, "")


def test_the_off_switch_is_said(watch: Callable[..., Watch], host: Path, tuner: Tuner) -> None:
    found = watch()
    assert tuner("off", "--root", host, "--why", "a test").code == 0
    found.until(CLOCK + r"tuner is off: a test \(.*\)")
    assert tuner("on", "--root", host).code == 0
    found.until(CLOCK + "tuner is on again")
    assert found.end() == (0, "")


def test_a_profile_that_is_edited_is_judged_as_it_is_now(
    watch: Callable[..., Watch], host: Path, profile: Path
) -> None:
    """A file that is half-written is one line; what it says then is judged."""
    found = watch("--profile", str(profile))
    text = profile.read_text()
    profile.write_text("settings: [")
    found.until(CLOCK + "cannot judge: .*site.yaml.*")
    profile.write_text(text.replace("swappiness: 1", "swappiness: 2"))
    found.until(CLOCK + r"judged from here on: profile \S+, settings [0-9a-f]{8}: 3 settings: .*")
    found.until(CLOCK + r"sysctl vm\.swappiness  ok -> drift  \(1, want 2\)")
    assert found.end() == (10, "")


def test_a_host_that_goes_and_comes_back(watch: Callable[..., Watch], host: Path) -> None:
    """One line for as long as it is gone, and one when it is back, with what changed meanwhile."""
    found = watch()
    away = host.with_name("away")
    host.rename(away)
    found.until(CLOCK + "cannot judge: .*no such directory")
    time.sleep(1.5)  # some more looks that fail; that there are any is not needed for the test to be right
    swappiness(away, 60)
    away.rename(host)
    found.until(CLOCK + "judged again: 3 settings: 2 ok, 1 drift")
    found.until(CLOCK + r"sysctl vm\.swappiness  ok -> drift  \(60, want 1; \S+:\d+ sets it at boot: .*\)")
    assert found.end() == (10, "")
    assert sum("cannot judge" in line for line in found.lines) == 1


def test_a_reader_that_goes_ends_it_though_nothing_changes(host: Path) -> None:
    """`tuner verify --watch 1 | head -2` gives the prompt back."""
    words = ["verify", "--root", str(host), "--watch", "0.5"]
    started = subprocess.Popen(
        [sys.executable, "-m", "tuner", *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdout is not None and started.stderr is not None
    assert started.stdout.readline().startswith(b"RECORDED")
    started.stdout.close()
    try:
        assert started.wait(timeout=LIMIT) == 0
        assert started.stderr.read() == b""
    finally:
        started.kill()
        started.stderr.close()


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_a_full_disk_is_said_and_ends_it(words: list[str], host: Path) -> None:
    swappiness(host, 60)
    command = [sys.executable, "-m", "tuner", "verify", "--root", str(host), "--watch", "0.5", *words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 10
    assert done.stderr == "tuner: the output cannot be written: No space left on device\n"


def test_the_lock_is_free_and_not_needed(watch: Callable[..., Watch], host: Path, tuner: Tuner, profile: Path) -> None:
    """It looks on while somebody holds the lock; an apply beside it never finds the lock taken."""
    found = watch()
    with open(host / "run/tuner/lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        swappiness(host, 60)
        found.until(".*ok -> drift.*")
    assert tuner("apply", "--root", host, "--profile", profile).code == 0
    found.until(".*drift -> ok.*")
    assert found.end() == (0, "")


def test_a_look_never_holds_the_lock(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = lock_seen_taken(host, monkeypatch)
    assert not watching._once_more(_args(host)).trouble
    assert refused == []


def _args(root: Path) -> argparse.Namespace:
    return argparse.Namespace(root=str(root), profile=None, overlays=[], sets=[])


def test_a_look_lets_go_of_the_gpus(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks no GPU is held open: somebody may want to reset it."""
    root, closed = copy_host("a100-cx7"), list[int]()
    profile = write_profile(tmp_path / "gpu.yaml", 'nvidia.persistence: {"*": enabled}')
    assert tuner("apply", "--profile", profile, "--root", root).code == 0
    monkeypatch.setattr(RecordedNvml, "close", lambda nvml: closed.append(1))
    watching._looked(_args(root))
    assert closed == [1]


def test_looks_leave_nothing_behind(host: Path) -> None:
    """A watch runs for weeks: looks, those that fail too, keep no memory and no open file."""

    def looks(count: int) -> None:
        former = watching._once_more(_args(host))
        for _ in range(count):
            now = watching._once_more(_args(host))
            watching.news(former, former, now)
            watching._once_more(_args(host / "nowhere"))
            former = now

    looks(3)
    gc.collect()
    before, files = len(gc.get_objects()), len(os.listdir("/proc/self/fd"))
    looks(20)
    gc.collect()
    assert len(gc.get_objects()) - before < 20, "an object for each look"
    assert len(os.listdir("/proc/self/fd")) == files


@given(st.floats(0, 1e7), st.floats(0.5, 86400), st.floats(0, 1e6))
def test_looks_come_at_multiples(start: float, seconds: float, passed: float) -> None:
    """The next look is at a multiple of the interval: never in the past, never later than one interval from now."""
    now = start + passed
    moment = watching.due(start, seconds, now)
    nearly = 1e-6 * max(1.0, now)
    assert now - nearly <= moment <= now + seconds + nearly
    steps = (moment - start) / seconds
    assert abs(steps - round(steps)) * seconds <= nearly
    assert round(steps) >= 1


def test_a_look_that_takes_long_moves_no_later_one() -> None:
    """Looks of 0.3 s every second from 100 on: at 101 and 102; one of 2.5 s leaves out those that it overran."""
    assert watching.due(100, 1, 100.3) == 101
    assert watching.due(100, 1, 101.3) == 102
    assert watching.due(100, 1, 104.5) == 105
    assert watching.due(100, 1, 105) == 106


@pytest.mark.parametrize("seconds", ["0", "0.49", "-1", "nan", "inf", "1e9", "x", ""])
def test_a_bad_interval(seconds: str, host: Path, tuner: Tuner) -> None:
    found = tuner("verify", "--root", host, f"--watch={seconds}")
    assert found.code == 64
    assert "--watch" in found.err and "hint: " in found.err


@pytest.mark.parametrize("other", [["--format", "junit"], ["--all"]])
def test_what_makes_no_sense_beside_it(other: list[str], host: Path, tuner: Tuner) -> None:
    found = tuner("verify", "--root", host, "--watch", "1", *other)
    assert found.code == 64
    assert "exclude each other" in found.err


def test_a_first_look_fails_as_verify_does(root: Path, tuner: Tuner) -> None:
    """A mistyped root, or nothing applied, is not waited for."""
    for words in (["--root", root], ["--root", root / "nowhere"], ["--root", root, "--profile", "no-such"]):
        plain = tuner("verify", *words)
        watched = tuner("verify", *words, "--watch", "1")
        assert (watched.code, watched.out, watched.err) == (64, "", plain.err)
    assert tuner("verify", "--root", root, "--watch", "1", "--json").document["schema"] == "tuner.error/1"
