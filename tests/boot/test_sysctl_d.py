"""What the next boot gives each kernel parameter: the field cases, the rules of both appliers, and hostile files."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import tree
from tuner.boot.lines import LONGEST, PROCPS, SYSTEMD, Junk, expands_to, parse, path_of, real
from tuner.boot.sysctl_d import Boot, NotPredicted, Prediction, Unset, Written, predict
from tuner.host import Host, open_host

Files = dict[str, str]
UNIT = "usr/lib/systemd/system/systemd-sysctl.service"


class Machine:
    """An image that boots with systemd, and files in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put({UNIT: "[Service]\nExecStart=/usr/lib/systemd/systemd-sysctl\n", "usr/lib/systemd/systemd": ""})
        self.link("sbin/init", "../usr/lib/systemd/systemd")
        (root / "etc").mkdir(exist_ok=True)

    def put(self, files: Files) -> None:
        """Writes files, with their directories."""
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text, encoding="utf-8", newline="")

    def link(self, name: str, to: str) -> None:
        """Makes a link, with its directories."""
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).symlink_to(to)

    def boot(self, name: str | None = None) -> Boot:
        """The next boot."""
        return predict(Host(str(self.root), "image", "made", ""), name)

    def value(self, key: str, name: str | None = None) -> Prediction:
        """What the next boot gives one key."""
        return self.boot(name).value(key)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A fresh image without a sysctl file."""
    return Machine(tmp_path / "image")


def short(found: Prediction) -> tuple[str, str]:
    """(text, FILE:LINE) of what is written; fails for anything else."""
    assert isinstance(found, Written), found
    return found.text, found.line.where


def why(found: Prediction) -> str:
    """Why nothing is predicted; fails for a prediction."""
    assert isinstance(found, NotPredicted), found
    return found.why


# Cases from the field


def test_s01_names_order_the_files_of_all_directories(machine: Machine) -> None:
    """systemd/systemd#20919: /etc does not win by being /etc; the beaten line is named."""
    machine.put({"etc/sysctl.d/allow-twrite.conf": "fs.protected_regular=0\n"})
    machine.put({"usr/lib/sysctl.d/protect-links.conf": "# vendor\nfs.protected_regular=2\n"})
    found = machine.value("fs.protected_regular")
    assert short(found) == ("2", "/usr/lib/sysctl.d/protect-links.conf:2")
    assert isinstance(found, Written)
    assert [line.where for line in found.beaten] == ["/etc/sysctl.d/allow-twrite.conf:1"]


def test_s02_s22_an_explicit_key_beats_a_pattern_and_dash_key_is_left_out(machine: Machine) -> None:
    """systemd/systemd#12791, #32563, #18663: and none of it is a problem to report."""
    machine.put({"etc/sysctl.d/01-custom.conf": "net.ipv4.conf.default.rp_filter = 1\n"})
    lines = "net.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n"
    machine.put({"usr/lib/sysctl.d/50-default.conf": lines})
    boot = machine.boot()
    assert short(boot.value("net.ipv4.conf.default.rp_filter")) == ("1", "/etc/sysctl.d/01-custom.conf:1")
    assert short(boot.value("net.ipv4.conf.lo.rp_filter")) == ("2", "/usr/lib/sysctl.d/50-default.conf:1")
    assert boot.value("net.ipv4.conf.all.rp_filter") == Unset(
        "/usr/lib/sysctl.d/50-default.conf:2 keeps every pattern off it",
        tuple(boot.tables[0].about("net/ipv4/conf/all/rp_filter")),
    )
    assert boot.problems() == ()


@pytest.mark.parametrize("applier", [SYSTEMD, PROCPS])
def test_s04_a_dash_is_no_syntax_error(machine: Machine, applier: str) -> None:
    """redhat-performance/tuned#803: `-KEY` is an exclusion, `-KEY = VALUE` an assignment that may fail."""
    lines = ["# filler"] * 26 + ["-net.ipv4.conf.all.rp_filter", "-net.core.somaxconn = 1024"]
    machine.put({"etc/sysctl.d/a.conf": "\n".join(lines) + "\n"})
    boot = machine.boot(applier)
    assert boot.problems() == ()
    assert short(boot.value("net.core.somaxconn")) == ("1024", "/etc/sysctl.d/a.conf:28")
    found = boot.value("net.ipv4.conf.all.rp_filter")
    assert isinstance(found, Unset)
    assert found.why == "/etc/sysctl.d/a.conf:27 keeps every pattern off it"


RATES = "kernel.perf_cpu_time_max_percent = 25\nkernel.perf_event_max_sample_rate = 10000\n"


def test_s05_systemd_writes_a_repeated_key_once_at_its_last_place(machine: Machine) -> None:
    """systemd/systemd#10521: so that the rate is written first; the same value again keeps the early place."""
    machine.put({"etc/sysctl.d/a.conf": f"{RATES}kernel.perf_cpu_time_max_percent = 0\n"})
    boot = machine.boot()
    assert [(line.key, line.text) for line in boot.order()] == [
        ("kernel/perf_event_max_sample_rate", "10000"),
        ("kernel/perf_cpu_time_max_percent", "0"),
    ]
    percent = boot.value("kernel.perf_cpu_time_max_percent")
    assert isinstance(percent, Written)
    assert ([line.number for line in percent.beaten], percent.earlier) == ([1], ())
    machine.put({"etc/sysctl.d/a.conf": f"{RATES}kernel.perf_cpu_time_max_percent = 25\n"})
    assert machine.boot().order()[0].key == "kernel/perf_cpu_time_max_percent"


def test_s05_procps_writes_every_line_where_it_stands(machine: Machine) -> None:
    """src/sysctl.c of procps-ng 4.0.2: a list that is written from its head."""
    machine.put({"etc/sysctl.d/a.conf": f"{RATES}kernel.perf_cpu_time_max_percent = 0\n"})
    boot = machine.boot(PROCPS)
    assert [line.text for line in boot.order()] == ["25", "10000", "0"]
    percent = boot.value("kernel.perf_cpu_time_max_percent")
    assert isinstance(percent, Written)
    assert ([line.number for line in percent.earlier], percent.beaten) == ([1], ())


OTHER_INITS = [("../usr/bin/runit-init", "runit-init"), ("openrc-init", "openrc-init"), ("busybox", "busybox")]


@pytest.mark.parametrize(("to", "name"), OTHER_INITS)
def test_s07_no_promise_where_another_program_boots(tmp_path: Path, to: str, name: str) -> None:
    """void-linux/void-runit#31: the order of files is that program's own."""
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/sysctl.d/a.conf").write_text("vm.swappiness = 1\n")
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin/init").symlink_to(to)
    boot = predict(Host(str(tmp_path), "image", "made", ""))
    assert why(boot.value("vm.swappiness")) == f"boot order not known: this host starts with {name}"
    assert boot.order() == ()


@pytest.mark.parametrize("applier", [SYSTEMD, PROCPS])
def test_s08_names_are_compared_as_text(machine: Machine, applier: str) -> None:
    """openSUSE/wicked#856, #896: 60-a comes before 9-b, capitals before small letters, ASCII before the rest."""
    for name, text in (("60-a", "1"), ("9-b", "2")):
        machine.put({f"etc/sysctl.d/{name}.conf": f"vm.swappiness={text}\n"})
    assert short(machine.value("vm.swappiness", applier)) == ("2", "/etc/sysctl.d/9-b.conf:1")
    machine.put({"etc/sysctl.d/Z.conf": "vm.swappiness=3\n"})
    machine.put({"etc/sysctl.d/a.conf": "vm.swappiness=4\n"})
    assert short(machine.value("vm.swappiness", applier))[0] == "4"
    machine.put({"etc/sysctl.d/ä.conf": "vm.swappiness=5\n"})
    assert short(machine.value("vm.swappiness", applier))[0] == "5"


@pytest.mark.parametrize("applier", [SYSTEMD, PROCPS])
def test_s10_comments_and_blank_lines(machine: Machine, applier: str) -> None:
    """sap-linuxlab/community.sap_install#996."""
    text = ";net.core.wmem_max=1\n\t# net.core.wmem_max=2\n   \n\t\nnet.core.wmem_max=4194304\n"
    machine.put({"etc/sysctl.d/a.conf": text})
    boot = machine.boot(applier)
    assert boot.problems() == ()
    assert [(line.key, line.text, line.number) for line in boot.order()] == [("net/core/wmem_max", "4194304", 5)]


def test_s11_repeated_and_indented_lines_are_read_and_nothing_is_rewritten(machine: Machine) -> None:
    """ansible/ansible#33974."""
    text = "# first\n  vm.swappiness = 10  \n\n\tvm.swappiness=20\n#vm.swappiness=30\n"
    machine.put({"etc/sysctl.conf": text})
    machine.link("etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")
    before = tree(machine.root)
    assert short(machine.value("vm.swappiness")) == ("20", "/etc/sysctl.d/99-sysctl.conf:4")
    assert tree(machine.root) == before


@pytest.mark.parametrize("applier", [SYSTEMD, PROCPS])
@pytest.mark.parametrize("written", ["net.ipv4.conf.renamed0/10.rp_filter", "net/ipv4/conf/renamed0.10/rp_filter"])
def test_s16_the_first_separator_decides(machine: Machine, applier: str, written: str) -> None:
    """systemd/systemd#39256: a VLAN interface in both forms, asked for in both; the third form is another file."""
    machine.put({"etc/sysctl.d/a.conf": f"{written}=2\nnet.ipv4.conf.renamed0.10.rp_filter=1\n"})
    boot = machine.boot(applier)
    for key in ("net.ipv4.conf.renamed0/10.rp_filter", "net/ipv4/conf/renamed0.10/rp_filter"):
        found = boot.value(key)
        assert short(found) == ("2", "/etc/sysctl.d/a.conf:1")
        assert isinstance(found, Written)
        assert found.late == "when renamed0.10 appears: udev (99-systemd.rules) applies the files to it then"


@pytest.mark.parametrize("applier", [SYSTEMD, PROCPS])
def test_s17_a_path_that_climbs_is_never_taken_for_a_key(machine: Machine, applier: str) -> None:
    """containernetworking/plugins#779: systemd refuses it; procps follows it, which is not predicted."""
    machine.put({"etc/sysctl.d/a.conf": "net/ipv4/conf/../../../kernel/sysrq=1\n"})
    found = machine.value("kernel.sysrq", applier)
    assert found == Unset("no file sets it") if applier == SYSTEMD else "by way of '..'" in why(found)


TUNED_FILES = {
    "etc/tuned/active_profile": "site\n",
    "etc/tuned/site/tuned.conf": "[main]\ninclude=base\n[variables]\nn=5\n[sysctl]\nvm.swappiness=${n}\n",
    "usr/lib/tuned/base/tuned.conf": "[sysctl]\nnet.core.somaxconn=2048\n[other]\ntype=sysctl\nvm.max_map_count=>9\n",
}


@pytest.mark.parametrize(("again", "site_wins"), [("1", True), ("0", False), ("", True)])
def test_s19_tuned_or_the_file_wins_by_reapply_sysctl(machine: Machine, again: str, site_wins: bool) -> None:
    """redhat-performance/tuned#518, #583: who wins is named; keys of included profiles count."""
    machine.put({**TUNED_FILES, "etc/sysctl.d/99-site.conf": "vm.swappiness=1\n"})
    machine.put({"usr/lib/sysctl.d/50-vendor.conf": "net.core.somaxconn=1024\n"})
    machine.link("etc/systemd/system/multi-user.target.wants/tuned.service", "/usr/lib/systemd/system/tuned.service")
    if again:
        machine.put({"etc/tuned/tuned-main.conf": f"daemon = 1\nreapply_sysctl = {again}\n"})
    boot = machine.boot()
    found = boot.value("vm.swappiness")
    if site_wins:
        assert short(found) == ("1", "/etc/sysctl.d/99-site.conf:1")
    else:
        assert why(found) == "TuneD profile site writes it too: /etc/tuned/site/tuned.conf:6"
    assert why(boot.value("net.core.somaxconn")).endswith("/usr/lib/tuned/base/tuned.conf:2")
    assert why(boot.value("vm.max_map_count")).endswith("/usr/lib/tuned/base/tuned.conf:5")


def test_s19_sysctl_conf_is_what_tuned_applies_last(machine: Machine) -> None:
    """redhat-performance/tuned#409: it beats a drop-in there, which it does not for systemd."""
    machine.put(
        {**TUNED_FILES, "etc/sysctl.d/99-site.conf": "vm.swappiness=1\n", "etc/sysctl.conf": "vm.swappiness=9\n"}
    )
    assert short(machine.value("vm.swappiness"))[0] == "1"
    machine.link("etc/systemd/system/multi-user.target.wants/tuned.service", "/usr/lib/systemd/system/tuned.service")
    assert "TuneD" in why(machine.value("vm.swappiness"))


def test_s20_what_writes_the_key_later_is_named(machine: Machine) -> None:
    """stephrobert/pavois#154: the file is right, and a network script puts the value back after it."""
    machine.put({"etc/sysctl.d/a.conf": "net.ipv4.conf.all.log_martians = 1\n"})
    assert short(machine.value("net.ipv4.conf.all.log_martians"))[0] == "1"
    script = "#!/bin/sh\n# sysctl -w vm.swappiness=1\n/sbin/sysctl -q -w net.ipv4.conf.all.log_martians=0\n"
    machine.put({"etc/network/if-up.d/router": script})
    found = why(machine.value("net.ipv4.conf.all.log_martians"))
    assert found == "a script at boot writes it too: /etc/network/if-up.d/router:3"
    assert machine.value("vm.swappiness") == Unset("no file sets it")


def test_s19_tuned_does_not_follow_the_patterns_of_a_file(machine: Machine) -> None:
    """plugin_sysctl.py: it writes the path as it stands, so that a key that only a pattern sets stays TuneD's."""
    machine.put({"etc/tuned/active_profile": "site", "etc/tuned/site/tuned.conf": "[sysctl]\nnet.core.somaxconn=2\n"})
    machine.put({"etc/sysctl.d/a.conf": "net.core.soma*=1\n"})
    machine.link("etc/systemd/system/multi-user.target.wants/tuned.service", "/usr/lib/systemd/system/tuned.service")
    assert "TuneD" in why(machine.value("net.core.somaxconn"))


# Files and masks


def test_a_file_masks_those_of_its_name(machine: Machine) -> None:
    """sysctl.d(5): also an empty one, a link to /dev/null (which no image needs to have), and one that is broken."""
    machine.put({"usr/lib/sysctl.d/a.conf": "vm.swappiness=1\n", "usr/local/lib/sysctl.d/a.conf": "vm.swappiness=2\n"})
    assert short(machine.value("vm.swappiness")) == ("2", "/usr/local/lib/sysctl.d/a.conf:1")
    machine.link("etc/sysctl.d/a.conf", "/dev/null")
    assert machine.value("vm.swappiness") == Unset("no file sets it")
    assert machine.boot().problems() == ()
    for link in ("../../dev/null", "/nowhere", "a.conf"):
        (machine.root / "etc/sysctl.d/a.conf").unlink()
        machine.link("etc/sysctl.d/a.conf", link)
        assert machine.value("vm.swappiness") == Unset("no file sets it"), link
    (machine.root / "etc/sysctl.d/a.conf").unlink()
    machine.put({"etc/sysctl.d/a.conf": ""})
    assert machine.value("vm.swappiness") == Unset("no file sets it")


def test_names_that_count(machine: Machine) -> None:
    """conf-files.c: *.conf without a leading dot; procps takes hidden files too."""
    for name in ("a.conf.bak", "a.conf~", "README", "a.CONF", ".a.conf"):
        machine.put({f"etc/sysctl.d/{name}": "vm.swappiness=1\n"})
    assert machine.value("vm.swappiness") == Unset("no file sets it")
    assert short(machine.value("vm.swappiness", PROCPS)) == ("1", "/etc/sysctl.d/.a.conf:1")


def test_sysctl_conf_without_and_with_its_link(machine: Machine) -> None:
    """Debian 12 links it from sysctl.d, Debian 13 does not; procps reads it last in both."""
    machine.put({"etc/sysctl.conf": "vm.swappiness=1\n", "etc/sysctl.d/99-zz.conf": "vm.dirty_ratio=5\n"})
    found = machine.value("vm.swappiness")
    assert isinstance(found, Unset)
    assert found.why == "set at /etc/sysctl.conf:1, which systemd-sysctl does not read"
    assert short(machine.value("vm.swappiness", PROCPS)) == ("1", "/etc/sysctl.conf:1")
    machine.link("etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")
    assert short(machine.value("vm.swappiness")) == ("1", "/etc/sysctl.d/99-sysctl.conf:1")
    machine.put({"etc/sysctl.d/99-zz.conf": "vm.swappiness=2\n"})
    assert short(machine.value("vm.swappiness")) == ("2", "/etc/sysctl.d/99-zz.conf:1")
    assert short(machine.value("vm.swappiness", PROCPS)) == ("1", "/etc/sysctl.conf:1")


def test_run_is_empty_after_a_reboot(machine: Machine) -> None:
    """What only /run decides is not promised; what it does not decide is."""
    machine.put({"run/sysctl.d/50-x.conf": "vm.swappiness=1\n", "etc/sysctl.d/a.conf": "vm.dirty_ratio=5\n"})
    boot = machine.boot()
    assert why(boot.value("vm.swappiness")).startswith("/run/sysctl.d decides it")
    assert short(boot.value("vm.dirty_ratio"))[0] == "5"
    machine.put({"etc/sysctl.d/60-y.conf": "vm.swappiness=2\n"})
    assert short(machine.value("vm.swappiness"))[0] == "2"
    machine.put({"run/sysctl.d/70-z.conf": "", "usr/lib/sysctl.d/70-z.conf": "vm.max_map_count=7\n"})
    assert why(machine.value("vm.max_map_count")).startswith("/run/sysctl.d decides it")


def test_lib_of_its_own_comes_last(machine: Machine) -> None:
    """Without merged /usr; a link /lib is /usr/lib once more."""
    machine.put({"lib/sysctl.d/a.conf": "vm.swappiness=1\n"})
    assert short(machine.value("vm.swappiness")) == ("1", "/lib/sysctl.d/a.conf:1")
    machine.put({"usr/lib/sysctl.d/a.conf": "vm.swappiness=2\n"})
    assert short(machine.value("vm.swappiness")) == ("2", "/usr/lib/sysctl.d/a.conf:1")


def test_a_credential_comes_after_all_files(machine: Machine) -> None:
    """systemd-sysctl.service(8): sysctl.extra, from the first store that has it."""
    machine.put({"etc/sysctl.d/zz.conf": "vm.swappiness=1\nnet.ipv4.conf.eth0.rp_filter=1\n"})
    extra = "vm.swappiness=3\nnet.ipv4.conf.eth0.rp_filter=0\n"
    machine.put({"etc/credstore/sysctl.extra": extra, "usr/lib/credstore/sysctl.extra": "vm.swappiness=9\n"})
    assert short(machine.value("vm.swappiness")) == ("3", "/etc/credstore/sysctl.extra:1")
    assert "not read again" in why(machine.value("net.ipv4.conf.eth0.rp_filter"))
    assert short(machine.value("vm.swappiness", PROCPS))[0] == "1"
    machine.put({"usr/lib/systemd/libsystemd-shared-247.so": ""})
    assert short(machine.value("vm.swappiness"))[0] == "1"


def test_an_encrypted_credential_is_not_guessed(machine: Machine) -> None:
    """It can set any key after all files."""
    machine.put({"etc/sysctl.d/zz.conf": "vm.swappiness=1\n", "etc/credstore.encrypted/sysctl.extra": "x"})
    assert why(machine.value("vm.swappiness")) == "/etc/credstore.encrypted/sysctl.extra is encrypted"


# Lines


@pytest.mark.parametrize(
    ("data", "systemd", "procps"),
    [
        (b"a.b = 1\r\nc.d=2\r\n", [(1, "a/b", "1"), (2, "c/d", "2")], [(1, "a/b", "1"), (2, "c/d", "2")]),
        (b"a.b=1\rc.d=2", [(1, "a/b", "1"), (2, "c/d", "2")], [(1, "a/b", "1\rc.d=2")]),
        (b"a.b=1\0c.d=2\n", [(1, "a/b", "1"), (2, "c/d", "2")], [(1, "a/b", "1")]),
        (b"\xef\xbb\xbfa.b=1\n", [(1, "\ufeffa/b", "1")], [(1, "\ufeffa/b", "1")]),
        (b"a.b=\n", [(1, "a/b", "")], [(1, "a/b", "")]),
        (b"a.b=x = y\n", [(1, "a/b", "x = y")], [(1, "a/b", "x = y")]),
        (b"a.b=1 # no comment\n", [(1, "a/b", "1 # no comment")], [(1, "a/b", "1 # no comment")]),
        (b"- a.b = 1\n- c.d\n", [(1, "a/b", "1"), (2, "c/d", None)], [(1, " a/b", "1"), (2, " c/d", None)]),
        (b"--a.b=1\n", [(1, "-a/b", "1")], [(1, "a/b", "1")]),
        (b"\va.b\f=\v1\f\n", [(1, "\va/b\f", "\v1\f")], [(1, "a/b", "1")]),
        (b"/a//b.c/=1\n", [(1, "a/b.c", "1")], [(1, "/a//b.c/", "1")]),
        (b"a..b=1\n./c/d=1\n", [(1, "a/b", "1"), (2, ".c.d", "1")], [(1, "a//b", "1"), (2, "/.c.d", "1")]),
        (b"\n\n\r\n\na.b=1", [(5, "a/b", "1")], [(5, "a/b", "1")]),
    ],
)
def test_lines(data: bytes, systemd: list[object], procps: list[object]) -> None:
    """As read_line(), strstrip() and sysctl_normalize() of systemd and as getline() and slashdot() of procps do it."""
    assert list(parse(SYSTEMD, data)) == systemd
    assert list(parse(PROCPS, data)) == procps


@pytest.mark.parametrize("applier", [SYSTEMD, PROCPS])
def test_lines_that_are_no_use_are_named(machine: Machine, applier: str) -> None:
    """A line without `=` is skipped, and those around it count."""
    machine.put({"etc/sysctl.d/a.conf": "vm.swappiness=1\nvm.dirty_ratio 5\nvm.max_map_count=9\n"})
    boot = machine.boot(applier)
    assert boot.problems() == ("/etc/sysctl.d/a.conf:2: not an assignment",)
    assert short(boot.value("vm.max_map_count"))[0] == "9"


def test_a_line_without_end(machine: Machine) -> None:
    """systemd gives a file up at a line of 1 MiB and keeps what stood before it; procps has no limit."""
    data = b"a.b=1\n" + b"#" * LONGEST + b"\nc.d=2\n"
    assert list(parse(SYSTEMD, data)) == [(1, "a/b", "1"), Junk(2, "longer than 1 MiB: systemd reads no further")]
    assert list(parse(SYSTEMD, data.replace(b"#" * 2, b"#", 1)))[1:] == [(3, "c/d", "2")]
    assert list(parse(PROCPS, data)) == [(1, "a/b", "1"), (3, "c/d", "2")]


@given(st.binary(max_size=400) | st.text("ab./*-=#; \t\v\r\n\0[]{}\\", max_size=60).map(str.encode))
@example(b"=")
@example(b"-")
@example(b"-\n=\n.=\n/=\n")
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read(data: bytes) -> None:
    """No traceback, and lines in order, whatever the file holds."""
    for applier in (SYSTEMD, PROCPS):
        numbers = [entry.number if isinstance(entry, Junk) else entry[0] for entry in parse(applier, data)]
        assert numbers == sorted(numbers)
        for entry in parse(applier, data):
            if not isinstance(entry, Junk):
                expands_to(entry[1], "a/b")
                real(entry[1])


@given(st.lists(st.text("abc0/", min_size=1, max_size=8), min_size=1, max_size=5))
@settings(deadline=None)
def test_both_forms_of_a_key_are_one_path(parts: list[str]) -> None:
    """A dotted key with its dots written as slashes, and the path itself."""
    path = "/".join(part.replace("/", ".").strip(".") or "x" for part in ["net", *parts])
    dotted = ".".join(part.replace(".", "/") for part in path.split("/"))
    assert path_of(dotted) == path == path_of(path)


PATTERNS = [
    ("net/ipv4/conf/*/rp_filter", "net/ipv4/conf/all/rp_filter", True),
    ("net/ipv4/conf/*/rp_filter", "net/ipv4/conf/all/x/rp_filter", False),
    ("net/ipv4/*/rp_filter", "net/ipv4/conf/all/rp_filter", False),
    ("net/ipv4/conf/eth?/rp_filter", "net/ipv4/conf/eth0/rp_filter", True),
    ("net/ipv4/conf/eth?/rp_filter", "net/ipv4/conf/eth10/rp_filter", False),
    ("net/ipv4/conf/[!e]*/x", "net/ipv4/conf/eth0/x", False),
    ("net/ipv4/conf/[^e]*/x", "net/ipv4/conf/lo/x", True),
    ("net/ipv4/conf/bond*/x", "net/ipv4/conf/bond0.10/x", True),
    ("net/ipv4/conf/[lo/x", "net/ipv4/conf/[lo/x", True),
]


@pytest.mark.parametrize(("pattern", "key", "matches"), PATTERNS)
def test_patterns_are_of_components(pattern: str, key: str, matches: bool) -> None:
    """glob(7): a wildcard never stands for a slash."""
    assert (expands_to(pattern, key) == key) is matches


def test_a_pattern_that_is_not_followed_is_said(machine: Machine) -> None:
    """Braces, escapes and classes; keys that they cannot match stay predicted, and so does an explicit one."""
    machine.put({"etc/sysctl.d/a.conf": "net.ipv4.conf.{all,lo}*.rp_filter=1\nnet.ipv4.conf.eth0.log_martians=3\n"})
    boot = machine.boot()
    assert "not followed here" in why(boot.value("net.ipv4.conf.all.rp_filter"))
    assert "not followed here" in why(boot.value("net.ipv4.conf.eth0.rp_filter"))
    assert short(boot.value("net.ipv4.conf.eth0.log_martians"))[0] == "3"
    assert boot.value("vm.swappiness") == Unset("no file sets it")


def test_an_excluded_pattern_only_drops_its_own_text(machine: Machine) -> None:
    """With systemd `-PATTERN` replaces that very pattern; it keeps no other one off. procps: since 4.0.5."""
    text = "net.ipv4.tcp_keepalive_*=1\n-net.ipv4.tcp_*\n-net.core.soma*\nnet.core.soma*=1\n"
    machine.put({"etc/sysctl.d/a.conf": text})
    assert short(machine.value("net.ipv4.tcp_keepalive_time")) == ("1", "/etc/sysctl.d/a.conf:1")
    assert "4.0.5" in why(machine.value("net.ipv4.tcp_keepalive_time", PROCPS))
    assert short(machine.value("net.core.somaxconn"))[0] == "1"


def test_procps_is_kept_off_a_key_by_the_text_of_its_path(machine: Machine) -> None:
    """settinglist_findpath() compares text: a doubled slash makes another name of the same file."""
    machine.put({"etc/sysctl.d/a.conf": "net//ipv4/tcp_keepalive_time=1\nnet.ipv4.tcp_keepalive_*=2\n"})
    assert short(machine.value("net.ipv4.tcp_keepalive_time"))[0] == "1"
    assert short(machine.value("net.ipv4.tcp_keepalive_time", PROCPS))[0] == "2"
    machine.put({"etc/sysctl.d/a.conf": "net/ipv4/tcp_keepalive_time=1\nnet.ipv4.tcp_keepalive_*=2\n"})
    assert short(machine.value("net.ipv4.tcp_keepalive_time", PROCPS))[0] == "1"


# What cannot be known


class Closed(Host):
    """A host whose files are not all for us."""

    closed: tuple[str, ...] = ()

    def read(self, path: str) -> bytes:
        """Refuses what is closed."""
        if path in self.closed:
            raise PermissionError(13, "Permission denied", path)
        return super().read(path)

    def list(self, path: str) -> list[str]:
        """Refuses what is closed."""
        if path in self.closed:
            raise PermissionError(13, "Permission denied", path)
        return super().list(path)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """Refuses what lies in a closed directory."""
        if any(path.startswith(f"{folder}/") for folder in self.closed):
            raise PermissionError(13, "Permission denied", path)
        return super().stat(path, follow)


def test_a_file_that_we_may_not_read_hides_what_later_files_do_not_settle(machine: Machine) -> None:
    """A key that a later file sets is known all the same; a pattern is not, since the file may exclude the key."""
    machine.put({"etc/sysctl.d/10-a.conf": "vm.dirty_ratio=5\n", "etc/sysctl.d/50-secret.conf": "kernel.panic=1\n"})
    machine.put({"etc/sysctl.d/90-z.conf": "vm.swappiness=1\nnet.ipv4.tcp_keepalive_*=9\n"})
    host = Closed(str(machine.root), "image", "made", "")
    host.closed = ("/etc/sysctl.d/50-secret.conf",)
    boot = predict(host)
    assert short(boot.value("vm.swappiness"))[0] == "1"
    for key in ("vm.dirty_ratio", "vm.max_map_count", "net.ipv4.tcp_keepalive_time"):
        assert why(boot.value(key)) == "/etc/sysctl.d/50-secret.conf cannot be read (Permission denied)"
    host.closed = ("/etc/sysctl.d",)
    assert why(predict(host).value("vm.swappiness")) == "/etc/sysctl.d cannot be read (Permission denied)"


def test_an_exclusion_after_a_hidden_file_settles_the_key_for_systemd_alone(machine: Machine) -> None:
    """systemd lets `-KEY` replace an assignment; procps writes the assignment all the same."""
    machine.put({"etc/sysctl.d/50-secret.conf": "", "etc/sysctl.d/90-z.conf": "-net.core.somaxconn\n"})
    host = Closed(str(machine.root), "image", "made", "")
    host.closed = ("/etc/sysctl.d/50-secret.conf",)
    assert isinstance(predict(host, SYSTEMD).value("net.core.somaxconn"), Unset)
    assert "50-secret.conf cannot be read" in why(predict(host, PROCPS).value("net.core.somaxconn"))


def test_a_store_of_credentials_for_root_alone_is_taken_as_empty_and_said(machine: Machine) -> None:
    """Debian 13 makes /etc/credstore for root: a plan without root is still worth something."""
    machine.put({"etc/sysctl.d/a.conf": "vm.swappiness=1\n", "etc/credstore/x": ""})
    host = Closed(str(machine.root), "image", "made", "")
    host.closed = ("/etc/credstore",)
    boot = predict(host)
    assert short(boot.value("vm.swappiness"))[0] == "1"
    assert boot.problems() == ("/etc/credstore is open to root alone: taken as without sysctl.extra",)


def test_what_is_no_file_neither_hangs_nor_ends_it(machine: Machine) -> None:
    """A directory and a socket hold nothing; at a pipe systemd itself waits until it is killed."""
    machine.put({"etc/sysctl.d/a.conf": "vm.swappiness=1\n"})
    (machine.root / "etc/sysctl.d/d.conf").mkdir()
    with socket.socket(socket.AF_UNIX) as end:
        here = Path.cwd()
        os.chdir(machine.root / "etc/sysctl.d")
        end.bind("s.conf")
        os.chdir(here)
    machine.link("etc/sysctl.d/loop.conf", "loop.conf")
    boot = machine.boot()
    assert short(boot.value("vm.swappiness"))[0] == "1"
    assert set(boot.problems()) == {
        "/etc/sysctl.d/d.conf: not a file",
        "/etc/sysctl.d/s.conf: not a file",
        "/etc/sysctl.d/loop.conf: Too many levels of symbolic links",
    }
    os.mkfifo(machine.root / "etc/sysctl.d/0.conf")
    assert "waits there until it is killed" in why(machine.value("vm.swappiness"))


def test_a_huge_file_is_not_read_to_its_end(machine: Machine) -> None:
    """50 MB in a drop-in: what later files set is known, the rest is not."""
    machine.put({"etc/sysctl.d/50-huge.conf": "", "etc/sysctl.d/90-z.conf": "vm.swappiness=1\n"})
    os.truncate(machine.root / "etc/sysctl.d/50-huge.conf", 50_000_000)
    boot = machine.boot()
    assert short(boot.value("vm.swappiness"))[0] == "1"
    assert why(boot.value("vm.dirty_ratio")) == "/etc/sysctl.d/50-huge.conf is larger than what is read here"


def test_directories_that_are_none(machine: Machine) -> None:
    """A file, a loop and a broken link in a directory's place: the applier goes on without them, and so do we."""
    machine.put({"etc/sysctl.d": "x", "usr/lib/sysctl.d/a.conf": "vm.swappiness=1\n"})
    machine.link("run/sysctl.d", "sysctl.d")
    machine.link("usr/local/lib/sysctl.d", "/nowhere")
    assert short(machine.value("vm.swappiness"))[0] == "1"


def test_an_old_systemd_has_no_patterns(machine: Machine) -> None:
    """They came with 245, and a vendor may have patched them into an older one."""
    machine.put(
        {"etc/sysctl.d/a.conf": "net.ipv4.tcp_keepalive_*=1\nvm.swappiness=1\nvm.dirty_ratio=1\n-vm.dirty_ratio\n"}
    )
    machine.put({"usr/lib/systemd/libsystemd-shared-239.so": ""})
    boot = machine.boot()
    assert boot.applier.version == 239
    assert short(boot.value("vm.swappiness"))[0] == "1"
    assert "since systemd 245, this is systemd 239" in why(boot.value("net.ipv4.tcp_keepalive_time"))
    assert "since systemd 245" in why(boot.value("vm.dirty_ratio"))


# Appliers


def test_the_unit_decides(machine: Machine) -> None:
    """Masked, missing, or changed by a drop-in: nothing is promised. Another drop-in is none of that."""
    machine.put({"etc/sysctl.d/a.conf": "vm.swappiness=1\n"})
    drop_in = "etc/systemd/system/systemd-sysctl.service.d/site.conf"
    machine.put({drop_in: "[Unit]\nAfter=site.service\n"})
    assert short(machine.value("vm.swappiness"))[0] == "1"
    machine.put({drop_in: "[Service]\nExecStart=\nExecStart=/opt/sysctl\n"})
    assert why(machine.value("vm.swappiness")) == (
        f"boot order not known: /{drop_in} changes what systemd-sysctl.service does"
    )
    machine.link("etc/systemd/system/systemd-sysctl.service", "/dev/null")
    assert why(machine.value("vm.swappiness")) == (
        "systemd-sysctl.service is masked (/etc/systemd/system/systemd-sysctl.service): nobody is known to apply sysctl"
        " files"
    )
    (machine.root / "etc/systemd/system/systemd-sysctl.service").unlink()
    (machine.root / UNIT).unlink()
    assert why(machine.value("vm.swappiness")) == "boot order not known: no systemd-sysctl.service here"


def test_the_recorded_host(root: Path) -> None:
    """plain-vm is a Debian 12: the vendor's files and the link to sysctl.conf."""
    host = open_host(str(root))
    boot = predict(host)
    assert boot.applier.name == SYSTEMD
    assert short(boot.value("kernel.pid_max")) == ("4194304", "/usr/lib/sysctl.d/50-pid-max.conf:16")
    assert boot.value("vm.swappiness") == Unset("no file sets it")
    (root / "etc/sysctl.conf").write_text("vm.swappiness=7\n")
    assert short(predict(host).value("vm.swappiness")) == ("7", "/etc/sysctl.d/99-sysctl.conf:1")


def test_a_recorded_host_without_the_files(copy_host: Callable[..., Path]) -> None:
    """What nobody recorded is no empty directory."""
    root = copy_host()
    manifest = root / ".tuner-host/manifest"
    lines = manifest.read_text().split("absent /run/sysctl.d\n")
    assert len(lines) == 2
    manifest.write_text("".join(lines))
    assert why(predict(open_host(str(root))).value("vm.swappiness")) == "/run/sysctl.d is not recorded"


# Keys that move each other, and keys that come late


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("vm.dirty_bytes", "vm.dirty_ratio"),
        ("net.ipv4.conf.all.forwarding", "net.ipv4.ip_forward"),
        ("net.ipv4.conf.lo.forwarding", "net.ipv4.ip_forward"),
        ("net.ipv4.conf.all.accept_redirects", "net.ipv4.ip_forward"),
        ("net.ipv6.conf.lo.disable_ipv6", "net.ipv6.conf.all.disable_ipv6"),
    ],
)
def test_a_key_that_is_moved_afterwards_is_not_predicted(machine: Machine, first: str, second: str) -> None:
    """vm.rst, ip-sysctl.rst: the later write of the other key changes it; written last, it is predicted."""
    machine.put({"etc/sysctl.d/a.conf": f"{first}=0\n{second}=1\n"})
    assert why(machine.value(first)).endswith("is written after it, at /etc/sysctl.d/a.conf:2, and changes it")
    machine.put({"etc/sysctl.d/a.conf": f"{second}=1\n"})
    assert why(machine.value(first)).endswith("set at /etc/sysctl.d/a.conf:1, changes it as well")
    machine.put({"etc/sysctl.d/a.conf": f"{second}=1\n{first}=0\n"})
    assert short(machine.value(first)) == ("0", "/etc/sysctl.d/a.conf:2")


def test_an_interface_starts_with_the_default(machine: Machine) -> None:
    """devinet.c: a key of an interface that no line names is a copy of `default`, now or when the interface comes."""
    machine.put({"etc/sysctl.d/a.conf": "net.ipv4.conf.default.rp_filter=2\n"})
    assert "net.ipv4.conf.default.rp_filter" in why(machine.value("net.ipv4.conf.eth0.rp_filter"))
    assert machine.value("net.ipv4.conf.all.rp_filter") == Unset("no file sets it")


def test_default_is_copied_to_an_interface_that_was_not_written(machine: Machine) -> None:
    """systemd skips the write of what the key holds already; another value of `default` afterwards then reaches it."""
    machine.put({"etc/sysctl.d/a.conf": "net.ipv4.conf.lo.rp_filter=0\nnet.ipv4.conf.default.rp_filter=2\n"})
    assert "net.ipv4.conf.default.rp_filter is written after it" in why(machine.value("net.ipv4.conf.lo.rp_filter"))
    machine.put({"etc/sysctl.d/a.conf": "net.ipv4.conf.lo.rp_filter=2\nnet.ipv4.conf.default.rp_filter=2\n"})
    assert short(machine.value("net.ipv4.conf.lo.rp_filter"))[0] == "2"
    machine.put({"etc/sysctl.d/a.conf": "net.ipv6.conf.lo.accept_ra=0\nnet.ipv6.conf.default.accept_ra=2\n"})
    assert short(machine.value("net.ipv6.conf.lo.accept_ra"))[0] == "0"


def test_keys_of_modules_are_late_unless_the_module_is_early(machine: Machine) -> None:
    """systemd/systemd#1113: systemd-sysctl runs after systemd-modules-load and before almost everything else."""
    machine.put({"etc/sysctl.d/a.conf": "net.netfilter.nf_conntrack_max=9\nnet.bridge.bridge-nf-call-iptables=0\n"})
    found = machine.value("net.netfilter.nf_conntrack_max")
    assert isinstance(found, Written)
    assert found.late == "only if module nf_conntrack is loaded before: name it in /etc/modules-load.d"
    machine.put({"etc/modules-load.d/x.conf": "# site\nnf_conntrack\nbr-netfilter\n"})
    for key in ("net.netfilter.nf_conntrack_max", "net.bridge.bridge-nf-call-iptables"):
        found = machine.value(key)
        assert isinstance(found, Written)
        assert found.late == ""


# Others


@pytest.mark.parametrize(
    ("path", "text", "key"),
    [
        ("etc/rc.local", "#!/bin/sh\necho 5 > /proc/sys/vm/swappiness\n", "vm.swappiness"),
        ("etc/rc.local", "#!/bin/sh\necho 5 | tee /proc/sys/vm/swappiness\n", "vm.swappiness"),
        ("etc/NetworkManager/dispatcher.d/10-x", "#!/bin/sh\nsysctl -w vm.swappiness=5 x=1\n", "vm.swappiness"),
        ("etc/cloud/cloud.cfg.d/9.cfg", "runcmd:\n - [sysctl, -w, vm.swappiness=5]\n", "vm.swappiness"),
        (
            "etc/network/interfaces",
            "iface eth0\n up sysctl -w net.ipv4.conf.$IFACE.x=1 vm.swappiness = 5\n",
            "vm.swappiness",
        ),
        ("etc/infiniband/openib.conf", "ONBOOT=yes\nRUN_SYSCTL=yes\n", "net.core.rmem_max"),
        ("proc/cmdline", "BOOT_IMAGE=/x quiet sysctl.vm.swappiness=5 ro\n", "vm.swappiness"),
    ],
)
def test_others_are_named_with_their_file(machine: Machine, path: str, text: str, key: str) -> None:
    """Scripts, cloud-init, openibd and the boot line; another key stays predicted."""
    machine.put({path: text})
    assert f"/{path}" in why(machine.value(key))
    assert machine.value("kernel.sysrq") == Unset("no file sets it")


def test_files_win_over_the_boot_line(machine: Machine) -> None:
    """kernel-parameters.txt: sysctl.* is set before user space starts, so that a file overrides it."""
    machine.put({"proc/cmdline": "sysctl.vm.swappiness=5\n", "etc/sysctl.d/a.conf": "vm.swappiness=1\n"})
    assert short(machine.value("vm.swappiness"))[0] == "1"


def test_others_that_do_not_count(machine: Machine) -> None:
    """A comment, a mere name of the directory, RUN_SYSCTL=no, a service and a TuneD that nothing starts."""
    service = "[Service]\nExecStart=/sbin/sysctl -w vm.swappiness=1\n"
    machine.put({"etc/rc.local": "# sysctl -w vm.swappiness=1\ncp x /etc/sysctl.d/\n", **TUNED_FILES})
    machine.put({"etc/infiniband/openib.conf": "RUN_SYSCTL=no\n", "etc/systemd/system/x.service": service})
    assert machine.boot().owners == ()
    machine.link("etc/systemd/system/multi-user.target.wants/x.service", "../x.service")
    assert [owner.where for owner in machine.boot().owners] == ["/etc/systemd/system/x.service:2"]
    assert "a service writes it too" in why(machine.value("vm.swappiness"))


def test_a_caller_of_sysctl_whose_keys_are_not_told(machine: Machine) -> None:
    """`sysctl --system` in a script: named among the owners, without keys."""
    machine.put({"etc/rc.local": "#!/bin/sh\nsysctl --system\n", "etc/sysctl.d/a.conf": "vm.swappiness=1\n"})
    boot = machine.boot()
    assert [(owner.where, owner.keys) for owner in boot.owners] == [("/etc/rc.local:2", ())]
    assert short(boot.value("vm.swappiness"))[0] == "1"


def test_numad(machine: Machine) -> None:
    """numad(8) overrides the kernel's NUMA balancing."""
    machine.put({"etc/sysctl.d/a.conf": "kernel.numa_balancing=0\n"})
    machine.link("etc/systemd/system/multi-user.target.wants/numad.service", "/usr/lib/systemd/system/numad.service")
    assert "numad writes it too" in why(machine.value("kernel.numa_balancing"))


def test_two_boots_of_one_host_are_equal(machine: Machine) -> None:
    """A prediction is a value: nothing in it depends on when it was made."""
    machine.put({"etc/sysctl.d/a.conf": "vm.swappiness=1\n"})
    assert machine.boot() == machine.boot() == replace(machine.boot())
