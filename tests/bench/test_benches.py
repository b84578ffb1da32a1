"""The benchmarks run and name what they measured; how fast it was is for people to read."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tuner.shipped import PACKAGE


def run(name: str, limit: int) -> tuple[dict[str, str], str]:
    """The ratios that a bench prints, which begin with that of the bare interpreter, and all of its output."""
    line = [sys.executable, "-m", f"tests.bench.{name}", "2"]
    done = subprocess.run(line, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=limit, check=False)
    assert done.returncode == 0, done.stderr
    ratios = dict(re.findall(r"^(\S.*?) +([\d.]+)x ", done.stdout, re.MULTILINE))
    assert next(iter(ratios)) == "python3 -I -c pass"
    return ratios, done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
def test_the_bench_of_verify_prints_ratios() -> None:
    """Every command ran to its end; the answer from evidence costs less than the full one."""
    ratios, out = run("verify", 120)
    assert len(ratios) == 7
    assert float(ratios["tuner verify (launcher)"]) < float(ratios["tuner verify, full"])
    assert int(re.findall(r"(\d+) looks", out)[0]) > 500


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps evidence")
def test_the_bench_of_the_prolog_prints_ratios() -> None:
    """Every command ran to its end; the script that has nothing to do costs less than an interpreter."""
    ratios, out = run("prolog", 200)
    assert len(ratios) == 6
    assert float(ratios["script, nothing to do"]) < 1
    assert float(ratios["script with the check"]) < float(ratios["shell checks of as many files, cat"])
    assert int(re.findall(r"(\d+) looks", out)[0]) > 500
