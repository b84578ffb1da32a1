"""Unit files of systemd and their drop-ins, in the order in which systemd reads them: systemd.unit(5).

src/basic/unit-file.c, src/shared/dropin.c and conf-files.c of systemd 252. What lies in /run is gone after a reboot.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator, Sequence

from tuner.host.door import Host, Unrecorded

VOLATILE = "/run/systemd/system"
LASTING = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
"""Where unit files lie that a reboot keeps, the strongest first."""

MANAGER = ("/etc/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
"""Where system.conf and system.conf.d lie: systemd-system.conf(5)."""

ALIASES = 4


def template(unit: str) -> str:
    """foo@.service for foo@1.service; any other name as it is."""
    return re.sub(r"@.*(?=\.service$)", "@", unit)


def link(host: Host, path: str) -> str:
    """Where a link points; empty for what is none."""
    try:
        return host.link(path)
    except OSError:
        return ""


def masked(host: Host, path: str) -> bool:
    """A link to /dev/null, or a file without content."""
    text = link(host, path)
    return posixpath.normpath(text).lstrip("/.") == "dev/null" if text else host.stat(path).st_size == 0


def find(host: Host, unit: str, folders: Sequence[str] = LASTING) -> str:
    """The strongest unit file, an instance's own before its template; empty when there is none."""
    for name in dict.fromkeys((unit, template(unit))):
        for folder in folders:
            path = f"{folder}/{name}"
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                host.stat(path, follow=False)
                if masked(host, path) or host.exists(path):
                    return path
    return ""


def resolve(host: Host, target: str, folders: Sequence[str] = LASTING) -> tuple[str, str]:
    """(name that systemd runs it under, path of its unit file): an alias is a link to another name."""
    unit = target
    for _ in range(ALIASES):
        path = find(host, unit, folders)
        name = posixpath.basename(link(host, path)) if path else ""
        if not name.endswith(".service") or name in (unit, template(unit)):
            return unit, path
        unit = name
    return unit, find(host, unit, folders)


def wanted_by(host: Host, unit: str, folders: Sequence[str]) -> str:
    """The link by which a target, or another unit, starts it at boot; empty when there is none."""
    for folder in folders:
        for name in host.list(folder) if host.exists(folder) else []:
            if name.endswith((".wants", ".requires")):
                path = f"{folder}/{name}/{unit}"
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    host.stat(path, follow=False)
                    return path
    return ""


def drop_ins(host: Host, names: Sequence[str]) -> list[str]:
    """Drop-ins that systemd reads for a unit of these names after a reboot, in its order: by file name alone.

    Of files with one name the first folder's counts; foo-.service.d is for all names that begin so, service.d for all.
    """
    chosen: dict[str, str] = {}
    for folder in _folders(names):
        for name in listed(host, folder):
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{folder}/{name}")
    return [chosen[name] for name in sorted(chosen) if not _nothing(host, chosen[name])]


def _folders(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for top in LASTING:
            for variant in dict.fromkeys((name, template(name), *_prefixes(name))):
                yield f"{top}/{variant}.d"
    yield from (f"{top}/service.d" for top in LASTING)


def _prefixes(name: str) -> Iterator[str]:
    """foo-bar-.service and foo-.service for foo-bar-baz.service."""
    stem = name.removesuffix(".service")
    while "-" in stem.rstrip("-"):
        stem = stem.rstrip("-").rpartition("-")[0] + "-"
        yield f"{stem}.service"


def manager_files(host: Host) -> list[str]:
    """system.conf and its drop-ins, in the order in which they are read."""
    main = next((f"{top}/system.conf" for top in MANAGER if host.exists(f"{top}/system.conf")), "")
    chosen: dict[str, str] = {}
    for top in MANAGER:
        for name in listed(host, f"{top}/system.conf.d"):
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{top}/system.conf.d/{name}")
    return [*([main] if main else []), *(chosen[name] for name in sorted(chosen) if not _nothing(host, chosen[name]))]


def assigned(text: str, section: str, name: str) -> Iterator[tuple[int, str]]:
    """(line, value) of each assignment in a section; a backslash at the end of a line carries it on."""
    here, first, whole = "", 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        first = first if whole else number
        whole += line
        if whole.endswith("\\") and not line.lstrip().startswith(("#", ";")):
            whole = f"{whole[:-1]} "
            continue
        stripped, whole = whole.strip(), ""
        if stripped.startswith("[") and stripped.endswith("]"):
            here = stripped[1:-1]
        key, equals, value = stripped.partition("=")
        if equals and here == section and key.strip() == name and stripped[0] not in "#;":
            yield first, value.strip()


def last(host: Host, paths: Sequence[str], section: str, name: str) -> tuple[str, str]:
    """(value, FILE:LINE) of the last assignment in these files; an empty one takes all before it back."""
    found = ("", "")
    for path in paths:
        for number, value in assigned(host.text(path), section, name):
            found = (value, f"{path}:{number}") if value else ("", "")
    return found


def listed(host: Host, folder: str) -> list[str]:
    """The names in a folder; none where it is not there."""
    try:
        return host.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _nothing(host: Host, path: str) -> bool:
    try:
        return masked(host, path)
    except (FileNotFoundError, Unrecorded):
        return True
