"""What is read of rocm-smi's output, against captured texts and any text. What it does is in tests/fuse."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.host.shell import Ran
from tuner.knobs.rocm_smi import LONGEST, buses, told

WARNING = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status"
FRAME = "======================= ROCm System Management Interface ======================="
TERMS = """
          ******WARNING******

          Operating your AMD GPU outside of official AMD specifications or outside of
          factory settings, including but not limited to the conducting of overclocking,
          """
REFUSED = "ERROR: 2 GPU[0]:RSMI_STATUS_NOT_SUPPORTED: This function is not supported in the current environment."
BUSES = '{"card0": {"PCI Bus": "0000:05:00.0"}, "card5": {"PCI Bus": "0000:A7:00.0"}}'
FOUND = [(0, "0000:05:00.0"), (5, "0000:a7:00.0")]


@pytest.mark.parametrize(
    "text",
    [
        BUSES,
        f"{WARNING}\n\n{BUSES}\n",
        f"{{oops}} [1]\n{BUSES}\n{{}}",
        f"{BUSES}{BUSES}",
        f"\n\n{FRAME}\n{BUSES}\n{FRAME}",
    ],
    ids=["alone", "warning", "braces", "two documents", "frames"],
)
def test_numbers_by_pci_address(text: str) -> None:
    assert list(buses(text)) == FOUND


@pytest.mark.parametrize(
    "text",
    [
        "", WARNING, "{}", "[]", "null", '{"card0"', '{"card0": null}', '{"card0": {"PCI Bus": 5}}',
        '{"system": {"PCI Bus": "0000:05:00.0"}}', '{"cardX": {"PCI Bus": "0000:05:00.0"}}', "{" * 5000,
        '{"a":' * 5000,
    ],
)  # fmt: skip
def test_what_names_no_gpu_names_none(text: str) -> None:
    assert list(buses(text)) == []


def test_an_unreadable_address_is_none() -> None:
    """Never one that could be taken for a target."""
    assert list(buses('{"card0": {"PCI Bus": "N/A"}}')) == [(0, "")]


CARDS = st.dictionaries(st.integers(0, 99), st.integers(0, 255), max_size=9)
NOISE = st.text(alphabet=string.printable.replace("{", ""), max_size=60)


@given(CARDS, NOISE, st.text(max_size=60))
def test_any_node_is_found_between_any_noise(cards: dict[int, int], before: str, after: str) -> None:
    document = {f"card{n}": {"PCI Bus": f"0000:{bus:02X}:00.0", "GPU use (%)": "0"} for n, bus in cards.items()}
    text = f"{before}\n{json.dumps(document)}\n{after}"
    assert list(buses(text)) == [(n, f"0000:{bus:02x}:00.0") for n, bus in cards.items()]


@pytest.mark.parametrize(
    ("out", "err", "words"),
    [
        (f"\n{FRAME}\nGPU[0]\t\t: Performance level set to manual\n{FRAME}", "",
         "GPU[0] : Performance level set to manual"),
        (FRAME, f"{REFUSED}\t", REFUSED),
        (TERMS + "GPU[3]\t\t: Successfully set sclk from 800(MHz) to 1700(MHz)", "",
         "GPU[3] : Successfully set sclk from 800(MHz) to 1700(MHz)"),
        ("GPU[0]\t\t: set_perf_level, Not supported on the given system",
         "ERROR: GPU[0]\t: Unable to set performance determinism and clock frequency to 1900",
         "GPU[0] : set_perf_level, Not supported on the given system;"
         " ERROR: GPU[0] : Unable to set performance determinism and clock frequency to 1900"),
        ("", "sudo: a terminal is required", "sudo: a terminal is required"),
        (FRAME, "", ""),
        ("", "", ""),
    ],
)  # fmt: skip
def test_the_lines_that_say_what_became_of_it(out: str, err: str, words: str) -> None:
    assert told(Ran(0, out, err, "")) == words


def test_one_that_did_not_end_is_said_first() -> None:
    assert told(Ran(None, "GPU[0] : set", "", "rocm-smi did not end within 30 s and was killed")) == (
        "rocm-smi did not end within 30 s and was killed"
    )


@given(st.text(), st.text())
def test_any_output_is_one_short_line(out: str, err: str) -> None:
    found = told(Ran(0, out, err, ""))
    assert len(found) <= LONGEST
    assert found.isprintable()
