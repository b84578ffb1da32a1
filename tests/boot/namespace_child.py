"""Runs the real systemd-sysctl and `sysctl --system` over trees of files, each in a network namespace of its own.

stdin: {"root": directory, "programs": {name: argv}, "keys": [path below /proc/sys], "trees": [{path: entry}]}
stdout: [{name: {key: text}}] for each tree, and what a fresh namespace holds as the last one.
To be started in a mount namespace (`unshare --mount`). The files lie in a root of their own that the programs are
confined to; only keys that belong to a network namespace may be named in the trees.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of sched.h; os.unshare came with Python 3.12."""

BIND, DEEP = 0x1000, 0x4000
"""MS_BIND and MS_REC of mount(2)."""

FOLDERS = ("etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d")
CREDENTIALS = "run/credentials/@system"
Tree = Mapping[str, Sequence[str]]
"""Path -> (kind, content): `file` in base64, `link`, `dir`, `fifo`, `socket`."""


def plant(root: Path, tree: Tree) -> None:
    """Makes the tree's files below root, in place of those of an earlier tree."""
    for name in (*FOLDERS, CREDENTIALS):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    (root / "etc/sysctl.conf").unlink(missing_ok=True)
    for name, (kind, content) in tree.items():
        path = root / name
        if kind == "file":
            path.write_bytes(base64.b64decode(content))
        elif kind == "link":
            path.symlink_to(content)
        elif kind == "dir":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            here = os.getcwd()
            os.chdir(path.parent)
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(path.name)
            os.chdir(here)


def _child(root: str, argv: Sequence[str], keys: Sequence[str], out: int) -> None:
    """In a fork: a fresh network namespace, the root, the program, then what the keys hold."""
    libc = ctypes.CDLL(None, use_errno=True)
    outside = Path("/proc/self/ns/net").readlink()
    if libc.unshare(NEW_NETWORK) != 0 or Path("/proc/self/ns/net").readlink() == outside:
        raise OSError(ctypes.get_errno(), "no network namespace")
    os.chroot(root)
    os.chdir("/")
    if argv:
        quiet = os.open("/dev/null", os.O_RDWR)
        env = {"SYSTEMD_LOG_TARGET": "console", "CREDENTIALS_DIRECTORY": f"/{CREDENTIALS}"}
        pid = os.posix_spawn(argv[0], list(argv), env, file_actions=[
            (os.POSIX_SPAWN_DUP2, quiet, n) for n in (0, 1, 2)
        ])  # fmt: skip
        os.waitpid(pid, 0)
    found = {key: Path("/proc/sys", key).read_bytes().decode().strip() for key in keys}
    os.write(out, json.dumps(found).encode())


def run(root: str, argv: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """What the keys hold after the program ran in a network namespace of its own."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _child(root, argv, keys, there)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(there)
    with os.fdopen(here, "rb") as file:
        data = file.read()
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise SystemExit(f"{argv} ended with {status}")
    found: dict[str, str] = json.loads(data)
    return found


def prepare(root: Path) -> None:
    """Gives the root a /proc and a /dev/null."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/null").touch()
    libc = ctypes.CDLL(None, use_errno=True)
    for source, kind, flags in ((b"/proc", None, BIND | DEEP), (b"/dev/null", None, BIND)):
        if libc.mount(source, str(root).encode() + source, kind, flags, None) != 0:
            raise OSError(ctypes.get_errno(), f"mount {source!r}")


def main() -> None:
    """Reads the order from stdin, prints what the keys held."""
    order = json.load(sys.stdin)
    root, keys = Path(order["root"]), order["keys"]
    prepare(root)
    answers: list[dict[str, dict[str, str]]] = []
    for tree in order["trees"]:
        plant(root, tree)
        answers.append({name: run(str(root), argv, keys) for name, argv in order["programs"].items()})
    answers.append({"fresh": run(str(root), [], keys)})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
