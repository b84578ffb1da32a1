"""What ships: every profile and overlay is clean, explains itself, and does its job on its recorded hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tree
from tuner.host import open_host
from tuner.profile import load_profile
from tuner.profile.files import find
from tuner.shipped import folder, names

PROFILES = names("profiles", ".yaml")
OVERLAYS = names("profiles/overlays", ".yaml")
HOSTS = {
    "linux-gpu": ("plain-vm", "mi300x-cx7"),
    "mi300x": ("mi300x-cx7",),
    "a100": ("a100-cx7",),
    "h800": ("h800-cx7",),
}
"""Where each profile belongs."""

RUNS = [
    pytest.param(host, profile, overlays, id="-".join([host, profile, *overlays]))
    for profile, hosts in HOSTS.items()
    for host in hosts
    for overlays in ([], ["hugepages"])
    if profile in PROFILES and not (host == "plain-vm" and overlays)
]


def test_every_profile_has_a_host() -> None:
    """A new profile needs a recorded host on which it is proven."""
    assert set(PROFILES) <= set(HOSTS)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_setting_says_why_and_who_says_so(profile: str, root: Path) -> None:
    for setting in load_profile(open_host(str(root)), profile, OVERLAYS).settings:
        assert len(setting.why) > 30, setting.at
        assert len(setting.source) > 10, setting.at
        assert not setting.why.startswith("set by"), setting.at


def test_lint_is_clean(root: Path, tuner: Callable[..., Any]) -> None:
    result = tuner("profiles", "lint", "--root", root, "--json")
    assert (result.code, result.document["findings"]) == (0, [])


def test_overlays_are_found_and_are_no_profiles(root: Path, tuner: Callable[..., Any]) -> None:
    host = open_host(str(root))
    for overlay in OVERLAYS:
        assert (
            find(host, overlay, overlay=True).data == (folder("profiles") / "overlays" / f"{overlay}.yaml").read_bytes()
        )
    assert tuner("plan", "--root", root, "--profile", "hugepages").code == 64


@pytest.mark.parametrize(("host", "profile", "overlays"), RUNS)
def test_applies_verifies_and_goes_back(
    host: str, profile: str, overlays: list[str], copy_host: Callable[..., Path], tuner: Callable[..., Any]
) -> None:
    """apply 0, verify 0 with nothing pending, a second apply writes nothing, rollback to the letter."""
    root = copy_host(host)
    before = tree(root)
    words = ["--root", root, "--profile", profile, *(w for overlay in overlays for w in ("--with", overlay))]
    assert tuner("apply", *words).code == 0
    verified = tuner("verify", "--root", root, "--json")
    assert verified.code == 0
    assert {v["state"] for v in verified.document["verdicts"]} <= {"ok", "raised", "unsupported"}
    assert tuner("apply", *words, "--json").document["generation"] is None
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_huge_pages_of_the_overlay_cost_what_it_says(copy_host: Callable[..., Path], tuner: Callable[..., Any]) -> None:
    """1024 pages of 2 MB are 2 GiB on each node, and RealMemory must leave them out."""
    root = copy_host("mi300x-cx7")
    plan = tuner("plan", "--root", root, "--profile", "linux-gpu", "--with", "hugepages", "--json").document
    notes = [c["note"] for c in plan["changes"] if c["knob"] == "hugepages"]
    assert len(notes) == 2
    assert all(note.startswith("2048 MB ") and "RealMemory" in note for note in notes)


@pytest.mark.parametrize("fault", ["ast-absent", "cpx", "old-ifwi"])
def test_mi300x_goes_round_whatever_the_host_is_like(
    fault: str, copy_host: Callable[..., Path], tuner: Callable[..., Any]
) -> None:
    """No BMC display, 63 of 64 partitions, firmware without determinism: all is set, and the partitions are judged."""
    root = copy_host("mi300x-cx7", fault)
    before = tree(root)
    assert tuner("apply", "--root", root, "--profile", "mi300x").code == 0
    verify = tuner("verify", "--root", root, "--json")
    apart = {(v["knob"], v["state"]) for v in verify.document["verdicts"] if v["state"] in ("drift", "missing")}
    assert (verify.code, apart) == ((10, {("amdgpu.partition", "drift")}) if fault == "cpx" else (0, set()))
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


@pytest.mark.parametrize("fault", ["gpu-lost", "vf"])
def test_mi300x_is_not_for_these_hosts(fault: str, copy_host: Callable[..., Path], tuner: Callable[..., Any]) -> None:
    """Seven GPUs, or virtual functions: 31 with what was expected and found, and nothing written."""
    root = copy_host("mi300x-cx7", fault)
    before = tree(root)
    result = tuner("apply", "--root", root, "--profile", "mi300x")
    assert result.code == 31
    assert "expected 8 GPU 1002:74a1" in result.err
    assert tree(root) == before
