"""Verdicts get what their target will hold after the next boot, and `shadowed` where another file wins then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tuner.boot.boots import Boots, Next
from tuner.boot.planned import Planned
from tuner.expand import WILD
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME, Knob
from tuner.knobs.base import failed
from tuner.model import Absent, Reading, Seen, Setting, Unreadable, Value, Verdict, Want, met
from tuner.readings import Known

LINE = "/proc/cmdline"
CHANGED_SINCE = "changed since, by hand, by a service, or because what it belongs to came up later"
HOLDS = frozenset({"ok", "raised"})


@dataclass(frozen=True)
class Outlook:
    """The next boot as it stands, and as it will be once the planned files are in place; `ours` are these files."""

    now: Boots
    then: Boots
    ours: frozenset[str]

    def see(self, verdict: Verdict) -> Verdict:
        """The verdict with its next boot. One that holds now and not then, by a file of others, is shadowed."""
        setting = verdict.setting
        knob = BY_NAME.get(setting.knob)
        if knob is not None and self.now.host.kind == "image" and setting.knob != "file":
            return self._in_image(verdict, knob)
        if knob is None or verdict.state in ("unsupported", "missing") or WILD & set(setting.target):
            return verdict
        if self.now.not_disk:
            return replace(verdict, next_boot_why=f"not predicted: {self.now.not_disk}")
        if setting.knob == "file":
            return _with(verdict, Next(verdict.reading))
        now = ask(knob, self.now, setting)
        then = now if self.then is self.now else ask(knob, self.then, setting)
        by = then.winner.rpartition(":")[0] or then.winner
        if isinstance(then.reading, Seen) and by and by not in self.ours and not meets(self.then, knob, setting, then):
            return _shadowed(verdict, then.reading.value, then.winner)
        if verdict.state == "drift" and not verdict.why and now.winner and meets(self.now, knob, setting, now):
            verdict = replace(verdict, why=f"{now.winner} sets it at boot: {CHANGED_SINCE}")
        return _with(verdict, now)

    def _in_image(self, verdict: Verdict, knob: Knob) -> Verdict:
        """Nothing runs in an image: what a file keeps is judged by its next boot, all else cannot be."""
        setting = verdict.setting
        if WILD & set(setting.target) or not knob.stores([setting], self.now):
            return verdict
        ahead = ask(knob, self.now, setting)
        if ahead.pointless:
            return replace(verdict, why=getattr(ahead.reading, "why", ""))
        if meets(self.now, knob, setting, ahead):
            return _with(replace(verdict, state="pending", why="after the next boot of this image"), ahead)
        return _with(replace(verdict, state="drift", why="the next boot of this image would not have it"), ahead)


def outlook(
    host: Host, applied: Mapping[tuple[str, str], Want], told: str, settings: Collection[Setting], known: Known
) -> Outlook:
    """The next boot of a host on which these settings are to be, or are, applied."""
    files = {s.target: text_of(s.want.choices()[0]) for s in settings if s.knob == "file"}
    now = Boots(host, applied, told)
    there = {s.target: _there(known.read(s)) for s in settings if s.knob == "file"}
    changed = {path: text for path, text in files.items() if text != there[path]}
    then = Boots(Planned(host, changed), applied, told) if changed else now
    return Outlook(now, then, frozenset(files))


def ask(knob: Knob, boots: Boots, setting: Setting) -> Next:
    """The knob's answer, whatever it met."""
    try:
        return knob.next_boot(boots, setting)
    except (OSError, Unrecorded, ValueError) as error:
        found = failed(error)
        return Next(Unreadable(found.why))


def meets(boots: Boots, knob: Knob, setting: Setting, found: Next) -> bool:
    """Whether what is predicted is as wanted, in the form that the target would have then."""
    if not isinstance(found.reading, Seen):
        return False
    host, want = boots.host, setting.want
    if knob.name == "cmdline" and boots.line.text is not None:
        host = Planned(host, {LINE: boots.line.text})
    try:
        values = tuple(knob.normalise(host, setting.target, choice) for choice in want.choices())
        want = Want(want.kind, values if want.kind == "one_of" else values[0])
    except (OSError, Unrecorded, ValueError):
        pass
    try:
        return met(want, found.reading.value, knob.key) != "drift"
    except TypeError:  # a word where a number is wanted
        return False


def _with(verdict: Verdict, found: Next) -> Verdict:
    match found.reading:
        case Seen(value):
            return replace(verdict, next_boot=value, next_boot_why="", next_boot_by=found.winner)
        case Absent(why):
            return replace(verdict, next_boot_why=f"lost: {why}", next_boot_by=found.winner)
        case Unreadable(why):
            return replace(verdict, next_boot_why=f"not predicted: {why}", next_boot_by=found.winner)


def _shadowed(verdict: Verdict, value: Value, winner: str) -> Verdict:
    found = replace(verdict, next_boot=value, next_boot_why="", next_boot_by=winner)
    if verdict.state not in HOLDS:
        return found
    way = f"{winner} wins at the next boot: remove that line, or give our file a later name (sysctl_file in site.yaml)"
    return replace(found, state="shadowed", why=way)


def text_of(value: Value) -> str | None:
    """The text of a value of the knob `file`; None for no file."""
    text = value.get("text") if isinstance(value, Mapping) else value
    return None if text is None else str(text)


def _there(found: Reading) -> str | None:
    return text_of(found.value) if isinstance(found, Seen) else None
