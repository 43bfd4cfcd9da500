"""A dense cache of keys and values: each sequence has its own preallocated room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import KVCache as CoreCache
from .arrays import Tensor, to_numpy
from .instances import bare
from .messages import in_the_name_of, names_sizes
from .token_cache import TokenCache

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class KVCache(TokenCache):
    """Preallocated room for the keys and values of `capacity` tokens in each of `batch_size` sequences.

    Parameters
    ----------
    batch_size : int
        B, the number of sequences.
    num_kv_heads : int
        Hk, the heads of keys and values.
    capacity : int
        The most tokens of a sequence.
    head_dim : int
        D, the width of a head of the keys.
    value_head_dim : int, optional
        Dv, the width of a head of the values. Default: D.
    dtype : float32, float64, float16, bfloat16 or int8, default "float32"
        The dtype of keys and values. bfloat16 needs the package ml_dtypes. A cache of int8 takes keys and values in
        float32, and stores each row of a head as integers with one scale: its largest magnitude / 127.

    See Also
    --------
    PagedKVCache : A cache in pages, which sequences share.
    MultiHeadAttention.new_cache : A cache with the sizes of a layer, which ``layer(x, cache=cache)`` fills.

    Notes
    -----
    A number of a cache of int8 is ``integer * scale``, in float32. Attention over it has the bits of attention over its
    `keys` and `values`, which are these numbers. It takes a quarter of the memory of float32, and about a quarter of
    the time of a step that waits for memory.

    Sequences have their own lengths. The operating system provides memory when it is first written to, by 2 MiB where
    the rows of a head fill as much; memory never moves. A call that fails changes nothing. A sequence that would
    outgrow the capacity is a ValueError.

    Only one call at a time may change a cache: a second one, from another thread, is a RuntimeError. Calls that only
    read it, with ``append=False``, may run at the same time. A process that is forked during a change has the cache as
    it was before; if the change was moving tokens, call `clear` first there, or get a RuntimeError.

    Positions count from the oldest token that is left. Masks and biases see only differences of positions, so that
    `keep_last` does not change their meaning. Keys of a layer with rotary positions keep the rotation that they have:
    after `keep_last`, give `positions` to the calls of that layer.

    Examples
    --------
    A prompt of four tokens, then one token after the other, as a decoder generates them:

    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 2, 8, 6, 64), dtype=np.float32)
    >>> cache = mha.KVCache(batch_size=2, num_kv_heads=8, capacity=16, head_dim=64)
    >>> cache.append(key[:, :, :4], value[:, :, :4])
    >>> for t in range(4, 6):
    ...     cache.append(key[:, :, t : t + 1], value[:, :, t : t + 1])
    ...     out = mha.scaled_dot_product_attention(query[:, :, t : t + 1], cache, is_causal=True)
    >>> cache.lengths
    array([6, 6])

    The steps have the bits of one causal call:

    >>> whole = mha.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> np.array_equal(out[:, :, 0], whole[:, :, 5])
    True

    Two of three drafted tokens of the first sequence are rejected, and one of the second:

    >>> cache.append(key[:, :, :3], value[:, :, :3])
    >>> cache.rollback(np.array([2, 1]))
    >>> cache.lengths
    array([7, 8])
    """

    _core_type = CoreCache
    _size_names = ("batch_size", "num_kv_heads", "capacity", "head_dim", "value_head_dim")

    @names_sizes
    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        self._core = CoreCache(batch_size, num_kv_heads, capacity, head_dim, value_head_dim, dtype)

    @classmethod
    def over(cls, keys: Tensor, values: Tensor, lengths: Tensor | None = None) -> KVCache:
        """Return a cache in the memory of your arrays, to which calls write tokens. The cache keeps the arrays alive.

        Parameters
        ----------
        keys : [B, Hk, capacity, D]
            A writable array or CPU tensor of float32, float64, float16 or bfloat16. The rows of a head must follow one
            another; heads and sequences may have any strides. Long rows are read fastest where they begin at multiples
            of 64 bytes. Large arrays of NumPy begin 16 bytes after one, and a query over them takes 1.2 times as long.
        values : [B, Hk, capacity, Dv]
            With the same dtype, in other memory.
        lengths : integer array [B], optional
            The number of tokens that each sequence has already. Default: 0.

        Returns
        -------
        KVCache
            It holds the numbers of `keys` and `values`: if you change them there, the cache changes. A copy of the
            cache (``copy.deepcopy``, pickles) has its own memory.

        Raises
        ------
        TypeError, ValueError
            For arrays of int8, whose scales have no place here, and for arrays that cannot be written in place.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> keys, values = np.zeros((2, 1, 2, 8, 4), np.float32)
        >>> cache = mha.KVCache.over(keys, values)
        >>> cache.append(np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 3, 4), np.float32))
        >>> keys[0, :, :, 0]
        array([[1., 1., 1., 0., 0., 0., 0., 0.],
               [1., 1., 1., 0., 0., 0., 0., 0.]], dtype=float32)
        """
        cache = bare(cls)
        with in_the_name_of("KVCache.over"):
            cache._core = CoreCache.over(
                to_numpy("KVCache.over", "keys", keys),
                to_numpy("KVCache.over", "values", values),
                None if lengths is None else to_numpy("KVCache.over", "lengths", lengths),
            )
        return cache

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, used or not."""
        return self.batch_size * self.capacity * self._bytes_of_token()
