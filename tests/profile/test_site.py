"""site.yaml and host.d: what they may say, whose they must be, and that nothing of them is dropped in silence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tree, unavailable, write_profile

Tuner = Callable[..., Any]
SETTING = "settings: {sysctl: {vm.swappiness: 7}}\n"
OTHER = 65534


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "base.yaml", "sysctl: {vm.swappiness: 1}")


@pytest.fixture
def site(root: Path, base: Path, tuner: Tuner) -> Callable[..., Any]:
    """site(text, name) writes a file below etc/tuner of a recorded host and plans there."""

    def call(text: str | bytes, name: str = "site.yaml") -> Any:
        path = root / "etc/tuner" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tuner("plan", "--json", "--root", root, "--profile", base)

    return call


def swappiness(result: Any) -> tuple[int, str]:
    """Value and origin of vm.swappiness in a plan."""
    (found,) = (v for v in result.document["verdicts"] if v["target"] == "vm.swappiness")
    return found["want"]["value"], found["origin"]


# what it may say


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("site.yaml", SETTING, 1),
        ("site.yaml", "boots_from: disk\n" + SETTING, 2),
        ("site.yaml", "boots_from: image\n" + SETTING, 2),
        ("site.yaml", "boots_from: unknown\n" + SETTING, 2),
        ("site.yaml", "sysctl_file: 99-zzz-ours.conf\n" + SETTING, 2),
        ("host.d/plain-vm.yaml", SETTING, 1),
    ],
)
def test_settings_of_the_site_and_of_the_host(name: str, text: str, line: int, site: Callable[..., Any]) -> None:
    assert swappiness(site(text, name)) == (7, f"/etc/tuner/{name}:{line}")


def test_a_site_without_settings_changes_nothing(site: Callable[..., Any], base: Path) -> None:
    assert swappiness(site("boots_from: disk\n")) == (1, f"{base}:4")


@pytest.mark.parametrize("name", ["host.d/other.yaml", "host.d/plain.yaml", "host.d/plain-vm", "host.d/plain-vm.yml"])
def test_files_of_other_hosts_are_not_even_read(name: str, site: Callable[..., Any], base: Path) -> None:
    assert swappiness(site("{ not yaml\n", name)) == (1, f"{base}:4")


@pytest.mark.parametrize(
    ("name", "text", "line", "parts"),
    [
        ("site.yaml", "fabrik: {}\n", 1, ["'fabrik'", "fabric"]),
        ("site.yaml", "name: x\n", 1, ["'name'"]),
        ("site.yaml", "boots_from: disk\nextends: [linux-gpu]\n", 2, ["'extends'"]),
        ("site.yaml", "match: {}\n", 1, ["'match'"]),
        ("site.yaml", "boots_from: net\n", 1, ["'net'", "disk", "image"]),
        ("site.yaml", "boots_from: Disk\n", 1, ["'Disk'", "disk"]),
        ("site.yaml", "boots_from:\n", 1, ["boots_from", "disk"]),
        ("site.yaml", "boots_from: [disk]\n", 1, ["boots_from", "disk"]),
        ("site.yaml", "boots_from: disk\nboots_from: disk\n", 2, ["twice"]),
        ("site.yaml", "sysctl_file: 99-zz\n", 1, ["sysctl_file", ".conf"]),
        ("site.yaml", "sysctl_file: /etc/sysctl.d/99-zz.conf\n", 1, ["sysctl_file", ".conf"]),
        ("site.yaml", "sysctl_file: ../x.conf\n", 1, ["sysctl_file"]),
        ("site.yaml", "sysctl_file:\n", 1, ["sysctl_file"]),
        ("site.yaml", "sysctl_file: [a.conf]\n", 1, ["sysctl_file"]),
        ("site.yaml", "settings: [a]\n", 1, ["mapping"]),
        ("site.yaml", "settings: {sysctl: {vm.swappiness: on}}\n", 1, ["'on'", "not a number"]),
        ("site.yaml", "settings: {sysctl: {vm.swappiness: 010}}\n", 1, ["leading zero"]),
        ("site.yaml", "settings: {sysctl: {vm.laptop_mode: {unset: true}}}\n", 1, ["not inherited"]),
        ("site.yaml", "- a\n", 1, ["mapping"]),
        ("host.d/plain-vm.yaml", "boots_from: disk\n", 1, ["'boots_from'"]),
        ("host.d/plain-vm.yaml", "fabric: {}\n", 1, ["'fabric'"]),
        ("host.d/plain-vm.yaml", "settings: {sysctl: {vm.swappiness: 1:30}}\n", 1, ["'1:30'"]),
        ("host.d/plain-vm.yaml", "settings: {sysctl: {vm.swappiness: 1\n", 2, ["YAML"]),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    name: str, text: str, line: int, parts: list[str], site: Callable[..., Any]
) -> None:
    result = site(text, name)
    assert result.code == 64
    (error,) = result.document["errors"]
    assert error["where"] == f"/etc/tuner/{name}:{line}"
    assert all(part in f"{error['what']} {error['hint']}" for part in parts), error
    assert error["hint"]


@pytest.mark.parametrize("name", [".conf", ".hidden.conf", '"a b.conf"', '"a\\nb.conf"'])
def test_sysctl_file_that_systemd_would_not_read(name: str, site: Callable[..., Any]) -> None:
    """systemd skips names that start with a dot (src/basic/dirent-util.c); blanks are in no name of ours."""
    assert site(f"sysctl_file: {name}\n").code == 64


def test_errors_of_all_layers_come_together(site: Callable[..., Any], base: Path) -> None:
    write_profile(base, "sysctl: {vm.swappiness: on}")
    site("fabrik: {}\n")
    result = site("boots_from: disk\n", "host.d/plain-vm.yaml")
    assert result.code == 64
    wheres = {error["where"] for error in result.document["errors"]}
    assert wheres == {f"{base}:4", "/etc/tuner/site.yaml:1", "/etc/tuner/host.d/plain-vm.yaml:1"}


@pytest.mark.parametrize(
    ("text", "parts"), [("fabric: {mtu: 9000}\n", ["fabric"]), ("fabric: {}\nnccl: {}\n", ["fabric", "nccl"])]
)
def test_parts_for_a_later_release_are_named_as_not_used(
    text: str, parts: list[str], root: Path, base: Path, site: Callable[..., Any], tuner: Tuner
) -> None:
    assert swappiness(site(text + SETTING))[0] == 7
    lines = tuner("plan", "--root", root, "--profile", base).out.splitlines()
    unused = [line for line in lines if line.startswith("Not used")]
    assert len(unused) == len(parts)
    assert all(part in line for part, line in zip(parts, unused, strict=True))


# what is no file


@pytest.mark.parametrize("name", ["site.yaml", "host.d/plain-vm.yaml"])
@pytest.mark.parametrize("kind", ["directory", "fifo", "loop", "large"])
@pytest.mark.timeout(20)
def test_what_cannot_be_read_is_an_error_and_never_left_out(
    kind: str, name: str, root: Path, base: Path, tuner: Tuner
) -> None:
    path = root / "etc/tuner" / name
    path.parent.mkdir(parents=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        path.write_bytes(b"#" * 1024 + b"\n" + b"#\n" * 1024 * 512)
    result = tuner("plan", "--json", "--root", root, "--profile", base)
    assert result.code == 64
    (error,) = result.document["errors"]
    assert error["where"].startswith(f"/etc/tuner/{name}")
    assert error["hint"]


# whose they are


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image whose site.yaml, host.d-less, is root's from the file up to the image's root."""
    if os.geteuid() != 0:
        unavailable("files of other owners need root")
    path = tmp_path / "image"
    (path / "etc/tuner/profiles/overlays").mkdir(parents=True)
    (path / "etc/tuner/site.yaml").write_text(SETTING)
    write_profile(path / "etc/tuner/profiles/mine.yaml", "sysctl: {vm.swappiness: 2}")
    write_profile(path / "etc/tuner/profiles/overlays/over.yaml", "sysctl: {vm.swappiness: 3}")
    for folder, names, files in os.walk(path):
        for entry in [folder, *(f"{folder}/{name}" for name in [*names, *files])]:
            Path(entry).chmod(0o755)
    return path


def spoil(path: Path, how: str) -> None:
    if how == "owner":
        os.chown(path, OTHER, -1)
    else:
        path.chmod(path.stat().st_mode | {"group": 0o020, "others": 0o002}[how])


def refused(root: Path, base: Path, tuner: Tuner, *words: object) -> list[str]:
    """The places that plan and apply name when they do not believe a file; nothing is written."""
    before = tree(root)
    places = []
    for verb in ("plan", "apply"):
        result = tuner(verb, "--json", "--root", root, "--profile", base, *words)
        assert result.code == 64, result.out
        assert all("root" in error["what"] + error["hint"] for error in result.document["errors"])
        places += [error["where"] for error in result.document["errors"]]
    assert tree(root) == before
    return sorted(set(places))


def test_files_of_root_are_believed(image: Path, base: Path, tuner: Tuner) -> None:
    result = tuner("plan", "--json", "--root", image, "--profile", base)
    assert swappiness(result) == (7, "/etc/tuner/site.yaml:1")


@pytest.mark.parametrize("how", ["owner", "group", "others"])
@pytest.mark.parametrize("place", ["/etc/tuner/site.yaml", "/etc/tuner", "/etc", "/"])
def test_site_that_others_can_change_is_not_believed(
    place: str, how: str, image: Path, base: Path, tuner: Tuner
) -> None:
    """Who can write a directory above it can put another file in its place."""
    spoil(Path(f"{image}{place}"), how)
    assert refused(image, base, tuner) == [place]


@pytest.mark.parametrize("how", ["owner", "group", "others"])
@pytest.mark.parametrize("place", ["mine.yaml", "overlays/over.yaml", "overlays"])
def test_profiles_of_the_site_that_others_can_change(
    place: str, how: str, image: Path, base: Path, tuner: Tuner
) -> None:
    (image / "etc/tuner/site.yaml").unlink()
    spoil(image / "etc/tuner/profiles" / place, how)
    words = ("--profile", "mine") if place == "mine.yaml" else ("--with", "over")
    assert refused(image, base, tuner, *words) == [f"/etc/tuner/profiles/{place}"]


@pytest.mark.parametrize("how", ["owner", "group", "others"])
def test_overlay_by_path_that_others_can_change(how: str, root: Path, tmp_path: Path, base: Path, tuner: Tuner) -> None:
    if os.geteuid() != 0:
        unavailable("files of other owners need root")
    over = write_profile(tmp_path / "over.yaml", "sysctl: {vm.swappiness: 3}")
    spoil(over, how)
    assert refused(root, base, tuner, "--with", over) == [str(over)]


@pytest.mark.parametrize("how", ["owner", "group", "others"])
def test_link_to_where_others_can_write(how: str, image: Path, base: Path, tuner: Tuner) -> None:
    """The file belongs to root, but the directory that the link leads to does not only."""
    (image / "srv").mkdir()
    (image / "etc/tuner/site.yaml").rename(image / "srv/site.yaml")
    (image / "etc/tuner/site.yaml").symlink_to("../../srv/site.yaml")
    spoil(image / "srv", how)
    assert refused(image, base, tuner) == ["/srv"]


def test_sticky_directory_of_root_is_fine_and_of_another_is_not(image: Path, base: Path, tuner: Tuner) -> None:
    (image / "etc/tuner").chmod(0o1777)
    assert swappiness(tuner("plan", "--json", "--root", image, "--profile", base))[0] == 7
    os.chown(image / "etc/tuner", OTHER, -1)
    assert refused(image, base, tuner) == ["/etc/tuner"]


@pytest.mark.parametrize("how", ["owner", "group", "others"])
def test_a_recorded_host_is_no_root_to_protect(how: str, root: Path, base: Path, tuner: Tuner) -> None:
    """Its files were unpacked by whoever looks at it."""
    path = root / "etc/tuner/site.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SETTING)
    if how == "owner" and os.geteuid() != 0:
        unavailable("files of other owners need root")
    spoil(path, how)
    spoil(path.parent, how)
    assert swappiness(tuner("plan", "--json", "--root", root, "--profile", base))[0] == 7
