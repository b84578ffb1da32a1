"""What knobs read of an MI300X and never write: partitions, memory, hive, errors of xGMI, firmware, XNACK.

Texts: Linux drivers/gpu/drm/amd/amdgpu (amdgpu_gfx.c, amdgpu_gmc.c, amdgpu_vram_mgr.c, amdgpu_xgmi.c, amdgpu_ras.c,
amdgpu_ucode.c, amdgpu_drv.c) and drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, write_profile
from tests.knobs.gpu_host import BUSY, GPU, OTHER, gpu, make
from tuner.errors import BadValue
from tuner.host import Host, open_host
from tuner.knobs import BY_NAME
from tuner.knobs.amdgpu_state import counted
from tuner.model import Absent, Reading, Seen, Unreadable

Tuner = Callable[..., Result]
GPUS = [f"0000:{bus}:00.0" for bus in ("05", "27", "47", "65", "85", "a7", "c7", "e5")]
KNOBS = [f"amdgpu.{name}" for name in ("partition", "vram", "hive", "xgmi_errors", "xnack")]
WHOLE = {
    "current_compute_partition": "SPX", "available_compute_partition": "SPX, DPX, QPX, CPX",
    "current_memory_partition": "NPS1", "available_memory_partition": "NPS1, NPS4",
}  # fmt: skip
HIVE, NODES = "xgmi_hive_info/xgmi_hive_id", "/sys/class/kfd/kfd/topology/nodes"
ERRORS = "ras/xgmi_wafl_err_count"
NORETRY = "/sys/module/amdgpu/parameters/noretry"


def read(host: Host, knob: str, target: str = GPU) -> Reading:
    return BY_NAME[f"amdgpu.{knob}"].read(host, target)


def one(tmp_path: Path, knob: str, **files: Any) -> Reading:
    """What the knob reads of a GPU with these files, `__` for a slash."""
    return read(make(tmp_path, {GPU: gpu(files={name.replace("__", "/"): f for name, f in files.items()})}), knob)


# --- the recorded node


def test_the_recorded_node_is_a_whole_one(copy_host: Callable[..., Path]) -> None:
    host = open_host(str(copy_host("mi300x-cx7")))
    for target in GPUS:
        assert read(host, "partition", target) == Seen({"compute": "SPX", "memory": "NPS1"})
        assert read(host, "vram", target) == Seen(206141652992)
        assert read(host, "hive", target) == Seen(8)
        assert read(host, "xgmi_errors", target) == Seen({"uncorrectable": 0, "correctable": 0})
        assert read(host, "xnack", target) == Seen("off")
    assert all(BY_NAME[name].targets(host) == GPUS for name in KNOBS)
    assert read(host, "firmware", "mec") == Seen({"gpus": "equal", "version": "0x000000a6"})
    assert BY_NAME["amdgpu.firmware"].targets(host) == ["mec", "sdma"]


def test_virtual_functions_and_a_reset(copy_host: Callable[..., Path]) -> None:
    """A guest sees no partition files; in a reset the driver refuses what it would have to ask the firmware for."""
    guest = open_host(str(copy_host("mi300x-cx7", "vf")))
    assert isinstance(read(guest, "partition"), Absent)
    assert isinstance(read(guest, "xnack"), Absent)
    assert read(guest, "vram") == Seen(206141652992)
    lost = open_host(str(copy_host("mi300x-cx7", "gpu-lost")))
    assert {target: read(lost, "hive", target) for target in GPUS if target != "0000:c7:00.0"} == {
        target: Seen(7) for target in GPUS if target != "0000:c7:00.0"
    }
    assert read(lost, "hive", "0000:c7:00.0") == Absent("no device at this address")
    parts = open_host(str(copy_host("mi300x-cx7", "cpx")))
    assert read(parts, "partition") == Seen({"compute": "CPX", "memory": "NPS1"})
    assert read(parts, "hive") == Seen(8)


def test_none_is_ever_written() -> None:
    assert all(BY_NAME[name].read_only for name in (*KNOBS, "amdgpu.firmware"))


def test_drift_says_what_an_operator_has_to_do(copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path) -> None:
    root = copy_host("mi300x-cx7", "cpx")
    (root / f"sys/bus/pci/devices/{GPUS[2]}/fw_version/mec_fw_version").write_text("0x000000b1\n")
    profile = write_profile(
        tmp_path / "state.yaml",
        """
amdgpu.partition: {"*": {value: {compute: SPX, memory: NPS4}}}
amdgpu.vram: {"*": {at_least: 206141652993}}
amdgpu.hive: {"*": 8}
amdgpu.xgmi_errors: {"*": {at_most: {uncorrectable: 0, correctable: 5}}}
amdgpu.firmware: {"*": equal}
amdgpu.xnack: {"*": "on"}
""",
        "state",
    )
    result = tuner("plan", "--root", root, "--profile", profile, "--json")
    assert result.code == 10
    assert result.document["changes"] == []
    rows = {(v["knob"].removeprefix("amdgpu."), v["target"]): v for v in result.document["verdicts"]}
    states = {knob: {v["state"] for (name, _), v in rows.items() if name == knob} for knob, _ in rows}
    drift, fine = {"drift"}, {"ok"}
    assert {name: states[name] for name in ("partition", "vram", "xnack")} == dict.fromkeys(
        ("partition", "vram", "xnack"), drift
    )
    assert states["hive"] == states["xgmi_errors"] == fine
    assert {target: v["state"] for (name, target), v in rows.items() if name == "firmware"} == {
        "mec": "drift", "sdma": "ok"
    }  # fmt: skip
    why = rows["partition", GPUS[0]]["state_why"]
    assert "-M NPS4" in why
    assert "whole hive" in why
    assert "-C" not in why, "the reload brings SPX (gpu-partitioning, overview)"
    assert "amdgpu/noretry" in rows["xnack", GPUS[0]]["state_why"]
    running = rows["firmware", "mec"]["running"]
    assert (running["version"], running[GPUS[2]], running[GPUS[0]]) == ("mixed", "0x000000b1", "0x000000a6")


# --- partitions


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("SPX", {"compute": "SPX"}),
        ({"memory": "NPS4"}, {"memory": "NPS4"}),
        ({"compute": "CPX", "memory": "NPS1"}, {"compute": "CPX", "memory": "NPS1"}),
    ],
)
def test_a_word_names_the_compute_partition(raw: Any, value: Any) -> None:
    assert BY_NAME["amdgpu.partition"].parse(GPU, raw) == value


@pytest.mark.parametrize("raw", ["", "spx", "NPS1", "XPX", {}, {"memory": "SPX"}, {"mode": "SPX"}, None, ["SPX"]])
def test_what_is_no_partition(raw: Any) -> None:
    with pytest.raises(BadValue):
        BY_NAME["amdgpu.partition"].parse(GPU, raw)


CPX4 = {
    "current_compute_partition": "CPX", "available_compute_partition": "CPX",
    "current_memory_partition": "NPS4", "available_memory_partition": "NPS1, NPS4",
}  # fmt: skip
"""In NPS4 the driver offers what goes with it (__aqua_vanjaram_is_valid_mode of Linux aqua_vanjaram.c)."""


@pytest.mark.parametrize(
    ("held", "wanted", "steps", "offered"),
    [
        (CPX4, {"compute": "SPX", "memory": "NPS1"}, ["-M NPS1"], ""),
        (CPX4, {"compute": "DPX", "memory": "NPS1"}, ["-M NPS1", "-C DPX"], ""),
        (CPX4, {"compute": "SPX"}, ["-C SPX"], "now it offers only CPX"),
        (WHOLE, {"compute": "CPX", "memory": "NPS4"}, ["-M NPS4", "-C CPX"], ""),
        (WHOLE, {"compute": "CPX"}, ["-C CPX"], ""),
        (WHOLE, {"compute": "TPX"}, ["-C TPX"], "now it offers only SPX, DPX, QPX, CPX"),
        ({**WHOLE, "available_compute_partition": "Not supported"}, {"compute": "CPX"}, ["-C CPX"], ""),
    ],
)
def test_memory_comes_first_and_decides_what_compute_may_be(
    tmp_path: Path, held: dict[str, str], wanted: dict[str, str], steps: list[str], offered: str
) -> None:
    """SPX is refused while NPS4 holds (SETTING_UNAVAILABLE), and the reload for the memory mode resets compute."""
    host, knob = make(tmp_path, {GPU: gpu(files={**WHOLE, **held})}), BY_NAME["amdgpu.partition"]
    assert knob.normalise(host, GPU, wanted) == wanted
    said = knob.advice(host, GPU, wanted)
    assert re.findall(r"-[CM] \w+", said) == steps
    assert said.endswith(offered) and (bool(offered) == ("offers" in said))


def test_one_gpu_in_another_mode_is_drift_and_the_rest_is_judged(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    root = copy_host("mi300x-cx7")
    place = (root / f"sys/bus/pci/devices/{GPUS[1]}").resolve()
    for name, text in CPX4.items():
        (place / name).write_text(f"{text}\n")
    result = tuner("plan", "--root", root, "--profile", "mi300x", "--json")
    assert result.code == 10
    rows = [v for v in result.document["verdicts"] if v["knob"] == "amdgpu.partition"]
    assert [(v["target"], v["state"]) for v in rows] == [(g, "drift" if g == GPUS[1] else "ok") for g in GPUS]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"current_memory_partition": "UNKNOWN"}, Unreadable),
        ({"current_compute_partition": ""}, Unreadable),
        ({"current_compute_partition": BUSY}, Unreadable),
        ({"current_memory_partition": errno.ENOENT}, Absent),
    ],
)
def test_what_is_no_mode_is_not_read(tmp_path: Path, files: dict[str, Any], kind: type) -> None:
    assert isinstance(read(make(tmp_path, {GPU: gpu(files={**WHOLE, **files})}), "partition"), kind)


# --- numbers


@pytest.mark.parametrize("text", ["65535", "4294967295", "18446744073709551615", "", "N/A", "-1", "0x10", "1 2"])
def test_all_bits_set_is_no_number(tmp_path: Path, text: str) -> None:
    found = one(tmp_path, "vram", mem_info_vram_total=text)
    assert isinstance(found, Unreadable)
    assert found.fault == "ours"


@given(st.one_of(st.text(max_size=30), st.integers(0, 2**64 - 1).map(str)))
def test_a_number_or_an_error(text: str) -> None:
    try:
        found = counted(text)
    except ValueError:
        return
    assert str(found) == text.lstrip("0") or set(text) == {"0"}
    assert found not in (2**16 - 1, 2**32 - 1, 2**64 - 1)


def test_less_memory_than_wanted_is_drift_by_at_least(tmp_path: Path) -> None:
    assert one(tmp_path, "vram", mem_info_vram_total="206141652992") == Seen(206141652992)
    assert BY_NAME["amdgpu.vram"].bounds


# --- the hive


def kfd(node: int, place: int, hive: int, domain: int = 0) -> dict[str, str]:
    """A node of KFD's topology; `place` is location_id."""
    lines = f"cpu_cores_count 0\nsimd_count 1216\nlocation_id {place}\ndomain {domain}\nhive_id {hive}"
    return {f"{NODES}/{node}/properties": lines}


CPU = {f"{NODES}/0/properties": "cpu_cores_count 96\nsimd_count 0\nlocation_id 0\ndomain 0\nhive_id 0"}


def test_members_are_counted_by_the_id(tmp_path: Path) -> None:
    third = "0001:05:00.0"
    files = [{HIVE: "7"}, {HIVE: "8"}, {HIVE: "7"}]
    host = make(tmp_path, {target: gpu(files=f) for target, f in zip((GPU, OTHER, third), files, strict=True)})
    assert [read(host, "hive", target) for target in (GPU, OTHER, third)] == [Seen(2), Seen(1), Seen(2)]


def test_without_the_file_kfd_tells(tmp_path: Path) -> None:
    """location_id is bus, device and function; the domain stands beside it."""
    nodes = {**CPU, **kfd(1, 0x0500, 7), **kfd(2, 0xA700, 7), **kfd(3, 0x0500, 9, domain=1)}
    host = make(tmp_path, {GPU: gpu(), OTHER: gpu(files={HIVE: "7"}), "0001:05:00.0": gpu()}, nodes)
    assert [read(host, "hive", t) for t in (GPU, OTHER, "0001:05:00.0")] == [Seen(2), Seen(2), Seen(1)]


def test_no_hive_is_0_and_no_word_of_one_is_absent(tmp_path: Path) -> None:
    assert read(make(tmp_path, {GPU: gpu(), OTHER: gpu()}, {**CPU, **kfd(1, 0x0500, 0)}), "hive") == Seen(0)
    assert read(make(tmp_path, {GPU: gpu()}, CPU), "hive") == Absent("neither amdgpu nor KFD shows a hive")


def test_one_that_does_not_answer_is_no_member(tmp_path: Path) -> None:
    host = make(tmp_path, {GPU: gpu(files={HIVE: "7"}), OTHER: gpu(files={HIVE: errno.EIO})})
    assert read(host, "hive") == Seen(1)
    dead = read(host, "hive", OTHER)
    assert isinstance(dead, Unreadable)
    assert dead.fault == "device"


# --- errors of xGMI


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ue: 0\nce: 0", {"uncorrectable": 0, "correctable": 0}),
        ("ue: 2\nce: 17", {"uncorrectable": 2, "correctable": 17}),
        ("ue: 0\nce: 3\nde: 1", {"uncorrectable": 0, "correctable": 3}),
    ],
)
def test_ras_counts_both_kinds(tmp_path: Path, text: str, found: dict[str, int]) -> None:
    assert one(tmp_path, "xgmi_errors", ras__xgmi_wafl_err_count=text) == Seen(found)


@pytest.mark.parametrize(
    "text", ["Query currently inaccessible", "ue: 0", "", "ue: x\nce: 0", "ue: 18446744073709551615\nce: 0"]
)
def test_counters_that_are_none(tmp_path: Path, text: str) -> None:
    found = one(tmp_path, "xgmi_errors", ras__xgmi_wafl_err_count=text)
    assert isinstance(found, Unreadable)
    assert found.fault == "ours"


def test_the_file_that_a_read_clears_is_never_opened(copy_host: Callable[..., Path]) -> None:
    """amdgpu_xgmi_show_error in amdgpu_xgmi.c writes the status register back to 0."""
    root = copy_host("mi300x-cx7")
    host, opened = open_host(str(root)), list[str]()
    real = host.read

    def watched(path: str) -> bytes:
        opened.append(path)
        return real(path)

    host.read = watched  # type: ignore[method-assign]
    for knob in BY_NAME.values():
        for target in knob.targets(host) if knob.name.startswith("amdgpu.") else ():
            knob.read(host, target)
    assert any(path.endswith(ERRORS) for path in opened)
    assert not [path for path in opened if path.endswith("/xgmi_error")]


@pytest.mark.parametrize("raw", ["", "-1", "none", {}, {"errors": "0"}, {"correctable": "x"}, None])
def test_what_is_no_count(raw: Any) -> None:
    with pytest.raises(BadValue):
        BY_NAME["amdgpu.xgmi_errors"].parse(GPU, raw)


# --- XNACK


@pytest.mark.parametrize(("number", "word"), [("-1", "off"), ("0", "on"), ("1", "off")])
def test_xnack_is_what_noretry_is_not(tmp_path: Path, number: str, word: str) -> None:
    assert read(make(tmp_path, {GPU: gpu()}, {NORETRY: number}), "xnack") == Seen(word)


@pytest.mark.parametrize("text", ["", "2", "Y", "-2"])
def test_other_texts_of_noretry_are_not_read(tmp_path: Path, text: str) -> None:
    assert isinstance(read(make(tmp_path, {GPU: gpu()}, {NORETRY: text}), "xnack"), Unreadable)


@pytest.mark.parametrize("raw", ["1", "yes", "ON", "", None])
def test_xnack_is_on_or_off(raw: Any) -> None:
    with pytest.raises(BadValue):
        BY_NAME["amdgpu.xnack"].parse(GPU, raw)


# --- firmware


def with_mec(*versions: str | None) -> dict[str, Any]:
    """GPUs of one node by address, each with its mec firmware; None for one that shows none."""
    files = [{} if version is None else {"fw_version/mec_fw_version": version} for version in versions]
    return {f"0000:{n + 1:02x}:00.0": gpu(files=f) for n, f in enumerate(files)}


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        (["0x000000a6"] * 3, {"gpus": "equal", "version": "0x000000a6"}),
        (
            ["0x000000a6", "0x000000b1"],
            {"gpus": "mixed", "version": "mixed", "0000:01:00.0": "0x000000a6", "0000:02:00.0": "0x000000b1"},
        ),
        (
            ["0x000000a6", None],
            {"gpus": "mixed", "version": "mixed", "0000:01:00.0": "0x000000a6", "0000:02:00.0": None},
        ),
    ],
)
def test_firmware_is_one_for_the_node_or_mixed(
    tmp_path: Path, versions: list[str | None], found: dict[str, str | None]
) -> None:
    assert read(make(tmp_path, with_mec(*versions)), "firmware", "mec") == Seen(found)


def test_firmware_that_nobody_shows(tmp_path: Path) -> None:
    host = make(tmp_path, with_mec(None, None))
    assert read(host, "firmware", "mec") == Absent("no GPU of this node shows that firmware")
    assert BY_NAME["amdgpu.firmware"].targets(host) == []
    assert isinstance(read(make(tmp_path, with_mec("a6")), "firmware", "mec"), Unreadable)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("equal", {"gpus": "equal"}),
        ("166", {"version": "0x000000a6"}),
        ("0xA6", {"version": "0x000000a6"}),
        ({"gpus": "equal", "version": "0x80b1"}, {"gpus": "equal", "version": "0x000080b1"}),
    ],
)
def test_a_version_is_a_number(raw: Any, value: Any) -> None:
    assert BY_NAME["amdgpu.firmware"].parse("mec", raw) == value


@pytest.mark.parametrize("raw", ["mixed", "", "07.85.11.01", "-1", "4294967296", {}, {"gpus": "mixed"}, {"mec": "1"}])
def test_what_is_no_version(raw: Any) -> None:
    with pytest.raises(BadValue):
        BY_NAME["amdgpu.firmware"].parse("mec", raw)


@pytest.mark.parametrize(
    ("target", "name"), [("mec", "mec"), ("SMC", "smc"), ("mec_fw_version", "mec"), ("ta_*", "ta_*")]
)
def test_firmware_is_named_as_the_driver_names_it(target: str, name: str) -> None:
    assert BY_NAME["amdgpu.firmware"].canonical(target) == name


@pytest.mark.parametrize("target", ["", "mec/sdma", "../mec", "0000:05:00.0", "*/mec"])
def test_what_is_no_firmware(target: str) -> None:
    with pytest.raises(BadValue):
        BY_NAME["amdgpu.firmware"].canonical(target)
