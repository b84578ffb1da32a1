"""Asking a host: an answer, or one line why there is none; an exit code is a remark."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.probes.test_outputs import HERE, text_of
from tuner.host import Host, manifest, open_host
from tuner.host.manifest import Entry
from tuner.probes import Heard, NotMeasured, ParseError, Probe, ask, nvidia_smi, nvidia_topo, rocm_smi
from tuner.sim import store

ALL = Probe(("rocm-smi", "-a"), rocm_smi.parse_log)


def recorded(where: Path, entries: dict[str, Entry]) -> Host:
    """A recorded host whose commands are these."""
    about = {"/.tuner-host/host.yaml": Entry("file", 0o644, b"name: small\nkernel: 6.8.0\n")}
    made = {**about, **{f"/.tuner-host/cmd/{words}": entry for words, entry in entries.items()}}
    (where / "a.host").write_text(manifest.render(made), encoding="utf-8")
    store.copy(where / "a.host", str(where / "root"), [])
    return open_host(str(where / "root"))


def said(code: int, text: str) -> Entry:
    return Entry("file", 0o644, f"exit {code}\n{text}".encode())


def test_good_sections_of_a_call_that_failed_are_used(tmp_path: Path) -> None:
    """ROCm/rocm_smi_lib#74: one query that is not supported makes the whole call exit 2."""
    text = text_of(HERE / "outputs" / "rocm_smi_07_errors_inline_rc2.txt")
    found = ask(recorded(tmp_path, {"rocm-smi -a": said(2, text + "GPU[0]\t\t: PCI Bus: 0000:05:00.0\n")}), ALL)
    assert isinstance(found, Heard)
    assert found.code == 2
    assert found.value.unsupported == ((0, "ras"), (0, "od volt"), (1, "od volt"))
    assert found.value.named("pci bus") == {0: "0000:05:00.0"}


@pytest.mark.parametrize(("entry", "kind", "why"), [
    (None, "unrecorded", "nvidia-smi topo -m: not recorded"),
    (Entry("absent"), "missing", "nvidia-smi cannot be started: No such file or directory"),
    (Entry("errno", errno=errno.ETIMEDOUT), "hung", "nvidia-smi did not end within its time and was killed"),
    (Entry("errno", errno=errno.EACCES), "refused", "nvidia-smi topo -m: Permission denied"),
    (said(0, ""), "refused", "nvidia-smi topo -m: no output"),
    (said(6, "No devices were found\n"), "refused", "nvidia-smi topo -m: driver: No devices were found (exit 6)"),
    (said(4, "Insufficient Permissions\n"), "refused",
     "nvidia-smi topo -m: permission: Insufficient Permissions (exit 4)"),
])  # fmt: skip
def test_no_answer_is_one_line(tmp_path: Path, entry: Entry | None, kind: str, why: str) -> None:
    host = recorded(tmp_path, {"nvidia-smi topo -m": entry} if entry else {})
    assert ask(host, nvidia_topo.MATRIX) == NotMeasured(why, kind)


def live(where: Path, text: str) -> tuple[Host, Probe[dict[int, str]]]:
    """A probe of a script of these shell lines, and a live host."""
    path = where / "tool"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return Host("/", "live", "x", "6.8.0"), Probe((str(path),), nvidia_smi.parse_addresses, 0.5)


def test_a_live_tool_is_read(tmp_path: Path) -> None:
    host, probe = live(tmp_path, "echo '1, 00000000:1B:00.0'; echo '0, 00000000:9B:00.0'")
    assert ask(host, probe) == Heard({1: "0000:1b:00.0", 0: "0000:9b:00.0"}, 0)


def test_what_it_says_to_stderr_is_the_reason(tmp_path: Path) -> None:
    host, probe = live(tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18")
    found = ask(host, probe)
    assert isinstance(found, NotMeasured)
    assert found.why.endswith("driver: Failed to initialize NVML: Driver/library version mismatch (exit 18)")


@pytest.mark.parametrize(("text", "kind"), [("echo '0, 00000000:9B:00.0'; sleep 30", "hung"), (None, "missing")])
def test_half_an_answer_of_a_tool_that_was_killed_is_none(tmp_path: Path, text: str | None, kind: str) -> None:
    host, probe = live(tmp_path, text or "")
    found = ask(host, probe if text else Probe((str(tmp_path / "none"),), probe.parse))
    assert isinstance(found, NotMeasured)
    assert found.kind == kind


def test_an_image_runs_nothing(tmp_path: Path) -> None:
    found = ask(Host(str(tmp_path), "image", "x", ""), nvidia_topo.MATRIX)
    assert isinstance(found, NotMeasured)
    assert found.kind == "missing"


def test_a_parse_error_has_its_kind() -> None:
    with pytest.raises(ParseError) as caught:
        nvidia_topo.parse_topo("usage: nvidia-smi topo [...]\n")
    assert caught.value.kind == "usage"
