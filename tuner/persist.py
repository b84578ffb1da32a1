"""Settings that a file keeps become settings of the knob `file`: planned, journalled and undone like any other."""

from __future__ import annotations

from tuner.host import Host
from tuner.knobs import BY_NAME, Knob
from tuner.model import Absent, Seen, Setting, Want, met


def derive(host: Host, expanded: list[Setting]) -> list[Setting]:
    """The file settings that keep these settings, where no profile sets the file itself.

    A bound that the host meets without a file of ours gets no line in it; a plain value always does.
    """
    named = {setting.target for setting in expanded if setting.knob == "file"}
    found: list[Setting] = []
    for name, knob in BY_NAME.items():
        ours = [s for s in expanded if s.knob == name]
        if not ours or not knob.stores(ours):
            continue
        ours = [s for s in ours if _kept(host, knob, s)]
        for path, text in knob.stores(ours) if ours else []:
            if path not in named:
                found.append(_file(path, text, ours))
    return found


def _kept(host: Host, knob: Knob, setting: Setting) -> bool:
    reading = knob.read(host, setting.target)
    if isinstance(reading, Absent):
        return False
    if not isinstance(reading, Seen):
        return True
    if setting.want.kind == "value" or met(setting.want, reading.value, knob.key) == "drift":
        return True
    return host.exists(knob.stores([setting])[0][0])


def _file(path: str, text: str, ours: list[Setting]) -> Setting:
    first = ours[0]
    places = ", ".join(f"{s.knob} {s.target}" for s in ours)
    return Setting(
        "file",
        path,
        path,
        Want("value", {"text": text}),
        first.origin,
        f"Keeps {places}.",
        first.source,
        layer=first.layer,
    )
