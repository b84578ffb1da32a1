"""Settings as a profile writes them -> settings of this host: patterns replaced by the targets that they match."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import replace

from tuner.errors import Problem, TunerError
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME
from tuner.model import Setting

WILD = frozenset("*?[")

Gaps = dict[tuple[str, str], str]
"""(knob, pattern) -> why the targets that it may match could not be listed."""


def expand(host: Host, settings: Collection[Setting], gaps: Gaps | None = None) -> list[Setting]:
    """Patterns replaced by the targets of this host that they match, names kept as they are.

    For one target the higher layer wins, inside a layer a name beats a pattern; two patterns of one layer that meet
    are an error, as is a node and a total of one pool. A pattern that matches nothing stays, as a setting whose
    target is the pattern; in `gaps` is then why, if it could not be looked up.
    """
    rivals: dict[tuple[str, str], list[Setting]] = {}
    found: dict[tuple[str, str], list[str] | str] = {}
    for setting in settings:
        targets = (
            _matching(host, setting, found, {} if gaps is None else gaps)
            if WILD & set(setting.written)
            else [setting.target]
        )
        for target in targets or [setting.target]:
            fresh = replace(setting, target=target)
            rivals.setdefault(fresh.at, []).append(fresh)
    problems: list[Problem] = []
    chosen = [_strongest(candidates, problems) for candidates in rivals.values()]
    problems += _clashes(chosen)
    if problems:
        raise TunerError(problems)
    return chosen


def _strongest(candidates: list[Setting], problems: list[Problem]) -> Setting:
    """The setting of the highest layer, in it a name before a pattern; two patterns there are a problem."""
    best = max(map(_strength, candidates))
    winners = [setting for setting in candidates if _strength(setting) == best]
    if len(winners) > 1:
        one, other = winners[0], winners[1]
        what = f"{one.target} is matched by {other.written} and by {one.written} ({one.origin})"
        problems.append(Problem(other.origin, what, "name the target in one of them"))
    return winners[0]


def _strength(setting: Setting) -> tuple[int, bool]:
    return setting.layer, not WILD & set(setting.written)


def _matching(host: Host, setting: Setting, found: dict[tuple[str, str], list[str] | str], gaps: Gaps) -> list[str]:
    knob = BY_NAME[setting.knob]
    place = knob.name, knob.search_root(setting.written)
    if place not in found:
        try:
            found[place] = knob.targets(host, setting.written)
        except Unrecorded as gap:
            found[place] = str(gap)
    targets = found[place]
    if isinstance(targets, str):
        gaps[setting.knob, setting.written] = targets
        return []
    return [target for target in targets if fnmatch.fnmatchcase(target, setting.written)]


def _clashes(settings: list[Setting]) -> list[Problem]:
    problems = []
    for name, knob in BY_NAME.items():
        ours = [s for s in settings if s.knob == name]
        what = knob.clash([s.target for s in ours])
        if what:
            hint = f"keep one of {', '.join(f'{s.written} ({s.origin})' for s in ours)}"
            problems.append(Problem(ours[-1].origin, what, hint))
    return problems
