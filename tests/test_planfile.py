"""A plan kept in a file, and --expect: what is applied is what was looked at, or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tree, unavailable, write_profile

Tuner = Callable[..., Any]
SWAP = "proc/sys/vm/swappiness"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1, net.core.somaxconn: 8192}")


def test_a_kept_plan_is_applied_without_its_profile(root: Path, tuner: Tuner, profile: Path, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    assert tuner("plan", "--root", root, "--profile", profile, "-o", kept).code == 10
    assert kept.stat().st_mode & 0o777 == 0o600
    profile.unlink()
    result = tuner("apply", "--root", root, kept, "--json")
    assert result.code == 0
    outcomes = [(o["target"], o["after"]) for o in result.document["outcomes"]]
    assert outcomes[:2] == [("vm.swappiness", 1), ("net.core.somaxconn", 8192)]
    ((path, file),) = outcomes[2:]
    assert path == "/etc/sysctl.d/99-zz-tuner.conf"
    assert file["text"].splitlines()[1:] == ["net.core.somaxconn = 8192", "vm.swappiness = 1"]
    assert tuner("verify", "--root", root).code == 0


def test_a_stale_plan_writes_nothing(root: Path, tuner: Tuner, profile: Path, tmp_path: Path) -> None:
    """Somebody changed one of its values between the look and the apply."""
    kept = tmp_path / "plan.json"
    tuner("plan", "--root", root, "--profile", profile, "-o", kept)
    (root / SWAP).write_text("33\n")
    before = tree(root)
    result = tuner("apply", "--root", root, kept)
    assert result.code == 10
    assert "stale" in result.err
    assert tree(root) == before


def test_a_value_that_the_plan_does_not_touch_does_not_make_it_stale(
    root: Path, tuner: Tuner, profile: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "plan.json"
    tuner("plan", "--root", root, "--profile", profile, "-o", kept)
    (root / "proc/sys/vm/zone_reclaim_mode").write_text("1\n")
    assert tuner("apply", "--root", root, kept).code == 0


def test_expect_takes_a_prefix_of_eight(root: Path, tuner: Tuner, profile: Path) -> None:
    whole = tuner("plan", "--root", root, "--profile", profile, "--json").document["settings_id"]
    assert len(whole) == 64
    assert tuner("apply", "--root", root, "--profile", profile, "--expect", whole[:8]).code == 0
    assert tuner("apply", "--root", root, "--profile", profile, "--expect", whole).code == 0


@pytest.mark.parametrize(("given", "code"), [("0" * 8, 10), ("0" * 64, 10), ("abc", 64), ("ABCDEF12", 64), ("", 64)])
def test_expect_refuses_others(root: Path, tuner: Tuner, profile: Path, given: str, code: int) -> None:
    before = tree(root)
    assert tuner("apply", "--root", root, "--profile", profile, "--expect", given).code == code
    assert tree(root) == before


def test_apply_needs_one_of_the_two(root: Path, tuner: Tuner, profile: Path, tmp_path: Path) -> None:
    assert tuner("apply", "--root", root).code == 64
    kept = tmp_path / "plan.json"
    tuner("plan", "--root", root, "--profile", profile, "-o", kept)
    assert tuner("apply", "--root", root, kept, "--profile", profile).code == 64
    assert tuner("apply", "--root", root, kept, "--set", "sysctl:vm.swappiness=5").code == 64


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "not json", '{"schema": "tuner.planfile/1"}', "[" * 5000])
def test_what_is_no_plan(root: Path, tuner: Tuner, tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    result = tuner("apply", "--root", root, tmp_path / "x.json")
    assert result.code == 64
    assert "no plan of tuner" in result.err


def test_a_plan_that_others_can_write_is_not_believed_by_root(
    root: Path, tuner: Tuner, profile: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        unavailable("needs root")
    kept = tmp_path / "plan.json"
    tuner("plan", "--root", root, "--profile", profile, "-o", kept)
    kept.chmod(0o666)
    assert tuner("apply", "--root", root, kept).code == 64


def test_a_kept_plan_is_not_written_through_a_link(root: Path, tuner: Tuner, profile: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep me")
    (tmp_path / "link").symlink_to(target)
    assert tuner("plan", "--root", root, "--profile", profile, "-o", tmp_path / "link").code == 64
    assert target.read_text() == "keep me"


def test_keep_unmentioned_is_kept(root: Path, tuner: Tuner, profile: Path, tmp_path: Path) -> None:
    tuner("apply", "--root", root, "--profile", profile)
    other = write_profile(tmp_path / "o.yaml", "sysctl: {vm.zone_reclaim_mode: 1}")
    kept = tmp_path / "plan.json"
    tuner("plan", "--root", root, "--profile", other, "--keep-unmentioned", "-o", kept)
    assert json.loads(kept.read_text())["keep_unmentioned"] is True
    assert tuner("apply", "--root", root, kept).code == 0
    assert (root / SWAP).read_text() == "1\n"
