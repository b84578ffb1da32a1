"""On a stock Debian kernel, through real boots: what apply does and undoes, what a reboot takes and what it brings."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from tests.vm.machine import Machine

SLURMD = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
"""A service of that name, so that the profile's limit has a process."""

DROP_IN = "/etc/systemd/system/slurmd.service.d/99-tuner.conf"
LIMITS_D = "/etc/security/limits.d/99-tuner.conf"

FOUND = {
    "net.core.rmem_max": "212992", "net.core.wmem_max": "212992",
    "net.ipv4.tcp_rmem": "4096 131072 6291456", "net.ipv4.tcp_wmem": "4096 16384 4194304",
    "net.core.netdev_max_backlog": "1000", "net.ipv4.conf.all.arp_ignore": "0",
    "net.ipv4.conf.all.arp_announce": "0", "net.ipv4.conf.all.rp_filter": "0",
    "vm.swappiness": "60", "kernel.numa_balancing": "1",
}  # fmt: skip
"""What Linux 6.1 starts with on two nodes, as far as the profile wants another value: ip-sysctl.rst, vm.rst, tcp(7)."""

WANTED = {
    "net.core.rmem_max": "16777216", "net.core.wmem_max": "16777216",
    "net.ipv4.tcp_rmem": "4096 131072 16777216", "net.ipv4.tcp_wmem": "4096 16384 16777216",
    "net.core.netdev_max_backlog": "10000", "net.ipv4.conf.all.arp_ignore": "1",
    "net.ipv4.conf.all.arp_announce": "2", "net.ipv4.conf.all.rp_filter": "2",
    "vm.swappiness": "1", "kernel.numa_balancing": "0",
}  # fmt: skip
"""The same keys as profiles/linux-gpu.yaml has them."""


def sysctls(vm: Machine, keys: Collection[str]) -> dict[str, str]:
    """What the kernel holds, blanks between numbers made one."""
    paths = ["/proc/sys/" + key.replace(".", "/") for key in keys]
    lines = vm.ok(["head", "-qn1", *paths]).splitlines()
    return dict(zip(keys, (" ".join(line.split()) for line in lines), strict=True))


MOVING = "random|cad_pid|-nr|nr-|inode-|-state|ns_last_pid|sched_domain|usermodehelper|pty|perf_event_max_sample|_count"
"""Sysctls that move by themselves."""

EVERYTHING = f"""
sysctl -a 2>/dev/null | grep -Ev '^[^=]*({MOVING})'
grep -r . /sys/kernel/mm/transparent_hugepage --exclude=pages_collapsed --exclude=full_scans
grep -r . /sys/devices/system/node/node*/hugepages
find /etc -path /etc/tuner -prune -o -printf '%M %u %p %l\\n' | sort
find /etc -path /etc/tuner -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
"""


def everything(vm: Machine) -> set[str]:
    """Every key of the kernel that holds still, the memory settings that are no sysctls, and all files of /etc."""
    return set(vm.ok(EVERYTHING).splitlines())


PREDICT = """
import json, sys
from tuner.boot.sysctl_d import NotPredicted, Unset, Written, predict
from tuner.host import open_host

boot = predict(open_host())
kinds = {Written: "written", Unset: "unset", NotPredicted: "not predicted"}
found = {key: boot.value(key) for key in sys.argv[1:]}
print(json.dumps({key: [kinds[type(one)], getattr(one, "text", None)] for key, one in found.items()}))
"""


def predict(vm: Machine, keys: Collection[str]) -> dict[str, tuple[str, str]]:
    """(written, unset or not predicted; the text that is written) of each key, by the files as they are now."""
    vm.write("/root/predict.py", PREDICT)
    found = json.loads(vm.ok(["/opt/tuner/bin/python", "/root/predict.py", *keys]))
    return {key: (kind, " ".join((text or "").split())) for key, (kind, text) in found.items()}


def applied(vm: Machine) -> dict[str, str]:
    """Applies the shipped profile; what became of each kernel parameter that it changes."""
    code, document, _ = vm.tuner("apply", "--profile", "linux-gpu")
    assert (code, document["undone"]) == (0, False)
    return {row["target"]: row["result"] for row in document["outcomes"] if row["knob"] == "sysctl"}


def states(document: dict[str, Any]) -> dict[str, str]:
    """{"KNOB TARGET": state} of a verify."""
    return {f"{row['knob']} {row['target']}": row["state"] for row in document["verdicts"]}


def with_slurmd(vm: Machine) -> None:
    """Installs and starts the service."""
    vm.write("/etc/systemd/system/slurmd.service", SLURMD)
    vm.ok("systemctl daemon-reload; systemctl enable --quiet --now slurmd")


def memlock(vm: Machine) -> str:
    """The soft limit of the service's process."""
    pid = vm.ok(["systemctl", "show", "--property=MainPID", "--value", "slurmd"])
    return vm.ok(f"grep 'Max locked memory' /proc/{pid}/limits").split()[3]


def test_linux_gpu_there_and_back(vm: Machine) -> None:
    """The shipped profile on the live kernel: all its values are in force; rollback gives every one back."""
    with_slurmd(vm)
    before = everything(vm)
    assert sysctls(vm, FOUND) == FOUND
    assert applied(vm) == dict.fromkeys(WANTED, "done")
    assert sysctls(vm, WANTED) == WANTED
    assert memlock(vm) == "8388608"
    code, document, _ = vm.tuner("verify")
    found = states(document)
    assert code == 10
    assert {name for name, state in found.items() if state == "drift"} == {"cmdline iommu"}
    assert {name for name, state in found.items() if state == "pending"} == {"limits slurmd.service/memlock"}
    assert {name for name, state in found.items() if state == "unsupported"} == {"cpu governor", "cpu cstate/C2"}
    code, document, _ = vm.tuner("rollback")
    assert code == 0
    assert everything(vm) ^ before == set()
    assert vm.run(f"ls {DROP_IN} {LIMITS_D}").out == ""
    assert applied(vm) == dict.fromkeys(WANTED, "done")


def test_what_a_reboot_takes(vm: Machine) -> None:
    """What stands in a file outlives it, as predicted: limit and boot line; a kernel parameter only with a line."""
    with_slurmd(vm)
    applied(vm)
    vm.write("/etc/default/grub.d/90-site.cfg", "GRUB_CMDLINE_LINUX_DEFAULT=iommu=pt\n")
    vm.ok(["update-grub"], limit=120)
    kept = {key: text for key, (kind, text) in predict(vm, WANTED).items() if kind == "written"}
    vm.reboot(grub=True)
    assert "iommu=pt" in vm.read("/proc/cmdline").split()
    assert sysctls(vm, FOUND) == {**FOUND, **kept}
    assert memlock(vm) == "unlimited"
    code, document, _ = vm.tuner("verify")
    found = states(document)
    lost = FOUND.keys() - kept
    assert {name for name, state in found.items() if state == "drift"} == {f"sysctl {key}" for key in lost}
    assert code == (10 if lost else 0)
    for name in ("cmdline iommu", "limits slurmd.service/memlock", f"file {DROP_IN}", f"file {LIMITS_D}"):
        assert found[name] == "ok"
    assert applied(vm) == dict.fromkeys(lost, "done")
    assert vm.tuner("verify")[0] == 0
    assert vm.tuner("rollback", "--to", "0")[0] == 0
    assert sysctls(vm, FOUND) == FOUND
    assert vm.run(f"ls {DROP_IN} {LIMITS_D}").out == ""


MARK = """
import marshal, sys
from tuner import fast

how, source, to = sys.argv[1:]
data = open(source, "rb").read()
kept = list(marshal.loads(data[len(fast.MAGIC) + 8 :]))
if how == "mark":
    kept[7] = {form: (code, b"ANSWERED FROM EVIDENCE\\n") for form, (code, _) in kept[7].items()}
else:
    now = open(fast.BOOT, "rb").read()
    change = lambda look: (look[0], look[1], now) if look[0] == fast.BOOT else look
    kept[6] = tuple((kind, tuple(map(change, looks))) for kind, looks in kept[6])
data = marshal.dumps(tuple(kept), 4)
open(to, "wb").write(fast.MAGIC + fast.sealed(data) + data)
"""
"""Evidence with an answer that no verify gives; or as if it had been gathered in this boot."""


def test_evidence_of_another_boot_is_not_used(vm: Machine) -> None:
    """Everything reads the same after the reboot but the boot id: verify judges anew; with that id it would not."""
    vm.write("/root/p.yaml", "name: p\nsummary: as it is\nsettings:\n  sysctl:\n    vm.swappiness: 60\n")
    assert vm.tuner("apply", "--profile", "/root/p.yaml")[0] == 0
    vm.ok("sleep 0.1; tuner verify")
    vm.write("/root/mark.py", MARK)
    python = "/opt/tuner/bin/python /root/mark.py"
    vm.ok(f"{python} mark /run/tuner/evidence /root/evidence")
    put = "install -m 600 /root/evidence /run/tuner/evidence"
    assert vm.ok(f"{put}; tuner verify") == "ANSWERED FROM EVIDENCE"
    vm.reboot()
    assert vm.ok(f"mkdir -m 755 -p /run/tuner; {put}; tuner verify") != "ANSWERED FROM EVIDENCE"
    vm.ok(f"{python} reboot /root/evidence /root/evidence")
    assert vm.ok(f"{put}; tuner verify") == "ANSWERED FROM EVIDENCE"


PAGES = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"


def pages(vm: Machine) -> list[int]:
    """Huge pages of 2 MB on each node."""
    return [int(vm.read(PAGES.format(node))) for node in (0, 1)]


def test_huge_pages_of_each_node(vm: Machine) -> None:
    """Each node gets its own count and gives back its own; what a node cannot give is `short`, and not called done."""
    text = "name: p\nsummary: pages\nsettings:\n  hugepages:\n    node0/2MB: 64\n    node1/2MB: {}\n"
    vm.ok(f"echo 3 > {PAGES.format(1)}")
    vm.write("/root/p.yaml", text.format(32))
    assert vm.tuner("apply", "--profile", "/root/p.yaml")[0] == 0
    assert pages(vm) == [64, 32]
    assert vm.read("/proc/sys/vm/nr_hugepages") == "96"
    assert vm.tuner("verify")[0] == 0
    vm.write("/root/p.yaml", text.format(4000))
    code, document, _ = vm.tuner("apply", "--profile", "/root/p.yaml")
    assert code == 10
    assert [row["result"] for row in document["outcomes"] if row["target"] == "node1/2MB"] == ["short"]
    assert pages(vm)[0] == 64
    assert 32 < pages(vm)[1] < 4000
    assert vm.tuner("rollback", "--to", "0")[0] == 0
    assert pages(vm) == [0, 3]


FILES = {
    "/etc/sysctl.d/50-a.conf": (
        "vm.swappiness = 10\nkernel.panic = 30\nvm.dirty_ratio = 30\nvm/vfs_cache_pressure = 80\n"
        "vm.dirty_*_centisecs = 700\n-vm.dirty_expire_centisecs\nkernel.printk = 3 4 1 7\nvm.nr_hugepages = 8\n"
    ),
    "/etc/sysctl.d/50-pid-max.conf": "",
    "/etc/sysctl.d/99-agent.conf": "vm.swappiness = 15\nkernel.sysrq = 1\n",
    "/etc/sysctl.conf": "vm.swappiness = 20\nkernel.panic = 40\nvm.overcommit_ratio = 60\n",
    "/etc/sysctl.d/zz-late.conf": (
        "kernel.panic = 50\nkernel.numa_balancing = 0\nvm.dirty_bytes = 268435456\nvm.no_such_key = 1\n"
        "-vm.neither.this = 1\n"
    ),
    "/usr/lib/sysctl.d/60-vendor.conf": "vm.watermark_scale_factor = 20\nkernel.sysrq = 0\n",
    "/usr/local/lib/sysctl.d/50-a.conf": "vm.page-cluster = 5\n",
    "/run/sysctl.d/60-run.conf": "vm.stat_interval = 5\n",
}
"""Files of every folder; `/etc/sysctl.d/99-sysctl.conf -> ../sysctl.conf` is Debian's own and sorts after 99-agent."""

BOOTED = {
    "vm.swappiness": ("written", "20"),
    "kernel.panic": ("written", "50"),
    "kernel.sysrq": ("written", "1"),
    "kernel.printk": ("written", "3 4 1 7"),
    "kernel.numa_balancing": ("written", "0"),
    "vm.vfs_cache_pressure": ("written", "80"),
    "vm.dirty_writeback_centisecs": ("written", "700"),
    "vm.overcommit_ratio": ("written", "60"),
    "vm.nr_hugepages": ("written", "8"),
    "vm.dirty_bytes": ("written", "268435456"),
    "vm.watermark_scale_factor": ("written", "20"),
    "vm.dirty_expire_centisecs": ("unset", "3000"),
    "vm.page-cluster": ("unset", "3"),
    "vm.zone_reclaim_mode": ("unset", "0"),
    "kernel.pid_max": ("unset", "32768"),
    "vm.dirty_ratio": ("not predicted", "0"),
    "vm.stat_interval": ("not predicted", "1"),
}
"""What sysctl.d(5) says of those files, and what each key holds afterwards: the line's value, or the kernel's own."""


def test_the_next_boot_brings_what_was_predicted(vm: Machine) -> None:
    """For keys of the whole machine, over Debian's order of files, patterns, masks, and keys that move each other."""
    for path, text in FILES.items():
        vm.write(path, text)
    predicted = predict(vm, BOOTED)
    assert {key: kind for key, (kind, _) in predicted.items()} == {key: kind for key, (kind, _) in BOOTED.items()}
    vm.reboot()
    assert sysctls(vm, BOOTED) == {key: text for key, (_, text) in BOOTED.items()}
    said = {key: text for key, (kind, text) in predicted.items() if kind == "written"}
    assert said == sysctls(vm, said)
