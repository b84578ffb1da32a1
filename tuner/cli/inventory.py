"""detect, capture: what a host has, and all that tuner reads of it as one file."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tuner import capture as capturing
from tuner import detect as detecting
from tuner import documents, render
from tuner.cli.common import Answer, open_root
from tuner.errors import Exit, TunerError
from tuner.hardware import Gpu, Inventory, Nic, Topology
from tuner.host import Host, Unrecorded
from tuner.pci_names import name_of
from tuner.profile import load_profile
from tuner.profile.files import known
from tuner.profile.match import Match, misfits

SHOWN = 10
"""How many values that could not be read are named; --json has all."""

BOXES = ("├─ ", "└─ ", "│  ", "   ")
PLAIN = ("|- ", "`- ", "|  ", "   ")

Nodes = dict[str, Any]


def detect(args: argparse.Namespace) -> Answer:
    """GPUs, NICs, rails, NUMA nodes, the PCI tree above them, and which profile is for this host."""
    host = open_root(args.root)
    found = detecting.inventory(host)
    profiles = [_fit(host, name, found.gpus) for name in known(host)]
    code = Exit.OK if found.listed or host.kind == "image" else Exit.UNKNOWN
    return code, _document(host, found, profiles), _lines(host, found, profiles)


def _fit(host: Host, name: str, gpus: Sequence[Gpu]) -> dict[str, Any]:
    """`fits` is null where it could not be judged. A GPU off the bus still is of a fitting profile, which is said."""
    try:
        match = load_profile(host, name).match
        if host.kind == "image" and match != Match():
            return {"name": name, "fits": None, "why": ["an image has no hardware"]}
        wrong = misfits(host, match)
    except TunerError as error:
        wrong_lines = f"{len(error.problems)} problem{'s' * (len(error.problems) != 1)}: tuner profiles lint {name}"
        return {"name": name, "fits": None, "why": [wrong_lines]}
    except (OSError, Unrecorded) as error:
        return {"name": name, "fits": None, "why": [f"cannot tell: {error}"]}
    why = [f"expected {expected}, found {seen}" for expected, seen in wrong]
    why += [f"{gpu.pci} is off the bus" for gpu in gpus if gpu.off_the_bus and gpu.id in match.gpu_ids]
    return {"name": name, "fits": not wrong, "why": why}


def _document(host: Host, found: Inventory, profiles: list[dict[str, Any]]) -> dict[str, Any]:
    """tuner.detect/1."""
    displays = [
        {"pci": d.address, "id": d.id, "name": name_of(d.id), "driver": d.driver or None} for d in found.displays
    ]
    return {
        "schema": "tuner.detect/1",
        "host": documents.host(host),
        "gpus": [{**asdict(gpu), "drm": list(gpu.drm)} for gpu in found.gpus],
        "nics": [asdict(nic) for nic in found.nics],
        "rails": [asdict(rail) for rail in found.rails],
        "switches": [asdict(bridge) for bridge in found.bridges],
        "numa": [asdict(node) for node in found.nodes],
        "displays": displays,
        "default_route_known": found.routes_known,
        "topology": [_topology(one) for one in found.topologies],
        "disagreements": list(found.disagreements),
        "profiles": profiles,
        "unread": [{"path": path, "why": why} for path, why in found.unread],
    }


def _topology(told: Topology) -> dict[str, Any]:
    nearest = [{"gpu": tie.a, "nic": tie.b, "link": tie.link} for tie in told.nearest]
    return {"tool": told.tool, "links": [asdict(tie) for tie in told.links], "nearest": nearest, "why": told.why}


def _lines(host: Host, found: Inventory, profiles: list[dict[str, Any]]) -> list[str]:
    lines = [render.head(host), _summary(found)]
    for title, rows in (
        ("GPUs", _gpu_rows(found)),
        ("NICs", _nic_rows(found)),
        ("Rails", _rail_rows(found)),
        ("NUMA", _node_rows(found)),
        ("Topology", _topology_rows(found)),
    ):
        if len(rows) > 1:
            lines += ["", title, *render.table(rows, group=False)]
    if found.rails and not found.routes_known:
        lines += ["", "Which NIC has the default route is unknown: none was left out as a rail"]
    if found.disagreements:
        lines += ["", *(f"Not as PCI has it: {line}" for line in found.disagreements)]
    drawn = list(_tree(found))
    lines += ["", "PCI", *drawn] if drawn else []
    lines += ["", "Profiles", *render.table(_profile_rows(profiles), group=False)]
    lines += [""] * bool(found.unread)
    lines += [f"Not read: {path}: {why}" for path, why in found.unread[:SHOWN]]
    more = len(found.unread) - SHOWN
    return [*lines, f"Not read: {more} more, see --json"] if more > 0 else lines


def _summary(found: Inventory) -> str:
    """`8 x H800 SXM5, 1 off the bus, 8 x ConnectX-7`."""
    names = [*(gpu.name for gpu in found.gpus), *(nic.name for nic in found.nics)]
    lost = Counter(gpu.name for gpu in found.gpus if gpu.off_the_bus)
    counted = [
        f"{names.count(name)} x {name}" + (f", {lost[name]} off the bus" if lost[name] else "")
        for name in dict.fromkeys(names)
    ]
    return ", ".join(counted) if found.gpus else ", ".join(["no GPU", *counted])


def _gpu_rows(found: Inventory) -> list[render.Row]:
    rows: list[render.Row] = [("", "PCI address", "name", "NUMA", "driver", "unique id", "PCIe", "device nodes", "")]
    for number, gpu in enumerate(found.gpus):
        notes = ["off the bus"] if gpu.off_the_bus else []
        notes += ["virtual function"] if gpu.vf else []
        notes += [gpu.partition] if gpu.partition else []
        pcie = f"{_text(gpu.pcie.speed)} GT/s x{_text(gpu.pcie.width)}"
        cells = (gpu.pci, gpu.name, _text(gpu.numa), _text(gpu.driver), _text(gpu.serial), pcie)
        rows.append((str(number), *cells, " ".join(gpu.drm) or "-", ", ".join(notes)))
    return rows


def _nic_rows(found: Inventory) -> list[render.Row]:
    rows: list[render.Row] = [("PCI address", "name", "netdev", "RDMA", "NUMA", "driver", "link", "")]
    for nic in found.nics:
        notes = ["virtual function"] if nic.vf else []
        notes += ["default route"] if nic.default_route else []
        cells = (nic.pci, nic.name, _text(nic.netdev), _text(nic.rdma), _text(nic.numa), _text(nic.driver))
        rows.append((*cells, _link(nic), ", ".join(notes)))
    return rows


def _link(nic: Nic) -> str:
    """`up 400 Gb/s`; the state of the RDMA port where it is not active."""
    link = nic.link
    rate = link.speed / 1000 if link.speed else link.rate
    parts = [_text(link.state), f"{rate:g} Gb/s" if rate else ""]
    if link.port_state not in (None, "ACTIVE"):
        parts.append(f"RDMA {link.port_state} ({_text(link.port_physical)})")
    return " ".join(filter(None, parts))


def _rail_rows(found: Inventory) -> list[render.Row]:
    nics = {nic.pci: nic for nic in found.nics}
    rows: list[render.Row] = [("GPU", "NIC", "netdev", "RDMA", "nearest by")]
    for rail in found.rails:
        nic = nics.get(rail.nic or "")
        kind = "nothing" if rail.kind == "far" else rail.kind
        ends = (_text(rail.nic), _text(nic.netdev if nic else None), _text(nic.rdma if nic else None))
        rows.append((rail.gpu, *ends, f"{kind} {rail.via or ''}".strip()))
    return rows


def _node_rows(found: Inventory) -> list[render.Row]:
    rows: list[render.Row] = [("node", "CPUs", "memory", "GPUs", "NICs")]
    for node in found.nodes:
        memory = "-" if node.memory_kb is None else f"{node.memory_kb / 1024 / 1024:.1f} GiB"
        counts = [str(sum(one.numa == node.node for one in kind)) for kind in (found.gpus, found.nics)]
        rows.append((str(node.node), _text(node.cpus), memory, *counts))
    return rows


def _topology_rows(found: Inventory) -> list[render.Row]:
    """`28 x NV18` between GPUs, `8 x PIX` to the nearest NIC, or why there is nothing."""
    rows: list[render.Row] = [("tool", "between GPUs", "to the nearest NIC", "")]
    gpus = {gpu.pci for gpu in found.gpus}
    for told in found.topologies:
        between = [tie.link for tie in told.links if tie.b in gpus]
        near = list({tie.a: tie.link for tie in told.nearest}.values())
        rows.append((told.tool, _counted(between), _counted(near), told.why or ""))
    return rows


def _counted(words: list[str]) -> str:
    return ", ".join(f"{words.count(word)} x {word}" for word in dict.fromkeys(words)) or "-"


def _profile_rows(profiles: list[dict[str, Any]]) -> list[render.Row]:
    words = {True: "fits", False: "does not fit", None: "not judged"}
    return [(one["name"], words[one["fits"]], "; ".join(one["why"])) for one in profiles] or [("none", "", "")]


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value)


def _tree(found: Inventory) -> Iterator[str]:
    """The PCI roots with the bridges, GPUs and NICs below them; bridges one below the other share a line."""
    names = {
        gpu.pci: f"GPU {number} {gpu.name}{' off the bus' if gpu.off_the_bus else ''}"
        for number, gpu in enumerate(found.gpus)
    }
    names |= {nic.pci: _nic_name(nic) for nic in found.nics}
    names |= {display.address: f"{name_of(display.id)} (no GPU)" for display in found.displays}
    numa = {**{gpu.pci: gpu.numa for gpu in found.gpus}, **{nic.pci: nic.numa for nic in found.nics}}
    top: Nodes = {}
    for address, above in found.above:
        if address in names:
            here = top
            for part in (*(above or ("PCI root unknown",)), address):
                here = here.setdefault(part, {})
    labels = {address: f"{address} {name}{_numa(numa.get(address))}" for address, name in names.items()}
    for root, below in sorted(top.items()):
        yield f"  {root}"
        yield from _branches(below, labels, _boxes(), "  ")


def _nic_name(nic: Nic) -> str:
    return " ".join(["NIC", nic.name, *filter(None, (nic.netdev, nic.rdma)), _link(nic)])


def _numa(node: int | None) -> str:
    return "" if node is None else f" (NUMA {node})"


def _boxes() -> tuple[str, ...]:
    with contextlib.suppress(UnicodeEncodeError, LookupError):
        "".join(BOXES).encode(sys.stdout.encoding or "ascii")
        return BOXES
    return PLAIN


def _branches(nodes: Nodes, labels: dict[str, str], boxes: tuple[str, ...], indent: str) -> Iterator[str]:
    fork, last, down, blank = boxes
    for place, (address, below) in enumerate(sorted(nodes.items()), 1):
        chain, rest = [address], below
        while len(rest) == 1:
            ((single, rest),) = rest.items()
            chain.append(single)
        end = place == len(nodes)
        yield f"{indent}{last if end else fork}{' > '.join(labels.get(part, part) for part in chain)}"
        yield from _branches(rest, labels, boxes, indent + (blank if end else down))


def capture(args: argparse.Namespace) -> Answer:
    """Reads the host and writes the manifest."""
    host = open_root(args.root)
    capturing.check(args.file)
    made = capturing.capture(host, scrub=not args.no_scrub)
    capturing.save(args.file, made.text)
    document = {
        "schema": "tuner.capture/1",
        "host": documents.host(host),
        "file": args.file,
        "entries": made.entries,
        "bytes": len(made.text.encode("utf-8", "surrogateescape")),
        "scrubbed": not args.no_scrub,
        "replaced": made.replaced,
        "unread": [{"what": what, "why": why} for what, why in made.unread],
    }
    replaced = ", ".join(f"{kind} {count}" for kind, count in made.replaced.items())
    lines = [render.head(host), f"{args.file} is written, for its owner only: {made.entries} entries"]
    lines.append(
        f"Replaced: {replaced or 'nothing'}. Look through it before you give it away"
        if not args.no_scrub
        else "Not scrubbed: it holds serials, addresses and names of this host"
    )
    lines += [f"Not read: {what}: {why}" for what, why in made.unread[:SHOWN]]
    lines += [f"Not read: {len(made.unread) - SHOWN} more, see --json"] if len(made.unread) > SHOWN else []
    name = args.file if "/" in args.file or args.file.endswith(".host") else f"./{args.file}"
    return Exit.OK, document, [*lines, f"A copy of the host: tuner host copy {name} DIR"]
