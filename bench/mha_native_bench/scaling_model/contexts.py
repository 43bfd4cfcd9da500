"""Seconds of a call over a context in shards: what `ShardedKVCache.attend` does, in formulas.

One process asks. It sends the queries to each other worker, one message after the other, computes its own shard, and
takes in and merges what comes back. With `fan_out` the same by a tree: each process asks so many, who ask as many. No
such thing is in the library; it says what one would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mha_native.distributed import Sizes, bytes_moved
from mha_native_bench.scaling_model.constants import BLOCK_KEYS, Asker, Network, Worker


@dataclass(frozen=True)
class Call:
    """`queries` rows, at the end of a context of `keys` positions."""

    queries: int
    keys: int


def shard_seconds(worker: Worker, call: Call, workers: int) -> float:
    """The largest shard: blocks are dealt out one by one.

    One query reads keys and values, at the speed of memory. More of them are multiplied, at that of arithmetic.
    """
    blocks = ceil(ceil(call.keys / BLOCK_KEYS) / workers)
    block = max(worker.decode_block, worker.queries_block * call.queries / 64)
    return worker.call + blocks * block


def waiting_seconds(worker: Worker, compute: float, workers: int) -> float:
    """How much later than the others the slowest of so many workers is, each of which computes for `compute` seconds.

    What delays a worker, such as another process on its core, comes now and then. So all of them have as many chances
    of it as calls like the one that was measured would take all their time. Of n draws all are below the quantile q
    with probability ``q ** n``, which is one half at ``q = 0.5 ** (1 / n)``. That there are more workers changes
    nothing, then, if they share the same work: the delay of a step remains, where its shards get shorter.
    """
    draws = workers * compute / worker.delays_over
    quantile = float(0.5 ** (1 / draws)) if draws else 0.0
    below, seconds = worker.delays[0]
    for above, more in worker.delays[1:]:
        if quantile <= above:
            return seconds + (more - seconds) * (quantile - below) / (above - below)
        below, seconds = above, more
    return seconds


def sizes_of(worker: Worker, call: Call, workers: int) -> Sizes:
    """The cache of a call, as the library describes it."""
    return Sizes(1, worker.heads, call.keys, worker.head_dim, worker.head_dim, "float32", workers)


def moved_bytes(worker: Worker, call: Call, workers: int) -> int:
    """Of queries, out to all other workers, and of results, back."""
    return bytes_moved(sizes_of(worker, call, workers), call.queries, call.keys, worker.heads, itemsize=4)["queries"]


def step_seconds(
    worker: Worker, asker: Asker, network: Network, call: Call, workers: int, *, on_a_core: int = 1, fan_out: int = 0
) -> float:
    """Seconds of a call.

    Parameters
    ----------
    on_a_core : int, default 1
        Workers that share a core, and compute in turns.
    fan_out : int, default 0
        How many a process asks, of a tree; 0: one asks all.
    """
    compute = shard_seconds(worker, call, workers)
    waiting = waiting_seconds(worker, compute, workers)
    return asking_seconds(worker, asker, network, call, workers, fan_out=fan_out) + compute * on_a_core + waiting


def asking_seconds(
    worker: Worker, asker: Asker, network: Network, call: Call, workers: int, *, fan_out: int = 0
) -> float:
    """All but the shards: messages, bytes and merges."""
    if workers == 1:
        return asker.step
    of_each = moved_bytes(worker, call, 2)
    fan_out = min(fan_out or workers - 1, workers - 1)
    levels, reached = 0, 1
    while reached < workers:  # each process of the last level asks further ones
        levels, reached = levels + 1, 1 + fan_out * reached
    level = network.exchange + (fan_out - 1) * asker.message + fan_out * (asker.worker + of_each * network.byte)
    return asker.step + levels * level


def best_fan_out(worker: Worker, asker: Asker, network: Network, call: Call, workers: int) -> int:
    """The fan-out of the fastest tree, which may be one level."""
    if workers == 1:
        return 1
    tried = [1 << power for power in range(1, 10) if 1 << power < workers] + [workers - 1]
    return min(tried, key=lambda f: asking_seconds(worker, asker, network, call, workers, fan_out=f))
