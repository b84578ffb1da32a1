"""What the kernel does to keys that no line names: keys that move each other, are copied, or appear later.

Documentation/networking/ip-sysctl.rst, admin-guide/sysctl/vm.rst; net/ipv4/devinet.c (inet_forward_change,
devinet_copy_dflt_conf) and net/ipv6/addrconf.c (addrconf_fixup_forwarding, addrconf_disable_ipv6) of Linux. Keys are
paths below /proc/sys.
"""

from __future__ import annotations

import re

SAME = (
    ("vm/dirty_bytes", "vm/dirty_ratio"),
    ("vm/dirty_background_bytes", "vm/dirty_background_ratio"),
    ("vm/overcommit_kbytes", "vm/overcommit_ratio"),
    ("vm/nr_hugepages", "vm/nr_hugepages_mempolicy"),
    ("net/nf_conntrack_max", "net/netfilter/nf_conntrack_max"),
    ("net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding"),
)
"""Two names of one value, or two values of which one is cleared when the other is written."""

PAIRED = {one: other for pair in SAME for one, other in (pair, pair[::-1])}
FORWARDING = ("net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding")
FROM_ALL = ("forwarding", "disable_ipv6", "ignore_routes_with_linkdown", "disable_policy", "addr_gen_mode")
"""Keys of net/ipv6/conf/all that are handed on to every interface and to `default`."""

INTERFACE = re.compile(r"net/(ipv4|ipv6)/(conf|neigh)/([^/]+)/([^/]+)")

MODULES = (
    ("net/netfilter/nf_conntrack_", "nf_conntrack"),
    ("net/nf_conntrack_max", "nf_conntrack"),
    ("net/bridge/", "br_netfilter"),
    ("net/ipv4/vs/", "ip_vs"),
    ("net/mpls/", "mpls_router"),
    ("net/rdma_ucm/", "rdma_ucm"),
    ("net/iw_cm/", "iw_cm"),
    ("net/sctp/", "sctp"),
    ("net/rds/", "rds"),
    ("net/smc/", "smc"),
    ("sunrpc/", "sunrpc"),
    ("fs/nfs/nlm_", "lockd"),
    ("fs/nfs/", "nfs"),
    ("fs/xfs/", "xfs"),
    ("dev/raid/", "md_mod"),
    ("dev/cdrom/", "cdrom"),
)
"""Keys that a module brings, which is loaded when something needs it: mostly long after systemd-sysctl has run."""


def movers(path: str) -> tuple[str, ...]:
    """Keys whose write changes this one as well."""
    found = [PAIRED[path]] if path in PAIRED else []
    if place := INTERFACE.fullmatch(path):
        family, kind, name, leaf = place.groups()
        if (family, kind) == ("ipv4", "conf") and (leaf, name == "all") in (
            ("forwarding", False),
            ("accept_redirects", True),
        ):
            found += FORWARDING
        if (family, kind) == ("ipv6", "conf") and name != "all" and leaf in FROM_ALL:
            found.append(f"net/ipv6/conf/all/{leaf}")
    return tuple(found)


def inherits(path: str) -> str:
    """The key whose value an interface's key starts with; empty for all others."""
    place = INTERFACE.fullmatch(path)
    if place is None or place[3] in ("all", "default"):
        return ""
    return f"net/{place[1]}/{place[2]}/default/{place[4]}"


def copied_from(path: str) -> str:
    """The key whose write also changes an interface's key, unless that was written before; empty for all others.

    systemd skips a write of what a key holds already, and to the kernel the key is then as if never written.
    """
    return "" if path.startswith("net/ipv6/conf/") else inherits(path)


def late_interface(path: str) -> str:
    """That the key of an interface is written when udev sees the interface, not at boot; empty for other keys."""
    place = INTERFACE.fullmatch(path)
    if place is None or place[3] in ("all", "default", "lo"):
        return ""
    return f"when {place[3]} appears: udev (99-systemd.rules) applies the files to it then"


def late_module(path: str, early: frozenset[str]) -> str:
    """That nobody writes the key once its module is loaded, unless that is before systemd-sysctl; empty otherwise."""
    module = next((module for prefix, module in MODULES if path.startswith(prefix)), "")
    if not module or module in early:
        return ""
    return f"only if module {module} is loaded before: name it in /etc/modules-load.d"
