"""Builds the disk image of the machine from Debian packages, once per recipe; needs root, no mount and no loop device.

mmdebstrap(1) makes the root folder, mke2fs(8) -d the file system, and GRUB is written where the BIOS looks for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.vm import recipe

PROGRAMS = {
    "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "sfdisk": "fdisk", "ssh-keygen": "openssh-client",
    "chroot": "coreutils", "qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils", "ssh": "openssh-client",
    "setpriv": "util-linux",
}  # fmt: skip
"""What is needed, and the Debian package that has it."""


class Unreachable(Exception):
    """Packages could not be had from their archive."""


LIMIT = 900
"""Seconds for one step of the build, or for another worker's build."""

SECTOR = 512
FIRST = 2048
"""The sector at which the partition starts."""

BOOT_CODE = 440
"""Bytes of the first sector before the table of partitions."""

OLD = 14 * 24 * 3600
"""Seconds after which an image that nobody used is removed."""


@dataclass(frozen=True)
class Image:
    """A built image: the folder holds the disk, the unpacked kernel, the initrd and the key that opens the machine."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The whole disk, raw; never written to."""
        return self.folder / "disk.img"

    @property
    def kernel(self) -> Path:
        """The ELF kernel, which qemu starts directly (PVH)."""
        return self.folder / "vmlinux"

    @property
    def initrd(self) -> Path:
        """The initrd of that kernel."""
        return self.folder / "initrd.img"

    @property
    def key(self) -> Path:
        """The private key of root in the machine."""
        return self.folder / "id_ed25519"


def missing() -> str:
    """Why no image can be built or run here; empty when it can."""
    found = {package for program, package in PROGRAMS.items() if not shutil.which(program, path=_path())}
    if found:
        return f"a virtual machine needs the packages {' '.join(sorted(found))}"
    return "" if os.geteuid() == 0 else "root is needed to build a disk image"


def cache() -> Path:
    """Where images are kept, outside of the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-node-tuner-tests"


@contextmanager
def locked(name: str, limit: float = LIMIT) -> Iterator[None]:
    """Holds a lock of the cache, or raises TimeoutError after `limit` seconds. It ends with the process."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f"{name}.lock", "w", encoding="ascii") as file:
        end = time.monotonic() + limit
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"another test run holds {file.name}") from None
                time.sleep(0.5)
        yield


def image() -> Image:
    """The image of today's recipe, built if it is not there. The caller holds the lock. Raises Unreachable."""
    code = b"".join(Path(path).read_bytes() for path in (recipe.__file__, __file__))
    folder = cache() / f"image-{hashlib.sha256(code).hexdigest()[:16]}"
    if not folder.is_dir():
        _remove_old(folder.parent)
        _build(folder)
    os.utime(folder)
    return Image(folder)


def _remove_old(folder: Path) -> None:
    """Removes halves of broken builds, and images that nobody used for long."""
    for found in folder.glob("image-*"):
        if "." in found.name or time.time() - found.stat().st_mtime > OLD:
            shutil.rmtree(found)


def _build(folder: Path) -> None:
    """Builds beside `folder` and renames, so that a half never stands there."""
    half = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        half.chmod(0o755)
        made = Image(half)
        _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "vm", "-f", made.key)
        root = half / "root"
        _packages(half, root)
        _configure(root, made.key.with_suffix(".pub").read_text(encoding="ascii"))
        _kernel(made, root)
        _grub(root)
        _disk(made, root)
        shutil.rmtree(root)
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def _packages(half: Path, root: Path) -> None:
    """Unpacks and configures the packages into `root`."""
    early = half / "early"
    _write(early, recipe.EARLY_FILES)
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(recipe.PACKAGES)}"]
    words += ['--aptopt=APT::Install-Recommends "false"', "--dpkgopt=force-unsafe-io"]
    words += [f"--dpkgopt=path-exclude={pattern}" for pattern in recipe.LEFT_OUT]
    words += [f"--essential-hook=copy-in {early / 'etc'} /"]
    try:
        _call(*words, recipe.SUITE, root)
    except RuntimeError as error:
        raise Unreachable(str(error)) from None
    shutil.rmtree(early)


def _configure(root: Path, key: str) -> None:
    """Files, units, and the empty virtual environment for the product."""
    _write(root, {**recipe.FILES, "root/.ssh/authorized_keys": key})
    (root / "root/.ssh").chmod(0o700)
    _call("chroot", root, "systemctl", "--quiet", "enable", *recipe.ENABLED)
    _call("chroot", root, "systemctl", "--quiet", "mask", *recipe.MASKED)
    _call("chroot", root, "python3", "-m", "venv", "/opt/tuner")
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


def _kernel(made: Image, root: Path) -> None:
    """Takes initrd and kernel out of `root`; unpacked here, since an emulated machine needs seconds for it."""
    shutil.copy(root / "boot" / f"initrd.img-{_release(root)}", made.initrd)
    packed = (root / "boot" / f"vmlinuz-{_release(root)}").read_bytes()
    start = packed.find(b"\xfd7zXZ\0")
    while start >= 0:
        try:
            kernel = lzma.LZMADecompressor().decompress(packed[start:])
        except lzma.LZMAError:
            kernel = b""
        if kernel.startswith(b"\x7fELF"):
            made.kernel.write_bytes(kernel)
            return
        start = packed.find(b"\xfd7zXZ\0", start + 1)
    raise RuntimeError("no ELF kernel in vmlinuz")


def _release(root: Path) -> str:
    (found,) = (root / "boot").glob("vmlinuz-*")
    return found.name.removeprefix("vmlinuz-")


def _grub(root: Path) -> None:
    """GRUB's modules, core and first configuration, below /boot of the machine."""
    modules, boot = root / "usr/lib/grub/i386-pc", root / "boot/grub"
    (boot / "i386-pc").mkdir(parents=True)
    for module in [*modules.glob("*.mod"), *modules.glob("*.lst")]:
        shutil.copy(module, boot / "i386-pc")
    text = recipe.GRUB_CFG.format(release=_release(root), root=recipe.ROOT, line=recipe.COMMAND_LINE)
    (boot / "grub.cfg").write_text(text, encoding="ascii")
    words = ["-O", "i386-pc", "-o", "/boot/core.img", "-p", "(hd0,msdos1)/boot/grub"]
    _call("chroot", root, "grub-mkimage", *words, *recipe.GRUB_MODULES)


def _disk(made: Image, root: Path) -> None:
    """One partition with `root` on it; GRUB's two parts go before it, where its defaults look for them."""
    with open(made.disk, "wb") as disk:
        disk.truncate(recipe.SIZE << 20)
    table = f"label: dos\nstart={FIRST}, type=83, bootable\n"
    _call("sfdisk", "--quiet", made.disk, given=table)
    words = ["-q", "-t", "ext4", "-L", "root", "-m", "0", "-O", "^metadata_csum_seed", "-E", f"offset={FIRST * SECTOR}"]
    _call("mke2fs", *words, "-d", root, made.disk, f"{recipe.SIZE - 2}M")
    boot = (root / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:BOOT_CODE]
    core = (root / "boot/core.img").read_bytes()
    if len(core) > (FIRST - 1) * SECTOR:
        raise RuntimeError("GRUB does not fit before the partition")
    with open(made.disk, "r+b") as disk:
        disk.write(boot)
        disk.seek(SECTOR)
        disk.write(core)


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _call(*words: object, given: str = "") -> None:
    """Runs one step; RuntimeError with what it said when it fails."""
    env = {"PATH": _path(), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **_proxies()}
    command: Sequence[str] = [str(word) for word in words]
    done = subprocess.run(command, input=given, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _proxies() -> dict[str, str]:
    """What apt may need to reach the archive."""
    return {name: text for name, text in os.environ.items() if name.lower().endswith("_proxy")}
