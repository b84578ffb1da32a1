"""capture: a host as a manifest that gives the same plans, and tells nobody which machine it was."""

from __future__ import annotations

import argparse
import base64
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import check_schema, tree
from tuner import plan as planning
from tuner.cli import inventory as verbs
from tuner.detect import inventory
from tuner.errors import Exit, TunerError
from tuner.host import Host, Unrecorded, manifest, open_host
from tuner.host.manifest import Entry
from tuner.host.recorder import RecordingHost
from tuner.idle import busy
from tuner.ledger import Ledger
from tuner.model import DISRUPTIONS, Plan
from tuner.profile import load_profile
from tuner.scrub import Scrubber
from tuner.sim import store

UUID = "6f1c2b3a-9d8e-4f70-a1b2-c3d4e5f60718"
MAC = "b8:ce:f6:12:34:56"
SERIAL = "e3aa140f9a5f9e31"


def call(root: Path | None, file: Path, *, no_scrub: bool = False) -> tuple[dict[str, Any], str]:
    """The verb; returns its document, checked against the schema, and what it wrote."""
    args = argparse.Namespace(root=None if root is None else str(root), json=False, file=str(file), no_scrub=no_scrub)
    code, document, _ = verbs.capture(args)
    check_schema(document)
    assert code == Exit.OK
    return document, file.read_text(encoding="utf-8", errors="surrogateescape")


def replayed(file: Path) -> Host:
    """The host that the capture makes."""
    where = file.with_suffix(".copy")
    store.copy(file, str(where), [])
    return open_host(str(where))


def plan(host: Host, *overlays: str) -> Plan:
    profile = load_profile(host, "linux-gpu", list(overlays))
    return planning.make(host, profile.label, profile.settings, planning.Allowed(frozenset(DISRUPTIONS)), Ledger())


def judged(made: Plan) -> list[tuple[object, ...]]:
    """States, running values and changes of a plan."""
    verdicts = [(v.setting.knob, v.setting.target, v.state, v.why, v.reading) for v in made.verdicts]
    return [*verdicts, *((c.knob, c.target, c.before, c.value, c.held) for c in made.changes)]


@pytest.mark.parametrize("name", ["plain-vm", "mi300x-cx7", None])
def test_a_capture_gives_the_same_plan(copy_host: Callable[..., Path], tmp_path: Path, name: str | None) -> None:
    """None is this machine."""
    root = copy_host(name) if name else None
    host = open_host(str(root) if root else None)
    before = [judged(plan(host)), judged(plan(host, "hugepages"))]
    call(root, tmp_path / "c.host")
    copy = replayed(tmp_path / "c.host")
    assert [judged(plan(copy)), judged(plan(copy, "hugepages"))] == before
    assert len(before[0]) > 15


@pytest.mark.parametrize("name", ["mi300x-cx7", None])
def test_a_capture_has_the_same_devices(copy_host: Callable[..., Path], tmp_path: Path, name: str | None) -> None:
    root = copy_host(name) if name else None
    host = open_host(str(root) if root else None)
    document, _ = call(root, tmp_path / "c.host", no_scrub=True)
    one, other = inventory(host), inventory(replayed(tmp_path / "c.host"))
    assert (one.gpus, one.nics, one.rails) == (other.gpus, other.nics, other.rails)
    assert [(n.node, n.cpus) for n in one.nodes] == [(n.node, n.cpus) for n in other.nodes]
    assert document["scrubbed"] is False
    assert document["replaced"] == {}


def test_what_is_captured_twice_is_the_same(copy_host: Callable[..., Path], tmp_path: Path) -> None:
    """A copy of the capture captured again: nothing is lost on the way."""
    _, first = call(copy_host("plain-vm"), tmp_path / "a.host")
    replayed(tmp_path / "a.host")
    _, second = call(tmp_path / "a.copy", tmp_path / "b.host")
    one, other = manifest.parse(first, "a").entries, manifest.parse(second, "b").entries
    present = {path: entry.kind for path, entry in one.items() if entry.kind != "absent"}
    assert {path: kind for path, kind in present.items() if path not in other or other[path].kind != kind} == {}


@pytest.fixture
def marked(copy_host: Callable[..., Path]) -> Path:
    """mi300x-cx7 with things in it that nobody else may see."""
    root = copy_host("mi300x-cx7")
    (root / "etc/hostname").write_text("node-17.hall3.secret.example\n")
    (root / "proc/sys/kernel/hostname").chmod(0o644)
    (root / "proc/sys/kernel/hostname").write_text("node-17\n")
    (root / "proc/sys/kernel/random/boot_id").chmod(0o644)
    (root / "proc/sys/kernel/random/boot_id").write_text(f"{UUID}\n")
    line = f"root=UUID={UUID} iommu=pt ip=10.20.30.40::10.20.30.1:255.255.255.0:node-17:eth0 ipmi.password=hunter2\n"
    (root / "proc/cmdline").chmod(0o644)
    (root / "proc/cmdline").write_text(line)
    comment = f"# node-17 is {MAC}, 10.20.30.40, fd12:3456::9; card {SERIAL}; loopback 127.0.0.1\nvm.swappiness = 60\n"
    (root / "etc/sysctl.d/50-site.conf").write_text(comment)
    unit = root / "etc/systemd/system/agent.service"
    unit.write_text(
        '[Service]\nType=oneshot\nEnvironment=NCCL_IB_TC=106 "LICENSE=top secret" KEY=hush \\\n  MORE=quiet\n'
        "ExecStart=/bin/agent --token=deadbeef1 --host node-17\n"
    )
    return root


CANARIES = ["node-17", "hall3", "10.20.30", UUID, MAC, SERIAL, "fd12:3456", "hunter2", "top secret", "hush", "quiet",
            "deadbeef1", "2250f807caf2231a"]  # fmt: skip


def test_nothing_tells_which_machine_it_was(marked: Path, tmp_path: Path) -> None:
    before = tree(marked)
    document, text = call(marked, tmp_path / "c.host")
    assert tree(marked) == before
    assert [canary for canary in CANARIES if canary in text] == []
    assert "mi300x-cx7" not in text.partition("kernel.yaml")[0]
    assert {"host name", "ip", "mac", "serial", "uuid"} <= set(document["replaced"])
    _rest_stays(marked, text)
    _equal_stays_equal(replayed(tmp_path / "c.host"))


def test_no_serial_number_lies_in_bytes_of_a_configuration_space(
    copy_host: Callable[..., Path], tmp_path: Path
) -> None:
    """Only root reads past the header, where capabilities lie, that of the serial number too."""
    root = copy_host("h800-cx7")
    gpu = "0000:1b:00.0"
    place = (root / f"sys/bus/pci/devices/{gpu}").resolve() / "config"
    header = bytes(range(64))
    place.write_bytes(header + b"\x03\x00\x01\x00" + b"SERIAL42" * 64)
    text = call(root, tmp_path / "c.host")[1]
    assert open_host(str(replayed(tmp_path / "c.host").root)).read(f"/sys/bus/pci/devices/{gpu}/config") == header
    assert base64.b64encode(b"SERIAL42" * 2).decode()[:16] not in text


def _rest_stays(root: Path, text: str) -> None:
    for kept in ("iommu=pt", "255.255.255.0", "127.0.0.1", "vm.swappiness = 60", "NCCL_IB_TC=106", "Type=oneshot"):
        assert kept in text
    assert "0000:05:00.0" in text
    assert open_host(str(root)).text("/proc/version") in text.replace("|", "")


def _equal_stays_equal(host: Host) -> None:
    line, comment = host.text("/proc/cmdline"), host.text("/etc/sysctl.d/50-site.conf")
    address = line.partition("ip=")[2].partition(":")[0]
    assert f" {address}," in comment
    assert address not in line.partition("::")[2].partition(":")[0]
    serials = [g.serial for g in inventory(host).gpus]
    assert len(set(serials)) == 8
    assert f"card {serials[0]};" in comment
    assert host.text("/proc/sys/kernel/random/boot_id").strip() != UUID


def test_without_scrubbing_all_of_it_is_there(marked: Path, tmp_path: Path) -> None:
    _, text = call(marked, tmp_path / "c.host", no_scrub=True)
    assert [canary for canary in CANARIES if canary not in text] == []
    assert "|name: mi300x-cx7\n" in text


def test_the_file_is_for_its_owner_only(root: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        call(root, tmp_path / "c.host")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "c.host").stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "folder", "nowhere"])
def test_nothing_that_is_there_is_written_over(root: Path, tmp_path: Path, kind: str) -> None:
    file, other = tmp_path / "c.host", tmp_path / "other"
    other.write_text("precious")
    match kind:
        case "file":
            file.write_text("precious")
        case "link":
            file.symlink_to(other)
        case "dangling":
            file.symlink_to(tmp_path / "new")
        case "folder":
            file.mkdir()
        case "nowhere":
            file = tmp_path / "no" / "c.host"
    with pytest.raises(TunerError) as caught:
        call(root, file)
    assert caught.value.code == Exit.BAD_INPUT
    assert other.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_an_image_is_not_captured(tmp_path: Path) -> None:
    (tmp_path / "image/etc").mkdir(parents=True)
    with pytest.raises(TunerError) as caught:
        call(tmp_path / "image", tmp_path / "c.host")
    assert caught.value.code == Exit.BAD_INPUT


@pytest.mark.parametrize(("name", "synthetic"), [(None, "false"), ("mi300x-cx7", "true")])
def test_host_yaml_says_whether_it_is_made_up(
    copy_host: Callable[..., Path], tmp_path: Path, name: str | None, synthetic: str
) -> None:
    _, text = call(copy_host(name) if name else None, tmp_path / "c.host")
    about = manifest.parse(text, "c").entries["/.tuner-host/host.yaml"].data.decode()
    assert f"synthetic: {synthetic}\n" in about
    assert about.startswith("name: captured\n")


def test_a_file_that_is_too_large_is_named_and_left_out(root: Path, tmp_path: Path) -> None:
    (root / "etc/sysctl.d/99-huge.conf").write_text("# " + "x" * 400_000 + "\n")
    document, text = call(root, tmp_path / "c.host")
    assert "xxxxxxxxxx" not in text
    assert "/etc/sysctl.d/99-huge.conf" in {row["what"] for row in document["unread"]}
    with pytest.raises(Unrecorded):
        replayed(tmp_path / "c.host").text("/etc/sysctl.d/99-huge.conf")


def test_a_busy_node_stays_busy_and_open_files_stay_private(copy_host: Callable[..., Path], tmp_path: Path) -> None:
    root = copy_host("mi300x-cx7")
    job = root / "proc/4242"
    (job / "fd").mkdir(parents=True)
    (job / "comm").write_text("python\n")
    (job / "fd/3").symlink_to("/home/jane/private.bin")
    (job / "fd/4").symlink_to("/dev/kfd")
    _, text = call(root, tmp_path / "c.host")
    assert "jane" not in text
    assert busy(open_host(str(root))) == busy(replayed(tmp_path / "c.host")) == "python 4242 has /dev/kfd open"


def test_the_site_of_a_host_goes_along_under_its_new_name(root: Path, tmp_path: Path) -> None:
    folder = root / "etc/tuner/host.d"
    folder.mkdir(parents=True)
    (folder / "plain-vm.yaml").write_text("settings: {sysctl: {vm.swappiness: 7}}\n")
    before = judged(plan(open_host(str(root))))
    call(root, tmp_path / "c.host")
    host = replayed(tmp_path / "c.host")
    assert host.list("/etc/tuner/host.d") == ["captured.yaml"]
    assert judged(plan(host)) == before


# --- the recording door ---------------------------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> RecordingHost:
    """A small tree, read as a live host would be."""
    real = tmp_path / "sys/devices/pci0000:00/0000:00:03.0"
    real.mkdir(parents=True)
    (real / "vendor").write_text("0x1af4\n")
    (real / "vendor").chmod(0o444)
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:00:03.0").symlink_to("../../../devices/pci0000:00/0000:00:03.0")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/loop").symlink_to("loop")
    return RecordingHost(Host(str(tmp_path), "live", "small", "6.8.0"))


def test_a_file_is_noted_where_it_is_and_a_link_where_it_was_met(door: RecordingHost) -> None:
    assert door.text("/sys/bus/pci/devices/0000:00:03.0/vendor") == "0x1af4\n"
    assert door.manifest() == {
        "/sys/bus/pci/devices/0000:00:03.0": Entry("link", 0o777, b"../../../devices/pci0000:00/0000:00:03.0"),
        "/sys/devices/pci0000:00/0000:00:03.0/vendor": Entry("file", 0o444, b"0x1af4\n"),
    }


def test_what_is_not_there_is_absent_from_where_it_ends(door: RecordingHost) -> None:
    with pytest.raises(FileNotFoundError):
        door.text("/proc/driver/nvidia/version")
    with pytest.raises(FileNotFoundError):
        door.text("/sys/bus/pci/devices/0000:00:03.0/gone")
    absent = {path for path, entry in door.manifest().items() if entry == Entry("absent")}
    assert absent == {"/proc", "/sys/devices/pci0000:00/0000:00:03.0/gone"}
    assert door.manifest()["/sys/devices/pci0000:00/0000:00:03.0"].names == ("vendor",)


def test_a_listing_is_whole(door: RecordingHost) -> None:
    assert door.list("/sys/bus/pci/devices") == ["0000:00:03.0"]
    assert door.manifest()["/sys/bus/pci/devices"].names == ("0000:00:03.0",)


def test_what_was_only_looked_at_is_read_in_the_end(door: RecordingHost) -> None:
    assert door.exists("/sys/devices/pci0000:00/0000:00:03.0/vendor")
    assert door.exists("/etc")
    entries = door.manifest()
    assert entries["/sys/devices/pci0000:00/0000:00:03.0/vendor"].data == b"0x1af4\n"
    assert entries["/etc"].names == ("loop",)


def test_other_errors_are_noted_by_name(door: RecordingHost) -> None:
    with pytest.raises(OSError) as caught:
        door.text("/etc/loop")
    assert caught.value.errno == errno.ELOOP


def test_each_place_is_looked_at_once_and_a_failure_again(door: RecordingHost, tmp_path: Path) -> None:
    """A capture is of one moment; a device that was busy may answer the next time."""
    vendor = "/sys/bus/pci/devices/0000:00:03.0/vendor"
    assert (door.text(vendor), door.exists("/etc/new")) == ("0x1af4\n", False)
    (tmp_path / "sys/devices/pci0000:00/0000:00:03.0/vendor").unlink()
    (tmp_path / "etc/new").touch()
    assert (door.text(vendor), door.exists("/etc/new")) == ("0x1af4\n", False)
    with pytest.raises(OSError, match="symbolic links"):
        door.text("/etc/loop")
    (tmp_path / "etc/loop").unlink()
    (tmp_path / "etc/loop").write_text("answers\n")
    assert door.text("/etc/loop") == "answers\n"


def test_nothing_is_written_through_it(door: RecordingHost, tmp_path: Path) -> None:
    before = tree(tmp_path)
    with pytest.raises(OSError, match="Read-only"):
        door.write("/sys/bus/pci/devices/0000:00:03.0/vendor", "x")
    with pytest.raises(OSError, match="Read-only"):
        door.put("/etc/new", b"x")
    assert tree(tmp_path) == before


# --- commands and NVML ----------------------------------------------------------------------------------------------


def tool(where: Path, text: str) -> str:
    """A program called nvidia-smi that runs these shell lines."""
    path = where / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def copied(entries: dict[str, Entry], where: Path) -> Host:
    """The recorded host that these entries make."""
    about = Entry("file", 0o644, b"name: small\nkernel: 6.8.0\n")
    file = where / "door.host"
    file.write_text(manifest.render({**entries, "/.tuner-host/host.yaml": about}), encoding="utf-8")
    return replayed(file)


def test_a_command_is_kept_and_answers_the_same(door: RecordingHost, tmp_path: Path) -> None:
    ran = door.command([tool(tmp_path, "echo one; echo; printf two; exit 3"), "topo", "-m"], 5)
    assert (ran.code, ran.out) == (3, "one\n\ntwo")
    assert door.manifest()["/.tuner-host/cmd/nvidia-smi topo -m"].data == b"exit 3\none\n\ntwo"
    again = copied(door.manifest(), tmp_path).command(["nvidia-smi", "topo", "-m"], 5)
    assert (again.code, again.out) == (ran.code, ran.out)


@pytest.mark.parametrize(("text", "number"), [("sleep 60", errno.ETIMEDOUT), (None, errno.ENOENT)])
def test_a_command_that_hangs_or_is_missing_does_so_again(
    door: RecordingHost, tmp_path: Path, text: str | None, number: int
) -> None:
    program = tool(tmp_path, text) if text else str(tmp_path / "none" / "nvidia-smi")
    assert door.command([program, "-L"], 0.5).code is None
    with pytest.raises(OSError) as caught:
        copied(door.manifest(), tmp_path).command(["nvidia-smi", "-L"], 5)
    assert caught.value.errno == number


def test_what_a_recorded_command_cannot_be_stays_out(door: RecordingHost, tmp_path: Path) -> None:
    """Too long for a name, two lines in a word, or more than a manifest keeps: the copy does not know it."""
    program = tool(tmp_path, "head -c 400000 /dev/zero | tr '\\0' x")
    for argv in ([program, "x" * 300], [program, "one\ntwo"], [program, "-q"]):
        assert len(door.command(argv, 5).out) == 400000
    assert [path for path in door.manifest() if path.startswith("/.tuner-host/")] == []
    assert list(door.left_out) == ["/.tuner-host/cmd/nvidia-smi -q"]


def test_a_capture_carries_what_the_tools_said(copy_host: Callable[..., Path], tmp_path: Path) -> None:
    """Scrubbed, it still gives the same topology, and a tool's own list of serials goes under the same stand-ins."""
    root = copy_host("mi300x-cx7")
    gpus = [gpu.pci for gpu in inventory(open_host(str(root))).gpus]
    topo = "rocm_smi_01_showtopo_mi300_warning_first.txt"
    said = {
        "rocm-smi --showbus": "".join(f"GPU[{at}]\t\t: PCI Bus: {gpu}\n" for at, gpu in enumerate(gpus)),
        "rocm-smi --showtopo": (Path(__file__).parent / "probes" / "outputs" / topo).read_text(),
    }
    said["rocm-smi --showbus"] += f"GPU[0]\t\t: Unique ID: 0x{SERIAL}\n"
    (root / ".tuner-host/cmd").mkdir()
    for words, text in said.items():
        (root / f".tuner-host/cmd/{words}").write_text(f"exit 0\n{text}")
    before = inventory(open_host(str(root)))
    _, text = call(root, tmp_path / "c.host")
    host = replayed(tmp_path / "c.host")
    after = inventory(host)
    assert len(after.topologies[0].links) == 28
    assert (after.topologies, after.disagreements) == (before.topologies, before.disagreements)
    assert SERIAL not in text
    assert f"0x{after.gpus[0].serial}\n" in host.command(["rocm-smi", "--showbus"], 5).out


GPU = "0000:1b:00.0"
ANSWERS = {"power": '{"limit": 700000, "enforced": 650000}', "uuid": f'"GPU-{UUID}"', "mig": "error NOT_SUPPORTED",
           "ecc": "error GPU_IS_LOST", "name": "null"}  # fmt: skip


def test_answers_and_errors_of_nvml_are_kept(tmp_path: Path) -> None:
    entries = {
        f"/.tuner-host/nvml/{GPU}/{name}": Entry("file", 0o644, f"{text}\n".encode()) for name, text in ANSWERS.items()
    }
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    inner = copied(entries, tmp_path / "one")
    door = RecordingHost(inner)
    for name in ANSWERS:
        assert asked(door, name) == asked(inner, name)
    other = copied(door.manifest(), tmp_path / "two")
    assert [asked(other, name) for name in ANSWERS] == [asked(inner, name) for name in ANSWERS]
    assert asked(other, "power") == {"limit": 700000, "enforced": 650000}
    assert asked(other, "ecc") == errno.ENODEV
    assert asked(other, "mig") == errno.ENOTSUP
    with pytest.raises(OSError, match="Read-only"):
        door.nvml.set(GPU, "power", 1)


def asked(host: Host, name: str) -> object:
    """The answer of NVML, or its errno."""
    try:
        return host.nvml.get(GPU, name)
    except OSError as error:
        return error.errno


def test_a_host_without_nvml_has_none_in_its_copy_either(tmp_path: Path) -> None:
    """An image, whose NVML cannot even be opened."""
    (tmp_path / "etc").mkdir()
    door = RecordingHost(Host(str(tmp_path), "image", "x", ""))
    assert asked(door, "power") == errno.ENOSYS
    (tmp_path / "copy").mkdir()
    assert asked(copied(door.manifest(), tmp_path / "copy"), "power") == errno.ENOSYS


BOARD = "1652922012345"
ASIC = "C0FFEE5EB0A7F00D"


def test_serials_and_uuids_of_gpus_have_one_stand_in_everywhere() -> None:
    """NVML, files of the driver and outputs of tools name a GPU by one UUID and one serial; so does the copy."""
    cmd, nvml = "/.tuner-host/cmd", f"/.tuner-host/nvml/{GPU}"
    texts = {
        f"{nvml}/uuid": f'"GPU-{UUID}"\n',
        f"{nvml}/serial": f'"{BOARD}"\n',
        f"{nvml}/ecc": "error NOT_SUPPORTED\n",
        f"/proc/driver/nvidia/gpus/{GPU}/information": f"Model: \t\t x\nGPU UUID: \t GPU-{UUID}\n",
        f"{cmd}/nvidia-smi -q": f"exit 0\nHost: node-17\n  Serial Number  : {BOARD}\n  GPU UUID : GPU-{UUID.upper()}\n",
        f"{cmd}/nvidia-smi -q -i GPU-{UUID}": f"exit 0\nMIG-{UUID}\n{MAC}\n00000000:1B:00.0 550.90.07\n",
        f"{cmd}/nvidia-smi --query-gpu=index,serial --format=csv,noheader": f"exit 0\n0, {BOARD}\n1, [N/A]\n",
        f"{cmd}/amd-smi static --json": f'exit 0\n[{{"asic_serial": "0x{ASIC}", "product_serial": "N/A"}}]\n',
        f"{cmd}/rocm-smi --showuniqueid": f"exit 0\nGPU[0]\t\t: Unique ID: 0x{ASIC.lower()}\n",
        "/sys/devices/x/unique_id": f"{ASIC.lower()}\n",
    }
    scrubber = Scrubber("node-17")
    made = scrubber.scrub({path: Entry("file", 0o644, text.encode()) for path, text in texts.items()})
    whole = "\n".join(f"{path}\n{entry.data.decode()}" for path, entry in made.items())
    assert [w for w in (UUID, BOARD, ASIC, MAC, "node-17") if w.lower() in whole.lower()] == []
    assert scrubber.counts() == {"host name": 1, "mac": 1, "serial": 2, "uuid": 1}
    said = {path.rpartition("/")[2]: entry.data.decode() for path, entry in made.items()}
    uuid, serial, chip = said["uuid"].strip('"\n')[4:], said["serial"].strip('"\n'), said["unique_id"].strip()
    assert len(uuid) == len(UUID)
    assert len(serial) == len(BOARD)
    assert sum(text.lower().count(uuid) for text in said.values()) == 4
    assert f"nvidia-smi -q -i GPU-{uuid}" in said
    assert sum(text.count(serial) for text in said.values()) == 3
    assert sum(text.lower().count(chip) for text in said.values()) == 3
    assert said["ecc"] == "error NOT_SUPPORTED\n"
    assert "00000000:1B:00.0 550.90.07\n" in said[f"nvidia-smi -q -i GPU-{uuid}"]
    assert said["nvidia-smi --query-gpu=index,serial --format=csv,noheader"].endswith("\n1, [N/A]\n")


@pytest.mark.parametrize("text", [
    "Serial Number : N/A", '"product_serial": "N/A"', "Serial Number: Unknown", "Serial: 0", "Serial Number :",
])  # fmt: skip
def test_no_serial_is_no_serial(text: str) -> None:
    path = "/.tuner-host/cmd/nvidia-smi -q"
    made = Scrubber("x").scrub({path: Entry("file", 0o644, text.encode())})
    assert made[path].data.decode() == text


# --- stand-ins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "vm.swappiness = 60", "kernel 5.14.0-427.13.1.el9_4", "0000:05:00.0", "127.0.0.1", "::1", "0.0.0.0",
    "00:00:00:00:00:00", "12:30:45", "std::string", "28.39.1002", "4096\t131072\t16777216", "224.0.0.1",
])  # fmt: skip
def test_what_is_no_address_is_left_alone(text: str) -> None:
    assert Scrubber("node-17").text(text) == text


@pytest.mark.parametrize(("text", "kind"), [
    (MAC, "mac"), ("b8-ce-f6-12-34-56", "mac"), ("10.1.2.3", "ip"), ("fe80::bace:f6ff:fe12:3456", "ip"),
    ("fe80:0000:0000:0000:bace:f6ff:fe12:3456", "ip"), (UUID, "uuid"), (f"GPU-{UUID}", "uuid"),
    ("b8ce:f603:0012:3456", "guid"), ("c0ffee00c0ffee00c0ffee00c0ffee01", "serial"), ("node-17", "host name"),
    ("node-17.hall3.example", "host name"), ("b8:ce:f6:12:34:56:" * 3 + "aa:bb", "mac"),
])  # fmt: skip
def test_what_tells_the_machine_has_a_stand_in_of_its_shape(text: str, kind: str) -> None:
    scrubber = Scrubber("node-17")
    (one, other) = scrubber.text(f"<{text}> <{text}>").split()
    assert one == other
    assert text not in one
    assert scrubber.counts() == {kind: 1}
    if kind not in ("host name", "ip"):
        assert len(one) == len(text) + 2


def test_two_addresses_do_not_become_one() -> None:
    words = Scrubber("x").text(f"{MAC} b8:ce:f6:12:34:57 10.1.2.3 10.1.2.4 fe80::1 fe80::2").split()
    assert len(set(words)) == 6


def test_a_mapped_address_stays_that_of_its_netdev() -> None:
    """A RoCE v2 GID carries the IPv4 address of the interface."""
    plain, gid = Scrubber("x").text("10.1.2.3 0000:0000:0000:0000:0000:ffff:0a01:0203").split()
    packed = "".join(f"{int(part):02x}" for part in plain.split("."))
    assert gid == f"0000:0000:0000:0000:0000:ffff:{packed[:4]}:{packed[4:]}"


def test_the_gateway_in_the_routes_is_hidden_and_the_default_route_stays() -> None:
    line = "eth0\t00000000\t0101140A\t0003\t0\t0\t0\t00000000\t0\t0\t0"
    path = "/proc/net/route"
    made = Scrubber("x").scrub({path: Entry("file", 0o444, f"{line}\n".encode())})[path].data.decode()
    assert made.startswith("eth0\t00000000\t")
    assert "0101140A" not in made
    assert made.endswith("\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")


def test_a_host_called_like_a_kernel_path_keeps_its_settings() -> None:
    """`vm` is a folder of /proc/sys: only the files that hold the name lose it."""
    entries = {
        "/etc/hostname": Entry("file", 0o644, b"vm\n"),
        "/etc/sysctl.d/1.conf": Entry("file", 0o644, b"vm.swappiness = 1\n"),
    }
    made = Scrubber("vm", frozenset({"vm"})).scrub(entries)
    assert made["/etc/hostname"].data == b"captured\n"
    assert made["/etc/sysctl.d/1.conf"].data == b"vm.swappiness = 1\n"


def test_kfd_and_the_driver_name_a_gpu_by_one_number_still() -> None:
    """unique_id of a device in hex is unique_id of the topology in decimal."""
    hexed, node = "/sys/devices/x/unique_id", "/sys/class/kfd/kfd/topology/nodes/2/properties"
    made = Scrubber("x").scrub(
        {
            hexed: Entry("file", 0o444, b"e3aa140f9a5f9e31\n"),
            node: Entry("file", 0o444, b"simd_count 1216\nunique_id 16404946649897475633\n"),
        }
    )
    decimal = made[node].data.decode().split()[-1]
    assert int(made[hexed].data, 16) == int(decimal)
    assert decimal != "16404946649897475633"
