"""YAML of our own recorded hosts: plain data only, by libyaml where PyYAML has it."""

from __future__ import annotations

from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Error = yaml.YAMLError


def load(text: str | bytes) -> Any:
    """The document as dicts, lists and scalars; Error for what is no YAML. Never an object of another type."""
    return yaml.load(text, LOADER)  # noqa: S506  (a safe loader)
