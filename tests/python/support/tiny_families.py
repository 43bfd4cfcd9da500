"""The tiny model of `tiny_bert` as one of another family: what its files say, and the places of its tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import tiny_bert

Array = np.ndarray[Any, Any]

FAMILIES = ["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"]

# Of those whose positions begin behind the number of padding.
PADDING = 1

PREFIXES = {"bert": "bert.", "distilbert": "distilbert.", "mpnet": "mpnet."}  # of a model with a head; else "roberta."

_DISTILBERT_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
_DISTILBERT_NAMES = {
    r"encoder\.layer": "transformer.layer",
    r"attention\.self\.query": "attention.q_lin",
    r"attention\.self\.key": "attention.k_lin",
    r"attention\.self\.value": "attention.v_lin",
    r"attention\.output\.dense": "attention.out_lin",
    r"attention\.output\.LayerNorm": "sa_layer_norm",
    r"intermediate\.dense": "ffn.lin1",
    r"(\d+)\.output\.dense": r"\1.ffn.lin2",
    r"(\d+)\.output\.LayerNorm": r"\1.output_layer_norm",
}
_MPNET_NAMES = {
    r"attention\.self\.([qkv])[a-z]*": r"attention.attn.\1",
    r"attention\.output\.dense": "attention.attn.o",
    r"attention\.output\.LayerNorm": "attention.LayerNorm",
}
_NAMES = {"distilbert": _DISTILBERT_NAMES, "mpnet": _MPNET_NAMES}


def has_padding(model_type: str) -> bool:
    """Whether positions begin behind the number of padding, which is no place itself."""
    return model_type not in ("bert", "distilbert")


def places(model_type: str, tokens: list[int]) -> list[int]:
    """The row of each token in the table of positions."""
    if not has_padding(model_type):
        return list(range(len(tokens)))
    result, last = [], PADDING
    for token in tokens:
        last += token != PADDING
        result.append(PADDING if token == PADDING else last)
    return result


def settings(model_type: str, **changes: Any) -> dict[str, Any]:
    """The model in the words of BERT, which the oracle reads: 20 places in any family."""
    values = {"max_position_embeddings": 20}
    if has_padding(model_type):
        values = {"type_vocab_size": 1, "max_position_embeddings": 20 + PADDING + 1}
    return tiny_bert.config(**(values | changes))


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    """The same in the words of the family: config.json."""
    values = settings(model_type, **changes) | {"model_type": model_type}
    if has_padding(model_type):
        values["pad_token_id"] = PADDING
    if model_type == "mpnet":
        return {name: value for name, value in values.items() if name != "type_vocab_size"}
    if model_type != "distilbert":
        return values
    left_out = ("type_vocab_size", "layer_norm_eps")
    return {_DISTILBERT_KEYS.get(name, name): value for name, value in values.items() if name not in left_out}


def tensors(model_type: str, **changes: Any) -> dict[str, Array]:
    """The tensors in the words of BERT, which the oracle reads. Where tokens have no types, that of type 0 is zeros."""
    result = tiny_bert.tensors(settings(model_type, **changes))
    if model_type in _NAMES:
        result["embeddings.token_type_embeddings.weight"][:] = 0
    if model_type == "mpnet":
        heads = settings(model_type, **changes)["num_attention_heads"]
        result[bert_oracle.BIAS_OF_BUCKETS] = np.random.default_rng(1).standard_normal((32, heads), np.float32)
    return result


def embeddings(model_type: str, sequences: list[list[int]], first: int = 0, **changes: Any) -> Array:
    """The mean of the vectors of all tokens from `first` on, scaled to length 1, of each sequence, in float64."""
    values, weights = settings(model_type, **changes), tensors(model_type, **changes)
    rows = [
        bert_oracle.hidden_states(weights, values, tokens, places=places(model_type, tokens))[first:].mean(0)
        for tokens in sequences
    ]
    return np.stack([row / np.linalg.norm(row) for row in rows])


def renamed(model_type: str, weights: dict[str, Array], prefix: str = "") -> dict[str, Array]:
    """The same by the names of the family."""
    if model_type not in _NAMES:
        return {prefix + name: tensor for name, tensor in weights.items()}
    result = {}
    for name, tensor in weights.items():
        if "token_type" not in name:
            for ours, theirs in _NAMES[model_type].items():
                name = re.sub(ours, theirs, name)
            result[prefix + name] = tensor
    return result


def write(
    directory: Path, model_type: str, files: dict[str, Any] | None = None, prefix: str = "", **changes: Any
) -> Path:
    """The directory of a model, as `tiny_bert.write` writes it. `changes` are entries in the words of BERT."""
    weights = renamed(model_type, tensors(model_type, **changes), prefix)
    return tiny_bert.write(directory, config(model_type, **changes), weights, files)
