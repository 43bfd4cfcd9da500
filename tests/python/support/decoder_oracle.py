"""Logits of decoders in float64, one text at a time, from the tensors and the config.json of transformers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def logits(config: dict[str, Any], tensors: dict[str, Array], tokens: list[int]) -> Array:
    """[T, V] for T tokens."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    return (_gpt2 if config["model_type"] == "gpt2" else _llama)(config, weights, tokens)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _attention(q: Array, k: Array, v: Array, scale: float, softcap: float | None, window: int | None) -> Array:
    """[H, T, D] from [H, T, D], [Hk, T, D] and [Hk, T, D]. A token sees itself and `window` - 1 before it."""
    shared = len(q) // len(k)
    scores = q @ np.repeat(k, shared, 0).swapaxes(1, 2) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])
    sees = (distance >= 0) & (distance < (window or np.inf))
    return _softmax(np.where(sees, scores, -np.inf)) @ np.repeat(v, shared, 0)


def _heads(x: Array, count: int) -> Array:
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def _activation(name: str, x: Array) -> Array:
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if name in ("gelu_new", "gelu_pytorch_tanh"):
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    assert name in ("silu", "swish")
    return x / (1 + np.exp(-x))


def _gpt2(config: dict[str, Any], weights: dict[str, Array], tokens: list[int]) -> Array:
    heads, eps = config["n_head"], config.get("layer_norm_epsilon", 1e-5)
    head_dim = config["n_embd"] // heads

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def product(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][: len(tokens)]
    for i in range(config["n_layer"]):
        layer = f"transformer.h.{i}"
        q, k, v = (
            _heads(part, heads) for part in np.split(product(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn"), 3, 1)
        )
        scale = head_dim**-0.5 if config.get("scale_attn_weights", True) else 1.0
        if config.get("scale_attn_by_inverse_layer_idx", False):
            scale /= i + 1
        seen = _attention(q, k, v, scale, None, None).swapaxes(0, 1).reshape(len(tokens), -1)
        x = x + product(seen, f"{layer}.attn.c_proj")
        inner = product(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")
        x = x + product(_activation(config.get("activation_function", "gelu_new"), inner), f"{layer}.mlp.c_proj")
    tied = config.get("tie_word_embeddings", True)
    return norm(x, "transformer.ln_f") @ weights["transformer.wte.weight" if tied else "lm_head.weight"].T


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


def _turned(x: Array, base: float) -> Array:
    """[heads, T, D], of which feature i and i + D / 2 turn together."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], -1
    )


def _llama(config: dict[str, Any], weights: dict[str, Array], tokens: list[int]) -> Array:
    model_type, width, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    is_gemma = model_type.startswith("gemma")
    kv_heads = config["num_key_value_heads"]
    head_dim = config.get("head_dim") or width // heads
    eps, inner = config.get("rms_norm_eps", 1e-6), config.get("hidden_act", config.get("hidden_activation"))

    def norm(x: Array, name: str) -> Array:
        weight = weights[f"{name}.weight"] + is_gemma
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    def product(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    x = weights["model.embed_tokens.weight"][tokens]
    if is_gemma:
        x = x * float(np.float32(math.sqrt(width)))
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        sliding = _is_sliding(config, i)
        base = config.get("rope_theta", 1e6 if model_type == "gemma3_text" else 1e4)
        if sliding and model_type == "gemma3_text":
            base = config.get("rope_local_base_freq", 1e4)
        read = norm(x, f"{layer}.input_layernorm")
        q = _heads(product(read, f"{layer}.self_attn.q_proj"), heads)
        k, v = (_heads(product(read, f"{layer}.self_attn.{name}_proj"), kv_heads) for name in "kv")
        if model_type in ("qwen3", "gemma3_text"):
            q, k = norm(q, f"{layer}.self_attn.q_norm"), norm(k, f"{layer}.self_attn.k_norm")
        scale = (config.get("query_pre_attn_scalar", 256) if is_gemma else head_dim) ** -0.5
        softcap = config.get("attn_logit_softcapping", 50.0) if model_type == "gemma2" else None
        window = config.get("sliding_window", 4096) if sliding else None
        seen = _attention(_turned(q, base), _turned(k, base), v, scale, softcap, window)
        added = product(seen.swapaxes(0, 1).reshape(len(tokens), -1), f"{layer}.self_attn.o_proj")
        x = x + (norm(added, f"{layer}.post_attention_layernorm") if is_gemma else added)
        read = norm(x, f"{layer}.{'pre_feedforward' if is_gemma else 'post_attention'}_layernorm")
        gate, up = product(read, f"{layer}.mlp.gate_proj"), product(read, f"{layer}.mlp.up_proj")
        added = product(_activation(inner, gate) * up, f"{layer}.mlp.down_proj")
        x = x + (norm(added, f"{layer}.post_feedforward_layernorm") if is_gemma else added)
    tied = config.get("tie_word_embeddings", is_gemma)
    result = norm(x, "model.norm") @ weights["model.embed_tokens.weight" if tied else "lm_head.weight"].T
    cap = config.get("final_logit_softcapping", 30.0 if model_type == "gemma2" else None)
    return cap * np.tanh(result / cap) if is_gemma and cap is not None else result
