"""Files in the format safetensors: the size of the header in 8 bytes, the header in JSON, the numbers of tensors."""

import math
from typing import IO, Any

from ...functions.messages import shown
from .json_files import MAX_JSON_BYTES, MAX_SIZE, parse_json
from .tensor_file import PLAIN_READERS, TensorEntry, TensorFile

# Bytes of a number, by dtype. Others exist (of 8 bits and less); their tensors are not read.
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

_MAX_AXES = 64  # as many as NumPy has


class SafetensorsFile(TensorFile):
    """A safetensors file, as a `TensorFile`. The header must describe every byte of the file."""

    kind = "safetensors"
    described_by = "config.json"
    readable = tuple(PLAIN_READERS)

    def _read_header(self, file: IO[bytes], file_bytes: int) -> tuple[dict[str, TensorEntry], int]:
        header_bytes = int.from_bytes(file.read(8), "little")
        first_byte = 8 + header_bytes
        if first_byte > file_bytes:
            raise ValueError(f"it has {file_bytes} bytes, and its header should end at {first_byte}")
        if header_bytes > MAX_JSON_BYTES:
            raise ValueError(f"its header has {header_bytes} bytes, more than {MAX_JSON_BYTES >> 20} MiB")
        header = parse_json(file.read(header_bytes), _without_repeats)
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
