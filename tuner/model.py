"""The nouns: Want, Setting, Reading, Verdict, Change, Plan, Outcome.

All are frozen values. Nothing here reads a host, writes one or prints.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union

Leaf = Union[int, str, None]
Record = Mapping[str, Leaf]
Value = Union[Leaf, tuple[int, ...], Record]
"""What a target holds. 0, "" and None (no file) are values; not read is a Reading, never a Value."""

WantKind = Literal["value", "at_least", "at_most", "one_of"]
WANT_KINDS: tuple[WantKind, ...] = ("value", "at_least", "at_most", "one_of")

DISRUPTIONS = ("none", "app", "memory", "clocks", "link", "gpu", "boot", "nv")
"""Classes of disruption, mildest first: what a change may disturb."""

STATES = ("ok", "raised", "pending", "held", "unsupported", "shadowed", "unknown", "drift", "missing")
"""States of a verdict, best first. `unsupported` fails nothing unless the setting is required."""


@dataclass(frozen=True)
class Want:
    """A wanted value. For `one_of`, `value` is the tuple of choices and the first one is written."""

    kind: WantKind
    value: Any

    def choices(self) -> tuple[Value, ...]:
        """The values that can be written for this Want."""
        return tuple(self.value) if self.kind == "one_of" else (self.value,)


@dataclass(frozen=True)
class Setting:
    """One resolved line: what a knob's target shall hold, who says so and why.

    `target` is one object of the host once patterns are expanded; `written` is how the profile names it.
    `origin` is FILE:LINE. `required` makes `unsupported` a failure; `gate` is for the check before a job. `layer`
    orders the files that settings come from: the higher wins. `via` is the tool that a write shall go through, where
    the knob knows several.
    """

    knob: str
    target: str
    written: str
    want: Want
    origin: str
    why: str
    source: str
    required: bool = False
    gate: str = ""
    layer: int = 0
    via: str = ""

    @property
    def at(self) -> tuple[str, str]:
        """(knob, target): the name of the place."""
        return self.knob, self.target


@dataclass(frozen=True)
class Seen:
    """The target holds `value`, in the knob's normal form."""

    value: Value


@dataclass(frozen=True)
class Absent:
    """This kernel or device does not have the target."""

    why: str


@dataclass(frozen=True)
class Unreadable:
    """It could not be read: `fault` says whether we (tool, rights, time-out) or the device failed.

    `no getter`: the device works and nothing can ask it for this value. Only that is ever written over.
    """

    why: str
    fault: Literal["ours", "device", "no getter"] = "ours"


Reading = Union[Seen, Absent, Unreadable]


@dataclass(frozen=True)
class Verdict:
    """A setting judged: what was read, in which state that is and why.

    `remark` is what has to be said of a target that holds as wanted. `next_boot` is a value, not a state;
    `next_boot_why` says why there is none; `next_boot_by` is the FILE:LINE that decides it, where one does.
    """

    setting: Setting
    reading: Reading
    state: str
    why: str = ""
    disruption: str = "none"
    note: str = ""
    next_boot: Value = None
    next_boot_why: str = "not predicted"
    next_boot_by: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Change:
    """A write that would make a setting so. `held` says why it is not made now; empty = it is."""

    knob: str
    target: str
    before: Value
    value: Value
    want: Want
    disruption: str
    held: str = ""
    returning: bool = False
    note: str = ""
    via: str = ""

    @property
    def at(self) -> tuple[str, str]:
        """(knob, target): the name of the place."""
        return self.knob, self.target


@dataclass(frozen=True)
class Plan:
    """Verdicts for every setting and the changes that are needed, in the order of writing."""

    settings_id: str
    profile: str
    verdicts: tuple[Verdict, ...]
    changes: tuple[Change, ...]
    left: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Names the changes with their `before`: equal plans do the same thing to the same state."""
        return digest([[c.knob, c.target, plain(c.before), plain(c.value)] for c in self.changes])

    def counts(self) -> dict[str, int]:
        """How many verdicts are in each state that occurs, in the order of STATES."""
        found = [v.state for v in self.verdicts]
        return {state: found.count(state) for state in STATES if state in found}


@dataclass(frozen=True)
class Outcome:
    """What became of one change: `done`, `short` (moved toward the Want, holds less) or `refused`."""

    knob: str
    target: str
    before: Value
    after: Value
    result: Literal["done", "short", "refused", "not ours any more", "held", "unchanged"]
    why: str = ""


def plain(value: Any) -> Any:
    """A Value as JSON has it: vectors are lists, records are objects."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return value


def from_plain(value: Any) -> Any:
    """The inverse of `plain`."""
    if isinstance(value, list):
        return tuple(from_plain(item) for item in value)
    if isinstance(value, dict):
        return {name: from_plain(item) for name, item in value.items()}
    return value


def digest(data: Any) -> str:
    """sha256 of the canonical JSON of `data`, in hex."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def settings_id(settings: list[Setting]) -> str:
    """Names a set of settings: equal on equal nodes, whatever file or host they came from."""
    rows = {
        (s.knob, s.written): [s.knob, s.written, s.want.kind, plain(s.want.value), s.required, s.gate] for s in settings
    }
    return digest([rows[at] for at in sorted(rows)])


def setting_to_plain(setting: Setting) -> dict[str, Any]:
    """A setting as the journal stores it."""
    return {**asdict(setting), "want": {"kind": setting.want.kind, "value": plain(setting.want.value)}}


def setting_from_plain(data: dict[str, Any]) -> Setting:
    """The inverse of `setting_to_plain`; fields of a later release are ignored."""
    known = {name: data[name] for name in Setting.__dataclass_fields__ if name in data}
    known["want"] = Want(data["want"]["kind"], from_plain(data["want"]["value"]))
    return Setting(**known)


def reading_to_plain(reading: Reading) -> dict[str, Any]:
    """A reading as the journal stores it."""
    match reading:
        case Seen(value):
            return {"seen": plain(value)}
        case Absent(why):
            return {"absent": why}
        case Unreadable(why, fault):
            return {"unreadable": why, "fault": fault}


def reading_from_plain(data: dict[str, Any]) -> Reading:
    """The inverse of `reading_to_plain`."""
    if "seen" in data:
        return Seen(from_plain(data["seen"]))
    return Absent(data["absent"]) if "absent" in data else Unreadable(data["unreadable"], data["fault"])


def known(found: Reading) -> Seen | None:
    """What may be written over: a value that was seen, null where nothing can ask for it; None for anything else."""
    if isinstance(found, Unreadable) and found.fault == "no getter":
        return Seen(None)
    return found if isinstance(found, Seen) else None


def replaced(was: str, now: str) -> bool:
    """Whether two identities of one place are of different devices; one that is not known is no difference."""
    return bool(was and now) and set(was.split(", ")).isdisjoint(now.split(", "))


def leaves(value: Value) -> tuple[Leaf, ...]:
    """The numbers and words of a value, whatever its shape."""
    if isinstance(value, Mapping):
        return tuple(value.values())
    return value if isinstance(value, tuple) else (value,)


def holds(wanted: Value, seen: Value, test: Callable[[Any, Any], bool]) -> bool:
    """Whether `test(wanted, seen)` is true of every number or word: element-wise, and for the fields that are named."""
    if isinstance(wanted, Mapping):
        return isinstance(seen, Mapping) and all(n in seen and holds(w, seen[n], test) for n, w in wanted.items())
    if isinstance(wanted, tuple):
        return (
            isinstance(seen, tuple)
            and len(seen) == len(wanted)
            and all(test(w, s) for w, s in zip(wanted, seen, strict=True))
        )
    return test(wanted, seen)


def same(one: Value, other: Value) -> bool:
    """Whether the fields that `one` names read the same in `other`."""
    return holds(one, other, lambda a, b: bool(a == b))


def met(want: Want, seen: Value, key: Callable[[Any], Any]) -> str:
    """`ok`, `raised` or `drift`: how what was seen stands to the Want, by the order that the knob's `key` gives."""
    if want.kind == "value":
        return "ok" if same(want.value, seen) else "drift"
    if want.kind == "one_of":
        return "ok" if any(same(choice, seen) for choice in want.value) else "drift"
    if want.kind == "at_most":
        return "ok" if holds(want.value, seen, lambda w, s: s is not None and bool(key(s) <= key(w))) else "drift"
    if not holds(want.value, seen, lambda w, s: s is not None and bool(key(s) >= key(w))):
        return "drift"
    return "ok" if same(want.value, seen) else "raised"


def aim(want: Want, seen: Value, key: Callable[[Any], Any]) -> Value:
    """The value to write so that the Want is met and nothing is moved that need not be."""
    if want.kind == "one_of":
        return want.choices()[0]
    if want.kind == "value":
        return merged(want.value, seen)
    pick = max if want.kind == "at_least" else min
    return merged(want.value, seen, lambda w, s: w if s is None else pick(w, s, key=key))


def merged(wanted: Value, seen: Value, pick: Callable[[Any, Any], Any] = lambda w, s: w) -> Value:
    """`seen` with what `wanted` names put in: fields of a record, numbers of a vector, or the whole."""
    if isinstance(wanted, Mapping) and isinstance(seen, Mapping):
        return {**seen, **{name: pick(item, seen.get(name)) for name, item in wanted.items()}}
    if isinstance(wanted, tuple) and isinstance(seen, tuple) and len(wanted) == len(seen):
        return tuple(pick(w, s) for w, s in zip(wanted, seen, strict=True))
    return wanted if isinstance(wanted, (tuple, Mapping)) else pick(wanted, seen)
