"""Pools of huge pages: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tuner.errors import BadValue
from tuner.host.door import Host
from tuner.knobs.base import Knob, Raw, bounded, number, reading
from tuner.model import Absent, Reading, Seen, Value

POOLS = "/sys/kernel/mm/hugepages"
NODES = "/sys/devices/system/node"
COMPACT = "/proc/sys/vm/compact_memory"
UNITS = {"kB": 1, "MB": 1024, "GB": 1024 * 1024}
TARGET = re.compile(r"(total|node(?:\d+|\*|\[[0-9!-]+\])|\*)/(?:([1-9]\d*)(kB|MB|GB)|\*)")
TRIES = 3
"""Compactions before a shortfall is reported; each is tried only while the one before it brought pages."""


class Hugepages(Knob):
    """The number of huge pages of one size, on one NUMA node or in total.

    Targets: `node0/2MB`, `total/1GB`: sizes are the pools that this kernel has. Setting a node and the total for one
    size contradict each other and are refused. The kernel takes a number, reserves what it finds and reports success:
    tuner compacts memory, tries again and reports the shortfall. A pool is never lowered below the pages in use, nor
    where tuner did not raise it. A total is read with its nodes, so that undo gives each node its own back.
    """

    name = "hugepages"
    persist = "boot unit"
    partial = True
    main = "total"

    def canonical(self, target: str) -> str:
        """node0/2MB: the largest unit that divides the size."""
        match = TARGET.fullmatch(target)
        if match is None:
            raise BadValue(f"{target!r} is no pool of huge pages", "nodeN/SIZE or total/SIZE, such as node0/2MB")
        if match.group(2) is None:
            return target
        return f"{match.group(1)}/{size_name(int(match.group(2)) * UNITS[match.group(3)])}"

    def parse(self, target: str, raw: Raw) -> Value:
        """A number of pages, 0 or more."""
        pages = bounded(number(raw), 0, 2**31 - 1)
        return {"total": pages} if target.startswith("total/") else pages

    def clash(self, targets: Sequence[str]) -> str:
        """A node and the total of one size."""
        whole = {t.partition("/")[2] for t in targets if t.startswith("total/")}
        parts = {t.partition("/")[2] for t in targets if not t.startswith("total/")}
        both = sorted(whole & parts)
        return f"{both[0]} pages are set both per node and in total" if both else ""

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Per node where there are nodes; totals only where a pattern names them."""
        sizes = [size_name(size) for size in _sizes(host)]
        nodes = _nodes(host)
        if not nodes or pattern.startswith("total/"):
            return [f"total/{size}" for size in sizes]
        return [f"{node}/{size}" for node in nodes for size in sizes]

    def files(self, host: Host, target: str) -> list[str]:
        """The pool's nr_hugepages."""
        return [f"{_folder(target)}/nr_hugepages"]

    def read(self, host: Host, target: str) -> Reading:
        """The pages in the pool; a total is {total, node0, node1 ...}."""
        found = reading(lambda: _count(host, target))
        if not isinstance(found, Absent):
            return found
        place, _, size = target.partition("/")
        sizes = [size_name(s) for s in _sizes(host)]
        if size not in sizes:
            return Absent(f"this kernel has no pool of {size} pages; it has {', '.join(sizes) or 'none'}")
        return Absent(f"no NUMA {place}")

    def write(self, host: Host, target: str, value: Value) -> None:
        """Raises with compaction and retries, lowers no further than to the pages in use."""
        if isinstance(value, Mapping):
            _write_total(host, target, {name: int(pages or 0) for name, pages in value.items()})
        else:
            _resize(host, _folder(target), int(str(value)))

    def disruption(self, target: str) -> str:
        """Takes memory from running jobs, and compaction stalls them."""
        return "memory"

    def guard(self, host: Host, target: str, value: Value, first: Reading | None) -> str:
        """No lowering of pages that somebody else reserved, or that are in use."""
        now = self.read(host, target)
        if not isinstance(now, Seen) or _pages(value) >= _pages(now.value):
            return ""
        free = reading(lambda: int(host.text(f"{_folder(target)}/free_hugepages")))
        used = _pages(now.value) - _pages(free.value if isinstance(free, Seen) else now.value)
        if used > _pages(value):
            return f"{used} pages are in use"
        if isinstance(first, Seen) and _pages(value) >= _pages(first.value):
            return ""
        return f"would lower a pool that tuner did not raise ({_pages(now.value)} pages)"

    def note(self, before: Value, value: Value, target: str) -> str:
        """What the pages mean for Slurm's memory of the node."""
        match = TARGET.fullmatch(target)
        more = _pages(value) - _pages(before)
        if match is None or match.group(2) is None or more <= 0:
            return ""
        size = int(match.group(2)) * UNITS[match.group(3)]
        return f"{more * size // 1024} MB leave ordinary memory: lower Slurm's RealMemory of this node by as much"

    def shortfall(self, target: str, wanted: Value, after: Value) -> str:
        """How many came; for gigantic pages, where they come from."""
        text = f"{_pages(after)} of {_pages(wanted)}"
        size = _size(target)
        if size < UNITS["GB"]:
            return text
        unit = f"{size // UNITS['GB']}G"
        return f"{text}; a running kernel rarely finds {size_name(size)} pages: boot with hugepagesz={unit} hugepages=N"

    def about(self, target: str) -> str:
        """Where the kernel documents it."""
        return "Documentation/admin-guide/mm/hugetlbpage.rst; read back nr_hugepages, never trust the write."


def size_name(size_kb: int) -> str:
    """2048 -> 2MB."""
    unit = next(u for u in ("GB", "MB", "kB") if size_kb % UNITS[u] == 0)
    return f"{size_kb // UNITS[unit]}{unit}"


def _size(target: str) -> int:
    match = TARGET.fullmatch(target)
    if match is None or match.group(2) is None:
        raise BadValue(f"{target!r} is no pool of huge pages")
    return int(match.group(2)) * UNITS[match.group(3)]


def _folder(target: str) -> str:
    place = target.partition("/")[0]
    pool = f"hugepages-{_size(target)}kB"
    return f"{POOLS}/{pool}" if place == "total" else f"{NODES}/{place}/hugepages/{pool}"


def _sizes(host: Host) -> list[int]:
    """Sizes of the pools in kB, smallest first."""
    try:
        names = host.list(POOLS)
    except FileNotFoundError:
        return []
    return sorted(int(m.group(1)) for m in (re.fullmatch(r"hugepages-(\d+)kB", name) for name in names) if m)


def _nodes(host: Host) -> list[str]:
    """NUMA nodes that have pools, in order."""
    try:
        names = host.list(NODES)
    except FileNotFoundError:
        return []
    nodes = sorted((name for name in names if re.fullmatch(r"node\d+", name)), key=lambda name: int(name[4:]))
    return [node for node in nodes if host.exists(f"{NODES}/{node}/hugepages")]


def _count(host: Host, target: str) -> Value:
    whole = int(host.text(f"{_folder(target)}/nr_hugepages"))
    if not target.startswith("total/"):
        return whole
    size = target.partition("/")[2]
    return {"total": whole, **{n: int(host.text(f"{_folder(f'{n}/{size}')}/nr_hugepages")) for n in _nodes(host)}}


def _write_total(host: Host, target: str, pages: dict[str, int]) -> None:
    """The total as asked; where the nodes given add up to it (an undo), each node its own."""
    nodes = {name: count for name, count in pages.items() if name != "total"}
    if nodes and sum(nodes.values()) == pages["total"]:
        size = target.partition("/")[2]
        for node, count in nodes.items():
            _resize(host, _folder(f"{node}/{size}"), count)
    else:
        _resize(host, _folder(target), pages["total"])


def _resize(host: Host, folder: str, wanted: int) -> None:
    path = f"{folder}/nr_hugepages"
    held = int(host.text(path))
    if wanted < held:
        used = held - int(host.text(f"{folder}/free_hugepages"))
        if max(wanted, used) < held:
            host.write(path, f"{max(wanted, used)}\n")
        return
    for attempt in range(1 + TRIES):
        if held >= wanted:
            return
        if attempt:
            host.write(COMPACT, "1\n")
        before = held
        host.write(path, f"{wanted}\n")
        held = int(host.text(path))
        if attempt and held == before:
            return


def _pages(value: Value) -> int:
    return int(value.get("total") or 0) if isinstance(value, Mapping) else int(str(value or 0))
