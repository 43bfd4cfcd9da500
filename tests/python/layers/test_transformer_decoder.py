"""Decoder layers and decoders against the oracle, at once and step by step over caches."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import transformer_tolerance
from matrix import ALL, matrix, nightly
from random_layers import FEW_STACKS, STACKS, call_options, decoder, oracle_options, rows, views
from tolerance import assert_close, assert_same_bits

from mha_native import Decoder, reference

pytestmark = matrix(dtype=ALL)

every_stack = matrix(name=nightly(STACKS, quick=FEW_STACKS))
MEMORY_DIMS = {"usual": None, "awkward": 23, "pre-LN": None, "grouped": 70, "one feature": 5}


def _model(name: str, dtype: Any) -> Decoder:
    return decoder(name, dtype, MEMORY_DIMS.get(name))


def _inputs(model: Decoder, batch: int, length: int, memory_length: int) -> tuple[Any, Any]:
    return (
        rows((batch, length, model.embed_dim), model.dtype),
        rows((batch, memory_length, model.memory_dim), model.dtype, seed=8),
    )


def _masks(which: str, model: Decoder, batch: int, length: int, memory_length: int) -> tuple[Any, Any]:
    """Options of the self-attention, and of the attention to the memory as `MultiHeadAttention` calls them."""
    heads, rng = model.layers[0].self_attn.num_heads, np.random.default_rng(6)
    additive = rng.standard_normal((heads, length, memory_length)).astype(model.dtype)
    additive[rng.random(additive.shape) < 0.2] = -np.inf
    memory_mask = rng.random((batch, memory_length)) < 0.6
    memory_mask[0] = False
    return {
        "none": ({}, {}),
        "not causal": ({"is_causal": False}, {}),
        "key masks": ({"key_mask": rng.random((batch, length)) < 0.7}, {"key_mask": memory_mask}),
        "lengths": (
            {"key_lengths": np.array([length, length // 2][:batch])},
            {"key_lengths": np.array([0, memory_length // 3][:batch])},
        ),
        "boolean": (
            {"attn_mask": rng.random((batch, 1, length, length)) < 0.7},
            {"attn_mask": rng.random((length, memory_length)) < 0.7},
        ),
        "additive": ({"window": (9, 0)}, {"attn_mask": additive, "key_mask": memory_mask}),
        "scores": (
            call_options("scores", heads, model.dtype, batch, length, length),
            {"scale": 1.3},
        ),
    }[which]


MASKS = ["not causal", "key masks", "lengths", "boolean", "additive", "scores"]
QUICK_MASKS = ("additive", "scores")
OUR_NAMES = {
    "attn_mask": "memory_attn_mask",
    "key_mask": "memory_key_mask",
    "key_lengths": "memory_lengths",
    "scale": "memory_scale",
}


def _call_options(of_self: dict[str, Any], of_memory: dict[str, Any]) -> dict[str, Any]:
    return of_self | {OUR_NAMES[name]: option for name, option in of_memory.items()}


@functools.cache
def _expected(name: str, mask: str, sizes: tuple[int, int, int], dtype: Any) -> Any:
    model = _model(name, dtype)
    of_self, of_memory = _masks(mask, model, *sizes)
    return transformer_tolerance.decoder(model, *_inputs(model, *sizes), {"is_causal": True} | of_self, of_memory)


def _check(name: str, mask: str, sizes: tuple[int, int, int], dtype: Any, threads: int) -> None:
    model, expected = _model(name, dtype), _expected(name, mask, sizes, dtype)
    x, memory = _inputs(model, *sizes)
    options = _call_options(*_masks(mask, model, *sizes))
    buffer = np.full(x.shape, np.nan, dtype)
    assert model(x, memory, out=buffer, num_threads=threads, **options) is buffer
    assert_close(buffer, expected.out, expected.bound, label=f"{name} {mask}")
    lengths = options.pop("memory_lengths", None)
    projected = model.project_memory(memory, memory_lengths=lengths, num_threads=threads)
    out = model(x, memory_caches=projected, num_threads=threads, **options)
    assert_same_bits(out, buffer, label="memory projected before")
    in_caches = [sizes[2]] * sizes[0] if lengths is None else lengths.tolist()
    assert [cache.lengths.tolist() for cache in projected] == [in_caches] * len(model.layers)


@every_stack
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 9, 5), (3, 5, 40), (1, 130, 70), (2, 3, 0)], ids=str)
def test_against_the_oracle(name: str, sizes: tuple[int, int, int], isa: str, dtype: Any, num_threads: int) -> None:
    _check(name, "none", sizes, dtype, num_threads)


@matrix(mask=nightly(MASKS, quick=QUICK_MASKS))
@pytest.mark.parametrize("name", ["usual", "pre-LN", "grouped"])
def test_masks(name: str, mask: str, isa: str, dtype: Any) -> None:
    _check(name, mask, (2, 21, 37), dtype, 2)


@matrix(mask=nightly(["none", *MASKS], quick=("none", *QUICK_MASKS)))
@matrix(name=nightly(["awkward", "pre-LN", "large eps"], quick=FEW_STACKS))
def test_the_bounds_are_around_the_reference(name: str, mask: str, dtype: Any) -> None:
    model = _model(name, dtype)
    options = _call_options(*_masks(mask, model, 2, 9, 14))
    inputs = _inputs(model, 2, 9, 14)
    whole = reference.decoder(*inputs, model.state_dict(), **oracle_options(model), **options)
    np.testing.assert_allclose(_expected(name, mask, (2, 9, 14), dtype).out, whole, rtol=0, atol=1e-11)


@every_stack
def test_layer_by_layer(name: str, isa: str, dtype: Any) -> None:
    model = _model(name, dtype)
    x, memory = _inputs(model, 2, 19, 11)
    y = x
    for layer in model.layers:
        y = layer(y, memory)
    y = y if model.norm is None else model.norm(y)
    assert_same_bits(model(x, memory), y)
    layer, (z, seen) = model.layers[0], (x[:, :1], model.layers[0].project_memory(memory))
    assert_same_bits(layer(z, memory_cache=seen), layer(x, memory)[:, :1])


@every_stack
def test_a_sequence_by_itself(name: str, isa: str, dtype: Any) -> None:
    model = _model(name, dtype)
    x, memory = _inputs(model, 4, 33, 20)
    together = model(x, memory, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(model(x, memory, num_threads=threads), together, label=f"{threads} threads")
    for b in range(4):
        assert_same_bits(model(x[b], memory[b]), together[b], label=f"b={b}")
    for length in (1, 2, 17):
        assert_same_bits(model(x[:, :length], memory), together[:, :length], label=f"{length} rows")


@every_stack
def test_steps_over_caches(name: str, isa: str, dtype: Any, num_threads: int) -> None:
    model = _model(name, dtype)
    x, memory = _inputs(model, 3, 30, 13)
    whole = model(x, memory)
    caches, memory_caches = model.new_caches(3, 30), model.project_memory(memory)
    for first, last in pairwise([0, 17, 20, *range(21, 31)]):
        out = np.full((3, last - first, model.embed_dim), np.nan, dtype)
        kind = {"memory_caches": memory_caches} if first % 2 else {"memory": memory}
        assert model(x[:, first:last], caches=caches, out=out, num_threads=num_threads, **kind) is out
        assert_same_bits(out, whole[:, first:last], label=f"{first}:{last}")
    assert [cache.lengths.tolist() for cache in caches] == [[30] * 3] * len(model.layers)
    assert [cache.lengths.tolist() for cache in memory_caches] == [[13] * 3] * len(model.layers)


def test_steps_of_one_layer(isa: str, dtype: Any) -> None:
    model = _model("awkward", dtype)
    layer, (x, memory) = model.layers[1], _inputs(model, 2, 9, 4)
    cache, memory_cache = layer.new_cache(2, 9), layer.project_memory(memory)
    steps = [layer(x[:, t : t + 1], cache=cache, memory_cache=memory_cache) for t in range(9)]
    assert_same_bits(np.concatenate(steps, axis=1), layer(x, memory))


@pytest.mark.parametrize("name", ["usual", "pre-LN", "grouped"])
def test_sequences_of_different_length(name: str, isa: str, dtype: Any) -> None:
    model, lengths, memory_lengths = _model(name, dtype), np.array([11, 4, 0]), np.array([3, 20, 9])
    x, memory = _inputs(model, 3, 16, 20)
    prompts = np.full((3, 11, model.embed_dim), np.nan, dtype)
    for b in range(3):
        prompts[b, : lengths[b]] = x[b, : lengths[b]]
        memory[b, memory_lengths[b] :] = np.nan
    caches, memory_caches = model.new_caches(3, 16), model.project_memory(memory, memory_lengths=memory_lengths)
    out = model(prompts, caches=caches, memory_caches=memory_caches, new_lengths=lengths)
    again = model(prompts, memory, caches=model.new_caches(3, 16), new_lengths=lengths, memory_lengths=memory_lengths)
    for b, length in enumerate(lengths):
        alone = model(x[b, :length], memory[b, : memory_lengths[b]])
        assert_same_bits(out[b, :length], alone, label=f"prompt {b}")
        assert_same_bits(again[b, :length], alone, label=f"prompt {b}, memory given")
    for step in range(5):
        rows_of_step = np.stack([x[b, length + step] for b, length in enumerate(lengths)])[:, None]
        out = model(rows_of_step, caches=caches, memory_caches=memory_caches)
        for b, length in enumerate(lengths):
            alone = model(x[b, : length + step + 1], memory[b, : memory_lengths[b]])
            assert_same_bits(out[b], alone[-1:], label=f"step {step}, sequence {b}")


@pytest.mark.parametrize("name", ["usual", "pre-LN", "grouped"])
@pytest.mark.parametrize("paged", [False, True])
def test_ragged_batches_over_memories(name: str, paged: bool, isa: str, dtype: Any, num_threads: int) -> None:
    """Sequences of any lengths; neighbours that read one memory; a memory that nobody reads; slots in any order."""
    model, memory_lengths = _model(name, dtype), np.array([3, 20, 9, 0])
    x, memory = _inputs(model, 5, 16, 20)
    memory = np.concatenate([memory[:4]])
    memories = model.project_memory(memory, memory_lengths=memory_lengths)
    reads, slots = np.array([1, 1, 1, 3, 0]), np.array([4, 0, 3, 1, 2])
    caches = model.new_caches(5, 64, page_size=64) if paged else model.new_caches(5, 16)
    read = np.zeros(5, np.int64)
    for counts in ([5, 1, 0, 2, 3], [1, 1, 1, 1, 1], [3, 0, 9, 1, 2]):
        new = np.concatenate([x[b, read[b] : read[b] + count] for b, count in enumerate(counts)])
        cu_seqlens = np.concatenate([[0], np.cumsum(counts)])
        options: Any = {"cu_seqlens": cu_seqlens, "memory_caches": memories, "memory_sequences": reads}
        out = model(new, caches=caches, sequences=slots, num_threads=num_threads, **options)
        for b, count in enumerate(counts):
            alone = model(x[b, : read[b] + count], memory[reads[b], : memory_lengths[reads[b]]])
            assert_same_bits(out[cu_seqlens[b] : cu_seqlens[b + 1]], alone[read[b] :], label=f"sequence {b}")
        read += counts
    whole = np.concatenate([x[0, :7], x[1, :4], x[2, :0], x[3, :5]])
    ragged = model(whole, cu_seqlens=np.array([0, 7, 11, 11, 16]), memory_caches=memories, num_threads=num_threads)
    for b, (first, last) in enumerate([(0, 7), (7, 11), (11, 11), (11, 16)]):
        alone = model(x[b, : last - first], memory[b, : memory_lengths[b]])
        assert_same_bits(ragged[first:last], alone, label=f"sequence {b}, without caches")
    layer = model.layers[0]
    one = layer(whole, cu_seqlens=np.array([0, 9, 16]), memory_cache=memories[0], memory_sequences=np.array([2, 0]))
    assert_same_bits(one[:9], layer(whole[:9], memory[2, :9]))


@pytest.mark.parametrize("name", ["usual", "awkward", "pre-LN"])
def test_views_of_memory(name: str, isa: str, dtype: Any) -> None:
    model = _model(name, dtype)
    x, memory = _inputs(model, 2, 20, 12)
    expected = model(x, memory)
    for view, memory_view in zip(views(x), views(memory), strict=True):
        assert_same_bits(model(view, memory_view), expected)
        assert_same_bits(model(view, memory_caches=model.project_memory(memory_view)), expected)
    for buffer, out in (
        (wide := np.full((2, 20, 2 * model.embed_dim), np.nan, dtype), wide[..., 1::2]),
        (turned := np.full((model.embed_dim, 20, 2), np.nan, dtype), turned.T),
    ):
        assert model(x, memory, out=out) is out
        assert_same_bits(out.copy(), expected)
        assert np.count_nonzero(np.isnan(buffer)) == buffer.size - out.size


@every_stack
def test_in_place(name: str, isa: str, dtype: Any, num_threads: int) -> None:
    model = _model(name, dtype)
    x, memory = _inputs(model, 2, 40, 9)
    expected = model(x, memory)
    assert model(x, memory, out=x, num_threads=num_threads) is x
    assert_same_bits(x, expected)


@matrix(poison=nightly([np.nan, np.inf], quick=[np.nan]))
def test_hidden_memory_holds_anything(poison: float, isa: str, dtype: Any) -> None:
    model, lengths = _model("pre-LN", dtype), np.array([30, 11, 0])
    x, memory = _inputs(model, 3, 8, 30)
    clean = model(x, memory, memory_lengths=lengths)
    is_token = np.arange(30) < lengths[:, None]
    memory[~is_token] = poison
    assert_same_bits(model(x, memory, memory_lengths=lengths), clean)
    assert_same_bits(model(x, memory, memory_key_mask=is_token), clean)
    assert_same_bits(model(x, memory, memory_attn_mask=is_token[:, None, None]), clean)
    caches = model.project_memory(memory)
    assert_same_bits(model(x, memory_caches=caches, memory_key_mask=is_token), clean)


@pytest.mark.parametrize("sizes", [(0, 5, 5), (2, 0, 5), (0, 0, 0)], ids=str)
def test_empty_sizes(sizes: tuple[int, int, int], dtype: Any) -> None:
    model = _model("usual", dtype)
    x, memory = _inputs(model, *sizes)
    assert model(x, memory).shape == x.shape
    assert model(x, memory_caches=model.project_memory(memory)).shape == x.shape


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    model = _model("usual", np.float32)
    x, memory = _inputs(model, 2, 7, 5)
    projected = model.project_memory(torch.from_numpy(memory), memory_lengths=torch.tensor([5, 3]))
    out = model(torch.from_numpy(x), memory_caches=projected)
    assert type(out) is torch.Tensor
    assert_same_bits(out.numpy(), model(x, memory, memory_lengths=np.array([5, 3])))
