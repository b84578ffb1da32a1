"""The one way to start a program: a list, no shell, bounded in time, in the C locale."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass

ENVIRONMENT = ("PATH", "HOME")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GRACE = 1.0
"""Seconds that are left for the pipe to close after the process group was killed."""


@dataclass(frozen=True)
class Ran:
    """What a program gave: `failure` is empty when it ended by itself with exit code 0."""

    code: int | None
    out: str
    err: str
    failure: str


def run(argv: list[str], timeout: float) -> Ran:
    """Runs a program without standard input; after `timeout` seconds its whole process group is killed.

    Output is decoded as UTF-8 with replacement. A child that keeps the pipe open does not keep us.
    """
    environment = {"LC_ALL": "C", **{name: os.environ[name] for name in ENVIRONMENT if name in os.environ}}
    environment.setdefault("PATH", SYSTEM_PATH)
    try:
        process = subprocess.Popen(  # noqa: S603  (a list of our own, never a shell)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(None, "", "", f"{argv[0]} cannot be started: {error.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return _killed(process, argv, timeout)
    text, complaint = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
    failure = f"{argv[0]} ended with {process.returncode}: {complaint.strip()[:200]}" if process.returncode else ""
    return Ran(process.returncode, text, complaint, failure)


def _killed(process: subprocess.Popen[bytes], argv: list[str], timeout: float) -> Ran:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    out, err = b"", b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        out, err = process.communicate(timeout=GRACE)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.poll()
    why = f"{argv[0]} did not end within {timeout:g} s and was killed"
    return Ran(None, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), why)
