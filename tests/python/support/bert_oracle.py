"""A model of the BERT family in float64, from its files, which are read here independently, to embeddings."""

from __future__ import annotations

import json
import math
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from oracle_parts import add, attend, by_distance, feed, layer_norm

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
    norm = partial(layer_norm, weights=tensors, eps=config["layer_norm_eps"])
    bias = by_distance(tensors[BIAS_OF_BUCKETS], len(tokens), 128) if BIAS_OF_BUCKETS in tensors else 0
    names = "self.query self.key self.value output.dense"
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        read = attend(tensors, f"{layer}attention.", names, config["num_attention_heads"], bias=bias, seen=weights)
        x = add(x, read, norm, last=f"{layer}attention.output.LayerNorm")
        inner = feed(tensors, layer, "intermediate.dense output.dense", config["hidden_act"])
        x = add(x, inner, norm, last=f"{layer}output.LayerNorm")
    return x, weights
