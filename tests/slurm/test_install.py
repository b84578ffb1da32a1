"""What install writes and what it finds in slurm.conf; the script under any /bin/sh; the reason in Slurm's words."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, tree
from tuner.host import open_host
from tuner.host.shell import Ran
from tuner.off import now
from tuner.slurm import conf, scontrol, script
from tuner.slurm.conf import Conf
from tuner.slurm.store import Drained

Call = Callable[..., Result]
PYTHON = "/opt/tuner/bin/python"

# --- install ------------------------------------------------------------------------------------------------------


def files(root: Path) -> dict[str, Path]:
    names = ("etc/slurm/prolog.d/50-tuner", script.WANTED, *script.files(PYTHON))
    return {name.rpartition("/")[2]: root / name.lstrip("/") for name in names}


def install(tuner: Call, root: Path, *words: str) -> Result:
    return tuner("slurm", "install", "--root", root, "--python", PYTHON, *words, "--json")


def test_install_writes_once_and_removes_all(root: Path, tuner: Call) -> None:
    """Script 0755, units 0644, the path unit enabled; a second time nothing; afterwards the tree as it was."""
    before = tree(root)
    first = install(tuner, root)
    assert len(first.document["written"]) == 4
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in files(root).values() if not path.is_symlink()}
    assert modes == {"50-tuner": 0o755, script.SERVICE: 0o644, script.PATH_UNIT: 0o644}
    link = root / script.WANTED.lstrip("/")
    assert str(link.readlink()) == f"/etc/systemd/system/{script.PATH_UNIT}"
    assert install(tuner, root).document["written"] == []
    removed = tuner("slurm", "install", "--root", root, "--remove", "--json")
    assert len(removed.document["removed"]) == 4
    kept = {path: what for path, what in tree(root).items() if what[0] != "dir"}
    assert kept == {path: what for path, what in before.items() if what[0] != "dir"}


@pytest.mark.parametrize("led", ["unit", "slurm.conf"])
def test_remove_finds_the_script_wherever_install_put_it(root: Path, tuner: Call, led: str) -> None:
    """As uninstall.yml calls it, without --dir: by the service's own lines, and without units by what Prolog names.

    Every script left behind would say before each job that its interpreter is not there.
    """
    (root / "etc/slurm").mkdir()
    before = tree(root)
    folders = ["/etc/slurm/other.d", "/srv/prolog", "/etc/slurm/prolog.d"] if led == "unit" else ["/etc/slurm/other.d"]
    for folder in folders:
        install(tuner, root, "--dir", folder)
        assert install(tuner, root, "--dir", folder).document["written"] == []
    scripts = {f"{folder}/50-tuner" for folder in folders}
    if led == "slurm.conf":
        service = root / f"etc/systemd/system/{script.SERVICE}"
        service.write_text(service.read_text(encoding="ascii").replace(script.NOTE, "# "), encoding="ascii")
        (root / "etc/slurm/slurm.conf").write_text("Prolog=/etc/slurm/other.d/*\n", encoding="ascii")
        (root / "etc/slurm/other.d/10-other").write_text("#!/bin/sh\n", encoding="ascii")
    assert (
        set(tuner("slurm", "install", "--root", root, "--remove", "--dry-run", "--json").document["removed"]) > scripts
    )
    removed = tuner("slurm", "install", "--root", root, "--remove")
    assert removed.code == 0
    assert all(f"removed   {path}" in removed.out for path in scripts)
    left = {path: what for path, what in tree(root).items() if what[0] != "dir"}
    others = {"etc/slurm/slurm.conf", "etc/slurm/other.d/10-other"} if led == "slurm.conf" else set()
    assert left.keys() - before.keys() == others


def test_remove_knows_one_script_by_two_names(root: Path, tuner: Call) -> None:
    """The folder of the default is a link, and slurm.conf names where it leads."""
    (root / "srv/p").mkdir(parents=True)
    (root / "etc/slurm").mkdir()
    (root / "etc/slurm/prolog.d").symlink_to("/srv/p")
    install(tuner, root)
    (root / "etc/slurm/slurm.conf").write_text("Prolog=/srv/p/*\n", encoding="ascii")
    (root / "srv/p/10-other").write_text("#!/bin/sh\n", encoding="ascii")
    removed = tuner("slurm", "install", "--root", root, "--remove", "--json")
    assert (removed.code, len(removed.document["removed"])) == (0, 4)
    assert not (root / "srv/p/50-tuner").exists()
    assert not (root / "etc/systemd/system" / script.SERVICE).exists()


def test_remove_believes_no_line_that_leads_elsewhere(root: Path, tuner: Call) -> None:
    """A line of the service, a Prolog of slurm.conf: only what install wrote goes, and nothing else is even named."""
    install(tuner, root)
    service = root / f"etc/systemd/system/{script.SERVICE}"
    lines = "".join(f"{script.NOTE}{path}\n" for path in ("/etc/passwd", "/srv/50-tuner", "/gone/50-tuner", "50-tuner"))
    service.write_text(service.read_text(encoding="ascii").replace("[Unit]", f"{lines}[Unit]"), encoding="ascii")
    (root / "srv").mkdir(exist_ok=True)
    (root / "srv/50-tuner").write_text("#!/bin/sh\n", encoding="ascii")
    (root / "etc/slurm/slurm.conf").write_text("Prolog=/srv/*\nProlog=/etc/*/x\nProlog=x\n", encoding="ascii")
    removed = tuner("slurm", "install", "--root", root, "--remove", "--json")
    assert (len(removed.document["removed"]), removed.document["left"]) == (4, [])
    assert (root / "srv/50-tuner").exists()


def test_the_only_script_of_any_folder_that_slurm_names_stays(root: Path, tuner: Call) -> None:
    """Found without --dir, it is kept for the same reason; the units stay with it."""
    install(tuner, root, "--dir", "/etc/slurm/other.d")
    (root / "etc/slurm/slurm.conf").write_text("Prolog=/etc/slurm/other.d/*\n", encoding="ascii")
    before = tree(root)
    refused = tuner("slurm", "install", "--root", root, "--remove")
    assert (refused.code, "Prolog=/etc/slurm/other.d/*" in refused.err) == (64, True)
    assert tree(root) == before


def test_no_half_script_is_ever_seen(root: Path, tuner: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmd takes whatever `*` finds in prolog.d, and a file that it cannot run drains the node."""
    install(tuner, root)
    folder = root / "etc/slurm/prolog.d"
    (folder / "50-tuner").write_text("# Written by tuner, units 1 (tuner slurm install): old\n", encoding="ascii")
    seen: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.extend(path.name for path in folder.glob("*") if not path.name.startswith("."))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    assert install(tuner, root).document["written"] == ["/etc/slurm/prolog.d/50-tuner"]
    assert set(seen) == {"50-tuner"}
    assert [path.name for path in folder.iterdir()] == ["50-tuner"]


def test_the_only_script_of_a_folder_that_slurm_names_stays(root: Path, tuner: Call) -> None:
    """slurmd drains a node where the pattern of Prolog finds nothing."""
    install(tuner, root)
    path = root / "etc/slurm/slurm.conf"
    path.write_text("Prolog=/etc/slurm/prolog.d/*\n", encoding="ascii")
    refused = tuner("slurm", "install", "--root", root, "--remove")
    assert refused.code == 64
    assert "drains a node where that finds nothing" in refused.err
    assert files(root)["50-tuner"].exists()
    (root / "etc/slurm/prolog.d/10-other").write_text("#!/bin/sh\n", encoding="ascii")
    assert tuner("slurm", "install", "--root", root, "--remove").code == 0
    install(tuner, root)
    (root / "etc/slurm/prolog.d/10-other").unlink()
    path.write_text("#Prolog=/etc/slurm/prolog.d/*\n", encoding="ascii")
    assert tuner("slurm", "install", "--root", root, "--remove").code == 0


@pytest.mark.parametrize(("prolog", "runs"), [
    ("/etc/slurm/prolog.d/*", True), ("/etc/slurm/prolog.d/50-tuner", True), ("/etc/slurm/prolog.d/[0-9]*", True),
    ("/etc/slurm/prolog.d/*.sh", False), ("/etc/slurm/*", False), ("/etc/slurm/prolog.d", False),
])  # fmt: skip
def test_which_prolog_finds_the_script(root: Path, tuner: Call, prolog: str, runs: bool) -> None:
    """slurmd takes a pattern of glob(7): it need not be the one that we propose."""
    (root / "etc/slurm").mkdir()
    (root / "etc/slurm/slurm.conf").write_text(f"Prolog={prolog}\n", encoding="ascii")
    whats = [row["what"] for row in install(tuner, root).document["findings"]]
    assert any("never runs" in what for what in whats) is not runs
    assert tuner("slurm", "install", "--root", root, "--remove").code == (64 if runs else 0)


def test_a_file_that_slurmd_cannot_run_bites(root: Path, tuner: Call) -> None:
    """A README, a copy of an editor: each drains every node that has it. Hidden ones are not met."""
    folder = root / "etc/slurm/prolog.d"
    folder.mkdir(parents=True)
    for name, mode in (("README", 0o644), ("20-good", 0o755), (".hidden", 0o600)):
        (folder / name).write_text("#!/bin/sh\n", encoding="ascii")
        (folder / name).chmod(mode)
    result = install(tuner, root)
    rows = [row for row in result.document["findings"] if "no executable file" in row["what"]]
    assert [row["what"].partition(" in ")[0] for row in rows] == ["README"]
    assert result.code == 10


def test_a_dry_run_writes_nothing(root: Path, tuner: Call) -> None:
    """It says the same."""
    before = tree(root)
    dry = install(tuner, root, "--dry-run")
    assert tree(root) == before
    assert dry.document["written"] == install(tuner, root).document["written"]


@pytest.mark.parametrize("how", ["edited", "mode"])
def test_what_somebody_changed_is_mended(root: Path, tuner: Call, how: str) -> None:
    """By the next install, and only that file."""
    install(tuner, root)
    path = files(root)["50-tuner"]
    if how == "mode":
        path.chmod(0o777)
    else:
        path.write_text(path.read_text(encoding="ascii") + "exit 1\n", encoding="ascii")
    assert install(tuner, root).document["written"] == ["/etc/slurm/prolog.d/50-tuner"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert "exit 1\n" not in path.read_text(encoding="ascii")[-8:]


@pytest.mark.parametrize("name", ["50-tuner", script.SERVICE, script.PATH_UNIT])
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_files_of_others_stay(root: Path, tuner: Call, name: str, kind: str) -> None:
    """A name that is taken: nothing is written at all, no link is followed, and remove leaves it."""
    path, elsewhere = files(root)[name], root / "etc/precious"
    path.parent.mkdir(parents=True, exist_ok=True)
    elsewhere.write_text("keep\n", encoding="ascii")
    match kind:
        case "file":
            path.write_text("#!/bin/sh\n", encoding="ascii")
        case "link":
            path.symlink_to("/etc/precious")
        case _:
            path.mkdir()
    before = tree(root)
    result = tuner("slurm", "install", "--root", root, "--python", PYTHON)
    assert result.code == 64
    assert "was not written by tuner" in result.err
    assert tree(root) == before
    tuner("slurm", "install", "--root", root, "--remove")
    assert tree(root) == before


@pytest.mark.parametrize("words", [["--dir", "prolog.d"], ["--dir", "/etc/a b"], ["--dir", "/etc/$(x)"],
                                   ["--judged-root", "/a';x'"], ["--dir", "/etc/../tmp"]])  # fmt: skip
def test_paths_that_a_script_does_not_take(root: Path, tuner: Call, words: list[str]) -> None:
    """Bad input, never a script that does something else."""
    assert tuner("slurm", "install", "--root", root, "--python", PYTHON, *words).code == 64


# --- the script ---------------------------------------------------------------------------------------------------

SHELLS = [path for path in ("/bin/sh", "/bin/dash", "/bin/bash", "/bin/busybox") if os.path.exists(path)]


@pytest.fixture
def made(root: Path, tmp_path: Path) -> Callable[[str], Path]:
    """made(TEXT) -> the script with a stand-in for the interpreter that runs TEXT under sh."""

    def make(text: str) -> Path:
        python, path = tmp_path / "python", tmp_path / "50-tuner"
        python.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
        python.chmod(0o755)
        path.write_text(script.script(str(python), str(root)), encoding="ascii")
        path.chmod(0o755)
        return path

    return make


def run(path: Path, shell: str = "") -> tuple[int, bytes]:
    """As slurmd does: a pipe that is read to its end, and next to no environment."""
    line = [*([shell] if shell else []), *(["sh"] if shell.endswith("busybox") else []), str(path)]
    done = subprocess.run(
        line, env={"SLURM_JOB_ID": "7"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("text", "code"), [
    ("exit 0", 0), ("exit 86", 1), ("exit 1", 0), ("exit 2", 0), ("exit 12", 0), ("exit 70", 0), ("exit 85", 0),
    ("exit 127", 0), ("kill -KILL $$", 0), ("kill -SEGV $$", 0), ("kill -TERM $$", 0), ("echo out; echo err >&2", 0),
])  # fmt: skip
def test_only_86_drains(made: Callable[[str], Path], shell: str, text: str, code: int) -> None:
    """Any other code and any signal start the job; not a byte goes to slurmd's log."""
    assert run(made(text), shell) == (code, b"")


@pytest.mark.parametrize("gone", ["missing", "no program", "no right"])
def test_no_interpreter(made: Callable[[str], Path], gone: str) -> None:
    """Removed, overwritten, or closed to us."""
    path = made("exit 86")
    python = path.with_name("python")
    match gone:
        case "missing":
            python.unlink()
        case "no program":
            python.write_bytes(b"\x7fELF\0\0")
        case _:
            python.chmod(0o644)
    assert run(path) == (0, b"")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else")
def test_a_shell_that_cannot_fork(shell: str) -> None:
    """No process to be had, as after a job that left too many: dash exits with 2 by itself, and that would drain."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "50-tuner"
        path.write_text(script.script("/bin/sh", ""), encoding="ascii")
        path.chmod(0o755)
        path.parent.chmod(0o755)
        limited = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "prlimit", "--nproc=0:0"]
        line = [*limited, shell, *(["sh"] if shell.endswith("busybox") else []), str(path)]
        done = subprocess.run(line, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_no_dev_null(made: Callable[[str], Path], shell: str) -> None:
    """A redirection that fails ends a shell with 2 (dash(1), special built-ins)."""
    path = made("exit 0")
    text = path.read_text(encoding="ascii").replace("/dev/null", "/dev/gone/null")
    path.write_text(text, encoding="ascii")
    assert run(path, shell)[0] == 0


def test_a_child_that_outlives_it_holds_nothing(made: Callable[[str], Path]) -> None:
    """slurmd reads until the end of the pipe: it comes with the script, whatever still runs."""
    start = time.monotonic()
    assert run(made("sleep 30 & exit 0")) == (0, b"")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(("path", "text", "code"), [
    ("etc/tuner/off", '{"why": "x", "who": "y", "since": "z", "until": ""}\n', 0),
    ("etc/tuner/off", '{"why": "x", "who": "y", "since": "z", "until": "2026-01-01T00:00:00+00:00"}\n', 1),
    ("proc/cmdline", "BOOT_IMAGE=x tuner.off quiet\n", 0),
    ("proc/cmdline", "BOOT_IMAGE=x nottuner.off tuner.offline quiet\n", 1),
    ("etc/tuner/slurm.yaml", "# policy\nmode: off\n", 0),
    ("etc/tuner/slurm.yaml", 'mode: "off"\n', 0),
    ("etc/tuner/slurm.yaml", "mode: off  # for now\n", 0),
    ("etc/tuner/slurm.yaml", "mode: enforce\n# mode: off\n", 1),
])  # fmt: skip
def test_off_asks_nobody(made: Callable[[str], Path], root: Path, path: str, text: str, code: int) -> None:
    """Off: exit 0 without an interpreter. A switch that ends at some time is the check's own to judge."""
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text(text, encoding="ascii")
    assert run(made("exit 86"))[0] == code


def test_the_node_names_the_root() -> None:
    """%n: several slurmd on one machine, each with a host of its own."""
    assert 'root="/srv/${SLURMD_NODENAME:-}/root"' in script.script(PYTHON, "/srv/%n/root/")
    assert 'root=""' in script.script(PYTHON, "")


def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    """systemd-analyze verify finds nothing to say about them."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    for path, text in script.files(sys.executable).items():
        (tmp_path / Path(path).name).write_text(text, encoding="ascii")
    names = [str(tmp_path / script.SERVICE), str(tmp_path / script.PATH_UNIT)]
    done = subprocess.run(
        ["systemd-analyze", "verify", *names], capture_output=True, text=True, timeout=60, check=False
    )
    assert [line for line in done.stderr.splitlines() if "tuner-slurm" in line] == []


# --- slurm.conf ---------------------------------------------------------------------------------------------------

GOOD = """ClusterName=t
Prolog=/etc/slurm/prolog.d/*
PrologEpilogTimeout=9
PrologFlags=Alloc,ForceRequeueOnFail
SchedulerParameters=bf_interval=2,nohold_on_prolog_fail
AuthInfo=cred_expire=30
PropagateResourceLimitsExcept=MEMLOCK
"""


def found(text: str, release: tuple[int, int] | None = (23, 11), budget: float = 5.0) -> dict[str, str]:
    """What -> line of every finding of a slurm.conf."""
    keys, prologs = {}, []
    for line in conf.logical(text):
        name, _, value = line.partition("=")
        keys[name.lower()] = value
        prologs += [value] if name.lower() == "prolog" else []
    rows = conf.findings(Conf("/etc/slurm/slurm.conf", keys, prologs), release, "/etc/slurm/prolog.d", budget)
    return {row.what: row.line for row in rows}


def test_nothing_bites_in_a_good_one() -> None:
    """The lines of README."""
    assert found(GOOD) == {}


BITES = [
    ("Prolog=/etc/slurm/prolog.d/*\n", "", "Prolog is not set", "Prolog=/etc/slurm/prolog.d/*"),
    ("Prolog=/etc/slurm/prolog.d/*", "Prolog=/etc/slurm/p.sh", "never runs", "Prolog=/etc/slurm/prolog.d/*"),
    ("PrologEpilogTimeout=9\n", "", "PrologEpilogTimeout is not set", "PrologEpilogTimeout=9"),
    ("Timeout=9", "Timeout=5", "not more than the budget of 5 s", "PrologEpilogTimeout=9"),
    ("Timeout=9", "Timeout=60", "not less than MessageTimeout (10 s)", "MessageTimeout=61"),
    ("PrologFlags=Alloc,", "PrologFlags=", "no Alloc", "PrologFlags=Alloc,forcerequeueonfail"),
    ("Alloc,", "Alloc,Serial,", "Serial runs prologs of a node one after another", ""),
    (",ForceRequeueOnFail", "", "--no-requeue are cancelled", ""),
    (",nohold_on_prolog_fail", "", "requeued held", "SchedulerParameters=bf_interval=2,nohold_on_prolog_fail"),
    ("=cred_expire=30", "=socket=/run/munge", "waits 120 s for its credential", ""),
    ("PropagateResourceLimitsExcept=MEMLOCK\n", "", "memlock", "PropagateResourceLimitsExcept=MEMLOCK"),
    ("Except=MEMLOCK\n", "Except=MEMLOCK\nPropagateResourceLimits=ALL\n", "exclude each other", ""),
]


@pytest.mark.parametrize(("old", "new", "what", "line"), BITES)
def test_what_bites_is_found_alone(old: str, new: str, what: str, line: str) -> None:
    """One change to the good one: one finding, with the line that mends it."""
    rows = found(GOOD.replace(old, new))
    assert len(rows) == 1, rows
    assert what in next(iter(rows))
    assert next(iter(rows.values())) == line


@pytest.mark.parametrize(("flag", "release", "wrong"), [
    ("RunInJob", (22, 5), True), ("RunInJob", (24, 5), False), ("RunInJob", (23, 11), True),
    ("ForceRequeueOnFail", (22, 5), True), ("ForceRequeueOnFail", (23, 2), False), ("RunInJob", None, False),
])  # fmt: skip
def test_flags_that_a_release_does_not_know(flag: str, release: tuple[int, int] | None, wrong: bool) -> None:
    """RunInJob since 24.05, ForceRequeueOnFail since 23.02 (slurm.conf(5), RELEASE_NOTES)."""
    rows = found(GOOD.replace("Alloc,ForceRequeueOnFail", f"Alloc,{flag}"), release)
    assert any("exists from" in what for what in rows) is wrong


def test_prolog_timeout_of_newer_releases() -> None:
    """25.05 has a limit for prologs alone, which wins there."""
    text = GOOD + "PrologTimeout=4\n"
    assert any(what.startswith("PrologTimeout=4 ") for what in found(text, (25, 5)))
    assert found(text, (24, 11)) == {}


def test_slurm_conf_is_read_as_slurm_reads_it(root: Path) -> None:
    """Any case, continued lines, comments, includes beside it; the last one wins; what cannot be read is said."""
    folder = root / "etc/slurm"
    folder.mkdir()
    (folder / "slurm.conf").write_text(
        "prolog = /a  # old\nPROLOGFLAGS=Alloc,\\\nContain\ninclude more.conf\nInclude gone.conf\nNodeName=n1 CPUs=4\n"
    )
    (folder / "more.conf").write_text("Prolog=/b\nInclude slurm.conf\n", encoding="ascii")
    host = open_host(str(root))
    read = conf.read(host, conf.find(host))
    assert read.prologs[:2] == ["/a", "/b"]
    assert read.words("prologflags") == ["alloc", "contain"]
    assert any("gone.conf" in what for what in read.unread)
    (folder / "slurm.conf").write_text('Prolog="/etc/slurm/prolog.d/*"\nPrologEpilogTimeout="9"\n', encoding="ascii")
    quoted = conf.read(host, conf.find(host))
    assert (quoted.prologs, quoted.number("prologepilogtimeout")) == (["/etc/slurm/prolog.d/*"], 9)


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Whatever a file holds: lines, and findings."""
    found(text)
    conf.memlock(text)
    conf.version(text)
    scontrol.standing(text)


def test_without_a_slurm_conf_all_lines_are_shown(root: Path, tuner: Call) -> None:
    """Nothing is wrong yet, and all that has to be said is said once."""
    result = install(tuner, root)
    assert result.code == 0
    assert result.document["lines"] == [
        "Prolog=/etc/slurm/prolog.d/*",
        "PrologEpilogTimeout=9",
        "PrologFlags=Alloc",
        "SchedulerParameters=nohold_on_prolog_fail",
        "PropagateResourceLimitsExcept=MEMLOCK",
    ]


def test_the_order_of_the_folder(root: Path, tuner: Call) -> None:
    """slurmd runs prolog.d from the last name to the first, up to the first that fails."""
    folder = root / "etc/slurm/prolog.d"
    folder.mkdir(parents=True)
    for name in ("10-late", "60-gpu", "90-mount"):
        (folder / name).write_text("#!/bin/sh\n", encoding="ascii")
    whats = [row["what"] for row in install(tuner, root).document["findings"]]
    assert any(what.startswith("90-mount, 60-gpu run before 50-tuner") for what in whats)


@pytest.mark.parametrize(("said", "release"), [
    ("slurm-wlm 22.05.8", (22, 5)), ("slurm 23.11.4", (23, 11)), ("slurm 24.05.0-0rc1", (24, 5)), ("", None),
])  # fmt: skip
def test_releases(said: str, release: tuple[int, int] | None) -> None:
    """As `slurmd -V` of Debian and of SchedMD say it."""
    assert conf.version(said) == release


@pytest.mark.parametrize(("said", "wrong"), [("LimitMEMLOCK=8388608\n", 1), ("LimitMEMLOCK=infinity\n", 0), ("", 0)])
def test_memlock_of_slurmd(said: str, wrong: int) -> None:
    """As systemctl says it: 8 MiB is what systemd 252 gives a service."""
    assert len(conf.memlock(said)) == wrong


# --- the reason ---------------------------------------------------------------------------------------------------

SHOWN = """NodeName=n2 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=1.20
   OS=Linux 6.1.0 #1 SMP State=IDLE
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1
   Reason={reason}
"""
"""The lines of `scontrol show node` (22.05) that matter, with a trap in OS."""


class Slurm:
    """Answers as scontrol does, and remembers what it was told."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.told = list(answers), [""][:0]

    def __call__(self, words: list[str]) -> Ran:
        """One call."""
        if words[0] == "update":
            self.told.append(words[2])
            return Ran(0, "", "", "")
        answer = self.answers.pop(0)
        return Ran(None, "", "", answer) if answer.startswith("!") else Ran(0, answer, "", "")


def drained(**more: str) -> Drained:
    return Drained(**{"reason": "tuner: x", "node": "n2", "job": "7", "when": now().isoformat(), **more})


def shown(state: str, reason: str) -> str:
    return SHOWN.format(state=state, reason=reason).replace(" State=IDLE\n", "\n", 1)


@pytest.mark.parametrize(("state", "reason", "done"), [
    ("IDLE+DRAIN", "Prolog error [root@2026-11-30T03:00:00]", True),
    ("MIXED+DRAIN", "Prolog error", True),
    ("IDLE+DRAIN+CLOUD", "Prolog error [slurm@2026-11-30T03:00:00]", True),
    ("IDLE+DRAIN", "disk swap [ann@2026-11-30T03:00:00]", False),
    ("IDLE+DRAIN", "Prolog error seen by ann [ann@2026-11-30T03:00:00]", False),
    ("IDLE+DRAIN", "not Prolog error", False),
    ("IDLE+DRAIN", "tuner: x [root@2026-11-30T03:00:00]", False),
    ("IDLE+DRAIN", "", False),
    ("IDLE", "Prolog error [root@2026-11-30T03:00:00]", False),
])  # fmt: skip
def test_only_slurms_own_constant_is_replaced(state: str, reason: str, done: bool) -> None:
    """Exactly that reason, with or without the stamp, of a node that is drained."""
    slurm = Slurm(shown(state, reason))
    assert scontrol.tell(drained(), slurm, 0)[0]
    assert slurm.told == (["reason=tuner: x"] if done else [])


def test_a_node_that_is_not_drained_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld hears of the failed prolog a moment after the reason was left."""
    monkeypatch.setattr(scontrol, "PAUSE", 0.01)
    slurm = Slurm(shown("ALLOCATED", ""), shown("ALLOCATED", ""), shown("ALLOCATED+DRAIN", "Prolog error"))
    assert scontrol.tell(drained(), slurm, 5) == (True, "n2: tuner: x")
    assert slurm.told == ["reason=tuner: x"]


def test_a_slurmctld_that_is_down_is_asked_again_by_the_unit() -> None:
    """Not done: the service fails, and systemd starts it again a few times."""
    assert scontrol.tell(drained(), Slurm("! Unable to contact slurm controller"), 0)[0] is False
    text = script.files(PYTHON)[f"/etc/systemd/system/{script.SERVICE}"]
    unit = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert unit["Restart"] == "on-failure"
    starts = scontrol.OLDEST.total_seconds() / int(unit["RestartSec"])
    assert starts < int(unit["StartLimitBurst"]), "a limit that is met ends the path unit too"


@pytest.mark.parametrize("more", [{"node": "n2 state=resume"}, {"node": ""}, {"when": "2026-01-01T00:00:00+00:00"},
                                  {"when": "soon"}, {"when": "2026-01-01"}])  # fmt: skip
def test_a_reason_that_is_none_of_now(more: dict[str, str]) -> None:
    """An odd name or an old reason: Slurm is not even asked."""
    assert scontrol.tell(drained(**more), Slurm(), 0)[0] is True
