"""What each kernel parameter will be given at the next boot, as systemd-sysctl and procps order their files.

sysctl.d(5), systemd-sysctl.service(8), sysctl(8); src/sysctl/sysctl.c of systemd 252, src/sysctl.c of procps-ng 4.0.2.
A value is predicted only where every file that could change it was read and nobody else is known to write the key;
everything else is said in words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Union

from tuner.boot.appliers import Applier, applier
from tuner.boot.files import CREDENTIAL, VOLATILE, main_lines, volatile_names
from tuner.boot.lines import Line, path_of
from tuner.boot.moves import copied_from, inherits, late_interface, late_module, movers
from tuner.boot.owners import Owner, early_modules, others
from tuner.boot.table import Table, table
from tuner.host.door import Host

PATTERNS_SINCE = 245
"""The release of systemd that brought patterns and `-KEY`; older ones take them only where a vendor patched them in."""

CREDENTIAL_SINCE = 252
"""The release whose systemd-sysctl reads the credential sysctl.extra."""


@dataclass(frozen=True)
class Written:
    """The text that is written last, by `line`.

    `earlier` are written before it in the same run, `beaten` are not written at all. `order` is the place among all
    writes of the run, for keys that move each other. `late` says what has to happen before the key is there.
    """

    text: str
    line: Line
    order: int
    earlier: tuple[Line, ...] = ()
    beaten: tuple[Line, ...] = ()
    late: str = ""


@dataclass(frozen=True)
class Unset:
    """Nothing is written, so that the kernel's own value stays. `lines` speak of the key without effect."""

    why: str
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class NotPredicted:
    """It cannot be known from files, and why; `lines` speak of the key."""

    why: str
    lines: tuple[Line, ...] = ()


Prediction = Union[Written, Unset, NotPredicted]


def predict(host: Host, name: str | None = None) -> Boot:
    """The next boot of the host, by files. `name` (SYSTEMD or PROCPS) sets aside how the host starts."""
    who = applier(host) if name is None else Applier(name)
    if not who.name:
        return Boot(who, (), others(host), early_modules(host), {})
    credential = (who.version or CREDENTIAL_SINCE) >= CREDENTIAL_SINCE
    tables = [table(host, who.name, credential=credential)]
    if volatile_names(host):
        tables.append(table(host, who.name, volatile=False, credential=credential))
    return Boot(who, tuple(tables), others(host), early_modules(host), main_lines(host))


@dataclass(frozen=True)
class Boot:
    """The next boot: `applier` does it, `owners` write kernel parameters besides, `main` is /etc/sysctl.conf.

    There are two tables where /run/sysctl.d has files: the second is as if it were empty, which a reboot makes it.
    """

    applier: Applier
    tables: tuple[Table, ...]
    owners: tuple[Owner, ...]
    modules: frozenset[str]
    main: dict[str, Line]

    def value(self, key: str) -> Prediction:
        """What the key, in tuner's form or any other of sysctl.d(5), will be given."""
        path = path_of(key)
        if not self.tables:
            return NotPredicted(self.applier.why)
        found = [self._by_files(one, path) for one in self.tables]
        if len({_result(one) for one in found}) > 1:
            why = f"{VOLATILE} decides it, which is empty after a reboot until something fills it again"
            return NotPredicted(why, _lines(found[0]))
        return self._besides(path, found[-1])

    def order(self) -> tuple[Line, ...]:
        """All writes in their order, with patterns as they are written."""
        return tuple(line for line in self.tables[-1].entries if line.text is not None) if self.tables else ()

    def problems(self) -> tuple[str, ...]:
        """Files and lines that are of no use, and what could not be looked into."""
        if not self.tables:
            return (self.applier.why,)
        read = self.tables[0].read
        return (*(doubt.why for doubt in read.doubts), *read.problems)

    def _by_files(self, one: Table, path: str) -> Prediction:
        about = one.about(path)
        reaching = one.reaching(path)
        doubt = one.doubt(path) or self._old(reaching, about)
        if doubt:
            return NotPredicted(doubt, tuple(about))
        if not reaching:
            return self._unset(one, path, tuple(about))
        order, line = reaching[-1]
        written = [line for _, line in reaching]
        beaten = tuple(other for other in about if other not in written)
        return _moved(one, path, Written(line.text or "", line, order, tuple(written[:-1]), beaten))

    def _old(self, reaching: list[tuple[int, Line]], about: list[Line]) -> str:
        """Why an old systemd is not predicted: the result rests on a pattern or on `-KEY`."""
        if (self.applier.version or PATTERNS_SINCE) >= PATTERNS_SINCE:
            return ""
        rests = [line for _, line in reaching if line.pattern] + [line for line in about if line.text is None]
        version = f"systemd {self.applier.version}"
        return f"{rests[-1].where} is only understood since systemd 245, this is {version}" if rests else ""

    def _unset(self, one: Table, path: str, about: tuple[Line, ...]) -> Prediction:
        for other in filter(None, (inherits(path), *movers(path))):
            if doubt := one.doubt(other):
                return NotPredicted(f"{_dotted(other)} changes it as well, and {doubt}", about)
            for _, line in one.reaching(other):
                return NotPredicted(f"{_dotted(other)}, set at {line.where}, changes it as well", about)
        kept = [line for line in about if line.text is None]
        if kept:
            return Unset(f"{kept[-1].where} keeps every pattern off it", about)
        if path in self.main:
            return Unset(f"set at {self.main[path].where}, which {one.name} does not read", (self.main[path],))
        return Unset("no file sets it", about)

    def _besides(self, path: str, found: Prediction) -> Prediction:
        """What other owners, and the time at which the key appears, make of it."""
        if isinstance(found, NotPredicted):
            return found
        for owner in self.owners:
            if any(fnmatchcase(path, key) for key in owner.keys) and not self._stays(owner, path, found):
                return NotPredicted(f"{owner.name} writes it too: {owner.where}", _lines(found))
        if isinstance(found, Unset):
            return found
        late = late_interface(path)
        if late and found.line.path.endswith(f"/{CREDENTIAL}"):
            return NotPredicted(f"{found.line.where} is not read again when the interface appears", _lines(found))
        return replace(found, late=late or late_module(path, self.modules))

    def _stays(self, owner: Owner, path: str, found: Prediction) -> bool:
        """Whether the files win over the owner: they are applied after it, or once more."""
        if not isinstance(found, Written) or not owner.yields:
            return owner.first and isinstance(found, Written)
        last = self.main.get(path)
        again = found.line.path.startswith(("/etc/sysctl.d/", f"{VOLATILE}/")) and not found.line.pattern
        return again and (last is None or last.text == found.text)


def _moved(one: Table, path: str, found: Written) -> Prediction:
    """A key that another write changes afterwards is not predicted."""
    default = copied_from(path)
    for other in filter(None, (*movers(path), default)):
        if doubt := one.doubt(other):
            return NotPredicted(f"{_dotted(other)} may be written after it, and {doubt}", (found.line,))
        for order, line in one.reaching(other):
            if order > found.order and (other != default or line.text != found.text):
                why = f"{_dotted(other)} is written after it, at {line.where}, and changes it"
                return NotPredicted(why, (found.line, line))
    return found


def _result(found: Prediction) -> tuple[str, str]:
    """What two predictions are compared by."""
    return type(found).__name__, found.text if isinstance(found, Written) else ""


def _lines(found: Prediction) -> tuple[Line, ...]:
    return (*found.earlier, found.line) if isinstance(found, Written) else found.lines


def _dotted(path: str) -> str:
    return ".".join(part.replace(".", "/") for part in path.split("/"))
