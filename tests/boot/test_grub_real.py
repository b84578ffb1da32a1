"""Our drop-in and our reading of grub.cfg against the real grub-mkconfig of Debian (package grub-common).

Each run has a mount namespace of its own: this machine's /boot and /etc/default are neither read nor changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unavailable
from tuner.boot.grub_defaults import Added, script
from tuner.boot.tokens import held, kernel_part

REPO = Path(__file__).parents[2]
DEFAULT = 'GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\nGRUB_DISTRIBUTOR=Debian\nGRUB_CMDLINE_LINUX_DEFAULT="quiet pci=noaer"\n'
FORMER = "menuentry former {\n\tlinux /boot/vmlinuz-56 root=/dev/sda1 ro former\n}\n"
DISK = "0bd9b1c2-6c5a-4f43-9b5c-6a1d3fdc2a11"
ADDED = [
    Added("iommu", ("iommu=pt",), ("pt",)),
    Added("pci", ("pci=realloc=off",), ("realloc=off",)),
    Added("transparent_hugepage", ("transparent_hugepage=never",)),
]
Make = Callable[..., dict[str, Any]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make({path: text}, programs={path: text}) -> what grub-mkconfig made of these files."""
    if os.geteuid() != 0 or not shutil.which("grub-mkconfig", path="/usr/sbin:/sbin"):
        unavailable("root and grub-mkconfig (package grub-common)")
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        unavailable("mount namespaces")
    files = {
        "boot/vmlinuz-6.1.0-56-amd64": "k", "boot/initrd.img-6.1.0-56-amd64": "i",
        "boot/vmlinuz-6.1.0-57-amd64": "k", "boot/initrd.img-6.1.0-57-amd64": "i",
        "boot/grub/grub.cfg": FORMER, "default/grub": DEFAULT,
    }  # fmt: skip

    def call(
        more: Mapping[str, str], *, programs: Mapping[str, str] | None = None, room: int = 0, timeout: float = 0
    ) -> dict[str, Any]:
        root = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        order = {"root": str(root), "files": {**files, **more}, "programs": programs or {}, "room": room}
        ran = subprocess.run(
            ["unshare", "--mount", sys.executable, "-m", "tests.boot.grub_child"],
            input=json.dumps({**order, "timeout": timeout}), capture_output=True, text=True, timeout=60, check=False,
            cwd=REPO,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    return call


def test_every_entry_but_recovery_gets_our_tokens(make: Make) -> None:
    """The new menu takes the place of the former, keeps its mode, and nothing is left beside it."""
    found = make({"default/grub.d/zz-tuner.cfg": script(ADDED)})
    assert found["why"] == ""
    assert (found["mode"], found["left"]) == ("0o644", ["grub.cfg"])
    lines = re.findall(r"(?m)^\s*linux\s+(.*)$", found["config"])
    recovery = [line for line in lines if "single" in line.split()]
    normal = [line for line in lines if line not in recovery]
    assert (len(normal), len(recovery)) == (3, 2)
    for line in normal:
        assert line.endswith(
            " ro quiet iommu=pt pci=noaer,realloc=off transparent_hugepage=never".replace(" ro ", " ro  ")
        )
    for line in recovery:
        assert not {"iommu=pt", "transparent_hugepage=never"} & set(line.split())
    tokens = kernel_part(found["line"])[0]
    assert [held(tokens, name) for name in ("iommu", "pci", "quiet")] == ["pt", "noaer,realloc=off", "present"]


def test_without_the_drop_in_the_menu_is_as_before(make: Make) -> None:
    """What undo does: the file is gone, the menu is made again."""
    with_ours, without = make({"default/grub.d/zz-tuner.cfg": script(ADDED)}), make({})
    assert "iommu" not in without["config"]
    assert without["config"] != with_ours["config"]
    assert without["line"].endswith(" ro quiet pci=noaer")


@pytest.mark.parametrize(
    ("default", "environment", "kernel", "recovery"),
    [
        ("0", "", "57", False),
        ('"1>2"', "", "56", False),
        ('"1>3"', "", "56", True),
        (f"gnulinux-simple-{DISK}", "", "57", False),
        (f'"gnulinux-advanced-{DISK}>gnulinux-6.1.0-56-amd64-advanced-{DISK}"', "", "56", False),
        ('"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-56-amd64"', "", "56", False),
        ("saved", "saved_entry=1>2", "56", False),
        ("saved", f"saved_entry=gnulinux-advanced-{DISK}>gnulinux-6.1.0-57-amd64-recovery-{DISK}", "57", True),
        ("0", "next_entry=1>2", "56", False),
        ("saved", "", "57", False),
    ],
)
def test_the_entry_that_is_read_out_of_a_real_menu(
    make: Make, default: str, environment: str, kernel: str, recovery: bool
) -> None:
    """Debian's titles and ids; nothing of the menu is beyond what is followed."""
    block = f"# GRUB Environment Block\n{environment}\n".ljust(1024, "#")
    found = make({"default/grub": f"{DEFAULT}GRUB_DEFAULT={default}\n", "boot/grub/grubenv": block})
    assert found["why"] == ""
    assert f"vmlinuz-6.1.0-{kernel}-amd64 " in found["line"]
    assert ("single" in found["line"].split()) is recovery


@pytest.mark.parametrize(
    ("files", "programs", "why"),
    [
        ({"default/grub": "GRUB_DEFAULT=0\nfalse\n"}, {}, "grub-mkconfig ended with 1"),
        ({"default/grub": f'{DEFAULT}GRUB_CMDLINE_LINUX="a \' b"\n'}, {}, "grub-mkconfig ended with 1"),
        ({}, {"/usr/sbin/grub-mkconfig": "#!/bin/sh\necho 'menuentry x {' > $2\n"}, "grub-script-check ended with 1"),
        ({}, {"/usr/sbin/grub-mkconfig": "#!/bin/sh\necho 'set x=1' > $2\n"}, "no entry that starts a kernel"),
        ({}, {"/usr/sbin/grub-mkconfig": "#!/bin/sh\nexit 0\n"}, "No such file"),
        ({}, {"/etc/grub.d/10_linux": "#!/bin/sh\nexit 3\n"}, "grub-mkconfig ended with 3"),
    ],
)
def test_a_menu_that_cannot_be_made_leaves_the_former(
    make: Make, files: dict[str, str], programs: dict[str, str], why: str
) -> None:
    """An error in the files, a menu that GRUB could not read, one without a kernel: said, nothing half-written."""
    found = make(files, programs=programs)
    assert found["why"].startswith("GRUB's menu is as it was: ")
    assert why in found["why"]
    assert (found["config"], found["mode"], found["left"]) == (FORMER, "0o644", ["grub.cfg"])


def test_a_program_that_hangs_is_ended(make: Make) -> None:
    slow = {"/usr/sbin/grub-mkconfig": "#!/bin/sh\nsleep 60\n"}
    found = make({}, programs=slow, timeout=0.5)
    assert "did not end within 0.5 s" in found["why"]
    assert found["config"] == FORMER


def test_a_full_boot_partition(make: Make) -> None:
    found = make({}, room=512)
    assert "KiB are free in /boot, too little" in found["why"]
    assert found["config"] == FORMER
