"""The size of /dev/shm: tmpfs(5), Documentation/filesystems/tmpfs.rst and mm/shmem.c of the Linux kernel."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue
from tuner.host.door import Host
from tuner.knobs.base import Knob, Raw, bounded, number, reading, scalar
from tuner.knobs.sysfs import memory, page_size
from tuner.model import Absent, Reading, Seen, Setting, Unreadable, Value

SHM = "/dev/shm"  # noqa: S108 nothing is written there
FSTAB = "/etc/fstab"
UNIT, FOLDERS = "dev-shm.mount", ("/etc/systemd/system", "/usr/lib/systemd/system")
MOUNTS = "/proc/self/mountinfo"
UNITS = "kmgtpe"
SIZE = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)([kmgtpeKMGTPE%]?)")
MOST = 2**63 - 1
DEFAULTS = frozenset({"relatime", "atime", "rw"})
"""Options of a mount that nobody has to write down."""


class Shm(Knob):
    """The size of /dev/shm, in bytes or as tmpfs takes it: `8G`, `64M`, `50%` of the memory; 0 is no limit.

    Processes of one job exchange data there (NCCL, RCCL, loaders of frameworks). Judged only: a size is an option of
    a mount, and the plan says with which command it changes and which line of /etc/fstab keeps it. Where no size was
    given it is half of the memory. A container has a /dev/shm of its own, 64 MiB unless it asks for more or shares
    that of the host: this is the one that tuner itself sees.
    """

    name = "shm"
    persist = "fstab"
    read_only = True

    def canonical(self, target: str) -> str:
        """The only one there is."""
        if target == SHM:
            return target
        raise BadValue(f"shm has no target {target}", f"known: {SHM}")

    def parse(self, target: str, raw: Raw) -> Value:
        """Bytes; a share of the memory is {percent} until there is a host."""
        match = SIZE.fullmatch(scalar(raw).strip())
        if match is None:
            raise BadValue(f"{raw!r} is no size", "bytes, with k, M, G or T behind the number, or N% of the memory")
        count, unit = number(match.group(1)), match.group(2).lower()
        if unit == "%":
            return {"percent": bounded(count, 1, 1000)}
        return bounded(count * 1024 ** (UNITS.index(unit) + 1) if unit else count, 0, MOST)

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The one, if a tmpfs is mounted there."""
        return [] if isinstance(self.read(host, SHM), Absent) else [SHM]

    def read(self, host: Host, target: str) -> Reading:
        """Bytes, 0 for no limit."""
        found = reading(lambda: _held(host))
        return Absent(f"no tmpfs is mounted on {SHM}") if isinstance(found, Absent) else found

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """Whole pages, rounded up; a share in bytes (shmem_parse_one in mm/shmem.c)."""
        page = page_size(host)
        share = int(str(value["percent"])) if isinstance(value, Mapping) else None
        size = int(str(value)) if share is None else share * memory(host, "MemTotal", evidence=True) // 100
        return -(-size // page) * page

    def key(self, value: Any) -> Any:
        """No limit is more than any size."""
        return value or math.inf

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What to run, and the line that keeps it: systemd-remount-fs.service(8) goes by it at boot."""
        size = _short(int(str(value)))
        options = ",".join([*(option for option in _mount(host)[0] if option not in DEFAULTS), f"size={size}"])
        return f"mount -o remount,size={size} {SHM}; to keep it, in /etc/fstab: tmpfs {SHM} tmpfs {options} 0 0"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """The size in /etc/fstab, else systemd's own, half of the memory (src/shared/mount-setup.c)."""
        for folder in FOLDERS:
            if boots.host.exists(f"{folder}/{UNIT}"):
                return Next(Unreadable(f"{folder}/{UNIT} mounts it, which is not followed"))
        options, where = _fstab(boots.host)
        sizes = [option.removeprefix("size=") for option in options.split(",") if option.startswith("size=")]
        if not sizes:
            return Next(Seen(_half(boots.host)), where)
        try:
            return Next(Seen(self.normalise(boots.host, SHM, self.parse(SHM, sizes[-1]))), where)
        except BadValue as bad:
            return Next(Unreadable(f"{where}: {bad.what}"), where)

    def about(self, target: str) -> str:
        """Where it is documented."""
        return (
            "Documentation/filesystems/tmpfs.rst. A limit, not a reservation: memory is taken as files are written. "
            "Below what is in use a remount is refused. Containers: docker run --shm-size, --ipc=host."
        )


def _mount(host: Host) -> tuple[list[str], list[str]]:
    """Options of the mount and of the tmpfs that is on /dev/shm, the topmost one (proc_pid_mountinfo(5)).

    Raises FileNotFoundError where there is none.
    """
    lines = host.lines(MOUNTS, 4, SHM)
    if not lines:
        raise FileNotFoundError
    fields, _, source = lines[-1].partition(" - ")
    kind, _, options = source.split(maxsplit=2)
    if kind != "tmpfs":
        raise FileNotFoundError
    return fields.split()[5].split(","), options.split(",")


def _held(host: Host) -> Value:
    """The size that the kernel shows; it shows none where it is the default, half of the pages."""
    for option in _mount(host)[1]:
        name, _, text = option.partition("=")
        if name == "size":
            if not re.fullmatch(r"\d+k", text):
                raise ValueError(option)
            return int(text[:-1]) * 1024
    return _half(host)


def _half(host: Host) -> int:
    """Half of the pages: what a tmpfs without a size gets."""
    page = page_size(host)
    return memory(host, "MemTotal", evidence=True) // page // 2 * page


def _fstab(host: Host) -> tuple[str, str]:
    """(options, FILE:LINE) of the first line for it in /etc/fstab, as systemd-remount-fs goes by it; empty for none."""
    try:
        lines = host.text(FSTAB).splitlines()
    except FileNotFoundError:
        return "", ""
    for place, line in enumerate(lines, 1):
        fields = line.split()
        if len(fields) > 3 and not fields[0].startswith("#") and posixpath.normpath(fields[1]) == SHM:
            return fields[3], f"{FSTAB}:{place}"
    return "", ""


def _short(size: int) -> str:
    """8589934592 -> 8G: the largest unit that divides it."""
    for place in range(len(UNITS[:4]), 0, -1):
        if size and size % 1024**place == 0:
            return f"{size // 1024**place}{UNITS[place - 1].upper() if place > 1 else 'k'}"
    return str(size)
