"""The models of a server: each with its queue, and the kind of requests that it takes."""

import asyncio
import math
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

from ..functions.messages import listed, shown
from ..models import (
    CausalLM,
    GeneratedText,
    SentenceEncoder,
    Seq2SeqLM,
    SparseEncoder,
    TextClassifier,
    TokenClassifier,
    kinds,
)
from ..models.files.ctranslate2 import is_ctranslate2
from ..models.files.gguf_names import find_gguf
from ..models.files.hub_cache import find_directory
from ..models.files.json_files import read_json
from ..models.files.modules_json import first_transformer, lists_sparse
from ..models.heads.token_ranker import is_token_ranker
from ..models.text.tokenizer import Tokenizer
from ..serving import Batcher, EncodeBatcher, QueueFull, Request, StepEvent
from .config import EMBEDDING, ENTITIES, LABELS, RERANKER, SPARSE, SPEECH, TEXT, TEXT_TO_TEXT, Config, Model
from .language_ranker import LanguageRanker
from .worker import Worker

# Functions that open models of further kinds, which the modules of those add.
OPENERS: dict[str, Callable[[str, Model, Config], Any]] = {}


class Engine:
    """A model with its queue, under the name that clients give."""

    kind: str
    model: Any
    signature: Any = None  # of its settings and files, see `signature_of`

    @property
    def max_length(self) -> int | None:
        """The most tokens of a text; None for any number."""
        return int(self.model.max_length)

    @property
    def weight_dtype(self) -> str:
        return str(self.model.weight_dtype)

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_calls = 0  # requests that have found this model and have no answer yet

    @cached_property
    def library(self) -> Any:
        """The ``tokenizers.Tokenizer`` of the model, which cuts no text; ValueError if it has none for texts."""
        reader = getattr(self.model, "_reader", None)
        tokenizer = reader()[0] if reader is not None else None
        if not isinstance(tokenizer, Tokenizer):
            raise ValueError(f"the model {self.name} has no tokenizer of texts")
        return tokenizer.uncut()

    def warm_up(self) -> None:
        """Compute a short text, so that the first request does not wait for memory."""
        raise NotImplementedError

    def retry_seconds(self) -> int:
        """Return the seconds after which a request that was refused may find room."""
        raise NotImplementedError

    def queued(self) -> tuple[int, int]:
        """Return how many requests wait, and how many are computed."""
        raise NotImplementedError

    @property
    def tokens_per_second(self) -> float:
        """The speed of the last work; NaN before the first one."""
        raise NotImplementedError

    def load(self) -> dict[str, float | None]:
        """Return the requests that wait and are computed, and the speed, for people who look."""
        waiting, running = self.queued()
        speed = self.tokens_per_second
        return {"waiting": waiting, "running": running, "tokens_per_second": None if math.isnan(speed) else speed}

    def close(self) -> None:
        """End the thread of the model, and cancel its requests."""
        raise NotImplementedError


class EncodeEngine(Engine):
    """A model of embeddings, scores of pairs, or labels."""

    batcher: EncodeBatcher

    def __init__(self, name: str, kind: str, model: Any, config: Config, prompt_name: str | None = None) -> None:
        super().__init__(name)
        self.kind, self.model = kind, model
        self.prompt_name = prompt_name  # of requests that name none
        self.batcher = EncodeBatcher(
            model,
            target_seconds=config.target_seconds,
            max_batch_tokens=config.max_batch_tokens,
            max_wait_seconds=config.max_wait_seconds,
            max_waiting=config.max_waiting,
            max_waiting_tokens=config.max_waiting_tokens,
            num_threads=config.num_threads,
        )

    def warm_up(self) -> None:
        self.batcher.submit([("a", "a") if self.kind == RERANKER else "a"]).result()

    def whole_counts(self, texts: list[Any], prompt: str = "") -> list[int]:
        """Return the number of tokens of texts and pairs with special ones, before they are cut."""
        if isinstance(self.model, LanguageRanker):
            return self.model.whole_counts(texts)
        strings = [text for text in texts if not isinstance(text, list)]
        given = [prompt + text if isinstance(text, str) else text for text in strings]
        counts = iter([len(found.ids) for found in self.library.encode_batch(given)])
        return [len(text) if isinstance(text, list) else next(counts) for text in texts]

    def prompt_of(self, prompt_name: str | None) -> str:
        """Return the prompt of a request for embeddings. ValueError for an unknown name."""
        name = prompt_name or self.prompt_name or self.model.default_prompt_name
        prompts: dict[str, str] = self.model.prompts
        if name is not None and name not in prompts:
            raise ValueError(f"prompt_name must be one of the model, {listed(prompts)}; got {shown(name)}")
        return "" if name is None else prompts[name]

    def retry_seconds(self) -> int:
        seconds = self.batcher.statistics.waiting_seconds
        return 1 if math.isnan(seconds) else min(max(math.ceil(seconds), 1), 60)

    def queued(self) -> tuple[int, int]:
        statistics = self.batcher.statistics
        return statistics.waiting, statistics.running

    @property
    def tokens_per_second(self) -> float:
        return self.batcher.statistics.tokens_per_second

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
        weak = weakref.ref(self)  # what the Batcher keeps lives as long as itself, and this model keeps the Batcher

        def deliver(events: list[StepEvent]) -> None:
            if (engine := weak()) is not None:
                loop.call_soon_threadsafe(engine._deliver, events)

        self.batcher = Batcher(
            model, num_threads=config.num_threads, max_waiting=config.max_waiting, on_step=deliver
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

    @property
    def tokens_per_second(self) -> float:
        statistics = self.batcher.statistics
        return statistics.new_tokens / statistics.seconds if statistics.seconds else math.nan

    def close(self) -> None:
        self.batcher.close()


class TextToTextEngine(Engine):
    """An encoder-decoder. One thread computes a request after another."""

    kind = TEXT_TO_TEXT

    def __init__(self, name: str, model: Seq2SeqLM, config: Config) -> None:
        super().__init__(name)
        self.model = model
        self._num_threads, self._max_waiting = config.num_threads, config.max_waiting
        self._worker = Worker("mha_native.server.seq2seq")
        self._seconds, self._num_ended, self._num_tokens = 0.0, 0, 0

    @property
    def max_length(self) -> int | None:
        return self.model.max_length

    def submit(self, prompts: list[Any], **options: Any) -> tuple[list[list[int]], "Future[list[GeneratedText]]"]:
        """Return the tokens of prompts, and their future texts by the options of `Seq2SeqLM.generate_tokens`."""
        if self.queued()[0] >= self._max_waiting:
            raise QueueFull(f"the model {self.name} has {self._max_waiting} requests that wait")
        strings = [prompt for prompt in prompts if isinstance(prompt, str)]
        tokens = iter(self.model.tokenize(strings))
        read = [next(tokens).tolist() if isinstance(prompt, str) else prompt for prompt in prompts]

        def generate() -> list[GeneratedText]:
            begin = monotonic()
            try:
                found: list[GeneratedText] = self.model.generate_tokens(read, num_threads=self._num_threads, **options)
                self._num_tokens += sum(len(each.tokens) for each in found)
                return found
            finally:
                self._seconds += monotonic() - begin
                self._num_ended += 1

        return read, self._worker.submit(generate)

    def has_ended(self, found: GeneratedText) -> bool:
        """Return whether a text ends with an end token, and not because of its length."""
        return len(found.tokens) > 0 and int(found.tokens[-1]) in self.model.end_tokens

    def warm_up(self) -> None:
        self.model.generate_tokens([[self.model.start_token]], max_new_tokens=1)

    def retry_seconds(self) -> int:
        seconds = sum(self.queued()) * self._seconds / max(self._num_ended, 1)
        return min(max(math.ceil(seconds), 1), 60)

    def queued(self) -> tuple[int, int]:
        return self._worker.queued()

    @property
    def tokens_per_second(self) -> float:
        return self._num_tokens / self._seconds if self._num_tokens else math.nan

    def close(self) -> None:
        self._worker.close()


AnyEngine: TypeAlias = EncodeEngine | TextEngine | TextToTextEngine


def open_engine(name: str, settings: Model, config: Config, loop: asyncio.AbstractEventLoop) -> AnyEngine:
    """Open a model by the kind that its files name. This takes as long as reading them."""
    model, formats = settings.path, {"dtype": settings.dtype, "weight_dtype": settings.weight_dtype}
    kind = _kind(model) if settings.kind is None else settings.kind
    if kind in (EMBEDDING, SPARSE):
        encoder: SentenceEncoder | SparseEncoder
        encoder = (SentenceEncoder if kind == EMBEDDING else SparseEncoder).from_pretrained(model, **formats)  # type: ignore[arg-type]
        prompt_name = settings.prompt_name
        if prompt_name is not None and prompt_name not in encoder.prompts:
            known = listed(encoder.prompts)
            raise ValueError(f"{model}: prompt_name must be one of the model, {known}; got {shown(prompt_name)}")
        return EncodeEngine(name, kind, encoder, config, prompt_name)
    if settings.prompt_name is not None:
        raise ValueError(f"{model}: prompt_name needs a model of embeddings; this one is {kind}")
    if kind == RERANKER and _is_language_model(model):
        return EncodeEngine(name, RERANKER, LanguageRanker.from_pretrained(model, **formats), config)  # type: ignore[arg-type]
    if kind in (LABELS, RERANKER):
        classifier = TextClassifier.from_pretrained(model, **formats)  # type: ignore[arg-type]
        if kind == RERANKER and len(classifier.labels) != 1:
            raise ValueError(f"{model}: a reranker must have a single label; this model has {len(classifier.labels)}")
        found = RERANKER if settings.kind is None and len(classifier.labels) == 1 else kind
        return EncodeEngine(name, found, classifier, config)
    if kind == ENTITIES:
        return EncodeEngine(name, ENTITIES, TokenClassifier.from_pretrained(model, **formats), config)  # type: ignore[arg-type]
    if kind == TEXT:
        return TextEngine(name, CausalLM.from_pretrained(model, **formats), config, loop)  # type: ignore[arg-type]
    if kind == TEXT_TO_TEXT:
        return TextToTextEngine(name, Seq2SeqLM.from_pretrained(model, **formats), config)  # type: ignore[arg-type]
    if kind in OPENERS:
        return OPENERS[kind](name, settings, config)
    raise ValueError(
        f"{model}: a server takes models of embeddings, pairs, labels, text and speech; this one is {kind}"
    )


# Kinds of a server by those of files.
_KINDS = {
    kinds.EMBEDDINGS: EMBEDDING,
    kinds.CLASSIFIER: LABELS,  # or a reranker, with a single label
    kinds.TOKEN_CLASSIFIER: ENTITIES,
    kinds.LANGUAGE: TEXT,
    kinds.ENCODER_DECODER: TEXT_TO_TEXT,
    kinds.SPEECH: SPEECH,
}


def _kind(model: str | PathLike[str]) -> str | None:
    """Return the kind of a model. A GGUF file is a language model."""
    if Path(model).suffix == ".gguf" or (isinstance(model, str) and find_gguf(model) is not None):
        return TEXT
    home = find_directory(model)
    if lists_sparse(home):
        return SPARSE
    if (home / "modules.json").exists() and is_token_ranker(home):
        return RERANKER
    if is_ctranslate2(home):
        return SPEECH
    found = kinds.kind_of(home, read_json(first_transformer(home) / "config.json", dict))
    return found if found is None else _KINDS.get(found, found)


def _is_language_model(model: str | PathLike[str]) -> bool:
    return is_token_ranker(find_directory(model))
