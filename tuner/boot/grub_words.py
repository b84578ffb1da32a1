"""GRUB's script language, taken apart: words, commands, conditions, blocks. GNU GRUB manual, 6.2 "Writing full
configuration files directly" and 6.2.1 "Shell-like scripting"; grub-core/script/yylex.l and parser.y.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Union


class Part(NamedTuple):
    """A piece of a word: text as it stands, or the name of a variable; one in quotes is never split at blanks."""

    text: str
    variable: bool = False
    quoted: bool = False


Word = tuple[Part, ...]


class Token(NamedTuple):
    """A word, or a mark (newline is ";", braces) with its line."""

    line: int
    word: Word = ()
    mark: str = ""

    @property
    def plain(self) -> str:
        """The word's text where it has no quotes and no variable; a mark is none."""
        return (
            self.word[0].text if len(self.word) == 1 and not self.word[0].variable and not self.word[0].quoted else ""
        )


@dataclass(frozen=True)
class Command:
    """A command with its words and, for menuentry and submenu, the block behind it."""

    line: int
    words: tuple[Word, ...]
    block: tuple[Statement, ...] | None = None


@dataclass(frozen=True)
class If:
    """Conditions in their order, each with what is run where it holds; the last may be empty, which always holds."""

    line: int
    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]


@dataclass(frozen=True)
class Function:
    """A function that later lines call."""

    name: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Loop:
    """A loop, which is not followed."""

    line: int


Statement = Union[Command, If, Function, Loop]

NAME = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[?@*#])\}|([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[?@*#]))")
PLAIN = re.compile(r"[^\s\"'\\${};|&<>]+")
QUOTED = re.compile(r"[^\"\\$]+")
KEYWORDS_END = frozenset({"fi", "else", "elif", "then", "done", "do"})


class Unparsed(Exception):
    """A script that is not followed, with the line where that shows."""


def tokens(text: str) -> list[Token]:
    """The words and marks of a script; Unparsed where a quote is left open."""
    found: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        here = text[at]
        if here == "\n" or here in ";{}|&<>":
            found.append(Token(line, mark=";" if here == "\n" else here))
            line += here == "\n"
            at += 1
        elif here.isspace() or text.startswith("\\\n", at):
            line += text.startswith("\\\n", at)
            at += 2 if here == "\\" else 1
        elif here == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            word, end = _word(text, at, line)
            found.append(Token(line, word))
            line += text.count("\n", at, end)
            at = end
    return found


def _word(text: str, at: int, line: int) -> tuple[Word, int]:
    """The word that begins at `at`, and where it ends."""
    parts: list[Part] = []
    while at < len(text):
        name = NAME.match(text, at)
        plain = PLAIN.match(text, at)
        if name:
            parts.append(Part(name[1] or name[2], variable=True))
            at = name.end()
        elif plain:
            parts.append(Part(plain[0]))
            at = plain.end()
        elif text[at] == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise Unparsed(f"line {line}: a quote is left open")
            parts.append(Part(text[at + 1 : end], quoted=True))
            at = end + 1
        elif text[at] == '"':
            at = _double(text, at + 1, line, parts)
        elif text[at] == "\\" and not text.startswith("\\\n", at):
            parts.append(Part(text[at + 1 : at + 2], quoted=True))
            at += 2
        elif text[at] == "$":
            parts.append(Part("$"))
            at += 1
        else:
            break
    return tuple(parts), at


def _double(text: str, at: int, line: int, parts: list[Part]) -> int:
    """Adds the parts of a text in double quotes; where it ends."""
    parts.append(Part("", quoted=True))
    while at < len(text):
        name, plain = NAME.match(text, at), QUOTED.match(text, at)
        if text[at] == '"':
            return at + 1
        if name:
            parts.append(Part(name[1] or name[2], variable=True, quoted=True))
            at = name.end()
        elif plain:
            parts.append(Part(plain[0], quoted=True))
            at = plain.end()
        elif text[at] == "\\" and text[at + 1 : at + 2] in ("$", '"', "\\", "\n"):
            parts.append(Part(text[at + 1].replace("\n", ""), quoted=True))
            at += 2
        else:
            parts.append(Part(text[at], quoted=True))
            at += 1
    raise Unparsed(f"line {line}: a quote is left open")


@dataclass
class _Reader:
    """The tokens of a script and the place that was reached."""

    found: Sequence[Token]
    at: int = 0
    depth: int = field(default=0)

    def peek(self) -> Token | None:
        """The next token; None at the end."""
        return self.found[self.at] if self.at < len(self.found) else None

    def take(self) -> Token:
        """The next token, behind which the reader then stands."""
        token = self.peek()
        if token is None:
            raise Unparsed("the script ends too early")
        self.at += 1
        return token

    def skip(self) -> None:
        """Goes over ends of lines."""
        while (token := self.peek()) and token.mark == ";":
            self.at += 1

    def expect(self, word: str) -> None:
        """Goes over one word or mark that must come next."""
        self.skip()
        token = self.take()
        if word not in (token.plain, token.mark):
            raise Unparsed(f"line {token.line}: {word} is missing")


DEEPEST = 40
"""Blocks in blocks; no configuration has more than a handful."""


def parse(text: str) -> tuple[Statement, ...]:
    """The statements of a script; Unparsed says what is not followed."""
    reader = _Reader(tokens(text))
    found = _statements(reader, frozenset())
    if (token := reader.peek()) is not None:
        raise Unparsed(f"line {token.line}: {token.mark or token.plain} has no beginning")
    return found


def _statements(reader: _Reader, ends: frozenset[str]) -> tuple[Statement, ...]:
    """Statements up to one of the words or marks `ends`, which is left."""
    found: list[Statement] = []
    reader.depth += 1
    if reader.depth > DEEPEST:
        raise Unparsed("blocks are nested too deeply")
    while True:
        reader.skip()
        token = reader.peek()
        if token is None or token.mark == "}" or token.plain in KEYWORDS_END:
            if token is None and ends:
                raise Unparsed(f"{' or '.join(sorted(ends))} is missing")
            reader.depth -= 1
            return tuple(found)
        found.append(_statement(reader, token))


def _statement(reader: _Reader, token: Token) -> Statement:
    if token.plain == "if":
        return _if(reader)
    if token.plain == "function":
        reader.take()
        name = reader.take().plain
        return Function(name, _block(reader))
    if token.plain in ("for", "while", "until"):
        return _loop(reader)
    return _command(reader)


def _block(reader: _Reader) -> tuple[Statement, ...]:
    reader.expect("{")
    body = _statements(reader, frozenset({"}"}))
    reader.expect("}")
    return body


def _if(reader: _Reader) -> If:
    line = reader.take().line
    branches = []
    while True:
        condition = _statements(reader, frozenset({"then"}))
        reader.expect("then")
        branches.append((condition, _statements(reader, frozenset({"fi"}))))
        word = reader.take().plain
        if word == "else":
            branches.append(((), _statements(reader, frozenset({"fi"}))))
            word = reader.take().plain
        if word == "fi":
            return If(line, tuple(branches))
        if word != "elif":
            raise Unparsed(f"line {line}: fi is missing")


def _loop(reader: _Reader) -> Loop:
    line = reader.take().line
    while (token := reader.take()).plain != "do":
        pass
    _statements(reader, frozenset({"done"}))
    reader.expect("done")
    return Loop(token.line if token.line > line else line)


def _command(reader: _Reader) -> Command:
    line = reader.found[reader.at].line
    words: list[Word] = []
    while (token := reader.peek()) and token.mark != ";":
        if token.mark == "{":
            return Command(line, tuple(words), _block(reader))
        if token.mark == "}":
            break
        if token.mark:
            raise Unparsed(f"line {token.line}: {token.mark} is not followed")
        words.append(token.word)
        reader.at += 1
    return Command(line, tuple(words))
