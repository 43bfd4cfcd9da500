"""Many texts at once over one language model."""

from ._queue import QueueFull
from .batcher import Batcher, BatcherStatistics
from .request import Request, RequestStatistics

__all__ = ["Batcher", "BatcherStatistics", "QueueFull", "Request", "RequestStatistics"]
