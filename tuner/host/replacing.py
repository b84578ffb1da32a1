"""The parts of replacing a file whole: what it inherits from the old one, its content, and the folder on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import stat


def inherit(
    handle: int, name: str, real: str, owner: tuple[int, int] | None
) -> tuple[bytes | None, tuple[int, int] | None]:
    """(SELinux label, owner) of the file that is about to be replaced."""
    try:
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return None, owner
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), real)
    label = None
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
    try:
        with contextlib.suppress(OSError):
            label = os.getxattr(opened, "security.selinux")
    finally:
        os.close(opened)
    return label, owner or (status.st_uid, status.st_gid)


def fill(opened: int, data: bytes, mode: int, owner: tuple[int, int] | None, label: bytes | None) -> None:
    """Writes it all, with mode, owner and SELinux label, and waits until it is on the disk."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(opened, rest) :]
    if owner is not None and owner != (os.geteuid(), os.getegid()):
        os.fchown(opened, *owner)
    os.fchmod(opened, mode)
    if label is not None:
        os.setxattr(opened, "security.selinux", label)
    os.fsync(opened)


def sync_directory(handle: int) -> None:
    """Waits until the folder's names are on the disk."""
    with contextlib.suppress(OSError):
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
