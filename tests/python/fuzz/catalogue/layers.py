"""Attention layers, norms and feed-forward."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import mha_native as mha

from .entry import (
    BATCH,
    FEATURES,
    HEADS,
    INNER,
    KEYS,
    KV_HEADS,
    QUERIES,
    Arguments,
    Generator,
    Made,
    entry,
    normal,
    score_options,
    some,
)


def layer_arguments(rng: Generator) -> Arguments:
    more = {"bias": False, "dtype": "float32", "weight_dtype": "int8", "seed": 1}
    return some(rng, more) if rng.random() < 0.7 else {"dtype": "float64", "seed": 2}


def with_steps(rng: Generator, arguments: Arguments) -> Arguments:
    """With norms of the heads of query and key, or rotary positions, in the dtype of the layer."""
    rotary = mha.RotaryEmbedding.from_base(2, 64, dtype=arguments.get("dtype", "float32"))
    return arguments | some(rng, {"qk_norm": "rms", "qk_norm_eps": 1e-3, "rotary": rotary})


@entry("MultiHeadAttention constructor")
def _make_layer(rng: Generator) -> Made:
    sizes = {"num_kv_heads": KV_HEADS, "head_dim": 3, "value_head_dim": 5, "kdim": 9, "vdim": 10, "out_dim": 11}
    more = {"add_bias_kv": True, "add_zero_attn": True}
    arguments = {"embed_dim": FEATURES, "num_heads": HEADS} | some(rng, sizes) | some(rng, more)
    arguments |= with_steps(rng, layer_arguments(rng))
    return mha.MultiHeadAttention, arguments | some(rng, {"bias": {"query", "value"}})


@entry("linear")
def _linear(rng: Generator) -> Made:
    arguments = {"x": normal(rng, 2, 7, FEATURES), "weight": normal(rng, INNER, FEATURES)}
    return mha.linear, arguments | some(rng, {"bias": normal(rng, INNER), "num_threads": 2})


@entry("linear_gradient")
def linear_gradient(rng: Generator) -> Made:
    arguments = {"x": normal(rng, 2, 7, FEATURES), "weight": normal(rng, INNER, FEATURES)}
    more = {"wrt": ("weight", "bias"), "num_threads": 2}
    return mha.linear_gradient, arguments | {"dout": normal(rng, 2, 7, INNER)} | some(rng, more)


@entry("RotaryEmbedding constructor")
def _make_rotary(rng: Generator) -> Made:
    arguments = {"cos": normal(rng, 7, 3), "sin": normal(rng, 7, 3)}
    return mha.RotaryEmbedding, arguments | some(rng, {"interleaved": True})


@entry("RotaryEmbedding.from_base")
def _rotary_from_base(rng: Generator) -> Made:
    more = {"base": 500.0, "interleaved": True, "dtype": "float64"}
    return mha.RotaryEmbedding.from_base, {"rotary_dim": 4, "max_positions": 9} | some(rng, more)


@functools.cache
def layer(dtype: str = "float32", **arguments: Any) -> mha.MultiHeadAttention:
    return mha.MultiHeadAttention(FEATURES, HEADS, dtype=dtype, seed=0, **arguments)


@entry("MultiHeadAttention")
def _attend(rng: Generator) -> Made:
    arguments = {"query": normal(rng, BATCH, QUERIES, FEATURES)}
    more = {
        "key": normal(rng, BATCH, KEYS, FEATURES),
        "value": normal(rng, BATCH, KEYS, FEATURES),
        "attn_mask": rng.random((BATCH, HEADS, QUERIES, KEYS)) < 0.7,
        "key_mask": rng.random((BATCH, KEYS)) < 0.7,
        "need_weights": True,
        "average_attn_weights": True,
        "out": np.zeros((BATCH, QUERIES, FEATURES), np.float32),
        "num_threads": 2,
    }
    given = some(rng, more)
    if "key" not in given:
        given = {name: x for name, x in given.items() if name not in ("value", "attn_mask", "key_mask")}
    return layer(), arguments | given | score_options(rng, np.float32, KEYS if "key" in given else QUERIES)


@entry("MultiHeadAttention with a cache")
def _attend_to_cache(rng: Generator) -> Made:
    cache = layer().new_cache(BATCH, 9)
    layer().append_to(cache, normal(rng, BATCH, 2, FEATURES))
    arguments = {"query": normal(rng, BATCH, QUERIES, FEATURES), "cache": cache}
    more = {"new_lengths": np.array([3, 2]), "is_causal": True, "need_weights": True, "num_threads": 1}
    given = {"append": False} if rng.random() < 0.3 else some(rng, more)
    return layer(), arguments | given


@entry("MultiHeadAttention of a ragged batch")
def _attend_ragged(rng: Generator) -> Made:
    arguments = {"query": normal(rng, 7, FEATURES), "cu_seqlens_q": np.array([0, 3, 7])}
    more = {"cu_seqlens_k": np.array([0, 3, 7]), "key_mask": rng.random(7) < 0.7, "is_causal": True}
    return layer(), arguments | some(rng, more | {"out": np.zeros((7, FEATURES), np.float32)})


@entry("MultiHeadAttention.new_cache")
def _new_cache(rng: Generator) -> Made:
    return layer().new_cache, {"batch_size": BATCH, "capacity": KEYS} | some(rng, {"dtype": "float16"})


@entry("MultiHeadAttention.append_to")
def _append_to(rng: Generator) -> Made:
    more = {"value": normal(rng, BATCH, 3, FEATURES), "new_lengths": np.array([3, 1]), "num_threads": 1}
    arguments = {"cache": layer().new_cache(BATCH, 4), "key": normal(rng, BATCH, 3, FEATURES)}
    return layer().append_to, arguments | some(rng, more)


@entry("LayerNorm constructor")
def _make_norm(rng: Generator) -> Made:
    return mha.LayerNorm, {"embed_dim": 5} | some(rng, {"eps": 1e-3, "bias": False, "dtype": "float64"})


@entry("Linear constructor")
def _make_linear(rng: Generator) -> Made:
    return mha.Linear, {"in_features": FEATURES, "out_features": INNER} | layer_arguments(rng)


def _block_matrix() -> mha.BlockMatrix:
    return mha.BlockMatrix(np.full((INNER, 34), 7, np.uint8), "q8_0", 32)


@entry("BlockMatrix constructor")
def _make_block_matrix(_: Generator) -> Made:
    return mha.BlockMatrix, {"data": np.full((INNER, 34), 7, np.uint8), "dtype": "q8_0", "in_features": 32}


@entry("BlockMatrix.dequantize")
def _dequantize(_: Generator) -> Made:
    return _block_matrix().dequantize, {"num_threads": 2}


@entry("BlockMatrix.take")
def _take_rows(_: Generator) -> Made:
    return _block_matrix().take, {"rows": np.array([0, 1, 0])}


@entry("Linear of a BlockMatrix")
def _linear_of_blocks(rng: Generator) -> Made:
    out = np.zeros((BATCH, 3, INNER), np.float32)
    layer = mha.Linear.from_weights(_block_matrix())
    return layer, {"x": normal(rng, BATCH, 3, 32)} | some(rng, {"out": out, "num_threads": 2})


@entry("FeedForward constructor")
def _make_feed_forward(rng: Generator) -> Made:
    arguments = {"embed_dim": FEATURES, "feedforward_dim": INNER} | some(rng, {"activation": "gelu", "gated": True})
    return mha.FeedForward, arguments | layer_arguments(rng)


@entry("Experts constructor")
def _make_experts(rng: Generator) -> Made:
    arguments = {"embed_dim": FEATURES, "feedforward_dim": INNER, "num_experts": 3, "experts_per_token": 2}
    more = {"scores": "sigmoid", "normalize": False, "scale": 2.0, "router_bias": True, "shared_dim": 5}
    return mha.Experts, arguments | some(rng, more) | layer_arguments(rng)


@entry("Experts.from_weights")
def _experts_from_weights(rng: Generator) -> Made:
    weights = mha.Experts(FEATURES, INNER, 3, 2, seed=0).state_dict()
    more = {"activation": "gelu", "scores": "sigmoid", "normalize": False, "scale": 0.5, "dtype": "float64"}
    return mha.Experts.from_weights, {"weights": weights, "experts_per_token": 2} | some(rng, more)


@entry("Experts.forward_and_record")
def _record_experts(rng: Generator) -> Made:
    layer = mha.Experts(FEATURES, INNER, 3, 2, seed=0)
    return layer.forward_and_record, {"x": normal(rng, 3, FEATURES), "wrt": ()} | some(rng, {"num_threads": 2})


@entry("Experts")
def _call_experts(rng: Generator) -> Made:
    return mha.Experts(FEATURES, INNER, 3, 2, seed=0), _rows(rng)


def _rows(rng: Generator, out_features: int = FEATURES) -> Arguments:
    out = np.zeros((BATCH, 3, out_features), np.float32)
    return {"x": normal(rng, BATCH, 3, FEATURES)} | some(rng, {"out": out, "num_threads": 2})


@entry("RMSNorm constructor")
def _make_rms_norm(rng: Generator) -> Made:
    return mha.RMSNorm, {"embed_dim": 5} | some(rng, {"eps": 1e-3, "unit_offset": True, "dtype": "float64"})


@entry("LayerNorm")
def _norm(rng: Generator) -> Made:
    return mha.LayerNorm(FEATURES), _rows(rng)


@entry("Linear")
def _linear(rng: Generator) -> Made:
    return mha.Linear(FEATURES, INNER, seed=0), _rows(rng, INNER)


@entry("RMSNorm")
def _rms_norm(rng: Generator) -> Made:
    return mha.RMSNorm(FEATURES), _rows(rng)


@entry("FeedForward")
def _feed_forward(rng: Generator) -> Made:
    return mha.FeedForward(FEATURES, INNER, gated=rng.random() < 0.5, seed=0), _rows(rng)
