"""What can be typed: the verbs and their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tuner import __version__
from tuner.cli.options import EXITS, Parser
from tuner.cli.options import all_rows as _all
from tuner.cli.options import allow as _allow
from tuner.cli.options import monitors as _monitors
from tuner.cli.options import overlays as _overlays
from tuner.cli.options import profile as _profile
from tuner.cli.options import unmentioned as _unmentioned
from tuner.cli.options import verb as _verb
from tuner.cli.words_fleet import fleet as _fleet
from tuner.errors import bad_input

MODULES = {
    "plan": "change", "apply": "change", "rollback": "change", "verify": "judge", "status": "look", "explain": "look",
    "history": "look", "list_hosts": "hosts", "copy": "hosts", "off": "switch", "on": "switch",
    "list_profiles": "profiles", "show": "profiles", "lint": "profiles", "diff": "profiles", "init": "profiles",
    "schema": "profiles", "detect": "inventory", "capture": "inventory", "demo": "demo",
    "formatted": "watch", "watch": "watch", "again": "again",
    "prolog": "slurm", "slurm_install": "slurm", "skip": "slurm", "reason": "slurm",
    "install": "persist", "remove": "persist", "persist_status": "persist", "ready": "persist", "image": "image",
    "fleet": "fleet", "fleet_bundle": "fleet", "fleet_playbooks": "fleet",
}  # fmt: skip
"""Which module of tuner.cli has the function of a verb: imported when the verb is called, not before."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The namespace of one call; `verb` names the function that answers it."""
    parser = Parser(
        prog="tuner",
        description="Plans, applies, verifies and undoes the settings of a GPU node.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tuner {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="word", required=True, parser_class=Parser)
    plan = _verb(verbs, "plan", "plan", "show what apply would do; writes nothing, needs no root")
    _profile(plan, required=True)
    _as_if(plan)
    _allow(plan)
    _unmentioned(plan)
    _all(plan)
    apply = _verb(verbs, "apply", "apply", "make it so; undoes everything if one write is refused")
    _profile(apply, required=False)
    apply.add_argument(
        "plan", nargs="?", metavar="FILE", help="a plan kept by `tuner plan -o FILE`; refused when stale"
    )
    apply.add_argument(
        "--expect", metavar="SETTINGS_ID", help="write nothing unless the settings have this id (8+ digits)"
    )
    _allow(apply)
    _unmentioned(apply)
    apply.add_argument("--on-error", choices=("undo", "keep"), default="undo", help="after a refused write (undo)")
    _again(apply)
    verify = _verb(verbs, "verify", "verify", "prove that what was applied still holds")
    _profile(verify, required=False)
    _all(verify)
    verify.add_argument(
        "--next-boot",
        action="store_true",
        help="a setting that is lost at the next boot counts as 10, one not predicted as 12",
    )
    _monitors(verify)
    rollback = _verb(verbs, "rollback", "rollback", "undo the newest live generation")
    rollback.add_argument("--to", type=int, metavar="N", help="undo all generations newer than N; 0: all of them")
    rollback.add_argument("--force", action="store_true", help="restore also what somebody else changed since")
    status = _verb(verbs, "status", "status", "one screen: what is applied, by whom, and how it stands")
    status.set_defaults(profile=None)
    explain = _verb(verbs, "explain", "explain", "which value, why, says who, and how to undo it")
    explain.add_argument("place", metavar="KNOB[:TARGET]", help="such as sysctl:net.core.rmem_max")
    _profile(explain, required=False)
    history = _verb(verbs, "history", "history", "the generations of this host, or the outcomes of one")
    history.add_argument("generation", type=int, nargs="?", metavar="N")
    host = verbs.add_parser("host", help="recorded hosts: list, copy", allow_abbrev=False)
    below = host.add_subparsers(title="verbs", metavar="VERB", dest="under", required=True, parser_class=Parser)
    _verb(below, "list", "list_hosts", "the recorded hosts that come with tuner, and their faults", root=False)
    copy = _verb(below, "copy", "copy", "make a tree of a recorded host, for --root", root=False)
    copy.add_argument("name", metavar="NAME", help="a host of `tuner host list`, or a manifest file")
    copy.add_argument("directory", metavar="DIR", help="a directory that is not there yet, or empty")
    copy.add_argument("--fault", action="append", default=[], metavar="FAULT", help="a fault of that host; repeatable")
    _verb(verbs, "detect", "detect", "GPUs, NICs, PCI switches, NUMA nodes, rails, and which profile fits")
    capture = _verb(verbs, "capture", "capture", "record this host as one text file, scrubbed")
    capture.add_argument("file", metavar="FILE", help="a file that is not there yet")
    capture.add_argument("--no-scrub", action="store_true", help="keep serials, addresses and names")
    _verb(verbs, "demo", "demo", "the whole cycle on a copy of a recorded MI300X node", root=False)
    for group in (_profiles, _persist, _image, _switch, _fleet, _slurm):
        group(verbs)
    return _dispatched(parser.parse_args(list(words)))


ALONE = ("format", "watch", "next_boot")
"""Ways of verify that exclude each other."""


def _dispatched(args: argparse.Namespace) -> argparse.Namespace:
    """--format and --watch have functions of their own; what makes no sense together is an error."""
    given = {f"--{name.replace('_', '-')}" for name in (*ALONE, "json", "all") if getattr(args, name, None)}
    pairs = [{one, other} for one in ("--format", "--watch") for other in ("--all", "--next-boot")]
    for pair in ({"--format", "--json"}, {"--format", "--watch"}, *pairs):
        if args.verb == "verify" and pair <= given:
            raise bad_input("", f"{' and '.join(sorted(pair))} exclude each other", "leave one of them out")
    if args.verb == "verify":
        args.verb = "formatted" if args.format else "watch" if args.watch else "verify"
    if args.verb == "apply" and (args.boot or args.device):
        _alone(args)
        args.verb = "again"
    return args


def _alone(args: argparse.Namespace) -> None:
    """What is applied is made so again as it was applied: no option says otherwise."""
    options: dict[str, Any] = {
        "profile": None,
        "plan": None,
        "expect": None,
        "allow": ["auto"],
        "overlays": [],
        "sets": [],
    }
    options |= {"keep_unmentioned": False, "on_error": "undo", **({"boot": False} if args.device else {})}
    given = [name for name, default in options.items() if getattr(args, name) != default]
    if given:
        this = "--device" if args.device else "--boot"
        hint = "it makes so again what is applied, as it was applied"
        raise bad_input("", f"{this} goes with no profile, plan or other option of apply", hint)


def _again(apply: argparse.ArgumentParser) -> None:
    what = "make what is applied so again after a boot: for tuner-apply.service"
    apply.add_argument("--boot", action="store_true", help=what)
    what = "make so again what belongs to devices that came anew, such as net:eth0 or pci:0000:05:00.0; queue: "
    what += "those that udev named"
    apply.add_argument("--device", nargs="+", metavar="DEVICE", help=what)


def _as_if(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("-o", dest="output", metavar="FILE", help="also keep the plan, for `tuner apply FILE`")
    what = "plan as if FILE were in place of the host's PATH below /etc/tuner (site.yaml, a profile); repeatable"
    plan.add_argument("--as-if", action="append", default=[], metavar="PATH=FILE", help=what)


def _switch(verbs: Any) -> None:
    off = _verb(verbs, "off", "off", "stop everything that runs by itself; an operator's apply still runs")
    off.add_argument("--why", required=True, metavar="TEXT")
    off.add_argument("--for", dest="span", metavar="SPAN", help="such as 30m, 2h, 1d; without it until `tuner on`")
    _verb(verbs, "on", "on", "end `tuner off`")


def _persist(verbs: Any) -> None:
    group = verbs.add_parser(
        "persist", help="the units that make it so again: install, remove, status", allow_abbrev=False
    )
    below = group.add_subparsers(title="verbs", metavar="VERB", dest="under", required=True, parser_class=Parser)
    install = _verb(below, "install", "install", "install and enable the units and the udev rules")
    what = "the Python that has tuner, as the host itself names it (the one that runs now)"
    install.add_argument("--python", metavar="FILE", help=what)
    _verb(below, "remove", "remove", "remove them again; no setting is reverted")
    _verb(below, "status", "persist_status", "which are installed, enabled and current, and how they last ended")
    _verb(below, "idle", "ready", "exit 0 while no job runs and tuner is on: for tuner-verify.service")


def _image(verbs: Any) -> None:
    what = "put a profile into an image: the files that keep it, and the units that make the rest so at boot"
    image = _verb(verbs, "image", "image", what, root=False)
    image.add_argument("directory", metavar="DIR", help="the root of the tree that nodes boot from")
    _profile(image, required=True)
    what = "the Python that has tuner, as the image names it (the one that runs now)"
    image.add_argument("--python", metavar="FILE", help=what)
    image.set_defaults(plan=None, expect=None, allow=["all"], keep_unmentioned=False, on_error="undo", boot=False)


def _slurm(verbs: Any) -> None:
    group = verbs.add_parser("slurm", help="the check before a job: prolog, install, skip, reason", allow_abbrev=False)
    below = group.add_subparsers(title="verbs", metavar="VERB", dest="under", required=True, parser_class=Parser)
    _verb(below, "prolog", "prolog", "whether this node takes the job that starts: exit 0, or 86 to drain it")
    what = "write the script of prolog.d and the units, and say what slurm.conf needs; slurm.conf is never edited"
    install = _verb(below, "install", "slurm_install", what)
    install.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    install.add_argument("--remove", action="store_true", help="remove what install wrote, wherever it put it")
    where = "the folder that Prolog of slurm.conf names (/etc/slurm/prolog.d)"
    install.add_argument("--dir", dest="directory", default="/etc/slurm/prolog.d", metavar="DIR", help=where)
    what = "the Python that has tuner, as the host itself names it (the one that runs now)"
    install.add_argument("--python", metavar="FILE", help=what)
    what = "a copied host that the script judges instead of this machine, %%n in it the node's name: for test clusters"
    install.add_argument("--judged-root", metavar="DIR", help=what)
    skip = _verb(below, "skip", "skip", "for a while, let jobs start whatever is found at a place")
    skip.add_argument("place", nargs="?", metavar="KNOB[:TARGET]", help="without it, the skips that are in force")
    skip.add_argument("--for", dest="span", metavar="SPAN", help="such as 30m, 2h, 1d; at most 7d")
    skip.add_argument("--why", metavar="TEXT")
    skip.add_argument("--remove", action="store_true", help="end the skip of this place")
    _verb(
        below,
        "reason",
        "reason",
        "give Slurm the reason of our drain: for tuner-slurm-reason.service",
    )


def _profiles(verbs: Any) -> None:
    group = verbs.add_parser("profiles", help="profiles: list, show, lint, diff, init, schema", allow_abbrev=False)
    below = group.add_subparsers(title="verbs", metavar="VERB", dest="under", required=True, parser_class=Parser)
    _verb(below, "list", "list_profiles", "every profile and overlay, what it is for, and whether it fits this host")
    show = _verb(below, "show", "show", "the settings of a profile, each with its want and where it comes from")
    show.add_argument("profile", metavar="PROFILE")
    _overlays(show)
    show.add_argument("--resolved", action="store_true", help="patterns expanded on this host")
    show.add_argument("--doc", action="store_true", help="as a document in Markdown: value, why, source, class, undo")
    lint = _verb(below, "lint", "lint", "check profiles: every problem of every file at once")
    lint.add_argument("profiles", nargs="*", metavar="PROFILE", help="names or files; without any, all that are known")
    diff = _verb(below, "diff", "diff", "what two profiles want differently")
    diff.add_argument("one", metavar="A")
    diff.add_argument("other", metavar="B")
    init = _verb(below, "init", "init", "write a commented profile to start from")
    init.add_argument("file", metavar="FILE", help="a file that is not there yet")
    _verb(below, "schema", "schema", "the JSON Schema of profiles, for editors", root=False)
