"""What kdump's crash kernel inherits of the boot line: huge pages there can take all of its small memory.

Enterprise Linux: /etc/sysconfig/kdump, KDUMP_COMMANDLINE_REMOVE (rhkdump/kdump-utils gen-kdump-sysconfig.sh). Debian
and Ubuntu: kdump-config of kdump-tools, which takes them off the running line since 1.6, unless KDUMP_CMDLINE is set.
"""

from __future__ import annotations

import re

from tuner.boot.tokens import kernel_part
from tuner.host.door import Host

RED_HAT = "/etc/sysconfig/kdump"
DEBIAN = "/etc/default/kdump-tools"
DEBIAN_TOOL = "/usr/sbin/kdump-config"
LINE = "/proc/cmdline"


def inherits(host: Host) -> str:
    """Why huge pages on the boot line would reach the crash kernel; empty where they would not, or there is none."""
    if not any(name == "crashkernel" for name, _ in kernel_part(host.text(LINE))[0]):
        return ""
    if host.exists(RED_HAT):
        text = host.text(RED_HAT)
        if _option(text, "KDUMP_COMMANDLINE") or {"hugepages", "hugepagesz"} <= _words(
            text, "KDUMP_COMMANDLINE_REMOVE"
        ):
            return ""
        return f"kdump's crash kernel would inherit them: KDUMP_COMMANDLINE_REMOVE in {RED_HAT} does not name them"
    if not host.exists(DEBIAN) or _option(host.text(DEBIAN), "KDUMP_CMDLINE"):
        return ""
    if host.exists(DEBIAN_TOOL) and "hugepages" in host.text(DEBIAN_TOOL):
        return ""
    return f"kdump's crash kernel would inherit them: {DEBIAN_TOOL} does not take them off (KDUMP_CMDLINE)"


def _words(text: str, name: str) -> set[str]:
    return set(_option(text, name).split())


def _option(text: str, name: str) -> str:
    """The last assignment of a shell variable, without quotes."""
    found = re.findall(rf"(?m)^[ \t]*{name}=(.*)$", text)
    return str(found[-1]).strip().strip("\"'") if found else ""
