"""Layer normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..functions.arrays import Tensor
from ..functions.dtypes import checked_dtype
from ..functions.instances import bare
from ..functions.messages import names_sizes
from ..functions.norm_gradient import NormGradients, layer_norm_gradient
from ._constructor_arguments import check_room, checked_size, initial_weights
from .norm import Norm

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self  # in typing from Python 3.11 on


class LayerNorm(Norm):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, with the mean and variance of the features of each row.

    Parameters
    ----------
    embed_dim : int
        E, the number of features.
    eps : float, default 1e-5
        Added to the variance.
    bias : bool, default True
        Whether there is a bias.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        The dtype of weights, inputs and results. Arrays of bfloat16 need the package ml_dtypes; tensors of other
        libraries do not.

    See Also
    --------
    from_weights, from_torch : A norm with your own weights.

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

    _weights = ("weight", "bias")

    def __init__(self, embed_dim: int, *, eps: float = 1e-5, bias: bool = True, dtype: DTypeLike = "float32") -> None:
        size, kind = checked_size("LayerNorm", "embed_dim", embed_dim), checked_dtype("LayerNorm", dtype)
        check_room("LayerNorm", [(size,)])
        numbers = {"weight": np.ones(size)}
        if _core.boolean("LayerNorm", "bias", bias):
            numbers["bias"] = np.zeros(size)
        self._set_state(eps, kind, {name: initial_weights(array, kind) for name, array in numbers.items()})

    @classmethod
    @names_sizes
    def from_weights(
        cls, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5, dtype: DTypeLike | None = None
    ) -> Self:
        """Return a norm with a copy of these weights, the arrays of `state_dict`.

        Parameters
        ----------
        weight : [E]
            NumPy array or CPU tensor.
        bias : [E], optional
            Default: the norm has no bias.
        eps : float, default 1e-5
            Added to the variance.
        dtype : {"float32", "float64", "float16", "bfloat16"}, optional
            The dtype of the norm. Weights in another dtype are rounded once. Default: the dtype of the weights.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> norm = mha.LayerNorm.from_weights(np.full(4, 2.0, np.float32))
        >>> norm(np.array([[1, 2, 3, 4]], np.float32)).round(3)
        array([[-2.683, -0.894,  0.894,  2.683]], dtype=float32)
        """
        norm = bare(cls)
        norm._take_given({"weight": weight, "bias": bias}, eps, dtype)
        return norm

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return the norm with the results of a ``torch.nn.LayerNorm``, with a copy of its weights.

        Parameters
        ----------
        module : torch.nn.LayerNorm
            Over the last axis, on the CPU, in float32, float64, float16 or bfloat16. A module without weights becomes a
            norm in float32 with a weight of 1. `MultiHeadAttention.from_torch` says which modules are refused.
        """
        return cls._from_torch("LayerNorm.from_torch", module, np.dtype(np.float32))

    @property
    def bias(self) -> bool:
        """Whether there is a bias."""
        return "bias" in self._names

    def _configuration(self) -> dict[str, Any]:
        return {"embed_dim": self.embed_dim, "eps": self.eps, "bias": self.bias}

    def _gradients(
        self, x: NDArray[Any], weight: NDArray[Any], dout: NDArray[Any], wrt: tuple[str, ...], num_threads: int | None
    ) -> NormGradients:
        return layer_norm_gradient(x, weight, dout, eps=self.eps, wrt=wrt, num_threads=num_threads)

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.Norm:
        return _core.LayerNorm(arrays["weight"], arrays.get("bias"), self._eps)
