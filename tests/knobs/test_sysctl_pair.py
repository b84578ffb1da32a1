"""sysctl.pair: an amount or a share, as Linux 6.1 couples them (mm/page-writeback.c, mm/util.c)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.errors import BadValue
from tuner.host import open_host
from tuner.knobs.sysctl import STORE
from tuner.knobs.sysctl_pair import SysctlPair

Tuner = Callable[..., Result]
PAIR = SysctlPair()
VM = "/proc/sys/vm"


def halves(root: Path, bytes_half: str, ratio_half: str) -> tuple[str, str]:
    """What the two files hold."""
    vm = root / "proc/sys/vm"
    return (vm / bytes_half).read_text().strip(), (vm / ratio_half).read_text().strip()


def dirty(root: Path) -> tuple[str, str]:
    """(dirty_bytes, dirty_ratio)."""
    return halves(root, "dirty_bytes", "dirty_ratio")


def test_dirty_ratio_zeroes_its_twin_only_when_it_changes(root: Path) -> None:
    """mm/page-writeback.c, dirty_ratio_handler: `&& vm_dirty_ratio != old_ratio`."""
    host = open_host(str(root))
    host.write(f"{VM}/dirty_bytes", "1048576\n")
    assert dirty(root) == ("1048576", "0")
    host.write(f"{VM}/dirty_ratio", "0\n")
    assert dirty(root) == ("1048576", "0")
    host.write(f"{VM}/dirty_ratio", "1\n")
    assert dirty(root) == ("0", "1")


def test_dirty_background_ratio_zeroes_its_twin_at_any_write(root: Path) -> None:
    """mm/page-writeback.c, dirty_background_ratio_handler: no comparison with the old ratio."""
    host = open_host(str(root))
    host.write(f"{VM}/dirty_background_bytes", "1048576\n")
    host.write(f"{VM}/dirty_background_ratio", "0\n")
    assert halves(root, "dirty_background_bytes", "dirty_background_ratio") == ("0", "0")


@pytest.mark.parametrize(
    ("target", "wanted", "files", "left"),
    [
        ("vm.dirty", {"bytes": 1073741824}, ("dirty_bytes", "dirty_ratio"), ("1073741824", "0")),
        ("vm.dirty", {"ratio": 5}, ("dirty_bytes", "dirty_ratio"), ("0", "5")),
        ("vm.dirty_background", {"bytes": 1}, ("dirty_background_bytes", "dirty_background_ratio"), ("1", "0")),
        ("vm.overcommit", {"bytes": 2097152}, ("overcommit_kbytes", "overcommit_ratio"), ("2048", "0")),
        ("vm.overcommit", {"ratio": 95}, ("overcommit_kbytes", "overcommit_ratio"), ("0", "95")),
    ],
)
def test_the_wanted_half_is_set_and_the_other_is_0(
    root: Path, tuner: Tuner, tmp_path: Path, target: str, wanted: dict[str, int], files: tuple[str, str],
    left: tuple[str, str],
) -> None:  # fmt: skip
    """overcommit_kbytes counts kB; tuner counts bytes."""
    ((half, number),) = wanted.items()
    text = f"sysctl.pair:\n  {target}: {{value: {{{half}: {number}}}}}"
    before = tree(root)
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", text)).code == 0
    assert halves(root, *files) == left
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


@pytest.mark.parametrize("wanted", ["{bytes: 8192}", "{ratio: 7}"])
def test_undo_to_both_zero(root: Path, tuner: Tuner, tmp_path: Path, wanted: str) -> None:
    """Somebody wrote 0 into dirty_ratio: both halves are 0, which only a detour reaches again."""
    host = open_host(str(root))
    host.write(f"{VM}/dirty_ratio", "0\n")
    assert dirty(root) == ("0", "0")
    before = tree(root)
    profile = write_profile(tmp_path / "p.yaml", f"sysctl.pair:\n  vm.dirty: {{value: {wanted}}}")
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert dirty(root) == ("0", "0")
    assert tree(root) == before


def test_one_half_held_already_is_met(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """The recorded host has dirty_ratio 20: nothing to do but to keep it, and the kernel's file is not written."""
    profile = write_profile(tmp_path / "p.yaml", "sysctl.pair:\n  vm.dirty: {value: {ratio: 20}}")
    first = tuner("apply", "--root", root, "--profile", profile, "--json").document
    assert [o["target"] for o in first["outcomes"]] == [STORE]
    assert (root / STORE[1:]).read_text().splitlines()[1:] == ["vm.dirty_ratio = 20"]
    assert tuner("plan", "--root", root, "--profile", profile).code == 0


@pytest.mark.parametrize(
    ("target", "raw"),
    [
        ("vm.dirty", "5"),
        ("vm.dirty", {}),
        ("vm.dirty", {"bytes": "8192", "ratio": "5"}),
        ("vm.dirty", {"kbytes": "8192"}),
        ("vm.dirty", {"bytes": "8191"}),
        ("vm.dirty", {"ratio": "101"}),
        ("vm.dirty", {"ratio": "-1"}),
        ("vm.dirty", {"bytes": "1G"}),
        ("vm.dirty_background", {"bytes": "0"}),
        ("vm.overcommit", {"bytes": "1025"}),
    ],
)
def test_refused_values(target: str, raw: object) -> None:
    """Two pages is the least that dirty_bytes takes; a kbytes half holds whole kilobytes; exactly one half."""
    with pytest.raises(BadValue) as error:
        PAIR.parse(target, raw)  # type: ignore[arg-type]
    assert error.value.hint


def test_other_targets_are_refused() -> None:
    """A half is no target, nor is another key; the three pairs are named."""
    for name in ("vm.dirty_bytes", "vm.swappiness", ""):
        with pytest.raises(BadValue) as error:
            PAIR.canonical(name)
        assert "vm.dirty_background" in error.value.hint
