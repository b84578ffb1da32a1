#!/usr/bin/python
# Copyright: the authors of tuner. Apache-2.0 (see LICENSE)
"""Ansible module: plans, applies, verifies or rolls back the settings of a node, in one call."""

# It runs under whatever Python Ansible finds on the node (3.8 or newer), and calls tuner, which brings its own.

from __future__ import annotations

DOCUMENTATION = r"""
module: tuner
short_description: Plans, applies, verifies and rolls back the settings of a GPU node
description:
  - Calls tuner on the node, once or twice, and tells what it said. One task for all settings of a node.
  - What was written is read back; a refused write undoes the run, and the task fails.
options:
  state:
    description:
      - C(planned) shows what C(applied) would do and writes nothing.
      - C(applied) makes it so.
      - C(verified) fails unless what was applied still holds (or the profile, where one is given).
      - C(rolled_back) undoes the newest generation, or all that are newer than I(to).
    type: str
    choices: [planned, applied, verified, rolled_back]
    default: applied
  profile:
    description: Name of a profile, or its file on the node. Needed for C(planned) and C(applied).
    type: str
  overlays:
    description: Overlays over the profile.
    type: list
    elements: str
    default: []
  set:
    description: Single settings over all files, each C(KNOB:TARGET=VALUE) with the value in YAML.
    type: list
    elements: str
    default: []
  site:
    description:
      - What C(/etc/tuner/site.yaml) shall hold, for C(planned) and C(applied). Left alone where it is not given.
      - It is written before the settings are applied, and put back as it was (mode and owner too) if they are refused.
      - A new file has mode 0644; one that replaces another keeps its owner and mode, less what lets others write.
    type: dict
  files:
    description:
      - Other files below C(/etc/tuner) and their text, such as C(profiles/ours.yaml), C(profiles/overlays/ours.yaml) or
        C(host.d/node-17.yaml). Handled like I(site).
    type: dict
    default: {}
  allow:
    description: Classes of disruption that may be caused (C(--allow)); what is not allowed is held.
    type: list
    elements: str
    default: []
  expect:
    description: Apply nothing unless the settings have this id (8 or more of its digits).
    type: str
  to:
    description: For C(rolled_back), the generation that shall be the newest afterwards; 0 is before the first.
    type: int
  force:
    description: For C(rolled_back), restore also what somebody else changed since.
    type: bool
    default: false
  fail_on_held:
    description: Whether settings that are held or pending fail the task; without it they are a warning.
    type: bool
    default: false
  root:
    description: A tree to work on instead of the running node, such as an image.
    type: path
  executable:
    description: The command on the node.
    type: path
    default: /opt/tuner/bin/tuner
attributes:
  check_mode:
    support: full
    description: The same plan that would be applied, the new I(site) and I(files) included; nothing is written.
  diff_mode:
    support: full
    description: Before and after of each setting and file. The text of a file that not everybody may read is left out.
author: the authors of tuner
"""

EXAMPLES = r"""
- name: Settings of the group, with the site's own
  tuner:
    profile: mi300x
    overlays: [hugepages]
    site:
      boots_from: disk
      settings:
        sysctl:
          vm.swappiness: {value: 10, why: Our loader maps files, source: measured here}

- name: A profile of our own
  tuner:
    profile: ours
    files:
      profiles/ours.yaml: "{{ lookup('ansible.builtin.file', 'ours.yaml') }}"

- name: Does it still hold
  tuner:
    state: verified

- name: Back to what was there before tuner came
  tuner:
    state: rolled_back
    to: 0
"""

RETURN = r"""
exit:
  description: The exit code of tuner (10 differs, 11 hardware missing, 12 could not tell, 13 pending, 14 held, ...).
  type: int
  returned: always
settings_id:
  description: Names the settings; equal on nodes that want the same.
  type: str
  returned: when tuner answered
generation:
  description: The generation that was applied or judged.
  type: int
  returned: when there is one
counts:
  description: Settings by state.
  type: dict
  returned: planned and verified
differences:
  description: What is not as wanted and why, one entry for each setting.
  type: list
  elements: dict
  returned: always
  sample:
    - {state: drift, knob: hugepages, target: node0/2MB, running: "0", want: "2048", why: ""}
changes:
  description: What was written, or would be.
  type: list
  elements: dict
  returned: always
  sample:
    - {knob: sysctl, target: vm.swappiness, before: "60", after: "1", result: done, why: ""}
"""

import contextlib
import errno
import json
import os
import re
import stat
import tempfile

from ansible.module_utils.basic import AnsibleModule

ETC = "/etc/tuner"
SITE = "site.yaml"
FILE = re.compile(r"(profiles/(overlays/)?|host\.d/)[A-Za-z0-9][A-Za-z0-9_.-]*\.yaml")
FOLDERS = ("", "profiles", "profiles/overlays", "host.d")
"""Where those files are, below ETC."""
FORMER = re.compile(r"\.([A-Za-z0-9][A-Za-z0-9_.-]*\.yaml)\.former")
"""Where `put` keeps the former file until tuner has answered: in its folder, under a name that tuner does not read."""
HEADER = "# Written by Ansible (module tuner): change it in the inventory.\n"
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_/.-]*")
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
"""Words that YAML 1.1 takes for something else than text."""

OK, DIFFERS, UNKNOWN, PENDING, HELD = 0, 10, 12, 13, 14
FIRST = 3
"""Differences that a message names; all of them are in `differences`."""
SIGNS = {"value": "", "at_least": ">= ", "at_most": "<= "}


class Failed(Exception):
    """Ends the module with a message and what is known besides."""

    def __init__(self, message, **more):
        """The message, and fields of the result that are to be others."""
        super().__init__(message)
        self.more = more


def main():
    """Reads the arguments, calls tuner, answers."""
    words = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["planned", "applied", "verified", "rolled_back"], "default": "applied"},
            "profile": {"type": "str"},
            "overlays": words,
            "set": words,
            "site": {"type": "dict"},
            "files": {"type": "dict", "default": {}},
            "allow": words,
            "expect": {"type": "str"},
            "to": {"type": "int"},
            "force": {"type": "bool", "default": False},
            "fail_on_held": {"type": "bool", "default": False},
            "root": {"type": "path"},
            "executable": {"type": "path", "default": "/opt/tuner/bin/tuner"},
        },
        required_if=[("state", "planned", ["profile"]), ("state", "applied", ["profile"])],
        supports_check_mode=True,
    )
    result = {"changed": False, "differences": [], "changes": [], "exit": OK}
    try:
        understood(STATES[module.params["state"]], module, result)
        judge(module, result)
    except Failed as failed:
        module.fail_json(msg=str(failed), **{**result, **failed.more})
    except OSError as error:
        module.fail_json(msg=f"{error.filename or ETC}: {error.strerror or error}", **result)
    module.exit_json(**result)


def understood(state, module, result):
    """Carries out the state; an answer that is not as this module knows it is said, not a traceback."""
    try:
        state(module, result)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"tuner's answer is not as this module knows it ({type(error).__name__}: {error})"
        raise Failed(f"{text}; hint: install.yml brings both to one version", exit=UNKNOWN) from None


# --- calling tuner ------------------------------------------------------------------------------------------------


def call(module, result, *words):
    """The document that tuner answers with; Failed for one that is an error, or none at all."""
    executable, root = module.params["executable"], module.params["root"]
    if not os.access(executable, os.X_OK):
        raise Failed(f"{executable} is not there: tuner is not installed on this node (install.yml)", exit=UNKNOWN)
    more = ["--root", root] if root else []
    code, out, err = module.run_command([executable, *words, *more, "--json"], environ_update={"LANG": "C.UTF-8"})
    result["exit"] = code
    try:
        document = json.loads(out)
    except ValueError:
        document = {}
    document = document if isinstance(document, dict) else {}
    if document.get("schema") == "tuner.error/1":
        raise Failed(problems(document["errors"]), exit=code)
    if not document:
        last = err.strip().rpartition("\n")[2]
        raise Failed(f"tuner {words[0]} ended with {code} and no answer: {last}", exit=code)
    for name in ("settings_id", "generation", "counts"):
        if document.get(name) is not None:
            result[name] = document[name]
    return document


def problems(errors):
    """What is wrong and what to do, in one line."""
    first = errors[0] if errors else {"where": "", "what": "unknown error", "hint": ""}
    text = ": ".join(part for part in (first["where"], first["what"]) if part)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{text}{more}{'; hint: ' if first['hint'] else ''}{first['hint']}"


def chosen(params):
    """The words that name the settings."""
    words = ["--profile", params["profile"]] if params["profile"] else []
    words += [word for overlay in params["overlays"] for word in ("--with", overlay)]
    return words + [word for setting in params["set"] for word in ("--set", setting)]


def allowed(params):
    """The words that say what may be disturbed."""
    return ["--allow", ",".join(params["allow"])] if params["allow"] else []


# --- the states ---------------------------------------------------------------------------------------------------


def planned(module, result):
    """What applied would do."""
    files = other_files(module.params)
    plan(module, result, files)
    note_files(result, files)


def plan(module, result, files):
    """Asks for the plan as if the files were in place."""
    params = module.params
    with standing_in(files) as words:
        document = call(module, result, "plan", *chosen(params), *allowed(params), *words)
    for change in document["changes"]:
        if not change["held"]:
            note(result, change, "would change")
    held = {(c["knob"], c["target"]): of_change(c) for c in document["changes"] if c["held"]}
    judged = {(v["knob"], v["target"]) for v in document["verdicts"]}
    result["differences"] = [held.get((v["knob"], v["target"])) or difference(v) for v in document["verdicts"]]
    back = [change for change in document["changes"] if (change["knob"], change["target"]) not in judged]
    result["differences"] += map(of_change, back)
    if params["expect"] and not document["settings_id"].startswith(params["expect"]):
        text = f"the settings are {document['settings_id'][:8]}, not {params['expect']}: nothing was written"
        raise Failed(text, exit=DIFFERS, changed=False)
    if document["settings_id"] != applied_now(params):
        result["changed"] = True


def applied(module, result):
    """Makes it so; the files first, back as they were if tuner refuses."""
    params = module.params
    if module.check_mode:
        planned(module, result)
        return
    recover(params)
    files = other_files(params)
    if files:
        plan(module, dict(result, changes=[], differences=[]), files)
        result["exit"] = OK
    expect = ["--expect", params["expect"]] if params["expect"] else []
    with contextlib.ExitStack() as undo:
        for path, (_, text) in files.items():
            put(path, text, undo)
        document = call(module, result, "apply", *chosen(params), *allowed(params), *expect)
        undone = bool(document["reason"])
        if not undone:
            undo.pop_all()
            forget(module)
    for outcome in document["outcomes"]:
        note(result, outcome, outcome["result"])
    if undone:
        lost = bool(document["not_restored"])
        result.update({} if lost else {"changes": [], "diff": []})
        state = f"NOT RESTORED: {', '.join(document['not_restored'])}" if lost else "all was undone"
        raise Failed(f"{document['reason']}; {state}", changed=lost)
    result["changed"] = bool(result["changes"]) or document["generation"] is not None
    note_files(result, files)
    result["differences"] = [of_change(change) for change in document["held"]]
    result["differences"] += [of_outcome(o) for o in document["outcomes"] if o["result"] != "done"]
    if result["exit"] != OK and not result["differences"]:
        explain(module, result)


def explain(module, result):
    """What apply left as it is without a word in its document: asked of verify, whose exit code does not count."""
    code = result["exit"]
    with contextlib.suppress(Failed):
        result["differences"] = [difference(v) for v in call(module, result, "verify")["verdicts"]]
    result["exit"] = code


def verified(module, result):
    """Judges what is applied, or the profile."""
    document = call(module, result, "verify", *chosen(module.params))
    result["differences"] = [difference(verdict) for verdict in document["verdicts"]]


def rolled_back(module, result):
    """Undoes; in check mode it only says whether there is anything to undo."""
    params = module.params
    live = [g["generation"] for g in call(module, result, "history")["generations"] if g["state"] in LIVE]
    if not live or (params["to"] is not None and params["to"] == max(live)):
        result["msg"] = "nothing to roll back"
        return
    if module.check_mode:
        if params["to"] is not None and params["to"] not in (0, *live):
            numbers = ", ".join(map(str, [0, *live]))
            raise Failed(f"--to {params['to']}: no live generation of that number; hint: live: {numbers}", exit=64)
        result["changed"] = True
        return
    to = ["--to", str(params["to"])] if params["to"] is not None else []
    document = call(module, result, "rollback", *to, *(["--force"] if params["force"] else []))
    stuck = document["not_restored"] or any(o["result"] in STUCK for o in document["outcomes"])
    result["changed"] = not stuck  # else only where a value was given back
    for outcome in document["outcomes"]:
        note(result, outcome, outcome["result"])
    result["differences"] = [of_outcome(o) for o in document["outcomes"] if o["result"] not in ("done", "unchanged")]
    left = [o for o in document["outcomes"] if o["result"] == "not ours any more"]
    if left:
        module.warn(f"left as others made it since: {', '.join(o['knob'] + ' ' + o['target'] for o in left)}")


STUCK = ("held", "short", "refused")
"""What leaves a generation live, to be rolled back again."""
LIVE = ("applied", "kept", "interrupted", "not restored", "running")
STATES = {"planned": planned, "applied": applied, "verified": verified, "rolled_back": rolled_back}


def applied_now(params):
    """The id of the settings that are applied; empty where there are none."""
    try:
        with open(f"{params['root'] or ''}{ETC}/applied/current.json", encoding="utf-8") as file:
            return json.load(file)["settings_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def judge(module, result):
    """Fails, warns or passes, by the exit code and by what is held."""
    state, code = module.params["state"], result["exit"]
    result["differences"] = [line for line in result["differences"] if line["state"] not in ("ok", "raised")]
    waiting = [line for line in result["differences"] if line["state"] in ("held", "pending")]
    if state == "planned" or module.check_mode:
        bad = code not in (OK, DIFFERS, UNKNOWN, PENDING, HELD) and state != "verified"
        bad = bad or (state == "verified" and code not in (OK, PENDING, HELD))
    else:
        bad = code not in (OK, PENDING, HELD)
    if bad or (waiting and module.params["fail_on_held"]):
        raise Failed(said(code, result["differences"]))
    if waiting:
        module.warn(f"not in force yet: {said(code, waiting)}")


def said(code, lines):
    """The exit code in words, and the first differences."""
    counted = [line for line in lines if line["state"] != "unsupported"] or lines
    shown = "; ".join(map(in_words, counted[:FIRST]))
    more = f" and {len(counted) - FIRST} more" if len(counted) > FIRST else ""
    return f"{MEANING.get(code, f'exit {code}')}{': ' if shown else ''}{shown}{more}"


MEANING = {
    0: "held or pending", 10: "differs", 11: "hardware missing", 12: "could not tell", 13: "right after the next boot",
    14: "held", 20: "failed, all was undone", 21: "something could not be restored",
}  # fmt: skip


def in_words(line):
    """One difference as text."""
    text = f"{line['knob']} {line['target']} {line['running']} want {line['want']}"
    return f"{text} ({line['state']}{': ' if line['why'] else ''}{line['why']})"


# --- values -------------------------------------------------------------------------------------------------------


def brief(value):
    """A value in one line; a text by its size."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        if "text" in value:
            text = value["text"]
            return "no file" if text is None else size(text)
        return " ".join(f"{name} {brief(part)}" for name, part in value.items())
    if isinstance(value, list):
        return " ".join(map(brief, value))
    return str(value)


def size(text):
    """A text by its size."""
    lines = len(text.splitlines())
    return f"{lines} line{'s' * (lines != 1)}, {len(text)} characters"


def whole(value):
    """A value as diff shows it; the text of a file that others may not read is left out."""
    if isinstance(value, dict) and "text" in value:
        if value["text"] is None:
            return ""
        mode = str(value.get("mode") or "0644")
        hidden = f"(not shown: mode {mode}, {len(value['text'])} characters)\n"
        return value["text"] if int(mode, 8) & 0o004 else hidden
    return f"{brief(value)}\n"


def wanted(want):
    """A want in one line."""
    ((kind, value),) = list(want.items())[:1] or [("value", None)]
    return f"one of {', '.join(map(brief, value))}" if kind == "one_of" else SIGNS[kind] + brief(value)


def line_of(state, found, running, want, why):
    """One entry of `differences`."""
    words = {"state": state, "knob": found["knob"], "target": found["target"]}
    return {**words, "running": running, "want": want, "why": why}


def difference(verdict):
    """A verdict as an entry of `differences`; what is unsupported and required counts as drift."""
    unread = verdict["running"] is None and "running_why" in verdict
    state = "drift" if verdict["state"] == "unsupported" and verdict["required"] else verdict["state"]
    running = "-" if unread else brief(verdict["running"])
    return line_of(state, verdict, running, wanted(verdict["want"]), verdict["state_why"])


def of_change(change):
    """A change that was not made."""
    state, why = ("held", change["held"]) if change["held"] else ("drift", "")
    return line_of(state, change, brief(change["before"]), wanted(change["want"]), why)


def of_outcome(outcome):
    """A write that did not end as wanted, or a value that was not given back."""
    state = "drift" if outcome["result"] == "short" else outcome["result"]
    return line_of(state, outcome, brief(outcome["after"]), "what was there before", outcome["why"])


def note(result, found, word):
    """Keeps a change and its diff, unless before and after are the same."""
    if found["before"] == found["after"]:
        return
    result["changed"] = True
    row = {"knob": found["knob"], "target": found["target"], "result": word, "why": found.get("why", "")}
    result["changes"].append({**row, "before": brief(found["before"]), "after": brief(found["after"])})
    name = f"{found['knob']} {found['target']}"
    both = {"before": whole(found["before"]), "after": whole(found["after"])}
    result.setdefault("diff", []).append({"before_header": name, "after_header": name, **both})


# --- files below /etc/tuner ---------------------------------------------------------------------------------------


def other_files(params):
    """{path: (present text or None, wanted text)} of the files that are not as wanted."""
    texts = dict(params["files"])
    for name, text in texts.items():
        if not FILE.fullmatch(name):
            raise Failed(f"files: {name!r} is no profile, overlay or host file below {ETC}", exit=64)
        if not isinstance(text, str):
            raise Failed(f"files: {name} is to be the text of a file, not YAML: begin it with a bar (|)", exit=64)
    if params["site"] is not None:
        texts[SITE] = HEADER + "".join(yaml_lines(params["site"], 0))
    found = {}
    for name, text in texts.items():
        path = f"{params['root'] or ''}{ETC}/{name}"
        inside(path, path)
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                present = file.read()
        except FileNotFoundError:
            present = None
        if present != text:
            found[path] = (present, text)
    return found


def yaml_lines(value, depth):
    """A dict of dicts, lists and scalars as YAML, a line each, in the order of its keys."""
    if not value:
        yield "{}\n"
    for key, part in value.items():
        name = f"{'  ' * depth}{scalar(str(key))}:"
        if isinstance(part, dict) and part:
            yield f"{name}\n"
            yield from yaml_lines(part, depth + 1)
        else:
            yield f"{name} {scalar(part)}\n"


def scalar(value):
    """A value on one line, in the flow style of YAML; text is quoted wherever it could mean something else."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(str(name))}: {scalar(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and value.lower() not in WORDS else quoted(value)
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def quoted(text):
    """Text between double quotes, whatever is in it."""
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


@contextlib.contextmanager
def standing_in(files):
    """The words that make tuner plan with the wanted texts in place of the files; nothing is written below /etc."""
    if not files:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="tuner-plan-", dir="/run" if os.geteuid() == 0 else None) as folder:
        words = []
        for number, (path, (_, text)) in enumerate(files.items()):
            place = f"{number}.yaml"
            with opened(folder) as handle:
                write(handle, place, text)
            words += ["--as-if", f"{path[path.rindex(ETC) :]}={folder}/{place}"]
        yield words


def inside(path, place):
    """(the root, the names below it) of a place without links; Failed where one of its links leads out of the root.

    `path` is one of `other_files`; the place is it, or a folder above it.
    """
    root = os.path.realpath(path[: path.rindex(ETC)] or "/")
    real = os.path.realpath(place)
    if os.path.commonpath([root, real]) != root:
        raise Failed(f"{path} leads out of {root}: it has a link in it", exit=64)
    return root, [name for name in os.path.relpath(real, root).split("/") if name != "."]


@contextlib.contextmanager
def opened(folder, names=(), make=False):
    """A handle of the folder below `folder` that the names lead to, none of them a link, whoever put one there since.

    With `make` those that are not there are made. An OSError, that of the body too, names a whole path.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            former, new = handle, False
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=former)
                    new = True
            handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=former)
            os.close(former)
            folder = os.path.join(folder, name)
            if new:
                os.chmod(handle, 0o755)  # whatever the umask
        yield handle
    except OSError as error:
        error.filename = os.path.join(folder, error.filename) if isinstance(error.filename, str) else folder
        raise
    finally:
        os.close(handle)


def put(path, text, undo):
    """Makes one file so, in one step; `undo`, an ExitStack, then knows how to have it as it was, mode and owner too."""
    folder, name = os.path.split(path)
    rights = rights_of(path)
    root, names = inside(path, folder)
    undo.callback(tidy, path)
    with opened(root, names, make=True) as handle:
        try:
            write(handle, f"{name}.ansible", text, rights)
            undo.callback(put_back, path, keep(handle, name))
            os.replace(f"{name}.ansible", name, src_dir_fd=handle, dst_dir_fd=handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(f"{name}.ansible", dir_fd=handle)
            raise


def keep(folder, name):
    """Whether there was a file or link of that name in the open folder; it has its name of FORMER too then.

    A second name and no rename, so that after a power cut there is a file to boot with; a rename where the file system
    has no second names. What lay under that name is of a killed run, and older than the file that stands (`recover`).
    """
    former, both = f".{name}.former", {"src_dir_fd": folder, "dst_dir_fd": folder}
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    with contextlib.suppress(FileNotFoundError):
        os.unlink(former, dir_fd=folder)
    try:
        os.link(name, former, follow_symlinks=False, **both)
    except OSError:
        os.rename(name, former, **both)
    return True


def put_back(path, kept):
    """The file as it was before `put`: the one that was kept, or none."""
    folder, name = os.path.split(path)
    with opened(*inside(path, folder)) as handle:
        if kept:
            os.rename(f".{name}.former", name, src_dir_fd=handle, dst_dir_fd=handle)
        with contextlib.suppress(FileNotFoundError):  # the former name is still there where both were names of one file
            os.unlink(f".{name}.former" if kept else name, dir_fd=handle)


def former_files(params, act):
    """Calls act(open folder, name) for each file below /etc/tuner that a former one is kept of."""
    for folder in FOLDERS:
        path = f"{params['root'] or ''}{ETC}/{folder}".rstrip("/")
        try:
            place = inside(path, path)
        except Failed:  # nothing of ours is out there
            continue
        if not os.path.isdir(path):
            continue
        with opened(*place) as handle:
            for found in filter(None, map(FORMER.fullmatch, sorted(os.listdir(handle)))):
                if not stat.S_ISDIR(os.stat(found.group(), dir_fd=handle, follow_symlinks=False).st_mode):
                    act(handle, found.group(1))


def recover(params):
    """Moves back what a killed run had moved aside, where nothing is under the name itself.

    Where a file is, that one counts: tuner has read it since, and somebody may have edited it. It is what a refused run
    puts back; the older one goes with the next run that tuner accepts, or when this file is replaced.
    """

    def act(handle, name):
        """Moves one back."""
        try:
            os.stat(name, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(f".{name}.former", name, src_dir_fd=handle, dst_dir_fd=handle)

    former_files(params, act)


def forget(module):
    """Removes the former files, those of killed runs too; what stays is a warning, since the settings are applied."""
    try:
        former_files(module.params, lambda handle, name: os.unlink(f".{name}.former", dir_fd=handle))
    except OSError as error:
        module.warn(f"{error.filename}: {error.strerror}: a file that was replaced is still there")


def rights_of(path):
    """(mode, owner, group) of a file, or of the one that a link leads to; None where there is none.

    The mode without what lets group and others write: tuner, as root, believes no such file.
    """
    root, names = inside(path, path)
    with contextlib.suppress(FileNotFoundError), opened(root, names[:-1]) as handle:
        found = os.stat(names[-1], dir_fd=handle, follow_symlinks=False)
        return stat.S_IMODE(found.st_mode) & 0o755, found.st_uid, found.st_gid
    return None


def tidy(path):
    """Removes folders that a file taken back leaves empty."""
    folder, top = os.path.dirname(path), path.rindex(ETC) + len(ETC)
    while len(folder) >= top:
        above, name = os.path.split(folder)
        try:
            with opened(*inside(path, above)) as handle:
                os.rmdir(name, dir_fd=handle)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return
        folder = above


def write(folder, name, text, rights=None):
    """One new file in an open folder, on the disk; what lay there under its name goes, and is not written to.

    `rights` are its mode, owner and group; None is 0644 and whoever runs this. It is nobody else's to read before.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600, dir_fd=folder)
    with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        mode, *owners = rights or (0o644,)
        if owners:
            os.chown(handle, *owners)
        os.chmod(handle, mode)  # whatever the umask
        os.fsync(handle)


def note_files(result, files):
    """Keeps changed files and their diff."""
    for path, (old, new) in files.items():
        result["changed"] = True
        mode = f"{(rights_of(path) or (0o644,))[0]:o}"
        both = {"before": whole({"text": old, "mode": mode}), "after": whole({"text": new, "mode": mode})}
        result.setdefault("diff", []).insert(0, {"before_header": path, "after_header": path, **both})
        result["changes"].insert(
            0, {"knob": "etc", "target": path, "before": brief({"text": old}), "after": brief({"text": new}),
                "result": "done", "why": ""}
        )  # fmt: skip


if __name__ == "__main__":
    main()
