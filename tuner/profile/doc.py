"""A profile as a document to read: Markdown (CommonMark with the tables of GitHub)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.knobs import BY_NAME, KNOBS, Knob
from tuner.knobs.sysctl import shown
from tuner.model import DISRUPTIONS, Setting, Want
from tuner.profile.load import Profile
from tuner.profile.match import Match

CLASSES = {
    "none": "harmless",
    "app": "felt by new processes only",
    "memory": "moves or takes memory of running processes",
    "clocks": "changes the speed of running jobs",
    "link": "takes a network link down for a moment",
    "gpu": "takes a GPU away from its jobs",
    "boot": "takes effect at the next boot",
    "nv": "is written to the flash of a device",
}
SIGNS = {"value": "", "at_least": "at least ", "at_most": "at most ", "one_of": "one of "}
QUIET = frozenset({"none", "app", "memory", "clocks"})
"""Classes that apply makes by itself, the last two while the node is idle."""

MARKUP = re.compile(r"[\\`*\[\]<>|~]|&(?=#?\w+;)|(?<!\w)_|_(?!\w)")
STARTS = re.compile(r"(?=#|[-+=](?:\s|$|-|=))|(?<=\d)(?=[.)](?:\s|$))")
HEADER = ("Target", "Wanted", "Class", "Why", "Source")


def for_what(match: Match) -> str:
    """The hardware that a profile is for, in words."""
    parts = []
    if match.gpu_ids:
        count = "" if match.gpu_count is None else f"{match.gpu_count} x "
        driver = f" with driver {match.gpu_driver}" if match.gpu_driver else ""
        parts.append(f"{count}GPU {' or '.join(match.gpu_ids)}{driver}")
    if match.nic_least or match.nic_drivers:
        names = f" of driver {' or '.join(match.nic_drivers)}" if match.nic_drivers else ""
        parts.append(f"at least {match.nic_least} NICs{names}")
    return "; ".join(parts) or "any host"


def document(profile: Profile, settings: Sequence[Setting], words: str) -> str:
    """The profile with these settings; `words` are the options that name it on a command line."""
    classes = _classes(settings)
    written = [setting for setting in settings if not BY_NAME[setting.knob].read_only]
    parts = [
        f"# {prose(profile.label)}",
        prose(profile.summary),
        f"For: {prose(for_what(profile.match))}.",
        *_commands(words, [name for name in _classes(written) if name not in QUIET]),
    ]
    for knob in KNOBS:
        ours = [setting for setting in settings if setting.knob == knob.name]
        parts += _section(knob, ours) if ours else []
    if classes:
        rows = [(f"`{name}`", CLASSES[name]) for name in classes]
        parts += ["## Classes of disruption", "\n".join(_table(("Class", "A change"), rows))]
    return "\n\n".join(parts) + "\n"


def _classes(settings: Sequence[Setting]) -> list[str]:
    """The classes that occur, mildest first."""
    found = {BY_NAME[setting.knob].disruption(setting.target) for setting in settings}
    return [name for name in DISRUPTIONS if name in found]


def _commands(words: str, allow: list[str]) -> list[str]:
    more = f" --allow {','.join(allow)}" if allow else ""
    commands = [f"tuner plan {words}", f"sudo tuner apply {words}{more}", "sudo tuner rollback"]
    return [
        "## Apply and undo",
        fenced("\n".join(commands)),
        "The first shows what would change and writes nothing, the second does it and undoes everything if one write is"
        " refused, the third gives every target back what it held before. A change of class `memory` or `clocks` waits"
        " while a job has a GPU or RDMA device open, unless `--allow` names its class.",
    ]


def _section(knob: Knob, settings: Sequence[Setting]) -> list[str]:
    """One knob: what it is, its settings, and how they are undone."""
    about = inspect.cleandoc(type(knob).__doc__ or "").partition("\n\n")[0]
    rows = [
        (code(s.target), _wanted(knob, s), f"`{knob.disruption(s.target)}`", prose(s.why), prose(s.source))
        for s in settings
    ]
    parts = [f"## {knob.name}", _authored(about), "\n".join(_table(HEADER, rows)), f"Undo: {_undo(knob)}"]
    for setting in settings:
        for choice in setting.want.choices():
            text = choice.get("text") if isinstance(choice, Mapping) else None
            if text is not None:
                parts += [f"Text of {code(setting.target)}:", fenced(str(text))]
    return parts


def _row(knob: Knob, setting: Setting) -> tuple[str, ...]:
    disruption = f"`{knob.disruption(setting.target)}`"
    return code(setting.target), _wanted(knob, setting), disruption, prose(setting.why), prose(setting.source)


def _undo(knob: Knob) -> str:
    if knob.read_only and not knob.persist:
        return "nothing to undo. tuner only judges these; `tuner plan` says what the operator has to do."
    if knob.read_only:
        return (
            "`tuner rollback` takes the files away again that ask for it; a process keeps its value until its restart."
        )
    text = "`tuner rollback` gives back what the target held before, unless somebody else has changed it since."
    return f"{text} A reboot undoes it too." if knob.persist else text


def _wanted(knob: Knob, setting: Setting) -> str:
    notes = ["required"] if setting.required else []
    notes += [f"gate {setting.gate}"] if setting.gate else []
    return wanted(setting.want, knob.main) + (f" ({', '.join(notes)})" if notes else "")


def wanted(want: Want, main: str = "") -> str:
    """A Want in Markdown, values in full; `main` is the field that a record may be known by."""
    return SIGNS[want.kind] + ", ".join(_value(choice, main) for choice in want.choices())


def _value(value: Any, main: str) -> str:
    if not isinstance(value, Mapping):
        return code(shown(value))
    if "text" in value:
        return _file(value)
    if set(value) == {main} or (
        len(value) > 1 and {*map(type, value.values())} == {int} and len({*value.values()}) == 1
    ):
        return code(shown(next(iter(value.values()))))
    return ", ".join(f"{prose(name)} {code(shown(part))}" for name, part in value.items())


def _file(value: Mapping[str, Any]) -> str:
    if value["text"] is None:
        return "no such file"
    more = [f"{name} {code(str(value[name]))}" for name in ("mode", "owner") if name in value]
    return ", ".join(["the text below", *more])


def prose(text: str) -> str:
    """Text as it is: nothing in it is Markdown."""
    escaped = _escaped(" ".join(text.split()))
    return STARTS.sub(r"\\", escaped, count=1) if re.match(r"#|[-+=]|\d+[.)]", escaped) else escaped


def _authored(text: str) -> str:
    """A docstring: code spans stay, all else is prose."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return MARKUP.sub(lambda found: f"\\{found.group()}", text)


def code(text: str) -> str:
    """A code span that may hold anything, in a table too."""
    text = " ".join(text.split()).replace("|", "\\|")
    if not text:
        return '`""`'
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def fenced(text: str) -> str:
    """A block of code that may hold anything."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    body = text.expandtabs(4).rstrip("\n")
    return f"{fence}text\n{body}\n{fence}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
