"""What the knobs of NVIDIA GPUs share: which PCI functions are theirs, and what an answer of NVML means for a reading.

NVML API Reference (docs.nvidia.com/deploy/nvml-api); /proc/driver/nvidia: README of the driver, chapter "The /proc
File System Interface". PCI classes: the PCI Code and ID Assignment Specification.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
from collections.abc import Callable
from typing import Any

from tuner.errors import Refused
from tuner.host.door import Host, Unrecorded
from tuner.host.nvml import fault
from tuner.knobs.base import Knob, failed
from tuner.model import Absent, Reading, Seen, Unreadable, Value
from tuner.pci import DEVICES, HEX, OFF_THE_BUS, PciDevice, devices, off_the_bus, target_of

VENDOR, DRIVER = "10de", "nvidia"
DISPLAYS = frozenset({0x0300, 0x0302})
"""Classes of a GPU: VGA controller and 3D controller. An NVSwitch is a bridge, a sound function is neither."""

BRIDGE = 0x0680
VERSION = "/sys/module/nvidia/version"
INFORMATION = "/proc/driver/nvidia/gpus/{}/information"
UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
ON, OFF = "enabled", "disabled"
UNSUPPORTED = "this GPU does not support it"
LIBRARY = "libnvidia-ml.so.1"
BINDING = "install nvidia-ml-py, in place of pynvml or nvidia-ml-py3, into the Python that runs tuner"
FORGETFUL = "persistence mode is off and the driver forgets it when its last client leaves"

RESET = (
    "drain the node, stop what monitors the GPU (DCGM, exporters), end its persistence mode (nvidia-smi -pm 0 -i {0}), "
    "leave the fabric manager running, nvidia-smi --gpu-reset -i {0}, then tuner apply; or reboot"
)
"""How a GPU is reset, for its address: persistence mode is a client of it (NVIDIA/gpu-operator#118, NVSentinel#1690).

What apply finds without persistence mode it locks again: a reset itself cannot be seen.
"""

DEAD = {
    errno.ENODEV: "lost: NVML cannot reach it, see Xid in dmesg",
    errno.EIO: f"needs a reset: {RESET}",
}
"""Errors that are the GPU's fault, for its address."""

WORDS = {
    errno.ENOENT: "NVML cannot be asked: nothing is recorded of it",
    errno.ETIMEDOUT: "NVML did not answer in time: the driver may hang, see Xid in dmesg",
    errno.ELIBACC: f"{LIBRARY} cannot be loaded: install the libraries of driver {{}}",
    errno.EPROTO: f"{LIBRARY} is not that of the loaded driver ({{}}): load the new driver, or reboot",
    errno.ENOPKG: f"Python's binding of NVML cannot be imported: {BINDING}",
    errno.ELIBBAD: f"Python's binding of NVML is another one or too old and lacks this: {BINDING}",
    errno.ENXIO: "NVML does not find the driver that the GPU is bound to: is /dev/nvidiactl there?",
}
"""Errors that are not, for the driver's version."""


class NvidiaKnob(Knob):
    """A knob whose targets are the GPUs of NVIDIA, and whose readings are answers of NVML."""

    cost = "tool"
    of_function = True

    def canonical(self, target: str) -> str:
        """The PCI address with its domain, or a pattern over addresses."""
        return address(target)

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Every GPU of NVIDIA, whatever it is bound to: one without the driver gets a reason instead of a value."""
        return [device.address for device in devices(host) if is_gpu(device)]

    def search_root(self, pattern: str) -> str:
        """One look finds them all."""
        return ""

    def identity(self, host: Host, target: str) -> str:
        """The UUID."""
        return identity(host, target)


def address(target: str) -> str:
    """The canonical name of a PCI function, or a pattern over them; BadValue for what is neither."""
    hint = 'such as "0000:1b:00.0", or "*" for all: numbers of GPUs and device nodes change over reboots'
    return target_of(target, hint)


def is_gpu(device: PciDevice) -> bool:
    """Whether a PCI function is a GPU of NVIDIA."""
    return device.id.partition(":")[0] == VENDOR and device.pci_class >> 8 in DISPLAYS


def identity(host: Host, target: str) -> str:
    """`uuid GPU-...`: from NVML, or from the driver's file, which has question marks until the GPU was used."""
    with contextlib.suppress(OSError, Unrecorded, ValueError):
        if uuid := host.nvml.get(target, "uuid"):
            return f"uuid {uuid}"
    with contextlib.suppress(OSError, Unrecorded):
        if found := UUID.search(host.peek(INFORMATION.format(target))):
            return f"uuid {found.group(1)}"
    return ""


def driver_version(host: Host) -> str:
    """The version of the loaded driver, such as 550.90.07; empty where nothing tells."""
    with contextlib.suppress(OSError, Unrecorded):
        return host.text(VERSION).strip()
    with contextlib.suppress(OSError, Unrecorded, ValueError):
        return str(host.nvml.get("", "driver") or "")
    return ""


def asked(host: Host, target: str, ask: Callable[[], Value]) -> Reading:
    """What NVML says of a GPU that its driver has, or why there is no answer."""
    try:
        return unfit(host, target) or Seen(ask())
    except (OSError, Unrecorded, ValueError) as error:
        return meaning(host, target, error)
    except (KeyError, TypeError, AttributeError, OverflowError) as shape:
        return Unreadable(f"unexpected answer of NVML: {shape!r}")


def unfit(host: Host, target: str) -> Absent | Unreadable | None:
    """Why there is nothing to ask about this PCI function; None where there is."""
    folder = f"{DEVICES}/{target}"
    try:
        vendor, kind = (host.text(f"{folder}/{name}").strip() for name in ("vendor", "class"))
    except FileNotFoundError:
        return Absent("no device at this address")
    if vendor != f"0x{VENDOR}" or not HEX.fullmatch(kind) or int(kind, 16) >> 8 not in DISPLAYS:
        return Absent("no GPU of NVIDIA")
    bound = ""
    with contextlib.suppress(FileNotFoundError):
        bound = posixpath.basename(host.link(f"{folder}/driver"))
    if bound != DRIVER:
        return Absent(f"bound to {bound or 'no driver'}, not to {DRIVER}")
    return Unreadable(f"{OFF_THE_BUS} ({_who(host, target)})", "device") if off_the_bus(host, target) else None


def meaning(host: Host, target: str, error: OSError | Unrecorded | ValueError) -> Absent | Unreadable:
    """What an error of NVML says about its GPU, and what to do about it."""
    number = error.errno if isinstance(error, OSError) else None
    version = driver_version(host) or "of unknown version" if number in WORDS or number == errno.ENOSYS else ""
    if number == errno.ENOTSUP:
        return Absent(UNSUPPORTED)
    if number == errno.ENOSYS:
        return Absent(f"driver {version} is too old for it")
    if number in DEAD:
        return Unreadable(f"{DEAD[number].format(target)} ({_who(host, target)})", "device")
    return Unreadable(WORDS[number].format(version)) if number in WORDS else failed(error)


def _who(host: Host, target: str) -> str:
    return identity(host, target) or "UUID not readable"


def given(answer: Any) -> Any:
    """An answer, or a part of one; NVML's `not supported` where it is null."""
    if answer is None:
        raise fault("NOT_SUPPORTED")
    return answer


def answer(host: Host, target: str, name: str) -> Any:
    """NVML's answer to a word of tuner.host.nvml.GETS, none that is null."""
    return given(host.nvml.get(target, name))


def forgetful(host: Host, target: str) -> bool:
    """Whether the driver forgets locks and limits without being loaded again."""
    with contextlib.suppress(OSError, Unrecorded):
        return bool(answer(host, target, "persistence") == OFF)
    return False


def word(answer: Any, choices: tuple[str, ...]) -> str:
    """An answer that is one of these words; ValueError for another."""
    if given(answer) not in choices:
        raise ValueError(f"{answer!r:.60} is none of {', '.join(choices)}")
    return str(answer)


def tell(host: Host, target: str, name: str, value: Any) -> Any:
    """Sets a word of tuner.host.nvml.SETS; Refused says why it was not taken."""
    try:
        return host.nvml.set(target, name, value)
    except OSError as error:
        why = meaning(host, target, error).why
        if error.errno == errno.EINVAL:
            why = "the driver refuses this value (INVALID_ARGUMENT)"
        elif error.errno == errno.EPERM:
            why = "no permission: it takes root on the host itself, and a virtual GPU takes nothing"
        elif error.errno == errno.EBUSY:
            why = "in use by another client of the GPU"
        raise Refused(why) from error
