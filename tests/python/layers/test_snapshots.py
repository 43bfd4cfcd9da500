"""A call computes with one snapshot of the weights, whatever other threads load meanwhile."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mha_native as mha
from mha_native.layers import _module_state, _snapshots

E, T = 16, 3
X = np.random.default_rng(0).standard_normal((T, E), dtype=np.float32)

MODULES: dict[str, Callable[[int], Any]] = {
    "Encoder": lambda seed: mha.Encoder(12, E, 2, 32, seed=seed, final_norm=True),
    "EncoderLayer": lambda seed: mha.EncoderLayer(E, 2, 32, seed=seed),
    "CausalDecoder": lambda seed: mha.CausalDecoder(12, E, 2, 32, seed=seed),
    "Decoder": lambda seed: mha.Decoder(8, E, 2, 32, seed=seed),
    "MultiHeadAttention": lambda seed: mha.MultiHeadAttention(E, 2, seed=seed),
    "FeedForward": lambda seed: mha.FeedForward(E, 32, seed=seed),
    "LayerNorm": lambda seed: _norm(seed),
}


def _norm(seed: int) -> mha.LayerNorm:
    norm = mha.LayerNorm(E)
    norm.load_state_dict({"weight": np.full(E, seed, np.float32), "bias": np.full(E, seed, np.float32)})
    return norm


def _result(module: Any) -> NDArray[Any]:
    return np.asarray(module(X, X) if isinstance(module, mha.Decoder) else module(X))


def _projected(decoder: Any) -> NDArray[Any]:
    return np.stack([cache.keys for cache in decoder.project_memory(X)])


def _flat_state(module: Any) -> NDArray[Any]:
    return np.concatenate([array.ravel() for array in module.state_dict().values()])


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns after every few steps
    yield
    sys.setswitchinterval(before)


def _check_while_loading(make: Callable[[int], Any], read: Callable[[Any], NDArray[Any]], seconds: float) -> None:
    states = [make(seed).state_dict() for seed in (1, 2)]
    allowed = {read(make(seed)).tobytes() for seed in (1, 2)}
    module, end, failures = make(1), time.monotonic() + seconds, []

    def load() -> None:
        while time.monotonic() < end and not failures:
            for state in states:
                module.load_state_dict(state)

    def call() -> None:
        while time.monotonic() < end and not failures:
            if read(module).tobytes() not in allowed:
                failures.append("a mixture of weights")

    threads = [threading.Thread(target=target) for target in (load, call, call)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("name", MODULES)
def test_calls_while_weights_are_loaded(name: str) -> None:
    _check_while_loading(MODULES[name], _result, 0.3)


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("read", [_projected, _flat_state, lambda m: _flat_state(m.astype("float64"))])
def test_what_reads_all_weights_while_they_are_loaded(read: Callable[[Any], NDArray[Any]]) -> None:
    _check_while_loading(MODULES["Decoder"], read, 0.3)


def test_a_call_in_the_middle_of_a_change_waits_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another thread calls when half of the weights have been replaced: it must not find them.
    encoder, expected = MODULES["Encoder"](1), _result(MODULES["Encoder"](2))
    results: list[NDArray[Any]] = []
    caller = threading.Thread(target=lambda: results.append(_result(encoder)))

    def halting(swaps: Any, maxlen: int) -> None:
        for i, _ in enumerate(swaps):
            if i == 5:
                caller.start()
                caller.join(timeout=0.2)

    monkeypatch.setattr(_module_state, "deque", halting)
    encoder.load_state_dict(MODULES["Encoder"](2).state_dict())
    caller.join()
    np.testing.assert_array_equal(results[0], expected)


def test_a_part_that_changes_counts_in_all_that_it_is_a_part_of() -> None:
    encoder, other = MODULES["Encoder"](1), MODULES["Encoder"](2)
    before, of_layer = _result(encoder), _result(encoder.layers[2])
    encoder.layers[2].self_attn.load_state_dict(other.layers[2].self_attn.state_dict())
    assert not np.array_equal(_result(encoder), before)
    assert not np.array_equal(_result(encoder.layers[2]), of_layer)
    changed = _result(encoder)
    encoder.layers[0].norm1 = _norm(3)
    assert not np.array_equal(_result(encoder), changed)
    encoder.load_state_dict(other.state_dict())
    np.testing.assert_array_equal(_result(encoder), _result(other))
    encoder.layers[1].norm_first = True
    assert not np.array_equal(_result(encoder), _result(other))


def test_replaced_weights_are_freed() -> None:
    encoder = MODULES["Encoder"](1)
    _result(encoder)
    old = weakref.ref(_snapshots._composed[encoder])
    encoder.load_state_dict(MODULES["Encoder"](2).state_dict())
    gc.collect()
    assert old() is None


def test_modules_are_freed() -> None:
    encoder = MODULES["Encoder"](1)
    _result(encoder)
    gone = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_can_call_though_a_thread_of_its_parent_was_loading() -> None:
    encoder, expected = MODULES["Encoder"](1), _result(MODULES["Encoder"](1))

    def fork() -> int:
        if child := os.fork():
            return child
        signal.alarm(20)  # ends it if it hangs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the one about forked processes
            os._exit(not np.array_equal(_result(encoder), expected))

    with _snapshots.change(), ThreadPoolExecutor(1) as pool:
        child = pool.submit(fork).result()
    assert os.waitpid(child, 0)[1] == 0
