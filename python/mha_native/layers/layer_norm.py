"""Layer normalisation."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .._arrays import Tensor, like, to_numpy
from .._dtypes import checked_dtype, packed_state, unpacked_state
from ._constructor_arguments import check_room, checked_size, initial_weights
from ._module_state import Leaf
from ._torch_modules import checked_module


class LayerNorm(Leaf):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, with mean and variance of the features of each row.

    Parameters
    ----------
    embed_dim : int
        E, the number of features.
    eps : float, default 1e-5
        Added to the variance.
    bias : bool, default True
        Whether there is a bias.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Of the weights, and of what the layer takes and gives. Arrays of bfloat16 are those of the package ml_dtypes;
        tensors of other libraries do without it.

    Notes
    -----
    Initially the weight is 1 and the bias 0. The variance is the mean of the squared distances from the mean.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> norm = mha.LayerNorm(4)
    >>> norm(np.array([[1, 2, 3, 4], [5, 5, 5, 5]], np.float32)).round(3)
    array([[-1.342, -0.447,  0.447,  1.342],
           [ 0.   ,  0.   ,  0.   ,  0.   ]], dtype=float32)
    """

    def __init__(self, embed_dim: int, *, eps: float = 1e-5, bias: bool = True, dtype: DTypeLike = "float32") -> None:
        size, kind = checked_size("LayerNorm", "embed_dim", embed_dim), checked_dtype("LayerNorm", dtype)
        check_room("LayerNorm", [(size,)])
        numbers = {"weight": np.ones(size)}
        if _core.boolean("LayerNorm", "bias", bias):
            numbers["bias"] = np.zeros(size)
        self._set_state(eps, kind, {name: initial_weights(array, kind) for name, array in numbers.items()})

    def __call__(self, x: Tensor, *, out: Tensor | None = None, num_threads: int | None = None) -> Tensor:
        """Normalise each row of `x`.

        Parameters
        ----------
        x : [..., E]
            NumPy array, or CPU tensor of any library that speaks DLPack, with 1 to 4 axes, of the dtype of the layer.
        out : [..., E], optional
            Array to write the result to; it may be `x` itself.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        out : [..., E]
            Of the kind of `x`.
        """
        array = self._core.forward(
            x if type(x) is ndarray else to_numpy("LayerNorm", "x", x),
            out if out is None or type(out) is ndarray else to_numpy("LayerNorm", "out", out),
            num_threads,
        )
        return array if type(x) is ndarray else like(x, array) if out is None else out

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of ``weight`` [E] and, if there is one, ``bias`` [E]: the names of ``torch.nn.LayerNorm``."""
        weight, bias = self._core.weights()
        return {"weight": weight} if bias is None else {"weight": weight, "bias": bias}

    @classmethod
    def from_torch(cls, module: Any) -> "LayerNorm":
        """The layer that computes what a ``torch.nn.LayerNorm`` does, with a copy of its weights.

        Parameters
        ----------
        module : torch.nn.LayerNorm
            Over the last axis, on the CPU, in float32, float64, float16 or bfloat16. One without weights becomes a
            layer of float32 whose weight is 1. What is refused is said at `MultiHeadAttention.from_torch`.
        """
        return cls._from_torch("LayerNorm.from_torch", module, np.dtype(np.float32))

    @property
    def embed_dim(self) -> int:
        """E, the number of features."""
        return self._embed_dim

    @property
    def eps(self) -> float:
        """The number that is added to the variance."""
        eps: float = self._core.eps
        return eps

    @property
    def bias(self) -> bool:
        """Whether there is a bias."""
        return self._bias

    @classmethod
    def _from_torch(cls, function: str, module: Any, dtype: np.dtype[Any]) -> "LayerNorm":
        """`from_torch`. A module without weights has no dtype of its own and gets `dtype`."""
        module = checked_module(function, module, "LayerNorm")
        if len(module.normalized_shape) != 1:
            shape = list(module.normalized_shape)
            raise ValueError(f"{function}: normalized_shape must be that of one axis; got {shape}")
        if module.weight is None:
            return cls(module.normalized_shape[0], eps=module.eps, bias=False, dtype=dtype)
        state = {name: to_numpy(function, name, tensor) for name, tensor in module.state_dict().items()}
        norm = cls.__new__(cls)
        norm._set_state(module.eps, checked_dtype(function, state["weight"].dtype), state)
        return norm

    def _quantized(self, weight_dtype: str) -> "LayerNorm":
        """A copy: a norm has no matrix, so nothing is stored in fewer bits."""
        norm = LayerNorm.__new__(LayerNorm)
        norm.__setstate__(self.__getstate__())
        return norm

    def _configuration(self) -> dict[str, Any]:
        return {"embed_dim": self.embed_dim, "eps": self.eps, "bias": self.bias}

    def __getstate__(self) -> dict[str, Any]:
        return {"eps": self.eps, "dtype": _core.dtype_name(self.dtype), "state": packed_state(self.state_dict())}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._set_state(saved["eps"], checked_dtype("LayerNorm", saved["dtype"]), unpacked_state(saved["state"]))

    def _set_state(self, eps: float, dtype: np.dtype[Any], state: Mapping[str, NDArray[Any]]) -> None:
        self._embed_dim, self._eps, self._bias = state["weight"].size, eps, "bias" in state
        self._weight_dtype = _core.dtype_name(dtype)
        self._load(dtype, state)

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(["weight", "bias"] if self._bias else ["weight"], (self._embed_dim,))

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.LayerNorm:
        return _core.LayerNorm(arrays["weight"], arrays.get("bias"), self._eps)
