"""amd-smi metric and static, as text or as JSON: a list, {"gpu_data": [...]} since ROCm 7, or several documents.

A quantity is a number, {"value": 10, "unit": "W"} since ROCm 6.1, or "N/A". The text looks like YAML and is none: keys
repeat (ROCm/amdsmi, amdsmi_cli/README.md and CHANGELOG.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.asking import Probe
from tuner.probes.tree import Node, documents, indented, nodes

Block = tuple[int, Node]


@dataclass(frozen=True)
class Output:
    """Blocks by GPU in the order of the output, how many CPU blocks, lines before a document, and whether it is cut."""

    gpus: tuple[Block, ...]
    cpus: int
    banner: tuple[str, ...]
    cut: bool


def read(text: str) -> Output:
    """Any output that has a block for each GPU; ParseError where it has none."""
    found, noise, cut = documents(text)
    if found:
        tops = [node for document in found for node in nodes(document)]
        rows = [row for top in tops for row in (top.get("gpu_data").below or [top])]
        blocks = [(number, row) for row in rows if (number := cells.index(row.get("gpu").text)) is not None]
        cpus = sum(bool(row.get("cpu").text) for row in rows)
    else:
        noise, cut = cells.lines(text)
        tree = indented(noise)
        told = [(node, cells.index(node.text)) for node in tree if node.key.upper() == "GPU"]
        blocks = [(number, node) for node, number in told if number is not None]
        cpus = sum(node.key.upper() == "CPU" for node in tree)
    if not blocks:
        raise cells.refused(noise, "GPU")
    return Output(tuple(blocks), cpus, tuple(noise) if found else (), cut)


@dataclass(frozen=True)
class Clock:
    """A clock domain such as gfx_0. That `mhz` is below `min_mhz` is no fault while it is in deep sleep."""

    name: str
    mhz: int | None
    min_mhz: int | None
    max_mhz: int | None
    locked: bool | None
    deep_sleep: bool | None


COUNTER = "accumulation_counter"


@dataclass(frozen=True)
class Throttle:
    """What limited the GPU: `accumulated` counts since the driver started, `active` is now, `activity` in percent."""

    counter: int | None
    accumulated: tuple[tuple[str, int | None], ...]
    status: tuple[tuple[str, bool | None], ...]
    activity_pct: tuple[tuple[str, int | None], ...]

    @property
    def active(self) -> tuple[str, ...]:
        """What holds it back now."""
        return tuple(name for name, on in self.status if on)


@dataclass(frozen=True)
class Link:
    """The PCIe link and its errors."""

    width: int | None
    speed_gts: float | None
    replay_count: int | None
    nak_sent: int | None
    nak_received: int | None
    bandwidth_sent_mbs: float | None
    bandwidth_received_mbs: float | None


@dataclass(frozen=True)
class Metric:
    """amd-smi metric of a GPU; a part that was not asked for has no values, and throttle is None."""

    gpu: int
    socket_power_w: float | None
    throttle_status: str | None
    clocks: tuple[Clock, ...]
    throttle: Throttle | None
    pcie: Link

    def domain(self, kind: str) -> tuple[Clock, ...]:
        """Of gfx: gfx_0, gfx_1 and so on."""
        return tuple(clock for clock in self.clocks if re.fullmatch(rf"{kind}(_[0-9]+)?", clock.name))


@dataclass(frozen=True)
class Metrics:
    """All GPUs."""

    gpus: tuple[Metric, ...]
    banner: tuple[str, ...]
    cut: bool


def parse_metric(text: str) -> Metrics:
    """amd-smi metric, with whatever of -p, -c, --pcie, --throttle, and with or without --json."""
    told = read(text)
    return Metrics(tuple(_metric(gpu, node) for gpu, node in told.gpus), told.banner, told.cut)


def _metric(gpu: int, node: Node) -> Metric:
    clocks = tuple(_clock(one) for one in node.get("clock").below if one.below)
    return Metric(
        gpu,
        node.real("power", "socket_power", unit="W"),
        node.word("power", "throttle_status"),
        clocks,
        next((_throttle(found) for name in ("throttle", "violation") if (found := node.get(name)).below), None),
        _link(node.get("pcie")),
    )


def _clock(node: Node) -> Clock:
    now, low, high = (node.whole(name, unit="MHz") for name in ("clk", "min_clk", "max_clk"))
    return Clock(node.key.lower(), now, low, high, _enabled(node.word("clk_locked")), _enabled(node.word("deep_sleep")))


def _enabled(text: str | None) -> bool | None:
    return {"ENABLED": True, "DISABLED": False}.get((text or "").upper())


def _throttle(node: Node) -> Throttle:
    """Names begin or end with what they count: `acc_ppt_pwr` of one release is `ppt_accumulated` of another."""

    def of(start: str, end: str) -> list[tuple[str, str]]:
        keys = ((one.key.lower(), one.text) for one in node.below)
        found = ((key, text) for key, text in keys if key != COUNTER and (key.startswith(start) or key.endswith(end)))
        return [(key.removeprefix(start).removesuffix(end), text) for key, text in found]

    words = {"ACTIVE": True, "NOT ACTIVE": False}
    return Throttle(
        node.whole(COUNTER),
        tuple((name, cells.whole(text)) for name, text in of("acc_", "_accumulated")),
        tuple((name, words.get(text.upper())) for name, text in of("active_", "_violation_status")),
        tuple((name, cells.whole(text, "%")) for name, text in of("per_", "_violation_activity")),
    )


def _link(node: Node) -> Link:
    return Link(
        node.whole("width"),
        node.real("speed", unit="GT/s"),
        node.whole("replay_count"),
        node.whole("nak_sent_count"),
        node.whole("nak_received_count"),
        node.real("current_bandwidth_sent", unit="Mb/s"),
        node.real("current_bandwidth_received", unit="Mb/s"),
    )


@dataclass(frozen=True)
class Policy:
    """A policy with its numbers and names; `current` is the number in force."""

    supported: int | None
    current: int | None
    policies: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Static:
    """amd-smi static of a GPU; `levels` are the current levels of its clocks."""

    gpu: int
    market_name: str | None
    pci: str | None
    max_pcie_width: int | None
    max_pcie_speed_gts: float | None
    max_power_w: float | None
    slowdown_edge_c: float | None
    slowdown_hotspot_c: float | None
    soc_pstate: Policy
    xgmi_plpd: Policy
    compute_partition: str | None
    memory_partition: str | None
    numa_node: int | None
    vram_mb: int | None
    levels: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class Statics:
    """All GPUs, and how many blocks of CPUs came before them."""

    gpus: tuple[Static, ...]
    cpus: int
    cut: bool


def parse_static(text: str) -> Statics:
    """amd-smi static, with or without --json."""
    told = read(text)
    return Statics(tuple(_static(gpu, node) for gpu, node in told.gpus), told.cpus, told.cut)


def _static(gpu: int, node: Node) -> Static:
    def celsius(name: str) -> float | None:
        return cells.celsius(node.get("limit", name).text)

    clocks = node.get("clock").below
    return Static(
        gpu,
        node.word("asic", "market_name"),
        cells.pci(node.get("bus", "bdf").text),
        node.whole("bus", "max_pcie_width"),
        node.real("bus", "max_pcie_speed", unit="GT/s"),
        node.real("limit", "max_power", unit="W"),
        celsius("slowdown_edge_temperature"),
        celsius("slowdown_hotspot_temperature"),
        _policy(node.get("soc_pstate")),
        _policy(node.get("xgmi_plpd")),
        node.word("partition", "compute_partition"),
        node.word("partition", "memory_partition"),
        node.whole("numa", "node"),
        node.whole("vram", "size", unit="MB"),
        tuple((one.key.lower(), one.whole("current_level")) for one in clocks if one.get("current_level").text),
    )


def _policy(node: Node) -> Policy:
    """The numbers and names follow each other, all as keys of one mapping (text), or one mapping each (JSON)."""
    rows = [row for name in ("policies", "plpds") for row in node.get(name).below]
    flat = [one for row in rows for one in (row.below or [row])]
    found: dict[int, str] = {}
    number: int | None = None
    for one in flat:
        if one.key.lower() == "policy_id":
            number = cells.index(one.text)
        elif one.key.lower() == "policy_description" and number is not None:
            found[number], number = one.text, None
    return Policy(node.whole("num_supported"), node.whole("current_id"), tuple(found.items()))


METRIC = Probe(("amd-smi", "metric", "--json"), parse_metric, 30.0)
STATIC = Probe(("amd-smi", "static", "--json"), parse_static, 30.0)
