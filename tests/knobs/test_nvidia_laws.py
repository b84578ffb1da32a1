"""The laws of knobs for the GPUs of NVIDIA on a small recorded host, from each foreign state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.knobs.nvidia_host import GPU, Build
from tests.knobs.nvidia_states import states
from tests.test_laws import Foreign, keep_the_laws
from tuner.host import open_host
from tuner.knobs import BY_NAME, KNOBS

STATES = states(GPU, 1215)
CASES = [(name, row) for name, rows in STATES.items() for row in rows]


@pytest.mark.parametrize(("name", "row"), CASES, ids=lambda part: part if isinstance(part, str) else part[0])
def test_the_laws_hold(tmp_path: Path, name: str, row: Any) -> None:
    """What was read is no write, what was written is read, twice is once, undo gives every state back."""
    root = Build(tmp_path)().root
    label, make, reads, writes, becomes = row
    keep_the_laws(Path(root), open_host(root), BY_NAME[name], Foreign(label, GPU, make, reads, writes, becomes))


def test_every_writable_knob_has_states() -> None:
    """None is left out."""
    assert set(STATES) == {k.name for k in KNOBS if k.name.startswith("nvidia.") and not k.read_only}
