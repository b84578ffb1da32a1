"""`tuner fleet` over real hosts: drift found and grouped, hosts that nobody reaches, wrong keys, Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.fleet.conftest import Fleet

pytestmark = pytest.mark.xdist_group("fleet")

HOSTS = ("h1", "h2", "h3")


def test_the_whole_way(fleet: Fleet) -> None:
    """plan shows, apply makes, verify proves, rollback gives back; exit codes as on one host."""
    inventory, before = fleet.inventory("way"), fleet["h1"].sysctl("net.core.somaxconn")
    none = fleet.tuner("verify", "-i", inventory)
    assert none.code == 64, none.out
    assert "nothing applied yet" in none.out
    plan = fleet.tuner("plan", "-i", inventory, "--json")
    assert plan.code == 10 == plan.document["exit"], plan.err
    assert plan.document["hosts"]["h2"]["state"] == "differs"
    first = fleet.tuner("apply", "-i", inventory, "--json")
    assert first.code == 0, first.out
    assert {host["changed"] for host in first.document["hosts"].values()} == {True}
    (settings_id,) = {host["settings_id"] for host in first.document["hosts"].values()}
    again = fleet.tuner("apply", "-i", inventory, "--expect", settings_id[:8], "--json")
    assert {host["changed"] for host in again.document["hosts"].values()} == {False}
    verify = fleet.tuner("verify", "-i", inventory)
    assert verify.code == 0
    assert verify.out.splitlines()[0] == "fleet verify   3 hosts: 3 ok"
    assert "  3 hosts, equal: h[1-3]" in verify.out.splitlines()
    assert fleet.tuner("rollback", "-i", inventory, "-l", "h1").code == 0
    assert fleet["h1"].sysctl("net.core.somaxconn") == before
    assert fleet["h2"].sysctl("net.core.somaxconn") == "4500"


def test_drift_is_found_and_grouped(fleet: Fleet) -> None:
    """Hosts that differ alike stand together, with what differs and what is wanted; the others are equal."""
    inventory = fleet.inventory("drift")
    assert fleet.tuner("apply", "-i", inventory).code == 0
    fleet["h2"].run("sh", "-c", "echo 100 > /proc/sys/net/core/somaxconn")
    done = fleet.tuner("verify", "-i", inventory)
    assert done.code == 10
    line = "sysctl net.core.somaxconn 100 want 4500"
    assert {"  2 hosts, equal: h[1,3]", f"  differs: h2: {line}"} <= set(done.out.splitlines())
    fleet["h3"].run("sh", "-c", "echo 100 > /proc/sys/net/core/somaxconn")
    found = fleet.tuner("verify", "-i", inventory, "--json").document
    assert found["groups"] == [
        {"hosts": "h1", "count": 1, "state": "ok", "difference": [], "settings": None},
        {"hosts": "h[2-3]", "count": 2, "state": "differs", "difference": [line], "settings": None},
    ]
    (difference,) = found["hosts"]["h2"]["differences"]
    assert (difference["running"], difference["want"], difference["state"]) == ("100", "4500", "drift")


def test_a_file_that_others_may_not_read_is_in_no_output(fleet: Fleet) -> None:
    """What a secret file held before goes to no terminal and no log."""
    secret = "/etc/tuner-lab/secret.conf"
    fleet["h1"].run(
        "sh", "-c", "mkdir -p /etc/tuner-lab; umask 077; echo old-secret-of-h1 > /etc/tuner-lab/secret.conf"
    )
    inventory = fleet.inventory("secret")
    done = fleet.play("apply", inventory, "-l", "h1", "--diff", "-v")
    assert done.code == 0, done.out
    assert "old-secret-of-h1" not in done.out + done.err
    assert "-(not shown: mode 0600, 17 characters)\n+(not shown: mode 0600, 19 characters)" in done.out
    fleet.tuner("rollback", "-i", inventory, "-l", "h1")
    assert fleet["h1"].run("cat", secret) == "old-secret-of-h1\n"


def test_unreachable_and_wrong_key_are_unknown(fleet: Fleet) -> None:
    """Said by host and why; the others are judged; a key that is not the known one is never waved through."""
    lab = fleet.lab
    if "gone" not in (lab.place / "ssh_config").read_text():
        key = (lab.place / "h1/hostkey.pub").read_text()
        lab.know("gone", "198.18.77.250", key)
        with open(lab.place / "ssh_config", "a", encoding="ascii") as config:
            config.write(f"Host liar\n  HostName {fleet['h2'].address}\n  HostKeyAlias liar\n")
        with open(lab.place / "known_hosts", "a", encoding="ascii") as known:
            known.write(f"liar {' '.join(key.split()[:2])}\n")
    inventory = fleet.inventory("lost", h1="", gone="", liar="")
    before = (lab.place / "known_hosts").read_bytes(), fleet["h2"].written(), fleet["h2"].sysctl("net.core.somaxconn")
    done = fleet.tuner("apply", "-i", inventory, "-l", "h1,gone,liar", "--json")
    assert done.code == 12
    found = done.document
    assert found["hosts"]["h1"]["state"] == "ok" or found["hosts"]["h1"]["state"] == "not run"
    done = fleet.tuner("apply", "-i", inventory, "-l", "h1")
    assert done.code == 0
    done = fleet.tuner("verify", "-i", inventory, "--json")
    found = done.document
    assert done.code == 12 == found["exit"]
    assert found["hosts"]["h1"]["exit"] == 0
    assert sorted(found["unreachable"]) == ["gone", "liar"]
    assert re.search(
        r"port 22: (No route to host|Connection timed out|Host is unreachable)", found["hosts"]["gone"]["message"]
    )
    assert found["hosts"]["liar"]["message"].startswith("its host key is not the one that is known")
    assert (lab.place / "known_hosts").read_bytes() == before[0]
    assert (fleet["h2"].written(), fleet["h2"].sysctl("net.core.somaxconn")) == before[1:]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as a terminal leaves it: what was started in the background ignores it, and so do its children."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_says_which_hosts_are_done(fleet: Fleet) -> None:
    """A host that hangs does not hold the operator: the others' results stand, nothing is left behind."""
    with open(fleet.lab.place / "ssh_config", "a", encoding="ascii") as config:
        config.write("Host hung\n  ProxyCommand sleep 300\n")
    inventory = fleet.inventory("hung", h1="", hung="")
    assert fleet.tuner("apply", "-i", inventory, "-l", "h1").code == 0
    process = fleet.start(sys.executable, "-m", "tuner", "fleet", "verify", "-i", inventory, "--json")
    assert process.stderr is not None
    assert process.stderr.readline() == "h1: ok (1/2)\n"
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 15
    assert process.returncode == 12, err
    found = json.loads(out)
    assert found["stopped"] == "SIGINT"
    assert found["hosts"]["h1"]["state"] == "ok"
    assert found["hosts"]["hung"]["state"] == "unknown"
    assert "stopped by SIGINT" in found["hosts"]["hung"]["message"]
    assert not list(fleet.lab.place.glob("tuner-fleet-*"))
