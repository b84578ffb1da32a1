"""hugepages: the kernel takes any number and says success; what counts is what the pool holds afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.errors import BadValue
from tuner.host import open_host
from tuner.knobs.hugepages import Hugepages

Tuner = Callable[..., Result]
Apply = Callable[..., Result]
POOL = "sys/devices/system/node/{}/hugepages/hugepages-2048kB/nr_hugepages"


def pages(root: Path, *nodes: str) -> list[int]:
    """Pages of 2 MB on these nodes."""
    return [int((root / POOL.format(node)).read_text()) for node in nodes]


def somebody(root: Path, node: str, count: int) -> None:
    """Somebody else reserves pages."""
    open_host(str(root)).write("/" + POOL.format(node), f"{count}\n")


@pytest.fixture
def apply(tuner: Tuner, tmp_path: Path) -> Apply:
    """apply(root, TARGET, WANT, verb="apply") -> the result of the verb under a profile of one line."""

    def call(root: Path, target: str, want: object, verb: str = "apply") -> Result:
        profile = write_profile(tmp_path / "p.yaml", f"hugepages:\n  {target}: {want}")
        return tuner(verb, "--root", root, "--json", "--profile", profile)

    return call


def test_short_is_kept_and_is_drift(copy_host: Callable[..., Path], tuner: Tuner, apply: Apply) -> None:
    """Room for 100, asked for 200: 100 are kept, apply and verify exit 10, rollback goes back to the old count."""
    root = copy_host("plain-vm", "hugepages-short")
    before = tree(root)
    result = apply(root, "node0/2MB", 200)
    outcome = result.document["outcomes"][0]
    assert (result.code, outcome["result"], outcome["after"], outcome["why"]) == (10, "short", 100, "100 of 200")
    assert pages(root, "node0", "node1") == [100, 0]
    verify = tuner("verify", "--root", root, "--json")
    assert (verify.code, verify.document["verdicts"][0]["state"]) == (10, "drift")
    assert tuner("rollback", "--root", root).code == 0
    assert pages(root, "node0") == [0]
    assert tree(root) == before


def test_the_shortfall_of_a_total_is_told_per_node(copy_host: Callable[..., Path], apply: Apply) -> None:
    """400 asked for, 100 on each of two nodes."""
    outcome = apply(copy_host("plain-vm", "hugepages-short"), "total/2MB", 400).document["outcomes"][0]
    assert (outcome["result"], outcome["why"]) == ("short", "200 of 400")
    assert outcome["after"] == {"total": 200, "node0": 100, "node1": 100}


def test_nothing_to_be_had_is_no_success(root: Path, tuner: Tuner, apply: Apply) -> None:
    """No room for a page of 1 GB: the write was taken, the pool is empty, and the boot line is where they come from."""
    before = tree(root)
    result = apply(root, "node0/1GB", 4)
    outcome = result.document["outcomes"][0]
    assert (result.code, outcome["result"], outcome["after"]) == (10, "short", 0)
    assert "0 of 4" in outcome["why"]
    assert "hugepagesz=1G" in outcome["why"]
    assert tuner("verify", "--root", root).code == 10
    assert tuner("rollback", "--root", root).code == 0
    assert tree(root) == before


def test_a_pool_that_stays_short_undoes_nothing(copy_host: Callable[..., Path], tuner: Tuner, apply: Apply) -> None:
    """A second apply finds no more pages either: still short, what the first one got is kept."""
    root = copy_host("plain-vm", "hugepages-short")
    apply(root, "node0/2MB", 200)
    assert apply(root, "node0/2MB", 200).code == 10
    assert pages(root, "node0") == [100]
    assert tuner("rollback", "--root", root, "--to", 0).code == 0
    assert pages(root, "node0") == [0]


def test_fragmented_memory_is_compacted(copy_host: Callable[..., Path], apply: Apply) -> None:
    """60 pages in a row until memory is compacted; then all 200 are found."""
    root = copy_host("plain-vm", "hugepages-fragmented")
    result = apply(root, "node1/2MB", 200)
    assert (result.code, result.document["outcomes"][0]["result"]) == (0, "done")
    assert pages(root, "node1") == [200]


def test_no_lowering_below_what_is_in_use(copy_host: Callable[..., Path], tuner: Tuner, apply: Apply) -> None:
    """16 pages are mapped on each node: rollback to 0 is held by the guard, and says why."""
    root = copy_host("plain-vm", "hugepages-in-use")
    assert apply(root, "node0/2MB", 100).code == 0
    plan = apply(root, "node0/2MB", 10, "plan")
    assert (plan.code, plan.document["verdicts"][0]["state"]) == (14, "held")
    assert "16 pages are in use" in plan.document["changes"][0]["held"]
    back = tuner("rollback", "--root", root)
    assert back.code == 14
    assert "16 pages are in use" in back.out
    assert pages(root, "node0") == [100]


def test_a_pool_of_somebody_else_is_never_lowered(root: Path, apply: Apply) -> None:
    """200 pages that tuner did not reserve: a want of 50 is held, whatever is allowed."""
    somebody(root, "node0", 200)
    plan = apply(root, "node0/2MB", 50, "plan")
    assert (plan.code, plan.document["verdicts"][0]["state"]) == (14, "held")
    assert "did not raise" in plan.document["changes"][0]["held"]
    assert apply(root, "node0/2MB", 50).code == 0
    assert pages(root, "node0") == [200]


def test_what_tuner_raised_it_may_lower_to_where_it_was(root: Path, apply: Apply) -> None:
    """Raised from 200 to 300: 250 and 200 are allowed afterwards, 150 is not."""
    somebody(root, "node0", 200)
    apply(root, "node0/2MB", 300)
    assert apply(root, "node0/2MB", 150, "plan").code == 14
    assert apply(root, "node0/2MB", 250).code == 0
    assert pages(root, "node0") == [250]
    assert apply(root, "node0/2MB", 200).code == 0
    assert pages(root, "node0") == [200]


def test_at_least_leaves_a_larger_pool(root: Path, apply: Apply) -> None:
    """More than asked for is `raised`, no change."""
    somebody(root, "node1", 80)
    plan = apply(root, "node1/2MB", "{at_least: 64}", "plan")
    assert (plan.code, plan.document["verdicts"][0]["state"], plan.document["changes"]) == (0, "raised", [])


def test_a_total_is_undone_node_by_node(root: Path, tuner: Tuner, apply: Apply) -> None:
    """The kernel spreads a total; undo gives each node its own number back."""
    somebody(root, "node0", 7)
    somebody(root, "node1", 90)
    before = tree(root)
    assert apply(root, "total/2MB", 300).code == 0
    assert sum(pages(root, "node0", "node1")) == 300
    assert tuner("rollback", "--root", root).code == 0
    assert pages(root, "node0", "node1") == [7, 90]
    assert tree(root) == before


@pytest.mark.parametrize("node", ["node0/2MB", "node*/2048kB", "*/2MB"])
def test_a_node_and_the_total_of_one_size_contradict(root: Path, tuner: Tuner, tmp_path: Path, node: str) -> None:
    """Exit 64 with both lines named; nothing is written."""
    before = tree(root)
    profile = write_profile(tmp_path / "p.yaml", f"hugepages:\n  '{node}': 8\n  total/2MB: 16")
    result = tuner("apply", "--root", root, "--profile", profile)
    assert result.code == 64
    assert "2MB pages are set both per node and in total" in result.err
    assert f"{profile}:5" in result.err
    assert f"{profile}:6" in result.err
    assert tree(root) == before


def test_a_node_and_the_total_of_two_sizes_go_together(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """Other sizes are other pools."""
    profile = write_profile(tmp_path / "p.yaml", "hugepages:\n  node0/2MB: 8\n  total/1GB: 0")
    assert tuner("apply", "--root", root, "--profile", profile).code == 0


@pytest.mark.parametrize(
    ("target", "why"), [("node0/16GB", "no pool of 16GB pages; it has 2MB, 1GB"), ("node7/2MB", "no NUMA node7")]
)
def test_no_such_pool_is_unsupported(root: Path, apply: Apply, target: str, why: str) -> None:
    """Exit 0 and the reason; a required one exits 10."""
    plan = apply(root, target, 1, "plan")
    assert (plan.code, plan.document["verdicts"][0]["state"]) == (0, "unsupported")
    assert why in plan.document["verdicts"][0]["state_why"]
    assert apply(root, target, "{value: 1, required: true}", "plan").code == 10


@pytest.mark.parametrize(
    ("target", "count", "megabytes"),
    [("node0/2MB", 2048, "4096 MB"), ("total/2MB", 100, "200 MB"), ("total/1GB", 3, "3072 MB")],
)
def test_the_plan_says_what_it_means_for_slurm(
    root: Path, apply: Apply, target: str, count: int, megabytes: str
) -> None:
    """Memory in huge pages is no longer the ordinary memory that RealMemory promises."""
    note = apply(root, target, count, "plan").document["changes"][0]["note"]
    assert "RealMemory" in note
    assert megabytes in note


def test_reserving_needs_the_class_memory(root: Path, tuner: Tuner, tmp_path: Path) -> None:
    """--allow none holds it: exit 14, no page is reserved."""
    profile = write_profile(tmp_path / "p.yaml", "hugepages:\n  node0/2MB: 8")
    plan = tuner("plan", "--root", root, "--json", "--profile", profile, "--allow", "none")
    assert (plan.code, plan.document["changes"][0]["disruption"]) == (14, "memory")
    tuner("apply", "--root", root, "--profile", profile, "--allow", "none")
    assert pages(root, "node0") == [0]


@pytest.mark.parametrize(
    ("written", "name"),
    [("node0/2048kB", "node0/2MB"), ("total/1024MB", "total/1GB"), ("node1/64kB", "node1/64kB"), ("node*/2MB",) * 2],
)
def test_one_name_for_one_pool(written: str, name: str) -> None:
    """The largest unit that divides the size."""
    assert Hugepages().canonical(written) == name


@pytest.mark.parametrize("target", ["2MB", "node0", "node0/2M", "node0/0MB", "numa0/2MB", "node0/2MB/x", "total/-2MB"])
def test_no_pool(target: str) -> None:
    """nodeN/SIZE or total/SIZE, nothing else."""
    with pytest.raises(BadValue) as error:
        Hugepages().canonical(target)
    assert "node0/2MB" in error.value.hint


@pytest.mark.parametrize("raw", ["-1", "2G", "1.5", "", None, ["1"], "010", "99999999999"])
def test_no_number_of_pages(raw: object) -> None:
    """A number of pages, 0 or more, that the kernel can count."""
    with pytest.raises(BadValue):
        Hugepages().parse("node0/2MB", raw)  # type: ignore[arg-type]
