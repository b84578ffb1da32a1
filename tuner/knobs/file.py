"""A file that is wholly ours: created, replaced or removed whole, and given back as it was."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import stat
from collections.abc import Mapping

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.host.after import for_file
from tuner.host.door import Host, make_parents, missing_parents
from tuner.host.tree import BESIDE, fault, under_kernel
from tuner.knobs.base import Knob, Raw, reading, scalar
from tuner.model import Leaf, Reading, Record, Setting, Value

LARGEST = 1024 * 1024
"""Largest file that is kept for undo, in bytes."""

BOOT = ("/boot/", "/etc/default/grub", "/etc/kernel/", "/etc/initramfs-tools/", "/etc/dracut.conf")
"""What lies here takes part in the boot line, the boot loader or the initramfs."""

OURS = ("/var/lib/tuner", "/run/tuner", "/etc/tuner/applied")
"""tuner's own state: no setting."""


class File(Knob):
    """A file of the host, by its absolute path: its whole text, or null for no file.

    A record of `text`, `mode` (octal, such as "0644") and `owner` ("uid:gid"); a scalar is the text. A new file gets
    mode 0644 unless the profile names one; an existing one keeps mode, owner and SELinux label. Directories that are
    missing are made, and removed again on undo. A link or a device in that place is never written through.
    """

    name = "file"

    def canonical(self, target: str) -> str:
        """An absolute, plain path outside /proc, /sys, /dev and tuner's own state."""
        plain = target.startswith("/") and not target.startswith("//") and posixpath.normpath(target) == target
        if not plain or not target.isprintable():
            raise BadValue(f"{target!r} is not an absolute, plain path", "such as /etc/modprobe.d/tuner.conf, no '..'")
        if under_kernel(target + "/") or f"{target}/".startswith("/dev/") or target == "/":
            raise BadValue(f"{target} is no ordinary file", "kernel files have knobs of their own, such as sysctl")
        if target.startswith(tuple(f"{path}/" for path in OURS)) or target in OURS:
            raise BadValue(f"{target} is tuner's own state", "choose another path")
        if target.endswith(BESIDE):
            raise BadValue(f"{target} ends in {BESIDE}, the name of a file being replaced", "choose another name")
        return target

    def parse(self, target: str, raw: Raw) -> Value:
        """Text, null, or a mapping of text, mode and owner."""
        if not isinstance(raw, dict):
            return {"text": raw if raw is None else scalar(raw)}
        if set(raw) - {"text", "mode", "owner"} or "text" not in raw:
            raise BadValue("a file is a text, null, or {text, mode, owner}", "name text, and mode or owner if needed")
        record: dict[str, Leaf] = {"text": None if raw["text"] is None else scalar(raw["text"])}
        if "mode" in raw:
            record["mode"] = _mode(scalar(raw["mode"]))
        if "owner" in raw:
            record["owner"] = _owner(scalar(raw["owner"]))
        return record

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The path itself: a file is named, never found by a pattern."""
        return [pattern]

    def read(self, host: Host, target: str) -> Reading:
        """text, mode, owner and the directory nearest to it that is there."""
        return reading(lambda: _record(host, target))

    def write(self, host: Host, target: str, value: Value) -> None:
        """Creates, replaces or removes the file."""
        record: Record = value if isinstance(value, Mapping) else {"text": str(value)}
        text = record.get("text")
        if text is None:
            _remove(host, target, str(record.get("below") or posixpath.dirname(target)))
            return
        try:
            make_parents(host, target)
            mode = int(str(record.get("mode") or "0644"), 8)
            owner = record.get("owner")
            host.put(target, _bytes(text), mode, _ids(str(owner)) if owner else None)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Refused("a link or a device is in its place, and is not written through") from None
            raise

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """A file stays as it is."""
        return Next(self.read(boots.host, setting.target))

    def disruption(self, target: str) -> str:
        """`boot` for what the boot loader or the initramfs reads."""
        return "boot" if target.startswith(BOOT) else "none"

    def after(self, target: str) -> str:
        """Systemd reads unit files, and GRUB its defaults, only when told to."""
        return for_file(target)

    def note(self, before: Value, value: Value, target: str) -> str:
        """Whether it is new, replaced or removed."""
        old = before.get("text") if isinstance(before, Mapping) else None
        new = value.get("text") if isinstance(value, Mapping) else None
        return "removes the file" if new is None else "creates the file" if old is None else "replaces the file"

    def restored(self, before: Value, now: Value) -> bool:
        """A directory that tuner made stays when somebody else uses it by now."""
        return _apart(before) == _apart(now)

    def settle(self, host: Host, target: str) -> None:
        """Removes the new file that an interrupted replacement left beside the target."""
        with contextlib.suppress(OSError):
            host.unlink(target + BESIDE)


def _apart(value: Value) -> Value:
    """The record without the directory nearest to it."""
    return {name: part for name, part in value.items() if name != "below"} if isinstance(value, Mapping) else value


def _record(host: Host, target: str) -> Value:
    missing = missing_parents(host, target)
    nowhere: Value = {"text": None, "mode": None, "owner": None, "below": posixpath.dirname((*missing, target)[0])}
    if missing:
        return nowhere
    try:
        status = host.stat(target, follow=False)
    except FileNotFoundError:
        return nowhere
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("a link, directory or device is in its place")
    data = host.read(target)
    if len(data) > LARGEST:
        raise fault(errno.EFBIG, target)
    return {
        "text": data.decode("utf-8", "surrogateescape"),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": f"{status.st_uid}:{status.st_gid}",
        "below": posixpath.dirname(target),
    }


def _remove(host: Host, target: str, below: str) -> None:
    """Removes the file, then the directories under `below` that are empty: those that tuner made for it."""
    with contextlib.suppress(FileNotFoundError):
        host.unlink(target)
    parent = posixpath.dirname(target)
    while parent != below and parent.startswith(below.rstrip("/") + "/"):
        try:
            host.rmdir(parent)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return
        parent = posixpath.dirname(parent)


def _bytes(text: Leaf) -> bytes:
    return str(text).encode("utf-8", "surrogateescape")


def _mode(word: str) -> str:
    try:
        mode = int(word, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777 or mode & 0o022:
        raise BadValue(f"mode {word} is not an octal mode that only the owner may write", "such as 0644 or 0600")
    return f"{mode:04o}"


def _owner(word: str) -> str:
    user, _, group = word.partition(":")
    if not (user.isdigit() and group.isdigit()):
        raise BadValue(f"owner {word!r} is not uid:gid", "numbers, such as 0:0")
    return f"{int(user)}:{int(group)}"


def _ids(owner: str) -> tuple[int, int]:
    user, _, group = owner.partition(":")
    return int(user), int(group)
