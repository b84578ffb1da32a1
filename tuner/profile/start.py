"""A commented profile to start from."""

from __future__ import annotations

import inspect
import json

from tuner.knobs import KNOBS
from tuner.profile.lines import GATES

SUMMARY = "What our nodes need over linux-gpu"

HEAD = """\
# A profile of tuner: what this site's nodes shall hold, with why and who says so.
# tuner profiles lint FILE     checks it, every problem at once
# tuner plan --profile FILE    shows what it would change on this machine; writes nothing
# In /etc/tuner/profiles it is found by its name.
name: {name}
summary: {summary}

# Profiles that this one lies over, the first lowest. A setting here replaces the one of the same target there.
extends: [linux-gpu]

# For which hardware; without it, for any. Ids as `lspci -nn` shows them.
# match:
#   gpus: {{ids: ["1002:74a1"], count: 8, driver: amdgpu}}
#   nics: {{drivers: [mlx5_core], at_least: 8}}

# KNOB: {{TARGET: VALUE}}, or in place of VALUE a mapping with exactly one of
#   value      exactly this
#   at_least   this or more: what is larger is left alone; at_most: this or less
#   one_of     any of a list, the first is written
# and besides
#   why, source   `tuner explain` shows them; lint asks for both
#   required      true: a host that does not have the target fails
#   gate          {gates}: what the check before a job does about it
# {{unset: true}} alone takes an inherited setting out. Targets may be patterns: node*/2MB.
settings:
  sysctl:
    net.core.somaxconn:
      at_least: 4096
      why: An example that changes nothing on Linux 5.4 and later, where it is the default.
      source: Documentation/networking/ip-sysctl.rst
"""

EXAMPLES = {
    "sysctl": """\
vm.swappiness: {value: 10, why: Our loader maps files, source: measured here}
net.ipv4.tcp_rmem: {at_least: "4096 131072 33554432", why: Long links, source: measured here}
net.ipv4.tcp_keepalive_time: {at_most: 600, why: Our firewall forgets idle links, source: measured here}
net.core.netdev_max_backlog: {unset: true}
""",
    "sysctl.pair": "vm.dirty: {value: {bytes: 1073741824}, why: Checkpoints come in bursts, source: measured here}\n",
    "thp": """\
defrag:
  one_of: [madvise, defer+madvise]
  why: No stalls for those that did not ask
  source: Documentation/admin-guide/mm/transhuge.rst
""",
    "cpu": """\
governor: {value: performance, why: Steady clocks, source: measured here}
cstate/C6: {value: "off", why: Waking up takes too long for us, source: measured here}
""",
    "amdgpu.clock": """\
"*": {value: {level: perf_determinism, max: 1900}, why: Equal clocks on all GPUs, source: measured here}
""",
    "nvidia.persistence": '"*": {value: enabled, why: Locks and limits stay, source: Driver Persistence}\n',
    "nvidia.ecc": '"*": {value: enabled, why: Jobs need right results, source: measured here}\n',
    "nvidia.mig": '"*": {value: disabled, why: Our jobs take whole GPUs, source: measured here}\n',
    "nvidia.compute_mode": '"*": {value: default, why: Several processes share a GPU, source: measured here}\n',
    "nvidia.mem_clocks": '"*": {value: unlocked, why: Nobody shall have locked it, source: measured here}\n',
    "nvidia.gpu_clocks": """\
"*": {value: 1410, why: Equal clocks on all GPUs of an A100 node, source: measured here}
"0000:1b:00.0": {value: {min: 1200, max: 1410}, why: This one runs hot, source: measured here}
""",
    "nvidia.power_limit": '"*": {value: 400, why: The chassis is built for it, source: its manual}\n',
    "nvidia.fabric": '"*": {value: completed, why: NVLink needs it, source: measured here, gate: enforce}\n',
    "nvidia.fabric_manager": "nvidia-fabricmanager.service: {value: running, why: For NVSwitch, source: its guide}\n",
    "nvidia.nvlinks": '"*": {at_least: 12, why: All links of an A100, source: measured here}\n',
    "nvidia.row_remap": '"*": {value: {pending: "no", failure: "no"}, why: Bad memory, source: measured here}\n',
    "pcie.link": '"gpu/0000:1b:00.0": {at_least: {generation: 4, width: 16}, why: Full speed, source: its manual}\n',
    "amdgpu.power_cap": '"*": {at_most: 700, why: Our racks have no more, source: measured here}\n',
    "amdgpu.soc_pstate": '"*": {value: soc_pstate_default, why: AMD has it so, source: its documents}\n',
    "amdgpu.xgmi_plpd": '"*": {value: plpd_default, why: AMD has it so, source: its documents}\n',
    "amdgpu.partition": '"*": {value: {compute: SPX, memory: NPS1}, why: Jobs want whole GPUs, source: our users}\n',
    "amdgpu.vram": '"*": {at_least: 206141652992, why: All of it, source: measured here}\n',
    "amdgpu.hive": '"*": {value: 8, why: Collectives use xGMI, source: measured here}\n',
    "amdgpu.xgmi_errors": '"*": {at_most: {uncorrectable: 0, correctable: 100}, why: Bad links, source: our vendor}\n',
    "amdgpu.firmware": '"*": {value: equal, why: GPUs of one node take part in one job, source: our rule}\n',
    "amdgpu.xnack": '"*": {value: "off", why: Our codes do not page, source: our users}\n',
    "hugepages": "node*/2MB: {at_least: 1024, why: Our allocator asks for them, source: its manual}\n",
    "irq": '"*": {value: local, why: irqbalance is not used here, source: measured here}\n',
    "limits": "slurmd.service/nofile: {at_least: 1048576, why: Loaders open many files, source: measured here}\n",
    "sysfs": """\
block/nvme*/read_ahead_kb: {at_least: 4096, why: Our data sets are large files, source: measured here}
block/nvme*/scheduler: {value: none, why: The fast disks order requests themselves, source: measured here}
""",
    "shm": '"/dev/shm": {at_least: 64G, why: Our loaders exchange batches there, source: measured here}\n',
    "service": "irqbalance.service: {value: inactive, why: We place interrupts ourselves, source: irqbalance(1)}\n",
    "cmdline": "pci: {value: realloc=off, why: Our boards need it, source: their manual, required: true}\n",
    "module": "nvme_core/io_timeout: {value: 60, why: Our fabric takes its time, source: its manual}\n",
    "file": """\
/etc/modprobe.d/site.conf:
  value: {text: "options nvme poll_queues=4\\n", mode: "0644"}
  why: Polling for the local scratch disks
  source: Documentation/admin-guide/kernel-parameters.txt
  gate: report
""",
}
"""Lines for each knob, as they stand below its name."""


def start(name: str) -> str:
    """The text: valid as it is, and valid with the examples taken into use."""
    parts = [HEAD.format(name=json.dumps(name), summary=SUMMARY, gates=", ".join(GATES))]
    for knob in sorted(KNOBS, key=lambda knob: knob.name != "sysctl"):
        about = inspect.cleandoc(type(knob).__doc__ or "").partition("\n")[0]
        example = EXAMPLES.get(knob.name)
        lines = [] if knob.name == "sysctl" else [f"  # {knob.name}:"]
        lines += [f"  #   {line}" for line in example.splitlines()] if example else []
        body = "\n".join(lines) if example else f"  # {knob.name}: see `tuner explain {knob.name}`"
        parts.append(f"\n  ## {about}\n{body}\n")
    return "".join(parts)
