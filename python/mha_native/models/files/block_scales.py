"""The scales of blocks, which can be NaN or infinite in a damaged file."""

import functools

import numpy as np
from numpy.typing import NDArray

from ...functions.block_matrix import BLOCK_FORMATS, BlockMatrix

# The bytes of a block with large integers and finite scales in every format.
_USUAL = 0x77


def is_finite(matrix: BlockMatrix) -> bool:
    """Return whether all elements are finite, by the bytes of their scales alone."""
    blocks = matrix.data.reshape(-1, BLOCK_FORMATS[matrix.dtype][1])
    usual = _usual_bytes(matrix.dtype)
    return not any(blocks[:, place].tobytes().translate(None, usual[place]) for place in usual)


@functools.cache
def _usual_bytes(dtype: str) -> dict[int, bytes]:
    """Return the places in a block where a byte can make elements infinite or NaN, each with the bytes that do not.

    The core is asked about blocks of usual bytes with another one. A number of float16 has one such byte, with its
    exponent; the exponent of MXFP4 is another.
    """
    size = BLOCK_FORMATS[dtype][1]
    places = np.arange(size)
    found = np.zeros(size, bool)
    for byte in (0x7F, 0xFF):
        blocks = np.full((size, size), _USUAL, np.uint8)
        blocks[places, places] = byte
        found |= _has_others(blocks, dtype)
    every = {}
    for place in np.flatnonzero(found):
        blocks = np.full((256, size), _USUAL, np.uint8)
        blocks[:, place] = np.arange(256)
        every[int(place)] = np.flatnonzero(~_has_others(blocks, dtype)).astype(np.uint8).tobytes()
    return every


def _has_others(blocks: NDArray[np.uint8], dtype: str) -> NDArray[np.bool_]:
    """Return whether each block has elements that are not finite."""
    elements = BlockMatrix(blocks, dtype, BLOCK_FORMATS[dtype][0]).dequantize()
    others: NDArray[np.bool_] = np.logical_not(np.isfinite(elements)).max(1)
    return others
