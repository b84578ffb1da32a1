"""The JSON documents of the verbs; their schemas are in tuner/schemas. Fields may be added, never renamed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.errors import Exit, Problem
from tuner.host import Host
from tuner.ledger import Applied
from tuner.model import Change, Outcome, Plan, Seen, Setting, Verdict, Want, plain
from tuner.run import Report

Document = dict[str, Any]
BEST_FIRST = ("ok", "raised", "unsupported", "held", "pending", "unknown", "shadowed", "drift", "missing")
"""States by what they cost: the order in which the worst is found."""


def host(found: Host) -> Document:
    """name, kind, root, kernel."""
    return {"name": found.name, "kind": found.kind, "root": found.root, "kernel": found.kernel}


def want(wanted: Want) -> Document:
    """{value|at_least|at_most|one_of: ...}."""
    return {wanted.kind: plain(wanted.value)}


def verdict(found: Verdict) -> Document:
    """One setting judged. `running` is null with `running_why` when it was not read."""
    setting = found.setting
    document: Document = {
        "knob": setting.knob,
        "target": setting.target,
        "written": setting.written,
        "want": want(setting.want),
        "running": None,
        "next_boot": plain(found.next_boot),
        "next_boot_why": found.next_boot_why,
        "next_boot_by": found.next_boot_by,
        "state": found.state,
        "state_why": found.why,
        "why": setting.why,
        "origin": setting.origin,
        "source": setting.source,
        "disruption": found.disruption,
        "required": setting.required,
        "remark": found.remark,
    }
    if isinstance(found.reading, Seen):
        document["running"] = plain(found.reading.value)
    else:
        document["running_why"] = found.reading.why
    return document


def change(found: Change) -> Document:
    """One write that the plan would make."""
    return {
        "knob": found.knob,
        "target": found.target,
        "before": plain(found.before),
        "after": plain(found.value),
        "want": want(found.want),
        "disruption": found.disruption,
        "held": found.held,
        "returning": found.returning,
        "note": found.note,
        "via": found.via,
    }


def outcome(found: Outcome) -> Document:
    """What became of one change."""
    return {
        "knob": found.knob,
        "target": found.target,
        "before": plain(found.before),
        "after": plain(found.after),
        "result": found.result,
        "why": found.why,
    }


def plan(found: Plan, on: Host) -> Document:
    """tuner.plan/1."""
    return {
        "schema": "tuner.plan/1",
        "id": found.id,
        "settings_id": found.settings_id,
        "profile": found.profile,
        "host": host(on),
        "verdicts": [verdict(v) for v in found.verdicts],
        "changes": [change(c) for c in found.changes],
        "left": list(found.left),
        "counts": found.counts(),
    }


def verify(found: Plan, on: Host, applied: Applied | None, notes: list[str]) -> Document:
    """tuner.verify/1: `state` is the worst; `generation` is null when a profile was judged that is not applied."""
    document = plan(found, on)
    del document["changes"], document["left"]
    return {
        **document,
        "schema": "tuner.verify/1",
        "state": worst_state(found),
        "generation": applied.generation if applied else None,
        "notes": notes,
    }


def worst_state(found: Plan) -> str:
    """The worst state that a verdict is in; `unsupported` counts as drift where it is required."""
    return max((effective(v) for v in found.verdicts), key=BEST_FIRST.index, default="ok")


REBOOT = re.compile(r"\b(reboot|next boot|reset of)\b")
"""In a reason for `pending`: what the knobs cmdline, module, nvidia.ecc and nvidia.mig wait for; limits do not."""


def reboot_due(found: Plan, on: Host) -> list[str]:
    """What waits for a reboot of the node or a reset of a device, each reason once; an image does not run."""
    whys = [v.why for v in found.verdicts if v.state == "pending" and REBOOT.search(v.why)]
    return [] if on.kind == "image" else list(dict.fromkeys(whys))


def effective(found: Verdict) -> str:
    """The state as it counts for exit codes."""
    return "drift" if found.state == "unsupported" and found.setting.required else found.state


def apply(report: Report, made: Plan, on: Host) -> Document:
    """tuner.apply/1: `generation` is null when nothing was written."""
    return {
        "schema": "tuner.apply/1",
        "generation": report.generation,
        "settings_id": made.settings_id,
        "profile": made.profile,
        "host": host(on),
        "changed": sum(o.result in ("done", "short") for o in report.outcomes),
        "held": [change(c) for c in made.changes if c.held],
        "undone": report.undone,
        "reason": report.reason,
        "not_restored": report.not_restored,
        "moved": report.moved,
        "after": after(report),
        "outcomes": [outcome(o) for o in report.outcomes],
    }


def after(report: Report) -> list[Document]:
    """What the system was told, or is still to be told."""
    return [{"action": action, "done": not why, "why": why} for action, why in report.after]


def rollback(report: Report, undoes: list[int], on: Host) -> Document:
    """tuner.rollback/1."""
    return {
        "schema": "tuner.rollback/1",
        "host": host(on),
        "undone": undoes,
        "after": after(report),
        "not_restored": report.not_restored,
        "outcomes": [outcome(o) for o in report.outcomes],
    }


def profile_setting(setting: Setting) -> Document:
    """One setting of a profile."""
    return {
        "knob": setting.knob,
        "target": setting.target,
        "want": want(setting.want),
        "origin": setting.origin,
        "why": setting.why,
        "source": setting.source,
        "required": setting.required,
        "gate": setting.gate,
    }


def error(code: Exit, problems: list[Problem]) -> Document:
    """tuner.error/1."""
    rows: list[Mapping[str, str]] = [{"where": p.where, "what": p.what, "hint": p.hint} for p in problems]
    return {"schema": "tuner.error/1", "exit": int(code), "errors": rows}
