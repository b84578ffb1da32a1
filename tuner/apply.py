"""plan -> outcomes: makes the allowed changes so, in order, and undoes them all when one is refused."""

from __future__ import annotations

from collections.abc import Callable

from tuner.errors import TunerError
from tuner.host import Host
from tuner.journal import At, Journal, Line
from tuner.knobs import BY_NAME
from tuner.model import (
    Change,
    Outcome,
    Plan,
    Reading,
    Seen,
    Value,
    aim,
    known,
    met,
    reading_to_plain,
    same,
    setting_to_plain,
)
from tuner.plan import fields_of, named_fields
from tuner.readings import lingering, read
from tuner.run import Progress, Report, Run, Snapshot, Stop, aside, moved, moved_line, place_of, put_back, restore


def apply(
    host: Host,
    journal: Journal,
    plan: Plan,
    head: Line,
    stop: Stop,
    *,
    keep: bool = False,
    adopt: bool = False,
    progress: Progress = lambda _: None,
    again: Callable[[], Plan] | None = None,
) -> Report:
    """Makes the allowed changes of `plan` so, in order; undoes them all if one is refused, unless `keep`.

    `head` says who and when. With `adopt`, a generation is made even when there is nothing to write, because the
    settings are others than the applied ones. `again` plans anew, so that a setting which one of the writes moved off
    its Want is mended in the same run. The lock must be held.
    """
    host.ready()
    snapshot: Snapshot = {v.setting.at: v.reading for v in plan.verdicts}
    todo = [c for c in plan.changes if not c.held]
    snapshot.update(aside(host, [c.at for c in todo], snapshot))
    held = [list(c.at) for c in plan.changes if c.held]
    run = Run(host, journal, "apply", head["who"], plan.settings_id, head={**head, **_frozen(host, plan, snapshot)})
    report = Report()
    _make_all(run, report, todo, stop, keep=keep, progress=progress)
    if again and report.outcomes and not report.reason:
        try:
            _make_all(run, report, _astray(run, report, snapshot, again), stop, keep=keep, progress=progress)
        except TunerError as error:
            report.reason = str(error)
    report.reason = report.reason or (f"stopped by {stop.name}" if stop.name else "")
    report.generation = run.generation
    if not report.reason:
        try:
            _finish(run, report, snapshot, held, adopt=adopt)
        except OSError as error:
            report.reason = f"the journal cannot be written: {error.strerror}"
    if report.reason:
        _undo_own(run, report, snapshot)
    return report


def _astray(run: Run, report: Report, snapshot: Snapshot, again: Callable[[], Plan]) -> list[Change]:
    """Changes for settings that were as wanted and that a write of this run moved."""
    places = moved(run.host, snapshot, {place_of(o) for o in report.outcomes})
    return [c for c in again().changes if c.at in places and not c.held] if places else []


def _make_all(run: Run, report: Report, changes: list[Change], stop: Stop, *, keep: bool, progress: Progress) -> None:
    """Makes changes one after the other, until one is refused or a signal comes; `report.reason` says which."""
    for change in changes:
        if stop.name:
            return
        progress(f"{change.knob} {change.target}")
        outcome = one(run, change)
        if outcome:
            report.outcomes.append(outcome)
            if outcome.result == "refused" and not (keep and not run.lossy):
                report.reason = f"{change.knob} {change.target}: {outcome.why}"
                return


def _finish(run: Run, report: Report, snapshot: Snapshot, held: list[list[str]], *, adopt: bool) -> None:
    """Journals what moved besides and the end of the run."""
    if run.generation is None and adopt:
        run.generation = report.generation = run.journal.begin(run.head, [])
    others = moved(run.host, snapshot, {place_of(o) for o in report.outcomes})
    report.moved = [f"{at[0]} {at[1]}" for at in others]
    refused = any(o.result == "refused" for o in report.outcomes)
    run.note(*(moved_line("apply", at, *pair) for at, pair in others.items()))
    report.after = run.tell()
    run.end("kept" if refused else "applied", held=held)


def _frozen(host: Host, plan: Plan, snapshot: Snapshot) -> Line:
    """The settings as they are expanded on this host now, with the reading of each before the first write."""
    judged = {v.setting.at for v in plan.verdicts}
    there = [at for at, found in snapshot.items() if known(found)]
    identities = [[*at, BY_NAME[at[0]].identity(host, at[1])] for at in there]
    return {
        "settings_id": plan.settings_id,
        "profile": plan.profile,
        "settings": [setting_to_plain(v.setting) for v in plan.verdicts],
        "readings": [reading_to_plain(v.reading) for v in plan.verdicts],
        "aside": [[*at, reading_to_plain(snapshot[at])] for at in snapshot if at not in judged],
        "identities": [row for row in identities if row[-1]],
    }


def one(run: Run, change: Change) -> Outcome | None:
    """One change: None when a fresh read finds it met already."""
    knob = BY_NAME[change.knob]
    reading = read(run.host, knob, change.target)
    found = known(reading)
    if found is None:
        why = getattr(reading, "why", "")
        return Outcome(change.knob, change.target, change.before, change.before, "refused", why)
    if isinstance(reading, Seen) and met(change.want, found.value, knob.key) != "drift":
        return None
    try:
        value = aim(change.want, found.value, knob.key)
        after, failure = run.write(change.at, found.value, value, fields_of(change.want), change.via)
    except OSError as error:
        run.lossy = True
        why = f"the journal cannot be written: {error.strerror}"
        return Outcome(change.knob, change.target, found.value, found.value, "refused", why)
    outcome = _outcome(change, found.value, value, after, failure)
    try:
        run.record(outcome)
    except OSError as error:
        run.lossy = True
        why = f"the journal cannot be written: {error.strerror}"
        return Outcome(change.knob, change.target, found.value, outcome.after, "refused", why)
    return outcome


def _outcome(change: Change, before: Value, value: Value, after: Reading, failure: str) -> Outcome:
    """done, short or refused, by what was read back and nothing else."""
    knob = BY_NAME[change.knob]
    seen = known(after)
    if seen is None:
        return Outcome(*change.at, before, value, "refused", failure or getattr(after, "why", ""))
    back = change.returning and knob.restored(change.value, seen.value)
    if back or met(change.want, seen.value, knob.key) != "drift":
        return Outcome(*change.at, before, seen.value, "done")
    if not failure and knob.partial:
        return Outcome(*change.at, before, seen.value, "short", knob.shortfall(change.target, change.value, seen.value))
    if failure or same(before, seen.value):
        why = failure or "the write was taken and changed nothing"
        return Outcome(*change.at, before, seen.value, "refused", why)
    return Outcome(*change.at, before, seen.value, "short", knob.shortfall(change.target, change.value, seen.value))


def _undo_own(run: Run, report: Report, snapshot: Snapshot) -> None:
    """Undoes what the run wrote, newest first, then puts back what else moved; journal or no journal."""
    run.kind, run.lossy = "undo", True
    if run.generation is not None:
        for outcome in reversed(report.outcomes):
            if not _as_before(run, place_of(outcome), snapshot):
                restore(run, place_of(outcome), outcome.before)
        report.not_restored = put_back(run, {**snapshot, **_first_readings(report, snapshot)})
        report.not_restored += _out_of_reach(run, report, snapshot)
    report.undone = not report.not_restored
    report.after = run.tell()
    run.end("not restored" if report.not_restored else "undone", held=[], why=report.reason)


def _as_before(run: Run, at: At, snapshot: Snapshot) -> bool:
    """Whether nobody can read a place, for the same reason as before the run: no write of it got anywhere."""
    found = read(run.host, BY_NAME[at[0]], at[1])
    return not isinstance(found, Seen) and found == snapshot.get(at)


def _out_of_reach(run: Run, report: Report, snapshot: Snapshot) -> list[str]:
    """What this run wrote and can no longer be read: nobody can say that it was restored."""
    unread = set()
    for outcome in report.outcomes:
        at = place_of(outcome)
        found = read(run.host, BY_NAME[at[0]], at[1])
        left = lingering(run.host, at, found) and not _as_before(run, at, snapshot)
        if left or (outcome.after != outcome.before and not isinstance(found, Seen)):
            unread.add(at)
    return [f"{at[0]} {at[1]}" for at in sorted(unread)]


def _first_readings(report: Report, snapshot: Snapshot) -> Snapshot:
    return {place_of(o): snapshot.get(place_of(o), Seen(o.before)) for o in report.outcomes}


def stale(host: Host, plan: Plan) -> list[str]:
    """The changes of `plan` whose target no longer holds what the plan saw."""
    gone = []
    for change in plan.changes:
        now = known(read(host, BY_NAME[change.knob], change.target))
        if now is None or not same(named_fields(change.before, fields_of(change.want)), now.value):
            gone.append(f"{change.knob} {change.target}")
    return gone
