"""The partition of positions among workers: blocks of 512 keys, block i for worker ``i % workers``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Keys of a block. The library sums keys in spans of this length, so that a block has the bits of a call over all keys.
BLOCK_KEYS = 512

# Keys, and queries, of an entry of a block mask.
BLOCK_MASK_KEYS = 64

# Columns of a mask for each block.
MASK_WIDTHS = {"attn_mask": BLOCK_KEYS, "block_mask": BLOCK_KEYS // BLOCK_MASK_KEYS, "key_mask": BLOCK_KEYS}

# Largest distance of queries from the first key of a call.
_FARTHEST = 1 << 62

# Rows of a prompt in a stripe, where workers keep queries and move keys.
STRIPE_ROWS = 64


@dataclass(frozen=True)
class Sizes:
    """Sizes that are the same for all workers of a cache."""

    batch_size: int
    num_kv_heads: int
    capacity: int
    head_dim: int
    value_head_dim: int
    dtype: str
    workers: int

    def blocks_of(self, worker: int) -> int:
        """The largest number of blocks of a sequence on one worker."""
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
    """Cut positions [first, last) of a sequence at the ends of blocks."""
    while first < last:
        end = min(last, (first // BLOCK_KEYS + 1) * BLOCK_KEYS)
        yield Piece(sequence, first, end)
        first = end


def rows_by_block(
    offset: int, queries: int, worker: int, workers: int, blocks: int
) -> Iterator[tuple[slice, int, bool]]:
    """Cut `queries` rows from position `offset` on at the ends of blocks; a cache has `blocks` of them.

    Yield some rows, the number of positions of a worker up to the first of these rows, and whether they are in a block
    of the worker, so that each further row has one position more.
    """
    row = 0
    while row < queries:
        place = offset + row
        block = min(max(place // BLOCK_KEYS, -1), blocks)
        end = queries if block == blocks else min(queries, (block + 1) * BLOCK_KEYS - offset)
        is_own = 0 <= block < blocks and block % workers == worker
        before = len(range(worker, block, workers)) * BLOCK_KEYS
        yield slice(row, end), before + (place % BLOCK_KEYS + 1 if is_own else 0), is_own
        row = end


def reachable(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Clip positions of queries to the range of a call; beyond it, the distance from all keys does not matter."""
    return np.clip(offsets, -_FARTHEST, _FARTHEST)


def offsets_from(starts: NDArray[np.int64], offset: int) -> NDArray[np.int64]:
    """Return `offset`, a position among all keys, relative to each of `starts`, in the range of a call."""
    offsets = offset - starts
    return offsets if abs(offset) < _FARTHEST // 2 else reachable(offsets)


def options_of_sequence(options: dict[str, Any], b: int) -> dict[str, Any]:
    """Return the options of a call over sequence b alone, with its own slopes and key mask."""
    own = dict(options)
    slopes, key_mask = own.get("alibi_slopes"), own.get("key_mask")
    if slopes is not None and slopes.ndim == 2:
        own["alibi_slopes"] = slopes[min(b, len(slopes) - 1)]
    if key_mask is not None:
        own["key_mask"] = key_mask[min(b, len(key_mask) - 1)][None]
    return own


def columns_of(which: str, mask: NDArray[Any], worker: int, workers: int) -> NDArray[Any]:
    """Return the part of a mask [..., columns] for the blocks of a worker, [..., blocks, width].

    A single column for all keys becomes [..., 1, 1]; in a block mask it is the first column of a block. Missing columns
    of the last block are 0, since it has no keys there.
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
    """Return the bytes that a call of `queries` rows in each sequence over `keys` moves between workers, by method.

    Parameters
    ----------
    sizes : Sizes
    queries, keys : int
        Tq and Tk, the rows of queries and the keys of each sequence.
    query_heads : int
        H, the number of heads of the query.
    itemsize : int
        Bytes of an element of the query.
    is_exact : bool, default False
        Workers return the result of each block, and not one merged result.

    Returns
    -------
    dict
        ``"queries"``: queries go to all other workers, and each returns a result and its log-sum-exp in 8 bytes (for a
        block, in the bytes of a score). ``"keys"``: each other worker sends its keys and values. ``"passing"``: each
        worker gets all keys and values, by way of the calling process, and computes every N-th stripe of 64 rows.
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
    # The first worker gets the keys of all others, and sends each of the others its missing keys.
    passing = sizes.batch_size * others * keys * token + rows_elsewhere * row_bytes
    return {"queries": to_workers + back, "keys": sizes.batch_size * elsewhere * token, "passing": passing}
