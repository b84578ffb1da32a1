"""Who has GPUs or RDMA devices open, but for the services that hold them on an idle node.

Such a service is known by its systemd unit (/proc/PID/cgroup, cgroups(7)), never by its name alone: any job may call
itself nv-hostengine. In a container, which has no unit, the name has to do.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence

from tuner.host import Host, Unrecorded

DEVICES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/renderD*", "/dev/infiniband/uverbs*")

UNITS = frozenset(
    {
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "nvidia-dcgm.service",
        "dcgm.service",
        "nvidia-dcgm-exporter.service",
        "dcgm-exporter.service",
        "nvidia_gpu_exporter.service",
        "amd-metrics-exporter.service",
        "gpuagent.service",
        "rdc.service",
        "gpud.service",
        "node_exporter.service",
        "prometheus-node-exporter.service",
        "rdma_exporter.service",
    }
)
"""Units of services that hold these devices while no job runs. Never slurmd.service: without cgroups jobs run in it."""

NAMES = frozenset(
    {
        "nv-hostengine",
        "dcgm-exporter",
        "nvidia_gpu_exporter",
        "amd-metrics-exporter",
        "gpuagent",
        "node_exporter",
        "nvidia-persistenced",
        "nv-fabricmanager",
    }
)
"""Programs of the same kind that run in containers; the kernel shows the first 15 characters."""

CONTAINERS = ("kubepods", "docker", "libpod", "containerd", "crio")
OURS = "nvml_child.py"
"""What asks NVML for us, in a process of its own."""


def holder(host: Host, patterns: Sequence[str]) -> str:
    """Who has a device of these paths open, in words; empty for nobody. Not allowed to look counts as somebody."""
    if host.kind == "image":
        return ""
    try:
        return next(_users(host, patterns), "") if any(_nodes(host, patterns)) else ""
    except PermissionError:
        return "not allowed to see who has a GPU or RDMA device open"
    except Unrecorded as gap:
        return str(gap)


def _nodes(host: Host, patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        folder = pattern.rpartition("/")[0]
        try:
            names = host.list(folder) if "*" in pattern else [pattern.rpartition("/")[2]]
        except (FileNotFoundError, NotADirectoryError):
            continue
        paths = (f"{folder}/{name}" for name in names)
        yield from (path for path in paths if fnmatch.fnmatchcase(path, pattern) and host.exists(path))


def _users(host: Host, patterns: Sequence[str]) -> Iterator[str]:
    for pid in filter(str.isdigit, host.list("/proc")):
        try:
            links = [_link(host, f"/proc/{pid}/fd/{handle}") for handle in host.list(f"/proc/{pid}/fd")]
            device = next((link for link in links if any(fnmatch.fnmatchcase(link, p) for p in patterns)), "")
            if device and not infrastructure(host, pid):
                yield f"{host.peek(f'/proc/{pid}/comm').strip()} {pid} has {device} open"
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            continue


def infrastructure(host: Host, pid: str) -> bool:
    """Whether a process is a service that holds devices on an idle node, or asks NVML for tuner."""
    groups = [line.split(":", 2)[-1] for line in _text(host, f"/proc/{pid}/cgroup").splitlines()]
    if any(part in UNITS for group in groups for part in group.split("/")):
        return True
    if any(word in group for group in groups for word in CONTAINERS):
        return _text(host, f"/proc/{pid}/comm").strip() in {name[:15] for name in NAMES}
    asks = any(word.endswith(f"/{OURS}") for word in _text(host, f"/proc/{pid}/cmdline").split("\0"))
    return asks and host.stat(f"/proc/{pid}").st_uid in (0, os.geteuid())


def _text(host: Host, path: str) -> str:
    """What is not there tells nothing: a process without a control group is no service."""
    try:
        return host.peek(path)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return ""


def _link(host: Host, path: str) -> str:
    try:
        return host.link(path)
    except OSError:
        return ""
