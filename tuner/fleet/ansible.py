"""Our playbooks over an inventory by ansible-runner; what it does to host keys is taken back.

ansible-runner switches the check of host keys off unless the environment has ANSIBLE_HOST_KEY_CHECKING
(ansible_runner/config/_base.py, prepare_env). Here it stays as the user's own configuration has it, else on.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.errors import Exit, Problem, TunerError, bad_input
from tuner.run import Stop
from tuner.shipped import folder

HINT = "pip install 'gpu-node-tuner[fleet]' on the machine that reaches the nodes"
CHECKING = "ANSIBLE_HOST_KEY_CHECKING"
VAULT = "--vault-password-file"
LISTING = 120
"""Seconds that an inventory may take; some ask a cloud."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """One run over many hosts."""

    inventories: tuple[str, ...]
    limit: str = ""
    forks: int = 0
    options: tuple[str, ...] = ()
    """More options of ansible-playbook, such as --vault-password-file."""
    variables: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> list[str]:
        """As ansible and ansible-playbook take them."""
        words = [word for inventory in self.inventories for word in ("-i", inventory)]
        words += ["--limit", self.limit] if self.limit else []
        return [*words, *(["--forks", str(self.forks)] if self.forks else []), *self.options]


def environment() -> dict[str, str]:
    """Ansible beside our own interpreter comes first; the check of host keys is as the user set it, else on.

    What Ansible prints is for nobody: a callback of the user's choice does not stand between it and ansible-runner.
    """
    own = os.path.dirname(sys.executable)
    path = os.pathsep.join([own, os.environ.get("PATH", "/usr/bin:/bin")])
    checking = os.environ.get(CHECKING) or _configured() or "True"
    plain = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_STDOUT_CALLBACK": "default"}
    return {**os.environ, "PATH": path, CHECKING: checking, **plain}


def _configured() -> str:
    """host_key_checking of the ansible.cfg that Ansible takes: the first that is there; not from a folder of all."""
    places = ["ansible.cfg", os.path.expanduser("~/.ansible.cfg"), "/etc/ansible/ansible.cfg"]
    if os.path.exists("ansible.cfg") and os.stat(".").st_mode & stat.S_IWOTH:
        del places[0]
    for place in [os.environ.get("ANSIBLE_CONFIG", ""), *places]:
        if os.path.isfile(place):
            parser = configparser.ConfigParser(interpolation=None, strict=False)
            try:
                parser.read(place, encoding="utf-8")
                return parser.get("defaults", "host_key_checking", fallback="")
            except (configparser.Error, OSError, UnicodeDecodeError):
                return ""
    return ""


def hosts(call: Call) -> list[str]:
    """The names that the inventory and the limit give, in Ansible's order. TunerError (bad input) for none."""
    program = shutil.which("ansible", path=environment()["PATH"])
    if program is None:
        raise bad_input("ansible", "is not installed", HINT)
    missing = [name for name in call.inventories if "," not in name and not os.path.exists(name)]
    if missing:
        raise bad_input(f"-i {missing[0]}", "no such inventory", "a file or folder of Ansible, or names with a comma")
    words = [program, "all", "--list-hosts", *call.words()]
    try:
        done = subprocess.run(  # noqa: S603  (Ansible's own program, a list of words)
            words, capture_output=True, text=True, timeout=LISTING, check=False, env=environment(), errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise bad_input("-i", f"the inventory took more than {LISTING} seconds", "try ansible-inventory") from None
    found = [line.strip() for line in done.stdout.splitlines()[1:] if line.strip()]
    if done.returncode or not found:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        why = said[0].removeprefix("[WARNING]: ").removeprefix("[ERROR]: ") if said else "no host matches"
        raise bad_input("-i and -l", f"give no host: {why}", "ansible-inventory -i INVENTORY --graph shows it")
    return found


def addresses(call: Call) -> dict[str, str]:
    """Where Ansible reaches hosts that have an ansible_host of their own, by name; what cannot be told is left out."""
    program = shutil.which("ansible-inventory", path=environment()["PATH"])
    if program is None:
        return {}
    pairs = zip(call.options[::2], call.options[1::2], strict=True)
    plain = replace(call, forks=0, options=tuple(w for pair in pairs if pair[0] == VAULT for w in pair))
    words = [program, "--list", *plain.words()]
    try:
        done = subprocess.run(  # noqa: S603  (Ansible's own program, a list of words)
            words, capture_output=True, timeout=LISTING, check=False, env=environment(), stdin=subprocess.DEVNULL
        )
        found = json.loads(done.stdout)["_meta"]["hostvars"].items()
        return {name: where for name, own in found if isinstance(where := own.get("ansible_host"), str)}
    except (subprocess.TimeoutExpired, OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def play(name: str, call: Call, heard: Callable[[Event], bool], stop: Stop) -> str:
    """Runs one of our playbooks; returns what Ansible said if it could not start, else "".

    `heard` gets every event as it comes, and says whether Ansible's own record keeps it.
    Everything is kept in a folder of our own (0700), which is removed; Ansible runs in the present folder, as the words
    of the call and the user's ansible.cfg mean it. TunerError where ansible-runner is missing.
    """
    try:
        import ansible_runner
    except ImportError:
        raise bad_input("ansible-runner", "is not installed", HINT) from None
    with tempfile.TemporaryDirectory(prefix="tuner-fleet-") as place:
        run = ansible_runner.run(
            private_data_dir=place,
            playbook=str(folder("playbooks") / f"{name}.yml"),
            cmdline=shlex.join(call.words()),
            extravars=dict(call.variables),
            envvars=environment(),
            settings={"pexpect_timeout": 1, "suppress_env_files": True},
            project_dir=os.getcwd(),
            event_handler=heard,
            cancel_callback=lambda: bool(stop.name),
            quiet=True,
        )
        if run.status == "successful" or stop.name or (run.events and run.rc in (0, 2, 4, 6)):
            return ""
        said = [line for line in run.stdout.read().splitlines() if "ERROR" in line or "rror" in line]
    return said[0] if said else f"ansible-playbook ended with {run.rc}"


def failed(said: str) -> TunerError:
    """The error of a run that Ansible refused as a whole."""
    hint = "the same playbook shows more: ansible-playbook -vv, its folder is `tuner fleet playbooks`"
    return TunerError(Problem("ansible", said, hint), Exit.UNKNOWN)
