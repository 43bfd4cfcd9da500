"""Batches and steps that nobody waits for end where they are, and leave nothing; the others keep their bits."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_bert
import tiny_language_model

import mha_native as mha
from mha_native.models import CausalLM, SentenceEncoder
from mha_native.serving import Batcher, EncodeBatcher, EncodeRequest, _encode_queue

SECONDS = 30.0  # for waits that end sooner
PROMPT = [5, 6, 7] * 100


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    home = tiny_language_model.write(tmp_path_factory.mktemp("model") / "tiny", n_positions=400)
    return CausalLM.from_pretrained(home)


class Long:
    """Computes each batch as many times as a text would need that never ends, while `is_long`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_long, self.ends = True, 0
        self.times: list[int] = []  # of each batch
        self._has_changed = threading.Condition()
        self._compute = _encode_queue.results_of
        monkeypatch.setattr(_encode_queue, "results_of", self)

    def __call__(self, *arguments: Any) -> Any:
        batch, most = len(self.times), 100_000 if self.is_long else 1
        self.times.append(0)
        try:
            for _ in range(most):
                found = self._compute(*arguments)
                with self._has_changed:
                    self.times[batch] += 1
                    self._has_changed.notify_all()
            return found
        finally:
            self.ends += 1

    def wait_for(self, batch: int, times: int) -> None:
        """Wait until a batch was computed so many times."""
        with self._has_changed:
            assert self._has_changed.wait_for(lambda: len(self.times) > batch and self.times[batch] >= times, SECONDS)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Iterator[Long]:
    found = Long(monkeypatch)
    yield found
    found.is_long = False


def test_a_batch_that_nobody_waits_for_ends(long: Long, model: SentenceEncoder) -> None:
    with EncodeBatcher(model) as batcher:
        request = batcher.submit(["the dog"] * 9)
        long.wait_for(0, 3)
        assert request.cancel()
        times, long.is_long = long.times[0], False
        # The next batch begins after the long one.
        assert batcher.submit("the cat").result(SECONDS).tobytes() == model.encode("the cat").tobytes()
        assert long.times[0] <= times + 1  # one that ended before `cancel`
        assert long.times[1:] == [1]  # of the cat
        assert long.ends == 2
        assert batcher.statistics.batches == 1  # the other one is not whole
        assert batcher.statistics.running == batcher.statistics.waiting == 0
        gone = weakref.ref(request)
        del request
        gc.collect()
        assert gone() is None


def test_a_batch_goes_on_for_a_single_one_who_waits(long: Long, model: SentenceEncoder) -> None:
    with EncodeBatcher(model, num_threads=1) as batcher:
        held = batcher.submit("a")
        long.wait_for(0, 3)
        requests = [batcher.submit(["the dog", "cat"]) for _ in range(5)]
        assert held.cancel()
        long.wait_for(1, 3)  # all five, in a batch
        assert all(request.cancel() for request in requests[1:])
        long.wait_for(1, long.times[1] + 100)
        assert long.ends == 1
        requests[0].cancel()
        long.is_long = False
    assert long.ends == 2


def test_a_request_cancelled_before_and_one_that_fails(long: Long, model: SentenceEncoder) -> None:
    """The rest of a batch is computed when its first half has failed, or was cancelled meanwhile."""
    compute, long.is_long = long._compute, False
    expected = model.encode("the cat")
    has_begun, is_open = threading.Event(), threading.Event()

    def fails(call_model: Any, texts: Any, num_threads: Any) -> Any:
        has_begun.set()
        assert is_open.wait(SECONDS)
        if any(len(text.ids) == 17 for text in texts):
            requests[0].cancel()
            raise FloatingPointError
        return compute(call_model, texts, num_threads)

    long._compute = fails
    with EncodeBatcher(model, target_seconds=1.0) as batcher:
        batcher.submit("a")
        assert has_begun.wait(SECONDS)  # the others wait for it, and are a batch
        requests = [batcher.submit(text) for text in ("the dog", "the " * 15, "the cat", "the cat")]
        is_open.set()
        assert [request.result(SECONDS).tobytes() for request in requests[2:]] == [expected.tobytes()] * 2
        assert isinstance(requests[1].exception(SECONDS), FloatingPointError)
        assert requests[0].cancelled()


@pytest.mark.parametrize("seed", range(4))
def test_cancelled_requests_at_random_times(model: SentenceEncoder, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 races each between a request and its end; all others have their bits. Every 20th one has its end late."""
    rng = np.random.default_rng(seed)
    texts = ["the dog runs", "a cat", "the " * 14]
    expected = [model.encode(text).tobytes() for text in texts]
    cancelled = 0
    computes, compute = threading.Lock(), _encode_queue.results_of

    def results(*arguments: Any) -> Any:
        with computes:
            return compute(*arguments)

    monkeypatch.setattr(_encode_queue, "results_of", results)
    with EncodeBatcher(model) as batcher:
        for race in range(250):
            chosen = rng.integers(0, len(texts), int(rng.integers(1, 4))).tolist()
            with computes if race % 20 == 0 else nullcontext():
                requests = [batcher.submit(texts[i]) for i in chosen]
                others = rng.permutation(len(requests))[: int(rng.integers(1, len(requests) + 1))]
                for _ in range(int(rng.integers(0, 2000))):
                    pass
                for i in others:
                    cancelled += requests[i].cancel()
            for i, (request, text) in enumerate(zip(requests, chosen, strict=True)):
                if i not in others or not request.cancelled():
                    assert request.result(SECONDS).tobytes() == expected[text]
        assert batcher.submit("a cat").result(SECONDS).tobytes() == expected[1]
        statistics = batcher.statistics
    assert cancelled > 10
    assert (statistics.waiting, statistics.running, statistics.waiting_tokens) == (0, 0, 0)


@pytest.mark.parametrize("share", [False, True])
def test_a_step_that_nobody_waits_for_ends(language_model: CausalLM, share: bool) -> None:
    batcher = Batcher(language_model, num_pages=8, tokens_per_step=256, share_prefixes=share)
    expected = language_model.generate_tokens([9, 8, 7], max_new_tokens=5).tolist()
    request = batcher.submit(PROMPT, max_new_tokens=5, prompt_logprobs=0)
    read, layers = batcher._queue._caches._read, []

    def cancels(*arguments: Any) -> Any:
        request.cancel()
        layers.append(len(layers))
        try:
            return read(*arguments)
        finally:
            layers.append(batcher._queue._caches.caches[0].lengths.sum())

    batcher._queue._caches._read = cancels
    assert not batcher.run_step()
    assert layers == [0, 0]  # nothing was read
    batcher._queue._caches._read = read
    assert batcher.statistics.free_pages == batcher.statistics.num_pages
    assert (batcher.statistics.steps, batcher.statistics.read_tokens) == (0, 0)
    assert request.finish_reason == "cancelled"
    following = batcher.submit([9, 8, 7], max_new_tokens=5)
    while batcher.run_step():
        pass
    assert list(following.tokens()) == expected


def test_a_request_is_cancelled_while_its_prompt_is_read(language_model: CausalLM) -> None:
    expected = language_model.generate_tokens([9, 8, 7], max_new_tokens=9).tolist()
    for share in (False, True):
        batcher = Batcher(language_model, num_pages=8, max_sequences=8, tokens_per_step=48, share_prefixes=share)
        other = batcher.submit([9, 8, 7], max_new_tokens=9)
        request = batcher.submit(PROMPT, max_new_tokens=5)
        for _ in range(3):
            batcher.run_step()
        assert batcher.statistics.used_pages > 1
        assert not list(request._choice.new_tokens)  # the prompt is being read
        request.cancel()
        batcher.run_step()  # at the latest before the second step
        assert batcher.statistics.used_pages == 1
        assert batcher.statistics.running == 1
        while batcher.run_step():
            pass
        assert list(other.tokens()) == expected


def test_a_token_of_the_caller_ends_a_step_that_can_be_repeated(language_model: CausalLM) -> None:
    batcher = Batcher(language_model, num_pages=8)
    request = batcher.submit([9, 8, 7], max_new_tokens=5)
    token = mha.CancellationToken()
    token.cancel()
    with token, pytest.raises(CancelledError):
        batcher.run_step()
    while batcher.run_step():
        pass
    assert list(request.tokens()) == language_model.generate_tokens([9, 8, 7], max_new_tokens=5).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_cancelled_texts_at_random_times(language_model: CausalLM, seed: int) -> None:
    """250 races each between `cancel` and the thread that steps: pages return, the others have their tokens."""
    rng = np.random.default_rng(seed)
    prompts = [[9, 8, 7], PROMPT[:130], PROMPT[:64]]
    expected = [language_model.generate_tokens(prompt, max_new_tokens=4).tolist() for prompt in prompts]
    with Batcher(language_model, num_pages=12, tokens_per_step=64) as batcher:
        for _ in range(250):
            chosen = rng.integers(0, len(prompts), int(rng.integers(1, 4))).tolist()
            requests = [batcher.submit(prompts[i], max_new_tokens=4) for i in chosen]
            for _ in range(int(rng.integers(0, 4000))):
                pass
            others = rng.permutation(len(requests))[: int(rng.integers(1, len(requests) + 1))].tolist()
            for i in others:
                requests[i].cancel()
            for i, (request, prompt) in enumerate(zip(requests, chosen, strict=True)):
                if request.finish_reason != "cancelled":
                    assert i not in others or request.done
                    request.result(SECONDS)
                    assert list(request.tokens()) == expected[prompt]
        last = batcher.submit(prompts[0], max_new_tokens=4)
        assert last.result(SECONDS)
        assert list(last.tokens()) == expected[0]
    assert batcher.statistics.free_pages == batcher.statistics.num_pages


def test_texts_wait_for_others_as_long_as_they_may(model: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[int]] = []
    compute: Callable[..., Any] = _encode_queue.results_of

    def results(call_model: Any, texts: Any, num_threads: Any) -> Any:
        batches.append([len(text.ids) for text in texts])
        return compute(call_model, texts, num_threads)

    monkeypatch.setattr(_encode_queue, "results_of", results)
    with EncodeBatcher(model, max_wait_seconds=60.0, max_batch_tokens=20) as batcher:
        first = batcher.submit("the dog")  # 4 tokens
        cancelled = batcher.submit("the dog")
        cancelled.cancel()
        assert not first.done()
        requests = [batcher.submit("the dog") for _ in range(3)]
        assert not batches
        requests.append(batcher.submit("the dog"))
        first.result(SECONDS)
        assert batches[0] == [4] * 4  # the work of a text of 4 tokens is a little more than 4
        left: list[EncodeRequest] = [request for request in requests if not request.done()]
        with_room = batcher.submit(["the dog"] * 4)
        for request in (*left, with_room):
            request.result(SECONDS)
        statistics = batcher.statistics
    assert max(sum(batch) for batch in batches) <= 20
    assert sum(statistics.batch_tokens.values()) == statistics.batches
    assert set(statistics.batch_tokens) <= {4, 8, 16, 32}
    with EncodeBatcher(model, max_wait_seconds=0.02) as batcher:
        batcher.submit("the dog").result(SECONDS)
    full: list[dict[str, Any]] = [{"max_waiting": 2}, {"max_waiting_tokens": 8}]
    for limits in full:  # no other text can come
        with EncodeBatcher(model, max_wait_seconds=60.0, **limits) as batcher:
            for request in [batcher.submit("the dog") for _ in range(2)]:
                request.result(SECONDS)
    for wait in (-1, 1e300):
        with pytest.raises(ValueError, match=r"^EncodeBatcher: max_wait_seconds must be from 0 to \d+; got "):
            EncodeBatcher(model, max_wait_seconds=wait)
