"""rocm-smi --showtopo: weight, hops and kind of link between each two GPUs, and their NUMA nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.asking import Probe
from tuner.probes.rocm_smi import parse_log

TITLE = re.compile(r"=+\s*(\S.*?)\s*=+")
GPU = re.compile(r"GPU[0-9]{1,4}")
WEIGHT, HOPS, KIND = "weight between two gpus", "hops between two gpus", "link type between two gpus"

Matrix = dict[tuple[int, int], str]


@dataclass(frozen=True)
class Link:
    """Between two GPUs: XGMI or PCIE, how many hops, and the tool's weight; "0" is a GPU's link to itself."""

    kind: str | None
    hops: int | None
    weight: int | None


@dataclass(frozen=True)
class Topo:
    """By the tool's index. `numa` has the GPUs of which a node is known; `cut` where a row or a node is missing."""

    gpus: tuple[int, ...]
    links: dict[tuple[int, int], Link]
    numa: dict[int, int]
    warnings: tuple[str, ...]
    cut: bool

    @property
    def xgmi(self) -> bool:
        """Whether any two GPUs are joined by xGMI."""
        return any(link.kind == "XGMI" for link in self.links.values())


def parse_topo(text: str) -> Topo:
    """The tables, by their titles."""
    rows, cut = cells.lines(text)
    tables = _tables(rows)
    gpus = tuple(dict.fromkeys(gpu for columns, _ in tables.values() for gpu in columns))
    if not gpus:
        raise cells.refused(rows, "matrix")
    weight, hops, kind = (tables.get(name, ((), {}))[1] for name in (WEIGHT, HOPS, KIND))
    pairs = dict.fromkeys([*kind, *hops, *weight])
    links = {
        pair: Link(cells.word(kind.get(pair, "")), cells.whole(hops.get(pair, "")), cells.whole(weight.get(pair, "")))
        for pair in pairs
    }
    numa = _numa(rows)
    short = any(len(cells_) < len(gpus) ** 2 for cells_ in (weight, hops, kind))
    return Topo(gpus, links, numa, cells.notes(rows), cut or short or len(numa) < len(gpus))


def _numa(rows: list[str]) -> dict[int, int]:
    try:
        told = parse_log("".join(f"{row}\n" for row in rows)).named("(Topology) Numa Node")
    except cells.ParseError:
        return {}
    found = {gpu: cells.index(cell) for gpu, cell in told.items()}
    return {gpu: node for gpu, node in found.items() if node is not None}


def _tables(rows: list[str]) -> dict[str, tuple[tuple[int, ...], Matrix]]:
    """Title in small letters -> columns and cells of each matrix; a row that is not whole is left out."""
    tables: dict[str, tuple[tuple[int, ...], Matrix]] = {}
    title = ""
    columns: tuple[int, ...] = ()
    for row in rows:
        head = TITLE.fullmatch(row.strip())
        if head:
            title, columns = head.group(1).lower(), ()
            continue
        name, *rest = row.split() or [""]
        if GPU.fullmatch(name) and not columns and all(map(GPU.fullmatch, rest)) and row[:1].isspace():
            columns = tuple(int(one[3:]) for one in (name, *rest))
            tables.setdefault(title, (columns, {}))
        elif GPU.fullmatch(name) and columns and len(rest) == len(columns):
            tables[title][1].update({(int(name[3:]), other): cell for other, cell in zip(columns, rest, strict=True)})
    return tables


TOPO = Probe(("rocm-smi", "--showtopo"), parse_topo)
