"""od_table and starred answer as the driver of an MI300X does: each rule as writes, their results, and what then shows.

Values by hand from Linux drivers/gpu/drm/amd/pm: amdgpu_pm.c (words and parsing), swsmu/smu13/smu_v13_0_6_ppt.c
(smu_v13_0_6_set_performance_level, _usr_edit_dpm_table, _set_soft_freq_limited_range, _print_clk_levels).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from errno import EBUSY, EINVAL, EPERM
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import TunerError
from tuner.host import RecordedHost

GPU = "/sys/devices/pci0000:00/0000:05:00.0"
FILES = {"L": f"{GPU}/power_dpm_force_performance_level", "T": f"{GPU}/pp_od_clk_voltage"}
FULL = "sclk: [500, 2100], mclk: [900, 1300]"
ASLEEP = "S: 132Mhz *\n0: 500Mhz\n1: 2100Mhz\n"
Write = tuple[str, str, int]


class Card:
    """One GPU of a recorded host, written to as echo does."""

    def __init__(self, root: Path, rule: str = FULL, sclk: str = ASLEEP) -> None:
        self.root, mark, folder = root, root / ".tuner-host", root / GPU[1:]
        mark.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        rules = "".join(f"  {path}: {{is: od_table, {rule}}}\n" for path in FILES.values())
        (mark / "kernel.yaml").write_text(f"rules:\n{rules}", encoding="utf-8")
        (mark / "host.yaml").write_text("name: x\nkernel: 6.8.0\n", encoding="utf-8")
        (mark / "manifest").write_text("tuner-host 1\n", encoding="utf-8")
        memory = "OD_MCLK:\n0: 900Mhz\n1: 1300Mhz\n" if "mclk" in rule else ""
        self.put("L", "auto\n")
        self.put("T", f"OD_SCLK:\n0: 500Mhz\n1: 2100Mhz\n{memory}")
        (folder / "pp_dpm_sclk").write_text(sclk)
        for state in mark.glob("state/*"):
            state.unlink()
        self.host = RecordedHost(str(root))

    def put(self, file: str, text: str) -> None:
        (self.root / FILES[file][1:]).write_text(text)

    def echo(self, file: str, text: str) -> int:
        try:
            self.host.write(FILES[file], text)
        except OSError as error:
            return error.errno or -1
        return 0

    def run(self, writes: Sequence[Write]) -> None:
        """Each write gives the errno it should."""
        for file, text, number in writes:
            assert self.echo(file, text) == number, f"{text!r}"

    def shows(self) -> tuple[str, int, int, int]:
        """Level, both ends of the GFX range, upper end of the memory clock (0: no such block)."""
        ends = list(map(int, re.findall(r"(\d+)Mhz", self.host.text(FILES["T"]))))
        return self.host.text(FILES["L"]).strip(), ends[0], ends[1], (ends + [0] * 4)[3]

    def sclk(self) -> str:
        return self.host.text(f"{GPU}/pp_dpm_sclk")

    def state(self) -> list[str]:
        return [path.read_text() for path in (self.root / ".tuner-host").glob("state/*")]


CAPPED: list[Write] = [("L", "perf_determinism\n", 0), ("T", "s 1 1900\n", 0), ("T", "c\n", 0)]
RANGED: list[Write] = [("L", "manual\n", 0), ("T", "s 0 800\n", 0), ("T", "s 1 1700\n", 0), ("T", "c\n", 0)]
MANUAL: list[Write] = [("L", "manual\n", 0)]
DETERMINISM: list[Write] = [("L", "perf_determinism\n", 0)]
AUTO = ("auto", 500, 2100, 1300)

LEVELS: list[tuple[str, list[Write], tuple[str, int, int, int]]] = [
    ("the cap of AMD's recipe", CAPPED, ("perf_determinism", 500, 1900, 1300)),
    ("the word alone caps nothing", DETERMINISM, ("perf_determinism", 500, 2100, 1300)),
    ("a range of somebody's own", RANGED, ("manual", 800, 1700, 1300)),
    ("auto ends a cap", [*CAPPED, ("L", "auto\n", 0)], AUTO),
    ("auto ends a range", [*RANGED, ("L", "auto\n", 0)], AUTO),
    ("manual ends a cap", [*CAPPED, ("L", "manual\n", 0)], ("manual", 500, 2100, 1300)),
    ("a range outlives the word", [*RANGED, *DETERMINISM], ("perf_determinism", 800, 1700, 1300)),
    ("and ends with manual, upwards", [*RANGED, *DETERMINISM, ("L", "manual", 0)], ("manual", 800, 2100, 1300)),
    ("the same word again keeps a cap", [*CAPPED, *DETERMINISM], ("perf_determinism", 500, 1900, 1300)),
    ("the same word again keeps a range", [*RANGED, *MANUAL], ("manual", 800, 1700, 1300)),
    *[
        (f"a refused {w} ends a cap", [*CAPPED, ("L", f"{w}\n", EINVAL)], ("perf_determinism", 500, 2100, 1300))
        for w in ("high", "low", "profile_peak", "profile_standard", "profile_min_sclk", "profile_min_mclk")
    ],
    *[
        (f"{w!r} is unknown, the cap stays", [*CAPPED, ("L", w, EINVAL)], ("perf_determinism", 500, 1900, 1300))
        for w in ("banana\n", "", "\n", "High\n", " auto\n", "profile\n", "perf\n", "profile_exit\n")
    ],
    *[
        (f"a refused {w} leaves a range", [*RANGED, ("L", f"{w}\n", EINVAL)], ("manual", 800, 1700, 1300))
        for w in ("high", "low", "profile_exit")
    ],
    ("auto refuses high", [("L", "high", EINVAL)], AUTO),
    ("a word counts by its beginning", [("L", "manually\n", 0)], ("manual", 500, 2100, 1300)),
    ("high counts by its beginning too", [*CAPPED, ("L", "highest", EINVAL)], ("perf_determinism", 500, 2100, 1300)),
    ("auto ends a limit of the memory", [*MANUAL, ("T", "m 1 1100", 0), ("T", "c", 0), ("L", "auto", 0)], AUTO),
    (
        "manual and determinism do not",
        [*MANUAL, ("T", "m 1 1100", 0), ("T", "c", 0), *DETERMINISM],
        ("perf_determinism", 500, 2100, 1100),
    ),
]

TABLE: list[tuple[str, list[Write], tuple[str, int, int, int]]] = [
    *[(f"auto refuses {c!r}", [("T", c, EINVAL)], AUTO) for c in ("s 1 1900\n", "s 0 600", "m 1 1000", "c\n", "r\n")],
    *[
        (f"{c!r} is no command", [*RANGED, ("T", c, EINVAL)], ("manual", 800, 1700, 1300))
        for c in ("", "\n", "x 1 2", "S 1 1900", " s 1 1900", "p 0 1 2", "v 0 1", "1 1900", "s 1 1900" + " " * 120)
    ],
    *[
        (f"{c!r} has wrong numbers", [*MANUAL, ("T", c, EINVAL), ("T", "c", 0)], ("manual", 500, 2100, 1300))
        for c in ("s", "s 1", "s 1 1900 5", "s 2 1900", "s -1 1900", "s 1 x", "s 1 1900Mhz", "s 1 08", "s 1 0x",
                  "s 1 99999999999999999999", "s 1\t1900", "s 1 19.5", "sclk 1 1900", "m", "m 1", "m 1 1000 1",
                  "m 0 900", "c 1", "r 1", "s 1 -+5")
    ],
    *[
        (f"{c!r} is 1900", [*MANUAL, ("T", c, 0), ("T", "c", 0)], ("manual", 500, 1900, 1300))
        for c in ("s 1 1900", "s 1 1900\n", "s 1 0x76c\n", "s 1 03554", "s  1   1900 \n", "s1 1900", "s\t1 1900",
                  "s 1 +1900", "s 0x1 1900", "s 1 1900" + " " * 119)
    ],
    ("nothing before the commit", [*MANUAL, ("T", "s 1 1900", 0)], ("manual", 500, 2100, 1300)),
    ("the ends of the table", [*MANUAL, ("T", "s 0 500", 0), ("T", "s 1 2100", 0), ("T", "c", 0)],
     ("manual", 500, 2100, 1300)),
    ("s 0 below the table stages what is in force", [*RANGED, ("T", "s 0 900", 0), ("T", "s 0 499", EINVAL),
     ("T", "c", 0)], ("manual", 800, 1700, 1300)),
    ("s 1 above the table stages what is in force", [*RANGED, ("T", "s 1 1500", 0), ("T", "s 1 2101", EINVAL),
     ("T", "c", 0)], ("manual", 800, 1700, 1300)),
    ("s 0 above the table waits for the commit", [*RANGED, ("T", "s 0 3000", 0), ("T", "c", EINVAL)],
     ("manual", 800, 1700, 1300)),
    ("s 1 below the table is taken in manual", [*MANUAL, ("T", "s 0 500", 0), ("T", "s 1 501", 0), ("T", "c", 0)],
     ("manual", 500, 501, 1300)),
    ("no exact pin", [*MANUAL, ("T", "s 0 1500", 0), ("T", "s 1 1500", 0), ("T", "c", EINVAL)],
     ("manual", 500, 2100, 1300)),
    ("a negative maximum is a huge one", [*MANUAL, ("T", "s 1 -1", 0), ("T", "c", 0)],
     ("manual", 500, 4294967295, 1300)),
    ("what a failed commit staged stays", [*MANUAL, ("T", "s 0 1500", 0), ("T", "s 1 1400", 0), ("T", "c", EINVAL),
     ("T", "s 1 1600", 0), ("T", "c", 0)], ("manual", 1500, 1600, 1300)),
    ("and outlives auto", [*MANUAL, ("T", "s 0 1500", 0), ("L", "auto", 0), *MANUAL, ("T", "c", 0)],
     ("manual", 1500, 2100, 1300)),
    ("a commit keeps both ends staged", [*RANGED, ("L", "auto", 0), *MANUAL, ("T", "c", 0)],
     ("manual", 800, 1700, 1300)),
    ("r restores, and forgets nothing staged", [*RANGED, ("T", "r\n", 0), ("T", "c", 0)], ("manual", 800, 1700, 1300)),
    ("r restores the table", [*RANGED, ("T", "r", 0)], ("manual", 500, 2100, 1300)),
    ("determinism takes no minimum", [*DETERMINISM, ("T", "s 0 800", 0), ("T", "s 1 1900", 0), ("T", "c", 0)],
     ("perf_determinism", 500, 1900, 1300)),
    ("determinism with a minimum above the cap", [*DETERMINISM, ("T", "s 0 2000", 0), ("T", "s 1 1900", 0),
     ("T", "c", 0)], ("perf_determinism", 500, 1900, 1300)),
    ("a cap ends somebody's minimum", [*RANGED, *DETERMINISM, ("T", "s 1 1900", 0), ("T", "c", 0)],
     ("perf_determinism", 500, 1900, 1300)),
    ("a number beyond a long stages nothing", [*MANUAL, ("T", "s 0 99999999999999999999", EINVAL), ("T", "c", 0)],
     ("manual", 500, 2100, 1300)),
    ("determinism below the table", [*DETERMINISM, ("T", "s 1 499", 0), ("T", "c", EINVAL)],
     ("perf_determinism", 500, 2100, 1300)),
    ("determinism at the lower end", [*DETERMINISM, ("T", "s 1 500", 0), ("T", "c", 0)],
     ("perf_determinism", 500, 500, 1300)),
    ("a second cap", [*CAPPED, ("T", "s 1 1500", 0), ("T", "c", 0)], ("perf_determinism", 500, 1500, 1300)),
    ("after a refused high a commit caps again", [*CAPPED, ("L", "high", EINVAL), ("T", "c", 0)],
     ("perf_determinism", 500, 1900, 1300)),
    ("r in determinism makes the memory clock a cap", [*CAPPED, ("T", "r", 0)], ("perf_determinism", 500, 1300, 1300)),
    ("m in determinism makes it the cap too", [*CAPPED, ("T", "m 1 1100", 0), ("T", "c", 0)],
     ("perf_determinism", 500, 1100, 1300)),
    ("m outside the GFX table fails after the cap", [*DETERMINISM, ("T", "s 1 1900", 0), ("T", "m 1 400", 0),
     ("T", "c", EINVAL)], ("perf_determinism", 500, 1900, 1300)),
    ("m limits the memory", [*MANUAL, ("T", "m 1 1100", 0), ("T", "c", 0)], ("manual", 500, 2100, 1100)),
    ("m above the table stages what is in force", [*MANUAL, ("T", "m 1 1100", 0), ("T", "c", 0), ("T", "m 1 1000", 0),
     ("T", "m 1 1301", EINVAL), ("T", "c", 0)], ("manual", 500, 2100, 1100)),
    ("m at its lower end is no range", [*MANUAL, ("T", "s 1 1900", 0), ("T", "m 1 900", 0), ("T", "c", EINVAL)],
     ("manual", 500, 1900, 1300)),
    ("an index of m that is not there does nothing", [*MANUAL, ("T", "m 2 1000", 0), ("T", "c", 0)],
     ("manual", 500, 2100, 1300)),
    ("auto forgets m, not s", [*MANUAL, ("T", "m 1 1100", 0), ("T", "s 1 1900", 0), ("L", "auto", 0), *MANUAL,
     ("T", "c", 0)], ("manual", 500, 1900, 1300)),
    ("r forgets m", [*MANUAL, ("T", "m 1 1100", 0), ("T", "r", 0), ("T", "c", 0)], ("manual", 500, 2100, 1300)),
    ("s 1 0 unsets", [*CAPPED, ("L", "auto", 0), *DETERMINISM, ("T", "s 1 0", 0), ("T", "c", 0)],
     ("perf_determinism", 500, 2100, 1300)),
]  # fmt: skip


@pytest.mark.parametrize(("writes", "shows"), [row[1:] for row in LEVELS], ids=[row[0] for row in LEVELS])
def test_the_level_file(tmp_path: Path, writes: list[Write], shows: tuple[str, int, int, int]) -> None:
    card = Card(tmp_path)
    card.run(writes)
    assert card.shows() == shows


@pytest.mark.parametrize(("writes", "shows"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(tmp_path: Path, writes: list[Write], shows: tuple[str, int, int, int]) -> None:
    card = Card(tmp_path)
    card.run(writes)
    assert card.shows() == shows


def test_the_files_have_the_text_of_the_driver(tmp_path: Path) -> None:
    card = Card(tmp_path)
    card.run([*MANUAL, ("T", "s 1 1900", 0), ("T", "m 1 1100", 0), ("T", "c", 0)])
    assert card.host.text(FILES["L"]) == "manual\n"
    assert card.host.text(FILES["T"]) == "OD_SCLK:\n0: 500Mhz\n1: 1900Mhz\nOD_MCLK:\n0: 900Mhz\n1: 1100Mhz\n"


# --- pp_dpm_sclk --------------------------------------------------------------------------------------------------

RUNNING = "0: 500Mhz\n1: 1427Mhz *\n2: 2100Mhz\n"


@pytest.mark.parametrize(
    ("before", "writes", "after"),
    [
        (ASLEEP, CAPPED, "S: 132Mhz *\n0: 500Mhz\n1: 1900Mhz\n"),
        (ASLEEP, RANGED, "S: 132Mhz *\n0: 800Mhz\n1: 1700Mhz\n"),
        (RUNNING, CAPPED, "0: 500Mhz\n1: 1427Mhz *\n2: 1900Mhz\n"),
        (RUNNING, [*DETERMINISM, ("T", "s 1 1427", 0), ("T", "c", 0)], "0: 500Mhz \n1: 1427Mhz *\n"),
        (RUNNING, [*DETERMINISM, ("T", "s 1 1000", 0), ("T", "c", 0)], "0: 500Mhz \n1: 1000Mhz *\n"),
        ("0: 500Mhz *\n1: 2100Mhz \n", RANGED, "0: 800Mhz *\n1: 1700Mhz \n"),
        ("0: 500Mhz *\n1: 2100Mhz \n", CAPPED, "0: 500Mhz *\n1: 1900Mhz \n"),
        ("0: 500Mhz \n1: 2100Mhz *\n", CAPPED, "0: 500Mhz \n1: 1900Mhz *\n"),
        ("0: 500Mhz\n1: 140Mhz *\n2: 2100Mhz\n", MANUAL, "0: 500Mhz *\n1: 2100Mhz \n"),
        ("unavailable\n", CAPPED, "unavailable\n"),
    ],
)
def test_the_clock_follows_the_limits(tmp_path: Path, before: str, writes: list[Write], after: str) -> None:
    card = Card(tmp_path, sclk=before)
    card.run(writes)
    assert card.sclk() == after


@pytest.mark.parametrize("before", [ASLEEP, RUNNING, "0: 500Mhz *\n1: 2100Mhz \n", "0: 500Mhz \n1: 2100Mhz *\n"])
@pytest.mark.parametrize("writes", [CAPPED, RANGED, [*DETERMINISM, ("T", "s 1 600", 0), ("T", "c", 0)]])
def test_auto_gives_the_clock_back_to_the_byte(tmp_path: Path, before: str, writes: list[Write]) -> None:
    card = Card(tmp_path, sclk=before)
    card.run([*writes, ("L", "auto", 0)])
    assert card.sclk() == before
    assert card.shows() == AUTO


# --- firmware and busy --------------------------------------------------------------------------------------------


def test_firmware_that_refuses_the_word(tmp_path: Path) -> None:
    card = Card(tmp_path, f"{FULL}, determinism: level")
    card.run([("L", "perf_determinism", EINVAL), *RANGED, ("L", "perf_determinism", EINVAL)])
    assert card.shows() == ("manual", 800, 1700, 1300)


@pytest.mark.parametrize("command", ["c", "r"])
def test_firmware_that_refuses_the_commit(tmp_path: Path, command: str) -> None:
    card = Card(tmp_path, f"{FULL}, determinism: commit")
    card.run([*DETERMINISM, ("T", "s 1 1900", 0), ("T", command, EINVAL)])
    assert card.shows() == ("perf_determinism", 500, 2100, 1300)
    card.run([*MANUAL, ("T", "c", 0)])
    assert card.shows() == ("manual", 500, 1900, 1300), "manual needs no determinism"


def test_firmware_without_a_limit_of_the_memory(tmp_path: Path) -> None:
    card = Card(tmp_path, "sclk: [500, 2100]")
    card.run([*MANUAL, ("T", "m 1 1100", EINVAL), ("T", "s 1 1900", 0), ("T", "c", 0)])
    assert card.shows() == ("manual", 500, 1900, 0)
    card.run([("T", "r", 0)])
    assert card.host.text(FILES["T"]) == "OD_SCLK:\n0: 500Mhz\n1: 2100Mhz\n"


@pytest.mark.parametrize(("name", "number"), [("EPERM", EPERM), ("EBUSY", EBUSY)])
def test_a_busy_gpu_takes_nothing(tmp_path: Path, name: str, number: int) -> None:
    Card(tmp_path).run(CAPPED)
    card = Card.__new__(Card)
    card.root = tmp_path
    rules = tmp_path / ".tuner-host/kernel.yaml"
    rules.write_text(rules.read_text().replace("od_table,", f"od_table, busy: {name},"))
    card.host = RecordedHost(str(tmp_path))
    card.run([("L", w, number) for w in ("auto\n", "manual", "high", "perf_determinism")])
    card.run([("T", c, number) for c in ("s 1 1500", "c", "r", "m 1 1000")])
    card.run([("L", "banana", EINVAL), ("T", "x", EINVAL)])
    assert card.shows() == ("perf_determinism", 500, 1900, 1300)


# --- what no file shows -------------------------------------------------------------------------------------------


def test_nothing_is_staged_by_a_level_alone(tmp_path: Path) -> None:
    card = Card(tmp_path)
    card.run([*DETERMINISM, *MANUAL, ("L", "auto", 0), ("L", "high", EINVAL)])
    assert card.state() == []
    assert not (tmp_path / ".tuner-host/state").exists()


def test_two_gpus_stage_apart(tmp_path: Path) -> None:
    card = Card(tmp_path)
    other = GPU.replace("05", "27")
    (tmp_path / GPU[1:]).rename(tmp_path / "spare")
    (tmp_path / "spare").rename(tmp_path / other[1:])
    Card(tmp_path)
    rules = tmp_path / ".tuner-host/kernel.yaml"
    rules.write_text(re.sub(r"0000:05:00.0", "*", rules.read_text()))
    host = RecordedHost(str(tmp_path))
    for gpu in (GPU, other):
        host.write(f"{gpu}/power_dpm_force_performance_level", "manual")
    host.write(f"{other}/pp_od_clk_voltage", "s 1 1500")
    host.write(f"{GPU}/pp_od_clk_voltage", "c")
    assert card.shows() == ("manual", 500, 2100, 1300)
    host.write(f"{other}/pp_od_clk_voltage", "c")
    assert "1: 1500Mhz" in host.text(f"{other}/pp_od_clk_voltage")


# --- parameters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    ["mclk: [900, 1300]", "sclk: [2100, 500]", "sclk: [500]", "sclk: 500", "sclk: [0, 5]", "sclk: [a, b]",
     "sclk: [500, 2100], mclk: 5", "sclk: [500, 2100], determinism: no", "sclk: [500, 2100], busy: EIO",
     "sclk: [500, 2100], level: auto"],
)  # fmt: skip
def test_wrong_parameters_are_bad_input(tmp_path: Path, rule: str) -> None:
    with pytest.raises(TunerError):
        Card(tmp_path, rule).host.ready()


# --- any sequence -------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["auto\n", "manual\n", "perf_determinism\n", "high\n", "profile_peak", "profile_exit", "x"])
MHZ = st.sampled_from([-1, 0, 499, 500, 800, 900, 1100, 1300, 1301, 1427, 1900, 2100, 2101, 3000])
EDITS = st.builds("{} {} {}\n".format, st.sampled_from("sm"), st.sampled_from([0, 1, 1, 2]), MHZ)
TABLE_WRITES = st.one_of(EDITS, st.sampled_from(["c\n", "c\n", "c", "r\n", "c 1", "z"]))
WRITES = st.lists(st.one_of(st.tuples(st.just("L"), WORDS), st.tuples(st.just("T"), TABLE_WRITES)), max_size=14)


def agree(card: Card) -> None:
    """The files are whole and of one mind."""
    level, low, high, memory = card.shows()
    assert level in ("auto", "manual", "perf_determinism")
    assert card.host.text(FILES["T"]) == f"OD_SCLK:\n0: {low}Mhz\n1: {high}Mhz\nOD_MCLK:\n0: 900Mhz\n1: {memory}Mhz\n"
    assert 900 < memory <= 1300 or memory == 4294967295
    lines = card.sclk().splitlines()
    marked = [line for line in lines if line.endswith("*")]
    shown = [int(number) for number in re.findall(r": (\d+)Mhz", card.sclk())]
    assert len(marked) == 1
    assert (shown[0], shown[-1]) == (low, high)
    assert shown == sorted(shown)
    if level == "auto":
        assert (low, high, memory) == (500, 2100, 1300)
    if level == "perf_determinism":
        assert low <= high <= 2100 or high == 4294967295


@settings(max_examples=60, deadline=None)
@given(writes=WRITES)
def test_no_sequence_leaves_files_that_disagree(
    tmp_path_factory: pytest.TempPathFactory, writes: list[Sequence[str]]
) -> None:
    """An error changes nothing that shows, but for a word that ends determinism and a commit that fails half-way."""
    card = Card(tmp_path_factory.getbasetemp() / "any-sequence", sclk=RUNNING)
    for file, text in writes:
        before = card.shows()
        failed = card.echo(file, text)
        after = card.shows()
        agree(card)
        if failed and file == "L":
            dropped = (before[0], before[1], 2100, before[3])
            assert after in ([before, dropped] if before[0] == "perf_determinism" else [before])
        elif failed and text.strip() not in ("c", "r"):
            assert after == before
        elif failed:
            assert (after[0], after[3]) == (before[0], before[3])
        if before[0] == "auto" and file == "T":
            assert (failed, after) == (EINVAL, before)
    assert card.echo("L", "auto") == 0
    assert card.shows() == AUTO
    assert card.sclk() == RUNNING


# --- starred ------------------------------------------------------------------------------------------------------

PLPD = "0 : plpd_disallow\n1 : plpd_default*\n2 : plpd_optimized\n"


@pytest.mark.parametrize(
    ("text", "number", "after"),
    [
        ("0\n", 0, "0 : plpd_disallow*\n1 : plpd_default\n2 : plpd_optimized\n"),
        ("2", 0, "0 : plpd_disallow\n1 : plpd_default\n2 : plpd_optimized*\n"),
        ("1\n", 0, PLPD),
        ("3\n", EINVAL, PLPD),
        ("-1\n", EINVAL, PLPD),
        ("plpd_disallow\n", EINVAL, PLPD),
        ("\n", EINVAL, PLPD),
    ],
)
def test_a_policy_is_chosen_by_its_number(tmp_path: Path, text: str, number: int, after: str) -> None:
    card = Card(tmp_path)
    path = f"{GPU}/pm_policy/xgmi_plpd"
    (tmp_path / path[1:]).parent.mkdir()
    (tmp_path / path[1:]).write_text(PLPD)
    rules = tmp_path / ".tuner-host/kernel.yaml"
    rules.write_text(f"{rules.read_text()}  {path}: {{is: starred}}\n")
    host = RecordedHost(str(tmp_path))
    try:
        host.write(path, text)
        failed = 0
    except OSError as error:
        failed = error.errno or -1
    assert (failed, card.host.text(path)) == (number, after)
