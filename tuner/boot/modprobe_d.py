"""What modprobe.d and a boot line give a parameter of a module: modprobe.d(5), kmod's libkmod/libkmod-config.c.

Of files with one name that of the strongest folder is read (/etc, /run, /usr/local/lib, /usr/lib, /lib), all in the
order of their names, the kernel's boot line last; of several assignments to one parameter the last wins. A target is
MODULE/PARAMETER; `-` and `_` are the same in both.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tuner.boot.unit_files import listed
from tuner.host.door import Host, Unrecorded

FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
LASTING = tuple(folder for folder in FOLDERS if not folder.startswith("/run/"))
"""Those that a reboot keeps."""

TOKEN = re.compile(r'([^\s="]+)(?:=((?:"[^"]*"|[^\s"])*))?')


class Place(NamedTuple):
    """An assignment: FILE:LINE and what it sets; `masked` is a file of a stronger folder with the same name."""

    where: str
    text: str
    masked: str = ""


def files(host: Host, target: str, folders: Sequence[str] = FOLDERS) -> list[Place]:
    """Every assignment to the parameter in modprobe.d, in the order in which they are made, masked files first."""
    found: dict[str, str] = {}
    masked: list[Place] = []
    for folder in folders:
        with contextlib.suppress(OSError, Unrecorded):
            if folder.startswith("/lib/") and host.link("/lib"):
                continue  # /usr/lib once more
        for name in listed(host, folder):
            path = f"{folder}/{name}"
            if name in found:
                masked += [Place(*pair, found[name]) for pair in _assigned(host, path, target)]
            elif name.endswith(".conf"):
                found[name] = path
    places = [Place(*pair) for name in sorted(found) for pair in _assigned(host, found[name], target)]
    return [*masked, *places]


def _assigned(host: Host, path: str, target: str) -> Iterator[tuple[str, str]]:
    """(FILE:LINE, value) of the lines `options MODULE ... PARAMETER=VALUE`; a name alone switches on."""
    module, _, parameter = target.partition("/")
    for place, line in _numbered(_content(host, path)):
        head = line.split(None, 2)
        if len(head) == 3 and head[0] == "options" and _same(head[1], module):
            for name, value in _tokens(head[2]):
                if _same(name, parameter):
                    yield f"{path}:{place}", value


def _content(host: Host, path: str) -> str:
    """The file's text; a link to /dev/null or to nothing sets nothing."""
    with contextlib.suppress(OSError):
        if posixpath.basename(host.link(path)) == "null":
            return ""
    try:
        return host.text(path)
    except FileNotFoundError:
        return ""


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each line; a backslash at its end carries it on."""
    first, whole = 1, ""
    for place, line in enumerate(text.split("\n"), 1):
        whole += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, whole
            first, whole = place + 1, ""


def on_line(line: str, target: str) -> Iterator[str]:
    """Its values on a boot line."""
    module, _, parameter = target.partition("/")
    for name, value in _tokens(line):
        owner, _, own = name.partition(".")
        if _same(owner, module) and _same(own, parameter):
            yield value


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """NAME=VALUE words, without quotes; a name alone is a switch that is on."""
    for found in TOKEN.finditer(text):
        yield found.group(1), "Y" if found.group(2) is None else found.group(2).replace('"', "")


def _same(one: str, other: str) -> bool:
    return one.replace("-", "_") == other.replace("-", "_")
