"""Runs the virtual machine: qemu without KVM, snapshots, reboots. One machine has one disk of its own.

/dev/kvm may be there and of no use for a stock kernel, so that it is never asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vm import recipe
from tests.vm.image import Image
from tests.vm.qmp import Qmp
from tests.vm.shell import LOST, Result, Shell, free_port, tied

MEMORY = 1280
"""MiB, half of it on each NUMA node."""

HARDWARE = (
    "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "Nehalem", "-smp", "2", "-m", str(MEMORY), "-no-reboot",
    "-nodefaults", "-display", "none",
    "-object", f"memory-backend-ram,id=m0,size={MEMORY // 2}M", "-numa", "node,nodeid=0,cpus=0,memdev=m0",
    "-object", f"memory-backend-ram,id=m1,size={MEMORY // 2}M", "-numa", "node,nodeid=1,cpus=1,memdev=m1",
    "-numa", "dist,src=0,dst=1,val=21",
    "-device", f"virtio-net-pci,netdev=ssh,mac={recipe.MAC}",
    "-netdev", "hubport,id=hub,hubid=1", "-device", "e1000e,netdev=hub,mac=52:54:00:00:00:02",
)  # fmt: skip
"""Two nodes with one CPU each, and besides the NIC for ssh an e1000e that nothing is connected to."""

LINE = f"root={recipe.ROOT} rw {recipe.COMMAND_LINE}"
"""The kernel's command line where GRUB does not give it."""

BOOT_LIMIT = 240
"""Seconds for a boot; 30 to 60 are usual."""

STOP_LIMIT = 120
"""Seconds for a shutdown."""

COMMAND_LIMIT = 60
"""Seconds for a command, if the test does not say otherwise."""

TAIL = 3000
"""Characters of the serial log that a failure shows."""


class Hung(AssertionError):
    """The machine did not do in time what it was told, or ended; the end of its serial log is in the text."""


@dataclass(frozen=True)
class Snapshot:
    """A running machine on disk: `disk` as it was when the memory was written to `state`. Never written to again."""

    folder: Path

    @property
    def disk(self) -> Path:
        """qcow2; the disk below it is named relative to the folder."""
        return self.folder / "disk.qcow2"

    @property
    def state(self) -> Path:
        """What qemu's migration wrote."""
        return self.folder / "state"


def fingerprint() -> str:
    """Tells which snapshots this qemu can restore: its version, the hardware, the kernel's command line."""
    version = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, timeout=30, check=True).stdout
    return hashlib.sha256(version + "\0".join([*HARDWARE, LINE]).encode()).hexdigest()[:12]


class Machine:
    """A machine that is off, with a new disk in `folder` above `below`, which is not written to."""

    def __init__(self, image: Image, folder: Path, below: str) -> None:
        self.image = image
        self.disk = folder / "disk.qcow2"
        self.serial = folder / "serial.log"
        self._said = folder / "qemu.log"
        self._sockets = Path(tempfile.mkdtemp(prefix="tuner-vm-"))
        self._qemu: subprocess.Popen[bytes] | None = None
        self._qmp: Qmp | None = None
        self._shell: Shell | None = None
        form = "qcow2" if below.endswith(".qcow2") else "raw"
        words = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", form, str(self.disk)]
        subprocess.run(words, timeout=60, check=True)

    # --- what a test calls ----------------------------------------------------------------------------------------

    def run(self, command: Sequence[str] | str, given: bytes = b"", limit: float = COMMAND_LIMIT) -> Result:
        """Runs words, or a script for sh, as root; `given` is its standard input, `limit` is in seconds."""
        assert self._shell is not None, "the machine is off"
        try:
            found = self._shell.run(command, given, limit)
        except TimeoutError as error:
            raise self._hung(f"{error} ({limit:.0f} s)") from None
        if found.code == LOST:
            raise self._hung(f"the connection was lost: {found.err}")
        return found

    def ok(self, command: Sequence[str] | str, given: bytes = b"", limit: float = COMMAND_LIMIT) -> str:
        """As `run`, for a command that must end with 0; its output without the last newline."""
        found = self.run(command, given, limit)
        assert found.code == 0, f"{command}: exit {found.code}\n{found.out}{found.err}"
        return found.out.removesuffix("\n")

    def tuner(self, *words: object, limit: float = COMMAND_LIMIT) -> tuple[int, dict[str, Any], str]:
        """Exit code, document and stderr of `tuner WORDS --json`, as root."""
        found = self.run(["tuner", *map(str, words), "--json"], limit=limit)
        assert "Traceback" not in found.err, found.err
        document: dict[str, Any] = json.loads(found.out) if found.out else {}
        return found.code, document, found.err

    def copy_in(self, path: Path, dest: str) -> None:
        """Copies a file, or the content of a folder, to `dest`; root owns it there. Folders on the way are made."""
        if path.is_dir():
            pack = ["tar", "-C", str(path), "--owner=0", "--group=0", "-cf", "-", "."]
            data = subprocess.run(pack, capture_output=True, timeout=60, check=True).stdout
            self.ok(["mkdir", "-p", dest])
            self.ok(["tar", "-C", dest, "--no-same-owner", "-xf", "-"], data)
        else:
            self.write(dest, path.read_bytes())

    def write(self, dest: str, content: bytes | str) -> None:
        """Makes or replaces a file with mode 0644."""
        data = content.encode() if isinstance(content, str) else content
        self.ok(["install", "-D", "-m", "644", "/dev/stdin", dest], data)

    def read(self, path: str) -> str:
        """The text of a file, a kernel file for instance, without its last newline."""
        return self.ok(["cat", path])

    def reboot(self, grub: bool = False) -> None:
        """`systemctl reboot`, then the next boot of the same disk: by GRUB, or faster with the kernel handed over.

        qemu ends at the reset and is started again, as a machine is that loses power after a clean shutdown.
        """
        assert self._shell is not None, "the machine is off"
        self._shell.run("systemctl reboot", b"", STOP_LIMIT)
        self._until("shut down", STOP_LIMIT, lambda: self._qemu is None or self._qemu.poll() is not None, alive=False)
        self.off()
        self.boot(grub)

    def cut_power(self) -> None:
        """Off without a shutdown, then the next boot: what the machine had not written to its disk is lost."""
        self.off()
        self.boot()

    # --- on and off -----------------------------------------------------------------------------------------------

    def boot(self, grub: bool = False) -> None:
        """Switches on and waits for ssh."""
        self._start([] if grub else self._direct())
        self._connect()

    def restore(self, snapshot: Snapshot) -> None:
        """Goes on where the snapshot was taken; the clock is set to the present."""
        with open(snapshot.state, "rb") as state:
            words = [*self._direct(), "-incoming", f"fd:{state.fileno()}"]
            qmp = self._start(words, [state.fileno()])
        self._until("be restored", BOOT_LIMIT, lambda: qmp.execute("query-status")["status"] != "inmigrate")
        qmp.execute("cont")
        self._connect()
        self.ok(["date", "-s", f"@{time.time():.3f}"])

    def save(self, snapshot: Snapshot) -> None:
        """Stops, writes the memory beside the disk, which has to be the snapshot's, and switches off."""
        assert self.disk == snapshot.disk
        assert self._qmp is not None
        qmp = self._qmp
        self.ok(["sync"])
        self._drop_shell()
        qmp.execute("stop")
        qmp.execute("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        with open(snapshot.state, "wb") as state:
            qmp.execute("getfd", fd=state.fileno(), fdname="state")
            qmp.execute("migrate", uri="fd:state")
            self._until(
                "be saved", BOOT_LIMIT, lambda: qmp.execute("query-migrate")["status"] in ("completed", "failed")
            )
        assert qmp.execute("query-migrate")["status"] == "completed"
        qmp.execute("quit")
        self._until("end", STOP_LIMIT, lambda: self._qemu is None or self._qemu.poll() is not None, alive=False)
        self.off()

    def off(self) -> None:
        """Ends qemu at once, if it runs."""
        self._drop_shell()
        if self._qmp is not None:
            self._qmp.close()
            self._qmp = None
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
            self._qemu = None

    def close(self) -> None:
        """Off, and the sockets are removed; the disk and the logs stay."""
        self.off()
        shutil.rmtree(self._sockets, ignore_errors=True)

    # --- inner parts ----------------------------------------------------------------------------------------------

    def _direct(self) -> list[str]:
        return ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd), "-append", LINE]

    def _start(self, more: Sequence[str], fds: Sequence[int] = ()) -> Qmp:
        """Starts qemu; what the serial port says is added to the log."""
        assert self._qemu is None
        port, monitor = free_port(), self._sockets / "qmp"
        monitor.unlink(missing_ok=True)
        words = ["qemu-system-x86_64", *HARDWARE, "-netdev", f"user,id=ssh,hostfwd=tcp:127.0.0.1:{port}-:22"]
        words += ["-drive", f"file={self.disk},if=virtio,format=qcow2"]
        words += ["-chardev", f"file,id=serial,path={self.serial},append=on", "-serial", "chardev:serial"]
        words += ["-qmp", f"unix:{monitor},server=on,wait=off", *more]
        with open(self._said, "ab") as log:
            self._qemu = subprocess.Popen(tied(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds)
        self._shell = Shell(self.image.key, port, self._sockets)
        self._until("start", 30, monitor.exists)
        self._qmp = Qmp(monitor)
        return self._qmp

    def _connect(self) -> None:
        assert self._shell is not None
        self._until("answer ssh", BOOT_LIMIT, self._shell.connect)

    def _drop_shell(self) -> None:
        if self._shell is not None:
            self._shell.close()

    def _until(self, what: str, limit: float, done: Callable[[], bool], alive: bool = True) -> None:
        """Waits until `done`; fails after `limit` seconds, or at once when qemu ends and has to be `alive`."""
        end = time.monotonic() + limit
        while not done():
            if alive and self._qemu is not None and self._qemu.poll() is not None:
                raise self._hung(f"qemu ended and did not {what}")
            if time.monotonic() > end:
                raise self._hung(f"it did not {what} within {limit:.0f} s")
            time.sleep(0.1)

    def _hung(self, why: str) -> Hung:
        texts = [f"the virtual machine: {why}"]
        for path in (self._said, self.serial):
            with contextlib.suppress(OSError):
                texts.append(f"--- end of {path.name}\n{path.read_bytes()[-TAIL:].decode('utf-8', 'replace')}")
        return Hung("\n".join(texts))
