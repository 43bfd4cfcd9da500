"""A program for `mpiexec`: the parts of a call over ranks, or whole calls, in seconds, as JSON on standard output.

mpiexec -n 2 python -m mha_native_bench.scaling_model.ranks parts|exchange|steps
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

import mha_native
from mha_native.distributed import LocalWorkers, ShardedKVCache, Sizes
from mha_native.distributed._mpi_messages import Reader, Writer
from mha_native.distributed._partition import pieces_of
from mha_native.distributed._shard import Shard
from mha_native.distributed.mpi_ranks import MPIWorkers, run_worker
from mha_native_bench.scaling_model.constants import BLOCK_KEYS

HEADS, HEAD_DIM = 8, 64

# Blocks of a shard that is measured: 134 MB, more than the caches of a processor, as any context that is worth a shard.
BLOCKS = 64

# A shard that a core computes in milliseconds, again and again, to see how the times of one are spread.
STRAGGLER_BLOCKS, STRAGGLER_CALLS = 16, 1000

# The quantiles that are kept.
SEEN = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)

# What is predicted and measured: (queries, keys).
CALLS = [(1, 65_536), (1, 131_072), (64, 32_768), (64, 65_536)]


def seconds(call: Callable[[], Any], rounds: int) -> list[float]:
    """Of some calls, after one that counts for nothing."""
    call()
    return [one for _ in range(rounds) for one in seconds_once(call)]


def median_of(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of a call."""
    return statistics.median(seconds(call, rounds))


def cold_median_of(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of a call by a processor that has just read keys and values: Python itself has left the caches."""
    passing = np.ones(1 << 20)
    times = []
    for _ in range(rounds):
        passing.sum()
        times += seconds_once(call)
    return statistics.median(times)


def seconds_once(call: Callable[[], Any]) -> list[float]:
    """Of one call."""
    begin = time.perf_counter()
    call()
    return [time.perf_counter() - begin]


def together() -> None:
    """Wait for all ranks, without a core."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def shard_of(blocks: int) -> Callable[[int, int], Callable[[], Any]]:
    """``attend(queries, blocks)`` over the first blocks of one worker's shard, as a call to be timed."""
    rng = np.random.default_rng(0)
    shard = Shard(Sizes(1, HEADS, blocks * BLOCK_KEYS, HEAD_DIM, HEAD_DIM, "float32", 1), 0)
    for piece in pieces_of(0, 0, blocks * BLOCK_KEYS):
        key, value = rng.standard_normal((2, HEADS, BLOCK_KEYS, HEAD_DIM), np.float32)
        shard.append([(piece, key, value)])

    def attend(queries: int, keys: int) -> Callable[[], Any]:
        shard.truncate(np.array([keys]))
        query = rng.standard_normal((1, HEADS, queries, HEAD_DIM), np.float32)
        offsets = np.array([keys - queries])
        return lambda: shard.attend(query, offsets, {"is_causal": True}, {}, False, 1)

    return attend


def worker_parts() -> dict[str, float]:
    """`Worker`, of this process, as busy as the other ones are."""
    attend = shard_of(BLOCKS)
    keys = BLOCKS * BLOCK_KEYS
    decode, queries = (median_of(attend(*call), rounds) for call, rounds in (((1, keys), 150), ((64, keys), 30)))
    call = cold_median_of(attend(1, 1), 1000)
    return {"call": call, "decode_block": (decode - call) / BLOCKS, "queries_block": (queries - call) / BLOCKS}


def call_times() -> list[float]:
    """Of the same call."""
    return seconds(shard_of(STRAGGLER_BLOCKS)(1, STRAGGLER_BLOCKS * BLOCK_KEYS), STRAGGLER_CALLS)


class Ready(LocalWorkers):
    """Workers that answer at once: what is left is what the one that asks does."""

    answers: dict[int, Any] | None = None

    def ask(self, requests: Mapping[int, Any], time_limit: float) -> dict[int, Any]:
        """The answers of the first call, again and again."""
        if next(iter(requests.values()))[0] != "attend":
            return super().ask(requests, time_limit)
        if self.answers is None:
            self.answers = super().ask(requests, time_limit)
        return self.answers


def asker_parts() -> dict[str, float]:
    """`Asker`, of this process."""
    query = np.ones((1, HEADS, 1, HEAD_DIM), np.float32)
    times = {}
    for workers in (1, 2, 34):
        cache = ShardedKVCache(Ready(workers), 1, HEADS, BLOCK_KEYS * workers, HEAD_DIM)
        tokens = np.ones((1, HEADS, BLOCK_KEYS * workers, HEAD_DIM), np.float32)
        cache.append(tokens, tokens)
        times[workers] = cold_median_of(lambda some=cache: some.attend(query, is_causal=True), 1000)  # type: ignore[misc]
    return {"step": times[1], "worker": (times[34] - times[2]) / 32, "message": message_seconds(query)}


def message_seconds(query: np.ndarray[Any, Any]) -> float:
    """To write and send a request, and to take and read an answer, both of them to this process itself."""
    comm, writer, reader = MPI.COMM_SELF, Writer(), Reader()
    request: Any = ("attend", "a name", 1, query, np.array([7]), {"is_causal": True}, {}, False, None)

    def one() -> None:
        message = writer.message(1, 1, request)
        sending = comm.Isend(message, 0, 1)
        arrived = comm.Improbe(0, 1)
        received = np.empty_like(message)
        assert arrived is not None
        arrived.Irecv(received).Wait()
        sending.Wait()
        reader.read(received)

    return cold_median_of(one, 2000)


def exchange_parts(workers: MPIWorkers) -> dict[str, float]:
    """`Network`, of requests to rank 1 that carry an array and do nothing."""

    def asked(numbers: int, rounds: int) -> float:
        request = ("leave", "no cache", 1, np.ones(numbers, np.uint8))
        return cold_median_of(lambda: workers.ask({1: request}, 60), rounds)

    small, large = asked(64, 3000), asked(1 << 22, 50)
    return {"exchange": small, "byte": (large - small) / (1 << 22)}


def step_parts(workers: MPIWorkers) -> list[dict[str, float]]:
    """Whole calls, over all ranks: in turns, so that a slow second meets all alike."""
    rng = np.random.default_rng(0)
    calls = []
    for queries, keys in CALLS:
        cache = ShardedKVCache(workers, 1, HEADS, keys, HEAD_DIM)
        cache.append(*rng.standard_normal((2, 1, HEADS, keys, HEAD_DIM), np.float32))
        query = rng.standard_normal((1, HEADS, queries, HEAD_DIM), np.float32)
        calls.append(lambda c=cache, q=query: c.attend(q, is_causal=True))
    times: list[list[float]] = [[] for _ in CALLS]
    for _ in range(10):
        for call, some in zip(calls, times, strict=True):
            some += seconds(call, 3)
    return [
        {"queries": queries, "keys": keys, "measured": statistics.median(some)}
        for (queries, keys), some in zip(CALLS, times, strict=True)
    ]


def main(what: str) -> None:
    world = MPI.COMM_WORLD
    mha_native.set_num_threads(1)
    found: dict[str, Any] = {}
    if what == "parts":
        if world.rank == 0:
            found = {"alone": worker_parts(), "asker": asker_parts()}
        together()
        busy = world.gather((worker_parts(), call_times()))
        if world.rank == 0:
            assert busy is not None
            found["busy"] = {name: statistics.mean(one[name] for one, _ in busy) for name in busy[0][0]}
            times = sorted(one for _, some in busy for one in some)
            typical = statistics.median(times)
            found["delays_over"] = typical
            found["delays"] = [(p, max(0.0, times[min(int(p * len(times)), len(times) - 1)] - typical)) for p in SEEN]
    elif world.rank > 0:
        run_worker()
    else:
        with MPIWorkers() as workers:
            found = exchange_parts(workers) if what == "exchange" else {"steps": step_parts(workers)}
    if world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
