"""apply --boot, apply --device: what is applied made so again, by the units that tuner persist installs."""

from __future__ import annotations

import argparse
from typing import Any

from tuner import applied as cache
from tuner import devices, documents, off, reassert, render
from tuner.cli.change import settled
from tuner.cli.common import Answer, exit_of, open_root, who
from tuner.cli.judge import renew
from tuner.errors import Exit, TunerError, bad_input, worst
from tuner.host import Host
from tuner.journal import Journal
from tuner.ledger import Applied, Ledger
from tuner.lock import locked
from tuner.reassert import Again, Kind
from tuner.run import Stop

WAIT = 60.0
"""Seconds that a run which nobody watches waits for the lock."""
PATIENCE = 30.0
"""Seconds that a boot waits for devices whose drivers are not ready."""
BURSTS = 10
"""Bursts of devices that one run serves before it ends; the path unit starts the next run for what is queued then."""


def again(args: argparse.Namespace) -> Answer:
    """Re-asserts the live generation, all of it after a boot, or what belongs to devices."""
    host = open_root(args.root, writing=True)
    if host.kind == "image":
        raise bad_input(
            f"--root {args.root}", "is an image, which runs nothing", "tuner apply --profile writes its files"
        )
    if args.boot:
        return _once(host, "boot", None)
    if args.device != [devices.QUEUED]:
        return _once(host, "device", devices.checked(args.device))
    return _queue(host)


def _queue(host: Host) -> Answer:
    """Serves the queue until it is empty; the worst of the runs is the answer."""
    answer: Answer | None = None
    for _ in range(BURSTS):
        devices.settled(host)
        came = devices.take(host)
        if not came:
            break
        try:
            code, document, lines = _once(host, "device", came)
        except TunerError:
            devices.put_back(host, came)
            raise
        answer = (worst([code, answer[0]]), document, [*answer[2], *lines[1:]]) if answer else (code, document, lines)
    return answer or _nothing(host, "device", "no device came")


def _once(host: Host, kind: Kind, came: list[str] | None) -> Answer:
    why = off.state(host)
    if why:
        return _nothing(host, kind, f"tuner is off: {why}")
    with locked(host, f"{kind}, {who()}", WAIT), Stop().listening() as stop:
        journal = Journal(host)
        notes = settled(host, journal)
        applied, ledger = _pinned(host, journal)
        refusal = reassert.unfit(ledger)
        if applied is None or refusal:
            return _nothing(host, kind, refusal or "nothing is applied", Exit.DIFFERS if refusal else Exit.OK, notes)
        wanted = reassert.frozen(host, applied, None if came is None else devices.places(host, came))
        if not wanted:
            return _nothing(host, kind, "nothing that is applied belongs to these devices", Exit.OK, notes)
        session = reassert.Session(host, journal, applied, ledger, kind, who(), off.now().isoformat(), wanted)
        patience = PATIENCE if kind == "boot" and host.kind == "live" else 0.0
        found = reassert.reassert(session, stop, patience)
        problem = cache.publish(host, journal)
    if kind == "boot":
        renew(host)
    notes += [problem] * bool(problem) + [f"not kept: {found.not_journalled}"] * bool(found.not_journalled)
    lines = [render.head(host, applied.settings_id), *notes, *_lines(found)]
    return _exit(found), _document(host, found), lines


def _pinned(host: Host, journal: Journal) -> tuple[Applied | None, Ledger]:
    """What an operator applied: by the journal, by the cache where /var is empty.

    The cache alone is believed only where nobody but root can have written it.
    """
    applied, ledger, _ = cache.current(host)
    if applied is None or journal.generations:
        return applied, ledger
    status = host.stat(cache.PATH)
    if host.kind == "live" and (status.st_uid != 0 or status.st_mode & 0o022):
        hint = f"chown root {cache.PATH}; chmod 0644 {cache.PATH}"
        raise bad_input(cache.PATH, "can be written by others than root", hint)
    return applied, Ledger(present=applied.present, identities=applied.identities)


def _exit(found: Again) -> Exit:
    codes = [Exit.DIFFERS for o in found.report.outcomes if o.result in ("short", "refused")]
    codes += [Exit.DIFFERS] * bool(found.left or found.report.reason)
    codes += [Exit.DIFFERS if v.state == "unsupported" else exit_of(v) for v in found.rest]
    return worst(codes)


def _nothing(host: Host, kind: Kind, why: str, code: Exit = Exit.OK, notes: list[str] | None = None) -> Answer:
    """One line, and why."""
    document: dict[str, Any] = {"schema": "tuner.reassert/1", "run": kind, "host": documents.host(host), "skipped": why}
    document |= {"generation": None, "settings_id": None, "profile": None, "changed": 0, "outcomes": []}
    document |= {"held": [], "left": [], "rest": [], "moved": [], "after": [], "reason": ""}
    return code, document, [f"{host}   nothing to re-assert: {why}", *(notes or [])]


def _document(host: Host, found: Again) -> dict[str, Any]:
    report = found.report
    return {
        "schema": "tuner.reassert/1",
        "run": found.kind,
        "host": documents.host(host),
        "skipped": None,
        "generation": found.applied.generation,
        "settings_id": found.applied.settings_id,
        "profile": found.applied.profile,
        "changed": sum(o.result in ("done", "short") for o in report.outcomes),
        "outcomes": [documents.outcome(o) for o in report.outcomes],
        "held": [documents.change(c) for c in found.held],
        "left": [{"knob": at[0], "target": at[1], "why": why} for at, why in found.left],
        "rest": [documents.verdict(v) for v in found.rest],
        "moved": report.moved,
        "after": documents.after(report),
        "reason": report.reason,
    }


def _lines(found: Again) -> list[str]:
    report = found.report
    lines = render.outcomes(report.outcomes)
    lines += [f"  side effect   {place}" for place in report.moved]
    lines += [f"  {action}: {why or 'done'}" for action, why in report.after]
    rows: list[render.Row] = [("left alone", f"{at[0]} {at[1]}", "", "", why) for at, why in found.left]
    rows += [
        ("held", f"{c.knob} {c.target}", render.value(c.before, render.main_of(c.knob)), "", c.held) for c in found.held
    ]
    rows += [render.verdict_row(v) for v in found.rest]
    lines += render.table(rows) if rows else []
    done = sum(o.result == "done" for o in report.outcomes)
    what = f"{done} of {len(report.outcomes)} made so again" if report.outcomes else "nothing had changed"
    stopped = f"; {report.reason}" if report.reason else ""
    return [*lines, f"Generation {found.applied.generation}: {what}{stopped}"]
