"""Activations and their gradients: the public functions, which document and forward. The core checks and computes."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core
from .arrays import Tensor, like, to_numpy


class ActivationGradients(NamedTuple):
    """Gradients by the arguments of `activation`, with their shape and dtype.

    Attributes
    ----------
    x : [...]
    up : [...] or None
        None if there is no `up`.

    See Also
    --------
    activation_gradient : Compute them.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x, up = np.array([-1, 2], np.float32), np.array([3, 4], np.float32)
    >>> mha.activation_gradient(x, np.ones_like(x), activation="relu", up=up)
    ActivationGradients(x=array([0., 4.], dtype=float32), up=array([0., 2.], dtype=float32))
    """

    x: Tensor
    up: Tensor | None = None


def activation(x: Tensor, *, activation: str, up: Tensor | None = None, num_threads: int | None = None) -> Tensor:
    """Return ``activation(x)``, or ``activation(x) * up``: the step of `FeedForward` between its linear maps.

    Parameters
    ----------
    x : [...]
        NumPy array, or CPU tensor of any library that speaks DLPack, with 1 to 4 axes and any strides, in float32,
        float64, float16 or bfloat16.
    activation : {"relu", "gelu", "gelu_tanh", "silu", "swiglu_oai", "quick_gelu"}
        The function, as for `FeedForward`. "gelu" is exact; "swiglu_oai" replaces `up` by ``1 + clip(up, -7, 7)``.
    up : [...], optional
        The other factor of a gated feed-forward layer, with the shape and dtype of `x`. Default: 1.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    out : [...]
        With the shape, dtype and kind of `x`; 16-bit arrays are computed in float32 and rounded once.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    See Also
    --------
    activation_gradient : The gradients.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.array([-1, 0, 2], np.float32)
    >>> mha.activation(x, activation="silu").round(3)
    array([-0.269,  0.   ,  1.762], dtype=float32)
    """
    name = "activation"
    given = to_numpy(name, "up", up)
    return like(x, _core.activation(to_numpy(name, "x", x), activation, given, num_threads))


def activation_gradient(
    x: Tensor, dout: Tensor, *, activation: str, up: Tensor | None = None, num_threads: int | None = None
) -> ActivationGradients:
    """Return the gradients of a function of `activation`, from its gradient by the result.

    Parameters
    ----------
    x, activation, up, num_threads
        As for `activation`.
    dout : [...]
        The gradient of the function by the result, with the shape and dtype of `x`.

    Returns
    -------
    ActivationGradients
        A named tuple with the gradients of `x`, and of `up` if it is given.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    Notes
    -----
    The derivative of "relu" at 0 counts as 0. Derivatives of the other functions are exact up to rounding: the gradient
    of "gelu" has the density of the normal distribution, not a difference of two numbers near 1.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.array([-1, 0, 2], np.float32)
    >>> mha.activation_gradient(x, np.ones_like(x), activation="gelu").x.round(3)
    array([-0.083,  0.5  ,  1.085], dtype=float32)
    """
    name = "activation_gradient"
    given = to_numpy(name, "up", up)
    arrays = to_numpy(name, "x", x), to_numpy(name, "dout", dout)
    dx, dup = _core.activation_gradient(*arrays, activation, given, num_threads)
    return ActivationGradients(like(x, dx), None if dup is None else like(x, dup))
