"""Several hosts on this machine: each a network, mount and UTS namespace with its own sshd, /etc, /var, /root and /opt.

The control node is a network namespace too, with a bridge to them, so that nothing is reached from outside. What a host
writes goes to the upper layers of its overlays, which the tests read from here. /run is a file system of its own, and
all of /proc/sys but net/ is read-only: a setting that is the whole machine's cannot be changed by mistake.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import tree

NEEDED = ("sshd", "ssh-keygen", "ip", "sudo", "unshare", "nsenter", "chpasswd")
OVERLAYS = ("etc", "var", "root", "opt", "home", "usr/local")
NETWORK = "198.18.77"
"""Of RFC 2544: nobody's addresses."""
SPACES = "tuner-fleet-"
CONTROL = f"{SPACES}ctl"
LOGINS = ("var/log/lastlog", "var/log/wtmp", "var/log/btmp")
"""What sshd writes at every login."""

SETUP = """
set -e
hostname $NAME
mount --make-rprivate /
for m in $OVERLAYS; do
    mount -t overlay -o lowerdir=/$m,upperdir=$PLACE/$m/up,workdir=$PLACE/$m/work none /$m
done
mount -t tmpfs -o mode=0755 none /run
mkdir -p /run/sshd
mount --bind /proc/sys /proc/sys
mount --bind /proc/sys/net /proc/sys/net
mount -o remount,bind,ro /proc/sys
ip link set lo up
rm -rf /root/.ssh; mkdir -m 700 -p /root/.ssh
cp $PLACE/../key.pub /root/.ssh/authorized_keys
chown -R root:root /root/.ssh
chmod 700 /root; chmod 600 /root/.ssh/authorized_keys
$MORE
exec $SSHD -D -e -f /dev/null -h $PLACE/hostkey -o PidFile=none -o UsePAM=no -o PermitRootLogin=prohibit-password \
    -o ListenAddress=$ADDRESS -o AuthorizedKeysFile=.ssh/authorized_keys -o StrictModes=yes -o MaxStartups=100 \
    -o Subsystem='sftp internal-sftp'
"""


def missing() -> str:
    """What the machine lacks for this; empty when it has all."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    lacking = [name for name in NEEDED if found(name) is None]
    return f"hosts in namespaces need {', '.join(lacking)}" if lacking else ""


def found(program: str) -> str | None:
    """The whole path of a program; those for root alone are found too."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class NodeHost:
    """One host: `place` holds its upper layers."""

    name: str
    address: str
    place: Path
    process: subprocess.Popen[bytes]
    first: dict[str, tuple[str, int, bytes]] = field(default_factory=dict)
    """What had been written before any test."""

    def run(self, *words: str, fine: bool = True) -> str:
        """Runs a command inside the host, not over ssh."""
        command = ["nsenter", "-t", str(self.process.pid), "-n", "-m", "-u", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 or not fine, done.stderr
        return done.stdout

    def written(self, *folders: str) -> dict[str, tuple[str, int, bytes]]:
        """Everything that differs from the machine below these folders: path -> kind, mode, content."""
        rows = {}
        for folder in folders or ("etc", "var", "opt", "usr/local"):
            for name, what in tree(self.place / folder / "up").items():
                rows[f"{folder}/{name}"] = what
        old = self.first.get
        return {n: w for n, w in rows.items() if not n.startswith(LOGINS) and not _same(n, w) and old(n) != w}

    def sysctl(self, key: str) -> str:
        """A kernel parameter inside the host."""
        return self.run("cat", f"/proc/sys/{key.replace('.', '/')}").strip()


@dataclass
class Lab:
    """The hosts, the control node, and the files that Ansible needs."""

    place: Path
    hosts: dict[str, NodeHost] = field(default_factory=dict)

    def inside(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` on the control node."""
        return ["ip", "netns", "exec", CONTROL, *words]

    def inventory(self, name: str, hosts: Mapping[str, str], more: str = "") -> Path:
        """An inventory of its own folder: host -> its variables in YAML; `more` for all of them."""
        folder = self.place / "inventories" / name
        folder.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"    {host}: {{{variables}}}\n" for host, variables in hosts.items())
        common = f"    ansible_ssh_common_args: -F {self.place}/ssh_config\n    ansible_user: root\n"
        common += "    ansible_python_interpreter: /usr/bin/python3\n"
        text = f"all:\n  hosts:\n{rows}  vars:\n{common}{more}"
        (folder / "hosts.yml").write_text(text, encoding="utf-8")
        return folder / "hosts.yml"

    def start(self, name: str, more: str = "true") -> NodeHost:
        """Starts a host; `more` is a shell command that runs in it before sshd."""
        place, number = self.place / name, len(self.hosts) + 1
        address, short = f"{NETWORK}.{number}", f"tv{number}"
        for folder in OVERLAYS:
            for layer in ("up", "work"):
                (place / folder / layer).mkdir(parents=True)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "hostkey"))
        space = f"{SPACES}{name}"
        sh("ip", "netns", "add", space)
        sh("ip", "-n", CONTROL, "link", "add", short, "type", "veth", "peer", "name", "eth0", "netns", space)
        sh("ip", "-n", CONTROL, "link", "set", short, "master", "br0", "up")
        sh("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        sh("ip", "-n", space, "link", "set", "eth0", "up")
        env = {
            **os.environ, "NAME": name, "PLACE": str(place), "ADDRESS": address, "OVERLAYS": " ".join(OVERLAYS),
            "SSHD": found("sshd") or "", "LC_ALL": "C",
        }  # fmt: skip
        script = SETUP.replace("$MORE", more)
        words = ["ip", "netns", "exec", space, "unshare", "-m", "-u", "sh", "-c", script]
        with open(place / "sshd.log", "wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, env=env, start_new_session=True)
        self.hosts[name] = NodeHost(name, address, place, process)
        self.know(name, address, (place / "hostkey.pub").read_text(encoding="ascii"))
        return self.hosts[name]

    def know(self, name: str, address: str, key: str) -> None:
        """A host in ssh's configuration, with the key that is known of it."""
        with open(self.place / "ssh_config", "a", encoding="ascii") as config:
            config.write(f"Host {name}\n  HostName {address}\n  HostKeyAlias {name}\n")
        with open(self.place / "known_hosts", "a", encoding="ascii") as known:
            known.write(f"{name},{address} {' '.join(key.split()[:2])}\n")

    def wait(self) -> None:
        """Until every sshd answers."""
        for host in self.hosts.values():
            for _ in range(100):
                words = ["ssh", "-F", str(self.place / "ssh_config"), f"root@{host.name}", "true"]
                if subprocess.run(self.inside(words), capture_output=True, timeout=20, check=False).returncode == 0:
                    break
                assert host.process.poll() is None, (host.place / "sshd.log").read_text()
                time.sleep(0.1)
            else:
                raise AssertionError(f"{host.name} does not answer: {(host.place / 'sshd.log').read_text()}")
            host.first = host.written()


def _same(name: str, what: tuple[str, int, bytes]) -> bool:
    """A folder in which something came and went is copied up, and is as the machine's own."""
    below = Path("/", name)
    return what[0] == "dir" and below.is_dir() and stat.S_IMODE(below.stat().st_mode) == what[1]


def sh(*words: str) -> None:
    """A command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@contextlib.contextmanager
def lab(place: Path) -> Iterator[Lab]:
    """A control node without hosts; all of it is gone afterwards."""
    made = Lab(place)
    clean()
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "key"))
    sh("ip", "netns", "add", CONTROL)
    for words in (
        ("link", "add", "br0", "type", "bridge"), ("addr", "add", f"{NETWORK}.254/24", "dev", "br0"),
        ("link", "set", "br0", "up"), ("link", "set", "lo", "up"),
    ):  # fmt: skip
        sh("ip", "-n", CONTROL, *words)
    (place / "ssh_config").write_text(
        f"IdentityFile {place}/key\nUserKnownHostsFile {place}/known_hosts\nIdentitiesOnly yes\nConnectTimeout 5\n"
        "BatchMode yes\n",
        encoding="ascii",
    )
    try:
        yield made
    finally:
        for host in made.hosts.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(host.process.pid, signal.SIGKILL)
            host.process.wait(timeout=20)
        clean()


def clean() -> None:
    """Removes our namespaces, also those that a killed run left."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=20, check=False)
    for name in [line.split()[0] for line in done.stdout.splitlines() if line.startswith(SPACES)]:
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=20, check=False)
        for pid in pids.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)
