"""Takes out of a manifest what tells which machine it is, each thing for a stand-in that is the same everywhere in it.

Serials, UUIDs, MAC and IP addresses, GUIDs, host names, secrets in unit files and boot lines. Stand-ins are numbered
as they come, so that nothing of the original can be worked out, and equal stays equal inside one manifest.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from dataclasses import replace

from tuner.host.manifest import Entry
from tuner.host.recorded import MARK
from tuner.host.replay import COMMANDS, NVML

NAME = "captured"
"""What the host is called afterwards."""

SERIALS = frozenset(
    {
        "unique_id", "serial", "serial_number", "product_serial", "board_serial", "chassis_serial", "product_uuid",
        "board_asset_tag", "chassis_asset_tag", "wwid", "wwn", "eui", "nguid", "uuid", "machine-id", "boot_id",
        "phys_switch_id", "tcp_fastopen_key",
    }
)  # fmt: skip
"""Files whose whole content is such a thing."""

HOST_FILES = frozenset({"/etc/hostname", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname"})
KEPT_NAMES = frozenset({"", "localhost", "(none)", "captured"})
ENVIRONMENT = ("NCCL_", "RCCL_", "UCX_", "HSA_", "HIP_")
"""Variables that stay readable."""

ASKED = (f"/{MARK}/{COMMANDS}/", f"/{MARK}/{NVML}/")
"""Where it is kept what programs and NVML said."""

UUID = re.compile(r"(?<![\w-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![\w-])")
PREFIXED = re.compile(r"(?<=GPU-|MIG-)[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![\w-])")
LABELLED = re.compile(
    r"(?i)(?<![a-z])(?:serial(?:[ _]?(?:number|no))?|unique[ _]id|fru[ _]id|gpu pdi)\"?[ \t]*:[ \t]*\"?(?:0x)?"
    r"((?=[a-z-]*[0-9])[0-9a-z][\w-]{5,})"
)
"""A serial number in what a tool prints: `Serial Number : 16529`, `"asic_serial": "0x01AB"`."""
COLUMNS = re.compile(r"--query-\S+?=(\S+)")
FASTOPEN = re.compile(r"(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{8}){3}(?![\w-])")
LONG = re.compile(r"(?<![0-9a-zA-Z])(?:[0-9a-f]{40}|[0-9a-f]{32})(?![0-9a-zA-Z])")
WORLD_WIDE = re.compile(r"(?<=eui\.|naa\.)[0-9a-f]{16,32}")
MAC = re.compile(
    r"(?<![\w:])[0-9a-fA-F]{2}(?P<s>[:-])(?:[0-9a-fA-F]{2}(?P=s)){4}(?:(?:[0-9a-fA-F]{2}(?P=s)){14})?[0-9a-fA-F]{2}(?![\w:])"
)
"""Of Ethernet, and the 20 bytes of IP over InfiniBand."""
IN_NAME = re.compile(r"(?<=enx)[0-9a-f]{12}|(?<=wlx)[0-9a-f]{12}")
GUID = re.compile(r"(?<![\w:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])")
IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
IPV6 = re.compile(r"(?<![\w:.])(?=[0-9a-fA-F]*:)[0-9a-fA-F:]{2,39}(?:(?:\.\d{1,3}){3})?(?![\w:])")
KFD = re.compile(r"^(unique_id )(\d+)$", re.MULTILINE)
VARIABLE = re.compile(
    r"^([ \t]*(?:Environment|DefaultEnvironment|SetCredential\w*)[ \t]*=)((?:.*\\\n)*.*)$", re.MULTILINE
)
WORD = re.compile(r"""(["']?)(?:(?<=")[^"]*|(?<=')[^']*|[^\s"'\\]\S*)\1""")
SECRET = re.compile(
    r"(?i)((?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)s?"
    r"(?:\s*[=:]\s*|\s+))(?![=:])(\"[^\"]*\"|'[^']*'|[^\s\"',;]+)"
)
GRUB = re.compile(r"(password_pbkdf2\s+\S+\s+|password\s+\S+\s+)\S+")
TOLD = re.compile(r"/(?:etc|run|usr/lib|usr/local/lib|lib)/systemd/|/etc/(?:default|sysconfig)/|/proc/cmdline$")
"""Where secrets may stand: unit files, drop-ins, boot lines."""


class Scrubber:
    """Stand-ins for one manifest; `counts` says how many different things of each kind were replaced."""

    def __init__(self, host_name: str, used: frozenset[str] = frozenset()) -> None:
        self._found: dict[tuple[str, str], str] = {}
        self._literals: dict[str, str] = {}
        short = host_name.partition(".")[0]
        self._names = {name for name in (host_name, short) if name not in KEPT_NAMES}
        self._used = used
        self._name = self._pattern()

    def counts(self) -> dict[str, int]:
        """How many of each kind."""
        kinds = [kind for kind, _ in self._found]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def scrub(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        """The manifest without them: contents, names in listings, texts of links, and paths."""
        for path, entry in entries.items():
            if path in HOST_FILES:
                self._learn_name(entry)
            if path.startswith(ASKED):
                self._learn_told(path, entry.data.decode("utf-8", "replace"))
            elif posixpath.basename(path) in SERIALS and entry.kind == "file":
                self._learn_serial(entry.data.decode("utf-8", "replace").strip())
        self._name = self._pattern()
        return {self.path(path): self._entry(path, entry) for path, entry in entries.items()}

    def path(self, path: str) -> str:
        """A path, each of its parts scrubbed."""
        own = path.startswith(("/proc/", "/sys/", *ASKED))
        return "/".join(self._part(part, kernel=own) for part in path.split("/"))

    def text(self, text: str) -> str:
        """Any text."""
        for value, other in self._literals.items():
            text = text.replace(value, other)
        for pattern, kind in ((UUID, "uuid"), (PREFIXED, "uuid"), (FASTOPEN, "serial"), (WORLD_WIDE, "serial")):
            text = pattern.sub(lambda m, kind=kind: self._stand_in(kind, m.group()), text)  # type: ignore[misc]
        text = MAC.sub(lambda m: self._stand_in("mac", m.group()), text)
        text = GUID.sub(lambda m: self._stand_in("guid", m.group()), text)
        text = IPV6.sub(lambda m: self._address(m.group()), text)
        text = IPV4.sub(lambda m: self._address(m.group()), text)
        text = LONG.sub(lambda m: self._stand_in("serial", m.group()), text)
        text = KFD.sub(lambda m: m.group(1) + self._decimal(m.group(2)), text)
        return self._name.sub(lambda m: self._stand_in("host name", m.group()), text) if self._name else text

    def _entry(self, path: str, entry: Entry) -> Entry:
        if entry.kind == "dir":
            kernel = f"{path}/".startswith(("/proc/", "/sys/"))
            return replace(entry, names=tuple(sorted(self._part(name, kernel=kernel) for name in entry.names)))
        if entry.kind == "link":
            kernel = path.startswith(("/proc/", "/sys/"))
            words = entry.data.decode("utf-8", "surrogateescape").split("/")
            text = "/".join(self._part(word, kernel=kernel) for word in words)
            return replace(entry, data=text.encode("utf-8", "surrogateescape"))
        return replace(entry, data=self._content(path, entry.data)) if entry.kind == "file" else entry

    def _content(self, path: str, data: bytes) -> bytes:
        if path in HOST_FILES:
            return data if data.decode("utf-8", "replace").strip() in KEPT_NAMES else f"{NAME}\n".encode()
        if b"\0" in data:
            for value, other in self._literals.items():
                data = data.replace(value.encode(), other.encode())
            return data
        text = data.decode("utf-8", "surrogateescape")
        if path in ("/proc/net/route", "/proc/net/ipv6_route"):
            return self._routes(text).encode("utf-8", "surrogateescape")
        if TOLD.match(path):
            text = VARIABLE.sub(lambda m: m.group(1) + WORD.sub(_variable, m.group(2)), text)
            text = GRUB.sub(r"\1scrubbed", SECRET.sub(r"\1scrubbed", text))
        return self.text(text).encode("utf-8", "surrogateescape")

    def _routes(self, text: str) -> str:
        """Addresses are hex words of 8 (least significant byte first) or 32 digits; masks and zeroes stay."""

        def four(word: str) -> str:
            plain = str(ipaddress.IPv4Address(bytes.fromhex(word)[::-1]))
            return ipaddress.IPv4Address(self._address(plain)).packed[::-1].hex().upper()

        lines = []
        for line in text.split("\n"):
            fields = line.split("\t")
            for place in (1, 2) if len(fields) > 7 else ():
                if re.fullmatch(r"[0-9A-F]{8}", fields[place]):
                    fields[place] = four(fields[place])
            joined = "\t".join(fields)
            lines.append(re.sub(r"\b[0-9a-f]{32}\b", lambda m: self._stand_in("serial", m.group()), joined))
        return "\n".join(lines)

    def _part(self, name: str, *, kernel: bool) -> str:
        """A part of a path: kernel files do not have the host's own name in theirs."""
        name = IN_NAME.sub(lambda m: self._stand_in("mac", m.group()), name)
        for pattern, kind in ((UUID, "uuid"), (PREFIXED, "uuid"), (LONG, "serial"), (MAC, "mac")):
            name = pattern.sub(lambda m, kind=kind: self._stand_in(kind, m.group()), name)  # type: ignore[misc]
        name = IPV4.sub(lambda m: self._address(m.group()), name)
        if kernel:
            return name
        if name.removesuffix(".yaml") in self._names and name.endswith(".yaml"):
            return f"{NAME}.yaml"
        return self._name.sub(NAME, name) if self._name else name

    def _learn_name(self, entry: Entry) -> None:
        name = entry.data.decode("utf-8", "replace").strip()
        if name not in KEPT_NAMES:
            self._names |= {name, name.partition(".")[0]} - KEPT_NAMES

    def _learn_told(self, path: str, text: str) -> None:
        """Serials in what programs and NVML said; UUIDs are known by their shape."""
        for found in LABELLED.finditer(text):
            self._learn_serial(found.group(1))
        if posixpath.basename(path) == "serial" and text.startswith('"'):
            self._learn_serial(text.strip().strip('"'))
        asked = COLUMNS.search(path)
        head = asked.group(1).split(",") if asked else []
        for place in (at for at, column in enumerate(head) if column in ("serial", "gpu_serial")):
            for cells in (line.split(", ") for line in text.splitlines()):
                value = cells[place].strip() if len(cells) == len(head) else ""
                self._learn_serial(value if re.fullmatch(r"\w*[0-9]\w*", value) else "")

    def _learn_serial(self, value: str) -> None:
        if len(value) >= 6 and len(set(value)) > 2 and "\n" not in value:
            self._literals[value] = self._stand_in("serial", value)

    def _pattern(self) -> re.Pattern[str] | None:
        """The names of this host as words, whole domain names included; not those that the kernel uses as well."""
        names = sorted((n for n in self._names if len(n) > 2 and n not in self._used), key=len, reverse=True)
        if not names:
            return None
        return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?:\.[A-Za-z][\w-]*)*(?![\w-])")

    def _decimal(self, digits: str) -> str:
        """KFD's unique_id is unique_id of the device in decimal, and stays so."""
        if len(digits) < 6:
            return digits
        return str(int(self._stand_in("serial", f"{int(digits):016x}"), 16))

    def _stand_in(self, kind: str, value: str) -> str:
        """The same for the same, in the shape of the original."""
        bare = re.sub(r"[^0-9a-zA-Z]", "", value).lower()
        if not bare.strip("0") or not bare.strip("f"):
            return value
        key = (kind, value if kind == "host name" else bare)
        if key not in self._found:
            number = 1 + sum(known == kind for known, _ in self._found)
            self._found[key] = NAME if kind == "host name" else _digits(number, kind, bare)
        return self._found[key] if kind == "host name" else _shaped(self._found[key], value)

    def _address(self, text: str) -> str:
        """An IP address; loopback, unspecified, masks and what is none stay."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        mask = address.version == 4 and text.startswith("255.")
        if address.is_loopback or address.is_unspecified or address.is_multicast or mask:
            return text
        inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        if inner is not None:
            fresh: ipaddress.IPv4Address | ipaddress.IPv6Address
            fresh = ipaddress.IPv6Address(f"::ffff:{self._address(str(inner))}")
            return fresh.exploded if len(text) == 39 else fresh.compressed
        key = ("ip", str(address))
        if key not in self._found:
            number = 1 + sum(kind == "ip" for kind, _ in self._found)
            local = "fe80::" if address.is_link_local else "2001:db8::"
            first = ipaddress.ip_address("198.18.0.0" if address.version == 4 else local)
            self._found[key] = str(first + number)
        fresh = ipaddress.ip_address(self._found[key])
        return fresh.exploded if len(text) == 39 else fresh.compressed


def _digits(number: int, kind: str, bare: str) -> str:
    """A number as long as the original; a MAC address is a locally administered one."""
    digits = f"{number:x}" if re.search("[a-f]", bare) or kind in ("mac", "uuid", "guid") else str(number)
    head = "02" if kind in ("mac", "guid") else "9" if kind == "serial" and bare[0] != "0" else ""
    return head + digits.zfill(len(bare) - len(head))


def _shaped(digits: str, value: str) -> str:
    """The digits with the separators of the original."""
    left = iter(digits[-sum(map(str.isalnum, value)) :])
    return "".join(next(left) if c.isalnum() else c for c in value)


def _variable(found: re.Match[str]) -> str:
    """NAME=VALUE without its value, unless it is a variable of a collective library; any other word without itself."""
    quote, word = found.group(1), found.group().strip("\"'")
    if word.startswith(ENVIRONMENT):
        return found.group()
    name, equals, _ = word.partition("=")
    return f"{quote}{name}=scrubbed{quote}" if equals else f"{quote}scrubbed{quote}"
