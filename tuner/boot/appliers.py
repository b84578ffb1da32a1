"""Which program gives the kernel its parameters at boot, and whether that is known: systemd.unit(5), bootup(7).

Only systemd-sysctl is predicted. A host that boots with something else has its own order of files, which no standard
names (void-linux/void-runit#31), so that nothing is promised there.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from dataclasses import dataclass

from tuner.boot.lines import SYSTEMD
from tuner.host.door import Host, Unrecorded

UNIT = "systemd-sysctl.service"
FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
BOOTED = "/run/systemd/system"
INITS = ("/sbin/init", "/usr/sbin/init")
OTHERS = {
    "/etc/init.d/sysctl": "OpenRC's sysctl",
    "/etc/init.d/procps": "the procps script of sysvinit",
    "/etc/runit/core-services": "runit",
}
LIBRARIES = (
    "/usr/lib/systemd",
    "/lib/systemd",
    "/usr/lib/x86_64-linux-gnu/systemd",
    "/usr/lib/aarch64-linux-gnu/systemd",
)
LIBRARY = re.compile(r"libsystemd-shared-(\d+)")


@dataclass(frozen=True)
class Applier:
    """The program, empty when it is not known and `why` says so; the version of systemd where a file tells it."""

    name: str
    why: str = ""
    version: int | None = None


def applier(host: Host) -> Applier:
    """Who applies sysctl files when this host boots."""
    init = _init(host)
    if init and init != "systemd":
        return Applier("", f"boot order not known: this host starts with {init}{_other(host)}")
    if host.kind != "image" and not _there(host, BOOTED):
        return Applier("", f"boot order not known: systemd does not run here{_other(host)}")
    unit = next((f"{folder}/{UNIT}" for folder in FOLDERS if _there(host, f"{folder}/{UNIT}", follow=False)), "")
    if not unit:
        return Applier("", f"boot order not known: no {UNIT} here{_other(host)}")
    if _masked(host, unit):
        return Applier("", f"{UNIT} is masked ({unit}): nobody is known to apply sysctl files")
    changed = _changed(host)
    if changed:
        return Applier("", f"boot order not known: {changed} changes what {UNIT} does")
    return Applier(SYSTEMD, version=_version(host))


def _init(host: Host) -> str:
    """The name of the first program; empty where no file tells it."""
    for path in INITS:
        with contextlib.suppress(OSError, Unrecorded):
            return posixpath.basename(host.link(path))
    return "an init that is no link to systemd" if any(_there(host, path) for path in INITS) else ""


def _other(host: Host) -> str:
    found = [name for path, name in OTHERS.items() if _there(host, path)]
    return f" ({', '.join(found)} is there)" if found else ""


def _there(host: Host, path: str, follow: bool = True) -> bool:
    try:
        host.stat(path, follow)
    except (OSError, Unrecorded):
        return False
    return True


def _masked(host: Host, path: str) -> bool:
    """A link to /dev/null, or a file without content."""
    try:
        return posixpath.normpath(host.link(path)).lstrip("/.") == "dev/null"
    except OSError:
        return host.stat(path).st_size == 0


def _changed(host: Host) -> str:
    """A drop-in of the unit that starts something else, or on another condition; empty when there is none."""
    for folder in FOLDERS:
        with contextlib.suppress(OSError, Unrecorded):
            for name in host.list(f"{folder}/{UNIT}.d"):
                path = f"{folder}/{UNIT}.d/{name}"
                if name.endswith(".conf") and re.search(r"(?m)^[ \t]*(Exec|Condition|Assert)", host.text(path)):
                    return path
    return ""


def _version(host: Host) -> int | None:
    for folder in LIBRARIES:
        with contextlib.suppress(OSError, Unrecorded):
            for name in host.list(folder):
                if found := LIBRARY.match(name):
                    return int(found[1])
    return None
