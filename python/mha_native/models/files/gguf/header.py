"""The header of a GGUF file: metadata by their names, and the place of each tensor.

Every count, length and offset is compared with the size of the file before it is used.
"""

import math
import struct
from typing import IO, Any, NamedTuple

import numpy as np

from ....functions.messages import shown
from ..json_files import MAX_SIZE
from ..tensor_file import TensorEntry
from .element_types import ELEMENT_TYPES

# The largest size of a header. The largest vocabularies, of 262,144 tokens, have some 20 MiB with their merges.
_MOST_BYTES = 1 << 26

# Entries of metadata and tensors: files have some 50, and some 1,000.
_MOST_ENTRIES, _MOST_TENSORS = 1 << 12, 1 << 16

_MOST_AXES = 4  # as many as the format has
_DEFAULT_ALIGNMENT = 32  # bytes

# The dtypes of numbers in the metadata, by the number of their type.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9


class Header(NamedTuple):
    """The header of a file. Shapes of tensors have the order of NumPy: the last axis has neighbouring elements."""

    metadata: dict[str, Any]  # int, float, bool or str, lists of str, or arrays [N] of NumPy
    entries: dict[str, TensorEntry]
    first_byte: int  # of the numbers


def read_header(file: IO[bytes], file_bytes: int) -> Header:
    """Return the header of `file`, an open file at its beginning. A ValueError does not name the file."""
    cursor = _Cursor(file, file_bytes)
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise ValueError(f"it must begin with GGUF; got {shown(magic)}")
    version = cursor.integer("<I")
    if version not in (2, 3):
        byte_order = ", in the other byte order" if version in (2 << 24, 3 << 24) else ""
        raise ValueError(f"it must be of version 2 or 3; got {version}{byte_order}")
    num_tensors = cursor.count("tensors", _MOST_TENSORS)
    num_entries = cursor.count("entries of metadata", _MOST_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        name = cursor.string("the name of an entry")
        if name in metadata:
            raise ValueError(f"{shown(name)} is in its metadata more than once")
        metadata[name] = _value(cursor, name)
    return Header(metadata, *_tensors(cursor, num_tensors, _alignment(metadata), file_bytes))


class _Cursor:
    """A position in a file, which never moves beyond its end."""

    def __init__(self, file: IO[bytes], file_bytes: int) -> None:
        self._file = file
        self._end = min(file_bytes, _MOST_BYTES)
        self._file_bytes = file_bytes
        self.position = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        self._advance(count)
        raw = self._file.read(count)
        if len(raw) != count:
            raise ValueError(f"it has been cut short within its header, at byte {self.position - count + len(raw)}")
        return raw

    def integer(self, form: str) -> int:
        number: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return number

    def count(self, what: str, most: int) -> int:
        number = self.integer("<Q")
        if number > most:
            raise ValueError(f"it must have at most {most} {what}; got {number}")
        return number

    def string(self, what: str) -> str:
        raw = self.take(self.integer("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{what} must be in UTF-8; got {shown(raw)}") from None

    def strings(self, count: int, what: str) -> list[str]:
        """Return `count` strings as `string` does, but faster, since vocabularies have some 100,000."""
        read, from_bytes, values = self._file.read, int.from_bytes, []
        for _ in range(count):
            length = from_bytes(read(8), "little")
            self._advance(8 + length)
            values.append(read(length))
        if self._file.tell() != self.position:
            raise ValueError(f"it has been cut short within its header, in {what}")
        try:
            return [value.decode() for value in values]
        except UnicodeDecodeError as error:
            raise ValueError(f"{what} must be in UTF-8; got {shown(error.object)}") from None

    def _advance(self, count: int) -> None:
        self.position += count
        if self.position > self._end:
            if self.position > self._file_bytes:
                raise ValueError(f"it has {self._file_bytes} bytes, and its header goes on to byte {self.position}")
            raise ValueError(f"its header must have at most {_MOST_BYTES >> 20} MiB")


def _value(cursor: _Cursor, name: str) -> Any:
    kind = cursor.integer("<I")
    what = f"entry {shown(name)} of its metadata"
    if kind == _STRING:
        return cursor.string(what)
    if kind != _ARRAY:
        return _numbers(cursor, kind, 1, what).item()
    kind = cursor.integer("<I")
    count = cursor.count(f"values in {what}", _MOST_BYTES)
    if kind == _STRING:
        return cursor.strings(count, what)
    if kind == _ARRAY:
        raise ValueError(f"{what} must not be an array of arrays")
    return _numbers(cursor, kind, count, what)


def _numbers(cursor: _Cursor, kind: int, count: int, what: str) -> Any:
    if kind not in _NUMBERS:
        raise ValueError(f"{what} must be of one of the types 0 to 12; got {kind}")
    dtype = np.dtype(_NUMBERS[kind])
    raw = cursor.take(count * dtype.itemsize)
    if kind == _BOOL and max(raw, default=0) > 1:
        raise ValueError(f"{what} must be true or false, 1 or 0; got {max(raw)}")
    return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="), copy=False)


def _alignment(metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment % 8:
        raise ValueError(f"general.alignment must be a multiple of 8 up to 2^20; got {shown(alignment)}")
    return alignment


def _tensors(cursor: _Cursor, count: int, alignment: int, file_bytes: int) -> tuple[dict[str, TensorEntry], int]:
    """Return the entries, and the first byte of the numbers."""
    entries: dict[str, TensorEntry] = {}
    for _ in range(count):
        name = cursor.string("the name of a tensor")
        if name in entries:
            raise ValueError(f"tensor {shown(name)} is in it more than once")
        entries[name] = _entry(cursor, name, alignment)
    first_byte = -(-cursor.position // alignment) * alignment
    end, last = 0, "its header"
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.begin < end:
            raise ValueError(f"tensor {shown(name)} must begin after {last}, at byte {end} or later; got {entry.begin}")
        if first_byte + entry.end > file_bytes:
            raise ValueError(f"it has {file_bytes} bytes, and tensor {shown(name)} ends at {first_byte + entry.end}")
        end, last = entry.end, f"tensor {shown(name)}"
    return entries, first_byte


def _entry(cursor: _Cursor, name: str, alignment: int) -> TensorEntry:
    """Return the entry of one tensor, checked without the others."""
    what = f"tensor {shown(name)}"
    num_axes = cursor.integer("<I")
    if num_axes > _MOST_AXES:
        raise ValueError(f"{what} must have at most {_MOST_AXES} axes; got {num_axes}")
    shape = [cursor.integer("<Q") for _ in range(num_axes)][::-1]
    number, begin = cursor.integer("<I"), cursor.integer("<Q")
    if number not in ELEMENT_TYPES:
        raise ValueError(f"{what} must be of a known type; got {number}")
    element_type = ELEMENT_TYPES[number]
    if (shape[-1] if shape else 1) % element_type.block:
        raise ValueError(
            f"{what} must have rows of a multiple of {element_type.block} elements for {element_type.name}; got {shape}"
        )
    num_bytes = math.prod(shape) // element_type.block * element_type.block_bytes
    if begin % alignment:
        raise ValueError(f"{what} must begin at a multiple of {alignment} bytes; got {begin}")
    if max(begin + num_bytes, *shape, 0) > MAX_SIZE:
        raise ValueError(f"{what} must end below byte 2^63; got shape {shape} at byte {begin}")
    return TensorEntry(element_type.name, tuple(shape), begin, begin + num_bytes)
