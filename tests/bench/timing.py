"""Commands timed in turn, so that all of them meet the same machine; medians as ratios to the first."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One run: seconds on the wall, seconds of CPU (user and system)."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Timed:
    """A command with what it cost, by the median; `memory` is its peak in MiB, `ratio` is to the first command."""

    name: str
    wall: float
    spread: float
    cpu: float
    memory: float
    ratio: float


def once(command: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Starts it with its output thrown away and waits for it; any exit code but 0 is an error."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    start = time.perf_counter()
    child = os.posix_spawn(command[0], list(command), dict(environment), file_actions=quiet)
    _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return Run(wall, used.ru_utime + used.ru_stime)


MEMORY = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (1, 2)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
print(os.wait4(child, 0)[2].ru_maxrss)
"""


def memory(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Peak memory in MiB. Asked of a small process: the kernel counts what the parent had when it started the child."""
    line = [sys.executable, "-I", "-S", "-c", MEMORY, *command]
    return int(subprocess.run(line, env=environment, stdout=subprocess.PIPE, check=True).stdout) / 1024


def timed(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    environment: Mapping[str, str],
    rare: Mapping[str, int] | None = None,
) -> list[Timed]:
    """Each command once per round, in turn; one that is `rare` only every so many rounds. The first is the measure."""
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for command in commands.values():
        once(command, environment)
    for number in range(rounds):
        for name, command in commands.items():
            if number % (rare or {}).get(name, 1) == 0:
                runs[name].append(once(command, environment))
    base = statistics.median(run.wall for run in next(iter(runs.values())))
    return [_summary(name, found, base, memory(commands[name], environment)) for name, found in runs.items()]


def _summary(name: str, runs: list[Run], base: float, peak: float) -> Timed:
    walls = sorted(run.wall for run in runs)
    wall = statistics.median(walls)
    spread = walls[(3 * len(walls)) // 4] - walls[len(walls) // 4]
    cpu = statistics.median(run.cpu for run in runs)
    return Timed(name, wall, spread, cpu, peak, wall / base)


def table(found: Sequence[Timed], notes: Mapping[str, str]) -> str:
    """Aligned lines; milliseconds stand beside the ratios only to show what the ratios are of."""
    lines = [f"{'':44} {'ratio':>7} {'wall ms':>8} {'quartiles':>9} {'CPU ms':>7} {'MiB':>5}"]
    for t in found:
        lines.append(
            f"{t.name:44} {t.ratio:6.2f}x {t.wall * 1000:8.1f} {t.spread * 1000:9.1f} {t.cpu * 1000:7.1f} "
            f"{t.memory:5.0f}  {notes.get(t.name, '')}".rstrip()
        )
    return "\n".join(lines)


def machine() -> str:
    """What it was measured on."""
    return f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, kernel {os.uname().release}"
