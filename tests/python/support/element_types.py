"""The element types of tests: those of 16 bits, what they are computed in, and their limits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = ml_dtypes.bfloat16
HALF = (np.float16, BFLOAT16)


def is_half(dtype: Any) -> bool:
    return np.dtype(dtype) in map(np.dtype, HALF)


def accumulator_of(dtype: Any) -> Any:
    """What scores, sums and lse of `dtype` are computed in."""
    return np.float32 if is_half(dtype) else np.dtype(dtype).type


def limits(dtype: Any) -> Any:
    """`numpy.finfo`, of bfloat16 as well."""
    return ml_dtypes.finfo(dtype)
