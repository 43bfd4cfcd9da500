"""Metrics in the format of Prometheus, under the names that dashboards of similar servers know."""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from time import time
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.utils import floatToGoString

from .. import _core
from ..serving import EncodeRequest
from .config import EMBEDDING, SPEECH
from .engines import AnyEngine, EncodeEngine, Engine, TextEngine

_DURATIONS = tuple(15e-6 * 1.5**i for i in range(35))  # seconds, as Text Embeddings Inference has them
_SIZES = tuple(float(2**i) for i in range(14))

# The causes of failures in the labels of Text Embeddings Inference.
_ERRORS = {
    "count": "batch_size",
    "full": "overloaded",
    "internal": "inference",
    "kind": "model_type",
    "memory": "inference",
    "timeout": "dropped",
}

# How names of metrics of other servers begin.
_PREFIXES = {"tei": "te_", "vllm": "vllm:"}

_TASKS = ("te_embed", "te_predict")  # embeddings; scores and labels

_MOST_LATE = 256  # requests that are counted together


class _Values:
    """A histogram without labels, of values that come together."""

    def __init__(self, name: str, about: str, bounds: tuple[float, ...]) -> None:
        self._name, self._about, self._bounds = name, about, np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum, self._created = 0.0, time()

    def add(self, values: Sequence[float]) -> None:
        """Count values."""
        places = np.searchsorted(self._bounds, values)
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._sum += sum(values)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._about)
        family.add_metric([], list(zip(names, accumulate(self._counts.tolist()), strict=True)), self._sum)
        family.add_sample(f"{self._name}_created", {}, self._created)
        yield family


class Metrics:
    """The metrics of a server over some models."""

    def __init__(self, engines: Mapping[str, AnyEngine]) -> None:
        self._engines = engines
        self._registry = registry = CollectorRegistry()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}  # of names without the suffix _total
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        Gauge("mha_native_build_info", "The version of the server.", ("version", "isa"), registry=registry).labels(
            version("mha_native"), _core.active_isa()
        ).set(1)
        self._requests = Counter(
            "mha_native_http_requests", "Requests by path and status.", ("path", "status"), registry=registry
        )
        self._cancelled = Counter("mha_native_cancelled", "Requests without an answer.", ("why",), registry=registry)
        self._of_models: list[Counter | Histogram] = []  # whose first label is the name of a model
        # Requests are counted some at once, and before each look: one after another takes ten times as long.
        self._answers: list[tuple[str, int, float]] = []
        self._computed: dict[str, list[tuple[list[int], tuple[float, float, float]]]] = {task: [] for task in _TASKS}
        self._seconds = self._values("mha_native_http_request_seconds", "Time of requests.")
        self._duration = self._values("te_request_duration", "Time of requests for texts.")
        self._times = {
            task: [
                self._values(f"{task}_duration", "Time of texts."),
                self._values(f"{task}_tokenization_duration", "Time of the tokenizer."),
                self._values(f"{task}_queue_duration", "Time in the queue."),
                self._values(f"{task}_inference_duration", "Time of the computation."),
            ]
            for task in _TASKS
        }
        self._length = self._values("te_request_input_length", "Tokens of a text.", _SIZES)
        labels = ("model_name",)
        self._first = self._histogram("vllm:time_to_first_token_seconds", "Time to the first token.", labels=labels)
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Time of whole texts.", labels=labels)
        self._waited = self._histogram("vllm:request_queue_time_seconds", "Time in the queue.", labels=labels)
        self._read = self._histogram("vllm:request_prefill_time_seconds", "Time of prompts.", labels=labels)
        self._written = self._histogram("vllm:request_decode_time_seconds", "Time of new tokens.", labels=labels)
        between = "Time from a token to the next one"
        self._between = self._histogram("vllm:inter_token_latency_seconds", f"{between}.", labels=labels)
        self._average = self._histogram(
            "vllm:time_per_output_token_seconds", f"{between}, on average over a text.", labels=labels
        )
        self._prompt_length = self._histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", _SIZES, labels)
        self._new_length = self._histogram("vllm:request_generation_tokens", "New tokens of a text.", _SIZES, labels)
        self._ends = self._counter(
            *("vllm:request_success", "Texts by the reason of their end.", (*labels, "finished_reason"))
        )
        self._prompt = self._counter("vllm:prompt_tokens", "Tokens of prompts.", labels)
        self._new = self._counter("vllm:generation_tokens", "New tokens.", labels)
        labels = ("model",)
        self._sound = self._counter("mha_native_audio_seconds", "Seconds of sound with a transcript.", labels)
        self._sound_waited = self._histogram("mha_native_audio_queue_seconds", "Time in the queue.", labels=labels)
        self._sound_computed = self._histogram(
            "mha_native_audio_compute_seconds", "Time of transcripts.", labels=labels
        )
        registry.register(self)

    def _values(self, name: str, about: str, bounds: tuple[float, ...] = _DURATIONS) -> _Values:
        found = _Values(name, about, bounds)
        self._registry.register(found)
        return found

    def _histogram(
        self, name: str, about: str, buckets: tuple[float, ...] = _DURATIONS, labels: tuple[str, ...] = ()
    ) -> Histogram:
        found = Histogram(name, about, labels, registry=self._registry, buckets=buckets)
        self._of_models.append(found)
        return found

    def _counter(self, name: str, about: str, labels: tuple[str, ...]) -> Counter:
        found = Counter(name, about, labels, registry=self._registry)
        self._of_models.append(found)
        return found

    def forget(self, name: str) -> None:
        """Drop the numbers of a closed model. Otherwise metrics would grow with each new name."""
        for metric in self._of_models:
            samples = [sample for family in metric.collect() for sample in family.samples]
            labels = {tuple(value for label, value in each.labels.items() if label != "le") for each in samples}
            for values in labels:
                if values[0] == name:
                    metric.remove(*values)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer. `path` is the one of the endpoint, without data of the client."""
        self._answers.append((path, status, seconds))
        if len(self._answers) >= _MOST_LATE:
            self._count_late()

    def cancelled(self, why: str) -> None:
        """Count a request without an answer."""
        self._cancelled.labels(why).inc()

    def failed(self, cause: str) -> None:
        """Count a failure of a request for texts."""
        self._count("te_request_failure", err=_ERRORS.get(cause, "validation"))

    def asked(self, num_texts: int) -> None:
        """Count a request for texts."""
        self._count("te_request_count", method="single" if num_texts == 1 else "batch")

    def computed(self, engine: Engine, request: EncodeRequest, tokenized: float) -> None:
        """Count a request whose texts were computed, after so many seconds of the tokenizer."""
        task = _TASKS[engine.kind != EMBEDDING]
        _, queued, computed = request.statistics
        self._computed[task].append((request.token_counts, (tokenized, queued, computed)))

    def _count_late(self) -> None:
        """Count the requests since the last time."""
        answers, self._answers = self._answers, []
        for (path, status), count in Tally((path, status) for path, status, _ in answers).items():
            self._requests.labels(path, str(status)).inc(count)
        self._seconds.add([seconds for *_, seconds in answers])
        for task, late in self._computed.items():
            if not late:
                continue
            self._computed[task] = []
            lengths = [count for counts, _ in late for count in counts]
            self._count("te_request_success", len(late))
            self._count(f"{task}_count", len(lengths))
            self._count(f"{task}_success", len(lengths))
            times = [(sum(parts), *parts) for _, parts in late]
            for values, seconds in zip(self._times[task], zip(*times, strict=True), strict=True):
                values.add(seconds)
            self._duration.add([whole for whole, *_ in times])
            self._length.add(lengths)

    def generated(self, engine: Engine, statistics: Any, reason: str) -> None:
        """Count a text of a language model by its statistics and the reason of its end."""
        self._ends.labels(engine.name, reason).inc()
        self._prompt.labels(engine.name).inc(statistics.prompt_tokens)
        self._new.labels(engine.name).inc(statistics.new_tokens)
        self._waited.labels(engine.name).observe(statistics.queue_seconds)
        self._first.labels(engine.name).observe(statistics.first_token_seconds)
        self._whole.labels(engine.name).observe(statistics.first_token_seconds + statistics.new_seconds)
        self._read.labels(engine.name).observe(statistics.first_token_seconds - statistics.queue_seconds)
        self._written.labels(engine.name).observe(statistics.new_seconds)
        self._prompt_length.labels(engine.name).observe(statistics.prompt_tokens)
        self._new_length.labels(engine.name).observe(statistics.new_tokens)
        if statistics.new_tokens > 1:
            self._average.labels(engine.name).observe(statistics.seconds_per_token)

    def stepped(self, engine: Engine, seconds: float) -> None:
        """Count a token by the time since the token before it."""
        self._between.labels(engine.name).observe(seconds)

    def searched(self, engine: Engine, usage: Mapping[str, Any], reasons: list[str]) -> None:
        """Count the texts of an encoder-decoder by the reasons of their ends."""
        for reason in reasons:
            self._ends.labels(engine.name, reason).inc()
        self._prompt.labels(engine.name).inc(usage["prompt_tokens"])
        self._new.labels(engine.name).inc(usage["completion_tokens"])

    def transcribed(self, engine: Engine, seconds: float, waited: float, computed: float) -> None:
        """Count a recording of some seconds by the times that it waited and was computed."""
        self._sound.labels(engine.name).inc(seconds)
        self._sound_waited.labels(engine.name).observe(waited)
        self._sound_computed.labels(engine.name).observe(computed)

    def _count(self, name: str, more: int = 1, **labels: str) -> None:
        key = name, tuple(labels.items())
        self._counts[key] = self._counts.get(key, 0) + more

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are counted here, or that the models know."""
        for (name, labels), value in self._counts.items():
            yield _metric(name, "Requests and texts.", [(dict(labels), value)])
        engines = list(self._engines.values())
        loaded = [
            ({"model": engine.name, "kind": engine.kind, "weight_dtype": engine.weight_dtype}, 1.0)
            for engine in engines
        ]
        yield _metric("mha_native_model_loaded", "Models that are open.", loaded)
        encoders = [engine for engine in engines if isinstance(engine, EncodeEngine)]
        yield _metric("te_queue_size", "Requests that wait.", [({}, sum(each.queued()[0] for each in encoders))])
        yield from _batches(encoders)
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for engine in engines:
            if isinstance(engine, TextEngine):
                label, statistics = {"model_name": engine.name}, engine.batcher.statistics
                for name, number in (
                    ("num_requests_running", statistics.running),
                    ("num_requests_waiting", statistics.waiting),
                    ("kv_cache_usage_perc", statistics.used_pages / statistics.num_pages),
                    ("num_preemptions_total", statistics.preempted),
                    ("prefix_cache_queries_total", statistics.prefix_queries),
                    ("prefix_cache_hits_total", statistics.prefix_hits),
                ):
                    found.setdefault(name, []).append((label, number))
        for name, samples in found.items():
            yield _metric(f"vllm:{name}", "Of the queue of a language model.", samples)
        speech: list[Any] = [engine for engine in engines if engine.kind == SPEECH]
        for name, about, numbers in (
            ("requests_waiting", "Recordings that wait.", [each.queued()[0] for each in speech]),
            ("requests_running", "Recordings that take turns.", [each.queued()[1] for each in speech]),
            ("left_seconds", "Seconds of sound that are decoded, and have no transcript yet.", [
                each.waiting_seconds() for each in speech
            ]),
        ):  # fmt: skip
            samples = [({"model": each.name}, number) for each, number in zip(speech, numbers, strict=True)]
            yield _metric(f"mha_native_audio_{name}", about, samples)

    def text(self, compatible: tuple[str, ...]) -> bytes:
        """Return metrics in the text format 0.0.4: those of this server, and under the names of `compatible` ones."""
        self._count_late()
        return generate_latest(_Chosen(self._registry, compatible))


class _Chosen(NamedTuple):
    """The metrics of a registry under the names of this server and of `compatible` ones."""

    registry: CollectorRegistry
    compatible: tuple[str, ...]

    def collect(self) -> Iterator[Metric]:
        dropped = tuple(prefix for name, prefix in _PREFIXES.items() if name not in self.compatible)
        for metric in self.registry.collect():
            if not metric.name.startswith(dropped):
                yield metric


def _batches(engines: list[EncodeEngine]) -> Iterator[HistogramMetricFamily]:
    """Yield how many batches had at most so many texts, and at most so many tokens."""
    found = [engine.batcher.statistics for engine in engines]
    for name, about, each, total in (
        (
            "te_batch_next_size",
            "Texts of a batch.",
            [one.batch_sizes for one in found],
            sum(one.texts for one in found),
        ),
        (
            "te_batch_next_tokens",
            "Tokens of a batch.",
            [one.batch_tokens for one in found],
            sum(one.tokens for one in found),
        ),
    ):
        counts = [item for sizes in each for item in sizes.items()]
        buckets = [(str(most), sum(count for size, count in counts if size <= most)) for most in _SIZES]
        buckets.append(("+Inf", sum(count for _, count in counts)))
        family = HistogramMetricFamily(name, about)
        family.add_metric([], buckets, total)
        yield family


def _metric(name: str, about: str, samples: list[tuple[dict[str, str], float]]) -> Metric:
    """Return a metric with exactly this name: classes of prometheus_client add a suffix."""
    metric = Metric(name, about, "unknown")
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric
