"""Faults that change what a host has: their parts, what is wrong with them, and laying them over a copy in use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from errno import EACCES, EBUSY, EIO, EPERM
from pathlib import Path

import pytest

from tests.conftest import HOSTS, Result, tree
from tuner.errors import Exit, TunerError
from tuner.host import RecordedHost, Unrecorded, manifest
from tuner.host.manifest import Entry
from tuner.sim import faults, store

KERNEL = """\
rules:
  /sys/dev/*/level: {is: word, words: [auto, high]}
faults:
  lost:
    about: "b fell off the bus"
    remove: [/sys/dev/b, /sys/class/b]
  all-lost:
    about: none is left
    remove: [/sys/dev/*, /sys/class/?, /run/x]
  reset:
    about: levels cannot be read
    errno: {/sys/dev/*/level: EPERM}
  io:
    errno: {/sys/dev/a/serial: EIO}
  warm:
    about: a is warm and tells more
    set: {/sys/dev/a/temp: "90\\n", /sys/dev/a/hot/spot: "95\\n", /sys/class/d: "x\\n"}
  deaf:
    about: level refuses
    rules: {/sys/dev/a/level: {is: refuse, errno: EBUSY}}
  third:
    about: c is there
    overlay: true
  everything:
    about: all at once
    overlay: true
    remove: [/sys/dev/b]
    set: {/sys/dev/a/level: "high\\n"}
    errno: {/sys/dev/c/level: EIO}
    rules: {/sys/dev/a/level: {is: ignore}}
  reloaded:
    about: the driver of b was loaded again
    set: {/sys/dev/b/serial: "new\\n"}
    anew: [/sys/dev/b, "/.tuner-host/state/b-*", /sys/dev/nowhere]
"""
THIRD = {
    "/sys/dev/c/level": Entry("file", 0o644, b"high\n"),
    "/sys/class/c": Entry("link", 0o777, b"../dev/c"),
    "/sys/dev/a/temp": Entry("file", 0o400, b"20\n"),
    "/sys/dev/b/serial": Entry("absent"),
}


def entries(kernel: str = KERNEL) -> dict[str, Entry]:
    """Two devices and a listing of each directory but /sys/dev/a."""
    found = {
        "/.tuner-host/host.yaml": Entry("file", 0o644, b"name: x\nkernel: 6.8.0\nsummary: two devices\n"),
        "/.tuner-host/kernel.yaml": Entry("file", 0o644, kernel.encode()),
        "/sys/dev": Entry("dir", 0o755, names=("a", "b", "unread")),
        "/sys/dev/b": Entry("dir", 0o755, names=("level", "serial")),
        "/sys/class": Entry("dir", 0o755, names=("a", "b")),
        "/sys/dev/a/temp": Entry("file", 0o444, b"40\n"),
        "/run/x": Entry("file", 0o644, b"x"),
    }
    for name in "ab":
        found[f"/sys/dev/{name}/level"] = Entry("file", 0o644, b"auto\n")
        found[f"/sys/dev/{name}/serial"] = Entry("file", 0o400, name.encode())
        found[f"/sys/class/{name}"] = Entry("link", 0o777, f"../dev/{name}".encode())
    for name in ("third", "everything"):
        found[f"/.tuner-host/overlays/{name}"] = Entry("file", 0o644, manifest.render(THIRD).encode())
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "x.host"
    path.write_text(manifest.render(entries()), encoding="utf-8")
    return path


@pytest.fixture
def copy(source: Path, tmp_path: Path) -> Callable[..., RecordedHost]:
    """copy(*faults) -> a host with them, below tmp_path/copy."""

    def make(*names: str) -> RecordedHost:
        store.copy(source, str(tmp_path / "copy"), list(names))
        return RecordedHost(str(tmp_path / "copy"))

    return make


def failure(call: Callable[[], object]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or -1
    return 0


# --- what each part does ------------------------------------------------------------------------------------------


def test_a_copy_without_faults_keeps_the_manifest_to_the_byte(
    copy: Callable[..., RecordedHost], source: Path, tmp_path: Path
) -> None:
    assert copy().list("/sys/dev") == ["a", "b", "unread"]
    mark = tmp_path / "copy/.tuner-host"
    assert (mark / "manifest").read_bytes() == source.read_bytes()
    assert sorted(path.name for path in mark.iterdir()) == ["host.yaml", "kernel.yaml", "manifest", "overlays"]


def test_what_is_removed_is_not_there_and_in_no_listing(copy: Callable[..., RecordedHost]) -> None:
    host = copy("lost")
    assert host.list("/sys/dev") == ["a", "unread"]
    assert host.list("/sys/class") == ["a"]
    for path in ("/sys/dev/b", "/sys/dev/b/level", "/sys/dev/b/new", "/sys/class/b", "/sys/class/b/level"):
        assert not host.exists(path), path
    assert host.text("/sys/dev/a/level") == "auto\n"


def test_a_pattern_removes_all_that_match(copy: Callable[..., RecordedHost]) -> None:
    host = copy("all-lost")
    assert host.list("/sys/dev") == ["unread"], "never recorded, so it cannot be known to go"
    assert host.list("/sys/class") == []
    assert host.manifest.entries["/sys/dev/b"] == Entry("absent")
    assert not [path for path in host.manifest.entries if path.startswith("/sys/dev/b/")]
    with pytest.raises(Unrecorded):
        host.text("/sys/dev/unread")


def test_an_errno_stands_in_the_place_of_a_file(copy: Callable[..., RecordedHost]) -> None:
    host = copy("reset")
    for name in "ab":
        assert failure(lambda name=name: host.text(f"/sys/dev/{name}/level")) == EPERM  # type: ignore[misc]
        assert failure(lambda name=name: host.write(f"/sys/dev/{name}/level", "high")) == EPERM  # type: ignore[misc]
    assert host.list("/sys/dev/b") == ["level", "serial"]
    assert host.text("/sys/dev/a/temp") == "40\n"


def test_set_keeps_the_mode_of_a_file_and_makes_new_ones(copy: Callable[..., RecordedHost]) -> None:
    host = copy("warm")
    assert host.text("/sys/dev/a/temp") == "90\n"
    assert host.stat("/sys/dev/a/temp").st_mode & 0o777 == 0o444
    assert host.text("/sys/dev/a/hot/spot") == "95\n"
    assert host.stat("/sys/dev/a/hot/spot").st_mode & 0o777 == 0o644
    assert host.list("/sys/class") == ["a", "b", "d"]


def test_rules_of_a_fault_hold_without_any_other_change(
    copy: Callable[..., RecordedHost], source: Path, tmp_path: Path
) -> None:
    host = copy("deaf")
    assert failure(lambda: host.write("/sys/dev/a/level", "high")) == EBUSY
    assert failure(lambda: host.write("/sys/dev/b/level", "high")) == 0
    assert (tmp_path / "copy/.tuner-host/manifest").read_bytes() == source.read_bytes()


def test_an_overlay_adds_replaces_and_takes_away(copy: Callable[..., RecordedHost]) -> None:
    host = copy("third")
    assert host.list("/sys/dev") == ["a", "b", "c", "unread"]
    assert host.list("/sys/class") == ["a", "b", "c"]
    assert host.text("/sys/class/c/level") == "high\n"
    assert host.stat("/sys/dev/a/temp").st_mode & 0o777 == 0o400
    assert host.list("/sys/dev/b") == ["level"]
    assert not host.exists("/sys/dev/b/serial")


def test_the_parts_are_laid_in_their_order(copy: Callable[..., RecordedHost]) -> None:
    host = copy("everything")
    assert host.list("/sys/dev") == ["a", "c", "unread"]
    assert host.text("/sys/dev/a/level") == "high\n"
    assert failure(lambda: host.text("/sys/dev/c/level")) == EIO
    assert failure(lambda: host.write("/sys/dev/a/level", "auto")) == 0
    assert host.text("/sys/dev/a/level") == "high\n"


def test_a_later_fault_lies_over_an_earlier_one(copy: Callable[..., RecordedHost]) -> None:
    host = copy("lost", "reset")
    assert not host.exists("/sys/dev/b/level"), "what is gone has no errno either"
    assert failure(lambda: host.text("/sys/dev/a/level")) == EPERM


def test_what_comes_back_in_a_place_that_was_taken_away_is_there() -> None:
    """Entries below a path that an earlier fault took away make that path a directory again."""
    gone = faults.merge(entries(), {"/sys/dev/b": Entry("absent")})
    assert gone["/sys/dev"].names == ("a", "unread")
    back = faults.merge(gone, {"/sys/dev/b/level": Entry("file", 0o644, b"new\n")})
    assert back["/sys/dev"].names == ("a", "b", "unread")
    assert "/sys/dev/b" not in back
    assert back["/sys/dev/b/level"].data == b"new\n"


def test_a_listing_of_the_overlay_that_names_what_it_takes_away_makes_it_unrecorded() -> None:
    listing = Entry("dir", 0o755, names=("a", "b"))
    merged = faults.merge(entries(), {"/sys/dev/b": Entry("absent"), "/sys/dev": listing})
    assert merged["/sys/dev"].names == ("a", "b")
    assert not [path for path in merged if path.startswith("/sys/dev/b")]


# --- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("{abuot: x}", "unknown abuot"),
        ("{1: x}", "unknown 1"),
        ("{remove: /sys/dev/b}", "remove is not a list"),
        ("{remove: null}", "remove is not a list"),
        ("{set: [/sys/dev/b]}", "set is not a mapping"),
        ("{errno: EIO}", "errno is not a mapping"),
        ("{remove: [sys/dev/b]}", "sys/dev/b"),
        ("{remove: [/]}", "not an absolute, plain path"),
        ("{remove: [/sys/../etc]}", "/sys/../etc"),
        ("{remove: [//sys]}", "//sys"),
        ("{remove: [5]}", "5"),
        ("{set: {/sys/dev/../../x: y}}", "/sys/dev/../../x"),
        ("{set: {/sys/dev/a/temp: 5}}", "not a text"),
        ("{errno: {/sys/dev/a/temp: EWHAT}}", "EWHAT"),
        ("{errno: {/sys/dev/a/temp: 5}}", "no such errno"),
        ("{anew: /sys/dev/b}", "anew is not a list"),
        ("{anew: [/sys/../etc]}", "/sys/../etc"),
        ("{overlay: yes please}", "overlay is not true"),
        ("{overlay: false}", "overlay is not true"),
    ],
)
def test_a_wrong_part_is_bad_input_with_the_file_and_a_hint(tmp_path: Path, fault: str, said: str) -> None:
    path = tmp_path / "x.host"
    path.write_text(manifest.render(entries(f"faults:\n  odd: {fault}\n")), encoding="utf-8")
    with pytest.raises(TunerError) as raised:
        store.copy(path, str(tmp_path / "copy"), [])
    (problem,) = raised.value.problems
    assert raised.value.code == Exit.BAD_INPUT
    assert problem.where == f"{path} fault odd"
    assert said in problem.what
    assert "remove: [PATH]" in problem.hint
    assert not (tmp_path / "copy").exists()


def test_a_copy_with_a_wrong_fault_does_not_run(copy: Callable[..., RecordedHost], tmp_path: Path) -> None:
    copy()
    (tmp_path / "copy/.tuner-host/kernel.yaml").write_text("faults:\n  odd: {abuot: x}\n")
    with pytest.raises(TunerError, match="abuot"):
        RecordedHost(str(tmp_path / "copy")).ready()


@pytest.mark.parametrize(("text", "said"), [(None, "is missing"), (b"no manifest", "not a recorded host")])
def test_an_overlay_must_be_there_and_whole(tmp_path: Path, text: bytes | None, said: str) -> None:
    found = entries()
    path = "/.tuner-host/overlays/third"
    found.pop(path)
    if text:
        found[path] = Entry("file", 0o644, text)
    (tmp_path / "x.host").write_text(manifest.render(found), encoding="utf-8")
    with pytest.raises(TunerError, match=said) as raised:
        store.copy(tmp_path / "x.host", str(tmp_path / "copy"), ["third"])
    assert f"{tmp_path}/x.host" in raised.value.problems[0].where


def test_an_overlay_cannot_write_outside_the_tree(tmp_path: Path) -> None:
    """A link and a file below it, from two places."""
    found = entries()
    below = {"/sys/class/a/evil": Entry("file", 0o644, b"x")}
    found["/.tuner-host/overlays/third"] = Entry("file", 0o644, manifest.render(below).encode())
    found["/sys/class/a"] = Entry("link", 0o777, str(tmp_path).encode())
    (tmp_path / "x.host").write_text(manifest.render(found), encoding="utf-8")
    with pytest.raises(TunerError, match="lies below"):
        store.copy(tmp_path / "x.host", str(tmp_path / "copy"), ["third"])
    assert not (tmp_path / "evil").exists()


# --- a copy in use ------------------------------------------------------------------------------------------------


def test_a_copy_that_breaks_is_the_copy_that_was_made_broken(
    copy: Callable[..., RecordedHost], source: Path, tmp_path: Path
) -> None:
    copy()
    for number, name in enumerate(("lost", "all-lost", "reset", "warm", "deaf", "third", "everything", "reloaded")):
        broken, made = tmp_path / f"b{number}", tmp_path / f"m{number}"
        shutil.copytree(tmp_path / "copy", broken, symlinks=True)
        store.break_copy(str(broken), name)
        store.copy(source, str(made), [name])
        assert tree(broken) == tree(made), name


def test_breaking_leaves_what_was_written_meanwhile(copy: Callable[..., RecordedHost], tmp_path: Path) -> None:
    copy().write("/sys/dev/a/level", "high")
    (tmp_path / "copy/sys/dev/a/mine").write_text("mine")
    store.break_copy(str(tmp_path / "copy"), "lost")
    host = RecordedHost(str(tmp_path / "copy"))
    assert host.text("/sys/dev/a/level") == "high\n"
    assert host.text("/sys/dev/a/mine") == "mine"
    assert not host.exists("/sys/dev/b/level")


def test_a_second_fault_comes_on_top_and_mending_takes_away_both(
    copy: Callable[..., RecordedHost], tmp_path: Path
) -> None:
    copy()
    root = tmp_path / "copy"
    before = tree(root)
    store.break_copy(str(root), "lost")
    store.break_copy(str(root), "reset", "third")
    host = RecordedHost(str(root))
    assert host.list("/sys/dev") == ["a", "c", "unread"]
    assert failure(lambda: host.text("/sys/dev/a/level")) == EPERM
    store.mend_copy(str(root))
    assert tree(root) == before


def test_mending_brings_back_a_device_as_it_was_recorded(copy: Callable[..., RecordedHost], tmp_path: Path) -> None:
    """As a device comes back from a reset; what was written elsewhere stays."""
    host = copy()
    host.write("/sys/dev/a/level", "high")
    host.write("/sys/dev/b/level", "high")
    store.break_copy(str(tmp_path / "copy"), "lost")
    store.mend_copy(str(tmp_path / "copy"))
    again = RecordedHost(str(tmp_path / "copy"))
    assert [again.text(f"/sys/dev/{name}/level") for name in "ab"] == ["high\n", "auto\n"]
    assert failure(lambda: again.write("/sys/dev/b/serial", "x")) == EACCES


def test_what_is_made_anew_is_as_recorded_in_another_directory(
    copy: Callable[..., RecordedHost], tmp_path: Path
) -> None:
    """As a driver that is loaded again forgets what was set and staged; what lies elsewhere stays, inode and all."""
    host, root = copy(), tmp_path / "copy"
    state = root / ".tuner-host/state"
    state.mkdir()
    for name in ("b-lock", "a-lock"):
        (state / name).write_text("held")
    for name in "ab":
        host.write(f"/sys/dev/{name}/level", "high")
    (root / "sys/dev/b/mine").write_text("mine")
    before = {name: (root / "sys/dev" / name).stat().st_ino for name in "ab"}
    store.break_copy(str(root), "reloaded")
    again = RecordedHost(str(root))
    assert [again.text(f"/sys/dev/{name}/level") for name in "ab"] == ["high\n", "auto\n"]
    assert again.text("/sys/dev/b/serial") == "new\n"
    assert again.list("/sys/dev/b") == ["level", "serial"]
    assert not (root / "sys/dev/b/mine").exists()
    assert [name for name in "ab" if (root / "sys/dev" / name).stat().st_ino == before[name]] == ["a"]
    assert sorted(path.name for path in state.iterdir()) == ["a-lock"]
    assert not (root / ".tuner-host/aside").exists()


def test_a_fault_that_lies_already_makes_nothing_anew(copy: Callable[..., RecordedHost], tmp_path: Path) -> None:
    """A second fault on top of it, and mending, leave what was written since."""
    root = tmp_path / "copy"
    copy("reloaded").write("/sys/dev/b/level", "high")
    inode = (root / "sys/dev/b").stat().st_ino
    store.break_copy(str(root), "warm")
    store.mend_copy(str(root))
    again = RecordedHost(str(root))
    assert again.text("/sys/dev/b/level") == "high\n"
    assert again.text("/sys/dev/b/serial") == "b"
    assert (root / "sys/dev/b").stat().st_ino == inode


def test_a_copy_made_with_faults_can_be_mended(copy: Callable[..., RecordedHost], source: Path, tmp_path: Path) -> None:
    copy("lost", "deaf")
    store.mend_copy(str(tmp_path / "copy"))
    store.copy(source, str(tmp_path / "plain"), [])
    assert tree(tmp_path / "copy") == tree(tmp_path / "plain")


def test_an_unknown_fault_changes_nothing(copy: Callable[..., RecordedHost], tmp_path: Path) -> None:
    copy()
    before = tree(tmp_path / "copy")
    with pytest.raises(TunerError, match="no such fault"):
        store.break_copy(str(tmp_path / "copy"), "moon-phase")
    assert tree(tmp_path / "copy") == before


@pytest.mark.parametrize("fault", ["lost", "reloaded"])
def test_breaking_never_follows_a_link_out_of_the_tree(
    copy: Callable[..., RecordedHost], tmp_path: Path, fault: str
) -> None:
    """Neither where something goes nor where it is made anew."""
    copy()
    outside = tmp_path / "outside"
    (outside / "b").mkdir(parents=True)
    (outside / "b/level").write_text("precious")
    shutil.rmtree(tmp_path / "copy/sys/dev")
    (tmp_path / "copy/sys/dev").symlink_to(outside)
    with pytest.raises(TunerError, match="below a link"):
        store.break_copy(str(tmp_path / "copy"), fault)
    assert (outside / "b/level").read_text() == "precious"


def test_host_list_tells_what_each_fault_is(tuner: Callable[..., Result]) -> None:
    hosts = {host["name"]: host["faults"] for host in tuner("host", "list", "--json").document["hosts"]}
    assert list(hosts["mi300x-cx7"]) == ["gpu-lost", "gpu-in-reset", "vf", "cpx", "ast-absent", "old-ifwi"]
    assert "63 of 64" in hosts["mi300x-cx7"]["cpx"]
    assert set(store.about(HOSTS / "mi300x-cx7.host")[1]) == set(hosts["mi300x-cx7"])
