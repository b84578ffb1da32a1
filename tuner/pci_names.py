"""Names of the PCI devices that matter on a GPU node, as https://pci-ids.ucw.cz/ has them; any other keeps its id."""

from __future__ import annotations

GPUS = {
    "1002:738c": "MI100", "1002:740c": "MI250X/MI250", "1002:740f": "MI210", "1002:74a0": "MI300A",
    "1002:74a1": "MI300X", "1002:74a2": "MI308X", "1002:74a5": "MI325X", "1002:74b5": "MI300X VF",
    "10de:1db1": "V100 SXM2 16GB", "10de:1db5": "V100 SXM2 32GB", "10de:1eb8": "T4", "10de:20b0": "A100 SXM4 40GB",
    "10de:20b2": "A100 SXM4 80GB", "10de:20b5": "A100 PCIe 80GB", "10de:20f1": "A100 PCIe 40GB",
    "10de:2322": "H800 PCIe", "10de:2324": "H800 SXM5", "10de:2330": "H100 SXM5", "10de:2331": "H100 PCIe",
    "10de:2335": "H200 SXM5", "10de:26b9": "L40S",
}  # fmt: skip

NICS = {
    "15b3:1013": "ConnectX-4", "15b3:1015": "ConnectX-4 Lx", "15b3:1017": "ConnectX-5", "15b3:1019": "ConnectX-5 Ex",
    "15b3:101b": "ConnectX-6", "15b3:101d": "ConnectX-6 Dx", "15b3:101f": "ConnectX-6 Lx", "15b3:1021": "ConnectX-7",
    "15b3:1023": "ConnectX-8", "15b3:a2d6": "BlueField-2", "15b3:a2dc": "BlueField-3",
    "15b3:1014": "ConnectX-4 VF", "15b3:1016": "ConnectX-4 Lx VF", "15b3:1018": "ConnectX-5 VF",
    "15b3:101a": "ConnectX-5 Ex VF", "15b3:101c": "ConnectX-6 VF", "15b3:101e": "ConnectX VF",
    "14e4:1750": "BCM57508", "14e4:1760": "BCM57608", "1af4:1000": "virtio-net", "1af4:1041": "virtio-net",
}  # fmt: skip

OTHERS = {
    "1a03:2000": "ASPEED BMC display", "1234:1111": "QEMU display", "1b36:0100": "QXL display",
    "1af4:1050": "virtio display", "1000:c010": "PEX880xx switch", "1000:c030": "PEX890xx switch",
    "10de:1af1": "A100 NVSwitch", "10de:22a3": "H100 NVSwitch",
}  # fmt: skip

NAMES = {**GPUS, **NICS, **OTHERS}
VIRTUAL = frozenset(pci_id for pci_id, name in NAMES.items() if name.endswith(" VF"))
"""Ids that only virtual functions have: a guest sees no physfn beside them."""


def name_of(pci_id: str) -> str:
    """The name of `vendor:device`, or the id itself."""
    return NAMES.get(pci_id, pci_id)
