"""The sysctl files of a host in the order in which they are applied: sysctl.d(5), conf-files.c of systemd, procps-ng.

Files are ordered by name over all directories; of those with one name the first directory's is taken, whatever it is,
so that an empty file or a link to /dev/null masks the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from tuner.boot.lines import PROCPS, SYSTEMD, Junk, Line, parse, real
from tuner.host.door import Host, Unrecorded

VOLATILE = "/run/sysctl.d"
FOLDERS = ("/etc/sysctl.d", VOLATILE, "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
UNMERGED = "/lib/sysctl.d"
"""Read last where /lib is a directory of its own."""

MAIN = "/etc/sysctl.conf"
"""Read last by procps; by systemd only through a link in sysctl.d, which Debian 12 ships and Debian 13 does not."""

STORES = ("/run/credentials/@system", "/etc/credstore", "/usr/local/lib/credstore", "/usr/lib/credstore")
CREDENTIAL = "sysctl.extra"
"""systemd.exec(5), LoadCredential=: the first store that has it. The service reads it after all files, since v252."""

ENCRYPTED = ("/run/credentials/@encrypted", "/etc/credstore.encrypted", "/usr/lib/credstore.encrypted")
"""Stores whose content only the host's own key opens."""

NULL = os.makedev(1, 3)
NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
"""Errors that the applier meets as well: it goes on without the file."""


@dataclass(frozen=True)
class Doubt:
    """What could not be looked into: lines of any key may be hidden there. `at` is the place in the order of lines.

    `all` says that nothing can be known then, not even for keys that later files set.
    """

    why: str
    at: int
    all: bool = False


@dataclass
class Read:
    """All lines in the order of reading, what could not be looked into, and lines or files that are of no use."""

    lines: list[Line] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """What a file gives to an applier. `hidden` says why we cannot know; `problem` why there is nothing in it."""

    data: bytes = b""
    hidden: str = ""
    problem: str = ""
    hangs: bool = False


def read_files(host: Host, applier: str = SYSTEMD, volatile: bool = True, credential: bool = True) -> Read:
    """Reads every file once. Without `volatile`, as if /run/sysctl.d were empty, which it is after a reboot.

    Without `credential`, as systemd before 252 does it.
    """
    found = Read()
    for path in _paths(host, applier, volatile, found):
        _take(found, applier, path, _content(host, path))
    if applier == SYSTEMD and credential:
        _credential(host, found)
    return found


def volatile_names(host: Host) -> list[str]:
    """What lies in /run/sysctl.d: a file there can also hide one of the same name elsewhere."""
    try:
        return [name for name in host.list(VOLATILE) if name.endswith(".conf")]
    except (OSError, Unrecorded):
        return []


def main_lines(host: Host) -> dict[str, Line]:
    """The last line of /etc/sysctl.conf for each key, whoever reads that file."""
    found = Read()
    if _regular(host, MAIN):
        _take(found, PROCPS, MAIN, _content(host, MAIN))
    return {real(line.key): line for line in found.lines if line.text is not None}


def _credential(host: Host, found: Read) -> None:
    """Adds the credential's lines; a store that only root may open is taken as empty, and said so."""
    for store in STORES:
        path = f"{store}/{CREDENTIAL}"
        try:
            host.stat(path)
        except PermissionError:
            found.problems.append(f"{store} is open to root alone: taken as without {CREDENTIAL}")
            continue
        except (OSError, Unrecorded):
            continue
        _take(found, SYSTEMD, path, _content(host, path))
        break
    for store in ENCRYPTED:
        path = f"{store}/{CREDENTIAL}"
        with contextlib.suppress(OSError, Unrecorded):
            host.stat(path)
            found.doubts.append(Doubt(f"{path} is encrypted", len(found.lines)))


def _take(found: Read, applier: str, path: str, content: Content) -> None:
    if content.hidden:
        found.doubts.append(Doubt(f"{path} {content.hidden}", len(found.lines), content.hangs))
    if content.problem:
        found.problems.append(f"{path}: {content.problem}")
    for entry in parse(applier, content.data):
        if isinstance(entry, Junk):
            found.problems.append(f"{path}:{entry.number}: {entry.why}")
            continue
        number, key, text = entry
        found.lines.append(Line(key, text, path, number, len(found.lines)))


def _paths(host: Host, applier: str, volatile: bool, found: Read) -> Iterator[str]:
    """The files that are read, in order."""
    chosen: dict[str, str] = {}
    for folder in (*FOLDERS, *_unmerged(host)):
        if folder == VOLATILE and not volatile:
            continue
        for name in _names(host, folder, found):
            if name.endswith(".conf") and not (applier == SYSTEMD and name.startswith(".")):
                chosen.setdefault(name, f"{folder}/{name}")
    for name in sorted(chosen, key=os.fsencode):
        if applier == PROCPS and set(name) & set("*?[{\\"):
            found.doubts.append(Doubt(f"{chosen[name]} has a name that procps takes for a pattern", 0, all=True))
        yield chosen[name]
    if applier == PROCPS and _regular(host, MAIN):
        yield MAIN


def _names(host: Host, folder: str, found: Read) -> list[str]:
    try:
        return host.list(folder)
    except Unrecorded:
        found.doubts.append(Doubt(f"{folder} is not recorded", 0, all=True))
    except OSError as error:
        if error.errno not in NOTHING:
            found.doubts.append(Doubt(f"{folder} cannot be read ({error.strerror})", 0, all=True))
    return []


def _unmerged(host: Host) -> tuple[str, ...]:
    """/lib/sysctl.d, where /lib is no link."""
    try:
        host.link("/lib")
    except Unrecorded:
        return ()
    except OSError as error:
        return (UNMERGED,) if error.errno == errno.EINVAL else ()
    return ()


def _regular(host: Host, path: str) -> bool:
    try:
        return stat.S_ISREG(host.stat(path).st_mode)
    except (OSError, Unrecorded):
        return False


def _content(host: Host, path: str) -> Content:
    """The bytes, or what the applier finds in their place. Opens regular files only, so that nothing can hang."""
    if _null(host, path):
        return Content()
    try:
        status = host.stat(path)
        if stat.S_ISREG(status.st_mode):
            return Content(host.read(path))
    except Unrecorded:
        return Content(hidden="is not recorded")
    except OSError as error:
        if error.errno in NOTHING:
            return Content(problem="a link to nothing" if error.errno == errno.ENOENT else str(error.strerror))
        why = "is larger than what is read here" if error.errno == errno.EFBIG else f"cannot be read ({error.strerror})"
        return Content(hidden=why)
    return _special(status)


def _special(status: os.stat_result) -> Content:
    if stat.S_ISFIFO(status.st_mode):
        return Content(hidden="is a pipe: whoever applies the files waits there until it is killed", hangs=True)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == NULL:
        return Content()
    if stat.S_ISDIR(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        return Content(problem="not a file")
    return Content(hidden="is a device")


def _null(host: Host, path: str) -> bool:
    """Whether it is a link to /dev/null, which need not be there in a copied host."""
    try:
        link = host.link(path)
    except (OSError, Unrecorded):
        return False
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) == "/dev/null"
