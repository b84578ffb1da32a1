"""What the knobs of NVIDIA GPUs share: targets, identity, what an error of NVML reads as and what a failed set says.

Errors: NVML API Reference, nvmlReturn_t, by the errno that tuner.host.nvml gives each.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.knobs.nvidia_host import DRIVER, GPU, NIC, OTHER, PLACE, SWITCH, UUID, Build, function, let
from tuner.errors import BadValue, Refused
from tuner.host.nvml import ERRNOS
from tuner.host.recorded import RecordedHost
from tuner.knobs import BY_NAME
from tuner.knobs.base import Knob
from tuner.model import Absent, Reading, Seen, Unreadable
from tuner.readings import read

ASKED = {
    "nvidia.persistence": "persistence",
    "nvidia.compute_mode": "compute_mode",
    "nvidia.power_limit": "power",
    "nvidia.ecc": "ecc",
    "nvidia.mig": "mig",
    "nvidia.gpu_clocks": "supported_clocks",
    "nvidia.mem_clocks": "supported_clocks",
    "nvidia.fabric": "fabric",
    "nvidia.nvlinks": "nvlinks",
    "nvidia.row_remap": "remapped_rows",
}
"""Knobs over GPUs, and the question to NVML that their reading cannot do without."""

SETS: dict[str, tuple[Any, str]] = {
    "nvidia.persistence": ("disabled", "persistence"),
    "nvidia.compute_mode": ("prohibited", "compute_mode"),
    "nvidia.power_limit": ({"limit": 300}, "power"),
    "nvidia.ecc": ({"pending": "disabled"}, "ecc"),
    "nvidia.mig": ({"pending": "enabled"}, "mig"),
    "nvidia.gpu_clocks": ({"min": 1200, "max": 1410}, "gpu_clocks"),
    "nvidia.mem_clocks": ({"min": 1215, "max": 1215}, "mem_clocks"),
}
"""Writable knobs, a value that an A100 takes, and the word of NVML."""

INSTALL = "install nvidia-ml-py, in place of pynvml or nvidia-ml-py3, into the Python that runs tuner"

OVER_GPUS = pytest.mark.parametrize("name", ASKED)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(...) -> a recorded host with an A100."""
    return Build(tmp_path)


def answering(name: str, answer: Any) -> dict[str, Any]:
    """The answer to what a knob asks."""
    return {ASKED[name]: answer}


def failing(number: int, monkeypatch: pytest.MonkeyPatch, host: RecordedHost, only: str) -> None:
    """From here on NVML answers one question with this errno, as the door to the library raises it."""
    real = type(host.nvml).get

    def get(self: Any, address: str, name: str) -> Any:
        if name == only:
            raise OSError(number, os.strerror(number))
        return real(self, address, name)

    monkeypatch.setattr(type(host.nvml), "get", get)


# --- targets and names --------------------------------------------------------------------------------------------


@OVER_GPUS
def test_targets_are_the_gpus_of_nvidia(build: Build, name: str) -> None:
    """Class 0x0302 and 0x0300; no bridge of an NVSwitch, no sound, no NIC, no GPU of another vendor."""
    host = build(
        functions={
            OTHER: function("10de 2204", "030000", ""),
            "0000:43:00.1": function("10de 1aef", "040300", "snd_hda_intel"),
            SWITCH: function("10de 22a3", "068000", "nvidia-nvswitch"),
            NIC: function("15b3 1021", "020000", "mlx5_core"),
            "0000:05:00.0": function("1002 74a1", "120000", "amdgpu"),
        }
    )
    assert BY_NAME[name].targets(host) == [GPU, OTHER]


@OVER_GPUS
def test_one_name_for_a_gpu(name: str) -> None:
    """An address gets its domain; indexes and device nodes are not stable."""
    knob = BY_NAME[name]
    assert knob.canonical("1B:00.0") == GPU
    assert knob.canonical("0000:1b:*") == "0000:1b:*"
    for word in ("0", "nvidia0", "GPU-5f3b1d9e", ""):
        with pytest.raises(BadValue):
            knob.canonical(word)


@OVER_GPUS
def test_a_gpu_is_told_by_its_uuid(build: Build, name: str) -> None:
    """From NVML; from the driver's file where NVML does not answer; question marks there are none."""
    file = f"/proc/driver/nvidia/gpus/{GPU}/information"
    text = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 18\nGPU UUID: \t {}\nVideo BIOS: \t 92.00.19.00.13\n"
    knob = BY_NAME[name]
    assert knob.identity(build(), GPU) == f"uuid {UUID}"
    other = "GPU-00000000-0c1a-4c7e-9a11-6d2f0b8e4a01"
    assert knob.identity(build(uuid="error GPU_IS_LOST", files={file: text.format(other)}), GPU) == f"uuid {other}"
    unused = text.format("GPU-????????-????-????-????-????????????")
    assert knob.identity(build(uuid="error TIMEOUT", files={file: unused}), GPU) == ""


# --- readings -----------------------------------------------------------------------------------------------------


@OVER_GPUS
@pytest.mark.parametrize(("driver", "who"), [("vfio-pci", "vfio-pci"), ("nouveau", "nouveau"), ("", "no driver")])
def test_a_gpu_without_its_driver_is_absent_and_says_what_has_it(
    build: Build, name: str, driver: str, who: str
) -> None:
    """Whatever NVML would say."""
    host = build(functions={GPU: function(driver=driver)})
    assert BY_NAME[name].read(host, GPU) == Absent(f"bound to {who}, not to nvidia")


@OVER_GPUS
def test_what_is_no_gpu_is_absent(build: Build, name: str) -> None:
    """An address without a device, and one of a switch."""
    host = build(functions={SWITCH: function("10de 22a3", "068000", "nvidia")})
    assert BY_NAME[name].read(host, "0000:99:00.0") == Absent("no device at this address")
    assert BY_NAME[name].read(host, SWITCH) == Absent("no GPU of NVIDIA")


@OVER_GPUS
def test_a_gpu_off_the_bus_is_its_own_fault(build: Build, name: str) -> None:
    """The configuration space reads all ones, and NVML may still answer from memory."""
    host = build(functions={GPU: function(config="\n")})
    Path(host.root + PLACE, GPU, "config").write_bytes(b"\xff" * 64)
    found = read(host, BY_NAME[name], GPU)
    assert isinstance(found, Unreadable) and found.fault == "device"
    assert "off the bus" in found.why and UUID in found.why


@OVER_GPUS
@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("NOT_SUPPORTED", Absent, "this GPU does not support it"),
        ("FUNCTION_NOT_FOUND", Absent, f"driver {DRIVER} is too old for it"),
        ("GPU_IS_LOST", "device", "lost"),
        ("NOT_FOUND", "device", "lost"),
        ("RESET_REQUIRED", "device", f"nvidia-smi --gpu-reset -i {GPU}"),
        ("TIMEOUT", "ours", "in time"),
        ("LIBRARY_NOT_FOUND", "ours", f"install the libraries of driver {DRIVER}"),
        ("LIB_RM_VERSION_MISMATCH", "ours", f"({DRIVER}): load the new driver, or reboot"),
        ("BINDING_NOT_FOUND", "ours", f"cannot be imported: {INSTALL}"),
        ("BINDING_TOO_OLD", "ours", f"too old and lacks this: {INSTALL}"),
        ("UNKNOWN_VALUE_9_OF_FABRIC_STATE", "ours", "NVML: unknown value 9 of fabric state"),
        ("DRIVER_NOT_LOADED", "ours", "/dev/nvidiactl"),
        ("UNKNOWN", "ours", "NVML: unknown"),
    ],
)
def test_what_an_error_of_nvml_means(build: Build, name: str, error: str, kind: Any, words: str) -> None:
    """Absent, the device's fault or ours, with what to do."""
    found = read(build(**answering(name, f"error {error}")), BY_NAME[name], GPU)
    assert isinstance(found, kind if kind is Absent else Unreadable), found
    assert words in found.why
    assert not isinstance(found, Unreadable) or found.fault == kind


def test_every_errno_of_the_door_has_a_meaning(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is taken for a value, whichever knob meets it."""
    for number in {*ERRNOS.values(), errno.EREMOTEIO}:
        for name, question in ASKED.items():
            with monkeypatch.context() as patch:
                host = build()
                failing(number, patch, host, question)
                assert isinstance(BY_NAME[name].read(host, GPU), (Absent, Unreadable)), (name, number)


@OVER_GPUS
@pytest.mark.parametrize(("user", "why"), [(1000, "needs root"), (0, "not permitted")])
def test_what_only_root_may_ask(build: Build, monkeypatch: pytest.MonkeyPatch, name: str, user: int, why: str) -> None:
    """NO_PERMISSION: a user is told to be root, root that it is not allowed."""
    host = build(**answering(name, "error NO_PERMISSION"))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = BY_NAME[name].read(host, GPU)
    assert isinstance(found, Unreadable) and found.fault == "ours" and found.why.startswith(why)


@OVER_GPUS
@pytest.mark.parametrize("answer", [7, "on", [], {}, [1], {"current": "on", "pending": "off"}, True])
def test_an_answer_of_another_shape_is_never_a_value(build: Build, name: str, answer: Any) -> None:
    """Unreadable and ours, or absent; no exception."""
    found = read(build(**answering(name, answer)), BY_NAME[name], GPU)
    assert not isinstance(found, Seen), found
    assert isinstance(found, Absent) or found.fault == "ours"


def spoilt(answer: Any, part: str) -> Iterator[str]:
    """The answer as JSON with one leaf after the other replaced."""
    if not isinstance(answer, (dict, list)):
        yield part
        return
    rows = list(answer.items()) if isinstance(answer, dict) else list(enumerate(answer[:2]))
    for key, found in rows:
        for text in spoilt(found, part):
            others = [(k, text if k == key else json.dumps(v)) for k, v in rows]
            if isinstance(answer, dict):
                yield "{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in others) + "}"
            else:
                yield "[" + ", ".join(v for _, v in others) + "]"


@pytest.mark.parametrize("part", ["1e400", "-Infinity", "NaN", "1.5", '"x"', "[]", "{}", "true", "-1", "9" * 30])
@pytest.mark.parametrize("name", SETS)
def test_an_answer_with_one_wrong_part_is_no_crash(build: Build, name: str, part: str) -> None:
    """Files of a recorded host that somebody edited: a reading, and a value that is taken or refused in words."""
    host = build()
    for question in {ASKED[name], "clocks", "uuid", "persistence"}:
        place = Path(host.root, f".tuner-host/nvml/{GPU}/{question}")
        right = place.read_text()
        for text in spoilt(json.loads(right), part):
            place.write_text(text)
            found = read(host, BY_NAME[name], GPU)
            if isinstance(found, Seen) or found.why.startswith("no getter"):
                with contextlib.suppress(BadValue, OSError):
                    BY_NAME[name].normalise(host, GPU, SETS[name][0])
        place.write_text(right)


@OVER_GPUS
@pytest.mark.parametrize("text", ["", "error", "error ", "Infinity", "1e400", "[" * 100_000, "9" * 5000, "\0", "{}x"])
def test_a_text_that_is_no_answer_is_unknown(build: Build, name: str, text: str) -> None:
    host = build()
    Path(host.root, f".tuner-host/nvml/{GPU}/{ASKED[name]}").write_text(text)
    found = read(host, BY_NAME[name], GPU)
    assert isinstance(found, Unreadable) and found.fault == "ours", found


@OVER_GPUS
def test_an_answer_of_null_is_not_supported(build: Build, name: str) -> None:
    """What NVML's sentinels become."""
    found = read(build(**answering(name, None)), BY_NAME[name], GPU)
    assert found == Absent("this GPU does not support it")


@OVER_GPUS
def test_what_was_not_recorded_is_unknown(build: Build, name: str) -> None:
    """One answer, or NVML as a whole: never taken for not supported."""
    host = build()
    Path(host.root, f".tuner-host/nvml/{GPU}/{ASKED[name]}").unlink()
    manifest = Path(host.root, ".tuner-host/manifest")
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace(f"/{GPU}/{ASKED[name]}\n", f"/{GPU}/other\n"), encoding="utf-8")
    found = read(RecordedHost(host.root), BY_NAME[name], GPU)
    assert isinstance(found, Unreadable) and found.fault == "ours" and "not recorded" in found.why
    shutil.rmtree(Path(host.root, ".tuner-host/nvml"))
    manifest.write_text(text.replace("/.tuner-host/nvml/", "/.tuner-host/gone/"), encoding="utf-8")
    found = read(RecordedHost(host.root), BY_NAME[name], GPU)
    assert isinstance(found, Unreadable) and found.fault == "ours" and "recorded" in found.why


@OVER_GPUS
def test_a_reading_costs_a_tool(name: str) -> None:
    """So that verify never rests on files alone."""
    assert BY_NAME[name].cost == "tool"


# --- writes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("NOT_SUPPORTED", "this GPU does not support it"),
        ("NO_PERMISSION", "no permission"),
        ("INVALID_ARGUMENT", "the driver refuses this value"),
        ("IN_USE", "in use"),
        ("GPU_IS_LOST", "lost"),
        ("TIMEOUT", "in time"),
        ("FUNCTION_NOT_FOUND", "too old"),
        ("RESET_REQUIRED", "--gpu-reset"),
    ],
)
def test_a_set_that_fails_says_why(
    build: Build, monkeypatch: pytest.MonkeyPatch, name: str, error: str, words: str
) -> None:
    """Each error of NVML as a refusal in words, and the value is as it was, or may be what was to be locked."""
    host = build()
    knob, (value, word) = BY_NAME[name], SETS[name]
    before = knob.read(host, GPU)
    real = type(host.nvml).set

    def refuse(self: Any, address: str, asked: str, _: Any) -> Any:
        assert (address, asked) == (GPU, word)
        raise OSError(ERRNOS[error], f"NVML: {error}")

    with monkeypatch.context() as patch:
        patch.setattr(type(host.nvml), "set", refuse)
        with pytest.raises(Refused, match=words):
            knob.write(host, GPU, value)
    assert type(host.nvml).set is real
    after = knob.read(host, GPU)
    open_end = name.endswith("_clocks") and error in ("IN_USE", "GPU_IS_LOST", "TIMEOUT", "RESET_REQUIRED")
    assert knob.lingers(host, GPU) == open_end, "what was locked may be in force, and nobody can ask"
    assert after == before or open_end


@pytest.mark.parametrize("name", SETS)
def test_without_rights_nothing_changes(build: Build, name: str) -> None:
    """The recorded GPU refuses too."""
    host = build(rules=f"rules:\n  /.tuner-host/nvml/{GPU}/*: {{is: nvidia, deny: true}}\n")
    before = BY_NAME[name].read(host, GPU)
    with pytest.raises(Refused, match="no permission"):
        BY_NAME[name].write(host, GPU, SETS[name][0])
    assert BY_NAME[name].read(host, GPU) == before


@pytest.mark.parametrize("name", sorted(set(ASKED) - set(SETS)))
def test_what_is_judged_only_is_never_written(build: Build, name: str) -> None:
    """And says so."""
    assert BY_NAME[name].read_only
    with pytest.raises(Refused, match="judged only"):
        BY_NAME[name].write(build(), GPU, 1)


@pytest.mark.parametrize("name", SETS)
def test_one_gpu_is_set_and_not_the_other(build: Build, name: str) -> None:
    """Eight are eight settings."""
    host = build(gpus={OTHER: {"uuid": "GPU-2"}}, functions={OTHER: function()})
    knob: Knob = BY_NAME[name]
    before: Reading = knob.read(host, OTHER)
    knob.write(host, GPU, SETS[name][0])
    assert knob.read(host, OTHER) == before
    assert knob.read(host, GPU) != before


@given(st.text())
def test_no_text_is_taken_for_a_gpu_by_accident(word: str) -> None:
    """An address in the one spelling, a pattern, or an error."""
    try:
        name = BY_NAME["nvidia.ecc"].canonical(word)
    except BadValue:
        return
    assert set("*?[") & set(name) or len(name) == len("0000:00:00.0")


def test_the_driver_is_asked_where_no_file_tells_its_version(build: Build) -> None:
    """In the words of a driver that is too old."""
    host = build(ecc="error FUNCTION_NOT_FOUND")
    Path(host.root, "sys/module/nvidia/version").unlink()
    assert BY_NAME["nvidia.ecc"].read(host, GPU) == Absent(f"driver {DRIVER} is too old for it")
    let(host, "driver", "error TIMEOUT", "system")
    assert BY_NAME["nvidia.ecc"].read(host, GPU) == Absent("driver of unknown version is too old for it")
