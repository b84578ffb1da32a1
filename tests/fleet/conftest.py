"""The lab of the fleet tests: five hosts, a checkout of tuner that nobody edits meanwhile, and Ansible's files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import check_schema, unavailable
from tests.fleet import hosts
from tests.test_packaging import LEFT_OUT, REPO

PROFILE = """name: lab
summary: What a namespace has of its own
settings:
  sysctl:
    net.ipv4.tcp_rmem: "4096 131072 33000000"
    net.core.somaxconn: 4500
  file:
    /etc/tuner-lab/plain.conf: "for everybody\\n"
    /etc/tuner-lab/secret.conf: {value: {text: "hunter2-of-the-lab\\n", mode: "0600"}}
"""
SECRET = "hunter2-of-the-lab"
PASSWORD = "correct horse of the lab"

WITH_OPERATOR = f"""
useradd --create-home --groups sudo --shell /bin/bash op
echo 'op:{PASSWORD}' | chpasswd
mkdir -m 700 -p /home/op/.ssh
cp /root/.ssh/authorized_keys /home/op/.ssh/authorized_keys
chown -R op:op /home/op
"""
OLD_PYTHON = """
cp $(readlink -f /usr/bin/python3) /usr/local/bin/ansible-python
mkdir -p $PLACE/bin/up $PLACE/bin/work
mount -t overlay -o lowerdir=/usr/bin,upperdir=$PLACE/bin/up,workdir=$PLACE/bin/work none /usr/bin
rm -f /usr/bin/python3*
printf '#!/bin/sh\\necho 3.9.18\\n' > /usr/bin/python3.9
chmod 755 /usr/bin/python3.9
"""
"""Ansible has its own interpreter there; the distribution has one that is too old."""
SMALL = "mount -t tmpfs -o size=4m,mode=0755 none /opt"


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    document: dict[str, Any] = field(default_factory=dict)

    def changed(self) -> dict[str, int]:
        """From Ansible's recap: host -> tasks that changed something."""
        found = re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", self.out, re.MULTILINE)
        return {name: int(count) for name, count in found}


@dataclass
class Fleet:
    """The lab with tuner's checkout, and the two ways to use it: our command line and Ansible's."""

    lab: hosts.Lab
    checkout: Path
    env: dict[str, str]

    def __getitem__(self, name: str) -> hosts.NodeHost:
        return self.lab.hosts[name]

    def inventory(self, name: str, *more: str, **variables: str) -> Path:
        """Three hosts, or those of `variables`; they want the profile above and net.core.somaxconn of the site."""
        which: Mapping[str, str] = variables or {"h1": "", "h2": "", "h3": ""}
        path = self.lab.inventory(name, which)
        (path.parent / "group_vars").mkdir(exist_ok=True)
        own = "".join(f"    {line}\n" for line in PROFILE.splitlines())
        text = f"tuner_persist: false\ntuner_profile: lab\ntuner_files:\n  profiles/lab.yaml: |\n{own}"
        (path.parent / "group_vars/all.yml").write_text("\n".join([text, *more]) + "\n", encoding="utf-8")
        return path

    def play(self, name: str, inventory: Path, *words: str) -> Done:
        """ansible-playbook on the control node, all hosts at the same time."""
        book = str(self.checkout / "playbooks" / f"{name}.yml")
        program = str(Path(sys.executable).parent / "ansible-playbook")
        return self.call(program, "-i", str(inventory), "-e", "tuner_serial=100%", *words, book)

    def tuner(self, verb: str, *words: object) -> Done:
        """`tuner fleet VERB` on the control node; under --json the document is checked against its schema."""
        done = self.call(sys.executable, "-m", "tuner", "fleet", verb, *map(str, words))
        if "--json" in words:
            done.document = json.loads(done.out)
            check_schema(done.document)
        return done

    def start(self, *words: object) -> subprocess.Popen[str]:
        """A command on the control node that is not waited for."""
        return subprocess.Popen(
            self.lab.inside(list(map(str, words))), env=self.env, cwd=self.lab.place, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def call(self, *words: str) -> Done:
        """A command on the control node."""
        process = self.start(*words)
        out, err = process.communicate(timeout=200)
        assert "Traceback" not in out + err, out + err
        return Done(process.returncode, out, err)


def wiped(host: hosts.NodeHost) -> None:
    """Takes back what a test applied."""
    host.run("/opt/tuner/bin/tuner", "rollback", "--to", "0", "--force", fine=False)
    host.run("rm", "-rf", "/etc/tuner", "/var/lib/tuner", "/run/tuner")


@pytest.fixture(scope="session")
def empty() -> Iterator[Fleet]:
    """Hosts without tuner: h1 to h3; `old`, whose distribution has no fitting Python; `small`, with 4 MiB in /opt."""
    if hosts.missing():
        unavailable(hosts.missing())
    for module in ("ansible", "ansible_runner", "paramiko"):
        pytest.importorskip(module)
    place = Path(tempfile.mkdtemp(prefix="tl-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    checkout = place / "checkout"
    shutil.copytree(REPO, checkout, ignore=shutil.ignore_patterns(*LEFT_OUT, "vm", "fuse", "nvml"))
    env = {
        **os.environ, "HOME": str(place), "TMPDIR": str(place), "PYTHONPATH": str(checkout),
        "ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
    }  # fmt: skip
    for name in ("ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_CONFIG", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    try:
        with hosts.lab(place) as lab:
            for name, more in (("h1", ""), ("h2", ""), ("h3", WITH_OPERATOR), ("old", OLD_PYTHON), ("small", SMALL)):
                lab.start(name, more or "true")
            lab.wait()
            yield Fleet(lab, checkout, env)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@dataclass
class Installed:
    """What the installation of h1 to h3 gave, and how the hosts were before."""

    fleet: Fleet
    checked: Done
    left: list[dict[str, Any]]
    """What check mode left on each host."""
    first: Done
    second: Done


@pytest.fixture(scope="session")
def installed(empty: Fleet) -> Installed:
    """Hosts with tuner: planned in check mode, installed, and installed once more."""
    inventory = empty.inventory("install")
    checked = empty.play("install", inventory, "--check")
    left = [empty[name].written() for name in ("h1", "h2", "h3")]
    return Installed(empty, checked, left, empty.play("install", inventory), empty.play("install", inventory))


@pytest.fixture
def fleet(installed: Installed) -> Iterator[Fleet]:
    """The hosts with tuner installed and nothing applied."""
    assert installed.first.code == 0, installed.first.out
    yield installed.fleet
    for name in ("h1", "h2", "h3"):
        wiped(installed.fleet[name])
