"""Encoder layers and encoders against the oracle, for every option of constructor and call."""

from __future__ import annotations

import functools
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import transformer_tolerance
from element_types import accumulator_of
from matrix import ALL, matrix, nightly
from random_layers import FEW_STACKS, STACKS, call_options, encoder, oracle_options, rows, views
from tolerance import assert_close, assert_same_bits

from mha_native import Encoder, KVCache, reference

pytestmark = matrix(dtype=ALL)

every_stack = matrix(name=nightly(STACKS, quick=FEW_STACKS))


def _options(which: str, model: Encoder, batch: int, length: int) -> dict[str, Any]:
    return call_options(which, model.layers[0].self_attn.num_heads, model.dtype, batch, length, length)


MASKS = ["causal", "boolean", "additive", "key mask", "all", "lengths", "offsets", "window", "scores"]


@functools.cache
def _expected(name: str, mask: str, shape: tuple[int, int], dtype: Any) -> Any:
    model = encoder(name, dtype)
    x = rows((*shape, model.embed_dim), dtype)
    return transformer_tolerance.encoder(model, x, _options(mask, model, *shape))


def _check(name: str, mask: str, shape: tuple[int, int], dtype: Any, threads: int) -> None:
    model, (expected, expected_weights) = encoder(name, dtype), _expected(name, mask, shape, dtype)
    x, options = rows((*shape, model.embed_dim), dtype), _options(mask, model, *shape)
    buffer = np.full(x.shape, np.nan, dtype)
    out, weights = model(x, out=buffer, need_weights=True, num_threads=threads, **options)
    assert out is buffer
    assert_close(out, expected.out, expected.bound, label=f"{name} {mask}")
    assert len(weights) == len(model.layers)
    for i, (of_layer, near) in enumerate(zip(weights, expected_weights, strict=True)):
        assert_close(of_layer, near.out, near.bound, label=f"{name} {mask} weights of layer {i}")
    assert_same_bits(model(x, num_threads=threads, **options), out, label="without weights")


@every_stack
@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (3, 40), (1, 130)], ids=str)
def test_against_the_oracle(name: str, shape: tuple[int, int], isa: str, dtype: Any, num_threads: int) -> None:
    _check(name, "none", shape, dtype, num_threads)


@matrix(mask=nightly(MASKS, quick=("causal", "additive", "key mask", "all", "scores")))
@pytest.mark.parametrize("name", ["usual", "pre-LN", "grouped"])
def test_masks(name: str, mask: str, isa: str, dtype: Any) -> None:
    _check(name, mask, (2, 37), dtype, 2)


@every_stack
@pytest.mark.parametrize("mask", ["none", "causal", "key mask"])
def test_the_bounds_are_around_the_reference(name: str, mask: str, dtype: Any) -> None:
    # transformer_tolerance goes step by step; reference is what users read.
    model = encoder(name, dtype)
    x = rows((2, 9, model.embed_dim), dtype)
    options = _options(mask, model, 2, 9)
    whole = reference.encoder(x, model.state_dict(), **oracle_options(model), **options)
    np.testing.assert_allclose(_expected(name, mask, (2, 9), dtype)[0].out, whole, rtol=0, atol=1e-11)


@every_stack
def test_a_layer_by_itself(name: str, isa: str, dtype: Any) -> None:
    model = encoder(name, dtype)
    layer, x = model.layers[0], rows((2, 19, model.embed_dim), dtype)
    expected, (expected_weights,) = transformer_tolerance.encoder(layer, x, {"is_causal": True})
    out, weights = layer(x, is_causal=True, need_weights=True)
    assert_close(out, expected.out, expected.bound, label=name)
    assert_close(weights, expected_weights.out, expected_weights.bound, label=f"{name} weights")
    y = x
    for each in model.layers:
        y = each(y, is_causal=True)
    y = y if model.norm is None else model.norm(y)
    assert_same_bits(model(x, is_causal=True), y, label="layer by layer")


def test_the_parts_count_when_they_are_replaced(isa: str) -> None:
    model = Encoder(2, 16, 2, 24, seed=0)
    x = rows((3, 16), np.float32)
    before, state = model(x), model.layers[1].feed_forward.state_dict()
    model.layers[1].feed_forward.load_state_dict({name: 2 * array for name, array in state.items()})
    assert not np.array_equal(model(x), before)
    expected = reference.encoder(x, model.state_dict(), 2)
    np.testing.assert_allclose(model(x), expected, atol=1e-4)


@every_stack
def test_a_sequence_by_itself(name: str, isa: str, dtype: Any) -> None:
    model = encoder(name, dtype)
    x = rows((5, 33, model.embed_dim), dtype)
    together = model(x, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(model(x, num_threads=threads), together, label=f"{threads} threads")
    for b in range(5):
        assert_same_bits(model(x[b]), together[b], label=f"b={b}")
    assert_same_bits(np.concatenate([model(x[:2]), model(x[2:])]), together)


@every_stack
def test_rows_by_themselves(name: str, isa: str, dtype: Any) -> None:
    # A causal row does not depend on what comes after it.
    model = encoder(name, dtype)
    x = rows((1, 70, model.embed_dim), dtype)
    together = model(x, is_causal=True)
    for length in (1, 2, 15, 64, 69):
        assert_same_bits(model(x[:, :length], is_causal=True), together[:, :length], label=f"{length}")


@every_stack
@matrix(masked=nightly([False, True], quick=[True]))
def test_ragged(name: str, masked: bool, isa: str, dtype: Any) -> None:
    model, lengths, num_threads = encoder(name, dtype), np.array([5, 1, 40, 0, 17, 64]), 3 if masked else 2
    cu = np.concatenate([[0], np.cumsum(lengths)])
    x = rows((cu[-1], model.embed_dim), dtype)
    heads, rng = model.layers[0].self_attn.num_heads, np.random.default_rng(2)
    key_mask, slopes = rng.random(cu[-1]) < 0.7, rng.random(heads).astype(accumulator_of(dtype))
    options: dict[str, Any] = {}
    if masked:
        options = {"key_mask": key_mask, "alibi_slopes": slopes, "is_causal": True, "window": (20, -1)}
    buffer = np.full(x.shape, np.nan, dtype)
    out = model(x, cu_seqlens=cu, out=buffer, num_threads=num_threads, **options)
    assert out is buffer
    padded = np.full((len(lengths), 70, model.embed_dim), np.nan, dtype)  # what is behind a sequence is not read
    admitted = np.zeros((len(lengths), 70), bool)
    for b, (first, last) in enumerate(pairwise(cu)):
        mine = options | ({"key_mask": key_mask[first:last]} if masked else {})
        assert_same_bits(out[first:last], model(x[first:last], **mine), label=f"sequence {b}")
        padded[b, : last - first], admitted[b, : last - first] = x[first:last], key_mask[first:last]
    dense = model(padded, key_lengths=lengths, **(options | ({"key_mask": admitted} if masked else {})))
    for b, (first, last) in enumerate(pairwise(cu)):
        assert_same_bits(dense[b, : last - first], out[first:last], label=f"padded sequence {b}")
    layer = model.layers[0]
    assert_same_bits(layer(x[cu[2] : cu[3]]), layer(x, cu_seqlens=cu.astype(np.int32))[cu[2] : cu[3]])


@every_stack
def test_steps_over_caches(name: str, isa: str, dtype: Any, num_threads: int) -> None:
    # A decoder without memory: a prompt, a few tokens at once, then one by one.
    model = encoder(name, dtype)
    x = rows((3, 30, model.embed_dim), dtype)
    whole, weights = model(x, is_causal=True, need_weights=True)
    caches = model.new_caches(3, 30)
    assert [type(cache) for cache in caches] == [KVCache] * len(model.layers)
    for first, last in pairwise([0, 17, 20, *range(21, 31)]):
        out = np.full((3, last - first, model.embed_dim), np.nan, dtype)
        result, some = model(
            x[:, first:last], is_causal=True, caches=caches, need_weights=True, out=out, num_threads=num_threads
        )
        assert result is out
        assert_same_bits(out, whole[:, first:last], label=f"{first}:{last}")
        for i, of_layer in enumerate(some):
            assert_same_bits(of_layer, weights[i][:, :, first:last, :last], label=f"weights of layer {i}")
    assert [cache.lengths.tolist() for cache in caches] == [[30] * 3] * len(model.layers)


def test_steps_of_one_layer(isa: str, dtype: Any) -> None:
    layer = encoder("awkward", dtype).layers[1]
    x = rows((2, 9, 29), dtype)
    cache = layer.new_cache(2, 9)
    steps = [layer(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(9)]
    assert_same_bits(np.concatenate(steps, axis=1), layer(x, is_causal=True))


@pytest.mark.parametrize("name", ["usual", "pre-LN"])
def test_prompts_of_different_length(name: str, isa: str, dtype: Any) -> None:
    model, lengths = encoder(name, dtype), np.array([11, 4, 0])
    x = rows((3, 16, model.embed_dim), dtype)
    caches = model.new_caches(3, 16)
    prompts = np.full((3, 11, model.embed_dim), np.nan, dtype)
    for b, length in enumerate(lengths):
        prompts[b, :length] = x[b, :length]
    out = model(prompts, is_causal=True, caches=caches, new_lengths=lengths)
    for b, length in enumerate(lengths):
        assert_same_bits(out[b, :length], model(x[b, :length], is_causal=True), label=f"prompt {b}")
    for step in range(5):
        rows_of_step = np.stack([x[b, length + step] for b, length in enumerate(lengths)])[:, None]
        out = model(rows_of_step, is_causal=True, caches=caches)
        for b, length in enumerate(lengths):
            alone = model(x[b, : length + step + 1], is_causal=True)
            assert_same_bits(out[b], alone[-1:], label=f"step {step}, sequence {b}")


@pytest.mark.parametrize("name", ["usual", "awkward", "pre-LN"])
def test_views_of_memory(name: str, isa: str, dtype: Any) -> None:
    model = encoder(name, dtype)
    x = rows((2, 20, model.embed_dim), dtype)
    expected = model(x)
    for view in views(x):
        assert_same_bits(model(view), expected)
    for memory, out in (
        (wide := np.full((2, 20, 2 * model.embed_dim), np.nan, dtype), wide[..., 1::2]),
        (turned := np.full((model.embed_dim, 20, 2), np.nan, dtype), turned.T),
        (longer := np.full((2, 25, model.embed_dim), np.nan, dtype), longer[:, 22:2:-1]),
    ):
        assert model(x, out=out) is out
        assert_same_bits(out.copy(), expected)
        assert np.count_nonzero(np.isnan(memory)) == memory.size - out.size


@every_stack
def test_in_place(name: str, isa: str, dtype: Any, num_threads: int) -> None:
    model = encoder(name, dtype)
    x = rows((2, 40, model.embed_dim), dtype)
    expected = model(x, is_causal=True)
    assert model(x, is_causal=True, out=x, num_threads=num_threads) is x
    assert_same_bits(x, expected)


@matrix(poison=nightly([np.nan, np.inf, -np.inf], quick=[np.nan]))
@pytest.mark.parametrize("name", ["usual", "pre-LN"])
def test_padding_holds_anything(name: str, poison: float, isa: str, dtype: Any) -> None:
    model, lengths = encoder(name, dtype), np.array([30, 11, 1])
    x = rows((3, 30, model.embed_dim), dtype)
    clean = model(x, key_lengths=lengths)
    is_token = np.arange(30) < lengths[:, None]
    x[~is_token] = poison
    for options in ({"key_lengths": lengths}, {"key_mask": is_token}):
        out = model(x, **options)
        assert_same_bits(out[is_token], clean[is_token])
        assert np.isnan(out[~is_token]).all(), "a row depends on itself"


def test_a_nan_token_reaches_the_rows_that_see_it(isa: str, dtype: Any) -> None:
    model = encoder("usual", dtype)
    x = rows((2, 40, 64), dtype)
    clean = model(x, is_causal=True)
    x[1, 25] = np.nan
    out = model(x, is_causal=True)
    assert np.isnan(out[1, 25:]).all()
    assert_same_bits(out[0], clean[0])
    assert_same_bits(out[1, :25], clean[1, :25])


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)], ids=str)
def test_empty_sizes(shape: tuple[int, int], dtype: Any) -> None:
    model = encoder("usual", dtype)
    out, weights = model(np.ones((*shape, 64), dtype), need_weights=True)
    assert out.shape == (*shape, 64)
    assert [of_layer.shape for of_layer in weights] == [(shape[0], 4, shape[1], shape[1])] * 2


def test_without_a_batch_axis(isa: str, dtype: Any) -> None:
    model = encoder("awkward", dtype)
    x = rows((1, 8, 29), dtype)
    out, weights = model(x[0], need_weights=True)
    batched, batched_weights = model(x, need_weights=True)
    assert_same_bits(out, batched[0])
    for mine, of_batch in zip(weights, batched_weights, strict=True):
        assert_same_bits(mine, of_batch[0])
    assert_same_bits(model.layers[0](x[0], need_weights=True)[1], weights[0])


F32 = np.float32


def test_calls_from_several_threads(isa: str) -> None:
    model = encoder("one wide", F32)
    x = rows((2, 70, 300), F32)
    expected, results = model(x), {}

    def run(name: int) -> None:
        results[name] = [model(x, num_threads=1 + name % 2) for _ in range(5)]

    workers = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(results) == [0, 1, 2, 3]
    for out in (out for of_thread in results.values() for out in of_thread):
        assert_same_bits(out, expected)


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    model, x = encoder("usual", F32), rows((2, 7, 64), F32)
    out, weights = model(torch.from_numpy(x), need_weights=True, key_mask=torch.ones(2, 7, dtype=torch.bool))
    assert {type(tensor) for tensor in (out, *weights)} == {torch.Tensor}
    assert_same_bits(out.numpy(), model(x))
    target = torch.empty(2, 7, 64)
    assert model(torch.from_numpy(x), out=target) is target
    assert_same_bits(target.numpy(), model(x))
