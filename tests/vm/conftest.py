"""`vm`: a machine with Debian 12 and its stock kernel, the product installed; README.md says how to use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.vm import image as images
from tests.vm import product, snapshots
from tests.vm.machine import Machine, Snapshot

LIMIT = 1200
"""Seconds for one test, the first of which builds the image, and waits for another run that has the machine."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """One worker has all tests with a machine. Around the other hooks, so that pytest-xdist finds the group."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("vm"))
            item.add_marker(pytest.mark.timeout(LIMIT))
    yield


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[images.Image, Snapshot]:
    """The image, and the snapshot that tests start from; built once, whoever comes first."""
    if reason := images.missing():
        unavailable(reason)
    try:
        wheels = product.wheels(tmp_path_factory.mktemp("product"))
        with images.locked("machine"):
            image = images.image()
            return image, snapshots.installed(image, wheels)
    except images.Unreachable as error:
        unavailable(str(error))
        raise


@pytest.fixture
def vm(prepared: tuple[images.Image, Snapshot], tmp_path: Path) -> Iterator[Machine]:
    """A machine of this test alone: booted, the product installed, nothing applied."""
    image, snapshot = prepared
    with images.locked("machine"):
        os.utime(snapshot.folder)
        made = Machine(image, tmp_path, str(snapshot.disk))
        try:
            made.restore(snapshot)
            yield made
        finally:
            made.close()
            made.disk.unlink(missing_ok=True)
