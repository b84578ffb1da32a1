"""/etc/tuner/slurm.yaml: what it may say, every problem with its line, and whom root believes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Result
from tuner.errors import TunerError
from tuner.host import open_host
from tuner.slurm import policy as policies
from tuner.slurm.policy import Policy

Call = Callable[..., Result]

EXAMPLE = """# /etc/tuner/slurm.yaml
mode: report
budget_s: 5
enforce: [hugepages, dcb.pfc, amdgpu.clock]
unknown: {default: open, dcb.pfc: closed}
brake: {drains_per_hour: 1}
"""


def write(root: Path, text: str | bytes) -> Path:
    path = root / policies.PATH.lstrip("/")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problems(root: Path) -> list[str]:
    with pytest.raises(TunerError) as caught:
        policies.of(open_host(str(root)))
    return [f"{p.where}: {p.what}" for p in caught.value.problems]


def test_a_node_without_a_policy_only_looks(root: Path) -> None:
    """Report, five seconds, open, one drain an hour."""
    found = policies.of(open_host(str(root)))
    assert found == Policy("report", 5.0, frozenset(), {}, "open", 1, 600)


def test_the_example(root: Path) -> None:
    """Every key that a site may give."""
    write(root, EXAMPLE + "tool_age_s: 60\n")
    found = policies.of(open_host(str(root)))
    assert (found.mode, found.budget_s, found.drains_per_hour, found.tool_age_s) == ("report", 5.0, 1, 60)
    assert found.enforce == {"hugepages", "dcb.pfc", "amdgpu.clock"}
    assert found.closed("dcb.pfc")
    assert not found.closed("sysctl")


WRONG = [
    ("mode: enforced", "1: mode: 'enforced' is none of off, report, enforce"),
    ("mode: [off]", "1: mode: 'a list' is none of"),
    ("# first\nmood: off", "2: unknown key 'mood' in a policy"),
    ("mode: off\nmode: off", "2: mode is given twice"),
    ("budget_s: 0", "1: budget_s: '0' is no number from 1 to 60"),
    ("budget_s: 61", "1: budget_s: '61' is no number"),
    ("budget_s: 5s", "1: budget_s: '5s' is no number"),
    ("budget_s: nan", "1: budget_s: 'nan' is no number"),
    ("budget_s: {}", "1: budget_s: 'a mapping' is no number"),
    ("enforce: sysctl", "1: enforce is a list of knobs, not a single value"),
    ("enforce:\n- sysctl\n- {}", "3: enforce: a mapping is no knob"),
    ("unknown: open", "1: unknown is a mapping, not a single value"),
    ("unknown: {default: ajar}", "1: unknown: default: 'ajar' is none of open, closed"),
    ("brake: 1", "1: a brake is a mapping, not a single value"),
    ("brake: {drains_per_hour: -1}", "1: drains_per_hour: '-1' is no number from 0 to 1000"),
    ("brake: {drains_per_hour: 1.5}", "1: drains_per_hour: '1.5' is no number"),
    ("brake: {per_hour: 1}", "1: unknown key 'per_hour' in a brake"),
    ("tool_age_s: ever", "1: tool_age_s: 'ever' is no number from 0 to 86400"),
    ("", "1: the file is empty"),
    ("a: [", "not YAML"),
    ("- mode", "1: a policy is a mapping, not a list"),
    ("mode: &x off\nbudget_s: *x", "2: *x: aliases are not used"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_is_wrong_is_said_with_its_line(root: Path, text: str, said: str) -> None:
    """Never a guess at what was meant."""
    write(root, text)
    assert any(f"{policies.PATH}:{said}" in found or said in found for found in problems(root)), problems(root)


def test_every_problem_at_once(root: Path) -> None:
    """Three mistakes are three lines."""
    write(root, "mode: on\nbudget_s: x\nunknwon: {}\n")
    assert len(problems(root)) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="root's rule")
@pytest.mark.parametrize("change", ["others may write", "not root's", "its folder", "where a link leads", "no file"])
def test_root_believes_its_own_files_alone(root: Path, change: str) -> None:
    """What others can change decides nothing."""
    path = write(root, "mode: enforce\n")
    match change:
        case "others may write":
            path.chmod(0o666)
        case "not root's":
            os.chown(path, 1000, 0)
        case "its folder":
            path.parent.chmod(0o777)
        case "where a link leads":
            shared = root / "srv/shared"
            shared.mkdir(parents=True)
            shared.chmod(0o1777)  # sticky: who comes before root owns that name
            path.rename(shared / path.name)
            path.symlink_to("/srv/shared/slurm.yaml")
        case _:
            path.unlink()
            path.mkdir()
    assert problems(root)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet="mode: enforc[]{},\n-&*!|>'\"#015sx", max_size=80).map(str.encode))
def test_no_text_breaks_it(root: Path, text: bytes) -> None:
    """A policy or problems; never another error."""
    write(root, text)
    try:
        assert isinstance(policies.of(open_host(str(root))), Policy)
    except TunerError as error:
        assert all(p.where.startswith(policies.PATH) for p in error.problems)


def test_knobs_of_a_later_release_are_named(root: Path, tuner: Call) -> None:
    """One policy for a fleet of several releases: said, and not refused."""
    write(root, "enforce: [sysctl, no.such]\n")
    result = tuner("slurm", "install", "--dry-run", "--root", root, "--json")
    assert any("no.such" in f["what"] and f["level"] == "note" for f in result.document["findings"])


def test_a_broken_policy_is_said_by_install(root: Path, tuner: Call) -> None:
    """With its line, exit 10."""
    write(root, "mode: enforced\n")
    result = tuner("slurm", "install", "--dry-run", "--root", root, "--json")
    assert result.code == 10
    assert any(f["what"].startswith(f"{policies.PATH}:1: mode") for f in result.document["findings"])
