"""One archive that holds all a node needs besides Python itself: built once, on the control node.

Our package with its data, and the parts of its dependencies that are plain Python; PyYAML goes without its compiled
part and uses its own slower loader. The archive is made of what this process runs from, a checkout or an installed
wheel. The same sources give the same archive: sorted, root's, one date (reproducible-builds.org, "Archive metadata").
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tuner import __version__
from tuner.errors import Exit, Problem, TunerError, bad_input
from tuner.shipped import PACKAGE, folder

PARTS: Mapping[str, tuple[str, ...]] = {
    "PyYAML": ("yaml",), "rich": ("rich",), "markdown-it-py": ("markdown_it",), "mdurl": ("mdurl",),
    "Pygments": ("pygments",), "nvidia-ml-py": ("pynvml.py",),
}  # fmt: skip
"""What of each distribution is needed: our dependencies, and theirs."""

DATA = ("profiles", "checks", "playbooks", "hosts")
SITE = "site"
DATE = 315532800
"""1980-01-01, the oldest date that every archiver takes."""

LAUNCHER = """import sys

from tuner.fast import finish

finish(sys.argv[1:])
from tuner.cli import main

sys.exit(main())
"""
"""bin/tuner without its first line, which names the interpreter of the node; that one runs isolated (-I)."""


@dataclass(frozen=True)
class Bundle:
    """An archive on disk. `release` is its folder below /opt/tuner/releases, `digest` the sha256 of the tar in it."""

    path: str
    version: str
    release: str
    digest: str
    size: int
    """Bytes of the files in it, unpacked."""


def build(directory: str) -> Bundle:
    """Writes the archive into `directory`, under a name that tells its content; one that is there is made anew."""
    found = files()
    tar = _tar(found)
    digest = hashlib.sha256(tar).hexdigest()
    release = f"{__version__}-{digest[:16]}"
    path = os.path.join(os.path.abspath(directory), f"tuner-{release}.tar.gz")
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tuner-", dir=directory) as own:  # no link of others, no other build
            part = os.path.join(own, "part")
            with open(part, "wb") as file, gzip.GzipFile("", "wb", 6, file, 0) as packed:
                packed.write(tar)
            os.replace(part, path)
    except OSError as error:
        what = f"the bundle cannot be written: {error.strerror}"
        raise TunerError(Problem(directory, what, "a folder with 5 MB of room"), Exit.UNKNOWN) from None
    return Bundle(path, __version__, release, digest, sum(map(len, found.values())))


def files() -> dict[str, bytes]:
    """Path in the archive -> bytes. TunerError (bad input) where a dependency is not there as pip installs it."""
    found = {"bin/tuner": LAUNCHER.encode()}
    found |= {f"{SITE}/tuner/{name}": data for name, data in _below(PACKAGE) if _wanted(name)}
    for kind in DATA:
        found |= {f"{SITE}/tuner/data/{kind}/{name}": data for name, data in _below(folder(kind))}
    for distribution, parts in PARTS.items():
        found |= {f"{SITE}/{name}": data for name, data in _installed(distribution, parts)}
    return found


def _wanted(name: str) -> bool:
    """Not the launcher of pip's scripts, nor the data of an installed package, which comes by its kinds."""
    return name != "launcher" and not name.startswith("data/")


def _below(top: Path) -> Iterator[tuple[str, bytes]]:
    """Files below a folder; caches and hidden files are left out."""
    for place, names, here in os.walk(top):
        names[:] = sorted(n for n in names if n != "__pycache__" and not n.startswith("."))
        for name in sorted(here):
            if not name.startswith(".") and not name.endswith((".pyc", ".so")):
                path = Path(place, name)
                yield path.relative_to(top).as_posix(), path.read_bytes()


def _installed(name: str, parts: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """The files of an installed distribution that are plain Python, with its metadata and licences."""
    hint = "pip install 'gpu-node-tuner[fleet]' in a virtual environment of the control node"
    try:
        listed = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError:
        listed = None
    chosen = [path for path in listed or () if _part(path, parts)]
    if not any(path.parts[0] in parts for path in chosen):
        raise bad_input(name, "is not installed here as pip installs it; nodes need it", hint)
    for path in chosen:
        try:
            yield path.as_posix(), Path(str(path.locate())).read_bytes()
        except OSError as error:
            raise bad_input(str(path.locate()), f"cannot be read: {error.strerror}", hint) from None


def _part(path: PurePosixPath, parts: tuple[str, ...]) -> bool:
    if "__pycache__" in path.parts or path.suffix in (".pyc", ".so", ".pyd"):
        return False
    about = path.parts[0].endswith(".dist-info") and (path.name == "METADATA" or "LICEN" in path.name.upper())
    return path.parts[0] in parts or about


def _tar(found: Mapping[str, bytes]) -> bytes:
    """The files as a tar: by name, root's, 0644 (what is in bin/: 0755), one date."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(found):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(found[name]), DATE
            info.mode = 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(info, io.BytesIO(found[name]))
    return out.getvalue()
