"""Entries of the Boot Loader Specification, as GRUB's blscfg and systemd-boot read them, and unified kernel images.

https://uapi-group.org/specifications/specs/boot_loader_specification/ and unified_kernel_image/; loader.conf(5),
systemd-boot(7); in Fedora's GRUB grub-core/commands/blsuki.c (blscfg.c before). Order: rpm's lib/rpmvercmp.c.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cmp_to_key

from tuner.host.door import Host

ENTRIES = "loader/entries"
SEGMENT = re.compile(r"[0-9]+|[A-Za-z]+|~|\^")
MARKS, END = {"~": 0, "^": 2}, 1
HEAD = 4096
"""Bytes that hold the table of sections of a PE file."""

LARGEST = 8 * 1024 * 1024
"""Bytes of an image up to the end of its boot line that are read."""


@dataclass(frozen=True)
class Snippet:
    """A file LOADER/entries/ID.conf: its keys, and the line on which its options begin."""

    id: str
    path: str
    keys: dict[str, str]
    line: int


def snippets(host: Host, folder: str) -> list[Snippet]:
    """The entries in a folder, the newest first by their file names; OSError and Unrecorded are passed on."""
    found = [_snippet(host, f"{folder}/{name}") for name in host.list(folder) if name.endswith(".conf")]
    return sorted(found, key=lambda one: ordered(one.id), reverse=True)


def _snippet(host: Host, path: str) -> Snippet:
    keys: dict[str, str] = {}
    first = 0
    for number, line in enumerate(host.text(path).splitlines(), 1):
        key, _, value = line.strip().replace("\t", " ").partition(" ")
        if not key or key.startswith("#"):
            continue
        if key == "options":
            first = first or number
            value = f"{keys.get(key, '')} {value.strip()}".strip()
        keys[key] = value.strip()
    return Snippet(path.rpartition("/")[2].removesuffix(".conf"), path, keys, first)


def compare(one: str, other: str) -> int:
    """rpmvercmp: below 0 where `one` is the older, 0 where they are equal."""
    if one == other:
        return 0
    first, second = _ranks(one), _ranks(other)
    return (first > second) - (first < second)


def _ranks(text: str) -> list[tuple[int, int, str]]:
    """Segments in a form that compares as rpm does: ~ before the end, then ^, letters, and digits by their number."""
    found: list[tuple[int, int, str]] = []
    for part in SEGMENT.findall(text):
        if part in MARKS:
            found.append((MARKS[part], 0, ""))
        else:
            found.append((4, int(part), "") if part.isdigit() else (3, 0, part))
    return [*found, (END, 0, "")]


ordered = cmp_to_key(compare)


class NoLine(Exception):
    """Why an image tells no boot line."""


def image_line(host: Host, path: str) -> str:
    """The boot line inside a unified kernel image: its section .cmdline; NoLine where it has none or hides it."""
    head = host.head(path, HEAD)
    try:
        (start,) = struct.unpack_from("<I", head, 0x3C)
        if head[:2] != b"MZ" or head[start : start + 4] != b"PE\0\0":
            raise NoLine(f"{path} is no PE file")
        (count,) = struct.unpack_from("<H", head, start + 6)
        (optional,) = struct.unpack_from("<H", head, start + 20)
        table = start + 24 + optional
        for section in range(min(count, 96)):
            at = table + 40 * section
            if head[at : at + 8].rstrip(b"\0") == b".cmdline":
                virtual, _, raw, offset = struct.unpack_from("<IIII", head, at + 8)
                return _section(host, path, offset, min(virtual, raw))
    except struct.error:
        raise NoLine(f"{path} is no PE file, or has too many sections") from None
    raise NoLine(f"{path} has no boot line inside")


def _section(host: Host, path: str, offset: int, size: int) -> str:
    if offset + size > LARGEST:
        raise NoLine(f"{path} has its boot line further in than is read")
    data = host.head(path, offset + size)[offset:]
    if len(data) < size:
        raise NoLine(f"{path} ends before its boot line")
    return data.decode("utf-8", "surrogateescape").rstrip("\0").strip()
