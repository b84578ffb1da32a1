"""nvidia-smi: --query-gpu (CSV), dmon, nvlink -s, and what it says when it was told to set something.

Columns go by their names, never by their place: names and meanings in `nvidia-smi --help-query-gpu`. Since driver
535.54.03 clocks_throttle_reasons.* are clocks_event_reasons.*; the mask's bits are nvmlClocksEventReason* of nvml.h.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.asking import Probe
from tuner.probes.cells import Flaw, ParseError

REASONS = {
    0x1: "Idle",
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x8: "HW Slowdown",
    0x10: "Sync Boost",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
    0x100: "Display Clock Setting",
}
"""Bits of what holds the clocks down, named as `nvidia-smi -q` does."""

QUERY = (
    "index", "pci.bus_id", "uuid", "name", "pstate", "clocks.current.sm", "clocks.current.memory",
    "clocks.applications.graphics", "clocks.max.sm", "clocks_event_reasons.active", "power.draw", "temperature.gpu",
    "fan.speed",
)  # fmt: skip
ALIASES = {"clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory"}
ALIASES |= {"gpu_uuid": "uuid", "gpu_name": "name", "gpu_bus_id": "pci.bus_id", "clocks.applications.gr": QUERY[7]}


def names(mask: int | None) -> tuple[str, ...] | None:
    """The reasons in a mask, bit by bit; a bit that is not known is its number."""
    if mask is None:
        return None
    bits = [1 << at for at in range(64) if mask >> at & 1]
    return tuple(REASONS.get(bit, hex(bit)) for bit in bits)


@dataclass(frozen=True)
class Row:
    """A GPU of --query-gpu; what was not asked for or has no value is None, what has an error's text is in `flaws`."""

    index: int | None = None
    pci: str | None = None
    uuid: str | None = None
    name: str | None = None
    pstate: str | None = None
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    app_graphics_mhz: int | None = None
    max_sm_mhz: int | None = None
    reasons_mask: int | None = None
    power_w: float | None = None
    temp_c: int | None = None
    fan_pct: int | None = None
    flaws: tuple[Flaw, ...] = ()

    @property
    def reasons_active(self) -> tuple[str, ...] | None:
        """What holds the clocks down; None where it is not known."""
        return names(self.reasons_mask)


@dataclass(frozen=True)
class Query:
    """All rows; `cut` where one was not whole (it is left out), `remarks` lines that are no rows."""

    gpus: tuple[Row, ...]
    cut: bool
    remarks: tuple[str, ...] = ()


def parse_query(text: str, columns: tuple[str, ...] = ()) -> Query:
    """--query-gpu with --format=csv; `columns` for an output without a header. ParseError where no row is there."""
    rows, cut = cells.lines(text)
    found = [_cells(row) for row in rows if row.strip()]
    head = list(columns)
    if not head:
        at = next((at for at, row in enumerate(found) if len(row) > 1 or _column(row[0]) in QUERY), None)
        head, found = (found[at], found[:at] + found[at + 1 :]) if at is not None else ([], found)
    keys = [_column(cell) for cell in head]
    if not columns and not set(keys) & set(QUERY):
        raise cells.refused(rows, "GPU")
    whole = [row for row in found if len(row) == len(keys) and (len(keys) > 1 or not cells.USAGE.search(row[0]))]
    other = [", ".join(row) for row in found if len(row) == 1 != len(keys)]
    gpus = tuple(_row(dict(zip(keys, row, strict=True))) for row in whole)
    if not gpus and (found or not cut):
        raise cells.refused(rows if columns else [*other, ""], "GPU")
    return Query(gpus, cut or len(whole) + len(other) < len(found), tuple(other))


def _cells(row: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([row], skipinitialspace=True), [""])]
    except csv.Error:
        return [row.strip()]


def _column(cell: str) -> str:
    """clocks.current.sm of `clocks.current.sm [MHz]`; old names as the new ones."""
    name = re.sub(r"\s*\[[^\]]*\]$", "", cell.strip().lower())
    name = name.replace("clocks_throttle_reasons", "clocks_event_reasons")
    return ALIASES.get(name, name)


def _row(cell: dict[str, str]) -> Row:
    def at(name: str) -> str:
        return cell.get(name, "")

    flaws = tuple(bad for name, text in cell.items() if (bad := cells.flaw(name, text)))
    return Row(
        cells.index(at("index")),
        cells.pci(at("pci.bus_id")),
        cells.word(at("uuid")),
        cells.word(at("name")),
        cells.word(at("pstate")),
        cells.whole(at("clocks.current.sm"), "MHz"),
        cells.whole(at("clocks.current.memory"), "MHz"),
        cells.whole(at("clocks.applications.graphics"), "MHz"),
        cells.whole(at("clocks.max.sm"), "MHz"),
        cells.mask(at("clocks_event_reasons.active")),
        cells.real(at("power.draw"), "W"),
        cells.whole(at("temperature.gpu"), "C"),
        cells.whole(at("fan.speed"), "%"),
        flaws,
    )


@dataclass(frozen=True)
class Sample:
    """A line of dmon: what GPU `gpu` did in that interval."""

    gpu: int
    power_w: int | None
    gtemp_c: int | None
    mtemp_c: int | None
    sm_pct: int | None
    mem_pct: int | None
    mclk_mhz: int | None
    pclk_mhz: int | None


@dataclass(frozen=True)
class Dmon:
    """All samples in their order; `cut` where a line was not whole (it is left out)."""

    samples: tuple[Sample, ...]
    cut: bool

    def of(self, gpu: int) -> tuple[Sample, ...]:
        """Those of one GPU."""
        return tuple(sample for sample in self.samples if sample.gpu == gpu)


def parse_dmon(text: str) -> Dmon:
    """dmon: the two header lines start with #, and may come again; columns depend on -s."""
    rows, cut = cells.lines(text)
    keys: list[str] = []
    units: list[str] = []
    samples = []
    for row in rows:
        parts = row.replace("#", " ").split()
        if row.lstrip().startswith("#"):
            keys, units = (parts, []) if "gpu" in parts else (keys, parts)
        elif keys and parts:
            if len(parts) == len(keys) and (not units or len(units) == len(keys)):
                samples += list(_sample(keys, units, parts))
            else:
                cut = True
    if not keys:
        raise cells.refused(rows, "samples")
    return Dmon(tuple(samples), cut)


def _sample(keys: list[str], units: list[str], parts: list[str]) -> Iterator[Sample]:
    pairs = zip(keys, units or [""] * len(keys), parts, strict=True)
    told = {key: (cell, unit) for key, unit, cell in pairs}

    def number(key: str, unit: str) -> int | None:
        cell, said = told.get(key, ("", ""))
        return cells.whole(cell) if said in ("", unit) else None

    gpu = cells.index(told["gpu"][0])
    if gpu is not None:
        yield Sample(
            gpu,
            *(number(key, unit) for key, unit in (("pwr", "W"), ("gtemp", "C"), ("mtemp", "C"))),
            *(number(key, "%") for key in ("sm", "mem")),
            *(number(key, "MHz") for key in ("mclk", "pclk")),
        )


@dataclass(frozen=True)
class GpuLinks:
    """NVLink of a GPU: (number, GB/s in one direction) of each link, None for one that is not active."""

    gpu: int
    name: str
    uuid: str | None
    links: tuple[tuple[int, float | None], ...]

    @property
    def active(self) -> int:
        """How many are up."""
        return sum(rate is not None for _, rate in self.links)


@dataclass(frozen=True)
class Links:
    """All GPUs; `remarks` are lines that are neither a GPU nor a link."""

    gpus: tuple[GpuLinks, ...]
    cut: bool
    remarks: tuple[str, ...] = ()


GPU = re.compile(r"GPU ([0-9]{1,5}): (.*?)(?: \(UUID: (\S+)\))?\s*")
LINK = re.compile(r"\s*Link ([0-9]{1,3}): (.*?)\s*")


def parse_nvlink(text: str) -> Links:
    """Of `nvlink -s`."""
    rows, cut = cells.lines(text)
    gpus: list[GpuLinks] = []
    other: list[str] = []
    for row in rows:
        gpu, link = GPU.fullmatch(row), LINK.fullmatch(row)
        if gpu:
            gpus.append(GpuLinks(int(gpu.group(1)), gpu.group(2), gpu.group(3), ()))
        elif link and gpus:
            last = gpus[-1]
            rate = (int(link.group(1)), cells.real(link.group(2), "GB/s"))
            gpus[-1] = GpuLinks(last.gpu, last.name, last.uuid, (*last.links, rate))
        elif row.strip():
            other.append(row.strip())
    if not gpus:
        raise cells.refused(rows, "GPU")
    return Links(tuple(gpus), cut, tuple(other))


@dataclass(frozen=True)
class Action:
    """What nvidia-smi said after it was told to set something.

    `done` is False where it says that it did not, else None: `All done.` and exit 0 prove nothing, so read it back
    (sasha0552/nvidia-pstated#6).
    """

    done: bool | None
    reason: str
    pci: tuple[str, ...]
    lines: tuple[str, ...]


REFUSALS = (
    ("not supported", "not supported"),
    ("insufficient permission", "no permission"),
    ("unable to", "unable"),
    ("failed", "failed"),
    ("not found", "not found"),
    ("unknown error", "unknown error"),
    ("error", "error"),
)


def parse_action(text: str) -> Action:
    """-ac, -rac, -lgc, -pl and so on."""
    rows, _ = cells.lines(text if text.endswith("\n") else f"{text}\n")
    said = [row.strip() for row in rows if row.strip()]
    if not said:
        raise ParseError("empty", "no output")
    plain = [(line, next((why for part, why in REFUSALS if part in line.lower()), "")) for line in said]
    reason = next((why for _, why in plain if why), "")
    found = re.findall(
        r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", "\n".join(line for line, why in plain if why)
    )
    places = tuple(dict.fromkeys(place for one in found if (place := cells.pci(one))))
    return Action(False if reason else None, reason, places, tuple(said))


ADDRESSES = ("index", "pci.bus_id")


def parse_addresses(text: str) -> dict[int, str]:
    """nvidia-smi's index -> PCI address; an index that comes twice is left out."""
    rows = parse_query(text, ADDRESSES).gpus
    seen = [row.index for row in rows]
    return {row.index: row.pci for row in rows if row.index is not None and row.pci and seen.count(row.index) == 1}


INDEX = Probe(("nvidia-smi", f"--query-gpu={','.join(ADDRESSES)}", "--format=csv,noheader"), parse_addresses)
STATE = Probe(("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv"), parse_query)
DMON = Probe(("nvidia-smi", "dmon", "-c", "5"), parse_dmon, 15.0)
NVLINK = Probe(("nvidia-smi", "nvlink", "-s"), parse_nvlink)
