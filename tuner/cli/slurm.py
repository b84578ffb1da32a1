"""slurm prolog, install, skip, reason: the check before each job, and what Slurm needs for it."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import posixpath
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from tuner import applied as cache
from tuner import documents, render, skips
from tuner.boot import units
from tuner.cli.common import Answer, open_root, who
from tuner.cli.installing import RELOADS, SAFE, Done, parents, refusals, there, told
from tuner.cli.installing import interpreter as checked
from tuner.errors import BadValue, Exit, Problem, TunerError, bad_input
from tuner.host import Host, Unrecorded
from tuner.host.shell import run
from tuner.knobs import BY_NAME
from tuner.lock import locked
from tuner.skips import Skip
from tuner.slurm import DRAIN, conf, scontrol, script, store
from tuner.slurm import policy as policies
from tuner.slurm.conf import Finding
from tuner.slurm.policy import Policy

PATIENCE = 5.0
"""Seconds that Slurm and systemd may take to say which release they are, and what slurmd's limits are."""
WAIT = 5.0
"""Seconds for another run to let go of the lock."""


def prolog(args: argparse.Namespace) -> Answer:
    """What the decision for a job would be now: exit 0, or 86 where this node must not take it. Drains nothing."""
    from tuner.slurm.prolog import run as decide

    host = open_root(args.root)
    code, lines = decide(host.root, acting=False)
    word = "drain" if code == DRAIN else "start"
    document = {"schema": "tuner.slurm-prolog/1", "host": documents.host(host), "decision": word, "said": lines}
    return cast(Exit, code), document, [render.head(host), *lines, f"{word} (exit {code})"]


def reason(args: argparse.Namespace) -> Answer:
    """Replaces Slurm's own `Prolog error` by what the prolog found; exit 12 where Slurm could not be asked."""
    host = open_root(args.root)
    drained = store.left(host)
    done, said = scontrol.tell(drained) if drained else (True, f"no reason was left in {store.REASON}")
    found = asdict(drained) if drained else None
    document = {"schema": "tuner.slurm-reason/1", "host": documents.host(host), "drained": found, "said": said}
    return Exit.OK if done else Exit.UNKNOWN, document, [render.head(host), said]


def skip(args: argparse.Namespace) -> Answer:
    """For a while, what differs at a place keeps no job away; without a place, the skips that are in force."""
    host = open_root(args.root, writing=bool(args.place))
    if args.place:
        _change(host, args)
    elif args.remove or args.span or args.why:
        raise bad_input("", "which knob is skipped?", "tuner slurm skip KNOB[:TARGET] --for 2h --why TEXT")
    found = skips.load(host)
    rows = [(_place(s.knob, s.target), s.words()) for s in found]
    document = {"schema": "tuner.slurm-skip/1", "host": documents.host(host), "skips": [asdict(s) for s in found]}
    lines = render.table(rows, group=False) if rows else ["no skips"]
    return Exit.OK, document, [render.head(host), *lines, *_idle(host, found)]


def _idle(host: Host, found: Sequence[Skip]) -> list[str]:
    """Skips of places that no applied setting has: a name mistyped, or a profile not applied yet."""
    applied = cache.current(host)[0]
    settings = applied.settings if applied else ()
    idle = [skip for skip in found if not any(skip.covers(*setting.at) for setting in settings)]
    return [f"{_place(s.knob, s.target)}: no applied setting is there, so it skips nothing now" for s in idle]


def _change(host: Host, args: argparse.Namespace) -> None:
    """Adds, replaces or removes the skip of one place."""
    knob, target = _asked(args.place)
    if args.remove == bool(args.span or args.why):
        hint = "tuner slurm skip KNOB --for 2h --why TEXT, or tuner slurm skip KNOB --remove"
        raise bad_input("", "a skip needs --for and --why, or else --remove alone", hint)
    if not args.remove and not (args.why and args.why.strip() and args.span):
        raise bad_input("", "a skip needs --for and --why", "say how long and why: whoever finds it will ask")
    fresh = [] if args.remove else [skips.made(knob, target, args.span, args.why, who())]
    with locked(host, who(), WAIT):
        others = [s for s in skips.load(host) if (s.knob, s.target) != (knob, target)]
        if len(others) >= skips.MOST:
            raise bad_input(skips.PATH, f"holds {skips.MOST} skips", "tuner off --why TEXT skips everything")
        try:
            skips.keep(host, [*others, *fresh])
        except OSError as error:
            raise bad_input(skips.PATH, f"cannot be written: {error.strerror}", "is /etc read-only?") from None


def _asked(place: str) -> tuple[str, str]:
    name, _, target = place.partition(":")
    if name not in BY_NAME:
        raise bad_input(place, f"no knob {name!r}", f"known: {', '.join(BY_NAME)}")
    try:
        return name, BY_NAME[name].canonical(target) if target else ""
    except BadValue as bad:
        raise bad_input(place, bad.what, bad.hint) from None


def _place(knob: str, target: str) -> str:
    return f"{knob}:{target}" if target else knob


def slurm_install(args: argparse.Namespace) -> Answer:
    """Writes the script and the units, and says what slurm.conf should say; --dry-run and --remove in place of that."""
    host = open_root(args.root, writing=not args.dry_run)
    path = f"{args.directory.rstrip('/')}/{script.NAME}"
    _safe("--dir", path)
    if args.remove:
        read = _conf(host)
        scripts = _scripts(host, path, read)
        for one in scripts:
            _needed(host, one, read)
        done = _removed(host, scripts, args.dry_run)
        return _answer(host, done, [], "would be removed" if args.dry_run else "removed")
    judged = args.judged_root or ""
    if judged:
        _safe("--judged-root", judged.replace(script.NODE, "n"))
    files = _texts(host, path, args.python, judged)
    taken = [place for place in (*files, script.WANTED) if there(host, place) and not _ours(host, place)]
    if taken:
        what = "is there and was not written by tuner"
        raise TunerError([Problem(place, what, "move it away (systemctl unmask NAME, if masked)") for place in taken])
    done = _written(host, files, args.dry_run)
    word = "would be written" if args.dry_run else "installed"
    return _answer(host, done, _findings(host, posixpath.dirname(path)), word)


def _safe(option: str, path: str) -> None:
    if not SAFE.fullmatch(path) or "/../" in f"{path}/":
        hint = "letters, digits and ._+@- only, such as /etc/slurm/prolog.d"
        raise bad_input(option, f"{path!r} is no absolute path that a script takes", hint)


def _texts(host: Host, path: str, python: str | None, judged: str) -> dict[str, str]:
    """All that install writes, path -> text; the units only where there is systemd."""
    interpreter = checked(host, python)
    found = {path: script.script(interpreter, judged)}
    return {**found, **script.files(interpreter, [path, *_noted(host)])} if _has_systemd(host) else found


def _noted(host: Host) -> list[str]:
    """Where earlier installs put scripts that are there still, as the service of ours says."""
    service = f"{units.FOLDER}/{script.SERVICE}"
    paths = script.noted(host.text(service)) if _ours(host, service) else []
    return [path for path in paths if SAFE.fullmatch(path) and _ours(host, path)]


def _scripts(host: Host, path: str, read: conf.Conf) -> list[str]:
    """The script at `path`, and those of ours that the service or a Prolog of slurm.conf leads to."""
    led = [f"{folder.rstrip('/')}/{script.NAME}" for folder in read.folders()]
    found = [path, *_noted(host), *(one for one in led if _ours(host, one))]
    return list({_real(host, one): one for one in reversed(found)}.values())[::-1]


def _real(host: Host, path: str) -> str:
    try:
        return host.tree.real(path)
    except OSError:
        return path


def _ours(host: Host, path: str) -> bool:
    """Whether install wrote it: a file by one of its first two lines, a link by the unit that it names."""
    try:
        if path == script.WANTED:
            return posixpath.basename(host.link(path)) == script.PATH_UNIT
        first = host.text(path).split("\n", 2)[:2] if stat.S_ISREG(host.stat(path, follow=False).st_mode) else []
        return any(units.version(line) is not None for line in first)
    except (OSError, Unrecorded):
        return False


def _has_systemd(host: Host) -> bool:
    places = ["/run/systemd/system"] if host.kind == "live" else ["/usr/lib/systemd/system", "/lib/systemd/system"]
    return any(there(host, place) for place in places)


def _mode(path: str) -> int:
    return 0o755 if path.endswith(f"/{script.NAME}") else 0o644


def _written(host: Host, files: dict[str, str], dry: bool) -> Done:
    done = Done()
    with_units = len(files) > 1
    todo = [path for path, text in files.items() if not _current(host, path, text)]
    linked = not with_units or there(host, script.WANTED)
    done.written = [*todo, *([] if linked else [script.WANTED])]
    if dry or not done.written:
        return done
    with locked(host, who(), WAIT), refusals():
        for path in todo:
            parents(host, path)
            store.place(host, path, files[path].encode("ascii"), _mode(path))
        if not linked:
            parents(host, script.WANTED)
            host.symlink(script.WANTED, posixpath.join(units.FOLDER, script.PATH_UNIT))
        if with_units:
            words = ("systemctl", "restart", script.PATH_UNIT)
            done.after = told(host, [RELOADS[0], words])
    return done


def _current(host: Host, path: str, text: str) -> bool:
    try:
        status = host.stat(path, follow=False)
        return host.text(path) == text and stat.S_IMODE(status.st_mode) == _mode(path) and _roots(status.st_uid)
    except (OSError, Unrecorded):
        return False


def _roots(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _needed(host: Host, path: str, read: conf.Conf) -> None:
    """Refuses to empty a folder that slurm.conf names: slurmd fails, and so drains, where its pattern finds nothing."""
    folder, name = posixpath.split(path)
    try:
        others = [other for other in host.list(folder) if other != name and not other.startswith(".")]
    except (OSError, Unrecorded):
        return
    for pattern in read.naming(path) if there(host, path) else ():
        if not fnmatch.filter(others, posixpath.basename(pattern)):
            what = f"says Prolog={pattern}, and this is its only script: slurmd drains a node where that finds nothing"
            raise bad_input(read.path, what, "take that line out, scontrol reconfigure, then remove the script")


def _conf(host: Host) -> conf.Conf:
    """slurm.conf of this host; empty where none is found."""
    path = conf.find(host, os.environ.get("SLURM_CONF", "") if host.kind == "live" else "")
    return conf.read(host, path) if path else conf.Conf()


def _removed(host: Host, scripts: list[str], dry: bool) -> Done:
    """Only what install wrote; a unit that runs is stopped first."""
    done = Done()
    places = [*scripts, script.WANTED, *script.files(sys.executable)]
    found = [place for place in places if there(host, place)]
    mine = [place for place in found if _ours(host, place)]
    done.left = [f"{place}: not written by tuner" for place in found if place not in mine]
    done.removed = mine
    if dry or not mine:
        return done
    with locked(host, who(), WAIT), refusals():
        with_units = any(place.startswith(units.FOLDER) for place in mine)
        if with_units:
            done.after = told(host, [("systemctl", "stop", script.PATH_UNIT)])
        for place in mine:
            host.unlink(place)
        if with_units:
            done.after += told(host, [RELOADS[0]])
    return done


def _findings(host: Host, directory: str) -> list[Finding]:
    """What bites, of the policy, of slurm.conf, of slurmd and of the folder."""
    policy, found = _policy(host)
    read = _conf(host)
    rows = conf.findings(read, _release(host), directory, policy.budget_s)
    if not read.path:
        found.append(Finding("note", "no slurm.conf found here: this is what it has to say", "or name it: SLURM_CONF"))
        rows = [replace(row, level="note") for row in rows]
    found += rows
    if host.kind == "live" and there(host, "/run/systemd/system"):
        found += conf.memlock(run(["systemctl", "show", "--property=LimitMEMLOCK", "slurmd.service"], PATIENCE).out)
    with contextlib.suppress(OSError, Unrecorded):
        names = [name for name in host.list(directory) if not name.startswith(".")]
        found += conf.neighbours(names, script.NAME)
        found += conf.dead([name for name in names if not _runs(host, f"{directory}/{name}")], directory)
    return found


def _runs(host: Host, path: str) -> bool:
    """Whether slurmd can start it."""
    status = host.stat(path)
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)


def _policy(host: Host) -> tuple[Policy, list[Finding]]:
    try:
        policy = policies.of(host)
    except TunerError as error:
        return Policy(), [Finding("wrong", f"{p.where}: {p.what}", p.hint) for p in error.problems]
    strange = policies.strangers(policy)
    what = f"{policies.PATH}: no knob {', '.join(strange)} in this release: gates nothing"
    return policy, [Finding("note", what, "a later release may have it")] if strange else []


def _release(host: Host) -> tuple[int, int] | None:
    if host.kind != "live":
        return None
    for words in (["slurmd", "-V"], ["scontrol", "--version"]):
        found = conf.version(run(words, PATIENCE).out)
        if found:
            return found
    return None


def _answer(host: Host, done: Done, found: list[Finding], word: str) -> Answer:
    document: dict[str, Any] = {
        "schema": "tuner.slurm-install/1",
        "host": documents.host(host),
        "written": done.written,
        "removed": done.removed,
        "left": done.left,
        "after": [{"action": action, "done": not why, "why": why} for action, why in done.after],
        "findings": [asdict(finding) for finding in found],
        "lines": [finding.line for finding in found if finding.line],
    }
    lines = [render.head(host), *(f"  {word}   {path}" for path in (*done.written, *done.removed))]
    lines += [f"  left alone   {why}" for why in done.left]
    lines += [f"  {action}: {why or 'done'}" for action, why in done.after]
    if not (done.written or done.removed or done.left):
        lines.append("Nothing to do: all is as it should be")
    for finding in found:
        lines += [f"  {finding.level:5}   {finding.what}", f"          {finding.do}"]
    if document["lines"]:
        lines += ["", "For slurm.conf, which is yours to edit:", *(f"  {line}" for line in document["lines"])]
    wrong = done.left or (host.kind == "live" and any(why for _, why in done.after))
    return Exit.DIFFERS if wrong or any(f.level == "wrong" for f in found) else Exit.OK, document, lines
