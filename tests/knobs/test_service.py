"""Services judged by files alone: control groups, systemd's own traces, unit files and links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, again, tree, write_profile
from tuner.boot.boots import Boots, Next
from tuner.errors import BadValue, Refused
from tuner.evidence import note
from tuner.host import Host, open_host
from tuner.knobs import BY_NAME
from tuner.knobs.service import Service
from tuner.model import Reading, Seen, Setting, Unreadable, Value, Want, met
from tuner.nextboot import ask
from tuner.sim import store

KNOB = Service()
IRQBALANCE = "irqbalance.service"
SLICE = "/sys/fs/cgroup/system.slice"
LIB = "/usr/lib/systemd/system"
WANTS = "/etc/systemd/system/multi-user.target.wants"
ONESHOT = "Type=oneshot"
SYSTEMD: dict[str, str | list[str] | None] = {
    "/run/systemd/system/": [],
    "/run/systemd/units/": [],
    "/etc/systemd/system/": ["multi-user.target.wants"],
    f"{WANTS}/": [],
    f"{LIB}/": [],
    "/lib": "-> usr/lib",
    f"{SLICE}/": [],
}
"""A host that systemd runs and on which no service is installed."""


def entry(path: str, what: str | list[str] | None) -> str:
    """One entry: a listing for PATH/, a link for "-> TEXT", none for None, else a file."""
    if isinstance(what, list):
        return "\n".join([f"dir 0755 {path.rstrip('/')}", *(f"|{name}" for name in what)])
    if what is None:
        return f"absent {path}"
    if what.startswith("-> "):
        return f"link 0777 {path}\n+{what[3:]}"
    return "\n".join([f"file 0644 {path}", *(f"|{line}" for line in what.splitlines())])


Make = Callable[..., Host]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make({path: what} ...) -> a recorded host of SYSTEMD and these.

    A later layer wins; a listing takes up what is put into it; a path that has others below it is not absent.
    """

    def make(*layers: dict[str, Any]) -> Host:
        entries: dict[str, Any] = {}
        for layer in (SYSTEMD, *layers):
            entries.update(layer)
        for path in [p for p in entries if entries[p] is None]:
            entries.pop(path)
            if not any(other.startswith(f"{path.rstrip('/')}/") for other in entries):
                entries[path.rstrip("/")] = None
        for path in [*entries]:
            above, _, name = path.rstrip("/").rpartition("/")
            while above and entries[path] is not None:
                listing = entries.get(f"{above}/")
                if isinstance(listing, list) and name not in listing:
                    entries[f"{above}/"] = [*listing, name]
                above, _, name = above.rpartition("/")
        about = "file 0644 /.tuner-host/host.yaml\n|name: node\n|kernel: 6.8.0-60-generic"
        text = "\n".join(["tuner-host 1", about, *(entry(path, what) for path, what in entries.items()), ""])
        manifest = tmp_path / "node.host"
        manifest.write_text(text, encoding="utf-8")
        store.copy(manifest, str(tmp_path / "root"), [])
        return open_host(str(tmp_path / "root"))

    return make


def installed(unit: str = IRQBALANCE, *lines: str, folder: str = LIB) -> dict[str, str]:
    """A unit file with these lines in it."""
    return {f"{folder}/{unit}": "\n".join(["[Unit]", "Description=x", "[Service]", "ExecStart=/usr/sbin/x", *lines])}


def enabled(unit: str = IRQBALANCE, at: str = WANTS) -> dict[str, str]:
    """The link that `systemctl enable` makes."""
    return {f"{at}/{unit}": f"-> {LIB}/{unit}"}


def alive(unit: str = IRQBALANCE, procs: str = "812\n", place: str = SLICE, populated: int = 0) -> dict[str, str]:
    """The control group of a unit, with the processes in it."""
    events = f"populated {populated or int(bool(procs))}\nfrozen 0"
    return {f"{place}/{unit}/cgroup.procs": procs, f"{place}/{unit}/cgroup.events": events}


def started(unit: str = IRQBALANCE) -> dict[str, str]:
    """What systemd leaves while a unit is active."""
    return {f"/run/systemd/units/invocation:{unit}": "-> 4f1c6a0e5b8d4c0f9a7e2d3b1c0a9f8e"}


OLD = {"/run/systemd/units/": None}
"""An old systemd, which keeps no /run/systemd/units."""


@pytest.fixture
def read(make: Make) -> Callable[..., Reading]:
    """read(layers ...) -> what the knob reads of irqbalance.service, or of `unit`."""

    def read(*layers: dict[str, Any], unit: str = IRQBALANCE) -> Reading:
        return KNOB.read(make(*layers), unit)

    return read


Read = Callable[..., Reading]


def seen(state: str, enabled: str) -> Seen:
    """The record that is expected."""
    return Seen({"state": state, "enabled": enabled})


# --- running


def test_a_service_with_processes_is_active(read: Read) -> None:
    assert read(installed(), enabled(), alive(), started()) == seen("active", "enabled")


def test_a_service_that_is_stopped(read: Read) -> None:
    assert read(installed(), enabled()) == seen("inactive", "enabled")


def test_a_service_that_is_not_installed_is_inactive(read: Read) -> None:
    found = read()
    assert found == seen("inactive", "absent")
    assert isinstance(found, Seen)
    assert met(Want("value", KNOB.parse(IRQBALANCE, "inactive")), found.value, KNOB.key) == "ok"


@pytest.mark.parametrize(
    ("raw", "verdict"),
    [
        ("active", "ok"),
        ("inactive", "drift"),
        ({"state": "active", "enabled": "enabled"}, "ok"),
        ({"state": "active", "enabled": "masked"}, "drift"),
        ({"enabled": "enabled"}, "ok"),
    ],
)
def test_a_word_wants_the_state_and_a_mapping_what_it_names(read: Read, raw: Any, verdict: str) -> None:
    found = read(installed(), enabled(), alive(), started())
    assert isinstance(found, Seen)
    assert met(Want("value", KNOB.parse(IRQBALANCE, raw)), found.value, KNOB.key) == verdict


@pytest.mark.parametrize("place", ["/sys/fs/cgroup/systemd/system.slice", SLICE])
def test_both_hierarchies_are_known(read: Read, place: str) -> None:
    """The older one is named systemd and has no cgroup.events."""
    old: dict[str, Any] = {f"{SLICE}/": None, "/sys/fs/cgroup/": [], f"{place}/": []} if "systemd/" in place else {}
    group = {f"{place}/{IRQBALANCE}/cgroup.procs": "812\n"}
    assert read(installed(), OLD, old, group) == seen("active", "disabled")


@pytest.mark.parametrize(("populated", "state"), [(1, "active"), (0, "inactive")])
def test_processes_below_the_group_count(read: Read, populated: int, state: str) -> None:
    """A service that delegates keeps its processes in groups of its own: cgroup.events tells."""
    assert read(installed(), OLD, alive(procs="", populated=populated)) == seen(state, "disabled")


@pytest.mark.parametrize(
    ("unit", "lines", "place"),
    [
        ("x@1.service", (), f"{SLICE}/system-x.slice"),
        ("a-b@1.service", (), f"{SLICE}/system-a\\x2db.slice"),
        ("x.service", ("Slice=machine.slice",), "/sys/fs/cgroup/machine.slice"),
        ("x.service", ("Slice=gpu-job.slice",), "/sys/fs/cgroup/gpu.slice/gpu-job.slice"),
        ("x.service", ("Slice=-.slice",), "/sys/fs/cgroup"),
    ],
)
def test_other_slices_are_found(read: Read, unit: str, lines: tuple[str, ...], place: str) -> None:
    """systemd.slice(5): a dash is a level, an instance lies in the slice of its template."""
    file = f"{unit.partition('@')[0]}@.service" if "@" in unit else unit
    found = read(installed(file, *lines), OLD, {"/sys/fs/cgroup/": []}, alive(unit, place=place), unit=unit)
    assert found == seen("active", "disabled")


def test_a_drop_in_of_the_administrator_counts(read: Read) -> None:
    drop_in = {
        f"/etc/systemd/system/{IRQBALANCE}.d/": [],
        f"/etc/systemd/system/{IRQBALANCE}.d/a.conf": "Slice=m.slice",
    }
    group = alive(place="/sys/fs/cgroup/m.slice")
    assert read(installed(IRQBALANCE, "Slice=vendor.slice"), OLD, drop_in, {"/sys/fs/cgroup/": []}, group) == seen(
        "active", "disabled"
    )


# --- what leaves no process


@pytest.mark.parametrize("line", [ONESHOT, "RemainAfterExit=yes", "RemainAfterExit = true"])
@pytest.mark.parametrize(("trace", "state"), [(started(), "active"), ({}, "inactive")])
def test_a_service_that_has_done_its_work(read: Read, line: str, trace: dict[str, str], state: str) -> None:
    """active (exited) has no process: the link of its invocation tells."""
    assert read(installed(IRQBALANCE, line), trace) == seen(state, "disabled")


@pytest.mark.parametrize("line", [ONESHOT, "RemainAfterExit=1"])
def test_without_a_trace_such_a_service_is_unknown(read: Read, line: str) -> None:
    found = read(installed(IRQBALANCE, line), OLD)
    assert found == Unreadable(f"files do not tell whether it is active: systemctl is-active {IRQBALANCE}")


@pytest.mark.parametrize("unit", ["kdump.service", "kdump-tools.service"])
@pytest.mark.parametrize(("loaded", "state"), [("1\n", "active"), ("0\n", "inactive")])
def test_kdump_is_active_while_a_crash_kernel_is_loaded(read: Read, unit: str, loaded: str, state: str) -> None:
    file = installed(unit, ONESHOT, "RemainAfterExit=yes")
    assert read(file, OLD, {"/sys/kernel/kexec_crash_loaded": loaded}, unit=unit) == seen(state, "disabled")


def test_another_oneshot_is_not_judged_by_the_crash_kernel(read: Read) -> None:
    found = read(installed(IRQBALANCE, ONESHOT), OLD, {"/sys/kernel/kexec_crash_loaded": "1\n"})
    assert isinstance(found, Unreadable)


def test_started_without_a_process_is_restarting(read: Read) -> None:
    """A service that crashes and is started again is not active."""
    assert read(installed(), enabled(), started()) == seen("restarting", "enabled")


def test_stopped_with_processes_left_is_neither(read: Read) -> None:
    """KillMode=process: systemctl says failed or inactive while processes live on."""
    assert read(installed(), enabled(), alive()) == seen("leftover", "enabled")


# --- at boot


def test_a_unit_file_that_nothing_wants_is_disabled(read: Read) -> None:
    assert read(installed()) == seen("inactive", "disabled")


@pytest.mark.parametrize(
    "at",
    [
        "/etc/systemd/system/basic.target.wants",
        "/etc/systemd/system/x.service.requires",
        "/run/systemd/system/multi-user.target.wants",
    ],
)
def test_a_link_of_a_target_or_a_unit_enables(read: Read, at: str) -> None:
    assert read(installed(), {f"{at}/": []}, enabled(at=at)) == seen("inactive", "enabled")


@pytest.mark.parametrize("folder", ["/etc/systemd/system", "/run/systemd/system", LIB])
def test_a_unit_file_may_lie_in_any_folder(read: Read, folder: str) -> None:
    assert read(installed(folder=folder)) == seen("inactive", "disabled")


def test_lib_is_looked_at_where_it_is_no_link(read: Read) -> None:
    """Debian before the merge of /usr."""
    split: dict[str, Any] = {"/lib": None, "/lib/systemd/system/": [], **installed(folder="/lib/systemd/system")}
    assert read(split) == seen("inactive", "disabled")


@pytest.mark.parametrize("link", ["-> /dev/null", "-> ../../../dev/null"])
@pytest.mark.parametrize("folder", ["/etc/systemd/system", "/run/systemd/system"])
def test_a_link_to_dev_null_masks(read: Read, link: str, folder: str) -> None:
    """Stronger than a unit file below and than the links that want it."""
    assert read(installed(), enabled(), {f"{folder}/{IRQBALANCE}": link}) == seen("inactive", "masked")


def test_an_empty_file_masks_too(read: Read) -> None:
    assert read(installed(), {f"/etc/systemd/system/{IRQBALANCE}": ""}) == seen("inactive", "masked")


def test_masked_does_not_mean_stopped(read: Read) -> None:
    """systemctl mask without --now leaves it running."""
    mask = {f"/etc/systemd/system/{IRQBALANCE}": "-> /dev/null"}
    assert read(installed(), mask, alive(), started()) == seen("active", "masked")


def test_a_link_left_by_a_removed_package_enables_nothing(read: Read) -> None:
    assert read(enabled()) == seen("inactive", "absent")


def test_a_unit_file_that_points_nowhere_is_absent(read: Read) -> None:
    assert read(enabled(at="/etc/systemd/system"), enabled()) == seen("inactive", "absent")


def test_an_alias_is_judged_as_the_unit_it_names(read: Read) -> None:
    alias = {"/etc/systemd/system/sshd.service": f"-> {LIB}/ssh.service"}
    layers = (installed("ssh.service"), enabled("ssh.service"), alias, alive("ssh.service"), started("ssh.service"))
    assert read(*layers, unit="sshd.service") == seen("active", "enabled")


def test_aliases_that_name_each_other_end(read: Read) -> None:
    etc = "/etc/systemd/system"
    links = {f"{etc}/a.service": f"-> {etc}/b.service", f"{etc}/b.service": f"-> {etc}/a.service"}
    assert read(links, unit="a.service") == Unreadable("Too many levels of symbolic links")


# --- what cannot be told


def test_without_systemd_nothing_is_judged(read: Read) -> None:
    gone = {"/run/systemd/system/": None}
    assert read(gone, installed(), alive()) == Unreadable("no systemd: services cannot be judged")


def test_without_control_groups_and_traces_nothing_is_judged(read: Read) -> None:
    found = read(installed(), OLD, {f"{SLICE}/": None, "/sys/fs/cgroup/": []})
    assert isinstance(found, Unreadable)
    assert "systemctl is-active" in found.why


@pytest.mark.parametrize(("layers", "state"), [((started(),), "active"), ((), "inactive")])
def test_without_control_groups_the_trace_tells(read: Read, layers: tuple[dict[str, str], ...], state: str) -> None:
    hidden: dict[str, Any] = {f"{SLICE}/": None, "/sys/fs/cgroup/": []}
    assert read(installed(), hidden, *layers) == seen(state, "disabled")


def test_what_was_not_recorded_is_not_taken_for_stopped(read: Read) -> None:
    """A listing names the group, its files were not recorded."""
    found = read(installed(), OLD, {f"{SLICE}/": [IRQBALANCE]})
    assert found == Unreadable(f"not recorded {SLICE}/{IRQBALANCE}")


def test_a_unit_file_that_was_not_recorded_is_not_taken_for_absent(read: Read) -> None:
    assert read({f"{LIB}/": [IRQBALANCE]}) == Unreadable(f"not recorded {LIB}/{IRQBALANCE}")


def test_a_trace_that_was_not_recorded_leaves_it_to_the_group(read: Read) -> None:
    layer: dict[str, Any] = {"/run/systemd/units/": None, **started("other.service")}
    assert read(installed(), layer, alive()) == seen("active", "disabled")


# --- what a profile may say


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("irqbalance", IRQBALANCE),
        (IRQBALANCE, IRQBALANCE),
        ("dbus-org.freedesktop.nm", "dbus-org.freedesktop.nm.service"),
        ("x@1", "x@1.service"),
        ("kdump*", "kdump*"),
    ],
)
def test_names_of_services(target: str, name: str) -> None:
    assert KNOB.canonical(target) == name
    assert KNOB.canonical(name) == name


@pytest.mark.parametrize("target", ["", "a b", "../x.service", "a/b", "x.timer", "x.socket", "x@.service", "x\n", "ä"])
def test_what_is_no_service(target: str) -> None:
    with pytest.raises(BadValue):
        KNOB.canonical(target)


@pytest.mark.parametrize(
    "raw",
    [None, "", "on", "stopped", "enabled", "absent", ["active"], {}, {"state": "on"}, {"enabled": "no"}, {"x": "y"}],
)
def test_what_is_no_state(raw: Any) -> None:
    with pytest.raises(BadValue):
        KNOB.parse(IRQBALANCE, raw)


def test_targets_are_the_installed_services(make: Make) -> None:
    host = make(installed(), installed("x@.service"), installed("b.timer"), installed("a.service", folder=LIB))
    assert KNOB.targets(host) == ["a.service", IRQBALANCE]


# --- what the operator is told


def told(host: Host, unit: str, raw: Any) -> str:
    """The advice for a service that is not as wanted."""
    wanted: Value = KNOB.parse(unit, raw)
    return KNOB.advice(host, unit, wanted)


MASK = {f"/etc/systemd/system/{IRQBALANCE}": "-> /dev/null"}


@pytest.mark.parametrize(
    ("layers", "raw", "steps"),
    [
        ([installed(), alive(), started()], "inactive", f"systemctl disable --now {IRQBALANCE}"),
        ([installed()], "active", f"systemctl enable --now {IRQBALANCE}"),
        (
            [],
            "active",
            f"install it, there is no unit file {IRQBALANCE}, then systemctl enable --now {IRQBALANCE}",
        ),
        ([installed(), MASK], "active", f"systemctl unmask {IRQBALANCE}, then systemctl enable --now {IRQBALANCE}"),
        ([installed()], {"enabled": "enabled"}, f"systemctl enable {IRQBALANCE}"),
        ([installed(), enabled()], {"enabled": "disabled"}, f"systemctl disable {IRQBALANCE}"),
        ([installed()], {"enabled": "masked"}, f"systemctl mask {IRQBALANCE}"),
        ([installed()], {"enabled": "absent"}, "remove its package or unit file"),
        (
            [installed(), alive(), started()],
            {"state": "inactive", "enabled": "masked"},
            f"systemctl stop {IRQBALANCE}, then systemctl mask {IRQBALANCE}",
        ),
        (
            [installed(), started()],
            "active",
            f"systemctl status {IRQBALANCE} (no process of it lives), then systemctl enable --now {IRQBALANCE}",
        ),
        (
            [installed(), alive()],
            "inactive",
            f"systemctl status {IRQBALANCE} (it is stopped, but processes of it live on), then systemctl disable",
        ),
    ],
)
def test_what_to_run(make: Make, layers: list[dict[str, Any]], raw: Any, steps: str) -> None:
    text = told(make(*layers), IRQBALANCE, raw)
    assert text.startswith(f"tuner does not start or stop services: {steps}")


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (IRQBALANCE, ["interrupts", "NUMA node", "affinities"]),
        ("numad.service", ["memory", "NUMA balancing"]),
        ("lldpad.service", ["DCB", "PFC"]),
        ("tuned.service", ["sysctls", "profile"]),
        ("kdump.service", ["crash kernel", "huge pages"]),
        ("kdump-tools.service", ["crash kernel", "huge pages"]),
    ],
)
def test_who_else_owns_our_settings_and_who_says_so(make: Make, unit: str, words: list[str]) -> None:
    about = KNOB.about(unit)
    assert all(word in about for word in words)
    assert "Source: " in about
    text = told(make(installed(unit), alive(unit), started(unit)), unit, "inactive")
    assert all(word in text for word in words)


def test_a_service_that_is_wanted_is_not_blamed(make: Make) -> None:
    assert "interrupts" not in told(make(installed()), IRQBALANCE, "active")
    assert KNOB.about("cron.service") == ""


@pytest.mark.parametrize(
    ("main", "winner"),
    [
        ("reapply_sysctl = 1", "reapply_sysctl is on: sysctl.d wins"),
        ("reapply_sysctl=0", "reapply_sysctl is off: the profile wins"),
        ("reapply_sysctl = False", "reapply_sysctl is off: the profile wins"),
        ("# reapply_sysctl = 0\ndaemon = 1", "reapply_sysctl is on: sysctl.d wins"),
    ],
)
def test_tuned_is_named_with_its_profile_and_who_wins(make: Make, main: str, winner: str) -> None:
    """On is the default; only then does sysctl.d beat the profile (redhat-performance/tuned#518)."""
    files = {"/etc/tuned/active_profile": "throughput-performance\n", "/etc/tuned/tuned-main.conf": main}
    tuned = {"/etc/tuned/": [], **files, **installed("tuned.service"), **alive("tuned.service")}
    text = told(make(tuned), "tuned.service", "inactive")
    assert "its profile is throughput-performance (/etc/tuned/active_profile)" in text
    assert winner in text


def test_tuned_without_a_readable_profile_is_still_named(make: Make) -> None:
    host = make({"/etc/tuned": None}, installed("tuned.service"), alive("tuned.service"))
    text = told(host, "tuned.service", "inactive")
    assert "its active profile" in text
    assert "active_profile)" not in text


def test_plan_tells_and_apply_leaves_it(
    make: Make, tmp_path: Path, tuner: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """irqbalance runs and shall not: drift with what to run, and no write; numad is not there, as wanted."""
    monkeypatch.setitem(BY_NAME, "service", KNOB)
    root = Path(make({"/etc/tuner": None}, installed(), enabled(), alive(), started()).root)
    profile = write_profile(tmp_path / "p.yaml", "service:\n  irqbalance: inactive\n  numad: inactive")
    before = tree(root)
    plan = tuner("plan", "--root", root, "--profile", profile, "--json")
    assert plan.code == 10
    states = {v["target"]: v["state"] for v in plan.document["verdicts"]}
    assert states == {IRQBALANCE: "drift", "numad.service": "ok"}
    assert plan.document["changes"] == []
    assert tuner("apply", "--root", root, "--profile", profile).code == 0
    assert {path: what for path, what in tree(root).items() if path != "etc/tuner"} == before


def test_it_is_never_written(make: Make) -> None:
    assert KNOB.read_only
    with pytest.raises(Refused):
        KNOB.write(make(), IRQBALANCE, {"state": "inactive"})


# --- evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
@pytest.mark.parametrize(("procs", "same"), [("813\n900\n", True), ("", False)])
def test_which_processes_a_service_has_is_no_evidence_but_that_it_has_any(make: Make, procs: str, same: bool) -> None:
    """A restart between two looks gives other numbers and the same verdict."""
    host = make(installed(), enabled(), alive(), started())
    noted = note(host)
    assert KNOB.read(host, IRQBALANCE) == seen("active", "enabled")
    Path(f"{host.root}{SLICE}/{IRQBALANCE}/cgroup.procs").write_text(procs, encoding="ascii")
    assert again(noted) is same


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
def test_a_service_that_starts_is_no_evidence_any_more(make: Make) -> None:
    host = make(installed(), enabled(), {"/run/systemd/units/": []}, {f"{SLICE}/": []})
    noted = note(host)
    assert KNOB.read(host, IRQBALANCE) == seen("inactive", "enabled")
    assert again(noted)
    Path(f"{host.root}/run/systemd/units/invocation:{IRQBALANCE}").symlink_to("4f1c6a0e5b8d4c0f9a7e2d3b1c0a9f8e")
    assert not again(noted)


# --- the next boot


def ahead(host: Host, unit: str = IRQBALANCE) -> Next:
    """The next boot of a service."""
    return ask(KNOB, Boots(host), Setting("service", unit, unit, Want("value", {"state": "active"}), "p:1", "", ""))


def test_a_service_that_is_enabled_runs_again(make: Make) -> None:
    """Stopped by hand and left enabled is the usual surprise."""
    found = ahead(make(installed(), enabled()))
    assert found == Next(seen("active", "enabled"), f"{WANTS}/{IRQBALANCE}")


def test_a_service_that_is_disabled_and_stopped_stays_so(make: Make) -> None:
    assert ahead(make(installed())) == Next(seen("inactive", "disabled"), f"{LIB}/{IRQBALANCE}")


def test_a_masked_service_does_not_start_whatever_runs_now(make: Make) -> None:
    masked = {f"/etc/systemd/system/{IRQBALANCE}": "-> /dev/null"}
    found = ahead(make(installed(), enabled(), masked, alive(), started()))
    assert found == Next(seen("inactive", "masked"), f"/etc/systemd/system/{IRQBALANCE}")


def test_a_mask_in_run_is_gone(make: Make) -> None:
    """systemctl mask --runtime."""
    masked = {f"/run/systemd/system/{IRQBALANCE}": "-> /dev/null"}
    assert ahead(make(installed(), enabled(), masked)).reading == seen("active", "enabled")


def test_a_want_in_run_is_gone(make: Make) -> None:
    """systemctl enable --runtime."""
    runtime = enabled(at="/run/systemd/system/multi-user.target.wants")
    assert ahead(make(installed(), runtime)).reading == seen("inactive", "disabled")


@pytest.mark.parametrize(("lines", "state"), [((ONESHOT,), "inactive"), ((ONESHOT, "RemainAfterExit=yes"), "active")])
def test_a_service_that_finishes_its_work(make: Make, lines: tuple[str, ...], state: str) -> None:
    assert ahead(make(installed(IRQBALANCE, *lines), enabled())).reading == seen(state, "enabled")


def test_a_service_that_something_else_started_is_not_predicted(make: Make) -> None:
    """A socket, another unit, a vendor's own wants."""
    found = ahead(make(installed(), alive(), started())).reading
    assert found == Unreadable(f"{IRQBALANCE} runs without being enabled: what started it is not followed")


def test_a_service_that_is_not_installed(make: Make) -> None:
    assert ahead(make()) == Next(seen("inactive", "absent"))
