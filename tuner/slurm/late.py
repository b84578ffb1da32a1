"""What the prolog does besides starting the job: a child that is late is given up, a node is drained, unless braked.

No device file is opened here: what is known of the node is what was remembered while it answered.
"""

from __future__ import annotations

import os
from typing import Any

from tuner import applied as cache
from tuner import hung, off, skips
from tuner.errors import TunerError
from tuner.fast import PATH
from tuner.host import Host, open_host
from tuner.off import now
from tuner.slurm import DRAIN, START, gate, store
from tuner.slurm import policy as policies
from tuner.slurm.decide import Row, cause, decide, marked, reason

Answer = tuple[int, list[str]]
"""Exit code, lines for the log."""


LASTING = 0.75
"""Seconds at one path before it counts as hanging: a busy driver has its callers wait in state D too."""
READ_HERE = ("/etc/tuner/", "/var/")
"""What this process reads itself: where the child hangs there, it would hang as well."""


def given_up(root: str, child: int, budget: float, path: str, lasted: float, acting: bool = True) -> Answer:
    """The decision after `budget` seconds without an answer; the child has looked at `path` for `lasted` seconds."""
    lines: list[str] = []
    dead = not hung.ended(child)
    stuck = dead and bool(path) and lasted >= LASTING
    if stuck:
        lines.append(f"a look at {path} hangs: process {child} cannot be killed")
        lines += _recorded(root, child, path)
    why = f"not judged: {path} hangs" if stuck else f"budget of {budget:g} s used up"
    if dead and (not path or path.startswith(READ_HERE)):
        return START, [*lines, f"not checked, the job starts: {why}"]
    try:
        code, more = _unjudged(open_host(root), why, path if stuck else "", acting)
    except TunerError as error:
        code, more = START, [f"not checked, the job starts: {policies.problem_line(error)}"]
    return code, [*lines, *more]


def _recorded(root: str, child: int, path: str) -> list[str]:
    """Names what hangs, and removes the evidence: whoever answers from it would look there again."""
    hung.remove(root, PATH)
    try:
        hung.record(root, child, path, now().isoformat())
    except OSError as error:
        return [f"{error.filename or hung.FOLDER}: {error.strerror}"]
    return []


def _unjudged(host: Host, why: str, path: str, acting: bool) -> Answer:
    """What the policy makes of a node of which only what hangs is known."""
    policy, applied = policies.of(host), cache.current(host)[0]
    off_why = off.state(host)
    if off_why or policy.mode == "off" or applied is None:
        return START, [off_why or why]
    (seen, there), skipped = store.known(host, applied.settings_id), skips.load(host)
    wanted = {setting.at for setting in applied.settings}
    rows = []
    for place in (place for at, place in there.items() if at in wanted):
        state, said = ("missing", gate.HANGS) if path and gate.hanging(place, [path]) else ("unknown", why)
        skip = skips.of(skipped, place.knob, place.target)
        rows.append(Row(place.knob, place.target, state, place.gate, want=place.want, why=said, skipped=skip))
    decision = decide(policy, rows, seen, there)
    if decision.drain:
        return drained_by(host, list(decision.drain), applied.settings_id, policy.drains_per_hour, acting)
    marks = [mark for mark in decision.marks if " unknown " not in mark]
    return START, [f"job starts with a mark: unknown: {why}", *filter(None, [marked(marks)])]


def drained(root: str, answer: dict[str, Any], acting: bool) -> Answer:
    """The child found the node unfit."""
    host = open_host(root)
    rows = [Row(*row) for row in answer["drain"]]
    return drained_by(host, rows, answer["settings_id"], policies.of(host).drains_per_hour, acting)


def drained_by(host: Host, rows: list[Row], settings_id: str, most: int, acting: bool) -> Answer:
    """Keeps the job away and leaves the reason; starts it where this node was drained for that often enough.

    Not `acting`: somebody only asks. Nothing is counted and no reason left: the next job would meet the brake.
    """
    said, what = reason(rows), cause(rows[0])
    if store.drains(host, settings_id, what) >= most:
        return START, [f"job starts, braked: {most} drain{'s' * (most != 1)} per hour for {what}: {said}"]
    node, job = os.environ.get("SLURMD_NODENAME", ""), os.environ.get("SLURM_JOB_ID", "")
    left = store.Drained(said, node or host.name, job, now().isoformat())
    if not acting:
        return DRAIN, [f"would drain {left.node}: {said}"]
    wrong = [store.count(host, settings_id, what), store.leave(host, left)]
    return DRAIN, [f"drains {left.node}, job {job or 'unknown'}: {said}", *filter(None, wrong)]
