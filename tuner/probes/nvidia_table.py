"""nvidia-smi without options: the table of up to driver 525 and the wider one since (nvidia-smi(1))."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tuner.probes import cells
from tuner.probes.asking import Probe
from tuner.probes.cells import Flaw

VERSIONS = re.compile(r"\| NVIDIA-SMI \S+\s+Driver Version: (\S+)\s+CUDA Version: (\S+)\s*\|")
FIRST = re.compile(r"\|\s*([0-9]{1,5})\s+(\S.*?)\s+(On|Off|N/A|ERR!)\s*\|\s*([0-9A-Fa-f:.]+)\s.*\|(.*)\|")
SECOND = re.compile(
    r"\|\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*/\s*(\S.*?)\s*\|\s*(\S.*?)\s*/\s*(\S.*?)\s*\|\s*(\S+)\s+(\S.*?)\s*\|"
)


@dataclass(frozen=True)
class Gpu:
    """A GPU; a long name ends in dots, as the table cuts it."""

    index: int
    name: str
    persistence: str | None
    pci: str | None
    fan_pct: int | None = None
    temp_c: int | None = None
    pstate: str | None = None
    power_w: int | None = None
    power_cap_w: int | None = None
    mem_used_mib: int | None = None
    mem_total_mib: int | None = None
    util_pct: int | None = None
    compute_mode: str | None = None
    flaws: tuple[Flaw, ...] = ()


@dataclass(frozen=True)
class Table:
    """The GPUs; `cut` where the second line of one is missing, or the border below."""

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    cut: bool


def parse_table(text: str) -> Table:
    """The table, processes left out."""
    rows, cut = cells.lines(text)
    found, below = cells.below(rows, VERSIONS, "table")
    gpus: list[Gpu] = []
    half, border = False, False
    for row in below:
        plain = row.strip()
        if "Processes:" in plain:
            break
        border = plain.startswith("+--") if plain else border
        first, second = FIRST.fullmatch(plain), SECOND.fullmatch(plain)
        if first and gpus and half:
            cut = True
        if first:
            gpus.append(Gpu(int(first.group(1)), first.group(2), cells.word(first.group(3)), cells.pci(first.group(4))))
            half = True
        elif second and half:
            gpus[-1], half = _second(gpus[-1], second.groups()), False
    driver, cuda = found.groups() if found else ("", "")
    return Table(cells.word(driver), cells.word(cuda), tuple(gpus), cut or half or not border)


def _second(gpu: Gpu, told: tuple[str, ...]) -> Gpu:
    fan, temp, pstate, power, cap, used, total, util, mode = told
    fields = {"fan": fan, "temp": temp, "perf": pstate, "power": power, "cap": cap, "util": util}
    return replace(
        gpu,
        fan_pct=cells.whole(fan, "%"),
        temp_c=cells.whole(temp, "C"),
        pstate=cells.word(pstate),
        power_w=cells.whole(power, "W"),
        power_cap_w=cells.whole(cap, "W"),
        mem_used_mib=cells.whole(used, "MiB"),
        mem_total_mib=cells.whole(total, "MiB"),
        util_pct=cells.whole(util, "%"),
        compute_mode=cells.word(mode),
        flaws=tuple(bad for name, text in fields.items() if (bad := cells.flaw(name, text))),
    )


TABLE = Probe(("nvidia-smi",), parse_table)
