"""plan --as-if: what files below /etc/tuner would mean before they are there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, tree

Call = Callable[..., Result]
SITE = "/etc/tuner/site.yaml"


def wants(result: Result) -> dict[str, object]:
    """Target -> wanted value."""
    return {v["target"]: v["want"].get("value") for v in result.document["verdicts"] if v["knob"] == "sysctl"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "new-site.yaml"
    path.write_text("settings:\n  sysctl:\n    vm.swappiness: 7\n", encoding="utf-8")
    return path


def test_the_plan_is_that_of_the_files_in_place(root: Path, site: Path, tuner: Call) -> None:
    """Same settings id, same changes; nothing is written; a file that is there is replaced for this plan alone."""
    before = tree(root)
    words = ["plan", "--root", root, "--profile", "linux-gpu", "--json"]
    planned = tuner(*words, "--as-if", f"{SITE}={site}")
    assert wants(planned)["vm.swappiness"] == 7
    assert tree(root) == before
    place = root / "etc/tuner/site.yaml"
    place.parent.mkdir(parents=True)
    place.write_bytes(site.read_bytes())
    really = tuner(*words)
    assert really.document == planned.document
    site.write_text("settings:\n  sysctl:\n    vm.swappiness: 8\n", encoding="utf-8")
    assert wants(tuner(*words, "--as-if", f"{SITE}={site}"))["vm.swappiness"] == 8


def test_profiles_that_extend_each_other(root: Path, tmp_path: Path, tuner: Call) -> None:
    """Two files at once: a profile, and the one that it extends."""
    texts = {
        "ours": "name: ours\nsummary: x\nextends: [base]\nsettings:\n  sysctl: {vm.swappiness: 3}\n",
        "base": "name: base\nsummary: x\nsettings:\n  sysctl: {vm.zone_reclaim_mode: 0}\n",
    }
    words: list[object] = []
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        words += ["--as-if", f"/etc/tuner/profiles/{name}.yaml={tmp_path}/{name}.yaml"]
    found = tuner("plan", "--root", root, "--profile", "ours", "--json", *words)
    assert wants(found) == {"vm.swappiness": 3, "vm.zone_reclaim_mode": 0}


@pytest.mark.parametrize(
    "text", ["", "x", "=f", "/etc/passwd=f", "/etc/tuner/../passwd=f", "etc/tuner/site.yaml=f", f"{SITE}="]
)
def test_only_files_below_etc_tuner(text: str, root: Path, tuner: Call) -> None:
    done = tuner("plan", "--root", root, "--profile", "linux-gpu", "--as-if", text)
    assert done.code == 64
    assert "is not PATH=FILE" in done.err
    assert "hint: " in done.err


def test_bad_files_are_errors_with_their_place(root: Path, tmp_path: Path, site: Path, tuner: Call) -> None:
    """A file that is not there, one that others can write, one that is no site, and a kept plan."""
    words = ["plan", "--root", root, "--profile", "linux-gpu", "--as-if"]
    assert tuner(*words, f"{SITE}={tmp_path}/none").code == 64
    site.write_text("no_such_part: 1\n", encoding="utf-8")
    done = tuner(*words, f"{SITE}={site}")
    assert (done.code, f"{SITE}:1" in done.err) == (64, True)
    assert tuner(*words, f"{SITE}={site}", "-o", tmp_path / "plan.json").code == 64
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is careful whom to believe")
def test_root_does_not_believe_what_others_can_write(root: Path, site: Path, tuner: Call) -> None:
    site.chmod(0o666)
    done = tuner("plan", "--root", root, "--profile", "linux-gpu", "--as-if", f"{SITE}={site}")
    assert done.code == 64
    assert "can be written by others than root" in done.err
