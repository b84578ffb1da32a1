"""sysfs: attributes of disks and of KSM, each with its own parser; which disks a pattern means; what a switch moves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, write_profile
from tuner.errors import BadValue
from tuner.host import Host, open_host
from tuner.knobs.sysfs import Sysfs
from tuner.model import Absent, Seen, Unreadable, Value
from tuner.sim import store

Tuner = Callable[..., Result]
KNOB = Sysfs()
QUEUE = "sys/block/vda/queue"
KSM = "sys/kernel/mm/ksm"

BLOCK = {
    "loop0": {"removable": "0", "mq/0/nr_tags": "128", "queue/scheduler": "[none] mq-deadline ",
              "queue/read_ahead_kb": "128"},
    "zram0": {"removable": "0", "queue/read_ahead_kb": "128"},
    "sr0": {"removable": "1", "mq/0/nr_tags": "2", "queue/scheduler": "none [mq-deadline] ",
            "queue/read_ahead_kb": "128"},
    "sdb": {"removable": "1", "mq/0/nr_tags": "2", "queue/scheduler": "none [mq-deadline] ",
            "queue/read_ahead_kb": "128"},
    "sda": {"removable": "0", "mq/0/nr_tags": "64", "queue/scheduler": "none mq-deadline kyber [bfq] ",
            "queue/read_ahead_kb": "128", "queue/nr_requests": "128",
            "device/wwid": "t10.ATA     INTEL SSDSC2KB960G8                     PHYF9302015N960CGN"},
    "nvme0n1": {"removable": "0", "queue/read_ahead_kb": "128", "queue/scheduler": "none", "queue/nr_requests": "128",
                "wwid": "eui.0025385b01400f01", "device/serial": "S64GNE0R400001      "},
    "nvme0c0n1": {"removable": "0", "mq/0/nr_tags": "1023", "queue/read_ahead_kb": "128",
                  "queue/scheduler": "[none] mq-deadline ", "queue/nr_requests": "1023",
                  "wwid": "eui.0025385b01400f01"},
    "md0": {"removable": "0", "queue/read_ahead_kb": "1024", "queue/scheduler": "none", "queue/nr_requests": "128",
            "md/uuid": "5c0e3a51-3a0f-4f0e-9a70-7d2f5f0e2b11"},
    "dm-0": {"removable": "0", "queue/read_ahead_kb": "128", "dm/uuid": "LVM-Yq3fV2aTg1vQnZ8sXk5dRw7uPb9cEm0h"},
    "dm-1": {"removable": "0", "queue/read_ahead_kb": "128", "dm/uuid": "part1-mpath-360a98000324669436c2b45666c5678"},
}  # fmt: skip
"""Disks with what their kinds show: BMC media (sr0, sdb), SATA, NVMe with two paths, an array, LVM, a partition."""


@pytest.fixture
def disks(tmp_path: Path) -> Host:
    """A recorded host with BLOCK, no KSM, and nothing else."""
    lines = ["tuner-host 1", "file 0644 /.tuner-host/host.yaml", "|name: node", "|kernel: 5.15.0-130-generic"]
    lines += ["dir 0755 /sys/block", *(f"|{name}" for name in sorted(BLOCK)), "absent /sys/kernel/mm/ksm"]
    for disk, files in BLOCK.items():
        lines += [line for path, text in files.items() for line in (f"file 0644 /sys/block/{disk}/{path}", f"|{text}")]
        for name in ("mq", "dm", "md", "wwid", "serial", "queue/scheduler", "queue/nr_requests"):
            lines += [] if any(f"{p}/".startswith(f"{name}/") for p in files) else [f"absent /sys/block/{disk}/{name}"]
    manifest = tmp_path / "node.host"
    manifest.write_text("\n".join([*lines, ""]), encoding="utf-8")
    store.copy(manifest, str(tmp_path / "node"), [])
    return open_host(str(tmp_path / "node"))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("block/*/read_ahead_kb", ["dm-0", "md0", "nvme0n1", "sda"]),
        ("block/*/scheduler", ["nvme0c0n1", "sda"]),
        ("block/*/nr_requests", ["nvme0c0n1", "sda"]),
    ],
)
def test_what_a_pattern_means(disks: Host, pattern: str, names: list[str]) -> None:
    """No loop, RAM, removable or optical device, no partition over a path; an array has read-ahead and no queue."""
    attribute = pattern.rpartition("/")[2]
    assert KNOB.targets(disks, pattern) == [f"block/{name}/{attribute}" for name in names]


def test_all_targets(disks: Host, root: Path) -> None:
    """KSM where the kernel has it; what cannot be set is left out, as is what cannot be."""
    assert len(KNOB.targets(disks)) == 8
    attributes = ("read_ahead_kb", "scheduler", "nr_requests")
    assert KNOB.targets(open_host(str(root))) == ["mm/ksm/run", *(f"block/vda/{name}" for name in attributes)]


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("block/sda/scheduler", "bfq"),
        ("block/nvme0c0n1/scheduler", "none"),
        ("block/loop0/read_ahead_kb", 128),
        ("block/md0/read_ahead_kb", 1024),
        ("block/sda/nr_requests", 128),
    ],
)
def test_read(disks: Host, target: str, value: Value) -> None:
    """The word in brackets, wherever they stand; numbers. What a pattern passes over can be named."""
    assert KNOB.read(disks, target) == Seen(value)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("block/md0/scheduler", "the disks below it have one"),
        ("block/nvme0n1/nr_requests", "the disks below it have one"),
        ("block/sdz/read_ahead_kb", "no disk sdz"),
        ("mm/ksm/run", "no KSM"),
    ],
)
def test_absent(disks: Host, target: str, why: str) -> None:
    """Older kernels show a scheduler and requests where neither does anything: there is nothing to set."""
    found = KNOB.read(disks, target)
    assert isinstance(found, Absent)
    assert why in found.why


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scheduler", "none mq-deadline \n"),
        ("scheduler", "\n"),
        ("scheduler", "[none] [mq-deadline]\n"),
        ("scheduler", "[]\n"),
        ("read_ahead_kb", "\n"),
        ("read_ahead_kb", "many\n"),
        ("nr_requests", "3\n"),
    ],
)
def test_what_cannot_be_understood_is_no_value(root: Path, name: str, text: str) -> None:
    """Never a sentinel."""
    (root / QUEUE / name).write_text(text)
    assert isinstance(KNOB.read(open_host(str(root)), f"block/vda/{name}"), Unreadable)


def test_ksm_while_memory_is_taken_offline(root: Path) -> None:
    """mm/ksm.c adds 4 to run for that time: not 0, 1 or 2."""
    (root / KSM / "run").write_text("5\n")
    assert isinstance(KNOB.read(open_host(str(root)), "mm/ksm/run"), Unreadable)


@pytest.mark.parametrize(
    ("target", "identity"),
    [
        ("block/sda/scheduler", "wwid t10.ATA INTEL SSDSC2KB960G8 PHYF9302015N960CGN"),
        ("block/nvme0n1/read_ahead_kb", "wwid eui.0025385b01400f01, serial S64GNE0R400001"),
        ("block/md0/read_ahead_kb", "uuid 5c0e3a51-3a0f-4f0e-9a70-7d2f5f0e2b11"),
        ("block/dm-0/read_ahead_kb", "uuid LVM-Yq3fV2aTg1vQnZ8sXk5dRw7uPb9cEm0h"),
        ("block/loop0/read_ahead_kb", ""),
        ("mm/ksm/run", ""),
    ],
)
def test_identity(disks: Host, target: str, identity: str) -> None:
    """What says which disk it is, since names move between boots."""
    assert KNOB.identity(disks, target) == identity


@pytest.mark.parametrize(
    "target",
    [
        "block/vda", "block/vda/queue/scheduler", "block/vda/rotational", "block/../scheduler", "block/./scheduler",
        "block//scheduler", "block/*/*", "block/v da/scheduler", "mm/ksm/*", "mm/ksm/pages_to_scan",
        "mm/lru_gen/enabled", "*", "", "/sys/block/vda/queue/scheduler", "sysfs", "block/vda/scheduler\n",
    ],
)  # fmt: skip
def test_other_targets_are_refused(target: str) -> None:
    """The list is closed, and no path leads out of the folder of a disk."""
    with pytest.raises(BadValue) as error:
        KNOB.canonical(target)
    assert "block/NAME/read_ahead_kb" in error.value.hint


@given(st.text(alphabet="abn01-*?[]!./ \n\t\0", max_size=12))
def test_no_name_leads_elsewhere(name: str) -> None:
    """Whatever is taken for a disk is one folder below /sys/block."""
    try:
        target = KNOB.canonical(f"block/{name}/scheduler")
    except BadValue:
        return
    assert "\n" not in target
    (path,) = KNOB.files(Host("/nonexistent", "image", "", ""), target)
    assert os.path.normpath(path) == f"/sys/block/{name}/queue/scheduler"
    assert "/" not in name


@pytest.mark.parametrize(
    ("target", "raw"),
    [
        ("block/vda/read_ahead_kb", "-1"),
        ("block/vda/read_ahead_kb", "4M"),
        ("block/vda/read_ahead_kb", "4294967296"),
        ("block/vda/read_ahead_kb", "0128"),
        ("block/vda/nr_requests", "3"),
        ("block/vda/nr_requests", None),
        ("block/vda/scheduler", "[none]"),
        ("block/vda/scheduler", "none mq-deadline"),
        ("block/vda/scheduler", ""),
        ("block/vda/scheduler", ["none"]),
        ("mm/ksm/run", "3"),
        ("mm/ksm/run", "on"),
    ],
)
def test_refused_values(target: str, raw: object) -> None:
    """What block/blk-sysfs.c and mm/ksm.c refuse or change on the way, and what is no single value."""
    with pytest.raises(BadValue) as error:
        KNOB.parse(target, raw)  # type: ignore[arg-type]
    assert error.value.hint


@given(st.integers(0, 2**32 - 1))
def test_read_ahead_is_whole_pages(asked: int) -> None:
    """block/blk-sysfs.c shifts by the page size and back."""
    held = KNOB.normalise(Host("/nonexistent", "recorded", "", ""), "block/vda/read_ahead_kb", asked)
    assert isinstance(held, int)
    assert held == asked >> 2 << 2
    assert KNOB.normalise(Host("/nonexistent", "recorded", "", ""), "block/vda/read_ahead_kb", held) == held


def test_read_ahead_on_a_kernel_with_64_kb_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """arm64 as Grace hosts boot it."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 65536}.__getitem__)
    assert KNOB.normalise(Host("/", "live", "", ""), "block/vda/read_ahead_kb", 4100) == 4096


def test_a_scheduler_that_the_disk_does_not_offer(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Refused at plan with what there is; nothing is written."""
    profile = write_profile(tmp_path / "p.yaml", "sysfs:\n  block/*/scheduler: bfq")
    result = tuner("plan", "--root", root, "--profile", profile)
    assert result.code == 64
    assert f"{profile}:5" in result.err
    assert "vda does not offer the I/O scheduler bfq" in result.err
    assert "none, mq-deadline" in result.err
    assert (root / QUEUE / "scheduler").read_text() == "[none] mq-deadline \n"


def test_a_word_of_the_kernel_for_another(disks: Host, root: Path) -> None:
    """deadline is taken for mq-deadline and reads back so; where both are unknown it is refused."""
    assert KNOB.normalise(open_host(str(root)), "block/vda/scheduler", "deadline") == "mq-deadline"
    with pytest.raises(BadValue):
        KNOB.normalise(disks, "block/nvme0n1/scheduler", "deadline")


def test_a_switch_gives_the_number_of_requests_back(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    """NVMe holds 1023 without a scheduler, with one the kernel sets 256. The switch is seen to have moved it."""
    root = copy_host("mi300x-cx7")
    queue = root / "sys/block/nvme1n1/queue"
    profile = write_profile(tmp_path / "p.yaml", "sysfs:\n  block/nvme1n1/scheduler: mq-deadline")
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert (queue / "scheduler").read_text() == "none [mq-deadline] \n"
    assert (queue / "nr_requests").read_text() == "256\n"
    assert tuner("rollback", "--root", root).code == 0
    assert (queue / "scheduler").read_text() == "[none] mq-deadline \n"
    assert (queue / "nr_requests").read_text() == "1023\n"


def test_an_operators_number_of_requests_outlives_a_switch(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Back without a scheduler the kernel would leave 256; 32 was there."""
    (root / QUEUE / "nr_requests").write_text("32\n")
    profile = write_profile(tmp_path / "p.yaml", "sysfs:\n  block/vda/scheduler: mq-deadline")
    result = tuner("apply", "--root", root, "--json", "--profile", profile)
    assert (root / QUEUE / "nr_requests").read_text() == "256\n"
    assert result.code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert (root / QUEUE / "scheduler").read_text() == "[none] mq-deadline \n"
    assert (root / QUEUE / "nr_requests").read_text() == "32\n"


def test_the_number_of_requests_is_set_after_the_scheduler(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """The other way round the switch would take it away again."""
    settings = "sysfs:\n  block/vda/nr_requests: 64\n  block/vda/scheduler: mq-deadline"
    profile = write_profile(tmp_path / "p.yaml", settings)
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert (root / QUEUE / "nr_requests").read_text() == "64\n"
    assert tuner("verify", "--root", root).code == 0


def test_another_disk_of_the_same_name_is_left_alone(
    copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path
) -> None:
    """After a boot nvme0n1 and nvme1n1 have changed places: missing for verify, and rollback does not touch them."""
    root = copy_host("mi300x-cx7")
    profile = write_profile(tmp_path / "p.yaml", "sysfs:\n  block/*/read_ahead_kb: 4096")
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    for disk, other in (("nvme0", 1), ("nvme1", 0)):
        place = root / f"sys/block/{disk}n1"
        (place / "wwid").chmod(0o644)
        (place / "wwid").write_text(f"eui.002538470000000{other}\n")
        (place / "device/serial").chmod(0o644)
        (place / "device/serial").write_text(f"S64GNE0R40000{other}\n")
    verify = tuner("verify", "--root", root)
    assert verify.code == 11
    assert "other hardware: wwid eui.0025384700000001" in verify.out
    tuner("rollback", "--root", root)
    assert (root / "sys/block/nvme0n1/queue/read_ahead_kb").read_text() == "4096\n"


@pytest.mark.parametrize(("sharing", "held"), [("400000", False), ("460000", True), ("", True)])
def test_unmerging_more_than_there_is(root: Path, sharing: str, held: bool) -> None:
    """The guest has 1734 MB available: 400000 pages (1562 MB) fit, 460000 (1796 MB) do not; unknown waits."""
    (root / KSM / "pages_sharing").chmod(0o644)
    (root / KSM / "pages_sharing").write_text(sharing)
    host = open_host(str(root))
    assert bool(KNOB.guard(host, "mm/ksm/run", 2, None)) is held
    assert KNOB.guard(host, "mm/ksm/run", 0, None) == ""


def test_what_a_write_disturbs() -> None:
    """Read-ahead nobody; a switch stalls I/O and unmerging takes memory: both wait while a job runs."""
    targets = ("block/vda/read_ahead_kb", "block/vda/scheduler", "block/vda/nr_requests", "mm/ksm/run")
    assert [KNOB.disruption(target) for target in targets] == ["none", "memory", "memory", "memory"]


def test_the_overlay_for_large_files(copy_host: Callable[..., Path], tuner: Tuner) -> None:
    """Raises what is lower, leaves what is larger, and finds the scheduler as it should be."""
    root = copy_host("mi300x-cx7")
    (root / "sys/block/nvme1n1/queue/read_ahead_kb").write_text("16384\n")
    document = tuner("plan", "--root", root, "--profile", "mi300x", "--with", "large-files", "--json").document
    states = {v["target"]: v["state"] for v in document["verdicts"] if v["knob"] == "sysfs"}
    assert states == {
        "block/nvme0n1/read_ahead_kb": "drift",
        "block/nvme1n1/read_ahead_kb": "raised",
        "block/nvme0n1/scheduler": "ok",
        "block/nvme1n1/scheduler": "ok",
    }
