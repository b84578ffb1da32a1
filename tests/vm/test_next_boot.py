"""What verify says of the next boot, before it and after it."""

from __future__ import annotations

from typing import Any

from tests.vm.machine import Machine

TOKEN = "nmi_watchdog=panic"
"""A parameter that changes nothing in this machine, and that Debian's line has not."""


def verdict(vm: Machine, knob: str) -> tuple[int, dict[str, Any]]:
    """verify's exit code, and the one verdict of a knob."""
    code, document, _ = vm.tuner("verify")
    (found,) = [row for row in document["verdicts"] if row["knob"] == knob]
    return code, found


def test_a_late_file_is_shadowed_before_the_reboot_and_wins_in_it(vm: Machine) -> None:
    """Said with its line while all still runs as wanted; once the file is gone, ours wins."""
    vm.write("/root/p.yaml", "name: p\nsummary: one\nsettings:\n  sysctl:\n    vm.swappiness: 1\n")
    assert vm.tuner("apply", "--profile", "/root/p.yaml")[0] == 0
    vm.write("/etc/sysctl.d/zz-late.conf", "# of another tool\nvm.swappiness = 60\n")
    code, found = verdict(vm, "sysctl")
    assert (code, found["state"], found["running"], found["next_boot"]) == (10, "shadowed", 1, 60)
    assert found["next_boot_by"] == "/etc/sysctl.d/zz-late.conf:2"
    vm.reboot()
    assert vm.read("/proc/sys/vm/swappiness") == "60"
    vm.ok("rm /etc/sysctl.d/zz-late.conf")
    code, found = verdict(vm, "sysctl")
    assert (code, found["state"], found["next_boot"]) == (10, "drift", 1)
    vm.reboot()
    assert vm.read("/proc/sys/vm/swappiness") == "1"
    assert verdict(vm, "sysctl")[0] == 0


def test_grub_boots_with_our_token_once_and_without_it_after_rollback(vm: Machine) -> None:
    """The menu is made by the machine's own update-grub; the recovery entry is kept without our token."""
    vm.ok(["update-grub"], limit=120)
    vm.reboot(grub=True)
    first = vm.read("/proc/cmdline")
    assert TOKEN not in first
    vm.write("/root/p.yaml", f"name: p\nsummary: one\nsettings:\n  cmdline:\n    nmi_watchdog: {TOKEN[13:]}\n")
    code, document, err = vm.tuner("apply", "--profile", "/root/p.yaml")
    assert (code, document["changed"]) == (0, 0), err
    code, document, err = vm.tuner("apply", "--profile", "/root/p.yaml", "--allow", "boot", limit=300)
    assert code == 0, (document, err)
    assert [row["done"] for row in document["after"]] == [True]
    menu = vm.read("/boot/grub/grub.cfg").splitlines()
    kernels = [line.split() for line in menu if line.split()[:1] == ["linux"]]
    assert sum(TOKEN in words for words in kernels) >= 1
    assert all(TOKEN not in words for words in kernels if "single" in words)
    assert any("single" in words for words in kernels)
    code, found = verdict(vm, "cmdline")
    assert (code, found["state"]) == (13, "pending")
    vm.reboot(grub=True)
    assert vm.read("/proc/cmdline").split().count(TOKEN) == 1
    assert verdict(vm, "cmdline")[0] == 0
    assert vm.tuner("rollback", limit=300)[0] == 0
    vm.reboot(grub=True)
    assert vm.read("/proc/cmdline") == first
