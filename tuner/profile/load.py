"""profile files -> settings: what a profile extends, itself, overlays, the site, the host, and --set, in that order."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tuner.errors import BadValue, Problem, TunerError
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME, Knob
from tuner.model import Absent, Setting
from tuner.persist import Keeping
from tuner.profile.files import HOSTS, SITE_FILE, Source, find, site_file
from tuner.profile.lines import Loader, lay, line_of, lines, mapping, nearest, word
from tuner.profile.match import Match, parse_match
from tuner.profile.nodes import Node, load

TOP = ("name", "summary", "match", "extends", "settings")
OVERLAY = ("name", "summary", "settings")
SITE = ("boots_from", "fabric", "nccl", "sysctl_file", "settings")
HOST = ("settings",)
CONF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.conf")
"""A name that systemd-sysctl reads: no hidden file."""
BOOTS_FROM = ("disk", "image", "unknown")
LATER = ("fabric", "nccl")
"""Parts of site.yaml that this release checks and does not use: named in the plan, so that nobody relies on them."""


@dataclass(frozen=True)
class Profile:
    """A resolved profile: settings of every layer, patterns not yet expanded, and what the profile is for.

    `reference`, `overlays` and `sets` are what was asked for, so that it can be resolved again.
    """

    name: str
    summary: str
    settings: tuple[Setting, ...]
    reference: str
    overlays: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    match: Match = field(default_factory=Match)
    unused: tuple[str, ...] = ()
    keeping: Keeping = field(default_factory=Keeping)

    @property
    def label(self) -> str:
        """The name with its overlays, for outputs and the journal."""
        return "+".join([self.name, *self.overlays])


@dataclass
class _Stack:
    """One resolution under way."""

    loader: Loader
    settings: dict[tuple[str, str], Setting] = field(default_factory=dict)
    laid: dict[str, tuple[str, str, Match]] = field(default_factory=dict)
    """What was read, by origin: a parent that two profiles share is laid once, below both."""


def load_profile(host: Host, reference: str, overlays: Sequence[str] = (), sets: Sequence[str] = ()) -> Profile:
    """The profile that `reference` means (a name or a path), resolved through every layer.

    `sets` are KNOB:TARGET=VALUE, the value in YAML. Raises TunerError (bad input) with every problem of every file.
    """
    stack = _Stack(Loader(host))
    name, summary, match = _profile(stack, find(host, reference), ())
    for overlay in overlays:
        _guarded(stack, partial(find, host, overlay, overlay=True), OVERLAY, "overlay")
    site = _site(stack)
    unused = [key for key in LATER if key in site]
    if host.kind != "image":
        _guarded(stack, partial(site_file, host, f"{HOSTS}/{host.name}.yaml"), HOST, "host file")
    stack.loader.layers += 1
    for text in sets:
        _set(stack, text)
    problems = stack.loader.problems
    if problems:
        raise TunerError(sorted(set(problems), key=lambda p: _by_place(p.where)))
    settings = tuple(stack.settings.values())
    asked = reference, tuple(overlays), tuple(sets)
    return Profile(name, summary, settings, *asked, match, tuple(unused), _keeping(site))


def _by_place(where: str) -> tuple[str, int]:
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (where, 0)


def _guarded(stack: _Stack, source: Callable[[], Source | None], known: Sequence[str], what: str) -> dict[str, Node]:
    """Lays one file over what is there and returns its parts; what cannot be read is a problem among the others."""
    try:
        found = source()
        return _layer(stack, found, known, what) if found else {}
    except TunerError as error:
        stack.loader.problems += error.problems
        return {}


def _profile(stack: _Stack, source: Source, above: tuple[str, ...]) -> tuple[str, str, Match]:
    """One profile file over what it extends; returns its name, its summary and what it is for."""
    loader, origin = stack.loader, source.origin
    root, problems = load(source.data, origin)
    loader.problems += problems
    top = mapping(loader, root, origin, TOP, "profile")
    inherited: Match | None = None
    for parent in _extends(loader, top.get("extends"), origin):
        where = f"{origin}:{parent.line}"
        try:
            found = find(loader.host, _beside(origin, parent.text or ""), near=where)
            if found.origin in (*above, origin):
                chain = " -> ".join([*above, origin, found.origin][[*above, origin].index(found.origin) :])
                loader.wrong(where, f"extends itself: {chain}", "take one of these out of extends")
                continue
            _, _, match = stack.laid.get(found.origin) or _profile(stack, found, (*above, origin))
            inherited = inherited or match
        except TunerError as error:
            loader.problems += error.problems
    _settings(stack, top, origin)
    if "settings" not in top and "extends" not in top:
        loader.wrong(f"{origin}:{root.line}", "no settings", "settings: {KNOB: {TARGET: VALUE}}")
    own = parse_match(loader, top["match"], origin) if "match" in top else inherited or Match()
    stack.laid[origin] = word(loader, top, "name", origin, root), word(loader, top, "summary", origin, root), own
    return stack.laid[origin]


def _beside(origin: str, reference: str) -> str:
    """A relative path is meant from the folder of the file that names it, wherever tuner is called."""
    path = "/" in reference or reference.endswith((".yaml", ".yml"))
    return posixpath.join(posixpath.dirname(origin), reference) if path else reference


def _layer(stack: _Stack, source: Source, known: Sequence[str], what: str) -> dict[str, Node]:
    """One file that is no profile of its own, laid over what is there; returns its parts."""
    root, problems = load(source.data, source.origin)
    stack.loader.problems += problems
    top = mapping(stack.loader, root, source.origin, known, what)
    _settings(stack, top, source.origin)
    return top


def _settings(stack: _Stack, top: dict[str, Node], origin: str) -> None:
    stack.loader.layers += 1
    if "settings" in top:
        for line in lines(stack.loader, top["settings"], origin):
            lay(stack.loader, line, stack.settings)


def _site(stack: _Stack) -> dict[str, Node]:
    """The layer of site.yaml, and its parts."""
    top = _guarded(stack, partial(site_file, stack.loader.host, SITE_FILE), SITE, "site file")
    boots, name = top.get("boots_from"), top.get("sysctl_file")
    if boots is not None and boots.text not in BOOTS_FROM:
        hint = f"one of {', '.join(BOOTS_FROM)}"
        stack.loader.wrong(f"{SITE_FILE}:{boots.line}", f"boots_from is not {boots.text!r}", hint)
    if name is not None and not CONF.fullmatch(name.text or ""):
        hint = "such as 99-zz-tuner.conf"
        stack.loader.wrong(f"{SITE_FILE}:{name.line}", "sysctl_file is not the name of a .conf file", hint)
    return top


def _keeping(site: Mapping[str, Node]) -> Keeping:
    words = {key: site[key].text or "" for key in ("boots_from", "sysctl_file") if key in site}
    return Keeping(**words)


def _extends(loader: Loader, node: Node | None, origin: str) -> list[Node]:
    if node is None:
        return []
    items = node.items if node.kind == "list" else [node]
    for item in items:
        if item.kind != "scalar" or not item.text:
            loader.wrong(f"{origin}:{item.line}", "extends takes names of profiles", "extends: [linux-gpu]")
    return [item for item in items if item.kind == "scalar" and item.text]


def _set(stack: _Stack, text: str) -> None:
    """One --set: KNOB:TARGET=VALUE."""
    loader, where = stack.loader, f"--set {text}"
    name, colon, rest = text.partition(":")
    target, equals, value = rest.partition("=")
    if not colon or not equals or not target:
        loader.wrong(where, "is not KNOB:TARGET=VALUE", "such as --set sysctl:vm.swappiness=10")
        return
    knob = BY_NAME.get(name)
    if knob is None:
        loader.wrong(where, f"no knob {name!r}", nearest(name, BY_NAME))
        return
    try:
        node, problems = load(value.encode("utf-8", "surrogateescape") or b"''", where)
    except TunerError as error:
        loader.problems += [Problem(where, p.what, "the value is YAML, quoted for the shell") for p in error.problems]
        return
    if problems:
        loader.problems += [Problem(where, p.what, p.hint) for p in problems]
        return
    line = line_of(loader, knob, Node("scalar", 1, target), node, where)
    if line and line.setting:
        if line.setting.origin:
            _check_target(loader, knob, line.setting.target, where)
        lay(loader, line, stack.settings)


def _check_target(loader: Loader, knob: Knob, target: str, where: str) -> None:
    """A name given by hand must be there: a typing error is no setting that the kernel happens to lack."""
    if any(c in target for c in "*?[") or loader.host.kind == "image":
        return
    try:
        found = knob.read(loader.host, target)
        place = max(target.rfind("."), target.rfind("/")) + 1
        names = knob.targets(loader.host, f"{target[:place]}*") if isinstance(found, Absent) else []
    except (OSError, Unrecorded, BadValue):
        return
    close = difflib.get_close_matches(target, names, 1, cutoff=0.8)
    if isinstance(found, Absent) and target not in names:
        hint = f"did you mean {close[0]}?" if close else f"tuner explain {knob.name}"
        loader.wrong(where, f"{knob.name} {target}: {found.why}", hint)
