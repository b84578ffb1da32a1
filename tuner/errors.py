"""Exit codes, and the errors that end a run.

The library raises; only the command line prints and exits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """What the exit code of every verb means."""

    OK = 0
    DIFFERS = 10
    MISSING = 11
    UNKNOWN = 12
    PENDING = 13
    HELD = 14
    UNDONE = 20
    NOT_RESTORED = 21
    LOCKED = 30
    WRONG_HOST = 31
    BAD_INPUT = 64


SEVERITY = (
    Exit.BAD_INPUT,
    Exit.LOCKED,
    Exit.WRONG_HOST,
    Exit.NOT_RESTORED,
    Exit.UNDONE,
    Exit.MISSING,
    Exit.DIFFERS,
    Exit.UNKNOWN,
    Exit.PENDING,
    Exit.HELD,
    Exit.OK,
)


def worst(codes: list[Exit]) -> Exit:
    """The code that a run with these findings ends with; OK for none."""
    return min(codes, key=SEVERITY.index, default=Exit.OK)


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong with an input: `where` is FILE:LINE or an argument, `hint` says what to do next."""

    where: str
    what: str
    hint: str = ""


class TunerError(Exception):
    """Ends the run with `code`; carries every problem found, never only the first."""

    def __init__(self, problems: Problem | list[Problem], code: Exit = Exit.BAD_INPUT) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else problems
        self.code = code
        super().__init__("; ".join(f"{p.where}: {p.what}" if p.where else p.what for p in self.problems))


def bad_input(where: str, what: str, hint: str = "") -> TunerError:
    """An error of the one who called: exit 64, nothing written."""
    return TunerError(Problem(where, what, hint))


class BadValue(ValueError):
    """A knob does not take this target or value; the loader adds the file and the line."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what, self.hint = what, hint
        super().__init__(what)


class Refused(Exception):
    """A device, a kernel or a guard of ours did not take a write; `why` is what the operator reads."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)
