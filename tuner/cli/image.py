"""image: a profile into the tree that nodes boot from: its files, and the units that make the rest so at boot."""

from __future__ import annotations

import argparse

from tuner.cli import change, persist
from tuner.cli.common import Answer, open_root
from tuner.errors import bad_input, worst


def image(args: argparse.Namespace) -> Answer:
    """Apply and persist install, both below DIR. Nothing runs there, so that every class is allowed."""
    host = open_root(args.directory)
    if host.kind != "image":
        what = f"is {'this machine' if host.kind == 'live' else 'a recorded host'}, not an image"
        raise bad_input(args.directory, what, "the root of a tree that nodes boot from; for others tuner apply")
    args.root = args.directory
    persist.check(host, args.python)
    code, applied, lines = change.apply(args)
    units, persisted, more = persist.install(args)
    document = {"schema": "tuner.image/1", "host": applied["host"], "apply": applied, "persist": persisted}
    return worst([code, units]), document, [*lines, "", *more[1:]]
