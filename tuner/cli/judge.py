"""verify: what was applied judged again, or a profile."""

from __future__ import annotations

import argparse
import json
import os

from tuner import applied as cache
from tuner import documents, evidence, formats, off, render
from tuner import plan as planning
from tuner.cli.common import Answer, exit_of, no_overlays, open_root, profile_of, words_of
from tuner.errors import Exit, TunerError, worst
from tuner.host import Host
from tuner.judging import asks_tools, judged, lasting
from tuner.ledger import Applied
from tuner.model import Plan, Verdict, settings_id
from tuner.profile import load_profile
from tuner.slurm import gate


def verify(args: argparse.Namespace) -> Answer:
    """The applied generation judged, or a profile."""
    if args.profile:
        host, applied, made = look(args)
        said: list[str] = []
    else:
        no_overlays(args)
        host = open_root(args.root)
        applied, made, said = _noted(host)
    code = worst([exit_of(v) for v in made.verdicts])
    lines = render.verify(made, host, said, all_rows=args.all, next_boot=args.next_boot)
    if args.next_boot:
        code = worst([code, *map(_next_boot, made.verdicts)])
    return code, documents.verify(made, host, applied, said), lines


def _next_boot(verdict: Verdict) -> Exit:
    """What the next boot of one setting asks for, where somebody asks about it."""
    if verdict.state in ("unsupported", "missing") or not verdict.next_boot_why:
        return Exit.OK
    return Exit.DIFFERS if verdict.next_boot_why.startswith("lost") else Exit.UNKNOWN


def look(args: argparse.Namespace) -> tuple[Host, Applied | None, Plan]:
    """The host, the applied generation (None where --profile is judged), and the verdicts."""
    host = open_root(args.root)
    if not args.profile:
        no_overlays(args)
        return host, *judged(host)
    profile = profile_of(host, args)
    allowed = planning.Allowed(frozenset({"none", "app", "memory", "clocks"}))
    known = cache.current(host)[1]
    made = planning.make(
        host, profile.label, profile.settings, allowed, known, keep_unmentioned=True, keeping=profile.keeping
    )
    return host, None, made


def renew(host: Host) -> None:
    """After a run of writes: judges what is applied now, so that the next verify finds evidence."""
    if os.geteuid() == 0:
        try:
            _noted(host)
        except TunerError:
            evidence.drop(host)


def _noted(host: Host) -> tuple[Applied, Plan, list[str]]:
    """The applied generation, its verdicts and what to say besides; kept as evidence."""
    tree = evidence.note(host)
    applied, made = judged(host)
    said = notes(host, applied)
    answers = {}
    if lasting(host) and not off.state(host):
        answers = {} if asks_tools(applied) else _answers(host, applied, made, said)
        answers |= gate.answers(host, applied, made)
    evidence.renew(host, tree, answers)
    return applied, made, said


def _answers(host: Host, applied: Applied, made: Plan, said: list[str]) -> dict[str, tuple[int, bytes]]:
    """The answer of verify in each of its forms."""
    code = worst([exit_of(v) for v in made.verdicts])
    texts = {"json": json.dumps(documents.verify(made, host, applied, said), indent=1) + "\n"}
    for form, all_rows in (("text", False), ("all", True)):
        texts[form] = render.plain(render.verify(made, host, said, all_rows=all_rows))
    answers = {form: (int(code), text.encode("utf-8", "backslashreplace")) for form, text in texts.items()}
    for name in formats.NAMES:
        text = formats.render(name, made, host, applied, said, code)
        answers[name] = int(formats.exit_code(name, code)), text.encode("utf-8")
    return answers


def notes(host: Host, applied: Applied) -> list[str]:
    """What to say besides of an applied generation: who applied it, whether its profile changed, the off-switch."""
    said = [f"Applied: generation {applied.generation}, profile {applied.profile}, {applied.when} by {applied.who}"]
    try:
        profile = load_profile(host, applied.reference, applied.overlays, applied.sets)
    except TunerError:
        said.append(f"The profile {applied.reference} cannot be read now; what was applied is judged")
    else:
        if settings_id(list(profile.settings)) != applied.settings_id:
            said.append(f"Profile changed since apply: tuner plan {words_of(applied)} shows the difference")
    why = off.state(host)
    return [*said, f"tuner is off: {why}"] if why else said
