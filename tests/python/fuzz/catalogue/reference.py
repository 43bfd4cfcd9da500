"""The reference."""

from __future__ import annotations

import numpy as np

import mha_native as mha
from mha_native import reference

from .attention import _gradient, _statistics, _varlen, _weights
from .entry import (
    BATCH,
    CATALOGUE,
    FEATURES,
    HEADS,
    INNER,
    KEYS,
    MEMORY,
    QUERIES,
    Arguments,
    Generator,
    Made,
    Maker,
    attention_inputs,
    entry,
    normal,
    score_options,
    some,
)
from .layers import layer, linear_gradient
from .transformers import module


@entry("reference.scaled_dot_product_attention")
def _reference_attention(rng: Generator) -> Made:
    arguments = attention_inputs(rng, np.float64) | score_options(rng, np.float64)
    masks = {"attn_mask": rng.random((QUERIES, KEYS)) < 0.7, "key_mask": rng.random((BATCH, KEYS)) < 0.7}
    more = masks | {"return_lse": True}
    return reference.scaled_dot_product_attention, arguments | some(rng, more)


@entry("reference.scaled_dot_product_attention_varlen")
def _reference_varlen(rng: Generator) -> Made:
    arguments = _varlen(rng)[1]
    return reference.scaled_dot_product_attention_varlen, _without(arguments, "out", "num_threads")


@entry("reference.attention_weights")
def _reference_weights(rng: Generator) -> Made:
    return reference.attention_weights, _without(_weights(rng)[1], "out", "num_threads")


@entry("reference.attention_statistics")
def _reference_statistics(rng: Generator) -> Made:
    return reference.attention_statistics, _without(_statistics(rng)[1], "num_threads")


@entry("reference.attention_gradient")
def _reference_gradient(rng: Generator) -> Made:
    return reference.attention_gradient, _without(_gradient(rng)[1], "out", "lse", "wrt", "num_threads")


@entry("reference.linear_gradient")
def _reference_linear_gradient(rng: Generator) -> Made:
    return reference.linear_gradient, _without(linear_gradient(rng)[1], "wrt", "num_threads")


@entry("reference.dropout_factors")
def _reference_dropout(rng: Generator) -> Made:
    numbers = {"dropout_p": rng.random(), "dropout_seed": int(rng.integers(2**40))}
    more = {"query_offset": int(rng.integers(5)), "first_head": int(rng.integers(5))}
    return reference.dropout_factors, {"shape": (BATCH, HEADS, QUERIES, KEYS), **numbers, **some(rng, more)}


@entry("reference.rotate")
def _reference_rotate(rng: Generator) -> Made:
    arguments = {"x": normal(rng, 5, FEATURES), "positions": np.arange(5)}
    tables = {"cos": normal(rng, 9, 2), "sin": normal(rng, 9, 2)}
    return reference.rotate, arguments | tables | some(rng, {"interleaved": True})


@entry("reference.visible_keys")
def _reference_visible(rng: Generator) -> Made:
    options = _without(score_options(rng, np.float64), "scale", "softcap", "alibi_slopes", "position_bias", "sinks")
    return reference.visible_keys, {"shape": (BATCH, HEADS, QUERIES, KEYS)} | options


@entry("reference.multi_head_attention")
def _reference_layer(rng: Generator) -> Made:
    inputs = {name: normal(rng, BATCH, 3, FEATURES) for name in ("query", "key", "value")}
    more = {"need_weights": True, "add_zero_attn": True, "attn_mask": rng.random((3, 3)) < 0.7}
    arguments = inputs | {"state": layer().state_dict(), "num_heads": HEADS} | some(rng, more)
    return reference.multi_head_attention, arguments | score_options(rng, np.float64, 3)


@entry("reference.layer_norm")
def _reference_norm(rng: Generator) -> Made:
    more = {"weight": normal(rng, FEATURES), "bias": normal(rng, FEATURES), "eps": 1e-3}
    return reference.layer_norm, {"x": normal(rng, 3, FEATURES)} | some(rng, more)


@entry("reference.linear")
def _reference_linear(rng: Generator) -> Made:
    arguments = {"x": normal(rng, 3, FEATURES), "weight": normal(rng, INNER, FEATURES)}
    return reference.linear, arguments | some(rng, {"bias": normal(rng, INNER)})


@entry("reference.rms_norm")
def _reference_rms_norm(rng: Generator) -> Made:
    more = {"weight": normal(rng, FEATURES), "eps": 1e-3, "unit_offset": True}
    return reference.rms_norm, {"x": normal(rng, 3, FEATURES)} | some(rng, more)


@entry("reference.activate")
def _reference_activate(rng: Generator) -> Made:
    return reference.activate, {"x": normal(rng, 3, FEATURES), "name": "gelu"}


@entry("reference.feed_forward")
def _reference_feed_forward(rng: Generator) -> Made:
    state = mha.FeedForward(FEATURES, INNER, gated=rng.random() < 0.5, seed=0).state_dict()
    return reference.feed_forward, {"x": normal(rng, 3, FEATURES), "state": state} | some(rng, {"activation": "gelu"})


@entry("reference.experts")
def _reference_experts(rng: Generator) -> Made:
    state = mha.Experts(FEATURES, INNER, 3, 2, seed=0).state_dict()
    arguments = {"x": normal(rng, 3, FEATURES), "state": state, "experts_per_token": 2}
    return reference.experts, arguments | some(rng, {"activation": "gelu", "normalize": False, "scale": 2.0})


def _reference_caller_of(name: str, model: str) -> Maker:
    def make(rng: Generator) -> Made:
        arguments = {"x": normal(rng, BATCH, 3, FEATURES), "state": module(model).state_dict(), "num_heads": HEADS}
        if name.startswith("decoder"):
            arguments["memory"] = normal(rng, BATCH, MEMORY, FEATURES)
        more = {"activation": "gelu", "norm_first": True, "norm": "rms", "eps": 1e-3, "is_causal": True}
        return getattr(reference, name), arguments | some(rng, more)

    return make


def _without(arguments: Arguments, *names: str) -> Arguments:
    return {name: value for name, value in arguments.items() if name not in names}


for _name in ("encoder_layer", "encoder", "decoder_layer", "decoder"):
    CATALOGUE[f"reference.{_name}"] = _reference_caller_of(_name, _name.title().replace("_", ""))
