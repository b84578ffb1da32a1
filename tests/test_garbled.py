"""A file of the kernel that says nothing sensible: the verdict says so, and nothing falls over.

Whatever a verdict rests on is spoilt, one file after the other, for one setting of each knob on each recorded host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Result
from tuner import applied as cache
from tuner import evidence
from tuner import plan as planning
from tuner.errors import TunerError
from tuner.host import Host, open_host
from tuner.host.tree import Tree
from tuner.ledger import Applied
from tuner.model import STATES

PROFILES = {
    "plain-vm": ("linux-gpu", 8),
    "mi300x-cx7": ("mi300x", 30),
    "a100-cx7": ("a100", 30),
    "h800-cx7": ("h800", 30),
}
"""The profile for each host, and how many kinds of files it rests on at least."""

SPOILT = {"empty": b"", "no number": b"000000057\n", "no text": b"\xff\xfe\x00\n", "torn": b"0x\n-1"}


@pytest.mark.parametrize("name", PROFILES)
def test_no_file_makes_a_verdict_fall_over(
    name: str, copy_host: Callable[..., Path], tuner: Callable[..., Result]
) -> None:
    (profile, least), root = PROFILES[name], copy_host(name)
    words = ["apply", "--profile", profile, "--root", root, "--allow", "all", "--keep-unmentioned"]
    assert tuner(*words).code in (0, 10, 11, 12)
    host = open_host(str(root))
    applied = cache.current(host)[0]
    assert applied is not None
    tried: Counter[str] = Counter()
    for alone in first_of_each(applied):
        for path in files(host, alone):
            kind = re.sub(r"\d+", "N", str(path))
            tried[kind] += 1
            if tried[kind] <= 2:  # not of every CPU, and not for each knob anew
                spoil(host, path, alone)
    assert len(tried) > least


def first_of_each(applied: Applied) -> Iterator[Applied]:
    """What is applied, cut down to one setting of each knob in turn."""
    met: set[str] = set()
    for setting, reading in zip(applied.settings, applied.readings, strict=True):
        if setting.knob not in met:
            met.add(setting.knob)
            yield replace(applied, settings=(setting,), readings=(reading,))


def files(host: Host, alone: Applied) -> list[Path]:
    """The files whose content the verdict rests on."""
    tree = evidence.note(host)
    planning.verify(host, alone)
    read = [path for (kind, path, _), found in tree.inside.items() if kind == "read" and not isinstance(found, int)]
    host.tree = Tree(host.root)
    return sorted({Path(f"{host.root}{tree.real(path)}") for path in read})


def spoil(host: Host, path: Path, alone: Applied) -> None:
    before = path.read_bytes()
    for how, data in SPOILT.items():
        path.write_bytes(data)
        try:
            made = planning.verify(host, alone)
            assert {v.state for v in made.verdicts} <= set(STATES)
        except TunerError:
            pass  # said in one line
        except Exception as error:
            setting = alone.settings[0]
            raise AssertionError(f"{path} {how}: {setting.knob} {setting.target}") from error
    path.write_bytes(before)
