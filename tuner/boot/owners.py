"""Who else writes kernel parameters at boot or after it, as far as files tell: named, never predicted.

tuned-main.conf(5) and tuned/plugins/plugin_sysctl.py of TuneD; numad(8); kernel-parameters.txt (`sysctl.*`);
cloud-init's bootcmd and runcmd; openibd's openib.conf; NetworkManager-dispatcher(8), interfaces(5), rc.local.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.boot.lines import path_of
from tuner.host.door import Host, Unrecorded

ETC_UNITS = "/etc/systemd/system"
TUNED_FOLDERS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
TUNED_DEPTH = 20
SCRIPT_FOLDERS = (
    "/etc/NetworkManager/dispatcher.d",
    "/etc/NetworkManager/dispatcher.d/pre-up.d",
    "/etc/networkd-dispatcher/routable.d",
    "/etc/networkd-dispatcher/configured.d",
    "/etc/network/if-pre-up.d",
    "/etc/network/if-up.d",
    "/etc/network/interfaces.d",
    "/etc/cloud/cloud.cfg.d",
)
SCRIPTS = ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/network/interfaces", "/etc/cloud/cloud.cfg")
MODULE_FOLDERS = (
    "/etc/modules-load.d",
    "/run/modules-load.d",
    "/usr/local/lib/modules-load.d",
    "/usr/lib/modules-load.d",
)
OPENIB = "/etc/infiniband/openib.conf"

COMMAND = re.compile(r"(?<![\w.-])sysctl(?![\w.-])(.*)")
ASSIGNED = re.compile(r"([A-Za-z_][\w./*:@-]*)\s*=")
POKED = re.compile(r"(?:>|\btee\b(?:\s+-\w+)*)\s*[\"']?/proc/sys/([\w./*-]+)")
OFF = ("0", "no", "false", "off")


@dataclass(frozen=True)
class Owner:
    """A writer: `where` is FILE or FILE:LINE, `keys` are paths below /proc/sys, fnmatch patterns among them.

    No `keys` = it is not known which. `first`: it writes before the files are applied. `yields`: afterwards it applies
    the files of /etc and /run again, /etc/sysctl.conf last.
    """

    name: str
    where: str
    keys: tuple[str, ...] = ()
    first: bool = False
    yields: bool = False


def others(host: Host) -> tuple[Owner, ...]:
    """Everybody that a file names."""
    found = [*_boot_line(host), *_tuned(host), *_openib(host), *_scripts(host), *_units(host)]
    if enabled(host, "numad.service"):
        found.append(Owner("numad", "numad.service", ("kernel/numa_balancing",)))
    return tuple(found)


def early_modules(host: Host) -> frozenset[str]:
    """Modules that systemd-modules-load loads before systemd-sysctl, and those that the kernel has built in."""
    names: set[str] = set()
    for folder in MODULE_FOLDERS:
        for path in _files(host, folder, ".conf"):
            names |= {line.strip() for line in _text(host, path).splitlines() if line.strip()[:1] not in ("", "#", ";")}
    if host.kernel:
        names |= set(re.findall(r"([^/\n]+)\.ko", _text(host, f"/lib/modules/{host.kernel}/modules.builtin")))
    return frozenset(name.replace("-", "_") for name in names)


def enabled(host: Host, unit: str) -> bool:
    """Whether the administrator's folder has something start the unit at boot."""
    for name in _names(host, ETC_UNITS):
        if name.endswith((".wants", ".requires")):
            with contextlib.suppress(OSError, Unrecorded):
                host.stat(f"{ETC_UNITS}/{name}/{unit}", follow=False)
                return True
    return False


def _text(host: Host, path: str) -> str:
    """The text of a file, empty when it cannot be read: who hides is not found here."""
    try:
        return host.text(path)
    except (OSError, Unrecorded):
        return ""


def _names(host: Host, folder: str) -> list[str]:
    try:
        return host.list(folder)
    except (OSError, Unrecorded):
        return []


def _files(host: Host, folder: str, suffix: str = "") -> list[str]:
    return [f"{folder}/{name}" for name in _names(host, folder) if name.endswith(suffix)]


def _boot_line(host: Host) -> Iterator[Owner]:
    """`sysctl.KEY=VALUE` on the boot line: set by the kernel before anything of user space (Linux 5.8)."""
    keys = re.findall(r"(?:^|\s)\"?sysctl[./]([^\s=]+)=", _text(host, "/proc/cmdline"))
    if keys:
        yield Owner("the boot line", "/proc/cmdline", tuple(path_of(key) for key in keys), first=True)


def _openib(host: Host) -> Iterator[Owner]:
    text = _text(host, OPENIB)
    if re.search(r"(?mi)^[ \t]*RUN_SYSCTL[ \t]*=[ \t]*[\"']?yes", text):
        yield Owner("openibd (RUN_SYSCTL=yes)", OPENIB, ("net/core/*", "net/ipv4/tcp_*"))


def _scripts(host: Host) -> Iterator[Owner]:
    for path in (*SCRIPTS, *(path for folder in SCRIPT_FOLDERS for path in _files(host, folder))):
        yield from _commands(path, _text(host, path), "a script at boot")


def _units(host: Host) -> Iterator[Owner]:
    """Services of the administrator that are enabled and run sysctl."""
    for path in _files(host, ETC_UNITS, ".service"):
        text = "\n".join(line if line.lstrip().startswith("Exec") else "" for line in _text(host, path).split("\n"))
        found = list(_commands(path, text, "a service"))
        if found and enabled(host, path.rpartition("/")[2]):
            yield from found


def _commands(path: str, text: str, name: str) -> Iterator[Owner]:
    """One owner for a file whose lines call sysctl or write below /proc/sys."""
    keys: list[str] = []
    first = 0
    for number, line in enumerate(text.split("\n"), 1):
        code = "" if line.lstrip().startswith("#") else line
        calls = COMMAND.findall(code)
        poked = POKED.findall(code)
        if calls or poked:
            first = first or number
            keys += [path_of(key) for call in calls for key in ASSIGNED.findall(call)] + poked
    if first:
        yield Owner(name, f"{path}:{first}", tuple(dict.fromkeys(keys)))


# TuneD


def _tuned(host: Host) -> Iterator[Owner]:
    names = _text(host, "/etc/tuned/active_profile").split()
    if not names or not enabled(host, "tuned.service"):
        return
    again = re.findall(r"(?m)^[ \t]*reapply_sysctl[ \t]*=[ \t]*(\S+)", _text(host, "/etc/tuned/tuned-main.conf"))
    yields = not again or again[-1].lower() not in OFF
    for path, number, key in _tuned_keys(host, names):
        yield Owner(f"TuneD profile {' '.join(names)}", f"{path}:{number}", (key,), yields=yields)


def _tuned_keys(host: Host, names: list[str]) -> Iterator[tuple[str, int, str]]:
    """(file, line, key) of every sysctl of the profiles and of what they include."""
    todo = list(names)
    seen: set[str] = set()
    while todo and len(seen) < TUNED_DEPTH:
        name = todo.pop(0)
        path = next((f"{f}/{name}/tuned.conf" for f in TUNED_FOLDERS if _text(host, f"{f}/{name}/tuned.conf")), "")
        if name in seen or not path:
            continue
        seen.add(name)
        for number, section, kind, key, value in _settings(_text(host, path)):
            if section == "main" and key == "include":
                todo += re.split(r"[,\s]+", value)
            elif kind == "sysctl" and key not in ("type", "replace", "enabled", "devices", "priority"):
                yield path, number, re.sub(r"\$\{.*\}", "*", path_of(key))


def _settings(text: str) -> Iterator[tuple[int, str, str, str, str]]:
    """(line, section, plugin, key, value); the plugin is the section's `type`, else its name."""
    kinds: dict[str, str] = {}
    rows: list[tuple[int, str, str, str]] = []
    section = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line[:1] == "[" and line[-1:] == "]":
            section = line[1:-1].strip()
        elif line[:1] not in ("", "#", ";") and "=" in line:
            key, _, value = (part.strip() for part in line.partition("="))
            rows.append((number, section, key, value))
            if key == "type":
                kinds[section] = value
    for number, section, key, value in rows:
        yield number, section, kinds.get(section, section), key, value
