"""The next boot line: what it will hold, the drop-in of GRUB that keeps tokens, and who must do the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import Result, write_profile
from tuner.boot.boots import Boots, Next
from tuner.boot.grub_defaults import OURS
from tuner.host import Host
from tuner.knobs.cmdline import SEVERAL, Cmdline
from tuner.model import Seen, Setting, Unreadable, Want

KNOB = Cmdline()
CFG = "/boot/grub/grub.cfg"
BOOTED = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro"
MOUNTS = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
DEBIAN = {
    "/etc/os-release": "ID=debian\n", "/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
    "/proc/self/mountinfo": MOUNTS,
}  # fmt: skip

Node = Callable[..., Host]


def menu(line: str) -> str:
    """A menu of one entry."""
    return f"menuentry Debian {{\n\tlinux /vmlinuz root=/dev/sda1 ro {line}\n}}\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """node(next, running, {PATH: TEXT}) -> a Debian whose menu has the tokens `next`, booted with `running`."""

    def make(ahead: str, running: str = "", files: Mapping[str, str | None] | None = None) -> Host:
        root = tmp_path / f"node{len(list(tmp_path.iterdir()))}"
        whole = {**DEBIAN, CFG: menu(ahead), "/proc/cmdline": f"{BOOTED} {running}\n", **(files or {})}
        for path, text in whole.items():
            if text is not None:
                (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
                (root / path[1:]).write_text(text)
        return Host(str(root), "live", "node", "6.8.0")

    return make


def setting(target: str, value: str) -> Setting:
    """What a profile wants of one token."""
    return Setting("cmdline", target, target, Want("value", value), "p.yaml:1", "why", "source")


def drop_in(host: Host, *pairs: tuple[str, str]) -> str:
    """The text of our file for these tokens; empty for no file."""
    made = KNOB.stores([setting(*pair) for pair in pairs], Boots(host))
    assert {path for path, _ in made} <= {OURS}
    return made[0][1] if made else ""


# --- the next boot


@pytest.mark.parametrize(
    ("ahead", "target", "value"),
    [
        ("quiet iommu=pt", "iommu", "pt"),
        ("quiet", "iommu", "absent"),
        ("nosmt", "nosmt", "present"),
        ("iommu=soft iommu=pt", "iommu", "soft,pt"),
        ("iommu.passthrough=0 iommu.passthrough=1", "iommu.passthrough", "1"),
        ("quiet -- iommu=pt", "iommu", "absent"),
        ('dyndbg="file a.c +p"', "dyndbg", "file a.c +p"),
    ],
)
def test_what_the_token_will_be(node: Node, ahead: str, target: str, value: str) -> None:
    """As the kernel will read that line, whatever runs now."""
    found = KNOB.next_boot(Boots(node(ahead, "iommu=off")), setting(target, value))
    assert found == Next(Seen(value), f"{CFG}:2")


def test_the_order_of_a_list_is_no_difference(node: Node) -> None:
    """The plan compares with the running line, where the items stand the other way round."""
    host = node("pci=realloc=off,noaer", "pci=noaer,realloc=off")
    assert KNOB.next_boot(Boots(host), setting("pci", "realloc=off")).reading == Seen("noaer,realloc=off")


def test_several_pools_are_no_one_value(node: Node) -> None:
    found = KNOB.next_boot(
        Boots(node("hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=8")), setting("hugepages", "4")
    )
    assert found.reading == Unreadable(SEVERAL)


def test_an_image_booted_node_has_no_line_on_its_disk(node: Node) -> None:
    host = node("iommu=pt", files={"/proc/self/mountinfo": "20 1 0:5 / / rw - tmpfs none rw\n"})
    found = KNOB.next_boot(Boots(host), setting("iommu", "pt")).reading
    assert isinstance(found, Unreadable)
    assert "boots from an image" in found.why
    assert drop_in(host, ("nosmt", "present")) == ""


@pytest.mark.parametrize(
    ("ahead", "value", "waits"),
    [
        ("iommu=pt", "pt", f"until the next boot: {CFG}:2"),
        ("iommu=soft", "pt", ""),
        ("quiet", "pt", ""),
        ("quiet", "absent", f"until the next boot: {CFG}:2"),
    ],
)
def test_a_token_that_the_next_boot_brings_is_pending(node: Node, ahead: str, value: str, waits: str) -> None:
    assert KNOB.pending(node(ahead, "iommu=off"), "iommu", value) == waits


def test_nothing_is_pending_where_the_next_line_is_not_known(node: Node) -> None:
    """`absent` least of all: a line that is not known has every token missing."""
    host = node("iommu=pt", files={CFG: None})
    assert KNOB.pending(host, "iommu", "pt") == ""
    assert KNOB.pending(host, "iommu", "absent") == ""


# --- the drop-in


def test_the_tokens_that_the_files_lack(node: Node) -> None:
    text = drop_in(node("quiet"), ("iommu", "pt"), ("quiet", "present"), ("nosmt", "present"))
    assert text.startswith("# Written by tuner\n")
    assert 'GRUB_CMDLINE_LINUX_DEFAULT="${tuner_kept# } iommu=${tuner_list1}pt nosmt$tuner_init"\n' in text
    assert drop_in(node("quiet"), ("quiet", "present")) == ""


def test_it_is_the_same_once_it_is_there(node: Node) -> None:
    """Our own file, and the menu that was made of it, do not make it unneeded."""
    text = drop_in(node("quiet"), ("iommu", "pt"))
    assert drop_in(node("quiet iommu=pt", "iommu=pt", {OURS: text}), ("iommu", "pt")) == text


def test_what_other_files_set_needs_no_line(node: Node) -> None:
    other = {"/etc/default/grub.d/50-site.cfg": 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=soft,pt"\n'}
    assert drop_in(node("quiet", files=other), ("iommu", "pt")) == ""
    assert drop_in(node("quiet", files=other), ("iommu", "nopt")) != ""


@pytest.mark.parametrize(
    ("target", "value"),
    [("iommu", "absent"), ("memmap", "4G$8G"), ("x", "a b"), ("x", "a;b"), ("x", "a#{b}"), ("x", "'")],
)
def test_what_is_never_written(node: Node, target: str, value: str) -> None:
    """A removal, and what sh or GRUB's script would not take for text."""
    assert drop_in(node("quiet"), (target, value)) == ""


@pytest.mark.parametrize("target", ["pc*", "iommu?", "[ab]"])
def test_a_pattern_that_matched_nothing_is_no_token(node: Node, target: str) -> None:
    assert drop_in(node("quiet"), (target, "x")) == ""


def test_huge_pages_stand_in_their_order(node: Node) -> None:
    """The count is for the size before it, however the profile orders them."""
    text = drop_in(
        node(""), ("hugepages", "4"), ("nosmt", "present"), ("hugepagesz", "1G"), ("default_hugepagesz", "1G")
    )
    assert " default_hugepagesz=1G hugepagesz=1G hugepages=4 nosmt$tuner_init" in text


@pytest.mark.parametrize(
    ("running", "files", "why"),
    [
        ("crashkernel=512M", {"/etc/default/kdump-tools": "USE_KDUMP=1\n"}, "kdump's crash kernel would inherit them"),
        ("", {"/etc/default/grub": 'GRUB_CMDLINE_LINUX="hugepagesz=1G hugepages=2"\n'}, "has huge pages already"),
    ],
)
def test_huge_pages_that_would_do_harm_are_not_written(
    node: Node, running: str, files: dict[str, str], why: str
) -> None:
    host = node("", running, files)
    assert drop_in(host, ("hugepagesz", "1G"), ("hugepages", "4")) == ""
    assert why in KNOB.advice(host, "hugepages", "4")
    assert drop_in(host, ("iommu", "pt")) != ""


# --- who does it


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, f"{OURS} adds it (--allow boot)"),
        ({"/etc/default/grub": "GRUB_CMDLINE_LINUX=iommu=pt\n"}, "/etc/default/grub has it: update-grub makes"),
        ({"/etc/default/grub": "GRUB_DISABLE_RECOVERY=true\n"}, "/etc/default/grub:1 leaves recovery entries out"),
        ({"/etc/os-release": "ID=rocky\n"}, "read by Debian's and Ubuntu's GRUB only: change /etc/default/grub"),
        ({CFG: "blscfg\n", "/boot/loader/entries/a.conf": "linux /k\noptions ro\n"},
         "tuner does not write these boot entries: grubby --update-kernel=DEFAULT --args='iommu=pt'"),
        ({CFG: "blscfg\n", "/run/ostree-booted": "", "/boot/loader/entries/ostree-1.conf": "linux /k\noptions ro\n"},
         "rpm-ostree kargs --append-if-missing=iommu=pt"),
        ({CFG: None}, "not written, no configuration of a boot loader"),
    ],
)  # fmt: skip
def test_what_the_operator_is_told(node: Node, files: dict[str, str | None], says: str) -> None:
    host = node("quiet", files=files)
    assert says in KNOB.advice(host, "iommu", "pt")
    assert (drop_in(host, ("iommu", "pt")) != "") is (says.startswith(OURS))


def test_taking_a_token_off_is_the_operators(node: Node) -> None:
    grub = node("quiet", "iommu=off")
    bls = node("", "iommu=off", {CFG: "blscfg\n", "/boot/loader/entries/a.conf": "linux /k\noptions iommu=off\n"})
    assert "tuner takes nothing off: look in /etc/default/grub" in KNOB.advice(grub, "iommu", "absent")
    assert "grubby --update-kernel=DEFAULT --remove-args='iommu=off'" in KNOB.advice(bls, "iommu", "absent")


def bare(copy_host: Callable[..., Path]) -> Path:
    """The recorded server without the tokens that its profile wants."""
    root = copy_host("mi300x-cx7")
    for name in ("proc/cmdline", "etc/default/grub", "boot/grub/grub.cfg"):
        path = root / name
        mode = path.stat().st_mode
        path.chmod(0o644)
        path.write_text(path.read_text().replace("iommu=pt pci=realloc=off", "").replace('=""', '="quiet"'))
        path.chmod(mode)
    return root


def test_from_plan_to_pending(copy_host: Callable[..., Path], tmp_path: Path, tuner: Callable[..., Result]) -> None:
    """The file is class boot and held without --allow boot; once the menu is made again the token is pending."""
    root = bare(copy_host)
    profile = write_profile(tmp_path / "p.yaml", "cmdline:\n  iommu: pt")
    words = ("--root", root, "--profile", profile)
    plan = tuner("plan", *words, "--json").document
    assert [(c["knob"], c["target"], c["disruption"]) for c in plan["changes"]] == [("file", OURS, "boot")]
    assert plan["changes"][0]["held"]
    assert tuner("apply", *words, "--json").code == 0
    assert not (root / OURS[1:]).exists()
    assert tuner("apply", *words, "--allow", "boot", "--json").code == 0
    assert "iommu=${tuner_list1}pt" in (root / OURS[1:]).read_text()
    menu_file = root / CFG[1:]
    menu_file.chmod(0o644)
    menu_file.write_text(menu_file.read_text().replace(" ro ", " ro iommu=pt "))
    verify = tuner("verify", "--root", root, "--json")
    states = {v["knob"]: v["state"] for v in verify.document["verdicts"]}
    assert (verify.code, states) == (13, {"cmdline": "pending", "file": "ok"})
    assert tuner("rollback", "--root", root, "--json").code == 0
    assert not (root / OURS[1:]).exists()


def test_a_server_that_boots_right_gets_no_file(
    copy_host: Callable[..., Path], tmp_path: Path, tuner: Callable[..., Result]
) -> None:
    """Its tokens stand in /etc/default/grub, by its operator."""
    profile = write_profile(tmp_path / "p.yaml", "cmdline:\n  iommu: pt\n  pci: realloc=off")
    plan = tuner("plan", "--root", copy_host("mi300x-cx7"), "--profile", profile, "--json")
    assert (plan.code, plan.document["changes"]) == (0, [])
    assert [v["next_boot"] for v in plan.document["verdicts"]] == ["pt", "realloc=off"]
