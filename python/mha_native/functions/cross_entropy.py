"""Cross-entropy over a vocabulary: the public function, which documents and forwards. The core checks and computes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .. import _core
from .arrays import Tensor, like, to_numpy


class CrossEntropy(NamedTuple):
    """A loss, and its gradients by the arguments of `cross_entropy`; None where a gradient was not asked for.

    Attributes
    ----------
    loss : [] or [...]
        Float64 for float64, else float32.
    x, weight, bias
        With the shapes and dtype of the arguments.

    See Also
    --------
    cross_entropy : Compute them.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> found = mha.cross_entropy(np.ones((2, 3), np.float32), np.ones((4, 3), np.float32), np.array([0, 3]))
    >>> round(float(found.loss), 3), found.weight is None
    (1.386, True)
    """

    loss: Tensor
    x: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    wrt: tuple[str, ...] = (),
    num_threads: int | None = None,
) -> CrossEntropy:
    """Return the cross-entropy of ``softmax(x W^T + b)`` and targets, and its gradients, without storing all logits.

    This is ``torch.nn.functional.cross_entropy(linear(x, weight, bias), targets, ...)``. Memory grows with the number
    of rows plus the size of the vocabulary, not with their product.

    Parameters
    ----------
    x : [..., E]
        NumPy array, or CPU tensor of any library that speaks DLPack, with 1 to 4 axes and any strides, in float32,
        float64, float16 or bfloat16.
    weight : [V, E]
        A row for each word of the vocabulary.
    targets : [...], integer
        The word of each row, or `ignore_index`.
    bias : [V], optional
        Default: none.
    ignore_index : int, default -100
        Rows with this target have a loss and gradients of 0, and do not count in the mean.
    label_smoothing : float, default 0
        From 0 to 1: the part of each target that is spread evenly over the vocabulary.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean over the rows that are not ignored, the sum, or the loss of each row. A mean of no rows is NaN.
    wrt : tuple of str, default ()
        The arguments whose gradients you want: "x", "weight", "bias". With "none" they are gradients of the sum.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    CrossEntropy
        A named tuple of the loss and the gradients of `wrt`, of the kind of `x`.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    Notes
    -----
    Logits are computed for some rows at a time, 32 MiB of them or 128 rows, and become their gradients in place. 16-bit
    arrays are widened first: logits and sums are float32, and each gradient is rounded once. Losses of rows are
    finished and added in float64. The number of threads does not change one bit; neither do ignored rows.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> x, weight = rng.standard_normal((5, 8), dtype=np.float32), rng.standard_normal((100, 8), dtype=np.float32)
    >>> found = mha.cross_entropy(x, weight, np.array([3, 99, -100, 0, 7]), wrt=("x", "weight"))
    >>> found.x.shape, found.x[2].any(), found.weight.shape
    ((5, 8), np.False_, (100, 8))
    """
    name = "cross_entropy"
    array, numbers = to_numpy(name, "x", x), to_numpy(name, "targets", targets)
    shape: tuple[int, ...] = ()
    if isinstance(array, np.ndarray) and isinstance(numbers, np.ndarray):
        if numbers.shape != array.shape[:-1]:
            got = f"x {list(array.shape)}, targets {list(numbers.shape)}"
            raise ValueError(f"{name}: targets must have an entry for each row of x; got {got}")
        shape, numbers = numbers.shape, numbers.reshape(-1)
    loss, *gradients = _core.cross_entropy(
        array,
        to_numpy(name, "weight", weight),
        numbers,
        to_numpy(name, "bias", bias),
        ignore_index,
        label_smoothing,
        reduction,
        wrt,
        num_threads,
    )
    found = [None if gradient is None else like(x, gradient) for gradient in gradients]
    return CrossEntropy(like(x, loss.reshape(shape if reduction == "none" else ())), *found)
