"""What tells one load of a driver from the next: the inode of its folder in /sys/module."""

from __future__ import annotations

from tests.vm.machine import Machine


def inode(vm: Machine, module: str) -> int:
    """Of /sys/module/MODULE, as stat(2) has it."""
    return int(vm.ok(f"stat -c %i /sys/module/{module}"))


def test_a_module_that_is_loaded_again_has_another_inode(vm: Machine) -> None:
    """sysfs gives each folder a number of its own, and none of those given lately again (fs/kernfs/dir.c)."""
    vm.ok("modprobe rdma_rxe")
    first = inode(vm, "rdma_rxe")
    assert inode(vm, "rdma_rxe") == first
    seen = {first}
    for _ in range(5):
        vm.ok("modprobe -r rdma_rxe; modprobe rdma_rxe")
        seen.add(inode(vm, "rdma_rxe"))
    assert len(seen) == 6
    vm.ok("modprobe -r rdma_rxe; modprobe rdma_rxe; modprobe dummy; modprobe -r dummy; modprobe dummy")
    assert inode(vm, "rdma_rxe") not in seen
