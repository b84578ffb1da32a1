"""What is in the disk image: packages, files, units. Any change of this file or of image.py makes a new image."""

from __future__ import annotations

SUITE = "bookworm"
"""Debian 12, whose kernel is 6.1 and whose systemd is 252."""

SIZE = 2048
"""Of the disk, in MiB."""

PACKAGES = (
    "linux-image-amd64", "systemd-sysv", "udev", "dbus", "kmod", "procps", "initramfs-tools", "zstd",
    "openssh-server", "iproute2", "ethtool", "pciutils", "numactl", "python3-venv",
    "grub-pc-bin", "grub2-common", "grub-common",
)  # fmt: skip

LEFT_OUT = (
    "/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*",
    "/lib/modules/*/kernel/sound/*", "/lib/modules/*/kernel/drivers/media/*",
    "/lib/modules/*/kernel/drivers/net/wireless/*", "/lib/modules/*/kernel/drivers/staging/*",
)  # fmt: skip
"""Files of packages that are not unpacked."""

COMMAND_LINE = "console=ttyS0 panic=-1 mitigations=off quiet"
"""Of the kernel, besides `root=`. A panic ends the machine at once."""

ROOT = "/dev/vda1"

MAC = "52:54:00:00:00:01"
"""Of the NIC that ssh comes by; the other one stays without an address."""

EARLY_FILES = {
    "etc/initramfs-tools/conf.d/small": "MODULES=list\nCOMPRESS=zstd\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
}
"""Needed before the packages are configured: an initrd of what the machine has, made in seconds."""

FILES = {
    "etc/hostname": "vm\n",
    "etc/hosts": "127.0.0.1 localhost vm\n",
    "etc/fstab": f"{ROOT} / ext4 defaults,noatime 0 1\n",
    "etc/ssh/sshd_config.d/vm.conf": "PermitRootLogin prohibit-password\nUseDNS no\n",
    "etc/systemd/network/10-all.network": (
        f"[Match]\nMACAddress={MAC}\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\n[DHCPv4]\nClientIdentifier=mac\n"
    ),
    "etc/modprobe.d/vm.conf": "blacklist powernow_k8\nblacklist bochs\nblacklist psmouse\nblacklist pcspkr\n",
    "etc/default/grub": (
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_DISTRIBUTOR=Debian\nGRUB_TERMINAL=serial\nGRUB_DISABLE_OS_PROBER=true\n"
        f'GRUB_DISABLE_LINUX_UUID=true\nGRUB_CMDLINE_LINUX_DEFAULT=""\nGRUB_CMDLINE_LINUX="{COMMAND_LINE}"\n'
    ),
}

ENABLED = ("systemd-networkd.service", "ssh.service")

MASKED = (
    "systemd-networkd-wait-online.service", "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer",
    "e2scrub_reap.service", "fstrim.timer", "modprobe@drm.service", "systemd-pstore.service",
)  # fmt: skip
"""What costs time at boot, or would change something while a test runs."""

GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "serial")

GRUB_CFG = """\
serial --unit=0 --speed=115200
terminal_output serial
set timeout=0
menuentry Debian {{
  set root=(hd0,msdos1)
  linux /boot/vmlinuz-{release} root={root} rw {line}
  initrd /boot/initrd.img-{release}
}}
"""
"""For the first boot by GRUB; `update-grub` in the machine writes a new one."""
