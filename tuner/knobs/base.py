"""What a knob is: a kind of thing on a host with one value.

A knob says how to find, read and write its targets, and a few facts about them. Plan, drift, undo, capture and
explain are written once over that, as functions elsewhere; nothing here calls a knob's own methods in turn.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Union

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.model import Absent, Reading, Seen, Setting, Unreadable, Value

Raw = Union[str, None, "list[Raw]", "dict[str, Raw]"]
"""A value as a profile writes it: scalars are text, whatever they look like; null is None."""

DEVICE_ERRNOS = frozenset({errno.ENODEV, errno.EIO, errno.ENXIO})
"""A device that is there but no longer answers."""

NEEDS_ROOT = "needs root"
"""Why a target is unreadable that root can read."""

INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|[0-9]+)")


class Knob:
    """The interface, with the answers that most knobs give."""

    name: ClassVar[str]
    persist: ClassVar[str] = ""
    """Which store keeps it over a reboot; empty: the target keeps itself."""
    main: ClassVar[str] = ""
    """The field of a record that a scalar in a profile means, and that tables show first."""
    bounds: ClassVar[bool] = True
    """Whether at_least and at_most mean anything for its values."""
    partial: ClassVar[bool] = False
    """Holds what it can of what is asked, down to nothing at all, without an error: kept and reported as short."""
    rivals: ClassVar[bool] = False
    """Whether `guard` names another owner of the target, who is then also the reason why it drifted."""
    read_only: ClassVar[bool] = False
    """Judged, never written: `advice` says what the operator must do."""
    of_function: ClassVar[bool] = False
    """Whether its targets are PCI functions, by address, whose driver loses the values when it is loaded again."""
    ways: ClassVar[tuple[str, ...]] = ()
    """The tools that a write can go through, `auto` first, where a profile may choose (`via`)."""
    cost: ClassVar[Literal["file", "socket", "tool"]] = "file"
    """What a reading costs: files through the door (cheap to read again), a socket, or a tool that is run."""

    def canonical(self, target: str) -> str:
        """The one name of a target or of a pattern over targets; BadValue for what can be neither."""
        raise NotImplementedError

    def parse(self, target: str, raw: Raw) -> Value:
        """The value that a profile wants, as far as it can be judged without a host; BadValue."""
        raise NotImplementedError

    def clash(self, targets: Sequence[str]) -> str:
        """Why these targets cannot be set together; empty when they can."""
        return ""

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The targets of this host; the pattern says where to look, the caller matches."""
        raise NotImplementedError

    def search_root(self, pattern: str) -> str:
        """What of a pattern decides the answer of `targets`: patterns with the same root are looked up once."""
        return pattern

    def files(self, host: Host, target: str) -> list[str]:
        """The kernel files that a write to the target opens."""
        return []

    def read(self, host: Host, target: str) -> Reading:
        """What the target holds now, in normal form."""
        raise NotImplementedError

    def write(self, host: Host, target: str, value: Value) -> None:
        """Makes it so. OSError or Refused when it cannot; the caller reads back either way."""
        if self.read_only:
            raise Refused("judged only: tuner does not write it")
        raise NotImplementedError

    def writer(self, via: str) -> Callable[[Host, str, Value], None]:
        """`write`, through the tool that is named; '' is as if none were."""
        return self.write

    def identity(self, host: Host, target: str) -> str:
        """What tells this device from another at the same place, in parts with ", " between; empty for what is none."""
        return ""

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """What the target would hold if this were written: rounding, forms; BadValue for what it cannot hold."""
        return value

    def key(self, value: Any) -> Any:
        """The order for at_least and at_most."""
        return value

    def disruption(self, target: str) -> str:
        """The class of what a write disturbs."""
        return "none"

    def guard(self, host: Host, target: str, value: Value, first: Reading | None) -> str:
        """Why this write must not be made now, empty when it may. `first`: before tuner ever changed the target."""
        return ""

    def note(self, before: Value, value: Value, target: str) -> str:
        """What the change means for others on this node, for the plan."""
        return ""

    def advice(self, host: Host, target: str, value: Value) -> str:
        """For a read-only knob whose target differs: what the operator has to do about it."""
        return ""

    def pending(self, host: Host, target: str, value: Value) -> str:
        """Where the running value differs: what will make it `value` without a write of ours, such as a restart."""
        return ""

    def waits(self, seen: Value) -> str:
        """What a value that is met still waits for before it is in force; empty when it is."""
        return ""

    def remark(self, host: Host, target: str, seen: Value) -> str:
        """What has to be said of a target that holds as wanted: a limit below it, others who set it."""
        return ""

    def stores(self, settings: Sequence[Setting], without: Boots) -> list[tuple[str, str]]:
        """(path, text) of the files that keep these settings over a restart; each is wholly ours.

        `without` is the next boot as if no such file were there.
        """
        return []

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """What the target will hold after the next boot, before any service of a job runs.

        This answer is that of a knob whose settings only the boot unit makes so again; hardware that is only judged is
        expected to be as it is.
        """
        if self.read_only and not self.persist:
            return Next(self.read(boots.host, setting.target))
        if boots.unarmed:
            return Next(Absent(boots.unarmed))
        if boots.applied.get(setting.at) != setting.want:
            return Next(Absent("the boot unit makes what is applied so again: apply this first"))
        return Next(Seen(setting.want.choices()[0]))

    def after(self, target: str) -> str:
        """What the system must be told once after writes to this target (tuner.host.after); empty for nothing."""
        return ""

    def rank(self, target: str) -> int:
        """The order of writing among targets of this knob: lower first."""
        return 0

    def about(self, target: str) -> str:
        """What a person who asks about this target should read, with its kernel document."""
        return ""

    def restored(self, before: Value, now: Value) -> bool:
        """Whether undo has done all it can when the target reads `now` and held `before`."""
        return before == now

    def lingers(self, host: Host, target: str) -> bool:
        """Of a target without a getter that reads as such: whether what tuner wrote may still be in force."""
        return False

    def shortfall(self, target: str, wanted: Value, after: Value) -> str:
        """What to say of a target that holds less than was written to it."""
        return "written, read back differently"

    def moves(self, target: str) -> tuple[tuple[str, str], ...]:
        """Other places, (knob, target), that a write to this one may move: watched, and given back with it."""
        return ()

    def settle(self, host: Host, target: str) -> None:
        """After a crash: removes what an interrupted write left beside the target."""


def reading(read: Callable[[], Value]) -> Reading:
    """What `read` returns, or why there is nothing: errno tells absent, ours and the device's fault apart."""
    try:
        return Seen(read())
    except (Unrecorded, OSError, ValueError) as error:
        return failed(error)


def failed(error: Unrecorded | OSError | ValueError) -> Absent | Unreadable:
    """What a read that raised this says about its target."""
    match error:
        case Unrecorded():
            return Unreadable(str(error))
        case FileNotFoundError() | NotADirectoryError():
            return Absent("not on this host")
        case PermissionError():
            return Unreadable(NEEDS_ROOT if os.geteuid() else f"not permitted: {error.strerror}")
        case OSError():
            return Unreadable(error.strerror or str(error), "device" if error.errno in DEVICE_ERRNOS else "ours")
    return Unreadable(f"unexpected content: {error}")


def number(raw: Raw) -> int:
    """An integer as the kernel reads it, base 0, but no octal by accident; BadValue says what is wrong."""
    if not isinstance(raw, str):
        raise BadValue(f"{_shown(raw)} is not a number", "one integer, such as 16777216 or 0x1000000")
    text = raw.strip()
    if not INTEGER.fullmatch(text):
        raise BadValue(f"{_shown(raw)} is not a number", "digits only: no unit, no fraction, no word")
    digits = text.lstrip("-")
    if digits[0] == "0" and digits[1:2].isdigit():
        raise BadValue(f"{text} has a leading zero, which the kernel reads as octal", "write it without the zero")
    if len(digits) > 20:
        raise BadValue("the number has more than 20 digits", "no kernel setting is that large")
    return int(text, 0)


def scalar(raw: Raw) -> str:
    """One word or line; BadValue for null, a list or a mapping."""
    if isinstance(raw, str):
        return raw
    raise BadValue(f"{_shown(raw)} is not a single value", "one number or word")


def bounded(value: int, low: int | None, high: int | None) -> int:
    """The value if it is within both bounds (inclusive, None = open), else BadValue."""
    if (low is not None and value < low) or (high is not None and value > high):
        span = f"{'' if low is None else low}..{'' if high is None else high}"
        raise BadValue(f"{value} is out of range", f"allowed: {span}")
    return value


def _shown(raw: Raw) -> str:
    text = "null" if raw is None else repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."
