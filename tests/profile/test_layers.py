"""Layers: extends < profile < overlays < site.yaml < host.d < --set, each value with the place that it comes from."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import HOSTS, tree, write_profile
from tuner.errors import Exit, TunerError
from tuner.expand import expand
from tuner.host import Host, open_host
from tuner.model import Setting
from tuner.profile import load_profile
from tuner.sim import store

Tuner = Callable[..., Any]
CHECKOUT = Path(__file__).parents[2]
NAMES = ("one", "two", "profile", "first", "second", "site", "host", "set")
"""Every layer there is, lowest first: two parents, the profile, two overlays, the site, the host, --set."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A recorded host whose /etc/tuner the tests fill and empty; nothing else of it is written."""
    root = tmp_path_factory.mktemp("host") / "plain-vm"
    store.copy(HOSTS / "plain-vm.host", str(root), [])
    return open_host(str(root))


@pytest.fixture
def host(shared: Host) -> Host:
    shutil.rmtree(Path(shared.root, "etc/tuner"), ignore_errors=True)
    return shared


@dataclass
class Stack:
    """Layers as files: each is given by the YAML below `settings:`, which starts on line 5 (on line 2 below /etc)."""

    host: Host
    folder: Path

    def path(self, name: str) -> Path:
        own = {"site": "etc/tuner/site.yaml", "host": "etc/tuner/host.d/plain-vm.yaml"}
        return Path(self.host.root, own[name]) if name in own else self.folder / f"{name}.yaml"

    def origin(self, name: str, line: int = 0) -> str:
        own = {"site": "/etc/tuner/site.yaml:3", "host": "/etc/tuner/host.d/plain-vm.yaml:3"}
        return own.get(name) or f"{self.path(name)}:{line or 6}"

    def resolve(self, *sets: str, **texts: str) -> dict[str, Setting]:
        """The settings of these layers on the host, by target; `extends` of the profile is what is given of it."""
        parents = ", ".join(str(self.path(n)) for n in ("one", "two") if n in texts)
        for name, text in {"profile": "{}", **texts}.items():
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            head = "" if name in ("site", "host") else f"name: {name}\nsummary: y\n"
            head += f"extends: [{parents}]\n" if name == "profile" else "# a comment\n" if head else ""
            path.write_text(f"{head}settings:\n  {text.strip()}\n")
        overlays = [str(self.path(n)) for n in ("first", "second") if n in texts]
        profile = load_profile(self.host, str(self.path("profile")), overlays, sets)
        return {setting.target: setting for setting in expand(self.host, profile.settings)}


@pytest.fixture
def stack(host: Host, tmp_path: Path) -> Stack:
    return Stack(host, tmp_path)


def swappiness(value: object) -> str:
    return f"sysctl:\n    vm.swappiness: {value}"


# the order


@pytest.mark.parametrize("highest", range(len(NAMES) - 1))
def test_each_layer_wins_over_those_below_it(highest: int, stack: Stack) -> None:
    """Layer n says n; whichever is the highest that speaks, its value and its line stand."""
    texts = {name: swappiness(n) for n, name in enumerate(NAMES[:-1]) if n <= highest}
    found = stack.resolve(**texts)["vm.swappiness"]
    assert found.want.value == highest
    where = stack.origin(NAMES[highest])
    assert (found.origin, found.why, found.source) == (where, f"set by {where}", f"set by {where}")


def test_set_wins_over_all_files_and_is_named_as_it_was_typed(stack: Stack) -> None:
    texts = {name: swappiness(n) for n, name in enumerate(NAMES[:-1])}
    found = stack.resolve("sysctl:vm.swappiness=8", **texts)["vm.swappiness"]
    assert found.want.value == 8
    assert found.origin == "--set sysctl:vm.swappiness=8"
    assert found.why == found.source == "set by --set sysctl:vm.swappiness=8"


def test_of_two_sets_of_one_target_the_last_stands(stack: Stack) -> None:
    sets = ("sysctl:vm.swappiness=8", "sysctl:vm/swappiness=9")
    assert stack.resolve(*sets, one=swappiness(1))["vm.swappiness"].want.value == 9


def test_why_and_source_are_not_inherited(stack: Stack) -> None:
    """Whoever changes the value gives the reason: the parent's reason was for the parent's value."""
    one = "sysctl: {vm.swappiness: {value: 1, why: Because, source: vm.rst}}"
    assert stack.resolve(one=one)["vm.swappiness"].why == "Because"
    found = stack.resolve(one=one, site=swappiness(2))["vm.swappiness"]
    assert (found.why, found.source) == ("set by /etc/tuner/site.yaml:3",) * 2


@pytest.mark.parametrize("other", ["vm/swappiness", "vm.swappiness"])
def test_two_spellings_are_one_target(other: str, stack: Stack) -> None:
    found = stack.resolve(one=swappiness(1), first=f"sysctl: {{{other}: 2}}")
    assert {t: s.want.value for t, s in found.items()} == {"vm.swappiness": 2}


@pytest.mark.parametrize("layer", NAMES[2:])
def test_unset_drops_in_each_layer(layer: str, stack: Stack) -> None:
    one = "sysctl: {vm.swappiness: {value: 1, required: true}, vm.laptop_mode: 0}"
    if layer == "set":
        found = stack.resolve("sysctl:vm.swappiness={unset: true}", one=one)
    else:
        found = stack.resolve(one=one, **{layer: "sysctl: {vm.swappiness: {unset: true}}"})
    assert set(found) == {"vm.laptop_mode"}


@pytest.mark.parametrize("layer", NAMES[2:])
def test_unset_of_what_no_lower_layer_sets_is_an_error(layer: str, stack: Stack) -> None:
    sets = ("sysctl:vm.swappiness={unset: true}",) if layer == "set" else ()
    texts = {} if layer == "set" else {layer: "sysctl: {vm.swappiness: {unset: true}}"}
    with pytest.raises(TunerError, match="not inherited") as raised:
        stack.resolve(*sets, one="sysctl: {vm.laptop_mode: 0}", **texts)
    assert raised.value.code == Exit.BAD_INPUT


def test_unset_in_a_lower_layer_does_not_hide_a_higher_one(stack: Stack) -> None:
    one = "sysctl: {vm.swappiness: {value: 1, required: true, gate: enforce}}"
    gone = "sysctl: {vm.swappiness: {unset: true}}"
    found = stack.resolve(one=one, first=gone, site=swappiness(3))["vm.swappiness"]
    assert (found.want.value, found.required, found.gate) == (3, False, "")


def test_unset_of_a_pattern_leaves_a_name_that_it_matched(stack: Stack) -> None:
    """What is dropped is the line as it was written."""
    one = "sysctl: {vm.*_mode: 1, vm.laptop_mode: 2}"
    found = stack.resolve(one=one, first="sysctl: {vm.*_mode: {unset: true}}")
    assert {t: int(s.want.value) for t, s in found.items()} == {"vm.laptop_mode": 2}


def test_a_setting_that_the_host_lacks_can_be_unset_by_hand(stack: Stack) -> None:
    """A required key that this kernel does not have is what one most wants to leave out."""
    one = "sysctl: {vm.nosuch: {value: 1, required: true}, vm.laptop_mode: 0}"
    assert set(stack.resolve("sysctl:vm.nosuch={unset: true}", one=one)) == {"vm.laptop_mode"}


@pytest.mark.parametrize("layer", NAMES[2:])
def test_required_and_gate_are_inherited_by_each_layer(layer: str, stack: Stack) -> None:
    one = "sysctl: {vm.swappiness: {value: 1, required: true, gate: report}}"
    sets = ("sysctl:vm.swappiness=2",) if layer == "set" else ()
    texts = {} if layer == "set" else {layer: swappiness(2)}
    found = stack.resolve(*sets, one=one, **texts)["vm.swappiness"]
    assert (found.want.value, found.required, found.gate) == (2, True, "report")


def test_required_and_gate_can_be_taken_back_one_by_one(stack: Stack) -> None:
    one = "sysctl: {vm.swappiness: {value: 1, required: true, gate: enforce}}"
    found = stack.resolve(
        "sysctl:vm.swappiness={value: 2, gate: off}", one=one, site=swappiness("{value: 3, required: false}")
    )["vm.swappiness"]
    assert (found.want.value, found.required, found.gate) == (2, False, "off")


def test_a_diamond_is_laid_once_below_both(host: Host, tmp_path: Path) -> None:
    """`left` sets what `base` sets too; `right`, which comes after, does not bring the value of `base` back."""
    head = "name: {}\nsummary: y\n"
    base, left, right, child = (tmp_path / f"{n}.yaml" for n in ("base", "left", "right", "child"))
    base.write_text(head.format("base") + "settings: {sysctl: {vm.swappiness: 1, vm.laptop_mode: 1}}\n")
    left.write_text(head.format("left") + f"extends: {base}\nsettings: {{sysctl: {{vm.swappiness: 2}}}}\n")
    right.write_text(head.format("right") + f"extends: {base}\nsettings: {{sysctl: {{vm.laptop_mode: 3}}}}\n")
    for parents in ([left, right], [left, right, base], [base, left, right], [left, right, left]):
        child.write_text(head.format("child") + f"extends: [{', '.join(map(str, parents))}]\n")
        found = {s.target: (int(s.want.value), s.origin) for s in load_profile(host, str(child)).settings}
        assert found == {"vm.swappiness": (2, f"{left}:4"), "vm.laptop_mode": (3, f"{right}:4")}


# names and patterns


def test_in_one_layer_a_name_beats_a_pattern_wherever_it_stands(stack: Stack) -> None:
    for lines in ("{vm.*_mode: 1, vm.laptop_mode: 2}", "{vm.laptop_mode: 2, vm.*_mode: 1}"):
        found = stack.resolve(one=f"sysctl: {lines}")
        assert {t: int(s.want.value) for t, s in found.items()} == {"vm.laptop_mode": 2, "vm.zone_reclaim_mode": 1}


def test_a_pattern_of_a_higher_layer_beats_a_name_of_a_lower_one(stack: Stack) -> None:
    found = stack.resolve(one="sysctl: {vm.laptop_mode: 2}", first="sysctl: {vm.*_mode: 1}")
    assert {t: int(s.want.value) for t, s in found.items()} == {"vm.laptop_mode": 1, "vm.zone_reclaim_mode": 1}
    assert {s.origin for s in found.values()} == {stack.origin("first", 5)}


def test_patterns_of_two_layers_may_meet_and_the_higher_wins(stack: Stack) -> None:
    found = stack.resolve(one="sysctl: {vm.*_mode: 2}", site="sysctl: {vm.zone_*: 1}")
    assert {t: int(s.want.value) for t, s in found.items()} == {"vm.laptop_mode": 2, "vm.zone_reclaim_mode": 1}


@pytest.mark.parametrize("layer", NAMES)
def test_two_patterns_of_one_layer_that_meet_name_both(layer: str, stack: Stack) -> None:
    sets = ("sysctl:vm.*_mode=1", "sysctl:vm.zone_*=1") if layer == "set" else ()
    texts = {} if layer == "set" else {layer: "sysctl: {vm.*_mode: 1, vm.zone_*: 1}"}
    with pytest.raises(TunerError) as raised:
        stack.resolve(*sets, **texts)
    (problem,) = raised.value.problems
    assert raised.value.code == Exit.BAD_INPUT
    said = f"{problem.where} {problem.what} {problem.hint}"
    assert all(part in said for part in ("vm.zone_reclaim_mode", "vm.*_mode", "vm.zone_*")), said


def test_two_patterns_that_do_not_meet_on_this_host_are_fine(stack: Stack) -> None:
    found = stack.resolve(one="sysctl: {vm.swap*: 1, vm.zone_*: 0}")
    assert set(found) == {"vm.swappiness", "vm.zone_reclaim_mode"}


def test_two_patterns_that_meet_where_a_name_decides_are_fine(stack: Stack) -> None:
    """Neither pattern wins the target, so there is nothing to decide between them."""
    found = stack.resolve(one="sysctl: {vm.*_mode: 1, vm.zone_*: 0, vm.zone_reclaim_mode: 2}")
    assert int(found["vm.zone_reclaim_mode"].want.value) == 2


def test_a_pattern_that_matches_nothing_is_one_line(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    path = write_profile(tmp_path / "p.yaml", "sysctl: {vm.nosuch*: 1}")
    result = tuner("plan", "--json", "--root", root, "--profile", path)
    assert [(v["target"], v["state"]) for v in result.document["verdicts"]] == [("vm.nosuch*", "unsupported")]
    assert "no such target" in result.document["verdicts"][0]["state_why"]


# any stack at all, against a second implementation

SYSCTLS: dict[str, set[str]] = {
    "vm.swappiness": {"vm.swappiness"},
    "vm.laptop_mode": {"vm.laptop_mode"},
    "vm.zone_reclaim_mode": {"vm.zone_reclaim_mode"},
    "vm.nosuch": set(),
    "vm.swap*": {"vm.swappiness"},
    "vm.*iness": {"vm.swappiness"},
    "vm.*_mode": {"vm.laptop_mode", "vm.zone_reclaim_mode"},
    "vm.[l-z]*_mode": {"vm.laptop_mode", "vm.zone_reclaim_mode"},
    "vm.zone_*": {"vm.zone_reclaim_mode"},
    "vm.nosuch*": set(),
}
POOLS: dict[str, set[str]] = {
    "node0/2MB": {"node0/2MB"},
    "node1/2MB": {"node1/2MB"},
    "node1/1GB": {"node1/1GB"},
    "total/2MB": {"total/2MB"},
    "*/2MB": {"node0/2MB", "node1/2MB"},
    "node*/1GB": {"node0/1GB", "node1/1GB"},
    "node0/*": {"node0/2MB", "node0/1GB"},
}
THP: dict[str, set[str]] = {
    "enabled": {"enabled"},
    "defrag": {"defrag"},
    "e*": {"enabled"},
    "*bled": {"enabled"},
    "[de]*": {"enabled", "defrag"},
}
UNIVERSE = {("sysctl", t): m for t, m in SYSCTLS.items()}
UNIVERSE |= {("hugepages", t): m for t, m in POOLS.items()} | {("thp", t): m for t, m in THP.items()}
"""What plain-vm has of each name and pattern, by hand: two NUMA nodes with pools of 2 MB and 1 GB."""
SPELLINGS = {"vm.swappiness": "vm/swappiness", "node0/2MB": "node0/2048kB"}
Key = tuple[str, str]


@dataclass(frozen=True)
class Mention:
    """One line of one layer; kind `unset` drops."""

    key: Key
    spelled: str
    kind: str
    value: str
    required: bool | None
    gate: str | None

    def yaml(self) -> str:
        if self.kind == "unset":
            return "{unset: true}"
        parts = [f"{self.kind}: {self.value}"]
        parts += [] if self.required is None else [f"required: {str(self.required).lower()}"]
        parts += [] if self.gate is None else [f"gate: {self.gate}"]
        return "{" + ", ".join(parts) + "}"


Placed = tuple[int, Mention, str]
"""Number of the layer, the line, where it stands."""
Resolved = dict[Key, tuple[str, str, str, bool, str]]
"""Kind of Want, its value, origin, required, gate."""


@st.composite
def mention(draw: st.DrawFn, keys: list[Key]) -> Mention:
    key = draw(st.sampled_from(keys))
    spelled = draw(st.sampled_from([key[1], SPELLINGS.get(key[1], key[1])]))
    kinds = ["value", "value", "value", "unset"] if key[0] == "thp" else ["value", "value", "at_least", "unset"]
    value = draw(st.sampled_from(["always", "madvise", "never"] if key[0] == "thp" else ["0", "1", "2", "3"]))
    required = draw(st.sampled_from([None, None, True, False]))
    gate = draw(st.sampled_from([None, None, "off", "report", "enforce"]))
    return Mention(key, spelled, draw(st.sampled_from(kinds)), value, required, gate)


@st.composite
def stacks(draw: st.DrawFn) -> Any:
    """Profiles (the first is asked for, each may extend those after it), overlays, site, host, --set.

    All of one stack speak of the same few targets, so that lines replace and unset each other.
    """
    keys = draw(st.lists(st.sampled_from(list(UNIVERSE)), min_size=1, max_size=5, unique=True))
    there = [key for key in keys if UNIVERSE[key]]
    layer = st.lists(mention(keys), max_size=3, unique_by=lambda m: m.key)
    edges = st.lists(st.integers(0, 2), max_size=3)
    profiles = draw(st.lists(st.tuples(layer, edges), min_size=1, max_size=4))
    sets = draw(st.lists(mention(there), max_size=2)) if there else []
    return profiles, draw(st.lists(layer, max_size=2)), draw(st.none() | layer), draw(st.none() | layer), sets


def write(path: Path, head: str, mentions: list[Mention]) -> list[tuple[Mention, int]]:
    """Writes one layer, a target a line; returns each with its line."""
    rows, found = [*head.splitlines(), "settings:" if mentions else "settings: {}"], []
    for knob in dict.fromkeys(m.key[0] for m in mentions):
        rows.append(f"  {knob}:")
        for m in mentions:
            if m.key[0] == knob:
                rows.append(f"    '{m.spelled}': {m.yaml()}")
                found.append((m, len(rows)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")
    return found


def in_order(parents: list[list[int]], at: int, seen: list[int]) -> list[int]:
    """The profiles as they are laid: parents left to right before the child, each once."""
    for parent in parents[at]:
        if parent not in seen:
            in_order(parents, parent, seen)
    if at not in seen:
        seen.append(at)
    return seen


def naive(lines: list[Placed]) -> Resolved | None:
    """What these lines mean, found by looking back from the end; None for an error."""

    def standing(key: Key, before: int) -> list[Mention]:
        """The lines of this key before that place, newest first, down to where it was unset."""
        found: list[Mention] = []
        for _, m, _ in reversed(lines[:before]):
            if m.key == key:
                if m.kind == "unset":
                    break
                found.append(m)
        return found

    if any(m.kind == "unset" and not standing(m.key, n) for n, (_, m, _) in enumerate(lines)):
        return None
    rivals: dict[Key, list[tuple[int, bool, Key]]] = {}
    for key, matches in UNIVERSE.items():
        own = [number for number, m, _ in lines if m.key == key]
        if standing(key, len(lines)):
            named = not set("*?[") & set(key[1])
            for target in matches or {key[1]}:
                rivals.setdefault((key[0], target), []).append((own[-1], named, key))
    chosen: Resolved = {}
    for at, candidates in rivals.items():
        best = max((number, named) for number, named, _ in candidates)
        winners = [key for number, named, key in candidates if (number, named) == best]
        if len(winners) > 1:
            return None
        history = standing(winners[0], len(lines))
        origin = next(where for _, m, where in reversed(lines) if m.key == winners[0])
        required = next((m.required for m in history if m.required is not None), False)
        gate = next((m.gate for m in history if m.gate is not None), "")
        chosen[at] = history[0].kind, history[0].value, origin, required, gate
    pools = {target for knob, target in chosen if knob == "hugepages" and target.endswith("/2MB")}
    return None if "total/2MB" in pools and len(pools) > 1 else chosen


def product(host: Host, profile: Path, overlays: list[str], sets: list[str]) -> Resolved | None:
    try:
        found = expand(host, load_profile(host, str(profile), overlays, sets).settings)
    except TunerError as error:
        assert error.code == Exit.BAD_INPUT
        return None
    assert len({s.at for s in found}) == len(found)
    return {s.at: (s.want.kind, _text(s.want.value), s.origin.removesuffix(":1"), s.required, s.gate) for s in found}


def _text(value: Any) -> str:
    return str(value["total"] if isinstance(value, dict) else value)


@pytest.mark.timeout(120)
def test_random_stacks_mean_what_a_second_implementation_says(host: Host, tmp_path: Path) -> None:
    outcomes: list[bool] = []

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(stacks())
    def agree(drawn: Any) -> None:
        profiles, overlays, site, own, sets = drawn
        parents = [[n + 1 + e for e in edge if n + 1 + e < len(profiles)] for n, (_, edge) in enumerate(profiles)]
        shutil.rmtree(Path(host.root, "etc/tuner"), ignore_errors=True)
        written: dict[int, tuple[str, list[tuple[Mention, int]]]] = {}
        for n, (mentions, _) in enumerate(profiles):
            path = tmp_path / f"p{n}.yaml"
            extends = ", ".join(str(tmp_path / f"p{p}.yaml") for p in parents[n])
            written[n] = str(path), write(path, f"name: p{n}\nsummary: y\nextends: [{extends}]", mentions)
        files = [written[n] for n in in_order(parents, 0, [])]
        with_ = [str(tmp_path / f"o{n}.yaml") for n in range(len(overlays))]
        files += [(p, write(Path(p), "name: o\nsummary: y", m)) for p, m in zip(with_, overlays, strict=True)]
        for place, mentions in (("/etc/tuner/site.yaml", site), ("/etc/tuner/host.d/plain-vm.yaml", own)):
            if mentions is not None:
                files.append((place, write(Path(host.root + place), "", mentions)))
        lines = [(n, m, f"{origin}:{line}") for n, (origin, rows) in enumerate(files) for m, line in rows]
        words = [f"{m.key[0]}:{m.spelled}={m.yaml()}" for m in sets]
        lines += [(len(files), m, f"--set {word}") for m, word in zip(sets, words, strict=True)]
        expected = naive(lines)
        assert product(host, tmp_path / "p0.yaml", with_, words) == expected
        outcomes.append(expected is not None)

    agree()
    assert outcomes.count(True) > 30, "hardly a stack was free of errors: the comparison says little"
    assert outcomes.count(False) > 30, "hardly a stack was in error: the comparison says little"


# the command line: --with and --set


@pytest.fixture
def plan(root: Path, tmp_path: Path, tuner: Tuner) -> Callable[..., Any]:
    """plan(*words) -> the plan of a profile that sets vm.swappiness to 1, with these words after it."""
    path = write_profile(tmp_path / "base.yaml", "sysctl: {vm.swappiness: {value: 1, required: true}}")

    def call(*words: object) -> Any:
        return tuner("plan", "--json", "--root", root, "--profile", path, *words)

    return call


def wants(result: Any, knob: str = "sysctl") -> dict[str, Any]:
    return {v["target"]: v["want"] for v in result.document["verdicts"] if v["knob"] == knob}


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("5", {"value": 5}),
        ("0x10", {"value": 16}),
        ("'5'", {"value": 5}),
        ('"5"', {"value": 5}),
        ("{at_least: 5}", {"at_least": 5}),
        ("{at_most: 5, why: 'a: b = c'}", {"at_most": 5}),
        ("{value: 5, required: false}", {"value": 5}),
        ("{one_of: [5, 6]}", {"one_of": [5, 6]}),
    ],
)
def test_value_of_set_is_yaml(written: str, want: dict[str, Any], plan: Callable[..., Any]) -> None:
    result = plan("--set", f"sysctl:vm.swappiness={written}")
    assert wants(result) == {"vm.swappiness": want}
    (verdict,) = (v for v in result.document["verdicts"] if v["knob"] == "sysctl")
    assert verdict["required"] is ("required: false" not in written)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a=b:c", "a=b:c"),
        ("a=b=c", "a=b=c"),
        ("", ""),
        ("''", ""),
        ('""', ""),
        ("null", None),
        ("'null'", "null"),
        ("'a: b'", "a: b"),
        ('"two\\nlines"', "two\nlines"),
        ("on", "on"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("{value: {text: 'a=b', mode: '0600'}}", "a=b"),
    ],
)
def test_first_colon_and_first_equals_sign_divide(written: str, text: str | None, plan: Callable[..., Any]) -> None:
    """What comes after is the value, YAML 1.1 words and further signs and all; an empty one is an empty text."""
    want = wants(plan("--set", f"file:/etc/motd={written}"), "file")["/etc/motd"]
    assert want["value"]["text"] == text


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("sysctl:vm.swapiness=5", ["did you mean vm.swappiness?"]),
        ("sysctl:vm/swapiness=5", ["did you mean vm.swappiness?"]),
        ("sysctll:vm.swappiness=5", ["no knob 'sysctll'", "did you mean sysctl?"]),
        ("hugepagez:node0/2MB=5", ["did you mean hugepages?"]),
        ("hugepages:node9/2MB=5", ["node9", "did you mean node"]),
        ("hugepages:node0/3MB=5", ["3MB", "did you mean node0/2MB?"]),
        ("hugepages:node0=5", ["node0/2MB"]),
        ("thp:enable=never", ["enable", "enabled"]),
        ("sysctl:vm.swappiness", ["KNOB:TARGET=VALUE"]),
        ("vm.swappiness=5", ["KNOB:TARGET=VALUE"]),
        ("sysctl:=5", ["KNOB:TARGET=VALUE"]),
        (":vm.swappiness=5", ["no knob ''"]),
        ("", ["KNOB:TARGET=VALUE"]),
        ("sysctl:vm.swappiness=", ["not a number"]),
        ("sysctl:vm.swappiness=null", ["null"]),
        ("sysctl:vm.swappiness=on", ["'on'", "not a number"]),
        ("sysctl:vm.swappiness=010", ["leading zero", "octal"]),
        ("sysctl:vm.swappiness=1:30", ["'1:30'", "not a number"]),
        ("sysctl:vm.swappiness=1_0", ["not a number"]),
        ("sysctl:vm.swappiness=201", ["out of range", "0..200"]),
        ("sysctl:vm.swappiness={at_lest: 5}", ["at_lest", "at_least"]),
        ("sysctl:vm.swappiness={at_least: 5, value: 5}", ["together"]),
        ("sysctl:vm.swappiness={required: yes, value: 5}", ["true or false"]),
        ("sysctl:vm.swappiness=[", ["not YAML"]),
        ("sysctl:vm.swappiness='5", ["not YAML"]),
        ("sysctl:vm.swappiness=!!int 5", ["tag"]),
        ("sysctl:vm.swappiness=*a", ["hint"]),
        ("sysctl:vm.laptop_mode={unset: true}", ["not inherited"]),
        ("file:/etc/x=\udcff", ["UTF-8"]),
    ],
)
def test_set_that_is_wrong(word: str, parts: list[str], root: Path, tmp_path: Path, tuner: Tuner) -> None:
    """Exit 64, the argument named as it was typed, a hint, and nothing written."""
    path = write_profile(tmp_path / "base.yaml", "sysctl: {vm.swappiness: 1}")
    before = tree(root)
    result = tuner("apply", "--root", root, "--profile", path, "--set", word)
    assert result.code == 64
    assert all(part in result.err for part in parts), result.err
    shown = "".join(c if c.isprintable() else "?" for c in word)
    assert all(line.startswith(f"tuner: --set {shown}: ") for line in result.err.splitlines()[::2]), result.err
    assert tree(root) == before
    assert not (root / "var/lib/tuner").exists()


def test_key_of_a_module_that_is_not_loaded_gets_no_wrong_guess(plan: Callable[..., Any]) -> None:
    """The key is spelled right: another one is no help."""
    result = plan("--set", "sysctl:net.netfilter.nf_conntrack_max=1048576")
    (error,) = result.document["errors"]
    assert "nf_conntrack" in error["what"]
    assert "did you mean" not in error["hint"]


def test_every_wrong_set_and_overlay_is_said_at_once(plan: Callable[..., Any]) -> None:
    result = plan("--with", "nosuch", "--set", "a:b=c", "--set", "sysctl:vm.swappiness=x")
    assert result.code == 64
    wheres = {error["where"] for error in result.document["errors"]}
    assert wheres == {"--with nosuch", "--set a:b=c", "--set sysctl:vm.swappiness=x"}


def test_set_on_an_image_is_judged_as_any_setting_of_it(tmp_path: Path, tuner: Tuner) -> None:
    """An image has no kernel that could say which keys there are: not a typing error."""
    (tmp_path / "image/etc").mkdir(parents=True)
    path = write_profile(tmp_path / "base.yaml", "sysctl: {vm.laptop_mode: 0}")
    words = ("--root", tmp_path / "image", "--profile", path, "--set", "sysctl:vm.swappiness=5")
    result = tuner("plan", "--json", *words)
    assert result.code != 64, result.out
    assert wants(result)["vm.swappiness"] == {"value": 5}


def test_unknown_overlay_names_the_known_ones(root: Path, plan: Callable[..., Any]) -> None:
    own = root / "etc/tuner/profiles/overlays"
    own.mkdir(parents=True)
    write_profile(own / "quiet-clocks.yaml", "sysctl: {vm.swappiness: 7}")
    assert wants(plan("--with", "quiet-clocks")) == {"vm.swappiness": {"value": 7}}
    result = plan("--with", "quiet-clock")
    assert result.code == 64
    (error,) = result.document["errors"]
    assert (error["where"], error["what"]) == ("--with quiet-clock", "no such overlay")
    assert "quiet-clocks" in error["hint"]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a\nb", "/no/such.yaml", "no/such", "/dev/null", "/"])
def test_what_is_no_overlay(name: str, plan: Callable[..., Any]) -> None:
    result = plan("--with", name)
    assert result.code == 64
    assert all(error["hint"] for error in result.document["errors"])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("settings: {}\nextends: [linux-gpu]\n", "'extends'"),
        ("settings: {}\nmatch: {}\n", "'match'"),
        ("- a\n", "mapping"),
        ("", "empty"),
        ("settings: {sysctl: {vm.swappiness: 010}}\n", "leading zero"),
        ("settings: {sysctl: {vm.swappiness: on}}\n", "not a number"),
        ("settings: {sysctl: {vm.swappiness: 1:30}}\n", "not a number"),
    ],
)
def test_overlay_that_is_wrong_names_its_line(text: str, part: str, tmp_path: Path, plan: Callable[..., Any]) -> None:
    path = tmp_path / "over.yaml"
    path.write_text(text)
    result = plan("--with", path)
    assert result.code == 64
    errors = [error for error in result.document["errors"] if part in error["what"]]
    assert len(errors) == 1
    assert errors[0]["where"].startswith(f"{path}:")
    assert errors[0]["hint"]


def test_overlay_that_contradicts_the_profile_is_one_clear_error(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    """Huge pages of one size per node and in total: both lines are named."""
    path = write_profile(tmp_path / "p.yaml", "hugepages: {node0/2MB: 4}")
    over = write_profile(tmp_path / "over.yaml", "hugepages: {total/2MB: 8}")
    before = tree(root)
    result = tuner("apply", "--root", root, "--profile", path, "--with", over)
    assert result.code == 64
    lines = result.err.splitlines()
    assert len(lines) == 2
    assert "per node and in total" in lines[0]
    assert f"{path}:4" in result.err
    assert f"{over}:4" in result.err
    assert tree(root) == before


def test_overlay_may_replace_the_one_by_the_other(stack: Stack) -> None:
    found = stack.resolve(one="hugepages: {node0/2MB: 4}", first="hugepages: {node0/2MB: {unset: true}, total/2MB: 8}")
    assert set(found) == {"total/2MB"}


@pytest.mark.parametrize("words", [("--with", "x"), ("--set", "sysctl:vm.swappiness=5")])
@pytest.mark.parametrize("verb", [("verify",), ("explain", "sysctl:vm.swappiness")])
def test_overlays_without_profile_are_refused(
    verb: tuple[str, ...], words: tuple[str, ...], root: Path, tmp_path: Path, tuner: Tuner
) -> None:
    path = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    assert tuner("apply", "--root", root, "--profile", path).code == 0
    result = tuner(*verb, "--root", root, *words)
    assert result.code == 64
    assert "need --profile" in result.err
    assert "hint:" in result.err


def test_explain_names_the_layer_that_decides(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    path = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    over = write_profile(tmp_path / "over.yaml", "sysctl:\n  vm.swappiness: 2")
    words = ("explain", "sysctl:vm.swappiness", "--json", "--root", root, "--profile", path, "--with", over)
    assert [s["origin"] for s in tuner(*words).document["settings"]] == [f"{over}:5"]
    found = tuner(*words, "--set", "sysctl:vm.swappiness=3").document["settings"]
    assert [(s["origin"], s["want"]) for s in found] == [("--set sysctl:vm.swappiness=3", {"value": 3})]


# what was applied, and what it was applied with


def changed(notes: list[str]) -> list[str]:
    return [note for note in notes if "changed since apply" in note]


def test_verify_knows_the_overlays_and_sets_of_the_apply(
    root: Path, tmp_path: Path, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing changed: nothing said. The overlay edited: said, with the words that show the difference."""
    monkeypatch.chdir(tmp_path)
    path = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    over = write_profile(tmp_path / "over.yaml", "sysctl: {vm.laptop_mode: 2}")
    words = ("--profile", "p.yaml", "--with", "over.yaml", "--set", "sysctl:vm.zone_reclaim_mode={value: 1}")
    assert tuner("apply", "--root", root, *words).code == 0
    monkeypatch.chdir("/")
    result = tuner("verify", "--json", "--root", root)
    assert (result.code, result.document["state"], changed(result.document["notes"])) == (0, "ok", [])
    write_profile(over, "sysctl: {vm.laptop_mode: 3}")
    result = tuner("verify", "--json", "--root", root)
    assert (result.code, result.document["state"]) == (0, "ok")
    (note,) = changed(result.document["notes"])
    again = f"--profile {path} --with {over} --set 'sysctl:vm.zone_reclaim_mode={{value: 1}}'"
    assert again in note
    over.unlink()
    result = tuner("verify", "--json", "--root", root)
    assert result.code == 0
    assert any("cannot be read" in note for note in result.document["notes"])


@pytest.mark.parametrize("place", ["site.yaml", "host.d/plain-vm.yaml"])
def test_verify_says_when_the_site_changed_since_apply(place: str, root: Path, tmp_path: Path, tuner: Tuner) -> None:
    path = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    own = root / "etc/tuner" / place
    own.parent.mkdir(parents=True)
    own.write_text("settings: {sysctl: {vm.laptop_mode: 2}}\n")
    assert tuner("apply", "--root", root, "--profile", path).code == 0
    assert (root / "proc/sys/vm/laptop_mode").read_text() == "2\n"
    assert changed(tuner("verify", "--json", "--root", root).document["notes"]) == []
    own.write_text("settings: {sysctl: {vm.laptop_mode: 3}}\n")
    result = tuner("verify", "--json", "--root", root)
    assert (result.code, len(changed(result.document["notes"]))) == (0, 1)


def test_verify_with_profile_resolves_afresh_with_its_overlays(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    path = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    assert tuner("apply", "--root", root, "--profile", path).code == 0
    assert tuner("verify", "--root", root, "--profile", path).code == 0
    result = tuner("verify", "--json", "--root", root, "--profile", path, "--set", "sysctl:vm.swappiness=2")
    assert (result.code, result.document["state"]) == (10, "drift")


def test_plan_names_the_apply_with_all_its_words(root: Path, tmp_path: Path, tuner: Tuner) -> None:
    path = write_profile(tmp_path / "p.yaml", "sysctl: {vm.swappiness: 1}")
    over = write_profile(tmp_path / "over.yaml", "sysctl: {vm.laptop_mode: 2}")
    word = "sysctl:vm.swappiness={at_most: 5}"
    result = tuner("plan", "--root", root, "--profile", path, "--with", over, "--set", word)
    assert f"tuner apply --profile {path} --with {over} --set '{word}' --root {root}" in result.out


# size


def seconds(*words: object) -> float:
    """The best of two runs in a process of its own."""
    taken = []
    for _ in range(2):
        start = time.monotonic()
        done = subprocess.run([sys.executable, *map(str, words)], cwd=CHECKOUT, capture_output=True, check=False)
        taken.append(time.monotonic() - start)
        assert b"Traceback" not in done.stderr
    return min(taken)


def large(kind: str) -> str:
    """Settings in one file: 5,000 by name (of keys and files, most of them not there), or 400 patterns."""
    if kind == "names":
        rows = [f"    net.ipv4.conf.eth{n}.rp_filter: 2\n" for n in range(2500)]
        return "  sysctl:\n" + "".join(rows) + "  file:\n" + "".join(f"    /etc/big/{n}: x\n" for n in range(2500))
    return "  sysctl:\n" + "".join(f"    net.ipv4.conf.*{n}.rp_filter: 2\n" for n in range(400))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["names", "patterns"])
def test_plan_of_a_large_profile_takes_under_two_seconds(kind: str, host: Host, tmp_path: Path) -> None:
    """In units of an empty Python, which takes about 0.025 s where plan must take no more than 2 s."""
    path = tmp_path / "large.yaml"
    path.write_text("name: large\nsummary: y\nsettings:\n" + large(kind))
    unit = seconds("-I", "-c", "pass")
    taken = seconds("-m", "tuner", "plan", "--root", host.root, "--profile", path)
    assert taken / unit < 80, f"{taken:.2f} s, an empty Python {unit:.3f} s"
