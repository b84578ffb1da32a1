"""A boot line as the kernel reads it: whole tokens, the last one, comma lists, quotes.

The line is split as lib/cmdline.c (next_arg) splits it, names are compared as kernel/params.c (parameq) compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Union

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

Token = tuple[str, Union[str, None]]
"""A parameter with its value; None for one without '='."""


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


def held(tokens: Sequence[Token], target: str) -> str:
    """The value that is in force by the tokens."""
    found = [value for name, value in tokens if name == target]
    if not found:
        return ABSENT
    texts = [value for value in found if value is not None]
    if texts and (target in REPEATED or target == "hugepages"):
        return " ".join(texts)
    if texts and target in LISTS:
        return ",".join(items(target, texts))
    good = [text for value in found if (text := taken(target, value)) is not None]
    return good[-1] if good else named(found[-1])


def named(value: str | None) -> str:
    """The value as it is shown: our own two words are never a value of the line."""
    return PRESENT if value is None else f"={value}" if value in (PRESENT, ABSENT) else value


def taken(target: str, value: str | None) -> str | None:
    """The value in its one form; None where the kernel refuses it and keeps what it had."""
    if target in WORDS:
        return value if value in WORDS[target] else None
    if target not in SWITCHES:
        return named(value)
    if value is None or not re.match(r"[yt1nf0]|o[nf]", value, re.IGNORECASE):
        return None
    return "1" if re.match(r"[yt1]|on", value, re.IGNORECASE) else "0"


def items(target: str, texts: Iterable[str]) -> list[str]:
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


def merged(target: str, value: str, there: str) -> str:
    """A wanted value put into what is there: a list, and what may stand several times, keep their other items."""
    if target not in LISTS | REPEATED or {value, there} & {PRESENT, ABSENT}:
        return value
    blank = " " if target in REPEATED else ","
    old, wanted = there.split(blank), value.split(blank)
    new = [item for item in wanted if item not in old]
    return blank.join(items(target, [*old, *new]) if target in LISTS else [*old, *new])


def spelled(target: str, value: str) -> str:
    """A value as it stands on the line; signs that do not print are shown as ?."""
    if value == PRESENT:
        return target
    if target in REPEATED:
        return " ".join(f"{target}={item}" for item in value.split(" "))
    value = value.removeprefix("=") if value in (f"={PRESENT}", f"={ABSENT}") else value
    value = "".join(c if c.isprintable() else "?" for c in value)
    return f'{target}="{value}"' if " " in value else f"{target}={value}"
