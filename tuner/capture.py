"""A host as one manifest: what detect, every knob and every plan read of it, so that its copy gives the same plans."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tuner import detect, idle
from tuner import plan as planning
from tuner.errors import TunerError, bad_input
from tuner.fastyaml import Error as YamlError
from tuner.holders import DEVICES
from tuner.host import Host, Unrecorded
from tuner.host.manifest import Entry, render
from tuner.host.recorded import MARK
from tuner.host.recorder import RecordingHost
from tuner.knobs import KNOBS, Knob
from tuner.knobs.limits import LIMITS
from tuner.ledger import Ledger
from tuner.model import DISRUPTIONS, Seen
from tuner.profile import Profile, load_profile
from tuner.profile.files import known
from tuner.profile.match import misfits
from tuner.readings import read
from tuner.scrub import NAME, Scrubber

BASICS = (
    "/etc/os-release", "/etc/hostname", "/proc/cmdline", "/proc/version", "/proc/modules", "/proc/meminfo",
    "/proc/sys/kernel/random/boot_id", "/etc/default/grub", "/etc/default/grub.d/*", "/etc/sysctl.conf",
    "/etc/sysctl.d/*", "/run/sysctl.d/*", "/usr/local/lib/sysctl.d/*", "/usr/lib/sysctl.d/*", "/lib/sysctl.d/*",
    "/etc/modprobe.d/*", "/run/modprobe.d/*", "/usr/local/lib/modprobe.d/*", "/usr/lib/modprobe.d/*", "/etc/fstab",
    "/etc/systemd/system.conf", "/boot/grub/grub.cfg", "/boot/grub/grubenv", "/boot/loader/entries/*",
    "/etc/security/limits.conf", "/etc/security/limits.d/*", "/etc/tuner/site.yaml",
    "/etc/tuner/host.d/*", "/etc/tuner/profiles/*", "/etc/tuner/profiles/overlays/*",
    "/sys/kernel/mm/hugepages/*/*", "/sys/devices/system/node/node*/hugepages/*/*",
    "/sys/devices/system/node/node*/distance", "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/smt/control",
    "/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name", "/sys/class/dmi/id/bios_version",
    "/sys/module/amdgpu/version", "/sys/module/mlx5_core/version", "/sys/module/nvidia/version",
)  # fmt: skip
"""What a reader of the capture wants to know besides: files, each part of a path a pattern."""

PATTERNS = {"hugepages": ("*", "total/*"), "limits": tuple(f"*/{limit}" for limit in LIMITS), "file": ()}
"""How a knob is asked for all its targets where `*` is not the way: files are named, never found."""


@dataclass(frozen=True)
class Capture:
    """The text of the manifest; what was replaced, how often; what could not be read or kept, and why."""

    text: str
    entries: int
    replaced: dict[str, int]
    unread: tuple[tuple[str, str], ...]


def capture(host: Host, *, scrub: bool = True) -> Capture:
    """Reads the host through a recording door. TunerError (bad input) for an image: no kernel runs in it."""
    if host.kind == "image":
        raise bad_input(f"--root {host.root}", "an image has no running kernel to capture", "capture runs on a host")
    recording = RecordingHost(host)
    unread = dict(_ask(recording))
    entries = _lean(recording.manifest()) if scrub else recording.manifest()
    entries.update(_own(host))
    scrubber = Scrubber(host.name, _kernel_words(entries))
    if scrub:
        entries = scrubber.scrub(entries)
        unread = {scrubber.text(place): scrubber.text(why) for place, why in unread.items()}
    entries[f"/{MARK}/host.yaml"] = _about(host, NAME if scrub else host.name)
    unread.update({scrubber.path(path) if scrub else path: why for path, why in recording.left_out.items()})
    return Capture(render(entries), len(entries), scrubber.counts(), tuple(sorted(unread.items())))


def _ask(host: RecordingHost) -> Iterator[tuple[str, str]]:
    """Everything that tuner would ask, and why some of it has no answer."""
    yield from detect.inventory(host).unread
    with contextlib.suppress(OSError):
        idle.busy(host)
    for pattern in BASICS:
        for path in _matching(host, pattern):
            with contextlib.suppress(OSError, Unrecorded):
                host.read(path)
    for knob in KNOBS:
        yield from _ask_knob(host, knob)
    sizes = {name: len(profile.settings) for name in known(host) if (profile := _fitting(host, name))}
    for name in sizes:
        _plan(host, name, [])
    fullest = max(sizes, key=lambda name: sizes[name], default="linux-gpu")
    for overlay in known(host, "overlays/"):
        _plan(host, fullest, [overlay])


def _ask_knob(host: RecordingHost, knob: Knob) -> Iterator[tuple[str, str]]:
    for pattern in PATTERNS.get(knob.name, ("*",)):
        try:
            targets = knob.targets(host, pattern)
        except (OSError, Unrecorded, ValueError) as error:
            yield f"{knob.name} {pattern}", str(error)
            continue
        for target in targets:
            found = read(host, knob, target)
            with contextlib.suppress(OSError, Unrecorded):
                knob.identity(host, target)
            for path in knob.files(host, target):
                with contextlib.suppress(OSError, Unrecorded):
                    host.writable(path)
            if not isinstance(found, Seen):
                yield f"{knob.name} {target}", found.why


def _fitting(host: Host, name: str) -> Profile | None:
    """The profile, where it can be read and is for this host."""
    with contextlib.suppress(TunerError, YamlError, OSError, Unrecorded, ValueError):
        profile = load_profile(host, name)
        return None if misfits(host, profile.match) else profile
    return None


def _plan(host: RecordingHost, name: str, overlays: list[str]) -> None:
    """A plan asks for what reading the targets does not: what guards, advice and files that keep settings look at."""
    with contextlib.suppress(TunerError, YamlError, OSError, Unrecorded, ValueError):
        profile = load_profile(host, name, overlays)
        everything = planning.Allowed(frozenset(DISRUPTIONS))
        planning.make(host, profile.label, profile.settings, everything, Ledger())


def _matching(host: Host, pattern: str) -> list[str]:
    """The paths that a pattern means, part by part."""
    paths = [""]
    for part in pattern.strip("/").split("/"):
        if "*" in part:
            paths = [
                f"{path}/{name}" for path in paths for name in _names(host, path) if fnmatch.fnmatchcase(name, part)
            ]
        else:
            paths = [f"{path}/{part}" for path in paths]
    return paths


def _names(host: Host, folder: str) -> list[str]:
    try:
        return host.list(folder)
    except (OSError, Unrecorded):
        return []


def _lean(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Of the open files of processes only those that say whether a job runs: the others are nobody's business."""
    kept = {}
    for path, entry in entries.items():
        if fnmatch.fnmatchcase(path, "/proc/[0-9]*/fd/*") and not _device(entry):
            continue
        if fnmatch.fnmatchcase(path, "/proc/[0-9]*/fd") and entry.kind == "dir":
            names = tuple(name for name in entry.names if _device(entries.get(f"{path}/{name}")))
            kept[path] = replace(entry, names=names)
        else:
            kept[path] = entry
    return kept


def _device(entry: Entry | None) -> bool:
    text = entry.data.decode("utf-8", "replace") if entry is not None and entry.kind == "link" else ""
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in DEVICES)


def _kernel_words(entries: dict[str, Entry]) -> frozenset[str]:
    """Names that the kernel's own paths have: a host that is called so cannot be told from them in a text."""
    words: set[str] = set()
    for path, entry in entries.items():
        if path.startswith(("/proc/", "/sys/")):
            words.update(path.split("/"))
            words.update(entry.names)
    return frozenset(words)


def _about(host: Host, name: str) -> Entry:
    """host.yaml: not synthetic, unless it was captured from a recorded host that is."""
    synthetic = "false"
    if host.kind == "recorded":
        with contextlib.suppress(OSError, Unrecorded):
            synthetic = "true" if "synthetic: true" in host.text(f"/{MARK}/host.yaml").splitlines() else "false"
    lines = [f"name: {name}", f"kernel: {host.kernel}", f"synthetic: {synthetic}", "summary: captured by tuner capture"]
    return Entry("file", 0o644, "".join(f"{line}\n" for line in lines).encode())


def _own(host: Host) -> dict[str, Entry]:
    """The rules and the faults of a recorded host go along."""
    found = {}
    for name in ("kernel.yaml", "faults") if host.kind == "recorded" else ():
        with contextlib.suppress(OSError, Unrecorded):
            found[f"/{MARK}/{name}"] = Entry("file", 0o644, host.read(f"/{MARK}/{name}"))
    return found


def check(path: str) -> None:
    """Raises TunerError (bad input) where `save` could not write: before the host is read."""
    if os.path.lexists(path):
        raise bad_input(path, "is there already", "choose another name, or remove it first")
    folder = posixpath.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise bad_input(path, "cannot be written: no such directory", f"mkdir {folder}")


def save(path: str, text: str) -> None:
    """Writes a file that is not there yet and that only its owner can read; nothing is left of one that failed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
    except FileExistsError:
        raise bad_input(path, "is there already", "choose another name, or remove it first") from None
    except OSError as error:
        raise bad_input(path, f"cannot be written: {error.strerror}", "check the folder") from None
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)
            file.write(text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise bad_input(path, f"cannot be written: {error.strerror}", "is the disk full?") from None
