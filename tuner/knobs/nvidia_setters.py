"""Who else on this host sets, loses or keeps the clocks of NVIDIA GPUs: looked for in a bounded number of files.

nvidia-persistenced(1), --no-persistence-mode; DCGM's nv-hostengine may set clocks (dcgmi config). Health checks that
set clocks: Azure/azurehpc-health-checks customTests/azure_gpu_app_clocks.nhc.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from tuner.boot.boots import Boots, Next
from tuner.host.door import Host, Unrecorded
from tuner.knobs.service import FOLDERS, KEPT, LEFTOVER, Service
from tuner.model import Seen, Setting, Want

PERSISTENCED = "nvidia-persistenced.service"
WITHOUT = "--no-persistence-mode"
ENGINES = ("nvidia-dcgm.service", "dcgm.service")
PLACES = ("/etc/cron.d", "/etc/nhc", "/etc/nhc/scripts")
"""Where jobs that run by themselves and node health checks lie."""

MOST, LONGEST = 64, 65536
"""Files of a folder and bytes of a file that are looked at."""

SETS = re.compile(
    r"^[^#\n]*\bnvidia-smi\b[^#\n;|&]*?\s(-(?:r?ac|[lr]gc|[lr]mc)|--(?:applications-clocks|lock-(?:gpu|memory)-clocks"
    r"|reset-(?:gpu-clocks|memory-clocks|applications-clocks)))\b",
    re.MULTILINE,
)
START = re.compile(r"^[ \t]*ExecStart[ \t]*=[ \t]*(\S.*)$", re.MULTILINE)


def others(host: Host) -> str:
    """Who else sets the clocks, or makes the driver forget them, in words; empty where nobody is seen."""
    return "; ".join([*filter(None, [forgets(host)]), *_engines(host), *_scripts(host)])


def forgets(host: Host) -> str:
    """That the daemon which keeps the driver's state is told not to, in words; empty where it is not."""
    if WITHOUT not in _command(host, PERSISTENCED, FOLDERS):
        return ""
    return f"nvidia-persistenced runs with {WITHOUT}: the driver forgets when its last client leaves"


def persistent(boots: Boots, ahead: Next) -> Next:
    """Persistence mode `enabled` where the next boot starts the daemon that switches it on, and what says so.

    `ahead`, where it does not, or where files do not tell.
    """
    unit = Setting("service", PERSISTENCED, PERSISTENCED, Want("value", {"state": "active"}), "", "", "")
    with contextlib.suppress(OSError, Unrecorded, ValueError):
        found, command = Service().next_boot(boots, unit), _command(boots.host, PERSISTENCED, KEPT)
        held = found.reading.value if isinstance(found.reading, Seen) else None
        if isinstance(held, Mapping) and held["state"] == "active" and command and WITHOUT not in command:
            return Next(Seen("enabled"), found.winner)
    return ahead


def _command(host: Host, unit: str, folders: Sequence[str]) -> str:
    """The last ExecStart= of a unit with its drop-ins; empty where there is none."""
    texts: list[str] = []
    for folder in folders:
        if text := _head(host, f"{folder}/{unit}"):
            texts.append(text)
            break
    for folder in reversed(folders):
        texts += [_head(host, f"{folder}/{unit}.d/{name}") for name in _names(host, f"{folder}/{unit}.d")]
    found = START.findall("\n".join(texts))
    return str(found[-1]) if found else ""


def _engines(host: Host) -> Iterator[str]:
    for unit in ENGINES:
        with contextlib.suppress(OSError, Unrecorded, ValueError):
            found = Service().read(host, unit)
            held = found.value if isinstance(found, Seen) and isinstance(found.value, Mapping) else {}
            if held.get("state") in ("active", LEFTOVER):
                yield f"DCGM ({unit}) runs and may set clocks: dcgmi config --get"


def _scripts(host: Host) -> Iterator[str]:
    for folder in PLACES:
        for name in _names(host, folder):
            if found := SETS.search(_head(host, f"{folder}/{name}")):
                yield f"{folder}/{name} runs nvidia-smi {found.group(1)}"


def _names(host: Host, folder: str) -> list[str]:
    with contextlib.suppress(OSError, Unrecorded):
        return host.list(folder)[:MOST]
    return []


def _head(host: Host, path: str) -> str:
    with contextlib.suppress(OSError, Unrecorded):
        return host.head(path, LONGEST).decode("utf-8", "replace")
    return ""
