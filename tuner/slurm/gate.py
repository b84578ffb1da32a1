"""The verdicts of a node as an answer to Slurm, and when that answer may be given again without judging anew."""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Sequence
from dataclasses import replace

from tuner import evidence, hung, skips
from tuner.errors import TunerError
from tuner.host import Host, Unrecorded
from tuner.judging import asks_tools
from tuner.knobs import BY_NAME
from tuner.ledger import Applied
from tuner.model import Plan, Setting, Verdict
from tuner.pci import ADDRESS
from tuner.slurm import KEY, store
from tuner.slurm import policy as policies
from tuner.slurm.decide import FINE, Decision, Row, decide, marked, row_of
from tuner.slurm.policy import Policy

HANGS = "does not answer: a look at it hangs"


def decided(host: Host, policy: Policy, applied: Applied, made: Plan, acting: bool = True) -> tuple[Decision, str]:
    """What the policy makes of these verdicts; what is ok now is remembered first, or else why it could not be.

    Not `acting`: nothing is remembered.
    """
    before, there = store.known(host, applied.settings_id)
    fresh = places(host, made.verdicts, before) if acting else []
    if fresh:  # first: whoever is killed in between leaves no answer that knows less than what is remembered
        evidence.drop(host)
    forgotten = store.see(host, applied.settings_id, fresh)
    skipped = skips.load(host)
    rows = [row_of(verdict, skipped) for verdict in made.verdicts]
    found = decide(policy, _hanging(host, rows, there), before, there)
    strange = [f"no knob {name}: the policy names it" for name in policies.strangers(policy)]
    return replace(found, marks=(*strange, *found.marks)), forgotten


def answers(host: Host, applied: Applied, made: Plan) -> dict[str, tuple[int, bytes]]:
    """The answer that evidence may keep, which only root has: of a start, and where the policy can be read."""
    if os.geteuid() != 0:
        return {}
    try:
        policy = policies.of(host)
    except TunerError:
        return {}
    decision, forgotten = decided(host, policy, applied, made)
    return {} if forgotten else kept(policy, applied, decision)


def kept(policy: Policy, applied: Applied, decision: Decision) -> dict[str, tuple[int, bytes]]:
    """(exit code, until when by CLOCK_BOOTTIME or 0, seconds of budget, line for the log) as evidence keeps it."""
    if decision.drain:
        return {}
    until = store.clock() + policy.tool_age_s if asks_tools(applied) else 0.0
    return {KEY: (0, marshal.dumps((until, policy.budget_s, marked(decision.marks))))}


def places(host: Host, verdicts: Sequence[Verdict], known: dict[tuple[str, str], store.Place]) -> list[store.Place]:
    """What is as wanted now and was not known to be."""
    found = []
    for verdict in verdicts:
        setting = verdict.setting
        if verdict.state in FINE and setting.at not in known:
            row = row_of(verdict)
            found.append(store.Place(*setting.at, setting.gate, row.want, tuple(_files(host, setting))))
    return found


def _files(host: Host, setting: Setting) -> list[str]:
    """The kernel files behind a setting, for the day when one of them hangs."""
    with host.tree.unnoted(), contextlib.suppress(OSError, Unrecorded, ValueError, KeyError):
        return BY_NAME[setting.knob].files(host, setting.target)
    return []


def hanging(place: store.Place, paths: Sequence[str]) -> bool:
    """Whether a look at this place would meet one of these paths."""
    address = place.target.rpartition("/")[2]
    devices = [_device(address)] if ADDRESS.fullmatch(address) else []
    return any(hung.touches(file, path) for file in (*place.files, *devices) for path in paths)


def _device(address: str) -> str:
    return f"/sys/bus/pci/devices/{address}/config"


def _hanging(host: Host, rows: list[Row], seen: dict[tuple[str, str], store.Place]) -> list[Row]:
    """Rows of a device at which a process of ours hangs: missing, whatever the rest of it still says."""
    paths = hung.living(host.root)
    if not paths:
        return rows
    gone = {at for at, place in seen.items() if hanging(place, paths)}
    return [replace(row, state="missing", has="", why=HANGS) if row.at in gone else row for row in rows]
