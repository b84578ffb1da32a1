"""nvidia-smi -q: every GPU as sections of `Name : value` lines (nvidia-smi(1)).

What holds the clocks down stands under Clocks Event Reasons (Clocks Throttle Reasons before driver 535); the section
Clocks Event Reasons Counters has almost the same names, and times instead of words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.asking import Probe
from tuner.probes.cells import Flaw
from tuner.probes.tree import Node, indented

GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
REASONS = ("clocks event reasons", "clocks throttle reasons")
COUNTERS = ("clocks event reasons counters", "clocks throttle reasons counters")
POWER = ("gpu power readings", "power readings")
DRAW = ("power draw", "average power draw", "instantaneous power draw")


@dataclass(frozen=True)
class Clocks:
    """MHz; None where the GPU has no such clock."""

    graphics_mhz: int | None
    sm_mhz: int | None
    mem_mhz: int | None
    video_mhz: int | None


@dataclass(frozen=True)
class Power:
    """Watts: the draw now, the limit in force, the one asked for, and what limits there may be."""

    draw_w: float | None
    limit_w: float | None
    requested_w: float | None
    default_w: float | None
    min_w: float | None
    max_w: float | None


@dataclass(frozen=True)
class Gpu:
    """A GPU; `reasons_active` is None where the section is missing, `counters_us` are the times of the reasons."""

    pci: str
    name: str | None
    pstate: str | None
    persistence: str | None
    fan_pct: int | None
    temp_c: int | None
    mem_temp_c: int | None
    voltage_mv: float | None
    reasons_active: tuple[str, ...] | None
    counters_us: tuple[tuple[str, int], ...]
    now: Clocks
    app: Clocks
    max: Clocks
    max_customer_boost_mhz: int | None
    power: Power
    flaws: tuple[Flaw, ...]

    @property
    def idle(self) -> bool | None:
        """Whether low clocks are those of a GPU without work."""
        return None if self.reasons_active is None else "Idle" in self.reasons_active


@dataclass(frozen=True)
class Report:
    """`attached` is how many GPUs the driver has; `cut` where the output has fewer, or ends early."""

    driver: str | None
    cuda: str | None
    attached: int | None
    gpus: tuple[Gpu, ...]
    cut: bool


def parse_q(text: str) -> Report:
    """The whole output, or a part of it."""
    rows, cut = cells.lines(text)
    top = Node("", "", indented(rows))
    blocks = [(found.group(1), node) for node in top.below if (found := GPU.fullmatch(node.key))]
    attached = top.whole("attached gpus")
    if not blocks and attached is None:
        raise cells.refused(rows, "GPU")
    short = bool(blocks) and len(blocks[-1][1].below) < len(blocks[0][1].below)
    gpus = tuple(_gpu(place, node) for place, node in blocks)
    return Report(
        top.word("driver version"), top.word("cuda version"), attached, gpus, cut or short or attached != len(gpus)
    )


def _gpu(place: str, node: Node) -> Gpu:
    reasons = next((node.get(name) for name in REASONS if node.get(name).below), None)
    flaws = tuple(bad for path, text in node.leaves() if (bad := cells.flaw(path, text)))
    return Gpu(
        cells.pci(place) or place,
        node.word("product name"),
        node.word("performance state"),
        node.word("persistence mode"),
        node.whole("fan speed", unit="%"),
        node.whole("temperature", "gpu current temp", unit="C"),
        node.whole("temperature", "memory current temp", unit="C"),
        node.real("voltage", "graphics", unit="mV"),
        None if reasons is None else tuple(p.rpartition("/")[2] for p, text in reasons.leaves() if text == "Active"),
        _counters(node),
        _clocks(node.get("clocks")),
        _clocks(node.get("applications clocks")),
        _clocks(node.get("max clocks")),
        node.whole("max customer boost clocks", "graphics", unit="MHz"),
        _power(node),
        flaws,
    )


def _counters(node: Node) -> tuple[tuple[str, int], ...]:
    section = next((node.get(name) for name in COUNTERS if node.get(name).below), Node(""))
    told = [(child.key, cells.whole(child.text, "us")) for child in section.below]
    return tuple((name, value) for name, value in told if value is not None)


def _clocks(node: Node) -> Clocks:
    return Clocks(*(node.whole(name, unit="MHz") for name in ("graphics", "sm", "memory", "video")))


def _power(node: Node) -> Power:
    section = next((node.get(name) for name in POWER if node.get(name).below), Node(""))
    draw = next((value for name in DRAW if (value := section.real(name, unit="W")) is not None), None)
    limits = ("current", "requested", "default", "min", "max")
    return Power(draw, *(section.real(f"{name} power limit", unit="W") for name in limits))


REPORT = Probe(("nvidia-smi", "-q"), parse_q, 30.0)
