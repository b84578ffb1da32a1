"""plan, apply, rollback: the verbs that lead to writes."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tuner import applied as cache
from tuner import apply as applying
from tuner import documents, idle, off, planfile, render
from tuner import plan as planning
from tuner.cli.common import Answer, begin_line, exit_of, no_overlays, open_root, profile_of, who, words_of
from tuner.cli.judge import renew
from tuner.errors import Exit, Problem, TunerError, bad_input, worst
from tuner.host import Host
from tuner.host.after import MUST, act
from tuner.journal import Journal, Line
from tuner.knobs import BY_NAME
from tuner.ledger import Ledger, fold
from tuner.lock import locked
from tuner.model import Absent, Plan, Verdict
from tuner.profile import Profile, match
from tuner.run import Progress, Report, Stop
from tuner.undo import rollback as undo
from tuner.undo import settle


def plan(args: argparse.Namespace) -> Answer:
    """What apply would do now."""
    if args.output and args.as_if:
        raise bad_input("-o", "keeps no plan for files that are not in place", "leave -o or --as-if out")
    host = open_root(args.root)
    profile = profile_of(host, args)
    match.require(host, profile.match, profile.name)
    _, ledger, readable = cache.current(host)
    made = _make(host, profile, args, ledger)
    if args.output:
        planfile.save(args.output, profile, made, documents.plan(made, host), keep_unmentioned=args.keep_unmentioned)
    lines = render.plan(made, host, all_rows=args.all, command=f"tuner apply {words_of(profile)}{_root(args)}")
    if not readable:
        lines.append("Not shown:   what a profile before this one left, since only root can read the journal")
    lines += [
        f"Not used:    {part} of site.yaml: this release checks it and does nothing with it" for part in profile.unused
    ]
    lines += _off(host)
    return _plan_exit(made), documents.plan(made, host), lines


def _make(host: Host, profile: Profile, args: argparse.Namespace, ledger: Ledger) -> Plan:
    allowed = idle.allowed(host, args.allow)
    keep = args.keep_unmentioned
    return planning.make(
        host, profile.label, profile.settings, allowed, ledger, keep_unmentioned=keep, keeping=profile.keeping
    )


def _root(args: argparse.Namespace) -> str:
    return f" --root {shlex.quote(args.root)}" if args.root else ""


def _off(host: Host) -> list[str]:
    why = off.state(host)
    return [f"tuner is off: {why}; an operator's apply and rollback still run"] if why else []


def _plan_exit(made: Plan) -> Exit:
    codes = [exit_of(v) for v in made.verdicts]
    codes += [Exit.HELD if c.held else Exit.DIFFERS for c in made.changes]
    return worst(codes)


def apply(args: argparse.Namespace) -> Answer:
    """Makes the plan so, under the lock."""
    host = open_root(args.root, writing=True)
    kept = _kept(args)
    profile = kept.profile if kept else profile_of(host, args)
    match.require(host, profile.match, profile.name)
    with locked(host, who()), Stop().listening() as stop:
        journal = Journal(host)
        notes = settled(host, journal)
        ledger = fold(journal)
        made = _make(host, profile, args, ledger)
        planfile.check(made, host, kept, args.expect)
        gone = applying.stale(host, made)
        if gone:
            hint = "nothing was written; run it again"
            raise TunerError(Problem("", f"the host changed under the plan: {', '.join(gone)}", hint), Exit.DIFFERS)
        head = {**begin_line(host, profile), "allow": args.allow}
        others = ledger.newest is None or _others(ledger.newest.head, made, profile)
        with _progress() as progress:
            report = applying.apply(
                host,
                journal,
                made,
                head,
                stop,
                keep=args.on_error == "keep",
                adopt=others,
                progress=progress,
                again=lambda: _make(host, profile, args, ledger),
            )
        report.after += retried(host, journal, report.after)
        notes += _publish(host, journal, report)
    if report.generation is not None:
        renew(host)
    lines = [render.head(host, made.settings_id), *_off(host), *notes, *_outcome_lines(host, report, made, _root(args))]
    code = worst([_apply_exit(report, made), Exit.DIFFERS if _untold(host, report) else Exit.OK])
    return code, documents.apply(report, made, host), lines


def _others(head: Line, made: Plan, profile: Profile) -> bool:
    """Whether other settings are applied than before, or the node boots from something else now."""
    return bool(head["settings_id"] != made.settings_id or head.get("boots_from", "") != profile.keeping.boots_from)


def _untold(host: Host, report: Report) -> bool:
    """Whether a file means nothing yet, because what reads it could not be told."""
    return host.kind == "live" and any(why for action, why in report.after if action in MUST)


def retried(host: Host, journal: Journal, done: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What the system was to be told in an earlier run and could not be: told again, on a live host."""
    told = []
    for action in journal.open_actions() if host.kind == "live" else ():
        if action not in [name for name, _ in done]:
            fine, why = act(host, action)
            journal.add(journal.newest(), {"op": "after", "run": "apply", "action": action, "done": fine, "why": why})
            told.append((action, why))
    return told


def _kept(args: argparse.Namespace) -> planfile.Kept | None:
    """The kept plan that is to be applied; None where a profile is named."""
    if bool(args.plan) == bool(args.profile):
        raise bad_input(
            "", "apply takes --profile NAME or a kept plan", "tuner apply --profile NAME, or tuner apply FILE"
        )
    if args.plan is None:
        return None
    no_overlays(args)
    if args.keep_unmentioned:
        raise bad_input(
            "--keep-unmentioned", "was settled when the plan was kept", "tuner plan --keep-unmentioned -o FILE"
        )
    kept = planfile.load(args.plan)
    args.keep_unmentioned = kept.keep_unmentioned
    return kept


def settled(host: Host, journal: Journal) -> list[str]:
    """Closes what an interrupted run left open, and says what it found; TunerError where the journal is full."""
    host.ready()
    try:
        return settle(host, journal)
    except OSError as error:
        what = f"the journal of an interrupted run cannot be completed: {error.strerror}"
        raise TunerError(Problem("", what, "nothing was written; make room in /var/lib/tuner"), Exit.UNDONE) from None


def _publish(host: Host, journal: Journal, report: Report) -> list[str]:
    notes = []
    try:
        if report.generation is not None:
            journal.prune()
    except OSError as error:
        notes.append(f"old generations cannot be dropped: {error.strerror}")
    problem = cache.publish(host, journal)
    return [*notes, problem] if problem else notes


def _apply_exit(report: Report, made: Plan) -> Exit:
    if report.not_restored:
        return Exit.NOT_RESTORED
    if report.reason:
        return Exit.UNDONE
    codes = [Exit.DIFFERS for o in report.outcomes if o.result in ("short", "refused")]
    codes += [Exit.DIFFERS for v in made.verdicts if v.state == "unsupported" and v.setting.required]
    codes += [exit_of(v) for v in made.verdicts if v.state in ("unknown", "missing")]
    codes += [Exit.DIFFERS for v in made.verdicts if _refuses(v, made)]
    return worst(codes)


def _refuses(verdict: Verdict, made: Plan) -> bool:
    """Whether a target does not take what is wanted, so that nothing was tried: it is no drift for the operator.

    In an image nothing has a value to differ; what its next boot will not have is said by its verdicts.
    """
    at = verdict.setting.at
    writable = at[0] in BY_NAME and not BY_NAME[at[0]].read_only and not isinstance(verdict.reading, Absent)
    return verdict.state == "drift" and writable and all(change.at != at for change in made.changes)


def _outcome_lines(host: Host, report: Report, made: Plan, root: str) -> list[str]:
    held = [c for c in made.changes if c.held]
    undone = report.undone and bool(report.reason)
    lines = render.outcomes(report.outcomes, word="undone" if undone else "")
    lines += [f"  side effect   {place}" for place in report.moved]
    lines += _after(report)
    rest = [_since(host, v) for v in made.verdicts if _left(v, made) and host.kind != "image"]
    if report.reason:
        state = "all was undone" if report.undone else "NOT RESTORED: " + ", ".join(report.not_restored)
        lines += ["", f"Failed: {report.reason}", state if report.outcomes else "nothing was written"]
    elif report.outcomes:
        results = [o.result for o in report.outcomes]
        counts = ", ".join(f"{results.count(r)} {r}" for r in ("done", "short", "refused") if r in results)
        lines += ["", f"Generation {report.generation}: {counts}. Undo it: tuner rollback{root}"]
    elif report.generation is not None:
        lines.append(f"Nothing to write; generation {report.generation} records these settings as the applied ones")
    else:
        lines.append("Nothing to write" if held or rest else "Nothing to write: the host is as the profile wants it")
    rows: list[render.Row] = [
        (
            "held",
            f"{c.knob} {c.target}",
            render.value(c.before, render.main_of(c.knob)),
            render.want(c.want, c.knob),
            "",
            c.held,
        )
        for c in held
    ]
    rows += [render.verdict_row(v) for v in rest]
    return [*lines, "", *render.table(rows)] if rows else lines


def _since(host: Host, verdict: Verdict) -> Verdict:
    """A setting that nobody can write now, and that waits since its file was written."""
    if verdict.state != "drift":
        return verdict
    waiting = BY_NAME[verdict.setting.knob].pending(host, verdict.setting.target, verdict.setting.want.choices()[0])
    return replace(verdict, state="pending", why=waiting) if waiting else verdict


def _left(verdict: Verdict, made: Plan) -> bool:
    """Whether apply could do nothing about this verdict, and the reader must know."""
    if verdict.state == "drift":
        return verdict.setting.at not in {c.at for c in made.changes}
    return verdict.state in ("unknown", "missing", "pending") or (
        verdict.state == "unsupported" and verdict.setting.required
    )


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Says on a terminal which change is under way, once a run takes over two seconds."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    start = time.monotonic()

    def say(what: str) -> None:
        if time.monotonic() - start > 2:
            sys.stderr.write(f"\r\033[Kwriting {what}")
            sys.stderr.flush()

    yield say
    if time.monotonic() - start > 2:
        sys.stderr.write("\r\033[K")


def rollback(args: argparse.Namespace) -> Answer:
    """Gives back what the newest live generation changed."""
    host = open_root(args.root, writing=True)
    with locked(host, who()), Stop().listening():
        journal = Journal(host)
        notes = settled(host, journal)
        cache.publish(host, journal)
        _check_target(fold(journal), args.to)
        try:
            report, undoes = undo(host, journal, args.to, who(), force=args.force)
        except OSError as error:
            what = f"the journal cannot be written: {error.strerror}"
            raise TunerError(
                Problem("", what, "nothing was restored; make room in /var/lib/tuner"), Exit.NOT_RESTORED
            ) from None
        report.after += retried(host, journal, report.after)
        notes += _publish(host, journal, report)
        newest = fold(journal).newest
    renew(host)
    lines = [render.head(host), *_off(host), *notes, *render.outcomes(report.outcomes, rolling=True)]
    lines += [*_after(report), ""]
    numbers = ", ".join(map(str, undoes))
    state = "not all restored, still live" if _open(report) else "rolled back"
    lines.append(f"Generation{'s' * (len(undoes) > 1)} {numbers}: {state}. {_now(newest)}")
    lines += [f"NOT RESTORED  {place}" for place in report.not_restored]
    code = worst([_rollback_exit(report), Exit.NOT_RESTORED if _untold(host, report) else Exit.OK])
    return code, documents.rollback(report, undoes, host), lines


def _after(report: Report) -> list[str]:
    return [f"  {action}: {why or 'done'}" for action, why in report.after]


def _open(report: Report) -> bool:
    return bool(report.not_restored) or any(o.result in ("held", "short", "refused") for o in report.outcomes)


def _now(newest: Any) -> str:
    return f"Applied now: generation {newest.number}" if newest else "Nothing is applied now"


def _check_target(ledger: Ledger, to: int | None) -> None:
    numbers = [g.number for g in ledger.live]
    if not numbers:
        raise bad_input("", "nothing to roll back", "tuner history lists the generations")
    if to is not None and to != 0 and to not in numbers:
        raise bad_input(f"--to {to}", "no live generation of that number", f"live: 0, {', '.join(map(str, numbers))}")
    if to is not None and to >= numbers[-1]:
        raise bad_input(f"--to {to}", "is the newest live generation: nothing to roll back", "give an older one")


def _rollback_exit(report: Report) -> Exit:
    results = [o.result for o in report.outcomes]
    codes = [Exit.NOT_RESTORED] * bool(report.not_restored or "refused" in results or "short" in results)
    codes += [Exit.DIFFERS] * ("not ours any more" in results)
    codes += [Exit.HELD] * ("held" in results)
    return worst(codes)
