"""What can be typed: the verbs and their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from tuner import __version__
from tuner.errors import bad_input
from tuner.model import DISRUPTIONS

EXITS = """exit codes:
  0 as wanted     10 differs     11 hardware missing     12 could not tell     13 right after next boot     14 held
  20 failed, all undone     21 something could not be restored     30 another run     31 not for this host
  64 bad input"""

MODULES = {
    "plan": "change", "apply": "change", "rollback": "change", "verify": "judge", "status": "look", "explain": "look",
    "history": "look", "list_hosts": "hosts", "copy": "hosts", "off": "switch", "on": "switch",
    "list_profiles": "profiles", "show": "profiles", "lint": "profiles", "diff": "profiles", "init": "profiles",
    "schema": "profiles", "detect": "inventory", "capture": "inventory", "demo": "demo",
    "formatted": "watch", "watch": "watch", "again": "again",
    "install": "persist", "remove": "persist", "persist_status": "persist", "ready": "persist", "image": "image",
}  # fmt: skip
"""Which module of tuner.cli has the function of a verb: imported when the verb is called, not before."""


class Parser(argparse.ArgumentParser):
    """argparse that raises our error instead of exiting with 2."""

    def error(self, message: str) -> NoReturn:
        """Bad usage is bad input: exit 64."""
        raise bad_input("", message, f"{self.prog} --help")


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
    plan.add_argument("-o", dest="output", metavar="FILE", help="also keep the plan, for `tuner apply FILE`")
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
    _profiles(verbs)
    _persist(verbs)
    _image(verbs)
    _switch(verbs)
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


def _verb(verbs: Any, name: str, function: str, what: str, *, root: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=what,
        description=f"{what}.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(verb=function)
    if root:
        parser.add_argument("--root", metavar="DIR", help="a copied host or an image instead of this machine")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _profile(parser: argparse.ArgumentParser, *, required: bool) -> None:
    kept = parser.prog.endswith(" apply")
    without = "" if required or kept else "; without it, the applied generation"
    what = f"name or file of a profile{without}"
    parser.add_argument("--profile", required=required, metavar="PROFILE", help=what)
    _overlays(parser)


def _overlays(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with", dest="overlays", action="append", default=[], metavar="OVERLAY", help="an overlay over it; repeatable"
    )
    parser.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KNOB:TARGET=VALUE",
        help="one setting over all files, the value in YAML; repeatable",
    )


def _all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also the settings that are as wanted")


def _monitors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("nagios", "prometheus", "junit"),
        help="for a monitoring plugin (exit codes 0 to 3), node_exporter's textfile collector, or CI",
    )
    parser.add_argument(
        "--watch",
        type=_seconds,
        metavar="SECONDS",
        help="look again every so many seconds (0.5 or more) and print what changed, until Ctrl-C",
    )


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.5 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.5 to 86400")
    return number


def _unmentioned(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-unmentioned",
        action="store_true",
        help="leave what an earlier profile changed and this one does not name; without it, it is given back",
    )


def _allow(parser: argparse.ArgumentParser) -> None:
    classes = ",".join(DISRUPTIONS[1:])
    parser.add_argument(
        "--allow",
        type=_classes,
        default=["auto"],
        metavar="CLASS[,CLASS]",
        help=f"disruption that may be caused besides auto, out of {classes},all; none: harmless only. "
        "auto (the default): app, and memory and clocks while no job has a GPU or RDMA device open",
    )


def _classes(text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    unknown = [word for word in words if word not in (*DISRUPTIONS, "auto", "all")]
    if unknown or not words:
        raise argparse.ArgumentTypeError(f"no class {', '.join(unknown) or repr(text)}")
    return words
