"""What a run over many hosts gave: events of Ansible folded into one result a host, and hosts grouped by difference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.errors import Exit, worst
from tuner.fleet.hostlist import compress

Document = dict[str, Any]
MODULE = "tuner"
EXITS = {int(code): code for code in Exit}
STATES = {
    Exit.OK: "ok", Exit.DIFFERS: "differs", Exit.MISSING: "missing", Exit.UNKNOWN: "unknown", Exit.PENDING: "pending",
    Exit.HELD: "held", Exit.UNDONE: "undone", Exit.NOT_RESTORED: "not restored", Exit.LOCKED: "locked",
    Exit.WRONG_HOST: "wrong host", Exit.BAD_INPUT: "bad input",
}  # fmt: skip
"""State of a host by its exit code; a host that nobody could ask is `unreachable`, one that was not asked `not run`."""

FINE = ("ok", "raised", "unsupported")
"""States of a setting that are no difference between what a host is and what it should be."""
KEY = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED", "host key", "Host key")
ARGUMENTS = (
    "argument ",
    "missing required arguments",
    "Unsupported parameters",
    "value of ",
    "Elements value ",
    "state is ",
)
"""How Ansible begins when what the inventory gives cannot be the arguments of a module."""

PREFIX = re.compile(r"((Task failed|Action failed|Module failed|Failed to connect to the host via ssh|ssh): )*")
ADDRESS = re.compile(r"connect to host \S+ port ")
"""What differs from host to host where one switch is down."""
SELF = "HOST"
"""In words that several hosts said alike, each of itself: its own name, or where Ansible reaches it."""

WORDS_OF = ("state", "knob", "target", "running", "want", "why")
SUDO = ("Missing sudo password", "Incorrect sudo password", "Incorrect password", "a password is required")


@dataclass(frozen=True)
class Node:
    """One host after the run. `exit` is None where nobody answered: it counts as 12."""

    name: str
    state: str
    exit: Exit | None
    changed: bool = False
    message: str = ""
    settings_id: str = ""
    generation: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    differences: tuple[Mapping[str, str], ...] = ()
    address: str = ""
    """Where Ansible reaches it (ansible_host); empty where that is its name, or nobody asked."""

    @property
    def code(self) -> Exit:
        """The exit code that this host asks for."""
        return Exit.UNKNOWN if self.exit is None else self.exit

    def lines(self) -> tuple[str, ...]:
        """What tells this host from one that is as wanted, a line each, the same on hosts that differ alike."""
        return tuple(map(_line, self.differences)) or self._said()

    def alike(self) -> tuple[str, ...]:
        """The same without what names this host alone: ssh, Ansible and our errors name the host that they are about.

        Values that differ stay as they are: a host name may be one of them.
        """
        return tuple(map(_line, self.differences)) or tuple(map(self._of_any, self._said()))

    def _said(self) -> tuple[str, ...]:
        return (self.message,) if self.message and self.code != Exit.OK else ()

    def _of_any(self, text: str) -> str:
        """OpenSSH writes names in lower case; n1 is neither in n12 nor in n1-ib, 192.0.2.1 not in 192.0.2.10."""
        own = sorted(filter(None, (self.name, self.address)), key=len, reverse=True)
        return re.sub(rf"(?<![\w-])({'|'.join(map(re.escape, own))})(?![\w-])", SELF, text, flags=re.IGNORECASE)


@dataclass(frozen=True)
class Group:
    """Hosts that are in one state for the same reasons."""

    state: str
    names: tuple[str, ...]
    difference: tuple[str, ...]
    settings: str = ""
    """The settings id of hosts that are as wanted, where not all of those want the same."""


def _line(found: Mapping[str, str]) -> str:
    if found["state"] == "drift":  # what may have changed it is the same guess on every host
        return f"{found['knob']} {found['target']} {found['running']} want {found['want']}"
    state, why = f"{found['state']}: ", f" ({found['why']})" if found["why"] else ""
    return f"{state}{found['knob']} {found['target']} {found['running']} want {found['want']}{why}"


class Results:
    """Filled by `hear` while a run is on."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.nodes: dict[str, Node] = {}
        self.begun: set[str] = set()

    def hear(self, event: Mapping[str, Any]) -> Node | None:
        """Takes one event of Ansible; the host's result where the event ends its part."""
        about = event.get("event_data") or {}
        name, kind = about.get("host"), event.get("event")
        if name not in self.names:
            return None
        self.begun.add(name)
        if kind not in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
            return None
        ours = str(about.get("task_action", "")).rpartition(".")[2] == MODULE
        if not ours and kind == "runner_on_ok":
            return None
        self.nodes[name] = _node(name, str(kind), about.get("res") or {})
        return self.nodes[name]

    def all(self, why: str = "") -> list[Node]:
        """A result for each host: those that were not heard of are unknown, and `why` says why."""
        return [self.nodes.get(name) or self._silent(name, why) for name in self.names]

    def _silent(self, name: str, why: str) -> Node:
        begun = (
            f"{why or 'no answer'}, while it was at work" if name in self.begun else why or "other hosts failed first"
        )
        return Node(name, "unknown" if name in self.begun else "not run", None, message=begun)


def _node(name: str, kind: str, res: Mapping[str, Any]) -> Node:
    if kind == "runner_on_unreachable":
        return Node(name, "unreachable", None, message=unreached(str(res.get("msg", ""))))
    try:
        return _answered(name, res, kind == "runner_on_ok")
    except (AttributeError, KeyError, TypeError, ValueError):  # whatever a node says, the others' results count
        return Node(name, "failed", None, message="what it answered is not an answer of the module tuner")


def _answered(name: str, res: Mapping[str, Any], fine: bool) -> Node:
    differences = tuple({word: str(found[word]) for word in WORDS_OF} for found in res.get("differences") or ())
    message = "" if fine else failure(res)
    code = EXITS.get(res.get("exit", -1))
    if "exit" not in res and message.startswith(ARGUMENTS):
        code, message = Exit.BAD_INPUT, f"{message}; hint: the variables tuner_... of this host in the inventory"
    if code is None or (code == Exit.OK and not fine):
        held = any(d["state"] in ("held", "pending") for d in differences)
        code = Exit.HELD if code == Exit.OK and held else None
    generation = res.get("generation")
    return Node(
        name,
        "failed" if code is None else STATES[code],
        code,
        bool(res.get("changed")),
        message,
        str(res.get("settings_id", "")),
        None if generation is None else int(generation),
        {str(state): int(count) for state, count in (res.get("counts") or {}).items()},
        tuple(d for d in differences if d["state"] not in FINE),
    )


def unreached(text: str) -> str:
    """Why a host could not be reached, in one line: of a host key what to do, else the last thing that ssh said."""
    if any(word in text for word in KEY):
        return "its host key is not the one that is known; ssh to it shows which. Nothing was sent"
    lines = [line.strip() for line in text.replace("\r", "").splitlines() if line.strip()]
    return ADDRESS.sub("port ", _bare(lines[-1])).rstrip(".") if lines else "no answer"


def _bare(line: str) -> str:
    """Without what Ansible and ssh put before it."""
    return PREFIX.sub("", line, count=1)


def failure(res: Mapping[str, Any]) -> str:
    """Why a task failed, in one line."""
    text = str(res.get("msg") or res.get("module_stderr") or res.get("stderr") or "failed")
    if any(word in text for word in SUDO):
        return "sudo wants a password, or another one: ansible_become_password (keep it in a vault)"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _bare(lines[-1]) if lines else "failed"


def groups(nodes: Iterable[Node]) -> list[Group]:
    """Hosts by what they differ in: the largest group of those as wanted first, then the larger ones first.

    A host that is alone in its group keeps its own words.
    """
    nodes = list(nodes)
    several = len({node.settings_id for node in nodes if _fine(node)}) > 1
    found: dict[tuple[str, tuple[str, ...], str], list[Node]] = {}
    for node in nodes:
        settings = node.settings_id[:SHOWN] if several and _fine(node) else ""
        found.setdefault((node.state, node.alike(), settings), []).append(node)
    rows = [
        Group(state, tuple(n.name for n in group), lines if len(group) > 1 else group[0].lines(), settings)
        for (state, lines, settings), group in found.items()
    ]
    return sorted(rows, key=lambda g: (g.state != "ok" or bool(g.difference), -len(g.names), g.names))


def _fine(node: Node) -> bool:
    return node.state == "ok" and not node.lines()


def telling(nodes: Iterable[Node]) -> bool:
    """Whether several hosts have said something in words of their own, which may name where each is reached."""
    return sum(not node.differences and bool(node.lines()) for node in nodes) > 1


def exit_of(nodes: Iterable[Node]) -> Exit:
    """The worst code of all hosts, as one host would end with it."""
    return worst([node.code for node in nodes])


def document(verb: str, nodes: Sequence[Node], inventories: Sequence[str], stopped: str) -> Document:
    """tuner.fleet/1."""
    return {
        "schema": "tuner.fleet/1",
        "verb": verb,
        "inventories": list(inventories),
        "stopped": stopped or None,
        "exit": int(exit_of(nodes)),
        "hosts": {node.name: _host(node) for node in nodes},
        "groups": [
            {
                "hosts": compress(g.names),
                "count": len(g.names),
                "state": g.state,
                "difference": list(g.difference),
                "settings": g.settings or None,
            }
            for g in groups(nodes)
        ],
        "unreachable": [node.name for node in nodes if node.state == "unreachable"],
    }


def _host(node: Node) -> Document:
    return {
        "state": node.state,
        "exit": int(node.code),
        "changed": node.changed,
        "message": node.message,
        "settings_id": node.settings_id or None,
        "generation": node.generation,
        "counts": dict(node.counts),
        "differences": [dict(found) for found in node.differences],
    }


SHOWN = 8
"""Digits of a settings id that are shown."""

WORDS = {"plan": "as wanted", "apply": "as wanted", "verify": "equal", "rollback": "done"}


def lines(verb: str, nodes: Sequence[Node], stopped: str) -> list[str]:
    """The table for people: how many hosts there are, then a block for each difference with the hosts that have it."""
    found = groups(nodes)
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.state] = counts.get(node.state, 0) + 1
    changed = sum(node.changed for node in nodes)
    word = {"plan": "to change", "verify": ""}.get(verb, "changed")
    states = [f"{count} {_word(state, count)}" for state, count in sorted(counts.items(), key=lambda item: -item[1])]
    states += [f"{changed} {word}"] if word and changed else []
    rows = [f"fleet {verb}   {_hosts(len(nodes))}: {', '.join(states)}", ""]
    for group in found:
        rows += _block(verb, group)
    if stopped:
        rest = [node.name for node in nodes if node.state == "unknown" and node.exit is None]
        rows += ["", f"Stopped by {stopped}. Done: {compress(n.name for n in nodes if n.exit is not None) or 'none'}"]
        rows += [f"May still be at work: {compress(rest)}: tuner fleet verify says how they are"] if rest else []
    return rows


def _word(state: str, count: int) -> str:
    return "differ" if state == "differs" and count != 1 else state


def _hosts(count: int) -> str:
    return f"{count} host{'s' * (count != 1)}"


def _block(verb: str, group: Group) -> list[str]:
    names, count = compress(group.names), len(group.names)
    several = f"{_hosts(count)}, " if count > 1 else ""
    if group.state == "ok" and not group.difference:
        settings = f"   settings {group.settings}" if group.settings else ""
        return [f"  {several}{WORDS[verb]}: {names}{settings}"]
    word = "would change" if verb == "plan" and group.state == "differs" else _word(group.state, count)
    if len(group.difference) == 1:
        return [f"  {several}{word}: {names}: {group.difference[0]}"]
    return [f"  {several}{word}: {names}", *(f"      {line}" for line in group.difference)]
