"""What people see: first lines, columns, colours, pipes, locales, help, explain, status, history."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import Result, write_profile
from tuner import __version__, documents
from tuner.cli import main
from tuner.host import Host
from tuner.knobs.module import INITRAMFS
from tuner.knobs.nvidia_modes import IN_FORCE
from tuner.model import Plan, Seen, Setting, Verdict, Want

Tuner = Callable[..., Result]
REPO = Path(__file__).parents[1]
VERBS = ("plan", "apply", "verify", "rollback", "status", "explain", "history", "host list", "host copy", "off", "on")
EXITS = ("0", "10", "11", "12", "13", "14", "20", "21", "30", "31", "64")
STATES = ("raised", "pending", "held", "unsupported", "shadowed", "unknown", "drift", "missing")
ESC = "\x1b"

SETTINGS = """
sysctl:
  net.core.rmem_max:
    at_least: 16777216
    why: Sockets may ask for 16 MiB
    source: Documentation/admin-guide/sysctl/net.rst
  net.ipv4.tcp_rmem: "4096 131072 16777216"
  vm.swappiness: 1
  kernel.pid_max: {at_least: 1024}
  net.core.no_such_key: 1
hugepages:
  node0/2MB: 64
"""
"""On plain-vm (stock Debian 12): three values differ, one is higher than asked for, one key does not exist."""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The profile above as a file."""
    return write_profile(tmp_path / "shown.yaml", SETTINGS, name="shown")


def run(
    words: Sequence[object],
    *,
    stdout: int = subprocess.PIPE,
    script: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """`python -m tuner WORDS` as a process of its own."""
    command = [sys.executable, "-m", "tuner", *map(str, words)]
    if script:
        command = ["sh", "-c", script, *command]
    surroundings = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "LC_ALL", "LANG")}
    surroundings |= {"PYTHONPATH": str(REPO), "TERM": "xterm-256color", **(env or {})}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=surroundings, timeout=60, check=False)


def on_terminal(words: Sequence[object], env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output of a process whose stdout is a terminal of 80 columns."""
    controller, terminal = pty.openpty()
    try:
        done = run(words, stdout=terminal, env=env)
    finally:
        os.close(terminal)
    parts = []
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(controller)
    return done.returncode, b"".join(parts).decode("utf-8").replace("\r\n", "\n")


def cells(line: str) -> list[str]:
    """The columns of a table's row; the first one is empty where it repeats the row above."""
    return re.split(r" {2,}", line.removeprefix("  ").rstrip())


def row(out: str, place: str) -> list[str]:
    """The row of a place, such as `sysctl vm.swappiness`."""
    found = [cells(line) for line in out.splitlines() if place in cells(line)]
    assert len(found) == 1, f"{place}: {len(found)} rows in\n{out}"
    return found[0]


# --- the first line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb", ["plan", "apply", "verify", "status", "history", "history 1", "explain sysctl", "off", "on", "rollback"]
)
def test_first_line_says_recorded(tuner: Tuner, root: Path, profile: Path, verb: str) -> None:
    """Whatever the verb: RECORDED and the host's name come first."""
    words = verb.split()
    if verb in ("verify", "history 1", "rollback"):
        tuner("apply", "--root", root, "--profile", profile)
    options = ["--profile", profile] if verb in ("plan", "apply") else []
    options += ["--why", "maintenance"] if verb == "off" else []
    assert tuner(*words, "--root", root, *options).out.splitlines()[0].startswith("RECORDED plain-vm")


def test_first_line_says_image(tuner: Tuner, tmp_path: Path) -> None:
    """A tree with an etc/ that is no recorded host is an image, named by its path; what only runs is not for it."""
    (tmp_path / "img/etc").mkdir(parents=True)
    profile = write_profile(tmp_path / "p.yaml", "thp:\n  enabled: never\n")
    result = tuner("plan", "--root", tmp_path / "img", "--profile", profile)
    assert result.out.splitlines()[0].startswith(f"IMAGE {tmp_path}/img")
    assert row(result.out, "thp enabled")[0] == "unsupported"
    assert "image" in row(result.out, "thp enabled")[-1]
    assert result.code == 0


def test_first_line_says_live(tuner: Tuner) -> None:
    """Without --root it is this machine, by its short name."""
    first = tuner("explain", "sysctl:vm.swappiness").out.splitlines()[0]
    assert first.startswith(f"LIVE {os.uname().nodename.partition('.')[0]}")


def test_first_line_names_the_settings(tuner: Tuner, root: Path, profile: Path) -> None:
    """plan, apply and verify show the first 8 hex digits of the settings id that the document has in full."""
    planned = tuner("plan", "--root", root, "--profile", profile, "--json").document["settings_id"]
    shown = [tuner(verb, "--root", root, "--profile", profile).out.splitlines()[0] for verb in ("plan", "apply")]
    shown.append(tuner("verify", "--root", root).out.splitlines()[0])
    for line in shown:
        assert line.endswith(f"settings {planned[:8]}")


# --- plan and verify ----------------------------------------------------------------------------------------------


def test_plan_table(tuner: Tuner, root: Path, profile: Path) -> None:
    """State, knob and target, running, wanted: the values of a stock Debian 12 guest beside those of the profile.

    The plan adds the file that keeps the sysctls. What the next boot holds stands in the row where a file sets it.
    """
    result = tuner("plan", "--root", root, "--profile", profile)
    assert result.code == 10
    lines = result.out.splitlines()
    assert lines[1].startswith("7 settings: ")
    assert {"5 to change", "1 raised", "1 unsupported"} <= set(re.split(r"[:,] ", lines[1]))
    assert row(result.out, "sysctl net.core.rmem_max") == [
        "to change", "sysctl net.core.rmem_max", "212992", ">= 16777216"
    ]  # fmt: skip
    assert row(result.out, "sysctl vm.swappiness")[1:] == ["sysctl vm.swappiness", "60", "1"]
    assert row(result.out, "sysctl net.ipv4.tcp_rmem")[1:] == [
        "sysctl net.ipv4.tcp_rmem", "4096 131072 6291456", "4096 131072 16777216"
    ]  # fmt: skip
    assert row(result.out, "file /etc/sysctl.d/99-zz-tuner.conf")[2] == "no file"
    pages = row(result.out, "hugepages node0/2MB")
    assert pages[1:4] == ["hugepages node0/2MB", "0", "64"]
    assert pages[4].startswith("memory")
    assert "128 MB" in pages[4]
    assert row(result.out, "sysctl kernel.pid_max") == [
        "raised", "sysctl kernel.pid_max", "4194304", ">= 1024", "next boot 4194304"
    ]  # fmt: skip
    gone = row(result.out, "sysctl net.core.no_such_key")
    assert gone[0] == "unsupported"
    assert gone[-1] == "this kernel has no such key"


def test_plan_order_is_mildest_first(tuner: Tuner, root: Path, profile: Path) -> None:
    """Harmless changes in the profile's order, then what takes memory."""
    out = tuner("plan", "--root", root, "--profile", profile).out
    places = ["net.core.rmem_max", "net.ipv4.tcp_rmem", "vm.swappiness", "node0/2MB"]
    assert sorted(places, key=out.index) == places


def test_plan_columns_are_aligned(tuner: Tuner, root: Path, profile: Path) -> None:
    """Running values start in one column, wanted values in another."""
    lines = tuner("plan", "--root", root, "--profile", profile).out.splitlines()
    running = [("rmem_max ", "212992"), ("tcp_rmem ", "4096"), ("swappiness ", "60"), ("node0/2MB ", "0 ")]
    wanted = [("rmem_max ", ">="), ("tcp_rmem ", "4096 131072 16777216"), ("no_such_key ", "1 ")]
    for pairs in (running, wanted):
        columns = set()
        for place, value in pairs:
            line = next(line for line in lines if place in line)
            columns.add(line.index(value, line.index(place) + len(place)))
        assert len(columns) == 1, pairs


def test_plan_shows_what_is_held_and_how_to_allow_it(tuner: Tuner, root: Path, profile: Path) -> None:
    """--allow none: huge pages are held, the row says by which class, and the last lines give the command."""
    out = tuner("plan", "--root", root, "--profile", profile, "--allow", "none").out
    held = row(out, "hugepages node0/2MB")
    assert held[0] == "held"
    assert "--allow memory" in held[-1]
    command = next(line for line in out.splitlines() if "tuner apply" in line)
    assert f"--profile {profile}" in command
    assert f"--root {root}" in command
    assert "--allow memory" in command
    assert "tuner explain sysctl:net.core.rmem_max" in out


def test_plan_without_changes_gives_no_command(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Nothing to do: exit 0, no table, no advice to apply."""
    profile = write_profile(tmp_path / "p.yaml", "thp:\n  enabled: always\n")
    result = tuner("plan", "--root", root, "--profile", profile)
    assert result.code == 0
    assert "1 setting: 1 ok" in result.out
    assert "thp enabled" not in result.out
    assert "tuner apply" not in result.out


def test_all_shows_what_is_as_wanted(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """--all, for plan and for verify."""
    profile = write_profile(tmp_path / "p.yaml", "sysctl:\n  vm.swappiness: 60\n")
    for words in (["plan", "--profile", profile], ["verify", "--profile", profile]):
        assert row(tuner(*words, "--root", root, "--all").out, "sysctl vm.swappiness")[:3] == [
            "ok", "sysctl vm.swappiness", "60"
        ]  # fmt: skip


def test_one_line_sums_up_the_next_boot_with_reasons_below(tuner: Tuner, root: Path, profile: Path) -> None:
    """plan says it of the host as it stands, verify of what is applied: the pages need the boot unit.

    The file that is not there yet is predicted as such, and so is pid_max, which a file of systemd sets.
    """
    out = tuner("plan", "--root", root, "--profile", profile).out
    assert re.findall(r"(?m)^Next boot as it stands: .*", out) == ["Next boot as it stands: 2 predicted, 4 lost"]
    assert re.findall(r"(?m)^  (\d) lost: (no [^:]+)", out) == [
        ("3", "no file sets it"),
        ("1", "no tuner-apply.service"),
    ]
    tuner("apply", "--root", root, "--profile", profile)
    out = tuner("verify", "--root", root).out
    assert re.findall(r"(?m)^Next boot: .*", out) == ["Next boot: 5 predicted, 1 lost"]
    assert "  1 lost: no tuner-apply.service: tuner persist install" in out.splitlines()


def legend(out: str) -> set[str]:
    """The states that the legend explains."""
    return {state for state in STATES if re.search(rf"^ +{state}: +\S", out, re.MULTILINE)}


def test_legend_is_for_states_that_occur(tuner: Tuner, root: Path, profile: Path) -> None:
    """raised and unsupported under the plan above; held with it once nobody allows memory."""
    assert legend(tuner("plan", "--root", root, "--profile", profile).out) == {"raised", "unsupported"}
    out = tuner("plan", "--root", root, "--profile", profile, "--allow", "none").out
    assert legend(out) == {"raised", "unsupported", "held"}


def test_no_legend_when_all_is_well(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """ok needs no words."""
    profile = write_profile(tmp_path / "p.yaml", "thp:\n  enabled: always\n")
    assert legend(tuner("plan", "--root", root, "--profile", profile).out) == set()
    assert legend(tuner("verify", "--root", root, "--profile", profile).out) == set()


def test_verify_names_what_differs(tuner: Tuner, root: Path, profile: Path) -> None:
    """A value changed by hand: a drift row with what is there and what was applied, the legend says what drift is."""
    tuner("apply", "--root", root, "--profile", profile)
    (root / "proc/sys/vm/swappiness").write_text("33\n")
    result = tuner("verify", "--root", root)
    assert result.code == 10
    drift = row(result.out, "sysctl vm.swappiness")
    assert drift[:3] == ["drift", "sysctl vm.swappiness", "33"]
    assert drift[3].split()[-1] == "1"
    assert legend(result.out) == {"drift", "raised", "unsupported"}
    assert "generation 1, profile shown" in result.out


def test_apply_says_before_and_after(tuner: Tuner, root: Path, profile: Path) -> None:
    """One row per write, the number of the generation, how to undo it; a second apply says that there is nothing."""
    out = tuner("apply", "--root", root, "--profile", profile).out
    assert row(out, "sysctl vm.swappiness")[1:] == ["sysctl vm.swappiness", "60", "-> 1"]
    assert row(out, "hugepages node0/2MB")[1:] == ["hugepages node0/2MB", "0", "-> 64"]
    assert "Generation 1: 5 done" in out, "four settings, and the file that keeps three of them"
    assert "tuner rollback" in out
    again = tuner("apply", "--root", root, "--profile", profile).out
    assert "Nothing to write" in again
    assert "->" not in again


def test_apply_says_how_much_fell_short(tuner: Tuner, copy_host: Callable[..., Path], profile: Path) -> None:
    """A node with room for 50 huge pages less than asked for: kept, named `short`, with both numbers."""
    root = copy_host("plain-vm", "hugepages-short")
    asked = write_profile(profile.parent / "short.yaml", "hugepages:\n  node0/2MB: 150\n")
    result = tuner("apply", "--root", root, "--profile", asked)
    assert result.code == 10
    short = row(result.out, "hugepages node0/2MB")
    assert short[0] == "short"
    assert short[3] == "-> 100"
    assert "100 of 150" in short[4]


def test_rollback_says_what_it_left(tuner: Tuner, root: Path, profile: Path) -> None:
    """Restored rows, and `not ours any more` for what somebody else changed: left as it is, exit 10."""
    tuner("apply", "--root", root, "--profile", profile)
    (root / "proc/sys/vm/swappiness").write_text("33\n")
    result = tuner("rollback", "--root", root)
    assert result.code == 10
    assert row(result.out, "sysctl vm.swappiness")[0] == "not ours any more"
    assert row(result.out, "sysctl net.core.rmem_max")[1:] == ["sysctl net.core.rmem_max", "16777216", "-> 212992"]
    assert (root / "proc/sys/vm/swappiness").read_text() == "33\n"


# --- terminals, pipes, locales ------------------------------------------------------------------------------------


def test_plain_when_piped(root: Path, profile: Path) -> None:
    """No escape sequence in a pipe, whatever TERM says."""
    done = run(["plan", "--root", root, "--profile", profile])
    assert done.returncode == 10
    assert ESC.encode() not in done.stdout
    assert done.stdout.startswith(b"RECORDED plain-vm")


def test_colours_on_a_terminal(root: Path, profile: Path) -> None:
    """Colours change nothing in the text: without them it is, line for line, what a pipe gets (also over 80 wide)."""
    words = ["plan", "--root", root, "--profile", profile]
    code, shown = on_terminal(words)
    assert code == 10
    assert f"{ESC}[" in shown
    assert any(len(line) > 80 for line in run(words).stdout.decode().splitlines())
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == run(words).stdout.decode()


def test_no_color_on_a_terminal(root: Path, profile: Path) -> None:
    """NO_COLOR set: plain on a terminal too. Empty counts as not set (no-color.org)."""
    words = ["plan", "--root", root, "--profile", profile]
    assert ESC not in on_terminal(words, {"NO_COLOR": "1"})[1]
    assert ESC in on_terminal(words, {"NO_COLOR": ""})[1]


def test_json_on_a_terminal_is_plain(root: Path, profile: Path) -> None:
    """A document stays one."""
    assert ESC not in on_terminal(["plan", "--root", root, "--profile", profile, "--json"])[1]


def test_rich_is_for_terminals_only(root: Path, profile: Path) -> None:
    """A pipe and --json do without it: it costs more time than the plan."""
    for more in ([], ["--json"]):
        done = run(["plan", "--root", root, "--profile", profile, *more], env={"PYTHONPROFILEIMPORTTIME": "1"})
        assert b"tuner.plan" in done.stderr
        assert b"rich" not in done.stderr


CLOSED = [
    ("text", ["plan", "--profile", "PROFILE", "--all"], 10),
    ("json", ["plan", "--profile", "PROFILE", "--json"], 10),
    ("apply", ["apply", "--profile", "PROFILE"], 0),
    ("status", ["status"], 0),
    ("error", ["verify", "--json"], 64),
    ("help", ["plan", "--help"], 0),
    ("version", ["--version"], 0),
]
LOST = {"nobody reads": None, "closed": 'exec "$0" "$@" >&-', "full": 'exec "$0" "$@" > /dev/full'}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize(("words", "code"), [c[1:] for c in CLOSED], ids=[c[0] for c in CLOSED])
def test_output_that_nobody_takes(root: Path, profile: Path, words: list[str], code: int, how: str) -> None:
    """A pipe whose reader is gone: quiet, and the exit code is the verb's own; so it is without any stdout.

    No room for the output (/dev/full) may be complained of, but by no traceback and no exit code without a meaning.
    """
    where = [] if words[-1] in ("--help", "--version") else ["--root", str(root)]
    full = [str(profile) if word == "PROFILE" else word for word in words] + where
    script = LOST[how]
    if script is None:
        reader, writer = os.pipe()
        os.close(reader)
        done = run(full, stdout=writer)
        os.close(writer)
    else:
        done = run(full, script=script)
    said = done.stderr.decode()
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    if how == "full":
        assert str(done.returncode) in EXITS
    else:
        assert done.returncode == code
        assert not said or code == 64 or how == "closed"


def test_stderr_that_nobody_takes(root: Path) -> None:
    """An error still has its exit code when stderr is closed."""
    done = run(["verify", "--root", root], script='exec "$0" "$@" 2>&-')
    assert done.returncode == 64


FOREIGN = """
sysctl:
  vm.swappiness:
    value: 1
    why: "Größer als nötig \\u2013 \\u2713"
    source: "Überlegung"
"""


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_non_ascii_text_in_any_locale(root: Path, tmp_path: Path, locale: str) -> None:
    """Text that the terminal cannot show is escaped; no verb crashes over it, on stdout or on stderr."""
    profile = write_profile(tmp_path / "prüfung.yaml", FOREIGN, name="test")
    broken = write_profile(tmp_path / "übel.yaml", "sysctl:\n  vm.swappiness: grün\n")
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    where = ["--root", root, "--profile"]
    for words, code in [
        (["explain", "sysctl:vm.swappiness", *where, profile], 0),
        (["plan", *where, profile], 10),
        (["apply", *where, profile], 0),
        (["plan", *where, broken], 64),
        (["plan", *where, broken, "--json"], 64),
        (["off", "--root", root, "--why", "Größe"], 0),
        (["status", "--root", root], 0),
    ]:
        done = run(words, env=env)
        assert done.returncode == code, (words, done.stderr)
        assert b"Traceback" not in done.stderr
        if locale != "C.UTF-8":
            assert (done.stdout + done.stderr).isascii()


def test_bytes_that_are_no_text(root: Path) -> None:
    """A path in another encoding is an error like any other."""
    word = os.fsdecode(b"/tmp/\xff\xfe")
    for more in ([], ["--json"]):
        done = run(["plan", "--root", root, "--profile", word, *more])
        assert done.returncode == 64
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("where", ["why", "name", "value", "off"])
def test_foreign_text_cannot_write_to_the_terminal(tuner: Tuner, root: Path, tmp_path: Path, where: str) -> None:
    """Escape sequences from a profile, a file or the off-switch do not reach the terminal."""
    hostile = '"\\e[31mred\\e]0;title\\a"'
    settings = "file:\n  /etc/sysctl.d/50-a.conf:\n    value: " + (hostile if where == "value" else "text")
    settings += f"\n    why: {hostile if where == 'why' else 'x'}"
    profile = write_profile(tmp_path / "p.yaml", settings, name=hostile if where == "name" else "test")
    if where == "off":
        tuner("off", "--root", root, "--why", f"{ESC}[2Jgone\nRECORDED other-host")
    calls: list[list[object]] = [
        ["plan", "--profile", profile],
        ["explain", "file:/etc/sysctl.d/50-a.conf", "--profile", profile],
        ["apply", "--profile", profile],
        ["verify", "--all"],
        ["status"],
        ["history"],
        ["history", "1"],
    ]
    for words in calls:
        result = tuner(*words, "--root", root)
        assert ESC not in result.out + result.err, words
        assert "\a" not in result.out + result.err, words
        assert not any(line.startswith("RECORDED other-host") for line in result.out.splitlines()), words


# --- help, errors -------------------------------------------------------------------------------------------------


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    """Exit code and text of a call that argparse answers."""
    try:
        code: object = main([*words])
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().out


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """--help of every verb: exit 0, what the verb does, and every exit code."""
    code, text = helped(capsys, *verb.split(), "--help")
    assert code in (0, None)
    assert f"usage: tuner {verb}".strip() in text
    for number in EXITS:
        assert re.search(rf"(?m)(^|\s){number} [a-z]", text), f"{verb} --help does not name exit code {number}"


def test_every_verb_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The verbs are listed by `tuner --help`."""
    _, text = helped(capsys, "--help")
    for verb in VERBS:
        assert re.search(rf"(?m)^ +{verb.split()[0]} ", text), verb


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and version."""
    assert helped(capsys, "--version") == (0, f"tuner {__version__}\n")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["plan"],
        ["nonsense"],
        ["plan", "--profile", "linux-gpu", "--nonsense"],
        ["plan", "--profile", "linux-gpu", "--allow", "everything"],
        ["plan", "--prof", "linux-gpu"],
        ["rollback", "--to", "one"],
        ["host"],
        ["off"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_one_line_and_a_hint(tuner: Tuner, words: list[str]) -> None:
    """Exit 64 (never argparse's 2), nothing on stdout, one line what is wrong and one what to do."""
    result = tuner(*words)
    assert result.code == 64
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("tuner: ")
    assert lines[1].startswith("  hint: ")


def test_every_error_of_a_profile_at_once(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Three mistakes in one file: three lines with file and line, each with its hint, in the order of the file."""
    mistakes = "sysctl:\n  vm.swappiness: often\n  net.core.rmem_max: 0777\nthp:\n  enabled: perhaps\n"
    profile = write_profile(tmp_path / "bad.yaml", mistakes)
    result = tuner("plan", "--root", root, "--profile", profile)
    assert result.code == 64
    assert result.out == ""
    lines = result.err.splitlines()
    assert [line.split(" ")[1] for line in lines[::2]] == [f"{profile}:{number}:" for number in (5, 6, 8)]
    assert all(line.startswith("  hint: ") for line in lines[1::2])
    assert "leading zero" in lines[2]


def test_debug_shows_the_traceback(root: Path) -> None:
    """Only with --debug."""
    words = ["plan", "--root", root, "--profile", "no-such-profile"]
    assert b"Traceback" not in run(words).stderr
    assert b"Traceback" in run([*words, "--debug"]).stderr


# --- explain, status, history -------------------------------------------------------------------------------------


def test_explain_says_what_why_and_says_who(tuner: Tuner, root: Path, profile: Path) -> None:
    """The knob's own words; running and wanted value, reason, source, FILE:LINE, disruption and how to undo it."""
    result = tuner("explain", "sysctl:net.core.rmem_max", "--root", root, "--profile", profile)
    assert result.code == 0
    assert "below /proc/sys" in result.out
    facts = {line[0]: line[1] for line in map(cells, result.out.splitlines()) if len(line) == 2}
    assert facts["running"] == "212992"
    assert facts["want"] == ">= 16777216"
    assert facts["why"] == "Sockets may ask for 16 MiB"
    assert facts["source"] == "Documentation/admin-guide/sysctl/net.rst"
    assert facts["origin"] == f"{profile}:5"
    assert facts["disruption"] == "none"
    assert "tuner rollback" in facts["undo"]


def test_explain_of_a_pattern_shows_what_its_targets_hold(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Each value once, with the targets that hold it; and the line that the profile has for the pattern."""
    profile = write_profile(
        tmp_path / "p.yaml", "sysctl: {net.core.*mem_max: {at_least: 16777216, why: Sockets, source: S}}"
    )
    result = tuner("explain", "sysctl:net.core.*mem_max", "--profile", profile, "--root", root)
    assert "212992   (net.core.rmem_max, net.core.wmem_max)" in result.out
    assert ">= 16777216" in result.out
    assert "Sockets" in result.out
    nothing = tuner("explain", "sysctl:net.core.nothing*", "--root", root)
    assert "no such target on this host" in nothing.out


def test_explain_without_why_says_where_it_was_set(tuner: Tuner, root: Path, profile: Path) -> None:
    """A value without a reason is `set by FILE:LINE`."""
    out = tuner("explain", "sysctl:vm.swappiness", "--root", root, "--profile", profile).out
    assert f"set by {profile}:10" in out


def test_explain_after_apply_needs_no_profile(tuner: Tuner, root: Path, profile: Path) -> None:
    """The applied generation answers; before it, nothing names the target."""
    place = ["explain", "sysctl:net.core.rmem_max", "--root", root]
    assert "Sockets may ask" not in tuner(*place).out
    tuner("apply", "--root", root, "--profile", profile)
    assert "Sockets may ask for 16 MiB" in tuner(*place).out


def test_explain_a_knob_alone(tuner: Tuner, root: Path) -> None:
    """Without a target: the knob's words."""
    result = tuner("explain", "hugepages", "--root", root)
    assert result.code == 0
    assert "node0/2MB" in result.out


@pytest.mark.parametrize("place", ["nonsense", "nonsense:x", "thp:nonsense", "sysctl:../../etc/passwd"])
def test_explain_what_does_not_exist(tuner: Tuner, root: Path, place: str) -> None:
    """Exit 64 and a hint."""
    result = tuner("explain", place, "--root", root)
    assert result.code == 64
    assert "hint: " in result.err


def test_explain_a_key_that_this_kernel_lacks(tuner: Tuner, root: Path) -> None:
    """Not an error: it says that this kernel has no such key."""
    result = tuner("explain", "sysctl:net.core.no_such_key", "--root", root)
    assert result.code == 0
    assert "no such key" in result.out


def test_status_of_an_untouched_host(tuner: Tuner, root: Path) -> None:
    """Nothing applied, exit 0."""
    result = tuner("status", "--root", root)
    assert result.code == 0
    assert ["applied", "nothing yet"] in map(cells, result.out.splitlines())


def test_status_on_one_screen(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Mode, generation and profile, settings id, who and when, worst state; under 25 lines; exit code as verify's."""
    many = "sysctl:\n" + "".join(
        f"  net.ipv4.conf.all.{key}: 1\n" for key in ("arp_ignore", "arp_announce", "log_martians")
    )
    profile = write_profile(tmp_path / "p.yaml", many + "  vm.swappiness: 1\n", name="night")
    document = tuner("apply", "--root", root, "--profile", profile, "--json").document
    result = tuner("status", "--root", root)
    facts = {line[0]: line[1:] for line in map(cells, result.out.splitlines()) if len(line) > 1}
    assert result.code == 0
    assert facts["mode"] == ["on"]
    assert facts["applied"] == ["generation 1, profile night"]
    assert facts["settings"] == [document["settings_id"][:8]]
    assert facts["worst"][0] == "ok"
    (root / "proc/sys/vm/swappiness").write_text("33\n")
    drifted = tuner("status", "--root", root)
    assert drifted.code == 10 == tuner("verify", "--root", root).code
    facts = {line[0]: line[1:] for line in map(cells, drifted.out.splitlines()) if len(line) > 1}
    assert facts["worst"][0] == "drift"
    assert "drift sysctl vm.swappiness" in drifted.out
    assert len(drifted.out.splitlines()) < 25


def facts_of(text: str) -> dict[str, list[str]]:
    return {line[0]: line[1:] for line in map(cells, text.splitlines()) if len(line) > 1}


def test_status_names_the_units_that_are_not_armed(tuner: Tuner, root: Path) -> None:
    """All of `persist status`, a row for each that would not do its part."""
    assert facts_of(tuner("status", "--root", root).out)["units"] == ["not installed: tuner persist install"]
    tuner("persist", "install", "--root", root)
    assert facts_of(tuner("status", "--root", root).out)["units"] == ["6 of 6 armed"]
    (root / "etc/systemd/system/timers.target.wants/tuner-verify.timer").unlink()
    path = root / "etc/systemd/system/tuner-apply.service"
    path.write_text(path.read_text(encoding="ascii") + "# more\n", encoding="ascii")
    said = tuner("status", "--root", root)
    assert said.code == 0
    assert facts_of(said.out)["units"] == ["4 of 6 armed"]
    assert "tuner-apply.service: outdated" in said.out
    assert "tuner-verify.timer: not enabled" in said.out
    document = tuner("status", "--root", root, "--json").document
    assert document["units"] == tuner("persist", "status", "--root", root, "--json").document["units"]


@pytest.mark.parametrize(
    ("name", "result", "armed"),
    [
        ("tuner-apply.service", "active: success", True),
        ("tuner-apply.service", "inactive: success", True),
        ("tuner-apply.service", "failed: exit-code, exit 10", False),
        ("tuner-verify.service", "failed: exit-code, exit 10", False),
        ("tuner-verify.timer", "active: success", True),
        ("tuner-verify.timer", "inactive: success", False),
        ("tuner-device.path", "failed: unit-start-limit-hit", False),
        ("tuner-device.path", None, True),
    ],
)
def test_a_unit_that_does_not_run_is_not_armed(
    tuner: Tuner, root: Path, monkeypatch: pytest.MonkeyPatch, name: str, result: str | None, armed: bool
) -> None:
    """ActiveState and Result of `systemctl show`: path and timer have to run, a service must not have failed."""
    tuner("persist", "install", "--root", root)
    monkeypatch.setattr("tuner.cli.persist._results", lambda *_: {name: result} if result else {})
    said = tuner("status", "--root", root).out
    assert facts_of(said)["units"] == ["6 of 6 armed" if armed else "5 of 6 armed"]
    assert (f"{name}: {result}" in said) is not armed


PENDING = [
    (IN_FORCE, True),
    ("until the next boot: /boot/grub/grub.cfg:120", True),
    (f"until amdgpu is loaded again (reload or reboot; {INITRAMFS}): /etc/modprobe.d/zz-tuner.conf:2", True),
    ("until slurmd.service is restarted", False),
    ("until slurmd.service is started", False),
    ("until gpu-reset.service is started", False),
]


@pytest.mark.parametrize(("why", "due"), PENDING)
@pytest.mark.parametrize("state", ["pending", "drift"])
def test_which_reasons_need_a_reboot(why: str, due: bool, state: str) -> None:
    """As the knobs nvidia.ecc, cmdline, module and limits say it: each once, and only of what is pending."""
    setting = Setting("cmdline", "iommu", "iommu", Want("value", "pt"), "p:1", "x", "y")
    verdict = Verdict(setting, Seen("absent"), state, why)
    made = Plan("0" * 64, "p", (verdict, verdict), ())
    assert documents.reboot_due(made, Host("/", "live", "n", "6.1")) == ([why] if due and state == "pending" else [])
    assert documents.reboot_due(made, Host("/img", "image", "n", "")) == []


def test_status_says_once_that_a_reboot_is_due(tuner: Tuner, copy_host: Callable[..., Path], tmp_path: Path) -> None:
    """Eight GPUs whose ECC changes at a reset: one reason, and exit 13 as verify has it."""
    root = copy_host("a100-cx7")
    profile = write_profile(tmp_path / "p.yaml", 'nvidia.ecc: {"*": disabled}')
    assert tuner("status", "--root", root, "--json").document["reboot_due"] == []
    tuner("apply", "--root", root, "--profile", profile, "--allow", "all")
    status = tuner("status", "--root", root)
    assert status.code == 13
    assert [row for row in map(cells, status.out.splitlines()) if row[0] == "reboot due"] == [["reboot due", IN_FORCE]]
    assert len(tuner("status", "--root", root, "--json").document["reboot_due"]) == 1


def test_status_and_apply_say_that_tuner_is_off(tuner: Tuner, root: Path, profile: Path) -> None:
    """Off: status says why and until when; an operator's apply and rollback run all the same and say it."""
    assert "disk swap in rack 7" in tuner("off", "--root", root, "--why", "disk swap in rack 7", "--for", "2h").out
    status = tuner("status", "--root", root).out
    assert re.search(r"mode +off: disk swap in rack 7 .*until \d{4}-\d\d-\d\dT", status)
    for words in (["apply", "--profile", profile], ["rollback"]):
        result = tuner(*words, "--root", root)
        assert result.code == 0
        assert "disk swap in rack 7" in result.out
    assert "tuner is on" in tuner("on", "--root", root).out
    assert ["mode", "on"] in map(cells, tuner("status", "--root", root).out.splitlines())


def test_history_lists_generations(tuner: Tuner, root: Path, profile: Path, tmp_path: Path) -> None:
    """One row per generation, oldest first, with state, profile and number of writes; then the rows of one."""
    assert "no generation yet" in tuner("history", "--root", root).out
    other = write_profile(tmp_path / "other.yaml", "sysctl:\n  vm.swappiness: 5\n", name="other")
    tuner("apply", "--root", root, "--profile", profile)
    tuner("apply", "--root", root, "--profile", other)
    rows = [cells(line) for line in tuner("history", "--root", root).out.splitlines()[2:]]
    assert [(r[0], r[1], r[4]) for r in rows] == [("1", "applied", "shown"), ("2", "applied", "other")]
    assert rows[0][6] == "5"
    one = tuner("history", "1", "--root", root).out
    assert row(one, "sysctl vm.swappiness")[-2:] == ["60", "-> 1"]
    tuner("rollback", "--root", root)
    rows = [cells(line) for line in tuner("history", "--root", root).out.splitlines()[2:]]
    assert [(r[0], r[1]) for r in rows] == [("1", "applied"), ("2", "rolled back")]


def test_history_of_no_such_generation(tuner: Tuner, root: Path) -> None:
    """Exit 64 and which there are."""
    result = tuner("history", "7", "--root", root)
    assert result.code == 64
    assert "hint: known: none" in result.err


def test_looking_writes_nothing(tuner: Tuner, root: Path, profile: Path) -> None:
    """plan, verify, status, explain and history leave every file as it is, tuner's own state too."""

    def every_file() -> dict[str, tuple[int, int]]:
        return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in root.rglob("*")}

    before = every_file()
    for words in (
        ["plan", "--profile", profile],
        ["verify", "--profile", profile],
        ["status"],
        ["history"],
        ["explain", "thp"],
    ):
        tuner(*words, "--root", root)
    assert every_file() == before
