"""Lines of sysctl files as the two programs that apply them read them.

sysctl.d(5), src/sysctl/sysctl.c, src/basic/sysctl-util.c and fileio.c of systemd 252; sysctl.conf(5) and src/sysctl.c
of procps-ng 4.0.2. Keys here are paths below /proc/sys, such as `net/ipv4/conf/bond0.10/rp_filter`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

SYSTEMD, PROCPS = "systemd-sysctl", "sysctl --system"

LONGEST = 1024 * 1024
"""Bytes of a line at which systemd gives a file up; what stands before that line counts. LONG_LINE_MAX in fileio.h."""

BLANKS = " \t\n\r"
SPACES = " \t\n\v\f\r"
"""What systemd strips (WHITESPACE), and what C's isspace(3) strips for procps."""

MARKS = "*?["
UNCLEAR = re.compile(r"[\\{]|\[[:.=]")
"""Escapes, braces and classes in a pattern: not followed here, so that a key they may match is not predicted."""

LINE = re.compile(rb"([^\n\r\0]*)((?:\n\r?|\r\n?)\0?|\0|\Z)")


@dataclass(frozen=True)
class Line:
    """One line that speaks of a key: `text` is what it assigns, None for `-KEY`, which keeps patterns off the key.

    `at` counts all lines that an applier reads, over all files, in its order.
    """

    key: str
    text: str | None
    path: str
    number: int
    at: int

    @property
    def where(self) -> str:
        """FILE:LINE."""
        return f"{self.path}:{self.number}"

    @property
    def pattern(self) -> bool:
        """Whether the key has a wildcard."""
        return any(mark in self.key for mark in MARKS)


@dataclass(frozen=True)
class Junk:
    """A line that the applier cannot use, and why."""

    number: int
    why: str


def path_of(key: str) -> str:
    """The path below /proc/sys: the first separator decides what dots and slashes mean."""
    first = next((c for c in key if c in "./"), "/")
    return key.translate(str.maketrans("./", "/.")) if first == "." else key


def parse(applier: str, data: bytes) -> Iterator[tuple[int, str, str | None] | Junk]:
    """(line, key, text) of each line that is used, and Junk for each that is not; comments and blanks are left out."""
    return _systemd(data) if applier == SYSTEMD else _procps(data)


def _systemd(data: bytes) -> Iterator[tuple[int, str, str | None] | Junk]:
    for number, found in enumerate(LINE.finditer(data), 1):
        if len(found[1]) >= LONGEST:
            yield Junk(number, "longer than 1 MiB: systemd reads no further")
            return
        line = _decoded(found[1]).strip(BLANKS)
        if not line or line[0] in "#;":
            continue
        key, assigns, text = line.partition("=")
        if not assigns and line[0] != "-":
            yield Junk(number, "not an assignment")
            continue
        key = _simple(path_of(key.removeprefix("-").strip(BLANKS)))
        yield number, key, text.strip(BLANKS) if assigns else None


def _procps(data: bytes) -> Iterator[tuple[int, str, str | None] | Junk]:
    for number, raw in enumerate(re.findall(rb"[^\n]*\n|[^\n]+\Z", data), 1):
        line = _decoded(raw.partition(b"\0")[0]).lstrip(SPACES)
        if len(raw) < 2 or len(line.encode("utf-8", "surrogateescape")) < 2 or line[0] in "#;":
            continue
        key, assigns, text = line.partition("=")
        if not assigns and line[0] != "-":
            yield Junk(number, "not an assignment")
            continue
        # a second dash is dropped too: setting_new() takes one off by itself
        key = path_of(key.removeprefix("-").rstrip(SPACES).removeprefix("-"))
        yield number, key, text.strip(SPACES) if assigns else None


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _simple(path: str) -> str:
    """Without doubled, leading and trailing slashes and without `.`: path_simplify() of systemd."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


# Patterns: glob(3) of the pattern, asked the other way round, whether one path is among its results


@lru_cache(maxsize=4096)
def _component(pattern: str) -> re.Pattern[str]:
    """One component of a pattern; `^` negates as `!` does."""
    return re.compile(translate(re.sub(r"\[\^", "[!", pattern)))


def expands_to(pattern: str, key: str) -> str | None:
    """How glob(3) names `key` among the results of `pattern`; None where it is none of them.

    Components without a wildcard stay as they are written, so that a doubled slash is kept.
    """
    wanted = key.split("/")
    made: list[str] = []
    for part in pattern.split("/"):
        if part in ("", "."):
            made.append(part)
            continue
        if not wanted:
            return None
        name = wanted.pop(0)
        if not _component(part).match(name):
            return None
        made.append(name)
    return None if wanted else "/".join(made)


def unclear(pattern: str, key: str) -> bool:
    """Whether the pattern has what is not followed here, and might match the key by its plain start and end."""
    if not UNCLEAR.search(pattern):
        return False
    start, end = re.split(r"[*?\[\\{]", pattern, maxsplit=1)[0], re.split(r"[*?\]\\}]", pattern)[-1]
    return key.startswith(start) and (key.endswith(end) or bool(set(end) & set("[{")))


def real(written: str) -> str:
    """The file below /proc/sys that a path, kept as it is written, leads to; empty where it leads to no file.

    Whether `..` leads anywhere depends on what is there: such a path is answered as if it did.
    """
    if written.endswith(("/", "/.", "/..")):
        return ""
    parts: list[str] = []
    for part in written.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
