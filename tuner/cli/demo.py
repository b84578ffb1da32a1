"""demo: what tuner does, shown on a copy of a recorded host that is made for it and removed afterwards.

Nothing of this machine is changed. What lies in the tree of the copy is compared before and after byte for byte, but
for tuner's own state and for `.tuner-host`, which is not part of the host.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tuner.cli.common import Answer
from tuner.cli.parser import MODULES, parse
from tuner.errors import Exit, TunerError
from tuner.host import Host
from tuner.host.recorded import MARK, OWN, RecordedHost
from tuner.sim import store

HOST = "mi300x-cx7"
PROFILE = ["--profile", "mi300x", "--with", "deterministic-clocks"]
BROKEN = (
    ("60", "/proc/sys/vm/swappiness", 0),
    ("powersave", "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", 0),
    ("high", "/sys/bus/pci/devices/0000:05:00.0/power_dpm_force_performance_level", 1),
)
"""What somebody writes by hand, where, and what a shell ends with: an MI300X refuses `high` and drops its cap."""

LOST = "gpu-lost"

Entry = tuple[int, bytes]


def demo(args: argparse.Namespace) -> Answer:
    """Copy, plan, apply, verify, break, verify, mend, roll back, compare."""
    with tempfile.TemporaryDirectory(prefix="tuner-demo-") as folder:
        show = Show(os.path.join(folder, HOST))
        restored = _play(show)
    show.say("Every file of the host is as it was before, byte for byte." if restored else "THE HOST IS NOT AS IT WAS.")
    show.lines += [f"NOT AS TOLD: {wrong}" for wrong in show.wrong]
    document = {"schema": "tuner.demo/1", "steps": show.steps, "restored": restored}
    return Exit.DIFFERS if show.wrong or not restored else Exit.OK, document, show.lines


@dataclass
class Show:
    """The commands so far, with what each printed and ended with."""

    root: str
    lines: list[str] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A line between commands."""
        self.lines += ["", text]

    def tuner(self, expected: Exit, *words: str) -> None:
        """One call of tuner, as if it were typed."""
        args = parse(words)
        verb = getattr(importlib.import_module(f"tuner.cli.{MODULES[args.verb]}"), args.verb)
        try:
            code, _, lines = verb(args)
        except TunerError as error:
            code, lines = error.code, [f"tuner: {problem.where} {problem.what}" for problem in error.problems]
        self._record(shlex.join(["tuner", *words]), int(code), int(expected), lines)

    def on_copy(self, expected: Exit, verb: str, *words: str) -> None:
        """One call of tuner on the copy."""
        self.tuner(expected, verb, "--root", self.root, *words)

    def echo(self, host: Host, text: str, path: str, expected: int) -> None:
        """Somebody writes a kernel file of the copy in a shell; its rules answer as the kernel would."""
        code, lines = 0, []
        try:
            host.write(path, f"{text}\n")
        except OSError as error:
            code, lines = 1, [f"echo: write error: {error.strerror}"]
        self._record(f"echo {text} > {shlex.quote(self.root + path)}", code, expected, lines)

    def _record(self, command: str, code: int, expected: int, lines: list[str]) -> None:
        self.lines += ["", f"$ {command}", *lines, f"exit code {code}"]
        self.steps.append({"command": command, "exit": code, "expected": expected})
        if code != expected:
            self.wrong.append(f"{command}: exit code {code} where {expected} is right")


def _play(show: Show) -> bool:
    """Runs the demonstration; whether the host is at its end as it was before."""
    show.lines.append(f"On a copy of the recorded host {HOST}, removed at the end. Nothing of this machine is changed.")
    show.tuner(Exit.OK, "host", "copy", HOST, show.root)
    before = dict(_tree(show.root))
    show.on_copy(Exit.OK, "detect")
    show.on_copy(Exit.DIFFERS, "plan", *PROFILE)
    show.on_copy(Exit.OK, "apply", *PROFILE)
    show.on_copy(Exit.OK, "verify")
    show.say("Somebody changes three values by hand; the third is refused, and still ends the clock cap of that GPU:")
    host = RecordedHost(show.root)
    for text, path, code in BROKEN:
        show.echo(host, text, path, code)
    show.say(f"One GPU falls off the bus (fault {LOST} of the recorded host):")
    store.break_copy(show.root, LOST)
    show.on_copy(Exit.MISSING, "verify")
    show.say("The GPU is back after a reset, as it starts; apply mends what differs:")
    store.mend_copy(show.root)
    show.on_copy(Exit.OK, "apply", *PROFILE)
    show.on_copy(Exit.OK, "verify")
    show.say("Back to before tuner came:")
    show.on_copy(Exit.OK, "rollback", "--to", "0")
    return dict(_tree(show.root)) == before


def _tree(root: str) -> Iterator[tuple[str, Entry]]:
    """(path, (kind and mode, content or where a link points)) of all that is below the root of the host."""
    for folder, names, files in os.walk(root):
        here = folder[len(root) :]
        names[:] = [name for name in names if f"{here}/{name}" not in (*OWN, f"/{MARK}")]
        for name in [*names, *files]:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                with contextlib.suppress(PermissionError), open(path, "rb") as file:  # one with a write bit only
                    content = file.read()
            yield f"{here}/{name}", (mode, content)
