"""What constructors of layers are given: sizes, dtypes, seeds."""

import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

# What layers compute in; attention itself takes more.
LAYER_DTYPES = ("float32", "float64")

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
    name = str(np.dtype(dtype)) if is_known else dtype
    if name not in LAYER_DTYPES:
        raise TypeError(f"{function}: dtype must be {' or '.join(LAYER_DTYPES)}; got {name}")
    return np.dtype(dtype)


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
