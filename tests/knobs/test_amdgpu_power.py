"""The knob `amdgpu.power_cap`: Linux amdgpu_pm.c (hwmon in microwatts) and smu_set_power_limit in amdgpu_smu.c."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, write_profile
from tests.knobs.gpu_host import BUSY, DEVICES, GPU, HWMON, WATT, gpu, make
from tuner.errors import BadValue, Refused
from tuner.knobs.amdgpu_power import LACKING, AmdgpuPowerCap
from tuner.model import Absent, Seen, Unreadable

KNOB = AmdgpuPowerCap()
CAP = "hwmon/hwmon7/power1_cap"


def read(tmp_path: Path, ids: str = "1002 74a1", driver: str = "amdgpu", **caps: Any) -> Any:
    files = {**HWMON, **{f"{CAP}{name.removeprefix('cap')}": found for name, found in caps.items()}}
    return KNOB.read(make(tmp_path, {GPU: gpu(ids, driver, files)}), GPU)


def test_watts_of_the_hwmon_that_is_the_gpu_s(tmp_path: Path) -> None:
    """K follows no order: another device of the same function has the lower one."""
    assert read(tmp_path, cap=f"{650 * WATT}") == Seen(650)


@pytest.mark.parametrize("text", ["", "4294967295", "18446744073709551615", "750000001", "N/A", "-1", "7.5", "\u0667"])
def test_what_is_no_number_of_watts_is_not_read(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, cap=text)
    assert isinstance(found, Unreadable)
    assert found.fault == "ours"
    assert "power1_cap" in found.why


def test_why_there_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, ids="1002 74b5") == Absent("virtual function: the host sets power")
    assert read(tmp_path, driver="vfio-pci") == Absent("bound to vfio-pci, not to amdgpu")
    assert KNOB.read(make(tmp_path, {GPU: gpu(files={"hwmon/hwmon3/name": "nvme"})}), GPU) == Absent(LACKING)
    assert KNOB.read(make(tmp_path, {}), GPU) == Absent("no device at this address")


def test_a_gpu_in_reset_is_busy_and_one_off_the_bus_is_dead(tmp_path: Path) -> None:
    busy = read(tmp_path, cap=BUSY)
    assert isinstance(busy, Unreadable)
    assert (busy.fault, busy.why) == ("ours", "in reset or suspended: the driver answers EPERM")
    host = make(tmp_path, {GPU: gpu(files=HWMON)})
    Path(f"{host.root}/sys/devices/pci0000:00/{GPU}/config").write_bytes(b"\xff" * 64)
    dead = KNOB.read(host, GPU)
    assert isinstance(dead, Unreadable)
    assert dead.fault == "device"
    assert "off the bus" in dead.why
    assert "692200000000" in dead.why


@pytest.mark.parametrize("raw", ["0", "-5", "4295", "750W", "7.5", "0750", None, ["750"], {"watts": "750"}])
def test_what_can_be_no_limit_on_any_gpu(raw: Any) -> None:
    with pytest.raises(BadValue):
        KNOB.parse(GPU, raw)


def test_0_is_said_to_be_what_the_driver_makes_of_it() -> None:
    with pytest.raises(BadValue, match="0 for the limit that is in force"):
        KNOB.parse(GPU, "0")


def test_bounds_are_those_of_this_gpu(tmp_path: Path) -> None:
    files = {**HWMON, f"{CAP}_min": f"{200 * WATT}", f"{CAP}_max": f"{650 * WATT}", f"{CAP}_default": f"{600 * WATT}"}
    host = make(tmp_path, {GPU: gpu(files=files)})
    assert [KNOB.normalise(host, GPU, KNOB.parse(GPU, text)) for text in ("200", "0x1f4", "650")] == [200, 500, 650]
    for watts in (199, 651):
        with pytest.raises(BadValue) as bad:
            KNOB.normalise(host, GPU, watts)
        assert "200..650" in bad.value.hint
        assert "600 by default" in bad.value.hint


def test_a_write_is_whole_watts_and_none_where_it_is_held(tmp_path: Path) -> None:
    host = make(tmp_path, {GPU: gpu(files=HWMON)})
    path = Path(f"{host.root}/sys/devices/pci0000:00/{GPU}/{CAP}")
    KNOB.write(host, GPU, 700)
    assert path.read_text() == "700000000\n"
    assert KNOB.read(host, GPU) == Seen(700)
    path.chmod(0o444)
    before = path.stat().st_mtime_ns
    KNOB.write(host, GPU, 700)
    assert path.stat().st_mtime_ns == before


def test_what_the_firmware_refuses_is_refused_with_the_gpu_named(tmp_path: Path) -> None:
    host = make(tmp_path, {GPU: gpu(files=HWMON)}, rule=", most: 600")
    with pytest.raises(Refused, match=r"refuses 700 W \(EINVAL\).*692200000000"):
        KNOB.write(host, GPU, 700)
    assert KNOB.read(host, GPU) == Seen(750)


def test_0_is_never_written(tmp_path: Path) -> None:
    host = make(tmp_path, {GPU: gpu(files=HWMON)})
    with pytest.raises(Refused, match="not tried"):
        KNOB.write(host, GPU, 0)


@pytest.mark.parametrize(
    ("text", "number", "shown"),
    [
        ("699999999", 0, 699), ("750000000", 0, 750), ("0", 0, 750), ("999999", 0, 750), ("1000000", 0, 1),
        ("751000000", errno.EINVAL, 750), ("4294967296", errno.ERANGE, 750), ("1e6", errno.EINVAL, 750),
    ],
)  # fmt: skip
def test_how_the_driver_answers(tmp_path: Path, text: str, number: int, shown: int) -> None:
    """Whole watts, below; 0 keeps the limit in force (smu_set_power_limit); kstrtou32 for the text."""
    host = make(tmp_path, {GPU: gpu(files=HWMON)})
    got = 0
    try:
        host.write(f"{DEVICES}/{GPU}/{CAP}", f"{text}\n")
    except OSError as error:
        got = error.errno or 0
    assert (got, KNOB.read(host, GPU)) == (number, Seen(shown))


def test_a_lower_limit_is_said_to_slow_jobs() -> None:
    assert "slower" in KNOB.note(750, 600, GPU)
    assert KNOB.note(600, 750, GPU) == ""
    assert KNOB.disruption(GPU) == "clocks"


def test_one_gpu_that_takes_less_is_drift_and_the_others_are_judged(
    copy_host: Callable[..., Path], tuner: Callable[..., Result]
) -> None:
    """The profile is not wrong, that device is; what no GPU takes is."""
    root = copy_host("mi300x-cx7")
    (place,) = (root / "sys/bus/pci/devices/0000:27:00.0").resolve().glob("hwmon/*/power1_cap_max")
    place.write_text("700000000\n")
    result = tuner("plan", "--profile", "mi300x", "--root", root, "--json")
    assert result.code == 10
    rows = {v["target"]: v for v in result.document["verdicts"] if v["knob"] == "amdgpu.power_cap"}
    assert [target for target, row in rows.items() if row["state"] == "drift"] == ["0000:27:00.0"]
    assert "1..700 W" in rows["0000:27:00.0"]["state_why"]
    assert "amdgpu.power_cap" not in {change["knob"] for change in result.document["changes"]}
    assert tuner("plan", "--profile", "mi300x", "--set", "amdgpu.power_cap:*=900", "--root", root).code == 64


@pytest.mark.parametrize(("value", "lost"), [("auto", set()), ("{level: perf_determinism, max: 1900}", {"clock"})])
def test_what_every_boot_brings_is_not_lost(
    copy_host: Callable[..., Path], tuner: Callable[..., Result], tmp_path: Path, value: str, lost: set[str]
) -> None:
    """Without a boot unit: `auto` and the default limit come back by themselves (mi300x.rst, thermal.rst)."""
    root = copy_host("mi300x-cx7")
    profile = write_profile(
        tmp_path / "p.yaml", f"amdgpu.clock: {{'*': {{value: {value}}}}}\namdgpu.power_cap: {{'*': 750}}"
    )
    assert tuner("apply", "--profile", profile, "--root", root, "--allow", "all").code == 0
    rows = tuner("verify", "--root", root, "--json").document["verdicts"]
    assert {v["knob"].removeprefix("amdgpu.") for v in rows if "lost" in (v["next_boot_why"] or "")} == lost
    assert {v["next_boot"] for v in rows if v["knob"] == "amdgpu.power_cap"} == {750}
