"""The wheel: what it holds, and that it works where the repository is not."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import check_schema
from tuner import __version__
from tuner.shipped import PACKAGE

pytestmark = pytest.mark.xdist_group("packaging")

REPO = Path(__file__).parents[1]
DATA = {"profiles": "profiles", "checks": "checks", "playbooks": "playbooks", "tests/hosts": "hosts"}
"""Top-level folders of a checkout, and what they are called below tuner/data in the wheel."""
LEFT_OUT = ("__pycache__", "*.pyc", ".git", ".venv", ".*_cache", ".hypothesis", ".demo*", "dist", "build")


def built(source: Path, target: str, folder: Path) -> Path:
    """What hatchling makes of a source tree; no network, nothing beside `folder` is written."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, so that a build leaves nothing in it."""
    folder = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(REPO, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of that copy."""
    return built(source, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """The files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed by pip, without an index and without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--target"]
    done = subprocess.run([*command, folder, wheel], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(installed: Path, tmp_path: Path) -> Call:
    """Runs a command somewhere else, where Python finds the installed wheel and not the repository."""

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [str(word) for word in command]
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)

    return run


def files(folder: Path) -> Sequence[str]:
    """The files below a folder, caches left out."""
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(str(p.relative_to(folder)) for p in found)


@pytest.mark.parametrize("folder", DATA)
def test_every_data_file_is_in_the_wheel(names: set[str], source: Path, folder: str) -> None:
    """profiles/, checks/, playbooks/ and the recorded hosts, file by file, under tuner/data/."""
    here = files(source / folder)
    assert here, f"{folder} is empty"
    missing = [name for name in here if f"tuner/data/{DATA[folder]}/{name}" not in names]
    assert missing == []


def test_data_is_the_same_bytes(wheel: Path, source: Path) -> None:
    """What the wheel holds is what the checkout holds."""
    with zipfile.ZipFile(wheel) as archive:
        for folder, inside in DATA.items():
            for name in files(source / folder):
                assert archive.read(f"tuner/data/{inside}/{name}") == (source / folder / name).read_bytes(), name


def test_code_and_schemas_are_in_the_wheel(names: set[str], source: Path) -> None:
    """Every module and every schema of the package; the launcher lies among the scripts."""
    assert {f"tuner/{name}" for name in files(source / "tuner") if name != "launcher"} <= names
    assert any(name.startswith("tuner/schemas/") for name in names)


def test_nothing_else_is_in_the_wheel(names: set[str]) -> None:
    """No tests, no caches, no file outside the package and its metadata."""
    info, scripts = (f"gpu_node_tuner-{__version__}.{part}" for part in ("dist-info", "data"))
    assert {name.split("/")[0] for name in names} == {"tuner", info, scripts}
    assert [name for name in names if name.startswith(scripts)] == [f"{scripts}/scripts/tuner"]
    assert [n for n in names if re.search(r"__pycache__|\.pyc$|conftest|(^|/)test_[^/]*\.py$", n)
            and not n.startswith("tuner/data/checks/")] == []  # fmt: skip


def test_metadata(wheel: Path) -> None:
    """Name, version, Python, license text and the two dependencies that a node needs."""
    with zipfile.ZipFile(wheel) as archive:
        info = f"gpu_node_tuner-{__version__}.dist-info"
        about = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        assert b"Apache License" in archive.read(f"{info}/licenses/LICENSE")
        launcher = archive.read(f"gpu_node_tuner-{__version__}.data/scripts/tuner")
    assert about["Version"] == __version__
    assert about["Requires-Python"] == ">=3.10"
    assert about["License-Expression"] == "Apache-2.0"
    needed = [text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert sorted(re.split(r"[>=<\s]", text)[0].lower() for text in needed) == ["nvidia-ml-py", "pyyaml", "rich"]
    assert launcher == (PACKAGE / "launcher").read_bytes()
    assert launcher.startswith(b"#!python\n")  # the installer puts its interpreter here


def test_sdist_builds_the_same_wheel(source: Path, names: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever builds from the source archive gets the same files, with the tests and the Makefile beside them."""
    archive = built(source, "sdist", tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xf", archive, "-C", unpacked], timeout=60, check=True)
    (inner,) = unpacked.iterdir()
    for name in ("Makefile", "README.md", "LICENSE", "tests/conftest.py", "pyproject.toml"):
        assert (inner / name).is_file(), name
    again = built(inner, "wheel", tmp_path_factory.mktemp("again"))
    with zipfile.ZipFile(again) as found:
        assert {name for name in found.namelist() if not name.endswith("/")} == names


def test_it_is_the_installed_one_that_runs(call: Call, installed: Path) -> None:
    """The tests below look at the wheel and not at the checkout."""
    code = "import tuner, tuner.shipped as s; print(tuner.__file__, *(s.folder(k) for k in ('profiles', 'hosts')))"
    done = call(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    package, profiles, hosts = map(Path, done.stdout.split())
    assert package == installed / "tuner/__init__.py"
    assert profiles == installed / "tuner/data/profiles"
    assert hosts == installed / "tuner/data/hosts"


def test_hosts_and_profiles_are_found(call: Call, tmp_path: Path) -> None:
    """host list, host copy, plan, apply, verify and rollback from another folder."""
    tuner = [sys.executable, "-m", "tuner"]
    listed = call(*tuner, "host", "list")
    assert listed.returncode == 0, listed.stderr
    assert "plain-vm" in listed.stdout
    assert call(*tuner, "host", "copy", "plain-vm", "X").returncode == 0
    assert (tmp_path / "X/proc/sys/vm/swappiness").read_text() == "60\n"
    planned = call(*tuner, "plan", "--root", "X", "--profile", "linux-gpu")
    assert planned.returncode == 10, planned.stderr
    assert planned.stdout.startswith("RECORDED plain-vm")
    assert "vm.swappiness" in planned.stdout
    applied = call(*tuner, "apply", "--root", "X", "--profile", "linux-gpu")
    assert applied.returncode == 0, applied.stderr
    assert (tmp_path / "X/proc/sys/vm/swappiness").read_text() == "1\n"
    assert call(*tuner, "verify", "--root", "X").returncode == 0
    assert call(*tuner, "rollback", "--root", "X").returncode == 0
    assert (tmp_path / "X/proc/sys/vm/swappiness").read_text() == "60\n"


def test_schemas_are_found(call: Call) -> None:
    """The installed package has a schema for what it prints, and the document is as the checkout's schema says."""
    code = (
        "import json, sys, io, contextlib, tuner.cli, tuner.shipped as s\n"
        "out = io.StringIO()\n"
        "with contextlib.redirect_stdout(out): code = tuner.cli.main(['host', 'list', '--json'])\n"
        "print(out.getvalue())\n"
        "name = json.loads(out.getvalue())['schema'].replace('/', '.')\n"
        "sys.exit(code or not (s.folder('schemas') / f'{name}.json').is_file())\n"
    )
    done = call(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    check_schema(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["host", "list"], 0),
        (["host", "list", "--json"], 0),
        (["plan", "--root", "Y", "--profile", "linux-gpu"], 10),
        (["plan", "--root", "Y", "--profile", "linux-gpu", "--json"], 10),
        (["verify", "--root", "Y"], 64),
        (["nonsense"], 64),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_script_and_module_agree(call: Call, installed: Path, words: list[str], code: int) -> None:
    """`tuner` and `python -m tuner`: the same output, the same errors, the same exit code."""
    assert call(sys.executable, "-m", "tuner", "host", "copy", "plain-vm", "Y").returncode == 0
    script = call(installed / "bin/tuner", *words)
    module = call(sys.executable, "-m", "tuner", *words)
    assert script.returncode == code, script.stderr
    assert (script.returncode, script.stdout, script.stderr) == (module.returncode, module.stdout, module.stderr)


def test_site_profiles_come_first(call: Call, tmp_path: Path) -> None:
    """/etc/tuner/profiles of the host, then those of the package."""
    tuner = [sys.executable, "-m", "tuner"]
    assert call(*tuner, "host", "copy", "plain-vm", "Z").returncode == 0
    own = tmp_path / "Z/etc/tuner/profiles"
    own.mkdir(parents=True)
    text = "name: linux-gpu\nsummary: ours\nsettings:\n  thp:\n    enabled: always\n"
    (own / "linux-gpu.yaml").write_text(text, encoding="utf-8")
    done = call(*tuner, "plan", "--root", "Z", "--profile", "linux-gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 setting: 1 ok" in done.stdout
