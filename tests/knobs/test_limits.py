"""Limits of services: judged on the live process, kept by a drop-in and limits.d, pending until a restart."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import again, tree, unavailable, write_profile
from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue
from tuner.evidence import note
from tuner.host import open_host
from tuner.knobs.limits import Limits
from tuner.model import Absent, Seen, Setting, Unreadable, Want
from tuner.nextboot import ask
from tuner.sim import store

LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         {memlock:<20} {memlock:<20} bytes     \n"
    "Max open files            1024                 524288               files     \n"
)
UNIT = "[Service]\nExecStart=/usr/sbin/slurmd -D\n"
DROP_IN = "etc/systemd/system/slurmd.service.d/99-tuner.conf"
LIMITS_D = "etc/security/limits.d/99-tuner.conf"
KNOB = Limits()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A recorded host on which slurmd runs with systemd's default of 8 MiB; sshd is installed and stopped."""
    entries = {
        "/.tuner-host/host.yaml": "name: node\nkernel: 6.1.0\n",
        "/sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs": "812\n700\n",
        "/proc/700/comm": "slurmd\n",
        "/proc/700/limits": LIMITS.format(memlock="8388608"),
        "/proc/812/comm": "helper\n",
        "/proc/812/limits": LIMITS.format(memlock="65536"),
        "/usr/lib/systemd/system/slurmd.service": UNIT,
        "/usr/lib/systemd/system/sshd.service": UNIT,
        "/etc/security/limits.conf": "# nothing\n",
    }
    folders = {
        "/etc": ["security", "systemd"], "/etc/security": ["limits.conf"], "/etc/systemd": ["system"],
        "/etc/systemd/system": [], "/run/systemd": [], "/usr": ["lib"], "/usr/lib": ["systemd"],
        "/usr/lib/systemd": ["system"], "/usr/lib/systemd/system": [
            "slurmd.service", "sshd.service"], "/sys/fs/cgroup": ["system.slice"],
        "/sys/fs/cgroup/system.slice": ["slurmd.service"], "/lib": [],
        "/sys/fs/cgroup/system.slice/slurmd.service": ["cgroup.procs"],
    }  # fmt: skip
    text = ["tuner-host 1"]
    for path in sorted({*entries, *folders}):
        if path in entries:
            text += [f"file 0644 {path}", *("|" + line for line in entries[path].splitlines())]
        else:
            text += [f"dir 0755 {path}", *("|" + name for name in sorted(folders[path]))]
    manifest = tmp_path / "node.host"
    manifest.write_text("\n".join(text) + "\n", encoding="utf-8")
    store.copy(manifest, str(tmp_path / "node"), [])
    return tmp_path / "node"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "p.yaml", "limits: {slurmd.service/memlock: unlimited}")


def test_the_process_named_like_the_unit_is_judged(node: Path) -> None:
    """Its control group holds a helper with other limits as well."""
    assert KNOB.read(open_host(str(node)), "slurmd.service/memlock") == Seen({"soft": 8388608, "hard": 8388608})
    assert KNOB.read(open_host(str(node)), "slurmd.service/nofile") == Seen({"soft": 1024, "hard": 524288})


def test_a_service_that_does_not_run_holds_nothing_and_one_that_is_not_there_is_unsupported(node: Path) -> None:
    host = open_host(str(node))
    assert KNOB.read(host, "sshd.service/memlock") == Seen({"soft": None, "hard": None})
    assert isinstance(KNOB.read(host, "nothing.service/memlock"), Absent)


@pytest.mark.parametrize("target", ["slurmd/memlock", "slurmd.service", "slurmd.service/cpu", "../x.service/memlock"])
def test_names_that_are_no_limit(target: str) -> None:
    with pytest.raises(BadValue):
        KNOB.canonical(target)


@pytest.mark.parametrize("text", ["8M", "-1", "08", "infinite"])
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(BadValue):
        KNOB.parse("slurmd.service/memlock", text)


def test_plan_apply_pending_restart_ok(node: Path, profile: Path, tuner: Callable[..., Any]) -> None:
    """The files are written; the running slurmd keeps 8 MiB: pending (13) until it is restarted, then ok."""
    before = tree(node)
    applied = tuner("apply", "--root", node, "--profile", profile, "--json")
    assert applied.code == 0
    assert (node / DROP_IN).read_text() == "# Written by tuner\n[Service]\nLimitMEMLOCK=infinity\n"
    assert (node / LIMITS_D).read_text() == "# Written by tuner\n* - memlock unlimited\n"
    assert [a["action"] for a in applied.document["after"]] == ["daemon-reload"]
    assert applied.document["after"][0]["done"] is False, "a recorded host is told nothing"
    verdict = tuner("verify", "--root", node, "--json")
    assert verdict.code == 13
    (limits,) = [v for v in verdict.document["verdicts"] if v["knob"] == "limits"]
    assert limits["state"] == "pending"
    assert "until slurmd.service is restarted" in limits["state_why"]
    again = tuner("apply", "--root", node, "--profile", profile, "--json")
    assert (again.code, again.document["generation"]) == (0, None)
    (node / "proc/700/limits").write_text(LIMITS.format(memlock="unlimited"))
    assert tuner("verify", "--root", node).code == 0
    (node / "proc/700/limits").write_text(LIMITS.format(memlock="8388608"))
    assert tuner("rollback", "--root", node).code == 0
    assert tree(node) == before


def test_a_bound_that_holds_already_gets_no_file(node: Path, tmp_path: Path, tuner: Callable[..., Any]) -> None:
    (node / "usr/lib/systemd/system/slurmd.service").write_text(f"{UNIT}LimitMEMLOCK=8M\n")
    profile = write_profile(tmp_path / "p.yaml", "limits: {slurmd.service/memlock: {at_least: 1048576}}")
    plan = tuner("plan", "--root", node, "--profile", profile, "--json")
    assert plan.code == 0
    assert [v["state"] for v in plan.document["verdicts"]] == ["raised"]


def test_at_least_takes_unlimited_for_more_than_any_number(
    node: Path, tmp_path: Path, tuner: Callable[..., Any]
) -> None:
    (node / "proc/700/limits").write_text(LIMITS.format(memlock="unlimited"))
    (node / "usr/lib/systemd/system/slurmd.service").write_text(f"{UNIT}LimitMEMLOCK=infinity\n")
    profile = write_profile(tmp_path / "p.yaml", "limits: {slurmd.service/memlock: {at_least: 9000000000000}}")
    assert tuner("plan", "--root", node, "--profile", profile).code == 0


def test_numbers_stand_in_the_drop_in_alone(node: Path, tmp_path: Path, tuner: Callable[..., Any]) -> None:
    """A number in limits.d would cap every login for the sake of one service."""
    settings = "limits: {slurmd.service/memlock: 1073741824, slurmd.service/nofile: 1048576}"
    assert tuner("apply", "--root", node, "--profile", write_profile(tmp_path / "p.yaml", settings)).code == 0
    assert not (node / LIMITS_D).exists()
    assert "LimitMEMLOCK=1073741824\nLimitNOFILE=1048576\n" in (node / DROP_IN).read_text()


def test_a_lower_bound_takes_nothing_away(node: Path, tmp_path: Path, tuner: Callable[..., Any]) -> None:
    """soft 1024, hard 524288, wanted at least 65536: the hard limit stays open; a second plan has nothing to do."""
    profile = write_profile(tmp_path / "p.yaml", "limits: {slurmd.service/nofile: {at_least: 65536}}")
    assert tuner("apply", "--root", node, "--profile", profile).code == 0
    assert "LimitNOFILE=65536:infinity\n" in (node / DROP_IN).read_text()
    assert tuner("verify", "--root", node).code == 13
    assert tuner("apply", "--root", node, "--profile", profile, "--json").document["generation"] is None


def test_a_service_that_is_not_installed_gets_no_drop_in(node: Path, tmp_path: Path, tuner: Callable[..., Any]) -> None:
    profile = write_profile(tmp_path / "p.yaml", "limits: {nothing.service/memlock: unlimited}")
    plan = tuner("plan", "--root", node, "--profile", profile, "--json")
    assert [v["state"] for v in plan.document["verdicts"]] == ["unsupported"]
    assert plan.document["changes"] == []


CGROUP = next(
    (p for p in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")) if (p / "cgroup.procs").exists()), None
)


@pytest.fixture
def live_unit() -> Iterator[tuple[str, int]]:
    """A real process with a memlock of 1 MiB in the control group of a unit that systemd would have made."""
    if CGROUP is None or os.geteuid() != 0 or not os.access(CGROUP, os.W_OK):
        unavailable("needs root and a control group hierarchy that can be written")
        raise AssertionError
    slice_ = CGROUP / "system.slice"
    made = not slice_.exists()
    group = slice_ / "tuner-test.service"
    group.mkdir(parents=True)
    code = (
        "import resource as r, time; r.setrlimit(r.RLIMIT_MEMLOCK, (1 << 20,) * 2); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        (group / "cgroup.procs").write_text(str(process.pid))
        yield "tuner-test.service", process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        group.rmdir()
        if made:
            slice_.rmdir()


@pytest.mark.xdist_group("live")
def test_a_real_process_is_judged_by_its_own_limits(live_unit: tuple[str, int]) -> None:
    unit, pid = live_unit
    host = open_host()
    assert KNOB.read(host, f"{unit}/memlock") == Seen({"soft": 1 << 20, "hard": 1 << 20})
    resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (1 << 18, 1 << 19))
    assert KNOB.read(host, f"{unit}/memlock") == Seen({"soft": 1 << 18, "hard": 1 << 19})
    assert f"{unit}/memlock" in KNOB.targets(host, "tuner-*/memlock")


# --- evidence: which processes there are changes all the time; what the one that is judged holds does not -----------

GROUP = "sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
@pytest.mark.parametrize(
    ("path", "text", "same"),
    [
        (GROUP, "700\n812\n99999\n", True),
        (GROUP, "700\n", True),
        (GROUP, "812\n", False),
        (GROUP, "", False),
        ("proc/700/comm", "other\n", False),
        ("proc/700/limits", LIMITS.format(memlock="unlimited"), False),
        ("proc/812/limits", LIMITS.format(memlock="1"), True),
    ],
)
def test_evidence_is_the_process_that_is_judged(node: Path, path: str, text: str, same: bool) -> None:
    host = open_host(str(node))
    noted = note(host)
    KNOB.read(host, "slurmd.service/memlock")
    (node / path).write_text(text)
    assert again(noted) is same


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
def test_a_service_that_starts_is_seen(node: Path) -> None:
    """Without a process there is nothing to judge; that there is none is evidence."""
    host = open_host(str(node))
    noted = note(host)
    assert KNOB.read(host, "sshd.service/memlock") == Seen({"soft": None, "hard": None})
    assert again(noted)
    group = node / "sys/fs/cgroup/system.slice/sshd.service"
    group.mkdir()
    (group / "cgroup.procs").write_text("900\n")
    assert not again(noted)


# --- the next boot

SYSTEM = "usr/lib/systemd/system"
ETC = "etc/systemd/system"


def ahead(node: Path, files: Mapping[str, str], target: str = "slurmd.service/memlock") -> Next:
    """The next boot of a limit, with these files put into the host."""
    for path, text in files.items():
        (node / path).parent.mkdir(parents=True, exist_ok=True)
        (node / path).write_text(text)
    wanted = Setting("limits", target, target, Want("value", "unlimited"), "p.yaml:1", "why", "source")
    return ask(KNOB, Boots(open_host(str(node))), wanted)


def limit(soft: int | str, hard: int | str | None = None) -> Seen:
    """A reading."""
    return Seen({"soft": soft, "hard": soft if hard is None else hard})


def service(value: str) -> str:
    """A drop-in."""
    return f"[Service]\nLimitMEMLOCK={value}\n"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("infinity", limit("unlimited")), ("8M", limit(8388608)), ("65536", limit(65536)), ("1K:2K", limit(1024, 2048)),
        ("1G:infinity", limit(1073741824, "unlimited")), ("much", None), ("1:2:3", None), ("-1", None),
    ],
)  # fmt: skip
def test_values_as_systemd_takes_them(node: Path, value: str, found: Seen | None) -> None:
    """systemd.exec(5), "Process Properties": SOFT:HARD, suffixes in 1024s, infinity."""
    answer = ahead(node, {f"{ETC}/slurmd.service.d/a.conf": service(value)})
    assert answer.winner == f"/{ETC}/slurmd.service.d/a.conf:2"
    assert answer.reading == found if found else isinstance(answer.reading, Unreadable)


@pytest.mark.parametrize(
    ("files", "winner"),
    [
        ({f"{ETC}/slurmd.service.d/99-tuner.conf": service("1"), f"{ETC}/slurmd.service.d/10-site.conf": service("2")},
         f"/{ETC}/slurmd.service.d/99-tuner.conf:2"),
        ({f"{ETC}/slurmd.service.d/99-tuner.conf": service("1"), f"{ETC}/slurmd.service.d/override.conf": service("2")},
         f"/{ETC}/slurmd.service.d/override.conf:2"),
        ({f"{ETC}/slurmd.service.d/99-tuner.conf": service("1"), f"{SYSTEM}/slurmd.service.d/zz.conf": service("2")},
         f"/{SYSTEM}/slurmd.service.d/zz.conf:2"),
        ({f"{ETC}/slurmd.service.d/99-tuner.conf": service("1"), f"{ETC}/service.d/zz.conf": service("2")},
         f"/{ETC}/service.d/zz.conf:2"),
        ({f"{ETC}/slurmd.service.d/a.conf": service("1"), f"{SYSTEM}/slurmd.service.d/a.conf": service("2")},
         f"/{ETC}/slurmd.service.d/a.conf:2"),
        ({f"{ETC}/slurmd.service.d/a.conf": service("1"), f"{ETC}/service.d/a.conf": service("2")},
         f"/{ETC}/slurmd.service.d/a.conf:2"),
        ({f"{ETC}/slurmd.service.d/a.conf": service("1"), "run/systemd/system/slurmd.service.d/z.conf": service("2")},
         f"/{ETC}/slurmd.service.d/a.conf:2"),
        ({f"{ETC}/slurmd.service.d/a.conf": "[Unit]\nLimitMEMLOCK=1\n[Service]\n#LimitMEMLOCK=2\n LimitMEMLOCK = 3\n"},
         f"/{ETC}/slurmd.service.d/a.conf:5"),
        ({f"{SYSTEM}/slurmd.service": f"{UNIT}LimitMEMLOCK=4\n"}, f"/{SYSTEM}/slurmd.service:3"),
        ({f"{SYSTEM}/slurmd.service": f"{UNIT}LimitMEMLOCK=4\n", f"{ETC}/slurmd.service": service("5")},
         f"/{ETC}/slurmd.service:2"),
        ({"etc/systemd/system.conf": "[Manager]\nDefaultLimitMEMLOCK=6\n"}, "/etc/systemd/system.conf:2"),
        ({"etc/systemd/system.conf": "[Manager]\nDefaultLimitMEMLOCK=6\n",
          "etc/systemd/system.conf.d/a.conf": "[Manager]\nDefaultLimitMEMLOCK=7\n"},
         "/etc/systemd/system.conf.d/a.conf:2"),
        ({f"{ETC}/slurmd.service.d/a.conf": service("1"), f"{ETC}/slurmd.service.d/b.conf": service(""),
          "etc/systemd/system.conf": "[Manager]\nDefaultLimitMEMLOCK=6\n"}, "/etc/systemd/system.conf:2"),
    ],
)  # fmt: skip
def test_who_wins(node: Path, files: dict[str, str], winner: str) -> None:
    """systemd.unit(5): drop-ins by file name over all folders; of one name the first; /run is gone; system.conf."""
    assert ahead(node, files).winner == winner


def test_no_file_sets_it(node: Path) -> None:
    found = ahead(node, {})
    assert found == Next(Absent("no file sets LimitMEMLOCK: systemd's own default"))


def test_a_masked_service_and_one_that_is_not_there(node: Path) -> None:
    (node / f"{ETC}/sshd.service").symlink_to("/dev/null")
    assert ahead(node, {}, "sshd.service/nofile").reading == Absent("sshd.service is masked")
    assert ahead(node, {}, "nosuch.service/nofile").reading == Absent("nosuch.service is not installed")


def test_drop_ins_of_an_alias_and_of_a_prefix(node: Path) -> None:
    """An alias is the same unit under another name; foo-.service.d is for every name that begins so."""
    (node / f"{ETC}/ssh.service").symlink_to(f"/{SYSTEM}/sshd.service")
    found = ahead(node, {f"{ETC}/sshd.service.d/a.conf": service("1M")}, "ssh.service/memlock")
    assert found == Next(limit(1048576), f"/{ETC}/sshd.service.d/a.conf:2")
    files = {f"{SYSTEM}/slurm-gpu-node.service": UNIT, f"{ETC}/slurm-.service.d/a.conf": service("2M")}
    assert ahead(node, files, "slurm-gpu-node.service/memlock").reading == limit(2097152)
    files = {f"{SYSTEM}/job@.service": UNIT, f"{ETC}/job@.service.d/a.conf": service("3M")}
    assert ahead(node, files, "job@7.service/memlock").reading == limit(3145728)
