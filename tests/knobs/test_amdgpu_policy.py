"""The knobs `amdgpu.soc_pstate` and `amdgpu.xgmi_plpd`: pm_policy of Linux drivers/gpu/drm/amd/pm/amdgpu_pm.c."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.knobs.gpu_host import BUSY, GPU, POLICIES, gpu, make
from tuner.errors import BadValue, Refused
from tuner.knobs.amdgpu_policy import AmdgpuSocPstate, AmdgpuXgmiPlpd, choices
from tuner.model import Absent, Seen, Unreadable

SOC, PLPD = AmdgpuSocPstate(), AmdgpuXgmiPlpd()
SOC_FILE, PLPD_FILE = POLICIES


def test_the_word_before_the_star(tmp_path: Path) -> None:
    host = make(tmp_path, {GPU: gpu(files=POLICIES)})
    assert (SOC.read(host, GPU), PLPD.read(host, GPU)) == (Seen("soc_pstate_default"), Seen("plpd_default"))


@pytest.mark.parametrize(
    "text",
    [
        "", "unavailable", "0 : a\n1 : b", "0 : a*\n1 : b*", "0 : a*\n0 : b", "0 : a*\n1 : a", "a : b*", "0 : *",
        "0 : a* b",
    ],
)  # fmt: skip
def test_what_is_no_list_of_choices_is_not_read(tmp_path: Path, text: str) -> None:
    host = make(tmp_path, {GPU: gpu(files={**POLICIES, SOC_FILE: text})})
    found = SOC.read(host, GPU)
    assert isinstance(found, Unreadable)
    assert found.why.startswith("unexpected content")


WORDS = st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True), min_size=1, max_size=6, unique=True)


@given(WORDS, st.data())
def test_every_list_is_read_as_it_was_made(words: list[str], data: st.DataObject) -> None:
    """Numbers in any order, blanks in front, a star with or without a blank before it."""
    numbers = data.draw(st.lists(st.integers(0, 99), min_size=len(words), max_size=len(words), unique=True))
    now = data.draw(st.sampled_from(words))
    star, front = data.draw(st.sampled_from(["*", " *"])), data.draw(st.sampled_from(["", " "]))
    lines = [f"{front}{n} : {word}{star if word == now else ''}" for n, word in zip(numbers, words, strict=True)]
    assert choices("\n".join(lines) + "\n") == (dict(zip(numbers, words, strict=True)), now)


@given(st.text(max_size=60))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    try:
        offered, now = choices(text)
    except ValueError:
        return
    assert now in offered.values()


def test_why_there_is_none(tmp_path: Path) -> None:
    none = SOC.read(make(tmp_path, {GPU: gpu()}), GPU)
    assert none == Absent(f"no {SOC_FILE}: not offered by this driver and firmware")
    virtual = make(tmp_path, {GPU: gpu("1002 74b5", files=POLICIES)})
    assert PLPD.read(virtual, GPU) == Absent("virtual function: the host sets policies")
    busy = SOC.read(make(tmp_path, {GPU: gpu(files={SOC_FILE: BUSY})}), GPU)
    assert busy == Unreadable("in reset or suspended: the driver answers EPERM")


@pytest.mark.parametrize(
    ("raw", "word"), [("plpd_disallow", "plpd_disallow"), ("0", "plpd_disallow"), ("0x2", "plpd_optimized")]
)
def test_a_number_names_a_word(tmp_path: Path, raw: str, word: str) -> None:
    host = make(tmp_path, {GPU: gpu(files=POLICIES)})
    value = PLPD.normalise(host, GPU, PLPD.parse(GPU, raw))
    assert value == word
    PLPD.write(host, GPU, value)
    assert PLPD.read(host, GPU) == Seen(word)


@pytest.mark.parametrize("raw", ["3", "plpd_off", "soc_pstate_default"])
def test_what_this_gpu_does_not_have_is_refused_with_what_it_has(tmp_path: Path, raw: str) -> None:
    host = make(tmp_path, {GPU: gpu(files=POLICIES)})
    with pytest.raises(BadValue) as bad:
        PLPD.normalise(host, GPU, PLPD.parse(GPU, raw))
    assert "0 or plpd_disallow, 1 or plpd_default, 2 or plpd_optimized" in bad.value.hint
    with pytest.raises(Refused, match=r"no choice of this GPU.*692200000000"):
        PLPD.write(host, GPU, raw)


@pytest.mark.parametrize("raw", ["", "-1", "plpd default", "1.5", "08", "256", None, ["1"], {"plpd": "1"}])
def test_what_is_neither_word_nor_number(raw: Any) -> None:
    with pytest.raises(BadValue):
        PLPD.parse(GPU, raw)


def test_the_word_in_force_is_not_written(tmp_path: Path) -> None:
    host = make(tmp_path, {GPU: gpu(files=POLICIES)})
    path = Path(f"{host.root}/sys/devices/pci0000:00/{GPU}/{PLPD_FILE}")
    before = path.stat().st_mtime_ns
    PLPD.write(host, GPU, "plpd_default")
    assert path.stat().st_mtime_ns == before
    assert PLPD.disruption(GPU) == "clocks"
