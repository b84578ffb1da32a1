"""The laws of knobs, over every knob, every recorded host and a table of states that somebody else left behind.

Writing what was read changes nothing; what was written is read back; twice is once; undo gives every state back byte
for byte. The table is written by hand: what somebody did to the host, what the knob must read then, what a profile
writes over it and what must be read after that.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import HOSTS, tree
from tests.knobs import nvidia_states
from tuner.host import Host, open_host
from tuner.knobs import BY_NAME, KNOBS
from tuner.knobs.base import Knob
from tuner.model import Absent, Seen, known
from tuner.sim import store

SYS = "/proc/sys"
THP = "/sys/kernel/mm/transparent_hugepage"
NODES = "/sys/devices/system/node"
IN_USE = frozenset({"hugepages-in-use"})
SHORT = frozenset({"hugepages-short"})
Make = Callable[[Host], None]


@dataclass(frozen=True)
class Foreign:
    """A state that somebody else left: how, what is read then, what a profile writes, what is read after that.

    Records name the fields that matter. `never_with` are faults under which the state cannot come about.
    """

    name: str
    target: str
    make: Make
    reads: Any
    writes: Any
    becomes: Any
    never_with: frozenset[str] = frozenset()


def echo(*words: str) -> Make:
    """PATH TEXT PATH TEXT ...: each text written to its kernel file, as an administrator does."""

    def make(host: Host) -> None:
        for path, text in zip(words[::2], words[1::2], strict=True):
            host.write(path, f"{text}\n")

    return make


def lies(path: str, data: bytes, mode: int = 0o644) -> Make:
    """An ordinary file with this content and mode, its directories with it."""

    def make(host: Host) -> None:
        place = Path(host.root + path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(data)
        place.chmod(mode)

    return make


def folder(path: str) -> Make:
    """An empty directory."""
    return lambda host: Path(host.root + path).mkdir(mode=0o750)


def untouched(host: Host) -> None:
    """Nothing was done."""


def sysctl(name: str, key: str, text: str, reads: Any, writes: Any, becomes: Any) -> Foreign:
    """`text` echoed into a key."""
    return Foreign(name, key, echo(f"{SYS}/{key.replace('.', '/')}", text), reads, writes, becomes)


def pair(name: str, target: str, halves: str, reads: dict[str, int], writes: dict[str, str]) -> Foreign:
    """HALF=TEXT words written to /proc/sys/vm in turn."""
    words = [word for half in halves.split() for word in (f"{SYS}/vm/{half.split('=')[0]}", half.split("=")[1])]
    ((half, text),) = writes.items()
    return Foreign(name, target, echo(*words), reads, writes, {half: int(text)})


def thp(target: str, text: str, writes: str) -> Foreign:
    """A word or a number of transparent huge pages."""

    def typed(word: str) -> Any:
        return int(word) if word.isdigit() else word

    return Foreign(f"{text}-{writes}", target, echo(f"{THP}/{target}", text), typed(text), writes, typed(writes))


def pools(node0: int, node1: int) -> Make:
    """Huge pages of 2 MB on two nodes; memory is compacted first, for whoever needs that."""
    count = "hugepages/hugepages-2048kB/nr_hugepages"
    compact = (f"{SYS}/vm/compact_memory", "1")
    one, two = (f"{NODES}/node0/{count}", f"{node0}"), (f"{NODES}/node1/{count}", f"{node1}")
    return echo(*compact, *one, *compact, *two)


SYSCTL = [
    sysctl("zero", "vm.swappiness", "0", 0, "1", 1),
    sysctl("to zero", "vm.swappiness", "100", 100, "0", 0),
    sysctl("larger than ours", "net.core.rmem_max", "536870912", 536870912, "16777216", 16777216),
    sysctl("hex", "net.core.wmem_max", "0x1000000", 16777216, "0x2000000", 33554432),
    sysctl("octal", "net.core.somaxconn", "0100", 64, "4096", 4096),
    sysctl("out of the documented range", "net.ipv4.conf.all.rp_filter", "7", 7, "2", 2),
    sysctl("negative", "kernel.panic", "-1", -1, "10", 10),
    sysctl("no limit", "kernel.sched_rt_runtime_us", "-1", -1, "950000", 950000),
    sysctl("64 bits", "kernel.shmmax", "18446744073692774399", 18446744073692774399, "68719476736", 68719476736),
    sysctl("rounded up", "net.core.rps_sock_flow_entries", "3000", 4096, "33000", 65536),
    sysctl("max below min", "net.ipv4.tcp_rmem", "6291456 131072 4096", (6291456, 131072, 4096),
           "4096 131072 16777216", (4096, 131072, 16777216)),
    sysctl("hex and tabs", "net.ipv4.tcp_wmem", "0x1000\t16384\t0x400000", (4096, 16384, 4194304),
           ["4096", "0x10000", "16777216"], (4096, 65536, 16777216)),
    sysctl("all zero", "net.ipv4.tcp_mem", "0 0 0", (0, 0, 0), "190000 250000 380000", (190000, 250000, 380000)),
    sysctl("two numbers", "net.ipv4.ip_local_port_range", "1024 65535", (1024, 65535), "32768\t60999", (32768, 60999)),
    sysctl("four numbers", "kernel.printk", "7 4 1 7", (7, 4, 1, 7), "4 4 1 7", (4, 4, 1, 7)),
    sysctl("semaphores", "kernel.sem", "1000 32000 32 512", (1000, 32000, 32, 512),
           "250 32000 32 128", (250, 32000, 32, 128)),
    Foreign("part of a vector", "net.ipv4.tcp_rmem",
            echo(f"{SYS}/net/ipv4/tcp_rmem", "4096 87380 6291456", f"{SYS}/net/ipv4/tcp_rmem", "16384"),
            (16384, 87380, 6291456), "4096 131072 6291456", (4096, 131072, 6291456)),
    sysctl("word", "net.ipv4.tcp_congestion_control", "reno", "reno", "bbr", "bbr"),
    sysctl("qdisc", "net.core.default_qdisc", "pfifo_fast", "pfifo_fast", "fq", "fq"),
    sysctl("switch word", "kernel.printk_devkmsg", "off", "off", "ratelimit", "ratelimit"),
    sysctl("text", "kernel.core_pattern", "|/usr/share/apport/apport -p%p -s%s", "|/usr/share/apport/apport -p%p -s%s",
           "core", "core"),
    sysctl("empty list", "net.ipv4.ip_local_reserved_ports", "", "", "8080,9000-9010", "8080,9000-9010"),
    sysctl("to an empty list", "net.ipv4.ip_local_reserved_ports", "8080,9000-9010", "8080,9000-9010", "", ""),
    sysctl("unlisted number", "vm.page_lock_unfairness", "0", 0, "0x5", 5),
    sysctl("unlisted vector", "vm.lowmem_reserve_ratio", "1 1 1 0 0", (1, 1, 1, 0, 0),
           "256 256 32 0 0", (256, 256, 32, 0, 0)),
    sysctl("unlisted text", "kernel.poweroff_cmd", "/usr/bin/systemctl poweroff", "/usr/bin/systemctl poweroff",
           "/sbin/poweroff", "/sbin/poweroff"),
]  # fmt: skip

PAIRS = [
    pair("bytes", "vm.dirty", "dirty_ratio=1 dirty_bytes=1073741824",
         {"bytes": 1073741824}, {"ratio": "20"}),
    pair("other bytes", "vm.dirty", "dirty_ratio=1 dirty_bytes=8192", {"bytes": 8192}, {"bytes": "8193"}),
    pair("ratio", "vm.dirty", "dirty_bytes=8192 dirty_ratio=40", {"ratio": 40}, {"bytes": "268435456"}),
    pair("both zero", "vm.dirty", "dirty_bytes=8192 dirty_ratio=1 dirty_ratio=0",
         {"ratio": 0}, {"bytes": "268435456"}),
    pair("both zero, ratio", "vm.dirty", "dirty_bytes=8192 dirty_ratio=1 dirty_ratio=0",
         {"ratio": 0}, {"ratio": "10"}),
    pair("bytes", "vm.dirty_background", "dirty_background_bytes=1", {"bytes": 1}, {"ratio": "5"}),
    pair("ratio", "vm.dirty_background", "dirty_background_ratio=100",
         {"ratio": 100}, {"bytes": "67108864"}),
    pair("both zero", "vm.dirty_background", "dirty_background_ratio=0",
         {"ratio": 0}, {"bytes": "67108864"}),
    pair("kbytes", "vm.overcommit", "overcommit_kbytes=4194304", {"bytes": 4294967296}, {"ratio": "50"}),
    pair("ratio", "vm.overcommit", "overcommit_ratio=80", {"ratio": 80}, {"bytes": "1073741824"}),
    pair("both zero", "vm.overcommit", "overcommit_ratio=0", {"ratio": 0}, {"bytes": "1024"}),
]  # fmt: skip

THPS = [
    thp("enabled", "always", "madvise"),
    thp("enabled", "madvise", "never"),
    thp("enabled", "never", "always"),
    Foreign("small reserve", "enabled", echo(f"{THP}/enabled", "never", f"{SYS}/vm/min_free_kbytes", "11419"),
            "never", "madvise", "madvise"),
    thp("defrag", "always", "defer"),
    thp("defrag", "defer", "defer+madvise"),
    thp("defrag", "defer+madvise", "madvise"),
    thp("defrag", "madvise", "never"),
    thp("defrag", "never", "always"),
    thp("khugepaged/defrag", "0", "1"),
    thp("khugepaged/pages_to_scan", "4294967295", "4096"),
    thp("khugepaged/scan_sleep_millisecs", "0", "10000"),
    thp("khugepaged/alloc_sleep_millisecs", "1", "0"),
    thp("khugepaged/max_ptes_none", "0", "511"),
    thp("khugepaged/max_ptes_swap", "511", "64"),
    thp("khugepaged/max_ptes_shared", "7", "0"),
]  # fmt: skip

HUGEPAGES = [
    Foreign("no pool", "node0/2MB", pools(0, 0), 0, "64", 64, IN_USE),
    Foreign("uneven", "node0/2MB", pools(20, 40), 20, "50", 50),
    Foreign("raised", "node1/2MB", pools(20, 40), 40, "90", 90),
    Foreign("lowered", "node1/2MB", pools(17, 90), 90, "30", 30),
    Foreign("to none", "node1/2MB", pools(17, 3), 3, "0", 0, IN_USE),
    Foreign("large", "node0/2MB", pools(300, 1), 300, "400", 400, IN_USE | SHORT),
    Foreign("no pool", "total/2MB", pools(0, 0), {"total": 0, "node0": 0, "node1": 0}, "64", {"total": 64}, IN_USE),
    Foreign("uneven", "total/2MB", pools(20, 40), {"total": 60, "node0": 20, "node1": 40}, "95", {"total": 95}),
    Foreign("lowered", "total/2MB", pools(50, 20), {"total": 70, "node0": 50, "node1": 20}, "40", {"total": 40}),
    Foreign("one node", "total/2MB", pools(0, 90), {"total": 90, "node0": 0, "node1": 90}, "31", {"total": 31}, IN_USE),
    Foreign("no room", "node0/1GB", untouched, 0, "0", 0),
]

BASE = "/etc/modprobe.d"
FILES = [
    Foreign("absent", f"{BASE}/law-a.conf", untouched, {"text": None, "mode": None}, "x\n",
            {"text": "x\n", "mode": "0644"}),
    Foreign("absent and not wanted", f"{BASE}/law-b.conf", untouched, {"text": None}, None, {"text": None}),
    Foreign("missing directories", f"{BASE}/law-c/one/two.conf", untouched, {"text": None}, "x\n", {"text": "x\n"}),
    Foreign("empty directory", f"{BASE}/law-d/one.conf", folder(f"{BASE}/law-d"), {"text": None}, "", {"text": ""}),
    Foreign("empty file", f"{BASE}/law-e.conf", lies(f"{BASE}/law-e.conf", b""), {"text": ""}, "x\n", {"text": "x\n"}),
    Foreign("to no file", f"{BASE}/law-f.conf", lies(f"{BASE}/law-f.conf", b"options x y=1\n"),
            {"text": "options x y=1\n"}, None, {"text": None}),
    Foreign("no final newline", f"{BASE}/law-g.conf", lies(f"{BASE}/law-g.conf", b"a\nb"), {"text": "a\nb"},
            "a\nb\n", {"text": "a\nb\n"}),
    Foreign("not UTF-8", f"{BASE}/law-h.conf", lies(f"{BASE}/law-h.conf", b"# caf\xe9 \xff\xfe\n"),
            {"text": "# caf\udce9 \udcff\udcfe\n"}, "# caf\u00e9\n", {"text": "# caf\u00e9\n"}),
    Foreign("null bytes and CRLF", f"{BASE}/law-i.conf", lies(f"{BASE}/law-i.conf", b"a\0b\r\nc\r\n"),
            {"text": "a\0b\r\nc\r\n"}, "x", {"text": "x"}),
    Foreign("private", f"{BASE}/law-j.conf", lies(f"{BASE}/law-j.conf", b"secret\n", 0o600),
            {"text": "secret\n", "mode": "0600"}, "x\n", {"text": "x\n", "mode": "0600"}),
    Foreign("private to no file", f"{BASE}/law-k.conf", lies(f"{BASE}/law-k.conf", b"secret\n", 0o600),
            {"mode": "0600"}, None, {"text": None}),
    Foreign("mode wanted", f"{BASE}/law-l.conf", lies(f"{BASE}/law-l.conf", b"x\n", 0o444), {"mode": "0444"},
            {"text": "x\n", "mode": "0640"}, {"text": "x\n", "mode": "0640"}),
    Foreign("1000 lines", f"{BASE}/law-m.conf", lies(f"{BASE}/law-m.conf", b"options x y=1\n" * 1000),
            {"text": "options x y=1\n" * 1000}, "options x y=2\n" * 1000, {"text": "options x y=2\n" * 1000}),
]  # fmt: skip

CPU = "/sys/devices/system/cpu"

CPUS = [
    Foreign("one_apart", "governor", echo(f"{CPU}/cpufreq/policy0/scaling_governor", "ondemand"),
            {"all": "mixed", "cpu0": "ondemand"}, "performance", {"all": "performance"}),
    Foreign("one_off", "cstate/C2", echo(f"{CPU}/cpu1/cpuidle/state2/disable", "1"),
            {"all": "mixed", "cpu1": "off"}, "off", {"all": "off"}),
]  # fmt: skip

PCI = "/sys/bus/pci/devices"
GPU = "0000:05:00.0"


def gpu(name: str, words: str, reads: Any, writes: Any) -> Foreign:
    """Levels and commands, with ";" between, written to the files of one GPU."""
    files = {True: f"{PCI}/{GPU}/pp_od_clk_voltage", False: f"{PCI}/{GPU}/power_dpm_force_performance_level"}
    texts = [text.strip() for text in words.split(";")]
    pairs = [part for text in texts for part in (files[text[:2] in ("s ", "m ", "c")], text)]
    record = {"level": writes} if isinstance(writes, str) else writes
    becomes = {field: int(text) if text.isdigit() else text for field, text in record.items()}
    return Foreign(name, GPU, echo(*pairs), reads, writes, becomes)


CAPPED = {"level": "perf_determinism", "max": "1900"}
RANGE = {"level": "manual", "min": "600", "max": "1400"}
GPUS = [
    gpu("capped", "auto; perf_determinism; s 1 1900; c",
        {"level": "perf_determinism", "min": 500, "max": 1900}, "auto"),
    gpu("recapped", "auto; perf_determinism; s 1 1500; c",
        {"level": "perf_determinism", "min": 500, "max": 1500}, CAPPED),
    gpu("range", "auto; manual; s 0 800; s 1 1700; c", {"level": "manual", "min": 800, "max": 1700}, CAPPED),
    gpu("range to auto", "auto; manual; s 0 800; s 1 1700; c", {"level": "manual", "min": 800, "max": 1700}, "auto"),
    gpu("no cap", "auto; perf_determinism", {"level": "perf_determinism", "min": 500, "max": 2100}, RANGE),
    gpu("staged", "auto; manual; s 0 500; s 1 2100; c; s 0 800; s 1 1700",
        {"level": "manual", "min": 500, "max": 2100}, RANGE),
    gpu("stock", "auto", {"level": "auto", "min": 500, "max": 2100}, CAPPED),
]  # fmt: skip

FIRST = f"{PCI}/{GPU}"


def gpu_file(name: str, path: str, text: str, reads: Any, writes: str, becomes: Any) -> Foreign:
    """`text` written to one file of a GPU."""
    return Foreign(name, GPU, echo(f"{FIRST}/{path}", text), reads, writes, becomes)


WATTS, PSTATE, PLPD = "hwmon/hwmon11/power1_cap", "pm_policy/soc_pstate", "pm_policy/xgmi_plpd"
POWER_CAPS = [
    gpu_file("lowered", WATTS, "600000000", 600, "700", 700),
    gpu_file("parts of a watt", WATTS, "699999999", 699, "750", 750),
    gpu_file("lowest", WATTS, "1000000", 1, "0x2ee", 750),
    gpu_file("default", WATTS, "750000000", 750, "1", 1),
]
PSTATES = [
    gpu_file("other", PSTATE, "2", "soc_pstate_1", "soc_pstate_default", "soc_pstate_default"),
    gpu_file("default", PSTATE, "0", "soc_pstate_default", "3", "soc_pstate_2"),
]
PLPDS = [
    gpu_file("disallowed", PLPD, "0", "plpd_disallow", "plpd_default", "plpd_default"),
    gpu_file("optimized", PLPD, "2", "plpd_optimized", "0", "plpd_disallow"),
    gpu_file("default", PLPD, "1", "plpd_default", "2", "plpd_optimized"),
]

NIC, FAR = "0000:28:00.0", "0000:86:00.0"
IRQ = "/proc/irq/{}/smp_affinity_list"


def interrupts(name: str, target: str, lists: dict[int, str], reads: dict[str, str]) -> Foreign:
    """Lists of CPUs written for interrupts of one NIC."""
    words = [word for number, text in lists.items() for word in (IRQ.format(number), text)]
    return Foreign(name, target, echo(*words), reads, "local", {"all": "local"})


IRQS = [
    interrupts("one CPU each", NIC, dict(zip(range(124, 132), map(str, [120, 121, *range(26, 32)]), strict=True)),
               {"all": "remote", "irq124": "120", "irq125": "121"}),
    interrupts("anywhere", NIC, dict.fromkeys(range(124, 132), "0-191"), {"all": "remote", "irq124-131": "0-191"}),
    interrupts("one away", NIC, {**dict.fromkeys(range(124, 131), "0-95"), 131: "96"},
               {"all": "remote", "irq131": "96"}),
    interrupts("two lists", NIC, dict(zip(range(124, 132), ["0-191", "95,96"] * 4, strict=True)),
               {"all": "remote", "irq124,126,128,130": "0-191", "irq125,127,129,131": "95-96"}),
    interrupts("at home, each its own", NIC, dict(zip(range(124, 132), map(str, range(8)), strict=True)),
               {"all": "local"}),
    interrupts("on the other node", FAR, dict.fromkeys(range(148, 156), "0-95,191"),
               {"all": "remote", "irq148-155": "0-95,191"}),
]  # fmt: skip

DISK = "/sys/block/{}/queue/{}"


def disk(name: str, attribute: str, text: str, reads: Any, writes: str, becomes: Any) -> list[Foreign]:
    """A text written to an attribute of the disk of each host."""
    return [
        Foreign(f"{one} {name}", f"block/{one}/{attribute}", echo(DISK.format(one, attribute), text), reads, writes,
                becomes)
        for one in ("vda", "nvme1n1")
    ]  # fmt: skip


KSM = "/sys/kernel/mm/ksm/run"
SYSFS = [
    *disk("raised", "read_ahead_kb", "16384", 16384, "4096", 4096),
    *disk("off", "read_ahead_kb", "0", 0, "128", 128),
    *disk("no whole page", "read_ahead_kb", "511", 508, "1022", 1020),
    *disk("to off", "read_ahead_kb", "4096", 4096, "0", 0),
    *disk("to none", "scheduler", "mq-deadline", "mq-deadline", "none", "none"),
    *disk("other word", "scheduler", "none", "none", "deadline", "mq-deadline"),
    *disk("fewest", "nr_requests", "4", 4, "64", 64),
    Foreign("own requests", "block/vda/scheduler",
            echo(DISK.format("vda", "scheduler"), "mq-deadline", DISK.format("vda", "nr_requests"), "32"),
            "mq-deadline", "none", "none"),
    Foreign("merging", "mm/ksm/run", echo(KSM, "1"), 1, "0", 0),
    Foreign("stopped", "mm/ksm/run", echo(KSM, "0"), 0, "2", 2),
    Foreign("unmerged", "mm/ksm/run", echo(KSM, "2"), 2, "1", 1),
]  # fmt: skip

H800 = "0000:1b:00.0"
"""A GPU of h800-cx7, which changes MIG at once."""


def told(question: str, value: Any, reads: Any, writes: Any, becomes: Any) -> Foreign:
    """What an administrator tells NVML."""
    return Foreign(
        f"{question} {value}", H800, lambda host: host.nvml.set(H800, question, value), reads, writes, becomes
    )


def locked(knob: str, value: Any, writes: Any, becomes: Any) -> Foreign:
    """Clocks that tuner locked earlier: what others lock cannot be read."""
    return Foreign(f"from {value}", H800, lambda host: BY_NAME[knob].write(host, H800, value), value, writes, becomes)


def span(low: int, high: int) -> dict[str, int]:
    """A range in MHz."""
    return {"min": low, "max": high}


ON, OFF, CORE, MEMORY = "enabled", "disabled", "nvidia.gpu_clocks", "nvidia.mem_clocks"
H800S: dict[str, list[Foreign]] = {
    "nvidia.power_limit": [told("power", 500000, {"limit": 500}, "700", {"limit": 700, "enforced": 700})],
    "nvidia.ecc": [told("ecc", ON, {"current": ON, "pending": ON}, OFF, {"current": ON, "pending": OFF})],
    "nvidia.mig": [told("mig", ON, {"current": ON, "pending": ON}, OFF, {"current": OFF, "pending": OFF})],
    MEMORY: [locked(MEMORY, span(2619, 2619), "unlocked", "unlocked")],
    CORE: [
        locked(CORE, span(345, 1980), {"min": "1155", "max": "1410"}, span(1155, 1410)),
        locked(CORE, span(1155, 1155), "unlocked", "unlocked"),
    ],
}

WRITABLE = [knob for knob in KNOBS if not knob.read_only]
"""A knob that only judges has nothing to undo."""

A100 = "0000:07:00.0"
"""A GPU of a100-cx7, of the kind with 80 GB."""

TABLES: dict[str, list[Foreign]] = {
    "amdgpu.clock": GPUS,
    "amdgpu.power_cap": POWER_CAPS,
    "amdgpu.soc_pstate": PSTATES,
    "amdgpu.xgmi_plpd": PLPDS,
    "cpu": CPUS,
    "sysctl": SYSCTL,
    "sysctl.pair": PAIRS,
    "sysfs": SYSFS,
    "thp": THPS,
    "hugepages": HUGEPAGES,
    "irq": IRQS,
    "file": FILES,
    **{
        name: [*(Foreign(row[0], A100, *row[1:]) for row in rows), *H800S.get(name, [])]
        for name, rows in nvidia_states.states(A100, 1593).items()
    },
}


REFUSING = frozenset({"gpu-in-reset", "old-ifwi"})
"""Faults of devices that take no clock: what the knob does then is in the tests of the MI300X profile."""


def overlays(path: Path) -> dict[str, list[str]]:
    """The faults of a host that neither refuse nor ignore a write, with the kernel files they change; "" is none.

    Those of the hosts with GPUs of NVIDIA change what NVML answers: what that means is in test_nvidia_hosts.py.
    """
    if path.stem in ("a100-cx7", "h800-cx7"):
        return {"": ["*"]}
    rules = yaml.safe_load(store.load(path).entries["/.tuner-host/kernel.yaml"].data) or {}
    found: dict[str, list[str]] = {"": ["*"]}
    for fault, overlay in (rules.get("faults") or {}).items():
        text = yaml.safe_dump(overlay.get("rules", {}))
        if "is: refuse" not in text and "is: ignore" not in text:
            found[fault] = list(overlay.get("rules", {}))
        if {"overlay", "remove", "set"} & set(overlay) and fault not in REFUSING:
            found[fault] = [*found.get(fault, []), "/sys/bus/pci/devices/*"]
    return found


def cases() -> list[Any]:
    """Each state of each knob on each host, plain and with each fault that changes a file of the target.

    A knob without a table is one case, which fails.
    """
    found = []
    nowhere = Host("/nonexistent", "image", "", "")
    for path in sorted(HOSTS.glob("*.host")):
        for fault, patterns in overlays(path).items():
            for knob in WRITABLE:
                states: list[Foreign | None] = [
                    state
                    for state in TABLES.get(knob.name, [])
                    if fault not in state.never_with
                    and any(fnmatchcase(f, p) for f in [*knob.files(nowhere, state.target), "*"] for p in patterns)
                ]
                if not TABLES.get(knob.name):
                    states = [None]
                for state in states:
                    words = [path.stem, fault, knob.name, *((state.target, state.name) if state else ("no table",))]
                    label = "-".join(word for word in words if word).replace(" ", "_")
                    found.append(pytest.param(path.stem, fault, knob.name, state, id=label))
    return found


@pytest.fixture(scope="module")
def hosts(
    masters: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str, bool], tuple[Path, Host]]:
    """A copy per host and fault, used for one state after the other; a fresh one after a failure."""
    made: dict[tuple[str, str], tuple[Path, Host]] = {}

    def copied(name: str, fault: str, fresh: bool) -> tuple[Path, Host]:
        if fresh or (name, fault) not in made:
            path = tmp_path_factory.mktemp("laws") / name
            shutil.copytree(masters(name, *filter(None, [fault])), path, symlinks=True)
            made[name, fault] = path, open_host(str(path))
        return made[name, fault]

    return copied


def has(state: Any, found: Any) -> bool:
    """Whether a reading is the state, by the fields that it names."""
    if isinstance(state, Mapping):
        return isinstance(found, Mapping) and all(found[field] == value for field, value in state.items())
    return bool(state == found) and type(state) is type(found)


def seen(host: Host, knob: Knob, target: str) -> Any:
    """What the knob reads; anything but a value fails."""
    found = knob.read(host, target)
    assert isinstance(found, Seen), found
    return found.value


def over(now: Any, wanted: Any) -> Any:
    """What `write` gets: a record whole, with the wanted fields put in."""
    return {**now, **wanted} if isinstance(wanted, Mapping) and isinstance(now, Mapping) else wanted


def keep_the_laws(root: Path, host: Host, knob: Knob, state: Foreign) -> None:
    """The four laws, in turn, from one foreign state."""
    target = state.target
    state.make(host)
    before, value = tree(root), seen(host, knob, target)
    assert has(state.reads, value)
    moves = [(BY_NAME[name], place, BY_NAME[name].read(host, place)) for name, place in knob.moves(target)]
    others = [(other, place, found.value) for other, place, found in moves if isinstance(found, Seen)]

    knob.write(host, target, value)
    assert changed(before, tree(root)) == [], "writing what was read changes nothing"

    wanted = knob.normalise(host, target, knob.parse(target, state.writes))
    knob.write(host, target, over(value, wanted))
    assert has(state.becomes, seen(host, knob, target)), "what was written is read back"

    once = tree(root)
    knob.write(host, target, over(seen(host, knob, target), wanted))
    assert changed(once, tree(root)) == [], "twice is once"

    knob.write(host, target, value)
    for other, place, held in others:
        other.write(host, place, held)
    assert changed(before, tree(root)) == [], "undo gives the state back"


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(path, before, after) of what differs between two trees."""
    paths = sorted(before.keys() | after.keys())
    return [(p, before.get(p), after.get(p)) for p in paths if before.get(p) != after.get(p)]


@pytest.mark.parametrize(("name", "fault", "knob", "state"), cases())
def test_laws(
    hosts: Callable[[str, str, bool], tuple[Path, Host]], name: str, fault: str, knob: str, state: Foreign | None
) -> None:
    """Every knob keeps the four laws from every foreign state, on every recorded host."""
    assert state is not None, f"knob {knob} has no table of foreign states: write one in TABLES"
    root, host = hosts(name, fault, False)
    if isinstance(BY_NAME[knob].read(host, state.target), Absent):
        pytest.skip(f"{name} has no {knob} {state.target}")
    try:
        keep_the_laws(root, host, BY_NAME[knob], state)
    except BaseException:
        hosts(name, fault, True)
        raise


def test_every_state_is_met_by_some_host(masters: Callable[..., Path]) -> None:
    """No line of the table is skipped on all hosts, and no table is without its knob."""
    assert set(TABLES) == {knob.name for knob in WRITABLE}
    hosts = [open_host(str(masters(path.stem))) for path in sorted(HOSTS.glob("*.host"))]
    for name, states in TABLES.items():
        lost = [s.target for s in states if not any(known(BY_NAME[name].read(h, s.target)) for h in hosts)]
        assert lost == [], name
