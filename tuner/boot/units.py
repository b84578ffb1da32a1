"""The units of systemd that make settings so again: what they are called, and whether they will run."""

from __future__ import annotations

from tuner.host.door import Host, Unrecorded

APPLY = "tuner-apply.service"
FOLDER = "/etc/systemd/system"
WANTED = f"{FOLDER}/multi-user.target.wants/{APPLY}"


def unarmed(host: Host) -> str:
    """Why tuner-apply.service will not run at the next boot; empty when it will."""
    try:
        host.stat(f"{FOLDER}/{APPLY}")
        host.stat(WANTED, follow=False)
    except Unrecorded as gap:
        return str(gap)
    except OSError:
        return "no tuner-apply.service: tuner persist install"
    return ""
