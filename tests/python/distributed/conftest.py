"""A cluster of Ray on this machine, of processes as on others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import mha_native

# What Ray reads as it is imported and as it starts. Nothing goes to the network, and two processors are enough.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_BACKEND_LOG_LEVEL": "fatal"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray, with a cluster of two processors, and the signals of this process as they were."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    signal.signal(signal.SIGTERM, handler)
    yield ray
    ray.shutdown()


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an actor sets for its process ends with the test, where that is this process."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    with mha_native.use_isa(None), mha_native.use_threads(None):
        yield
