"""tuner image: a profile put into the tree that nodes boot from, judged there by its next boot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, tree, write_profile

Call = Callable[..., Result]
PYTHON = "/opt/tuner/bin/python"
SYSCTLS = "etc/sysctl.d/99-zz-tuner.conf"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root with systemd's own unit of sysctls, sshd, and a Python at the usual place; no slurmd."""
    root = tmp_path / "image"
    for folder in ("etc/systemd/system", "usr/lib/systemd/system", "usr/bin", "var/lib", "run", "opt/tuner/bin"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    units = root / "usr/lib/systemd/system"
    (units / "systemd-sysctl.service").write_text("[Service]\nExecStart=/lib/systemd/systemd-sysctl\n")
    (units / "sshd.service").write_text("[Service]\nExecStart=/usr/sbin/sshd -D\n")
    python = root / PYTHON.lstrip("/")
    python.write_text("")
    python.chmod(0o755)
    return root


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(
        tmp_path / "p.yaml",
        "sysctl: {vm.swappiness: 1, net.core.rmem_max: {at_least: 16777216}}\n"
        "limits: {sshd.service/memlock: unlimited, slurmd.service/memlock: unlimited}\n"
        "thp: {enabled: madvise}",
    )


def states(result: Result) -> dict[str, str]:
    return {f"{v['knob']} {v['target']}": v["state"] for v in result.document["verdicts"] if v["knob"] != "file"}


def test_files_and_units_are_in_the_image_and_nothing_runs(image: Path, profile: Path, tuner: Call) -> None:
    """What a file keeps is there, what only a unit can make so has its unit; the links that enable it too."""
    done = tuner("image", image, "--profile", profile, "--python", PYTHON, "--json")
    assert done.code == 0
    assert done.document["schema"] == "tuner.image/1"
    assert (image / SYSCTLS).read_text().splitlines()[1:] == ["net.core.rmem_max = 16777216", "vm.swappiness = 1"]
    unit = (image / "etc/systemd/system/tuner-apply.service").read_text()
    assert f"ExecStart={PYTHON} -I -m tuner apply --boot\n" in unit
    assert (image / "etc/systemd/system/multi-user.target.wants/tuner-apply.service").is_symlink()
    assert (image / "etc/tuner/applied/current.json").exists()


def test_verify_of_an_image_is_pending_until_nodes_boot_from_it(image: Path, profile: Path, tuner: Call) -> None:
    """13: right after the next boot. A service that is not in the image is unsupported, as on a node."""
    before = tuner("verify", "--root", image, "--profile", profile, "--json")
    assert before.code == 10
    assert states(before)["sysctl vm.swappiness"] == "drift"
    tuner("image", image, "--profile", profile, "--python", PYTHON)
    after = tuner("verify", "--root", image, "--json")
    assert after.code == 13
    assert states(after) == {
        "sysctl vm.swappiness": "pending",
        "sysctl net.core.rmem_max": "pending",
        "limits sshd.service/memlock": "pending",
        "limits slurmd.service/memlock": "unsupported",
        "thp enabled": "unsupported",
    }
    assert not (image / "etc/systemd/system/slurmd.service.d").exists()


def test_a_late_file_of_the_image_is_seen(image: Path, profile: Path, tuner: Call) -> None:
    tuner("image", image, "--profile", profile, "--python", PYTHON)
    (image / "etc/sysctl.d/zz-late.conf").write_text("vm.swappiness = 60\n")
    found = tuner("verify", "--root", image, "--json")
    assert found.code == 10
    assert states(found)["sysctl vm.swappiness"] == "drift"


def test_all_of_it_goes_again(image: Path, profile: Path, tuner: Call) -> None:
    """rollback takes the files, persist remove the units."""
    before = tree(image)
    tuner("image", image, "--profile", profile, "--python", PYTHON)
    assert tuner("rollback", "--root", image).code == 0
    assert tuner("persist", "remove", "--root", image).code == 0
    assert {path for path in tree(image) if path not in before} <= {"etc/tuner", "etc/udev", "etc/udev/rules.d"}


def test_twice_is_once(image: Path, profile: Path, tuner: Call) -> None:
    tuner("image", image, "--profile", profile, "--python", PYTHON)
    before = tree(image)
    again = tuner("image", image, "--profile", profile, "--python", PYTHON, "--json")
    assert again.code == 0
    assert again.document["apply"]["changed"] == 0
    assert again.document["persist"]["written"] == []
    assert tree(image) == before


@pytest.mark.parametrize("what", ["recorded", "live", "nothing", "no python", "no systemd"])
def test_what_is_no_image_stays_as_it_is(image: Path, root: Path, profile: Path, tuner: Call, what: str) -> None:
    """One line, 64, nothing written: neither the files nor the units."""
    place = {"recorded": root, "live": Path("/"), "nothing": image / "none"}.get(what, image)
    if what == "no python":
        (image / PYTHON.lstrip("/")).unlink()
    if what == "no systemd":
        shutil.rmtree(image / "usr/lib/systemd")
        shutil.rmtree(image / "etc/systemd")
    before = tree(image)
    done = tuner("image", place, "--profile", profile, "--python", PYTHON)
    assert done.code == 64
    assert done.err.startswith("tuner: ")
    assert tree(image) == before


def test_a_node_that_boots_from_it_gets_what_only_a_unit_can_do(
    image: Path, copy_host: Callable[..., Path], tuner: Call, tmp_path: Path
) -> None:
    """Its /var is empty; patterns, which meant nothing in the image, mean the targets of the node."""
    text = "thp: {enabled: madvise}\nsysctl: {vm.swappiness: 1, net.ipv4.conf.*.arp_notify: 1}"
    profile = write_profile(tmp_path / "p.yaml", text)
    assert tuner("image", image, "--profile", profile, "--python", PYTHON).code == 0
    node = copy_host()
    shutil.copytree(image / "etc/tuner", node / "etc/tuner")
    interfaces = sorted(path.name for path in (node / "proc/sys/net/ipv4/conf").iterdir())
    assert tuner("apply", "--boot", "--root", node).code == 0
    assert "[madvise]" in (node / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    assert (node / "proc/sys/vm/swappiness").read_text() == "1\n"
    notify = [(node / f"proc/sys/net/ipv4/conf/{name}/arp_notify").read_text() for name in interfaces]
    assert len(notify) > 2
    assert set(notify) == {"1\n"}
