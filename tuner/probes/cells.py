"""What the outputs of all tools have in common: lines, cells with units, and words that stand for no value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SENTINELS = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})
"""Full scale of 16, 32 and 64 bits: `not available` (ROCm/amdsmi#83, ROCm/rocm-systems#5036)."""

ABSENT = frozenset(
    {
        "", "-", "--", "n/a", "[n/a]", "none", "(null)", "unknown", "not available", "[not available]", "unavailable",
        "unsupported", "not supported", "[not supported]", "[not found]",
    }
)  # fmt: skip
"""Words that stand for no value; nothing is wrong with the device."""

FLAWS = (
    ("deprecated", "deprecated"),
    ("insufficient permission", "permission"),
    ("permission denied", "permission"),
    ("is lost", "lost"),
    ("reset required", "reset"),
    ("unknown error", "error"),
    ("err!", "error"),
    ("error", "error"),
)
"""Texts in the place of a value that say why there is none, and their kinds."""

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
"""Escape sequences of ECMA-48: nvidia-smi underlines a header even where nobody looks."""
NUMBER = re.compile(r"([-+]?[0-9]{1,24}(?:\.[0-9]{1,12})?)\s*(\D{0,12})")
BORDER = re.compile(r"[-+=|\s]{3,}|=.*(?:End of ROCm SMI Log|=).*=\s*|\|[^\n]*\|")
PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
USAGE = re.compile(
    r"command line argument|invalid (?:combination|argument|choice)|not a valid|unrecognized argument|^usage:|"
    r"please run '\S+ -h'|for more information, try|no such option|expected one argument",
    re.IGNORECASE,
)
DRIVER = re.compile(
    r"couldn't communicate with the nvidia driver|failed to initialize nvml|driver/library version mismatch|"
    r"driver not (?:initialized|loaded|found)|no devices were found|is the driver loaded|amdgpu not found",
    re.IGNORECASE,
)
PERMISSION = re.compile(r"insufficient permissions|permission denied|must be run as root|no permission", re.IGNORECASE)
NOTES = re.compile(r"\s*(WARNING|ERROR):\s*(.*)", re.IGNORECASE)


class ParseError(ValueError):
    """The output does not have what was asked for. `kind`: empty, usage, driver, permission, or unknown."""

    def __init__(self, kind: str, what: str) -> None:
        self.kind = kind
        super().__init__(what)


@dataclass(frozen=True)
class Flaw:
    """A field whose place holds an error's text; `kind` is deprecated, permission, lost, reset or error."""

    field: str
    text: str
    kind: str


def lines(text: str) -> tuple[list[str], bool]:
    """The lines without escape sequences, and whether the last one is cut: it has no end, and is then left out.

    A number of which the end is missing looks like a number. Only a border may end without a newline.
    """
    plain = CONTROL.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    *whole, last = plain.split("\n")
    if not last.strip():
        return whole, False
    return ([*whole, last], False) if BORDER.fullmatch(last) else (whole, True)


def below(rows: Sequence[str], heading: re.Pattern[str], what: str) -> tuple[re.Match[str], Sequence[str]]:
    """The first line that is the heading, and those below it; ParseError for a text without one."""
    for at, row in enumerate(rows):
        if found := heading.fullmatch(row.strip()):
            return found, rows[at + 1 :]
    raise refused(rows, what)


def refused(rows: Sequence[str], wanted: str) -> ParseError:
    """Why the output does not have what is `wanted`, by its first line that says something."""
    said = [line.strip() for line in rows if line.strip()]
    if not said:
        return ParseError("empty", "no output")
    kinds = (("usage", USAGE), ("driver", DRIVER), ("permission", PERMISSION))
    for kind, pattern in kinds:
        for line in said:
            if pattern.search(line):
                return ParseError(kind, f"{'usage error' if kind == 'usage' else kind}: {line[:120]}")
    return ParseError("unknown", f"no {wanted} in the output: {said[0][:80]}")


def notes(rows: list[str], kind: str = "WARNING") -> tuple[str, ...]:
    """What follows WARNING: (or ERROR:) in the lines, each once."""
    found = [match.group(2).strip() for line in rows if (match := NOTES.match(line)) and match.group(1).upper() == kind]
    return tuple(dict.fromkeys(found))


def word(cell: str) -> str | None:
    """The cell as it is; None for what stands for no value and for the text of an error."""
    text = cell.strip()
    return None if text.lower() in ABSENT or flaw("", text) else text


def flaw(field: str, cell: str) -> Flaw | None:
    """The error whose text stands in the place of a value."""
    text = cell.strip()
    plain = text.lower()
    if plain in ABSENT or len(text) > 160:
        return None
    kind = next((kind for part, kind in FLAWS if part in plain), None)
    return Flaw(field, text.strip("[]"), kind) if kind else None


def real(cell: str, *units: str) -> float | None:
    """A number, without a unit or with one of `units`; None for sentinels, for no value and for any other unit."""
    found = NUMBER.fullmatch(cell.strip())
    if not found:
        return None
    unit = found.group(2).strip().lower()
    if unit and unit not in {one.lower() for one in units}:
        return None
    digits, _, fraction = found.group(1).partition(".")
    full = int(digits) in SENTINELS and not fraction.strip("0")
    return None if full else float(found.group(1))


def whole(cell: str, *units: str) -> int | None:
    """The same for numbers that are whole; 2^64-2 stays exact."""
    value = real(cell, *units)
    if value is None or not value.is_integer():
        return None
    return int(cell.strip().partition(".")[0]) if cell.strip().isdigit() else int(value)


def celsius(cell: str) -> float | None:
    """A temperature: the degree sign may be lost, or a stand-in for bytes that are no UTF-8."""
    return real(re.sub(r"[^\x20-\x7e]|_", "", cell), "C")


def mask(cell: str) -> int | None:
    """A hex mask such as 0x0000000000000004."""
    found = re.fullmatch(r"0x([0-9a-fA-F]{1,16})", cell.strip())
    value = int(found.group(1), 16) if found else None
    return None if value == 2**64 - 1 else value


def pci(text: str) -> str | None:
    """A PCI address as sysfs writes it: small letters, a domain of four digits unless it needs more."""
    found = PCI.fullmatch(text.strip().lower())
    if not found:
        return None
    domain = (found.group(1) or "0").lstrip("0").zfill(4)
    return f"{domain}:{found.group(2)}"


def index(text: str) -> int | None:
    """A device's number: a few digits."""
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text.strip()) else None
