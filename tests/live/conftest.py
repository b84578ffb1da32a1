"""The machine that the tests run on, left as it was found: values and tuner's own folders, also after a failure.

What was found is kept on disk while the tests run, so that a run that was killed is mended by the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import check_schema, unavailable

REPO = Path(__file__).parents[2]
SYSCTLS = "/etc/sysctl.d/99-zz-tuner.conf"
FOLDERS = ("/var/lib/tuner", "/run/tuner", "/etc/tuner")
OURS = (*FOLDERS, SYSCTLS)
"""All of tuner on this machine, and the file that keeps its kernel parameters."""
ASIDE = ".before-live-tests"
KEPT = Path("/run/tuner-live-tests.json")
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
PAGES = 32


@dataclass(frozen=True)
class Place:
    """One setting of the test: how a profile names it, where the kernel has it, what is wanted."""

    knob: str
    target: str
    path: str
    wanted: str
    other: str
    """A third value, which somebody else sets meanwhile."""


def content(path: str) -> str:
    """A kernel file without its last newline; of a choice the chosen word."""
    text = Path(path).read_text(encoding="ascii").strip()
    return text.partition("[")[2].partition("]")[0] if "[" in text else text


def put(path: str, text: str) -> None:
    """Writes a kernel file."""
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{text}\n")


def pool() -> tuple[str, str]:
    """The pool of 2 MB pages: of node 0, or of the machine where there are no nodes."""
    node = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
    if os.path.exists(node):
        return "node0/2MB", node
    return "total/2MB", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"


def places() -> dict[str, Place]:
    """The settings, each with values that differ from what this machine holds now."""
    target, pages = pool()
    found = {}
    for name, knob, at, path, choices in (
        ("rmem_max", "sysctl", "net.core.rmem_max", "/proc/sys/net/core/rmem_max", ("16777216", "33554432", "8388608")),
        (
            "tcp_rmem", "sysctl", "net.ipv4.tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem",
            ("4096\t131072\t16777216", "4096\t262144\t8388608", "8192\t131072\t4194304"),
        ),
        ("swappiness", "sysctl", "vm.swappiness", "/proc/sys/vm/swappiness", ("10", "20", "30")),
        ("thp", "thp", "enabled", THP, ("always", "madvise", "never")),
    ):  # fmt: skip
        if os.path.exists(path):
            wanted, other = [choice for choice in choices if choice != content(path)][:2]
            found[name] = Place(knob, at, path, wanted, other)
    if os.path.exists(pages):
        now = int(content(pages))
        found["hugepages"] = Place("hugepages", target, pages, str(now + PAGES), str(now + PAGES // 2))
    return found


def refusal(name: str, found: Mapping[str, Place]) -> str:
    """Why the kernel does not let this setting be changed here (a container, an old kernel); empty when it does."""
    if name not in found:
        return f"{name}: this kernel does not have it"
    place = found[name]
    try:
        put(place.path, content(place.path))
    except OSError as error:
        return f"{name}: {place.path} cannot be written: {error.strerror}"
    if name == "hugepages":
        memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        if int(memory["MemAvailable"].split()[0]) < 512 * 1024:
            return "hugepages: less than 512 MB of memory available"
    return ""


@dataclass
class Machine:
    """This machine: the settings that can be tested, and the command line as a process of its own."""

    places: dict[str, Place]
    refused: dict[str, str]
    before: dict[str, str] = field(default_factory=dict)

    def tuner(self, *words: object, **env: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, document and stderr of `python -m tuner WORDS --json`."""
        command = [sys.executable, "-m", "tuner", *map(str, words), "--json"]
        surroundings = {**os.environ, "PYTHONPATH": str(REPO), **env}
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        check_schema(document)
        return done.returncode, document, done.stderr

    def values(self) -> dict[str, str]:
        """What each setting holds now, as the kernel shows it."""
        return {name: content(place.path) for name, place in self.places.items()}


@pytest.fixture(scope="module")
def kept() -> Iterator[Mapping[str, str]]:
    """One run at a time on this machine; values and folders as found, given back at the end."""
    if os.geteuid() != 0:
        unavailable("root is needed to change this machine")
    with open(Path(tempfile.gettempdir(), "tuner-live-tests.lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if KEPT.exists():
            _give_back(json.loads(KEPT.read_text(encoding="ascii")))
        _folders_back()
        here = [path for path in OURS if os.path.lexists(path)]
        found: dict[str, Any] = {"values": {path: content(path) for path in _watched()}, "folders": here}
        KEPT.write_text(json.dumps(found), encoding="ascii")
        for path in here:
            shutil.move(path, path + ASIDE)
        try:
            yield found["values"]
        finally:
            _give_back(found)


def _watched() -> list[str]:
    """All that the tests change, and the reserve of free memory, which switching huge pages may raise."""
    return [*(place.path for place in places().values()), "/proc/sys/vm/min_free_kbytes"]


def _restore(found: Mapping[str, str]) -> None:
    for path, text in found.items():
        if content(path) != text:
            put(path, text)


def _forget(places: Collection[str] = OURS) -> None:
    for path in places:
        shutil.rmtree(path, ignore_errors=True)
        Path(path).unlink(missing_ok=True)


def _give_back(found: Mapping[str, Any]) -> None:
    try:
        _restore(found["values"])
    finally:
        _forget(set(OURS) - set(found["folders"]))
        _folders_back()
        KEPT.unlink()


def _folders_back() -> None:
    """What was set aside is the machine's own; what stands in its place is of a test."""
    for path in OURS:
        if os.path.lexists(path + ASIDE):
            _forget([path])
            shutil.move(path + ASIDE, path)


@pytest.fixture
def machine(kept: Mapping[str, str]) -> Iterator[Machine]:
    """This machine with nothing applied; what the test leaves is taken back."""
    found = places()
    refused = {name: refusal(name, found) for name in ("rmem_max", "tcp_rmem", "swappiness", "hugepages", "thp")}
    usable = {name: place for name, place in found.items() if not refused[name]}
    if not usable:
        unavailable("; ".join(refused.values()))
    made = Machine(usable, refused)
    made.before = made.values()
    try:
        yield made
    finally:
        _restore(kept)
        _forget()
