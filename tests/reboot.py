"""What a reboot or a driver does to a copied host: the kernel's files are as they were recorded, all else stays."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

BOOT_ID = "proc/sys/kernel/random/boot_id"


def reboot(root: Path, master: Path) -> None:
    """The next boot of the copy at `root`, with the kernel and the faults of `master`, a copy that nobody wrote to.

    /proc and /sys are as recorded, /run is empty, what a device had staged is gone, and it is another boot.
    """
    for name in ("proc", "sys", "run", ".tuner-host"):
        shutil.rmtree(root / name, ignore_errors=True)
        if (master / name).exists():
            shutil.copytree(master / name, root / name, symlinks=True)
    place = root / BOOT_ID
    place.chmod(0o644)
    place.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    place.chmod(0o444)


def renew(root: Path, master: Path, *folders: str) -> None:
    """Devices that went and came again: what is below these folders is as recorded."""
    for name in folders:
        shutil.rmtree(root / name)
        shutil.copytree(master / name, root / name, symlinks=True)


def kernel(root: Path) -> dict[str, bytes]:
    """Every file below /proc and /sys with its content, but for the boot's own id."""
    found = {}
    for top in ("proc", "sys"):
        for path in sorted((root / top).rglob("*")):
            if path.is_file() and not path.is_symlink() and str(path.relative_to(root)) != BOOT_ID:
                found[str(path.relative_to(root))] = path.read_bytes() if path.stat().st_mode & 0o444 else b""
    return found
