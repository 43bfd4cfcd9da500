"""Encoders that came after BERT, with random weights: what their files say, and their vectors in float64.

Each is computed as its authors describe it, one text at a time, from the names in its files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import decoder_oracle
import numpy as np
import tiny_bert
import tiny_generators
from checkpoints import Shapes, affine, usual_weights
from oracle_parts import add, attend, distances, feed, layer_norm, rotated

Array = np.ndarray[Any, Any]

ENCODERS = ["modernbert", "nomic_bert", "gte", "gemma3_text", "qwen3"]
WITH_TYPES = ["nomic_bert", "gte"]
PREFIXES = {"modernbert": "model.", "nomic_bert": "nomic_bert.", "gte": "gte.", "gemma3_text": "model.",
            "qwen3": "model."}  # fmt: skip

_FULL, _SLIDING = "full_attention", "sliding_attention"
_COMMON = {
    "vocab_size": len(tiny_bert.WORDS) + 3,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
    "pad_token_id": 0,
}
_DECODER = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6}
_OWN: dict[str, dict[str, Any]] = {
    "modernbert": {
        "num_hidden_layers": 4, "local_attention": 6, "global_attn_every_n_layers": 3, "norm_eps": 1e-5,
        "hidden_activation": "gelu", "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "norm_bias": False,
        "attention_bias": False, "mlp_bias": False,
    },
    "nomic_bert": {"hidden_act": "silu", "layer_norm_eps": 1e-12, "type_vocab_size": 2,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    "gte": {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 160000.0}},
    "gemma3_text": _DECODER | {
        "num_hidden_layers": 3, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 6,
        "layer_types": [_SLIDING, _FULL, _SLIDING], "query_pre_attn_scalar": 32, "use_bidirectional_attention": True,
        "rope_parameters": {_FULL: {"rope_type": "default", "rope_theta": 1e6},
                            _SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
    },
    "qwen3": _DECODER | {"hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
}  # fmt: skip


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    """config.json."""
    return {"model_type": model_type} | _COMMON | _OWN[model_type] | changes


def _shapes(values: dict[str, Any]) -> Shapes:
    kind, width, inner = values["model_type"], values["hidden_size"], values["intermediate_size"]
    if kind not in ("modernbert", *WITH_TYPES):
        shapes = tiny_generators.shapes(values | {"tie_word_embeddings": True})
        return {name.removeprefix("model."): shape for name, shape in shapes.items()}
    words = "embeddings.tok_embeddings" if kind == "modernbert" else "embeddings.word_embeddings"
    shapes = {f"{words}.weight": (values["vocab_size"], width)}
    if values.get("type_vocab_size"):
        shapes["embeddings.token_type_embeddings.weight"] = (values["type_vocab_size"], width)
    for i in range(values["num_hidden_layers"]):
        if kind == "modernbert":
            of_heads, of_rows = (
                {"prefix": f"layers.{i}.", "bias": values[f"{name}_bias"]} for name in ("attention", "mlp")
            )
            shapes |= affine("attn.Wqkv", 3 * width, width, **of_heads) | affine("attn.Wo", width, width, **of_heads)
            shapes |= affine("mlp.Wi", 2 * inner, width, **of_rows) | affine("mlp.Wo", width, inner, **of_rows)
            norms = ["attn_norm"] * (i > 0) + ["mlp_norm"]
            shapes |= affine(norms, width, prefix=f"layers.{i}.", bias=values["norm_bias"])
        elif kind == "nomic_bert":
            layer = f"encoder.layers.{i}."
            inside = values.get("head_dim", width // values["num_attention_heads"]) * values["num_attention_heads"]
            shapes |= affine("attn.Wqkv", 3 * inside, width, prefix=layer, bias=False)
            shapes |= affine("attn.out_proj", width, inside, prefix=layer, bias=False)
            shapes |= affine("mlp.fc11 mlp.fc12", inner, width, prefix=layer, bias=False)
            shapes |= affine("mlp.fc2", width, inner, prefix=layer, bias=False)
            shapes |= affine("norm1 norm2", width, prefix=layer)
        elif kind == "gte":
            layer = f"encoder.layer.{i}."
            shapes |= affine("attention.qkv_proj", 3 * width, width, prefix=layer)
            shapes |= affine("attention.o_proj", width, width, prefix=layer)
            shapes |= affine("mlp.up_gate_proj", 2 * inner, width, prefix=layer, bias=False)
            shapes |= affine("mlp.down_proj", width, inner, prefix=layer)
            shapes |= affine("attn_ln mlp_ln", width, prefix=layer)
    if kind == "modernbert":
        return shapes | affine("embeddings.norm final_norm", width, bias=values["norm_bias"])
    return shapes | affine("emb_ln" if kind == "nomic_bert" else "embeddings.LayerNorm", width)


def tensors(values: dict[str, Any]) -> dict[str, Array]:
    """Return random weights. The norms of Gemma multiply with 1 more than their weights."""
    return usual_weights(_shapes(values), norm=values["model_type"] != "gemma3_text")


def write(
    directory: Path, model_type: str, files: dict[str, Any] | None = None, prefix: str = "", **changes: Any
) -> Path:
    """The directory of a model, as `tiny_bert.write` writes it. `changes` are entries of config.json."""
    values = config(model_type, **changes)
    weights = {prefix + name: tensor for name, tensor in tensors(values).items()}
    return tiny_bert.write(directory, values, weights, files)


def hidden_states(values: dict[str, Any], tokens: list[int], types: list[int] | None = None) -> Array:
    """What the model gives for the tokens of one text, in float64: [T, E]."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors(values).items()}
    kind = values["model_type"]
    if kind == "modernbert":
        return _modernbert(values, weights, tokens)
    if kind in WITH_TYPES:
        return _rotary_bert(values, weights, tokens, [0] * len(tokens) if types is None else types)
    return decoder_oracle.vectors(values, {f"model.{name}": x for name, x in weights.items()}, tokens)


def embedding(values: dict[str, Any], tokens: list[int]) -> Array:
    """The mean of the vectors, scaled to length 1."""
    mean = hidden_states(values, tokens).mean(0)
    return mean / np.linalg.norm(mean)


def _modernbert(values: dict[str, Any], weights: dict[str, Array], tokens: list[int]) -> Array:
    count, every = values["num_attention_heads"], values["global_attn_every_n_layers"]
    radius, between = values["local_attention"] // 2, np.abs(distances(len(tokens)))
    norm = partial(layer_norm, weights=weights, eps=values["norm_eps"])
    x = norm(weights["embeddings.tok_embeddings.weight"][tokens], name="embeddings.norm")
    for i in range(values["num_hidden_layers"]):
        layer, is_global = f"layers.{i}.", i % every == 0
        turn = _turn(values["global_rope_theta" if is_global else "local_rope_theta"])
        sees = between <= (len(tokens) if is_global else radius)
        read = attend(weights, f"{layer}attn.", "Wqkv Wo", count, sees=sees, turn=turn)
        x = add(x, read, norm, f"{layer}attn_norm" if i else "")
        x = add(x, feed(weights, f"{layer}mlp.", "Wi Wo", values["hidden_activation"], 1), norm, f"{layer}mlp_norm")
    return norm(x, name="final_norm")


def _turn(base: float) -> Any:
    return lambda x, name: rotated(x, base)


def _rotary_bert(values: dict[str, Any], weights: dict[str, Array], tokens: list[int], types: list[int]) -> Array:
    is_nomic, count = values["model_type"] == "nomic_bert", values["num_attention_heads"]
    norm = partial(layer_norm, weights=weights, eps=values["layer_norm_eps"])
    x = weights["embeddings.word_embeddings.weight"][tokens]
    if values["type_vocab_size"]:
        x = x + weights["embeddings.token_type_embeddings.weight"][types]
    x = norm(x, name="emb_ln" if is_nomic else "embeddings.LayerNorm")
    projections, rows, norm1, norm2 = (
        ("attn.Wqkv attn.out_proj", "mlp.fc12 mlp.fc11 mlp.fc2", "norm1", "norm2") if is_nomic
        else ("attention.qkv_proj attention.o_proj", "mlp.up_gate_proj mlp.down_proj", "attn_ln", "mlp_ln")
    )  # fmt: skip
    for i in range(values["num_hidden_layers"]):
        layer = f"encoder.layers.{i}." if is_nomic else f"encoder.layer.{i}."
        read = attend(weights, layer, projections, count, turn=_turn(values["rope_parameters"]["rope_theta"]))
        x = add(x, read, norm, last=layer + norm1)
        inner = feed(weights, layer, rows, values["hidden_act"], 0 if is_nomic else -1)
        x = add(x, inner, norm, last=layer + norm2)
    return x
