"""match: judged by plan and apply, not by verify nor on an image; the PCI bus is read as sysfs shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tree
from tuner.host import open_host
from tuner.pci import devices

Tuner = Callable[..., Any]
DEVICES = "sys/bus/pci/devices"
GPUS = [f"0000:{bus}:00.0" for bus in ("05", "27", "47", "65", "85", "a7", "c7", "e5")]
"""Where the eight MI300X of mi300x-cx7 are."""
EIGHT = '{gpus: {ids: ["1002:74a1"], count: 8, driver: amdgpu}, nics: {drivers: [mlx5_core], at_least: 8}}'


def profile(path: Path, match: str = "", extends: str = "") -> Path:
    """A profile that sets vm.swappiness to 1, with this match."""
    text = "name: test\nsummary: y\n" + (f"match: {match}\n" if match else "")
    text += f"extends: {extends}\n" if extends else ""
    path.write_text(text + "settings:\n  sysctl: {vm.swappiness: 1}\n")
    return path


def rows(result: Any) -> list[str]:
    return [line for line in result.err.splitlines() if line.startswith("tuner: ")]


# who fits


@pytest.mark.parametrize(
    "match",
    [
        EIGHT,
        "{}",
        '{gpus: {ids: ["1002:74a1"]}}',
        '{gpus: {ids: "0x1002:0x74A1", count: 8}}',
        '{gpus: {ids: ["10de:2330", "1002:74a1"], count: 8, driver: amdgpu}}',
        "{nics: {at_least: 8}}",
        "{nics: {drivers: [bnxt_en, mlx5_core], at_least: 8}}",
        "{nics: {drivers: [bnxt_en]}}",
        "{gpus: {ids: ['1002:74a1'], driver: amdgpu}, nics: {drivers: mlx5_core, at_least: 1}}",
    ],
)
def test_eight_gpus_and_their_nics_fit(match: str, masters: Callable[..., Path], tmp_path: Path, tuner: Tuner) -> None:
    path = profile(tmp_path / "p.yaml", match)
    assert tuner("plan", "--root", masters("mi300x-cx7"), "--profile", path).code == 10


@pytest.mark.parametrize(
    ("match", "expected", "found"),
    [
        ('{gpus: {ids: ["1002:74a1"], count: 4}}', ["4", "1002:74a1"], "8"),
        ('{gpus: {ids: ["1002:74a1"], count: 16}}', ["16", "1002:74a1"], "8"),
        ('{gpus: {ids: ["1002:74a1"], count: 0}}', ["0", "1002:74a1"], "8"),
        ('{gpus: {ids: ["10de:2330"], count: 8, driver: nvidia}}', ["8", "10de:2330", "nvidia"], "1002:74a1"),
        ('{gpus: {ids: ["10de:2330"]}}', ["10de:2330"], "1002:74a1"),
        ('{gpus: {ids: ["1002:74a1"], count: 8, driver: vfio-pci}}', ["8", "vfio-pci"], "amdgpu"),
        ("{nics: {drivers: [bnxt_en], at_least: 8}}", ["8", "bnxt_en"], "0"),
        ("{nics: {at_least: 999}}", ["999"], ""),
    ],
)
def test_expected_and_found_are_named(
    match: str, expected: list[str], found: str, masters: Callable[..., Path], tmp_path: Path, tuner: Tuner
) -> None:
    path = profile(tmp_path / "p.yaml", match)
    result = tuner("plan", "--root", masters("mi300x-cx7"), "--profile", path)
    assert result.code == 31
    (row,) = rows(result)
    wanted, _, seen = row.partition("expected ")[2].partition(", found ")
    assert all(part in wanted for part in expected), row
    assert found in seen, row
    assert "  hint: " in result.err
    document = tuner("plan", "--json", "--root", masters("mi300x-cx7"), "--profile", path).document
    assert (document["schema"], document["exit"]) == ("tuner.error/1", 31)


def test_a_vm_without_gpu_is_another_host_for_apply_too(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    """Both parts that do not fit are said; nothing is written, neither settings nor state of ours."""
    path = profile(tmp_path / "p.yaml", EIGHT)
    before = tree(root)
    for verb in ("plan", "apply"):
        result = tuner(verb, "--root", root, "--profile", path)
        assert result.code == 31
        assert [("GPU" in row, "NIC" in row, "found 0" in row) for row in rows(result)] == [
            (True, False, True),
            (False, True, True),
        ]
    assert tree(root) == before
    assert not (root / "var/lib/tuner").exists()


def test_verify_with_profile_does_not_judge_match(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    result = tuner("verify", "--json", "--root", root, "--profile", profile(tmp_path / "p.yaml", EIGHT))
    assert (result.code, result.document["state"]) == (10, "drift")


def test_an_image_fits_any_match(tmp_path: Path, tuner: Tuner) -> None:
    """An image is built on a machine that is not the one it is for."""
    (tmp_path / "image/etc").mkdir(parents=True)
    path = profile(tmp_path / "p.yaml", EIGHT)
    assert tuner("plan", "--root", tmp_path / "image", "--profile", path).code != 31
    assert tuner("apply", "--root", tmp_path / "image", "--profile", path).code != 31


def test_bad_input_comes_before_the_wrong_host(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    path = profile(tmp_path / "p.yaml", EIGHT)
    assert tuner("plan", "--root", root, "--profile", path, "--set", "sysctl:vm.swappiness=on").code == 64


# seven of eight


@pytest.mark.parametrize("gone", ["device", "driver", "vendor"])
def test_seven_of_eight_gpus(gone: str, copy_host: Callable[..., Path], tmp_path: Path, tuner: Tuner) -> None:
    """A GPU off the bus, one that its driver let go, one that answers no more: plan and apply refuse, verify goes on.

    `match` says which host a profile is for, once; the applied generation is judged by what it froze.
    """
    root = copy_host("mi300x-cx7")
    path = profile(tmp_path / "p.yaml", EIGHT)
    assert tuner("apply", "--root", root, "--profile", path).code == 0
    assert tuner("verify", "--root", root).code == 0
    link = root / DEVICES / GPUS[3]
    (link if gone == "device" else link.resolve() / gone).unlink()
    for verb in ("plan", "apply"):
        result = tuner(verb, "--root", root, "--profile", path)
        assert result.code == 31
        (row,) = rows(result)
        wanted, _, seen = row.partition(", found ")
        assert "expected 8 " in wanted
        assert seen.startswith("7"), row
        assert (GPUS[3] in seen) is (gone == "driver")
    result = tuner("verify", "--json", "--root", root)
    assert (result.code, result.document["state"]) == (0, "ok")


def test_a_device_that_match_does_not_name_may_fail(
    copy_host: Callable[..., Path], tmp_path: Path, tuner: Tuner
) -> None:
    """The graphics chip of the BMC answers no more: no business of a profile for MI300X."""
    root = copy_host("mi300x-cx7")
    ((root / DEVICES / "0000:2a:00.0").resolve() / "class").unlink()
    assert tuner("plan", "--root", root, "--profile", profile(tmp_path / "p.yaml", EIGHT)).code == 10


# own match, or the first parent's

HERE = "{nics: {drivers: [virtio-pci]}}"
NOWHERE = '{gpus: {ids: ["dead:beef"], count: 3}}'


@pytest.mark.parametrize(
    ("own", "parents", "code"),
    [
        ("", {"one": NOWHERE}, 31),
        (HERE, {"one": NOWHERE}, 10),
        ("{}", {"one": NOWHERE}, 10),
        (NOWHERE, {"one": HERE}, 31),
        ("", {"one": HERE, "two": NOWHERE}, 10),
        ("", {"one": NOWHERE, "two": HERE}, 31),
        ("", {}, 10),
    ],
)
def test_own_match_or_the_first_parents(
    own: str, parents: dict[str, str], code: int, masters: Callable[..., Path], tmp_path: Path, tuner: Tuner
) -> None:
    paths = [str(profile(tmp_path / f"{name}.yaml", match)) for name, match in parents.items()]
    path = profile(tmp_path / "p.yaml", own, f"[{', '.join(paths)}]")
    assert tuner("plan", "--root", masters(), "--profile", path).code == code


def test_match_of_a_grandparent_comes_through(masters: Callable[..., Path], tmp_path: Path, tuner: Tuner) -> None:
    old = profile(tmp_path / "old.yaml", NOWHERE)
    middle = profile(tmp_path / "middle.yaml", "", f"[{old}]")
    path = profile(tmp_path / "p.yaml", "", f"[{middle}]")
    result = tuner("plan", "--root", masters(), "--profile", path)
    assert result.code == 31
    assert "3 " in result.err
    assert "dead:beef" in result.err


@pytest.mark.parametrize(
    ("match", "part"),
    [
        ("[a]", "mapping"),
        ("{gpu: {}}", "'gpu'"),
        ("{gpus: {}}", "ids"),
        ("{gpus: {count: 8}}", "ids"),
        ('{gpus: {ids: ["1002"]}}', "'1002'"),
        ('{gpus: {ids: ["1002:74a1:00"]}}', "1002:74a1:00"),
        ('{gpus: {ids: ["1002:74g1"]}}', "1002:74g1"),
        ('{gpus: {ids: ["1002:74a1"], count: many}}', "'many'"),
        ('{gpus: {ids: ["1002:74a1"], count: -1}}', "'-1'"),
        ('{gpus: {ids: ["1002:74a1"], count: "\u00b2"}}', "\u00b2"),
        ('{gpus: {ids: ["1002:74a1"], driver: [amdgpu]}}', "driver"),
        ("{nics: {at_least: 1.5}}", "'1.5'"),
        ("{nics: {driver: mlx5_core}}", "'driver'"),
        ("{nics: {drivers: [[a]]}}", "list"),
    ],
)
def test_match_that_is_wrong_is_named_with_its_line(
    match: str, part: str, masters: Callable[..., Path], tmp_path: Path, tuner: Tuner
) -> None:
    path = profile(tmp_path / "p.yaml", match)
    result = tuner("plan", "--root", masters(), "--profile", path)
    assert result.code == 64
    assert any(row.startswith(f"tuner: {path}:3: ") and part in row for row in rows(result)), result.err


# the PCI bus


def test_devices_of_the_bus(masters: Callable[..., Path]) -> None:
    found = {d.address: d for d in devices(open_host(str(masters("mi300x-cx7"))))}
    assert [a for a, d in found.items() if d.id == "1002:74a1" and d.driver == "amdgpu"] == GPUS
    assert [found[a].numa for a in GPUS] == [0, 0, 0, 0, 1, 1, 1, 1]
    nics = [d for d in found.values() if d.driver == "mlx5_core"]
    assert len(nics) >= 8
    assert all(d.is_nic and d.id.startswith("15b3:") for d in nics)
    assert not any(found[a].is_nic for a in GPUS)
    assert (found["0000:2a:00.0"].id, found["0000:2a:00.0"].is_nic) == ("1a03:2000", False)


def test_an_image_has_no_bus(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    assert devices(open_host(str(tmp_path))) == []
