"""Many texts at once over one model."""

from ._encode_queue import EncodeBatcherStatistics
from ._encode_request import EncodeRequest, EncodeStatistics
from ._queue import BatcherStatistics, QueueFull
from .batcher import Batcher
from .encode_batcher import EncodeBatcher
from .request import Request, RequestStatistics, StepEvent

__all__ = [
    "Batcher",
    "BatcherStatistics",
    "EncodeBatcher",
    "EncodeBatcherStatistics",
    "EncodeRequest",
    "EncodeStatistics",
    "QueueFull",
    "Request",
    "RequestStatistics",
    "StepEvent",
]
