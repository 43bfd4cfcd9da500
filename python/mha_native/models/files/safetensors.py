"""Files in the format safetensors: the size of the header in 8 bytes, the header in JSON, the numbers of all tensors.

Files are read, not mapped into memory. If another program truncates a mapped file, the next access ends the process.
"""

import math
import os
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.messages import shown
from .json_files import MAX_JSON_BYTES, MAX_SIZE, parse_json, require_file

# The dtypes that `read` supports: the name in the file, and the dtype of the bytes in NumPy.
READABLE = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}

# Bytes of a number, by dtype. Others exist (of 8 bits and less); their tensors are not read.
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

_MAX_AXES = 64  # as many as NumPy has


class TensorEntry(NamedTuple):
    """The description of a tensor in the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # the first byte, counted from the first byte of all tensors
    end: int


class SafetensorsFile:
    """The tensors of a safetensors file, each read on demand. A context manager.

    Attributes
    ----------
    path : Path
    readable : collection of str
        The dtypes that `read` supports.
    described_by : str
        The source of the expected tensors, for messages.
    entries : dict of str to TensorEntry
        The header, checked against the size of the file.

    Raises OSError or ValueError if the file cannot be read, or the header is damaged or does not match the size of the
    file. `read` raises ValueError if the file has become shorter.
    """

    readable: Collection[str] = READABLE
    described_by = "config.json"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(require_file(path), "rb")  # noqa: SIM115  (closed by __exit__)
        try:
            self.entries, self._first_byte = self._read_header()
        except ValueError as error:
            self._file.close()
            raise ValueError(f"{path} is not a valid safetensors file: {error}") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "SafetensorsFile":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def read(self, name: str) -> NDArray[np.float32]:
        """Return the tensor `name`, with a dtype of READABLE, in float32."""
        entry = self.entries[name]
        numbers = np.empty(entry.shape, READABLE[entry.dtype])
        self._file.seek(self._first_byte + entry.begin)
        count = self._file.readinto(numbers.reshape(-1).view(np.uint8).data)
        if count != numbers.nbytes:
            raise ValueError(f"{self.path} has been cut short: {name} has {count} of its {numbers.nbytes} bytes")
        return as_float32(numbers, entry.dtype)

    def _read_header(self) -> tuple[dict[str, TensorEntry], int]:
        """Return the entries, and the first byte of the numbers. A ValueError does not name the file."""
        file_bytes = os.fstat(self._file.fileno()).st_size
        header_bytes = int.from_bytes(self._file.read(8), "little")
        first_byte = 8 + header_bytes
        if first_byte > file_bytes:
            raise ValueError(f"it has {file_bytes} bytes, and its header should end at {first_byte}")
        if header_bytes > MAX_JSON_BYTES:
            raise ValueError(f"its header has {header_bytes} bytes, more than {MAX_JSON_BYTES >> 20} MiB")
        header = parse_json(self._file.read(header_bytes), _without_repeats)
        if not isinstance(header, dict):
            raise ValueError(f"its header must be an object; got {type(header).__name__}")
        entries = {name: _entry(name, value) for name, value in header.items() if name != "__metadata__"}
        end = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
            if entry.begin != end:
                raise ValueError(f"tensor {shown(name)} must begin at byte {end}; got {entry.begin}")
            end = entry.end
        if first_byte + end != file_bytes:
            raise ValueError(f"it has {file_bytes} bytes, and its tensors should end at {first_byte + end}")
        return entries, first_byte


def as_float32(numbers: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return numbers of `dtype`, one of READABLE, in float32. `numbers` are these numbers or their bytes in a file."""
    numbers = numbers.view(READABLE[dtype])
    if dtype == "BF16":
        bits = numbers.astype(np.uint16, copy=False)  # in the byte order of this machine
        return _core.convert(bits.view(_core.bfloat16()), "float32")
    return numbers.astype(np.float32, copy=False)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{shown(name)} is in it more than once")
        values[name] = value
    return values


def _entry(name: str, value: Any) -> TensorEntry:
    """Return the entry of one tensor, checked without the others."""
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise ValueError(f"tensor {shown(name)} must have dtype, shape and data_offsets; got {shown(value)}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or not dtype.isidentifier() or len(dtype) > 20:
        raise ValueError(f"tensor {shown(name)}: dtype must be a name; got {shown(dtype)}")
    if not _are_sizes(shape) or len(shape) > _MAX_AXES:
        raise ValueError(f"tensor {shown(name)}: shape must be at most {_MAX_AXES} sizes; got {shown(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"tensor {shown(name)}: data_offsets must be a beginning and an end; got {shown(offsets)}")
    begin, end = offsets
    needed = math.prod(shape) * _ITEM_BYTES.get(dtype, 0)
    if dtype in _ITEM_BYTES and end - begin != needed:
        raise ValueError(f"tensor {shown(name)} must have {needed} bytes for {dtype} {shape}; got {end - begin}")
    return TensorEntry(dtype, tuple(shape), begin, end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= MAX_SIZE for value in values)
