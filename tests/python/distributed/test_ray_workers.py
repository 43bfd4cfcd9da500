"""A cache over actors of Ray: the bits of the same cut in one process, also after one was stopped or killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from mha_native.distributed import LocalWorkers, ShardedKVCache, WorkerError
from mha_native.distributed.ray_workers import RayWorkers

TOKENS = 1600
SIZES = {"batch_size": 1, "num_kv_heads": 2, "capacity": 2048, "head_dim": 16}

# Seconds in which an actor must answer: to start takes it some on a busy machine, and a step little.
JOIN_LIMIT, STEP_LIMIT = 60, 4


def _process_of(workers: RayWorkers, worker: int) -> int:
    ray = pytest.importorskip("ray")
    return int(ray.get(workers._actors[worker].process_id.remote()))


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_actors_compute_what_one_process_does(
    cluster: Any, fault: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, value = rng.standard_normal((2, 1, 2, TOKENS, 16), np.float32)
    query = rng.standard_normal((1, 4, 3, 16), np.float32)

    def read(first: int, last: int) -> tuple[Any, Any]:
        return key[:, :, first:last], value[:, :, first:last]

    with RayWorkers(2) as workers:
        cache = ShardedKVCache(workers, **SIZES, time_limit=JOIN_LIMIT)
        local = ShardedKVCache(LocalWorkers(2), **SIZES)
        for some in (cache, local):
            some.append(*read(0, 700))
            some.append(*read(700, TOKENS))

        def require_same() -> None:
            for options in ({}, {"is_causal": True}, {"exact": True}):
                assert np.array_equal(cache.attend(query, **options), local.attend(query, **options))

        require_same()
        os.kill(_process_of(workers, 1), fault)
        cache._members.time_limit = STEP_LIMIT
        fails = "failed in attend: " if fault == signal.SIGKILL else f"did not answer attend within {STEP_LIMIT} s$"
        with pytest.raises(
            WorkerError, match=rf"^ShardedKVCache.attend: worker 1 \(actor [0-9a-f]+\) {fails}"
        ) as error:
            cache.attend(query)
        assert error.value.workers == (1,)
        replace = workers.replace

        def replace_and_wait(worker: int) -> None:
            replace(worker)
            cache._members.time_limit = JOIN_LIMIT

        monkeypatch.setattr(workers, "replace", replace_and_wait)  # only the stopped actor is not waited for
        cache.restore(read)
        assert cache._members.time_limit == JOIN_LIMIT
        require_same()
