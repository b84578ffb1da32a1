"""The closed set of things that a kernel file can do on a write: one function each, parameters from kernel.yaml.

Each gets what was in the file before the write and the text written. It raises OSError as the kernel does or leaves
its result as the bytes of files.
"""

from __future__ import annotations

import errno
import re

from tuner.host.tree import fault
from tuner.sim import amdgpu, nvidia
from tuner.sim.world import Behaviour, Rule, World, parse_number


def _ranged(rule: Rule, number: int, path: str) -> int:
    if number < rule.get("low", -(2**31)) or number > rule.get("high", 2**63 - 1):
        raise fault(getattr(errno, str(rule.get("errno", "EINVAL"))), path)
    return number


def text(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """Takes anything: stripped, separated as it was, one newline."""
    words = written.split()
    separator = "\t" if "\t" in before.strip() else " "
    world.set(path, separator.join(words) + "\n" if len(words) > 1 or "\t" in written else written.strip() + "\n")


def raw(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """A line kept to the letter, blanks at its ends included (kernel.core_pattern)."""
    world.set(path, written.removesuffix("\n") + "\n")


def integer(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """One number between `low` and `high`, rounded down to a multiple of `step`; decimal when read."""
    number, step = parse_number(written, path), max(rule.get("step", 1), 1)
    world.set(path, f"{_ranged(rule, number // step * step, path)}\n")


def pow2(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """One number, rounded up to a power of two; 0 stays 0 (net.core.rps_sock_flow_entries)."""
    number = _ranged(rule, parse_number(written, path), path)
    world.set(path, f"{1 << (number - 1).bit_length() if number > 0 else number}\n")


def vector(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """`length` numbers set one after the other: fewer leave the rest, a bad one stops after those before it."""
    numbers = [int(word) for word in before.split()]
    words = written.split()
    if not words:
        raise fault(errno.EINVAL, path)
    try:
        for place, word in enumerate(words[: rule["length"]]):
            numbers[place] = _ranged(rule, parse_number(word, path), path)
    finally:
        world.set(path, "\t".join(map(str, numbers)) + "\n")


def word(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """One of a closed set: `words`, or those the file itself offers with the chosen one in brackets."""
    chosen = written.removesuffix("\n")
    offered = list(rule["words"]) if "words" in rule else before.replace("[", "").replace("]", "").split()
    if chosen not in offered:
        raise fault(getattr(errno, str(rule.get("errno", "EINVAL"))), path)
    if "words" in rule:
        world.set(path, chosen + "\n")
    else:
        world.set(path, " ".join(f"[{w}]" if w == chosen else w for w in offered) + "\n")


def scheduler(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """One of the I/O schedulers in the file. A switch sets nr_requests beside it, by the `depth` of the device.

    elevator_disable in block/elevator.c, blk_mq_init_sched in block/blk-mq-sched.c; the list ends in a blank.
    """
    offered, chosen = before.replace("[", "").replace("]", "").split(), written.strip()
    chosen = "mq-deadline" if chosen == "deadline" and chosen not in offered else chosen
    if chosen not in offered:
        raise fault(errno.EINVAL, path)
    if f"[{chosen}]" in before.split():
        return
    world.set(path, " ".join(f"[{w}]" if w == chosen else w for w in offered) + " \n")
    waiting = rule["depth"] if chosen == "none" else 2 * min(rule["depth"], 128)
    world.set(f"{path.rpartition('/')[0]}/nr_requests", f"{waiting}\n")


def alias(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """The same value also shows in the file `path`, or in all that match it."""
    for other in world.find(rule["path"]) if "*" in rule["path"] else [rule["path"]]:
        world.set(other, world.get(path))


def zeroes(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """The twin of a pair reads 0 afterwards; with `changed`, only when this value changed (vm.dirty_*)."""
    if not rule.get("changed") or world.get(path) != before:
        world.set(rule["path"], "0\n")


def raises(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """A side effect: the number in the file `path` becomes at least `to` (khugepaged and vm.min_free_kbytes)."""
    if parse_number(world.get(rule["path"]), rule["path"]) < rule["to"]:
        world.set(rule["path"], f"{rule['to']}\n")


def refuse(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """Every write fails with `errno`."""
    raise fault(getattr(errno, rule["errno"]), path)


def ignore(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """The write succeeds and changes nothing."""


def trigger(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """An action, not a value: staged as `name` for the behaviour that waits for it (vm.compact_memory)."""
    world.stage(rule["name"])


def pool(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """A pool of `size_kB` huge pages over the NUMA nodes: takes what fits and says success.

    `room` is what a node can hold, `fragmented` what it can hold until memory was compacted, `used` the pages
    that are in use on each node and cannot go (Documentation/admin-guide/mm/hugetlbpage.rst).
    """
    size, used = rule["size_kB"], rule.get("used", 0)
    asked = parse_number(written, path)
    if asked < 0:
        raise fault(errno.EINVAL, path)
    compacted = world.commit("compacted")
    room = rule["room"] if compacted else rule.get("fragmented", rule["room"])
    nodes = _nodes(world, size)
    held = {node: int(world.get(f"{folder}/nr_hugepages")) for node, folder in nodes.items()}
    own = re.search(r"/node/(node\d+)/", path)
    if own:
        held[own.group(1)] = _fit(asked, held[own.group(1)], room, used)
    else:
        _spread(held, asked, room, used)
    for node, folder in nodes.items():
        _show(world, folder, held[node], used)
    whole = f"/sys/kernel/mm/hugepages/hugepages-{size}kB"
    _show(world, whole, sum(held.values()), used * len(held))
    if size == rule.get("default_kB", 2048):
        for name in ("nr_hugepages", "nr_hugepages_mempolicy"):
            if world.has(f"/proc/sys/vm/{name}"):
                world.set(f"/proc/sys/vm/{name}", f"{sum(held.values())}\n")


def _nodes(world: World, size: int) -> dict[str, str]:
    base = "/sys/devices/system/node"
    folders = {f"node{n}": f"{base}/node{n}/hugepages/hugepages-{size}kB" for n in range(64)}
    return {node: folder for node, folder in folders.items() if world.has(folder)}


def _fit(asked: int, holds: int, room: int, used: int) -> int:
    return max(min(asked, room), holds) if asked > holds else max(asked, min(used, holds))


def _spread(held: dict[str, int], asked: int, room: int, used: int) -> None:
    """One page a node in turn, up or down, until the sum is as asked or no node can give or take more."""
    up = asked > sum(held.values())
    while sum(held.values()) != asked:
        movable = [node for node, pages in held.items() if (pages < room if up else pages > used)]
        if not movable:
            return
        for node in movable:
            if sum(held.values()) != asked:
                held[node] += 1 if up else -1


def _show(world: World, folder: str, pages: int, used: int) -> None:
    world.set(f"{folder}/nr_hugepages", f"{pages}\n")
    world.set(f"{folder}/free_hugepages", f"{max(pages - used, 0)}\n")
    if world.has(f"{folder}/nr_hugepages_mempolicy"):
        world.set(f"{folder}/nr_hugepages_mempolicy", f"{pages}\n")


def cpulist(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """CPUs up to `high`, all of them online, shown in ranges (kernel/irq/proc.c; bitmap_parselist in lib/bitmap-str.c).

    A number too high is ERANGE; what is no list, and a list without any CPU, is EINVAL.
    """
    bits: set[int] = set()
    for part in written.replace(",", " ").split():
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(found.group(1)), int(found.group(2) or found.group(1))) if found else (1, 0)
        if first > last:
            raise fault(errno.EINVAL, path)
        if last > rule["high"]:
            raise fault(errno.ERANGE, path)
        bits |= set(range(first, last + 1))
    if not bits:
        raise fault(errno.EINVAL, path)
    edges = [n for n in sorted(bits) if n - 1 not in bits], [n for n in sorted(bits) if n + 1 not in bits]
    world.set(path, ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(*edges, strict=True)) + "\n")


BEHAVIOURS: dict[str, Behaviour] = {
    "text": Behaviour(text),
    "raw": Behaviour(raw),
    "int": Behaviour(integer, takes=frozenset({"low", "high", "errno", "step"})),
    "pow2": Behaviour(pow2, takes=frozenset({"low", "high", "errno"})),
    "vector": Behaviour(vector, frozenset({"length"}), frozenset({"low", "high", "errno"})),
    "word": Behaviour(word, takes=frozenset({"words", "errno"})),
    "cpulist": Behaviour(cpulist, frozenset({"high"})),
    "scheduler": Behaviour(scheduler, frozenset({"depth"})),
    "alias": Behaviour(alias, frozenset({"path"})),
    "zeroes": Behaviour(zeroes, frozenset({"path"}), frozenset({"changed"})),
    "raises": Behaviour(raises, frozenset({"path", "to"})),
    "refuse": Behaviour(refuse, frozenset({"errno"})),
    "ignore": Behaviour(ignore),
    "trigger": Behaviour(trigger, frozenset({"name"})),
    "pool": Behaviour(pool, frozenset({"size_kB", "room"}), frozenset({"fragmented", "used", "default_kB"})),
    "starred": Behaviour(amdgpu.starred),
    "nvidia": Behaviour(nvidia.nvidia, takes=frozenset({"deny", "enforced", "mig", "lost"})),
    "power_cap": Behaviour(amdgpu.power_cap, takes=frozenset({"most"})),
    "od_table": Behaviour(amdgpu.od_table, frozenset({"sclk"}), frozenset({"mclk", "determinism", "busy"})),
}
