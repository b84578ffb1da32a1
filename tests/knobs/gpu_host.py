"""Small recorded hosts with GPUs of amdgpu, for tests of what a knob reads of a file and makes of it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from errno import EPERM
from pathlib import Path
from typing import Union

from tuner.host import RecordedHost, manifest
from tuner.host.manifest import Entry
from tuner.sim import store

DEVICES = "/sys/bus/pci/devices"
GPU, OTHER = "0000:05:00.0", "0000:a7:00.0"
BUSY = EPERM
WATT = 10**6

Files = Mapping[str, Union[str, int]]
"""Name below the device -> text, or the errno that a read gives."""

HWMON = {
    "hwmon/hwmon3/name": "nvme", "hwmon/hwmon7/name": "amdgpu", "hwmon/hwmon7/power1_cap": f"{750 * WATT}",
    "hwmon/hwmon7/power1_cap_min": "0", "hwmon/hwmon7/power1_cap_max": f"{750 * WATT}",
    "hwmon/hwmon7/power1_cap_default": f"{750 * WATT}",
}  # fmt: skip
POLICIES = {
    "pm_policy/soc_pstate": "0 : soc_pstate_default*\n1 : soc_pstate_0\n2 : soc_pstate_1\n3 : soc_pstate_2",
    "pm_policy/xgmi_plpd": "0 : plpd_disallow\n1 : plpd_default*\n2 : plpd_optimized",
}
RULES = """\
rules:
  /sys/devices/pci*/hwmon/hwmon*/power1_cap: {is: power_cap%s}
  /sys/devices/pci*/pm_policy/*: {is: starred}
"""


def gpu(ids: str = "1002 74a1", driver: str = "amdgpu", files: Files | None = None) -> dict[str, str | int]:
    """A PCI function with these files besides those that every one has; `driver` is a link."""
    vendor, kind = ids.split()
    known = {"vendor": f"0x{vendor}", "device": f"0x{kind}", "class": "0x120000", "serial_number": "692200000000"}
    return {**known, "driver": driver, **(files or {})}


def make(
    folder: Path, devices: Mapping[str, Files], more: Mapping[str, str] | None = None, rule: str = ""
) -> RecordedHost:
    """The host with these PCI functions and files, in a new folder; `rule` is added to that of the power limit."""
    entries = {
        "/.tuner-host/host.yaml": _text("name: gpus\nkernel: 6.8.0"),
        "/.tuner-host/kernel.yaml": _text(RULES % rule),
        **{path: _text(text) for path, text in (more or {}).items()},
    }
    for address, files in devices.items():
        place = f"/sys/devices/pci0000:00/{address}"
        entries[f"{DEVICES}/{address}"] = Entry("link", 0o777, f"../../../devices/pci0000:00/{address}".encode())
        for name, found in files.items():
            path = f"{place}/{name}"
            if name == "driver":
                entries[path] = Entry("link", 0o777, f"../../../bus/pci/drivers/{found}".encode())
                entries[f"/sys/bus/pci/drivers/{found}/{address}"] = Entry("link", 0o777, place.encode())
            else:
                entries[path] = _text(found) if isinstance(found, str) else Entry("errno", errno=found)
    for path in list(entries):
        _list(entries, path)
    entries.setdefault(DEVICES, Entry("dir", 0o755))
    text = folder / "gpus.host"
    text.write_text(manifest.render(entries), encoding="utf-8")
    root = folder / f"root-{len(list(folder.iterdir()))}"
    store.copy(text, str(root), [])
    return RecordedHost(str(root))


def _text(text: str) -> Entry:
    return Entry("file", 0o644, f"{text}\n".encode())


def _list(entries: dict[str, Entry], path: str) -> None:
    """The listings above a path below /sys name it."""
    while path.startswith("/sys/") and path.count("/") > 2:
        path, name = posixpath.split(path)
        names = entries[path].names if path in entries else ()
        entries[path] = Entry("dir", 0o755, names=tuple(sorted({*names, name})))
