"""Commands and NVML of a recorded host: files below /.tuner-host/{cmd,nvml}.

    nvml/0000:1b:00.0/power     the answer as JSON, or `error GPU_IS_LOST`; nvml/system/... for the system
    cmd/nvidia-smi topo -m      `exit 0`, then what the command wrote to stdout

What NVML would set goes through the host's rules, as a write to a kernel file does.
"""

from __future__ import annotations

import errno
import json
import posixpath
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tuner.host.door import Host, Unrecorded
from tuner.host.nvml import GETS, fault
from tuner.host.shell import Ran
from tuner.host.tree import fault as file_fault

NVML, COMMANDS = "nvml", "cmd"
PREFIX = "NVML: "
"""How an error of NVML begins: tuner.host.nvml.fault."""
SYSTEM = "system"
FAILED = "error "


def nvml_path(mark: str, address: str, name: str) -> str:
    """Where the answer to one question to NVML lies."""
    return f"/{mark}/{NVML}/{address or SYSTEM}/{name}"


def command_path(mark: str, argv: Sequence[str]) -> str:
    """Where the output of a command lies: its words, the program without its folder, no slash."""
    words = [posixpath.basename(argv[0]), *argv[1:]]
    return f"/{mark}/{COMMANDS}/{' '.join(words).replace('/', '%2F')}"


def answer(text: str) -> Any:
    """What a recorded answer of NVML says; OSError where it was an error, ValueError where it is none."""
    if text.startswith(FAILED):
        raise fault(text[len(FAILED) :].strip())
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_no_number)
    except RecursionError:
        raise ValueError("an answer of NVML that is nested without end") from None


def _no_number(found: str) -> NoReturn:
    raise ValueError(f"{found:.60} is no number that NVML gives")


def shown(value: Any) -> str:
    """An answer as it is recorded."""
    return f"{json.dumps(value)}\n"


def ran(text: str) -> Ran:
    """A recorded command."""
    first, _, out = text.partition("\n")
    code = int(first.removeprefix("exit "))
    return Ran(code, out, "", f"ended with {code}" if code else "")


class RecordedNvml:
    """NVML of a recorded host; `read` reads one of its files, `write` lets its rules answer."""

    def __init__(self, mark: str, read: Any, write: Any) -> None:
        self.mark, self._read, self._write = mark, read, write

    def get(self, address: str, name: str) -> Any:
        """As Nvml.get."""
        if name not in GETS:
            raise ValueError(f"NVML has no getter for {name}")
        return answer(self._read(nvml_path(self.mark, address, name)))

    def close(self) -> None:
        """As Nvml.close: nothing is open."""

    def set(self, address: str, name: str, value: Any) -> Any:
        """As Nvml.set."""
        self._write(nvml_path(self.mark, address, name), shown(value))
        try:
            return answer(self._read(nvml_path(self.mark, address, f"{name}_activation")))
        except (FileNotFoundError, Unrecorded):
            return None


class RecordingNvml:
    """NVML of a host, read through; `note` gets what each question was answered."""

    def __init__(self, mark: str, inner: Host, note: Callable[[str, str | OSError], None]) -> None:
        self.mark, self._inner, self._note = mark, inner, note

    def get(self, address: str, name: str) -> Any:
        """As Nvml.get; the library may be missing altogether."""
        path = nvml_path(self.mark, address, name)
        try:
            value = self._inner.nvml.get(address, name)
        except OSError as error:
            said = error.strerror or ""
            known = said.startswith(PREFIX)
            self._note(path, f"{FAILED}{said[len(PREFIX) :].upper().replace(' ', '_')}\n" if known else error)
            raise
        self._note(path, shown(value))
        return value

    def set(self, address: str, name: str, value: Any) -> Any:
        """Refused: what is recorded is only read."""
        raise file_fault(errno.EROFS, nvml_path(self.mark, address, name))

    def close(self) -> None:
        """As Nvml.close."""
        self._inner.let_go()
