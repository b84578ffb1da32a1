"""What every test may use: copies of recorded hosts, the command line in this process, and trees to compare."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tuner import evidence, fast
from tuner.cli import main
from tuner.evidence import NotingTree
from tuner.host import manifest
from tuner.shipped import folder
from tuner.sim import store

HOSTS = Path(__file__).parent / "hosts"
STATE = ("run/tuner", "var/lib/tuner", "etc/tuner/applied", ".tuner-host/state")
"""tuner's own state, and what a recorded device keeps apart from its files: set aside when trees are compared."""


SLOW = (
    "tests/fuse/", "tests/live/", "tests/test_capture.py", "tests/test_demo.py", "tests/test_packaging.py",
    "tests/test_signals.py", "tests/test_shipped.py", "tests/test_mi300x", "tests/test_roundtrip.py::test_random",
    "tests/test_style.py::test_core", "tests/test_style.py::test_every_module_loads", "tests/test_profiles_cli.py",
    "tests/test_failures.py", "tests/test_detect.py", "tests/profile/test_match.py", "tests/profile/test_site.py",
    "tests/test_output.py", "tests/sim/test_faults.py", "tests/test_watch.py", "tests/boot/test_sysctl_real.py",
    "tests/test_evidence.py", "tests/test_crash.py", "tests/bench/", "tests/boot/test_grub_real.py",
    "tests/test_schemas.py", "tests/test_bad_input.py", "tests/knobs/test_amdgpu.py", "tests/knobs/test_irq.py",
    "tests/vm/", "tests/test_reassert.py", "tests/test_nextboot.py", "tests/test_formats.py", "tests/test_idle.py",
    "tests/profile/test_layers.py", "tests/test_roundtrip.py", "tests/sim/", "tests/host/test_tree.py",
    "tests/host/test_shell.py", "tests/test_persist.py", "tests/boot/", "tests/fleet/", "tests/host/test_nvml.py",
    "tests/nvml/", "tests/slurm/", "tests/probes/", "tests/knobs/test_nvidia",
    "tests/test_nvidia", "tests/knobs/test_amdgpu_", "tests/test_garbled.py",
)  # fmt: skip
"""What takes more than its share of a minute: `make test` runs it, the inner loop `make fast` does not."""


ROOM = 6 << 30
"""Bytes that the files of a whole run may take, with a margin."""


def pytest_configure() -> None:
    """Copies of hosts are made by the thousand: in memory, where there is room for them and programs may be run."""
    with contextlib.suppress(OSError):
        about = os.statvfs("/dev/shm")
        free = min(about.f_bavail * about.f_frsize, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE") // 2)
        if free >= ROOM and not about.f_flag & os.ST_NOEXEC and os.access("/dev/shm", os.W_OK):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what the inner loop leaves out: the files above, and laws on the large host."""
    for item in items:
        if item.nodeid.startswith(SLOW) or ("test_laws" in item.nodeid and "-cx7" in item.nodeid):
            item.add_marker(pytest.mark.slow)


def unavailable(reason: str) -> None:
    """A part that cannot run here: skipped with its reason, failed in CI, where every part must run."""
    if os.environ.get("CI"):
        pytest.fail(f"must run in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _manifests_once() -> Iterator[None]:
    """Thousands of copies share a few manifests: each text is parsed once in a process, which nobody changes after."""
    parse = manifest.parse
    known: dict[str, manifest.Manifest] = {}

    def once(text: str, origin: str) -> manifest.Manifest:
        if text not in known:
            known[text] = parse(text, origin)
        return known[text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "parse", once)
        yield


@pytest.fixture(scope="session")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """One copy per host and faults, made once; tests copy it."""
    made: dict[tuple[str, ...], Path] = {}

    def master(name: str = "plain-vm", *faults: str) -> Path:
        key = (name, *faults)
        if key not in made:
            path = tmp_path_factory.mktemp("master") / name
            store.copy(HOSTS / f"{name}.host", str(path), list(faults))
            made[key] = path
        return made[key]

    return master


@pytest.fixture
def copy_host(masters: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """copy_host(name="plain-vm", *faults) -> the root of a fresh copy."""
    count = 0

    def copy(name: str = "plain-vm", *faults: str) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"{name}-{count}"
        shutil.copytree(masters(name, *faults), path, symlinks=True)
        return path

    yield copy


@pytest.fixture
def root(copy_host: Callable[..., Path]) -> Path:
    """A fresh copy of plain-vm without faults."""
    return copy_host()


@dataclass
class Result:
    """What a call of the command line gave."""

    code: int
    out: str
    err: str
    document: dict[str, Any]


@pytest.fixture
def tuner(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """tuner(*words) -> Result of `tuner WORDS`; a JSON document that is printed is checked against its schema."""

    def call(*words: object) -> Result:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        document: dict[str, Any] = {}
        if "--json" in words:
            document = json.loads(out)
            check_schema(document)
        assert "Traceback" not in out + err
        return Result(code, out, err, document)

    return call


def again(tree: NotingTree) -> bool:
    """Whether all that the tree noted looks the same again; asked in a process of its own, which changes its root."""
    rows, child = evidence.rows(tree), os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if fast.same(tree.root, rows) else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


def lock_seen_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From here on, filled with each call of flock after which an apply that starts would find the lock taken."""
    refused: list[int] = []
    real = fcntl.flock

    def flock(handle: int, how: int) -> None:
        real(handle, how)
        other = os.open(root / "run/tuner/lock", os.O_RDWR)
        try:
            real(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refused.append(how)
        finally:
            os.close(other)

    monkeypatch.setattr(fcntl, "flock", flock)
    return refused


def check_schema(document: dict[str, Any]) -> None:
    """Fails unless the document is what its shipped schema says."""
    name = document["schema"].replace("/", ".")
    schema = json.loads((folder("schemas") / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)


def tree(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Every path below root but tuner's state: kind, mode, and content or where a link points."""
    found: dict[str, tuple[str, int, bytes]] = {}
    folders = [""]
    while folders:
        above = folders.pop()
        with os.scandir(f"{root}/{above}") as entries:
            for entry in entries:
                key = above + entry.name
                if entry.is_symlink():
                    found[key] = ("link", 0, os.readlink(entry.path).encode())
                elif not entry.is_dir(follow_symlinks=False):
                    found[key] = ("file", stat.S_IMODE(entry.stat().st_mode), _content(entry.path))
                elif key not in STATE:
                    found[key] = ("dir", stat.S_IMODE(entry.stat().st_mode), b"")
                    folders.append(f"{key}/")
    return found


def _content(path: str) -> bytes:
    try:
        opened = os.open(path, os.O_RDONLY)
    except PermissionError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(opened, 1 << 20), b""))
    finally:
        os.close(opened)


def write_profile(path: Path, settings: str, name: str = "test") -> Path:
    """A profile file with these settings, given as the YAML below `settings:`."""
    body = "".join(f"  {line}\n" for line in settings.strip("\n").splitlines())
    path.write_text(f"name: {name}\nsummary: For a test\nsettings:\n{body}", encoding="utf-8")
    return path
