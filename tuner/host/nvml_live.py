"""NVML of this machine, asked through a process that may hang or crash without us.

A driver that is stuck keeps whoever calls it in the kernel (state D), where no signal arrives: so each answer has a
time limit, and a process that exceeds it is killed and never waited for. From then on NVML counts as hung for this run,
and for every later one while that process lives: each would leave another of its kind behind.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

from tuner import hung
from tuner.host.nvml import GETS, SETS, fault
from tuner.host.shell import ENVIRONMENT, SYSTEM_PATH

FIRST = 60.0
"""Seconds until the first answer: without persistence mode the driver initialises each GPU for its first client."""

LATER = 15.0
"""Seconds until any later one."""

STARTS = 2
"""Processes in all: one that died may have been a victim, for example of the memory limit; two are no chance."""

PASSING = 0.3
"""Seconds in which a process whose asker has gone ends by itself."""

GRACE = 0.5
"""Seconds that a killed process has to go when we end."""

LONGEST = 1 << 20
"""Bytes of an answer; the longest real one, all supported clocks, has some thousand."""

CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_child.py")
LOADER = "LD_LIBRARY_PATH"
"""By this the loader finds libnvidia-ml.so.1 where a driver is not in a system folder, as in containers."""


class Died(Exception):
    """The process gave no answer that can be used, and is gone: why."""


class Child:
    """One process and its pipes; `number` counts the questions, so that a late answer is told from the next one's."""

    def __init__(self, command: list[str]) -> None:
        environment = {name: os.environ[name] for name in (*ENVIRONMENT, LOADER) if name in os.environ}
        self.process = subprocess.Popen(  # noqa: S603  (our own file, never a shell)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            close_fds=True,
            start_new_session=True,
            env={"PATH": SYSTEM_PATH, **environment, "LC_ALL": "C"},
        )
        self.number, self._read, self.owner = 0, b"", os.getpid()
        self.close = weakref.finalize(self, _close, self.process)

    def ask(self, question: dict[str, Any], limit: float) -> dict[str, Any]:
        """The answer to this question; Died, or TimeoutError after `limit` seconds."""
        end = time.monotonic() + limit
        self.number += 1
        self._send(json.dumps({"id": self.number, **question}).encode() + b"\n")
        while True:
            said = read_answer(self._line(end), self.number)
            if said["id"] == self.number:
                return said

    def _send(self, line: bytes) -> None:
        """One write: the process reads before we ask again, and a line is shorter than what a pipe holds."""
        handle = _handle(self.process.stdin)
        os.set_blocking(handle, False)
        try:
            sent = os.write(handle, line)
        except BrokenPipeError:
            raise Died(self._end()) from None
        except BlockingIOError:
            sent = 0
        if sent != len(line):
            raise Died("it does not read its questions")

    def _line(self, end: float) -> bytes:
        handle = _handle(self.process.stdout)
        wait = select.poll()
        wait.register(handle, select.POLLIN)
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not wait.poll(left * 1000):
                raise TimeoutError
            read = os.read(handle, 65536)
            if not read:
                raise Died(self._end())
            self._read += read
            if len(self._read) > LONGEST:
                raise Died("its answer has no end")
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _end(self) -> str:
        """How the process ended, in words; a process is still on its way out when its pipe closes."""
        code = _gone(self.process, time.monotonic() + GRACE)
        if code is None:
            return "it closed its pipe"
        return f"it was ended by signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"it ended with {code}"


class LiveNvml:
    """Nvml of this machine. `first` and `later` are time limits in seconds, `command` is what answers."""

    def __init__(self, first: float = FIRST, later: float = LATER, command: list[str] | None = None) -> None:
        self.first, self.later = first, later
        self._command = command or [sys.executable, "-I", CHILD, f"{os.getpid()}.{hung.started(os.getpid())[1]}"]
        self._child: Child | None = None
        self._killed: list[Child] = []
        self._starts, self._initialised = 0, False
        self._over: tuple[int, str] | None = None

    def get(self, address: str, name: str) -> Any:
        """As Nvml.get."""
        if name not in GETS:
            raise ValueError(f"NVML has no getter for {name}")
        return self._ask({"op": "get", "address": address, "name": name})

    def set(self, address: str, name: str, value: Any) -> Any:
        """As Nvml.set; after ETIMEDOUT and EREMOTEIO nobody knows whether the driver still did it."""
        if name not in SETS:
            raise ValueError(f"NVML has no setter for {name}")
        return self._ask({"op": "set", "address": address, "name": name, "value": value})

    def close(self) -> None:
        """Ends the process, which lets go of the GPUs; the next question starts another. Happens by itself at exit.

        The driver forgets locked clocks and limits with its last client unless persistence mode is on.
        """
        self._reap()
        if self._child is not None:
            self._child.close()
            self._child, self._initialised = None, False
            self._starts -= 1

    def _ask(self, question: dict[str, Any]) -> Any:
        self._reap()
        if self._over is not None:
            raise OSError(*self._over)
        limit = self.later if self._initialised else self.first
        if not self._starts and (stuck := hanging()):
            self._give_up(errno.ETIMEDOUT, f"NVML hangs: process {stuck}, which asked it for tuner, does not end")
        try:
            said = self._running().ask(question, limit)
        except TimeoutError:
            self._give_up(errno.ETIMEDOUT, f"NVML did not answer within {limit:g} s")
        except Died as why:
            self._lost(f"the process that asks NVML is of no use: {why}")
        if "error" in said:
            raise fault(said["error"])
        self._initialised = True
        return said["ok"]

    def _running(self) -> Child:
        """The process; a copy of us that fork(2) made starts its own."""
        if self._child is None or self._child.owner != os.getpid():
            self._child, self._starts, self._initialised = None, self._starts + 1, False
            try:
                self._child = Child(self._command)
            except OSError as error:
                raise Died(f"it cannot be started: {error.strerror}") from None
        return self._child

    def _lost(self, why: str) -> NoReturn:
        if self._starts >= STARTS:
            self._give_up(errno.EREMOTEIO, why)
        self._kill()
        raise OSError(errno.EREMOTEIO, why)

    def _give_up(self, number: int, why: str) -> NoReturn:
        self._over = (number, why)
        self._kill()
        raise OSError(number, why)

    def _kill(self) -> None:
        """Kills the process and forgets it, but for the reaping."""
        if self._child is not None:
            _kill(self._child.process)
            self._killed.append(self._child)
        self._child, self._initialised = None, False
        self._reap()

    def _reap(self) -> None:
        self._killed = [child for child in self._killed if child.process.poll() is None]


def hanging() -> int:
    """The PID of a process that asked NVML for a tuner which is gone, and that does not end; 0 where there is none."""
    left = set(_orphans())
    if left:
        time.sleep(PASSING)
        left &= set(_orphans())
    return min(left, default=0)


def _orphans() -> Iterator[int]:
    """Processes that ask NVML for a tuner, named PID.START in their last word, which does not live any more."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read(8192).decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if len(words) > 3 and words[2].endswith(f"/{os.path.basename(CHILD)}"):
            asker, _, start = words[3].partition(".")
            gone = asker.isdigit() and hung.started(int(asker))[1] != start
            if gone and hung.started(pid)[0] not in ("", "Z", "X"):
                yield pid


def read_answer(line: bytes, newest: int) -> dict[str, Any]:
    """A line of the process: {id, ok} or {id, error}, for a question up to the newest; Died for anything else."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    right = isinstance(said, dict) and type(said.get("id")) is int and said["id"] <= newest
    if not right or ("ok" in said) == isinstance(said.get("error"), str):
        raise Died("its answer is no answer")
    return dict(said)


def _handle(pipe: Any) -> int:
    return int(pipe.fileno())


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process group and closes the pipes; does not wait."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _gone(process: subprocess.Popen[bytes], end: float) -> int | None:
    """The exit code, for which it waits until `end` of the monotonic clock."""
    while (code := process.poll()) is None and time.monotonic() < end:
        time.sleep(0.005)
    return code


def _close(process: subprocess.Popen[bytes]) -> None:
    """When the process is not needed any more, at the latest when we end: killed, and waited for within GRACE.

    In a copy of us that fork(2) made, poll finds no child of its own and so nothing is killed.
    """
    _kill(process)
    if _gone(process, time.monotonic() + GRACE) is None:
        process.returncode = -signal.SIGKILL  # it hangs in the driver: init reaps it, Popen must not complain
