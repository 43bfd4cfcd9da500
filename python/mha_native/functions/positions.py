"""Positional encodings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from .messages import names_sizes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


@names_sizes
def sinusoidal_positions(
    length: int, embed_dim: int, *, first_position: int = 0, dtype: DTypeLike = "float32"
) -> NDArray[Any]:
    """Return sines and cosines of each position, with one wavelength for each pair of features.

    Parameters
    ----------
    length : int
        T, the number of positions.
    embed_dim : int
        E, the number of features; if it is odd, the last feature is a sine.
    first_position : int, default 0
        Position of the first row, for the later steps of a decoder. ``first_position + length`` must fit 64 bits.
    dtype : float32, float64, float16 or bfloat16, default "float32"
        The dtype of the result, which is computed in float64 and rounded once.

    Returns
    -------
    positions : [T, E] array
        ``positions[t, 2 i] = sin(t / 10000 ** (2 i / E))`` and ``positions[t, 2 i + 1]`` the cosine of the same angle,
        for a `first_position` of 0 (Vaswani et al., "Attention Is All You Need", 2017, section 3.5).

    Examples
    --------
    >>> import mha_native as mha
    >>> mha.sinusoidal_positions(2, 4).round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]], dtype=float32)
    """
    return _core.sinusoidal_positions(length, embed_dim, first_position, dtype)
