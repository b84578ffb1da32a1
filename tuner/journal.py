"""The journal: what tuner did to this host, and the only truth that it stores.

One file per generation, `/var/lib/tuner/generations/000007.jsonl`, a JSON object per line, only ever appended to:

    begin     an apply: who, when, settings, and a reading of every target before the first write
    intent    the next write and what the target held just before; on the disk before the write is made
    outcome   what became of it
    after     what the system was told after files had changed
    moved     a setting that the run did not write but that changed meanwhile
    rollback  the start of undoing; `undoes` names the generations
    reassert  the start of making a live generation so again, after a boot or for a device; never undo data
    end       how the run ended
    carried   befores of older generations whose files were dropped

A line that a crash cut short is no line. Everything else (what is live, what tuner last left on a target, what was
there before it came) is a fold over these lines, in tuner.ledger.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tuner.errors import Exit, Problem, TunerError
from tuner.host import Host
from tuner.host.door import make_parents
from tuner.model import from_plain

OWN = "/var/lib/tuner"
FOLDER = f"{OWN}/generations"
NAME = re.compile(r"(\d{6})\.jsonl")
KEEP = 50
"""Generations kept."""
KEEP_BYTES = 64 * 1024 * 1024
"""Bytes of journal kept."""
AGAIN = ("boot", "device")
"""Runs that re-assert a live generation. What they wrote is what tuner last left, and nothing that is given back."""
KEEP_AGAIN = 1000
"""Lines of such runs kept in one generation, before only the last of each target stays."""

MISSING = type("Missing", (), {})()
_AT = {"run": str, "knob": str, "target": str}
_VALUE = (type(None), int, str, list, dict)
FIELDS: dict[str, dict[str, Any]] = {
    "begin": {"settings_id": str, "profile": str, "who": str, "when": str, "settings": list, "readings": list},
    "intent": {**_AT, "before": _VALUE, "value": _VALUE, "fields": (list, type(None)), "disruption": str},
    "outcome": {**_AT, "before": _VALUE, "after": _VALUE, "result": str},
    "moved": {**_AT, "before": _VALUE, "after": _VALUE},
    "rollback": {"undoes": list},
    "reassert": {"run": str, "who": str, "when": str},
    "after": {"action": str},
    "end": {"run": str, "state": str},
    "carried": {"entries": list},
}
"""What each line must have, so that a damaged journal is said and never half-understood."""

Line = dict[str, Any]
At = tuple[str, str]


@dataclass
class Entry:
    """One target in one generation: what it held before the generation, what tuner left, which fields it wrote."""

    at: At
    before: Any
    left: Any
    fields: list[str] | None = None
    side: bool = False
    disruption: str = "none"
    identity: str = ""
    """Of the device, where the target is one."""


@dataclass
class Generation:
    """One file of the journal, folded."""

    number: int
    lines: list[Line] = field(default_factory=list)
    torn: int | None = None
    size: int = 0

    @property
    def head(self) -> Line:
        """The `begin` line; empty for a file that a crash left without one."""
        return next((line for line in self.lines if line["op"] == "begin"), {})

    @property
    def state(self) -> str:
        """`applied`, `kept`, `interrupted`, `undone`, `not restored` or `running`."""
        ends = [line for line in self.lines if line["op"] == "end" and line["run"] == "apply"]
        return str(ends[-1]["state"]) if ends else "running"

    def open_intent(self) -> Line | None:
        """An intent without an outcome: the write may or may not have been made."""
        intent: Line | None = None
        for line in self.lines:
            if line["op"] == "intent":
                intent = line
            elif line["op"] == "outcome":
                intent = None
        return intent

    def open_run(self) -> str | None:
        """The run (apply, rollback, boot or device) that began in this file and did not end."""
        run: str | None = None
        for line in self.lines:
            if line["op"] in ("begin", "rollback", "reassert"):
                run = {"begin": "apply", "rollback": "rollback"}.get(line["op"]) or str(line["run"])
            elif line["op"] == "end":
                run = None
        return run

    def readings(self) -> dict[At, Any]:
        """What each place held before the first write of this generation, as far as it could be read."""
        head = self.head
        rows = [(s["knob"], s["target"], r) for s, r in zip(head["settings"], head["readings"], strict=True)]
        rows += [tuple(row) for row in head.get("aside", [])]
        return {(knob, target): from_plain(r["seen"]) for knob, target, r in rows if "seen" in r}

    def entries(self) -> list[Entry]:
        """What the apply of this generation changed, in order, once per target.

        `before` is what was there before the run, not what another write of it had made of it by then.
        """
        found: dict[At, Entry] = {}
        first = self.readings()
        devices = {(knob, target): identity for knob, target, identity in self.head.get("identities", [])}
        for line in self.lines:
            at = (line.get("knob", ""), line.get("target", ""))
            if line["op"] == "carried":
                for carried in line["entries"]:
                    key = (carried["knob"], carried["target"])
                    before, left = from_plain(carried["before"]), from_plain(carried["left"])
                    known = carried["fields"], False, carried["disruption"], carried.get("identity", "")
                    found[key] = Entry(key, before, left, *known)
            elif line["op"] == "intent" and line["run"] == "apply":
                before = first.get(at, from_plain(line["before"]))
                fresh = Entry(at, before, before, line["fields"], False, line["disruption"], devices.get(at, ""))
                found.setdefault(at, fresh)
            elif line["op"] in ("outcome", "moved") and line["run"] == "apply":
                after = from_plain(line["after"])
                entry = found.setdefault(at, Entry(at, from_plain(line["before"]), after, None, line["op"] == "moved"))
                entry.left = after
        return list(found.values())


class Journal:
    """The generations of one host. Reading needs only the rights to the files; writing needs the lock."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.generations: dict[int, Generation] = {}
        for number in _numbers(host):
            generation = _load(host, number)
            if generation.lines:
                self.generations[number] = generation
        self.seq = max((line["seq"] for g in self.generations.values() for line in g.lines), default=0)

    def open_actions(self) -> list[str]:
        """What the system was to be told by the last run that changed such a file, and was not."""
        last: dict[str, bool] = {}
        lines = sorted((x for g in self.generations.values() for x in g.lines), key=lambda x: int(x["seq"]))
        for line in lines:
            if line["op"] == "after":
                last[line["action"]] = bool(line.get("done", True))
        return [action for action, done in last.items() if not done]

    def newest(self) -> int:
        """The highest number in use; 0 for none."""
        return max(self.generations, default=0)

    def begin(self, head: Line, lines: list[Line]) -> int:
        """Starts a generation with its first lines, all on the disk or none; returns its number."""
        number = max([self.newest(), *_numbers(self.host)]) + 1
        stamped = [self._stamp({"op": "begin", "generation": number, **head}), *map(self._stamp, lines)]
        path = _path(number)
        make_parents(self.host, OWN)  # /var and /var/lib, where they are missing, are for everybody
        make_parents(self.host, path, 0o700)
        self.host.put(path, _encode(stamped), 0o600)
        self.generations[number] = Generation(number, stamped)
        return number

    def add(self, number: int, *lines: Line) -> None:
        """Appends lines to a generation's file; they are on the disk when this returns."""
        generation = self.generations[number]
        if generation.torn is not None:
            self.host.truncate(_path(number), generation.torn)
            generation.torn = None
        if lines:
            stamped = [self._stamp(line) for line in lines]
            self.host.append(_path(number), _encode(stamped))
            generation.lines += stamped

    def remember(self, number: int, *lines: Line) -> None:
        """Takes lines that could not be written: this process knows them, the next command settles the rest."""
        self.generations[number].lines += [self._stamp(line) for line in lines]

    def prune(self) -> None:
        """Drops the oldest files over the limits; what only they knew is carried into the next live generation."""
        while len(self.generations) > KEEP or sum(g.size for g in self.generations.values()) > KEEP_BYTES:
            oldest, *younger = [self.generations[n] for n in sorted(self.generations)]
            if not dead(self, oldest.number):
                heir = next((g for g in younger if not dead(self, g.number)), None)
                if heir is None:
                    return
                self._carry(oldest, heir)
            self.host.unlink(_path(oldest.number))
            del self.generations[oldest.number]

    def condense(self, number: int) -> None:
        """Of a generation that was re-asserted very often, keeps the last outcome of each target; all runs ended."""
        generation = self.generations[number]
        again = [line for line in generation.lines if line.get("run") in AGAIN]
        if len(again) <= KEEP_AGAIN or generation.open_run():
            return
        last = {(x["op"], x["knob"], x["target"]): x["seq"] for x in again if x["op"] in ("outcome", "moved")}
        kept = {*last.values(), again[-1]["seq"]}
        generation.lines = [x for x in generation.lines if x.get("run") not in AGAIN or x["seq"] in kept]
        self.host.put(_path(number), _encode(generation.lines), 0o600)

    def _carry(self, oldest: Generation, heir: Generation) -> None:
        again = [x for x in oldest.lines if x["op"] in ("outcome", "moved") and x["run"] in AGAIN]
        left = {(x["knob"], x["target"]): x["after"] for x in again}
        rows = [
            {"knob": e.at[0], "target": e.at[1], "before": e.before, "left": left.get(e.at, e.left), "fields": e.fields,
             "disruption": e.disruption, "identity": e.identity}
            for e in oldest.entries()
        ]  # fmt: skip
        carried = self._stamp({"op": "carried", "generations": [oldest.number], "entries": rows})
        heir.lines = [heir.lines[0], carried, *heir.lines[1:]]
        self.host.put(_path(heir.number), _encode(heir.lines), 0o600)

    def _stamp(self, line: Line) -> Line:
        self.seq += 1
        return {"seq": self.seq, **json.loads(json.dumps(line))}


def dead(journal: Journal, number: int) -> bool:
    """Whether a generation is undone, by its own run or by a rollback."""
    if journal.generations[number].state == "undone":
        return True
    for generation in journal.generations.values():
        undoes: list[int] = []
        for line in generation.lines:
            if line["op"] == "rollback":
                undoes = line["undoes"]
            elif number in undoes and line["op"] == "end" and line["state"] == "rolled back":
                return True
    return False


def _path(number: int) -> str:
    return f"{FOLDER}/{number:06d}.jsonl"


def _numbers(host: Host) -> list[int]:
    try:
        names = host.list(FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(m.group(1)) for m in map(NAME.fullmatch, names) if m)


def _encode(lines: list[Line]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode("ascii")


def _load(host: Host, number: int) -> Generation:
    try:
        data = host.read_journal(_path(number))
    except PermissionError:
        raise
    except OSError as error:
        raise _broken(number, 1, f"cannot be read: {error.strerror}") from None
    whole, newline, rest = data.rpartition(b"\n")
    generation = Generation(number, size=len(data), torn=len(data) - len(rest) if rest else None)
    for place, text in enumerate((whole + newline).splitlines(), 1):
        line = _parsed(text)
        if line is None:
            raise _broken(number, place, "not a line of the journal")
        generation.lines.append(line)
    if generation.lines and "settings" not in generation.head:
        raise _broken(number, 1, "a journal without its first line")
    return generation


def _parsed(text: bytes) -> Line | None:
    """The line, if it has every field that its `op` needs."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("op"), str) or type(line.get("seq")) is not int:
        return None
    needs = FIELDS.get(line["op"])
    return (
        line if needs is not None and all(isinstance(line.get(n, MISSING), kind) for n, kind in needs.items()) else None
    )


def _broken(number: int, place: int, what: str) -> TunerError:
    hint = "restore the file from a backup, or move it away: its generation can then not be rolled back"
    return TunerError(Problem(f"{_path(number)}:{place}", what, hint), Exit.UNKNOWN)
