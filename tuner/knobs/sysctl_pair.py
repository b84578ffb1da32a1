"""Kernel parameters in couples: writing one half zeroes the other (Documentation/admin-guide/sysctl/vm.rst)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tuner.boot.boots import Boots, Next
from tuner.boot.sysctl_d import NotPredicted, Written
from tuner.errors import BadValue
from tuner.host.door import Host
from tuner.knobs.base import Knob, Raw, bounded, number, reading
from tuner.knobs.sysctl import STORE, decimal
from tuner.model import Absent, Leaf, Reading, Seen, Setting, Unreadable, Value

FOLDER = "/proc/sys/vm"


class Pair(NamedTuple):
    """The two files, how many bytes one unit of the first is, the smallest bytes it takes, the largest ratio."""

    amount: str
    ratio: str
    unit: int
    least: int
    most: int


PAIRS = {
    "vm.dirty": Pair("dirty_bytes", "dirty_ratio", 1, 8192, 100),
    "vm.dirty_background": Pair("dirty_background_bytes", "dirty_background_ratio", 1, 1, 100),
    "vm.overcommit": Pair("overcommit_kbytes", "overcommit_ratio", 1024, 1024, 2**31 - 1),
}
"""Bounds as mm/page-writeback.c and mm/util.c check them; tried on Linux 6.1."""


class SysctlPair(Knob):
    """A limit of vm.* that is either an amount or a share of memory: `{bytes: N}` or `{ratio: N}`.

    Targets: vm.dirty, vm.dirty_background, vm.overcommit (bytes in steps of 1024, since the kernel counts kbytes).
    A record of both halves is read; the half that is set zeroes the other, so both are undone together.
    """

    name = "sysctl.pair"
    bounds = False
    persist = "sysctl.d"

    def canonical(self, target: str) -> str:
        """One of the three pairs, or a pattern over them."""
        if target in PAIRS or any(c in target for c in "*?["):
            return target
        raise BadValue(f"sysctl.pair has no target {target}", f"known: {', '.join(PAIRS)}")

    def parse(self, target: str, raw: Raw) -> Value:
        """Exactly one of bytes and ratio."""
        if not isinstance(raw, dict) or len(raw) != 1 or set(raw) - {"bytes", "ratio"}:
            raise BadValue("a pair takes exactly one of bytes and ratio", "value: {bytes: N} or value: {ratio: N}")
        ((half, text),) = raw.items()
        pair = PAIRS.get(target, Pair("", "", 1, 1, 2**31 - 1))
        if half == "ratio":
            return {"ratio": bounded(number(text), 0, pair.most)}
        amount = bounded(number(text), pair.least, None)
        if amount % pair.unit:
            raise BadValue(f"{amount} is no multiple of {pair.unit}", f"the kernel holds it in units of {pair.unit}")
        return {"bytes": amount}

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The pairs of this kernel."""
        return [name for name, pair in PAIRS.items() if host.exists(f"{FOLDER}/{pair.ratio}")]

    def files(self, host: Host, target: str) -> list[str]:
        """Both halves."""
        return [f"{FOLDER}/{PAIRS[target].amount}", f"{FOLDER}/{PAIRS[target].ratio}"]

    def read(self, host: Host, target: str) -> Reading:
        """{bytes, ratio}; the half that is not in force reads 0."""
        pair = PAIRS[target]
        return reading(lambda: _halves(host, pair))

    def write(self, host: Host, target: str, value: Value) -> None:
        """Writes the half that the record changes; the kernel zeroes the other.

        dirty_ratio zeroes dirty_bytes only when it changes, so 0 is reached by way of 1.
        """
        pair, now = PAIRS[target], self.read(host, target)
        wanted = dict(value) if isinstance(value, Mapping) else {}
        held: Mapping[str, Leaf] = getattr(now, "value", {})
        amount, ratio = int(wanted.get("bytes") or 0), int(wanted.get("ratio") or 0)
        if wanted == held:
            return
        if amount and amount != held.get("bytes"):
            host.write(f"{FOLDER}/{pair.amount}", f"{amount // pair.unit}\n")
        else:
            if not ratio and held.get("bytes"):
                host.write(f"{FOLDER}/{pair.ratio}", "1\n")
            host.write(f"{FOLDER}/{pair.ratio}", f"{ratio}\n")

    def stores(self, settings: Sequence[Setting], without: Boots) -> list[tuple[str, str]]:
        """The same file as that of the knob sysctl: the half that is set, which zeroes the other."""
        lines = [f"vm.{name} = {amount}\n" for name, amount in (_half(s) for s in settings)]
        return [(STORE, "".join(["# Written by tuner\n", *sorted(lines)]))] if lines else []

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """The half that is written last counts."""
        pair = PAIRS[setting.target]
        halves = [(name, boots.sysctl.value(f"vm.{name}")) for name in (pair.amount, pair.ratio)]
        found = [(name, half) for name, half in halves if isinstance(half, Written)]
        if not found:
            why = next((half.why for _, half in halves if isinstance(half, NotPredicted)), "")
            return Next(Unreadable(why)) if why else Next(Absent("no file sets it: the kernel's own value"))
        for name, half in sorted(found, key=lambda one: -one[1].order):
            record = _taken(pair, name, half.text)
            if record:
                return Next(Seen(record), half.line.where)
        refused = f"the kernel refuses what {found[-1][1].line.where} sets"
        unclear = any(isinstance(half, NotPredicted) for _, half in halves)
        ahead = Unreadable(f"{refused}, and the other half is not known") if unclear else Absent(refused)
        return Next(ahead, found[-1][1].line.where)

    def about(self, target: str) -> str:
        """The two keys."""
        pair = PAIRS.get(target)
        return f"vm.{pair.amount} and vm.{pair.ratio}: Documentation/admin-guide/sysctl/vm.rst" if pair else ""


def _taken(pair: Pair, name: str, text: str) -> Value:
    """The record after a write of the text to one half; None where the kernel refuses it."""
    try:
        given = int(decimal(text))
    except ValueError:
        return None
    if name == pair.ratio:
        return {"bytes": 0, "ratio": given} if 0 <= given <= pair.most else None
    return {"bytes": given * pair.unit, "ratio": 0} if given * pair.unit >= pair.least else None


def _half(setting: Setting) -> tuple[str, int]:
    """(file below /proc/sys/vm, number) of the half that is wanted."""
    pair, wanted = PAIRS[setting.target], setting.want.choices()[0]
    record = wanted if isinstance(wanted, Mapping) else {}
    if record.get("bytes"):
        return pair.amount, int(record["bytes"] or 0) // pair.unit
    return pair.ratio, int(record.get("ratio") or 0)


def _halves(host: Host, pair: Pair) -> Value:
    amount, ratio = (int(host.text(f"{FOLDER}/{name}")) for name in (pair.amount, pair.ratio))
    return {"bytes": amount * pair.unit, "ratio": ratio}
