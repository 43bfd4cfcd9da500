"""Ragged batches for tests: random ones, and the dense call that each of their sequences is by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from element_types import accumulator_of
from mask_blocks import with_dense

Array = np.ndarray[Any, np.dtype[Any]]
LENGTHS = (0, 1, 2, 5, 15, 16, 17, 31, 33, 63, 64, 65, 97, 128, 130, 150)


@dataclass(frozen=True)
class Ragged:
    """The arguments of `scaled_dot_product_attention_varlen`."""

    query: Array
    key: Array
    value: Array
    cu_seqlens_q: Array
    cu_seqlens_k: Array
    options: dict[str, Any]

    @property
    def arguments(self) -> tuple[Array, ...]:
        return self.query, self.key, self.value, self.cu_seqlens_q, self.cu_seqlens_k

    def rows(self) -> Iterator[tuple[slice, slice]]:
        """Of the queries and keys of each sequence."""
        for b in range(len(self.cu_seqlens_q) - 1):
            yield slice(*self.cu_seqlens_q[b : b + 2]), slice(*self.cu_seqlens_k[b : b + 2])

    def sequences(self) -> Iterator[tuple[slice, tuple[Array, Array, Array], dict[str, Any]]]:
        """The query rows of each sequence, and its dense call: arrays [H, T, D], options."""
        for b, (q, k) in enumerate(self.rows()):
            options = dict(self.options)
            for name in ("query_offset", "key_lengths"):
                if np.ndim(options.get(name, 0)):
                    options[name] = options[name][b : b + 1]
            if np.ndim(options.get("alibi_slopes")) == 2:
                options["alibi_slopes"] = options["alibi_slopes"][b]
            mask = options.pop("attn_mask", None)
            if mask is not None:
                mask = mask[:, q if mask.shape[1] > 1 else slice(None), : k.stop - k.start]
            key_mask = options.pop("key_mask", None)
            if key_mask is not None:
                mask = with_dense(mask, key_mask[None, None, k])
            if mask is not None:
                options["attn_mask"] = mask
            yield q, (heads_first(self.query[q]), heads_first(self.key[k]), heads_first(self.value[k])), options

    def hidden_keys(self) -> Array:
        """[Nk]: those that no query may see, by key_mask or key_lengths."""
        hidden = ~self.options.get("key_mask", np.ones(len(self.key), bool))
        if "key_lengths" in self.options:
            for (_, k), length in zip(self.rows(), self.options["key_lengths"], strict=True):
                hidden[k.start + length : k.stop] = True
        return hidden

    def changed(self, **fields: Any) -> Ragged:
        return replace(self, **fields)


def heads_first(x: Array) -> Array:
    """[T, H, D] -> [H, T, D], and the way back."""
    return x.swapaxes(0, 1)


def random_batch(seed: int, dtype: Any) -> Ragged:
    """Up to seven sequences of any lengths, grouped heads, and a mixture of all options."""
    rng = np.random.default_rng(seed)

    def chance() -> bool:
        return bool(rng.random() < 0.4)

    size, kv_heads, width, value_width = (int(rng.integers(1, most)) for most in (8, 3, 41, 41))
    heads = kv_heads * int(rng.integers(1, 5))
    lengths_q = rng.choice(LENGTHS, size)
    lengths_k = lengths_q if chance() else rng.choice(LENGTHS, size)
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(lengths)]) for lengths in (lengths_q, lengths_k))
    query = 10.0 ** rng.integers(-1, 2) * rng.standard_normal((cu_q[-1], heads, width))
    key = rng.standard_normal((cu_k[-1], kv_heads, width))
    value = rng.standard_normal((cu_k[-1], kv_heads, value_width))

    options: dict[str, Any] = {"is_causal": chance()}
    if chance():
        options["query_offset"] = rng.integers(-20, 60, size) if chance() else int(rng.integers(-20, 60))
    if chance():
        options["key_lengths"] = rng.integers(0, lengths_k + 1)
    if chance():
        options["window"] = (int(rng.integers(-1, 100)), int(rng.integers(-1, 100)))
    if chance():
        options["scale"] = float(rng.choice([-0.7, 0.0, 0.3]))
    if chance():
        options["softcap"] = float(rng.choice([0.5, 3.0, 50.0]))
    if chance():
        shape = (size, heads) if chance() else heads
        options["alibi_slopes"] = (rng.random(shape) / 4).astype(accumulator_of(dtype))
    if chance():
        options["sinks"] = (3 * rng.standard_normal(heads)).astype(accumulator_of(dtype))
    if chance():
        options["key_mask"] = rng.random(cu_k[-1]) < 0.8
    if chance():
        sizes = (heads, int(cu_q[-1]), int(lengths_k.max()))
        shape = [1 if axis < 2 and chance() else n for axis, n in enumerate(sizes)]
        mask = rng.standard_normal(shape).astype(dtype)
        mask[rng.random(shape) < 0.3] = -np.inf
        options["attn_mask"] = mask > -np.inf if chance() else mask
    if chance():
        options["position_bias"] = rng.standard_normal((heads, 2 * int(rng.integers(90)) + 1)).astype(
            accumulator_of(dtype)
        )
    return Ragged(query.astype(dtype), key.astype(dtype), value.astype(dtype), cu_q, cu_k, options)
