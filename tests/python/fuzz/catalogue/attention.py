"""Attention functions."""

from __future__ import annotations

import numpy as np

import mha_native as mha

from .entry import (
    BATCH,
    HEADS,
    KEYS,
    KV_HEADS,
    QUERIES,
    VALUE_WIDTH,
    WIDTH,
    Arguments,
    Generator,
    Made,
    attention_inputs,
    dtype_of_call,
    entry,
    normal,
    score_options,
    scores_dtype,
    some,
)


@entry("scaled_dot_product_attention")
def _attention(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    more = {
        "attn_mask": normal(rng, HEADS, QUERIES, KEYS, dtype=dtype) if rng.random() < 0.5 else rng.random(KEYS) < 0.7,
        "key_mask": rng.random((BATCH, KEYS)) < 0.7,
        "return_lse": True,
        "out": np.zeros((BATCH, HEADS, QUERIES, VALUE_WIDTH), dtype),
        "num_threads": 2,
    }
    return mha.scaled_dot_product_attention, attention_inputs(rng, dtype) | score_options(rng, dtype) | some(rng, more)


@entry("scaled_dot_product_attention_varlen")
def _varlen(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = {
        "query": normal(rng, 5, HEADS, WIDTH, dtype=dtype),
        "key": normal(rng, 7, KV_HEADS, WIDTH, dtype=dtype),
        "value": normal(rng, 7, KV_HEADS, VALUE_WIDTH, dtype=dtype),
        "cu_seqlens_q": np.array([0, 2, 5]),
        "cu_seqlens_k": np.array([0, 3, 7]),
    }
    more = {
        "attn_mask": normal(rng, HEADS, 5, 4, dtype=dtype),
        "key_mask": rng.random(7) < 0.7,
        "return_lse": True,
        "out": np.zeros((5, HEADS, VALUE_WIDTH), dtype),
        "num_threads": 2,
    }
    return mha.scaled_dot_product_attention_varlen, arguments | score_options(rng, dtype, 3) | some(rng, more)


def _gradient_of(function: str, arguments: Arguments) -> Arguments:
    """The arguments of a gradient, from those of its forward pass, and all names of `wrt`."""
    arguments = {name: x for name, x in arguments.items() if name not in ("return_lse", "out")}
    out, lse = getattr(mha, function)(**arguments, return_lse=True)
    options = [name for name in ("attn_mask", "alibi_slopes", "position_bias", "sinks") if name in arguments]
    wrt = ("query", "key", "value", *(name for name in options if arguments[name].dtype != bool))
    return arguments | {"out": out, "lse": lse, "dout": np.ones_like(out), "dlse": np.ones_like(lse), "wrt": wrt}


@entry("attention_gradient")
def _gradient(rng: Generator) -> Made:
    return mha.attention_gradient, _gradient_of("scaled_dot_product_attention", _attention(rng)[1])


@entry("attention_gradient_varlen")
def _gradient_varlen(rng: Generator) -> Made:
    return mha.attention_gradient_varlen, _gradient_of("scaled_dot_product_attention_varlen", _varlen(rng)[1])


@entry("attention_weights")
def _weights(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = attention_inputs(rng, dtype) | score_options(rng, dtype)
    del arguments["value"]
    more = {
        "attn_mask": rng.random((QUERIES, KEYS)) < 0.7,
        "key_mask": rng.random((BATCH, KEYS)) < 0.7,
        "stage": "capped",
        "out": np.zeros((BATCH, HEADS, QUERIES, KEYS), dtype),
        "num_threads": 2,
    }
    return mha.attention_weights, arguments | some(rng, more)


@entry("attention_statistics")
def _statistics(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    arguments = attention_inputs(rng, dtype) | score_options(rng, dtype)
    del arguments["value"]
    masks = {"attn_mask": rng.random((QUERIES, KEYS)) < 0.7, "key_mask": rng.random((BATCH, KEYS)) < 0.7}
    more = masks | {"num_threads": 2}
    return mha.attention_statistics, arguments | some(rng, more)


@entry("merge_attention")
def _merge(rng: Generator) -> Made:
    dtype, lead = dtype_of_call(rng), [(2, 3), (3,), (1, 2, 1, 2, 3)][rng.integers(3)]
    outs, lses = normal(rng, 3, *lead, 5, dtype=dtype), normal(rng, 3, *lead, dtype=scores_dtype(dtype))
    arguments = {"outs": outs, "lses": lses} if rng.random() < 0.5 else {"outs": list(outs), "lses": list(lses)}
    return mha.merge_attention, arguments | some(rng, {"out": np.zeros((*lead, 5), dtype), "num_threads": 2})


@entry("sinusoidal_positions")
def _positions(rng: Generator) -> Made:
    more = {"first_position": 3, "dtype": "float64"}
    return mha.sinusoidal_positions, {"length": 3, "embed_dim": 4} | some(rng, more)
