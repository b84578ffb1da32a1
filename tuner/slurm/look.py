"""The child of the prolog, when evidence does not answer: judges in full and says what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from tuner import evidence, off
from tuner.errors import TunerError
from tuner.evidence import NotingTree
from tuner.host import Host, open_host
from tuner.judging import judged, lasting
from tuner.slurm import gate
from tuner.slurm import policy as policies
from tuner.slurm.decide import marked

Found = dict[str, Any]
"""drain: rows of text, worst first; lines: for the log; settings_id."""


def looked(root: str, tell: Callable[[str], object], limit: Callable[[float], object], acting: bool = True) -> Found:
    """The decision for the host below `root`; `tell` hears each path before it is looked at, `limit` the budget.

    Not `acting`: nothing is remembered of it.
    """
    try:
        host = open_host(root)
        tree = NotingTree(host.root)
        tree.watch = tell
        evidence.note(host, tree)
        why = off.state(host)
        return _started(f"tuner is off, the job starts: {why}") if why else _decided(host, tree, limit, acting)
    except TunerError as error:
        return _started(f"not checked, the job starts: {policies.problem_line(error)}")


def _decided(host: Host, tree: NotingTree, limit: Callable[[float], object], acting: bool) -> Found:
    policy = policies.of(host)
    limit(policy.budget_s)
    if policy.mode == "off":
        return _started("")
    applied, made = judged(host)
    decision, forgotten = gate.decided(host, policy, applied, made, acting)
    answers = {} if forgotten else gate.kept(policy, applied, decision)
    if acting:
        evidence.renew(host, tree, answers if lasting(host) else {})
    rows = [astuple(row) for row in decision.drain]
    lines = [marked(decision.marks), f"what is ok now will gate nothing: {forgotten}" if forgotten else ""]
    return {"drain": rows, "lines": [line for line in lines if line], "settings_id": applied.settings_id}


def _started(line: str) -> Found:
    return {"drain": [], "lines": [line] if line else [], "settings_id": ""}
