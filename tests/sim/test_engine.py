"""The rules of a recorded kernel: which one answers a write, what is wrong with them, and faults laid over them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Result
from tuner.errors import Exit, TunerError
from tuner.host import RecordedHost
from tuner.host.tree import Tree
from tuner.sim import store
from tuner.sim.behaviours import BEHAVIOURS
from tuner.sim.engine import Engine

KEYS = ("a/one", "a/two", "b/one")


def host(folder: Path, kernel: str, faults: str = "") -> Path:
    """A tree with a few kernel files that hold 0, and these rules."""
    mark = folder / ".tuner-host"
    mark.mkdir(parents=True, exist_ok=True)
    (mark / "kernel.yaml").write_text(kernel, encoding="utf-8")
    (mark / "host.yaml").write_text("name: x\nkernel: 6.1.0\n", encoding="utf-8")
    (mark / "manifest").write_text("tuner-host 1\n", encoding="utf-8")
    if faults:
        (mark / "faults").write_text(faults, encoding="utf-8")
    for key in KEYS:
        path = folder / "proc/sys" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0\n")
    return folder


def echo(folder: Path, key: str, text: str) -> str | int:
    """What the file shows after a write, or the errno."""
    try:
        RecordedHost(str(folder)).write(f"/proc/sys/{key}", text)
    except OSError as error:
        return int(error.errno or -1)
    return (folder / "proc/sys" / key).read_text()


@pytest.mark.parametrize("order", [0, 1])
def test_a_plain_path_beats_a_pattern_wherever_it_stands(tmp_path: Path, order: int) -> None:
    rules = ["  /proc/sys/a/*: {is: refuse, errno: EPERM}\n", "  /proc/sys/a/one: {is: int}\n"]
    folder = host(tmp_path, "rules:\n" + "".join(rules[::-1] if order else rules))
    assert echo(folder, "a/one", "7") == "7\n"
    assert echo(folder, "a/two", "7") == errno.EPERM
    assert echo(folder, "b/one", "7") == "7\n"


def test_a_chain_runs_in_order_and_stops_where_one_refuses(tmp_path: Path) -> None:
    rule = "[{is: int, high: 9}, {is: alias, path: /proc/sys/a/two}]"
    folder = host(tmp_path, f"rules:\n  /proc/sys/a/one: {rule}\n")
    assert echo(folder, "a/one", "7") == "7\n"
    assert (folder / "proc/sys/a/two").read_text() == "7\n"
    assert echo(folder, "a/one", "10") == errno.EINVAL
    assert (folder / "proc/sys/a/two").read_text() == "7\n"


def test_the_errno_of_a_bound_can_be_named(tmp_path: Path) -> None:
    folder = host(tmp_path, "rules:\n  /proc/sys/a/one: {is: int, high: 9, errno: ERANGE}\n")
    assert echo(folder, "a/one", "10") == errno.ERANGE


def test_a_rule_finds_a_file_through_a_link(tmp_path: Path) -> None:
    """/sys/class/net/X is a link: rules name the place that it leads to."""
    folder = host(tmp_path, "rules:\n  /proc/sys/b/one: {is: refuse, errno: EPERM}\n")
    (folder / "proc/sys/c").symlink_to("b")
    assert echo(folder, "c/one", "7") == errno.EPERM


FAULTY = """\
rules:
  /proc/sys/a/one: {is: int}
  /proc/sys/a/two: {is: int}
faults:
  broken:
    about: a/one refuses
    rules:
      /proc/sys/a/one: {is: refuse, errno: EIO}
  worse:
    about: a/two too
    rules:
      /proc/sys/a/two: {is: refuse, errno: EIO}
"""


@pytest.mark.parametrize(
    ("faults", "one", "two"),
    [("", "7\n", "7\n"), ("broken\n", errno.EIO, "7\n"), ("broken\nworse\n", errno.EIO, errno.EIO)],
)
def test_faults_lie_over_the_plain_rules(tmp_path: Path, faults: str, one: str | int, two: str | int) -> None:
    folder = host(tmp_path, FAULTY, faults)
    assert echo(folder, "a/one", "7") == one
    assert echo(folder, "a/two", "7") == two


def test_a_fault_over_a_pattern_holds_for_what_a_plain_rule_names(tmp_path: Path) -> None:
    """A fault lays its rules over the plain ones, whichever way they are written."""
    kernel = FAULTY.replace("      /proc/sys/a/one: {is: refuse", "      /proc/sys/a/*: {is: refuse")
    folder = host(tmp_path, kernel, "broken\n")
    assert echo(folder, "a/one", "7") == errno.EIO
    assert echo(folder, "a/two", "7") == errno.EIO


def test_a_fault_that_this_host_does_not_offer_is_bad_input(tmp_path: Path, tuner: Callable[..., Result]) -> None:
    result = tuner("host", "copy", "plain-vm", tmp_path / "copy", "--fault", "moon-phase")
    assert result.code == Exit.BAD_INPUT
    assert "moon-phase" in result.err
    assert "hugepages-short" in result.err, "the hint names those that are offered"
    assert not (tmp_path / "copy").exists()


WRONG = """\
rules:
  /proc/sys/a/one: {is: magic}
  /proc/sys/a/two: {is: int, lowest: 1}
  /proc/sys/b/one: {is: vector}
  /proc/sys/b/two: {is: refuse, errno: EWHAT}
  /proc/sys/b/three: [{is: int, low: ten}, {is: alias}]
  /proc/sys/b/four: nothing
"""


def test_all_that_is_wrong_with_the_rules_comes_at_once(tmp_path: Path) -> None:
    with pytest.raises(TunerError) as raised:
        RecordedHost(str(host(tmp_path, WRONG))).ready()
    assert raised.value.code == Exit.BAD_INPUT
    said = {p.where.rsplit(" ", 1)[-1]: p.what for p in raised.value.problems}
    assert all(p.where.startswith(f"{tmp_path}/.tuner-host/kernel.yaml") for p in raised.value.problems)
    assert len(raised.value.problems) == 7
    assert "magic" in said["/proc/sys/a/one"]
    assert "lowest" in said["/proc/sys/a/two"]
    assert "length" in said["/proc/sys/b/one"]
    assert "EWHAT" in said["/proc/sys/b/two"]
    assert {"low", "path"} <= {w for p in raised.value.problems for w in p.what.split() if "b/three" in p.where}
    assert "/proc/sys/b/four" in said


def test_the_rules_of_a_fault_are_checked_too(tmp_path: Path) -> None:
    kernel = FAULTY.replace("errno: EIO", "errno: EWHAT")
    with pytest.raises(TunerError) as raised:
        RecordedHost(str(host(tmp_path, kernel, "broken\n"))).ready()
    assert "broken" in raised.value.problems[0].where


@pytest.mark.parametrize(
    "rules",
    [
        "/proc/sys/a/one: {is: [int]}",
        "/proc/sys/a/one: {is: {int: 1}}",
        "/proc/sys/a/one: {is: alias, path: 5}",
        "/proc/sys/a/one: {is: alias, path: [a]}",
        "/proc/sys/a/one: {is: word, words: 5}",
        "/proc/sys/a/one: {is: word, words: [1, 2]}",
        "/proc/sys/a/one: {is: trigger, name: ../../escape}",
        "/proc/sys/a/one: {is: trigger, name: 5}",
        "/proc/sys/a/one: {is: refuse, errno: errorcode}",
        "/proc/sys/a/one: {is: refuse, errno: 5}",
        "/proc/sys/a/one: {is: int, low: true}",
        "/proc/sys/a/one: {is: int, low: null}",
        "/proc/sys/a/one: {5: 6, is: int}",
        "/proc/sys/a/one: []",
        "5: {is: int}",
        "null: {is: int}",
        "[a, b]: {is: int}",
    ],
)
def test_a_parameter_of_a_wrong_type_is_found_before_the_first_write(tmp_path: Path, rules: str) -> None:
    with pytest.raises(TunerError) as raised:
        RecordedHost(str(host(tmp_path, f"rules:\n  {rules}\n"))).ready()
    assert raised.value.code == Exit.BAD_INPUT


SCALARS = st.sampled_from(["int", "alias", "EIO", "/proc/sys/a/two", "a", "", 0, -1, 7, 2**70, True, None, 1.5])
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(SCALARS, inner, max_size=2), max_leaves=4
)
PARAMETERS = ("low", "high", "errno", "length", "words", "path", "changed", "to", "name", "size_kB", "room")
RULE = st.fixed_dictionaries(
    {"is": st.sampled_from(list(BEHAVIOURS)) | ANYTHING},
    optional=dict.fromkeys(PARAMETERS, ANYTHING),
)


@settings(max_examples=250, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["/proc/sys/a/one", "/proc/sys/*"]) | SCALARS, RULE | ANYTHING, max_size=2), SCALARS
)
def test_rules_that_are_taken_never_crash(tmp_path_factory: pytest.TempPathFactory, rules: Any, written: Any) -> None:
    """What is wrong is named when the rules are loaded; what was taken answers with bytes or an errno."""
    folder = _scratch(tmp_path_factory)
    host(folder, yaml.safe_dump({"rules": rules}))
    try:
        engine = Engine(Tree(str(folder)), "/.tuner-host")
    except TunerError as error:
        assert error.code == Exit.BAD_INPUT
        return
    try:
        engine.write("/proc/sys/a/one", f"{written}\n")
    except OSError as error:
        assert error.errno in errno.errorcode


SCRATCH: list[Path] = []


def _scratch(factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples; `host` puts every file of it back."""
    if not SCRATCH:
        SCRATCH.append(factory.mktemp("engine"))
    return SCRATCH[0]


def test_every_shipped_rule_is_taken_with_every_fault(masters: Callable[..., Path]) -> None:
    from tests.conftest import HOSTS

    for path in sorted(HOSTS.glob("*.host")):
        for fault in ("", *store.about(path)[1]):
            folder = masters(path.stem, *([fault] if fault else []))
            Engine(Tree(str(folder)), "/.tuner-host")
