"""What constructors of layers are given: sizes, dtypes, seeds."""

import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _core

# What layers compute in.
LAYER_DTYPES = ("float32", "float64", "float16", "bfloat16")

# Of initial weights: None is another one each time, and a generator goes on from where it is.
Seed: TypeAlias = int | np.random.Generator | None

# How weights are stored: None is as the layer computes.
WeightDType: TypeAlias = DTypeLike | None


def checked_size(function: str, name: str, size: int) -> int:
    """A size that a caller gave, as an int."""
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"{function}: {name} must be an integer; got {size!r}")
    if size < 1:
        raise ValueError(f"{function}: {name} must be at least 1; got {size}")
    return operator.index(size)


def checked_dtype(function: str, dtype: DTypeLike) -> np.dtype[Any]:
    """A dtype that a caller gave, which layers compute in."""
    is_known = not (isinstance(dtype, str) and dtype == "bfloat16")  # to NumPy, whose own types are all that it takes
    kind = np.dtype(dtype) if is_known else _core.bfloat16()
    if (name := _core.dtype_name(kind)) not in LAYER_DTYPES:
        raise TypeError(f"{function}: dtype must be {' or '.join(LAYER_DTYPES)}; got {name}")
    return kind


def initial_weights(numbers: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Those of a layer in 16 bits are those of one in float32, rounded."""
    return _core.convert(numbers if dtype == np.float64 else numbers.astype(np.float32), dtype)


def checked_weight_dtype(function: str, weight_dtype: WeightDType, dtype: np.dtype[Any]) -> str:
    """What the weights of a layer in `dtype` are stored as. It is a name, for NumPy has no bfloat16."""
    own = _core.dtype_name(dtype)
    if weight_dtype is None:
        return own
    name = weight_dtype if isinstance(weight_dtype, str) else _core.dtype_name(np.dtype(weight_dtype))
    choices = [own] + ["bfloat16", "int8"] * (own == "float32")
    if name not in choices:
        raise TypeError(
            f"{function}: weight_dtype of a layer in {own} must be {' or '.join(map(repr, choices))}; got {name!r}"
        )
    return name
