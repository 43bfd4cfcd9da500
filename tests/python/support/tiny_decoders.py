"""Decoders of every family with random weights, small enough to write one for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert
from checkpoints import Shapes, affine, random_weights

Array = np.ndarray[Any, Any]

FAMILIES = ["gemma2", "gemma3_text", "gpt2", "llama", "mistral", "qwen2", "qwen3"]

VOCABULARY, WIDTH, HEADS, KV_HEADS, LAYERS, INNER, POSITIONS = 45, 24, 4, 2, 3, 40, 32

_GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": INNER, "n_positions": POSITIONS}
_LLAMA = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "hidden_act": "silu",
}
_GEMMA = {name: value for name, value in _LLAMA.items() if name != "hidden_act"} | {
    "head_dim": 8,
    "query_pre_attn_scalar": 5,
    "sliding_window": 4,
    "hidden_activation": "gelu_pytorch_tanh",
}
_OF_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA | {"sliding_window": 4},
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 8},
    # Caps that change much: scores and logits are of the order of 1.
    "gemma2": _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": _GEMMA | {"sliding_window_pattern": 2},
}


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    """config.json."""
    return {"model_type": model_type, "vocab_size": VOCABULARY, **_OF_FAMILIES[model_type]} | changes


def shapes(settings: dict[str, Any]) -> Shapes:
    """The tensors of the model, as transformers saves it."""
    model_type = settings["model_type"]
    if model_type == "gpt2":
        return _gpt2_shapes(settings)
    width, inner = settings["hidden_size"], settings["intermediate_size"]
    head_dim = settings.get("head_dim") or width // settings["num_attention_heads"]
    rows, kv_rows = settings["num_attention_heads"] * head_dim, settings["num_key_value_heads"] * head_dim
    is_gemma = model_type.startswith("gemma")
    has_choice = model_type in ("llama", "qwen3", "gemma2", "gemma3_text")
    all_biases = has_choice and settings.get("attention_bias", False)
    result: Shapes = {"model.embed_tokens.weight": (settings["vocab_size"], width)}
    for i in range(settings["num_hidden_layers"]):
        layer, has_bias = f"model.layers.{i}.", all_biases or model_type == "qwen2"
        result |= affine("q_proj", rows, width, prefix=f"{layer}self_attn.", bias=has_bias)
        result |= affine("k_proj v_proj", kv_rows, width, prefix=f"{layer}self_attn.", bias=has_bias)
        result |= affine("o_proj", width, rows, prefix=f"{layer}self_attn.", bias=all_biases)
        has_bias = model_type == "llama" and settings.get("mlp_bias", False)
        result |= affine("gate_proj up_proj", inner, width, prefix=f"{layer}mlp.", bias=has_bias)
        result |= affine("down_proj", width, inner, prefix=f"{layer}mlp.", bias=has_bias)
        norms = ["input", "post_attention"] + ["pre_feedforward", "post_feedforward"] * is_gemma
        result |= affine([f"{name}_layernorm" for name in norms], width, prefix=layer, bias=False)
        if model_type in ("qwen3", "gemma3_text"):
            result |= affine("q_norm k_norm", head_dim, prefix=f"{layer}self_attn.", bias=False)
    return result | affine("model.norm", width, bias=False) | _head(settings, width, is_gemma)


def _gpt2_shapes(settings: dict[str, Any]) -> Shapes:
    width = settings["n_embd"]
    inner = settings.get("n_inner") or 4 * width
    result: Shapes = {
        "transformer.wte.weight": (settings["vocab_size"], width),
        "transformer.wpe.weight": (settings["n_positions"], width),
    }
    products = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
    products |= {"mlp.c_fc": (width, inner), "mlp.c_proj": (inner, width)}
    for i in range(settings["n_layer"]):
        layer = f"transformer.h.{i}."
        for name, shape in products.items():  # [in, out]
            result |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[1:]}
        result |= affine("ln_1 ln_2", width, prefix=layer)
    return result | affine("transformer.ln_f", width) | _head(settings, width, True)


def _head(settings: dict[str, Any], width: int, is_tied: bool) -> Shapes:
    is_tied = settings.get("tie_word_embeddings", is_tied)
    return {} if is_tied else {"lm_head.weight": (settings["vocab_size"], width)}


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Return random weights. The norms of Gemma multiply with 1 more than their weights."""
    of_model, is_gemma = shapes(settings), settings["model_type"].startswith("gemma")
    return random_weights(
        of_model, lambda name: 1 / np.sqrt(WIDTH) if len(of_model[name]) == 2 else 0.3, norm=not is_gemma
    )


def renamed(weights: dict[str, Array]) -> dict[str, Array]:
    """The same as of a model that was saved without a head: names do not begin with that of the model."""
    return {name.removeprefix("model.").removeprefix("transformer."): x for name, x in weights.items()}


def write(
    directory: Path,
    settings: dict[str, Any],
    weights: dict[str, Array] | None = None,
    files: dict[str, Any] | None = None,
) -> Path:
    """The directory of a model. `files` are written as JSON, or as they are if they are a str."""
    return tiny_bert.write_language_model(directory, settings, tensors(settings) if weights is None else weights, files)
