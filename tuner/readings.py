"""What targets hold now, each asked once in a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME, Knob
from tuner.knobs.base import failed
from tuner.model import Absent, Reading, Setting, Unreadable

IN_IMAGE = Absent("image")
"""Of everything in an image but its files: nothing runs there."""


@dataclass(frozen=True)
class Known:
    """Readings of a host's targets, kept from the first time that each is asked for."""

    host: Host
    found: dict[tuple[str, str], Reading] = field(default_factory=dict)

    def read(self, setting: Setting) -> Reading:
        """What the setting's target held when it was first asked."""
        if setting.at not in self.found:
            self.found[setting.at] = read(self.host, BY_NAME[setting.knob], setting.target)
        return self.found[setting.at]


def read(host: Host, knob: Knob, target: str) -> Reading:
    """The target's reading, whatever the knob met; a device that fails is asked once more."""
    if host.kind == "image" and knob.name != "file":
        return IN_IMAGE
    found = _asked(host, knob, target)
    if isinstance(found, Unreadable) and found.fault == "device":
        found = _asked(host, knob, target)
    return found


def lingering(host: Host, at: tuple[str, str], found: Reading) -> bool:
    """Whether nobody can ask for what a target holds, and what tuner wrote there may still be in force."""
    no_getter = isinstance(found, Unreadable) and found.fault == "no getter"
    return no_getter and BY_NAME[at[0]].lingers(host, at[1])


def _asked(host: Host, knob: Knob, target: str) -> Reading:
    try:
        return knob.read(host, target)
    except (OSError, Unrecorded, ValueError) as error:
        return failed(error)
