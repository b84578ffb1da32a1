"""How an NVIDIA GPU answers what NVML sets: the recorded answers below nvml/ADDRESS change as the device's would.

NVML API Reference. Locked clocks have no file, as they have no getter: what is locked is staged, and shows only in the
clocks of the moment, which are brought into the range. `mig_activation` is there only while there is something to say.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Callable
from typing import Any

from tuner.host.nvml import fault
from tuner.host.replay import answer, shown
from tuner.sim.world import Rule, World

PREFIX = "/.tuner-host/nvml/"
"""Below it lie the answers of NVML of a recorded host."""

SWITCH = ("enabled", "disabled")
MODES = ("default", "exclusive_process", "prohibited")
SHOWS = {"gpu_clocks": ("graphics", "sm"), "mem_clocks": ("memory",)}
"""Which clocks of the moment a lock shows in."""


def nvidia(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """A set of NVML on the GPU at nvml/ADDRESS.

    `deny: true` refuses for want of rights, `lost: true` as a GPU that fell off the bus; `enforced: MW` caps what of a
    power limit is enforced; `mig`: a mode comes into force at a `reset` (without a word), `now`, or not while `in_use`.
    """
    if rule.get("lost"):
        raise fault("GPU_IS_LOST")
    if rule.get("deny"):
        raise fault("NO_PERMISSION")
    folder, name = posixpath.split(path)
    if name not in SETTERS:
        raise fault("FUNCTION_NOT_FOUND")
    SETTERS[name](world, rule, folder, name, json.loads(written))


def _get(world: World, folder: str, name: str) -> Any:
    """A recorded answer, with its error; a file that is not there is a function that the device lacks."""
    if not world.has(f"{folder}/{name}"):
        raise fault("NOT_SUPPORTED")
    found = answer(world.get(f"{folder}/{name}"))
    if found is None:
        raise fault("NOT_SUPPORTED")
    return found


def _put(world: World, folder: str, name: str, value: Any) -> None:
    if answer(world.get(f"{folder}/{name}")) != value:
        world.set(f"{folder}/{name}", shown(value))


def _fits(fine: bool) -> None:
    if not fine:
        raise fault("INVALID_ARGUMENT")


def _mode(world: World, rule: Rule, folder: str, name: str, value: Any) -> None:
    _get(world, folder, name)
    _fits(value in (MODES if name == "compute_mode" else SWITCH))
    _put(world, folder, name, value)


def _power(world: World, rule: Rule, folder: str, name: str, value: Any) -> None:
    power = _get(world, folder, name)
    _fits(type(value) is int and power["min"] <= value <= power["max"])
    _put(world, folder, name, {**power, "limit": value, "enforced": min(value, rule.get("enforced", value))})


def _ecc(world: World, rule: Rule, folder: str, name: str, value: Any) -> None:
    ecc = _get(world, folder, name)
    _fits(value in SWITCH)
    _put(world, folder, name, {**ecc, "pending": value})


def _mig(world: World, rule: Rule, folder: str, name: str, value: Any) -> None:
    mig, how = _get(world, folder, name), rule.get("mig", "reset")
    _fits(value in SWITCH)
    after = {"current": value if how == "now" else mig["current"], "pending": value}
    _put(world, folder, name, after)
    status = {"now": "SUCCESS", "reset": "RESET_REQUIRED", "in_use": "IN_USE"}[how]
    place = f"{folder}/mig_activation"
    if after["current"] != after["pending"]:
        world.tree.put(place, shown(status).encode(), 0o644)
    else:
        with contextlib.suppress(FileNotFoundError):
            world.tree.unlink(place)


def _lock(world: World, rule: Rule, folder: str, name: str, value: Any) -> None:
    table = _get(world, folder, "supported_clocks")
    legal = (
        {int(memory) for memory in table} if name == "mem_clocks" else {mhz for row in table.values() for mhz in row}
    )
    pair = isinstance(value, list) and len(value) == 2 and all(type(mhz) is int for mhz in value)
    _fits(value is None or (pair and set(value) <= legal and value[0] <= value[1]))
    state = f"nvidia-{posixpath.basename(folder)}-{name}"
    clocks = _get(world, folder, "clocks")
    held = json.loads(world.staged(state) or "{}")
    free = {clock: held.get(clock, [mhz, mhz])[0] for clock, mhz in clocks.items() if clock in SHOWS[name]}
    for clock, mhz in clocks.items():  # one that was changed by hand since is the free one now
        if clock in free and clock in held and held[clock][1] != mhz:
            free[clock] = mhz
    now = {clock: mhz if value is None else min(max(mhz, value[0]), value[1]) for clock, mhz in free.items()}
    _put(world, folder, "clocks", {**clocks, **now})
    if value is None:
        world.commit(state)
    else:
        world.stage(state, json.dumps({clock: [free[clock], now[clock]] for clock in free}))


Setter = Callable[[World, Rule, str, str, Any], None]
SETTERS: dict[str, Setter] = {
    "persistence": _mode, "compute_mode": _mode, "power": _power, "ecc": _ecc, "mig": _mig,
    "gpu_clocks": _lock, "mem_clocks": _lock,
}  # fmt: skip
