"""The profiles `a100` and `h800` and the overlay `locked-clocks` on the recorded hosts a100-cx7 and h800-cx7.

Values: NVIDIA/nvidia-docker#1648 (A100-SXM4-40GB), NVIDIA/DCGM#120 (H800), NVIDIA/open-gpu-kernel-modules README (ids),
facebookresearch/gcm check-nvidia-smi clock_freq (1155 MHz), deepseek-ai/DeepSeek-V3#28 (400 GB/s).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Result, tree
from tests.make_nvidia import A100_40, A100_80, H800, Kind
from tuner.host import open_host

PROFILES = Path(__file__).parent.parent / "profiles"
A100 = [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")]
H800S = [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
HOSTS = [("a100", "a100-cx7", A100), ("h800", "h800-cx7", H800S)]
LOCK = ("--with", "locked-clocks")
Tuner = Callable[..., Result]


def of_nvidia(result: Result) -> dict[tuple[str, str], dict[str, Any]]:
    """The verdicts on GPUs, NICs and their services."""
    rows = result.document["verdicts"]
    names = ("nvidia.", "pcie.")
    return {
        (r["knob"], r["target"]): r for r in rows if r["knob"].startswith(names) or r["target"].startswith("nvidia-")
    }


def settings(name: str) -> dict[str, Any]:
    """The settings of a shipped profile as they are written."""
    found = yaml.safe_load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))["settings"]
    assert isinstance(found, dict)
    return found


# --- what the profiles want


@pytest.mark.parametrize(("profile", "name", "gpus"), HOSTS)
def test_a_healthy_host_is_as_its_profile_wants_it(
    masters: Callable[..., Path], tuner: Tuner, profile: str, name: str, gpus: list[str]
) -> None:
    """All of NVIDIA is ok with a reason and a source; what changes are the kernel's parameters of linux-gpu."""
    result = tuner("plan", "--profile", profile, "--root", masters(name), "--json")
    rows = of_nvidia(result)
    assert {row["state"] for row in rows.values()} == {"ok"}
    assert all(row["why"] and row["source"] for row in rows.values())
    knobs = ["persistence", "ecc", "mig", "compute_mode", "power_limit", "nvlinks", "row_remap"]
    knobs += ["fabric"] if profile == "h800" else []
    for knob in knobs:
        assert [target for known, target in rows if known == f"nvidia.{knob}"] == gpus
    assert [target for knob, target in rows if knob == "pcie.link"] == [f"gpu/{gpu}" for gpu in gpus]
    assert ("nvidia.fabric_manager", "nvidia-fabricmanager.service") in rows
    assert {change["knob"] for change in result.document["changes"]} <= {"sysctl", "file", "cpu"}


def test_the_40_gb_boards_fit_the_same_profile_and_lock(masters: Callable[..., Path], tuner: Tuner) -> None:
    """Nothing depends on the memory: the same settings, down to their id, and every value holds there too."""
    plans = [
        tuner("plan", "--profile", "a100", *LOCK, "--root", masters("a100-cx7", *faults), "--json")
        for faults in ((), ("a100-40gb",))
    ]
    large, small = (of_nvidia(plan) for plan in plans)
    assert {key: row["state"] for key, row in large.items()} == {key: row["state"] for key, row in small.items()}
    assert plans[0].document["settings_id"] == plans[1].document["settings_id"]
    assert not {"nvidia.mem_clocks"} & {knob for knob, _ in small}


@pytest.mark.parametrize(
    ("name", "faults", "clock", "right"),
    [("a100-cx7", (), 1215, 1593), ("a100-cx7", ("a100-40gb",), 1593, 1215), ("h800-cx7", (), 1593, 2619)],
)
def test_a_memory_clock_of_another_board_is_refused(
    copy_host: Callable[..., Path], tuner: Tuner, name: str, faults: tuple[str, ...], clock: int, right: int
) -> None:
    """Before anything is written, with the clock that this board has."""
    root = copy_host(name, *faults)
    before = tree(root)
    wrong = f"nvidia.mem_clocks:*={clock}"
    result = tuner("apply", "--profile", name[:4], "--set", wrong, "--allow", "all", "--root", root)
    assert result.code == 64
    assert f"{clock} MHz is no memory clock of this device" in result.err
    assert str(right) in result.err
    assert tree(root) == before


@pytest.mark.parametrize(
    ("profile", "name", "faults", "words"),
    [
        ("a100", "h800-cx7", (), "8 GPU 10de:20b0 or 10de:20b2 with driver nvidia"),
        ("h800", "a100-cx7", (), "8 GPU 10de:2324 with driver nvidia"),
        ("a100", "a100-cx7", ("gpu-gone",), "found 7"),
        ("a100", "mi300x-cx7", (), "found 0"),
        ("h800", "plain-vm", (), "found 0"),
    ],
)
def test_other_hosts_are_refused(
    masters: Callable[..., Path], tuner: Tuner, profile: str, name: str, faults: tuple[str, ...], words: str
) -> None:
    result = tuner("plan", "--profile", profile, "--root", masters(name, *faults))
    assert result.code == 31
    assert words in result.err, result.err


def test_the_figures_are_those_of_the_product_and_not_of_its_kin() -> None:
    """An A100 has 12 links, an H800 all it has (8 are inferred); the power limit is each board's own default."""
    wants = {}
    for name in ("a100", "h800"):
        found = settings(name)
        entries = [found[f"nvidia.{knob}"]["*"] for knob in ("nvlinks", "power_limit")] + [found["pcie.link"]["gpu/*"]]
        wants[name] = [entry.get("value", entry.get("at_least")) for entry in entries]
    assert wants == {
        "a100": [12, "default", {"generation": 4, "width": 16}],
        "h800": ["all", "default", {"generation": 5, "width": 16}],
    }
    assert "Inferred only is 8" in settings("h800")["nvidia.nvlinks"]["*"]["why"]
    for name in ("a100", "h800", "overlays/locked-clocks"):
        assert not {"nvidia.mem_clocks", "nvidia.app_clocks"} & set(settings(name))


@pytest.mark.parametrize("kind", [A100_40, A100_80, H800])
def test_every_gpu_has_the_clock_of_the_lock_and_none_has_it_on_top(kind: Kind) -> None:
    (ends,) = {
        tuple(entry["value"].values()) for entry in settings("overlays/locked-clocks")["nvidia.gpu_clocks"].values()
    }
    assert ends == (1155, 1155)
    assert 1155 in kind.graphics()
    assert kind.top > 1155


# --- apply, verify, rollback


@pytest.mark.parametrize(("profile", "name", "gpus"), HOSTS)
def test_there_and_back(copy_host: Callable[..., Path], tuner: Tuner, profile: str, name: str, gpus: list[str]) -> None:
    """The lock holds, a second apply writes nothing, and rollback resets it: every file is as before."""
    root = copy_host(name)
    before, nvml = tree(root), open_host(str(root)).nvml
    idle = {gpu: nvml.get(gpu, "clocks") for gpu in gpus}
    done = tuner("apply", "--profile", profile, *LOCK, "--root", root, "--json")
    assert done.code == 0
    locked = [o for o in done.document["outcomes"] if o["knob"] == "nvidia.gpu_clocks"]
    assert [(o["target"], o["before"], o["result"]) for o in locked] == [(gpu, None, "done") for gpu in gpus]
    assert {nvml.get(gpu, "clocks")["graphics"] for gpu in gpus} == {1155}
    assert {nvml.get(gpu, "clocks")["memory"] for gpu in gpus} == {idle[gpus[0]]["memory"]}
    assert tuner("verify", "--root", root).code == 0
    again = tuner("apply", "--profile", profile, *LOCK, "--root", root, "--json")
    assert (again.code, again.document["outcomes"]) == (0, [])
    assert tuner("rollback", "--root", root).code == 0
    assert {gpu: nvml.get(gpu, "clocks") for gpu in gpus} == idle
    assert tree(root) == before


def test_modes_that_somebody_changed_are_set_and_given_back(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("a100-cx7")
    nvml = open_host(str(root)).nvml
    nvml.set(A100[0], "power", 250000)
    nvml.set(A100[1], "compute_mode", "exclusive_process")
    nvml.set(A100[2], "persistence", "disabled")
    before = tree(root)
    assert tuner("apply", "--profile", "a100", "--root", root).code == 0
    assert nvml.get(A100[0], "power")["limit"] == 400000
    assert nvml.get(A100[1], "compute_mode") == "default"
    assert nvml.get(A100[2], "persistence") == "enabled"
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


@pytest.mark.parametrize("watts", [550, 700])
def test_the_power_limit_is_the_default_of_each_board(copy_host: Callable[..., Path], tuner: Tuner, watts: int) -> None:
    """One article says that an H800 has 550 W: such a board is as wanted, and one that was lowered gets its default."""
    root = other_board(copy_host("h800-cx7"), watts)
    result = tuner("plan", "--profile", "h800", "--root", root, "--json")
    assert {of_nvidia(result)["nvidia.power_limit", gpu]["state"] for gpu in H800S} == {"ok"}
    nvml = open_host(str(root)).nvml
    nvml.set(H800S[2], "power", 300000)
    assert tuner("apply", "--profile", "h800", "--root", root).code == 0
    assert {nvml.get(gpu, "power")["limit"] for gpu in H800S} == {watts * 1000}
    assert tuner("verify", "--root", root).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert nvml.get(H800S[2], "power")["limit"] == 300000


def other_board(root: Path, watts: int) -> Path:
    """A host whose GPUs have that default and highest limit."""
    for gpu in H800S:
        place = root / f".tuner-host/nvml/{gpu}/power"
        place.write_text(place.read_text().replace("700000", f"{watts}000"))
    return root


def test_a_power_limit_of_another_board_is_refused_with_its_bounds(
    copy_host: Callable[..., Path], tuner: Tuner
) -> None:
    """A site asks for 700 W on a board that takes 550: nothing is written, and what fits is said."""
    root = other_board(copy_host("h800-cx7"), 550)
    before = tree(root)
    result = tuner("apply", "--profile", "h800", "--set", "nvidia.power_limit:*=700", "--root", root)
    assert result.code == 64
    assert "200..550 W, default 550\n" in result.err
    assert tree(root) == before
    fits = ("--set", "nvidia.power_limit:*=500")
    found = of_nvidia(tuner("plan", "--profile", "h800", *fits, "--root", root, "--json"))
    assert {found["nvidia.power_limit", gpu]["state"] for gpu in H800S} <= {"drift", "held"}


@pytest.mark.parametrize(("profile", "name", "gpus"), HOSTS)
def test_what_a_boot_brings_by_itself_is_not_lost(
    masters: Callable[..., Path], tuner: Tuner, profile: str, name: str, gpus: list[str]
) -> None:
    """Without a boot unit: modes and limits that are the default, and persistence mode, which a daemon switches on."""
    result = tuner("plan", "--profile", profile, *LOCK, "--root", masters(name), "--json")
    found = of_nvidia(result)
    brought = {"persistence": "enabled", "compute_mode": "default"}
    for gpu in gpus:
        assert {knob: found[f"nvidia.{knob}", gpu]["next_boot"] for knob in brought} == brought
        assert (
            found["nvidia.power_limit", gpu]["next_boot"]["limit"]
            == found["nvidia.power_limit", gpu]["running"]["limit"]
        )
        assert found["nvidia.gpu_clocks", gpu]["next_boot_why"].startswith("lost")


def test_no_reason_says_more_than_its_source() -> None:
    """gcm's clock_freq looks at the clock of the moment, of idle GPUs too; and a reset that nobody sees."""
    why = settings("overlays/locked-clocks")["nvidia.gpu_clocks"]["*"]["why"]
    assert "of every A100 under load, so" not in why
    assert "clock of the moment, of idle GPUs too" in why
    assert "end persistence mode before it" in why


def test_equal_hosts_have_equal_settings(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """Whatever their UUIDs are: by the id one sees that two nodes are set alike."""
    one, two = copy_host("h800-cx7"), copy_host("h800-cx7")
    for gpu in H800S:
        place = two / f".tuner-host/nvml/{gpu}/uuid"
        place.write_text(place.read_text().replace("GPU-2324", "GPU-9999"))
    found = [tuner("plan", "--profile", "h800", *LOCK, "--root", root, "--json").document for root in (one, two)]
    assert found[0]["settings_id"] == found[1]["settings_id"]
    other = tuner("plan", "--profile", "h800", "--root", one, "--json").document
    assert other["settings_id"] != found[0]["settings_id"]


def test_another_gpu_in_the_place_of_a_locked_one_is_not_believed(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("a100-cx7")
    assert tuner("apply", "--profile", "a100", *LOCK, "--root", root).code == 0
    place = root / f".tuner-host/nvml/{A100[5]}/uuid"
    place.write_text(place.read_text().replace("GPU-20b2", "GPU-9999"))
    os.utime(place, (0, 0))
    result = tuner("verify", "--root", root, "--json")
    assert result.code == 11
    rows = of_nvidia(result)
    assert rows["nvidia.gpu_clocks", A100[5]]["state"] != "ok"
    assert rows["nvidia.gpu_clocks", A100[4]]["state"] == "ok"
