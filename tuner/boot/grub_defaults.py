"""/etc/default/grub and its drop-ins as Debian's grub-mkconfig sources them, and the drop-in that is ours.

GNU GRUB manual, 6.1 "Simple configuration handling"; Debian's grub2 debian/patches (mkconfig reads
/etc/default/grub.d/*.cfg), util/grub.d/10_linux.in: an entry gets GRUB_CMDLINE_LINUX and then
GRUB_CMDLINE_LINUX_DEFAULT, a recovery entry GRUB_CMDLINE_LINUX alone. So what we add goes to the latter, and recovery
entries stay as they were.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.host.door import Host, Unrecorded

MAIN = "/etc/default/grub"
FOLDER = "/etc/default/grub.d"
OURS = f"{FOLDER}/zz-tuner.cfg"
CONFIG = "/boot/grub/grub.cfg"
COMMON, NORMAL, NO_RECOVERY = "GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT", "GRUB_DISABLE_RECOVERY"

WRITABLE = re.compile(r"[A-Za-z0-9_.,:=/@%+-]+")
"""Tokens that neither sh nor GRUB's script take for anything but text."""

DEBIAN = re.compile(r"(?m)^ID(_LIKE)?=[\"']?(.* )?(debian|ubuntu)\b")
NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
ASSIGNED = re.compile(r"[ \t]*(?:export[ \t]+)?(GRUB_[A-Z0-9_]+)=(.*)")
VARIABLE = re.compile(r"\$(?:\{(GRUB_[A-Z0-9_]+)\}|(GRUB_[A-Z0-9_]+))")

TEXT = """\
# Written by tuner
# Adds boot parameters to GRUB_CMDLINE_LINUX_DEFAULT, in place of those of the same name; comma lists are merged.
# Recovery entries have GRUB_CMDLINE_LINUX alone, and stay without them.
tuner_kept=
tuner_init=
{empty}set -f
case "$GRUB_CMDLINE_LINUX_DEFAULT" in
*\\"* | *\\'*) tuner_kept=" $GRUB_CMDLINE_LINUX_DEFAULT" ;;
*)
  for tuner_word in $GRUB_CMDLINE_LINUX_DEFAULT; do
    if [ -n "$tuner_init" ] || [ "$tuner_word" = -- ]; then
      tuner_init="$tuner_init $tuner_word"
      continue
    fi
    case "$tuner_word" in
{cases}    *) tuner_kept="$tuner_kept $tuner_word" ;;
    esac
  done ;;
esac
set +f
GRUB_CMDLINE_LINUX_DEFAULT="${{tuner_kept# }}{words}$tuner_init"
unset tuner_kept tuner_init tuner_word tuner_item{lists}
"""
"""Words in quotes are left alone: then ours stand behind them, which the kernel takes for the same."""

LIST = """\
    {name}=*)
      IFS=,
      for tuner_item in ${{tuner_word#*=}}; do
        case "$tuner_item" in
        {items}) ;;
        *) {list}="${list}$tuner_item," ;;
        esac
      done
      unset IFS ;;
"""


@dataclass(frozen=True)
class Added:
    """A parameter that entries shall get: its `tokens` in their order, as WRITABLE has them.

    `items` are those of a comma list, which is merged with what is there. Where `alone`, tokens of the same name are
    taken out, else only equal ones.
    """

    name: str
    tokens: tuple[str, ...]
    items: tuple[str, ...] = ()
    alone: bool = True


def script(added: Sequence[Added]) -> str:
    """The drop-in that adds these parameters. grub-mkconfig sources it under `set -e`; it changes that one variable."""
    cases, words, lists = "", "", []
    for number, one in enumerate(added, 1):
        name = one.name.replace("_", "[-_]")
        if one.items:
            lists.append(f"tuner_list{number}")
            cases += LIST.format(name=name, items=" | ".join(one.items), list=lists[-1])
            words += f" {one.name}=${{{lists[-1]}}}{','.join(one.items)}"
            continue
        cases += f"    {name} | {name}=*) ;;\n" if one.alone else f"    {' | '.join(one.tokens)}) ;;\n"
        words += "".join(f" {token}" for token in one.tokens)
    empty = "".join(f"{name}=\n" for name in lists)
    return TEXT.format(empty=empty, cases=cases, words=words, lists="".join(f" {name}" for name in lists))


def variables(host: Host) -> dict[str, tuple[str | None, str]]:
    """NAME -> (value, FILE:LINE) by all files but ours; the value is None where it is more than plain text."""
    found: dict[str, tuple[str | None, str]] = {}
    for path in [MAIN, *(f"{FOLDER}/{name}" for name in _names(host) if name.endswith(".cfg"))]:
        if path != OURS:
            for number, line in enumerate(_text(host, path).splitlines(), 1):
                assigned = ASSIGNED.match(line)
                if assigned:
                    found[assigned[1]] = _value(assigned[2], found), f"{path}:{number}"
    return found


def line(host: Host) -> str:
    """The parameters that entries get from these files without ours, as far as they are plain text."""
    found = variables(host)
    return " ".join(filter(None, (found.get(name, ("", ""))[0] for name in (COMMON, NORMAL))))


def no_recovery(host: Host) -> str:
    """FILE:LINE that leaves recovery entries out; empty where they are made."""
    value, where = variables(host).get(NO_RECOVERY, ("", ""))
    return where if value == "true" or (value is None and where) else ""


def unfit(host: Host) -> str:
    """Why a drop-in of ours is not written here; empty where Debian's GRUB would read it. OSError, Unrecorded pass."""
    if not DEBIAN.search(_text(host, "/etc/os-release")):
        return f"{FOLDER} is read by Debian's and Ubuntu's GRUB only"
    if not host.exists(MAIN):
        return f"there is no {MAIN}"
    where = no_recovery(host)
    if where:
        return f"no menu entry would stay as it is ({where} leaves recovery entries out: {NO_RECOVERY})"
    common = variables(host).get(COMMON, ("", ""))
    if "--" in (common[0] or "").split():
        return f"what stands behind -- at {common[1]} is no part of the kernel's line"
    return ""


def _value(text: str, found: dict[str, tuple[str | None, str]]) -> str | None:
    """The value of a shell assignment that is one quoted or plain word; variables of GRUB's name are put in."""
    text = text.strip()
    single = re.fullmatch(r"'([^']*)'\s*(?:[;#].*)?", text)
    if single:
        return single[1]
    double = re.fullmatch(r'"((?:[^"\\`]|\\["\\$`])*)"\s*(?:[;#].*)?', text)
    plain = re.fullmatch(r"([^\s\"'\\`;#&|<>()]*)\s*(?:[;#].*)?", text)
    body = double or plain
    if body is None:
        return None
    parts = [found.get(a or b, ("", ""))[0] for a, b in VARIABLE.findall(body[1])]
    rest = VARIABLE.sub("", re.sub(r"\\.", "", body[1]))
    if "$" in rest or None in parts:
        return None
    put = VARIABLE.sub(lambda name: str(found.get(name[1] or name[2], ("", ""))[0]), body[1])
    return re.sub(r"\\([\"\\$`])", r"\1", put)


def _names(host: Host) -> list[str]:
    try:
        return host.list(FOLDER)
    except OSError as error:
        if error.errno in NOTHING:
            return []
        raise
    except Unrecorded:
        return []


def _text(host: Host, path: str) -> str:
    try:
        return host.text(path)
    except OSError as error:
        if error.errno in NOTHING:
            return ""
        raise
