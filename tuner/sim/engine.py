"""Runs the rules of a recorded host's kernel.yaml on each write to a kernel file.

    rules:
      /proc/sys/net/core/rmem_max: {is: int, low: 2304}
      /proc/sys/vm/dirty_bytes: [{is: int, low: 8192}, {is: zeroes, path: /proc/sys/vm/dirty_ratio}]
    faults:
      refuses-rmem: {about: "...", rules: {/proc/sys/net/core/rmem_max: {is: refuse, errno: EINVAL}}}

A path may be an fnmatch pattern; a plain path beats a pattern. A fault that was chosen when the host was copied
(`/.tuner-host/faults`, a name per line) lays its rules over the plain ones; what else it changes is in faults.py. A
kernel file without a rule takes what is written, stripped, with the separators it has and a newline; what NVML sets
(/.tuner-host/nvml/ADDRESS/NAME) without one is answered as a healthy GPU does.
"""

from __future__ import annotations

import errno
import fnmatch
from collections.abc import Callable
from typing import Any

from tuner.errors import Problem, TunerError, bad_input
from tuner.host.tree import Tree
from tuner.sim.behaviours import BEHAVIOURS
from tuner.sim.faults import faults_of, load_document
from tuner.sim.nvidia import PREFIX as NVML
from tuner.sim.world import Rule, World

HINT = "PATH: {is: BEHAVIOUR, ...}; compare with the shipped hosts"


class Engine:
    """The rules of one recorded host, checked whole when it is made."""

    def __init__(self, tree: Tree, mark: str) -> None:
        self.world = World(tree, f"{mark}/state")
        where = f"{tree.root}{mark}/kernel.yaml"
        document = _document(tree, f"{mark}/kernel.yaml", where)
        self.layers: list[dict[str, list[Rule]]] = []
        known = faults_of(document, where)
        for fault in reversed(active_faults(tree, mark)):
            overlay = known.get(fault)
            if overlay is None:
                raise bad_input(where, f"no such fault: {fault}", "tuner host list names the faults of each host")
            self.layers.append(_chains(overlay.get("rules", {}), f"{where} fault {fault}"))
        self.layers.append(_chains(document.get("rules", {}), where))

    def write(self, path: str, text: str) -> None:
        """What the kernel does on `text` written to `path`; raises OSError as it would."""
        before = "" if path.startswith(NVML) else self.world.get(path)  # what has no getter has no file
        for rule in self._chain(path):
            BEHAVIOURS[rule["is"]].run(self.world, rule, path, text, before)

    def _chain(self, path: str) -> list[Rule]:
        for rules in self.layers:
            chain = rules.get(path) or next((c for p, c in rules.items() if fnmatch.fnmatchcase(path, p)), None)
            if chain is not None:
                return chain
        return [{"is": "nvidia" if path.startswith(NVML) else "text"}]


def active_faults(tree: Tree, mark: str) -> list[str]:
    """Names of the faults this copy was made with."""
    try:
        return tree.read(f"{mark}/faults").decode("utf-8").split()
    except FileNotFoundError:
        return []


def _document(tree: Tree, path: str, where: str) -> dict[str, Any]:
    try:
        return load_document(tree.read(path).decode("utf-8"), where)
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise bad_input(where, f"not UTF-8: {error}", "compare with the shipped hosts") from None


def _chains(rules: Any, where: str) -> dict[str, list[Rule]]:
    if not isinstance(rules, dict):
        raise bad_input(where, "rules is not a mapping", HINT)
    chains = {path: rule if isinstance(rule, list) else [rule] for path, rule in rules.items()}
    problems = [
        Problem(f"{where} {path}", p, HINT) for path, chain in chains.items() for rule in chain for p in _wrong(rule)
    ]
    for path, chain in chains.items():
        if not isinstance(path, str) or not path.startswith(("/proc/", "/sys/", NVML)):
            problems.append(Problem(f"{where} {path}", "not the path of a kernel file", HINT))
        if not chain:
            problems.append(Problem(f"{where} {path}", "no rule", HINT))
    if problems:
        raise TunerError(problems)
    return chains


def _wrong(rule: Any) -> list[str]:
    """What is wrong with one rule: unknown behaviour, missing or unknown parameters, a parameter of a wrong type."""
    name = rule.get("is") if isinstance(rule, dict) else None
    if not isinstance(name, str) or name not in BEHAVIOURS:
        return [f"not a rule with a known behaviour ({', '.join(BEHAVIOURS)}): {rule!r}"]
    behaviour = BEHAVIOURS[name]
    given = {str(key) for key in rule} - {"is"}
    wrong = [f"{name}: {key} is missing" for key in sorted(behaviour.needs - given)]
    wrong += [f"{name}: unknown {key}" for key in sorted(given - behaviour.needs - behaviour.takes)]
    return wrong + [
        f"{name}: {key} is not {what}: {rule[key]!r}"
        for key, (what, right) in TYPES.items()
        if key in rule and not right(rule[key])
    ]


def _is_errno(name: str) -> bool:
    return name.startswith("E") and name.isupper() and isinstance(getattr(errno, name, None), int)


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_number, value)) and 0 < value[0] < value[1]


TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        (
            "low",
            "high",
            "to",
            "length",
            "room",
            "used",
            "fragmented",
            "size_kB",
            "default_kB",
            "step",
            "depth",
            "enforced",
        ),
        ("a number", _number),
    ),
    **dict.fromkeys(("changed", "deny", "lost"), ("true or false", lambda v: isinstance(v, bool))),
    "mig": ("reset, now or in_use", lambda v: v in ("reset", "now", "in_use")),
    "path": ("an absolute path", lambda v: isinstance(v, str) and v.startswith(("/proc/", "/sys/"))),
    "name": ("one plain word", lambda v: isinstance(v, str) and v.isidentifier()),
    "words": ("a list of words", lambda v: isinstance(v, list) and bool(v) and all(isinstance(w, str) for w in v)),
    **dict.fromkeys(("sclk", "mclk"), ("two rising numbers of MHz", _range)),
    "determinism": ("yes, level or commit", lambda v: v in ("yes", "level", "commit")),
    "busy": ("EPERM or EBUSY", lambda v: v in ("EPERM", "EBUSY")),
    "errno": ("the name of an errno", lambda v: isinstance(v, str) and _is_errno(v)),
}
"""What each parameter must be: (in words, the test)."""
