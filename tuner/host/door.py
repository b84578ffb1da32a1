"""The door to a live host or an image: files below a root, errno as the kernel gave it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from tuner.host.nvml import Nvml
from tuner.host.shell import Ran, run
from tuner.host.tree import Tree, fault, under_kernel

Kind = Literal["live", "image", "recorded"]


class Unrecorded(Exception):
    """A recorded host was asked for a path that nobody recorded: never the same as 'not there'."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"not recorded {path}")


class Host:
    """A host's files. Paths are absolute, as the host names them; errors are OSError with the kernel's errno.

    `name` is what outputs call it, `kernel` the running release ("" for an image).
    """

    def __init__(self, root: str, kind: Kind, name: str, kernel: str) -> None:
        self.root, self.kind, self.name, self.kernel = root, kind, name, kernel
        self.tree = Tree(root)

    def __str__(self) -> str:
        return f"{self.kind.upper()} {self.name}"

    def release(self) -> tuple[int, int] | None:
        """(major, minor) of the running kernel; None where there is none (an image)."""
        parts = self.kernel.split(".")
        if len(parts) < 2 or not parts[0].isdigit():
            return None
        minor = "".join(c for c in parts[1] if c.isdigit())
        return int(parts[0]), int(minor or 0)

    def read(self, path: str) -> bytes:
        """The bytes of a file; a read of a kernel file is evidence for a verdict."""
        return self.tree.read(path)

    def text(self, path: str) -> str:
        """The file as UTF-8; bytes that are none survive as surrogates."""
        return self.read(path).decode("utf-8", "surrogateescape")

    def peek(self, path: str) -> str:
        """Text that changes on its own (counters, boot id): read, but no evidence."""
        with self.tree.unnoted():
            return self.text(path)

    def head(self, path: str, size: int) -> bytes:
        """The first `size` bytes of a file whose rest changes on its own: they alone are evidence."""
        return self.tree.head(path, size)

    def filled(self, path: str) -> bool:
        """Whether a file has any content: that alone is evidence, not what it is."""
        return self.tree.filled(path)

    def has_line(self, path: str, line: str) -> bool:
        """Whether `line` is one of the file's: that alone is evidence, not the others."""
        return self.tree.has_line(path, line.encode("utf-8", "surrogateescape"))

    def lines(self, path: str, number: int, word: str) -> list[str]:
        """The lines of which field `number`, counted from 0, is `word`: they alone are evidence."""
        found = self.tree.lines(path, number, word.encode("utf-8", "surrogateescape"))
        return [line.decode("utf-8", "surrogateescape") for line in found]

    def processes(self, group: str, name: str) -> list[int]:
        """PIDs in a control group and below: those with that name or, if none has it, all; that list is evidence."""
        return self.tree.processes(group, name)

    @cached_property
    def nvml(self) -> Nvml:
        """NVIDIA's management library; an image has none."""
        if self.kind != "live":
            raise fault(errno.ENOSYS, "NVML")
        from tuner.host.nvml_live import LiveNvml

        return LiveNvml()

    def let_go(self) -> None:
        """Ends what is kept open between two questions to a tool."""
        if "nvml" in self.__dict__:
            self.nvml.close()

    def command(self, argv: Sequence[str], timeout: float) -> Ran:
        """What a program of the host says; it must not change anything. Nothing of it is evidence."""
        return (
            run(list(argv), timeout) if self.kind == "live" else Ran(None, "", "", f"{argv[0]}: no command runs here")
        )

    def outside(self, path: str) -> None:
        """Says before it is read that a file of this machine, not of the host, takes part in an answer."""
        self.tree.outside(path)

    def list(self, path: str) -> list[str]:
        """The sorted names in a directory."""
        return self.tree.list(path)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """stat(2), or lstat(2) with follow=False."""
        return self.tree.stat(path, follow)

    def exists(self, path: str) -> bool:
        """Whether the path is there; Unrecorded is raised, not answered."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def writable(self, path: str) -> bool:
        """Whether a write could work at all: a write bit, and a file system that is not mounted read-only."""
        if self.kind == "live" and self.tree.read_only(path):
            return False
        return bool(stat.S_IMODE(self.stat(path).st_mode) & 0o222)

    def link(self, path: str) -> str:
        """The text of a symbolic link."""
        return self.tree.link(path)

    def ready(self) -> None:
        """Called once before the first write: what could stop a write half-way is found here."""

    def write(self, path: str, text: str) -> None:
        """Writes a kernel file (below /proc or /sys) in place."""
        if not under_kernel(path):
            raise ValueError(f"{path} is no kernel file; use put")
        self.tree.write(path, text.encode("utf-8", "surrogateescape"))

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
        """Creates or replaces an ordinary file, whole or not at all."""
        if under_kernel(path):
            raise ValueError(f"{path} is a kernel file; use write")
        self.tree.put(path, data, mode, owner)

    def read_journal(self, path: str) -> bytes:
        """A file of ours, whatever its size."""
        return self.tree.read(path, 2**40)

    def append(self, path: str, data: bytes) -> None:
        """Appends to an existing file, on the disk when this returns."""
        self.tree.append(path, data)

    def truncate(self, path: str, size: int) -> None:
        """Cuts off the end of a file of ours."""
        self.tree.truncate(path, size)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Makes one directory."""
        self.tree.mkdir(path, mode)

    def lock_file(self, path: str) -> int:
        """A handle on a file of ours that is made if it is not there: for flock."""
        return self.tree.lock_file(path)

    def rmdir(self, path: str) -> None:
        """Removes one empty directory."""
        self.tree.rmdir(path)

    def symlink(self, path: str, to: str) -> None:
        """Makes a symbolic link that says `to`; EEXIST where anything is there."""
        if under_kernel(path):
            raise ValueError(f"{path} is a kernel file")
        self.tree.symlink(path, to)

    def unlink(self, path: str) -> None:
        """Removes one file."""
        self.tree.unlink(path)


def make_parents(host: Host, path: str, mode: int = 0o755) -> list[str]:
    """Makes the directories above `path` that are not there, outermost first; returns those it made."""
    missing = missing_parents(host, path)
    for directory in missing:
        host.mkdir(directory, mode)
    return missing


def missing_parents(host: Host, path: str) -> list[str]:
    """The directories above `path` that are not there, outermost first."""
    missing: list[str] = []
    parent = os.path.dirname(path)
    while parent != "/" and not host.exists(parent):
        missing.insert(0, parent)
        parent = os.path.dirname(parent)
    return missing
