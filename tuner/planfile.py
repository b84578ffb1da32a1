"""A plan kept in a file: looked at by one person, applied by another, refused when the host has moved on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from tuner.errors import Exit, Problem, TunerError, bad_input
from tuner.host import Host
from tuner.knobs import BY_NAME
from tuner.model import Plan, setting_from_plain, setting_to_plain
from tuner.persist import Keeping
from tuner.profile import Profile
from tuner.profile.files import read_trusted
from tuner.profile.match import Match

SCHEMA = "tuner.planfile/1"


@dataclass(frozen=True)
class Kept:
    """A kept plan: the profile with its settings as they were resolved then, and the id of the changes shown."""

    profile: Profile
    plan_id: str
    keep_unmentioned: bool
    host: str


def save(path: str, profile: Profile, made: Plan, document: dict[str, Any], *, keep_unmentioned: bool) -> None:
    """Writes the plan, never through a link; TunerError (bad input) where that cannot be done."""
    kept = {
        "schema": SCHEMA,
        "profile": {"name": profile.name, "summary": profile.summary, "reference": profile.reference},
        "match": asdict(profile.match),
        "overlays": list(profile.overlays),
        "sets": list(profile.sets),
        "keep_unmentioned": keep_unmentioned,
        "keeping": asdict(profile.keeping),
        "settings_id": made.settings_id,
        "plan_id": made.id,
        "settings": [setting_to_plain(setting) for setting in profile.settings],
        "plan": document,
    }
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as file:
            os.fchmod(opened, 0o600)
            json.dump(kept, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise bad_input(f"-o {path}", f"cannot be written: {error.strerror}", "give another file") from None


def load(path: str) -> Kept:
    """Reads a kept plan; as root only a file that nobody else can write."""
    try:
        data = json.loads(read_trusted(path))
        if data["schema"] != SCHEMA:
            raise ValueError("another schema")
        about = data["profile"]
        settings = tuple(setting_from_plain(setting) for setting in data["settings"])
        profile = Profile(
            about["name"],
            about["summary"],
            settings,
            about["reference"],
            tuple(data["overlays"]),
            tuple(data["sets"]),
            _match(data["match"]),
            keeping=Keeping(str(data["keeping"]["boots_from"]), str(data["keeping"]["sysctl_file"])),
        )
        words = [about["name"], about["reference"], data["plan_id"], *profile.overlays, *profile.sets]
        if not all(isinstance(word, str) for word in words) or any(s.knob not in BY_NAME for s in settings):
            raise ValueError("of another version")
        return Kept(profile, data["plan_id"], data["keep_unmentioned"], str(data["plan"]["host"]["name"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise bad_input(path, "is no plan of tuner", "make one: tuner plan --profile NAME -o FILE") from None


def _match(data: dict[str, Any]) -> Match:
    return Match(
        tuple(data["gpu_ids"]), data["gpu_count"], data["gpu_driver"], tuple(data["nic_drivers"]), data["nic_least"]
    )


def check(made: Plan, host: Host, kept: Kept | None, expected: str | None) -> None:
    """Raises TunerError with exit 10 when the host or the settings are not what was looked at."""
    hint = "nothing was written; look at the plan again"
    if kept is not None and kept.host != host.name:
        raise TunerError(
            Problem("", f"the kept plan was made for {kept.host}, this is {host.name}", hint), Exit.DIFFERS
        )
    if kept is not None and made.id != kept.plan_id:
        raise TunerError(
            Problem("", "the kept plan is stale: the host would be changed differently now", hint), Exit.DIFFERS
        )
    if expected is None:
        return
    if len(expected) < 8 or any(c not in "0123456789abcdef" for c in expected):
        raise bad_input(f"--expect {expected}", "is no settings id", "8 or more hex digits, as plan shows them")
    if not made.settings_id.startswith(expected):
        what = f"the settings are {made.settings_id[:8]}, not {expected}"
        raise TunerError(Problem(f"--expect {expected}", what, hint), Exit.DIFFERS)
