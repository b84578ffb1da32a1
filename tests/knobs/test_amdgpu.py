"""The knob `amdgpu.clock` on small hosts: what an MI300X takes, what it reads as, and that every state comes back.

Values: Linux drivers/gpu/drm/amd/pm (amdgpu_pm.c, swsmu/smu13/smu_v13_0_6_ppt.c), ROCm/rocm-systems
projects/amdsmi/docs/conceptual/perf-determinism.md, ROCm/amdgpu-docs docs/system-optimization/mi300x.rst.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.errors import BadValue, Refused
from tuner.host.recorded import RecordedHost
from tuner.knobs.amdgpu import AmdgpuClock
from tuner.model import Absent, Seen, Unreadable, Want, aim, met
from tuner.plan import read_only
from tuner.sim import store

KNOB = AmdgpuClock()
DEVICES = "/sys/bus/pci/devices"
GPU = "0000:05:00.0"
LEVEL, TABLE = "power_dpm_force_performance_level", "pp_od_clk_voltage"
STOCK = "OD_SCLK:\n0: 500Mhz\n1: 2100Mhz\nOD_MCLK:\n0: 900Mhz\n1: 1300Mhz\n"
FREE: dict[str, int | str | None] = {"level": "auto", "min": 500, "max": 2100}
CAP: dict[str, int | str | None] = {"level": "perf_determinism", "max": 1900}
SERIAL = "692200000000"
UNIQUE = "e3aa140f9a5f9e31"

Build = Callable[..., "Logged"]


class Logged(RecordedHost):
    """A recorded host that remembers each write, and fails reads and writes as it is told to."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.writes: list[str] = []
        self.reads: list[str] = []
        self.failing: dict[str, list[int]] = {}
        """Text written or name read -> errnos of its next tries, 0 for one that works; the last one stays."""
        self.deaf: set[str] = set()
        """Texts that are taken and have no effect."""

    def read(self, path: str) -> bytes:
        self.reads.append(posixpath.basename(path))
        self._fail(posixpath.basename(path), path)
        return super().read(path)

    def write(self, path: str, text: str) -> None:
        self.writes.append(text)
        self._fail(text.strip(), path)
        if text.strip() not in self.deaf:
            super().write(path, text)

    def _fail(self, what: str, path: str) -> None:
        errnos = self.failing.get(what, [0])
        number = errnos.pop(0) if len(errnos) > 1 else errnos[0]
        if number:
            raise OSError(number, os.strerror(number), path)


def device(ids: str = "1002 74a1", driver: str = "amdgpu", **files: str) -> dict[str, str]:
    """A PCI function: its files by name, `driver` for the one it is bound to; a file "" is left out."""
    vendor, kind = ids.split()
    power = {LEVEL: "auto\n", TABLE: STOCK, "pp_dpm_mclk": "0: 900Mhz *\n1: 1100Mhz \n2: 1200Mhz \n3: 1300Mhz \n"}
    names = {"serial_number": f"{SERIAL}\n", "unique_id": f"{UNIQUE}\n"}
    found = {"vendor": f"0x{vendor}\n", "device": f"0x{kind}\n", "class": "0x120000\n", "driver": driver}
    return {name: text for name, text in {**found, **power, **names, **files}.items() if text}


RULE = "{is: od_table, sclk: [500, 2100], mclk: [900, 1300]%s}"


def manifest(devices: Mapping[str, Mapping[str, str]], more: str) -> str:
    """The text of a recorded host with these PCI functions; `more` is added to the rule of the driver."""
    rules = [f"  /sys/devices/pci*/{name}: {RULE % more}" for name in (LEVEL, TABLE)]
    out = ["tuner-host 1", "file 0644 /.tuner-host/host.yaml", "|name: gpus", "|kernel: 6.8.0"]
    out += ["file 0644 /.tuner-host/kernel.yaml", "|rules:", *(f"|{line}" for line in rules)]
    out += [f"dir 0755 {DEVICES}", *(f"|{address}" for address in sorted(devices))]
    for address, files in devices.items():
        place = f"/sys/devices/pci0000:00/{address}"
        out += [f"link 0777 {DEVICES}/{address}", f"+../../../devices/pci0000:00/{address}"]
        out += [f"dir 0755 {place}", *(f"|{name}" for name in sorted(files))]
        for name, text in files.items():
            if name == "driver":
                out += [f"link 0777 {place}/driver", f"+../../../bus/pci/drivers/{text}"]
            else:
                out += [f"file 0644 {place}/{name}", *(f"|{line}" for line in text.splitlines())]
    return "\n".join(out) + "\n"


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(more="", **files of the one GPU) or build(devices={address: device(...)}) -> a recorded host."""
    count = 0

    def make(more: str = "", devices: Mapping[str, Mapping[str, str]] | None = None, **files: str) -> Logged:
        nonlocal count
        count += 1
        text = tmp_path / f"gpus-{count}.host"
        text.write_text(manifest(devices or {GPU: device(**files)}, more), encoding="utf-8")
        store.copy(text, str(tmp_path / f"root-{count}"), [])
        return Logged(str(tmp_path / f"root-{count}"))

    return make


def echo(host: RecordedHost, *texts: str) -> None:
    """What somebody else writes, as in a shell: words to the level file, commands to the table; errors are ignored."""
    for text in texts:
        name = TABLE if text.split()[0] in ("s", "m", "c", "r") else LEVEL
        try:
            RecordedHost.write(host, f"{DEVICES}/{GPU}/{name}", f"{text}\n")
        except OSError:
            continue


def shown(host: RecordedHost) -> tuple[str, str]:
    """Level file and table, byte for byte."""
    folder = Path(host.root + f"/sys/devices/pci0000:00/{GPU}")
    return (folder / LEVEL).read_text(), (folder / TABLE).read_text()


def seen(host: RecordedHost) -> Any:
    found = KNOB.read(host, GPU)
    assert isinstance(found, Seen), found
    return found.value


def put(host: Logged, want: Mapping[str, Any]) -> None:
    """What apply does for a profile that wants this: normal form, merged over what is there, written."""
    normal = KNOB.normalise(host, GPU, dict(want))
    KNOB.write(host, GPU, aim(Want("value", normal), seen(host), KNOB.key))


def said(host: Logged) -> list[str]:
    """The texts written so far."""
    return [text.strip() for text in host.writes]


# --- targets and values, without a host


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("0000:05:00.0", "0000:05:00.0"),
        ("0000:C7:00.0", "0000:c7:00.0"),
        ("e5:00.0", "0000:e5:00.0"),
        ("*", "*"),
        ("0000:[0-7]?:*", "0000:[0-7]?:*"),
    ],
)
def test_a_target_is_a_pci_address(target: str, name: str) -> None:
    assert KNOB.canonical(target) == name


@pytest.mark.parametrize("target", ["card1", "0", "GPU0", "renderD128", "", "0000:05:00", "0000:05:20.0", "05:00.8"])
def test_numbers_that_change_over_reboots_are_no_targets(target: str) -> None:
    with pytest.raises(BadValue) as bad:
        KNOB.canonical(target)
    assert "0000:05:00.0" in bad.value.hint


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("auto", {"level": "auto"}),
        ({"level": "auto"}, {"level": "auto"}),
        ({"level": "perf_determinism", "max": "1900"}, {"level": "perf_determinism", "max": 1900}),
        ({"max": "0x76c", "level": "perf_determinism"}, {"level": "perf_determinism", "max": 1900}),
        ({"max": "1700", "level": "manual", "min": "800"}, {"level": "manual", "min": 800, "max": 1700}),
    ],
)
def test_values(raw: Any, value: Any) -> None:
    assert KNOB.parse("*", raw) == value


@pytest.mark.parametrize(
    "word", ["high", "low", "profile_standard", "profile_min_sclk", "profile_min_mclk", "profile_peak", "profile_exit"]
)
@pytest.mark.parametrize("record", [False, True])
def test_words_that_an_mi300x_refuses_are_refused_with_what_the_try_costs(word: str, record: bool) -> None:
    with pytest.raises(BadValue) as bad:
        KNOB.parse("*", {"level": word} if record else word)
    assert f"an MI300X refuses {word}" in bad.value.what
    assert "ends a determinism cap" in bad.value.what
    assert "auto" in bad.value.hint


@pytest.mark.parametrize("raw", ["manual", {"level": "manual"}, {"level": "manual", "max": "1700"}])
def test_manual_without_a_range_is_refused_because_it_sets_nothing(raw: Any) -> None:
    """The second half of a recipe that is often copied: --setperflevel high, then manual."""
    with pytest.raises(BadValue) as bad:
        KNOB.parse("*", raw)
    assert "sets nothing" in bad.value.what
    assert "high" in bad.value.what


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ("perf_determinism", "nothing is capped"),
        ({"level": "perf_determinism", "min": "500", "max": "1900"}, "by max alone"),
        ({"level": "auto", "max": "1900"}, "auto has no limits"),
        ({"max": "1900"}, "no level"),
        ({"level": "auto", "mclk": "900"}, "mclk"),
        ({"level": "manual", "min": "1700", "max": "1700"}, "not below"),
        ({"level": "manual", "min": "1800", "max": "1700"}, "not below"),
        ({"level": "perf_determinism", "max": "1900Mhz"}, "not a number"),
        ({"level": "perf_determinism", "max": "01900"}, "leading zero"),
        ({"level": "perf_determinism", "max": "0"}, "out of range"),
        ({"level": "perf_determinism", "max": "65535"}, "out of range"),
        ({"level": "perf_determinism", "max": None}, "not a number"),
        ("AUTO", "no level"),
        ("determinism", "no level"),
        ("1900", "no level"),
        ("", "no level"),
        (None, "not a single value"),
        (["auto"], "not a single value"),
        ({"level": ["auto"]}, "not a single value"),
        ({}, "no level"),
    ],
)
def test_other_values_are_refused(raw: Any, word: str) -> None:
    with pytest.raises(BadValue) as bad:
        KNOB.parse("*", raw)
    assert word in bad.value.what


def test_a_write_disturbs_clocks_and_the_level_is_what_a_scalar_means() -> None:
    assert (KNOB.name, KNOB.main, KNOB.disruption(GPU), KNOB.persist) == (
        "amdgpu.clock", "level", "clocks", "boot unit",
    )  # fmt: skip


# --- targets of a host


def test_targets_are_found_by_id_and_driver_whatever_stands_between(build: Build) -> None:
    bmc = {"vendor": "0x1a03\n", "device": "0x2000\n", "class": "0x030000\n", "driver": "ast"}
    bridge = {"vendor": "0x1002\n", "device": "0x1501\n", "class": "0x060400\n", "driver": "pcieport"}
    other = device("1002 740c")
    devices = {"0000:02:00.0": bmc, "0000:04:00.0": bridge, GPU: device(), "0000:27:00.0": device(driver="vfio-pci")}
    devices |= {"0000:47:00.0": device("1002 74b5"), "0000:65:00.0": device("1002 74a2"), "0000:85:00.0": other}
    devices |= {"0001:05:00.0": device(**{"class": "0x038000\n"})}
    host = build(devices=devices)
    assert KNOB.targets(host) == [GPU, "0000:47:00.0", "0000:65:00.0", "0001:05:00.0"]


def test_no_pci_bus_no_targets(build: Build, tmp_path: Path) -> None:
    text = tmp_path / "none.host"
    text.write_text(
        "tuner-host 1\nfile 0644 /.tuner-host/host.yaml\n|name: none\n|kernel: 6.8.0\ndir 0755 /sys\n|kernel\n"
    )
    store.copy(text, str(tmp_path / "none"), [])
    assert KNOB.targets(RecordedHost(str(tmp_path / "none"))) == []


def test_identity_is_serial_and_unique_id(build: Build) -> None:
    assert KNOB.identity(build(), GPU) == f"serial {SERIAL}, unique id {UNIQUE}"
    assert KNOB.identity(build(serial_number=""), GPU) == f"unique id {UNIQUE}"
    assert KNOB.identity(build(), "0000:99:00.0") == ""


# --- reading


@pytest.mark.parametrize(
    ("level", "table", "value"),
    [
        ("auto", STOCK, FREE),
        ("perf_determinism", STOCK.replace("2100", "1900"), {"level": "perf_determinism", "min": 500, "max": 1900}),
        ("perf_determinism", STOCK, {"level": "perf_determinism", "min": 500, "max": 2100}),
        ("manual", STOCK, {"level": "manual", "min": 500, "max": 2100}),
        ("manual", "OD_SCLK:\n0: 800Mhz\n1: 1700Mhz\n", {"level": "manual", "min": 800, "max": 1700}),
        ("auto", "OD_FCLK:\n0: 1200Mhz\n1: 2000Mhz\n" + STOCK, FREE),
        ("auto", STOCK + "OD_FCLK:\n0: 1200Mhz\n1: 2000Mhz\n", FREE),
        ("auto", STOCK + "OD_RANGE:\nSCLK:     500Mhz       2100Mhz\nMCLK: 900Mhz 1300Mhz\n", FREE),
        ("auto", STOCK.replace("Mhz", "MHz"), FREE),
    ],
)
def test_reading(build: Build, level: str, table: str, value: Any) -> None:
    assert seen(build(**{LEVEL: f"{level}\n", TABLE: table})) == value


@pytest.mark.parametrize("level", ["auto", "perf_determinism", "manual"])
def test_a_limit_of_the_memory_clock_is_part_of_manual(build: Build, level: str) -> None:
    """A later auto would lift it, so it has to be known to be given back."""
    found = seen(build(**{LEVEL: f"{level}\n", TABLE: STOCK.replace("1300", "1100")}))
    assert found.get("memory") == (1100 if level == "manual" else None)


@pytest.mark.parametrize(
    ("level", "table"),
    [
        ("auto", "unavailable\n"),
        ("auto", "OD_SCLK:\n0: 500Mhz\n"),
        ("auto", "OD_MCLK:\n0: 900Mhz\n1: 1300Mhz\n"),
        ("unknown", STOCK),
        ("high", STOCK),
        ("auto perf_determinism", STOCK),
    ],
)
def test_what_no_mi300x_shows_is_unknown_and_never_written_over(build: Build, level: str, table: str) -> None:
    found = KNOB.read(build(**{LEVEL: f"{level}\n", TABLE: table}), GPU)
    assert isinstance(found, Unreadable)
    assert found.fault == "ours"


@pytest.mark.parametrize(
    ("files", "word"),
    [
        (device("1002 74b5"), "virtual function"),
        (device("1002 74b5", **{LEVEL: "", TABLE: ""}), "virtual function"),
        (device(**{LEVEL: ""}), "virtual function"),
        (device(**{TABLE: ""}), "virtual function"),
        (device("1002 74a2"), "MI308X"),
        (device("1002 740c"), "1002:740c"),
        (device("10de 2330", "nvidia"), "10de:2330"),
        (device(driver="vfio-pci"), "vfio-pci"),
        (device(driver=""), "no driver"),
    ],
)
def test_what_is_no_mi300x_of_ours_is_absent_with_the_reason(build: Build, files: dict[str, str], word: str) -> None:
    found = KNOB.read(build(devices={GPU: files}), GPU)
    assert isinstance(found, Absent)
    assert word in found.why


def test_an_address_without_a_device_is_absent(build: Build) -> None:
    assert KNOB.read(build(), "0000:c7:00.0") == Absent("no device at this address")


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EIO, errno.ENXIO])
@pytest.mark.parametrize("name", [LEVEL, TABLE, "vendor"])
def test_a_dead_gpu_is_the_fault_of_the_device_and_named(build: Build, number: int, name: str) -> None:
    host = build()
    host.failing = {name: [number]}
    found = KNOB.read(host, GPU)
    assert isinstance(found, Unreadable)
    assert found.fault == "device"
    assert SERIAL in found.why
    assert UNIQUE in found.why


def test_a_gpu_off_the_bus_is_dead_though_the_driver_answers_from_memory(build: Build) -> None:
    host = build(config="x")
    config = Path(host.root + f"/sys/devices/pci0000:00/{GPU}/config")
    config.write_bytes(b"\x02\x10\xa1\x74" + bytes(60))
    assert seen(host) == FREE
    config.write_bytes(b"\xff" * 64)
    found = KNOB.read(host, GPU)
    assert isinstance(found, Unreadable)
    assert (found.fault, SERIAL in found.why) == ("device", True)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY])
@pytest.mark.parametrize("name", [LEVEL, TABLE])
def test_a_gpu_in_reset_is_asked_again_and_then_unknown(build: Build, number: int, name: str) -> None:
    host = build()
    host.failing = {name: [number]}
    start = time.monotonic()
    found = KNOB.read(host, GPU)
    assert time.monotonic() - start < 1
    assert isinstance(found, Unreadable)
    assert (found.fault, "in reset" in found.why) == ("ours", True)
    assert host.reads.count(name) > 1


def test_a_gpu_that_comes_back_from_reset_is_read(build: Build) -> None:
    host = build()
    host.failing = {LEVEL: [errno.EBUSY, 0]}
    assert seen(host) == FREE


# --- normal form


@pytest.mark.parametrize(
    ("state", "want"),
    [
        (["auto"], {"level": "auto"}),
        (["auto"], CAP),
        (["auto"], {"level": "perf_determinism", "max": 500}),
        (["auto"], {"level": "manual", "min": 500, "max": 2100}),
        (["perf_determinism", "s 1 1200", "c"], CAP),
        (["manual", "s 0 800", "s 1 1000", "c"], {"level": "manual", "min": 500, "max": 2100}),
    ],
)
def test_values_within_the_range_stay_as_they_are(build: Build, state: list[str], want: dict[str, Any]) -> None:
    """The level may hide the range of the table: limits in force are not what can be set."""
    host = build()
    echo(host, *state)
    assert KNOB.normalise(host, GPU, want) == want


@pytest.mark.parametrize("state", [["auto"], ["perf_determinism", "s 1 1900", "c"], ["manual"]])
@pytest.mark.parametrize(
    "want",
    [
        {"level": "perf_determinism", "max": 2101},
        {"level": "perf_determinism", "max": 499},
        {"level": "manual", "min": 499, "max": 1700},
        {"level": "manual", "min": 800, "max": 2101},
    ],
)
def test_values_out_of_range_are_refused_before_any_write(build: Build, state: list[str], want: Any) -> None:
    host = build()
    echo(host, *state)
    with pytest.raises(BadValue) as bad:
        KNOB.normalise(host, GPU, want)
    assert "500..2100" in bad.value.hint
    assert host.writes == []


def test_a_cap_at_the_top_is_refused_because_nothing_tells_it_from_none(build: Build) -> None:
    with pytest.raises(BadValue, match="the top"):
        KNOB.normalise(build(), GPU, {**CAP, "max": 2100})


@pytest.mark.parametrize(
    "files",
    [
        {TABLE: "OD_SCLK:\n0: 500Mhz\n1: 1800Mhz\n"},
        {LEVEL: "manual\n", TABLE: "OD_SCLK:\n0: 500Mhz\n1: 1000Mhz\nOD_RANGE:\nSCLK: 500Mhz 1800Mhz\n"},
    ],
    ids=["auto", "OD_RANGE"],
)
def test_the_range_of_the_device_counts_where_it_shows(build: Build, files: dict[str, str]) -> None:
    host = build(**files)
    with pytest.raises(BadValue) as bad:
        KNOB.normalise(host, GPU, CAP)
    assert "500..1800" in bad.value.hint


# --- writing


@pytest.mark.parametrize(
    ("state", "want", "writes"),
    [
        (["auto"], CAP, ["perf_determinism", "s 1 1900", "c"]),
        (["auto"], {"level": "manual", "min": 800, "max": 1700}, ["manual", "s 0 800", "s 1 1700", "c"]),
        (["auto"], {"level": "manual", "min": 500, "max": 2100}, ["manual"]),
        (["perf_determinism", "s 1 1500", "c"], CAP, ["s 1 1900", "c"]),
        (["perf_determinism", "s 1 1900", "c"], {"level": "auto"}, ["auto"]),
        (["manual", "s 0 800", "c"], {"level": "auto"}, ["auto"]),
        (["manual"], {"level": "manual", "min": 500, "max": 1000}, ["auto", "manual", "s 0 500", "s 1 1000", "c"]),
        (["manual", "s 0 800", "s 1 1700", "c"], CAP, ["auto", "perf_determinism", "s 1 1900", "c"]),
        (["auto"], {"level": "auto"}, []),
        (["perf_determinism", "s 1 1900", "c"], CAP, []),
        (["manual", "s 0 800", "s 1 1700", "c"], {"level": "manual", "min": 800, "max": 1700}, []),
    ],
)
def test_level_and_range_are_separate_writes_and_only_what_is_needed(
    build: Build, state: list[str], want: dict[str, Any], writes: list[str]
) -> None:
    """A cap in force is never left on the way to another; both ends of a range are there before the commit."""
    host = build()
    echo(host, *state)
    put(host, want)
    assert said(host) == writes
    assert all(text.endswith("\n") for text in host.writes)
    assert met(Want("value", want), seen(host), KNOB.key) == "ok"


@pytest.mark.parametrize(
    "state",
    [
        ["perf_determinism"],
        ["perf_determinism", "s 1 1900", "c", "high"],
        ["perf_determinism", "s 1 1900", "c", "profile_peak"],
        ["manual", "s 0 800", "s 1 1700", "c", "perf_determinism"],
        ["manual", "m 1 1100", "perf_determinism"],
        ["manual", "m 1 1100", "c", "perf_determinism"],
        ["manual", "m 1 1100", "c"],
        ["manual", "s 0 1950", "auto"],
    ],
    ids=" ".join,
)
def test_a_cap_comes_out_of_every_half_state(build: Build, state: list[str]) -> None:
    """A memory clock that is still staged would become the cap: smu_v13_0_6_set_soft_freq_limited_range."""
    host = build()
    echo(host, *state)
    put(host, CAP)
    assert shown(host)[0] == "perf_determinism\n"
    assert "1: 1900Mhz\n" in shown(host)[1].partition("OD_MCLK")[0]


@pytest.mark.parametrize("word", ["high", "profile_peak", "low"])
def test_a_cap_that_a_refused_word_killed_is_drift_though_the_level_reads_the_same(build: Build, word: str) -> None:
    host = build()
    put(host, CAP)
    echo(host, word)
    assert shown(host)[0] == "perf_determinism\n"
    assert seen(host)["max"] == 2100
    assert met(Want("value", CAP), seen(host), KNOB.key) == "drift"


def test_values_staged_by_somebody_are_not_committed_with_ours(build: Build) -> None:
    host = build()
    echo(host, "manual", "s 0 1500", "s 1 1900")
    put(host, {"level": "manual", "min": 600, "max": 1400})
    assert seen(host) == {"level": "manual", "min": 600, "max": 1400}


@pytest.mark.parametrize("level", ["high", "low", "profile_peak", "profile_exit", ""])
def test_a_word_that_it_refuses_is_never_tried(build: Build, level: str) -> None:
    host = build()
    put(host, CAP)
    host.writes.clear()
    with pytest.raises(Refused, match="not tried"):
        KNOB.write(host, GPU, {"level": level, "min": 500, "max": 2100})
    assert host.writes == []
    assert seen(host)["max"] == 1900


# --- what fails half-way

STATES: dict[str, list[str]] = {
    "auto": [],
    "capped": ["perf_determinism", "s 1 1900", "c"],
    "capped low": ["perf_determinism", "s 1 500", "c"],
    "manual 800-1700": ["manual", "s 0 800", "s 1 1700", "c"],
    "manual, nothing set": ["manual"],
    "manual, memory limited": ["manual", "s 1 1700", "m 1 1100", "c"],
    "manual, memory staged": ["manual", "m 1 1100"],
    "capped, memory staged": ["perf_determinism", "s 1 1900", "c", "m 1 1100"],
    "manual, staged": ["manual", "s 0 800", "s 1 1700"],
    "manual, committed and staged": ["manual", "s 0 800", "s 1 1700", "c", "s 0 900", "s 1 1000"],
    "staged, then auto": ["manual", "s 0 800", "s 1 1700", "auto"],
    "determinism without a cap": ["perf_determinism"],
    "cap staged only": ["perf_determinism", "s 1 1900"],
    "cap killed by high": ["perf_determinism", "s 1 1900", "c", "high"],
    "determinism over a range": ["manual", "s 0 800", "s 1 1700", "c", "perf_determinism"],
    "determinism over a lower end": ["manual", "s 0 800", "c", "perf_determinism"],
}
"""States that somebody else may have left, by what they wrote."""

WANTS: dict[str, dict[str, Any]] = {
    "auto": {"level": "auto"},
    "cap 1900": CAP,
    "cap 1500": {"level": "perf_determinism", "max": 1500},
    "manual": {"level": "manual", "min": 600, "max": 1400},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("want", WANTS)
def test_every_foreign_state_comes_back_byte_for_byte(build: Build, state: str, want: str) -> None:
    host = build()
    echo(host, *STATES[state])
    before, held = shown(host), seen(host)
    put(host, WANTS[want])
    assert met(Want("value", WANTS[want]), seen(host), KNOB.key) == "ok"
    KNOB.write(host, GPU, held)
    assert shown(host) == before
    assert not set(said(host)) & {"high", "low"}


WORDS = (
    *("auto", "manual", "perf_determinism", "high", "profile_peak", "c", "c", "r", "s 0 400", "s 0 500", "s 0 800"),
    *("s 0 1000", "s 1 1000", "s 1 1700", "s 1 1900", "s 1 2100", "s 1 2200"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from(WORDS), max_size=9), want=st.sampled_from(sorted(WANTS)))
def test_any_state_that_a_shell_can_make_comes_back(
    build: Build, made: list[Logged], words: list[str], want: str
) -> None:
    """One host for all examples, as after a boot at the start of each."""
    host = made[0] if made else build()
    made[:] = [host]
    shutil.rmtree(f"{host.root}/.tuner-host/state", ignore_errors=True)
    for name, text in ((LEVEL, "auto\n"), (TABLE, STOCK)):
        Path(host.root + f"/sys/devices/pci0000:00/{GPU}/{name}").write_text(text)
    echo(host, *words)
    before, held = shown(host), seen(host)
    put(host, WANTS[want])
    assert met(Want("value", WANTS[want]), seen(host), KNOB.key) == "ok"
    KNOB.write(host, GPU, held)
    assert shown(host) == before


@pytest.fixture
def made() -> list[Logged]:
    """The host that examples share."""
    return []


@pytest.mark.parametrize("state", ["auto", "manual 800-1700", "manual, memory limited", "determinism without a cap"])
@pytest.mark.parametrize("firmware", ["level", "commit"])
def test_firmware_without_determinism_ends_in_the_state_before(build: Build, state: str, firmware: str) -> None:
    """One refuses the word, the other takes it and refuses the MHz."""
    host = build(f", determinism: {firmware}")
    echo(host, *STATES[state])
    before = shown(host)
    with pytest.raises(Refused) as refused:
        put(host, CAP)
    assert shown(host) == before
    assert "EINVAL" in refused.value.why
    assert "determinism" in refused.value.why
    assert SERIAL in refused.value.why
    assert UNIQUE in refused.value.why


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("text", ["s 0 600", "s 1 1400", "c"])
def test_a_range_that_is_refused_leaves_no_half_state(build: Build, state: str, text: str) -> None:
    host = build()
    echo(host, *STATES[state])
    before = shown(host)
    host.failing = {text: [errno.EINVAL, 0]}
    with pytest.raises(Refused):
        put(host, WANTS["manual"])
    assert shown(host) == before


def test_what_a_failed_try_staged_is_not_left_for_the_next_commit(build: Build) -> None:
    host = build()
    echo(host, *STATES["manual 800-1700"])
    host.failing = {"c": [errno.EINVAL, 0]}
    with pytest.raises(Refused):
        put(host, WANTS["manual"])
    echo(host, "s 1 1750", "c")
    assert seen(host) == {"level": "manual", "min": 800, "max": 1750}


def test_a_failed_change_of_a_cap_leaves_the_cap_in_force(build: Build) -> None:
    host = build()
    echo(host, *STATES["capped"])
    host.failing = {"c": [errno.EINVAL, 0]}
    with pytest.raises(Refused):
        put(host, WANTS["cap 1500"])
    assert not {"auto", "manual"} & set(said(host))
    echo(host, "c")
    assert seen(host)["max"] == 1900


@pytest.mark.parametrize("text", ["c", "s 1 1900"])
def test_a_write_that_is_taken_without_effect_is_found_by_reading_back(build: Build, text: str) -> None:
    host = build()
    host.deaf = {text}
    with pytest.raises(Refused, match="the driver took"):
        put(host, CAP)
    assert shown(host) == ("auto\n", STOCK)


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EIO])
def test_a_gpu_that_dies_during_the_write_is_named(build: Build, number: int) -> None:
    host = build()
    host.failing = {"s 1 1900": [number], "auto": [number]}
    with pytest.raises(Refused) as refused:
        put(host, CAP)
    assert "could not be put back" in refused.value.why
    assert SERIAL in refused.value.why


@pytest.mark.parametrize("name", ["EPERM", "EBUSY"])
def test_a_gpu_in_reset_is_asked_again_for_less_than_two_seconds(build: Build, name: str) -> None:
    host = build(f", busy: {name}")
    start = time.monotonic()
    with pytest.raises(Refused, match="in reset") as refused:
        put(host, CAP)
    assert time.monotonic() - start < 2
    assert name in refused.value.why
    assert 2 < len(host.writes) < 40
    assert set(said(host)) == {"perf_determinism"}
    assert shown(host) == ("auto\n", STOCK)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY])
@pytest.mark.parametrize("text", ["perf_determinism", "s 1 1900", "c"])
def test_a_gpu_that_comes_back_in_time_is_written(build: Build, number: int, text: str) -> None:
    host = build()
    host.failing = {text: [number, number, 0]}
    put(host, CAP)
    assert seen(host)["max"] == 1900


def test_a_reset_between_level_and_range_says_what_was_left(build: Build) -> None:
    host = build()
    host.failing = {"c": [errno.EBUSY], "auto": [errno.EBUSY]}
    start = time.monotonic()
    with pytest.raises(Refused, match=r"in reset.*could not be put back"):
        put(host, CAP)
    assert time.monotonic() - start < 2


def test_a_gpu_in_reset_before_the_first_write_is_refused_as_such(build: Build) -> None:
    host = build()
    host.failing = {LEVEL: [errno.EBUSY]}
    with pytest.raises(Refused, match="in reset"):
        KNOB.write(host, GPU, {**FREE, **CAP})
    assert host.writes == []


# --- words for people, and files without a write bit


def test_the_plan_says_what_a_cap_is_and_what_auto_ends() -> None:
    capped = {**FREE, **CAP}
    assert "ceiling of 1900 MHz, not a lock" in KNOB.note(FREE, capped, GPU)
    assert "1900 MHz" in KNOB.note(capped, {**capped, "level": "auto"}, GPU)
    assert KNOB.note(FREE, FREE, GPU) == ""


def test_without_a_write_bit_the_plan_says_read_only(build: Build) -> None:
    host = build()
    assert read_only(host, KNOB, GPU) == ""
    Path(host.root + f"/sys/devices/pci0000:00/{GPU}/{TABLE}").chmod(0o444)
    assert read_only(host, KNOB, GPU) == "read-only here"
