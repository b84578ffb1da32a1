"""status, explain, history: the verbs that only look."""

from __future__ import annotations

import argparse
import fnmatch
import inspect
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner import applied as cache
from tuner import documents, hung, losses, off, render, skips
from tuner.cli.common import Answer, exit_of, no_overlays, open_root, profile_of
from tuner.errors import BadValue, Exit, bad_input, worst
from tuner.expand import WILD, expand
from tuner.host import Host, Unrecorded
from tuner.journal import Generation, Journal
from tuner.judging import judged
from tuner.knobs import BY_NAME, Knob
from tuner.ledger import Ledger
from tuner.lock import held
from tuner.model import Reading, Seen, Setting, from_plain
from tuner.readings import read
from tuner.slurm import store
from tuner.unitfiles import STARTED


def status(args: argparse.Namespace) -> Answer:
    """One screen for three in the morning."""
    host = open_root(args.root)
    applied, ledger, readable = cache.current(host)
    off_why = off.state(host)
    rows: list[tuple[str, str]] = [("mode", f"off: {off_why}" if off_why else "on")]
    document: dict[str, Any] = {"schema": "tuner.status/1", "host": documents.host(host), "off": off_why or None}
    document |= {"generation": None, "settings_id": None, "profile": None, "who": None, "when": None}
    document |= {"reboot_due": [], "state": None, "counts": {}, "interrupted": [], "lock_held": held(host), "live": []}
    code = Exit.OK
    if applied is None:
        rows.append(("applied", "nothing yet"))
    else:
        _, made = judged(host)
        code = worst([exit_of(v) for v in made.verdicts])
        document |= {"generation": applied.generation, "settings_id": applied.settings_id, "profile": applied.profile}
        document |= {"who": applied.who, "when": applied.when, "counts": made.counts()}
        document |= {"state": documents.worst_state(made), "reboot_due": documents.reboot_due(made, host)}
        rows.append(("applied", f"generation {applied.generation}, profile {applied.profile}"))
        rows.append(("settings", applied.settings_id[:8]))
        rows.append(("by", f"{applied.who}, {applied.when}"))
        rows.append(("worst", f"{documents.worst_state(made)}   ({render.counted(made, planning=False)})"))
        rows += [("", f"{v.state} {v.setting.knob} {v.setting.target}") for v in made.verdicts if exit_of(v)][:8]
    rows += [("reboot due", why) for why in document["reboot_due"]]
    rows += _units_rows(host, document)
    rows += [("left alone", line) for line in losses.said(host)]
    rows += _jobs_rows(host, document)
    rows += _journal_rows(ledger, readable, document)
    if document["lock_held"]:
        rows.append(("lock", "a run is writing now"))
    return code, document, [render.head(host), *render.table(rows, group=False)]


def _units_rows(host: Host, document: dict[str, Any]) -> list[tuple[str, str]]:
    """How many units make what is applied so again, and each that does not, as `tuner persist status` has them."""
    from tuner.cli.persist import known  # systemd is asked there: not for explain and history

    document["units"] = found = known(host)
    wrong = {row["name"]: why for row in found if (why := _amiss(row))}
    if all(row["state"] == "not installed" for row in found):
        return [("units", "not installed: tuner persist install")]
    rows = [("units", f"{len(found) - len(wrong)} of {len(found)} armed")]
    return rows + [("", f"{name}: {why}") for name, why in wrong.items()]


def _amiss(unit: Mapping[str, Any]) -> str:
    """Why a unit would not do its part, as its file, its link or systemd says; empty when it would."""
    if unit["state"] != "current":
        return str(unit["state"])
    if unit["enabled"] is False:
        return "not enabled"
    result = unit["result"] or ""
    down = unit["name"] in STARTED and result and not result.startswith("active:")
    return result if down or result.startswith("failed:") else ""


def _jobs_rows(host: Host, document: dict[str, Any]) -> list[tuple[str, str]]:
    """What keeps jobs from this node, or does not: skips, the last drain of ours in this boot, what hangs."""
    skipped, drained, paths = skips.load(host), store.left(host), hung.living(host.root)
    document["skips"] = [asdict(skip) for skip in skipped]
    document["drained"] = asdict(drained) if drained else None
    document["hung"] = paths
    rows = [("skipped", f"{f'{s.knob} {s.target}'.strip()}: {s.words()}") for s in skipped]
    if drained:
        job = f", job {drained.job}" if drained.job else ""
        rows.append(("drained", f"by us: {drained.node}, {drained.when}{job}: {drained.reason}"))
    return rows + [("hangs", f"{path}: a process of ours hangs there; it is not asked again") for path in paths]


def _journal_rows(ledger: Ledger, readable: bool, document: dict[str, Any]) -> list[tuple[str, str]]:
    if not readable:
        return [("journal", "needs root")]
    document["live"] = [g.number for g in ledger.live]
    broken = [g.number for g in ledger.live if g.state in ("interrupted", "running", "not restored")]
    document["interrupted"] = broken
    rows = [("live", ", ".join(str(g.number) for g in ledger.live) or "no generation")]
    return rows + [("attention", f"generation {number} did not end well: tuner history {number}") for number in broken]


NAMED = 4
"""Targets of a pattern that are named for each value."""


def explain(args: argparse.Namespace) -> Answer:
    """The knob's own words, and for a target which value, why and says who."""
    host = open_root(args.root)
    name, _, target = args.place.partition(":")
    knob = BY_NAME.get(name)
    if knob is None:
        raise bad_input(args.place, f"no knob {name!r}", f"known: {', '.join(BY_NAME)}")
    lines = [render.head(host), f"knob {name}", "", *_doc(knob)]
    document: dict[str, Any] = {"schema": "tuner.explain/1", "host": documents.host(host), "knob": name}
    document |= {"doc": "\n".join(_doc(knob)), "target": None, "settings": []}
    if target:
        try:
            target = knob.canonical(target)
        except BadValue as bad:
            raise bad_input(args.place, bad.what, bad.hint) from None
        document["target"] = target
        ours = [s for s in _settings(host, args) if s.knob == name and target in (s.target, s.written)]
        settings = [s for s in ours if s.target == target] or ours[:1]
        rows = _place(host, knob, target)
        for setting in settings:
            rows += [("want", render.want(setting.want, name)), ("why", setting.why), ("source", setting.source)]
            rows += [("origin", setting.origin), ("required", "yes" if setting.required else "no")]
        if not settings:
            rows.append(("want", "nothing: no profile in force names it; give one with --profile"))
        document["settings"] = [documents.profile_setting(s) for s in settings]
        lines += ["", target, *render.table(rows, group=False)]
    return Exit.OK, document, lines


def _doc(knob: Knob) -> list[str]:
    return inspect.cleandoc(type(knob).__doc__ or "").splitlines()


def _place(host: Host, knob: Knob, target: str) -> list[tuple[str, str]]:
    rows = [("running", text) for text in _running(host, knob, target)]
    about = knob.about(target)
    rows += [("about", about)] if about else []
    rows.append(("disruption", knob.disruption(target)))
    rows.append(("undo", _undo(knob)))
    return rows


def _undo(knob: Knob) -> str:
    if knob.read_only:
        return "tuner rollback takes the files away that ask for it" if knob.persist else "nothing: judged only"
    return "tuner rollback gives back what the target held before apply"


def _running(host: Host, knob: Knob, target: str) -> list[str]:
    """What a target holds; of a pattern each value once, with the targets that hold it."""
    if not WILD & set(target):
        return [_shown(read(host, knob, target))]
    held: dict[str, list[str]] = {}
    try:
        for one in knob.targets(host, target):
            if fnmatch.fnmatchcase(one, target):
                held.setdefault(_shown(read(host, knob, one)), []).append(one)
    except Unrecorded as gap:
        return [str(gap)]
    more = {text: f" and {len(names) - NAMED} more" if len(names) > NAMED else "" for text, names in held.items()}
    rows = [f"{text}   ({', '.join(names[:NAMED])}{more[text]})" for text, names in held.items()]
    return rows or ["no such target on this host"]


def _shown(found: Reading) -> str:
    return render.reading(found) if isinstance(found, Seen) else found.why


def _settings(host: Host, args: argparse.Namespace) -> list[Setting]:
    if args.profile:
        return expand(host, profile_of(host, args).settings)
    no_overlays(args)
    applied = cache.current(host)[0]
    return list(applied.settings) if applied else []


def history(args: argparse.Namespace) -> Answer:
    """The generations, newest last, or the lines of one."""
    host = open_root(args.root)
    try:
        journal = Journal(host)
    except PermissionError:
        raise bad_input("/var/lib/tuner", "only root can read the journal", "sudo tuner history") from None
    if args.generation is not None:
        return _one_generation(host, journal, args.generation)
    live = {g.number for g in cache.current(host)[1].live}
    rows = [_generation(g, g.number in live) for _, g in sorted(journal.generations.items())]
    table = [("gen", "state", "when", "by", "profile", "settings", "writes")] + [
        tuple(map(str, r.values())) for r in rows
    ]
    lines = [render.head(host), *(render.table(table, group=False) if rows else ["no generation yet"])]
    return Exit.OK, {"schema": "tuner.history/1", "host": documents.host(host), "generations": rows}, lines


def _generation(generation: Generation, live: bool) -> dict[str, Any]:
    head = generation.head
    state = generation.state if live or generation.state == "undone" else "rolled back"
    return {
        "generation": generation.number,
        "state": state,
        "when": head["when"],
        "who": head["who"],
        "profile": head["profile"],
        "settings_id": head["settings_id"][:8],
        "writes": sum(line["op"] == "outcome" and line["run"] == "apply" for line in generation.lines),
    }


def _one_generation(host: Host, journal: Journal, number: int) -> Answer:
    generation = journal.generations.get(number)
    if generation is None:
        known = ", ".join(map(str, sorted(journal.generations))) or "none"
        raise bad_input(str(number), "no such generation", f"known: {known}")
    found = [line for line in generation.lines if line["op"] in ("outcome", "moved")]
    rows = []
    for line in found:
        before, after = (render.value(from_plain(line[name])) for name in ("before", "after"))
        result = line.get("result", "side effect")
        rows.append(
            (line["run"], result, f"{line['knob']} {line['target']}", before, f"-> {after}", line.get("why", ""))
        )
    live = number in {g.number for g in cache.current(host)[1].live}
    about = _generation(generation, live)
    lines = [render.head(host, generation.head["settings_id"]), ", ".join(f"{k} {v}" for k, v in about.items()), ""]
    document = {"schema": "tuner.history/1", "host": documents.host(host), "generations": [{**about, "lines": found}]}
    return Exit.OK, document, [*lines, *render.table(rows)]
