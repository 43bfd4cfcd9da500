"""Types of elements with blocks of 256, whose parts of 32 or 16 have scales of their own: Q4_K, Q5_K and Q6_K.

The scales of parts are small integers, which one number of the block is multiplied with.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PARTS = 8  # of a block, each of 32 elements, in Q4_K and Q5_K


def q4_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Element i of part p of a block is ``(d s_p) q_i - (e m_p)``."""
    blocks = raw.view([("d", "<f2"), ("e", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])
    return _scaled_parts(blocks, _nibbles(blocks["q"]))


def q5_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """As Q4_K, with one more bit of each integer: bit p of byte i is of element i of part p."""
    blocks = raw.view([("d", "<f2"), ("e", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)])
    high = (blocks["high"][:, np.newaxis] >> np.arange(_PARTS, dtype=np.uint8)[:, np.newaxis]) & 1
    return _scaled_parts(blocks, _nibbles(blocks["q"]) | high << 4)


def q6_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Element i of part p, one of 16 parts of a block, is ``(d s_p) (q_i - 32)``.

    A block is two halves. Of a half, 64 bytes hold the low four bits of 64 elements and then of the next 64, and 32
    bytes the high two bits of elements i, i + 32, i + 64 and i + 96.
    """
    blocks = raw.view([("low", "u1", (2, 1, 64)), ("high", "u1", (2, 1, 32)), ("scales", "i1", 16), ("d", "<f2")])
    low = (blocks["low"] >> np.array([[0], [4]], np.uint8) & 15).reshape(-1, 2, 4, 32)
    high = blocks["high"] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    elements = (low | high << 4).reshape(-1, 16, 16).astype(np.float32)
    elements -= 32
    elements *= (_column(blocks["d"]) * blocks["scales"])[..., np.newaxis]
    return elements


def _scaled_parts(blocks: NDArray[Any], integers: NDArray[Any]) -> NDArray[np.float32]:
    """The elements of blocks from their integers [N, 8, 32]."""
    scales, offsets = _small_scales(blocks["scales"])
    elements = integers.astype(np.float32)
    elements *= (_column(blocks["d"]) * scales)[..., np.newaxis]
    elements -= (_column(blocks["e"]) * offsets)[..., np.newaxis]
    return elements


def _small_scales(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The scales and the offsets [N, 8] of parts, of six bits each, in 12 bytes.

    The first four bytes begin with those bits of the first four scales, the next four with those of the first four
    offsets. The last four have the low bits of the other scales and offsets, whose high ones end the first eight bytes.
    """
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, low & 15 | first >> 6 << 4], axis=1)
    return scales, np.concatenate([second & 63, low >> 4 | second >> 6 << 4], axis=1)


def _nibbles(pairs: NDArray[np.uint8]) -> NDArray[Any]:
    """The integers [N, 8, 32]: 32 bytes hold a part in their low four bits, and the next part in their high ones."""
    shifts = np.array([[0], [4]], np.uint8)
    return (pairs.reshape(-1, _PARTS // 2, 1, 32) >> shifts & 15).reshape(-1, _PARTS, 32)


def _column(numbers: NDArray[Any]) -> NDArray[np.float32]:
    return numbers.astype(np.float32)[:, np.newaxis]
