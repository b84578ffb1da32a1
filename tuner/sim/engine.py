"""Runs the rules of a recorded host's kernel.yaml on each write to a kernel file.

    rules:
      /proc/sys/net/core/rmem_max: {is: int, low: 2304}
      /proc/sys/vm/dirty_bytes: [{is: int, low: 8192}, {is: zeroes, path: /proc/sys/vm/dirty_ratio}]
    faults:
      refuses-rmem: {about: "...", rules: {/proc/sys/net/core/rmem_max: {is: refuse, errno: EINVAL}}}

A path may be an fnmatch pattern; a plain path beats a pattern. A fault that was chosen when the host was copied
(`/.tuner-host/faults`, a name per line) lays its rules over the plain ones. A kernel file without a rule takes what is
written, stripped, with the separators it has and a newline.
"""

from __future__ import annotations

import errno
import fnmatch
from collections.abc import Mapping
from typing import Any

import yaml

from tuner.errors import Problem, TunerError, bad_input
from tuner.host.tree import Tree
from tuner.sim.behaviours import BEHAVIOURS, World

Rule = Mapping[str, Any]


class Engine:
    """The rules of one recorded host, checked whole when it is made."""

    def __init__(self, tree: Tree, mark: str) -> None:
        self.world = World(tree, f"{mark}/state")
        where = f"{tree.root}{mark}/kernel.yaml"
        document = _document(tree, f"{mark}/kernel.yaml", where)
        self.rules = _chains(document.get("rules", {}), where)
        for fault in active_faults(tree, mark):
            overlay = faults_of(document, where).get(fault)
            if overlay is None:
                raise bad_input(where, f"no such fault: {fault}", "tuner host list names the faults of each host")
            self.rules.update(_chains(overlay.get("rules", {}), f"{where} fault {fault}"))

    def write(self, path: str, text: str) -> None:
        """What the kernel does on `text` written to `path`; raises OSError as it would."""
        plain: list[Rule] = [{"is": "text"}]
        chain = self.rules.get(path)
        if chain is None:
            chain = next((c for p, c in self.rules.items() if fnmatch.fnmatchcase(path, p)), plain)
        before = self.world.get(path)
        for rule in chain:
            BEHAVIOURS[rule["is"]].run(self.world, rule, path, text, before)


def active_faults(tree: Tree, mark: str) -> list[str]:
    """Names of the faults this copy was made with."""
    try:
        return tree.read(f"{mark}/faults").decode("utf-8").split()
    except FileNotFoundError:
        return []


def faults_of(document: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
    """The faults that a kernel.yaml offers, by name."""
    faults = document.get("faults") or {}
    if not isinstance(faults, dict) or not all(isinstance(f, dict) for f in faults.values()):
        raise bad_input(where, "faults is not a mapping of mappings", "NAME: {about: ..., rules: {...}}")
    return faults


def load_document(text: str, where: str) -> dict[str, Any]:
    """A kernel.yaml as a mapping; TunerError for what is none."""
    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise bad_input(where, f"not YAML: {error}".replace("\n", " "), "compare with the shipped hosts") from None
    if not isinstance(document, dict) or set(document) - {"rules", "faults"}:
        raise bad_input(where, "only rules and faults are known at the top", "compare with the shipped hosts")
    return document


def _document(tree: Tree, path: str, where: str) -> dict[str, Any]:
    try:
        return load_document(tree.read(path).decode("utf-8"), where)
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise bad_input(where, f"not UTF-8: {error}", "compare with the shipped hosts") from None


def _chains(rules: Any, where: str) -> dict[str, list[Rule]]:
    if not isinstance(rules, dict):
        raise bad_input(where, "rules is not a mapping", "PATH: {is: BEHAVIOUR, ...}")
    chains = {path: rule if isinstance(rule, list) else [rule] for path, rule in rules.items()}
    problems = [Problem(f"{where} {path}", p) for path, chain in chains.items() for rule in chain for p in _wrong(rule)]
    if problems:
        raise TunerError(problems)
    return chains


def _wrong(rule: Any) -> list[str]:
    """What is wrong with one rule: unknown behaviour, missing or unknown parameters, a parameter of a wrong type."""
    if not isinstance(rule, dict) or rule.get("is") not in BEHAVIOURS:
        return [f"not a rule with a known behaviour ({', '.join(BEHAVIOURS)}): {rule!r}"]
    behaviour = BEHAVIOURS[rule["is"]]
    given = set(rule) - {"is"}
    wrong = [f"{rule['is']}: {name} is missing" for name in sorted(behaviour.needs - given)]
    wrong += [f"{rule['is']}: unknown {name}" for name in sorted(given - behaviour.needs - behaviour.takes)]
    if "errno" in rule and not hasattr(errno, str(rule["errno"])):
        wrong.append(f"no such errno: {rule['errno']}")
    numbers = ("low", "high", "to", "length", "room", "used", "fragmented", "size_kB")
    wrong += [f"{name} is not a number" for name in numbers if name in rule and not isinstance(rule[name], int)]
    return wrong
