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
from oracle_parts import add, attend, distances, feed, heads, layer_norm, linear, rotated

Array = np.ndarray[Any, Any]

ROTARY = ["modernbert", "nomic_bert", "gte", "gemma3_text", "qwen3"]
LIKE_BERT = ["albert", "electra", "deberta-v2"]
ENCODERS = [*ROTARY, *LIKE_BERT]
ROTARY_WITH_TYPES = ["nomic_bert", "gte"]
WITH_TYPES = [*ROTARY_WITH_TYPES, *LIKE_BERT]
PREFIXES = {"modernbert": "model.", "nomic_bert": "nomic_bert.", "gte": "gte.", "gemma3_text": "model.",
            "qwen3": "model.", "albert": "albert.", "electra": "electra.", "deberta-v2": "deberta."}  # fmt: skip

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
_BERT = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2}
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
    "albert": _BERT | {"embedding_size": 10, "num_hidden_layers": 5, "num_hidden_groups": 2, "hidden_act": "gelu_new"},
    "electra": _BERT | {"embedding_size": 10},
    "deberta-v2": _BERT | {
        "relative_attention": True, "position_buckets": 6, "max_relative_positions": -1, "pos_att_type": "p2c|c2p",
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
    },
}  # fmt: skip


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    """config.json."""
    return {"model_type": model_type} | _COMMON | _OWN[model_type] | changes


def _shapes(values: dict[str, Any]) -> Shapes:
    kind, width, inner = values["model_type"], values["hidden_size"], values["intermediate_size"]
    if kind in LIKE_BERT:
        return _shapes_like_bert(values)
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


# Names of the parts of a layer: of ALBERT; of the others, where the projections of DeBERTa have longer names.
_ALBERT = ("query key value dense LayerNorm", "ffn ffn_output", "full_layer_layer_norm")
_BERT_PARTS = ("self.query self.key self.value output.dense output.LayerNorm", "intermediate.dense output.dense",
               "output.LayerNorm")  # fmt: skip


def _parts(values: dict[str, Any], i: int) -> tuple[str, list[str], str, str]:
    """The prefix of layer i; its attention, with the norm last; its feed-forward; and its second norm."""
    kind, groups = values["model_type"], values.get("num_hidden_groups", 1)
    attention, feed_forward, norm = _ALBERT if kind == "albert" else _BERT_PARTS
    if kind == "deberta-v2":
        attention = attention.replace("query", "query_proj").replace("key", "key_proj").replace("value", "value_proj")
    group = i * groups // values["num_hidden_layers"]
    layer = f"encoder.albert_layer_groups.{group}.albert_layers.0." if kind == "albert" else f"encoder.layer.{i}."
    return layer, [f"attention.{name}" for name in attention.split()], feed_forward, norm


def _has_relative(values: dict[str, Any]) -> bool:
    return bool(values.get("relative_attention"))


def _shapes_like_bert(values: dict[str, Any]) -> Shapes:
    kind, width, inner = values["model_type"], values["hidden_size"], values["intermediate_size"]
    narrow = values.get("embedding_size", width)
    tables = {"word": values["vocab_size"], "token_type": values["type_vocab_size"]}
    if values.get("position_biased_input", True):
        tables["position"] = values["max_position_embeddings"]
    shapes: Shapes = {f"embeddings.{name}_embeddings.weight": (rows, narrow) for name, rows in tables.items() if rows}
    shapes |= affine("embeddings.LayerNorm", narrow)
    if kind == "albert" or narrow != width:
        shapes |= affine(_PROJECTIONS[kind], width, narrow)
    for i in range(values["num_hidden_layers"]):
        layer, (*attention, norm1), feed_forward, norm2 = _parts(values, i)
        up, down = feed_forward.split()
        shapes |= affine(attention, width, width, prefix=layer) | affine([norm1, norm2], width, prefix=layer)
        shapes |= affine(up, inner, width, prefix=layer) | affine(down, width, inner, prefix=layer)
        if _has_relative(values) and not values["share_att_key"]:
            own = [f"attention.self.pos_{_OF_TERMS[term]}_proj" for term in values["pos_att_type"].split("|")]
            shapes |= affine(own, width, width, prefix=layer)
    if _has_relative(values):
        most = values["max_position_embeddings"]
        span = values["position_buckets"] if values["position_buckets"] > 0 else most
        shapes["encoder.rel_embeddings.weight"] = (2 * span, width)
        if values["norm_rel_ebd"] == "layer_norm":
            shapes |= affine("encoder.LayerNorm", width)
    return shapes


_PROJECTIONS = {"albert": "encoder.embedding_hidden_mapping_in", "electra": "embeddings_project"}
_OF_TERMS = {"c2p": "key", "p2c": "query"}


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
    if kind in LIKE_BERT:
        return _like_bert(values, weights, tokens, [0] * len(tokens) if types is None else types)
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


def _like_bert(values: dict[str, Any], weights: dict[str, Array], tokens: list[int], types: list[int]) -> Array:
    norm, count = partial(layer_norm, weights=weights, eps=values["layer_norm_eps"]), values["num_attention_heads"]
    x = weights["embeddings.word_embeddings.weight"][tokens]
    if values["type_vocab_size"]:
        x = x + weights["embeddings.token_type_embeddings.weight"][types]
    if values.get("position_biased_input", True):
        x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm(x, name="embeddings.LayerNorm")
    projection = _PROJECTIONS.get(values["model_type"], "")
    if f"{projection}.weight" in weights:
        x = linear(x, weights, projection)
    for i in range(values["num_hidden_layers"]):
        layer, (*attention, norm1), feed_forward, norm2 = _parts(values, i)
        options: dict[str, Any] = {}
        if _has_relative(values):
            options = _disentangled(values, weights, x, [layer + name for name in attention])
        x = add(x, attend(weights, layer, " ".join(attention), count, **options), norm, last=layer + norm1)
        x = add(x, feed(weights, layer, feed_forward, values["hidden_act"]), norm, last=layer + norm2)
    return x


def _disentangled(values: dict[str, Any], weights: dict[str, Array], x: Array, names: list[str]) -> dict[str, Any]:
    """The scale of scores, and what is added to them [H, T, T], pair by pair."""
    count, length, most = values["num_attention_heads"], len(x), values["max_position_embeddings"]
    terms, buckets = values["pos_att_type"].split("|"), values["position_buckets"]
    table = weights["encoder.rel_embeddings.weight"]
    if values["norm_rel_ebd"] == "layer_norm":
        table = layer_norm(table, weights, "encoder.LayerNorm", values["layer_norm_eps"])
    shared = values["share_att_key"]
    key_of, query_of = (name if shared else name.replace("self.", "self.pos_") for name in (names[1], names[0]))
    row = np.array([[_row(i - j, buckets, most) for j in range(length)] for i in range(length)]) + len(table) // 2
    row = np.clip(row, 0, len(table) - 1)
    scale, bias = (x.shape[1] // count * (1 + len(terms))) ** -0.5, np.zeros((count, length, length))
    if "c2p" in terms:
        queries, keys = heads(linear(x, weights, names[0]), count), heads(linear(table, weights, key_of), count)
        bias += np.einsum("hid,hijd->hij", queries, keys[:, row])
    if "p2c" in terms:
        keys, queries = heads(linear(x, weights, names[1]), count), heads(linear(table, weights, query_of), count)
        bias += np.einsum("hjd,hijd->hij", keys, queries[:, row])
    return {"scale": scale, "bias": bias * scale}


def _row(distance: int, buckets: int, most: int) -> int:
    """A row for each near distance, and then for each power."""
    middle = buckets // 2
    if buckets <= 0 or abs(distance) <= middle:
        return distance
    steps = np.ceil(np.log(abs(distance) / middle) / np.log((most - 1) / middle) * (middle - 1) - 1e-6)
    return int(np.sign(distance) * (steps + middle))
