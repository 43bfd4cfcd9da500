"""What constructors of layers are given: sizes, dtypes, seeds."""

import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from . import _core

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
    """A dtype that a caller gave, which the core computes in."""
    dtype = np.dtype(dtype)
    if dtype not in _core.dtypes():
        raise TypeError(f"{function}: dtype must be {' or '.join(map(str, _core.dtypes()))}; got {dtype}")
    return dtype


def checked_weight_dtype(function: str, weight_dtype: WeightDType, dtype: np.dtype[Any]) -> str:
    """What the weights of a layer in `dtype` are stored as. It is a name, for NumPy has no bfloat16."""
    if weight_dtype is None:
        return dtype.name
    name = weight_dtype if isinstance(weight_dtype, str) else np.dtype(weight_dtype).name
    choices = [dtype.name] + ["bfloat16", "int8"] * (dtype == np.float32)
    if name not in choices:
        raise TypeError(
            f"{function}: weight_dtype of a layer in {dtype} must be {' or '.join(map(repr, choices))}; got {name!r}"
        )
    return name
