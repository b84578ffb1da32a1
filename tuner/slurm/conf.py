"""slurm.conf as it is read here: what it says about prologs, and what of it bites. It is never written.

Keys are case-insensitive, a backslash continues a line, Include names further files (slurm.conf(5)).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.host import Host, Unrecorded
from tuner.slurm.script import NAME

PLACES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
CONFIGLESS = "/run/slurm/conf/"
DEEPEST = 8
MESSAGE_TIMEOUT = 10
CRED_EXPIRE = 120
PAIR = re.compile(r"([A-Za-z][\w.]*)\s*=\s*(\"[^\"]*\"|.*)")
NUMBER = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class Finding:
    """Something that bites: `level` is wrong (a job or node suffers) or note; `line` is what slurm.conf should say."""

    level: str
    what: str
    do: str
    line: str = ""


@dataclass
class Conf:
    """The keys of a slurm.conf, in lower case, each with its last value; `prologs` are all of Prolog."""

    path: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    prologs: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def number(self, key: str) -> int | None:
        """A key that is a number of seconds; None where it is not given or none."""
        found = NUMBER.match(self.keys.get(key, ""))
        return int(found.group()) if found else None

    def naming(self, path: str) -> list[str]:
        """The patterns of Prolog that find this file (glob(7): a `*` ends at a slash)."""
        folder, name = posixpath.split(path)
        cut = [(pattern, *posixpath.split(pattern)) for pattern in self.prologs]
        return [pattern for pattern, where, last in cut if where == folder and fnmatch.fnmatchcase(name, last)]

    def folders(self) -> list[str]:
        """The folders of Prolog's patterns, but those that are patterns themselves."""
        found = [posixpath.dirname(pattern) for pattern in self.prologs if pattern.startswith("/")]
        return [folder for folder in dict.fromkeys(found) if not set("*?[") & set(folder)]

    def words(self, key: str) -> list[str]:
        """A key that is a list, in lower case."""
        return [word.strip().lower() for word in self.keys.get(key, "").split(",") if word.strip()]


def find(host: Host, named: str = "") -> str:
    """Where slurm.conf is: what SLURM_CONF says, else the usual places; empty where there is none."""
    for path in (named, *PLACES) if named else PLACES:
        try:
            if host.exists(path):
                return path
        except (OSError, Unrecorded):
            continue
    return ""


def read(host: Host, path: str) -> Conf:
    """The configuration that starts at `path`."""
    conf = Conf(path)
    _take(host, conf, path, 0)
    return conf


def _take(host: Host, conf: Conf, path: str, depth: int) -> None:
    try:
        text = host.text(path)
    except (OSError, Unrecorded) as error:
        conf.unread.append(f"{path}: {getattr(error, 'strerror', None) or error}")
        return
    for line in logical(text):
        words = line.split(None, 1)
        if words[0].lower() == "include" and len(words) > 1:
            if depth < DEEPEST:
                _take(host, conf, posixpath.join(posixpath.dirname(conf.path), words[1].strip()), depth + 1)
            continue
        found = PAIR.fullmatch(line)
        if found and found.group(1).lower() == "prolog":
            conf.prologs.append(found.group(2).strip().strip('"'))
        if found:
            conf.keys[found.group(1).lower()] = found.group(2).strip().strip('"')


def logical(text: str) -> list[str]:
    """Lines without comments, continued ones as one, empty ones left out."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = [re.sub(r"(?<!\\)#.*", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line]


def version(said: str) -> tuple[int, int] | None:
    """(22, 5) out of `slurm-wlm 22.05.8` or `slurm 23.11.4`; None for anything else."""
    found = re.search(r"\b(\d\d)\.(\d\d)\b", said)
    return (int(found.group(1)), int(found.group(2))) if found else None


def findings(conf: Conf, release: tuple[int, int] | None, directory: str, budget: float) -> list[Finding]:
    """Everything that bites in a slurm.conf, for a script in `directory` that needs up to `budget` seconds."""
    return [
        *_prolog(conf, directory),
        *_timeout(conf, release, budget),
        *_flags(conf, release),
        *_requeue(conf),
        *_limits(conf),
        *_about(conf, directory),
    ]


def _prolog(conf: Conf, directory: str) -> list[Finding]:
    line = f"Prolog={directory}/*"
    if conf.naming(f"{directory}/{NAME}"):
        return []
    if not conf.prologs:
        do = "add it, once every node has a script there: slurmd drains a node where it finds none"
        return [Finding("wrong", "Prolog is not set: nothing runs before a job", do, line)]
    what = f"Prolog is {', '.join(conf.prologs)}: the script in {directory} never runs"
    return [Finding("wrong", what, "move that script into the folder, and name the folder", line)]


def _timeout(conf: Conf, release: tuple[int, int] | None, budget: float) -> list[Finding]:
    own = "prologtimeout" if release and release >= (25, 5) and "prologtimeout" in conf.keys else "prologepilogtimeout"
    name = {"prologtimeout": "PrologTimeout", "prologepilogtimeout": "PrologEpilogTimeout"}[own]
    limit, message = conf.number(own), conf.number("messagetimeout") or MESSAGE_TIMEOUT
    good = max(message - 1, int(budget) + 2)
    line, found = f"{name}={good}", []
    if limit is None:
        found.append(Finding("wrong", f"{name} is not set: a prolog that hangs holds its job for ever", "add it", line))
    elif limit <= budget:
        what = f"{name}={limit} is not more than the budget of {budget:g} s: slurmd would drain the node first"
        found.append(Finding("wrong", what, "raise it, or lower budget_s", line))
    kept = good if limit is None or limit <= budget else limit
    if kept >= message:
        what = f"{name}={kept} is not less than MessageTimeout ({message} s): srun may give up while a prolog runs"
        found.append(Finding("note", what, "raise MessageTimeout", f"MessageTimeout={kept + 1}"))
    return found


def _flags(conf: Conf, release: tuple[int, int] | None) -> list[Finding]:
    flags, found = conf.words("prologflags"), []
    for flag, since in (("runinjob", (24, 5)), ("forcerequeueonfail", (23, 2))):
        if flag in flags and release and release < since:
            what = f"PrologFlags={flag} exists from {since[0]}.{since[1]:02d}; this is {release[0]}.{release[1]:02d}"
            found.append(Finding("wrong", what, "take it out: the daemons refuse the file"))
    if not {"alloc", "contain", "x11", "runinjob"} & set(flags):
        what = "PrologFlags has no Alloc: the prolog runs at the first step, not when the job is allocated"
        found.append(Finding("wrong", what, "add it", f"PrologFlags={','.join(['Alloc', *flags])}"))
    if "serial" in flags:
        what = "PrologFlags=Serial runs prologs of a node one after another: their budgets add up"
        found.append(Finding("wrong" if "runinjob" in flags else "note", what, "leave Serial out if jobs share nodes"))
    if "forcerequeueonfail" not in flags:
        newer = release is None or release >= (23, 2)
        do = "PrologFlags=ForceRequeueOnFail" if newer else "no remedy before 23.02"
        found.append(Finding("note", "jobs with --no-requeue are cancelled when a prolog fails", do))
    return found


def _requeue(conf: Conf) -> list[Finding]:
    found = []
    scheduler = conf.words("schedulerparameters")
    if "nohold_on_prolog_fail" not in scheduler:
        what = "a batch job whose prolog fails is requeued held: nobody starts it again"
        line = f"SchedulerParameters={','.join([*scheduler, 'nohold_on_prolog_fail'])}"
        found.append(Finding("wrong", what, "add nohold_on_prolog_fail", line))
    match = re.search(r"cred_expire=(\d+)", conf.keys.get("authinfo", ""))
    seconds = int(match.group(1)) if match else CRED_EXPIRE
    if seconds >= CRED_EXPIRE:
        what = f"a requeued job waits {seconds} s for its credential to expire before it starts elsewhere"
        found.append(Finding("note", what, "AuthInfo=cred_expire=SECONDS makes that shorter"))
    return found


def _limits(conf: Conf) -> list[Finding]:
    some, others = conf.words("propagateresourcelimits"), conf.words("propagateresourcelimitsexcept")
    if some and others:
        what = "PropagateResourceLimits and PropagateResourceLimitsExcept exclude each other"
        return [Finding("wrong", what, "keep one of them")]
    if "memlock" in others or "all" in others or some == ["none"] or (some and not {"all", "memlock"} & set(some)):
        return []
    what = "jobs take memlock from where they were submitted, not from slurmd: RDMA fails with little of it"
    return [Finding("wrong", what, "except it", "PropagateResourceLimitsExcept=MEMLOCK")]


def memlock(said: str) -> list[Finding]:
    """Of `systemctl show --property=LimitMEMLOCK slurmd.service`: jobs get no more than slurmd itself has."""
    name, _, value = said.strip().partition("=")
    if name != "LimitMEMLOCK" or value in ("infinity", ""):
        return []
    what = f"slurmd.service has memlock {value}: no job gets more, and RDMA registers memory"
    return [Finding("wrong", what, "tuner profile: limits: {slurmd.service/memlock: infinity}")]


def _about(conf: Conf, directory: str) -> list[Finding]:
    found = [Finding("note", f"cannot be read: {what}", "what it says is not judged") for what in conf.unread]
    if conf.path.startswith(CONFIGLESS):
        what = f"{conf.path} comes from slurmctld (configless): change it there; {directory} is needed on every node"
        found.append(Finding("note", what, "scontrol reconfigure afterwards"))
    return found


def neighbours(names: Sequence[str], ours: str) -> list[Finding]:
    """What the other scripts of the folder mean: they run in reverse order of names, up to the first that fails."""
    first = sorted((name for name in names if name > ours), reverse=True)
    if not first:
        return []
    runs = "runs" if len(first) == 1 else "run"
    what = f"{', '.join(first)} {runs} before {ours} (reverse order of names); where one fails, ours never runs"
    return [Finding("note", what, "give ours a later name if it has to be the first")]


def dead(names: Sequence[str], directory: str) -> list[Finding]:
    """Files of the folder that slurmd cannot start: it takes each as a prolog that failed (src/slurmd/common)."""
    if not names:
        return []
    what = f"{', '.join(sorted(names))} in {directory}: no executable file, so every prolog fails and drains its node"
    return [Finding("wrong", what, "take it away, or chmod 755")]
