"""persist install, remove, status: the units and udev rules that make what is applied so again."""

from __future__ import annotations

import argparse
import contextlib
import os
import posixpath
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner import applied as cache
from tuner import documents, idle, losses, off, render, unitfiles
from tuner.boot import units
from tuner.cli.common import Answer, open_root, who
from tuner.errors import Exit, Problem, TunerError, bad_input
from tuner.host import Host, Unrecorded
from tuner.host.shell import run
from tuner.lock import locked

TIMEOUT = 90.0
"""Seconds for systemd or udev to read everything again."""
SHOW = 10.0
"""Seconds for systemd to say how units stand."""
SAFE = re.compile(r"/[A-Za-z0-9_./+@-]+")
"""A path that a unit file takes as it is (systemd.service(5), command lines)."""
RELOADS = (("systemctl", "daemon-reload"), ("udevadm", "control", "--reload"))
PROPERTIES = ("Id", "ActiveState", "Result", "ExecMainStatus")
NEVER = ("n/a", "")


@dataclass
class Done:
    """What was written or removed, what was left alone and why, and what the system was or is still to be told."""

    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    after: list[tuple[str, str]] = field(default_factory=list)


def install(args: argparse.Namespace) -> Answer:
    """Writes and enables every unit; nothing at all where one of the names is taken by somebody else's file."""
    host = open_root(args.root, writing=True)
    texts = check(host, args.python)
    done = Done()
    with locked(host, who()), _refusals():
        for path, text in texts.files.items():
            if _text(host, path) != text or stat.S_IMODE(host.stat(path).st_mode) != 0o644:
                _parents(host, path)
                host.put(path, text.encode("ascii"), 0o644, (0, 0) if os.geteuid() == 0 else None)
                done.written.append(path)
        for path, to in texts.links.items():
            if not _there(host, path):
                _parents(host, path)
                host.symlink(path, to)
                done.written.append(path)
        done.after = _told(host, [*RELOADS, ("systemctl", "start", *unitfiles.STARTED)])
    return _answer(host, done, "installed")


def check(host: Host, python: str | None) -> unitfiles.Texts:
    """What install would write; TunerError (bad input) for a host or a name that it cannot be written to."""
    _systemd(host)
    texts = unitfiles.texts(_python(host, python))
    problems = [p for path in (*texts.files, *texts.links) if (p := _taken(host, path, path in texts.links))]
    if problems:
        raise TunerError(problems)
    return texts


def remove(args: argparse.Namespace) -> Answer:
    """Deletes what install wrote, and only that; settings stay as they are."""
    host = open_root(args.root, writing=True)
    texts = unitfiles.texts(sys.executable)
    there = [path for path in (*texts.links, *texts.files) if _there(host, path)]
    done = Done()
    with locked(host, who()), _refusals():
        named = [posixpath.basename(path) for path in texts.files if path in there and path != unitfiles.RULES]
        if named:
            done.after = _told(host, [("systemctl", "stop", *named)])
        for path in there:
            if _ours(host, path, path in texts.links):
                host.unlink(path)
                done.removed.append(path)
            else:
                done.left.append(f"{path}: not written by tuner")
        for folder in {posixpath.dirname(path) for path in texts.links}:
            with contextlib.suppress(OSError, Unrecorded):
                host.rmdir(folder)
        if there:
            done.after += _told(host, list(RELOADS))
    return _answer(host, done, "removed")


def known(host: Host) -> list[dict[str, Any]]:
    """Every file of ours: whether it is installed, current and enabled, and how its unit last ended."""
    python = units.interpreter(_text(host, f"{units.FOLDER}/{units.APPLY}") or "") or sys.executable
    texts = unitfiles.texts(python)
    wanted = {to: path for path, to in texts.links.items()}
    results = _results(host, [posixpath.basename(p) for p in texts.files if p != unitfiles.RULES])
    rows = []
    for path, text in texts.files.items():
        name = posixpath.basename(path)
        enabled = _there(host, wanted[path]) if path in wanted else None
        state = _state(host, path, text)
        rows.append({"name": name, "path": path, "state": state, "enabled": enabled, "result": results.get(name)})
    return rows


def persist_status(args: argparse.Namespace) -> Answer:
    """Which are installed, enabled and current; exit 10 when the next boot would lack one."""
    host = open_root(args.root)
    rows = known(host)
    applied = cache.current(host)[0]
    lost = losses.said(host)
    document = {**_document(host, Done()), "units": rows, "settings_id": applied.settings_id if applied else None}
    document |= {"left_alone": lost}
    table: list[render.Row] = [(r["state"], r["name"], _word(r["enabled"]), r["result"] or "") for r in rows]
    pinned = (
        f"pinned: settings {applied.settings_id[:8]}, generation {applied.generation}" if applied else "nothing applied"
    )
    lines = [render.head(host), *render.table(table), pinned, *lost]
    fine = all(r["state"] == "current" and r["enabled"] is not False for r in rows)
    if not fine:
        lines.append(f"hint: {units.INSTALL}")
    return Exit.OK if fine else Exit.DIFFERS, document, lines


def ready(args: argparse.Namespace) -> Answer:
    """Exit 0 while no job runs and tuner is on: what tuner-verify.service asks first."""
    host = open_root(args.root)
    why = off.state(host)
    why = f"tuner is off: {why}" if why else idle.busy(host)
    document = {**_document(host, Done()), "busy": why or None}
    return Exit.HELD if why else Exit.OK, document, [render.head(host), why or "idle"]


def _systemd(host: Host) -> None:
    """TunerError (bad input) where no systemd runs, or none is in the tree."""
    paths = (
        ["/run/systemd/system"]
        if host.kind == "live"
        else ["/usr/lib/systemd/system", "/lib/systemd/system", units.FOLDER]
    )
    if not any(_there(host, path) for path in paths):
        hint = "run `tuner apply --boot` from what starts services here, before jobs start"
        raise bad_input(str(host), "there is no systemd", hint)


def _python(host: Host, given: str | None) -> str:
    """The interpreter of the units: it is there, starts tuner by itself, and nobody but root can change it."""
    python = given or sys.executable
    if not SAFE.fullmatch(python):
        raise bad_input(
            "--python", f"{python!r} is no absolute path that a unit file takes", "such as /opt/tuner/bin/python"
        )
    hint = "--python FILE: the Python of the host itself that has tuner"
    if host.kind != "recorded" and not _there(host, python):
        raise bad_input(python, f"is not there on {host}", hint)
    if host.kind == "live":
        for path in {python, os.path.realpath(python), str(Path(unitfiles.__file__).parent)}:
            _trusted(host, path)
        ran = run([python, "-I", "-c", "import tuner.cli"], SHOW)
        if ran.failure:
            raise bad_input(
                python, "does not find tuner by itself", "install it: pip install, not a checkout on the path"
            )
    return python


def _trusted(host: Host, path: str) -> None:
    while True:
        status = host.stat(path)
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or (status.st_mode & 0o022 and not sticky):
            hint = "install tuner as root where only root writes, such as /opt/tuner"
            raise bad_input(path, "can be changed by others than root, and a unit would run it as root", hint)
        if path == "/":
            return
        path = posixpath.dirname(path)


def _taken(host: Host, path: str, is_link: bool) -> Problem | None:
    if not _there(host, path) or _ours(host, path, is_link):
        return None
    if units.masked(host, path):
        return Problem(path, "is masked", f"systemctl unmask {posixpath.basename(path)}")
    return Problem(path, "is there and was not written by tuner", "move it away")


def _ours(host: Host, path: str, is_link: bool) -> bool:
    """Whether install wrote it: by its first line, a link by the unit that it names."""
    try:
        if is_link:
            return posixpath.basename(host.link(path)) == posixpath.basename(path)
        return (
            stat.S_ISREG(host.stat(path, follow=False).st_mode) and units.version(_text(host, path) or "") is not None
        )
    except (OSError, Unrecorded):
        return False


def _state(host: Host, path: str, text: str) -> str:
    """`current`, `outdated`, `not installed`, `masked` or `not ours`."""
    if not _there(host, path):
        return "not installed"
    if units.masked(host, path):
        return "masked"
    if not _ours(host, path, False):
        return "not ours"
    return "current" if _text(host, path) == text else "outdated"


def _there(host: Host, path: str) -> bool:
    try:
        host.stat(path, follow=False)
    except (OSError, Unrecorded):
        return False
    return True


def _parents(host: Host, path: str) -> None:
    """Makes the directories above that are not there, or that a recorded host does not know."""
    folder = posixpath.dirname(path)
    if not _there(host, folder):
        _parents(host, folder)
        host.mkdir(folder)


def _text(host: Host, path: str) -> str | None:
    try:
        return host.text(path)
    except (OSError, Unrecorded):
        return None


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A file system that takes nothing is said, whatever was written before."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or units.FOLDER}: {error.strerror}"
        raise TunerError(Problem("", what, "once it can be written: the same command again"), Exit.UNDONE) from None


def _told(host: Host, commands: list[tuple[str, ...]]) -> list[tuple[str, str]]:
    """(command, why it is still to do; empty when done). An image needs none: systemd reads the links when it boots."""
    if host.kind == "image":
        return []
    if host.kind != "live":
        return [(" ".join(words), "still to do on the host itself") for words in commands]
    return [(" ".join(words), run(list(words), TIMEOUT).failure) for words in commands]


def _results(host: Host, names: list[str]) -> dict[str, str]:
    """How each unit stands, by `systemctl show`; nothing where no systemd answers."""
    if host.kind != "live" or not _there(host, "/run/systemd/system"):
        return {}
    ran = run(["systemctl", "show", f"--property={','.join(PROPERTIES)}", "--", *names], SHOW)
    found = {}
    for block in ran.out.split("\n\n"):
        row = dict(line.partition("=")[::2] for line in block.splitlines())
        if row.get("Id"):
            ended = row.get("ExecMainStatus", "0")
            code = f", exit {ended}" if ended not in ("0", *NEVER) else ""
            found[row["Id"]] = f"{row.get('ActiveState', '')}: {row.get('Result', '')}{code}"
    return found


def _word(enabled: bool | None) -> str:
    return {None: "", True: "enabled", False: "not enabled"}[enabled]


def _document(host: Host, done: Done) -> dict[str, Any]:
    return {
        "schema": "tuner.persist/1",
        "host": documents.host(host),
        "written": done.written,
        "removed": done.removed,
        "left": done.left,
        "after": [{"action": action, "done": not why, "why": why} for action, why in done.after],
    }


def _answer(host: Host, done: Done, word: str) -> Answer:
    document = {**_document(host, done), "units": known(host)}
    lines = [render.head(host), *(f"  {word}   {path}" for path in (*done.written, *done.removed))]
    lines += [f"  left alone   {why}" for why in done.left]
    lines += [f"  {action}: {why or 'done'}" for action, why in done.after]
    if not done.written and not done.removed and not done.left:
        lines.append(f"Nothing to do: all is {word}")
    failed = host.kind == "live" and any(why for _, why in done.after)
    return Exit.DIFFERS if done.left or failed else Exit.OK, document, lines
