"""What several verbs need."""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
from typing import Any

from tuner import __version__, documents
from tuner.boot.planned import Planned
from tuner.errors import Exit, bad_input
from tuner.host import Host, Unrecorded, open_host
from tuner.journal import Line
from tuner.ledger import Applied
from tuner.model import Verdict
from tuner.off import now
from tuner.profile import Profile, load_profile
from tuner.profile.files import ETC, read_trusted

Answer = tuple[Exit, dict[str, Any], list[str]]
"""Exit code, JSON document, lines for people."""

CODES = {
    "ok": Exit.OK, "raised": Exit.OK, "unsupported": Exit.OK, "pending": Exit.PENDING, "held": Exit.HELD,
    "shadowed": Exit.DIFFERS, "unknown": Exit.UNKNOWN, "drift": Exit.DIFFERS, "missing": Exit.MISSING,
}  # fmt: skip


def exit_of(verdict: Verdict) -> Exit:
    """The exit code that one verdict asks for."""
    return CODES[documents.effective(verdict)]


def open_root(root: str | None, *, writing: bool = False) -> Host:
    """The host of --root; to write to this machine takes root."""
    host = open_host(root)
    if writing and host.kind == "live" and os.geteuid() != 0:
        raise bad_input("", "root is needed to write", "sudo tuner ...; plan, verify and explain need no root")
    return host


def who() -> str:
    """The person at the keyboard, through sudo."""
    person = os.environ.get("SUDO_USER")
    if person:
        return f"{person} (sudo)"
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def profile_of(host: Host, args: argparse.Namespace) -> Profile:
    """The profile of --profile with --with and --set over it, read as if the files of --as-if were in place."""
    given = getattr(args, "as_if", ())
    return load_profile(_as_if(host, given) if given else host, args.profile, args.overlays, args.sets)


def _as_if(host: Host, given: list[str]) -> Host:
    """The host with some files of /etc/tuner exchanged, each PATH=FILE."""
    files: dict[str, str | None] = {}
    for text in given:
        path, equals, file = text.partition("=")
        if not equals or not file or os.path.normpath(path) != path or not path.startswith(f"{ETC}/"):
            raise bad_input(f"--as-if {text}", "is not PATH=FILE", f"such as --as-if {ETC}/site.yaml=site.yaml")
        files[path] = read_trusted(file).decode("utf-8", "surrogateescape")
    return Planned(host, files)


def no_overlays(args: argparse.Namespace) -> None:
    """--with and --set lie over a profile: without --profile they would be ignored, which is an error."""
    if args.overlays or args.sets:
        raise bad_input("", "--with and --set need --profile", "what is applied is frozen: give the profile again")


def words_of(profile: Profile | Applied) -> str:
    """The options that name this profile on a command line."""
    options = [["--profile", profile.reference], *(["--with", o] for o in profile.overlays)]
    return shlex.join(word for option in [*options, *(["--set", s] for s in profile.sets)] for word in option)


def begin_line(host: Host, profile: Profile) -> Line:
    """Who applies, when, in which boot, with which tuner."""
    try:
        boot = host.peek("/proc/sys/kernel/random/boot_id").strip() if host.kind != "image" else ""
    except (OSError, Unrecorded):
        boot = ""
    return {
        "who": who(),
        "when": now().isoformat(),
        "boot_id": boot,
        "tuner": __version__,
        "reference": _absolute(profile.reference),
        "overlays": [_absolute(overlay) for overlay in profile.overlays],
        "sets": list(profile.sets),
        "boots_from": profile.keeping.boots_from,
    }


def _absolute(reference: str) -> str:
    return os.path.abspath(reference) if "/" in reference or reference.endswith((".yaml", ".yml")) else reference
