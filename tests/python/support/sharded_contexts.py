"""A cache in shards beside the cache in one piece, with the same tokens, and options to call both with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from element_types import limits
from tolerance import assert_close

from mha_native import KVCache, scaled_dot_product_attention
from mha_native.distributed import ShardedKVCache

Array = np.ndarray[Any, np.dtype[Any]]

HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 16, 24
BLOCK = 512


class Context:
    """Tokens of some sequences, and both caches that hold them."""

    def __init__(self, rng: np.random.Generator, lengths: list[int], dtype: Any, queries: int) -> None:
        longest = max(lengths)
        numbers = np.float32 if dtype == np.int8 else dtype
        self.dtype, self.lengths, self.capacity = dtype, np.array(lengths), longest + 7
        self.query = rng.standard_normal((len(lengths), HEADS, queries, HEAD_DIM)).astype(numbers)
        self.key = rng.standard_normal((len(lengths), KV_HEADS, longest, HEAD_DIM)).astype(numbers)
        self.value = rng.standard_normal((len(lengths), KV_HEADS, longest, VALUE_DIM)).astype(numbers)
        self.whole = KVCache(*self._sizes(), dtype=dtype)
        self.whole.append(self.key, self.value, self.lengths)

    def _sizes(self) -> tuple[int, ...]:
        return len(self.lengths), KV_HEADS, self.capacity, HEAD_DIM, VALUE_DIM

    def sharded(self, workers: Any, steps: list[int] | None = None) -> ShardedKVCache:
        """The cache in shards, its tokens appended up to these lengths of the longest sequence, one after the other."""
        cache = ShardedKVCache(workers, *self._sizes(), dtype=self.dtype)
        first = 0
        for last in [*(steps or []), int(self.lengths.max())]:
            new = np.clip(self.lengths, first, last) - first
            cache.append(self.key[:, :, first:last], self.value[:, :, first:last], new)
            first = last
        return cache

    def assert_equal(self, cache: ShardedKVCache, options: Mapping[str, Any], label: str) -> None:
        """Within 2 units in the last place of the row: of the largest number in the results of its blocks.

        Or 4 in float64, in which the merge itself has roundings that count.
        """
        own = dict(options)
        mask = own.pop("attn_mask", None)
        given = {} if mask is None else {"attn_mask": mask}
        out, lse = scaled_dot_product_attention(self.query, self.whole, return_lse=True, **given, **own)
        actual, actual_lse = cache.attend(self.query, mask, return_lse=True, **own)
        assert actual.dtype == out.dtype
        assert actual_lse.dtype == lse.dtype
        units = 4 if out.dtype == np.float64 else 2
        bound = np.broadcast_to(units * float(limits(out.dtype).eps) * self._scale_of_rows(given | own), out.shape)
        assert_close(actual, out.astype(np.float64), bound, label=label)
        size = np.where(np.isfinite(lse), np.maximum(1, np.abs(lse)), 1).astype(np.float64)
        lse_bound = units * float(limits(lse.dtype).eps) * size
        assert_close(actual_lse, lse.astype(np.float64), lse_bound, label=f"{label}, lse")

    def _scale_of_rows(self, options: Mapping[str, Any]) -> Array:
        """The largest number that a row has in the result of any block, [B, H, Tq, 1]."""
        queries, longest = self.query.shape[2], int(self.lengths.max())
        own = {"query_offset": self.lengths - queries} | dict(options)
        own.pop("sinks", None)
        mask, largest = own.pop("attn_mask", None), np.zeros((*self.query.shape[:3], 1))
        columns = np.arange(longest)
        for first in range(0, longest, BLOCK):
            inside = np.broadcast_to((columns >= first) & (columns < first + BLOCK), (1, 1, 1, longest))
            if mask is not None:
                inside = inside & mask if mask.dtype == bool else np.where(inside, mask, -np.inf).astype(mask.dtype)
            out = scaled_dot_product_attention(self.query, self.whole, attn_mask=inside, **own)
            largest = np.maximum(largest, np.abs(out.astype(np.float64)).max(-1, keepdims=True))
        return largest


def options_of(rng: np.random.Generator, context: Context) -> dict[str, dict[str, Any]]:
    """One of each kind, and all that compose."""
    longest, queries = int(context.lengths.max()), context.query.shape[2]
    wide = np.float64 if context.query.dtype == np.float64 else np.float32
    slopes, bias, sinks = (rng.random(shape).astype(wide) for shape in (HEADS, (HEADS, 9), HEADS))
    mask = rng.random((len(context.lengths), 1, queries, longest)) < 0.7
    return {
        "none": {},
        "causal": {"is_causal": True},
        "window": {"is_causal": True, "window": (600, 0)},
        "both sides": {"window": (40, 30), "query_offset": 300},
        "offsets": {"is_causal": True, "query_offset": np.maximum(context.lengths - 700, 0)},
        "sees none": {"is_causal": True, "query_offset": -queries - 1},
        "far before": {"query_offset": -(2**62), "window": (3, 40)},
        "far behind": {"is_causal": True, "query_offset": 2**62},
        "scores": {"scale": 0.3, "softcap": 2.0, "alibi_slopes": slopes / 50, "position_bias": bias},
        "slopes of each": {"alibi_slopes": rng.random((len(context.lengths), HEADS)).astype(wide) / 50},
        "sinks": {"is_causal": True, "sinks": 8 * sinks},
        "boolean": {"attn_mask": mask},
        "one column": {"attn_mask": mask[..., :1]},
        "additive": {"attn_mask": rng.standard_normal((HEADS, 1, longest)).astype(context.query.dtype)},
        "keys": {"key_mask": rng.random((len(context.lengths), longest)) < 0.7, "is_causal": True},
        "keys and boolean": {"key_mask": rng.random((len(context.lengths), longest)) < 0.7, "attn_mask": mask},
        "keys and additive": {
            "key_mask": rng.random((len(context.lengths), longest)) < 0.7,
            "attn_mask": rng.standard_normal((queries, longest)).astype(context.query.dtype),
        },
        "keys of all": {"key_mask": rng.random(longest) < 0.7, "is_causal": True},
        "all keys or none": {"key_mask": np.arange(len(context.lengths))[:, None] != 1, "is_causal": True},
        "all": {"attn_mask": mask, "is_causal": True, "window": (900, 2), "sinks": sinks, "softcap": 5.0},
    }
