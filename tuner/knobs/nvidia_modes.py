"""Modes of NVIDIA GPUs that NVML can be asked for: persistence, power limit, ECC, MIG, compute mode.

NVML API Reference (nvmlDeviceSetPersistenceMode, SetPowerManagementLimit, SetEccMode, SetMigMode, SetComputeMode);
NVIDIA Driver Persistence; NVIDIA Multi-Instance GPU User Guide, "Deployment Considerations".
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.holders import holder
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Raw, scalar
from tuner.knobs.nvidia import FORGETFUL, OFF, ON, NvidiaKnob, answer, asked, forgetful, given, tell, word
from tuner.model import Absent, Leaf, Reading, Seen, Setting, Unreadable, Value

WATTS = re.compile(r"\d{1,5}(?:\.\d{1,3})?")
MODES = ("default", "exclusive_process", "prohibited")
NODES = ("/dev/nvidia*",)
IN_FORCE = "in force after a reset of the GPU or a reboot"


class _Word(NvidiaKnob):
    """One word, asked for and told under the same name."""

    question: ClassVar[str]
    choices: ClassVar[tuple[str, ...]] = (ON, OFF)
    persist = "boot unit"
    bounds = False

    def parse(self, target: str, raw: Raw) -> Value:
        """One of the words."""
        return _choice(raw, self.choices)

    def read(self, host: Host, target: str) -> Reading:
        """The word."""
        return asked(host, target, lambda: word(answer(host, target, self.question), self.choices))

    def write(self, host: Host, target: str, value: Value) -> None:
        """Tells NVML unless it is so."""
        if self.read(host, target) != Seen(value):
            tell(host, target, self.question, value)


class Persistence(_Word):
    """Persistence mode of an NVIDIA GPU: `enabled` keeps the driver's state while nobody uses the GPU.

    Targets are PCI addresses. Without it the driver forgets locked clocks and the power limit when the last client
    leaves. Gone after a reboot. NVIDIA prefers its daemon, nvidia-persistenced, which must not be started with
    --no-persistence-mode then.
    """

    name = "nvidia.persistence"
    question = "persistence"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "NVIDIA Driver Persistence (docs.nvidia.com/deploy/driver-persistence); nvidia-persistenced(1)."


class ComputeMode(_Word):
    """Who may open contexts on an NVIDIA GPU: `default`, `exclusive_process` (one process) or `prohibited`.

    Targets are PCI addresses. Processes that run keep what they have. Gone after a reboot.
    """

    name = "nvidia.compute_mode"
    question = "compute_mode"
    choices = MODES

    def disruption(self, target: str) -> str:
        """Only processes that start are concerned."""
        return "app"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "nvidia-smi(1), --compute-mode; MPS wants exclusive_process (docs.nvidia.com/deploy/mps)."


class PowerLimit(NvidiaKnob):
    """The power limit of an NVIDIA GPU in W, within what the device allows: `limit`, and what is `enforced`.

    Targets are PCI addresses. A number names the limit. Less may be enforced than the limit says, by order of the
    chassis (out of band). Gone when the driver is unloaded, and that is at the last client without persistence mode:
    only the default is set then.
    """

    name = "nvidia.power_limit"
    persist = "boot unit"
    main = "limit"

    def parse(self, target: str, raw: Raw) -> Value:
        """Watts: what is enforced is the device's own affair."""
        if isinstance(raw, dict):
            if set(raw) != {"limit"}:
                raise BadValue("only the limit can be wanted", "400, or {limit: 400}: what is enforced follows from it")
            raw = raw["limit"]
        text = scalar(raw).strip()
        if not WATTS.fullmatch(text) or (text[0] == "0" and text[1:2].isdigit()):
            raise BadValue(f"{text!r:.60} is no power limit", "watts, such as 400")
        return {"limit": _watts(_milliwatts(text))}

    def read(self, host: Host, target: str) -> Reading:
        """{limit, enforced} in W."""
        return asked(host, target, lambda: _limits(answer(host, target, "power")))

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """The limit must lie within the bounds of this device."""
        power = answer(host, target, "power")
        low, high, usual = (_bound(power, name) for name in ("min", "max", "default"))
        asked_for = _milliwatts(_limit(value))
        if low is not None and high is not None and not low <= asked_for <= high:
            default = f", default {_watts(usual)}" if usual is not None else ""
            raise BadValue(
                f"{_watts(asked_for)} W is out of range", f"this GPU takes {_watts(low)}..{_watts(high)} W{default}"
            )
        return value

    def key(self, value: Any) -> Any:
        """Watts with a fraction are text."""
        return float(value) if isinstance(value, str) else value

    def write(self, host: Host, target: str, value: Value) -> None:
        """Sets the limit unless it is so; Refused where the driver would forget it as soon as we leave."""
        goal = _milliwatts(_limit(value))
        found = asked(host, target, lambda: given(answer(host, target, "power")["limit"]))
        if found == Seen(goal):
            return
        usual = asked(host, target, lambda: given(answer(host, target, "power")["default"]))
        if usual != Seen(goal) and forgetful(host, target):
            raise Refused(f"not tried: {FORGETFUL}: nvidia.persistence enabled first")
        tell(host, target, "power", goal)

    def disruption(self, target: str) -> str:
        """Running jobs change their speed."""
        return "clocks"

    def restored(self, before: Value, now: Value) -> bool:
        """What is enforced is not ours to restore."""
        return _limit(before) == _limit(now)

    def remark(self, host: Host, target: str, seen: Value) -> str:
        """Where less is enforced than the limit says."""
        enforced = seen.get("enforced") if isinstance(seen, Mapping) else None
        if enforced is None or _milliwatts(enforced) >= _milliwatts(_limit(seen)):
            return ""
        return f"only {enforced} W are enforced: something outside the driver (BMC, chassis) holds it lower"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "nvidia-smi(1), --power-limit; NVML: nvmlDeviceSetPowerManagementLimit, GetEnforcedPowerLimit."


def _limits(power: Any) -> Value:
    limits: dict[str, Leaf] = {"limit": _watts(given(power["limit"]))}
    enforced = power.get("enforced")
    return {**limits, "enforced": None if enforced is None else _watts(enforced)}


def _bound(power: Any, name: str) -> int | None:
    """A bound in mW, None where the device tells none; OSError for what is no number."""
    found = power.get(name)
    if found is not None and type(found) is not int:
        raise OSError(errno.EREMOTEIO, f"unexpected {name} of the power limit from NVML")
    return found


def _limit(value: Value) -> Leaf:
    return value.get("limit") if isinstance(value, Mapping) else None


def _watts(milliwatts: int) -> Leaf:
    """Whole watts as a number, others as text: 400, or "399.5"; ValueError for what is no number."""
    if type(milliwatts) is not int:
        raise ValueError(f"{milliwatts!r:.60} is no power limit")
    whole, rest = divmod(milliwatts, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else whole


def _milliwatts(watts: Leaf) -> int:
    if watts is None:
        raise ValueError("no power limit")
    return round(float(watts) * 1000)


def _choice(raw: Raw, choices: tuple[str, ...]) -> str:
    chosen = scalar(raw)
    if chosen not in choices:
        raise BadValue(f"{chosen!r:.60} is none of its modes", f"one of {', '.join(choices)}")
    return chosen


class _Pending(NvidiaKnob):
    """A mode {current, pending}: what is written is pending until the GPU is reset."""

    question: ClassVar[str]
    main = "current"
    bounds = False

    def parse(self, target: str, raw: Raw) -> Value:
        """A word: what shall be pending. What is current follows from it."""
        if isinstance(raw, dict):
            if set(raw) != {"pending"}:
                raise BadValue("only what is pending can be wanted", "enabled or disabled: current follows at a reset")
            raw = raw["pending"]
        return {"pending": _choice(raw, (ON, OFF))}

    def read(self, host: Host, target: str) -> Reading:
        """{current, pending}."""
        return asked(host, target, lambda: _both(answer(host, target, self.question)))

    def disruption(self, target: str) -> str:
        """In force only after a reset of the GPU; MIG may reset it at once."""
        return "gpu"

    def guard(self, host: Host, target: str, value: Value, first: Reading | None) -> str:
        """Never while a process holds a GPU."""
        return holder(host, NODES)

    def waits(self, seen: Value) -> str:
        """What is pending is not yet current."""
        return IN_FORCE if isinstance(seen, Mapping) and seen.get("current") != seen.get("pending") else ""

    def restored(self, before: Value, now: Value) -> bool:
        """What is current follows at a reset."""
        return _pending(before) == _pending(now)


def _both(found: Any) -> Value:
    return {name: word(found[name], (ON, OFF)) for name in ("current", "pending")}


def _pending(value: Value) -> Leaf:
    return value.get("pending") if isinstance(value, Mapping) else value if isinstance(value, str) else None


class Ecc(_Pending):
    """ECC of an NVIDIA GPU's memory: `enabled` or `disabled`, from the next reset or reboot on.

    Targets are PCI addresses; a record {current, pending}. The GPU keeps it over reboots. Held while a process has a
    GPU open.
    """

    name = "nvidia.ecc"
    question = "ecc"

    def write(self, host: Host, target: str, value: Value) -> None:
        """Sets what is pending unless it is so."""
        found = self.read(host, target)
        if not isinstance(found, Seen) or _pending(found.value) != _pending(value):
            tell(host, target, "ecc", _pending(value))

    def note(self, before: Value, value: Value, target: str) -> str:
        """A write alone does not bring it into force."""
        return IN_FORCE

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """The GPU keeps it, and a reboot puts in force what is pending."""
        return _kept(self.read(boots.host, setting.target))

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "nvidia-smi(1), --ecc-config: takes effect after the next reboot, and is kept over it."


def _kept(found: Reading) -> Next:
    if not isinstance(found, Seen):
        return Next(found)
    then = _pending(found.value)
    return Next(Seen({"current": then, "pending": then}))


class Mig(_Pending):
    """MIG mode of an NVIDIA GPU: `enabled` to partition it, or `disabled`.

    Targets are PCI addresses; a record {current, pending}. A GPU of the A100 kind needs a reset to change it and keeps
    it over reboots; newer ones change at once where nothing uses them. Held while a process has a GPU open. A change
    may renumber the device nodes in /dev/nvidia-caps, and destroys the instances that there are.
    """

    name = "nvidia.mig"
    question = "mig"

    def write(self, host: Host, target: str, value: Value) -> None:
        """Sets the mode unless it is so; one that a client keeps from coming into force is taken back and Refused."""
        found = self.read(host, target)
        before = _pending(found.value) if isinstance(found, Seen) else None
        if before == _pending(value):
            return
        status = tell(host, target, "mig", _pending(value))
        if status in (None, "SUCCESS", "RESET_REQUIRED"):
            return
        with contextlib.suppress(OSError):
            if before is not None:
                host.nvml.set(target, "mig", before)
        if status == "IN_USE":
            raise Refused("in use by another client of the GPU: stop what monitors it (nvidia-smi, DCGM), then again")
        raise Refused(f"the driver did not activate it: {str(status).replace('_', ' ').lower()}")

    def note(self, before: Value, value: Value, target: str) -> str:
        """What a write does, and does not do."""
        return f"destroys the GPU instances that there are; on an A100 {IN_FORCE}"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """Kept by an A100; of others nothing is promised."""
        found = self.read(boots.host, setting.target)
        model = ""
        with contextlib.suppress(OSError, Unrecorded, ValueError):
            model = str(boots.host.nvml.get(setting.target, "name") or "")
        if isinstance(found, Absent) or "A100" in re.split(r"[\s-]", model):
            return _kept(found)
        return Next(Unreadable(f"whether {model or 'this GPU'} keeps MIG mode over a reboot is not documented"))

    def about(self, target: str) -> str:
        """Where it is documented, and what a change does besides."""
        return (
            "NVIDIA Multi-Instance GPU User Guide, Deployment Considerations. A change may renumber the device nodes in"
            " /dev/nvidia-caps and destroys GPU instances; processes that monitor the GPU keep it from taking effect."
        )
