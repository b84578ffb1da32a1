"""The one way to start a program: bounded, without input, in the C locale."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tuner.host.shell import run


def script(path: Path, text: str) -> str:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_output_and_exit_code() -> None:
    ran = run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], 10)
    assert (ran.code, ran.out, ran.err) == (3, "out\n", "err\n")
    assert "ended with 3: err" in ran.failure


def test_success_has_no_failure() -> None:
    assert run(["/bin/true"], 10).failure == ""


def test_a_missing_program_is_said() -> None:
    assert "cannot be started" in run(["/no/such/program"], 10).failure


def test_stdin_is_closed() -> None:
    """A tool that asks `[y/N]` reads the end of its input instead of waiting (triton-lang/triton#7729)."""
    assert run(["/bin/sh", "-c", "read answer || echo no input"], 10).out == "no input\n"


def test_locale_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """C locale whatever ours is, and nothing of ours but PATH and HOME (sysstat/sysstat#128)."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SECRET", "hidden")
    out = run(["/usr/bin/env"], 10).out
    assert "LC_ALL=C\n" in out
    assert "SECRET" not in out


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    """IDSIA/sacred#776: tokens stay apart, nothing crashes."""
    assert run(["/bin/sh", "-c", r"printf 'a \260 b'"], 10).out == "a � b"


@pytest.mark.parametrize("text", ["sleep 60", "trap '' TERM; sleep 60 & wait; sleep 60"], ids=["hangs", "ignores TERM"])
def test_a_hung_tool_is_killed(tmp_path: Path, text: str) -> None:
    """leptonai/gpud#117: a time limit, then a kill that cannot be ignored."""
    start = time.monotonic()
    ran = run([script(tmp_path / "tool", text)], 0.5)
    assert time.monotonic() - start < 10
    assert ran.code is None
    assert "did not end within 0.5 s" in ran.failure


def test_a_grandchild_that_holds_the_pipe_does_not_hold_us(tmp_path: Path) -> None:
    """utkuozdemir/nvidia_gpu_exporter: the reader stops although the pipe stays open in another session."""
    start = time.monotonic()
    ran = run([script(tmp_path / "tool", "setsid sleep 30 &\nexit 0")], 0.5)
    assert time.monotonic() - start < 10
    assert ran.failure
