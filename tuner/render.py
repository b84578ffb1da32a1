"""Documents and plans as text for people: aligned columns, plain when piped, coloured on a terminal."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from tuner.host import Host
from tuner.knobs import BY_NAME
from tuner.knobs.sysctl import shown
from tuner.model import Change, Outcome, Plan, Reading, Seen, Unreadable, Verdict, Want

SIGNS = {"value": "", "at_least": ">= ", "at_most": "<= "}
STYLES = {
    "to change": "yellow", "drift": "red", "missing": "bold red", "unknown": "magenta", "held": "cyan",
    "unsupported": "dim", "shadowed": "red", "pending": "cyan", "ok": "green", "raised": "green", "undone": "yellow",
    "done": "green", "short": "yellow", "refused": "bold red", "not ours any more": "yellow", "unchanged": "dim",
}  # fmt: skip
LEGEND = {
    "raised": "the kernel holds more than asked for; it is left alone",
    "pending": "right after the next boot or service restart",
    "held": "wanted, but allowed by nobody yet",
    "unsupported": "this kernel or device does not have it, or will not take it",
    "shadowed": "right now, but another file wins at the next boot",
    "unknown": "could not be read",
    "drift": "differs from what is wanted",
    "missing": "was there at apply and is gone, or no longer answers",
}
NOT_KNOWN = "not known"
WIDEST = 44
REASONS = 4
"""Reasons why a next boot is not as now that are named, the most frequent ones."""

Row = tuple[str, ...]


def value(found: Any, main: str = "") -> str:
    """What a target holds on one line; long text by its size; of a record the `main` field first.

    A target whose whole value is null was read as having no getter (model.known): what is not there, such as a file,
    is null inside a record.
    """
    return NOT_KNOWN if found is None else _told(found, main)


def _told(found: Any, main: str = "") -> str:
    """A value, or a part of one, or one that is wanted: null is `none`."""
    if isinstance(found, Mapping):
        return _record(found, main)
    return "none" if found is None else _short(shown(found))


def _record(found: Mapping[str, Any], main: str) -> str:
    if "text" in found:
        return _text(found["text"])
    if main in found:
        others = " ".join(f"{name} {_told(item)}" for name, item in found.items() if name != main)
        return _told(found[main]) + (f" ({_short(others)})" if others else "")
    if len(found) > 1 and len(set(found.values())) == 1 and isinstance(next(iter(found.values())), int):
        return _told(next(iter(found.values())))
    return " ".join(f"{name} {_told(item)}" for name, item in found.items())


def _text(text: Any) -> str:
    if text is None:
        return "no file"
    lines = str(text).count("\n") + (not str(text).endswith("\n"))
    return f"{lines} line{'s' * (lines != 1)}, {len(str(text))} characters"


def _short(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def want(wanted: Want, knob: str = "") -> str:
    """A Want as the table shows it."""
    if wanted.kind == "one_of":
        return "one of " + ", ".join(_told(choice, main_of(knob)) for choice in wanted.value)
    return SIGNS[wanted.kind] + _told(wanted.value, main_of(knob))


def main_of(knob: str) -> str:
    """The field of the knob's record that tables show first."""
    return BY_NAME[knob].main if knob in BY_NAME else ""


def reading(found: Reading) -> str:
    """What was read; `not known` where the target has no getter, else a dash."""
    if isinstance(found, Unreadable) and found.fault == "no getter":
        return NOT_KNOWN
    return value(found.value) if isinstance(found, Seen) else "-"


def _running(found: Verdict | Change) -> str:
    """Running value; of a record without a main field what is wanted and what is set."""
    if isinstance(found, Verdict) and not isinstance(found.reading, Seen):
        return reading(found.reading)
    seen = found.before if isinstance(found, Change) else getattr(found.reading, "value", None)
    knob, want_ = (found.knob, found.want) if isinstance(found, Change) else (found.setting.knob, found.setting.want)
    wanted = want_.choices()
    if (
        isinstance(seen, Mapping)
        and not main_of(knob)
        and wanted
        and isinstance(wanted[0], Mapping)
        and "text" not in seen
    ):
        return value({name: item for name, item in seen.items() if name in wanted[0] or item})
    return value(seen, main_of(knob))


def head(host: Host, settings_id: str = "") -> str:
    """The first line of every output: which kind of host, which one, which settings."""
    kernel = f"kernel {host.kernel}" if host.kernel else ""
    return "   ".join(
        part for part in (str(host), kernel, f"settings {settings_id[:8]}" if settings_id else "") if part
    )


def counted(plan: Plan, *, planning: bool) -> str:
    """`64 settings: 52 ok, 8 to change, ...`."""
    counts = plan.counts()
    back = sum(c.returning for c in plan.changes)
    names = {"drift": "to change"} if planning else {}
    first = ("ok", "raised", "drift") if planning else ()
    states = [*(s for s in first if s in counts), *(s for s in counts if s not in first)]
    changing = sum(not c.held and not c.returning for c in plan.changes)
    parts = []
    for state in states:
        number = changing if planning and state == "drift" else counts[state]
        parts += [f"{number} {names.get(state, state)}"] if number else []
        if planning and state == "drift" and counts[state] > number:
            parts.append(f"{counts[state] - number} differ{'s' * (counts[state] - number == 1)}")
    parts += [f"{back} to give back"] if back else []
    total = len(plan.verdicts)
    return f"{total} setting{'s' * (total != 1)}: {', '.join(parts) or 'none'}"


def plan(found: Plan, host: Host, *, all_rows: bool, command: str) -> list[str]:
    """The plan as people read it."""
    verdicts = {v.setting.at: v for v in found.verdicts}
    held = [c for c in found.changes if c.held]
    rows: list[Row] = [("to change", *_change(c, verdicts.get(c.at))) for c in found.changes if not c.held]
    rows += [("held", *_change(change, verdicts.get(change.at))) for change in held]
    planned = {c.at for c in found.changes}
    rows += [
        verdict_row(v)
        for v in found.verdicts
        if v.setting.at not in planned and (all_rows or v.remark or v.state != "ok")
    ]
    lines = [head(host, found.settings_id), counted(found, planning=True), "", *table(rows)]
    lines += [f"left alone  {line}" for line in found.left]
    lines += legend(v.state for v in found.verdicts if v.state not in ("ok", "drift"))
    lines += _hints(found, held, command)
    return lines


def _hints(found: Plan, held: Sequence[Change], command: str) -> list[str]:
    todo = [c for c in found.changes if not c.held]
    example = next((c for c in found.changes), None)
    lines = [""]
    if example:
        place = shlex.quote(f"{example.knob}:{example.target}")
        lines.append(f"Why a value: {command.replace('tuner apply', f'tuner explain {place}', 1)}")
    classes = sorted({c.disruption for c in held if c.held.startswith("needs --allow")})
    if todo or classes:
        lines.append(f"Do it:       {command}{f' --allow {chr(44).join(classes)}' if classes else ''}")
    return [*lines, *ahead(found, "Next boot as it stands")]


def _change(change: Change, verdict: Verdict | None) -> Row:
    running, wanted = _running(change), want(change.want, change.knob)
    if change.returning:
        wanted = value(change.value, main_of(change.knob))
    via = f"via {change.via}" if change.via else ""
    remark = verdict.remark if verdict else ""
    notes = [change.disruption if change.disruption != "none" else "", change.held, via, change.note, remark]
    ahead = next_boot(verdict) if verdict and change.knob != "file" and not verdict.next_boot_why else ""
    return f"{change.knob} {change.target}", running, wanted, ahead, "; ".join(note for note in notes if note)


def next_boot(found: Verdict) -> str:
    """What the target will hold after the next boot; empty where that says nothing."""
    if found.state in ("unsupported", "missing"):
        return ""
    if found.next_boot_why:
        return f"next boot {found.next_boot_why.partition(':')[0]}"
    where = f" ({found.next_boot_by})" if found.next_boot_by and found.state in ("shadowed", "drift") else ""
    return f"next boot {_told(found.next_boot, main_of(found.setting.knob))}{where}"


def ahead(found: Plan, title: str = "Next boot") -> list[str]:
    """The next boot of all settings in one line, and for each reason why one is lost or not predicted another."""
    verdicts = [v for v in found.verdicts if v.state not in ("unsupported", "missing")]
    known = [v for v in verdicts if not v.next_boot_why]
    words = {"lost": 0, "not predicted": 0}
    reasons: dict[str, int] = {}
    for verdict in verdicts:
        word, _, why = verdict.next_boot_why.partition(": ")
        if word in words:
            words[word] += 1
            reasons[f"{word}: {why}" if why else word] = reasons.get(f"{word}: {why}" if why else word, 0) + 1
    parts = [f"{len(known)} predicted", *(f"{number} {word}" for word, number in words.items() if number)]
    often = sorted(reasons.items(), key=lambda one: -one[1])[:REASONS]
    return [f"{title}: {', '.join(parts)}", *(f"  {number} {reason}" for reason, number in often)] if verdicts else []


def verdict_row(found: Verdict) -> Row:
    """One verdict as a row: state, place, running value, want, why."""
    note = found.why + (" (required)" if found.setting.required and found.state == "unsupported" else "")
    note = "; ".join(part for part in (note, found.remark) if part)
    return (
        found.state,
        f"{found.setting.knob} {found.setting.target}",
        _running(found),
        want(found.setting.want, found.setting.knob),
        next_boot(found) if found.setting.knob != "file" else "",
        note,
    )


def verify(found: Plan, host: Host, notes: list[str], *, all_rows: bool, next_boot: bool = False) -> list[str]:
    """The verdicts as people read them, worst first; with `next_boot` also what will not be as it is now."""
    shown_rows = [
        v
        for v in found.verdicts
        if all_rows or v.remark or v.state not in ("ok", "raised") or (next_boot and v.next_boot_why)
    ]
    order = list(LEGEND)
    shown_rows.sort(key=lambda v: -order.index(v.state) if v.state in order else 1)
    lines = [head(host, found.settings_id), counted(found, planning=False)]
    if shown_rows:
        rows = [verdict_row(v) for v in shown_rows]
        lines += ["", *table([(*row[:3], f"want {row[3]}", *row[4:]) for row in rows])]
    lines += legend(v.state for v in found.verdicts)
    return [*lines, "", *notes, *ahead(found)]


def outcomes(found: Iterable[Outcome], *, rolling: bool = False, word: str = "") -> list[str]:
    """One row for each outcome: before -> after; `word` stands for `done` where it did not last."""
    rows = [
        (
            word if word and o.result != "refused" else o.result,
            f"{o.knob} {o.target}",
            value(o.before, main_of(o.knob)),
            f"-> {value(o.after, main_of(o.knob))}",
            o.why,
        )
        for o in found
        if not (rolling and o.result == "unchanged" and not o.why)
    ]
    return table(rows)


def legend(states: Iterable[str]) -> list[str]:
    """What the states that occur mean."""
    occurring = set(states)
    rows = [(f"{state}:", text) for state, text in LEGEND.items() if state in occurring]
    return ["", *table([(name, text) for name, text in rows], group=False)] if rows else []


def table(rows: Sequence[Row], *, group: bool = True) -> list[str]:
    """Aligned columns; a first cell that repeats the row above is left blank."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines, former = [], ""
    for row in rows:
        first = "" if group and row[0] == former else row[0]
        former = row[0]
        cells = [first, *row[1:]]
        lines.append("  " + "   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return lines


def plain(lines: Iterable[str]) -> str:
    """Lines as one text; no control character passes."""
    return "".join("".join(c if c.isprintable() else "?" for c in line) + "\n" for line in lines)


def write(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Prints lines: with colour on a terminal unless NO_COLOR is set, else plain; no control character passes."""
    out = stream or sys.stdout
    text = plain(lines)
    if not out.isatty() or os.environ.get("NO_COLOR"):
        out.write(text)
        out.flush()
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False, soft_wrap=True)
    style = ""
    for line in text.splitlines():
        styled = Text(line)
        word = next((state for state in STYLES if line.startswith(f"  {state} ")), "")
        style = word or (style if line.startswith("   ") else "")
        if style:
            start = 2 if word else 0
            styled.stylize(STYLES[style], start, start + len(word) if word else 0)
        if line.startswith(("LIVE", "RECORDED", "IMAGE")):
            styled.stylize("bold")
        console.print(styled)
