"""Finding the file of a profile, and whether root may believe it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from tuner.boot.planned import Planned
from tuner.errors import TunerError, bad_input
from tuner.host import Host, Unrecorded
from tuner.shipped import folder, names

ETC = "/etc/tuner"
SITE = "/etc/tuner/profiles"
SITE_FILE = "/etc/tuner/site.yaml"
HOSTS = "/etc/tuner/host.d"
LARGEST = 1024 * 1024
"""Largest profile that is read, in bytes."""


@dataclass(frozen=True)
class Source:
    """A profile's bytes, and the name by which errors and origins call it."""

    origin: str
    data: bytes


def find(host: Host, reference: str, *, near: str = "", overlay: bool = False) -> Source:
    """The profile that `reference` means: a path (with a slash or .yaml), else a name.

    A name is looked up in /etc/tuner/profiles of the host, then among those that come with tuner; overlays are in
    `overlays` below each. `near` is the place that asks, for the error. Raises TunerError (bad input): unknown,
    unreadable, or writable by others.
    """
    if "/" in reference or reference.endswith((".yaml", ".yml")):
        host.outside(reference)
        return _by_path(reference, near or reference)
    what, below = ("overlay", "overlays/") if overlay else ("profile", "")
    near = near or f"{'--with' if overlay else '--profile'} {reference}"
    if not reference or reference.startswith(".") or not reference.isprintable():
        raise bad_input(near, f"{reference!r} is no name of a {what}", f"known: {_known(host, below)}")
    own = f"{SITE}/{below}{reference}.yaml"
    if _there(host, own):
        return _read(host, own)
    path = folder("profiles") / f"{below}{reference}.yaml"
    host.outside(str(path))
    if not path.is_file():
        raise bad_input(near, f"no such {what}", f"known: {_known(host, below)}; or give a file")
    return Source(f"profiles/{below}{reference}.yaml", path.read_bytes())


def site_file(host: Host, path: str) -> Source | None:
    """site.yaml or a file of host.d; None where there is none."""
    return _read(host, path) if _there(host, path) else None


def _read(host: Host, path: str) -> Source:
    """A file of the host that root may believe; what is there and cannot be read is an error, never left out."""
    try:
        _trust_below(host, path)
        return Source(path, _sized(host.read(path), path))
    except OSError as error:
        raise bad_input(path, f"cannot be read: {error.strerror}", "a plain file that you may read") from None


def known(host: Host, below: str = "") -> list[str]:
    """Names that `find` knows, the site's own first; with below="overlays/" those of overlays."""
    try:
        own = [name[:-5] for name in host.list(f"{SITE}/{below}".rstrip("/")) if name.endswith(".yaml")]
    except (OSError, Unrecorded):
        own = []
    return list(dict.fromkeys([*own, *names(f"profiles/{below}".rstrip("/"), ".yaml")]))


def _known(host: Host, below: str = "") -> str:
    return ", ".join(known(host, below)) or "none"


def _there(host: Host, path: str) -> bool:
    try:
        return host.exists(path)
    except Unrecorded:
        return False
    except OSError as error:
        raise bad_input(path, f"cannot be looked up: {error.strerror}", "a plain file that you may read") from None


def read_trusted(path: str) -> bytes:
    """A file given by path; as root only one that nobody else can write. TunerError (bad input) otherwise."""
    return _by_path(path, path).data


def _by_path(path: str, where: str) -> Source:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(opened, "rb") as file:
            status = os.fstat(opened)
            if stat.S_ISDIR(status.st_mode):
                raise bad_input(path, "is a directory", "give the profile's file, or its name without slash")
            if not stat.S_ISREG(status.st_mode):
                raise bad_input(path, "is not a regular file", "give the profile's file")
            if os.geteuid() == 0:
                _trust(path, status)
            return Source(path, _sized(file.read(LARGEST + 1), path))
    except IsADirectoryError:
        raise bad_input(path, "is a directory", "give the profile's file, or its name without slash") from None
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise bad_input(
            where, f"{'' if where == path else f'{path} '}cannot be read: {what}", "check the path"
        ) from None


def _sized(data: bytes, origin: str) -> bytes:
    if len(data) > LARGEST:
        raise bad_input(origin, f"is larger than {LARGEST} bytes", "a profile is a few hundred lines")
    return data


def _trust(path: str, status: os.stat_result) -> None:
    """As root: the file and each directory above it belong to root, and nobody else can write them."""
    owned(path, status)
    for start in {os.path.realpath(path), os.path.abspath(path)}:
        for directory in _above(start):
            owned(directory, os.stat(directory))


def _above(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[:depth]) for depth in range(len(parts) + 1)]


def _trust_below(host: Host, path: str) -> None:
    given = isinstance(host, Planned) and path in host.files  # by --as-if, whose own file was looked at
    if given or host.kind == "recorded" or os.geteuid() != 0:
        return
    trust(host, path)


def trust(host: Host, path: str, *, sticky: bool = True) -> None:
    """TunerError where others than root can change the file or put another in its place, links followed or not."""
    for start in {path, host.tree.real(path)}:
        owned(start, host.stat(start), sticky=sticky)
        for directory in _above(start):
            owned(directory, host.stat(directory), sticky=sticky)


def owned(path: str, status: os.stat_result, *, sticky: bool = True) -> None:
    """TunerError where others than root can change it; a `sticky` directory may be written by all, as /tmp is."""
    shared = sticky and stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_uid != 0:
        raise _untrusted(path, f"belongs to uid {status.st_uid}, not to root", f"chown root {path}")
    if status.st_mode & 0o022 and not shared:
        raise _untrusted(path, "can be written by others than root", f"chmod go-w {path}")


def _untrusted(path: str, what: str, hint: str) -> TunerError:
    return bad_input(path, what, f"root only believes files that nobody else can change: {hint}")
