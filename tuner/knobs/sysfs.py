"""Attributes of disks and of KSM in sysfs, each on the list below, each with its own parser.

Linux Documentation/ABI/stable/sysfs-block, Documentation/block/switching-sched.rst (block/blk-sysfs.c has the bounds,
block/elevator.c the switch), Documentation/admin-guide/mm/ksm.rst. Proactive compaction is no attribute: sysctl
vm.compaction_proactiveness.
"""

from __future__ import annotations

import contextlib
import os
import re

from tuner.errors import BadValue
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, bounded, number, reading, scalar
from tuner.model import Absent, Reading, Seen, Value

BLOCK = "/sys/block"
KSM_FOLDER = "/sys/kernel/mm/ksm"
KSM, AHEAD, REQUESTS, SCHEDULER = "mm/ksm/run", "read_ahead_kb", "nr_requests", "scheduler"
TARGET = re.compile(rf"block/(?!\.)[^/\s]+/(?:{AHEAD}|{REQUESTS}|{SCHEDULER})")

BOUNDS = {KSM: (0, 2), AHEAD: (0, 2**32 - 1), REQUESTS: (4, 2**32 - 1)}
"""As run_store in mm/ksm.c and queue_var_store in block/blk-sysfs.c check them; 4 is BLKDEV_MIN_RQ."""

OF_REQUESTS = frozenset({REQUESTS, SCHEDULER})
"""What only a disk with request queues has, not an array or a volume that passes its I/O on (md, dm)."""

PASSED_OVER = re.compile(r"(?:loop|ram|zram|nbd|sr|fd|mtdblock)\d+")
"""No disks: a pattern does not mean them. Partitions have no queue and no folder here."""

PATH = re.compile(r"nvme\d+c\d+n\d+")
"""One path to a namespace of several (NVMe multipath): it has the queue, the namespace above it the read-ahead."""

IDENTITIES = {"dm/uuid": "uuid", "md/uuid": "uuid", "wwid": "wwid", "device/wwid": "wwid",
              "device/serial": "serial", "serial": "serial"}  # fmt: skip
"""Files below a disk that say which it is: volumes and arrays, NVMe, SCSI, NVMe's controller, virtio."""

ALIASES = {"deadline": "mq-deadline"}
"""Names that the kernel takes and shows as another (elevator_alias in block/mq-deadline.c)."""

ABOUT = {
    AHEAD: "Documentation/ABI/stable/sysfs-block: kB that are read beyond what a program asked for, when it reads in "
    "sequence. Rounded down to pages. Files that are open keep theirs. On an array or a volume its own value counts.",
    REQUESTS: "Documentation/ABI/stable/sysfs-block: requests that may wait for one hardware queue. Without a "
    "scheduler at most the depth of the device; a switch of the scheduler sets it anew.",
    SCHEDULER: "Documentation/block/switching-sched.rst. A switch lets no new I/O in until what is in flight is done.",
    KSM: "Documentation/admin-guide/mm/ksm.rst. 1 merges equal pages of programs that asked for it (madvise), which "
    "costs CPU time and a copy at each later write; 0 stops and keeps what is merged, 2 stops and unmerges it, which "
    "takes memory.",
}


class Sysfs(Knob):
    """Attributes of disks and of memory in sysfs: read-ahead, I/O scheduler, request queue, merging of equal pages.

    Targets: `block/NAME/read_ahead_kb`, `block/NAME/scheduler`, `block/NAME/nr_requests` (NAME as in /sys/block, such
    as nvme0n1, md0, dm-0, or a pattern over disks: loop, RAM, removable and optical devices are not meant) and
    `mm/ksm/run` (0, 1 or 2). Names of disks move between boots: each is kept with its WWID, UUID or serial. A scheduler
    that the disk does not offer is refused at plan; switching it drains the disk's queue, so it waits for an idle node.
    """

    name = "sysfs"
    persist = "boot unit"

    def canonical(self, target: str) -> str:
        """One of the list, a pattern only for the name of a disk: each attribute takes other values."""
        if target == KSM or TARGET.fullmatch(target):
            return target
        known = ", ".join([*(f"block/NAME/{name}" for name in (AHEAD, SCHEDULER, REQUESTS)), KSM])
        raise BadValue(f"sysfs has no target {target}", f"known: {known}")

    def parse(self, target: str, raw: Raw) -> Value:
        """A word for a scheduler, else a number within its bounds."""
        if _attribute(target) != SCHEDULER:
            return bounded(number(raw), *BOUNDS[_attribute(target)])
        word = scalar(raw)
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", word):
            raise BadValue(f"{word!r} is no I/O scheduler", "one word, such as none or mq-deadline")
        return word

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """KSM where the kernel has it, then the attributes that the pattern names of each disk that has them."""
        found = [KSM] if pattern in ("*", KSM) and host.exists(_path(KSM)) else []
        wanted = (AHEAD, SCHEDULER, REQUESTS) if pattern == "*" else (_attribute(pattern),)
        disks = _disks(host) if pattern != KSM else []
        return found + [f"block/{disk}/{name}" for disk in disks for name in wanted if _has(host, disk, name)]

    def files(self, host: Host, target: str) -> list[str]:
        """The attribute itself."""
        return [_path(target)]

    def identity(self, host: Host, target: str) -> str:
        """The WWID, UUID and serial of a disk, as far as it tells them."""
        parts: dict[str, None] = {}
        for place, word in IDENTITIES.items() if target != KSM else ():
            with contextlib.suppress(OSError, Unrecorded):
                text = " ".join(host.text(f"{BLOCK}/{_disk(target)}/{place}").replace(",", " ").split())
                parts.update({f"{word} {text}": None} if text else {})
        return ", ".join(parts)

    def read(self, host: Host, target: str) -> Reading:
        """The number, or the scheduler in brackets."""
        found = reading(lambda: _held(host, target))
        why = reading(lambda: _why_absent(host, target)) if isinstance(found, Absent) else found
        return Absent(str(why.value)) if isinstance(found, Absent) and isinstance(why, Seen) else why

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """Read-ahead in whole pages; a scheduler that this disk offers."""
        if _attribute(target) == AHEAD:
            page = page_size(host) // 1024
            return int(str(value)) // page * page
        if _attribute(target) != SCHEDULER:
            return value
        offered = host.text(_path(target)).replace("[", "").replace("]", "").split()
        word = value if value in offered else ALIASES.get(str(value), value)
        if word in offered:
            return word
        more = f"it offers {', '.join(offered)}; bfq and kyber only once their module (bfq, kyber-iosched) is loaded"
        raise BadValue(f"{_disk(target)} does not offer the I/O scheduler {value}", more)

    def write(self, host: Host, target: str, value: Value) -> None:
        """Writes what differs: the same scheduler again would drain the queue for nothing."""
        if _held(host, target) != value:
            host.write(_path(target), f"{value}\n")

    def disruption(self, target: str) -> str:
        """Read-ahead disturbs nobody. The others stall I/O or take memory: as compaction does, on a busy node not."""
        return "none" if _attribute(target) == AHEAD else "memory"

    def guard(self, host: Host, target: str, value: Value, first: Reading | None) -> str:
        """No unmerging of more memory than there is: the kernel would kill processes for it."""
        if target != KSM or value != 2:
            return ""
        try:
            need = int(host.peek(f"{KSM_FOLDER}/pages_sharing")) * page_size(host) >> 20
            free = memory(host, "MemAvailable") >> 20
        except (OSError, ValueError, Unrecorded) as why:
            return f"cannot tell how much memory unmerging takes: {why}"
        return f"unmerging takes {need} MB, and {free} MB are available" if need >= free else ""

    def note(self, before: Value, value: Value, target: str) -> str:
        """What the change means for those who use the disk or the memory."""
        notes = {AHEAD: "for files opened from now on", SCHEDULER: "I/O waits until what is in flight is done"}
        if target == KSM and value == 0 and before == 1:
            return "what is merged stays merged; 2 gives it back"
        return notes.get(_attribute(target), "")

    def rank(self, target: str) -> int:
        """A scheduler before the number of requests, which its switch sets anew."""
        return int(_attribute(target) == REQUESTS)

    def moves(self, target: str) -> tuple[tuple[str, str], ...]:
        """The number of requests (elevator_disable and blk_mq_init_sched in block/)."""
        return (("sysfs", f"block/{_disk(target)}/{REQUESTS}"),) if _attribute(target) == SCHEDULER else ()

    def about(self, target: str) -> str:
        """Where the kernel documents it, and what each value costs."""
        return ABOUT.get(_attribute(target), "")


def page_size(host: Host) -> int:
    """Bytes in a page of the running kernel; of a recorded one 4096, as on all of x86-64 and most of arm64."""
    return os.sysconf("SC_PAGE_SIZE") if host.kind == "live" else 4096


def memory(host: Host, field: str, *, evidence: bool = False) -> int:
    """A field of /proc/meminfo in bytes, with `evidence` its line for a verdict; ValueError where it is missing."""
    if evidence:
        lines = host.lines("/proc/meminfo", 0, f"{field}:")
    else:
        lines = [line for line in host.peek("/proc/meminfo").splitlines() if line.startswith(f"{field}:")]
    found = re.fullmatch(r"\w+:\s*(\d+) kB", lines[0]) if lines else None
    if found is None:
        raise ValueError(f"/proc/meminfo has no {field}")
    return int(found.group(1)) * 1024


def _attribute(target: str) -> str:
    return KSM if target == KSM else target.rpartition("/")[2]


def _disk(target: str) -> str:
    return target.split("/")[1]


def _path(target: str) -> str:
    return f"/sys/kernel/{KSM}" if target == KSM else f"{BLOCK}/{_disk(target)}/queue/{_attribute(target)}"


def _disks(host: Host) -> list[str]:
    """Disks, arrays and volumes that are no medium in a drive; not the partitions of a multipath device (kpartx)."""
    try:
        names = [name for name in host.list(BLOCK) if not PASSED_OVER.fullmatch(name)]
    except FileNotFoundError:
        return []
    return [name for name in names if not _removable(host, name) and not _part(host, name)]


def _removable(host: Host, disk: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return host.text(f"{BLOCK}/{disk}/removable").strip() != "0"
    return True  # gone since it was listed


def _part(host: Host, disk: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return disk.startswith("dm-") and host.text(f"{BLOCK}/{disk}/dm/uuid").startswith("part")
    return False


def _has(host: Host, disk: str, name: str) -> bool:
    """Whether the attribute of this disk means anything: older kernels show it where it does nothing."""
    fits = host.exists(f"{BLOCK}/{disk}/mq") if name in OF_REQUESTS else not PATH.fullmatch(disk)
    return fits and host.exists(_path(f"block/{disk}/{name}"))


def _held(host: Host, target: str) -> Value:
    name = _attribute(target)
    text = host.text(_path(target))
    if name in OF_REQUESTS and not host.exists(f"{BLOCK}/{_disk(target)}/mq"):
        raise FileNotFoundError
    if name != SCHEDULER:
        value = int(text)
        low, high = BOUNDS[name]
        if not low <= value <= high:
            raise ValueError(f"{value}")
        return value
    chosen = re.findall(r"\[([^\[\]\s]+)\]", text)
    if len(chosen) == 1:
        return str(chosen[0])
    if text.strip() == "none":  # a device that takes no scheduler
        return "none"
    raise ValueError(f"no choice in brackets: {text.strip()[:60]!r}")


def _why_absent(host: Host, target: str) -> str:
    if target == KSM:
        return "this kernel has no KSM"
    if not host.exists(f"{BLOCK}/{_disk(target)}"):
        return f"no disk {_disk(target)}"
    return "no queue of its own: the disks below it have one" if _attribute(target) in OF_REQUESTS else "no read-ahead"
