"""Skips: for a while, what differs at a place keeps no job from its node. /etc/tuner/skips.json, for root to write.

A skip ends by itself, lasts seven days at most, and is said in every verdict of its place until then.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.errors import bad_input
from tuner.host import Host, Unrecorded
from tuner.host.door import make_parents
from tuner.model import Plan
from tuner.off import MINUTES, SPAN, now

PATH = "/etc/tuner/skips.json"
LONGEST = datetime.timedelta(days=7)
BACK = datetime.timedelta(minutes=5)
"""How far a clock may be behind the one that a skip was made by."""
MOST = 256


@dataclass(frozen=True)
class Skip:
    """`target` is empty where all targets of the knob are skipped; times are ISO 8601 in UTC."""

    knob: str
    target: str
    since: str
    until: str
    who: str
    why: str

    def covers(self, knob: str, target: str) -> bool:
        """Whether this place is skipped; the target of a skip may be a pattern, as in a profile."""
        return self.knob == knob and (self.target in ("", target) or fnmatch.fnmatchcase(target, self.target))

    def words(self) -> str:
        """As every verdict says it."""
        return f"skipped until {self.until} by {self.who}: {self.why}"


def load(host: Host) -> list[Skip]:
    """The skips that are in force. What nobody but root wrote counts; what cannot be read skips nothing."""
    try:
        status = host.stat(PATH, follow=False)
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            return []
        return [skip for skip in parsed(host.text(PATH)) if in_force(skip)]
    except (OSError, Unrecorded):
        return []


def parsed(text: str) -> list[Skip]:
    """The skips in a text; none where it is not one of ours."""
    try:
        rows: list[dict[str, Any]] = json.loads(text)["skips"]
        found = [Skip(**{name: row[name] for name in Skip.__dataclass_fields__}) for row in rows[:MOST]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [skip for skip in found if all(isinstance(word, str) for word in asdict(skip).values())]


def in_force(skip: Skip) -> bool:
    """Whether it has begun and not ended; one that lasts longer than any may, or began in the future, is none."""
    try:
        since, until = (datetime.datetime.fromisoformat(text) for text in (skip.since, skip.until))
        return since - BACK <= now() < until and until - since <= LONGEST
    except (ValueError, TypeError):
        return False


def made(knob: str, target: str, span: str, why: str, who: str) -> Skip:
    """A skip from now on for `span`, such as 2h; TunerError (bad input) for a span that is none, or too long."""
    match = SPAN.fullmatch(span)
    hint = "a number and m, h or d, such as 2h; at most 7d"
    if match is None:
        raise bad_input(f"--for {span}", "not a span of time", hint)
    length = datetime.timedelta(minutes=int(match.group(1)) * MINUTES[match.group(2)])
    if length > LONGEST:
        raise bad_input(f"--for {span}", "is longer than 7 days", "what has to last belongs into the profile")
    return Skip(knob, target, now().isoformat(), (now() + length).isoformat(), _line(who), _line(why))


def keep(host: Host, skips: Sequence[Skip]) -> None:
    """Writes them all; without any the file goes. The caller holds the lock."""
    if not skips:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            host.unlink(PATH)
        return
    make_parents(host, PATH)
    text = json.dumps({"skips": [asdict(skip) for skip in skips]}, indent=1) + "\n"
    host.put(PATH, text.encode("ascii"), 0o644, (0, 0) if os.geteuid() == 0 else None)


def of(skips: Sequence[Skip], knob: str, target: str) -> str:
    """What to say of a place that is skipped; empty for any other."""
    return next((skip.words() for skip in skips if skip.covers(knob, target)), "")


def marked(plan: Plan, host: Host) -> Plan:
    """The plan with a remark on every verdict whose place is skipped."""
    skips = load(host)
    if not skips:
        return plan
    verdicts = []
    for verdict in plan.verdicts:
        said = of(skips, *verdict.setting.at)
        verdicts.append(replace(verdict, remark="; ".join(filter(None, (said, verdict.remark)))))
    return replace(plan, verdicts=tuple(verdicts))


def _line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
