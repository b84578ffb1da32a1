"""fleet: the verbs over an inventory of Ansible, and what nodes are installed from."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import Any

from tuner.cli.common import Answer
from tuner.errors import Exit, bad_input
from tuner.fleet import ansible, bundle, results
from tuner.fleet.hostlist import compress
from tuner.run import Stop
from tuner.shipped import folder

MOST = 16
"""Hosts that may be written to without --limit: a slip of the finger stays small."""


def fleet(args: argparse.Namespace) -> Answer:
    """plan, apply, verify or rollback on every host of the inventory."""
    call = ansible.Call(tuple(args.inventories), args.limit or "", args.forks or 0, _options(args), _variables(args))
    names = ansible.hosts(call)
    if args.under in ("apply", "rollback") and len(names) > MOST and not args.limit:
        hint = f"name them: --limit all, or --limit GROUP; they are {_short(names)}"
        raise bad_input("", f"{args.under} on {len(names)} hosts without --limit; at most {MOST} are", hint)
    found = results.Results(names)
    with Stop().listening() as stop, _Progress(args.under, len(names)) as progress:

        def heard(event: ansible.Event) -> bool:
            node = found.hear(event)
            if node:
                progress.tell(node, len(found.nodes))
            return True

        said = ansible.play(args.under, call, heard, stop)
    if not found.nodes and not stop.name:
        raise ansible.failed(said or "ended without a word of any host")
    nodes = found.all(f"stopped by {stop.name}" if stop.name else said)
    if results.telling(nodes):
        where = ansible.addresses(call)
        nodes = [replace(node, address=where.get(node.name, "")) for node in nodes]
    document = results.document(args.under, nodes, args.inventories, stop.name)
    return results.exit_of(nodes), document, results.lines(args.under, nodes, stop.name)


def _short(names: list[str]) -> str:
    text = compress(names)
    return text if len(text) <= 80 else text[:77] + "..."


def _options(args: argparse.Namespace) -> tuple[str, ...]:
    """Files with passwords are named, never read: Ansible reads them."""
    given = {ansible.VAULT: args.vault, "--become-password-file": args.become}
    for option, file in given.items():
        if file and not os.path.exists(file):
            raise bad_input(f"{option} {file}", "no such file", "Ansible reads the password from it")
    return tuple(word for option, file in given.items() if file for word in (option, os.path.abspath(file)))


def _variables(args: argparse.Namespace) -> dict[str, Any]:
    """What was given here wins over the inventory."""
    given = {
        "tuner_profile": getattr(args, "profile", None),
        "tuner_overlays": getattr(args, "overlays", None),
        "tuner_set": getattr(args, "sets", None),
        "tuner_allow": getattr(args, "allow", None),
        "tuner_expect": getattr(args, "expect", None),
        "tuner_to": getattr(args, "to", None),
        "tuner_force": getattr(args, "force", None),
    }
    return {name: value for name, value in given.items() if value not in (None, [], False)}


class _Progress:
    """On a terminal one line that is written over, else a line for each host; on stderr, stdout has the answer."""

    def __init__(self, verb: str, total: int) -> None:
        self.verb, self.total, self.failed = verb, total, 0
        self.live, self.start = sys.stderr.isatty(), time.monotonic()

    def __enter__(self) -> _Progress:
        if self.live:
            self._write(f"\r\033[Kfleet {self.verb}: {self.total} hosts, 0 done")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self._write("\r\033[K")

    def tell(self, node: results.Node, done: int) -> None:
        """One host has ended."""
        self.failed += node.code not in (Exit.OK, Exit.PENDING, Exit.HELD) and self.verb != "plan"
        if not self.live:
            self._write(f"{node.name}: {node.state} ({done}/{self.total})\n")
            return
        left = (time.monotonic() - self.start) / done * (self.total - done)
        text = f"fleet {self.verb}: {self.total} hosts, {done} done, {self.failed} failed"
        self._write(f"\r\033[K{text}, about {left:.0f} s left")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self.live = False


def fleet_bundle(args: argparse.Namespace) -> Answer:
    """Builds what nodes are installed from."""
    made = bundle.build(args.directory)
    document = {
        "schema": "tuner.bundle/1",
        "path": made.path,
        "version": made.version,
        "release": made.release,
        "digest": made.digest,
        "size": made.size,
    }
    return Exit.OK, document, [f"{made.path}: tuner {made.version}, {made.size // 1024} KiB unpacked"]


def fleet_playbooks(_: argparse.Namespace) -> Answer:
    """Where the playbooks and the modules are."""
    path = str(folder("playbooks"))
    return Exit.OK, {"schema": "tuner.playbooks/1", "path": path}, [path]
