"""The real rocm-smi over the recorded mi300x-cx7, bound over /sys: what it does there, and our writer that drives it.

Every state is read in the copy of the host, not through rocm-smi: rocm-smi 5.2.3 shows perf_determinism as unknown.
Where a newer release answers in another way (it exits 0 when the driver refused), a wrapper in the place of AMD's own
packages, /opt/rocm/bin, runs the real program and answers so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tree, unavailable
from tests.fuse.conftest import REPO
from tuner.errors import Refused
from tuner.host import open_host
from tuner.knobs import BY_NAME

Step = dict[str, Any]
PROGRAM = "/usr/bin/rocm-smi"
DEVICES = "sys/bus/pci/devices"
GPUS = [f"0000:{bus}:00.0" for bus in ("05", "27", "47", "65", "85", "a7", "c7", "e5")]
GPU = GPUS[5]
"""Number 5 of rocm-smi and card41 of DRM, as card0 is the BMC."""

LEVEL, TABLE = "power_dpm_force_performance_level", "pp_od_clk_voltage"
FREE, CAPPED = ("auto", 500, 2100), ("perf_determinism", 500, 1900)
CAP: dict[str, int | str | None] = {"level": "perf_determinism", "max": 1900}
RANGE: dict[str, int | str | None] = {"level": "manual", "min": 800, "max": 1700}
WARNING = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status"
PROFILE = """\
name: smi
summary: A cap by rocm-smi
settings:
  amdgpu.clock:
    "*": {value: {level: perf_determinism, max: 1900}, via: rocm-smi}
"""


class Node:
    """A copy of the recorded host, mounted, and programs that see it as this machine's /sys."""

    def __init__(self, root: Path, at: Path, scratch: Path) -> None:
        self.root, self.at, self.scratch = root, at, scratch

    def run(self, *steps: list[str], wrapper: str = "", files: dict[str, str] | None = None) -> list[Step]:
        """What each program gave; `wrapper` is the shell script that is /opt/rocm/bin/rocm-smi meanwhile."""
        found = {"/opt/rocm/bin/rocm-smi": f"#!/bin/sh\n{wrapper}\n"} if wrapper else {}
        order = {"sys": f"{self.at}/sys", "scratch": str(self.scratch), "files": {**found, **(files or {})}}
        command = ["unshare", "--mount", sys.executable, "-m", "tests.fuse.smi_child"]
        done = subprocess.run(
            command, input=json.dumps({**order, "steps": steps}), cwd=REPO, capture_output=True, text=True,
            timeout=500, check=False,
        )  # fmt: skip
        if done.returncode and "mount" in done.stderr:
            unavailable(f"no mounts of our own here: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stderr
        answers: list[Step] = json.loads(done.stdout)
        return answers

    def write(
        self, value: dict[str, Any], target: str = GPU, wrapper: str = "", seconds: int = 30
    ) -> tuple[str, float]:
        """Why our writer refused, empty when it did not; and how long it took."""
        child = [sys.executable, "-m", "tests.fuse.smi_child", target, json.dumps(value), str(seconds)]
        (done,) = self.run(child, wrapper=wrapper)
        assert done["code"] == 0, done["err"]
        return done["out"], done["seconds"]

    def held(self, gpu: str = GPU) -> tuple[str, int, int]:
        """Level and limits in force, in the copy."""
        place = (self.root / DEVICES / gpu).resolve()
        lines = (place / TABLE).read_text().splitlines()
        low, high = (int(line.split()[1].removesuffix("Mhz")) for line in lines[1:3])
        return (place / LEVEL).read_text().strip(), low, high

    def all_held(self) -> dict[str, tuple[str, int, int]]:
        """The same of each GPU."""
        return {gpu: self.held(gpu) for gpu in GPUS}


@pytest.fixture
def node(copy_host: Callable[..., Path], mount: Callable[[Path], Path], tmp_path: Path) -> Callable[..., Node]:
    """node(*faults, rule="") -> Node; `rule` is added to the rule of each clock file."""
    for what, missing in (
        ("root", os.geteuid() != 0),
        (f"{PROGRAM} (package rocm-smi)", not os.path.exists(PROGRAM)),
        ("unshare", shutil.which("unshare") is None),
    ):
        if missing:
            unavailable(f"the real rocm-smi needs {what}")

    def make(*faults: str, rule: str = "") -> Node:
        root = copy_host("mi300x-cx7", *faults)
        for_its_library(root)
        rules = root / ".tuner-host/kernel.yaml"
        rules.write_text(rules.read_text().replace("{is: od_table,", f"{{is: od_table,{rule}"))
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        return Node(root, mount(root), scratch)

    return make


def for_its_library(root: Path) -> None:
    """What librocm_smi64 5.2.3 does not start without. An MI300X has neither, so that the shipped host has not.

    A voltage with its label (of other GPUs), and a listing of perf's devices that can be read, if only an empty one.
    """
    for place in {gpu.resolve() for gpu in (root / DEVICES).glob("*/hwmon/hwmon*")}:
        (place / "in0_label").write_text("vddgfx\n")
        (place / "in0_input").write_text("750\n")
    (root / "sys/bus/event_source/devices").mkdir(parents=True)


def smi(*words: str) -> list[str]:
    return [PROGRAM, *words]


def locks() -> set[str]:
    """Files that the library keeps its locks in, on this machine."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("rocm_smi")}


# --- what the program does by itself


def test_it_sets_reads_back_and_refuses(node: Callable[..., Node]) -> None:
    """The premises of our writer: its numbers go by PCI address, a refused level changes nothing that a file shows."""
    here = node()
    before = locks()
    bus, capped, shown, high, manual, level = here.run(
        smi("--showbus", "--json"), smi("-d", "5", "--setperfdeterminism", "1900"), smi("-d", "5", "--showperflevel"),
        smi("-d", "4", "--setperflevel", "high"), smi("-d", "3", "--setperflevel", "manual"),
        smi("-d", "3", "--showperflevel", "--json"),
    )  # fmt: skip
    numbers = {int(card[4:]): fields["PCI Bus"].lower() for card, fields in json.loads(bus["out"]).items()}
    assert numbers == dict(enumerate(GPUS))
    assert "1900" in capped["out"]
    assert "UNKNOWN" in shown["out"].upper()
    assert "NOT_SUPPORTED" in high["err"]
    assert manual["code"] == 0
    assert json.loads(level["out"]) == {"card3": {"Performance Level": "manual"}}
    assert here.all_held() == {**dict.fromkeys(GPUS, FREE), GPU: CAPPED, GPUS[3]: ("manual", 500, 2100)}
    assert locks() == before


def test_it_asks_and_an_empty_answer_ends_it(node: Callable[..., Node]) -> None:
    """--setsrange without --autorespond asks y/N: stdin is closed, so that it ends at once and sets nothing."""
    here = node()
    _, asked = here.run(smi("-d", "5", "--setperflevel", "manual"), smi("-d", "5", "--setsrange", "800", "1700"))
    assert "[y/N]" in asked["out"]
    assert asked["code"] not in (0, None)
    assert here.held() == ("manual", 500, 2100)


# --- our writer


def test_apply_by_rocm_smi_is_proven_by_the_files(node: Callable[..., Node]) -> None:
    """tuner apply with via: rocm-smi, verify, a second apply that writes nothing, rollback."""
    here = node()
    tuner = [sys.executable, "-m", "tuner"]
    apply = [*tuner, "apply", "--profile", "smi", "--allow", "clocks", "--json"]
    first, verify, level, second, back = here.run(
        apply, [*tuner, "verify", "--json"], smi("-d", "0", "--showclkfrq"), apply, [*tuner, "rollback", "--json"],
        files={"/etc/tuner/profiles/smi.yaml": PROFILE},
    )  # fmt: skip
    done = json.loads(first["out"])
    assert first["code"] == 0, first["out"]
    assert [(o["target"], o["result"]) for o in done["outcomes"]] == [(gpu, "done") for gpu in GPUS]
    assert {o["after"]["max"] for o in done["outcomes"]} == {1900}
    assert verify["code"] == 0
    assert {v["state"] for v in json.loads(verify["out"])["verdicts"]} == {"ok"}
    assert "1900Mhz" in level["out"]
    assert json.loads(second["out"])["outcomes"] == []
    assert back["code"] == 0
    assert here.all_held() == dict.fromkeys(GPUS, FREE)


@pytest.mark.parametrize(
    ("value", "held"),
    [(CAP, CAPPED), (RANGE, ("manual", 800, 1700))],
    ids=["cap", "range"],
)
def test_every_level_is_set_on_the_gpu_of_that_address_only(
    node: Callable[..., Node], value: dict[str, Any], held: tuple[str, int, int]
) -> None:
    here = node()
    assert here.write(value)[0] == ""
    assert here.all_held() == {**dict.fromkeys(GPUS, FREE), GPU: held}
    assert here.write({"level": "auto"})[0] == ""
    assert here.all_held() == dict.fromkeys(GPUS, FREE)


def test_a_refused_level_is_refused_by_us_though_it_exits_0(node: Callable[..., Node]) -> None:
    """Firmware that refuses the word, and a release that ends with 0 all the same."""
    here = node(rule=" determinism: level,")
    before = tree(here.root)
    why, _ = here.write(CAP, wrapper=f'{PROGRAM} "$@"; exit 0')
    assert "NOT_SUPPORTED" in why
    assert "holds auto" in why
    assert "\n" not in why
    assert len(why) < 500
    assert tree(here.root) == before


def test_a_cap_that_is_refused_after_the_level_was_taken_is_put_back(node: Callable[..., Node]) -> None:
    """By itself rocm-smi leaves perf_determinism without a cap; after our writer all is as before."""
    here = node("old-ifwi")
    (alone,) = here.run(smi("-d", "2", "--setperfdeterminism", "1900"))
    assert "1900" in alone["out"] + alone["err"]
    assert here.held(GPUS[2]) == ("perf_determinism", 500, 2100)
    before = tree(here.root)
    why, _ = here.write(CAP)
    assert "Unable to set performance determinism" in why
    assert "put back" in why
    assert tree(here.root) == before


def test_a_range_comes_back_when_the_cap_after_it_is_refused(node: Callable[..., Node]) -> None:
    here = node("old-ifwi")
    assert here.write(RANGE)[0] == ""
    assert "put back" in here.write(CAP)[0]
    assert here.held() == ("manual", 800, 1700)


def test_a_question_that_we_did_not_expect_ends_it(node: Callable[..., Node]) -> None:
    """A release that asks in spite of --autorespond: it reads the end of its input, and what was there is put back."""
    here = node()
    before = tree(here.root)
    why, seconds = here.write(
        RANGE, wrapper=f'a=; for w; do case $w in --autorespond|y) ;; *) a="$a $w";; esac; done\n{PROGRAM} $a'
    )
    assert "put back" in why
    assert seconds < 60
    assert tree(here.root) == before


@pytest.mark.parametrize("before", [f"echo '{WARNING}'; echo", "echo 'noise {not: json} ['"], ids=["warning", "braces"])
def test_what_stands_before_the_json_is_passed_over(node: Callable[..., Node], before: str) -> None:
    here = node()
    assert here.write(CAP, wrapper=f'{before}\n{PROGRAM} "$@"')[0] == ""
    assert here.held() == CAPPED


HANGS = "trap '' TERM; sleep 1000"
ONLY_SHOWS = f'case "$*" in *showbus*) exec {PROGRAM} "$@";; esac'


@pytest.mark.parametrize("wrapper", [HANGS, f"{ONLY_SHOWS}\n{HANGS}"], ids=["at once", "at the write"])
def test_one_that_hangs_is_ended_in_time(node: Callable[..., Node], wrapper: str) -> None:
    here = node()
    before = tree(here.root)
    why, seconds = here.write(CAP, wrapper=wrapper, seconds=5)
    assert "did not end within 5 s" in why
    assert seconds < 60
    assert tree(here.root) == before


def test_one_that_hangs_after_it_was_done_is_judged_by_the_files(node: Callable[..., Node]) -> None:
    here = node()
    assert here.write(CAP, wrapper=f'{ONLY_SHOWS}\n{PROGRAM} "$@"\n{HANGS}', seconds=20)[0] == ""
    assert here.held() == CAPPED


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ('echo "Driver not initialized (amdgpu not found in modules)"', "Driver not initialized"),
        ('echo \'{"card0": {"PCI Bus": "0000:99:00.0"}}\'', "lists no GPU"),
        (f"echo '{json.dumps({f'card{n}': {'PCI Bus': GPU} for n in range(2)})}'", "lists several GPUs"),
        (":", "it said nothing"),
    ],
    ids=["no driver", "other GPUs", "one address twice", "silence"],
)
def test_a_gpu_that_it_does_not_name_is_not_touched(node: Callable[..., Node], wrapper: str, said: str) -> None:
    """Never a number that is guessed."""
    here = node()
    before = tree(here.root)
    assert said in here.write(CAP, wrapper=wrapper)[0]
    assert tree(here.root) == before


# --- where it is not for


def test_a_recorded_host_and_an_image_run_no_program(copy_host: Callable[..., Path], tmp_path: Path) -> None:
    root = copy_host("mi300x-cx7")
    (tmp_path / "image/etc").mkdir(parents=True)
    write = BY_NAME["amdgpu.clock"].writer("rocm-smi")
    for place in (root, tmp_path / "image"):
        with pytest.raises(Refused, match="live host only"):
            write(open_host(str(place)), GPU, CAP)
    with pytest.raises(Refused, match="not tried"):
        write(open_host(str(root)), GPU, {"level": "high"})


def test_the_files_are_the_way_unless_a_profile_says_otherwise() -> None:
    knob = BY_NAME["amdgpu.clock"]
    assert knob.ways == ("auto", "sysfs", "rocm-smi")
    assert [knob.writer(via) for via in ("", "auto", "sysfs")] == [knob.write] * 3
    assert knob.writer("rocm-smi") != knob.write
