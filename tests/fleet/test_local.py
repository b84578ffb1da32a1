"""`tuner fleet` through the real ansible-runner, over hosts that are this machine: what the user's own files do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import check_schema
from tests.test_packaging import REPO

pytest.importorskip("ansible_runner")

INVENTORY = f"""all:
  hosts: {{a: , b: }}
  vars:
    ansible_connection: local
    ansible_python_interpreter: {sys.executable}
    tuner_become: false
"""


def fleet(place: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Called in a folder with an inventory and an ansible.cfg of the user, by their names there."""
    (place / "hosts.yml").write_text(INVENTORY, encoding="utf-8")
    (place / "ansible.cfg").write_text("[defaults]\nstrategy = free\nstdout_callback = oneline\n", encoding="utf-8")
    environment = {**os.environ, "HOME": str(place), "PYTHONPATH": str(REPO), "TMPDIR": str(place), **env}
    return subprocess.run(
        [sys.executable, "-m", "tuner", "fleet", *words, "-i", "hosts.yml"],
        cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_an_inventory_by_its_name_in_this_folder(tmp_path: Path) -> None:
    """Every host is asked, under a strategy and a callback of the user's too; stdout is the document alone."""
    done = fleet(tmp_path, "plan", "--set", "sysctl:vm.swappiness=1", "--json", ANSIBLE_STDOUT_CALLBACK="oneline")
    found = json.loads(done.stdout)
    check_schema(found)
    assert {name: host["state"] for name, host in found["hosts"].items()} == {"a": "bad input", "b": "bad input"}
    assert done.returncode == 64
    (group,) = found["groups"]
    assert "profile" in group["difference"][0]
    assert "; hint: the variables tuner_" in group["difference"][0]
    assert not list(tmp_path.glob("tuner-fleet-*"))


def test_a_run_that_tells_of_no_host_is_an_error(tmp_path: Path) -> None:
    """A setting that Ansible refuses is said, and no host counts as not run for others' sake."""
    done = fleet(tmp_path, "verify", ANSIBLE_FORKS="none")
    assert done.returncode in (12, 64)
    assert "not run" not in done.stdout
    assert "Traceback" not in done.stderr
    assert "hint: " in done.stderr
