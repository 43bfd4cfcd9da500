"""A long context over MPI ranks: time of a step and of a block of a prompt, compared with one process and one thread.

    OMP_NUM_THREADS=1 mpiexec -n 2 python examples/long_context_on_mpi.py --keys 131072

Without `mpiexec` it runs on one rank and checks the arithmetic only.
"""

import argparse
import statistics
import sys
import time

import numpy as np

import mha_native as mha
from mha_native.distributed import LocalWorkers, ShardedKVCache, Sizes, bytes_moved
from mha_native.distributed.mpi_ranks import MPIWorkers, run_worker

try:
    from mpi4py import MPI
except (ImportError, RuntimeError):  # the package, or the library below it
    print("this example needs the package mpi4py, and the libraries of MPI: pip install mpi4py")
    sys.exit()

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--keys", type=int, default=4096)
parser.add_argument("--queries", type=int, nargs="+", default=[1, 64])
parser.add_argument("--rounds", type=int, default=7)
arguments = parser.parse_args()
H, D = 8, 64


def milliseconds(call, rounds):
    """Return the median of several calls, after one warm-up call."""
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


if MPI.COMM_WORLD.rank > 0:
    run_worker()
    sys.exit()

mha.set_num_threads(1)
rng = np.random.default_rng(0)
key, value = rng.standard_normal((2, 1, H, arguments.keys, D), dtype=np.float32)
whole = mha.KVCache(1, H, arguments.keys, D)
whole.append(key, value)
with MPIWorkers() as workers:
    cache = ShardedKVCache(workers, 1, H, arguments.keys, D)
    cache.append(key, value)
    sizes = Sizes(1, H, arguments.keys, D, D, "float32", workers.count)
    print(f"ranks of one thread: {workers.count}, {arguments.keys} keys, H {H}, D {D}, float32")
    for queries in arguments.queries:
        query = rng.standard_normal((1, H, queries, D), dtype=np.float32)
        rounds, alone, shared = arguments.rounds, [], []
        for _ in range(3):  # in turns, so a slow phase of the machine affects both
            alone.append(
                milliseconds(lambda q=query: mha.scaled_dot_product_attention(q, whole, is_causal=True), rounds)
            )
            shared.append(milliseconds(lambda q=query: cache.attend(q, is_causal=True), rounds))
        one, many = statistics.median(alone), statistics.median(shared)
        moved = bytes_moved(sizes, queries, arguments.keys, H, itemsize=4)
        ratio = f", {one / many:.2f} x" if workers.count > 1 else ""
        print(f"queries {queries:4}: {one:8.2f} ms alone, {many:8.2f} ms over the ranks{ratio};", end=" ")
        print(f"{moved['queries'] / queries:,.0f} bytes moved for a query, and all keys were {moved['keys']:,}")
        same = ShardedKVCache(LocalWorkers(1), 1, H, arguments.keys, D)
        same.append(key, value)
        assert np.array_equal(cache.attend(query, exact=True), same.attend(query, exact=True))
        expected = mha.scaled_dot_product_attention(query, whole, is_causal=True)
        assert np.abs(cache.attend(query, is_causal=True) - expected).max() < 2e-6

    # The overhead of a step: over few keys, attention itself takes almost no time.
    few, local = (ShardedKVCache(some, 1, H, 1024, D) for some in (workers, LocalWorkers(1)))
    for some in (few, local):
        some.append(key[:, :, :1024], value[:, :, :1024])
    query = rng.standard_normal((1, H, 1, D), dtype=np.float32)
    small = mha.KVCache(1, H, 1024, D)
    small.append(key[:, :, :1024], value[:, :, :1024])
    call = milliseconds(lambda: mha.scaled_dot_product_attention(query, small, is_causal=True), 500)
    here = milliseconds(lambda: local.attend(query, is_causal=True), 500)
    there = milliseconds(lambda: few.attend(query, is_causal=True), 500)
    print(f"over 1024 keys: one call {1e3 * call:.0f} us, in blocks {1e3 * here:.0f} us,", end=" ")
    print(f"over the ranks {1e3 * there:.0f} us: added latency {1e3 * (there - call):.0f} us")
