"""Kernel parameters below /proc/sys: Documentation/admin-guide/sysctl/ and networking/ip-sysctl.rst of Linux."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from tuner.boot.boots import Boots, Next
from tuner.boot.sysctl_d import NotPredicted, Unset, Written
from tuner.errors import BadValue
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, bounded, number, reading, scalar
from tuner.knobs.sysctl_keys import ACTIONS, ELSEWHERE, PAIRS, Key, known
from tuner.model import Absent, Reading, Seen, Setting, Unreadable, Value, aim

FOLDER = "/proc/sys"
STORE = "/etc/sysctl.d/99-zz-tuner.conf"
"""Sorts after what distributions and administrators are used to write; a site may name it otherwise (site.yaml)."""
ROUNDED: dict[str, Callable[[int], int]] = {
    "net.core.rps_sock_flow_entries": lambda n: 1 << (n - 1).bit_length() if n else 0,
    "net.netfilter.nf_conntrack_buckets": lambda n: -(-n // 512) * 512,
}
"""What the kernel makes of a number: net/core/sysctl_net_core.c (a power of two), nf_conntrack_core.c (whole pages)."""
INT_LIST = re.compile(r"-?\d+(?:\s+-?\d+)*")


class Sysctl(Knob):
    """One key below /proc/sys: a number, several numbers, or a word, as the key is.

    Targets are keys in dots or slashes; the first separator decides, so a VLAN interface is written
    `net.ipv4.conf.bond0/10.rp_filter` or `net/ipv4/conf/bond0.10/rp_filter`. Numbers may be hex and vectors separated
    by any blanks: what counts is what the kernel holds. A vector write is not atomic in the kernel; one that fails
    half-way is put back. Keys that come in pairs (bytes and ratio) are the knob sysctl.pair.
    """

    name = "sysctl"
    persist = "sysctl.d"

    def canonical(self, target: str) -> str:
        """The dotted name, a dot inside a component written as '/'."""
        first = next((c for c in target if c in "./"), ".")
        dotted = first == "."
        parts = [part.replace("/", ".") for part in target.split(".")] if dotted else target.split("/")
        if target.startswith(("/", "-")) or any(part in ("", ".", "..") or not _plain(part) for part in parts):
            raise BadValue(f"{target!r} is not a kernel parameter", "such as net.core.rmem_max, without '..' or blanks")
        name = ".".join(part.replace(".", "/") for part in parts)
        if name in PAIRS:
            raise BadValue(f"{name} is one half of a pair", f"set knob sysctl.pair, target {PAIRS[name]}")
        if name in ELSEWHERE:
            raise BadValue(f"{name} is not set as a sysctl", f"use the knob {ELSEWHERE[name]}")
        if name in ACTIONS:
            raise BadValue(f"{name} is an action, not a setting", "it holds no value that could be kept or verified")
        return name

    def parse(self, target: str, raw: Raw) -> Value:
        """By the table of keys; the value of a key that is not in it is judged on the host."""
        text = " ".join(scalar(item) for item in raw) if isinstance(raw, list) else scalar(raw)
        if "\n" in text.strip() or "\0" in text:
            raise BadValue("a kernel parameter is one line", "write the value on one line")
        key = known(target)
        return text if key is None else _typed(key, text)

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The keys below the part of the pattern that is plain."""
        return [
            name for name in _walk(host, _path(self.search_root(pattern))) if name not in {*PAIRS, *ACTIONS, *ELSEWHERE}
        ]

    def search_root(self, pattern: str) -> str:
        """The part of the pattern before the first wildcard, whole components of it."""
        return re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition(".")[0]

    def files(self, host: Host, target: str) -> list[str]:
        """The file of the key."""
        return [_path(target)]

    def read(self, host: Host, target: str) -> Reading:
        """The numbers or the text that the kernel shows; Absent names the release that dropped the key."""
        found = reading(lambda: _shaped(host.text(_path(target)), known(target)))
        return Absent(_why_absent(host, target)) if isinstance(found, Absent) else found

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """A key that is not in the table takes the shape it reads now; some numbers the kernel rounds."""
        if target in ROUNDED and isinstance(value, int):
            return ROUNDED[target](value)
        if known(target) is not None or not isinstance(value, str):
            return value
        match self.read(host, target):
            case Seen(int()):
                return number(value)
            case Seen(tuple() as seen):
                words = value.split()
                if len(words) != len(seen):
                    raise BadValue(f"{len(words)} numbers where the key has {len(seen)}", f"it reads {shown(seen)} now")
                return tuple(number(word) for word in words)
        return value

    def write(self, host: Host, target: str, value: Value) -> None:
        """One write, none when equal; after a failed one, whatever the kernel had already taken is put back."""
        path = _path(target)
        if self.read(host, target) == Seen(value):
            return
        before = host.text(path)
        try:
            host.write(path, f"{shown(value)}\n")
        except OSError:
            if host.text(path) != before:
                host.write(path, before)
            raise

    def disruption(self, target: str) -> str:
        """`memory` for what moves the kernel's own reserves, else none."""
        key = known(target)
        return key.disruption if key else "none"

    def stores(self, settings: Sequence[Setting], without: Boots) -> list[tuple[str, str]]:
        """One file of sysctl.d. What reserves memory is left to the boot unit: kdump's kernel reads sysctl.d too."""
        lines = [self._line(s, without) for s in settings if self.disruption(s.target) == "none"]
        return [(STORE, "".join(["# Written by tuner\n", *sorted(lines)]))] if lines else []

    def _line(self, setting: Setting, without: Boots) -> str:
        """KEY = VALUE; of a vector the numbers that others' files make larger stay so."""
        value = setting.want.choices()[0]
        if setting.want.kind in ("at_least", "at_most"):
            found = self.next_boot(without, setting).reading
            value = aim(setting.want, found.value, self.key) if isinstance(found, Seen) else value
        return f"{written(setting.target)} = {shown(value)}\n"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """What the files of sysctl.d give the key; what reserves memory may come from the boot unit instead."""
        found = boots.sysctl.value(setting.target)
        match found:
            case NotPredicted(why):
                return Next(Unreadable(why))
            case Written(late=late) if late.startswith("only if"):
                return Next(Absent(late), found.line.where)
            case Written():
                for line in (found.line, *reversed(found.earlier)):
                    try:
                        return Next(self._given(boots.host, setting.target, line.text or ""), line.where)
                    except ValueError:
                        continue
                return Next(Absent(f"the kernel refuses what {found.line.where} sets"), found.line.where)
            case Unset(why):
                unit = self.disruption(setting.target) != "none"
                return super().next_boot(boots, setting) if unit else Next(Absent(f"{why}: the kernel's own value"))

    def _given(self, host: Host, target: str, text: str) -> Reading:
        """What the key holds once this text was written to it. ValueError for what the kernel refuses.

        Of numbers the table has what makes sense, and the kernel may take others, or fewer than a vector has.
        """
        key, words = known(target), text
        if key.shape in ("int", "vector") if key else not isinstance(_running(self.read(host, target)), str):
            words = " ".join(map(decimal, text.split()))
        try:
            value = _typed(key, words) if key else _shaped(words, None)
        except BadValue:
            if key is None or key.shape not in ("int", "vector") or not INT_LIST.fullmatch(words):
                raise
            return Unreadable(f"whether the kernel takes {text!r} is not known")
        return Seen(ROUNDED[target](value) if target in ROUNDED and isinstance(value, int) else value)

    def about(self, target: str) -> str:
        """The note and the kernel document of the key."""
        key = known(target)
        return " ".join(part for part in (key.note, key.doc) if part) if key else ""


def written(target: str) -> str:
    """The key as files of sysctl.d have it: in slashes where a component has a dot."""
    return "/".join(part.replace("/", ".") for part in target.split(".")) if "/" in target else target


def decimal(word: str) -> str:
    """A number as the kernel reads it, base 0 with C's octal (lib/kstrtox.c); what is none is returned as it is."""
    digits = word.lstrip("-")
    octal = digits.isdigit() and digits[0] == "0"
    try:
        return str(int(word, 8 if octal else 0))
    except ValueError:
        return word


def shown(value: Value) -> str:
    """A value as it is written to the kernel and shown to people."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _running(found: Reading) -> Value:
    return found.value if isinstance(found, Seen) else None


def _plain(part: str) -> bool:
    return part.isprintable() and not any(c.isspace() for c in part)


def _path(target: str) -> str:
    return "/".join([FOLDER, *(part.replace("/", ".") for part in target.split(".") if part)])


def _typed(key: Key, text: str) -> Value:
    """The text as the table says the key is."""
    words = text.split()
    if key.shape == "int":
        return bounded(number(text), key.low, key.high)
    if key.shape == "vector":
        if len(words) != key.length:
            raise BadValue(f"{len(words)} numbers where the key has {key.length}", f"{key.length} numbers in a row")
        return tuple(bounded(number(word), key.low, key.high) for word in words)
    if key.shape == "word":
        if len(words) != 1 or (key.words and words[0] not in key.words):
            raise BadValue(f"{text!r} is not a choice", f"one of {', '.join(key.words)}" if key.words else "one word")
        return words[0]
    return text if key.shape == "text" else " ".join(words)


def _shaped(text: str, key: Key | None) -> Value:
    words = text.split()
    if (key is None and not INT_LIST.fullmatch(text.strip())) or (key is not None and key.shape == "text"):
        return text.removesuffix("\n")
    if key is not None and key.shape == "int":
        if len(words) != 1:
            raise ValueError(f"not one number: {text.strip()[:60]!r}")
        return int(words[0])
    if (key is None or key.shape == "vector") and INT_LIST.fullmatch(text.strip()):
        numbers = tuple(int(word) for word in words)
        return numbers if len(numbers) > 1 or key is not None else numbers[0]
    return " ".join(words)


def _walk(host: Host, folder: str) -> Iterator[str]:
    """Dotted names of the keys below a folder that can be read."""
    try:
        names = host.list(folder)
    except OSError:
        return
    for name in names:
        path = f"{folder}/{name}"
        try:
            mode = host.stat(path).st_mode
        except Unrecorded:
            mode = 0o444
        except OSError:
            continue
        if mode & 0o170000 == 0o040000:
            yield from _walk(host, path)
        elif mode & 0o444:
            yield ".".join(part.replace(".", "/") for part in path[len(FOLDER) + 1 :].split("/"))


def _why_absent(host: Host, target: str) -> str:
    """Why the key is not there: dropped, too new, its module not loaded, or a VLAN name taken apart."""
    key = known(target)
    if key and key.dropped:
        where = f"; now {key.moved_to}" if key.moved_to else ""
        return f"dropped in Linux {key.dropped}{where}"
    if key and key.module:
        return f"module {key.module} is not loaded"
    parts = target.split(".")
    if len(parts) == 6 and parts[0] == "net" and parts[2] in ("conf", "neigh"):
        vlan = f"{parts[3]}.{parts[4]}"
        return f"no such key; an interface {vlan} is written net.{parts[1]}.{parts[2]}.{parts[3]}/{parts[4]}.{parts[5]}"
    release = host.release()
    if key and key.since and release and release < tuple(int(n) for n in key.since.split(".")[:2]):
        return f"only in Linux {key.since} and later"
    return "this kernel has no such key"
