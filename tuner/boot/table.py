"""The writes of one run of an applier, in order, and which of them reach a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from tuner.boot.files import Read, read_files
from tuner.boot.lines import PROCPS, SYSTEMD, Line, expands_to, real, unclear
from tuner.host.door import Host

Placed = tuple[int, Line]
"""A write and its place among all writes."""


@dataclass(frozen=True)
class Table:
    """What one run does: `entries` in order (`-KEY` among them), and everything that was read."""

    name: str
    entries: tuple[Line, ...]
    read: Read

    def reaching(self, path: str) -> list[Placed]:
        """The writes that reach the key, in order.

        A key that is named keeps patterns off, with systemd by its file, with procps by the very text of its path.
        """
        named = [(n, line) for n, line in self._plain.get(path, ()) if line.text is not None]
        if self.name == SYSTEMD:
            return named if path in self._plain else self._expanded(path)
        names = self._names
        expanded = [(n, line) for n, line in self._expanded(path) if expands_to(line.key, path) not in names]
        return sorted(named + expanded, key=lambda placed: placed[0])

    def about(self, path: str) -> list[Line]:
        """Every line that was read and speaks of the key, overridden ones too."""
        named, patterns = self._lines
        found = named.get(path, []) + [line for line in patterns if expands_to(line.key, path) is not None]
        return sorted(found, key=lambda line: line.at)

    def doubt(self, path: str) -> str:
        """Why it cannot be known what reaches the key; empty when it can."""
        named = [line for _, line in self._plain.get(path, ()) if self.name == SYSTEMD or line.text is not None]
        for doubt in self.read.doubts:
            if doubt.all or not named or named[-1].at < doubt.at:
                return doubt.why
        if named and self.name == SYSTEMD:
            return ""
        for line in named:
            if ".." in line.key.split("/"):
                return f"{line.where} names it by way of '..'"
        for line in self._lines[1]:
            if line.text is not None and unclear(line.key, path):
                return f"{line.where} has a pattern that is not followed here: {line.key}"
            if self.name == PROCPS and line.text is None and fnmatchcase(path, line.key) and self._expanded(path):
                return f"{line.where} excludes it from patterns since procps 4.0.5, not before"
        return ""

    def _expanded(self, path: str) -> list[Placed]:
        return [
            (n, line)
            for n, line in self._patterns
            if not unclear(line.key, path) and expands_to(line.key, path) is not None
        ]

    @cached_property
    def _patterns(self) -> list[Placed]:
        return [(n, line) for n, line in enumerate(self.entries) if line.pattern and line.text is not None]

    @cached_property
    def _plain(self) -> dict[str, list[Placed]]:
        """Entries without a wildcard by the file that they name."""
        found: dict[str, list[Placed]] = {}
        for n, line in enumerate(self.entries):
            if not line.pattern and (path := self._file(line)):
                found.setdefault(path, []).append((n, line))
        return found

    def _file(self, line: Line) -> str:
        """The file that the line's key leads to: systemd takes no `..`, procps takes the path as it is."""
        return line.key if self.name == SYSTEMD else real(line.key)

    @cached_property
    def _names(self) -> frozenset[str]:
        """Every key as it is written."""
        return frozenset(line.key for line in self.entries)

    @cached_property
    def _lines(self) -> tuple[dict[str, list[Line]], list[Line]]:
        """All lines: by the file that they name, and those with a wildcard."""
        named: dict[str, list[Line]] = {}
        patterns: list[Line] = []
        for line in self.read.lines:
            if line.pattern:
                patterns.append(line)
            elif path := self._file(line):
                named.setdefault(path, []).append(line)
        return named, patterns


def table(host: Host, name: str = SYSTEMD, volatile: bool = True, credential: bool = True) -> Table:
    """What a run would do, by files alone. Without `volatile`, as if /run/sysctl.d were empty."""
    read = read_files(host, name, volatile, credential)
    return Table(name, tuple(read.lines if name == PROCPS else _last(read.lines)), read)


def _last(lines: Iterable[Line]) -> Iterable[Line]:
    """One line for each key: a repeated value keeps its early place, another value moves to the end."""
    kept: dict[str, Line] = {}
    for line in lines:
        if line.key in kept and kept[line.key].text != line.text:
            del kept[line.key]
        kept[line.key] = line
    return kept.values()
