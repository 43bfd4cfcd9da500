"""Encoder-decoders of every family with random weights, small enough to write one for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_bert
from checkpoints import Shapes, affine, random_weights

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


def shapes(settings: dict[str, Any]) -> Shapes:
    """The tensors of the model, as transformers saves it."""
    result = (_t5_shapes if settings["model_type"] == "t5" else _bart_shapes)(settings)
    if not settings.get("tie_word_embeddings", True):
        result["lm_head.weight"] = (settings["vocab_size"], settings["d_model"])
    return result


def _bart_shapes(settings: dict[str, Any]) -> Shapes:
    vocabulary, width, model_type = settings["vocab_size"], settings["d_model"], settings["model_type"]
    result: Shapes = {"model.shared.weight": (vocabulary, width), "final_logits_bias": (1, vocabulary)}
    norms = []
    for stack in ("encoder", "decoder"):
        if model_type in ("bart", "mbart"):
            result[f"model.{stack}.embed_positions.weight"] = (settings["max_position_embeddings"] + 2, width)
            norms.append(f"model.{stack}.layernorm_embedding")
        if model_type in ("mbart", "pegasus"):
            norms.append(f"model.{stack}.layer_norm")
        inner = settings[f"{stack}_ffn_dim"]
        attentions = ["self_attn"] + ["encoder_attn"] * (stack == "decoder")
        for i in range(settings[f"{stack}_layers"]):
            layer = f"model.{stack}.layers.{i}."
            for name in attentions:
                result |= affine("q_proj k_proj v_proj out_proj", width, width, prefix=f"{layer}{name}.")
            result |= affine("fc1", inner, width, prefix=layer) | affine("fc2", width, inner, prefix=layer)
            norms += [f"{layer}{name}_layer_norm" for name in [*attentions, "final"]]
    return result | affine(norms, width)


def _t5_shapes(settings: dict[str, Any]) -> Shapes:
    width, heads, inner = settings["d_model"], settings["num_heads"], settings["d_ff"]
    rows, buckets = heads * settings["d_kv"], settings["relative_attention_num_buckets"]
    rising = "wi_0 wi_1" if settings.get("feed_forward_proj", "relu").startswith("gated") else "wi"
    result: Shapes = {"shared.weight": (settings["vocab_size"], width)}
    for stack, depth in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        parts = ["SelfAttention"] + ["EncDecAttention"] * (stack == "decoder")
        result[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (buckets, heads)
        result |= affine("final_layer_norm", width, prefix=f"{stack}.", bias=False)
        for i in range(settings[depth]):
            layer = f"{stack}.block.{i}.layer."
            for part, name in enumerate(parts):
                result |= affine("q k v", rows, width, prefix=f"{layer}{part}.{name}.", bias=False)
                result |= affine("o", width, rows, prefix=f"{layer}{part}.{name}.", bias=False)
            dense = f"{layer}{len(parts)}.DenseReluDense."
            result |= affine(rising, inner, width, prefix=dense, bias=False)
            result |= affine("wo", width, inner, prefix=dense, bias=False)
            norms = [f"{part}.layer_norm" for part in range(len(parts) + 1)]
            result |= affine(norms, width, prefix=layer, bias=False)
    return result


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Return random weights."""
    of_model = shapes(settings)

    def size(name: str) -> float:
        if len(of_model[name]) == 1 or name == "final_logits_bias":
            return 0.3
        is_table = "shared" in name or "embed_positions" in name or "bias" in name
        return 1.0 if is_table else of_model[name][1] ** -0.5

    return random_weights(of_model, size, seed=_SEEDS.get(settings["model_type"], 0))


def write(
    directory: Path,
    settings: dict[str, Any],
    weights: dict[str, Array] | None = None,
    files: dict[str, Any] | None = None,
) -> Path:
    """The directory of a model. `files` are written as JSON, or as they are if they are a str."""
    return tiny_bert.write_language_model(directory, settings, tensors(settings) if weights is None else weights, files)
