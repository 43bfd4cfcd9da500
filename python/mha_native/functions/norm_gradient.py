"""Gradients of norms: the public functions, which document and forward. The core checks and computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from .arrays import Tensor, like, to_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NormGradients(NamedTuple):
    """Gradients by the arguments of a norm, with their shapes and dtype; None where a gradient was not asked for.

    Attributes
    ----------
    x : [..., E]
    weight, bias : [E]
        An RMSNorm has no bias.

    See Also
    --------
    layer_norm_gradient, rms_norm_gradient : Compute them.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.array([[1, 2, 3, 6]], np.float32)
    >>> gradients = mha.layer_norm_gradient(x, None, np.ones_like(x), wrt=("x", "bias"))
    >>> gradients.weight is None, gradients.bias
    (True, array([1., 1., 1., 1.], dtype=float32))
    """

    x: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def layer_norm_gradient(
    x: Tensor,
    weight: Tensor | None,
    dout: Tensor,
    *,
    eps: float = 1e-5,
    wrt: tuple[str, ...] = ("x", "weight", "bias"),
    num_threads: int | None = None,
) -> NormGradients:
    """Return the gradients of a function of a `LayerNorm`, from its gradient by the result.

    Parameters
    ----------
    x : [..., E]
        The argument of the norm: NumPy array, or CPU tensor of any library that speaks DLPack, with 1 to 4 axes and any
        strides, in float32, float64, float16 or bfloat16.
    weight : [E] or None
        The weight of the norm. None: 1.
    dout : [..., E]
        The gradient of the function by the result.
    eps : float, default 1e-5
        As in the norm.
    wrt : tuple of str, default ("x", "weight", "bias")
        The arguments whose gradients you want; other gradients take no time.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    NormGradients
        A named tuple with the gradients of `wrt`, of the kind and dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    See Also
    --------
    rms_norm_gradient : For an `RMSNorm`.

    Notes
    -----
    The mean and the variance of each row are computed again. Gradients of weight and bias are sums over rows in a fixed
    order: over spans of 64 rows in float32 or float64, then over spans in float64. Neither the number of threads nor
    other rows change one bit of the gradient of a row.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> x, dout = rng.standard_normal((2, 3, 5, 8), dtype=np.float32)
    >>> gradients = mha.layer_norm_gradient(x, np.full(8, 2, np.float32), dout)
    >>> gradients.x.shape, gradients.weight.shape
    ((3, 5, 8), (8,))

    A norm does not change if a number is added to a row:

    >>> np.allclose(gradients.x.sum(-1), 0, atol=1e-5)
    True
    """
    name = "layer_norm_gradient"
    return _like(x, _core.layer_norm_gradient(*_arrays(name, x, weight, dout), eps, wrt, num_threads))


def rms_norm_gradient(
    x: Tensor,
    weight: Tensor | None,
    dout: Tensor,
    *,
    eps: float = 1e-6,
    unit_offset: bool = False,
    wrt: tuple[str, ...] = ("x", "weight"),
    num_threads: int | None = None,
) -> NormGradients:
    """Return the gradients of a function of an `RMSNorm`, from its gradient by the result.

    Parameters
    ----------
    x, weight, dout, wrt, num_threads
        As for `layer_norm_gradient`.
    eps : float, default 1e-6
        As in the norm.
    unit_offset : bool, default False
        As in the norm, which then multiplies by ``1 + weight``.

    Returns
    -------
    NormGradients
        With None for the bias.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> x, dout = rng.standard_normal((2, 5, 8), dtype=np.float32)
    >>> gradients = mha.rms_norm_gradient(x, np.ones(8, np.float32), dout)

    A norm does not change if a row is multiplied by a number:

    >>> np.allclose((gradients.x * x).sum(-1), 0, atol=1e-5)
    True
    """
    name = "rms_norm_gradient"
    return _like(x, _core.rms_norm_gradient(*_arrays(name, x, weight, dout), eps, unit_offset, wrt, num_threads))


def _arrays(name: str, x: Tensor, weight: Tensor | None, dout: Tensor) -> tuple[Any, Any, Any]:
    given = to_numpy(name, "weight", weight)
    return to_numpy(name, "x", x), given, to_numpy(name, "dout", dout)


def _like(x: Tensor, found: tuple[NDArray[Any] | None, ...]) -> NormGradients:
    return NormGradients(*(None if gradient is None else like(x, gradient) for gradient in found))
