"""amd-smi monitor, and amd-smi without a command (since ROCm 7): tables whose cells hold a value and a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.asking import Probe

CELL = re.compile(r"N/A|[0-9][0-9.]*(?:\s(?!\s)(?:%|W|MHz|GHz|MB|GB|V|\S{0,2}C|Mb/s)(?=\s|$))?|\S+")
VERSIONS = re.compile(r"\|\s*AMD-SMI (\S+)\s+amdgpu version: (\S+)\s+ROCm version: (\S+)\s*\|")
FIRST = re.compile(
    r"\|\s*([0-9A-Fa-f:.]{7,16})\s+(\S.*?)\s*\|\s*(\S+(?: %)?)\s+(.*?)\s+(\S+)\s+(\S+)\s?/\s?(\S+) W\s*\|"
)
SECOND = re.compile(
    r"\|\s*([0-9]{1,4})\s+(\S+)\s+(\S+)\s+(\S+)\s*\|\s*(\S+(?: %)?)\s+(\S+(?: %)?)\s+(\S+)\s?/\s?(\S+) MB\s*\|"
)


@dataclass(frozen=True)
class Monitor:
    """(column, number) of each GPU; None where there is no value. `cut` where a row has not its header's cells."""

    gpus: dict[int, tuple[tuple[str, float | None], ...]]
    cut: bool


def parse_monitor(text: str) -> Monitor:
    """amd-smi monitor: which columns there are depends on the options; rows are right-aligned."""
    rows, cut = cells.lines(text)
    at = next((at for at, row in enumerate(rows) if row.split()[:1] == ["GPU"] and len(row.split()) > 1), None)
    if at is None:
        raise cells.refused(rows, "table")
    head = rows[at].split()
    gpus = {}
    for row in rows[at + 1 :]:
        told = CELL.findall(row)
        number = cells.index(told[0]) if told else None
        if number is None:
            continue
        if len(told) != len(head) or number in gpus:
            cut = True
        else:
            gpus[number] = tuple((name, _number(cell)) for name, cell in zip(head[1:], told[1:], strict=True))
    return Monitor(gpus, cut)


def _number(cell: str) -> float | None:
    found = re.fullmatch(r"([0-9.]+)(?:\s\S+)?", cell)
    return cells.real(found.group(1)) if found else None


@dataclass(frozen=True)
class Gpu:
    """A GPU of the table."""

    index: int
    pci: str
    name: str
    temp_c: float | None
    power_w: float | None
    power_cap_w: float | None
    mem_used_mb: int | None
    mem_total_mb: int | None
    partition: str | None
    mem_util_pct: int | None
    gfx_util_pct: int | None


@dataclass(frozen=True)
class Table:
    """The GPUs with both their lines; `cut` where one has only the first, or the last border is missing."""

    version: str | None
    driver: str | None
    rocm: str | None
    gpus: tuple[Gpu, ...]
    cut: bool


def parse_table(text: str) -> Table:
    """amd-smi without a command; processes are left out."""
    rows, cut = cells.lines(text)
    heads, below = cells.below(rows, VERSIONS, "table")
    gpus: list[Gpu] = []
    open_: tuple[str, ...] | None = None
    ended = False
    for row in below:
        plain = row.strip()
        first, second = FIRST.fullmatch(plain), SECOND.fullmatch(plain)
        ended = ended or plain.startswith("+--")
        if first:
            cut, open_ = cut or open_ is not None, first.groups()
        elif second and open_:
            gpus += [gpu for gpu in [_gpu(open_, second.groups())] if gpu]
            open_ = None
    told = heads.groups() if heads else ("", "", "")
    version, driver, rocm = (cells.word(one) for one in told)
    return Table(version, driver, rocm, tuple(gpus), cut or open_ is not None or not ended)


def _gpu(first: tuple[str, ...], second: tuple[str, ...]) -> Gpu | None:
    place, name, mem, temp, _, power, cap = first
    number, _, _, partition, gfx, _, used, total = second
    address = cells.pci(place)
    if address is None:
        return None
    return Gpu(
        int(number),
        address,
        name,
        cells.celsius(temp),
        cells.real(power),
        cells.real(cap),
        cells.whole(used),
        cells.whole(total),
        cells.word(partition),
        cells.whole(mem, "%"),
        cells.whole(gfx, "%"),
    )


MONITOR = Probe(("amd-smi", "monitor", "--violation"), parse_monitor)
TABLE = Probe(("amd-smi",), parse_table)
