"""Encoders that came after BERT, with random weights: what their files say, and their vectors in float64.

Each is computed as its authors describe it, one text at a time, from the names in its files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import decoder_oracle
import numpy as np
import tiny_bert
import tiny_decoders
from oracle_parts import ACTIVATIONS, attention, distances, heads, layer_norm, linear, rotated

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


def _shapes(values: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    kind, width, inner = values["model_type"], values["hidden_size"], values["intermediate_size"]
    if kind not in ("modernbert", *WITH_TYPES):
        shapes = tiny_decoders.shapes(values | {"tie_word_embeddings": True})
        return {name.removeprefix("model."): shape for name, shape in shapes.items()}
    words = "embeddings.tok_embeddings" if kind == "modernbert" else "embeddings.word_embeddings"
    shapes = {f"{words}.weight": (values["vocab_size"], width)}
    if values.get("type_vocab_size"):
        shapes["embeddings.token_type_embeddings.weight"] = (values["type_vocab_size"], width)

    def linear(name: str, rows: int, features: int, bias: bool = False) -> None:
        shapes[f"{name}.weight"] = (rows, features)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    def norm(name: str, bias: bool = False, features: int = width) -> None:
        shapes[f"{name}.weight"] = (features,)
        if bias:
            shapes[f"{name}.bias"] = (features,)

    for i in range(values["num_hidden_layers"]):
        if kind == "modernbert":
            layer, of_heads, of_rows = f"layers.{i}", values["attention_bias"], values["mlp_bias"]
            linear(f"{layer}.attn.Wqkv", 3 * width, width, of_heads)
            linear(f"{layer}.attn.Wo", width, width, of_heads)
            linear(f"{layer}.mlp.Wi", 2 * inner, width, of_rows)
            linear(f"{layer}.mlp.Wo", width, inner, of_rows)
            for name in ["attn_norm"] * (i > 0) + ["mlp_norm"]:
                norm(f"{layer}.{name}", values["norm_bias"])
        elif kind == "nomic_bert":
            layer = f"encoder.layers.{i}"
            inside = values.get("head_dim", width // values["num_attention_heads"]) * values["num_attention_heads"]
            linear(f"{layer}.attn.Wqkv", 3 * inside, width)
            linear(f"{layer}.attn.out_proj", width, inside)
            for name in ("fc11", "fc12"):
                linear(f"{layer}.mlp.{name}", inner, width)
            linear(f"{layer}.mlp.fc2", width, inner)
            for name in ("norm1", "norm2"):
                norm(f"{layer}.{name}", True)
        elif kind == "gte":
            layer = f"encoder.layer.{i}"
            linear(f"{layer}.attention.qkv_proj", 3 * width, width, True)
            linear(f"{layer}.attention.o_proj", width, width, True)
            linear(f"{layer}.mlp.up_gate_proj", 2 * inner, width)
            linear(f"{layer}.mlp.down_proj", width, inner, True)
            for name in ("attn_ln", "mlp_ln"):
                norm(f"{layer}.{name}", True)
    if kind == "modernbert":
        norm("embeddings.norm", values["norm_bias"])
        norm("final_norm", values["norm_bias"])
    else:
        norm("emb_ln" if kind == "nomic_bert" else "embeddings.LayerNorm", True)
    return shapes


def tensors(values: dict[str, Any]) -> dict[str, Array]:
    """Random weights of about the size that trained ones have, so that no part of the model is without effect."""
    rng = np.random.default_rng(0)
    offset = 0 if values["model_type"] == "gemma3_text" else 1  # which multiplies with 1 more than the weights of norms
    result = {}
    for name, shape in _shapes(values).items():
        numbers = rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) == 2 else 4)
        is_norm = len(shape) == 1 and name.endswith(".weight")
        result[name] = (numbers + (offset if is_norm else 0)).astype(np.float32)
    return result


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
    eps, count, every = values["norm_eps"], values["num_attention_heads"], values["global_attn_every_n_layers"]
    radius, between = values["local_attention"] // 2, np.abs(distances(len(tokens)))
    activation = ACTIVATIONS[values["hidden_activation"]]
    x = layer_norm(weights["embeddings.tok_embeddings.weight"][tokens], weights, "embeddings.norm", eps)
    for i in range(values["num_hidden_layers"]):
        layer, is_global = f"layers.{i}", i % every == 0
        y = x if i == 0 else layer_norm(x, weights, f"{layer}.attn_norm", eps)
        q, k, v = (heads(part, count) for part in np.split(linear(y, weights, f"{layer}.attn.Wqkv"), 3, -1))
        base = values["global_rope_theta" if is_global else "local_rope_theta"]
        sees = between <= (len(tokens) if is_global else radius)
        rows = attention(rotated(q, base), rotated(k, base), v, q.shape[-1] ** -0.5, sees)
        x = x + linear(rows, weights, f"{layer}.attn.Wo")
        y = layer_norm(x, weights, f"{layer}.mlp_norm", eps)
        activated, other = np.split(linear(y, weights, f"{layer}.mlp.Wi"), 2, -1)
        x = x + linear(activation(activated) * other, weights, f"{layer}.mlp.Wo")
    return layer_norm(x, weights, "final_norm", eps)


def _rotary_bert(values: dict[str, Any], weights: dict[str, Array], tokens: list[int], types: list[int]) -> Array:
    is_nomic = values["model_type"] == "nomic_bert"
    eps, count, base = values["layer_norm_eps"], values["num_attention_heads"], values["rope_parameters"]["rope_theta"]
    activation = ACTIVATIONS[values["hidden_act"]]
    x = weights["embeddings.word_embeddings.weight"][tokens]
    if values["type_vocab_size"]:
        x = x + weights["embeddings.token_type_embeddings.weight"][types]
    x = layer_norm(x, weights, "emb_ln" if is_nomic else "embeddings.LayerNorm", eps)
    qkv, out, norm1, norm2, down = (
        ("attn.Wqkv", "attn.out_proj", "norm1", "norm2", "mlp.fc2") if is_nomic
        else ("attention.qkv_proj", "attention.o_proj", "attn_ln", "mlp_ln", "mlp.down_proj")
    )  # fmt: skip
    for i in range(values["num_hidden_layers"]):
        layer = f"encoder.layers.{i}" if is_nomic else f"encoder.layer.{i}"
        q, k, v = (heads(part, count) for part in np.split(linear(x, weights, f"{layer}.{qkv}"), 3, -1))
        rows = attention(rotated(q, base), rotated(k, base), v, q.shape[-1] ** -0.5)
        x = layer_norm(x + linear(rows, weights, f"{layer}.{out}"), weights, f"{layer}.{norm1}", eps)
        if is_nomic:
            up, gate = (linear(x, weights, f"{layer}.mlp.{name}") for name in ("fc11", "fc12"))
        else:
            up, gate = np.split(linear(x, weights, f"{layer}.mlp.up_gate_proj"), 2, -1)
        rows = linear(activation(gate) * up, weights, f"{layer}.{down}")
        x = layer_norm(x + rows, weights, f"{layer}.{norm2}", eps)
    return x
