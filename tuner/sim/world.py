"""The files of a recorded host as its rules see them, and numbers as the kernel reads them."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tuner.host.tree import Tree, fault

Rule = Mapping[str, Any]
NUMBER = re.compile(r"\s*(-?(?:0[xX][0-9a-fA-F]+|\d+))(?=\s|$)")


class World:
    """The files of the recorded host, and the state that its devices keep apart from them."""

    def __init__(self, tree: Tree, state: str) -> None:
        self.tree, self.state = tree, state

    def get(self, path: str) -> str:
        """The text of a kernel file; '' for one that has a write bit only."""
        try:
            return self.tree.read(path).decode("utf-8", "surrogateescape")
        except PermissionError:
            return ""

    def has(self, path: str) -> bool:
        """Whether the file is there."""
        try:
            self.tree.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def set(self, path: str, text: str) -> None:
        """Puts `text` into an existing file, one that only the kernel may write included."""
        with self.tree.at(path) as (handle, name, _):
            mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode & 0o7777
            if not mode & 0o200:
                os.chmod(name, mode | 0o200, dir_fd=handle)
            opened = os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            with os.fdopen(opened, "wb") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
            if not mode & 0o200:
                os.chmod(name, mode, dir_fd=handle)

    def find(self, pattern: str) -> list[str]:
        """The files whose path matches; `*` stands for no `/`."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            if "*" in part:
                found = [
                    f"{f}/{name}" for f in found for name in self._names(f or "/") if fnmatch.fnmatchcase(name, part)
                ]
            else:
                found = [f"{folder}/{part}" for folder in found]
        return [path for path in found if self.has(path)]

    def _names(self, folder: str) -> list[str]:
        try:
            return self.tree.list(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def stage(self, name: str, text: str = "") -> None:
        """Remembers a state that no file shows."""
        with contextlib.suppress(FileExistsError):
            self.tree.mkdir(self.state)
        self.tree.put(f"{self.state}/{name}", text.encode(), 0o644)

    def staged(self, name: str) -> str:
        """The text staged under that name; '' for none."""
        try:
            return self.tree.read(f"{self.state}/{name}").decode()
        except FileNotFoundError:
            return ""

    def commit(self, name: str) -> bool:
        """Whether that state was staged; it is gone afterwards."""
        try:
            self.tree.unlink(f"{self.state}/{name}")
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):
            self.tree.rmdir(self.state)
        return True


class Behaviour(NamedTuple):
    """A function and the parameters it needs and takes."""

    run: Callable[[World, Rule, str, str, str], None]
    needs: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()


def parse_number(text: str, path: str) -> int:
    """A number as the kernel parses it; OSError EINVAL for what is none.

    /proc/sys: base 0, octal for a leading zero, blanks before, and what follows a blank is not looked at
    (kernel/sysctl.c, proc_get_long). /sys: decimal and nothing but a newline around it (lib/kstrtox.c).
    """
    if path.startswith("/sys/"):
        if not re.fullmatch(r"\d{1,20}\n?", text):
            raise fault(errno.EINVAL, path)
        return int(text)
    match = NUMBER.match(text)
    if match is None:
        raise fault(errno.EINVAL, path)
    word = match.group(1)
    digits = word.lstrip("-")
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    try:
        return int(word, base)
    except ValueError:
        raise fault(errno.EINVAL, path) from None
