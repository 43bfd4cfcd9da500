"""Block masks and key masks as dense ones."""

from typing import Any

import numpy as np
from equivalent_calls import Call
from tolerance import assert_same_numbers

from mha_native import attention_statistics, attention_weights, scaled_dot_product_attention

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


def assert_bits_of_a_dense_mask(call: Call, dense: Array, label: str, **mask: Any) -> None:
    """Check every result of a call with `mask` by bits against a call with an attn_mask that admits the same keys.

    `dense` [B or 1, H or 1, Tq or 1, Tk] has the admitted keys. Keys that it admits for no query hold NaN.
    """
    given = call.options
    same = given | {"attn_mask": with_dense(given.get("attn_mask"), dense)}
    key, value = call.key.copy(), call.value.copy()
    for b, hidden in enumerate(np.broadcast_to(~dense.any((1, 2)), (len(key), key.shape[2]))):
        key[b, :, hidden] = value[b, :, hidden] = np.nan
    expected = scaled_dot_product_attention(call.query, call.key, call.value, return_lse=True, **same)
    for threads in (1, 2, 3):
        out = np.full_like(expected[0], np.nan)
        _, lse = scaled_dot_product_attention(
            call.query, key, value, return_lse=True, out=out, num_threads=threads, **mask, **given
        )
        assert_same_numbers(out, expected[0], label=label)
        assert_same_numbers(lse, expected[1], label=f"{label}, lse")
    stages: tuple[Any, ...] = ("masked", "weights")
    for stage in stages:
        scores = attention_weights(call.query, key, stage=stage, **mask, **given)
        assert_same_numbers(scores, attention_weights(call.query, call.key, stage=stage, **same), label=label)
    found = attention_statistics(call.query, key, **mask, **given)
    for name, array in attention_statistics(call.query, call.key, **same)._asdict().items():
        assert_same_numbers(getattr(found, name), array, label=f"{label}, {name}")
