"""Positional encodings."""

import numpy as np
from numpy.typing import DTypeLike, NDArray


def sinusoidal_positions(length: int, embed_dim: int, *, dtype: DTypeLike = np.float32) -> NDArray[np.floating]:
    """Sines and cosines of the position, one wavelength for each pair of features.

    Parameters
    ----------
    length : int
        T, the number of positions.
    embed_dim : int
        E, the number of features.
    dtype : dtype, default float32
        Of the result; it is computed in float64 and rounded once.

    Returns
    -------
    positions : [T, E] array
        ``positions[t, 2 i] = sin(t / 10000 ** (2 i / E))`` and ``positions[t, 2 i + 1]`` the cosine of the same angle.

    Examples
    --------
    >>> import mha_native as mha
    >>> mha.sinusoidal_positions(2, 4).round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]], dtype=float32)
    """
    if length < 0 or embed_dim < 0:
        raise ValueError(
            f"sinusoidal_positions: length and embed_dim must not be negative; got {length} and {embed_dim}"
        )
    feature = np.arange(embed_dim)
    wavelength = 10000.0 ** ((feature - feature % 2) / max(embed_dim, 1))
    angles = np.arange(length)[:, None] / wavelength
    return np.where(feature % 2 == 0, np.sin(angles), np.cos(angles)).astype(dtype)
