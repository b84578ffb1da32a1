"""Transparent huge pages: Documentation/admin-guide/mm/transhuge.rst of the Linux kernel."""

from __future__ import annotations

from tuner.errors import BadValue
from tuner.host.door import Host
from tuner.knobs.base import Knob, Raw, bounded, number, reading, scalar
from tuner.model import Reading, Seen, Value

FOLDER = "/sys/kernel/mm/transparent_hugepage"

WORDS = {
    "enabled": ("always", "madvise", "never"),
    "defrag": ("always", "defer", "defer+madvise", "madvise", "never"),
}

NUMBERS = {
    "khugepaged/defrag": (0, 1),
    "khugepaged/pages_to_scan": (1, 2**32 - 1),
    "khugepaged/scan_sleep_millisecs": (0, 2**32 - 1),
    "khugepaged/alloc_sleep_millisecs": (0, 2**32 - 1),
    "khugepaged/max_ptes_none": (0, 511),
    "khugepaged/max_ptes_swap": (0, 511),
    "khugepaged/max_ptes_shared": (0, 511),
}
"""Bounds as mm/khugepaged.c checks them; 511 is HPAGE_PMD_NR - 1 with 4 kB pages and 2 MB huge pages."""


class Thp(Knob):
    """Transparent huge pages: when the kernel backs memory with huge pages by itself.

    Targets: `enabled` and `defrag` (a word, the file shows all of them with the chosen one in brackets), and the
    numbers of `khugepaged/`. A write changes future page faults; memory that is mapped stays as it is.
    """

    name = "thp"
    persist = "boot unit"

    def canonical(self, target: str) -> str:
        """One of the names in WORDS and NUMBERS, or a pattern over them."""
        if target in WORDS or target in NUMBERS or any(c in target for c in "*?["):
            return target
        raise BadValue(f"thp has no target {target}", f"known: {', '.join([*WORDS, *NUMBERS])}")

    def parse(self, target: str, raw: Raw) -> Value:
        """A word of the target's set, or a number within its bounds."""
        if target in NUMBERS:
            return bounded(number(raw), *NUMBERS[target])
        word = scalar(raw)
        words = WORDS.get(target) or tuple(dict.fromkeys(w for choices in WORDS.values() for w in choices))
        if word not in words:
            raise BadValue(f"{word!r} is no choice of {target}", f"one of {', '.join(words)}")
        return word

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Those of the known names that this kernel has."""
        return [name for name in (*WORDS, *NUMBERS) if host.exists(f"{FOLDER}/{name}")]

    def files(self, host: Host, target: str) -> list[str]:
        """The file of the same name."""
        return [f"{FOLDER}/{target}"]

    def read(self, host: Host, target: str) -> Reading:
        """The word in brackets, or the number."""
        return reading(lambda: _chosen(host.text(f"{FOLDER}/{target}"), target))

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """A word must be one that this kernel offers."""
        if target in NUMBERS:
            return number(value) if isinstance(value, str) else value
        offered = host.text(f"{FOLDER}/{target}").replace("[", "").replace("]", "").split()
        if value not in offered:
            raise BadValue(f"this kernel does not offer {value}", f"it offers {', '.join(offered)}")
        return value

    def write(self, host: Host, target: str, value: Value) -> None:
        """Writes the word or number; a word that is chosen already would still make khugepaged start anew."""
        if self.read(host, target) == Seen(value):
            return
        host.write(f"{FOLDER}/{target}", f"{value}\n")

    def moves(self, target: str) -> tuple[tuple[str, str], ...]:
        """The free reserve, which khugepaged raises (mm/khugepaged.c, set_recommended_min_free_kbytes)."""
        return (("sysctl", "vm.min_free_kbytes"),) if target == "enabled" else ()

    def about(self, target: str) -> str:
        """Where the kernel documents it."""
        return "Documentation/admin-guide/mm/transhuge.rst. shmem_enabled, for tmpfs, is separate and not touched."


def _chosen(text: str, target: str) -> Value:
    if target in NUMBERS:
        return int(text)
    start, end = text.find("["), text.find("]")
    if start < 0 or end < start:
        raise ValueError(f"no choice in brackets: {text.strip()[:60]!r}")
    return text[start + 1 : end]
