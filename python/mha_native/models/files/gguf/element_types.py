"""The types of elements in GGUF files: plain numbers, and blocks of small integers with a scale for each block."""

from typing import NamedTuple

from ....functions.block_matrix import BLOCK_FORMATS
from ..tensor_file import PLAIN_READERS


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


# The types that are read: plain numbers, and blocks of a `BlockMatrix`, by their names there.
BLOCKS = {kind.name: kind.name.lower() for kind in ELEMENT_TYPES.values() if kind.name.lower() in BLOCK_FORMATS}
READABLE = (*PLAIN_READERS, *BLOCKS)
