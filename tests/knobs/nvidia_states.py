"""States of NVIDIA GPUs that somebody else left behind, for the table of tests/test_laws.py.

Each row: name, how it came about, what is read then, what a profile writes over it, what is read after that. Clocks and
limits are those of both A100-SXM4: NVIDIA/nvidia-docker#1648.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.host import Host
from tuner.knobs import BY_NAME

Row = tuple[str, Callable[[Host], None], Any, Any, Any]


def limit(watts: Any) -> dict[str, Any]:
    """A limit that is enforced."""
    return {"limit": watts, "enforced": watts}


def mode(current: str, pending: str) -> dict[str, Any]:
    """A mode that may be pending."""
    return {"current": current, "pending": pending}


def lock(low: int, high: int) -> dict[str, Any]:
    """A range in MHz."""
    return {"min": low, "max": high}


ON, OFF, CORE, MEMORY = "enabled", "disabled", "nvidia.gpu_clocks", "nvidia.mem_clocks"


def states(gpu: str, memory: int) -> dict[str, list[Row]]:
    """By knob, for the A100 at that address with that one memory clock, which needs a reset for MIG."""

    def told(name: str, value: Any) -> Callable[[Host], None]:
        """nvidia-smi of an administrator."""
        return lambda host: host.nvml.set(gpu, name, value)

    def locked(knob: str, value: Any) -> Callable[[Host], None]:
        """By an earlier run of tuner, in persistence mode: what others lock cannot be read."""

        def make(host: Host) -> None:
            host.nvml.set(gpu, "persistence", ON)
            BY_NAME[knob].write(host, gpu, value)

        return make

    return {
        "nvidia.persistence": [
            ("on", told("persistence", ON), ON, OFF, OFF),
            ("off", told("persistence", OFF), OFF, ON, ON),
        ],
        "nvidia.compute_mode": [
            ("one process", told("compute_mode", "exclusive_process"), "exclusive_process", "default", "default"),
            ("none", told("compute_mode", "prohibited"), "prohibited", "exclusive_process", "exclusive_process"),
            ("any", told("compute_mode", "default"), "default", "prohibited", "prohibited"),
        ],
        "nvidia.power_limit": [
            ("lowest", told("power", 100000), limit(100), "400", limit(400)),
            ("highest", told("power", 400000), limit(400), "300.5", limit("300.5")),
            ("no whole watt", told("power", 349999), limit("349.999"), "default", limit(400)),
        ],
        "nvidia.ecc": [
            ("on", told("ecc", ON), mode(ON, ON), OFF, mode(ON, OFF)),
            ("off at the next reset", told("ecc", OFF), mode(ON, OFF), ON, mode(ON, ON)),
        ],
        "nvidia.mig": [
            ("off", told("mig", OFF), mode(OFF, OFF), ON, mode(OFF, ON)),
            ("on at the next reset", told("mig", ON), mode(OFF, ON), OFF, mode(OFF, OFF)),
        ],
        MEMORY: [
            ("reset", locked(MEMORY, None), "unlocked", str(memory), lock(memory, memory)),
            ("locked", locked(MEMORY, lock(memory, memory)), lock(memory, memory), "unlocked", "unlocked"),
        ],
        CORE: [
            ("reset", locked(CORE, None), "unlocked", "1410", lock(1410, 1410)),
            ("one", locked(CORE, lock(1305, 1305)), lock(1305, 1305), {"min": "210", "max": "1410"}, lock(210, 1410)),
            ("range", locked(CORE, lock(210, 1200)), lock(210, 1200), "unlocked", "unlocked"),
            ("lowest", locked(CORE, lock(210, 210)), lock(210, 210), "1305", lock(1305, 1305)),
        ],
    }  # fmt: skip
