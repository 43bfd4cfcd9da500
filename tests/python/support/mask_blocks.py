"""Block masks as dense ones."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def expanded(blocks: Array, shape: tuple[int, ...]) -> Array:
    """A block mask, for scores of `shape` [B, H, Tq, Tk], as a dense one: [B or 1, H or 1, Tq, Tk]."""
    dense = blocks.reshape((1,) * (4 - blocks.ndim) + blocks.shape).repeat(64, 2).repeat(64, 3)
    return dense[..., : shape[2], : shape[3]]


def with_dense(attn_mask: Array | None, admitted: Array) -> Array:
    """An attn_mask that hides what is not admitted, too."""
    if attn_mask is None:
        return admitted
    return (
        attn_mask & admitted
        if attn_mask.dtype == bool
        else np.where(admitted, attn_mask, attn_mask.dtype.type(-np.inf))
    )
