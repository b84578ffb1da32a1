"""Whether a job may be running, and what may then be changed: --allow over a recorded host."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, write_profile
from tuner.errors import Exit
from tuner.host import open_host
from tuner.idle import allowed, busy
from tuner.model import DISRUPTIONS

Tuner = Callable[..., Result]
POOL = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"


SESSION = "/user.slice/user-1000.slice/session-4.scope"


def processes(root: Path, *found: tuple[int, str, list[str]], group: str = SESSION) -> None:
    """Puts processes (pid, name, open files) into a copy, and a listing of /proc into its manifest."""
    names = ["sys", "cmdline", *(str(pid) for pid, _, _ in found)]
    with (root / ".tuner-host/manifest").open("a", encoding="utf-8") as manifest:
        manifest.write("dir 0555 /proc\n" + "".join(f"|{name}\n" for name in sorted(names)))
    for pid, name, opened in found:
        folder = root / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_text(f"{name}\n")
        (root / f"proc/{pid}/cgroup").write_text(f"0::{group}\n")
        (root / f"proc/{pid}/cmdline").write_text(f"/usr/bin/{name}\0--all\0")
        for number, target in enumerate(["/dev/null", "socket:[4711]", *opened]):
            (folder / str(number)).symlink_to(target)


def node(root: Path, path: str) -> None:
    """A device node, as far as a tree has one."""
    place = root / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()


def classes(root: Path, *words: str) -> set[str]:
    """What `--allow` permits."""
    return set(allowed(open_host(str(root)), list(words)).classes)


def test_a_node_without_such_devices_is_idle(root: Path) -> None:
    assert busy(open_host(str(root))) == ""


@pytest.mark.parametrize(
    "device", ["/dev/kfd", "/dev/nvidia0", "/dev/nvidiactl", "/dev/dri/renderD128", "/dev/infiniband/uverbs0"]
)
def test_a_process_that_has_a_device_open_makes_the_node_busy(root: Path, device: str) -> None:
    node(root, device)
    processes(root, (4321, "python3", [device]), (77, "sshd", ["/dev/ptmx"]))
    why = busy(open_host(str(root)))
    assert "python3" in why
    assert "4321" in why
    assert device in why


@pytest.mark.parametrize("device", ["/dev/dri/card0", "/dev/infiniband/issm0", "/dev/fuse", "/dev/ptmx"])
def test_other_devices_do_not(root: Path, device: str) -> None:
    node(root, "/dev/kfd")
    node(root, device)
    processes(root, (4321, "python3", [device]))
    assert busy(open_host(str(root))) == ""


def test_devices_that_nobody_has_open_leave_the_node_idle(root: Path) -> None:
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", []))
    assert busy(open_host(str(root))) == ""


@pytest.mark.parametrize(
    "group",
    [
        "/system.slice/nvidia-persistenced.service",
        "/system.slice/nvidia-fabricmanager.service",
        "/system.slice/nvidia-dcgm.service",
        "/system.slice/prometheus-node-exporter.service",
        "/system.slice/rdc.service",
        "/system.slice/dcgm-exporter.service/payload",
    ],
)
def test_infrastructure_is_no_job_and_is_known_by_its_unit(root: Path, group: str) -> None:
    node(root, "/dev/nvidia0")
    processes(root, (4321, "whatever", ["/dev/nvidia0"]), group=group)
    assert busy(open_host(str(root))) == ""


def test_infrastructure_by_a_unit_of_cgroup_version_1(root: Path) -> None:
    """One line for each hierarchy, systemd's has the unit (cgroups(7))."""
    node(root, "/dev/nvidia0")
    processes(root, (4321, "nv-hostengine", ["/dev/nvidia0"]))
    lines = "12:memory:/system.slice\n1:name=systemd:/system.slice/nvidia-dcgm.service\n"
    (root / "proc/4321/cgroup").write_text(lines)
    assert busy(open_host(str(root))) == ""


@pytest.mark.parametrize(
    "group",
    [
        SESSION,
        "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "/system.slice/slurmd.service",
        "/system.slice/nvidia-dcgm.service.d",
        "/kubepods.slice/kubepods-burstable.slice/cri-containerd-0a.scope",
    ],
)
def test_a_name_does_not_make_a_job_infrastructure(root: Path, group: str) -> None:
    """Without cgroups a job of Slurm runs in slurmd's unit; in a container a name that is not known is a job."""
    node(root, "/dev/nvidia0")
    processes(root, (4321, "nv-hostenginex", ["/dev/nvidia0"]), group=group)
    assert "4321" in busy(open_host(str(root)))


@pytest.mark.parametrize("group", [SESSION, "/system.slice/slurmd.service"])
def test_a_job_may_call_itself_anything(root: Path, group: str) -> None:
    node(root, "/dev/nvidia0")
    processes(root, (4321, "nv-hostengine", ["/dev/nvidia0"]), group=group)
    assert "nv-hostengine 4321" in busy(open_host(str(root)))


CONTAINED = ["dcgm-exporter", "nvidia_gpu_expo", "nv-hostengine", "gpuagent", "nvidia-persiste", "nv-fabricmanage"]
"""Programs that GPU operators run in containers, as the kernel shows them."""


@pytest.mark.parametrize("name", CONTAINED)
def test_in_a_container_the_name_has_to_do(root: Path, name: str) -> None:
    """The kernel shows the first 15 characters of a name in /proc/PID/comm."""
    node(root, "/dev/nvidia0")
    group = "/kubepods.slice/kubepods-burstable.slice/cri-containerd-0a.scope"
    processes(root, (4321, name, ["/dev/nvidia0"]), group=group)
    assert busy(open_host(str(root))) == ""


def test_a_job_beside_infrastructure_is_found(root: Path) -> None:
    node(root, "/dev/nvidia0")
    processes(root, (1, "nv-hostengine", ["/dev/nvidia0"]), (9000, "python3", ["/dev/nvidia0"]))
    (root / "proc/1/cgroup").write_text("0::/system.slice/nvidia-dcgm.service\n")
    assert "9000" in busy(open_host(str(root)))


def test_a_process_of_which_only_the_open_device_is_known_is_a_job(root: Path) -> None:
    node(root, "/dev/nvidia0")
    processes(root, (4321, "nv-hostengine", ["/dev/nvidia0"]))
    (root / "proc/4321/cgroup").unlink()
    (root / "proc/4321/cmdline").unlink()
    assert "4321" in busy(open_host(str(root)))


def test_what_asks_nvml_for_tuner_is_no_job(root: Path) -> None:
    """Another tuner on the node looks at its GPUs: no reason to hold a change."""
    node(root, "/dev/nvidia0")
    processes(root, (4321, "python3", ["/dev/nvidiactl"]))
    (root / "proc/4321/cmdline").write_text("/opt/tuner/bin/python3\0-I\0/opt/tuner/lib/tuner/host/nvml_child.py\0")
    assert busy(open_host(str(root))) == ""
    (root / "proc/4321/cmdline").write_text("/usr/bin/python3\0train_nvml_child.py\0")
    assert "4321" in busy(open_host(str(root)))


def test_not_allowed_to_look_is_busy(root: Path) -> None:
    node(root, "/dev/kfd")
    processes(root)
    manifest = root / ".tuner-host/manifest"
    text = manifest.read_text(encoding="utf-8").replace("|cmdline\n|sys\n", "|4321\n|cmdline\n|sys\n")
    manifest.write_text(text + "errno EACCES /proc/4321/fd\n", encoding="utf-8")
    (root / "proc/4321").mkdir()
    assert "not allowed" in busy(open_host(str(root)))
    assert "memory" not in classes(root, "auto")


def test_processes_that_nobody_recorded_are_not_no_processes(root: Path) -> None:
    node(root, "/dev/kfd")
    assert "not recorded /proc" in busy(open_host(str(root)))


def test_a_process_that_ends_meanwhile_is_no_job(root: Path) -> None:
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", ["/dev/kfd"]))
    for path in (root / "proc/4321/fd").iterdir():
        path.unlink()
    (root / "proc/4321/fd").rmdir()
    assert busy(open_host(str(root))) == ""


# --allow


def test_auto_is_harmless_and_app_and_on_an_idle_node_memory_and_clocks(root: Path) -> None:
    assert classes(root, "auto") == {"none", "app", "memory", "clocks"}
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", ["/dev/kfd"]))
    assert classes(root, "auto") == {"none", "app"}


@pytest.mark.parametrize("name", [name for name in DISRUPTIONS if name not in ("none", "app")])
def test_a_class_that_is_named_is_added_to_auto(root: Path, name: str) -> None:
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", ["/dev/kfd"]))
    assert classes(root, name) == {"none", "app", name}


def test_classes_add_up_and_never_allow_what_lies_below_them(root: Path) -> None:
    """A set, not a level: who allows boot has not allowed a link flap."""
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", ["/dev/kfd"]))
    assert classes(root, "boot", "nv") == {"none", "app", "boot", "nv"}
    assert classes(root, "all") == set(DISRUPTIONS)
    assert classes(root, "link", "all") == set(DISRUPTIONS)


def test_none_alone_is_the_harmless_only(root: Path) -> None:
    assert classes(root, "none") == {"none"}


def test_memory_is_held_on_a_busy_node_with_who_is_in_the_way(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", ["/dev/kfd"]))
    profile = write_profile(tmp_path / "p.yaml", "hugepages: {node0/2MB: 16}\nsysctl: {vm.swappiness: 1}")
    plan = tuner("plan", "--profile", profile, "--root", root, "--json")
    found = {c["target"]: c["held"] for c in plan.document["changes"]}
    assert "python3" in found["node0/2MB"]
    assert "--allow memory" in found["node0/2MB"]
    assert found["vm.swappiness"] == ""
    assert plan.code == Exit.DIFFERS
    applied = tuner("apply", "--profile", profile, "--root", root, "--json")
    assert applied.code == Exit.OK
    assert [c["target"] for c in applied.document["held"]] == ["node0/2MB"]
    assert (root / POOL).read_text() == "0\n"
    assert tuner("verify", "--root", root).code == Exit.HELD
    assert tuner("apply", "--profile", profile, "--root", root, "--allow", "memory").code == Exit.OK
    assert (root / POOL).read_text() == "16\n"
    assert tuner("verify", "--root", root).code == Exit.OK


def test_rollback_may_use_the_classes_its_generation_used(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "p.yaml", "hugepages: {node0/2MB: 16}")
    assert tuner("apply", "--profile", profile, "--root", root).code == Exit.OK
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", ["/dev/kfd"]))
    assert tuner("rollback", "--root", root).code == Exit.OK
    assert (root / POOL).read_text() == "0\n"


@pytest.mark.parametrize("words", ["everything", "memory,nothing", "", ",", "MEMORY"])
def test_an_unknown_class_is_bad_input(root: Path, tuner: Tuner, tmp_path: Path, words: str) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    assert tuner("apply", "--profile", profile, "--root", root, "--allow", words).code == Exit.BAD_INPUT
    assert (root / "proc/sys/vm/swappiness").read_text() == "60\n"


def test_an_image_has_no_jobs(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    node(tmp_path, "/dev/kfd")
    assert busy(open_host(str(tmp_path))) == ""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc")
def test_this_machine_can_be_asked() -> None:
    """Live: whatever the answer is, it is words and no exception."""
    assert isinstance(busy(open_host(None)), str)
