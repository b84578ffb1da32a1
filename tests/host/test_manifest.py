"""The text of a recorded host: what is written is read, what is malformed is named with its line."""

from __future__ import annotations

import base64
import errno
import os
import posixpath
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import HOSTS
from tuner.errors import Exit, TunerError
from tuner.host.manifest import Entry, parse, render
from tuner.sim import store

SHIPPED = sorted(HOSTS.glob("*.host"))

NAME = st.text(st.characters(codec="utf-8", exclude_characters="/\n\0"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
PATH = st.lists(NAME, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
MODE = st.integers(0, 0o7777)
ODD = st.sampled_from(
    [b"", b"\n", b"no newline", b"a\r\nb\r\n", b"\r", b"|a\n+b", b"\n\n\n", b"\xff\xfe\n", b"tab\tand \n",
     "line\u2028separator\n".encode(), "\u0085next\x0b\x0cline\n".encode(), b"\0", b"# no comment\n\ndir 0755 /x\n"]
)  # fmt: skip
CONTENT = st.binary(max_size=200) | ODD
ENTRY = st.one_of(
    st.builds(lambda mode, data: Entry("file", mode, data), MODE, CONTENT),
    st.builds(lambda mode, name: Entry("link", mode, name.encode()), MODE, NAME),
    st.builds(lambda mode, names: Entry("dir", mode, names=tuple(names)), MODE, st.lists(NAME, max_size=4)),
    st.just(Entry("absent")),
    st.builds(lambda number: Entry("errno", errno=number), st.sampled_from(sorted(errno.errorcode))),
)


def text(*lines: str) -> str:
    """A manifest of these lines."""
    return "\n".join(["tuner-host 1", *lines, ""])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(PATH, ENTRY, max_size=5))
@example({"/with blanks /in it ": Entry("absent"), "/a b": Entry("errno", errno=errno.EIO)})
def test_what_is_rendered_is_parsed(entries: dict[str, Entry]) -> None:
    assert parse(render(entries), "x").entries == entries


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_names_that_are_no_utf8_survive(raw: bytes) -> None:
    """Paths of a host are bytes: they come back as surrogates."""
    name = raw.replace(b"/", b"").replace(b"\n", b"").replace(b"\0", b"")
    if name in (b"", b".", b".."):
        name = b"\xff"
    path = "/" + os.fsdecode(name)
    entries = {path: Entry("link", 0o777, b"\xff\xfe"), "/d": Entry("dir", 0o755, names=(os.fsdecode(name),))}
    coded = render(entries).encode("utf-8", "surrogateescape")
    assert parse(coded.decode("utf-8", "surrogateescape"), "x").entries == entries


def test_a_text_file_stays_readable_and_a_binary_one_is_base64() -> None:
    lines = render({"/a": Entry("file", 0o644, b"one\n\ntwo"), "/b": Entry("file", 0o600, b"\0\xff")}).split("\n")
    coded = base64.b64encode(b"\0\xff").decode()
    assert lines == ["tuner-host 1", "file 0644 /a", "|one", "|", "+two", "base64 0600 /b", f"|{coded}", ""]


def test_comments_and_blank_lines_stand_between_entries() -> None:
    found = parse(text("# a remark", "", "file 0644 /f", "|# content, no remark", "", "# end", "absent /g"), "x")
    assert found.entries["/f"].data == b"# content, no remark\n"
    assert found.entries["/g"].kind == "absent"


def test_a_directory_is_implied_by_what_lies_below_it_but_not_by_what_is_absent() -> None:
    found = parse(text("file 0644 /a/b/c", "|1", "absent /x/y/z", "errno EIO /e/f"), "x")
    assert found.implied == {"/", "/a", "/a/b", "/e"}


def test_the_order_of_entries_does_not_matter_and_the_output_is_sorted() -> None:
    one = parse(text("absent /b", "absent /a"), "x").entries
    assert render(one) == text("absent /a", "absent /b")


MALFORMED = [
    (2, "directory 0755 /d"),
    (2, "FILE 0644 /f"),
    (2, "file 0644"),
    (2, "file /f"),
    (2, "file rw-r--r-- /f"),
    (2, "file 0988 /f"),
    (2, "file 0644 relative"),
    (2, "file 0644 /a/../b"),
    (2, "file 0644 /a//b"),
    (2, "file 0644 //a"),
    (2, "file 0644 /a/"),
    (2, "file 0644 /a/."),
    (2, "file 0644  /a"),
    (2, "absent"),
    (2, "absent relative"),
    (2, "errno EWHAT /f"),
    (2, "errno errorcode /f"),
    (2, "errno /f"),
    (2, "|content of nothing"),
    (2, "base64 0644 /f\n|not base64!"),
    (2, "base64 0644 /f\n|abc"),
    (2, "file 0644 /f\n+no newline\n|more"),
    (2, "file -644 /f"),
    (2, "file 7777777 /f"),
    (4, "file 0644 /f\n|1\nfile 0644 /f\n|2"),
    (4, "absent /ok\n# remark\nnonsense /f"),
]


@pytest.mark.parametrize(("line", "body"), MALFORMED)
def test_a_malformed_line_is_named_with_a_hint(line: int, body: str) -> None:
    with pytest.raises(TunerError) as raised:
        parse(text(*body.split("\n")), "my.host")
    assert raised.value.code == Exit.BAD_INPUT
    (problem,) = raised.value.problems
    assert problem.where == f"my.host:{line}"
    assert problem.what
    assert problem.hint


@pytest.mark.parametrize("first", ["", "tuner-host", "tuner-host 2", "file 0644 /f", " tuner-host 1", "tuner-host 1\r"])
def test_the_first_line_says_what_the_file_is(first: str) -> None:
    with pytest.raises(TunerError) as raised:
        parse(f"{first}\nabsent /f\n", "my.host")
    assert [p.where for p in raised.value.problems] == ["my.host:1"]


WORDS = st.sampled_from(
    ["file", "base64", "link", "dir", "absent", "errno", "0644", "EIO", "/", "/a", "/a/b", "|", "+", "#", " ", "\n",
     "\n|", "\n+", "..", "=", "\0", "\udcff", "99999999999999999999", "0o7", "_"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=80) | st.lists(WORDS, max_size=15).map("".join), st.booleans())
def test_no_text_does_more_harm_than_a_named_error(body: str, begins: bool) -> None:
    try:
        found = parse(("tuner-host 1\n" if begins else "") + body, "x")
    except TunerError as error:
        assert all(p.where.startswith("x:") and p.hint for p in error.problems)
    else:
        assert all(posixpath.isabs(path) and ".." not in path.split("/") for path in found.entries)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.stem))
def test_the_shipped_hosts_are_as_render_writes_them(path: Path) -> None:
    """A host that is shipped can be diffed with a new capture of the same node."""
    whole = path.read_text(encoding="utf-8")
    assert render(parse(whole, str(path)).entries) == whole


# a manifest comes from others (it is the support bundle): making its tree must not write anywhere else

ABOUT = ["file 0644 /.tuner-host/host.yaml", "|name: x", "|kernel: 6.1.0"]


def make(tmp_path: Path, *lines: str) -> Path:
    """The copy of a manifest of these lines; errors are for the caller."""
    (tmp_path / "x.host").write_text(text(*ABOUT, *lines), encoding="utf-8", errors="surrogateescape")
    store.copy(tmp_path / "x.host", str(tmp_path / "copy"), [])
    return tmp_path / "copy"


@pytest.mark.parametrize(
    "lines",
    [
        ["link 0777 /out", "+{victim}", "file 0644 /out/new", "|evil"],
        ["file 0644 /out/new", "|evil", "link 0777 /out", "+{victim}"],
        ["link 0777 /out", "+{victim}", "dir 0777 /out/old"],
        ["link 0777 /out", "+../victim", "link 0777 /out/new", "+/etc/passwd"],
        ["link 0777 /var", "+{victim}"],
        ["link 0777 /run", "+{victim}"],
        ["file 0644 /{victim}/new", "|evil"],
        ["link 0777 /a", "+{victim}", "link 0777 /b", "+a", "file 0644 /b/new", "|evil"],
    ],
)
def test_a_copy_never_writes_outside_its_directory(tmp_path: Path, lines: list[str]) -> None:
    victim = tmp_path / "victim"
    (victim / "old").mkdir(parents=True)
    (victim / "old").chmod(0o700)
    try:
        make(tmp_path, *(line.format(victim=victim) for line in lines))
    except TunerError as error:
        assert error.code == Exit.BAD_INPUT
    assert os.listdir(victim) == ["old"]
    assert os.listdir(victim / "old") == []
    assert (victim / "old").stat().st_mode & 0o777 == 0o700


def test_the_mark_of_a_copy_is_never_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "x.host").write_text(text("link 0777 /.tuner-host", f"+{tmp_path}/victim"), encoding="utf-8")
    with pytest.raises(TunerError):
        store.copy(tmp_path / "x.host", str(tmp_path / "copy"), [])
    assert os.listdir(tmp_path / "victim") == []


def test_a_copy_has_what_was_recorded(tmp_path: Path) -> None:
    copy = make(
        tmp_path, "file 0600 /etc/a b", "+no newline", "base64 0444 /etc/bin", "|AP8=", "link 0777 /bin", "+usr/bin",
        "dir 0555 /proc/sys", "|gone", "absent /etc/no", "errno EIO /sys/bad", "file 4755 /usr/bin/x", "|",
    )  # fmt: skip
    assert (copy / "etc/a b").read_bytes() == b"no newline"
    assert (copy / "etc/a b").stat().st_mode & 0o7777 == 0o600
    assert (copy / "etc/bin").read_bytes() == b"\0\xff"
    assert os.readlink(copy / "bin") == "usr/bin"
    assert (copy / "proc/sys").is_dir()
    assert not os.path.lexists(copy / "etc/no")
    assert not os.path.lexists(copy / "sys/bad")
    assert (copy / "run").is_dir()
    assert (copy / "var/lib").is_dir()
    assert (copy / ".tuner-host/manifest").read_bytes() == (tmp_path / "x.host").read_bytes()
