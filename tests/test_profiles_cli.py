"""profiles list, show, lint, diff, init, schema: what they print and how they end, by hand-made files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from markdown_it import MarkdownIt

from tests.conftest import Result, write_profile
from tuner.cli import main
from tuner.knobs import KNOBS
from tuner.profile.schema import editor_schema
from tuner.shipped import folder

Tuner = Callable[..., Result]

GOOD = "{value: 10, why: Our loader maps files, source: measured here}"


@pytest.fixture
def site(root: Path) -> Path:
    """The folder of a host's own profiles, empty."""
    path = root / "etc/tuner/profiles"
    (path / "overlays").mkdir(parents=True)
    return path


@pytest.fixture
def still(masters: Callable[..., Path]) -> Path:
    """A host that is only looked at: the one that others copy."""
    return masters("plain-vm")


def _profile(path: Path, settings: str, *, head: str = "") -> Path:
    """A profile that is named after its file."""
    write_profile(path, settings, path.stem)
    path.write_text(head + path.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def _rows(result: Result) -> list[list[str]]:
    """The cells of the printed table, without the line that names the host."""
    return [re.split(r" {2,}", line.strip()) for line in result.out.splitlines()[1:]]


# --- list ---------------------------------------------------------------------------------------------------------


def test_list_has_the_sites_own_first_and_marks_overlays(tuner: Tuner, root: Path, site: Path) -> None:
    """Own profile, shipped ones, then own overlay, shipped ones; each with its kind, summary and file."""
    _profile(site / "ours.yaml", "sysctl: {vm.swappiness: 10}")
    _profile(site / "overlays/less.yaml", "sysctl: {vm.swappiness: 5}")
    found = tuner("profiles", "list", "--root", root, "--json").document["profiles"]
    names = [(one["name"], one["kind"], one["origin"]) for one in found]
    assert names[0] == ("ours", "profile", "/etc/tuner/profiles/ours.yaml")
    assert ("linux-gpu", "profile", "profiles/linux-gpu.yaml") in names[1:]
    kinds = [kind for _, kind, _ in names]
    assert kinds == sorted(kinds, reverse=True), "profiles before overlays"
    assert names[kinds.index("overlay")] == ("less", "overlay", "/etc/tuner/profiles/overlays/less.yaml")
    result = tuner("profiles", "list", "--root", root)
    assert result.code == 0
    assert ["ours", "site profile", "fits", "For a test"] in _rows(result)
    assert ["less", "site overlay", "--with", "For a test"] in _rows(result)


def test_a_sites_profile_hides_the_shipped_one(tuner: Tuner, root: Path, site: Path) -> None:
    """One row for a name that both have: the site's."""
    _profile(site / "linux-gpu.yaml", "sysctl: {vm.swappiness: 10}")
    found = tuner("profiles", "list", "--root", root, "--json").document["profiles"]
    assert [one["origin"] for one in found if one["name"] == "linux-gpu"] == ["/etc/tuner/profiles/linux-gpu.yaml"]


MATCH = "match: {gpus: {ids: ['1002:74a1'], count: 8, driver: amdgpu}, nics: {drivers: [mlx5_core], at_least: 8}}\n"


def test_list_says_whether_the_host_fits_and_why_not(tuner: Tuner, copy_host: Callable[..., Path]) -> None:
    """A profile for 8 MI300X fits the recorded MI300X node, and not the virtual machine, which has none."""
    for host, fits in (("plain-vm", False), ("mi300x-cx7", True)):
        root = copy_host(host)
        path = root / "etc/tuner/profiles/big.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        _profile(path, "sysctl: {vm.swappiness: 10}", head=MATCH)
        result = tuner("profiles", "list", "--root", root, "--json")
        (row,) = [one for one in result.document["profiles"] if one["name"] == "big"]
        assert row["fits"] is fits, host
        assert row["for"] == "8 x GPU 1002:74a1 with driver amdgpu; at least 8 NICs of driver mlx5_core"
        assert bool(row["why"]) is not fits
        assert row["match"]["gpu_count"] == 8


def test_list_prints_what_was_expected_and_found(tuner: Tuner, root: Path, site: Path) -> None:
    """In words: expected, found."""
    _profile(site / "big.yaml", "sysctl: {vm.swappiness: 10}", head=MATCH)
    out = tuner("profiles", "list", "--root", root).out
    assert re.search(r"big +site profile +does not fit +For a test", out)
    assert "expected 8 GPU 1002:74a1 with driver amdgpu, found 0" in out


def test_list_judges_no_image(tuner: Tuner, tmp_path: Path) -> None:
    """An image has no hardware: not judged."""
    image = tmp_path / "image"
    path = image / "etc/tuner/profiles/big.yaml"
    path.parent.mkdir(parents=True)
    for part in (path.parent, path.parent.parent, path.parent.parent.parent):
        part.chmod(0o755)
    _profile(path, "sysctl: {vm.swappiness: 10}", head=MATCH).chmod(0o644)
    found = tuner("profiles", "list", "--root", image, "--json").document["profiles"]
    assert [one["fits"] for one in found if one["name"] == "big"] == [None]


def test_a_broken_profile_is_a_row_of_the_list(tuner: Tuner, root: Path, site: Path) -> None:
    """The others are listed all the same, and the row says how to see what is wrong."""
    (site / "broken.yaml").write_text("name: broken\nsummary: Of no use\nsettings: {nonsense: {a: 1}}\n")
    (site / "worse.yaml").write_text("name: [\n")
    result = tuner("profiles", "list", "--root", root)
    assert result.code == 0
    assert "tuner profiles lint broken" in result.out
    assert "tuner profiles lint worse" in result.out
    assert "linux-gpu" in result.out


# --- show ---------------------------------------------------------------------------------------------------------


def test_show_has_each_want_with_its_origin(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Knob, target, Want, FILE:LINE; the Want in the words of every other table."""
    path = _profile(
        tmp_path / "mine.yaml",
        """
sysctl:
  net.core.rmem_max: {at_least: 16777216, required: true}
  vm.swappiness: {at_most: 10, gate: enforce}
thp:
  enabled: {one_of: [madvise, always]}
""",
    )
    result = tuner("profiles", "show", path, "--root", root)
    assert result.code == 0
    assert result.out.startswith("RECORDED plain-vm")
    rows = _rows(result)
    assert ["thp", "enabled", "one of madvise, always", f"{path}:8"] in rows
    assert ["sysctl", "net.core.rmem_max", ">= 16777216", f"{path}:5", "required"] in rows
    assert ["vm.swappiness", "<= 10", f"{path}:6", "gate enforce"] in rows


def test_show_as_a_document(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """tuner.profile/1: schema, name, settings with knob, target, want, origin, why, source, required."""
    path = _profile(tmp_path / "mine.yaml", f"sysctl:\n  vm.swappiness: {GOOD}")
    document = tuner("profiles", "show", path, "--root", root, "--json").document
    assert document["schema"] == "tuner.profile/1"
    assert document["name"] == "mine"
    (setting,) = document["settings"]
    promised = ("knob", "target", "want", "origin", "why", "source", "required")
    assert {name: setting[name] for name in promised} == {
        "knob": "sysctl",
        "target": "vm.swappiness",
        "want": {"value": 10},
        "origin": f"{path}:5",
        "why": "Our loader maps files",
        "source": "measured here",
        "required": False,
    }


def test_show_lays_overlays_and_set_over_it(tuner: Tuner, root: Path, site: Path, tmp_path: Path) -> None:
    """The overlay beats the profile, --set beats both, and each origin is that of the winner."""
    path = _profile(tmp_path / "mine.yaml", "sysctl: {vm.swappiness: 10, vm.zone_reclaim_mode: 1}")
    _profile(site / "overlays/less.yaml", "sysctl: {vm.swappiness: 5, vm.zone_reclaim_mode: 0}")
    words = ["profiles", "show", path, "--with", "less", "--set", "sysctl:vm.swappiness=1", "--root", root, "--json"]
    document = tuner(*words).document
    found = {s["target"]: (s["want"], s["origin"]) for s in document["settings"]}
    assert found == {
        "vm.swappiness": ({"value": 1}, "--set sysctl:vm.swappiness=1"),
        "vm.zone_reclaim_mode": ({"value": 0}, "/etc/tuner/profiles/overlays/less.yaml:4"),
    }
    assert (document["name"], document["overlays"], document["sets"]) == ("mine", ["less"], ["sysctl:vm.swappiness=1"])


def test_resolved_expands_patterns_on_the_host(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """plain-vm has two NUMA nodes: the pattern becomes both; a name beats it, with its own origin."""
    path = _profile(tmp_path / "mine.yaml", "hugepages:\n  node*/2MB: 8\n  node1/2MB: 4")
    plain = tuner("profiles", "show", path, "--root", root, "--json").document["settings"]
    assert [s["target"] for s in plain] == ["node*/2MB", "node1/2MB"]
    resolved = tuner("profiles", "show", path, "--resolved", "--root", root, "--json").document["settings"]
    assert {(s["target"], s["want"]["value"], s["origin"], s["written"]) for s in resolved} == {
        ("node0/2MB", 8, f"{path}:5", "node*/2MB"),
        ("node1/2MB", 4, f"{path}:6", "node1/2MB"),
    }
    assert "by node*/2MB" in tuner("profiles", "show", path, "--resolved", "--root", root).out


def test_resolved_refuses_patterns_that_meet(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Two patterns of one file for one target: bad input, as in plan; without --resolved they can be looked at."""
    path = _profile(tmp_path / "mine.yaml", "hugepages:\n  node*/2MB: 8\n  node[0-1]/2MB: 4")
    assert tuner("profiles", "show", path, "--resolved", "--root", root).code == 64
    assert tuner("profiles", "show", path, "--root", root).code == 0


def test_show_of_a_profile_that_is_not_there(tuner: Tuner, root: Path) -> None:
    """64, with the known names."""
    result = tuner("profiles", "show", "nonsense", "--root", root)
    assert result.code == 64
    assert "linux-gpu" in result.err


# --- show --doc ---------------------------------------------------------------------------------------------------

TRICKY = """
sysctl:
  vm.swappiness:
    value: 10
    why: "a|b *stars* <b>tag</b> `tick` _x_ [link](http://e) &lt; tcp_rmem[1] ~~gone~~"
    source: "# no heading | 1 < 2"
  net.core.rmem_max: {at_least: 16777216, why: Large buffers, source: ip-sysctl.rst, required: true}
hugepages:
  node*/2MB: {at_least: 8, why: For the loader, source: its manual}
service:
  irqbalance.service: {value: inactive, why: We place interrupts, source: irqbalance(1)}
file:
  /etc/modprobe.d/a.conf: {value: "options a b=1 | 2\\n```\\n# not a heading\\n", why: For a, source: its manual}
"""


def _tokens(text: str) -> list[Any]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def _cells(text: str) -> list[list[list[Any]]]:
    """Every table of the text: rows of cells, each as its inline tokens."""
    tables: list[list[list[Any]]] = []
    for before, token in zip([None, *_tokens(text)], _tokens(text), strict=False):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "inline" and before is not None and before.type in ("td_open", "th_open"):
            tables[-1][-1].append(token.children)
    return tables


def _plain(children: list[Any]) -> str:
    """What a reader sees; anything but text and code in it is an error."""
    assert {child.type for child in children} <= {"text", "code_inline", "text_special"}, children
    return "".join(child.content for child in children)


@pytest.fixture
def doc(tuner: Tuner, root: Path, tmp_path: Path) -> str:
    """The document of a profile whose words are all that Markdown trips over."""
    path = _profile(tmp_path / "tricky.yaml", TRICKY)
    return tuner("profiles", "show", path, "--doc", "--root", root).out


def test_doc_has_a_title_and_a_section_for_each_knob(doc: str) -> None:
    """Headings in the order of the knobs, nothing else is one."""
    tokens = _tokens(doc)
    found = [(t.tag, tokens[n + 1].content) for n, t in enumerate(tokens) if t.type == "heading_open"]
    assert found == [
        ("h1", "tricky"),
        ("h2", "Apply and undo"),
        ("h2", "sysctl"),
        ("h2", "hugepages"),
        ("h2", "service"),
        ("h2", "file"),
        ("h2", "Classes of disruption"),
    ]


def test_doc_tables_show_every_word_as_it_was_written(doc: str) -> None:
    """Pipes, stars, tags and brackets are read as text, five cells to a row."""
    sysctl = _cells(doc)[0]
    assert [[_plain(cell) for cell in row] for row in sysctl] == [
        ["Target", "Wanted", "Class", "Why", "Source"],
        [
            "vm.swappiness",
            "10",
            "none",
            "a|b *stars* <b>tag</b> `tick` _x_ [link](http://e) &lt; tcp_rmem[1] ~~gone~~",
            "# no heading | 1 < 2",
        ],
        ["net.core.rmem_max", "at least 16777216 (required)", "none", "Large buffers", "ip-sysctl.rst"],
    ]
    hugepages = _cells(doc)[1]
    assert [_plain(cell) for cell in hugepages[1]] == [
        "node*/2MB", "at least 8", "memory", "For the loader", "its manual",
    ]  # fmt: skip


def test_doc_holds_the_whole_text_of_a_file(doc: str) -> None:
    """In a block of its own, whatever fences the text has."""
    blocks = [token.content for token in _tokens(doc) if token.type == "fence"]
    assert "options a b=1 | 2\n```\n# not a heading\n" in blocks


def test_doc_says_how_to_apply_and_how_to_undo(doc: str, tmp_path: Path) -> None:
    """Commands that can be pasted; undo for each knob, none for what is only judged."""
    commands = next(token.content for token in _tokens(doc) if token.type == "fence")
    assert commands.splitlines() == [
        f"tuner plan --profile {tmp_path}/tricky.yaml",
        f"sudo tuner apply --profile {tmp_path}/tricky.yaml",
        "sudo tuner rollback",
    ]
    sections = {part.partition("\n")[0]: part for part in doc.split("\n## ")[1:]}
    assert "Undo: `tuner rollback`" in sections["sysctl"]
    assert "A reboot undoes it too" in sections["sysctl"]
    assert "A reboot undoes it too" not in sections["file"]
    assert "nothing to undo" in sections["service"]
    assert "moves or takes memory" in sections["Classes of disruption"]


def test_doc_allows_what_waits_for_a_person(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """A file of the boot loader is of class boot, which apply does only with --allow boot."""
    path = _profile(tmp_path / "boot.yaml", 'file: {/etc/default/grub.d/a.cfg: "x\\n"}')
    out = tuner("profiles", "show", path, "--doc", "--root", root).out
    assert f"sudo tuner apply --profile {path} --allow boot\n" in out
    assert MarkdownIt("commonmark").render(out).count("<h2>") == 3


def test_doc_of_every_shipped_profile_renders(tuner: Tuner, root: Path) -> None:
    """Every setting is in a row, with its why and source in full; under --json the text is in `doc`."""
    for path in folder("profiles").glob("*.yaml"):
        document = tuner("profiles", "show", path.stem, "--doc", "--root", root, "--json").document
        rows = [[_plain(cell) for cell in row] for table in _cells(document["doc"]) for row in table]
        for setting in document["settings"]:
            found = [row[3:] for row in rows if row[0] == setting["target"]]
            assert [setting["why"], setting["source"]] in found


# --- lint ---------------------------------------------------------------------------------------------------------


def test_everything_that_ships_is_clean(tuner: Tuner, root: Path) -> None:
    """No finding at all, not even a remark."""
    result = tuner("profiles", "lint", "--root", root, "--json")
    assert result.code == 0
    assert result.document["findings"] == []
    assert "profiles/linux-gpu.yaml" in result.document["files"]


def test_lint_reports_every_problem_of_every_file(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Two files with three errors and a careless line: all of them, each FILE:LINE: what, with a hint; exit 10."""
    one = tmp_path / "one.yaml"
    one.write_text("name: one\nsummary: S\nnonsense: 1\nsettings:\n  sysctl:\n    vm.swappiness: ten\n")
    other = _profile(tmp_path / "other.yaml", "sysctls: {vm.swappiness: 10}\nthp:\n  enabled: madvise")
    result = tuner("profiles", "lint", one, other, "--root", root)
    assert result.code == 10
    lines = result.out.splitlines()
    assert f"{one}:3: unknown key 'nonsense' in a profile" in lines
    assert f"{one}:6: sysctl vm.swappiness: 'ten' is not a number" in lines
    assert f"{other}:4: no knob 'sysctls'" in lines
    assert "  hint: did you mean sysctl?" in lines
    assert f"{other}:6: warning: thp enabled has no why" in lines
    assert f"{other}:6: warning: thp enabled has no source" in lines
    assert lines[-1] == "2 files, 5 findings"


CARELESS = [
    ("vm.swappiness: {value: 10, source: measured}", "warning", "sysctl vm.swappiness has no why"),
    ("vm.swappiness: {value: 10, why: W}", "warning", "sysctl vm.swappiness has no source"),
    (
        "net.ipv4.tcp_tw_recycle: {value: 0, why: W, source: S}",
        "warning",
        "sysctl net.ipv4.tcp_tw_recycle was dropped in Linux 4.12: no supported kernel has it",
    ),
    (
        "dev.site.limit: {at_least: 4G, why: W, source: S}",
        "warning",
        "sysctl dev.site.limit: at_least compares numbers, and this is none",
    ),
]


@pytest.mark.parametrize(("line", "level", "what"), CARELESS, ids=[what for _, _, what in CARELESS])
def test_lint_finds_what_is_careless(
    tuner: Tuner, root: Path, tmp_path: Path, line: str, level: str, what: str
) -> None:
    """What plan would take, and a reviewer would not."""
    path = _profile(tmp_path / "p.yaml", f"sysctl:\n  {line}")
    result = tuner("profiles", "lint", path, "--root", root, "--json")
    assert result.code == 10
    found = [(f["level"], f["where"], f["what"]) for f in result.document["findings"] if f["level"] != "info"]
    assert found == [(level, f"{path}:5", what)]


def test_a_key_that_is_not_in_the_table_is_only_said(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """It is not wrong, only not checked: a remark, exit 0. A key that some supported kernels dropped is none."""
    line = "{value: 1, why: W, source: S}"
    path = _profile(tmp_path / "p.yaml", f"sysctl:\n  dev.site.limit: {line}\n  kernel.sched_child_runs_first: {line}")
    result = tuner("profiles", "lint", path, "--root", root, "--json")
    assert result.code == 0
    assert [(f["level"], f["where"]) for f in result.document["findings"]] == [("info", f"{path}:5")]


def test_lint_compares_name_and_file(tuner: Tuner, root: Path, site: Path) -> None:
    """The file's name is what is looked up."""
    write_profile(site / "ours.yaml", f"sysctl:\n  vm.swappiness: {GOOD}", "theirs")
    result = tuner("profiles", "lint", "ours", "--root", root, "--json")
    assert result.code == 10
    (found,) = result.document["findings"]
    assert (found["where"], found["what"]) == (
        "/etc/tuner/profiles/ours.yaml:1",
        "the name is theirs, the file is ours",
    )


def test_lint_of_an_overlay(tuner: Tuner, root: Path, site: Path) -> None:
    """By name and by path; match, extends and wrong values are errors; unset needs nothing to be inherited."""
    path = _profile(
        site / "overlays/less.yaml",
        f"sysctl:\n  vm.zone_reclaim_mode: {{unset: true}}\n  vm.swappiness: {GOOD}",
    )
    assert tuner("profiles", "lint", "less", "--root", root).code == 0
    assert tuner("profiles", "lint", path, "--root", root).code == 0
    path.write_text("match: {gpus: {ids: ['1002:74a1']}}\nsettings:\n  sysctl:\n    vm.swappiness: -5\n")
    result = tuner("profiles", "lint", "less", "--root", root)
    assert result.code == 10
    assert "less.yaml:1: unknown key 'match' in a" in result.out
    assert "less.yaml:1: name is missing" in result.out
    assert "less.yaml:1: summary is missing" in result.out
    assert "less.yaml:4: sysctl vm.swappiness: -5 is out of range" in result.out


def test_lint_without_names_reads_all_that_the_host_knows(tuner: Tuner, root: Path, site: Path) -> None:
    """Own profiles and overlays, site.yaml, the host's file; a mistake in one is found once."""
    _profile(site / "ours.yaml", "sysctl:\n  vm.swappiness: 10")
    (site / "overlays/less.yaml").write_text("- 1\n")
    (site.parent / "site.yaml").write_text("boots_from: tape\n")
    (site.parent / "host.d").mkdir()
    (site.parent / "host.d/plain-vm.yaml").write_text("settings:\n  thp:\n    enabled: sometimes\n")
    result = tuner("profiles", "lint", "--root", root, "--json")
    assert result.code == 10
    found = [(f["where"], f["level"]) for f in result.document["findings"]]
    assert sorted(found) == [
        ("/etc/tuner/host.d/plain-vm.yaml:3", "error"),
        ("/etc/tuner/profiles/ours.yaml:5", "warning"),
        ("/etc/tuner/profiles/ours.yaml:5", "warning"),
        ("/etc/tuner/profiles/overlays/less.yaml:1", "error"),
        ("/etc/tuner/site.yaml:1", "error"),
    ]


def test_lint_finds_patterns_that_meet_on_this_host(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """As plan would refuse them there."""
    want = "{value: 8, why: W, source: S}"
    path = _profile(tmp_path / "p.yaml", f"hugepages:\n  node*/2MB: {want}\n  node[0-1]/2MB: {want}")
    result = tuner("profiles", "lint", path, "--root", root)
    assert result.code == 10
    assert "node0/2MB is matched by node[0-1]/2MB and by node*/2MB" in result.out


@pytest.mark.parametrize("name", ["nonsense", "./nonsense.yaml", ".", ""])
def test_lint_of_what_is_not_there(tuner: Tuner, root: Path, name: str) -> None:
    """64: not a finding in a file, but a call that cannot be answered."""
    result = tuner("profiles", "lint", "linux-gpu", name, "--root", root)
    assert result.code == 64
    assert result.out == ""


def test_lint_names_all_that_are_not_there(tuner: Tuner, root: Path) -> None:
    """Both at once."""
    err = tuner("profiles", "lint", "nonsense", "humbug", "--root", root).err
    assert "nonsense" in err
    assert "humbug" in err


# --- diff ---------------------------------------------------------------------------------------------------------


def test_diff_of_two_profiles(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Only in one, only in the other, and wanted differently; what is equal is left out, whatever its why."""
    one = _profile(
        tmp_path / "one.yaml",
        f"sysctl:\n  vm.swappiness: 10\n  vm.zone_reclaim_mode: 0\n  kernel.numa_balancing: {GOOD.replace('10', '0')}",
    )
    other = _profile(
        tmp_path / "other.yaml",
        "sysctl:\n  vm.swappiness: {at_most: 10}\n  kernel.numa_balancing: 0\nthp:\n  enabled: always",
    )
    result = tuner("profiles", "diff", one, other, "--root", root, "--json")
    assert result.code == 10
    document = result.document
    assert (document["one"], document["other"]) == (str(one), str(other))
    assert [(s["target"], s["want"]) for s in document["only_one"]] == [("vm.zone_reclaim_mode", {"value": 0})]
    assert [(s["target"], s["want"]) for s in document["only_other"]] == [("enabled", {"value": "always"})]
    (different,) = document["different"]
    assert (different["target"], different["one"]["want"], different["other"]["want"]) == (
        "vm.swappiness", {"value": 10}, {"at_most": 10},
    )  # fmt: skip
    rows = _rows(tuner("profiles", "diff", one, other, "--root", root))
    assert ["different", "sysctl vm.swappiness", "10", "<= 10"] in rows
    assert [f"only {one}", "sysctl vm.zone_reclaim_mode", "0", "-"] in rows
    assert [f"only {other}", "thp enabled", "-", "always"] in rows


def test_diff_of_equal_profiles(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Other words and other spellings of the same values are no difference: 0."""
    one = _profile(tmp_path / "one.yaml", "sysctl: {net.core.rmem_max: 0x1000000}")
    other = _profile(tmp_path / "other.yaml", "sysctl:\n  net.core.rmem_max: {value: 16777216, why: W, source: S}")
    result = tuner("profiles", "diff", one, other, "--root", root)
    assert result.code == 0
    assert "no difference" in result.out


def test_diff_sees_required_and_gate(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """They are part of what the settings id names."""
    one = _profile(tmp_path / "one.yaml", "sysctl: {vm.swappiness: 10}")
    other = _profile(tmp_path / "other.yaml", "sysctl: {vm.swappiness: {value: 10, required: true, gate: report}}")
    result = tuner("profiles", "diff", one, other, "--root", root)
    assert result.code == 10
    assert ["different", "sysctl vm.swappiness", "10", "10 required gate report"] in _rows(result)


def test_diff_with_an_unknown_profile(tuner: Tuner, root: Path) -> None:
    """64; of two, both are named."""
    assert tuner("profiles", "diff", "linux-gpu", "nonsense", "--root", root).code == 64
    err = tuner("profiles", "diff", "humbug", "nonsense", "--root", root).err
    assert "humbug" in err
    assert "nonsense" in err


# --- init ---------------------------------------------------------------------------------------------------------


def test_init_writes_a_profile_that_is_clean(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """Lint finds nothing; the schema takes it; nobody else can write it."""
    path = tmp_path / "ours.yaml"
    result = tuner("profiles", "init", path)
    assert result.code == 0
    assert str(path) in result.out
    lint = tuner("profiles", "lint", path, "--root", root, "--json")
    assert (lint.code, lint.document["findings"]) == (0, [])
    assert path.stat().st_mode & 0o7133 == 0
    jsonschema.Draft202012Validator(editor_schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_every_example_of_init_is_right(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """With all its examples taken into use it is clean too; it has each knob, each kind of Want and each key."""
    path = tmp_path / "ours.yaml"
    tuner("profiles", "init", path)
    text = path.read_text(encoding="utf-8")
    used = re.sub(r"^  # ", "  ", text, flags=re.MULTILINE)
    used = re.sub(r"^# (match:|  (?:gpus|nics):)", r"\1", used, flags=re.MULTILINE)
    path.write_text(used, encoding="utf-8")
    lint = tuner("profiles", "lint", path, "--root", root, "--json")
    assert lint.document["findings"] == []
    data = yaml.safe_load(used)
    jsonschema.Draft202012Validator(editor_schema()).validate(data)
    assert set(data["settings"]) == {knob.name for knob in KNOBS}
    assert set(data) == {"name", "summary", "match", "extends", "settings"}
    keys = {key for targets in data["settings"].values() for line in targets.values() for key in line}
    assert keys == {"value", "at_least", "at_most", "one_of", "why", "source", "required", "gate", "unset"}


def test_init_keeps_what_is_there(tuner: Tuner, tmp_path: Path) -> None:
    """An existing file, a link to one, and a link to nothing: 64, and nothing is written anywhere."""
    kept, gone = tmp_path / "kept.yaml", tmp_path / "gone.yaml"
    kept.write_text("mine")
    for name, target in (("link.yaml", kept), ("loose.yaml", gone)):
        (tmp_path / name).symlink_to(target)
    for name in ("kept.yaml", "link.yaml", "loose.yaml"):
        result = tuner("profiles", "init", tmp_path / name)
        assert result.code == 64, name
        assert "is there already" in result.err
    assert kept.read_text() == "mine"
    assert not gone.exists()


@pytest.mark.parametrize("name", ["ours", "ours.txt", ".yaml", "a b.yaml", "nowhere/ours.yaml", "ours.yaml/x.yaml", ""])
def test_init_wants_a_name_that_can_be_found_again(tuner: Tuner, tmp_path: Path, name: str) -> None:
    """64, and no file."""
    (tmp_path / "ours.yaml").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert tuner("profiles", "init", f"{tmp_path}/{name}").code == 64
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("stem", ["null", "1", "true", "mi300x-cx7", "a.b_c"])
def test_init_names_the_profile_after_the_file(tuner: Tuner, root: Path, tmp_path: Path, stem: str) -> None:
    """Also where YAML would make something else of the word."""
    path = tmp_path / f"{stem}.yaml"
    assert tuner("profiles", "init", path).code == 0
    assert tuner("profiles", "show", path, "--root", root, "--json").document["name"] == stem


def test_init_under_any_umask(tuner: Tuner, tmp_path: Path) -> None:
    """0644 at most."""
    former = os.umask(0)
    try:
        tuner("profiles", "init", tmp_path / "ours.yaml")
    finally:
        os.umask(former)
    assert (tmp_path / "ours.yaml").stat().st_mode & 0o777 == 0o644


def test_init_as_a_document(tuner: Tuner, tmp_path: Path) -> None:
    """The new profile as a row of the list."""
    (row,) = tuner("profiles", "init", tmp_path / "ours.yaml", "--json").document["profiles"]
    assert (row["name"], row["kind"], row["origin"]) == ("ours", "profile", f"{tmp_path}/ours.yaml")


# --- schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_schema_is_printed_as_it_is(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """With and without --json: a schema of draft 2020-12, the same each time."""
    assert main(["profiles", "schema", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == editor_schema()
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(found)


@pytest.mark.parametrize("path", sorted(folder("profiles").rglob("*.yaml")), ids=lambda path: path.stem)
def test_schema_takes_what_ships(path: Path) -> None:
    """Profiles and overlays, read as plain data."""
    jsonschema.Draft202012Validator(editor_schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def _both(tuner: Tuner, root: Path, path: Path, text: str) -> tuple[bool, bool]:
    """Whether the schema and whether the loader take a profile."""
    path.write_text(text, encoding="utf-8")
    by_schema = jsonschema.Draft202012Validator(editor_schema()).is_valid(yaml.safe_load(text))
    findings = tuner("profiles", "lint", path, "--root", root, "--json").document["findings"]
    return by_schema, not [finding for finding in findings if finding["level"] == "error"]


HEAD = "name: p\nsummary: S\n"

RIGHT = [
    "sysctl: {vm.swappiness: 10, net.ipv4.tcp_rmem: '4096 131072 16777216'}",
    "sysctl: {net.ipv4.tcp_rmem: {at_least: [4096, 131072, 16777216]}, net.core.rmem_max: '0x1000000'}",
    "sysctl: {net.ipv4.conf.eth0.rp_filter: 2, net.ipv4.conf.*.rp_filter: {one_of: [1, 2]}, dev.site.key: word}",
    "sysctl: {vm.swappiness: {value: 10, why: W, source: S, required: false, gate: report}}",
    "sysctl.pair: {vm.dirty: {value: {bytes: 268435456}}, vm.dirty_background: {value: {ratio: 5}}}",
    "thp: {enabled: madvise, defrag: {one_of: [madvise, defer+madvise]}, khugepaged/defrag: 0}",
    "hugepages: {node*/2MB: 8, 'node[0-1]/1GB': {at_least: 1}}",
    "hugepages: {total/1048576kB: '0'}",
    "cpu: {governor: performance, boost: 'on', cstate/C2: {value: 'off'}}",
    "irq: {'*': local, '41:00.0': {value: local}}",
    "limits: {slurmd.service/memlock: unlimited, '*.service/nofile': {at_least: 65536}}",
    "module: {amdgpu/noretry: 0, nvme-core/io_timeout: {at_least: 60}, 'x/*': {one_of: [Y, '1,2', 3]}, x/y: [1, 2]}",
    "service: {irqbalance: inactive, numad.service: {value: {state: inactive, enabled: masked}}}",
    "cmdline: {iommu: pt, nosmt: present, init_on_alloc: 0, transparent-hugepage: madvise}",
    "file: {/etc/a.conf: null, /etc/b.conf: 'x', /etc/c.conf: {value: {text: 'x', mode: '0600', owner: '0:0'}}}",
]


@pytest.mark.parametrize("settings", RIGHT)
def test_schema_takes_what_the_loader_takes(tuner: Tuner, still: Path, tmp_path: Path, settings: str) -> None:
    """Every knob, every kind of Want, every form of a value."""
    assert _both(tuner, still, tmp_path / "p.yaml", f"{HEAD}settings:\n  {settings}\n") == (True, True)


WRONG = {
    "no name": "summary: S\nsettings: {}\n",
    "no summary": "name: p\nsettings: {}\n",
    "no settings": HEAD,
    "unknown key": HEAD + "setings: {}\nsettings: {}\n",
    "settings as a list": HEAD + "settings: [sysctl]\n",
    "match of nothing": HEAD + "match: {gpus: {count: 8}}\nsettings: {}\n",
    "PCI id": HEAD + "match: {gpus: {ids: [MI300X]}}\nsettings: {}\n",
    "count": HEAD + "match: {gpus: {ids: ['1002:74a1'], count: eight}}\nsettings: {}\n",
} | {
    what: f"{HEAD}settings:\n  {settings}\n"
    for what, settings in {
        "unknown knob": "sysctls: {vm.swappiness: 10}",
        "unknown key of a setting": "sysctl: {vm.swappiness: {value: 10, whi: W}}",
        "two kinds of Want": "sysctl: {vm.swappiness: {value: 10, at_least: 5}}",
        "no Want": "sysctl: {vm.swappiness: {why: W}}",
        "bad gate": "sysctl: {vm.swappiness: {value: 10, gate: maybe}}",
        "required in words": "sysctl: {vm.swappiness: {value: 10, required: 'yes'}}",
        "unset beside a value": "sysctl: {vm.swappiness: {value: 10, unset: true}}",
        "unset beside a why": "sysctl: {vm.swappiness: {unset: true, why: W}}",
        "one_of without choices": "thp: {enabled: {one_of: []}}",
        "one_of as a word": "thp: {enabled: {one_of: madvise}}",
        "word for a number": "sysctl: {vm.swappiness: low}",
        "unit": "sysctl: {net.core.rmem_max: 16M}",
        "leading zero": "sysctl: {net.core.rmem_max: '010000000'}",
        "out of range": "sysctl: {vm.swappiness: -1}",
        "out of range as a bound": "sysctl: {net.ipv4.conf.all.rp_filter: {at_least: 3}}",
        "vector too short": "sysctl: {net.ipv4.tcp_rmem: '4096 131072'}",
        "null": "sysctl: {vm.swappiness: null}",
        "half of a pair": "sysctl: {vm.dirty_bytes: 268435456}",
        "an action": "sysctl: {vm.drop_caches: 3}",
        "of another knob": "sysctl: {vm.nr_hugepages: 8}",
        "pair as a number": "sysctl.pair: {vm.dirty: 268435456}",
        "both halves": "sysctl.pair: {vm.dirty: {value: {bytes: 268435456, ratio: 10}}}",
        "bound on a pair": "sysctl.pair: {vm.dirty: {at_least: {bytes: 268435456}}}",
        "unknown pair": "sysctl.pair: {vm.drity: {value: {ratio: 10}}}",
        "odd kilobytes": "sysctl.pair: {vm.overcommit: {value: {bytes: 2000}}}",
        "word of THP": "thp: {enabled: sometimes}",
        "defer for enabled": "thp: {enabled: defer}",
        "bound on a word": "thp: {enabled: {at_least: madvise}}",
        "unknown THP target": "thp: {enable: madvise}",
        "pool": "hugepages: {node0/2048: 8}",
        "negative pages": "hugepages: {node0/2MB: -1}",
        "boost as yes": "cpu: {boost: 'yes'}",
        "unknown CPU target": "cpu: {governer: performance}",
        "another placement": "irq: {'*': remote}",
        "an interface": "irq: {eth0: local}",
        "bound on a placement": "irq: {'*': {at_least: local}}",
        "module alone": "module: {amdgpu: 1}",
        "parameter as a mapping": "module: {amdgpu/noretry: {value: {a: 1}}}",
        "unknown limit": "limits: {slurmd.service/memlok: unlimited}",
        "at least unlimited": "limits: {slurmd.service/memlock: {at_least: unlimited}}",
        "service that is stopped": "service: {irqbalance: stopped}",
        "a timer": "service: {fstrim.timer: inactive}",
        "parameter without effect": "cmdline: {pci-realloc: 'off'}",
        "THP token": "cmdline: {transparent_hugepage: sometimes}",
        "relative path": "file: {etc/a.conf: x}",
        "kernel file": "file: {/proc/sys/vm/swappiness: x}",
        "file without text": "file: {/etc/a.conf: {value: {mode: '0600'}}}",
    }.items()
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_schema_and_loader_refuse_typical_mistakes(tuner: Tuner, still: Path, tmp_path: Path, text: str) -> None:
    """An editor marks them while they are typed; lint says the same."""
    assert _both(tuner, still, tmp_path / "p.yaml", text) == (False, False)
