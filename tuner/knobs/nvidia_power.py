"""The power limit of NVIDIA GPUs, by NVML.

NVML API Reference: nvmlDeviceSetPowerManagementLimit, nvmlDeviceGetPowerManagementDefaultLimit,
nvmlDeviceGetPowerManagementLimitConstraints, nvmlDeviceGetEnforcedPowerLimit.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping
from typing import Any

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Raw, scalar
from tuner.knobs.nvidia import FORGETFUL, NvidiaKnob, answer, asked, forgetful, given, tell
from tuner.model import Leaf, Reading, Seen, Setting, Value, Want, met

WATTS = re.compile(r"\d{1,5}(?:\.\d{1,3})?")
DEFAULT = "default"
"""The word for the limit that the device itself has as default: boards of one name differ (H800: 550 and 700 W)."""


class PowerLimit(NvidiaKnob):
    """The power limit of an NVIDIA GPU in W, within what the device allows: `limit`, and what is `enforced`.

    Targets are PCI addresses. A number names the limit; `default` is the device's own default, whatever that is. Less
    may be enforced than the limit says, by order of the chassis (out of band). Gone when the driver is unloaded, and
    that is at the last client without persistence mode: only the default is set then.
    """

    name = "nvidia.power_limit"
    persist = "boot unit"
    main = "limit"

    def parse(self, target: str, raw: Raw) -> Value:
        """Watts, or `default`: what is enforced is the device's own affair."""
        if isinstance(raw, dict):
            if set(raw) != {"limit"}:
                raise BadValue("only the limit can be wanted", "400, or {limit: 400}: what is enforced follows from it")
            raw = raw["limit"]
        text = scalar(raw).strip()
        if text == DEFAULT:
            return {"limit": DEFAULT}
        if not WATTS.fullmatch(text) or (text[0] == "0" and text[1:2].isdigit()):
            raise BadValue(f"{text!r:.60} is no power limit", "watts, such as 400, or default")
        return {"limit": _watts(_milliwatts(text))}

    def read(self, host: Host, target: str) -> Reading:
        """{limit, enforced} in W."""
        return asked(host, target, lambda: _limits(answer(host, target, "power")))

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """A number within the bounds of this device; OSError for `default` where NVML gives none."""
        power = answer(host, target, "power")
        if not isinstance(power, Mapping):
            raise OSError(errno.EREMOTEIO, "unexpected answer of NVML for the power limit")
        low, high, usual = (_bound(power, name) for name in ("min", "max", "default"))
        if _limit(value) == DEFAULT:
            return {"limit": _watts(given(usual))}
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

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """A driver that is loaded starts with the device's default, which `default` always is."""
        ahead = super().next_boot(boots, setting)
        with contextlib.suppress(OSError, Unrecorded, ValueError):
            if isinstance(ahead.reading, Seen):
                return Next(Seen(self.normalise(boots.host, setting.target, ahead.reading.value)))
            usual = self.normalise(boots.host, setting.target, {"limit": DEFAULT})
            if boots.unarmed and met(self._wanted(boots.host, setting), usual, self.key) != "drift":
                return Next(Seen(usual))
        return ahead

    def _wanted(self, host: Host, setting: Setting) -> Want:
        choices = tuple(self.normalise(host, setting.target, choice) for choice in setting.want.choices())
        return Want(setting.want.kind, choices if setting.want.kind == "one_of" else choices[0])

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
        return (
            "nvidia-smi(1), --power-limit; NVML: nvmlDeviceSetPowerManagementLimit, GetEnforcedPowerLimit, and"
            " GetPowerManagementDefaultLimit for `default`."
        )


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
