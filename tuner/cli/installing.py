"""Files that are put on a host for good: who may start them, where they lie, and telling systemd of them."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tuner import unitfiles
from tuner.boot import units
from tuner.errors import Exit, Problem, TunerError, bad_input
from tuner.host import Host, Unrecorded
from tuner.host.shell import run

TIMEOUT = 90.0
"""Seconds for systemd or udev to read everything again."""
SHOW = 10.0
"""Seconds for systemd to say how units stand, and for an interpreter to find tuner."""
SAFE = re.compile(r"/[A-Za-z0-9_./+@-]+")
"""A path that a unit file takes as it is (systemd.service(5), command lines)."""
RELOADS = (("systemctl", "daemon-reload"), ("udevadm", "control", "--reload"))


@dataclass
class Done:
    """What was written or removed, what was left alone and why, and what the system was or is still to be told."""

    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    after: list[tuple[str, str]] = field(default_factory=list)


def interpreter(host: Host, given: str | None) -> str:
    """The interpreter of the units: it is there, starts tuner by itself, and nobody but root can change it."""
    python = given or sys.executable
    if not SAFE.fullmatch(python):
        raise bad_input(
            "--python", f"{python!r} is no absolute path that a unit file takes", "such as /opt/tuner-venv/bin/python"
        )
    hint = "--python FILE: the Python of the host itself that has tuner"
    if host.kind != "recorded" and not there(host, python):
        raise bad_input(python, f"is not there on {host}", hint)
    if host.kind == "live":
        for path in {python, os.path.realpath(python), str(Path(unitfiles.__file__).parent)}:
            _trusted(host, path)
        ran = run([python, "-I", "-c", "import tuner.cli"], SHOW)
        if ran.failure:
            raise bad_input(
                python, "does not find tuner by itself", "install it: pip install, not a checkout on the path"
            )
    return python


def _trusted(host: Host, path: str) -> None:
    while True:
        status = host.stat(path)
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or (status.st_mode & 0o022 and not sticky):
            hint = "install tuner as root where only root writes, such as /opt/tuner"
            raise bad_input(path, "can be changed by others than root, and a unit would run it as root", hint)
        if path == "/":
            return
        path = posixpath.dirname(path)


def there(host: Host, path: str) -> bool:
    """Whether anything is at that path, a link to nowhere included."""
    try:
        host.stat(path, follow=False)
    except (OSError, Unrecorded):
        return False
    return True


def parents(host: Host, path: str) -> None:
    """Makes the directories above that are not there, or that a recorded host does not know."""
    folder = posixpath.dirname(path)
    if not there(host, folder):
        parents(host, folder)
        host.mkdir(folder)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """A file system that takes nothing is said, whatever was written before."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or units.FOLDER}: {error.strerror}"
        raise TunerError(Problem("", what, "once it can be written: the same command again"), Exit.UNDONE) from None


def told(host: Host, commands: list[tuple[str, ...]]) -> list[tuple[str, str]]:
    """(command, why it is still to do; empty when done). An image needs none: systemd reads the links when it boots."""
    if host.kind == "image":
        return []
    if host.kind != "live":
        return [(" ".join(words), "still to do on the host itself") for words in commands]
    return [(" ".join(words), run(list(words), TIMEOUT).failure) for words in commands]
