"""A linear map of rows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import DTypeLike, NDArray

from .. import _core
from .._dtypes import checked_dtype
from ._constructor_arguments import Seed, WeightDType, checked_size, checked_weight_dtype
from ._module_state import LinearWeights
from ._row_layers import LayerOfMaps, LinearMap, initial_state


class Sizes(NamedTuple):
    """Sizes of a linear map."""

    in_features: int
    out_features: int
    bias: bool

    def maps(self) -> tuple[LinearMap, ...]:
        return (LinearMap("", self.out_features, self.in_features, self.bias),)


class Linear(LayerOfMaps):
    """``x W^T + b`` of each row, as ``torch.nn.Linear``.

    Where rows are few, threads share the output features: the head of a language model takes one row.

    Parameters
    ----------
    in_features : int
        Features of the input.
    out_features : int
        Features of the result.
    bias : bool, default True
        Add a bias.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Of the weights, and of what the layer takes and gives. Arrays of bfloat16 are those of the package ml_dtypes;
        tensors of other libraries do without it.
    weight_dtype : str, optional
        What the matrix is stored as, of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Of the initial weights, which follow the rule of ``torch.nn.Linear``: uniform up to ``1 / sqrt(in_features)``.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> head = mha.Linear(64, 1000, bias=False, seed=0)
    >>> head(np.ones((1, 64), np.float32)).shape
    (1, 1000)
    """

    _sizes_type = Sizes

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        name = "Linear"
        sizes = Sizes(
            checked_size(name, "in_features", in_features),
            checked_size(name, "out_features", out_features),
            _core.boolean(name, "bias", bias),
        )
        kind = checked_dtype(name, dtype)
        state = initial_state(name, sizes.maps(), kind, seed)
        self._set_state(sizes, kind, checked_weight_dtype(name, weight_dtype, kind), state)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of ``weight`` [out_features, in_features] and, if there is one, ``bias`` [out_features]: the names of
        ``torch.nn.Linear``. A matrix in int8 has ``weight_scale`` [out_features]."""
        return super().state_dict()

    @property
    def in_features(self) -> int:
        """Features of the input."""
        return int(self._sizes.in_features)

    @property
    def out_features(self) -> int:
        """Features of the result."""
        return int(self._sizes.out_features)

    @property
    def bias(self) -> bool:
        """Whether there is a bias."""
        return bool(self._sizes.bias)

    def _core_weights(self) -> tuple[LinearWeights, ...]:
        return (self._core.weights(),)

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.Linear:
        (weights,) = self._weights_of_maps(arrays)
        return _core.Linear(weights, self._weight_dtype)
