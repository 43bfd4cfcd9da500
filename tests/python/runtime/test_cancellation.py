"""Calls that another thread ends by a token: soon, with nothing half done, and the next call is right."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest
from tolerance import assert_same_bits

import mha_native as mha

SOON = 1.0  # seconds of processors, which others do not lengthen; each long call below takes several times as many


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def long_attention(x: np.ndarray, num_threads: int) -> object:
    return mha.scaled_dot_product_attention(x, x, x, num_threads=num_threads)


def long_statistics(x: np.ndarray, num_threads: int) -> object:
    return mha.attention_statistics(x, x, num_threads=num_threads)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("call", [long_attention, long_statistics])
def test_a_long_call_ends(call: Callable[[np.ndarray, int], object], num_threads: int) -> None:
    token, cancelled = mha.CancellationToken(), []
    x = rows(1, 1, 150_000, 64)

    def cancel() -> None:
        cancelled.append(time.process_time())
        token.cancel()

    timer = threading.Timer(0.1, cancel)
    timer.start()
    with token, pytest.raises(CancelledError, match=r"^mha_native: the call was cancelled$"):
        call(x, num_threads)
    assert time.process_time() - cancelled[0] < SOON


def test_calls_after_cancel_do_nothing_and_those_outside_are_whole() -> None:
    x = rows(1, 2, 300, 64)
    expected = mha.scaled_dot_product_attention(x, x, x)
    layer = mha.MultiHeadAttention(32, 2, seed=1)
    kept = layer.new_cache(1, 8)
    token = mha.CancellationToken()
    assert (token.is_cancelled, repr(token)) == (False, "CancellationToken(not cancelled)")
    with token:
        assert_same_bits(mha.scaled_dot_product_attention(x, x, x), expected)
        token.cancel()
        token.cancel()
        assert token.is_cancelled
        assert repr(token) == "CancellationToken(cancelled)"
        for call in (
            lambda: mha.scaled_dot_product_attention(x, x, x),
            lambda: mha.scaled_dot_product_attention(x[:, :, :1], x[:, :, :1], x[:, :, :1], num_threads=1),
            lambda: layer(rows(1, 4, 32), cache=kept),
        ):
            with pytest.raises(CancelledError):
                call()
        with ThreadPoolExecutor(1) as pool:  # the block is of this thread
            assert_same_bits(pool.submit(mha.scaled_dot_product_attention, x, x, x).result(), expected)
    assert_same_bits(mha.scaled_dot_product_attention(x, x, x), expected)
    assert kept.lengths.tolist() == [0]


def test_blocks_nest_and_end_in_their_thread() -> None:
    x = rows(1, 1, 4, 8)
    outer, inner = mha.CancellationToken(), mha.CancellationToken()

    def is_ended() -> bool:
        try:
            mha.scaled_dot_product_attention(x, x, x)
        except CancelledError:
            return True
        return False

    with outer:
        with inner, inner:
            assert not is_ended()
            outer.cancel()
            assert is_ended()
        with mha.CancellationToken():
            assert is_ended()
    assert not is_ended()
    inner.cancel()
    first, second = mha.CancellationToken(), inner  # blocks that overlap, as those of two generators
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_ended()
    second.__exit__(None, None, None)
    assert not is_ended()
    with pytest.raises(RuntimeError, match=r"^CancellationToken: a block must end in the thread in which it began"):
        inner.__exit__(None, None, None)
    with ThreadPoolExecutor(1) as pool, inner:
        with pytest.raises(RuntimeError, match=r"^CancellationToken: a block must end in the thread"):
            pool.submit(inner.__exit__, None, None, None).result()
        assert is_ended()
    assert not is_ended()


@pytest.mark.parametrize("seed", range(4))
def test_a_call_is_whole_or_cancelled(seed: int) -> None:
    """250 calls each, cancelled at a random time: before, within and after them."""
    rng = np.random.default_rng(seed)
    x = rows(1, 4, 200, 32)
    expected = mha.scaled_dot_product_attention(x, x, x, num_threads=1)
    given: list[mha.CancellationToken] = []
    turns = threading.Barrier(2)

    def cancel() -> None:
        for wait in rng.uniform(0, 1e-3, 250):
            turns.wait()
            end = time.perf_counter() + wait
            while time.perf_counter() < end:
                pass
            given[-1].cancel()
            turns.wait()

    other = threading.Thread(target=cancel)
    other.start()
    for i in range(250):
        token = mha.CancellationToken()
        given.append(token)
        turns.wait()
        try:
            with token:
                found = mha.scaled_dot_product_attention(x, x, x, num_threads=1 + i % 2)
            assert_same_bits(found, expected)
        except CancelledError:
            assert token.is_cancelled
        turns.wait()
    other.join()
