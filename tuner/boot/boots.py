"""What a setting will hold after the next boot, each question answered once for a whole plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tuner.boot import source, units
from tuner.boot.entries import booted
from tuner.boot.line import BootLine
from tuner.boot.sysctl_d import Boot, predict
from tuner.host.door import Host
from tuner.model import Absent, Reading, Want

NOT_INSTALLED = "is not installed"
"""How the reason ends where a host has nothing that the setting could be for."""


@dataclass(frozen=True)
class Next:
    """A setting after the next boot.

    `reading` is Seen(value) where it is predicted, Absent(why) where what runs now is lost and nothing sets it again,
    Unreadable(why) where nobody can tell. `winner` is the FILE:LINE that decides, where one does.
    """

    reading: Reading
    winner: str = ""

    @property
    def pointless(self) -> bool:
        """Whether there is nothing on the host that the setting could be for."""
        return isinstance(self.reading, Absent) and self.reading.why.endswith(NOT_INSTALLED)


@dataclass(frozen=True)
class Boots:
    """The next boot of a host.

    `applied` is what the applied generation wants at each place (knob, target), `told` what site.yaml says that the
    node boots from.
    """

    host: Host
    applied: Mapping[tuple[str, str], Want] = field(default_factory=dict)
    told: str = ""

    @cached_property
    def sysctl(self) -> Boot:
        """What the files of sysctl.d make of each kernel parameter."""
        return predict(self.host)

    @cached_property
    def not_disk(self) -> str:
        """Why files on this node say nothing of its next boot; empty where they do."""
        return source.not_disk(self.host, self.told) if self.host.kind != "image" else ""

    @cached_property
    def line(self) -> BootLine:
        """The boot line of the entry that the boot loader starts by itself."""
        return booted(self.host)

    @cached_property
    def unarmed(self) -> str:
        """Why no unit of ours makes the applied settings so again at boot; empty when one does."""
        return units.unarmed(self.host)
