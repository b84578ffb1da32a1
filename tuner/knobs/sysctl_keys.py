"""Keys of /proc/sys that tuner knows: shape, range, the word list or module behind a key, the release that dropped it.

Kernel documents: Documentation/admin-guide/sysctl/{vm,kernel,fs,net}.rst, Documentation/networking/ip-sysctl.rst and
nf_conntrack-sysctl.rst, Documentation/admin-guide/LSM/Yama.rst. Where they are silent, the tables in kernel/sysctl.c,
net/core/sysctl_net_core.c, net/core/neighbour.c, net/ipv4/sysctl_net_ipv4.c, net/ipv4/devinet.c, fs/, ipc/ and mm/.

A bound stands here only where no kernel from 4.18 on takes what lies outside, where the document names the closed set
of values, or where a negative number means nothing. A key that is not in the table is not wrong, only not checked.
"""

from __future__ import annotations

from typing import NamedTuple

VM = "Documentation/admin-guide/sysctl/vm.rst"
KERNEL = "Documentation/admin-guide/sysctl/kernel.rst"
FS = "Documentation/admin-guide/sysctl/fs.rst"
NET = "Documentation/admin-guide/sysctl/net.rst"
IP = "Documentation/networking/ip-sysctl.rst"
CONNTRACK = "Documentation/networking/nf_conntrack-sysctl.rst"
CORE = "net/core/sysctl_net_core.c"
BRIDGE = "net/bridge/br_netfilter_hooks.c"
SCHED = "kernel/sched/debug.c"
DEBUGFS = "/sys/kernel/debug/sched/"

INT = 2**31 - 1  # the largest number that a key stored as int takes
PORT = 65535
IPCMNI = "Above 32768 only with ipcmni_extend on the boot line."


class Key(NamedTuple):
    """What tuner knows of one key. Numbers are in the unit of the key itself (bytes, pages, seconds ...).

    shape       how the file reads: `int` one number; `vector` numbers between blanks; `word` one token;
                `ports` list of port ranges "1,5-9"; `mask` list of CPU ranges "0,2-4"; `text` the line as it is.
                The kernel reads numbers in base 0 and shows them in decimal; it sorts and joins ranges.
    length      how many numbers a vector has; a shorter write changes only the first ones, so ask for all of them
    low, high   inclusive bounds on every number; None = whatever the kernel's own type takes
    words       the closed set that a word is taken from; empty = open
    offered_in  key whose file lists the words this kernel offers now; writing one that is not listed may still load
                the module that has it, so the list is a hint and no ground for refusing
    dropped     first kernel release without the key, as kernel.org counts (distributions move features both ways:
                whether the file is there decides, the release only explains)
    moved_to    where it went, for the message
    since       first kernel.org release that has it, where later than 4.18
    module      module that creates the key: without it the file is absent
    disruption  `none`, or `memory` where a write moves or reclaims pages of running processes at once
    checked     False: a supported kernel takes numbers outside low..high without an error, so that the bounds here
                are the only guard (an older kernel may ignore such a number and report success)
    doc         kernel document or source file that the line rests on
    note        one sentence for whoever asks why a value does not do what was hoped
    """

    shape: str = "int"
    length: int = 1
    low: int | None = None
    high: int | None = None
    words: tuple[str, ...] = ()
    offered_in: str = ""
    dropped: str = ""
    moved_to: str = ""
    since: str = ""
    module: str = ""
    disruption: str = "none"
    checked: bool = True
    doc: str = ""
    note: str = ""


NET_CORE: dict[str, Key] = {
    # socket buffers, bytes; the lower bound is SOCK_MIN_RCVBUF / SOCK_MIN_SNDBUF where a cache line has 64 bytes
    "net.core.rmem_max": Key(
        low=2304,
        high=INT,
        doc=CORE,
        note="Not doubled here: a socket's SO_RCVBUF is, and "
        "getsockopt shows the doubled number; TCP autotuning goes by tcp_rmem instead.",
    ),
    "net.core.wmem_max": Key(
        low=4608,
        high=INT,
        doc=CORE,
        note="Not doubled here: a socket's SO_SNDBUF is, and "
        "getsockopt shows the doubled number; TCP autotuning goes by tcp_wmem instead.",
    ),
    "net.core.rmem_default": Key(
        low=2304,
        high=INT,
        doc=CORE,
        note="Every UDP, raw and netlink socket gets it: a "
        "large value is a memory hazard. TCP takes tcp_rmem[1] instead.",
    ),
    "net.core.wmem_default": Key(
        low=4608,
        high=INT,
        doc=CORE,
        note="Every UDP, raw and netlink socket gets it: a "
        "large value is a memory hazard. TCP takes tcp_wmem[1] instead.",
    ),
    "net.core.optmem_max": Key(low=0, high=INT, checked=False, doc=NET),
    # queues and polling
    "net.core.netdev_max_backlog": Key(
        low=0,
        high=INT,
        checked=False,
        doc=NET,
        note="Packets per CPU; drivers that poll (NAPI) only meet it through RPS, tunnels and loopback.",
    ),
    "net.core.netdev_budget": Key(low=0, high=INT, checked=False, doc=NET),
    "net.core.netdev_budget_usecs": Key(
        low=0, high=INT, doc=NET, note="Some kernels refuse less than two timer ticks (8000 at HZ=250)."
    ),
    "net.core.dev_weight": Key(low=1, high=INT, checked=False, doc=NET),
    "net.core.somaxconn": Key(
        low=0,
        high=INT,
        doc=IP,
        note="A listener gets the smaller of this and its own backlog; "
        "rdma_cm listeners are limited by net.rdma_ucm.max_backlog. 4096 since 5.4, else 128.",
    ),
    "net.core.busy_poll": Key(low=0, high=INT, doc=NET, note="Microseconds; burns CPU, and RDMA does not use it."),
    "net.core.busy_read": Key(low=0, high=INT, doc=NET, note="Microseconds; burns CPU, and RDMA does not use it."),
    "net.core.default_qdisc": Key(
        shape="word",
        doc=NET,
        note="Existing devices keep their qdisc; multi-queue devices "
        "keep mq at the root and give it to the leaves. The kernel loads module sch_NAME.",
    ),
    "net.core.rps_sock_flow_entries": Key(
        low=0,
        high=2**29,
        doc="Documentation/networking/scaling.rst",
        note="Rounded up to a power of two, so it may read back larger.",
    ),
    "net.core.netdev_tstamp_prequeue": Key(low=0, high=1, checked=False, doc=NET),
    "net.core.bpf_jit_enable": Key(low=0, high=2, doc=NET, note="Only 1 where the kernel has BPF_JIT_ALWAYS_ON."),
    "net.core.bpf_jit_harden": Key(low=0, high=2, doc=NET),
}

TCP: dict[str, Key] = {
    # buffers: bytes, except tcp_mem in pages
    "net.ipv4.tcp_rmem": Key(
        shape="vector",
        length=3,
        low=1,
        high=INT,
        doc=IP,
        note="min, default, max; not limited "
        "by rmem_max. max below min is taken; newer kernels refuse numbers under 4096.",
    ),
    "net.ipv4.tcp_wmem": Key(
        shape="vector",
        length=3,
        low=1,
        high=INT,
        doc=IP,
        note="min, default, max; not limited by wmem_max. max below min is taken.",
    ),
    "net.ipv4.tcp_mem": Key(
        shape="vector",
        length=3,
        low=0,
        checked=False,
        doc=IP,
        note="Pages of all TCP sockets: min, pressure, max; computed from memory at boot.",
    ),
    "net.ipv4.tcp_moderate_rcvbuf": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.tcp_adv_win_scale": Key(low=-31, high=31, doc=IP, note="Without effect since 6.6."),
    "net.ipv4.tcp_notsent_lowat": Key(low=0, high=2**32 - 1, doc=IP),
    "net.ipv4.tcp_limit_output_bytes": Key(low=0, high=INT, checked=False, doc=IP),
    # protocol; most of these are one byte since 5.13 and plain int before, without any range
    "net.ipv4.tcp_congestion_control": Key(
        shape="word",
        offered_in="net.ipv4.tcp_available_congestion_control",
        doc=IP,
        note="New sockets only; an unlisted name works when the kernel can "
        "load the module tcp_NAME, else the write ends in ENOENT.",
    ),
    "net.ipv4.tcp_mtu_probing": Key(low=0, high=2, checked=False, doc=IP),
    "net.ipv4.tcp_base_mss": Key(low=0, high=INT, checked=False, doc=IP),
    "net.ipv4.tcp_timestamps": Key(
        low=0,
        high=2,
        checked=False,
        doc=IP,
        note="0 takes away PAWS, which fast links need: sequence numbers wrap within a second.",
    ),
    "net.ipv4.tcp_sack": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.tcp_dsack": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.tcp_window_scaling": Key(low=0, high=1, checked=False, doc=IP, note="0 caps every window at 64 KiB."),
    "net.ipv4.tcp_ecn": Key(
        low=0,
        high=5,
        checked=False,
        doc=IP,
        note="3 to 5 (Accurate ECN) only on recent kernels. TCP only: RoCE marks through DCQCN.",
    ),
    "net.ipv4.tcp_slow_start_after_idle": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.tcp_no_metrics_save": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.tcp_autocorking": Key(low=0, high=1, doc=IP),
    "net.ipv4.tcp_fastopen": Key(low=0, high=INT, checked=False, doc=IP, note="A bit mask."),
    "net.ipv4.tcp_low_latency": Key(low=0, high=1, checked=False, doc=IP, note="Without effect since 4.14."),
    "net.ipv4.tcp_fack": Key(low=0, high=1, checked=False, doc=IP, note="Without effect since 4.15."),
    "net.ipv4.tcp_tw_recycle": Key(
        low=0, high=1, checked=False, dropped="4.12", doc=IP, note="It broke peers behind NAT; nothing takes its place."
    ),
    # connections
    "net.ipv4.tcp_max_syn_backlog": Key(low=0, high=INT, checked=False, doc=IP),
    "net.ipv4.tcp_syncookies": Key(low=0, high=2, checked=False, doc=IP),
    "net.ipv4.tcp_abort_on_overflow": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.tcp_syn_retries": Key(low=1, high=127, doc=IP),
    "net.ipv4.tcp_synack_retries": Key(low=0, high=255, checked=False, doc=IP),
    "net.ipv4.tcp_retries2": Key(low=0, high=255, checked=False, doc=IP),
    "net.ipv4.tcp_rfc1337": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.tcp_tw_reuse": Key(low=0, high=2, checked=False, doc=IP, note="2 (loopback only) since 4.19."),
    "net.ipv4.tcp_fin_timeout": Key(low=0, checked=False, doc=IP, note="Seconds."),
    "net.ipv4.tcp_keepalive_time": Key(low=0, checked=False, doc=IP, note="Seconds."),
    "net.ipv4.tcp_keepalive_intvl": Key(low=0, checked=False, doc=IP, note="Seconds."),
    "net.ipv4.tcp_keepalive_probes": Key(low=0, high=255, checked=False, doc=IP),
    "net.ipv4.tcp_max_orphans": Key(low=0, high=INT, checked=False, doc=IP),
    "net.ipv4.tcp_max_tw_buckets": Key(low=0, high=INT, checked=False, doc=IP),
}

IPV4: dict[str, Key] = {
    "net.ipv4.udp_mem": Key(shape="vector", length=3, low=0, checked=False, doc=IP, note="Pages of all UDP sockets."),
    "net.ipv4.udp_rmem_min": Key(low=1, high=INT, doc=IP),
    "net.ipv4.udp_wmem_min": Key(low=1, high=INT, doc=IP, note="Without effect: UDP does not account what it sends."),
    "net.ipv4.ip_local_port_range": Key(
        shape="vector",
        length=2,
        low=1,
        high=PORT,
        doc=IP,
        note="The first must not be below ip_unprivileged_port_start (1024).",
    ),
    "net.ipv4.ip_local_reserved_ports": Key(
        shape="ports",
        low=0,
        high=PORT,
        doc=IP,
        note="A write replaces the whole list; it reads back sorted, neighbours joined to ranges.",
    ),
    "net.ipv4.ip_unprivileged_port_start": Key(
        low=0, high=PORT, doc=IP, note="Must not be above the first port of ip_local_port_range."
    ),
    "net.ipv4.ip_forward": Key(
        low=0,
        high=INT,
        checked=False,
        doc=IP,
        note="A change resets other settings of every "
        "interface to host or router defaults; container networks switch it on at run time.",
    ),
    "net.ipv4.ip_nonlocal_bind": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.ip_no_pmtu_disc": Key(low=0, high=3, checked=False, doc=IP),
    "net.ipv4.fib_multipath_hash_policy": Key(low=0, high=3, doc=IP, note="2 since 5.3, 3 since 5.14."),
    "net.ipv4.fib_multipath_hash_fields": Key(low=1, since="5.14", doc=IP, note="Only for hash policy 3; bit mask."),
    "net.ipv4.fib_multipath_use_neigh": Key(low=0, high=1, doc=IP),
    "net.ipv4.icmp_echo_ignore_all": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.icmp_echo_ignore_broadcasts": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.icmp_ignore_bogus_error_responses": Key(low=0, high=1, checked=False, doc=IP),
    # neighbour table; the thresholds exist once, under `default`, in the first network namespace
    "net.ipv4.neigh.default.gc_thresh1": Key(low=0, high=INT, doc=IP),
    "net.ipv4.neigh.default.gc_thresh2": Key(low=0, high=INT, doc=IP),
    "net.ipv4.neigh.default.gc_thresh3": Key(
        low=0,
        high=INT,
        doc=IP,
        note="Full table: new peers are unreachable and the log says 'neighbour: arp_cache: neighbor table overflow!'.",
    ),
    "net.ipv4.neigh.default.gc_interval": Key(low=0, checked=False, doc="net/core/neighbour.c", note="Seconds."),
    "net.ipv4.neigh.*.gc_stale_time": Key(low=0, checked=False, doc=IP, note="Seconds."),
    "net.ipv4.neigh.*.base_reachable_time_ms": Key(
        low=0, checked=False, doc="net/core/neighbour.c", note="Kept in timer ticks, so it may read back rounded."
    ),
    "net.ipv4.neigh.*.ucast_solicit": Key(low=0, high=INT, doc="net/core/neighbour.c"),
    "net.ipv4.neigh.*.mcast_solicit": Key(low=0, high=INT, doc="net/core/neighbour.c"),
    "net.ipv4.neigh.*.unres_qlen_bytes": Key(low=0, high=INT, doc=IP),
    # per interface; `default` is copied to interfaces made later and to those never set by hand
    "net.ipv4.conf.*.rp_filter": Key(
        low=0,
        high=2,
        checked=False,
        doc=IP,
        note="The larger of conf.all and the "
        "interface counts: a 2 in all loosens, a 1 in all makes strict where 0 is set.",
    ),
    "net.ipv4.conf.*.arp_ignore": Key(
        low=0,
        high=8,
        checked=False,
        doc=IP,
        note="The larger of conf.all and the interface counts; 4 to 7 are reserved.",
    ),
    "net.ipv4.conf.*.arp_announce": Key(
        low=0, high=2, checked=False, doc=IP, note="The larger of conf.all and the interface counts."
    ),
    "net.ipv4.conf.*.arp_filter": Key(
        low=0, high=1, checked=False, doc=IP, note="On when either conf.all or the interface has it on."
    ),
    "net.ipv4.conf.*.arp_accept": Key(low=0, high=2, checked=False, doc=IP),
    "net.ipv4.conf.*.arp_notify": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.arp_evict_nocarrier": Key(low=0, high=1, checked=False, since="5.16", doc=IP),
    "net.ipv4.conf.*.proxy_arp": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.log_martians": Key(
        low=0, high=1, checked=False, doc=IP, note="On when either conf.all or the interface has it on."
    ),
    "net.ipv4.conf.*.forwarding": Key(
        low=0, high=INT, checked=False, doc=IP, note="conf.all.forwarding is ip_forward under another name."
    ),
    "net.ipv4.conf.*.accept_local": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.route_localnet": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.src_valid_mark": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.accept_redirects": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.secure_redirects": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.send_redirects": Key(
        low=0, high=1, checked=False, doc=IP, note="On when either conf.all or the interface has it on."
    ),
    "net.ipv4.conf.*.accept_source_route": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv4.conf.*.ignore_routes_with_linkdown": Key(low=0, high=1, checked=False, doc=IP),
}

IPV6: dict[str, Key] = {
    "net.ipv6.conf.*.disable_ipv6": Key(
        low=0,
        high=1,
        checked=False,
        doc=IP,
        note="1 deletes all IPv6 addresses and routes of the interface at once; RoCE GIDs made from them go with it.",
    ),
    "net.ipv6.conf.*.accept_ra": Key(
        low=0, high=2, checked=False, doc=IP, note="1 is ignored while the interface forwards; 2 accepts all the same."
    ),
    "net.ipv6.conf.*.autoconf": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv6.conf.*.accept_dad": Key(low=-1, high=2, checked=False, doc=IP),
    "net.ipv6.conf.*.accept_redirects": Key(low=0, high=1, checked=False, doc=IP),
    "net.ipv6.conf.*.forwarding": Key(
        low=0,
        high=INT,
        checked=False,
        doc=IP,
        note="An interface that forwards no longer accepts router advertisements.",
    ),
    "net.ipv6.fib_multipath_hash_policy": Key(low=0, high=3, doc=IP, note="2 since 5.3, 3 since 5.14."),
    "net.ipv6.neigh.default.gc_thresh1": Key(low=0, high=INT, doc=IP),
    "net.ipv6.neigh.default.gc_thresh2": Key(low=0, high=INT, doc=IP),
    "net.ipv6.neigh.default.gc_thresh3": Key(low=0, high=INT, doc=IP),
    "net.ipv6.neigh.*.gc_stale_time": Key(low=0, checked=False, doc=IP, note="Seconds."),
}

NET_MODULES: dict[str, Key] = {
    "net.netfilter.nf_conntrack_max": Key(low=0, high=INT, module="nf_conntrack", checked=False, doc=CONNTRACK),
    "net.nf_conntrack_max": Key(
        low=0,
        high=INT,
        module="nf_conntrack",
        checked=False,
        doc=CONNTRACK,
        note="The older name of net.netfilter.nf_conntrack_max; set one of them.",
    ),
    "net.netfilter.nf_conntrack_buckets": Key(
        low=1,
        module="nf_conntrack",
        doc=CONNTRACK,
        note="Rounded up to whole pages (512 buckets), so it may read back larger.",
    ),
    "net.netfilter.nf_conntrack_tcp_timeout_established": Key(
        low=0, module="nf_conntrack", checked=False, doc=CONNTRACK, note="Seconds."
    ),
    "net.netfilter.nf_conntrack_tcp_timeout_time_wait": Key(
        low=0, module="nf_conntrack", checked=False, doc=CONNTRACK, note="Seconds."
    ),
    "net.netfilter.nf_conntrack_tcp_be_liberal": Key(
        low=0, high=1, module="nf_conntrack", checked=False, doc=CONNTRACK
    ),
    "net.bridge.bridge-nf-call-iptables": Key(
        low=0, high=1, module="br_netfilter", checked=False, doc=BRIDGE, note="Any number but 0 reads back as 1."
    ),
    "net.bridge.bridge-nf-call-ip6tables": Key(low=0, high=1, module="br_netfilter", checked=False, doc=BRIDGE),
    "net.bridge.bridge-nf-call-arptables": Key(low=0, high=1, module="br_netfilter", checked=False, doc=BRIDGE),
    "net.rdma_ucm.max_backlog": Key(
        low=0,
        high=INT,
        module="rdma_ucm",
        checked=False,
        doc="drivers/infiniband/core/ucma.c",
        note="What somaxconn is to TCP, for rdma_cm listeners: programs that listen on both get the smaller.",
    ),
}

MEMORY: dict[str, Key] = {
    # reclaim
    "vm.swappiness": Key(low=0, high=200, doc=VM, note="101 to 200 since 5.8; 0 does not switch swap off."),
    "vm.zone_reclaim_mode": Key(
        low=0,
        high=7,
        checked=False,
        doc=VM,
        note="A bit mask; 1 stalls jobs that live from the page cache, on a node whose memory is full.",
    ),
    "vm.min_unmapped_ratio": Key(low=0, high=100, doc=VM),
    "vm.min_slab_ratio": Key(low=0, high=100, doc=VM),
    "vm.vfs_cache_pressure": Key(
        low=0, high=INT, checked=False, doc=VM, note="0 never gives back inodes and ends out of memory."
    ),
    "vm.min_free_kbytes": Key(
        low=0,
        high=INT,
        disruption="memory",
        doc=VM,
        note="khugepaged and memory hotplug may "
        "raise it later; under 1024 the kernel can deadlock, too much kills processes at once.",
    ),
    "vm.watermark_scale_factor": Key(
        low=1, high=3000, doc=VM, note="In 1/10000 of the node's memory; at most 1000 before 5.18."
    ),
    "vm.watermark_boost_factor": Key(low=0, high=INT, since="5.0", doc=VM, note="In 1/10000; 0 switches it off."),
    "vm.percpu_pagelist_high_fraction": Key(low=0, high=INT, since="5.14", doc=VM, note="0 or 8 and more."),
    "vm.percpu_pagelist_fraction": Key(
        low=0,
        high=INT,
        dropped="5.14",
        moved_to="vm.percpu_pagelist_high_fraction",
        doc=VM,
        note="The successor counts differently: do not carry the number over.",
    ),
    "vm.compaction_proactiveness": Key(
        low=0,
        high=100,
        since="5.9",
        disruption="memory",
        doc=VM,
        note="Writing anything but 0 starts a compaction of every node at once.",
    ),
    "vm.compact_unevictable_allowed": Key(low=0, high=1, doc=VM),
    "vm.extfrag_threshold": Key(low=0, high=1000, doc=VM),
    "vm.page-cluster": Key(low=0, high=31, checked=False, doc=VM, note="Power of two: 3 is 8 pages."),
    # page cache; the dirty limits themselves are pairs
    "vm.dirty_expire_centisecs": Key(low=0, high=INT, doc=VM, note="1/100 second."),
    "vm.dirty_writeback_centisecs": Key(low=0, high=INT, checked=False, doc=VM, note="1/100 second; 0 stops it."),
    "vm.dirtytime_expire_seconds": Key(low=0, high=INT, doc=VM),
    # address space and promises
    "vm.overcommit_memory": Key(
        low=0, high=2, doc=VM, note="2 refuses the large address space reservations that GPU runtimes make."
    ),
    "vm.max_map_count": Key(low=0, high=INT, doc=VM, note="Per process; default 65530 in the source, 65536 in vm.rst."),
    "vm.mmap_min_addr": Key(low=0, checked=False, doc=VM),
    "vm.admin_reserve_kbytes": Key(low=0, checked=False, doc=VM),
    "vm.user_reserve_kbytes": Key(low=0, checked=False, doc=VM),
    "vm.nr_overcommit_hugepages": Key(low=0, checked=False, doc=VM, note="Pages of the default huge size."),
    "vm.unprivileged_userfaultfd": Key(low=0, high=1, since="5.2", doc=VM),
    # out of memory, hardware errors
    "vm.panic_on_oom": Key(low=0, high=2, doc=VM),
    "vm.oom_kill_allocating_task": Key(low=0, high=INT, checked=False, doc=VM),
    "vm.oom_dump_tasks": Key(low=0, high=INT, checked=False, doc=VM),
    "vm.memory_failure_early_kill": Key(low=0, high=1, doc=VM),
    "vm.memory_failure_recovery": Key(low=0, high=1, doc=VM),
    # counters
    "vm.stat_interval": Key(low=0, checked=False, doc=VM, note="Seconds."),
    "vm.numa_stat": Key(low=0, high=1, doc=VM, note="0 loses the allocation counters that numastat shows."),
}

SCHEDULER: dict[str, Key] = {
    "kernel.numa_balancing": Key(
        low=0,
        high=3,
        checked=False,
        doc=KERNEL,
        note="A bit mask: 1 balancing, 2 memory tiering (5.18 and later; before, only 0 and 1 are taken).",
    ),
    "kernel.numa_balancing_promote_rate_limit_MBps": Key(low=0, high=INT, since="6.1", doc=KERNEL),
    "kernel.sched_autogroup_enabled": Key(low=0, high=1, doc="kernel/sched/autogroup.c"),
    "kernel.sched_rt_runtime_us": Key(
        low=-1,
        high=INT,
        checked=False,
        note="-1 lifts the limit; else not above sched_rt_period_us.",
        doc="Documentation/scheduler/sched-rt-group.rst",
    ),
    "kernel.sched_rt_period_us": Key(low=1, high=INT, doc="Documentation/scheduler/sched-rt-group.rst"),
    "kernel.sched_cfs_bandwidth_slice_us": Key(low=1, high=INT, doc="Documentation/scheduler/sched-bwc.rst"),
    "kernel.sched_schedstats": Key(low=0, high=1, doc=KERNEL),
    "kernel.timer_migration": Key(low=0, high=1, doc="kernel/time/timer.c"),
    # gone from /proc/sys with commit 8a99b6833c88
    "kernel.sched_latency_ns": Key(
        dropped="5.13",
        moved_to=DEBUGFS + "latency_ns",
        doc=SCHED,
        note="Gone there too since 6.6 (EEVDF); base_slice_ns is the nearest.",
    ),
    "kernel.sched_min_granularity_ns": Key(
        dropped="5.13",
        moved_to=DEBUGFS + "min_granularity_ns",
        doc=SCHED,
        note="Called base_slice_ns there since 6.6 (EEVDF).",
    ),
    "kernel.sched_wakeup_granularity_ns": Key(
        dropped="5.13", moved_to=DEBUGFS + "wakeup_granularity_ns", doc=SCHED, note="Gone there too since 6.6 (EEVDF)."
    ),
    "kernel.sched_migration_cost_ns": Key(dropped="5.13", moved_to=DEBUGFS + "migration_cost_ns", doc=SCHED),
    "kernel.sched_nr_migrate": Key(dropped="5.13", moved_to=DEBUGFS + "nr_migrate", doc=SCHED),
    "kernel.sched_tunable_scaling": Key(dropped="5.13", moved_to=DEBUGFS + "tunable_scaling", doc=SCHED),
    "kernel.sched_domain.*": Key(shape="text", dropped="5.13", moved_to=DEBUGFS + "domains/", doc=SCHED),
    "kernel.numa_balancing_scan_delay_ms": Key(
        dropped="5.13", moved_to=DEBUGFS + "numa_balancing/scan_delay_ms", doc=SCHED
    ),
    "kernel.numa_balancing_scan_period_min_ms": Key(
        dropped="5.13", doc=SCHED, moved_to=DEBUGFS + "numa_balancing/scan_period_min_ms"
    ),
    "kernel.numa_balancing_scan_period_max_ms": Key(
        dropped="5.13", doc=SCHED, moved_to=DEBUGFS + "numa_balancing/scan_period_max_ms"
    ),
    "kernel.numa_balancing_scan_size_mb": Key(
        dropped="5.13", moved_to=DEBUGFS + "numa_balancing/scan_size_mb", doc=SCHED
    ),
    "kernel.sched_child_runs_first": Key(dropped="6.7", doc="kernel/sched/fair.c", note="Without effect in 6.6."),
}

WATCH: dict[str, Key] = {
    # lockup detectors
    "kernel.watchdog": Key(
        low=0,
        high=1,
        doc=KERNEL,
        note="Writes soft_watchdog and nmi_watchdog together and reads "
        "as 1 when either is on: manage this one or those two.",
    ),
    "kernel.soft_watchdog": Key(low=0, high=1, doc=KERNEL),
    "kernel.nmi_watchdog": Key(
        low=0,
        high=1,
        doc=KERNEL,
        note="Takes one performance counter of every CPU; read-only "
        "where the kernel has no hard lockup detector, off by default in KVM guests.",
    ),
    "kernel.watchdog_thresh": Key(low=0, high=60, doc=KERNEL, note="Seconds; 0 switches both detectors off."),
    "kernel.watchdog_cpumask": Key(shape="mask", low=0, doc=KERNEL),
    "kernel.softlockup_panic": Key(low=0, high=INT, checked=False, doc=KERNEL),
    "kernel.hardlockup_panic": Key(low=0, high=1, doc=KERNEL),
    "kernel.hung_task_timeout_secs": Key(low=0, checked=False, doc=KERNEL, note="0 means never."),
    "kernel.hung_task_panic": Key(low=0, high=INT, checked=False, doc=KERNEL),
    "kernel.hung_task_warnings": Key(
        low=-1,
        high=INT,
        doc=KERNEL,
        note="Counts down to 0 as warnings are printed, so it does not read back as written; -1 is without end.",
    ),
    # panic
    "kernel.panic": Key(high=INT, doc=KERNEL, note="Seconds until reboot; 0 stays, negative reboots at once."),
    "kernel.panic_on_oops": Key(low=0, high=1, checked=False, doc=KERNEL),
    "kernel.panic_on_warn": Key(low=0, high=1, doc=KERNEL),
    "kernel.sysrq": Key(
        low=0,
        high=511,
        checked=False,
        doc="Documentation/admin-guide/sysrq.rst",
        note="0 nothing, 1 everything, else a bit mask from 2 on.",
    ),
    "kernel.core_pattern": Key(shape="text", doc=KERNEL, note="At most 127 bytes; what starts with | is a program."),
    # messages
    "kernel.printk": Key(
        shape="vector",
        length=4,
        low=0,
        high=INT,
        checked=False,
        doc=KERNEL,
        note="Console level, level of unmarked messages, lowest console level, default console level.",
    ),
    "kernel.printk_devkmsg": Key(
        shape="word",
        words=("on", "off", "ratelimit"),
        doc=KERNEL,
        note="Fixed when printk.devkmsg= stands on the boot line.",
    ),
    "kernel.dmesg_restrict": Key(low=0, high=1, doc=KERNEL),
    # profiling
    "kernel.perf_event_paranoid": Key(
        low=-1,
        high=4,
        checked=False,
        doc=KERNEL,
        note="3 and 4 exist only in the kernels of Debian, Ubuntu and their kin.",
    ),
    "kernel.perf_event_max_sample_rate": Key(
        low=1,
        high=INT,
        doc=KERNEL,
        note="Refused while perf_cpu_time_max_percent is 0 or 100; the kernel lowers it when sampling takes too long.",
    ),
    "kernel.perf_cpu_time_max_percent": Key(
        low=0,
        high=100,
        doc=KERNEL,
        note="0 and 100 switch the throttle off and make perf_event_max_sample_rate unwritable: set the rate first.",
    ),
    "kernel.perf_event_mlock_kb": Key(low=0, high=INT, checked=False, doc=KERNEL),
}

SECURITY: dict[str, Key] = {
    "kernel.randomize_va_space": Key(low=0, high=2, checked=False, doc=KERNEL),
    "kernel.kptr_restrict": Key(low=0, high=2, doc=KERNEL),
    "kernel.yama.ptrace_scope": Key(
        low=0, high=3, doc="Documentation/admin-guide/LSM/Yama.rst", note="3 cannot be taken back before the next boot."
    ),
    "kernel.unprivileged_bpf_disabled": Key(
        low=0,
        high=2,
        doc=KERNEL,
        note="1 cannot be taken back before the next boot; 0 and 2 since 5.13, before only 1 is taken.",
    ),
    "kernel.io_uring_disabled": Key(low=0, high=2, since="6.6", doc=KERNEL),
    "fs.protected_symlinks": Key(low=0, high=1, doc=FS),
    "fs.protected_hardlinks": Key(low=0, high=1, doc=FS),
    "fs.protected_fifos": Key(low=0, high=2, since="4.19", doc=FS),
    "fs.protected_regular": Key(low=0, high=2, since="4.19", doc=FS),
    "fs.suid_dumpable": Key(low=0, high=2, doc=FS),
}

LIMITS: dict[str, Key] = {
    # processes
    "kernel.pid_max": Key(
        low=301, high=2**22, doc=KERNEL, note="The lower bound grows with the number of CPUs (8 for each possible one)."
    ),
    "kernel.threads-max": Key(low=1, high=0x3FFFFFFF, doc=KERNEL),
    # System V IPC
    "kernel.shmmax": Key(low=0, checked=False, doc=KERNEL, note="Bytes of one segment."),
    "kernel.shmall": Key(low=0, checked=False, doc=KERNEL, note="Pages of all segments together."),
    "kernel.shmmni": Key(low=0, high=2**24, checked=False, doc=KERNEL, note=IPCMNI),
    "kernel.sem": Key(
        shape="vector",
        length=4,
        low=0,
        high=INT,
        checked=False,
        doc="ipc/ipc_sysctl.c",
        note="SEMMSL, SEMMNS, SEMOPM, SEMMNI; a SEMMNI above 32768 needs ipcmni_extend.",
    ),
    "kernel.msgmax": Key(low=0, high=INT, doc=KERNEL),
    "kernel.msgmnb": Key(low=0, high=INT, doc=KERNEL),
    "kernel.msgmni": Key(low=0, high=2**24, checked=False, doc=KERNEL, note=IPCMNI),
    # files
    "fs.file-max": Key(low=0, checked=False, doc=FS),
    "fs.nr_open": Key(
        low=64,
        high=INT - 63,
        doc=FS,
        note="Ceiling of every RLIMIT_NOFILE: below a service's LimitNOFILE that service no longer starts.",
    ),
    "fs.aio-max-nr": Key(low=0, checked=False, doc=FS),
    "fs.pipe-max-size": Key(low=0, high=2**31, doc=FS, note="Rounded up to a power of two of pages."),
    "fs.pipe-user-pages-soft": Key(low=0, checked=False, doc=FS),
    "fs.inotify.max_user_watches": Key(low=0, high=INT, doc="fs/notify/inotify/inotify_user.c"),
    "fs.inotify.max_user_instances": Key(low=0, high=INT, doc="fs/notify/inotify/inotify_user.c"),
    "fs.inotify.max_queued_events": Key(low=0, high=INT, doc="fs/notify/inotify/inotify_user.c"),
    "fs.epoll.max_user_watches": Key(low=0, checked=False, doc=FS),
}

KEYS: dict[str, Key] = {
    **NET_CORE,
    **TCP,
    **IPV4,
    **IPV6,
    **NET_MODULES,
    **MEMORY,
    **SCHEDULER,
    **WATCH,
    **SECURITY,
    **LIMITS,
}

# Write-only triggers: there is no value to hold, nothing to read back and nothing to undo.
ACTIONS: frozenset[str] = frozenset(
    {
        "vm.compact_memory",
        "vm.drop_caches",
        "vm.stat_refresh",
        "net.ipv4.route.flush",
        "net.ipv6.route.flush",
        "fs.binfmt_misc.register",
    }
)

# Halves of one setting: writing one makes its twin read 0. Half -> target of the knob sysctl.pair.
PAIRS: dict[str, str] = {
    "vm.dirty_bytes": "vm.dirty",
    "vm.dirty_ratio": "vm.dirty",
    "vm.dirty_background_bytes": "vm.dirty_background",
    "vm.dirty_background_ratio": "vm.dirty_background",
    "vm.overcommit_kbytes": "vm.overcommit",
    "vm.overcommit_ratio": "vm.overcommit",
}

# Keys that another knob owns: these two are the pool of the default huge page size.
ELSEWHERE: dict[str, str] = {
    "vm.nr_hugepages": "hugepages",
    "vm.nr_hugepages_mempolicy": "hugepages",
}

PATTERNS: tuple[tuple[str, str, Key], ...] = tuple(
    (name.partition("*")[0], name.partition("*")[2], key) for name, key in KEYS.items() if "*" in name
)


def known(key: str) -> Key | None:
    """The line of a key by its dotted name; the middle of a pattern may hold dots, as names of VLAN devices do."""
    if key in KEYS:
        return KEYS[key]
    for head, tail, line in PATTERNS:
        if len(key) > len(head) + len(tail) and key.startswith(head) and key.endswith(tail):
            return line
    return None
