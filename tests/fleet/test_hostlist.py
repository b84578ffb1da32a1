"""Hostlists: the forms of Slurm's documentation, the way there and back, and what is no list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import TunerError
from tuner.fleet.hostlist import compress, expand

KNOWN = [
    (["n1"], "n1"),
    (["n1", "n2", "n3"], "n[1-3]"),
    (["node17", "node33"], "node[17,33]"),
    (["lx12", "lx10", "lx11", "lx13", "lx14", "lx16", "lx17", "lx18", "lx20"], "lx[10-14,16-18,20]"),
    (["tux08", "tux09", "tux10"], "tux[08-10]"),
    (["n8", "n9", "n09", "n10"], "n[8-9],n[09-10]"),
    (["tux1", "tux9", "tux10"], "tux[1,9-10]"),
    (["node01", "node1"], "node1,node01"),
    (["rack1-node01", "rack1-node02", "rack2-node01"], "rack1-node[01-02],rack2-node01"),
    (["gpu7-ib", "gpu8-ib"], "gpu[7-8]-ib"),
    (["login", "n0", "n0"], "login,n0"),
    (["n00", "n01", "n02"], "n[00-02]"),
    ([], ""),
]


@pytest.mark.parametrize(("names", "text"), KNOWN, ids=[text for _, text in KNOWN])
def test_known_lists(names: list[str], text: str) -> None:
    """scontrol(1), `show hostlist`: ranges, padding kept, each name once; the list stands for the names it is of."""
    assert compress(names) == text
    assert sorted(expand(text)) == sorted(set(names))


def test_nested_brackets_are_expanded() -> None:
    """The last bracket runs fastest, as `scontrol show hostnames` prints them."""
    assert expand("rack[1-2]node[01-03]") == [f"rack{r}node{n:02d}" for r in (1, 2) for n in (1, 2, 3)]
    assert expand("a,b[2,4-5]x") == ["a", "b2x", "b4x", "b5x"]


names = st.from_regex(r"[a-z]{0,3}[0-9]{0,4}(-?[a-z]{1,2}[0-9]{0,20}){0,2}[a-z]{0,2}", fullmatch=True).filter(bool)


@given(st.lists(names))
def test_there_and_back(found: list[str]) -> None:
    """Whatever the names, the list stands for exactly them, and is the same in any order."""
    text = compress(found)
    assert sorted(expand(text)) == sorted(set(found))
    assert compress(reversed(found)) == text


@pytest.mark.parametrize(
    "text", ["n[1", "n1]", "n[[1]]", "n[]", "n[a]", "n[3-1]", "n[1-]", "n[1,]", ",", "a,,b", "n[0-99999999]"]
)
def test_no_lists(text: str) -> None:
    """Each with one line and a hint; nothing that would make millions of names."""
    with pytest.raises(TunerError) as caught:
        expand(text)
    assert caught.value.code == 64
    assert caught.value.problems[0].hint


@given(st.text(alphabet="ab09[],-", max_size=20))
def test_any_text_gives_names_or_an_error(text: str) -> None:
    try:
        found = expand(text)
    except TunerError:
        return
    assert all(found)
