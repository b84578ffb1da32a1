"""The bundle: the same bytes from a checkout and from a wheel, all that a node needs, nothing of this machine."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_packaging import LEFT_OUT, REPO, built
from tuner.errors import TunerError
from tuner.fleet import bundle

pytestmark = pytest.mark.xdist_group("packaging")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    return bundle.build(str(tmp_path_factory.mktemp("bundle")))


@pytest.fixture(scope="module")
def members(made: bundle.Bundle) -> Iterator[list[tarfile.TarInfo]]:
    with tarfile.open(made.path) as archive:
        yield archive.getmembers()


def test_digest_and_name_tell_the_content(made: bundle.Bundle) -> None:
    """What the module on the node counts: the sha256 of the archive, unpacked."""
    with gzip.open(made.path) as file:
        data = file.read()
    assert hashlib.sha256(data).hexdigest() == made.digest
    assert Path(made.path).name == f"tuner-{made.release}.tar.gz"
    assert made.release.endswith(f"-{made.digest[:16]}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert sum(member.size for member in archive) == made.size


def test_made_twice_it_is_the_same(made: bundle.Bundle, tmp_path: Path) -> None:
    assert Path(bundle.build(str(tmp_path)).path).read_bytes() == Path(made.path).read_bytes()


def test_every_member_is_a_plain_file_of_roots(members: list[tarfile.TarInfo]) -> None:
    """No link, no folder, no way out of the release, no write bit for others, no name of a user here."""
    assert [m.name for m in members] == sorted({m.name for m in members})
    for member in members:
        assert member.isreg()
        assert not member.name.startswith("/") and ".." not in member.name.split("/")
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
        assert member.mode == (0o755 if member.name == "bin/tuner" else 0o644)
        assert member.mtime == bundle.DATE


def test_only_plain_python_and_no_more_than_is_needed(members: list[tarfile.TarInfo]) -> None:
    """Runs under any Python: nothing compiled. What it imports is there, with the licences."""
    names = {m.name for m in members}
    assert not [n for n in names if n.endswith((".so", ".pyc", ".pyd")) or "__pycache__" in n]
    tops = {n.split("/")[1] for n in names if n.startswith("site/")}
    folders = {top for top in tops if not top.endswith(".dist-info")}
    assert folders == {"tuner", "yaml", "rich", "markdown_it", "mdurl", "pygments", "pynvml.py"}
    with_licence = {n.split("/")[1] for n in names if "LICEN" in n.upper() and ".dist-info/" in n}
    assert {top.split("-")[0].lower() for top in with_licence} >= {"pyyaml", "rich", "mdurl", "pygments"}
    assert "site/tuner/data/playbooks/install.yml" in names
    assert "site/tuner/data/playbooks/library/tuner.py" in names
    assert "site/tuner/data/profiles/linux-gpu.yaml" in names
    assert "site/tuner/launcher" not in names


def needed(name: str) -> set[str]:
    """The distributions that one needs, itself included, as their metadata says."""
    found = {name.lower()}
    for line in importlib.metadata.requires(name) or []:
        if "extra ==" not in line:
            found |= needed(re.split(r"[^A-Za-z0-9._-]", line)[0])
    return found


def test_the_parts_are_those_that_our_metadata_names() -> None:
    """A dependency that is added, or that one of them gets, must be added to the bundle."""
    text = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    names = [re.split(r"[^A-Za-z0-9._-]", word)[0] for word in re.findall(r'"(.*?)"', listed)]
    assert {name.lower() for name in bundle.PARTS} == set().union(*map(needed, names))


def test_it_runs_by_itself_under_every_python(made: bundle.Bundle, tmp_path: Path) -> None:
    """Unpacked, isolated, without any site-packages: the parser, YAML without its compiled part, a plan of a host."""
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path, filter="data") if sys.version_info >= (3, 12) else archive.extractall(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from tuner.cli import main; sys.exit(main())"
    words = [sys.executable, "-I", "-S", "-c", code]
    root = tmp_path / "host"
    plan = ["plan", "--root", root, "--profile", "linux-gpu"]
    for more, exit_code in ((["host", "copy", "plain-vm", root], 0), (plan, 10)):
        done = subprocess.run([*words, *map(str, more)], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == exit_code, done.stderr


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of the checkout, and what pip makes of its wheel."""
    top = tmp_path_factory.mktemp("places")
    source, site = top / "source", top / "site"
    shutil.copytree(REPO, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
    wheel = built(source, "wheel", top / "wheel")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*words, str(site), str(wheel)], timeout=120, check=True)
    return source, site


def test_a_wheel_gives_the_same_bundle_as_the_checkout(places: tuple[Path, Path], tmp_path: Path) -> None:
    """An operator who has only what pip installed builds the very same release."""
    digests = set()
    for place in places:
        env = {**os.environ, "PYTHONPATH": str(place)}
        code = f"import tuner.fleet.bundle as b; print(b.__file__); print(b.build({str(tmp_path / 'made')!r}).digest)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True
        )
        where, digest = done.stdout.split()
        assert where.startswith(str(place))
        digests.add(digest)
    assert len(digests) == 1


@pytest.mark.parametrize("number", [0, 1], ids=["checkout", "wheel"])
def test_the_playbook_builds_of_the_tuner_it_belongs_to(
    places: tuple[Path, Path], number: int, made: bundle.Bundle, tmp_path: Path
) -> None:
    """install.yml, from either place, takes neither an older tuner that Ansible's Python has nor one on PYTHONPATH."""
    pytest.importorskip("ansible")
    place = tmp_path / "place"
    shutil.copytree(places[number], place)
    with open(place / "tuner/__init__.py", "a", encoding="utf-8") as file:
        file.write("# another one\n")
    book = place / ("playbooks", "tuner/data/playbooks")[number] / "install.yml"
    words = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "a,b,", "-c", "local", "--check"]
    words += ["-e", f"tuner_become=false tuner_bundle_dir={tmp_path}/made tuner_persist=false", str(book)]
    env = {**os.environ, "HOME": str(tmp_path), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
    env["ANSIBLE_STRATEGY"] = "free"
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("-> localhost]") == 1  # built once, whatever strategy the user has
    (archive,) = (tmp_path / "made").iterdir()
    assert archive.name != Path(made.path).name
    with tarfile.open(archive) as opened:
        text = opened.extractfile("site/tuner/__init__.py")
        assert text is not None and text.read().endswith(b"# another one\n")


def test_a_dependency_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PARTS", {"no-such-distribution": ("nothing",)})
    with pytest.raises(TunerError) as caught:
        bundle.files()
    assert caught.value.code == 64
    assert "pip install 'gpu-node-tuner[fleet]'" in caught.value.problems[0].hint


def test_nothing_is_written_through_a_link_of_others(made: bundle.Bundle, tmp_path: Path) -> None:
    """In a folder that many use: the names are known beforehand, and what lies under them stays as it is."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    place = tmp_path / "shared"
    place.mkdir()
    name = Path(made.path).name
    for planted in (name, f"{name}.part"):
        (place / planted).symlink_to(victim)
    built = bundle.build(str(place))
    assert victim.read_text() == "mine"
    assert not Path(built.path).is_symlink()
    assert Path(built.path).read_bytes() == Path(made.path).read_bytes()
    assert sorted(path.name for path in place.iterdir()) == [name, f"{name}.part"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TunerError) as caught:
        bundle.build(str(tmp_path / "file"))
    assert "cannot be written" in caught.value.problems[0].what
