"""Slurm's hostlists: `node[01-16,33]` for many names, as in scontrol(1) `show hostlist` and `show hostnames`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tuner.errors import TunerError, bad_input

NUMBERED = re.compile(r"(.*?)(0{0,3})([0-9]{1,15})([^0-9]*)", re.DOTALL)
"""A name split at its last number, which is kept as short as Slurm takes it."""
RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
LARGEST = 65536
"""Names that one list may stand for, as Slurm's own MAX_RANGE has it."""

Key = tuple[str, int, str]
"""What comes before the number, how many digits it has when it is padded, and what comes after."""


def compress(names: Iterable[str]) -> str:
    """Names as one hostlist, each once: sorted by what comes before the number, then by the number."""
    split = {name: _split(name) for name in names}
    padded = {found[0] for found in split.values() if found}
    groups: dict[Key, set[int]] = {}
    for found in split.values():
        if found:
            (before, width, after), number = found
            same = (before, len(str(number)), after)
            groups.setdefault(same if not width and same in padded else found[0], set()).add(number)
    words = sorted(name for name, found in split.items() if found is None) + [
        _group(key, groups[key]) for key in sorted(groups)
    ]
    return ",".join(words)


def _split(name: str) -> tuple[Key, int] | None:
    """Numbers of different widths are different groups: node09 and node10 are one, node09 and node9 are not."""
    found = NUMBERED.fullmatch(name)
    if found is None or set("[],") & set(name):
        return None
    before, zeros, digits, after = found.groups()
    width = len(zeros + digits) if zeros else 0
    return (before, width, after), int(digits)


def _group(key: Key, numbers: set[int]) -> str:
    before, width, after = key
    ranges = [_range(first, last, width) for first, last in _runs(sorted(numbers))]
    if len(ranges) == 1 and "-" not in ranges[0]:
        return f"{before}{ranges[0]}{after}"
    return f"{before}[{','.join(ranges)}]{after}"


def _range(first: int, last: int, width: int) -> str:
    one, other = f"{first:0{width}d}", f"{last:0{width}d}"
    return one if first == last else f"{one}-{other}"


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    start = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield start, last
            start = number
        last = number
    yield start, last


def expand(text: str) -> list[str]:
    """The names of a hostlist, in its order; any number of brackets in a name. TunerError (bad input) for no list."""
    names = [name for part in _parts(text) for name in _names(text, part)]
    if len(names) > LARGEST:
        raise _wrong(text, f"stands for more than {LARGEST} hosts")
    return names


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if depth not in (0, 1):
            raise _wrong(text, "brackets that do not match")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    if depth:
        raise _wrong(text, "brackets that do not match")
    if not all(parts) and text:
        raise _wrong(text, "an empty name")
    return [part for part in parts if part]


def _names(text: str, part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    numbers = [number for item in inside.split(",") for number in _numbers(text, item)]
    tails = _names(text, after) if after else [""]
    if len(numbers) * len(tails) > LARGEST:
        raise _wrong(text, f"stands for more than {LARGEST} hosts")
    return [f"{before}{number}{tail}" for number in numbers for tail in tails]


def _numbers(text: str, item: str) -> list[str]:
    found = RANGE.fullmatch(item)
    if found is None:
        raise _wrong(text, f"{item!r} is no number and no range")
    first, last = found.group(1), found.group(2) or found.group(1)
    if int(last) < int(first):
        raise _wrong(text, f"{item!r} runs backwards")
    if int(last) - int(first) >= LARGEST:
        raise _wrong(text, f"stands for more than {LARGEST} hosts")
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _wrong(text: str, what: str) -> TunerError:
    return bad_input(f"hostlist {text!r}", what, "such as node[01-16,33]")
