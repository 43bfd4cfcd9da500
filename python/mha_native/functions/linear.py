"""A linear map with weights of one call, and its gradient. The core checks and computes."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core
from .arrays import Tensor, like, to_numpy

_ARGUMENTS = ("x", "weight", "bias")


class LinearGradients(NamedTuple):
    """Gradients by the arguments of `linear`, with their shapes; None where a gradient was not asked for.

    See Also
    --------
    linear_gradient : Compute them.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x, weight = np.ones((8, 4), np.float32), np.ones((3, 4), np.float32)
    >>> gradients = mha.linear_gradient(x, weight, np.ones((8, 3), np.float32), wrt=("bias",))
    >>> gradients.bias, gradients.x is None
    (array([8., 8., 8.], dtype=float32), True)
    """

    x: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, num_threads: int | None = None) -> Tensor:
    """Return ``x W^T + b`` of each row, for weights that change from call to call.

    The bits are the bits of ``Linear.from_weights(weight, bias)(x)``. The weights are packed for this call alone, which
    takes as long as multiplying 50 to 150 rows: for constant weights and few rows use `Linear`.

    Parameters
    ----------
    x : [..., I]
        With 1 to 4 axes.
    weight : [O, I]
        With any strides: a transposed view takes no longer.
    bias : [O], optional
        Default: no bias.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    out : [..., O]
        With the kind of `x`.

    Raises
    ------
    TypeError, ValueError
        If an argument breaks a rule.

    See Also
    --------
    Linear : A layer, whose weights are packed once.
    linear_gradient : The gradients of the arguments.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> weight = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> mha.linear(np.array([1, 10], np.float32), weight, np.ones(3, np.float32))
    array([22., 44., 66.], dtype=float32)
    """
    name = "linear"
    out = _core.linear(
        to_numpy(name, "x", x),
        to_numpy(name, "weight", weight),
        to_numpy(name, "bias", bias),
        num_threads,
    )
    return like(x, out)


def linear_gradient(
    x: Tensor | None,
    weight: Tensor | None,
    dout: Tensor,
    *,
    wrt: tuple[str, ...] = _ARGUMENTS,
    num_threads: int | None = None,
) -> LinearGradients:
    """Return the gradients of a function of `linear`, from its gradient by the result.

    Parameters
    ----------
    x : [..., I]
        As in the call of `linear`. It may be None unless you want the gradient of `weight`.
    weight : [O, I]
        Likewise. It may be None unless you want the gradient of `x`.
    dout : [..., O]
        The gradient of the function by the result.
    wrt : tuple of str, default ("x", "weight", "bias")
        The arguments whose gradients you want; other gradients take no time.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    LinearGradients
        A named tuple with the gradients of `wrt`, each of the shape of its argument and of the kind of `dout`.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    Notes
    -----
    The gradient of `x` is ``dout W``: a row depends on the same row of `dout` alone. The gradients of `weight` and
    `bias` are sums over rows, of spans of 128 rows that are added in order. So the number of threads does not change
    one bit. Gradients of 16-bit arrays are summed in float32 and rounded once.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.array([[1, 2], [3, 4]], np.float32)
    >>> weight = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    >>> gradients = mha.linear_gradient(x, weight, np.array([[1, 0, 0], [0, 0, 1]], np.float32))
    >>> gradients.x
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    >>> gradients.weight
    array([[1., 2.],
           [0., 0.],
           [3., 4.]], dtype=float32)
    """
    name = "linear_gradient"
    found = _core.linear_gradient(
        to_numpy(name, "x", x),
        to_numpy(name, "weight", weight),
        to_numpy(name, "dout", dout),
        wrt,
        num_threads,
    )
    return LinearGradients(*(None if gradient is None else like(dout, gradient) for gradient in found))
