"""The other way round for a long prompt: rows of queries stay with a worker, and all keys and values pass by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..attention import scaled_dot_product_attention
from ._dealing import BLOCK_KEYS, STRIPE_ROWS, Sizes, options_of_sequence

if TYPE_CHECKING:
    from ._membership import Members

# Keys [B, Hk, T, D] and values [B, Hk, T, Dv] of some blocks, by their numbers.
Blocks: TypeAlias = Mapping[int, tuple[NDArray[Any], NDArray[Any]]]

# Bytes of keys and values that pass at once.
_SPAN_BYTES = 32 << 20


def striped(rows: NDArray[Any], worker: int, workers: int) -> NDArray[Any]:
    """The stripes of `rows` [B, H, Tq, D] that a worker computes, [B, stripes, H, 64, D], the last one filled up.

    Under a causal mask late rows see more than early ones. Dealt out in stripes, each worker has some of both.
    """
    batch, heads, queries, width = rows.shape
    count = -(-queries // STRIPE_ROWS)
    stripes = np.zeros((batch, len(range(worker, count, workers)), heads, STRIPE_ROWS, width), rows.dtype)
    for i, stripe in enumerate(range(worker, count, workers)):
        part = rows[:, :, stripe * STRIPE_ROWS : (stripe + 1) * STRIPE_ROWS]
        stripes[:, i, :, : part.shape[2]] = part
    return stripes


def put_back(stripes: NDArray[Any], worker: int, workers: int, rows: NDArray[Any]) -> None:
    """Write `stripes` [B, stripes, H, 64, ...] to where `striped` has them from, in `rows` [B, H, Tq, ...]."""
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
    """What the one that asks does: out [B, H, Tq, Dv] and lse [B, H, Tq] of `query` over all keys of the cache."""
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


class PassingKeys:
    """What worker `worker` has of a prompt while keys pass: its rows, and their result over the keys so far."""

    def __init__(
        self,
        sizes: Sizes,
        worker: int,
        own: Callable[[int, int], Blocks],
        query: NDArray[Any],
        offsets: NDArray[np.int64],
        options: dict[str, Any],
        num_threads: int | None,
    ) -> None:
        self._sizes, self._own = sizes, own
        self._query, self._options, self._threads = query, options, num_threads
        stripes = worker + sizes.workers * np.arange(query.shape[1])
        self._offsets = offsets[:, None] + STRIPE_ROWS * stripes
        # In float64, so that spans of keys can be added without a rounding for each.
        self._out = np.zeros((*query.shape[:-1], sizes.value_head_dim))
        self._lse = np.full(query.shape[:-1], -np.inf)

    def take(
        self,
        first: int,
        last: int,
        lengths: NDArray[np.int64],
        blocks: Blocks,
    ) -> None:
        """Attend to positions [first, last): `blocks` of the other workers, and those that are here."""
        keys, values = (np.zeros((len(lengths), self._sizes.num_kv_heads, last - first, width), self._query.dtype)
                        for width in (self._sizes.head_dim, self._sizes.value_head_dim))  # fmt: skip
        for block, (key, value) in (dict(self._own(first, last)) | dict(blocks)).items():
            begin = block * BLOCK_KEYS - first
            keys[:, :, begin : begin + key.shape[2]] = key
            values[:, :, begin : begin + key.shape[2]] = value
        for b, length in enumerate(np.clip(lengths - first, 0, last - first).tolist()):
            stripes = len(self._query[b])
            if length and stripes:
                out, lse = scaled_dot_product_attention(
                    self._query[b],
                    keys[b : b + 1, :, :length],
                    values[b : b + 1, :, :length],
                    query_offset=self._offsets[b] - first,
                    return_lse=True,
                    num_threads=self._threads,
                    **options_of_sequence(self._options, b),
                )
                outs, lses = [self._out[b], out.astype(np.float64)], [self._lse[b], lse.astype(np.float64)]
                self._out[b], self._lse[b] = _core.merge_attention(outs, lses, None, self._threads)

    def result(self) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Of all keys that have passed: out [B, stripes, H, 64, Dv], rounded once, and lse [B, stripes, H, 64]."""
        return self._out.astype(self._query.dtype), self._lse
