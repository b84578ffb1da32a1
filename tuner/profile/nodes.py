"""YAML as nodes with line numbers, so that every error of a file can be reported at once with its place.

Scalars stay as they are written (`on`, `010` and `1:30` are text): the knob says what they mean. Aliases, tags and
deep nesting are refused: no profile needs them, and they are what hostile files are made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from tuner.errors import Problem, TunerError, bad_input
from tuner.knobs.base import Raw

DEEPEST = 12
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NULLS = ("", "~", "null", "Null", "NULL")


@dataclass
class Node:
    """A scalar (`text`), a list (`items`) or a mapping (`pairs`), with the line it starts on, counted from 1."""

    kind: str
    line: int
    text: str | None = None
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)

    def raw(self) -> Raw:
        """The node without its lines."""
        if self.kind == "list":
            return [item.raw() for item in self.items]
        if self.kind == "map":
            return {key.text or "": value.raw() for key, value in self.pairs}
        return self.text

    def what(self) -> str:
        """The kind of node in words."""
        return {"list": "a list", "map": "a mapping"}.get(self.kind, "a single value")


def load(data: bytes, origin: str) -> tuple[Node, list[Problem]]:
    """The one document in `data` and the problems that do not stop the reading (duplicate keys).

    Raises TunerError for what cannot be read as nodes: no UTF-8, no YAML, empty, several documents, aliases, tags.
    """
    text = _decoded(data, origin)
    problems: list[Problem] = []
    root = Node("list", 1)
    open_nodes = [root]
    try:
        for event in yaml.parse(text, Loader=LOADER):
            problem = _take(event, open_nodes, origin)
            if problem:
                problems.append(problem)
            if len(open_nodes) > DEEPEST:
                raise bad_input(f"{origin}:{_line(event)}", "nested too deeply", "a profile has four levels")
    except yaml.YAMLError as error:
        raise _syntax(error, origin, text) from None
    except RecursionError:
        raise bad_input(f"{origin}:1", "nested too deeply", "a profile has four levels") from None
    if len(root.items) != 1:
        what = "the file is empty" if not root.items else "more than one YAML document"
        raise TunerError([*problems, Problem(f"{origin}:1", what, "one profile in one document")])
    return root.items[0], [*problems, *_duplicates(root.items[0], origin)]


def _decoded(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise bad_input(
            f"{origin}:{line}", f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8"
        ) from None


def _take(event: Any, open_nodes: list[Node], origin: str) -> Problem | None:
    """Adds what the event says to the tree; a Problem for what profiles do not use."""
    line = _line(event)
    if isinstance(event, yaml.AliasEvent):
        _add(open_nodes[-1], Node("scalar", line, ""))
        return Problem(f"{origin}:{line}", f"*{event.anchor}: aliases are not used in profiles", "write the value out")
    if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
        open_nodes.pop()
        return None
    if isinstance(event, yaml.ScalarEvent):
        plain = event.style is None or event.style == ""
        _add(open_nodes[-1], Node("scalar", line, None if plain and event.value in NULLS else event.value))
    elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
        node = Node("list" if isinstance(event, yaml.SequenceStartEvent) else "map", line)
        _add(open_nodes[-1], node)
        open_nodes.append(node)
    else:
        return None
    if event.tag is not None and event.tag != "!":
        return Problem(f"{origin}:{line}", f"{event.tag}: tags are not used in profiles", "leave the tag out")
    return None


def _add(parent: Node, child: Node) -> None:
    if parent.kind == "list":
        parent.items.append(child)
    elif parent.pairs and parent.pairs[-1][1] is _OPEN:
        parent.pairs[-1] = (parent.pairs[-1][0], child)
    else:
        parent.pairs.append((child, _OPEN))


_OPEN = Node("scalar", 0)


def _duplicates(node: Node, origin: str) -> Iterator[Problem]:
    seen: dict[str | None, int] = {}
    for key, value in node.pairs:
        where = f"{origin}:{key.line}"
        if key.kind != "scalar" or key.text is None:
            yield Problem(where, f"{key.what()} is no key", "a key is one word")
        elif key.text in seen:
            yield Problem(where, f"{key.text} is given twice, first on line {seen[key.text]}", "keep one of the two")
        else:
            seen[key.text] = key.line
        yield from _duplicates(value, origin)
    for item in node.items:
        yield from _duplicates(item, origin)


def _syntax(error: yaml.YAMLError, origin: str, text: str) -> TunerError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    control = next((place for place, c in enumerate(text) if not c.isprintable() and c not in "\n\t\r"), None)
    if isinstance(error, yaml.reader.ReaderError) and control is not None:
        line = text.count("\n", 0, control) + 1
    else:
        line = mark.line + 1 if mark else 1
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).partition("\n")[0]
    return bad_input(f"{origin}:{line}", f"not YAML: {what}", "check indentation, quotes and colons on that line")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
