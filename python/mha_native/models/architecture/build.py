"""Layers from their description and weights."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...layers.causal_decoder import CausalDecoder
from ...layers.decoder import Decoder, DecoderLayer
from ...layers.encoder import Encoder, EncoderLayer
from ...layers.feed_forward import FeedForward
from ...layers.multi_head_attention import MultiHeadAttention
from ...layers.norm import Norm
from ...layers.rotary_embedding import RotaryEmbedding
from ...layers.transformer import TransformerLayer, TransformerStack
from ..files.source import Matrix
from .config import BlockConfig, StackConfig
from .norms import make_norm
from .rotary import RotaryConfig

# The parts of a layer, as the classes of layers call them.
_ATTENTION = {"query": "q_proj_", "key": "k_proj_", "value": "v_proj_", "out": "out_proj."}
_NORMS_OF_HEADS = {"query_norm": "q_norm.", "key_norm": "k_norm."}
_FEED_FORWARD = {"up": "linear1.", "down": "linear2.", "gate": "gate."}

Weights = Mapping[str, Matrix]


def rotary_tables(blocks: Iterable[BlockConfig], dtype: np.dtype[Any]) -> dict[RotaryConfig, RotaryEmbedding]:
    """Return the rotary tables of layers in `dtype`, one for each `RotaryConfig`, for `make_layer`."""
    kind = np.float64 if dtype == np.float64 else np.float32
    return {
        rotary: RotaryEmbedding(*rotary.table(kind), interleaved=rotary.interleaved)
        for rotary in {block.rotary for block in blocks}
        if rotary is not None
    }


def make_layer(
    config: BlockConfig,
    weights: Weights,
    tables: Mapping[RotaryConfig, RotaryEmbedding],
    dtype: np.dtype[Any],
    weight_dtype: str | None,
) -> TransformerLayer:
    """Return the layer with these weights: a `DecoderLayer` if it reads a memory, else an `EncoderLayer`.

    The weights are in `dtype`, the dtype of the computation: ``query.weight`` and so on, by the names of
    `BlockConfig.products` and `BlockConfig.all_norms`, and ``query.bias`` and so on. Matrices are stored as
    `weight_dtype`; None: as they are, in blocks or in `dtype`. `tables` are from `rotary_tables`.
    """
    formats: Any = {"dtype": dtype, "weight_dtype": weight_dtype}

    def attention(prefix: str = "", **options: Any) -> MultiHeadAttention:
        parts = {prefix + part: theirs for part, theirs in _ATTENTION.items()}
        state = _renamed(weights, parts | ({} if prefix else _NORMS_OF_HEADS))
        kv_heads = config.num_kv_heads
        return MultiHeadAttention.from_weights(state, config.num_heads, num_kv_heads=kv_heads, **options, **formats)

    def norm(name: str) -> Norm:
        return make_norm(config.norm, _renamed(weights, {name: ""}), dtype)

    heads: Any = {} if config.qk_norm is None else {"qk_norm": config.qk_norm.kind, "qk_norm_eps": config.qk_norm.eps}
    self_attn = attention(rotary=None if config.rotary is None else tables[config.rotary], **heads)
    feed_forward = FeedForward.from_weights(_renamed(weights, _FEED_FORWARD), activation=config.activation, **formats)
    norms: Any = {name: norm(name) for name in config.norms}
    if not config.reads_memory:
        return EncoderLayer.from_parts(self_attn, feed_forward, norm_first=config.norm_first, **norms)
    # The feed-forward comes third, after the attention to the memory.
    for place in ("norm", "output_norm"):
        if f"{place}2" in norms:
            norms[f"{place}3"] = norms.pop(f"{place}2")
    norms["norm2"] = norm("memory_norm")
    cross_attn = attention("memory_")
    return DecoderLayer.from_parts(self_attn, cross_attn, feed_forward, norm_first=config.norm_first, **norms)


def make_stack(config: StackConfig, layers: Iterable[TransformerLayer], norm: Norm | None) -> TransformerStack:
    """Return the stack of `layers`. Score options that layers have in common are left to `Stack`."""
    kind: Any = Decoder if config.reads_memory else CausalDecoder if config.is_causal else Encoder
    options = [block.options for block in config.blocks]
    has_own = any(of_layer != options[0] for of_layer in options)
    stack: TransformerStack = kind.from_layers(layers, norm, layer_options=options if has_own else None)
    return stack


def with_rotary(layer: EncoderLayer, rotary: RotaryEmbedding) -> EncoderLayer:
    """Return the layer with another rotary table. It shares the other parts with the layer."""
    self_attn = layer.self_attn._with_rotary(rotary)
    norms: Any = {name: getattr(layer, name) for name in ("norm1", "norm2", "output_norm1", "output_norm2")}
    return EncoderLayer.from_parts(self_attn, layer.feed_forward, norm_first=layer.norm_first, **norms)


def _renamed(weights: Weights, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the weights and biases of parts, by the prefixes in the classes of layers."""
    return {
        f"{theirs}{which}": weights[f"{part}.{which}"]
        for part, theirs in names.items()
        for which in ("weight", "bias")
        if f"{part}.{which}" in weights
    }
