"""Evidence: what every read behind the verdicts gave, kept with the answer for tuner.fast.

A verify with a noting tree in its door gathers it. What was read twice and differed, was read while somebody wrote, or
is younger than the clock's tick, is not kept: losing evidence costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tuner import STARTED, fast
from tuner.host import Host, RecordedHost
from tuner.host.door import make_parents
from tuner.host.tree import LIMIT, LINKS, Lost, Tree

OWN = "/var/lib/tuner/"
"""The journal: only ever appended to, so that its stamp stands for its text."""

TICK = 20_000_000
"""Nanoseconds within which two changes of a file may get the same time (a jiffy is 10 ms at HZ=100, twice that)."""

COARSE = 2_000_000_000
"""The same for a file system that keeps no part of a second (ext4 with small inodes, vfat), in ns."""

PACKAGES = ("tuner", "yaml", "rich")

Found = TypeVar("Found")


class NotingTree(Tree):
    """A tree that notes what each look gave, in the form in which tuner.fast looks again."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.inside: dict[tuple[str, str, object], object] = {}
        self.beside: dict[tuple[str, str, object], object] = {}
        self.torn = False
        self.watch: Callable[[str], object] | None = None
        """Hears of each look before it is made; an OSError that it raises is what the look gives."""
        self._paused = False

    @contextlib.contextmanager
    def unnoted(self) -> Iterator[None]:
        """What is read inside is no evidence."""
        former, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = former

    def read(self, path: str, limit: int = LIMIT, enough: int | None = None) -> bytes:
        """As Tree.read; of the journal only what tells that it was written to."""
        if path.startswith(OWN):
            with contextlib.suppress(OSError):
                self._noted("stamp", path, None, lambda: super(NotingTree, self).stat(path), fast.stamped)
            return super().read(path, limit, enough)
        return self._noted("read", path, None, lambda: super(NotingTree, self).read(path, limit, enough), fast.brief)

    def head(self, path: str, size: int) -> bytes:
        """As Tree.head."""
        return self._noted("head", path, size, lambda: super(NotingTree, self).read(path, enough=size), bytes)

    def filled(self, path: str) -> bool:
        """As Tree.filled."""
        return self._noted("filled", path, None, lambda: bool(super(NotingTree, self).read(path, enough=1)), int)

    def has_line(self, path: str, line: bytes) -> bool:
        """As Tree.has_line."""
        lines = lambda: line in super(NotingTree, self).read(path).split(b"\n")  # noqa: E731  (super needs the class)
        return self._noted("line", path, line, lines, int)

    def lines(self, path: str, number: int, word: bytes) -> list[bytes]:
        """As Tree.lines."""
        rows = lambda: super(NotingTree, self).lines(path, number, word)  # noqa: E731
        return self._quietly("lines", path, (number, word), rows)

    def processes(self, group: str, name: str) -> list[int]:
        """As Tree.processes."""
        return self._quietly("processes", group, name, lambda: super(NotingTree, self).processes(group, name))

    def list(self, path: str) -> list[str]:
        """As Tree.list; below a root also which folder it was."""
        number = () if self.native else (self._number(path),)
        listed = lambda: super(NotingTree, self).list(path)  # noqa: E731
        return self._noted("names", path, int(not self.native), listed, lambda names: (*number, *names))

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """As Tree.stat."""
        status = lambda: super(NotingTree, self).stat(path, follow)  # noqa: E731
        return self._noted("stat", path, int(follow), status, lambda found: fast.shown(found, path))

    def link(self, path: str) -> str:
        """As Tree.link."""
        return self._noted("link", path, None, lambda: super(NotingTree, self).link(path), str)

    def read_only(self, path: str) -> bool:
        """As Tree.read_only."""
        return self._noted("sealed", path, None, lambda: super(NotingTree, self).read_only(path), int)

    def real(self, path: str) -> str:
        """As Tree.real; the links on the way are evidence."""
        self._trail(path)
        return super().real(path)

    def outside(self, path: str) -> None:
        """Notes a file that is about to be read, and the rights on the folders above it."""
        for place in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
            for here in _above(place):
                self._beside("stamp", here, None, fast.stamp)
            self._beside("read", place, None, fast.read)
            self._beside("stat", place, 1, fast.stat)

    def stamped(self, path: str) -> None:
        """Notes the stamp of a file that nobody edits."""
        self._beside("stamp", path, None, fast.stamp)

    def _beside(self, kind: str, path: str, more: object, look: Callable[[str, Any], object]) -> None:
        try:
            found = look(path, more)
        except OSError as error:
            found = -(error.errno or 0)
        if self.beside.setdefault((kind, path, more), found) != found:
            self.torn = True

    def _noted(
        self, kind: str, path: str, more: object, look: Callable[[], Found], shown: Callable[[Found], object]
    ) -> Found:
        try:
            if self.watch:
                self.watch(path)
            found = look()
        except OSError as error:
            self._keep(kind, path, more, -(error.errno or 0))
            if isinstance(error, Lost) and not self._paused:
                self._lost(path, error.real)
            raise
        except ValueError:
            self.torn = True
            raise
        self._keep(kind, path, more, shown(found))
        return found

    def _quietly(self, kind: str, path: str, more: object, look: Callable[[], Found]) -> Found:
        """Notes what came of a look that is made of others, and not these."""

        def alone() -> Found:
            with self.unnoted():
                return look()

        return self._noted(kind, path, more, alone, lambda found: found)

    def _keep(self, kind: str, path: str, more: object, found: object) -> None:
        if not self._paused and self.inside.setdefault((kind, path, more), found) != found:
            self.torn = True

    def _lost(self, path: str, real: str) -> None:
        """What a recorded host makes of a path that is not there depends on how far it could be followed."""
        self._trail(path)
        self._keep("stat", real, 0, -errno.ENOENT)
        parent = os.path.dirname(real)
        with contextlib.suppress(OSError):
            status = super().stat(parent)
            self._keep("inode", parent, None, (status.st_dev, status.st_ino))

    def _number(self, path: str) -> int:
        try:
            return super().stat(path).st_ino
        except OSError:
            return 0

    def _trail(self, path: str) -> None:
        """Notes each link on the way to a path."""
        todo, real, links = deque(_parts(path)), "", 0
        while todo and links <= LINKS:
            name = todo.popleft()
            if name == "..":
                real = real.rpartition("/")[0]
                continue
            here = f"{real}/{name}"
            try:
                text = super().link(here)
            except OSError:
                real = here
                continue
            links += 1
            self._keep("link", here, None, text)
            real = "" if text.startswith("/") else real
            todo.extendleft(reversed(_parts(text)))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _above(path: str) -> list[str]:
    parts = _parts(path)
    return ["/" + "/".join(parts[:depth]) for depth in range(len(parts))]


def note(host: Host, tree: NotingTree | None = None) -> NotingTree:
    """From here on, what is read of the host is noted, by `tree` where one is given."""
    tree = tree or NotingTree(host.root)
    host.tree = tree
    if isinstance(host, RecordedHost):
        for path in host.about:
            tree.stamped(path)
    return tree


def keep(host: Host, tree: NotingTree, answers: Mapping[str, tuple[int, bytes]]) -> str:
    """Writes the evidence with the answers, form -> (exit code, text); returns why not, empty when it did."""
    if os.geteuid() != 0:
        return "only root keeps evidence"
    if host.kind == "image":
        return "an image has no boot"
    if tree.torn:
        return "what was read twice differed"
    try:
        tree.read(fast.BOOT)
        outside = _outside(tree)
        if outside is None:
            return "our code changed just now"
        kept: Any = (
            fast.__file__, fast.reader(), time.time_ns(), host.root, fast.place(host.root),
            outside, rows(tree), dict(answers),
        )  # fmt: skip
        data = marshal.dumps(kept, 4)
        make_parents(host, fast.PATH)
        host.put(fast.PATH, fast.MAGIC + fast.sealed(data) + data, 0o600)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def renew(host: Host, tree: NotingTree, answers: Mapping[str, tuple[int, bytes]]) -> None:
    """Keeps the answers of a full judgement; where that cannot be, nothing older is left to answer in its place.

    What somebody remembered since, such as what was seen ok, is no part of evidence: an older answer may be wrong now.
    """
    if not answers or keep(host, tree, answers):
        drop(host)


def drop(host: Host) -> None:
    """Removes the evidence, where there is any that we may remove."""
    with contextlib.suppress(OSError):
        host.unlink(fast.PATH)


def rows(tree: NotingTree) -> fast.Rows:
    """What was noted, by kind; what a file is and what it holds is one look."""
    left = dict(tree.inside)
    kinds: dict[str, list[tuple[str, object, object]]] = {}
    for (kind, path, _), found in tree.inside.items():
        if kind == "read" and not isinstance(found, int):
            kinds.setdefault("read", []).append((path, left.pop(("stat", path, 1), None), found))
            del left[kind, path, None]
    return (*_by_kind(left), *((kind, tuple(looks)) for kind, looks in kinds.items()))


def _by_kind(noted: Mapping[tuple[str, str, object], object]) -> fast.Rows:
    kinds: dict[str, list[tuple[str, object, object]]] = {}
    for (kind, path, more), found in noted.items():
        kinds.setdefault(kind, []).append((path, more, found))
    return tuple((kind, tuple(looks)) for kind, looks in kinds.items())


def _outside(tree: NotingTree) -> fast.Rows | None:
    """Stamps of our code, and what was read besides the host; None where the code is too young to be trusted."""
    code: dict[tuple[str, str, object], object] = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "").partition(".")[0]
        path = getattr(module, "__file__", None)
        if name in PACKAGES and path:
            code["stamp", path, None] = fast.stamp(path)
    if any(_changed(found) > STARTED - TICK for found in code.values()):
        return None
    return _by_kind({**code, **tree.beside})


def _changed(found: object) -> int:
    """When a file was last changed, in ns, at the latest: some file systems keep whole seconds only."""
    when = int(found[-1]) if isinstance(found, tuple) and len(found) > fast.RIGHTS else 0
    return when + COARSE if when % 1_000_000_000 == 0 else when
