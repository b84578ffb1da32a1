"""A folder as a file system of which one file never answers: python -m tests.slurm.hang FOLDER MOUNTPOINT NAME FLAG.

While FLAG exists, a read of NAME is taken and not answered: whoever reads it is in state D and takes no signal, as
with a device whose driver is stuck. All else is passed on. Ends when it is killed, which lets its readers go.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
UNUSABLE = 77


class Hanging:
    """The callbacks of one mount."""

    use_ns = True

    def __init__(self, folder: str, name: str, flag: str) -> None:
        self.folder, self.name, self.flag = folder, f"/{name}", flag

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """lstat(2)."""
        found = os.lstat(self.folder + path)
        return {f"st_{name}": getattr(found, f"st_{name}") for name in ("mode", "nlink", "uid", "gid", "size")}

    def readdir(self, path: str, fh: int) -> list[str]:
        """The names."""
        return [".", "..", *os.listdir(self.folder + path)]

    def readlink(self, path: str) -> str:
        """Where a link points."""
        return os.readlink(self.folder + path)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """The content, or nothing for ever."""
        while path == self.name and os.path.exists(self.flag):
            time.sleep(0.05)
        with open(self.folder + path, "rb") as file:
            file.seek(offset)
            return file.read(size)


def main(folder: str, mountpoint: str, name: str, flag: str) -> int:
    """Serves until it is killed, or whoever started it is."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        fuse = importlib.import_module("mfusepy")
    except (ImportError, OSError) as error:
        sys.stderr.write(f"mfusepy: {error}\n")
        return UNUSABLE
    options = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0, "fsname": "hanging"}
    try:
        fuse.FUSE(Hanging(folder, name, flag), mountpoint, foreground=True, nothreads=False, direct_io=True, **options)
    except RuntimeError as error:
        sys.stderr.write(f"libfuse: exit code {error}\n")
        return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
