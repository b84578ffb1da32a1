"""Locked clocks of NVIDIA GPUs: what tuner remembers of them, when it no longer believes it, and which there are.

NVML has no getter for locked clocks and the driver forgets them when it is loaded again (NVML API Reference). Clocks of
an A100-SXM4-40GB: NVIDIA/nvidia-docker#1648; of an H800: NVIDIA/DCGM#120.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Result, write_profile
from tests.knobs.nvidia_host import A100_CLOCKS, GPU, H800, OTHER, UUID, Build, answers, function, let, restarted
from tuner.errors import BadValue, Refused
from tuner.host.nvml import fault
from tuner.host.recorded import RecordedHost
from tuner.knobs.base import Knob
from tuner.knobs.nvidia_clocks import RECORD, GpuClocks, MemClocks
from tuner.knobs.nvidia_modes import Persistence
from tuner.model import Absent, Seen, Unreadable, Want, met

CORE, MEMORY, KEEP = GpuClocks(), MemClocks(), Persistence()
LOCK: dict[str, Any] = {"min": 1200, "max": 1305}
BOTH = pytest.mark.parametrize(("knob", "lock"), [(CORE, LOCK), (MEMORY, {"min": 1215, "max": 1215})])


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(...) -> a recorded host with an A100."""
    return Build(tmp_path)


def unknown(host: RecordedHost, knob: Knob = CORE) -> str:
    """Why nobody can say what is locked; anything else that is read fails."""
    found = knob.read(host, GPU)
    assert isinstance(found, Unreadable) and found.fault == "no getter", found
    return found.why


def record(host: RecordedHost) -> Any:
    """The record, as it lies there."""
    return json.loads(Path(host.root + RECORD).read_text(encoding="utf-8"))


# --- values -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_number_is_both_ends(knob: Knob, lock: dict[str, Any]) -> None:
    """One clock, a range, or none."""
    assert knob.parse(GPU, "1410") == {"min": 1410, "max": 1410}
    assert knob.parse(GPU, {"min": "1200", "max": "1410"}) == {"min": 1200, "max": 1410}
    assert knob.parse(GPU, "unlocked") == "unlocked"


@pytest.mark.parametrize(
    "raw",
    [None, "", "tdp", "0", "-1", "01410", "1410.5", "1410 MHz", "65535", ["1410"], {}, {"min": "1200"}, {"max": "1410"},
     {"min": "1410", "max": "1200"}, {"min": "1", "max": "2", "level": "x"}, {"min": None, "max": "1410"}],
)  # fmt: skip
def test_what_is_no_lock(raw: Any) -> None:
    """Words of nvidia-smi (tdp, unlimited) mix with no MHz, and mean no clock that can be compared."""
    with pytest.raises(BadValue) as wrong:
        CORE.parse(GPU, raw)
    assert "MHz" in wrong.value.hint and "unlocked" in wrong.value.hint


def test_clocks_are_those_of_the_device(build: Build) -> None:
    """A100: 1410 down to 210 in steps of 15, one memory clock."""
    host = build()
    assert CORE.normalise(host, GPU, {"min": 210, "max": 1410}) == {"min": 210, "max": 1410}
    assert CORE.normalise(host, GPU, "unlocked") == "unlocked"
    assert MEMORY.normalise(host, GPU, {"min": 1215, "max": 1215}) == {"min": 1215, "max": 1215}
    with pytest.raises(BadValue, match="max 1400 MHz is no gpu clock") as wrong:
        CORE.normalise(host, GPU, {"min": 210, "max": 1400})
    assert wrong.value.hint.startswith("nearest: 1395 and 1410 ")
    with pytest.raises(BadValue, match="min 1593 MHz is no memory clock") as wrong:
        MEMORY.normalise(host, GPU, {"min": 1593, "max": 1593})
    assert wrong.value.hint.startswith("nearest: 1215 ")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4000))
def test_the_nearest_clocks_are_named(tmp_path_factory: pytest.TempPathFactory, mhz: int) -> None:
    """For whatever number: taken when it is on the list, else the two on either side, or at the end of it."""
    table = [int(clock) for clock in A100_CLOCKS["1215"]]
    host = OnePath.of(tmp_path_factory)
    if mhz in table:
        assert CORE.normalise(host, GPU, {"min": mhz, "max": mhz}) == {"min": mhz, "max": mhz}
        return
    with pytest.raises(BadValue) as wrong:
        CORE.normalise(host, GPU, {"min": mhz, "max": mhz})
    below, above = [c for c in table if c < mhz], [c for c in table if c > mhz]
    expected = [max(below), min(above)] if below and above else sorted(table)[:2] if above else sorted(table)[-2:]
    assert wrong.value.hint.startswith(f"nearest: {expected[0]} and {expected[1]} ")


class OnePath:
    """One host for all examples of a property."""

    host: RecordedHost | None = None

    @classmethod
    def of(cls, factory: pytest.TempPathFactory) -> RecordedHost:
        """Made at the first call."""
        cls.host = cls.host or Build(factory.mktemp("clocks"))()
        return cls.host


def test_graphics_clocks_are_those_of_the_highest_memory_clock_or_the_locked_one(build: Build) -> None:
    """1980 goes with the fast memory alone."""
    host = build(**H800)
    top = {"min": 1980, "max": 1980}
    assert CORE.normalise(host, GPU, top) == top
    MEMORY.write(host, GPU, {"min": 1593, "max": 1593})
    with pytest.raises(BadValue, match="1980") as wrong:
        CORE.normalise(host, GPU, top)
    assert wrong.value.hint.startswith("nearest: 1395 and 1410 ")
    MEMORY.write(host, GPU, "unlocked")
    assert CORE.normalise(host, GPU, top) == top


# --- reading and writing ------------------------------------------------------------------------------------------


@BOTH
def test_nobody_knows_what_was_locked_before_tuner(build: Build, knob: Knob, lock: dict[str, Any]) -> None:
    """No getter: not absent, not a fault, and met by no want."""
    host = build()
    assert "NVML cannot be asked" in unknown(host, knob)
    assert met(Want("value", lock), None, knob.key) == "drift"
    assert met(Want("value", "unlocked"), None, knob.key) == "drift"
    assert knob.note(None, lock, GPU).endswith(f"(nvidia-smi -{'rgc' if knob is CORE else 'rmc'})")
    assert knob.note("unlocked", lock, GPU) == ""


@BOTH
def test_the_laws_of_a_lock(build: Build, knob: Knob, lock: dict[str, Any]) -> None:
    """What was written is read; twice is once; null and `unlocked` are the vendor's reset, which undoes a null."""
    host, sets = build(), Sets()
    with sets.on(host):
        knob.write(host, GPU, lock)
        assert knob.read(host, GPU) == Seen(lock)
        knob.write(host, GPU, lock)
        knob.write(host, GPU, None)
        assert knob.read(host, GPU) == Seen("unlocked")
        knob.write(host, GPU, "unlocked")
        knob.write(host, GPU, None)
        knob.write(host, GPU, lock)
    ends = [lock["min"], lock["max"]]
    assert [value for _, _, value in sets.made] == [ends, None, ends]
    assert knob.restored(None, "unlocked") and not knob.restored(None, {**lock}) and not knob.restored(None, None)
    assert knob.restored(lock, {**lock}) and not knob.restored(lock, "unlocked")
    assert knob.restored("unlocked", "unlocked") and not knob.restored("unlocked", lock)


class Sets:
    """What NVML is told meanwhile."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, Any]] = []
        self.seen: list[Any] = []

    @contextlib.contextmanager
    def on(self, host: RecordedHost) -> Iterator[None]:
        """While it is noted."""
        real = type(host.nvml).set

        def noting(door: Any, address: str, name: str, value: Any) -> Any:
            self.made.append((address, name, value))
            place = Path(host.root + RECORD)
            self.seen.append(json.loads(place.read_text(encoding="utf-8")) if place.exists() else None)
            return real(door, address, name, value)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(host.nvml), "set", noting)
            yield


def test_a_lock_shows_in_the_clock(build: Build) -> None:
    """And the clock is free again after the reset."""
    host = build()
    CORE.write(host, GPU, {"min": 300, "max": 600})
    assert answers(host, "clocks") == {"graphics": 600, "sm": 600, "memory": 1215}
    CORE.write(host, GPU, None)
    assert answers(host, "clocks") == {"graphics": 1155, "sm": 1155, "memory": 1215}


def test_a_gpu_without_such_clocks_is_absent(build: Build) -> None:
    """An empty list is none."""
    assert CORE.read(build(supported_clocks={}), GPU) == Absent("this GPU does not support it")
    assert MEMORY.read(build(supported_clocks={"1215": []}), GPU) == Absent("this GPU does not support it")


# --- the record ---------------------------------------------------------------------------------------------------


def test_the_record_is_readable_and_says_since_when(build: Build) -> None:
    """Mode 0644, so that verify needs no root; per GPU and kind."""
    host = build(gpus={OTHER: {"uuid": "GPU-2"}}, functions={OTHER: function()})
    CORE.write(host, GPU, LOCK)
    MEMORY.write(host, GPU, {"min": 1215, "max": 1215})
    CORE.write(host, OTHER, "unlocked")
    place = Path(host.root + RECORD)
    assert place.stat().st_mode & 0o7777 == 0o644
    found = record(host)
    assert set(found) == {GPU, OTHER} and set(found[GPU]) == {"gpu", "memory"}
    assert found[GPU]["gpu"]["range"] == [1200, 1305] and found[OTHER]["gpu"]["range"] is None
    assert found[GPU]["gpu"]["uuid"] == UUID
    assert found[GPU]["gpu"]["driver"] == Path(host.root, "sys/module/nvidia").stat().st_ino


def test_while_a_set_goes_on_the_record_says_nothing(build: Build) -> None:
    """What a crash in between leaves reads as no getter, and may be in force; the other kind is kept."""
    host, sets = build(), Sets()
    MEMORY.write(host, GPU, {"min": 1215, "max": 1215})
    CORE.write(host, GPU, LOCK)
    with sets.on(host):
        CORE.write(host, GPU, {"min": 210, "max": 1410})
    (during,) = sets.seen
    Path(host.root + RECORD).write_text(json.dumps(during), encoding="utf-8")
    assert "cut short" in unknown(host)
    assert CORE.lingers(host, GPU)
    assert MEMORY.read(host, GPU) == Seen({"min": 1215, "max": 1215})


@pytest.mark.parametrize(
    ("error", "kept"),
    [("INVALID_ARGUMENT", True), ("NO_PERMISSION", True), ("NOT_SUPPORTED", True), ("TIMEOUT", False),
     ("GPU_IS_LOST", False), ("UNKNOWN", False)],
)  # fmt: skip
def test_a_set_that_surely_did_nothing_keeps_the_record(
    build: Build, monkeypatch: pytest.MonkeyPatch, error: str, kept: bool
) -> None:
    """After a time-out nobody knows."""
    host = build()
    CORE.write(host, GPU, LOCK)

    def refuse(*_: Any) -> None:
        raise fault(error)

    monkeypatch.setattr(type(host.nvml), "set", refuse)
    with pytest.raises(Refused):
        CORE.write(host, GPU, {"min": 210, "max": 1410})
    if kept:
        assert CORE.read(host, GPU) == Seen(LOCK)
    else:
        unknown(host)


def test_another_boot_forgets(build: Build) -> None:
    """The record may outlive it where /run does."""
    host = build()
    CORE.write(host, GPU, LOCK)
    Path(host.root, "proc/sys/kernel/random/boot_id").write_text("1e0a5f3c-aaaa-4c5e-8d0e-2b5b7b1f0c11\n")
    assert "before the reboot" in unknown(host)
    CORE.write(host, GPU, LOCK)
    assert CORE.read(host, GPU) == Seen(LOCK)


@BOTH
def test_a_driver_that_was_loaded_again_forgets(build: Build, knob: Knob, lock: dict[str, Any]) -> None:
    """Of a reset of ours nothing is known either: the module's directory is another one."""
    for value in (lock, "unlocked"):
        host = build()
        knob.write(host, GPU, value)
        restarted(host)
        assert "loaded again: it forgets" in unknown(host, knob)
        knob.write(host, GPU, value)
        assert knob.read(host, GPU) == Seen(value)


def test_another_gpu_in_the_slot_was_never_locked(build: Build) -> None:
    """By its UUID."""
    host = build()
    CORE.write(host, GPU, LOCK)
    let(host, "uuid", "GPU-other")
    assert UUID in unknown(host)


def test_without_a_uuid_nothing_is_tried(build: Build) -> None:
    """A record that nobody could believe later."""
    host, sets = build(uuid="error NO_PERMISSION"), Sets()
    with sets.on(host), pytest.raises(Refused, match="UUID"):
        CORE.write(host, GPU, LOCK)
    assert sets.made == []


def test_without_a_boot_id_nothing_is_tried(build: Build) -> None:
    """Nor without the module's directory."""
    for gone in ("proc/sys/kernel/random/boot_id", "sys/module/nvidia/version"):
        host, sets = build(), Sets()
        place = Path(host.root, gone)
        place.unlink()
        if "module" in gone:
            place.parent.rmdir()
        with sets.on(host), pytest.raises(Refused, match="cannot be told"):
            CORE.write(host, GPU, LOCK)
        assert sets.made == []


ENTRY = {"uuid": UUID, "range": [1200, 1305], "boot": "b", "driver": 1}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"x"', "\0", "[" * 100000, json.dumps({GPU: []}), json.dumps({GPU: {"gpu": []}}),
     json.dumps({GPU: {"gpu": {**ENTRY, "range": [1305, 1200]}}}),
     json.dumps({GPU: {"gpu": {**ENTRY, "range": "all"}}}),
     json.dumps({GPU: {"gpu": {**ENTRY, "range": [True, 2]}}}), json.dumps({GPU: {"gpu": {"uuid": UUID}}}),
     json.dumps({GPU: {"gpu": {**ENTRY, "more": 1}}}), json.dumps({GPU: {"gpu": {**ENTRY, "range": [0, 0]}}})],
)  # fmt: skip
def test_a_broken_record_counts_as_none(build: Build, text: str) -> None:
    """And is replaced by the next set."""
    host = build()
    place = Path(host.root + RECORD)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    assert "tuner has set none since the boot" in unknown(host)
    CORE.write(host, GPU, LOCK)
    assert CORE.read(host, GPU) == Seen(LOCK)


@settings(max_examples=80, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([GPU, "gpu", *ENTRY]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_no_record_makes_the_reading_fail(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Whatever JSON lies there, the answer is a reading, and a value only for a whole entry of this boot."""
    host = OnePath.of(tmp_path_factory)
    place = Path(host.root + RECORD)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(data), encoding="utf-8")
    unknown(host)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_record_that_others_may_write_counts_as_none(build: Build, mode: int) -> None:
    """Nor one that belongs to somebody else."""
    host = build()
    CORE.write(host, GPU, LOCK)
    Path(host.root + RECORD).chmod(mode)
    unknown(host)


def test_a_record_of_another_user_counts_as_none(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root's, or that of who asks; the next set makes it ours."""
    host = build()
    CORE.write(host, GPU, LOCK)
    place, real = Path(host.root + RECORD), RecordedHost.stat

    def owned(self: RecordedHost, path: str, follow: bool = True) -> os.stat_result:
        about = real(self, path, follow)
        return os.stat_result((*about[:4], 12345, *about[5:])) if path == RECORD else about

    with monkeypatch.context() as patch:
        patch.setattr(RecordedHost, "stat", owned)
        unknown(host)
    assert place.stat().st_uid == os.geteuid()
    assert CORE.read(host, GPU) == Seen(LOCK)


def test_a_link_in_place_of_the_record_is_not_followed(build: Build, tmp_path: Path) -> None:
    """Neither read nor written through, and nothing is set without a record."""
    host, sets = build(), Sets()
    CORE.write(host, GPU, LOCK)
    place, victim = Path(host.root + RECORD), Path(host.root, "etc-shadow")
    place.rename(victim)
    before = victim.read_bytes()
    place.symlink_to("/etc-shadow")
    unknown(host)
    with sets.on(host), pytest.raises(Refused, match=RECORD):
        CORE.write(host, GPU, "unlocked")
    assert sets.made == [] and victim.read_bytes() == before


# --- the clock of the moment --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "believed"), [(1305, True), (1320, True), (1321, False), (1410, False), (210, True)])
def test_a_clock_above_the_lock_tells_that_it_is_gone(build: Build, now: int, believed: bool) -> None:
    """More than one step (15 MHz) above: somebody reset it. Below says nothing: power and heat lower a clock."""
    host = build()
    CORE.write(host, GPU, LOCK)
    let(host, "clocks", {"graphics": now, "sm": now, "memory": 1215})
    if believed:
        assert CORE.read(host, GPU) == Seen(LOCK)
    else:
        assert f"runs at {now} MHz above the locked 1305: somebody reset it" in unknown(host)


@pytest.mark.parametrize(("top", "now", "believed"), [(1410, 1425, True), (1410, 1426, False)])
def test_at_the_top_the_step_is_the_one_below(build: Build, top: int, now: int, believed: bool) -> None:
    """There is no clock above."""
    host = build()
    CORE.write(host, GPU, {"min": 210, "max": top})
    let(host, "clocks", {"graphics": now, "sm": now, "memory": 1215})
    assert isinstance(CORE.read(host, GPU), Seen) == believed


def test_the_memory_is_looked_at_for_the_memory(build: Build) -> None:
    """An H800 locked to its slow memory that runs the fast one is not locked any more."""
    host = build(**{**H800, "supported_clocks": {**H800["supported_clocks"], "810": [345]}})
    MEMORY.write(host, GPU, {"min": 810, "max": 810})
    assert MEMORY.read(host, GPU) == Seen({"min": 810, "max": 810})
    let(host, "clocks", {"graphics": 345, "sm": 345, "memory": 2619})
    assert "runs at 2619 MHz above the locked 810" in unknown(host, MEMORY)


def test_a_clock_that_is_not_known_says_nothing(build: Build) -> None:
    """Null is what NVML's sentinel becomes."""
    host = build()
    CORE.write(host, GPU, LOCK)
    let(host, "clocks", {"graphics": None, "sm": None, "memory": None})
    assert CORE.read(host, GPU) == Seen(LOCK)


def test_a_clock_that_comes_down_slowly_is_waited_for(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading right after the set does not mistake it for a reset."""
    host = build(clocks={"graphics": 1410, "sm": 1410, "memory": 1215})
    real, asked = type(host.nvml).get, [0]

    def slow(door: Any, address: str, name: str) -> Any:
        found = real(door, address, name)
        if name == "clocks":
            asked[0] += 1
            return {**found, "graphics": 1410 if asked[0] < 4 else 1305}
        return found

    monkeypatch.setattr(type(host.nvml), "get", slow)
    begun = time.monotonic()
    CORE.write(host, GPU, LOCK)
    assert CORE.read(host, GPU) == Seen(LOCK)
    assert time.monotonic() - begun < 3


def test_without_persistence_mode_the_driver_forgets(build: Build) -> None:
    """At its last client, which may be tuner itself: nothing is locked, and an old lock is not believed.

    NVIDIA Driver Persistence, Background. A reset needs no memory.
    """
    host, sets = build(), Sets()
    CORE.write(host, GPU, LOCK)
    host.nvml.set(GPU, "persistence", "disabled")
    assert "persistence mode is off" in unknown(host)
    with sets.on(host), pytest.raises(Refused, match=r"nvidia\.persistence enabled first"):
        CORE.write(host, GPU, {"min": 210, "max": 1410})
    assert sets.made == []
    CORE.write(host, GPU, None)
    assert CORE.read(host, GPU) == Seen("unlocked")


@BOTH
def test_a_lock_is_doubted_once_persistence_mode_was_switched(build: Build, knob: Knob, lock: dict[str, Any]) -> None:
    """Off for a reset, and on again before the lock is looked at: the driver may have forgotten it meanwhile.

    NVIDIA Driver Persistence; NVIDIA/gpu-operator#118 (persistence mode is a client that a reset needs gone).
    """
    for off, on in ((tell_nvml, KEEP.write), (KEEP.write, tell_nvml)):
        host, sets = build(), Sets()
        knob.write(host, GPU, lock)
        KEEP.write(host, GPU, "enabled")
        assert knob.read(host, GPU) == Seen(lock), "nothing was switched"
        off(host, GPU, "disabled")
        on(host, GPU, "enabled")
        assert "persistence mode was off" in unknown(host, knob)
        assert knob.lingers(host, GPU)
        with sets.on(host):
            knob.write(host, GPU, lock)
        assert len(sets.made) == 1 and knob.read(host, GPU) == Seen(lock)


@pytest.mark.parametrize("now", ["enabled", "disabled"])
def test_a_switch_that_is_refused_doubts_nothing(build: Build, monkeypatch: pytest.MonkeyPatch, now: str) -> None:
    """The lock of a GPU whose mode stayed as it was is as certain as before: a prolog would drain a good node."""
    host = build()
    CORE.write(host, GPU, LOCK)
    tell_nvml(host, GPU, now)
    before = CORE.read(host, GPU)

    def denied(*_: Any) -> None:
        raise OSError(errno.EPERM, "NVML: no permission")

    with monkeypatch.context() as patch:
        patch.setattr(type(host.nvml), "set", denied)
        with pytest.raises(Refused):
            KEEP.write(host, GPU, {"enabled": "disabled", "disabled": "enabled"}[now])
    if now == "enabled":
        assert (before, CORE.read(host, GPU)) == (Seen(LOCK), Seen(LOCK))
    else:
        assert isinstance(CORE.read(host, GPU), Unreadable)


def tell_nvml(host: RecordedHost, gpu: str, word: str) -> None:
    """nvidia-smi -pm."""
    host.nvml.set(gpu, "persistence", word)


def test_a_reset_of_ours_is_not_doubted(build: Build) -> None:
    """What is unlocked is so whether the driver forgets or not; other GPUs keep their locks."""
    host = build(gpus={OTHER: {"uuid": "GPU-2"}}, functions={OTHER: function()})
    CORE.write(host, GPU, "unlocked")
    CORE.write(host, OTHER, LOCK)
    KEEP.write(host, GPU, "disabled")
    KEEP.write(host, GPU, "enabled")
    assert CORE.read(host, GPU) == Seen("unlocked")
    assert CORE.read(host, OTHER) == Seen(LOCK)


def test_what_cannot_be_doubted_is_not_switched(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is believed for no reason is worse than a mode that stays off."""
    host = build()
    CORE.write(host, GPU, LOCK)
    tell_nvml(host, GPU, "disabled")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(host), "put", full)
    with pytest.raises(Refused, match="No space left"):
        KEEP.write(host, GPU, "enabled")
    assert answers(host, "persistence") == "disabled"


def test_persistence_mode_that_cannot_be_asked_for_hinders_nothing(build: Build) -> None:
    """Only a clear answer does."""
    host = build(persistence="error NOT_SUPPORTED")
    CORE.write(host, GPU, LOCK)
    assert CORE.read(host, GPU) == Seen(LOCK)


# --- who else sets clocks -----------------------------------------------------------------------------------------

UNIT = "/usr/lib/systemd/system/nvidia-persistenced.service"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({UNIT: "[Service]\nExecStart=/usr/bin/nvidia-persistenced --user nvidia --no-persistence-mode\n"},
         ["nvidia-persistenced runs with --no-persistence-mode"]),
        ({UNIT: "[Service]\nExecStart=/usr/bin/nvidia-persistenced --no-persistence-mode\n",
          "/etc/systemd/system/nvidia-persistenced.service.d/on.conf":
          "[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced --persistence-mode\n"}, []),
        ({UNIT: "[Service]\n#ExecStart=/usr/bin/nvidia-persistenced --no-persistence-mode\n"
          "ExecStart=/usr/bin/nvidia-persistenced\n"}, []),
        ({"/etc/cron.d/gpu": "@reboot root nvidia-smi -i 0 -lgc 1410,1410\n"},
         ["/etc/cron.d/gpu runs nvidia-smi -lgc"]),
        ({"/etc/nhc/scripts/azure_gpu_app_clocks.nhc": "  if ! sudo nvidia-smi -ac 1593,1410 -i $i; then\n"},
         ["/etc/nhc/scripts/azure_gpu_app_clocks.nhc runs nvidia-smi -ac"]),
        ({"/etc/nhc/nhc.conf": "* || nvidia-smi --reset-gpu-clocks\n",
          "/etc/cron.d/b": "@daily root nvidia-smi -rgc\n"},
         ["/etc/cron.d/b runs nvidia-smi -rgc", "/etc/nhc/nhc.conf runs nvidia-smi --reset-gpu-clocks"]),
        ({"/etc/cron.d/log": "* * * * * root nvidia-smi -q -d CLOCK; ls -ac /tmp\n# nvidia-smi -rgc\n"}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_who_else_sets_the_clocks_is_named(build: Build, files: dict[str, str], words: list[str]) -> None:
    """Found in files, never in what a tool prints; comments and other options do not count."""
    listed = {path.rpartition("/")[0] for path in files}
    more = "\n".join(
        f"dir 0755 {folder}\n"
        + "\n".join(f"|{p.rpartition('/')[2]}" for p in sorted(files) if p.startswith(f"{folder}/"))
        for folder in listed
    )
    said = CORE.remark(build(files=files, more=more), GPU, LOCK)
    assert all(word in said for word in words), said
    assert (said == "") == (words == [])
    assert MEMORY.remark(build(files=files, more=more), GPU, None) == said


def test_dcgm_is_named_while_it_runs(build: Build) -> None:
    """Its host engine may set clocks."""
    unit = "/usr/lib/systemd/system/nvidia-dcgm.service"
    files = {unit: "[Service]\nExecStart=/usr/bin/nv-hostengine -n --service-account nvidia-dcgm\n",
             "/sys/fs/cgroup/system.slice/nvidia-dcgm.service/cgroup.procs": "{}\n"}  # fmt: skip
    more = "dir 0755 /run/systemd/system\nabsent /etc\nabsent /lib\n"
    for pids, named in (("4242", True), ("", False)):
        texts = {path: text.replace("{}\n", f"{pids}\n" if pids else "") for path, text in files.items()}
        said = CORE.remark(build(files=texts, more=more), GPU, LOCK)
        assert ("DCGM (nvidia-dcgm.service) runs" in said) == named


# --- on the command line ------------------------------------------------------------------------------------------


def test_a_lock_from_plan_to_rollback(build: Build, tmp_path: Path, tuner: Callable[..., Result]) -> None:
    """Planned although nothing can be read before, verified by the record, undone by the vendor's reset."""
    host = build()
    profile = write_profile(tmp_path / "p.yaml", f'nvidia.gpu_clocks:\n  "{GPU}": {{value: {{min: 1200, max: 1305}}}}')
    planned = tuner("plan", "--profile", profile, "--root", host.root, "--json").document
    (change,) = planned["changes"]
    assert change["before"] is None and change["disruption"] == "clocks"
    done = tuner("apply", "--profile", profile, "--root", host.root, "--allow", "clocks", "--json")
    assert done.code == 0, done.out
    assert answers(host, "clocks")["graphics"] == 1200
    assert tuner("verify", "--root", host.root).code == 0
    restarted(host)
    assert tuner("verify", "--root", host.root).code == 10
    again = tuner("apply", "--profile", profile, "--root", host.root, "--allow", "clocks")
    assert again.code == 0
    back = tuner("rollback", "--to", "0", "--root", host.root)
    assert back.code == 0, back.out
    assert CORE.read(host, GPU) == Seen("unlocked")
    assert answers(host, "clocks")["graphics"] == 1155


RESETS = pytest.mark.parametrize("seen", [True, False], ids=["persistence off before", "rolled back after"])


@RESETS
def test_a_lock_after_a_reset(build: Build, tmp_path: Path, tuner: Callable[..., Result], seen: bool) -> None:
    """A reset cannot be seen: without persistence mode apply locks again; in it, the old lock is rolled back first."""
    host = build()
    wants = f'nvidia.persistence: {{"*": enabled}}\nnvidia.gpu_clocks: {{"{GPU}": {{value: {{min: 1200, max: 1305}}}}}}'
    profile = write_profile(tmp_path / "p.yaml", wants)
    apply = ("apply", "--profile", profile, "--root", host.root, "--allow", "clocks")
    assert tuner(*apply).code == 0
    if seen:
        tell_nvml(host, GPU, "disabled")
    host.nvml.set(GPU, "gpu_clocks", None)
    assert answers(host, "clocks")["graphics"] == 1155
    assert tuner("verify", "--root", host.root).code == (10 if seen else 0)
    if not seen:
        assert tuner(*apply).code == 0
        assert answers(host, "clocks")["graphics"] == 1155, "believed: nothing was written"
        assert tuner("rollback", "--root", host.root).code == 0
    assert tuner(*apply).code == 0
    assert answers(host, "clocks")["graphics"] == 1200
    assert answers(host, "persistence") == "enabled"
    assert tuner("verify", "--root", host.root).code == 0


@pytest.mark.parametrize("knob", [CORE, MEMORY])
def test_the_way_to_a_reset_is_told(knob: Knob) -> None:
    """To whoever asks: it ends persistence mode, and apply alone is not promised to see it."""
    for words in ("nvidia-smi -pm 0 -i ADDRESS", "--gpu-reset -i ADDRESS", "tuner rollback, then tuner apply"):
        assert words in knob.about(GPU)
    assert "apply again after a reset" not in (GpuClocks.__doc__ or "")


def test_a_clock_that_the_device_lacks_is_an_error_of_the_profile(
    build: Build, tmp_path: Path, tuner: Callable[..., Result]
) -> None:
    """At plan, with the nearest ones."""
    profile = write_profile(tmp_path / "p.yaml", 'nvidia.gpu_clocks:\n  "*": 1400')
    result = tuner("plan", "--profile", profile, "--root", build().root)
    assert result.code == 64
    assert "1395 and 1410" in result.err


def test_a_full_disk_sets_nothing(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is written first."""
    host, sets = build(), Sets()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(host), "put", full)
    with sets.on(host), pytest.raises(Refused, match="No space left"):
        CORE.write(host, GPU, LOCK)
    assert sets.made == []
