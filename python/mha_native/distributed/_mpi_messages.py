"""Requests and answers as bytes in one buffer: arrays as they are in memory, and their description only once.

Steps of a decoder send the same description with other arrays: an operation, names of options, dtypes and shapes. This
is the form of a message. A writer sends a new form pickled, and later its number.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Hashable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

# Forms that a reader remembers. A further form replaces the oldest.
_FORMS = 256

# Alignment of the parts and the end of a message: a cache line, as required by the largest vectors.
ALIGNMENT = 64


class Header(NamedTuple):
    """The first numbers of a message, in 8 bytes each."""

    serial: int  # of the request, and of its answer
    worker: int
    form: int
    form_bytes: int  # of a new form; 0 for a known form


_HEADER = struct.Struct(f"{len(Header._fields)}q")
_HEADER_BYTES = ALIGNMENT


class _Layout(NamedTuple):
    """The places of arrays after their form."""

    arrays: list[tuple[np.dtype[Any], tuple[int, ...], slice]]
    nbytes: int


class Writer:
    """A writer of messages to one process, which reads all of them in order."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[int, _Layout]] = {}
        self._count = 0

    def message(self, serial: int, worker: int, content: Any) -> NDArray[np.uint8]:
        """Return a message that owns its memory, with arrays and hashable values in tuples, lists and dicts."""
        arrays: list[NDArray[Any]] = []
        form = _form_of(content, arrays)
        known = self._said.get(form)
        pickled = b""
        if known is None:
            pickled = pickle.dumps(form)
            known = self._said[form] = self._count % _FORMS, _layout_of(form)
            self._count += 1
            if len(self._said) > _FORMS:
                del self._said[next(iter(self._said))]
        number, layout = known
        begin = _HEADER_BYTES + _aligned(len(pickled))
        message = np.empty(begin + layout.nbytes, np.uint8)
        _HEADER.pack_into(message.data, 0, serial, worker, number, len(pickled))
        if pickled:
            message[_HEADER_BYTES : _HEADER_BYTES + len(pickled)] = np.frombuffer(pickled, np.uint8)
        body = message[begin:]
        for array, (dtype, shape, place) in zip(arrays, layout.arrays, strict=True):
            body[place].view(dtype).reshape(shape)[...] = array
        return message


class Reader:
    """A reader of the messages of one `Writer`."""

    def __init__(self) -> None:
        self._forms: list[Any] = [None] * _FORMS
        self._layouts: list[_Layout] = [_Layout([], 0)] * _FORMS

    def read(self, message: NDArray[np.uint8]) -> tuple[Header, Any]:
        """Return the header of a message and its content. Its arrays are views of `message`."""
        header = Header(*_HEADER.unpack_from(message.data))
        if header.form_bytes:
            form = pickle.loads(message[_HEADER_BYTES : _HEADER_BYTES + header.form_bytes].tobytes())
            self._forms[header.form] = form
            self._layouts[header.form] = _layout_of(form)
        body = message[_HEADER_BYTES + _aligned(header.form_bytes) :]
        parts = [body[place].view(dtype).reshape(shape) for dtype, shape, place in self._layouts[header.form].arrays]
        return header, _content_of(self._forms[header.form], iter(parts))


# A form is a tuple that begins with a kind: (ndarray, dtype, shape) for an array, (tuple or list, forms), (dict, keys,
# forms), and (kind, value) for any other value, since True equals 1.


def _form_of(content: Any, arrays: list[NDArray[Any]]) -> tuple[Any, ...]:
    """Return the form of `content`, and append its arrays to `arrays`."""
    kind = type(content)
    if kind is ndarray:
        arrays.append(content)
        return kind, content.dtype, content.shape
    if kind is tuple or kind is list:
        return kind, tuple([_form_of(item, arrays) for item in content])
    if kind is dict:
        return kind, tuple(content), tuple([_form_of(item, arrays) for item in content.values()])
    return kind, content


def _content_of(form: tuple[Any, ...], arrays: Iterator[NDArray[Any]]) -> Any:
    kind = form[0]
    if kind is ndarray:
        return next(arrays)
    if kind is tuple or kind is list:
        return kind([_content_of(item, arrays) for item in form[1]])
    if kind is dict:
        return dict(zip(form[1], [_content_of(item, arrays) for item in form[2]], strict=True))
    return form[1]


def _shapes_of(form: tuple[Any, ...]) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    kind = form[0]
    if kind is ndarray:
        yield form[1:]
    elif kind is tuple or kind is list or kind is dict:
        for item in form[-1]:
            yield from _shapes_of(item)


def _layout_of(form: tuple[Any, ...]) -> _Layout:
    placed, begin = [], 0
    for dtype, shape in _shapes_of(form):
        end = begin + dtype.itemsize * prod(shape)
        placed.append((dtype, shape, slice(begin, end)))
        begin = _aligned(end)
    return _Layout(placed, begin)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
