"""The live generation made so again, after a boot or for devices that came anew: nothing else, and never undo data.

What is written is pinned by what an operator applied: its frozen settings, in the classes that it was allowed, without
what was held then. A value that cannot be had is reported; the others stay. Of a link, a GPU's partition or the boot
line nothing is touched, for nobody is there who would say when.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

from tuner import idle, losses
from tuner import plan as planning
from tuner.apply import one
from tuner.devices import Places
from tuner.errors import TunerError
from tuner.expand import WILD, expand
from tuner.host import Host, Unrecorded
from tuner.journal import At, Journal
from tuner.knobs import BY_NAME
from tuner.ledger import Applied, Ledger
from tuner.model import Change, Setting, Unreadable, Verdict, replaced
from tuner.plan import Allowed
from tuner.readings import IN_IMAGE
from tuner.run import Report, Run, Snapshot, Stop, aside, moved, moved_line, place_of

Kind = Literal["boot", "device"]

SEVERE = frozenset({"link", "gpu", "boot", "nv"})
"""Classes that only an operator causes, whatever the generation was allowed."""
FRESH = 900.0
"""Seconds after the start of the kernel in which nothing that a job needs can be disturbed yet."""
ROUNDS = 2
"""A write may move a setting that was right; the second round mends it."""
LOOK_AGAIN = 1.0
"""Seconds between two looks for a device that a driver has not brought up yet."""


@dataclass
class Again:
    """What a run of re-asserting found and did.

    `rest` are the settings that it could do nothing about, `held` the changes that nobody allowed, `left` those that it
    kept its hands off, and why.
    """

    kind: Kind
    applied: Applied
    report: Report = field(default_factory=Report)
    rest: list[Verdict] = field(default_factory=list)
    held: list[Change] = field(default_factory=list)
    left: list[tuple[At, str]] = field(default_factory=list)
    not_journalled: str = ""


@dataclass(frozen=True)
class Session:
    """What one run works with. `wanted` are the frozen settings that it is about."""

    host: Host
    journal: Journal
    applied: Applied
    ledger: Ledger
    kind: Kind
    who: str
    when: str
    wanted: tuple[Setting, ...]


def unfit(ledger: Ledger) -> str:
    """Why the newest live generation is not to be made so again by itself; empty when it is.

    One that a crash ended may be what the machine crashed of.
    """
    newest = ledger.newest
    if newest is None or newest.state in ("applied", "kept"):
        return ""
    return f"generation {newest.number} did not end well ({newest.state}): tuner rollback, or apply it again"


def frozen(host: Host, applied: Applied, places: Places | None = None) -> tuple[Setting, ...]:
    """The settings to be made so again, each by the name that it had at apply; with `places`, those of the devices.

    What was applied to an image had no targets there: its patterns mean those of the node that booted from it.
    """
    pairs = list(zip(applied.settings, applied.readings, strict=True))
    named = [replace(s, written=s.target) for s, _ in pairs if not WILD & set(s.target)]
    open_ = [s for s, reading in pairs if WILD & set(s.target) and reading == IN_IMAGE]
    expanded = expand(host, [*named, *open_]) if open_ else named
    return tuple(s for s in expanded if not WILD & set(s.target) and (places is None or places.have(s)))


def allowed(host: Host, applied: Applied, kind: Kind) -> Allowed:
    """What `--allow` of the generation means now: the words asked anew, less what only an operator causes.

    Just after a boot no job runs that memory and clocks would disturb; a device that has just come has no user yet.
    """
    words = [word for word in applied.allow if word not in SEVERE]
    if words == ["none"]:
        return idle.allowed(host, words)
    if "all" in words:
        words = ["auto", "memory", "clocks"]
    now = idle.allowed(host, words)
    more = {"memory", "clocks"} if kind == "boot" and _just_booted(host) else set()
    more |= {"clocks"} if kind == "device" else set()
    return Allowed(now.classes | more, now.why)


def _just_booted(host: Host) -> bool:
    try:
        return float(host.peek("/proc/uptime").split()[0]) < FRESH
    except (OSError, Unrecorded, ValueError, IndexError):
        return False


def reassert(session: Session, stop: Stop, patience: float = 0.0) -> Again:
    """Makes the wanted settings so again where they are not, and says what became of each. The lock must be held.

    A target that was there at apply and is not yet is waited for, `patience` seconds in all.
    """
    again = Again(session.kind, session.applied)
    run = Run(session.host, session.journal, session.kind, session.who, session.applied.settings_id)
    session.host.ready()
    hands_off = _hands_off(session)
    end = time.monotonic() + patience
    snapshot: Snapshot = {}
    while True:
        _rounds(session, run, again, hands_off, snapshot, stop)
        if stop.name or time.monotonic() >= end or not any(v.state == "missing" for v in again.rest):
            break
        time.sleep(LOOK_AGAIN)
    _finish(run, again, snapshot, stop)
    return again


def _rounds(session: Session, run: Run, again: Again, hands_off: dict[At, str], snapshot: Snapshot, stop: Stop) -> None:
    """Plans and writes, until nothing that may be written differs; what is left over is in `again`."""
    for _ in range(ROUNDS):
        verdicts, changes = _planned(session)
        again.rest = [v for v in verdicts if _beyond_us(v)]
        again.held = [c for c in changes if c.held]
        differing = [c for c in changes if not c.held]
        again.left = [(c.at, hands_off[c.at]) for c in differing if c.at in hands_off]
        tried = {place_of(o) for o in again.report.outcomes if o.result != "done"}
        todo = [c for c in differing if c.at not in hands_off and c.at not in tried]
        if not todo or stop.name:
            return
        snapshot.update({v.setting.at: v.reading for v in verdicts if v.setting.at not in snapshot})
        snapshot.update(aside(session.host, [c.at for c in todo], snapshot))
        _write(session, run, again, todo, stop)


def _write(session: Session, run: Run, again: Again, todo: list[Change], stop: Stop) -> None:
    """Counts what was lost, opens the journal, and makes the changes, each to its end whatever became of the others."""
    if session.kind == "device":
        try:
            losses.note(session.host, [c.at for c in todo])
        except OSError as error:
            again.not_journalled = again.not_journalled or f"{losses.PATH}: {error.strerror}"
    _open(session, run, again)
    for change in todo:
        if stop.name:
            return
        outcome = one(run, change)
        if outcome:
            again.report.outcomes.append(outcome)


def _open(session: Session, run: Run, again: Again) -> None:
    """The first line of the run, in the file of the live generation; without a journal it goes on without one."""
    newest = session.ledger.newest
    if run.generation is not None or run.lossy or newest is None:
        return
    run.lossy = True
    head = {"op": "reassert", "run": session.kind, "who": session.who, "when": session.when}
    try:
        session.journal.add(newest.number, head)
        run.generation = newest.number
    except OSError as error:
        again.not_journalled = f"the journal cannot be written: {error.strerror}"


def _finish(run: Run, again: Again, snapshot: Snapshot, stop: Stop) -> None:
    """Journals what moved besides, tells the system, and closes the run."""
    report = again.report
    report.reason = f"stopped by {stop.name}" if stop.name else ""
    report.generation = run.generation
    if not report.outcomes and run.generation is None:
        return
    others = moved(run.host, snapshot, {place_of(o) for o in report.outcomes})
    report.moved = [f"{at[0]} {at[1]}" for at in others]
    run.note(*(moved_line(run.kind, at, *pair) for at, pair in others.items()))
    report.after = run.tell()
    run.end("stopped" if stop.name else "re-asserted")
    if run.generation is not None:
        try:
            run.journal.condense(run.generation)
        except OSError as error:
            again.not_journalled = again.not_journalled or f"the journal cannot be shortened: {error.strerror}"


def _planned(session: Session) -> tuple[list[Verdict], list[Change]]:
    """Verdicts and changes of the wanted settings alone; a value that this kernel does not take spoils no other's."""
    verdicts, known = [], []
    for setting in session.wanted:
        barred = _barred(session, setting)
        if barred:
            verdicts.append(barred)
        else:
            known.append(setting)
    permitted = allowed(session.host, session.applied, session.kind)
    changes: list[Change] = []
    try:
        parts = [_made(session, known, permitted)]
    except TunerError:
        parts = [_alone(session, setting, permitted) for setting in known]
    for found, made in parts:
        verdicts += found
        changes += made
    order = {setting.at: place for place, setting in enumerate(session.wanted)}
    changes.sort(key=lambda c: planning.order(c, order[c.at]))
    return verdicts, changes


def _alone(session: Session, setting: Setting, permitted: Allowed) -> tuple[list[Verdict], list[Change]]:
    try:
        return _made(session, [setting], permitted)
    except TunerError as error:
        return [_unknown(setting, str(error))], []


def _made(session: Session, settings: Collection[Setting], permitted: Allowed) -> tuple[list[Verdict], list[Change]]:
    """The plan of these settings: files that would follow from them now and did not at apply are none of ours."""
    host, applied = session.host, session.applied
    made = planning.make(host, applied.profile, settings, permitted, session.ledger, keep_unmentioned=True)
    ours = {setting.at for setting in settings}
    held = [replace(c, held="held at apply") if c.at in applied.held else c for c in made.changes if c.at in ours]
    return [v for v in made.verdicts if v.setting.at in ours], held


def _barred(session: Session, setting: Setting) -> Verdict | None:
    """The verdict on a setting that is not even planned: other hardware is in its place, or no knob knows it."""
    if setting.knob not in BY_NAME:
        return _unknown(setting, f"this version of tuner has no knob {setting.knob}")
    was = session.applied.identities.get(setting.at, "")
    now = BY_NAME[setting.knob].identity(session.host, setting.target) if was else ""
    if not replaced(was, now):
        return None
    why = f"other hardware: {now}; at apply {was}"
    return Verdict(setting, Unreadable(why), "missing", why)


def _unknown(setting: Setting, why: str) -> Verdict:
    return Verdict(setting, Unreadable(why), "unknown", why)


def _beyond_us(verdict: Verdict) -> bool:
    """What a reader must know: a target that is gone, that cannot be read, or that is required and unsupported."""
    required = verdict.state == "unsupported" and verdict.setting.required
    return verdict.state in ("missing", "unknown") or required


def _hands_off(session: Session) -> dict[At, str]:
    """What is not written: values that are lost again and again, and one that the machine went down with."""
    found = dict.fromkeys(crashed(session.journal), "its write did not end the last time: tuner apply makes it so")
    if session.kind == "device":
        again = f"lost {losses.TIMES} times in {losses.WINDOW / 60:.0f} minutes: left alone"
        found |= dict.fromkeys(losses.given_up(session.host), again)
    return found


def crashed(journal: Journal) -> set[At]:
    """The targets whose last write was of an unattended run and was cut short: by a power cut, or by itself."""
    last: dict[At, bool] = {}
    for line in sorted((x for g in journal.generations.values() for x in g.lines), key=lambda x: int(x["seq"])):
        if line["op"] == "outcome":
            unattended = line["run"] in ("boot", "device") and line.get("why") == "interrupted"
            last[line["knob"], line["target"]] = unattended
    return {at for at, cut in last.items() if cut}
