"""Decoders of every family with random weights, small enough to write one for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert

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


def shapes(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
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
    result: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (settings["vocab_size"], width)}
    for i in range(settings["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for name, shape in (
            ("q", (rows, width)),
            ("k", (kv_rows, width)),
            ("v", (kv_rows, width)),
            ("o", (width, rows)),
        ):
            result[f"{layer}.self_attn.{name}_proj.weight"] = shape
            if all_biases or (model_type == "qwen2" and name != "o"):
                result[f"{layer}.self_attn.{name}_proj.bias"] = shape[:1]
        for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            result[f"{layer}.mlp.{name}_proj.weight"] = shape
            if model_type == "llama" and settings.get("mlp_bias", False):
                result[f"{layer}.mlp.{name}_proj.bias"] = shape[:1]
        norms = ["input", "post_attention"] + ["pre_feedforward", "post_feedforward"] * is_gemma
        result |= {f"{layer}.{name}_layernorm.weight": (width,) for name in norms}
        if model_type in ("qwen3", "gemma3_text"):
            result |= {f"{layer}.self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    result["model.norm.weight"] = (width,)
    if not settings.get("tie_word_embeddings", is_gemma):
        result["lm_head.weight"] = (settings["vocab_size"], width)
    return result


def _gpt2_shapes(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width = settings["n_embd"]
    inner = settings.get("n_inner") or 4 * width
    result: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (settings["vocab_size"], width),
        "transformer.wpe.weight": (settings["n_positions"], width),
    }
    for i in range(settings["n_layer"]):
        for name, features, rows in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, inner),
            ("mlp.c_proj", inner, width),
        ):
            result[f"transformer.h.{i}.{name}.weight"] = (features, rows)
            result[f"transformer.h.{i}.{name}.bias"] = (rows,)
        for name in ("ln_1", "ln_2"):
            result |= {f"transformer.h.{i}.{name}.{which}": (width,) for which in ("weight", "bias")}
    result |= {f"transformer.ln_f.{which}": (width,) for which in ("weight", "bias")}
    if not settings.get("tie_word_embeddings", True):
        result["lm_head.weight"] = (settings["vocab_size"], width)
    return result


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Random weights of such a size that no part of the model is without effect."""
    rng = np.random.default_rng(0)
    is_gemma = settings["model_type"].startswith("gemma")
    result = {}
    for name, shape in shapes(settings).items():
        size = 1 / np.sqrt(WIDTH) if len(shape) == 2 else 0.3
        is_norm = len(shape) == 1 and name.endswith("weight")
        tensor = rng.standard_normal(shape) * size + (is_norm and not is_gemma)
        result[name] = tensor.astype(np.float32)
    return result


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
