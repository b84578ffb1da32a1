"""off, on: the off-switch."""

from __future__ import annotations

import argparse

from tuner import off as switching
from tuner import render
from tuner.cli.common import Answer, open_root, who
from tuner.errors import Exit, bad_input
from tuner.host import Host


def off(args: argparse.Namespace) -> Answer:
    """Switches off, with a reason."""
    host = open_root(args.root, writing=True)
    if not args.why.strip():
        raise bad_input("--why", "is empty", "say why: whoever finds the node off will ask")
    try:
        why = switching.switch_off(host, args.why, args.span, who())
    except OSError as error:
        raise bad_input(switching.PATH, f"cannot be written: {error.strerror}", "is /etc read-only?") from None
    return _said(host, why)


def on(args: argparse.Namespace) -> Answer:
    """Switches on again."""
    host = open_root(args.root, writing=True)
    try:
        switching.switch_on(host)
    except OSError as error:
        raise bad_input(switching.PATH, f"cannot be removed: {error.strerror}", "is /etc read-only?") from None
    code, document, lines = _said(host, switching.state(host))
    return code, document, [*lines, "What came anew meanwhile was not made so again: tuner apply --boot"]


def _said(host: Host, why: str) -> Answer:
    document = {"schema": "tuner.off/1", "off": why or None}
    return Exit.OK, document, [render.head(host), f"tuner is off: {why}" if why else "tuner is on"]
