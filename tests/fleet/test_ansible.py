"""The playbooks and modules over real sshd, Ansible and sudo: install, plan, apply, verify, roll back, uninstall."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.conftest import PASSWORD, SECRET, Fleet, Installed
from tuner.fleet import bundle

pytestmark = pytest.mark.xdist_group("fleet")

HOSTS = ("h1", "h2", "h3")
NONE = dict.fromkeys(HOSTS, 0)
SITE = "tuner_site: {settings: {sysctl: {net.core.somaxconn: 4600}}}"
SYSCTLS = "etc/sysctl.d/99-zz-tuner.conf"


def values(fleet: Fleet, name: str) -> tuple[str, str]:
    """What the kernel of a host holds of the two settings of the profile."""
    return fleet[name].sysctl("net.ipv4.tcp_rmem"), fleet[name].sysctl("net.core.somaxconn")


# --- install ------------------------------------------------------------------------------------------------------


def test_install_from_nothing(installed: Installed) -> None:
    """Check mode says that it would and leaves nothing; the second run changes nothing."""
    assert installed.checked.code == 0, installed.checked.out
    assert all(count > 0 for count in installed.checked.changed().values())
    assert installed.left == [{}, {}, {}]
    assert installed.first.code == 0, installed.first.out
    assert installed.first.changed() == dict.fromkeys(HOSTS, 1)
    assert installed.second.changed() == NONE


def test_what_is_installed_is_roots_alone(fleet: Fleet) -> None:
    """No write bit for others, no other owner, 0755 and 0644; one release, and nothing half done beside it."""
    rows = fleet["h1"].run("find", "/opt/tuner", "-printf", "%y %m %U %G %p\\n").splitlines()
    assert len(rows) > 500
    kinds = {tuple(row.split()[:4]) for row in rows}
    assert kinds == {("d", "755", "0", "0"), ("f", "644", "0", "0"), ("f", "755", "0", "0"), ("l", "777", "0", "0")}
    executable = sorted(Path(row.split()[4]).name for row in rows if row.startswith("f 755"))
    assert executable == ["tuner"]
    (release,) = fleet["h1"].run("ls", "-A", "/opt/tuner/releases").split()
    assert fleet["h1"].run("readlink", "/opt/tuner/current").strip() == f"releases/{release}"
    assert fleet["h1"].run("readlink", "-f", "/usr/local/bin/tuner").strip().endswith(f"{release}/bin/tuner")


def test_it_runs_isolated_on_the_newest_python(fleet: Fleet) -> None:
    """Neither PYTHONPATH nor the folder it is called in has a say; nothing outside the release is imported."""
    newest = max((int(p.name[9:]), str(p)) for p in Path("/usr/bin").glob("python3.*") if p.name[9:].isdecimal())[1]
    assert fleet["h1"].run("readlink", "/opt/tuner/current/bin/python").strip() == newest
    trap = (
        "mkdir -p /root/trap/tuner && echo 'raise SystemExit(99)' > /root/trap/tuner/__init__.py && cd /root/trap && "
    )
    said = fleet["h1"].run("sh", "-c", f"{trap} PYTHONPATH=/root/trap tuner --version; rm -r /root/trap")
    assert re.fullmatch(r"tuner \d+\.\d+\.\d+\n", said)
    code = "import sys, tuner, yaml, rich, pynvml; print(*(m.__file__ for m in (tuner, yaml, rich, pynvml)), *sys.path)"
    python = "/opt/tuner/current/bin/python"
    paths = fleet["h1"].run(python, "-I", "-c", code).split()
    ours = [path for path in paths if path.startswith("/opt/tuner/current/lib/")]
    assert len(ours) == 5
    assert all(path in ours or path.startswith("/usr/lib/python3") for path in paths)


def test_python_too_old_is_said_and_nothing_is_left(empty: Fleet) -> None:
    """One line with what was found and what to do."""
    inventory = empty.inventory("old", old="ansible_python_interpreter: /usr/local/bin/ansible-python")
    done = empty.play("install", inventory)
    assert done.code == 2
    assert "tuner needs Python 3.10 or newer in /usr/bin; found: /usr/bin/python3.9 (3.9.18)." in done.out
    assert "dnf install python3.11" in done.out
    assert empty["old"].written("opt", "etc", "var") == {}


def test_a_full_disk_is_said_and_nothing_is_left(empty: Fleet) -> None:
    """Found before anything is copied; and the disk that fills up while it is written to leaves nothing current."""
    done = empty.play("install", empty.inventory("small", small=""))
    assert done.code == 2
    assert re.search(r"no room in /opt/tuner: \d+ KiB free, \d+ KiB needed; nothing is installed", done.out)
    (bundle,) = (empty.lab.place / ".cache/tuner").glob("tuner-*.tar.gz")
    built = empty.call(sys.executable, "-m", "tuner", "fleet", "bundle", str(bundle.parent), "--json")
    about = json.loads(built.out)
    arguments = {"release": about["release"], "digest": about["digest"], "bundle": about["path"]}
    said = module(empty, "small", "tuner_install", **arguments)
    assert said["failed"]
    assert said["msg"] == "no room in /opt/tuner: No space left on device; nothing is installed"
    assert empty["small"].run("find", "/opt/tuner", "-mindepth", "1").split() == ["/opt/tuner/releases"]


def module(fleet: Fleet, name: str, which: str, **arguments: object) -> dict[str, object]:
    """A module as Ansible starts it, without ssh."""
    given = fleet.lab.place / f"{which}.json"
    given.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}), encoding="utf-8")
    file = fleet.checkout / "playbooks/library" / f"{which}.py"
    said: dict[str, object] = json.loads(fleet[name].run(sys.executable, str(file), str(given), fine=False))
    return said


def test_a_bundle_that_is_not_as_built_is_refused(fleet: Fleet) -> None:
    """The digest is of what is unpacked; the release that runs stays current."""
    (bundle, *_) = (fleet.lab.place / ".cache/tuner").glob("tuner-*.tar.gz")
    said = module(fleet, "h1", "tuner_install", release="9.9.9-bad", digest="0" * 64, bundle=str(bundle))
    assert said["failed"]
    assert "is not the bundle that was built" in str(said["msg"])
    assert "9.9.9-bad" not in fleet["h1"].run("ls", "-A", "/opt/tuner/releases")


def packed(fleet: Fleet, name: str, **others: bytes) -> dict[str, object]:
    """The arguments that install a bundle of this checkout in which some files below site/tuner are others."""
    files = bundle.files() | {f"site/tuner/{path}": data for path, data in others.items()}
    tar = bundle._tar(files)
    place = fleet.lab.place / f"{name}.tar.gz"
    place.write_bytes(gzip.compress(tar, 1))
    return {"release": name, "digest": hashlib.sha256(tar).hexdigest(), "bundle": str(place)}


def test_an_upgrade_keeps_one_former_release(fleet: Fleet) -> None:
    """It becomes current with its first good start; one that does not run, or is cut short, leaves the former one."""
    first = fleet["h1"].run("readlink", "/opt/tuner/current").strip()
    broken = module(fleet, "h1", "tuner_install", **packed(fleet, "2-broken", **{"cli/parser.py": b"import nonsense"}))
    assert broken["failed"]
    assert "the release does not run here: ModuleNotFoundError: No module named 'nonsense'" in str(broken["msg"])
    assert str(broken["msg"]).endswith(f"release {first.removeprefix('releases/')} stays current")
    assert fleet["h1"].run("readlink", "/opt/tuner/current").strip() == first
    for name in ("2-good", "3-good"):
        arguments = packed(fleet, name, **{"made.py": b'"""Other."""\n'})
        assert module(fleet, "h1", "tuner_install", **arguments)["changed"] is True
        assert module(fleet, "h1", "tuner_install", **arguments)["changed"] is False
        assert fleet["h1"].run("readlink", "/opt/tuner/current").strip() == f"releases/{name}"
        assert fleet["h1"].run("/usr/local/bin/tuner", "--version").startswith("tuner ")
    assert fleet["h1"].run("ls", "-A", "/opt/tuner/releases").split() == ["2-good", "3-good"]
    assert fleet.play("install", fleet.inventory("again"), "-l", "h1").changed() == {"h1": 1}
    fleet["h1"].run("rm", "-r", "/opt/tuner/releases/3-good")


# --- plan, apply, verify, roll back -------------------------------------------------------------------------------


def test_check_mode_changes_nothing_and_shows_what_apply_does(fleet: Fleet) -> None:
    """The new site and the new profile count in the plan already; no byte of the hosts moves, nor of their kernels."""
    inventory = fleet.inventory("check", SITE)
    before = {name: (fleet[name].written(), values(fleet, name)) for name in HOSTS}
    for book, words in (("apply", ["--check", "--diff"]), ("plan", ["--diff"])):
        done = fleet.play(book, inventory, *words)
        assert done.code == 0, done.out
        assert done.changed() == dict.fromkeys(HOSTS, 1)
        for line in (
            "--- before: /etc/tuner/site.yaml",
            "+    net.core.somaxconn: 4600",
            f"-{before['h1'][1][1]}",
            "+4600",
        ):
            assert line in done.out, done.out
        assert SECRET in done.out  # the profile holds it, for everybody to read
        assert done.out.count(f"+{SECRET}") == 0
        assert {name: (fleet[name].written(), values(fleet, name)) for name in HOSTS} == before


def test_apply_changes_and_a_second_one_does_not(fleet: Fleet) -> None:
    """Kernel, files and site are as wanted; then changed=0, in check mode too, and not one byte moves."""
    inventory = fleet.inventory("apply", SITE)
    done = fleet.play("apply", inventory)
    assert done.code == 0, done.out
    assert done.changed() == dict.fromkeys(HOSTS, 1)
    for name in HOSTS:
        assert values(fleet, name) == ("4096\t131072\t33000000", "4600")
        written = fleet[name].written("etc")
        assert written["etc/tuner-lab/plain.conf"] == ("file", 0o644, b"for everybody\n")
        assert written["etc/tuner-lab/secret.conf"][:2] == ("file", 0o600)
        assert b"net.core.somaxconn = 4600\n" in written[SYSCTLS][2]
        assert written["etc/tuner/site.yaml"][:2] == ("file", 0o644)
    before = {name: fleet[name].written() for name in HOSTS}
    assert fleet.play("apply", inventory).changed() == NONE
    assert fleet.play("apply", inventory, "--check").changed() == NONE
    assert {name: fleet[name].written() for name in HOSTS} == before


def test_a_refused_site_leaves_the_former_one(fleet: Fleet) -> None:
    """Bad input in the inventory: one line with its place and a hint; site.yaml and the kernel are as they were."""
    assert fleet.play("apply", fleet.inventory("good", SITE), "-l", "h1").code == 0
    before = fleet["h1"].written("etc"), values(fleet, "h1")
    bad = fleet.inventory("bad", "tuner_site: {settings: {sysctl: {net.core.somaxconn: many}}}")
    done = fleet.play("apply", bad, "-l", "h1")
    assert done.code == 2
    assert re.search(r"/etc/tuner/site\.yaml:\d+: .*somaxconn.*; hint: ", done.out), done.out
    assert (fleet["h1"].written("etc"), values(fleet, "h1")) == before


def test_rollback_gives_everything_back(fleet: Fleet) -> None:
    """Every host as it was before apply; a second rollback to 0 changes nothing."""
    inventory = fleet.inventory("back", SITE)
    before = {name: values(fleet, name) for name in HOSTS}
    assert fleet.play("apply", inventory).code == 0
    done = fleet.play("rollback", inventory, "-e", "tuner_to=0", "--check")
    assert done.changed() == dict.fromkeys(HOSTS, 1)
    assert values(fleet, "h1")[1] == "4600"
    done = fleet.play("rollback", inventory, "-e", "tuner_to=0")
    assert done.code == 0, done.out
    assert done.changed() == dict.fromkeys(HOSTS, 1)
    assert {name: values(fleet, name) for name in HOSTS} == before
    assert not [path for path in fleet["h1"].written("etc") if "tuner-lab" in path or "sysctl.d" in path]
    assert fleet.play("rollback", inventory, "-e", "tuner_to=0").changed() == NONE


def test_sudo_with_a_password(fleet: Fleet) -> None:
    """Without one, or with another one: said, nothing is changed. With it: as root's. It is in no output."""
    inventory = fleet.inventory("sudo", h3="ansible_user: op")
    before = values(fleet, "h3")
    none = fleet.tuner("apply", "-i", inventory)
    assert none.code == 12, none.out + none.err
    assert "sudo wants a password" in none.out
    assert values(fleet, "h3") == before
    secret = fleet.lab.place / "sudo-password"
    secret.write_text(f"{PASSWORD}\n", encoding="utf-8")
    secret.chmod(0o600)
    done = fleet.tuner("apply", "-i", inventory, "--become-password-file", secret)
    assert done.code == 0, done.out + done.err
    assert values(fleet, "h3")[1] == "4500"
    assert PASSWORD not in done.out + done.err
    assert '"op (sudo)"' in fleet["h3"].run("/opt/tuner/bin/tuner", "history", "--json")


@pytest.mark.parametrize("backend", ["ssh", "paramiko"])
def test_another_reader_finds_what_was_applied(fleet: Fleet, backend: str) -> None:
    """pytest-testinfra reads the host by its own means, over ssh and over paramiko; it sees drift too."""
    assert fleet.play("apply", fleet.inventory("reader"), "-l", "h1").code == 0
    tests = fleet.checkout / "checks/acceptance"
    config = f"--ssh-config={fleet.lab.place}/ssh_config"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tests}"]
    words += [f"--hosts={backend}://root@h1", config, str(tests)]
    good = fleet.call(*words)
    assert good.code == 0, good.out
    assert "1 passed" in good.out or "2 passed" in good.out
    fleet["h1"].run("sh", "-c", "echo 100 > /proc/sys/net/core/somaxconn")
    drifted = subprocess.run(
        fleet.lab.inside(words), env=fleet.env, capture_output=True, text=True, timeout=120, check=False
    )
    assert drifted.returncode == 1
    assert "net.core.somaxconn" in drifted.stdout


def test_boot_units_start_the_release(fleet: Fleet) -> None:
    """What `persist install` writes runs the interpreter of the current release, and it makes so again what drifted."""
    host = fleet["h1"]
    assert fleet.play("apply", fleet.inventory("units"), "-l", "h1").code == 0
    host.run("mkdir", "-p", "/run/systemd/system")
    host.run("/opt/tuner/bin/tuner", "persist", "install", fine=False)
    unit = host.run("cat", "/etc/systemd/system/tuner-apply.service")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert line == "/opt/tuner/current/bin/python -I -m tuner apply --boot"
    host.run("sh", "-c", "echo 100 > /proc/sys/net/core/somaxconn")
    host.run(*line.split())
    assert host.sysctl("net.core.somaxconn") == "4500"
    host.run("/opt/tuner/bin/tuner", "persist", "remove", fine=False)
    host.run("rmdir", "/run/systemd/system", fine=False)


def test_a_node_without_systemd_is_said(fleet: Fleet) -> None:
    """tuner is installed all the same, and the variable that leaves the units out is named."""
    done = fleet.play("install", fleet.inventory("no-systemd"), "-l", "h1", "-e", "tuner_persist=true")
    assert done.code == 2
    assert "there is no systemd; tuner is installed; tuner_persist: false leaves the units out" in done.out


# --- uninstall ----------------------------------------------------------------------------------------------------


def test_what_is_applied_is_not_forgotten(fleet: Fleet) -> None:
    """Where the tuner that applied is not the installed one, nothing is removed; unless that is what is wanted."""
    host, inventory = fleet["h2"], fleet.inventory("forgotten")
    assert fleet.play("apply", inventory, "-l", "h2").code == 0
    before = host.written("etc", "var")
    said = module(fleet, "h2", "tuner_install", state="absent")
    assert said["failed"]
    assert str(said["msg"]).startswith("settings are applied here: ")
    host.run("mv", "/opt/tuner/bin/tuner", "/opt/tuner/bin/elsewhere")
    done = fleet.play("uninstall", inventory, "-l", "h2")
    host.run("mv", "/opt/tuner/bin/elsewhere", "/opt/tuner/bin/tuner")
    assert done.code == 2
    assert "settings are applied here: " in done.out
    assert host.written("etc", "var") == before
    kept = fleet.play("uninstall", inventory, "-l", "h2", "-e", "tuner_keep_settings=true")
    assert kept.code == 0, kept.out
    assert values(fleet, "h2")[1] == "4500"
    assert fleet.play("install", inventory, "-l", "h2").code == 0
    host.run("sh", "-c", f"rm -r /etc/tuner-lab /{SYSCTLS}; echo 4096 > /proc/sys/net/core/somaxconn")


def test_uninstall_leaves_nothing(fleet: Fleet) -> None:
    """Settings back, then not a file that the machine itself does not have; a second run changes nothing."""
    inventory = fleet.inventory("uninstall", SITE)
    before = values(fleet, "h2")
    assert fleet.play("apply", inventory, "-l", "h2").code == 0
    fleet["h2"].run("mkdir", "-p", "/run/systemd/system")  # for the install alone: nothing is there to be told
    fleet["h2"].run("/opt/tuner/bin/tuner", "slurm", "install", fine=False)
    fleet["h2"].run("rmdir", "/run/systemd/system")
    assert "etc/slurm/prolog.d/50-tuner" in fleet["h2"].written()
    done = fleet.play("uninstall", inventory, "-l", "h2")
    assert done.code == 0, done.out
    assert values(fleet, "h2") == before
    left = fleet["h2"].written()
    left.pop("etc/slurm/prolog.d")  # empty, and Slurm's
    assert left == {}
    assert fleet["h2"].run("find", "/run", "-name", "*tuner*") == ""
    assert fleet.play("uninstall", inventory, "-l", "h2").changed() == {"h2": 0}
    assert fleet.play("verify", inventory, "-l", "h2").code == 2
    assert fleet.play("install", inventory, "-l", "h2").changed() == {"h2": 1}
