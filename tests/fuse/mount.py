"""A recorded host as a file system: python -m tests.fuse.mount ROOT MOUNTPOINT, until it is unmounted.

Any program then meets the host's rules at write(2), as it would meet the kernel's. `.tuner-host` is not shown. A path
that nobody recorded answers EACCES: nobody may look, so that it is neither there nor not there. A kernel file of which
only the failure of a read was recorded is a file that fails so; a name below which only absences were recorded is a
directory. An absolute link is shown as it is, so that a shell that follows one leaves the mount; tuner resolves links
inside its root.

Exit code UNUSABLE: this machine cannot mount it, and stderr says why.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.host import RecordedHost, Unrecorded
from tuner.host.recorded import MARK
from tuner.host.tree import fault, under_kernel

UNUSABLE = 77
PR_SET_PDEATHSIG = 1


class Mounted:
    """The callbacks of one mount; each raises OSError with the errno that the caller of the system call gets."""

    use_ns = True

    def __init__(self, host: RecordedHost) -> None:
        self.host = host
        host.ready()
        self.above = {path[:place] for path in host.manifest.entries for place, c in enumerate(path) if c == "/"}
        self.reads: dict[int, bytes] = {}
        self.handles = 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """lstat(2). The kernel's own sizes: 0 below /proc, a page below /sys, whatever is read."""
        if self._fails(path):
            return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1}
        with self._answered(path):
            try:
                found = self.host.stat(path, follow=False)
            except Unrecorded:
                if path not in self.above:
                    raise
                return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
        status = {f"st_{name}": getattr(found, f"st_{name}") for name in ("mode", "nlink", "uid", "gid", "size")}
        status |= {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
        if stat.S_ISREG(status["st_mode"]) and under_kernel(path):
            status["st_size"] = 4096 if path.startswith("/sys/") else 0
        return status

    def readdir(self, path: str, fh: int) -> list[str]:
        """The recorded listing."""
        with self._answered(path):
            return [".", "..", *self.host.list(path)]

    def readlink(self, path: str) -> str:
        """The link's text."""
        with self._answered(path):
            return self.host.link(path)

    def open(self, path: str, flags: int) -> int:
        """As the kernel: no write without a write bit and no read without a read bit, for root neither."""
        how = flags & os.O_ACCMODE
        if under_kernel(path):
            mode = self.getattr(path)["st_mode"]
            if (how != os.O_RDONLY and not mode & 0o222) or (how != os.O_WRONLY and not mode & 0o444):
                raise fault(errno.EACCES, path)
        elif flags & os.O_TRUNC:
            self.truncate(path, 0)
        self.handles += 1
        return self.handles

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """A file as it is at the first read of this handle, and again from the start at offset 0."""
        if offset == 0 or fh not in self.reads:
            with self._answered(path):
                self.reads[fh] = self.host.read(path) if under_kernel(path) else self.host.read_journal(path)
        return self.reads[fh][offset : offset + size]

    def release(self, path: str, fh: int) -> int:
        """The handle is closed."""
        self.reads.pop(fh, None)
        return 0

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Below /proc and /sys one write of the rules engine; a parameter that is written further on ignores it."""
        with self._answered(path):
            if under_kernel(path):
                if offset == 0 or path.startswith("/sys/"):
                    self.host.write(path, data.decode("utf-8", "surrogateescape"))
            elif offset == self.host.stat(path).st_size:
                self.host.append(path, data)
            else:
                before = self.host.read_journal(path).ljust(offset, b"\0")
                self._replace(path, before[:offset] + data + before[offset + len(data) :])
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Nothing for a kernel file: `>` of a shell truncates it."""
        with self._answered(path):
            if not under_kernel(path):
                self.host.truncate(path, length)
        return 0

    def create(self, path: str, mode: int) -> int:
        """An empty ordinary file."""
        self._ordinary(path, errno.ENOENT if path.startswith("/proc/") else errno.EACCES)
        with self._answered(path):
            self.host.put(path, b"", stat.S_IMODE(mode))
        self.handles += 1
        return self.handles

    def mkdir(self, path: str, mode: int) -> int:
        """One directory."""
        self._ordinary(path, errno.ENOENT if path.startswith("/proc/") else errno.EPERM)
        with self._answered(path):
            self.host.mkdir(path, stat.S_IMODE(mode))
        return 0

    def unlink(self, path: str) -> int:
        """One ordinary file."""
        self._ordinary(path)
        with self._answered(path):
            self.host.unlink(path)
        return 0

    def rmdir(self, path: str) -> int:
        """One empty directory."""
        self._ordinary(path)
        with self._answered(path):
            self.host.rmdir(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        """Within the ordinary files."""
        for path in (old, new):
            self._ordinary(path)
        tree = self.host.tree
        with self._answered(old), tree.at(old, follow=False) as (here, one, _), tree.at(new, follow=False) as at:
            os.rename(one, at[1], src_dir_fd=here, dst_dir_fd=at[0])
        return 0

    def chmod(self, path: str, mode: int) -> int:
        """Of an ordinary file or directory."""
        self._ordinary(path)
        with self._answered(path), self.host.tree.at(path, follow=False) as (handle, name, _):
            os.chmod(name, stat.S_IMODE(mode), dir_fd=handle)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Of an ordinary file or directory."""
        self._ordinary(path)
        with self._answered(path), self.host.tree.at(path, follow=False) as (handle, name, _):
            os.chown(name, uid, gid, dir_fd=handle, follow_symlinks=False)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Times are not kept: no tuner sets any."""
        return 0

    def _replace(self, path: str, data: bytes) -> None:
        self.host.put(path, data, stat.S_IMODE(self.host.stat(path).st_mode))

    def _ordinary(self, path: str, number: int = errno.EPERM) -> None:
        """Nothing is made, removed or renamed below /proc and /sys: `number` says how the kernel refuses it."""
        if path in ("/proc", "/sys") or under_kernel(path):
            raise fault(number, path)

    def _fails(self, path: str) -> bool:
        """Whether of this path only the failure of a read was recorded, and nobody put a file there since."""
        entry = self.host.manifest.entries.get(path)
        return entry is not None and entry.kind == "errno" and not os.path.lexists(self.host.root + path)

    @contextmanager
    def _answered(self, path: str) -> Iterator[None]:
        if path == f"/{MARK}" or path.startswith(f"/{MARK}/"):
            raise fault(errno.ENOENT, path)
        try:
            yield
        except Unrecorded:
            raise fault(errno.EACCES, path) from None


def main(root: str, mountpoint: str) -> int:
    """Serves the mount until it is gone or whoever started it is: libfuse unmounts on SIGTERM."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    try:
        fuse = importlib.import_module("mfusepy")
    except (ImportError, OSError) as error:
        sys.stderr.write(f"mfusepy: {error}\n")
        return UNUSABLE
    mounted = Mounted(RecordedHost(root))
    options = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0, "auto_unmount": True, "fsname": "recorded"}
    try:
        fuse.FUSE(mounted, mountpoint, foreground=True, nothreads=True, direct_io=True, **options)
    except RuntimeError as error:
        sys.stderr.write(f"libfuse: exit code {error}\n")
        return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
