"""A node with GPUs of NVIDIA, made out of this machine: `unshare --mount --propagation private python -m ...`.

stdin: first {"tree": a copied host, "library": the folder of its libnvidia-ml.so.1, "scratch": an empty directory},
then for each program {"argv", "hold": a device node that somebody has open meanwhile or "", "environment": {}}.
stdout: a line {} when the view is made, then {"code", "out", "err", "seconds"} for each program.

/sys is that of the copied host, /proc/driver and the device nodes too; all else of the kernel is this machine's. What
programs leave in /etc, /opt, /run, /var/lib and /dev nobody else sees, and tuner's own folders are empty.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuse.smi_child import PATIENCE, layer, mount

LIBRARY = "/opt/nvidia-libraries"
"""Where any user may reach the library, wherever the test keeps it."""

LAYERED = ("/etc", "/opt", "/run", "/var/lib", "/dev")
EMPTY = ("/etc/tuner", "/run/tuner", "/var/lib/tuner")


def settle(order: dict[str, Any]) -> None:
    """The view of this machine that the programs get."""
    tree, scratch = Path(order["tree"]), Path(order["scratch"])
    mount("--make-rprivate", "/")
    shared = f"/proc/{os.getpid()}/fd/{os.open('/dev/shm', os.O_PATH)}"  # where a test may keep its files
    mount("-t", "tmpfs", "-o", "mode=0755", "none", str(scratch))
    layer(scratch, LAYERED)
    mount("--no-canonicalize", "--rbind", shared, "/dev/shm")
    for place in EMPTY:
        Path(place).mkdir(exist_ok=True)
        mount("-t", "tmpfs", "-o", "mode=0755", "none", place)
    mount("-t", "tmpfs", "-o", "mode=0755", "none", "/proc/driver")
    shutil.copytree(tree / "proc/driver/nvidia", "/proc/driver/nvidia")
    for node in (tree / "dev").glob("nvidia*"):
        if node.is_file():
            shutil.copy(node, "/dev")
    Path(LIBRARY).mkdir()
    mount("--bind", order["library"], LIBRARY)
    mount("--bind", f"{tree}/sys", "/sys")


def step(argv: list[str], hold: str, environment: dict[str, str]) -> dict[str, Any]:
    """One program, without standard input."""
    held = os.open(hold, os.O_RDONLY) if hold else -1
    began = time.monotonic()
    words: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": PATIENCE}
    try:
        done = subprocess.run(argv, check=False, env={**os.environ, **environment}, **words)
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = None, "", ""
    if held >= 0:
        os.close(held)
    return {"code": code, "out": out, "err": err, "seconds": time.monotonic() - began}


def main() -> None:
    """Makes the view, then runs what it is told to."""
    settle(json.loads(sys.stdin.readline()))
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(step(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
