"""Norms of rows as in their papers, in NumPy and float64. E is the number of features of a row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import named

Array = NDArray[np.float64]


@named
def layer_norm(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, eps: float = 1e-5
) -> Array:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, mean and variance of the E features: [..., E]."""
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    normal: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    scaled = normal if weight is None else normal * np.asarray(weight, np.float64)
    return scaled if bias is None else scaled + np.asarray(bias, np.float64)


@named
def rms_norm(x: ArrayLike, weight: ArrayLike | None = None, *, eps: float = 1e-6, unit_offset: bool = False) -> Array:
    """``x / sqrt(mean(x^2) + eps) * weight``, or with `unit_offset` ``(1 + weight)``, over the E features: [..., E]."""
    x = np.asarray(x, np.float64)
    normal: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return normal if weight is None else normal * (np.asarray(weight, np.float64) + unit_offset)


def normalize(x: Array, state: Mapping[str, ArrayLike], name: str, norm: str, eps: float | None) -> Array:
    """Apply the norm of the kind `norm` that `state` has under `name`; return `x` if it has no such norm.

    None is the default of `eps` of that kind.
    """
    options: Any = {} if eps is None else {"eps": eps}
    weight = state.get(f"{name}.weight")
    if weight is None:
        return x
    if norm == "layer":
        return layer_norm(x, weight, state.get(f"{name}.bias"), **options)
    if norm not in ("rms", "rms_unit_offset"):
        raise ValueError(f"norm must be 'layer', 'rms' or 'rms_unit_offset'; got {norm!r}")
    return rms_norm(x, weight, unit_offset=norm == "rms_unit_offset", **options)
