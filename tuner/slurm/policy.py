"""/etc/tuner/slurm.yaml: what the check before a job may do about what it finds.

    mode: report                    # off, report or enforce
    budget_s: 5                     # seconds until an answer, 1 to 60
    enforce: [hugepages, pcie.link] # knobs whose drift drains; what is missing always does
    unknown: {default: open, pcie.link: closed}
    brake: {drains_per_hour: 1}     # of one cause under the same settings
    tool_age_s: 600                 # how old an answer may be that rests on NVML

Root believes it only where nobody else can write it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.errors import Problem, TunerError, bad_input
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME
from tuner.profile.files import trust
from tuner.profile.lines import Loader, mapping, nearest, place
from tuner.profile.nodes import Node, load

PATH = "/etc/tuner/slurm.yaml"
MODES = ("off", "report", "enforce")
WAYS = ("open", "closed")
KEYS = ("mode", "budget_s", "enforce", "unknown", "brake", "tool_age_s")
LARGEST = 65536
"""Bytes of a policy; a long one has fifty lines."""

BUDGET = 5.0
SHORTEST = 1.0
LONGEST = 60.0
TOOL_AGE = 600
MOST_DRAINS = 1000
OLDEST_TOOL = 86400


@dataclass(frozen=True)
class Policy:
    """What a site allows; the defaults are those of a node without a policy: look, say, start."""

    mode: str = "report"
    budget_s: float = BUDGET
    enforce: frozenset[str] = frozenset()
    unknown: Mapping[str, str] = field(default_factory=dict)
    default: str = "open"
    drains_per_hour: int = 1
    tool_age_s: int = TOOL_AGE

    def closed(self, knob: str) -> bool:
        """Whether a job waits where this knob's state is not known."""
        return self.unknown.get(knob, self.default) == "closed"


def of(host: Host) -> Policy:
    """The host's policy. TunerError with every problem of the file, or why it is not believed."""
    try:
        host.stat(PATH)
    except (FileNotFoundError, NotADirectoryError, Unrecorded):
        return Policy()
    except OSError as error:
        raise bad_input(PATH, f"cannot be read: {error.strerror}", "a plain file of root's") from None
    try:
        if os.geteuid() == 0:
            trust(host, PATH, sticky=False)
        data = host.read(PATH)
    except OSError as error:
        raise bad_input(PATH, f"cannot be read: {error.strerror}", "a plain file of root's") from None
    if len(data) > LARGEST:
        raise bad_input(PATH, f"is larger than {LARGEST} bytes", "a policy is a few lines")
    return parsed(host, data)


def strangers(policy: Policy) -> list[str]:
    """Knobs that it names and this release does not have: they gate nothing, and may be of a later release."""
    return sorted({*policy.enforce, *policy.unknown} - set(BY_NAME))


def parsed(host: Host, data: bytes) -> Policy:
    """A policy out of a file's bytes; TunerError with every problem, each with its line."""
    root, problems = load(data, PATH)
    reader = _Reader(Loader(host, problems))
    parts = mapping(reader.loader, root, PATH, KEYS, "policy")
    policy = reader.policy(parts)
    if reader.loader.problems:
        raise TunerError(reader.loader.problems)
    return policy


@dataclass
class _Reader:
    """The keys of one policy, each checked; problems gather in the loader."""

    loader: Loader

    def policy(self, parts: Mapping[str, Node]) -> Policy:
        """What the keys that are there say, defaults for the others."""
        unknown = self._unknown(parts.get("unknown"))
        return Policy(
            self._word(parts.get("mode"), "mode", MODES, "report"),
            self._number(parts.get("budget_s"), "budget_s", SHORTEST, LONGEST, BUDGET, float),
            frozenset(self._names(parts.get("enforce"))),
            {knob: way for knob, way in unknown.items() if knob != "default"},
            unknown.get("default", "open"),
            self._brake(parts.get("brake")),
            int(self._number(parts.get("tool_age_s"), "tool_age_s", 0, OLDEST_TOOL, TOOL_AGE, int)),
        )

    def _wrong(self, node: Node, what: str, hint: str) -> None:
        self.loader.wrong(place(PATH, node), what, hint)

    def _word(self, node: Node | None, key: str, known: tuple[str, ...], default: str) -> str:
        if node is None:
            return default
        if node.kind != "scalar" or node.text not in known:
            said = node.text if node.kind == "scalar" and node.text else node.what()
            self._wrong(node, f"{key}: {said!r} is none of {', '.join(known)}", nearest(str(node.text), known))
            return default
        return node.text

    def _number(
        self,
        node: Node | None,
        key: str,
        low: float,
        high: float,
        default: float,
        kind: Callable[[str], float],
    ) -> float:
        if node is None:
            return default
        try:
            number = kind(node.text or "") if node.kind == "scalar" else None
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            said = node.text if node.kind == "scalar" else node.what()
            self._wrong(node, f"{key}: {said!r} is no number from {low:g} to {high:g}", f"{key}: {default:g}")
            return default
        return number

    def _names(self, node: Node | None) -> list[str]:
        if node is None or (node.kind == "scalar" and node.text is None):
            return []
        if node.kind != "list":
            self._wrong(node, f"enforce is a list of knobs, not {node.what()}", "enforce: [KNOB, KNOB]")
            return []
        names = []
        for item in node.items:
            if item.kind != "scalar" or not item.text:
                self._wrong(item, f"enforce: {item.what()} is no knob", "enforce: [KNOB, KNOB]")
            else:
                names.append(item.text)
        return names

    def _unknown(self, node: Node | None) -> dict[str, str]:
        if node is None:
            return {}
        if node.kind != "map":
            self._wrong(node, f"unknown is a mapping, not {node.what()}", "unknown: {default: open, KNOB: closed}")
            return {}
        pairs = [(key, value) for key, value in node.pairs if key.kind == "scalar" and key.text]
        return {str(key.text): self._word(value, f"unknown: {key.text}", WAYS, "open") for key, value in pairs}

    def _brake(self, node: Node | None) -> int:
        if node is None:
            return 1
        parts = mapping(self.loader, node, PATH, ("drains_per_hour",), "brake")
        return int(self._number(parts.get("drains_per_hour"), "drains_per_hour", 0, MOST_DRAINS, 1, int))


def problem_line(error: TunerError) -> str:
    """The first problem on one line, and how many more there are."""
    first: Problem = error.problems[0]
    more = f" (+{len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
    where = f"{first.where}: " if first.where else ""
    return f"{where}{first.what}{more}"
