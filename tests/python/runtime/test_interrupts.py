"""Signals during a call: what a handler raises ends the call soon, nothing is half done, and the next call is right."""

from __future__ import annotations

import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tolerance import assert_same_bits

import mha_native as mha
from mha_native.models import SentenceEncoder
from mha_native.models.text.tokenizer import library_errors

# Within this time of the signal, on a machine that others use. Each call below would take several times as long on any.
SOON = 2.0
DELAY = 0.15  # from the begin of a call to the signal


class Interrupted(Exception):
    """What the handler of these tests raises."""


@pytest.fixture(autouse=True)
def handled() -> Iterator[list[float]]:
    """When SIGALRM was handled; the handler raises `Interrupted`.

    Without the garbage collector: Python loses what a handler raises in one of `gc.callbacks`, such as that of
    hypothesis, and there is only one signal.
    """
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are handled in the main thread")
    times: list[float] = []

    def handle(_number: int, _frame: Any) -> None:
        times.append(time.monotonic())
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    gc.disable()
    yield times
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _interrupt(call: Callable[[], object], error: type[BaseException] = Interrupted) -> None:
    def interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, DELAY)
        call()

    start = time.monotonic()
    with pytest.raises(error):
        interrupted()
    assert time.monotonic() - start < DELAY + SOON


def _broadcast(*shape: int) -> NDArray[np.float32]:
    """Random rows, all the same: they take no memory."""
    return np.broadcast_to(np.random.default_rng(0).standard_normal(shape[-1], dtype=np.float32), shape)


def _attention(num_threads: int) -> object:
    x = _broadcast(1, 8, 16384, 128)
    return mha.scaled_dot_product_attention(x, x, x, is_causal=True, num_threads=num_threads)


def _weights(num_threads: int) -> object:
    x = _broadcast(1, 6, 4096, 4096)
    return mha.attention_weights(x, x, num_threads=num_threads)


def _statistics(num_threads: int) -> object:  # a task is a whole head
    x = _broadcast(1, 2, 65536, 64)
    return mha.attention_statistics(x, x, num_threads=num_threads)


def _gradient(num_threads: int) -> object:  # a task is a whole head, or a span of one
    x, lse = _broadcast(1, 2, 65536, 64), _broadcast(1, 2, 65536)
    return mha.attention_gradient(x, x, x, x, lse, x, num_threads=num_threads)


def _merge(num_threads: int) -> object:
    shards = [_broadcast(1, 16, 16384, 64)] * 1000
    return mha.merge_attention(shards, [_broadcast(1, 16, 16384)] * 1000, num_threads=num_threads)


def _feed_forward(num_threads: int) -> object:  # a task takes all rows of a block through both products
    return mha.FeedForward(64, 32768)(_broadcast(100_000, 64), num_threads=num_threads)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("call", [_attention, _weights, _statistics, _gradient, _merge, _feed_forward])
def test_a_long_call_ends(call: Callable[[int], object], num_threads: int) -> None:
    _interrupt(lambda: call(num_threads))
    x = np.random.default_rng(1).standard_normal((2, 4, 70, 32), dtype=np.float32)
    expected = mha.scaled_dot_product_attention(x, x, x, num_threads=1)
    assert_same_bits(mha.scaled_dot_product_attention(x, x, x, num_threads=num_threads), expected)


def test_positions_end() -> None:
    _interrupt(lambda: mha.sinusoidal_positions(1_200_000, 128, dtype="float16"))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_stack_over_caches_leaves_them_as_they_were(num_threads: int) -> None:
    model, other = (mha.Decoder(3, 32, 2, 8192, seed=seed) for seed in (0, 0))
    rng = np.random.default_rng(2)
    memory, prompt = rng.standard_normal((2, 16, 4, 32), dtype=np.float32)
    long, step = _broadcast(16, 8192, 32), rng.standard_normal((16, 1, 32), dtype=np.float32)

    def caches(of: mha.Decoder) -> dict[str, Any]:
        made = {"caches": of.new_caches(16, 8200), "memory_caches": of.project_memory(memory)}
        of(prompt, **made)
        return made

    given, expected = caches(model), caches(other)
    _interrupt(lambda: model(long, num_threads=num_threads, **given))
    for cache in given["caches"] + given["memory_caches"]:
        assert cache.lengths.tolist() == [4] * 16
    assert_same_bits(model(step, num_threads=num_threads, **given), other(step, **expected))
    for cache, same in zip(given["caches"], expected["caches"], strict=True):
        assert cache.lengths.tolist() == [5] * 16
        assert_same_bits(cache.keys[:, :, :5], same.keys[:, :, :5])


def test_a_layer_over_a_cache_leaves_it_as_it_was() -> None:
    layer = mha.MultiHeadAttention(128, 1, seed=0)
    cache = layer.new_cache(4, 32768)
    _interrupt(lambda: layer(_broadcast(4, 32768, 128), cache=cache, is_causal=True, num_threads=2))
    assert cache.lengths.tolist() == [0] * 4
    few, other = _broadcast(4, 3, 128), layer.new_cache(4, 3)
    assert_same_bits(layer(few, cache=cache, num_threads=2), layer(few, cache=other))  # no call uses it any more
    assert cache.lengths.tolist() == [3] * 4


def test_generation_ends_between_two_tokens_or_within_one() -> None:
    model = mha.CausalDecoder(2, 64, 2, 128, seed=0)
    table = np.random.default_rng(3).standard_normal((50, 64), dtype=np.float32)

    def generate() -> None:
        for _ in range(1000):
            for _step in mha.generate(model, np.array([1, 2, 3]), table, max_new_tokens=1000):
                pass

    _interrupt(generate)


def test_sentences_end(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    import tiny_bert

    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path))
    expected = model.encode(tiny_bert.TEXTS)
    _interrupt(lambda: all(map(len, model.encode_batches(itertools.cycle(tiny_bert.TEXTS)))))
    assert_same_bits(model.encode(tiny_bert.TEXTS), expected)


def test_what_a_handler_raises_is_no_error_of_the_tokenizer() -> None:
    with pytest.raises(Interrupted), library_errors("the tokenizer failed"):
        raise Interrupted


def test_a_handler_that_raises_nothing_changes_nothing(handled: list[float]) -> None:
    rng = np.random.default_rng(4)
    x, small = rng.standard_normal((1, 4, 3000, 64), dtype=np.float32), rng.standard_normal((9, 8), dtype=np.float32)
    expected, expected_small = (mha.scaled_dot_product_attention(y, y, y, num_threads=2) for y in (x, small))

    def handle(_number: int, _frame: Any) -> None:  # it may compute, too
        assert_same_bits(mha.scaled_dot_product_attention(small, small, small, num_threads=2), expected_small)
        handled.append(time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, 0.03)  # the next one: handlers that wait for each other would not end

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert_same_bits(mha.scaled_dot_product_attention(x, x, x, num_threads=2), expected)
    assert handled


def test_calls_of_other_threads_go_on(handled: list[float]) -> None:
    x = np.random.default_rng(5).standard_normal((1, 4, 2000, 64), dtype=np.float32)
    expected = mha.scaled_dot_product_attention(x, x, x)
    stop = threading.Event()

    def compute() -> int:
        count = 0
        while not stop.is_set():
            assert_same_bits(mha.scaled_dot_product_attention(x, x, x, num_threads=2), expected)
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(compute)
        _interrupt(lambda: _attention(1))
        stop.set()
        assert other.result() > 0
    assert len(handled) == 1


def test_control_c_is_a_keyboard_interrupt() -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)  # that of SIGINT in a program
    try:
        _interrupt(lambda: _attention(2), KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGALRM, before)
