"""profiles list, show, lint, diff, init, schema."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tuner import documents, render
from tuner.cli.common import Answer, open_root, profile_of, words_of
from tuner.errors import Exit, Problem, TunerError, bad_input
from tuner.expand import expand
from tuner.host import Host, Unrecorded
from tuner.knobs import number_of
from tuner.model import Setting, settings_id
from tuner.profile import Profile, load_profile
from tuner.profile import doc as markdown
from tuner.profile import lint as linting
from tuner.profile.files import SITE, find, known
from tuner.profile.match import Match, misfits
from tuner.profile.nodes import load

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def list_profiles(args: argparse.Namespace) -> Answer:
    """What this host knows by name, the site's own first."""
    host = open_root(args.root)
    found = [_listed(host, name, "profile") for name in known(host)]
    found += [_listed(host, name, "overlay") for name in known(host, "overlays/")]
    rows: list[tuple[str, ...]] = []
    for one in found:
        where = "site" if one["origin"].startswith(SITE) else "shipped"
        rows.append((one["name"], f"{where} {one['kind']}", _fit(one), one["summary"]))
        if one["for"] not in ("", "any host"):
            rows.append(("", "", "", f"for {one['for']}"))
        rows += [("", "", "", why) for why in one["why"]]
    document = {"schema": "tuner.profiles/1", "host": documents.host(host), "profiles": found}
    lines = render.table(rows, group=False) or ["no profiles"]
    return Exit.OK, document, [render.head(host), *lines]


def _fit(one: dict[str, Any]) -> str:
    if one["kind"] == "overlay":
        return "--with"
    if one["fits"] is None:
        return "not judged"
    return "fits" if one["fits"] else "does not fit"


def _listed(host: Host, name: str, kind: str) -> dict[str, Any]:
    """One row: `fits` is null where nothing was judged, `why` says why not or what is wrong."""
    row: dict[str, Any] = {"name": name, "kind": kind, "origin": "", "summary": "", "for": "", "match": None}
    row |= {"fits": None, "why": []}
    try:
        source = find(host, name, overlay=kind == "overlay")
        row["origin"] = source.origin
        root, _ = load(source.data, source.origin)
        row["summary"] = next((v.text or "" for k, v in root.pairs if k.text == "summary"), "")
        if kind == "profile":
            match = load_profile(host, name).match
            row |= {"for": markdown.for_what(match), "match": _match(match), **_judged(host, match)}
    except TunerError as error:
        wrong = len(error.problems)
        row["why"] = [f"{wrong} problem{'s' * (wrong != 1)}: tuner profiles lint {name}"]
    return row


def _match(match: Match) -> dict[str, Any]:
    return {name: list(part) if isinstance(part, tuple) else part for name, part in asdict(match).items()}


def _judged(host: Host, match: Match) -> dict[str, Any]:
    if host.kind == "image" and match != Match():
        return {"fits": None, "why": ["an image has no hardware"]}
    try:
        wrong = misfits(host, match)
    except (OSError, Unrecorded) as error:
        return {"fits": None, "why": [f"cannot tell: {error}"]}
    return {"fits": not wrong, "why": [f"expected {expected}, found {found}" for expected, found in wrong]}


def show(args: argparse.Namespace) -> Answer:
    """The settings of a profile with its overlays, each with its Want and its origin; as a document with --doc."""
    host = open_root(args.root)
    profile = profile_of(host, args)
    settings = expand(host, profile.settings) if args.resolved else list(profile.settings)
    settings.sort(key=lambda setting: number_of(setting.knob))
    identity = settings_id(list(profile.settings))
    document = _document(profile, settings, documents.host(host), identity)
    if args.doc:
        text = markdown.document(profile, settings, words_of(profile))
        return Exit.OK, {**document, "doc": text}, text.splitlines()
    rows = [(s.knob, s.target, render.want(s.want, s.knob), s.origin, _remarks(s)) for s in settings]
    summary = f"{profile.label}: {profile.summary}"
    return Exit.OK, document, [render.head(host, identity), summary, "", *render.table(rows)]


def _document(profile: Profile, settings: Sequence[Setting], host: dict[str, Any], identity: str) -> dict[str, Any]:
    """tuner.profile/1."""
    return {
        "schema": "tuner.profile/1",
        "name": profile.name,
        "summary": profile.summary,
        "overlays": list(profile.overlays),
        "sets": list(profile.sets),
        "match": _match(profile.match),
        "host": host,
        "settings_id": identity,
        "settings": [{**documents.profile_setting(s), "written": s.written} for s in settings],
    }


def _remarks(setting: Setting) -> str:
    notes = ["required"] if setting.required else []
    notes += [f"gate {setting.gate}"] if setting.gate else []
    notes += [f"by {setting.written}"] if setting.written != setting.target else []
    return ", ".join(notes)


def lint(args: argparse.Namespace) -> Answer:
    """Every problem of every file; without names, of all files that this host knows."""
    host = open_root(args.root)
    files, findings = (linting.named(host, args.profiles), []) if args.profiles else linting.every(host)
    findings = [*findings, *linting.lint(host, files)]
    lines = [render.head(host)]
    for finding in findings:
        mark = "" if finding.level == "error" else f"{finding.level}: "
        lines.append(f"{finding.problem.where}: {mark}{finding.problem.what}")
        lines += [f"  hint: {finding.problem.hint}"] if finding.problem.hint else []
    counted = [finding for finding in findings if finding.level != "info"]
    lines.append(f"{_count(len(files), 'file')}, {_count(len(counted), 'finding')}")
    document = {
        "schema": "tuner.lint/1",
        "host": documents.host(host),
        "files": [file.source.origin for file in files],
        "findings": [{"level": finding.level, **asdict(finding.problem)} for finding in findings],
    }
    return Exit.DIFFERS if counted else Exit.OK, document, lines


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' * (number != 1)}"


def diff(args: argparse.Namespace) -> Answer:
    """What only one of two profiles wants, and what they want differently, on this host."""
    host = open_root(args.root)
    one, other = _loaded(host, [args.one, args.other])
    left, right = ({(s.knob, s.written): s for s in profile.settings} for profile in (one, other))
    only_one = [s for at, s in left.items() if at not in right]
    only_other = [s for at, s in right.items() if at not in left]
    both = [(s, right[at]) for at, s in left.items() if at in right and _wanted(s) != _wanted(right[at])]
    row = documents.profile_setting
    document = {
        "schema": "tuner.profile-diff/1",
        "host": documents.host(host),
        "one": args.one,
        "other": args.other,
        "only_one": [row(s) for s in only_one],
        "only_other": [row(s) for s in only_other],
        "different": [{"knob": a.knob, "target": a.target, "one": row(a), "other": row(b)} for a, b in both],
    }
    rows = [("different", f"{a.knob} {a.target}", _shown(a), _shown(b)) for a, b in both]
    rows += [(f"only {args.one}", f"{s.knob} {s.target}", _shown(s), "-") for s in only_one]
    rows += [(f"only {args.other}", f"{s.knob} {s.target}", "-", _shown(s)) for s in only_other]
    table = render.table([("", "", args.one, args.other), *rows]) if rows else ["no difference"]
    return Exit.DIFFERS if rows else Exit.OK, document, [render.head(host), *table]


def _loaded(host: Host, names: Sequence[str]) -> list[Profile]:
    """The profiles of these names; what is wrong with any of them is said at once."""
    found: list[Profile] = []
    problems: list[Problem] = []
    for name in names:
        try:
            found.append(load_profile(host, name))
        except TunerError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise TunerError(problems)
    return found


def _wanted(setting: Setting) -> tuple[Any, ...]:
    """What the settings id is made of."""
    return setting.want, setting.required, setting.gate


def _shown(setting: Setting) -> str:
    notes = ["required"] if setting.required else []
    notes += [f"gate {setting.gate}"] if setting.gate else []
    return " ".join([render.want(setting.want, setting.knob), *notes])


def init(args: argparse.Namespace) -> Answer:
    """Writes a commented start; never over a file, never through a link."""
    from tuner.profile.start import SUMMARY, start

    path, (stem, suffix) = args.file, os.path.splitext(os.path.basename(args.file))
    if suffix not in (".yaml", ".yml") or not NAME.fullmatch(stem):
        raise bad_input(path, "is not the name of a profile's file", "letters, digits, . _ - and then .yaml")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise bad_input(path, "is there already", "choose another name, or remove it first") from None
    except OSError as error:
        raise bad_input(path, f"cannot be written: {error.strerror}", "check the folder") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(start(stem).encode())
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise bad_input(path, f"cannot be written: {error.strerror}", "is the disk full?") from None
    row = {"name": stem, "kind": "profile", "origin": path, "summary": SUMMARY, "for": "any host", "match": None}
    document = {"schema": "tuner.profiles/1", "host": None, "profiles": [{**row, "fits": None, "why": []}]}
    return Exit.OK, document, [f"{path} is written: edit it, then tuner profiles lint {path}"]


def schema(args: argparse.Namespace) -> Answer:
    """The JSON Schema of a profile's file: the document is the schema."""
    from tuner.profile.schema import editor_schema

    found = editor_schema()
    return Exit.OK, found, json.dumps(found, indent=1).splitlines()
