"""The next boot line: GRUB's menu and environment, entries in files, unified images, and what is not known."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tuner.boot import grub, grub_defaults
from tuner.boot.bls import NoLine, compare, image_line
from tuner.boot.crash_kernel import inherits
from tuner.boot.entries import VARIABLES, VENDOR, booted
from tuner.boot.grub_defaults import Added, script
from tuner.boot.grub_script import Run
from tuner.boot.grub_words import Unparsed, parse
from tuner.boot.line import BootLine
from tuner.boot.tokens import held, kernel_part
from tuner.host import Host, open_host

CFG = "/boot/grub/grub.cfg"
ENV = "/boot/grub/grubenv"
UUID = "0bd9b1c2-6c5a-4f43-9b5c-6a1d3fdc2a11"
HEADER = """\
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="@DEFAULT@"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
"""
MENU = """\
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'simple' {
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root 0bd9b1c2-6c5a-4f43-9b5c-6a1d3fdc2a11
	linux	/vmlinuz-57 root=/dev/sda1 ro  quiet entry=simple
	initrd	/initrd.img-57
}
submenu 'Advanced options > all' $menuentry_id_option 'advanced' {
	menuentry 'Linux 57' --class debian $menuentry_id_option 'v57' {
		linux	/vmlinuz-57 root=/dev/sda1 ro entry=57
	}
	menuentry 'Linux 57 (recovery mode)' $menuentry_id_option 'v57-recovery' {
		linux	/vmlinuz-57 root=/dev/sda1 ro single entry=57-recovery
	}
	menuentry 'Linux 56' $menuentry_id_option 'v56' {
		linux	/vmlinuz-56 root=/dev/sda1 ro entry=56
	}
}
if [ "$grub_platform" = "efi" ]; then
	menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
		fwsetup
	}
fi
menuentry 'Memory test' { linux16 /memtest entry=memtest }
"""
"""The form of grub-mkconfig 2.06 (util/grub.d/10_linux.in), cut down to what decides."""

Node = Callable[..., Host]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """node({PATH: TEXT}, line=...) -> a host of these files that GRUB started."""

    def make(files: Mapping[str, str | bytes], line: str = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro") -> Host:
        root = tmp_path / f"node{len(list(tmp_path.iterdir()))}"
        for path, text in {"/proc/cmdline": f"{line}\n", **files}.items():
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (root / path[1:]).write_bytes(text if isinstance(text, bytes) else text.encode())
        return Host(str(root), "live", "node", "6.8.0")

    return make


def entry(line: BootLine) -> str:
    """Which of MENU's entries a line is of, or why it is not known."""
    return line.why if line.text is None else held(kernel_part(line.text)[0], "entry")


def menu(default: str = "0") -> str:
    """A whole configuration."""
    return HEADER.replace("@DEFAULT@", default) + MENU


# --- which entry


@pytest.mark.parametrize(
    ("default", "chosen"),
    [
        ("0", "simple"),
        ("", "simple"),
        ("1>2", "56"),
        ("1>1", "57-recovery"),
        ("1", "57"),
        ("advanced>v56", "56"),
        ("advanced", "57"),
        ("Advanced options >> all>Linux 56", "56"),
        ("advanced>2", "56"),
        ("advanced>56", "57"),
        ("advanced>nothing", "57"),
        ("Debian GNU/Linux", "simple"),
        ("no such entry", "simple"),
        ("9", "simple"),
        ("1>9", "57"),
        ("Memory test", "memtest"),
    ],
)
def test_the_default_entry(node: Node, default: str, chosen: str) -> None:
    """By number, title or id, the rest of it inside the submenu; what is not there means the first (normal/menu.c)."""
    assert entry(booted(node({CFG: menu(default)}))) == chosen


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ("", "simple"),
        ("saved_entry=advanced>v56\n", "56"),
        ("saved_entry=1>2\n", "56"),
        ("saved_entry=advanced>v56\nnext_entry=simple\n", "simple"),
        ("saved_entry=\n", "simple"),
        ("saved_entry=Linux\\\\56\n", "simple"),
    ],
)
def test_the_saved_entry(node: Node, environment: str, chosen: str) -> None:
    """GRUB_DEFAULT=saved: grub-set-default and grub-reboot write the environment block."""
    block = f"# GRUB Environment Block\n{environment}".ljust(1024, "#")
    assert entry(booted(node({CFG: menu("${saved_entry}"), ENV: block}))) == chosen


def test_a_number_behind_an_entry_that_may_be_missing_is_not_known(node: Node) -> None:
    """The firmware entry is only there with UEFI: 2 is that one or the memory test."""
    assert "known to GRUB alone" in entry(booted(node({CFG: menu("2")})))


@pytest.mark.parametrize("default", ["57-recovery-of-old", "7b3a9c1e-5.14.0"])
def test_a_name_that_begins_with_a_number_and_is_no_entry(node: Node, default: str) -> None:
    """Releases of GRUB differ: some read the number that it begins with (grub_strtoul)."""
    assert "may take it for a number" in entry(booted(node({CFG: menu(default)})))


def test_where_the_line_stands(node: Node) -> None:
    line = booted(node({CFG: menu()}))
    number = menu().splitlines().index("\tlinux	/vmlinuz-57 root=/dev/sda1 ro  quiet entry=simple") + 1
    assert line == BootLine(
        "grub",
        "BOOT_IMAGE=/vmlinuz-57 root=/dev/sda1 ro quiet entry=simple",
        f"{CFG}:{number}",
        title="Debian GNU/Linux",
    )


# --- the language


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("linux /k a  b\tc", "a b c"),
        ("linux /k 'a b' c", '"a b" c'),
        ('linux /k "a b"', '"a b"'),
        ('linux /k dyndbg="file x +p"', '"dyndbg=file x +p"'),
        ("linux /k a\\ b", '"a b"'),
        ("linux /k a # b", "a"),
        ("linux /k a#b", "a#b"),
        ("linux /k a; true", "a"),
        ("set x='1 2'; linux /k $x \"$x\"", '1 2 "1 2"'),
        ("set x=; linux /k a $x b", "a b"),
        ("linux /k a${nothing}b", "ab"),
        ("linux /k a \\\n b", "a b"),
        ("if true; then linux /k a; else linux /k b; fi", "a"),
        ("if false; then linux /k a; elif [ 1 = 2 ]; then linux /k b; else linux /k c; fi", "c"),
        ("if [ ! -e $prefix/nothing -a -s $prefix/grub.cfg ]; then linux /k a; fi", "a"),
        ("if [ -n '' -o -z '' ]; then linux /k a; else linux /k b; fi", "a"),
        ("if [ a != a ]; then linux /k a; else linux /k b; fi", "b"),
        ("function f { set y=$1; }; f 7; linux /k $y", "7"),
        ("if hwmatch x 3; then linux /k a; else linux /k a; fi", "a"),
        ("set z=1; if probe x; then set q=2; fi; linux /k $z", "1"),
    ],
)
def test_words_and_conditions(node: Node, body: str, words: str) -> None:
    line = booted(node({CFG: f"menuentry one {{\n{body}\n}}\n"}))
    assert (line.text, line.why) == (f"BOOT_IMAGE=/k {words}", "")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("if hwmatch x 3; then linux /k a; else linux /k b; fi", "known to GRUB alone"),
        ("linux /k root=$root", "known to GRUB alone"),
        ("search --set=x --fs-uuid 1; linux /k $x", "known to GRUB alone"),
        ("search.fs_uuid 1 x; linux /k $x", "known to GRUB alone"),
        ("if [ $grub_platform = pc ]; then set x=1; fi; linux /k $x", "known to GRUB alone"),
        ("chainloader +1", "no line linux"),
        ("for x in 1 2; do linux /k $x; done", "a loop is not followed"),
        ("source /boot/other/more.cfg; linux /k a", "which GRUB alone can find"),
        ("load_env -f /other/grubenv; linux /k a", "loads variables from /other/grubenv"),
        ("linux /k a | b", "| is not followed"),
        ("linux /k 'a", "a quote is left open"),
        ("function f { f; }; f; linux /k a", "call one another too often"),
    ],
)
def test_what_is_not_followed_is_said(node: Node, body: str, why: str) -> None:
    line = booted(node({CFG: f"menuentry one {{\n{body}\n}}\n"}))
    assert line.text is None
    assert why in line.why


def test_vt_handoff_of_ubuntu_changes_no_other_token(node: Node) -> None:
    """With `splash` grub-mkconfig of Ubuntu ends the line with $vt_handoff, which the screen decides."""
    body = (
        "if hwmatch x 3; then set vt_handoff=vt.handoff=7; else set vt_handoff=; fi\nlinux /k quiet splash $vt_handoff"
    )
    assert booted(node({CFG: f"menuentry one {{\n{body}\n}}\n"})).text == "BOOT_IMAGE=/k quiet splash"


def test_custom_cfg_beside_the_configuration_takes_part(node: Node) -> None:
    """util/grub.d/41_custom.in."""
    more = "if [ -f  ${config_directory}/custom.cfg ]; then\n  source ${config_directory}/custom.cfg\nfi\n"
    files = {
        CFG: menu("0") + more,
        "/boot/grub/custom.cfg": "set default=mine\nmenuentry mine { linux /k entry=mine }\n",
    }
    line = booted(node(files))
    assert (entry(line), line.where) == ("mine", "/boot/grub/custom.cfg:2")


SNIPS = st.sampled_from([
    "menuentry", "submenu", "a", "'b c'", '"$x"', "$y", "{", "}", "\n", ";", "if", "then", "else", "elif", "fi", "[",
    "]", "=", "set", "x=1", "default=1>2", "linux", "/k", "function", "f", "#", "\\", "'", '"', "$", "${", "load_env",
    "search", "--set=root", "for", "do", "done", "|", "--id", "blscfg", "source", "$prefix/grub.cfg", "-s", "!",
])  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(SNIPS, max_size=30).map(" ".join) | st.text(max_size=60))
@example("menuentry { { { {")
@example("function f { f ; } ; f")
@example("if [ ; then ; fi")
def test_any_text_is_followed_or_refused(text: str) -> None:
    """Never another error, and never for long."""

    def look(path: str) -> str | None:
        return text if path.endswith("grub.cfg") else None

    run = Run(CFG, look, dict)
    run.variables["prefix"] = "/boot/grub"
    try:
        run.run(parse(text))
        grub._choose(run)
    except Unparsed:
        return


# --- loaders and hosts


def test_a_kernel_that_grub_did_not_start(node: Node) -> None:
    """qemu -kernel, iPXE and kexec leave no BOOT_IMAGE=; grub.cfg may lie there all the same."""
    line = booted(node({CFG: menu()}, "root=/dev/sda1 ro quiet"))
    assert line.text is None
    assert "GRUB did not start this kernel" in line.why


def test_no_boot_loader(node: Node) -> None:
    assert "no configuration of a boot loader" in booted(node({})).why


def test_copies_that_proxmox_boots(node: Node) -> None:
    """grub.cfg below /boot is then no file that GRUB reads."""
    line = booted(node({CFG: menu(), "/etc/kernel/proxmox-boot-uuids": "A1B2-C3D4\n"}))
    assert "proxmox-boot-tool starts copies" in line.why


def test_two_configurations(node: Node) -> None:
    assert "which one GRUB reads" in booted(node({CFG: menu(), "/boot/grub2/grub.cfg": menu()})).why


def test_a_configuration_that_only_root_may_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian and Ubuntu make it 0600."""
    host = node({CFG: menu()})
    true = host.read

    def read(path: str) -> bytes:
        if path == CFG:
            raise PermissionError(13, "Permission denied", path)
        return true(path)

    monkeypatch.setattr(host, "read", read)
    assert booted(host) == BootLine("grub", why="needs root")


EL8 = """\
if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
elif [ -s $prefix/grubenv ]; then
  load_env
fi
set default="${saved_entry}"
if [ -z "${kernelopts}" ]; then
  set kernelopts="root=/dev/sda1 ro fallback"
fi
insmod blscfg
blscfg
if [ "${boot_success}" = "1" -o "${boot_indeterminate}" = "1" ]; then
  set menu_hide_ok=1
fi
"""
"""The form that grub2-mkconfig of Enterprise Linux 8 gives its part of the entries."""

ID = "b1d5a9b0c2e94e3fb7a1d5a9b0c2e94e"
OLD, NEW = f"{ID}-4.18.0-513.el8.x86_64", f"{ID}-4.18.0-553.el8.x86_64"


def snippet(version: str, options: str) -> str:
    """An entry as kernel-install writes it."""
    return f"title Linux {version}\nversion {version}\nlinux /vmlinuz-{version}\noptions {options}\ngrub_class kernel\n"


@pytest.mark.parametrize(
    ("environment", "options", "line", "where"),
    [
        (f"saved_entry={OLD}\nkernelopts=root=/dev/sdb ro iommu=pt\n", "$kernelopts $tuned_params",
         "BOOT_IMAGE=/vmlinuz-old root=/dev/sdb ro iommu=pt", OLD),
        (f"saved_entry={OLD}\n", "$kernelopts", "BOOT_IMAGE=/vmlinuz-old root=/dev/sda1 ro fallback", OLD),
        ("saved_entry=\n", "root=/dev/sda1 ro", "BOOT_IMAGE=/vmlinuz-new root=/dev/sda1 ro", NEW),
        ("saved_entry=gone\n", "root=/dev/sda1 ro", "BOOT_IMAGE=/vmlinuz-new root=/dev/sda1 ro", NEW),
        (f"saved_entry={OLD}\ntuned_params=isolcpus=1\n", "$tuned_params", "BOOT_IMAGE=/vmlinuz-old isolcpus=1", OLD),
    ],
)  # fmt: skip
def test_entries_in_files(node: Node, environment: str, options: str, line: str, where: str) -> None:
    """Enterprise Linux 8 keeps the line in grubenv, 9 in each entry; without a saved one the newest is first."""
    host = node({
        "/boot/grub2/grub.cfg": EL8, "/boot/grub2/grubenv": environment,
        f"/boot/loader/entries/{OLD}.conf": snippet("old", options),
        f"/boot/loader/entries/{NEW}.conf": snippet("new", options),
    })  # fmt: skip
    found = booted(host)
    assert (found.loader, found.text, found.where) == ("bls", line, f"/boot/loader/entries/{where}.conf:4")


def test_ostree(node: Node) -> None:
    """The deployment with the higher number is booted: ostree sorts its entries by version."""
    found = booted(node({
        "/boot/grub2/grub.cfg": "blscfg\n", "/run/ostree-booted": "",
        "/boot/loader/entries/ostree-1-fedora.conf": snippet("1", "root=/dev/sda1 ostree=/ostree/boot.0/old"),
        "/boot/loader/entries/ostree-2-fedora.conf": snippet("2", "root=/dev/sda1 ostree=/ostree/boot.0/new"),
    }))  # fmt: skip
    assert (found.loader, held(kernel_part(found.text or "")[0], "ostree")) == ("ostree", "/ostree/boot.0/new")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("5.14.0-284.el9", "5.14.0-362.el9"),
        ("5.9", "5.10"),
        ("1.0~rc1", "1.0"),
        ("1.0", "1.0^git1"),
        ("1.0^git1", "1.0.1"),
        ("1.0a", "1.0.1"),
        ("a", "b"),
        ("6.8.0", "6.8.0-1"),
    ],
)
def test_versions_as_rpm_orders_them(old: str, new: str) -> None:
    """The rules of rpm's tests/rpmvercmp.at."""
    assert compare(old, new) == -1
    assert compare(new, old) == 1


@pytest.mark.parametrize(("one", "other"), [("1.0", "1.0"), ("1.05", "1.5"), ("1_0", "1.0")])
def test_versions_that_are_equal(one: str, other: str) -> None:
    assert compare(one, other) == 0


def variable(name: str, value: str) -> dict[str, bytes]:
    """A variable of the boot loader: four bytes of attributes, then UTF-16."""
    return {f"{VARIABLES}/{name}-{VENDOR}": b"\x06\0\0\0" + f"{value}\0".encode("utf-16-le")}


LOADER_CONF = "/boot/efi/loader/loader.conf"
SD_BOOT = variable("LoaderInfo", "systemd-boot 255.4")


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({LOADER_CONF: "timeout 3\n"}, "new=1"),
        ({LOADER_CONF: "default a-old.conf\n"}, "old=1"),
        ({LOADER_CONF: "default *-old*\n"}, "old=1"),
        ({LOADER_CONF: "default a-old.conf\n", **variable("LoaderEntryDefault", "a-new.conf")}, "new=1"),
        ({LOADER_CONF: "", **variable("LoaderEntryDefault", "a-new.conf"),
          **variable("LoaderEntryOneShot", "a-old.conf")}, "old=1"),
        ({LOADER_CONF: "default @saved\n", **variable("LoaderEntryLastBooted", "a-old.conf")}, "old=1"),
        ({LOADER_CONF: "default gone.conf\n"}, None),
        ({LOADER_CONF: "", "/boot/efi/loader/entries/b+3.conf": snippet("9", "x")}, None),
    ],
)  # fmt: skip
def test_systemd_boot(node: Node, files: dict[str, str | bytes], line: str | None) -> None:
    found = booted(node({
        **SD_BOOT, "/boot/efi/loader/entries/a-old.conf": snippet("6.8.0-40", "old=1"),
        "/boot/efi/loader/entries/a-new.conf": snippet("6.8.0-60", "new=1"), **files,
    }))  # fmt: skip
    assert (found.loader, found.text) == ("systemd-boot", line)


def image(line: bytes, name: bytes = b".cmdline", at: int = 1024) -> bytes:
    """A PE file with two sections, one of which holds the boot line."""
    dos = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x80)
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 2, 0, 0, 0, 16, 0) + b"\0" * 16
    sections = [(b".osrel", b"ID=x"), (name, line)]
    table = b"".join(
        n.ljust(8, b"\0") + struct.pack("<IIII", len(d), 0, (len(d) + 511) // 512 * 512, at + 512 * i) + b"\0" * 16
        for i, (n, d) in enumerate(sections)
    )
    body = b"".join(data.ljust((len(data) + 511) // 512 * 512, b"\0") for _, data in sections)
    return (dos.ljust(0x80, b"\0") + coff + table).ljust(at, b"\0") + body


def test_the_line_inside_a_unified_image(node: Node) -> None:
    files = {**SD_BOOT, LOADER_CONF: "", "/boot/efi/EFI/Linux/x.efi": image(b"ro iommu=pt\n\0")}
    assert booted(node(files)) == BootLine("uki", "ro iommu=pt", "/boot/efi/EFI/Linux/x.efi")
    extra = node({**files, "/boot/efi/EFI/Linux/x.efi.extra.d/a.addon.efi": b""})
    assert "may add to the line" in booted(extra).why


@pytest.mark.parametrize(
    "data",
    [b"", b"MZ", image(b"x")[:200], image(b"x", b".other"), image(b"x" * 600)[:1700], image(b"x", at=1 << 24)[:4096],
     b"MZ".ljust(0x3C, b"\0") + b"\xff\xff\xff\xff"],
)  # fmt: skip
def test_an_image_without_a_line_says_so(node: Node, data: bytes) -> None:
    with pytest.raises(NoLine):
        image_line(node({"/x.efi": data}), "/x.efi")


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), at=st.integers(0, 1100), value=st.binary(min_size=1, max_size=8))
def test_a_broken_image_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, value: bytes
) -> None:
    root = tmp_path_factory.mktemp("image")
    whole = image(b"ro quiet")
    for content in (data, whole[:at] + value + whole[at + len(value) :]):
        (root / "x").write_bytes(content)
        try:
            image_line(Host(str(root), "image", "x", ""), "/x")
        except NoLine:
            continue


def test_an_image_that_the_firmware_starts(node: Node) -> None:
    assert "the firmware" in booted(node(variable("StubInfo", "systemd-stub 255"))).why


def test_the_recorded_hosts(copy_host: Callable[..., Path]) -> None:
    """The Debian guest was started by qemu itself; the server by Ubuntu's GRUB, as its running line says."""
    assert "GRUB did not start" in booted(open_host(str(copy_host("plain-vm")))).why
    host = open_host(str(copy_host("mi300x-cx7")))
    assert f"{booted(host).text}\n" == host.text("/proc/cmdline")


# --- /etc/default/grub


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"grub": 'GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX_DEFAULT="b c"\n'}, "a b c"),
        ({"grub": "GRUB_CMDLINE_LINUX=a\n"}, "a"),
        ({"grub": "GRUB_CMDLINE_LINUX='a b' # why\n"}, "a b"),
        ({"grub": "#GRUB_CMDLINE_LINUX=a\n"}, ""),
        ({"grub": 'GRUB_CMDLINE_LINUX="a"\n', "grub.d/50.cfg": 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX b"\n'}, "a b"),
        ({"grub": 'GRUB_CMDLINE_LINUX="a"\n', "grub.d/50.conf": "GRUB_CMDLINE_LINUX=b\n"}, "a"),
        ({"grub": 'GRUB_CMDLINE_LINUX="a"\n', "grub.d/zz-tuner.cfg": "GRUB_CMDLINE_LINUX=b\n"}, "a"),
        ({"grub": "GRUB_CMDLINE_LINUX=`uname -r`\n"}, ""),
        ({"grub": 'GRUB_CMDLINE_LINUX="a $(id)"\n'}, ""),
        ({"grub": 'export GRUB_CMDLINE_LINUX="a \\"b\\""\n'}, 'a "b"'),
    ],
)
def test_the_files_that_are_sourced(node: Node, files: dict[str, str], line: str) -> None:
    """As sh would read them, as far as they are plain text; ours left out."""
    assert grub_defaults.line(node({f"/etc/default/{name}": text for name, text in files.items()})) == line


DEBIAN = {"/etc/os-release": "ID=debian\n", "/etc/default/grub": 'GRUB_CMDLINE_LINUX=""\n'}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, ""),
        ({"/etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n'}, ""),
        ({"/etc/os-release": 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'}, "Debian's and Ubuntu's GRUB only"),
        ({"/etc/default/grub": "GRUB_DISABLE_RECOVERY=true\n"}, "/etc/default/grub:1 leaves recovery entries out"),
        ({"/etc/default/grub": 'GRUB_DISABLE_RECOVERY="true"\n'}, "leaves recovery entries out"),
        ({"/etc/default/grub": 'GRUB_DISABLE_RECOVERY="false"\n'}, ""),
        ({"/etc/default/grub": '#GRUB_DISABLE_RECOVERY="true"\n'}, ""),
        ({"/etc/default/grub": 'GRUB_CMDLINE_LINUX="a -- b"\n'}, "behind -- at /etc/default/grub:1"),
    ],
)
def test_where_a_drop_in_is_written(node: Node, files: dict[str, str], why: str) -> None:
    """Only where one entry stays without our tokens."""
    found = grub_defaults.unfit(node({**DEBIAN, **files}))
    assert why in found
    assert bool(why) == bool(found)


def shell(tmp_path: Path, added: list[Added], value: str, shell_name: str = "sh") -> str:
    """What a shell makes of the variable, sourcing the drop-in twice under `set -eu`, as a rerun of grub-mkconfig."""
    path = tmp_path / "zz-tuner.cfg"
    path.write_text(script(added))
    code = 'set -eu; GRUB_CMDLINE_LINUX_DEFAULT=$1; . "$2"; printf %s "$GRUB_CMDLINE_LINUX_DEFAULT"'
    argv = [shell_name, "-c", code, "sh", value, str(path)]
    return subprocess.run(argv, check=True, capture_output=True, text=True, cwd="/").stdout


IOMMU = Added("iommu", ("iommu=pt",), ("pt",))
PCI = Added("pci", ("pci=realloc=off",), ("realloc=off",))
THP = Added("transparent_hugepage", ("transparent_hugepage=never",))
POOLS = [Added("hugepagesz", ("hugepagesz=1G",), alone=False), Added("hugepages", ("hugepages=4",), alone=False)]


@pytest.mark.parametrize(
    ("added", "before", "after"),
    [
        ([IOMMU], "quiet splash", "quiet splash iommu=pt"),
        ([IOMMU], "", " iommu=pt"),
        ([IOMMU], "iommu=pt quiet", "quiet iommu=pt"),
        ([IOMMU], "iommu=soft,pt xiommu=1", "xiommu=1 iommu=soft,pt"),
        ([IOMMU, PCI], "pci=noaer pci=nomsi", " iommu=pt pci=noaer,nomsi,realloc=off"),
        ([THP], "transparent-hugepage=always quiet", "quiet transparent_hugepage=never"),
        ([Added("nosmt", ("nosmt",))], "nosmt=force", " nosmt"),
        (POOLS, "hugepages=4 quiet", "quiet hugepagesz=1G hugepages=4"),
        ([IOMMU], "quiet -- single", "quiet iommu=pt -- single"),
        ([IOMMU], 'dyndbg="file *.c +p" iommu=soft', 'dyndbg="file *.c +p" iommu=soft iommu=pt'),
        ([THP], "glob=* x=[a]", "glob=* x=[a] transparent_hugepage=never"),
    ],
)
@pytest.mark.parametrize("name", ["sh", "bash"])
def test_the_drop_in(tmp_path: Path, added: list[Added], before: str, after: str, name: str) -> None:
    """Ours take the place of the same name, lists are merged, everything else stays; words of quotes are left alone."""
    assert shell(tmp_path, added, before, name) == after


WORD = st.from_regex(r"[a-z][a-z_.-]{0,4}(=[a-z0-9,.:/*-]{0,6})?", fullmatch=True) | st.sampled_from([
    "iommu=pt", "iommu=nopt", "pci=noaer,realloc=on", "pci=realloc=off", "transparent-hugepage=always", "iommu", "--",
])  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORD, max_size=8))
def test_the_drop_in_keeps_what_is_not_ours(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    """Read as the kernel reads it: ours are in force, all other parameters are as before."""
    before = " ".join(words)
    after = shell(tmp_path_factory.mktemp("sh"), [IOMMU, PCI, THP], before)
    (old, old_init), (new, new_init) = kernel_part(before), kernel_part(after)
    ours = {"iommu", "pci", "transparent_hugepage"}
    assert [token for token in new if token[0] not in ours] == [token for token in old if token[0] not in ours]
    assert new_init == old_init
    assert "pt" in held(new, "iommu").split(",")
    assert "realloc=off" in held(new, "pci").split(",")
    assert held(new, "transparent_hugepage") == "never"
    assert len([name for name, _ in new if name == "transparent_hugepage"]) == 1


# --- kdump

CRASH = "BOOT_IMAGE=/vmlinuz ro crashkernel=512M"
KDUMP_TOOLS = "KDUMP_CMDLINE=$(sed -re 's/(^| )(crashkernel|hugepages|hugepagesz)=[^ ]*//g' /proc/cmdline)\n"


@pytest.mark.parametrize(
    ("line", "files", "inherited"),
    [
        ("ro", {"/etc/sysconfig/kdump": 'KDUMP_COMMANDLINE_REMOVE="quiet"\n'}, False),
        (CRASH, {}, False),
        (CRASH, {"/etc/sysconfig/kdump": 'KDUMP_COMMANDLINE_REMOVE="hugepages hugepagesz slub_debug quiet"\n'}, False),
        (CRASH, {"/etc/sysconfig/kdump": 'KDUMP_COMMANDLINE_REMOVE="slub_debug quiet"\n'}, True),
        (CRASH, {"/etc/sysconfig/kdump": 'KDUMP_COMMANDLINE=""\nKDUMP_COMMANDLINE_REMOVE="hugepagesz"\n'}, True),
        (CRASH, {"/etc/sysconfig/kdump": 'KDUMP_COMMANDLINE="ro"\n'}, False),
        (CRASH, {"/etc/default/kdump-tools": "USE_KDUMP=1\n", "/usr/sbin/kdump-config": KDUMP_TOOLS}, False),
        (CRASH, {"/etc/default/kdump-tools": "USE_KDUMP=1\n", "/usr/sbin/kdump-config": "cat /proc/cmdline\n"}, True),
        (CRASH, {"/etc/default/kdump-tools": 'KDUMP_CMDLINE="ro"\n'}, False),
    ],
)
def test_whether_the_crash_kernel_inherits_huge_pages(
    node: Node, line: str, files: dict[str, str], inherited: bool
) -> None:
    assert bool(inherits(node(files, line))) is inherited
