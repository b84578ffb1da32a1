"""What has to be told to the system after a file changed: a closed list, run once at the end of a run."""

from __future__ import annotations

import os
import stat

from tuner.host.door import Host, Unrecorded
from tuner.host.shell import SYSTEM_PATH, run

DAEMON_RELOAD, UPDATE_GRUB = "daemon-reload", "update-grub"
ACTIONS = {DAEMON_RELOAD: ["systemctl", "daemon-reload"], UPDATE_GRUB: ["update-grub"]}
"""What an operator would type for each."""

MUST = frozenset({UPDATE_GRUB})
"""What a file means nothing without: one that could not be done has failed, and is tried again by the next run."""

FILES = {"/etc/systemd/system/": DAEMON_RELOAD, "/etc/default/grub.d/": UPDATE_GRUB}
"""Which files ask for which action."""

TIMEOUT = 90.0
"""Seconds: systemd reads every unit again."""

GRUB_TIMEOUT = 300.0
"""Seconds: os-prober looks into every partition."""

GRUB_CONFIG = "/boot/grub/grub.cfg"
MADE = "/run/tuner/grub.cfg"
ROOM = 1024 * 1024
"""Bytes that must be free where GRUB's configuration lies, besides twice its size."""


def for_file(path: str) -> str:
    """The action that a change of this file asks for; empty for none."""
    return next((action for folder, action in FILES.items() if path.startswith(folder)), "")


def act(host: Host, action: str) -> tuple[bool, str]:
    """(done, why not). Only a live host is told; for any other it is still to do."""
    if host.kind != "live":
        return False, f"still to do on the host itself: {' '.join(ACTIONS[action])}"
    if action == UPDATE_GRUB:
        why = update_grub(host)
        return not why, why
    if not host.exists("/run/systemd/system"):
        return False, "no systemd runs here"
    ran = run(ACTIONS[action], TIMEOUT)
    return not ran.failure, ran.failure


def update_grub(host: Host) -> str:
    """Makes GRUB's menu again, as Debian's update-grub does; why it could not, empty when done.

    The new configuration is made and checked in /run, and takes the place of the former in one step, on the disk when
    this returns. Until then, and when anything fails, the former one stays as it was.
    """
    try:
        former = host.read(GRUB_CONFIG)
        status = host.stat(GRUB_CONFIG, follow=False)
        why = _no_room(host, len(former)) if stat.S_ISREG(status.st_mode) else f"{GRUB_CONFIG} is no plain file"
        why = why or _make(host)
        made = b"" if why else host.read(MADE)
        why = why or _lacking(former, made)
        if not why and made != former:
            host.put(GRUB_CONFIG, made, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))
    except (OSError, Unrecorded) as error:
        why = str(error)
    for left in (MADE, f"{MADE}.new"):
        _remove(host, left)
    return f"GRUB's menu is as it was: {why}" if why else ""


def _no_room(host: Host, size: int) -> str:
    """Why /boot is too full for a second configuration beside the first; empty when it is not."""
    space = os.statvfs(
        os.path.dirname(GRUB_CONFIG) if host.root == "/" else f"{host.root}{os.path.dirname(GRUB_CONFIG)}"
    )
    free = space.f_bavail * space.f_frsize
    return f"{free // 1024} KiB are free in /boot, too little" if free < 2 * size + ROOM else ""


def _make(host: Host) -> str:
    """Makes the configuration and lets GRUB check its syntax; why not, empty when done."""
    if not host.exists(os.path.dirname(MADE)):
        host.mkdir(os.path.dirname(MADE))
    _remove(host, MADE)
    path = f"PATH={SYSTEM_PATH}"  # a root shell may lack /usr/sbin, and os-prober is looked up there
    for command in (["grub-mkconfig", "-o", MADE], ["grub-script-check", MADE]):
        ran = run(["env", path, *command], GRUB_TIMEOUT)
        if ran.failure:
            return ran.failure.replace("env ended", f"{command[0]} ended", 1)
    return ""


def _lacking(former: bytes, made: bytes) -> str:
    """Why the new configuration must not take the place of the former: it starts no kernel, and that one does."""
    if _kernels(former) and not _kernels(made):
        return "the new menu has no entry that starts a kernel"
    return ""


def _kernels(text: bytes) -> int:
    return sum(line.split()[:1] in ([b"linux"], [b"linux16"], [b"linuxefi"]) for line in text.splitlines())


def _remove(host: Host, path: str) -> None:
    try:
        host.unlink(path)
    except FileNotFoundError:
        return
