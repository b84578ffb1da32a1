"""Interrupts of NICs on the CPUs of the NIC's own NUMA node.

Linux Documentation/core-api/irq/irq-affinity.rst, Documentation/ABI/testing/sysfs-bus-pci (msi_irqs, numa_node);
kernel/irq/proc.c: a write moves an interrupt, EIO (EPERM in newer kernels) for one that the kernel itself manages; in
newer kernels its file has no write bit either. What is written is the node's whole list, not one CPU each as
set_irq_affinity_bynode.sh of Mellanox/mlnx-tools does: the kernel picks the least used CPU of a list for each interrupt
(kernel/irq/matrix.c; its_select_cpu in drivers/irqchip/irq-gic-v3-its.c), and a list outlives a CPU that goes offline.
Who else places interrupts: irqbalance(1); Irqbalance/irqbalance#297; seapath/ansible#984.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from tuner.cpulist import cpu_list, cpu_numbers
from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, reading, scalar
from tuner.knobs.service import CONTROL_GROUPS, Service
from tuner.model import Absent, Leaf, Reading, Seen, Value
from tuner.pci import DEVICES, PciDevice, devices, target_of

NODES = "/sys/devices/system/node"
ONLINE = "/sys/devices/system/cpu/online"
NETWORK = 0x02
LOCAL, REMOTE = "local", "remote"
KEPT = frozenset({errno.EIO, errno.EPERM})
"""What the kernel answers to a write for an interrupt that it manages itself."""

BALANCER = "irqbalance.service"
IDLE = "inactive"
HELD = (
    "irqbalance runs and places interrupts: stop it (systemctl disable --now irqbalance) or give it --banmod={driver}"
)
VIRTUAL = "no NUMA node is nearer: a virtual machine, or the firmware does not say"


class Irq(Knob):
    """Where the interrupts of a NIC are handled: `local` keeps them on the CPUs of the NIC's own NUMA node.

    Targets are PCI addresses of network functions. Read as `{all: local}` or `{all: remote}`, the latter with the list
    of CPUs of each interrupt that another node may handle, such as `irq88-90: 0-191`, so that undo gives each its own
    back. A list that lies within the node is left as it is; any other becomes its part on the node, or the whole node.
    Interrupts that the kernel places itself (managed ones) are left out where it says so beforehand, and reported as
    not moved where it says so only when asked. While irqbalance runs it owns them: the setting is held, unless it was
    told to leave them alone. Lost when the interface goes down and up, when its rings change and at driver reload.
    """

    name = "irq"
    of_function = True
    rivals = True
    persist = "boot unit"
    main = "all"
    bounds = False
    partial = True

    def canonical(self, target: str) -> str:
        """The PCI address with its domain, or a pattern over addresses."""
        return target_of(target, 'such as "0000:41:00.0", or "*" for all NICs')

    def parse(self, target: str, raw: Raw) -> Value:
        """`local`, the one placement there is."""
        word = scalar(raw)
        if word != LOCAL:
            raise BadValue(f"{word!r} is no placement of interrupts", "local, or no setting to leave them alone")
        return {"all": LOCAL}

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Every network function that has a driver."""
        return [device.address for device in devices(host) if _is_network(device) and device.driver]

    def search_root(self, pattern: str) -> str:
        """One look finds them all."""
        return ""

    def files(self, host: Host, target: str) -> list[str]:
        """The list of CPUs of each interrupt that can be moved."""
        with contextlib.suppress(OSError, Unrecorded, Refused):
            return [_path(number) for number in _lists(host, target)]
        return []

    def read(self, host: Host, target: str) -> Reading:
        """{all}, and the lists of the interrupts that are not local; Absent says why nothing is nearer."""
        try:
            return reading(lambda: _record(host, target))
        except Refused as unfit:
            return Absent(unfit.why)

    def write(self, host: Host, target: str, value: Value) -> None:
        """Each interrupt that differs gets its list; what the kernel keeps is left, any other refusal undoes all."""
        held = _lists(host, target)
        try:
            for number, text in _goal(host, target, value, held).items():
                _move(host, number, text, held[number])
        except OSError:
            for number, text in held.items():
                with contextlib.suppress(OSError, Unrecorded):
                    _move(host, number, text, host.text(_path(number)).strip())
            raise

    def identity(self, host: Host, target: str) -> str:
        """The GUID of its RDMA device; a NIC without one has nothing but its place."""
        folder = f"{DEVICES}/{target}/infiniband"
        with contextlib.suppress(OSError, Unrecorded):
            return ", ".join(f"guid {host.text(f'{folder}/{name}/node_guid').strip()}" for name in host.list(folder))
        return ""

    def disruption(self, target: str) -> str:
        """None: the kernel moves an interrupt when it next comes, and loses none."""
        return "none"

    def guard(self, host: Host, target: str, value: Value, first: Reading | None) -> str:
        """Not while irqbalance places these; giving back what was there fights nobody."""
        if isinstance(first, Seen) and value == first.value:
            return ""
        found = Service().read(host, BALANCER)
        if not isinstance(found, Seen) or not isinstance(found.value, Mapping) or found.value["state"] == IDLE:
            return ""
        driver = ""
        with contextlib.suppress(OSError, Unrecorded):
            driver = posixpath.basename(host.link(f"{DEVICES}/{target}/driver"))
        return "" if _left_alone(host, target, driver) else HELD.format(driver=driver or "MODULE")

    def shortfall(self, target: str, wanted: Value, after: Value) -> str:
        """Which interrupts stayed."""
        fields = [name for name in after if name != "all"] if isinstance(after, Mapping) else []
        return f"not moved: {', '.join(fields)}; the kernel places managed interrupts itself"

    def about(self, target: str) -> str:
        """Where it is documented, and what undoes it."""
        return (
            "Documentation/core-api/irq/irq-affinity.rst. A driver places its interrupts anew when the interface comes"
            " up, when rings change and when it is loaded. While irqbalance runs it moves them within seconds, unless"
            " its arguments have --banmod=MODULE, or --banirq=N for each (some versions do even then:"
            " Irqbalance/irqbalance#297)."
        )


def _is_network(device: PciDevice) -> bool:
    return device.pci_class >> 16 == NETWORK


def _path(number: int) -> str:
    return f"/proc/irq/{number}/smp_affinity_list"


def _lists(host: Host, target: str) -> dict[int, str]:
    """The list of CPUs of each interrupt in use that can be moved. Refused says why there is none."""
    try:
        names = host.list(f"{DEVICES}/{target}/msi_irqs")
    except FileNotFoundError:
        raise Refused("no interrupts of its own (MSI): no driver uses it, or it shares a line") from None
    found: dict[int, str] = {}
    for number in sorted(int(name) for name in names if name.isdigit()):
        with contextlib.suppress(FileNotFoundError):  # allocated and not in use
            if host.stat(_path(number)).st_mode & 0o222:
                found[number] = host.text(_path(number)).strip()
    if not found:
        raise Refused("none of its interrupts is in use and can be moved: the kernel places managed ones itself")
    return found


def _near(host: Host, target: str) -> tuple[frozenset[int], frozenset[int]]:
    """(CPUs of the device's node, CPUs that are online). Refused says why there is no nearer node."""
    node = host.text(f"{DEVICES}/{target}/numa_node").strip()
    if node.startswith("-"):
        raise Refused(VIRTUAL)
    near = host.text(f"{NODES}/node{node}/cpulist").strip()
    if not near:
        raise Refused(f"NUMA node {node} has no CPUs")
    return frozenset(cpu_numbers(near)), frozenset(cpu_numbers(host.text(ONLINE).strip()))


def _away(text: str, near: frozenset[int], online: frozenset[int]) -> bool:
    """Whether a CPU off the node may handle it: CPUs that are not online handle nothing."""
    able = online.intersection(cpu_numbers(text))
    return not able or not able <= near


def _record(host: Host, target: str) -> Value:
    """{all: local}, or {all: remote} with the interrupts by their list."""
    kind = host.text(f"{DEVICES}/{target}/class").strip()
    if int(kind, 16) >> 16 != NETWORK:
        raise Refused(f"no network function (class {kind})")
    near, online = _near(host, target)
    away = {n: text for n, text in _lists(host, target).items() if _away(text, near, online)}
    record: dict[str, Leaf] = {"all": REMOTE if away else LOCAL}
    for text in dict.fromkeys(away.values()):
        record[f"irq{cpu_list([n for n, own in away.items() if own == text])}"] = text
    return record


def _goal(host: Host, target: str, value: Value, held: Mapping[int, str]) -> dict[int, str]:
    """The list for each interrupt that gets one: the local part of its own, or as a record names it."""
    record: Mapping[str, Any] = value if isinstance(value, Mapping) else {"all": value}
    if record.get("all") != LOCAL:
        own = {n: str(text) for name, text in record.items() if name != "all" for n in cpu_numbers(name[3:])}
        return {number: own[number] for number in held if number in own}
    near, online = _near(host, target)
    away = {number: text for number, text in held.items() if _away(text, near, online)}
    return {n: cpu_list(near.intersection(cpu_numbers(text)) & online or near) for n, text in away.items()}


def _move(host: Host, number: int, text: str, before: str) -> None:
    """Writes unless it is so; one that is gone or that the kernel keeps stays as it is."""
    if text == before:
        return
    try:
        host.write(_path(number), f"{text}\n")
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in KEPT:
            raise OSError(error.errno, f"{error.strerror} (interrupt {number} to {text})", _path(number)) from error


def _left_alone(host: Host, target: str, driver: str) -> bool:
    """Whether every irqbalance that runs was told to leave this function's interrupts alone."""
    with contextlib.suppress(OSError, Unrecorded, Refused):
        told = list(_arguments(host))
        numbers = {str(number) for number in _lists(host, target)}
        return bool(told) and all(driver in modules or numbers <= irqs for irqs, modules in told)
    return False


def _arguments(host: Host) -> Iterator[tuple[set[str], set[str]]]:
    """(interrupts, modules) that each process of irqbalance was told to leave alone; two empty sets if not known."""
    top = next((folder for folder in CONTROL_GROUPS if host.exists(f"{folder}/system.slice")), "")
    for pid in host.peek(f"{top}/system.slice/{BALANCER}/cgroup.procs").split():
        words: list[str] = []
        with contextlib.suppress(OSError, Unrecorded):
            words = host.text(f"/proc/{pid}/cmdline").split("\0")
        yield _values(words, "-i", "--banirq"), _values(words, "-m", "--banmod")


def _values(words: list[str], short: str, long: str) -> set[str]:
    """What an option is given, in each of its spellings: -i 5, -i5, --banirq 5, --banirq=5."""
    after = {value for word, value in pairwise(words) if word in (short, long)}
    joined = {word.partition("=")[2] for word in words if word.startswith(f"{long}=")}
    close = {word[2:] for word in words if word.startswith(short) and len(word) > 2}
    return after | joined | close
