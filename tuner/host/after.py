"""What has to be told to the system after a file changed: a closed list, run once at the end of a run."""

from __future__ import annotations

from tuner.host.door import Host
from tuner.host.shell import run

ACTIONS = {"daemon-reload": ["systemctl", "daemon-reload"]}
TIMEOUT = 90.0
"""Seconds: systemd reads every unit again."""


def act(host: Host, action: str) -> tuple[bool, str]:
    """(done, why not). Only a live host with systemd is told; for any other it is still to do."""
    if host.kind != "live":
        return False, f"still to do on the host itself: {' '.join(ACTIONS[action])}"
    if not host.exists("/run/systemd/system"):
        return False, "no systemd runs here"
    ran = run(ACTIONS[action], TIMEOUT)
    return not ran.failure, ran.failure
