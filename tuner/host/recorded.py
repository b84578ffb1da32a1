"""A recorded host: a tree made from a manifest, whose kernel files answer writes by rules.

What lies in the tree is the truth, hand edits and removals included. The manifest answers only for a path that is
not there; what it does not know is Unrecorded, never 'not there'. No call of this class touches the machine it runs
on outside the tree.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tuner import fastyaml
from tuner.errors import bad_input
from tuner.host import manifest as manifests
from tuner.host.door import Host, Unrecorded
from tuner.host.nvml import Nvml
from tuner.host.replay import RecordedNvml, command_path, ran
from tuner.host.shell import Ran
from tuner.host.tree import Lost, fault, under_kernel
from tuner.sim.engine import Engine

OWN = ("/run/tuner", "/var/lib/tuner", "/etc/tuner/applied")
"""Where tuner keeps its own state."""

MADE = ("/", "/run", "/var", "/var/lib")
"""Directories that every copy has, recorded or not."""

MARK = ".tuner-host"
"""The directory that makes a tree a recorded host: manifest, host.yaml, kernel.yaml, state."""


class RecordedHost(Host):
    """Files of a copied host below `root`."""

    def __init__(self, root: str) -> None:
        about = _about(root)
        super().__init__(root, "recorded", about["name"], about["kernel"])
        path = os.path.join(root, MARK, "manifest")
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                self.manifest = manifests.parse(file.read(), path)
        except OSError as error:
            raise bad_input(path, error.strerror or "unreadable", "make a new copy: tuner host copy NAME DIR") from None
        self.about = [os.path.join(root, MARK, name) for name in ("host.yaml", "manifest")]
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The rules of this host's kernel, loaded and checked at first use."""
        if self._engine is None:
            self._engine = Engine(self.tree, f"/{MARK}")
        return self._engine

    def ready(self) -> None:
        """Loads and checks the rules: a broken kernel.yaml ends the run before the first write."""
        _ = self.engine

    def read(self, path: str) -> bytes:
        """As Host.read; a path that is not in the tree is answered by the manifest.

        A kernel file without a read bit cannot be read, by root neither.
        """
        with self._recorded(path):
            self._readable(path)
            return super().read(path)

    def head(self, path: str, size: int) -> bytes:
        """As Host.head."""
        with self._recorded(path):
            self._readable(path)
            return super().head(path, size)

    def filled(self, path: str) -> bool:
        """As Host.filled."""
        with self._recorded(path):
            self._readable(path)
            return super().filled(path)

    def has_line(self, path: str, line: str) -> bool:
        """As Host.has_line."""
        with self._recorded(path):
            self._readable(path)
            return super().has_line(path, line)

    def lines(self, path: str, number: int, word: str) -> list[str]:
        """As Host.lines."""
        with self._recorded(path):
            self._readable(path)
            return super().lines(path, number, word)

    def processes(self, group: str, name: str) -> list[int]:
        """As Host.processes."""
        with self._recorded(group):
            return super().processes(group, name)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """As Host.stat."""
        with self._recorded(path):
            return super().stat(path, follow)

    def link(self, path: str) -> str:
        """As Host.link."""
        with self._recorded(path):
            return super().link(path)

    def list(self, path: str) -> list[str]:
        """As Host.list, plus recorded names that cannot lie in a tree (errno, not recorded themselves)."""
        with self._recorded(path):
            names = set(super().list(path))
            real = self.tree.real(path)
        if real == "/":
            names.discard(MARK)
        entries = self.manifest.entries
        if real in self.manifest.implied:
            raise Unrecorded(f"{path} (its listing)")
        if real in entries:
            below = {name: entries.get(posixpath.join(real, name)) for name in entries[real].names}
            names |= {name for name, entry in below.items() if entry is None or entry.kind == "errno"} - {
                name for name in below if posixpath.join(real, name) in self.manifest.implied
            }
        return sorted(names)

    @cached_property
    def nvml(self) -> Nvml:
        """As Host.nvml, out of files."""
        return RecordedNvml(MARK, self.text, self.engine.write)

    def command(self, argv: Sequence[str], timeout: float) -> Ran:
        """As Host.command, out of files: no program runs. Unrecorded for one that was not recorded."""
        path = command_path(MARK, argv)
        try:
            return ran(self.text(path))
        except FileNotFoundError:
            if self._known_absent(path):
                raise
            raise Unrecorded(path) from None

    def write(self, path: str, text: str) -> None:
        """Below /proc and /sys the host's own rules decide what a write does."""
        if not under_kernel(path):
            raise ValueError(f"{path} is no kernel file; use put")
        with self._recorded(path):
            if not self.writable(path):
                raise fault(errno.EACCES, path)
            self.engine.write(self.tree.real(path), text)

    @contextlib.contextmanager
    def _recorded(self, path: str) -> Iterator[None]:
        try:
            yield
        except Lost as lost:
            raise self._answer(lost, path) from None

    def _readable(self, path: str) -> None:
        if under_kernel(path) and not self.tree.stat(path).st_mode & 0o444:
            raise fault(errno.EACCES, path)

    def _known_absent(self, path: str) -> bool:
        """Recorded as not there, itself or a directory above it; or tuner's own state, which no capture knows."""
        if path == "/etc/tuner" or any(f"{path}/".startswith(f"{own}/") for own in OWN):
            return True
        while path not in ("/", "", "."):
            entry = self.manifest.entries.get(path)
            if entry is not None:
                return entry.kind == "absent"
            path = posixpath.dirname(path)
        return False

    def _answer(self, lost: Lost, path: str) -> Exception:
        """The right error for `path`, of which the tree does not have `lost.real` nor what is below it."""
        if self._known_absent(posixpath.normpath(path)):
            return lost
        entry = self.manifest.entries.get(lost.real)
        if entry is not None:
            return fault(entry.errno, lost.real) if entry.kind == "errno" else lost
        if lost.real in self.manifest.implied:
            return lost
        parent = posixpath.dirname(lost.real)
        listing = self.manifest.entries.get(parent)
        if listing is not None and listing.kind == "dir":
            return lost if posixpath.basename(lost.real) not in listing.names else Unrecorded(lost.real)
        if listing is None and parent not in self.manifest.implied and parent not in MADE:
            return lost
        return Unrecorded(lost.real)


def _about(root: str) -> dict[str, Any]:
    path = os.path.join(root, MARK, "host.yaml")
    try:
        with open(path, encoding="utf-8") as file:
            about = fastyaml.load(file.read())
    except (OSError, UnicodeDecodeError, fastyaml.Error) as error:
        raise bad_input(path, f"cannot be read: {error}", "make a new copy: tuner host copy NAME DIR") from None
    if not isinstance(about, dict) or not {"name", "kernel"} <= set(about):
        raise bad_input(path, "name and kernel are missing", "make a new copy: tuner host copy NAME DIR")
    if any(isinstance(about[key], (dict, list)) or not str(about[key]).strip() for key in ("name", "kernel")):
        raise bad_input(path, "name and kernel are one word each", "make a new copy: tuner host copy NAME DIR")
    return {name: str(value) for name, value in about.items()}
