"""How GPUs and NICs hang together by nvidia-smi, amd-smi and rocm-smi, joined by PCI address, and where PCI disagrees.

A tool's index is joined to a PCI address by the tool's own list, while both have equally many GPUs; a NIC by the name
of its RDMA device. A tool is asked only where its driver has a GPU; one that is missing or hangs is a line, no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.hardware import Gpu, Nic, Rail, Tie, Topology
from tuner.host.door import Host
from tuner.probes import amd_topo, nvidia_smi, nvidia_topo, rocm_smi, rocm_topo
from tuner.probes.asking import NotMeasured, ask

JOINED = {"SXM": "NVLink", "MI250": "xGMI", "MI300": "xGMI", "MI308": "xGMI", "MI325": "xGMI"}
"""What joins GPUs whose names hold this word, when there is more than one."""


@dataclass(frozen=True)
class Told:
    """A tool's answer by PCI address: `shown` are the GPUs it lists, `numa` the nodes of those that have one."""

    topology: Topology
    shown: frozenset[str] | None = None
    numa: tuple[tuple[str, int], ...] = ()


def compare(
    host: Host, gpus: Sequence[Gpu], nics: Sequence[Nic], rails: Sequence[Rail]
) -> tuple[tuple[Topology, ...], tuple[str, ...]]:
    """What each tool says, and a line for each disagreement; `nics` are those that can be a rail. Raises nothing."""
    found: list[Topology] = []
    wrong: list[str] = []
    for driver, tell in (("nvidia", _nvidia), ("amdgpu", _amd)):
        mine = [gpu for gpu in gpus if gpu.driver == driver]
        if mine:
            told = tell(host, mine, nics)
            found.append(told.topology)
            wrong += [f"{told.topology.tool.split()[0]}: {line}" for line in _disagreements(told, mine, rails)]
    return tuple(found), tuple(wrong)


def _nvidia(host: Host, gpus: Sequence[Gpu], nics: Sequence[Nic]) -> Told:
    tool = str(nvidia_topo.MATRIX)
    index = ask(host, nvidia_smi.INDEX)
    if isinstance(index, NotMeasured):
        return Told(Topology(tool, why=index.why))
    shown = frozenset(index.value.values())
    said = ask(host, nvidia_topo.MATRIX)
    if isinstance(said, NotMeasured):
        return Told(Topology(tool, why=said.why), shown)
    matrix = said.value
    others = _miscounted({"the matrix": len(matrix.gpus), "the tool's own list": len(index.value), "PCI": len(gpus)})
    if others:
        return Told(Topology(tool, why=others), shown)
    places = {f"GPU{number}": place for number, place in index.value.items() if f"GPU{number}" in matrix.gpus}
    devices = {nic.rdma: nic.pci for nic in nics if nic.rdma}
    able = {label: devices[name] for label in matrix.labels if (name := matrix.device(label)) in devices}
    links = _ties((one, other, cell) for (one, other), cell in matrix.links.items() if cell != "X")
    nearest = [tie for gpu, place in places.items() for tie in _nearest(matrix, gpu, place, able)]
    return Told(
        Topology(tool, _placed(links, places, able), tuple(nearest), _why(matrix.cut, len(matrix.gpus), len(places))),
        shown,
        tuple((places[gpu], node) for gpu, node in (matrix.numa or {}).items() if node is not None and gpu in places),
    )


def _amd(host: Host, gpus: Sequence[Gpu], nics: Sequence[Nic]) -> Told:
    """amd-smi where it is on the host, for ROCm builds no rocm-smi since 7.15 (its README); neither tells of NICs.

    rocm-smi too where amd-smi is of before ROCm 6.2, whose answer has no addresses (its CHANGELOG).
    """
    said = ask(host, amd_topo.TOPO)
    if isinstance(said, NotMeasured):
        if said.kind not in ("missing", "unrecorded"):
            return Told(Topology(str(amd_topo.TOPO), why=said.why))
        why = said.why
    elif said.value.pci:
        return _amd_smi(said.value, gpus)
    else:
        why = f"{amd_topo.TOPO}: no PCI address in the output"
    told = _rocm_smi(host, gpus)
    if told.shown is not None:
        return told
    return replace(told, topology=replace(told.topology, why=f"{why}; {told.topology.why}"))


def _amd_smi(matrix: amd_topo.Topo, gpus: Sequence[Gpu]) -> Told:
    """Each entry has its address. It tells nothing of NUMA nodes."""
    own = _whole(matrix.pci, gpus)
    links = _mesh(((one, other, link.kind) for (one, other), link in matrix.links.items()), own)
    why = _why(matrix.cut, len(matrix.gpus), len(own))
    return Told(Topology(str(amd_topo.TOPO), links, (), why), frozenset(own.values()))


def _rocm_smi(host: Host, gpus: Sequence[Gpu]) -> Told:
    tool = str(rocm_topo.TOPO)
    index = ask(host, rocm_smi.BUS)
    if isinstance(index, NotMeasured):
        return Told(Topology(tool, why=index.why))
    own = _whole(index.value, gpus)
    said = ask(host, rocm_topo.TOPO)
    if isinstance(said, NotMeasured):
        return Told(Topology(tool, why=said.why), frozenset(own.values()))
    matrix = said.value
    others = _miscounted({"the matrix": len(matrix.gpus), "the tool's own list": len(own)})
    if others:
        return Told(Topology(tool, why=others), frozenset(own.values()))
    links = _mesh(((one, other, link.kind) for (one, other), link in matrix.links.items()), own)
    return Told(
        Topology(tool, links, (), _why(matrix.cut, len(matrix.gpus), len(set(own) & set(matrix.gpus)))),
        frozenset(own.values()),
        tuple(dict.fromkeys((own[number], node) for number, node in matrix.numa.items() if number in own)),
    )


def _whole(places: Mapping[int, str], gpus: Sequence[Gpu]) -> dict[int, str]:
    """The addresses of whole GPUs: a partition is a function of its GPU's address, or has the same."""
    known = {gpu.pci for gpu in gpus}
    return {number: place if place in known else f"{place[:-1]}0" for number, place in places.items()}


def _mesh(cells: Iterable[tuple[int, int, str | None]], own: Mapping[int, str]) -> tuple[Tie, ...]:
    """The links between GPUs of AMD, each pair once."""
    told = ((f"GPU{one}", f"GPU{other}", kind) for one, other, kind in cells if one != other and kind)
    return _placed(_ties(told), {f"GPU{number}": place for number, place in own.items()}, {})


def _miscounted(counts: Mapping[str, int]) -> str | None:
    """Why a matrix without addresses is joined to none: a GPU that one leaves out moves the numbers of those behind."""
    if len(set(counts.values())) == 1:
        return None
    told = ", ".join(f"{who} {count}" for who, count in counts.items())
    return f"not as many GPUs everywhere ({told}): nothing is compared"


def _nearest(matrix: nvidia_topo.Topo, gpu: str, place: str, able: dict[str, str]) -> list[Tie]:
    """The nearest of `able` NICs; none where a NIC that the legend does not name is as near, for it may be one."""
    unnamed = [label for label in matrix.labels if matrix.device(label) is None]
    labels, cell = matrix.best(gpu, (*able, *unnamed))
    return [Tie(place, able[label], cell or "") for label in labels] if set(labels) <= set(able) else []


def _ties(cells: Iterable[tuple[str, str, str]]) -> list[Tie]:
    """Each pair once."""
    found: dict[frozenset[str], Tie] = {}
    for one, other, cell in cells:
        found.setdefault(frozenset((one, other)), Tie(one, other, cell))
    return list(found.values())


def _placed(ties: list[Tie], places: dict[str, str], others: dict[str, str]) -> tuple[Tie, ...]:
    """The ties of which both ends have an address."""
    ends = {**others, **places}
    made = [Tie(places[t.a], ends[t.b], t.link) for t in ties if t.a in places and t.b in ends]
    return tuple({(t.a, t.b): t for t in made if t.a != t.b}.values())


def _why(cut: bool, columns: int, placed: int) -> str | None:
    """Why the answer is not whole."""
    if placed < columns:
        return f"{columns - placed} of {columns} GPUs have no PCI address in what the tool says"
    return "the matrix or its legend is not whole: what is there is shown" if cut else None


def _disagreements(told: Told, gpus: Sequence[Gpu], rails: Sequence[Rail]) -> list[str]:
    numa, known = dict(told.numa), {gpu.pci for gpu in gpus}
    lines = []
    if told.shown is not None:
        lines += [f"does not show {place}, which PCI has" for place in sorted(known - told.shown)]
        lines += [f"shows {place}, which PCI has not" for place in sorted(told.shown - known)]
    for gpu in gpus:
        node = numa.get(gpu.pci)
        if node is not None and gpu.numa is not None and node != gpu.numa:
            lines.append(f"{gpu.pci} is on NUMA node {node}, by PCI on {gpu.numa}")
    return lines + _other_rails(told.topology, known, rails) + _not_joined(told, gpus)


def _other_rails(topology: Topology, known: set[str], rails: Sequence[Rail]) -> list[str]:
    """Where the rail is not one of the nearest NICs; a NIC across NUMA nodes is near to nobody."""
    lines = []
    for rail in rails:
        near = [tie for tie in topology.nearest if tie.a == rail.gpu and tie.link != "SYS"]
        if rail.gpu in known and near and rail.nic not in {tie.b for tie in near}:
            names = " or ".join(tie.b for tie in near)
            lines.append(
                f"nearest to {rail.gpu} is {names} ({near[0].link}), by PCI {rail.nic or 'none'} ({rail.kind})"
            )
    return lines


def _not_joined(told: Told, gpus: Sequence[Gpu]) -> list[str]:
    """Modules that are made to be joined and are not: no fabric manager, a container, a VM (deepseek-ai/DeepEP#128)."""
    places = {gpu.pci for gpu in gpus}
    pairs = [tie for tie in told.topology.links if tie.b in places]
    kinds = {kind for word, kind in JOINED.items() if all(word in gpu.name for gpu in gpus)}
    if not pairs or not kinds or any(tie.link.startswith(("NV", "XGMI")) for tie in pairs):
        return []
    return [f"shows no {kinds.pop()} between any of {len(places)} x {gpus[0].name}"]
