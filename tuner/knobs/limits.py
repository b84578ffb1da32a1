"""Resource limits of services: getrlimit(2), systemd.exec(5) LimitMEMLOCK=, limits.conf(5)."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.boot.boots import Boots, Next
from tuner.boot.unit_files import drop_ins, last, manager_files, masked, resolve
from tuner.errors import BadValue
from tuner.host.door import Host
from tuner.knobs.base import Knob, Raw, bounded, number, reading, scalar
from tuner.model import Absent, Reading, Seen, Setting, Unreadable, Value, Want

UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]+\.service")
LIMITS = {
    "memlock": ("Max locked memory", "LimitMEMLOCK"),
    "nofile": ("Max open files", "LimitNOFILE"),
}
"""The line of /proc/PID/limits and the directive of systemd."""

UNITS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
         "/lib/systemd/system")  # fmt: skip
SIZES = {"": 1, **{letter: 1024 ** (n + 1) for n, letter in enumerate("KMGTPE")}}
"""Suffixes of a limit in bytes: systemd.exec(5)."""

CGROUPS = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice", "/sys/fs/cgroup/unified/system.slice")
FILE = "99-tuner.conf"
GONE = (FileNotFoundError, NotADirectoryError, ProcessLookupError)


class Limits(Knob):
    """A resource limit of a service, judged on its live process: `slurmd.service/memlock`, `sshd.service/nofile`.

    A value is a number (bytes for memlock, files for nofile) or `unlimited`, soft and hard alike. It is kept by a
    systemd drop-in of the service, since services never read limits.d; `unlimited` also by a line in limits.d for
    logins through PAM, where a number would cap everybody. A running process keeps the limits it started with: until
    the service is restarted the verdict is `pending`. tuner restarts nothing. A Slurm job gets at most what slurmd has;
    PropagateResourceLimitsExcept=MEMLOCK in slurm.conf keeps the limit of the login node out of it.
    """

    name = "limits"
    persist = "systemd drop-in and limits.d"
    read_only = True

    def canonical(self, target: str) -> str:
        """UNIT.service/LIMIT, or a pattern over the units."""
        unit, _, limit = target.partition("/")
        if limit not in LIMITS or not (UNIT.fullmatch(unit) or any(c in unit for c in "*?[")):
            known = ", ".join(LIMITS)
            raise BadValue(f"{target!r} is no limit of a service", f"UNIT.service/LIMIT, LIMIT out of {known}")
        return target

    def parse(self, target: str, raw: Raw) -> Value:
        """A number, or unlimited; both soft and hard."""
        word = scalar(raw)
        value = "unlimited" if word in ("unlimited", "infinity") else bounded(number(raw), 0, 2**63 - 1)
        return {"soft": value, "hard": value}

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Units that run now, with the limit that the pattern names."""
        limit = pattern.partition("/")[2]
        units = {unit for folder in CGROUPS for unit in _names(host, folder) if UNIT.fullmatch(unit)}
        return [f"{unit}/{limit}" for unit in sorted(units)]

    def read(self, host: Host, target: str) -> Reading:
        """{soft, hard} of the service's own process; both null while it does not run."""
        unit, _, limit = target.partition("/")
        found = reading(lambda: _held(host, unit, limit))
        if not isinstance(found, Seen) or found.value != {"soft": None, "hard": None}:
            return found
        installed = reading(lambda: int(_installed(host, unit)))
        if isinstance(installed, Seen):
            return found if installed.value else Absent(f"no such service: {unit}")
        return installed

    def key(self, value: Any) -> Any:
        """Unlimited is more than any number, nothing is less than 0."""
        return math.inf if value == "unlimited" else -1 if value is None else value

    def pending(self, host: Host, target: str, value: Value) -> str:
        """The drop-in is as it should be, and the process is older than it, or there is none."""
        unit, _, limit = target.partition("/")
        ours = ""
        with contextlib.suppress(*GONE):
            ours = host.text(_drop_in(unit))
        if not {_directive(limit, value), _directive(limit, value, at_least=True)} & set(ours.splitlines()):
            return ""
        running = next(_processes(host, unit), None) is not None
        return f"until {unit} is {'restarted' if running else 'started'}"

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What will make it so."""
        return f"set by the drop-in {_drop_in(target.partition('/')[0])}, at the service's next start"

    def stores(self, settings: Sequence[Setting], without: Boots) -> list[tuple[str, str]]:
        """The files that keep these settings: a drop-in for each service, and limits.d."""
        units: dict[str, dict[str, Value]] = {}
        bounds: set[tuple[str, str]] = set()
        for setting in settings:
            unit, _, limit = setting.target.partition("/")
            units.setdefault(unit, {})[limit] = wanted(setting.want)
            bounds.update({(unit, limit)} if setting.want.kind == "at_least" else set())
        files = []
        for unit, limits in sorted(units.items()):
            lines = [_directive(n, value, at_least=(unit, n) in bounds) for n, value in sorted(limits.items())]
            files.append((_drop_in(unit), _text_of(["# Written by tuner", "[Service]", *lines])))
        unlimited = sorted({n for limits in units.values() for n, v in limits.items() if _hard(v) == "unlimited"})
        lines = [f"* - {limit} unlimited" for limit in unlimited]
        files += [(f"/etc/security/limits.d/{FILE}", _text_of(["# Written by tuner", *lines]))] if lines else []
        return files

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """What systemd gives the service when it starts, by its unit, all drop-ins and system.conf."""
        host, (unit, _, limit) = boots.host, setting.target.partition("/")
        name, path = resolve(host, unit)
        if not path or masked(host, path):
            return Next(Absent(f"{unit} is {'masked' if path else 'not installed'}"), path)
        directive = LIMITS[limit][1]
        text, where = last(host, [path, *drop_ins(host, list(dict.fromkeys((name, unit))))], "Service", directive)
        if not text:
            text, where = last(host, manager_files(host), "Manager", f"Default{directive}")
        if not text:
            return Next(Absent(f"no file sets {directive}: systemd's own default"))
        value = _parsed(limit, text)
        return Next(Unreadable(f"{where} sets what is no limit: {text}") if value is None else Seen(value), where)

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "getrlimit(2), systemd.exec(5), limits.conf(5); RDMA registers memory, and needs memlock unlimited."


def _text_of(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def wanted(want: Want) -> Value:
    """The value that the files are given: the bound itself, or the first choice."""
    return want.choices()[0]


def _hard(value: Value) -> Any:
    return value["hard"] if isinstance(value, Mapping) else value


def _directive(limit: str, value: Value, *, at_least: bool = False) -> str:
    """LimitX=VALUE; a lower bound leaves the hard limit open, so that it never takes away what there is."""
    hard = _hard(value)
    word = "infinity" if hard == "unlimited" else str(hard)
    return f"{LIMITS[limit][1]}={word}" + (":infinity" if at_least and word != "infinity" else "")


def _parsed(limit: str, text: str) -> Value:
    """SOFT:HARD, or one for both, as systemd takes them (config_parse_rlimit); None for what it refuses."""
    parts = [_size(limit, part.strip()) for part in text.split(":")]
    if len(parts) > 2 or None in parts:
        return None
    return {"soft": parts[0], "hard": parts[-1]}


def _size(limit: str, word: str) -> int | str | None:
    if word == "infinity":
        return "unlimited"
    found = re.fullmatch(r"(\d{1,19})\s*([KMGTPE]?)", word)
    if not found or (found[2] and limit != "memlock"):
        return None
    size: int = int(found[1]) * SIZES[found[2]]
    return size


def _drop_in(unit: str) -> str:
    return f"/etc/systemd/system/{unit}.d/{FILE}"


def _installed(host: Host, unit: str) -> bool:
    template = re.sub(r"@.*\.service$", "@.service", unit)
    return any(host.exists(f"{folder}/{name}") for folder in UNITS for name in {unit, template})


def _names(host: Host, folder: str) -> list[str]:
    try:
        return host.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _processes(host: Host, unit: str) -> Iterator[int]:
    """PIDs of the unit, those that are named like it or, where none is, all."""
    name = unit.removesuffix(".service").partition("@")[0]
    slices = ["", f"system-{name}.slice/"] if "@" in unit else [""]
    for group in (f"{base}/{part}{unit}" for base in CGROUPS for part in slices):
        with contextlib.suppress(*GONE):
            yield from host.processes(group, name)


def _held(host: Host, unit: str, limit: str) -> Value:
    for pid in _processes(host, unit):
        try:
            lines = host.text(f"/proc/{pid}/limits").splitlines()
        except GONE:
            continue
        for line in lines:
            if line.startswith(LIMITS[limit][0]):
                soft, hard = line[26:].split()[:2]
                return {"soft": _number(soft), "hard": _number(hard)}
    return {"soft": None, "hard": None}


def _number(word: str) -> int | str:
    return "unlimited" if word == "unlimited" else int(word)
