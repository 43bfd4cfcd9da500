"""A library of tensors, as small as it can be: a tensor that speaks DLPack, and the library's `from_dlpack`.

Written with ctypes from the specification of DLPack's binary interface, so that it shares nothing with the core.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

FLOAT, BFLOAT = 2, 4
READ_ONLY, IS_COPIED = 1, 2


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_NAMES = {_Managed: b"dltensor", _Versioned: b"dltensor_versioned"}
_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

given_back: list[int] = []
"""The address of each tensor whose consumer is done with it."""
_alive: dict[int, Any] = {}


@Deleter
def _delete(address: int) -> None:
    given_back.append(_alive.pop(address)[1].tensor.data or 0)


class Tensor:
    """Elements of `bits`, a view of their bytes as unsigned integers, of DLPack's type `code`."""

    def __init__(
        self, bits: Array, code: int = BFLOAT, *, version: int | None = 1, flags: int = 0, **fields: Any
    ) -> None:
        self.bits, self.code, self.version, self.flags, self.fields = bits, code, version, flags, fields

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.fields.get("device_type", 1), 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        item = self.bits.itemsize
        shape = (ctypes.c_int64 * self.bits.ndim)(*self.bits.shape)
        strides = (ctypes.c_int64 * self.bits.ndim)(*(n // item for n in self.bits.strides))
        managed: Any = _Managed() if self.version is None or max_version is None else _Versioned(major=self.version)
        if isinstance(managed, _Versioned):
            managed.flags = self.flags
        managed.deleter = _delete
        tensor = managed.tensor
        tensor.data, tensor.device_type, tensor.ndim = self.bits.ctypes.data, 1, self.bits.ndim
        tensor.code, tensor.bits, tensor.lanes = self.code, 8 * item, 1
        tensor.shape, tensor.strides = shape, strides
        for name, value in self.fields.items():
            setattr(tensor, name, value)
        _alive[ctypes.addressof(managed)] = self.bits, managed, shape, strides
        return _new(ctypes.addressof(managed), _NAMES[type(managed)], None)


def from_dlpack(producer: Any, **keywords: Any) -> Tensor:
    """A tensor over the memory of another library's."""
    capsule = producer.__dlpack__(**keywords)
    kind = next(kind for kind, name in _NAMES.items() if _is_valid(capsule, name))
    managed = kind.from_address(_pointer(capsule, _NAMES[kind]))
    tensor = managed.tensor
    shape, strides = ([extent[i] for i in range(tensor.ndim)] for extent in (tensor.shape, tensor.strides))
    item = tensor.bits // 8
    dense = np.cumprod([1, *shape[:0:-1]])[::-1] if shape else []
    assert all(n == 1 or s == d for n, s, d in zip(shape, strides, dense, strict=True)), "results are dense"
    memory = (ctypes.c_uint8 * (int(np.prod(shape)) * item)).from_address(tensor.data + tensor.byte_offset)
    memory.capsule = capsule  # what keeps it alive
    bits = np.frombuffer(memory, f"u{item}").reshape(shape)
    return Tensor(bits, tensor.code, version=managed.major if kind is _Versioned else None)


class _Exchange(ctypes.Structure):
    """The functions of DLPack's C exchange, of which this library has those that an attention call needs."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("new_tensor", ctypes.c_void_p),
        ("export_tensor", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))),
        ("import_tensor", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))),
        ("borrow_tensor", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]


exchanged: list[str] = []
"""The functions of the exchange that were called, in order."""


def _export(tensor: ExchangedTensor, address: Any) -> int:
    exchanged.append("export")
    address[0] = _pointer(tensor.__dlpack__(max_version=(1, 0)), _NAMES[_Versioned])
    return 0


def _import(address: int, result: Any) -> int:
    exchanged.append("import")
    capsule = _new(address, _NAMES[_Versioned], None)
    tensor = from_dlpack(type("Producer", (), {"__dlpack__": lambda self: capsule})())
    _api.Py_IncRef(ctypes.py_object(tensor))
    result[0] = id(tensor)
    return 0


def exchange_of_version(major: int, older: int = 0) -> Any:
    """A capsule of the functions, as a class of tensors has it, which stays alive as long as the process."""
    fields = _Exchange._fields_
    table = _Exchange(major, 0, older, 0, fields[4][1](_export), fields[5][1](_import))
    _alive[ctypes.addressof(table)] = table
    return _new(ctypes.addressof(table), b"dlpack_exchange_api", None)


class ExchangedTensor(Tensor):
    """A tensor whose class has DLPack's C exchange."""

    __dlpack_c_exchange_api__ = exchange_of_version(1)

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        return super().__dlpack__(max_version=max_version)


class Foreign:
    """An array of another library, which has NumPy's memory."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        class Library:
            from_dlpack = staticmethod(lambda array: Foreign(np.from_dlpack(array)))

        return Library
