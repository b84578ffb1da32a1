"""The prediction against the real programs: systemd-sysctl and `sysctl --system` over hundreds of made-up trees.

Each run has a network namespace and a root of its own, so that nothing of this machine is read or changed. Only keys
that belong to a network namespace are named.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.boot.namespace_child import CREDENTIALS, FOLDERS, plant
from tests.conftest import unavailable
from tuner.boot.lines import PROCPS, SYSTEMD, path_of
from tuner.boot.moves import inherits, movers
from tuner.boot.sysctl_d import Boot, NotPredicted, Unset, Written, predict
from tuner.host import Host

REPO = Path(__file__).parents[2]
PROGRAM = "/usr/lib/systemd/systemd-sysctl"
SEED = 20261130
TREES = 300
UDEV = "udev"
"""systemd-sysctl as a udev rule of systemd (99-systemd.rules) calls it for one interface, here `lo`."""
UNCLEAR_SHARE = 0.03

NUMBERS: dict[str, tuple[str, ...]] = {
    "net.ipv4.conf.all.rp_filter": ("0", "1", "2"),
    "net.ipv4.conf.default.rp_filter": ("0", "1", "2"),
    "net.ipv4.conf.lo.rp_filter": ("0", "1", "2"),
    "net.ipv4.conf.all.log_martians": ("0", "1", "3"),
    "net.ipv4.conf.default.log_martians": ("0", "1", "3"),
    "net.ipv4.conf.lo.log_martians": ("0", "1", "3"),
    "net.ipv4.conf.all.accept_redirects": ("0", "1"),
    "net.ipv4.conf.all.forwarding": ("0", "1"),
    "net.ipv4.conf.default.forwarding": ("0", "1"),
    "net.ipv4.conf.lo.forwarding": ("0", "1"),
    "net.ipv4.ip_forward": ("0", "1"),
    "net.ipv4.tcp_keepalive_time": ("100", "0x200", "3000"),
    "net.ipv4.tcp_keepalive_intvl": ("11", "22", "33"),
    "net.ipv4.tcp_keepalive_probes": ("3", "5", "7"),
    "net.ipv4.tcp_fin_timeout": ("15", "30", "45"),
    "net.core.somaxconn": ("128", "1024", "65535"),
}
"""Keys of a network namespace with values that the kernel takes; those of all, default and lo also hang together."""

GLOBS = (
    "net.ipv4.conf.*.rp_filter", "net/ipv4/conf/*/rp_filter", "/net/ipv4/conf/*/rp_filter",
    "net.ipv4.conf..*.rp_filter", "net//ipv4/conf/*/rp_filter", "net.ipv4.conf.lo*.rp_filter",
    "net.ipv4.conf.[!l]*.rp_filter", "net.ipv4.*.all.rp_filter", "net.ipv4.conf.l?.*_filter",
    "net.ipv4.conf.[lo.rp_filter", "net.ipv4.conf.*.log_martians", "net.ipv4.conf.*.forwarding",
    "net.ipv4.conf.[ad]*.log_martians", "net.ipv4.conf.al[^x].log_martians", "net.ipv4.tcp_keepalive_*",
    "net.ipv4.tcp_fin_timeou?", "net.ipv4.tcp_keep*time", "net.ipv4.conf.[k-m]o.log_martians",
)  # fmt: skip
UNCLEAR = (
    "net.ipv4.conf.{all,lo}*.rp_filter", "net.ipv4.conf.a\\ll*.rp_filter", "net.ipv4.conf.[[:alpha:]]*.log_martians",
)  # fmt: skip
"""Patterns that are answered with `not predicted`."""

NAMES = (
    "10-a.conf", "50-b.conf", "60-a.conf", "9-b.conf", "99-sysctl.conf", "99-zz.conf", "Z.conf", "a b.conf",
    ".hid.conf", "\u00e4.conf", "x.conf.bak", "README", ".conf", "a.conf~", "~a.conf",
)  # fmt: skip


def _separated(dice: random.Random, key: str) -> str:
    """The key in one of the forms of sysctl.d(5)."""
    slashed = "/".join(part.replace("/", ".") for part in key.split("."))
    forms = [key] * 6 + [slashed] * 3 + [f"/{slashed}", key.replace(".", "..", 1), f"{slashed}/", f"./{slashed}"]
    forms += [
        slashed.replace("/", "//", 1),
        slashed.replace("/", "/./", 1),
        f"{slashed}x",
        f"net/../{slashed}",
        key.upper(),
    ]
    return dice.choice(forms)


def _line(dice: random.Random) -> bytes:
    key = dice.choice(list(NUMBERS))
    value = dice.choice(NUMBERS[key])
    if dice.random() < 0.25:
        key, value = dice.choice(UNCLEAR if dice.random() < UNCLEAR_SHARE else GLOBS), dice.choice(("0", "1", "2", "5"))
    elif dice.random() < 0.9:
        key = _separated(dice, key)
    if dice.random() < 0.06:
        value = dice.choice(
            ("", "junk", "99999999999999999999", "1 2", "1;2", "1 # one", "=1", "-", "0x", "\v1", "1\f")
        )
    blank = dice.choice((" ", "", "", "\t", "  ", "\v"))
    kinds = [f"{key}{blank}={blank}{value}"] * 12 + [
        f"-{key}={value}",
        f"-{key}",
        f"-{key} ",
        f"- {key} = {value}",
        f"- {key}",
    ]
    kinds += [
        f"--{key}={value}",
        f"--{key}",
        f"{blank}{key}={value}{blank}",
        key,
        f"#{key}={value}",
        f" ;{key}={value}",
    ]
    kinds += [
        "=1",
        "-",
        "-=1",
        "a",
        "   ",
        "\t",
        "",
        f"{key}\0={value}",
        f"{key}={value}\0{key}={value}",
        f"\ufeff{key}={value}",
    ]
    return dice.choice(kinds).encode()


def _content(dice: random.Random) -> str:
    """A file in base64, with the line ends of several systems."""
    lines = [_line(dice) for _ in range(dice.choice((0, 1, 2, 4, 8, 16, 32)))]
    ends = (b"\n", b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\0", b"\n\r", b"\n\n", b"\r\r\n", b"\n\0")
    end = dice.choice(ends)
    data = b"".join(line + (dice.choice(ends) if dice.random() < 0.05 else end) for line in lines)
    if dice.random() < 0.2:
        data = data.removesuffix(end)
    if dice.random() < 0.02:
        data = data + b"x" * (1024 * 1024) + b"\nnet.ipv4.ip_forward=1\n"
    return base64.b64encode(data).decode()


def _entry(dice: random.Random) -> tuple[str, str]:
    if dice.random() < 0.75:
        return "file", _content(dice)
    links = (
        "/dev/null",
        "../../dev/null",
        "nowhere",
        "../sysctl.conf",
        "/etc/sysctl.conf",
        "/usr/lib/sysctl.d/50-b.conf",
    )
    loops = ("99-zz.conf", "60-a.conf", "../../etc/sysctl.d/10-a.conf")
    return dice.choice((*(("link", to) for to in (*links, *loops)), ("dir", ""), ("socket", ""), ("file", "")))


def made_tree(dice: random.Random) -> dict[str, tuple[str, str]]:
    """Files over all directories, with the same few names in each, so that they meet."""
    tree = {}
    for _ in range(dice.choice((1, 2, 3, 4, 5, 7))):
        tree[f"{dice.choice(FOLDERS)}/{dice.choice(NAMES[: dice.choice((6, 15))])}"] = _entry(dice)
    if dice.random() < 0.5:
        tree["etc/sysctl.conf"] = ("file", _content(dice))
    if dice.random() < 0.1:
        tree[f"{CREDENTIALS}/sysctl.extra"] = ("file", _content(dice))
    return tree


def _root(at: Path) -> None:
    """A root that has the two programs, the libraries that they need, and nothing else."""
    programs = [PROGRAM, shutil.which("sysctl") or ""]
    for program in programs:
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=20, check=True).stdout
        for path in [program, *re.findall(r"(/\S+)", needed)]:
            target = at / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy2(path, target)


def _ask(root: Path, trees: list[dict[str, tuple[str, str]]]) -> list[dict[str, dict[str, str]]]:
    """What the real programs make of the trees."""
    keys = [path_of(key) for key in NUMBERS]
    sysctl = str(shutil.which("sysctl"))
    programs = {SYSTEMD: [PROGRAM], PROCPS: [sysctl, "-q", "--system"], UDEV: [PROGRAM, "--prefix=/net/ipv4/conf/lo"]}
    order = {"root": str(root), "programs": programs, "keys": keys, "trees": trees}
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.boot.namespace_child"]
    done = subprocess.run(
        command, input=json.dumps(order), cwd=REPO, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, dict[str, str]]] = json.loads(done.stdout)
    return answers


def _here() -> dict[str, str]:
    return {key: Path("/proc/sys", path_of(key)).read_text(encoding="ascii") for key in NUMBERS}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """real(trees) -> the answers of the programs; this machine's own values are the same afterwards."""
    if os.geteuid() != 0:
        unavailable("only root can make a network namespace")
    for needed in ("unshare", "ldd", "sysctl"):
        if shutil.which(needed) is None:
            unavailable(f"{needed} is not installed")
    if not os.path.exists(PROGRAM):
        unavailable("systemd-sysctl is not installed (package systemd)")
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode:
        unavailable("this kernel gives no namespaces here")
    count = 0

    def ask(trees: list[dict[str, tuple[str, str]]]) -> list[dict[str, dict[str, str]]]:
        nonlocal count
        count += 1
        root = tmp_path_factory.mktemp(f"root{count}")
        _root(root)
        before = _here()
        answers = _ask(root, trees)
        assert _here() == before
        return answers

    return ask


def _taken(key: str, text: str) -> str | None:
    """What the key reads after a write of the text; None where the kernel refuses it."""
    found = re.match(r"\s*(-?(?:0[xX][0-9a-fA-F]+|[0-9]+))(?:[ \t\n]|\Z)", text)
    return str(int(found[1], 0)) if found and abs(int(found[1], 0)) < 2**31 else None


def _expected(key: str, boot: Boot, fresh: str) -> str | None:
    """What the key will read: the last text that the kernel takes, or what it held; None where it is not predicted."""
    match boot.value(key):
        case Written(_, line, _, earlier):
            taken = [_taken(key, one.text or "") for one in (*earlier, line)]
            if taken[-1] is None and (movers(path_of(key)) or inherits(path_of(key))):
                return None  # what other keys did to it before the refused write
            return next((text for text in reversed(taken) if text is not None), fresh)
        case Unset():
            return fresh
        case NotPredicted():
            return None


def test_hundreds_of_trees(real: Any, tmp_path: Path) -> None:
    """Every value that is predicted is what the real program left; what is not predicted is the exception."""
    dice = random.Random(SEED)
    trees = [made_tree(dice) for _ in range(TREES)]
    *answers, fresh = real(trees)
    wrong, open_, count = [], 0, 0
    for tree, answer in zip(trees, answers, strict=True):
        plant(tmp_path, tree)
        for name in (SYSTEMD, PROCPS):
            boot = predict(Host(str(tmp_path), "image", "made", ""), name)
            boot = replace(boot, tables=boot.tables[:1])
            for key in NUMBERS:
                expected = _expected(key, boot, fresh["fresh"][path_of(key)])
                count += 1
                open_ += expected is None
                if expected is not None and expected != answer[name][path_of(key)]:
                    wrong.append((name, key, expected, answer[name][path_of(key)], tree))
    assert not wrong, f"{len(wrong)} of {count}: {wrong[:3]}"
    assert open_ < count * 0.2, f"{open_} of {count} are not predicted"


def _file(text: str) -> tuple[str, str]:
    return "file", base64.b64encode(text.encode()).decode()


Case = tuple[dict[str, tuple[str, str]], str, dict[str, str], dict[str, str]]
ALL, DEFAULT, LO = (f"net.ipv4.conf.{name}.rp_filter" for name in ("all", "default", "lo"))
TIME, PROBES = "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_keepalive_probes"
S02 = {
    "etc/sysctl.d/01-custom.conf": _file(f"{DEFAULT} = 1\n"),
    "usr/lib/sysctl.d/50-default.conf": _file(f"net.ipv4.conf.*.rp_filter = 2\n-{ALL}\n"),
}
CASES: dict[str, Case] = {
    "S01 names, not directories": (
        {"etc/sysctl.d/a.conf": _file(f"{TIME}=111\n"), "usr/lib/sysctl.d/p.conf": _file(f"{TIME}=222\n")},
        "both", {TIME: "222"}, {},
    ),
    "S02 explicit, pattern, excluded": (S02, "both", {DEFAULT: "1", LO: "2"}, {ALL: ""}),
    "S04 a dash": ({"etc/sysctl.d/a.conf": _file(f"-{ALL}\n-{TIME} = 111\n")}, "both", {TIME: "111"}, {ALL: ""}),
    "S08 names as text": (
        {"etc/sysctl.d/60-a.conf": _file(f"{TIME}=111\n"), "etc/sysctl.d/9-b.conf": _file(f"{TIME}=222\n")},
        "both", {TIME: "222"}, {},
    ),
    "S10 comments": (
        {"etc/sysctl.d/a.conf": _file(f"{TIME}=111\n;{TIME}=1\n\t# {TIME}=2\n   \n\t\n")}, "both", {TIME: "111"}, {},
    ),
    "S16 slash form": ({"etc/sysctl.d/a.conf": _file("net/ipv4/conf/lo/rp_filter=2\n")}, "both", {LO: "2"}, {}),
    "S17 climbing": ({"etc/sysctl.d/a.conf": _file(f"net/ipv4/conf/../{TIME[9:]}=111\n")}, SYSTEMD, {}, {TIME: ""}),
    "mask": (
        {"etc/sysctl.d/a.conf": ("link", "/dev/null"), "usr/lib/sysctl.d/a.conf": _file(f"{TIME}=111\n")},
        "both", {}, {TIME: ""},
    ),
    "broken link masks": (
        {"etc/sysctl.d/a.conf": ("link", "none"), "usr/lib/sysctl.d/a.conf": _file(f"{TIME}=111\n")},
        "both", {}, {TIME: ""},
    ),
    "sysctl.conf is not for systemd": ({"etc/sysctl.conf": _file(f"{TIME}=111\n")}, SYSTEMD, {}, {TIME: ""}),
    "sysctl.conf is last for procps": (
        {"etc/sysctl.conf": _file(f"{TIME}=111\n"), "etc/sysctl.d/zz.conf": _file(f"{TIME}=222\n")},
        PROCPS, {TIME: "111"}, {},
    ),
    "hidden file, systemd": ({"etc/sysctl.d/.a.conf": _file(f"{TIME}=111\n")}, SYSTEMD, {}, {TIME: ""}),
    "hidden file, procps": ({"etc/sysctl.d/.a.conf": _file(f"{TIME}=111\n")}, PROCPS, {TIME: "111"}, {}),
    "excluded pattern": (
        {"etc/sysctl.d/a.conf": _file("net.ipv4.tcp_keep*e=111\n-net.ipv4.tcp_*\n")}, SYSTEMD, {TIME: "111"}, {},
    ),
    "credential": (
        {f"{CREDENTIALS}/sysctl.extra": _file(f"{TIME}=111\n"), "etc/sysctl.d/zz.conf": _file(f"{TIME}=222\n")},
        SYSTEMD, {TIME: "111"}, {},
    ),
    "a pipe's neighbour": (
        {"etc/sysctl.d/a.conf": ("dir", ""), "etc/sysctl.d/b.conf": _file(f"{TIME}=111\n")}, "both", {TIME: "111"}, {},
    ),
    "a line of 1 MiB": (
        {"etc/sysctl.d/a.conf": _file(f"{TIME}=111\n#{'x' * 1048575}\n{PROBES}=5\n")},
        SYSTEMD, {TIME: "111"}, {PROBES: ""},
    ),
    "a line just below": (
        {"etc/sysctl.d/a.conf": _file(f"{TIME}=111\n#{'x' * 1048574}\n{PROBES}=5\n")},
        SYSTEMD, {TIME: "111", PROBES: "5"}, {},
    ),
    "only the interface": ({"etc/sysctl.d/a.conf": _file(f"{LO}=2\n{TIME}=111\n")}, UDEV, {LO: "2"}, {TIME: ""}),
    "a pattern for the interface": (S02, UDEV, {LO: "2"}, {DEFAULT: "", ALL: ""}),
}  # fmt: skip
"""Name -> files, who applies them, what the keys read then, and keys that keep what they held."""


def test_cases_with_the_real_programs(real: Any) -> None:
    """The rules that the prediction rests on, each with values from the manual pages and the reports, not from it."""
    *answers, fresh = real([tree for tree, _, _, _ in CASES.values()])
    for (name, (_, who, holds, kept)), answer in zip(CASES.items(), answers, strict=True):
        for program in (SYSTEMD, PROCPS) if who == "both" else (who,):
            expected = holds | {key: fresh["fresh"][path_of(key)] for key in kept}
            assert {key: answer[program][path_of(key)] for key in expected} == expected, (name, program)
