"""A door that notes what goes through it: every read, listing, link, stat, command and answer of NVML, or its errno.

What it noted is a manifest (tuner.host.manifest): links are kept where they were met, files where they really are, so
that a tree made of it walks the same way. It never writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar, cast

from tuner.host.door import Host, Unrecorded
from tuner.host.manifest import Entry, of
from tuner.host.nvml import Nvml
from tuner.host.recorded import MARK, OWN
from tuner.host.replay import RecordingNvml, command_path
from tuner.host.shell import Ran
from tuner.host.tree import LINKS, fault, members

Found = TypeVar("Found")

LARGEST = 256 * 1024
"""Largest file that is kept, in bytes."""

CONFIG, HEADER = re.compile(r"/sys/devices/pci.*/config"), 64
"""The configuration space of a PCI function, and the bytes of it that anybody may read.

Those behind are left out: a serial number lies there as bytes, often a NIC's MAC address, where no scrubbing finds it
(PCI Express Base Specification, Device Serial Number Capability).
"""

WHOLE = 32 * 1024 * 1024
"""Most bytes that are kept of all files together."""

LONGEST = 255
"""Bytes of a file's name: a command that is longer has no place in a tree."""

PINNED = frozenset({"/proc/self", "/proc/thread-self", "/proc/net", "/proc/mounts"})
"""Links into the directory of the process that reads: kept as if they were no links."""


class RecordingHost(Host):
    """Another host, read through; `entries` is what was noted so far, `left_out` what could not be kept and why."""

    def __init__(self, inner: Host) -> None:
        super().__init__(inner.root, inner.kind, inner.name, inner.kernel)
        self.inner = inner
        self.entries: dict[str, Entry] = {}
        self.left_out: dict[str, str] = {}
        self._stats: dict[str, os.stat_result] = {}
        self._plain: set[str] = set()
        self._sealed: set[str] = set()
        self._bytes = 0
        self._known: dict[tuple[str, str, bool], object] = {}

    def _once(self, kind: str, path: str, follow: bool, look: Callable[[str, bool], Found]) -> Found:
        """What the first such look gave, or that there is nothing; any other failure may be another one next time."""
        key = (kind, path, follow)
        if key not in self._known:
            try:
                self._known[key] = look(path, follow)
            except (FileNotFoundError, NotADirectoryError) as gone:
                self._known[key] = gone
        found = self._known[key]
        if isinstance(found, OSError):
            raise found.with_traceback(None)
        return cast("Found", found)

    def read(self, path: str) -> bytes:
        """As Host.read."""
        return self._once("read", path, True, self._read)

    def _read(self, path: str, _: bool) -> bytes:
        with self._at(path) as real:
            data = self.inner.read(path)
            with contextlib.suppress(OSError, Unrecorded):
                self._keep(real, data, self.inner.stat(path))
            return data

    def head(self, path: str, size: int) -> bytes:
        """As Host.head; the whole file is kept."""
        return self.read(path)[:size]

    def filled(self, path: str) -> bool:
        """As Host.filled; the whole file is kept."""
        return bool(self.read(path))

    def has_line(self, path: str, line: str) -> bool:
        """As Host.has_line; the whole file is kept."""
        return line in self.text(path).split("\n")

    def lines(self, path: str, number: int, word: str) -> list[str]:
        """As Host.lines; the whole file is kept."""
        return [row for row in self.text(path).split("\n") if row.split()[number : number + 1] == [word]]

    def processes(self, group: str, name: str) -> list[int]:
        """As Host.processes; what it reads is kept."""
        return members(group, name, self.read, self.list, (OSError, Unrecorded))

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """As Host.stat; what is only ever asked this way is read in `manifest`."""
        return self._once("stat", path, follow, self._stat)

    def _stat(self, path: str, follow: bool) -> os.stat_result:
        with self._at(path, follow) as real:
            found = self.inner.stat(path, follow)
            self._stats[real] = found
            return found

    def link(self, path: str) -> str:
        """As Host.link."""
        return self._once("link", path, False, self._readlink)

    def _readlink(self, path: str, _: bool) -> str:
        with self._at(path, follow=False, soft=errno.EINVAL):
            return self.inner.link(path)

    def list(self, path: str) -> list[str]:
        """As Host.list."""
        with self._at(path) as real:
            names = self.inner.list(path)
            mode = 0o755
            with contextlib.suppress(OSError, Unrecorded):
                mode = self.inner.stat(path).st_mode & 0o1777
            self._put(real, Entry("dir", mode, names=tuple(n for n in names if _printable(n))))
            return names

    def writable(self, path: str) -> bool:
        """As Host.writable; a file on a file system that is mounted read-only is kept without its write bits."""
        with self._at(path) as real:
            self._stats[real] = self.inner.stat(path)
            able = self.inner.writable(path)
            if not able:
                self._sealed.add(real)
            return able

    @cached_property
    def nvml(self) -> Nvml:
        """As Host.nvml; each answer and each error of it is kept."""
        return RecordingNvml(MARK, self.inner, self._told)

    def command(self, argv: Sequence[str], timeout: float) -> Ran:
        """As Host.command; its output is kept. One that cannot be started is absent, one that hung an errno."""
        path = command_path(MARK, argv)
        try:
            ran = self.inner.command(argv, timeout)
        except OSError as error:
            self._told(path, error)
            raise
        if ran.code is not None:
            self._told(path, f"exit {ran.code}\n{ran.out}")
        else:
            hung = "did not end" in ran.failure
            self._told(path, OSError(errno.ETIMEDOUT if hung else errno.ENOENT, ran.failure))
        return ran

    def _told(self, path: str, answer: str | OSError) -> None:
        """What a program or NVML said, as a recorded host has it."""
        if not _printable(path) or len(os.fsencode(posixpath.basename(path))) > LONGEST:
            return
        if isinstance(answer, str):
            data = answer.encode("utf-8", "surrogateescape")
            if len(data) > LARGEST or self._bytes + len(data) > WHOLE:
                self.left_out[path] = f"{len(data)} bytes: too large to keep"
                return
            self._bytes += len(data)
            self.entries[path] = Entry("file", 0o644, data)
        elif answer.errno == errno.ENOENT:
            self.entries[path] = Entry("absent")
        else:
            number = answer.errno if answer.errno in errno.errorcode else errno.EIO
            self.entries[path] = Entry("errno", errno=number or errno.EIO)

    def write(self, path: str, text: str) -> None:
        """Refused: what is recorded is only read."""
        raise fault(errno.EROFS, path)

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
        """Refused too."""
        raise fault(errno.EROFS, path)

    def manifest(self) -> dict[str, Entry]:
        """What was noted, with what was only looked at read too, and nothing below what has nothing below it."""
        for path, found in list(self._stats.items()):
            if path not in self.entries:
                self._read_too(path, found)
        self._list_above()
        entries = {p: _sealed(e) if p in self._sealed else e for p, e in self.entries.items()}
        for path in list(entries):
            if entries.get(path, Entry("absent")).kind != "absent":
                _clear(entries, path)
        return entries

    def _list_above(self) -> None:
        """A folder of which only absent files are known would not be there in a copy: its listing is kept."""
        implied = of(self.entries).implied
        for path in [posixpath.dirname(path) for path, entry in self.entries.items() if entry.kind == "absent"]:
            if path not in implied and path not in self.entries:
                with contextlib.suppress(OSError, Unrecorded):
                    self.list(path)

    def _read_too(self, path: str, found: os.stat_result) -> None:
        with contextlib.suppress(OSError, Unrecorded):
            if stat.S_ISDIR(found.st_mode):
                self.list(path)
            elif stat.S_ISREG(found.st_mode) and found.st_mode & 0o444:
                self.read(path)
            elif not stat.S_ISLNK(found.st_mode):
                self._put(path, Entry("file", stat.S_IMODE(found.st_mode) & 0o777))

    @contextlib.contextmanager
    def _at(self, path: str, follow: bool = True, soft: int = 0) -> Iterator[str]:
        """Yields where the path leads, and notes why it cannot be read; the errno `soft` says nothing of the file."""
        real = self._walk(path, follow)
        try:
            yield real
        except OSError as error:
            if error.errno != soft:
                self._failed(real, path, error.errno or errno.EIO)
            raise

    def _walk(self, path: str, follow: bool) -> str:
        """The real path; links that are met are noted. Of a path that is not there, the first part that is not."""
        todo = deque(part for part in path.split("/") if part not in ("", "."))
        real, links = "", 0
        while todo:
            name = todo.popleft()
            if name == "..":
                real = real.rpartition("/")[0]
                continue
            here = f"{real}/{name}"
            text = self._link_at(here)
            if text is None or links >= LINKS or not (todo or follow):
                real = here
                continue
            links += 1
            if text.startswith("/"):
                real = ""
            todo.extendleft(part for part in reversed(text.split("/")) if part not in ("", "."))
        return real or "/"

    def _link_at(self, path: str) -> str | None:
        """The text of a link, noted; None for what is none."""
        if path in self._plain or path in PINNED:
            return None
        known = self.entries.get(path)
        if known is not None and known.kind == "link":
            return known.data.decode("utf-8", "surrogateescape")
        try:
            text = self.inner.link(path)
        except (OSError, Unrecorded) as error:
            if getattr(error, "errno", 0) == errno.EINVAL and not path.startswith("/proc/"):
                self._plain.add(path)
            return None
        mode = stat.S_IMODE(self.inner.stat(path, follow=False).st_mode)
        self._put(path, Entry("link", mode, text.encode("utf-8", "surrogateescape")))
        return text

    def _keep(self, path: str, data: bytes, found: os.stat_result) -> None:
        data = data[:HEADER] if CONFIG.fullmatch(path) else data
        kept = self.entries.get(path)
        size = len(data) - len(kept.data if kept else b"")
        if len(data) > LARGEST or self._bytes + size > WHOLE:
            self.left_out[path] = f"{len(data)} bytes: too large to keep"
            return
        self._bytes += size
        self._put(path, Entry("file", stat.S_IMODE(found.st_mode) & 0o777, data))

    def _failed(self, real: str, path: str, number: int) -> None:
        """Not there, or an errno; a file that nobody may read by its mode is a file of that mode."""
        if number in (errno.ENOENT, errno.ENOTDIR):
            self._put(self._missing(real), Entry("absent"))
            return
        if number == errno.EFBIG:
            self.left_out[real] = "too large to read"
            return
        with contextlib.suppress(OSError, Unrecorded):
            found = self.inner.stat(path)
            if number == errno.EACCES and stat.S_ISREG(found.st_mode) and not found.st_mode & 0o444:
                self._put(real, Entry("file", stat.S_IMODE(found.st_mode) & 0o777))
                return
        self._put(real, Entry("errno", errno=number if number in errno.errorcode else errno.EIO))

    def _missing(self, real: str) -> str:
        """The outermost part of a real path that is not there."""
        parts = real.split("/")[1:]
        for depth in range(1, len(parts)):
            path = "/" + "/".join(parts[:depth])
            with contextlib.suppress(Unrecorded, OSError):
                if not self.inner.exists(path):
                    return path
        return real

    def _put(self, path: str, entry: Entry) -> None:
        """The state of tuner itself is not kept; nor is a name that a manifest cannot hold."""
        own = any(f"{path}/".startswith(f"{folder}/") for folder in OWN)
        if own or path == "/" or path.startswith(f"/{MARK}") or not _printable(path):
            return
        if entry.kind == "link" and not _printable(entry.data.decode("utf-8", "surrogateescape")):
            return
        self.entries[path] = entry


def _printable(text: str) -> bool:
    """Whether it can be one line of a manifest."""
    return "\n" not in text and "\r" not in text and "\0" not in text


def _sealed(entry: Entry) -> Entry:
    return Entry(entry.kind, entry.mode & ~0o222, entry.data, entry.names, entry.errno)


def _clear(entries: dict[str, Entry], path: str) -> None:
    """Takes out what stands above `path` and cannot have anything below it: it changed while it was read."""
    parent = posixpath.dirname(path)
    while parent != "/":
        above = entries.get(parent)
        if above is not None and above.kind in ("absent", "errno"):
            del entries[parent]
        elif above is not None and above.kind != "dir":
            del entries[path]
            return
        parent = posixpath.dirname(parent)
