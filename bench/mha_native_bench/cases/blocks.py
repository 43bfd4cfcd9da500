"""Random matrices in the formats of GGUF files."""

from __future__ import annotations

import numpy as np

import mha_native
from mha_native_bench.cases.case import Array

# By format: features and bytes of a block, the place of its scale in float16, and of its offset if it has one, with the
# offset that makes the mean of random weights 0, in scales.
BLOCKS: dict[str, tuple[int, int, int, tuple[int, float] | None]] = {
    "q4_0": (32, 18, 0, None),
    "q4_1": (32, 20, 0, (2, -7.5)),
    "q5_0": (32, 22, 0, None),
    "q5_1": (32, 24, 0, (2, -15.5)),
    "q8_0": (32, 34, 0, None),
    "iq4_nl": (32, 18, 0, None),
    "mxfp4": (32, 17, 0, None),  # the scale is one byte, an exponent of 2
    "q4_k": (256, 144, 0, (2, 7.5)),  # offsets are subtracted
    "q5_k": (256, 176, 0, (2, 15.5)),
    "q6_k": (256, 210, 208, None),
}


def random_blocks(dtype: str, like: Array, rng: np.random.Generator) -> mha_native.BlockMatrix:
    """A matrix with random codes, of the shape of `like`, whose rows have about the same root mean squares."""
    rows, columns = like.shape
    features, size, _, _ = BLOCKS[dtype]
    data = rng.integers(0, 256, (rows, columns // features, size), np.uint8)
    with_scales(data, dtype, np.ones(rows))
    of_ones = root_mean_squares(mha_native.BlockMatrix(data.reshape(rows, -1), dtype, columns).dequantize())
    with_scales(data, dtype, root_mean_squares(like) / of_ones)
    return mha_native.BlockMatrix(data.reshape(rows, -1), dtype, columns)


def with_scales(data: Array, dtype: str, scales: Array) -> None:
    """Writes the scale of each row into its blocks [rows, blocks, bytes], and the offset."""
    _, _, place, offset = BLOCKS[dtype]
    if dtype == "mxfp4":
        data[..., place] = (127 + np.rint(np.log2(scales)).astype(np.int64))[:, None]
        return
    places = [(place, 1.0)] if offset is None else [(place, 1.0), offset]
    for at, factor in places:
        numbers = (scales * factor).astype("<f2").view(np.uint8).reshape(-1, 1, 2)
        data[..., at : at + 2] = numbers


def root_mean_squares(matrix: Array) -> Array:
    """Return the root mean square of each row."""
    squares: Array = np.sqrt(np.mean(np.square(matrix, dtype=np.float64), axis=1))
    return squares
