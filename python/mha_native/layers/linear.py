"""A linear map of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..functions.arrays import Tensor
from ..functions.dtypes import checked_dtype
from ..functions.instances import bare
from ..functions.messages import in_the_name_of, names_sizes
from ._constructor_arguments import Seed, WeightDType, checked_size, checked_weight_dtype
from ._given_weights import given_weights
from ._module_state import LinearWeights
from ._row_layers import LayerOfMaps, LinearMap, initial_state
from ._tape import Backward, Recording, through_map
from ._torch_modules import checked_module

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self  # in typing from Python 3.11 on


class Sizes(NamedTuple):
    """Sizes of a linear map."""

    in_features: int
    out_features: int
    bias: bool

    def maps(self) -> tuple[LinearMap, ...]:
        return (LinearMap("", self.out_features, self.in_features, self.bias),)


class Linear(LayerOfMaps):
    """``x W^T + b`` of each row, as ``torch.nn.Linear``.

    If rows are few, threads share the output features: the head of a language model often takes one row.

    Parameters
    ----------
    in_features : int
        Features of the input.
    out_features : int
        Features of the result.
    bias : bool, default True
        Add a bias.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        The dtype of weights, inputs and results. Arrays of bfloat16 need the package ml_dtypes; tensors of other
        libraries do not.
    weight_dtype : str, optional
        The storage format of the matrix of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Seed of the initial weights, which follow the rule of ``torch.nn.Linear``: uniform up to
        ``1 / sqrt(in_features)``.

    See Also
    --------
    from_weights, from_torch : A layer with your own weights.

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

    @classmethod
    @names_sizes
    def from_weights(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        weight_scale: Tensor | None = None,
        dtype: DTypeLike | None = None,
        weight_dtype: WeightDType = None,
    ) -> Self:
        """Return a layer with a copy of these weights, the arrays of `state_dict`.

        Parameters
        ----------
        weight : [out_features, in_features]
            NumPy array or CPU tensor, with any strides.
        bias : [out_features], optional
            Default: the layer has no bias.
        weight_scale : [out_features], optional
            With a `weight` of integers in int8: the factors of its rows. The layer stores both as they are.
        dtype : {"float32", "float64", "float16", "bfloat16"}, optional
            The dtype of the layer. Weights in another dtype are rounded once. Default: the dtype of the weights.
        weight_dtype : str, optional
            The storage format of the matrix, as for `Linear`. Default: `dtype`, or "int8" with a `weight_scale`.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> layer = mha.Linear.from_weights(np.array([[1, 2], [3, 4], [5, 6]], np.float32), np.ones(3, np.float32))
        >>> layer(np.array([1, 10], np.float32))
        array([22., 44., 66.], dtype=float32)
        """
        function = f"{cls.__name__}.from_weights"
        with in_the_name_of(function):
            weights = {"weight": weight, "bias": bias, "weight_scale": weight_scale}
            given = given_weights(function, weights, dtype, weight_dtype)
            rows, features = given.shape(function, "weight", "out_features", "in_features")
            layer = bare(cls)
            layer._set_state(Sizes(features, rows, bias is not None), given.dtype, given.weight_dtype, given.arrays)
        return layer

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return the layer with the results of a ``torch.nn.Linear``, with a copy of its weights.

        Parameters
        ----------
        module : torch.nn.Linear
            On the CPU, in float32, float64, float16 or bfloat16.

        Raises
        ------
        TypeError, ValueError
            If the module is of a derived class, is parametrized, or has forward hooks: its results may differ.
        """
        function = f"{cls.__name__}.from_torch"
        state = checked_module(function, module, "Linear").state_dict()
        with in_the_name_of(function):
            return cls.from_weights(state["weight"], state.get("bias"))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of ``weight`` [out_features, in_features] and, if there is one, ``bias`` [out_features].

        The names are the names of ``torch.nn.Linear``. A matrix in int8 has ``weight_scale`` [out_features], too.
        """
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

    def _rows(self, features: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return rows of a matrix in blocks, the numbers of the output features [N], as `BlockMatrix.take`."""
        rows: NDArray[np.float32] = self._core.rows(features)
        return rows

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        def backward(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
            needs_x = "x" in recording.inputs
            dx = through_map(recording, "", arrays[0], self._core.weights()[0], dout, weights, needs_x)
            return {"x": dx} if needs_x else {}

        return self._core.forward(*arrays, None, recording.num_threads), backward

    def _core_weights(self) -> tuple[LinearWeights, ...]:
        return (self._core.weights(),)

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.Linear:
        (weights,) = self._weights_of_maps(arrays)
        return _core.Linear(weights, self._weight_dtype)
