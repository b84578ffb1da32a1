"""Where the data that comes with tuner lies: `tuner/data/` when installed, top-level folders in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = {"hosts": "tests/hosts"}


def folder(kind: str) -> Path:
    """The folder of `profiles`, `checks`, `playbooks`, `hosts` or `schemas`."""
    if kind == "schemas":
        return PACKAGE / "schemas"
    installed = PACKAGE / "data" / kind
    return installed if installed.is_dir() else PACKAGE.parent / CHECKOUT.get(kind, kind)


def names(kind: str, suffix: str) -> list[str]:
    """The stems of the files with `suffix` in that folder, sorted."""
    return sorted(path.stem for path in folder(kind).glob(f"*{suffix}"))
