"""journal -> what was there before: rollback of generations, and the settling of a run that a crash cut short."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.host import Host
from tuner.host.after import act
from tuner.journal import At, Entry, Generation, Journal, Line
from tuner.knobs import BY_NAME
from tuner.ledger import Ledger, fold
from tuner.model import Absent, Outcome, Reading, Seen, Unreadable, Value, plain, reading_from_plain, replaced, same
from tuner.plan import named_fields
from tuner.readings import lingering, read
from tuner.run import Report, Run, Snapshot, aside, moved, moved_line, place_of, put_back


def settle(host: Host, journal: Journal) -> list[str]:
    """After a crash: closes what an interrupted run left open, by what the targets hold; says what it found.

    The lock must be held. The values stay as they are: rollback undoes them, the next apply completes them.
    """
    found = []
    for number, generation in journal.generations.items():
        kind = generation.open_run()
        if kind is None:
            continue
        intent = generation.open_intent()
        if intent and intent["knob"] in BY_NAME:
            journal.add(number, _settled(host, intent))
        for action in {
            BY_NAME[x["knob"]].after(x["target"])
            for x in generation.lines
            if x["op"] == "intent" and x["knob"] in BY_NAME
        } - {""}:
            done, why = act(host, action)
            journal.add(number, {"op": "after", "run": kind, "action": action, "done": done, "why": why})
        if kind == "apply":
            snapshot = _head_snapshot(generation.head)
            written = {entry.at for entry in generation.entries()}
            lines = [moved_line("apply", at, *p) for at, p in moved(host, snapshot, written).items()]
            state = "interrupted" if lines or _anything_left(host, generation) else "undone"
            journal.add(number, *lines, {"op": "end", "run": "apply", "state": state, "held": []})
        else:
            journal.add(number, {"op": "end", "run": kind, "state": "interrupted"})
        found.append(f"generation {number}: its {kind} was interrupted")
    return found


def _anything_left(host: Host, generation: Generation) -> bool:
    """Whether a target of the generation holds something else than before it."""
    entries = generation.entries()
    if any(entry.at[0] not in BY_NAME for entry in entries):
        return True
    readings = ((entry, read(host, BY_NAME[entry.at[0]], entry.at[1])) for entry in entries)
    return any(not isinstance(now, Seen) or now.value != entry.before for entry, now in readings)


def _settled(host: Host, intent: Line) -> Line:
    at = intent["knob"], intent["target"]
    knob = BY_NAME[at[0]]
    knob.settle(host, at[1])
    now = read(host, knob, at[1])
    after = plain(now.value) if isinstance(now, Seen) else intent["value"]
    result = "done" if isinstance(now, Seen) and after == intent["value"] else "short"
    return {
        "op": "outcome", "run": intent["run"], "knob": at[0], "target": at[1], "before": intent["before"],
        "after": after, "result": result, "why": "interrupted",
    }  # fmt: skip


def _head_snapshot(head: Line) -> Snapshot:
    pairs = zip(head.get("settings", []), head.get("readings", []), strict=True)
    snapshot = {(s["knob"], s["target"]): reading_from_plain(r) for s, r in pairs}
    snapshot.update({(knob, target): reading_from_plain(r) for knob, target, r in head.get("aside", [])})
    return {at: r for at, r in snapshot.items() if at[0] in BY_NAME}


def rollback(
    host: Host, journal: Journal, to: int | None, who: str, *, force: bool = False
) -> tuple[Report, list[int]]:
    """Undoes the newest live generation, or with `to` all that are newer; returns the report and their numbers.

    A value is restored only while it equals what tuner last left there. The lock must be held.
    """
    host.ready()
    ledger = fold(journal)
    undoes = [g.number for g in ledger.live if (g.number > to if to is not None else g is ledger.newest)]
    newest = journal.generations[max(undoes)]
    run = Run(host, journal, "rollback", who, newest.head["settings_id"], generation=newest.number)
    run.note({"op": "rollback", "undoes": undoes, "who": who, "force": force})
    run.lossy = True
    entries = _merged([e for n in undoes for e in journal.generations[n].entries()])
    report = Report(generation=newest.number)
    places = [e.at for e in entries]
    start = _head_snapshot(newest.head)
    watched = {**start, **aside(host, places, {})}
    watched = {at: read(host, BY_NAME[at[0]], at[1]) for at in watched if at not in places}
    sides = [e for e in entries if e.side]
    untouched = {e.at for e in sides if _ours(host, e, ledger)}  # asked first: what is given back may move them again
    report.outcomes += [_give_back(run, e, ledger, force) for e in reversed(entries) if not e.side]
    report.outcomes += [_give_back(run, e, ledger, force or e.at in untouched) for e in sides]
    goal: Snapshot = {e.at: Seen(e.before) for e, o in _pairs(entries, report) if o.result in ("done", "unchanged")}
    report.not_restored = put_back(run, {**watched, **goal})
    report.not_restored += [f"{o.knob} {o.target}" for o in report.outcomes if o.result == "refused"]
    report.after = run.tell()
    open_end = report.not_restored or any(o.result in ("held", "short") for o in report.outcomes)
    run.end("partly rolled back" if open_end else "rolled back")
    return report, undoes


def _pairs(entries: list[Entry], report: Report) -> Iterator[tuple[Entry, Outcome]]:
    by_at = {place_of(o): o for o in report.outcomes}
    return ((entry, by_at[entry.at]) for entry in entries)


def _merged(entries: list[Entry]) -> list[Entry]:
    """Once per target, with the oldest `before`: straight there, not by way of every generation between."""
    found: dict[At, Entry] = {}
    for entry in entries:
        known = found.setdefault(entry.at, entry)
        if replaced(known.identity, entry.identity):
            found[entry.at] = entry
        elif known is not entry and not entry.side:
            fields = None if known.fields is None or entry.fields is None else sorted({*known.fields, *entry.fields})
            found[entry.at] = Entry(entry.at, known.before, entry.left, fields, False, entry.disruption, known.identity)
    return list(found.values())


def _give_back(run: Run, entry: Entry, ledger: Ledger, force: bool) -> Outcome:
    knob = BY_NAME.get(entry.at[0])
    if knob is None:
        return Outcome(*entry.at, entry.left, entry.left, "refused", "this version has no such knob")
    found = read(run.host, knob, entry.at[1])
    lingers = lingering(run.host, entry.at, found)
    if not isinstance(found, Seen) and not lingers:
        return _out_of_reach(entry, found)
    now = found.value if isinstance(found, Seen) else None
    foreign = _not_ours(run.host, entry, ledger, now, force or lingers)
    if (now == entry.before and not lingers) or foreign:
        return Outcome(*entry.at, now, now, "not ours any more" if foreign else "unchanged", foreign)
    guard = knob.guard(run.host, entry.at[1], entry.before, Seen(entry.before))
    if guard:
        return Outcome(*entry.at, now, now, "held", guard)
    after, failure = run.write(entry.at, now, entry.before, None)
    outcome = _restored(entry, now, after, failure)
    run.record(outcome)
    return outcome


def _ours(host: Host, entry: Entry, ledger: Ledger) -> bool:
    """Whether the target holds what tuner left there."""
    found = read(host, BY_NAME[entry.at[0]], entry.at[1]) if entry.at[0] in BY_NAME else None
    return isinstance(found, Seen) and not _not_ours(host, entry, ledger, found.value, force=False)


def _not_ours(host: Host, entry: Entry, ledger: Ledger, now: Value, force: bool) -> str:
    """Why the target is not to be given back: another device, which nothing overrules, or another hand since."""
    device = BY_NAME[entry.at[0]].identity(host, entry.at[1])
    if replaced(entry.identity, device):
        return f"other hardware: {device}; was {entry.identity}"
    left = named_fields(ledger.left.get(entry.at, entry.left), entry.fields)
    return "" if force or now == entry.before or same(left, now) else "changed by somebody else since"


def _out_of_reach(entry: Entry, found: Absent | Unreadable) -> Outcome:
    """A target that is gone has nothing to be given back; one that cannot be read is not restored."""
    if isinstance(found, Absent):
        return Outcome(*entry.at, entry.left, entry.left, "not ours any more", f"gone: {found.why}")
    if found.fault == "no getter":
        return Outcome(*entry.at, None, None, "unchanged", f"nothing of ours is in force: {found.why}")
    return Outcome(*entry.at, entry.left, entry.left, "refused", f"cannot be read: {found.why}")


def _restored(entry: Entry, now: Value, after: Reading, failure: str) -> Outcome:
    if not isinstance(after, Seen):
        return Outcome(*entry.at, now, now, "refused", failure or after.why)
    if BY_NAME[entry.at[0]].restored(entry.before, after.value):
        return Outcome(*entry.at, now, after.value, "done")
    return Outcome(*entry.at, now, after.value, "refused" if failure else "short", failure or "not all came back")
