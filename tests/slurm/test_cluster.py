"""The prolog under a real Slurm 22.05 or later: who runs, who drains, with which reason, and how long it takes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.slurm.cluster import NODES, POLICY, Cluster, running, wait_for
from tuner import hung
from tuner.sim import store

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]

SWAPPINESS = "proc/sys/vm/swappiness"
DRIFT = "tuner: sysctl vm.swappiness want 1 has 60"
CONSTANT = "Prolog error"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests of this file: its start takes longer than most of them."""
    with running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def untouched(slurm: Cluster) -> Iterator[None]:
    """Each test finds all nodes up, tuned, and under the same policy."""
    yield
    for node in NODES:
        root = slurm.root(node)
        (root / "etc/tuner/slurm.yaml").write_text(POLICY, encoding="utf-8")
        (root / SWAPPINESS).chmod(0o644)
        (root / SWAPPINESS).write_text("1\n", encoding="ascii")
    slurm.client("scancel", "-u", "root")
    slurm.resume()


def drift(slurm: Cluster, node: str) -> None:
    """Somebody sets vm.swappiness back by hand."""
    (slurm.root(node) / SWAPPINESS).write_text("60\n", encoding="ascii")


def policy(slurm: Cluster, node: str, **lines: str) -> None:
    """The usual policy of a node with other lines in place of its own."""
    kept = [line for line in POLICY.splitlines() if line.partition(":")[0] not in lines]
    text = "\n".join([*kept, *(f"{key}: {value}" for key, value in lines.items())]) + "\n"
    (slurm.root(node) / "etc/tuner/slurm.yaml").write_text(text, encoding="utf-8")


def completed(slurm: Cluster, number: int) -> bool:
    """Whether a job has ended well."""
    return slurm.job(number).get("JobState") == "COMPLETED"


def test_tuned_nodes_run_jobs(slurm: Cluster) -> None:
    """One job on each, n4 being a node with eight GPUs and the whole profile: all run, nothing drains."""
    jobs = [slurm.submit("-w", node) for node in NODES]
    wait_for(lambda: all(completed(slurm, job) for job in jobs))
    assert slurm.drained() == {}


def test_a_drift_drains_that_node_and_the_job_runs_elsewhere(slurm: Cluster) -> None:
    """A batch job meets the node first, is requeued and not held, and runs on another once its credential is old."""
    drift(slurm, "n1")
    job = slurm.submit("--exclude=n3,n4")
    wait_for(slurm.drained)
    assert slurm.drained() == {"n1": CONSTANT}
    said = slurm.reason("n1")
    assert said.returncode == 0, said.stderr
    assert slurm.drained() == {"n1": DRIFT}
    wait_for(lambda: completed(slurm, job))
    assert slurm.job(job)["NodeList"] == "n2"
    assert slurm.drained() == {"n1": DRIFT}
    assert "says already" in slurm.reason("n1").stdout


@pytest.mark.parametrize(("way", "drains"), [("open", {}), ("closed", {"n2": CONSTANT})])
def test_unknown_opens_or_closes(slurm: Cluster, way: str, drains: dict[str, str]) -> None:
    """A file that nobody may read says nothing about the node: the policy decides."""
    policy(slurm, "n2", unknown=f"{{default: open, sysctl: {way}}}")
    (slurm.root("n2") / SWAPPINESS).chmod(0)
    job = slurm.submit("-w", "n2")
    wait_for(lambda: completed(slurm, job) or slurm.drained())
    assert slurm.drained() == drains
    if drains:
        slurm.reason("n2")
        assert slurm.drained()["n2"].startswith("tuner: sysctl vm.swappiness unknown: not permitted")


@contextmanager
def hanging(slurm: Cluster, node: str) -> Iterator[Path]:
    """A node whose /proc/sys/vm is a file system that can hang; the flag that makes it."""
    if importlib.util.find_spec("mfusepy") is None or not os.path.exists("/dev/fuse"):
        unavailable("a file that never answers needs mfusepy and /dev/fuse")
    place, behind, flag = slurm.root(node) / "proc/sys/vm", slurm.folder / "behind", slurm.folder / "hang"
    place.rename(behind)
    place.mkdir()
    words = ["-m", "tests.slurm.hang", behind, place, "swappiness", flag]
    log = (slurm.folder / "log/hang").open("wb")
    server = slurm.background(sys.executable, *words, out=log.fileno())
    try:
        wait_for(lambda: slurm.client("mountpoint", "-q", place).returncode == 0 or server.poll() is not None)
        if server.poll() is not None:
            unavailable(f"no FUSE mount here: {(slurm.folder / 'log/hang').read_text(encoding='utf-8')}")
        yield flag
    finally:
        flag.unlink(missing_ok=True)
        slurm.client("umount", "-l", place)
        slurm.client("pkill", "-KILL", "-f", "tests.slurm.hang")
        server.kill()
        server.wait(30)
        log.close()
        place.rmdir()
        behind.rename(place)


def timed(what: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.monotonic()
    what()
    return time.monotonic() - start


@pytest.mark.parametrize(("mode", "drains"), [("enforce", {"n3": CONSTANT}), ("report", {})])
def test_a_read_that_never_answers(slurm: Cluster, mode: str, drains: dict[str, str]) -> None:
    """In state D nothing ends it: it is given up within the budget, and never asked again while it hangs."""
    with hanging(slurm, "n3") as flag:
        policy(slurm, "n3", mode=mode)
        assert slurm.prolog("n3").returncode == 0  # through this file system too, all is as it was
        policy(slurm, "n3", mode=mode, budget_s="5")
        assert slurm.prolog("n3").returncode == 0
        flag.touch()
        begun = time.monotonic()
        job = slurm.submit("-w", "n3")
        wait_for(lambda: slurm.drained() or completed(slurm, job))
        assert time.monotonic() - begun < 5 + 4  # what Slurm and its clients need besides
        assert slurm.drained() == drains
        records = list((slurm.root("n3") / "run/tuner/hung").iterdir())
        assert [r.read_text(encoding="utf-8").splitlines()[0] for r in records] == ["/proc/sys/vm/swappiness"]
        assert slurm.client("cat", f"/proc/{records[0].name.partition('.')[0]}/stat").stdout.split()[2] == "D"
        seen = slurm.client(sys.executable, "-I", "-m", "tuner", "verify", "--root", slurm.root("n3"))
        assert seen.returncode == 11, "an operator's verify does not hang there either"
        shutil.rmtree(slurm.root("n3") / "run/tuner/slurm", ignore_errors=True)
        again = slurm.prolog("n3")
        assert again.returncode == len(drains)
        assert len(list((slurm.root("n3") / "run/tuner/hung").iterdir())) == 1, "it was asked again"
        if drains:
            slurm.reason("n3")
            assert slurm.drained() == {"n3": "tuner: sysctl vm.swappiness missing"}
    wait_for(lambda: slurm.prolog("n3").returncode == 0)
    assert hung.living(str(slurm.root("n3"))) == []


def test_the_interpreter_is_gone(slurm: Cluster) -> None:
    """Fifty jobs start all the same, and nothing drains."""
    away = slurm.python.with_name("away")
    slurm.python.rename(away)
    try:
        job = slurm.submit("--array=1-50")
        wait_for(lambda: slurm.finished(job), 120)
        done = slurm.client("scontrol", "-o", "show", "job", job).stdout
    finally:
        away.rename(slurm.python)
    assert done.count("JobState=COMPLETED") == 50, done
    assert slurm.drained() == {}


def test_two_hundred_jobs_in_a_burst(slurm: Cluster) -> None:
    """Over four nodes, several at once on each: not one wrong drain."""
    job = slurm.submit("--array=1-200")
    wait_for(lambda: slurm.finished(job), 240)
    assert slurm.client("scontrol", "-o", "show", "job", job).stdout.count("JobState=COMPLETED") == 200
    assert slurm.drained() == {}


def test_a_drain_of_somebody_else_is_untouched(slurm: Cluster) -> None:
    """An administrator's reason stays, whatever we found; a node that is not drained is not drained by us either."""
    drift(slurm, "n2")
    assert slurm.prolog("n2").returncode == 1
    slurm.client("scontrol", "update", "nodename=n2", "state=drain", "reason=disk swap")
    said = slurm.reason("n2")
    assert said.returncode == 0
    assert "left alone" in said.stdout
    assert slurm.drained() == {"n2": "disk swap"}


def test_install_reads_the_configuration_that_runs(slurm: Cluster) -> None:
    """On this very machine, by what slurmd says of itself: what is right is not mentioned, and nothing is written."""
    words = ["slurm", "install", "--dry-run", "--dir", slurm.folder / "prolog.d", "--python", slurm.python, "--json"]
    said = slurm.client(sys.executable, "-I", "-m", "tuner", *words)
    assert said.returncode == 10, said.stderr
    document = json.loads(said.stdout)
    whats = " ".join(row["what"] for row in document["findings"])
    assert "PrologEpilogTimeout=120 is not less than MessageTimeout (100 s)" in whats
    assert document["lines"] == ["MessageTimeout=121", "PropagateResourceLimitsExcept=MEMLOCK"]


def test_slurmctld_is_down(slurm: Cluster) -> None:
    """The prolog asks nobody: it takes as long as before, drains as before, and the reason waits for slurmctld."""
    drift(slurm, "n3")
    for node in ("n1", "n3"):
        slurm.prolog(node)
    shutil.rmtree(slurm.root("n3") / "run/tuner/slurm", ignore_errors=True)
    slurm.controller("STOP")
    try:
        assert timed(lambda: slurm.prolog("n1")) < 5
        assert slurm.prolog("n1").returncode == 0
        assert slurm.prolog("n3").returncode == 1
        said = slurm.reason("n3")
        assert said.returncode == 12
        assert "did not end within" in said.stdout
    finally:
        slurm.controller("CONT")
    job = slurm.submit("-w", "n3")
    wait_for(lambda: slurm.drained() == {"n3": CONSTANT})
    assert slurm.reason("n3").returncode == 0
    assert slurm.drained() == {"n3": DRIFT}
    slurm.client("scancel", job)


def test_a_gpu_that_is_gone(slurm: Cluster) -> None:
    """Seven of eight never take a job; the last test of the file, since nobody puts the GPU back."""
    store.break_copy(str(slurm.root("n4")), "gpu-lost")
    slurm.submit("-w", "n4")
    wait_for(slurm.drained)
    slurm.reason("n4")
    reason = slurm.drained()["n4"]
    assert reason.startswith("tuner: amdgpu.")
    assert "missing" in reason
    assert len(reason) <= 80
