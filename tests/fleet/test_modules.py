"""The modules by themselves, on copies of recorded hosts; their documentation; and ansible-lint over the playbooks."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import importlib.util
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import tree, unavailable, write_profile
from tests.test_packaging import REPO

pytest.importorskip("ansible")

PLAYBOOKS = REPO / "playbooks"
MODULES = sorted((PLAYBOOKS / "library").glob("*.py"))
Module = Callable[..., dict[str, Any]]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"module_{name}", PLAYBOOKS / "library" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command line of this checkout as a program."""
    path = tmp_path_factory.mktemp("bin") / "tuner"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -m tuner "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def module(command: Path, root: Path, tmp_path: Path) -> Module:
    """module(check=False, **arguments) -> what the module `tuner` answers on a copy of plain-vm."""

    def run(*, check: bool = False, **arguments: Any) -> dict[str, Any]:
        given = {"root": str(root), "executable": str(command), **arguments}
        given |= {"_ansible_check_mode": check, "_ansible_diff": True}
        file = tmp_path / "arguments.json"
        file.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": given}), encoding="utf-8")
        words = [sys.executable, str(PLAYBOOKS / "library/tuner.py"), str(file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        answer: dict[str, Any] = json.loads(done.stdout)
        assert bool(answer.get("failed")) == bool(done.returncode)
        return answer

    return run


def texts(answer: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {part["after_header"]: (part["before"], part["after"]) for part in answer["diff"]}


def test_check_mode_is_what_apply_then_does(module: Module, root: Path) -> None:
    """The same changes and the same diff, site included; nothing is written before."""
    arguments = {"profile": "linux-gpu", "site": {"settings": {"sysctl": {"vm.swappiness": 7}}}}
    kernel = root / "proc/sys/vm/swappiness"
    planned = module(check=True, **arguments)
    assert planned["changed"]
    assert kernel.read_text() == "60\n"
    assert not (root / "etc/tuner").exists()
    applied = module(**arguments)
    assert applied["changed"]
    assert kernel.read_text() == "7\n"
    assert texts(applied) == texts(planned)
    assert texts(applied)["sysctl vm.swappiness"] == ("60\n", "7\n")
    again = module(**arguments)
    assert (again["changed"], again["changes"], again.get("diff", [])) == (False, [], [])
    assert not module(check=True, **arguments)["changed"]


def test_settings_that_hold_already_are_recorded_once(module: Module, root: Path, tmp_path: Path) -> None:
    """Nothing to write, but another profile is the applied one now: a change once, then none."""
    profile = write_profile(tmp_path / "p.yaml", "thp: {enabled: {one_of: [always, madvise, never]}}")
    first = module(profile=str(profile))
    assert first["changed"] is True
    assert first["changes"] == []
    assert module(profile=str(profile))["changed"] is False
    assert module(profile=str(profile), check=True)["changed"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"profile": "no-such"}, 64, "no such profile; hint: known: "),
        ({"profile": "linux-gpu", "set": ["sysctl:vm.swappiness=x"]}, 64, "; hint: "),
        ({"profile": "linux-gpu", "expect": "00000000"}, 10, "00000000"),
        ({"profile": "mi300x"}, 31, "; hint: "),
        ({"state": "verified"}, 64, "nothing applied yet"),
        ({"profile": "linux-gpu", "files": {"../passwd": "x"}}, 64, "is no profile, overlay or host file"),
        ({"profile": "linux-gpu", "site": {"no": 1}}, 64, "etc/tuner/site.yaml"),
        ({"profile": "linux-gpu", "executable": "/no/tuner"}, 12, "not installed on this node (install.yml)"),
    ],
    ids=["profile", "set", "expect", "wrong host", "nothing applied", "file", "site", "executable"],
)
def test_each_failure_is_one_line_and_changes_nothing(
    module: Module, root: Path, arguments: dict[str, Any], code: int, said: str
) -> None:
    """What is wrong and what to do, with tuner's exit code, in check mode as for real."""
    for check in (True, False):
        answer = module(check=check, **arguments)
        assert answer["failed"], answer
        assert answer["exit"] == code, answer
        assert said in answer["msg"] and "\n" not in answer["msg"]
        assert answer["changed"] is False
    assert not (root / "etc/tuner").exists()
    assert (root / "proc/sys/vm/swappiness").read_text() == "60\n"


def test_drift_fails_verify_and_names_it(module: Module, root: Path) -> None:
    assert not module(profile="linux-gpu").get("failed")
    assert not module(state="verified").get("failed")
    (root / "proc/sys/vm/swappiness").write_text("60\n")
    answer = module(state="verified")
    assert (answer["failed"], answer["exit"], answer["changed"]) == (True, 10, False)
    assert answer["msg"].startswith("differs: sysctl vm.swappiness 60 want 1 (drift: ")
    assert [d["target"] for d in answer["differences"] if d["state"] == "drift"] == ["vm.swappiness"]


def test_files_of_the_inventory_can_be_written_by_root_alone(module: Module, root: Path) -> None:
    """Under umask 0 too: profile, overlay and the folders above them; a profile of the inventory is used at once."""
    text = "name: ours\nsummary: x\nsettings:\n  sysctl: {vm.swappiness: 4}\n"
    overlay = "name: more\nsummary: x\nsettings:\n  sysctl: {vm.zone_reclaim_mode: 1}\n"
    files = {"profiles/ours.yaml": text, "profiles/overlays/more.yaml": overlay}
    former = os.umask(0)
    try:
        answer = module(profile="ours", overlays=["more"], files=files)
    finally:
        os.umask(former)
    assert not answer.get("failed"), answer
    assert (root / "proc/sys/vm/swappiness").read_text() == "4\n"
    assert (root / "proc/sys/vm/zone_reclaim_mode").read_text() == "1\n"
    made = [root / "etc/tuner", *(root / "etc/tuner").rglob("*")]
    assert {path.name for path in made} >= {"ours.yaml", "more.yaml", "profiles", "overlays"}
    assert [str(path) for path in made if path.stat().st_mode & 0o022] == []


@pytest.mark.parametrize("strict", [False, True])
def test_held_settings_warn_or_fail(module: Module, root: Path, tmp_path: Path, strict: bool) -> None:
    """What nobody allowed is a warning; with fail_on_held the task fails. What is allowed is done either way."""
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 5}\nhugepages: {node0/2MB: 16}")
    answer = module(profile=str(profile), allow=["none"], fail_on_held=strict)
    assert bool(answer.get("failed")) is strict
    assert strict or "hugepages node0/2MB" in str(answer["warnings"])
    assert (root / "proc/sys/vm/swappiness").read_text() == "5\n"
    assert answer["changed"] is True


def test_rolled_back_by_number_and_in_check_mode(module: Module, root: Path) -> None:
    """Two generations; back to the first, then to before it; nothing left to undo is no failure."""
    kernel = root / "proc/sys/vm/swappiness"
    for value in (5, 6):
        module(profile="linux-gpu", set=[f"sysctl:vm.swappiness={value}"])
    assert module(state="rolled_back", to=1, check=True)["changed"]
    assert kernel.read_text() == "6\n"
    assert module(state="rolled_back", to=1)["changed"]
    assert kernel.read_text() == "5\n"
    assert not module(state="rolled_back", to=1)["changed"]
    assert module(state="rolled_back", to=0)["changed"]
    assert kernel.read_text() == "60\n"
    assert not module(state="rolled_back", to=0)["changed"]


@pytest.mark.parametrize("check", [False, True])
def test_a_rollback_that_does_nothing_changes_nothing(module: Module, root: Path, check: bool) -> None:
    """No such generation: bad input, in check mode too."""
    module(profile="linux-gpu")
    answer = module(state="rolled_back", to=7, check=check)
    assert (answer["failed"], answer["exit"], answer["changed"], answer["changes"]) == (True, 64, False, [])
    assert "--to 7: no live generation of that number; hint: live: 0, 1" in answer["msg"]
    assert (root / "proc/sys/vm/swappiness").read_text() == "1\n"


def test_a_rollback_that_another_run_keeps_out_changes_nothing(module: Module, root: Path) -> None:
    module(profile="linux-gpu")
    with open(root / "run/tuner/lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = module(state="rolled_back")
    assert (answer["failed"], answer["exit"], answer["changed"]) == (True, 30, False)
    assert module(state="rolled_back")["changed"]


def test_a_rollback_without_writes_of_its_own_is_a_change(module: Module, tmp_path: Path) -> None:
    """A generation of settings that held already: no value moves, and another generation is the applied one."""
    profile = write_profile(tmp_path / "p.yaml", "thp: {enabled: {one_of: [always, madvise, never]}}")
    module(profile=str(profile))
    answer = module(state="rolled_back")
    assert (answer["changed"], answer["changes"]) == (True, [])


def test_what_somebody_else_changed_fails_the_rollback(module: Module, root: Path) -> None:
    module(profile="linux-gpu")
    (root / "proc/sys/vm/swappiness").write_text("30\n")
    answer = module(state="rolled_back")
    assert (answer["failed"], answer["exit"]) == (True, 10)
    assert "vm.swappiness" in answer["msg"]
    assert "sysctl vm.swappiness" in str(answer["warnings"])
    assert (root / "proc/sys/vm/swappiness").read_text() == "30\n"


def test_a_failed_apply_takes_its_site_back(module: Module, copy_host: Callable[..., Path]) -> None:
    """A write is refused: all is undone, and /etc/tuner is as it was."""
    host = copy_host("plain-vm", "swappiness-refused")
    answer = module(profile="linux-gpu", root=str(host), site={"boots_from": "disk"})
    assert (answer["failed"], answer["exit"]) == (True, 20), answer
    assert answer["msg"].endswith("; all was undone")
    assert (answer["changed"], answer["changes"]) == (False, [])
    assert (host / "proc/sys/net/core/rmem_max").read_text() == "212992\n"
    assert not (host / "etc/tuner/site.yaml").exists()


NEW = {"profiles/ours.yaml": "name: ours\nsummary: x\nsettings: {sysctl: {vm.swappiness: 4}}\n"}
OLD = b"settings: {}\r\n# only ours\r\n"


def lay(etc: Path, name: str, kind: str) -> None:
    """A former file of a kind below /etc/tuner: one that others may not read, or a link, to a file of that kind."""
    place = etc / ("real.txt" if kind == "link" else name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(OLD if name == "site.yaml" else b"name: ours\r\nsummary: x\r\n" + OLD)
    place.chmod(0o640 if kind == "group" else 0o644 if kind == "CRLF" else 0o600)
    if kind == "group":
        os.chown(place, -1, 1)
    if kind == "link":
        (etc / name).parent.mkdir(exist_ok=True)
        (etc / name).symlink_to(os.path.relpath(place, (etc / name).parent))


def below(etc: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every file below /etc/tuner but the record of what is applied: mode, owner, group and bytes or the link."""
    found = {}
    for path in sorted(etc.rglob("*")):
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) and "applied" not in path.parts:
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(etc))] = (about.st_mode, about.st_uid, about.st_gid, content)
    return found


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
KINDS = ["link", "0600", "CRLF", pytest.param("group", marks=as_root)]


@pytest.mark.parametrize("answer", ["refused", "none", "odd"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["site.yaml", "profiles/ours.yaml"])
def test_a_failed_apply_puts_back_the_very_file(
    module: Module, copy_host: Callable[..., Path], command: Path, tmp_path: Path, name: str, kind: str, answer: str
) -> None:
    """Link, mode, owner and bytes; tuner undid the run, said nothing, or what the module does not know."""
    host, program = copy_host("plain-vm", "swappiness-refused"), tmp_path / "program"
    end = {"refused": f'exec {command} "$@"', "none": "exit 1", "odd": """echo '{"schema": "tuner.apply/1"}'"""}
    program.write_text(f'#!/bin/sh\n[ "$1" = plan ] && exec {command} "$@"\n{end[answer]}\n', encoding="utf-8")
    program.chmod(0o755)
    lay(host / "etc/tuner", name, kind)
    before = below(host / "etc/tuner")
    arguments = {"root": str(host), "executable": str(program), "site": {"boots_from": "disk"}, "files": NEW}
    assert module(profile="ours", check=True, **arguments)["changed"]
    assert below(host / "etc/tuner") == before
    said = module(profile="ours", **arguments)
    assert said["failed"], said
    assert below(host / "etc/tuner") == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["site.yaml", "profiles/ours.yaml"])
def test_a_file_that_is_replaced_is_read_by_nobody_new(module: Module, root: Path, name: str, kind: str) -> None:
    """Its owner and mode are kept, its text is in no diff; the file that a link led to is left; nothing else is."""
    lay(root / "etc/tuner", name, kind)
    linked = (root / "etc/tuner" / name).stat()
    answer = module(profile="ours", files=NEW, site={"boots_from": "disk"})
    assert not answer.get("failed"), answer
    about = (root / "etc/tuner" / name).lstat()
    assert (about.st_mode, about.st_uid, about.st_gid) == (linked.st_mode, linked.st_uid, linked.st_gid)
    assert ("only ours" in str(texts(answer))) is (kind == "CRLF")
    left = set(below(root / "etc/tuner")) - {"real.txt"}
    assert left == {"site.yaml", "profiles/ours.yaml"}
    assert (kind != "link") or (root / "etc/tuner/real.txt").read_bytes().endswith(OLD)


def test_what_others_may_write_they_may_not_any_more(module: Module, root: Path) -> None:
    """tuner, as root, believes no file that others can write: the mode of the former one is kept without that."""
    lay(root / "etc/tuner", "site.yaml", "CRLF")
    (root / "etc/tuner/site.yaml").chmod(0o4662)
    assert not module(profile="linux-gpu", site={"boots_from": "disk"}).get("failed")
    assert stat.S_IMODE((root / "etc/tuner/site.yaml").stat().st_mode) == 0o640


@pytest.mark.parametrize("linked", [False, True])
def test_an_unchanged_text_is_not_touched(module: Module, root: Path, linked: bool) -> None:
    """Not by its time, its number or its link either, and a line end of another system is no change."""
    place = root / "etc/tuner/real.txt"
    assert not module(profile="ours", files=NEW).get("failed")
    ours = root / "etc/tuner/profiles/ours.yaml"
    ours.write_bytes(ours.read_bytes().replace(b"\n", b"\r\n"))
    if linked:
        ours.rename(place)
        ours.symlink_to("../real.txt")
    before = ours.lstat()
    answer = module(profile="ours", files=NEW)
    assert (answer.get("failed"), answer["changed"]) == (None, False), answer
    after = ours.lstat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.parametrize("stands", [False, True])
@pytest.mark.parametrize("name", ["site.yaml", "profiles/ours.yaml", "profiles/overlays/o.yaml", "host.d/a.yaml"])
def test_what_a_killed_run_moved_aside_is_moved_back(
    module: Module, copy_host: Callable[..., Path], name: str, stands: bool
) -> None:
    """Before anything else, unless a file stands there, which counts; check mode leaves both; success leaves none."""
    host, arguments = copy_host("plain-vm"), {"profile": "linux-gpu", "site": {"boots_from": "disk"}}
    etc = host / "etc/tuner"
    former = (etc / name).with_name(f".{(etc / name).name}.former")
    lay(etc, name, "0600")
    former.hardlink_to(etc / name)
    (etc / name).unlink()
    if stands:
        lay(etc, name, "CRLF")
    before = below(etc)
    module(check=True, root=str(host), **arguments)
    assert below(etc) == before
    wanted = before[name] if stands else before[str(former.relative_to(etc))]
    assert module(root=str(host), profile="linux-gpu", set=["sysctl:vm.swappiness=x"])["failed"]
    assert below(etc)[name] == wanted
    assert not module(root=str(host), profile="linux-gpu").get("failed")
    assert below(etc) == {name: wanted}


def test_a_file_system_without_second_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is moved aside then, and moved back the same."""
    code, etc = loaded_tuner(), root / "etc/tuner"
    lay(etc, "site.yaml", "link")
    before = below(etc)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(code.os, "link", refused)
    with contextlib.ExitStack() as undo:
        code.put(f"{root}/etc/tuner/site.yaml", "settings: {}\n", undo)
        assert sorted(below(etc)) == [".site.yaml.former", "real.txt", "site.yaml"]
        assert (etc / "site.yaml").read_bytes() == b"settings: {}\n"
    assert below(etc) == before


def test_a_write_that_fails_leaves_the_former_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the file stands as it was, without a second name or half a text beside it; the place is named."""
    code, etc = loaded_tuner(), root / "etc/tuner"
    lay(etc, "site.yaml", "0600")
    before = below(etc)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(code.os, call, full)
            with pytest.raises(OSError, match="No space left") as caught, contextlib.ExitStack() as undo:
                code.put(f"{root}/etc/tuner/site.yaml", "settings: {}\n", undo)
        assert caught.value.filename == str(etc)
        assert below(etc) == before, call


@pytest.mark.parametrize("answer", ["[1, 2]", "5", '"text"', "null", "{}", '{"schema": "other/1"}', "not JSON", ""])
@pytest.mark.parametrize("state", ["planned", "applied", "verified", "rolled_back"])
def test_an_answer_that_is_not_tuners_is_one_line(
    module: Module, root: Path, tmp_path: Path, state: str, answer: str
) -> None:
    """Of another version, or of no tuner at all: failed, said, nothing left below /etc/tuner."""
    odd = tmp_path / "odd"
    odd.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n", encoding="utf-8")
    odd.chmod(0o755)
    said = module(state=state, profile="linux-gpu", site={"boots_from": "disk"}, executable=str(odd))
    assert said["failed"], said
    assert "exception" not in said
    assert "answer" in said["msg"] and "\n" not in said["msg"]
    assert not (root / "etc/tuner").exists()


def test_a_tree_whose_path_holds_etc_tuner(module: Module, root: Path, tmp_path: Path) -> None:
    """Files land in the tree and nowhere else, and a refused run takes them back from there."""
    place = tmp_path / "etc/tuner/images/node"
    place.parent.mkdir(parents=True)
    root.rename(place)
    assert not module(profile="linux-gpu", root=str(place), site={"boots_from": "disk"}).get("failed")
    assert "boots_from: disk" in (place / "etc/tuner/site.yaml").read_text()
    assert [path.name for path in (tmp_path / "etc/tuner").iterdir()] == ["images"]


@pytest.mark.parametrize("link", ["etc/tuner", "etc/tuner/profiles", "etc/tuner/profiles/ours.yaml"])
def test_a_link_out_of_the_tree_is_not_followed(module: Module, root: Path, tmp_path: Path, link: str) -> None:
    """What an image's author put there does not decide where root writes."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(outside)
    text = "name: ours\nsummary: x\nsettings: {sysctl: {vm.swappiness: 4}}\n"
    said = module(profile="ours", files={"profiles/ours.yaml": text})
    assert (said["failed"], said["exit"]) == (True, 64)
    assert "leads out of" in said["msg"]
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "hard link", "dangling", "pipe"])
@pytest.mark.parametrize("name", ["site.yaml", "profiles/ours.yaml"])
def test_what_lies_under_the_temporary_name_is_not_written_to(
    module: Module, root: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """The author of an image knows that name; a file that a stopped run left there is in nobody's way."""
    outside, stale = tmp_path / "outside", root / f"etc/tuner/{name}.ansible"
    stale.parent.mkdir(parents=True)
    outside.write_text("precious\n", encoding="ascii")
    match kind:
        case "link":
            stale.symlink_to(outside)
        case "hard link":
            stale.hardlink_to(outside)
        case "dangling":
            stale.symlink_to(tmp_path / "new")
        case _:
            os.mkfifo(stale)
    answer = module(profile="ours", files=NEW, site={"boots_from": "disk"})
    assert not answer.get("failed"), answer
    assert (outside.read_text(encoding="ascii"), outside.stat().st_mode & 0o777) == ("precious\n", 0o644)
    assert not (tmp_path / "new").exists()
    assert not list((root / "etc/tuner").rglob("*.ansible"))
    assert (root / f"etc/tuner/{name}").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("link", ["etc", "etc/tuner", "etc/tuner/profiles"])
@pytest.mark.parametrize("text", ["new\n", None])
def test_folders_that_become_links_are_not_followed(
    root: Path, tmp_path: Path, link: str, text: str | None, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first look at them, and, late, between the last look and the write."""
    code, outside = loaded_tuner(), tmp_path / "outside"
    path, real = f"{root}/etc/tuner/profiles/ours.yaml", code.inside
    (root / "etc/tuner/profiles").mkdir(parents=True)
    for folder in ("", "profiles", "tuner/profiles"):
        (outside / folder).mkdir(parents=True, exist_ok=True)
        (outside / folder / "ours.yaml").write_text("precious\n", encoding="ascii")
    before = tree(outside)

    def swap() -> None:
        if not (root / link).is_symlink():
            (root / link).rename(tmp_path / "former")
            (root / link).symlink_to(outside)

    def inside(*words: str) -> object:
        found = real(*words)
        swap()
        return found

    monkeypatch.setattr(code, "inside", inside if late else real)
    if not late:
        swap()

    def change() -> None:
        if text is None:
            code.put_back(path, kept=False)
        else:
            with contextlib.ExitStack() as undo:
                code.put(path, text, undo)

    with pytest.raises((OSError, code.Failed), match=r"Not a directory|leads out of"):
        change()
    assert tree(outside) == before


def test_a_link_inside_the_tree_is_followed(module: Module, root: Path) -> None:
    """/etc/tuner on a disk of its own: the folder that it leads to takes the files."""
    (root / "srv/own").mkdir(parents=True)
    (root / "etc/tuner").symlink_to("../srv/own")
    assert not module(profile="ours", files=NEW).get("failed")
    assert (root / "srv/own/profiles/ours.yaml").read_text() == NEW["profiles/ours.yaml"]


def test_files_are_texts(module: Module, root: Path) -> None:
    """A profile that somebody wrote as YAML in the inventory, without the bar."""
    said = module(profile="ours", files={"profiles/ours.yaml": {"name": "ours"}})
    assert (said["failed"], said["exit"]) == (True, 64)
    assert "profiles/ours.yaml is to be the text of a file" in said["msg"]


def test_a_second_file_that_cannot_be_written_takes_the_first_back(module: Module, root: Path) -> None:
    """The host's file is written before the profile is refused its place; then neither is there."""
    (root / "etc/tuner/profiles/ours.yaml.ansible").mkdir(parents=True)
    text = "name: ours\nsummary: x\nsettings: {sysctl: {vm.swappiness: 4}}\n"
    (root / "etc/tuner/host.d").mkdir()
    files = {"host.d/a.yaml": "settings: {}\n", "profiles/ours.yaml": text}
    said = module(profile="ours", files=files, root=str(root))
    assert said["failed"]
    assert "ours.yaml.ansible: Is a directory" in said["msg"]
    assert not (root / "etc/tuner/host.d/a.yaml").exists()
    assert (root / "proc/sys/vm/swappiness").read_text() == "60\n"


# --- documentation and house rules --------------------------------------------------------------------------------


def documented(path: Path, name: str) -> Any:
    """A YAML text of a module's source."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return yaml.safe_load(ast.literal_eval(node.value))
    raise AssertionError(f"{path.name} has no {name}")


def specified(path: Path) -> dict[str, Any]:
    """The argument_spec of a module, from its source."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "argument_spec":
            names = {"words": {"type": "list", "elements": "str", "default": []}}
            found: dict[str, Any] = eval(compile(ast.Expression(node.value), "spec", "eval"), {}, names)
            return found
    raise AssertionError(f"{path.name} has no argument_spec")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_documentation_is_the_argument_spec(path: Path) -> None:
    """Names, types, defaults and choices; examples are tasks of this module; every returned value is described."""
    about, spec = documented(path, "DOCUMENTATION"), specified(path)
    assert about["module"] == path.stem
    assert set(about["options"]) == set(spec)
    for name, option in about["options"].items():
        assert option["description"], name
        for field in ("type", "elements", "default", "choices"):
            default = "str" if field == "type" else None
            assert option.get(field, default) == spec[name].get(field, default), f"{name} {field}"
    assert all(path.stem in task for task in documented(path, "EXAMPLES"))
    assert all(value["description"] and value["returned"] for value in documented(path, "RETURN").values())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_run_under_the_python_of_old_nodes(path: Path) -> None:
    """Ansible runs them under what a node has, 3.8 or newer: no newer syntax; every function says what it does."""
    module = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    newer = ("Match", "TryStar", "TypeAlias")
    assert not [node for node in ast.walk(module) if type(node).__name__ in newer]
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            assert ast.get_docstring(node), node.name
            assert (node.end_lineno or 0) - node.lineno < 50, node.name


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yml")), ids=lambda path: path.stem)
def test_every_play_names_its_strategy(path: Path) -> None:
    """A strategy of the user's configuration would know neither run_once nor max_fail_percentage."""
    plays = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [play["strategy"] for play in plays] == ["ansible.builtin.linear"]


def test_ansible_doc_shows_them() -> None:
    """As an operator reads it: ansible-doc -M playbooks/library tuner."""
    program = Path(sys.executable).parent / "ansible-doc"
    for path in MODULES:
        words = [str(program), "-M", str(PLAYBOOKS / "library"), "-t", "module", path.stem]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "EXAMPLES:" in done.stdout


def test_ansible_lint_has_nothing_to_say(tmp_path: Path) -> None:
    """The production profile, the strictest, over playbooks and the example of an inventory; nothing is fetched."""
    program = Path(sys.executable).parent / "ansible-lint"
    if not program.exists():
        unavailable("no ansible-lint here")
    path = f"{program.parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": str(tmp_path), "ANSIBLE_HOME": str(tmp_path)}
    words = [str(program), "--offline", "--strict", "--profile", "production", "--format", "pep8", "--nocolor"]
    files = sorted(str(p.relative_to(PLAYBOOKS)) for p in PLAYBOOKS.rglob("*.yml"))
    assert len(files) >= 6
    done = subprocess.run(
        [*words, *files], cwd=PLAYBOOKS, env=env, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(files)} files processed" in done.stdout + done.stderr


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(),
    st.sampled_from(["on", "off", "yes", "no", "null", "~", "1e3", "0x10", "a: b", "- a", "#", "y", "N", "Null"]),
)  # fmt: skip
trees = st.dictionaries(
    st.text(min_size=1) | st.sampled_from(["on", "1", "vm.swappiness", "node0/2MB", "a b"]),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(trees)
def test_the_site_is_written_as_yaml_that_says_the_same(value: dict[str, Any]) -> None:
    """Whatever the inventory holds, a reader of YAML gets it back, words as words."""
    text = "".join(loaded_tuner().yaml_lines(value, 0))
    assert yaml.safe_load(text) == value


_LOADED: list[ModuleType] = []


def loaded_tuner() -> ModuleType:
    """The module's code, loaded once."""
    if not _LOADED:
        _LOADED.append(loaded("tuner"))
    return _LOADED[0]
