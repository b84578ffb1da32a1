"""Talks to qemu over its QMP socket: docs/interop/qmp-spec of qemu, one JSON document per line."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any


class Refused(Exception):
    """qemu answered with an error."""


class Qmp:
    """One connection; TimeoutError after `limit` seconds without an answer, ConnectionError when qemu is gone."""

    def __init__(self, path: Path, limit: float = 30) -> None:
        self._socket = _connected(path, limit)
        self._lines = self._socket.makefile("rb")
        self._answer()
        self.execute("qmp_capabilities")

    def execute(self, command: str, fd: int | None = None, **arguments: Any) -> Any:
        """What the command gives. `fd` is handed over along with it, for `getfd`."""
        data = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        if fd is None:
            self._socket.sendall(data)
        else:
            socket.send_fds(self._socket, [data], [fd])
        answer = self._answer()
        if "error" in answer:
            raise Refused(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def close(self) -> None:
        """Ends the connection; qemu goes on."""
        self._lines.close()
        self._socket.close()

    def _answer(self) -> dict[str, Any]:
        """The next answer or greeting; events on the way are dropped."""
        while line := self._lines.readline():
            found: dict[str, Any] = json.loads(line)
            if "event" not in found:
                return found
        raise ConnectionError("qemu has closed its socket")


def _connected(path: Path, limit: float) -> socket.socket:
    """A connection to a socket that is about to appear."""
    end = time.monotonic() + limit
    while True:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(limit)
        try:
            made.connect(str(path))
            return made
        except (FileNotFoundError, ConnectionRefusedError):
            made.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
