"""The boot line that a boot loader would use next time: what every loader's reader answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BootLine:
    """`text` is the line, None where it is not predicted and `why` says so; `where` is FILE:LINE.

    `loader` is grub, bls (GRUB with entries in files), systemd-boot, uki or ostree; empty where it is not known.
    """

    loader: str
    text: str | None = None
    where: str = ""
    why: str = ""
    title: str = ""
