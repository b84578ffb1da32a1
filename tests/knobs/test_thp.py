"""thp: the word in brackets, the numbers of khugepaged, and what khugepaged moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, write_profile
from tuner.errors import BadValue
from tuner.host import open_host
from tuner.knobs.thp import Thp
from tuner.model import Absent, Seen, Unreadable, Value

Tuner = Callable[..., Result]
THP = Thp()
FOLDER = "sys/kernel/mm/transparent_hugepage"


def test_the_choice_is_the_word_in_brackets(root: Path) -> None:
    """`always [madvise] never` reads madvise, wherever the brackets stand."""
    host = open_host(str(root))
    for text, word in {
        "[always] madvise never\n": "always",
        "always [madvise] never\n": "madvise",
        "always madvise [never]\n": "never",
    }.items():
        (root / FOLDER / "enabled").write_text(text)
        assert THP.read(host, "enabled") == Seen(word)


@pytest.mark.parametrize("text", ["always madvise never\n", "", "] always [\n", "[always\n"])
def test_no_choice_in_brackets_is_unreadable(root: Path, text: str) -> None:
    """What cannot be understood is never a value."""
    (root / FOLDER / "enabled").write_text(text)
    assert isinstance(THP.read(open_host(str(root)), "enabled"), Unreadable)


@pytest.mark.parametrize(
    ("target", "value", "shows"),
    [
        ("enabled", "never", "always madvise [never]\n"),
        ("defrag", "defer+madvise", "always defer [defer+madvise] madvise never\n"),
        ("khugepaged/max_ptes_none", 0, "0\n"),
        ("khugepaged/scan_sleep_millisecs", 4294967295, "4294967295\n"),
    ],
)
def test_write(root: Path, target: str, value: Value, shows: str) -> None:
    """The kernel moves the brackets."""
    THP.write(open_host(str(root)), target, value)
    assert (root / FOLDER / target).read_text() == shows


@pytest.mark.parametrize(
    ("target", "raw"),
    [
        ("enabled", "defer"),
        ("enabled", "[always]"),
        ("enabled", "1"),
        ("enabled", None),
        ("enabled", ["always"]),
        ("defrag", "on"),
        ("khugepaged/max_ptes_none", "512"),
        ("khugepaged/pages_to_scan", "0"),
        ("khugepaged/defrag", "2"),
        ("khugepaged/defrag", "yes"),
        ("khugepaged/max_ptes_swap", "-1"),
        ("khugepaged/max_ptes_swap", "010"),
    ],
)
def test_refused_values(target: str, raw: object) -> None:
    """Words of another file, numbers that mm/khugepaged.c refuses, and what is no single value."""
    with pytest.raises(BadValue) as error:
        THP.parse(target, raw)  # type: ignore[arg-type]
    assert error.value.hint


@pytest.mark.parametrize("name", ["shmem_enabled", "hpage_pmd_size", "khugepaged", "../hugepages", ""])
def test_other_targets_are_refused(name: str) -> None:
    """tmpfs (shmem_enabled) is separate, sizes are no settings, and no path leads out of the folder."""
    with pytest.raises(BadValue) as error:
        THP.canonical(name)
    assert "enabled, defrag" in error.value.hint


def test_a_word_that_this_kernel_does_not_offer(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Kernels before 4.11 have no defer+madvise: refused with what is offered, nothing is written."""
    (root / FOLDER / "defrag").write_text("always defer [madvise] never\n")
    profile = write_profile(tmp_path / "p.yaml", "thp:\n  defrag: defer+madvise")
    result = tuner("apply", "--root", root, "--profile", profile)
    assert result.code == 64
    assert f"{profile}:5" in result.err
    assert "always, defer, madvise, never" in result.err
    assert (root / FOLDER / "defrag").read_text() == "always defer [madvise] never\n"


def test_a_kernel_without_thp(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """No such file here: unsupported, exit 0; required, exit 10."""
    (root / FOLDER / "khugepaged/max_ptes_shared").unlink()
    line = "thp:\n  khugepaged/max_ptes_shared: {value: 1, required: %s}"
    for required, code in (("false", 0), ("true", 10)):
        profile = write_profile(tmp_path / f"{required}.yaml", line % required)
        result = tuner("plan", "--root", root, "--json", "--profile", profile)
        assert (result.code, result.document["counts"]) == (code, {"unsupported": 1})
    assert isinstance(THP.read(open_host(str(root)), "khugepaged/max_ptes_shared"), Absent)


def test_switching_thp_off_is_harmless_for_running_jobs() -> None:
    """It changes page faults to come, not memory that is mapped."""
    assert [THP.disruption(target) for target in ("enabled", "defrag", "khugepaged/defrag")] == ["none"] * 3
