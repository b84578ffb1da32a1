"""The profile `mi300x` and the overlay `deterministic-clocks` on the recorded host mi300x-cx7.

Values: ROCm/amdgpu-docs docs/system-optimization/mi300x.rst, ROCm/rocm-systems
projects/amdsmi/docs/conceptual/perf-determinism.md, Linux drivers/gpu/drm/amd/pm (amdgpu_pm.c, smu_v13_0_6_ppt.c).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.host import open_host

DEVICES = "/sys/bus/pci/devices"
GPUS = [f"0000:{bus}:00.0" for bus in ("05", "27", "47", "65", "85", "a7", "c7", "e5")]
LEVEL, TABLE = "power_dpm_force_performance_level", "pp_od_clk_voltage"
AUTO, CAPPED = ("auto", 500, 2100), ("perf_determinism", 500, 1900)
ONLY_CLOCKS = 'amdgpu.clock: {"*": auto}'
CAP = ("--with", "deterministic-clocks")
Tuner = Callable[..., Result]


def echo(root: Path, gpu: str, *texts: str) -> None:
    """What somebody else writes to the files of a GPU; what the driver refuses is refused."""
    host = open_host(str(root))
    for text in texts:
        name = TABLE if text.split()[0] in ("s", "m", "c", "r") else LEVEL
        try:
            host.write(f"{DEVICES}/{gpu}/{name}", f"{text}\n")
        except OSError:
            continue


def held(root: Path, gpu: str) -> tuple[str, int, int]:
    """Level and limits in force, read without tuner."""
    folder = (root / f"sys/bus/pci/devices/{gpu}").resolve()
    level, lines = (folder / LEVEL).read_text().strip(), (folder / TABLE).read_text().splitlines()
    low, high = (int(line.split()[1].removesuffix("Mhz")) for line in lines[1:3])
    return level, low, high


def visible(root: Path) -> dict[str, Any]:
    """The tree without what no file of a kernel shows: values that are staged in the driver."""
    return {path: entry for path, entry in tree(root).items() if not path.startswith(".tuner-host/state")}


def verdicts(result: Result) -> dict[str, dict[str, Any]]:
    return {v["target"]: v for v in result.document["verdicts"] if v["knob"] == "amdgpu.clock"}


def lose(root: Path, gpu: str) -> None:
    """A GPU that fell off the bus: the kernel removes its device and every link to it."""
    link = root / f"sys/bus/pci/devices/{gpu}"
    place = link.resolve()
    link.unlink()
    shutil.rmtree(place)


# --- what the profile wants


def test_the_firmware_keeps_the_clocks_by_default(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("mi300x-cx7")
    result = tuner("plan", "--profile", "mi300x", "--root", root, "--json")
    rows = verdicts(result)
    assert sorted(rows) == GPUS
    assert {row["state"] for row in rows.values()} == {"ok"}
    assert {row["disruption"] for row in rows.values()} == {"clocks"}
    assert all("amdgpu-docs" in row["source"] for row in rows.values())
    every = {(v["knob"], v["target"]): v for v in result.document["verdicts"]}
    assert every["cmdline", "pci"]["state"] == every["cmdline", "iommu"]["state"] == "ok"
    assert all(v["why"] or v["state"] == "ok" for v in every.values())


def test_other_hosts_are_refused(root: Path, copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """A virtual machine; seven of eight; virtual functions."""
    for host in (root, copy_host("mi300x-cx7", "gpu-lost"), copy_host("mi300x-cx7", "vf")):
        before = tree(host)
        result = tuner("apply", "--profile", "mi300x", "--allow", "all", "--root", host)
        assert result.code == 31
        assert "8 GPU 1002:74a1 with driver amdgpu" in result.err
        assert tree(host) == before


@pytest.mark.parametrize("fault", ["ast-absent", "cpx"])
def test_numbers_of_cards_and_partitions_are_nothing_to_it(
    copy_host: Callable[..., Path], tuner: Tuner, fault: str
) -> None:
    root = copy_host("mi300x-cx7", fault)
    rows = verdicts(tuner("plan", "--profile", "mi300x", "--root", root, "--json"))
    assert sorted(rows) == GPUS


def test_what_the_driver_refuses_is_refused_before_anything_is_written(
    copy_host: Callable[..., Path], tuner: Tuner
) -> None:
    root = copy_host("mi300x-cx7")
    for gpu in GPUS:
        echo(root, gpu, "perf_determinism", "s 1 1900", "c")
    before = tree(root)
    for value, word in (
        ("high", "ends a determinism cap"),
        ("low", "refuses low"),
        ("profile_peak", "refuses profile_peak"),
        ("manual", "sets nothing"),
        ("{value: {level: perf_determinism, max: 2101}}", "500..2100"),
        ("{value: {level: manual, min: 499, max: 900}}", "500..2100"),
    ):
        result = tuner(
            "apply", "--profile", "mi300x", "--set", f"amdgpu.clock:*={value}", "--allow", "all", "--root", root
        )
        assert result.code == 64, value
        assert word in result.err
        assert tree(root) == before


def test_lint_refuses_the_recipe_that_is_often_copied(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """rocm-smi --setperflevel high, then manual into the level file."""
    path = write_profile(tmp_path / "recipe.yaml", 'amdgpu.clock:\n  "*": {one_of: [high, manual]}', "recipe")
    result = tuner("profiles", "lint", path, "--root", root)
    assert result.code == 10
    assert "an MI300X refuses high" in result.out + result.err


# --- apply, verify, rollback


def test_the_overlay_caps_all_and_rollback_gives_each_its_own_back(
    copy_host: Callable[..., Path], tuner: Tuner
) -> None:
    root = copy_host("mi300x-cx7")
    states: dict[str, list[str]] = {
        GPUS[0]: [],
        GPUS[1]: ["perf_determinism", "s 1 1900", "c"],
        GPUS[2]: ["manual", "s 0 800", "s 1 1700", "c"],
        GPUS[3]: ["perf_determinism"],
        GPUS[4]: ["manual", "s 0 800", "s 1 1700"],
        GPUS[5]: ["manual", "m 1 1100", "c"],
        GPUS[6]: ["perf_determinism", "s 1 1500", "c", "high"],
        GPUS[7]: ["manual", "s 0 800", "c", "perf_determinism"],
    }
    for gpu, texts in states.items():
        echo(root, gpu, *texts)
    before = visible(root)
    result = tuner("apply", "--profile", "mi300x", *CAP, "--allow", "all", "--root", root)
    assert result.code == 0
    assert [held(root, gpu) for gpu in GPUS] == [CAPPED] * 8
    assert tuner("verify", "--root", root).code == 0
    assert tuner("apply", "--profile", "mi300x", "--allow", "all", "--root", root).code == 0
    assert [held(root, gpu) for gpu in GPUS] == [AUTO] * 8
    for _ in range(2):
        assert tuner("rollback", "--root", root).code == 0
    assert visible(root) == before


def test_a_cap_killed_behind_our_back_is_drift_and_mended(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("mi300x-cx7")
    tuner("apply", "--profile", "mi300x", *CAP, "--allow", "all", "--root", root)
    echo(root, GPUS[2], "high")
    assert held(root, GPUS[2]) == ("perf_determinism", 500, 2100)
    result = tuner("verify", "--root", root, "--json")
    assert result.code == 10
    assert [gpu for gpu, row in verdicts(result).items() if row["state"] == "drift"] == [GPUS[2]]
    assert tuner("apply", "--profile", "mi300x", *CAP, "--allow", "all", "--root", root).code == 0
    assert held(root, GPUS[2]) == CAPPED


def test_all_gpus_or_none(copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path) -> None:
    """One GPU with firmware that knows no determinism: the seven before and after it end as they were."""
    root = copy_host("mi300x-cx7")
    rules = root / ".tuner-host/kernel.yaml"
    place = "/" + str((root / f"sys/bus/pci/devices/{GPUS[5]}").resolve().relative_to(root.resolve()))
    one = "".join(
        f"  {place}/{name}: {{is: od_table, sclk: [500, 2100], mclk: [900, 1300], determinism: commit}}\n"
        for name in (LEVEL, TABLE)
    )
    rules.write_text(rules.read_text().replace("rules:\n", f"rules:\n{one}", 1))
    echo(root, GPUS[0], "manual", "s 0 800", "s 1 1700", "c")
    before = visible(root)
    path = write_profile(tmp_path / "cap.yaml", 'amdgpu.clock: {"*": {value: {level: perf_determinism, max: 1900}}}')
    result = tuner("apply", "--profile", path, "--allow", "all", "--root", root)
    assert result.code == 20
    assert GPUS[5] in result.out + result.err
    assert "692200000005" in result.out + result.err
    assert visible(root) == before


def test_a_lost_gpu_is_missing_and_named(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("mi300x-cx7")
    tuner("apply", "--profile", "mi300x", *CAP, "--allow", "all", "--root", root)
    lose(root, GPUS[6])
    result = tuner("verify", "--root", root)
    assert result.code == 11
    assert GPUS[6] in result.out
    assert "692200000006" in result.out
    rows = verdicts(tuner("verify", "--root", root, "--json"))
    assert {gpu for gpu, row in rows.items() if row["state"] == "missing"} == {GPUS[6]}


def test_another_gpu_at_the_same_address_is_not_ours(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """A replaced module: verify says which was there, rollback leaves the new one alone."""
    root = copy_host("mi300x-cx7")
    tuner("apply", "--profile", "mi300x", *CAP, "--allow", "all", "--root", root)
    place = (root / f"sys/bus/pci/devices/{GPUS[1]}").resolve()
    for name, text in (("serial_number", "692200009999"), ("unique_id", "0123456789abcdef")):
        (place / name).chmod(0o644)
        (place / name).write_text(f"{text}\n")
    result = tuner("verify", "--root", root)
    assert result.code == 11
    assert "692200000001" in result.out
    assert "692200009999" in result.out
    result = tuner("rollback", "--root", root)
    assert result.code == 10
    assert GPUS[1] in result.out
    assert [held(root, gpu) for gpu in GPUS] == [AUTO, CAPPED, *[AUTO] * 6]


def test_in_reset_nothing_is_known_and_nothing_written(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("mi300x-cx7", "gpu-in-reset")
    before = visible(root)
    result = tuner("apply", "--profile", "mi300x", *CAP, "--allow", "clocks", "--root", root, "--json")
    assert result.code == 12
    plan = tuner("plan", "--profile", "mi300x", *CAP, "--root", root, "--json")
    rows = verdicts(plan)
    assert {row["state"] for row in rows.values()} == {"unknown"}
    assert all("in reset" in row["running_why"] for row in rows.values())
    changed = {path for path, entry in visible(root).items() if before.get(path) != entry}
    assert not [path for path in changed if "pci0000" in path]


def test_a_virtual_function_is_unsupported_with_the_reason(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    root = copy_host("mi300x-cx7", "vf")
    path = write_profile(tmp_path / "clocks.yaml", ONLY_CLOCKS)
    result = tuner("plan", "--profile", path, "--root", root, "--json")
    assert result.code == 0
    rows = verdicts(result)
    assert sorted(rows) == GPUS
    assert {row["state"] for row in rows.values()} == {"unsupported"}
    assert all("virtual function" in row["running_why"] for row in rows.values())


def test_old_firmware_takes_no_cap_and_keeps_its_state(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    root = copy_host("mi300x-cx7", "old-ifwi")
    before = visible(root)
    path = write_profile(tmp_path / "clocks.yaml", ONLY_CLOCKS)
    result = tuner("apply", "--profile", path, *CAP, "--allow", "clocks", "--root", root)
    assert result.code == 20
    assert "determinism" in result.out + result.err
    assert visible(root) == before
