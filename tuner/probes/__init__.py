"""Probes: what a program of a vendor is asked, and what its output says. See README.md.

A parser is a pure function of a text; it returns a frozen record or raises ParseError. `ask` runs a probe on a host.
"""

from __future__ import annotations

from tuner.probes.asking import Heard, NotMeasured, Probe, ask
from tuner.probes.cells import Flaw, ParseError

__all__ = ["Flaw", "Heard", "NotMeasured", "ParseError", "Probe", "ask"]
