"""settings + readings -> plan: a verdict for every setting, a change for each that differs, in the order of writing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tuner.errors import BadValue, Problem, TunerError
from tuner.expand import WILD, Gaps, expand
from tuner.host import Host, Unrecorded
from tuner.knobs import BY_NAME, Knob, number_of
from tuner.ledger import Applied, Ledger, applied
from tuner.model import (
    DISRUPTIONS,
    Absent,
    Change,
    Plan,
    Seen,
    Setting,
    Unreadable,
    Value,
    Verdict,
    Want,
    aim,
    leaves,
    met,
    replaced,
    same,
    settings_id,
)
from tuner.model import (
    known as known_value,
)
from tuner.nextboot import outlook
from tuner.persist import Keeping, derive
from tuner.readings import IN_IMAGE, Known, lingering, read

NO_TARGET = "no such target on this host"


@dataclass(frozen=True)
class Allowed:
    """The classes of disruption that may be caused now; `why` says for each other class why not."""

    classes: frozenset[str] = frozenset({"none", "app"})
    why: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, disruption: str) -> str:
        """Why a change of this class is held; empty when it is allowed."""
        return "" if disruption in self.classes else self.why.get(disruption) or f"needs --allow {disruption}"


NO_VALUE = ("unsupported", "missing", "unknown")
"""States in which nobody asked whether the target takes the value."""


def make(
    host: Host,
    profile: str,
    settings: Collection[Setting],
    allowed: Allowed,
    ledger: Ledger,
    *,
    keep_unmentioned: bool = False,
    keeping: Keeping | None = None,
) -> Plan:
    """The plan that brings `host` to `settings`, and gives back what live generations changed and these do not name.

    Raises TunerError for a value that this host's kernel or device would not take. Where a pattern names several
    devices and some take it, the others drift: the profile is not wrong, these devices are.
    """
    gaps: Gaps = {}
    expanded = expand(host, settings, gaps)
    keeping = keeping or Keeping()
    known = Known(host)
    expanded += derive(host, expanded, keeping, known, ledger)
    ahead = outlook(host, _wants(ledger), keeping.boots_from, expanded, known)
    problems = _contradictions(expanded, ledger)
    verdicts: dict[int, Verdict] = {}
    changes: list[tuple[Change, int]] = []
    refused: list[tuple[int, BadValue]] = []
    for place, setting in enumerate(expanded):
        try:
            verdict, change = _judge(known, setting, allowed, ledger, gaps)
        except BadValue as bad:
            refused.append((place, bad))
            continue
        verdicts[place] = ahead.see(verdict)
        if change:
            changes.append((change, place))
    taken = {(v.setting.knob, v.setting.written) for v in verdicts.values() if v.state not in NO_VALUE}
    for place, why in refused:
        setting = expanded[place]
        if (setting.knob, setting.written) in taken:
            verdicts[place] = ahead.see(_odd_one(host, setting, why))
        else:
            problems.append(Problem(setting.origin, f"{setting.knob} {setting.target}: {why.what}", why.hint))
    if problems:
        raise TunerError(problems)
    back, left = ([], []) if keep_unmentioned else give_back(host, expanded, allowed, ledger)
    changes += [(change, len(expanded) + place) for place, change in enumerate(reversed(back))]
    changes.sort(key=lambda c: order(c[0], c[1]))
    judged = tuple(verdicts[place] for place in sorted(verdicts))
    return Plan(settings_id(list(settings)), profile, judged, tuple(c for c, _ in changes), tuple(left))


def _odd_one(host: Host, setting: Setting, bad: BadValue) -> Verdict:
    """The verdict on a target that does not take what is wanted of it."""
    why = f"{bad.what}: {bad.hint}" if bad.hint else bad.what
    knob = BY_NAME[setting.knob]
    return Verdict(setting, read(host, knob, setting.target), "drift", why, knob.disruption(setting.target))


def _contradictions(expanded: list[Setting], ledger: Ledger) -> list[Problem]:
    """Settings that cannot stand beside what a live generation changed: a node and the total of one pool."""
    problems = []
    for name, knob in BY_NAME.items():
        ours = [s for s in expanded if s.knob == name]
        changed = [at[1] for at in ledger.first if at[0] == name]
        what = knob.clash([*(s.target for s in ours), *changed]) if ours and changed else ""
        if what:
            hint = "a live generation set the other way: tuner rollback first"
            problems.append(Problem(ours[0].origin, what, hint))
    return problems


def order(change: Change, place: int) -> tuple[int, int, int, int, str]:
    """Mildest first, then by the list of knobs and the knob's own order, then as the profile has it."""
    rank = BY_NAME[change.knob].rank(change.target)
    return DISRUPTIONS.index(change.disruption), number_of(change.knob), rank, place, change.target


def _judge(
    known: Known, setting: Setting, allowed: Allowed, ledger: Ledger, gaps: Gaps
) -> tuple[Verdict, Change | None]:
    knob = BY_NAME[setting.knob]
    disruption = knob.disruption(setting.target)
    nowhere = IN_IMAGE if known.host.kind == "image" else Absent(NO_TARGET)
    verdict = Verdict(setting, nowhere, "unsupported", nowhere.why, disruption)
    if WILD & set(setting.target):
        gap = gaps.get((setting.knob, setting.written))
        return (replace(verdict, reading=Unreadable(gap), state="unknown", why=gap) if gap else verdict), None
    host, found = known.host, known.read(setting)
    verdict = replace(verdict, reading=found)
    match found:
        case Absent(why):
            if setting.at in ledger.present:
                why = f"was there at apply{_device(ledger, setting)}: {why}"
                return replace(verdict, state="missing", why=why), None
            return replace(verdict, why=why), None
        case Unreadable(why, "no getter"):
            verdict, change = _judge_seen(host, verdict, None, allowed, ledger)
            return (verdict if verdict.why else replace(verdict, why=why)), change
        case Unreadable(why, fault):
            return replace(verdict, state="missing" if fault == "device" else "unknown", why=why), None
        case Seen(value):
            return _judge_seen(host, verdict, value, allowed, ledger)


def _device(ledger: Ledger, setting: Setting) -> str:
    return f" ({ledger.identities[setting.at]})" if setting.at in ledger.identities else ""


def _judge_seen(
    host: Host, verdict: Verdict, value: Value, allowed: Allowed, ledger: Ledger
) -> tuple[Verdict, Change | None]:
    """A target that could be read: as wanted, waiting, out of reach, or to be changed."""
    setting = verdict.setting
    knob = BY_NAME[setting.knob]
    want = normalised(host, knob, setting)
    if want is None:
        return replace(verdict, state="unknown", why="what this target takes could not be read"), None
    state = met(want, value, knob.key)
    if state != "drift":
        waiting, remark = knob.waits(value), knob.remark(host, setting.target, value)
        return replace(verdict, state="pending" if waiting else state, why=waiting, remark=remark), None
    settled = _without_change(host, knob, setting, want, verdict)
    if settled:
        return settled, None
    change = _change(host, knob, setting, want, value, allowed, ledger)
    remark = knob.remark(host, setting.target, value)
    verdict = replace(verdict, state="held" if change.held else "drift", why=change.held, note=change.note)
    return replace(verdict, remark=remark), change


def _without_change(host: Host, knob: Knob, setting: Setting, want: Want, verdict: Verdict) -> Verdict | None:
    """The verdict on a setting that differs and that no write of ours can mend; None when one can."""
    value = want.choices()[0]
    waiting = knob.pending(host, setting.target, value)
    if waiting:
        return replace(verdict, state="pending", why=waiting)
    if knob.read_only:
        return replace(verdict, state="drift", why=knob.advice(host, setting.target, value))
    blocked = read_only(host, knob, setting.target)
    return replace(verdict, state="unsupported", why=blocked) if blocked else None


def normalised(host: Host, knob: Knob, setting: Setting) -> Want | None:
    """The Want in the form that the target would hold; None where the host cannot be asked what it takes."""
    want = setting.want
    try:
        values = tuple(knob.normalise(host, setting.target, choice) for choice in want.choices())
    except BadValue:
        raise
    except (OSError, Unrecorded, ValueError):
        return None
    if want.kind in ("at_least", "at_most"):
        for leaf in leaves(values[0]):
            if not isinstance(knob.key(leaf), (int, float)):
                raise BadValue(f"{want.kind} needs a number, and this target holds {leaf!r}", "use value or one_of")
    return Want(want.kind, values if want.kind == "one_of" else values[0])


def read_only(host: Host, knob: Knob, target: str) -> str:
    """Why no write to the target is possible at all; empty when one is."""
    return "" if all(host.writable(path) for path in knob.files(host, target)) else "read-only here"


def _change(
    host: Host, knob: Knob, setting: Setting, want: Want, seen: Value, allowed: Allowed, ledger: Ledger
) -> Change:
    value = aim(want, seen, knob.key)
    disruption = knob.disruption(setting.target)
    entry = ledger.first.get(setting.at)
    guard = knob.guard(host, setting.target, value, Seen(entry.before) if entry else None)
    note = knob.note(seen, value, setting.target)
    return Change(
        setting.knob, setting.target, seen, value, want, disruption, guard or allowed.refusal(disruption), note=note,
        via=setting.via,
    )  # fmt: skip


def give_back(
    host: Host, settings: Collection[Setting], allowed: Allowed, ledger: Ledger
) -> tuple[list[Change], list[str]]:
    """Changes back to the first `before` of what live generations changed and `settings` do not name, oldest first.

    Also returns what is left alone because somebody changed it since.
    """
    named = {setting.at for setting in settings}
    changes: list[Change] = []
    left: list[str] = []
    for at, entry in ledger.first.items():
        if at in named or at[0] not in BY_NAME:
            continue
        knob = BY_NAME[at[0]]
        found = read(host, knob, at[1])
        if isinstance(found, Unreadable) and known_value(found) is None:
            left.append(f"{at[0]} {at[1]}: no longer in the profile, and cannot be read: {found.why}")
        lingers = lingering(host, at, found)
        now = found.value if isinstance(found, Seen) else None
        if not lingers and (not isinstance(found, Seen) or knob.restored(entry.before, now)):
            continue
        if replaced(entry.identity, knob.identity(host, at[1])):
            left.append(f"{at[0]} {at[1]}: no longer in the profile, other hardware now")
            continue
        if not lingers and not same(named_fields(ledger.left.get(at, entry.left), entry.fields), now):
            left.append(f"{at[0]} {at[1]}: no longer in the profile, not ours any more")
            continue
        disruption = knob.disruption(at[1])
        held = knob.guard(host, at[1], entry.before, Seen(entry.before)) or allowed.refusal(disruption)
        want = Want("value", entry.before)
        changes.append(Change(*at, now, entry.before, want, disruption, held, True, "no longer in the profile"))
    return changes, left


def named_fields(value: Value, fields: list[str] | None) -> Value:
    """The part of a record that a Want named; any other value whole."""
    if fields is None or not isinstance(value, Mapping):
        return value
    return {name: value[name] for name in fields if name in value}


def fields_of(want: Want) -> list[str] | None:
    """The fields that a Want names; None where the value is no record."""
    value = want.choices()[0] if want.choices() else None
    return sorted(value) if isinstance(value, Mapping) else None


def _wants(ledger: Ledger) -> dict[tuple[str, str], Want]:
    """What the applied generation wants at each place."""
    return {s.at: s.want for s in applied(ledger.newest).settings} if ledger.newest else {}


def verify(host: Host, judged: Applied) -> Plan:
    """The applied generation judged: what was there at apply and is not now is missing, what was held is still held."""
    verdicts = []
    then = Ledger(present=judged.present, identities=judged.identities)
    known = Known(host)
    ahead = outlook(host, {s.at: s.want for s in judged.settings}, judged.boots_from, judged.settings, known)
    for setting in judged.settings:
        if setting.knob not in BY_NAME:
            why = f"this version of tuner has no knob {setting.knob}"
            verdicts.append(Verdict(setting, Unreadable(why), "unknown", why))
            continue
        try:
            verdict, change = _judge(known, setting, Allowed(frozenset(DISRUPTIONS)), then, {})
            if change and not BY_NAME[setting.knob].rivals:  # the guard speaks of a write, and none is meant here
                verdict = replace(verdict, why=getattr(verdict.reading, "why", ""))
        except BadValue as bad:
            verdict = _odd_one(host, setting, bad)
        was, now = judged.identities.get(setting.at, ""), BY_NAME[setting.knob].identity(host, setting.target)
        if known_value(verdict.reading) and replaced(was, now):
            verdict = replace(verdict, state="missing", why=f"other hardware: {now}; at apply {was}")
        elif verdict.state in ("drift", "held"):
            held = setting.at in judged.held
            verdict = replace(verdict, state="held", why="held at apply") if held else replace(verdict, state="drift")
        verdicts.append(ahead.see(verdict))
    return Plan(judged.settings_id, judged.profile, tuple(verdicts), ())
