"""Attention in operations of JAX, for its gradient. Stores the scores of all queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._read_options import BLOCK, ReadOptions

Array = Any


def plain_attention(
    query: Array, key: Array, value: Array, arrays: Mapping[str, Array], options: Mapping[str, Any]
) -> tuple[Array, Array]:
    """Compute the result and its lse, as `scaled_dot_product_attention` defines them.

    Shapes are [B or 1, H, Tq, D], [B or 1, Hk, Tk, D] and [B or 1, Hk, Tk, Dv]; the option ``tokens_first`` swaps the
    axes of heads and tokens. Masks have all axes. RuntimeError for an option that is not read.
    """
    given = ReadOptions({**arrays, **options})
    tokens_first = given.get("tokens_first", False)
    inputs = [x.swapaxes(1, 2) if tokens_first else x for x in (query, key, value)]
    dtype = jnp.promote_types(query.dtype, np.float32)
    q, k, v = (x.astype(dtype) for x in inputs)
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)

    scores = _scores(q, k, given)
    scores = jnp.where(_visible(scores.shape, given), scores, -jnp.inf)
    sinks = given.get("sinks")
    sinks = None if sinks is None else sinks[:, None, None].astype(dtype)
    given.refuse_unread()
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


def _distances(shape: tuple[int, ...], given: ReadOptions) -> Array:
    """Return the position of each key relative to each query: [B or 1, 1, Tq, Tk]."""
    offsets = jnp.asarray(given.get("query_offset", 0)).reshape(-1, 1, 1, 1)
    return jnp.arange(shape[3]) - jnp.arange(shape[2])[:, None] - offsets


def _scores(q: Array, k: Array, given: ReadOptions) -> Array:
    """Compute the scores, capped and with all biases."""
    scores = (q @ k.swapaxes(2, 3)) * given.get("scale", q.shape[3] ** -0.5)
    if softcap := given.get("softcap"):
        scores = softcap * jnp.tanh(scores / softcap)
    if (slopes := given.get("alibi_slopes")) is not None:
        scores = scores - slopes[..., None, None] * abs(_distances(scores.shape, given))
    if (bias := given.get("position_bias")) is not None:
        reach = bias.shape[1] // 2
        places = jnp.clip(_distances(scores.shape, given), -reach, reach) + reach
        scores = scores + jnp.moveaxis(bias[:, places[:, 0]], 0, 1)
    mask = given.get("attn_mask")
    return scores if mask is None or mask.dtype == bool else scores + mask.astype(scores.dtype)


def _visible(shape: tuple[int, ...], given: ReadOptions) -> Array:
    """Return which keys each query sees, broadcastable to `shape`."""
    visible = given.in_reach(jnp.ones((1, 1, 1, 1), bool), _distances(shape, given))
    if (lengths := given.get("key_lengths")) is not None:
        visible &= jnp.arange(shape[3]) < lengths.reshape(-1, 1, 1, 1)
    if (key_mask := given.get("key_mask")) is not None:
        visible &= key_mask[:, None, None, :]
    if (block_mask := given.get("block_mask")) is not None:
        blocks = jnp.repeat(jnp.repeat(block_mask, BLOCK, axis=2), BLOCK, axis=3)
        visible &= blocks[:, :, : shape[2], : shape[3]]
    mask = given.get("attn_mask")
    return visible & mask if mask is not None and mask.dtype == bool else visible
