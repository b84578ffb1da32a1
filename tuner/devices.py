"""Which settings belong to a device, and the queue in which udev's rules name devices that came (udev(7)).

A device is written KIND:NAME, such as net:eth0, pci:0000:05:00.0 or infiniband:mlx5_0. What is lost with an interface
are its own kernel parameters (Documentation/networking/ip-sysctl.rst, conf/interface/* and neigh/interface/*); with a
PCI function what its driver keeps: the placement of its interrupts, the clocks of a GPU.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tuner.errors import bad_input
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME
from tuner.model import Setting
from tuner.pci import DEVICES

QUEUE = "/run/tuner/queue"
"""An empty file for each device that came, named as the device is written."""

QUEUED = "queue"
"""The word for all devices of the queue."""

DEVICE = re.compile(r"(net|infiniband):([^/\s:]{1,63})|(pci):([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
BRANCHES = frozenset({"conf", "neigh"})
QUIET = 0.3
"""Seconds without a new device after which a burst of events counts as over."""
LONGEST = 1.5
"""Seconds after which a burst is served although it goes on."""


@dataclass(frozen=True)
class Places:
    """What given devices are called: their network interfaces and their PCI functions."""

    interfaces: frozenset[str]
    functions: frozenset[str]

    def have(self, setting: Setting) -> bool:
        """Whether the setting is lost when one of the devices is made anew."""
        if setting.knob in BY_NAME and BY_NAME[setting.knob].of_function:
            return setting.target in self.functions
        parts = setting.target.split(".")
        return (
            setting.knob == "sysctl"
            and len(parts) > 4
            and parts[0] == "net"
            and parts[2] in BRANCHES
            and parts[3].replace("/", ".") in self.interfaces
        )


def checked(words: Collection[str]) -> list[str]:
    """The devices of a command line; TunerError (bad input) for a word that is none."""
    for word in words:
        if word != QUEUED and not DEVICE.fullmatch(word):
            raise bad_input(
                f"--device {word}", "is no device", "such as net:eth0, pci:0000:05:00.0 or infiniband:mlx5_0"
            )
    return list(words)


def places(host: Host, devices: Collection[str]) -> Places:
    """The names of the devices, by sysfs; what is gone again has those that it was given here."""
    interfaces: set[str] = set()
    functions: set[str] = set()
    for word in devices:
        found = DEVICE.fullmatch(word)
        if found is None:
            continue
        kind, name = found.group(1) or found.group(3), found.group(2) or found.group(4)
        if kind == "pci":
            functions.add(name)
            interfaces |= _names(host, f"{DEVICES}/{name}/net")
            continue
        above = _above(host, f"{kind}/{name}")
        functions |= above
        interfaces |= (
            {name} if kind == "net" else {i for address in above for i in _names(host, f"{DEVICES}/{address}/net")}
        )
    return Places(frozenset(interfaces), frozenset(functions))


def _above(host: Host, below: str) -> set[str]:
    """The PCI functions that have this device, such as net/eth0."""
    return {address for address in _names(host, DEVICES) if _there(host, f"{DEVICES}/{address}/{below}")}


def _there(host: Host, path: str) -> bool:
    try:
        return host.exists(path)
    except (OSError, Unrecorded):
        return False


def _names(host: Host, folder: str) -> set[str]:
    try:
        return set(host.list(folder))
    except (OSError, Unrecorded):
        return set()


def queued(host: Host) -> list[str]:
    """The names in the queue now."""
    return sorted(_names(host, QUEUE))


def settled(host: Host, pause: Callable[[float], None] = time.sleep) -> None:
    """Waits until no device has come for a moment, so that a burst of events is one run; never longer than LONGEST."""
    known, waited = queued(host), 0.0
    while known and waited < LONGEST:
        pause(QUIET)
        waited += QUIET
        now = queued(host)
        if now == known:
            return
        known = now


def take(host: Host) -> list[str]:
    """Empties the queue and returns the devices that were in it; what is no device is dropped.

    A name goes before its device is looked at: one that comes again meanwhile is queued again, and not lost.
    """
    taken = []
    for name in queued(host):
        try:
            host.unlink(f"{QUEUE}/{name}")
        except IsADirectoryError:
            with contextlib.suppress(OSError):
                host.rmdir(f"{QUEUE}/{name}")
        except OSError:
            continue
        else:
            taken.append(name)
    return [name for name in taken if DEVICE.fullmatch(name)]


def put_back(host: Host, names: Collection[str]) -> None:
    """Queues devices again that could not be served, so that the next run finds them."""
    for name in names:
        with contextlib.suppress(OSError):
            host.put(f"{QUEUE}/{name}", b"", 0o644)
