"""What hardware a profile is for, and whether a host has it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.errors import Exit, Problem, TunerError
from tuner.host import Host
from tuner.pci import PciDevice, devices
from tuner.profile.lines import Loader, mapping
from tuner.profile.nodes import Node

PCI_ID = re.compile(r"(?:0x)?([0-9a-fA-F]{4}):(?:0x)?([0-9a-fA-F]{4})")


@dataclass(frozen=True)
class Match:
    """GPUs by PCI id, exact count and bound driver; NICs by driver and least number. Nothing named matches any host."""

    gpu_ids: tuple[str, ...] = ()
    gpu_count: int | None = None
    gpu_driver: str = ""
    nic_drivers: tuple[str, ...] = ()
    nic_least: int = 0


def parse_match(loader: Loader, node: Node, origin: str) -> Match:
    """The `match` of a profile: {gpus: {ids, count, driver}, nics: {drivers, at_least}}."""
    top = mapping(loader, node, origin, ("gpus", "nics"), "match")
    gpus = mapping(loader, top["gpus"], origin, ("ids", "count", "driver"), "gpus") if "gpus" in top else {}
    nics = mapping(loader, top["nics"], origin, ("drivers", "at_least"), "nics") if "nics" in top else {}
    ids = []
    for word in _words(loader, gpus.get("ids"), origin, "ids"):
        found = PCI_ID.fullmatch(word.text or "")
        if found:
            ids.append(f"{found.group(1)}:{found.group(2)}".lower())
        else:
            loader.wrong(
                f"{origin}:{word.line}", f"{word.text!r} is no PCI id", 'VENDOR:DEVICE in hex, such as "1002:74a1"'
            )
    if "gpus" in top and not ids:
        loader.wrong(f"{origin}:{top['gpus'].line}", "gpus without ids", 'ids: ["VENDOR:DEVICE"]')
    return Match(
        tuple(ids),
        _number(loader, gpus.get("count"), origin),
        " ".join(word.text or "" for word in _words(loader, gpus.get("driver"), origin, "driver", many=False)),
        tuple(word.text or "" for word in _words(loader, nics.get("drivers"), origin, "drivers")),
        _number(loader, nics.get("at_least"), origin) or 0,
    )


def _words(loader: Loader, node: Node | None, origin: str, name: str, *, many: bool = True) -> list[Node]:
    if node is None:
        return []
    items = node.items if node.kind == "list" and many else [node]
    for item in items:
        if item.kind != "scalar" or not item.text:
            loader.wrong(f"{origin}:{item.line}", f"{name}: {item.what()} where a word is expected", "a word")
    return [item for item in items if item.kind == "scalar" and item.text]


def _number(loader: Loader, node: Node | None, origin: str) -> int | None:
    if node is None:
        return None
    if node.kind != "scalar" or not re.fullmatch(r"[0-9]{1,4}", node.text or ""):
        loader.wrong(f"{origin}:{node.line}", f"{node.text!r} is not a number of devices", "digits, such as 8")
        return None
    return int(node.text or "0")


def misfits(host: Host, match: Match) -> list[tuple[str, str]]:
    """(expected, found) for each part of the match that the host does not meet; an image meets every match."""
    if host.kind == "image" or match == Match():
        return []
    found = devices(host)
    wrong = []
    if match.gpu_ids:
        gpus = [d for d in found if d.id in match.gpu_ids]
        bound = [d for d in gpus if not match.gpu_driver or d.driver == match.gpu_driver]
        if len(bound) != match.gpu_count if match.gpu_count is not None else not bound:
            count = "" if match.gpu_count is None else f"{match.gpu_count} "
            driver = f" with driver {match.gpu_driver}" if match.gpu_driver else ""
            wrong.append((f"{count}GPU {' or '.join(match.gpu_ids)}{driver}", _seen(gpus, bound, found)))
    nics = [d for d in found if d.is_nic and (not match.nic_drivers or d.driver in match.nic_drivers)]
    if len(nics) < match.nic_least:
        names = f" of driver {' or '.join(match.nic_drivers)}" if match.nic_drivers else ""
        wrong.append((f"at least {match.nic_least} NICs{names}", str(len(nics))))
    return wrong


def _seen(gpus: list[PciDevice], bound: list[PciDevice], every: list[PciDevice]) -> str:
    if len(bound) < len(gpus):
        loose = ", ".join(f"{d.address} {d.driver or 'no driver'}" for d in gpus if d not in bound)
        return f"{len(bound)}, and {loose}"
    others = sorted({d.id for d in every if d.pci_class >> 16 in (0x03, 0x12)} - {d.id for d in gpus})
    return f"{len(gpus)}" + (f" (display or accelerator devices: {', '.join(others)})" if others else "")


def require(host: Host, match: Match, name: str) -> None:
    """Raises TunerError with exit 31 where the profile is not for this host, naming what was expected and found."""
    wrong = misfits(host, match)
    if wrong:
        hint = "tuner profiles list shows what each profile is for"
        problems = [
            Problem("", f"profile {name} is not for this host: expected {e}, found {f}", hint) for e, f in wrong
        ]
        raise TunerError(problems, Exit.WRONG_HOST)
