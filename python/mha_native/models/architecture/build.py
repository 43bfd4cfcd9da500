"""Layers from their description and weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...layers.causal_decoder import CausalDecoder
from ...layers.decoder import Decoder, DecoderLayer
from ...layers.encoder import Encoder, EncoderLayer
from ...layers.experts import Experts
from ...layers.feed_forward import FeedForward
from ...layers.multi_head_attention import MultiHeadAttention
from ...layers.norm import Norm
from ...layers.rotary_embedding import RotaryEmbedding
from ...layers.transformer import TransformerLayer
from ..files.source import Matrix
from .config import BlockConfig, StackConfig
from .disentangled import DisentangledEncoder
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
    feed_forward = _feed_forward(config, weights, formats)
    norms: Any = {name: norm(name) for name in config.norms}
    if not config.reads_memory:
        options: Any = {"norm_first": config.norm_first, "parallel": config.parallel}
        return EncoderLayer.from_parts(self_attn, feed_forward, **options, **norms)
    # The feed-forward comes third, after the attention to the memory.
    for place in ("norm", "output_norm"):
        if f"{place}2" in norms:
            norms[f"{place}3"] = norms.pop(f"{place}2")
    norms["norm2"] = norm("memory_norm")
    cross_attn = attention("memory_")
    return DecoderLayer.from_parts(self_attn, cross_attn, feed_forward, norm_first=config.norm_first, **norms)


def _feed_forward(config: BlockConfig, weights: Weights, formats: Any) -> FeedForward | Experts:
    """Return the feed-forward of a layer, or its experts."""
    experts = config.experts
    if experts is None:
        state = _renamed(weights, _FEED_FORWARD)
        return FeedForward.from_weights(state, activation=config.activation, **formats)
    prefixes = ["shared.", *(f"experts.{i}." for i in range(experts.num_experts))]
    names = {prefix + part: prefix + theirs for prefix in prefixes for part, theirs in _FEED_FORWARD.items()}
    state = _renamed(weights, names | {"router": "router.", "shared_gate": "shared_gate."})
    if experts.has_correction:
        state["correction"] = weights["correction"]
    choice: Any = {"scores": experts.scores, "normalize": experts.normalize, "scale": experts.scale}
    activation = config.activation
    return Experts.from_weights(state, experts.experts_per_token, activation=activation, **choice, **formats)


def make_stack(
    config: StackConfig, layers: Iterable[Any], norm: Norm | None, own_options: Sequence[Mapping[str, Any]] = ()
) -> Any:
    """Return the stack of `layers`. Score options that layers have in common are left to `Stack`.

    `own_options` are score options of each layer that come from its weights, such as sinks.
    """
    if config.relative is not None:
        return DisentangledEncoder(layers)
    kind: Any = Decoder if config.reads_memory else CausalDecoder if config.is_causal else Encoder
    options: list[Any] = [block.options for block in config.blocks]
    has_own = any(own_options) or any(of_layer != options[0] for of_layer in options)
    if own_options:
        options = [{**of_layer, **own} for of_layer, own in zip(options, own_options, strict=True)]
    return kind.from_layers(layers, norm, layer_options=options if has_own else None)


def each_once(layers: Iterable[Any], change: Callable[[Any], Any]) -> list[Any]:
    """Return the changed layers. A layer that is there several times is changed once."""
    layers = list(layers)
    changed = {key: change(layer) for key, layer in {id(layer): layer for layer in layers}.items()}
    return [changed[id(layer)] for layer in layers]


def with_rotary(layer: EncoderLayer, rotary: RotaryEmbedding) -> EncoderLayer:
    """Return the layer with another rotary table. It shares the other parts with the layer."""
    self_attn = layer.self_attn._with_rotary(rotary)
    norms: Any = {name: getattr(layer, name) for name in ("norm1", "norm2", "output_norm1", "output_norm2")}
    options: Any = {"norm_first": layer.norm_first, "parallel": layer.parallel}
    return EncoderLayer.from_parts(self_attn, layer.feed_forward, **options, **norms)


def _renamed(weights: Weights, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the weights and biases of parts, by the prefixes in the classes of layers."""
    return {
        f"{theirs}{which}": weights[f"{part}.{which}"]
        for part, theirs in names.items()
        for which in ("weight", "bias")
        if f"{part}.{which}" in weights
    }
