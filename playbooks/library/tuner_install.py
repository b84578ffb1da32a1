#!/usr/bin/python
# Copyright: the authors of tuner. Apache-2.0 (see LICENSE)
"""Ansible module: puts the bundle of tuner in place on a node, or takes it away."""

# It runs under whatever Python Ansible finds on the node (3.8 or newer), not under the one that tuner will use.

from __future__ import annotations

DOCUMENTATION = r"""
module: tuner_install
short_description: Installs or removes tuner on a node
description:
  - Unpacks a bundle (C(tuner fleet bundle)) below C(/opt/tuner/releases), tries it, and only then makes it
    C(/opt/tuner/current), in one step. A full disk or a bundle that does not run leaves the former release current.
  - Takes the newest Python that the distribution has, 3.10 or newer. Needs no network.
options:
  state:
    description: C(present) installs, C(absent) removes tuner with all its files.
    type: str
    choices: [present, absent]
    default: present
  release:
    description: Name of the release, as C(tuner fleet bundle --json) tells it.
    type: str
  digest:
    description: The sha256 of the unpacked archive, from the same place.
    type: str
  size:
    description: Bytes that the release needs.
    type: int
    default: 0
  bundle:
    description: The archive on the node. Not needed in check mode.
    type: path
  python:
    description: The interpreter to use instead of the newest one in C(/usr/bin), an absolute path.
    type: path
  keep:
    description: How many former releases are kept.
    type: int
    default: 1
  keep_settings:
    description: For C(absent), remove tuner also while settings are applied; they stay, and nothing remembers them.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says whether it would install or remove.
  diff_mode:
    support: full
    description: Shows the former and the new release.
author: the authors of tuner
"""

EXAMPLES = r"""
- name: Is this release there
  tuner_install:
    release: "{{ bundle.release }}"
  check_mode: true
  register: needed

- name: Install it
  tuner_install:
    release: "{{ bundle.release }}"
    digest: "{{ bundle.digest }}"
    size: "{{ bundle.size }}"
    bundle: /var/tmp/tuner.x1y2z3/bundle.tar.gz

- name: Remove tuner and what it kept
  tuner_install:
    state: absent
"""

RETURN = r"""
release:
  description: The release that is current now, or would be.
  type: str
  returned: always
former:
  description: The release that was current before; empty where there was none.
  type: str
  returned: always
python:
  description: The interpreter of the distribution that runs it.
  type: str
  returned: when installed
removed:
  description: Paths that were removed, or would be.
  type: list
  elements: str
  returned: state=absent
"""

import contextlib
import errno
import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile

from ansible.module_utils.basic import AnsibleModule

BASE = "/opt/tuner"
RELEASES = f"{BASE}/releases"
CURRENT = f"{BASE}/current"
COMMAND = f"{BASE}/bin/tuner"
LINK = "/usr/local/bin/tuner"
APPLIED = "/etc/tuner/applied/current.json"
"""There while settings are applied, whichever tuner did it."""

STATE = ("/etc/tuner", "/var/lib/tuner", "/run/tuner")
"""What tuner keeps on a node besides itself."""

OLDEST = (3, 10)
PYTHONS = "/usr/bin"
HOMES = ("/home/", "/root/")
NEEDS = "import ctypes, fcntl, json, marshal, sys, syslog, zlib; print('%d.%d.%d' % sys.version_info[:3])"
NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]*")
COMPILED = ("tuner", "yaml")
"""What every call imports: compiled at once, the rest when somebody needs it."""


class Failed(Exception):
    """Ends the module; the text says what is wrong and what to do."""


def main():
    """Reads the arguments, does it, answers."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "release": {"type": "str"},
            "digest": {"type": "str"},
            "size": {"type": "int", "default": 0},
            "bundle": {"type": "path"},
            "python": {"type": "path"},
            "keep": {"type": "int", "default": 1},
            "keep_settings": {"type": "bool", "default": False},
        },
        required_if=[("state", "present", ["release"])],
        supports_check_mode=True,
    )
    try:
        result = absent(module) if module.params["state"] == "absent" else present(module)
    except Failed as failed:
        module.fail_json(msg=str(failed), former=former())
    except OSError as error:
        module.fail_json(msg=f"{error.filename or BASE}: {error.strerror or error}", former=former())
    module.exit_json(**result)


def former():
    """Name of the release that is current; empty where there is none."""
    try:
        return os.path.basename(os.readlink(CURRENT))
    except OSError:
        return ""


# --- present ------------------------------------------------------------------------------------------------------


def present(module):
    """Installs the release unless it is there and runs."""
    release, before = module.params["release"], former()
    if not NAME.fullmatch(release):
        raise Failed(f"{release!r} is no name of a release")
    python, found = interpreter(module.params["python"])
    result = {"changed": False, "release": release, "former": before, "python": python}
    if python is None:
        listed = ", ".join(f"{path} ({version})" for path, version in found) or "none"
        wanted = ".".join(map(str, OLDEST))
        raise Failed(
            f"tuner needs Python {wanted} or newer in {PYTHONS}; found: {listed}. "
            "Install one (on EL9: dnf install python3.11), or name it with tuner_python"
        )
    own()
    if before == release and runs(f"{CURRENT}/bin/python") and linked():
        return result
    result.update(changed=True, diff={"before": f"release {before or 'none'}\n", "after": f"release {release}\n"})
    if not module.check_mode:
        for text in install(module.params, python):
            module.warn(text)
    return result


def own():
    """Refuses a place that is somebody else's, or that others than root can write."""
    if os.path.exists(f"{BASE}/pyvenv.cfg"):
        raise Failed(f"{BASE} is a virtual environment that somebody made by hand: move it away first")
    place = BASE if os.path.isdir(BASE) else os.path.dirname(BASE)
    while os.path.isdir(place):
        status = os.stat(place)
        if os.geteuid() == 0 and (status.st_uid != 0 or status.st_mode & 0o022):
            raise Failed(f"{place} can be written by others than root: chown root {place}; chmod go-w {place}")
        if place == "/":
            return
        place = os.path.dirname(place)


def interpreter(given):
    """The newest fitting (path) or None, and every one that was looked at with its version."""
    found = []
    if given:
        candidates = [given]
    else:
        names = [name for name in os.listdir(PYTHONS) if re.fullmatch(r"python3\.\d+", name)]
        candidates = [f"{PYTHONS}/{name}" for name in sorted(names, key=lambda n: -int(n.split(".")[1]))]
    for path in candidates:
        version, why = version_of(path)
        found.append((path, version or why))
        if version and tuple(map(int, version.split(".")[:2])) >= OLDEST and trusted(path):
            return path, found
    return None, found


def version_of(path):
    """(version, "") of an interpreter that has what tuner imports, or ("", why not)."""
    if not os.path.isabs(path):
        return "", "no absolute path"
    try:
        done = subprocess.run([path, "-I", "-c", NEEDS], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", getattr(error, "strerror", None) or "does not answer"
    last = done.stderr.strip().rpartition("\n")[2]
    return (done.stdout.strip(), "") if done.returncode == 0 else ("", last or f"exit {done.returncode}")


def trusted(path):
    """Whether the file that a path leads to is root's, nobody else can write it, and it is in nobody's home."""
    real = os.path.realpath(path)
    status = os.stat(real)
    if real.startswith(HOMES):
        return False
    return os.geteuid() != 0 or (status.st_uid == 0 and not status.st_mode & 0o022)


def runs(python):
    """Whether the interpreter of a release starts tuner."""
    try:
        words = [python, "-I", "-m", "tuner", "--version"]
        return subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def linked():
    """Whether the command is in its place."""
    return os.path.islink(COMMAND) and os.path.exists(COMMAND)


def install(params, python):
    """Unpacks beside the others, tries it, then makes it current; returns warnings."""
    release, bundle = params["release"], params["bundle"]
    if not bundle or not params["digest"]:
        raise Failed("bundle and digest are needed to install")
    os.makedirs(RELEASES, 0o755, exist_ok=True)
    for folder in (BASE, RELEASES):
        os.chmod(folder, 0o755)
    room(params["size"])
    new = tempfile.mkdtemp(prefix=".new-", dir=RELEASES)
    try:
        unpack(bundle, params["digest"], new)
        dress(new, python)
        tried(f"{new}/bin/python")
        place = f"{RELEASES}/{release}"
        compiled(new, place)
        if os.path.lexists(place):
            os.rename(place, f"{new}.old")
        os.rename(new, place)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Failed(f"no room in {BASE}: {error.strerror}; {kept()}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(f"{new}.old", ignore_errors=True)
    return switch(release, params["keep"])


def room(size):
    """Refuses at once where the files cannot fit; compiled files take about a third more."""
    about = os.statvfs(RELEASES)
    free = about.f_bavail * about.f_frsize
    needed = size + size // 3
    if free < needed:
        raise Failed(f"no room in {BASE}: {free // 1024} KiB free, {needed // 1024} KiB needed; {kept()}")


def kept():
    """What is said of the former release after a failure."""
    return f"release {former()} stays current" if former() else "nothing is installed"


def unpack(bundle, digest, new):
    """Writes each file of the archive below `new`: root's, 0644 or 0755; nothing of an archive that is not as told."""
    with gzip.open(bundle) as file:
        data = file.read()  # what is counted is what is unpacked, whoever can write the file meanwhile
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise Failed(f"{bundle} is not the bundle that was built: its sha256 is {found}")
    os.chmod(new, 0o755)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            parts = member.name.split("/")
            if not member.isreg() or member.name.startswith("/") or ".." in parts:
                raise Failed(f"{bundle}: {member.name} is no plain file below the release")
            write(new, parts, archive.extractfile(member).read(), 0o755 if parts[0] == "bin" else 0o644)


def write(top, parts, data, mode):
    """One file of a release, with the folders above it; modes do not depend on the umask."""
    place = top
    for part in parts[:-1]:
        place = f"{place}/{part}"
        if not os.path.isdir(place):
            os.mkdir(place)
            os.chmod(place, 0o755)
    path = f"{place}/{parts[-1]}"
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def dress(new, python):
    """Makes of a release a virtual environment of that interpreter: it sees nothing but its own packages."""
    version, _ = version_of(python)
    short = ".".join(version.split(".")[:2])
    config = f"home = {os.path.dirname(python)}\ninclude-system-site-packages = false\nversion = {version}\n"
    write(new, ["pyvenv.cfg"], config.encode(), 0o644)
    write(new, ["lib", f"python{short}", ".of-tuner"], b"", 0o644)
    os.symlink("../../site", f"{new}/lib/python{short}/site-packages")
    os.symlink(python, f"{new}/bin/python")
    with open(f"{new}/bin/tuner", "rb") as file:
        text = file.read()
    write(new, ["bin", "tuner"], f"#!{CURRENT}/bin/python -I\n".encode() + text, 0o755)


def tried(python):
    """Fails with the last line that tuner's own start gives, if it does not start."""
    words = [python, "-I", "-B", "-c", "import tuner.cli.parser, yaml, rich.console, pynvml"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"{python} did not answer within two minutes; {kept()}") from None
    if done.returncode:
        raise Failed(f"the release does not run here: {done.stderr.strip().rpartition(chr(10))[2]}; {kept()}")


def compiled(new, place):
    """Compiles what every call imports, under the names that it will have."""
    sites = [f"{new}/site/{name}" for name in COMPILED]
    words = [f"{new}/bin/python", "-I", "-m", "compileall", "-q", "-s", new, "-p", place, *sites]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode and os.strerror(errno.ENOSPC) in done.stdout + done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
    for folder, _, names in os.walk(f"{new}/site"):
        for name in [*names, ""] if folder.endswith("__pycache__") else []:
            os.chmod(f"{folder}/{name}", 0o644 if name else 0o755)


def switch(release, keep):
    """One rename makes the release current; then the command, and former releases go."""
    pointed(CURRENT, f"releases/{release}")
    os.makedirs(os.path.dirname(COMMAND), 0o755, exist_ok=True)
    os.chmod(os.path.dirname(COMMAND), 0o755)
    pointed(COMMAND, "../current/bin/tuner")
    prune(release, keep)
    label = shutil.which("restorecon")
    if label:  # under SELinux what was made elsewhere and moved keeps the label of where it was made
        subprocess.run([label, "-R", BASE], capture_output=True, timeout=300, check=False)
    try:
        if not os.path.lexists(LINK):
            os.symlink(COMMAND, LINK)
        elif not ours(LINK):
            return [f"{LINK} is somebody else's and stays; call {COMMAND}"]
    except OSError as error:
        return [f"{LINK}: {error.strerror}; call {COMMAND}"]
    return []


def pointed(path, to):
    """Makes a link point there, in one step."""
    beside = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    os.symlink(to, beside)
    os.replace(beside, path)


def prune(release, keep):
    """Removes all but the newest former releases, and what earlier runs left half done."""
    names = [name for name in os.listdir(RELEASES) if name != release]
    finished = [name for name in names if not name.startswith(".")]
    finished.sort(key=lambda name: -os.stat(f"{RELEASES}/{name}").st_mtime)
    for name in [*finished[max(keep, 0) :], *(name for name in names if name.startswith("."))]:
        shutil.rmtree(f"{RELEASES}/{name}", ignore_errors=True)


def ours(path):
    """Whether a path is the link to our command."""
    return os.path.islink(path) and os.readlink(path) == COMMAND


# --- absent -------------------------------------------------------------------------------------------------------


def absent(module):
    """Removes tuner, its command and all that it kept on the node."""
    own() if os.path.isdir(BASE) else None
    if os.path.lexists(APPLIED) and not module.params["keep_settings"] and not module.check_mode:
        raise Failed("settings are applied here: tuner rollback --to 0 gives them back; keep_settings leaves them")
    paths = [path for path in (BASE, *STATE) if os.path.lexists(path)]
    links = [LINK] if ours(LINK) else []
    result = {"changed": bool(paths or links), "release": "", "former": former(), "removed": [*links, *paths]}
    result["diff"] = {"before": "".join(f"{path}\n" for path in result["removed"]), "after": ""}
    if not module.check_mode:
        for path in links:
            os.unlink(path)
        for path in paths:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(path)
    return result


if __name__ == "__main__":
    main()
