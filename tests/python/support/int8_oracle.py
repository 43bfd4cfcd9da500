"""Projections with int8 weights as docs/numerics.md defines them: to the last bit, for their sums are exact."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LEAST_MAX = np.float32(2.0**-100)
MOST_FEATURES = (2**31 - 1) // (128 * 254)
MOST_HALVINGS = 7


def most_outliers(features: int) -> int:
    """One for each 64 features, but no more than sums of 32 bits have room for."""
    return min(features // 64, (MOST_FEATURES - features) >> MOST_HALVINGS)


def weights(weight: Array) -> tuple[Array, Array]:
    """Weights [out, in] as integers and scales [out]. Every step rounds once, in float32."""
    integers, scale = _quantized(weight, np.abs(weight).max(-1, keepdims=True))
    return integers.astype(np.int8), scale[:, 0]


def outlier_limit(x: Array) -> Array:
    """The magnitude [..., 1] beyond which features of rows [..., n] are outliers."""
    size = np.abs(x)
    limit: Array = size.max(-1, keepdims=True)
    for _ in range(MOST_HALVINGS):  # where one is not halved, it stays from then on
        half = limit * np.float32(0.5)
        limit = np.where((size > half).sum(-1, keepdims=True) <= most_outliers(x.shape[-1]), half, limit)
    return limit


def _rows(x: Array) -> tuple[Array, Array]:
    """Rows [..., n] as integers, and the scale of each [..., 1]. Only of outliers they have more than 8 bits."""
    limit, zero, half = outlier_limit(x), np.float32(0), np.float32(0.5)
    high = np.minimum(np.maximum(x, zero).max(-1, keepdims=True), limit)
    low = np.maximum(np.minimum(x, zero).min(-1, keepdims=True), -limit)
    return _quantized(x, half * high - half * low)


def _quantized(x: Array, most: Array) -> tuple[Array, Array]:
    most = np.maximum(most, LEAST_MAX)
    return np.rint(x * (np.float32(127) / most)), most / np.float32(127)


def projection(x: Array, weight: Array, scale: Array, bias: Array | None) -> Array:
    """What x [..., in] gives with integer weights [out, in] and scales [out]."""
    integers, x_scale = _rows(x)
    sums = integers.astype(np.float64) @ weight.T.astype(np.float64)  # exact: below 2^31
    out = sums.astype(np.float32) * (x_scale * scale)
    return out if bias is None else out + bias
