"""Dropout of attention weights by a generator that counts, in NumPy. Axes are as in `attention.py`."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import named


@named
def dropout_factors(
    shape: tuple[int, ...],
    dropout_p: float = 0,
    dropout_seed: int = 0,
    query_offset: ArrayLike = 0,
    first_head: int = 0,
) -> NDArray[np.float64]:
    """Return the factors of dropout for weights of a `shape` [B, H, Tq, Tk]: 0 or ``1 / (1 - dropout_p)``.

    A weight becomes 0 if its word of `philox` is below ``dropout_p * 2^32``. Heads of all batch elements are counted,
    beginning at `first_head`.
    """
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must lie in [0, 1); got {dropout_p}")
    position = np.reshape(query_offset, (-1, 1, 1, 1)) + np.arange(shape[2])[:, None]
    j = np.arange(shape[3])
    head = first_head + np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], 1, 1)
    counter = (j // 4, position, head, head >> 32)
    words = philox(counter, (dropout_seed, dropout_seed >> 32))
    word = np.choose(np.broadcast_to(j % 4, shape), [np.broadcast_to(x, shape) for x in words])
    return np.where(word < min(round(dropout_p * 2**32), 2**32 - 1), 0, 1 / (1 - dropout_p))


def philox(counter: tuple[ArrayLike, ...], key: tuple[int, int]) -> tuple[NDArray[np.uint64], ...]:
    """Return the four words of Philox4x32-10 for four words of a `counter`, which broadcast, and two of a `key`.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
    """
    low = np.uint64(0xFFFFFFFF)
    a, b, c, d = (np.asarray(x).astype(np.uint64) & low for x in counter)
    for i in range(10):
        one, two = (
            np.uint64((k + i * step) & 0xFFFFFFFF) for k, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
        )
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (second >> np.uint64(32)) ^ b ^ one, second & low, (first >> np.uint64(32)) ^ d ^ two, first & low
    return a, b, c, d


def taken_out(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the arguments of `dropout_factors` from the options of a call, and return them."""
    return {name: options.pop(name) for name in ("dropout_p", "dropout_seed", "first_head") if name in options}
