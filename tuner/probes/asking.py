"""A probe, and asking a host: an answer, or why there is none. That a program is missing is no error of the host."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tuner.host.door import Host, Unrecorded
from tuner.host.shell import Ran
from tuner.probes.cells import ParseError

T = TypeVar("T")

TIMEOUT = 10.0
"""Seconds: a driver that does not answer keeps its tool for ever (leptonai/gpud#117)."""


@dataclass(frozen=True)
class Probe(Generic[T]):
    """What is run, for how many seconds at most, and what reads its output."""

    argv: tuple[str, ...]
    parse: Callable[[str], T]
    timeout: float = TIMEOUT

    def __str__(self) -> str:
        return " ".join(self.argv)


@dataclass(frozen=True)
class Heard(Generic[T]):
    """What the output says. `code` is the exit code: a remark, never a verdict (ROCm/rocm_smi_lib#74)."""

    value: T
    code: int


@dataclass(frozen=True)
class NotMeasured:
    """Why there is no answer, in one line; `kind` is missing (no such program), unrecorded, hung or refused."""

    why: str
    kind: str


def ask(host: Host, probe: Probe[T]) -> Heard[T] | NotMeasured:
    """Runs the probe through the host's door; raises nothing."""
    try:
        ran = host.command(list(probe.argv), probe.timeout)
    except Unrecorded:
        return NotMeasured(f"{probe}: not recorded", "unrecorded")
    except OSError as error:
        return _failed(probe, error)
    if ran.code is None:
        return NotMeasured(_line(ran.failure), _kind(ran))
    try:
        return Heard(probe.parse(ran.out or ran.err), ran.code)
    except ParseError as error:
        told = f" (exit {ran.code})" if ran.code else ""
        return NotMeasured(f"{probe}: {error}{told}", "refused")


def _kind(ran: Ran) -> str:
    return "missing" if "cannot be started" in ran.failure or "no command runs" in ran.failure else "hung"


def _failed(probe: Probe[T], error: OSError) -> NotMeasured:
    """A recorded host answers for a program that was not there, or hung, with an errno."""
    if error.errno == errno.ENOENT:
        return NotMeasured(f"{probe.argv[0]} cannot be started: {error.strerror}", "missing")
    if error.errno == errno.ETIMEDOUT:
        return NotMeasured(f"{probe.argv[0]} did not end within its time and was killed", "hung")
    return NotMeasured(f"{probe}: {error.strerror or error}", "refused")


def _line(text: str) -> str:
    return " ".join(text.split())
