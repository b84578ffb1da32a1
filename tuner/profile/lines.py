"""The lines of one file as settings: every line checked by its knob, every problem kept with its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tuner.errors import BadValue, Problem
from tuner.host import Host
from tuner.knobs import BY_NAME, Knob
from tuner.model import WANT_KINDS, Setting, Value, Want, WantKind
from tuner.profile.nodes import Node

LINE = ("value", "at_least", "at_most", "one_of", "via", "why", "source", "required", "gate", "unset")
GATES = ("off", "report", "enforce")


@dataclass
class Line:
    """One line of one file: a setting as it was written, before inheritance."""

    setting: Setting | None
    where: str
    required: bool | None = None
    gate: str | None = None


@dataclass
class Loader:
    """One resolution: problems gather here, and each file that is read is a layer above those before it."""

    host: Host
    problems: list[Problem] = field(default_factory=list)
    layers: int = 0

    def wrong(self, where: str, what: str, hint: str = "") -> None:
        """Notes a problem and goes on."""
        self.problems.append(Problem(where, what, hint))


def place(origin: str, node: Node) -> str:
    """FILE:LINE of a node; an argument of the command line has no lines."""
    return origin if origin.startswith("--") else f"{origin}:{node.line}"


def origin_of(where: str) -> str:
    """The origin in what `place` gave."""
    return where if where.startswith("--") else where.rpartition(":")[0]


def mapping(loader: Loader, node: Node, origin: str, known: Iterable[str], what: str) -> dict[str, Node]:
    """The known keys of a mapping; what is no mapping, and every unknown key, is a problem."""
    if node.kind != "map":
        loader.wrong(place(origin, node), f"{_a(what)} is a mapping, not {node.what()}", "KEY: VALUE lines")
        return {}
    found: dict[str, Node] = {}
    for key, value in node.pairs:
        if key.text is None or key.kind != "scalar":
            continue
        if key.text in known:
            found.setdefault(key.text, value)
        else:
            loader.wrong(place(origin, key), f"unknown key {key.text!r} in {_a(what)}", nearest(key.text, known))
    return found


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown word: the known one that is like it, or all of them."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def word(loader: Loader, top: dict[str, Node], key: str, origin: str, root: Node) -> str:
    """The text of a key that must be there."""
    node = top.get(key)
    if node is None or node.kind != "scalar" or not node.text:
        where = f"{origin}:{(node or root).line}"
        loader.wrong(where, f"{key} is missing or not one line of text", f"{key}: a word or a sentence")
        return ""
    return node.text


def lines(loader: Loader, node: Node, origin: str) -> list[Line]:
    """Every setting of one file."""
    lines: list[Line] = []
    if node.kind != "map":
        loader.wrong(place(origin, node), f"settings is a mapping, not {node.what()}", "KNOB: {TARGET: VALUE}")
    places: dict[tuple[str, str], int] = {}
    for key, targets in node.pairs:
        knob = BY_NAME.get(key.text or "")
        if knob is None:
            loader.wrong(place(origin, key), f"no knob {key.text!r}", nearest(key.text or "", BY_NAME))
            continue
        if targets.kind != "map":
            loader.wrong(place(origin, targets), f"{knob.name} is a mapping of targets", "TARGET: VALUE")
        for target, value in targets.pairs:
            if target.kind != "scalar" or target.text is None:
                continue
            line = line_of(loader, knob, target, value, origin)
            if line and line.setting:
                at = line.setting.at
                if at in places and places[at] != target.line:
                    what = f"{at[0]} {at[1]} is given twice, first on line {places[at]}"
                    loader.wrong(line.where, what, "keep one of the two")
                places.setdefault(at, target.line)
                lines.append(line)
    return lines


def line_of(loader: Loader, knob: Knob, target: Node, node: Node, origin: str) -> Line | None:
    """One target's line, or None where it cannot be one."""
    where = place(origin, target)
    try:
        name = knob.canonical(target.text or "")
    except BadValue as bad:
        loader.wrong(where, bad.what, bad.hint)
        return None
    keys = {key.text for key, _ in node.pairs}
    if node.kind == "map" and not keys & set(LINE) and _is_value(knob, name, node):
        loader.wrong(where, f"{knob.name} {name}: a record stands under value", "TARGET: {value: {FIELD: VALUE, ...}}")
        return None
    parts = mapping(loader, node, origin, LINE, "setting") if node.kind == "map" and keys else {"value": node}
    blank = Setting(knob.name, name, name, Want("value", None), where, "", "", layer=loader.layers)
    line = Line(None, where, _truth(loader, parts.get("required"), origin), _gate(loader, parts.get("gate"), origin))
    if _truth(loader, parts.get("unset"), origin):
        if set(parts) != {"unset"}:
            loader.wrong(where, "unset stands alone", "TARGET: {unset: true}")
        line.setting = replace(blank, origin="")
        return line
    want = want_of(loader, knob, name, parts, where)
    if want is None:
        return None
    why = _text(loader, parts.get("why"), origin) or f"set by {where}"
    source = _text(loader, parts.get("source"), origin) or f"set by {where}"
    line.setting = replace(blank, want=want, why=why, source=source, via=_via(loader, knob, parts.get("via"), origin))
    return line


def _is_value(knob: Knob, target: str, node: Node) -> bool:
    """Whether the mapping is a value of the knob itself, its fields where a setting's keys belong."""
    try:
        knob.parse(target, node.raw())
    except BadValue:
        return False
    return True


def want_of(loader: Loader, knob: Knob, target: str, parts: dict[str, Node], where: str) -> Want | None:
    """The Want of one line, or None with a problem noted."""
    kinds = [kind for kind in WANT_KINDS if kind in parts]
    if len(kinds) != 1:
        what = "no value" if not kinds else f"{' and '.join(kinds)} together"
        loader.wrong(where, f"{knob.name} {target}: {what}", f"exactly one of {', '.join(WANT_KINDS)}")
        return None
    kind, node = kinds[0], parts[kinds[0]]
    if kind == "one_of" and (node.kind != "list" or not node.items):
        loader.wrong(where, f"{knob.name} {target}: one_of is a list of values", "one_of: [FIRST, SECOND]")
        return None
    values: list[Value] = []
    for choice in node.items if kind == "one_of" else [node]:
        try:
            values.append(_ordered(knob, kind, knob.parse(target, choice.raw())))
        except BadValue as bad:
            loader.wrong(place(origin_of(where), choice), f"{knob.name} {target}: {bad.what}", bad.hint)
            return None
    return Want(kind, tuple(values) if kind == "one_of" else values[0])


def _ordered(knob: Knob, kind: WantKind, value: Value) -> Value:
    """A bound needs numbers; a key that is not in a table keeps its text until a host shows what it is."""
    if not knob.bounds and kind in ("at_least", "at_most"):
        raise BadValue(f"{kind} says nothing here", "use value or one_of")
    leaves = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
    if kind in ("at_least", "at_most"):
        words = [leaf for leaf in leaves if not isinstance(leaf, int)]
        if any(w is None or not str(w).replace(" ", "").lstrip("-").isalnum() or str(w)[:1].isalpha() for w in words):
            raise BadValue(f"{kind} needs a number", "use value or one_of for a word")
    return value


def _truth(loader: Loader, node: Node | None, origin: str) -> bool | None:
    if node is None:
        return None
    if node.kind != "scalar" or node.text not in ("true", "false"):
        loader.wrong(place(origin, node), f"{node.text!r} is neither true nor false", "write true or false")
        return None
    return node.text == "true"


def _gate(loader: Loader, node: Node | None, origin: str) -> str | None:
    if node is None:
        return None
    if node.kind != "scalar" or node.text not in GATES:
        loader.wrong(place(origin, node), f"{node.text!r} is no gate", f"one of {', '.join(GATES)}")
        return None
    return node.text


def _via(loader: Loader, knob: Knob, node: Node | None, origin: str) -> str:
    if node is None:
        return ""
    if not knob.ways:
        loader.wrong(place(origin, node), f"{knob.name} is written in one way only", "take via out")
    elif node.kind != "scalar" or node.text not in knob.ways:
        loader.wrong(
            place(origin, node), f"via {node.text!r} is no way to {knob.name}", f"one of {', '.join(knob.ways)}"
        )
    return node.text or ""


def _text(loader: Loader, node: Node | None, origin: str) -> str:
    if node is None:
        return ""
    if node.kind != "scalar" or node.text is None:
        loader.wrong(place(origin, node), "why and source are text", "a sentence in quotes")
        return ""
    return " ".join(node.text.split())


def lay(loader: Loader, line: Line, settings: dict[tuple[str, str], Setting]) -> None:
    """Lays one line over what was inherited."""
    setting = line.setting
    if setting is None:
        return
    former = settings.get(setting.at)
    if not setting.origin:
        if former is None:
            loader.wrong(line.where, f"{setting.knob} {setting.target} is not inherited", "take the unset out")
        settings.pop(setting.at, None)
        return
    required = line.required if line.required is not None else bool(former and former.required)
    gate = line.gate if line.gate is not None else (former.gate if former else "")
    settings.pop(setting.at, None)
    settings[setting.at] = replace(setting, required=required, gate=gate, layer=loader.layers)
