"""The unfused computation in the dtype of its inputs, as a user would write it in NumPy, to compare accuracy with."""

from __future__ import annotations

from typing import Any

import numpy as np
from element_types import is_half

Array = np.ndarray[Any, np.dtype[Any]]


def visible(shape: tuple[int, ...], options: dict[str, Any]) -> Array:
    """[B, H, Tq, Tk], True where a key takes part."""
    batch, heads, queries, keys = shape
    row, key = np.arange(queries)[:, None], np.arange(keys)
    position = row + np.reshape(options.get("query_offset", 0), (-1, 1, 1, 1))
    seen = np.ones((batch, heads, queries, keys), bool)
    if options.get("is_causal"):
        seen &= key <= position
    left, right = options.get("window") or (-1, -1)
    if left >= 0:
        seen &= key >= position - left
    if right >= 0:
        seen &= key <= position + right
    if options.get("key_lengths") is not None:
        seen &= key < np.reshape(options["key_lengths"], (-1, 1, 1, 1))
    mask = options.get("attn_mask")
    if mask is not None:
        seen &= mask if mask.dtype == bool else mask != -np.inf
    return seen


def position_biases(options: dict[str, Any], shape: tuple[int, ...]) -> Array:
    """What `position_bias` adds to scores of `shape` [Tq, Tk]: [B | 1, H, Tq, Tk]."""
    table, (queries, keys) = options["position_bias"], shape
    farthest = (table.shape[1] - 1) // 2
    biases = []
    for offset in np.ravel(options.get("query_offset", 0)):
        distance = np.arange(keys) - (int(offset) + np.arange(queries)[:, None])
        biases.append(np.take(table, np.minimum(np.maximum(distance, -farthest), farthest) + farthest, axis=1))
    return np.stack(biases)


def attention(query: Array, key: Array, value: Array, options: dict[str, Any]) -> tuple[Array, Array, Array]:
    """(out, lse, weights): matmul, softmax, matmul, every step rounded to the dtype of query; four axes each.

    Of 16 bits: in float32, and results are rounded, lse excepted.
    """
    if is_half(query.dtype):
        wide = {name: x.astype(np.float32) if _is_half_array(x) else x for name, x in options.items()}
        out, lse, weights = attention(*(x.astype(np.float32) for x in (query, key, value)), wide)
        with np.errstate(over="ignore"):
            return out.astype(query.dtype), lse, weights.astype(query.dtype)
    group = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, group, 1), np.repeat(value, group, 1)
    scale = options.get("scale")
    scale = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    with np.errstate(all="ignore"):
        scores = (query @ key.swapaxes(-1, -2)) * query.dtype.type(scale)
        if options.get("softcap") is not None:
            softcap = query.dtype.type(options["softcap"])
            scores = softcap * np.tanh(scores / softcap)
        if options.get("alibi_slopes") is not None:
            row, column = np.arange(scores.shape[-2])[:, None], np.arange(scores.shape[-1])
            distance = np.abs(np.reshape(options.get("query_offset", 0), (-1, 1, 1, 1)) + row - column)
            scores = scores - options["alibi_slopes"][..., None, None] * distance.astype(query.dtype)
        if options.get("position_bias") is not None:
            scores = scores + position_biases(options, scores.shape[-2:])
        mask = options.get("attn_mask")
        if mask is not None and mask.dtype != bool:
            scores = scores + mask
        scores = np.where(visible(scores.shape, options), scores, query.dtype.type(-np.inf))
        maximum = np.max(scores, -1, keepdims=True, initial=np.finfo(query.dtype).min)
        if options.get("sinks") is not None:
            sink = options["sinks"][:, None, None]
            maximum = np.maximum(maximum, sink)
        weights = np.exp(scores - maximum)
        total = weights.sum(-1, keepdims=True)
        if options.get("sinks") is not None:
            total = total + np.exp(sink - maximum)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        lse = (maximum + np.log(total))[..., 0]
    return weights @ value, lse, weights


def _is_half_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) and is_half(x.dtype)
