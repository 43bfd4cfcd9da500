"""Projections with int8 weights as docs/numerics.md defines them: to the last bit, for their sums are exact."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LEAST_MAX = np.float32(2.0**-100)


def quantized(x: Array) -> tuple[Array, Array]:
    """Rows [..., n] as integers, and the scale of each [..., 1]. Every step rounds once, in float32."""
    most = np.maximum(np.abs(x).max(-1, keepdims=True), LEAST_MAX)
    return np.rint(x * (np.float32(127) / most)).astype(np.int8), most / np.float32(127)


def weights(weight: Array) -> tuple[Array, Array]:
    """Weights [out, in] as integers and scales [out]."""
    integers, scale = quantized(weight)
    return integers, scale[:, 0]


def projection(x: Array, weight: Array, scale: Array, bias: Array | None) -> Array:
    """What x [..., in] gives with integer weights [out, in] and scales [out]."""
    integers, x_scale = quantized(x)
    sums = integers.astype(np.float64) @ weight.T.astype(np.float64)  # exact: below 2^31
    out = sums.astype(np.float32) * (x_scale * scale)
    return out if bias is None else out + bias
