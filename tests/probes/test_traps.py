"""What breaks readers of nvidia-smi, rocm-smi and amd-smi, each as a whole kind; and texts that are no output."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probes.test_outputs import EXPECTED, OUTPUTS, VIEWS, compare, text_of
from tuner.probes import (
    ParseError,
    amd_smi,
    amd_tables,
    amd_topo,
    cells,
    nvidia_q,
    nvidia_smi,
    nvidia_table,
    nvidia_topo,
    rocm_smi,
    rocm_topo,
)

PARSERS: list[Callable[[str], Any]] = [
    nvidia_smi.parse_query, nvidia_smi.parse_dmon, nvidia_smi.parse_nvlink, nvidia_smi.parse_action,
    nvidia_smi.parse_addresses, nvidia_q.parse_q, nvidia_table.parse_table, nvidia_topo.parse_topo,
    rocm_smi.parse_concise, rocm_smi.parse_csv, rocm_smi.parse_json, rocm_smi.parse_log, rocm_smi.parse_addresses,
    rocm_topo.parse_topo, amd_smi.parse_metric, amd_smi.parse_static, amd_tables.parse_monitor,
    amd_tables.parse_table, amd_topo.parse_topo,
]  # fmt: skip
TEXTS = {path.name: text_of(path) for path in OUTPUTS}


def fixture(start: str) -> str:
    """The one output whose name starts so."""
    (text,) = [text for name, text in TEXTS.items() if name.startswith(start)]
    return text


# --- the comparison itself ------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, one in value.items() for leaf in leaves(one, (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for at, one in enumerate(value) for leaf in leaves(one, (*path, at))]
    return [path]


@pytest.mark.parametrize("name", EXPECTED)
def test_any_other_value_would_be_noticed(name: str) -> None:
    view = next(view for start, view in VIEWS.items() if name.startswith(start))
    found = view(TEXTS[name])
    for path in leaves(EXPECTED[name]):
        if path[0] == "exit_code":
            continue
        wanted = json.loads(json.dumps({k: v for k, v in EXPECTED[name].items() if k != "exit_code"}))
        place = wanted
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = "something else"
        assert compare(wanted, found, ""), path


# --- cells ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "N/A", "[N/A]", "n/a", "-", "--", "", " ", "[Not Supported]", "Not Supported", "ERR!", "Unknown Error",
    "[Unknown Error]", "[Insufficient Permissions]", "[GPU is lost]", "[Requested functionality has been deprecated]",
    "65535", "4294967295", "18446744073709551615", "65535 MHz", "65535.0 MHz", "4294967295 MHz", "nan", "inf", "1e5",
    "\N{ARABIC-INDIC DIGIT FIVE} MHz", "12 GHz", "12 MHz W", "0x10", "1" * 5000, "1,980 MHz", "19 80",
])  # fmt: skip
def test_what_is_no_value_is_none(text: str) -> None:
    """Neither a number, nor another unit's, nor full scale; never 0."""
    assert cells.whole(text, "MHz") is None
    assert cells.real(text, "MHz") is None


@pytest.mark.parametrize(("text", "number"), [
    ("0", 0), ("0 MHz", 0), ("1980 MHz", 1980), ("94Mhz", 94), ("65534", 65534), ("4294967294", 4294967294),
    ("18446744073709551614", 18446744073709551614), ("-8", -8), ("700.00", 700),
])  # fmt: skip
def test_what_is_a_value_is_exact(text: str, number: int) -> None:
    assert cells.whole(text, "MHz") == number


@pytest.mark.parametrize("text", ["43.0°C", "43.0_C", "43.0C", "43.0 °C", "43.0\ufffdC", "43.0 C", "43.0"])
def test_a_degree_sign_may_be_lost(text: str) -> None:
    assert cells.celsius(text) == 43.0


@pytest.mark.parametrize(("text", "address"), [
    ("00000000:1B:00.0", "0000:1b:00.0"), ("0000:1b:00.0", "0000:1b:00.0"), ("1B:00.0", "0000:1b:00.0"),
    ("00010000:01:00.0", "10000:01:00.0"), ("0000:1b:00.", None), ("GPU0", None), ("", None),
])  # fmt: skip
def test_a_pci_address_is_that_of_sysfs(text: str, address: str | None) -> None:
    assert cells.pci(text) == address


@pytest.mark.parametrize(("mask", "names"), [
    (0x0, ()), (0x1, ("Idle",)), (0x88, ("HW Slowdown", "HW Power Brake Slowdown")), (0x40, ("HW Thermal Slowdown",)),
    (0x24, ("SW Power Cap", "SW Thermal Slowdown")), (0x10000000002, ("Applications Clocks Setting", "0x10000000000")),
])  # fmt: skip
def test_a_mask_is_read_bit_by_bit(mask: int, names: tuple[str, ...]) -> None:
    """Bits of nvmlClocksEventReason*; one that is not known is named by its number."""
    assert nvidia_smi.names(mask) == names


# --- nvidia-smi -----------------------------------------------------------------------------------------------------


def test_renamed_fields_and_unknown_columns() -> None:
    text = fixture("nvidia_smi_csv_02").replace("clocks_event_reasons", "clocks_throttle_reasons")
    text = text.replace("timestamp, ", "something new [EB], ")
    assert nvidia_smi.parse_query(text).gpus == nvidia_smi.parse_query(fixture("nvidia_smi_csv_02")).gpus
    old = fixture("nvidia_smi_q_01").replace("Clocks Event Reasons", "Clocks Throttle Reasons")
    assert nvidia_q.parse_q(old) == nvidia_q.parse_q(fixture("nvidia_smi_q_01"))


def test_columns_go_by_name_and_units_may_be_left_out() -> None:
    """--format=csv,nounits; another order."""
    text = "power.draw [W], clocks.sm [MHz], index\n631.95, 1980, 3\n"
    (row,) = nvidia_smi.parse_query(text).gpus
    assert (row.index, row.sm_mhz, row.power_w, row.mem_mhz) == (3, 1980, 631.95, None)


def test_a_row_that_is_cut_is_left_out() -> None:
    whole = "index, clocks.sm [MHz], temperature.gpu\n0, 1980 MHz, 59\n1, 1980 MHz, 61\n"
    for end in range(whole.index("\n1") + 2, len(whole) - 1):
        seen = nvidia_smi.parse_query(whole[:end])
        assert ([row.temp_c for row in seen.gpus], seen.cut) == ([59], True), whole[:end]
    assert not nvidia_smi.parse_query(whole).cut


def test_an_index_that_comes_twice_belongs_to_nobody() -> None:
    text = "0, 00000000:1B:00.0\n1, 00000000:9B:00.0\n0, 00000000:BB:00.0\n2, [N/A]\n"
    assert nvidia_smi.parse_addresses(text) == {1: "0000:9b:00.0"}


def test_flaws_are_named_with_their_kind() -> None:
    seen = nvidia_q.parse_q(fixture("nvidia_smi_q_08")).gpus[0]
    assert {flaw.field: flaw.kind for flaw in seen.flaws}["Applications Clocks/Graphics"] == "deprecated"
    text = "index, clocks.sm [MHz], power.draw [W]\n0, [Insufficient Permissions], [GPU is lost]\n"
    (row,) = nvidia_smi.parse_query(text).gpus
    assert [(flaw.field, flaw.kind) for flaw in row.flaws] == [
        ("clocks.current.sm", "permission"),
        ("power.draw", "lost"),
    ]
    assert (row.sm_mhz, row.power_w) == (None, None)


def test_fewer_gpus_than_the_driver_has_are_not_all() -> None:
    seen = nvidia_q.parse_q(fixture("nvidia_smi_q_01"))
    assert (seen.attached, len(seen.gpus), seen.cut) == (8, 2, True)
    assert not nvidia_q.parse_q(fixture("nvidia_smi_q_07")).cut


def test_links_that_are_down_are_not_counted() -> None:
    text = fixture("nvidia_smi_nvlink_01").replace("Link 3: 26.562 GB/s", "Link 3: <inactive>")
    (gpu,) = nvidia_smi.parse_nvlink(text).gpus
    assert (len(gpu.links), gpu.active, dict(gpu.links)[3]) == (18, 17, None)


@pytest.mark.parametrize(("text", "done", "reason"), [
    ("All done.\n", None, ""),
    ("Gpu clocks set to \"(gpuClkMin 1410, gpuClkMax 1410)\" for GPU 00000000:1B:00.0\n", None, ""),
    ("The current user does not have permission to change clocks for GPU 00000000:1B:00.0.\nInsufficient Permissions\n",
     False, "no permission"),
    ("Unable to set persistence mode for GPU 00000000:1B:00.0: Unknown Error\nTerminating early.\n",
     False, "unable"),
])  # fmt: skip
def test_no_word_of_success_is_believed(text: str, done: bool | None, reason: str) -> None:
    said = nvidia_smi.parse_action(text)
    assert (said.done, said.reason) == (done, reason)


def test_a_matrix_with_a_missing_cell_has_no_nearest_nic() -> None:
    whole = fixture("nvidia_smi_topo_02")
    row = whole.split("\n")[1]
    seen = nvidia_topo.parse_topo(whole.replace(row, row.replace("PIX", "   ")))
    assert seen.best("GPU0") == ((), None)
    assert seen.best("GPU1") == (("NIC1",), "PIX")
    assert seen.cut


def test_nics_that_are_equally_near_are_all_named() -> None:
    text = fixture("nvidia_smi_topo_02").replace(
        "PIX     NODE    NODE    NODE    SYS", "PIX     PIX     NODE    NODE    SYS"
    )
    assert nvidia_topo.parse_topo(text).best("GPU0") == (("NIC0", "NIC1"), "PIX")


# --- rocm-smi -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["latin-1", "byte dropped"])
def test_a_table_without_its_degree_signs(how: str) -> None:
    """The columns move; no number loses a digit."""
    plain = fixture("rocm_smi_02")
    assert plain.count("°") == 8
    text = plain.encode("latin-1").decode("utf-8", "replace") if how == "latin-1" else plain.replace("°", "")
    assert rocm_smi.parse_concise(text) == rocm_smi.parse_concise(plain)


def test_a_display_that_is_no_gpu_is_named_apart() -> None:
    seen = rocm_smi.parse_concise(fixture("rocm_smi_08"))
    assert ([gpu.index for gpu in seen.gpus], seen.others) == ([1], (0,))


def test_columns_of_csv_go_by_name() -> None:
    text = fixture("rocm_smi_04")
    *head, names, values = text.rstrip("\n").split("\n")
    pairs = list(zip(names.split(",")[1:], values.split(",")[1:], strict=True))[::-1]
    turned = "\n".join(
        [*head, ",".join(["device", *(n for n, _ in pairs)]), ",".join(["card0", *(v for _, v in pairs)])]
    )
    one, other = rocm_smi.parse_csv(text).cards[0], rocm_smi.parse_csv(turned + "\n").cards[0]
    assert dataclasses.replace(other, told=()) == dataclasses.replace(one, told=())


def test_cards_of_several_documents_are_put_together() -> None:
    one, other = (
        '{"card0": {"PCI Bus": "0000:05:00.0"}}',
        '{"card0": {"GPU use (%)": "7"}, "card1": {"GPU use (%)": "8"}}',
    )
    text = f"WARNING: x\n{one}\n{other}\n"
    seen = rocm_smi.parse_json(text)
    assert [(c.card, c.pci, c.use_pct) for c in seen.cards] == [("card0", "0000:05:00.0", 7), ("card1", None, 8)]
    assert rocm_smi.parse_addresses(text) == {0: "0000:05:00.0"}


def test_a_key_with_two_values_has_none() -> None:
    text = '{"card0": {"GPU use (%)": "7", "GPU use (%)": "8", "Card Series": "x", "Card Series": "x"}}\n'
    (card,) = rocm_smi.parse_json(text).cards
    assert (card.use_pct, card.series) == (None, "x")


def test_clock_keys_with_colons_and_brackets() -> None:
    (card,) = rocm_smi.parse_json('{"card0": {"sclk clock speed:": "(132Mhz)", "Performance Level": "auto"}}\n').cards
    assert dict(card.told)["sclk clock speed"] == "132Mhz"
    assert card.perf == "auto"


def test_no_json_data_is_an_error_with_its_text() -> None:
    with pytest.raises(ParseError, match="No JSON data to report"):
        rocm_smi.parse_json("WARNING: No JSON data to report\n")


def test_nodes_that_are_missing_make_a_topology_cut() -> None:
    """Two of four NUMA nodes are there: the others are not 0."""
    seen = rocm_topo.parse_topo(fixture("rocm_smi_10"))
    assert (seen.numa, seen.cut) == ({0: 0, 1: 0}, True)
    assert not rocm_topo.parse_topo(fixture("rocm_smi_01")).cut


# --- amd-smi --------------------------------------------------------------------------------------------------------

POWER = '{{"gpu": {gpu}, "power": {{"socket_power": {power}}}}}'


@pytest.mark.parametrize(("power", "watts"), [
    ("10", 10), ('{"value": 10, "unit": "W"}', 10), ('"10 W"', 10), ('"N/A"', None), ("null", None), ("65535", None),
    ('{"value": 4294967295, "unit": "W"}', None), ('{"value": "N/A", "unit": "W"}', None), ("NaN", None),
    ("1e999", None), ('{"value": 10, "unit": "mW"}', None), ("[]", None), ("{}", None), ("true", None),
])  # fmt: skip
def test_a_quantity_is_a_number_an_object_or_a_word(power: str, watts: int | None) -> None:
    (gpu,) = amd_smi.parse_metric(f"[{POWER.format(gpu=0, power=power)}]").gpus
    assert gpu.socket_power_w == watts


@pytest.mark.parametrize(
    "form", ["[{0}, {1}]", "[{0}]\n[{1}]\n", '{{"gpu_data": [{0}, {1}]}}', "{0}\n{1}", "x\n[\n{0},{1}]\ny"]
)
def test_all_forms_of_a_list_of_gpus(form: str) -> None:
    """Bare before ROCm 7, below gpu_data since, several documents (ROCm/rocm-systems#667)."""
    text = form.format(POWER.format(gpu=0, power=10), POWER.format(gpu=1, power=20))
    seen = amd_smi.parse_metric(text)
    assert ([(gpu.gpu, gpu.socket_power_w) for gpu in seen.gpus], seen.cut) == ([(0, 10), (1, 20)], False)


@pytest.mark.parametrize("form", ["[{0}, {1}]", '{{"gpu_data": [{0}, {1}]}}'])
def test_json_that_is_cut_gives_what_is_whole(form: str) -> None:
    """Wherever it ends: what is given is right, and that it is not all is said."""
    text = form.format(POWER.format(gpu=0, power=123), POWER.format(gpu=1, power=456))
    for end in range(text.index("123") + 8, len(text)):
        seen = amd_smi.parse_metric(text[:end])
        assert seen.cut, text[:end]
        assert seen.gpus[0].socket_power_w == 123
        assert {gpu.socket_power_w for gpu in seen.gpus[1:]} <= {None, 456}


def test_lines_of_errors_that_look_like_lists_are_no_documents() -> None:
    text = "[AMDSMI_STATUS_NOT_SUPPORTED] Unable to x\n" + f"[{POWER.format(gpu=0, power=10)}]\n"
    seen = amd_smi.parse_metric(text)
    assert seen.gpus[0].socket_power_w == 10
    assert seen.banner == ("[AMDSMI_STATUS_NOT_SUPPORTED] Unable to x",)


def test_policies_of_json_are_those_of_text() -> None:
    policies = [
        {"policy_id": 0, "policy_description": "plpd_disallow"},
        {"policy_id": 1, "policy_description": "plpd_default"},
    ]
    told = {"gpu": 0, "xgmi_plpd": {"num_supported": 2, "current_id": 1, "plpds": policies}}
    (gpu,) = amd_smi.parse_static(json.dumps([told])).gpus
    assert gpu.xgmi_plpd == amd_smi.Policy(2, 1, ((0, "plpd_disallow"), (1, "plpd_default")))


def test_not_active_does_not_contain_active() -> None:
    text = fixture("amd_smi_01").replace("PPT_VIOLATION_STATUS: NOT ACTIVE", "PPT_VIOLATION_STATUS: ACTIVE", 1)
    throttles = [gpu.throttle for gpu in amd_smi.parse_metric(text).gpus]
    assert [found and found.active for found in throttles] == [("ppt",), ()]


@pytest.mark.parametrize(
    "form",
    [
        "acc_ppt_pwr active_ppt_pwr per_ppt_pwr",
        "ppt_pwr_accumulated ppt_pwr_violation_status ppt_pwr_violation_activity",
    ],
)
@pytest.mark.parametrize("block", ["throttle", "violation"])
def test_a_gpu_that_is_throttled_never_looks_free(block: str, form: str) -> None:
    """Names of both releases (amdsmi docs, gpu-violations.md); a block that is not there is nothing that is known."""
    total, now, share = form.split()
    told = {"gpu": 0, block: {total: 5, now: "ACTIVE", share: {"value": 50, "unit": "%"}}}
    (gpu,) = amd_smi.parse_metric(json.dumps({"gpu_data": [told]})).gpus
    assert gpu.throttle == amd_smi.Throttle(None, (("ppt_pwr", 5),), (("ppt_pwr", True),), (("ppt_pwr", 50),))
    (none,) = amd_smi.parse_metric(json.dumps([{"gpu": 0, "pcie": {"width": 16}}])).gpus
    assert none.throttle is None


def test_a_refusal_of_rocm_smi_is_no_value() -> None:
    """It goes to stdout with exit code 0 (rocm_smi.py)."""
    told = rocm_smi.parse_log("GPU[0]\t\t: set_perf_level, Not supported on the given system\nGPU[1]\t\t: a: b\n")
    assert (told.unsupported, told.values) == (((0, "set_perf_level"),), ((1, "a", "b"),))


# --- no output at all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: f"{parse.__module__}.{parse.__name__}")
@pytest.mark.parametrize("text", ["", "\n\n", " \t \r\n", "\x1b[0m\n"])
def test_empty_is_an_error_of_its_own(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.kind == "empty"


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "drop", "insert", "swap", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        st.one_of(
            st.text(max_size=6),
            st.sampled_from(
                ["\x1b[4m", "\r\n", "\t", "N/A", "ERR!", "{", "[", "]", "}", '"', ":", "|", "=", "65535", "\0"]
            ),
        ),
    ),
    min_size=1,
    max_size=6,
)


def mutated(text: str, changes: list[tuple[str, float, str]]) -> str:
    """The text, changed: cut off, a part taken out or doubled, something put in, two lines swapped."""
    for kind, where, other in changes:
        at = int(where * (len(text) + 1))
        rows = text.split("\n")
        row = int(where * len(rows))
        match kind:
            case "cut":
                text = text[:at]
            case "drop":
                text = text[:at] + text[at + 1 + len(other) :]
            case "insert":
                text = text[:at] + other + text[at:]
            case "swap":
                text = "\n".join([*rows[row:], *rows[:row]])
            case _:
                text = "\n".join([*rows[: row + 1], *rows[row:]])
    return text


def parsed(parse: Callable[[str], Any], text: str) -> Any:
    """What it returns; only ParseError may be raised, and it is one line."""
    try:
        return parse(text)
    except ParseError as error:
        assert error.kind in ("empty", "usage", "driver", "permission", "unknown")
        assert "\n" not in str(error)
        return None


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), changes=MUTATIONS, parse=st.sampled_from(PARSERS))
def test_mutated_outputs_raise_nothing_else(name: str, changes: list[tuple[str, float, str]], parse: Any) -> None:
    parsed(parse, mutated(TEXTS[name], changes))


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=200), parse=st.sampled_from(PARSERS))
def test_any_text_raises_nothing_else(text: str, parse: Any) -> None:
    parsed(parse, text)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: f"{parse.__module__}.{parse.__name__}")
@pytest.mark.parametrize(
    "text",
    [
        "[" * 20000,
        '{"a":' * 20000,
        '[{"gpu": ' + "9" * 6000 + "}]",
        "GPU: 0\n" + "".join(f"{' ' * depth}A{depth}:\n" for depth in range(300)),
        '{"\\ud800": "\\udfff"}',
    ],
    ids=["[", "{", "digits", "deep", "surrogates"],
)
def test_depth_and_length_raise_nothing_else(parse: Callable[[str], Any], text: str) -> None:
    parsed(parse, text)


def numbers(value: Any) -> set[float]:
    """Every number in a record."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return set()
    if isinstance(value, (int, float)):
        return {float(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {n for field in dataclasses.fields(value) for n in numbers(getattr(value, field.name))}
    if isinstance(value, dict):
        return {n for pair in value.items() for one in pair for n in numbers(one)}
    return {n for one in value for n in numbers(one)}


PARSER_OF: dict[str, Callable[[str], Any]] = {
    "nvidia_smi_csv": nvidia_smi.parse_query, "nvidia_smi_default": nvidia_table.parse_table,
    "nvidia_smi_dmon": nvidia_smi.parse_dmon, "nvidia_smi_nvlink": nvidia_smi.parse_nvlink,
    "nvidia_smi_q": nvidia_q.parse_q, "nvidia_smi_topo_0": nvidia_topo.parse_topo,
    "rocm_smi_01": rocm_topo.parse_topo, "rocm_smi_10": rocm_topo.parse_topo,
    "rocm_smi_04": rocm_smi.parse_csv, "rocm_smi_05": rocm_smi.parse_json, "rocm_smi_07": rocm_smi.parse_log,
    "rocm_smi": rocm_smi.parse_concise, "amd_smi_02": amd_tables.parse_monitor, "amd_smi_05": amd_topo.parse_topo,
    "amd_smi_07": amd_topo.parse_topo, "amd_smi_08": amd_topo.parse_topo, "amd_smi_13": amd_smi.parse_static,
    "amd_smi_17": amd_smi.parse_static, "amd_smi_16": amd_tables.parse_table, "amd_smi": amd_smi.parse_metric,
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in TEXTS if not n.startswith(("nvidia_smi_action", "nvidia_smi_topo_07"))])
def test_an_output_that_is_cut_has_no_other_numbers(name: str) -> None:
    """Cut anywhere, even within a number: every number is one of the whole output's. Never 19 for 1980."""
    parse = next(parse for start, parse in PARSER_OF.items() if name.startswith(start))
    whole = numbers(parse(TEXTS[name]))
    step = max(1, len(TEXTS[name]) // 400)
    for end in range(0, len(TEXTS[name]), step):
        seen = parsed(parse, TEXTS[name][:end])
        assert seen is None or numbers(seen) <= whole, TEXTS[name][max(0, end - 40) : end]
