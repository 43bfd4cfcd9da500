"""Types of elements with blocks of 256, and a scale for each part of 32 or 16 elements: Q4_K, Q5_K and Q6_K.

The scale of a part is a small integer times the scale of the block.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PARTS = 8  # of a block, each of 32 elements, in Q4_K and Q5_K


def q4_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements: element i of part p of a block is ``(d s_p) q_i - (e m_p)``."""
    blocks = raw.view([("d", "<f2"), ("e", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])
    return _scaled_parts(blocks, _nibbles(blocks["q"]))


def q5_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements as for Q4_K, with a fifth bit: bit p of byte i of `high` belongs to element i of part p."""
    blocks = raw.view([("d", "<f2"), ("e", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)])
    high = (blocks["high"][:, np.newaxis] >> np.arange(_PARTS, dtype=np.uint8)[:, np.newaxis]) & 1
    return _scaled_parts(blocks, _nibbles(blocks["q"]) | high << 4)


def q6_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements: element i of part p, one of 16 parts of a block, is ``(d s_p) (q_i - 32)``.

    A block has two halves of 128 elements. In each half 64 bytes hold the low four bits of the first 64 elements and
    of the next 64. 32 bytes hold the high two bits of elements i, i + 32, i + 64 and i + 96.
    """
    blocks = raw.view([("low", "u1", (2, 1, 64)), ("high", "u1", (2, 1, 32)), ("scales", "i1", 16), ("d", "<f2")])
    low = (blocks["low"] >> np.array([[0], [4]], np.uint8) & 15).reshape(-1, 2, 4, 32)
    high = blocks["high"] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    elements = (low | high << 4).reshape(-1, 16, 16).astype(np.float32)
    elements -= 32
    elements *= (_column(blocks["d"]) * blocks["scales"])[..., np.newaxis]
    return elements


def _scaled_parts(blocks: NDArray[Any], integers: NDArray[Any]) -> NDArray[np.float32]:
    """Return the elements of blocks from their integers [N, 8, 32]."""
    scales, offsets = _small_scales(blocks["scales"])
    elements = integers.astype(np.float32)
    elements *= (_column(blocks["d"]) * scales)[..., np.newaxis]
    elements -= (_column(blocks["e"]) * offsets)[..., np.newaxis]
    return elements


def _small_scales(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the scales and the offsets [N, 8] of parts, which have six bits each, from 12 bytes.

    The low six bits of the first four bytes are the first four scales; the low six bits of the next four bytes are the
    first four offsets. The last four bytes hold the low four bits of the other scales and offsets. Their high two bits
    are the high bits of the first eight bytes.
    """
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, low & 15 | first >> 6 << 4], axis=1)
    return scales, np.concatenate([second & 63, low >> 4 | second >> 6 << 4], axis=1)


def _nibbles(pairs: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the integers [N, 8, 32]. The low four bits of 32 bytes are one part, the high bits the next part."""
    shifts = np.array([[0], [4]], np.uint8)
    return (pairs.reshape(-1, _PARTS // 2, 1, 32) >> shifts & 15).reshape(-1, _PARTS, 32)


def _column(numbers: NDArray[Any]) -> NDArray[np.float32]:
    return numbers.astype(np.float32)[:, np.newaxis]
