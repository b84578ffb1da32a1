"""Whether a job may be running, and what may then be changed."""

from __future__ import annotations

from tuner.holders import DEVICES, holder
from tuner.host import Host
from tuner.model import DISRUPTIONS
from tuner.plan import Allowed


def allowed(host: Host, words: list[str]) -> Allowed:
    """What `--allow` means on this host now.

    Always harmless; `auto` adds app, and memory and clocks while the node is idle; each class named adds itself;
    `all` allows everything; `none` alone allows the harmless only.
    """
    if "all" in words:
        return Allowed(frozenset(DISRUPTIONS))
    classes = {"none", *(word for word in words if word in DISRUPTIONS)}
    if words == ["none"]:
        return Allowed(frozenset(classes), {})
    classes.add("app")
    user = busy(host)
    if not user:
        return Allowed(frozenset(classes | {"memory", "clocks"}))
    why = {name: f"needs --allow {name}: the node is busy ({user})" for name in ("memory", "clocks")}
    return Allowed(frozenset(classes), why)


def busy(host: Host) -> str:
    """Who keeps the node from being idle, in words; empty when it is idle. Not allowed to look counts as busy."""
    return holder(host, DEVICES)
