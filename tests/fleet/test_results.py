"""Events of Ansible as results: states, exit codes, groups, table, document; and what is refused before a run."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Result, check_schema
from tuner.errors import Exit
from tuner.fleet import ansible, results
from tuner.run import Stop
from tuner.shipped import folder

DRIFT = {
    "state": "drift", "knob": "hugepages", "target": "node0/2MB", "running": "0", "want": "2048", "why": "",
}  # fmt: skip
HELD = {
    "state": "held", "knob": "cmdline", "target": "iommu", "running": "absent", "want": "pt", "why": "boot",
}  # fmt: skip
LINE = "hugepages node0/2MB 0 want 2048"
CHANGED_KEY = """Failed to connect to the host via ssh: @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key verification failed."""
"""As OpenSSH 9.2 says it and Ansible passes it on."""


def event(kind: str, host: str, action: str = "tuner", **res: Any) -> dict[str, Any]:
    """One event as ansible-runner writes it."""
    return {"event": kind, "event_data": {"host": host, "task_action": action, "res": res}}


def nodes(*events: dict[str, Any], names: list[str] | None = None, why: str = "") -> list[results.Node]:
    found = results.Results(names or sorted({e["event_data"]["host"] for e in events}))
    for one in events:
        found.hear(one)
    return found.all(why)


def many(count: int, *differing: int) -> list[results.Node]:
    """node001 ... of which some lack huge pages."""
    made = []
    for number in range(1, count + 1):
        name, bad = f"node{number:03d}", number in differing
        kind = "runner_on_failed" if bad else "runner_on_ok"
        made.append(event(kind, name, exit=10 if bad else 0, differences=[DRIFT] if bad else [], msg="differs"))
    return nodes(*made)


def test_hosts_are_grouped_by_what_differs() -> None:
    """The sentence of an operator: so many are equal, these two differ, by this."""
    found = many(314, 17, 33)
    assert results.lines("verify", found, "") == [
        "fleet verify   314 hosts: 312 ok, 2 differ",
        "",
        "  312 hosts, equal: node[001-016,018-032,034-314]",
        f"  2 hosts, differ: node[017,033]: {LINE}",
    ]
    assert results.exit_of(found) == Exit.DIFFERS


def test_hosts_that_want_different_things_are_not_called_equal() -> None:
    """A rollout that stopped half-way: all are as they were applied, and not as each other."""
    ids = {"a": "3f9c1e2a" + "0" * 56, "b": "3f9c1e2a" + "0" * 56, "c": "77aa0011" + "0" * 56}
    found = nodes(*(event("runner_on_ok", name, exit=0, settings_id=ids[name]) for name in ids))
    assert results.lines("verify", found, "")[2:] == [
        "  2 hosts, equal: a,b   settings 3f9c1e2a",
        "  equal: c   settings 77aa0011",
    ]
    document = results.document("verify", found, ["hosts.yml"], "")
    assert [group["settings"] for group in document["groups"]] == ["3f9c1e2a", "77aa0011"]


def test_hosts_that_differ_otherwise_are_apart() -> None:
    """The same setting with another value is another difference; unsupported settings are none."""
    other = {**DRIFT, "running": "1024"}
    lacking = {**DRIFT, "state": "unsupported"}
    found = nodes(
        event("runner_on_failed", "a", exit=10, differences=[DRIFT]),
        event("runner_on_failed", "b", exit=10, differences=[other]),
        event("runner_on_failed", "c", exit=10, differences=[DRIFT, lacking]),
        event("runner_on_ok", "d", exit=0, differences=[lacking]),
        event("runner_on_ok", "e", exit=0, differences=[]),
    )
    assert [(g.names, g.difference) for g in results.groups(found)] == [
        (("d", "e"), ()),
        (("a", "c"), (LINE,)),
        (("b",), ("hugepages node0/2MB 1024 want 2048",)),
    ]


@pytest.mark.parametrize(
    ("one", "state", "code"),
    [
        (event("runner_on_ok", "n", exit=0), "ok", 0),
        (event("runner_on_failed", "n", exit=11, msg="hardware missing"), "missing", 11),
        (event("runner_on_failed", "n", exit=12, msg="could not tell"), "unknown", 12),
        (event("runner_on_ok", "n", exit=13), "pending", 13),
        (event("runner_on_ok", "n", exit=14), "held", 14),
        (event("runner_on_failed", "n", exit=0, differences=[HELD], msg="held"), "held", 14),
        (event("runner_on_failed", "n", exit=20, msg="x; all was undone"), "undone", 20),
        (event("runner_on_failed", "n", exit=21, msg="x"), "not restored", 21),
        (event("runner_on_failed", "n", exit=30, msg="another run"), "locked", 30),
        (event("runner_on_failed", "n", exit=31, msg="not for this host"), "wrong host", 31),
        (event("runner_on_failed", "n", exit=64, msg="bad"), "bad input", 64),
        (event("runner_on_failed", "n", exit=1, msg="ended with 1"), "failed", 12),
        (event("runner_on_failed", "n", msg="MODULE FAILURE", module_stderr="boom"), "failed", 12),
        (event("runner_on_failed", "n", action="ansible.builtin.command", msg="no"), "failed", 12),
        (event("runner_on_unreachable", "n", msg="no route"), "unreachable", 12),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_end_has_its_state_and_code(one: dict[str, Any], state: str, code: int) -> None:
    """The exit codes of one host; who could not be asked is unknown, and so is a crash."""
    (node,) = nodes(one)
    assert (node.state, int(node.code)) == (state, code)
    assert node.lines() or code in (0, 13, 14)


def test_the_worst_code_wins_as_on_one_host() -> None:
    """64, 30, 31 > 21 > 20 > 11 > 10 > 12 > 13 > 14 > 0."""
    order = [64, 30, 31, 21, 20, 11, 10, 12, 13, 14, 0]
    for place, code in enumerate(order):
        kinds = {c: "runner_on_failed" if c else "runner_on_ok" for c in order[place:]}
        found = nodes(*(event(kind, f"n{c}", exit=c, msg="x") for c, kind in kinds.items()))
        assert int(results.exit_of(found)) == code


def test_hosts_that_never_answered_are_unknown() -> None:
    """Not asked, and asked without an answer, are two things; both count."""
    begun = {"event": "runner_on_start", "event_data": {"host": "b", "task_action": "tuner"}}
    found = nodes(event("runner_on_ok", "a", exit=0), begun, names=["a", "b", "c"], why="stopped by SIGINT")
    assert [(n.name, n.state, int(n.code)) for n in found] == [
        ("a", "ok", 0),
        ("b", "unknown", 12),
        ("c", "not run", 12),
    ]
    text = "\n".join(results.lines("apply", found, "SIGINT"))
    assert "Stopped by SIGINT. Done: a" in text
    assert "May still be at work: b: " in text


def test_other_tasks_and_other_hosts_do_not_count() -> None:
    """Only the end of our own task is a result; a failure of any task is one."""
    found = nodes(event("runner_on_ok", "a", action="ansible.builtin.stat", exit=0), names=["a"])
    assert found[0].exit is None
    found = nodes(event("runner_on_ok", "localhost", exit=0), event("runner_on_ok", "a", exit=0), names=["a"])
    assert [n.name for n in found] == ["a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CHANGED_KEY, "its host key is not the one that is known; ssh to it shows which. Nothing was sent"),
        ("Failed to connect to the host via ssh: Host key verification failed.\r\n",
         "its host key is not the one that is known; ssh to it shows which. Nothing was sent"),
        ("Failed to connect to the host via ssh: ssh: connect to host 198.18.0.9 port 22: No route to host",
         "port 22: No route to host"),
        ("Task failed: Failed to connect to the host via ssh: ssh: connect to host 192.0.2.7 port 22: "
         "Network is unreachable", "port 22: Network is unreachable"),
        ("Failed to connect to the host via ssh: ssh: Could not resolve hostname n7: Name or service not known",
         "Could not resolve hostname n7: Name or service not known"),
        ("", "no answer"),
    ],
    ids=["changed key", "unknown key", "no route", "no network", "no name", "nothing"],
)  # fmt: skip
def test_why_a_host_is_unreachable(text: str, said: str) -> None:
    assert results.unreached(text) == said


def test_hosts_behind_a_dead_switch_are_one_line() -> None:
    """Addresses differ, the reason does not: as Ansible 2.19 passes on what OpenSSH 9.2 says."""
    text = (
        "Task failed: Failed to connect to the host via ssh: ssh: connect to host 192.0.2.{} port 22: No route to host"
    )
    found = nodes(*(event("runner_on_unreachable", f"n{i:03d}", msg=text.format(i)) for i in range(1, 201)))
    (group,) = results.groups(found)
    assert (len(group.names), group.difference) == (200, ("port 22: No route to host",))


SAID = "Failed to connect to the host via ssh: "
NAMING = [
    ("runner_on_unreachable", SAID + "ssh: Could not resolve hostname {}: Name or service not known",
     "Could not resolve hostname HOST: Name or service not known"),
    ("runner_on_unreachable", SAID + "Connection closed by {at} port 22", "Connection closed by HOST port 22"),
    ("runner_on_unreachable", SAID + "root@{at}: Permission denied (publickey,password).",
     "root@HOST: Permission denied (publickey,password)"),
    ("runner_on_failed", "/etc/tuner/host.d/{}.yaml:3: no key 'setings'; hint: settings",
     "/etc/tuner/host.d/HOST.yaml:3: no key 'setings'; hint: settings"),
    ("runner_on_failed", 'Data could not be sent to remote host "{}"', 'Data could not be sent to remote host "HOST"'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "line"), NAMING, ids=["name", "closed", "denied", "file", "data"])
@pytest.mark.parametrize("upper", [False, True])
def test_hosts_that_say_the_same_of_themselves_are_one_group(kind: str, text: str, line: str, upper: bool) -> None:
    """A name service that is down: one block; a host alone keeps its words. OpenSSH writes names in lower case."""
    names = [f"{'N' if upper else 'n'}{number}" for number in (1, 2, 11)]
    at = {name: f"192.0.2.{name[1:]}" for name in names}
    said = [event(kind, name, exit=64, msg=text.format(name.lower(), at=at[name])) for name in names]
    found = [dataclasses.replace(node, address=at[node.name]) for node in nodes(*said)]
    (group,) = results.groups(found)
    assert (group.names, group.difference) == (tuple(sorted(names)), (line,))
    (alone,) = results.groups(found[:1])
    assert alone.difference == (found[0].message,)
    document = results.document("verify", found, ["i"], "")
    assert [host["message"] for host in document["hosts"].values()] == [node.message for node in found]


def test_only_its_own_name_is_taken_out() -> None:
    """n1 is not in n12 nor in n1-ib, an address not in a longer one; another host that is named stays, values too."""
    text = "n12 n1-ib xn1 192.0.2.10 n1.cluster: no route to jump"
    (node,) = nodes(event("runner_on_unreachable", "n1", msg=text))
    assert dataclasses.replace(node, address="192.0.2.1").alike() == (text.replace("n1.", "HOST."),)
    differs = {**DRIFT, "running": "n1", "want": "n2"}
    (node,) = nodes(event("runner_on_failed", "n1", exit=10, differences=[differs]))
    assert node.alike() == node.lines() == ("hugepages node0/2MB n1 want n2",)
    apart = nodes(*(event("runner_on_unreachable", n, msg=f"no route to jump{n[1]}") for n in ("n1", "n2")))
    assert len(results.groups(apart)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "state is planned but all of the following are missing: profile",
        "argument 'site' is of type list and we were unable to convert to dict: "
        "<class 'list'> cannot be converted to a dict",
        "missing required arguments: release",
        "Task failed: Module failed: state is planned but all of the following are missing: profile",
    ],
    ids=["no profile", "site", "required", "with what Ansible puts before it"],
)
def test_an_inventory_that_gives_no_arguments_is_bad_input(text: str) -> None:
    """As Ansible 2.19 says it of a host without tuner_profile, of a site that is a list."""
    (node,) = nodes(event("runner_on_failed", "n", msg=text))
    assert (node.state, int(node.code)) == ("bad input", 64)
    assert "; hint: the variables tuner_" in node.message


garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(["exit", "differences", "counts", "generation", "settings_id", "changed", "msg", "stderr"])


@given(st.dictionaries(fields, garbage), st.sampled_from(["runner_on_ok", "runner_on_failed", "runner_on_unreachable"]))
def test_whatever_a_node_answers_the_others_count(res: dict[str, Any], kind: str) -> None:
    """A node is not trusted: any JSON gives a result of that node, and no answer of ours is `ok` by it alone."""
    found = nodes(event("runner_on_ok", "a", exit=0), event(kind, "b", **res))
    assert [n.name for n in found] == ["a", "b"]
    assert found[0].state == "ok"
    assert found[1].code != Exit.OK or (kind == "runner_on_ok" and res["exit"] == 0)
    assert results.lines("verify", found, "")
    results.document("verify", found, ["i"], "")


@pytest.mark.parametrize(
    "text", ["Missing sudo password", "Task failed: Incorrect sudo password", "sudo: a password is required"]
)
def test_a_password_that_sudo_wants_is_said(text: str) -> None:
    """As Ansible's sudo plugin and sudo itself say it."""
    (node,) = nodes(event("runner_on_failed", "n", msg=text))
    assert node.message.startswith("sudo wants a password")


def document() -> dict[str, Any]:
    """A document with every kind of row."""
    found = [*many(3, 2), *nodes(event("runner_on_unreachable", "x", msg="no route"))]
    return results.document("verify", found, ["inventory"], "")


def test_the_document_is_as_its_schema_says() -> None:
    """Also what must not pass: other words, other types, a field that is missing."""
    made = document()
    check_schema(made)
    assert made["unreachable"] == ["x"]
    assert [g["hosts"] for g in made["groups"]] == ["node[001,003]", "node002", "x"]
    schema = json.loads((folder("schemas") / "tuner.fleet.1.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    wrong: list[tuple[tuple[str | int, ...], Any]] = [
        (("verb",), "detect"), (("exit",), 1), (("hosts",), {}), (("hosts", "x", "state"), "fine"),
        (("hosts", "x", "exit"), None), (("groups", 0, "count"), 0), (("groups", 0, "difference"), ""),
        (("stopped",), "no"), (("unreachable",), None), (("hosts", "x", "settings_id"), "3f9c1e2a"),
    ]  # fmt: skip
    for path, value in wrong:
        broken = copy.deepcopy(made)
        place: Any = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        assert not validator.is_valid(broken), path
    for name in made:
        assert not validator.is_valid({k: v for k, v in made.items() if k != name}), name


# --- before a run -------------------------------------------------------------------------------------------------

Call = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with each playbook that would be run; none is."""
    pytest.importorskip("ansible")
    ran: list[str] = []

    def play(name: str, *_: object) -> str:
        ran.append(name)
        return "no run in this test"

    monkeypatch.setattr(ansible, "play", play)
    return ran


def test_where_hosts_are_reached_is_asked_for_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuner: Call
) -> None:
    """ansible_host of the inventory, of groups and hosts; asked once, and only where several hosts have failed."""
    pytest.importorskip("ansible")
    file = tmp_path / "hosts.yml"
    rows = "".join(f"    n{n}: {{ansible_host: 192.0.2.{n}}}\n" for n in (1, 2)) + "    n3: {ansible_host: 5}\n"
    file.write_text(f"all:\n  hosts:\n{rows}", encoding="utf-8")
    told, asked = 1, list[ansible.Call]()

    def play(name: str, call: ansible.Call, heard: Callable[[Any], bool], stop: Stop) -> str:
        text = "Failed to connect to the host via ssh: Connection closed by 192.0.2.{} port 22"
        assert all(heard(event("runner_on_unreachable", f"n{n}", msg=text.format(n))) for n in range(1, told + 1))
        assert all(heard(event("runner_on_ok", f"n{n}", exit=0)) for n in range(told + 1, 4))
        return ""

    def addresses(call: ansible.Call) -> dict[str, str]:
        asked.append(call)
        return real(call)

    real = ansible.addresses
    monkeypatch.setattr(ansible, "play", play)
    monkeypatch.setattr(ansible, "addresses", addresses)
    assert "unreachable: n1: Connection closed by 192.0.2.1 port 22" in tuner("fleet", "verify", "-i", file).out
    assert asked == []
    told = 2
    done = tuner("fleet", "verify", "-i", file, "-f", "3")
    assert "  2 hosts, unreachable: n[1-2]: Connection closed by HOST port 22" in done.out.splitlines()
    assert len(asked) == 1
    assert real(asked[0]) == {"n1": "192.0.2.1", "n2": "192.0.2.2"}


def test_addresses_that_cannot_be_told_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No ansible-inventory, or one that says something else: the names alone are taken out."""
    program = tmp_path / "ansible-inventory"
    monkeypatch.setattr(ansible, "environment", lambda: {"PATH": str(tmp_path)})
    assert ansible.addresses(ansible.Call(("a,",))) == {}
    for text in ("", "[]", "{}", '{"_meta": {"hostvars": []}}', '{"_meta": {"hostvars": {"a": 5}}}'):
        program.write_text(f"#!/bin/sh\necho '{text}'\n", encoding="utf-8")
        program.chmod(0o755)
        assert ansible.addresses(ansible.Call(("a,",))) == {}


def test_playbooks_say_where_they_are(tuner: Call) -> None:
    """A line for people, one document under --json."""
    document = tuner("fleet", "playbooks", "--json").document
    check_schema(document)
    assert document == {"schema": "tuner.playbooks/1", "path": str(folder("playbooks"))}
    assert tuner("fleet", "playbooks").out == f"{folder('playbooks')}\n"


def inventory(count: int) -> str:
    return ",".join(f"n{number:02d}" for number in range(1, count + 1)) + ","


@pytest.mark.parametrize("verb", ["apply", "rollback"])
def test_more_than_sixteen_hosts_need_a_limit(verb: str, run: list[str], tuner: Call) -> None:
    """Refused before anything runs, with the hosts in the hint."""
    more = ["--profile", "linux-gpu"] if verb == "apply" else []
    done = tuner("fleet", verb, "-i", inventory(17), *more)
    assert done.code == 64
    assert f"{verb} on 17 hosts without --limit" in done.err
    assert "n[01-17]" in done.err
    assert run == []
    for words in (["-i", inventory(16)], ["-i", inventory(17), "-l", "all"]):
        assert tuner("fleet", verb, *words, *more).code == 12
    assert run == [verb, verb]


@pytest.mark.parametrize("verb", ["plan", "verify"])
def test_looking_needs_no_limit(verb: str, run: list[str], tuner: Call) -> None:
    assert tuner("fleet", verb, "-i", inventory(17)).code == 12
    assert run == [verb]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["-i", "no/such/inventory"], "no such inventory"),
        (["-i", "a,b,", "-l", "c"], "give no host"),
        (["-i", "a,", "-f", "0"], "no number of hosts"),
        (["-i", "a,", "--become-password-file", "no/such"], "no such file"),
        ([], "-i/--inventory"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(words: list[str], what: str, run: list[str], tuner: Call) -> None:
    done = tuner("fleet", "verify", *words)
    assert done.code == 64
    assert what in done.err
    assert "hint: " in done.err
    assert run == []


def test_an_empty_or_broken_inventory_is_said(tmp_path: Path, run: list[str], tuner: Call) -> None:
    """Ansible itself only warns of it."""
    for text in ("", "all: [", "[group]\n"):
        file = tmp_path / "hosts.yml"
        file.write_text(text, encoding="utf-8")
        done = tuner("fleet", "verify", "-i", file)
        assert done.code == 64
        assert "give no host" in done.err


def test_without_ansible_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tuner: Call) -> None:
    monkeypatch.setattr(ansible, "environment", lambda: {"PATH": "/nowhere"})
    done = tuner("fleet", "verify", "-i", "a,")
    assert done.code == 64
    assert "ansible: is not installed" in done.err
    assert "pip install 'gpu-node-tuner[fleet]'" in done.err


class Terminal(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
def test_progress_on_a_terminal_is_one_line_else_a_line_each(
    stream: io.StringIO, run: list[str], monkeypatch: pytest.MonkeyPatch, tuner: Call
) -> None:
    """Done, failed and the time left; stdout has the answer alone."""
    events = [event("runner_on_ok", "a", exit=0), event("runner_on_failed", "b", exit=10, msg="x")]

    def play(name: str, call: ansible.Call, heard: Callable[[Any], bool], stop: Stop) -> str:
        assert all(heard(one) for one in events)
        return ""

    monkeypatch.setattr(ansible, "play", play)
    monkeypatch.setattr("sys.stderr", stream)
    done = tuner("fleet", "verify", "-i", "a,b,c,")
    assert done.code == 10
    assert done.out.startswith("fleet verify   3 hosts: ")
    said = stream.getvalue()
    if stream.isatty():
        assert re.search(r"\r\x1b\[Kfleet verify: 3 hosts, 2 done, 1 failed, about \d+ s left", said)
        assert said.endswith("\r\x1b[K")
        assert "\n" not in said
    else:
        assert said == "a: ok (1/3)\nb: differs (2/3)\n"


def test_host_keys_are_checked_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ansible-runner would switch it off; the user's own ansible.cfg and environment are kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.delenv(ansible.CHECKING, raising=False)
    if not Path("/etc/ansible/ansible.cfg").exists():
        assert ansible.environment()[ansible.CHECKING] == "True"
    (tmp_path / "ansible.cfg").write_text("[defaults]\nhost_key_checking = False\n", encoding="utf-8")
    assert ansible.environment()[ansible.CHECKING] == "False"
    monkeypatch.setenv(ansible.CHECKING, "yes")
    assert ansible.environment()[ansible.CHECKING] == "yes"
    monkeypatch.delenv(ansible.CHECKING)
    tmp_path.chmod(0o777)
    if not Path("/etc/ansible/ansible.cfg").exists():
        assert ansible.environment()[ansible.CHECKING] == "True"
