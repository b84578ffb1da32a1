"""Whether a job may be running: who has a GPU or an RDMA device open."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from tuner.host import Host, Unrecorded
from tuner.model import DISRUPTIONS
from tuner.plan import Allowed

DEVICES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/renderD*", "/dev/infiniband/uverbs*")
INFRASTRUCTURE = frozenset(
    {
        "nvidia-persistenced",
        "nv-fabricmanager",
        "nv-hostengine",
        "dcgm-exporter",
        "nvidia_gpu_exporter",
        "amd-metrics-exporter",
        "node_exporter",
        "rdma_exporter",
    }
)
"""Programs that hold these devices on an idle node; the kernel shows the first 15 characters of their names."""


def allowed(host: Host, words: list[str]) -> Allowed:
    """What `--allow` means on this host now.

    Always harmless; `auto` adds app, and memory and clocks while the node is idle; each class named adds itself;
    `all` allows everything; `none` alone allows the harmless only.
    """
    if "all" in words:
        return Allowed(frozenset(DISRUPTIONS))
    classes = {"none", *(word for word in words if word in DISRUPTIONS)}
    if words == ["none"]:
        return Allowed(frozenset(classes), {})
    classes.add("app")
    user = busy(host)
    if not user:
        return Allowed(frozenset(classes | {"memory", "clocks"}))
    why = {name: f"needs --allow {name}: the node is busy ({user})" for name in ("memory", "clocks")}
    return Allowed(frozenset(classes), why)


def busy(host: Host) -> str:
    """Who keeps the node from being idle, in words; empty when it is idle. Not allowed to look counts as busy."""
    if host.kind == "image":
        return ""
    try:
        if not list(_device_nodes(host)):
            return ""
        return next(_users(host), "")
    except PermissionError:
        return "not allowed to see who has a GPU or RDMA device open"
    except Unrecorded as gap:
        return str(gap)


def _device_nodes(host: Host) -> Iterator[str]:
    for pattern in DEVICES:
        folder = pattern.rpartition("/")[0]
        try:
            names = host.list(folder) if "*" in pattern else [pattern.rpartition("/")[2]]
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from (
            f"{folder}/{n}"
            for n in names
            if fnmatch.fnmatchcase(f"{folder}/{n}", pattern) and host.exists(f"{folder}/{n}")
        )


def _users(host: Host) -> Iterator[str]:
    short = {name[:15] for name in INFRASTRUCTURE}
    for pid in filter(str.isdigit, host.list("/proc")):
        try:
            handles = host.list(f"/proc/{pid}/fd")
            links = [_link(host, f"/proc/{pid}/fd/{handle}") for handle in handles]
            open_device = next((link for link in links if any(fnmatch.fnmatchcase(link, p) for p in DEVICES)), "")
            name = host.peek(f"/proc/{pid}/comm").strip()
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            continue
        if open_device and name not in short:
            yield f"{name} {pid} has {open_device} open"


def _link(host: Host, path: str) -> str:
    try:
        return host.link(path)
    except (FileNotFoundError, ProcessLookupError, OSError):
        return ""
