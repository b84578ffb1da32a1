"""The command line: the only place that prints and the only one that exits."""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence

from tuner.errors import Exit, Problem, TunerError

LOOKING = ("plan", "verify", "status", "explain", "history", "detect")
"""Verbs that write nothing: whatever the system refuses them, the host is as it was, and nobody can tell how it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code of the contract in tuner.errors.Exit."""
    words = list(sys.argv[1:] if argv is None else argv)
    sys.stdout, sys.stderr = (
        stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (closed by whoever started us; lives as long as we)
        for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(words)
    except KeyboardInterrupt:
        if "--debug" in words:
            raise
        sys.stderr.write("tuner: stopped by SIGINT; nothing was being written\n")
        return 128 + 2


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Output that nobody takes changes no exit code: a closed pipe is quiet, a full disk is said."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno not in (errno.EPIPE, errno.EBADF):
            try:
                sys.stderr.write(f"tuner: the output cannot be written: {error.strerror}\n")
                sys.stderr.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _run(words: list[str]) -> int:
    try:
        return _answer(words)
    except TunerError as error:
        if "--debug" in words:
            raise
        if _plugin(words):
            return _unknown(error.problems)
        _complain(error, as_json="--json" in words)
        return int(error.code)
    except OSError as error:
        if "--debug" in words or words[0] not in LOOKING or _plugin(words):
            raise
        what = f"{error.filename or 'the system'}: {error.strerror or error}"
        _complain(TunerError(Problem("", what, "nothing was written; --debug shows where")), as_json="--json" in words)
        return int(Exit.UNKNOWN)
    except Exception as error:
        if "--debug" in words or not _plugin(words):
            raise
        return _unknown([Problem("", f"{type(error).__name__}: {error}", "tuner verify --debug shows where")])


def _plugin(words: list[str]) -> bool:
    """Whether a monitoring system called: known before the words are parsed, since bad usage is an answer to it too."""
    given = "--format=nagios" in words or ("--format", "nagios") in itertools.pairwise(words)
    return "verify" in words and given


def _unknown(problems: list[Problem]) -> int:
    """What keeps a plugin from its answer goes to stdout; 1 and 64 would mean something else there."""
    from tuner import formats

    with _printing():
        sys.stdout.write(formats.failed(problems))
    return formats.UNKNOWN


def _answer(words: list[str]) -> int:
    from tuner.cli.parser import MODULES, parse

    args = parse(words)
    verb = getattr(importlib.import_module(f"tuner.cli.{MODULES[args.verb]}"), args.verb)
    code, document, lines = verb(args)
    with _printing():
        if args.json and document:
            json.dump(document, sys.stdout, indent=1)
            sys.stdout.write("\n")
        else:
            from tuner import render

            render.write(lines)
    return int(code)


def _complain(error: TunerError, *, as_json: bool) -> None:
    if as_json:
        from tuner.documents import error as document

        with _printing():
            json.dump(document(Exit(error.code), error.problems), sys.stdout, indent=1)
            sys.stdout.write("\n")
    for problem in error.problems:
        where = f"{problem.where}: " if problem.where else ""
        text = f"tuner: {where}{problem.what}"
        hint = f"  hint: {problem.hint}\n" if problem.hint else ""
        sys.stderr.write("".join(c if c.isprintable() else "?" for c in text) + "\n" + hint)
