"""Firmware of AMD Instinct GPUs, equal on all GPUs of a node: fw_version of amdgpu.

Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ucode.c: a file NAME_fw_version for each, `0x` and eight digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.errors import BadValue
from tuner.host.door import Host
from tuner.knobs.amdgpu_device import attribute, gpus
from tuner.knobs.base import Knob, Raw, bounded, number, reading, scalar
from tuner.model import Absent, Leaf, Reading, Value
from tuner.pci import DEVICES

FOLDER, SUFFIX = "fw_version", "_fw_version"
NAME = re.compile(r"[a-z][a-z0-9_]*")
VERSION = re.compile(r"0x[0-9a-f]{1,8}")
EQUAL, MIXED = "equal", "mixed"


class AmdgpuFirmware(Knob):
    """A firmware of the MI300X of a node, by its name in fw_version (`mec`, `smc`): {gpus: equal, version: 0x000000a6}.

    `equal` asks only that all GPUs have the same; a number asks for that version. Where they differ, `gpus` and
    `version` read `mixed` and each GPU is named with its own. Judged only: a firmware comes with the driver's packages
    or with the firmware bundle of the board.
    """

    name = "amdgpu.firmware"
    main = "version"
    bounds = False
    read_only = True

    def canonical(self, target: str) -> str:
        """A name as in fw_version, or a pattern over names."""
        word = target.strip().lower().removesuffix(SUFFIX)
        if NAME.fullmatch(word) or (any(c in word for c in "*?[") and "/" not in word):
            return word
        raise BadValue(f"{target!r} is no firmware", 'such as mec or smc, or "*" for all: ls fw_version of a GPU')

    def parse(self, target: str, raw: Raw) -> Value:
        """`equal`, or a version as a number; both in a record."""
        if not isinstance(raw, dict):
            raw = {"gpus": raw} if scalar(raw).strip() == EQUAL else {"version": raw}
        unknown = [name for name in raw if name not in ("gpus", "version")]
        if unknown or not raw:
            raise BadValue(f"unknown field {unknown[0]!r}" if unknown else "no field", "gpus, version")
        if "gpus" in raw and raw["gpus"] != EQUAL:
            raise BadValue(f"{raw['gpus']!r} is nothing to want", EQUAL)
        found: dict[str, Leaf] = {"gpus": EQUAL} if "gpus" in raw else {}
        if "version" in raw:
            found["version"] = f"0x{bounded(number(raw['version']), 0, 2**32 - 1):08x}"
        return found

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Every firmware that some GPU shows."""
        found: set[str] = set()
        for gpu in gpus(host):
            try:
                names = host.list(f"{DEVICES}/{gpu}/{FOLDER}")
            except FileNotFoundError:
                continue
            found |= {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)}
        return sorted(found)

    def search_root(self, pattern: str) -> str:
        """One look finds them all."""
        return ""

    def read(self, host: Host, target: str) -> Reading:
        """{gpus, version}, and each GPU's own where they differ."""
        found = reading(lambda: _seen(host, target))
        return Absent("no GPU of this node shows that firmware") if isinstance(found, Absent) else found

    def advice(self, host: Host, target: str, value: Value) -> str:
        """Where a firmware comes from."""
        return "update the firmware bundle of the board or the driver's packages, then load amdgpu again"

    def about(self, target: str) -> str:
        """Where it comes from."""
        return "fw_version of Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ucode.c; amd-smi firmware shows the same numbers."


def _seen(host: Host, target: str) -> Value:
    """FileNotFoundError where no GPU has it; one that lacks what others have counts as different."""
    found: dict[str, str] = {}
    lacking = []
    for gpu in gpus(host):
        try:
            found[gpu] = attribute(host, gpu, f"{FOLDER}/{target}{SUFFIX}")
        except FileNotFoundError:
            lacking.append(gpu)
    if not found:
        raise FileNotFoundError(target)
    wrong = [text for text in found.values() if not VERSION.fullmatch(text)]
    if wrong:
        raise ValueError(wrong[0][:40])
    versions = {f"0x{int(text, 16):08x}" for text in found.values()}
    if len(versions) == 1 and not lacking:
        return {"gpus": EQUAL, "version": versions.pop()}
    each: Mapping[str, Leaf] = {**found, **dict.fromkeys(lacking)}
    return {"gpus": MIXED, "version": MIXED, **dict(sorted(each.items()))}
