"""Making the tree of a recorded host out of its manifest, and breaking a copy that is in use."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner import fastyaml
from tuner.errors import bad_input
from tuner.host import manifest as manifests
from tuner.host.manifest import Entry, Manifest
from tuner.host.recorded import MARK
from tuner.host.tree import Tree
from tuner.sim import amdgpu
from tuner.sim import faults as laid
from tuner.sim.engine import Engine, active_faults

ALWAYS = ("run", "var/lib")
"""Directories that every host has and tuner keeps its state in."""

WHOLE = "manifest.whole"
"""Beside the manifest of a copy with faults: the manifest without them."""

ASIDE = "aside"
"""There while a fault is laid: what is made anew."""


def load(path: Path) -> Manifest:
    """The manifest in a file."""
    return manifests.parse(path.read_bytes().decode("utf-8", "surrogateescape"), str(path))


def about(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """host.yaml of a manifest, and its faults with what each means."""
    entries = load(path).entries
    data = fastyaml.load(entries[f"/{MARK}/host.yaml"].data)
    known = {name: str(fault.get("about", "")) for name, fault in laid.of(entries, str(path)).items()}
    return {name: str(value) for name, value in data.items() if name != "name"}, known


def copy(path: Path, directory: str, faults: list[str]) -> None:
    """Writes the tree of a manifest below `directory`, with faults chosen; TunerError (bad input) if it cannot."""
    recorded = load(path)
    with_faults = manifests.of(laid.lay(recorded.entries, faults, str(path)))
    _check_layout(with_faults, str(path))
    try:
        os.makedirs(directory, exist_ok=True)
        if os.listdir(directory):
            raise bad_input(directory, "is not empty", "give a directory that is not there yet")
        _lay(with_faults, directory)
        _describe(directory, path.read_bytes(), recorded.entries, with_faults.entries, faults)
    except (NotADirectoryError, FileExistsError):
        raise bad_input(directory, "is not a directory", "give a directory that is not there yet") from None
    except OSError as error:
        raise bad_input(directory, f"cannot be written: {error.strerror}", "check the path and the space") from None
    Engine(Tree(os.path.abspath(directory)), f"/{MARK}")


def break_copy(root: str, *faults: str) -> None:
    """Lays further faults over a copy in use: what the host loses goes, whatever was written there meanwhile."""
    _change(root, [*active_faults(Tree(os.path.abspath(root)), f"/{MARK}"), *faults], faults)


def mend_copy(root: str) -> None:
    """Takes all faults away from a copy in use: what they changed is as it was recorded, the rest stays as it is."""
    _change(root, [])


def _change(root: str, faults: list[str], coming: Sequence[str] = ()) -> None:
    place = Path(root, MARK, "manifest")
    whole = Path(root, MARK, WHOLE)
    plain = whole if whole.exists() else place
    text, entries, old = plain.read_bytes(), load(plain).entries, load(place).entries
    new = manifests.of(laid.lay(entries, faults, str(plain)))
    _check_layout(new, str(plain))
    again = _forget(root, laid.anew(entries, coming, str(plain)))
    stale = [path for path, entry in new.entries.items() if old.get(path) != entry or _within(path, again)]
    gone = (set(old) | manifests.of(old).implied) - set(new.entries) - new.implied - {f"/{name}" for name in ALWAYS}
    for path in sorted(gone, reverse=True) + [path for path in stale if new.entries[path].kind != "dir"]:
        _drop(os.path.realpath(root), path)
    _lay(manifests.of({path: new.entries[path] for path in stale}), root)
    shutil.rmtree(Path(root, MARK, ASIDE), ignore_errors=True)
    _describe(root, text, entries, new.entries, faults)
    Engine(Tree(os.path.abspath(root)), f"/{MARK}")


def _forget(root: str, patterns: Sequence[str]) -> frozenset[str]:
    """Takes away what is to be made anew; returns the paths. What was moved aside keeps its inode until all is made."""
    top = Path(os.path.realpath(root))
    places = sorted({place for pattern in patterns for place in top.glob(pattern[1:])})
    for place in places:
        if os.path.realpath(place.parent) != str(place.parent):
            raise bad_input(str(place), "lies below a link now", "make a new copy: tuner host copy NAME DIR")
    for number, place in enumerate(places):
        (top / MARK / ASIDE).mkdir(exist_ok=True)
        place.rename(top / MARK / ASIDE / str(number))
    return frozenset(f"/{place.relative_to(top)}" for place in places)


def _within(path: str, folders: frozenset[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _drop(root: str, path: str) -> None:
    """Removes what is there; a device that goes takes along what its driver had staged."""
    place = os.path.join(root, path[1:])
    if os.path.realpath(os.path.dirname(place)) != os.path.dirname(place):
        raise bad_input(place, "lies below a link now", "make a new copy: tuner host copy NAME DIR")
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    else:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(place)
    if posixpath.basename(path) == amdgpu.TABLE:
        Path(root, MARK, "state", amdgpu.staged_name(posixpath.dirname(path))).unlink(missing_ok=True)


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


def _lay(recorded: Manifest, directory: str) -> None:
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
    os.makedirs(os.path.join(directory, MARK), exist_ok=True)


def _describe(
    directory: str, text: bytes, plain: Mapping[str, Entry], entries: dict[str, Entry], faults: list[str]
) -> None:
    """The manifest that answers for what is not in the tree, the faults, and the way back from them."""
    mark = Path(directory, MARK)
    changed = entries != plain
    rendered = manifests.render(entries).encode("utf-8", "surrogateescape") if changed else text
    for name, data in (
        ("manifest", rendered),
        (WHOLE, text if changed else b""),
        ("faults", "".join(f"{fault}\n" for fault in faults).encode()),
    ):
        if data:
            mark.joinpath(name).write_bytes(data)
        else:
            mark.joinpath(name).unlink(missing_ok=True)


def _kind(recorded: Manifest, kind: str) -> set[str]:
    return {path for path, entry in recorded.entries.items() if entry.kind == kind}
