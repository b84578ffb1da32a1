"""The answer of verify in the formats of other programs: `nagios`, `prometheus` and `junit`.

Pure functions: a plan that was judged, the host and the applied generation go in, text comes out. No line of that text
has a character that does not print, whatever a file or a device of the host holds.

Sources: Monitoring Plugins Development Guidelines, "Plugin Output for Nagios" and "Performance data"
(monitoring-plugins.org/doc/guidelines.html); Prometheus, "Exposition formats", text format 0.0.4
(prometheus.io/docs/instrumenting/exposition_formats); Jenkins xUnit plugin, junit-10.xsd
(github.com/jenkinsci/xunit-plugin).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence

from tuner import render as people
from tuner.documents import BEST_FIRST, effective
from tuner.errors import Exit, Problem
from tuner.host import Host
from tuner.ledger import Applied
from tuner.model import STATES, Plan, Seen, Verdict

NAMES = ("nagios", "prometheus", "junit")
"""What --format takes."""

PLUGIN = {Exit.OK: 0, Exit.PENDING: 1, Exit.HELD: 1, Exit.DIFFERS: 2, Exit.MISSING: 2}
"""Our exit codes as a monitoring plugin's; every other one is UNKNOWN."""

UNKNOWN = 3
"""The exit code of a plugin that could not tell."""

WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
"""What the exit codes 0 to 3 of a plugin are called."""

LONGEST = 30
"""Rows below the first line: monitoring systems cut the text of a plugin at some kilobytes."""

ELEMENTS = {
    "drift": "failure", "shadowed": "failure", "missing": "failure", "unknown": "error",
    "unsupported": "skipped", "held": "skipped", "pending": "skipped",
}  # fmt: skip
"""What stands in the test case of a state; `ok` and `raised` have nothing, which is passed."""

Labels = Mapping[str, str]


def render(name: str, made: Plan, host: Host, applied: Applied | None, notes: list[str], code: int) -> str:
    """The text of one of NAMES, each line ended; `code` is our exit code, `applied` None where a profile was judged."""
    match name:
        case "nagios":
            return nagios(made, host, applied, notes, code)
        case "prometheus":
            return prometheus(made, applied, code)
        case "junit":
            return junit(made, host, applied, notes)
    raise ValueError(f"no format {name}")


def exit_code(name: str, code: int) -> int:
    """What the process ends with: under `nagios` the plugin's 0 to 3, under the other formats our own code."""
    return PLUGIN.get(Exit(code), UNKNOWN) if name == "nagios" else code


def visible(text: str) -> str:
    """The text with every character that does not print, line ends and lone surrogates too, as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _label(applied: Applied | None) -> str:
    return str(applied.generation) if applied else ""


def _told(found: Verdict) -> str:
    """`60, want 1: why`: what was read, if it could be, what is wanted, and why it is in its state."""
    _, _, running, want, ahead, note = people.verdict_row(found)
    read = f"{running}, " if isinstance(found.reading, Seen) else ""
    later = f", {ahead}" if found.state == "shadowed" else ""
    return f"{read}want {want}{later}" + (f": {note}" if note else "")


# --- nagios -------------------------------------------------------------------------------------------------------


def nagios(made: Plan, host: Host, applied: Applied | None, notes: list[str], code: int) -> str:
    """One line with status, counts and performance data; below it what is not as wanted, worst first, and the notes.

    `unsupported` settings that nobody requires are counted only: they fail nothing.
    """
    what = f"generation {applied.generation}, " if applied else ""
    short = f"{host.name}, {what}profile {made.profile}: {people.counted(made, planning=False)}"
    wrong = [v for v in made.verdicts if effective(v) not in ("ok", "raised", "unsupported")]
    wrong.sort(key=lambda v: -BEST_FIRST.index(effective(v)))
    rows = [f"{v.state}: {v.setting.knob} {v.setting.target} {_told(v)}" for v in wrong[:LONGEST]]
    if len(wrong) > LONGEST:
        rows.append(f"and {len(wrong) - LONGEST} more: tuner verify")
    counts, total = made.counts(), len(made.verdicts)
    data = " ".join(f"{state}={counts.get(state, 0)};;;0;{total}" for state in STATES)
    first = f"TUNER {WORDS[exit_code('nagios', code)]} - {_unpiped(short)} | {data}"
    return "".join(f"{line}\n" for line in [first, *map(_unpiped, [*rows, *notes])])


def failed(problems: Sequence[Problem]) -> str:
    """What a plugin says that could not do its work: the first problem in the first line; it ends with UNKNOWN."""
    lines: list[str] = []
    for problem in problems:
        lines.append(f"{problem.where}: {problem.what}" if problem.where else problem.what)
        lines += [f"hint: {problem.hint}"] if problem.hint else []
    first, *others = map(_unpiped, lines or ["no reason given"])
    return "".join(f"{line}\n" for line in [f"TUNER UNKNOWN - {first}", *others])


def _unpiped(text: str) -> str:
    """On one line, without the bar that begins performance data and that no escape can protect."""
    return visible(text).replace("|", "/")


# --- prometheus ---------------------------------------------------------------------------------------------------


def prometheus(made: Plan, applied: Applied | None, code: int) -> str:
    """Gauges for node_exporter's textfile collector: what was judged, the exit code, counts, settings not as wanted."""
    counts = made.counts()
    about = {"settings_id": made.settings_id, "profile": made.profile, "generation": _label(applied)}
    wrong = [
        {"knob": v.setting.knob, "target": v.setting.target, "state": v.state}
        for v in made.verdicts
        if v.state not in ("ok", "raised")
    ]
    lines = [
        *_gauge("tuner_info", "What was judged; generation is empty for a profile that need not be applied", [about]),
        *_gauge("tuner_verify_exit_code", "Exit code of tuner verify: 0 is as wanted", [{}], [code]),
        *_gauge(
            "tuner_settings",
            "Settings in each state",
            [{"state": state} for state in STATES],
            [counts.get(state, 0) for state in STATES],
        ),
        *_gauge("tuner_setting_not_as_wanted", "A setting in a state other than ok and raised", wrong),
    ]
    return "".join(f"{line}\n" for line in lines)


def _gauge(name: str, text: str, labels: Sequence[Labels], values: Sequence[int] = ()) -> list[str]:
    """The lines of one metric, none where it has no series; without values, each series is 1. Equal lines once."""
    series = [f"{name}{_labels(row)} {number}" for row, number in zip(labels, values or [1] * len(labels), strict=True)]
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", *dict.fromkeys(series)] if series else []


def _labels(labels: Labels) -> str:
    pairs = [f'{name}="{_quoted(text)}"' for name, text in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _quoted(text: str) -> str:
    r"""A label's value: `\`, `"` and the line end as the format escapes them, what does not print as visible text."""
    shown = "\n".join(visible(part) for part in text.split("\n"))
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- junit --------------------------------------------------------------------------------------------------------


def junit(made: Plan, host: Host, applied: Applied | None, notes: list[str]) -> str:
    """One test suite with a test case per setting, as pure ASCII; `unsupported` that is required is a failure."""
    elements = [ELEMENTS.get(effective(v), "") for v in made.verdicts]
    numbers = {
        "tests": str(len(elements)),
        "failures": str(elements.count("failure")),
        "errors": str(elements.count("error")),
    }
    top = ET.Element("testsuites", {"name": "tuner verify", **numbers})
    about = {"name": visible(f"tuner verify {made.profile}"), "hostname": visible(host.name)}
    suite = ET.SubElement(top, "testsuite", {**about, **numbers, "skipped": str(elements.count("skipped"))})
    properties = ET.SubElement(suite, "properties")
    facts = {"settings_id": made.settings_id, "profile": made.profile, "generation": _label(applied)}
    for name, value in {**facts, "kind": host.kind, "kernel": host.kernel}.items():
        ET.SubElement(properties, "property", name=name, value=visible(value))
    for found, element in zip(made.verdicts, elements, strict=True):
        _case(suite, found, element)
    ET.SubElement(suite, "system-out").text = "\n".join(map(visible, notes))
    ET.indent(top)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(top, encoding="us-ascii").decode("ascii")}\n'


def _case(suite: ET.Element, found: Verdict, element: str) -> None:
    setting = found.setting
    case = ET.SubElement(suite, "testcase", classname=f"tuner.{setting.knob}", name=visible(setting.target))
    if element:
        inner = ET.SubElement(case, element, type=found.state, message=visible(_told(found)))
        said = (f"why: {setting.why}", f"source: {setting.source}", f"from: {setting.origin}")
        inner.text = "\n".join(map(visible, said))
