"""What an argument of a valid call is changed to: another type, dtype, rank, extent, stride, or a broken object."""

from __future__ import annotations

import datetime
import decimal
import fractions
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import mha_native as mha

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Named = tuple[str, Any]  # a description, and a value


class Failure(Exception):
    """What broken objects raise. It must never come out of a call."""


def _fail(*_: Any, **__: Any) -> Any:
    raise Failure("broken")


def broken(*methods: str) -> Any:
    """An object with methods that raise `Failure`."""
    return type("Broken", (), dict.fromkeys(methods, _fail))()


def _array_with(method: str) -> Any:
    return np.zeros(2, np.float32).view(type("BrokenArray", (np.ndarray,), {method: _fail}))


class _Endless:
    def __iter__(self) -> Iterator[int]:
        return iter([])

    def __len__(self) -> int:
        return sys.maxsize


INTEGERS = (0, -1, 1, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63),
            -(2**63) - 1, 10**400, -(10**400))  # fmt: skip
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 1e-320, 1e300, -1e300, np.inf, -np.inf, np.nan)

# Makers of values that are of no use to any argument, or of many kinds of use.
OBJECTS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "numpy.bool": lambda: np.True_,
    "str": lambda: "garbage",
    "empty str": lambda: "",
    "long str": lambda: "x" * 100_000,
    "surrogate": lambda: "\ud800",
    "null byte": lambda: "a\0b",
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(8),
    "memoryview": lambda: memoryview(b"12345678"),
    "complex": lambda: 1 + 2j,
    "Fraction": lambda: fractions.Fraction(1, 3),
    "Decimal": lambda: decimal.Decimal("0.5"),
    "date": lambda: datetime.date(2020, 1, 1),
    "object": object,
    "class": lambda: mha.KVCache,
    "module": lambda: mha,
    "function": lambda: len,
    "generator": lambda: (i for i in range(3)),
    "range": lambda: range(3),
    "list": lambda: [1, 2],
    "list of str": lambda: ["a", "b"],
    "list of None": lambda: [None, None],
    "ragged list": lambda: [[1.0, 2.0], [3.0]],
    "empty list": list,
    "tuple": lambda: (1, 2),
    "tuple of reals": lambda: (0.5, 0.5),
    "tuple of huge": lambda: (2**63, -1),
    "tuple of three": lambda: (1, 2, 3),
    "dict": lambda: {"a": 1},
    "dict with other keys": lambda: {1: np.zeros(2), None: 3},
    "empty dict": dict,
    "set": lambda: {1, 2},
    "cache": lambda: mha.KVCache(1, 1, 4, 2),
    "list of caches": lambda: [mha.KVCache(1, 1, 4, 2)],
    "same cache twice": lambda: 2 * [mha.KVCache(2, 4, 6, 2)],
    "norm": lambda: mha.LayerNorm(3),
    "generator of NumPy": lambda: np.random.default_rng(0),
    "dtype": lambda: np.dtype("int8"),
    "type": lambda: np.float32,
    "numpy.float32": lambda: np.float32(0.5),
    "numpy.float64 nan": lambda: np.float64("nan"),
    "numpy.int8": lambda: np.int8(-3),
    "numpy.uint64": lambda: np.uint64(2**64 - 1),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "array of 0 axes": lambda: np.array(1.0, np.float32),
    "integer of 0 axes": lambda: np.array(2),
    "empty array": lambda: np.zeros(0, np.float32),
    "array of objects": lambda: np.array([None, 1], object),
    "array of str": lambda: np.array(["a", "b"]),
    "array of dates": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "array of 9 axes": lambda: np.zeros((1,) * 9, np.float32),
    "structured array": lambda: np.zeros(2, [(f"field_{i}", "f4") for i in range(200)]),
    "broadcast array": lambda: np.broadcast_to(np.float32(1), (2**20, 2**20)),
    "huge integers": lambda: np.full(2, 2**62),
    "smallest integers": lambda: np.full(2, -(2**63)),
    "unsigned integers": lambda: np.full(2, 2**64 - 1, np.uint64),
    "long type name": lambda: type("X" * 10_000, (), {})(),
    "endless": _Endless,
    "broken array": lambda: broken("__array__"),
    "broken tensor": lambda: broken("__dlpack__", "__dlpack_device__"),
    "broken capsule": lambda: type("Tensor", (), {"__dlpack_device__": lambda _: (1, 0), "__dlpack__": _fail})(),
    "no capsule": lambda: type("Tensor", (), {"__dlpack_device__": lambda _: (1, 0), "__dlpack__": lambda *_: 3})(),
    "broken index": lambda: broken("__index__"),
    "broken float": lambda: broken("__float__", "__int__"),
    "broken bool": lambda: broken("__bool__"),
    "broken length": lambda: broken("__len__", "__getitem__"),
    "broken iterator": lambda: broken("__iter__"),
    "broken comparison": lambda: broken("__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__ne__", "__hash__"),
    "broken repr": lambda: broken("__repr__", "__str__"),
    "broken path": lambda: broken("__fspath__"),
    "broken index and repr": lambda: broken("__index__", "__repr__"),
    "broken array_function": lambda: _array_with("__array_function__"),
    "broken finalize": lambda: _array_with("__array_ufunc__"),
}


def mutant(rng: Generator, value: Any, others: list[Any]) -> Named:
    """One change of an argument: an object of another kind, or one that is near to `value`."""
    ways: list[Callable[[Generator, Any], Named]] = [_an_object, _a_number]
    if isinstance(value, np.ndarray):
        ways += 4 * [_changed_array]
    elif isinstance(value, dict):
        ways += 4 * [_changed_dict]
    elif isinstance(value, list | tuple) and value:
        ways += 4 * [_changed_sequence]
    elif isinstance(value, str):
        ways += [_changed_str]
    if others and rng.random() < 0.05:
        return "another argument", others[rng.integers(len(others))]
    return ways[rng.integers(len(ways))](rng, value)


def _an_object(rng: Generator, _: Any) -> Named:
    name = list(OBJECTS)[rng.integers(len(OBJECTS))]
    return name, OBJECTS[name]()


def _a_number(rng: Generator, _: Any) -> Named:
    numbers = (*INTEGERS, *REALS)
    number = numbers[rng.integers(len(numbers))]
    return f"{number!r:.25}", number


def _changed_str(rng: Generator, value: str) -> Named:
    changes = (value.upper(), value + " ", value[:-1], value + "\0")
    changed = changes[rng.integers(len(changes))]
    return repr(changed), changed


DTYPES = ("f2", "f4", "f8", "g", "c8", "i1", "i4", "i8", "u8", "?", "O", "U3", "S2", "V4", "M8[s]", ">f4", ">f8", ">i8",
          ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4)  # fmt: skip


def _in_dtype(rng: Generator, x: Array) -> Array:
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    return x.astype(dtype) if dtype.kind not in "MV" or dtype.num > 255 else np.zeros(x.shape, dtype)


def _unaligned(x: Array) -> Array:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def _with_odd_strides(x: Array) -> Array:
    """Elements in a structure whose size is no multiple of theirs."""
    structure: Any = np.zeros(x.shape, [("x", x.dtype), ("y", "u1")])
    structure["x"] = x
    odd: Array = structure["x"]
    return odd


def _other_extent(rng: Generator, x: Array) -> Array:
    if x.ndim == 0:
        return x[None]
    axis = int(rng.integers(x.ndim))
    extents = [0, 1, x.shape[axis] - 1, x.shape[axis] + 1, 2 * x.shape[axis]]
    index = np.arange(max(extents[rng.integers(len(extents))], 0)) % max(x.shape[axis], 1)
    return x.take(index, axis) if x.shape[axis] else x


def _broadcast(rng: Generator, x: Array) -> Array:
    axis = int(rng.integers(x.ndim + 1))
    shape = list(x.shape)
    shape.insert(axis, [2**4, 2**40][rng.integers(2)])  # what is between takes time, and proves no more
    return np.broadcast_to(np.expand_dims(x, axis), shape)


def _filled(rng: Generator, x: Array) -> Array:
    if x.dtype.kind in "iu":
        number: Any = INTEGERS[rng.integers(13)] % 2**63
        sign = -1 if x.dtype.kind == "i" and rng.random() < 0.5 else 1
        return np.full_like(x, sign * (number % np.iinfo(x.dtype).max))
    if x.dtype.kind != "f":
        return ~x if x.dtype == bool else x
    with np.errstate(over="ignore"):
        return np.full(x.shape, REALS[rng.integers(len(REALS))]).astype(x.dtype)


def _one_changed(rng: Generator, x: Array) -> Array:
    if not x.size or x.dtype.kind not in "iuf":
        return x
    changed = x.copy()
    changed.flat[rng.integers(x.size)] = -1 if x.dtype.kind == "i" else 7 if x.dtype.kind == "u" else np.nan
    return changed


def _read_only(x: Array) -> Array:
    view = x.view()
    view.flags.writeable = False
    return view


ARRAY_CHANGES: dict[str, Callable[[Generator, Array], Any]] = {
    "dtype": _in_dtype,
    "swapped bytes": lambda _, x: x.astype(x.dtype.newbyteorder()),
    "one axis less": lambda _, x: x[0] if x.ndim and len(x) else x,
    "one axis more": lambda _, x: x[None],
    "two axes more": lambda _, x: x[None, None],
    "flat": lambda _, x: x.ravel(),
    "no axes": lambda _, x: x.flat[0] if x.size else x,
    "extent": _other_extent,
    "broadcast": _broadcast,
    "turned": lambda _, x: x.T,
    "every other": lambda _, x: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x,
    "backwards": lambda _, x: x[..., ::-1] if x.ndim else x,
    "unaligned": lambda _, x: _unaligned(x),
    "odd strides": lambda _, x: _with_odd_strides(x),
    "read-only": lambda _, x: _read_only(x),
    "filled": _filled,
    "one element": _one_changed,
    "list": lambda _, x: x.tolist(),
    "masked": lambda _, x: np.ma.masked_array(x, mask=False),
    "subclass": lambda _, x: x.view(type("Derived", (np.ndarray,), {})),
    "matrix": lambda _, x: x.reshape(-1, x.shape[-1] if x.ndim else 1).view(np.matrix) if x.size else x,
    "bytes of it": lambda _, x: x.tobytes(),
    "torch": lambda _, x: _torch(x, "numpy"),
    "torch with a gradient": lambda _, x: _torch(x, "gradient"),
    "torch on meta": lambda _, x: _torch(x, "meta"),
    "torch sparse": lambda _, x: _torch(x, "sparse"),
}


def _torch(x: Array, how: str) -> Any:
    if "torch" not in sys.modules or x.dtype.kind not in "fib" or x.dtype.num > 255:
        return x.astype(np.complex64) if x.dtype.kind in "fib" else x
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(x))
    if how == "gradient" and x.dtype.kind == "f":
        return tensor.requires_grad_()
    return {"meta": lambda: tensor.to("meta"), "sparse": tensor.to_sparse}.get(how, lambda: tensor)()


def _changed_array(rng: Generator, x: Array) -> Named:
    name = list(ARRAY_CHANGES)[rng.integers(len(ARRAY_CHANGES))]
    return f"array: {name}", ARRAY_CHANGES[name](rng, x)


def _changed_sequence(rng: Generator, values: Any) -> Named:
    items, at, kind = list(values), int(rng.integers(len(values))), type(values)
    match rng.integers(4):
        case 0:
            return "one less", kind(items[:at] + items[at + 1 :])
        case 1:
            return "one more", kind([*items, items[at]])
        case 2:
            return "an iterator", iter(items)
    what, items[at] = mutant(rng, items[at], items)
    return f"[{at}]: {what}", kind(items)


def _changed_dict(rng: Generator, values: dict[Any, Any]) -> Named:
    items, name = dict(values), list(values)[rng.integers(len(values))] if values else None
    match rng.integers(6):
        case 0:
            items.pop(name, None)
            return f"without {name}", items
        case 1:
            more = {str(i) * 50: None for i in range(rng.integers(1, 50))}
            return f"{len(more)} more", items | more
        case 2:
            return "other keys", {(i, key): value for i, (key, value) in enumerate(items.items())}
    what, items[name] = mutant(rng, items.get(name), list(items.values()))
    return f"[{name!r}]: {what}", items
