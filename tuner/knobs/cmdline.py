"""Tokens of the running kernel's boot line: Documentation/admin-guide/kernel-parameters.rst and .txt of Linux.

The line is split as lib/cmdline.c (next_arg) splits it, names are compared as kernel/params.c (parameq) compares them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from tuner.errors import BadValue, Refused
from tuner.host.door import Host
from tuner.knobs.base import Knob, Raw, number, reading, scalar
from tuner.model import Reading, Seen, Unreadable, Value

LINE = "/proc/cmdline"
PRESENT, ABSENT = "present", "absent"
BLANKS = " \t\n\v\f\r"

OPTIONS = frozenset({"pci", "iommu", "intel_iommu", "amd_iommu"})
"""Comma lists, each occurrence of which adds to the ones before: pci_setup (drivers/pci/pci.c), iommu_setup
(arch/x86/kernel/pci-dma.c), intel_iommu_setup and parse_amd_iommu_options (drivers/iommu). What contradicts an earlier
item replaces it: pt and nopt, on and off, realloc=on and realloc=off."""

LISTS = OPTIONS | {"modprobe.blacklist"}
"""All comma lists of which a profile names items; modprobe(8) reads modprobe.blacklist."""

REPEATED = frozenset({"hugepagesz", "console"})
"""Each occurrence stands for itself: mm/hugetlb.c, kernel/printk/printk.c. So does `hugepages`, for the size before."""

SWITCHES = frozenset({"iommu.passthrough", "iommu.strict", "init_on_alloc", "init_on_free"})
"""Read with kstrtobool (lib/kstrtox.c): drivers/iommu/iommu.c, mm/mm_init.c."""

WORDS = {"transparent_hugepage": ("always", "madvise", "never"), "numa_balancing": ("enable", "disable")}
"""mm/huge_memory.c (setup_transparent_hugepage), mm/mempolicy.c (setup_numabalancing): any other word is ignored."""

ABOUT = {
    "iommu": "x86 only, elsewhere iommu.passthrough; /sys/kernel/iommu_groups/*/type says what each group got (identity"
    " is pass-through).",
    "iommu.passthrough": "/sys/kernel/iommu_groups/*/type says what each group got (identity is pass-through).",
    "hugepages": "Counts for the hugepagesz before it; what the pools hold is the knob hugepages.",
    "hugepagesz": "A second hugepagesz of the same size is ignored with its hugepages (mm/hugetlb.c).",
    "init_on_alloc": "A trade of security for speed: 0 leaves freed memory readable to the next user of the page.",
}


@dataclass(frozen=True)
class Dead:
    """A spelling that the kernel takes no notice of; `item` of its list, or empty for the whole parameter."""

    name: str
    item: str
    spelling: str
    meant: str
    why: str
    hint: str


DEAD = (
    Dead(
        "pci_realloc", "", "pci-realloc", "pci",
        "the kernel has no such parameter and ignores it: realloc is an item of pci= (drivers/pci/pci.c, pci_setup)",
        "did you mean pci=realloc=off? That is target pci, value realloc=off",
    ),
    Dead(
        "amd_iommu", "on", "amd_iommu=on", "iommu",
        "on is no value of amd_iommu=, AMD's IOMMU is on by default (drivers/iommu/amd/init.c,"
        " parse_amd_iommu_options)",
        "leave it out; for pass-through it is target iommu, value pt",
    ),
)  # fmt: skip

Token = tuple[str, Union[str, None]]
"""A parameter with its value; None for one without '='."""


class Cmdline(Knob):
    """Tokens of the line that this kernel was booted with. Judged only: the boot loader's files are the operator's.

    Targets are parameter names: `iommu`, `pci`, `nosmt`, `iommu.passthrough`. To the kernel `-` and `_` are the same
    in a name, never in a value. The value is text, `present` for a flag without a value, `absent` for none. Names are
    compared whole; the last occurrence wins; what stands after `--` belongs to init. Of a comma list (`pci`, `iommu`)
    the items that are named must be there, others may be. `iommu.passthrough=2`, which the kernel refuses, counts for
    nothing.
    """

    name = "cmdline"
    read_only = True

    def canonical(self, target: str) -> str:
        """The parameter's name with underscores, or a pattern over names."""
        if not target or target.startswith("-") or not target.isprintable() or set(target) & set('"= \\'):
            raise BadValue(f"{target!r} is no name of a kernel parameter", "NAME: VALUE, such as iommu: pt")
        name = target if "[" in target else target.replace("-", "_")
        _refuse_dead(name, [""])
        return name

    def parse(self, target: str, raw: Raw) -> Value:
        """Text; of switches 0 or 1, of comma lists the items once each."""
        text = scalar(raw).strip(BLANKS)
        if '"' in text or not text.isprintable():
            raise BadValue(f"{text!r} cannot stand on the boot line", "one line without double quotes")
        if text.replace("-", "_").startswith(f"{target}="):
            raise BadValue(f"{text} repeats the name", f"the value alone: {text.partition('=')[2]}")
        if text == ABSENT:
            return text
        if target in LISTS and text != PRESENT:
            items = _items(target, [text])
            _refuse_dead(target, items)
            return ",".join(items)
        taken = _taken(target, None if text == PRESENT else text)
        if taken is None:
            choices = "0 or 1" if target in SWITCHES else ", ".join(WORDS[target])
            raise BadValue(f"{text} is no value of {target}: the kernel ignores it", f"one of {choices}, or absent")
        return taken

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The parameters on the line, in its order."""
        try:
            return list(dict.fromkeys(name for name, _ in kernel_part(host.text(LINE))[0]))
        except OSError:
            return []

    def read(self, host: Host, target: str) -> Reading:
        """What the kernel makes of the token: its value, `present` or `absent`."""
        found = reading(lambda: _held(kernel_part(host.text(LINE))[0], target))
        if target == "hugepages" and isinstance(found, Seen) and " " in str(found.value):
            return Unreadable("several pools on the boot line: the knob hugepages judges each, such as node0/2MB")
        return found

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """What the line would hold: a list keeps its other items."""
        value = self.parse(target, str(value))
        found = self.read(host, target)
        if target not in LISTS | REPEATED or not isinstance(found, Seen) or {value, found.value} & {PRESENT, ABSENT}:
            return value
        blank = " " if target in REPEATED else ","
        held, wanted = str(found.value).split(blank), str(value).split(blank)
        new = [item for item in wanted if item not in held]
        return blank.join(_items(target, [*held, *new]) if target in LISTS else [*held, *new])

    def key(self, value: Any) -> Any:
        """Numbers by size; a word is neither more nor less than anything."""
        try:
            return number(value)
        except BadValue:
            return math.nan

    def write(self, host: Host, target: str, value: Value) -> None:
        """Nothing can change the line of a running kernel."""
        raise Refused("the boot line of a running kernel cannot be changed")

    def disruption(self, target: str) -> str:
        """Takes a reboot."""
        return "boot"

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What to put on the boot line, and what is wrong with it now."""
        ours, others = kernel_part(host.text(LINE))
        held = _held(ours, target)
        remarks = [*_remarks(ours, others, target, held), *_dead_on(ours, target)]
        text = f"{_order(target, str(value), held)}; takes effect after a reboot"
        return f"{text} ({'; '.join(remarks)})" if remarks else text

    def about(self, target: str) -> str:
        """Where the kernel documents it."""
        return " ".join(filter(None, (ABOUT.get(target), "Documentation/admin-guide/kernel-parameters.txt.")))


def kernel_part(line: str) -> tuple[list[Token], list[Token]]:
    """The kernel's own parameters, and what comes after `--`: arguments of init (parse_args, kernel/params.c)."""
    found = list(_split(line.removesuffix("\n")))
    end = next((at for at, (name, value) in enumerate(found) if name == "--" and value is None), len(found))
    ours, others = ([(name.replace("-", "_"), value) for name, value in part] for part in (found[:end], found[end:]))
    return ours, others[1:]


def _split(line: str) -> Iterator[Token]:
    """As next_arg does: double quotes keep blanks together and cannot be escaped."""
    at = 0
    while at < len(line):
        if line[at] in BLANKS:
            at += 1
            continue
        quoted = inside = line[at] == '"'
        start = end = at + quoted
        equals = 0
        while end < len(line) and (inside or line[end] not in BLANKS):
            if line[end] == "=" and not equals and end > start:
                equals = end
            inside ^= line[end] == '"'
            end += 1
        at = end
        value_quoted = bool(equals) and line[equals + 1 : equals + 2] == '"'
        if end > start and line[end - 1] == '"' and (quoted or value_quoted):
            end -= 1
        yield (line[start:equals], line[equals + 1 + value_quoted : end]) if equals else (line[start:end], None)


def _held(tokens: Sequence[Token], target: str) -> str:
    """The value that is in force by the tokens."""
    found = [value for name, value in tokens if name == target]
    if not found:
        return ABSENT
    texts = [value for value in found if value is not None]
    if texts and (target in REPEATED or target == "hugepages"):
        return " ".join(texts)
    if texts and target in LISTS:
        return ",".join(_items(target, texts))
    good = [taken for value in found if (taken := _taken(target, value)) is not None]
    return good[-1] if good else _named(found[-1])


def _named(value: str | None) -> str:
    """The value as it is shown: our own two words are never a value of the line."""
    return PRESENT if value is None else f"={value}" if value in (PRESENT, ABSENT) else value


def _taken(target: str, value: str | None) -> str | None:
    """The value in its one form; None where the kernel refuses it and keeps what it had."""
    if target in WORDS:
        return value if value in WORDS[target] else None
    if target not in SWITCHES:
        return _named(value)
    if value is None or not re.match(r"[yt1nf0]|o[nf]", value, re.IGNORECASE):
        return None
    return "1" if re.match(r"[yt1]|on", value, re.IGNORECASE) else "0"


def _items(target: str, texts: Iterable[str]) -> list[str]:
    """The items of comma lists, an item that a later one contradicts left out."""
    kept: dict[str, str] = {}
    for item in (item for text in texts for item in text.split(",") if item):
        slot = _slot(item) if target in OPTIONS else item
        kept.pop(slot, None)
        kept[slot] = item
    return list(kept.values())


def _slot(item: str) -> str:
    """What an item decides: equal for pt and nopt, on and off, realloc=on and realloc=off, pcie_bus_perf and _safe."""
    name = item.partition("=")[0]
    if name.startswith("pcie_bus_"):
        return "pcie_bus"
    return re.sub(r"(^|_)(on|off)$", r"\1on", name.removeprefix("no"))


def _refuse_dead(name: str, items: Iterable[str]) -> None:
    for dead in DEAD:
        if dead.name == name and dead.item in items:
            raise BadValue(f"{dead.spelling} has no effect: {dead.why}", dead.hint)


def _order(target: str, value: str, held: str) -> str:
    """What to boot with, added or in place of what there is."""
    if value == ABSENT:
        return f"boot without {_spelled(target, held)}: take it off the boot line"
    if target in REPEATED and held != ABSENT:
        value = " ".join(item for item in value.split(" ") if item not in held.split(" "))
    elif held != ABSENT:
        return f"boot with {_spelled(target, value)} in place of {_spelled(target, held)}"
    return f"boot with {_spelled(target, value)}: add it to the boot line"


def _spelled(target: str, value: str) -> str:
    if value == PRESENT:
        return target
    if target in REPEATED:
        return " ".join(f"{target}={item}" for item in value.split(" "))
    value = value.removeprefix("=") if value in (f"={PRESENT}", f"={ABSENT}") else value
    value = "".join(c if c.isprintable() else "?" for c in value)
    return f'{target}="{value}"' if " " in value else f"{target}={value}"


def _remarks(ours: Sequence[Token], others: Sequence[Token], target: str, held: str) -> Iterator[str]:
    if held == ABSENT:
        yield "not on the line now, the kernel's default is in force"
        if any(name == target for name, _ in others):
            yield "it stands after --, where it is an argument of init"
    elif _taken(target, None if held == PRESENT else held) is None:
        yield f"the kernel refuses {_spelled(target, held)}, its default is in force"


def _dead_on(ours: Sequence[Token], target: str) -> Iterator[str]:
    """What stands on the line without effect and was meant to do what `target` does."""
    for dead in DEAD:
        values = [value for name, value in ours if name == dead.name and target in (dead.meant, dead.name)]
        if any(not dead.item or dead.item in (value or "").split(",") for value in values):
            yield f"{dead.spelling} is on the line and has no effect: {dead.why}"
