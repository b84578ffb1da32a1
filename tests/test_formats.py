"""verify --format: each format read back by a parser that is not ours, over every state, with hostile text in it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped, TestSuite
from prometheus_client.parser import text_string_to_metric_families

import tuner.cli.judge
from tests.conftest import Result, write_profile
from tuner import formats
from tuner.errors import Exit, Problem
from tuner.host import Host
from tuner.ledger import Applied
from tuner.model import STATES, Absent, Plan, Reading, Seen, Setting, Unreadable, Verdict, Want

Tuner = Callable[..., Result]

HOST = Host("/nowhere", "image", "node-17", "6.1.0")
APPLIED = Applied(7, "ab" * 32, "site", "alice", "2026-11-30T12:00:00+00:00", (), ())
NASTY = "a|b\\c\"d\ne\x1b[31m\udcff\u2028{,}=<&>'é"
"""What the formats give a meaning to, a line end, an escape sequence, a byte that is no UTF-8, a line separator."""

HOSTILE = st.text(st.sampled_from("\\\"\n\r\t|,{}= <&>'#\x00\x1b\x85\xa0\u2028\ufffe\udcffaé\U0001f600"), max_size=12)


def verdict(target: str, state: str, *, why: str = "", required: bool = False, value: int | None = 60) -> Verdict:
    setting = Setting("sysctl", target, target, Want("value", 1), "site.yaml:3", "Faster", "sysctl(8)", required)
    reading: Reading = Absent(why) if state == "unsupported" else Unreadable(why) if value is None else Seen(value)
    return Verdict(setting, reading, state, why)


EVERY = Plan("ab" * 32, "site", tuple(verdict(f"vm.{state}", state) for state in STATES), ())
"""One setting in each state."""

HELD_BACK = """
sysctl:
  vm.swappiness: 1
hugepages:
  node0/2MB: {at_least: 8}
"""


def rendered(name: str, made: Plan, code: int = 10, notes: list[str] | None = None) -> str:
    return formats.render(name, made, HOST, APPLIED, notes or [], code)


def applied(tuner: Tuner, root: Path, profile: Path) -> None:
    assert tuner("apply", "--root", root, "--profile", profile, "--allow", "none").code == 0


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "site.yaml", "sysctl:\n  vm.swappiness: 1\n  net.core.rmem_max: 16777216", "site")


# --- nagios -------------------------------------------------------------------------------------------------------

DATUM = re.compile(r"([a-z]+)=(\d+);;;0;(\d+)")
"""A datum of the guidelines: label=value;warn;crit;min;max."""


def plugin(text: str) -> tuple[str, dict[str, int], list[str]]:
    """Status, performance data and long text, as the guidelines have a monitoring system take the output apart."""
    first, *long = text.removesuffix("\n").split("\n")
    said, bar, data = first.partition(" | ")
    assert (text.count("|"), bar) == (1, " | ")
    match = re.fullmatch(r"TUNER (OK|WARNING|CRITICAL|UNKNOWN) - \S.*", said)
    assert match is not None
    found = [DATUM.fullmatch(word) for word in data.split(" ")]
    return match.group(1), {m.group(1): int(m.group(2)) for m in found if m}, long


@pytest.mark.parametrize(
    ("code", "plugins"),
    [(0, 0), (13, 1), (14, 1), (10, 2), (11, 2), (12, 3), (20, 3), (21, 3), (30, 3), (31, 3), (64, 3)],
)
def test_exit_codes_of_a_plugin(code: int, plugins: int) -> None:
    """0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN; only nagios changes them. Every code of ours has a row here."""
    assert formats.exit_code("nagios", code) == plugins
    assert formats.exit_code("prometheus", code) == formats.exit_code("junit", code) == code
    assert code in {int(c) for c in Exit}
    assert len(Exit) == 11


@pytest.mark.parametrize(("code", "word"), [(0, "OK"), (14, "WARNING"), (11, "CRITICAL"), (12, "UNKNOWN")])
def test_nagios_first_line_and_data(code: int, word: str) -> None:
    """Status and a count of every state, zeros too, so that a graph has no holes."""
    made = Plan("ab" * 32, "site", (verdict("a", "ok"), verdict("b", "ok"), verdict("c", "drift")), ())
    status, data, _ = plugin(rendered("nagios", made, code))
    assert status == word
    assert data == {**dict.fromkeys(STATES, 0), "ok": 2, "drift": 1}


def test_nagios_names_what_is_wrong_worst_first() -> None:
    _, _, long = plugin(rendered("nagios", EVERY, 11, ["Applied: generation 7"]))
    states = [line.partition(":")[0] for line in long]
    assert states == ["missing", "drift", "shadowed", "unknown", "pending", "held", "Applied"]
    assert long[1] == "drift: sysctl vm.drift 60, want 1"


def test_nagios_names_unsupported_only_where_required() -> None:
    made = Plan("ab" * 32, "site", (verdict("a", "unsupported"), verdict("b", "unsupported", required=True)), ())
    _, _, long = plugin(rendered("nagios", made))
    assert len(long) == 1
    assert "sysctl b" in long[0] and "required" in long[0]


@given(HOSTILE, HOSTILE, HOSTILE)
def test_nagios_neutralises_bars_and_line_ends(target: str, why: str, note: str) -> None:
    """Whatever a host holds: one bar, one line per setting and note, nothing that does not print."""
    made = Plan("ab" * 32, f"p{target}", (verdict(f"t{target}", "drift", why=why),), ())
    text = rendered("nagios", made, 10, [f"n{note}"])
    assert len(plugin(text)[2]) == 2
    assert all(c.isprintable() or c == "\n" for c in text)


def test_nagios_is_cut_before_the_monitoring_system_cuts_it() -> None:
    """Nagios takes 8 KiB: the first line and its data stand before 300 rows, which are cut with a count."""
    made = Plan("ab" * 32, "site", tuple(verdict(f"vm.number_{n}", "drift") for n in range(300)), ())
    text = rendered("nagios", made)
    assert len(text) < 8192
    assert plugin(text)[1]["drift"] == 300
    assert text.endswith("and 270 more: tuner verify\n")


@given(HOSTILE, HOSTILE, HOSTILE)
def test_an_error_is_unknown_in_the_first_line(where: str, what: str, hint: str) -> None:
    text = formats.failed([Problem(where, what, hint), Problem("", "second")])
    assert text.startswith("TUNER UNKNOWN - ")
    assert "|" not in text
    assert all(c.isprintable() or c == "\n" for c in text)
    assert text.endswith("second\n")


# --- prometheus ---------------------------------------------------------------------------------------------------

Series = dict[tuple[tuple[str, str], ...], float]


def scraped(text: str) -> dict[str, Series]:
    """The metrics as Prometheus' own client library reads them; help, type and every series once."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation
        assert family.name not in found
        assert all(sample.name == family.name for sample in family.samples)
        found[family.name] = {tuple(sorted(s.labels.items())): s.value for s in family.samples}
        assert len(found[family.name]) == len(family.samples)
    return found


def test_prometheus_metrics() -> None:
    found = scraped(rendered("prometheus", EVERY, 11))
    assert set(found) == {"tuner_info", "tuner_verify_exit_code", "tuner_settings", "tuner_setting_not_as_wanted"}
    assert found["tuner_info"] == {(("generation", "7"), ("profile", "site"), ("settings_id", "ab" * 32)): 1}
    assert found["tuner_verify_exit_code"] == {(): 11}
    assert found["tuner_settings"] == {(("state", state),): 1 for state in STATES}
    wrong = {state for state in STATES if state not in ("ok", "raised")}
    assert found["tuner_setting_not_as_wanted"] == {
        (("knob", "sysctl"), ("state", state), ("target", f"vm.{state}")): 1 for state in wrong
    }


def test_prometheus_counts_states_that_do_not_occur() -> None:
    """A state that is over goes to zero: a series that vanishes would hide it. Without a wrong setting no series."""
    found = scraped(rendered("prometheus", Plan("ab" * 32, "site", (verdict("a", "ok"),), ()), 0))
    assert found["tuner_settings"] == {(("state", state),): float(state == "ok") for state in STATES}
    assert found["tuner_verify_exit_code"] == {(): 0}
    assert "tuner_setting_not_as_wanted" not in found


def test_prometheus_escapes_as_the_format_says() -> None:
    r"""Text format 0.0.4: `\\`, `\"` and `\n`; what is no UTF-8 can be encoded and stays distinct."""
    made = Plan(
        "ab" * 32, "site", (verdict('a\\b"c\nd', "drift"), verdict("x\udcff", "drift"), verdict("xÿ", "drift")), ()
    )
    text = rendered("prometheus", made)
    assert 'target="a\\\\b\\"c\\nd"' in text
    targets = {dict(row)["target"] for row in scraped(text)["tuner_setting_not_as_wanted"]}
    assert targets == {'a\\b"c\nd', "x\\udcff", "xÿ"}
    assert text.encode("utf-8").decode("utf-8") == text


@given(HOSTILE, HOSTILE)
def test_prometheus_reads_back_what_was_meant(one: str, other: str) -> None:
    made = Plan("ab" * 32, f"p{other}", (verdict(f"t{one}", "drift"), verdict(f"u{other}", "missing")), ())
    text = rendered("prometheus", made)
    found = scraped(text)["tuner_setting_not_as_wanted"]
    meant = {"\n".join(map(formats.visible, target.split("\n"))) for target in (f"t{one}", f"u{other}")}
    assert {dict(row)["target"] for row in found} == meant
    assert all(c.isprintable() or c == "\n" for c in text)


# --- junit --------------------------------------------------------------------------------------------------------

ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id"},
    "testcase": {"name", "time", "classname", "group"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "property": {"name", "value"},
    "properties": set(),
    "system-out": set(),
}
"""Elements and attributes of junit-10.xsd of Jenkins' xUnit plugin, as far as they may occur."""

INSIDE = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase", "system-out"},
    "testcase": {"skipped", "error", "failure"},
    "properties": {"property"},
}

FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no character for (production 2, Char)."""


def suite(text: str) -> TestSuite:
    """The one test suite, after strict checks of what Jenkins' schema allows and of the sums."""
    top = ET.fromstring(text)
    assert top.tag == "testsuites"
    for element in top.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= INSIDE.get(element.tag, set())
        assert FORBIDDEN.search("".join([*element.attrib.values(), element.text or ""])) is None
    found = JUnitXml.fromstring(text.encode("utf-8"))
    assert isinstance(found, JUnitXml)
    (only,) = found
    stated = (only.tests, only.failures, only.errors, only.skipped)
    assert (found.tests, found.failures, found.errors) == stated[:3]
    only.update_statistics()  # type: ignore[no-untyped-call]
    assert (only.tests, only.failures, only.errors, only.skipped) == stated
    return only


def results(text: str) -> dict[str, object]:
    """What each test case came to: a class of junitparser, or None for passed."""
    return {case.name: next((type(result) for result in case.result), None) for case in suite(text)}


def test_junit_results() -> None:
    assert results(rendered("junit", EVERY)) == {
        "vm.ok": None, "vm.raised": None,
        "vm.drift": Failure, "vm.shadowed": Failure, "vm.missing": Failure,
        "vm.unknown": Error,
        "vm.unsupported": Skipped, "vm.held": Skipped, "vm.pending": Skipped,
    }  # fmt: skip
    found = suite(rendered("junit", EVERY))
    assert (found.tests, found.failures, found.errors, found.skipped) == (9, 3, 1, 3)
    assert found.hostname == "node-17"


def test_junit_fails_what_is_required_and_unsupported() -> None:
    made = Plan("ab" * 32, "site", (verdict("a", "unsupported", why="no such key", required=True),), ())
    (case,) = suite(rendered("junit", made))
    (result,) = case.result
    assert isinstance(result, Failure)
    assert "no such key" in result.message and "required" in result.message


def test_junit_says_what_and_why() -> None:
    (case,) = suite(rendered("junit", Plan("ab" * 32, "site", (verdict("vm.swappiness", "drift"),), ())))
    assert (case.classname, case.name) == ("tuner.sysctl", "vm.swappiness")
    (result,) = case.result
    assert (result.type, result.message) == ("drift", "60, want 1")
    assert "Faster" in result.text and "sysctl(8)" in result.text and "site.yaml:3" in result.text


def test_junit_of_no_settings() -> None:
    assert suite(rendered("junit", Plan("ab" * 32, "site", (), ()), 0)).tests == 0


@given(HOSTILE, HOSTILE, HOSTILE)
def test_junit_has_no_character_that_xml_forbids(target: str, why: str, note: str) -> None:
    made = Plan("ab" * 32, f"p{why}", (verdict(f"t{target}", "drift", why=why), verdict("u", "held", why=note)), ())
    text = rendered("junit", made, 10, [note, why])
    found = suite(text)
    assert [case.name for case in found] == [formats.visible(f"t{target}"), "u"]
    assert text.isascii()
    ET.parse(io.BytesIO(text.encode("ascii")))


# --- end to end ---------------------------------------------------------------------------------------------------


def _by_hand(root: Path) -> None:
    (root / "proc/sys/vm/swappiness").write_text("60\n")


def _removed(root: Path) -> None:
    (root / "proc/sys/vm/swappiness").unlink()


def _unreadable(root: Path) -> None:
    (root / "proc/sys/vm/swappiness").chmod(0o200)


CASES: list[tuple[str, Callable[[Path], object], int, int]] = [
    ("ok", lambda root: None, 0, 0),
    ("drift", _by_hand, 10, 2),
    ("unknown", _unreadable, 12, 3),
    ("missing", _removed, 11, 2),
]


CAME_TO = {"ok": None, "drift": Failure, "unknown": Error, "missing": Failure}


@pytest.mark.parametrize(("state", "edit", "code", "plugins"), CASES, ids=[case[0] for case in CASES])
def test_verify_of_a_host(
    state: str, edit: Callable[[Path], object], code: int, plugins: int, tuner: Tuner, root: Path, profile: Path
) -> None:
    """All formats agree with verify about one host, applied and given as a profile (which has nothing to miss)."""
    applied(tuner, root, profile)
    edit(root)
    for what in ([], ["--profile", profile]) if state != "missing" else ([],):
        words = ["verify", "--root", root, *what]
        assert tuner(*words).code == code
        nagios = tuner(*words, "--format", "nagios")
        assert nagios.code == plugins
        assert plugin(nagios.out)[1][state] >= 1
        prometheus = tuner(*words, "--format", "prometheus")
        assert prometheus.code == code
        found = scraped(prometheus.out)
        assert found["tuner_verify_exit_code"] == {(): code}
        (info,) = found["tuner_info"]
        assert dict(info)["generation"] == ("" if what else "1")
        junit = tuner(*words, "--format", "junit")
        assert junit.code == code
        assert results(junit.out)["vm.swappiness"] == CAME_TO[state]
        assert nagios.err + prometheus.err + junit.err == ""


def test_held_warns(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    applied(tuner, root, write_profile(tmp_path / "held.yaml", HELD_BACK))
    assert tuner("verify", "--root", root).code == 14
    found = tuner("verify", "--root", root, "--format=nagios")
    assert found.code == 1
    status, data, long = plugin(found.out)
    assert (status, data["held"], data["ok"]) == ("WARNING", 1, 2), "a sysctl and its file"
    assert long[0].startswith("held: hugepages node0/2MB ")
    assert results(tuner("verify", "--root", root, "--format", "junit").out)["node0/2MB"] is Skipped


BAD = [
    ["--root", "{root}"],
    ["--root", "{root}/nowhere"],
    ["--root", "{root}", "--profile", "no-such-profile"],
    ["--root", "{root}", "--set", "sysctl:vm.swappiness=1"],
    ["--root", "{root}", "--no-such-option"],
    ["--root", "{root}", "--json"],
    ["--root", "{root}", "--all"],
    ["--root", "{root}", "--watch", "1"],
]
"""Nothing applied, no host, no profile, and usage that the command line refuses."""


@pytest.mark.parametrize("words", BAD, ids=lambda words: " ".join(words[2:]) or words[1])
def test_every_error_of_a_plugin_is_unknown(words: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 and the reason on stdout, which is all that a monitoring system keeps; elsewhere 64 and stderr."""
    given = ["verify", *(word.format(root=root) for word in words)]
    assert tuner.cli.main([*given, "--format", "nagios"]) == 3
    out, err = capsys.readouterr()
    assert out.startswith("TUNER UNKNOWN - ")
    assert "Traceback" not in out + err
    assert err == ""
    assert tuner.cli.main([*given, "--format", "prometheus"]) == 64
    out, err = capsys.readouterr()
    assert "TUNER" not in out
    assert "hint: " in err


def test_a_crash_of_ours_is_unknown(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ends with 1 on an exception, which would be a warning."""

    def broken(*_: object) -> None:
        raise RuntimeError("a | b")

    monkeypatch.setattr(tuner.cli.judge, "look", broken)
    assert tuner.cli.main(["verify", "--root", str(root), "--format", "nagios"]) == 3
    assert capsys.readouterr().out.startswith("TUNER UNKNOWN - RuntimeError: a / b\n")
    with pytest.raises(RuntimeError):
        tuner.cli.main(["verify", "--root", str(root), "--format", "junit"])


@pytest.mark.parametrize("other", ["--json", "--all"])
def test_formats_exclude_other_outputs(other: str, root: Path, tuner: Tuner) -> None:
    found = tuner("verify", "--root", root, "--format", "junit", other)
    assert found.code == 64
    assert f"{other} and --format exclude each other" in found.err or f"--format and {other} exclude" in found.err


def test_a_format_nobody_knows(root: Path, tuner: Tuner) -> None:
    found = tuner("verify", "--root", root, "--format", "tap")
    assert found.code == 64
    assert "nagios" in found.err and "junit" in found.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_formats_are_utf8_in_every_locale(
    encoding: str, root: Path, profile: Path, tuner: Tuner, tmp_path: Path
) -> None:
    r"""A label `\xe9`, as Python writes what a locale lacks, would be no escape of the format."""
    site = write_profile(tmp_path / "é.yaml", "sysctl: {vm.swappiness: 1}", "métier")
    for name in ("prometheus", "junit", "nagios"):
        words = ["verify", "--root", str(root), "--profile", str(site), "--format", name]
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *words], env=environment, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == (2 if name == "nagios" else 10), done.stderr
        text = done.stdout.decode("utf-8")
        if name == "prometheus":
            (info,) = scraped(text)["tuner_info"]
            assert dict(info)["profile"] == "métier"
        elif name == "junit":
            assert suite(text).name == "tuner verify métier"
        else:
            assert "profile métier" in text
