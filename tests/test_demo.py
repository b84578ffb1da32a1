"""tuner demo: the whole story on a copy of mi300x-cx7, told by commands that a reader can type."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Result
from tuner.sim import store

Tuner = Callable[..., Result]

STORY = (
    ("tuner host copy mi300x-cx7", 0),
    ("tuner detect", 0),
    ("tuner plan", 10),
    ("tuner apply", 0),
    ("tuner verify", 0),
    ("echo 60", 0),
    ("echo powersave", 0),
    ("echo high", 1),
    ("tuner verify", 11),
    ("tuner apply", 0),
    ("tuner verify", 0),
    ("tuner rollback", 0),
)
"""How each command begins and what it ends with: 10 differs, 11 hardware missing; the shell's 1 is a refused write."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; nothing is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def begun(command: str) -> str:
    """The command as far as STORY has it."""
    words = command.split()
    return " ".join(words[:4] if words[1] == "host" else words[:2])


def test_the_story(tuner: Tuner, temporary: Path) -> None:
    """Every command ends as it should, and the host is at the end as it was before."""
    done = tuner("demo", "--json")
    assert done.code == 0
    steps = done.document["steps"]
    assert [(begun(step["command"]), step["exit"]) for step in steps] == list(STORY)
    assert [step["expected"] for step in steps] == [code for _, code in STORY]
    assert done.document["restored"] is True
    assert done.err == ""


def test_it_can_be_read(tuner: Tuner, temporary: Path) -> None:
    """Each command stands after a `$`, what it printed and ended with below; drift and the lost GPU are named."""
    done = tuner("demo")
    assert done.code == 0
    told = done.out.split("\n$ ")[1:]
    assert [begun(part) for part in told] == [command for command, _ in STORY]
    assert [re.findall(r"^exit code (\d+)$", part, re.MULTILINE) for part in told] == [[str(code)] for _, code in STORY]
    (refused,) = [part for part in told if part.startswith("echo high")]
    assert "Invalid argument" in refused
    found = told[8]
    rows = re.findall(r"^  (missing|drift|)  +(\S+ \S+)  +(?=\S)", found, re.MULTILINE)
    told_of = list(itertools.accumulate(rows, lambda above, row: (row[0] or above[0], row[1])))
    named = {state: {place for kind, place in told_of if kind == state} for state in ("missing", "drift")}
    assert {"amdgpu.clock 0000:c7:00.0", "pcie.link gpu/0000:c7:00.0"} <= named["missing"]
    assert {"sysctl vm.swappiness", "cpu governor", "amdgpu.clock 0000:05:00.0"} <= named["drift"]
    assert "10 drift, 6 missing" in found, "the others of its hive have lost a peer"
    assert "byte for byte" in done.out.splitlines()[-1]
    assert "\x1b" not in done.out


def test_what_is_not_as_told_is_said(tuner: Tuner, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is lost after all, so that a verify ends with 10; and a file is changed that nobody puts back: exit 10."""

    def mend(root: str) -> None:
        Path(root, "etc/hostname").write_bytes(b"somebody-else\n")

    monkeypatch.setattr(store, "break_copy", lambda root, *faults: None)
    monkeypatch.setattr(store, "mend_copy", mend)
    done = tuner("demo")
    assert done.code == 10
    assert "THE HOST IS NOT AS IT WAS" in done.out
    (wrong,) = [line for line in done.out.splitlines() if line.startswith("NOT AS TOLD")]
    assert "tuner verify" in wrong
    assert "exit code 10 where 11 is right" in wrong


def test_nothing_is_left_when_it_is_stopped(tuner: Tuner, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C in the middle: the copy is gone."""

    def stop(root: str, *faults: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "break_copy", stop)
    done = tuner("demo")
    assert done.code == 130
    assert list(temporary.iterdir()) == []
