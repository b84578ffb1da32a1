"""Modes of NVIDIA GPUs that NVML can be asked for: persistence, ECC, MIG, compute mode.

NVML API Reference (nvmlDeviceSetPersistenceMode, SetEccMode, SetMigMode, SetComputeMode); NVIDIA Driver Persistence;
NVIDIA Multi-Instance GPU User Guide, "Deployment Considerations".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.holders import holder
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Raw, scalar
from tuner.knobs.nvidia import OFF, ON, NvidiaKnob, answer, asked, tell, word
from tuner.knobs.nvidia_clocks import doubt
from tuner.knobs.nvidia_setters import forgets, persistent
from tuner.model import Absent, Leaf, Reading, Seen, Setting, Unreadable, Value

EVERYBODY = "default"
MODES = (EVERYBODY, "exclusive_process", "prohibited")
NODES = ("/dev/nvidia*",)
IN_FORCE = "in force after a reset of the GPU or a reboot"
HINDERED = (
    "in use by another client of the GPU: stop what monitors it (nvidia-smi, DCGM) and end its persistence mode, a "
    "client too (nvidia-smi -pm 0 -i {0}; apply with --set nvidia.persistence:{0}=disabled, or it is switched on "
    "first), then again"
)
"""Why MIG mode does not change, for the GPU's address (NVIDIA/gpu-operator#118, NVIDIA/NVSentinel#1690)."""


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

    def write(self, host: Host, target: str, value: Value) -> None:
        """Tells NVML unless it is so. Locks of before count no longer then: the driver may have forgotten them.

        They do not count while it is off, so that it can be noted before it goes on, and after it went off: where the
        driver refuses, nothing is lost.
        """
        if self.read(host, target) == Seen(value):
            return
        if value == ON:
            doubt(host, target)
        super().write(host, target, value)
        if value != ON:
            doubt(host, target)

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """Every boot begins without it; the daemon switches it on where it is enabled and not told otherwise."""
        ahead = super().next_boot(boots, setting)
        wanted = boots.unarmed and ON in setting.want.choices()
        return persistent(boots, ahead) if wanted else ahead

    def remark(self, host: Host, target: str, seen: Value) -> str:
        """Where the daemon that should keep it on was told not to."""
        return forgets(host)

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

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """Every boot begins with `default`."""
        wanted = boots.unarmed and EVERYBODY in setting.want.choices()
        return Next(Seen(EVERYBODY)) if wanted else super().next_boot(boots, setting)

    def disruption(self, target: str) -> str:
        """Only processes that start are concerned."""
        return "app"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "nvidia-smi(1), --compute-mode; MPS wants exclusive_process (docs.nvidia.com/deploy/mps)."


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
            raise Refused(HINDERED.format(target))
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
