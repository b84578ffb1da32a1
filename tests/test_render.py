"""A value that nobody can ask for is `not known` wherever it is shown; null that was read stays `none` or `no file`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, write_profile
from tuner import render
from tuner.model import Change, Outcome, Seen, Setting, Unreadable, Value, Verdict, Want

Tuner = Callable[..., Result]
GPU = "0000:07:00.0"
LOCK = f'nvidia.gpu_clocks: {{"{GPU}": 1155}}\nfile: {{/etc/sysctl.d/50-none.conf: text}}'
FORGOTTEN = "99999999-2222-4333-8444-555555555555\n"


def row(out: str, place: str) -> str:
    """The first line of an output that names the place."""
    return next(line for line in out.splitlines() if place in line)


@pytest.fixture
def root(copy_host: Callable[..., Path]) -> Path:
    """A host whose locked clocks nothing can read back (NVML API Reference)."""
    return copy_host("a100-cx7")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A lock, and a file that is not there."""
    return write_profile(tmp_path / "locks.yaml", LOCK)


def test_plan_apply_and_history_have_one_word_for_it(root: Path, profile: Path, tuner: Tuner) -> None:
    words = ["--profile", profile, "--root", root]
    outputs = [tuner("plan", *words).out, tuner("apply", *words, "--allow", "none").out, tuner("apply", *words).out]
    outputs.append(tuner("history", "2", "--root", root).out)
    for out in outputs:
        assert re.search(rf"{GPU} +not known  ", row(out, f"nvidia.gpu_clocks {GPU}")), out
    assert "-> 1155" in row(outputs[2], GPU)
    for out in outputs[:2]:
        assert "no file" in row(out, "file /etc/sysctl.d/50-none.conf"), out


def test_a_lock_that_the_driver_forgot_is_not_known_in_verify(root: Path, profile: Path, tuner: Tuner) -> None:
    """After a boot."""
    assert tuner("apply", "--profile", profile, "--root", root).code == 0
    (root / "proc/sys/kernel/random/boot_id").write_text(FORGOTTEN)
    assert re.search(
        rf"{GPU} +not known +want 1155", row(tuner("verify", "--root", root).out, f"nvidia.gpu_clocks {GPU}")
    )


@pytest.mark.parametrize(("found", "main", "text"), [
    (None, "", "not known"),
    ({"text": None}, "", "no file"),
    ({"mode": None}, "", "mode none"),
    ({"min": None, "max": 5}, "max", "5 (min none)"),
    ({"min": 5, "max": None}, "max", "none (min 5)"),
    (0, "", "0"),
])  # fmt: skip
def test_null_inside_a_record_was_read(found: Value, main: str, text: str) -> None:
    assert render.value(found, main) == text


@pytest.mark.parametrize(("wanted", "text"), [
    (Want("value", None), "none"),
    (Want("one_of", (None, 1)), "one of none, 1"),
])  # fmt: skip
def test_null_that_is_wanted_is_no_unknown(wanted: Want, text: str) -> None:
    assert render.want(wanted) == text


SETTING = Setting("nvidia.gpu_clocks", GPU, GPU, Want("value", {"min": 1155, "max": 1155}), "x:1", "why", "source")


@pytest.mark.parametrize(("fault", "shown"), [("no getter", "not known"), ("ours", "-"), ("device", "-")])
def test_only_what_has_no_getter_is_not_known(fault: Any, shown: str) -> None:
    """What could not be read now is a dash and its reason."""
    found = Unreadable("why", fault)
    assert render.reading(found) == shown
    assert render.verdict_row(Verdict(SETTING, found, "drift"))[2] == shown
    assert render.reading(Seen(3)) == "3"


def test_outcomes_say_it_on_both_sides() -> None:
    (line,) = render.outcomes([Outcome("nvidia.gpu_clocks", GPU, None, None, "unchanged", "why")])
    assert line.split("   ")[1:] == [f"nvidia.gpu_clocks {GPU}", "not known", "-> not known", "why"]
    change = Change("nvidia.gpu_clocks", GPU, None, "unlocked", Want("value", "unlocked"), "clocks")
    assert render._change(change, None)[1:3] == ("not known", "unlocked")
