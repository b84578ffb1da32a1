"""Which boot loader starts this node, and the boot line of its default entry as the disk has it now.

Who started the running kernel says which loader counts: the EFI variables of the Boot Loader Interface
(https://systemd.io/BOOT_LOADER_INTERFACE), or BOOT_IMAGE= on the running line, which GRUB always puts there
(grub-core/loader/i386/linux.c). For an image, which nothing started, files alone tell.
"""

from __future__ import annotations

import contextlib
import fnmatch
import posixpath
import re

from tuner.boot import grub
from tuner.boot.bls import NoLine, Snippet, compare, image_line, snippets
from tuner.boot.grub_words import Unparsed
from tuner.boot.line import BootLine
from tuner.host.door import Host, Unrecorded

LINE = "/proc/cmdline"
VARIABLES = "/sys/firmware/efi/efivars"
VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
"""Of systemd's variables; the first four bytes of each are its attributes, UTF-16 follows."""

PROXMOX = "/etc/kernel/proxmox-boot-uuids"
"""Partitions that proxmox-boot-tool copies kernels and GRUB's configuration to: those copies are what boots."""

OSTREE = "/run/ostree-booted"
PLACES = ("/efi", "/boot/efi", "/boot")
"""Where the EFI system partition or the extended boot partition is mounted: bootctl(1)."""

IMAGES = "EFI/Linux"
COUNTED = re.compile(r"\+[0-9]+(-[0-9]+)?$")
"""A counter of tries at the end of an entry's name (automatic boot assessment)."""


def booted(host: Host) -> BootLine:
    """The line of the entry that boots next, or why it is not known; never raises for what a host holds."""
    try:
        loader = _loader(host)
        if loader.startswith("systemd-boot"):
            return _systemd_boot(host)
        if loader == "uki":
            return BootLine("uki", why="the firmware starts an image itself, and which one is in its own memory")
        return _grub(host)
    except (OSError, Unrecorded, Unparsed, NoLine) as error:
        return BootLine("", why=grub.hidden(error))


def _loader(host: Host) -> str:
    """What started the running kernel: its name and version, `uki` for the firmware itself, empty for neither."""
    name = _variable(host, "LoaderInfo")
    return name or ("uki" if _variable(host, "StubInfo") else "")


def _variable(host: Host, name: str) -> str:
    """A variable of the Boot Loader Interface; empty where it is not set."""
    try:
        return host.read(f"{VARIABLES}/{name}-{VENDOR}")[4:].decode("utf-16-le", "replace").rstrip("\0")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _grub(host: Host) -> BootLine:
    path = grub.config(host)
    if host.exists(PROXMOX):
        return BootLine("", why=f"proxmox-boot-tool starts copies on partitions of its own ({PROXMOX})")
    ostree = host.exists(OSTREE)
    loader = "ostree" if ostree else "grub"
    if not path:
        return BootLine("", why="no configuration of a boot loader that is known here (GRUB, systemd-boot)")
    if host.kind != "image" and not re.search(r"(^|\s)BOOT_IMAGE=", host.text(LINE)):
        return BootLine("", why=f"GRUB did not start this kernel (no BOOT_IMAGE= on its line): {path} may not count")
    try:
        found = grub.predict(host, path)
    except (OSError, Unrecorded, Unparsed) as error:
        return BootLine(_kind(host, path, loader), why=grub.hidden(error))
    loader = "ostree" if ostree else "bls" if found.where.startswith(f"{grub.ENTRIES}/") else "grub"
    return BootLine(loader, found.text, found.where, title=found.title)


def _kind(host: Host, path: str, loader: str) -> str:
    """Whether GRUB takes its entries from files, where its configuration could not be followed."""
    with contextlib.suppress(OSError, Unrecorded):
        if loader == "grub" and re.search(r"(?m)^\s*blscfg\b", host.text(path)):
            return "bls"
    return loader


def _systemd_boot(host: Host) -> BootLine:
    top = next((place for place in PLACES if host.exists(f"{place}/loader/loader.conf")), "")
    found = [entry for place in PLACES if place in {top, "/boot"} for entry in _entries(host, place)]
    chosen = _chosen(host, top, found)
    if isinstance(chosen, str):
        return BootLine("systemd-boot", why=chosen)
    if chosen.keys:
        return BootLine("systemd-boot", chosen.keys.get("options", ""), f"{chosen.path}:{chosen.line}")
    beside = [
        f"{chosen.path}.extra.d",
        f"{posixpath.dirname(posixpath.dirname(posixpath.dirname(chosen.path)))}/loader/addons",
    ]
    for folder in beside:
        if host.exists(folder):
            return BootLine("uki", why=f"{folder} may add to the line of {chosen.path}")
    return BootLine("uki", image_line(host, chosen.path), chosen.path)


def _entries(host: Host, place: str) -> list[Snippet]:
    """The entries of one partition: files of the Boot Loader Specification, and unified images, which have no keys."""
    found: list[Snippet] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found += snippets(host, f"{place}/loader/entries")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = [name for name in host.list(f"{place}/{IMAGES}") if name.lower().endswith(".efi")]
        found += [Snippet(name, f"{place}/{IMAGES}/{name}", {}, 0) for name in names]
    return found


def _chosen(host: Host, top: str, found: list[Snippet]) -> Snippet | str:
    """The entry that systemd-boot takes by itself, or why that is not known."""
    counted = [entry.path for entry in found if COUNTED.search(re.sub(r"\.(efi|conf)$", "", entry.id))]
    if counted:
        return f"{counted[0]} counts its tries, and what is tried next is not followed"
    wanted = _variable(host, "LoaderEntryOneShot") or _variable(host, "LoaderEntryDefault") or _default(host, top)
    if wanted == "@saved":
        wanted = _variable(host, "LoaderEntryLastBooted") or "@saved"
    names = {entry.id if not entry.keys else f"{entry.id}.conf": entry for entry in found}
    fitting = [entry for name, entry in names.items() if fnmatch.fnmatchcase(name.lower(), wanted.lower() or "*")]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and wanted:
        return f"{wanted} is none of the entries that are found, and what stands in for it is not followed"
    if not fitting:
        return "systemd-boot has no entry that is found"
    return _newest(fitting)


def _newest(found: list[Snippet]) -> Snippet | str:
    """The first of several: the highest version, where nothing else decides."""
    plain = all(entry.keys.get("version") for entry in found)
    same = {(entry.keys.get("sort-key"), entry.keys.get("machine-id")) for entry in found}
    if not plain or len(same) > 1:
        return "systemd-boot has several entries, and their order is not followed: name one in loader.conf (default)"
    best = found[0]
    for entry in found[1:]:
        order = compare(entry.keys["version"], best.keys["version"])
        if order == 0:
            return "systemd-boot has two entries of one version"
        best = entry if order > 0 else best
    return best


def _default(host: Host, top: str) -> str:
    """The last `default` of loader.conf."""
    if not top:
        return ""
    found = re.findall(r"(?m)^[ \t]*default[ \t]+(\S+)", host.text(f"{top}/loader/loader.conf"))
    return str(found[-1]) if found else ""
