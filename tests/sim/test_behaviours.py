"""What kernel files do on a write, as a Debian 12 guest (Linux 6.1.192) answered when it was tried by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from errno import EINVAL, ENOENT, ENOTSUP, ERANGE
from pathlib import Path

import pytest

from tuner.host import RecordedHost

VM = "/proc/sys/vm"
POOLS = "/sys/kernel/mm/hugepages"
NODES = "/sys/devices/system/node"
SMALL = "hugepages-2048kB/nr_hugepages"
LARGE = "hugepages-1048576kB/nr_hugepages"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


class Kernel:
    """Kernel files of one copy, reached as echo and cat would."""

    def __init__(self, root: Path) -> None:
        self.root, self.host = root, RecordedHost(str(root))

    def put(self, path: str, text: str) -> None:
        """The state to begin with, without any rule."""
        (self.root / path[1:]).write_text(text)

    def echo(self, path: str, text: str) -> int:
        """Writes text as it stands; 0 or the errno."""
        try:
            self.host.write(path, text)
        except OSError as error:
            return int(error.errno or -1)
        return 0

    def cat(self, path: str) -> str:
        """What the file shows, newline included."""
        return self.host.text(path)


@pytest.fixture(scope="module")
def copy(masters: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy for this module: every test that writes a file puts its state there first."""
    path = tmp_path_factory.mktemp("kernel") / "plain-vm"
    shutil.copytree(masters("plain-vm"), path, symlinks=True)
    return path


@pytest.fixture
def kernel(copy: Path) -> Kernel:
    """The kernel of plain-vm."""
    return Kernel(copy)


@pytest.fixture(scope="module")
def server(masters: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """The kernel of mi300x-cx7; a test puts the state of its file there first."""
    path = tmp_path_factory.mktemp("server") / "mi300x-cx7"
    shutil.copytree(masters("mi300x-cx7"), path, symlinks=True)
    return Kernel(path)


# numbers below /proc/sys


@pytest.mark.parametrize(
    ("text", "number", "shows"),
    [
        ("0x10", 0, "16"), ("0X1f", 0, "31"), ("010", 0, "8"), ("08", EINVAL, "60"), ("+5", EINVAL, "60"),
        ("5x", EINVAL, "60"), ("5,6", EINVAL, "60"), ("-0", 0, "0"), ("  5  ", 0, "5"), ("5 6", 0, "5"),
        ("5\t6", 0, "5"), ("\n", EINVAL, "60"), ("five", EINVAL, "60"), ("0x", EINVAL, "60"), ("5\n", 0, "5"),
        ("0", 0, "0"), ("200", 0, "200"), ("201", EINVAL, "60"), ("-1", EINVAL, "60"), ("5.0", EINVAL, "60"),
        ("99999999999999999999999", EINVAL, "60"),
    ],
)  # fmt: skip
def test_swappiness(kernel: Kernel, text: str, number: int, shows: str) -> None:
    kernel.put(f"{VM}/swappiness", "60\n")
    assert kernel.echo(f"{VM}/swappiness", text) == number
    assert kernel.cat(f"{VM}/swappiness") == f"{shows}\n"


@pytest.mark.parametrize(
    ("key", "low"),
    [("rmem_max", 2304), ("rmem_default", 2304), ("wmem_max", 4608), ("wmem_default", 4608)],
)
def test_socket_buffers_have_a_lower_bound(kernel: Kernel, key: str, low: int) -> None:
    path = f"/proc/sys/net/core/{key}"
    kernel.put(path, "212992\n")
    assert kernel.echo(path, f"{low - 1}\n") == EINVAL
    assert kernel.cat(path) == "212992\n"
    assert kernel.echo(path, f"{low}\n") == 0
    assert kernel.cat(path) == f"{low}\n"
    assert kernel.echo(path, "2147483647\n") == 0
    assert kernel.echo(path, "2147483648\n") == EINVAL
    assert kernel.cat(path) == "2147483647\n"


@pytest.mark.parametrize(("text", "shows"), [("100", "128"), ("128", "128"), ("129", "256"), ("1", "1"), ("0", "0")])
def test_the_flow_table_is_rounded_up_to_a_power_of_two(kernel: Kernel, text: str, shows: str) -> None:
    path = "/proc/sys/net/core/rps_sock_flow_entries"
    assert kernel.echo(path, text) == 0
    assert kernel.cat(path) == f"{shows}\n"


@pytest.mark.parametrize(
    ("text", "number", "shows"),
    [
        ("4096 131072", 0, "4096\t131072\t6291456"),
        ("5000", 0, "5000\t131072\t6291456"),
        ("9000000 131072 6291456", 0, "9000000\t131072\t6291456"),
        ("4096\t87380\t16777216\n", 0, "4096\t87380\t16777216"),
        ("8192 262144 x", EINVAL, "8192\t262144\t6291456"),
        ("8192 262144 -1", EINVAL, "8192\t262144\t6291456"),
        ("8192 x 16777216", EINVAL, "8192\t131072\t6291456"),
        ("x 262144 16777216", EINVAL, "4096\t131072\t6291456"),
        ("4095 262144 16777216", EINVAL, "4096\t131072\t6291456"),
        ("\n", EINVAL, "4096\t131072\t6291456"),
        ("0x2000 131072 0x1000000", 0, "8192\t131072\t16777216"),
    ],
)
def test_tcp_rmem_is_not_written_as_a_whole(kernel: Kernel, text: str, number: int, shows: str) -> None:
    """Fewer numbers leave the rest; a bad one stops after those before it were stored."""
    path = "/proc/sys/net/ipv4/tcp_rmem"
    kernel.put(path, "4096\t131072\t6291456\n")
    assert kernel.echo(path, text) == number
    assert kernel.cat(path) == f"{shows}\n"


@pytest.mark.parametrize(
    ("text", "number"), [("cubic", 0), ("reno\n", 0), ("nosuch", ENOENT), ("  cubic  ", ENOENT), ("CUBIC", ENOENT)]
)
def test_congestion_control_is_one_word(kernel: Kernel, text: str, number: int) -> None:
    path = "/proc/sys/net/ipv4/tcp_congestion_control"
    kernel.put(path, "bbr\n")
    assert kernel.echo(path, text) == number
    assert kernel.cat(path) == ("bbr\n" if number else f"{text.strip()}\n")


def test_the_watchdog_of_a_guest_without_a_counter_refuses(kernel: Kernel) -> None:
    assert kernel.echo("/proc/sys/kernel/nmi_watchdog", "1\n") == ENOTSUP


# couples


@pytest.fixture
def couple(kernel: Kernel) -> Iterator[Kernel]:
    """The dirty couples as a stock kernel has them."""
    for name, value in (("dirty", 20), ("dirty_background", 10)):
        kernel.put(f"{VM}/{name}_bytes", "0\n")
        kernel.put(f"{VM}/{name}_ratio", f"{value}\n")
    yield kernel


@pytest.mark.parametrize("text", ["0", "8191", "-1", "x"])
def test_dirty_bytes_has_a_lower_bound_of_two_pages(couple: Kernel, text: str) -> None:
    assert couple.echo(f"{VM}/dirty_bytes", text) == EINVAL
    assert couple.cat(f"{VM}/dirty_bytes") == "0\n"
    assert couple.cat(f"{VM}/dirty_ratio") == "20\n"


def test_dirty_bytes_zeroes_the_ratio(couple: Kernel) -> None:
    assert couple.echo(f"{VM}/dirty_bytes", "8192") == 0
    assert couple.cat(f"{VM}/dirty_bytes") == "8192\n"
    assert couple.cat(f"{VM}/dirty_ratio") == "0\n"


def test_dirty_ratio_zeroes_the_bytes_only_when_it_changes(couple: Kernel) -> None:
    assert couple.echo(f"{VM}/dirty_bytes", "1048576") == 0
    assert couple.echo(f"{VM}/dirty_ratio", "0") == 0
    assert couple.cat(f"{VM}/dirty_bytes") == "1048576\n"
    assert couple.echo(f"{VM}/dirty_ratio", "1") == 0
    assert couple.cat(f"{VM}/dirty_bytes") == "0\n"
    assert couple.cat(f"{VM}/dirty_ratio") == "1\n"


def test_the_background_ratio_always_zeroes_its_bytes(couple: Kernel) -> None:
    assert couple.echo(f"{VM}/dirty_background_bytes", "4096") == 0
    assert couple.cat(f"{VM}/dirty_background_ratio") == "0\n"
    assert couple.echo(f"{VM}/dirty_background_ratio", "0") == 0
    assert couple.cat(f"{VM}/dirty_background_bytes") == "0\n"


def test_overcommit_kbytes_takes_a_zero(kernel: Kernel) -> None:
    kernel.put(f"{VM}/overcommit_kbytes", "0\n")
    assert kernel.echo(f"{VM}/overcommit_kbytes", "0") == 0
    assert kernel.cat(f"{VM}/overcommit_kbytes") == "0\n"


def test_the_overcommit_couple_zeroes_its_twin(kernel: Kernel) -> None:
    """mm/util.c of the Linux kernel: either half zeroes the other on every write."""
    kernel.put(f"{VM}/overcommit_kbytes", "0\n")
    kernel.put(f"{VM}/overcommit_ratio", "50\n")
    assert kernel.echo(f"{VM}/overcommit_kbytes", "1048576") == 0
    assert kernel.cat(f"{VM}/overcommit_ratio") == "0\n"
    assert kernel.echo(f"{VM}/overcommit_ratio", "50") == 0
    assert kernel.cat(f"{VM}/overcommit_kbytes") == "0\n"


# huge pages


def pools(kernel: Kernel, kind: str = SMALL) -> tuple[int, int, int]:
    """Pages on node 0, on node 1 and in total."""
    paths = (f"{NODES}/node0/hugepages/{kind}", f"{NODES}/node1/hugepages/{kind}", f"{POOLS}/{kind}")
    one, two, whole = (int(kernel.cat(path)) for path in paths)
    return one, two, whole


@pytest.fixture
def empty(kernel: Kernel) -> Kernel:
    """No huge page anywhere."""
    for folder in (f"{NODES}/node0/hugepages", f"{NODES}/node1/hugepages", POOLS):
        for kind in (SMALL, LARGE):
            kernel.put(f"{folder}/{kind}", "0\n")
            kernel.put(f"{folder}/{kind.replace('nr_', 'free_')}", "0\n")
    kernel.put(f"{VM}/nr_hugepages", "0\n")
    return kernel


def test_pools_node_total_and_sysctl_are_one(empty: Kernel) -> None:
    """The whole sequence as it was tried: each step builds on the one before."""
    node0, node1 = (f"{NODES}/{node}/hugepages/{SMALL}" for node in ("node0", "node1"))
    whole, key = f"{POOLS}/{SMALL}", f"{VM}/nr_hugepages"
    assert empty.echo(node0, "100\n") == 0
    assert pools(empty) == (100, 0, 100)
    assert empty.cat(key) == "100\n"
    assert empty.cat(f"{NODES}/node0/hugepages/hugepages-2048kB/free_hugepages") == "100\n"
    assert empty.cat(f"{POOLS}/hugepages-2048kB/free_hugepages") == "100\n"
    assert empty.echo(whole, "200\n") == 0
    assert pools(empty) == (150, 50, 200)
    assert empty.echo(whole, "201\n") == 0
    assert pools(empty) == (151, 50, 201)
    assert empty.echo(key, "150\n") == 0
    assert pools(empty) == (125, 25, 150)
    assert empty.cat(key) == "150\n"
    assert empty.echo(node1, "10\n") == 0
    assert pools(empty) == (125, 10, 135)
    assert empty.cat(key) == "135\n"


def test_more_pages_than_fit_succeed_and_read_what_fits(empty: Kernel) -> None:
    assert empty.echo(f"{VM}/nr_hugepages", "100000\n") == 0
    one, two, whole = pools(empty)
    assert 0 < whole == one + two < 100000
    assert empty.cat(f"{VM}/nr_hugepages") == f"{whole}\n"
    assert empty.echo(f"{VM}/nr_hugepages", "0\n") == 0
    assert pools(empty) == (0, 0, 0)


@pytest.mark.parametrize("folder", [POOLS, f"{NODES}/node0/hugepages", f"{NODES}/node1/hugepages"])
def test_a_gigabyte_page_cannot_be_had_at_run_time(empty: Kernel, folder: str) -> None:
    assert empty.echo(f"{folder}/{LARGE}", "1\n") == 0
    assert pools(empty, LARGE) == (0, 0, 0)


@pytest.mark.parametrize("text", ["0x10", " 5 ", " 5", "5 ", "5 6", "-1", "abc", "\n", "+", "5\n\n", "1.0"])
@pytest.mark.parametrize("folder", [POOLS, f"{NODES}/node0/hugepages"])
def test_numbers_below_sys_are_decimal_and_strict(empty: Kernel, folder: str, text: str) -> None:
    assert empty.echo(f"{folder}/{SMALL}", text) == EINVAL
    assert pools(empty) == (0, 0, 0)


def test_a_leading_zero_below_sys_is_decimal(empty: Kernel) -> None:
    assert empty.echo(f"{NODES}/node0/hugepages/{SMALL}", "010") == 0
    assert pools(empty) == (10, 0, 10)


def test_pages_in_use_stay_when_the_pool_is_lowered(copy_host: Callable[..., Path]) -> None:
    """16 pages on each node are mapped: they can be taken from the pool by nobody."""
    kernel = Kernel(copy_host("plain-vm", "hugepages-in-use"))
    assert kernel.echo(f"{NODES}/node0/hugepages/{SMALL}", "40\n") == 0
    assert kernel.echo(f"{NODES}/node0/hugepages/{SMALL}", "0\n") == 0
    assert pools(kernel)[0] == 16


def test_fragmented_memory_gives_more_once_it_was_compacted(copy_host: Callable[..., Path]) -> None:
    kernel = Kernel(copy_host("plain-vm", "hugepages-fragmented"))
    assert kernel.echo(f"{NODES}/node0/hugepages/{SMALL}", "100\n") == 0
    assert pools(kernel)[0] == 60
    assert kernel.echo(f"{VM}/compact_memory", "1\n") == 0
    assert kernel.echo(f"{NODES}/node0/hugepages/{SMALL}", "100\n") == 0
    assert pools(kernel)[0] == 100
    assert not (kernel.root / ".tuner-host/state").exists()


def test_a_short_pool_takes_what_fits_and_says_success(copy_host: Callable[..., Path]) -> None:
    kernel = Kernel(copy_host("plain-vm", "hugepages-short"))
    assert kernel.echo(f"{POOLS}/{SMALL}", "2048\n") == 0
    assert pools(kernel) == (100, 100, 200)


# transparent huge pages


@pytest.mark.parametrize(
    "text", ["sometimes", "ALWAYS", " always", "always ", "[always]", "\n", "always\n\n", "always never"]
)
def test_thp_takes_only_its_own_words(kernel: Kernel, text: str) -> None:
    kernel.put(THP, "always [madvise] never\n")
    assert kernel.echo(THP, text) == EINVAL
    assert kernel.cat(THP) == "always [madvise] never\n"


@pytest.mark.parametrize("text", ["always", "always\n"])
def test_thp_takes_a_word_with_or_without_newline(kernel: Kernel, text: str) -> None:
    kernel.put(THP, "always [madvise] never\n")
    assert kernel.echo(THP, text) == 0
    assert kernel.cat(THP) == "[always] madvise never\n"


def test_thp_raises_the_free_reserve(copy_host: Callable[..., Path]) -> None:
    """khugepaged recommends a larger vm.min_free_kbytes (mm/khugepaged.c) and lowers it never."""
    kernel = Kernel(copy_host("plain-vm", "thp-raises-reserve"))
    kernel.put(f"{VM}/min_free_kbytes", "67584\n")
    assert kernel.echo(THP, "never\n") == 0
    assert kernel.cat(f"{VM}/min_free_kbytes") == "90112\n"
    kernel.put(f"{VM}/min_free_kbytes", "200000\n")
    assert kernel.echo(THP, "always\n") == 0
    assert kernel.cat(f"{VM}/min_free_kbytes") == "200000\n"


# a write that is refused or ignored


def test_a_refused_and_an_ignored_write(copy_host: Callable[..., Path]) -> None:
    refusing = Kernel(copy_host("plain-vm", "swappiness-refused"))
    assert refusing.echo(f"{VM}/swappiness", "1\n") == EINVAL
    ignoring = Kernel(copy_host("plain-vm", "swappiness-ignored"))
    assert ignoring.echo(f"{VM}/swappiness", "1\n") == 0
    assert refusing.cat(f"{VM}/swappiness") == ignoring.cat(f"{VM}/swappiness") == "60\n"


def test_an_action_keeps_no_value(kernel: Kernel) -> None:
    assert kernel.echo(f"{VM}/compact_memory", "1\n") == 0
    with pytest.raises(PermissionError):
        kernel.cat(f"{VM}/compact_memory")


# block devices: block/elevator.c and block/blk-sysfs.c of Linux 6.1


@pytest.mark.parametrize(
    ("before", "text", "number", "shows", "requests"),
    [
        ("[none] mq-deadline ", "mq-deadline\n", 0, "none [mq-deadline] ", "256"),
        ("[none] mq-deadline ", "deadline", 0, "none [mq-deadline] ", "256"),
        ("none [mq-deadline] ", " none \n", 0, "[none] mq-deadline ", "1023"),
        ("none [mq-deadline] ", "mq-deadline", 0, "none [mq-deadline] ", "99"),
        ("none [mq-deadline] ", "bfq", EINVAL, "none [mq-deadline] ", "99"),
        ("none [mq-deadline] ", "[none]", EINVAL, "none [mq-deadline] ", "99"),
        ("none [mq-deadline] ", "", EINVAL, "none [mq-deadline] ", "99"),
    ],
)
def test_a_switch_of_the_scheduler_sets_the_requests(
    copy_host: Callable[..., Path], before: str, text: str, number: int, shows: str, requests: str
) -> None:
    """NVMe with 1023 tags: as many without a scheduler, twice 128 with one; the same again changes nothing."""
    kernel, queue = Kernel(copy_host("mi300x-cx7")), "/sys/block/nvme0n1/queue"
    kernel.put(f"{queue}/scheduler", f"{before}\n")
    kernel.put(f"{queue}/nr_requests", "99\n")
    assert kernel.echo(f"{queue}/scheduler", text) == number
    assert kernel.cat(f"{queue}/scheduler") == f"{shows}\n"
    assert kernel.cat(f"{queue}/nr_requests") == f"{requests}\n"


@pytest.mark.parametrize(("text", "shows"), [("4095", "4092"), ("3", "0"), ("4096", "4096")])
def test_read_ahead_is_whole_pages(kernel: Kernel, text: str, shows: str) -> None:
    assert kernel.echo("/sys/block/vda/queue/read_ahead_kb", text) == 0
    assert kernel.cat("/sys/block/vda/queue/read_ahead_kb") == f"{shows}\n"


# lists of CPUs


@pytest.mark.parametrize(
    ("text", "number", "shows"),
    [
        ("3", 0, "3"), ("0-95\n", 0, "0-95"), ("0,1,2,3", 0, "0-3"), ("5,4", 0, "4-5"), ("0-1,1-2,8", 0, "0-2,8"),
        ("191", 0, "191"), ("192", ERANGE, "120"), ("0-200", ERANGE, "120"), ("", EINVAL, "120"), ("\n", EINVAL, "120"),
        ("-1", EINVAL, "120"), ("3-1", EINVAL, "120"), ("0xf", EINVAL, "120"), ("0,,1", 0, "0-1"), (",", EINVAL, "120"),
    ],
)  # fmt: skip
def test_the_cpus_of_an_interrupt(server: Kernel, text: str, number: int, shows: str) -> None:
    """bitmap_parselist of lib/bitmap-str.c, and what kernel/irq/proc.c makes of a list without an online CPU."""
    path = "/proc/irq/124/smp_affinity_list"
    server.put(path, "120\n")
    assert (server.echo(path, text), server.cat(path)) == (number, f"{shows}\n")
