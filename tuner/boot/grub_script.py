"""GRUB's script language, run as far as files decide: what each variable and each menu entry would be.

GNU GRUB manual, "Writing full configuration files directly"; grub-core/normal/main.c, commands/test.c. Nothing is
done: commands that only GRUB at boot can answer (what firmware, which disk) leave their variables and conditions open,
and both ways are followed. Menu entries that only one way has are open as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.boot.grub_words import Command, Function, If, Loop, Statement, Unparsed, Word, parse

Variables = dict[str, "str | None"]
"""None is a value that only GRUB knows."""

OPEN = frozenset({
    "root", "grub_platform", "grub_cpu", "cmdpath", "lang", "locale_dir", "?", "match", "shim_lock", "lockdown",
    "efi_arch", "pxe_default_server", "net_default_server", "gfxmode", "check_signatures",
})  # fmt: skip
"""Variables that GRUB itself sets at boot."""

FEATURES = frozenset({
    "feature_chainloader_bpb", "feature_ntldr", "feature_platform_search_hint", "feature_default_font_path",
    "feature_all_video_module", "feature_menuentry_id", "feature_menuentry_options", "feature_200_final",
    "feature_nativedisk_cmd", "feature_timeout_style",
})  # fmt: skip
"""grub-core/normal/main.c, features[]: y in every release since 2.02."""

LINUX = frozenset({"linux", "linux16", "linuxefi"})
WITH_ARGUMENT = frozenset({"--class", "--users", "--hotkey", "--source", "--id"})
ASSIGNS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
DEEPEST = 8
"""Functions and sourced files in one another."""


@dataclass(frozen=True)
class Entry:
    """A menu entry or submenu. `sure` is False where GRUB may leave it out."""

    title: str | None
    id: str | None
    block: tuple[Statement, ...]
    line: int
    path: str
    submenu: bool = False
    sure: bool = True


@dataclass(frozen=True)
class Boot:
    """A line `linux KERNEL ARGUMENTS`; None for words that only GRUB knows."""

    words: tuple[str | None, ...]
    line: int
    path: str


@dataclass
class Run:
    """A script that runs. `look(path)` gives the text of a file beside the configuration, None for one that is not."""

    path: str
    look: Callable[[str], str | None]
    loader_env: Callable[[], Mapping[str, str]]
    variables: Variables = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    boots: list[Boot] = field(default_factory=list)
    bls: Callable[[Run], list[Entry]] | None = None
    """What blscfg adds to the menu; None where there is no such command."""
    depth: int = 0

    def value(self, name: str) -> str | None:
        """The value of a variable: empty where it is not set, None where only GRUB knows."""
        if name in self.variables:
            return self.variables[name]
        return "y" if name in FEATURES else None if name in OPEN else ""

    def expand(self, word: Word) -> list[str | None]:
        """A word as the command gets it: variables without quotes are split at blanks, and may vanish."""
        made: list[str | None] = []
        joined = False
        for part in word:
            text = self.value(part.text) if part.variable else part.text
            if text is None and part.text == "vt_handoff":
                continue  # Ubuntu: vt.handoff=7 or nothing, by what the screen can do
            if text is None:
                return [None]
            pieces = text.split() if part.variable and not part.quoted else [text]
            if part.variable and not part.quoted and not pieces:
                continue
            if joined and made:
                made[-1] = f"{made[-1]}{pieces[0]}"
                made += pieces[1:]
            else:
                made += pieces
            joined = True
        return made

    def words(self, words: Sequence[Word]) -> list[str | None]:
        """All words of a command."""
        return [item for word in words for item in self.expand(word)]

    def run(self, statements: Sequence[Statement]) -> bool | None:
        """Runs statements; whether the last one succeeds, None where only GRUB knows."""
        result: bool | None = True
        for statement in statements:
            match statement:
                case Command():
                    result = self._command(statement)
                case If():
                    result = self._if(statement)
                case Function():
                    self.functions[statement.name] = statement
                case Loop():
                    raise Unparsed(f"{self.path}:{statement.line}: a loop is not followed")
        return result

    def _if(self, statement: If) -> bool | None:
        for at, (condition, body) in enumerate(statement.branches):
            holds = self.run(condition) if condition else True
            if holds is True:
                return self.run(body)
            if holds is None:
                rest = replace(statement, branches=statement.branches[at + 1 :])
                self._both((*body,), (rest,) if rest.branches else ())
                return None
        return True

    def _both(self, one: tuple[Statement, ...], other: tuple[Statement, ...]) -> None:
        """Follows both ways; what they leave differently is open."""
        ways = []
        for body in (one, other):
            way = replace(self, variables=dict(self.variables), entries=[], boots=[], functions=dict(self.functions))
            way.run(body)
            ways.append(way)
        first, second = ways
        for name in first.variables.keys() | second.variables.keys():
            values = first.value(name), second.value(name)
            self.variables[name] = values[0] if values[0] == values[1] else None
        self.functions = {**first.functions, **second.functions}
        self.entries += [replace(entry, sure=False) for way in ways for entry in way.entries]
        if [boot.words for boot in first.boots] == [boot.words for boot in second.boots]:
            self.boots += first.boots
        else:
            self.boots += [replace(boot, words=(None,)) for way in ways for boot in way.boots]

    def _command(self, command: Command) -> bool | None:
        words = self.words(command.words)
        if not words:
            return True
        name, *rest = words
        if name in ("menuentry", "submenu"):
            self.entries.append(_entry(command, rest, self.path, submenu=name == "submenu"))
            return True
        if name is not None and name in self.functions:
            return self._call(self.functions[name], rest)
        if name is not None and ASSIGNS.match(name):
            self._set([name])
            return True
        if name in LINUX:
            self.boots.append(Boot(tuple(rest), command.line, self.path))
            return True
        return self._builtin(name or "", rest)

    def _builtin(self, name: str, rest: list[str | None]) -> bool | None:
        result: bool | None = True
        match name:
            case "set" | "export":
                self._set(rest)
            case "unset":
                self.variables.update({word: "" for word in rest if word is not None})
            case "[" | "test":
                result = _test(rest[:-1] if name == "[" else rest, self.look)
            case "true" | "save_env" | "echo":
                pass
            case "false":
                result = False
            case "load_env":
                self._load(rest)
            case "blscfg" if self.bls is not None:
                self.entries += self.bls(self)
            case "source" | "." | "configfile":
                result = self._source(rest)
            case _:
                self._touched(name, rest)
                result = None
        return result

    def _set(self, rest: list[str | None]) -> None:
        for word in rest:
            name, equals, value = (word or "").partition("=")
            if equals:
                self.variables[name] = value

    def _load(self, rest: list[str | None]) -> None:
        files = [word for word in rest if word is None or not word.startswith("-")]
        if any(path != f"{self.value('prefix')}/grubenv" for path in files[:1] if "-f" in rest or "--file" in rest):
            raise Unparsed(f"{self.path}: it loads variables from {files[0] or 'a file'}, which is not followed")
        self.variables.update(self.loader_env())

    def _touched(self, name: str, rest: list[str | None]) -> None:
        """Variables that a command which is not followed may set."""
        for at, word in enumerate(rest):
            option, equals, value = (word or "").partition("=")
            if option in ("--set", "-s", "-S"):
                following = rest[at + 1] if at + 1 < len(rest) else None
                self.variables[(value if equals else following) or "root"] = None
        named = rest[1:2] if name.startswith("search.") else rest[:1] if name == "read" else []
        self.variables.update({word: None for word in named if word})

    def _call(self, function: Function, arguments: list[str | None]) -> bool | None:
        former = {str(n): self.variables.get(str(n), "") for n in range(1, 10)}
        self.variables.update({str(n): value for n, value in enumerate(arguments, 1)})
        self._deeper()
        result = self.run(function.body)
        self.depth -= 1
        self.variables.update(former)
        return result

    def _source(self, rest: list[str | None]) -> bool | None:
        path = rest[0] if rest else None
        text = self.look(path) if path else None
        if text is None:
            raise Unparsed(f"{self.path}: it goes on in {path or 'a file'}, which is not followed")
        self._deeper()
        here, self.path = self.path, str(path)
        result = self.run(parse(text))
        self.path = here
        self.depth -= 1
        return result

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unparsed(f"{self.path}: functions call one another too often")


def _entry(command: Command, words: list[str | None], path: str, *, submenu: bool) -> Entry:
    title: str | None = None
    name: str | None = None
    skip = found = False
    for at, word in enumerate(words):
        option, equals, value = (word or "").partition("=")
        if skip:
            skip = False
        elif option in WITH_ARGUMENT:
            following = words[at + 1] if at + 1 < len(words) else None
            name = (value if equals else following) if option == "--id" else name
            skip = not equals
        elif not found and not (word or "").startswith("--"):
            title, found = word, True
    return Entry(title, name if name is not None else title, command.block or (), command.line, path, submenu)


def _test(words: list[str | None], look: Callable[[str], str | None]) -> bool | None:
    """GRUB's test; -a binds closer than -o. None where only GRUB knows."""
    any_open = False
    for one in _split(words, "-o"):
        results = [_term(term, look) for term in _split(one, "-a")]
        if all(result is True for result in results):
            return True
        any_open |= False not in results
    return None if any_open else False


def _split(words: list[str | None], mark: str) -> list[list[str | None]]:
    found: list[list[str | None]] = [[]]
    for word in words:
        if word == mark:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _term(words: list[str | None], look: Callable[[str], str | None]) -> bool | None:
    result: bool | None = None
    match words:
        case ["!", *rest]:
            inner = _term(rest, look)
            result = None if inner is None else not inner
        case []:
            result = False
        case ["-s" | "-f" | "-e" as kind, str(path)]:
            result = _file(kind, path, look)
        case ["-z" | "-n" as kind, *rest] if None not in rest:
            result = (not rest or rest == [""]) is (kind == "-z")
        case [str(one), "=" | "==" | "!=" as mark, str(other)]:
            result = (one == other) is (mark != "!=")
        case [str(word)]:
            result = bool(word)
    return result


def _file(kind: str, path: str, look: Callable[[str], str | None]) -> bool | None:
    """Whether a file beside the configuration is there; None for a path elsewhere."""
    try:
        text = look(path)
    except Unparsed:
        return None
    return bool(text) if kind == "-s" else text is not None
