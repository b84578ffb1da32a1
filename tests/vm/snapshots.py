"""The two snapshots that are kept: the machine after its first boot, and the same with the product installed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.vm import product
from tests.vm.image import Image
from tests.vm.machine import Machine, Snapshot, fingerprint

OLD = 3600
"""Seconds after which a product that no test used is removed: every change of the checkout makes a new one."""


def booted(image: Image) -> Snapshot:
    """The machine after its first boot; made when this qemu has none yet. The caller holds the lock."""

    def settle(vm: Machine) -> None:
        vm.boot()
        vm.ok(["systemctl", "is-system-running", "--wait"], limit=120)

    return _kept(image, f"booted-{fingerprint()}", "../disk.img", settle)


def installed(image: Image, wheels: Path) -> Snapshot:
    """The booted machine with the product; those of former checkouts are removed. The caller holds the lock."""
    before = booted(image)

    def settle(vm: Machine) -> None:
        vm.restore(before)
        product.install(vm, wheels)

    for other in [*image.folder.glob("half-*"), *image.folder.glob("product-*")]:
        if time.time() - other.stat().st_mtime > OLD or other.name.startswith("half-"):
            shutil.rmtree(other)
    below = f"../{before.folder.name}/{before.disk.name}"
    return _kept(image, f"product-{product.digest(wheels)}-{fingerprint()}", below, settle)


def _kept(image: Image, name: str, below: str, settle: Callable[[Machine], None]) -> Snapshot:
    """The snapshot of that name; where it is not there, of a machine that `settle` brings to it."""
    folder = image.folder / name
    if not folder.is_dir():
        _make(image, folder, below, settle)
    os.utime(folder)
    return Snapshot(folder)


def _make(image: Image, folder: Path, below: str, settle: Callable[[Machine], None]) -> None:
    """Makes it beside `folder` and renames, so that a half never stands there."""
    half = Path(tempfile.mkdtemp(prefix=f"half-{folder.name}.", dir=folder.parent))
    vm = Machine(image, half, below)
    try:
        settle(vm)
        vm.save(Snapshot(half))
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    finally:
        vm.close()
