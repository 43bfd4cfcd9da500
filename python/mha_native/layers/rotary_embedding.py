"""Rotary positions of queries and keys."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..functions.arrays import Tensor, like, to_numpy
from ..functions.dtypes import numpy_dtype
from ..functions.messages import names_sizes, shown
from ..functions.scalars import checked_integer, checked_real

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class RotaryEmbedding:
    """A table of rotation angles for the queries and keys of a `MultiHeadAttention`, by their positions.

    In a row at position p, the pair i of features (a, b) becomes
    ``(a * cos[p, i] - b * sin[p, i], a * sin[p, i] + b * cos[p, i])``, in each head of query and key. Only the first R
    features are rotated. If angles are proportional to the position, a score depends on the distance of two rows only
    (Su et al., "RoFormer", 2021). For a rule that stretches the table for longer texts, give the stretched numbers.

    Parameters
    ----------
    cos, sin : [P, R / 2]
        Cosines and sines of positions 0 to P - 1, in float32, or in float64 for layers in float64. A layer in 16 bits
        computes in float32 and rounds once.
    interleaved : bool, default False
        Features 2 i and 2 i + 1 are a pair, as in GPT-J. Default: i and R / 2 + i, as in GPT-NeoX and Llama.

    See Also
    --------
    from_base : The table of the paper.

    Notes
    -----
    A table cannot change. Layers, their copies and pickles share it. It is not part of a state dict.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> rotary = mha.RotaryEmbedding.from_base(16, max_positions=128)
    >>> layer = mha.MultiHeadAttention(64, 4, rotary=rotary, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((2, 5, 64), dtype=np.float32)
    >>> cache = layer.new_cache(batch_size=2, capacity=16)
    >>> steps = [layer(x[:, t : t + 1], cache=cache, is_causal=True) for t in range(5)]
    >>> np.array_equal(np.concatenate(steps, axis=1), layer(x, is_causal=True))
    True
    """

    _core: _core.RotaryEmbedding

    def __init__(self, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> None:
        name = "RotaryEmbedding"
        self._core = _core.RotaryEmbedding(to_numpy(name, "cos", cos), to_numpy(name, "sin", sin), interleaved)

    @classmethod
    @names_sizes
    def from_base(
        cls,
        rotary_dim: int,
        max_positions: int,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        dtype: DTypeLike = "float32",
    ) -> RotaryEmbedding:
        """Return the table of angles ``p * base ** (-2 i / R)``, computed in float64 and rounded once.

        Parameters
        ----------
        rotary_dim : int
            R, an even number, at most D, the features of a head.
        max_positions : int
            P, one more than the last position.
        base : float, default 10000
            A positive number.
        interleaved : bool, default False
            As for `RotaryEmbedding`.
        dtype : {"float32", "float64"}, default "float32"
            The dtype of the table.
        """
        name = "RotaryEmbedding.from_base"
        pairs, odd = divmod(checked_integer(name, "rotary_dim", rotary_dim, 2), 2)
        positions = checked_integer(name, "max_positions", max_positions, 1)
        neighbours = _core.boolean(name, "interleaved", interleaved)
        rule = f"{name}: dtype must be float32 or float64"
        kind = numpy_dtype(rule, dtype)
        if kind not in (np.float32, np.float64):
            raise TypeError(f"{rule}; got {shown(dtype)}")
        if odd:
            raise ValueError(f"{name}: rotary_dim must be even; got {rotary_dim}")
        number = checked_real(name, "base", base)
        if number <= 0:
            raise ValueError(f"{name}: base must be more than 0; got {shown(number)}")
        if positions * pairs > sys.maxsize // np.dtype(np.float64).itemsize:
            raise MemoryError(f"{name}: could not allocate a table {[positions, pairs]}")
        with np.errstate(over="ignore"):
            angles = np.arange(positions)[:, None] * number ** (-np.arange(pairs) / pairs)
        if not np.isfinite(angles).all():
            raise ValueError(f"{name}: base must be larger, so that all angles are finite; got {shown(number)}")
        return cls(np.cos(angles).astype(kind), np.sin(angles).astype(kind), interleaved=neighbours)

    def __call__(self, x: Tensor, positions: Tensor | None = None, *, num_threads: int | None = None) -> Tensor:
        """Rotate the rows of `x` by their positions, as a layer rotates the rows of its heads.

        Parameters
        ----------
        x : [B, H, T, D], [H, T, D] or [T, D]
            NumPy array, or CPU tensor of any library that speaks DLPack, with any strides and D of at least R. It has
            the dtype of the table, or 16 bits if the table is in float32.
        positions : [B, T] or [T], integer, optional
            The position of each row, below P. Default: 0 to T - 1.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        out
            With the shape, dtype and kind of `x`. 16-bit rows are computed in float32 and rounded once.

        Raises
        ------
        TypeError, ValueError
            Before any work, if an argument breaks a rule.
        """
        return self._rotate("RotaryEmbedding", "x", x, positions, False, num_threads)

    def gradient(self, dout: Tensor, positions: Tensor | None = None, *, num_threads: int | None = None) -> Tensor:
        """Return the gradient of a function of ``rotary(x, positions)`` by `x`, from its gradient by the result.

        This is `dout` rotated by minus the angles. The table is a constant.

        Parameters
        ----------
        dout : [B, H, T, D], [H, T, D] or [T, D]
            The gradient by the result.
        positions, num_threads
            As in the call.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> rotary = mha.RotaryEmbedding.from_base(16, max_positions=128)
        >>> x = np.random.default_rng(0).standard_normal((2, 5, 16), dtype=np.float32)
        >>> np.allclose(rotary.gradient(rotary(x)), x, atol=1e-6)
        True
        """
        return self._rotate("RotaryEmbedding.gradient", "dout", dout, positions, True, num_threads)

    def _rotate(
        self, function: str, name: str, x: Tensor, positions: Tensor | None, backwards: bool, num_threads: int | None
    ) -> Tensor:
        given = to_numpy(function, "positions", positions)
        return like(x, self._core.rotate(function, to_numpy(function, name, x), given, backwards, num_threads))

    @property
    def cos(self) -> NDArray[Any]:
        """The cosines, [P, R / 2], read-only."""
        return self._core.cos

    @property
    def sin(self) -> NDArray[Any]:
        """The sines, [P, R / 2], read-only."""
        return self._core.sin

    @property
    def interleaved(self) -> bool:
        """Whether neighbouring features are a pair."""
        return self._core.interleaved

    @property
    def max_positions(self) -> int:
        """P, one more than the last position."""
        return len(self.cos)

    @property
    def rotary_dim(self) -> int:
        """R, the number of rotated features of a head."""
        return 2 * int(self.cos.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the table."""
        return self._core.dtype

    def __repr__(self) -> str:
        sizes = f"rotary_dim={self.rotary_dim}, max_positions={self.max_positions}"
        return f"RotaryEmbedding({sizes}, interleaved={self.interleaved}, dtype='{self.dtype}')"

    def _for_layers_in(self, dtype: np.dtype[Any]) -> RotaryEmbedding:
        """Return the table in the dtype of scores: float64 for layers in float64, else float32."""
        kind = np.float64 if dtype == np.float64 else np.float32
        if self.dtype == kind:
            return self
        return RotaryEmbedding(self.cos.astype(kind), self.sin.astype(kind), interleaved=self.interleaved)

    def __deepcopy__(self, memo: dict[int, Any]) -> RotaryEmbedding:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"cos": np.array(self.cos), "sin": np.array(self.sin), "interleaved": self.interleaved}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._core = _core.RotaryEmbedding(saved["cos"], saved["sin"], saved["interleaved"])
