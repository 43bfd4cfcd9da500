"""The dtypes of layers and caches, with bfloat16, which NumPy lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .messages import listed, shown

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# The dtypes of layers and caches.
LAYER_DTYPES = ("float32", "float64", "float16", "bfloat16")

# The formats in which a layer in float32 can store its weights, and whether their matrices have scales: the rows of
# cpp/include/mha/weight_formats.def.
WEIGHT_FORMATS: Mapping[str, bool] = _core.weight_formats()


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype; bfloat16 is known without the package ml_dtypes, too."""
    return _core.dtype_name(dtype)


def checked_dtype(function: str, dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype that a caller gave; TypeError unless it is one of `LAYER_DTYPES`."""
    rule = f"{function}: dtype must be {' or '.join(LAYER_DTYPES)}"
    # NumPy itself has no bfloat16; the core finds it.
    is_bfloat16 = isinstance(dtype, str) and dtype == "bfloat16"
    kind = _core.bfloat16() if is_bfloat16 else numpy_dtype(rule, dtype)
    name = "None" if dtype is None else _core.dtype_name(kind)  # NumPy takes None for float64
    if name not in LAYER_DTYPES:
        raise TypeError(f"{rule}; got {listed([name])}")
    return kind


def numpy_dtype(rule: str, dtype: DTypeLike) -> np.dtype[Any]:
    """Return ``numpy.dtype(dtype)``, or raise a TypeError with the message `rule` and the argument."""
    try:
        return np.dtype(dtype)
    except Exception as error:  # of any kind that the object raises
        raise TypeError(f"{rule}; got {shown(dtype)}") from error


def packed_state(state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the state dict with arrays of bfloat16 as uint16, which NumPy can pickle without ml_dtypes."""
    return {
        name: array.view(np.uint16)
        if isinstance(array, np.ndarray) and _core.dtype_name(array.dtype) == "bfloat16"
        else array
        for name, array in state.items()
    }


def unpacked_state(state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Undo `packed_state`."""
    return {name: array.view(_core.bfloat16()) if array.dtype == np.uint16 else array for name, array in state.items()}
