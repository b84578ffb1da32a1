"""The knob `cpu`: one word for all CPUs, or each its own back."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tree
from tuner.cpulist import cpu_list, cpu_numbers
from tuner.errors import BadValue, Refused
from tuner.host.recorded import RecordedHost
from tuner.knobs.cpu import Cpu
from tuner.model import Absent, Seen, Unreadable, Value, Want, aim
from tuner.plan import read_only
from tuner.sim import store

CPU = "/sys/devices/system/cpu"
FREQ = f"{CPU}/cpufreq"
KNOB = Cpu()

ACPI_GOVERNORS = "conservative ondemand userspace powersave performance schedutil"
PREFERENCES = "default performance balance_performance balance_power power"

Files = dict[str, str]
Build = Callable[..., "Logged"]


class Logged(RecordedHost):
    """A recorded host that remembers what was read and written."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.reads: list[str] = []
        self.writes: list[tuple[str, str]] = []

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        return super().read(path)

    def list(self, path: str) -> list[str]:
        self.reads.append(path)
        return super().list(path)

    def write(self, path: str, text: str) -> None:
        self.writes.append((path, text))
        super().write(path, text)


def policies(
    driver: str, governor: str, governors: str, more: Mapping[str, str] | None = None, count: int = 4
) -> Files:
    """One cpufreq policy per CPU, as servers have them."""
    files = {}
    for n in range(count):
        here = {
            "affected_cpus": f"{n}",
            "scaling_driver": driver,
            "scaling_governor": governor,
            "scaling_available_governors": f"{governors} ",
            **(more or {}),
        }
        files.update({f"{FREQ}/policy{n}/{name}": text for name, text in here.items()})
    return files


def idle(names: Mapping[int, list[str]]) -> Files:
    """The idle states of each CPU by name, all enabled."""
    files = {}
    for cpu, states in names.items():
        for number, name in enumerate(states):
            files[f"{CPU}/cpu{cpu}/cpuidle/state{number}/name"] = name
            files[f"{CPU}/cpu{cpu}/cpuidle/state{number}/disable"] = "0"
    return files


def acpi() -> Files:
    """An EPYC server with acpi-cpufreq: POLL, C1, C2."""
    states = idle({cpu: ["POLL", "C1", "C2"] for cpu in range(4)})
    return {**policies("acpi-cpufreq", "schedutil", ACPI_GOVERNORS), f"{FREQ}/boost": "1", **states}


def intel() -> Files:
    """intel_pstate in active mode; CPUs 2 and 3 number their idle states differently and lack C1."""
    epp = {"energy_performance_preference": "balance_performance"}
    epp["energy_performance_available_preferences"] = f"{PREFERENCES} "
    states = idle({0: (big := ["POLL", "C1", "C1E", "C6"]), 1: big, 2: (small := ["POLL", "C1E", "C6"]), 3: small})
    frequency = policies("intel_pstate", "powersave", "performance powersave", epp)
    return {**frequency, f"{CPU}/intel_pstate/no_turbo": "0", **states}


def amd() -> Files:
    """amd-pstate in active mode under the governor performance, which hides the other preferences; boost per policy."""
    epp = {"energy_performance_preference": "performance", "energy_performance_available_preferences": "performance"}
    frequency = policies("amd-pstate-epp", "performance", "performance powersave", {"boost": "1", **epp})
    return {**frequency, f"{FREQ}/boost": "1"}


MACHINES = {"acpi": acpi, "intel": intel, "amd": amd}

RULES = f"""
rules:
  {FREQ}/policy*/scaling_governor: {{is: word, words: [{ACPI_GOVERNORS.replace(" ", ", ")}]}}
  {FREQ}/policy*/energy_performance_preference: {{is: word, words: [{PREFERENCES.replace(" ", ", ")}]}}
  {CPU}/cpu*/cpuidle/state*/disable: {{is: int, low: 0}}
  {CPU}/intel_pstate/no_turbo: {{is: int, low: 0, high: 1}}
  {FREQ}/policy*/boost: {{is: int, low: 0, high: 1}}
"""
GLOBAL_BOOST = f"  {FREQ}/boost: [{{is: int, low: 0, high: 1}}"
PER_POLICY = "".join(f", {{is: alias, path: {FREQ}/policy{n}/boost}}" for n in range(4))


def manifest(files: Files, faults: Mapping[str, str], rules: str, mode: str) -> str:
    """The text of a recorded host with these files; each directory's listing is complete."""
    boost = GLOBAL_BOOST + (PER_POLICY if f"{FREQ}/policy0/boost" in files else "") + "]\n"
    out = ["tuner-host 1", "file 0644 /.tuner-host/host.yaml", "|name: cpus", "|kernel: 6.8.0"]
    out += ["file 0644 /.tuner-host/kernel.yaml", *(f"|{line}" for line in (RULES + boost + rules).splitlines())]
    below: dict[str, set[str]] = {CPU: set(), FREQ: set()}
    for path in [*files, *faults]:
        folder = path
        while folder != CPU:
            folder, name = posixpath.split(folder)
            below.setdefault(folder, set()).add(name)
    for folder, names in below.items():
        out += [f"dir 0755 {folder}", *(f"|{name}" for name in sorted(names))]
    for path, text in files.items():
        out += [f"file {mode} {path}", f"|{text}"]
    out += [f"errno {name} {path}" for path, name in faults.items()]
    return "\n".join(out) + "\n"


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(files, faults={path: errno name}, rules="", mode="0644") -> a recorded host."""

    def make(files: Files, faults: Mapping[str, str] | None = None, rules: str = "", mode: str = "0644") -> Logged:
        text = tmp_path / "cpus.host"
        text.write_text(manifest(files, faults or {}, rules, mode), encoding="utf-8")
        root = tmp_path / "root"
        store.copy(text, str(root), [])
        return Logged(str(root))

    return make


def put(host: Logged, path: str, text: str) -> None:
    """What somebody else wrote."""
    Path(host.root + path).write_text(text + "\n", encoding="utf-8")


def get(host: Logged, path: str) -> str:
    return Path(host.root + path).read_text(encoding="utf-8")


def seen(host: Logged, target: str) -> Any:
    found = KNOB.read(host, target)
    assert isinstance(found, Seen), found
    return found.value


def wanted(word: str, before: Value) -> Value:
    """What apply hands to write for a profile that names this word."""
    return aim(Want("value", {"all": word}), before, KNOB.key)


def governors(host: Logged) -> list[str]:
    return [get(host, f"{FREQ}/policy{n}/scaling_governor") for n in range(4)]


# --- reading


@pytest.mark.parametrize(
    ("machine", "target", "value"),
    [
        ("acpi", "governor", "schedutil"),
        ("intel", "governor", "powersave"),
        ("intel", "epp", "balance_performance"),
        ("amd", "epp", "performance"),
        ("acpi", "boost", "on"),
        ("intel", "boost", "on"),
        ("amd", "boost", "on"),
        ("acpi", "cstate/C2", "on"),
        ("intel", "cstate/C6", "on"),
    ],
)
def test_equal_cpus_are_one_word(build: Build, machine: str, target: str, value: str) -> None:
    assert seen(build(MACHINES[machine]()), target) == {"all": value}


def test_cpus_that_differ_are_named_by_range(build: Build) -> None:
    host = build(acpi())
    put(host, f"{FREQ}/policy2/scaling_governor", "performance")
    assert seen(host, "governor") == {"all": "mixed", "cpu0-1,3": "schedutil", "cpu2": "performance"}


def test_a_policy_speaks_for_all_its_cpus(build: Build) -> None:
    files = acpi()
    files[f"{FREQ}/policy0/affected_cpus"] = "0 1"
    files[f"{FREQ}/policy2/affected_cpus"] = "2 3"
    host = build({path: text for path, text in files.items() if "policy1" not in path and "policy3" not in path})
    put(host, f"{FREQ}/policy2/scaling_governor", "powersave")
    assert seen(host, "governor") == {"all": "mixed", "cpu0-1": "schedutil", "cpu2-3": "powersave"}
    KNOB.write(host, "governor", {"all": "performance"})
    assert seen(host, "governor") == {"all": "performance"}
    assert len(host.writes) == 2


def test_no_turbo_is_boost_turned_round(build: Build) -> None:
    host = build(intel())
    put(host, f"{CPU}/intel_pstate/no_turbo", "1")
    assert seen(host, "boost") == {"all": "off"}


def test_idle_states_are_found_by_name_whatever_their_number(build: Build) -> None:
    host = build(intel())
    put(host, f"{CPU}/cpu0/cpuidle/state3/disable", "1")
    put(host, f"{CPU}/cpu3/cpuidle/state2/disable", "1")
    assert seen(host, "cstate/C6") == {"all": "mixed", "cpu0,3": "off", "cpu1-2": "on"}


def test_a_raw_energy_preference_is_read_as_it_stands(build: Build) -> None:
    """intel_pstate shows a number that no word stands for."""
    host = build(intel())
    put(host, f"{FREQ}/policy1/energy_performance_preference", "100")
    assert seen(host, "epp") == {"all": "mixed", "cpu0,2-3": "balance_performance", "cpu1": "100"}


@pytest.mark.parametrize("how", ["EBUSY", "no CPUs", "not there"])
def test_an_offline_cpu_is_left_out(build: Build, how: str) -> None:
    """The kernel answers EBUSY for a policy without online CPUs; its directory may also be gone."""
    files = acpi()
    gone = [path for path in files if "/policy3/" in path or "/cpu3/" in path]
    faults = {}
    if how == "no CPUs":
        files[f"{FREQ}/policy3/affected_cpus"] = ""
    else:
        faults = dict.fromkeys(gone, "EBUSY") if how == "EBUSY" else {}
        files = {path: text for path, text in files.items() if path not in gone}
    host = build(files, faults)
    assert seen(host, "governor") == {"all": "schedutil"}
    KNOB.write(host, "governor", {"all": "performance"})
    assert seen(host, "governor") == {"all": "performance"}
    assert [path for path, _ in host.writes] == [f"{FREQ}/policy{n}/scaling_governor" for n in range(3)]
    KNOB.write(host, "cstate/C2", {"all": "off"})
    assert seen(host, "cstate/C2") == {"all": "off"}


def test_a_cpu_without_the_state_is_left_alone(build: Build) -> None:
    host = build(intel())
    KNOB.write(host, "cstate/C1", {"all": "off"})
    assert seen(host, "cstate/C1") == {"all": "off"}
    assert host.writes == [(f"{CPU}/cpu{n}/cpuidle/state1/disable", "1\n") for n in (0, 1)]


def test_a_cpu_without_an_energy_preference_is_no_difference(build: Build) -> None:
    files = intel()
    del files[f"{FREQ}/policy2/energy_performance_preference"]
    host = build(files)
    KNOB.write(host, "epp", {"all": "power"})
    assert seen(host, "epp") == {"all": "power"}
    assert len(host.writes) == 3


# --- not there, or not readable


@pytest.mark.parametrize("target", ["governor", "epp", "boost"])
def test_a_virtual_machine_has_no_frequencies(copy_host: Callable[..., Path], target: str) -> None:
    found = KNOB.read(RecordedHost(str(copy_host())), target)
    assert found == Absent("no CPU frequency driver: a virtual machine, or set in the firmware")


NO_IDLE = Absent("no CPU idle driver: a virtual machine, or set in the firmware")


def test_a_virtual_machine_has_no_idle_states(copy_host: Callable[..., Path]) -> None:
    host = RecordedHost(str(copy_host()))
    assert KNOB.read(host, "cstate/C2") == NO_IDLE
    assert KNOB.targets(host) == []


def test_no_idle_states_without_a_driver(build: Build) -> None:
    """The kernel makes the folders of CPUs and of cpufreq without any driver."""
    host = build({f"{CPU}/cpu0/topology/core_id": "0", f"{CPU}/cpu1/topology/core_id": "1"})
    assert KNOB.read(host, "cstate/C2") == NO_IDLE
    assert KNOB.targets(host) == []


@pytest.mark.parametrize(
    ("machine", "target", "words"),
    [
        ("acpi", "cstate/C6", ["C6", "POLL, C1, C2"]),
        ("acpi", "epp", ["acpi-cpufreq", "energy preference"]),
        ("intel", "cstate/C2", ["C2", "POLL, C1, C1E, C6"]),
    ],
)
def test_absent_says_what_there_is(build: Build, machine: str, target: str, words: list[str]) -> None:
    found = KNOB.read(build(MACHINES[machine]()), target)
    assert isinstance(found, Absent)
    assert all(word in found.why for word in words)


def test_a_driver_without_boost_is_named(build: Build) -> None:
    files = acpi()
    del files[f"{FREQ}/boost"]
    found = KNOB.read(build(files), "boost")
    assert isinstance(found, Absent)
    assert "acpi-cpufreq" in found.why


@pytest.mark.parametrize(
    ("name", "fault"), [("EIO", "device"), ("ENODEV", "device"), ("EBUSY", "ours"), ("EACCES", "ours")]
)
@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("governor", ["policy0/scaling_governor", "policy1/scaling_governor"]),
        ("governor", [f"policy{n}/{name}" for n in (0, 1) for name in ("affected_cpus", "scaling_governor")]),
        ("cstate/C2", ["cpu0/cpuidle/state2/disable", "cpu1/cpuidle/state2/disable"]),
        ("cstate/C2", ["cpu0/cpuidle/state2/name", "cpu1/cpuidle/state2/name"]),
    ],
)
def test_no_cpu_readable_is_not_absent(build: Build, target: str, files: list[str], name: str, fault: str) -> None:
    faults = {f"{FREQ if 'policy' in file else CPU}/{file}": name for file in files}
    states = idle({cpu: ["POLL", "C1", "C2"] for cpu in range(2)})
    machine = policies("acpi-cpufreq", "schedutil", ACPI_GOVERNORS, count=2) | states
    host = build({path: text for path, text in machine.items() if path not in faults}, faults)
    found = KNOB.read(host, target)
    assert isinstance(found, Unreadable)
    assert found.fault == fault


def test_one_cpu_not_readable_and_the_rest_not_there_is_not_absent(build: Build) -> None:
    files = policies("acpi-cpufreq", "schedutil", ACPI_GOVERNORS, count=2)
    for n in (0, 1):
        del files[f"{FREQ}/policy{n}/scaling_governor"]
    found = KNOB.read(build(files, {f"{FREQ}/policy0/scaling_governor": "EIO"}), "governor")
    assert isinstance(found, Unreadable)


@pytest.mark.parametrize(
    ("path", "target", "content"),
    [
        (f"{FREQ}/policy1/scaling_governor", "governor", ""),
        (f"{FREQ}/policy1/scaling_governor", "governor", "two words"),
        (f"{FREQ}/boost", "boost", "yes"),
        (f"{CPU}/cpu1/cpuidle/state2/disable", "cstate/C2", "2"),
        (f"{FREQ}/policy1/affected_cpus", "governor", "one"),
    ],
)
def test_content_that_means_nothing_is_no_value(build: Build, path: str, target: str, content: str) -> None:
    host = build(acpi())
    put(host, path, content)
    found = KNOB.read(host, target)
    assert isinstance(found, Unreadable)
    assert "unexpected content" in found.why


@pytest.mark.parametrize(
    ("entry", "readable"),
    [(f"absent {FREQ}/boost", False), (f"dir 0755 {FREQ}\n|policy0", True)],
)
def test_why_a_switch_is_absent_may_itself_be_unrecorded(tmp_path: Path, entry: str, readable: bool) -> None:
    """Without the listing of cpufreq nobody knows whether there is a driver."""
    text = tmp_path / "part.host"
    head = "tuner-host 1\nfile 0644 /.tuner-host/host.yaml\n|name: part\n|kernel: 6.8.0\n"
    text.write_text(f"{head}dir 0755 {CPU}\n|cpufreq\n{entry}\nfile 0644 {FREQ}/policy0/scaling_governor\n|powersave\n")
    store.copy(text, str(tmp_path / "part"), [])
    found = KNOB.read(RecordedHost(str(tmp_path / "part")), "boost")
    assert isinstance(found, Absent if readable else Unreadable)


def test_what_nobody_recorded_is_not_absent(tmp_path: Path) -> None:
    text = tmp_path / "bare.host"
    text.write_text("tuner-host 1\nfile 0644 /.tuner-host/host.yaml\n|name: bare\n|kernel: 6.8.0\n", encoding="utf-8")
    store.copy(text, str(tmp_path / "bare"), [])
    host = RecordedHost(str(tmp_path / "bare"))
    for target in ("governor", "epp", "boost", "cstate/C2"):
        found = KNOB.read(host, target)
        assert isinstance(found, Unreadable)
        assert "not recorded" in found.why


# --- the laws

GOVERNOR_0, GOVERNOR_3 = (f"{FREQ}/policy{n}/scaling_governor" for n in (0, 3))
EPP_1, EPP_2 = (f"{FREQ}/policy{n}/energy_performance_preference" for n in (1, 2))
FOREIGN: list[tuple[str, str, str, Files]] = [
    ("acpi", "governor", "performance", {}),
    ("acpi", "governor", "performance", {GOVERNOR_0: "performance"}),
    ("acpi", "governor", "powersave", {GOVERNOR_0: "ondemand", GOVERNOR_3: "userspace"}),
    ("acpi", "governor", "schedutil", {GOVERNOR_0: "ondemand", GOVERNOR_3: "ondemand"}),
    ("intel", "epp", "performance", {}),
    ("intel", "epp", "performance", {EPP_1: "power", EPP_2: "balance_power"}),
    ("acpi", "boost", "off", {}),
    ("acpi", "boost", "on", {f"{FREQ}/boost": "0"}),
    ("intel", "boost", "off", {}),
    ("intel", "boost", "on", {f"{CPU}/intel_pstate/no_turbo": "1"}),
    ("amd", "boost", "off", {}),
    ("amd", "boost", "on", {f"{FREQ}/policy2/boost": "0"}),
    ("amd", "boost", "off", {f"{FREQ}/policy2/boost": "0"}),
    ("acpi", "cstate/C2", "off", {}),
    ("acpi", "cstate/C2", "off", {f"{CPU}/cpu1/cpuidle/state2/disable": "1"}),
    ("intel", "cstate/C6", "on", {f"{CPU}/cpu0/cpuidle/state3/disable": "1"}),
    ("intel", "cstate/C1E", "off", {f"{CPU}/cpu3/cpuidle/state1/disable": "1"}),
]


def foreign(build: Build, machine: str, state: Files) -> Logged:
    host = build(MACHINES[machine]())
    for path, text in state.items():
        put(host, path, text)
    return host


laws = pytest.mark.parametrize(("machine", "target", "word", "state"), FOREIGN)


@laws
def test_writing_what_was_read_writes_nothing(build: Build, machine: str, target: str, word: str, state: Files) -> None:
    host = foreign(build, machine, state)
    KNOB.write(host, target, seen(host, target))
    assert host.writes == []


@laws
def test_what_was_written_is_read_back_and_twice_is_once(
    build: Build, machine: str, target: str, word: str, state: Files
) -> None:
    host = foreign(build, machine, state)
    value = wanted(word, seen(host, target))
    KNOB.write(host, target, value)
    assert seen(host, target) == {"all": word}
    first = list(host.writes)
    KNOB.write(host, target, value)
    assert host.writes == first


@laws
def test_undo_gives_every_cpu_its_own_back(build: Build, machine: str, target: str, word: str, state: Files) -> None:
    host = foreign(build, machine, state)
    before, bytes_before = seen(host, target), tree(Path(host.root))
    KNOB.write(host, target, wanted(word, before))
    KNOB.write(host, target, before)
    assert seen(host, target) == before
    assert tree(Path(host.root)) == bytes_before


def test_undo_of_a_cpu_that_went_offline_restores_the_others(build: Build) -> None:
    host = build(acpi())
    put(host, GOVERNOR_0, "ondemand")
    before = seen(host, "governor")
    assert before == {"all": "mixed", "cpu0": "ondemand", "cpu1-3": "schedutil"}
    KNOB.write(host, "governor", {"all": "performance"})
    Path(f"{host.root}{FREQ}/policy1/affected_cpus").write_text("\n", encoding="utf-8")
    KNOB.write(host, "governor", before)
    assert governors(host) == ["ondemand\n", "performance\n", "schedutil\n", "schedutil\n"]


def test_only_cpus_that_differ_are_written(build: Build) -> None:
    host = build(acpi())
    put(host, GOVERNOR_0, "performance")
    KNOB.write(host, "governor", {"all": "performance"})
    assert [path for path, _ in host.writes] == [f"{FREQ}/policy{n}/scaling_governor" for n in (1, 2, 3)]


def test_the_switch_over_all_cpus_is_written_before_theirs(build: Build) -> None:
    """A policy takes boost only while the switch is on, and the switch sets every policy."""
    host = build(amd())
    put(host, f"{FREQ}/policy1/boost", "0")
    before = seen(host, "boost")
    assert before == {"all": "mixed", "switch": "on", "cpu0,2-3": "on", "cpu1": "off"}
    KNOB.write(host, "boost", wanted("off", before))
    assert host.writes == [(f"{FREQ}/boost", "0\n")]
    host.writes.clear()
    KNOB.write(host, "boost", before)
    assert host.writes == [(f"{FREQ}/boost", "1\n"), (f"{FREQ}/policy1/boost", "0\n")]


# --- refusals


def test_a_cpu_that_refuses_gives_the_others_back(build: Build) -> None:
    rule = f"  {FREQ}/policy2/scaling_governor: {{is: refuse, errno: EINVAL}}\n"
    host = build(acpi(), rules=rule)
    put(host, GOVERNOR_0, "ondemand")
    before = tree(Path(host.root))
    with pytest.raises(OSError, match="cpu2") as caught:
        KNOB.write(host, "governor", {"all": "performance"})
    assert caught.value.errno == errno.EINVAL
    assert tree(Path(host.root)) == before


def test_a_failed_write_of_boost_gives_policies_back(build: Build) -> None:
    """The switch was taken and moved every policy before one of them refused."""
    rule = f"  {FREQ}/policy3/boost: {{is: refuse, errno: EOPNOTSUPP}}\n"
    host = build(amd() | {f"{FREQ}/policy3/boost": "0", f"{FREQ}/policy1/boost": "0"}, rules=rule)
    with pytest.raises(OSError, match="cpu3"):
        KNOB.write(host, "boost", {"all": "on"})
    assert seen(host, "boost") == {"all": "mixed", "switch": "on", "cpu0,2": "on", "cpu1,3": "off"}


@pytest.mark.parametrize(
    ("machine", "target", "word", "offered"),
    [
        ("intel", "governor", "schedutil", "performance, powersave"),
        ("amd", "governor", "ondemand", "performance, powersave"),
        ("acpi", "governor", "fast", "conservative, ondemand, userspace, powersave, performance, schedutil"),
        ("intel", "epp", "balanced", "performance, balance_performance, balance_power, power"),
    ],
)
def test_a_word_that_the_driver_does_not_offer_is_refused_with_those_it_does(
    build: Build, machine: str, target: str, word: str, offered: str
) -> None:
    host = build(MACHINES[machine]())
    with pytest.raises(BadValue) as caught:
        KNOB.normalise(host, target, {"all": word})
    assert offered in caught.value.hint
    assert "default" not in caught.value.hint
    assert word in caught.value.what
    assert host.writes == []


def test_a_word_must_be_offered_on_every_cpu(build: Build) -> None:
    files = acpi() | {f"{FREQ}/policy2/scaling_available_governors": "performance powersave "}
    with pytest.raises(BadValue, match="cpu2"):
        KNOB.normalise(build(files), "governor", {"all": "schedutil"})


@pytest.mark.parametrize(
    ("machine", "target", "word"),
    [
        ("acpi", "governor", "ondemand"),
        ("intel", "epp", "power"),
        ("intel", "boost", "off"),
        ("acpi", "cstate/C2", "off"),
        # what amd-pstate lists under the governor performance is not what it takes after another was set
        ("amd", "epp", "balance_power"),
    ],
)
def test_a_word_that_is_offered_stays_as_it_is(build: Build, machine: str, target: str, word: str) -> None:
    assert KNOB.normalise(build(MACHINES[machine]()), target, {"all": word}) == {"all": word}


def test_no_list_of_what_is_offered_refuses_nothing(build: Build) -> None:
    """The kernel judges where the list cannot be read."""
    files = acpi()
    lists = [path for path in files if path.endswith("scaling_available_governors")]
    host = build({p: t for p, t in files.items() if p not in lists}, dict.fromkeys(lists, "EIO"))
    assert KNOB.normalise(host, "governor", {"all": "ondemand"}) == {"all": "ondemand"}


def test_the_governor_performance_and_another_preference_contradict_each_other(build: Build) -> None:
    """intel_pstate and amd-pstate answer EBUSY (b388eb58ce3b): explained, tried once, all as before."""
    fixed = "{is: word, words: [performance], errno: EBUSY}"
    files = {path: "performance" if path.endswith("scaling_governor") else text for path, text in intel().items()}
    files.update({f"{FREQ}/policy{n}/energy_performance_preference": "performance" for n in range(4)})
    host = build(files, rules="".join(f"  {FREQ}/policy{n}/energy_performance_preference: {fixed}\n" for n in range(4)))
    before = tree(Path(host.root))
    with pytest.raises(Refused) as caught:
        KNOB.write(host, "epp", {"all": "balance_performance"})
    assert "governor performance" in caught.value.why
    assert "profile" in caught.value.why
    assert len(host.writes) == 1
    assert tree(Path(host.root)) == before
    KNOB.write(host, "epp", {"all": "performance"})
    assert len(host.writes) == 1


def test_a_busy_preference_under_another_governor_is_no_contradiction(build: Build) -> None:
    host = build(intel(), rules=f"  {FREQ}/policy0/energy_performance_preference: {{is: refuse, errno: EBUSY}}\n")
    with pytest.raises(OSError, match="cpu0") as caught:
        KNOB.write(host, "epp", {"all": "power"})
    assert caught.value.errno == errno.EBUSY


def test_turbo_that_the_firmware_disabled_is_named(build: Build) -> None:
    rule = f"  {CPU}/intel_pstate/no_turbo: {{is: refuse, errno: EPERM}}\n"
    host = build(intel() | {f"{CPU}/intel_pstate/no_turbo": "1"}, rules=rule)
    with pytest.raises(Refused, match="firmware"):
        KNOB.write(host, "boost", {"all": "on"})


# --- what profiles write


@pytest.mark.parametrize(
    "target", ["governor", "epp", "boost", "cstate/C2", "cstate/C1E", "cstate/haltpoll idle", "cstate/C*"]
)
def test_names_of_targets(target: str) -> None:
    assert KNOB.canonical(target) == target


@pytest.mark.parametrize(
    "target", ["", "*", "freq", "governor ", "cstate", "cstate/", "cstate/a/b", "cstate/ C2", "gov*"]
)
def test_what_is_no_target(target: str) -> None:
    """A pattern over all targets is none: they take different words."""
    with pytest.raises(BadValue, match="no target"):
        KNOB.canonical(target)


@pytest.mark.parametrize(
    ("target", "raw"),
    [("governor", "performance"), ("epp", "balance_power"), ("boost", "off"), ("cstate/C2", "on"), ("cstate/*", "off")],
)
def test_a_word_is_meant_for_all_cpus(target: str, raw: str) -> None:
    assert KNOB.parse(target, raw) == {"all": raw}


@pytest.mark.parametrize(
    ("target", "raw"),
    [
        ("governor", "mixed"),
        ("governor", "two words"),
        ("governor", ""),
        ("governor", None),
        ("governor", ["performance"]),
        ("governor", {"all": "performance"}),
        ("epp", "128"),
        ("epp", "default"),
        ("boost", "1"),
        ("boost", "true"),
        ("boost", "On"),
        ("cstate/C2", "disabled"),
        ("cstate/*", "0"),
    ],
)
def test_what_is_no_value(target: str, raw: Any) -> None:
    with pytest.raises(BadValue) as caught:
        KNOB.parse(target, raw)
    assert caught.value.hint


# --- facts


@pytest.mark.parametrize(
    ("machine", "pattern", "targets"),
    [
        ("acpi", "*", ["governor", "boost", "cstate/POLL", "cstate/C1", "cstate/C2"]),
        ("intel", "*", ["governor", "epp", "boost", "cstate/POLL", "cstate/C1", "cstate/C1E", "cstate/C6"]),
        ("amd", "*", ["governor", "epp", "boost"]),
        ("intel", "cstate/C*", ["cstate/POLL", "cstate/C1", "cstate/C1E", "cstate/C6"]),
    ],
)
def test_targets_of_a_host(build: Build, machine: str, pattern: str, targets: list[str]) -> None:
    assert KNOB.targets(build(MACHINES[machine]()), pattern) == targets
    assert [KNOB.canonical(target) for target in targets] == targets


def test_a_file_without_a_write_bit_makes_the_target_read_only(build: Build) -> None:
    host = build(acpi(), mode="0444")
    assert KNOB.files(host, "governor") == [f"{FREQ}/policy{n}/scaling_governor" for n in range(4)]
    for target in ("governor", "boost", "cstate/C2"):
        assert read_only(host, KNOB, target) == "read-only here"


def test_a_writable_host_is_not_read_only(build: Build) -> None:
    host = build(acpi(), {f"{FREQ}/policy9/scaling_governor": "EBUSY", f"{FREQ}/policy9/affected_cpus": "EBUSY"})
    for target in ("governor", "boost", "cstate/C2"):
        assert read_only(host, KNOB, target) == ""


def test_a_change_is_one_of_clocks_and_governor_moves_epp() -> None:
    assert {KNOB.disruption(t) for t in ("governor", "epp", "boost", "cstate/C2")} == {"clocks"}
    assert KNOB.moves("governor") == (("cpu", "epp"),)
    assert KNOB.moves("boost") == ()
    assert KNOB.persist == "boot unit"
    assert "epp" in KNOB.note({"all": "powersave"}, {"all": "performance"}, "governor")
    assert KNOB.note({"all": "performance"}, {"all": "powersave"}, "governor") == ""
    assert "power" in KNOB.note({"all": "on"}, {"all": "off"}, "cstate/C2")
    for target in ("governor", "epp", "boost", "cstate/C2"):
        assert "Documentation/admin-guide/pm/" in KNOB.about(target)


def test_192_cpus_cost_two_reads_each(build: Build) -> None:
    """A verify reads every file again: governor and its CPUs, name and switch of an idle state."""
    files = policies("acpi-cpufreq", "performance", ACPI_GOVERNORS, count=192)
    host = build({**files, **idle({cpu: ["POLL", "C1", "C2"] for cpu in range(192)})})
    assert seen(host, "governor") == {"all": "performance"}
    assert len(host.reads) <= 2 * 192 + 1
    host.reads.clear()
    assert seen(host, "cstate/C2") == {"all": "on"}
    assert len(host.reads) <= 2 * 192 + 5


@pytest.mark.parametrize(
    ("cpus", "text"),
    [([0], "0"), ([0, 1], "0-1"), ([8, 0, 2, 1, 3], "0-3,8"), ([0, 2, 4], "0,2,4"), ([95, 96, 10, 9], "9-10,95-96")],
)
def test_lists_of_cpus_are_the_kernels(cpus: list[int], text: str) -> None:
    assert cpu_list(cpus) == text
    assert cpu_numbers(text) == sorted(cpus)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 1023), min_size=1, max_size=40))
def test_a_list_of_cpus_is_read_back(cpus: set[int]) -> None:
    assert cpu_numbers(cpu_list(cpus)) == sorted(cpus)
