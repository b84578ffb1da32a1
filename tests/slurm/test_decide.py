"""What a policy makes of a verdict: every row of the table, and the line that Slurm shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.judging import IN_PROGRESS
from tuner.slurm.decide import Row, decide, marked, reason
from tuner.slurm.policy import Policy

ENFORCE = Policy(mode="enforce", enforce=frozenset({"sysctl"}), unknown={"thp": "closed"})
REPORT = Policy(mode="report", enforce=frozenset({"sysctl"}), default="closed")
CLOSED = Policy(mode="enforce", default="closed", unknown={"thp": "open"})


def row(knob: str, state: str, gate: str = "", *, required: bool = False, skipped: str = "") -> Row:
    return Row(knob, "x", state, gate, required, "1", "2", "because", skipped)


TABLE: list[tuple[Policy, Row, str]] = [
    # what is fine is never mentioned
    (ENFORCE, row("sysctl", "ok"), ""),
    (ENFORCE, row("sysctl", "raised"), ""),
    # drift: only of knobs that are enforced; the setting's own gate wins
    (ENFORCE, row("sysctl", "drift"), "drain"),
    (ENFORCE, row("thp", "drift"), "mark"),
    (ENFORCE, row("thp", "drift", "enforce"), "drain"),
    (ENFORCE, row("sysctl", "drift", "report"), "mark"),
    (ENFORCE, row("sysctl", "drift", "off"), ""),
    # missing: always
    (ENFORCE, row("sysctl", "missing"), "drain"),
    (ENFORCE, row("thp", "missing"), "drain"),
    (ENFORCE, row("thp", "missing", "report"), "mark"),
    (ENFORCE, row("thp", "missing", "off"), ""),
    # unknown: per knob, open without a word
    (ENFORCE, row("sysctl", "unknown"), "mark"),
    (ENFORCE, row("thp", "unknown"), "drain"),
    (ENFORCE, row("thp", "unknown", "report"), "mark"),
    (CLOSED, row("sysctl", "unknown"), "drain"),
    (CLOSED, row("thp", "unknown"), "mark"),
    # what waits or is right for now passes with a mark
    (ENFORCE, row("sysctl", "pending"), "mark"),
    (ENFORCE, row("sysctl", "held"), "mark"),
    (ENFORCE, row("sysctl", "shadowed"), "mark"),
    # what this node does not have, unless somebody requires it
    (ENFORCE, row("sysctl", "unsupported"), ""),
    (ENFORCE, row("sysctl", "unsupported", required=True), "drain"),
    (ENFORCE, row("thp", "unsupported", required=True), "mark"),
    # report never drains
    (REPORT, row("sysctl", "drift"), "mark"),
    (REPORT, row("sysctl", "drift", "enforce"), "mark"),
    (REPORT, row("sysctl", "missing"), "mark"),
    (REPORT, row("sysctl", "unknown"), "mark"),
    # off neither
    (Policy(mode="off", enforce=frozenset({"sysctl"})), row("sysctl", "missing"), ""),
    # a skip lets everything through, and says so
    (ENFORCE, row("sysctl", "drift", skipped="skipped until then"), "mark"),
    (ENFORCE, row("sysctl", "missing", "enforce", skipped="skipped until then"), "mark"),
]


@pytest.mark.parametrize(("policy", "found", "wanted"), TABLE)
def test_the_table(policy: Policy, found: Row, wanted: str) -> None:
    """Of a place that was seen ok."""
    decision = decide(policy, [found], {found.at})
    assert ("drain" if decision.drain else "mark" if decision.marks else "") == wanted
    assert len(decision.drain) + len(decision.marks) <= 1


@pytest.mark.parametrize(("policy", "found", "wanted"), TABLE)
def test_what_was_never_ok_drains_nothing(policy: Policy, found: Row, wanted: str) -> None:
    """Not in this boot under these settings: marked where it would have drained."""
    decision = decide(policy, [found], {(found.knob, "another"), ("another", found.target)})
    assert not decision.drain
    assert bool(decision.marks) is bool(wanted)


def test_what_an_apply_is_mending_keeps_no_job_away() -> None:
    """Nobody failed to read it: tuner itself is writing there, and is done in a moment."""
    decision = decide(ENFORCE, [Row("thp", "x", "unknown", why=IN_PROGRESS)], {("thp", "x")})
    assert (decision.drain, len(decision.marks)) == ((), 1)


@pytest.mark.parametrize(("state", "drains"), [("missing", True), ("drift", False)])
def test_what_was_there_under_other_settings_is_missing_all_the_same(state: str, drains: bool) -> None:
    """What drifts has to be seen ok under these settings; what is gone was there in this boot."""
    decision = decide(ENFORCE, [row("sysctl", state)], {}, {("sysctl", "x")})
    assert bool(decision.drain) is drains


def test_the_worst_is_named_first() -> None:
    """What is gone before what differs, and how many more there are."""
    rows = [row("sysctl", "drift"), Row("thp", "y", "missing"), row("sysctl", "ok"), row("sysctl", "drift")]
    decision = decide(ENFORCE, rows, {("sysctl", "x"), ("thp", "y")})
    assert [r.state for r in decision.drain] == ["missing", "drift", "drift"]
    assert reason(decision.drain) == "tuner: thp y missing (+2 more)"


def test_the_reason_is_the_one_that_is_promised() -> None:
    """As README and the issue of a site's runbook show it."""
    found = Row("dcb.pfc", "enp65s0f0np0", "drift", want="prio 3", has="none")
    assert reason([found]) == "tuner: dcb.pfc enp65s0f0np0 want prio 3 has none"


WORDS = st.text(max_size=120)


@given(st.lists(st.tuples(WORDS, WORDS, st.sampled_from(["drift", "missing", "unknown"]), WORDS, WORDS), min_size=1))
def test_a_reason_is_safe_anywhere(found: list[tuple[str, str, str, str, str]]) -> None:
    """Whatever stands in a target or value: printable ASCII, no quotes, one line, at most 80 characters."""
    text = reason([Row(k, t, state, want=w, has=h, why=h) for k, t, state, w, h in found])
    assert len(text) <= 80
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set("'\"`\\")
    assert text.startswith("tuner: ")
    if len(found) > 1:
        assert text.endswith(f" (+{len(found) - 1} more)")


def test_the_line_of_marks_is_bounded() -> None:
    """A thousand GPUs of marks are one line that names some."""
    line = marked([f"thp t{n} drift (not enforced)" for n in range(1000)])
    assert "and 992 more" in line
    assert len(line) < 500
    assert marked([]) == ""
