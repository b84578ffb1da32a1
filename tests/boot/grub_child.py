"""Makes GRUB's menu by the real grub-mkconfig, over folders that hide this machine's own /boot and /etc/default.

stdin: {"root": empty directory, "files": {path below root: text}, "programs": {path: text}, "room": KiB or null,
"timeout": seconds or null}; stdout: what update_grub said, what lies there then, and the line that is predicted.
To be started in a mount namespace (`unshare --mount`). grub-probe, which asks for real disks, is always replaced.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from tuner.boot import grub
from tuner.boot.grub_words import Unparsed
from tuner.host import Host, after

BIND = 0x1000
"""MS_BIND of mount(2)."""

PROBE = """\
#!/bin/sh
for word in "$@"; do
  case "$word" in
  --target=device) echo /dev/sda1 ;;
  --target=fs_uuid) echo 0bd9b1c2-6c5a-4f43-9b5c-6a1d3fdc2a11 ;;
  --target=fs) echo ext2 ;;
  --target=partmap) echo msdos ;;
  esac
done
"""
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None = None, flags: int = BIND, data: str | None = None) -> None:
    """mount(2), or OSError."""
    words = [word.encode() if word is not None else None for word in (source, target, kind, data)]
    if LIBC.mount(words[0], words[1], words[2], flags, words[3]) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def prepare(order: dict[str, Any]) -> None:
    """Hides the machine's own files behind those of the order."""
    root = Path(order["root"])
    for name in ("boot", "default", "programs"):
        (root / name).mkdir()
    if order["room"]:
        mount("none", str(root / "boot"), "tmpfs", 0, f"size={order['room']}k")
    for name, text in order["files"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    mount(str(root / "boot"), "/boot")
    mount(str(root / "default"), "/etc/default")
    for path, text in {"/usr/sbin/grub-probe": PROBE, **order["programs"]}.items():
        place = root / "programs" / os.path.basename(path)
        place.write_text(text)
        place.chmod(0o755)
        mount(str(place), path)
    mount("none", "/run", "tmpfs", 0)


def main() -> None:
    """One order."""
    order = json.load(sys.stdin)
    prepare(order)
    if order["timeout"]:
        after.GRUB_TIMEOUT = order["timeout"]
    host = Host("/", "live", "node", "6.1.0")
    why = after.update_grub(host)
    try:
        line = grub.predict(host, "/boot/grub/grub.cfg").text
    except (Unparsed, OSError) as error:
        line = f"not predicted: {error}"
    config = Path("/boot/grub/grub.cfg")
    found = {
        "why": why,
        "line": line,
        "config": config.read_text() if config.exists() else None,
        "mode": oct(config.stat().st_mode & 0o777) if config.exists() else None,
        "left": sorted(os.listdir("/boot/grub")) + sorted(path.name for path in Path("/run").glob("tuner/*")),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
