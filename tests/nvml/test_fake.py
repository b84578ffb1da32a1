"""The stand-in itself refuses what nvml.h says that the library refuses, so that a mistake of ours does not pass it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unavailable
from tests.nvml import LIBRARY, Fake

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
INSUFFICIENT_SIZE, GPU_IS_LOST, ARGUMENT_VERSION_MISMATCH = 7, 15, 25

SETTERS: dict[str, tuple[int, ...]] = {
    "nvmlDeviceSetPersistenceMode": (1,),
    "nvmlDeviceSetComputeMode": (0,),
    "nvmlDeviceSetGpuLockedClocks": (345, 1980),
    "nvmlDeviceResetGpuLockedClocks": (),
    "nvmlDeviceSetMemoryLockedClocks": (1593, 2619),
    "nvmlDeviceResetMemoryLockedClocks": (),
    "nvmlDeviceSetPowerManagementLimit": (500000,),
    "nvmlDeviceSetEccMode": (1,),
    "nvmlDeviceSetMigMode": (1,),
}

GETTERS = {
    "nvmlDeviceGetPersistenceMode": 1, "nvmlDeviceGetComputeMode": 1, "nvmlDeviceGetPowerManagementLimit": 1,
    "nvmlDeviceGetPowerManagementDefaultLimit": 1, "nvmlDeviceGetPowerManagementLimitConstraints": 2,
    "nvmlDeviceGetEnforcedPowerLimit": 1, "nvmlDeviceGetEccMode": 2, "nvmlDeviceGetMigMode": 2,
    "nvmlDeviceGetRemappedRows": 4, "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 1, "nvmlDeviceGetPciInfo_v3": 1, "nvmlDeviceGetMemoryInfo": 1,
    "nvmlDeviceGetGpuFabricInfo": 1, "nvmlDeviceGetGpuFabricInfoV": 1,
}  # fmt: skip
"""Functions of a handle and so many places for answers."""


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "nvml")


@pytest.fixture
def raw(fake: Fake) -> Any:
    """The library, not yet initialised."""
    return ctypes.CDLL(str(fake.path))


@pytest.fixture
def handle(raw: Any) -> c_void_p:
    """The first GPU, after nvmlInit."""
    assert raw.nvmlInitWithFlags(0) == 0
    found = c_void_p()
    assert raw.nvmlDeviceGetHandleByIndex_v2(0, byref(found)) == 0
    return found


def words(function: str) -> list[Any]:
    """Arguments after the handle that are right."""
    if function in SETTERS:
        status = [byref(c_uint())] if function == "nvmlDeviceSetMigMode" else []
        return [*map(c_uint, SETTERS[function]), *status]
    room = (c_uint * 128)(0x03000028)  # nvmlGpuFabricInfo_v3, for the one that looks
    return [byref(room)] + [byref(c_uint()) for _ in range(GETTERS[function] - 1)]


def test_its_name_is_what_the_loader_looks_for(fake: Fake) -> None:
    assert fake.path.name == LIBRARY
    assert LIBRARY.encode() + b"\0" in fake.path.read_bytes(), "the soname"


@pytest.mark.parametrize("function", [*SETTERS, *GETTERS])
def test_handles(raw: Any, fake: Fake, function: str) -> None:
    """Nothing before nvmlInit, nothing for NULL, for a pointer of somebody else's, beside a GPU, or after the last."""
    call: Callable[..., int] = getattr(raw, function)
    assert call(c_void_p(), *words(function)) == UNINITIALIZED
    assert raw.nvmlInitWithFlags(0) == 0
    first, last = c_void_p(), c_void_p()
    assert raw.nvmlDeviceGetHandleByIndex_v2(0, byref(first)) == 0
    assert raw.nvmlDeviceGetHandleByIndex_v2(7, byref(last)) == 0
    assert first.value is not None and last.value is not None
    foreign = create_string_buffer(64)
    step = (last.value - first.value) // 7
    for wrong in (None, ctypes.addressof(foreign), first.value + 1, first.value - step, last.value + step):
        assert call(c_void_p(wrong), *words(function)) == INVALID_ARGUMENT
    if os.geteuid() == 0 or function in GETTERS:
        assert call(first, *words(function)) == 0
    fake.lose(0)
    assert call(first, *words(function)) == GPU_IS_LOST
    assert raw.nvmlShutdown() == 0
    assert call(last, *words(function)) == UNINITIALIZED


@pytest.mark.parametrize("function", GETTERS)
def test_no_place_for_an_answer(raw: Any, handle: c_void_p, function: str) -> None:
    good = words(function)
    for missing in range(len(good)):
        places = [c_void_p() if number == missing else word for number, word in enumerate(good)]
        assert getattr(raw, function)(handle, *places) == INVALID_ARGUMENT


def test_places_of_the_system(raw: Any, handle: c_void_p) -> None:
    null = c_void_p()
    assert raw.nvmlDeviceGetCount_v2(null) == INVALID_ARGUMENT
    assert raw.nvmlSystemGetDriverVersion(null, 80) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetHandleByIndex_v2(0, null) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetHandleByIndex_v2(8, byref(c_void_p())) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(null, byref(c_void_p())) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(c_char_p(b"00000000:1B:00.0"), null) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(c_char_p(b"00000000:1C:00.0"), byref(c_void_p())) == NOT_FOUND
    assert raw.nvmlDeviceSetMigMode(handle, 1, null) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetNvLinkState(handle, 0, null) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetNvLinkState(handle, 18, byref(c_uint())) == INVALID_ARGUMENT
    assert raw.nvmlDeviceGetNvLinkState(handle, 8, byref(c_uint())) == NOT_SUPPORTED
    assert raw.nvmlDeviceGetClockInfo(handle, 9, byref(c_uint())) == INVALID_ARGUMENT


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetSerial", "nvmlDeviceGetName"])
def test_a_buffer_that_is_too_small(raw: Any, handle: c_void_p, function: str) -> None:
    """One byte less than text and its end is refused, and nothing is written."""
    room = create_string_buffer(96)
    call = getattr(raw, function)
    assert call(handle, room, 96) == 0
    size = len(room.value) + 1
    small = create_string_buffer(b"x" * 95)
    assert call(handle, small, size - 1) == INSUFFICIENT_SIZE
    assert small.value == b"x" * 95
    assert call(handle, small, size) == 0
    assert small.value == room.value


def test_supported_clocks_in_two_steps(raw: Any, handle: c_void_p) -> None:
    """First the number, with INSUFFICIENT_SIZE; then the clocks; too small a place is refused and told the number."""
    room = c_uint(0)
    assert raw.nvmlDeviceGetSupportedMemoryClocks(handle, byref(room), None) == INSUFFICIENT_SIZE
    assert room.value == 2
    clocks = (c_uint * 2)()
    assert raw.nvmlDeviceGetSupportedMemoryClocks(handle, byref(room), clocks) == 0
    assert list(clocks) == [2619, 1593]
    room = c_uint(5)
    some = (c_uint * 110)()
    assert raw.nvmlDeviceGetSupportedGraphicsClocks(handle, 2619, byref(room), some) == INSUFFICIENT_SIZE
    assert (room.value, some[0]) == (110, 0)
    assert raw.nvmlDeviceGetSupportedGraphicsClocks(handle, 2619, byref(room), some) == 0
    assert (some[0], some[109]) == (1980, 345)
    assert raw.nvmlDeviceGetSupportedGraphicsClocks(handle, 2600, byref(room), some) == NOT_FOUND


def test_structures_say_their_version(raw: Any, handle: c_void_p) -> None:
    room = (c_uint * 32)()
    for word in (0, 0x02000024 + 1, 0x01000024, 0x02000028, 0x03000024, 0x04000028, 40):
        room[0] = word
        assert raw.nvmlDeviceGetGpuFabricInfoV(handle, byref(room)) == ARGUMENT_VERSION_MISMATCH
    for word, size in ((0x02000024, 36), (0x03000028, 40)):
        room = (c_uint * 32)(word, *[0xEEEEEEEE] * 31)
        assert raw.nvmlDeviceGetGpuFabricInfoV(handle, byref(room)) == 0
        assert (room[7] & 0xFF, room[8]) == (3, 0), "a state of one byte, and the mask at the next place for four"
        assert room[7] >> 8 != 0, "what is nobody's is not 0"
        assert list(room[size // 4 :]) == [0xEEEEEEEE] * (32 - size // 4), "it writes nothing behind the structure"


def test_symbols_and_clocks_do_not_mix(raw: Any, handle: c_void_p) -> None:
    """NVML_CLOCK_LIMIT_ID_TDP and _UNLIMITED go together, never with MHz."""
    if os.geteuid() != 0:
        unavailable("root is needed: the driver refuses setters to others")
    lock = raw.nvmlDeviceSetGpuLockedClocks
    assert lock(handle, c_uint(0xFFFFFF01), c_uint(0xFFFFFF02)) == 0
    assert lock(handle, c_uint(345), c_uint(0xFFFFFF02)) == INVALID_ARGUMENT
    assert lock(handle, c_uint(1980), c_uint(1980)) == 0


@pytest.fixture
def public() -> Iterator[Fake]:
    """In a folder that every user can reach: the driver is there for all."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Fake(Path(folder, "nvml"))


@pytest.mark.parametrize("function", SETTERS)
def test_setters_are_for_root(public: Fake, function: str) -> None:
    """By the user in force, and by what a container was given."""
    raw, handle = ctypes.CDLL(str(public.path)), c_void_p()
    assert raw.nvmlInitWithFlags(0) == 0
    assert raw.nvmlDeviceGetHandleByIndex_v2(0, byref(handle)) == 0
    call, user = getattr(raw, function), os.geteuid()
    if user != 0:
        assert call(handle, *words(function)) == NO_PERMISSION
        return
    os.seteuid(65534)
    try:
        result = call(handle, *words(function))
    finally:
        os.seteuid(user)
    assert result == NO_PERMISSION
    assert call(handle, *words(function)) == 0
    public.deny()
    assert call(handle, *words(function)) == NO_PERMISSION


def test_initialised_as_often_as_shut_down(raw: Any) -> None:
    version = create_string_buffer(80)
    assert raw.nvmlShutdown() == UNINITIALIZED
    assert raw.nvmlInit_v2() == raw.nvmlInitWithFlags(0) == 0
    assert raw.nvmlShutdown() == 0
    assert raw.nvmlSystemGetDriverVersion(version, 80) == 0
    assert raw.nvmlShutdown() == 0
    assert raw.nvmlSystemGetDriverVersion(version, 80) == UNINITIALIZED
    assert raw.nvmlInitWithFlags(c_uint(1 << 31)) == INVALID_ARGUMENT


def test_an_old_driver_lacks_functions(tmp_path: Path) -> None:
    old = ctypes.CDLL(str(Fake(tmp_path / "old", old=True).path))
    assert old.nvmlInitWithFlags(0) == 0
    for function in ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCurrentClocksEventReasons"):
        assert not hasattr(old, function)
    mask, handle = c_ulonglong(), c_void_p()
    assert old.nvmlDeviceGetHandleByIndex_v2(0, byref(handle)) == 0
    assert old.nvmlDeviceGetCurrentClocksThrottleReasons(handle, byref(mask)) == 0
    assert mask.value == 1
