"""verify: what was applied judged again, or a profile."""

from __future__ import annotations

import argparse
import time

from tuner import applied as cache
from tuner import documents, off, render
from tuner import plan as planning
from tuner.cli.common import Answer, exit_of, no_overlays, open_root, profile_of, words_of
from tuner.errors import TunerError, bad_input, worst
from tuner.host import Host
from tuner.journal import Journal
from tuner.ledger import Applied
from tuner.lock import held
from tuner.model import Plan, Unreadable, Verdict, settings_id
from tuner.profile import load_profile

SETTLING = 1.0
"""Seconds that verify gives an apply in progress before it says so."""


def verify(args: argparse.Namespace) -> Answer:
    """The applied generation judged, or a profile."""
    host = open_root(args.root)
    if args.profile:
        applied, notes = None, []
        profile = profile_of(host, args)
        allowed = planning.Allowed(frozenset({"none", "app", "memory", "clocks"}))
        made = planning.make(
            host, profile.label, profile.settings, allowed, cache.current(host)[1], keep_unmentioned=True
        )
    else:
        no_overlays(args)
        applied, made = judged(host)
        notes = _notes(host, applied)
    code = worst([exit_of(v) for v in made.verdicts])
    lines = render.verify(made, host, notes, all_rows=args.all)
    return code, documents.verify(made, host, applied, notes), lines


def judged(host: Host) -> tuple[Applied, Plan]:
    """The applied generation and its verdicts; while an apply is under way, what differs is not known."""
    applied = _applied(host, cache.current(host)[0])
    if not _writing(host):
        return applied, planning.verify(host, applied)
    time.sleep(SETTLING)
    applied = _applied(host, cache.current(host)[0])
    made = planning.verify(host, applied)
    if not _writing(host):
        return applied, made
    why = "apply in progress"
    verdicts = tuple(
        Verdict(v.setting, Unreadable(why), "unknown", why, v.disruption) if v.state in ("drift", "missing") else v
        for v in made.verdicts
    )
    return applied, Plan(made.settings_id, made.profile, verdicts, ())


def _applied(host: Host, found: Applied | None) -> Applied:
    if found is None:
        raise bad_input(str(host), "nothing applied yet", "tuner apply --profile NAME, or verify --profile NAME")
    return found


def _writing(host: Host) -> bool:
    """Whether a run is open and alive."""
    if not held(host):
        return False
    try:
        return any(g.open_run() for g in Journal(host).generations.values())
    except PermissionError:
        return True


def _notes(host: Host, applied: Applied) -> list[str]:
    notes = [f"Applied: generation {applied.generation}, profile {applied.profile}, {applied.when} by {applied.who}"]
    try:
        profile = load_profile(host, applied.reference, applied.overlays, applied.sets)
    except TunerError:
        notes.append(f"The profile {applied.reference} cannot be read now; what was applied is judged")
    else:
        if settings_id(list(profile.settings)) != applied.settings_id:
            notes.append(f"Profile changed since apply: tuner plan {words_of(applied)} shows the difference")
    why = off.state(host)
    return [*notes, f"tuner is off: {why}"] if why else notes
