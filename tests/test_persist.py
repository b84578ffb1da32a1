"""tuner persist: the units and udev rules, what they start and what they never start, and their way in and out."""

from __future__ import annotations

import configparser
import fcntl
import fnmatch
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, tree, unavailable, write_profile
from tests.reboot import reboot
from tests.test_idle import node, processes
from tuner import unitfiles
from tuner.boot import units
from tuner.cli import installing
from tuner.errors import Exit, TunerError
from tuner.host import Host, open_host

Tuner = Callable[..., Result]
Copy = Callable[..., Path]

PYTHON = "/opt/tuner/bin/python"
SYSTEMD = "etc/systemd/system"
APPLY = f"{SYSTEMD}/tuner-apply.service"
RULES = "etc/udev/rules.d/90-tuner.rules"
FILES = {
    APPLY, f"{SYSTEMD}/tuner-device.service", f"{SYSTEMD}/tuner-device.path", f"{SYSTEMD}/tuner-verify.service",
    f"{SYSTEMD}/tuner-verify.timer", RULES,
}  # fmt: skip
LINKS = {
    f"{SYSTEMD}/multi-user.target.wants/tuner-apply.service": "/etc/systemd/system/tuner-apply.service",
    f"{SYSTEMD}/multi-user.target.wants/tuner-device.path": "/etc/systemd/system/tuner-device.path",
    f"{SYSTEMD}/timers.target.wants/tuner-verify.timer": "/etc/systemd/system/tuner-verify.timer",
}


def image(folder: Path) -> Path:
    """The root of an image with systemd and tuner's own Python."""
    for name in ("etc/systemd/system", "usr/lib/systemd/system", "opt/tuner/bin"):
        (folder / name).mkdir(parents=True)
    (folder / PYTHON[1:]).touch(0o755)
    return folder


def made(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Files and links that are new."""
    return {name for name in after.keys() - before.keys() if after[name][0] != "dir"}


# --- in and out ---------------------------------------------------------------------------------------------------


def test_install_writes_and_enables_and_remove_takes_just_that_away(root: Path, tuner: Tuner) -> None:
    before = tree(root)
    result = tuner("persist", "install", "--root", root, "--json")
    after = tree(root)
    assert result.code == 0
    assert made(before, after) == {*FILES, *LINKS}
    assert {name.lstrip("/") for name in result.document["written"]} == {*FILES, *LINKS}
    assert {name: after[name][2].decode() for name in LINKS} == LINKS
    for name in FILES:
        status = (root / name).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o644, os.geteuid())
        assert (root / name).read_text().startswith("# Written by tuner")
    result = tuner("persist", "remove", "--root", root, "--json")
    assert (result.code, len(result.document["removed"])) == (0, 9)
    assert {k: v for k, v in tree(root).items() if v[0] != "dir"} == {k: v for k, v in before.items() if v[0] != "dir"}
    assert tuner("persist", "remove", "--root", root, "--json").document["removed"] == []


def test_a_second_install_writes_nothing(root: Path, tuner: Tuner) -> None:
    tuner("persist", "install", "--root", root)
    before = {name: (root / name).stat().st_ino for name in FILES}
    result = tuner("persist", "install", "--root", root, "--json")
    assert (result.code, result.document["written"]) == (0, [])
    assert {name: (root / name).stat().st_ino for name in FILES} == before


def test_on_a_recorded_host_what_systemd_must_be_told_is_said(root: Path, tuner: Tuner) -> None:
    after = tuner("persist", "install", "--root", root, "--json").document["after"]
    assert [row["action"] for row in after] == [
        "systemctl daemon-reload",
        "udevadm control --reload",
        "systemctl start tuner-device.path tuner-verify.timer",
    ]
    assert not any(row["done"] for row in after)


def test_an_image_is_enabled_by_its_links_and_nothing_is_left_to_do(tmp_path: Path, tuner: Tuner) -> None:
    root = image(tmp_path / "image")
    result = tuner("persist", "install", "--root", root, "--python", PYTHON, "--json")
    assert (result.code, result.document["after"]) == (0, [])
    assert {name: os.readlink(root / name) for name in LINKS} == LINKS
    assert f"ExecStart={PYTHON} -I -m tuner apply --boot\n" in (root / APPLY).read_text()
    assert tuner("persist", "status", "--root", root).code == 0
    assert units.unarmed(open_host(str(root))) == ""


@pytest.mark.parametrize("python", ["python3", "/opt/a b/python", "/opt/%h/python", "/opt/x\ny", "/opt/nothing/python"])
def test_an_interpreter_that_no_unit_could_start_is_refused(tmp_path: Path, tuner: Tuner, python: str) -> None:
    root = image(tmp_path / "image")
    before = tree(root)
    result = tuner("persist", "install", "--root", root, "--python", python)
    assert (result.code, "hint:" in result.err) == (64, True)
    assert tree(root) == before


@pytest.mark.parametrize("spoil", ["group", "others", "owner"])
def test_an_interpreter_that_others_can_change_is_never_run_as_root(tmp_path: Path, spoil: str) -> None:
    if os.geteuid() != 0:
        unavailable("root")
    root = image(tmp_path / "image")
    host = Host(str(root), "live", "test", "6.1.0")
    installing._trusted(host, PYTHON)
    folder = root / "opt/tuner"
    if spoil == "owner":
        os.chown(folder, 65534, 0)
    else:
        folder.chmod(0o775 if spoil == "group" else 0o757)
    with pytest.raises(TunerError, match="changed by others"):
        installing._trusted(host, PYTHON)


def test_without_systemd_it_is_refused(tmp_path: Path, tuner: Tuner) -> None:
    (tmp_path / "image/etc").mkdir(parents=True)
    result = tuner("persist", "install", "--root", tmp_path / "image", "--python", PYTHON)
    assert (result.code, "no systemd" in result.err, "hint:" in result.err) == (64, True, True)
    assert not (tmp_path / "image/etc/systemd").exists()


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_of_somebody_else_is_never_replaced_nor_removed(root: Path, tuner: Tuner, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("# Written by somebody\n")
    before = tree(root)
    result = tuner("persist", "install", "--root", root)
    assert (result.code, f"/{name}" in result.err) == (64, True)
    assert tree(root) == before
    result = tuner("persist", "remove", "--root", root, "--json")
    assert (result.code, result.document["removed"]) == (10, [])
    assert tree(root) == before


def test_every_name_that_is_taken_is_said_at_once(root: Path, tuner: Tuner) -> None:
    (root / APPLY).write_text("")
    (root / SYSTEMD / "tuner-verify.timer").symlink_to("/dev/null")
    result = tuner("persist", "install", "--root", root)
    assert result.code == 64
    assert result.err.count("is masked") == 2


def test_remove_leaves_what_somebody_put_in_place_of_ours(root: Path, tuner: Tuner) -> None:
    tuner("persist", "install", "--root", root)
    (root / APPLY).write_text("[Service]\nExecStart=/bin/true\n")
    result = tuner("persist", "remove", "--root", root, "--json")
    assert (result.code, result.document["left"]) == (10, [f"/{APPLY}: not written by tuner"])
    assert (root / APPLY).exists()
    assert not (root / RULES).exists()


def test_remove_reverts_no_setting(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "p.yaml", "sysctl:\n  vm.swappiness: 1")
    tuner("apply", "--root", root, "--profile", profile)
    tuner("persist", "install", "--root", root)
    tuner("persist", "remove", "--root", root)
    assert (root / "proc/sys/vm/swappiness").read_text() == "1\n"
    assert tuner("verify", "--root", root).code == 0


# --- how they stand -----------------------------------------------------------------------------------------------


def states(result: Result) -> dict[str, tuple[str, bool | None]]:
    """{unit: (state, enabled)} of a status."""
    return {row["name"]: (row["state"], row["enabled"]) for row in result.document["units"]}


def test_status_before_and_after(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    result = tuner("persist", "status", "--root", root, "--json")
    assert (result.code, {state for state, _ in states(result).values()}) == (10, {"not installed"})
    assert result.document["settings_id"] is None
    tuner("persist", "install", "--root", root)
    profile = write_profile(tmp_path / "p.yaml", "sysctl:\n  vm.swappiness: 1")
    applied = tuner("apply", "--root", root, "--profile", profile, "--json").document["settings_id"]
    result = tuner("persist", "status", "--root", root, "--json")
    assert (result.code, result.document["settings_id"]) == (0, applied)
    assert states(result) == {
        "tuner-apply.service": ("current", True),
        "tuner-device.service": ("current", None),
        "tuner-device.path": ("current", True),
        "tuner-verify.service": ("current", None),
        "tuner-verify.timer": ("current", True),
        "90-tuner.rules": ("current", None),
    }


def test_status_of_what_was_tampered_with(root: Path, tuner: Tuner) -> None:
    tuner("persist", "install", "--root", root)
    (root / SYSTEMD / "multi-user.target.wants/tuner-device.path").unlink()
    (root / RULES).write_text((root / RULES).read_text() + "# more\n")
    (root / SYSTEMD / "tuner-verify.timer").unlink()
    (root / SYSTEMD / "tuner-verify.timer").symlink_to("/dev/null")
    result = tuner("persist", "status", "--root", root, "--json")
    found = states(result)
    assert result.code == 10
    assert found["tuner-device.path"] == ("current", False)
    assert found["90-tuner.rules"] == ("outdated", None)
    assert found["tuner-verify.timer"][0] == "masked"


def test_an_older_install_is_brought_up_to_date(root: Path, tuner: Tuner) -> None:
    tuner("persist", "install", "--root", root, "--python", "/opt/old/bin/python")
    assert "ExecStart=/opt/old/bin/python " in (root / APPLY).read_text()
    assert tuner("persist", "status", "--root", root).code == 0
    assert tuner("persist", "install", "--root", root).code == 0
    assert f"ExecStart={sys.executable} " in (root / APPLY).read_text()


UNARMED: list[tuple[str, Callable[[Path], object], str]] = [
    ("gone", lambda root: (root / APPLY).unlink(), "no tuner-apply.service"),
    ("not enabled", lambda root: (root / next(iter(LINKS))).unlink(), "no tuner-apply.service"),
    ("empty", lambda root: (root / APPLY).write_text(""), "masked"),
    ("masked", lambda root: mask(root / APPLY), "masked"),
    ("foreign", lambda root: (root / APPLY).write_text("[Unit]\n"), "not tuner's own"),
    ("changed", lambda root: change(root / APPLY, r"ExecStart=.*", "ExecStart=/bin/true"), "starts no tuner"),
    ("older", lambda root: change(root / APPLY, r"units \d+", "units 0"), "older release"),
]
"""What may have become of the unit, and the word that the reason has."""


def mask(path: Path) -> None:
    """As systemctl mask does."""
    path.unlink()
    path.symlink_to("/dev/null")


def change(path: Path, pattern: str, text: str) -> None:
    """Replaces what the pattern finds."""
    path.write_text(re.sub(pattern, text, path.read_text()))


@pytest.mark.parametrize(("spoil", "word"), [row[1:] for row in UNARMED], ids=[row[0] for row in UNARMED])
def test_a_unit_that_will_not_run_is_unarmed(
    root: Path, tuner: Tuner, spoil: Callable[[Path], object], word: str
) -> None:
    tuner("persist", "install", "--root", root)
    assert units.unarmed(open_host(str(root))) == ""
    spoil(root)
    why = units.unarmed(open_host(str(root)))
    assert word in why
    assert units.INSTALL in why


def test_a_unit_whose_interpreter_is_gone_is_unarmed(tmp_path: Path, tuner: Tuner) -> None:
    root = image(tmp_path / "image")
    tuner("persist", "install", "--root", root, "--python", PYTHON)
    (root / PYTHON[1:]).unlink()
    assert f"starts {PYTHON}, which is not there" in units.unarmed(open_host(str(root)))


@given(st.text(max_size=60))
def test_only_our_first_line_is_ours(text: str) -> None:
    assert units.version(text) is None or text.startswith("# Written by tuner, units ")
    assert units.version(f"{units.header('x')}\n{text}") == units.VERSION


def test_a_setting_of_the_running_kernel_survives_the_boot_only_with_the_unit(
    root: Path, masters: Copy, tuner: Tuner, tmp_path: Path
) -> None:
    """The whole way: apply, install, reboot, the unit's own command, verify."""
    profile = write_profile(tmp_path / "p.yaml", "hugepages:\n  node0/2MB: 64\nthp:\n  enabled: madvise")
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    tuner("persist", "install", "--root", root)
    reboot(root, masters())
    assert tuner("verify", "--root", root).code == 10
    (command,) = re.findall(r"^ExecStart=\S+ -I -m tuner (.*)$", (root / APPLY).read_text(), re.MULTILINE)
    assert tuner(*command.split(), "--root", root).code == 0
    assert tuner("verify", "--root", root).code == 0


# --- the texts ----------------------------------------------------------------------------------------------------


def parsed(name: str) -> dict[str, dict[str, str]]:
    """The sections of a unit."""
    found = configparser.ConfigParser(interpolation=None, strict=True)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(unitfiles.texts(PYTHON).files[f"/{SYSTEMD}/{name}"])
    return {section: dict(found[section]) for section in found.sections()}


def test_the_boot_unit_is_ordered_and_can_fail_or_hang_without_harm() -> None:
    unit = parsed("tuner-apply.service")
    assert {"slurmd.service"} <= set(unit["Unit"]["Before"].split())
    assert {
        "local-fs.target", "systemd-modules-load.service", "systemd-sysctl.service", "openibd.service",
        "nvidia-persistenced.service", "nvidia-fabricmanager.service", "tuned.service",
    } <= set(unit["Unit"]["After"].split())  # fmt: skip
    assert not {"Requires", "RequiredBy", "BindsTo", "PartOf", "Wants", "OnFailure"} & {*unit["Unit"], *unit["Install"]}
    assert unit["Service"] == {
        "Type": "oneshot",
        "ExecStart": f"{PYTHON} -I -m tuner apply --boot",
        "TimeoutStartSec": "120",
        "TimeoutStopSec": "10",
        "KillMode": "mixed",
        "RemainAfterExit": "yes",
    }


@pytest.mark.parametrize("name", ["tuner-apply.service", "tuner-device.path", "tuner-verify.service"])
def test_nothing_starts_by_itself_when_off_or_in_a_crash_kernel(name: str) -> None:
    text = unitfiles.texts(PYTHON).files[f"/{SYSTEMD}/{name}"]
    assert "\nConditionPathExists=!/proc/vmcore\n" in text
    assert "\nConditionKernelCommandLine=!tuner.off\n" in text


def test_no_unit_reverts_anything_or_runs_a_shell() -> None:
    for path, text in unitfiles.texts(PYTHON).files.items():
        assert not re.search(r"^Exec(Stop|StopPost|Reload)=", text, re.MULTILINE), path
        assert not re.search(r"\bsh\b|bash", text), path
        for line in re.findall(r"^Exec\w+=(.*)$", text, re.MULTILINE):
            assert line.startswith(f"{PYTHON} -I -m tuner ")


def test_the_path_unit_can_start_its_service_again_and_again() -> None:
    """A service that stays active would be started once; a skipped one without end."""
    service, path = parsed("tuner-device.service"), parsed("tuner-device.path")
    assert "RemainAfterExit" not in service["Service"]
    assert not [name for name in service["Unit"] if name.startswith(("Condition", "Assert"))]
    assert path["Path"]["DirectoryNotEmpty"] == "/run/tuner/queue"
    assert path["Path"]["Unit"] == "tuner-device.service"


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        unavailable("systemd-analyze")
    paths = []
    for path, text in unitfiles.texts(sys.executable).files.items():
        if path.startswith(f"/{SYSTEMD}/"):
            (tmp_path / Path(path).name).write_text(text)
            paths.append(str(tmp_path / Path(path).name))
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *paths]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "tuner" in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_systemd_would_have_said(tmp_path: Path) -> None:
    """The check above can fail."""
    if shutil.which("systemd-analyze") is None:
        unavailable("systemd-analyze")
    text = unitfiles.texts("/nonexistent/python").files[f"/{APPLY}"].replace("Type=oneshot", "Typ=oneshot")
    (tmp_path / "tuner-apply.service").write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "tuner-apply.service")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "'Typ'" in done.stderr
    assert done.returncode != 0


# --- udev ---------------------------------------------------------------------------------------------------------

TOKEN = re.compile(r'\s*(?P<key>[A-Z]+)(?:\{(?P<of>[^}]*)\})?(?P<op>==|!=|\+=|=)"(?P<value>[^"]*)"\s*(?:,|$)')
PARENT_KEYS = ("SUBSYSTEMS", "DRIVERS", "KERNELS", "ATTRS")


def rules() -> list[list[tuple[str, str, str, str]]]:
    """The rules, a line each, as (key, of what, operator, value)."""
    found = []
    for line in unitfiles.texts(PYTHON).files[f"/{RULES}"].replace("\\\n", "").splitlines():
        if not line or line.startswith("#"):
            continue
        tokens, rest = [], line
        while rest:
            token = TOKEN.match(rest)
            assert token, f"udev(7) has no such token: {rest}"
            tokens.append((token["key"], token["of"] or "", token["op"], token["value"]))
            rest = rest[token.end() :]
        found.append(tokens)
    return found


def matches(pattern: str, text: str | None) -> bool:
    """As udev(7) compares: patterns of the shell, several of them between bars; what is not there matches none."""
    return text is not None and any(fnmatch.fnmatchcase(text, one) for one in pattern.split("|"))


Device = dict[str, Any]


def queued(device: Device) -> list[str]:
    """What the rules put into the queue for an event, by the meaning that udev(7) gives each key."""
    names: list[str] = []
    skip = ""
    for rule in rules():
        label = next((value for key, _, _, value in rule if key == "LABEL"), "")
        if skip and label != skip:
            continue
        skip = ""
        if not all(_holds(device, token) for token in rule if token[0] not in (*PARENT_KEYS, "RUN", "GOTO", "LABEL")):
            continue
        parents = [token for token in rule if token[0] in PARENT_KEYS]
        found = next((p for p in device["parents"] if all(_parent(p, token) for token in parents)), None)
        if parents and found is None:
            continue
        skip = next((value for key, _, _, value in rule if key == "GOTO"), "")
        for key, _, _, value in rule:
            if key == "RUN":
                marks = {"$name": device["name"], "$kernel": device["name"], "$id": (found or {}).get("name", "")}
                kind, mark = value.removeprefix("/bin/touch /run/tuner/queue/").split(":")
                names.append(f"{kind}:{marks[mark]}")
    return names


def _holds(device: Device, token: tuple[str, str, str, str]) -> bool:
    key, of, op, value = token
    match key:
        case "TEST":
            return (value in device["files"]) == (op == "==")
        case "ENV":
            found = matches(value, device["env"].get(of, ""))
        case "ATTR":
            return of in device["attributes"] and matches(value, device["attributes"][of]) == (op == "==")
        case "KERNEL":
            found = matches(value, device["name"])
        case _:
            found = matches(value, device.get(key))
    return found == (op == "==")


def _parent(parent: dict[str, str], token: tuple[str, str, str, str]) -> bool:
    return matches(token[3], parent.get({"SUBSYSTEMS": "subsystem", "DRIVERS": "driver"}[token[0]]))


def event(subsystem: str, name: str, action: str = "add", driver: str = "", **more: Any) -> Device:
    """An event of a device below a PCI function with that driver (or below none)."""
    itself = {"subsystem": subsystem, "name": name}
    parents = [itself, *more.pop("between", [])]
    parents += [{"subsystem": "pci", "driver": driver, "name": "0000:41:00.0"}] if driver else []
    device = {"SUBSYSTEM": subsystem, "ACTION": action, "name": name, "env": {}, "attributes": {}, "parents": parents}
    files = {"/run/tuner/queue"} | ({"device/config"} if driver else set())
    return {**device, "files": files | more.pop("files", set()), **more}


SYNTHETIC = {"SYNTH_UUID": "0"}
"""What the kernel adds to an event that user space asked for: lib/kobject_uevent.c, kobject_synth_uevent."""

EVENTS: list[tuple[str, Device, list[str]]] = [
    ("interface", event("net", "enp65s0f0np0", driver="mlx5_core"), ["net:enp65s0f0np0"]),
    ("interface renamed", event("net", "data0", "move", "bnxt_en"), ["net:data0"]),
    ("ethernet", event("net", "eth0", driver="e1000e"), ["net:eth0"]),
    ("uplink", event("net", "eth0", driver="mlx5_core", attributes={"phys_port_name": "p0"}), ["net:eth0"]),
    ("rdma", event("infiniband", "mlx5_0", driver="mlx5_core"), ["infiniband:mlx5_0"]),
    ("gpu", event("drm", "card1", driver="amdgpu"), ["pci:0000:41:00.0"]),
    ("bound", event("pci", "0000:41:00.0", "bind", DRIVER="ionic"), ["pci:0000:41:00.0"]),
    ("gpu bound", event("pci", "0000:05:00.0", "bind", DRIVER="amdgpu"), ["pci:0000:05:00.0"]),
    ("trigger add", event("net", "eth0", driver="mlx5_core", env=SYNTHETIC), []),
    ("trigger bind", event("pci", "0000:41:00.0", "bind", DRIVER="mlx5_core", env=SYNTHETIC), []),
    ("trigger with a name", event("drm", "card1", driver="amdgpu", env={"SYNTH_UUID": "a1b2"}), []),
    ("change", event("net", "eth0", "change", "mlx5_core"), []),
    ("removed", event("net", "eth0", "remove", "mlx5_core"), []),
    ("unbound", event("pci", "0000:41:00.0", "unbind", DRIVER="mlx5_core"), []),
    ("veth", event("net", "veth0a1b2c3"), []),
    ("bridge", event("net", "docker0"), []),
    ("vlan", event("net", "enp65s0f0np0.10"), []),
    ("virtual function", event("net", "eth9", driver="mlx5_core", files={"device/physfn"}), []),
    ("virtual function bound", event("pci", "0000:41:00.2", "bind", DRIVER="mlx5_core", files={"physfn"}), []),
    ("representor", event("net", "eth7", driver="mlx5_core", attributes={"phys_port_name": "pf0vf3"}), []),
    ("far representor", event("net", "eth7", driver="mlx5_core", attributes={"phys_port_name": "c1pf0vf3"}), []),
    (
        "sub-function",
        event("net", "eth8", between=[{"subsystem": "auxiliary", "driver": "mlx5_core.sf"}], driver="mlx5_core")
        | {"files": {"/run/tuner/queue"}},
        [],
    ),
    ("usb", event("net", "usb0", between=[{"subsystem": "usb", "driver": "cdc_ether"}], driver="xhci_hcd"), []),
    ("connector", event("drm", "card1-HDMI-A-1", driver="amdgpu"), []),
    ("render node", event("drm", "renderD128", driver="amdgpu"), []),
    ("another gpu", event("drm", "card0", driver="ast"), []),
    ("disk bound", event("pci", "0000:01:00.0", "bind", DRIVER="nvme"), []),
    ("no queue", event("net", "eth0", driver="mlx5_core") | {"files": {"device/config"}}, []),
]
"""Events, and the devices that they put into the queue."""


@pytest.mark.parametrize(("device", "names"), [row[1:] for row in EVENTS], ids=[row[0] for row in EVENTS])
def test_the_rules_name_what_really_came_and_nothing_else(device: Device, names: list[str]) -> None:
    assert queued(device) == names


def test_the_rules_are_whole() -> None:
    """Every way out has its label, and an event that user space asked for leaves before anything is named."""
    found = rules()
    labels = {value for rule in found for key, _, _, value in rule if key == "LABEL"}
    assert {value for rule in found for key, _, _, value in rule if key == "GOTO"} == labels == {"tuner_end"}
    first = next(n for n, rule in enumerate(found) if any(key == "RUN" for key, *_ in rule))
    asked = [("ENV", "SYNTH_UUID", "==", "?*"), ("GOTO", "", "=", "tuner_end")]
    assert asked in found[:first]


def test_udev_takes_the_rules(tmp_path: Path) -> None:
    """udevadm verify came with systemd 254; the test above reads each token where there is none."""
    tool = shutil.which("udevadm")
    known = tool and subprocess.run([tool, "verify", "--help"], capture_output=True, check=False).returncode == 0
    if tool is None or not known:
        pytest.skip("no udevadm verify here (systemd before 254)")
    (tmp_path / "90-tuner.rules").write_text(unitfiles.texts(PYTHON).files[f"/{RULES}"])
    done = subprocess.run([tool, "verify", str(tmp_path / "90-tuner.rules")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# --- idle ---------------------------------------------------------------------------------------------------------


def test_idle_asks_for_jobs_and_for_the_switch(root: Path, tuner: Tuner) -> None:
    assert tuner("persist", "idle", "--root", root).code == 0
    tuner("off", "--root", root, "--why", "maintenance")
    assert tuner("persist", "idle", "--root", root).code == Exit.HELD
    tuner("on", "--root", root)
    node(root, "/dev/kfd")
    processes(root, (4321, "python3", ["/dev/kfd"]))
    result = tuner("persist", "idle", "--root", root, "--json")
    assert (result.code, "python3" in result.document["busy"]) == (Exit.HELD, True)


def test_the_schema_of_units_is_kept(root: Path, tuner: Tuner) -> None:
    tuner("persist", "install", "--root", root)
    document = tuner("persist", "status", "--root", root, "--json").document
    assert json.loads(json.dumps(document))["schema"] == "tuner.persist/1"


def test_a_folder_in_place_of_a_unit_is_not_ours(root: Path, tuner: Tuner) -> None:
    """Named by status and by install, which writes nothing."""
    (root / "etc/systemd/system/tuner-apply.service").mkdir(parents=True)
    assert "not ours" in tuner("persist", "status", "--root", root).out
    done = tuner("persist", "install", "--root", root)
    assert done.code == 64
    assert "move it away" in done.err


def test_the_queue_loses_nothing_that_was_not_served(root: Path, tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held: the devices stay queued; a folder among them stops nobody."""
    queue = root / "run/tuner/queue"
    queue.mkdir(parents=True)
    (queue / "net:ens3").touch()
    (queue / "net:folder").mkdir()
    monkeypatch.setattr("tuner.cli.again.WAIT", 0.1)
    with open(root / "run/tuner/lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert tuner("apply", "--device", "queue", "--root", root).code == 30
    assert [path.name for path in queue.iterdir()] == ["net:ens3"]
    assert tuner("apply", "--device", "queue", "--root", root).code == 0
    assert not list(queue.iterdir())


CACHE = "etc/tuner/applied/current.json"


@pytest.mark.parametrize(
    "change",
    [
        {"settings_id": None}, {"settings_id": 5}, {"profile": 5}, {"reference": None}, {"sets": [1]},
        {"schema": "tuner.applied/9"}, {"readings": []}, {"settings": 3}, {"held": [1]},
    ],
)  # fmt: skip
def test_a_cache_that_is_not_what_it_should_be_is_none(
    root: Path, tuner: Tuner, tmp_path: Path, change: dict[str, Any]
) -> None:
    """/var is empty and the cache is of another release, or broken: nothing is applied then, and nothing crashes."""
    profile = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    assert tuner("apply", "--profile", profile, "--root", root).code == 0
    shutil.rmtree(root / "var/lib/tuner")
    cache = root / CACHE
    cache.write_text(json.dumps({**json.loads(cache.read_text()), **change}))
    assert tuner("verify", "--root", root).code == 64
    assert tuner("apply", "--boot", "--root", root).code == 0
    for verb in ("status", "history"):
        assert tuner(verb, "--root", root).code in (0, 10, 64)


def test_a_cache_without_an_end_is_none(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    (root / CACHE).parent.mkdir(parents=True)
    (root / CACHE).write_text("[" * 100_000)
    assert tuner("verify", "--root", root).code == 64
    assert tuner("persist", "status", "--root", root).code in (0, 10)
