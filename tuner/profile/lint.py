"""What is wrong with profile files, and what is only careless: every file, everything at once."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.errors import BadValue, Problem, TunerError
from tuner.expand import expand
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME
from tuner.knobs.base import number
from tuner.knobs.sysctl_keys import known as key_of
from tuner.model import Setting, leaves
from tuner.profile.files import HOSTS, SITE_FILE, Source, find, known, site_file
from tuner.profile.lines import Loader, lines, mapping, word
from tuner.profile.load import HOST, OVERLAY, SITE, TOP, load_profile
from tuner.profile.nodes import load

OLDEST_KERNEL = (4, 18)
"""The table of sysctl keys goes back to it."""

KNOWN = {"profile": TOP, "overlay": OVERLAY, "site file": SITE, "host file": HOST}
"""What can stand at the top of each kind of file."""

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """A problem with its weight: an `error` stops a plan, a `warning` does not, `info` asks for nothing."""

    level: Level
    problem: Problem


@dataclass(frozen=True)
class Named:
    """A file to lint: as it was asked for, which kind it is, and what it holds."""

    name: str
    kind: str
    source: Source


def lint(host: Host, files: Sequence[Named]) -> list[Finding]:
    """Every finding of these files, and of what they extend and lie under, by place."""
    found: dict[Problem, Level] = {}
    for file in files:
        for finding in [*_errors(host, file), *_careless(host, file)]:
            found.setdefault(finding.problem, finding.level)
    findings = [Finding(level, problem) for problem, level in found.items()]
    return sorted(findings, key=lambda finding: (_place(finding.problem.where), finding.problem))


def _place(where: str) -> tuple[str, int]:
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (where, 0)


def named(host: Host, names: Sequence[str]) -> list[Named]:
    """The files of these names or paths. Raises TunerError (bad input) with all that are not there."""
    found: list[Named] = []
    problems: list[Problem] = []
    for name in names:
        try:
            found += _files(host, name)
        except TunerError as error:
            problems += error.problems
    if problems:
        raise TunerError(problems)
    return found


def _files(host: Host, name: str) -> list[Named]:
    """A path is an overlay if its folder is called so; a name may be both."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        overlay = posixpath.basename(posixpath.dirname(posixpath.abspath(name))) == "overlays"
        return [Named(name, "overlay" if overlay else "profile", find(host, name, near=name, overlay=overlay))]
    overlay = name in known(host, "overlays/")
    found = [Named(name, "overlay", find(host, name, near=name, overlay=True))] if overlay else []
    if name in known(host) or not overlay:
        found.insert(0, Named(name, "profile", find(host, name, near=name)))
    return found


def every(host: Host) -> tuple[list[Named], list[Finding]]:
    """All files that this host knows; what cannot be read is a finding."""
    found: list[Named] = []
    findings: list[Finding] = []
    for kind, below in (("profile", ""), ("overlay", "overlays/")):
        for name in known(host, below):
            try:
                source = find(host, name, near=name, overlay=kind == "overlay")
                found.append(Named(name, kind, source))
            except TunerError as error:
                findings += [Finding("error", problem) for problem in error.problems]
    for kind, path in (("site file", SITE_FILE), ("host file", f"{HOSTS}/{host.name}.yaml")):
        try:
            file = site_file(host, path)
            found += [Named(path, kind, file)] if file else []
        except TunerError as error:
            findings += [Finding("error", problem) for problem in error.problems]
    return found, findings


def _errors(host: Host, file: Named) -> Iterator[Finding]:
    """What stops a plan: as the loader says it, and patterns that meet on this host."""
    if file.kind != "profile":
        return
    try:
        expand(host, load_profile(host, file.name).settings)
    except TunerError as error:
        yield from (Finding("error", problem) for problem in error.problems)
    except (OSError, Unrecorded):
        return


def _careless(host: Host, file: Named) -> Iterator[Finding]:
    """What the file itself says: its errors, also those of a file that is no profile, and what it leaves out."""
    loader, origin = Loader(host), file.source.origin
    try:
        root, problems = load(file.source.data, origin)
    except TunerError as error:
        yield from (Finding("error", problem) for problem in error.problems)
        return
    loader.problems += problems
    top = mapping(loader, root, origin, KNOWN[file.kind], file.kind)
    found = lines(loader, top["settings"], origin) if "settings" in top else []
    if file.kind in ("profile", "overlay") and root.kind == "map":
        name = word(loader, top, "name", origin, root)
        word(loader, top, "summary", origin, root)
        stem = posixpath.basename(origin).rpartition(".")[0]
        if name and name != stem:
            where = f"{origin}:{top['name'].line}"
            yield _warning(where, f"the name is {name}, the file is {stem}", "the file's name is what is looked up")
    yield from (Finding("error", problem) for problem in loader.problems)
    for line in found:
        if line.setting and line.setting.origin:
            yield from _remarks(line.setting)


def _warning(where: str, what: str, hint: str) -> Finding:
    return Finding("warning", Problem(where, what, hint))


def _remarks(setting: Setting) -> Iterator[Finding]:
    """What can be said of one setting beyond errors."""
    where, place = setting.origin, f"{setting.knob} {setting.target}"
    if setting.why.startswith("set by "):
        yield _warning(where, f"{place} has no why", "why: what it is for, in a sentence")
    if setting.source.startswith("set by "):
        yield _warning(where, f"{place} has no source", "source: who says so, a document or a measurement")
    if setting.want.kind in ("at_least", "at_most") and not _numeric(setting):
        what = f"{place}: {setting.want.kind} compares numbers, and this is none"
        yield _warning(where, what, "use value or one_of")
    if setting.knob != "sysctl":
        return
    key = key_of(setting.target)
    if key is None:
        hint = "the value is checked on the host, by what the kernel shows there"
        yield Finding("info", Problem(where, f"{place} is not in tuner's table of keys", hint))
    elif key.dropped and tuple(int(part) for part in key.dropped.split(".")) <= OLDEST_KERNEL:
        hint = f"now {key.moved_to}" if key.moved_to else "take it out"
        yield _warning(where, f"{place} was dropped in Linux {key.dropped}: no supported kernel has it", hint)


def _numeric(setting: Setting) -> bool:
    if not BY_NAME[setting.knob].bounds or (isinstance(setting.want.value, Mapping) and "text" in setting.want.value):
        return False
    words = [part for leaf in leaves(setting.want.value) for part in str(leaf).split()]
    try:
        return bool([number(part) for part in words])
    except BadValue:
        return False
