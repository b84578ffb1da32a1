"""Fabric, fabric manager, NVLinks and remapped rows of NVIDIA GPUs: what is read and what the operator is told to do.

States of a fabric and of rows: NVML API Reference. A fabric in progress with a stopped manager: NVIDIA/DCGM#120. The
manager's version must be the driver's: Fabric Manager for NVIDIA NVSwitch Systems User Guide.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, write_profile
from tests.knobs.nvidia_host import DRIVER, GPU, H800, SWITCH, Build, function
from tuner.errors import BadValue, Refused
from tuner.host.recorded import RecordedHost
from tuner.knobs.base import Knob
from tuner.knobs.nvidia_state import MANAGER, Fabric, FabricManager, NvLinks, RowRemap
from tuner.model import Absent, Seen, Setting, Unreadable, Want, met
from tuner.plan import normalised

FABRIC, FM, LINKS, ROWS = Fabric(), FabricManager(), NvLinks(), RowRemap()
UNIT = f"/usr/lib/systemd/system/{MANAGER}"
PROCS = f"/sys/fs/cgroup/system.slice/{MANAGER}/cgroup.procs"
SAYS = "/.tuner-host/cmd/nv-fabricmanager --version"


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(...) -> a recorded host with an A100."""
    return Build(tmp_path)


def switched(
    build: Build, running: bool = True, version: str | None = DRIVER, said: str = "", **more: Any
) -> RecordedHost:
    """A host with an NVSwitch; `version` is that of its fabric manager, None where none is installed."""
    text = said or f"exit 0\nFabric Manager version is : {version}\n"
    files = {SAYS: text, **({PROCS: "1234\n"} if running else {})}
    if version is not None:
        files[UNIT] = "[Service]\nType=forking\nExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/fabric.cfg\n"
    known = "dir 0755 /run/systemd/system\ndir 0755 /run/systemd/units\nabsent /etc\nabsent /lib\n"
    if version is None:
        known += "absent /usr\n"
    if not running:
        known += "dir 0755 /sys/fs/cgroup/system.slice\n"
    if running:
        known = known.replace("/units\n", f"/units\n|invocation:{MANAGER}\n")
        known += f"link 0777 /run/systemd/units/invocation:{MANAGER}\n+0123456789abcdef\n"
    return build(
        functions={SWITCH: function("10de 22a3", "068000", "nvidia-nvswitch")}, files=files, more=known, **more
    )


# --- fabric -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["not_started", "in_progress", "completed"])
def test_the_state_of_the_fabric(build: Build, state: str) -> None:
    """The word, and only completed is what a host wants."""
    host = build(fabric={"state": state, "status": "SUCCESS", "health": "healthy"})
    assert FABRIC.read(host, GPU) == Seen(state)
    want = Want("value", FABRIC.parse(GPU, "completed"))
    assert met(want, state, FABRIC.key) == ("ok" if state == "completed" else "drift")
    for raw in ("3", "done", "", None, ["completed"]):
        with pytest.raises(BadValue):
            FABRIC.parse(GPU, raw)  # type: ignore[arg-type]


def test_a_fabric_that_is_completed_with_an_error_has_failed(build: Build) -> None:
    """Never as wanted; the status of another state means nothing."""
    host = build(fabric={"state": "completed", "status": "TIMEOUT", "health": None})
    assert FABRIC.read(host, GPU) == Seen("failed")
    host = build(fabric={"state": "in_progress", "status": "UNKNOWN", "health": None})
    assert FABRIC.read(host, GPU) == Seen("in_progress")


def test_a_gpu_without_a_fabric_is_absent(build: Build) -> None:
    """An A100 does not say: its fabric manager is judged instead."""
    assert FABRIC.read(build(), GPU) == Absent("this GPU does not support it")
    found = FABRIC.read(build(fabric={"state": "not_supported", "status": None, "health": None}), GPU)
    assert isinstance(found, Absent) and "nvidia.fabric_manager" in found.why


def test_a_fabric_in_progress_without_its_manager(build: Build) -> None:
    """The manager is what is missing; while it runs its journal tells."""
    progress: dict[str, Any] = {"fabric": {"state": "in_progress", "status": None, "health": None}}
    stopped = switched(build, running=False, **progress)
    assert f"{MANAGER} is inactive: systemctl start {MANAGER}" in FABRIC.advice(stopped, GPU, "completed")
    assert f"journalctl -u {MANAGER}" in FABRIC.advice(switched(build, **progress), GPU, "completed")
    assert f"journalctl -u {MANAGER}" in FABRIC.advice(build(**progress), GPU, "completed")


@pytest.mark.parametrize(("health", "said"), [("healthy", ""), (None, ""), ("unhealthy", "unhealthy"),
                                              ("limited", "limited")])  # fmt: skip
def test_a_complete_fabric_may_be_unhealthy(build: Build, health: str | None, said: str) -> None:
    """A remark, for the state is as wanted."""
    host = build(fabric={"state": "completed", "status": "SUCCESS", "health": health})
    remark = FABRIC.remark(host, GPU, "completed")
    assert (said in remark) and bool(remark) == bool(said)


# --- fabric manager -----------------------------------------------------------------------------------------------


def verdict(host: RecordedHost, raw: Any = "running") -> str:
    """How the manager stands to the Want, as plan judges it."""
    setting = Setting(FM.name, MANAGER, MANAGER, Want("value", FM.parse(MANAGER, raw)), "p:1", "", "")
    want, found = normalised(host, FM, setting), FM.read(host, MANAGER)
    assert want is not None and isinstance(found, Seen), found
    return met(want, found.value, FM.key)


def test_a_manager_of_the_drivers_version_that_runs(build: Build) -> None:
    """Active and equal, to the last digit."""
    host = switched(build)
    assert FM.read(host, MANAGER) == Seen({"service": "active", "version": DRIVER, "driver": DRIVER})
    assert verdict(host) == "ok"
    assert FM.targets(host) == [MANAGER]


@pytest.mark.parametrize("version", ["550.90.12", "550.90.07.01", "550.90", "525.147.05"])
def test_a_manager_of_another_version(build: Build, version: str) -> None:
    """Packages must match exactly."""
    host = switched(build, version=version)
    assert verdict(host) == "drift"
    said = FM.advice(host, MANAGER, {"service": "active", "version": DRIVER})
    assert "exactly one version" in said and DRIVER in said and version in said
    assert verdict(host, {"service": "active"}) == "ok"
    assert verdict(host, {"version": version}) == "ok"


def test_a_manager_that_is_stopped(build: Build) -> None:
    """Start it, while no job runs."""
    host = switched(build, running=False)
    assert verdict(host) == "drift"
    assert f"systemctl enable --now {MANAGER}" in FM.advice(host, MANAGER, {"service": "active"})


def test_a_manager_that_is_not_installed(build: Build) -> None:
    """No program is asked for its version."""
    host = switched(build, running=False, version=None, said="exit 127\n")
    assert FM.read(host, MANAGER) == Seen({"service": "inactive", "version": None, "driver": DRIVER})
    assert verdict(host) == "drift"
    said = FM.advice(host, MANAGER, {"service": "active", "version": DRIVER})
    assert said.startswith("install the package") and DRIVER in said


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("exit 1\n", "ended with 1"),
        ("exit 0\n", "no version"),
        ("exit 0\nFabric Manager version is : unknown\n", "no version"),
    ],
)
def test_a_version_that_cannot_be_told_is_ours(build: Build, said: str, why: str) -> None:
    """Never taken for a wrong one."""
    found = FM.read(switched(build, said=said), MANAGER)
    assert isinstance(found, Unreadable) and found.fault == "ours" and why in found.why


def test_without_a_driver_nothing_is_compared(build: Build) -> None:
    """Unknown, and no value to want."""
    host = switched(build)
    Path(host.root, "sys/module/nvidia/version").unlink()
    Path(host.root, ".tuner-host/nvml/system/driver").write_text("error DRIVER_NOT_LOADED\n")
    found = FM.read(host, MANAGER)
    assert isinstance(found, Unreadable) and "driver" in found.why
    with pytest.raises(OSError):
        FM.normalise(host, MANAGER, "running")


def test_a_host_without_nvswitch_needs_none(build: Build) -> None:
    """Absent, not drift."""
    assert FM.read(build(), MANAGER) == Absent("no NVSwitch on this host")
    assert FM.targets(build()) == [MANAGER]


@pytest.mark.parametrize("raw", ["active", "stopped", None, [], {}, {"service": "running"}, {"version": "latest"},
                                 {"driver": "550.90.07"}, {"service": None}])  # fmt: skip
def test_what_is_no_manager(raw: Any) -> None:
    """`running`, or states and versions."""
    with pytest.raises(BadValue):
        FM.parse(MANAGER, raw)


def test_names_of_the_manager() -> None:
    """One unit."""
    assert FM.canonical("nvidia-fabricmanager") == FM.canonical(MANAGER) == MANAGER
    assert FM.canonical("*") == "*"
    with pytest.raises(BadValue):
        FM.canonical("fabricmanager.service")


def test_plan_tells_and_apply_leaves_it(build: Build, tmp_path: Path, tuner: Callable[..., Result]) -> None:
    """On the command line."""
    host = switched(build, version="550.90.12")
    profile = write_profile(tmp_path / "p.yaml", f"nvidia.fabric_manager:\n  {MANAGER}: running")
    result = tuner("plan", "--profile", profile, "--root", host.root, "--json")
    assert result.code == 10 and result.document["changes"] == []
    (found,) = result.document["verdicts"]
    assert found["state"] == "drift" and "exactly one version" in found["state_why"]
    with pytest.raises(Refused):
        FM.write(host, MANAGER, "running")


# --- NVLinks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "active", "down"),
    [
        (["active"] * 12, 12, "no more links"),
        (["active"] * 8 + [None] * 10, 8, "no more links"),
        (["active", "inactive", "active"], 2, "link 1 down"),
        (["inactive", "inactive"], 0, "links 0, 1 down"),
    ],
)
def test_active_links_are_counted(build: Build, links: list[Any], active: int, down: str) -> None:
    """Those that the GPU does not have are neither up nor down."""
    host = build(nvlinks=links)
    assert LINKS.read(host, GPU) == Seen(active)
    said = LINKS.advice(host, GPU, 12)
    assert down in said and f"nvidia-smi nvlink -s -i {GPU}" in said


@pytest.mark.parametrize("links", [[], [None] * 18])
def test_a_gpu_without_links(build: Build, links: list[Any]) -> None:
    """A PCIe card."""
    assert LINKS.read(build(nvlinks=links), GPU) == Absent("this GPU does not support it")


def test_links_are_compared_as_numbers(build: Build) -> None:
    """An H800 has fewer than an H100: at_least."""
    found = LINKS.read(build(**H800), GPU)
    assert found == Seen(8)
    assert met(Want("at_least", LINKS.parse(GPU, "8")), 8, LINKS.key) == "ok"
    assert met(Want("at_least", LINKS.parse(GPU, "18")), 8, LINKS.key) == "drift"
    for raw in ("-1", "65", "all", None, "012"):
        with pytest.raises(BadValue):
            LINKS.parse(GPU, raw)


# --- rows ---------------------------------------------------------------------------------------------------------

CLEAN: dict[str, Any] = {"correctable": 0, "uncorrectable": 0, "pending": "no", "failure": "no"}


@pytest.mark.parametrize(
    ("rows", "state", "advice"),
    [
        ({}, "ok", ""),
        ({"correctable": 3}, "ok", ""),
        ({"uncorrectable": 1, "pending": True}, "drift", f"nvidia-smi --gpu-reset -i {GPU}"),
        ({"uncorrectable": 9, "failure": True}, "drift", "replace the GPU"),
        ({"uncorrectable": 9, "failure": True, "pending": True}, "drift", "replace the GPU"),
    ],
)
def test_rows_of_memory(build: Build, rows: dict[str, Any], state: str, advice: str) -> None:
    """What waits for a reset, and what no reset mends."""
    host = build(remapped_rows={"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False, **rows})
    found = ROWS.read(host, GPU)
    words = {name: ("yes" if v else "no") if isinstance(v, bool) else v for name, v in rows.items()}
    assert isinstance(found, Seen) and found.value == {**CLEAN, **words}
    want = Want("value", ROWS.parse(GPU, {"pending": "no", "failure": "no"}))
    assert met(want, found.value, ROWS.key) == state
    assert state == "ok" or advice in ROWS.advice(host, GPU, want.value)


def test_counts_of_rows_have_bounds(build: Build) -> None:
    """Words have none."""
    found = ROWS.read(build(), GPU)
    assert found == Seen(CLEAN)
    assert met(Want("at_most", ROWS.parse(GPU, {"correctable": "512"})), CLEAN, ROWS.key) == "ok"
    assert "ROW_REMAPPER" in ROWS.advice(build(), GPU, {"correctable": 0})


@pytest.mark.parametrize("raw", ["no", None, {}, [], {"pending": "false"}, {"failure": None}, {"correctable": "-1"},
                                 {"rows": "0"}])  # fmt: skip
def test_what_is_no_state_of_rows(raw: Any) -> None:
    """yes and no."""
    with pytest.raises(BadValue):
        ROWS.parse(GPU, raw)


@pytest.mark.parametrize("part", ["correctable", "uncorrectable", "pending", "failure"])
def test_a_part_that_is_null_is_not_supported(build: Build, part: str) -> None:
    """Never taken for 0 or no."""
    rows = {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False, part: None}
    assert ROWS.read(build(remapped_rows=rows), GPU) == Absent("this GPU does not support it")


@pytest.mark.parametrize("knob", [FABRIC, FM, LINKS, ROWS])
def test_they_say_where_they_are_documented(knob: Knob) -> None:
    """For explain."""
    assert knob.about(GPU) and knob.read_only
