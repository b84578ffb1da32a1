"""Runs programs that see a mounted recorded host as /sys: `unshare --mount python -m tests.fuse.smi_child`.

stdin: {"sys": the folder that is to be /sys, "scratch": an empty directory, "files": {path: text}, "steps": [argv]}
stdout: [{"code", "out", "err", "seconds"}] of each step, code null for one that did not end within PATIENCE.

/etc, /opt, /run and /var/lib are overlays whose changes nobody else sees and /dev/shm is empty, so that neither tuner
nor the library of rocm-smi leaves anything on this machine. `files` are written there; what lies in a bin can be run.

With arguments TARGET VALUE SECONDS it is such a step: the writer that goes through rocm-smi, with a limit per call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.errors import Refused
from tuner.host import open_host
from tuner.knobs import BY_NAME, rocm_smi

LAYERED = ("/etc", "/opt", "/run", "/var/lib")
PATIENCE = 200.0


def mount(*words: str) -> None:
    """mount(8), for its message."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"mount {' '.join(words)}: {done.stderr.strip()}")


def layer(scratch: Path, folders: Sequence[str]) -> None:
    """From here on, what is written to these folders of this machine stays in `scratch`."""
    for folder in folders:
        upper, work = (scratch / folder.strip("/").replace("/", "-") / name for name in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        mount("-t", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", "none", folder)


def settle(order: dict[str, Any]) -> None:
    """The view of this machine that the steps get."""
    mount("--make-rprivate", "/")
    mount("--bind", order["sys"], "/sys")
    scratch = Path(order["scratch"])
    mount("-t", "tmpfs", "-o", "mode=0755", "none", str(scratch))
    layer(scratch, LAYERED)
    mount("-t", "tmpfs", "none", "/dev/shm")
    for name, text in order["files"].items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if path.parent.name == "bin" else 0o644)


def step(argv: list[str]) -> dict[str, Any]:
    """One program, without standard input."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = None, "", ""
    return {"code": code, "out": out, "err": err, "seconds": time.monotonic() - began}


def write(target: str, value: str, seconds: str) -> str:
    """What the writer of amdgpu.clock through rocm-smi says of a write: nothing, or why it is refused."""
    rocm_smi.SECONDS = float(seconds)
    try:
        BY_NAME["amdgpu.clock"].writer("rocm-smi")(open_host(), target, json.loads(value))
    except Refused as refused:
        return refused.why
    return ""


def main() -> None:
    """Reads the order, prints what became of each step."""
    order = json.load(sys.stdin)
    settle(order)
    json.dump([step(argv) for argv in order["steps"]], sys.stdout)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(write(*sys.argv[1:]), end="")
    else:
        main()
