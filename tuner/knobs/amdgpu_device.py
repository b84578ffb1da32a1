"""What knobs of an AMD Instinct MI300X have in common: which devices they are for, and how busy or dead ones answer.

Linux drivers/gpu/drm/amd/pm/amdgpu_pm.c: while a GPU is in reset or suspended, its files answer EPERM or EBUSY.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from tuner.errors import Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, reading
from tuner.model import Absent, Reading, Unreadable, Value
from tuner.pci import DEVICES, OFF_THE_BUS, off_the_bus, target_of

VENDOR, DRIVER, MI300X, VIRTUAL, MI308X = "1002", "amdgpu", "1002:74a1", "1002:74b5", "1002:74a2"
KINDS = frozenset({MI300X, VIRTUAL, MI308X})
"""The MI300X and those relatives of it that get a value, or a reason instead of one."""

BUSY = frozenset({errno.EPERM, errno.EBUSY})
"""A GPU in reset or suspend: the driver of older kernels answers the first, that of newer ones the second."""

READING, WRITING, PAUSE = 0.2, 1.5, 0.1
"""Seconds that a busy GPU is asked again: for a reading, for a whole write; and between two tries."""

Found = TypeVar("Found")


class GpuKnob(Knob):
    """A knob whose targets are GPUs by their PCI address: numbers of DRM cards and of tools change over reboots."""

    of_function = True

    def canonical(self, target: str) -> str:
        """The PCI address with its domain, or a pattern over addresses."""
        hint = 'such as "0000:05:00.0", or "*" for all: numbers of cards and tools change over reboots'
        return target_of(target, hint)

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Every MI300X that the driver has, and its relatives."""
        return gpus(host)

    def search_root(self, pattern: str) -> str:
        """One look finds them all."""
        return ""

    def identity(self, host: Host, target: str) -> str:
        """What tells this GPU from another at the same address."""
        return identity(host, target)


def gpus(host: Host) -> list[str]:
    """The addresses of the GPUs that the driver has, in order. Of other vendors' functions only the vendor is read."""
    try:
        addresses = host.list(DEVICES)
    except FileNotFoundError:
        return []
    return [address for address in addresses if _is_gpu(host, f"{DEVICES}/{address}")]


def _is_gpu(host: Host, folder: str) -> bool:
    try:
        if host.text(f"{folder}/vendor").strip() != f"0x{VENDOR}":
            return False
        kind = f"{VENDOR}:{host.text(f'{folder}/device').strip().removeprefix('0x')}"
        return kind in KINDS and posixpath.basename(host.link(f"{folder}/driver")) == DRIVER
    except (OSError, Unrecorded):
        return False


def identity(host: Host, target: str) -> str:
    """Serial number and unique id, as far as they can be read."""
    found = {}
    for name, word in (("serial_number", "serial"), ("unique_id", "unique id")):
        with contextlib.suppress(OSError, Unrecorded):
            found[word] = host.text(f"{DEVICES}/{target}/{name}").strip()
    return ", ".join(f"{word} {text}" for word, text in found.items() if text)


def read_gpu(host: Host, target: str, ask: Callable[[], Value], unfit: Mapping[str, str], lacking: str) -> Reading:
    """What `ask` gives of a GPU that is there and answers.

    `unfit` has the reasons why relatives are not for this knob, by id; `lacking` is said where the files are not there.
    """

    def asked() -> Value:
        present(host, target, unfit)
        return ask()

    try:
        found = reading(asked)
    except Refused as not_for_it:
        return Absent(not_for_it.why)
    if isinstance(found, Unreadable) and found.fault == "device":
        return Unreadable(f"{found.why} ({identity(host, target) or 'serial not readable'})", "device")
    return Absent(lacking) if isinstance(found, Absent) else found


def present(host: Host, target: str, unfit: Mapping[str, str]) -> None:
    """Refused says why this is no device for a knob, ENODEV that it fell off the bus."""
    folder = f"{DEVICES}/{target}"
    try:
        kind = ":".join(host.text(f"{folder}/{name}").strip().removeprefix("0x") for name in ("vendor", "device"))
    except FileNotFoundError:
        raise Refused("no device at this address") from None
    if kind not in KINDS or kind in unfit:
        raise Refused(unfit.get(kind, f"{kind} is no MI300X ({MI300X})"))
    driver = ""
    with contextlib.suppress(FileNotFoundError):
        driver = posixpath.basename(host.link(f"{folder}/driver"))
    if driver != DRIVER:
        raise Refused(f"bound to {driver or 'no driver'}, not to {DRIVER}")
    if off_the_bus(host, target):
        raise OSError(errno.ENODEV, OFF_THE_BUS)


def patient(ask: Callable[[], Found], until: float) -> Found:
    """Asks a busy GPU again until then."""
    while True:
        try:
            return ask()
        except OSError as error:
            if error.errno not in BUSY:
                raise
            if time.monotonic() >= until:
                name = errno.errorcode[error.errno]
                raise OSError(errno.EBUSY, f"in reset or suspended: the driver answers {name}") from error
        time.sleep(PAUSE)


def attribute(host: Host, target: str, name: str) -> str:
    """The text of a file of the GPU without blanks around it; a busy one is asked again."""
    return patient(lambda: host.text(f"{DEVICES}/{target}/{name}"), time.monotonic() + READING).strip()


def failure(error: OSError | ValueError | Refused, value: str) -> str:
    """Why a write of `value` failed, in a few words."""
    if isinstance(error, Refused):
        return error.why
    if getattr(error, "errno", None) == errno.EINVAL:
        return f"the driver refuses {value} (EINVAL)"
    return str(getattr(error, "strerror", None) or error)
