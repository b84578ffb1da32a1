"""mount(ROOT) -> the folder where a copied host is mounted until the test ends, whatever becomes of the test."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.fuse.mount import UNUSABLE

REPO = Path(__file__).parents[2]
PATIENCE = 20.0
"""Seconds for a mount to appear or to go."""


def is_mounted(folder: Path) -> bool:
    """By the kernel's own list, which no file system that hangs can delay."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return any(line.split(" ")[4] == str(folder) for line in lines)


@contextlib.contextmanager
def mounted(root: Path, folder: Path) -> Iterator[Path]:
    """The mount, in a process of its own; its complaints go to a file beside it."""
    for what, missing in (
        ("/dev/fuse", not os.path.exists("/dev/fuse")),
        ("fusermount3 (package fuse3)", shutil.which("fusermount3") is None),
        ("mfusepy", importlib.util.find_spec("mfusepy") is None),
    ):
        if missing:
            unavailable(f"a FUSE mount needs {what}")
    folder.mkdir()
    log = folder.with_suffix(".log")
    command = [sys.executable, "-m", "tests.fuse.mount", str(root), str(folder)]
    with open(log, "wb") as said:
        process = subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        _wait(process, folder, log)
        yield folder
    finally:
        _unmount(process, folder)
    assert not is_mounted(folder)
    assert "Traceback" not in log.read_text(encoding="utf-8")


def _wait(process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not is_mounted(folder):
        if process.poll() == UNUSABLE:
            unavailable(f"no FUSE mount here: {log.read_text(encoding='utf-8').strip()}")
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < end, "the mount does not appear"
        time.sleep(0.01)
    os.stat(folder)  # answered: its loop runs


def _unmount(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Detached at once, even while something below it is open; then the process is told to end, or killed."""
    for command in (["fusermount3", "-u", "-z", "-q", str(folder)], ["umount", "-l", str(folder)]):
        if is_mounted(folder):
            with contextlib.suppress(subprocess.TimeoutExpired, FileNotFoundError):
                subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """mount(ROOT) -> MOUNTPOINT."""
    with contextlib.ExitStack() as stack:
        yield lambda root: stack.enter_context(mounted(root, tmp_path / f"{root.name}-mounted"))
