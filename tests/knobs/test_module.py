"""The knob `module`: parameters of loaded modules, and the files that set them at the next load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, tree, write_profile
from tuner.boot.boots import Boots, Next
from tuner.boot.modprobe_d import FOLDERS
from tuner.errors import BadValue
from tuner.host import Host, Unrecorded, open_host
from tuner.knobs.module import OURS, Module, typed
from tuner.model import Absent, Seen, Setting, Unreadable, Want
from tuner.nextboot import ask
from tuner.sim import store

KNOB = Module()
WITHOUT = Boots(Host("/nowhere", "image", "nowhere", ""))
INITRAMFS = "where the initramfs loads it, rebuild that too: update-initramfs -u, or dracut -f"
NVIDIA = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileMode: 438
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnableStreamMemOPs: 0
NvLinkDisable: 0
RmProfilingAdminOnly: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
DmaRemapPeerMmio: 1
GrdmaPciTopoCheckOverride: 0
RegistryDwords: "PeerMappingOverride=1"
TemporaryFilePath: "/var/tmp"
"""
"""Of the open driver 570 with one option set; the texts and their order are those of nv-procfs.c."""

Make = Callable[..., Host]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make({PATH: TEXT} ...) -> a new host with these; amdgpu is loaded, kvm is built in."""
    count = 0

    def build(*layers: Mapping[str, str]) -> Host:
        files = {
            "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro",
            "/sys/module/amdgpu/initstate": "live",
            "/sys/module/amdgpu/parameters/noretry": "-1",
            "/sys/module/kvm/parameters/ignore_msrs": "N",
            "/etc/hostname": "node",
            "/usr/lib/os-release": "ID=debian",
            "/usr/local/lib/none": "",
            "/run/none": "",
        }
        for layer in layers:
            files.update(layer)
        folders: dict[str, set[str]] = {}
        for path in files:
            parts = path.split("/")
            for depth in range(2, len(parts)):
                folders.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
        text = ["tuner-host 1", "file 0644 /.tuner-host/host.yaml", "|name: node", "|kernel: 6.8.0"]
        text += ["link 0777 /lib", "+usr/lib"]
        for folder, names in folders.items():
            text += [f"dir 0755 {folder}", *(f"|{name}" for name in sorted(names))]
        for path, content in files.items():
            if content.startswith("-> "):
                text += [f"link 0777 {path}", f"+{content[3:]}"]
            else:
                mode = "0200" if content == "(hidden)" else "0644"
                text += [f"file {mode} {path}", *(f"|{line}" for line in content.splitlines())]
        nonlocal count
        count += 1
        manifest = tmp_path / f"node-{count}.host"
        manifest.write_text("\n".join(text) + "\n", encoding="utf-8")
        store.copy(manifest, str(tmp_path / f"node-{count}"), [])
        return open_host(str(tmp_path / f"node-{count}"))

    return build


def parameter(module: str, name: str, text: str) -> dict[str, str]:
    """A parameter of a loaded module."""
    folder = f"/sys/module/{module}"
    return {f"{folder}/initstate": "live", f"{folder}/parameters/{name}": text}


def wanted(host: Host, target: str, raw: Any) -> Any:
    """What a profile wants in the form that the host shows."""
    return KNOB.normalise(host, target, KNOB.parse(target, raw))


# --- reading and comparing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "value", "same", "other"),
    [
        ("Y", "Y", ["1", "Y", "y", "on"], ["0", "N", "off"]),
        ("N", "N", ["0", "N", "n", "off"], ["1", "Y", "on"]),
        ("Y,N", "Y,N", ["1,0", "Y,N", ["1", "N"]], ["1,1", "Y", "Y,N,N"]),
        ("-1", -1, ["-1"], ["0", "1", "0xffffffff"]),
        ("30", 30, ["30", "0x1e"], ["31"]),
        ("4294967295", 4294967295, ["0xffffffff", "4294967295"], ["-1"]),
        ("0x00000010", 16, ["16", "0x10"], ["10"]),
        ("0,0,170", (0, 0, 170), ["0,0,0xaa", ["0", "0", "170"]], ["0,0", "0,0,171"]),
        ("deflate", "deflate", ["deflate"], ["zstd", "DEFLATE"]),
        ("(null)", "", [""], ["x"]),
        ("", "", [""], ["x"]),
        ("[default] performance powersave powersupersave ", "default", ["default"], ["performance"]),
    ],
)  # fmt: skip
def test_a_value_is_the_same_however_it_is_written(
    make: Make, shown: str, value: Any, same: list[Any], other: list[Any]
) -> None:
    host = make(parameter("x", "p", shown))
    assert KNOB.read(host, "x/p") == Seen(value)
    assert [raw for raw in same if wanted(host, "x/p", raw) != value] == []
    assert [raw for raw in other if wanted(host, "x/p", raw) == value] == []


@pytest.mark.parametrize(
    ("shown", "raw", "word"), [("Y", "2", "switch"), ("N", "maybe", "switch"), ("-1", "auto", "number")]
)
def test_what_would_keep_the_module_from_loading_is_refused(make: Make, shown: str, raw: str, word: str) -> None:
    """`amdgpu: 'auto' invalid for parameter 'noretry'`: a node that comes up without its driver."""
    with pytest.raises(BadValue, match=word):
        wanted(make(parameter("x", "p", shown)), "x/p", raw)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("i915/enable_guc", "the module i915 is not loaded, or part of the kernel without parameters"),
        ("amdgpu/no_such", "amdgpu shows no parameter no_such: it has none of that name, or hides it"),
        ("x/p", "p can be set and never read (mode 0200)"),
    ],
)
def test_what_cannot_be_seen_is_absent_with_the_reason(make: Make, target: str, why: str) -> None:
    assert KNOB.read(make(parameter("x", "p", "(hidden)")), target) == Absent(why)


def test_what_only_root_may_read_is_unknown_and_not_absent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make()

    def denied(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(host, "read", denied)
    assert isinstance(KNOB.read(host, "amdgpu/noretry"), Unreadable)


def test_nvidia_shows_its_parameters_in_a_file_of_its_own(make: Make) -> None:
    host = make({"/sys/module/nvidia/initstate": "live", "/proc/driver/nvidia/params": NVIDIA})
    expected: dict[str, int | str] = {
        "EnableStreamMemOPs": 0, "RestrictProfilingToAdminUsers": 1, "EnableGpuFirmware": 18,
        "RegistryDwords": "PeerMappingOverride=1", "UsePageAttributeTable": 4294967295, "TemporaryFilePath": "/var/tmp",
    }  # fmt: skip
    for name, value in expected.items():
        assert KNOB.read(host, f"nvidia/NVreg_{name}") == Seen(value), name
    assert wanted(host, "nvidia/NVreg_UsePageAttributeTable", "-1") == 4294967295
    names = KNOB.targets(host, "nvidia/*")
    assert "nvidia/NVreg_RestrictProfilingToAdminUsers" in names
    assert not [name for name in names if "RmProfilingAdminOnly" in name]


@pytest.mark.parametrize("name", ["EnableStreamMemOPs", "NVreg_SetPCIERelaxedOrdering", "NVreg_RmProfilingAdminOnly"])
def test_names_that_modprobe_does_not_know_are_absent(make: Make, name: str) -> None:
    """Without the prefix, invented in a forum, or the name under which the driver shows another one."""
    host = make({"/sys/module/nvidia/initstate": "live", "/proc/driver/nvidia/params": NVIDIA})
    assert isinstance(KNOB.read(host, f"nvidia/{name}"), Absent)


@given(st.text(alphabet="0123456789abcxXYN,-+[]() \n", max_size=20))
def test_any_text_has_a_value(text: str) -> None:
    assert isinstance(typed(text), (int, str, tuple))


@given(st.lists(st.integers(-(2**31), 2**64 - 1), min_size=1, max_size=8))
def test_numbers_are_read_as_they_are_written(numbers: list[int]) -> None:
    assert typed(",".join(map(str, numbers))) == (tuple(numbers) if len(numbers) > 1 else numbers[0])


def test_targets_of_one_module_and_of_all(make: Make) -> None:
    host = make(parameter("x", "b", "1"), {"/sys/module/x/parameters/a": "2"})
    assert KNOB.targets(host, "x/*") == ["x/a", "x/b"]
    assert KNOB.targets(host, "*/*") == ["amdgpu/noretry", "kvm/ignore_msrs", "x/a", "x/b"]
    assert KNOB.targets(host, "none/*") == []


# --- files -----------------------------------------------------------------------------------------------------------


def setting(target: str, value: Any, kind: Any = "value") -> Setting:
    """A resolved setting."""
    return Setting("module", target, target, Want(kind, value), "p.yaml:1", "why", "source")


def test_one_file_keeps_them_all() -> None:
    settings = [
        setting("nvme_core/io_timeout", 60, "at_least"),
        setting("amdgpu/noretry", 0),
        setting("nvidia/NVreg_RegistryDwords", "a=1;b=2 c"),
        setting("nvme_core/default_ps_max_latency_us", (0, 1)),
        setting("x/empty", ""),
    ]
    ((path, text),) = KNOB.stores(settings, WITHOUT)
    assert path == "/etc/modprobe.d/zz-tuner.conf"
    assert text.splitlines() == [
        "# Written by tuner",
        "options amdgpu noretry=0",
        'options nvidia NVreg_RegistryDwords="a=1;b=2 c"',
        "options nvme_core default_ps_max_latency_us=0,1 io_timeout=60",
        'options x empty=""',
    ]
    assert KNOB.stores([setting("nosuch/*", 1)], WITHOUT) == []


def pending(host: Host, target: str, value: Any) -> str:
    """Why it waits; empty when it does not."""
    return KNOB.pending(host, target, value)


@pytest.mark.parametrize(
    "line",
    [
        "options amdgpu noretry=0",
        "options amdgpu ppfeaturemask=0xffff noretry=0 dpm=1",
        "options  amdgpu\tnoretry=0",
        "# options amdgpu noretry=1\noptions amdgpu noretry=0x0",
        "options amdgpu \\\n  noretry=0",
        "options amdgpu noretry=1\noptions amdgpu noretry=0",
        'options amdgpu noretry="0"',
    ],
)
def test_a_file_in_place_makes_it_pending(make: Make, line: str) -> None:
    why = pending(make({OURS: line}), "amdgpu/noretry", 0)
    assert why.startswith(f"until amdgpu is loaded again (reload or reboot; {INITRAMFS}): ")


@pytest.mark.parametrize(
    "line",
    [
        "# options amdgpu noretry=0",
        "options amdgpu noretry=1",
        "options amdgpu noretry=0\noptions amdgpu noretry=1",
        "options amdgpux noretry=0",
        "options amdgpu noretry2=0",
        "alias amdgpu noretry=0",
        "options amdgpu",
        "",
    ],
)
def test_other_lines_do_not(make: Make, line: str) -> None:
    assert pending(make({OURS: line}), "amdgpu/noretry", 0) == ""


def test_hyphens_and_underscores_are_one(make: Make) -> None:
    host = make(parameter("nvme_core", "io_timeout", "30"), {OURS: "options nvme-core io-timeout=60"})
    assert KNOB.canonical("nvme-core/io-timeout") == "nvme_core/io_timeout"
    assert pending(host, "nvme_core/io_timeout", 60) != ""


def test_a_name_alone_switches_on(make: Make) -> None:
    assert pending(make(parameter("x", "p", "N"), {OURS: "options x p"}), "x/p", "Y") != ""


LATER = "/etc/modprobe.d/zzz-site.conf"


def test_a_file_whose_name_comes_later_wins_and_is_named_with_its_line(make: Make) -> None:
    host = make({OURS: "options amdgpu noretry=0", LATER: "# ours\noptions amdgpu noretry=1"})
    assert pending(host, "amdgpu/noretry", 0) == ""
    assert f"also set: {LATER}:2 sets 1" in KNOB.advice(host, "amdgpu/noretry", 0)


@pytest.mark.parametrize("folder", FOLDERS[:4])
def test_names_decide_and_not_folders(make: Make, folder: str) -> None:
    ours, other = {OURS: "options amdgpu noretry=0"}, "options amdgpu noretry=1"
    assert pending(make(ours, {f"{folder}/aa.conf": other}), "amdgpu/noretry", 0)
    late = make(ours, {f"{folder}/zzz.conf": other})
    assert pending(late, "amdgpu/noretry", 0) == ""
    assert KNOB.advice(late, "amdgpu/noretry", 0).endswith(f"{folder}/zzz.conf:1 sets 1")


@pytest.mark.parametrize("hides", ["options x y=1", "", "-> /dev/null"])
def test_a_stronger_folder_hides_a_file_of_the_same_name(make: Make, hides: str) -> None:
    """modprobe.d(5): an empty file or a link to /dev/null of the same name takes a packaged one out."""
    files = {OURS: "options amdgpu noretry=0", "/usr/lib/modprobe.d/zzz.conf": "options amdgpu noretry=1", LATER: ""}
    hidden = {path.replace("zzz-site", "zzz"): text for path, text in {**files, LATER: hides}.items()}
    assert pending(make(files), "amdgpu/noretry", 0) == ""
    why = pending(make(hidden), "amdgpu/noretry", 0)
    assert "/usr/lib/modprobe.d/zzz.conf:1 sets 1, but /etc/modprobe.d/zzz.conf hides that file" in why


def test_a_hidden_file_makes_nothing_pending(make: Make) -> None:
    host = make({"/etc/modprobe.d/x.conf": "", "/usr/lib/modprobe.d/x.conf": "options amdgpu noretry=0"})
    assert pending(host, "amdgpu/noretry", 0) == ""


def test_a_leading_zero_in_a_file_is_octal_for_the_kernel(make: Make) -> None:
    host = make(parameter("x", "p", "1"), {OURS: "options x p=010"})
    assert (pending(host, "x/p", 8) != "", pending(host, "x/p", 10)) == (True, "")


def test_other_files_than_conf_are_not_read(make: Make) -> None:
    host = make({OURS: "options amdgpu noretry=0", "/etc/modprobe.d/zzz.conf.bak": "options amdgpu noretry=1"})
    assert pending(host, "amdgpu/noretry", 0) != ""


def test_the_boot_line_comes_last(make: Make) -> None:
    """libkmod appends it to what the files say."""
    boot = {"/proc/cmdline": "ro amdgpu.noretry=1 quiet"}
    host = make({OURS: "options amdgpu noretry=0"}, boot)
    assert pending(host, "amdgpu/noretry", 0) == ""
    assert KNOB.advice(host, "amdgpu/noretry", 0).endswith("/proc/cmdline sets 1")
    assert pending(make(boot), "amdgpu/noretry", 1) != ""


def test_of_a_module_in_the_kernel_the_boot_line_alone_counts(make: Make) -> None:
    host = make({OURS: "options kvm ignore_msrs=1"})
    assert KNOB.read(host, "kvm/ignore_msrs") == Seen("N")
    assert pending(host, "kvm/ignore_msrs", "Y") == ""
    said = KNOB.advice(host, "kvm/ignore_msrs", "Y")
    assert said == "kvm is built into this kernel: set kvm.ignore_msrs on the boot line (knob cmdline)"


def test_a_folder_that_nobody_recorded_is_not_taken_for_empty(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make({OURS: "options amdgpu noretry=0"})
    known = host.list

    def listing(path: str) -> list[str]:
        if path == "/run/modprobe.d":
            raise Unrecorded(path)
        return known(path)

    monkeypatch.setattr(host, "list", listing)
    assert pending(host, "amdgpu/noretry", 0) == ""
    said = KNOB.advice(host, "amdgpu/noretry", 0)
    assert said.endswith("whether another file wins cannot be told: not recorded /run/modprobe.d")


def test_a_line_number_counts_lines_that_are_carried_on(make: Make) -> None:
    host = make({LATER: "options x a=1 \\\n b=2 \\\n c=3\noptions amdgpu \\\n noretry=1\n"})
    assert KNOB.advice(host, "amdgpu/noretry", 0).endswith(f"{LATER}:4 sets 1")


# --- whole runs ------------------------------------------------------------------------------------------------------


def plan(tuner: Callable[..., Result], root: Path, profile: Path) -> dict[str, Any]:
    """The verdict on the parameter."""
    document = tuner("plan", "--root", root, "--profile", profile, "--json").document
    (verdict,) = [v for v in document["verdicts"] if v["knob"] == "module"]
    return dict(verdict)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "p.yaml", "module: {amdgpu/noretry: 0, mlx5_core/prof_sel: 2}")


def test_there_pending_and_back(copy_host: Callable[..., Path], tuner: Callable[..., Result], profile: Path) -> None:
    """The file is written, the module is not loaded anew; rollback takes the file away."""
    root = copy_host("mi300x-cx7")
    before, words = tree(root), ("--root", root, "--profile", profile, "--json")
    assert [c["target"] for c in tuner("plan", *words).document["changes"]] == [OURS]
    done = tuner("apply", *words)
    assert (done.code, [o["result"] for o in done.document["outcomes"]]) == (0, ["done"])
    assert (root / OURS[1:]).read_text() == (
        "# Written by tuner\noptions amdgpu noretry=0\noptions mlx5_core prof_sel=2\n"
    )
    verify = tuner("verify", "--root", root, "--json")
    states = {v["target"]: v["state"] for v in verify.document["verdicts"]}
    assert (verify.code, states["amdgpu/noretry"], states["mlx5_core/prof_sel"]) == (13, "pending", "ok")
    (root / "sys/module/amdgpu/parameters/noretry").write_text("0\n")  # loaded anew
    assert tuner("verify", "--root", root).code == 0
    (root / "sys/module/amdgpu/parameters/noretry").write_text("-1\n")
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_what_the_host_lacks_gets_no_line(
    copy_host: Callable[..., Path], tuner: Callable[..., Result], tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "p.yaml", "module: {nvidia/NVreg_EnableStreamMemOPs: 1, amdgpu/noretry: -1}")
    root = copy_host("mi300x-cx7")
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert (root / OURS[1:]).read_text() == "# Written by tuner\noptions amdgpu noretry=-1\n"


def test_a_bound_that_is_met_gets_no_file(
    copy_host: Callable[..., Path], tuner: Callable[..., Result], tmp_path: Path
) -> None:
    """By the module's own default, or by a line of somebody else; not where that line is too low."""
    profile = write_profile(tmp_path / "p.yaml", "module: {mlx5_core/prof_sel: {at_least: 1}}")
    root = copy_host("mi300x-cx7")
    assert tuner("plan", "--root", root, "--profile", profile).code == 0
    (root / "etc/modprobe.d/mlx5.conf").write_text("options mlx5_core prof_sel=0\n")
    assert tuner("plan", "--root", root, "--profile", profile).code == 10
    (root / "etc/modprobe.d/mlx5.conf").write_text("options mlx5_core prof_sel=3\n")
    result = tuner("plan", "--root", root, "--profile", profile, "--json")
    assert (result.code, result.document["changes"]) == (0, [])
    assert result.document["verdicts"][0]["state"] == "raised"


def test_a_wrong_kind_of_value_is_bad_input_before_anything_is_written(
    copy_host: Callable[..., Path], tuner: Callable[..., Result], tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "p.yaml", "module: {amdgpu/noretry: auto}")
    result = tuner("plan", "--root", copy_host("mi300x-cx7"), "--profile", profile, "--json")
    assert result.code == 64
    assert "amdgpu/noretry holds -1" in result.document["errors"][0]["what"]


def test_v10_a_switch_that_was_written_as_1_reads_y(
    copy_host: Callable[..., Path], tuner: Callable[..., Result], tmp_path: Path
) -> None:
    """JoeSchubert/kernel_adiutor#33."""
    profile = write_profile(tmp_path / "p.yaml", "module: {nvme_core/multipath: 1}")
    assert plan(tuner, copy_host("mi300x-cx7"), profile)["state"] == "ok"


def test_v13_the_running_value_decides_and_every_file_is_named(
    copy_host: Callable[..., Path], tuner: Callable[..., Result], tmp_path: Path
) -> None:
    """strongtz/i915-sriov-dkms#385: two files, and an initramfs that was built with one of them."""
    profile = write_profile(tmp_path / "p.yaml", "module: {amdgpu/noretry: 0}")
    root = copy_host("mi300x-cx7")
    (root / "etc/modprobe.d/x.conf").write_text("options amdgpu noretry=0\n")
    (root / "usr/lib/modprobe.d/x.conf").write_text("options amdgpu noretry=1\n")
    (root / "sys/module/amdgpu/parameters/noretry").write_text("1\n")
    verdict = plan(tuner, root, profile)
    assert (verdict["state"], verdict["running"]) == ("pending", 1)
    for part in ("rebuild", "/etc/modprobe.d/x.conf:1 sets 0", "/usr/lib/modprobe.d/x.conf:1 sets 1"):
        assert part in verdict["state_why"], part
    (root / "sys/module/amdgpu/parameters/noretry").write_text("0\n")
    assert plan(tuner, root, profile)["state"] == "ok"


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["amdgpu", "a/b/c", "/noretry", "amdgpu/", "am dgpu/x", "../x/y", "*"])
def test_what_names_no_parameter_is_refused(written: str) -> None:
    with pytest.raises(BadValue):
        KNOB.canonical(written)


@pytest.mark.parametrize("raw", ['a"b', "a\\", "a\nb", "010", "1,010", None, {"a": "1"}, ["1", None]])
def test_what_modprobe_d_cannot_hold_is_refused(raw: Any) -> None:
    with pytest.raises(BadValue):
        KNOB.parse("x/p", raw)


# --- the next boot

LOADED = {"/sys/module/mlx5_core/initstate": "live", "/sys/module/mlx5_core/parameters/prof_sel": "2"}
GRUB = "/boot/grub/grub.cfg"
PARAMETER = "mlx5_core/prof_sel"


def ahead(host: Host, target: str = PARAMETER) -> Next:
    """The next boot of one parameter."""
    return ask(KNOB, Boots(host), setting(target, 1))


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"/etc/modprobe.d/a.conf": "options mlx5_core prof_sel=3"}, Next(Seen(3), "/etc/modprobe.d/a.conf:1")),
        ({"/etc/modprobe.d/a.conf": "options mlx5-core prof-sel=3"}, Next(Seen(3), "/etc/modprobe.d/a.conf:1")),
        ({"/etc/modprobe.d/a.conf": "# x\noptions mlx5_core prof_sel=3 prof_sel=0"},
         Next(Seen(0), "/etc/modprobe.d/a.conf:2")),
        ({"/etc/modprobe.d/zz-tuner.conf": "options mlx5_core prof_sel=1",
          "/usr/lib/modprobe.d/zzz.conf": "options mlx5_core prof_sel=3"},
         Next(Seen(3), "/usr/lib/modprobe.d/zzz.conf:1")),
        ({"/etc/modprobe.d/a.conf": "", "/usr/lib/modprobe.d/a.conf": "options mlx5_core prof_sel=3"},
         Next(Absent("no file sets it: the module's own default"))),
        ({"/run/modprobe.d/a.conf": "options mlx5_core prof_sel=3"},
         Next(Absent("no file sets it: the module's own default"))),
        ({"/run/modprobe.d/a.conf": "", "/usr/lib/modprobe.d/a.conf": "options mlx5_core prof_sel=3"},
         Next(Seen(3), "/usr/lib/modprobe.d/a.conf:1")),
        ({}, Next(Absent("no file sets it: the module's own default"))),
    ],
)  # fmt: skip
def test_what_the_module_is_loaded_with_next_time(make: Make, files: dict[str, str], found: Next) -> None:
    """By file name over all folders; a file of /etc hides its namesake; /run is empty after a reboot."""
    assert ahead(make(LOADED, files)) == found


def test_the_next_boot_line_comes_after_all_files(make: Make) -> None:
    """That line, not the running one."""
    files = {"/etc/modprobe.d/a.conf": "options mlx5_core prof_sel=3"}
    menu = {GRUB: "menuentry a {\nlinux /vmlinuz mlx5_core.prof_sel=0\n}"}
    assert ahead(make(LOADED, files, menu)) == Next(Seen(0), f"{GRUB}:2")
    running = {"/proc/cmdline": "BOOT_IMAGE=/vmlinuz mlx5_core.prof_sel=7"}
    assert ahead(make(LOADED, files, {GRUB: "menuentry a {\nlinux /vmlinuz ro\n}"}, running)).reading == Seen(3)
    unknown = ahead(make(LOADED, files, running)).reading
    assert isinstance(unknown, Unreadable)
    assert "the next one is not known" in unknown.why


def test_a_module_that_an_initramfs_may_load(make: Make) -> None:
    """It has a copy of modprobe.d, which nothing here looks into."""
    found = ahead(make({"/etc/modprobe.d/a.conf": "options amdgpu noretry=0"}), "amdgpu/noretry")
    assert isinstance(found.reading, Unreadable)
    assert "an initramfs may load amdgpu earlier" in found.reading.why
    assert found.winner == "/etc/modprobe.d/a.conf:1"


def test_a_built_in_module_has_the_boot_line_alone(make: Make) -> None:
    files = {"/etc/modprobe.d/a.conf": "options kvm ignore_msrs=1"}
    found = ahead(make(files), "kvm/ignore_msrs").reading
    assert isinstance(found, Absent)
    assert found.why.startswith("kvm is built in")
    menu = {GRUB: "menuentry a {\nlinux /vmlinuz kvm.ignore_msrs=1\n}"}
    assert ahead(make(files, menu), "kvm/ignore_msrs") == Next(Seen("Y"), f"{GRUB}:2")


def test_a_line_that_the_module_would_refuse(make: Make) -> None:
    found = ahead(make(LOADED, {"/etc/modprobe.d/a.conf": "options mlx5_core prof_sel=big"}))
    assert isinstance(found.reading, Unreadable)
    assert found.winner == "/etc/modprobe.d/a.conf:1"
