"""Verdicts and policy -> whether the node takes the job, and the line that says why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tuner import render, skips
from tuner.judging import IN_PROGRESS
from tuner.model import Seen, Verdict
from tuner.skips import Skip
from tuner.slurm.policy import Policy

At = tuple[str, str]
LONGEST = 80
"""Characters of a reason: a line of most terminals. `sinfo -R` shows 20 of them, `sinfo -R -o "%80E %N"` all."""

ORDER = ("missing", "drift", "unsupported", "unknown")
"""What drains, worst first: the first is named."""

FINE = ("ok", "raised")
MARKED = ("pending", "held", "shadowed")
MOST_MARKS = 8
"""Places that one line of the log names."""

WIDEST = 120
"""Characters of why one of them was let through."""


@dataclass(frozen=True)
class Row:
    """One verdict as far as the decision needs it: all text, so that a process can hand it to another."""

    knob: str
    target: str
    state: str
    gate: str = ""
    required: bool = False
    want: str = ""
    has: str = ""
    why: str = ""
    skipped: str = ""

    @property
    def at(self) -> At:
        """(knob, target)."""
        return self.knob, self.target


@dataclass(frozen=True)
class Decision:
    """The rows that keep the job from the node, worst first, and what is let through but said."""

    drain: tuple[Row, ...]
    marks: tuple[str, ...]


def row_of(verdict: Verdict, skipped: Sequence[Skip] = ()) -> Row:
    """A verdict as a row."""
    setting = verdict.setting
    has = render.reading(verdict.reading) if isinstance(verdict.reading, Seen) else ""
    return Row(
        setting.knob,
        setting.target,
        verdict.state,
        setting.gate,
        setting.required,
        render.want(setting.want, setting.knob),
        has,
        verdict.why,
        skips.of(skipped, *setting.at),
    )


def decide(policy: Policy, rows: Iterable[Row], seen: Collection[At], there: Collection[At] = ()) -> Decision:
    """What a policy makes of the rows; `seen` are the places that were as wanted before, in this boot.

    `there` are those of which that is true under whatever settings: what was there once and is gone is missing.
    """
    drain: list[Row] = []
    marks: list[str] = []
    for row in rows:
        wrong = _wrong(policy, row)
        if not wrong:
            continue
        let = _let_through(policy, row, row.at in seen or (row.state == "missing" and row.at in there))
        if let:
            marks.append(f"{row.knob} {row.target} {row.state} ({_cut(let, WIDEST)})")
        else:
            drain.append(row)
    drain.sort(key=lambda row: ORDER.index(row.state))
    return Decision(tuple(drain), tuple(marks))


def _wrong(policy: Policy, row: Row) -> bool:
    """Whether there is anything to say of a row at all."""
    if policy.mode == "off" or row.gate == "off" or row.state in FINE:
        return False
    return row.required or row.state != "unsupported"


def _let_through(policy: Policy, row: Row, known: bool) -> str:
    """Why this row keeps no job away; empty when it does."""
    enforced = row.knob in policy.enforce or row.gate == "enforce"
    reasons = (
        (bool(row.skipped), row.skipped),
        (row.state in MARKED, row.why or "let through"),
        (row.why == IN_PROGRESS, IN_PROGRESS),
        (row.gate == "report", "gate: report"),
        (row.state == "unknown" and not policy.closed(row.knob), f"{row.why}; unknown is open"),
        (row.state in ("drift", "unsupported") and not enforced, "not enforced"),
        (
            not known,
            "never ok in this boot" if row.state == "missing" else "never ok in this boot under these settings",
        ),
        (policy.mode != "enforce", "mode report"),
    )
    return next((said for holds, said in reasons if holds), "")


def cause(row: Row) -> str:
    """What the brake counts as one thing."""
    return f"{row.knob} {row.state}"


def reason(drain: Sequence[Row]) -> str:
    """`tuner: hugepages node0/2MB want 2048 has 0`: ASCII, at most 80 characters, safe in any quotes."""
    first = drain[0]
    match first.state:
        case "drift":
            tail = f" want {first.want} has {first.has or 'none'}"
        case "missing":
            tail = " missing"
        case _:
            tail = f" {first.state}: {first.why}"
    more = f" (+{len(drain) - 1} more)" if len(drain) > 1 else ""
    head = f"tuner: {first.knob} {first.target}"
    return _cut(_ascii(head + tail), LONGEST - len(more)) + more


def marked(marks: Sequence[str]) -> str:
    """One line of the log for what was let through; empty for nothing."""
    if not marks:
        return ""
    more = f" and {len(marks) - MOST_MARKS} more" if len(marks) > MOST_MARKS else ""
    return f"job starts with marks: {', '.join(marks[:MOST_MARKS])}{more}"


def _ascii(text: str) -> str:
    safe = "".join(c if c.isascii() and c.isprintable() and c not in "'\"`\\" else "?" for c in text)
    return " ".join(safe.split())


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 2].rstrip() + ".."
