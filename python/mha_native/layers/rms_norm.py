"""Root mean square normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..functions.arrays import Tensor
from ..functions.dtypes import checked_dtype
from ..functions.instances import bare
from ..functions.messages import names_sizes
from ..functions.norm_gradient import NormGradients, rms_norm_gradient
from ._constructor_arguments import check_room, checked_size, initial_weights
from .norm import Norm

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self  # in typing from Python 3.11 on


class RMSNorm(Norm):
    """``x / sqrt(mean(x^2) + eps) * weight``, with the mean over the features of each row.

    Parameters
    ----------
    embed_dim : int
        E, the number of features.
    eps : float, default 1e-6
        Added to the mean of the squares.
    unit_offset : bool, default False
        Multiply by ``1 + weight``, as the models of the Gemma family do. The sum is not rounded to `dtype`.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        The dtype of weight, input and result. Arrays of bfloat16 need the package ml_dtypes; tensors of other libraries
        do not.

    See Also
    --------
    from_weights, from_torch : A norm with your own weight.

    Notes
    -----
    The initial factor is 1. There is no bias.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> norm = mha.RMSNorm(4)
    >>> norm(np.array([[1, 2, 3, 4], [5, 5, 5, 5]], np.float32)).round(3)
    array([[0.365, 0.73 , 1.095, 1.461],
           [1.   , 1.   , 1.   , 1.   ]], dtype=float32)
    """

    _weights = ("weight",)
    _unit_offset = False

    def __init__(
        self, embed_dim: int, *, eps: float = 1e-6, unit_offset: bool = False, dtype: DTypeLike = "float32"
    ) -> None:
        size, kind = checked_size("RMSNorm", "embed_dim", embed_dim), checked_dtype("RMSNorm", dtype)
        check_room("RMSNorm", [(size,)])
        self._unit_offset = _core.boolean("RMSNorm", "unit_offset", unit_offset)
        weight = np.zeros(size) if self._unit_offset else np.ones(size)
        self._set_state(eps, kind, {"weight": initial_weights(weight, kind)})

    @classmethod
    @names_sizes
    def from_weights(
        cls, weight: Tensor, *, eps: float = 1e-6, unit_offset: bool = False, dtype: DTypeLike | None = None
    ) -> Self:
        """Return a norm with a copy of this weight, the array of `state_dict`.

        Parameters
        ----------
        weight : [E]
            NumPy array or CPU tensor.
        eps : float, default 1e-6
            Added to the mean of the squares.
        unit_offset : bool, default False
            Multiply by ``1 + weight``, as the models of the Gemma family do.
        dtype : {"float32", "float64", "float16", "bfloat16"}, optional
            The dtype of the norm. A weight in another dtype is rounded once. Default: the dtype of the weight.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> norm = mha.RMSNorm.from_weights(np.full(4, 2.0, np.float32))
        >>> offset = mha.RMSNorm.from_weights(np.full(4, 1.0, np.float32), unit_offset=True)
        >>> x = np.array([[1, 2, 3, 4]], np.float32)
        >>> np.array_equal(norm(x), offset(x))
        True
        """
        norm = bare(cls)
        norm._unit_offset = _core.boolean(f"{cls.__name__}.from_weights", "unit_offset", unit_offset)
        norm._take_given({"weight": weight}, eps, dtype)
        return norm

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return the norm with the results of a ``torch.nn.RMSNorm``, with a copy of its weight.

        Parameters
        ----------
        module : torch.nn.RMSNorm
            Over the last axis, on the CPU, in float32, float64, float16 or bfloat16. A module without a weight becomes
            a norm in float32 with a weight of 1. `MultiHeadAttention.from_torch` says which modules are refused.
        """
        return cls._from_torch("RMSNorm.from_torch", module, np.dtype(np.float32))

    @property
    def unit_offset(self) -> bool:
        """Whether rows are multiplied by ``1 + weight``."""
        return self._unit_offset

    @classmethod
    def _eps_of(cls, module: Any, dtype: np.dtype[Any]) -> float:
        # Torch's default is the eps of the dtype in which it computes.
        computed = np.float64 if dtype == np.float64 else np.float32
        return float(np.finfo(computed).eps) if module.eps is None else super()._eps_of(module, dtype)

    def _configuration(self) -> dict[str, Any]:
        return {"embed_dim": self.embed_dim, "eps": self.eps, "unit_offset": self.unit_offset}

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"unit_offset": self._unit_offset}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._unit_offset = saved["unit_offset"]
        super().__setstate__(saved)

    def _gradients(
        self, x: NDArray[Any], weight: NDArray[Any], dout: NDArray[Any], wrt: tuple[str, ...], num_threads: int | None
    ) -> NormGradients:
        return rms_norm_gradient(
            x, weight, dout, eps=self.eps, unit_offset=self._unit_offset, wrt=wrt, num_threads=num_threads
        )

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.Norm:
        return _core.RMSNorm(arrays["weight"], self._eps, self._unit_offset)
