"""Projections with int8 weights as docs/numerics.md defines them: to the last bit, for their sums are exact."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LEAST_MAX = np.float32(2.0**-100)


def weights(weight: Array) -> tuple[Array, Array]:
    """Weights [out, in] as integers and scales [out]. Every step rounds once, in float32."""
    integers, scale = _quantized(weight, np.abs(weight).max(-1, keepdims=True))
    return integers.astype(np.int8), scale[:, 0]


def _rows(x: Array) -> tuple[Array, Array]:
    """Rows [..., n] as integers, and the scale of each [..., 1]."""
    high, low = (f(x, np.float32(0)) for f in (np.maximum, np.minimum))
    half = np.float32(0.5)
    return _quantized(x, half * high.max(-1, keepdims=True) - half * low.min(-1, keepdims=True))


def _quantized(x: Array, most: Array) -> tuple[Array, Array]:
    most = np.maximum(most, LEAST_MAX)
    return np.rint(x * (np.float32(127) / most)), most / np.float32(127)


def projection(x: Array, weight: Array, scale: Array, bias: Array | None) -> Array:
    """What x [..., in] gives with integer weights [out, in] and scales [out]."""
    integers, x_scale = _rows(x)
    sums = integers.astype(np.float64) @ weight.T.astype(np.float64)  # exact: below 2^31
    out = sums.astype(np.float32) * (x_scale * scale)
    return out if bias is None else out + bias
