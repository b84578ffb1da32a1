"""The reason of a drain in Slurm's own words: `Prolog error` of a node that we drained becomes what we found.

Slurm has one constant reason for every prolog that fails (src/slurmctld/node_mgr.c), and asking slurmctld from inside
a prolog would make each job wait for it. So this runs outside, later. What anybody else gave as a reason stays.
"""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Callable, Iterator

from tuner.host.shell import SYSTEM_PATH, Ran, run
from tuner.off import now
from tuner.slurm.store import Drained

CONSTANT = "Prolog error"
STAMP = re.compile(r"\s*\[[^\][]*@[^\][]*\]$")
"""What Slurm appends to a reason: [user@time]."""
NODE = re.compile(r"[A-Za-z0-9_.-]{1,253}")
BESIDE = ("/opt/slurm/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin")
PATIENCE = 10.0
"""Seconds that scontrol may take; it waits for ever for a slurmctld that does not answer."""
WAIT = 30.0
"""Seconds until slurmctld has heard from slurmd that the prolog failed."""
PAUSE = 1.0
OLDEST = datetime.timedelta(minutes=15)
"""Of a reason: as long as the unit tries again while slurmctld is down."""

Ask = Callable[[list[str]], Ran]


def command() -> list[str]:
    """The scontrol of this machine with the configuration that we were given; empty where there is none."""
    for folder in (*SYSTEM_PATH.split(":"), *BESIDE):
        path = f"{folder}/scontrol"
        if os.access(path, os.X_OK):
            conf = os.environ.get("SLURM_CONF")
            return ["/usr/bin/env", f"SLURM_CONF={conf}", path] if conf else [path]
    return []


def ask(words: list[str]) -> Ran:
    """What scontrol says to these words."""
    found = command()
    return run([*found, *words], PATIENCE) if found else Ran(None, "", "", "there is no scontrol")


def tell(drained: Drained, asked: Ask = ask, wait: float = WAIT) -> tuple[bool, str]:
    """Replaces Slurm's constant by our reason: (whether nothing is left to do, what was done or found).

    A node that is not drained yet is looked at again for up to `wait` seconds.
    """
    if not NODE.fullmatch(drained.node):
        return True, f"{drained.node!r} is no name of a node"
    if not _fresh(drained):
        return True, f"the last reason is of {drained.when}: too old to be that of a drain now"
    end = time.monotonic() + wait
    while True:
        ran = asked(["show", "node", drained.node])
        if ran.failure:
            return False, ran.failure
        state, reason = standing(ran.out)
        if "DRAIN" in state:
            return _told(drained, reason, asked)
        if time.monotonic() >= end:
            return True, f"{drained.node} is not drained: nothing to say"
        time.sleep(PAUSE)


def _fresh(drained: Drained) -> bool:
    """Whether a drain that stands now can be the one that this reason was left for."""
    try:
        age = now() - datetime.datetime.fromisoformat(drained.when)
    except (ValueError, TypeError):
        return False
    return abs(age) < OLDEST


def _told(drained: Drained, reason: str, asked: Ask) -> tuple[bool, str]:
    if reason == drained.reason:
        return True, f"{drained.node} says already: {reason}"
    if reason != CONSTANT:
        return True, f"{drained.node} is drained by somebody else ({reason or 'no reason given'}): left alone"
    ran = asked(["update", f"nodename={drained.node}", f"reason={drained.reason}"])
    return (False, ran.failure) if ran.failure else (True, f"{drained.node}: {drained.reason}")


def standing(said: str) -> tuple[str, str]:
    """(state, reason without its stamp) out of `scontrol show node`."""
    state = re.search(r"(?:^|\s)State=(\S+)", said)
    reason = next(_reasons(said), "")
    return state.group(1) if state else "", STAMP.sub("", reason).strip()


def _reasons(said: str) -> Iterator[str]:
    for line in said.splitlines():
        name, sign, text = line.strip().partition("=")
        if name == "Reason" and sign:
            yield text
