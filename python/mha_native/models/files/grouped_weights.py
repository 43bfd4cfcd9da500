"""Matrices of AWQ and GPTQ in files of safetensors: 4-bit integers, with a scale and a zero point for each group.

An element is ``scale (code - zero)``, with a scale in float16. The difference is an integer from -16 to 15, so that
blocks of GGUF hold the same numbers: Q4_0, where all zero points are 8, else Q5_0. Sources: the packing of AutoAWQ and
AutoGPTQ.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...functions.block_matrix import BlockMatrix
from ...functions.messages import listed
from .gguf.element_types import BLOCKS
from .quantization import AWQ, Quantization
from .tensor_file import TensorEntry, TensorFiles

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

# The tensors of a matrix, in place of its weight. GPTQ may also have the group of each feature.
_CODES, _ZEROS, _SCALES, _GROUPS = "qweight", "qzeros", "scales", "g_idx"

# The place of each nibble of an integer, low bits first, among eight neighbours. AWQ has them in the order in which
# its kernels unpack them.
_ORDERS = {True: (0, 2, 4, 6, 1, 3, 5, 7), False: tuple(range(8))}

_PART = 1 << 22  # elements that are unpacked at once

_SYMMETRIC = 8  # the zero point of Q4_0


class GroupedWeights(TensorFiles):
    """The tensors of `file`, where each quantized matrix is one tensor, ``weight`` [out, in]. A context manager.

    Raises ValueError if the tensors of a matrix are missing, or their shapes do not fit each other.
    """

    def __init__(self, file: TensorFiles, quantization: Quantization) -> None:
        self._file, self._quantization = file, quantization
        self.path, self.described_by = file.path, file.described_by
        self._is_awq = quantization.method == AWQ
        self.kind = quantization.method.upper()
        self.readable = (*file.readable, self.kind)
        try:
            self.entries = self._with_matrices()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor that is not quantized."""
        return self._file.bytes_of(name)

    def read(self, name: str) -> NDArray[np.float32]:
        """Return the tensor `name`, in float32."""
        if self.entries[name].dtype != self.kind:
            return self._file.read(name)
        rows, features = self.entries[name].shape
        result = np.empty((rows, features), np.float32)
        zeros, scales = self._groups(name)

        def expand(first: int, codes: NDArray[np.uint8]) -> None:
            part = slice(first, first + len(codes))
            groups = result[part].reshape(len(codes), zeros.shape[1], -1)
            np.subtract(codes.reshape(groups.shape), zeros[part, :, None], out=groups, dtype=np.float32)
            groups *= scales[part, :, None]

        self._unpack(name, expand)
        return result

    def blocks(self, name: str) -> BlockMatrix | None:
        """Return the matrix `name` in blocks with the same numbers; None if it is not quantized, or there are none.

        There are none for scales that float16 does not have.
        """
        if self.entries[name].dtype != self.kind:
            return self._file.blocks(name)
        zeros, scales = self._groups(name)
        with np.errstate(over="ignore"):
            halves = scales.astype("<f2")
        if not np.array_equal(halves, scales):
            return None
        rows, features = self.entries[name].shape
        is_symmetric = bool((zeros == _SYMMETRIC).all())
        form = _Q4_0 if is_symmetric else _Q5_0
        blocks = np.empty((rows, features // 32), form)
        blocks["d"] = np.repeat(halves, features // 32 // halves.shape[1], axis=1)

        def fill(first: int, codes: NDArray[np.uint8]) -> None:
            into = blocks[first : first + len(codes)]
            if not is_symmetric:
                groups = codes.reshape(len(codes), zeros.shape[1], -1)
                groups += 16 - zeros[first : first + len(codes), :, None]  # a code of Q5_0 is 16 more than its integer
                high = np.packbits(codes.reshape(*into.shape, 32) >> 4, axis=-1, bitorder="little")
                into["high"] = high.view("<u4")[..., 0]
                codes &= 15
            pairs = codes.reshape(*into.shape, 2, 16)
            into["q"] = pairs[..., 0, :] | pairs[..., 1, :] << 4

        self._unpack(name, fill)
        return BlockMatrix(blocks.view(np.uint8), BLOCKS["Q4_0" if is_symmetric else "Q5_0"], features)

    def _with_matrices(self) -> dict[str, TensorEntry]:
        """Return the entries of the file, with one entry in place of the tensors of a quantized matrix."""
        entries = dict(self._file.entries)
        for name in self._file.entries:
            stem, _, part = name.rpartition(".")
            if part == _CODES:
                entries[f"{stem}.weight"] = self._matrix(stem, entries)
        if others := [name for name in entries if name.rpartition(".")[2] in (_CODES, _ZEROS, _SCALES, _GROUPS)]:
            raise ValueError(f"{self.path}: {listed(others)} must belong to a matrix, with its {_CODES}")
        return entries

    def _matrix(self, stem: str, entries: dict[str, TensorEntry]) -> TensorEntry:
        """Return the entry of a matrix, after checks of its tensors, which are removed from `entries`."""
        parts = {
            part: entries.pop(f"{stem}.{part}", None)
            for part in (_CODES, _ZEROS, _SCALES, *(() if self._is_awq else (_GROUPS,)))
        }
        if f"{stem}.weight" in entries:
            raise ValueError(f"{self.path} must have {stem}.weight or {stem}.{_CODES}, not both")
        if missing := [part for part in (_ZEROS, _SCALES) if parts[part] is None]:
            raise ValueError(f"{self.path} has {stem}.{_CODES}, and must have {listed(missing)} of this matrix, too")
        codes = parts[_CODES]
        assert codes is not None
        first, last = codes.shape if len(codes.shape) == 2 else (0, 0)
        features, rows = (first, 8 * last) if self._is_awq else (8 * first, last)
        size = self._quantization.group_size or features
        if not features or not rows or features % 32 or features % size or rows % 8:
            rule = f"{features} features in groups of {size}" if features and rows else "two axes that are not empty"
            raise ValueError(
                f"{self.path}: {stem}.{_CODES} must have whole groups of a multiple of 32 features, and a multiple of "
                f"8 rows; got {list(codes.shape)}, {rule}"
            )
        groups = features // size
        expected = {
            _CODES: (("I32",), codes.shape),
            _ZEROS: (("I32",), (groups, rows // 8)),
            _SCALES: (("F16", "BF16", "F32"), (groups, rows)),
            _GROUPS: (("I32",), (features,)),
        }
        for part, entry in parts.items():
            dtypes, shape = expected[part]
            if entry is not None and (entry.dtype not in dtypes or entry.shape != shape):
                raise ValueError(
                    f"{self.path}: {stem}.{part} must be {' or '.join(dtypes)} {list(shape)}; "
                    f"got {entry.dtype} {list(entry.shape)}"
                )
        return TensorEntry(self.kind, (rows, features), 0, 0)

    def _integers(self, stem: str, part: str) -> NDArray[np.uint32]:
        name = f"{stem}.{part}"
        return self._file.bytes_of(name).view("<u4").reshape(self._file.entries[name].shape)

    def _groups(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return the zero points and the scales of a matrix, [out, groups]."""
        stem, (_, features) = name.removesuffix(".weight"), self.entries[name].shape
        packed = self._integers(stem, _ZEROS)
        groups, words = packed.shape
        zeros = np.empty((8 * words, groups), np.uint8)
        for nibble, place in enumerate(_ORDERS[self._is_awq]):
            zeros[place::8] = (packed >> np.uint32(4 * nibble) & 15).T
        if self._quantization.zeros_are_less:
            if (zeros == 15).any():
                raise ValueError(
                    f"{self.path}: {stem}.{_ZEROS} must have integers below 15; got 15, which programs read as a zero "
                    f"point of 16 or of 0"
                )
            zeros += 1
        numbers = np.arange(features) // (features // groups)
        if f"{stem}.{_GROUPS}" in self._file.entries and not np.array_equal(self._integers(stem, _GROUPS), numbers):
            raise ValueError(f"{self.path}: {stem}.{_GROUPS} must number groups of neighbours, as without desc_act")
        return zeros, np.ascontiguousarray(self._file.read(f"{stem}.{_SCALES}").T)

    def _unpack(self, name: str, take: Callable[[int, NDArray[np.uint8]], None]) -> None:
        """Call `take` with the number of a row and the codes [n, in] of this and the next rows, until the last row."""
        stem, (rows, features) = name.removesuffix(".weight"), self.entries[name].shape
        packed = self._integers(stem, _CODES)
        step = max(8, _PART // features // 8 * 8)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            codes = np.empty((count, features), np.uint8)
            # The integers of neighbours in a row are transposed before they are unpacked.
            if self._is_awq:
                part = packed[:, first // 8 : (first + count) // 8]
                places = codes.reshape(-1, 8, features).swapaxes(0, 1)
            else:
                part = packed[:, first : first + count]
                places = codes.reshape(count, -1, 8).transpose(2, 0, 1)
            integers = np.ascontiguousarray(part.T)
            for nibble, place in enumerate(_ORDERS[self._is_awq]):
                places[place] = integers >> np.uint32(4 * nibble) & 15
            take(first, codes)


_Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_Q5_0 = np.dtype([("d", "<f2"), ("high", "<u4"), ("q", "u1", 16)])
