"""verify for other programs: `--format` says it as they read it, `--watch` says what changes while it looks on."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tuner import documents, formats, off, render
from tuner.cli import judge
from tuner.cli.common import exit_of
from tuner.errors import Exit, TunerError, worst
from tuner.host import Host, Unrecorded
from tuner.ledger import Applied
from tuner.model import Plan, Verdict

Event = Literal["begin", "settings", "changed", "off", "on", "failed", "again"]


@dataclass(frozen=True)
class Look:
    """What one look found: the verdicts, or in `trouble` why there are none. `code` is what verify ends with."""

    code: int
    host: Host | None = None
    applied: Applied | None = None
    made: Plan | None = None
    off: str = ""
    trouble: str = ""

    @property
    def judges(self) -> tuple[int, str, str]:
        """What is judged: generation (0 for a profile), when it was applied, settings id."""
        number, when = (self.applied.generation, self.applied.when) if self.applied else (0, "")
        return number, when, self.made.settings_id if self.made else ""


@dataclass(frozen=True)
class News:
    """One thing that is said. For `changed`: how a setting stands, and how it stood (None: seen for the first time)."""

    event: Event
    verdict: Verdict | None = None
    was: Verdict | None = None


def formatted(args: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    """Answers verify --format: the exit code that goes with the format, and its text in UTF-8 whatever the locale."""
    host, applied, made = judge.look(args)
    notes = judge.notes(host, applied) if applied else []
    code = worst([exit_of(v) for v in made.verdicts])
    text = formats.render(args.format, made, host, applied, notes, code)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return formats.exit_code(args.format, code), {}, text.removesuffix("\n").split("\n")


def watch(args: argparse.Namespace) -> tuple[int, dict[str, Any], list[str]]:
    """Answers verify --watch: prints what changes until a signal comes or nobody reads; ends as verify would then.

    The first look may fail as verify does (TunerError); a later one that fails is a line, and the next is awaited.
    """
    say = _say_json if args.json else _say_text
    with _listening() as ended:
        start = time.monotonic()
        now = good = _looked(args)
        with contextlib.suppress(OSError):  # nobody reads, or the disk is full: who prints the end says so
            say(now, news(None, now, now))
            while not ended(due(start, args.watch, time.monotonic()) - time.monotonic()):
                former, now = now, _once_more(args)
                say(now, news(good, former, now))
                good = good if now.trouble else now
    return now.code, {}, []


def due(start: float, seconds: float, now: float) -> float:
    """When the next look is due: the first multiple of `seconds` after `start` that is still to come."""
    return start + (math.floor((now - start) / seconds) + 1) * seconds


def _looked(args: argparse.Namespace) -> Look:
    host, applied, made = judge.look(args)
    host.let_go()
    return Look(worst([exit_of(v) for v in made.verdicts]), host, applied, made, off.state(host))


def _once_more(args: argparse.Namespace) -> Look:
    """A look that may fail: a monitor outlives an unmounted root, a rollback and a profile that is being edited."""
    try:
        return _looked(args)
    except TunerError as error:
        return Look(int(error.code), trouble=str(error))
    except OSError as error:
        return Look(Exit.UNKNOWN, trouble=f"{error.filename or args.root or '/'}: {error.strerror or error}")
    except (Unrecorded, ValueError) as error:
        return Look(Exit.UNKNOWN, trouble=str(error) or type(error).__name__)


@contextlib.contextmanager
def _listening() -> Iterator[Callable[[float], bool]]:
    """Yields ended(seconds): waits so long, or until SIGINT, SIGTERM, SIGHUP or the end of our reader: then True.

    A signal writes into a pipe (signal.set_wakeup_fd), so none is lost that comes in mid-look; one that is ignored
    already (nohup) stays so. poll(2) reports a pipe that nobody reads any more as POLLERR though no event is asked for.
    """
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    heard, told = os.pipe()
    os.set_blocking(told, False)
    waiting = select.poll()
    waiting.register(heard, select.POLLIN)
    with contextlib.suppress(OSError, ValueError):
        waiting.register(sys.stdout.fileno(), 0)
    former_handle = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    former = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield lambda seconds: bool(waiting.poll(max(0, math.ceil(seconds * 1000))))
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_handle)
        os.close(heard)
        os.close(told)


# --- what is said -------------------------------------------------------------------------------------------------


def news(good: Look | None, former: Look, now: Look) -> list[News]:
    """What is new in `now`: `former` is the look before, `good` the last one that had verdicts (None at the start)."""
    if now.trouble:
        return [] if now.trouble == former.trouble else [News("failed")]
    found: list[News] = []
    if good is None:
        found.append(News("begin"))
    elif now.judges != good.judges:
        found.append(News("settings"))
    elif former.trouble:
        found.append(News("again"))
    if now.off != (good.off if good else ""):
        found.append(News("off" if now.off else "on"))
    return [*found, *_rows(_verdicts(good), _verdicts(now))]


def _verdicts(found: Look | None) -> tuple[Verdict, ...]:
    return found.made.verdicts if found and found.made else ()


def _rows(before: tuple[Verdict, ...], now: tuple[Verdict, ...]) -> list[News]:
    """Settings in another state, or not as wanted and with another value; of those not seen before, what fails."""
    known = {v.setting.at: v for v in before}
    found = []
    for verdict in now:
        was = known.get(verdict.setting.at)
        if was is None:
            told = documents.effective(verdict) not in ("ok", "raised", "unsupported")
        else:
            moved = verdict.state not in ("ok", "raised") and verdict.reading != was.reading
            told = verdict.state != was.state or moved
        if told:
            found.append(News("changed", verdict, was))
    return found


def _say_text(now: Look, found: list[News]) -> None:
    clock = time.strftime("%H:%M:%S")
    for one in found:
        lines = _begin(now) if one.event == "begin" else [f"{clock}  {_line(now, one)}"]
        render.write(lines)


def _begin(now: Look) -> list[str]:
    if now.made is None or now.host is None:
        return []
    lines = [render.head(now.host, now.made.settings_id), render.counted(now.made, planning=False)]
    return [*lines, f"Applied: {_applied(now.applied)}"] if now.applied else lines


def _applied(found: Applied) -> str:
    return f"generation {found.generation}, profile {found.profile}, {found.when} by {found.who}"


def _line(now: Look, one: News) -> str:
    if one.verdict is not None:
        return _changed(one.verdict, one.was)
    if now.made is None:
        return f"cannot judge: {now.trouble}"
    what = _applied(now.applied) if now.applied else f"profile {now.made.profile}, settings {now.made.settings_id[:8]}"
    counted = render.counted(now.made, planning=False)
    lines = {
        "settings": f"judged from here on: {what}: {counted}",
        "again": f"judged again: {counted}",
        "off": f"tuner is off: {now.off}",
        "on": "tuner is on again",
    }
    return lines[one.event]


def _changed(verdict: Verdict, was: Verdict | None) -> str:
    """`sysctl vm.swappiness  ok -> drift  (60, want 1)`; in the same state with the former value before the new one."""
    state, place, running, want, _, note = render.verdict_row(verdict)
    if was is not None and was.state == state:
        running = f"{render.verdict_row(was)[2]} -> {running}"
    elif was is not None:
        state = f"{was.state} -> {state}"
    return f"{place}  {state}  ({running}, want {want}{'; ' if note else ''}{note})"


def _say_json(now: Look, found: list[News]) -> None:
    for one in found:
        sys.stdout.write(json.dumps(_document(now, one)) + "\n")
        sys.stdout.flush()


def _document(now: Look, one: News) -> documents.Document:
    """tuner.watch/1."""
    made = now.made
    document: documents.Document = {
        "schema": "tuner.watch/1",
        "when": off.now().isoformat(),
        "event": one.event,
        "exit": int(now.code),
        "host": documents.host(now.host) if now.host else None,
        "profile": made.profile if made else None,
        "settings_id": made.settings_id if made else None,
        "generation": now.applied.generation if now.applied else None,
        "state": documents.worst_state(made) if made else None,
        "counts": made.counts() if made else {},
        "why": now.trouble or (now.off if one.event == "off" else ""),
    }
    if one.verdict is not None:
        document["verdict"] = documents.verdict(one.verdict)
        was = documents.verdict(one.was) if one.was else None
        document["was"] = {n: was[n] for n in ("state", "running", "running_why") if n in was} if was else None
    return document
