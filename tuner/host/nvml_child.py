"""The process in which NVML is loaded: questions as lines of JSON on stdin, an answer for each on stdout.

Started as a file by nvml_live.py and free of everything but the standard library and `pynvml` (nvidia-ml-py), so that
it starts fast and takes nothing along when the driver hangs or the library crashes.

    {"id": 7, "op": "get", "address": "0000:1b:00.0", "name": "uuid"}   ->   {"id": 7, "ok": "GPU-..."}
    {"id": 8, "op": "set", "address": ..., "name": ..., "value": ...}   ->   {"id": 8, "error": "NO_PERMISSION"}

Words and shapes are GETS and SETS of nvml.py. Functions, structures and numbers are those of nvml.h.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
SENTINELS = (2**16 - 1, 2**32 - 1, 2**64 - 1)
"""NVML_VALUE_NOT_AVAILABLE in the widths in which drivers give it."""

NO_TEXT = ("", "N/A", "[N/A]", "Unknown Error", "[Unknown Error]", "[Not Supported]")

SWITCH = {0: "disabled", 1: "enabled"}
COMPUTE = {0: "default", 2: "prohibited", 3: "exclusive_process"}
FABRIC = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
HEALTH = {0: None, 1: "healthy", 2: "unhealthy", 3: "limited"}
LINK = {0: "inactive", 1: "active"}
CLOCKS = {"graphics": 0, "sm": 1, "memory": 2}
SYMBOLS = 0xFFFFFF00
"""From here on a clock is no MHz but a NVML_CLOCK_LIMIT_ID."""


class Refused(Exception):
    """The error that a question ends with: a name without NVML_ERROR_."""


class Library:
    """NVML by the names of its functions."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        names = [name for name in dir(binding) if name.startswith("NVML_ERROR_")]
        self.errors = {getattr(binding, name): name.removeprefix("NVML_ERROR_") for name in names}

    def result(self, number: int) -> str:
        """The name of a nvmlReturn_t."""
        return "SUCCESS" if number == 0 else self.errors.get(number, f"ERROR {number}")

    def call(self, function: str, *words: Any) -> Any:
        """What the function gives; Refused: as BINDING_TOO_OLD where pynvml lacks it, which the driver may have."""
        ask = getattr(self.binding, function, None)
        if ask is None:
            raise Refused("BINDING_TOO_OLD")
        try:
            found = ask(*words)
        except self.binding.NVMLError as error:
            raise Refused(self.result(error.value)) from None
        except UnicodeDecodeError as error:
            found = error.object
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def gpu(self, address: str) -> Any:
        """The handle of the GPU at a PCI address, which NVML writes with a domain of eight digits."""
        match = ADDRESS.fullmatch(address)
        if match is None:
            raise Refused("INVALID_ARGUMENT")
        domain, bus, device, function = (int(part, 16) for part in match.groups())
        return self.call("nvmlDeviceGetHandleByPciBusId", f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}".encode())

    def gpus(self) -> list[str]:
        """The PCI addresses, as sysfs writes them, of those GPUs that can be opened, which this does."""
        found = []
        for index in range(self.call("nvmlDeviceGetCount")):
            try:
                pci = self.call("nvmlDeviceGetPciInfo", self.call("nvmlDeviceGetHandleByIndex", index))
            except Refused:
                continue
            found.append(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
        return found


def text(value: Any) -> str | None:
    """A name, or None for what stands for none."""
    return None if value.strip() in NO_TEXT else value


def number(value: int) -> int | None:
    """A number, or None for what stands for none."""
    return None if value in SENTINELS else value


def word(words: Mapping[int, str | None], value: int, what: str) -> str | None:
    """The word for a number of an enum, None for what stands for none; Refused names a number that we do not know."""
    if value not in words and value not in SENTINELS:
        raise Refused(f"UNKNOWN_VALUE_{value}_OF_{what}".upper())
    return words.get(value)


def newest(*ways: Callable[[], Any]) -> Any:
    """What the first of these ways gives that driver and binding have; Refused as the newest one was."""
    refused: list[Refused] = []
    for way in ways:
        try:
            return way()
        except Refused as why:
            if str(why) not in ("FUNCTION_NOT_FOUND", "BINDING_TOO_OLD", "ARGUMENT_VERSION_MISMATCH"):
                raise
            refused.append(why)
    raise refused[0]


def parts(asked: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """A record of numbers of which some may not be supported; Refused where none is."""
    found: dict[str, Any] = {}
    refused = []
    for name, ask in asked.items():
        try:
            found[name] = number(ask())
        except Refused as why:
            if str(why) not in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
                raise
            found[name] = None
            refused.append(why)
    if len(refused) == len(asked):
        raise refused[0]
    return found


def mode(kind: str) -> Callable[[Library, Any], Any]:
    """A getter of {current, pending}."""
    ask, what, names = f"nvmlDeviceGet{kind}Mode", f"{kind}_mode", ("current", "pending")
    return lambda nvml, gpu: {n: word(SWITCH, v, what) for n, v in zip(names, nvml.call(ask, gpu), strict=True)}


def clocks(function: str) -> Callable[[Library, Any], Any]:
    """A getter of {graphics, sm, memory} in MHz."""
    return lambda nvml, gpu: parts({name: partial(nvml.call, function, gpu, i) for name, i in CLOCKS.items()})


def supported_clocks(nvml: Library, gpu: Any) -> Any:
    """{memory MHz: [graphics MHz]}."""
    below = partial(nvml.call, "nvmlDeviceGetSupportedGraphicsClocks", gpu)
    return {str(n): sorted(below(n), reverse=True) for n in nvml.call("nvmlDeviceGetSupportedMemoryClocks", gpu)}


def power(nvml: Library, gpu: Any) -> Any:
    """{limit, enforced, min, max, default} in mW."""
    limit = "nvmlDeviceGetPowerManagement"
    return parts({
        "limit": partial(nvml.call, f"{limit}Limit", gpu),
        "enforced": partial(nvml.call, "nvmlDeviceGetEnforcedPowerLimit", gpu),
        "min": lambda: nvml.call(f"{limit}LimitConstraints", gpu)[0],
        "max": lambda: nvml.call(f"{limit}LimitConstraints", gpu)[1],
        "default": partial(nvml.call, f"{limit}DefaultLimit", gpu),
    })  # fmt: skip


def event_reasons(nvml: Library, gpu: Any) -> Any:
    """The bit mask, by the name that it had before driver 535 where that is all there is."""
    reasons = "nvmlDeviceGetCurrentClocks{}Reasons".format
    return number(newest(*(partial(nvml.call, reasons(name), gpu) for name in ("Event", "Throttle"))))


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t; the second version ends before `health`, the first also begins after `version`.

    Ours: nvidia-ml-py 12 has a cluster of 80 bytes, and all of them a state of four, where nvml.h has an unsigned char.
    """

    _fields_ = (
        ("version", ctypes.c_uint), ("cluster", ctypes.c_uint8 * 16), ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32), ("state", ctypes.c_uint8), ("mask", ctypes.c_uint32), ("health", ctypes.c_uint8),
    )  # fmt: skip


def fabric(nvml: Library, gpu: Any) -> Any:
    """{state, status, health}: these two mean nothing before the state is completed; health is new in version 3."""

    def ask(version: int, function: str, start: int) -> FabricInfo:
        info = FabricInfo(version)
        nvml.call(f"nvmlDeviceGetGpuFabric{function}", gpu, ctypes.byref(info, start))
        return info

    ways = ((0x03000028, "InfoV", 0), (0x02000024, "InfoV", 0), (0, "Info", 4))
    info = newest(*(partial(ask, *way) for way in ways))
    state = word(FABRIC, info.state, "fabric_state")
    if state != "completed":
        return {"state": state, "status": None, "health": None}
    return {"state": state, "status": nvml.result(info.status), "health": word(HEALTH, info.health, "fabric_health")}


def nvlinks(nvml: Library, gpu: Any) -> Any:
    """The state of each link; a GPU refuses links beyond those that it has, a driver those beyond what it knows."""
    found: list[Any] = []
    for link in range(getattr(nvml.binding, "NVML_NVLINK_MAX_LINKS", 64)):
        try:
            found.append(word(LINK, nvml.call("nvmlDeviceGetNvLinkState", gpu, link), "link_state"))
        except Refused as why:
            if str(why) == "INVALID_ARGUMENT" and link:
                break
            if str(why) != "NOT_SUPPORTED":
                raise
            found.append(None)
    while found and found[-1] is None:
        found.pop()
    return found


def remapped_rows(nvml: Library, gpu: Any) -> Any:
    """Counts and flags of the row remapper."""
    correctable, uncorrectable, pending, failure = nvml.call("nvmlDeviceGetRemappedRows", gpu)
    counts = {"correctable": number(correctable), "uncorrectable": number(uncorrectable)}
    return {**counts, "pending": bool(pending), "failure": bool(failure)}


SYSTEM: dict[str, Callable[[Library], Any]] = {
    "driver": lambda nvml: text(nvml.call("nvmlSystemGetDriverVersion")),
    "gpus": Library.gpus,
}

GETTERS: dict[str, Callable[[Library, Any], Any]] = {
    "uuid": lambda nvml, gpu: text(nvml.call("nvmlDeviceGetUUID", gpu)),
    "serial": lambda nvml, gpu: text(nvml.call("nvmlDeviceGetSerial", gpu)),
    "name": lambda nvml, gpu: text(nvml.call("nvmlDeviceGetName", gpu)),
    "memory": lambda nvml, gpu: number(nvml.call("nvmlDeviceGetMemoryInfo", gpu).total),
    "persistence": lambda nvml, gpu: word(SWITCH, nvml.call("nvmlDeviceGetPersistenceMode", gpu), "persistence_mode"),
    "clocks": clocks("nvmlDeviceGetClockInfo"),
    "max_clocks": clocks("nvmlDeviceGetMaxClockInfo"),
    "supported_clocks": supported_clocks,
    "power": power,
    "ecc": mode("Ecc"),
    "mig": mode("Mig"),
    "compute_mode": lambda nvml, gpu: word(COMPUTE, nvml.call("nvmlDeviceGetComputeMode", gpu), "compute_mode"),
    "event_reasons": event_reasons,
    "fabric": fabric,
    "nvlinks": nvlinks,
    "remapped_rows": remapped_rows,
}


def of(words: dict[int, str], value: Any) -> int:
    """The number of a word of an enum."""
    for found, name in words.items():
        if name == value:
            return found
    raise Refused("INVALID_ARGUMENT")


def natural(value: Any, below: int = 2**32) -> int:
    """A number that a C unsigned holds: ctypes would wrap any other silently."""
    if type(value) is not int or not 0 <= value < below:
        raise Refused("INVALID_ARGUMENT")
    return value


def switch(function: str, words: dict[int, str] = SWITCH) -> Callable[[Library, Any, Any], Any]:
    """A setter of a word."""
    return lambda nvml, gpu, value: nvml.call(function, gpu, of(words, value))


def lock(kind: str) -> Callable[[Library, Any, Any], Any]:
    """A setter of locked clocks: [min, max] in MHz, None for the reset."""

    def set_(nvml: Library, gpu: Any, value: Any) -> Any:
        if value is None:
            return nvml.call(f"nvmlDeviceReset{kind}LockedClocks", gpu)
        if not isinstance(value, list) or len(value) != 2:
            raise Refused("INVALID_ARGUMENT")
        low, high = (natural(clock, SYMBOLS) for clock in value)
        return nvml.call(f"nvmlDeviceSet{kind}LockedClocks", gpu, low, high)

    return set_


SETTERS: dict[str, Callable[[Library, Any, Any], Any]] = {
    "persistence": switch("nvmlDeviceSetPersistenceMode"),
    "gpu_clocks": lock("Gpu"),
    "mem_clocks": lock("Memory"),
    "power": lambda nvml, gpu, value: nvml.call("nvmlDeviceSetPowerManagementLimit", gpu, natural(value)),
    "ecc": switch("nvmlDeviceSetEccMode"),
    "mig": lambda nvml, gpu, value: nvml.result(nvml.call("nvmlDeviceSetMigMode", gpu, of(SWITCH, value))),
    "compute_mode": switch("nvmlDeviceSetComputeMode", COMPUTE),
}


def started() -> Library:
    """NVML, initialised, with every GPU opened once: without persistence the driver takes seconds for each."""
    try:
        import pynvml
    except Exception:
        raise Refused("BINDING_NOT_FOUND") from None
    nvml = Library(pynvml)
    nvml.call("nvmlInit")
    nvml.gpus()
    return nvml


def answer(nvml: Library, question: dict[str, Any]) -> Any:
    """What NVML says to one question; Refused."""
    name, address = question["name"], question["address"]
    if question["op"] == "set" and name in SETTERS:
        return SETTERS[name](nvml, nvml.gpu(address), question["value"])
    if question["op"] == "get" and name in SYSTEM and not address:
        return SYSTEM[name](nvml)
    if question["op"] == "get" and name in GETTERS:
        return GETTERS[name](nvml, nvml.gpu(address))
    raise Refused("INVALID_ARGUMENT")


def serve(questions: Any, answers: Any) -> None:
    """Answers until the questions end. An initialisation that failed is tried again at the next question."""
    nvml: Library | None = None
    for line in questions:
        question = json.loads(line)
        try:
            nvml = nvml or started()
            said = {"ok": answer(nvml, question)}
        except Refused as why:
            said = {"error": str(why)}
        except Exception as error:  # a binding of another kind: its own error must not look like an answer
            said = {"error": f"the binding failed with {type(error).__name__}"}
        answers.write(json.dumps({"id": question["id"], **said}).encode() + b"\n")
        answers.flush()


def leave_with_parent() -> None:
    """Ends the process when nobody can ask any more, even while a call of NVML does not return."""
    ends = select.poll()
    ends.register(0, 0)
    ends.poll()
    os._exit(0)


def main() -> None:
    """Serves stdin and stdout, which the library cannot write to."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    serve(os.fdopen(0, "rb"), answers)


if __name__ == "__main__":
    main()
