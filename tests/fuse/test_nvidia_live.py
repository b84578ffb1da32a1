"""Every verb on a live node with eight A100: the kernel's part from the recorded a100-cx7, NVML through nvidia-ml-py.

The library is that of tests/nvml, whose GPUs lie at the host's own addresses, so that what tuner joins by PCI address
comes from two sides that do not know of each other. What is held is read in the library's state, not through tuner.
No setting but those of nvidia.* is written, so that the kernel of this machine is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import check_schema, unavailable
from tests.fuse.conftest import REPO
from tests.fuse.nvidia_child import LIBRARY
from tests.nvml import Fake
from tuner.host.nvml_live import LATER

Step = dict[str, Any]
GPUS = [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")]
RELOADED = "locked before the driver was loaded again"
SETTINGS = {
    "nvidia.persistence": "enabled", "nvidia.compute_mode": "exclusive_process", "nvidia.power_limit": 350,
    "nvidia.mem_clocks": 1593, "nvidia.gpu_clocks": {"min": 1155, "max": 1155}, "nvidia.ecc": "disabled",
    "nvidia.mig": "enabled",
}  # fmt: skip
CLOCKS = "nvidia.gpu_clocks"
QUICK = ("nvidia.persistence", "nvidia.compute_mode", "nvidia.power_limit", "nvidia.mem_clocks", "nvidia.gpu_clocks")
"""Those that no reset has to follow."""

FREE = {
    "persistence": "0", "compute": "0", "power_limit": "400000", "memory_lock": "0 0", "gpu_lock": "0 0",
    "ecc_pending": "1", "mig_pending": "0",
}  # fmt: skip
HELD = {
    "persistence": "1", "compute": "3", "power_limit": "350000", "memory_lock": "1593 1593", "gpu_lock": "1155 1155",
    "ecc_pending": "0", "mig_pending": "1",
}  # fmt: skip
"""What the driver holds for each GPU before and after (nvmlComputeMode_t, mW, MHz)."""

USER = ("--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
"""Nobody, who may read this repository wherever it lies, and set nothing."""


class Node:
    """The node, for as long as the test runs; `tree` is its part of the kernel, `fake` its driver."""

    def __init__(self, process: subprocess.Popen[str], tree: Path, fake: Fake, profile: Path) -> None:
        self.process, self.tree, self.fake, self.profile = process, tree, fake, profile

    def run(self, *argv: str, hold: str = "", **environment: str) -> Step:
        """A program on the node, while somebody has a device node open."""
        words = {"argv": argv, "hold": hold, "environment": {"LD_LIBRARY_PATH": LIBRARY, **environment}}
        done: Step = self._ask(words)
        assert done["code"] is not None, f"{argv} does not end"
        assert "Traceback" not in done["out"] + done["err"], done["out"] + done["err"]
        return done

    def tuner(self, *words: str, hold: str = "", **environment: str) -> Step:
        """tuner, as root."""
        return self.run(sys.executable, "-m", "tuner", *words, hold=hold, **environment)

    def json(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and document of a verb, checked against its schema."""
        done = self.tuner(*words, "--json")
        document: dict[str, Any] = json.loads(done["out"])
        check_schema(document)
        return done["code"], document

    def apply(self, *words: str, hold: str = "") -> Step:
        """apply of the test's profile."""
        return self.tuner("apply", "--profile", str(self.profile), *words, hold=hold)

    def held(self, gpu: int) -> dict[str, str]:
        """What the driver holds of one GPU."""
        return {key: self._state(gpu, key) for key in FREE}

    def all_held(self) -> list[dict[str, str]]:
        """The same of all."""
        return [self.held(gpu) for gpu in range(len(GPUS))]

    def want(self, *knobs: str, **others: object) -> None:
        """The profile has only these settings; `others` by the second part of the name, for all GPUs."""
        rows = {name: SETTINGS[name] for name in knobs} | {f"nvidia.{name}": value for name, value in others.items()}
        body = "".join(f"  {name}:\n    '*': {{value: {json.dumps(value)}}}\n" for name, value in rows.items())
        self.profile.write_text(f"name: live\nsummary: GPUs only\nsettings:\n{body}")

    def reload_driver(self) -> None:
        """The module is another one, and what the driver held is gone."""
        place = self.tree / "sys/module/nvidia"
        shutil.copytree(place, place.with_name("new"), symlinks=True)
        shutil.rmtree(place)
        place.with_name("new").rename(place)
        self.fake.reload_driver()

    def start(self, order: dict[str, str]) -> None:
        """Makes the view of the machine."""
        try:
            self._ask(order)
        except json.JSONDecodeError:
            said = self.process.stderr.read() if self.process.stderr else ""
            if "mount" in said and "Traceback" not in said:
                unavailable(f"no mounts of our own here: {said.strip()[-200:]}")
            pytest.fail(said)

    def _state(self, gpu: int, key: str) -> str:
        try:
            return self.fake.get(gpu, key)
        except KeyError:
            return FREE[key]

    def _ask(self, words: dict[str, Any]) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def node(copy_host: Callable[..., Path], tmp_path: Path) -> Iterator[Node]:
    """The node, with persistence off and nothing set, and a profile of all nvidia.* settings."""
    for what, missing in (("root", os.geteuid() != 0), ("unshare", shutil.which("unshare") is None)):
        if missing:
            unavailable(f"a node with GPUs needs {what}")
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/sys/module/nvidia"):
        unavailable("this machine has GPUs of its own")
    fake, tree, scratch = Fake(tmp_path / "nvml", "a100-80"), copy_host("a100-cx7"), tmp_path / "scratch"
    fake.profile("a100-80", GPUS)
    for gpu, address in enumerate(GPUS):
        told = (tree / "proc/driver/nvidia/gpus" / address / "information").read_text()
        fake.set(gpu, "uuid", told.partition("GPU UUID:")[2].split()[0])
    scratch.mkdir()
    command = ["unshare", "--mount", sys.executable, "-m", "tests.fuse.nvidia_child"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=REPO, text=True, **pipes) as process:
        made = Node(process, tree, fake, tmp_path / "live.yaml")
        made.want(*SETTINGS)
        try:
            made.start({"tree": str(tree), "library": str(fake.folder), "scratch": str(scratch)})
            yield made
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.communicate(timeout=60)


def rows(document: dict[str, Any], state: str) -> set[tuple[str, str]]:
    """The settings of a plan or verify in that state."""
    return {(row["knob"], row["target"]) for row in document["verdicts"] if row["state"] == state}


def test_the_hosts_own_gpus(node: Node) -> None:
    """The addresses that the test gives its GPUs are those of the recorded host, and what is seen is live."""
    code, found = node.json("detect")
    assert (code, found["host"]["kind"]) == (0, "live")
    assert [gpu["pci"] for gpu in found["gpus"]] == GPUS


def test_every_verb(node: Node) -> None:
    """All GPUs, set, seen by another process, given back."""
    assert node.all_held() == [FREE] * 8
    code, planned = node.json("plan", "--profile", str(node.profile), "--allow", "all")
    assert code == 10
    assert {(c["knob"], c["target"]) for c in planned["changes"]} == {(k, g) for k in SETTINGS for g in GPUS}
    assert node.all_held() == [FREE] * 8, "a plan writes nothing"

    done = node.apply("--allow", "all")
    assert done["code"] == 0, done["out"] + done["err"]
    assert done["out"].startswith("LIVE ")
    assert node.all_held() == [HELD] * 8

    code, verified = node.json("verify")
    pending = {(knob, gpu) for knob in ("nvidia.ecc", "nvidia.mig") for gpu in GPUS}
    assert (code, rows(verified, "pending")) == (13, pending)
    assert len(rows(verified, "ok")) == 5 * 8
    assert node.json("status")[1]["generation"] == 1
    told = node.tuner("explain", f"nvidia.gpu_clocks:{GPUS[0]}")
    assert told["code"] == 0 and "1155" in told["out"]

    again = node.json("apply", "--profile", str(node.profile), "--allow", "all")
    assert again[0] == 0 and again[1]["generation"] is None, "the second apply writes nothing"
    assert node.all_held() == [HELD] * 8
    back = node.tuner("rollback")
    assert back["code"] == 0, back["out"] + back["err"]
    assert node.all_held() == [FREE] * 8


def test_a_reset_puts_in_force(node: Node) -> None:
    """What was pending is in force, the locks are gone without a trace, and everything can still be given back."""
    assert node.apply("--allow", "all")["code"] == 0
    for gpu in range(8):
        node.fake.reset(gpu)
    code, verified = node.json("verify")
    assert {"nvidia.ecc", "nvidia.mig"} <= {knob for knob, _ in rows(verified, "ok")}
    assert rows(verified, "pending") == set()
    assert code in (0, 10)
    node.tuner("rollback")
    assert node.all_held() == [FREE] * 8


@pytest.mark.parametrize("way", [("-pm", "0"), ("rollback",)], ids=["persistence off before", "rolled back after"])
def test_a_lock_comes_back_after_a_reset(node: Node, way: tuple[str, ...]) -> None:
    """Persistence mode is a client that a reset needs gone (NVIDIA/gpu-operator#118); apply then locks again.

    A reset in persistence mode cannot be seen: there the old lock has to be rolled back first.
    """
    node.want("nvidia.persistence", "nvidia.gpu_clocks")
    assert node.apply("--allow", "all")["code"] == 0
    locked = node.held(2)
    assert (locked["persistence"], locked["gpu_lock"]) == ("1", "1155 1155")
    if way == ("-pm", "0"):
        node.fake.set(2, "persistence", 0)
    node.fake.reset(2)
    assert node.held(2)["gpu_lock"] == "0 0"
    if way == ("-pm", "0"):
        code, verified = node.json("verify")
        assert (code, rows(verified, "drift")) == (10, {(knob, GPUS[2]) for knob in ("nvidia.persistence", CLOCKS)})
    else:
        assert node.tuner(*way)["code"] == 0
    done = node.apply("--allow", "all")
    assert done["code"] == 0, done["out"]
    assert node.all_held() == [locked] * 8
    assert node.json("verify")[0] == 0
    assert node.tuner("rollback", "--to", "0")["code"] == 0
    assert node.all_held() == [FREE] * 8


def test_the_default_limit_is_that_of_each_board(node: Node) -> None:
    """`default` in a profile: what NVML says of the device, and undo gives back the number that was there."""
    for gpu, (limit, usual) in {1: ("300000", 350000), 2: ("250000", 400000)}.items():
        node.fake.set(gpu, "persistence", 1)
        node.fake.set(gpu, "power_limit", limit)
        node.fake.set(gpu, "power_default", usual)
    node.want(power_limit="default")
    assert node.apply("--allow", "all")["code"] == 0
    assert [held["power_limit"] for held in node.all_held()] == ["400000", "350000"] + ["400000"] * 6
    assert node.json("verify")[0] == 0
    assert node.tuner("rollback")["code"] == 0
    assert [held["power_limit"] for held in node.all_held()] == ["400000", "300000", "250000"] + ["400000"] * 5


def test_the_driver_is_loaded_again(node: Node) -> None:
    """It has forgotten all but what the device keeps: 10, with the reason, and apply mends it."""
    node.want(*QUICK)
    assert node.apply("--allow", "all")["code"] == 0
    assert node.json("verify")[0] == 0
    node.reload_driver()
    code, verified = node.json("verify")
    assert (code, len(rows(verified, "drift"))) == (10, 5 * 8)
    why = {row["state_why"] for row in verified["verdicts"] if row["knob"] == "nvidia.gpu_clocks"}
    assert len(why) == 1 and RELOADED in why.pop()
    assert RELOADED in node.tuner("verify")["out"]
    assert node.apply("--allow", "all")["code"] == 0
    assert node.json("verify")[0] == 0
    modes = {"ecc_pending": "1", "mig_pending": "0"}
    assert node.all_held() == [HELD | modes] * 8


def test_a_job_runs(node: Node) -> None:
    """Clocks and power are held, and what needs a GPU of its own is held whatever is allowed; rollback leaves it."""
    job = f"/dev/nvidia{3}"
    done = node.apply(hold=job)
    assert done["code"] == 0 and job in done["out"]
    assert node.all_held() == [FREE | {"persistence": "1", "compute": "3"}] * 8
    assert node.apply("--allow", "all", hold=job)["code"] == 0
    assert node.all_held() == [HELD | {"ecc_pending": "1", "mig_pending": "0"}] * 8
    assert node.apply("--allow", "all")["code"] == 0
    assert node.all_held() == [HELD] * 8
    back = node.tuner("rollback", hold=job)
    assert back["code"] == 14, back["out"]
    assert [(held["ecc_pending"], held["mig_pending"]) for held in node.all_held()] == [("0", "1")] * 8


def test_a_gpu_is_lost(node: Node) -> None:
    """11, by address and UUID; the seven others are judged and given back."""
    node.want(*QUICK)
    assert node.apply("--allow", "all")["code"] == 0
    node.fake.lose(3)
    code, verified = node.json("verify")
    assert (code, rows(verified, "missing")) == (11, {(knob, GPUS[3]) for knob in QUICK})
    assert len(rows(verified, "ok")) == 5 * 7
    said = node.tuner("verify")["out"]
    assert GPUS[3] in said and node.fake.get(3, "uuid") in said and "Xid" in said
    assert node.tuner("rollback")["code"] == 21
    assert [node.held(gpu) for gpu in range(8) if gpu != 3] == [FREE] * 7


def test_one_gpu_refuses(node: Node) -> None:
    """In the middle of eight: everything is undone."""
    node.fake.fail("nvmlDeviceSetGpuLockedClocks", 999, 4)
    node.want(*QUICK)
    done = node.apply("--allow", "all")
    assert done["code"] in (20, 21), done["out"]
    assert node.all_held() == [FREE] * 8


@pytest.mark.parametrize("knob", ["nvidia.power_limit", "nvidia.gpu_clocks"])
def test_without_persistence(node: Node, knob: str) -> None:
    """We would be the last client: what the driver forgets when we leave is no success."""
    node.want(knob)
    done = node.apply("--allow", "all")
    assert done["code"] == 20 and "persistence mode is off" in done["out"], done["out"]
    assert node.json("verify", "--profile", str(node.profile))[0] == 10


def test_a_call_hangs(node: Node) -> None:
    """12 within the time limit of one call that is not the first, for all settings together; the lock is free."""
    node.want(*QUICK)
    assert node.apply("--allow", "all")["code"] == 0
    node.fake.hang("nvmlDeviceGetComputeMode")
    done = node.tuner("verify")
    assert done["code"] == 12 and "did not answer" in done["out"], done["out"] + done["err"]
    assert LATER <= done["seconds"] < 3 * LATER
    node.fake.hang("")
    assert node.run("flock", "--nonblock", "/run/tuner/lock", "true")["code"] == 0
    assert node.json("verify")[0] == 0


def test_another_user(node: Node) -> None:
    """plan and verify need no root, apply does."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        unavailable("setpriv is needed to become another user")
    node.want(*QUICK)
    mine = [str(setpriv), *USER, sys.executable, "-m", "tuner"]
    planned = node.run(*mine, "plan", "--profile", str(node.profile))
    assert planned["code"] in (10, 14) and "nvidia.gpu_clocks" in planned["out"], planned["err"]
    assert node.run(*mine, "apply", "--profile", str(node.profile))["code"] == 64
    assert node.all_held() == [FREE] * 8
    assert node.apply("--allow", "all")["code"] == 0
    verified = node.run(*mine, "verify")
    assert verified["code"] == 0, verified["out"] + verified["err"]


def test_root_without_rights(node: Node) -> None:
    """As in a container: refused in words, and nothing is left."""
    node.fake.deny()
    node.want(*QUICK)
    done = node.apply("--allow", "all")
    assert done["code"] == 20 and "no permission" in done["out"] + done["err"]
    assert node.all_held() == [FREE] * 8


def test_no_library(node: Node) -> None:
    """12, with what to install."""
    node.want(*QUICK)
    assert node.apply("--allow", "all")["code"] == 0
    done = node.tuner("verify", LD_LIBRARY_PATH="")
    assert done["code"] == 12
    assert "libnvidia-ml.so.1 cannot be loaded" in done["out"], done["out"]


def test_a_capture_plans_the_same(node: Node, tmp_path: Path) -> None:
    """The captured node gives the plan of the node itself, and tells neither UUID nor serial."""
    captured, copied = tmp_path / "captured", tmp_path / "copied"
    done = node.tuner("capture", str(captured))
    assert done["code"] == 0, done["err"]
    text = captured.read_text()
    for gpu in range(8):
        assert node.fake.get(gpu, "uuid") not in text and node.fake.get(gpu, "serial") not in text
    assert node.tuner("host", "copy", str(captured), str(copied))["code"] == 0
    code, there = node.json("plan", "--profile", str(node.profile), "--allow", "all", "--root", str(copied))
    here = node.json("plan", "--profile", str(node.profile), "--allow", "all")
    assert (code, there["changes"], there["verdicts"]) == (here[0], here[1]["changes"], here[1]["verdicts"])
