"""What can be typed after `tuner fleet`."""

from __future__ import annotations

import argparse
from typing import Any

from tuner.cli.options import Parser, allow, overlays, verb


def fleet(verbs: Any) -> None:
    """`tuner fleet` and its verbs."""
    group = verbs.add_parser(
        "fleet", help="plan, apply, verify, rollback over an inventory of Ansible", allow_abbrev=False
    )
    below = group.add_subparsers(title="verbs", metavar="VERB", dest="under", required=True, parser_class=Parser)
    plan = _many(below, "plan", "what apply would do, by host")
    apply = _many(below, "apply", "make it so: one host first, then a quarter of them at a time, then the rest")
    _many(below, "verify", "prove that what was applied still holds")
    rollback = _many(below, "rollback", "undo the newest live generation of each host")
    for parser in (plan, apply):
        parser.add_argument("--profile", metavar="PROFILE", help="instead of tuner_profile of the inventory")
        overlays(parser)
        allow(parser)
        parser.set_defaults(allow=None)
        parser.add_argument("--expect", metavar="SETTINGS_ID", help="nothing unless the settings have this id")
    rollback.add_argument("--to", type=int, metavar="N", help="undo all generations newer than N; 0: all of them")
    rollback.add_argument("--force", action="store_true", help="restore also what somebody else changed since")
    bundle = verb(below, "bundle", "fleet_bundle", "build the archive that nodes are installed from", root=False)
    bundle.add_argument("directory", metavar="DIR", help="a folder, made where it is not there")
    verb(below, "playbooks", "fleet_playbooks", "print where the playbooks and the modules lie", root=False)


def _many(below: Any, word: str, what: str) -> argparse.ArgumentParser:
    parser = verb(below, word, "fleet", what, root=False)
    file = "an inventory of Ansible; repeatable"
    parser.add_argument(
        "-i", "--inventory", dest="inventories", action="append", required=True, metavar="FILE", help=file
    )
    parser.add_argument("-l", "--limit", metavar="PATTERN", help="hosts and groups, as Ansible takes them")
    parser.add_argument("-f", "--forks", type=_forks, metavar="N", help="hosts at the same time (as Ansible has it: 5)")
    vault = "for what is encrypted in the inventory"
    parser.add_argument("--vault-password-file", dest="vault", metavar="FILE", help=vault)
    parser.add_argument("--become-password-file", dest="become", metavar="FILE", help="the password that sudo wants")
    return parser


def _forks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hosts from 1 to 1000")
    return int(text)
