"""The units on a real systemd: what they bring back after a boot and with a device, and what never starts them."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.vm.machine import Machine

PROFILE = """
name: p
summary: one value of each kind that a reboot takes
settings:
  sysctl:
    vm.swappiness: 1
    net.ipv4.conf.{interface}.rp_filter: 2
  thp:
    enabled: madvise
  hugepages:
    node0/2MB: 32
"""

SLURMD = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
"""A service of that name: no unit of ours is named in it."""

HANGS = "[Service]\nExecStart=\nExecStart=/usr/bin/sleep 1000\nTimeoutStartSec=15\n"
"""A drop-in after which tuner-apply does not end by itself. Its time is cut short, so that the test is."""

POOL = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


def e1000e(vm: Machine) -> str:
    """The interface of the NIC that nothing is connected to."""
    return vm.ok("basename $(dirname $(grep -l 52:54:00:00:00:02 /sys/class/net/*/address))")


def installed(vm: Machine) -> str:
    """Applies the profile and installs the units; the interface that it names."""
    interface = e1000e(vm)
    vm.write("/root/p.yaml", PROFILE.format(interface=interface))
    code, _, err = vm.tuner("apply", "--profile", "/root/p.yaml")
    assert code == 0, err
    code, document, err = vm.tuner("persist", "install")
    assert code == 0, err
    assert [row["done"] for row in document["after"]] == [True, True, True], document["after"]
    return interface


def shown(vm: Machine, unit: str, name: str) -> str:
    """One property of a unit."""
    return vm.ok(["systemctl", "show", f"--property={name}", "--value", unit])


def until(vm: Machine, script: str, limit: float = 60) -> None:
    """Waits until a script ends with 0; the machine is slow, so that only failing takes long."""
    end = time.monotonic() + limit
    while vm.run(script).code:
        assert time.monotonic() < end, f"never: {script}\n{vm.ok('journalctl -b --no-pager -u tuner-*')}"
        time.sleep(0.5)


def runs(vm: Machine, kind: str) -> list[dict[str, Any]]:
    """The runs of re-asserting that wrote something."""
    rows = map(json.loads, vm.ok("cat /var/lib/tuner/generations/*.jsonl").splitlines())
    return [row for row in rows if row["op"] == "reassert" and row["run"] == kind]


def starts(vm: Machine) -> int:
    """How often tuner-device.service was started since the boot."""
    said = vm.ok("journalctl -b --no-pager -o json -u tuner-device.service")
    return len({row["INVOCATION_ID"] for row in map(json.loads, said.splitlines()) if "INVOCATION_ID" in row})


def test_a_reboot_brings_all_back_with_no_hand_on_it(vm: Machine) -> None:
    """And before slurmd starts, with no cycle in the order; the verify unit agrees, and remove reverts nothing."""
    interface = installed(vm)
    vm.write("/etc/systemd/system/slurmd.service", SLURMD)
    vm.ok("systemctl daemon-reload; systemctl enable --quiet slurmd")
    vm.reboot()
    until(vm, "systemctl is-active --quiet slurmd tuner-apply")
    code, document, err = vm.tuner("verify")
    assert code == 0, (document, err)
    assert (vm.read(POOL), "[madvise]" in vm.read(THP)) == ("32", True)
    assert vm.read(f"/proc/sys/net/ipv4/conf/{interface}/rp_filter") == "2"
    assert len(runs(vm, "boot")) == 1
    assert shown(vm, "tuner-apply.service", "Result") == "success"
    ours = int(shown(vm, "tuner-apply.service", "ActiveEnterTimestampMonotonic"))
    assert 0 < ours <= int(shown(vm, "slurmd.service", "ActiveEnterTimestampMonotonic"))
    assert vm.run("journalctl -b --no-pager | grep -i 'ordering cycle'").out == ""
    vm.ok("systemctl start tuner-verify.service")
    assert shown(vm, "tuner-verify.service", "Result") == "success"
    assert vm.ok("systemctl is-active tuner-verify.timer tuner-device.path").split() == ["active", "active"]
    code, document, _ = vm.tuner("persist", "status")
    assert (code, {row["state"] for row in document["units"]}) == (0, {"current"})
    code, document, err = vm.tuner("persist", "remove")
    assert (code, [row["done"] for row in document["after"]]) == (0, [True, True, True]), (document, err)
    assert vm.run("systemctl list-unit-files 'tuner-*' --no-legend").out == ""
    assert vm.read(POOL) == "32"


def test_interfaces_of_containers_and_udevadm_trigger_start_nothing(vm: Machine) -> None:
    installed(vm)
    vm.ok("udevadm settle -t 60")
    before = starts(vm)
    pairs = "".join(f"link add v{n}a type veth peer name v{n}b\n" for n in range(250))
    vm.ok(["ip", "-batch", "-"], pairs.encode(), limit=240)
    vm.ok("udevadm settle -t 240", limit=300)
    for action in ("change", "add", "bind"):
        vm.ok(f"udevadm trigger --action={action}; udevadm settle -t 120", limit=180)
    assert vm.ok("ls /run/tuner/queue") == ""
    assert starts(vm) == before
    assert runs(vm, "device") == []
    vm.ok("sed -i /SYNTH_UUID/d /etc/udev/rules.d/90-tuner.rules; udevadm control --reload")
    vm.ok("udevadm trigger --action=add; udevadm settle -t 120", limit=180)
    until(vm, 'test -z "$(ls /run/tuner/queue)"')
    assert starts(vm) > before, "or nothing of the above was looked for"


def test_a_driver_that_is_loaded_again_gets_its_settings_back_once(vm: Machine) -> None:
    """The file that systemd-sysctl would read is gone, so that nobody else brings them back."""
    interface = installed(vm)
    vm.ok("rm /etc/sysctl.d/99-zz-tuner.conf; udevadm settle -t 60")
    key = f"/proc/sys/net/ipv4/conf/{interface}/rp_filter"
    vm.ok("modprobe -r e1000e; modprobe e1000e; udevadm settle -t 60")
    until(vm, f"grep -qx 2 {key}")
    vm.ok('until [ -z "$(ls /run/tuner/queue)" ]; do sleep 0.2; done; sleep 3')
    assert len(runs(vm, "device")) == 1
    assert starts(vm) == 1
    vm.ok(f"echo 0 > {key}; sleep 3")
    assert vm.read(key) == "0", "nothing came, so nothing starts"


def test_a_unit_that_hangs_does_not_keep_slurmd_from_starting(vm: Machine) -> None:
    installed(vm)
    vm.write("/etc/systemd/system/tuner-apply.service.d/hangs.conf", HANGS)
    vm.write("/etc/systemd/system/slurmd.service", SLURMD)
    vm.ok("systemctl daemon-reload; systemctl enable --quiet slurmd")
    vm.reboot()
    until(vm, "systemctl is-active --quiet slurmd", limit=90)
    assert shown(vm, "tuner-apply.service", "Result") == "timeout"
