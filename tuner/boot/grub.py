"""The boot line of GRUB's default entry, by its files: GNU GRUB manual, 6 "Writing your own configuration file" and
"The GRUB environment block"; grub-core/normal/menu.c (which entry), lib/cmdline.c (how the line is put together).
"""

from __future__ import annotations

import errno
import posixpath
import re

from tuner.boot.bls import snippets
from tuner.boot.grub_script import Boot, Entry, Run
from tuner.boot.grub_words import Unparsed, parse
from tuner.boot.line import BootLine
from tuner.host.door import Host, Unrecorded

CONFIGS = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg")
VENDORS = "/boot/efi/EFI"
"""Where Enterprise Linux 8 keeps grub.cfg on a machine with UEFI: VENDORS/NAME/grub.cfg."""

ENTRIES = "/boot/loader/entries"
NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
NUMBER = re.compile(r"[0-9]+(?=>|$)")
DEEPEST = 4
"""Submenus in submenus."""


def config(host: Host) -> str:
    """The configuration that GRUB reads; empty where there is none. OSError and Unrecorded are passed on.

    Unparsed where there are two, so that nobody can tell.
    """
    found = [path for path in CONFIGS if host.exists(path)]
    if not found and host.exists(VENDORS):
        places = [f"{VENDORS}/{name}/grub.cfg" for name in host.list(VENDORS) if name != "BOOT"]
        found = [path for path in places if host.exists(path)]
    if len(found) > 1:
        raise Unparsed(f"{' and '.join(found)} are there: which one GRUB reads is not known")
    return found[0] if found else ""


def predict(host: Host, path: str) -> BootLine:
    """What the configuration at `path` boots next time. OSError and Unrecorded are passed on; Unparsed says why not."""
    run = Run(path, lambda name: _beside(host, path, name), lambda: environment(host, path))
    here = posixpath.dirname(path)
    run.variables |= {"prefix": here, "config_directory": here, "config_file": path}
    run.bls = lambda now: _snippets(host, now)
    run.run(parse(host.text(path)))
    chosen = _choose(run)
    boot = _boot(run, chosen)
    words = [word for word in boot.words if word is not None]
    if len(words) < len(boot.words) or not words:
        raise Unparsed(f"{boot.path}:{boot.line}: a part of the line is known to GRUB alone")
    text = " ".join([f"BOOT_IMAGE={words[0]}", *(quoted(word) for word in words[1:])])
    return BootLine("grub", text, f"{boot.path}:{boot.line}", title=chosen.title or "")


def environment(host: Host, path: str) -> dict[str, str]:
    """The environment block beside a configuration (grub-editenv): lines NAME=VALUE; a backslash quotes."""
    try:
        text = host.text(posixpath.join(posixpath.dirname(path), "grubenv"))
    except OSError as error:
        if error.errno in NOTHING:
            return {}
        raise
    pairs = re.findall(r"^([^#=\n][^=\n]*)=((?:\\[\s\S]|[^\\\n])*)", text, re.MULTILINE)
    return {name: re.sub(r"\\([\s\S])", r"\1", value) for name, value in pairs}


def _beside(host: Host, config_path: str, name: str) -> str | None:
    """The text of a file in the folder of the configuration; Unparsed for one that lies elsewhere."""
    here = posixpath.dirname(config_path)
    if posixpath.dirname(posixpath.normpath(name)) != here:
        raise Unparsed(f"it looks at {name}, which GRUB alone can find")
    try:
        return host.text(name)
    except IsADirectoryError:
        return ""
    except OSError as error:
        if error.errno in NOTHING:
            return None
        raise


def _snippets(host: Host, run: Run) -> list[Entry]:
    """Menu entries that blscfg makes of the Boot Loader Specification's files."""
    found = []
    for one in snippets(host, ENTRIES):
        options = one.keys.get("options")
        text = run.value("default_kernelopts") if options is None else options
        block = parse(f"linux {one.keys.get('linux', '')} {'$unknown_options' if text is None else text}")
        found.append(Entry(one.keys.get("title", one.id), one.id, block, one.line, one.path))
    run.variables["unknown_options"] = None
    return found


def _choose(run: Run) -> Entry:
    """The entry that is booted when nobody touches a key: `default`, and inside a submenu what stands behind its >."""
    wanted = run.value("default")
    for _ in range(DEEPEST):
        if wanted is None:
            raise Unparsed(f"{run.path}: its default entry is known to GRUB alone")
        entry, rest = _pick(run, wanted)
        if not entry.sure:
            raise Unparsed(f"{entry.path}:{entry.line}: whether this entry is there is known to GRUB alone")
        if not entry.submenu:
            return entry
        run.entries, run.path = [], entry.path
        run.run(entry.block)
        wanted = rest
    raise Unparsed(f"{run.path}: submenus are nested too deeply")


def _pick(run: Run, wanted: str) -> tuple[Entry, str]:
    """The entry of a menu that `default` means, and what of it is left for a submenu: get_entry_number of menu.c."""
    if not run.entries:
        raise Unparsed(f"{run.path}: its menu has no entry")
    number = NUMBER.match(wanted)
    if number:
        rest = wanted[number.end() :].removeprefix(">")
        place = int(number[0]) if int(number[0]) < len(run.entries) else 0
        return _counted(run, place), rest
    for place, entry in enumerate(run.entries):
        for name in (entry.title, entry.id):
            length = _same(name, wanted)
            if length is not None:
                if not entry.sure:
                    return entry, ""
                return run.entries[place], wanted[length:].removeprefix(">")
    if re.match(r"[0-9]", wanted):
        raise Unparsed(f"{run.path}: default={wanted} is no entry, and GRUB may take it for a number")
    return _counted(run, 0), ""


def _counted(run: Run, place: int) -> Entry:
    """An entry by its number, which holds only where all entries before it are sure to be there."""
    unsure = [entry for entry in run.entries[: place + 1] if not entry.sure]
    return unsure[0] if unsure else run.entries[place]


def _same(name: str | None, wanted: str) -> int | None:
    """How much of `wanted` names this entry: all of it, or up to a single >; >> is a > of the name."""
    if name is None:
        return None
    escaped = name.replace(">", ">>")
    rest = wanted[len(escaped) :]
    fits = wanted.startswith(escaped) and (not rest or (rest[0] == ">" and rest[1:2] != ">"))
    return len(escaped) if fits else None


def _boot(run: Run, entry: Entry) -> Boot:
    run.boots, run.path = [], entry.path
    run.run(entry.block)
    if len({boot.words for boot in run.boots}) != 1:
        what = "no line linux" if not run.boots else "several lines linux"
        raise Unparsed(f"{entry.path}:{entry.line}: the entry has {what} that is followed")
    boot = run.boots[-1]
    bls = entry.path != boot.path or entry.path.startswith(f"{ENTRIES}/")
    return Boot(boot.words, entry.line, entry.path) if bls else boot


def quoted(word: str) -> str:
    """An argument as GRUB puts it on the line: with blanks in double quotes, quotes and backslashes escaped."""
    escaped = re.sub(r"([\\'\"])", r"\\\1", word)
    return f'"{escaped}"' if " " in word else escaped


def hidden(error: Exception) -> str:
    """Why a configuration was not read, in words for a person."""
    match error:
        case PermissionError():
            return "needs root"
        case Unrecorded() | Unparsed():
            return str(error)
        case OSError():
            return f"{error.filename or 'a file'} cannot be read ({error.strerror})"
    return str(error)
