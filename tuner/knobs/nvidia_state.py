"""What NVIDIA GPUs and their fabric are like: judged only, with what the operator has to do.

NVML API Reference (nvmlDeviceGetGpuFabricInfoV, GetNvLinkState, GetRemappedRows); Fabric Manager for NVIDIA NVSwitch
Systems User Guide; NVIDIA GPU Memory Error Management. A fabric in progress without its manager: NVIDIA/DCGM#120.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.host.door import Host
from tuner.host.nvml import fault
from tuner.knobs.base import Knob, Raw, bounded, number, scalar
from tuner.knobs.nvidia import BRIDGE, RESET, VENDOR, NvidiaKnob, answer, asked, driver_version, given, is_gpu, word
from tuner.knobs.service import Service
from tuner.model import Absent, Leaf, Reading, Record, Seen, Setting, Unreadable, Value
from tuner.pci import devices

STATES = ("not_supported", "not_started", "in_progress", "completed")
FAILED = "failed"
POOR = ("unhealthy", "limited")
HEALTHS = ("healthy", *POOR)
"""What a fabric that is completed says of its health, and what of it nobody wants (nvmlGpuFabricInfo_v3_t)."""

MANAGER = "nvidia-fabricmanager.service"
ASKS = ("nv-fabricmanager", "--version")
TIMEOUT = 5.0
"""Seconds that the fabric manager has to say its version."""

FOUND = re.compile(r"Fabric Manager version is *: *(\d+(?:\.\d+)+)")
NUMBER = re.compile(r"\d+(?:\.\d+)+")
RUNNING = "running"
LINKS = 64
"""More links than any GPU has."""

ALL = "all"
"""Every link that the GPU has: those for which NVML has a state."""

ROWS = ("correctable", "uncorrectable", "pending", "failure")
FLAGS = ("pending", "failure")


class Fabric(NvidiaKnob):
    """Whether an NVIDIA GPU has joined its NVLink fabric: judged only. Wanted on NVSwitch systems: `completed`.

    Targets are PCI addresses. Three states are never as wanted: `failed` (completed with an error), `unhealthy` and
    `limited` (completed, and this is its health). Hopper and later; for an A100 judge nvidia.fabric_manager.
    """

    name = "nvidia.fabric"
    read_only = True
    bounds = False

    def parse(self, target: str, raw: Raw) -> Value:
        """One of the states."""
        state = scalar(raw)
        if state not in STATES:
            raise BadValue(f"{state!r:.60} is no state of a fabric", f"one of {', '.join(STATES)}")
        return state

    def read(self, host: Host, target: str) -> Reading:
        """The word for the state, or for what is wrong with one that is completed."""
        found = asked(host, target, lambda: _state(answer(host, target, "fabric")))
        if found == Seen(STATES[0]):
            return Absent("this GPU has no fabric state: judge nvidia.fabric_manager")
        return found

    def advice(self, host: Host, target: str, value: Value) -> str:
        """The fabric manager is what brings a GPU into the fabric."""
        found = Service().read(host, MANAGER)
        held: Record = found.value if isinstance(found, Seen) and isinstance(found.value, Mapping) else {}
        if held and held.get("state") != "active":
            return f"{MANAGER} is {held.get('state')}: systemctl start {MANAGER}, with no job on the node"
        state = self.read(host, target)
        if isinstance(state, Seen) and state.value in POOR:
            where = f"nvidia-smi -q -i {target} (Fabric, Health) says in what, journalctl -u {MANAGER} at which link"
            return f"the fabric is {state.value}: {where}; keep jobs off the node until it is healthy"
        return f"see nvidia-smi -q -i {target} (Fabric) and journalctl -u {MANAGER}; its version must be the driver's"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "NVML: nvmlDeviceGetGpuFabricInfoV; Fabric Manager for NVIDIA NVSwitch Systems User Guide."


def _state(fabric: Any) -> str:
    """The state; of one that is completed, `failed` after an error, or its health where that is poor.

    nvmlGpuFabricInfo_v3_t: status, and healthSummary, which older drivers do not give. Both mean nothing before.
    """
    state = word(fabric["state"], STATES)
    if state != "completed":
        return state
    if fabric.get("status") not in (None, "SUCCESS"):
        return FAILED
    health = fabric.get("health")
    return state if health is None or word(health, HEALTHS) not in POOR else str(health)


class FabricManager(Knob):
    """The fabric manager of a host with NVSwitch: judged only. `running`: active, and of the driver's version.

    The target is nvidia-fabricmanager.service. A record {service, version, driver}. The versions must match exactly,
    package for package: another one does not bring up the fabric.
    """

    name = "nvidia.fabric_manager"
    main = "service"
    read_only = True
    bounds = False
    cost = "tool"

    def canonical(self, target: str) -> str:
        """The one unit, or a pattern over it."""
        if target in (MANAGER, MANAGER.removesuffix(".service")):
            return MANAGER
        if set(target) & set("*?["):
            return target
        raise BadValue(f"{target!r:.60} is no fabric manager", f"the target is {MANAGER}")

    def parse(self, target: str, raw: Raw) -> Value:
        """`running`, or a mapping of service and version."""
        if raw == RUNNING:
            return RUNNING
        if not isinstance(raw, dict) or not raw or set(raw) - {"service", "version"}:
            raise BadValue("a fabric manager is running, or {service, version}", "running")
        wanted: dict[str, Leaf] = {name: scalar(text) for name, text in raw.items()}
        if wanted.get("service", "active") not in ("active", "inactive"):
            raise BadValue(f"{raw['service']!r:.60} is no state of a service", "active or inactive")
        if "version" in wanted and not NUMBER.fullmatch(str(wanted["version"])):
            raise BadValue(f"{raw['version']!r:.60} is no version", "such as 550.90.07")
        return wanted

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The unit, on a host that has GPUs or switches of NVIDIA."""
        return [MANAGER] if any(is_gpu(d) or _is_switch(d.id, d.pci_class) for d in devices(host)) else []

    def search_root(self, pattern: str) -> str:
        """One look finds it."""
        return ""

    def read(self, host: Host, target: str) -> Reading:
        """{service, version, driver}."""
        if not any(_is_switch(d.id, d.pci_class) for d in devices(host)):
            return Absent("no NVSwitch on this host")
        found = Service().read(host, MANAGER)
        if not isinstance(found, Seen) or not isinstance(found.value, Mapping):
            return found
        driver = driver_version(host)
        if not driver:
            return Unreadable("the version of the driver cannot be read: is the driver loaded?")
        record: dict[str, Leaf] = {"service": found.value["state"], "version": None, "driver": driver}
        if found.value["enabled"] == "absent":
            return Seen(record)
        ran = host.command(ASKS, TIMEOUT)
        version = FOUND.search(ran.out) if ran.code == 0 else None
        if version is None:
            return Unreadable(f"{' '.join(ASKS)}: {ran.failure or 'no version in what it says'}")
        return Seen({**record, "version": version.group(1)})

    def write(self, host: Host, target: str, value: Value) -> None:
        """Services are started and stopped by the operator."""
        raise Refused("tuner does not start or stop services")

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """What `running` is on this host."""
        if value != RUNNING:
            return value
        driver = driver_version(host)
        if not driver:
            raise fault("DRIVER_NOT_LOADED")
        return {"service": "active", "version": driver}

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What to install or to start."""
        found = self.read(host, target)
        held: Record = found.value if isinstance(found, Seen) and isinstance(found.value, Mapping) else {}
        rule = f"fabric manager and driver must be of exactly one version, and the driver is {held.get('driver')}"
        if held.get("version") is None:
            return f"install the package of the fabric manager: {rule}"
        if held["version"] != held["driver"]:
            return f"install the fabric manager of that version in place of {held['version']}: {rule}"
        if held["service"] != "active":
            return f"systemctl enable --now {MANAGER}, with no job on the node; journalctl -u {MANAGER} says why not"
        return rule

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """Whether the next boot starts it, by the files of the unit; the versions stay what they are."""
        found = self.read(boots.host, setting.target)
        if not isinstance(found, Seen) or not isinstance(found.value, Mapping):
            return Next(found)
        ahead = Service().next_boot(boots, setting)
        if not isinstance(ahead.reading, Seen) or not isinstance(ahead.reading.value, Mapping):
            return ahead
        return Next(Seen({**found.value, "service": ahead.reading.value["state"]}), ahead.winner)

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "Fabric Manager for NVIDIA NVSwitch Systems User Guide: its version must match the driver's."


def _is_switch(ids: str, kind: int) -> bool:
    return ids.partition(":")[0] == VENDOR and kind >> 8 == BRIDGE


class NvLinks(NvidiaKnob):
    """How many NVLinks of an NVIDIA GPU are active: judged only. `all`, or a number, best with at_least.

    Targets are PCI addresses. `all` are those that the GPU has by its own account. How many that is differs even within
    a generation (an H800 has fewer than an H100): a number is that of a good node, `nvidia-smi nvlink -s`.
    """

    name = "nvidia.nvlinks"
    read_only = True

    def parse(self, target: str, raw: Raw) -> Value:
        """A number of links, or all."""
        return ALL if raw == ALL else bounded(number(raw), 0, LINKS)

    def read(self, host: Host, target: str) -> Reading:
        """How many are active."""
        return asked(host, target, lambda: _links(host, target).count("active"))

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """How many links `all` are on this GPU."""
        return value if value != ALL else sum(state is not None for state in _links(host, target))

    def advice(self, host: Host, target: str, value: Value) -> str:
        """Which links are down, and where to look."""
        down = [str(number) for number, state in enumerate(_links(host, target)) if state == "inactive"]
        which = f"link{'s' * (len(down) != 1)} {', '.join(down)} down" if down else "it has no more links"
        return f"{which}: nvidia-smi nvlink -s -i {target}; on an NVSwitch host see journalctl -u {MANAGER}"

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "nvidia-smi(1), nvlink; NVML: nvmlDeviceGetNvLinkState."


def _links(host: Host, target: str) -> list[Any]:
    """The state of each link that the GPU has; OSError for a GPU without any."""
    found = answer(host, target, "nvlinks")
    if not isinstance(found, list) or not {*map(str, found)} <= {"active", "inactive", "None"}:
        raise ValueError(f"{found!r:.60} is no list of links")
    if not any(found):
        raise fault("NOT_SUPPORTED")
    return found


class RowRemap(NvidiaKnob):
    """Rows of an NVIDIA GPU's memory that were remapped: judged only. Wanted: {pending: no, failure: no}.

    Targets are PCI addresses. A record {correctable, uncorrectable} of counts and {pending, failure} of yes or no. A
    row that is pending is remapped at the next reset; a failure means that the GPU has no spare rows left.
    """

    name = "nvidia.row_remap"
    read_only = True

    def parse(self, target: str, raw: Raw) -> Value:
        """A mapping of counts and of yes or no."""
        if not isinstance(raw, dict) or not raw or set(raw) - set(ROWS):
            raise BadValue(f"it has {', '.join(ROWS)}", "{pending: no, failure: no}")
        return {name: _row(name, raw[name]) for name in ROWS if name in raw}

    def read(self, host: Host, target: str) -> Reading:
        """{correctable, uncorrectable, pending, failure}."""
        return asked(host, target, lambda: _rows(answer(host, target, "remapped_rows")))

    def advice(self, host: Host, target: str, value: Value) -> str:
        """Reset it, or replace it."""
        found = self.read(host, target)
        held: Record = found.value if isinstance(found, Seen) and isinstance(found.value, Mapping) else {}
        if held.get("failure") == "yes":
            return "replace the GPU: it has no spare rows for a bad one"
        if held.get("pending") == "yes":
            return f"a reset remaps the bad row: {RESET.format(target)}"
        return f"rows fail: watch it (nvidia-smi -q -i {target} -d ROW_REMAPPER), replace the GPU as its vendor advises"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """A reboot resets the GPU, which remaps the row that waits for it unless the GPU has no spare one."""
        found = self.read(boots.host, setting.target)
        if not isinstance(found, Seen) or not isinstance(found.value, Mapping) or found.value["failure"] == "yes":
            return Next(found)
        return Next(Seen({**found.value, "pending": "no"}))

    def about(self, target: str) -> str:
        """Where it is documented."""
        return "NVIDIA GPU Memory Error Management, Row Remapping (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)."


def _row(name: str, raw: Raw) -> Leaf:
    if name not in FLAGS:
        return bounded(number(raw), 0, None)
    if raw not in ("yes", "no"):
        raise BadValue(f"{raw!r:.60}: {name} is yes or no", f"{name}: no")
    return str(raw)


def _rows(found: Any) -> Value:
    counts: dict[str, Leaf] = {name: int(given(found[name])) for name in ROWS if name not in FLAGS}
    return {**counts, **{name: "yes" if given(found[name]) else "no" for name in FLAGS}}
