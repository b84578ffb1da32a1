"""Locked clocks of NVIDIA GPUs. NVML sets and resets them and cannot be asked for them: a record of ours answers.

NVML API Reference: nvmlDeviceSetGpuLockedClocks, nvmlDeviceSetMemoryLockedClocks, nvmlDeviceGetSupportedMemoryClocks,
nvmlDeviceGetSupportedGraphicsClocks. The driver forgets a lock when it is loaded again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded, make_parents
from tuner.host.nvml import fault
from tuner.knobs.base import Raw, bounded, number
from tuner.knobs.nvidia import FORGETFUL, RESET, NvidiaKnob, answer, asked, forgetful, tell
from tuner.knobs.nvidia_setters import others
from tuner.model import Reading, Seen, Unreadable, Value

RECORD = "/run/tuner/locked-clocks.json"
"""What tuner set last, by PCI address and kind: {uuid, range (null: reset), boot, driver}; root's, mode 0644."""

TRYING = "trying"
"""The range while a set goes on, and for good where it was cut short."""

DOUBTED = "doubted"
"""The range once persistence mode was off and is on again: that the driver forgot meanwhile cannot be seen."""

BOOT_ID, MODULE = "/proc/sys/kernel/random/boot_id", "/sys/module/nvidia"
UNLOCKED = "unlocked"
CUT_SHORT = "a set of tuner was cut short, and nobody knows what the driver took"
SWITCHED = "locked before persistence mode was off: the driver may have forgotten it"

UNSURE = {TRYING: CUT_SHORT, DOUBTED: SWITCHED}
"""Ranges that say nothing, and why."""

SETTLING, PAUSE = 1.5, 0.1
"""Seconds that a clock is given to come down below a new lock, and between two looks."""

AFTER_RESET = (
    f"A reset of the GPU ends the lock and cannot be seen. To reset: {RESET.format('ADDRESS')}. Where persistence mode "
    "is on again before apply looks, apply alone believes that the lock is there: tuner rollback, then tuner apply."
)

HINT = "a clock in MHz, {min: 1200, max: 1410}, or unlocked"
CERTAIN = frozenset({errno.EINVAL, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.ENOPKG, errno.ELIBBAD})
"""Errors after which what was locked before is locked still."""


class _NoGetter(Exception):
    """Why nobody can say what is locked."""


class _Locked(NvidiaKnob):
    """A range in MHz that NVML locks and resets."""

    persist = "boot unit"
    bounds = False
    kind: ClassVar[str]
    question: ClassVar[str]
    sample: ClassVar[str]
    reset: ClassVar[str]

    def parse(self, target: str, raw: Raw) -> Value:
        """`unlocked`, one clock, or {min, max}."""
        if raw == UNLOCKED:
            return UNLOCKED
        if isinstance(raw, dict) and set(raw) != {"min", "max"}:
            raise BadValue("a lock has min and max", HINT)
        low, high = (raw["min"], raw["max"]) if isinstance(raw, dict) else (raw, raw)
        try:
            ends = {"min": bounded(number(low), 1, 65534), "max": bounded(number(high), 1, 65534)}
        except BadValue as bad:
            raise BadValue(bad.what, HINT) from None
        if ends["min"] > ends["max"]:
            raise BadValue(f"min {ends['min']} is above max {ends['max']}", HINT)
        return {**ends}

    def read(self, host: Host, target: str) -> Reading:
        """{min, max} or `unlocked` as tuner set it, while nothing speaks against it; else `no getter`."""
        try:
            return asked(host, target, lambda: self._value(host, target))
        except _NoGetter as unknown:
            return Unreadable(f"no getter: {unknown}", "no getter")

    def _value(self, host: Host, target: str) -> Value:
        uuid = answer(host, target, "uuid")  # a lost GPU says so here
        legal, now = self.legal(host, target), answer(host, target, "clocks").get(self.sample)
        ends = _remembered(host, target, self.kind, uuid)
        if ends is None:
            return UNLOCKED
        if forgetful(host, target):
            raise _NoGetter(f"locked, but {FORGETFUL}")
        if now is not None and now > ends[1] + _step(legal, ends[1]):
            raise _NoGetter(f"runs at {now} MHz above the locked {ends[1]}: somebody reset it")
        return {"min": ends[0], "max": ends[1]}

    def legal(self, host: Host, target: str) -> list[int]:
        """The clocks in MHz that this device can be locked to."""
        raise NotImplementedError

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """Both ends must be clocks that the device has."""
        for name, mhz in value.items() if isinstance(value, Mapping) else ():
            legal = self.legal(host, target)
            if mhz not in legal:
                nearest = sorted(sorted(legal, key=lambda clock: abs(clock - int(mhz or 0)))[:2])
                hint = f"nearest: {' and '.join(map(str, nearest))} (nvidia-smi -q -d SUPPORTED_CLOCKS)"
                raise BadValue(f"{name} {mhz} MHz is no {self.kind} clock of this device", hint)
        return value

    def write(self, host: Host, target: str, value: Value) -> None:
        """Locks, or resets for null and `unlocked`. The record says nothing while that goes on."""
        wanted = value if isinstance(value, Mapping) else UNLOCKED
        if self.read(host, target) == Seen(wanted):
            return
        ends = [value["min"], value["max"]] if isinstance(value, Mapping) else None
        if ends and forgetful(host, target):
            raise Refused(f"not tried: {FORGETFUL}: nvidia.persistence enabled first")
        entry = _entry(host, target, ends)
        before = _records(host).get(target, {}).get(self.kind)
        _remember(host, target, self.kind, {**entry, "range": TRYING})
        try:
            tell(host, target, self.question, ends)
        except Refused as refused:
            if getattr(refused.__cause__, "errno", None) in CERTAIN:
                _remember(host, target, self.kind, before)
            raise
        _remember(host, target, self.kind, entry)
        if ends:
            self._slow_down(host, target, int(ends[1] or 0))

    def _slow_down(self, host: Host, target: str, top: int) -> None:
        """Waits a moment for a clock that comes down, so that it does not speak against the lock."""
        until = time.monotonic() + SETTLING
        with contextlib.suppress(OSError, Unrecorded, AttributeError, TypeError):
            bound = top + _step(self.legal(host, target), top)
            while (answer(host, target, "clocks").get(self.sample) or 0) > bound and time.monotonic() < until:
                time.sleep(PAUSE)

    def disruption(self, target: str) -> str:
        """Running jobs change their speed."""
        return "clocks"

    def note(self, before: Value, value: Value, target: str) -> str:
        """What undo does where nobody knows what was there."""
        return f"no getter: before is not known; undo is the vendor's reset ({self.reset})" if before is None else ""

    def restored(self, before: Value, now: Value) -> bool:
        """What was not known is restored by the vendor's reset."""
        return now == UNLOCKED if before is None else before == now

    def lingers(self, host: Host, target: str) -> bool:
        """After a set that was cut short, and where the driver's forgetting is awaited or not certain."""
        try:
            uuid = answer(host, target, "uuid")
            return _remembered(host, target, self.kind, uuid) is not None and forgetful(host, target)
        except _NoGetter as unknown:
            return str(unknown) in UNSURE.values()
        except (OSError, Unrecorded, ValueError):
            return False

    def remark(self, host: Host, target: str, seen: Value) -> str:
        """Who else sets the clocks."""
        return others(host)


class GpuClocks(_Locked):
    """The graphics clock of an NVIDIA GPU, locked to a range in MHz: {min, max}, one number for both, or `unlocked`.

    Targets are PCI addresses. Clocks must be those of `nvidia-smi -q -d SUPPORTED_CLOCKS`. NVML has no getter for it:
    tuner remembers what it set and trusts that while boot, driver and GPU are the same, persistence mode is on and was
    not switched by tuner, and the clock is not seen above the range. Gone after a reboot, a reload of the driver or a
    reset of the GPU, which cannot be seen: end persistence mode before the reset (nvidia-smi -pm 0 -i ADDRESS), then
    apply locks again; or roll back, then apply. Without persistence mode nothing is locked: the driver would forget it
    when its last client leaves.
    """

    name = "nvidia.gpu_clocks"
    kind, question, sample, reset = "gpu", "gpu_clocks", "graphics", "nvidia-smi -rgc"

    def legal(self, host: Host, target: str) -> list[int]:
        """Those of the memory clock that tuner locked, else of the highest."""
        table = _supported(host, target)
        memory = max(table)
        with contextlib.suppress(_NoGetter):
            ends = _remembered(host, target, MemClocks.kind, answer(host, target, "uuid"))
            memory = ends[1] if ends and ends[1] in table else memory
        return sorted(table[memory])

    def about(self, target: str) -> str:
        """Where it is documented."""
        return f"nvidia-smi(1), --lock-gpu-clocks and --reset-gpu-clocks (Volta and later). {AFTER_RESET}"


class MemClocks(_Locked):
    """The memory clock of an NVIDIA GPU, locked to a range in MHz: {min, max}, one number for both, or `unlocked`.

    Targets are PCI addresses. NVML has no getter for it: see nvidia.gpu_clocks, which it works like. It stands before
    the graphics clock, whose range depends on it.
    """

    name = "nvidia.mem_clocks"
    kind, question, sample, reset = "memory", "mem_clocks", "memory", "nvidia-smi -rmc"

    def legal(self, host: Host, target: str) -> list[int]:
        """The memory clocks that the device offers."""
        return sorted(_supported(host, target))

    def about(self, target: str) -> str:
        """Where it is documented."""
        return f"nvidia-smi(1), --lock-memory-clocks, --reset-memory-clocks (Ampere, later). {AFTER_RESET}"


def _supported(host: Host, target: str) -> dict[int, list[int]]:
    """{memory MHz: [graphics MHz]}; OSError where the device has none."""
    found = answer(host, target, "supported_clocks")
    try:
        table = {int(memory): [int(mhz) for mhz in clocks] for memory, clocks in found.items() if clocks}
    except (AttributeError, TypeError, ValueError):
        raise OSError(errno.EREMOTEIO, "unexpected list of clocks from NVML") from None
    if not table:
        raise fault("NOT_SUPPORTED")
    return table


def _step(legal: Sequence[int], top: int) -> int:
    """MHz from `top` to the next clock, from the one below it where there is none; 0 for the only one."""
    above, below = [mhz for mhz in legal if mhz > top], [mhz for mhz in legal if mhz < top]
    return min(above) - top if above else top - max(below) if below else 0


def _entry(host: Host, target: str, ends: list[Any] | None) -> dict[str, Any]:
    """What is remembered of a set that is about to be tried; Refused where that would say nothing later."""
    try:
        return {"uuid": str(answer(host, target, "uuid")), "range": ends, **_since(host)}
    except OSError as error:
        raise Refused(f"not tried: its UUID cannot be read: {error.strerror}") from error
    except _NoGetter as unknown:
        raise Refused(f"not tried: {unknown}") from unknown


def _since(host: Host) -> dict[str, Any]:
    """This boot and this load of the driver: kernfs gives a module that is loaded again another inode."""
    try:
        return {"boot": host.peek(BOOT_ID).strip(), "driver": host.stat(MODULE).st_ino}
    except (OSError, Unrecorded) as error:
        raise _NoGetter(f"boot or load of the driver cannot be told: {error}") from error


def _records(host: Host) -> dict[str, dict[str, dict[str, Any]]]:
    """What tuner remembers, as far as it has the right shape; nothing where the file is not surely ours."""
    try:
        about = host.stat(RECORD, follow=False)
        ours = about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022
        found = json.loads(host.text(RECORD)) if ours and stat.S_ISREG(about.st_mode) else {}
    except (OSError, Unrecorded, ValueError, RecursionError):
        return {}
    rows = found.items() if isinstance(found, dict) else ()
    return {
        address: {kind: entry for kind, entry in kinds.items() if _sound(entry)}
        for address, kinds in rows
        if isinstance(kinds, dict)
    }


def _sound(entry: Any) -> bool:
    if not isinstance(entry, dict) or set(entry) != {"uuid", "range", "boot", "driver"}:
        return False
    ends = entry["range"]
    pair = (
        isinstance(ends, list) and len(ends) == 2 and all(type(mhz) is int for mhz in ends) and 0 < ends[0] <= ends[1]
    )
    return (ends is None or ends in list(UNSURE) or pair) and bool(entry["uuid"] and entry["boot"])


def _remembered(host: Host, target: str, kind: str, uuid: str) -> tuple[int, int] | None:
    """The range that tuner locked, None where tuner reset it; _NoGetter where neither is known."""
    entry = _records(host).get(target, {}).get(kind)
    if entry is None:
        raise _NoGetter("NVML cannot be asked for locked clocks, and tuner has set none since the boot")
    if entry["uuid"] != uuid:
        raise _NoGetter(f"set on another GPU ({entry['uuid']})")
    since = _since(host)
    if entry["boot"] != since["boot"]:
        raise _NoGetter("locked before the reboot: the driver forgets")
    if entry["driver"] != since["driver"]:
        raise _NoGetter("locked before the driver was loaded again: it forgets")
    if isinstance(entry["range"], str):
        raise _NoGetter(UNSURE[entry["range"]])
    return None if entry["range"] is None else (entry["range"][0], entry["range"][1])


def doubt(host: Host, target: str) -> None:
    """Persistence mode is off or was: the locks of before count no longer; Refused if that cannot be noted.

    Without it, a lock that went with a reset while the mode was off would be believed once it is on again.
    """
    for kind, entry in _records(host).get(target, {}).items():
        if isinstance(entry["range"], list):
            _remember(host, target, kind, {**entry, "range": DOUBTED})


def _remember(host: Host, target: str, kind: str, entry: dict[str, Any] | None) -> None:
    """Puts an entry in, or takes it out for None; Refused where the record cannot be written."""
    records = _records(host)
    kinds = {name: kept for name, kept in records.get(target, {}).items() if name != kind}
    records[target] = {**kinds, kind: entry} if entry else kinds
    text = json.dumps({address: kinds for address, kinds in records.items() if kinds}, indent=1, sort_keys=True)
    try:
        make_parents(host, RECORD)
        host.put(RECORD, f"{text}\n".encode(), 0o644, (os.geteuid(), os.getegid()))
    except OSError as error:
        raise Refused(f"{RECORD} cannot be written: {error.strerror}") from error
