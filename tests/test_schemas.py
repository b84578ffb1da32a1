"""The documents under --json: what every schema promises, and that a document which breaks the promise is caught."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import Result, check_schema, write_profile
from tuner.shipped import folder

Document = dict[str, Any]
Tuner = Callable[..., Result]

PROMISED: dict[str, tuple[str, ...]] = {
    "tuner.plan/1": ("schema", "id", "settings_id", "profile", "host", "verdicts", "changes", "counts"),
    "tuner.verify/1": ("schema", "id", "settings_id", "profile", "host", "verdicts", "counts", "state"),
    "tuner.apply/1": ("schema", "generation", "settings_id", "changed", "held", "undone", "outcomes"),
    "tuner.rollback/1": ("schema", "host", "undone", "not_restored", "outcomes"),
    "tuner.status/1": (
        "schema",
        "host",
        "off",
        "settings_id",
        "who",
        "when",
        "state",
        "skips",
        "drained",
        "hung",
        "units",
        "reboot_due",
    ),
    "tuner.explain/1": ("schema", "host", "knob", "target", "settings"),
    "tuner.history/1": ("schema", "host", "generations"),
    "tuner.hosts/1": ("schema", "hosts"),
    "tuner.host/1": ("schema", "name", "root", "faults"),
    "tuner.off/1": ("schema", "off"),
    "tuner.profile/1": ("schema", "name", "summary", "overlays", "sets", "match", "host", "settings_id", "settings"),
    "tuner.profiles/1": ("schema", "host", "profiles"),
    "tuner.lint/1": ("schema", "host", "files", "findings"),
    "tuner.profile-diff/1": ("schema", "host", "one", "other", "only_one", "only_other", "different"),
    "tuner.detect/1": (
        "schema",
        "host",
        "gpus",
        "nics",
        "rails",
        "switches",
        "numa",
        "profiles",
        "unread",
        "topology",
        "disagreements",
    ),
    "tuner.capture/1": ("schema", "host"),
    "tuner.image/1": ("schema", "host", "apply", "persist"),
    "tuner.demo/1": ("schema", "steps", "restored"),
    "tuner.watch/1": (
        "schema",
        "when",
        "event",
        "exit",
        "host",
        "profile",
        "settings_id",
        "generation",
        "state",
        "counts",
    ),
    "tuner.reassert/1": (
        "schema",
        "run",
        "host",
        "skipped",
        "generation",
        "settings_id",
        "profile",
        "changed",
        "outcomes",
        "held",
        "left",
        "rest",
    ),
    "tuner.persist/1": ("schema", "host", "written", "removed", "left", "after"),
    "tuner.slurm-prolog/1": ("schema", "host", "decision", "said"),
    "tuner.slurm-install/1": ("schema", "host", "written", "removed", "left", "after", "findings", "lines"),
    "tuner.slurm-skip/1": ("schema", "host", "skips"),
    "tuner.slurm-reason/1": ("schema", "host", "drained", "said"),
    "tuner.fleet/1": ("schema", "verb", "hosts", "groups", "unreachable"),
    "tuner.playbooks/1": ("schema", "path"),
    "tuner.bundle/1": ("schema", "path", "version", "release", "digest", "size"),
    "tuner.error/1": ("schema", "exit", "errors"),
    "tuner.applied/1": ("schema", "generation", "settings_id", "profile", "who", "when", "settings", "held"),
}
"""Fields that may never be renamed within schema number 1."""

HOST = ("name", "kind", "root", "kernel")
OUTCOME = ("knob", "target", "before", "after", "result", "why")
SETTING = ("knob", "target", "want", "origin", "why", "source", "required")
VERDICT = (*SETTING, "running", "next_boot", "state", "disruption")
CHANGE = ("knob", "target", "before", "want", "disruption", "held")

INNER: list[tuple[str, str, tuple[str, ...]]] = [
    ("tuner.plan/1", "host", HOST),
    ("tuner.verify/1", "host", HOST),
    ("tuner.plan/1", "verdicts", VERDICT),
    ("tuner.verify/1", "verdicts", VERDICT),
    ("tuner.plan/1", "changes", CHANGE),
    ("tuner.apply/1", "held", CHANGE),
    ("tuner.apply/1", "outcomes", OUTCOME),
    ("tuner.rollback/1", "outcomes", OUTCOME),
    ("tuner.explain/1", "settings", SETTING),
    ("tuner.profile/1", "settings", SETTING),
    ("tuner.profiles/1", "profiles", ("name", "kind", "origin", "summary", "for", "match", "fits", "why")),
    ("tuner.lint/1", "findings", ("level", "where", "what", "hint")),
    ("tuner.profile-diff/1", "only_other", SETTING),
    ("tuner.detect/1", "nics", ("pci", "netdev", "rdma", "driver", "numa", "link")),
    ("tuner.reassert/1", "held", CHANGE),
    ("tuner.status/1", "units", ("name", "path", "state", "enabled", "result")),
    ("tuner.persist/1", "units", ("name", "path", "state", "enabled", "result")),
    ("tuner.persist/1", "after", ("action", "done", "why")),
    ("tuner.slurm-install/1", "findings", ("level", "what", "do", "line")),
    ("tuner.slurm-skip/1", "skips", ("knob", "target", "since", "until", "who", "why")),
    ("tuner.error/1", "errors", ("where", "what", "hint")),
]

WHEN = "2026-11-30T03:00:00+00:00"

WRONG: list[tuple[str, tuple[str | int, ...], Any]] = [
    ("tuner.plan/1", ("verdicts", 0, "state"), "fine"),
    ("tuner.plan/1", ("verdicts", 0, "disruption"), "mild"),
    ("tuner.plan/1", ("verdicts", 0, "required"), "no"),
    ("tuner.plan/1", ("verdicts", 0, "running_why"), "needs root"),
    ("tuner.plan/1", ("verdicts", 0, "want"), {"exactly": 1}),
    ("tuner.plan/1", ("verdicts", 0, "want"), {"value": 1, "at_least": 1}),
    ("tuner.plan/1", ("verdicts", 0, "next_boot"), 16777216),
    ("tuner.plan/1", ("counts",), {"to change": 3}),
    ("tuner.plan/1", ("counts",), {"ok": 0}),
    ("tuner.plan/1", ("host", "kind"), "container"),
    ("tuner.plan/1", ("settings_id",), "7dd31425"),
    ("tuner.plan/1", ("changes", 0, "held"), None),
    ("tuner.plan/1", ("schema",), "tuner.plan/2"),
    ("tuner.verify/1", ("state",), "broken"),
    ("tuner.verify/1", ("generation",), "1"),
    ("tuner.apply/1", ("changed",), True),
    ("tuner.apply/1", ("undone",), None),
    ("tuner.apply/1", ("generation",), 0),
    ("tuner.apply/1", ("outcomes", 0, "result"), "ok"),
    ("tuner.rollback/1", ("undone",), []),
    ("tuner.rollback/1", ("outcomes", 0, "result"), "restored"),
    ("tuner.status/1", ("settings_id",), None),
    ("tuner.status/1", ("when",), "yesterday"),
    ("tuner.status/1", ("units", 0, "state"), "fine"),
    ("tuner.status/1", ("reboot_due",), True),
    ("tuner.status/1", ("reboot_due",), ["", ""]),
    ("tuner.playbooks/1", ("path",), "playbooks"),
    ("tuner.history/1", ("generations", 0, "state"), "done"),
    ("tuner.reassert/1", ("run",), "rollback"),
    ("tuner.reassert/1", ("skipped",), ""),
    ("tuner.reassert/1", ("changed",), None),
    ("tuner.persist/1", ("units", 0, "state"), "fine"),
    ("tuner.persist/1", ("units", 0, "enabled"), "yes"),
    ("tuner.persist/1", ("written",), ["relative"]),
    ("tuner.slurm-prolog/1", ("decision",), "wait"),
    ("tuner.slurm-install/1", ("findings", 0, "level"), "fatal"),
    ("tuner.slurm-install/1", ("lines",), ["no assignment"]),
    ("tuner.slurm-skip/1", ("skips", 0, "until"), "tomorrow"),
    ("tuner.slurm-reason/1", ("drained",), {"reason": "x" * 81, "node": "n1", "job": "", "when": WHEN}),
    ("tuner.bundle/1", ("path",), "tuner.tar.gz"),
    ("tuner.bundle/1", ("digest",), "0123abcd"),
    ("tuner.error/1", ("exit",), 2),
    ("tuner.error/1", ("errors",), []),
    ("tuner.profile/1", ("settings", 0, "want"), {"exactly": 1}),
    ("tuner.profile/1", ("settings_id",), "7dd31425"),
    ("tuner.profiles/1", ("profiles", 0, "kind"), "layer"),
    ("tuner.profiles/1", ("profiles", 0, "fits"), "yes"),
    ("tuner.lint/1", ("findings", 0, "level"), "fatal"),
    ("tuner.profile-diff/1", ("only_other",), None),
    ("tuner.applied/1", ("held",), [["sysctl"]]),
    ("tuner.applied/1", ("readings", 0), {"seen": 1, "absent": "both"}),
]
"""A document, the place in it, and what must not stand there."""

EVERY_WANT = """
sysctl:
  net.core.rmem_max: {at_least: 16777216}
  vm.swappiness: {value: 1}
  net.ipv4.tcp_rmem: "4096 131072 33554432"
  net.core.no_such_key: 1
sysctl.pair:
  vm.dirty: {value: {bytes: 268435456}}
thp:
  enabled: {one_of: [madvise, always]}
hugepages:
  node0/2MB: {at_least: 8}
file:
  /etc/sysctl.d/50-example.conf: "# text\\n"
"""


NOT_THERE = """
sysctl:
  net.core.no_such_key: 1
file:
  /etc/sysctl.d/50-not-there.conf: null
"""


@pytest.fixture
def documents(tuner: Tuner, root: Path, tmp_path: Path) -> dict[str, Document]:
    """One document of every schema, as the verbs print them over one recorded host."""
    profile = write_profile(tmp_path / "every.yaml", EVERY_WANT)
    calls: list[list[object]] = [
        ["plan", "--root", root, "--profile", profile],
        ["apply", "--root", root, "--profile", profile, "--allow", "none"],
        ["verify", "--root", root],
        ["apply", "--root", root, "--boot"],
        ["persist", "install", "--root", root],
        ["status", "--root", root],
        ["history", "--root", root],
        ["explain", "sysctl:vm.swappiness", "--root", root],
        ["slurm", "prolog", "--root", root],
        ["slurm", "install", "--root", root],
        ["slurm", "skip", "thp", "--for", "2h", "--why", "a test", "--root", root],
        ["slurm", "reason", "--root", root],
        ["fleet", "bundle", tmp_path / "bundle"],
        ["fleet", "playbooks"],
        ["off", "--root", root, "--why", "a test"],
        ["detect", "--root", root],
        ["capture", tmp_path / "captured.host", "--root", root],
        ["profiles", "list", "--root", root],
        ["profiles", "show", profile, "--root", root],
        ["profiles", "lint", profile, "--root", root],
        ["profiles", "diff", profile, "linux-gpu", "--root", root],
    ]
    found = [tuner(*call, "--json").document for call in calls]
    found.append(json.loads((root / "etc/tuner/applied/current.json").read_text(encoding="utf-8")))
    found.append(tuner("rollback", "--root", root, "--json").document)
    found.append(tuner("rollback", "--root", root, "--json").document)
    found.append(tuner("host", "list", "--json").document)
    found.append(tuner("host", "copy", "plain-vm", tmp_path / "copy", "--json").document)
    return {document["schema"]: document for document in found}


def test_one_schema_for_every_document() -> None:
    """The shipped files are those of the table above, each a schema of draft 2020-12 that names itself."""
    shipped = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder("schemas").glob("*.json")}
    assert set(shipped) == {f"{name.replace('/', '.')}.json" for name in PROMISED}
    for file, schema in shipped.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["$id"] == file
        assert f"{schema['properties']['schema']['const'].replace('/', '.')}.json" == file


def test_documents_keep_what_is_promised(documents: dict[str, Document]) -> None:
    """Every verb's document has the promised fields, down to verdicts, changes, outcomes and settings."""
    elsewhere = {"tuner.demo/1", "tuner.watch/1", "tuner.image/1", "tuner.fleet/1"}
    assert set(documents) == set(PROMISED) - elsewhere, (
        "these are checked where the demo, the watch, images and fleets are tested"
    )
    for name, fields in PROMISED.items():
        if name not in documents:
            continue
        assert set(fields) <= set(documents[name]), name
        check_schema(documents[name])
    for name, place, fields in INNER:
        found = documents[name][place]
        rows = found if isinstance(found, list) else [found]
        assert rows, f"{name} {place}: nothing to look at"
        for row in rows:
            assert set(fields) <= set(row), f"{name} {place}"


def test_missing_or_renamed_fields_are_caught(documents: dict[str, Document]) -> None:
    """Without any one of the promised fields a document is refused; the same with the field under another name."""
    for name, fields in PROMISED.items():
        if name not in documents:
            continue
        for field in fields:
            _refused(name, _renamed(documents[name], field), field)
    for name, place, fields in INNER:
        for field in fields:
            broken = copy.deepcopy(documents[name])
            inner = broken[place]
            if isinstance(inner, list):
                inner[-1] = _renamed(inner[-1], field)
            else:
                broken[place] = _renamed(inner, field)
            _refused(name, broken, f"{place}.{field}")


def _renamed(document: Document, field: str) -> Document:
    return {f"{name}_" if name == field else name: value for name, value in document.items()}


def _refused(name: str, document: Document, what: str) -> None:
    schema = json.loads((folder("schemas") / f"{name.replace('/', '.')}.json").read_text(encoding="utf-8"))
    assert not jsonschema.Draft202012Validator(schema).is_valid(document), f"{name}: {what} went unnoticed"


def test_wrong_values_are_caught(documents: dict[str, Document]) -> None:
    """Words outside the closed sets, wrong types, and null where a value is promised."""
    for name, path, value in WRONG:
        broken = copy.deepcopy(documents[name])
        place: Any = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        _refused(name, broken, f"{path} = {value!r}")


def test_fields_may_be_added(documents: dict[str, Document]) -> None:
    """A later release may add fields anywhere: readers of today's schema still take the document."""
    for name, document in documents.items():
        more = {**copy.deepcopy(document), "of_a_later_release": 1}
        for place in [place for which, place, _ in INNER if which == name]:
            rows = more[place] if isinstance(more[place], list) else [more[place]]
            for row in rows:
                row["of_a_later_release"] = {"any": "thing"}
        check_schema(more)


def test_null_running_tells_unread_from_empty(tuner: Tuner, root: Path, tmp_path: Path) -> None:
    """`running` null with running_why = not read; a file that is not there is a value, so no running_why."""
    profile = write_profile(tmp_path / "p.yaml", NOT_THERE)
    verdicts = {
        v["knob"]: v for v in tuner("plan", "--root", root, "--profile", profile, "--json").document["verdicts"]
    }
    assert verdicts["sysctl"]["running"] is None
    assert verdicts["sysctl"]["running_why"]
    assert verdicts["sysctl"]["state"] == "unsupported"
    assert "running_why" not in verdicts["file"]
    assert verdicts["file"]["state"] == "ok"


def test_next_boot_is_a_value_or_null_with_its_reason(documents: dict[str, Document]) -> None:
    """Of every verdict, and lost or not predicted; what one setting holds is of its own shape."""
    for name in ("tuner.plan/1", "tuner.verify/1"):
        for verdict in documents[name]["verdicts"]:
            why = verdict["next_boot_why"]
            assert (verdict["next_boot"] is None) is bool(why), verdict["target"]
            assert not why or why.startswith(("lost: ", "not predicted")), why
    kept = {v["target"]: v for v in documents["tuner.verify/1"]["verdicts"]}["vm.swappiness"]
    assert (kept["next_boot"], kept["next_boot_by"]) == (kept["running"], "/etc/sysctl.d/99-zz-tuner.conf:4")


def test_status_of_an_untouched_host_is_all_null(tuner: Tuner, root: Path) -> None:
    """Nothing applied: no id, no person, no time, no state; still a document."""
    document = tuner("status", "--root", root, "--json").document
    for field in ("generation", "settings_id", "profile", "who", "when", "state", "off"):
        assert document[field] is None, field
    assert document["live"] == []


def test_one_document_on_stdout_also_for_errors(tuner: Tuner, root: Path) -> None:
    """A bad call prints tuner.error/1 alone on stdout, the line for people on stderr, and exits with what it says."""
    result = tuner("plan", "--root", root, "--profile", "no-such-profile", "--json")
    assert result.code == 64 == result.document["exit"]
    assert result.document["schema"] == "tuner.error/1"
    assert "no-such-profile" in result.document["errors"][0]["where"] + result.document["errors"][0]["what"]
    assert result.err.startswith("tuner: ")


def test_bad_usage_is_a_document_too(tuner: Tuner) -> None:
    """Also what the command line itself refuses: an option nobody knows."""
    result = tuner("plan", "--profle", "x", "--json")
    assert result.code == 64
    assert result.document["exit"] == 64
