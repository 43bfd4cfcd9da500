"""A worker's part of a long prompt: rows of queries that it keeps, while it receives all keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..functions.attention import scaled_dot_product_attention
from ._partition import BLOCK_KEYS, STRIPE_ROWS, Sizes, options_of_sequence, reachable

# Keys [B, Hk, T, D] and values [B, Hk, T, Dv] of some blocks, by their numbers.
Blocks: TypeAlias = Mapping[int, tuple[NDArray[Any], NDArray[Any]]]


class PassingKeys:
    """The rows of a prompt that worker `worker` computes, and their result over the keys so far."""

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
        """Attend to positions [first, last): to `blocks` of the other workers, and to the own blocks."""
        keys, values = (np.zeros((len(lengths), self._sizes.num_kv_heads, last - first, width), self._query.dtype)
                        for width in (self._sizes.head_dim, self._sizes.value_head_dim))  # fmt: skip
        for block, (key, value) in (dict(self._own(first, last)) | dict(blocks)).items():
            begin = block * BLOCK_KEYS - first
            keys[:, :, begin : begin + key.shape[2]] = key
            values[:, :, begin : begin + key.shape[2]] = value
        for b, length in enumerate(np.clip(lengths - first, 0, last - first).tolist()):
            stripes = len(self._query[b])
            if length and stripes:
                given = options_of_sequence(self._options, b)
                if "key_mask" in given and given["key_mask"].shape[-1] > 1:
                    given["key_mask"] = given["key_mask"][:, first : first + length]
                out, lse = scaled_dot_product_attention(
                    self._query[b],
                    keys[b : b + 1, :, :length],
                    values[b : b + 1, :, :length],
                    query_offset=reachable(self._offsets[b] - first),
                    return_lse=True,
                    num_threads=self._threads,
                    **given,
                )
                outs, lses = [self._out[b], out.astype(np.float64)], [self._lse[b], lse.astype(np.float64)]
                self._out[b], self._lse[b] = _core.merge_attention(outs, lses, None, self._threads)

    def result(self) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the result over all keys: out [B, stripes, H, 64, Dv], rounded once, and lse [B, stripes, H, 64]."""
        return self._out.astype(self._query.dtype), self._lse
