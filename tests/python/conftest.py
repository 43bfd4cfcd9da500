"""Fixtures of all tests; instruction sets, element types and threads are those of support/matrix.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# The oracle computes on one thread. With more, NumPy's BLAS spins while it waits for them, and on a busy machine that
# turns milliseconds into seconds. It reads this when NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The name of a directory that is missing is not looked up on the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Packages that this one plugs into send nothing about the tests: what Haystack reads as it is imported, and LangChain.
os.environ |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "LANGSMITH_TRACING": "false"}

# Several processes run tests at once. The idle threads of one must not spin on processors that the others compute on:
# with spinning the suite takes twice as much processor time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import matrix
import numpy as np
import pretrained


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of this machine in turn. A test that never computed on it fails."""
    with matrix.computing_on(request.param):
        yield request.param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Nightly cells are made only for a run that is not the usual one, `-m "not exhaustive"` of pyproject.toml.
    matrix.generate(metafunc, everything=metafunc.config.option.markexpr != "not exhaustive")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def model_directory(request: pytest.FixtureRequest) -> Path:
    """all-MiniLM-L6-v2."""
    return pretrained.find(request)


@pytest.fixture(scope="session")
def language_model_file(request: pytest.FixtureRequest) -> Path:
    """SmolLM2-135M-Instruct, a GGUF file."""
    return pretrained.find(request, pretrained.LANGUAGE)


@pytest.fixture(scope="session")
def speech_model_directory(request: pytest.FixtureRequest) -> Path:
    """Whisper tiny.en, a folder of CTranslate2."""
    return pretrained.find(request, pretrained.SPEECH)
