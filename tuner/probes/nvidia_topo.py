"""nvidia-smi topo -m: how near GPUs and NICs are to each other, as the driver sees it.

Cells, nearest first: NV# bonded NVLinks, PIX at most one PCIe bridge, PXB several, PHB a host bridge, NODE several host
bridges of one NUMA node, SYS across NUMA nodes (legend of the tool). Old drivers name NICs in the header, newer ones
in a legend below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.asking import Probe

NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first."""

PHRASES = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|\S+")
AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB|C2C|[A-Z]{2,4}")
LEGEND = re.compile(r"\s*(NIC[0-9]{1,3}): (\S+)\s*")
GPU = re.compile(r"GPU[0-9]{1,4}")
CPUS = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*")


@dataclass(frozen=True)
class Topo:
    """The matrix. `links` are the cells of the rows of GPUs, `legend` what a NIC is really called.

    `cut` where rows of GPUs are missing, or the legend that names the NICs.
    """

    gpus: tuple[str, ...]
    labels: tuple[str, ...]
    links: dict[tuple[str, str], str]
    cpus: dict[str, str | None]
    numa: dict[str, int | None] | None
    gpu_numa: dict[str, int | None] | None
    legend: dict[str, str]
    cut: bool

    def device(self, label: str) -> str | None:
        """The RDMA device of a column; None for NIC3 without a legend."""
        return self.legend.get(label) or (None if re.fullmatch(r"NIC[0-9]+", label) else label)

    def best(self, gpu: str, labels: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], str | None]:
        """The nearest NICs of a GPU among `labels`, and how near; none where a cell is missing."""
        told = {label: self.links.get((gpu, label)) for label in (self.labels if labels is None else labels)}
        ranks = {label: NEAR.index(cell) for label, cell in told.items() if cell in NEAR}
        if not ranks or len(ranks) < len(told):
            return (), None
        least = min(ranks.values())
        return tuple(label for label, rank in ranks.items() if rank == least), NEAR[least]

    def nvlinks(self) -> dict[tuple[str, str], int]:
        """How many bonded links each pair of GPUs has; 0 for a pair without."""
        pairs = {pair: cell for pair, cell in self.links.items() if pair[1] in self.gpus and cell != "X"}
        return {pair: int(cell[2:]) if cell.startswith("NV") and cell[2:] else 0 for pair, cell in pairs.items()}


def parse_topo(text: str) -> Topo:
    """The matrix and its legend, whatever of it is there."""
    rows, cut = cells.lines(text)
    at, head = next(((at, head) for at, row in enumerate(rows) if (head := _head(row))), (0, []))
    if not head:
        raise cells.refused(rows, "matrix")
    devices = [name for name in head if name not in AFFINITIES]
    extra = [name for name in head if name in AFFINITIES]
    gpus = tuple(name for name in devices if GPU.fullmatch(name))
    links: dict[tuple[str, str], str] = {}
    told: dict[str, list[str]] = {}
    for row in rows[at + 1 :]:
        name, *rest = row.split() or [""]
        found = rest[: len(devices)]
        if name not in gpus or name in told or len(found) < len(devices) or not all(map(CELL.fullmatch, found)):
            continue
        links.update({(name, other): cell for other, cell in zip(devices, found, strict=True)})
        told[name] = _extras(row, rest[len(devices) :], len(devices), len(extra))
    legend = {m.group(1): m.group(2) for row in rows if (m := LEGEND.fullmatch(row))}
    labels = tuple(name for name in devices if name not in gpus)
    unnamed = [name for name in labels if re.fullmatch(r"NIC[0-9]+", name) and name not in legend]
    cpus, numa, own = (_column(told, extra, name) for name in AFFINITIES)
    return Topo(
        gpus,
        labels,
        links,
        {gpu: cell if CPUS.fullmatch(cell) else None for gpu, cell in (cpus or {}).items()},
        None if numa is None else {gpu: cells.index(cell) for gpu, cell in numa.items()},
        None if own is None else {gpu: cells.index(cell) for gpu, cell in own.items()},
        legend,
        cut or len(told) < len(gpus) or bool(unnamed),
    )


def _head(row: str) -> list[str]:
    """The columns, where the row is the header: it starts with a GPU, and its first cell is empty."""
    found: list[str] = PHRASES.findall(row)
    starts = row[:1].isspace() and found and GPU.fullmatch(found[0])
    return found if starts and len(set(found)) == len(found) else []


def _extras(row: str, rest: list[str], devices: int, count: int) -> list[str]:
    """The affinities of a row. With tabs an empty cell keeps its place; one too many comes before the last."""
    if "\t" in row:
        parts = [cell.strip() for cell in row.split("\t")][1 + devices :]
        if len(parts) > count and not parts[-2]:
            parts = [*parts[: count - 1], parts[-1]]
        rest = parts
    return rest if len(rest) == count else [""] * count


def _column(told: dict[str, list[str]], extra: list[str], name: str) -> dict[str, str] | None:
    return {gpu: cell[extra.index(name)] for gpu, cell in told.items()} if name in extra else None


MATRIX = Probe(("nvidia-smi", "topo", "-m"), parse_topo)
