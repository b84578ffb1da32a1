"""JSON Schema of profiles for editors, made from what the loader and the knobs themselves check.

It is as strict as the loader where a schema can be: what it refuses, the loader refuses too. What only a host knows
(which targets there are, what a driver offers) it leaves open, as does everything about a knob that has no part here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from tuner.boot.tokens import ABSENT
from tuner.boot.tokens import WORDS as TOKENS
from tuner.knobs import KNOBS, Knob
from tuner.knobs.amdgpu_levels import TAKES
from tuner.knobs.amdgpu_state import KINDS_OF_ERROR, MODES, XNACK
from tuner.knobs.cmdline import DEAD
from tuner.knobs.hugepages import TARGET as POOL
from tuner.knobs.limits import LIMITS
from tuner.knobs.service import CHOICES, OTHERS
from tuner.knobs.shm import MOST, SHM, SIZE
from tuner.knobs.sysctl_keys import ACTIONS, ELSEWHERE, KEYS, PAIRS, Key
from tuner.knobs.sysctl_pair import PAIRS as COUPLES
from tuner.knobs.sysfs import BOUNDS, KSM, SCHEDULER
from tuner.knobs.thp import NUMBERS, WORDS
from tuner.model import WANT_KINDS
from tuner.profile.lines import GATES, LINE
from tuner.profile.load import TOP
from tuner.profile.match import PCI_ID
from tuner.profile.shapes import MANAGER, NUMBER_TEXT, NVIDIA, Schema
from tuner.profile.shapes import closed as _closed
from tuner.profile.shapes import number as _number

Defs = dict[str, Any]

TEXT: Schema = {"type": ["string", "number"], "minLength": 1}
WORD: Schema = {"type": ["string", "number", "boolean"]}
ANY: Schema = {}
WILD = r"[*?\[]"
ADDRESS = r"(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]"
COUNT: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0, "maximum": 9999}, {"type": "string", "pattern": "^\\d{1,4}$"}]
}
NAMES: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
PCI: Schema = {"type": "string", "pattern": f"^{PCI_ID.pattern}$"}


def editor_schema() -> Schema:
    """The schema of a profile file; an overlay is a profile without match and extends."""
    defs: Defs = {"line": _line()}
    knobs = {knob.name: _knob(knob, defs) for knob in KNOBS}
    parts: dict[str, Schema] = {
        "name": {**TEXT, "description": "The name of the profile: that of the file without .yaml"},
        "summary": {**TEXT, "description": "One line for `tuner profiles list`"},
        "match": _match(),
        "extends": {**NAMES, "description": "Profiles that this one lies over, the first lowest: names, or paths"},
        "settings": {
            "description": "What each knob's targets shall hold: KNOB: {TARGET: VALUE}",
            **_closed(knobs),
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "tuner.profile-file.json",
        "title": "A profile of tuner",
        "description": "In YAML 1.2. `tuner profiles lint FILE` checks the same and more, with line numbers.",
        "required": ["name", "summary"],
        "anyOf": [{"required": ["settings"]}, {"required": ["extends"]}],
        **_closed({key: parts[key] for key in TOP}),
        "$defs": defs,
    }


def _match() -> Schema:
    gpus = {"ids": {"anyOf": [PCI, {"type": "array", "items": PCI, "minItems": 1}]}, "count": COUNT, "driver": TEXT}
    nics = {"drivers": NAMES, "at_least": COUNT}
    what = "The hardware that the profile is for; without it, any host"
    parts = {"gpus": {**_closed(gpus), "required": ["ids"]}, "nics": _closed(nics)}
    return {**_closed(parts), "description": what}


def _line() -> Schema:
    """A setting that says more than its value: one kind of Want, or `unset` alone."""
    parts: dict[str, Schema] = {
        "value": {"description": "Exactly this"},
        "at_least": {"description": "This or more; what is larger is left alone"},
        "at_most": {"description": "This or less"},
        "one_of": {"type": "array", "minItems": 1, "description": "Any of these; the first is written"},
        "via": {**TEXT, "description": "The tool that a write goes through, where the knob knows several"},
        "why": {**TEXT, "description": "What it is for, in a sentence"},
        "source": {**TEXT, "description": "Who says so: a public document, or a repository and path"},
        "required": {"type": "boolean", "description": "A host that lacks the target fails"},
        "gate": {"enum": list(GATES), "description": "What the check before a job does about it"},
        "unset": {"type": "boolean", "description": "Takes an inherited setting out; stands alone"},
    }
    kept = {"unset": {"const": False}}
    return {
        **_closed({key: parts[key] for key in LINE}),
        "oneOf": [
            *({"required": [kind], "properties": kept} for kind in WANT_KINDS),
            {"required": ["unset"], "properties": {"unset": {"const": True}}, "maxProperties": 1},
        ],
    }


def _setting(defs: Defs, name: str, shape: Schema, bound: Schema | bool = True) -> Schema:
    """A reference to a setting whose values have this shape; `bound`: what at_least and at_most take, if not that."""
    defs.setdefault(name, shape)
    value = {"$ref": f"#/$defs/{name}"}
    wants = {"value": value, "at_least": value if bound is True else bound, "one_of": {"items": value}}
    wants["at_most"] = wants["at_least"]
    full = {"$ref": "#/$defs/line", "properties": wants}
    defs.setdefault(f"{name}.setting", {"if": {"type": "object"}, "then": full, "else": value})
    return {"$ref": f"#/$defs/{name}.setting"}


def _knob(knob: Knob, defs: Defs) -> Schema:
    """Targets and their shapes, as far as the knob can say."""
    make = PARTS.get(knob.name)
    found = make(defs) if make else _closed({}, others=_setting(defs, "any", ANY))
    return {**found, "description": " ".join(inspect.cleandoc(type(knob).__doc__ or "").split())}


def _bounded(defs: Defs, low: int | None, high: int | None) -> Schema:
    span = f"number.{'' if low is None else low}..{'' if high is None else high}"
    return _setting(defs, span, _number(low, high))


def _words(defs: Defs, words: tuple[str, ...]) -> Schema:
    return _setting(defs, f"word.{'.'.join(words).replace('+', '-')}", {"enum": list(words)}, bound=False)


def _refused(hint: str) -> Schema:
    return {"not": {}, "description": hint}


def _sysctl(defs: Defs) -> Schema:
    open_shape = {"anyOf": [WORD, {"type": "array", "items": WORD}]}
    exact = {name: _key(defs, key) for name, key in KEYS.items() if "*" not in name}
    exact |= {name: _refused(f"half of a pair: knob sysctl.pair, target {pair}") for name, pair in PAIRS.items()}
    exact |= {name: _refused(f"use the knob {knob}") for name, knob in ELSEWHERE.items()}
    exact |= {name: _refused("an action, not a setting") for name in sorted(ACTIONS)}
    patterns = {}
    for name, key in KEYS.items():
        head, star, tail = name.partition("*")
        if star:
            patterns[f"^{re.escape(head)}.+{re.escape(tail)}$"] = _key(defs, key)
    return _closed(exact, patterns, others=_setting(defs, "sysctl.unknown", open_shape))


def _key(defs: Defs, key: Key) -> Schema:
    about = f"Dropped in Linux {key.dropped}. " if key.dropped else ""
    about = f"{about}{key.note} {key.doc}".strip()
    return {**_shape(defs, key), **({"description": about} if about else {})}


def _shape(defs: Defs, key: Key) -> Schema:
    if key.shape == "int":
        return _bounded(defs, key.low, key.high)
    if key.shape == "vector":
        item, count = _number(key.low, key.high), key.length
        row = {"type": "array", "items": item, "minItems": count, "maxItems": count}
        text = {"type": "string", "pattern": rf"^\s*{NUMBER_TEXT}(?:\s+{NUMBER_TEXT}){{{count - 1}}}\s*$"}
        choices = [row, text, item] if count == 1 else [row, text]
        name = f"numbers.{count}.{'' if key.low is None else key.low}..{'' if key.high is None else key.high}"
        return _setting(defs, name, {"anyOf": choices})
    if key.words:
        return _words(defs, key.words)
    return _setting(defs, f"sysctl.{key.shape}", WORD)


def _pair(defs: Defs) -> Schema:
    found = {}
    for name, pair in COUPLES.items():
        amount = _number(pair.least, None)
        amount["anyOf"][0]["multipleOf"] = pair.unit
        found[name] = _setting(defs, name, _halves(amount, _number(0, pair.most)), bound=False)
    every = _setting(defs, "vm.pair", _halves(_number(1, None), _number(0, None)), bound=False)
    return _closed(found, {WILD: every})


def _halves(amount: Schema, ratio: Schema) -> Schema:
    return {**_closed({"bytes": amount, "ratio": ratio}), "minProperties": 1, "maxProperties": 1}


def _thp(defs: Defs) -> Schema:
    found = {name: _words(defs, words) for name, words in WORDS.items()}
    found |= {name: _bounded(defs, *span) for name, span in NUMBERS.items()}
    every = tuple(dict.fromkeys(word for words in WORDS.values() for word in words))
    return _closed(found, {WILD: _words(defs, every)})


def _hugepages(defs: Defs) -> Schema:
    return _closed({}, {f"^(?:{POOL.pattern})$": _bounded(defs, 0, 2**31 - 1)})


def _cpu(defs: Defs) -> Schema:
    word = _setting(defs, "cpu.word", {"type": "string", "pattern": "^[a-z][a-z0-9_-]*$"}, bound=False)
    switch = _words(defs, ("on", "off"))
    return _closed({"governor": word, "epp": word, "boost": switch}, {"^cstate/.": switch})


def _sysfs(defs: Defs) -> Schema:
    disks = {name: _bounded(defs, *span) for name, span in BOUNDS.items() if name != KSM}
    word = {"type": "string", "pattern": "^[a-z][a-z0-9_-]*$"}
    disks[SCHEDULER] = _setting(defs, "scheduler", word, bound=False)
    return _closed({KSM: _bounded(defs, *BOUNDS[KSM])}, {rf"^block/[^/.\s][^/\s]*/{n}$": s for n, s in disks.items()})


def _shm(defs: Defs) -> Schema:
    size = {"anyOf": [_number(0, MOST), {"type": "string", "pattern": rf"^\s*{SIZE.pattern}\s*$"}]}
    return _closed({SHM: _setting(defs, "size", size)})


def _limits(defs: Defs) -> Schema:
    most = _number(0, 2**63 - 1)
    shape = {"anyOf": [*most["anyOf"], {"enum": ["unlimited", "infinity"]}]}
    names = "|".join(map(re.escape, LIMITS))
    return _closed({}, {f"^[^/]+/(?:{names})$": _setting(defs, "limit", shape, bound=most)})


def _service(defs: Defs) -> Schema:
    parts = {name: {"enum": list(words)} for name, words in CHOICES.items()}
    shape = {"anyOf": [parts["state"], {**_closed(parts), "minProperties": 1}]}
    others = "|".join(map(re.escape, OTHERS))
    return _closed({}, {rf"^(?!.*(?:{others})$).": _setting(defs, "service", shape, bound=False)})


def _cmdline(defs: Defs) -> Schema:
    token = _setting(defs, "token", WORD)
    found = {name: _words(defs, (*words, ABSENT)) for name, words in TOKENS.items()}
    for dead in DEAD:
        for name in () if dead.item else (dead.name, dead.name.replace("_", "-")):
            found[name] = _refused(f"has no effect: {dead.why}; {dead.hint}")
    return _closed(found, {r'^[^-"= \\][^"= \\]*$': token})


def _file(defs: Defs) -> Schema:
    text: Schema = {"type": ["string", "number", "boolean", "null"]}
    mode = {"type": ["string", "integer"], "description": 'Octal, such as "0644"'}
    owner = {"type": "string", "pattern": r"^\d+:\d+$", "description": 'UID:GID, such as "0:0"'}
    record = {**_closed({"text": text, "mode": mode, "owner": owner}), "required": ["text"]}
    setting = _setting(defs, "file", {"anyOf": [text, record]}, bound=False)
    return _closed({}, {r"^/(?!(?:proc|sys|dev)(?:/|$))[^/]": setting})


def _irq(defs: Defs) -> Schema:
    placed = _words(defs, ("local",))
    return _closed({}, {rf"^{ADDRESS}$": placed, WILD: placed})


def _module(defs: Defs) -> Schema:
    text: Schema = {"type": ["string", "number", "boolean"]}
    value = _setting(defs, "module", {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]})
    return _closed({}, {r"^[A-Za-z0-9_-]+/[A-Za-z0-9_.-]+$": value, r"^(?=.*[*?\[])[^/]+/[^/]+$": value})


def _amdgpu(defs: Defs) -> Schema:
    mhz = _number(1, 65534)
    records = [
        {**_closed({"level": {"const": level}, **dict.fromkeys(limits, mhz)}), "required": ["level", *limits]}
        for level, limits in TAKES.items()
    ]
    return _on_gpus("amdgpu.clock", {"anyOf": [{"const": "auto"}, *records]})(defs)


def _on_gpus(name: str, shape: Schema, bound: Schema | bool = False) -> Callable[[Defs], Schema]:
    """A knob whose targets are PCI addresses and whose values have this shape."""

    def make(defs: Defs) -> Schema:
        setting = _setting(defs, name, shape, bound)
        kind = "(?:gpu|nic)/" if name == "pcie.link" else ""
        return _closed({}, {rf"^{kind}{ADDRESS}$": setting, WILD: setting})

    return make


def _fields(shapes: dict[str, Schema], main: str, words: tuple[str, ...] = ()) -> Schema:
    """A record of some of these fields, or the value of its main one, or one of the words."""
    record = {**_closed(dict(shapes)), "minProperties": 1}
    return {"anyOf": [shapes[main], *({"const": word} for word in words), record]}


def _firmware(defs: Defs) -> Schema:
    shape = _fields({"gpus": {"const": "equal"}, "version": _number(0, 2**32 - 1)}, "version", ("equal",))
    setting = _setting(defs, "amdgpu.firmware", shape, bound=False)
    return _closed({}, {r"^[A-Za-z][A-Za-z0-9_]*$": setting, WILD: setting})


POLICY: Schema = {"anyOf": [_number(0, 255), {"type": "string", "pattern": r"^\s*[A-Za-z]\w*\s*$"}]}
AMDGPU: dict[str, Callable[[Defs], Schema]] = {
    "amdgpu.power_cap": _on_gpus("amdgpu.power_cap", _number(1, 4294), bound=True),
    "amdgpu.soc_pstate": _on_gpus("amdgpu.policy", POLICY),
    "amdgpu.xgmi_plpd": _on_gpus("amdgpu.policy", POLICY),
    "amdgpu.partition": _on_gpus(
        "amdgpu.partition", _fields({name: {"enum": list(words)} for name, words in MODES.items()}, "compute")
    ),
    "amdgpu.vram": _on_gpus("amdgpu.vram", _number(1, 2**63 - 1), bound=True),
    "amdgpu.hive": _on_gpus("amdgpu.hive", _number(0, 64), bound=True),
    "amdgpu.xgmi_errors": _on_gpus(
        "amdgpu.xgmi_errors",
        _fields(dict.fromkeys(KINDS_OF_ERROR, _number(0, 2**63 - 1)), "uncorrectable"),
        bound=True,
    ),
    "amdgpu.firmware": _firmware,
    "amdgpu.xnack": _on_gpus("amdgpu.xnack", {"enum": list(dict.fromkeys(XNACK.values()))}),
}


def _manager(defs: Defs) -> Schema:
    setting = _setting(defs, "nvidia.fabric_manager", MANAGER, bound=False)
    return _closed({}, {r"^nvidia-fabricmanager(?:\.service)?$": setting, WILD: setting})


PARTS: dict[str, Callable[[Defs], Schema]] = {
    "sysctl": _sysctl, "sysctl.pair": _pair, "thp": _thp, "hugepages": _hugepages, "cpu": _cpu,
    "amdgpu.clock": _amdgpu, **AMDGPU, "limits": _limits,
    "sysfs": _sysfs, "shm": _shm, "service": _service, "cmdline": _cmdline, "file": _file,
    "irq": _irq, "module": _module,
    "nvidia.fabric_manager": _manager, **{knob: _on_gpus(*shape) for knob, shape in NVIDIA.items()},
}  # fmt: skip
"""What each knob's targets and values look like."""
