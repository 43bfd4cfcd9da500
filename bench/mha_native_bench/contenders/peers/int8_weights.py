"""int8 weights as ONNX Runtime and OpenVINO take them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from mha_native_bench.cases.case import Array


def in_int8(weight: Array, largest: int = 127) -> tuple[Array, Array]:
    """The weight [out, in] rounded to integers of at most `largest`, and the scale of each output feature, [out]."""
    scales = np.abs(weight).max(axis=1) / largest
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


@cache
def has_vnni() -> bool:
    """Whether the processor adds products of bytes up in 32 bits, as far as Linux says; else assumed."""
    flags = Path("/proc/cpuinfo")
    found = flags.read_text(encoding="utf-8") if flags.is_file() else ""
    return "sse2" not in found or "avx512_vnni" in found or "avx_vnni" in found
