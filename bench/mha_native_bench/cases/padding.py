"""Sequences of different lengths as rectangles, and back."""

from __future__ import annotations

import numpy as np

from mha_native_bench.cases.case import Array, Case


def padded(case: Case, ragged: Array) -> Array:
    """[N, heads, D] as [B, heads, Tq, D], with zeros after the end of each sequence."""
    out = np.zeros((case.B, ragged.shape[1], case.Tq, ragged.shape[2]), ragged.dtype)
    for b, length in enumerate(case.lengths):
        out[b, :, :length] = ragged[case.offsets[b] : case.offsets[b + 1]].swapaxes(0, 1)
    return out


def unpadded(case: Case, dense: Array) -> Array:
    """The inverse of `padded`: [B, heads, Tq, D] as [N, heads, D]."""
    return np.concatenate([one[:, :length].swapaxes(0, 1) for one, length in zip(dense, case.lengths, strict=True)])


def padded_pairs(case: Case) -> int:
    """Query-key pairs of a head if all sequences have as many queries as the longest, and `key_lengths` hides keys."""
    return sum(int(np.count_nonzero(case.visible(case.Tq, length))) for length in case.lengths.tolist())


def padded_texts(texts: list[Array]) -> tuple[Array, Array]:
    """Token ids and mask, [B, longest] each; the mask is 1 for a token and 0 after the end of its text."""
    ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return ids, mask
