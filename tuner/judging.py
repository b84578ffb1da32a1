"""What is applied, judged now: what verify, status and the prolog rest on."""

from __future__ import annotations

import errno
import time

from tuner import applied as cache
from tuner import hung, skips
from tuner import plan as planning
from tuner.errors import bad_input
from tuner.evidence import NotingTree
from tuner.host import Host, Unrecorded
from tuner.host.tree import fault
from tuner.journal import Journal
from tuner.knobs import BY_NAME
from tuner.ledger import Applied
from tuner.lock import PATH as LOCK
from tuner.lock import held
from tuner.model import Plan, Unreadable, Verdict

SETTLING = 1.0
"""Seconds that an apply in progress is given before it is said."""

IN_PROGRESS = "apply in progress"


def judged(host: Host) -> tuple[Applied, Plan]:
    """The applied generation and its verdicts; while an apply is under way, what differs is not known.

    TunerError (bad input) where nothing is applied. A device at which a look hangs is not asked.
    """
    guard(host, hung.living(host.root))
    applied, made, still = _looked(host)
    if not still:
        time.sleep(SETTLING)
        applied, made, still = _looked(host)
    if still:
        return applied, made
    verdicts = tuple(
        Verdict(v.setting, Unreadable(IN_PROGRESS), "unknown", IN_PROGRESS, v.disruption, remark=v.remark)
        if v.state in ("drift", "missing")
        else v
        for v in made.verdicts
    )
    return applied, Plan(made.settings_id, made.profile, verdicts, ())


def _looked(host: Host) -> tuple[Applied, Plan, bool]:
    """The applied generation, its verdicts, and whether nobody wrote meanwhile: a run may begin at any moment."""
    before = _last_run(host)
    applied = _applied(host, cache.current(host)[0])
    made = skips.marked(planning.verify(host, applied), host)
    return applied, made, not _writing(host) and _last_run(host) == before


def _last_run(host: Host) -> tuple[int, int]:
    """What tells one holder of the lock from the next: each writes its name there."""
    with host.tree.unnoted():
        try:
            status = host.stat(LOCK, follow=False)
        except (OSError, Unrecorded):
            return (0, 0)
    return (status.st_ino, status.st_mtime_ns)


def guard(host: Host, paths: list[str]) -> None:
    """From here on, a look at a device that hangs fails with EIO instead of hanging too."""
    if not paths:
        return
    tree = host.tree if isinstance(host.tree, NotingTree) else NotingTree(host.root)
    former = tree.watch

    def watch(path: str) -> None:
        if any(hung.touches(path, other) for other in paths):
            raise fault(errno.EIO, path)
        if former:
            former(path)

    tree.watch, host.tree = watch, tree


def asks_tools(applied: Applied) -> bool:
    """Whether a verdict rests on more than files: looking at the files again would not tell that it still holds."""
    return any(BY_NAME[s.knob].cost != "file" for s in applied.settings if s.knob in BY_NAME)


def lasting(host: Host) -> bool:
    """Whether an answer may be given again later: no run is open, nothing is skipped for a while, nothing hangs."""
    return not (open_run(host) or skips.load(host) or hung.living(host.root))


def open_run(host: Host) -> bool:
    """Whether a run began and did not end, or nobody may know."""
    with host.tree.unnoted():
        try:
            return any(g.open_run() for g in Journal(host).generations.values())
        except PermissionError:
            return True


def _applied(host: Host, found: Applied | None) -> Applied:
    if found is None:
        raise bad_input(str(host), "nothing applied yet", "tuner apply --profile NAME, or verify --profile NAME")
    return found


def _writing(host: Host) -> bool:
    """Whether a run is open and alive."""
    with host.tree.unnoted():
        return held(host) and open_run(host)
