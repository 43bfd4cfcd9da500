"""The models of a server: each with its queue, and the kind of requests that it takes."""

import asyncio
import math
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from ..models import CausalLM, SentenceEncoder, TextClassifier
from ..models.files.gguf_names import find_gguf
from ..models.files.hub_cache import find_directory
from ..models.files.json_files import read_json
from ..models.files.modules_json import first_transformer
from ..models.kinds import CLASSIFIER, EMBEDDINGS, LANGUAGE, kind_of
from ..serving import Batcher, EncodeBatcher, Request, StepEvent
from .config import Config

EMBEDDING, RERANKER, LABELS, TEXT = "embedding", "reranker", "classifier", "generator"


class Engine:
    """A model with its queue, under the name that clients give."""

    kind: str
    model: Any

    @property
    def max_length(self) -> int:
        """The most tokens of a text."""
        return int(self.model.max_length)

    @property
    def weight_dtype(self) -> str:
        return str(self.model.weight_dtype)

    def __init__(self, name: str) -> None:
        self.name = name

    def warm_up(self) -> None:
        """Compute a short text, so that the first request does not wait for memory."""
        raise NotImplementedError

    def retry_seconds(self) -> int:
        """Return the seconds after which a request that was refused may find room."""
        raise NotImplementedError

    def queued(self) -> tuple[int, int]:
        """Return how many requests wait, and how many are computed."""
        raise NotImplementedError

    def close(self) -> None:
        """End the thread of the model, and cancel its requests."""
        raise NotImplementedError


class EncodeEngine(Engine):
    """A model of embeddings, scores of pairs, or labels."""

    batcher: EncodeBatcher

    def __init__(self, name: str, kind: str, model: Any, config: Config) -> None:
        super().__init__(name)
        self.kind, self.model = kind, model
        self.batcher = EncodeBatcher(
            model,
            target_seconds=config.target_seconds,
            max_waiting=config.max_waiting,
            max_waiting_tokens=config.max_waiting_tokens,
            num_threads=config.num_threads,
        )

    def warm_up(self) -> None:
        self.batcher.submit("a").result()

    def retry_seconds(self) -> int:
        seconds = self.batcher.statistics.waiting_seconds
        return 1 if math.isnan(seconds) else min(max(math.ceil(seconds), 1), 60)

    def queued(self) -> tuple[int, int]:
        statistics = self.batcher.statistics
        return statistics.waiting, statistics.running

    def close(self) -> None:
        self.batcher.close(0.0)


class TextEngine(Engine):
    """A language model. Events of its steps go to the streams of their requests, by one wake-up of the loop a step."""

    kind = TEXT

    def __init__(self, name: str, model: CausalLM, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name)
        self.model = model
        self._num_ended = 0
        self._streams: dict[Request, Callable[[StepEvent], None]] = {}
        self._early: dict[Request, list[StepEvent]] = {}  # of requests whose stream is not known yet
        self.batcher = Batcher(
            model,
            num_threads=config.num_threads,
            max_waiting=config.max_waiting,
            on_step=lambda events: loop.call_soon_threadsafe(self._deliver, events),
        ).start()

    def attach(self, request: Request, stream: Callable[[StepEvent], None]) -> None:
        """Call `stream` with each event of a request, in the thread of the loop."""
        self._streams[request] = stream
        for event in self._early.pop(request, []):
            self._pass(event)

    def _deliver(self, events: list[StepEvent]) -> None:
        for event in events:
            if event.request in self._streams:
                self._pass(event)
            else:
                self._early.setdefault(event.request, []).append(event)

    def _pass(self, event: StepEvent) -> None:
        stream = self._streams[event.request]
        if event.finish_reason is not None:
            del self._streams[event.request]
            self._num_ended += 1
        stream(event)

    def warm_up(self) -> None:
        self.model.generate([0], max_new_tokens=1)

    def retry_seconds(self) -> int:
        statistics = self.batcher.statistics
        seconds = statistics.waiting * statistics.seconds / max(self._num_ended, 1)
        return min(max(math.ceil(seconds), 1), 60)

    def queued(self) -> tuple[int, int]:
        statistics = self.batcher.statistics
        return statistics.waiting, statistics.running

    def close(self) -> None:
        self.batcher.close()


def open_engine(
    name: str, model: str | PathLike[str], config: Config, loop: asyncio.AbstractEventLoop
) -> EncodeEngine | TextEngine:
    """Open a model by the kind that its files name. This takes as long as reading them."""
    formats: dict[str, Any] = {"dtype": config.dtype, "weight_dtype": config.weight_dtype}
    kind = _kind(model)
    if kind == EMBEDDINGS:
        return EncodeEngine(name, EMBEDDING, SentenceEncoder.from_pretrained(model, **formats), config)
    if kind == CLASSIFIER:
        classifier = TextClassifier.from_pretrained(model, **formats)
        return EncodeEngine(name, RERANKER if len(classifier.labels) == 1 else LABELS, classifier, config)
    if kind == LANGUAGE:
        return TextEngine(name, CausalLM.from_pretrained(model, **formats), config, loop)
    raise ValueError(f"{model}: a server takes models of embeddings, pairs, labels and text; this one is {kind}")


def _kind(model: str | PathLike[str]) -> str | None:
    """Return the kind of a model. A GGUF file is a language model."""
    if Path(model).suffix == ".gguf" or (isinstance(model, str) and find_gguf(model) is not None):
        return LANGUAGE
    home = find_directory(model)
    return kind_of(home, read_json(first_transformer(home) / "config.json", dict))
