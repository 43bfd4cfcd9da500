"""Decoders in float64, one text at a time, from the tensors and the config.json of transformers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from oracle_parts import add, attend, distances, feed, layer_norm, rms_norm, rotated

Array = np.ndarray[Any, Any]


def vectors(config: dict[str, Any], tensors: dict[str, Array], tokens: list[int]) -> Array:
    """[T, E] for T tokens, after the last norm."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    return (_gpt2 if config["model_type"] == "gpt2" else _llama)(config, weights, tokens)


def logits(config: dict[str, Any], tensors: dict[str, Array], tokens: list[int]) -> Array:
    """[T, V] for T tokens."""
    model_type = config["model_type"]
    words = "transformer.wte.weight" if model_type == "gpt2" else "model.embed_tokens.weight"
    is_tied = config.get("tie_word_embeddings", model_type == "gpt2" or model_type.startswith("gemma"))
    head = tensors[words if is_tied else "lm_head.weight"].astype(np.float64)
    result = vectors(config, tensors, tokens) @ head.T
    cap = config.get("final_logit_softcapping", 30.0 if model_type == "gemma2" else None)
    return cap * np.tanh(result / cap) if model_type.startswith("gemma") and cap is not None else result


def _conv1d(x: Array, weights: dict[str, Array], name: str) -> Array:
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _gpt2(config: dict[str, Any], weights: dict[str, Array], tokens: list[int]) -> Array:
    count, sees = config["n_head"], distances(len(tokens)) >= 0
    norm = partial(layer_norm, weights=weights, eps=config.get("layer_norm_epsilon", 1e-5))
    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][: len(tokens)]
    for i in range(config["n_layer"]):
        layer = f"transformer.h.{i}."
        scale = (x.shape[-1] // count) ** -0.5 if config.get("scale_attn_weights", True) else 1.0
        if config.get("scale_attn_by_inverse_layer_idx", False):
            scale /= i + 1
        read = attend(weights, layer, "attn.c_attn attn.c_proj", count, scale=scale, sees=sees, product=_conv1d)
        x = add(x, read, norm, f"{layer}ln_1")
        activation = config.get("activation_function", "gelu_new")
        x = add(x, feed(weights, layer, "mlp.c_fc mlp.c_proj", activation, product=_conv1d), norm, f"{layer}ln_2")
    return norm(x, name="transformer.ln_f")


def _is_sliding(config: dict[str, Any], i: int) -> bool:
    model_type = config["model_type"]
    if model_type == "mistral":
        return config.get("sliding_window", 4096) is not None
    if config.get("layer_types") is not None and model_type != "llama":
        return bool(config["layer_types"][i] == "sliding_attention")
    if model_type in ("qwen2", "qwen3"):
        uses = config.get("use_sliding_window", False) and config.get("sliding_window", 4096) is not None
        return uses and i >= config.get("max_window_layers", 28)
    if model_type == "gemma2":
        return i % 2 == 0
    return model_type == "gemma3_text" and (i + 1) % config.get("sliding_window_pattern", 6) != 0


def _base(config: dict[str, Any], sliding: bool) -> float:
    is_gemma3 = config["model_type"] == "gemma3_text"
    usual = "rope_local_base_freq" if sliding and is_gemma3 else "rope_theta"
    base: float = config.get(usual, 1e6 if is_gemma3 and not sliding else 1e4)
    rope = config.get("rope_parameters", {})
    if is_gemma3:
        rope = rope.get("sliding_attention" if sliding else "full_attention", {})
    return rope.get("rope_theta", base)


def _seen(config: dict[str, Any], count: int, window: int | None) -> Array:
    """[T, T]: a token sees itself and `window` - 1 before it; if both sides are seen, `window` // 2 on each."""
    before = distances(count)
    if config.get("use_bidirectional_attention"):
        return np.abs(before) <= (count if window is None else window // 2)
    return (before >= 0) & (before < (window or np.inf))


def _llama(config: dict[str, Any], weights: dict[str, Array], tokens: list[int]) -> Array:
    model_type, width, count = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    is_gemma = model_type.startswith("gemma")
    kv_count, head_dim = config["num_key_value_heads"], config.get("head_dim") or width // count
    activation = config.get("hidden_act", config.get("hidden_activation"))
    norm = partial(rms_norm, weights=weights, eps=config.get("rms_norm_eps", 1e-6), offset=is_gemma)
    scale = (config.get("query_pre_attn_scalar", 256) if is_gemma else head_dim) ** -0.5
    softcap = config.get("attn_logit_softcapping", 50.0) if model_type == "gemma2" else None
    x = weights["model.embed_tokens.weight"][tokens]
    if is_gemma:
        x = x * float(np.float32(math.sqrt(width)))
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        sliding = _is_sliding(config, i)

        def turn(x: Array, name: str, sliding: bool = sliding, layer: str = layer) -> Array:
            has_norm = model_type in ("qwen3", "gemma3_text")
            return rotated(norm(x, name=f"{layer}self_attn.{name}_norm") if has_norm else x, _base(config, sliding))

        sees = _seen(config, len(tokens), config.get("sliding_window", 4096) if sliding else None)
        names = "q_proj k_proj v_proj o_proj"
        options = {"scale": scale, "sees": sees, "softcap": softcap}
        read = attend(weights, f"{layer}self_attn.", names, count, kv_count, turn=turn, **options)
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        first, behind, second, last = (f"{layer}{name}_layernorm" for name in norms)
        x = add(x, read, norm, first, behind if is_gemma else "")
        inner = feed(weights, f"{layer}mlp.", "gate_proj up_proj down_proj", activation)
        x = add(x, inner, norm, *((second, last) if is_gemma else (behind,)))
    return norm(x, name="model.norm")
