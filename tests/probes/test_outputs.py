"""Every captured output of nvidia-smi, rocm-smi and amd-smi: its parser finds what expected.yaml has from reading it.

expected.yaml was written by hand from the outputs; what stands here only says where each of its names is in a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.probes import (
    ParseError,
    amd_smi,
    amd_tables,
    amd_topo,
    nvidia_q,
    nvidia_smi,
    nvidia_table,
    nvidia_topo,
    rocm_smi,
    rocm_topo,
)

HERE = Path(__file__).parent
OUTPUTS = sorted((HERE / "outputs").iterdir())
EXPECTED = {
    row["file"]: row["must_extract"] for row in yaml.safe_load((HERE / "expected.yaml").read_text(encoding="utf-8"))
}
ELSEWHERE = {"exit_code"}
"""What is not in the text: tested in test_asking.py."""

View = Callable[[str], dict[str, Any]]


def text_of(path: Path) -> str:
    """The output as the one way to start a program decodes it."""
    return path.read_bytes().decode("utf-8", "replace")


def one(values: Iterable[Any]) -> Any:
    """The value that all of them are."""
    (single,) = set(values)
    return single


# --- nvidia-smi -----------------------------------------------------------------------------------------------------


def action(text: str) -> dict[str, Any]:
    said = nvidia_smi.parse_action(text)
    return {"done": said.done, "reason": said.reason, "gpu": one(f"0000{place}" for place in said.pci)}


def query(text: str) -> dict[str, Any]:
    (row,) = nvidia_smi.parse_query(text).gpus
    names = ("pstate", "sm_mhz", "mem_mhz", "app_graphics_mhz", "max_sm_mhz", "reasons_mask", "power_w", "temp_c")
    return {
        "gpu0": {
            **{name: getattr(row, name) for name in (*names, "fan_pct")},
            "reasons_active": list(row.reasons_active or ()),
        }
    }


def table(text: str) -> dict[str, Any]:
    told = nvidia_table.parse_table(text)
    gpu, flaws = told.gpus[0], {flaw.field: flaw.text for flaw in told.gpus[0].flaws}
    names = ("temp_c", "pstate", "power_w", "power_cap_w", "mem_used_mib", "mem_total_mib")
    fields = {name: getattr(gpu, name) for name in names}
    return {"gpus": len(told.gpus), "gpu0": {"fan": flaws.get("fan", gpu.fan_pct), **fields}}


def dmon(text: str) -> dict[str, Any]:
    samples = nvidia_smi.parse_dmon(text).of(0)
    names = {"pclk_mhz": "pclk_mhz", "mclk_mhz": "mclk_mhz", "power_w": "power_w", "gtemp_c": "gtemp_c"}
    fields = {**names, "sm_util": "sm_pct"}
    columns = {name: [getattr(sample, field) for sample in samples] for name, field in fields.items()}
    return {"samples": len(samples), "gpu0": columns}


def nvlink(text: str) -> dict[str, Any]:
    (gpu,) = nvidia_smi.parse_nvlink(text).gpus
    return {"gpu0": {"links": gpu.active, "gb_per_s_each": one(rate for _, rate in gpu.links)}}


def report(text: str) -> dict[str, Any]:
    gpu = nvidia_q.parse_q(text).gpus[0]
    flaws = {flaw.field: flaw.kind for flaw in gpu.flaws}
    return {
        "gpu0": {
            "pstate": gpu.pstate, "idle": gpu.idle, "reasons_active": list(gpu.reasons_active or ["unread"]),
            "graphics_mhz": gpu.now.graphics_mhz, "sm_mhz": gpu.now.sm_mhz, "mem_mhz": gpu.now.mem_mhz,
            "video_mhz": gpu.now.video_mhz, "app_graphics_mhz": gpu.app.graphics_mhz,
            "app_clocks_status": flaws.get("Applications Clocks/Graphics"),
            "max_graphics_mhz": gpu.max.graphics_mhz, "max_customer_boost_mhz": gpu.max_customer_boost_mhz,
            "voltage_mv": gpu.voltage_mv, "addressing_mode_error": flaws.get("Addressing Mode") == "error",
            "counters_us": dict(gpu.counters_us),
        }
    }  # fmt: skip


def busy_report(text: str) -> dict[str, Any]:
    """A GPU that works: no reason is active, and the section is there."""
    seen = report(text)
    assert nvidia_q.parse_q(text).gpus[0].reasons_active == ()
    seen["gpu0"]["reasons_active"] = []
    return seen


def topo(text: str) -> dict[str, Any]:
    told = nvidia_topo.parse_topo(text)
    best = {gpu: [told.device(label) or label for label in told.best(gpu)[0]] for gpu in told.gpus}
    pairs = {cell for (_, other), cell in told.links.items() if other in told.gpus and cell != "X"}
    links = set(told.nvlinks().values())
    own = told.gpu_numa or {}
    return {
        "gpus": list(told.gpus), "gpus_in_header": len(told.gpus), "truncated": told.cut,
        "nics": [told.device(label) or label for label in told.labels], "gpu_nic_best": best,
        "nvlink_all": one(links) if len(links) == 1 else links, "nvlink_links": sum(told.nvlinks().values()),
        "gpu_gpu": one(pairs) if len(pairs) == 1 else pairs,
        "cpu_affinity": told.cpus, "numa_affinity": told.numa,
        "gpu_numa_id": own if len(own) == 1 else (one(own.values()) if own else "no column"),
    }  # fmt: skip


def refusal(text: str) -> dict[str, Any]:
    with pytest.raises(ParseError) as caught:
        nvidia_topo.parse_topo(text)
    return {"error": caught.value.kind}


# --- rocm-smi -------------------------------------------------------------------------------------------------------


def rocm_links(text: str) -> dict[str, Any]:
    told = rocm_topo.parse_topo(text)
    off = [link for (a, b), link in told.links.items() if a != b]
    return {
        "gpus": len(told.gpus), "weight_offdiag": one(link.weight for link in off), "xgmi": told.xgmi,
        "hops_offdiag": one(link.hops for link in off), "link_type_offdiag": one(link.kind for link in off),
        "link_type_diag": one(link.kind for (a, b), link in told.links.items() if a == b),
        "numa_node": [told.numa.get(gpu) for gpu in told.gpus], "warnings": len(told.warnings),
    }  # fmt: skip


def concise(text: str) -> dict[str, Any]:
    told = rocm_smi.parse_concise(text)
    return {"gpus": len(told.gpus), "gpu0": vars(told.gpus[0]) if told.gpus else None, "warnings": list(told.warnings)}


def old_concise(text: str) -> dict[str, Any]:
    return {"gpus": [vars(gpu) for gpu in rocm_smi.parse_concise(text).gpus]}


def card(parse: Callable[[str], rocm_smi.Cards]) -> View:
    def view(text: str) -> dict[str, Any]:
        told = parse(text)
        return {told.cards[0].card: vars(told.cards[0]), "warnings": list(told.warnings)}

    return view


def failures(text: str) -> dict[str, Any]:
    return {"unsupported": [{"gpu": gpu, "what": what} for gpu, what in rocm_smi.parse_log(text).unsupported]}


# --- amd-smi --------------------------------------------------------------------------------------------------------


def metric(text: str) -> dict[str, Any]:
    told = amd_smi.parse_metric(text)
    gpu, pcie = told.gpus[0], told.gpus[0].pcie
    throttle = gpu.throttle or amd_smi.Throttle(None, (), (), ())
    ppt = {True: "ACTIVE", False: "NOT ACTIVE", None: None}[dict(throttle.status).get("ppt")]
    gfx, mem = gpu.domain("gfx"), gpu.domain("mem")
    fields: dict[str, Any] = {
        "accumulation_counter": throttle.counter, "ppt_accumulated": dict(throttle.accumulated).get("ppt"),
        "socket_thermal_accumulated": dict(throttle.accumulated).get("socket_thermal"),
        "ppt_violation_status": ppt, "ppt_violation_activity_pct": dict(throttle.activity_pct).get("ppt"),
        "active_reasons": list(throttle.active), "socket_power_w": gpu.socket_power_w,
        "throttle_status": gpu.throttle_status, "width": pcie.width, "speed_gts": pcie.speed_gts,
        "replay_count": pcie.replay_count, "nak_sent": pcie.nak_sent,
        "current_bandwidth_sent": pcie.bandwidth_sent_mbs,
    }  # fmt: skip
    if gfx:
        clocks = [clock.mhz for clock in gfx]
        fields |= {
            "gfx_clk_mhz": clocks if len(clocks) > 1 else clocks[0], "gfx_min_mhz": one(c.min_mhz for c in gfx),
            "gfx_max_mhz": one(c.max_mhz for c in gfx), "clk_locked": one(c.locked for c in gfx),
            "deep_sleep": one(c.deep_sleep for c in gfx),
        }  # fmt: skip
    if mem:
        fields |= {"mem_clk_mhz": mem[0].mhz, "mem_max_mhz": mem[0].max_mhz}
    return {"gpu0": fields, "banner_lines": len(told.banner)}


def monitor(text: str) -> dict[str, Any]:
    told = amd_tables.parse_monitor(text)
    return {"gpus": len(told.gpus), "gpu0": dict(told.gpus[0])}


def amd_pairs(text: str) -> dict[str, Any]:
    told = amd_topo.parse_topo(text)
    link = told.links[0, 1]
    status = {True: "ENABLED", False: "DISABLED", None: None}[link.accessible]
    old = {"type": link.kind, "hops": link.hops, "weight": link.weight, "accessible": link.accessible}
    new = {"link_type": link.kind, "link_status": status}
    return {"link": {"0-1": old}, "links": {"0-1": new}, "bdf": [told.pci.get(gpu) for gpu in told.gpus]}


def amd_mesh(text: str) -> dict[str, Any]:
    told = amd_topo.parse_topo(text)
    off = one(link for (a, b), link in told.links.items() if a != b)
    own = one(link for (a, b), link in told.links.items() if a == b)
    all_pairs = {"link_type": off.kind, "hops": off.hops, "weight": off.weight, "numa_bw": off.bandwidth}
    shown = f"{own.kind} / {own.hops} / {own.bandwidth or 'N/A'}"
    return {"gpus": len(told.gpus), "all_pairs": all_pairs, "self": shown}


def static(text: str) -> dict[str, Any]:
    told = amd_smi.parse_static(text)
    gpu = told.gpus[0]

    def policy(found: amd_smi.Policy) -> dict[str, Any]:
        policies = {str(number): name for number, name in found.policies}
        return {"num_supported": found.supported, "current_id": found.current, "policies": policies}

    fields = {**vars(gpu), "bdf": gpu.pci, "soc_pstate": policy(gpu.soc_pstate), "xgmi_plpd": policy(gpu.xgmi_plpd)}
    return {"cpus": told.cpus, "gpu0": fields, **dict(gpu.levels)}


def amd_table(text: str) -> dict[str, Any]:
    told = amd_tables.parse_table(text)
    return {"rocm": told.rocm, "gpu0": {**vars(told.gpus[0]), "bdf": told.gpus[0].pci}}


VIEWS: dict[str, View] = {
    "nvidia_smi_action": action, "nvidia_smi_csv": query, "nvidia_smi_default": table, "nvidia_smi_dmon": dmon,
    "nvidia_smi_nvlink": nvlink, "nvidia_smi_q_07": busy_report, "nvidia_smi_q_08": busy_report,
    "nvidia_smi_q": report, "nvidia_smi_topo_07": refusal, "nvidia_smi_topo": topo,
    "rocm_smi_01": rocm_links, "rocm_smi_10": rocm_links, "rocm_smi_04": card(rocm_smi.parse_csv),
    "rocm_smi_05": card(rocm_smi.parse_json), "rocm_smi_07": failures, "rocm_smi_08": old_concise,
    "rocm_smi": concise, "amd_smi_02": monitor, "amd_smi_05": amd_pairs, "amd_smi_07": amd_pairs,
    "amd_smi_08": amd_mesh, "amd_smi_13": static, "amd_smi_17": static, "amd_smi_16": amd_table, "amd_smi": metric,
}  # fmt: skip
"""By the start of a file's name; the first that fits."""


def compare(wanted: Any, found: Any, place: str) -> list[str]:
    """Where `found` is not what is wanted; it may have more. A text of a list of warnings may be a part of one."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        missing = [f"{place}.{key} is missing" for key in wanted if key not in found]
        return missing + [
            line for key in wanted if key in found for line in compare(wanted[key], found[key], f"{place}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [
            line for at, pair in enumerate(zip(wanted, found, strict=True)) for line in compare(*pair, f"{place}[{at}]")
        ]
    if place.startswith(".warnings[") and wanted in found:
        return []
    same = (
        wanted == found and (wanted is None) == (found is None) and isinstance(wanted, bool) == isinstance(found, bool)
    )
    return [] if same else [f"{place}: {wanted!r} is wanted, {found!r} is found"]


def test_every_output_is_expected() -> None:
    assert {path.name for path in OUTPUTS} == set(EXPECTED)
    assert len(OUTPUTS) == 40


@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: path.stem)
def test_what_must_be_found(path: Path) -> None:
    view = next(view for start, view in VIEWS.items() if path.name.startswith(start))
    wanted = {key: value for key, value in EXPECTED[path.name].items() if key not in ELSEWHERE}
    assert wanted
    assert compare(wanted, view(text_of(path)), "") == []


CHANGES: dict[str, Callable[[str], str]] = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "ansi": lambda text: "\x1b[1m" + text.replace("\n", "\x1b[0m\n\x1b[K"),
    "banner": lambda text: "sudo: unable to resolve host x: Name or service not known\n" + text,
}
COUNTS_LINES = ("amd_smi_14", "nvidia_smi_action")
"""Outputs of which every line before the answer counts."""
CHANGED = [
    (path, change) for path in OUTPUTS for change in CHANGES
    if not (change == "banner" and path.name.startswith(COUNTS_LINES))
]  # fmt: skip


@pytest.mark.parametrize(("path", "change"), CHANGED, ids=lambda one: getattr(one, "stem", one))
def test_line_ends_colours_and_banners_change_nothing(path: Path, change: str) -> None:
    changed = CHANGES[change](text_of(path))
    view = next(view for start, view in VIEWS.items() if path.name.startswith(start))
    wanted = {key: value for key, value in EXPECTED[path.name].items() if key not in ELSEWHERE}
    assert compare(wanted, view(changed), "") == []
