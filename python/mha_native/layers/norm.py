"""The common part of LayerNorm and RMSNorm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import _core
from ..functions.arrays import Tensor
from ..functions.dtypes import checked_dtype, packed_state, unpacked_state
from ..functions.instances import bare
from ..functions.messages import in_the_name_of
from ..functions.norm_gradient import NormGradients
from ._constructor_arguments import initial_weights
from ._given_weights import given_weights
from ._module_state import Leaf
from ._row_layers import RowLayer
from ._tape import Backward, Recording
from ._torch_modules import checked_module

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self  # in typing from Python 3.11 on


class Norm(RowLayer):
    """A layer that normalises each row, with a weight for each feature."""

    _weights: ClassVar[tuple[str, ...]]  # names of possible weights; the first one is always there

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of ``weight`` [E] and, if there is one, ``bias`` [E]: the names of torch's module."""
        weight, bias = self._core.weights()
        return {"weight": weight} if bias is None else {"weight": weight, "bias": bias}

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        def backward(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
            return self._through(recording, arrays[0], dout, weights)

        return self._core.forward(*arrays, None, recording.num_threads), backward

    def _through(
        self, recording: Recording, x: NDArray[Any], dout: NDArray[Any], weights: dict[str, Any]
    ) -> dict[str, Any]:
        """Take a gradient back through the norm of `x`."""
        wrt = recording.wanted(weight="weight", bias="bias") + ("x",) * ("x" in recording.inputs)
        if not wrt:
            return {}
        found = self._gradients(x, self._core.weights()[0], dout, wrt, recording.num_threads)
        recording.store(weights, {"weight": found.weight, "bias": found.bias})
        return {} if found.x is None else {"x": found.x}

    def _gradients(
        self, x: NDArray[Any], weight: NDArray[Any], dout: NDArray[Any], wrt: tuple[str, ...], num_threads: int | None
    ) -> NormGradients:
        raise NotImplementedError

    @classmethod
    def _from_torch(cls, function: str, module: Any, dtype: np.dtype[Any]) -> Self:
        """Return the norm of a torch module, in `dtype` if the module has no weights and so no dtype."""
        module = checked_module(function, module, cls.__name__)
        if len(module.normalized_shape) != 1:
            shape = list(module.normalized_shape)
            raise ValueError(f"{function}: normalized_shape must have one axis; got {shape}")
        weights = module.state_dict() or {"weight": initial_weights(np.ones(module.normalized_shape), dtype)}
        with in_the_name_of(function):
            given, norm = given_weights(function, weights, None, None), bare(cls)
            norm._set_state(cls._eps_of(module, given.dtype), given.dtype, given.arrays)
        return norm

    @classmethod
    def _eps_of(cls, module: Any, dtype: np.dtype[Any]) -> float:
        """Return the eps of a torch module that computes in `dtype`."""
        eps: float = module.eps
        return eps

    def _take_given(self, weights: Mapping[str, Tensor | None], eps: float, dtype: DTypeLike | None) -> None:
        """Check the arguments of `from_weights`, and become the norm with these weights."""
        function = f"{type(self).__name__}.from_weights"
        with in_the_name_of(function):
            given = given_weights(function, weights, dtype, None)
            given.shape(function, "weight", "embed_dim")
            self._set_state(eps, given.dtype, given.arrays)

    @property
    def embed_dim(self) -> int:
        """E, the number of features."""
        return self._embed_dim

    @property
    def eps(self) -> float:
        """The number added under the root."""
        eps: float = self._core.eps
        return eps

    @property
    def weight_dtype(self) -> str:
        """The name of `dtype`: a norm has no matrix, so that `quantize` returns a plain copy."""
        return self._weight_dtype

    def _quantized(self, weight_dtype: str) -> Leaf:
        return self._converted(self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {"eps": self.eps, "dtype": _core.dtype_name(self.dtype), "state": packed_state(self.state_dict())}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        kind = checked_dtype(type(self).__name__, saved["dtype"])
        self._set_state(saved["eps"], kind, unpacked_state(saved["state"]))

    def _set_state(self, eps: float, dtype: np.dtype[Any], state: Mapping[str, NDArray[Any]]) -> None:
        self._embed_dim, self._eps = state["weight"].size, eps
        self._names = tuple(name for name in self._weights if name in state)
        self._weight_dtype = _core.dtype_name(dtype)
        self._load(dtype, state)

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self._names, (self._embed_dim,))
