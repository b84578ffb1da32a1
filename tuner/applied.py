"""The applied settings under /etc/tuner/applied: a cache of the journal that everybody may read.

The journal is for root alone, since a file's former text may be secret; verify and plan need no root. It is written
as the last step of apply and rollback, and made again from the journal when it is lost or old. What targets held before
stays out of it; that they were there is all that verify needs.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tuner.host import Host, Unrecorded
from tuner.host.door import make_parents
from tuner.host.tree import BESIDE
from tuner.journal import Generation, Journal
from tuner.ledger import Applied, Ledger, applied, fold, identities_of
from tuner.model import reading_from_plain, setting_from_plain

PATH = "/etc/tuner/applied/current.json"
SCHEMA = "tuner.applied/1"
COPIED = (
    "generation",
    "settings_id",
    "profile",
    "reference",
    "overlays",
    "sets",
    "who",
    "when",
    "settings",
    "readings",
    "identities",
    "boots_from",
    "allow",
)


def publish(host: Host, journal: Journal) -> str:
    """Makes the cache say what the journal says; returns why it could not, empty when it did."""
    newest = fold(journal).newest
    try:
        if newest is None:
            if journal.generations:
                _remove(host)
        else:
            text = json.dumps(_document(newest), indent=1) + "\n"
            if _text(host) != text:
                make_parents(host, PATH)
                host.put(PATH, text.encode("ascii"), 0o644)
    except (OSError, Unrecorded) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"{PATH}: {why}; verify without root will not know these settings"
    return ""


def current(host: Host) -> tuple[Applied | None, Ledger, bool]:
    """The applied generation, what the journal means, and whether the journal could be read.

    Without the right to read the journal, or with an empty /var, the cache answers.
    """
    try:
        journal = Journal(host)
        ledger = fold(journal)
        if ledger.newest is not None:
            return applied(ledger.newest), ledger, True
        readable = True
        if journal.generations:
            return None, ledger, True
    except PermissionError:
        ledger, readable = Ledger(), False
    text = _text(host)
    return (None if text is None else _parsed(text)), ledger, readable


def _document(generation: Generation) -> dict[str, Any]:
    state = applied(generation)
    head = {name: generation.head[name] for name in COPIED if name in generation.head}
    head["settings"] = [_public(setting) for setting in head["settings"]]
    head["readings"] = [{"seen": None} if "seen" in reading else reading for reading in head["readings"]]
    return {"schema": SCHEMA, **head, "held": sorted(map(list, state.held))}


def _public(setting: dict[str, Any]) -> dict[str, Any]:
    """A file whose mode keeps others out is named without its text: its mode is all that they can judge."""
    value = setting["want"]["value"]
    if setting["knob"] != "file" or not isinstance(value, dict) or int(str(value.get("mode") or "0644"), 8) & 0o004:
        return setting
    shown = {name: part for name, part in value.items() if name != "text"}
    return {**setting, "want": {"kind": "value", "value": shown}}


def _parsed(text: str) -> Applied | None:
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA or len(data["settings"]) != len(data["readings"]):
            return None
        words = [data[name] for name in ("settings_id", "profile", "who", "when")]
        more = [data.get("reference", ""), data.get("boots_from", ""), *data.get("overlays", ()), *data.get("sets", ())]
        places = [setting[name] for setting in data["settings"] for name in ("knob", "target", "written")]
        if not all(isinstance(word, str) for word in (*words, *more, *places)):
            return None
        return Applied(
            int(data["generation"]),
            data["settings_id"],
            data["profile"],
            data["who"],
            data["when"],
            tuple(setting_from_plain(s) for s in data["settings"]),
            tuple(reading_from_plain(r) for r in data["readings"]),
            frozenset((knob, target) for knob, target in data["held"]),
            data.get("reference", ""),
            tuple(data.get("overlays", ())),
            tuple(data.get("sets", ())),
            identities_of(data),
            data.get("boots_from", ""),
            tuple(data.get("allow", ("auto",))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _text(host: Host) -> str | None:
    try:
        return host.text(PATH)
    except (OSError, Unrecorded):
        return None


def _remove(host: Host) -> None:
    for path in (PATH, PATH + BESIDE):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            host.unlink(path)
    for folder in ("/etc/tuner/applied", "/etc/tuner"):
        with contextlib.suppress(OSError):
            host.rmdir(folder)
