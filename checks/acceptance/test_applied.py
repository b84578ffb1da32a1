"""An independent reader of what tuner applied: pytest-testinfra, the kernel's own files, and nothing of tuner's code.

    pytest checks/acceptance --hosts=local://            (or ssh://node-17)

It takes the wanted values from /etc/tuner/applied/current.json and reads the host by its own means, so that a fault in
tuner's readers cannot hide itself. Needs the extra `fleet`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

APPLIED = "/etc/tuner/applied/current.json"
THP = "/sys/kernel/mm/transparent_hugepage"


def met(wanted: dict[str, Any], found: Any) -> bool:
    """Whether `found` (a number, a word, or a list of numbers) is as wanted."""
    kind, value = wanted["kind"], wanted["value"]
    if kind == "one_of":
        return found in value
    if kind == "value":
        return bool(found == value)
    pairs = list(zip(value, found, strict=True)) if isinstance(value, list) else [(value, found)]
    return all(f >= w if kind == "at_least" else f <= w for w, f in pairs)


def typed(text: str, like: Any) -> Any:
    """The text of a kernel file as the wanted value is typed."""
    if isinstance(like, list):
        return [int(word) for word in text.split()]
    return int(text) if isinstance(like, int) else text.strip()


def first(wanted: dict[str, Any]) -> Any:
    """A value that shows the type of what is wanted."""
    return wanted["value"][0] if wanted["kind"] == "one_of" else wanted["value"]


@pytest.fixture(name="applied")
def _applied(host: Any) -> list[dict[str, Any]]:
    file = host.file(APPLIED)
    if not file.exists:
        pytest.skip(f"nothing applied on this host: no {APPLIED}")
    settings: list[dict[str, Any]] = json.loads(file.content_string)["settings"]
    return settings


def test_sysctls_read_as_applied(host: Any, applied: list[dict[str, Any]]) -> None:
    """Every sysctl setting, read with the file's own text."""
    wrong = []
    for setting in (s for s in applied if s["knob"] == "sysctl"):
        path = "/proc/sys/" + "/".join(part.replace("/", ".") for part in setting["target"].split("."))
        if not host.file(path).exists:
            continue
        found = typed(host.file(path).content_string, first(setting["want"]))
        if not met(setting["want"], found):
            wrong.append((setting["target"], setting["want"], found))
    assert not wrong


def test_transparent_huge_pages_read_as_applied(host: Any, applied: list[dict[str, Any]]) -> None:
    """Every THP setting: the word in brackets, or the number."""
    wrong = []
    for setting in (s for s in applied if s["knob"] == "thp"):
        text = host.file(f"{THP}/{setting['target']}").content_string
        chosen = text.partition("[")[2].partition("]")[0] or text
        if not met(setting["want"], typed(chosen, first(setting["want"]))):
            wrong.append((setting["target"], setting["want"], text.strip()))
    assert not wrong
