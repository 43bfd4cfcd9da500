"""A program for `mpiexec`: a cache over its ranks, of which the last one may be stopped or killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from mpi4py import MPI

from mha_native.distributed import LocalWorkers, ShardedKVCache, WorkerError
from mha_native.distributed.mpi_ranks import MPIWorkers, run_worker

# Seconds in which a rank must answer: enough on a busy machine, and little enough to wait for.
LIMIT = 2.0

# Time limit in seconds if no rank is stopped. It is long enough for a busy machine.
LONG_LIMIT = 60.0

TOKENS, SHAPE = 2600, {"batch_size": 2, "num_kv_heads": 2, "capacity": 4096, "head_dim": 16}


def main(fault: str) -> None:
    world = MPI.COMM_WORLD
    processes = world.gather(os.getpid())
    if world.rank > 0:
        run_worker()
        return
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, 2, 2, TOKENS, 16), np.float32)
    query = rng.standard_normal((2, 4, 3, 16), np.float32)
    prompt = rng.standard_normal((2, 16, 800, 16), np.float32)  # so many rows that keys pass by them
    with MPIWorkers() as workers:
        with pytest.raises(ValueError, match="comm has one already"):  # two would take each other's messages
            MPIWorkers()
        cache = ShardedKVCache(workers, **SHAPE, time_limit=LONG_LIMIT)
        alone = ShardedKVCache(LocalWorkers(world.size), **SHAPE)
        one = ShardedKVCache(LocalWorkers(1), **SHAPE)
        for some in (cache, alone, one):
            some.append(key[:, :, :700], value[:, :, :700])
            some.append(key[:, :, 700:], value[:, :, 700:], np.array([1900, 3]))
        same = alone.attend(query, is_causal=True), one.attend(query, exact=True), alone.attend(prompt, is_causal=True)
        assert alone._lets_keys_pass(prompt) == (world.size > 1)

        def require_same() -> None:
            assert np.array_equal(cache.attend(query, is_causal=True), same[0])
            assert np.array_equal(cache.attend(query, exact=True), same[1])
            assert np.array_equal(cache.attend(prompt, is_causal=True), same[2])

        require_same()
        if fault != "none":
            os.kill(processes[-1], signal.SIGSTOP if fault.startswith("stopped") else signal.SIGKILL)
            cache._members.time_limit = LIMIT
            begin = time.monotonic()
            if fault == "stopped and left":  # it goes on when rank 0 has ended, with an answer that nobody takes
                subprocess.Popen(["sh", "-c", f"sleep {2 * LIMIT}; kill -CONT {processes[-1]}"])
                cache.attend(prompt, exact=True)
            try:
                if "append" in fault:  # messages too large to wait in a buffer of MPI
                    cache.append(key[:, :, :1400], value[:, :, :1400])
                else:
                    cache.attend(query)
            except WorkerError as error:
                print("error:", error)
            else:
                raise AssertionError("the rank has answered")
            assert time.monotonic() - begin < LIMIT + 10
            assert cache.lost == (world.size - 1,)
            if fault.endswith("and continued"):
                os.kill(processes[-1], signal.SIGCONT)
                cache.restore()
            else:
                cache.restore(lambda first, last: (key[:, :, first:last], value[:, :, first:last]))
            cache._members.time_limit = LONG_LIMIT  # nobody is late any more
            require_same()
            cache.append(key[:, :, :9], value[:, :, :9])
            alone.append(key[:, :, :9], value[:, :, :9])
            assert np.array_equal(cache.attend(query), alone.attend(query))
    begin = time.monotonic()
    workers.close()
    cache.close()
    assert time.monotonic() - begin < 1, "nobody is waited for, and nobody told to end again"
    if fault in ("stopped", "stopped before append"):  # as whoever stopped it would: it must not stay behind
        os.kill(processes[-1], signal.SIGKILL)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
