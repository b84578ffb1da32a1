"""The GFX clock of an MI300X set by rocm-smi, AMD's own program, and judged by the files of the driver.

ROCm/rocm_smi_lib python_smi_tools/rocm_smi.py. Nothing that it prints is believed and nothing that it ends with: it
exits 0 when the driver refused, and 2 in releases that succeeded. It counts GPUs in an order of its own, which is not
that of DRM's cards, so that it is asked for the number of a PCI address each time. Words like `high` are never passed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.errors import Refused
from tuner.host.door import Host
from tuner.host.shell import Ran, run
from tuner.knobs.amdgpu_device import WRITING, identity
from tuner.knobs.amdgpu_levels import AUTO, CAPPED, MANUAL, Fields, State, goal_of, holds, put_back, said, state, taken
from tuner.model import Value
from tuner.pci import named

NAME = "rocm-smi"
PROGRAMS = ("/opt/rocm/bin/rocm-smi", "/usr/bin/rocm-smi")
"""Where AMD's packages and those of distributions put it: no search path of whoever calls us."""

SECONDS = 30.0
"""What one call may take: it waits for locks that other processes of its library hold."""

LONGEST = 200
TELLING = re.compile(r"GPU\s*\[\d+\]|\bERROR\b|Exception|Unable|denied|cannot|No such", re.IGNORECASE)
"""Lines of its output that say what became of a call: not its frames, nor its page of warnings."""


def write(host: Host, target: str, value: Value) -> None:
    """Makes it so by rocm-smi; what the files do not hold then is put back through them and Refused, in its words."""
    wanted = taken(value)
    if host.kind != "live" or host.root != "/":
        raise Refused(f"{NAME} runs on a live host only")
    program = next((path for path in PROGRAMS if host.exists(path)), "")
    if not program:
        raise Refused(f"{NAME} is not installed: no {' and no '.join(PROGRAMS)}")
    try:
        before = state(host, target, time.monotonic() + WRITING)
    except (OSError, ValueError) as error:
        raise Refused(f"{getattr(error, 'strerror', None) or error} ({identity(host, target)})") from error
    goal = goal_of(before, wanted)
    if holds(before.record, goal):
        return
    number = index_of(program, target)
    words = _drive(program, number, _calls(before, goal))
    why = _judged(host, target, goal)
    if why:
        left = put_back(host, target, before, ["s"])
        raise Refused(f"{NAME}: {words or 'it said nothing'}; {why}{left} ({identity(host, target)})")


def index_of(program: str, target: str) -> int:
    """The number by which rocm-smi knows the GPU at a PCI address; Refused where it lists none or several."""
    ran = run([program, "--showbus", "--json"], SECONDS)
    found = [number for number, address in buses(ran.out) if address == target]
    if len(found) != 1:
        what = "lists no GPU" if not found else "lists several GPUs"
        raise Refused(f"{NAME} {what} at {target}: {told(ran) or 'it said nothing'}")
    return found[0]


def buses(text: str) -> Iterator[tuple[int, str]]:
    """(number, PCI address) of each GPU in the JSON of --showbus, whatever stands before and after it."""
    for card, fields in _document(text).items():
        number = re.fullmatch(r"card(\d+)", card)
        address = fields.get("PCI Bus") if isinstance(fields, Mapping) else None
        if number and isinstance(address, str):
            yield int(number.group(1)), named(address.strip())


def _document(text: str) -> dict[str, Any]:
    """The first JSON object of a text: warnings come before it, and may have brackets of their own."""
    for place in (found.start() for found in re.finditer(r"\{", text)):
        try:
            document, _ = json.JSONDecoder().raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            return document
    return {}


def _calls(before: State, goal: Fields) -> list[list[str]]:
    """The options of each call, in turn. A cap that is in force stays so while it becomes another."""
    level, held = goal["level"], before.record
    if level == AUTO:
        return [["--setperflevel", AUTO]]
    capped = held["level"] == CAPPED and held["max"] != before.span[1]
    fresh = [] if held["level"] == AUTO or (level == CAPPED and capped) else [["--setperflevel", AUTO]]
    if level == CAPPED:
        return [*fresh, ["--setperfdeterminism", str(goal["max"])]]
    limits = ["--setsrange", str(goal["min"]), str(goal["max"]), "--autorespond", "y"]
    return [*fresh, ["--setperflevel", MANUAL], limits]


def _drive(program: str, number: int, calls: list[list[str]]) -> str:
    """Makes the calls up to one that does not end; returns what they said."""
    words = []
    for options in calls:
        ran = run([program, "-d", str(number), *options], SECONDS)
        words.append(told(ran))
        if ran.code is None:
            break
    return "; ".join(filter(None, words))[-LONGEST:]


def _judged(host: Host, target: str, goal: Fields) -> str:
    """What the files show in place of what is wanted; empty when it is that."""
    try:
        after = state(host, target, time.monotonic() + WRITING).record
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return "" if holds(after, goal) else f"the driver holds {said(after)}, not {said(goal)}"


def told(ran: Ran) -> str:
    """Why a call did not end, or the lines that say what became of it: one line, bounded."""
    if ran.code is None:
        return ran.failure[:LONGEST]
    lines = [" ".join(line.split()) for line in f"{ran.out}\n{ran.err}".splitlines()]
    lines = [line for line in lines if line and not line.startswith("==")]
    telling = [line for line in lines if TELLING.search(line)] or lines[-1:]
    return "".join(c for c in "; ".join(telling) if c.isprintable())[:LONGEST]
