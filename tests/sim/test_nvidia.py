"""A recorded GPU of NVIDIA answers what NVML sets as the device does: values, errors, and what shows afterwards.

NVML API Reference; limits and clocks of an A100-SXM4-40GB: NVIDIA/nvidia-docker#1648. MIG that a client hinders stays
pending: NVIDIA Multi-Instance GPU User Guide, Enable MIG Mode.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tree
from tests.knobs.nvidia_host import A100_CLOCKS, ANSWERS, GPU, H800, OTHER, Build, answers, function, let
from tuner.errors import TunerError
from tuner.host.nvml import GETS, SETS
from tuner.host.recorded import RecordedHost

POWER = ANSWERS["power"]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(...) -> a recorded host with an A100."""
    return Build(tmp_path)


def rule(words: str, path: str = f"/.tuner-host/nvml/{GPU}/*") -> str:
    """A kernel.yaml in which the GPU answers so."""
    return f"rules:\n  {path}: {{is: nvidia{words}}}\n"


def number(host: RecordedHost, name: str, value: Any) -> int:
    """The errno of a set, 0 for one that was taken."""
    try:
        host.nvml.set(GPU, name, value)
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.parametrize("rules", ["", rule("")], ids=["no rule", "a rule"])
@pytest.mark.parametrize(
    ("name", "value", "after"),
    [
        ("persistence", "disabled", "disabled"),
        ("compute_mode", "exclusive_process", "exclusive_process"),
        ("power", 300000, {**POWER, "limit": 300000, "enforced": 300000}),
        ("power", 100000, {**POWER, "limit": 100000, "enforced": 100000}),
        ("ecc", "disabled", {"current": "enabled", "pending": "disabled"}),
        ("mig", "enabled", {"current": "disabled", "pending": "enabled"}),
    ],
)
def test_what_was_set_can_be_asked_for(build: Build, rules: str, name: str, value: Any, after: Any) -> None:
    """With and without a rule of its own; other answers stay byte for byte."""
    host = build(rules)
    before = tree(Path(host.root))
    status = host.nvml.set(GPU, name, value)
    assert host.nvml.get(GPU, name) == after
    assert status == ("RESET_REQUIRED" if name == "mig" else None)
    changed = {path for path, what in tree(Path(host.root)).items() if before.get(path) != what}
    assert changed - {f".tuner-host/nvml/{GPU}/mig_activation"} == {f".tuner-host/nvml/{GPU}/{name}"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("persistence", ["on", 1, None, "Enabled"]),
        ("compute_mode", ["exclusive_thread", 0, None]),
        ("power", [99999, 400001, "300000", 300000.5, None, True]),
        ("ecc", ["on", None, {"pending": "disabled"}]),
        ("mig", ["on", None, 1]),
        ("gpu_clocks", [[1410], [1410, 1200], [1400, 1410], [210, 1980], ["tdp", 1410], 1410, [True, True], []]),
        ("mem_clocks", [[1593, 1593], [1215], 1215, [0, 1215]]),
    ],
)
def test_what_the_device_does_not_take(build: Build, name: str, values: list[Any]) -> None:
    """INVALID_ARGUMENT, and nothing changes."""
    host = build()
    before = tree(Path(host.root))
    assert [number(host, name, value) for value in values] == [errno.EINVAL] * len(values)
    assert tree(Path(host.root)) == before


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("words", "error"), [(", deny: true", errno.EPERM), (", lost: true", errno.ENODEV)])
def test_a_gpu_that_refuses_everything(build: Build, name: str, words: str, error: int) -> None:
    """For want of rights, or because it is lost."""
    host = build(rule(words))
    before = tree(Path(host.root))
    assert number(host, name, "enabled") == error
    assert tree(Path(host.root)) == before


@pytest.mark.parametrize("name", ["persistence", "compute_mode", "power", "ecc", "mig"])
@pytest.mark.parametrize("answer", ["error NOT_SUPPORTED", None])
def test_what_the_device_does_not_have_cannot_be_set(build: Build, name: str, answer: Any) -> None:
    """The error of the question is that of the set."""
    assert number(build(**dict[str, Any]({name: answer})), name, "enabled") == errno.ENOTSUP


@pytest.mark.parametrize("name", ["gpu_clocks", "mem_clocks"])
def test_no_lock_without_a_list_of_clocks(build: Build, name: str) -> None:
    """Its error."""
    host = build(supported_clocks="error NOT_SUPPORTED")
    assert number(host, name, [1215, 1215]) == errno.ENOTSUP


def test_less_is_enforced(build: Build) -> None:
    """`enforced` caps what shows as such, not the limit."""
    host = build(rule(", enforced: 320000"))
    host.nvml.set(GPU, "power", 350000)
    assert host.nvml.get(GPU, "power") == {**POWER, "limit": 350000, "enforced": 320000}
    host.nvml.set(GPU, "power", 300000)
    assert host.nvml.get(GPU, "power") == {**POWER, "limit": 300000, "enforced": 300000}


@pytest.mark.parametrize(
    ("how", "status", "current"),
    [("reset", "RESET_REQUIRED", "disabled"), ("now", None, "enabled"), ("in_use", "IN_USE", "disabled")],
)
def test_mig_and_its_activation(build: Build, how: str, status: str | None, current: str) -> None:
    """The status is told where it is none of success; going back ends it, and the tree is as it was."""
    host = build(rule(f", mig: {how}"))
    before = tree(Path(host.root))
    assert host.nvml.set(GPU, "mig", "enabled") == status
    assert host.nvml.get(GPU, "mig") == {"current": current, "pending": "enabled"}
    assert host.nvml.set(GPU, "mig", "disabled") is None
    assert tree(Path(host.root)) == before


@pytest.mark.parametrize(
    ("name", "range_", "clocks"),
    [
        ("gpu_clocks", [1200, 1410], {"graphics": 1200, "sm": 1200, "memory": 1215}),
        ("gpu_clocks", [210, 600], {"graphics": 600, "sm": 600, "memory": 1215}),
        ("gpu_clocks", [210, 1410], {"graphics": 1155, "sm": 1155, "memory": 1215}),
        ("mem_clocks", [1215, 1215], {"graphics": 1155, "sm": 1155, "memory": 1215}),
    ],
)
def test_a_lock_shows_in_the_clocks_alone(build: Build, name: str, range_: list[int], clocks: dict[str, int]) -> None:
    """There is no getter; a reset sets the clock free."""
    host = build()
    before = tree(Path(host.root))
    host.nvml.set(GPU, name, range_)
    assert host.nvml.get(GPU, "clocks") == clocks
    with pytest.raises(ValueError):
        host.nvml.get(GPU, name)
    host.nvml.set(GPU, name, None)
    assert tree(Path(host.root)) == before


def test_both_locks_at_once(build: Build) -> None:
    """They end each by itself."""
    host = build(**H800)
    before = tree(Path(host.root))
    host.nvml.set(GPU, "mem_clocks", [1593, 1593])
    host.nvml.set(GPU, "gpu_clocks", [345, 600])
    assert host.nvml.get(GPU, "clocks") == {"graphics": 600, "sm": 600, "memory": 1593}
    host.nvml.set(GPU, "mem_clocks", None)
    assert host.nvml.get(GPU, "clocks") == {"graphics": 600, "sm": 600, "memory": 2619}
    host.nvml.set(GPU, "gpu_clocks", None)
    assert tree(Path(host.root)) == before


def test_a_clock_that_was_changed_by_hand_is_the_free_one(build: Build) -> None:
    """What lies in the tree is the truth."""
    host = build()
    host.nvml.set(GPU, "gpu_clocks", [210, 600])
    let(host, "clocks", {"graphics": 405, "sm": 405, "memory": 1215})
    host.nvml.set(GPU, "gpu_clocks", [1200, 1200])
    assert answers(host, "clocks")["graphics"] == 1200
    host.nvml.set(GPU, "gpu_clocks", None)
    assert answers(host, "clocks")["graphics"] == 405


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(A100_CLOCKS["1215"]), st.sampled_from(A100_CLOCKS["1215"])), max_size=6))
def test_whatever_is_locked_the_reset_gives_it_back(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]]
) -> None:
    """The clock lies in the last range, and is free again after the reset."""
    host = Shared.of(tmp_path_factory)
    for ends in ranges:
        host.nvml.set(GPU, "gpu_clocks", sorted(ends))
        assert min(ends) <= answers(host, "clocks")["graphics"] <= max(ends)
    host.nvml.set(GPU, "gpu_clocks", None)
    assert answers(host, "clocks") == ANSWERS["clocks"]


class Shared:
    """One host for all examples of a property."""

    host: RecordedHost | None = None

    @classmethod
    def of(cls, factory: pytest.TempPathFactory) -> RecordedHost:
        """Made at the first call."""
        cls.host = cls.host or Build(factory.mktemp("sim"))()
        return cls.host


def test_a_rule_is_for_its_gpu(build: Build) -> None:
    """The neighbour answers as a healthy one does."""
    host = build(rule(", deny: true"), gpus={OTHER: {}}, functions={OTHER: function()})
    assert number(host, "persistence", "enabled") == errno.EPERM
    host.nvml.set(OTHER, "persistence", "disabled")
    assert host.nvml.get(OTHER, "persistence") == "disabled"


def test_what_nvml_cannot_set_cannot_be_set(build: Build) -> None:
    """Answers that are questions only."""
    host = build()
    for name in sorted(set(GETS) - set(SETS)):
        assert number(host, name, 1) == errno.ENOSYS


@pytest.mark.parametrize("words", [", deny: 1", ", lost: often", ", enforced: much", ", mig: later", ", power: 1"])
def test_a_rule_that_is_wrong_is_found_before_the_first_write(build: Build, words: str) -> None:
    """As any other."""
    with pytest.raises(TunerError, match="nvidia:"):
        build(rule(words))


@pytest.mark.parametrize("path", ["/.tuner-host/nvm", "/.tuner-host/manifest", "/.tuner-host/cmd/x", "/etc/x"])
def test_rules_are_for_kernel_files_and_for_nvml(build: Build, path: str) -> None:
    """Nothing else of the host is written by rules."""
    with pytest.raises(TunerError, match="not the path of a kernel file"):
        build(rule("", path))
