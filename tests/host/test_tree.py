"""Files below a root: what a chrooted process would see, and never anything outside."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import unavailable
from tuner.host.tree import LIMIT, Lost, Tree

OPENAT2 = 437
"""The number of openat2(2) on every architecture (asm-generic/unistd.h)."""
RESOLVE_IN_ROOT = 0x10


class _How(ctypes.Structure):
    """struct open_how of linux/openat2.h."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def kernel_open(root: Path, path: str) -> int:
    """A handle on `path` as the kernel resolves it inside `root`: openat2 with RESOLVE_IN_ROOT."""
    libc = ctypes.CDLL(None, use_errno=True)
    how = _How(os.O_RDONLY, 0, RESOLVE_IN_ROOT)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        handle = int(libc.syscall(OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
        number = ctypes.get_errno()
    finally:
        os.close(folder)
    if handle < 0:
        raise OSError(number, os.strerror(number), path)
    return handle


def kernel_answer(root: Path, path: str) -> bytes | int:
    """The content of a file as a chrooted read would give it, else the errno."""
    try:
        handle = kernel_open(root, path)
    except OSError as error:
        return int(error.errno or 0)
    try:
        return errno.EISDIR if stat.S_ISDIR(os.fstat(handle).st_mode) else os.read(handle, 65536)
    finally:
        os.close(handle)


def answer(call: Callable[[], bytes | None]) -> bytes | int | None:
    """What a call gives, or the errno that it raises."""
    try:
        return call()
    except OSError as error:
        return error.errno


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A root beside a canary that has the names of what lies inside."""
    outside(tmp_path)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def outside(folder: Path) -> None:
    """Files and directories around the root: whoever escapes meets one of them."""
    for name in ("a", "b", "c", "canary"):
        (folder / name).mkdir()
        (folder / name / "f").write_bytes(b"outside")
    (folder / "f").write_bytes(b"outside")


def untouched(folder: Path) -> bool:
    """Whether all that lies around the root is as `outside` made it, and no more than that."""
    names = sorted(path.name for path in folder.iterdir())
    files = [folder / "f", *(folder / name / "f" for name in ("a", "b", "c", "canary"))]
    alone = all([p.name for p in (folder / n).iterdir()] == ["f"] for n in ("a", "b", "c", "canary"))
    return (
        names == ["a", "b", "c", "canary", "f", "root"] and alone and all(p.read_bytes() == b"outside" for p in files)
    )


# reads


@pytest.mark.parametrize(
    ("target", "content"),
    [
        ("/etc/real", b"inside"),
        ("real", b"inside"),
        ("../etc/real", b"inside"),
        ("../../../../../etc/real", b"inside"),
        ("/../../etc/./real", b"inside"),
    ],
)
def test_a_link_is_resolved_inside_the_root(base: Path, target: str, content: bytes) -> None:
    (base / "etc").mkdir()
    (base / "etc/real").write_bytes(content)
    (base / "etc/link").symlink_to(target)
    assert Tree(str(base)).read("/etc/link") == content


def test_an_absolute_link_to_what_the_machine_has_is_not_found_inside(base: Path) -> None:
    (base / "link").symlink_to("/etc/passwd")
    with pytest.raises(Lost) as lost:
        Tree(str(base)).read("/link")
    assert lost.value.real == "/etc"


def test_a_link_to_a_directory_in_the_middle_of_a_path_is_followed_inside(base: Path) -> None:
    (base / "usr/bin").mkdir(parents=True)
    (base / "usr/bin/x").write_bytes(b"inside")
    (base / "bin").symlink_to("/usr/bin")
    assert Tree(str(base)).read("/bin/x") == b"inside"
    assert Tree(str(base)).real("/bin/x") == "/usr/bin/x"


def test_dots_above_the_root_stay_at_the_root(base: Path) -> None:
    (base / "f").write_bytes(b"inside")
    assert Tree(str(base)).read("/../../../../f") == b"inside"


def test_a_loop_of_links_is_eloop(base: Path) -> None:
    (base / "one").symlink_to("two")
    (base / "two").symlink_to("/one")
    for path in ("/one", "/one/below", "/two"):
        with pytest.raises(OSError) as raised:
            Tree(str(base)).read(path)
        assert raised.value.errno == errno.ELOOP


@pytest.mark.parametrize(("links", "right"), [(40, b"end"), (41, errno.ELOOP)])
def test_forty_links_are_followed_as_in_the_kernel(base: Path, links: int, right: bytes | int) -> None:
    (base / "0").write_bytes(b"end")
    for number in range(1, links + 1):
        (base / str(number)).symlink_to(str(number - 1))
    assert answer(lambda: Tree(str(base)).read(f"/{links}")) == right
    assert kernel_or_skip(base, f"/{links}") == right


def kernel_or_skip(root: Path, path: str) -> bytes | int:
    """`kernel_answer`, where this kernel has openat2."""
    found = kernel_answer(root, path)
    if found in (errno.ENOSYS, errno.EPERM):
        unavailable("openat2 is not there (Linux 5.6 and later)")
    return found


def test_a_missing_component_is_named_with_links_resolved(base: Path) -> None:
    (base / "real").mkdir()
    (base / "link").symlink_to("/real")
    with pytest.raises(Lost) as lost:
        Tree(str(base)).read("/link/gone/deeper")
    assert lost.value.real == "/real/gone"


def test_a_file_in_the_middle_of_a_path_is_enotdir(base: Path) -> None:
    (base / "f").write_bytes(b"")
    assert answer(lambda: Tree(str(base)).read("/f/below")) == errno.ENOTDIR


def test_a_directory_cannot_be_read_as_a_file(base: Path) -> None:
    (base / "d").mkdir()
    assert answer(lambda: Tree(str(base)).read("/d")) == errno.EISDIR


def test_a_fifo_is_refused_and_does_not_block(base: Path) -> None:
    os.mkfifo(base / "pipe")
    assert answer(lambda: Tree(str(base)).read("/pipe")) == errno.EINVAL


def test_a_huge_file_is_refused(base: Path) -> None:
    with (base / "big").open("wb") as file:
        file.truncate(LIMIT + 1)
    with (base / "just").open("wb") as file:
        file.truncate(LIMIT)
    assert answer(lambda: Tree(str(base)).read("/big")) == errno.EFBIG
    assert len(Tree(str(base)).read("/just")) == LIMIT


def test_a_tree_deeper_than_path_max_can_be_read_and_written(base: Path) -> None:
    """4096 bytes is the limit of one path in the kernel, not of a tree."""
    tree, folder = Tree(str(base)), ""
    for _ in range(60):
        folder += "/" + "d" * 100
        tree.mkdir(folder)
    assert len(folder) > 4096
    tree.put(f"{folder}/f", b"deep", 0o644)
    assert tree.read(f"{folder}/f") == b"deep"
    assert tree.list(folder) == ["f"]


def test_a_listing_is_sorted_and_follows_links_inside(base: Path) -> None:
    (base / "d").mkdir()
    for name in ("b", "a", "c"):
        (base / "d" / name).touch()
    (base / "link").symlink_to("/d")
    assert Tree(str(base)).list("/link") == ["a", "b", "c"]


def test_lstat_and_readlink_look_at_the_link_itself(base: Path) -> None:
    (base / "link").symlink_to("/nowhere")
    tree = Tree(str(base))
    assert stat.S_ISLNK(tree.stat("/link", follow=False).st_mode)
    assert tree.link("/link") == "/nowhere"
    with pytest.raises(Lost):
        tree.stat("/link")


# writes


@pytest.mark.parametrize("target", ["/etc/passwd", "../canary/f", "real", "/nowhere"])
def test_put_refuses_a_link_as_the_last_component(base: Path, target: str) -> None:
    (base / "real").write_bytes(b"before")
    (base / "link").symlink_to(target)
    assert answer(lambda: Tree(str(base)).put("/link", b"after", 0o644)) == errno.ELOOP
    assert os.readlink(base / "link") == target
    assert (base / "real").read_bytes() == b"before"
    assert sorted(os.listdir(base)) == ["link", "real"]
    assert untouched(base.parent)


def test_put_refuses_a_fifo_and_a_directory_in_its_place(base: Path) -> None:
    os.mkfifo(base / "pipe")
    (base / "d").mkdir()
    for path in ("/pipe", "/d"):
        assert answer(lambda path=path: Tree(str(base)).put(path, b"x", 0o644)) == errno.ELOOP  # type: ignore[misc]
    assert sorted(os.listdir(base)) == ["d", "pipe"]


def test_put_follows_a_linked_directory_but_only_inside(base: Path) -> None:
    (base / "canary").symlink_to(base.parent / "canary")
    assert answer(lambda: Tree(str(base)).put("/canary/f", b"x", 0o644)) == errno.ENOENT
    (base / "real").mkdir()
    (base / "link").symlink_to("/../../real")
    Tree(str(base)).put("/link/f", b"x", 0o644)
    assert (base / "real/f").read_bytes() == b"x"
    assert untouched(base.parent)


def test_put_sets_the_mode_whatever_the_umask(base: Path) -> None:
    former = os.umask(0o077)
    try:
        Tree(str(base)).put("/f", b"x", 0o644)
        Tree(str(base)).mkdir("/d", 0o755)
    finally:
        os.umask(former)
    assert stat.S_IMODE((base / "f").stat().st_mode) == 0o644
    assert stat.S_IMODE((base / "d").stat().st_mode) == 0o755


def test_put_keeps_the_owner_of_the_file_it_replaces(base: Path) -> None:
    if os.geteuid() != 0:
        unavailable("only root can give a file to somebody")
    (base / "f").write_bytes(b"before")
    os.chown(base / "f", 1234, 4321)
    Tree(str(base)).put("/f", b"after", 0o600)
    status = (base / "f").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o600)


def test_put_gives_the_file_to_the_owner_named(base: Path) -> None:
    if os.geteuid() != 0:
        unavailable("only root can give a file to somebody")
    Tree(str(base)).put("/f", b"x", 0o640, (7, 8))
    status = (base / "f").stat()
    assert (status.st_uid, status.st_gid) == (7, 8)


def test_put_replaces_the_name_and_not_the_file_others_have_open(base: Path) -> None:
    """A hard link or an open handle keeps the old bytes: nothing is ever half-written."""
    (base / "f").write_bytes(b"before")
    os.link(base / "f", base / "twin")
    Tree(str(base)).put("/f", b"after", 0o644)
    assert (base / "twin").read_bytes() == b"before"
    assert (base / "f").read_bytes() == b"after"


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "fchmod"])
def test_a_put_that_fails_leaves_the_old_file_and_nothing_beside_it(
    base: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (base / "f").write_bytes(b"before")

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    found = answer(lambda: Tree(str(base)).put("/f", b"after", 0o644))
    monkeypatch.undo()
    assert found == errno.ENOSPC
    assert os.listdir(base) == ["f"]
    assert (base / "f").read_bytes() == b"before"


def test_what_a_crash_left_beside_a_file_does_not_stop_the_next_put(base: Path) -> None:
    (base / "f.tuner-new").symlink_to("../canary/f")
    Tree(str(base)).put("/f", b"x", 0o644)
    assert os.listdir(base) == ["f"]
    assert untouched(base.parent)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_append_leaves_nothing_of_a_write_that_failed(base: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (base / "log").write_bytes(b"one\n")
    real = os.write

    def short(handle: int, data: bytes) -> int:
        real(handle, data[:2])
        return 2

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, short if call == "write" else full)
    found = answer(lambda: Tree(str(base)).append("/log", b"two\n"))
    monkeypatch.undo()
    assert found == errno.ENOSPC
    assert (base / "log").read_bytes() == b"one\n"
    Tree(str(base)).append("/log", b"three\n")
    assert (base / "log").read_bytes() == b"one\nthree\n"


def test_append_and_truncate_do_not_follow_a_link(base: Path) -> None:
    (base / "real").write_bytes(b"before")
    (base / "log").symlink_to("real")
    tree = Tree(str(base))
    assert answer(lambda: tree.append("/log", b"x")) == errno.ELOOP
    assert answer(lambda: tree.truncate("/log", 0)) == errno.ELOOP
    assert (base / "real").read_bytes() == b"before"


def test_append_makes_no_file(base: Path) -> None:
    assert answer(lambda: Tree(str(base)).append("/log", b"x")) == errno.ENOENT
    assert os.listdir(base) == []


def test_a_lock_is_never_made_through_a_link(base: Path) -> None:
    (base / "lock").symlink_to("/nowhere")
    with pytest.raises(OSError) as raised:
        os.close(Tree(str(base)).lock_file("/lock"))
    assert raised.value.errno == errno.ELOOP
    assert os.listdir(base) == ["lock"]


def test_a_kernel_file_is_never_created(base: Path) -> None:
    (base / "proc/sys/vm").mkdir(parents=True)
    tree = Tree(str(base))
    assert answer(lambda: tree.write("/proc/sys/vm/nothing", b"1\n")) == errno.ENOENT
    assert os.listdir(base / "proc/sys/vm") == []


def test_a_kernel_file_is_written_in_one_piece_and_through_links_inside(base: Path, tmp_path: Path) -> None:
    (base / "sys/real").mkdir(parents=True)
    (base / "sys/real/knob").write_bytes(b"0\n")
    (base / "sys/link").symlink_to("real")
    (base / "sys/out").symlink_to(f"{tmp_path}/canary")
    tree = Tree(str(base))
    tree.write("/sys/link/knob", b"7\n")
    assert (base / "sys/real/knob").read_bytes() == b"7\n"
    assert answer(lambda: tree.write("/sys/out/f", b"7\n")) == errno.ENOENT
    assert untouched(tmp_path)


def test_unlink_and_rmdir_take_the_link_and_not_what_it_points_to(base: Path) -> None:
    (base / "real").write_bytes(b"x")
    (base / "link").symlink_to("real")
    (base / "d").mkdir()
    (base / "dirlink").symlink_to("d")
    tree = Tree(str(base))
    tree.unlink("/link")
    assert answer(lambda: tree.rmdir("/dirlink")) == errno.ENOTDIR
    assert sorted(os.listdir(base)) == ["d", "dirlink", "real"]


# random trees

NAMES = ("a", "b", "c", "f")
PARTS = st.lists(st.sampled_from([*NAMES, ".."]), min_size=1, max_size=4)
TARGETS = st.tuples(st.booleans(), PARTS).map(lambda t: ("/" if t[0] else "") + "/".join(t[1]))
PLACES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
NODES = st.lists(st.tuples(PLACES, st.sampled_from(["file", "dir", "link"]), TARGETS), max_size=10)
PATHS = st.lists(PARTS.map(lambda parts: "/" + "/".join(parts)), min_size=1, max_size=4)
Nodes = list[tuple[str, str, str]]


def lay(root: Path, nodes: Nodes) -> None:
    """Makes a tree; a node whose place is taken or lies below something that is no directory is left out."""
    for place, kind, target in nodes:
        path = root / place
        above = [root.joinpath(*path.relative_to(root).parts[:n]) for n in range(1, len(Path(place).parts))]
        if os.path.lexists(path) or any(os.path.lexists(p) and (p.is_symlink() or not p.is_dir()) for p in above):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_bytes(place.encode())
        elif kind == "dir":
            path.mkdir()
        else:
            path.symlink_to(target)


@settings(max_examples=250, deadline=None)
@given(NODES, PATHS)
@example([("a", "link", "/../b"), ("b/f", "file", "a")], ["/a/f", "/a/../f"])
def test_every_read_answers_as_the_kernel_does_inside_the_root(nodes: Nodes, paths: list[str]) -> None:
    """The reference is openat2(2) with RESOLVE_IN_ROOT: content or errno, the same."""
    with tempfile.TemporaryDirectory() as folder:
        outside(Path(folder))
        root = Path(folder, "root")
        root.mkdir()
        lay(root, nodes)
        tree = Tree(str(root))
        for path in paths:
            right = kernel_or_skip(root, path)
            assert answer(lambda path=path: tree.read(path)) == right  # type: ignore[misc]


@settings(max_examples=150, deadline=None)
@given(NODES, PATHS)
@example([("a", "link", "../../a"), ("f", "link", "../f")], ["/a/f", "/f", "/a/../../f"])
def test_no_write_ever_leaves_the_root(nodes: Nodes, paths: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outside(Path(folder))
        root = Path(folder, "root")
        root.mkdir()
        lay(root, nodes)
        tree = Tree(str(root))
        for path in paths:
            calls: list[Callable[[str], object]] = [
                lambda p: tree.put(p, b"ours", 0o644),
                lambda p: tree.write(p, b"ours"),
                lambda p: tree.append(p, b"ours"),
                lambda p: tree.truncate(p, 1),
                lambda p: tree.mkdir(f"{p}/new"),
                lambda p: os.close(tree.lock_file(f"{p}/lock")),
                lambda p: tree.rmdir(f"{p}/new"),
                tree.unlink,
                tree.rmdir,
            ]
            for call in calls:
                try:
                    call(path)
                except OSError as error:
                    assert error.errno in (
                        errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY,
                        errno.EINVAL, errno.EBUSY, errno.EPERM,
                    )  # fmt: skip
        assert untouched(Path(folder))
