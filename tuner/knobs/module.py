"""Parameters of loaded kernel modules.

Linux Documentation/admin-guide/kernel-parameters.rst (NAME.PARAM, /sys/module), include/linux/moduleparam.h,
kernel/params.c; modprobe.d(5). NVIDIA's driver shows its parameters in a file of its own:
NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/{nv-procfs.c,nv-reg.h}.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from tuner.boot.boots import Boots, Next
from tuner.boot.modprobe_d import LASTING, Place, files, on_line
from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import INTEGER, Knob, Raw, number, reading, scalar
from tuner.model import Absent, Reading, Seen, Setting, Unreadable, Value

MODULES = "/sys/module"
NVIDIA = "/proc/driver/nvidia/params"
PREFIX = "NVreg_"
SHOWN = {"RmProfilingAdminOnly": "RestrictProfilingToAdminUsers"}
"""What NVIDIA's driver shows under another name than it is set by."""

OURS = "/etc/modprobe.d/zz-tuner.conf"
TARGET = re.compile(r"([A-Za-z0-9_]+)/([A-Za-z0-9_.]+)")
UNWRITABLE = re.compile(r'[\x00-\x1f\x7f"\\]')

YES, NO = frozenset("yY1tT"), frozenset("nN0fF")
"""How kstrtobool reads the first letter of a switch; `on` and `off` by the second."""

EARLY = re.compile(
    r"nvme|ahci|libata|scsi_mod|sd_mod|megaraid_sas|mpt3sas|smartpqi|virtio|dm_mod|md_mod|raid\d|ext4|xfs|btrfs"
    r"|amdgpu|nouveau|i915|ast$|mgag200"
)
"""Disks, file systems and screens: what an initramfs has of its own, with a copy of modprobe.d (initramfs-tools(7))."""

OTHERWISE = "for a wrong one keeps the module from loading; if it does take this, write the file yourself (knob file)"
INITRAMFS = "where the initramfs loads it, rebuild that too: update-initramfs -u, or dracut -f"


class Module(Knob):
    """A parameter of a loaded kernel module: `amdgpu/noretry`, `nvme_core/io_timeout`. Judged; a file keeps it.

    A value is a number, a word, or a list (`"1,2"` or a list in YAML); a switch reads Y or N and is the same as 1 or 0.
    tuner writes it to /etc/modprobe.d/zz-tuner.conf and loads no module anew: until the module is loaded again the
    verdict is `pending`, or drift where another file or the boot line wins over it. A module that is not loaded is
    unsupported here, and so is a parameter that the kernel does not show. For a module that is built into the kernel
    the boot line alone counts (knob cmdline, NAME.PARAMETER). NVIDIA's parameters are named as in modprobe.d:
    `nvidia/NVreg_EnableStreamMemOPs`.
    """

    name = "module"
    persist = "modprobe.d"
    read_only = True

    def canonical(self, target: str) -> str:
        """MODULE/PARAMETER with `_` for `-`, which the kernel takes for the same; or a pattern."""
        word = target.replace("-", "_")
        if word.count("/") == 1 and (TARGET.fullmatch(word) or any(c in target for c in "*?[")):
            return target if "[" in target else word
        raise BadValue(f"{target!r} is no parameter of a module", "MODULE/PARAMETER, such as amdgpu/noretry")

    def parse(self, target: str, raw: Raw) -> Value:
        """A number, a word or a list of numbers, in a form that modprobe.d can hold."""
        if isinstance(raw, list):
            raw = ",".join(scalar(item) for item in raw)
        text = scalar(raw)
        if UNWRITABLE.search(text):
            raise BadValue(f"{text[:60]!r} cannot stand in modprobe.d", "no quotes, backslashes or line breaks")
        for item in text.split(","):
            if INTEGER.fullmatch(item):
                number(item)
        return typed(text)

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The parameters that the loaded modules show, of one module where the pattern names it."""
        module, _, _ = pattern.partition("/")
        named = [] if any(c in module for c in "*?[") else [module]
        return [f"{name}/{parameter}" for name in named or _names(host, MODULES) for parameter in _shown(host, name)]

    def search_root(self, pattern: str) -> str:
        """One look for each module that is named, one for all others."""
        module, _, _ = pattern.partition("/")
        return "" if any(c in module for c in "*?[") else module

    def read(self, host: Host, target: str) -> Reading:
        """A number, a tuple of numbers or a text; a switch is Y or N."""
        try:
            return reading(lambda: typed(_text(host, target)))
        except Refused as unfit:
            return Absent(unfit.why)

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """In the form that the parameter shows: Y or N for a switch, 32 bits without a sign at NVIDIA."""
        with contextlib.suppress(Refused, OSError, Unrecorded):
            return _as_shown(target, value, _text(host, target))
        return value

    def pending(self, host: Host, target: str, value: Value) -> str:
        """Files on disk give the module this value when it is loaded again."""
        with contextlib.suppress(Refused, OSError, Unrecorded, BadValue):
            places = _places(host, target)
            winner = next((place for place in reversed(places) if not place.masked), None)
            shown = _text(host, target)
            if winner and not _built_in(host, target) and _as_shown(target, typed(winner.text), shown) == value:
                module = target.partition("/")[0]
                return f"until {module} is loaded again (reload or reboot; {INITRAMFS}): {_listed(places)}"
        return ""

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What will make it so, and what stands against it."""
        module, _, parameter = target.partition("/")
        text = f"set by {OURS}, when {module} is loaded again (reload or reboot; {INITRAMFS})"
        try:
            if _built_in(host, target):
                return f"{module} is built into this kernel: set {module}.{parameter} on the boot line (knob cmdline)"
            others = [place for place in _places(host, target) if not place.where.startswith(f"{OURS}:")]
        except (OSError, Unrecorded) as error:
            return f"{text}; whether another file wins cannot be told: {error}"
        return f"{text}; also set: {_listed(others)}" if others else text

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """What modprobe.d and the next boot line give the module when it is loaded; what an initramfs has is unseen."""
        host, target = boots.host, setting.target
        module = target.partition("/")[0]
        line = boots.line.text
        if line is None and next(_boot_line(host, target), None) is not None:
            return Next(Unreadable(f"the boot line sets it now, and the next one is not known: {boots.line.why}"))
        built_in = _built_in(host, target)
        kept = [] if built_in else [place for place in files(host, target, LASTING) if not place.masked]
        places = [*kept, *(Place(boots.line.where, text) for text in on_line(line or "", target))]
        if not places:
            who = f"{module} is built in, and the boot line does not set it" if built_in else "no file sets it"
            return Next(Absent(f"{who}: the module's own default"))
        last = places[-1]
        try:
            value = _as_shown(target, typed(last.text), _text(host, target))
        except (Refused, BadValue) as unfit:
            return Next(Unreadable(unfit.why if isinstance(unfit, Refused) else unfit.what), last.where)
        if EARLY.match(module) and last in kept and not built_in:
            why = f"{last.where} sets {last.text}, and an initramfs may load {module} earlier with a copy of its own"
            return Next(Unreadable(f"{why}: {INITRAMFS}"), last.where)
        return Next(Seen(value), last.where)

    def stores(self, settings: Sequence[Setting], without: Boots) -> list[tuple[str, str]]:
        """The one file that keeps them, a line for each module."""
        modules: dict[str, dict[str, Value]] = {}
        for setting in settings:
            if TARGET.fullmatch(setting.target):
                module, _, parameter = setting.target.partition("/")
                modules.setdefault(module, {})[parameter] = setting.want.choices()[0]
        lines = [
            " ".join(["options", module, *(f"{name}={_word(value)}" for name, value in sorted(wanted.items()))])
            for module, wanted in sorted(modules.items())
        ]
        return [(OURS, "".join(f"{line}\n" for line in ["# Written by tuner", *lines]))] if lines else []

    def about(self, target: str) -> str:
        """Where to find what a parameter means."""
        module = target.partition("/")[0]
        return f"`modinfo -p {module}` says what its parameters mean; modprobe.d(5), kernel-parameters.rst."


def typed(text: str) -> Value:
    """A number (base 0), a tuple of numbers, or the text; a choice in brackets is the chosen word, (null) is empty."""
    words = text.split()
    chosen = [word[1:-1] for word in words if len(words) > 1 and word.startswith("[") and word.endswith("]")]
    if len(chosen) == 1:
        return chosen[0]
    items = text.split(",")
    if all(INTEGER.fullmatch(item) for item in items):
        with contextlib.suppress(ValueError):
            numbers = tuple(map(_integer, items))
            return numbers if len(numbers) > 1 else numbers[0]
    return "" if text == "(null)" else text


def _integer(text: str) -> int:
    """A number as kstrtoint reads it in base 0; ValueError for 08."""
    digits = text.lstrip("-").lower()
    return int(text, 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10)


def _text(host: Host, target: str) -> str:
    """What the parameter shows. Refused says why there is nothing to be seen, OSError as the kernel does."""
    module, _, parameter = target.partition("/")
    folder = f"{MODULES}/{module}"
    if not host.exists(folder):
        raise Refused(f"the module {module} is not loaded, or part of the kernel without parameters")
    path = f"{folder}/parameters/{parameter}"
    if host.exists(path):
        if not host.stat(path).st_mode & 0o444:
            raise Refused(f"{parameter} can be set and never read (mode {host.stat(path).st_mode & 0o777:04o})")
        return host.text(path).removesuffix("\n")
    if module == "nvidia" and host.exists(NVIDIA):
        shown = _nvidia(host)
        if parameter in shown:
            return shown[parameter]
    raise Refused(f"{module} shows no parameter {parameter}: it has none of that name, or hides it")


def _nvidia(host: Host) -> dict[str, str]:
    """What NVIDIA's driver shows, NAME: NUMBER or NAME: "TEXT", under the names that modprobe takes."""
    pairs = (line.partition(": ") for line in host.text(NVIDIA).splitlines())
    return {f"{PREFIX}{SHOWN.get(name, name)}": text.strip().strip('"') for name, _, text in pairs}


def _shown(host: Host, module: str) -> list[str]:
    """The names of a module's parameters."""
    names = _names(host, f"{MODULES}/{module}/parameters")
    if module == "nvidia" and host.exists(NVIDIA):
        names += _nvidia(host)
    return names


def _names(host: Host, folder: str) -> list[str]:
    try:
        return host.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _as_shown(target: str, value: Value, shown: str) -> Value:
    """A wanted value in the form of what is shown; BadValue for what such a parameter does not take."""
    items = shown.split(",")
    if all(item in ("Y", "N") for item in items):
        wanted = value if isinstance(value, tuple) else str(value).split(",")
        return ",".join(_switch(target, str(item)) for item in wanted)
    if isinstance(typed(shown), (int, tuple)) and isinstance(value, str):
        raise BadValue(f"{target} holds {shown}, and {value!r} is no number", f"a number, {OTHERWISE}")
    if target.startswith("nvidia/") and isinstance(value, int):
        return value & 0xFFFFFFFF
    return value if isinstance(typed(shown), (int, tuple)) else _word(value).strip('"')


def _switch(target: str, word: str) -> str:
    """Y or N for a word that the kernel takes for a switch."""
    if word in ("on", "off"):
        return "Y" if word == "on" else "N"
    if len(word) == 1 and word in YES | NO:
        return "Y" if word in YES else "N"
    raise BadValue(f"{target} is a switch, and {word!r} is no choice of it", f"Y or N, {OTHERWISE}")


def _word(value: Value) -> str:
    """A value as modprobe.d has it: a list joined, a text with blanks in quotes."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return f'"{text}"' if " " in text or not text else text


def _built_in(host: Host, target: str) -> bool:
    """Whether the module is part of the kernel: only one that was loaded has a state."""
    return not host.exists(f"{MODULES}/{target.partition('/')[0]}/initstate")


def _places(host: Host, target: str) -> list[Place]:
    """Every assignment to the parameter, in the order in which they are made; the last that is not masked wins."""
    return [*files(host, target), *(Place("/proc/cmdline", text) for text in _boot_line(host, target))]


def _boot_line(host: Host, target: str) -> Iterator[str]:
    """What MODULE.PARAMETER= on the running kernel's boot line sets; modprobe takes it after all files."""
    return on_line(host.text("/proc/cmdline"), target)


def _listed(places: Sequence[Place]) -> str:
    """FILE:LINE sets VALUE, one after the other."""
    return ", ".join(
        f"{p.where} sets {p.text}" + (f", but {p.masked} hides that file" if p.masked else "") for p in places
    )
