"""Shapes of values for the schema of profiles: what every part of it is made of, and those of NVIDIA's GPUs."""

from __future__ import annotations

from typing import Any

from tuner.knobs.nvidia_modes import MODES
from tuner.knobs.nvidia_power import DEFAULT
from tuner.knobs.nvidia_state import ALL, LINKS, RUNNING, STATES
from tuner.knobs.pcie import GENERATIONS, WIDTHS

Schema = dict[str, Any]

NUMBER_TEXT = r"-?(?:0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)"
"""What tuner.knobs.base.number reads: no unit, no leading zero."""


def closed(properties: dict[str, Any], patterns: dict[str, Any] | None = None, *, others: Any = False) -> Schema:
    """A mapping of these keys, and of `others`."""
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": others}
    return {**found, "patternProperties": patterns} if patterns else found


def number(low: int | None, high: int | None) -> Schema:
    """A number in these bounds, or text that is read as one."""
    whole = {"type": "integer", "minimum": low, "maximum": high}
    whole = {key: bound for key, bound in whole.items() if bound is not None}
    return {"anyOf": [whole, {"type": "string", "pattern": rf"^\s*{NUMBER_TEXT}\s*$"}]}


def record(shapes: dict[str, Any]) -> Schema:
    """A mapping of at least one of these fields."""
    return {**closed(shapes), "minProperties": 1}


SWITCH: Schema = {"enum": ["enabled", "disabled"]}
PENDING: Schema = {"anyOf": [SWITCH, record({"pending": SWITCH})]}
MHZ = number(1, 65534)
LOCK: Schema = {"anyOf": [{"const": "unlocked"}, MHZ, {**closed({"min": MHZ, "max": MHZ}), "required": ["min", "max"]}]}
WATTS: Schema = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\s*\d{1,5}(?:\.\d{1,3})?\s*$"}]
}
LIMIT: Schema = {"anyOf": [WATTS, {"const": DEFAULT}]}
FLAG: Schema = {"enum": ["yes", "no"]}
COUNT = number(0, None)
WIDTH: Schema = {"enum": [*WIDTHS, *map(str, WIDTHS)]}

NVIDIA: dict[str, tuple[str, Schema, Schema | bool]] = {
    "nvidia.persistence": ("nvidia.switch", SWITCH, False),
    "nvidia.ecc": ("nvidia.pending", PENDING, False),
    "nvidia.mig": ("nvidia.pending", PENDING, False),
    "nvidia.compute_mode": ("nvidia.compute_mode", {"enum": list(MODES)}, False),
    "nvidia.mem_clocks": ("nvidia.lock", LOCK, False),
    "nvidia.gpu_clocks": ("nvidia.lock", LOCK, False),
    "nvidia.power_limit": (
        "nvidia.watts", {"anyOf": [LIMIT, record({"limit": LIMIT})]}, {"anyOf": [WATTS, record({"limit": WATTS})]},
    ),
    "nvidia.fabric": ("nvidia.fabric", {"enum": list(STATES)}, False),
    "nvidia.nvlinks": ("nvidia.links", {"anyOf": [{"const": ALL}, number(0, LINKS)]}, number(0, LINKS)),
    "nvidia.row_remap": (
        "nvidia.rows", record({"correctable": COUNT, "uncorrectable": COUNT, "pending": FLAG, "failure": FLAG}), True,
    ),
    "pcie.link": ("pcie.link", record({"generation": number(1, max(GENERATIONS.values())), "width": WIDTH}), True),
}  # fmt: skip
"""Knobs whose targets are PCI functions: what their shape is called, the shape, and that of bounds (True: the same)."""

MANAGER: Schema = {
    "anyOf": [
        {"const": RUNNING},
        record(
            {"service": {"enum": ["active", "inactive"]}, "version": {"type": "string", "pattern": r"^\d+(\.\d+)+$"}}
        ),
    ]
}
"""The value of nvidia.fabric_manager."""
