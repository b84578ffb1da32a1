"""Every look that a noting tree notes gives the same when tuner.fast looks again, and another thing when it changed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import again
from tuner.evidence import NotingTree
from tuner.host.tree import LIMIT

NAMES = ("a", "b", "c")
PARTS = st.sampled_from([*NAMES, "..", "link", "pipe"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
LOOKS: dict[str, Callable[[NotingTree, str], object]] = {
    "read": lambda tree, path: tree.read(path),
    "head": lambda tree, path: tree.head(path, 2),
    "filled": lambda tree, path: tree.filled(path),
    "line": lambda tree, path: tree.has_line(path, b"two"),
    "lines": lambda tree, path: tree.lines(path, 0, b"two"),
    "processes": lambda tree, path: tree.processes(path, "two"),
    "names": lambda tree, path: tree.list(path),
    "stat": lambda tree, path: tree.stat(path),
    "lstat": lambda tree, path: tree.stat(path, follow=False),
    "link": lambda tree, path: tree.link(path),
    "sealed": lambda tree, path: tree.read_only(path),
    "real": lambda tree, path: tree.real(path),
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its root")


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """(path, kind, text): folders, files, links that lead anywhere, out of the root too, and a pipe."""
    found = []
    for path in draw(st.lists(PATHS, min_size=2, max_size=8)):
        kind = draw(st.sampled_from(["file", "file", "dir", "link"]))
        text = draw(PATHS) if kind == "link" else draw(st.sampled_from(["", "one\ntwo\n", "x" * 5000, "two"]))
        found.append((path, kind, text if draw(st.booleans()) else text.lstrip("/")))
    return found


def make(root: Path, parts: list[tuple[str, str, str]]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    os.mkfifo(root / "pipe")
    for path, kind, text in parts:
        place = Path(os.path.normpath(f"{root}{os.path.normpath('/' + path)}"))
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            match kind:
                case "dir":
                    place.mkdir()
                case "link":
                    place.symlink_to(text or "/")
                case _:
                    with open(place, "x", encoding="utf-8") as file:  # never what is there: a pipe would wait
                        file.write(text)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=trees(), asked=st.lists(st.tuples(st.sampled_from(sorted(LOOKS)), PATHS), min_size=1, max_size=8))
@pytest.mark.parametrize("native", [False, True])
def test_what_was_noted_looks_the_same_again(
    tmp_path: Path, native: bool, parts: list[tuple[str, str, str]], asked: list[tuple[str, str]]
) -> None:
    """Links that lead out of the root, loops, pipes and folders included; every errno too."""
    root = tmp_path / "root"
    make(root, parts)
    tree = NotingTree("/" if native else str(root))
    for look, path in asked:
        with contextlib.suppress(OSError):
            LOOKS[look](tree, f"{root}{path}" if native else path)
    assert not tree.torn
    assert again(tree)


@pytest.mark.parametrize(
    ("look", "change"),
    [
        ("read", lambda f: f.write_text("one\ntwO\n")),
        ("read", lambda f: f.unlink()),
        ("read", lambda f: (f.unlink(), f.mkdir())),
        ("read", lambda f: [f.unlink(), os.mkfifo(f)]),  # type: ignore[func-returns-value]
        ("head", lambda f: f.write_text("xne\ntwo\n")),
        ("filled", lambda f: f.write_text("")),
        ("line", lambda f: f.write_text("one\n")),
        ("lines", lambda f: f.write_text("two\ntwo\n")),
        ("lines", lambda f: f.write_text("one\n")),
        ("stat", lambda f: os.chmod(f, 0o600)),
        ("stat", lambda f: os.chown(f, 65534, 0)),
        ("stat", lambda f: f.write_text("one\n")),
        ("lstat", lambda f: (f.rename(f"{f}2"), f.symlink_to(f"{f}2"))),
        ("names", lambda f: (f.unlink(), f.mkdir(), (f / "new").touch())),
        ("link", lambda f: (f.unlink(), f.symlink_to("x"))),
    ],
)
@pytest.mark.parametrize("native", [False, True])
def test_a_change_of_what_was_noted_is_seen(
    tmp_path: Path, native: bool, look: str, change: Callable[[Path], object]
) -> None:
    root = tmp_path / "root"
    make(root, [("/a/b", "file", "one\ntwo\n")])
    tree = NotingTree("/" if native else str(root))
    with contextlib.suppress(OSError):
        LOOKS[look](tree, f"{root}/a/b" if native else "/a/b")
    change(root / "a/b")
    assert not again(tree)


@pytest.mark.parametrize(
    ("look", "text"),
    [("head", "on\n"), ("filled", "other\n"), ("line", "more\ntwo\nand\n"), ("lines", "a two\ntwo\nand\n")],
)
def test_the_rest_of_such_a_file_is_no_evidence(tmp_path: Path, look: str, text: str) -> None:
    """What the verdict does not rest on may change."""
    root = tmp_path / "root"
    make(root, [("/a/b", "file", "one\ntwo\n")])
    tree = NotingTree(str(root))
    LOOKS[look](tree, "/a/b")
    (root / "a/b").write_text(text)
    assert again(tree)


def test_a_folder_that_became_another_with_the_same_names_is_seen(tmp_path: Path) -> None:
    """A recorded host adds names by where the folder really is."""
    root = tmp_path / "root"
    make(root, [("/a/x", "file", ""), ("/b/x", "file", ""), ("/link", "link", "/a")])
    tree = NotingTree(str(root))
    tree.list("/link")
    (root / "link").unlink()
    (root / "link").symlink_to("/b")
    assert not again(tree)


def test_a_longer_way_to_nowhere_is_seen(tmp_path: Path) -> None:
    """What a recorded host answers for a path that is not there depends on the first part that is missing."""
    root = tmp_path / "root"
    make(root, [("/a/b/c", "file", "")])
    tree = NotingTree(str(root))
    with contextlib.suppress(OSError):
        tree.read("/a/b/none")
    shutil.rmtree(root / "a/b")
    assert not again(tree)


def test_a_look_that_gave_two_answers_is_none(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, [("/a", "file", "one")])
    tree = NotingTree(str(root))
    tree.read("/a")
    (root / "a").write_text("two")
    tree.read("/a")
    assert tree.torn


def test_what_is_read_unnoted_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, [("/a", "file", "one")])
    tree = NotingTree(str(root))
    with tree.unnoted():
        tree.read("/a")
        with contextlib.suppress(OSError):
            tree.read("/none/x")
    assert not tree.inside


def test_a_file_that_is_too_large_stays_so(tmp_path: Path) -> None:
    """The door gives EFBIG for it, and so does the look again."""
    root = tmp_path / "root"
    make(root, [])
    with open(root / "a", "wb") as file:
        file.truncate(LIMIT + 1)
    tree = NotingTree(str(root))
    with pytest.raises(OSError, match="File too large"):
        tree.read("/a")
    assert again(tree)


@pytest.mark.parametrize(
    ("procs", "comms", "same"),
    [
        ("7\n8\n", {}, True),
        ("7\n8\n9\n", {9: "other"}, True),
        ("7\n8\n9\n", {9: "slurmd"}, False),
        ("7\n", {}, False),
        ("7\n8\n", {8: "other"}, False),
        ("8\n", {}, True),
    ],
)
def test_evidence_of_a_service_is_which_processes_have_its_name(
    tmp_path: Path, procs: str, comms: dict[int, str], same: bool
) -> None:
    """Of 7 (a step) and 8 (the daemon), the daemon is judged, however many others come and go."""
    root = tmp_path / "root"
    make(root, [("/g/cgroup.procs", "file", "7\n8\n")])
    for pid, comm in {7: "slurmstepd", 8: "slurmd"}.items():
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_text(f"{comm}\n")
    tree = NotingTree(str(root))
    assert tree.processes("/g", "slurmd") == [8]
    (root / "g/cgroup.procs").write_text(procs)
    for pid, comm in comms.items():
        (root / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        (root / f"proc/{pid}/comm").write_text(f"{comm}\n")
    assert again(tree) is same


def test_processes_below_a_service_are_its_own(tmp_path: Path) -> None:
    """Groups within groups, three levels deep; the oldest where none has the name."""
    root = tmp_path / "root"
    make(root, [("/g/cgroup.procs", "file", ""), ("/g/a.scope/cgroup.procs", "file", "12\n5\n")])
    tree = NotingTree(str(root))
    assert tree.processes("/g", "slurmd") == [5, 12]
    assert again(tree)
    (root / "g/b.scope").mkdir()
    (root / "g/b.scope/cgroup.procs").write_text("3\n")
    assert not again(tree)
