"""Attention in operations of JAX, which it knows the gradients of. Stores the scores of all queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any

_BLOCK = 64  # queries, and keys, of an entry of block_mask


def plain_attention(
    query: Array, key: Array, value: Array, arrays: Mapping[str, Array], options: Mapping[str, Any]
) -> tuple[Array, Array]:
    """The result and its lse, as `scaled_dot_product_attention` defines them.

    Parameters
    ----------
    query : [B or 1, H, Tq, D]
        With ``tokens_first`` among the options [B or 1, Tq, H, D], and `key`, `value` and the results likewise.
    key : [B or 1, Hk, Tk, D]
    value : [B or 1, Hk, Tk, Dv]
    arrays, options : dict
        The options that are arrays, masks with all axes; and the others.
    """
    tokens_first = options.get("tokens_first", False)
    inputs = [x.swapaxes(1, 2) if tokens_first else x for x in (query, key, value)]
    dtype = jnp.promote_types(query.dtype, np.float32)
    q, k, v = (x.astype(dtype) for x in inputs)
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)

    scores = _scores(q, k, arrays, options)
    scores = jnp.where(_visible(scores.shape, arrays, options), scores, -jnp.inf)
    sinks = arrays["sinks"][:, None, None].astype(dtype) if "sinks" in arrays else None
    largest = scores.max(axis=-1, keepdims=True, initial=-jnp.inf)
    largest = largest if sinks is None else jnp.maximum(largest, sinks)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0))
    exponentials = jnp.exp(scores - largest)
    total = exponentials.sum(axis=-1, keepdims=True)
    total = total if sinks is None else total + jnp.exp(sinks - largest)
    sees_any = total > 0
    safe_total = jnp.where(sees_any, total, 1)
    out = (exponentials / safe_total) @ v
    lse = jnp.where(sees_any, jnp.log(safe_total) + largest, -jnp.inf)[..., 0]
    out = out.astype(query.dtype)
    return (out.swapaxes(1, 2), lse.swapaxes(1, 2)) if tokens_first else (out, lse)


def _distances(shape: tuple[int, ...], arrays: Mapping[str, Array], options: Mapping[str, Any]) -> Array:
    """How far each key is ahead of each query: [B or 1, 1, Tq, Tk]."""
    offsets = jnp.asarray(arrays.get("query_offset", options.get("query_offset", 0))).reshape(-1, 1, 1, 1)
    return jnp.arange(shape[3]) - jnp.arange(shape[2])[:, None] - offsets


def _scores(q: Array, k: Array, arrays: Mapping[str, Array], options: Mapping[str, Any]) -> Array:
    """The scores, capped and with all that is added."""
    scores = (q @ k.swapaxes(2, 3)) * options.get("scale", q.shape[3] ** -0.5)
    if softcap := options.get("softcap"):
        scores = softcap * jnp.tanh(scores / softcap)
    if "alibi_slopes" in arrays:
        distances = abs(_distances(scores.shape, arrays, options))
        scores = scores - arrays["alibi_slopes"][..., None, None] * distances
    if "position_bias" in arrays:
        bias = arrays["position_bias"]
        reach = bias.shape[1] // 2
        places = jnp.clip(_distances(scores.shape, arrays, options), -reach, reach) + reach
        scores = scores + jnp.moveaxis(bias[:, places[:, 0]], 0, 1)
    mask = arrays.get("attn_mask")
    return scores if mask is None or mask.dtype == bool else scores + mask.astype(scores.dtype)


def _visible(shape: tuple[int, ...], arrays: Mapping[str, Array], options: Mapping[str, Any]) -> Array:
    """Which keys each query sees, broadcastable to `shape`."""
    visible = jnp.ones((1, 1, 1, 1), bool)
    distances = _distances(shape, arrays, options)
    if options.get("is_causal"):
        visible &= distances <= 0
    left, right = options.get("window", (-1, -1))
    if left >= 0:
        visible &= distances >= -left
    if right >= 0:
        visible &= distances <= right
    if "key_lengths" in arrays:
        visible &= jnp.arange(shape[3]) < arrays["key_lengths"].reshape(-1, 1, 1, 1)
    if "key_mask" in arrays:
        visible &= arrays["key_mask"][:, None, None, :]
    if "block_mask" in arrays:
        blocks = jnp.repeat(jnp.repeat(arrays["block_mask"], _BLOCK, axis=2), _BLOCK, axis=3)
        visible &= blocks[:, :, : shape[2], : shape[3]]
    mask = arrays.get("attn_mask")
    return visible & mask if mask is not None and mask.dtype == bool else visible
