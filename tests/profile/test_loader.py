"""The loader: every error of a file at once with its line, YAML without its traps, and no input that crashes it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import HOSTS, write_profile
from tuner.errors import Exit, TunerError
from tuner.host import Host, open_host
from tuner.model import Setting, settings_id
from tuner.profile import Profile, load_profile
from tuner.shipped import folder
from tuner.sim import store

REAL = (folder("profiles") / "linux-gpu.yaml").read_bytes()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("host") / "plain-vm"
    store.copy(HOSTS / "plain-vm.host", str(root), [])
    return open_host(str(root))


@pytest.fixture
def load(host: Host, tmp_path: Path) -> Callable[..., dict[str, Setting]]:
    """load(settings) -> the settings of such a profile, by target."""

    def loaded(text: str) -> dict[str, Setting]:
        profile = load_profile(host, str(write_profile(tmp_path / "p.yaml", text)))
        return {setting.target: setting for setting in profile.settings}

    return loaded


@pytest.fixture
def wrong(host: Host, tmp_path: Path) -> Callable[..., list[str]]:
    """wrong(text) -> the errors of a file with this text as `line: what (hint)`; each must have file, line and hint."""

    def errors(text: str | bytes, name: str = "p.yaml") -> list[str]:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(TunerError) as raised:
            load_profile(host, str(path))
        assert raised.value.code == Exit.BAD_INPUT
        found = []
        for problem in raised.value.problems:
            file, _, line = problem.where.rpartition(":")
            assert file == str(path) and line.isdigit(), problem
            assert problem.hint, problem
            assert "\n" not in problem.what + problem.hint
            found.append(f"{line}: {problem.what} ({problem.hint})")
        return found

    return errors


HEAD = "name: x\nsummary: y\n"


def said(errors: list[str], *parts: str) -> None:
    """Exactly one error, with all these parts."""
    assert len(errors) == 1, errors
    for part in parts:
        assert part in errors[0], errors


# what is no profile


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        (b"", 1, "empty"),
        (b"\n\n# only a comment\n", 1, "empty"),
        (b"just words\n", 1, "mapping"),
        (b"- a\n- b\n", 1, "mapping"),
        (b"name: x\n---\nname: y\n", 1, "document"),
        (b"name: x\nsummary: \xff\n", 2, "UTF-8"),
        (b"name: x\nsummary: y\nsettings:\n  sysctl:\n    vm.swappiness: \xc3\x28\n", 5, "UTF-8"),
        (b"\xff\xfen\x00a\x00", 1, "UTF-8"),
        (b"name: 'unclosed\n", 2, "YAML"),
        (b"name: x\n\tsummary: y\n", 2, "YAML"),
        (b"name: x\nsummary: [a, b\n", 3, "YAML"),
        (b"name: x\nsummary: \x00\n", 2, "YAML"),
        (b"{" * 500, 1, "deep"),
        (b"[" * 100000, 1, "nest"),
        (b"a: " * 3, 1, "YAML"),
    ],
)
def test_what_is_no_profile(text: bytes, line: int, part: str, wrong: Callable[..., list[str]]) -> None:
    errors = wrong(text)
    assert any(error.startswith(f"{line}: ") and part in error for error in errors), errors


def test_line_of_a_bad_byte_far_down(wrong: Callable[..., list[str]]) -> None:
    said(wrong(b"# caf\xc3\xa9\n" * 40 + b"name: caf\xe9\n"), "41: ", "0xe9")


@pytest.mark.parametrize("text", ["a: &a [x]\nb: *a\n", "name: x\nsummary: y\nsettings: *gone\n"])
def test_aliases_are_refused(text: str, wrong: Callable[..., list[str]]) -> None:
    assert any("alias" in error for error in wrong(text))


def test_alias_bomb(wrong: Callable[..., list[str]]) -> None:
    """Nine lists of nine aliases each would be a billion words: they are never expanded."""
    lines = ["a0: &a0 [" + "lol, " * 9 + "]"]
    lines += [f"a{n}: &a{n} [" + f"*a{n - 1}, " * 9 + "]" for n in range(1, 10)]
    errors = wrong("\n".join(lines))
    assert len([error for error in errors if "alias" in error]) == 9


def test_merge_key_is_refused(wrong: Callable[..., list[str]]) -> None:
    """`<<: *base` is the alias that profiles are most often written with elsewhere."""
    errors = wrong(HEAD + "settings:\n  sysctl: {<<: {vm.swappiness: 1}}\n")
    assert any(error.startswith("4: ") for error in errors)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system [id]", "!!int '1'", "!mine x", "!!binary aGk="])
def test_tags_are_refused(tag: str, wrong: Callable[..., list[str]]) -> None:
    errors = wrong(HEAD + f"settings:\n  sysctl:\n    vm.swappiness: {tag}\n")
    assert any(error.startswith("5: ") and "tag" in error for error in errors), errors


# keys


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("nmae: x\nsummary: y\nname: z\nsettings: {}\n", 1, ["'nmae'", "name"]),
        (HEAD + "setings: {}\nsettings: {}\n", 3, ["'setings'", "settings"]),
        (HEAD + "settings:\n  sysctll: {a.b: 1}\n", 4, ["'sysctll'", "did you mean sysctl?"]),
        (HEAD + "settings:\n  qqq: {a.b: 1}\n", 4, ["'qqq'", "known: ", "hugepages"]),
        (HEAD + "settings:\n  sysctl:\n    vm.swappiness: {at_lest: 1, value: 1}\n", 5, ["'at_lest'", "at_least"]),
        (HEAD + "settings:\n  thp: {enable: never}\n", 4, ["enable", "enabled"]),
        (HEAD + "name: z\nsettings: {}\n", 3, ["name is given twice", "line 1"]),
        (HEAD + "settings:\n  thp:\n    enabled: never\n    enabled: always\n", 6, ["enabled", "twice", "line 5"]),
        (HEAD + "settings:\n  sysctl: {vm.swappiness: 1}\n  sysctl: {vm.swappiness: 1}\n", 5, ["sysctl", "twice"]),
        (HEAD + "settings:\n  sysctl:\n    vm.swappiness: 1\n    vm/swappiness: 1\n", 6, ["twice", "line 5"]),
        (HEAD + "settings:\n  hugepages:\n    node0/1024MB: 1\n    node0/1GB: 1\n", 6, ["twice", "line 5"]),
        (HEAD + "settings:\n  sysctl:\n    vm.swappiness: {unset: true, value: 1}\n", 5, ["unset stands alone"]),
        (HEAD + "settings:\n  sysctl:\n    ? [a]\n    : 1\n", 5, ["key"]),
        ("summary: y\nsettings: {}\n", 1, ["name"]),
        ("name: x\nsettings: {}\n", 1, ["summary"]),
        ("name: x\nsummary: y\n", 1, ["settings"]),
        ("name: [x]\nsummary: y\nsettings: {}\n", 1, ["name"]),
    ],
)
def test_keys(text: str, line: int, parts: list[str], wrong: Callable[..., list[str]]) -> None:
    errors = wrong(text)
    assert any(error.startswith(f"{line}: ") and all(part in error for part in parts) for error in errors), errors


# values


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("sysctl: {vm.swappiness: }", ["null", "single value"]),
        ("sysctl: {vm.swappiness: null}", ["null"]),
        ('sysctl: {vm.swappiness: ""}', ["not a number"]),
        ("sysctl: {vm.swappiness: on}", ["'on'", "not a number"]),
        ("sysctl: {vm.swappiness: 010}", ["leading zero", "octal"]),
        ("sysctl: {vm.swappiness: -010}", ["leading zero"]),
        ("sysctl: {vm.swappiness: 1:30}", ["'1:30'", "not a number"]),
        ("sysctl: {vm.swappiness: 1.5}", ["not a number"]),
        ("sysctl: {vm.swappiness: 1e3}", ["not a number"]),
        ("sysctl: {vm.swappiness: 1_000}", ["not a number"]),
        ("sysctl: {vm.swappiness: 0o17}", ["not a number"]),
        ("sysctl: {vm.swappiness: 0b11}", ["not a number"]),
        ("sysctl: {vm.swappiness: 0x}", ["not a number"]),
        ("sysctl: {vm.swappiness: 10%}", ["not a number"]),
        ("sysctl: {vm.swappiness: \u0661}", ["not a number"]),
        ("sysctl: {vm.swappiness: 201}", ["out of range", "0..200"]),
        ("sysctl: {vm.swappiness: -1}", ["out of range"]),
        ("sysctl: {vm.swappiness: 99999999999999999999999}", ["digits"]),
        ("sysctl: {net.core.rmem_max: 16M}", ["not a number"]),
        ("sysctl: {net.core.rmem_max: 100}", ["out of range", "2304"]),
        ("sysctl: {net.ipv4.tcp_rmem: 4096 131072}", ["2 numbers", "3"]),
        ("sysctl: {net.ipv4.tcp_rmem: [4096, 131072]}", ["2 numbers", "3"]),
        ("sysctl: {vm.dirty_bytes: 1}", ["pair", "vm.dirty"]),
        ("sysctl: {vm.nr_hugepages: 1}", ["hugepages"]),
        ("sysctl: {vm.compact_memory: 1}", ["action"]),
        ("sysctl: {../../etc/passwd: 1}", ["not a kernel parameter"]),
        ("sysctl: {/proc/sys/vm/swappiness: 1}", ["not a kernel parameter"]),
        ("sysctl: {net.ipv4.conf.../x: 1}", ["not a kernel parameter"]),
        ("sysctl: {vm.swappiness: {value: 1, at_least: 1}}", ["value and at_least together", "exactly one"]),
        ("sysctl: {vm.swappiness: {why: because}}", ["no value", "exactly one"]),
        ("sysctl: {vm.swappiness: {one_of: 1}}", ["list"]),
        ("sysctl: {vm.swappiness: {one_of: []}}", ["list"]),
        ("sysctl: {vm.swappiness: {one_of: [1, 201]}}", ["out of range"]),
        ("sysctl: {vm.swappiness: {value: 1, required: maybe}}", ["true", "false"]),
        ("sysctl: {vm.swappiness: {value: 1, required: yes}}", ["true", "false"]),
        ("sysctl: {vm.swappiness: {value: 1, gate: open}}", ["enforce"]),
        ("sysctl: {vm.swappiness: {value: 1, why: [a]}}", ["text"]),
        ("sysctl: {vm.swappiness: {unset: true}}", ["not inherited"]),
        ("sysctl: {net.ipv4.tcp_congestion_control: {at_least: bbr}}", ["at_least", "number"]),
        ("sysctl: [vm.swappiness]", ["mapping"]),
        ("sysctl: 1", ["mapping"]),
        ("sysctl.pair: {vm.dirty: 10}", ["exactly one of bytes and ratio"]),
        ("sysctl.pair: {vm.dirty: {value: {bytes: 100}}}", ["out of range", "8192"]),
        ("sysctl.pair: {vm.dirty: {value: {ratio: 101}}}", ["out of range"]),
        ("sysctl.pair: {vm.dirty: {value: {ratio: 10, bytes: 8192}}}", ["exactly one"]),
        ("sysctl.pair: {vm.overcommit: {value: {bytes: 1025}}}", ["multiple of 1024"]),
        ("sysctl.pair: {vm.dirt: {value: {ratio: 1}}}", ["vm.dirt", "vm.dirty"]),
        ("thp: {enabled: sometimes}", ["'sometimes'", "madvise"]),
        ("thp: {enabled: defer}", ["'defer'", "madvise"]),
        ("thp: {khugepaged/max_ptes_none: 512}", ["out of range", "511"]),
        ("hugepages: {node0: 1}", ["'node0'", "node0/2MB"]),
        ("hugepages: {node0/2M: 1}", ["'node0/2M'"]),
        ("hugepages: {node0/2MB: -1}", ["out of range"]),
        ("hugepages: {node0/2MB: max}", ["not a number"]),
        ("file: {etc/x: a}", ["absolute"]),
        ("file: {/etc/../x: a}", ["plain"]),
        ("file: {/etc/: a}", ["plain"]),
        ("file: {/: a}", [""]),
        ("file: {/proc/sys/vm/swappiness: 1}", ["sysctl"]),
        ("file: {/sys/x: 1}", ["no ordinary file"]),
        ("file: {/dev/sda: 1}", ["no ordinary file"]),
        ("file: {/var/lib/tuner/x: 1}", ["own state"]),
        ("file: {/etc/tuner/applied/current.json: 1}", ["own state"]),
        ("file: {/etc/x.tuner-new: 1}", [".tuner-new"]),
        ("file: {/etc/x: {value: {mode: '0644'}}}", ["text"]),
        ("file: {/etc/x: {value: {text: a, mode: '0666'}}}", ["mode 0666"]),
        ("file: {/etc/x: {value: {text: a, mode: '4755'}}}", ["mode 4755"]),
        ("file: {/etc/x: {value: {text: a, mode: rw}}}", ["mode rw"]),
        ("file: {/etc/x: {value: {text: a, owner: root}}}", ["uid:gid"]),
        ("file: {/etc/x: {value: {text: [a]}}}", ["single value"]),
        ("file: {/etc/x: [a]}", ["single value"]),
    ],
)
def test_values(setting: str, parts: list[str], wrong: Callable[..., list[str]]) -> None:
    said(wrong(HEAD + f"settings:\n  {setting}\n"), "4: ", *parts)


def test_numbers_are_base_0_as_the_kernel_reads_them(load: Callable[..., dict[str, Setting]]) -> None:
    found = load("sysctl: {net.core.rmem_max: 0x1000000, vm.swappiness: 0, kernel.numa_balancing: '1'}")
    assert found["net.core.rmem_max"].want.value == 16777216
    assert found["vm.swappiness"].want.value == 0
    assert found["kernel.numa_balancing"].want.value == 1


@pytest.mark.parametrize(
    "written", ['"4096 131072 16777216"', "[4096, 0x20000, 16777216]", '"4096\\t131072\\t16777216"']
)
def test_vectors(written: str, load: Callable[..., dict[str, Setting]]) -> None:
    assert load(f"sysctl: {{net.ipv4.tcp_rmem: {written}}}")["net.ipv4.tcp_rmem"].want.value == (4096, 131072, 16777216)


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "010", "1:30", "1e3", "0x10", "2001-01-01", "true", "~x"])
def test_a_scalar_is_taken_as_written(word: str, load: Callable[..., dict[str, Setting]]) -> None:
    """YAML 1.1 would make booleans, octal, sexagesimal and dates of these."""
    assert load(f"file: {{/etc/x: {word}}}")["/etc/x"].want.value == {"text": word}


@pytest.mark.parametrize(("written", "text"), [("null", None), ("~", None), ("", None), ('""', ""), ("'null'", "null")])
def test_null_is_no_file_and_empty_is_an_empty_one(
    written: str, text: str | None, load: Callable[..., dict[str, Setting]]
) -> None:
    assert load(f"file:\n  /etc/x: {written}")["/etc/x"].want.value == {"text": text}


def test_why_and_source_not_given_name_the_line(load: Callable[..., dict[str, Setting]], tmp_path: Path) -> None:
    setting = load("sysctl:\n  vm.swappiness: 1")["vm.swappiness"]
    where = f"{tmp_path / 'p.yaml'}:5"
    assert (setting.origin, setting.why, setting.source) == (where, f"set by {where}", f"set by {where}")


def test_all_errors_at_once_in_order(wrong: Callable[..., list[str]]) -> None:
    errors = wrong(
        "name: x\n"
        "colour: red\n"
        "summary: y\n"
        "settings:\n"
        "  sysctl:\n"
        "    vm.swappiness: 999\n"
        "    vm.swappiness: 1\n"
        "    net.core.rmem_max: {at_lest: 1}\n"
        "  thp: {enabled: maybe}\n"
        "  nothing: {a: b}\n"
        "  file:\n"
        "    relative: a\n"
    )
    lines = [int(error.partition(":")[0]) for error in errors]
    assert lines == sorted(lines)
    assert set(lines) == {2, 6, 7, 8, 9, 10, 12}


# extends


@pytest.fixture
def family(host: Host, tmp_path: Path) -> Callable[..., Profile]:
    """family(a=text, b=text ...) writes a.yaml ..., `NAME.yaml` in a text meaning the file; loads the first one."""

    def loaded(**texts: str) -> Profile:
        for name, text in texts.items():
            body = re.sub(r"\w+\.yaml", lambda other: str(tmp_path / other[0]), text)
            (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nsummary: y\n{body}")
        return load_profile(host, str(tmp_path / f"{next(iter(texts))}.yaml"))

    return loaded


def test_extends_left_to_right_then_the_child(family: Callable[..., Profile]) -> None:
    one = "settings: {sysctl: {vm.swappiness: 1, kernel.numa_balancing: 1, net.core.rmem_max: 4000}}"
    two = "settings: {sysctl: {kernel.numa_balancing: 0, net.core.rmem_max: 5000}}"
    child = "extends: [one.yaml, two.yaml]\nsettings: {sysctl: {net.core.rmem_max: 6000}}"
    profile = family(child=child, one=one, two=two)
    assert {s.target: s.want.value for s in profile.settings} == {
        "vm.swappiness": 1,
        "kernel.numa_balancing": 0,
        "net.core.rmem_max": 6000,
    }
    assert profile.name == "child"


def test_required_and_gate_are_inherited_and_unset_drops(family: Callable[..., Profile]) -> None:
    parent = (
        "settings: {sysctl: {vm.swappiness: {value: 1, required: true, gate: enforce}, kernel.numa_balancing: 0,"
        " net.core.rmem_max: {value: 4000, required: true}}}"
    )
    child = (
        "extends: parent.yaml\nsettings: {sysctl: {vm.swappiness: 2, kernel.numa_balancing: {unset: true},"
        " net.core.rmem_max: {value: 4000, required: false}}}"
    )
    found = {s.target: s for s in family(child=child, parent=parent).settings}
    assert set(found) == {"vm.swappiness", "net.core.rmem_max"}
    assert (found["vm.swappiness"].required, found["vm.swappiness"].gate) == (True, "enforce")
    assert found["net.core.rmem_max"].required is False


@pytest.mark.parametrize(
    "texts",
    [
        {"a": "extends: a.yaml\nsettings: {}"},
        {"a": "extends: b.yaml\nsettings: {}", "b": "extends: a.yaml\nsettings: {}"},
        {"a": "extends: b.yaml", "b": "extends: [c.yaml]", "c": "extends: [linux-gpu, b.yaml]"},
    ],
)
def test_cyclic_extends(texts: dict[str, str], family: Callable[..., Profile]) -> None:
    with pytest.raises(TunerError, match="extends itself") as raised:
        family(**texts)
    assert raised.value.code == Exit.BAD_INPUT
    assert all(":3" in p.where and p.hint for p in raised.value.problems)


def test_one_parent_twice_is_no_cycle(family: Callable[..., Profile]) -> None:
    base = "settings: {sysctl: {vm.swappiness: 1}}"
    profile = family(
        child="extends: [left.yaml, right.yaml]", left="extends: base.yaml", right="extends: base.yaml", base=base
    )
    assert [s.want.value for s in profile.settings] == [1]


@pytest.mark.timeout(20)
def test_many_parents_do_not_take_for_ever(family: Callable[..., Profile]) -> None:
    """Each of 24 files extends the next one twice: two to the 24 paths, but 25 files."""
    texts = {f"f{n}": f"extends: [f{n + 1}.yaml, f{n + 1}.yaml]" for n in range(24)}
    with pytest.raises(TunerError):
        family(**{"f00": "extends: [f0.yaml]\nsettings: {nothing: {}}", **texts, "f24": "settings: {}"})


def test_unknown_parent_names_the_line(family: Callable[..., Profile]) -> None:
    with pytest.raises(TunerError) as raised:
        family(a="extends: [linux-gpu, no-such-profile]\nsettings: {}")
    (problem,) = raised.value.problems
    assert problem.where.endswith("a.yaml:3")
    assert "linux-gpu" in problem.hint


@pytest.mark.parametrize("name", ['"/a\\0b.yaml"', '"a\\0b"', '"a\\nb"', '""', "..", "[[a]]", "{a: b}", "~"])
def test_parent_that_is_no_name(name: str, wrong: Callable[..., list[str]]) -> None:
    errors = wrong(HEAD + f"extends: [{name}]\nsettings: {{}}\n")
    assert all(error.startswith("3: ") for error in errors)


def test_errors_of_parent_and_child_come_together(family: Callable[..., Profile]) -> None:
    with pytest.raises(TunerError) as raised:
        family(a="extends: b.yaml\nsettings: {thp: {enabled: x}}", b="settings: {thp: {defrag: x}}")
    assert [problem.where.rpartition("/")[2] for problem in raised.value.problems] == ["a.yaml:4", "b.yaml:3"]


# names


@pytest.mark.parametrize("name", ["", ".", "..", "no-such", ".hidden", "a\nb", "a\0b", "linux-gpu\0"])
def test_what_is_no_name_of_a_profile(name: str, host: Host) -> None:
    with pytest.raises(TunerError) as raised:
        load_profile(host, name)
    assert raised.value.code == Exit.BAD_INPUT
    assert "linux-gpu" in raised.value.problems[0].hint


@pytest.mark.parametrize(
    "path", ["/no/such.yaml", "no/such", "x.yaml", "/dev/null", "/", "/proc/self/mem", "/dev/tty\0"]
)
def test_what_is_no_file(path: str, host: Host) -> None:
    with pytest.raises(TunerError) as raised:
        load_profile(host, path)
    assert raised.value.code == Exit.BAD_INPUT
    assert raised.value.problems[0].hint


def test_shipped_profile_is_whole(host: Host) -> None:
    """Every value that we ship says why and names a public source."""
    profile = load_profile(host, "linux-gpu")
    assert profile.name == "linux-gpu"
    assert len(profile.settings) > 10
    for setting in profile.settings:
        assert not setting.why.startswith("set by"), setting
        assert not setting.source.startswith("set by"), setting


# any input at all


@pytest.fixture(scope="module")
def anywhere(host: Host) -> Iterator[Callable[[bytes], None]]:
    """anywhere(bytes) loads a file with these bytes; it may only load or raise TunerError with complete problems."""
    descriptor, path = tempfile.mkstemp(suffix=".yaml")
    os.close(descriptor)

    def loaded(data: bytes) -> None:
        Path(path).write_bytes(data)
        try:
            profile = load_profile(host, path)
        except TunerError as error:
            assert error.code == Exit.BAD_INPUT
            assert error.problems
            assert all(p.where and p.what and p.hint for p in error.problems)
        else:
            assert profile.name
            assert len(settings_id(list(profile.settings))) == 64

    yield loaded
    Path(path).unlink()


bounded = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@bounded
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes(data: bytes, anywhere: Callable[[bytes], None]) -> None:
    anywhere(data)


@bounded
@given(text=st.text(alphabet="ab:-[]{}&*!|>'\"#%@`?, \n\t0.~<=/\x00\x85\u2028\ufeff\U0001f600", max_size=120))
def test_arbitrary_yaml(text: str, anywhere: Callable[[bytes], None]) -> None:
    anywhere((HEAD + "settings:\n  sysctl:\n    " + text).encode())
    anywhere(text.encode())


SCALARS = st.one_of(
    st.none().map(lambda _: "null"),
    st.integers().map(str),
    st.text(max_size=8).map(repr),
    st.sampled_from(["on", "010"]),
)
WORDS = ["sysctl", "thp", "file", "hugepages", "sysctl.pair", "vm.dirty", "enabled", "node0/2MB", "/etc/x", "value"]
WORDS += [
    "at_least",
    "one_of",
    "unset",
    "required",
    "gate",
    "why",
    "bytes",
    "ratio",
    "text",
    "mode",
    "owner",
    "*",
    "[*",
]
FLOW = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(st.sampled_from(WORDS), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
        ),
    ),
    max_leaves=12,
)


@bounded
@given(text=FLOW)
def test_arbitrary_settings(text: str, anywhere: Callable[[bytes], None]) -> None:
    anywhere((HEAD + f"settings: {text}\n").encode("utf-8", "surrogatepass"))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The shipped profile with up to five edits: lines swapped, dropped, doubled, indented; bytes changed or cut."""
    lines = REAL.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        edit = draw(st.sampled_from(["drop", "double", "swap", "indent", "outdent", "insert", "value", "cut"]))
        if edit == "drop" and len(lines) > 1:
            del lines[at]
        elif edit == "double":
            lines.insert(at, lines[at])
        elif edit == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif edit == "indent":
            lines[at] = b"  " + lines[at]
        elif edit == "outdent":
            lines[at] = lines[at][2:] if lines[at].startswith(b"  ") else lines[at]
        elif edit == "insert":
            place = draw(st.integers(0, max(len(lines[at]) - 1, 0)))
            lines[at] = lines[at][:place] + draw(st.binary(max_size=4)) + lines[at][place:]
        elif edit == "value":
            key = lines[at].partition(b":")[0]
            lines[at] = (
                key + b": " + draw(st.sampled_from([b"null", b"[]", b"{}", b"-1", b"on", b"*a", b"!!x y"])) + b"\n"
            )
        else:
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    return b"".join(lines)


@bounded
@given(data=mutated())
def test_mutated_profiles(data: bytes, anywhere: Callable[[bytes], None]) -> None:
    anywhere(data)
