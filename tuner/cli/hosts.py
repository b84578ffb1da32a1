"""host list, host copy: the recorded hosts that come with tuner."""

from __future__ import annotations

import argparse
import os

from tuner import render
from tuner.cli.common import Answer
from tuner.errors import Exit, bad_input
from tuner.host.recorded import MARK
from tuner.shipped import folder, names
from tuner.sim import store


def list_hosts(args: argparse.Namespace) -> Answer:
    """Name, kernel, summary and faults of each."""
    rows, documents = [], []
    for name in names("hosts", ".host"):
        about, faults = store.about(folder("hosts") / f"{name}.host")
        documents.append({"name": name, **about, "faults": faults})
        rows.append((name, about.get("kernel", ""), about.get("summary", "")))
        rows += [("", f"--fault {fault}", what) for fault, what in faults.items()]
    return Exit.OK, {"schema": "tuner.hosts/1", "hosts": documents}, render.table(rows, group=False)


def copy(args: argparse.Namespace) -> Answer:
    """Makes the tree."""
    path = folder("hosts") / f"{args.name}.host"
    if "/" in args.name or args.name.endswith(".host") or (not path.is_file() and os.path.isfile(args.name)):
        path = type(path)(args.name)
    if not path.is_file():
        raise bad_input(args.name, "no such recorded host", f"known: {', '.join(names('hosts', '.host'))}")
    store.copy(path, args.directory, args.fault)
    document = {
        "schema": "tuner.host/1",
        "name": args.name,
        "root": os.path.abspath(args.directory),
        "faults": args.fault,
    }
    lines = [f"{args.directory} is a copy of {args.name}: tuner plan --root {args.directory} --profile NAME"]
    return Exit.OK, {**document, "mark": MARK}, lines
