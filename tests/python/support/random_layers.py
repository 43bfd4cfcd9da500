"""Layers, encoders and decoders for tests, of sizes that fit no vector, with weights that are all random."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import numpy as np
from element_types import accumulator_of

from mha_native import (
    CausalDecoder,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
)

Array = np.ndarray[Any, np.dtype[Any]]
Module = TypeVar(
    "Module", LayerNorm, RMSNorm, Linear, FeedForward, EncoderLayer, Encoder, CausalDecoder, DecoderLayer, Decoder
)

# Attention layers by what makes them special.
LAYERS: dict[str, dict[str, Any]] = {
    "usual": {"embed_dim": 64, "num_heads": 4},
    "one head": {"embed_dim": 33, "num_heads": 1},
    "head of 1": {"embed_dim": 7, "num_heads": 7},
    "one feature": {"embed_dim": 1, "num_heads": 1},
    "many heads": {"embed_dim": 96, "num_heads": 24},
    "wide": {"embed_dim": 384, "num_heads": 6},
    "no bias": {"embed_dim": 48, "num_heads": 4, "bias": False},
    "biases in": {"embed_dim": 48, "num_heads": 4, "num_kv_heads": 2, "bias": {"query", "key", "value"}},
    "biases of query and value": {"embed_dim": 33, "num_heads": 3, "kdim": 20, "bias": {"query", "value"}},
    "grouped": {"embed_dim": 64, "num_heads": 8, "num_kv_heads": 2},
    "multi-query": {"embed_dim": 40, "num_heads": 5, "num_kv_heads": 1},
    "head_dim": {"embed_dim": 30, "num_heads": 4, "head_dim": 19},
    "value_head_dim": {"embed_dim": 24, "num_heads": 3, "value_head_dim": 21},
    "kdim": {"embed_dim": 32, "num_heads": 4, "kdim": 50},
    "vdim": {"embed_dim": 32, "num_heads": 4, "vdim": 17},
    "out_dim": {"embed_dim": 32, "num_heads": 4, "out_dim": 5},
    "everything": {
        "embed_dim": 29, "num_heads": 6, "num_kv_heads": 3, "head_dim": 11, "value_head_dim": 13, "kdim": 23,
        "vdim": 31, "out_dim": 70, "bias": False,
    },
}  # fmt: skip

# Those of every run, and those whose queries, keys and values are one array.
FEW_LAYERS = ("usual", "one feature", "wide", "grouped", "everything")
SELF_LAYERS = [name for name, sizes in LAYERS.items() if not {"kdim", "vdim"} & set(sizes)]

# Stacks of two layers, likewise; `absent` are norms that each layer lacks.
STACKS: dict[str, dict[str, Any]] = {
    "usual": {"embed_dim": 64, "num_heads": 4, "feedforward_dim": 128},
    "awkward": {"embed_dim": 29, "num_heads": 3, "head_dim": 11, "feedforward_dim": 37, "activation": "gelu"},
    "pre-LN": {
        "embed_dim": 48, "num_heads": 4, "feedforward_dim": 100, "activation": "gelu", "norm_first": True,
        "final_norm": True,
    },
    "grouped": {"embed_dim": 64, "num_heads": 8, "num_kv_heads": 2, "feedforward_dim": 96, "activation": "gelu_tanh"},
    "no bias": {"embed_dim": 33, "num_heads": 1, "feedforward_dim": 70, "bias": False, "norm_first": True},
    "one wide": {"num_layers": 1, "embed_dim": 300, "num_heads": 5, "feedforward_dim": 1100, "activation": "gelu"},
    "narrow": {"embed_dim": 6, "num_heads": 2, "feedforward_dim": 1, "final_norm": True},
    "one feature": {"embed_dim": 1, "num_heads": 1, "feedforward_dim": 1, "norm_first": True},
    "gated": {
        "embed_dim": 40, "num_heads": 4, "feedforward_dim": 107, "activation": "silu", "gated": True,
        "norm_first": True,
    },
    "gated, post-LN": {
        "embed_dim": 29, "num_heads": 1, "feedforward_dim": 70, "activation": "gelu_tanh", "gated": True, "bias": False,
    },
    "of CLIP": {
        "embed_dim": 32, "num_heads": 2, "feedforward_dim": 72, "activation": "quick_gelu", "norm_first": True,
    },
    "large eps": {"embed_dim": 24, "num_heads": 2, "feedforward_dim": 24, "eps": 0.5, "activation": "gelu_tanh"},
    "RMSNorm": {
        "embed_dim": 48, "num_heads": 4, "num_kv_heads": 2, "feedforward_dim": 100, "norm": "rms", "eps": 1e-6,
        "norm_first": True, "final_norm": True, "bias": False,
    },
    "norms on both sides": {
        "embed_dim": 40, "num_heads": 4, "feedforward_dim": 96, "activation": "gelu_tanh", "norm": "rms_unit_offset",
        "norm_first": True, "output_norms": True, "final_norm": True,
    },
    "output norms": {
        "embed_dim": 33, "num_heads": 3, "feedforward_dim": 70, "norm": "rms", "output_norms": True,
        "absent": ("norm1", "norm2", "norm3"),
    },
    "no first norm": {
        "embed_dim": 32, "num_heads": 4, "feedforward_dim": 64, "activation": "gelu", "norm_first": True,
        "absent": ("norm1",),
    },
    "norms behind both": {"embed_dim": 36, "num_heads": 4, "feedforward_dim": 50, "output_norms": True},
}  # fmt: skip

FEW_STACKS = (
    "usual", "one feature", "awkward", "pre-LN", "grouped", "RMSNorm", "norms on both sides", "output norms",
    "no first norm",
)  # fmt: skip


@functools.cache
def attention_layer(name: str, dtype: Any = np.float32) -> MultiHeadAttention:
    """A layer whose biases are not zero: initial ones are."""
    return with_random_biases(MultiHeadAttention(**LAYERS[name], dtype=dtype, seed=3))


def with_random_biases(layer: MultiHeadAttention, key_size: float = 1) -> MultiHeadAttention:
    """The layer with random biases, and added keys of `key_size`: initial ones are 0."""
    rng, state = np.random.default_rng(4), layer.state_dict()
    for name, array in state.items():
        if "bias" in name:
            size = key_size if name == "bias_k" else 1
            state[name] = (size * rng.standard_normal(array.shape)).astype(array.dtype)
    layer.load_state_dict(state)
    return layer


def attention_inputs(
    layer: MultiHeadAttention, batch: int, queries: int, keys: int, seed: int = 5
) -> tuple[Array, ...]:
    """Query, key and value of the sizes of `layer`."""
    rng = np.random.default_rng(seed)
    shapes = ((batch, queries, layer.embed_dim), (batch, keys, layer.kdim), (batch, keys, layer.vdim))
    return tuple(rng.standard_normal(shape).astype(layer.dtype) for shape in shapes)


def call_options(which: str, heads: int, dtype: Any, batch: int, queries: int, keys: int) -> dict[str, Any]:
    """Masks, bounds or changes of scores [batch, heads, queries, keys]; one key mask hides all keys of a sequence."""
    rng = np.random.default_rng(6)
    additive = rng.standard_normal((heads, queries, keys)).astype(dtype)
    additive[rng.random(additive.shape) < 0.3] = -np.inf
    boolean = rng.random((batch, 1, queries, keys)) < 0.6
    key_mask = rng.random((batch, keys)) < 0.6
    key_mask[0] = False
    return {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": boolean},
        "additive": {"attn_mask": additive},
        "far": {"attn_mask": np.full((1, 1), -60, dtype)},
        "key mask": {"key_mask": key_mask},
        "one key mask": {"key_mask": key_mask[-1:]},
        "flat key mask": {"key_mask": key_mask[-1]},
        "all": {"attn_mask": additive, "key_mask": key_mask, "is_causal": True},
        "lengths": {"key_lengths": np.array([keys, keys // 3][:batch])},
        "offsets": {"is_causal": True, "query_offset": np.array([keys // 2, 3][:batch])},
        "window": {"window": (7, 2), "query_offset": keys // 5},
        "bounds": {"window": (9, 4), "query_offset": 3, "key_lengths": np.array([keys, keys // 3, 0][:batch])},
        "scores": {
            "scale": 0.7,
            "softcap": 2.5,
            "alibi_slopes": rng.random(heads).astype(accumulator_of(dtype)),
            "position_bias": rng.standard_normal((heads, 13)).astype(accumulator_of(dtype)),
            "sinks": rng.standard_normal(heads).astype(accumulator_of(dtype)),
        },
    }[which]


def randomized(module: Module, seed: int = 4) -> Module:
    """The module with random biases, and random weights of its norms: initial ones are 0 and 1."""
    rng = np.random.default_rng(seed)
    state = module.state_dict()
    for name, array in state.items():
        if array.ndim == 1:
            around = 1 if name.endswith("weight") else 0
            state[name] = (around + 0.4 * rng.standard_normal(array.shape)).astype(array.dtype)
    module.load_state_dict(state)
    return module


@functools.cache
def encoder(name: str, dtype: Any) -> Encoder:
    return _stack(Encoder, name, dtype=dtype)


@functools.cache
def causal_decoder(name: str, dtype: Any) -> CausalDecoder:
    return _stack(CausalDecoder, name, dtype=dtype)


@functools.cache
def decoder(name: str, dtype: Any, memory_dim: int | None = None) -> Decoder:
    return _stack(Decoder, name, memory_dim=memory_dim, dtype=dtype)


def _stack(kind: Any, name: str, **more: Any) -> Any:
    arguments = {"num_layers": 2, **STACKS[name]}
    absent = arguments.pop("absent", ())
    stack = kind(**arguments, **more, seed=3)
    for layer in stack.layers:
        for norm in absent:
            setattr(layer, norm, None)
    return randomized(stack)


def oracle_options(module: Any) -> dict[str, Any]:
    """What an oracle must be told of a module besides its state."""
    layer = getattr(module, "layers", (module,))[0]
    names = ("num_heads", "num_kv_heads", "activation", "norm_first", "norm", "eps")
    return {name: value for name, value in layer._configuration().items() if name in names}


def rows(shape: tuple[int, ...], dtype: Any, seed: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def views(x: Array) -> list[Array]:
    """`x` in memory of other layouts, read-only."""
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::2] = x
    backwards = tuple(slice(None, None, -1) for _ in x.shape)
    found = [wide[..., ::2], np.asfortranarray(x), np.ascontiguousarray(x[backwards])[backwards]]
    for view in found:
        assert np.array_equal(view, x, equal_nan=True)
        view.flags.writeable = False
    return found
