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
from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.host.recorded import RecordedHost
from tuner.knobs.base import Knob
from tuner.knobs.nvidia import RESET
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
    build: Build,
    running: bool = True,
    version: str | None = DRIVER,
    said: str = "",
    enabled: bool = False,
    **more: Any,
) -> RecordedHost:
    """A host with an NVSwitch; `version` is that of its fabric manager, None where none is installed."""
    text = said or f"exit 0\nFabric Manager version is : {version}\n"
    files = {SAYS: text, **({PROCS: "1234\n"} if running else {})}
    if version is not None:
        files[UNIT] = "[Service]\nType=forking\nExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/fabric.cfg\n"
    known = "dir 0755 /run/systemd/system\ndir 0755 /run/systemd/units\nabsent /lib\n"
    known += ENABLED if enabled else "absent /etc\n"
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


@pytest.mark.parametrize(
    ("health", "state"),
    [("healthy", "completed"), (None, "completed"), ("unhealthy", "unhealthy"), ("limited", "limited")],
)
def test_a_complete_fabric_may_be_unhealthy(build: Build, health: str | None, state: str) -> None:
    """Then it is not what a host wants; a driver that does not say is taken at its word. Nobody can want the poor."""
    host = build(fabric={"state": "completed", "status": "SUCCESS", "health": health})
    assert FABRIC.read(host, GPU) == Seen(state)
    assert met(Want("value", "completed"), state, FABRIC.key) == ("ok" if state == "completed" else "drift")
    if state != "completed":
        said = FABRIC.advice(host, GPU, "completed")
        assert f"the fabric is {state}" in said and f"nvidia-smi -q -i {GPU}" in said and "keep jobs off" in said
        with pytest.raises(BadValue):
            FABRIC.parse(GPU, state)


def test_an_error_of_the_fabric_outweighs_its_health(build: Build) -> None:
    """And before it is completed neither means anything."""
    for state, found in (("completed", "failed"), ("in_progress", "in_progress"), ("not_started", "not_started")):
        host = build(fabric={"state": state, "status": "TIMEOUT", "health": "unhealthy"})
        assert FABRIC.read(host, GPU) == Seen(found)


@pytest.mark.parametrize("health", ["poor", "", 2, ["healthy"], True])
def test_a_health_that_is_none_is_unknown(build: Build, health: Any) -> None:
    """Never taken for healthy."""
    found = FABRIC.read(build(fabric={"state": "completed", "status": "SUCCESS", "health": health}), GPU)
    assert isinstance(found, Unreadable) and found.fault == "ours"


def test_a_stopped_manager_is_named_before_the_health(build: Build) -> None:
    host = switched(build, running=False, fabric={"state": "completed", "status": "SUCCESS", "health": "unhealthy"})
    assert FABRIC.advice(host, GPU, "completed").startswith(f"{MANAGER} is inactive: systemctl start")


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


def ahead(host: RecordedHost, knob: Knob, target: str, want: Any) -> Next:
    """What the next boot brings."""
    return knob.next_boot(Boots(host), Setting(knob.name, target, target, Want("value", want), "p:1", "", ""))


WANTS = f"/etc/systemd/system/multi-user.target.wants/{MANAGER}"
ENABLED = (
    "dir 0755 /etc\n|systemd\ndir 0755 /etc/systemd\n|system\ndir 0755 /etc/systemd/system\n|multi-user.target.wants\n"
    f"dir 0755 /etc/systemd/system/multi-user.target.wants\n|{MANAGER}\nlink 0777 {WANTS}\n+{UNIT}\n"
)


@pytest.mark.parametrize("running", [True, False])
def test_the_next_boot_starts_a_manager_that_is_enabled(build: Build, running: bool) -> None:
    """Whether it runs now or not; its version and the driver's stay."""
    host = switched(build, running=running, enabled=True)
    found = ahead(host, FM, MANAGER, "running")
    assert found == Next(Seen({"service": "active", "version": DRIVER, "driver": DRIVER}), WANTS)


def test_the_next_boot_does_not_start_a_manager_that_is_disabled(build: Build) -> None:
    """By the file of the unit, which then decides."""
    found = ahead(switched(build, running=False), FM, MANAGER, "running")
    assert found == Next(Seen({"service": "inactive", "version": DRIVER, "driver": DRIVER}), UNIT)


def test_a_manager_that_runs_and_is_not_enabled_is_not_predicted(build: Build) -> None:
    """Something else started it, by hand most likely: never taken for what the next boot does."""
    found = ahead(switched(build), FM, MANAGER, "running")
    assert isinstance(found.reading, Unreadable) and "without being enabled" in found.reading.why


def test_the_next_boot_of_what_cannot_be_read_or_is_not_there(build: Build) -> None:
    """No version, no switch: as now. Not installed: inactive."""
    found = ahead(switched(build, said="exit 1\n", enabled=True), FM, MANAGER, "running")
    assert isinstance(found.reading, Unreadable)
    assert ahead(build(), FM, MANAGER, "running") == Next(Absent("no NVSwitch on this host"))
    none = switched(build, running=False, version=None, said="exit 127\n")
    assert ahead(none, FM, MANAGER, "running") == Next(Seen({"service": "inactive", "version": None, "driver": DRIVER}))


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
    for raw in ("-1", "65", "every", "All", "", None, "012", ["all"]):
        with pytest.raises(BadValue):
            LINKS.parse(GPU, raw)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("links", "count", "state"),
    [
        (["active"] * 8, 8, "ok"),
        (["active"] * 18, 18, "ok"),
        (["active"] * 8 + [None] * 10, 8, "ok"),
        ([None, "active", None, "active"], 2, "ok"),
        (["active"] * 5 + ["inactive"] + ["active"] * 2, 8, "drift"),
        (["inactive"] * 8, 8, "drift"),
    ],
)
def test_all_links_are_those_that_the_gpu_has(build: Build, links: list[Any], count: int, state: str) -> None:
    """Counted on each device: those for which NVML has a state."""
    host = build(nvlinks=links)
    setting = Setting(LINKS.name, GPU, GPU, Want("value", LINKS.parse(GPU, "all")), "p:1", "", "")
    want, found = normalised(host, LINKS, setting), LINKS.read(host, GPU)
    assert want == Want("value", count) and isinstance(found, Seen)
    assert met(want, found.value, LINKS.key) == state
    assert LINKS.normalise(host, GPU, 7) == 7


@pytest.mark.parametrize(
    ("answer", "state"), [([], "unsupported"), ("error TIMEOUT", "unknown"), (["active", "down"], "unknown")]
)
def test_all_links_of_a_gpu_that_does_not_say(
    build: Build, tmp_path: Path, tuner: Callable[..., Result], answer: Any, state: str
) -> None:
    """Never as wanted by having none."""
    host = build(nvlinks=answer)
    profile = write_profile(tmp_path / "p.yaml", 'nvidia.nvlinks:\n  "*": all')
    (found,) = tuner("plan", "--profile", profile, "--root", host.root, "--json").document["verdicts"]
    assert found["state"] == state


# --- rows ---------------------------------------------------------------------------------------------------------

CLEAN: dict[str, Any] = {"correctable": 0, "uncorrectable": 0, "pending": "no", "failure": "no"}


@pytest.mark.parametrize(
    ("rows", "state", "advice"),
    [
        ({}, "ok", ""),
        ({"correctable": 3}, "ok", ""),
        ({"uncorrectable": 1, "pending": True}, "drift", RESET.format(GPU)),
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


@pytest.mark.parametrize(
    ("rows", "then"),
    [
        ({}, {}),
        ({"uncorrectable": 1, "pending": True}, {"uncorrectable": 1, "pending": "no"}),
        ({"failure": True}, {"failure": "yes"}),
        ({"pending": True, "failure": True}, {"pending": "yes", "failure": "yes"}),
    ],
)
def test_a_reboot_remaps_the_row_that_waits(build: Build, rows: dict[str, Any], then: dict[str, Any]) -> None:
    """Unless there is no spare one: a failure stays."""
    host = build(remapped_rows={"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False, **rows})
    assert ahead(host, ROWS, GPU, {"pending": "no"}) == Next(Seen({**CLEAN, **then}))
    lost = build(remapped_rows="error GPU_IS_LOST")
    assert ahead(lost, ROWS, GPU, {"pending": "no"}) == Next(ROWS.read(lost, GPU))


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
