"""How amdgpu answers on an Instinct MI300X: clock level and range, power limit, and the policies of pm_policy.

Source: Linux drivers/gpu/drm/amd/pm, amdgpu_pm.c and swsmu/smu13/smu_v13_0_6_ppt.c, as of Linux 6.8. What the driver
keeps apart from its files (values written with `s` and `m` and not yet committed) is staged and may outlive `auto`
and a commit that failed.
"""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass

from tuner.host.tree import fault
from tuner.sim.world import Rule, World, parse_number

LEVEL, TABLE, SCLK = "power_dpm_force_performance_level", "pp_od_clk_voltage", "pp_dpm_sclk"
DETERMINISM = "perf_determinism"
LEVELS = (
    *("low", "high", "auto", "manual", "profile_exit", "profile_standard"),
    *("profile_min_sclk", "profile_min_mclk", "profile_peak", DETERMINISM),
)
"""The words that amdgpu_pm.c knows; a word counts as soon as the text begins with it."""

ASLEEP = 140
"""MHz below which pp_dpm_sclk shows a line `S:`."""

LONGEST, WORD, LONG = 127, 2**32, 2**63
NUMBER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")


@dataclass
class Gpu:
    """What the driver keeps of one GPU, in MHz: tables, limits in force, limits staged (0: none), and its clock."""

    sclk: tuple[int, int]
    mclk: tuple[int, int] | None
    determinism: str
    level: str
    low: int
    high: int
    memory: int
    clock: int | None
    smin: int = 0
    smax: int = 0
    umax: int = 0

    def force(self, text: str, busy: int) -> int:
        """A write to the level file; the errno, or 0."""
        word = next((known for known in LEVELS if text.startswith(known)), None)
        if word is None:
            return errno.EINVAL
        if busy or word == self.level:
            return busy
        if word == "profile_exit":
            return errno.EINVAL
        if self.level == DETERMINISM:  # gone before the driver looks at the word
            self.high = self.sclk[1]
        if word not in ("auto", "manual", DETERMINISM) or (word == DETERMINISM and self.determinism == "level"):
            return errno.EINVAL
        if word == "auto":
            (self.low, self.high), self.umax = self.sclk, 0
            self.memory = self.mclk[1] if self.mclk else 0
        self.level = word
        return 0

    def command(self, text: str, busy: int) -> int:
        """A write to the table; the errno, or 0."""
        edit, numbers = EDITS.get(text[:1]), _numbers(text[1:])
        if edit is None or numbers is None or len(text.encode("utf-8", "surrogateescape")) > LONGEST:
            return errno.EINVAL
        if busy or self.level not in ("manual", DETERMINISM):
            return busy or errno.EINVAL
        return edit(self, numbers)

    def stage_gfx(self, numbers: list[int]) -> int:
        """`s 0 MIN` is not held against the upper end, `s 1 MAX` not against the lower one."""
        if len(numbers) != 2 or numbers[0] not in (0, 1):
            return errno.EINVAL
        upper, mhz = numbers
        if upper:
            fits = mhz <= self.sclk[1]
            self.smax = mhz % WORD if fits else self.high
        else:
            fits = mhz >= self.sclk[0]
            self.smin = mhz % WORD if fits else self.low
        return 0 if fits else errno.EINVAL

    def stage_memory(self, numbers: list[int]) -> int:
        """`m 1 MAX`; an index that does not exist is not refused, and does nothing."""
        if len(numbers) != 2 or self.mclk is None or numbers[0] == 0:
            return errno.EINVAL
        if numbers[0] != 1:
            return 0
        fits = numbers[1] <= self.mclk[1]
        self.umax = numbers[1] % WORD if fits else self.memory
        return 0 if fits else errno.EINVAL

    def commit(self, numbers: list[int]) -> int:
        """`c`: what is staged comes into force and stays staged."""
        if numbers:
            return errno.EINVAL
        self.smin, self.smax = self.smin or self.low, self.smax or self.high
        return self._limit_gfx(self.smin, self.smax) or (self._limit_memory(self.umax) if self.umax else 0)

    def reset(self, numbers: list[int]) -> int:
        """`r`: the limits of the tables."""
        failed = errno.EINVAL if numbers else self._limit_gfx(*self.sclk)
        if not failed and self.mclk:
            failed = self._limit_memory(self.mclk[1])
        if not failed:
            self.umax = 0
        return failed

    def _limit_gfx(self, low: int, high: int) -> int:
        if self.level == DETERMINISM:
            return self._cap(high)
        if low >= high:
            return errno.EINVAL
        self.low, self.high = low, high
        return 0

    def _limit_memory(self, high: int) -> int:
        if self.level == DETERMINISM:  # the driver takes it for a GFX clock
            return self._cap(high)
        if self.mclk is None or self.mclk[0] >= high:
            return errno.EINVAL
        self.memory = high
        return 0

    def _cap(self, high: int) -> int:
        if self.determinism == "commit" or not self.sclk[0] <= high <= self.sclk[1]:
            return errno.EINVAL
        self.low, self.high = self.sclk[0], high
        return 0


EDITS: dict[str, Callable[[Gpu, list[int]], int]] = {
    "s": Gpu.stage_gfx, "m": Gpu.stage_memory, "c": Gpu.commit, "r": Gpu.reset,
}  # fmt: skip


def od_table(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """Level file and pp_od_clk_voltage of one GPU: `sclk` and `mclk` are its tables, an old firmware has no `mclk`.

    `determinism: level` refuses the word, `commit` its commit (firmware without it); `busy` fails every write.
    """
    folder, name = posixpath.split(path)
    gpu, busy = _load(world, rule, folder), getattr(errno, rule.get("busy", ""), 0)
    failed = errno.EINVAL
    if name == LEVEL:
        failed = gpu.force(written, busy)
    elif name == TABLE:
        failed = gpu.command(written, busy)
    _save(world, folder, gpu)
    if failed:
        raise fault(failed, path)


def _numbers(text: str) -> list[int] | None:
    """What follows the letter: numbers as kstrtol reads them in base 0; None for anything else."""
    words = [word.lstrip() for word in re.split("[ \n]", text.lstrip())]
    numbers = []
    for word in filter(None, words):
        match = NUMBER.fullmatch(word)
        if match is None:
            return None
        digits = match.group(2)
        base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
        try:
            number = int(digits, base)
        except ValueError:
            return None
        if number >= LONG:
            return None
        numbers.append(-number if match.group(1) == "-" else number)
    return numbers


def _load(world: World, rule: Rule, folder: str) -> Gpu:
    sclk, mclk = tuple(rule["sclk"]), tuple(rule["mclk"]) if "mclk" in rule else None
    shown = {
        block: tuple(map(int, ends))
        for block, *ends in re.findall(r"OD_(\w+):\n0: (\d+)Mhz\n1: (\d+)Mhz\n", world.get(f"{folder}/{TABLE}"))
    }
    low, high = shown.get("SCLK", sclk)
    memory = shown.get("MCLK", mclk or (0, 0))[1]
    level = world.get(f"{folder}/{LEVEL}").strip()
    star = re.search(r": (\d+)Mhz \*", world.get(f"{folder}/{SCLK}")) if world.has(f"{folder}/{SCLK}") else None
    clock = int(star.group(1)) if star else None
    staged = list(map(int, re.findall(r"\d+", world.staged(staged_name(folder))))) or [0] * 4
    gpu = Gpu(sclk, mclk, rule.get("determinism", "yes"), level, low, high, memory, clock, *staged[:3])
    if clock is not None and staged[3:] > [0]:  # it runs slower than it would because of a limit
        gpu.clock = staged[3]
    return gpu


def staged_name(folder: str) -> str:
    """Under which name the state of the GPU at `folder` is staged."""
    return f"od_table-{posixpath.basename(folder)}"


def _save(world: World, folder: str, gpu: Gpu) -> None:
    memory = f"OD_MCLK:\n0: {gpu.mclk[0]}Mhz\n1: {gpu.memory}Mhz\n" if gpu.mclk else ""
    texts = {LEVEL: f"{gpu.level}\n", TABLE: f"OD_SCLK:\n0: {gpu.low}Mhz\n1: {gpu.high}Mhz\n{memory}"}
    held = 0
    if gpu.clock is not None:
        now = gpu.clock if gpu.clock < ASLEEP else min(max(gpu.clock, gpu.low), gpu.high)
        held = gpu.clock if now != gpu.clock else 0
        texts[SCLK] = _clocks(now, gpu.low, gpu.high)
    for name, text in texts.items():
        if world.get(f"{folder}/{name}") != text:
            world.set(f"{folder}/{name}", text)
    staged = (gpu.smin, gpu.smax, gpu.umax, held)
    if any(staged):
        world.stage(staged_name(folder), " ".join(map(str, staged)))
    else:
        world.commit(staged_name(folder))


def _clocks(now: int, low: int, high: int) -> str:
    """pp_dpm_sclk: the clock is a line of its own unless it is one of the ends."""
    if now < ASLEEP:
        return f"S: {now}Mhz *\n0: {low}Mhz\n1: {high}Mhz\n"
    if now in (low, high):
        return f"0: {low}Mhz {'*' if now == low else ''}\n1: {high}Mhz {'*' if now != low else ''}\n"
    return f"0: {low}Mhz\n1: {now}Mhz *\n2: {high}Mhz\n"


def starred(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """One of the numbered lines that the file shows; the line in force ends with a star (pm_policy)."""
    chosen = parse_number(written, path)
    lines = before.replace("*", "").splitlines()
    if chosen not in [int(line.split(":")[0]) for line in lines if line.split(":")[0].strip().isdecimal()]:
        raise fault(errno.EINVAL, path)
    world.set(path, "".join(f"{line}{'*' if line.startswith(f'{chosen} ') else ''}\n" for line in lines))


def power_cap(world: World, rule: Rule, path: str, written: str, before: str) -> None:
    """Microwatts, cut to whole watts, within the bounds that the files beside it show; 0 is the limit in force.

    amdgpu_hwmon_set_power_cap in amdgpu_pm.c and smu_set_power_limit in swsmu/amdgpu_smu.c. `most` is a limit in watts
    that the firmware has besides and does not tell.
    """
    number = parse_number(written, path)
    if number >= WORD:
        raise fault(errno.ERANGE, path)
    low, high = (int(world.get(f"{path}_{end}")) for end in ("min", "max"))
    watts = number // 1_000_000
    if not low <= watts * 1_000_000 <= high or watts > rule.get("most", watts):
        raise fault(errno.EINVAL, path)
    if watts:
        world.set(path, f"{watts * 1_000_000}\n")
