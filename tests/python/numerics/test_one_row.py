"""One row, one answer: its bits are the same however it is computed, and whatever is computed with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from equivalent_calls import (
    CHANGES,
    LAYOUTS,
    Array,
    Call,
    Generator,
    attend,
    attend_over_pages,
    attend_ragged,
    random_call,
)
from matrix import ALL, WIDE, matrix, nightly
from scattered_pages import over_pages
from tolerance import assert_same_bits

from mha_native import MultiHeadAttention, attention_statistics, attention_weights

pytestmark = matrix(dtype=ALL)

SEEDS = range(48)
MIXTURES = 8
STATISTICS = ("entropy", "max_weight", "max_key", "mean_distance")

every_seed = matrix(seeds=nightly([SEEDS[i::3] for i in range(3)], quick=[SEEDS[::3]]))


def _equivalent_calls(call: Call, seed: int, mixtures: int) -> Iterator[tuple[str, Call, Generator]]:
    """Each change by itself, and some of them one after another; on any number of threads."""
    rng = np.random.default_rng((seed, 1))
    mixed = [rng.choice(len(CHANGES), int(rng.integers(2, 6)), replace=False) for _ in range(mixtures)]
    for which in [*np.arange(len(CHANGES))[:, None], *mixed]:
        changed = call.changed(num_threads=int(rng.choice([1, 2, 3, 7])))
        for i in which:
            changed = CHANGES[i](changed, rng)
        yield f"seed {seed}: " + ", ".join(CHANGES[i].__name__ for i in which), changed, rng


def _assert_rows(rows: Array, actual: Array, expected: Array, label: str) -> None:
    """`actual` [B, H, Tq, ...] holds these rows of `expected` [B, H, Tq, ...]. Any NaN is as good as another."""
    ours = rows >= 0
    flat = expected.reshape(np.prod(expected.shape[:3]), *expected.shape[3:])
    left, right = actual[ours], flat[rows[ours]]
    if actual.dtype.kind != "i":
        left[np.isnan(left)] = right[np.isnan(right)] = np.nan
    assert_same_bits(left, right, label=label)


@every_seed
def test_attention(seeds: range, isa: str, dtype: Any) -> None:
    for seed in seeds:
        call = random_call(seed, dtype)
        _, out, lse = attend(call)
        for label, other, rng in _equivalent_calls(call, seed, MIXTURES):
            forms = [("dense", attend(other)), ("ragged", attend_ragged(other, rng))]
            if len(label.split(",")) == 1:
                forms.append(("paged", attend_over_pages(other, rng)))
            for form, (rows, its_out, its_lse) in forms:
                _assert_rows(rows, its_out, out, f"{label}, {form}")
                _assert_rows(rows, its_lse, lse, f"{label}, {form}, lse")


@every_seed
def test_weights_and_statistics(seeds: range, isa: str, dtype: Any) -> None:
    for seed in seeds[::3]:
        call = random_call(seed, dtype)
        # Keys that a change adds or leaves out have no weight, and a score of minus infinity.
        nothing = {"weights": dtype(0), "masked": dtype(-np.inf)}
        expected = {stage: attention_weights(call.query, call.key, stage=stage, **call.options) for stage in nothing}
        of_rows = attention_statistics(call.query, call.key, **call.options)
        for label, other, rng in _equivalent_calls(call, seed, 2):
            arguments: dict[str, Any] = other.options | {"num_threads": other.num_threads}
            lengths = other.options.get("key_lengths", np.full(len(other.key), other.key.shape[2]))
            cache = over_pages(other.key, other.value, lengths, int(rng.choice([64, 128])), rng)
            of_cache = {name: option for name, option in arguments.items() if name != "key_lengths"}
            if "attn_mask" in of_cache:
                of_cache["attn_mask"] = of_cache["attn_mask"][..., : cache.longest]
            for stage, nothing_there in nothing.items():
                actual = attention_weights(other.query, other.key, stage=stage, **arguments)
                keys = min(actual.shape[3], expected[stage].shape[3])
                _assert_rows(other.rows, actual[..., :keys], expected[stage][..., :keys], f"{label}, {stage}")
                assert (actual[..., keys:][other.rows >= 0] == nothing_there).all(), f"{label}, {stage}"
                paged = attention_weights(other.query, cache, stage=stage, **of_cache)
                assert_same_bits(paged, actual[..., : cache.longest], label=f"{label}, {stage}, paged")
            statistics = attention_statistics(other.query, other.key, **arguments)
            for field in STATISTICS:
                _assert_rows(other.rows, getattr(statistics, field), getattr(of_rows, field), f"{label}, {field}")
            for field, ours, theirs in zip(
                statistics._fields, attention_statistics(other.query, cache, **of_cache), statistics, strict=True
            ):
                expected_part = theirs[..., : cache.longest] if field == "received_weight" else theirs
                assert_same_bits(ours, expected_part, label=f"{label}, {field}, paged")


Sequences = list[Array]
LAYERS: dict[str, dict[str, Any]] = {
    "whole-vectors": {"embed_dim": 128, "num_heads": 4, "num_kv_heads": 2},
    "few-heads": {"embed_dim": 64, "num_heads": 1},
    "other-widths": {"embed_dim": 29, "num_heads": 6, "num_kv_heads": 3, "head_dim": 11, "value_head_dim": 13},
}
END = 12
"""Rows at the end of a sequence that are computed by all of LAYER_CALLS: of a long one the first are too many."""


def _end(x: Array) -> range:
    return range(max(len(x) - END, 0), len(x))


def _sequence_by_sequence(layer: MultiHeadAttention, sequences: Sequences, _: Generator) -> Sequences:
    return [layer(x, is_causal=True, num_threads=1) for x in sequences]


def _ragged(layer: MultiHeadAttention, sequences: Sequences, rng: Generator) -> Sequences:
    order = rng.permutation(len(sequences))
    offsets = np.cumsum([0, *(len(sequences[i]) for i in order)])
    out = layer(np.concatenate([sequences[i] for i in order]), cu_seqlens_q=offsets, is_causal=True)
    return [out[offsets[i] : offsets[i + 1]] for i in np.argsort(order)]


def _padding(sequences: Sequences) -> tuple[Array, Array]:
    """[B, T, E], NaN behind each sequence, and how long each is."""
    lengths = np.array([len(x) for x in sequences])
    padded = np.full((len(sequences), lengths.max() + 3, sequences[0].shape[1]), np.nan, sequences[0].dtype)
    for b, x in enumerate(sequences):
        padded[b, : len(x)] = x
    return padded, lengths


def _padded(layer: MultiHeadAttention, sequences: Sequences, rng: Generator) -> Sequences:
    x, lengths = _padding(sequences)
    x = LAYOUTS[rng.integers(3)](x[None])[0]
    out = layer(x, is_causal=True, key_mask=np.arange(x.shape[1]) < lengths[:, None], num_threads=3)
    return [rows[:length] for rows, length in zip(out, lengths, strict=True)]


def _last_rows_as_cross_attention(layer: MultiHeadAttention, sequences: Sequences, _: Generator) -> Sequences:
    """Each row of the end alone sees all keys, which is what a causal mask lets it see."""
    return [np.concatenate([layer(x[t : t + 1], x[: t + 1], num_threads=7) for t in _end(x)]) for x in sequences]


def _over_a_cache(layer: MultiHeadAttention, sequences: Sequences, rng: Generator) -> Sequences:
    """A prompt of the tokens before the end, then a few at a time, in a batch whose sequences grow unevenly."""
    x, lengths = _padding(sequences)
    pages = {"page_size": 64} if rng.random() < 0.5 else {}
    cache = layer.new_cache(len(x) + 1, x.shape[1], **pages)
    order = rng.permutation(len(x) + 1)  # one of them stays empty
    x = np.concatenate([x, np.full_like(x[:1], np.nan)])[order]
    lengths = np.append(lengths, 0)[order]
    prompts = np.maximum(lengths - END, 0)
    layer.append_to(cache, x, new_lengths=prompts)
    parts: list[Sequences] = [[] for _ in lengths]
    while (cache.lengths < lengths).any():
        before = cache.lengths
        width = int(rng.choice([1, 1, 3]))
        new = np.minimum(rng.integers(width + 1, size=len(x)), lengths - before)
        tokens = np.stack([np.resize(x[b, before[b] :], (width, x.shape[2])) for b in range(len(x))])
        out = layer(tokens, cache=cache, new_lengths=new, is_causal=True, num_threads=int(rng.choice([1, 2, 7])))
        for b, count in enumerate(new):
            parts[b].append(out[b, :count])
    return [np.concatenate(parts[b]) for b in np.argsort(order)[:-1]]


LayerCall = Callable[[MultiHeadAttention, Sequences, Generator], Sequences]
LAYER_CALLS: tuple[LayerCall, ...] = (_ragged, _padded, _last_rows_as_cross_attention, _over_a_cache)


@matrix(dtype=WIDE)
@pytest.mark.parametrize("lengths", [(1, 70, 13), (600, 5), (1100, 40, 1030)], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, lengths: tuple[int, ...], isa: str, dtype: Any, rng: Generator) -> None:
    layer = MultiHeadAttention(**LAYERS[name], dtype=dtype, seed=2)
    sequences = [rng.standard_normal((length, layer.embed_dim)).astype(dtype) for length in lengths]
    expected = _sequence_by_sequence(layer, sequences, rng)
    for other in LAYER_CALLS:
        for b, (actual, whole) in enumerate(zip(other(layer, sequences, rng), expected, strict=True)):
            last = [x[-min(END, lengths[b]) :] for x in (actual, whole)]
            assert_same_bits(*last, label=f"{other.__name__}, sequence {b} of {lengths}")
