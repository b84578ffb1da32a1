"""What the journal means: which generation is live, what is ours on each target, what a profile left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.journal import At, Entry, Generation, Journal, dead
from tuner.model import Reading, Setting, from_plain, known, reading_from_plain, replaced, setting_from_plain


@dataclass(frozen=True)
class Ledger:
    """A fold over the whole journal.

    `first` is the entry that first changed each target, among live generations; `left` what tuner last left there;
    `held` the places that the newest live generation was not allowed to change, `present` those that were there then.
    """

    live: tuple[Generation, ...] = ()
    first: Mapping[At, Entry] = field(default_factory=dict)
    left: Mapping[At, Any] = field(default_factory=dict)
    held: frozenset[At] = frozenset()
    present: frozenset[At] = frozenset()
    identities: Mapping[At, str] = field(default_factory=dict)

    @property
    def newest(self) -> Generation | None:
        """The generation that verify judges."""
        return self.live[-1] if self.live else None


@dataclass(frozen=True)
class Applied:
    """The applied generation, as verify needs it: expanded settings, and which targets were there at the time."""

    generation: int
    settings_id: str
    profile: str
    who: str
    when: str
    settings: tuple[Setting, ...]
    readings: tuple[Reading, ...]
    held: frozenset[At] = frozenset()
    reference: str = ""
    overlays: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    identities: Mapping[At, str] = field(default_factory=dict)
    boots_from: str = ""
    allow: tuple[str, ...] = ("auto",)
    """What `--allow` was given."""

    @property
    def present(self) -> frozenset[At]:
        """The places that could be read at apply: a target that is gone since is missing."""
        pairs = zip(self.settings, self.readings, strict=True)
        return frozenset(setting.at for setting, reading in pairs if known(reading))


def fold(journal: Journal) -> Ledger:
    """Reads the journal from the first line to the last."""
    live = tuple(journal.generations[n] for n in sorted(journal.generations) if not dead(journal, n))
    first: dict[At, Entry] = {}
    for generation in live:
        for entry in generation.entries():
            if not entry.side:
                former = first.setdefault(entry.at, entry)
                if replaced(former.identity, entry.identity):
                    first[entry.at] = entry
    if not live:
        return Ledger(live, first, _left(journal))
    newest = applied(live[-1])
    return Ledger(live, first, _left(journal), newest.held, newest.present, newest.identities)


def _left(journal: Journal) -> dict[At, Any]:
    left: dict[At, Any] = {}
    for line in sorted((x for g in journal.generations.values() for x in g.lines), key=lambda x: int(x["seq"])):
        if line["op"] in ("outcome", "moved"):
            left[line["knob"], line["target"]] = from_plain(line["after"])
        elif line["op"] == "carried":
            for row in line["entries"]:
                left.setdefault((row["knob"], row["target"]), from_plain(row["left"]))
    return left


def _held(generation: Generation) -> frozenset[At]:
    ends = [line for line in generation.lines if line["op"] == "end" and line["run"] == "apply"]
    return frozenset((knob, target) for knob, target in ends[-1]["held"]) if ends else frozenset()


def applied(generation: Generation) -> Applied:
    """The applied generation out of its `begin` line."""
    head = generation.head
    return Applied(
        generation.number,
        head["settings_id"],
        head["profile"],
        head["who"],
        head["when"],
        tuple(setting_from_plain(s) for s in head["settings"]),
        tuple(reading_from_plain(r) for r in head["readings"]),
        _held(generation),
        head.get("reference", ""),
        tuple(head.get("overlays", ())),
        tuple(head.get("sets", ())),
        identities_of(head),
        head.get("boots_from", ""),
        tuple(head.get("allow", ("auto",))),
    )


def identities_of(head: Mapping[str, Any]) -> dict[At, str]:
    """Which device each place was at that time."""
    return {(knob, target): identity for knob, target, identity in head.get("identities", ())}
