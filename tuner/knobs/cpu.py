"""CPU frequency and idle states, equal on all CPUs of a node.

Linux Documentation/admin-guide/pm/{cpufreq,cpuidle,intel_pstate,amd-pstate}.rst. Governor performance fixes EPP: commit
b388eb58ce3b (5.10), amd_pstate_epp_set_policy in amd-pstate.c. Boost per policy: commit 218a06a79d9a (6.7).
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping
from typing import NamedTuple

from tuner.cpulist import cpu_list, cpu_numbers
from tuner.errors import BadValue, Refused
from tuner.host.door import Host, Unrecorded
from tuner.knobs.base import Knob, Raw, reading, scalar
from tuner.model import Absent, Leaf, Reading, Seen, Value

CPUS = "/sys/devices/system/cpu"
POLICIES = f"{CPUS}/cpufreq"
NO_TURBO = f"{CPUS}/intel_pstate/no_turbo"

GOVERNOR = "scaling_governor"
PREFERENCE = "energy_performance_preference"
FILES = {"governor": GOVERNOR, "epp": PREFERENCE}
OFFERS = {"governor": "scaling_available_governors", "epp": "energy_performance_available_preferences"}
"""Files of a cpufreq policy: what is chosen, and what can be."""

ALIASES = frozenset({"default", "custom"})
"""Energy preferences that the drivers list but never read back."""

SWITCHES = {"boost": {"1": "on", "0": "off"}, "no_turbo": {"0": "on", "1": "off"}, "disable": {"0": "on", "1": "off"}}
"""Files that hold a switch: what their content means."""

MIXED, SWITCH = "mixed", "switch"
NO_DRIVER = "no CPU {} driver: a virtual machine, or set in the firmware"
TARGET = re.compile(r"governor|epp|boost|cstate/[^/\s]+( [^/\s]+)*")
WORD = re.compile(r"[a-z][a-z0-9_-]*")

ABOUT = {
    "governor": "Documentation/admin-guide/pm/cpufreq.rst. Which ones there are depends on the driver.",
    "epp": "Documentation/admin-guide/pm/intel_pstate.rst, amd-pstate.rst. The governor performance fixes it there.",
    "boost": "Documentation/admin-guide/pm/cpufreq.rst, and no_turbo of intel_pstate.rst.",
    "cstate": "Documentation/admin-guide/pm/cpuidle.rst. A state is found by its name; its number differs by driver.",
}


class Place(NamedTuple):
    """A file that decides for some CPUs; for none in particular: the switch over all of them."""

    path: str
    cpus: tuple[int, ...] = ()


class Cpu(Knob):
    """Frequency governor, energy preference, boost and idle states of the CPUs: all equal, or none is changed.

    Targets: `governor`, `epp` (a word), `boost` and `cstate/NAME` (on or off; NAME as the kernel calls it, such as C2,
    C1E, C6). Read as `{all: WORD}`; where CPUs differ `all` is `mixed` and each range of them has a field of its own,
    such as `cpu0-3,8`, so that undo gives each its own back. A CPU that cannot be read (offline) is left out.
    """

    name = "cpu"
    main = "all"
    persist = "boot unit"

    def canonical(self, target: str) -> str:
        """One of the four, a pattern only for the name of an idle state: the others take different words."""
        if TARGET.fullmatch(target):
            return target
        raise BadValue(f"cpu has no target {target}", "known: governor, epp, boost, cstate/NAME such as cstate/C2")

    def parse(self, target: str, raw: Raw) -> Value:
        """The word that all CPUs shall have."""
        word = scalar(raw)
        if target == "boost" or target.startswith("cstate/"):
            if word not in ("on", "off"):
                raise BadValue(f"{word!r} is no choice of {target}", "one of on, off")
        elif not WORD.fullmatch(word) or word == MIXED:
            raise BadValue(f"{word!r} is no choice of {target}", "one word, as the kernel offers it for this driver")
        elif target == "epp" and word in ALIASES:
            raise BadValue(f"the energy preference {word} reads back as another", "name the one that is meant")
        return {"all": word}

    def targets(self, host: Host, pattern: str = "*") -> list[str]:
        """Those that this host has on any CPU."""
        plain = () if pattern.startswith("cstate/") else ("governor", "epp", "boost")
        found = [target for target in plain if not isinstance(self.read(host, target), Absent)]
        return [*found, *(f"cstate/{name}" for name in _names(host))]

    def files(self, host: Host, target: str) -> list[str]:
        """The file of each policy or CPU that can be read."""
        with contextlib.suppress(OSError):
            return [place.path for place in _held(host, target)]
        return []

    def read(self, host: Host, target: str) -> Reading:
        """{all}, and each range of CPUs where they differ; Absent says what there is instead."""
        found = reading(lambda: _record(_held(host, target)))
        why = reading(lambda: _why_absent(host, target)) if isinstance(found, Absent) else found
        return Absent(str(why.value)) if isinstance(found, Absent) and isinstance(why, Seen) else why

    def normalise(self, host: Host, target: str, value: Value) -> Value:
        """A word must be one that the driver offers on each CPU."""
        word = value.get("all") if isinstance(value, Mapping) else value
        for policy in _policies(host) if target in OFFERS else ():
            offered = _offered(host, policy, target)
            if offered and word not in offered:
                what = f"{_driver(host, policy)} does not offer the {target} {word} on {_label(policy)}"
                raise BadValue(what, f"it offers {', '.join(offered)}")
        return value

    def write(self, host: Host, target: str, value: Value) -> None:
        """Each CPU that differs gets its word; if one refuses, those before it get theirs back."""
        held = _held(host, target)
        try:
            for place, word in _goal(value, held).items():
                _set(host, place, word)
        except (OSError, Refused):
            for place, word in held.items():
                with contextlib.suppress(OSError, Refused):
                    _set(host, place, word)
            raise

    def disruption(self, target: str) -> str:
        """Running jobs change their speed."""
        return "clocks"

    def note(self, before: Value, value: Value, target: str) -> str:
        """What the change brings along."""
        word = value.get("all") if isinstance(value, Mapping) else value
        if target == "governor" and word == "performance":
            return "with intel_pstate or amd-pstate in active mode epp becomes performance too"
        if target.startswith("cstate/") and word == "off":
            return "idle CPUs stay in lighter states: more power, less room for boost"
        return ""

    def rank(self, target: str) -> int:
        """The governor first: it may fix the energy preference."""
        return int(target == "epp")

    def moves(self, target: str) -> tuple[tuple[str, str], ...]:
        """The energy preference, which the governor performance sets."""
        return (("cpu", "epp"),) if target == "governor" else ()

    def about(self, target: str) -> str:
        """Where the kernel documents it."""
        return ABOUT.get(target.partition("/")[0], "")


def _listed(host: Host, folder: str, stem: str) -> list[str]:
    """The names in a folder that are the stem and a number, in order of the number; none where it is not there."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = [name for name in host.list(folder) if name.startswith(stem) and name[len(stem) :].isdigit()]
    return sorted(names, key=lambda name: int(name[len(stem) :]))


def _policies(host: Host) -> list[Place]:
    """The cpufreq policies with their online CPUs; one without any may answer EBUSY, and is not asked."""
    found = []
    for name in _listed(host, POLICIES, "policy"):
        cpus: tuple[int, ...] = (int(name[6:]),)
        with contextlib.suppress(OSError, Unrecorded):
            path = f"{POLICIES}/{name}/affected_cpus"
            cpus = tuple(int(cpu) for cpu in host.peek(path).split() or host.text(path).split())
        if cpus:
            found.append(Place(f"{POLICIES}/{name}", cpus))
    return found


def _places(host: Host, target: str) -> list[Place]:
    """The files that decide about the target; some may not be there."""
    if target in FILES:
        return [Place(f"{policy.path}/{FILES[target]}", policy.cpus) for policy in _policies(host)]
    if target.startswith("cstate/"):
        return _states(host, target.partition("/")[2])
    if host.exists(f"{POLICIES}/boost"):
        each = [Place(f"{policy.path}/boost", policy.cpus) for policy in _policies(host)]
        return [Place(f"{POLICIES}/boost"), *each]
    return [Place(NO_TURBO)] if host.exists(NO_TURBO) else []


def _states(host: Host, name: str) -> list[Place]:
    """The `disable` of the idle state of this name on each CPU. Raises why, if none can be read."""
    found: list[Place] = []
    failure: OSError | None = None
    state = ""
    for cpu in _listed(host, CPUS, "cpu"):
        folder = f"{CPUS}/{cpu}/cpuidle"
        try:
            here = _state(host, folder, name, state)
        except OSError as error:
            failure = error
            continue
        state = here or state
        if here:
            found.append(Place(f"{folder}/{here}/disable", (int(cpu[3:]),)))
    if failure and not found:
        raise failure
    return found


def _state(host: Host, folder: str, name: str, first: str) -> str:
    """The stateN of this name, looked for in `first` first; empty for none."""
    if first and _name(host, f"{folder}/{first}") == name:
        return first
    return next((state for state in _listed(host, folder, "state") if _name(host, f"{folder}/{state}") == name), "")


def _name(host: Host, folder: str) -> str:
    """What the state is called: fixed by the driver while it is loaded, so that the first CPU's is evidence enough."""
    read = host.text if folder.startswith(f"{CPUS}/cpu0/") else host.peek
    with contextlib.suppress(FileNotFoundError):
        return read(f"{folder}/name").strip()
    return ""


def _names(host: Host) -> list[str]:
    """The idle states of all CPUs by name, lightest first as the CPUs number them."""
    found: dict[str, None] = {}
    for cpu in _listed(host, CPUS, "cpu"):
        folder = f"{CPUS}/{cpu}/cpuidle"
        with contextlib.suppress(OSError):
            found.update(dict.fromkeys(_name(host, f"{folder}/{state}") for state in _listed(host, folder, "state")))
    return [name for name in found if name]


def _held(host: Host, target: str) -> dict[Place, str]:
    """What each place holds; one that cannot be read is left out. Raises why, if that leaves none."""
    held: dict[Place, str] = {}
    failure: OSError = FileNotFoundError(errno.ENOENT, "no CPU has it", target)
    for place in _places(host, target):
        try:
            held[place] = _word(place, host.text(place.path))
        except FileNotFoundError:
            continue
        except OSError as error:
            failure = error
    if not held:
        raise failure
    return held


def _word(place: Place, text: str) -> str:
    words = SWITCHES.get(place.path.rpartition("/")[2])
    content = text.strip()
    if (words is not None and content not in words) or len(content.split()) != 1:
        raise ValueError(f"{place.path}: {content[:60]!r}")
    return words[content] if words else content


def _content(place: Place, word: str) -> str:
    words = SWITCHES.get(place.path.rpartition("/")[2], {word: word})
    return next((content for content, meaning in words.items() if meaning == word), word)


def _record(held: dict[Place, str]) -> dict[str, Leaf]:
    """{all: WORD}, or {all: mixed, cpu0-3: WORD, ...}, with `switch` where a file decides for all CPUs."""
    words = list(dict.fromkeys(held.values()))
    if len(words) == 1:
        return {"all": words[0]}
    record: dict[str, Leaf] = {"all": MIXED}
    for word in words:
        if any(own == word and not place.cpus for place, own in held.items()):
            record[SWITCH] = word
        cpus = [cpu for place, own in held.items() if own == word for cpu in place.cpus]
        if cpus:
            record[f"cpu{cpu_list(cpus)}"] = word
    return record


def _goal(value: Value, held: dict[Place, str]) -> dict[Place, str]:
    """The word for each place: the one for all, or each its own; a place that the record does not name stays."""
    record = value if isinstance(value, Mapping) else {"all": value}
    if record.get("all") != MIXED:
        return dict.fromkeys(held, str(record["all"]))
    ranges = [(cpu_numbers(field[3:]), str(word)) for field, word in record.items() if field.startswith("cpu")]
    own = {cpu: word for cpus, word in ranges for cpu in cpus}
    goal = {place: own[cpu] for place in held for cpu in place.cpus if cpu in own}
    switch = {place: str(record[SWITCH]) for place in held if not place.cpus and SWITCH in record}
    return {**switch, **goal}


def _set(host: Host, place: Place, word: str) -> None:
    """Writes unless it is so: the switch over all CPUs, written before, may have set this one."""
    try:
        if _word(place, host.text(place.path)) == word:
            return
    except OSError:
        return  # offline since it was listed
    try:
        host.write(place.path, f"{_content(place, word)}\n")
    except OSError as error:
        raise _explained(host, place, error) from error


def _explained(host: Host, place: Place, error: OSError) -> Exception:
    """Why a write failed and on which CPUs, in words where the driver's rule is known."""
    folder, _, name = place.path.rpartition("/")
    number = error.errno or errno.EIO
    if name == PREFERENCE and number == errno.EBUSY and _words(host, f"{folder}/{GOVERNOR}") == ["performance"]:
        why = f"the governor performance fixes the energy preference of {_label(place)} at performance"
        return Refused(f"{why}: a profile sets another governor, or epp performance")
    if place.path == NO_TURBO and number == errno.EPERM:
        return Refused("turbo is disabled in the firmware, or this processor has none")
    return OSError(number, f"{error.strerror} ({_label(place)})", place.path)


def _label(place: Place) -> str:
    return f"cpu{cpu_list(place.cpus)}" if place.cpus else "all CPUs"


def _words(host: Host, path: str) -> list[str]:
    """The words of a file that says more about a policy; none where it cannot be read."""
    with contextlib.suppress(OSError, Unrecorded):
        return host.text(path).split()
    return []


def _driver(host: Host, policy: Place) -> str:
    return " ".join(_words(host, f"{policy.path}/scaling_driver")) or "the frequency driver"


def _offered(host: Host, policy: Place, target: str) -> list[str]:
    """What can be written; none where not known: amd-pstate lists only `performance` while the governor is that."""
    words = [word for word in _words(host, f"{policy.path}/{OFFERS[target]}") if word not in ALIASES]
    fixed = target == "epp" and words == ["performance"] == _words(host, f"{policy.path}/{GOVERNOR}")
    return [] if fixed else words


def _why_absent(host: Host, target: str) -> str:
    if target.startswith("cstate/"):
        names = ", ".join(_names(host))
        return f"no CPU has an idle state {target[7:]}; there are {names}" if names else NO_DRIVER.format("idle")
    policies = _policies(host)
    what = {"epp": "no energy preference", "boost": "no boost switch"}.get(target)
    return f"{_driver(host, policies[0])} has {what}" if policies and what else NO_DRIVER.format("frequency")
