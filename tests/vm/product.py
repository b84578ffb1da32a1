"""Brings the product into the machine: a wheel of this checkout, and the wheels that it needs for Debian's Python."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.test_packaging import LEFT_OUT, REPO, built
from tests.vm.image import Unreachable
from tests.vm.machine import Machine

FOR_DEBIAN = (
    "--only-binary=:all:", "--implementation=cp", "--python-version=3.11", "--abi=cp311", "--abi=abi3", "--abi=none",
    "--platform=manylinux2014_x86_64", "--platform=manylinux_2_17_x86_64", "--platform=manylinux_2_28_x86_64",
)  # fmt: skip
"""Which wheels the machine's Python 3.11 takes."""

INSTALL = """
set -e
/opt/tuner/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile \
    --no-index --find-links /tmp/wheels gpu-node-tuner
cd /opt/tuner/lib/python3.11/site-packages
/opt/tuner/bin/python -m compileall -q tuner yaml
ln -s /opt/tuner/bin/tuner /usr/local/bin/tuner
rm -r /tmp/wheels
"""
"""As the README says it, from the wheels alone. Only what every call imports is compiled, which halves the time."""


def wheels(folder: Path) -> Path:
    """The wheel of this checkout and all that it needs, in a new folder below `folder`.

    Asks a package index; raises Unreachable when that does not answer.
    """
    source, found = folder / "source", folder / "wheels"
    shutil.copytree(REPO, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
    wheel = built(source, "wheel", folder / "wheel")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*words, *FOR_DEBIAN, "--dest", found, wheel], capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode:
        raise Unreachable(f"the wheels that the product needs: {done.stderr[-2000:]}")
    return found


def digest(wheels: Path) -> str:
    """Tells one set of wheels from another."""
    parts = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(wheels.iterdir())]
    return hashlib.sha256("\n".join([INSTALL, *parts]).encode()).hexdigest()[:16]


def install(vm: Machine, wheels: Path) -> None:
    """Installs into the virtual environment /opt/tuner of the machine, and names it on root's PATH."""
    vm.copy_in(wheels, "/tmp/wheels")
    vm.ok(INSTALL, limit=300)
