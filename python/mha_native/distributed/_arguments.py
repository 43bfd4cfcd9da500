"""Checks of arguments that need the whole cache, so that no single worker can make them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.arrays import Tensor, to_numpy
from ..functions.messages import listed, shown
from ._partition import BLOCK_MASK_KEYS


def require_four_axes(name: str, argument: str, array: Any) -> None:
    """Raise ValueError unless `array` has four axes."""
    shape = np.shape(array)
    if len(shape) != 4:
        rule = f"{name}: {argument} must have four axes, of sequences, heads, tokens and features"
        raise ValueError(f"{rule}; got {list(shape)}")


def new_counts(name: str, lengths: NDArray[np.int64], tokens: int, new_lengths: Tensor | None) -> NDArray[np.int64]:
    """Return the number of new tokens of each sequence [B]: `new_lengths`, checked, or all `tokens`."""
    if new_lengths is None:
        return np.full_like(lengths, tokens)
    counts = np.asarray(to_numpy(name, "new_lengths", new_lengths))
    if counts.dtype.kind not in "iu" or counts.shape != lengths.shape:
        rule = f"{name}: new_lengths must be integers [{len(lengths)}]"
        raise TypeError(f"{rule}; got {counts.dtype} {list(counts.shape)}")
    if (counts < 0).any() or (counts > tokens).any():
        raise ValueError(f"{name}: new_lengths must be from 0 to {tokens}; got {shown(counts.tolist())}")
    return counts.astype(np.int64)


def checked_mask(name: str, which: str, mask: Tensor, query: NDArray[Any], keys: int) -> NDArray[Any]:
    """Return the mask `which` of a call over `keys` keys with all its axes: two for `key_mask`, four for the others."""
    array = np.asarray(to_numpy(name, which, mask))
    batch, heads, queries, _ = query.shape
    shape, kinds = [batch, heads, queries, keys], [np.dtype(np.bool_), query.dtype]
    if which == "key_mask":
        shape, kinds = [batch, keys], kinds[:1]
    elif which == "block_mask":
        shape, kinds = [batch, heads, -(-queries // BLOCK_MASK_KEYS), -(-keys // BLOCK_MASK_KEYS)], kinds[:1]
    if array.dtype not in kinds:
        raise TypeError(f"{name}: {which} must be of {' or '.join(map(str, kinds))}; got {listed([str(array.dtype)])}")
    if array.ndim <= len(shape):
        full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        may_be_one = [axis < 2 or which == "attn_mask" for axis in range(len(shape))]
        sizes = zip(full.shape, shape, may_be_one, strict=True)
        if all(size == expected or (size == 1 and may) for size, expected, may in sizes):
            return full
    raise ValueError(f"{name}: {which} must be broadcastable to {shape}; got {list(array.shape)}")


def rows_of(which: str, mask: NDArray[Any], queries: slice) -> NDArray[Any]:
    """Return the rows of a mask [.., .., rows, columns] for some queries, or a mask for all queries as it is."""
    if which == "key_mask" or (mask.shape[2] == 1 and which == "attn_mask"):
        return mask
    step = BLOCK_MASK_KEYS if which == "block_mask" else 1
    return mask[:, :, queries.start // step : -(-queries.stop // step)]
