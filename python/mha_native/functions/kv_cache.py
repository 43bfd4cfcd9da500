"""Keys and values of the tokens so far, preallocated: what a decoder attends to step by step."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .arrays import Tensor, to_numpy
from .dtypes import checked_dtype, packed_state, unpacked_state
from .instances import bare
from .messages import in_the_name_of, listed, name_of_type, shown


class KVCache:
    """Room for the keys and values of `capacity` tokens in each of `batch_size` sequences.

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
        Of keys and values. bfloat16 takes the package ml_dtypes. A cache of int8 takes keys and values in float32, and
        keeps each row of a head as integers with one scale: its largest magnitude / 127.

    See Also
    --------
    PagedKVCache : The same in pages, which sequences share.
    MultiHeadAttention.new_cache : A cache of the sizes of a layer, which ``layer(x, cache=cache)`` fills.

    Notes
    -----
    A number of a cache of int8 is ``integer * scale``, in float32. Attention over it has the results, in every bit, of
    attention over `keys` and `values`, which are these numbers. It takes a quarter of the memory of float32, and about
    as much of the time of a step that waits for memory.

    Sequences have lengths of their own. Memory is taken from the operating system as it is first written to, by 2 MiB
    where the rows of a head fill as much, and never moves. What fails, fails before anything is changed; a sequence
    that would outgrow the capacity is a ValueError.

    One call at a time may change a cache: a second one, from another thread, is a RuntimeError. Calls that only read
    it, those with ``append=False``, may run side by side. A process that is forked meanwhile has the cache as it was
    before such a call; if that was moving tokens, `clear` comes first there, or a RuntimeError.

    Positions count from the oldest token that is left. Masks and biases see differences of positions only, so that
    `keep_last` does not change what they mean. Keys of a layer with rotary positions stay as they were turned: calls of
    it must say by their `positions` where new rows stand.

    Examples
    --------
    A prompt of four tokens, then one token after the other, as a decoder makes them:

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

    The steps compute what one causal call does, in every bit:

    >>> whole = mha.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> np.array_equal(out[:, :, 0], whole[:, :, 5])
    True

    Two of three drafted tokens of the first sequence are rejected, and one of the second:

    >>> cache.append(key[:, :, :3], value[:, :, :3])
    >>> cache.rollback(np.array([2, 1]))
    >>> cache.lengths
    array([7, 8])
    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        self._core = _core.KVCache(batch_size, num_kv_heads, capacity, head_dim, value_head_dim, dtype)

    @classmethod
    def over(cls, keys: Tensor, values: Tensor, lengths: Tensor | None = None) -> "KVCache":
        """A cache in memory of the caller's, which calls write tokens to. It lives as long as the cache.

        Parameters
        ----------
        keys : [B, Hk, capacity, D]
            A writable array or CPU tensor of float32, float64, float16 or bfloat16. Rows of a head lie one behind the
            other; heads and sequences may lie anywhere. Where they begin at multiples of 64 bytes, long ones are read
            fastest: large arrays of NumPy begin 16 bytes behind, and a query over them takes 1.2 times as long.
        values : [B, Hk, capacity, Dv]
            Of the same dtype, in other memory.
        lengths : integer array [B], optional
            How many tokens each sequence has there already. Default: none.

        Returns
        -------
        KVCache
            What it holds is what `keys` and `values` hold: tokens that the caller changes there are changed in it. A
            copy of it (``copy.deepcopy``, pickles) has memory of its own.

        Raises
        ------
        TypeError, ValueError
            For arrays of int8, whose scales have no place here, and for what cannot be written in place.

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
        if cls is not KVCache:
            raise TypeError(f"{cls.__name__}.over: only a KVCache lies in arrays of the caller")
        cache = bare(cls)
        cache._core = _core.KVCache.over(
            to_numpy("KVCache.over", "keys", keys),
            to_numpy("KVCache.over", "values", values),
            None if lengths is None else to_numpy("KVCache.over", "lengths", lengths),
        )
        return cache

    def append(self, key: Tensor, value: Tensor, new_lengths: Tensor | None = None) -> None:
        """Copy tokens behind those that each sequence has.

        Parameters
        ----------
        key : [B, Hk, T, D]
            Of the dtype of the cache (float32, if that is int8), with any strides. Missing leading axes have length 1.
        value : [B, Hk, T, Dv]
        new_lengths : integer array [B], optional
            Sequence b takes its first ``new_lengths[b]`` tokens; what is behind them is padding. Default: all T.

        Raises
        ------
        ValueError
            If a sequence would outgrow the capacity, among others. The cache is as before.
        """
        self._core.append(*_tokens("KVCache.append", key, value, new_lengths))

    def rollback(self, count: int | Tensor) -> None:
        """Forget the newest tokens, such as drafts that were rejected.

        Parameters
        ----------
        count : int or integer array [B]
            How many, of every sequence or of each one.
        """
        self._core.rollback(count if type(count) is int else to_numpy("KVCache.rollback", "count", count))

    def reorder(self, index: Tensor) -> None:
        """Let sequence b become what sequence ``index[b]`` was: the step of a beam search.

        Tokens are copied, and only those that are there; where ``index[b] == b`` nothing is done.

        Parameters
        ----------
        index : integer array [B]
            Sequences may be named more than once, or not at all.

        Examples
        --------
        Four beams from one prompt, which is appended to the first sequence alone:

        >>> import numpy as np
        >>> import mha_native as mha
        >>> cache = mha.KVCache(batch_size=4, num_kv_heads=2, capacity=8, head_dim=3)
        >>> prompt = np.ones((4, 2, 5, 3), np.float32)
        >>> cache.append(prompt, prompt, new_lengths=np.array([5, 0, 0, 0]))
        >>> cache.reorder(np.array([0, 0, 0, 0]))
        >>> cache.lengths
        array([5, 5, 5, 5])
        """
        self._core.reorder(to_numpy("KVCache.reorder", "index", index))

    def keep_last(self, count: int) -> None:
        """Forget the oldest tokens of sequences that hold more than `count`: a sliding window.

        The tokens that stay are moved to the front. Do it rarely: with twice the window as capacity, and whenever the
        cache is full, each token is moved once on average.

        Parameters
        ----------
        count : int
            How many stay at most.
        """
        self._core.keep_last(count)

    def clear(self) -> None:
        """Forget everything."""
        self._core.clear()

    def _take_tokens(self, other: "KVCache") -> None:
        """Replace what is in the cache by what `other` holds, a cache of the same sizes but the capacity, and dtype."""
        if self._is_int8:
            self._core.assign_stored(*other._core.stored(), other.lengths)
        else:
            filled = slice(other.longest)
            self._core.assign(other.keys[:, :, filled], other.values[:, :, filled], other.lengths)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of what is in the cache: plain arrays, for `load_state_dict`, ``numpy.savez`` or a look.

        ``keys`` [B, Hk, T, D] and ``values`` [B, Hk, T, Dv] with T the length of the longest sequence, zero behind
        shorter ones; ``lengths`` [B]. Of a cache of int8 they are the integers, and ``key_scales`` and ``value_scales``
        [B, Hk, T] what these are multiplied by.
        """
        lengths, longest = self.lengths, self.longest
        if self._is_int8:
            keys, values, key_scales, value_scales = (array.copy() for array in self._core.stored())
            scales = {"key_scales": key_scales[..., 0], "value_scales": value_scales[..., 0]}
            return {"keys": keys, "values": values} | scales | {"lengths": lengths}
        state = {"keys": self.keys[:, :, :longest].copy(), "values": self.values[:, :, :longest].copy()}
        for array in state.values():
            bits = array.view(f"u{array.itemsize}")
            for b, length in enumerate(lengths):
                bits[b, :, length:] = 0
        return state | {"lengths": lengths}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace what is in the cache by `state`, whole or not at all.

        Parameters
        ----------
        state : mapping of names to arrays or CPU tensors
            As `state_dict` gives it, of a cache of the same sizes; its capacity may be another.
        """
        function = "KVCache.load_state_dict"
        if not isinstance(state, Mapping):
            raise TypeError(f"{function}: state must be a mapping of names to arrays; got {name_of_type(state)}")
        scales = ["key_scales", "value_scales"] if self._is_int8 else []
        if set(state) != {"keys", "values", "lengths", *scales}:
            expected = ", ".join(["keys", "values", *scales])
            names = listed(name if isinstance(name, str) else shown(name) for name in state)
            raise ValueError(f"{function}: state must hold {expected} and lengths; got {names or 'nothing'}")
        given = {name: to_numpy(function, name, array) for name, array in state.items()}
        key_names = {"key": "keys", "value": "values", "key_scale": "key_scales", "value_scale": "value_scales"}
        with in_the_name_of(function, **key_names, new_lengths="lengths"):
            if self._is_int8:
                key_scales, value_scales = _as_rows(given["key_scales"]), _as_rows(given["value_scales"])
                self._core.assign_stored(given["keys"], given["values"], key_scales, value_scales, given["lengths"])
            else:
                self._core.assign(given["keys"], given["values"], given["lengths"])

    @property
    def keys(self) -> NDArray[Any]:
        """All keys, [B, Hk, capacity, D]: a read-only view. Behind ``lengths[b]`` it holds anything.

        Of a cache of int8 a copy of their numbers in float32, [B, Hk, longest, D], with zeros behind each sequence.
        """
        if not self._is_int8:
            return self._core.keys
        keys, _, scales, _ = self._core.stored()
        return _numbers(keys, scales)

    @property
    def values(self) -> NDArray[Any]:
        """All values, [B, Hk, capacity, Dv], likewise."""
        if not self._is_int8:
            return self._core.values
        _, values, _, scales = self._core.stored()
        return _numbers(values, scales)

    @property
    def _is_int8(self) -> bool:
        return self.dtype == np.int8

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each sequence has, [B]: a copy, which does not change when the cache does."""
        return self._core.lengths

    @property
    def longest(self) -> int:
        """The largest of `lengths`."""
        return self._core.longest

    @property
    def batch_size(self) -> int:
        """B, the number of sequences."""
        return self._core.batch_size

    @property
    def num_kv_heads(self) -> int:
        """Hk, the heads of keys and values."""
        return self._core.num_kv_heads

    @property
    def capacity(self) -> int:
        """The most tokens of a sequence."""
        return self._core.capacity

    @property
    def head_dim(self) -> int:
        """D, the width of a head of the keys."""
        return self._core.head_dim

    @property
    def value_head_dim(self) -> int:
        """Dv, the width of a head of the values."""
        return self._core.value_head_dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of keys and values."""
        return self._core.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, used or not."""
        return self.batch_size * self.capacity * self._bytes_of_token()

    def _bytes_of_token(self) -> int:
        columns = (self.head_dim + self.value_head_dim) * self.dtype.itemsize
        return self.num_kv_heads * (columns + (2 * np.dtype(np.float32).itemsize if self._is_int8 else 0))

    def _sizes(self) -> dict[str, int]:
        """What a cache of these sizes is made from, but for the dtype, in the order of the core's arguments."""
        names = ("batch_size", "num_kv_heads", "capacity", "head_dim", "value_head_dim")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self._sizes().items())
        return (
            f"{type(self).__name__}({sizes}, dtype='{_core.dtype_name(self.dtype)}', lengths={self.lengths.tolist()})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            "sizes": (*self._sizes().values(), _core.dtype_name(self.dtype)),
            "state": packed_state(self.state_dict()),
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        batch_size, num_kv_heads, capacity, head_dim, value_head_dim, name = saved["sizes"]
        dtype = name if name == "int8" else checked_dtype("KVCache", name)
        self._core = _core.KVCache(batch_size, num_kv_heads, capacity, head_dim, value_head_dim, dtype)
        self.load_state_dict(unpacked_state(saved["state"]))


def _numbers(integers: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[Any]:
    """What a cache of int8 holds, [B, Hk, T, columns] with scales [B, Hk, T, 1], in float32."""
    with np.errstate(invalid="ignore"):  # of rows that are not finite the integers are 0, and the scale is not
        numbers = integers * scales
    numbers.flags.writeable = False
    return numbers


def _as_rows(scales: Any) -> Any:
    """Scales [..., T] as [..., T, 1]; what is no array is left to the core, which says so."""
    return scales[..., None] if isinstance(scales, np.ndarray) else scales


def key_argument(function: str, key: Tensor | KVCache) -> Any:
    """What the core takes as `key`, where that may be a cache: the keys and values of its tokens."""
    return key._core if isinstance(key, KVCache) else to_numpy(function, "key", key)


def value_argument(function: str, key: Tensor | KVCache, value: Tensor | None) -> Any:
    """What the core takes as `value`, which must be missing if `key` is a cache."""
    return None if value is None and isinstance(key, KVCache) else to_numpy(function, "value", value)


def _tokens(function: str, key: Tensor, value: Tensor, new_lengths: Tensor | None) -> tuple[Any, Any, Any]:
    return (
        key if type(key) is ndarray else to_numpy(function, "key", key),
        value if type(value) is ndarray else to_numpy(function, "value", value),
        new_lengths if new_lengths is None else to_numpy(function, "new_lengths", new_lengths),
    )


def cores_of_caches(function: str, name: str, caches: Iterable[KVCache]) -> list[_core.KVCache]:
    """What the core has of each of `caches`, which is the argument `name`."""
    rule = f"{function}: {name} must hold a KVCache for each layer"
    if not isinstance(caches, Iterable):
        raise TypeError(f"{rule}; got {name_of_type(caches)}")
    cores = []
    for cache in caches:
        if not isinstance(cache, KVCache):
            raise TypeError(f"{rule}; got a {name_of_type(cache)}")
        cores.append(cache._core)
    return cores
