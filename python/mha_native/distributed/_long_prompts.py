"""Attention of a long prompt: each worker keeps rows of queries, and receives all keys and values in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._membership import Members
from ._partition import BLOCK_KEYS, STRIPE_ROWS, Sizes

# Bytes of keys and values that are sent at once.
_SPAN_BYTES = 32 << 20


def striped(rows: NDArray[Any], worker: int, workers: int) -> NDArray[Any]:
    """Return the stripes of `rows` [B, H, Tq, D] that a worker computes, [B, stripes, H, 64, D], padded with zeros.

    Under a causal mask late rows see more keys than early rows. Stripes give each worker some of both.
    """
    batch, heads, queries, width = rows.shape
    count = -(-queries // STRIPE_ROWS)
    stripes = np.zeros((batch, len(range(worker, count, workers)), heads, STRIPE_ROWS, width), rows.dtype)
    for i, stripe in enumerate(range(worker, count, workers)):
        part = rows[:, :, stripe * STRIPE_ROWS : (stripe + 1) * STRIPE_ROWS]
        stripes[:, i, :, : part.shape[2]] = part
    return stripes


def put_back(stripes: NDArray[Any], worker: int, workers: int, rows: NDArray[Any]) -> None:
    """Write `stripes` [B, stripes, H, 64, ...] to their places in `rows` [B, H, Tq, ...]: the inverse of `striped`."""
    for i in range(stripes.shape[1]):
        first = (worker + i * workers) * STRIPE_ROWS
        part = rows[:, :, first : first + STRIPE_ROWS]
        part[...] = stripes[:, i, :, : part.shape[2]]


def attend_to_passing(
    members: Members,
    name: str,
    sizes: Sizes,
    lengths: NDArray[np.int64],
    query: NDArray[Any],
    offsets: NDArray[np.int64],
    options: dict[str, Any],
    num_threads: int | None,
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return out [B, H, Tq, Dv] and lse [B, H, Tq] of `query` over all keys of the cache, computed by its workers."""
    workers = sizes.workers
    members.ask(
        name,
        {w: ("hold_rows", striped(query, w, workers), offsets, options, num_threads) for w in members.everyone},
    )
    block_bytes = BLOCK_KEYS * sizes.batch_size * sizes.num_kv_heads * (sizes.head_dim + sizes.value_head_dim)
    span = BLOCK_KEYS * max(1, _SPAN_BYTES // (block_bytes * query.itemsize))
    longest = max(lengths.tolist())
    for first in range(0, longest, span):
        last = min(first + span, longest)
        found = members.ask(name, dict.fromkeys(members.everyone, ("read", first, last)))
        members.ask(
            name,
            {
                w: (
                    "take_keys",
                    first,
                    last,
                    lengths,
                    {block: tokens for other in found if other != w for block, tokens in found[other].items()},
                )
                for w in members.everyone
            },
        )
    out = np.empty((*query.shape[:-1], sizes.value_head_dim), query.dtype)
    lse = np.empty(query.shape[:-1])
    for w, (outs, lses) in members.ask(name, dict.fromkeys(members.everyone, ("rows_done",))).items():
        put_back(outs, w, workers, out)
        put_back(lses, w, workers, lse)
    return out, lse
