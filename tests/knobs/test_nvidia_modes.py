"""Persistence, power limit, ECC, MIG and compute mode of NVIDIA GPUs: values, writes, guards, and the next boot.

NVML API Reference; NVIDIA Driver Persistence and nvidia-persistenced(1); limits of an A100-SXM4-40GB (100..400 W):
NVIDIA/nvidia-docker#1648. MIG over reboots: NVIDIA Multi-Instance GPU User Guide, Deployment Considerations.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Result, write_profile
from tests.knobs.nvidia_host import GPU, Build, answers, let
from tuner.boot.boots import Boots
from tuner.errors import BadValue, Refused
from tuner.host.recorded import RecordedHost
from tuner.knobs import BY_NAME, number_of
from tuner.knobs.base import Knob
from tuner.knobs.nvidia_modes import HINDERED, ComputeMode, Ecc, Mig, Persistence
from tuner.knobs.nvidia_power import PowerLimit
from tuner.model import Absent, Seen, Setting, Unreadable, Want, aim, met

POWER, ECC, MIG, COMPUTE, KEEP = PowerLimit(), Ecc(), Mig(), ComputeMode(), Persistence()
PENDING = pytest.mark.parametrize("knob", [ECC, MIG], ids=["ecc", "mig"])


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(...) -> a recorded host with an A100."""
    return Build(tmp_path)


def rule(words: str) -> str:
    """A kernel.yaml in which the GPU answers so."""
    return f"rules:\n  /.tuner-host/nvml/{GPU}/*: {{is: nvidia, {words}}}\n"


def seen(host: RecordedHost, knob: Knob) -> Any:
    """What is read; anything but a value fails."""
    found = knob.read(host, GPU)
    assert isinstance(found, Seen), found
    return found.value


# --- words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knob", "words"),
    [(KEEP, ("enabled", "disabled")), (COMPUTE, ("default", "exclusive_process", "prohibited"))],
    ids=["persistence", "compute_mode"],
)
def test_a_mode_is_written_and_read(build: Build, knob: Knob, words: tuple[str, ...]) -> None:
    """From every word to every word."""
    host = build()
    for first in words:
        for then in words:
            knob.write(host, GPU, knob.parse(GPU, first))
            knob.write(host, GPU, knob.parse(GPU, then))
            assert seen(host, knob) == then
    wrong: list[Any] = ["Enabled", "on", "1", "exclusive_thread", "", None, ["default"], {"mode": "default"}]
    for raw in wrong:
        with pytest.raises(BadValue):
            knob.parse(GPU, raw)


@pytest.mark.parametrize(
    ("knob", "value"),
    [(KEEP, "enabled"), (COMPUTE, "default"), (POWER, {"limit": 400, "enforced": 400}),
     (ECC, {"current": "enabled", "pending": "enabled"}), (MIG, {"current": "disabled", "pending": "disabled"})],
)  # fmt: skip
def test_what_was_read_is_not_set_again(build: Build, monkeypatch: pytest.MonkeyPatch, knob: Knob, value: Any) -> None:
    """Compared first."""
    host = build()
    assert seen(host, knob) == value

    def refuse(*_: Any) -> None:
        raise AssertionError("set")

    monkeypatch.setattr(type(host.nvml), "set", refuse)
    knob.write(host, GPU, value)


def test_what_each_disturbs_and_the_order_of_writing() -> None:
    """Persistence first: without it the driver forgets what is set next."""
    classes = {knob.name: knob.disruption(GPU) for knob in (KEEP, COMPUTE, POWER, ECC, MIG)}
    assert classes == {
        "nvidia.persistence": "none",
        "nvidia.compute_mode": "app",
        "nvidia.power_limit": "clocks",
        "nvidia.ecc": "gpu",
        "nvidia.mig": "gpu",
    }
    order = ["nvidia.persistence", "nvidia.mem_clocks", "nvidia.gpu_clocks"]
    assert sorted(order, key=number_of) == order


# --- power --------------------------------------------------------------------------------------------------------


def test_the_limit_is_in_watts(build: Build) -> None:
    """NVML has mW; a fraction stays exact."""
    host = build()
    assert seen(host, POWER) == {"limit": 400, "enforced": 400}
    POWER.write(host, GPU, {"limit": 350, "enforced": 400})
    assert answers(host, "power") == {"limit": 350000, "enforced": 350000, "min": 100000, "max": 400000,
                                      "default": 400000}  # fmt: skip
    let(host, "power", {**answers(host, "power"), "limit": 349500, "enforced": 349500})
    before = seen(host, POWER)
    assert before == {"limit": "349.5", "enforced": "349.5"}
    POWER.write(host, GPU, {**before, "limit": 300})
    POWER.write(host, GPU, before)
    assert answers(host, "power")["limit"] == 349500


@pytest.mark.parametrize(
    ("raw", "limit"), [("400", 400), (" 400 ", 400), ("349.5", "349.5"), ("400.000", 400), ({"limit": "300"}, 300),
                     ("default", "default"), ({"limit": "default"}, "default")],
)  # fmt: skip
def test_watts_as_profiles_write_them(raw: Any, limit: Any) -> None:
    """A scalar names the limit."""
    assert POWER.parse(GPU, raw) == {"limit": limit}


def test_a_limit_that_the_driver_would_forget_is_not_tried(build: Build) -> None:
    """Without persistence mode it is gone with the last client, and we are one; the default is what comes then."""
    host = build(persistence="disabled")
    with pytest.raises(Refused, match="persistence mode is off"):
        POWER.write(host, GPU, {"limit": 350})
    assert answers(host, "power")["limit"] == 400000
    let(host, "power", {**answers(host, "power"), "limit": 350000, "enforced": 350000})
    POWER.write(host, GPU, {"limit": 350})
    POWER.write(host, GPU, {"limit": 400})
    assert answers(host, "power")["limit"] == 400000


def test_what_a_write_of_a_pending_mode_leaves_to_do_is_said() -> None:
    for knob in (ECC, MIG):
        assert "reset" in knob.note({"current": "enabled", "pending": "enabled"}, {"pending": "disabled"}, GPU)


@pytest.mark.parametrize(
    "raw", ["", "Default", "0400", "400W", "4e2", "-1", "0x190", "1000000", "1.2345", None, [], {}, {"enforced": "400"},
            {"limit": "400", "enforced": "400"}, {"limit": None}],
)  # fmt: skip
def test_what_is_no_power_limit(raw: Any) -> None:
    """What is enforced cannot be wanted."""
    with pytest.raises(BadValue):
        POWER.parse(GPU, raw)


@settings(max_examples=60, deadline=None)
@given(milliwatts=st.integers(0, 99_999_999))
def test_bounds_are_those_of_the_device(tmp_path_factory: pytest.TempPathFactory, milliwatts: int) -> None:
    """Inside they pass, exactly; outside both bounds and the default are named."""
    host = Shared.of(tmp_path_factory)
    value = POWER.parse(GPU, f"{milliwatts // 1000}.{milliwatts % 1000:03}")
    if 100_000 <= milliwatts <= 400_000:
        assert POWER.normalise(host, GPU, value) == value
        POWER.write(host, GPU, value)
        assert answers(host, "power")["limit"] == milliwatts
        assert met(Want("value", value), seen(host, POWER), POWER.key) == "ok"
        return
    with pytest.raises(BadValue, match="out of range") as wrong:
        POWER.normalise(host, GPU, value)
    assert wrong.value.hint == "this GPU takes 100..400 W, default 400"


class Shared:
    """One host for all examples of a property."""

    host: RecordedHost | None = None

    @classmethod
    def of(cls, factory: pytest.TempPathFactory) -> RecordedHost:
        """Made at the first call."""
        cls.host = cls.host or Build(factory.mktemp("power"))()
        return cls.host


@pytest.mark.parametrize(
    ("kind", "bound", "state"),
    [("at_least", 350, "raised"), ("at_least", 400, "ok"), ("at_most", 400, "ok"), ("at_most", 350, "drift")],
)
def test_bounds_of_a_want(build: Build, kind: Any, bound: int, state: str) -> None:
    """Numbers compare, whatever has a fraction."""
    host = build()
    want = Want(kind, {"limit": bound})
    assert met(want, seen(host, POWER), POWER.key) == state
    let(host, "power", {**answers(host, "power"), "limit": 399999})
    assert met(Want("at_least", {"limit": 399}), seen(host, POWER), POWER.key) == "raised"
    POWER.write(host, GPU, aim(want, seen(host, POWER), POWER.key))
    assert met(want, seen(host, POWER), POWER.key) in ("ok", "raised")


def test_less_may_be_enforced_than_the_limit_says(build: Build) -> None:
    """Out-of-band limits: a remark, never a drift, and no hindrance to undo."""
    host = build(rule("enforced: 320000"))
    POWER.write(host, GPU, {"limit": 350})
    now = seen(host, POWER)
    assert now == {"limit": 350, "enforced": 320}
    assert met(Want("value", {"limit": 350}), now, POWER.key) == "ok"
    assert "only 320 W are enforced" in POWER.remark(host, GPU, now)
    assert POWER.restored({"limit": 350, "enforced": 350}, now)
    assert not POWER.restored({"limit": 400, "enforced": 400}, now)
    assert POWER.remark(host, GPU, {"limit": 350, "enforced": 350}) == ""
    assert POWER.remark(host, GPU, {"limit": 350, "enforced": None}) == ""


def test_a_part_that_is_null(build: Build) -> None:
    """Without a limit there is none; without bounds the driver decides."""
    power = {"limit": 400000, "enforced": None, "min": None, "max": None, "default": None}
    host = build(power=power)
    assert seen(host, POWER) == {"limit": 400, "enforced": None}
    assert POWER.normalise(host, GPU, {"limit": 9999}) == {"limit": 9999}
    assert POWER.read(build(power={**power, "limit": None}), GPU) == Absent("this GPU does not support it")


@pytest.mark.parametrize(("usual", "watts"), [(400_000, 400), (550_000, 550), (700_000, 700), (349_500, "349.5")])
def test_default_is_that_of_the_device(build: Build, usual: int, watts: Any) -> None:
    """Boards of one name differ: an H800 has 550 or 700 W."""
    host = build(power={"limit": 300000, "enforced": 300000, "min": 200000, "max": 700000, "default": usual})
    before = seen(host, POWER)
    value = POWER.normalise(host, GPU, POWER.parse(GPU, "default"))
    assert value == {"limit": watts}
    assert met(Want("value", value), before, POWER.key) == "drift"
    POWER.write(host, GPU, aim(Want("value", value), before, POWER.key))
    assert met(Want("value", value), seen(host, POWER), POWER.key) == "ok"
    POWER.write(host, GPU, before)
    assert seen(host, POWER) == before


def test_no_default_is_no_answer(build: Build, tmp_path: Path, tuner: Callable[..., Result]) -> None:
    """NVML gives none: unknown, and nothing is written."""
    host = build(power={"limit": 300000, "enforced": 300000, "min": 100000, "max": 400000, "default": None})
    profile = write_profile(tmp_path / "p.yaml", 'nvidia.power_limit:\n  "*": default')
    plan = tuner("plan", "--profile", profile, "--root", host.root, "--allow", "all", "--json").document
    assert [row["state"] for row in plan["verdicts"]] == ["unknown"]
    assert plan["changes"] == []


def test_a_bound_is_a_number(build: Build, tmp_path: Path, tuner: Callable[..., Result]) -> None:
    """`default` is no bound; among several it is a choice like any other."""
    host = build()
    wrong = write_profile(tmp_path / "w.yaml", 'nvidia.power_limit:\n  "*": {at_least: default}')
    result = tuner("plan", "--profile", wrong, "--root", host.root)
    assert result.code == 64 and "at_least needs a number" in result.err
    choice = write_profile(tmp_path / "c.yaml", 'nvidia.power_limit:\n  "*": {one_of: [default, 300]}')
    for watts, code in ((400, 0), (300, 0), (350, 10)):
        host.nvml.set(GPU, "power", watts * 1000)
        assert tuner("plan", "--profile", choice, "--root", host.root).code == code


# --- ECC and MIG --------------------------------------------------------------------------------------------------


@PENDING
def test_a_word_wants_what_is_pending(build: Build, knob: Knob) -> None:
    """What is current follows at a reset, and is waited for."""
    host = build()
    assert knob.parse(GPU, "enabled") == knob.parse(GPU, {"pending": "enabled"}) == {"pending": "enabled"}
    both = {"current": "enabled", "pending": "enabled"}
    wrong: list[Any] = ["on", None, {}, {"current": "enabled"}, both, ["enabled"]]
    for raw in wrong:
        with pytest.raises(BadValue):
            knob.parse(GPU, raw)
    before = seen(host, knob)
    other = "disabled" if before["pending"] == "enabled" else "enabled"
    want = Want("value", {"pending": other})
    knob.write(host, GPU, aim(want, before, knob.key))
    now = seen(host, knob)
    assert now == {"current": before["current"], "pending": other}
    assert met(want, now, knob.key) == "ok"
    assert "reset of the GPU or a reboot" in knob.waits(now)
    assert knob.waits(before) == "" and knob.waits(None) == ""
    knob.write(host, GPU, before)
    assert seen(host, knob) == before


@PENDING
def test_what_a_reset_made_of_it_does_not_hinder_undo(knob: Knob) -> None:
    """Undo has done all it can when the old word is pending."""
    before = {"current": "enabled", "pending": "enabled"}
    assert knob.restored(before, {"current": "disabled", "pending": "enabled"})
    assert not knob.restored(before, {"current": "enabled", "pending": "disabled"})


def holding(comm: str, path: str = "/dev/nvidia0", group: str = "/user.slice") -> dict[str, Any]:
    """A process that has a device open."""
    link = f"link 0777 /proc/4321/fd/7\n+{path}\n"
    more = f"dir 0755 /proc\n|4321\n|sys\ndir 0755 /dev\n|nvidia0\ndir 0500 /proc/4321/fd\n|7\n{link}"
    files = {"/proc/4321/comm": f"{comm}\n", "/proc/4321/cgroup": f"0::{group}\n", "/proc/4321/cmdline": f"{comm}\n"}
    return {"more": more, "files": files}


@PENDING
def test_never_while_a_process_holds_a_gpu(build: Build, knob: Knob) -> None:
    """But for the services that hold one on an idle node; a NIC is no GPU."""
    value = {"current": "enabled", "pending": "disabled"}
    assert knob.guard(build(), GPU, value, None) == ""
    assert knob.guard(build(**holding("python")), GPU, value, None) == "python 4321 has /dev/nvidia0 open"
    unit = "/system.slice/nvidia-persistenced.service"
    assert knob.guard(build(**holding("nvidia-persiste", group=unit)), GPU, value, None) == ""
    assert knob.guard(build(**holding("nvidia-persiste")), GPU, value, None) != ""
    assert knob.guard(build(**holding("python", "/dev/infiniband/uverbs0")), GPU, value, None) == ""


@PENDING
def test_not_being_allowed_to_look_is_no_licence(build: Build, monkeypatch: pytest.MonkeyPatch, knob: Knob) -> None:
    """Another user's processes do not show what they hold."""
    host = build(**holding("python"))
    real = RecordedHost.list

    def listing(self: RecordedHost, path: str) -> list[str]:
        if path.endswith("/fd"):
            raise PermissionError(13, os.strerror(13), path)
        return real(self, path)

    monkeypatch.setattr(RecordedHost, "list", listing)
    assert "not allowed" in knob.guard(host, GPU, {"pending": "disabled"}, None)


def test_a_guard_holds_the_change(build: Build, tmp_path: Path, tuner: Callable[..., Result]) -> None:
    """On the command line, whatever is allowed."""
    profile = write_profile(tmp_path / "p.yaml", 'nvidia.ecc:\n  "*": disabled')
    host = build(**holding("python"))
    result = tuner("apply", "--profile", profile, "--root", host.root, "--allow", "all")
    assert result.code == 0, result.out
    assert "python 4321 has /dev/nvidia0 open" in result.out
    assert answers(host, "ecc") == {"current": "enabled", "pending": "enabled"}


@PENDING
def test_it_is_pending_until_the_reset_and_undone_by_rollback(
    build: Build, tmp_path: Path, tuner: Callable[..., Result], knob: Knob
) -> None:
    """verify ends with 13: right after the next boot."""
    host = build(rule("mig: reset"))
    before = seen(host, knob)
    other = "disabled" if before["pending"] == "enabled" else "enabled"
    profile = write_profile(tmp_path / "p.yaml", f'{knob.name}:\n  "*": {other}')
    held = tuner("apply", "--profile", profile, "--root", host.root)
    assert held.code == 0 and "needs --allow gpu" in held.out
    assert seen(host, knob) == before
    done = tuner("apply", "--profile", profile, "--root", host.root, "--allow", "gpu")
    assert done.code in (0, 13), done.out
    assert tuner("verify", "--root", host.root).code == 13
    assert tuner("rollback", "--to", "0", "--root", host.root).code == 0
    assert seen(host, knob) == before


@pytest.mark.parametrize(
    ("how", "current"), [("reset", "disabled"), ("now", "enabled")], ids=["needs a reset", "at once"]
)
def test_mig_comes_into_force_as_the_gpu_does_it(build: Build, how: str, current: str) -> None:
    """An A100 needs a reset, a newer one does not."""
    host = build(rule(f"mig: {how}"))
    MIG.write(host, GPU, {"pending": "enabled"})
    assert seen(host, MIG) == {"current": current, "pending": "enabled"}
    assert (MIG.waits(seen(host, MIG)) == "") == (how == "now")


def test_mig_that_a_client_hinders_is_refused_and_taken_back(build: Build) -> None:
    """SUCCESS with IN_USE as the activation status leaves it pending: that would come at some later reset."""
    host = build(rule("mig: in_use"))
    with pytest.raises(Refused, match="in use by another client") as refused:
        MIG.write(host, GPU, {"pending": "enabled"})
    for words in ("nvidia-smi, DCGM", f"nvidia-smi -pm 0 -i {GPU};", f"--set nvidia.persistence:{GPU}=disabled"):
        assert words in str(refused.value)
    assert seen(host, MIG) == {"current": "disabled", "pending": "disabled"}


def test_persistence_mode_is_a_client_that_hinders_mig(
    build: Build, tmp_path: Path, tuner: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/gpu-operator#118, NVIDIA/NVSentinel#1690. What the refusal advises is enough, and persistence comes back.

    nvidia-smi -pm 0 alone is not: the profile wants the mode, and it is written before MIG.
    """
    host = build(rule("mig: now"))
    real = type(host.nvml).set

    def set_(door: Any, address: str, name: str, value: Any) -> Any:
        status = real(door, address, name, value)
        return "IN_USE" if name == "mig" and door.get(address, "persistence") == "enabled" else status

    monkeypatch.setattr(type(host.nvml), "set", set_)
    profile = write_profile(tmp_path / "p.yaml", 'nvidia.persistence: {"*": enabled}\nnvidia.mig: {"*": enabled}')
    apply = ("apply", "--profile", profile, "--root", host.root, "--allow", "gpu")
    host.nvml.set(GPU, "persistence", "disabled")
    assert tuner(*apply).code == 20
    (advice,) = {word for word in HINDERED.format(GPU).replace(",", " ").split() if word.startswith("nvidia.")}
    assert tuner(*apply, "--set", advice).code == 0
    assert (seen(host, KEEP), seen(host, MIG)["current"]) == ("disabled", "enabled")
    assert tuner(*apply).code == 0
    assert (seen(host, KEEP), seen(host, MIG)["current"]) == ("enabled", "enabled")


def test_mig_that_is_not_activated_for_another_reason(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is told."""
    host = build()
    real, told = type(host.nvml).set, list[Any]()

    def set_(door: Any, address: str, name: str, value: Any) -> Any:
        told.append(value)
        real(door, address, name, value)
        return "INSUFFICIENT_POWER"

    monkeypatch.setattr(type(host.nvml), "set", set_)
    with pytest.raises(Refused, match="insufficient power"):
        MIG.write(host, GPU, {"pending": "enabled"})
    assert told == ["enabled", "disabled"]


def test_mig_tells_what_it_renumbers() -> None:
    """Whoever asks."""
    assert "/dev/nvidia-caps" in MIG.about(GPU)
    assert "/dev/nvidia-caps" in (Mig.__doc__ or "")


# --- the next boot ------------------------------------------------------------------------------------------------


def ahead(host: RecordedHost, knob: Knob, want: Any) -> Any:
    """What the next boot brings."""
    setting = Setting(knob.name, GPU, GPU, Want("value", want), "p:1", "", "")
    return knob.next_boot(Boots(host), setting).reading


def test_ecc_is_kept_by_the_gpu(build: Build) -> None:
    """And what is pending is in force then."""
    host = build(ecc={"current": "enabled", "pending": "disabled"})
    assert ahead(host, ECC, {"pending": "disabled"}) == Seen({"current": "disabled", "pending": "disabled"})


@pytest.mark.parametrize(
    ("model", "kept"),
    [("NVIDIA A100-SXM4-40GB", True), ("A100-SXM4-80GB", True), ("NVIDIA A100 80GB PCIe", True), ("NVIDIA H800", False),
     ("NVIDIA H100 80GB HBM3", False), ("NVIDIA A1000", False)],
)  # fmt: skip
def test_mig_is_kept_by_an_a100(build: Build, model: str, kept: bool) -> None:
    """Of newer ones nothing is documented."""
    host = build(name=model, mig={"current": "disabled", "pending": "enabled"})
    found = ahead(host, MIG, {"pending": "enabled"})
    if kept:
        assert found == Seen({"current": "enabled", "pending": "enabled"})
    else:
        assert isinstance(found, Unreadable) and model in found.why


POWERED = {"limit": 350000, "enforced": 350000, "min": 100000, "max": 400000, "default": 400000}


@pytest.mark.parametrize(
    ("knob", "want"),
    [(KEEP, "enabled"), (KEEP, "disabled"), (COMPUTE, "exclusive_process"), (COMPUTE, "prohibited"),
     (POWER, {"limit": 350})],
)  # fmt: skip
def test_the_others_are_lost_unless_the_boot_unit_sets_them(build: Build, knob: Knob, want: Any) -> None:
    """Nothing of ours runs at boot on this host."""
    found = ahead(build(power=POWERED, more="dir 0755 /etc\n"), knob, want)
    assert isinstance(found, Absent) and "tuner-apply.service" in found.why
    assert BY_NAME[knob.name].persist == "boot unit"


@pytest.mark.parametrize(
    ("knob", "want", "then"),
    [(COMPUTE, "default", "default"), (POWER, {"limit": 400}, {"limit": 400}),
     (POWER, {"limit": "default"}, {"limit": 400})],
)  # fmt: skip
def test_what_every_boot_brings_is_not_lost(build: Build, knob: Knob, want: Any, then: Any) -> None:
    """Whatever runs now (NVML API Reference: a reboot sets compute mode and power limit to their defaults)."""
    assert ahead(build(power=POWERED, compute_mode="prohibited"), knob, want) == Seen(then)


@pytest.mark.parametrize(
    ("kind", "bound", "brought"), [("at_least", 350, True), ("at_most", 400, True), ("at_most", 350, False)]
)
def test_a_bound_may_be_met_by_the_default(build: Build, kind: Any, bound: int, brought: bool) -> None:
    """The default is 400 W."""
    setting = Setting(POWER.name, GPU, GPU, Want(kind, {"limit": bound}), "p:1", "", "")
    assert (POWER.next_boot(Boots(build()), setting).reading == Seen({"limit": 400})) == brought


def test_a_device_without_a_default_promises_nothing(build: Build) -> None:
    """The answer is as if nobody knew what a boot brings."""
    host = build(power={**POWERED, "default": None})
    for limit in ("default", 400):
        assert isinstance(ahead(host, POWER, {"limit": limit}), Absent)


@pytest.mark.parametrize(
    ("knob", "want", "then"),
    [(POWER, {"limit": "default"}, {"limit": 400}), (POWER, {"limit": 350}, {"limit": 350}),
     (KEEP, "enabled", "enabled"), (COMPUTE, "default", "default")],
)  # fmt: skip
def test_the_boot_unit_brings_what_is_applied(build: Build, knob: Knob, want: Any, then: Any) -> None:
    """As the device holds it; what is not applied yet it does not, even where a bare boot would."""
    host = build()
    setting = Setting(knob.name, GPU, GPU, Want("value", want), "p:1", "", "")
    armed = Boots(host, {setting.at: setting.want})
    vars(armed)["unarmed"] = ""
    assert knob.next_boot(armed, setting).reading == Seen(then)
    other = Boots(host, {setting.at: Want("value", {"limit": 300} if knob is POWER else "prohibited")})
    vars(other)["unarmed"] = ""
    assert "apply this first" in getattr(knob.next_boot(other, setting).reading, "why", "")


DAEMON = "nvidia-persistenced.service"
FOLDER, STATIC = "/etc/systemd/system", f"/usr/lib/systemd/system/{DAEMON}"
WANTS = f"{FOLDER}/multi-user.target.wants"
START = "[Service]\nType=forking\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced"
DROP_IN = "[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced --verbose\n"
WITHOUT = f"{START} --no-persistence-mode --verbose\n"


def units(*, enabled: bool = True, text: str = WITHOUT, drop_in: str = "", where: str = FOLDER) -> dict[str, Any]:
    """The daemon's unit, as distributions have it, with a drop-in of the operator."""
    folders: dict[str, list[str]] = {"/usr/lib/systemd/system": [DAEMON] if text else [], FOLDER: [], WANTS: [],
                                     "/run/systemd/system": []}  # fmt: skip
    more, files = "", {STATIC: text} if text else {}
    if enabled:
        folders[FOLDER].append("multi-user.target.wants")
        folders[WANTS].append(DAEMON)
        more += f"link 0777 {WANTS}/{DAEMON}\n+{STATIC}\n"
    if drop_in:
        folders.setdefault(where, []).append(f"{DAEMON}.d")
        folders[f"{where}/{DAEMON}.d"] = ["on.conf"]
        files[f"{where}/{DAEMON}.d/on.conf"] = drop_in
    for folder, names in folders.items():
        more += f"dir 0755 {folder}\n" + "".join(f"|{name}\n" for name in sorted(names))
    return {"files": files, "more": f"{more}absent /lib\nabsent /etc/sysconfig\n"}


@pytest.mark.parametrize(
    ("unit", "then", "told"),
    [
        ({"drop_in": DROP_IN}, True, False),
        ({"text": f"{START}\n"}, True, False),
        ({}, False, True),
        ({"drop_in": DROP_IN, "enabled": False}, False, False),
        ({"drop_in": DROP_IN, "where": "/run/systemd/system"}, False, False),
        ({"text": ""}, False, False),
        ({"text": "[Service]\nType=forking\n"}, False, False),
        ({"text": f"{START}\n", "drop_in": "[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced"
          " --no-persistence-mode\n"}, False, True),
    ],
    ids=["drop-in", "bare", "without", "not enabled", "until the reboot", "no unit", "no command", "turned off"],
)  # fmt: skip
def test_the_daemon_keeps_persistence_mode(build: Build, unit: dict[str, Any], then: bool, told: bool) -> None:
    """Where it is enabled and not told otherwise the next boot has it; a command line that is told so is a remark."""
    host = build(**units(**unit))
    setting = Setting(KEEP.name, GPU, GPU, Want("value", "enabled"), "p:1", "", "")
    found = KEEP.next_boot(Boots(host), setting)
    assert (found.reading == Seen("enabled")) == then
    assert found.winner == (f"{WANTS}/{DAEMON}" if then else "")
    assert then or isinstance(found.reading, Absent)
    assert isinstance(ahead(host, KEEP, "disabled"), Absent)
    assert ("nvidia-persistenced runs with --no-persistence-mode" in KEEP.remark(host, GPU, "enabled")) == told


def test_mig_of_a_gpu_without_it(build: Build) -> None:
    """Absent, now and later."""
    host = build(mig="error NOT_SUPPORTED")
    assert MIG.read(host, GPU) == Absent("this GPU does not support it")
    assert ahead(host, MIG, {"pending": "enabled"}) == Absent("this GPU does not support it")
