"""The axes of the numeric tests as fixtures: instruction set, element type, threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The oracle computes on one thread. With more, NumPy's BLAS spins while it waits for them, and on a busy machine that
# turns milliseconds into seconds. It reads this when NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pretrained

import mha_native


@pytest.fixture(params=mha_native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of this machine in turn. A test that never computed on it fails."""
    with mha_native.use_isa(request.param):
        yield request.param
        assert mha_native.last_used_isa() == request.param, "the test never dispatched to the instruction set"


@pytest.fixture(params=[np.float32, np.float64], ids=["f32", "f64"])
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[1, 2, 3], ids=["1-thread", "2-threads", "3-threads"])
def num_threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def model_directory(request: pytest.FixtureRequest) -> Path:
    """all-MiniLM-L6-v2."""
    return pretrained.find(request)
