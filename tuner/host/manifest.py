"""A recorded host as one text, readable in a diff.

The first line is `tuner-host 1`. Then entries, sorted by path; `#` lines and blank lines between them are
comments. An entry is a kind, for most kinds an octal mode, and an absolute path:

    file 0644 /proc/sys/vm/swappiness       content as `|line`, a last line without newline as `+line`
    base64 0644 /etc/some.bin               content as base64 in `|` lines
    link 0777 /etc/os-release               where it points as `+text`
    dir 0755 /etc/sysctl.d                  the complete listing, a name per `|` line
    absent /dev/kfd                         looked for, not there
    errno EINVAL /sys/class/net/lo/speed    the read fails so

A directory without an entry of its own is implied by what lies below it; its listing is not known.
"""

from __future__ import annotations

import base64
import binascii
import errno
import posixpath
import re
from dataclasses import dataclass

from tuner.errors import bad_input

FIRST = "tuner-host 1"
MODE = re.compile(r"0?[0-7]{3,4}")
WITH_MODE = ("file", "base64", "link", "dir")
KINDS = (*WITH_MODE, "absent", "errno")


@dataclass(frozen=True)
class Entry:
    """One recorded path. `data` is a file's content or a link's text; `names` a directory's listing."""

    kind: str
    mode: int = 0
    data: bytes = b""
    names: tuple[str, ...] = ()
    errno: int = 0


@dataclass(frozen=True)
class Manifest:
    """What was recorded, by path; `implied` are the directories that only the paths below them prove."""

    entries: dict[str, Entry]
    implied: frozenset[str]


def of(entries: dict[str, Entry]) -> Manifest:
    """A manifest over `entries`."""
    above: set[str] = set()
    for path, entry in entries.items():
        parent = posixpath.dirname(path)
        while entry.kind not in ("absent",) and parent not in above:
            above.add(parent)
            parent = posixpath.dirname(parent)
    return Manifest(entries, frozenset(above - set(entries)))


def parse(text: str, origin: str) -> Manifest:
    """Reads a manifest; `origin` names it in errors. Raises TunerError (bad input) at the first bad line."""
    lines = text.split("\n")
    if lines[0] != FIRST:
        raise bad_input(f"{origin}:1", f"not a recorded host: the first line is not {FIRST!r}", "see tuner host list")
    entries: dict[str, Entry] = {}
    number = 1
    while number < len(lines):
        line = lines[number]
        number += 1
        if not line or line.startswith("#"):
            continue
        where = f"{origin}:{number}"
        start = number
        while number < len(lines) and lines[number][:1] in ("|", "+"):
            number += 1
        path, entry = _entry(line, lines[start:number], where)
        if path in entries:
            raise bad_input(where, f"{path} is recorded twice", "remove one of the two entries")
        entries[path] = entry
    return of(entries)


def _entry(line: str, body: list[str], where: str) -> tuple[str, Entry]:
    kind, _, rest = line.partition(" ")
    if kind not in KINDS:
        raise bad_input(where, f"unknown kind of entry {kind!r}", f"known: {', '.join(KINDS)}")
    word, path = ("", rest) if kind == "absent" else rest.split(" ", 1) if " " in rest else (rest, "")
    if not path.startswith("/") or path.startswith("//") or posixpath.normpath(path) != path:
        raise bad_input(where, f"not an absolute, plain path: {path!r}", "write it without '..', '//' or a final '/'")
    if kind == "absent":
        return path, Entry(kind)
    if kind == "errno":
        number = getattr(errno, word, None)
        if not isinstance(number, int):
            raise bad_input(where, f"no such errno: {word}", "names as in errno(3), such as EIO")
        return path, Entry(kind, errno=number)
    try:
        if not MODE.fullmatch(word):
            raise ValueError(f"{word} is no mode")
        mode = int(word, 8)
        content = _content(body, kind)
    except (ValueError, binascii.Error) as error:
        raise bad_input(
            where, f"bad mode or content: {error}", "a mode such as 0644, content as | or + lines"
        ) from None
    if kind == "dir":
        return path, Entry(
            kind, mode, names=tuple(n for n in content.decode("utf-8", "surrogateescape").split("\n") if n)
        )
    return path, Entry("file" if kind == "base64" else kind, mode, content)


def _content(body: list[str], kind: str) -> bytes:
    if kind == "base64":
        return base64.b64decode("".join(line[1:] for line in body), validate=True)
    if any(line.startswith("+") for line in body[:-1]):
        raise ValueError("a '+' line must be the last one")
    text = "".join(line[1:] + ("\n" if line.startswith("|") else "") for line in body)
    return text.encode("utf-8", "surrogateescape")


def render(entries: dict[str, Entry]) -> str:
    """The text of a manifest: the inverse of `parse`, sorted."""
    out = [FIRST]
    for path in sorted(entries):
        entry = entries[path]
        match entry.kind:
            case "absent":
                out.append(f"absent {path}")
            case "errno":
                out.append(f"errno {errno.errorcode[entry.errno]} {path}")
            case "dir":
                out += [f"dir {entry.mode:04o} {path}", *("|" + name for name in entry.names)]
            case "link":
                out += [f"link {entry.mode:04o} {path}", "+" + entry.data.decode("utf-8", "surrogateescape")]
            case _:
                out += _file(path, entry)
    return "\n".join(out) + "\n"


def _file(path: str, entry: Entry) -> list[str]:
    try:
        text = entry.data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if any(ord(c) < 32 and c not in "\n\t" for c in text) or "\u2028" in text:
        coded = base64.b64encode(entry.data).decode("ascii")
        return [f"base64 {entry.mode:04o} {path}", *("|" + coded[i : i + 76] for i in range(0, len(coded), 76))]
    *whole, last = text.split("\n")
    return [f"file {entry.mode:04o} {path}", *("|" + line for line in whole), *(["+" + last] if last else [])]
