"""Writes the manifest of a synthetic recorded host: python -m tests.make_hosts mi300x-cx7 > tests/hosts/mi300x-cx7.host

mi300x-cx7 is a server with 8 AMD Instinct MI300X and 8 ConnectX-7. No public listing of one is complete, so it is put
together from Linux (drivers/gpu/drm/amd: files, modes, texts), AMD's documents and public dumps (PCI addresses and
unique ids: ROCm/k8s-device-plugin testdata/topo-mi300-cpx, issue 157). What no source tells is left out, so that
tuner says "not recorded" instead of believing it. What a kernel has apart from devices comes from plain-vm, a recorded
Debian guest, with the values of a large Ubuntu 22.04 server. Its faults are overlays: `overlay(NAME)` is what one
changes in this host.
"""

from __future__ import annotations

import math
import posixpath
import re
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from errno import EINVAL, EPERM
from pathlib import Path

from tuner.host import manifest
from tuner.host.manifest import Entry
from tuner.sim import faults

# fmt: off
NAME, KERNEL = "mi300x-cx7", "6.8.0-60-generic"
PLAIN = Path(__file__).parent / "hosts" / "plain-vm.host"
BOOT = f"BOOT_IMAGE=/boot/vmlinuz-{KERNEL} root=/dev/nvme0n1p2 ro iommu=pt pci=realloc=off"
HOST = (f"name: {NAME}\nkernel: {KERNEL}\nsynthetic: true\nsummary: Ubuntu 22.04, 2 x EPYC 9654, 8 MI300X and a "
        "ConnectX-7 for each; made from public sources, no such machine was read")
CPUS, NODE_KB = 192, 1056727990
ROOTS = (0x00, 0x20, 0x40, 0x60, 0x80, 0xA0, 0xC0, 0xE0)
GPUS = {  # bus -> unique id, as in the dump of ROCm/k8s-device-plugin
    0x05: 0xE3AA140F9A5F9E31, 0x27: 0x2250F807CAF2231A, 0x47: 0xD802D560D4BA851D, 0x65: 0xA70757A01276547A,
    0x85: 0xD465AF38BCAA89BD, 0xA7: 0xBD5B5286DA906CEA, 0xC7: 0xB8F159DCBA049DE9, 0xE5: 0xDD197AD1B50577F6,
}
VRAM, HIVE = 206141652992, 10631624818852212319
FRONT = {"0000:07:00.0": True, "0000:07:00.1": False}  # the other NIC: two ports of 100 Gb/s, one without a cable
GEN5, GEN2 = ("32.0 GT/s PCIe", 16), ("5.0 GT/s PCIe", 1)
DISKS = ("pci0000:00/0000:00:03.2/0000:08:00.0", "pci0000:80/0000:80:03.2/0000:88:00.0")  # NVMe, one on each socket
UNREAD = "config driver_override enable irq local_cpulist local_cpus modalias power remove rescan resource"
GPU_UNREAD = "board_info mem_info_gtt_total mem_info_vis_vram_total pcie_bw pcie_replay_count pp_cur_state reset_method"
"""What every PCI device and every GPU has, and no source tells the content of."""
CLOSED = re.compile(r"/sys/(devices/platform/amdgpu_xcp.*|class/.+|bus/pci.*)|/dev/(dri|infiniband)")
OPEN = re.compile(r".*/(net/en\w+|mlx5_\d(/ports/1)?|infiniband_verbs/uverbs\d)")
"""Directories with a complete listing (PCI endpoints too), less those where more may well exist."""

SYSCTL = {  # what a server of this size and Ubuntu 22.04 with Linux 6.8 show where a small Debian 12 guest differs
    "fs/inotify/max_user_watches": "1048576", "kernel/hostname": NAME, "kernel/nmi_watchdog": "1",
    "kernel/io_uring_disabled": "0", "kernel/io_uring_group": "-1", "kernel/kptr_restrict": "1",
    "kernel/osrelease": KERNEL, "kernel/sysrq": "176", "kernel/tainted": "12288", "kernel/threads-max": "16511374",
    "kernel/version": "#63~22.04.1-Ubuntu SMP PREEMPT_DYNAMIC Tue Apr 22 19:00:15 UTC 2", "vm/memfd_noexec": "0",
    "kernel/watchdog_cpumask": f"0-{CPUS - 1}", "kernel/yama/ptrace_scope": "1", "net/core/optmem_max": "131072",
    "net/ipv4/ping_group_range": "0\t2147483647", "net/ipv4/tcp_ehash_entries": "524288",
    "net/ipv4/tcp_max_orphans": "262144", "net/ipv4/tcp_max_syn_backlog": "4096",
    "net/ipv4/tcp_max_tw_buckets": "262144", "net/ipv4/tcp_mem": "24767061\t33022748\t49534122",
    "net/ipv4/udp_mem": "49534122\t66045497\t99068244", "vm/min_free_kbytes": str(math.isqrt(2 * NODE_KB * 16)),
    "vm/user_reserve_kbytes": "131072",
}
GONE = ("/proc/sys/kernel/sched_child_runs_first",)  # dropped in Linux 6.7
FROM_PLAIN = re.compile(
    r"/(proc/sys|sys/kernel|sys/devices/virtual/net/lo|run(?!/systemd)|bin|lib|sbin|etc/security|usr/lib/"
    r"(modprobe|modules-load|sysctl)\.d|usr/local|sys/devices/system/node/node./hugepages)(/.*)?"
    r"|/etc/(default/grub\.d|modules|modules-load\.d|modprobe\.d|os-release|sysctl\.(conf|d))(/.*)?|/sys/devices/system/cpu/cpuidle/.*"
)
FILES = {
    "/etc/hostname": NAME,
    "/etc/default/grub": 'GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_DISABLE_LINUX_UUID=true\nGRUB_CMDLINE_LINUX_DEFAULT=""\n'
                         'GRUB_CMDLINE_LINUX="iommu=pt pci=realloc=off"',
    "/etc/sysctl.d/10-console-messages.conf": "kernel.printk = 4 4 1 7",
    "/etc/sysctl.d/10-kernel-hardening.conf": "kernel.kptr_restrict = 1",
    "/etc/sysctl.d/10-magic-sysrq.conf": "kernel.sysrq = 176",
    "/etc/sysctl.d/10-network-security.conf": "net.ipv4.conf.default.rp_filter=2\nnet.ipv4.conf.all.rp_filter=2",
    "/etc/sysctl.d/10-ptrace.conf": "kernel.yama.ptrace_scope = 1",
    "/usr/lib/os-release": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nNAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\n'
                           "ID_LIKE=debian\nVERSION_CODENAME=jammy",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "/sys/module/amdgpu/initstate": "live",
    "/sys/module/amdgpu/parameters/noretry": "-1",
    "/sys/module/amdgpu/version": "6.10.5",  # there with AMD's own (DKMS) driver only
    "/sys/module/mlx5_core/initstate": "live",
    "/sys/module/mlx5_core/parameters/prof_sel": "2",
    "/sys/module/nvme_core/initstate": "live",
    "/sys/module/nvme_core/parameters/io_timeout": "30",
    "/sys/module/nvme_core/parameters/multipath": "Y",
}
DEV = "dri infiniband ipmi0 kfd nvme0 nvme0n1 nvme0n1p1 nvme0n1p2 nvme1 nvme1n1"
GUEST_ONLY = re.compile(r"cdrom|dri|fd0|fb0|parport0|sg0|sr0|vda")
ETC = ("default environment fstab group hostname modprobe.d modules modules-load.d netplan os-release passwd profile.d "
       "security shadow ssh sysctl.conf sysctl.d systemd udev")
CPU = "cpufreq cpuidle hotplug isolated kernel_max modalias offline online possible power present smt uevent"
NO_PREFERENCE = ("energy_performance_preference", "energy_performance_available_preferences")
SERVICES = ("irqbalance.service", "ssh.service")  # those that run on a stock server and matter here
GOVERNORS = "conservative ondemand userspace powersave performance schedutil "
PROC = ("asound bootconfig buddyinfo bus cgroups cmdline consoles cpuinfo crypto devices diskstats dma driver fb "
        "filesystems fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg loadavg locks mdstat meminfo "
        "misc modules mounts mtrr net pagetypeinfo partitions pressure schedstat scsi self slabinfo softirqs stat "
        "swaps sys sysrq-trigger sysvipc thread-self timer_list tty uptime version vmallocinfo vmstat zoneinfo")
MODULES = ("amdgpu amddrm_ttm_helper amdttm amddrm_buddy amd_sched amdxcp amdkcl ast mlx5_ib ib_uverbs ib_core "
           "mlx5_core mlxfw nvme nvme_core")
CPU_NODE = {"cpu_cores_count": 96, "mem_banks_count": 1, "max_engine_clk_ccompute": 2400}
GPU_NODE = {
    "simd_count": 1216, "mem_banks_count": 1, "caches_count": 626, "p2p_links_count": 1,
    "max_waves_per_simd": 8, "lds_size_in_kb": 64, "num_gws": 64, "wave_front_size": 64, "array_count": 32,
    "simd_arrays_per_engine": 1, "cu_per_simd_array": 10, "simd_per_cu": 4, "max_slots_scratch_cu": 32,
    "gfx_target_version": 90402, "vendor_id": 4098, "device_id": 29857, "hive_id": HIVE, "num_sdma_engines": 2,
    "num_sdma_xgmi_engines": 14, "num_sdma_queues_per_engine": 8, "num_cp_queues": 24, "max_engine_clk_fcompute": 2100,
    "fw_version": 166, "capability": 746037888, "debug_prop": 1511, "sdma_fw_version": 22, "num_xcc": 8,
    "max_engine_clk_ccompute": 2400,
}
KFD_LINK = ("type version_major version_minor node_from node_to weight min_latency max_latency min_bandwidth "
            "max_bandwidth recommended_transfer_size recommended_sdma_engine_id_mask flags")
KFD, SIMD, CAP = "/sys/class/kfd/kfd/topology", 0x80001000, 750000000
PLATFORM = {"platform_oem": 4777524452235890003, "platform_id": 85015745549651, "platform_rev": 2}
CPX_NODE = {"simd_count": 152, "caches_count": 80, "array_count": 4, "num_xcc": 1,
            "num_sdma_xgmi_engines": 0, "capability": 2893521536}
NODE_KEYS = (
    "cpu_cores_count simd_count mem_banks_count caches_count io_links_count p2p_links_count cpu_core_id_base "
    "simd_id_base max_waves_per_simd lds_size_in_kb gds_size_in_kb num_gws wave_front_size array_count "
    "simd_arrays_per_engine cu_per_simd_array simd_per_cu max_slots_scratch_cu gfx_target_version vendor_id device_id "
    "location_id domain drm_render_minor hive_id num_sdma_engines num_sdma_xgmi_engines num_sdma_queues_per_engine "
    "num_cp_queues max_engine_clk_fcompute local_mem_size fw_version capability debug_prop sdma_fw_version unique_id "
    "num_xcc max_engine_clk_ccompute"
)
HWMON = {"name": "amdgpu", "freq1_label": "sclk", "freq2_label": "mclk", "power1_label": "PPT",
         "temp2_label": "junction", "temp2_crit": 100000, "temp2_emergency": 110000,
         "temp3_label": "mem", "temp3_crit": 105000, "temp3_emergency": 115000}
RULES = """\
  # The driver's answers (Linux drivers/gpu/drm/amd/pm/swsmu/smu13/smu_v13_0_6_ppt.c and amdgpu_pm.c).
  /sys/devices/pci*/power_dpm_force_performance_level: {is: od_table, sclk: [500, 2100], mclk: [900, 1300]}
  /sys/devices/pci*/pp_od_clk_voltage: {is: od_table, sclk: [500, 2100], mclk: [900, 1300]}
  /sys/devices/pci*/pp_dpm_*clk: {is: refuse, errno: EINVAL}
  /sys/devices/pci*/pm_policy/*: {is: starred}
  /sys/devices/pci*/thermal_throttling_logging: {is: refuse, errno: EINVAL}
  /sys/devices/pci*/current_*_partition: {is: refuse, errno: EBUSY}
  /sys/devices/pci*/hwmon/hwmon*/power1_cap: {is: power_cap}
  /sys/devices/pci*/net/*/mtu: {is: int, low: 68, high: 9978}
  /sys/devices/system/cpu/cpufreq/policy*/scaling_governor: {is: word, words: [conservative, ondemand, userspace, powersave, performance, schedutil], errno: EINVAL}
  /sys/devices/system/cpu/cpufreq/boost: [{is: int, low: 0, high: 1}, {is: alias, path: /sys/devices/system/cpu/cpufreq/policy*/boost}]
  /sys/devices/system/cpu/cpufreq/policy*/boost: {is: int, low: 0, high: 1}
  /sys/devices/system/cpu/cpu*/cpuidle/state*/disable: {is: int, low: 0, high: 1}
  /proc/irq/*/smp_affinity_list: {is: cpulist, high: 191}
"""  # noqa: E501 a rule is one line
SWAPPED = {"room: 440": "room: 200000", "room: 0": "room: 400", "to: 67584": "to: 90112", "the guest": "plain-vm",
           "{is: refuse, errno: ENOTSUP}": "{is: int, low: 0, high: 1}", "depth: 256": "depth: 1023",
           "high: 256}": "high: 1023}"}
"""In plain-vm's rules: 1 TiB on each node, a watchdog as bare metal has it, the queues of NVMe."""
MOUNTS = """\
20 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
22 20 0:6 / /dev rw,nosuid,relatime shared:2 - devtmpfs udev rw,size=1056700000k,nr_inodes=264175000,mode=755,inode64
27 22 0:24 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64"""
FAULTS = {
    "gpu-lost": "0000:c7:00.0 fell off the bus; its card numbers stay free, KFD counts 7",
    "gpu-in-reset": "the hive resets: what asks the firmware answers EPERM on all 8",
    "vf": "8 virtual functions 0x74b5 as a guest with several of them sees them: the host sets clocks and power",
    "cpx": "CPX, but DRM has 64 minors and the BMC takes one: 63 of 64 partitions",
    "ast-absent": "no BMC display: card numbers start at 0",
    "old-ifwi": "firmware that knows no determinism and no limit of the memory clock",
}
FAULT_RULES = {
    "old-ifwi": """\
    rules:
      /sys/devices/pci*/power_dpm_force_performance_level: {is: od_table, sclk: [500, 2100], determinism: commit}
      /sys/devices/pci*/pp_od_clk_voltage: {is: od_table, sclk: [500, 2100], determinism: commit}
""",
}
# fmt: on


@dataclass(frozen=True)
class Variant:
    """How a host differs from the plain one."""

    fault: str = ""

    def buses(self) -> list[int]:
        """Buses of the GPUs that are there."""
        return [bus for bus in GPUS if not (self.fault == "gpu-lost" and bus == 0xC7)]

    def bmc(self) -> list[str]:
        """The DRM card of the BMC, which comes up before the GPUs."""
        return [] if self.fault == "ast-absent" else ["card0"]

    def card(self, minor: int) -> str:
        """The card with a render minor of 128 + `minor`; above 63 the numbers go on at 192."""
        minor += len(self.bmc())
        return f"card{minor if minor < 64 else minor + 128}"

    def dropped(self, minor: int) -> bool:
        """Whether DRM has no minor left for it."""
        return self.fault == "cpx" and minor == 63


class Tree(dict[str, Entry]):
    """Entries by path, with a short word for each kind."""

    def file(self, path: str, text: object, mode: int = 0o444) -> None:
        """A file with one newline at its end, as kernel files have."""
        self[path] = Entry("file", mode, f"{text}\n".encode())

    def files(self, folder: str, texts: Mapping[str, object], mode: int = 0o444) -> None:
        """Several files of one directory."""
        for name, text in texts.items():
            self.file(f"{folder}/{name}", text, mode)

    def link(self, path: str, target: str) -> None:
        """A link to the absolute path `target`, written relative as sysfs does."""
        self[path] = Entry("link", 0o777, posixpath.relpath(target, posixpath.dirname(path)).encode())

    def folder(self, path: str, names: Iterable[str], mode: int = 0o755) -> None:
        """A directory with its complete listing."""
        self[path] = Entry("dir", mode, names=tuple(sorted(set(names))))

    def pci(self, path: str, ids: str, kind: str, driver: str, link: tuple[str, int] = GEN5) -> str:
        """A PCI device; returns its directory. `ids`: vendor, device and, for an endpoint, those of the subsystem."""
        place, address = f"/sys/devices/{path}", path.rpartition("/")[2]
        vendor, device, *subsystem = ids.split()
        self.files(place, {"class": f"0x{kind}", "vendor": f"0x{vendor}", "device": f"0x{device}"})
        self.files(place, dict(zip(("current_link_speed", "current_link_width"), link, strict=True)))
        self.file(f"{place}/numa_node", int(int(address[5:7], 16) >= 0x80), 0o644)
        self.link(f"{place}/subsystem", "/sys/bus/pci")
        self.link(f"/sys/bus/pci/devices/{address}", place)
        self.link(f"{place}/driver", f"/sys/bus/pci/drivers/{driver}")
        self.link(f"/sys/bus/pci/drivers/{driver}/{address}", place)
        if subsystem:  # an endpoint; what only bridges leave out is not recorded there
            self.files(place, {"subsystem_vendor": f"0x{subsystem[0]}", "subsystem_device": f"0x{subsystem[1]}"})
            self.files(place, {"revision": "0x00", "max_link_speed": link[0], "max_link_width": link[1]})
            pci_id = f"PCI_CLASS={kind.upper()}\nPCI_ID={vendor.upper()}:{device.upper()}"
            self.file(f"{place}/uevent", f"DRIVER={driver}\n{pci_id}\nPCI_SLOT_NAME={address}", 0o644)
            group = f"/sys/kernel/iommu_groups/{int(address[5:7], 16)}"
            self.link(f"{place}/iommu_group", group)
            self.file(f"{group}/type", "identity")
        return place


def build(variant: Variant) -> Tree:
    """Every entry of the host."""
    tree = Tree()
    plain = manifest.parse(PLAIN.read_text(encoding="utf-8"), str(PLAIN)).entries
    _kernel(tree, plain)
    _proc(tree)
    _dev(tree, variant, plain["/dev"].names)
    _services(tree)
    _boot_files(tree)
    _grub(tree)
    _cpus(tree)
    _disks(tree)
    for root, bus in zip(ROOTS, GPUS, strict=True):
        _rail(tree, variant, root, bus)
    for number, (address, up) in enumerate(FRONT.items(), 1):
        place = tree.pci(f"pci0000:00/0000:00:05.1/{address}", "15b3 101d 15b3 0043", "020000", "mlx5_core")
        _nic(tree, place, number, f"enp7s0f{number - 1}np{number - 1}", 100 if up else 0)
    tree.pci("pci0000:00/0000:00:05.1", "1022 14ab", "060400", "pcieport")
    if variant.bmc():
        bridge = "pci0000:20/0000:20:05.2/0000:29:00.0"
        tree.pci("pci0000:20/0000:20:05.2", "1022 14ab", "060400", "pcieport", GEN2)
        tree.pci(bridge, "1a03 1150", "060400", "pcieport", GEN2)
        bmc = tree.pci(f"{bridge}/0000:2a:00.0", "1a03 2000 1a03 2000", "030000", "ast", GEN2)
        _drm(tree, bmc, variant.bmc())
        tree.link("/sys/class/drm/card0-VGA-1", f"{bmc}/drm/card0/card0-VGA-1")
        tree.file(f"{bmc}/drm/card0/card0-VGA-1/status", "disconnected")
    _kfd(tree, variant)
    _listings(tree)
    return tree


def _kernel(tree: Tree, plain: Mapping[str, Entry]) -> None:
    """What the kernel has whatever the devices, and the files of the distribution, out of a recorded guest."""
    nics = [*(f"enp{bus + 1}s0np0" for bus in GPUS), "enp7s0f0np0", "enp7s0f1np1"]
    gone = {posixpath.dirname(path): posixpath.basename(path) for path in GONE}
    for path, entry in plain.items():
        if not FROM_PLAIN.fullmatch(path) or path in GONE or re.search(r"/ens[45]|ipv6/conf/ens3", path):
            continue
        names = [name for name in entry.names if name != gone.get(path) and not name.startswith("ens")]
        names += nics if path.endswith("/conf") else []
        for nic in nics if "/conf/ens3" in path else [""]:
            tree[path.replace("ens3", nic)] = replace(entry, names=tuple(names))
    for where in ("all", "default", *nics):
        tree.file(f"/proc/sys/net/ipv4/conf/{where}/rp_filter", 2, 0o644)
    for path, value in {**{f"/proc/sys/{key}": value for key, value in SYSCTL.items()}, **FILES}.items():
        tree.file(path, value, tree[path].mode if path in tree else 0o644)
    rules = plain["/.tuner-host/kernel.yaml"].data.decode().partition("faults:")[0]
    for old, new in SWAPPED.items():
        rules = rules.replace(old, new)
    offered = (f'  {name}:\n    about: "{what}"\n    overlay: true\n' for name, what in FAULTS.items())
    laid = "".join(o + FAULT_RULES.get(name, "    rules: {}\n") for name, o in zip(FAULTS, offered, strict=True))
    tree.file("/.tuner-host/kernel.yaml", f"{rules}{RULES}faults:\n{laid}".rstrip("\n"), 0o644)
    tree.file("/.tuner-host/host.yaml", HOST, 0o644)


def _proc(tree: Tree) -> None:
    tree.folder("/proc", PROC.split(), 0o555)  # no process: nobody holds a GPU
    loaded = "\n".join(f"{module} 4096 0 - Live 0x0000000000000000" for module in MODULES.split())
    tree.files("/proc", {"cmdline": BOOT, "modules": loaded, "meminfo": _memory("", 2 * NODE_KB)})
    tree.file("/proc/self/mountinfo", MOUNTS)
    tree.file("/proc/version", f"Linux version {KERNEL} (gcc-12, GNU ld 2.38) {SYSCTL['kernel/version']}")
    model = "AMD EPYC 9654 96-Core Processor"
    cores = (f"processor\t: {n}\nmodel name\t: {model}\nphysical id\t: {n // 96}\n" for n in range(CPUS))
    tree.file("/proc/cpuinfo", "\n".join(cores))


def _memory(prefix: str, total: int) -> str:
    values = {"MemTotal": total, "MemFree": total - total // 128}
    if not prefix:
        values |= {"MemAvailable": total - total // 100, "Hugepagesize": 2048}
    return "\n".join(f"{prefix}{name + ':':16}{value:>11} kB" for name, value in values.items())


def _dev(tree: Tree, variant: Variant, devices: Iterable[str]) -> None:
    """Device nodes as empty files: who looks asks only whether they are there."""
    minors = [8 * list(GPUS).index(bus) + n for bus in variant.buses() for n in range(8)]
    minors = [minor for minor in minors if not variant.dropped(minor)]
    cards = [*variant.bmc(), *map(variant.card, minors), *(f"renderD{128 + minor}" for minor in minors)]
    rdma = ["rdma_cm", *(f"uverbs{n}" for n in range(len(GPUS) + len(FRONT)))]
    tree |= {f"/dev/dri/{card}": Entry("file", 0o660) for card in cards}
    tree |= {f"/dev/{node}": Entry("file", 0o666) for node in ["kfd", *(f"infiniband/{name}" for name in rdma)]}
    tree.folder("/dev", [*(name for name in devices if not GUEST_ONLY.fullmatch(name)), *DEV.split()])
    tree.folder("/etc", ETC.split())
    tree["/sys/module/nvidia"] = Entry("absent")
    for hierarchy in ("systemd", "unified"):
        tree[f"/sys/fs/cgroup/{hierarchy}"] = Entry("absent")


def _services(tree: Tree) -> None:
    """What systemd leaves in files about a service that runs and starts at boot."""
    units, wants = "/usr/lib/systemd/system", "/etc/systemd/system/multi-user.target.wants"
    for unit in SERVICES:
        tree.file(f"{units}/{unit}", f"[Service]\nExecStart=/usr/sbin/{unit.partition('.')[0]}", 0o644)
        tree[f"{wants}/{unit}"] = Entry("link", 0o777, f"/lib/systemd/system/{unit}".encode())
        tree[f"/run/systemd/units/invocation:{unit}"] = Entry("link", 0o777, b"00000000000000000000000000000001")
        tree.file(f"/sys/fs/cgroup/system.slice/{unit}/cgroup.procs", 800, 0o644)
    tree.folder("/etc/systemd/system", ["multi-user.target.wants"])
    for folder in (units, wants, "/run/systemd/system", "/run/systemd/units", "/sys/fs/cgroup/system.slice"):
        tree.folder(folder, [])
    tree.file("/sys/kernel/kexec_crash_loaded", 0)


SYSCTL_D = {
    "/etc/sysctl.d/10-console-messages.conf": "kernel.printk = 4 4 1 7",
    "/etc/sysctl.d/10-ipv6-privacy.conf": "net.ipv6.conf.all.use_tempaddr = 2\nnet.ipv6.conf.default.use_tempaddr = 2",
    "/etc/sysctl.d/10-kernel-hardening.conf": "kernel.kptr_restrict = 1",
    "/etc/sysctl.d/10-magic-sysrq.conf": "kernel.sysrq = 176",
    "/etc/sysctl.d/10-network-security.conf": "net.ipv4.conf.default.rp_filter=2\nnet.ipv4.conf.all.rp_filter=2",
    "/etc/sysctl.d/10-ptrace.conf": "kernel.yama.ptrace_scope = 1",
    "/etc/sysctl.d/10-zeropage.conf": "vm.mmap_min_addr = 65536",
    "/etc/sysctl.conf": "# kernel parameters of this host",
    "/usr/lib/sysctl.d/50-pid-max.conf": "kernel.pid_max = 4194304",
    "/usr/lib/sysctl.d/99-protect-links.conf": "fs.protected_hardlinks = 1\nfs.protected_symlinks = 1",
}
"""What systemd 249 and procps 3.3 of Ubuntu 22.04 ship, without comments."""

ABSENT = (
    "/warewulf /cm /run/sysctl.d /usr/local/lib/sysctl.d /usr/local/lib/systemd /usr/local/lib/modprobe.d /etc/tuned"
    " /etc/infiniband /etc/rc.local /etc/rc.d /etc/credstore /run/credstore /usr/lib/credstore /etc/NetworkManager"
    " /etc/networkd-dispatcher /etc/network /run/modules-load.d /usr/local/lib/modules-load.d /etc/cloud"
)
"""Folders of other owners and of provisioning that this node has not."""


def _boot_files(tree: Tree) -> None:
    """What decides the next boot: systemd's files of kernel parameters, and who else could write them."""
    for path, text in SYSCTL_D.items():
        tree.file(path, text, 0o644)
    tree["/etc/sysctl.d/99-sysctl.conf"] = Entry("link", 0o777, b"../sysctl.conf")
    unit = "[Unit]\nDescription=Apply Kernel Variables\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart="
    tree.file("/usr/lib/systemd/system/systemd-sysctl.service", f"{unit}/lib/systemd/systemd-sysctl", 0o644)
    tree["/usr/sbin/init"] = Entry("link", 0o777, b"/lib/systemd/systemd")
    tree.file("/usr/lib/systemd/libsystemd-shared-249.so", "", 0o644)
    for path in ABSENT.split():
        tree[path] = Entry("absent")
    for folder in ("/etc/sysctl.d", "/usr/lib/sysctl.d", "/usr/lib/systemd", "/usr/lib/systemd/system"):
        tree.folder(folder, [])


UUID = "0bd9b1c2-6c5a-4f43-9b5c-6a1d3fdc2a11"
GRUB_CFG = """\
#
# DO NOT EDIT THIS FILE
#
# It is automatically generated by grub-mkconfig using templates
# from /etc/grub.d and settings from /etc/default/grub
#

### BEGIN /etc/grub.d/00_header ###
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${initrdfail}" = 2 ]; then
   set initrdfail=
elif [ "${initrdfail}" = 1 ]; then
   set next_entry="${prev_entry}"
   set prev_entry=
   save_env prev_entry
   if [ "${next_entry}" ]; then
      set initrdfail=2
   fi
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi

if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi

export menuentry_id_option

if [ "${prev_saved_entry}" ]; then
  set saved_entry="${prev_saved_entry}"
  save_env saved_entry
  set prev_saved_entry=
  save_env prev_saved_entry
  set boot_once=true
fi

function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
function recordfail {
  set recordfail=1
  if [ -n "${have_grubenv}" ]; then if [ -z "${boot_once}" ]; then save_env recordfail; fi; fi
}
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  else
    insmod efi_gop
    insmod efi_uga
  fi
}

terminal_output console
if [ "${recordfail}" = 1 ] ; then
  set timeout=30
else
  if [ x$feature_timeout_style = xy ] ; then
    set timeout_style=hidden
    set timeout=0
  # Fallback hidden-timeout code in case the timeout_style feature is
  # unavailable.
  elif sleep --interruptible 0 ; then
    set timeout=0
  fi
fi
### END /etc/grub.d/00_header ###

### BEGIN /etc/grub.d/10_linux ###
function gfxmode {
	set gfxpayload="${1}"
	if [ "${1}" = "keep" ]; then
		set vt_handoff=vt.handoff=7
	else
		set vt_handoff=
	fi
}
if [ "${recordfail}" != 1 ]; then
  if [ -e ${prefix}/gfxblacklist.txt ]; then
    if [ ${grub_platform} != pc ]; then
      set linux_gfx_mode=keep
    elif hwmatch ${prefix}/gfxblacklist.txt 3; then
      if [ ${match} = 0 ]; then
        set linux_gfx_mode=keep
      else
        set linux_gfx_mode=text
      fi
    else
      set linux_gfx_mode=text
    fi
  else
    set linux_gfx_mode=keep
  fi
else
  set linux_gfx_mode=text
fi
export linux_gfx_mode
@SIMPLE@submenu 'Advanced options for Ubuntu' $menuentry_id_option 'gnulinux-advanced-@UUID@' {
@ADVANCED@}

### END /etc/grub.d/10_linux ###

### BEGIN /etc/grub.d/30_uefi-firmware ###
if [ "$grub_platform" = "efi" ]; then
	fwsetup --is-supported
	if [ "$?" = 0 ]; then
		menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
			fwsetup
		}
	fi
fi
### END /etc/grub.d/30_uefi-firmware ###

### BEGIN /etc/grub.d/41_custom ###
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
### END /etc/grub.d/41_custom ###"""
GRUB_ENTRY = """\
menuentry '@TITLE@' --class ubuntu --class gnu-linux --class gnu --class os $menuentry_id_option '@ID@' {
	recordfail
	load_video
	gfxmode $linux_gfx_mode
	insmod gzio
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	insmod part_gpt
	insmod ext2
	search --no-floppy --fs-uuid --set=root @UUID@
	linux	/boot/vmlinuz-@KERNEL@ root=/dev/nvme0n1p2 ro @LINE@
	initrd	/boot/initrd.img-@KERNEL@
}
"""
"""The form that grub-mkconfig 2.06 of Ubuntu 22.04 gives them (util/grub.d of its source), without themes."""


def _grub(tree: Tree) -> None:
    """The boot loader, and the files of systemd and of mounts that decide what comes after it."""
    tokens = "iommu=pt pci=realloc=off"
    title, name = f"Ubuntu, with Linux {KERNEL}", f"gnulinux-{KERNEL}"
    simple = _entry("Ubuntu", f"gnulinux-simple-{UUID}", f"{tokens} ")
    advanced = _entry(title, f"{name}-advanced-{UUID}", f"{tokens} ")
    recovery = _entry(
        f"{title} (recovery mode)", f"{name}-recovery-{UUID}", f"recovery nomodeset dis_ucode_ldr {tokens}"
    )
    inner = "".join(f"\t{line}\n" for line in f"{advanced}{recovery}".splitlines())
    text = GRUB_CFG.replace("@SIMPLE@", simple).replace("@ADVANCED@", inner).replace("@UUID@", UUID)
    tree.file("/boot/grub/grub.cfg", text, 0o600)
    head = "# GRUB Environment Block\n# WARNING: Do not edit this file by tools other than grub-editenv!!!\n"
    tree.file("/boot/grub/grubenv", head + "#" * (1023 - len(head)), 0o644)
    tree.folder("/boot/grub", ["fonts", "gfxblacklist.txt", "unicode.pf2", "x86_64-efi"])
    tree.file("/boot/grub/gfxblacklist.txt", "# Blacklist for gfxpayload=keep", 0o644)
    tree.folder("/boot", [f"{what}-{KERNEL}" for what in ("System.map", "config", "initrd.img", "vmlinuz")] + ["efi"])
    tree.folder("/sys/firmware/efi/efivars", ["BootCurrent-8be4df61-93ca-11d2-aa0d-00e098032b8c"])
    tree.file("/etc/fstab", "/dev/nvme0n1p2 / ext4 defaults 0 1\n/dev/nvme0n1p1 /boot/efi vfat umask=0077 0 1", 0o644)
    tree.file("/etc/systemd/system.conf", "[Manager]", 0o644)
    for path in ("/efi", "/run/ostree-booted", "/etc/systemd/system.conf.d", "/usr/lib/systemd/system.conf.d"):
        tree[path] = Entry("absent")


def _entry(title: str, name: str, line: str) -> str:
    values = {"@TITLE@": title, "@ID@": name, "@KERNEL@": KERNEL, "@LINE@": line}
    text = GRUB_ENTRY
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _cpus(tree: Tree) -> None:
    """2 x 96 cores with SMT off in the BIOS, a node each; acpi-cpufreq and acpi_idle as Ubuntu leaves them."""
    cpus, nodes = "/sys/devices/system/cpu", "/sys/devices/system/node"
    for cpu in range(CPUS):
        policy = f"{cpus}/cpufreq/policy{cpu}"
        tree.files(policy, {"affected_cpus": cpu, "scaling_available_governors": GOVERNORS})
        tree.file(f"{policy}/scaling_driver", "acpi-cpufreq")
        tree.files(policy, {"scaling_governor": "schedutil", "boost": 1}, 0o644)
        tree |= {f"{policy}/{name}": Entry("absent") for name in NO_PREFERENCE}
        tree.link(f"{cpus}/cpu{cpu}/cpufreq", policy)
        for number, state in enumerate(("POLL", "C1", "C2")):
            tree.file(f"{cpus}/cpu{cpu}/cpuidle/state{number}/name", state)
            tree.file(f"{cpus}/cpu{cpu}/cpuidle/state{number}/disable", 0, 0o644)
        tree.folder(f"{cpus}/cpu{cpu}/cpuidle", ["state0", "state1", "state2"])
    tree.folder(f"{cpus}/cpufreq", ["boost", *(f"policy{cpu}" for cpu in range(CPUS))])
    tree.file(f"{cpus}/cpufreq/boost", 1, 0o644)
    tree.folder(cpus, [*(f"cpu{cpu}" for cpu in range(CPUS)), *CPU.split()])
    tree.files(cpus, {**dict.fromkeys(("online", "possible", "present"), f"0-{CPUS - 1}"), "smt/active": 0})
    tree.file(f"{cpus}/smt/control", "notsupported", 0o644)
    tree.file(f"{cpus}/cpuidle/current_driver", "acpi_idle")
    tree.files(nodes, dict.fromkeys(("has_cpu", "has_memory", "has_normal_memory", "online", "possible"), "0-1"))
    for node, (cores, distance) in enumerate((("0-95", "10 32"), ("96-191", "32 10"))):
        memory = _memory(f"Node {node} ", NODE_KB)
        tree.files(f"{nodes}/node{node}", {"cpulist": cores, "distance": distance, "meminfo": memory})
    tree.folder(nodes, ["has_cpu", "has_memory", "has_normal_memory", "node0", "node1", "online", "possible", "power"])


def _disks(tree: Tree) -> None:
    """NVMe disks as the kernel leaves them: no scheduler for several queues, 128 kB of read-ahead."""
    for number, place in enumerate(DISKS):
        controller = f"/sys/devices/{place}/nvme/nvme{number}"
        disk = f"{controller}/nvme{number}n1"
        tree.file(f"{controller}/serial", f"S64GNE0R40000{number}")
        tree.files(disk, {"wwid": f"eui.002538470000000{number}", "removable": 0, "mq/0/nr_tags": 1023})
        tree.files(f"{disk}/queue", {"read_ahead_kb": 128, "nr_requests": 1023}, 0o644)
        tree.file(f"{disk}/queue/scheduler", "[none] mq-deadline ", 0o644)
        tree.link(f"{disk}/device", controller)
        tree.link(f"/sys/block/nvme{number}n1", disk)
    tree.folder("/sys/block", [*(f"loop{n}" for n in range(8)), *(f"nvme{n}n1" for n in range(len(DISKS)))])


def _rail(tree: Tree, variant: Variant, root: int, bus: int) -> None:
    """A PCI switch with one GPU, behind two bridges of its own package, and one NIC."""
    port = f"pci0000:{root:02x}/0000:{root:02x}:{'01' if bus - root == 5 else '03'}.1"
    switch = f"{port}/0000:{bus - 4:02x}:00.0"
    inner = f"0000:{bus - 3:02x}"
    gpu_bridges = [f"{inner}:00.0", f"0000:{bus - 2:02x}:00.0", f"0000:{bus - 1:02x}:00.0"]
    tree.pci(port, "1022 14ab", "060400", "pcieport")
    for path in (switch, f"{switch}/{inner}:00.0", f"{switch}/{inner}:01.0"):
        tree.pci(path, "1000 c030", "060400", "pcieport")
    tree.pci("/".join([switch, *gpu_bridges[:2]]), "1002 1500", "060400", "pcieport")
    tree.pci("/".join([switch, *gpu_bridges]), "1002 1501", "060400", "pcieport")
    nic = tree.pci(f"{switch}/{inner}:01.0/0000:{bus + 1:02x}:00.0", "15b3 1021 15b3 0041", "020000", "mlx5_core")
    index = list(GPUS).index(bus)
    _nic(tree, nic, index + 2 if index else 0, f"enp{bus + 1}s0np0", 400)
    if bus in variant.buses():
        device = "74b5" if variant.fault == "vf" else "74a1"
        path = "/".join([switch, *gpu_bridges, f"0000:{bus:02x}:00.0"])
        _gpu(tree, variant, tree.pci(path, f"1002 {device} 1002 74a1", "120000", "amdgpu"), index)


def _drm(tree: Tree, place: str, names: Iterable[str]) -> None:
    for name in names:
        tree.link(f"{place}/drm/{name}/device", place)
        tree.link(f"/sys/class/drm/{name}", f"{place}/drm/{name}")


def _gpu(tree: Tree, variant: Variant, place: str, index: int) -> None:
    """An MI300X with its DRM nodes, and the seven partitions that it reserves minors for."""
    tree.files(place, {
        "unique_id": f"{list(GPUS.values())[index]:016x}", "serial_number": f"69220000000{index}",
        "product_name": "AMD Instinct MI300X OAM", "product_number": "102-G30211-0C",
        "vbios_version": "113-M3000100-102", "mem_info_vram_total": VRAM, "mem_info_vram_used": 297091072,
        "fw_version/mec_fw_version": "0x000000a6", "fw_version/sdma_fw_version": "0x00000016",
        "xgmi_device_id": index + 1, "xgmi_physical_id": index,
        "xgmi_num_hops": " ".join("00" if peer == index else "41" for peer in range(8)),
        "xgmi_num_links": " ".join("00" if peer == index else "01" for peer in range(8)),
        **{f"ras/{block}_err_count": "ue: 0\nce: 0" for block in ("gfx", "mmhub", "sdma", "umc", "xgmi_wafl")},
    })  # fmt: skip
    tree[f"{place}/xgmi_error"] = Entry("errno", errno=EINVAL)  # no such register (df_v4_6_2.c)
    if index:  # the driver makes it under the first device and links to it from the others
        tree.link(f"{place}/xgmi_hive_info", f"{_place(tree, min(GPUS))}/xgmi_hive_info")
    else:
        tree.file(f"{place}/xgmi_hive_info/xgmi_hive_id", HIVE)
    if variant.fault != "vf":
        _power(tree, variant, place, index)
        _hwmon(tree, variant, place, index)
    _drm(tree, place, [variant.card(8 * index), f"renderD{128 + 8 * index}"])
    for minor in range(8 * index + 1, 8 * index + 8):
        if not variant.dropped(minor):
            part = f"/sys/devices/platform/amdgpu_xcp.{minor - index - 1}"
            tree.file(f"{part}/uevent", "MODALIAS=platform:amdgpu_xcp", 0o644)
            tree.link(f"{part}/subsystem", "/sys/bus/platform")
            _drm(tree, part, [variant.card(minor), f"renderD{128 + minor}"])


def _now(index: int) -> tuple[int, str]:
    """The GFX clock and its pp_dpm_sclk: most GPUs sleep, one runs between its limits, one at the lower one."""
    if index == 6:
        return 1427, "0: 500Mhz\n1: 1427Mhz *\n2: 2100Mhz"
    return (500, "0: 500Mhz *\n1: 2100Mhz ") if index == 7 else (132, "S: 132Mhz *\n0: 500Mhz\n1: 2100Mhz")


def _power(tree: Tree, variant: Variant, place: str, index: int) -> None:
    """What amdgpu_pm.c of the driver shows; in a reset it refuses what it would have to ask the firmware for."""
    clock, sclk = _now(index)
    memory = "" if variant.fault == "old-ifwi" else "\nOD_MCLK:\n0: 900Mhz\n1: 1300Mhz"
    asked = {
        "power_dpm_force_performance_level": "auto", "pp_od_clk_voltage": f"OD_SCLK:\n0: 500Mhz\n1: 2100Mhz{memory}",
        "pp_dpm_sclk": sclk, "pp_dpm_mclk": _levels(900, 1100, 1200, 1300),
        "pp_dpm_fclk": _levels(1200, 1600, 1900, 2000), "pp_dpm_socclk": _levels(800, 1000, 1143),
        "pm_policy/soc_pstate": "0 : soc_pstate_default*\n1 : soc_pstate_0\n2 : soc_pstate_1\n3 : soc_pstate_2",
        "pm_policy/xgmi_plpd": "0 : plpd_disallow\n1 : plpd_default*\n2 : plpd_optimized",
    }  # fmt: skip
    tree.files(place, asked, 0o644)
    tree.files(place, {"gpu_busy_percent": 0, "mem_busy_percent": 0})
    tree[f"{place}/gpu_metrics"] = Entry("file", 0o444, _metrics(clock))
    if variant.fault == "gpu-in-reset":
        for name in (*asked, "gpu_busy_percent", "mem_busy_percent", "gpu_metrics"):
            tree[f"{place}/{name}"] = Entry("errno", errno=EPERM)
    compute = "CPX" if variant.fault == "cpx" else "SPX"
    tree.files(place, {"current_compute_partition": compute, "current_memory_partition": "NPS1"}, 0o644)
    tree.files(place, {"available_compute_partition": "SPX, DPX, QPX, CPX", "available_memory_partition": "NPS1, NPS4"})
    logging = f"{place[-12:]}: thermal throttling logging enabled, with interval 60 seconds"
    tree.file(f"{place}/thermal_throttling_logging", logging, 0o644)


def _hwmon(tree: Tree, variant: Variant, place: str, index: int) -> None:
    folder = f"{place}/hwmon/hwmon{11 - index}"  # the numbers follow no order
    sensors = {"freq1_input": _now(index)[0] * 10**6, "freq2_input": 900 * 10**6, "power1_cap_max": CAP,
               "power1_cap_min": 0, "power1_cap_default": CAP, "power1_input": 140 * 10**6, "temp2_input": 45000,
               "temp3_input": 40000}  # fmt: skip
    tree.files(folder, sensors)
    tree.file(f"{folder}/power1_cap", CAP, 0o644)
    if variant.fault == "gpu-in-reset":
        tree |= {f"{folder}/{name}": Entry("errno", errno=EPERM) for name in ("power1_cap", *sensors)}
    tree.files(folder, HWMON)
    tree.link(f"{folder}/device", place)
    tree.link(f"/sys/class/hwmon/{posixpath.basename(folder)}", folder)


def _place(tree: Tree, bus: int) -> str:
    link = f"/sys/bus/pci/devices/0000:{bus:02x}:00.0"
    return posixpath.normpath(posixpath.join(posixpath.dirname(link), tree[link].data.decode()))


def _levels(first: int, *others: int) -> str:
    return "\n".join([f"0: {first}Mhz *", *(f"{n}: {clock}Mhz " for n, clock in enumerate(others, 1))])


def _metrics(clock: int) -> bytes:
    """struct gpu_metrics_v1_6 of Linux drivers/gpu/drm/amd/include/kgd_pp_interface.h for an idle GPU."""
    seen = (45, 40, 42, 140, 0, 0)  # hot spot, memory and regulator in degrees, W, % busy: GFX and memory
    head = struct.pack("<HBB6H2Q7I4H", 1664, 1, 6, *seen, *[0] * 9, 16, 320, 16, 32)
    bus = struct.pack("<2I4x5Q2I16QQ", *[0] * 26)
    clocks = struct.pack("<8H4H4H4HHH4x", *[clock] * 8, *[800] * 4, *[29] * 4, *[22] * 4, 900, 1)
    return head + bus + clocks + bytes(168) + b"\xff" * (7 * 168) + bytes(8)


def _nic(tree: Tree, place: str, number: int, netdev: str, gbps: int) -> None:
    """A port of a ConnectX card: netdev and RDMA device; 0 Gb/s = no cable."""
    net, rdma, last = f"{place}/net/{netdev}", f"{place}/infiniband/mlx5_{number}", f"{number + 10:02x}"
    tree.files(net, {"address": f"02:00:5e:10:00:{last}", "carrier": int(gbps > 0), "dev_port": 0, "type": 1})
    tree.files(net, {"operstate": "up" if gbps else "down", "speed": gbps * 1000 or -1})
    tree.file(f"{net}/mtu", 1500, 0o644)
    tree.files(rdma, {"node_type": "1: CA", "node_guid": f"0200:5eff:fe10:00{last}"})
    tree.files(rdma, {"fw_ver": "28.39.1002", "hca_type": "MT4129"} if gbps == 400 else {"hca_type": "MT4125"})
    rate = {400: "400 Gb/sec (4X NDR)", 100: "100 Gb/sec (4X EDR)"}.get(gbps, "40 Gb/sec (4X QDR)")
    state, physical = ("4: ACTIVE", "5: LinkUp") if gbps else ("1: DOWN", "3: Disabled")
    port = f"{rdma}/ports/1"
    tree.files(port, {"state": state, "phys_state": physical, "rate": rate, "link_layer": "Ethernet"})
    link_local, address = f"fe80:0000:0000:0000:0000:5eff:fe10:00{last}", f"{'0000:' * 5}ffff:c633:64{last}"
    for slot, gid in enumerate([link_local, link_local, address, address, ":".join(["0000"] * 8)]):
        tree.file(f"{port}/gids/{slot}", gid)
        kind = ("IB/RoCE v1", "RoCE v2")[slot % 2]
        for name, text in (("types", kind), ("ndevs", netdev)):
            tree.file(f"{port}/gid_attrs/{name}/{slot}", text)
            if gid.startswith("0000:" * 7):  # an unused place cannot be read
                tree[f"{port}/gid_attrs/{name}/{slot}"] = Entry("errno", errno=EINVAL)
    verbs = f"{place}/infiniband_verbs/uverbs{number}"
    tree.file(f"{verbs}/ibdev", f"mlx5_{number}")
    for kind, device in (("net", net), ("infiniband", rdma), ("infiniband_verbs", verbs)):
        tree.link(f"{device}/device", place)
        tree.link(f"/sys/class/{kind}/{posixpath.basename(device)}", device)
    _interrupts(tree, place, number)


def _interrupts(tree: Tree, place: str, number: int) -> None:
    """Eight vectors, each on one CPU as irqbalance places them; of every second NIC two are off its node."""
    near = int(int(place[-7:-5], 16) >= 0x80)
    for vector in range(8):
        node = near ^ int(number % 2 == 1 and vector < 2)
        irq = 100 + 8 * number + vector
        tree.file(f"{place}/msi_irqs/{irq}", "msix")
        tree.file(f"/proc/irq/{irq}/smp_affinity_list", 96 * node + 8 * number + vector, 0o644)


def _kfd(tree: Tree, variant: Variant) -> None:
    """The topology that ROCm reads: two CPU nodes, then a node per GPU or per partition."""
    cpx = variant.fault == "cpx"
    _properties(tree, f"{KFD}/system_properties", PLATFORM)
    tree.file(f"{KFD}/generation_id", 80 if cpx else 2)
    minors = [8 * list(GPUS).index(bus) + part for bus in variant.buses() for part in range(8 if cpx else 1)]
    minors = [minor for minor in minors if not variant.dropped(minor)]
    for node in range(2):
        links = 1 + sum(minor // 32 == node for minor in minors)
        values = {**CPU_NODE, "cpu_core_id_base": 96 * node, "io_links_count": links}
        _node(tree, node, 0, values, {"size_in_bytes": NODE_KB * 1024})
    bank = {"heap_type": 1, "size_in_bytes": VRAM // (8 if cpx else 1), "width": 8192, "mem_clk_max": 1300}
    for node, minor in enumerate(minors, 2):
        bus = list(GPUS)[minor // 8]
        values = {**GPU_NODE, **(CPX_NODE if cpx else {}), "unique_id": GPUS[bus], "drm_render_minor": 128 + minor}
        values |= {"location_id": 256 * bus + minor % 8, "simd_id_base": SIMD + 40 * (minor + 8 if cpx else minor // 8)}
        values |= {"io_links_count": len(minors)} | ({"device_id": 0x74B5} if variant.fault == "vf" else {})
        _node(tree, node, 20000 + 1000 * (minor // 8) + minor % 8, values, bank)
    homes = [0, 1, *(minor // 32 for minor in minors)]
    for node in range(0 if cpx else len(homes)):
        linked = [other for other in range(len(homes)) if other != node and _linked(homes, node, other)]
        for number, other in enumerate(linked):
            kind, weight, bandwidth = _hop(node, other)
            low = bandwidth if kind == 11 else 0
            ends = {"node_from": node, "node_to": other, "type": kind, "weight": weight, "flags": 1}
            values = {**dict.fromkeys(KFD_LINK.split(), 0), **ends, "min_bandwidth": low, "max_bandwidth": bandwidth}
            _properties(tree, f"{KFD}/nodes/{node}/io_links/{number}/properties", values)


def _hop(one: int, other: int) -> tuple[int, int, int]:
    """Type, weight and bandwidth in MB/s: between CPUs, between a CPU and a GPU, xGMI."""
    if max(one, other) < 2:
        return 1, 32, 0
    return (2, 20, 64000) if min(one, other) < 2 else (11, 15, 50000)


def _linked(homes: list[int], one: int, other: int) -> bool:
    """CPUs with each other, GPUs with each other (xGMI), a GPU with the CPU whose PCI root it is on."""
    return (one < 2) == (other < 2) or homes[one] == homes[other]


def _node(tree: Tree, node: int, gpu_id: int, values: Mapping[str, int], bank: Mapping[str, int]) -> None:
    folder = f"{KFD}/nodes/{node}"
    _properties(tree, f"{folder}/properties", {key: values.get(key, 0) for key in NODE_KEYS.split()})
    tree.file(f"{folder}/gpu_id", gpu_id)
    if node > 1 + len(GPUS):  # of most partitions no more is recorded, nor a listing: it would be the longest part
        return
    tree.folder(folder, ["caches", "io_links", "p2p_links"])  # there, but only what follows is recorded
    tree.file(f"{folder}/name", "ip discovery" if gpu_id else "")
    keys = ("heap_type", "size_in_bytes", "flags", "width", "mem_clk_max")
    _properties(tree, f"{folder}/mem_banks/0/properties", {key: bank.get(key, 0) for key in keys})


def _properties(tree: Tree, path: str, values: Mapping[str, int]) -> None:
    tree.file(path, "\n".join(f"{key} {value}" for key, value in values.items()))


def _listings(tree: Tree) -> None:
    """Directories of devices hold what is recorded plus names that every one has; plain-vm's get what was added."""
    below: dict[str, set[str]] = {}
    for path in [path for path, entry in tree.items() if entry.kind != "absent"]:
        parts = path.split("/")
        for depth in range(2, len(parts) + 1):
            below.setdefault("/".join(parts[: depth - 1]), set()).add(parts[depth - 1])
    for path, names in below.items():
        old, pci = tree.get(path), re.match(r"/sys/devices/pci.*:..:..\..(?=/|$)", path)
        device = pci.group() if pci else ""
        endpoint = f"{device}/subsystem_vendor" in tree
        if old is None and (CLOSED.fullmatch(path) or endpoint) and not OPEN.fullmatch(path):
            more = UNREAD + (f" {GPU_UNREAD}" if f"{device}/unique_id" in tree else "")
            tree.folder(path, [*names, *(more.split() if path == device else [])])
        elif old is not None and old.kind == "dir":
            tree.folder(path, {*old.names, *names}, old.mode)


def overlay(fault: str) -> dict[str, Entry]:
    """What a fault changes: entries that replace those of the plain host; `absent` takes away what lies below too.

    A listing that follows from what comes and goes is left out.
    """
    plain, other = build(Variant()), build(Variant(fault))
    kept = {above for path, entry in other.items() if entry.kind != "absent" for above in _above(path)}
    changed = {p: e for p, e in other.items() if plain.get(p) != e and (e.kind != "dir" or p not in plain)}
    for path in set(plain) - set(other):
        changed[next(above for above in _above(path) if posixpath.dirname(above) in kept)] = Entry("absent")
    merged = faults.merge(plain, changed)
    return changed | {path: entry for path, entry in other.items() if merged.get(path) != entry}


def _above(path: str) -> list[str]:
    """The path itself, its directory, and so on up to /."""
    found = [path]
    while found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return found


def whole() -> dict[str, Entry]:
    """The host with the overlays of all its faults."""
    texts = {name: manifest.render(overlay(name)) for name in FAULTS}
    overlays = {f"{faults.OVERLAYS}/{name}": Entry("file", 0o644, text.encode()) for name, text in texts.items()}
    return {**build(Variant()), **overlays}


if __name__ == "__main__":
    if sys.argv[1:] != [NAME]:
        sys.exit(f"usage: python -m tests.make_hosts {NAME}")
    print(manifest.render(whole()), end="")
