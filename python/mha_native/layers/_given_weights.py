"""Arguments of `from_weights`: arrays, their dtypes, and their shapes, from which sizes are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from ..functions.arrays import Tensor, to_numpy
from ..functions.block_matrix import BlockMatrix, in_numbers
from ..functions.dtypes import LAYER_DTYPES, checked_dtype
from ..functions.messages import listed, name_of_type, shown
from ._constructor_arguments import WeightDType, checked_weight_dtype

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class GivenWeights(NamedTuple):
    """Arrays by the names of a state dict, the dtype of the layer, and the storage format of its matrices."""

    arrays: dict[str, Any]  # NDArray or BlockMatrix
    dtype: np.dtype[Any]
    weight_dtype: str

    def shape(self, function: str, name: str, *axes: str) -> tuple[int, ...]:
        """Return the shape of the array `name`, after a check that it has these axes."""
        if name not in self.arrays:
            raise ValueError(f"{function}: missing: {name}")
        shape: tuple[int, ...] = self.arrays[name].shape
        if len(shape) != len(axes) or 0 in shape:
            raise ValueError(f"{function}: {name} must be [{', '.join(axes)}], not empty; got {list(shape)}")
        return shape


def given_weights(
    function: str, weights: Mapping[str, Tensor | None], dtype: DTypeLike | None, weight_dtype: WeightDType
) -> GivenWeights:
    """Read weights, and round them once where they are not in `dtype`.

    Arrays in `dtype` are not copied. A matrix in int8 is stored as it is if there is an array of its scales. Without a
    `dtype`, all weights must have the same dtype. A BlockMatrix stays as it is, unless the caller gives another dtype
    or a `weight_dtype`.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"{function}: weights must be a mapping of names to arrays; got {name_of_type(weights)}")
    arrays: dict[str, Any] = {name: to_numpy(function, name, x) for name, x in weights.items() if x is not None}
    if unknown := [name for name in arrays if not isinstance(name, str)]:
        raise TypeError(f"{function}: names of weights must be strings; got {listed(map(shown, unknown))}")
    if wrong := [
        f"{name} is a {name_of_type(x)}" for name, x in arrays.items() if not isinstance(x, np.ndarray | BlockMatrix)
    ]:
        raise TypeError(f"{function}: expected arrays; {listed(wrong)}")
    kinds = {name: "float32" if isinstance(x, BlockMatrix) else _core.dtype_name(x.dtype) for name, x in arrays.items()}
    of_numbers = {name: kind for name, kind in kinds.items() if kind != "int8" or f"{name}_scale" not in kinds}
    if wrong := [f"{name} {kind}" for name, kind in of_numbers.items() if kind not in LAYER_DTYPES]:
        raise TypeError(f"{function}: weights must be {' or '.join(LAYER_DTYPES)}; got {listed(wrong)}")
    if dtype is not None:
        kind = checked_dtype(function, dtype)
    elif len(set(of_numbers.values())) > 1:
        given = [f"{name} {kind}" for name, kind in of_numbers.items()]
        raise TypeError(f"{function}: weights must have one dtype unless you give dtype; got {listed(given)}")
    else:
        kind = checked_dtype(function, next(iter(of_numbers.values()), "float32"))
    if weight_dtype is None and len(of_numbers) < len(kinds):
        weight_dtype = "int8"
    own = _core.dtype_name(kind)
    if weight_dtype is not None or own != "float32":
        arrays = in_numbers(arrays)
    stored = checked_weight_dtype(function, weight_dtype, kind)
    for name, x in arrays.items():
        if isinstance(x, BlockMatrix):
            continue
        if not x.flags.aligned:  # which the core does not read
            arrays[name] = x = x.copy()
        if of_numbers.get(name, own) != own:
            arrays[name] = _core.convert(x.ravel(), kind).reshape(x.shape)  # of any number of axes
    return GivenWeights(arrays, kind, stored)
