"""The check before a job, on recorded hosts: what it answers, from what, how fast it gives up, and what it leaves."""

from __future__ import annotations

import json
import marshal
import os
import posix
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, unavailable, write_profile
from tuner import fast, hung, judging
from tuner import plan as planning
from tuner.host import Host, open_host
from tuner.knobs import BY_NAME
from tuner.ledger import Applied
from tuner.model import Plan
from tuner.sim import store as hosts
from tuner.slurm import BROKEN, late, prolog, store
from tuner.slurm.script import CALL

Call = Callable[..., Result]
Copy = Callable[..., Path]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts its prolog as root")

PROFILE = """
sysctl: {net.core.rmem_max: {at_least: 16777216}, vm.swappiness: 1}
thp: {enabled: madvise}
"""
POLICY = "mode: enforce\nbudget_s: 30\nenforce: [sysctl]\nbrake: {drains_per_hour: 1}\n"
REASON = "tuner: sysctl vm.swappiness want 1 has 60"


@pytest.fixture
def node(copy_host: Copy, tuner: Call, tmp_path: Path) -> Path:
    """A tuned node under a policy that enforces sysctls, with evidence."""
    root = copy_host()
    assert tuner("apply", "--profile", write_profile(tmp_path / "p.yaml", PROFILE), "--root", root).code == 0
    policy(root, POLICY)
    assert check(root) == (0, "")
    return root


def policy(root: Path, text: str) -> None:
    path = root / "etc/tuner/slurm.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def drift(root: Path, value: str = "60") -> None:
    (root / "proc/sys/vm/swappiness").write_text(f"{value}\n", encoding="ascii")


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What goes to syslog, here and in `check`."""
    lines: list[str] = []
    monkeypatch.setattr("syslog.syslog", lambda level, text: lines.append(text))
    yield lines


def check(root: Path, **environment: str) -> tuple[int, str]:
    """(exit code, what was said) of the check as the script starts it, with a terminal to say it on."""
    line = [sys.executable, "-I", "-c", CALL, "--root", str(root)]
    ours, theirs = os.openpty()
    env = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "42", **environment}
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=env, timeout=120, check=False
        )
    finally:
        os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 4096):
            said += piece
    except OSError:
        pass  # EIO: nobody has the other end any more
    finally:
        os.close(ours)
    assert done.stdout == b""
    text = said.decode().replace("\r\n", "\n")
    assert "Traceback" not in text
    return done.returncode, text


def by_evidence(root: Path) -> bool:
    """Whether the answer is kept."""
    try:
        kept = fast.load(str(root))
    except FileNotFoundError:
        return False
    return kept is not None and "prolog" in kept[-1]


# --- the answer ---------------------------------------------------------------------------------------------------


def test_a_drift_drains_and_leaves_the_reason(node: Path) -> None:
    """Exit 86; the reason in a file that everybody may read, with node, job and time."""
    drift(node)
    code, said = check(node)
    assert code == 86
    assert said == f"tuner: drains n1, job 42: {REASON}\n"
    path = node / store.REASON.lstrip("/")
    found = json.loads(path.read_text(encoding="ascii"))
    assert {**found, "when": ""} == {"reason": REASON, "node": "n1", "job": "42", "when": ""}
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_check_writes_nothing_else(node: Path) -> None:
    """No journal, no lock, nothing mended: only /run/tuner."""
    before = {p: p.stat().st_mtime_ns for p in node.rglob("*") if p.is_file() and "run/tuner" not in str(p)}
    lock = (node / "run/tuner/lock").stat().st_mtime_ns
    drift(node)
    check(node)
    after = {p: p.stat().st_mtime_ns for p in node.rglob("*") if p.is_file() and "run/tuner" not in str(p)}
    assert {p for p in after if after[p] != before.get(p)} == {node / "proc/sys/vm/swappiness"}
    assert (node / "run/tuner/lock").stat().st_mtime_ns == lock
    assert (node / "proc/sys/vm/swappiness").read_text() == "60\n"


def test_the_cli_answers_alike(node: Path, tuner: Call) -> None:
    """`tuner slurm prolog` for a person: the same decision as a document."""
    assert tuner("slurm", "prolog", "--root", node, "--json").document["decision"] == "start"
    drift(node)
    result = tuner("slurm", "prolog", "--root", node, "--json")
    assert (result.code, result.document["decision"]) == (86, "drain")
    assert REASON in result.document["said"][0]
    assert not (node / "run/tuner/slurm/drains").exists(), "who looks uses up no drain: the next job is kept away"
    assert not (node / "run/tuner/slurm/reason").exists()
    assert check(node)[0] == 86


def test_the_brake(node: Path, log: list[str]) -> None:
    """A second drain within the hour for the same cause under the same settings: the job starts, and that is said."""
    drift(node)
    assert check(node)[0] == 86
    aged(node, 61.0)
    code, said = check(node)
    assert code == 0
    assert said == f"tuner: job starts, braked: 1 drain per hour for sysctl drift: {REASON}\n"
    (node / "proc/sys/net/core/rmem_max").chmod(0o644)
    rows = json.loads((node / store.DRAINS.lstrip("/")).read_text(encoding="ascii"))
    assert len(rows) == 1
    aged(node, 3600.0)
    assert check(node)[0] == 86, "an hour later"


def aged(node: Path, seconds: float) -> None:
    """The drains so far are older by that."""
    path = node / store.DRAINS.lstrip("/")
    rows = json.loads(path.read_text(encoding="ascii"))
    path.write_text(json.dumps([[when - seconds, *more] for when, *more in rows]), encoding="ascii")


def test_jobs_that_arrive_together_are_all_kept_away(node: Path) -> None:
    """The brake counts drains, not jobs: those that were on their way when the node was drained start elsewhere too."""
    drift(node)
    assert [check(node)[0] for _ in range(3)] == [86, 86, 86]
    assert len(json.loads((node / store.DRAINS.lstrip("/")).read_text(encoding="ascii"))) == 1


def test_no_drain_is_allowed(node: Path) -> None:
    """`drains_per_hour: 0` lets every job start, the first too."""
    policy(node, POLICY.replace("drains_per_hour: 1", "drains_per_hour: 0"))
    drift(node)
    assert check(node)[0] == 0


def test_another_cause_is_not_braked(node: Path, tuner: Call) -> None:
    """The brake is per cause: what is gone drains after what differed."""
    drift(node)
    assert check(node)[0] == 86
    drift(node, "1")
    policy(node, POLICY.replace("[sysctl]", "[thp]"))
    (node / "sys/kernel/mm/transparent_hugepage/enabled").write_text("[always] madvise never\n", encoding="ascii")
    assert check(node)[0] == 86


def test_only_what_was_seen_ok_gates(copy_host: Copy, tuner: Call, tmp_path: Path) -> None:
    """A node that never was as wanted in this boot is no worse than at its start; afterwards the same drift drains."""
    root = copy_host()
    tuner("apply", "--profile", write_profile(tmp_path / "p.yaml", PROFILE), "--root", root)
    policy(root, POLICY)
    shutil.rmtree(root / "run/tuner")
    drift(root)
    code, said = check(root)
    assert code == 0
    assert "never ok in this boot under these settings" in said
    drift(root, "1")
    assert check(root)[0] == 0
    drift(root)
    assert check(root)[0] == 86


def test_settings_that_are_applied_no_more_remember_nothing(node: Path) -> None:
    """A check that began before an apply ends after it: what the new settings have seen stays."""
    before = (node / store.SEEN.lstrip("/")).read_bytes()
    host = open_host(str(node))
    assert "meanwhile" in store.see(host, "0" * 64, [store.Place("sysctl", "x", "", "1", ())])
    assert (node / store.SEEN.lstrip("/")).read_bytes() == before


ADDS = """
import sys
from tuner.host import open_host
from tuner.slurm import store
host = open_host(sys.argv[1])
for number in range(5):
    assert not store.see(host, sys.argv[2], [store.Place("sysctl", f"{sys.argv[3]}.{number}", "", "1", ())])
"""


def test_what_several_add_at_once_is_all_there(node: Path) -> None:
    """Prologs of several jobs: what one of them has seen ok gates whatever the others write."""
    settings = json.loads((node / store.SEEN.lstrip("/")).read_text(encoding="ascii"))["settings_id"]
    words = [[sys.executable, "-c", ADDS, str(node), settings, name] for name in "abc"]
    processes = [subprocess.Popen(line) for line in words]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    targets = {target for _, target in store.known(open_host(str(node)), settings)[0]}
    assert {f"{name}.{number}" for name in "abc" for number in range(5)} <= targets


def test_what_cannot_be_remembered_is_said_and_not_kept(node: Path) -> None:
    """A kept answer would outlive it: the drift after it would drain nothing."""
    for path in (store.SEEN, fast.PATH):
        (node / path.lstrip("/")).unlink()
    (node / store.SEEN.lstrip("/")).mkdir()
    code, said = check(node)
    assert code == 0
    assert "what is ok now will gate nothing" in said
    assert not (node / fast.PATH.lstrip("/")).exists()


@pytest.mark.parametrize("what", ["boot", "settings_id"])
def test_what_was_seen_in_another_boot_or_under_other_settings_counts_nothing(node: Path, what: str) -> None:
    """/run may survive, in a container or by mistake."""
    path = node / store.SEEN.lstrip("/")
    found = json.loads(path.read_text(encoding="ascii"))
    path.write_text(json.dumps({**found, what: "another"}), encoding="ascii")
    drift(node)
    assert check(node)[0] == 0


def test_a_gpu_that_is_gone(copy_host: Copy, tuner: Call) -> None:
    """The whole profile on a node of eight MI300X, then seven: missing drains, though no knob is enforced."""
    root = copy_host("mi300x-cx7")
    assert tuner("apply", "--profile", "mi300x", "--root", root, "--allow", "all").code == 0
    policy(root, "mode: enforce\nbudget_s: 60\n")
    assert check(root)[0] == 0
    hosts.break_copy(str(root), "gpu-lost")
    code, said = check(root)
    assert code == 86
    assert "amdgpu." in said
    assert "0000:c7:00.0" in said
    assert "missing" in said


# --- off-switch and skips ------------------------------------------------------------------------------------------


def test_off_starts_the_job_with_one_line(node: Path, tuner: Call) -> None:
    """Whatever is found; on again, it drains."""
    drift(node)
    tuner("off", "--why", "a test", "--for", "2h", "--root", node)
    code, said = check(node)
    assert code == 0
    assert said.startswith("tuner: tuner is off, the job starts: a test")
    assert said.count("\n") == 1
    tuner("on", "--root", node)
    assert check(node)[0] == 86


def test_a_skip_gates_nothing_and_is_seen_everywhere(node: Path, tuner: Call) -> None:
    """In the prolog's line, in each verdict of the place, in status; ended, it gates again."""
    drift(node)
    words = ["slurm", "skip", "sysctl:vm.swappiness", "--root", node]
    made = tuner(*words, "--for", "2h", "--why", "waiting for parts", "--json")
    assert made.code == 0
    (skip,) = made.document["skips"]
    assert (skip["knob"], skip["target"], skip["why"]) == ("sysctl", "vm.swappiness", "waiting for parts")
    said = f"skipped until {skip['until']} by {skip['who']}: waiting for parts"
    code, line = check(node)
    assert code == 0
    assert said in line
    verdicts = {v["target"]: v for v in tuner("verify", "--root", node, "--json").document["verdicts"]}
    assert verdicts["vm.swappiness"]["remark"].startswith(said)
    assert not verdicts["net.core.rmem_max"]["remark"].startswith("skipped")
    assert tuner("status", "--root", node, "--json").document["skips"] == [skip]
    assert said in tuner("status", "--root", node).out
    assert tuner(*words, "--remove").code == 0
    assert tuner("status", "--root", node, "--json").document["skips"] == []
    assert check(node)[0] == 86


@pytest.mark.parametrize(("place", "code"), [("sysctl:*", 0), ("sysctl:vm.*", 0), ("sysctl:net.*", 86), ("thp:*", 86)])
def test_a_skip_of_a_pattern(node: Path, tuner: Call, place: str, code: int) -> None:
    """Targets as profiles write them."""
    drift(node)
    assert tuner("slurm", "skip", place, "--for", "2h", "--why", "x", "--root", node).code == 0
    assert check(node)[0] == code


def test_a_skip_that_meets_nothing_is_said(node: Path, tuner: Call) -> None:
    """A name mistyped: the next job would be kept away all the same."""
    words = ["--for", "2h", "--why", "x", "--root", node]
    assert "skips nothing" in tuner("slurm", "skip", "sysctl:vm.swapiness", *words).out
    said = tuner("slurm", "skip", "sysctl:vm.swappiness", *words).out
    assert said.count("skips nothing") == 1


def test_a_knob_of_the_policy_that_is_none_is_said_at_each_job(node: Path) -> None:
    """A name mistyped gates nothing: in the log before it is missed, also where the answer is kept."""
    policy(node, POLICY.replace("[sysctl]", "[sysctls]"))
    for _ in range(2):
        assert check(node) == (0, "tuner: job starts with marks: no knob sysctls: the policy names it\n")


def test_a_skip_ends_by_itself(node: Path, tuner: Call) -> None:
    """By the clock, also where the answer was kept meanwhile; and never lasts longer than a skip may."""
    drift(node)
    tuner("slurm", "skip", "sysctl", "--for", "2h", "--why", "x", "--root", node)
    assert check(node)[0] == 0
    path = node / "etc/tuner/skips.json"
    kept = json.loads(path.read_text(encoding="ascii"))
    for since, until in (
        ("2026-01-01T00:00:00+00:00", "2026-01-01T02:00:00+00:00"),
        ("2026-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"),
        ("2999-01-01T00:00:00+00:00", "2999-01-02T00:00:00+00:00"),
    ):
        kept["skips"][0] |= {"since": since, "until": until}
        path.write_text(json.dumps(kept), encoding="ascii")
        shutil.rmtree(node / "run/tuner/slurm", ignore_errors=True)
        assert check(node)[0] == 86, (since, until)


def test_a_skip_that_others_wrote_counts_nothing(node: Path, tuner: Call) -> None:
    """Root's own file, or none."""
    drift(node)
    tuner("slurm", "skip", "sysctl", "--for", "2h", "--why", "x", "--root", node)
    os.chown(node / "etc/tuner/skips.json", 1000, 1000)
    assert check(node)[0] == 86


@pytest.mark.parametrize(
    "words",
    [
        ["sysctl", "--for", "8d", "--why", "x"],
        ["sysctl", "--for", "soon", "--why", "x"],
        ["sysctl", "--why", "x"],
        ["sysctl", "--for", "2h"],
        ["sysctl", "--for", "2h", "--why", " "],
        ["sysctl", "--for", "2h", "--why", "x", "--remove"],
        ["no.knob", "--for", "2h", "--why", "x"],
        ["--for", "2h", "--why", "x"],
    ],
)
def test_a_skip_needs_a_place_an_end_and_a_reason(node: Path, tuner: Call, words: list[str]) -> None:
    """Bad input, and nothing written."""
    assert tuner("slurm", "skip", *words, "--root", node).code == 64
    assert not (node / "etc/tuner/skips.json").exists()


# --- evidence -----------------------------------------------------------------------------------------------------


def modules(root: Path) -> set[str]:
    """What the check loads."""
    line = [sys.executable, "-I", "-X", "importtime", "-c", CALL, "--root", str(root)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    return {row.rpartition("|")[2].strip() for row in done.stderr.splitlines()}


def test_a_start_is_kept_and_given_again_by_next_to_nothing(node: Path) -> None:
    """Four small modules of ours besides those of any interpreter; after a change, the judge."""
    line = [sys.executable, "-I", "-X", "importtime", "-c", "pass"]
    bare = subprocess.run(line, capture_output=True, text=True, check=True).stderr
    known = {row.rpartition("|")[2].strip() for row in bare.splitlines()}
    ours = {"tuner", "tuner.fast", "tuner.hung", "tuner.slurm", "tuner.slurm.prolog"}
    assert modules(node) - known == ours
    policy(node, POLICY + "# a comment\n")
    assert check(node) == (0, "")
    assert modules(node) - known == ours, "kept anew under the new text of the policy"


def test_verify_keeps_the_answer_too(node: Path, tuner: Call) -> None:
    """What verify or apply left serves the first job."""
    (node / fast.PATH.lstrip("/")).unlink()
    tuner("verify", "--root", node)
    assert by_evidence(node)


def test_a_drain_is_never_kept(node: Path, tuner: Call) -> None:
    """Nor is anything while a skip is in force: both end by themselves."""
    drift(node)
    tuner("verify", "--root", node)
    assert not by_evidence(node)
    tuner("slurm", "skip", "sysctl", "--for", "2h", "--why", "x", "--root", node)
    tuner("verify", "--root", node)
    assert check(node)[0] == 0
    assert not (node / fast.PATH.lstrip("/")).exists()


def test_evidence_of_another_boot_is_no_evidence(node: Path) -> None:
    """Judged anew, and what was seen ok then does not gate now."""
    (node / fast.BOOT.lstrip("/")).write_text("00000000-0000-4000-8000-000000000000\n", encoding="ascii")
    kept = fast.load(str(node))
    drift(node)
    assert check(node)[0] == 0
    assert fast.load(str(node)) != kept


def sealed(root: Path, change: Callable[[list[object]], None]) -> None:
    """The evidence with something else in it, and a seal that is right."""
    kept = list(fast.load(str(root)) or ())
    change(kept)
    whole: Any = tuple(kept)
    data = marshal.dumps(whole, 4)
    (root / fast.PATH.lstrip("/")).write_bytes(fast.MAGIC + fast.sealed(data) + data)


def test_a_clock_that_was_set_back_believes_nothing(node: Path) -> None:
    """Evidence of the future: judged anew."""

    def later(kept: list[object]) -> None:
        kept[2] = time.time_ns() + 3600 * 10**9

    sealed(node, later)
    before = fast.load(str(node))
    assert check(node) == (0, "")
    assert fast.load(str(node)) != before


@pytest.mark.parametrize(("age", "again"), [(-1.0, True), (60.0, False)])
def test_an_answer_that_rests_on_tools_grows_old(node: Path, age: float, again: bool) -> None:
    """By CLOCK_BOOTTIME, which nobody sets: past its time the node is judged anew."""

    def timed(kept: list[object]) -> None:
        kept[-1] = {"prolog": (0, marshal.dumps((store.clock() + age, 5.0, "old")))}

    sealed(node, timed)
    code, said = check(node)
    assert code == 0
    assert (said == "tuner: old\n") is not again


HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print(flush=True)
    time.sleep(120)
"""


# --- bad input ----------------------------------------------------------------------------------------------------


def test_nothing_applied_starts_the_job(root: Path) -> None:
    """Said, not guessed."""
    code, said = check(root)
    assert code == 0
    assert "nothing applied yet" in said


@pytest.mark.parametrize("text", ["mode: enforced\n", "mode: [\n", "\0", "budget_s: 0\n"])
def test_a_broken_policy_starts_the_job_with_one_line(node: Path, text: str) -> None:
    """It names the file, so that somebody mends it."""
    policy(node, text)
    drift(node)
    code, said = check(node)
    assert code == 0
    assert "/etc/tuner/slurm.yaml" in said
    assert said.count("\n") == 1


def test_a_policy_that_others_can_write_is_not_believed(node: Path) -> None:
    """Open, and said."""
    (node / "etc/tuner/slurm.yaml").chmod(0o666)
    drift(node)
    code, said = check(node)
    assert code == 0
    assert "can be written by others than root" in said


@pytest.mark.parametrize("path", ["/no/such/root", "/etc/hostname", "/proc"])
def test_a_root_that_is_none(path: str) -> None:
    """Whatever the script was installed for: the job starts."""
    assert check(Path(path))[0] in (0, BROKEN)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"seen": 1}', b"\xff\x00", b"[" * 5000])
def test_what_it_keeps_may_be_anything(node: Path, text: bytes) -> None:
    """Remembered places, drains, the reason and evidence that nobody can understand count as not there."""
    for path in (store.SEEN, store.DRAINS, store.REASON, fast.PATH, "/etc/tuner/skips.json"):
        (node / path.lstrip("/")).parent.mkdir(exist_ok=True)
        (node / path.lstrip("/")).write_bytes(text)
    drift(node)
    assert check(node)[0] == 0
    drift(node, "1")
    assert check(node)[0] == 0
    drift(node)
    assert check(node)[0] == 86


@pytest.fixture
def full(node: Path) -> Iterator[Path]:
    """A node whose /run/tuner takes not one byte more."""
    place = node / "run/tuner"
    kept = place.with_name("kept")
    place.rename(kept)
    place.mkdir()
    size = sum(p.stat().st_size + 4096 for p in kept.rglob("*"))
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size + 65536}", "tuner", place], check=False)
    if done.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        shutil.copytree(kept, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("evidence"))
        with (place / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        yield node
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk(full: Path) -> None:
    """The verdict stands; that nothing could be left is said."""
    assert check(full) == (0, "")
    drift(full)
    code, said = check(full)
    assert code == 86
    assert "No space left on device" in said
    assert REASON in said


def test_a_read_only_var_and_etc(node: Path) -> None:
    """Nothing but /run is written, so that nothing is missed."""
    places = [node / "var", node / "etc"]
    for place in places:
        subprocess.run(["mount", "--bind", place, place], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    try:
        assert check(node) == (0, "")
        drift(node)
        assert check(node)[0] == 86
    finally:
        for place in places:
            subprocess.run(["umount", place], check=True)


def test_while_an_apply_writes_it_is_not_known(node: Path) -> None:
    """The lock held and a run open: a drift is unknown, which is open."""
    files = sorted((node / "var/lib/tuner/generations").glob("*.jsonl"))
    lines = files[-1].read_text(encoding="utf-8").splitlines()
    files[-1].write_text("\n".join(line for line in lines if '"op": "end"' not in line and '"op":"end"' not in line))
    drift(node)
    with subprocess.Popen([sys.executable, "-c", HOLDER, node / "run/tuner/lock"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        code, said = check(node)
        process.kill()
    assert code == 0
    assert "apply in progress" in said


def test_an_apply_that_begins_and_ends_while_it_looks(
    node: Path, tuner: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it read is of the new settings, what it compares with of the old ones: looked at again, not drained."""
    other = write_profile(tmp_path / "other.yaml", PROFILE.replace("swappiness: 1", "swappiness: 10"))
    real, calls = planning.verify, []

    def verify(host: Host, applied: Applied) -> Plan:
        calls.append(applied.generation)
        if len(calls) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(planning, "verify", real)
                assert tuner("apply", "--profile", other, "--root", node).code == 0
        return real(host, applied)

    monkeypatch.setattr(planning, "verify", verify)
    applied, made = judging.judged(open_host(str(node)))
    assert calls == [1, 2]
    assert applied.generation == 2
    assert {v.state for v in made.verdicts} <= {"ok", "raised"}


# --- the budget ---------------------------------------------------------------------------------------------------


class Slow:
    """A child that never comes to its answer, as `prolog._child`: asleep, stopped, or busy."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, root: str, kept: object, paths: object, shared: int) -> None:
        """In the child: no return."""
        try:
            prolog._apart()
            prolog._teller(shared)("/proc/sys/vm/swappiness")
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            while True:
                if self.how == "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif self.how == "asleep":
                    time.sleep(60)
        finally:
            os._exit(1)


@pytest.mark.parametrize("how", ["asleep", "stopped", "busy"])
@pytest.mark.parametrize(("unknown", "code"), [("open", 0), ("closed", 86)])
def test_a_child_that_is_late(node: Path, monkeypatch: pytest.MonkeyPatch, how: str, unknown: str, code: int) -> None:
    """It ignores signals, is stopped, or runs on: given up within the budget; the policy decides, and nothing hangs."""
    policy(node, f"mode: enforce\nbudget_s: 2\nenforce: [sysctl]\nunknown: {{default: {unknown}}}\n")
    assert check(node)[0] == 0
    kept = prolog._kept(str(node))
    assert kept is not None
    assert kept[1] == 2.0
    monkeypatch.setattr(prolog, "_child", Slow(how))
    begun = time.monotonic()
    found, lines = prolog.run(str(node))
    assert time.monotonic() - begun < 4
    assert found == code
    assert "budget of 2 s used up" in lines[0]
    assert hung.living(str(node)) == []


@pytest.mark.parametrize(("kept", "now", "took", "late"), [(1, 30, 2.0, False), (30, 1, 3.0, True)])
def test_the_budget_is_that_of_the_policy_of_now(
    node: Path, monkeypatch: pytest.MonkeyPatch, kept: int, now: int, took: float, late: bool
) -> None:
    """The answer that was kept under another budget ends no look too early, and none too late."""
    policy(node, POLICY.replace("budget_s: 30", f"budget_s: {kept}"))
    host = open_host(str(node))
    assert prolog.run(str(node))[0] == 0
    assert (prolog._kept(str(node)) or ((), 0, ""))[1] in (kept, 30)
    policy(node, POLICY.replace("budget_s: 30", f"budget_s: {now}"))

    def looked(root: str, tell: object, limit: Callable[[float], object], acting: bool) -> dict[str, Any]:
        limit(float(now))
        time.sleep(took)
        return {"drain": [], "lines": ["in time"], "settings_id": ""}

    monkeypatch.setattr("tuner.slurm.look.looked", looked)
    begun = time.monotonic()
    lines = prolog.run(str(node))[1]
    assert ("in time" in lines) is not late
    assert time.monotonic() - begun < took if late else True
    assert host.exists(store.SEEN)


@pytest.mark.parametrize(("lasted", "code"), [(0.2, 0), (3.0, 86)])
def test_only_a_look_that_lasts_is_a_hang(
    node: Path, monkeypatch: pytest.MonkeyPatch, lasted: float, code: int
) -> None:
    """State D at the end of the budget may be a driver that is busy for a moment: that is not known, not missing."""
    monkeypatch.setattr(hung, "ended", lambda child: False)
    found, lines = late.given_up(str(node), os.getpid(), 5, "/proc/sys/vm/swappiness", lasted)
    assert found == code
    assert bool(list((node / "run/tuner").glob("hung/*"))) is bool(code), lines


@pytest.mark.parametrize("path", ["", "/var/lib/tuner/generations/000001.jsonl", "/etc/tuner/slurm.yaml"])
def test_a_disk_of_ours_that_hangs_is_not_read_by_the_parent(
    node: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It would hang as its child does, and slurmd would drain the node."""
    monkeypatch.setattr(hung, "ended", lambda child: False)
    monkeypatch.setattr(late, "open_host", lambda root: pytest.fail("it reads"))
    assert late.given_up(str(node), os.getpid(), 5, path, 4.0)[0] == 0


def test_the_shared_memory_tells_how_long_a_look_lasts() -> None:
    """Each look is a write; its time is that of the memory."""
    shared = posix.memfd_create("x")
    try:
        prolog._teller(shared)("/a")
        time.sleep(0.3)
        path, lasted = prolog._where(shared)
        assert path == "/a"
        assert 0.2 < lasted < 5
        prolog._teller(shared)("/b")
        assert prolog._where(shared)[1] < lasted
    finally:
        os.close(shared)


def test_a_child_whose_parent_was_killed_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmd kills a prolog that is late; what it left runs in a session of its own."""
    monkeypatch.setattr(prolog, "LONGEST", 1)
    child = os.fork()
    if child == 0:
        prolog._apart()
        time.sleep(60)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGALRM


FULL_LOG = """
import socket, subprocess, sys
reader = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
reader.bind("/dev/log")
writer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
writer.connect("/dev/log")
writer.setblocking(False)
try:
    while True:
        writer.send(b"x")
except BlockingIOError:
    pass
subprocess.run([sys.executable, "-I", "-c", "from tuner.slurm.prolog import say; say('x'); say('y')"], timeout=20)
"""


def test_a_journal_that_takes_nothing_holds_no_job() -> None:
    """/dev/log of a reader that is stopped, its queue full: the C library tries each line twice, and neither waits."""
    devices = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9"
    line = ["unshare", "--mount", "sh", "-c", f'{devices} || exit 99; exec "$0" -c "$1"', sys.executable, FULL_LOG]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 99:
        unavailable(f"no /dev of our own here: {done.stderr}")
    assert done.returncode == 0, done.stderr


def test_a_child_that_dies_is_a_failure_of_ours(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed for memory, or crashed: said, and the job starts, whatever unknown would do."""
    policy(node, "mode: enforce\nunknown: {default: closed}\n")
    monkeypatch.setattr(prolog, "_child", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    code, lines = prolog.run(str(node))
    assert code == BROKEN
    assert lines == ["failed, the job starts: the process that judges ended without an answer"]


def test_a_child_that_fails_says_why_in_one_line(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception; no traceback."""
    drift(node)
    monkeypatch.setattr("tuner.slurm.look.looked", lambda *_: 1 // 0)
    code, lines = prolog.run(str(node))
    assert code == BROKEN
    assert lines == ["failed, the job starts: ZeroDivisionError: integer division or modulo by zero"]


# --- what hangs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stuck(node: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is said to hang at vm.swappiness: while it lives, nobody looks there."""
    with subprocess.Popen(["sleep", "600"]) as process:
        hung.record(str(node), process.pid, "/proc/sys/vm/swappiness", "2026-11-30T03:00:00+00:00")
        yield process
        process.kill()


def test_what_hangs_is_missing_and_not_asked(node: Path, stuck: subprocess.Popen[bytes], tuner: Call) -> None:
    """Though its file would answer; the rest is judged; status names it; once the process is gone, all is as before."""
    code, said = check(node)
    assert code == 86
    assert said.endswith("tuner: sysctl vm.swappiness missing\n")
    document = tuner("status", "--root", node, "--json").document
    assert document["hung"] == ["/proc/sys/vm/swappiness"]
    assert document["drained"]["reason"] == "tuner: sysctl vm.swappiness missing"
    verdicts = {v["target"]: v["state"] for v in tuner("verify", "--root", node, "--json").document["verdicts"]}
    assert (verdicts["vm.swappiness"], verdicts["net.core.rmem_max"]) == ("missing", "ok")
    stuck.kill()
    stuck.wait()
    assert check(node)[0] == 0
    assert list((node / "run/tuner/hung").iterdir()) == []


def test_a_number_that_was_given_again_is_not_the_one_that_hangs(node: Path) -> None:
    """A record names the start time too."""
    hung.record(str(node), os.getpid(), "/proc/sys/vm/swappiness", "now")
    (record,) = (node / "run/tuner/hung").iterdir()
    record.rename(record.with_name(f"{os.getpid()}.1"))
    assert check(node) == (0, "")


@pytest.mark.parametrize(
    ("path", "hanging", "met"),
    [
        ("/sys/class/drm/card1/device/pp_dpm_sclk", "/sys/class/drm/card1/device/pp_od_clk_voltage", True),
        ("/sys/class/drm/card1/device/pp_dpm_sclk", "/sys/class/drm/card2/device/pp_dpm_sclk", False),
        ("/sys/bus/pci/devices/0000:05:00.0/config", "/sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0/x", True),
        ("/sys/bus/pci/devices/0000:06:00.0/config", "/sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0/x", False),
        ("/proc/sys/vm/swappiness", "/proc/sys/vm/swappiness", True),
        ("/proc/sys/vm/dirty_ratio", "/proc/sys/vm/swappiness", False),
        ("/sys/class/net/eth0/mtu", "/sys/class/net/eth0/device/numa_node", False),
        ("/sys/class/net/eth0/device/numa_node", "/sys/class/net/eth0/mtu", True),
    ],
)
def test_what_a_look_would_meet(path: str, hanging: str, met: bool) -> None:
    """The folder of a device, whatever way leads to it; elsewhere the file alone."""
    assert hung.touches(path, hanging) is met


def test_the_rest_of_a_plain_host_is_not_the_parents_business(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent opens nothing but what tuner keeps itself: every file of a device is opened by the child."""
    opened: list[str] = []
    real = posix.open

    def noted(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(str(path))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr("posix.open", noted)
    assert prolog.run(str(node))[0] == 0
    assert opened
    own = {str(node), "run", "tuner", "hung"}
    assert [p for p in opened if "/run/tuner" not in p and not p.startswith("/proc/") and p not in own] == []


def test_the_host_is_the_one_that_was_named(node: Path) -> None:
    """A copy of it elsewhere has evidence of another place: judged anew."""
    other = node.with_name("elsewhere")
    shutil.copytree(node, other, symlinks=True)
    drift(other)
    assert check(other)[0] == 86
    assert check(node) == (0, "")


def test_what_rests_on_tools_is_kept_for_a_while(node: Path, tuner: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prolog's answer until its age, and no answer of verify, which asks the tool each time."""
    policy(node, POLICY + "tool_age_s: 300\n")
    monkeypatch.setattr(BY_NAME["thp"].__class__, "cost", "tool")
    tuner("verify", "--root", node)
    kept = fast.load(str(node))
    assert kept is not None
    assert set(kept[-1]) == {"prolog"}
    until, budget, line = marshal.loads(kept[-1]["prolog"][1])
    assert 290 < until - store.clock() <= 300
    assert (budget, line) == (30.0, "")


# --- what may not happen --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["run/tuner/hung", "run/tuner", "run"])
def test_a_tree_of_somebody_else_leads_nowhere_out_of_it(node: Path, tuner: Call, tmp_path: Path, link: str) -> None:
    """A support bundle, or a copied host: links on the way to what tuner keeps are not followed, nothing goes."""
    victim = tmp_path / "victim"
    inner = victim / "run/tuner/hung".removeprefix(link).lstrip("/")
    inner.mkdir(parents=True)
    files = [inner / "passwd", inner / "999999.5"]
    for file in files:
        file.write_text("root", encoding="ascii")
    (inner / "evidence").write_text("theirs", encoding="ascii")
    place = node / link
    if place.exists():
        shutil.move(place, tmp_path / "kept")
    place.symlink_to(victim)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in victim.rglob("*") if p.is_file())
    hung.living(str(node))
    hung.remove(str(node), "/run/tuner/evidence")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        hung.record(str(node), os.getpid(), "/proc/x", "now")
    tuner("status", "--root", node)
    check(node)
    assert sorted((str(p), p.stat().st_mtime_ns) for p in victim.rglob("*") if p.is_file() and p in files) == [
        row for row in before if Path(row[0]) in files
    ]


def test_what_is_no_record_of_ours_is_left_alone(node: Path) -> None:
    folder = node / "run/tuner/hung"
    folder.mkdir()
    for name in ("note.txt", "12", "x.1", "999999.5"):
        (folder / name).write_text("/sys\n", encoding="ascii")
    assert hung.living(str(node)) == []
    assert sorted(p.name for p in folder.iterdir()) == ["12", "note.txt", "x.1"]


def test_a_device_that_is_gone_is_gone_under_other_settings_too(copy_host: Copy, tuner: Call) -> None:
    """A rollout of one sysctl opens the gate for no dead GPU; what only drifts has to be seen ok again."""
    root = copy_host("mi300x-cx7")
    words = ["apply", "--root", root, "--profile", "mi300x", "--allow", "all"]
    assert tuner(*words).code == 0
    policy(root, POLICY)
    assert check(root)[0] == 0
    hosts.break_copy(str(root), "gpu-lost")
    assert check(root)[0] == 86
    aged(root, 3700.0)
    tuner(*words, "--set", "sysctl:vm.swappiness=10")
    code, said = check(root)
    assert code == 86, said
    assert "0000:c7:00.0 missing" in said


def test_what_was_judged_since_is_in_no_older_answer(copy_host: Copy, tuner: Call, tmp_path: Path) -> None:
    """What was seen ok is remembered beside the evidence: an older `start` must not be given again."""
    root = copy_host()
    assert tuner("apply", "--profile", write_profile(tmp_path / "p.yaml", PROFILE), "--root", root).code == 0
    policy(root, POLICY)
    for name in (store.SEEN, fast.PATH):
        (root / name.lstrip("/")).unlink(missing_ok=True)
    drift(root)
    assert check(root)[0] == 0, "never seen ok"
    drift(root, "1")
    (root / "proc/sys/net/core/rmem_max").write_text("4096\n", encoding="ascii")
    assert check(root)[0] == 86, "rmem_max was ok"
    (root / "proc/sys/net/core/rmem_max").write_text("16777216\n", encoding="ascii")
    drift(root)
    assert check(root)[0] == 86


def test_nor_in_one_that_a_skip_kept_from_being_kept(node: Path, tuner: Call) -> None:
    (node / store.SEEN.lstrip("/")).unlink()
    drift(node)
    assert check(node)[0] == 0
    drift(node, "1")
    tuner("slurm", "skip", "thp", "--for", "2h", "--why", "x", "--root", node)
    assert check(node)[0] == 0
    tuner("slurm", "skip", "thp", "--remove", "--root", node)
    drift(node)
    assert check(node)[0] == 86


def test_who_only_asks_arms_nothing_and_logs_nothing(node: Path, tuner: Call, log: list[str]) -> None:
    """tuner slurm prolog by hand: what a job would meet, said once."""
    for name in (store.SEEN, fast.PATH):
        (node / name.lstrip("/")).unlink()
    assert tuner("slurm", "prolog", "--root", node).code == 0
    assert not (node / store.SEEN.lstrip("/")).exists()
    assert not (node / fast.PATH.lstrip("/")).exists()
    drift(node)
    assert "never ok" in tuner("slurm", "prolog", "--root", node).out
    assert log == []


def test_a_judgement_that_is_killed_halfway_leaves_no_older_answer(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had remembered what it saw ok, and not yet kept its own answer."""
    for name in (store.SEEN, fast.PATH):
        (node / name.lstrip("/")).unlink()
    drift(node)
    assert check(node)[0] == 0
    drift(node, "1")
    with monkeypatch.context() as patch:
        patch.setattr("tuner.evidence.renew", lambda *_: os._exit(1))
        assert prolog.run(str(node))[0] in (0, BROKEN)
    assert (node / store.SEEN.lstrip("/")).exists()
    drift(node)
    assert check(node)[0] == 86
