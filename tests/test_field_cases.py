"""Bug cases from the field, each named by its id with the public report it comes from: running values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, tree, write_profile
from tuner.errors import Exit

Tuner = Callable[..., Result]
NODE0 = "sys/devices/system/node/node0/hugepages"
IPV4 = "proc/sys/net/ipv4/conf"
KEPT = "/etc/sysctl.d/99-zz-tuner.conf"


class Node:
    """One copy of a recorded host and the verbs on it."""

    def __init__(self, root: Path, tuner: Tuner, folder: Path) -> None:
        self.root, self.tuner, self.folder = root, tuner, folder

    def profile(self, settings: str) -> Path:
        """A profile with these settings."""
        return write_profile(self.folder / "site.yaml", settings)

    def call(self, verb: str, settings: str, *words: object) -> Result:
        """`tuner VERB --profile ... --json`."""
        return self.tuner(verb, "--profile", self.profile(settings), "--root", self.root, "--json", *words)

    def get(self, path: str) -> str:
        """The bytes of a file."""
        return (self.root / path).read_text()

    def put(self, path: str, text: str) -> None:
        """A hand edit; directories are made."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)


@pytest.fixture
def node(root: Path, tuner: Tuner, tmp_path: Path) -> Node:
    """plain-vm as it is shipped."""
    return Node(root, tuner, tmp_path)


@pytest.fixture
def faulty(copy_host: Callable[..., Path], tuner: Tuner, tmp_path: Path) -> Callable[..., Node]:
    """faulty(*faults) -> plain-vm with faults."""
    return lambda *faults: Node(copy_host("plain-vm", *faults), tuner, tmp_path)


def only(result: Result) -> dict[str, Any]:
    """The one verdict, but for that on the file that keeps sysctls."""
    (verdict,) = (v for v in result.document["verdicts"] if v["target"] != KEPT)
    return dict(verdict)


def written(result: Result) -> list[dict[str, Any]]:
    """What was written, or would be, besides the file that keeps sysctls."""
    found = result.document["outcomes" if "outcomes" in result.document else "changes"]
    return [one for one in found if one["target"] != KEPT]


def test_s13_a_vector_with_tabs_equals_one_with_blanks(node: Node) -> None:
    """thias/puppet-sysctl#60, thias/puppet-sysctl#40."""
    node.put("proc/sys/kernel/sem", "1000\t32000\t32\t512\n")
    result = node.call("plan", "sysctl: {kernel.sem: 1000 32000 32 512}")
    assert written(result) == []
    node.put("proc/sys/kernel/sem", "32000\t1024000000\t500\t32000\n")
    assert len(written(node.call("apply", "sysctl: {kernel.sem: 1000 32000 32 512}"))) == 1
    assert node.call("apply", "sysctl: {kernel.sem: 1000 32000 32 512}").document["outcomes"] == []


def test_s14_the_running_value_is_judged_by_itself_and_a_foreign_file_left_alone(node: Node) -> None:
    """ansible/ansible#6806."""
    node.put("etc/sysctl.d/50-site.conf", "kernel.sysrq = 0\n")
    node.put("proc/sys/kernel/sysrq", "1\n")
    before = tree(node.root)
    result = node.call("apply", "sysctl: {kernel.sysrq: 0}")
    assert [(o["target"], o["before"], o["after"]) for o in written(result)] == [("kernel.sysrq", 1, 0)]
    after = tree(node.root)
    assert {path for path in before if after.get(path) != before[path]} == {"proc/sys/kernel/sysrq"}
    new = {path for path in after if path not in before and after[path][0] == "file"}
    assert new == {KEPT[1:]}


@pytest.mark.parametrize("key", ["net.ipv4.conf.renamed0/10.rp_filter", "net/ipv4/conf/renamed0.10/rp_filter"])
def test_s16_the_first_separator_decides_what_a_dot_is(node: Node, key: str) -> None:
    """systemd/systemd#39256, containernetworking/plugins#779."""
    node.put(f"{IPV4}/renamed0.10/rp_filter", "0\n")
    assert node.call("apply", f"sysctl: {{{key}: 2}}").code == Exit.OK
    assert node.get(f"{IPV4}/renamed0.10/rp_filter") == "2\n"


def test_s16_a_vlan_name_taken_apart_is_reported_as_such(node: Node) -> None:
    """systemd/systemd#39256, containernetworking/plugins#779."""
    node.put(f"{IPV4}/renamed0.10/rp_filter", "0\n")
    verdict = only(node.call("plan", "sysctl: {net.ipv4.conf.renamed0.10.rp_filter: 2}"))
    assert verdict["state"] == "unsupported"
    assert "net.ipv4.conf.renamed0/10.rp_filter" in verdict["state_why"]


@pytest.mark.parametrize(
    "key",
    [
        "net.ipv4.conf.../../kernel.rp_filter",
        "net.ipv4.conf.eth0/../all.rp_filter",
        "net/ipv4/conf/../../kernel/rp_filter",
        "net/ipv4/conf/eth0/../all/rp_filter",
        "../kernel.sysrq",
        "/proc/sys/kernel/sysrq",
        "net..rp_filter",
    ],
)
def test_s17_a_name_that_climbs_is_refused(node: Node, key: str) -> None:
    """containernetworking/plugins#779."""
    before = tree(node.root)
    result = node.call("apply", f'sysctl: {{"{key}": 2}}')
    assert result.code == Exit.BAD_INPUT
    assert result.document["errors"][0]["where"].endswith("site.yaml:4")
    assert tree(node.root) == before


@pytest.mark.parametrize(
    ("key", "wanted", "shown"),
    [
        ("net.core.rmem_max", "0x1000000", "16777216"),
        ("net.core.rps_sock_flow_entries", "1000", "1024"),
        ("net.ipv4.tcp_rmem", '"4096   0x20000 6291456"', "4096\t131072\t6291456"),
        ("net.ipv4.ip_local_port_range", "1024 65000", "1024\t65000"),
    ],
)
def test_s23_values_are_compared_as_the_kernel_holds_them(node: Node, key: str, wanted: str, shown: str) -> None:
    """systemd/systemd#43258."""
    node.put("proc/sys/" + key.replace(".", "/"), f"{shown}\n")
    assert only(node.call("plan", f"sysctl: {{{key}: {wanted}}}"))["state"] == "ok"


def test_s23_a_form_without_a_rule_is_read_back_differently_and_not_failed(node: Node) -> None:
    """systemd/systemd#43258. This kernel rounds a key of which tuner knows nothing."""
    rules = node.root / ".tuner-host/kernel.yaml"
    rules.write_text(
        rules.read_text().replace("rules:\n", "rules:\n  /proc/sys/fs/nr_open: {is: pow2}\n", 1), encoding="utf-8"
    )
    node.put("proc/sys/fs/nr_open", "1048576\n")
    result = node.call("apply", "sysctl: {fs.nr_open: 3000000}")
    (outcome,) = written(result)
    assert (outcome["result"], outcome["after"]) == ("short", 4194304)
    assert result.code == Exit.DIFFERS
    assert not result.document["undone"]
    text = node.tuner("rollback", "--root", node.root)
    assert (text.code, node.get("proc/sys/fs/nr_open")) == (Exit.OK, "1048576\n")


@pytest.mark.parametrize(
    "key", ["net.netfilter.nf_conntrack_buckets", "net.netfilter.nf_conntrack_max", "vm.swappiness"]
)
def test_s25_a_word_for_a_number_is_rejected_when_the_profile_is_loaded(node: Node, key: str) -> None:
    """redhat-performance/tuned#860."""
    before = tree(node.root)
    result = node.call("apply", f"sysctl:\n  net.core.somaxconn: 8192\n  {key}: abc")
    assert result.code == Exit.BAD_INPUT
    (error,) = result.document["errors"]
    assert error["where"].endswith("site.yaml:6")
    assert "abc" in error["what"]
    assert error["hint"]
    assert tree(node.root) == before


def test_v01_a_pool_that_came_up_short_is_kept_is_drift_and_goes_back_to_the_old_count(
    faulty: Callable[..., Node],
) -> None:
    """spdk/spdk#702."""
    node = faulty("hugepages-short")
    pool = f"{NODE0}/hugepages-2048kB/nr_hugepages"
    for path in (pool, pool.replace("nr_", "free_")):
        node.put(path, "8\n")
    node.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n")
    node.put("proc/sys/vm/nr_hugepages", "8\n")
    result = node.call("apply", "hugepages: {node0/2MB: 4096}")
    (outcome,) = result.document["outcomes"]
    assert (outcome["result"], outcome["before"], outcome["after"]) == ("short", 8, 100)
    assert "100 of 4096" in outcome["why"]
    assert result.code == Exit.DIFFERS
    assert node.get(pool) == "100\n"
    assert node.tuner("verify", "--root", node.root).code == Exit.DIFFERS
    assert node.tuner("rollback", "--root", node.root).code == Exit.OK
    assert node.get(pool) == "8\n"


def test_v02_gigabyte_pages_that_read_back_nothing_are_no_success(node: Node) -> None:
    """kata-containers/kata-containers#3816."""
    before = tree(node.root)
    result = node.call("apply", "hugepages: {node0/1GB: 2}")
    (outcome,) = result.document["outcomes"]
    assert outcome["result"] in ("refused", "short")
    assert outcome["after"] == 0
    assert result.code in (Exit.UNDONE, Exit.DIFFERS)
    after = tree(node.root)
    assert {path for path, was in before.items() if after.get(path) != was} == set()


def test_v02_the_report_says_that_gigabyte_pages_take_a_boot_parameter(node: Node) -> None:
    """kata-containers/kata-containers#3816."""
    result = node.tuner("apply", "--profile", node.profile("hugepages: {node0/1GB: 2}"), "--root", node.root)
    assert "boot" in result.out.lower()


def test_v04_a_minimum_that_the_kernel_raised_is_left_alone(node: Node) -> None:
    """redhat-performance/tuned#752."""
    node.put("proc/sys/vm/min_free_kbytes", "225280\n")
    settings = "sysctl: {vm.min_free_kbytes: {at_least: 135168}}"
    result = node.call("plan", settings)
    assert (result.code, only(result)["state"], result.document["changes"]) == (Exit.OK, "raised", [])
    for _ in range(2):
        assert node.call("apply", settings).document["outcomes"] == []
        assert node.get("proc/sys/vm/min_free_kbytes") == "225280\n"
    assert node.tuner("verify", "--root", node.root).code == Exit.OK


def test_v05_a_half_of_a_couple_under_sysctl_is_a_conflict_named_at_load(node: Node) -> None:
    """redhat-performance/tuned#880."""
    result = node.call("plan", "sysctl:\n  vm.dirty_ratio: 20\n  vm.dirty_bytes: 1073741824")
    assert result.code == Exit.BAD_INPUT
    found = {error["where"].rpartition(":")[2]: error for error in result.document["errors"]}
    assert "vm.dirty_ratio" in found["5"]["what"]
    assert "vm.dirty_bytes" in found["6"]["what"]
    assert all("sysctl.pair" in e["hint"] and "vm.dirty" in e["hint"] for e in found.values())


def test_v05_the_child_wins_over_its_parent_as_a_couple(node: Node) -> None:
    """redhat-performance/tuned#880: the parent sets the ratio, the profile the bytes."""
    write_profile(node.folder / "parent.yaml", "sysctl.pair: {vm.dirty: {value: {ratio: 30}}}", "parent")
    child = node.folder / "child.yaml"
    child.write_text(
        f"name: child\nsummary: x\nextends: {node.folder}/parent.yaml\nsettings:\n"
        "  sysctl.pair: {vm.dirty: {value: {bytes: 1073741824}}}\n",
        encoding="utf-8",
    )
    assert node.tuner("apply", "--profile", child, "--root", node.root).code == Exit.OK
    assert (node.get("proc/sys/vm/dirty_bytes"), node.get("proc/sys/vm/dirty_ratio")) == ("1073741824\n", "0\n")
    assert node.tuner("verify", "--root", node.root).code == Exit.OK
    assert node.tuner("rollback", "--root", node.root).code == Exit.OK
    assert (node.get("proc/sys/vm/dirty_bytes"), node.get("proc/sys/vm/dirty_ratio")) == ("0\n", "20\n")


def test_v05_drift_of_a_couple_shows_both_halves(node: Node) -> None:
    """redhat-performance/tuned#880: somebody writes the other half, the kernel zeroes ours."""
    assert node.call("apply", "sysctl.pair: {vm.dirty: {value: {bytes: 1073741824}}}").code == Exit.OK
    node.put("proc/sys/vm/dirty_bytes", "0\n")
    node.put("proc/sys/vm/dirty_ratio", "20\n")
    result = node.tuner("verify", "--root", node.root, "--json")
    assert result.code == Exit.DIFFERS
    assert only(result)["running"] == {"bytes": 0, "ratio": 20}
    line = next(x for x in node.tuner("verify", "--root", node.root).out.splitlines() if "vm.dirty" in x)
    assert "bytes" in line
    assert "ratio 20" in line


def test_v14_an_attribute_that_some_targets_lack_is_an_exception_and_no_failure(node: Node) -> None:
    """redhat-performance/tuned#790."""
    (node.root / IPV4 / "ens4/arp_ignore").unlink()
    names = ("ens3", "ens4", "ens5")
    settings = "sysctl:\n" + "".join(f"  net.ipv4.conf.{name}.arp_ignore: 1\n" for name in names)
    assert node.call("apply", settings).code == Exit.OK
    result = node.tuner("verify", "--root", node.root, "--json")
    found = {v["target"].split(".")[3]: v["state"] for v in result.document["verdicts"] if v["knob"] == "sysctl"}
    assert found == {"ens3": "ok", "ens4": "unsupported", "ens5": "ok"}
    assert result.code == Exit.OK
    assert [node.get(f"{IPV4}/{name}/arp_ignore") for name in ("ens3", "ens5")] == ["1\n", "1\n"]


def test_w08_a_key_of_a_module_that_is_not_loaded_is_not_applicable(node: Node) -> None:
    """openucx/ucx#6632."""
    result = node.call("apply", "sysctl: {net.core.somaxconn: 15000, net.rdma_ucm.max_backlog: 15000}")
    assert result.code == Exit.OK
    assert node.get("proc/sys/net/core/somaxconn") == "15000\n"
    found = {v["target"]: v for v in node.tuner("verify", "--root", node.root, "--json").document["verdicts"]}
    assert found["net.rdma_ucm.max_backlog"]["state"] == "unsupported"
    assert "rdma_ucm" in found["net.rdma_ucm.max_backlog"]["state_why"]


@pytest.mark.parametrize(
    ("key", "twin"),
    [("net.core.somaxconn", "net.rdma_ucm.max_backlog"), ("net.rdma_ucm.max_backlog", "somaxconn")],
)
def test_w08_each_of_the_two_backlogs_names_the_other(node: Node, key: str, twin: str) -> None:
    """openucx/ucx#6632: the smaller of the two counts."""
    result = node.tuner("explain", f"sysctl:{key}", "--root", node.root)
    assert result.code == Exit.OK
    assert twin in result.out
    assert "smaller" in result.out
