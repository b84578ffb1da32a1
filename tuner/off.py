"""The off-switch: /etc/tuner/off or the boot token tuner.off stop everything that runs by itself, never an operator."""

from __future__ import annotations

import contextlib
import datetime
import json
import re

from tuner.errors import bad_input
from tuner.host import Host, Unrecorded
from tuner.host.door import make_parents

PATH = "/etc/tuner/off"
SPAN = re.compile(r"([1-9]\d{0,4})([mhd])")
MINUTES = {"m": 1, "h": 60, "d": 1440}


def now() -> datetime.datetime:
    """This moment, in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


def switch_off(host: Host, why: str, span: str | None, who: str) -> str:
    """Writes the switch, for `span` (such as 2h) or until `tuner on`; returns what `state` will say."""
    until = ""
    if span is not None:
        match = SPAN.fullmatch(span)
        if match is None:
            raise bad_input(f"--for {span}", "not a span of time", "a number and m, h or d, such as 2h")
        until = (now() + datetime.timedelta(minutes=int(match.group(1)) * MINUTES[match.group(2)])).isoformat()
    make_parents(host, PATH)
    text = json.dumps({"why": why, "who": who, "since": now().isoformat(), "until": until}) + "\n"
    host.put(PATH, text.encode("ascii"), 0o644)
    return state(host)


def switch_on(host: Host) -> bool:
    """Removes the switch; whether there was one."""
    if not host.exists(PATH):
        return False
    host.unlink(PATH)
    with contextlib.suppress(OSError):
        host.rmdir("/etc/tuner")
    return True


def state(host: Host) -> str:
    """Why tuner is off, in one line; empty when it is on. A switch that cannot be read counts as off."""
    try:
        if host.kind != "image" and "tuner.off" in host.text("/proc/cmdline").split():
            return "boot token tuner.off"
    except (OSError, Unrecorded):
        pass
    try:
        text = host.text(PATH)
    except (FileNotFoundError, NotADirectoryError, Unrecorded):
        return ""
    except OSError as error:
        return f"{PATH} cannot be read: {error.strerror}"
    return _said(text)


def _said(text: str) -> str:
    try:
        switch = json.loads(text)
        until = switch["until"]
        if until and datetime.datetime.fromisoformat(until) <= now():
            return ""
        span = f"until {until}" if until else "until tuner on"
        return f"{switch['why']} ({switch['who']}, since {switch['since']}, {span})"
    except (ValueError, KeyError, TypeError):
        return f"{PATH} is there"
