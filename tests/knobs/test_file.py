"""file: whole files of ours, given back as they were; links are never written through."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, tree, unavailable, write_profile
from tuner.errors import BadValue, Refused
from tuner.host import open_host
from tuner.knobs.file import File
from tuner.model import Seen, Unreadable

Tuner = Callable[..., Result]
Verb = Callable[..., Result]
KNOB = File()
HERE = "/etc/modprobe.d/ours.conf"


@pytest.fixture
def verb(tuner: Tuner, tmp_path: Path, root: Path) -> Verb:
    """verb("apply", PATH, WANT, *OPTIONS) -> the result under a profile of one line."""

    def call(name: str, path: str, want: str, *options: str) -> Result:
        profile = write_profile(tmp_path / "p.yaml", f"file:\n  {path}: {want}")
        return tuner(name, "--root", root, "--json", "--profile", profile, *options)

    return call


def at(root: Path, path: str = HERE) -> Path:
    """Where a path of the host lies here."""
    return Path(f"{root}{path}")


# Links and devices


@pytest.mark.parametrize("target", ["/etc/hostname", "hostname", "/nowhere", "../../../../../etc/passwd"])
def test_a_link_in_its_place_is_left_alone(root: Path, verb: Verb, target: str) -> None:
    """It is not read as the file, not replaced and not written through, wherever it points."""
    at(root).symlink_to(target)
    before = tree(root)
    plan = verb("plan", HERE, '"x"')
    assert (plan.code, plan.document["verdicts"][0]["state"], plan.document["changes"]) == (12, "unknown", [])
    assert "link" in plan.document["verdicts"][0]["state_why"]
    assert verb("apply", HERE, '"x"').code == 12
    now = tree(root)
    assert {path: now.get(path) for path in before} == before


def test_a_link_that_appears_before_the_write_is_refused(root: Path) -> None:
    """Between the reading and the write somebody puts a link there: nothing goes through it."""
    victim = at(root, "/etc/hostname").read_bytes()
    at(root).symlink_to("/etc/hostname")
    with pytest.raises(Refused, match="link"):
        KNOB.write(open_host(str(root)), HERE, {"text": "x\n"})
    assert at(root).is_symlink()
    assert at(root, "/etc/hostname").read_bytes() == victim
    assert sorted(os.listdir(at(root).parent)) == ["ours.conf"]


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_file_is_left_alone(root: Path, verb: Verb, kind: str) -> None:
    """A directory or a pipe in its place is unknown, and no reader hangs on it."""
    (at(root).mkdir if kind == "directory" else lambda: os.mkfifo(at(root)))()
    assert isinstance(KNOB.read(open_host(str(root)), HERE), Unreadable)
    assert verb("plan", HERE, '"x"').code == 12


def test_a_directory_link_ends_inside_the_root(root: Path, tuner: Tuner, verb: Verb) -> None:
    """/etc/ours -> /etc/modprobe.d means the host's own modprobe.d."""
    at(root, "/etc/modprobe.d/linked").symlink_to("/etc/modprobe.d")
    before = tree(root)
    assert verb("apply", "/etc/modprobe.d/linked/ours.conf", '"x"').code == 0
    assert at(root).read_text() == "x"
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


# Directories


def test_made_directories_go_again(root: Path, tuner: Tuner, verb: Verb) -> None:
    """Two levels are made with mode 0755 and removed on undo; the directory that was there stays."""
    before = tree(root)
    assert verb("apply", "/etc/modprobe.d/a/b/ours.conf", '"x"').code == 0
    assert [at(root, f"/etc/modprobe.d/{name}").stat().st_mode & 0o7777 for name in ("a", "a/b")] == [0o755, 0o755]
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before
    assert at(root).parent.is_dir()


def test_two_files_in_one_made_directory(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """The directory is made for the first and goes with the last; everything counts as restored."""
    before = tree(root)
    text = "file:\n  /etc/modprobe.d/made/one.conf: one\n  /etc/modprobe.d/made/two.conf: two"
    assert tuner("apply", "--root", root, "--profile", write_profile(tmp_path / "p.yaml", text)).code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_an_empty_directory_that_was_there_stays(root: Path, tuner: Tuner, verb: Verb) -> None:
    """Only directories that tuner made are removed."""
    at(root, "/etc/modprobe.d/empty").mkdir(mode=0o700)
    before = tree(root)
    assert verb("apply", "/etc/modprobe.d/empty/ours.conf", '"x"').code == 0
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_a_made_directory_that_somebody_uses_now_stays(root: Path, tuner: Tuner, verb: Verb) -> None:
    """Our file goes, theirs is untouched."""
    verb("apply", "/etc/modprobe.d/made/ours.conf", '"x"')
    at(root, "/etc/modprobe.d/made/theirs.conf").write_text("theirs\n")
    tuner("rollback", "--root", root)
    assert os.listdir(at(root, "/etc/modprobe.d/made")) == ["theirs.conf"]


# Mode, owner, content


@pytest.mark.parametrize(("want", "mode"), [('"x"', 0o600), ('{value: {text: x, mode: "0640"}}', 0o640)])
def test_an_existing_file_keeps_its_mode(root: Path, tuner: Tuner, verb: Verb, want: str, mode: int) -> None:
    """Unless the profile names one; undo gives the old one back."""
    at(root).write_text("secret\n")
    at(root).chmod(0o600)
    before = tree(root)
    assert verb("apply", HERE, want).code == 0
    assert (at(root).read_text(), at(root).stat().st_mode & 0o7777) == ("x", mode)
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_a_new_file_is_readable_for_all(root: Path, verb: Verb) -> None:
    """0644 whatever the umask."""
    former = os.umask(0o077)
    try:
        assert verb("apply", HERE, '"x"').code == 0
    finally:
        os.umask(former)
    assert at(root).stat().st_mode & 0o7777 == 0o644


def test_an_existing_file_keeps_its_owner(root: Path, tuner: Tuner, verb: Verb) -> None:
    """Replaced, removed and given back: it belongs to whom it belonged."""
    if os.geteuid() != 0:
        unavailable("giving a file to somebody else takes root")
    for want in ('"x"', "null"):
        at(root).write_text("theirs\n")
        os.chown(at(root), 1234, 5678)
        assert verb("apply", HERE, want).code == 0
        if want != "null":
            assert (at(root).stat().st_uid, at(root).stat().st_gid) == (1234, 5678)
        assert tuner("rollback", "--root", root).code == 0
        assert (at(root).stat().st_uid, at(root).stat().st_gid) == (1234, 5678)
        assert at(root).read_text() == "theirs\n"


def test_a_changed_mode_is_drift_only_where_it_is_wanted(root: Path, tuner: Tuner, verb: Verb) -> None:
    """A Want names fields; the others are nobody's business."""
    for want, code in (('"x"', 0), ('{value: {text: x, mode: "0644"}}', 10)):
        assert verb("apply", HERE, want).code == 0
        at(root).chmod(0o600)
        assert tuner("verify", "--root", root).code == code


@pytest.mark.parametrize("content", [b"", b"a\nb", b"\xff\xfe caf\xe9\n", b"a\0b\r\n", b"options x y=1\n" * 1000])
def test_content_comes_back_byte_for_byte(root: Path, tuner: Tuner, verb: Verb, content: bytes) -> None:
    """Empty, without a last newline, not UTF-8, with null bytes, long; replaced or removed."""
    at(root).write_bytes(content)
    before = tree(root)
    for want in ('"ours\\n"', "null"):
        assert verb("apply", HERE, want).code == 0
        assert tuner("rollback", "--root", root).code == 0
        assert tree(root) == before


def test_null_means_no_file(root: Path, verb: Verb) -> None:
    """A file that is not there is as wanted; an empty one is not."""
    assert verb("plan", HERE, "null").document["verdicts"][0]["state"] == "ok"
    assert verb("plan", HERE, '""').document["verdicts"][0]["state"] == "drift"
    at(root).write_bytes(b"")
    assert verb("plan", HERE, "null").document["verdicts"][0]["state"] == "drift"
    assert verb("plan", HERE, '""').document["verdicts"][0]["state"] == "ok"


def test_a_file_too_large_to_keep_is_not_touched(root: Path, verb: Verb) -> None:
    """Over 1 MiB it could not be journalled for undo: unknown, left as it is."""
    at(root).write_bytes(b"x" * (1024 * 1024 + 1))
    plan = verb("plan", HERE, '"x"')
    assert (plan.code, plan.document["verdicts"][0]["state"]) == (12, "unknown")
    verb("apply", HERE, '"x"')
    assert at(root).stat().st_size == 1024 * 1024 + 1


def test_what_a_crash_left_beside_the_file_is_removed(root: Path) -> None:
    """The new file of a replacement that was never renamed."""
    at(root).write_text("old\n")
    at(root, f"{HERE}.tuner-new").write_text("ha")
    host = open_host(str(root))
    KNOB.settle(host, HERE)
    assert sorted(os.listdir(at(root).parent)) == ["ours.conf"]
    found = KNOB.read(host, HERE)
    assert isinstance(found, Seen)
    assert at(root).read_text() == "old\n"


# Paths and fields


@pytest.mark.parametrize(
    "path",
    [
        "etc/modprobe.d/x.conf", "./x", "", "/", "/etc/../etc/passwd", "/etc//passwd", "/etc/modprobe.d/", "/etc/./x",
        "/proc/sys/vm/swappiness", "/proc", "/sys/kernel/mm/x", "/sys", "/dev/null", "/dev", "/etc/x\0y",
        "/var/lib/tuner", "/var/lib/tuner/generations/000001.jsonl", "/run/tuner/lock",
        "/etc/tuner/applied/current.json", "/etc/x.conf.tuner-new",
    ],
)  # fmt: skip
def test_refused_paths(path: str) -> None:
    """Relative, not plain, kernel files, devices, tuner's own state and its scratch names."""
    with pytest.raises(BadValue) as error:
        KNOB.canonical(path)
    assert error.value.hint


@pytest.mark.parametrize("path", ["/etc/a b.conf", "/etc/..x", "/etc/x..", "/procfs/x", "/etc/tuner/applied2"])
def test_allowed_paths(path: str) -> None:
    """What only looks like one of those."""
    assert KNOB.canonical(path) == path


@pytest.mark.parametrize(
    "raw",
    [
        {"text": "x", "mode": "0666"}, {"text": "x", "mode": "0620"}, {"text": "x", "mode": "4755"},
        {"text": "x", "mode": "0888"}, {"text": "x", "mode": "rw"}, {"text": "x", "mode": "-644"},
        {"text": "x", "owner": "root"}, {"text": "x", "owner": "0"}, {"text": "x", "owner": "0:"},
        {"text": "x", "owner": "-1:0"}, {"text": "x", "group": "0"}, {"mode": "0644"}, {}, ["x"],
        {"text": ["x"]}, {"text": "x", "below": "/"},
    ],
)  # fmt: skip
def test_refused_records(raw: object) -> None:
    """Writable by others, set-uid, names instead of numbers, unknown fields, no text."""
    with pytest.raises(BadValue):
        KNOB.parse(HERE, raw)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path", ["/etc/default/grub", "/etc/default/grub.d/tuner.cfg", "/boot/x", "/etc/initramfs-tools/modules"]
)
def test_files_of_the_boot_path_need_the_class_boot(root: Path, verb: Verb, path: str) -> None:
    """Held without --allow boot: exit 14, nothing written."""
    assert KNOB.disruption(path) == "boot"
    assert KNOB.disruption(HERE) == "none"
    before = tree(root)
    plan = verb("plan", "/etc/default/grub", '"x"')
    assert (plan.code, plan.document["verdicts"][0]["state"]) == (14, "held")
    verb("apply", "/etc/default/grub", '"x"')
    assert {p: i for p, i in tree(root).items() if p in before} == before
    assert verb("plan", "/etc/default/grub", '"x"', "--allow", "boot").document["verdicts"][0]["state"] == "drift"
