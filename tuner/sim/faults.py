"""Faults of a recorded host: what each changes in its manifest.

    faults:
      dead-link:
        about: "..."                                   what `tuner host list` says
        rules: {PATH: {is: ...}}                       laid over the plain rules, by the engine
        overlay: true                                  entries out of the manifest /.tuner-host/overlays/dead-link
        remove: [PATH]                                 recorded as not there, and what lies below; fnmatch patterns too
        set: {PATH: text}                              what a file holds; a new one has mode 0644
        errno: {PATH: EIO}                             reading fails so; fnmatch patterns too
        anew: [PATH]                                   in a copy in use: made again as recorded, a directory as another
                                                       inode; patterns too, whose * stands for no /

They are laid one after the other in this order. Listings of directories follow by themselves.
"""

from __future__ import annotations

import errno
import fnmatch
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tuner import fastyaml
from tuner.errors import Problem, TunerError, bad_input
from tuner.host import manifest as manifests
from tuner.host.manifest import Entry

KERNEL, OVERLAYS = "/.tuner-host/kernel.yaml", "/.tuner-host/overlays"
HINT = "a fault has about, rules, overlay: true, remove: [PATH], set: {PATH: text}, errno: {PATH: EIO}, anew: [PATH]"


def load_document(text: str, where: str) -> dict[str, Any]:
    """A kernel.yaml as a mapping; TunerError for what is none."""
    try:
        document = fastyaml.load(text) or {}
    except fastyaml.Error as error:
        raise bad_input(where, f"not YAML: {error}".replace("\n", " "), "compare with the shipped hosts") from None
    if not isinstance(document, dict) or set(document) - {"rules", "faults"}:
        raise bad_input(where, "only rules and faults are known at the top", "compare with the shipped hosts")
    return document


def faults_of(document: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
    """The faults that a kernel.yaml offers, by name, checked but for their rules."""
    faults = document.get("faults") or {}
    if not isinstance(faults, dict) or not all(isinstance(f, dict) for f in faults.values()):
        raise bad_input(where, "faults is not a mapping of mappings", "NAME: {about: ..., rules: {...}}")
    problems = [
        Problem(f"{where} fault {name}", what, HINT) for name, fault in faults.items() for what in _wrong(fault)
    ]
    if problems:
        raise TunerError(problems)
    return faults


def _wrong(fault: Mapping[str, Any]) -> list[str]:
    known = {"about", "rules", "overlay", "remove", "set", "errno", "anew"}
    wrong = [f"unknown {key}" for key in map(str, fault) if key not in known]
    paths: list[Any] = []
    for key, kind in (("remove", list), ("set", dict), ("errno", dict), ("anew", list)):
        if isinstance(fault.get(key, kind()), kind):
            paths += fault.get(key, [])
        else:
            wrong.append(f"{key} is not a {'list' if kind is list else 'mapping'}")
    wrong += [f"not an absolute, plain path: {path!r}" for path in paths if not _plain(path)]
    if not wrong:
        texts, numbers = fault.get("set", {}), fault.get("errno", {})
        wrong += [f"set {path}: not a text" for path, text in texts.items() if not isinstance(text, str)]
        wrong += [f"errno {path}: no such errno: {n!r}" for path, n in numbers.items() if not _is_errno(n)]
    return wrong + (["overlay is not true"] if fault.get("overlay", True) is not True else [])


def _plain(path: Any) -> bool:
    return isinstance(path, str) and path[:1] == "/" != path and posixpath.normpath(path) == path and path[1] != "/"


def _is_errno(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("E") and isinstance(getattr(errno, name, None), int)


def of(entries: Mapping[str, Entry], where: str) -> dict[str, Mapping[str, Any]]:
    """The faults that a recorded host offers."""
    rules = entries.get(KERNEL)
    if rules is None:
        return {}
    try:
        return faults_of(load_document(rules.data.decode("utf-8"), where), where)
    except UnicodeDecodeError as error:
        raise bad_input(where, f"{KERNEL} is not UTF-8: {error}", "compare with the shipped hosts") from None


def lay(entries: Mapping[str, Entry], faults: Iterable[str], where: str) -> dict[str, Entry]:
    """The entries of the host with these faults; TunerError for one that it does not offer."""
    known = of(entries, where)
    laid = dict(entries)
    for name in faults:
        if name not in known:
            raise bad_input(f"--fault {name}", "this host has no such fault", f"known: {', '.join(known) or 'none'}")
        fault = known[name]
        if fault.get("overlay"):
            laid = merge(laid, _overlay(entries, name, where))
        laid = merge(laid, _changes(laid, fault))
    return laid


def anew(entries: Mapping[str, Entry], faults: Iterable[str], where: str) -> list[str]:
    """The paths and patterns that these faults have made anew."""
    known = of(entries, where)
    return [path for name in faults for path in known.get(name, {}).get("anew", [])]


def _overlay(entries: Mapping[str, Entry], name: str, where: str) -> dict[str, Entry]:
    path = f"{OVERLAYS}/{name}"
    if path not in entries or entries[path].kind != "file":
        raise bad_input(f"{where} fault {name}", f"{path} is missing", "put the entries that change there")
    return manifests.parse(entries[path].data.decode("utf-8", "surrogateescape"), f"{where} {path}").entries


def _changes(entries: Mapping[str, Entry], fault: Mapping[str, Any]) -> dict[str, Entry]:
    """What remove, set and errno of a fault make of these entries."""
    everywhere = {*entries, *manifests.of(dict(entries)).implied}
    changed: dict[str, Entry] = {}
    for pattern in fault.get("remove", []):
        hits = set(_matching(everywhere, pattern))
        changed |= {path: Entry("absent") for path in hits if not hits & set(_above(path)[1:])}
    for path, text in fault.get("set", {}).items():
        old = entries.get(path, Entry("file", 0o644))
        changed[path] = Entry(
            "file", old.mode if old.kind == "file" else 0o644, text.encode("utf-8", "surrogateescape")
        )
    for pattern, name in fault.get("errno", {}).items():
        changed |= dict.fromkeys(_matching(entries, pattern), Entry("errno", errno=getattr(errno, name)))
    return changed


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    return (
        [path for path in paths if fnmatch.fnmatchcase(path, pattern)] if re.search(r"[*?\[]", pattern) else [pattern]
    )


def merge(entries: Mapping[str, Entry], changes: Mapping[str, Entry]) -> dict[str, Entry]:
    """Entries with `changes` laid over them; the listings that are recorded gain and lose names accordingly.

    What is absent in `changes` and named by a listing there is no longer recorded, and may be there.
    """
    absent = {path for path, entry in changes.items() if entry.kind == "absent"}
    merged = {path: entry for path, entry in entries.items() if not absent & set(_above(path))} | dict(changes)
    there = {path for path, entry in changes.items() if entry.kind != "absent"}
    for path in list(there):  # what comes back below a path that was not there
        for above in _above(path)[1:]:
            there.add(above)
            if above in merged and merged[above].kind == "absent" and above not in absent:
                del merged[above]
    for path in absent | there:
        parent, name = posixpath.split(path)
        if path in absent and name in changes.get(parent, Entry("")).names:
            del merged[path]
            continue
        listing = merged.get(parent)
        if listing is not None and listing.kind == "dir" and (name in listing.names) == (path in absent):
            names = {*listing.names, name} if path in there else {n for n in listing.names if n != name}
            merged[parent] = replace(listing, names=tuple(sorted(names)))
    return merged


def _above(path: str) -> list[str]:
    """The path and the directories it lies in, but for /."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts), 1, -1)]
