"""What a setting will hold after the next boot, each question answered once for a whole plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tuner.boot import units
from tuner.boot.sysctl_d import Boot, predict
from tuner.host.door import Host
from tuner.model import Reading, Want


@dataclass(frozen=True)
class Next:
    """A setting after the next boot.

    `reading` is Seen(value) where it is predicted, Absent(why) where what runs now is lost and nothing sets it again,
    Unreadable(why) where nobody can tell. `winner` is the FILE:LINE that decides, where one does.
    """

    reading: Reading
    winner: str = ""


@dataclass(frozen=True)
class Boots:
    """The next boot of a host. `applied` is what the applied generation wants at each place (knob, target)."""

    host: Host
    applied: Mapping[tuple[str, str], Want] = field(default_factory=dict)

    @cached_property
    def sysctl(self) -> Boot:
        """What the files of sysctl.d make of each kernel parameter."""
        return predict(self.host)

    @cached_property
    def unarmed(self) -> str:
        """Why no unit of ours makes the applied settings so again at boot; empty when one does."""
        return units.unarmed(self.host)
