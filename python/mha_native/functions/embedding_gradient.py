"""The gradient of a table of embeddings: the public function, which documents and forwards. The core computes."""

from __future__ import annotations

import numpy as np

from .. import _core
from .arrays import Tensor, like, to_numpy


def embedding_gradient(ids: Tensor, dout: Tensor, num_embeddings: int, *, num_threads: int | None = None) -> Tensor:
    """Return the gradient of a function of ``table[ids]`` by `table`, from its gradient by the result.

    Parameters
    ----------
    ids : [...], integer
        The row of the table of each result.
    dout : [..., E]
        The gradient of the function by the result: NumPy array, or CPU tensor of any library that speaks DLPack, with 1
        to 4 axes and any strides, in float32, float64, float16 or bfloat16.
    num_embeddings : int
        V, the number of rows of the table.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`.

    Returns
    -------
    gradient : [V, E]
        With the kind and dtype of `dout`. Row v is the sum of the rows of `dout` with the id v, in their order; 16-bit
        rows are added in float32 and rounded once. The number of threads does not change one bit.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> mha.embedding_gradient(np.array([2, 0, 2]), np.array([[1, 2], [3, 4], [5, 6]], np.float32), 3)
    array([[3., 4.],
           [0., 0.],
           [6., 8.]], dtype=float32)
    """
    name = "embedding_gradient"
    numbers, array = to_numpy(name, "ids", ids), to_numpy(name, "dout", dout)
    if isinstance(numbers, np.ndarray) and isinstance(array, np.ndarray):
        if numbers.shape != array.shape[:-1]:
            got = f"ids {list(numbers.shape)}, dout {list(array.shape)}"
            raise ValueError(f"{name}: dout must have a row for each of ids; got {got}")
        numbers = numbers.reshape(-1)
    return like(dout, _core.embedding_gradient(numbers, array, num_embeddings, num_threads))
