"""ONNX's operator Attention, opset 25, written down from its specification: in float64, unfused, everything stored."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def prepared(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    **others: Any,
) -> tuple[Array, Array, Array, Array]:
    """Query, present key and present value [B, heads, T, width], and the whole of the bias, [B, H, Tq, Tk]."""
    if Q.ndim == 3:

        def split(x: Array, heads: int | None) -> Array:
            batch, length, width = x.shape
            assert heads is not None
            return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

        Q, K, V = split(Q, q_num_heads), split(K, kv_num_heads), split(V, kv_num_heads)
    if past_key is not None and past_value is not None:
        K, V = np.concatenate((past_key, K), 2), np.concatenate((past_value, V), 2)
    batch, heads, queries, keys = *Q.shape[:3], K.shape[2]

    bias = np.zeros((batch, heads, queries, keys))
    if attn_mask is not None:
        mask = np.where(attn_mask, 0.0, -np.inf) if attn_mask.dtype == bool else attn_mask.astype(np.float64)
        bias += np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])], constant_values=-np.inf)
    offsets = np.zeros(batch, int)
    if past_key is not None:
        offsets += past_key.shape[2]
    elif nonpad_kv_seqlen is not None:
        offsets = nonpad_kv_seqlen - queries
    for b, i, j in np.ndindex(batch, queries, keys):
        position = offsets[b] + i
        allowed = not is_causal or j <= position
        allowed &= left_window_size < 0 or j >= position - left_window_size
        allowed &= right_window_size < 0 or j <= position + right_window_size
        allowed &= nonpad_kv_seqlen is None or j < nonpad_kv_seqlen[b]
        if not allowed:
            bias[b, :, i, j] = -np.inf
    return Q, K, V, bias


def attention(
    Q: Array, K: Array, V: Array, *others: Any, scale: float | None = None, softcap: float = 0.0, **attributes: Any
) -> tuple[Array, list[Array]]:
    """Y, and the four kinds of qk_matmul_output."""
    query, key, value, bias = prepared(Q, K, V, *others, **attributes)
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], 1).astype(np.float64) for x in (key, value))
    scale = 1 / np.sqrt(query.shape[3]) if scale is None else scale
    raw = scale * (query.astype(np.float64) @ key.swapaxes(2, 3))
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    biased = capped + bias
    hidden = np.isneginf(bias).all(-1, keepdims=True)
    top = np.where(hidden, 0, biased.max(-1, keepdims=True, initial=-np.inf))
    exponentials = np.exp(biased - top)
    weights = np.where(hidden, 0, exponentials / np.where(hidden, 1, exponentials.sum(-1, keepdims=True)))
    Y = weights @ value
    if Q.ndim == 3:
        Y = Y.swapaxes(1, 2).reshape(*Q.shape[:2], -1)
    return Y, [raw, capped, biased, weights]
