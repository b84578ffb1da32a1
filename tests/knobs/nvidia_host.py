"""Small recorded hosts with GPUs of NVIDIA, for the tests of their knobs.

Clocks and limits of an A100-SXM4-40GB: NVIDIA/nvidia-docker#1648; of an H800: NVIDIA/DCGM#120; PCI ids:
NVIDIA/open-gpu-kernel-modules README. Files of PCI devices: Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.host.recorded import RecordedHost
from tuner.sim import store

GPU, OTHER, SWITCH, NIC = "0000:1b:00.0", "0000:43:00.0", "0000:c4:00.0", "0000:1a:00.0"
DEVICES = "/sys/bus/pci/devices"
PLACE = "/sys/devices/pci0000:16/0000:16:01.0"
UUID = "GPU-5f3b1d9e-0c1a-4c7e-9a11-6d2f0b8e4a01"
BOOT = "4a1f5c1e-58b7-4c5e-8d0e-2b5b7b1f0c11"
DRIVER = "550.90.07"

A100_CLOCKS = {"1215": list(range(1410, 209, -15))}
H800_CLOCKS = {"2619": list(range(1980, 344, -15)), "1593": list(range(1410, 344, -15))}
"""By memory clock, the highest first; the second row of the H800 is invented, so that there are two."""

ANSWERS: dict[str, Any] = {
    "uuid": UUID,
    "serial": "1650000000001",
    "name": "NVIDIA A100-SXM4-40GB",
    "memory": 42505273344,
    "persistence": "enabled",
    "clocks": {"graphics": 1155, "sm": 1155, "memory": 1215},
    "max_clocks": {"graphics": 1410, "sm": 1410, "memory": 1215},
    "supported_clocks": A100_CLOCKS,
    "power": {"limit": 400000, "enforced": 400000, "min": 100000, "max": 400000, "default": 400000},
    "ecc": {"current": "enabled", "pending": "enabled"},
    "mig": {"current": "disabled", "pending": "disabled"},
    "compute_mode": "default",
    "event_reasons": 1,
    "fabric": "error NOT_SUPPORTED",
    "nvlinks": ["active"] * 12,
    "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
}
H800: dict[str, Any] = {
    "name": "NVIDIA H800",
    "clocks": {"graphics": 1755, "sm": 1755, "memory": 2619},
    "max_clocks": {"graphics": 1980, "sm": 1980, "memory": 2619},
    "supported_clocks": H800_CLOCKS,
    "power": {"limit": 700000, "enforced": 700000, "min": 200000, "max": 700000, "default": 700000},
    "fabric": {"state": "completed", "status": "SUCCESS", "health": "healthy"},
    "nvlinks": ["active"] * 8,
}
"""What is other than in ANSWERS."""


def function(ids: str = "10de 20b0", kind: str = "030200", driver: str = "nvidia", **files: str) -> dict[str, str]:
    """A PCI function: its files by name, `driver` for the one it is bound to; a file "" is left out."""
    vendor, device = ids.split()
    link = {"speed": "16.0 GT/s PCIe\n", "width": "16\n"}
    found = {"vendor": f"0x{vendor}\n", "device": f"0x{device}\n", "class": f"0x{kind}\n", "driver": driver}
    found |= {f"{which}_link_{what}": text for which in ("current", "max") for what, text in link.items()}
    return {name: text for name, text in {**found, **files}.items() if text}


def entry(path: str, text: str) -> list[str]:
    """A file of a manifest."""
    whole = text.endswith("\n") or not text
    rows = text.splitlines()
    return [f"file 0644 {path}", *(f"{'|' if whole or n < len(rows) - 1 else '+'}{row}" for n, row in enumerate(rows))]


def manifest(
    gpus: Mapping[str, Mapping[str, Any]],
    functions: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str],
    rules: str,
) -> str:
    """The text of a recorded host: answers of NVML by GPU, PCI functions, other files."""
    out = ["tuner-host 1", *entry("/.tuner-host/host.yaml", "name: gpus\nkernel: 5.15.0\n")]
    out += entry("/.tuner-host/kernel.yaml", rules)
    for address, answers in {"system": {"driver": DRIVER, "gpus": sorted(gpus)}, **gpus}.items():
        for name, answer in answers.items():
            shown = answer if isinstance(answer, str) and answer.startswith("error ") else json.dumps(answer)
            out += entry(f"/.tuner-host/nvml/{address}/{name}", f"{shown}\n")
    out += [f"dir 0755 {DEVICES}", *(f"|{address}" for address in sorted(functions))]
    for address, names in functions.items():
        out += [f"link 0777 {DEVICES}/{address}", f"+../../../devices/pci0000:16/0000:16:01.0/{address}"]
        out += [f"dir 0755 {PLACE}/{address}", *(f"|{name}" for name in sorted(names))]
        for name, text in names.items():
            if name == "driver":
                out += [f"link 0777 {PLACE}/{address}/driver", f"+../../../../bus/pci/drivers/{text}"]
            elif name == "physfn":
                out += [f"link 0777 {PLACE}/{address}/physfn", f"+{text}"]
            else:
                out += entry(f"{PLACE}/{address}/{name}", text)
    for path, text in files.items():
        out += entry(path, text)
    return "\n".join(out) + "\n"


COMMON = {
    "/sys/module/nvidia/version": f"{DRIVER}\n",
    "/proc/sys/kernel/random/boot_id": f"{BOOT}\n",
    "/dev/nvidia0": "",
}
LISTED = "dir 0755 /proc\n|sys\ndir 0755 /dev\n|nvidia0\n"


class Build:
    """build(rules, functions, files, **answers) -> a recorded host with one A100 and what is named."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __call__(
        self,
        rules: str = "",
        functions: Mapping[str, Mapping[str, str]] | None = None,
        files: Mapping[str, str] | None = None,
        more: str = "",
        gpus: Mapping[str, Mapping[str, Any]] | None = None,
        **answers: Any,
    ) -> RecordedHost:
        self.count += 1
        place = self.folder / f"host-{self.count}.host"
        known = {GPU: {**ANSWERS, **answers}, **{a: {**ANSWERS, **found} for a, found in (gpus or {}).items()}}
        there = {GPU: function(), **(functions or {})}
        extra = "".join(f"{line}\n" for line in more.splitlines())
        text = manifest(known, there, {**COMMON, **(files or {})}, rules)
        listed = "" if "dir 0755 /proc" in extra else LISTED
        place.write_text(text + listed + extra, encoding="utf-8")
        root = self.folder / f"root-{self.count}"
        store.copy(place, str(root), [])
        return RecordedHost(str(root))


def restarted(host: RecordedHost) -> None:
    """The driver was loaded again: its directory in /sys/module is another one."""
    place = Path(host.root, "sys/module/nvidia")
    fresh = place.with_name("nvidia-again")
    shutil.copytree(place, fresh)
    shutil.rmtree(place)
    fresh.rename(place)


def answers(host: RecordedHost, name: str, gpu: str = GPU) -> Any:
    """What the recorded NVML holds now."""
    return json.loads(Path(host.root, f".tuner-host/nvml/{gpu}/{name}").read_text(encoding="utf-8"))


def let(host: RecordedHost, name: str, answer: Any, gpu: str = GPU) -> None:
    """Changes an answer by hand."""
    shown = answer if isinstance(answer, str) and answer.startswith("error ") else json.dumps(answer)
    Path(host.root, f".tuner-host/nvml/{gpu}/{name}").write_text(f"{shown}\n", encoding="utf-8")
