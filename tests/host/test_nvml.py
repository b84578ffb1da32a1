"""NVML through its real binding, in a process of its own, over a library of ours; and what hangs, crashes or lies.

Answers and numbers of errors: nvml.h as the binding has it, and the sources that tests/nvml names.
"""

from __future__ import annotations

import ctypes.util
import errno
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import unavailable
from tests.nvml import ADDRESSES, Fake
from tuner.host.nvml import ERRNOS, GETS, SETS
from tuner.host.nvml_child import FabricInfo
from tuner.host.nvml_live import CHILD, Died, LiveNvml, read_answer

REPO = Path(__file__).parents[2]
GPU = ADDRESSES[0]
SOON = 30.0
"""Seconds within which a busy machine has surely done what takes it none."""

POWER = {"limit": 700000, "enforced": 700000, "min": 200000, "max": 700000, "default": 700000}

H800 = {
    "driver": "550.90.07",
    "gpus": list(ADDRESSES),
    "uuid": "GPU-00000000-1111-2222-3333-000000000000",
    "serial": "1320620030000",
    "name": "NVIDIA H800",
    "memory": 81559 * 1024 * 1024,
    "persistence": "disabled",
    "clocks": {"graphics": 345, "sm": 345, "memory": 2619},
    "max_clocks": {"graphics": 1980, "sm": 1980, "memory": 2619},
    "supported_clocks": {"2619": list(range(1980, 344, -15)), "1593": list(range(1980, 344, -15))},
    "power": POWER,
    "ecc": {"current": "enabled", "pending": "enabled"},
    "mig": {"current": "disabled", "pending": "disabled"},
    "compute_mode": "default",
    "event_reasons": 1,
    "fabric": {"state": "completed", "status": "SUCCESS", "health": "healthy"},
    "nvlinks": ["active"] * 8,
    "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
}

A100 = {
    "name": "NVIDIA A100-SXM4-40GB",
    "memory": 40 * 1024**3,
    "clocks": {"graphics": 210, "sm": 210, "memory": 1215},
    "max_clocks": {"graphics": 1410, "sm": 1410, "memory": 1215},
    "supported_clocks": {"1215": list(range(1410, 209, -15))},
    "power": {"limit": 400000, "enforced": 400000, "min": 100000, "max": 400000, "default": 400000},
    "nvlinks": ["active"] * 12,
}

A100_80 = {
    "name": "NVIDIA A100-SXM4-80GB",
    "memory": 80 * 1024**3,
    "clocks": {"graphics": 210, "sm": 210, "memory": 1593},
    "supported_clocks": {"1593": list(range(1410, 209, -15))},
}

CHANGES: list[tuple[str, Any, str, Any]] = [
    ("persistence", "enabled", "persistence", "enabled"),
    ("persistence", "disabled", "persistence", "disabled"),
    ("gpu_clocks", [1980, 1980], "clocks", {"graphics": 1980, "sm": 1980, "memory": 2619}),
    ("gpu_clocks", [600, 1980], "clocks", {"graphics": 600, "sm": 600, "memory": 2619}),
    ("gpu_clocks", None, "clocks", {"graphics": 345, "sm": 345, "memory": 2619}),
    ("mem_clocks", [1593, 1593], "clocks", {"graphics": 345, "sm": 345, "memory": 1593}),
    ("mem_clocks", None, "clocks", {"graphics": 345, "sm": 345, "memory": 2619}),
    ("power", 500000, "power", {**POWER, "limit": 500000, "enforced": 500000}),
    ("ecc", "disabled", "ecc", {"current": "enabled", "pending": "disabled"}),
    ("ecc", "enabled", "ecc", {"current": "enabled", "pending": "enabled"}),
    ("mig", "enabled", "mig", {"current": "enabled", "pending": "enabled"}),
    ("mig", "disabled", "mig", {"current": "disabled", "pending": "disabled"}),
    ("compute_mode", "exclusive_process", "compute_mode", "exclusive_process"),
    ("compute_mode", "prohibited", "compute_mode", "prohibited"),
    ("compute_mode", "default", "compute_mode", "default"),
]
"""On an H800, one after another: what is set, and what a getter says then."""

ERRORS = {
    "UNINITIALIZED": (1, errno.EREMOTEIO),
    "INVALID_ARGUMENT": (2, errno.EINVAL),
    "NOT_SUPPORTED": (3, errno.ENOTSUP),
    "NO_PERMISSION": (4, errno.EPERM),
    "NOT_FOUND": (6, errno.ENODEV),
    "DRIVER_NOT_LOADED": (9, errno.ENXIO),
    "TIMEOUT": (10, errno.ETIMEDOUT),
    "LIBRARY_NOT_FOUND": (12, errno.ELIBACC),
    "FUNCTION_NOT_FOUND": (13, errno.ENOSYS),
    "CORRUPTED_INFOROM": (14, errno.EREMOTEIO),
    "GPU_IS_LOST": (15, errno.ENODEV),
    "RESET_REQUIRED": (16, errno.EIO),
    "OPERATING_SYSTEM": (17, errno.EPERM),
    "LIB_RM_VERSION_MISMATCH": (18, errno.EPROTO),
    "IN_USE": (19, errno.EBUSY),
    "UNKNOWN": (999, errno.EREMOTEIO),
    "ERROR 777": (777, errno.EREMOTEIO),
}
"""nvmlReturn_t by name, its number in nvml.h, and what a reader of ours is told."""

OURS = {"BINDING_NOT_FOUND", "BINDING_TOO_OLD", "UNKNOWN_VALUE"}
"""Faults that are none of NVML's."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Eight H800 that the loader of our children finds."""
    made = Fake(tmp_path / "nvml")
    made.use(monkeypatch)
    return made


@pytest.fixture
def live(fake: Fake) -> Iterator[LiveNvml]:
    """NVML over the fake."""
    nvml = LiveNvml()
    yield nvml
    nvml.close()


def root() -> None:
    """Setters of the driver are for root."""
    if os.geteuid() != 0:
        unavailable("root is needed: the driver refuses setters to others")


def refused(ask: Callable[[], Any]) -> OSError:
    """The OSError that it ends with."""
    with pytest.raises(OSError) as caught:
        ask()
    return caught.value


FORMER: set[int] = set()
"""Processes that other tests left in this one."""


@pytest.fixture(autouse=True)
def former() -> None:
    """Only what a test itself starts is counted."""
    FORMER.clear()
    FORMER.update(children())


def children(parent: int | None = None) -> set[int]:
    """PIDs of the processes that one, by default ours, started and did not reap."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(") ")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[1]) == (parent or os.getpid()):
            found.add(int(entry.name))
    return found - FORMER


def only_child() -> int:
    (pid,) = children()
    return pid


def soon(true: Callable[[], bool]) -> bool:
    """Whether it becomes true within a generous time."""
    end = time.monotonic() + SOON
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def reaped(nvml: LiveNvml) -> bool:
    """Whether no process is left after a close, not even a zombie."""
    nvml.close()
    return children() == set()


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (OSError, IndexError):
        return False


# --- every word ---------------------------------------------------------------------------------------------------


def test_tables_are_complete() -> None:
    assert set(H800) == set(GETS)
    assert {name for name, *_ in CHANGES} == set(SETS)
    assert set(ERRNOS) - OURS <= set(ERRORS)
    assert len({ERRNOS[name] for name in OURS} - {number for _, number in ERRORS.values()}) == len(OURS)


def test_h800(live: LiveNvml) -> None:
    said = {name: live.get("" if name in ("driver", "gpus") else GPU, name) for name in GETS}
    assert said == H800


@pytest.mark.parametrize(("profile", "expected"), [("a100-40", A100), ("a100-80", A100_80)])
def test_a100(live: LiveNvml, fake: Fake, profile: str, expected: dict[str, Any]) -> None:
    """No fabric before Hopper."""
    fake.profile(profile)
    assert {name: live.get(GPU, name) for name in expected} == expected
    assert refused(lambda: live.get(GPU, "fabric")).errno == errno.ENOTSUP


def test_setters(live: LiveNvml) -> None:
    root()
    for name, value, asked, expected in CHANGES:
        assert live.set(GPU, name, value) == ("SUCCESS" if name == "mig" else None)
        assert live.get(GPU, asked) == expected, (name, value)
    assert live.get(ADDRESSES[1], "power") == H800["power"], "only the GPU that was meant"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("persistence", "on"), ("persistence", 1), ("persistence", None), ("persistence", ["enabled"]),
        ("gpu_clocks", [1980, 345]), ("gpu_clocks", [345, 1995]), ("gpu_clocks", [300, 1980]), ("gpu_clocks", []),
        ("gpu_clocks", [-1, 1980]), ("gpu_clocks", [345.0, 1980]), ("gpu_clocks", [345, 2**32 + 1980]),
        ("gpu_clocks", [True, 1980]), ("gpu_clocks", 1980), ("gpu_clocks", [0xFFFFFF01, 0xFFFFFF02]),
        ("mem_clocks", [2619, 2700]), ("mem_clocks", [1, 2, 3]),
        ("power", 700001), ("power", 199999), ("power", -1), ("power", 2**32 + 500000), ("power", "500000"),
        ("power", None), ("ecc", "off"), ("mig", 2), ("compute_mode", "exclusive_thread"), ("compute_mode", 0),
    ],
)  # fmt: skip
def test_bad_values_are_refused(live: LiveNvml, fake: Fake, name: str, value: Any) -> None:
    """Out of range, or of a kind that ctypes would turn into another number without a word."""
    root()
    keys = ("persistence", "gpu_lock", "memory_lock", "power_limit", "ecc_pending", "mig_pending", "compute")
    live.get("", "driver")
    before = [fake.get(0, key) for key in keys]
    assert refused(lambda: live.set(GPU, name, value)).errno == errno.EINVAL
    assert [fake.get(0, key) for key in keys] == before


@pytest.mark.parametrize(
    "address", ["", "1b:00.0", "0000:1b:00", "0000:1b:00.0\n", "0000:1g:00.0", "../../etc", "0" * 5000]
)
def test_what_is_no_address(live: LiveNvml, address: str) -> None:
    assert refused(lambda: live.get(address, "uuid")).errno == errno.EINVAL
    assert refused(lambda: live.get(GPU, "driver")).errno == errno.EINVAL


def test_true_is_no_number(live: LiveNvml, fake: Fake) -> None:
    root()
    fake.set(0, "power_min", 0)
    assert refused(lambda: live.set(GPU, "power", True)).errno == errno.EINVAL


def test_initialised_once(live: LiveNvml, fake: Fake) -> None:
    """A driver that would not start again now goes on answering."""
    assert live.get("", "driver") == "550.90.07"
    fake.fail("nvmlInitWithFlags", 9)
    assert live.get(GPU, "uuid") == H800["uuid"]


def test_words_that_there_are_not(live: LiveNvml) -> None:
    """A mistake of ours, not of the host."""
    with pytest.raises(ValueError, match="NVML has no getter for gpu_clocks"):
        live.get(GPU, "gpu_clocks")
    with pytest.raises(ValueError, match="NVML has no setter for uuid"):
        live.set(GPU, "uuid", "x")


def test_many_gpus_and_wide_domains(live: LiveNvml, fake: Fake) -> None:
    """Domains have more than 16 bits behind VMD and Hyper-V; each GPU is told from its like."""
    addresses = [
        f"{domain:04x}:{bus:02x}:00.0" for domain in (0, 1, 0x10000, 0xABCDE) for bus in (0x1B, 0xFF, 0x05, 0x50)
    ]
    fake.profile("h800", addresses)
    assert live.get("", "gpus") == addresses
    uuids = [live.get(address, "uuid") for address in addresses]
    assert uuids == [f"GPU-00000000-1111-2222-3333-0000000000{gpu:02}" for gpu in range(16)]
    assert live.get("00000001:1B:00.0", "uuid") == uuids[4], "as NVML itself writes it"
    assert refused(lambda: live.get("0002:1b:00.0", "uuid")).errno == errno.ENODEV
    assert refused(lambda: live.get("0000:1b:00.1", "uuid")).errno == errno.ENODEV


# --- what drivers do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), [(name, number) for name, (number, _) in ERRORS.items()])
def test_each_error(live: LiveNvml, fake: Fake, name: str, number: int) -> None:
    """Of a call, of the initialisation, and of the first call for a GPU: as errno, with NVML's own words."""
    fake.fail("nvmlInitWithFlags", number)
    at_start = refused(lambda: live.get("", "driver"))
    fake.fail("nvmlInitWithFlags", 0)
    assert live.get("", "driver") == "550.90.07", "tried again"
    fake.fail("nvmlDeviceGetUUID", number, 0)
    fake.fail("nvmlDeviceGetHandleByPciBusId_v2", number)
    at_handle = refused(lambda: live.get(GPU, "uuid"))
    fake.fail("nvmlDeviceGetHandleByPciBusId_v2", 0)
    for error in (at_start, at_handle, refused(lambda: live.get(GPU, "uuid"))):
        assert (error.errno, error.strerror) == (ERRORS[name][1], f"NVML: {name.replace('_', ' ').lower()}")


@pytest.mark.parametrize(
    "name", ["clocks", "power", "ecc", "mig", "nvlinks", "fabric", "event_reasons", "supported_clocks"]
)
def test_no_error_looks_like_a_value(live: LiveNvml, fake: Fake, name: str) -> None:
    """Neither in the first call of several nor in the last."""
    functions = {
        "clocks": ["ClockInfo"], "ecc": ["EccMode"], "mig": ["MigMode"], "nvlinks": ["NvLinkState"],
        "fabric": ["GpuFabricInfoV"], "event_reasons": ["CurrentClocksEventReasons"],
        "power": ["PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit"],
        "supported_clocks": ["SupportedMemoryClocks", "SupportedGraphicsClocks"],
    }[name]  # fmt: skip
    for function in functions:
        fake.fail(f"nvmlDeviceGet{function}", 16, 0)
        assert refused(lambda: live.get(GPU, name)).errno == errno.EIO
        fake.fail(f"nvmlDeviceGet{function}", 0, 0)


def test_parts_that_are_not_supported(live: LiveNvml, fake: Fake) -> None:
    fake.set(0, "power_default", None)
    fake.fail("nvmlDeviceGetEnforcedPowerLimit", 13)
    assert live.get(GPU, "power") == {**POWER, "enforced": None, "default": None}
    for key in ("power_limit", "power_min"):
        fake.set(0, key, None)
    assert refused(lambda: live.get(GPU, "power")).errno == errno.ENOTSUP
    fake.set(0, "sm_now", None)
    assert live.get(GPU, "clocks") == {"graphics": 345, "sm": None, "memory": 2619}


@pytest.mark.parametrize("number", [65535, 2**32 - 1])
def test_numbers_that_stand_for_none(live: LiveNvml, fake: Fake, number: int) -> None:
    fake.set(0, "persistence", 1)
    for key in ("power_limit", "power_max", "graphics_now", "memory"):
        fake.set(0, key, number)
    fake.set(0, "rows", f"{number} 0 0 0")
    fake.set(0, "reasons", 2**64 - 1)
    assert live.get(GPU, "power") == {"limit": None, "enforced": None, "min": 200000, "max": None, "default": 700000}
    assert live.get(GPU, "clocks")["graphics"] is None
    assert live.get(GPU, "memory") is None
    assert live.get(GPU, "event_reasons") is None
    assert live.get(GPU, "remapped_rows")["correctable"] is None


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "[Unknown Error]", "Unknown Error", "hex:", "hex:2020"])
def test_text_that_stands_for_none(live: LiveNvml, fake: Fake, text: str) -> None:
    for key in ("uuid", "serial", "name"):
        fake.set(0, key, text)
        assert live.get(GPU, key) is None


def test_names_of_garbage(live: LiveNvml, fake: Fake) -> None:
    """A corrupted inforom: bytes that are no UTF-8, quotes and line ends reach us as one text."""
    fake.set(0, "name", "hex:4e56ff0a22b0")
    assert live.get(GPU, "name") == 'NV\ufffd\n"\ufffd'
    assert live.get(GPU, "serial") == H800["serial"]


def test_a_name_that_is_too_long(live: LiveNvml, fake: Fake) -> None:
    """NVML gives no part of it."""
    fake.set(0, "name", "x" * 200)
    assert refused(lambda: live.get(GPU, "name")).errno == errno.EREMOTEIO


@pytest.mark.parametrize(
    ("name", "key", "number", "what"),
    [
        ("persistence", "persistence", 7, "persistence mode"), ("compute_mode", "compute", 4, "compute mode"),
        ("compute_mode", "compute", 1, "compute mode"), ("ecc", "ecc_current", 7, "ecc mode"),
        ("ecc", "ecc_pending", 2, "ecc mode"), ("mig", "mig_current", 2, "mig mode"),
        ("mig", "mig_pending", 9, "mig mode"), ("fabric", "fabric_state", 9, "fabric state"),
        ("fabric", "fabric_state", 255, "fabric state"), ("fabric", "fabric_summary", 4, "fabric health"),
        ("nvlinks", "link:0", 3, "link state"), ("nvlinks", "link:7", 3, "link state"),
    ],
)  # fmt: skip
def test_numbers_that_no_header_knows(live: LiveNvml, fake: Fake, name: str, key: str, number: int, what: str) -> None:
    """An answer that we cannot make sense of, and not one that there is not. Compute mode 1 was exclusive thread."""
    live.get("", "driver")
    fake.set(0, key, number)
    error = refused(lambda: live.get(GPU, name))
    assert (error.errno, error.strerror) == (errno.EBADMSG, f"NVML: unknown value {number} of {what}")
    assert live.get(ADDRESSES[1], name) == H800[name]


@pytest.mark.parametrize(("key", "name"), [("persistence", "persistence"), ("compute", "compute_mode")])
def test_a_mode_that_stands_for_none(live: LiveNvml, fake: Fake, key: str, name: str) -> None:
    """NVML_VALUE_NOT_AVAILABLE is not supported."""
    live.get("", "driver")
    fake.set(0, key, 2**32 - 1)
    assert live.get(GPU, name) is None


def test_the_health_of_a_fabric_that_is_not_complete_means_nothing(live: LiveNvml, fake: Fake) -> None:
    fake.set(0, "fabric_state", 2)
    fake.set(0, "fabric_summary", 9)
    assert live.get(GPU, "fabric") == {"state": "in_progress", "status": None, "health": None}


def test_the_structure_of_the_fabric_is_that_of_the_header() -> None:
    """nvml.h, nvmlGpuFabricInfo_v3_t; go-nvml types_gen.go has State uint8 and three bytes of nobody behind it."""
    import pynvml

    theirs = pynvml.c_nvmlGpuFabricInfo_v3_t
    names = ("version", "clusterUuid", "status", "cliqueId", "state", "healthMask", "healthSummary")
    ours = [getattr(FabricInfo, name).offset for name, *_ in FabricInfo._fields_]
    assert ours == [getattr(theirs, name).offset for name in names] == [0, 4, 20, 24, 28, 32, 36]
    assert ctypes.sizeof(FabricInfo) == ctypes.sizeof(theirs) == 0x28
    assert FabricInfo.state.size == 1


def test_a_driver_before_535(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the functions with the newer names, and says nothing of the fabric's health."""
    fake = Fake(tmp_path / "old", old=True)
    fake.use(monkeypatch)
    fake.set(0, "reasons", 0x44)
    nvml = LiveNvml()
    assert nvml.get(GPU, "event_reasons") == 0x44
    assert nvml.get(GPU, "fabric") == {"state": "completed", "status": "SUCCESS", "health": None}
    nvml.close()


OLD_BINDING = """
import pynvml, runpy
for name in [n for n in vars(pynvml) if "FabricInfo_v" in n or "FabricInfoV" in n or "EventReasons" in n]:
    delattr(pynvml, name)
class Wrong(pynvml.Structure):
    _fields_ = [("clusterUuid", pynvml.c_char * 80), ("status", pynvml.c_uint), ("partitionId", pynvml.c_uint32),
                ("state", pynvml.c_uint)]
pynvml.c_nvmlGpuFabricInfo_t = Wrong
pynvml.NVML_NVLINK_MAX_LINKS = 18
runpy.run_path(CHILD, run_name="__main__")
"""
"""As nvidia-ml-py 12.535 is: no newer names, and a structure that is longer than that of nvml.h."""


def test_an_old_binding(fake: Fake) -> None:
    """It cannot ask for all, but what it answers is right: a state read past its place would be `not_supported`."""
    fake.set(0, "reasons", 0x44)
    nvml = LiveNvml(command=[sys.executable, "-I", "-c", f"CHILD = {CHILD!r}\n{OLD_BINDING}"])
    assert nvml.get(GPU, "event_reasons") == 0x44
    assert nvml.get(GPU, "fabric") == {"state": "completed", "status": "SUCCESS", "health": None}
    assert nvml.get(GPU, "nvlinks") == ["active"] * 8
    nvml.close()


FOREIGN = """
import pynvml, runpy
new = ("Fabric", "EventReasons", "NvLink", "NVLINK", "RemappedRows", "MigMode", "LockedClocks")
for name in [n for n in vars(pynvml) if any(part in n for part in new)]:
    delattr(pynvml, name)
def bare(ask):
    return lambda *words: ask(*words).encode()
for name in ("SystemGetDriverVersion", "DeviceGetUUID", "DeviceGetName", "DeviceGetSerial"):
    setattr(pynvml, "nvml" + name, bare(getattr(pynvml, "nvml" + name)))
runpy.run_path(CHILD, run_name="__main__")
"""
"""As nvidia-ml-py3 is (nicolargo/nvidia-ml-py3, pynvml.py): of 2017, and its names are bytes."""


@pytest.fixture
def foreign(fake: Fake) -> Iterator[LiveNvml]:
    """NVML over a binding that lacks functions which the library has."""
    nvml = LiveNvml(command=[sys.executable, "-I", "-c", f"CHILD = {CHILD!r}\n{FOREIGN}"])
    yield nvml
    nvml.close()


@pytest.mark.parametrize("name", ["fabric", "nvlinks", "remapped_rows", "mig"])
def test_what_a_foreign_binding_lacks_says_nothing_of_the_driver(foreign: LiveNvml, name: str) -> None:
    assert refused(lambda: foreign.get(GPU, name)).errno == errno.ELIBBAD
    for word, value in (("gpu_clocks", [1980, 1980]), ("gpu_clocks", None), ("mem_clocks", None), ("mig", "disabled")):
        assert refused(partial(foreign.set, GPU, word, value)).errno == errno.ELIBBAD


def test_what_a_foreign_binding_has_is_right(foreign: LiveNvml, fake: Fake) -> None:
    fake.set(0, "reasons", 0x44)
    for name in ("uuid", "serial", "name", "persistence", "ecc", "power", "clocks", "supported_clocks"):
        assert foreign.get(GPU, name) == H800[name]
    assert foreign.get("", "driver") == H800["driver"]
    assert foreign.get(GPU, "event_reasons") == 0x44


@pytest.mark.parametrize("name", ["fabric", "event_reasons"])
def test_the_older_way_of_a_foreign_binding_may_be_gone_from_the_driver(fake: Fake, name: str) -> None:
    """The driver has the newer one, so that it is not too old: nvmlDeviceGetGpuFabricInfo goes with CUDA 14."""
    fake.fail("nvmlDeviceGetGpuFabricInfo", 13)
    fake.fail("nvmlDeviceGetCurrentClocksThrottleReasons", 13)
    nvml = LiveNvml(command=[sys.executable, "-I", "-c", f"CHILD = {CHILD!r}\n{OLD_BINDING}"])
    assert refused(lambda: nvml.get(GPU, name)).errno == errno.ELIBBAD
    nvml.close()


@pytest.mark.parametrize(
    ("name", "functions"),
    [("fabric", ["GpuFabricInfoV", "GpuFabricInfo"]), ("mig", ["MigMode"]), ("remapped_rows", ["RemappedRows"]),
     ("event_reasons", ["CurrentClocksEventReasons", "CurrentClocksThrottleReasons"])],
)  # fmt: skip
def test_what_the_library_lacks_is_a_driver_that_is_too_old(
    live: LiveNvml, fake: Fake, name: str, functions: list[str]
) -> None:
    """Whatever the binding has: it raises this error itself where the library has no such symbol."""
    for function in functions:
        fake.fail(f"nvmlDeviceGet{function}", 13)
    assert refused(lambda: live.get(GPU, name)).errno == errno.ENOSYS


def test_structures_that_are_all_too_old_for_a_driver(live: LiveNvml, fake: Fake) -> None:
    """It is newer than we are, not too old."""
    fake.set(None, "fabric_newest", 1)
    fake.fail("nvmlDeviceGetGpuFabricInfo", 13)
    error = refused(lambda: live.get(GPU, "fabric"))
    assert (error.errno, error.strerror) == (errno.EREMOTEIO, "NVML: argument version mismatch")


@pytest.mark.parametrize(("newest", "health"), [(3, "limited"), (2, None), (1, None)])
def test_fabric_structures(live: LiveNvml, fake: Fake, newest: int, health: str | None) -> None:
    """A driver refuses structures that are newer than it; health came with the third."""
    fake.set(None, "fabric_newest", newest)
    if newest > 1:
        fake.fail("nvmlDeviceGetGpuFabricInfo", 13)  # the function without a version is to be removed
    fake.set(0, "fabric_summary", 3)
    assert live.get(GPU, "fabric") == {"state": "completed", "status": "SUCCESS", "health": health}


@pytest.mark.parametrize(
    ("state", "word", "status"),
    [
        (0, "not_supported", None),
        (1, "not_started", None),
        (2, "in_progress", None),
        (3, "completed", "IN_USE"),
    ],
)
def test_fabric_states(live: LiveNvml, fake: Fake, state: int, word: str, status: str | None) -> None:
    """State 2 with a stopped fabric manager: NVIDIA/DCGM#120. The status counts once the state is completed."""
    fake.set(0, "fabric_state", state)
    fake.set(0, "fabric_status", 19)
    fake.set(0, "fabric_summary", 0)
    assert live.get(GPU, "fabric") == {"state": word, "status": status, "health": None}


def test_links(live: LiveNvml, fake: Fake) -> None:
    """One down, one that a board does not wire; none at all on a PCIe card; 18 on an H100."""
    fake.set(0, "link:3", 0)
    fake.set(0, "link:5", 2)
    assert live.get(GPU, "nvlinks") == [*["active"] * 3, "inactive", "active", None, "active", "active"]
    fake.set(1, "links", 0)
    assert live.get(ADDRESSES[1], "nvlinks") == []
    fake.set(2, "links", 18)
    assert live.get(ADDRESSES[2], "nvlinks") == ["active"] * 18


def test_rows(live: LiveNvml, fake: Fake) -> None:
    fake.set(0, "rows", "3 1 1 0")
    assert live.get(GPU, "remapped_rows") == {"correctable": 3, "uncorrectable": 1, "pending": True, "failure": False}


def test_enforced_below_the_limit(live: LiveNvml, fake: Fake) -> None:
    """A limit from outside, such as the chassis' own."""
    fake.set(0, "power_cap", 450000)
    assert live.get(GPU, "power")["enforced"] == 450000
    assert live.get(GPU, "power")["limit"] == 700000


def test_mig_waits_for_a_reset_on_a100(live: LiveNvml, fake: Fake) -> None:
    root()
    fake.profile("a100-40")
    assert live.set(GPU, "mig", "enabled") == "RESET_REQUIRED"
    assert live.get(GPU, "mig") == {"current": "disabled", "pending": "enabled"}
    fake.reset(0)
    assert live.get(GPU, "mig") == {"current": "enabled", "pending": "enabled"}
    fake.reboot()
    assert live.get(GPU, "mig") == {"current": "enabled", "pending": "enabled"}


def test_mig_of_a_gpu_in_use(live: LiveNvml, fake: Fake) -> None:
    """The call succeeds; whether the mode is active stands in its status alone."""
    root()
    fake.set(0, "mig_busy", 1)
    assert live.set(GPU, "mig", "enabled") == "IN_USE"
    assert live.get(GPU, "mig") == {"current": "disabled", "pending": "enabled"}


def test_ecc_waits_for_a_reset(live: LiveNvml, fake: Fake) -> None:
    root()
    live.set(GPU, "ecc", "disabled")
    fake.reload_driver()
    assert live.get(GPU, "ecc") == {"current": "enabled", "pending": "disabled"}
    fake.reboot()
    assert live.get(GPU, "ecc") == {"current": "disabled", "pending": "disabled"}


def test_another_process_sees_it(live: LiveNvml) -> None:
    root()
    live.set(GPU, "power", 450000)
    other = LiveNvml()
    assert other.get(GPU, "power")["limit"] == 450000
    other.set(GPU, "gpu_clocks", [1200, 1200])
    assert live.get(GPU, "clocks")["sm"] == 1200
    other.close()
    assert live.get(GPU, "clocks")["sm"] == 1200, "somebody still holds the GPU"


@pytest.mark.parametrize(("persistence", "kept"), [("enabled", True), ("disabled", False)])
def test_what_the_last_client_leaves(live: LiveNvml, persistence: str, kept: bool) -> None:
    """Without persistence mode the driver forgets locks and limits with its last client, which we may have been."""
    root()
    live.set(GPU, "persistence", persistence)
    live.set(GPU, "gpu_clocks", [1200, 1200])
    live.set(GPU, "power", 450000)
    live.close()
    assert live.get(GPU, "clocks")["sm"] == (1200 if kept else 345)
    assert live.get(GPU, "power")["limit"] == (450000 if kept else 700000)


def test_a_driver_reload_forgets(live: LiveNvml, fake: Fake) -> None:
    root()
    for name, value in (("persistence", "enabled"), ("gpu_clocks", [1200, 1200]), ("power", 450000)):
        live.set(GPU, name, value)
    fake.reload_driver()
    assert live.get(GPU, "persistence") == "disabled"
    assert live.get(GPU, "clocks") == H800["clocks"]
    assert live.get(GPU, "power") == H800["power"]


def test_a_lost_gpu(live: LiveNvml, fake: Fake) -> None:
    """Before and after we first spoke to it; the others go on."""
    fake.lose(7)
    assert live.get("", "gpus") == list(ADDRESSES[:7])
    fake.lose(3)
    for name in set(GETS) - {"driver", "gpus"}:
        assert refused(partial(live.get, ADDRESSES[3], name)).errno == errno.ENODEV
    for name, value, *_ in CHANGES:
        assert refused(partial(live.set, ADDRESSES[3], name, value)).errno == errno.ENODEV
    assert live.get("", "gpus") == [address for address in ADDRESSES if address not in (ADDRESSES[3], ADDRESSES[7])]
    assert live.get(ADDRESSES[4], "uuid") == "GPU-00000000-1111-2222-3333-000000000004"


# --- who may --------------------------------------------------------------------------------------------------------


def test_root_that_is_none(live: LiveNvml, fake: Fake) -> None:
    fake.deny()
    for name, value, asked, _ in CHANGES:
        before = live.get(GPU, asked)
        assert refused(partial(live.set, GPU, name, value)).errno == errno.EPERM
        assert live.get(GPU, asked) == before


def test_another_user(fake: Fake) -> None:
    """It may read, as everybody; CAP_DAC_OVERRIDE lets it read this repository, wherever that lies."""
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    if os.geteuid() != 0 or setpriv is None:
        unavailable("root and setpriv are needed to become another user")
    code = (
        "from tuner.host.nvml_live import LiveNvml\n"
        f"nvml = LiveNvml()\nprint(nvml.get({GPU!r}, 'uuid'))\n"
        f"try: nvml.set({GPU!r}, 'power', 450000)\nexcept OSError as error: print(error.errno)\n"
    )
    words = [str(setpriv), "--reuid=65534", "--regid=65534", "--clear-groups"]
    words += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", sys.executable, "-c", code]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [H800["uuid"], str(errno.EPERM)], done.stderr


# --- no library -----------------------------------------------------------------------------------------------------


def test_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ctypes.util.find_library("nvidia-ml"):
        unavailable("this machine has an NVIDIA driver")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    nvml = LiveNvml()
    assert refused(lambda: nvml.get("", "gpus")).errno == errno.ELIBACC
    assert refused(lambda: nvml.set(GPU, "power", 1)).errno == errno.ELIBACC
    nvml.close()


@pytest.mark.parametrize("content", [b"", b"no ELF", b"\x7fELF" + bytes(2000)])
def test_a_broken_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(content)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    nvml = LiveNvml()
    assert refused(lambda: nvml.get("", "gpus")).errno == errno.ELIBACC
    nvml.close()


def test_no_binding(fake: Fake) -> None:
    """Python without site-packages, and so without nvidia-ml-py."""
    nvml = LiveNvml(command=[sys.executable, "-I", "-S", CHILD])
    for ask in (lambda: nvml.get("", "gpus"), lambda: nvml.set(GPU, "power", 500000)):
        error = refused(ask)
        assert (error.errno, error.strerror) == (errno.ENOPKG, "NVML: binding not found")
    nvml.close()


@pytest.mark.parametrize(
    ("text", "number"),
    [("raise RuntimeError('half installed')", errno.ENOPKG), ("import no_such_part", errno.ENOPKG),
     ("def (", errno.ENOPKG), ("", errno.ELIBBAD), ("def nvmlShutdown(): ...", errno.ELIBBAD)],
)  # fmt: skip
def test_a_pynvml_that_is_none(fake: Fake, tmp_path: Path, text: str, number: int) -> None:
    """What fails to be imported, whatever the reason, and a module that only has the name."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/pynvml.py").write_text(f"{text}\n")
    code = f"import runpy, sys; sys.path.insert(0, {str(tmp_path / 'other')!r}); "
    nvml = LiveNvml(command=[sys.executable, "-I", "-c", code + f"runpy.run_path({CHILD!r}, run_name='__main__')"])
    assert refused(lambda: nvml.get(GPU, "uuid")).errno == number
    nvml.close()


def test_a_python_that_is_not_there() -> None:
    nvml = LiveNvml(command=["/no/such/python"])
    for _ in range(3):
        error = refused(lambda: nvml.get("", "gpus"))
        assert error.errno == errno.EREMOTEIO
        assert "cannot be started: No such file" in str(error)


# --- hangs ----------------------------------------------------------------------------------------------------------


def hung(nvml: LiveNvml, limit: float) -> None:
    """Both that it says so in time, and that it does so at once from then on without starting anything."""
    start = time.monotonic()
    error = refused(lambda: nvml.get(GPU, "uuid"))
    assert limit <= time.monotonic() - start < limit + SOON
    assert (error.errno, error.strerror) == (errno.ETIMEDOUT, f"NVML did not answer within {limit:g} s")
    before, start = children(), time.monotonic()
    for ask in (lambda: nvml.get("", "driver"), lambda: nvml.set(GPU, "power", 500000)):
        assert str(refused(ask)) == str(error)
    assert time.monotonic() - start < 0.5
    assert children() <= before


@pytest.mark.parametrize(
    "function",
    ["nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"],
    ids=["init", "open", "call"],
)
def test_a_hang_at_the_first_question(fake: Fake, function: str) -> None:
    fake.hang(function)
    nvml = LiveNvml(first=1, later=60)
    hung(nvml, 1)
    assert soon(lambda: reaped(nvml)), "killed and, later, reaped"


def test_a_hang_later(fake: Fake) -> None:
    """The time limits are two; what blocks every signal that can be blocked is ended all the same."""
    nvml = LiveNvml(first=60, later=1)
    assert nvml.get("", "driver") == "550.90.07"
    fake.hang("nvmlDeviceGetUUID")
    hung(nvml, 1)
    assert soon(lambda: refused(lambda: nvml.get("", "driver")) is not None and not children())


def test_a_process_that_cannot_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State D: the kill has no effect. Nobody waits for it, neither at the question nor at the end."""
    nvml = LiveNvml(first=1, command=child(tmp_path, "time.sleep(600)"))
    killed: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, number: killed.append((group, number)))
        hung(nvml, 1)
        start = time.monotonic()
        nvml.close()
        del nvml
        gc.collect()
        assert time.monotonic() - start < 5
    pid = only_child()
    assert set(killed) == {(pid, signal.SIGKILL)}
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_lock_is_free_when_we_die(fake: Fake, tmp_path: Path) -> None:
    """A process that hangs does not hold the lock of a run that was killed, and ends when it can."""
    fake.hang("nvmlDeviceGetUUID")
    code = (
        "import fcntl, os, sys\nfrom tuner.host.nvml_live import LiveNvml\n"
        f"handle = os.open({str(tmp_path / 'lock')!r}, os.O_RDWR | os.O_CREAT)\nos.set_inheritable(handle, True)\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\nnvml = LiveNvml()\nnvml.get('', 'driver')\nprint('up', flush=True)\n"
        f"nvml.get({GPU!r}, 'uuid')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=REPO, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    handle = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(0.3)
    (grandchild,) = children(parent.pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    assert soon(lambda: not alive(grandchild))


# --- processes that die or lie ----------------------------------------------------------------------------------------


def test_a_crash_is_no_verdict_on_the_next(fake: Fake) -> None:
    fake.crash("nvmlDeviceGetUUID")
    nvml = LiveNvml()
    error = refused(lambda: nvml.get(GPU, "uuid"))
    assert error.errno == errno.EREMOTEIO
    assert "ended by signal 11" in str(error)
    assert nvml.get("", "driver") == "550.90.07"
    fake.crash("")
    assert nvml.get(GPU, "uuid") == H800["uuid"]
    nvml.close()


def test_two_crashes_are(fake: Fake) -> None:
    """The third question starts nothing."""
    fake.crash("nvmlInitWithFlags")
    nvml = LiveNvml()
    errors = [refused(lambda: nvml.get("", "driver")) for _ in range(2)]
    fake.crash("")
    errors += [refused(lambda: nvml.get("", "driver")) for _ in range(3)]
    assert {error.errno for error in errors} == {errno.EREMOTEIO}
    assert children() == set()


def test_killed_between_questions(live: LiveNvml) -> None:
    """By the memory limit, for example."""
    assert live.get("", "driver") == "550.90.07"
    os.kill(only_child(), signal.SIGKILL)
    assert "ended by signal 9" in str(refused(lambda: live.get("", "driver")))
    assert live.get("", "driver") == "550.90.07"


def child(tmp_path: Path, body: str) -> list[str]:
    """A program in the place of ours: `ask` is its first question, `say` writes bytes."""
    path = tmp_path / "child.py"
    path.write_text(
        "import json, os, sys, time\nsay = lambda data: os.write(1, data)\n"
        "ask = json.loads(sys.stdin.buffer.readline())\n" + body + "\n"
    )
    return [sys.executable, "-I", str(path)]


def answered(line: str) -> str:
    """The body of a program that answers with this line, and then waits."""
    return f"say({line.encode()!r} + b'\\n'); time.sleep(60)"


@pytest.mark.parametrize(
    "body",
    [
        r"say(b'\xff\x00garbage\n')", r"say(b'\n')", r"say(b'[]\n')", r"say(b'{}\n')",
        answered('{"id": 1}'), answered('{"id": 2, "ok": 1}'), answered('{"id": "1", "ok": 1}'),
        answered('{"id": true, "ok": 1}'), answered('{"id": 1, "error": 3}'),
        answered('{"id": 1, "ok": 1, "error": "NOT_FOUND"}'), answered("[" * 100000), r"say(b'{')",
        "os._exit(3)", "os.close(1); time.sleep(60)", "while True: say(b'x' * 65536)",
    ],
)  # fmt: skip
def test_what_is_no_answer(tmp_path: Path, body: str) -> None:
    nvml = LiveNvml(command=child(tmp_path, body), first=60)
    start = time.monotonic()
    for _ in range(3):
        assert refused(lambda: nvml.get("", "driver")).errno == errno.EREMOTEIO
    assert time.monotonic() - start < SOON
    nvml.close()
    assert soon(lambda: reaped(nvml))


@given(st.one_of(st.binary(), st.builds(lambda value: json.dumps(value).encode(), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.sampled_from(["id", "ok", "error", "x"]), inner)),
))))  # fmt: skip
def test_any_line_is_an_answer_or_refused(line: bytes) -> None:
    """What is believed has the number of a question that was asked, and either a value or the name of an error."""
    try:
        said = read_answer(line, 5)
    except Died:
        return
    assert said["id"] <= 5
    assert ("ok" in said) != isinstance(said.get("error"), str)


def test_an_answer_in_parts(tmp_path: Path) -> None:
    body = 'for byte in b\'{"id": 1, "ok": "550.90.07"}\\n\': say(bytes([byte])); time.sleep(0.01)\ntime.sleep(60)'
    nvml = LiveNvml(command=child(tmp_path, body))
    assert nvml.get("", "driver") == "550.90.07"
    nvml.close()


def test_parts_without_end(tmp_path: Path) -> None:
    """The time limit is for the answer, not for each byte of it."""
    nvml = LiveNvml(command=child(tmp_path, "while True: say(b' '); time.sleep(0.05)"), first=1)
    hung(nvml, 1)
    nvml.close()


def test_nobody_reads_the_questions(tmp_path: Path) -> None:
    """A process that was stopped: the pipe takes the question, the answer does not come."""
    nvml = LiveNvml(command=child(tmp_path, "import signal; os.kill(os.getpid(), signal.SIGSTOP)"), first=2)
    hung(nvml, 2)
    assert soon(lambda: reaped(nvml))


def test_a_question_that_was_broken_off(tmp_path: Path) -> None:
    """Ctrl-C while the driver works: its answer, which comes later, is not taken for that to the next question."""
    body = (
        "time.sleep(1); say(json.dumps({'id': ask['id'], 'ok': 'late'}).encode() + b'\\n')\n"
        "ask = json.loads(sys.stdin.buffer.readline())\n"
        "say(json.dumps({'id': ask['id'], 'ok': 'next'}).encode() + b'\\n'); time.sleep(60)"
    )
    nvml = LiveNvml(command=child(tmp_path, body))

    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, break_off)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            nvml.get("", "driver")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert nvml.get("", "driver") == "next"
    nvml.close()


def test_what_the_library_prints_is_no_answer(live: LiveNvml, fake: Fake) -> None:
    fake.set(None, "noise", "nvmlDeviceGetUUID")
    assert [live.get(GPU, "uuid") for _ in range(3)] == [H800["uuid"]] * 3


# --- what it leaves behind --------------------------------------------------------------------------------------------


def test_the_process_gets_nothing_of_ours(live: LiveNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No environment but PATH, HOME and the loader's, no open file, no session, and the C locale."""
    monkeypatch.setenv("SECRET", "hidden")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    handle = os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(handle, True)
    live.get("", "driver")
    process = Path(f"/proc/{only_child()}")
    names = {item.partition(b"=")[0].decode() for item in (process / "environ").read_bytes().split(b"\0") if item}
    assert {"PATH", "LD_LIBRARY_PATH", "LC_ALL"} <= names <= {"PATH", "HOME", "LD_LIBRARY_PATH", "LC_ALL"}
    assert b"LC_ALL=C\0" in (process / "environ").read_bytes()
    assert str(tmp_path / "ours") not in [os.readlink(link) for link in (process / "fd").iterdir()]
    assert os.getsid(int(process.name)) == int(process.name)
    assert [word.decode() for word in (process / "cmdline").read_bytes().split(b"\0")[1:3]] == ["-I", CHILD]
    os.close(handle)


@pytest.fixture
def left_behind(fake: Fake) -> Iterator[int]:
    """A process that asked NVML for a tuner that is gone, and that does not end: a stopped one, as one in state D."""
    gone = subprocess.Popen(["true"])
    name = f"{gone.pid}.{Path(f'/proc/{gone.pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    gone.wait()
    words = [sys.executable, "-I", CHILD, name]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        process.send_signal(signal.SIGSTOP)
        assert soon(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().endswith(f"{name}\0".encode()))
        yield process.pid
        process.kill()


def test_a_driver_that_hangs_gets_no_second_process(left_behind: int) -> None:
    """A check before each job would otherwise leave one more behind with every job."""
    nvml, before = LiveNvml(), children()
    error = refused(lambda: nvml.get(GPU, "uuid"))
    assert error.errno == errno.ETIMEDOUT
    assert str(left_behind) in str(error)
    assert children() == before


def test_a_process_whose_asker_lives_is_no_hindrance(fake: Fake) -> None:
    """Two runs at once, and one that has just gone."""
    one, other = LiveNvml(), LiveNvml()
    assert one.get("", "driver") == other.get("", "driver")
    code = "import os; from tuner.host.nvml_live import LiveNvml; LiveNvml().get('', 'driver'); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], cwd=REPO, timeout=60, check=True)
    third = LiveNvml()
    assert third.get("", "driver") == other.get("", "driver")
    for nvml in (one, other, third):
        nvml.close()


def handles() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_no_handle_and_no_process_is_left(fake: Fake) -> None:
    """After a close, a crash and a hang; and a close does not use up the attempts after a death."""
    before = handles()
    nvml = LiveNvml()
    for _ in range(4):
        assert nvml.get("", "driver") == "550.90.07"
        nvml.close()
    assert handles() == before
    assert children() == set()
    fake.crash("nvmlDeviceGetUUID")
    refused(lambda: nvml.get(GPU, "uuid"))
    assert handles() == before
    fake.crash("")
    assert nvml.get(GPU, "uuid") == H800["uuid"]
    nvml.close()
    hanging = LiveNvml(first=1)
    fake.hang("nvmlDeviceGetUUID")
    refused(lambda: hanging.get(GPU, "uuid"))
    assert handles() == before
    assert soon(lambda: reaped(hanging))


def test_dropped_without_a_close(fake: Fake) -> None:
    before = handles()
    nvml = LiveNvml()
    nvml.get("", "driver")
    del nvml
    assert handles() == before
    assert children() == set()


@pytest.mark.parametrize("function", ["", "nvmlDeviceGetUUID"], ids=["idle", "hung"])
def test_the_end_of_the_program(fake: Fake, function: str) -> None:
    """Prompt, silent, and with the process gone, whether it was idle or had hung."""
    fake.hang(function)
    code = (
        "import os\nfrom tuner.host.nvml_live import LiveNvml\n"
        "nvml = LiveNvml(first=1, later=1)\n"
        "nvml.get('', 'driver')\nprint(os.getpgid(nvml._child.process.pid))\n"
        f"try: nvml.get({GPU!r}, 'uuid')\nexcept OSError: pass\n"
    )
    words = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (pid,) = map(int, done.stdout.split())
    assert soon(lambda: not alive(pid))


def test_a_copy_of_us_asks_by_itself(live: LiveNvml) -> None:
    """fork(2): two processes on one pipe would get each other's answers; and the copy's end is not ours."""
    assert live.get(GPU, "uuid") == H800["uuid"]
    copy = os.fork()
    if copy == 0:
        code = 1
        try:
            live.close()
            code = 0 if live.get(ADDRESSES[1], "uuid") == "GPU-00000000-1111-2222-3333-000000000001" else 2
            live.close()
        finally:
            os._exit(code)
    assert live.get(ADDRESSES[2], "uuid") == "GPU-00000000-1111-2222-3333-000000000002"
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    assert live.get(GPU, "uuid") == H800["uuid"]


def test_a_copy_of_us_that_asks_at_once(live: LiveNvml) -> None:
    """It does not write into the pipe of the process that we go on with."""
    assert live.get(GPU, "uuid") == H800["uuid"]
    copy = os.fork()
    if copy == 0:
        code = 1
        try:
            right = live.get(ADDRESSES[1], "uuid") == "GPU-00000000-1111-2222-3333-000000000001"
            code = 0 if right and len(children()) == 1 else 2
        finally:
            live.close()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    assert live.get(ADDRESSES[2], "uuid") == "GPU-00000000-1111-2222-3333-000000000002"
