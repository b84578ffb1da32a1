"""What the system is told after files changed: which file asks for what, and that only a live host is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.host import Host, after, open_host
from tuner.host.shell import Ran


@pytest.mark.parametrize(
    ("path", "action"),
    [
        ("/etc/systemd/system/slurmd.service.d/99-tuner.conf", "daemon-reload"),
        ("/etc/default/grub.d/zz-tuner.cfg", "update-grub"),
        ("/etc/default/grub", ""),
        ("/etc/modprobe.d/zz-tuner.conf", ""),
        ("/etc/sysctl.d/99-zz-tuner.conf", ""),
    ],
)
def test_which_file_asks_for_what(path: str, action: str) -> None:
    """/etc/default/grub is no file of ours: whoever names it in a profile makes the menu again himself."""
    assert after.for_file(path) == action


@pytest.mark.parametrize("action", sorted(after.ACTIONS))
def test_a_copied_host_is_never_told(root: Path, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], timeout: float) -> Ran:
        raise AssertionError(argv)

    monkeypatch.setattr(after, "run", run)
    done, why = after.act(open_host(str(root)), action)
    assert not done
    assert why == f"still to do on the host itself: {' '.join(after.ACTIONS[action])}"


@pytest.mark.parametrize(("failure", "done"), [("", True), ("grub-mkconfig ended with 1: x", False)])
def test_a_live_host_is_told(tmp_path: Path, failure: str, done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By programs that are found in the system's own folders; what fails leaves the former menu."""
    config = tmp_path / after.GRUB_CONFIG[1:]
    config.parent.mkdir(parents=True)
    (tmp_path / "run").mkdir()
    config.write_text("linux /former\n")
    calls: list[list[str]] = []

    def run(argv: list[str], timeout: float) -> Ran:
        calls.append(argv[2:])
        made = tmp_path / after.MADE[1:]
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("linux /new\n")
        return Ran(0, "", "", failure)

    monkeypatch.setattr(after, "run", run)
    found = after.act(Host(str(tmp_path), "live", "node", "6.8.0"), "update-grub")
    assert found == (done, "" if done else f"GRUB's menu is as it was: {failure}")
    assert config.read_text() == ("linux /new\n" if done else "linux /former\n")
    assert calls[0] == ["grub-mkconfig", "-o", after.MADE]
    assert calls[1:] == ([["grub-script-check", after.MADE]] if done else [])
    assert not (tmp_path / after.MADE[1:]).exists()
