"""One door to a host: live, an image, or recorded.

`open_host` says which kind a root is. Everything that tuner reads from a node or writes to it passes through the
`Host` it returns; nothing else in the product opens a file of the host.
"""

from __future__ import annotations

import os

from tuner.errors import bad_input
from tuner.host.door import Host, Unrecorded
from tuner.host.manifest import Manifest, parse
from tuner.host.recorded import MARK, RecordedHost

__all__ = ["Host", "Manifest", "RecordedHost", "Unrecorded", "open_host", "parse"]


def open_host(root: str | None = None) -> Host:
    """The host whose files lie below `root` (None: this machine).

    A root with `.tuner-host/` is recorded, `/` is live, any other tree with an etc/ is an image.
    Raises TunerError (bad input) for what is none of them.
    """
    if root == "":
        raise bad_input("--root", "is empty", "a copied host or an image's root; leave --root out for this machine")
    try:
        path = os.path.abspath(root or "/")
    except FileNotFoundError:
        raise bad_input(f"--root {root}", "the working directory is gone", "give the whole path") from None
    if os.path.isdir(path) and os.path.samefile(path, "/"):
        return Host("/", "live", os.uname().nodename.partition(".")[0], os.uname().release)
    if not os.path.isdir(path):
        raise bad_input(f"--root {root}", "no such directory", "a copied host (tuner host copy) or an image's root")
    if os.path.isdir(os.path.join(path, MARK)):
        return RecordedHost(path)
    if not os.path.isdir(os.path.join(path, "etc")):
        raise bad_input(f"--root {root}", "not the root of a host: no etc/ in it", "a copied host or an image's root")
    return Host(path, "image", path, "")
