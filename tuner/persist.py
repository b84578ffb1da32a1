"""Settings that a file keeps become settings of the knob `file`: planned, journalled and undone like any other."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from dataclasses import dataclass

from tuner.boot.boots import Boots, Next
from tuner.boot.planned import Planned
from tuner.expand import WILD
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME, Knob
from tuner.knobs.base import NEEDS_ROOT
from tuner.knobs.sysctl import STORE as SYSCTLS
from tuner.ledger import Ledger
from tuner.model import Absent, Seen, Setting, Unreadable, Want
from tuner.nextboot import ask, meets, text_of
from tuner.readings import Known

HEADER = "# Written by tuner\n"
"""The first line of every file of ours."""


@dataclass(frozen=True)
class Keeping:
    """What site.yaml says of the next boot: what the node boots from, and the name of our file of sysctls."""

    boots_from: str = ""
    sysctl_file: str = posixpath.basename(SYSCTLS)

    def path(self, store: str) -> str:
        """Where this site keeps what a knob names the place of."""
        return f"{posixpath.dirname(store)}/{self.sysctl_file}" if store == SYSCTLS else store


def derive(
    host: Host,
    expanded: Collection[Setting],
    keeping: Keeping,
    known: Known,
    ledger: Ledger,
) -> list[Setting]:
    """The file settings that keep these settings, where no profile sets the file itself.

    A bound that the next boot meets without a file of ours gets no line in it; a plain value always does. What apply
    would not write gets none either, but for what was there at apply and is gone or unreadable since. Knobs that keep
    their settings in one file share it.
    """
    taken = {setting.target for setting in expanded if setting.knob == "file"}
    without = Boots(_without_ours(host, expanded, keeping, ledger), told=keeping.boots_from)
    keepers = {name for name, knob in BY_NAME.items() if knob.stores([s for s in expanded if s.knob == name], without)}
    texts: dict[str, str] = {}
    kept: dict[str, list[Setting]] = {}
    for name, knob in BY_NAME.items():
        ours = [
            s
            for s in expanded
            if s.knob == name and name in keepers and _kept(known, knob, s, without, ledger, keeping)
        ]
        for store, text in knob.stores(ours, without) if ours else []:
            path = keeping.path(store)
            texts[path] = texts[path] + text.removeprefix(HEADER) if path in texts else text
            kept.setdefault(path, []).extend(ours)
    return [_file(path, text, kept[path]) for path, text in texts.items() if path not in taken]


def _without_ours(host: Host, expanded: Collection[Setting], keeping: Keeping, ledger: Ledger) -> Host:
    """The host as if no file of ours kept any of these settings, under a former name neither."""
    bare = Boots(host)
    places = {
        keeping.path(path)
        for name, knob in BY_NAME.items()
        for path, _ in knob.stores([s for s in expanded if s.knob == name], bare)
    }
    former = {at[1]: text_of(entry.before) for at, entry in ledger.first.items() if at[0] == "file"}
    return Planned(host, {**former, **dict.fromkeys(places)})


def _kept(
    known: Known,
    knob: Knob,
    setting: Setting,
    without: Boots,
    ledger: Ledger,
    keeping: Keeping,
) -> bool:
    if WILD & set(setting.target) or not _written(known, knob, setting, ledger.present):
        return False
    if setting.want.kind == "value" and known.host.kind != "image":
        return True
    ahead = ask(knob, without, setting)
    if setting.want.kind != "value":
        match ahead.reading:
            case Seen():
                return not meets(without, knob, setting, ahead)
            case Absent() if setting.at in ledger.first:
                return not meets(without, knob, setting, Next(Seen(ledger.first[setting.at].before)))
            case Absent() if meets(without, knob, setting, Next(known.read(setting))):
                return _in_ours(known.host, knob, setting, without, keeping)
    return not ahead.pointless


def _in_ours(host: Host, knob: Knob, setting: Setting, without: Boots, keeping: Keeping) -> bool:
    """Whether our file sets it already, although no journal says so: then what runs may not be the kernel's own."""
    for store, text in knob.stores([setting], without):
        try:
            ours = host.text(keeping.path(store))
        except (OSError, Unrecorded):
            return False
        if not _names(text) <= _names(ours):
            return False
    return True


def _names(text: str) -> set[str]:
    """What a file of ours assigns to."""
    return {line.partition("=")[0].strip() for line in text.splitlines() if "=" in line}


def _written(known: Known, knob: Knob, setting: Setting, present: Collection[tuple[str, str]]) -> bool:
    """Whether apply writes this target where it differs: what it never writes now, no file writes at boot either."""
    if known.host.kind == "image":
        return True
    match known.read(setting):
        case Absent():
            return setting.at in present
        case Unreadable(why):
            return why == NEEDS_ROOT or setting.at in present
    return all(known.host.writable(path) for path in knob.files(known.host, setting.target))


def _file(path: str, text: str, ours: list[Setting]) -> Setting:
    first = ours[0]
    places = ", ".join(f"{s.knob} {s.target}" for s in ours)
    return Setting(
        "file",
        path,
        path,
        Want("value", {"text": text}),
        first.origin,
        f"Keeps {places}.",
        first.source,
        layer=first.layer,
    )
