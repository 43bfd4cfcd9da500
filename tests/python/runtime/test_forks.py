"""Processes that are forked: they never hang, and compute the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import fork_cell
import pytest

import mha_native.runtime

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

RUNTIMES = mha_native.runtime._openmp_runtimes()
SCRIPT = Path(fork_cell.__file__)

# (start method, where the library is imported, who has computed before, whether somebody computes meanwhile)
QUICK = {
    ("fork", "before", "ours", "busy"),
    ("fork", "before", "openmp", "idle"),
    ("fork", "child", "nothing", "idle"),
    ("fork", "child", "openmp", "idle"),
    ("fork", "child", "openmp", "busy"),
    ("forkserver", "child", "nothing", "idle"),
}


def cells() -> Iterator[object]:
    for method in ("fork", "forkserver", "spawn"):
        for imported in ("before", "child"):
            for computed in ("nothing", "ours", "openmp", "torch"):
                if imported == "child" and computed == "ours":
                    continue
                for during in ("idle", "busy"):
                    cell = (method, imported, computed, during)
                    marks = [] if cell in QUICK else [pytest.mark.exhaustive]
                    yield pytest.param(*cell, marks=marks, id="-".join(cell))


@pytest.fixture(scope="module")
def expected() -> str:
    return fork_cell.digest()


@pytest.mark.parametrize(("method", "imported", "computed", "during"), list(cells()))
def test_matrix(method: str, imported: str, computed: str, during: str, expected: str) -> None:
    if computed == "torch" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if computed == "openmp":
        if not RUNTIMES:
            pytest.skip("this build has no OpenMP")
        computed = RUNTIMES[0]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), method, imported, computed, during], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    bits, threads = result.stdout.split()
    assert bits == expected
    is_child_of_fork_alone = imported == "before" and method != "spawn"
    if RUNTIMES and int(threads) > 0:  # Linux says how many
        assert (int(threads) > 1) != is_child_of_fork_alone, (
            "only a child forked from the library computes on one thread"
        )
