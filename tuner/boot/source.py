"""Whether a node boots from its own disk: what is written to the root of one that boots from an image does not last."""

from __future__ import annotations

from tuner.host.door import Host, Unrecorded

IMAGE_TYPES = frozenset({"tmpfs", "ramfs", "rootfs", "overlay", "aufs", "squashfs", "nfs", "nfs4", "erofs"})
DISK_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"})
PROVISIONED = {
    "/warewulf/config": "Warewulf: warewulf/warewulf overlays/wwinit",
    "/cm/local/apps/cmd": "NVIDIA Base Command Manager: its node installer writes the disk anew from the image",
}
"""What provisioning leaves on a node that it makes from an image at each boot, whatever the root lies on."""


def not_disk(host: Host, told: str = "") -> str:
    """Why nothing can be said of the next boot by files on this node; empty where it boots from its disk.

    `told` is what site.yaml says (`disk` or `image`); without it the root's file system and the marks of provisioning
    tell (proc_pid_mountinfo(5)).
    """
    if told:
        return "" if told == "disk" else "site.yaml says that this node boots from an image"
    try:
        for path, what in PROVISIONED.items():
            if host.exists(path):
                return f"the node boots from an image ({what})"
        kind = _root_type(host)
    except (OSError, Unrecorded) as error:
        return f"whether the node boots from its disk is not known ({error}): boots_from in site.yaml"
    if kind in IMAGE_TYPES:
        return f"the node boots from an image (its root is {kind}); if it does not: boots_from: disk in site.yaml"
    if kind not in DISK_TYPES:
        return f"whether the node boots from its disk is not known (its root is {kind}): boots_from in site.yaml"
    return ""


def _root_type(host: Host) -> str:
    """The file system that is mounted last on /."""
    lines = host.lines("/proc/self/mountinfo", 4, "/")
    fields = lines[-1].split() if lines else []
    if "-" not in fields[:-1]:
        raise OSError(0, "no root among the mounts")
    return fields[fields.index("-") + 1]
