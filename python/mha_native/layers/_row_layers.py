"""The common part of layers that map each row by itself: their calls, and the weights of linear maps."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy import ndarray

from .. import _core
from ..functions.arrays import Tensor, like, to_numpy
from ..functions.dtypes import checked_dtype, packed_state, unpacked_state
from ._constructor_arguments import Seed, check_room, checked_generator, initial_weights
from ._module_state import Leaf, LinearWeights, ModuleState, linear_state, linear_weights
from ._tape import Tape, record

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LinearMap(NamedTuple):
    """One of the linear maps of a layer: `prefix` begins the names of its weights in the state dict."""

    prefix: str
    out_features: int
    in_features: int
    bias: bool


class RowModule(ModuleState):
    """A module that maps each row by itself, with an object of the core that has ``forward``."""

    _core: Any

    def __call__(self, x: Tensor, *, out: Tensor | None = None, num_threads: int | None = None) -> Tensor:
        """Apply the layer to each row of `x`.

        Parameters
        ----------
        x : [..., input features]
            NumPy array, or CPU tensor of any library that speaks DLPack, with 1 to 4 axes and the dtype of the layer.
        out : [..., output features], optional
            Array to write the result to. It may be `x` itself, except in `Linear`; otherwise it must not overlap `x`.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        out : [..., output features]
            With the kind of `x`.
        """
        array = self._core.forward(
            x if type(x) is ndarray else to_numpy(type(self).__name__, "x", x),
            out if out is None or type(out) is ndarray else to_numpy(type(self).__name__, "out", out),
            num_threads,
        )
        return array if type(x) is ndarray else like(x, array) if out is None else out

    def forward_and_record(
        self,
        x: Tensor,
        *,
        recompute: str = "none",
        wrt: Collection[str] | None = None,
        num_threads: int | None = None,
    ) -> tuple[Tensor, Tape]:
        """Apply the layer to each row of `x`, and record what its gradients need.

        Parameters
        ----------
        x, num_threads
            As for the call.
        recompute, wrt : optional
            As for `EncoderLayer.forward_and_record`. The only input is "x".

        Returns
        -------
        out : [..., output features]
            With the bits of the call.
        tape : Tape
        """
        return record(self, {"x": x}, {}, recompute, wrt, num_threads)


class RowLayer(RowModule, Leaf):
    """A layer that maps each row by itself."""


class LayerOfMaps(RowLayer):
    """A layer of linear maps. Its sizes, a named tuple, list the maps in the order of the core: ``maps()``."""

    _sizes: Any
    _sizes_type: ClassVar[Any]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        named = zip(self._sizes.maps(), self._core_weights(), strict=True)
        return {name: array for linear, of_map in named for name, array in linear_state(linear.prefix, of_map).items()}

    def _configuration(self) -> dict[str, Any]:
        configuration: dict[str, Any] = self._sizes._asdict()
        return configuration

    def __getstate__(self) -> dict[str, Any]:
        dtypes = {"dtype": _core.dtype_name(self.dtype), "weight_dtype": self._weight_dtype}
        return {"sizes": tuple(self._sizes), **dtypes, "state": packed_state(self.state_dict())}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        dtype, state = checked_dtype(type(self).__name__, saved["dtype"]), unpacked_state(saved["state"])
        self._set_state(self._sizes_type(*saved["sizes"]), dtype, saved["weight_dtype"], state)

    def _set_state(self, sizes: Any, dtype: np.dtype[Any], weight_dtype: str, state: Mapping[str, Tensor]) -> None:
        self._sizes = sizes
        self._weight_dtype = weight_dtype
        self._load(dtype, state)

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        return self._with_scales(_shapes(self._sizes.maps()), names)

    def _formats(self) -> dict[str, str]:
        return self._named_formats(f"{linear.prefix}weight" for linear in self._sizes.maps())

    def _core_weights(self) -> tuple[LinearWeights, ...]:
        """Return copies of the weights of each map."""
        weights: tuple[LinearWeights, ...] = self._core.weights()
        return weights

    def _weights_of_maps(self, arrays: Mapping[str, NDArray[Any]]) -> list[Any]:
        """Return the weights of each map in a state dict, as the core takes them."""
        return [linear_weights(arrays, linear.prefix) for linear in self._sizes.maps()]


def initial_state(function: str, maps: Collection[LinearMap], dtype: np.dtype[Any], seed: Seed) -> dict[str, Any]:
    """Return random weights by the rule of ``torch.nn.Linear``: uniform up to ``1 / sqrt(input features)``."""
    rng = checked_generator(function, seed)
    check_room(function, _shapes(maps).values())
    state = {}
    for linear in maps:
        bound = 1 / math.sqrt(linear.in_features)
        for name, shape in _shapes([linear]).items():
            state[name] = initial_weights(rng.uniform(-bound, bound, shape), dtype)
    return state


def _shapes(maps: Collection[LinearMap]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for linear in maps:
        shapes[f"{linear.prefix}weight"] = (linear.out_features, linear.in_features)
        if linear.bias:
            shapes[f"{linear.prefix}bias"] = (linear.out_features,)
    return shapes
