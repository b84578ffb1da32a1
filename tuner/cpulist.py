"""Lists of CPUs as the kernel writes them: 0-3,8 (Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby


def cpu_list(cpus: Collection[int]) -> str:
    """0-3,8: CPUs as the kernel lists them."""
    groups = groupby(enumerate(sorted(cpus)), key=lambda pair: pair[1] - pair[0])
    ranges = [[cpu for _, cpu in group] for _, group in groups]
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges)


def cpu_numbers(text: str) -> list[int]:
    """The inverse of `cpu_list`."""
    spans = [part.partition("-") for part in text.split(",")]
    return [cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)]
