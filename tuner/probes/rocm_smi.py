"""rocm-smi: the concise table of all releases, --csv, --json, and `GPU[n] : name: value` lines.

Its exit code says nothing: 0 for sets that failed, 2 where one of many queries is not supported (ROCm/rocm_smi_lib#74).
Its index is neither the number of a DRM card nor that of a KFD node; only --showbus joins it to a PCI address.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.probes import cells
from tuner.probes.asking import Probe
from tuner.probes.tree import Node, documents, nodes

PHRASES = re.compile(r"SCLK OD|MCLK OD|Temp(?: \(\w+\))?|\S+")
VALUE = re.compile(r"GPU\[([0-9]{1,4})\]\s*:\s*(.*?)\s*")
FAILED = re.compile(r"ERROR:\s*(?:[0-9]+\s+)?GPU\[([0-9]{1,4})\]\s*:\s*(.*?)\s*")
NOT_SUPPORTED = "NOT_SUPPORTED"
REFUSED = re.compile(r"(.+?),\s*not supported on the given system", re.IGNORECASE)
STATUS = re.compile(r"(RSMI_STATUS_\w+)|not supported|not found|unable", re.IGNORECASE)


@dataclass(frozen=True)
class Concise:
    """A row of the table; `temp_kind` and `power_kind` say what was measured where (junction, socket, avg)."""

    index: int
    device_id: str | None
    temp_c: float | None
    temp_kind: str | None
    power_w: float | None
    power_kind: str | None
    mem_partition: str | None
    compute_partition: str | None
    sclk_mhz: int | None
    mclk_mhz: int | None
    fan_pct: int | None
    perf: str | None
    power_cap_w: float | None
    vram_pct: int | None
    gpu_pct: int | None


@dataclass(frozen=True)
class Table:
    """`others` are indexes of displays that are no GPU of AMD (ROCm/ROC-smi#40); `cut` where a row is not whole."""

    gpus: tuple[Concise, ...]
    others: tuple[int, ...]
    warnings: tuple[str, ...]
    cut: bool


def parse_concise(text: str) -> Table:
    """rocm-smi without options. An empty table is no error here: that GPUs are missing is for the caller to say."""
    rows, cut = cells.lines(text)
    at = next((at for at, row in enumerate(rows) if {"Temp", "MCLK"} <= set(map(_plain, _columns(row)))), None)
    if at is None:
        raise cells.refused(rows, "table")
    head, below = _columns(rows[at]), rows[at + 1 :]
    kinds = re.findall(r"\((\w+)\)", below[0]) if below and "(DID" in below[0] else []
    gpus: list[Concise] = []
    for row in below:
        told = re.sub(r",\s+", ",", row).split()
        number = cells.index(told[0]) if told else None
        if number is not None and len(told) == len(head):
            gpus.append(_concise(number, dict(zip(map(_plain, head), told, strict=True)), _kinds(head, kinds)))
        cut = cut or (number is not None and len(told) != len(head))
    ended = any("End of ROCm SMI Log" in row for row in rows) or sum(row.startswith("====") for row in below) > 1
    others = tuple(gpu.index for gpu in gpus if not _is_gpu(gpu))
    return Table(tuple(filter(_is_gpu, gpus)), others, cells.notes(rows), cut or not ended)


def _columns(row: str) -> list[str]:
    return PHRASES.findall(row)


def _plain(column: str) -> str:
    """Temp of `Temp (DieEdge)`."""
    return column.partition(" (")[0]


def _kinds(head: list[str], below: list[str]) -> tuple[str | None, str | None]:
    """What was measured of temperature and power: in the names of the columns, or in the line below them."""
    temp = next((name[6:-1] for name in head if name.startswith("Temp (")), below[0] if below else "")
    power = "avg" if "AvgPwr" in head else below[1] if len(below) > 1 else ""
    return temp.lower() or None, power.lower() or None


def _concise(number: int, told: dict[str, str], kinds: tuple[str | None, str | None]) -> Concise:
    def at(*names: str) -> str:
        return next((told[name] for name in names if name in told), "")

    ids, parts = at("IDs").split(","), [*at("Partitions").split(","), "", ""]
    return Concise(
        number,
        cells.word(ids[0]),
        cells.celsius(at("Temp")),
        kinds[0],
        cells.real(at("Power", "AvgPwr"), "W"),
        kinds[1],
        cells.word(parts[0]),
        cells.word(parts[1]),
        cells.whole(at("SCLK"), "MHz"),
        cells.whole(at("MCLK"), "MHz"),
        cells.whole(at("Fan"), "%"),
        cells.word(at("Perf")),
        cells.real(at("PwrCap"), "W"),
        cells.whole(at("VRAM%"), "%"),
        cells.whole(at("GPU%"), "%"),
    )


def _is_gpu(gpu: Concise) -> bool:
    """A row without an id of which nothing but the fan has a value is the display of a BMC or of the processor."""
    return any(
        one is not None for one in (gpu.device_id, gpu.temp_c, gpu.power_w, gpu.sclk_mhz, gpu.mclk_mhz, gpu.perf)
    )


@dataclass(frozen=True)
class Card:
    """A card of --csv or --json; `told` is all of it as it was written."""

    card: str
    pci: str | None
    edge_c: float | None
    junction_c: float | None
    power_w: float | None
    use_pct: int | None
    vram_total: int | None
    vram_used: int | None
    series: str | None
    gfx: str | None
    perf: str | None
    told: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cards:
    """All cards; `cut` where the output ends early or a row has not its header's number of cells."""

    cards: tuple[Card, ...]
    warnings: tuple[str, ...]
    cut: bool


def parse_csv(text: str) -> Cards:
    """--csv: the header is the line whose first cell is `device`; the order of columns differs between releases."""
    rows, cut = cells.lines(text)
    at = next((at for at, row in enumerate(rows) if row.split(",")[0].strip().lower() == "device"), None)
    if at is None:
        raise cells.refused(rows, "cards")
    head = _cells(rows[at])
    told = [_cells(row) for row in rows[at + 1 :] if row.strip()]
    whole = [row for row in told if len(row) == len(head) and re.fullmatch(r"card[0-9]+", row[0])]
    cards = tuple(_card(row[0], zip(head[1:], row[1:], strict=True)) for row in whole)
    return Cards(cards, cells.notes(rows), cut or len(whole) < len(told))


def _cells(row: str) -> list[str]:
    try:
        return next(csv.reader([row]), [""])
    except csv.Error:
        return [""]


def parse_json(text: str) -> Cards:
    """--json, after whatever warning; cards of several documents are put together."""
    found, noise, cut = documents(text)
    told: dict[str, list[Node]] = {}
    for document in found:
        for top in nodes(document):
            for node in top.below:
                told.setdefault(node.key, []).extend(node.below)
    if not any(re.fullmatch(r"card[0-9]+", name) for name in told):
        raise cells.refused(noise, "cards")
    cards = tuple(
        _card(name, [(one.key, Node("", "", below).get(one.key.lower()).text) for one in below])
        for name, below in told.items()
        if re.fullmatch(r"card[0-9]+", name)
    )
    return Cards(cards, cells.notes(noise), cut)


def _card(name: str, pairs: Iterable[tuple[str, str]]) -> Card:
    told = [(key.strip().rstrip(":"), cell.strip().strip("()")) for key, cell in pairs]

    def at(*keys: str) -> str:
        found = [cell for key, cell in told if key.lower() in keys]
        return found[0] if len(set(found)) == 1 else ""

    return Card(
        name,
        cells.pci(at("pci bus")),
        cells.celsius(at("temperature (sensor edge) (c)")),
        cells.celsius(at("temperature (sensor junction) (c)")),
        cells.real(at("current socket graphics package power (w)", "average graphics package power (w)"), "W"),
        cells.whole(at("gpu use (%)"), "%"),
        cells.whole(at("vram total memory (b)"), "B"),
        cells.whole(at("vram total used memory (b)"), "B"),
        cells.word(at("card series")),
        cells.word(at("gfx version")),
        cells.word(at("performance level")),
        tuple(told),
    )


@dataclass(frozen=True)
class Failure:
    """A query that one GPU did not answer: what, and the tool's status."""

    gpu: int
    what: str
    status: str


@dataclass(frozen=True)
class Log:
    """`values` are (GPU, name, text); `failures` each once, in their order; lines that are neither are left out."""

    values: tuple[tuple[int, str, str], ...]
    failures: tuple[Failure, ...]
    warnings: tuple[str, ...]
    cut: bool

    @property
    def unsupported(self) -> tuple[tuple[int, str], ...]:
        """(GPU, what) of the queries that this device does not know."""
        return tuple((one.gpu, one.what) for one in self.failures if NOT_SUPPORTED in one.status)

    def named(self, name: str) -> dict[int, str]:
        """GPU -> text of one name; of a name that a GPU has twice with two texts, nothing."""
        found: dict[int, set[str]] = {}
        for gpu, key, text in self.values:
            if key.lower() == name.lower():
                found.setdefault(gpu, set()).add(text)
        return {gpu: next(iter(texts)) for gpu, texts in found.items() if len(texts) == 1}


def parse_log(text: str) -> Log:
    """The sections of rocm-smi -a and of single --show options."""
    rows, cut = cells.lines(text)
    values, failures = [], []
    for row in rows:
        value, failed = VALUE.fullmatch(row), FAILED.fullmatch(row)
        if failed:
            failures.append(_failure(int(failed.group(1)), failed.group(2)))
        elif value:
            name, sign, said = value.group(2).partition(": ")
            refused = None if sign else REFUSED.fullmatch(name)
            if refused:
                failures.append(Failure(int(value.group(1)), refused.group(1), NOT_SUPPORTED))
            else:
                values.append((int(value.group(1)), name.strip(" :"), said.strip()))
    if not values and not failures:
        raise cells.refused(rows, "values")
    return Log(tuple(values), tuple(dict.fromkeys(failures)), cells.notes(rows), cut)


def _failure(gpu: int, text: str) -> Failure:
    """`od volt: RSMI_STATUS_NOT_SUPPORTED: This function ...`."""
    what, _, rest = text.partition(": ")
    found = STATUS.search(rest)
    return Failure(
        gpu, what.strip(), (found.group(1) or found.group()).upper().replace(" ", "_") if found else rest.strip()
    )


def parse_addresses(text: str) -> dict[int, str]:
    """rocm-smi's index -> PCI address: --showbus, as text or with --json."""
    if any(row.lstrip().startswith("{") for row in text.split("\n")):
        cards = parse_json(text).cards
        return {number: card.pci for card in cards if card.pci and (number := cells.index(card.card[4:])) is not None}
    found = {gpu: cells.pci(cell) for gpu, cell in parse_log(text).named("PCI Bus").items()}
    return {gpu: place for gpu, place in found.items() if place}


TABLE = Probe(("rocm-smi",), parse_concise)
CARDS = Probe(("rocm-smi", "--showbus", "--showuse", "--showmeminfo", "vram", "--showpower", "--json"), parse_json)
BUS = Probe(("rocm-smi", "--showbus"), parse_addresses)
