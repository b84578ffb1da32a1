"""Commands in the machine: one ssh connection, over which each command goes without a new key exchange."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OPTIONS = (
    "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-F", "none",
)  # fmt: skip

LOST = 255
"""ssh's own exit code when the connection is gone."""

TRY = 15
"""Seconds for one attempt to connect."""


@dataclass(frozen=True)
class Result:
    """What a command in the machine gave."""

    code: int
    out: str
    err: str


def tied(*command: object) -> list[str]:
    """The command as one that dies with us, however we end: setpriv(1), PR_SET_PDEATHSIG in prctl(2)."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *map(str, command)]


def free_port() -> int:
    """A TCP port of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Shell:
    """Root's shell in the machine, by way of a forwarded port. Its socket lies in `folder`."""

    def __init__(self, key: Path, port: int, folder: Path) -> None:
        self._socket = folder / "ssh"
        self._words = ["ssh", *OPTIONS, "-i", str(key), "-p", str(port), "-S", str(self._socket), "root@127.0.0.1"]
        self._master: subprocess.Popen[bytes] | None = None

    def connect(self) -> bool:
        """One attempt; whether the connection stands."""
        null, words = subprocess.DEVNULL, tied("ssh", "-M", "-N", *self._words[1:])
        self._master = subprocess.Popen(words, stdin=null, stdout=null, stderr=null)
        end = time.monotonic() + TRY
        while self._master.poll() is None and time.monotonic() < end:
            if self._socket.exists():
                return True
            time.sleep(0.05)
        self.close()
        return False

    def run(self, command: Sequence[str] | str, given: bytes, limit: float) -> Result:
        """A command as words, or a script for sh as one text. TimeoutError after `limit` seconds."""
        line = command if isinstance(command, str) else shlex.join(command)
        words = [*self._words, f"exec sh -c {shlex.quote(line)}"]
        try:
            done = subprocess.run(tied(*words), input=given, capture_output=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no end of: {line}") from None
        return Result(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def close(self) -> None:
        """Ends the connection."""
        if self._master is not None:
            self._master.kill()
            self._master.wait()
            self._master = None
        self._socket.unlink(missing_ok=True)
