"""Many texts at once over one language model."""

from ._queue import BatcherStatistics, QueueFull
from .batcher import Batcher
from .request import Request, RequestStatistics, StepEvent

__all__ = ["Batcher", "BatcherStatistics", "QueueFull", "Request", "RequestStatistics", "StepEvent"]
