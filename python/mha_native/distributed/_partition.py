"""How positions are dealt to workers: in blocks of 512 keys, block i to worker ``i % workers``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Keys of a block. The library sums keys in spans of as many, so that a block is attended to as it is within a call.
BLOCK_KEYS = 512

# Keys, and queries, that an entry of a block mask stands for.
BLOCK_MASK_KEYS = 64

# How many columns of a mask a block has.
MASK_WIDTHS = {"attn_mask": BLOCK_KEYS, "block_mask": BLOCK_KEYS // BLOCK_MASK_KEYS, "key_mask": BLOCK_KEYS}

# How far queries may be from the first key of a call.
_FARTHEST = 1 << 62

# Rows of a prompt that are dealt out together, where keys pass by them.
STRIPE_ROWS = 64


@dataclass(frozen=True)
class Sizes:
    """What all workers of a cache agree on."""

    batch_size: int
    num_kv_heads: int
    capacity: int
    head_dim: int
    value_head_dim: int
    dtype: str
    workers: int

    def blocks_of(self, worker: int) -> int:
        """The most blocks of a sequence that a worker holds."""
        blocks = -(-self.capacity // BLOCK_KEYS)
        return len(range(worker, blocks, self.workers))


@dataclass(frozen=True)
class Piece:
    """Tokens of one sequence within one block: positions [first, last)."""

    sequence: int
    first: int
    last: int

    @property
    def block(self) -> int:
        return self.first // BLOCK_KEYS


def pieces_of(sequence: int, first: int, last: int) -> Iterator[Piece]:
    """Positions [first, last) of a sequence, cut where blocks end."""
    while first < last:
        end = min(last, (first // BLOCK_KEYS + 1) * BLOCK_KEYS)
        yield Piece(sequence, first, end)
        first = end


def reachable(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of queries as a call of a part takes them: so far from all keys, one place is as good as another."""
    return np.clip(offsets, -_FARTHEST, _FARTHEST)


def offsets_from(starts: NDArray[np.int64], offset: int) -> NDArray[np.int64]:
    """What `offset`, counted from the first of all keys, is from each of `starts` on, as calls take it."""
    offsets = offset - starts
    return offsets if abs(offset) < _FARTHEST // 2 else reachable(offsets)


def options_of_sequence(options: dict[str, Any], b: int) -> dict[str, Any]:
    """`options` of a call over sequence b alone: its slopes and its keys, where each sequence has its own."""
    own = dict(options)
    slopes, key_mask = own.get("alibi_slopes"), own.get("key_mask")
    if slopes is not None and slopes.ndim == 2:
        own["alibi_slopes"] = slopes[min(b, len(slopes) - 1)]
    if key_mask is not None:
        own["key_mask"] = key_mask[min(b, len(key_mask) - 1)][None]
    return own


def columns_of(which: str, mask: NDArray[Any], worker: int, workers: int) -> NDArray[Any]:
    """The part of a mask [..., columns] that belongs to the blocks of a worker, [..., blocks, width].

    One column that serves all keys becomes [..., 1, 1]; that of a block mask is the first of a block. Columns that the
    last block lacks are 0: no keys stand there.
    """
    columns, width = mask.shape[-1], MASK_WIDTHS[which]
    if columns == 1 and which != "block_mask":
        return mask[..., None]
    blocks = -(-columns // width)
    parts = np.zeros((*mask.shape[:-1], len(range(worker, blocks, workers)), width), mask.dtype)
    for i, block in enumerate(range(worker, blocks, workers)):
        part = mask[..., block * width : (block + 1) * width]
        parts[..., i, : part.shape[-1]] = part
    return parts


def bytes_moved(
    sizes: Sizes, queries: int, keys: int, query_heads: int, *, itemsize: int, is_exact: bool = False
) -> dict[str, int]:
    """Bytes that a call of `queries` rows in each sequence over `keys` moves between workers, by what is moved.

    Parameters
    ----------
    sizes : Sizes
    queries, keys : int
        Tq and Tk of a sequence.
    query_heads : int
        H.
    itemsize : int
        Bytes of an element of the query.
    is_exact : bool, default False
        Results of blocks come back, and not one of each worker.

    Returns
    -------
    dict
        ``"queries"``: queries go to all other workers, and each gives a result, and its log-sum-exp in 8 bytes (of a
        block in as many as scores have). ``"keys"``: each other worker gives its keys and values. ``"passing"``: each
        worker sees all keys and values, those of others by way of the one that asks, and computes every N-th stripe of
        64 rows.
    """
    others, rows = sizes.workers - 1, sizes.batch_size * query_heads * queries
    blocks = -(-keys // BLOCK_KEYS)
    if is_exact:
        results = blocks - len(range(0, blocks, sizes.workers))
        lse_bytes = 8 if itemsize == 8 else 4
    else:
        results, lse_bytes = others, 8
    to_workers = others * rows * sizes.head_dim * itemsize
    back = results * rows * (sizes.value_head_dim * itemsize + lse_bytes)
    elsewhere = sum(
        min(keys, (block + 1) * BLOCK_KEYS) - block * BLOCK_KEYS for block in range(blocks) if block % sizes.workers
    )
    stored = 1 if sizes.dtype == "int8" else itemsize
    scales = 8 if sizes.dtype == "int8" else 0
    token = sizes.num_kv_heads * ((sizes.head_dim + sizes.value_head_dim) * stored + scales)
    stripes = -(-queries // STRIPE_ROWS)
    stripes_elsewhere = stripes - len(range(0, stripes, sizes.workers))
    row_bytes = sizes.head_dim * itemsize + sizes.value_head_dim * itemsize + 8
    rows_elsewhere = sizes.batch_size * query_heads * STRIPE_ROWS * stripes_elsewhere
    # What is not with the first worker goes there, and each of the others lacks what is not with it.
    passing = sizes.batch_size * others * keys * token + rows_elsewhere * row_bytes
    return {"queries": to_workers + back, "keys": sizes.batch_size * elsewhere * token, "passing": passing}
