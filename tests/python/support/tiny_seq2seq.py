"""Encoder-decoders of every family with random weights, small enough to write one for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert

Array = np.ndarray[Any, Any]

FAMILIES = ["bart", "marian", "mbart", "pegasus", "t5"]

VOCABULARY, WIDTH, POSITIONS = 40, 24, 32
PADDING, START, END = 0, 2, 3

_TOKENS = {"pad_token_id": PADDING, "decoder_start_token_id": START, "eos_token_id": END, "bos_token_id": START}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": POSITIONS,
    "forced_eos_token_id": None,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}

# Where weights of the seed 0 write the same token again and again.
_SEEDS = {"marian": 2}

# Every family, with the entries of config.json that change its results.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("bart", {}),
    ("bart", {"scale_embedding": True}),
    ("bart", {"activation_function": "relu"}),
    ("bart", {"activation_function": "gelu_new"}),
    ("marian", {}),
    ("marian", {"scale_embedding": True, "activation_function": "swish", "share_encoder_decoder_embeddings": True}),
    ("mbart", {}),
    ("mbart", {"scale_embedding": True, "activation_function": "relu"}),
    ("pegasus", {}),
    ("pegasus", {"scale_embedding": True, "activation_function": "relu"}),
    ("t5", {}),
    ("t5", {"feed_forward_proj": "gelu"}),
    ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", {"feed_forward_proj": "gated-silu", "dense_act_fn": "silu", "is_gated_act": True}),
    ("t5", {"scale_decoder_outputs": False}),
    ("t5", {"layer_norm_epsilon": 0.3, "d_kv": 16}),
]


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    """config.json."""
    return {"model_type": model_type, **_TOKENS, **(_T5 if model_type == "t5" else _BART)} | changes


def shapes(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of the model, as transformers saves it."""
    result = (_t5_shapes if settings["model_type"] == "t5" else _bart_shapes)(settings)
    if not settings.get("tie_word_embeddings", True):
        result["lm_head.weight"] = (settings["vocab_size"], settings["d_model"])
    return result


def _bart_shapes(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    vocabulary, width = settings["vocab_size"], settings["d_model"]
    result: dict[str, tuple[int, ...]] = {
        "model.shared.weight": (vocabulary, width),
        "final_logits_bias": (1, vocabulary),
    }
    norms = []
    for stack in ("encoder", "decoder"):
        if settings["model_type"] in ("bart", "mbart"):
            result[f"model.{stack}.embed_positions.weight"] = (settings["max_position_embeddings"] + 2, width)
            norms.append(f"model.{stack}.layernorm_embedding")
        if settings["model_type"] in ("mbart", "pegasus"):
            norms.append(f"model.{stack}.layer_norm")
        inner = settings[f"{stack}_ffn_dim"]
        attentions = ["self_attn"] + ["encoder_attn"] * (stack == "decoder")
        for i in range(settings[f"{stack}_layers"]):
            layer = f"model.{stack}.layers.{i}"
            products = {f"{name}.{part}_proj": (width, width) for name in attentions for part in ("q", "k", "v", "out")}
            for name, shape in (products | {"fc1": (inner, width), "fc2": (width, inner)}).items():
                result |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
            norms += [f"{layer}.{name}_layer_norm" for name in [*attentions, "final"]]
    return result | {f"{norm}.{which}": (width,) for norm in norms for which in ("weight", "bias")}


def _t5_shapes(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, heads, inner = settings["d_model"], settings["num_heads"], settings["d_ff"]
    rows = heads * settings["d_kv"]
    is_gated = settings.get("feed_forward_proj", "relu").startswith("gated")
    result: dict[str, tuple[int, ...]] = {"shared.weight": (settings["vocab_size"], width)}
    for stack, depth in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        parts = ["SelfAttention"] + ["EncDecAttention"] * (stack == "decoder")
        buckets = (settings["relative_attention_num_buckets"], heads)
        result[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = buckets
        result[f"{stack}.final_layer_norm.weight"] = (width,)
        for i in range(settings[depth]):
            layer = f"{stack}.block.{i}.layer"
            for part, name in enumerate(parts):
                result |= {f"{layer}.{part}.{name}.{letter}.weight": (rows, width) for letter in "qkv"}
                result[f"{layer}.{part}.{name}.o.weight"] = (width, rows)
            for name in ["wi_0", "wi_1"] if is_gated else ["wi"]:
                result[f"{layer}.{len(parts)}.DenseReluDense.{name}.weight"] = (inner, width)
            result[f"{layer}.{len(parts)}.DenseReluDense.wo.weight"] = (width, inner)
            result |= {f"{layer}.{part}.layer_norm.weight": (width,) for part in range(len(parts) + 1)}
    return result


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Random weights of such a size that no part of the model is without effect."""
    rng = np.random.default_rng(_SEEDS.get(settings["model_type"], 0))
    result = {}
    for name, shape in shapes(settings).items():
        is_table = "shared" in name or "embed_positions" in name
        is_small = len(shape) == 1 or name == "final_logits_bias"
        size = 0.3 if is_small else 1.0 if is_table or "bias" in name else 1 / np.sqrt(shape[1])
        is_norm = len(shape) == 1 and name.endswith("weight")
        result[name] = (rng.standard_normal(shape) * size + is_norm).astype(np.float32)
    return result


def write(
    directory: Path,
    settings: dict[str, Any],
    weights: dict[str, Array] | None = None,
    files: dict[str, Any] | None = None,
) -> Path:
    """The directory of a model. `files` are written as JSON, or as they are if they are a str."""
    return tiny_bert.write_language_model(directory, settings, tensors(settings) if weights is None else weights, files)
