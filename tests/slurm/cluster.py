"""A real Slurm: munged, slurmctld and a slurmd per node, in namespaces of their own; each node judges a recorded host.

All processes live in one PID namespace and end with its first. Clients run under `timeout`: they wait for ever for a
slurmctld that is not there (slurm.conf(5) names no limit).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.conftest import unavailable, write_profile
from tuner.cli import main as command_line
from tuner.shipped import PACKAGE
from tuner.sim import store
from tuner.slurm.script import NAME

NODES = ("n1", "n2", "n3", "n4")
NEEDED = ("slurmctld", "slurmd", "munged", "scontrol", "sbatch", "unshare", "nsenter", "ip", "timeout")
PATHS = "/usr/sbin:/usr/bin:/sbin:/bin"
PATIENCE = 60.0
"""Seconds for anything that must come."""

CONF = """ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
CryptoType=crypto/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=1
SlurmdParameters=config_overrides
SchedulerParameters=nohold_on_prolog_fail,sched_min_interval=0,sched_interval=2,bf_interval=2
CommunicationParameters=NoAddrCache
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd-%n
Prolog={folder}/prolog.d/*
PrologFlags=Alloc
PrologEpilogTimeout=120
MessageTimeout=100
BatchStartTimeout=60
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PartitionName=p Nodes={nodes} Default=YES MaxTime=10 State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=500\n"

POLICY = """mode: enforce
budget_s: 30
enforce: [sysctl, thp, amdgpu.clock]
unknown: {default: open}
brake: {drains_per_hour: 1000}
"""
"""The budget is that of a machine that also runs other tests; what is within the budget is tested with a short one."""

SETTINGS = """
sysctl: {net.core.rmem_max: {at_least: 16777216}, vm.swappiness: 1}
thp: {enabled: madvise}
"""


def wait_for(what: Callable[[], object], patience: float = PATIENCE) -> None:
    """Waits until `what` is true; fails after `patience` seconds."""
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.1)


class Cluster:
    """The daemons and what they know: a folder with slurm.conf, prolog.d and a root per node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holder: subprocess.Popen[bytes] | None = None
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.python = folder / "python"

    # --- what tests ask --------------------------------------------------------------------------------------------

    def root(self, node: str) -> Path:
        """The recorded host that a node's prolog judges."""
        return self.folder / "roots" / node

    def client(self, *words: object, patience: float = 60.0) -> subprocess.CompletedProcess[str]:
        """A command inside the namespaces, as the clients of Slurm are run."""
        line = [*self._inside(), "timeout", f"{patience:g}", *map(str, words)]
        return subprocess.run(
            line, env=self._environment(), capture_output=True, text=True, timeout=patience + 30, check=False
        )

    def node(self, name: str) -> dict[str, str]:
        """`scontrol show node` as pairs; the reason with its stamp."""
        said = self.client("scontrol", "show", "node", name)
        assert said.returncode == 0, said.stderr
        found = {}
        for line in said.stdout.splitlines():
            key, sign, value = line.strip().partition("=")
            if key in ("Reason", "Comment", "OS"):
                found[key] = value
                continue
            found |= dict(word.split("=", 1) for word in line.split() if "=" in word)
            del sign
        return found

    def drained(self) -> dict[str, str]:
        """Node -> reason without its stamp, of the nodes that are drained or draining."""
        nodes = {name: self.node(name) for name in NODES}
        return {n: f.get("Reason", "").rpartition(" [")[0] for n, f in nodes.items() if "DRAIN" in f["State"]}

    def submit(self, *words: object) -> int:
        """The id of a batch job that does nothing, or what `words` say besides."""
        said = self.client("sbatch", "--parsable", "--output=/dev/null", *words, "--wrap", "true")
        assert said.returncode == 0, said.stderr
        return int(said.stdout.partition(";")[0])

    def job(self, number: int) -> dict[str, str]:
        """`scontrol show job` as pairs; empty when Slurm has forgotten it."""
        said = self.client("scontrol", "-o", "show", "job", number)
        return dict(word.split("=", 1) for word in said.stdout.split() if "=" in word)

    def finished(self, number: int) -> bool:
        """Whether no task of a job waits or runs any more."""
        said = self.client("squeue", "-h", "-j", number, "-t", "PD,R,CF,CG", "-o", "%i")
        assert said.returncode == 0 or "Invalid job id" in said.stderr, said.stderr
        return not said.stdout.strip()

    def resume(self) -> None:
        """Every node up again, with nothing drained and nothing remembered of drains."""
        for name in NODES:
            if "DRAIN" in self.node(name)["State"]:
                self.client("scontrol", "update", f"nodename={name}", "state=resume")
            shutil.rmtree(self.root(name) / "run/tuner/slurm", ignore_errors=True)
        wait_for(lambda: not self.drained())

    def prolog(self, node: str) -> subprocess.CompletedProcess[str]:
        """The installed script, as slurmd starts it: no PATH to speak of, a pipe for its output."""
        line = ["env", "-i", f"SLURMD_NODENAME={node}", "SLURM_JOB_ID=7", str(self.folder / "prolog.d" / NAME)]
        return self.client(*line)

    def reason(self, node: str) -> subprocess.CompletedProcess[str]:
        """What tuner-slurm-reason.service does."""
        words = ["-I", "-m", "tuner", "slurm", "reason", "--root", self.root(node)]
        return self.client(sys.executable, *words, patience=120)

    def controller(self, word: str) -> None:
        """A signal to slurmctld, such as STOP: it is there and answers nobody."""
        number = (self.folder / "slurmctld.pid").read_text(encoding="ascii").strip()
        assert self.client("kill", f"-{word}", number).returncode == 0

    # --- start and end ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything, until all nodes are idle."""
        self._files()
        self._hosts()
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = "ip link set lo up && ip addr add 192.0.2.1/32 dev lo && echo up && exec sleep infinity"
        self.holder = subprocess.Popen(
            [*words, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.holder.stdout is not None and self.holder.stderr is not None
        if self.holder.stdout.readline() != b"up\n":
            unavailable(f"no namespaces here: {self.holder.stderr.read().decode().strip()}")
        self._daemon("munged", "munged", "--foreground", "--force", *self._munge())
        wait_for((self.folder / "munge.sock").exists)
        self._daemon("slurmctld", "slurmctld", "-D", "-c", "-f", self.folder / "slurm.conf")
        for name in NODES:
            self._daemon(name, "slurmd", "-D", "-c", "-N", name, "-f", self.folder / "slurm.conf")
        wait_for(lambda: self.client("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == str(len(NODES)))

    def stop(self) -> None:
        """All of it at once: with the first process of a PID namespace every other ends."""
        if self.holder is not None:
            self.holder.kill()
            self.holder.communicate(timeout=30)
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait(30)

    def _files(self) -> None:
        for name in ("state", "log", "prolog.d", "roots", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "state").chmod(0o700)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        nodes = "".join(NODE.format(name=n, host=host, port=17001 + i) for i, n in enumerate(NODES))
        text = CONF.format(folder=self.folder, host=host, nodes=f"n[1-{len(NODES)}]")
        lines, sign, partition = text.rpartition("PartitionName")
        (self.folder / "slurm.conf").write_text(lines + nodes + sign + partition, encoding="utf-8")

    def _hosts(self) -> None:
        """n1 to n3 are virtual machines with a few settings, n4 is a node of eight MI300X with its whole profile."""
        profile = write_profile(self.folder / "p.yaml", SETTINGS)
        for name in NODES:
            kind, applied = ("mi300x-cx7", "mi300x") if name == "n4" else ("plain-vm", str(profile))
            root = str(self.root(name))
            store.copy(PACKAGE.parent / "tests/hosts" / f"{kind}.host", root, [])
            assert command_line(["apply", "--profile", applied, "--root", root, "--allow", "all"]) == 0
            (self.root(name) / "etc/tuner/slurm.yaml").write_text(POLICY, encoding="utf-8")
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="ascii")
        self.python.chmod(0o755)
        words = ["slurm", "install", "--root", str(self.root("n1")), "--python", str(self.python)]
        command_line([*words, "--judged-root", f"{self.folder}/roots/%n"])
        shutil.copy2(self.root("n1") / "etc/slurm/prolog.d" / NAME, self.folder / "prolog.d" / NAME)

    def _munge(self) -> list[str]:
        names = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        return [f"--{option}={self.folder}/{name}" for option, name in {**names, "log-file": "log/munged"}.items()]

    def _daemon(self, name: str, *words: object) -> None:
        with (self.folder / "log" / f"{name}.out").open("wb") as out:
            self.daemons[name] = self.background(*words, out=out.fileno())

    def background(self, *words: object, out: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """A command inside the namespaces that runs on."""
        line = [*self._inside(), *map(str, words)]
        return subprocess.Popen(line, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def _inside(self) -> Sequence[str]:
        assert self.holder is not None
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text(encoding="ascii")
        return ["nsenter", "--target", children.split()[0], "--net", "--mount", "--pid"]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": PATHS,
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "HOME": "/",
            "PYTHONPATH": str(PACKAGE.parent),
        }


def missing() -> str:
    """What this machine lacks for it; empty when it has all."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    lacking = [name for name in NEEDED if shutil.which(name, path=PATHS) is None]
    return f"needs {', '.join(lacking)} (packages slurmctld, slurmd, slurm-client, munge, iproute2)" if lacking else ""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A cluster with all nodes idle; skipped where there is no Slurm, failed for that in CI."""
    lack = missing()
    if lack:
        unavailable(lack)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
