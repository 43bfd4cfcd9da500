"""The types of elements in GGUF files: plain numbers, and blocks of small integers with a scale for each block."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..tensor_file import PLAIN_READERS, Reader
from .super_blocks import q4_k, q5_k, q6_k

_BLOCK = 32  # elements of a block, for types without K in their names


class ElementType(NamedTuple):
    """A layout of elements in the file: `block` neighbours of a row in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


# By their numbers in the file. Types without a reader are listed for their sizes, and for messages.
ELEMENT_TYPES = {
    0: ElementType("F32", 1, 4),
    1: ElementType("F16", 1, 2),
    2: ElementType("Q4_0", 32, 18),
    3: ElementType("Q4_1", 32, 20),
    6: ElementType("Q5_0", 32, 22),
    7: ElementType("Q5_1", 32, 24),
    8: ElementType("Q8_0", 32, 34),
    9: ElementType("Q8_1", 32, 40),
    10: ElementType("Q2_K", 256, 84),
    11: ElementType("Q3_K", 256, 110),
    12: ElementType("Q4_K", 256, 144),
    13: ElementType("Q5_K", 256, 176),
    14: ElementType("Q6_K", 256, 210),
    15: ElementType("Q8_K", 256, 292),
    16: ElementType("IQ2_XXS", 256, 66),
    17: ElementType("IQ2_XS", 256, 74),
    18: ElementType("IQ3_XXS", 256, 98),
    19: ElementType("IQ1_S", 256, 50),
    20: ElementType("IQ4_NL", 32, 18),
    21: ElementType("IQ3_S", 256, 110),
    22: ElementType("IQ2_S", 256, 82),
    23: ElementType("IQ4_XS", 256, 136),
    24: ElementType("I8", 1, 1),
    25: ElementType("I16", 1, 2),
    26: ElementType("I32", 1, 4),
    27: ElementType("I64", 1, 8),
    28: ElementType("F64", 1, 8),
    29: ElementType("IQ1_M", 256, 56),
    30: ElementType("BF16", 1, 2),
    34: ElementType("TQ1_0", 256, 54),
    35: ElementType("TQ2_0", 256, 66),
    39: ElementType("MXFP4", 32, 17),
    40: ElementType("NVFP4", 64, 36),
    41: ElementType("Q1_0", 128, 18),
}


def _q4_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements: element i of a block is ``d (q_i - 8)``."""
    blocks = raw.view([("d", "<f2"), ("q", "u1", _BLOCK // 2)])
    elements = _nibbles(blocks["q"])
    elements -= 8
    elements *= _column(blocks["d"])
    return elements


def _q4_1(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements: element i of a block is ``d q_i + m``."""
    blocks = raw.view([("d", "<f2"), ("m", "<f2"), ("q", "u1", _BLOCK // 2)])
    elements = _nibbles(blocks["q"])
    elements *= _column(blocks["d"])
    elements += _column(blocks["m"])
    return elements


def _q5_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements: element i of a block is ``d (q_i - 16)``."""
    blocks = raw.view([("d", "<f2"), ("high", "<u4"), ("q", "u1", _BLOCK // 2)])
    elements = _with_fifth_bits(blocks)
    elements -= 16
    elements *= _column(blocks["d"])
    return elements


def _q5_1(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements: element i of a block is ``d q_i + m``."""
    blocks = raw.view([("d", "<f2"), ("m", "<f2"), ("high", "<u4"), ("q", "u1", _BLOCK // 2)])
    elements = _with_fifth_bits(blocks)
    elements *= _column(blocks["d"])
    elements += _column(blocks["m"])
    return elements


def _q8_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements: element i of a block is ``d q_i``."""
    blocks = raw.view([("d", "<f2"), ("q", "i1", _BLOCK)])
    elements: NDArray[np.float32] = np.multiply(blocks["q"], _column(blocks["d"]), dtype=np.float32)
    return elements


def _column(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Return one number for each block, [blocks, 1], to be broadcast to its elements."""
    return numbers.astype(np.float32)[:, np.newaxis]


def _nibbles(pairs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the integers of blocks. The low four bits of byte i are element i, the high bits element i + 16."""
    elements = np.empty((len(pairs), _BLOCK), np.float32)
    elements[:, : _BLOCK // 2] = pairs & 15
    elements[:, _BLOCK // 2 :] = pairs >> 4
    return elements


def _with_fifth_bits(blocks: NDArray[Any]) -> NDArray[np.float32]:
    """Return the integers of blocks, with bit i of `high` as the highest bit of element i."""
    high = blocks["high"][:, np.newaxis] >> np.arange(_BLOCK, dtype=np.uint32) & 1
    elements = _nibbles(blocks["q"])
    elements += high << 4
    return elements


# The bytes of a tensor are whole blocks.
READERS: dict[str, Reader] = {
    **PLAIN_READERS,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
