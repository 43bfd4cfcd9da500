"""EncodeBatcher: each text gets the bits that it gets alone, whatever the others do, and nobody waits for long."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import tiny_bert
import tiny_classifiers

from mha_native.models import SentenceEncoder, TextClassifier, TokenClassifier
from mha_native.sentence_transformers import CrossEncoder
from mha_native.serving import EncodeBatcher, EncodeRequest, QueueFull, _encode_queue

WORDS = ["the", "dog", "cat", "runs", "hot", "a", "é", "."]
SECONDS = 30.0  # for waits that end sooner


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("classifiers")
    return {
        "texts": tiny_classifiers.write(home / "texts"),
        "pairs": tiny_classifiers.write(home / "pairs", labels=1),
        "tokens": tiny_classifiers.write(home / "tokens", tokens=True),
    }


def random_text(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, int(rng.integers(0, 40))))


def of_encoder(rng: np.random.Generator, model: Any) -> tuple[Any, dict[str, Any], Any]:
    """Texts of a call or a single one, options, and the results of each text alone."""
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["truncate_dim"] = int(rng.integers(1, model.embed_dim))
    if rng.random() < 0.4:
        options["normalize"] = bool(rng.random() < 0.5)
    if rng.random() < 0.3:
        texts: Any = [rng.integers(5, 20, int(rng.integers(1, 18))) for _ in range(int(rng.integers(1, 6)))]
        return texts, options, np.concatenate([model.encode_tokens([text], **options) for text in texts])
    if rng.random() < 0.4:
        options["prompt"] = "the cat"
    if rng.random() < 0.5:
        text = random_text(rng)
        return text, options, model.encode(text, **options)
    texts = [random_text(rng) for _ in range(int(rng.integers(0, 9)))]
    alone = [model.encode(text, **options) for text in texts]
    return texts, options, np.array(alone) if alone else model.encode([], **options)


def of_classifier(rng: np.random.Generator, model: Any) -> tuple[Any, dict[str, Any], Any]:
    options = {"function_to_apply": str(rng.choice(["none", "softmax"]))} if rng.random() < 0.5 else {}
    texts = [
        (random_text(rng), random_text(rng)) if rng.random() < 0.5 else random_text(rng)
        for _ in range(int(rng.integers(1, 7)))
    ]
    return texts, options, np.concatenate([model.predict_proba([text], **options) for text in texts])


def of_pairs(rng: np.random.Generator, model: Any) -> tuple[Any, dict[str, Any], Any]:
    pairs = [(random_text(rng), random_text(rng)) for _ in range(int(rng.integers(1, 7)))]
    if rng.random() < 0.3:
        return pairs[0], {}, model.predict(pairs[0])
    return pairs, {}, np.concatenate([model.predict([pair]) for pair in pairs])


def of_tokens(rng: np.random.Generator, model: Any) -> tuple[Any, dict[str, Any], Any]:
    options: dict[str, Any] = {"aggregation_strategy": "none", "ignore_labels": []} if rng.random() < 0.5 else {}
    options["stride"] = int(rng.integers(0, 5))
    texts = [random_text(rng) for _ in range(int(rng.integers(1, 5)))]
    return texts, options, [model(text, **options) for text in texts]


def load(kind: str, model: SentenceEncoder, folders: dict[str, Path]) -> Any:
    if kind == "encoder":
        return model
    if kind == "pairs":
        return CrossEncoder(folders["pairs"])
    return {"texts": TextClassifier, "tokens": TokenClassifier}[kind].from_pretrained(folders[kind])


CALLS: dict[str, Callable[[np.random.Generator, Any], tuple[Any, dict[str, Any], Any]]] = {
    "encoder": of_encoder,
    "texts": of_classifier,
    "pairs": of_pairs,
    "tokens": of_tokens,
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_text_has_its_own_bits_in_any_batch(kind: str, model: SentenceEncoder, folders: dict[str, Path]) -> None:
    used = load(kind, model, folders)
    rng = np.random.default_rng([3, len(kind)])
    calls = [CALLS[kind](rng, used) for _ in range(120)]
    cancelled = rng.random(len(calls)) < 0.1
    found: dict[int, EncodeRequest] = {}
    with EncodeBatcher(used) as batcher:

        def submit(first: int) -> None:
            for i in range(first, len(calls), 6):
                texts, options, _ = calls[i]
                found[i] = batcher.submit(texts, **options)
                if cancelled[i]:
                    found[i].cancel()

        threads = [threading.Thread(target=submit, args=(first,)) for first in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, (texts, _, expected) in enumerate(calls):
            if found[i].cancelled():
                assert cancelled[i]
                continue
            result = found[i].result(SECONDS)
            if kind == "tokens":
                assert result == expected
            else:
                assert result.dtype == np.float32
                assert result.shape == expected.shape
                assert result.tobytes() == expected.tobytes()
            counts = found[i].token_counts
            assert len(counts) == (1 if isinstance(texts, (str, tuple)) else len(texts))
            statistics = found[i].statistics
            assert statistics.tokens == sum(counts)
            assert not sum(counts) or (statistics.queue_seconds >= 0 and statistics.compute_seconds > 0)
        done = batcher.statistics
    assert done.waiting == done.waiting_tokens == done.running == 0
    assert done.batches < done.texts  # some were computed together
    assert sum(size * count for size, count in done.batch_sizes.items()) == done.texts
    assert done.tokens_per_second > 0


class Gate:
    """Computes what it is told to, and knows the batches: the token counts of their texts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[int]] = []
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self.fails: Callable[[list[Any]], BaseException | None] = lambda texts: None
        self._compute = _encode_queue.results_of
        monkeypatch.setattr(_encode_queue, "results_of", self)

    def __call__(self, model: Any, texts: Any, num_threads: Any) -> Any:
        self.batches.append([len(text.ids) for text in texts])
        self.has_begun.set()
        assert self.may_go_on.wait(SECONDS)
        if (error := self.fails(texts)) is not None:
            raise error
        return self._compute(model, texts, num_threads)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.may_go_on.set()


def held(gate: Gate, model: SentenceEncoder, **options: Any) -> EncodeBatcher:
    """A batcher whose thread waits within its first batch. No time passes for it, so batches have 256 tokens."""
    batcher = EncodeBatcher(model, **options)
    batcher._queue.clock = lambda: 0.0
    batcher.submit("a")
    assert gate.has_begun.wait(SECONDS)
    return batcher


def until_ended(batcher: EncodeBatcher) -> None:
    """Wait until `close` cancels the requests that wait."""
    end = time.monotonic() + SECONDS
    while not batcher._queue._is_ended:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_single_texts_join_the_next_batch_beside_a_request_of_many(gate: Gate, model: SentenceEncoder) -> None:
    with held(gate, model) as batcher:
        many = batcher.submit(["the dog runs " * 5] * 400)
        singles = [batcher.submit("cat") for _ in range(20)]
        gate.may_go_on.set()
        for single in singles:
            assert single.result(SECONDS).tobytes() == model.encode("cat").tobytes()
        assert (many.result(SECONDS) == many.result()[0]).all()
    # A text of each request, then more of the long one: half a batch while there are others, then a whole one.
    assert gate.batches[1:4] == [[17, *[3] * 20, 17, 17], [17] * 6, [17] * 13]


def test_a_batch_takes_the_time_that_it_may_take(
    gate: Gate, model: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, speed = [0.0], [4000.0]  # tokens a second
    batcher = held(gate, model, target_seconds=0.05)
    batcher._queue.clock = lambda: now[0]
    compute = gate._compute

    def timed(call_model: Any, texts: Any, num_threads: Any) -> Any:
        now[0] += sum(len(text.ids) for text in texts) / speed[0]
        return compute(call_model, texts, num_threads)

    gate._compute = timed
    with batcher:
        gate.may_go_on.set()
        batcher.submit(["the dog runs"] * 500).result(SECONDS)
        speed[0] = 20_000.0
        batcher.submit(["the dog runs"] * 2000).result(SECONDS)
        sizes = [sum(batch) for batch in gate.batches]
    # A text of 5 tokens has a little more work than 5 tokens.
    assert 150 < sizes[10] <= 200
    assert max(sizes[3:10]) <= 200
    assert 800 < sizes[-2] <= 1000
    assert max(sizes) <= 1000
    assert batcher.statistics.tokens_per_second == pytest.approx(20_000, rel=0.01)


def test_limits_hold_for_single_texts_and_for_many_alike(
    gate: Gate, model: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(gate, model, max_waiting=3, max_waiting_tokens=40) as batcher:
        first = batcher.submit(["the dog runs"] * 20)  # 100 tokens, into an empty queue
        for texts in ("a", ["a"], ["a", "cat"]):
            with pytest.raises(
                QueueFull, match=r"^EncodeBatcher\.submit: 100 tokens wait, and max_waiting_tokens, 40, "
            ):
                batcher.submit(texts)
        assert first.cancel()
        requests = [batcher.submit("a"), batcher.submit(["a", "cat"]), batcher.submit("cat")]
        assert batcher.statistics.waiting == 3
        assert batcher.statistics.waiting_tokens == sum(sum(request.token_counts) for request in requests) == 12
        for texts in ("a", ["a"], ["a"] * 30):
            with pytest.raises(
                QueueFull, match=r"^EncodeBatcher\.submit: 3 requests wait, as many as max_waiting; try"
            ):
                batcher.submit(texts)
        monkeypatch.setattr(SentenceEncoder, "_text_call", None)  # no tokens are made for a refusal
        with pytest.raises(QueueFull):
            batcher.submit("a")
        gate.may_go_on.set()
        for request in requests:
            request.result(SECONDS)
    assert batcher.statistics.texts == 5


def test_cancelled_texts_are_dropped_and_all_who_wait_know(gate: Gate, model: SentenceEncoder) -> None:
    with held(gate, model) as batcher:
        called: list[Any] = []
        waiting, other = batcher.submit(["the dog"] * 50), batcher.submit("cat")
        waiting.add_done_callback(called.append)
        waiter = threading.Thread(target=concurrent.futures.wait, args=([waiting],), daemon=True)
        waiter.start()
        assert waiting.cancel()
        assert waiting.cancel()
        assert waiting.cancelled()
        waiter.join(SECONDS)
        assert not waiter.is_alive()
        assert called == [waiting]
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result()
        assert batcher.statistics.waiting == 1
        gate.may_go_on.set()
        assert other.result(SECONDS).shape == (model.embed_dim,)
        assert not other.cancel()  # it has its result
    assert sum(map(len, gate.batches)) == 2


@pytest.mark.parametrize("bad", [0, 6, 11])
def test_a_text_that_fails_fails_alone(gate: Gate, model: SentenceEncoder, bad: int) -> None:
    class Broken(BaseException):
        pass

    error: BaseException = FloatingPointError("a NaN") if bad else Broken("no Exception")
    gate.fails = lambda texts: error if any(len(text.ids) == 17 for text in texts) else None
    with held(gate, model) as batcher:
        requests = [batcher.submit("the " * 15 if i == bad else "dog" if i % 2 else ["dog", "cat"]) for i in range(12)]
        gate.may_go_on.set()
        for i, request in enumerate(requests):
            if i != bad:
                assert request.result(SECONDS).tobytes() == model.encode("dog" if i % 2 else ["dog", "cat"]).tobytes()
        failure = requests[bad].exception(SECONDS)
        if bad:
            assert failure is error
        else:
            assert isinstance(failure, RuntimeError)
            assert failure.__cause__ is error
        assert batcher.submit("cat").result(SECONDS).shape == (model.embed_dim,)


def test_a_batch_without_memory_is_computed_in_halves_once_again(gate: Gate, model: SentenceEncoder) -> None:
    num_failures = [0]

    def fails(texts: list[Any]) -> BaseException | None:
        if len(texts) > 8 or (len(texts) == 1 and len(texts[0].ids) == 17 and num_failures[0] < 1):
            num_failures[0] += len(texts) == 1
            return MemoryError()
        return MemoryError() if any(len(text.ids) == 16 for text in texts) else None

    gate.fails = fails
    with held(gate, model) as batcher:
        requests = [batcher.submit("dog") for _ in range(30)]
        once, never = batcher.submit("the " * 15), batcher.submit("the " * 14)
        gate.may_go_on.set()
        for request in requests:
            assert request.result(SECONDS).tobytes() == model.encode("dog").tobytes()
        assert once.result(SECONDS).tobytes() == model.encode("the " * 15).tobytes()
        assert isinstance(never.exception(SECONDS), MemoryError)
        most = batcher._queue._most_tokens
        assert most < 2048
        for _ in range(100):
            batcher.submit("dog").result(SECONDS)
        assert batcher._queue._most_tokens == 2048  # one failure is not for ever


def test_an_error_outside_of_a_computation_ends_the_requests_of_its_batch_only(
    gate: Gate, model: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(gate, model) as batcher:
        with monkeypatch.context() as context:
            context.setattr(batcher._queue, "_learn", lambda *arguments: 1 / 0)
            request = batcher.submit("cat")
            gate.may_go_on.set()
            assert isinstance(request.exception(SECONDS), ZeroDivisionError)
        assert batcher.submit("dog").result(SECONDS).tobytes() == model.encode("dog").tobytes()


def test_close_drains_or_ends(gate: Gate, model: SentenceEncoder) -> None:
    batcher = held(gate, model)
    request = batcher.submit("cat")
    with pytest.raises(TimeoutError, match=r"^EncodeRequest\.result: the request has not ended in 0\.01 s; it goes on"):
        request.result(0.01)
    gate.may_go_on.set()
    batcher.close()
    batcher.close()
    assert request.result(0).shape == (model.embed_dim,)
    with pytest.raises(RuntimeError, match=r"^EncodeBatcher\.submit: the EncodeBatcher is closed"):
        batcher.submit("cat")
    EncodeBatcher(model).close()


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_close_with_a_timeout_ends_what_waits(gate: Gate, model: SentenceEncoder, timeout: float) -> None:
    gate_of_rest = threading.Event()
    batcher = EncodeBatcher(model)
    current = batcher.submit("a")
    assert gate.has_begun.wait(SECONDS)
    waiting = [batcher.submit("cat"), batcher.submit(["dog"] * 9)]
    closing = threading.Thread(target=lambda: (batcher.close(timeout), gate_of_rest.set()))
    closing.start()
    until_ended(batcher)  # its timeout is over
    assert not gate_of_rest.wait(0.1)  # for the current batch
    gate.may_go_on.set()
    closing.join(SECONDS)
    assert current.result(0).shape == (model.embed_dim,)
    assert all(request.cancelled() for request in waiting)
    assert not batcher._queue._thread.is_alive()  # type: ignore[union-attr]


def test_it_closes_itself(gate: Gate, model: SentenceEncoder) -> None:
    batcher = held(gate, model)
    thread, waiting = batcher._queue._thread, batcher.submit("cat")
    del batcher
    gc.collect()
    gate.may_go_on.set()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(SECONDS)
    assert thread is not None
    thread.join(SECONDS)
    assert not thread.is_alive()
    other, left = EncodeBatcher(model), []
    gate.fails = lambda _: until_ended(other)  # the first batch

    def fail() -> None:
        with other:
            left.append(other.submit(["dog"] * 5000))
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        fail()
    assert left[0].cancelled()


def test_callbacks_may_do_all_but_wait(gate: Gate, model: SentenceEncoder) -> None:
    batcher, seen = held(gate, model), threading.Event()
    told: list[Any] = []

    def on_done(request: Any) -> None:
        later = batcher.submit("dog")
        with pytest.raises(RuntimeError, match=r"^EncodeRequest\.result: a callback must not wait for a request"):
            later.result()
        told.append(request.result())
        later.add_done_callback(lambda _: (batcher.close(), seen.set()))
        raise SystemExit  # has no effect

    batcher.submit("cat").add_done_callback(on_done)  # in this thread, if the request had ended by now
    gate.may_go_on.set()
    assert seen.wait(SECONDS)
    assert told[0].tobytes() == model.encode("cat").tobytes()
    batcher.close()
    assert not batcher._queue._thread.is_alive()  # type: ignore[union-attr]


def test_coroutines_wait_and_cancel(gate: Gate, model: SentenceEncoder) -> None:
    async def main() -> None:
        batcher = held(gate, model)
        going, dropped = batcher.submit("cat"), batcher.submit("dog")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(dropped), 0.01)
        assert dropped.cancelled()
        gate.may_go_on.set()
        found = await asyncio.wrap_future(going)
        assert found.tobytes() == model.encode("cat").tobytes()
        batcher.close()

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_refuses_every_call(model: SentenceEncoder) -> None:
    with EncodeBatcher(model) as batcher:
        request = batcher.submit("cat")
        request.result(SECONDS)
        if (child := os.fork()) == 0:
            failed = 1
            try:
                for call in (lambda: batcher.submit("a"), lambda: batcher.statistics, request.result, request.cancel):
                    with pytest.raises(
                        RuntimeError, match=r"the EncodeBatcher belongs to process \d+, and this is \d+"
                    ):
                        call()
                batcher.close()
                failed = 0
            finally:
                os._exit(failed)
        assert os.waitpid(child, 0)[1] == 0
        assert batcher.submit("cat").result(SECONDS).shape == (model.embed_dim,)


def test_messages(model: SentenceEncoder) -> None:
    for options, message in [
        ({"model": 1}, r"EncodeBatcher: model must be a SentenceEncoder, TextClassifier, TokenClassifier or CrossEnc"),
        ({"target_seconds": 0}, r"EncodeBatcher: target_seconds must be above 0; got 0"),
        ({"target_seconds": float("nan")}, r"EncodeBatcher: target_seconds must be finite; got nan"),
        ({"max_waiting": 0}, r"EncodeBatcher: max_waiting must be at least 1; got 0"),
        ({"max_waiting_tokens": 1.5}, r"EncodeBatcher: max_waiting_tokens must be an int"),
    ]:
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            EncodeBatcher(**{"model": model, **options})
    with EncodeBatcher(model) as batcher:
        for texts, more, message in [
            (["a", 1], {}, r"EncodeBatcher\.submit: texts must be texts, or tokens \[T\]; got int at 1"),
            (["a\ud800"], {}, r"EncodeBatcher\.submit: texts: text 0 holds half of a surrogate pair"),
            (
                [[1], [10**6]],
                {},
                r"EncodeBatcher\.submit: texts: tokens must be from 0 to \d+; got 1000000 to 1000000 at 1",
            ),
            ([[5] * 1000], {}, r"EncodeBatcher\.submit: texts must have no more tokens than the model has positions"),
            ([[5], []], {}, r"EncodeBatcher\.submit: texts must have a token; got none at 1"),
            (
                [[5]],
                {"prompt": "a"},
                r"EncodeBatcher\.submit: texts must be str with a prompt, which tokens have alrea",
            ),
            ("a", {"truncate_dim": 0}, r"EncodeBatcher\.submit: truncate_dim must be at least 1; got 0"),
            ("a", {"top_k": 1}, r"EncodeBatcher\.submit: options must be of .*normalize.*; got top_k"),
        ]:
            with pytest.raises((TypeError, ValueError), match=f"^{message}"):
                batcher.submit(texts, **more)
        with pytest.raises(ValueError, match=r"^EncodeBatcher\.close: timeout must be at least 0; got -1"):
            batcher.close(-1)
        assert repr(batcher.submit("a")) in {
            f"EncodeRequest(1 texts, 3 tokens, {state})" for state in ("done", "going on")
        }
        assert repr(batcher).startswith("EncodeBatcher(SentenceEncoder(")
    assert batcher.statistics.texts == 1


def test_a_request_that_has_ended_keeps_its_result_and_no_batch(
    model: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[weakref.ref[Any]] = []
    results_of: Any = vars(_encode_queue)["results_of"]

    def seen(*arguments: Any) -> Any:
        found = results_of(*arguments)
        rows.extend(weakref.ref(row) for row in found)
        return found

    monkeypatch.setattr(_encode_queue, "results_of", seen)
    with EncodeBatcher(model) as batcher:
        requests = [batcher.submit(["the dog", "a cat"]) for _ in range(8)]
        results = [request.result(SECONDS) for request in requests]
    assert len(rows) == 16
    assert not any(row() is not None for row in rows)
    assert len(results) == len(requests)
    with EncodeBatcher(model) as batcher:  # the rows of tokens are the result themselves
        found = batcher.submit(["the dog", "a cat"], per_token=True).result(SECONDS)
    alone = [rows for _, rows in model.encode_to_rows(["the dog", "a cat"])]
    assert all(np.array_equal(one, other) for one, other in zip(found, alone, strict=True))


def test_texts_may_be_taken_before_their_request_is_returned(
    model: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = EncodeBatcher(model)
    queue, add, results_of = batcher._queue, batcher._queue.add, _encode_queue.results_of
    has_added = threading.Event()

    class WaitsForTheThread(threading.Condition):  # when `add` leaves the lock
        request: EncodeRequest | None = None

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            end = time.monotonic() + SECONDS
            while self.request is not None and threading.current_thread() is threading.main_thread():
                if not self.request._has_next or time.monotonic() > end:
                    self.request = None

    queue._work = work = WaitsForTheThread()

    def late(function: str, request: EncodeRequest) -> None:
        work.request = request
        add(function, request)
        has_added.set()

    def held(*arguments: Any) -> Any:
        assert has_added.wait(SECONDS)
        return results_of(*arguments)

    monkeypatch.setattr(queue, "add", late)
    monkeypatch.setattr(_encode_queue, "results_of", held)
    texts = ["the dog", "a cat"]
    np.testing.assert_array_equal(batcher.submit(texts).result(SECONDS), model.encode(texts))
    batcher.close()
