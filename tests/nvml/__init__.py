"""A library of ours in the place of libnvidia-ml.so.1, and what a test does to the GPUs behind it.

    fake = Fake(tmp_path / "nvml", "h800")      compiled at its first use
    fake.use(monkeypatch)                       from here on the loader finds it first
    fake.lose(3)

Numbers of the GPUs: NVIDIA/nvidia-docker#1648 (A100-SXM4-40GB), NVIDIA/DCGM#120 (H800).
"""

from __future__ import annotations

import fcntl
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import unavailable

SOURCE = Path(__file__).parent / "fake_nvml.c"
LIBRARY = "libnvidia-ml.so.1"

ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
"""Of eight GPUs, as sysfs writes them."""

COMMON: dict[str, int | str] = {
    "serial": "13206200300{gpu:02}", "uuid": "GPU-00000000-1111-2222-3333-0000000000{gpu:02}", "persistence": 0,
    "compute": 0, "ecc_current": 1, "ecc_pending": 1, "mig_current": 0, "mig_pending": 0, "reasons": 1,
    "rows": "0 0 0 0", "graphics_step": 15,
}  # fmt: skip

A100: dict[str, int | str] = {
    "graphics_max": 1410, "sm_max": 1410, "video_max": 1290, "graphics_min": 210, "graphics_now": 210, "sm_now": 210,
    "power_min": 100000, "power_max": 400000, "power_default": 400000, "power_limit": 400000,
    "mig_needs_reset": 1, "links": 12,
}  # fmt: skip

PROFILES: dict[str, dict[str, int | str]] = {
    "a100-40": {
        **COMMON, **A100, "name": "NVIDIA A100-SXM4-40GB", "device": "0x20b010de", "memory": 40960 << 20,
        "memory_clocks": "1215", "memory_max": 1215, "memory_now": 1215,
    },
    "a100-80": {
        **COMMON, **A100, "name": "NVIDIA A100-SXM4-80GB", "device": "0x20b210de", "memory": 81920 << 20,
        "memory_clocks": "1593", "memory_max": 1593, "memory_now": 1593,
    },
    "h800": {
        **COMMON, "name": "NVIDIA H800", "device": "0x232410de", "memory": 81559 << 20,
        "graphics_max": 1980, "sm_max": 1980, "video_max": 1545, "graphics_min": 345, "graphics_now": 345,
        "sm_now": 345, "memory_clocks": "2619 1593", "memory_max": 2619, "memory_now": 2619,
        "power_min": 200000, "power_max": 700000, "power_default": 700000, "power_limit": 700000,
        "mig_needs_reset": 0, "links": 8, "fabric_state": 3, "fabric_status": 0, "fabric_summary": 1,
    },
}  # fmt: skip


@functools.cache
def library(old: bool = False) -> bytes:
    """The compiled library; `old` is one of a driver before 535, which lacks functions."""
    compiler = shutil.which("gcc")
    if compiler is None:
        unavailable("gcc is needed to build a stand-in for libnvidia-ml.so.1")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, LIBRARY)
        words = [str(compiler), "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
        words += [*(["-DOLD"] if old else []), "-o", str(made), str(SOURCE)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        if "stdio.h" in done.stderr or "cannot find crti.o" in done.stderr:
            unavailable("the headers of the C library (libc6-dev) are needed to build a stand-in for libnvidia-ml.so.1")
        assert done.returncode == 0, done.stderr
        return made.read_bytes()


class Fake:
    """A folder with the library and the state of its GPUs. Any user may read and, as through a driver, change them."""

    def __init__(self, folder: Path, profile: str = "h800", old: bool = False) -> None:
        self.folder, self.path, self._state = folder, folder / LIBRARY, folder / "state"
        folder.mkdir(mode=0o755)
        self.path.write_bytes(library(old))
        for name in ("state", "clients"):
            (folder / name).touch()
            (folder / name).chmod(0o666)
        self.profile(profile)

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lets the loader of every program that we start find it."""
        monkeypatch.setenv("LD_LIBRARY_PATH", str(self.folder))

    def profile(self, name: str, addresses: Sequence[str] = ADDRESSES) -> None:
        """All GPUs as new, one for each PCI address."""
        rows: dict[tuple[str, str], str] = {("-", "driver"): "550.90.07", ("-", "count"): str(len(addresses))}
        for gpu, address in enumerate(addresses):
            rows[f"{gpu}", "bus"] = address.upper().rjust(len("00000000:00:00.0"), "0")
            for key, value in PROFILES[name].items():
                rows[f"{gpu}", key] = str(value).format(gpu=gpu)
        self._change(lambda old: rows)

    def set(self, gpu: int | None, key: str, value: object) -> None:
        """A key of a GPU, None for the system; the value None takes the key away."""
        who = "-" if gpu is None else str(gpu)

        def change(rows: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
            rest = {place: found for place, found in rows.items() if place != (who, key)}
            return rest if value is None else {**rest, (who, key): str(value)}

        self._change(change)

    def get(self, gpu: int | None, key: str) -> str:
        """What the driver holds for a key."""
        return self._rows(self._state.read_text())["-" if gpu is None else str(gpu), key]

    def fail(self, function: str, error: int, gpu: int | None = None) -> None:
        """From now on the function gives this nvmlReturn_t, for one GPU or all; 0 ends that."""
        self.set(gpu, f"fail:{function}", error)

    def hang(self, function: str) -> None:
        """From now on the function does not return, and no signal but SIGKILL ends it; "" ends that."""
        self.set(None, "hang", function or None)

    def crash(self, function: str) -> None:
        """From now on the function ends the process with SIGSEGV; "" ends that."""
        self.set(None, "crash", function or None)

    def deny(self) -> None:
        """Setters are refused, even to root, as in a container."""
        self.set(None, "deny", 1)

    def lose(self, gpu: int) -> None:
        """The GPU has fallen off the bus."""
        self.set(gpu, "lost", 1)

    def reload_driver(self) -> None:
        """What only the driver held is gone."""
        for gpu in range(int(self.get(None, "count"))):
            lost = {"persistence": 0, "compute": 0, "gpu_lock": "0 0", "memory_lock": "0 0"}
            for key, value in {**lost, "power_limit": self.get(gpu, "power_default")}.items():
                self.set(gpu, key, value)

    def reset(self, gpu: int) -> None:
        """A GPU reset: pending modes are in force, locked clocks gone."""
        for mode in ("ecc", "mig"):
            self.set(gpu, f"{mode}_current", self.get(gpu, f"{mode}_pending"))
        for key in ("gpu_lock", "memory_lock"):
            self.set(gpu, key, "0 0")

    def reboot(self) -> None:
        """Reload and reset; MIG mode survives on the A100 only."""
        self.reload_driver()
        for gpu in range(int(self.get(None, "count"))):
            if self.get(gpu, "mig_needs_reset") == "0":
                self.set(gpu, "mig_pending", 0)
            self.reset(gpu)

    @staticmethod
    def _rows(text: str) -> dict[tuple[str, str], str]:
        split = [line.split(" ", 2) for line in text.splitlines()]
        return {(who, key): value for who, key, value in split}

    def _change(self, change: Callable[[dict[tuple[str, str], str]], dict[tuple[str, str], str]]) -> None:
        with self._state.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            rows = change(self._rows(file.read()))
            file.seek(0)
            file.write("".join(f"{who} {key} {value}\n" for (who, key), value in rows.items()))
            file.truncate()
