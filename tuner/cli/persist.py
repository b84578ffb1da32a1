"""persist install, remove, status: the units and udev rules that make what is applied so again."""

from __future__ import annotations

import argparse
import contextlib
import os
import posixpath
import stat
import sys
from typing import Any

from tuner import applied as cache
from tuner import documents, idle, losses, off, render, unitfiles
from tuner.boot import units
from tuner.cli.common import Answer, open_root, who
from tuner.cli.installing import RELOADS, SHOW, Done, interpreter, parents, refusals, there, told
from tuner.errors import Exit, Problem, TunerError, bad_input
from tuner.host import Host, Unrecorded
from tuner.host.shell import run
from tuner.lock import locked

PROPERTIES = ("Id", "ActiveState", "Result", "ExecMainStatus")
NEVER = ("n/a", "")


def install(args: argparse.Namespace) -> Answer:
    """Writes and enables every unit; nothing at all where one of the names is taken by somebody else's file."""
    host = open_root(args.root, writing=True)
    texts = check(host, args.python)
    done = Done()
    with locked(host, who()), refusals():
        for path, text in texts.files.items():
            if _text(host, path) != text or stat.S_IMODE(host.stat(path).st_mode) != 0o644:
                parents(host, path)
                host.put(path, text.encode("ascii"), 0o644, (0, 0) if os.geteuid() == 0 else None)
                done.written.append(path)
        for path, to in texts.links.items():
            if not there(host, path):
                parents(host, path)
                host.symlink(path, to)
                done.written.append(path)
        done.after = told(host, [*RELOADS, ("systemctl", "start", *unitfiles.STARTED)])
    return _answer(host, done, "installed")


def check(host: Host, python: str | None) -> unitfiles.Texts:
    """What install would write; TunerError (bad input) for a host or a name that it cannot be written to."""
    _systemd(host)
    texts = unitfiles.texts(interpreter(host, python))
    problems = [p for path in (*texts.files, *texts.links) if (p := _taken(host, path, path in texts.links))]
    if problems:
        raise TunerError(problems)
    return texts


def remove(args: argparse.Namespace) -> Answer:
    """Deletes what install wrote, and only that; settings stay as they are."""
    host = open_root(args.root, writing=True)
    texts = unitfiles.texts(sys.executable)
    ours = [path for path in (*texts.links, *texts.files) if there(host, path)]
    done = Done()
    with locked(host, who()), refusals():
        named = [posixpath.basename(path) for path in texts.files if path in ours and path != unitfiles.RULES]
        if named:
            done.after = told(host, [("systemctl", "stop", *named)])
        for path in ours:
            if _ours(host, path, path in texts.links):
                host.unlink(path)
                done.removed.append(path)
            else:
                done.left.append(f"{path}: not written by tuner")
        for folder in {posixpath.dirname(path) for path in texts.links}:
            with contextlib.suppress(OSError, Unrecorded):
                host.rmdir(folder)
        if ours:
            done.after += told(host, list(RELOADS))
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
        enabled = there(host, wanted[path]) if path in wanted else None
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
    if not any(there(host, path) for path in paths):
        hint = "run `tuner apply --boot` from what starts services here, before jobs start"
        raise bad_input(str(host), "there is no systemd", hint)


def _taken(host: Host, path: str, is_link: bool) -> Problem | None:
    if not there(host, path) or _ours(host, path, is_link):
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
    if not there(host, path):
        return "not installed"
    if units.masked(host, path):
        return "masked"
    if not _ours(host, path, False):
        return "not ours"
    return "current" if _text(host, path) == text else "outdated"


def _text(host: Host, path: str) -> str | None:
    try:
        return host.text(path)
    except (OSError, Unrecorded):
        return None


def _results(host: Host, names: list[str]) -> dict[str, str]:
    """How each unit stands, by `systemctl show`; nothing where no systemd answers."""
    if host.kind != "live" or not there(host, "/run/systemd/system"):
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
