"""Outputs that are trees: indented `KEY: value` lines, and JSON, both as nodes. Keys may repeat; they keep their order.

An indented text looks like YAML and is none: amd-smi repeats POLICY_ID in one mapping, nvidia-smi gives HW Slowdown
both a value and lines below it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tuner.probes import cells

LINE = re.compile(r"(\s*)(\S.*?)\s*:(?:\s+(.*?))?\s*")
KEY = re.compile(r'\s*("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*")\s*:\s*')
SPACE, SEPARATOR = re.compile(r"\s*"), re.compile(r"\s*[,\]}]")
DEEPEST = 40


@dataclass
class Node:
    """A key, its text ("" where it has none), and what lies below it."""

    key: str
    text: str = ""
    below: list[Node] = field(default_factory=list)

    def get(self, *path: str) -> Node:
        """The node at a path of keys in small letters; an empty one where there is none, or two that differ."""
        node = self
        for part in path:
            found = [child for child in node.below if child.key.lower() == part]
            if not found or any((one.text, one.below) != (found[0].text, found[0].below) for one in found):
                return Node(part)
            node = found[0]
        return node

    def word(self, *path: str) -> str | None:
        """Its text as a word."""
        return cells.word(self.get(*path).text)

    def whole(self, *path: str, unit: str = "") -> int | None:
        """Its text as a whole number."""
        return cells.whole(self.get(*path).text, unit)

    def real(self, *path: str, unit: str = "") -> float | None:
        """Its text as a number."""
        return cells.real(self.get(*path).text, unit)

    def leaves(self, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
        """Every text below, with its path."""
        for child in self.below:
            here = f"{path}/{child.key}" if path else child.key
            if child.text:
                yield here, child.text
            if depth < DEEPEST:
                yield from child.leaves(here, depth + 1)


def indented(rows: list[str]) -> list[Node]:
    """The lines as nodes: a line is below the nearest one above it that is indented less."""
    top = Node("")
    open_: list[tuple[int, Node]] = [(-1, top)]
    for row in rows:
        if not row.strip():
            continue
        found = LINE.fullmatch(row.expandtabs(8))
        depth = len(row.expandtabs(8)) - len(row.expandtabs(8).lstrip())
        node = Node(found.group(2), found.group(3) or "") if found else Node(row.strip())
        while open_[-1][0] >= depth:
            open_.pop()
        if len(open_) <= DEEPEST:
            open_[-1][1].below.append(node)
            open_.append((depth, node))
    return top.below


def documents(text: str) -> tuple[list[Any], list[str], bool]:
    """The JSON documents in an output, the lines around them, and whether the last document is cut.

    Of one that is cut, what is whole of its outermost list or mapping is given.
    """
    plain = cells.CONTROL.sub("", text).replace("\r\n", "\n")
    found: list[Any] = []
    noise: list[str] = []
    place, cut = 0, False
    while place < len(plain):
        start = next(at for at in range(place, len(plain) + 1) if not plain[at : at + 1].isspace())
        ends = plain.find("\n", start)
        stop = len(plain) if ends < 0 else ends
        value, after, partly = (
            _document(plain, start) if plain[start : start + 1] in ("{", "[") else (None, stop, False)
        )
        if value is None:
            noise.append(plain[start:stop])
            place = stop + 1
        else:
            found.append(value)
            place, cut = after, cut or partly
    return found, [line for line in noise if line.strip()], cut


def _document(text: str, start: int) -> tuple[Any, int, bool]:
    """A document that starts there, where it ends, and whether it is cut; None where there is none."""
    try:
        value, end = DECODER.raw_decode(text, start)
        return value, end, False
    except RecursionError:
        return None, start + 1, False
    except ValueError:
        part = _part(text, start)
        return (part, len(text), True) if part else (None, start + 1, False)


def _part(text: str, start: int, depth: int = 0) -> Any:
    """What is whole of a list or a mapping that does not end; of a number nobody knows whether it is."""
    mapping = text[start] == "{"
    pairs: list[tuple[str, Any]] = []
    place = start + 1
    while found := (KEY if mapping else SPACE).match(text, place):
        key = json.loads(found.group(1)) if mapping else ""
        value, place, whole = _member(text, found.end(), depth)
        ended = SEPARATOR.match(text, place)
        if value is not None and (ended or not whole or isinstance(value, (list, dict, str))):
            pairs.append((key, value))
        if not whole or ended is None:
            break
        place = ended.end()
    return _pairs(pairs) if mapping else [value for _, value in pairs]


def _member(text: str, place: int, depth: int) -> tuple[Any, int, bool]:
    """A value, where it ends, and whether it is whole; None for what is none."""
    try:
        value, end = DECODER.raw_decode(text, place)
    except (ValueError, RecursionError):
        inner = text[place : place + 1] in ("{", "[") and depth < DEEPEST
        return (_part(text, place, depth + 1) or None) if inner else None, len(text), False
    return "" if value is None else value, end, True


class Repeated(list[Any]):
    """The values of a key that a mapping has more than once."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made and made[key] != value:
            made[key] = Repeated([*(made[key] if isinstance(made[key], Repeated) else [made[key]]), value])
        else:
            made[key] = value
    return made


DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=lambda word: word)


def nodes(value: Any, key: str = "", depth: int = 0) -> list[Node]:
    """JSON as nodes: {"value": 10, "unit": "W"} is the text `10 W`; members of a list have the list's key."""
    if depth > DEEPEST:
        return []
    if isinstance(value, Repeated):
        return [node for one in value for node in nodes(one, key, depth + 1)]
    if isinstance(value, list):
        rows = [node for one in value for node in nodes(one, key, depth + 1)]
        return [Node(key, "", rows)] if depth else rows
    if isinstance(value, dict):
        if set(value) == {"value", "unit"}:
            return [Node(key, f"{_scalar(value['value'])} {_scalar(value['unit'])}".strip())]
        return [Node(key, "", [node for name, one in value.items() for node in nodes(one, str(name), depth + 1)])]
    return [Node(key, _scalar(value))]


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return "" if value is None or isinstance(value, (dict, list)) else str(value)
