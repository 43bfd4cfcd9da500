"""The scales of blocks, which can be NaN or infinite in a damaged file."""

import numpy as np

from ...functions.block_matrix import BLOCK_FORMATS, BlockMatrix

# The places of the numbers of float16 in a block.
_HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q4_k": (0, 2), "q5_k": (0, 2),
    "q6_k": (208,), "iq4_nl": (0,),
}  # fmt: skip

_INFINITE_HALF = 0x7C  # the bits of the exponent in the second byte of NaN and infinity

# The scale of MXFP4 is a power of 2, whose exponent is the first byte. From this one on the largest element, 6 times
# the scale, is infinite in float32.
_FIRST_INFINITE = 253


def is_finite(matrix: BlockMatrix) -> bool:
    """Return whether all elements are finite."""
    blocks = matrix.data.reshape(-1, BLOCK_FORMATS[matrix.dtype][1])
    if matrix.dtype == "mxfp4":
        return bool(blocks[:, 0].max() < _FIRST_INFINITE)
    # The bits of all exponents, one after another, so that NumPy reads each once.
    return not any(np.any(blocks[:, place + 1] & _INFINITE_HALF == _INFINITE_HALF) for place in _HALVES[matrix.dtype])
