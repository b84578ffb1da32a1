"""Files below a root, resolved inside it.

A path is walked one component at a time on directory handles, so that links, absolute ones included, end
inside the root (chroot semantics) and no one can swap a component between the look and the write.
Every write of the product goes through the functions of this module: that is the door.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator

from tuner.host.replacing import fill, inherit, sync_directory

LIMIT = 4 * 1024 * 1024
"""Largest file that is read, in bytes: nothing tuner judges is near it."""

LINKS = 40
"""Links followed in one path before ELOOP, as the kernel does."""

BESIDE = ".tuner-new"
"""Suffix of the file that a replacement is written to before the rename."""


DEEPEST = 3
"""Levels of control groups below that of a service that are looked into."""


Read = Callable[[str], bytes]
Listed = Callable[[str], list[str]]


def members(group: str, name: str, read: Read, listed: Listed, gone: tuple[type[Exception], ...]) -> list[int]:
    """PIDs in a control group and below, as Tree.processes has them, by a door's own looks; `gone` is what they raise.

    A group below that cannot be read has none; the group itself raises.
    """
    found: dict[int, bytes] = {}
    groups = [(group, 0)]
    while groups:
        here, depth = groups.pop()
        try:
            pids = read(f"{here}/cgroup.procs").split()
        except gone:
            if not depth:
                raise
            continue
        for pid in map(int, pids):
            found[pid] = b""
            with contextlib.suppress(*gone):
                found[pid] = read(f"/proc/{pid}/comm").strip()
        if depth < DEEPEST:
            groups += [(f"{here}/{below}", depth + 1) for below in listed(here) if _is_group(below)]
    return sorted([pid for pid, comm in found.items() if comm == name.encode()[:15]] or found)


def _is_group(name: str) -> bool:
    """Whether a name in a control group is that of a group, not of a file."""
    return "." not in name or name.endswith((".slice", ".scope", ".service"))


class Lost(FileNotFoundError):
    """ENOENT, with `real`: the first component that is not there, links resolved."""

    def __init__(self, real: str) -> None:
        super().__init__(errno.ENOENT, os.strerror(errno.ENOENT), real)
        self.real = real


def fault(number: int, path: str) -> OSError:
    """The OSError of `number` (its subclass, as Python picks it) on `path`."""
    return OSError(number, os.strerror(number), path)


def under_kernel(path: str) -> bool:
    """Whether `path` is a kernel file: these are written in place and never created."""
    return path.startswith(("/proc/", "/sys/"))


class Tree:
    """The files below `root`. Paths are absolute, as the host itself names them."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.native = root == "/"

    @contextlib.contextmanager
    def at(self, path: str, follow: bool = True) -> Iterator[tuple[int, str, str]]:
        """Yields (handle of the directory, last name, real path); with `follow` the last name is no link.

        Raises Lost for a component that is not there, OSError (ENOTDIR, ELOOP, EACCES) as the kernel does.
        """
        todo = deque(part for part in path.split("/") if part not in ("", "."))
        handles = [os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        names: list[str] = []
        links = 0
        try:
            while todo:
                name = todo.popleft()
                if name == "..":
                    if names:
                        names.pop()
                        os.close(handles.pop())
                    continue
                target = _link(handles[-1], name, names)
                if target is not None and (todo or follow):
                    links += 1
                    if links > LINKS:
                        raise fault(errno.ELOOP, path)
                    if target.startswith("/"):
                        while names:
                            names.pop()
                            os.close(handles.pop())
                    todo.extendleft(part for part in reversed(target.split("/")) if part not in ("", "."))
                    continue
                if not todo:
                    yield handles[-1], name, "/" + "/".join([*names, name])
                    return
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    handles.append(os.open(name, flags, dir_fd=handles[-1]))
                except FileNotFoundError:
                    raise Lost("/" + "/".join([*names, name])) from None
                names.append(name)
            yield handles[-1], ".", "/" + "/".join(names)
        finally:
            for handle in handles:
                os.close(handle)

    def read(self, path: str, limit: int = LIMIT, enough: int | None = None) -> bytes:
        """The content of a regular file, the first `enough` bytes of it if that is given.

        EISDIR, EFBIG (over `limit`) and the kernel's own errnos are raised.
        """
        if self.native:
            return _slurp(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), path, limit, enough)
        with self.at(path) as (handle, name, real):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            try:
                opened = os.open(name, flags, dir_fd=handle)
            except FileNotFoundError:
                raise Lost(real) from None
            return _slurp(opened, real, limit, enough)

    def head(self, path: str, size: int) -> bytes:
        """The first `size` bytes of a regular file."""
        return self.read(path, enough=size)

    def filled(self, path: str) -> bool:
        """Whether a regular file has any content."""
        return bool(self.read(path, enough=1))

    def has_line(self, path: str, line: bytes) -> bool:
        """Whether `line` is one of the lines of a regular file."""
        return line in self.read(path).split(b"\n")

    def lines(self, path: str, number: int, word: bytes) -> list[bytes]:
        """The lines of which field `number`, counted from 0, is `word`."""
        return [row for row in self.read(path).split(b"\n") if row.split()[number : number + 1] == [word]]

    def processes(self, group: str, name: str) -> list[int]:
        """PIDs in a control group and three levels below: those with that name (comm) or, if none has it, all."""
        return members(group, name, self.read, self.list, (OSError,))

    def unnoted(self) -> contextlib.AbstractContextManager[None]:
        """What is read inside is no evidence (tuner.evidence)."""
        return contextlib.nullcontext()

    def outside(self, path: str) -> None:
        """Says that a file of this machine, outside the root, takes part in an answer (tuner.evidence)."""

    def list(self, path: str) -> list[str]:
        """The sorted names in a directory."""
        if self.native:
            return sorted(os.listdir(path))
        with self.at(path) as (handle, name, real):
            try:
                opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            except FileNotFoundError:
                raise Lost(real) from None
            try:
                return sorted(os.listdir(opened))
            finally:
                os.close(opened)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """What stat(2) or, with follow=False, lstat(2) says."""
        if self.native:
            return os.stat(path, follow_symlinks=follow)
        with self.at(path, follow) as (handle, name, real):
            try:
                return os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:
                raise Lost(real) from None

    def read_only(self, path: str) -> bool:
        """Whether the file system that holds the path is mounted read-only."""
        if self.native:
            return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        with self.at(path) as (handle, name, _):
            opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            try:
                return bool(os.statvfs(opened).f_flag & os.ST_RDONLY)
            finally:
                os.close(opened)

    def link(self, path: str) -> str:
        """The text of a symbolic link; OSError EINVAL where the path is none."""
        if self.native:
            return os.readlink(path)
        with self.at(path, follow=False) as (handle, name, real):
            try:
                return os.readlink(name, dir_fd=handle)
            except FileNotFoundError:
                raise Lost(real) from None

    def real(self, path: str) -> str:
        """The path with every link resolved inside root; the last component need not exist."""
        with self.at(path) as (_, _, real):
            return real

    def write(self, path: str, data: bytes) -> None:
        """Writes a kernel file as it stands: one write(2) at offset 0, no O_CREAT, no truncation."""
        with self.at(path) as (handle, name, real):
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            opened = os.open(name, flags, dir_fd=handle)
            try:
                if os.write(opened, data) != len(data):
                    raise fault(errno.EIO, real)
            finally:
                os.close(opened)

    def put(self, path: str, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
        """Creates or replaces a file whole: a new file beside it, fsync, rename. Refuses a link or a device (ELOOP).

        Mode is set as given; owner and SELinux label are kept from the file that is replaced unless given.
        """
        with self.at(path, follow=False) as (handle, name, real):
            if under_kernel(real):
                raise fault(errno.EPERM, real)
            label, owner = inherit(handle, name, real, owner)
            fresh = name + BESIDE
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=handle)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            opened = os.open(fresh, flags, 0o600, dir_fd=handle)
            try:
                try:
                    fill(opened, data, mode, owner, label)
                finally:
                    os.close(opened)
                os.rename(fresh, name, src_dir_fd=handle, dst_dir_fd=handle)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=handle)
                raise
            sync_directory(handle)

    def append(self, path: str, data: bytes) -> None:
        """Appends to an existing file and waits until it is on the disk; nothing is left of a write that failed."""
        with self.at(path, follow=False) as (handle, name, real):
            opened = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            try:
                size = os.fstat(opened).st_size
                try:
                    if os.write(opened, data) != len(data):
                        raise fault(errno.ENOSPC, real)
                    os.fsync(opened)
                except OSError:
                    os.ftruncate(opened, size)
                    raise
            finally:
                os.close(opened)

    def truncate(self, path: str, size: int) -> None:
        """Cuts a file of ours to `size` bytes: what a crash left half-written at its end goes."""
        with self.at(path, follow=False) as (handle, name, _):
            opened = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            try:
                os.ftruncate(opened, size)
            finally:
                os.close(opened)

    def lock_file(self, path: str) -> int:
        """Opens a file for flock, creating it; never through a link."""
        with self.at(path, follow=False) as (handle, name, _):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=handle)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Makes one directory with just `mode`, whatever the umask."""
        with self.at(path, follow=False) as (handle, name, _):
            os.mkdir(name, mode, dir_fd=handle)
            os.chmod(name, mode, dir_fd=handle)

    def symlink(self, path: str, to: str) -> None:
        """Makes a symbolic link; EEXIST where anything is there, EPERM for a directory of the kernel."""
        with self.at(path, follow=False) as (handle, name, real):
            if under_kernel(real):
                raise fault(errno.EPERM, real)
            os.symlink(to, name, dir_fd=handle)
            sync_directory(handle)

    def rmdir(self, path: str) -> None:
        """Removes one empty directory."""
        with self.at(path, follow=False) as (handle, name, _):
            os.rmdir(name, dir_fd=handle)

    def unlink(self, path: str) -> None:
        """Removes one file or link."""
        with self.at(path, follow=False) as (handle, name, _):
            os.unlink(name, dir_fd=handle)
            sync_directory(handle)


def _link(handle: int, name: str, names: list[str]) -> str | None:
    try:
        return os.readlink(name, dir_fd=handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTDIR):
            return None
        raise fault(error.errno or errno.EIO, "/" + "/".join([*names, name])) from None


def _slurp(opened: int, path: str, limit: int, enough: int | None) -> bytes:
    try:
        status = os.fstat(opened)
        if stat.S_ISDIR(status.st_mode):
            raise fault(errno.EISDIR, path)
        if not stat.S_ISREG(status.st_mode):
            raise fault(errno.EINVAL, path)
        if enough is not None:
            return os.read(opened, enough)
        pieces = []
        size = 0
        while piece := os.read(opened, 65536):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise fault(errno.EFBIG, path)
        return b"".join(pieces)
    finally:
        os.close(opened)
