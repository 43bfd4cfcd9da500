"""int8 weights as ONNX Runtime and OpenVINO take them."""

from __future__ import annotations

import numpy as np

from mha_native_bench.cases.case import Array


def in_int8(weight: Array) -> tuple[Array, Array]:
    """The weight [out, in] rounded to int8, and the scale of each output feature, [out]."""
    scales = np.abs(weight).max(axis=1) / 127
    return np.rint(weight / scales[:, None]).astype(np.int8), scales
