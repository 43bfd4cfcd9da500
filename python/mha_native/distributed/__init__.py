"""Attention and embeddings by several processes, on one machine or many, with the bits of a single process.

Importing this package needs NumPy alone. Each of its modules imports MPI or Ray when you use it.
"""

from ._partition import Sizes, bytes_moved
from ._workers import LocalWorkers
from .sharded_cache import ShardedKVCache, WorkerError

__all__ = ["LocalWorkers", "ShardedKVCache", "Sizes", "WorkerError", "bytes_moved"]
