"""The script that slurmd starts before a job, and the units that tell Slurm why a node was drained.

slurmd reads the script's output until the end of the pipe and then waits for the script (src/common/run_command.c of
Slurm), so nothing that the script starts may hold its streams. A script that ends with anything but 0 drains the node
(slurm.conf(5), Prolog): exit 1 is reached from the checker's 86 alone. A shell that fails by itself, say because it
cannot fork, exits with 2 (dash(1)); the trap makes a 0 of that.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from tuner.boot import units
from tuner.off import PATH as OFF
from tuner.slurm import DRAIN
from tuner.slurm.policy import PATH as POLICY
from tuner.slurm.store import REASON

NAME = "50-tuner"
"""In a prolog.d, which slurmd runs in reverse order of names: after 90-mount, before 10-cleanup."""
NODE = "%n"
"""In the root that the script judges: the node's name."""
NOTE = "# A script that leaves reasons: "
"""Begins the lines of the service that say where install put the script, for remove."""

SERVICE = "tuner-slurm-reason.service"
PATH_UNIT = "tuner-slurm-reason.path"
WANTED = f"{units.FOLDER}/{units.TARGET}.wants/{PATH_UNIT}"
CALL = "from tuner.slurm.prolog import main; main()"

SCRIPT = """#!/bin/sh
{header}
# Whatever happens to the check, the job starts: only its exit code {drain} keeps the job away and drains this node.
answer=0
trap 'exit "$answer"' EXIT
trap 'exit 0' HUP INT TERM
exec </dev/null >/dev/null 2>&1
cd /
python='{python}'
root="{root}"

# One line to syslog, for which nobody waits longer than a second.
say() {{
    [ -x /usr/bin/logger ] || return 0
    set -- /usr/bin/logger -t tuner-prolog -p daemon.warning -- "job ${{SLURM_JOB_ID:-unknown}}: $1"
    if [ -x /usr/bin/timeout ]; then
        /usr/bin/timeout 1 "$@"
    else
        "$@" &
    fi
}}

if [ -f "${{root}}/proc/cmdline" ]; then
    read -r line < "${{root}}/proc/cmdline"
    case " $line " in
    *' tuner.off '*)
        say 'tuner is off by the boot token tuner.off: the job starts unchecked'
        exit 0
        ;;
    esac
fi
if [ -f "${{root}}{off}" ]; then
    read -r line < "${{root}}{off}"
    case "$line" in
    *'"until": ""'*)
        say 'tuner is off: the job starts unchecked'
        exit 0
        ;;
    esac
fi
if [ -f "${{root}}{policy}" ]; then
    while read -r line; do
        case "$line" in
        'mode: off' | 'mode: off '* | 'mode: "off"'* | "mode: 'off'"*) exit 0 ;;
        esac
    done < "${{root}}{policy}"
fi
if [ ! -x "$python" ]; then
    say "$python is not there: the job starts unchecked"
    exit 0
fi
"$python" -I -c '{call}' --root "${{root:-/}}"
code=$?
case "$code" in
0) exit 0 ;;
{drain})
    answer=1
    exit 1
    ;;
esac
say "the check failed with $code: the job starts unchecked"
exit 0
"""


def header(what: str) -> str:
    """The line by which a file of ours is known."""
    return f"# Written by tuner, units {units.VERSION} (tuner slurm install): {what}"


def script(python: str, root: str) -> str:
    """What goes to prolog.d; `root` is what it judges instead of this machine, empty for this machine.

    Both are paths without characters that a shell treats specially; %n in the root is the node's name.
    """
    return SCRIPT.format(
        header=header("the check before a job"),
        python=python,
        root=root.rstrip("/").replace(NODE, "${SLURMD_NODENAME:-}"),
        off=OFF,
        policy=POLICY,
        call=CALL,
        drain=DRAIN,
    )


def noted(service: str) -> list[str]:
    """The scripts that the text of the service names, by absolute paths."""
    found = [line.removeprefix(NOTE) for line in service.splitlines() if line.startswith(NOTE)]
    return [path for path in found if path.startswith("/") and posixpath.basename(path) == NAME]


def files(python: str, scripts: Iterable[str] = ()) -> dict[str, str]:
    """The units, and in the service where `scripts` are, for remove.

    PathChanged sees the rename that puts a reason in place; Restart is for a slurmctld that is down.

    More starts are allowed than come about until the reason is too old: a path unit whose service meets its limit fails
    too (systemd.path(5)), and would tell no reason any more.
    """
    notes = "".join(f"{NOTE}{path}\n" for path in sorted(set(scripts)))
    service = f"""{header("tells Slurm why tuner drained this node")}
{notes}[Unit]
Description=The reason of a drain by tuner, in the words of Slurm
StartLimitIntervalSec=1800
StartLimitBurst=40

[Service]
ExecStart={python} -I -m tuner slurm reason
Restart=on-failure
RestartSec=30
TimeoutStopSec=10
"""
    path = f"""{header("starts tuner-slurm-reason.service when a reason was left")}
[Unit]
Description=A node that tuner drained

[Path]
PathChanged={REASON}
Unit={SERVICE}

[Install]
WantedBy={units.TARGET}
"""
    return {f"{units.FOLDER}/{SERVICE}": service, f"{units.FOLDER}/{PATH_UNIT}": path}
