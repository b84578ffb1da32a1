"""One run of writes under the lock: intent, write, read back, outcome, each in the journal before the next."""

from __future__ import annotations

import signal
import syslog
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from tuner.errors import Refused
from tuner.host import Host, Unrecorded
from tuner.host.after import act
from tuner.journal import AGAIN, At, Journal, Line
from tuner.knobs import BY_NAME
from tuner.model import Outcome, Reading, Seen, Value, plain
from tuner.readings import lingering, read

PASSES = 2
"""Rounds of putting back what moved: one restored value may move another."""

Snapshot = dict[At, Reading]
Progress = Callable[[str], None]


class Stop:
    """SIGINT, SIGTERM and SIGHUP while a run is on: remembered, acted on between two writes."""

    def __init__(self) -> None:
        self.name = ""

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Catches the three signals inside the block; one that is ignored already (nohup) stays so."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ignored = {number for number in numbers if signal.getsignal(number) == signal.SIG_IGN}
        former = {number: signal.signal(number, self._heard) for number in numbers if number not in ignored}
        try:
            yield self
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _heard(self, number: int, _: FrameType | None) -> None:
        self.name = self.name or signal.Signals(number).name


@dataclass
class Report:
    """What a run did. `generation` is None when nothing was written; `undone` after a failure that was undone."""

    generation: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    undone: bool = False
    reason: str = ""
    not_restored: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    after: list[tuple[str, str]] = field(default_factory=list)
    """(action, why it is still to do; empty when done)."""


@dataclass
class Run:
    """One run of writes under the lock, journalled into one generation's file."""

    host: Host
    journal: Journal
    kind: Literal["apply", "undo", "rollback", "boot", "device"]
    who: str
    settings_id: str
    generation: int | None = None
    head: Line = field(default_factory=dict)
    actions: set[str] = field(default_factory=set)
    """What the system must be told when the run ends."""
    lossy: bool = False
    """Whether to go on without a journal (an undo on a full disk)."""

    def intend(self, at: At, before: Value, value: Value, fields: list[str] | None) -> None:
        """Puts the intent on the disk; the first one of an apply makes the generation."""
        if self.generation is None and self.kind in AGAIN:
            return
        knob = BY_NAME[at[0]]
        line = {
            "op": "intent", "run": self.kind, "knob": at[0], "target": at[1], "before": plain(before),
            "value": plain(value), "fields": fields, "disruption": knob.disruption(at[1]),
        }  # fmt: skip
        if self.generation is None:
            self.generation = self.journal.begin(self.head, [line])
        else:
            self.note(line)

    def note(self, *lines: Line) -> None:
        """Journals lines of this run."""
        if self.generation is None:
            return
        try:
            self.journal.add(self.generation, *lines)
        except OSError:
            if not self.lossy:
                raise
            self.journal.remember(self.generation, *lines)

    def write(
        self, at: At, before: Value, value: Value, fields: list[str] | None, via: str = ""
    ) -> tuple[Reading, str]:
        """Intent, write, read back: what the target holds now, and why the write failed if it did."""
        knob = BY_NAME[at[0]]
        self.intend(at, before, value, fields)
        failure = ""
        try:
            knob.writer(via)(self.host, at[1], value)
        except Refused as refused:
            failure = refused.why
        except (Unrecorded, ValueError) as error:
            failure = str(error)
        except OSError as error:
            failure = error.strerror or f"errno {error.errno}"
        self.actions |= {knob.after(at[1])} - {""}
        after = read(self.host, knob, at[1])
        self._say(at, before, after)
        return after, failure

    def record(self, outcome: Outcome) -> None:
        """Journals an outcome."""
        self.note(
            {
                "op": "outcome", "run": self.kind, "knob": outcome.knob, "target": outcome.target,
                "before": plain(outcome.before), "after": plain(outcome.after), "result": outcome.result,
                "why": outcome.why,
            }
        )  # fmt: skip

    def tell(self) -> list[tuple[str, str]]:
        """Runs the actions that the writes ask for, once each; (action, why it could not be done or "")."""
        told = []
        for action in sorted(self.actions):
            done, why = act(self.host, action)
            self.note({"op": "after", "run": self.kind, "action": action, "done": done, "why": why})
            told.append((action, why))
        self.actions = set()
        return told

    def end(self, state: str, **more: Any) -> None:
        """Journals the end of the run."""
        self.note({"op": "end", "run": "apply" if self.kind == "undo" else self.kind, "state": state, **more})

    def _say(self, at: At, before: Value, after: Reading) -> None:
        if self.host.kind != "live":
            return
        now = after.value if isinstance(after, Seen) else after.why
        short = [repr(plain(v))[:200] for v in (before, now)]
        syslog.openlog("tuner", syslog.LOG_PID, syslog.LOG_DAEMON)
        text = f"{self.kind} by {self.who} settings {self.settings_id[:8]}: {at[0]} {at[1]} {short[0]} -> {short[1]}"
        syslog.syslog(syslog.LOG_NOTICE, text)


def place_of(outcome: Outcome) -> At:
    """The place of an outcome."""
    return outcome.knob, outcome.target


def aside(host: Host, places: Collection[At], known: Mapping[At, Reading]) -> Snapshot:
    """Readings of these places, and of what writes to them may move besides, unless they are `known`."""
    places = [at for at in places if at[0] in BY_NAME]
    others = [other for knob, target in places for other in BY_NAME[knob].moves(target)]
    return {at: read(host, BY_NAME[at[0]], at[1]) for at in [*others, *places] if at not in known}


def moved(host: Host, snapshot: Snapshot, written: Collection[At]) -> dict[At, tuple[Value, Value]]:
    """(before, now) of each place in `snapshot` that changed and is not in `written`.

    `now` is null where nobody can tell: a lock that a switch of persistence mode may have ended is put back as if gone.
    """
    found: dict[At, tuple[Value, Value]] = {}
    for at, then in snapshot.items():
        if at in written or not isinstance(then, Seen) or BY_NAME[at[0]].read_only:
            continue
        now = read(host, BY_NAME[at[0]], at[1])
        if lingering(host, at, now):
            now = Seen(None)
        if isinstance(now, Seen) and now.value != then.value:
            found[at] = (then.value, now.value)
    return found


def moved_line(run: str, at: At, before: Value, after: Value) -> Line:
    """The journal line for a place that changed without being written."""
    return {"op": "moved", "run": run, "knob": at[0], "target": at[1], "before": plain(before), "after": plain(after)}


def restore(run: Run, at: At, before: Value) -> None:
    """Writes `before` back unless it is there; the caller looks at the result."""
    found = read(run.host, BY_NAME[at[0]], at[1])
    if lingering(run.host, at, found):
        found = Seen(None)
    if isinstance(found, Seen) and not BY_NAME[at[0]].restored(before, found.value):
        after, failure = run.write(at, found.value, before, None)
        left = after.value if isinstance(after, Seen) else found.value
        done = BY_NAME[at[0]].restored(before, left)
        run.record(Outcome(*at, found.value, left, "done" if done else "short", failure))


def put_back(run: Run, snapshot: Snapshot) -> list[str]:
    """Restores every place of `snapshot` that reads otherwise; returns those that will not."""
    for _ in range(PASSES):
        for at, (before, _now) in moved(run.host, snapshot, ()).items():
            restore(run, at, before)
    left = moved(run.host, snapshot, ()).items()
    return [f"{at[0]} {at[1]}" for at, (before, now) in left if not BY_NAME[at[0]].restored(before, now)]
