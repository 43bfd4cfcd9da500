"""Computation over several processes and machines, with the bits of a single process.

Importing this package needs NumPy only. Its modules import Ray or MPI when they are used.
"""

from ._partition import Sizes, bytes_moved
from ._workers import LocalWorkers
from .sharded_cache import ShardedKVCache, WorkerError

__all__ = ["LocalWorkers", "ShardedKVCache", "Sizes", "WorkerError", "bytes_moved"]
