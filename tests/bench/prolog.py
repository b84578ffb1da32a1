"""What the check before a job costs, beside a bare interpreter and beside what others do.

    python -m tests.bench.prolog [ROUNDS]

On a recorded MI300X node with the whole profile applied and a policy that enforces it: the bare interpreter, the script
of prolog.d where it has nothing to do (off), the script with the check behind it, the check alone, and shell functions
that read as many files as the check looks at (as LBNL NHC checks do). Needs root (only root keeps evidence).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.bench import timing
from tests.bench.verify import PYTHON, prepare, scripts
from tuner import fast
from tuner.cli import main as command_line
from tuner.slurm import KEY, script

POLICY = "mode: enforce\nbudget_s: 60\nenforce: [sysctl, cpu, thp, hugepages, amdgpu.clock]\n"


def quiet(*words: object) -> int:
    """A call of the command line that prints nothing."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        former, sys.stdout = sys.stdout, nowhere
        try:
            return command_line([str(word) for word in words])
        finally:
            sys.stdout = former


def enforce(root: Path) -> int:
    """A policy on the node, and evidence under it; the number of looks that a check makes."""
    (root / "etc/tuner/slurm.yaml").write_text(POLICY, encoding="utf-8")
    quiet("verify", "--root", root)
    kept = fast.load(str(root))
    if kept is None or KEY not in kept[-1]:
        raise SystemExit("no answer was kept: run this as root, on a tree that nobody edits")
    return sum(len(rows) for _, rows in (*kept[5], *kept[6]))


def install(folder: Path, root: Path) -> tuple[Path, Path]:
    """The script that checks `root`, and the same for a root where the policy says off."""
    off = folder / "off"
    (off / "etc/tuner").mkdir(parents=True)
    (off / "proc").mkdir()
    (off / "proc/cmdline").write_text("quiet\n", encoding="ascii")
    (off / "etc/tuner/slurm.yaml").write_text("mode: off\n", encoding="ascii")
    found = []
    for name, judged in (("check.sh", root), ("off.sh", off)):
        path = folder / name
        path.write_text(script.script(PYTHON, str(judged)), encoding="ascii")
        path.chmod(0o755)
        found.append(path)
    return found[0], found[1]


def main(rounds: int) -> str:
    """Prepares, measures, returns the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root, _, files = prepare(folder)
        looks = enforce(root)
        _, by_read, by_cat = scripts(folder, files)
        check, off = install(folder, root)
        commands = {
            "python3 -I -c pass": [PYTHON, "-I", "-c", "pass"],
            "script, nothing to do": [str(off)],
            "script with the check": [str(check)],
            "check alone": [PYTHON, "-I", "-c", script.CALL, "--root", str(root)],
            "shell checks of as many files, read": ["/bin/bash", str(by_read)],
            "shell checks of as many files, cat": ["/bin/bash", str(by_cat)],
        }
        notes = {
            "script with the check": f"{looks} looks",
            "shell checks of as many files, read": f"{len(files)} files",
            "shell checks of as many files, cat": "a process for each file",
        }
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        found = timing.timed(commands, rounds, environment, {"shell checks of as many files, cat": 10})
        return f"{timing.machine()}, {rounds} rounds in turn\n{timing.table(found, notes)}"


if __name__ == "__main__":
    sys.stdout.write(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40) + "\n")
