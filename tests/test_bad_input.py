"""Bad input at the command line: exit 64, one line and a hint for each error, nothing written, never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import crash_child
from tests.conftest import HOSTS, tree, unavailable, write_profile
from tuner.sim import store

Tuner = Callable[..., Any]
CHECKOUT = Path(__file__).parents[1]
GOOD = "sysctl: {vm.swappiness: 1}"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "good.yaml", GOOD)


@pytest.fixture
def bad(root: Path, tuner: Tuner) -> Callable[..., str]:
    """bad(*words) -> stderr of a command that must end with 64, a hint for every error, and an untouched tree."""

    def run(*words: object) -> str:
        before = tree(root)
        result = tuner(*words)
        assert result.code == 64, result.out + result.err
        lines = result.err.splitlines()
        assert lines
        assert all(line.startswith("tuner: ") for line in lines[::2])
        assert all(line.startswith("  hint: ") for line in lines[1::2])
        assert len(lines) % 2 == 0
        assert not (root / "var/lib/tuner").exists()
        assert tree(root) == before
        return str(result.err)

    return run


# usage


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["aply"],
        ["plan"],
        ["apply"],
        ["plan", "--profile"],
        ["plan", "--profil", "linux-gpu"],
        ["plan", "--nonsense", "--profile", "linux-gpu"],
        ["apply", "--profile", "linux-gpu", "--on-error", "ignore"],
        ["apply", "--profile", "linux-gpu", "--allow", "everything"],
        ["apply", "--profile", "linux-gpu", "--allow", ""],
        ["apply", "--profile", "linux-gpu", "extra"],
        ["rollback", "--to", "x"],
        ["host"],
        ["host", "destroy"],
        ["host", "copy", "plain-vm"],
        ["off"],
        ["explain"],
        ["history", "x"],
    ],
)
def test_usage(words: list[str], bad: Callable[..., str], root: Path) -> None:
    rooted = ["--root", root] if words and words[0] in ("plan", "apply", "rollback") else []
    bad(*words, *rooted)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["explain", "sysctll:vm.swappiness"], "known: "),
        (["explain", "sysctl:../x"], "not a kernel parameter"),
        (["history", "7"], "no such generation"),
        (["rollback"], "nothing to roll back"),
        (["rollback", "--to", "3"], "nothing to roll back"),
        (["verify"], "nothing applied yet"),
        (["plan", "--profile", "linux-gpuu"], "linux-gpu"),
    ],
)
def test_what_the_host_does_not_have(words: list[str], part: str, bad: Callable[..., str], root: Path) -> None:
    assert part in bad(*words, "--root", root)


def test_to_a_generation_that_is_not_live(root: Path, good: Path, tuner: Tuner) -> None:
    assert tuner("apply", "--root", root, "--profile", good).code == 0
    before = tree(root)
    for number in ("1", "2", "-1"):
        result = tuner("rollback", "--root", root, "--to", number)
        assert result.code == 64
        assert "hint:" in result.err
    assert tree(root) == before


@pytest.mark.parametrize("place", ["no/such/directory", "file"])
def test_root_that_is_none(place: str, tmp_path: Path, good: Path, bad: Callable[..., str]) -> None:
    (tmp_path / "file").write_text("x")
    assert place in bad("plan", "--root", tmp_path / place, "--profile", good)


def test_root_without_etc_is_no_host(tmp_path: Path, good: Path, bad: Callable[..., str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "etc/" in bad("apply", "--root", tmp_path / "empty", "--profile", good)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("host.yaml", b""),
        ("host.yaml", b"[x"),
        ("host.yaml", b"\xff"),
        ("manifest", b"nothing\n"),
        ("manifest", b"tuner-host 1\nfile 0644 ../x\n"),
        ("manifest", b"tuner-host 1\nwhat /x\n"),
        ("kernel.yaml", b"rules: [x\n"),
        ("kernel.yaml", b"rules: {/proc/x: {is: magic}}\n"),
        ("kernel.yaml", b"\xff"),
        ("faults", b"no-such-fault\n"),
    ],
)
def test_damaged_copy_is_found_before_the_first_write(
    file: str, text: bytes, root: Path, good: Path, bad: Callable[..., str]
) -> None:
    path = root / ".tuner-host" / file
    path.write_bytes(text)
    assert file in bad("apply", "--root", root, "--profile", good) or file == "faults"


def test_copy_into_what_is_not_empty(root: Path, bad: Callable[..., str], tmp_path: Path) -> None:
    assert "not empty" in bad("host", "copy", "plain-vm", root)
    (tmp_path / "file").write_text("x")
    assert "not a directory" in bad("host", "copy", "plain-vm", tmp_path / "file")
    assert "plain-vm" in bad("host", "copy", "no-such-host", tmp_path / "new")
    assert "hugepages-short" in bad("host", "copy", "plain-vm", tmp_path / "new", "--fault", "no-such-fault")


@pytest.mark.parametrize("verb", ["plan", "apply", "verify"])
def test_errors_as_json(verb: str, root: Path, tmp_path: Path, tuner: Tuner) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: x}\nthp: {enabled: y}")
    result = tuner(verb, "--root", root, "--profile", profile, "--json")
    assert result.code == 64
    assert result.document["schema"] == "tuner.error/1"
    assert result.document["exit"] == 64
    assert [error["where"] for error in result.document["errors"]] == [f"{profile}:4", f"{profile}:5"]
    assert all(error["what"] and error["hint"] for error in result.document["errors"])


def test_usage_errors_as_json(tuner: Tuner) -> None:
    result = tuner("plan", "--json")
    assert (result.code, result.document["schema"], result.document["exit"]) == (64, "tuner.error/1", 64)


# the file of the profile


def test_every_error_of_a_file_on_a_line_of_its_own(root: Path, tmp_path: Path, bad: Callable[..., str]) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl:\n  vm.swappiness: x\n  vm.dirty_bytes: 1\nthp: {enabled: y}")
    for verb in ("plan", "apply", "verify"):
        lines = bad(verb, "--root", root, "--profile", profile).splitlines()[::2]
        assert [line.split(": ")[1] for line in lines] == [f"{profile}:{n}" for n in (5, 6, 7)]


def test_errors_that_only_the_host_can_show_come_together(root: Path, tmp_path: Path, bad: Callable[..., str]) -> None:
    """A key that is in no table takes the shape it reads now."""
    profile = write_profile(
        tmp_path / "p.yaml",
        "sysctl:\n  kernel.core_pipe_limit: x y\n  kernel.core_uses_pid: z",
    )
    err = bad("apply", "--root", root, "--profile", profile)
    assert f"{profile}:5: " in err
    assert f"{profile}:6: " in err


def test_node_and_total_of_one_pool(root: Path, tmp_path: Path, bad: Callable[..., str]) -> None:
    profile = write_profile(tmp_path / "p.yaml", "hugepages: {node0/2MB: 1, total/2MB: 1}")
    assert "both per node and in total" in bad("apply", "--root", root, "--profile", profile)


def test_two_patterns_that_meet(root: Path, tmp_path: Path, bad: Callable[..., str]) -> None:
    profile = write_profile(tmp_path / "p.yaml", 'hugepages: {"node*/2MB": 1, "*/2MB": 2}')
    assert "is matched by */2MB and by node*/2MB" in bad("apply", "--root", root, "--profile", profile)


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "missing", "loop", "below a file", "device"])
def test_profile_that_is_no_file(kind: str, root: Path, tmp_path: Path, bad: Callable[..., str]) -> None:
    path = tmp_path / "p.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            former = Path.cwd()
            os.chdir(tmp_path)
            try:
                server.bind("p.yaml")
            finally:
                os.chdir(former)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "below a file":
        (tmp_path / "f").write_text("x")
        path = tmp_path / "f/p.yaml"
    elif kind == "device":
        path = Path("/dev/zero")
    assert str(path) in bad("apply", "--root", root, "--profile", path)


def test_huge_profile(root: Path, tmp_path: Path, bad: Callable[..., str]) -> None:
    path = tmp_path / "p.yaml"
    with path.open("wb") as file:
        file.truncate(3 * 1024**3)
    assert "larger than" in bad("apply", "--root", root, "--profile", path)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory directly in /tmp, which is root's, sticky and writable by all."""
    if os.geteuid() != 0:
        unavailable("only root distrusts files")
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="tuner-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_profile_in_the_sticky_tmp_is_believed(shared: Path, root: Path, tuner: Tuner) -> None:
    profile = write_profile(shared / "p.yaml", GOOD)
    assert tuner("plan", "--root", root, "--profile", profile).code == 10


@pytest.mark.parametrize(
    "what", ["file by others", "file by group", "file of another", "parent by others", "parent of another"]
)
def test_profile_that_others_can_change(what: str, shared: Path, root: Path, bad: Callable[..., str]) -> None:
    folder = shared / "folder"
    folder.mkdir(mode=0o755)
    profile = write_profile(folder / "p.yaml", GOOD)
    place = profile if what.startswith("file") else folder
    if what.endswith("others"):
        place.chmod(place.stat().st_mode | 0o002)
    elif what.endswith("group"):
        place.chmod(place.stat().st_mode | 0o020)
    else:
        os.chown(place, 65534, 65534)
    for verb in ("plan", "apply"):
        assert f"{place}: " in bad(verb, "--root", root, "--profile", profile)


def test_link_to_a_profile_in_a_place_that_others_can_change(shared: Path, root: Path, bad: Callable[..., str]) -> None:
    """Both the way to the link and the way to the file count."""
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    write_profile(shared / "open/p.yaml", GOOD)
    (shared / "link.yaml").symlink_to(shared / "open/p.yaml")
    assert "open" in bad("apply", "--root", root, "--profile", shared / "link.yaml")


def test_sticky_directory_of_another_user_is_not_believed(shared: Path, root: Path, bad: Callable[..., str]) -> None:
    folder = shared / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    os.chown(folder, 65534, 65534)
    write_profile(folder / "p.yaml", GOOD)
    bad("apply", "--root", root, "--profile", folder / "p.yaml")


def test_parent_profile_that_others_can_change(shared: Path, root: Path, bad: Callable[..., str]) -> None:
    """What a profile extends is trusted no more than itself."""
    base = write_profile(shared / "base.yaml", GOOD)
    base.chmod(0o666)
    child = shared / "child.yaml"
    child.write_text(f"name: c\nsummary: c\nextends: {base}\n")
    assert f"{base}: " in bad("apply", "--root", root, "--profile", child)


# rights


def test_live_apply_needs_root(shared: Path) -> None:
    """As nobody, on this machine: refused before anything is looked at. plan and verify do not need root."""
    profile = write_profile(shared / "p.yaml", GOOD)
    crash_child.load_all()
    log = shared / "log"

    def as_nobody(*words: str) -> Callable[[], int]:
        def work() -> int:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            return crash_child.command(list(words))

        return work

    for words in (["apply", "--profile", str(profile)], ["rollback"], ["off", "--why", "x"], ["on"]):
        assert crash_child.ended(crash_child.fork(as_nobody(*words), log)) == 64
        text = log.read_text()
        assert text.startswith("tuner: root is needed to write\n  hint: ")
        assert "Traceback" not in text
    assert crash_child.ended(crash_child.fork(as_nobody("plan", "--profile", str(profile)), log)) in (0, 10)


# pipes


@pytest.mark.parametrize("words", [["plan", "--all"], ["plan", "--json"], ["verify"]])
def test_closed_pipe_is_quiet(words: list[str], root: Path) -> None:
    """`tuner plan | head -0`: the reader is gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *words, "--root", str(root), "--profile", "linux-gpu"],
        cwd=CHECKOUT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 10


def test_closed_stdout_and_stderr(root: Path) -> None:
    """Started with no output at all (as from a broken unit): the exit code still tells."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m tuner plan --root "{root}" --profile linux-gpu >&- 2>&-', sys.executable],
        cwd=CHECKOUT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 10


def test_names_that_are_no_text(root: Path, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 in arguments come out escaped, not as a traceback."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tuner",
            "plan",
            "--root",
            str(root),
            "--profile",
            os.fsencode(tmp_path) + b"/\xff.yaml",
        ],
        cwd=CHECKOUT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 64
    assert b"Traceback" not in done.stderr
    assert b"hint:" in done.stderr


# images


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image's root beside a directory that is outside of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/passwd").write_text("outside\n")
    image = tmp_path / "image"
    for folder in ("etc/modprobe.d", "proc/sys/vm", "usr/lib/systemd/system", "usr/sbin", "var/lib", "run"):
        (image / folder).mkdir(parents=True)
    (image / "usr/sbin/init").symlink_to("../lib/systemd/systemd")
    for name in ("libsystemd-shared-252.so", "system/systemd-sysctl.service"):
        (image / "usr/lib/systemd" / name).write_text("# as systemd ships it\n")
    (image / "proc/sys/vm/swappiness").write_text("60\n")
    (image / "etc/passwd").write_text("inside\n")
    return image


def test_image_takes_files_only(image: Path, tmp_path: Path, tuner: Tuner) -> None:
    settings = (
        "sysctl: {vm.swappiness: 1}\nthp: {enabled: never}\nhugepages: {node0/2MB: 4}\n"
        "sysctl.pair: {vm.dirty: {value: {ratio: 5}}}\nfile: {/etc/modprobe.d/x.conf: a}"
    )
    profile = write_profile(tmp_path / "p.yaml", settings)
    first = tree(image)
    plan = tuner("plan", "--root", image, "--profile", profile, "--json").document
    assert plan["host"]["kind"] == "image"
    states = {v["knob"]: (v["state"], v["state_why"]) for v in plan["verdicts"]}
    assert states.pop("file")[0] == "drift"
    assert states.pop("sysctl")[0] == states.pop("sysctl.pair")[0] == "drift", "no file of the image sets them"
    assert states == dict.fromkeys(("thp", "hugepages"), ("unsupported", "image"))
    apply = tuner("apply", "--root", image, "--profile", profile)
    assert apply.code == 0
    assert apply.out.startswith(f"IMAGE {image}")
    assert (image / "etc/modprobe.d/x.conf").read_text() == "a"
    assert (image / "etc/sysctl.d/99-zz-tuner.conf").read_text().splitlines()[1:] == [
        "vm.swappiness = 1",
        "vm.dirty_ratio = 5",
    ]
    assert (image / "proc/sys/vm/swappiness").read_text() == "60\n"
    assert tuner("verify", "--root", image).code == 13, "right after the image's next boot"
    assert tuner("rollback", "--root", image).code == 0
    assert tree(image) == first


@pytest.mark.parametrize(
    "target", ["{outside}/passwd", "../../outside/passwd", "/etc/passwd", "nowhere", "/proc/self/x"]
)
def test_link_in_an_image_is_never_written_through(target: str, image: Path, tmp_path: Path, tuner: Tuner) -> None:
    link = image / "etc/foo"
    link.symlink_to(target.format(outside=tmp_path / "outside"))
    profile = write_profile(tmp_path / "p.yaml", "file: {/etc/foo: owned}")
    first = tree(tmp_path)
    result = tuner("apply", "--root", image, "--profile", profile)
    assert result.code not in (0, 1, 2)
    assert (image / "etc/foo").is_symlink()
    assert {p: h for p, h in tree(tmp_path).items() if p.startswith("outside")} == {
        p: h for p, h in first.items() if p.startswith("outside")
    }
    assert (image / "etc/passwd").read_text() == "inside\n"
    assert "outside" not in result.out.replace(str(tmp_path), "")


@pytest.mark.parametrize("target", ["{outside}", "../../../outside", "../../../../../../../../..{outside}"])
def test_directory_link_in_an_image_stays_inside(target: str, image: Path, tmp_path: Path, tuner: Tuner) -> None:
    """An absolute link, or one with too many '..', ends inside the root: chroot(2) does the same."""
    (image / "etc/dir").symlink_to(target.format(outside=tmp_path / "outside"))
    profile = write_profile(tmp_path / "p.yaml", "file: {/etc/dir/passwd: owned}")
    tuner("plan", "--root", image, "--profile", profile)
    tuner("apply", "--root", image, "--profile", profile)
    assert (tmp_path / "outside/passwd").read_text() == "outside\n"
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["passwd"]


def test_absolute_directory_link_is_followed_inside(image: Path, tmp_path: Path, tuner: Tuner) -> None:
    """As on the booted image itself: /etc/link -> /usr/share/x is the image's own /usr/share/x."""
    (image / "usr/share/x").mkdir(parents=True)
    (image / "etc/link").symlink_to("/usr/share/x")
    profile = write_profile(tmp_path / "p.yaml", "file: {/etc/link/new.conf: a}")
    first = tree(image)
    assert tuner("apply", "--root", image, "--profile", profile).code == 0
    assert (image / "usr/share/x/new.conf").read_text() == "a"
    assert tuner("rollback", "--root", image).code == 0
    assert tree(image) == first


def test_profiles_of_an_image_are_read_inside_it(image: Path, tmp_path: Path, tuner: Tuner) -> None:
    """/etc/tuner/profiles of the image is looked up below it, through links too."""
    write_profile(tmp_path / "outside/evil.yaml", "file: {/etc/x: evil}")
    (image / "etc/tuner").mkdir()
    (image / "etc/tuner/profiles").symlink_to(tmp_path / "outside")
    assert tuner("apply", "--root", image, "--profile", "evil").code == 64
    (image / "etc/tuner/profiles").unlink()
    (image / "etc/tuner/profiles").mkdir()
    write_profile(image / "etc/tuner/profiles/own.yaml", "file: {/etc/x: own}")
    assert tuner("apply", "--root", image, "--profile", "own").code == 0
    assert (image / "etc/x").read_text() == "own"


@pytest.mark.parametrize("path", ["var/lib/tuner", "run/tuner", "etc/tuner"])
def test_own_state_in_an_image_stays_inside(path: str, image: Path, tmp_path: Path, tuner: Tuner) -> None:
    """A prepared image must not make us write our journal, lock or cache elsewhere."""
    (image / path).symlink_to(tmp_path / "outside")
    profile = write_profile(tmp_path / "p.yaml", "file: {/etc/x: a}")
    tuner("apply", "--root", image, "--profile", profile)
    tuner("rollback", "--root", image)
    assert sorted(p.name for p in (tmp_path / "outside").iterdir()) == ["passwd"]


def test_hosts_that_come_with_tuner_are_all_whole(tmp_path: Path, tuner: Tuner) -> None:
    for host in HOSTS.glob("*.host"):
        store.copy(host, str(tmp_path / host.stem), list(store.about(host)[1])[:1])
        assert tuner("plan", "--root", tmp_path / host.stem, "--profile", "linux-gpu").code in (0, 10, 14)
