"""A host as it would be with some files added, replaced or gone: read only, for predictions."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Mapping

from tuner.host.door import Host
from tuner.host.tree import fault


class Planned(Host):
    """Another host, read through, with `files` in place of its own: path -> text, or None for not there."""

    def __init__(self, inner: Host, files: Mapping[str, str | None]) -> None:
        super().__init__(inner.root, inner.kind, inner.name, inner.kernel)
        self.inner, self.files, self.tree = inner, dict(files), inner.tree

    def read(self, path: str) -> bytes:
        """As Host.read."""
        text = self._planned(path)
        return self.inner.read(path) if text is None else text.encode("utf-8", "surrogateescape")

    def peek(self, path: str) -> str:
        """As Host.peek."""
        text = self._planned(path)
        return self.inner.peek(path) if text is None else text

    def list(self, path: str) -> list[str]:
        """As Host.list."""
        try:
            names = set(self.inner.list(path))
        except FileNotFoundError:
            names = set()
            if not self._below(path):
                raise
        for place, text in self.files.items():
            if posixpath.dirname(place) == path.rstrip("/"):
                names = names - {posixpath.basename(place)} if text is None else names | {posixpath.basename(place)}
        return sorted(names)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """As Host.stat; a planned file is root's, 0644."""
        text = self._planned(path)
        if text is not None:
            return os.stat_result((stat.S_IFREG | 0o644, 0, 0, 1, 0, 0, len(text.encode("utf-8", "replace")), 0, 0, 0))
        try:
            return self.inner.stat(path, follow)
        except FileNotFoundError:
            if not self._below(path):
                raise
            return os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))

    def link(self, path: str) -> str:
        """As Host.link; a planned file is none."""
        if self._planned(path) is not None:
            raise fault(errno.EINVAL, path)
        return self.inner.link(path)

    def _planned(self, path: str) -> str | None:
        """The text of a planned file, None for any other path; ENOENT for what would not be there."""
        if path not in self.files:
            return None
        text = self.files[path]
        if text is None:
            raise fault(errno.ENOENT, path)
        return text

    def _below(self, path: str) -> bool:
        """Whether a file is planned below a folder."""
        return any(t is not None and p.startswith(f"{path.rstrip('/')}/") for p, t in self.files.items())
