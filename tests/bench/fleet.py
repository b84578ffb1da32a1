"""What 50 settings cost over Ansible: our module in one task, beside a task for each setting.

    python -m tests.bench.fleet [ROUNDS]

Three hosts in namespaces with their own sshd. 25 kernel parameters by ansible.posix.sysctl, 20 files by copy and 5
commands, against a profile with the same 50; each from the same start, in turn, with pipelining. Needs root, and the
collection ansible.posix (in the package `ansible`); without it those tasks are commands, which is said.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from tests.bench import timing
from tests.fleet import hosts
from tuner.shipped import PACKAGE

REPO = PACKAGE.parent
NAMES = ("h1", "h2", "h3")
NEIGHBOURS = (
    "app_solicit", "ucast_solicit", "mcast_solicit", "mcast_resolicit", "delay_first_probe_time", "gc_stale_time",
    "proxy_qlen",
)  # fmt: skip
TCP = (
    "comp_sack_delay_ns", "comp_sack_nr", "comp_sack_slack_ns", "max_reordering", "min_tso_segs", "min_rtt_wlen",
    "probe_interval", "probe_threshold", "retries2", "orphan_retries",
)  # fmt: skip
SYSCTLS = [f"net.ipv4.neigh.{device}.{key}" for device in ("eth0", "lo") for key in NEIGHBOURS]
SYSCTLS += [*(f"net.ipv4.tcp_{key}" for key in TCP), "net.core.somaxconn"]
"""Each namespace of a network has its own of these."""
COMMANDS = [f"net.ipv4.tcp_{key}" for key in ("keepalive_time", "keepalive_intvl", "keepalive_probes", "syn_retries")]
COMMANDS += ["net.ipv4.tcp_fin_timeout"]
FILES = [f"/etc/bench/{number:02d}.conf" for number in range(20)]
OURS, SINGLE = "tuner, one task", "a task for each setting"


def collection() -> bool:
    """Whether ansible.posix is there, as a package or below ANSIBLE_COLLECTIONS_PATH."""
    places = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "").split(os.pathsep)
    if any(Path(place, "ansible_collections/ansible/posix").is_dir() for place in places if place):
        return True
    try:
        return importlib.util.find_spec("ansible_collections.ansible.posix") is not None
    except ModuleNotFoundError:
        return False


def profile(start: dict[str, int]) -> str:
    """The 50 settings as a profile: each number one higher than now."""
    wanted = {key: number + 1 for key, number in start.items()}
    settings = {"sysctl": wanted, "file": {path: f"# {path}\n" for path in FILES}}
    return yaml.safe_dump({"name": "bench", "summary": "Fifty settings", "settings": settings})


def single(start: dict[str, int], posix: bool) -> list[dict[str, object]]:
    """The same 50 as tasks."""
    tasks: list[dict[str, object]] = []
    for key in SYSCTLS:
        about = {"name": key, "value": str(start[key] + 1), "sysctl_file": "/etc/sysctl.d/98-bench.conf"}
        command = {"argv": ["sysctl", "-w", f"{key}={start[key] + 1}"]}
        action = {"ansible.posix.sysctl": about} if posix else {"ansible.builtin.command": command}
        tasks.append({"name": key, **action})
    for path in FILES:
        about = {"content": f"# {path}\n", "dest": path, "mode": "0644"}
        tasks.append({"name": path, "ansible.builtin.copy": about})
    for key in COMMANDS:
        words = ["sysctl", "-w", f"{key}={start[key] + 1}"]
        tasks.append({"name": key, "ansible.builtin.command": {"argv": words}})
    return tasks


def reset(lab: hosts.Lab, start: dict[str, int]) -> None:
    """Every host as before: nothing applied, no file, the numbers of the start."""
    numbers = "".join(f"echo {number} > /proc/sys/{key.replace('.', '/')}\n" for key, number in start.items())
    clean = "/opt/tuner/bin/tuner rollback --to 0 >/dev/null 2>&1\n"
    clean += "rm -rf /etc/tuner /var/lib/tuner /run/tuner /etc/sysctl.d/98-bench.conf /etc/bench\nmkdir /etc/bench\n"
    for name in NAMES:
        lab.hosts[name].run("sh", "-c", clean + numbers)


def play(lab: hosts.Lab, inventory: Path, book: Path, *words: str) -> float:
    """Seconds that a playbook takes; any failure ends the benchmark."""
    program = str(Path(sys.executable).parent / "ansible-playbook")
    env = {**os.environ, "HOME": str(lab.place), "ANSIBLE_PIPELINING": "1"}
    begin = time.perf_counter()
    done = subprocess.run(
        lab.inside([program, "-i", str(inventory), str(book), *words]),
        env=env, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{book.name} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return time.perf_counter() - begin


def measured(lab: hosts.Lab, rounds: int) -> tuple[dict[str, list[float]], bool]:
    """Seconds by name: the first run, which changes all 50, and the second, which changes nothing."""
    inventory = lab.inventory("bench", dict.fromkeys(NAMES, ""), "    tuner_persist: false\n")
    play(lab, inventory, REPO / "playbooks/install.yml")
    start = {key: int(lab.hosts["h1"].sysctl(key)) for key in (*SYSCTLS, *COMMANDS)}
    (inventory.parent / "group_vars").mkdir()
    known = {"tuner_profile": "bench", "tuner_files": {"profiles/bench.yaml": profile(start)}, "tuner_serial": "100%"}
    (inventory.parent / "group_vars/all.yml").write_text(yaml.safe_dump(known), encoding="utf-8")
    posix = collection()
    book = lab.place / "single.yml"
    tasks = {"hosts": "all", "gather_facts": False, "become": True, "tasks": single(start, posix)}
    book.write_text(yaml.safe_dump([tasks]), encoding="utf-8")
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, playbook in ((OURS, REPO / "playbooks/apply.yml"), (SINGLE, book)):
            reset(lab, start)
            for again in ("", ", again"):
                found.setdefault(name + again, []).append(play(lab, inventory, playbook))
    return found, posix


def main(rounds: int) -> str:
    """Prepares, measures, returns the table."""
    if hosts.missing():
        raise SystemExit(hosts.missing())
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/dev/shm") as name, hosts.lab(Path(name)) as lab:
        for host in NAMES:
            lab.start(host)
        lab.wait()
        found, posix = measured(lab, rounds)
    medians = {name: statistics.median(times) for name, times in found.items()}
    rows = [f"{name:<32} {median:6.1f} s" for name, median in medians.items()]
    first, again = (medians[SINGLE + part] / medians[OURS + part] for part in ("", ", again"))
    rows.append(f"50 settings on {len(NAMES)} hosts: {first:.1f} times faster, {again:.1f} times where nothing changes")
    if not posix:
        rows.append("(ansible.posix is not installed: its 25 tasks were commands)")
    return f"{timing.machine()}, {rounds} rounds in turn\n" + "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2) + "\n")
