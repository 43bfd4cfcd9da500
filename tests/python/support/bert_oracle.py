"""A model of the BERT family in float64, from its files to embeddings, and small models to write into files.

Nothing of the library is used but its reference of attention: the files are read here in a way of their own.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from oracle_parts import ACTIVATIONS, layer_norm, linear

from mha_native import reference

Array = np.ndarray[Any, Any]

BIAS_OF_BUCKETS = "encoder.relative_attention_bias.weight"


def read_tensors(path: Path) -> dict[str, Array]:
    """The f32 tensors of a safetensors file: eight bytes of length, a header in JSON, the numbers."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    return {
        name: np.frombuffer(raw[8 + length :][slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "F32"
    }


def embed(
    tensors: dict[str, Array],
    config: dict[str, Any],
    tokens: list[int],
    places: list[int] | None = None,
    types: list[int] | None = None,
) -> Array:
    """The sum of word, position and token type, normalised: [T, E]. Places count from 0, and all types are 0."""
    rows = tensors["embeddings.word_embeddings.weight"].astype(np.float64)[tokens]
    rows = rows + tensors["embeddings.position_embeddings.weight"][range(len(tokens)) if places is None else places]
    rows = rows + tensors["embeddings.token_type_embeddings.weight"][[0] * len(tokens) if types is None else types]
    return layer_norm(rows, tensors, "embeddings.LayerNorm", config["layer_norm_eps"])


def hidden_states(tensors: dict[str, Array], config: dict[str, Any], tokens: list[int], **where: list[int]) -> Array:
    """What the last layer gives for the tokens of one text, whose `places` and `types` may be said: [T, E]."""
    return _run(tensors, config, tokens, **where)[0]


def attention_weights(tensors: dict[str, Array], config: dict[str, Any], tokens: list[int]) -> list[Array]:
    """Of each layer: [H, T, T]."""
    return _run(tensors, config, tokens)[1]


def sentence_embedding(
    tensors: dict[str, Array], config: dict[str, Any], tokens: list[int], normalize: bool = True
) -> Array:
    mean = hidden_states(tensors, config, tokens).mean(axis=0)
    return mean / np.linalg.norm(mean) if normalize else mean


POOLINGS = {
    "cls": lambda rows, places: rows[0],
    "max": lambda rows, places: rows.max(0),
    "mean": lambda rows, places: rows.sum(0) / len(rows),
    "mean_sqrt_len_tokens": lambda rows, places: rows.sum(0) / math.sqrt(len(rows)),
    "weightedmean": lambda rows, places: (rows * places[:, None]).sum(0) / places.sum(),
    "lasttoken": lambda rows, places: rows[-1],
}


def pooled(rows: Array, modes: list[str], prompt_tokens: int = 0) -> Array:
    """The vectors of the tokens of a text, [T, E], as sentence-transformers makes one of them: [E len(modes)]."""
    places = np.arange(1, len(rows) + 1)
    return np.concatenate([POOLINGS[mode](rows[prompt_tokens:], places[prompt_tokens:]) for mode in modes])


def _run(
    tensors: dict[str, Array], config: dict[str, Any], tokens: list[int], **where: list[int]
) -> tuple[Array, list[Array]]:
    x, weights = embed(tensors, config, tokens, **where), []
    length, heads = len(tokens), config["num_attention_heads"]
    bias = _by_distance(tensors[BIAS_OF_BUCKETS], length) if BIAS_OF_BUCKETS in tensors else None
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            linear(x, tensors, f"{layer}.attention.self.{name}").reshape(length, heads, -1).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        weights.append(reference.attention_weights(q, k, bias))
        attended = (weights[-1] @ v).swapaxes(0, 1).reshape(length, -1)
        y = x + linear(attended, tensors, f"{layer}.attention.output.dense")
        y = layer_norm(y, tensors, f"{layer}.attention.output.LayerNorm", config["layer_norm_eps"])
        inner = ACTIVATIONS[config["hidden_act"]](linear(y, tensors, f"{layer}.intermediate.dense"))
        y = y + linear(inner, tensors, f"{layer}.output.dense")
        x = layer_norm(y, tensors, f"{layer}.output.LayerNorm", config["layer_norm_eps"])
    return x, weights


# Of MPNet: where each of the 16 buckets of distances in one direction begins.
_BUCKETS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]


def _by_distance(table: Array, length: int) -> Array:
    """The bias of each query and key, [H, T, T]: [32, H] has those of keys before a query, then of keys after it."""
    distance = np.arange(length) - np.arange(length)[:, None]
    bucket = np.searchsorted(_BUCKETS, abs(distance), "right") - 1 + 16 * (distance > 0)
    return np.moveaxis(table[bucket], -1, 0)
