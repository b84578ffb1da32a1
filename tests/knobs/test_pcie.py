"""The knob pcie.link: what sysfs shows of the link of a GPU or NIC, and what is said about one that is short.

Linux drivers/pci/pci-sysfs.c (current_link_speed, current_link_width) and drivers/pci/probe.c (pci_speed_string).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.knobs import nvidia_host
from tests.knobs.nvidia_host import DEVICES, PLACE, SWITCH, UUID, Build, function
from tuner.errors import BadValue, Refused
from tuner.knobs.pcie import PcieLink
from tuner.model import Absent, Seen, Unreadable, Want, met
from tuner.readings import read

KNOB = PcieLink()
MI300X, DISK = "0000:05:00.0", "0000:06:00.0"
AT_GPU, AT_NIC = nvidia_host.GPU, nvidia_host.NIC
GPU, NIC = f"gpu/{AT_GPU}", f"nic/{AT_NIC}"


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(...) -> a recorded host with an A100."""
    return Build(tmp_path)


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("5.0 GT/s PCIe", 2),
        ("8.0 GT/s PCIe", 3),
        ("16.0 GT/s PCIe", 4),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("8 GT/s", 3),
        ("2.5 GT/s", 1),
    ],
)
@pytest.mark.parametrize("width", [1, 8, 16])
def test_generation_and_width(build: Build, speed: str, generation: int, width: int) -> None:
    """As kernels print them, the older ones without `PCIe`."""
    host = build(functions={AT_GPU: function(current_link_speed=f"{speed}\n", current_link_width=f"{width}\n")})
    assert KNOB.read(host, GPU) == Seen({"generation": generation, "width": width})


@pytest.mark.parametrize(
    ("speed", "width"),
    [("Unknown", "16"), ("Unknown speed", "0"), ("16.0 GT/s PCIe", "0"), ("16.0 GT/s PCIe", "63"),
     ("3.0 GT/s PCIe", "16"), ("", "16"), ("16.0 GT/s PCIe", ""), ("16.0 GT/s PCIe", "²"),
     ("16 GB/s", "16"), ("66 MHz PCI", "1")],
)  # fmt: skip
def test_what_is_no_link_is_never_a_value(build: Build, speed: str, width: str) -> None:
    """Down, or not reported."""
    files = {"current_link_speed": f"{speed}\n", "current_link_width": f"{width}\n"}
    found = KNOB.read(build(functions={AT_GPU: function(**files)}), GPU)
    assert isinstance(found, Unreadable) and found.fault == "ours"


@given(st.text(max_size=30), st.text(max_size=6))
def test_no_text_breaks_the_reading(tmp_path_factory: pytest.TempPathFactory, speed: str, width: str) -> None:
    """A value only for what the kernel prints."""
    host = Shared.of(tmp_path_factory)
    for name, text in (("speed", speed), ("width", width)):
        Path(host.root + PLACE, AT_GPU, f"current_link_{name}").write_bytes(text.encode("utf-8", "surrogateescape"))
    found = read(host, KNOB, GPU)
    assert isinstance(found, Unreadable) or (isinstance(found, Seen) and speed.strip()[:1].isdigit())


class Shared:
    """One host for all examples of a property."""

    host: Any = None

    @classmethod
    def of(cls, factory: pytest.TempPathFactory) -> Any:
        """Made at the first call."""
        cls.host = cls.host or Build(factory.mktemp("pcie"))()
        return cls.host


def test_targets_are_gpus_and_nics_with_a_link(build: Build) -> None:
    """Of both vendors; no disk, no switch, no virtual function, nothing on another bus."""
    host = build(
        functions={
            AT_NIC: function("15b3 1021", "020000", "mlx5_core"),
            "0000:1a:00.1": function("15b3 101e", "020000", "mlx5_core", physfn="../0000:1a:00.0"),
            "0000:00:03.0": function("1af4 1000", "020000", "virtio-pci", current_link_speed="", current_link_width=""),
            MI300X: function("1002 74a1", "120000", "amdgpu"),
            DISK: function("144d a80a", "010802", "nvme"),
            SWITCH: function("10de 22a3", "068000", ""),
        }
    )
    assert sorted(KNOB.targets(host)) == [f"gpu/{MI300X}", GPU, NIC]
    assert KNOB.read(host, NIC) == Seen({"generation": 4, "width": 16})
    assert KNOB.read(host, "nic/0000:00:03.0") == Absent("it has no PCIe link")
    assert KNOB.read(host, "nic/0000:1a:00.1") == Absent("a virtual function has no link of its own")
    assert KNOB.read(host, "nic/0000:99:00.0") == Absent("no device at this address")


def test_a_device_off_the_bus_is_its_own_fault(build: Build) -> None:
    """Its configuration space reads all ones."""
    host = build(functions={AT_GPU: function(config="\n")})
    Path(host.root + PLACE, AT_GPU, "config").write_bytes(b"\xff" * 64)
    found = KNOB.read(host, GPU)
    assert isinstance(found, Unreadable) and found.fault == "device"


def test_who_it_is(build: Build) -> None:
    """The UUID of a GPU of NVIDIA; a NIC has none."""
    host = build(functions={AT_NIC: function("15b3 1021", "020000", "mlx5_core")})
    assert KNOB.identity(host, GPU) == f"uuid {UUID}"
    assert KNOB.identity(host, NIC) == "" == KNOB.identity(host, "nic/0000:99:00.0")


@pytest.mark.parametrize(
    ("raw", "state"),
    [({"generation": "4", "width": "16"}, "ok"), ({"width": "8"}, "raised"), ({"generation": "3"}, "raised"),
     ({"generation": "5"}, "drift"), ({"generation": "5", "width": "8"}, "drift")],
)  # fmt: skip
def test_at_least(build: Build, raw: Any, state: str) -> None:
    """Field by field."""
    found = KNOB.read(build(), GPU)
    assert isinstance(found, Seen)
    assert met(Want("at_least", KNOB.parse(GPU, raw)), found.value, KNOB.key) == state


@pytest.mark.parametrize(
    "target", ["0000:1b:00.0", "*", "gpu", "gpu/", "disk/0000:1b:00.0", "gpu/card0", "gpu/0000:1b:00.0/x"]
)
def test_what_is_no_target(target: str) -> None:
    """Which kind of device is part of the name."""
    with pytest.raises(BadValue):
        KNOB.canonical(target)


def test_one_name_for_one_link() -> None:
    """The domain may be left out, letters may be large."""
    assert KNOB.canonical("gpu/1B:00.0") == "gpu/0000:1b:00.0"
    assert KNOB.canonical("nic/*") == "nic/*"


@pytest.mark.parametrize("raw", ["16", None, [], {}, {"generation": "0"}, {"generation": "8"}, {"width": "3"},
                                 {"width": "x16"}, {"speed": "16"}, {"generation": None}])  # fmt: skip
def test_what_is_no_link(raw: Any) -> None:
    """Numbers that a link can have."""
    with pytest.raises(BadValue):
        KNOB.parse(GPU, raw)


def test_what_is_said_of_a_short_link(build: Build) -> None:
    """What the device and the port above it can do, and that a GPU slows its link down while idle."""
    slow = function(current_link_speed="2.5 GT/s PCIe\n")
    port = {"max_link_speed": "8.0 GT/s PCIe\n", "max_link_width": "16\n"}
    host = build(functions={AT_GPU: slow, "0000:16:01.0": function("8086 352a", "060400", "pcieport", **port)})
    said = KNOB.advice(host, GPU, {"generation": 4})
    assert "the device can do generation 4 x16" in said and "while idle" in said
    amd = function("1002 74a1", "120000", "amdgpu", current_link_speed="16.0 GT/s PCIe\n")
    said = KNOB.advice(build(functions={AT_GPU: amd}), GPU, {"generation": 5})
    assert "slot" in said and "idle" not in said, "an MI300X has no PCIe levels"
    narrow = build(functions={AT_GPU: function(current_link_width="8\n")})
    said = KNOB.advice(narrow, GPU, {"width": 16})
    assert "slot" in said and "idle" not in said


def test_the_port_above_is_looked_at(build: Build) -> None:
    """By the place of the device in the tree of the bus."""
    host = build(functions={AT_GPU: function(current_link_width="8\n")})
    for name, text in (("max_link_speed", "32.0 GT/s PCIe\n"), ("max_link_width", "8\n")):
        Path(host.root + PLACE, name).write_text(text)
    Path(host.root + DEVICES, "0000:16:01.0").symlink_to("../../../devices/pci0000:16/0000:16:01.0")
    assert "the port above it can do generation 5 x8" in KNOB.advice(host, GPU, {"width": 16})


def test_it_is_read_from_files_and_never_written(build: Build) -> None:
    """Links are trained by the hardware."""
    assert KNOB.cost == "file" and KNOB.read_only
    with pytest.raises(Refused, match="judged only"):
        KNOB.write(build(), GPU, {"width": 16})
