"""Logits of encoder-decoders in float64, one text at a time, from the tensors and the config.json of transformers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from oracle_parts import add, attend, by_distance, feed, layer_norm, rms_norm
from tiny_generators import LIKE_T5, T5_FEEDS

Array = np.ndarray[Any, Any]

# The activation for each kind of feed-forward of T5, and the products: up, or gate and up.
_T5_FEEDS = {
    "relu": ("relu", "wi wo"),
    "gelu": ("gelu", "wi wo"),
    "gated-gelu": ("gelu_new", "wi_0 wi_1 wo"),
    "gated-silu": ("silu", "wi_0 wi_1 wo"),
}


def logits(config: dict[str, Any], tensors: dict[str, Array], text: list[int], target: list[int]) -> Array:
    """[T, V] for the T tokens that the decoder reads, with the memory of the tokens of a text."""
    weights = {name.removeprefix("model."): tensor.astype(np.float64) for name, tensor in tensors.items()}
    kind = config["model_type"]
    stack = partial(_t5_stack if kind in LIKE_T5 else _bart_stack, config, weights)
    y = stack("decoder", target, stack("encoder", text, None))
    if kind in ("t5", "umt5") and config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True)):
        y = y * config["d_model"] ** -0.5
    head = weights["lm_head.weight" if "lm_head.weight" in weights else "shared.weight"]
    return y @ head.T + weights.get("final_logits_bias", 0)


def _triangle(length: int, memory: Array | None) -> Any:
    """Keys that a token sees in its own stack: all in the encoder."""
    return True if memory is None else np.tri(length, dtype=bool)


def _bart_stack(
    config: dict[str, Any], weights: dict[str, Array], name: str, tokens: list[int], memory: Array | None
) -> Array:
    """BART; mBART, M2M-100 and Pegasus, whose norms come first; Marian and these two, whose positions are sines."""
    kind = config["model_type"]
    is_first, sines = kind in ("mbart", "pegasus", "m2m_100"), kind in ("marian", "pegasus")
    norm, count = partial(layer_norm, weights=weights, eps=1e-5), config[f"{name}_attention_heads"]
    usual = "relu" if kind == "m2m_100" else "gelu"
    is_scaled = config.get("scale_embedding", kind == "m2m_100")
    x = weights["shared.weight"][tokens] * (math.sqrt(config["d_model"]) if is_scaled else 1)
    table = weights.get(f"{name}.embed_positions.weight")
    if kind == "m2m_100":
        x = x + _sines_after_padding(tokens, config["d_model"], config["pad_token_id"])
    elif sines:
        x = x + (_sines(len(tokens), config["d_model"]) if table is None else table[: len(tokens)])
    else:
        x = norm(x + weights[f"{name}.embed_positions.weight"][2:][: len(tokens)], name=f"{name}.layernorm_embedding")
    for i in range(config[f"{name}_layers"]):
        layer = f"{name}.layers.{i}."
        read = partial(attend, weights, names="q_proj k_proj v_proj out_proj", count=count)
        sublayers = {"self_attn": read(f"{layer}self_attn.", sees=_triangle(len(tokens), memory))}
        if memory is not None:
            sublayers["encoder_attn"] = read(f"{layer}encoder_attn.", memory=memory)
        sublayers["final"] = feed(weights, layer, "fc1 fc2", config.get("activation_function", usual))
        for which, sublayer in sublayers.items():
            x = add(x, sublayer, norm, **{"first" if is_first else "last": f"{layer}{which}_layer_norm"})
    return norm(x, name=f"{name}.layer_norm") if is_first else x


def _sines(length: int, width: int) -> Array:
    """[T, E]: sines of E / 2 wavelengths, and behind them cosines, as the files have them."""
    angles = np.outer(np.arange(length), 10000 ** (-np.arange(0, width, 2) / width))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32).astype(np.float64)


def _sines_after_padding(tokens: list[int], width: int, padding: int) -> Array:
    """[T, E]: sines and cosines in float32, as they are made there; places count from `padding` + 1."""
    half = width // 2
    exponents = np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / (half - 1))
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    result, place = np.zeros((len(tokens), width)), padding
    for i, token in enumerate(tokens):
        if token != padding:  # which has zeros
            place += 1
            angles = (np.float32(place) * frequencies).astype(np.float64)
            result[i] = np.concatenate([np.sin(angles), np.cos(angles)]).astype(np.float32)
    return result


def _t5_stack(
    config: dict[str, Any], weights: dict[str, Array], name: str, tokens: list[int], memory: Array | None
) -> Array:
    norm = partial(rms_norm, weights=weights, eps=config.get("layer_norm_epsilon", 1e-6))
    read = partial(attend, weights, names="q k v o", count=config["num_heads"], scale=1)
    kind, most = config["model_type"], config["relative_attention_max_distance"]
    activation, products = _T5_FEEDS[config.get("feed_forward_proj", T5_FEEDS[kind])]
    x = weights["shared.weight"][tokens]
    for i in range(config["num_layers" if memory is None else "num_decoder_layers"]):
        layer = f"{name}.block.{i}.layer."
        first = layer if kind == "umt5" else f"{name}.block.0.layer."
        table = weights[f"{first}0.SelfAttention.relative_attention_bias.weight"]
        bias = by_distance(table, len(tokens), most, memory is not None)
        sublayers = [
            read(f"{layer}0.SelfAttention.", sees=_triangle(len(tokens), memory), bias=bias),
            *([] if memory is None else [read(f"{layer}1.EncDecAttention.", memory=memory)]),
            feed(weights, f"{layer}{1 if memory is None else 2}.DenseReluDense.", products, activation),
        ]
        for part, sublayer in enumerate(sublayers):
            x = add(x, sublayer, norm, f"{layer}{part}.layer_norm")
    return norm(x, name=f"{name}.final_layer_norm")
