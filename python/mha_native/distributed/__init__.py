"""More than one process, and more than one machine: what is computed there has the same bits as in one process.

Importing this package needs NumPy alone. Each of its modules asks for the library that it stands on when it is used.
"""

from ._partition import Sizes, bytes_moved
from ._workers import LocalWorkers
from .sharded_cache import ShardedKVCache, WorkerError

__all__ = ["LocalWorkers", "ShardedKVCache", "Sizes", "WorkerError", "bytes_moved"]
