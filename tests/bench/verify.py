"""What `tuner verify` costs before a job, beside a bare interpreter and beside what others do.

    python -m tests.bench.verify [ROUNDS]

On a recorded MI300X node with the whole profile applied: the launcher, a console script as pip writes it, the full
verify without evidence, shell functions that read as many files (as LBNL NHC checks do: with the builtin read, and with
a program per file), and pytest-testinfra on 50 sysctls of this machine. Needs root (only root keeps evidence).
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import timing
from tuner import fast
from tuner.cli import main as command_line
from tuner.shipped import PACKAGE
from tuner.sim import store

HOST, PROFILE = "mi300x-cx7", "mi300x"
PYTHON = sys.executable

CONSOLE_SCRIPT = """#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from tuner.fast import finish
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    finish(sys.argv[1:])
    sys.exit(1)
"""
"""The wrapper of pip 23 for an entry point, around the same function."""

SHELL = """#!/bin/bash
die() { echo "$*" >&2; exit 1; }
check_cat() {
    local line
    line=$(cat "$1")
    [[ "${line%%$'\\n'*}" == "$2" ]] || die "$1: $line"
}
check_read() {
    local line
    IFS= read -r line < "$1" || [[ -n "$line" ]] || :
    [[ "$line" == "$2" ]] || die "$1: $line"
}
"""


def prepare(folder: Path) -> tuple[Path, int, list[tuple[str, str]]]:
    """A copy of the recorded host with the profile applied; the number of looks; (path, first line) of what is read."""
    root = folder / HOST
    store.copy(PACKAGE.parent / "tests/hosts" / f"{HOST}.host", str(root), [])
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        former, sys.stdout = sys.stdout, nowhere
        try:
            code = command_line(["apply", "--profile", PROFILE, "--root", str(root), "--allow", "all"])
        finally:
            sys.stdout = former
    kept = fast.load(str(root)) if code == 0 else None
    if kept is None:
        raise SystemExit("no evidence was kept: run this as root, on a tree that nobody edits")
    looks = sum(len(rows) for _, rows in (*kept[5], *kept[6]))
    reads = [row for kind, rows in kept[6] if kind == "read" for row in rows]
    texts = [(f"{root}{path}", found) for path, _, found in reads if isinstance(found, bytes)]
    lines = [(path, text.decode("utf-8", "replace").splitlines()) for path, text in texts]
    return root, looks, [(path, rows[0] if rows else "") for path, rows in lines]


def scripts(folder: Path, files: list[tuple[str, str]]) -> tuple[Path, Path, Path]:
    """The console script, and the shell scripts with each kind of check."""
    texts = {"console-script": CONSOLE_SCRIPT.format(python=PYTHON)}
    for kind in ("read", "cat"):
        checks = "".join(f"check_{kind} {shlex.quote(path)} {shlex.quote(line)}\n" for path, line in files)
        texts[f"{kind}.sh"] = SHELL + checks
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder / "console-script", folder / "read.sh", folder / "cat.sh"


def sysctls(folder: Path, count: int = 50) -> Path | None:
    """A testinfra test of `count` sysctls of this machine; None where testinfra is not installed."""
    if importlib.util.find_spec("testinfra") is None:
        return None
    found: dict[str, int] = {}
    for path in sorted(Path("/proc/sys").rglob("*")):
        if len(found) == count:
            break
        if path.is_file() and path.stat().st_mode & 0o444 and "net/ipv4" in str(path):
            text = path.read_text(encoding="ascii", errors="replace").strip() if os.access(path, os.R_OK) else ""
            if text.isdigit():
                found[".".join(path.parts[3:])] = int(text)
    test = folder / "test_sysctls.py"
    rows = "\n".join(f"    assert host.sysctl({name!r}) == {value}" for name, value in found.items())
    test.write_text(f"def test_sysctls(host):\n{rows}\n", encoding="utf-8")
    return test


def main(rounds: int) -> str:
    """Prepares, measures, returns the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        time.sleep(0.1)
        root, looks, files = prepare(folder)
        wrapper, by_read, by_cat = scripts(folder, files)
        words = ["verify", "--root", str(root)]
        commands = {
            "python3 -I -c pass": [PYTHON, "-I", "-c", "pass"],
            "tuner verify (launcher)": [PYTHON, str(PACKAGE / "launcher"), *words],
            "tuner verify (console script of pip)": [str(wrapper), *words],
            "tuner verify, full": [PYTHON, "-c", "from tuner.cli import main; raise SystemExit(main())", *words],
            "shell checks of as many files, read": ["/bin/bash", str(by_read)],
            "shell checks of as many files, cat": ["/bin/bash", str(by_cat)],
        }
        test = sysctls(folder)
        if test:
            alone = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}"]
            commands["pytest-testinfra, 50 sysctls"] = [PYTHON, "-m", "pytest", "-q", *alone, str(test)]
        notes = {
            "tuner verify (launcher)": f"{looks} looks",
            "shell checks of as many files, read": f"{len(files)} files",
            "shell checks of as many files, cat": "a process for each file",
            "pytest-testinfra, 50 sysctls": "a process for each sysctl",
        }
        rare = {"tuner verify, full": 3, "shell checks of as many files, cat": 10, "pytest-testinfra, 50 sysctls": 10}
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE.parent), "HOME": str(folder)}
        found = timing.timed(commands, rounds, environment, rare)
        left = "" if test else "\n(pytest-testinfra is not installed: left out)"
        return f"{timing.machine()}, {rounds} rounds in turn\n{timing.table(found, notes)}{left}"


if __name__ == "__main__":
    sys.stdout.write(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40) + "\n")
