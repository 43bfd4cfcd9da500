"""Matrices in the blocks of GGUF files, and products with them, in NumPy: exact integers, and float32 step by step.

The readers of the package are in C++; this file reads the same bytes in another way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import mha_native as mha
from mha_native import _core

# The fewest of the features of a row, with which a block is quantized.
LEAST_MAX = np.float32(2.0**-100)

VALUES_OF_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int64)
VALUES_OF_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int64)

FORMATS = tuple(_core.block_formats())


class Blocks(NamedTuple):
    """The parts of blocks [rows, blocks]: a weight is ``scale s_p q - offset m_p``; of 32 ``scale q + offset``."""

    integers: NDArray[np.int64]  # [rows, blocks, parts, features of a part]
    scale: NDArray[np.float32]  # [rows, blocks]
    offset: NDArray[np.float32] | None = None
    part_scales: NDArray[np.int64] | None = None  # [rows, blocks, parts]
    part_offsets: NDArray[np.int64] | None = None


def random_matrix(
    format: str, out_features: int, in_features: int, rng: np.random.Generator, *, any_scale: bool = False
) -> mha.BlockMatrix:
    """Random bytes, whose numbers are of a usual size unless `any_scale`."""
    features, size = _core.block_formats()[format]
    blocks = rng.integers(0, 256, (out_features, in_features // features, size), np.uint8)
    if not any_scale:
        numbers = {"mxfp4": [], "q6_k": [208]}.get(
            format, [0, 2] if format in ("q4_1", "q5_1", "q4_k", "q5_k") else [0]
        )
        for place in numbers:
            values = rng.uniform(-0.01, 0.01, (*blocks.shape[:2], 1)).astype("<f2")
            blocks[..., place : place + 2] = values.view(np.uint8)
        if format == "mxfp4":
            blocks[..., 0] = rng.integers(118, 124, blocks.shape[:2], np.uint8)
    return mha.BlockMatrix(blocks.reshape(out_features, -1), format, in_features)


def read_blocks(matrix: mha.BlockMatrix) -> Blocks:
    """The parts of the blocks of a matrix."""
    size = _core.block_formats()[matrix.dtype][1]
    raw = np.ascontiguousarray(matrix.data).reshape(len(matrix.data), -1, size)

    def number(place: int) -> NDArray[np.float32]:
        halves = np.ascontiguousarray(raw[..., place : place + 2]).view("<f2")
        found: NDArray[np.float32] = halves[..., 0].astype(np.float32)
        return found

    def nibbles(place: int, count: int, run: int) -> NDArray[np.int64]:
        """`count` bytes, of whose runs the low halves come first."""
        pairs = raw[..., place : place + count].reshape(*raw.shape[:2], -1, 1, run)
        halves = np.concatenate([pairs & 15, pairs >> 4], axis=-2)
        return halves.reshape(*raw.shape[:2], -1).astype(np.int64)

    match matrix.dtype:
        case "q4_0":
            return Blocks(nibbles(2, 16, 16)[..., None, :] - 8, number(0))
        case "q4_1":
            return Blocks(nibbles(4, 16, 16)[..., None, :], number(0), number(2))
        case "q5_0" | "q5_1":
            at = 2 if matrix.dtype == "q5_0" else 4
            high = np.unpackbits(raw[..., at : at + 4], axis=-1, bitorder="little").astype(np.int64)
            codes = (nibbles(at + 4, 16, 16) + 16 * high)[..., None, :]
            return Blocks(codes - 16, number(0)) if at == 2 else Blocks(codes, number(0), number(2))
        case "q8_0":
            return Blocks(raw[..., None, 2:].view(np.int8).astype(np.int64), number(0))
        case "iq4_nl":
            return Blocks(VALUES_OF_IQ4_NL[nibbles(2, 16, 16)][..., None, :], number(0))
        case "mxfp4":
            scale = np.ldexp(np.float32(1), raw[..., 0].astype(np.int64) - 128).astype(np.float32)
            return Blocks(VALUES_OF_MXFP4[nibbles(1, 16, 16)][..., None, :], scale)
        case "q4_k" | "q5_k":
            packed = raw[..., 4:16].astype(np.int64)
            first, second, low = packed[..., :4], packed[..., 4:8], packed[..., 8:]
            scales = np.concatenate([first & 63, low & 15 | first >> 6 << 4], axis=-1)
            offsets = np.concatenate([second & 63, low >> 4 | second >> 6 << 4], axis=-1)
            codes = nibbles(16 if matrix.dtype == "q4_k" else 48, 128, 32).reshape(*raw.shape[:2], 8, 32)
            if matrix.dtype == "q5_k":
                bits = np.unpackbits(raw[..., 16:48], axis=-1, bitorder="little").reshape(*raw.shape[:2], 32, 8)
                codes = codes + 16 * np.swapaxes(bits, -1, -2).astype(np.int64)
            return Blocks(codes, number(0), number(2), scales, offsets)
        case _:
            low = nibbles(0, 128, 64)
            high = raw[..., 128:192].reshape(*raw.shape[:2], 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
            codes = low + 16 * high.reshape(*raw.shape[:2], 256).astype(np.int64) - 32
            scales = raw[..., 192:208].view(np.int8).astype(np.int64)
            return Blocks(codes.reshape(*raw.shape[:2], 16, 16), number(208), None, scales)


def numbers_of(matrix: mha.BlockMatrix) -> NDArray[np.float32]:
    """The weights [out_features, in_features] in float32."""
    blocks = read_blocks(matrix)
    with np.errstate(all="ignore"):
        scale = blocks.scale[..., None]
        if blocks.part_scales is not None:
            scale = scale * blocks.part_scales.astype(np.float32)
        numbers = blocks.integers.astype(np.float32) * scale[..., None]
        if blocks.part_offsets is not None and blocks.offset is not None:
            numbers -= (blocks.offset[..., None] * blocks.part_offsets.astype(np.float32))[..., None]
        elif blocks.offset is not None:
            numbers += blocks.offset[..., None, None]
    return numbers.reshape(matrix.shape)


def quantized_rows(x: NDArray[np.float32], features: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The integers [rows, blocks, features] and scales [rows, blocks] of rows, one scale for each block."""
    blocks = x.reshape(len(x), -1, features)
    with np.errstate(all="ignore"):
        most = np.abs(blocks).max(-1)
        finite = np.isfinite(most)
        most = np.where(finite, np.maximum(most, LEAST_MAX), np.float32(1))
        integers = np.where(finite[..., None], np.rint(blocks * (np.float32(127) / most)[..., None]), 0)
        return integers.astype(np.int64), np.where(finite, most / np.float32(127), np.float32(np.nan))


def product(x: NDArray[np.float32], matrix: mha.BlockMatrix, bias: NDArray[Any] | None = None) -> NDArray[np.float32]:
    """Rows [N, in_features] times the matrix, plus a bias, as the layer computes them."""
    blocks = read_blocks(matrix)
    rows, scales = quantized_rows(x, _core.block_formats()[matrix.dtype][0])
    parts = rows.reshape(*rows.shape[:2], blocks.integers.shape[2], -1)
    out = np.zeros((len(x), len(matrix.data)), np.float32)
    with np.errstate(all="ignore"):
        for b in range(rows.shape[1]):  # in the order of the blocks
            sums = np.einsum("rpf,opf->rop", parts[:, b], blocks.integers[:, b])
            of_rows = parts[:, b].sum(-1)  # of each part
            scale = scales[:, b, None]
            if blocks.part_scales is None:
                out += sums[..., 0].astype(np.float32) * (blocks.scale[:, b] * scale)
                if blocks.offset is not None:
                    out += blocks.offset[:, b] * (scale * of_rows.astype(np.float32))
                continue
            total = (sums * blocks.part_scales[:, b]).sum(-1)
            out += total.astype(np.float32) * (blocks.scale[:, b] * scale)
            if blocks.part_offsets is not None and blocks.offset is not None:
                total = of_rows @ blocks.part_offsets[:, b].T
                out -= total.astype(np.float32) * (blocks.offset[:, b] * scale)
        return out + (np.float32(0) if bias is None else bias)
