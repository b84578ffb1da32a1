"""The units of systemd that make settings so again: what they are called, whose they are, and whether they will run.

systemd.unit(5): a file in /etc wins over all others, a link to /dev/null or an empty file masks, and a link in
TARGET.wants/ enables.
"""

from __future__ import annotations

import re

from tuner.host.door import Host, Unrecorded

APPLY = "tuner-apply.service"
FOLDER = "/etc/systemd/system"
TARGET = "multi-user.target"
"""Whose start wants ours. Every way up to where jobs run passes it (bootup(7))."""
WANTED = f"{FOLDER}/{TARGET}.wants/{APPLY}"

VERSION = 1
"""Of the texts that this release installs; one more for each change of what a unit does."""
OLDEST = 1
"""The oldest version of tuner-apply.service that still does what this release promises of the next boot."""

HEADER = re.compile(r"# Written by tuner, units (\d{1,6})(?: .*)?")
EXECUTED = re.compile(r"^ExecStart=(/\S+) -I -m tuner ", re.MULTILINE)
INSTALL = "tuner persist install"


def header(what: str) -> str:
    """The first line of a file of ours."""
    return f"# Written by tuner, units {VERSION} (tuner persist install): {what}"


def version(text: str) -> int | None:
    """The version of a text of ours; None for a text that is not."""
    found = HEADER.fullmatch(text.partition("\n")[0])
    return int(found.group(1)) if found else None


def interpreter(text: str) -> str:
    """The Python that a unit of ours starts; empty when it starts none."""
    found = EXECUTED.search(text)
    return found.group(1) if found else ""


def masked(host: Host, path: str) -> bool:
    """Whether a unit file only says that there shall be no such unit."""
    try:
        return host.link(path) == "/dev/null"
    except OSError:
        pass
    try:
        return not host.filled(path)
    except OSError:  # a folder or a pipe: no unit, and not masked
        return False


def unarmed(host: Host) -> str:
    """Why tuner-apply.service will not run at the next boot, or not as this release means it; empty when it will."""
    path = f"{FOLDER}/{APPLY}"
    try:
        host.stat(path, follow=False)
        if masked(host, path):
            return f"{APPLY} is masked: systemctl unmask {APPLY}, then {INSTALL}"
        why = _useless(host, host.text(path))
        if why:
            return why
        host.stat(WANTED, follow=False)
    except Unrecorded as gap:
        return str(gap)
    except (FileNotFoundError, NotADirectoryError):
        return f"no {APPLY}: {INSTALL}"
    except OSError as error:
        return f"{APPLY} cannot be read: {error.strerror}"
    return ""


def _useless(host: Host, text: str) -> str:
    """Why a unit of that name does not do what ours does."""
    found = version(text)
    if found is None:
        return f"{APPLY} is not tuner's own: move it away, then {INSTALL}"
    if found < OLDEST:
        return f"{APPLY} is of an older release: {INSTALL}"
    python = interpreter(text)
    if not python:
        return f"{APPLY} was changed and starts no tuner: {INSTALL}"
    if host.kind != "recorded" and not host.exists(python):
        return f"{APPLY} starts {python}, which is not there: {INSTALL}"
    return ""
