"""What detect finds, as records, and reads that never fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.host import Host, Unrecorded
from tuner.pci import DEVICES, PciDevice, off_the_bus

UNKNOWN = frozenset({65535, 4294967295})
"""Speeds that drivers report for a link that has none (SPEED_UNKNOWN cut to 16 or 32 bits); so is -1."""


@dataclass(frozen=True)
class Function(PciDevice):
    """A PCI function with what lies above it: the root, then the bridges, outermost first."""

    above: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pcie:
    """The link of a function as it was trained: GT/s per lane, and lanes."""

    speed: float | None
    width: int | None


@dataclass(frozen=True)
class Gpu:
    """A GPU; `serial` is what tells it from any other of its kind, `drm` its device nodes, `vf` a virtual function.

    `off_the_bus`: it no longer answers, and all else here is what the kernel and the driver remember of it.
    """

    pci: str
    id: str
    name: str
    vendor: str
    device: str
    numa: int | None
    serial: str | None
    driver: str | None
    vf: bool | None
    partition: str | None
    drm: tuple[str, ...]
    pcie: Pcie
    off_the_bus: bool


@dataclass(frozen=True)
class Link:
    """The port of a NIC: `state` and `speed` (Mb/s) of the netdev; state, rate (Gb/s) and layer of the RDMA port."""

    state: str | None = None
    speed: int | None = None
    mtu: int | None = None
    layer: str | None = None
    port_state: str | None = None
    port_physical: str | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Nic:
    """A network function; `default_route` is None where the routes could not be read."""

    pci: str
    id: str
    name: str
    vendor: str
    device: str
    netdev: str | None
    rdma: str | None
    driver: str | None
    numa: int | None
    vf: bool | None
    default_route: bool | None
    link: Link
    pcie: Pcie


@dataclass(frozen=True)
class Bridge:
    """A bridge above a GPU or a NIC: a port of the root, or one of a switch; `upstream` is what it hangs on."""

    pci: str
    id: str
    name: str
    kind: str
    upstream: str
    numa: int | None
    driver: str | None


@dataclass(frozen=True)
class Node:
    """A NUMA node: its CPUs as the kernel lists them, its memory in kB."""

    node: int
    cpus: str | None
    memory_kb: int | None


@dataclass(frozen=True)
class Rail:
    """The nearest NIC of a GPU; `kind` says by what (switch, root, numa, far), `via` names it."""

    gpu: str
    nic: str | None
    via: str | None
    kind: str


@dataclass(frozen=True)
class Tie:
    """How a tool says that two devices are joined, in its own word: NV18, PIX, SYS, XGMI. `a` is always a GPU."""

    a: str
    b: str
    link: str


@dataclass(frozen=True)
class Topology:
    """What a vendor's tool says of all GPUs of its maker; `why` there is nothing, or not all, of it."""

    tool: str
    links: tuple[Tie, ...] = ()
    nearest: tuple[Tie, ...] = ()
    why: str | None = None


@dataclass(frozen=True)
class Inventory:
    """All of it; `listed` is false where not even the PCI devices could be listed.

    `disagreements` are lines, each saying where a tool says something else than PCI.
    """

    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    displays: tuple[Function, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    nodes: tuple[Node, ...] = ()
    rails: tuple[Rail, ...] = ()
    above: tuple[tuple[str, tuple[str, ...]], ...] = ()
    routes_known: bool = True
    listed: bool = True
    unread: tuple[tuple[str, str], ...] = ()
    topologies: tuple[Topology, ...] = ()
    disagreements: tuple[str, ...] = ()


class Looker:
    """Reads that never fail: what cannot be read is None, and noted."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.unread: dict[str, str] = {}

    def text(self, path: str, *, optional: bool = False) -> str | None:
        """The stripped text; an `optional` file that is not there is not noted."""
        with self._noting(path, optional=optional):
            return self.host.peek(path).strip()
        return None

    def link(self, path: str, *, optional: bool = False) -> str | None:
        """Where a link points."""
        with self._noting(path, optional=optional):
            return self.host.link(path)
        return None

    def names(self, path: str) -> list[str] | None:
        """The names in a folder; none where it is not there, None where it cannot be read."""
        with contextlib.suppress(FileNotFoundError), self._noting(path, optional=None):
            return self.host.list(path)
        return None if path in self.unread else []

    def number(self, path: str) -> int | None:
        """A number of 0 and more that is no sentinel."""
        text = self.text(path) or ""
        number = int(text) if text.isascii() and text.isdigit() else None
        return None if number in UNKNOWN else number

    def off_the_bus(self, address: str) -> bool:
        """Whether a function no longer answers; no where nobody can tell, as on a host recorded without that file."""
        with self._noting(f"{DEVICES}/{address}/config", optional=True):
            return off_the_bus(self.host, address)
        return False

    @contextlib.contextmanager
    def _noting(self, path: str, *, optional: bool | None) -> Iterator[None]:
        try:
            yield
        except Unrecorded as gap:
            self.unread[path] = str(gap)
        except (FileNotFoundError, NotADirectoryError):
            if optional is None:
                raise
            if not optional:
                self.unread[path] = "not there"
        except OSError as error:
            self.unread[path] = error.strerror or str(error)
