"""What every test may use: copies of recorded hosts, the command line in this process, and trees to compare."""

from __future__ import annotations

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
    "tests/test_nvidia", "tests/knobs/test_amdgpu_",
)  # fmt: skip
"""What takes more than its share of a minute: `make test` runs it, the inner loop `make fast` does not."""


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
    for folder_, names, files in os.walk(root):
        here = os.path.relpath(folder_, root)
        names[:] = [n for n in names if os.path.normpath(f"{here}/{n}") not in STATE]
        for name in [*names, *files]:
            path = Path(folder_, name)
            status = path.lstat()
            key = os.path.normpath(f"{here}/{name}")
            if stat.S_ISLNK(status.st_mode):
                found[key] = ("link", 0, os.readlink(path).encode())
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("dir", stat.S_IMODE(status.st_mode), b"")
            else:
                found[key] = ("file", stat.S_IMODE(status.st_mode), _content(path))
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError:
        return b""


def write_profile(path: Path, settings: str, name: str = "test") -> Path:
    """A profile file with these settings, given as the YAML below `settings:`."""
    body = "".join(f"  {line}\n" for line in settings.strip("\n").splitlines())
    path.write_text(f"name: {name}\nsummary: For a test\nsettings:\n{body}", encoding="utf-8")
    return path
