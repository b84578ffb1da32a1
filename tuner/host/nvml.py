"""NVML behind two verbs, get and set, with errors as errno.

What is asked for is a word of NAMES; answers are what JSON can hold, so that they can be recorded. The library itself
is loaded in a process of its own (nvml_child.py), for a driver that hangs takes along whoever called it.
"""

from __future__ import annotations

import errno
from typing import Any, Protocol

GETS = {
    "driver": "of the system (address ''): the driver's version, such as 550.90.07",
    "gpus": "of the system: PCI addresses of the GPUs that NVML can open",
    "uuid": "GPU-...",
    "serial": "the board's serial number",
    "name": "the product's name",
    "memory": "bytes of device memory",
    "persistence": "enabled or disabled",
    "clocks": "{graphics, sm, memory}: MHz now",
    "max_clocks": "{graphics, sm, memory}: highest MHz",
    "supported_clocks": "{memory MHz, as text: [graphics MHz, highest first]}",
    "power": "{limit, enforced, min, max, default}: mW",
    "ecc": "{current, pending}: enabled or disabled",
    "mig": "{current, pending}: enabled or disabled",
    "compute_mode": "default, exclusive_process or prohibited",
    "event_reasons": "bit mask of what holds the clocks down now",
    "fabric": "{state, status, health}: state is not_supported, not_started, in_progress or completed; status, once it "
    "is completed, SUCCESS or the name of an error; health, from newer drivers, healthy, unhealthy or limited",
    "nvlinks": "[active, inactive or null for each link that the GPU has]",
    "remapped_rows": "{correctable, uncorrectable: counts; pending, failure: true or false}",
}
"""What can be asked, and the shape of the answer; null in an answer is a sentinel or a part that is not supported.

A number for which there is no word is a fault, UNKNOWN_VALUE_9_OF_FABRIC_STATE: newer drivers may have more of them.
"""

UNKNOWN_VALUE = "UNKNOWN_VALUE"

SETS = {
    "persistence": "enabled or disabled",
    "gpu_clocks": "[min, max] MHz of the locked range, null for the vendor's reset",
    "mem_clocks": "the same for the memory",
    "power": "the limit in mW",
    "ecc": "enabled or disabled, from the next reset on",
    "mig": "enabled or disabled; the answer is the activation status, SUCCESS or the name of an error",
    "compute_mode": "default, exclusive_process or prohibited",
}
"""What can be set. NVML has no getter for locked clocks."""

ERRNOS = {
    "INVALID_ARGUMENT": errno.EINVAL,
    "NOT_SUPPORTED": errno.ENOTSUP,
    "NO_PERMISSION": errno.EPERM,
    "NOT_FOUND": errno.ENODEV,
    "DRIVER_NOT_LOADED": errno.ENXIO,
    "TIMEOUT": errno.ETIMEDOUT,
    "LIBRARY_NOT_FOUND": errno.ELIBACC,
    "FUNCTION_NOT_FOUND": errno.ENOSYS,
    "GPU_IS_LOST": errno.ENODEV,
    "RESET_REQUIRED": errno.EIO,
    "OPERATING_SYSTEM": errno.EPERM,
    "LIB_RM_VERSION_MISMATCH": errno.EPROTO,
    "IN_USE": errno.EBUSY,
    "BINDING_NOT_FOUND": errno.ENOPKG,
    "BINDING_TOO_OLD": errno.ELIBBAD,
    UNKNOWN_VALUE: errno.EBADMSG,
}
"""NVML_ERROR_* as errno, for what a reader has to tell apart; all others are EREMOTEIO.

The last three are ours: pynvml cannot be imported, it lacks a function (which says nothing of the driver, as
FUNCTION_NOT_FOUND does), and how the names of numbers begin for which there is no word.
"""


class Nvml(Protocol):
    """The verbs. `address` is a PCI address as sysfs has it, '' for the system; OSError as `fault` makes it."""

    def get(self, address: str, name: str) -> Any:
        """The answer to a word of GETS."""

    def set(self, address: str, name: str, value: Any) -> Any:
        """Sets a word of SETS; only `mig` has an answer."""

    def close(self) -> None:
        """Lets go of the GPUs, which nobody can reset meanwhile; the next question opens them again."""


def fault(name: str) -> OSError:
    """The error of NVML with that name, without NVML_ERROR_."""
    kind = UNKNOWN_VALUE if name.startswith(UNKNOWN_VALUE) else name
    return OSError(ERRNOS.get(kind, errno.EREMOTEIO), f"NVML: {name.replace('_', ' ').lower()}")
