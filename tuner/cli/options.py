"""Options that several verbs have, and the parser that raises our errors."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from tuner.errors import bad_input
from tuner.model import DISRUPTIONS

EXITS = """exit codes:
  0 as wanted     10 differs     11 hardware missing     12 could not tell     13 right after next boot     14 held
  20 failed, all undone     21 something could not be restored     30 another run     31 not for this host
  64 bad input"""


class Parser(argparse.ArgumentParser):
    """argparse that raises our error instead of exiting with 2."""

    def error(self, message: str) -> NoReturn:
        """Bad usage is bad input: exit 64."""
        raise bad_input("", message, f"{self.prog} --help")


def verb(verbs: Any, name: str, function: str, what: str, *, root: bool = True) -> argparse.ArgumentParser:
    """A verb with what every verb has; `function` answers it."""
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


def profile(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """--profile, --with and --set."""
    kept = parser.prog.endswith(" apply")
    without = "" if required or kept else "; without it, the applied generation"
    what = f"name or file of a profile{without}"
    parser.add_argument("--profile", required=required, metavar="PROFILE", help=what)
    overlays(parser)


def overlays(parser: argparse.ArgumentParser) -> None:
    """--with and --set."""
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


def all_rows(parser: argparse.ArgumentParser) -> None:
    """--all."""
    parser.add_argument("--all", action="store_true", help="also the settings that are as wanted")


def monitors(parser: argparse.ArgumentParser) -> None:
    """--format and --watch."""
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


def unmentioned(parser: argparse.ArgumentParser) -> None:
    """--keep-unmentioned."""
    parser.add_argument(
        "--keep-unmentioned",
        action="store_true",
        help="leave what an earlier profile changed and this one does not name; without it, it is given back",
    )


def allow(parser: argparse.ArgumentParser) -> None:
    """--allow."""
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
