"""amd-smi topology: JSON of before ROCm 6.2 (mappings gpu_0, gpu_1 ...), JSON since (lists of links), and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.amd_smi import read
from tuner.probes.asking import Probe
from tuner.probes.tree import Node, documents

TITLE = re.compile(r"([A-Z][A-Z ]*?) TABLE:\s*")
BDF = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
TABLES = ("ACCESS", "WEIGHT", "HOPS", "LINK TYPE", "NUMA BW")
OLD = ("link_accessibility", "weight", "hops", "link_type", "numa_bandwidth")
NEW = ("link_status", "weight", "num_hops", "link_type", "bandwidth")


@dataclass(frozen=True)
class Link:
    """Between two GPUs; what was not asked for is None. `bandwidth` is `min-max` as the tool writes it."""

    kind: str | None
    accessible: bool | None
    hops: int | None
    weight: int | None
    bandwidth: str | None


@dataclass(frozen=True)
class Topo:
    """GPUs by their number in the output, `pci` where it has them; links by two numbers, to itself included."""

    gpus: tuple[int, ...]
    pci: dict[int, str]
    links: dict[tuple[int, int], Link]
    cut: bool


def parse_topo(text: str) -> Topo:
    """All three forms."""
    if documents(text)[0]:
        return _json(text)
    return _tables(text)


def _json(text: str) -> Topo:
    told = read(text)
    links: dict[tuple[int, int], Link] = {}
    places: dict[int, str] = {}
    for gpu, node in told.gpus:
        place = cells.pci(node.get("bdf").text)
        places |= {gpu: place} if place else {}
        for row in node.get("links").below:
            other = cells.index(row.get("gpu").text)
            if other is not None:
                links[gpu, other] = _link(*(row.get(name).text for name in NEW))
        for one in _old(node):
            links[gpu, one] = _link(*(node.get(name, f"gpu_{one}").text for name in OLD))
    gpus = tuple(dict.fromkeys(gpu for gpu, _ in told.gpus))
    return Topo(gpus, places, links, told.cut or len(links) < len(gpus) ** 2)


def _old(node: Node) -> list[int]:
    names = [child.key for name in OLD for child in node.get(name).below]
    return [int(name[4:]) for name in dict.fromkeys(names) if re.fullmatch(r"gpu_[0-9]{1,4}", name)]


def _link(access: str, weight: str, hops: str, kind: str, bandwidth: str) -> Link:
    accessible = {"ENABLED": True, "DISABLED": False}.get(access.upper())
    return Link(cells.word(kind), accessible, cells.whole(hops), cells.whole(weight), cells.word(bandwidth))


def _tables(text: str) -> Topo:
    rows, cut = cells.lines(text)
    told: dict[str, dict[tuple[str, str], str]] = {}
    title, columns, places = "", [""], list[str]()
    for row in rows:
        head, parts = TITLE.fullmatch(row.strip()), row.split()
        if head:
            title, columns = head.group(1), []
        elif title and parts and all(map(BDF.fullmatch, parts)) and not columns:
            columns = [cells.pci(part) or part for part in parts]
            places = list(dict.fromkeys([*places, *columns]))
            told.setdefault(title, {})
        elif title and columns and parts and BDF.fullmatch(parts[0]) and len(parts) == len(columns) + 1:
            mine = cells.pci(parts[0]) or parts[0]
            told[title].update({(mine, other): cell for other, cell in zip(columns, parts[1:], strict=True)})
    if not places:
        raise cells.refused(rows, "matrix")
    number = {place: at for at, place in enumerate(places)}
    pairs = dict.fromkeys(pair for cells_ in told.values() for pair in cells_ if pair[0] in number)
    links = {
        (number[one], number[other]): _link(*(told.get(name, {}).get((one, other), "") for name in TABLES))
        for one, other in pairs
    }
    short = any(len(cells_) < len(places) ** 2 for cells_ in told.values())
    return Topo(tuple(number.values()), {at: place for place, at in number.items()}, links, cut or short)


TOPO = Probe(("amd-smi", "topology", "--json"), parse_topo, 30.0)
