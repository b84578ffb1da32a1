"""Tokens of the running kernel's boot line: Documentation/admin-guide/kernel-parameters.rst and .txt of Linux."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.boot import grub_defaults, tokens
from tuner.boot.boots import Boots, Next
from tuner.boot.crash_kernel import inherits
from tuner.boot.entries import LINE, booted
from tuner.boot.grub_defaults import Added
from tuner.boot.line import BootLine
from tuner.boot.tokens import ABSENT, LISTS, PRESENT, REPEATED, SWITCHES, WORDS, Token, kernel_part, spelled
from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, number, reading, scalar
from tuner.model import Reading, Seen, Setting, Unreadable, Value

POOLS = ("default_hugepagesz", "hugepagesz", "hugepages")
"""Huge pages on the boot line, in the order in which they must stand there."""

SEVERAL = "several pools on the boot line: the knob hugepages judges each, such as node0/2MB"

ABOUT = {
    "iommu": "x86 only, elsewhere iommu.passthrough; /sys/kernel/iommu_groups/*/type says what each group got (identity"
    " is pass-through).",
    "iommu.passthrough": "/sys/kernel/iommu_groups/*/type says what each group got (identity is pass-through).",
    "hugepages": "Counts for the hugepagesz before it; what the pools hold is the knob hugepages.",
    "hugepagesz": "A second hugepagesz of the same size is ignored with its hugepages (mm/hugetlb.c).",
    "init_on_alloc": "A trade of security for speed: 0 leaves freed memory readable to the next user of the page.",
}


@dataclass(frozen=True)
class Dead:
    """A spelling that the kernel takes no notice of; `item` of its list, or empty for the whole parameter."""

    name: str
    item: str
    spelling: str
    meant: str
    why: str
    hint: str


DEAD = (
    Dead(
        "pci_realloc", "", "pci-realloc", "pci",
        "the kernel has no such parameter and ignores it: realloc is an item of pci= (drivers/pci/pci.c, pci_setup)",
        "did you mean pci=realloc=off? That is target pci, value realloc=off",
    ),
    Dead(
        "amd_iommu", "on", "amd_iommu=on", "iommu",
        "on is no value of amd_iommu=, AMD's IOMMU is on by default (drivers/iommu/amd/init.c,"
        " parse_amd_iommu_options)",
        "leave it out; for pass-through it is target iommu, value pt",
    ),
)  # fmt: skip


class Cmdline(Knob):
    """Tokens of the line that this kernel was booted with, judged; where GRUB is Debian's, a file keeps them.

    Targets are parameter names: `iommu`, `pci`, `nosmt`, `iommu.passthrough`. To the kernel `-` and `_` are the same
    in a name, never in a value. The value is text, `present` for a flag without a value, `absent` for none. Names are
    compared whole; the last occurrence wins; what stands after `--` belongs to init. Of a comma list (`pci`, `iommu`)
    the items that are named must be there, others may be. `iommu.passthrough=2`, which the kernel refuses, counts for
    nothing.

    With --allow boot the tokens that /etc/default/grub lacks go to a drop-in of its own, from which GRUB's menu is made
    again; recovery entries stay without them. Any other boot loader's entries are the operator's: the verdict names the
    command. `absent` is never written, nor huge pages that kdump's small kernel would inherit.
    """

    name = "cmdline"
    persist = "boot line"
    read_only = True

    def canonical(self, target: str) -> str:
        """The parameter's name with underscores, or a pattern over names."""
        if not target or target.startswith("-") or not target.isprintable() or set(target) & set('"= \\'):
            raise BadValue(f"{target!r} is no name of a kernel parameter", "NAME: VALUE, such as iommu: pt")
        name = target if "[" in target else target.replace("-", "_")
        _refuse_dead(name, [""])
        return name

    def parse(self, target: str, raw: Raw) -> Value:
        """Text; of switches 0 or 1, of comma lists the items once each."""
        text = scalar(raw).strip(tokens.BLANKS)
        if '"' in text or not text.isprintable():
            raise BadValue(f"{text!r} cannot stand on the boot line", "one line without double quotes")
        if text.replace("-", "_").startswith(f"{target}="):
            raise BadValue(f"{text} repeats the name", f"the value alone: {text.partition('=')[2]}")
        if text == ABSENT:
            return text
        if target in LISTS and text != PRESENT:
            items = tokens.items(target, [text])
            _refuse_dead(target, items)
            return ",".join(items)
        taken = tokens.taken(target, None if text == PRESENT else text)
        if taken is None:
            choices = "0 or 1" if target in SWITCHES else ", ".join(WORDS[target])
            raise BadValue(f"{text} is no value of {target}: the kernel ignores it", f"one of {choices}, or absent")
        return taken

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """The parameters on the line, in its order."""
        try:
            return list(dict.fromkeys(name for name, _ in kernel_part(host.text(LINE))[0]))
        except OSError:
            return []

    def read(self, host: Host, target: str) -> Reading:
        """What the kernel makes of the token: its value, `present` or `absent`."""
        found = reading(lambda: tokens.held(kernel_part(host.text(LINE))[0], target))
        if target == "hugepages" and isinstance(found, Seen) and " " in str(found.value):
            return Unreadable(SEVERAL)
        return found

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """What the line would hold: a list keeps its other items."""
        value = self.parse(target, str(value))
        found = self.read(host, target)
        return tokens.merged(target, str(value), str(found.value)) if isinstance(found, Seen) else value

    def key(self, value: Any) -> Any:
        """Numbers by size; a word is neither more nor less than anything."""
        try:
            return number(value)
        except BadValue:
            return math.nan

    def write(self, host: Host, target: str, value: Value) -> None:
        """Nothing can change the line of a running kernel."""
        raise Refused("the boot line of a running kernel cannot be changed")

    def disruption(self, target: str) -> str:
        """Takes a reboot."""
        return "boot"

    def pending(self, host: Host, target: str, value: Value) -> str:
        """The line of the next boot has it."""
        line = booted(host)
        held = ABSENT if line.text is None else _ordered(target, tokens.held(kernel_part(line.text)[0], target), value)
        return "" if line.text is None or held != value else f"until the next boot: {line.where}"

    def next_boot(self, boots: Boots, setting: Setting) -> Next:
        """What the entry has that the boot loader starts by itself, as its files are now."""
        if boots.not_disk:
            return Next(Unreadable(boots.not_disk))
        line = boots.line
        if line.text is None:
            return Next(Unreadable(line.why))
        want = self.normalise(boots.host, setting.target, setting.want.choices()[0])
        held = _ordered(setting.target, tokens.held(kernel_part(line.text)[0], setting.target), want)
        if setting.target == "hugepages" and " " in held:
            return Next(Unreadable(SEVERAL), line.where)
        return Next(Seen(held), line.where)

    def stores(self, settings: Sequence[Setting], without: Boots) -> list[tuple[str, str]]:
        """The drop-in of GRUB with the tokens that its other files lack; none where it could not keep them."""
        if without.not_disk or _foreign(without.host, without.line):
            return []
        wanted = {s.target: str(s.want.choices()[0]) for s in settings if not set(s.target) & set("*?[")}
        added = [
            _added(target, value) for target, value in wanted.items() if not _kept_out(without.host, target, value)
        ]
        added.sort(key=lambda one: POOLS.index(one.name) if one.name in POOLS else len(POOLS))
        return [(grub_defaults.OURS, grub_defaults.script(added))] if added else []

    def advice(self, host: Host, target: str, value: Value) -> str:
        """What to put on the boot line, and what is wrong with it now."""
        ours, others = kernel_part(host.text(LINE))
        held = tokens.held(ours, target)
        remarks = [*_remarks(ours, others, target, held), *_dead_on(ours, target)]
        text = f"{_order(target, str(value), held)}; takes effect after a reboot"
        return "; ".join([f"{text} ({'; '.join(remarks)})" if remarks else text, _way(host, target, str(value), held)])

    def about(self, target: str) -> str:
        """Where the kernel documents it."""
        return " ".join(filter(None, (ABOUT.get(target), "Documentation/admin-guide/kernel-parameters.txt.")))


def _refuse_dead(name: str, items: Iterable[str]) -> None:
    for dead in DEAD:
        if dead.name == name and dead.item in items:
            raise BadValue(f"{dead.spelling} has no effect: {dead.why}", dead.hint)


def _order(target: str, value: str, held: str) -> str:
    """What to boot with, added or in place of what there is."""
    if value == ABSENT:
        return f"boot without {spelled(target, held)}: take it off the boot line"
    if target in REPEATED and held != ABSENT:
        value = " ".join(item for item in value.split(" ") if item not in held.split(" "))
    elif held != ABSENT:
        return f"boot with {spelled(target, value)} in place of {spelled(target, held)}"
    return f"boot with {spelled(target, value)}: add it to the boot line"


def _ordered(target: str, held: str, wanted: Value) -> str:
    """A list in the order of what is wanted, where both have the same items: order decides nothing there."""
    same = target in LISTS and set(held.split(",")) == set(str(wanted).split(","))
    return str(wanted) if same else held


def _way(host: Host, target: str, value: str, held: str) -> str:
    """How the boot line of this node is changed, and by whom."""
    line = booted(host)
    foreign = _foreign(host, line)
    if foreign:
        return f"{foreign}: {_by_hand(line, target, value, held)}"
    out = _kept_out(host, target, value)
    if out:
        return out
    return f"{grub_defaults.OURS} adds it (--allow boot)"


def _foreign(host: Host, line: BootLine) -> str:
    """Why no drop-in of ours takes part in this node's boot line; empty where one does."""
    if line.loader != "grub":
        return "tuner does not write these boot entries" if line.loader else f"not written, {line.why}"
    try:
        return grub_defaults.unfit(host)
    except (OSError, Unrecorded) as error:
        return f"not written, {error}"


def _by_hand(line: BootLine, target: str, value: str, held: str) -> str:
    """The command for other boot loaders."""
    remove = value == ABSENT
    word = spelled(target, held if remove else value)
    match line.loader:
        case "ostree":
            return f"rpm-ostree kargs --{'delete-if-present' if remove else 'append-if-missing'}={word}"
        case "bls":
            return f"grubby --update-kernel=DEFAULT --{'remove-args' if remove else 'args'}='{word}'"
        case "systemd-boot" | "uki":
            return f"{'take it off' if remove else f'add {word} to'} /etc/kernel/cmdline, then kernel-install add-all"
    return f"change {grub_defaults.MAIN} and make GRUB's menu again, or what the node boots by"


def _kept_out(host: Host, target: str, value: str) -> str:
    """Why the drop-in does not have this token: not needed, or not to be written; empty where it has."""
    if value == ABSENT:
        return f"tuner takes nothing off: look in {grub_defaults.MAIN}"
    words = spelled(target, value).split(" ")
    if not all(grub_defaults.WRITABLE.fullmatch(word) for word in words):
        return "not written: GRUB and sh would take a part of it for more than text"
    try:
        there = kernel_part(grub_defaults.line(host))[0]
        held = tokens.held(there, target)
        if held != ABSENT and tokens.merged(target, value, held) == held:
            return f"{grub_defaults.MAIN} has it: update-grub makes GRUB's menu again"
        risk = _risk(host, there) if target in POOLS else ""
    except (OSError, Unrecorded) as error:
        risk = str(error)
    return f"not written: {risk}" if risk else ""


def _risk(host: Host, there: Sequence[Token]) -> str:
    """Why huge pages are kept off this boot line."""
    if any(name in POOLS[1:] for name, _ in there):
        return f"{grub_defaults.MAIN} has huge pages already, and the kernel ignores a second set of one size"
    return inherits(host)


def _added(target: str, value: str) -> Added:
    words = tuple(spelled(target, value).split(" "))
    items = tuple(value.split(",")) if target in LISTS and value != PRESENT else ()
    return Added(target, words, items, alone=target not in {*REPEATED, *POOLS})


def _remarks(ours: Sequence[Token], others: Sequence[Token], target: str, held: str) -> Iterator[str]:
    if held == ABSENT:
        yield "not on the line now, the kernel's default is in force"
        if any(name == target for name, _ in others):
            yield "it stands after --, where it is an argument of init"
    elif tokens.taken(target, None if held == PRESENT else held) is None:
        yield f"the kernel refuses {spelled(target, held)}, its default is in force"


def _dead_on(ours: Sequence[Token], target: str) -> Iterator[str]:
    """What stands on the line without effect and was meant to do what `target` does."""
    for dead in DEAD:
        values = [value for name, value in ours if name == dead.name and target in (dead.meant, dead.name)]
        if any(not dead.item or dead.item in (value or "").split(",") for value in values):
            yield f"{dead.spelling} is on the line and has no effect: {dead.why}"
