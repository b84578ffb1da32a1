"""Making the tree of a recorded host out of its manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tuner import fastyaml
from tuner.errors import bad_input
from tuner.host import manifest as manifests
from tuner.host.manifest import Entry, Manifest
from tuner.host.recorded import MARK
from tuner.host.tree import Tree
from tuner.sim.engine import Engine, faults_of, load_document

ALWAYS = ("run", "var/lib")
"""Directories that every host has and tuner keeps its state in."""


def load(path: Path) -> Manifest:
    """The manifest in a file."""
    return manifests.parse(path.read_bytes().decode("utf-8", "surrogateescape"), str(path))


def about(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """host.yaml of a manifest, and its faults with what each means."""
    entries = load(path).entries
    data = fastyaml.load(entries[f"/{MARK}/host.yaml"].data)
    known = {name: str(fault.get("about", "")) for name, fault in _faults(entries, str(path)).items()}
    return {name: str(value) for name, value in data.items() if name != "name"}, known


def _faults(entries: dict[str, Entry], where: str) -> dict[str, Any]:
    rules = entries.get(f"/{MARK}/kernel.yaml")
    return dict(faults_of(load_document(rules.data.decode("utf-8"), where), where)) if rules else {}


def copy(path: Path, directory: str, faults: list[str]) -> None:
    """Writes the tree of a manifest below `directory`, with faults chosen; TunerError (bad input) if it cannot."""
    recorded = load(path)
    known = _faults(recorded.entries, str(path))
    for fault in faults:
        if fault not in known:
            raise bad_input(f"--fault {fault}", "this host has no such fault", f"known: {', '.join(known) or 'none'}")
    _check_layout(recorded, str(path))
    try:
        os.makedirs(directory, exist_ok=True)
        if os.listdir(directory):
            raise bad_input(directory, "is not empty", "give a directory that is not there yet")
        _lay(recorded, directory, path.read_bytes(), faults)
    except (NotADirectoryError, FileExistsError):
        raise bad_input(directory, "is not a directory", "give a directory that is not there yet") from None
    except OSError as error:
        raise bad_input(directory, f"cannot be written: {error.strerror}", "check the path and the space") from None
    Engine(Tree(os.path.abspath(directory)), f"/{MARK}")


def _check_layout(recorded: Manifest, where: str) -> None:
    """A manifest is a foreign file: nothing of it may lie below a link, where it would be written outside the tree."""
    absent = {path for path, entry in recorded.entries.items() if entry.kind == "absent"}
    for path in (*recorded.entries, f"/{MARK}/manifest", *(f"/{folder}/x" for folder in ALWAYS)):
        parent = os.path.dirname(path)
        while parent != "/":
            above = recorded.entries.get(parent)
            if above is not None and above.kind != "dir" and path not in absent:
                raise bad_input(where, f"{path} lies below {parent}, which is a {above.kind}", "capture the host again")
            parent = os.path.dirname(parent)


def _lay(recorded: Manifest, directory: str, text: bytes, faults: list[str]) -> None:
    folders = sorted(path for path in recorded.implied | _kind(recorded, "dir") if path != "/")
    for folder in (*ALWAYS, *(path[1:] for path in folders)):
        os.makedirs(os.path.join(directory, folder), exist_ok=True)
    for path, entry in recorded.entries.items():
        place = os.path.join(directory, path[1:])
        if entry.kind == "link":
            os.symlink(entry.data.decode("utf-8", "surrogateescape"), place)
        elif entry.kind == "file":
            with open(place, "xb") as file:
                file.write(entry.data)
            os.chmod(place, entry.mode)
    for path in _kind(recorded, "dir"):
        os.chmod(os.path.join(directory, path[1:]), recorded.entries[path].mode | 0o200)
    mark = os.path.join(directory, MARK)
    os.makedirs(mark, exist_ok=True)
    Path(mark, "manifest").write_bytes(text)
    if faults:
        Path(mark, "faults").write_text("".join(f"{fault}\n" for fault in faults), encoding="utf-8")


def _kind(recorded: Manifest, kind: str) -> set[str]:
    return {path for path, entry in recorded.entries.items() if entry.kind == kind}
