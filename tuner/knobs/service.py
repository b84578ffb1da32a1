"""System services, judged by files alone: systemd.unit(5), sd_booted(3), cgroups(7).

A running service has processes in its control group. /run/systemd/units, where there is one, has a link
`invocation:UNIT` from the start of a unit until it stops (src/core/unit.c of systemd: unit_export_state_files,
unit_unlink_state_files). systemd promises that to nobody but its journal, so it is only asked what a control group
cannot tell: whether a service without a process has finished its work or never started.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.boot.boots import Boots, Next
from tuner.boot.unit_files import masked, resolve, wanted_by
from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, reading, scalar
from tuner.model import Leaf, Reading, Record, Seen, Setting, Unreadable, Value

BOOTED = "/run/systemd/system"
STARTED = "/run/systemd/units"
CONTROL_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd")
"""The unified hierarchy, and the one named systemd of the older ones."""

OURS = ("/etc/systemd/system", "/run/systemd/system")
FOLDERS = (*OURS, "/usr/lib/systemd/system", "/lib/systemd/system")
KEPT = tuple(folder for folder in FOLDERS if not folder.startswith("/run/"))
"""Where unit files lie, the strongest first, and those of them that a reboot keeps.

What a target wants lies in OURS; a vendor's own wants are not asked.
"""

CHOICES = {"state": ("active", "inactive"), "enabled": ("enabled", "disabled", "masked", "absent")}
RESTARTING, LEFTOVER = "restarting", "leftover"
"""States that nobody wants: started without a process, and stopped with processes left."""

OTHERS = (".socket", ".timer", ".target", ".mount", ".automount", ".swap", ".path", ".slice", ".scope", ".device")
UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.service")
PATTERN = re.compile(r"[A-Za-z0-9:_.\\@*?\[\]!-]+")
CRASH_LOADED = "/sys/kernel/kexec_crash_loaded"
TUNED = "/etc/tuned"


@dataclass(frozen=True)
class Owner:
    """What a service does to settings that a profile may hold too, and who says so."""

    does: str
    source: str


KDUMP = Owner(
    "boots the crash kernel with the boot line of the running one: huge pages that are reserved there can take all of"
    " its small memory, see KDUMP_COMMANDLINE_REMOVE in /etc/sysconfig/kdump (removed by default) or KDUMP_CMDLINE in"
    " /etc/default/kdump-tools",
    "rhkdump/kdump-utils gen-kdump-sysconfig.sh; kdump-tools of Debian",
)
OWNERS = {
    "irqbalance.service": Owner(
        "moves interrupts between CPUs, those of a NIC away from its NUMA node too, and overwrites affinities that"
        " were set by hand within seconds",
        "Irqbalance/irqbalance#175 and #297; seapath/ansible#984; irqbalance(1)",
    ),
    "numad.service": Owner(
        "moves processes and their memory between NUMA nodes, and overrides the kernel's NUMA balancing"
        " (kernel.numa_balancing)",
        "numad(8); Red Hat Enterprise Linux 7 Performance Tuning Guide, A.13",
    ),
    "lldpad.service": Owner(
        "negotiates DCB with the switch and rewrites PFC, ETS and application priorities that another tool set on the"
        " NIC",
        "intel/openlldp#41 and #125",
    ),
    "tuned.service": Owner(
        "writes the sysctls, governors and huge-page modes of its active profile, so that it owns them as well",
        "redhat-performance/tuned#518 and #583; tuned-main.conf(5)",
    ),
    "kdump.service": KDUMP,
    "kdump-tools.service": KDUMP,
}


class Service(Knob):
    """Whether a system service runs, and whether the next boot starts it. Judged only: systemctl is the operator's.

    Targets are units: `irqbalance.service`, or `irqbalance` for short. The value is `active` or `inactive`, or a
    mapping of `state` and `enabled` (`enabled`, `disabled`, `masked`, `absent`). A service that is not installed is
    inactive and absent. Two states are never as wanted: `restarting` (started, but no process lives) and `leftover`
    (stopped, but processes live on).
    """

    name = "service"
    main = "state"
    read_only = True

    def canonical(self, target: str) -> str:
        """The unit's name with `.service`, or a pattern over names."""
        if target.endswith(OTHERS):
            raise BadValue(f"{target} is no service", "units that end in .service only")
        if set(target) & set("*?[") and PATTERN.fullmatch(target):
            return target
        name = target if target.endswith(".service") else f"{target}.service"
        if not UNIT.fullmatch(name) or len(name) > 255:
            raise BadValue(f"{target!r} is no name of a service", "such as irqbalance.service")
        if name.endswith("@.service"):
            raise BadValue(f"{name} is a template", f"name an instance, such as {name[:-8]}1.service")
        return name

    def parse(self, target: str, raw: Raw) -> Value:
        """A state, or a mapping of state and enabled."""
        record = raw if isinstance(raw, dict) else {"state": raw}
        if not record or set(record) - set(CHOICES):
            raise BadValue("a service is active, inactive or {state, enabled}", "state: inactive, enabled: masked")
        wanted: dict[str, Leaf] = {}
        for field, word in record.items():
            wanted[field] = scalar(word)
            if wanted[field] not in CHOICES[field]:
                raise BadValue(f"{word!r} is no {field} of a service", f"one of {', '.join(CHOICES[field])}")
        return wanted

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The services that have a unit file."""
        found: set[str] = set()
        for folder in FOLDERS:
            with contextlib.suppress(OSError):
                found.update(n for n in host.list(folder) if n.endswith(".service") and not n.endswith("@.service"))
        return sorted(found)

    def read(self, host: Host, target: str) -> Reading:
        """{state, enabled}; unknown where files alone cannot tell."""
        booted = reading(lambda: int(host.exists(BOOTED)))
        if not isinstance(booted, Seen):
            return booted
        if not booted.value:
            return Unreadable("no systemd: services cannot be judged")
        found = reading(lambda: _record(host, target))
        if isinstance(found, Seen) and isinstance(found.value, Mapping) and found.value["state"] is None:
            return Unreadable(f"files do not tell whether it is active: systemctl is-active {target}")
        return found

    def write(self, host: Host, target: str, value: Value) -> None:
        """Services are started and stopped by the operator."""
        raise Refused("tuner does not start or stop services")

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What to run, and what the service does to our settings while it runs."""
        found = self.read(host, target)
        held: Record = found.value if isinstance(found, Seen) and isinstance(found.value, Mapping) else {}
        wanted: Record = value if isinstance(value, Mapping) else {"state": str(value)}
        steps = list(_steps(target, wanted, held))
        text = f"tuner does not start or stop services: {', then '.join(steps)}"
        if wanted.get("state") != "inactive" or target not in OWNERS:
            return text
        more = _tuned(host) if target == "tuned.service" else ""
        return f"{text}; while it runs it {OWNERS[target].does}{more}"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """Whether the next boot starts it: enabled, masked, or not there, by files that a reboot keeps."""
        found = self.read(boots.host, setting.target)
        now: Record = found.value if isinstance(found, Seen) and isinstance(found.value, Mapping) else {}
        try:
            state, enabled, by = _booted(boots.host, setting.target, now)
        except BadValue as unclear:
            return Next(Unreadable(unclear.what))
        return Next(Seen({"state": state, "enabled": enabled}), by)

    def about(self, target: str) -> str:
        """What the service does to settings of ours, and who says so."""
        owner = OWNERS.get(target)
        return f"{target} {owner.does}. Source: {owner.source}." if owner else ""


def _record(host: Host, target: str) -> Value:
    unit, path = resolve(host, target, FOLDERS)
    off = bool(path) and masked(host, path)
    text = "" if off or not path else _text(host, unit, path)
    if off or not path:
        enabled = "masked" if off else "absent"
    else:
        enabled = "enabled" if any(wanted_by(host, name, OURS) for name in sorted({unit, target})) else "disabled"
    return {"state": _state(host, unit, text), "enabled": enabled}


def _booted(host: Host, target: str, now: Record) -> tuple[str, str, str]:
    """(state, enabled, what decides) after a reboot, which empties /run; BadValue where files do not tell."""
    unit, path = resolve(host, target, KEPT)
    if not path or masked(host, path):
        return "inactive", "masked" if path else "absent", path
    by = next(filter(None, (wanted_by(host, name, OURS[:1]) for name in sorted({unit, target}))), "")
    text = _text(host, unit, path)
    if by:
        done = _option(text, "Type") == "oneshot" and not _remains(text)
        return "inactive" if done else "active", "enabled", by
    if now.get("state") == "active" and now.get("enabled") != "enabled":
        raise BadValue(f"{unit} runs without being enabled: what started it is not followed", "")
    return "inactive", "disabled", path


def _state(host: Host, unit: str, text: str) -> str | None:
    """active, inactive, restarting or leftover; None where it cannot be told."""
    alive, started = _alive(host, unit, text), _started(host, unit)
    if alive:
        return LEFTOVER if started is False else "active"
    if _lasting(text) and started is None:
        return _loaded(host) if OWNERS.get(unit) is KDUMP else None
    if started and alive is False and not _lasting(text):
        return RESTARTING
    if started:
        return "active"
    return None if alive is None and started is None else "inactive"


def _loaded(host: Host) -> str | None:
    """What kdump is there for: a crash kernel that is loaded."""
    if not host.exists(CRASH_LOADED):
        return None
    return "active" if host.text(CRASH_LOADED).strip() == "1" else "inactive"


def _alive(host: Host, unit: str, text: str) -> bool | None:
    """Whether the service's control group has processes; None where this host shows no control groups."""
    top = next((folder for folder in CONTROL_GROUPS if host.exists(f"{folder}/system.slice")), "")
    if not top:
        return None
    return any(populated(host, f"{top}/{place}/{unit}") for place in _slices(unit, text))


def _slices(unit: str, text: str) -> Iterator[str]:
    """Where the control group lies: Slice= of the unit, or system.slice, an instance in its template's slice."""
    chosen = _option(text, "Slice").removesuffix(".slice")
    if chosen:
        parts = [] if chosen == "-" else chosen.split("-")
        yield "/".join(f"{'-'.join(parts[: n + 1])}.slice" for n in range(len(parts))) or "."
        return
    yield "system.slice"
    prefix, at, _ = unit.partition("@")
    if at:
        yield "system.slice/system-{}.slice".format(prefix.replace("-", "\\x2d"))


def populated(host: Host, group: str) -> bool:
    """Whether a control group has processes, itself or below it."""
    try:
        return host.filled(f"{group}/cgroup.procs") or host.has_line(f"{group}/cgroup.events", "populated 1")
    except (FileNotFoundError, NotADirectoryError):
        return False


def _started(host: Host, unit: str) -> bool | None:
    """Whether systemd has started the unit and not stopped it since; None where it leaves no trace of that."""
    try:
        if not host.exists(STARTED):
            return None
        host.stat(f"{STARTED}/invocation:{unit}", follow=False)
    except FileNotFoundError:
        return False
    except Unrecorded:
        return None
    return True


def _text(host: Host, unit: str, path: str) -> str:
    """The unit file with the administrator's drop-ins after it."""
    texts = [host.text(path)]
    for folder in OURS:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            drop_ins = [n for n in host.list(f"{folder}/{unit}.d") if n.endswith(".conf")]
            texts += [host.text(f"{folder}/{unit}.d/{name}") for name in drop_ins]
    return "\n".join(texts)


def _option(text: str, name: str) -> str:
    """The last assignment of an option."""
    found = re.findall(rf"^[ \t]*{name}[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return str(found[-1]) if found else ""


def _lasting(text: str) -> bool:
    """Whether the service can be active without a process."""
    return _remains(text) or _option(text, "Type") == "oneshot"


def _remains(text: str) -> bool:
    return _option(text, "RemainAfterExit").lower() in ("yes", "true", "on", "1", "y", "t")


def _steps(target: str, wanted: Record, held: Record) -> Iterator[str]:
    """What to run, in order."""
    state, enabled = (None if wanted.get(f) == held.get(f) else wanted.get(f) for f in CHOICES)
    if state == "active" and held.get("enabled") == "absent":
        yield f"install it, there is no unit file {target}"
    if "active" in (state, enabled) and held.get("enabled") == "masked":
        yield f"systemctl unmask {target}"
    if held.get("state") in (RESTARTING, LEFTOVER):
        fate = "no process of it lives" if held["state"] == RESTARTING else "it is stopped, but processes of it live on"
        yield f"systemctl status {target} ({fate})"
    match state, enabled:
        case "active", None:
            yield f"systemctl enable --now {target}"
        case "active", _:
            yield f"systemctl start {target}"
        case "inactive", None:
            yield f"systemctl disable --now {target}"
        case "inactive", _:
            yield f"systemctl stop {target}"
    match enabled:
        case "enabled" | "disabled":
            yield f"systemctl {enabled.removesuffix('d')} {target}"
        case "masked":
            yield f"systemctl mask {target}"
        case "absent":
            yield "remove its package or unit file"


def _tuned(host: Host) -> str:
    """Which profile is active and whether sysctl.d or the profile wins; what cannot be read is left out."""
    found = ""
    with contextlib.suppress(OSError, Unrecorded):
        profile = " ".join(host.text(f"{TUNED}/active_profile").split())
        found += f"; its profile is {profile or 'none'} ({TUNED}/active_profile)"
    with contextlib.suppress(OSError, Unrecorded):
        again = _option(host.text(f"{TUNED}/tuned-main.conf"), "reapply_sysctl").lower()
        off = again in ("0", "no", "false", "off")
        found += f", reapply_sysctl is {'off: the profile' if off else 'on: sysctl.d'} wins where both set a key"
    return found
