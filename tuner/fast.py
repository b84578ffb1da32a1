"""The first thing that runs: answers `tuner verify` from evidence, or hands over to the command line.

Evidence (written by tuner.evidence) is what every read behind the verdicts gave, and the answer that followed. What
reads the same gives the same answer; anything else, and any doubt, is judged anew by the command line. This module
imports posix and marshal alone, which an interpreter has at hand: it runs before every job.
"""

import marshal
import posix
import sys
import time
from _imp import source_hash

TYPE_CHECKING = False  # typing's own costs more than the whole answer
if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"tuner-evidence-2\n"
PATH = "/run/tuner/evidence"
BOOT = "/proc/sys/kernel/random/boot_id"
FORMATS = ("nagios", "prometheus", "junit")
"""What --format takes; the other forms of an answer are text, all and json."""

PAGE, CHUNK = 4096, 65536
LARGEST = 4 * 1024 * 1024
"""As the door has it (tuner.host.tree.LIMIT)."""

REGULAR, FOLDER, KINDS = 0o100000, 0o040000, 0o170000
EISDIR, EINVAL, EFBIG = 21, 22, 27
UNHEARD = (32, 9)
"""EPIPE and EBADF: nobody reads, or there is no stdout."""

FLAGS = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY
SEED = int.from_bytes(b"evidence", "little")

Rows = tuple[tuple[str, tuple[tuple[str, object, object], ...]], ...]
"""((kind of look, ((path, more, what it gave), ...)), ...)."""

Kept = tuple[str, str, int, str, tuple[int, int, str, str], Rows, Rows, dict[str, tuple[int, bytes]]]
"""Our code, the interpreter, when (ns), the root's name and what it is, evidence outside and inside of it, answers."""

Brief = bytes | tuple[int, bytes]


def finish(words: list[str]) -> None:
    """Writes the kept answer and ends the process with its exit code; returns when the command line has to judge."""
    asked = _asked(words)
    if asked is None:
        return
    root, form = asked
    try:
        kept = load(root)
        if kept is None or not holds(kept, root):
            return
        code, text = kept[-1][form]
        if form in ("text", "all") and (posix.isatty(1) or not (text.isascii() or _wide())):
            return
        _say(bytes(text))
        posix._exit(int(code))
    except (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError):
        return
    except KeyboardInterrupt:
        posix.write(2, b"tuner: stopped by SIGINT; nothing was being written\n")
        posix._exit(128 + 2)


def _asked(words: list[str]) -> tuple[str, str] | None:
    """(root, form) of a plain `verify`; None for every other call."""
    if not words or words[0] != "verify":
        return None
    root, form, rest = "/", "text", iter(words[1:])
    for word in rest:
        name, sign, value = word.partition("=")
        if name in ("--root", "--format"):
            value = value if sign else next(rest, "")
        if name == "--root" and value[:1] != "-":
            root = value
        elif form == "text" and ((name == "--format" and value in FORMATS) or word in ("--json", "--all")):
            form = value or word[2:]
        else:
            return None
    return (root, form) if root else None


def _wide() -> bool:
    return sys.stdout is not None and sys.stdout.encoding.lower() == "utf-8"


def _say(text: bytes) -> None:
    """A closed pipe is quiet; nothing is written twice, so that any other failure is said and ends here."""
    try:
        while text:
            text = text[posix.write(1, text) :]
    except OSError as error:
        if error.errno not in UNHEARD:
            try:
                posix.write(2, f"tuner: the output cannot be written: {error.strerror}\n".encode())
            except OSError:
                return


def load(root: str) -> Kept | None:
    """The evidence of a root, if it is whole, root's own and nobody else's; None otherwise."""
    opened = posix.open(root.rstrip("/") + PATH, FLAGS | posix.O_NOFOLLOW)
    try:
        about = posix.fstat(opened)
        if about.st_uid != 0 or about.st_mode & 0o170077 != REGULAR or posix.geteuid() != 0:
            return None
        data = posix.read(opened, about.st_size + 1)
    finally:
        posix.close(opened)
    head = len(MAGIC) + 8
    if len(data) != about.st_size or data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : head] != sealed(data[head:]):
        return None
    kept: Kept = marshal.loads(data[head:])  # noqa: S302  (sealed, and root's own)
    return kept


def sealed(data: bytes) -> bytes:
    """Eight bytes that tell whether `data` is as it was written."""
    return source_hash(SEED, data)


def holds(kept: Kept, root: str, tell: "Callable[[str], object] | None" = None) -> bool:
    """Whether all that was read reads the same now, on the same machine by the same code; `tell` hears of each look."""
    code, python, made, name, where, outside, inside, _ = kept
    if (code, python, name, where) != (__file__, reader(), named(root), place(root)) or time.time_ns() < made:
        return False
    return _same(outside, tell) and same(root, inside, tell)


def same(root: str, rows: Rows, tell: "Callable[[str], object] | None" = None) -> bool:
    """Whether everything below a root looks the same again."""
    return _same(rows, tell) if place(root)[:2] == place("/")[:2] else _inside(root, rows, tell)


def reader() -> str:
    """What reads: the interpreter, and how it takes the names of files."""
    return f"{sys.version} {sys.getfilesystemencoding()}"


def named(root: str) -> str:
    """The root as answers name it; of an odd spelling something that no answer has."""
    path = root if root[:1] == "/" else f"{posix.getcwd()}/{root}"
    return path.rstrip("/") or "/"


def place(root: str) -> tuple[int, int, str, str]:
    """What tells this root on this machine from another one."""
    top, system = posix.stat(root), posix.uname()
    return (top.st_dev, top.st_ino, system.nodename, system.release)


def _inside(root: str, rows: Rows, tell: "Callable[[str], object] | None") -> bool:
    """The same with `root` as the kernel's own root, so that links end inside it; the former root is taken back."""
    slash, here = posix.open("/", posix.O_PATH), posix.open(".", posix.O_PATH)
    try:
        posix.chroot(root)
        try:
            return _same(rows, tell)
        finally:
            _back(slash)
    finally:
        posix.fchdir(here)
        posix.close(slash)
        posix.close(here)


def _back(slash: int) -> None:
    """Nothing may run on below another root: where the way back is closed, the process ends and nobody was told."""
    try:
        posix.fchdir(slash)
        posix.chroot(".")
    except OSError:
        posix._exit(12)


def _same(rows: Rows, tell: "Callable[[str], object] | None" = None) -> bool:
    for kind, looks in rows:
        look = LOOKS[kind]
        for path, more, want in looks:
            if tell:
                tell(path)
            try:
                found = look(path, more)
            except OSError as error:
                found = -(error.errno or 0)
            if found != want:
                return False
    return True


def read(path: str, about: tuple[int, ...] | None) -> Brief | None:
    """The bytes of a regular file; of one that is longer than a page its length and hash. None if not as `about`."""
    opened = posix.open(path, FLAGS)
    try:
        found = posix.fstat(opened)
        if found.st_mode & KINDS != REGULAR:
            raise OSError(EISDIR if found.st_mode & KINDS == FOLDER else EINVAL, "")
        if about is not None and shown(found, path) != about:
            return None
        data = _all(opened, path)
    finally:
        posix.close(opened)
    return brief(data)


def brief(data: bytes) -> Brief:
    """Bytes as evidence keeps them."""
    return data if len(data) < PAGE else (len(data), sealed(data))


def _regular(opened: int) -> None:
    mode = posix.fstat(opened).st_mode & KINDS
    if mode != REGULAR:
        raise OSError(EISDIR if mode == FOLDER else EINVAL, "")


def head(path: str, size: int) -> bytes:
    """The first bytes of a regular file."""
    opened = posix.open(path, FLAGS)
    try:
        _regular(opened)
        return posix.read(opened, size)
    finally:
        posix.close(opened)


def filled(path: str, _: None = None) -> int:
    """1 where a file has any content, 0 where it is empty."""
    return int(bool(head(path, 1)))


def line(path: str, text: bytes) -> int:
    """1 where `text` is a line of the file, else 0."""
    return int(text in _whole(path).split(b"\n"))


def _whole(path: str) -> bytes:
    opened = posix.open(path, FLAGS)
    try:
        _regular(opened)
        return _all(opened, path)
    finally:
        posix.close(opened)


def _all(opened: int, path: str) -> bytes:
    """What a file holds. One read asks for much: some kernel files give the rest to nobody who reads in pieces."""
    data = piece = posix.read(opened, CHUNK)
    while len(data) >= PAGE and piece:
        piece = posix.read(opened, CHUNK)
        data += piece
        if len(data) > LARGEST:
            raise OSError(EFBIG, path)
    return data


def lines(path: str, field: tuple[int, bytes]) -> list[bytes]:
    """The lines of which one field, counted from 0, is that word."""
    number, word = field
    return [row for row in _whole(path).split(b"\n") if row.split()[number : number + 1] == [word]]


def processes(group: str, name: str) -> list[int]:
    """PIDs in a control group and three levels below it: those with that name or, where none has it, all of them."""
    found: dict[int, bytes] = {}
    groups = [(group, 0)]
    while groups:
        here, depth = groups.pop()
        try:
            pids = _whole(f"{here}/cgroup.procs").split()
        except OSError:
            if not depth:
                raise
            continue
        for pid in pids:
            try:
                found[int(pid)] = _whole(f"/proc/{int(pid)}/comm").strip()
            except OSError:
                found[int(pid)] = b""
        if depth < DEEPEST:
            groups += [(f"{here}/{name}", depth + 1) for name in posix.listdir(here) if below(name)]
    return sorted([pid for pid, comm in found.items() if comm == name.encode()[:15]] or found)


DEEPEST = 3


def below(name: str) -> bool:
    """Whether a name in a control group is that of a group, not of a file."""
    return "." not in name or name.endswith((".slice", ".scope", ".service"))


def names(path: str, numbered: int) -> tuple[int | str, ...]:
    """The names in a folder, with the folder's inode where it is `numbered`."""
    found = tuple(sorted(posix.listdir(path)))
    return (posix.stat(path).st_ino, *found) if numbered else found


def stat(path: str, follow: int) -> tuple[int, ...]:
    """Mode and owner, and the size of an ordinary file."""
    return shown(posix.stat(path, follow_symlinks=bool(follow)), path)


def shown(about: posix.stat_result, path: str) -> tuple[int, ...]:
    """What evidence keeps of a stat: the size of a kernel file means nothing, its content is read."""
    sized = about.st_mode & KINDS == REGULAR and path[:6] != "/proc/" and path[:5] != "/sys/"
    return (about.st_mode, about.st_uid, about.st_gid, about.st_size if sized else 0)


def inode(path: str, _: None = None) -> tuple[int, int]:
    """Which object a path leads to."""
    about = posix.stat(path)
    return (about.st_dev, about.st_ino)


def link(path: str, _: None = None) -> str:
    """The text of a link."""
    return posix.readlink(path)


def sealed_off(path: str, _: None = None) -> int:
    """1 where the file system is mounted read-only, else 0."""
    return int(bool(posix.statvfs(path).f_flag & posix.ST_RDONLY))


def stamp(path: str, _: None = None) -> tuple[int, ...]:
    """What changes whenever somebody writes to, replaces or hands over an ordinary file; of a folder its rights."""
    return stamped(posix.stat(path))


def stamped(about: posix.stat_result) -> tuple[int, ...]:
    """The stamp of what stat(2) gave; the time of the last change comes last."""
    rights = (about.st_mode, about.st_uid, about.st_gid)
    if about.st_mode & KINDS == FOLDER:
        return rights
    return (*rights, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


RIGHTS = 3
"""Numbers in the stamp of a folder."""

LOOKS: "dict[str, Callable[..., object]]" = {
    "read": read, "head": head, "filled": filled, "line": line, "lines": lines, "processes": processes,
    "names": names, "stat": stat, "inode": inode, "link": link, "sealed": sealed_off, "stamp": stamp,
}  # fmt: skip
"""How each kind of evidence is looked at again: (path, more) -> what it gives; the errno, negative, if it fails."""
