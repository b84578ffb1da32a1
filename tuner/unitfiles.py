"""The texts of our units and udev rules, and where they go.

systemd.unit(5), systemd.service(5), systemd.path(5), systemd.timer(5), udev(7). What must hold of them:

- tuner-apply.service comes after whatever else sets what we set, and before what starts jobs; by order alone, so that
  it can fail or hang (TimeoutStartSec) and slurmd starts all the same. A kernel that saves a crash gets nothing.
- A device that really came starts one run. `udevadm trigger` starts none: the kernel marks what user space asked it to
  announce with SYNTH_UUID (Documentation/ABI/testing/sysfs-uevent, since Linux 4.13), and so does the cold plug of a
  boot. Only functions of known drivers count: no virtual interface has such a parent, a virtual function has `physfn`,
  a representor says so in phys_port_name (Documentation/networking/representors.rst).
- udev names the device in a queue and starts nothing itself, since it kills what lasts (RUN in udev(7)). The path unit
  starts the one service, and looks again when that has ended: nothing that comes meanwhile is lost.
- Nothing has an ExecStop: stopping or removing a unit reverts no setting.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.boot.units import APPLY, FOLDER, TARGET, WANTED, header
from tuner.devices import QUEUE, QUEUED

DEVICE = "tuner-device.service"
PATH_UNIT = "tuner-device.path"
VERIFY = "tuner-verify.service"
TIMER = "tuner-verify.timer"
RULES = "/etc/udev/rules.d/90-tuner.rules"

STARTED = (PATH_UNIT, TIMER)
"""What runs at once when it is installed; the settings are as they were applied, so tuner-apply waits for the boot."""

EARLIER = (
    "local-fs.target", "systemd-modules-load.service", "systemd-sysctl.service", "openibd.service",
    "nvidia-persistenced.service", "nvidia-fabricmanager.service", "tuned.service", "cpupower.service",
)  # fmt: skip
LATER = ("slurmd.service", "kubelet.service")
"""What starts jobs; kubelet counts huge pages when it starts (Kubernetes, Manage HugePages)."""

NIC_DRIVERS = (
    "mlx5_core", "mlx4_core", "bnxt_en", "ionic", "ice", "idpf", "i40e", "ixgbe", "igb", "e1000e", "ena", "gve", "mana",
)  # fmt: skip
GPU_DRIVERS = ("amdgpu", "nvidia")

START = 120
"""Seconds that a start may take: 60 for the lock, the rest for devices that are late and for the writes."""


@dataclass(frozen=True)
class Texts:
    """Every file by its path, and every link that enables one by its path, with what it points to."""

    files: dict[str, str]
    links: dict[str, str]


def texts(python: str) -> Texts:
    """What `tuner persist install` puts on a host whose tuner runs under `python`, an absolute path there."""
    files = {
        f"{FOLDER}/{APPLY}": _apply(python),
        f"{FOLDER}/{DEVICE}": _device(python),
        f"{FOLDER}/{PATH_UNIT}": _path(),
        f"{FOLDER}/{VERIFY}": _verify(python),
        f"{FOLDER}/{TIMER}": _timer(),
        RULES: _rules(),
    }
    links = {
        WANTED: f"{FOLDER}/{APPLY}",
        f"{FOLDER}/{TARGET}.wants/{PATH_UNIT}": f"{FOLDER}/{PATH_UNIT}",
        f"{FOLDER}/timers.target.wants/{TIMER}": f"{FOLDER}/{TIMER}",
    }
    return Texts(files, links)


CONDITIONS = """ConditionPathExists=!/proc/vmcore
ConditionKernelCommandLine=!tuner.off
"""


def _service(python: str, words: str) -> str:
    """KillMode=mixed: tuner itself ends its write first; what it started goes with it at the latest."""
    return f"""
[Service]
Type=oneshot
ExecStart={python} -I -m tuner {words}
TimeoutStartSec={START}
TimeoutStopSec=10
KillMode=mixed
"""


def _apply(python: str) -> str:
    return f"""{header("what is applied is made so again at boot")}
[Unit]
Description=Settings of this node as tuner applied them
After={" ".join(EARLIER)}
Before={" ".join(LATER)}
{CONDITIONS}{_service(python, "apply --boot")}RemainAfterExit=yes

[Install]
WantedBy={TARGET}
"""


def _device(python: str) -> str:
    return f"""{header("what belongs to a device that came anew is made so again")}
[Unit]
Description=Settings of devices that came anew
After={APPLY}
StartLimitIntervalSec=10
StartLimitBurst=20
{_service(python, f"apply --device {QUEUED}")}"""


def _path() -> str:
    """The conditions stand here: a path unit whose service is skipped by one would start it again and again."""
    return f"""{header("starts tuner-device.service while devices are queued")}
[Unit]
Description=Devices that came anew
{CONDITIONS}
[Path]
DirectoryNotEmpty={QUEUE}
MakeDirectory=yes
DirectoryMode=0755
Unit={DEVICE}

[Install]
WantedBy={TARGET}
"""


def _verify(python: str) -> str:
    return f"""{header("whether what is applied still holds")}
[Unit]
Description=Whether the settings that tuner applied still hold
After={APPLY}
ConditionPathExists=/etc/tuner/applied/current.json
{CONDITIONS}{_service(python, "verify")}ExecCondition={python} -I -m tuner persist idle
SuccessExitStatus=13 14
Nice=10
"""


def _timer() -> str:
    return f"""{header("verifies once an hour, each node at its own time")}
[Unit]
Description=Verifies the settings that tuner applied

[Timer]
OnCalendar=hourly
RandomizedDelaySec=30m
AccuracySec=1m
Unit={VERIFY}

[Install]
WantedBy=timers.target
"""


def _rules() -> str:
    nics, gpus = "|".join(NIC_DRIVERS), "|".join(GPU_DRIVERS)
    queue = f'RUN+="/bin/touch {QUEUE}'
    parent = f'SUBSYSTEMS=="pci", DRIVERS=="{nics}", TEST=="device/config", TEST!="device/physfn"'
    return f"""{header("names devices that came anew")}
ACTION!="add|bind|move", GOTO="tuner_end"
ENV{{SYNTH_UUID}}=="?*", GOTO="tuner_end"
TEST!="{QUEUE}", GOTO="tuner_end"
SUBSYSTEM=="net", ATTR{{phys_port_name}}=="pf*|c[0-9]*pf*", GOTO="tuner_end"
SUBSYSTEM=="net", ACTION=="add|move", {parent}, {queue}/net:$name"
SUBSYSTEM=="infiniband", ACTION=="add|move", {parent}, {queue}/infiniband:$kernel"
SUBSYSTEM=="drm", ACTION=="add", KERNEL=="card[0-9]*", KERNEL!="card*-*", SUBSYSTEMS=="pci", DRIVERS=="{gpus}", \
{queue}/pci:$id"
SUBSYSTEM=="pci", ACTION=="bind", DRIVER=="{nics}|{gpus}", TEST!="physfn", {queue}/pci:$kernel"
LABEL="tuner_end"
"""
