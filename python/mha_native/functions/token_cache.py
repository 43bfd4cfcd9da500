"""The common part of caches of keys and values: their tokens, and the ways to change them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy import ndarray

from .._core import KVCache as CoreCache
from .._core import PagedKVCache as CorePages
from .._core import dtype_name
from .arrays import Tensor, to_numpy
from .dtypes import checked_dtype, packed_state, unpacked_state
from .messages import in_the_name_of, listed, name_of_type, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TokenCache:
    """Keys and values of the tokens so far, in memory of a `KVCache` or a `PagedKVCache`."""

    _core: CoreCache
    _core_type: ClassVar[Any]
    _size_names: ClassVar[tuple[str, ...]]  # of the arguments of the core, without the dtype

    def append(self, key: Tensor, value: Tensor, new_lengths: Tensor | None = None) -> None:
        """Copy tokens to the end of each sequence.

        Parameters
        ----------
        key : [B, Hk, T, D]
            In the dtype of the cache (float32 for int8), with any strides. Missing leading axes have length 1.
        value : [B, Hk, T, Dv]
        new_lengths : integer array [B], optional
            Sequence b takes its first ``new_lengths[b]`` tokens; the others are padding. Default: all T.

        Raises
        ------
        ValueError
            If a sequence would outgrow the capacity, for example. The cache does not change.
        """
        self._core.append(*_tokens("KVCache.append", key, value, new_lengths))

    def rollback(self, count: int | Tensor) -> None:
        """Forget the newest tokens, such as drafts that were rejected.

        Parameters
        ----------
        count : int or integer array [B]
            The number of tokens, for all sequences or for each one.
        """
        self._core.rollback(count if type(count) is int else to_numpy("KVCache.rollback", "count", count))

    def reorder(self, index: Tensor) -> None:
        """Replace sequence b by a copy of sequence ``index[b]``: the step of a beam search.

        Only the tokens that a sequence has are copied; nothing is done where ``index[b] == b``.

        Parameters
        ----------
        index : integer array [B]
            A sequence may occur more than once, or not at all.

        Examples
        --------
        Four beams from one prompt, which is appended to the first sequence only:

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
            The largest number of tokens that stay.
        """
        self._core.keep_last(count)

    def clear(self) -> None:
        """Forget everything."""
        self._core.clear()

    def _take_tokens(self, other: TokenCache) -> None:
        """Replace the tokens by the tokens of `other`, a cache of the same sizes and dtype, and of any capacity."""
        self._take(other._core)

    def _take(self, core: CoreCache) -> None:
        if self._is_int8:
            self._core.assign_stored(*core.stored(), core.lengths)
        else:
            filled = slice(core.longest)
            self._core.assign(core.keys[:, :, filled], core.values[:, :, filled], core.lengths)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of the tokens: plain arrays, for `load_state_dict` or ``numpy.savez``.

        ``keys`` [B, Hk, T, D] and ``values`` [B, Hk, T, Dv] with T the length of the longest sequence, filled with
        zeros after shorter ones; ``lengths`` [B]. A cache of int8 gives its integers, and their factors ``key_scales``
        and ``value_scales`` [B, Hk, T].
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
        """Replace the tokens by `state`, all of them or none.

        Parameters
        ----------
        state : mapping of names to arrays or CPU tensors
            From `state_dict` of a `KVCache` or `PagedKVCache` of the same sizes; only the capacity, and the number and
            size of pages, may differ. Pages are shared as before in a `PagedKVCache` with the same page size.

        Raises
        ------
        TypeError, ValueError
            If entries are missing, unknown, or do not fit this cache. The cache does not change.
        """
        function = "KVCache.load_state_dict"
        if not isinstance(state, Mapping):
            raise TypeError(f"{function}: state must be a mapping of names to arrays; got {name_of_type(state)}")
        scales = ["key_scales", "value_scales"] if self._is_int8 else []
        if set(state) - {"page_table"} != {"keys", "values", "lengths", *scales}:
            expected = ", ".join(["keys", "values", *scales])
            names = listed(name if isinstance(name, str) else shown(name) for name in state)
            raise ValueError(f"{function}: state must hold {expected} and lengths; got {names or 'nothing'}")
        given = {name: to_numpy(function, name, array) for name, array in state.items()}
        for name, array in given.items():
            if array is None:
                raise TypeError(f"{function}: {name} must be an array; got None")
        key_names = {"key": "keys", "value": "values", "key_scale": "key_scales", "value_scale": "value_scales"}
        keys, values, lengths = given["keys"], given["values"], given["lengths"]
        key_scales, value_scales = (_as_rows(given.get(name)) for name in ("key_scales", "value_scales"))
        with in_the_name_of(function, **key_names, new_lengths="lengths"):
            if "page_table" in given:
                self._assign_pages(function, keys, values, key_scales, value_scales, given["page_table"], lengths)
            elif self._is_int8:
                self._core.assign_stored(keys, values, key_scales, value_scales, lengths)
            else:
                self._core.assign(keys, values, lengths)

    def _assign_pages(self, function: str, keys: Any, *others: Any) -> None:
        """Replace the tokens by pages [N, Hk, page_size, D] that sequences share."""
        shape = np.shape(keys) if isinstance(keys, ndarray) else ()
        if len(shape) != 4 or shape[2] < 64 or shape[2] % 64:
            rule = f"keys must be [N, {self.num_kv_heads}, page_size, {self.head_dim}] in a state with page_table"
            raise ValueError(f"{function}: {rule}, with a multiple of 64 as page_size; got {shown(shape)}")
        num_pages, _, page_size, _ = shape
        if isinstance(self._core, CorePages) and self._core.page_size == page_size:
            self._core.assign_pages(keys, *others)
        else:
            widths = (self.head_dim, self.value_head_dim)
            pages = CorePages(num_pages, page_size, self.batch_size, self.num_kv_heads, *widths, self.dtype)
            pages.assign_pages(keys, *others)
            self._take(pages)

    @property
    def keys(self) -> NDArray[Any]:
        """All keys, [B, Hk, capacity, D]: a read-only view. After ``lengths[b]`` it holds arbitrary numbers.

        For a cache of int8, a copy of the numbers in float32, [B, Hk, longest, D], with zeros after each sequence.
        """
        if not self._is_int8:
            return self._core.keys
        keys, _, scales, _ = self._core.stored()
        return _numbers(keys, scales)

    @property
    def values(self) -> NDArray[Any]:
        """All values, [B, Hk, capacity, Dv], as for `keys`."""
        if not self._is_int8:
            return self._core.values
        _, values, _, scales = self._core.stored()
        return _numbers(values, scales)

    @property
    def _is_int8(self) -> bool:
        return self.dtype == np.int8

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sequence, [B]: a copy, which does not change with the cache."""
        return self._core.lengths

    @property
    def longest(self) -> int:
        """The length of the longest sequence."""
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
        """The dtype of keys and values."""
        return self._core.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, used or not."""
        raise NotImplementedError

    def _bytes_of_token(self) -> int:
        columns = (self.head_dim + self.value_head_dim) * self.dtype.itemsize
        return self.num_kv_heads * (columns + (2 * np.dtype(np.float32).itemsize if self._is_int8 else 0))

    def _sizes(self) -> dict[str, int]:
        """Return the arguments of the core by name, without the dtype, in their order."""
        return {name: getattr(self, name) for name in self._size_names}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self._sizes().items())
        return f"{type(self).__name__}({sizes}, dtype='{dtype_name(self.dtype)}', lengths={self.lengths.tolist()})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "sizes": (*self._sizes().values(), dtype_name(self.dtype)),
            "state": packed_state(self.state_dict()),
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        *sizes, name = saved["sizes"]
        dtype = name if name == "int8" else checked_dtype(type(self).__name__, name)
        self._core = self._core_type(*sizes, dtype)
        self.load_state_dict(unpacked_state(saved["state"]))


def _numbers(integers: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[Any]:
    """Return the numbers of a cache of int8, [B, Hk, T, columns] with scales [B, Hk, T, 1], in float32."""
    with np.errstate(invalid="ignore"):  # rows that are not finite have integers of 0 and a scale that is not finite
        numbers = integers * scales
    numbers.flags.writeable = False
    return numbers


def _as_rows(scales: Any) -> Any:
    """Return scales [..., T] as [..., T, 1], and anything but an array as it is: the core refuses it."""
    return scales[..., None] if isinstance(scales, np.ndarray) else scales


def key_argument(function: str, key: Tensor | TokenCache) -> Any:
    """Return the argument `key` for the core, which also takes a cache: the keys and values of its tokens."""
    return key._core if isinstance(key, TokenCache) else to_numpy(function, "key", key)


def value_argument(function: str, key: Tensor | TokenCache, value: Tensor | None) -> Any:
    """Return the argument `value` for the core. It must be missing if `key` is a cache."""
    return None if value is None and isinstance(key, TokenCache) else to_numpy(function, "value", value)


def _tokens(function: str, key: Tensor, value: Tensor, new_lengths: Tensor | None) -> tuple[Any, Any, Any]:
    return (
        key if type(key) is ndarray else to_numpy(function, "key", key),
        value if type(value) is ndarray else to_numpy(function, "value", value),
        new_lengths if new_lengths is None else to_numpy(function, "new_lengths", new_lengths),
    )


def cores_of_caches(function: str, name: str, caches: Iterable[TokenCache]) -> list[CoreCache]:
    """Return the object of the core of each of `caches`, which is the argument `name`."""
    rule = f"{function}: {name} must hold a KVCache for each layer"
    if not isinstance(caches, Iterable):
        raise TypeError(f"{rule}; got {name_of_type(caches)}")
    cores = []
    for cache in caches:
        if not isinstance(cache, TokenCache):
            raise TypeError(f"{rule}; got a {name_of_type(cache)}")
        cores.append(cache._core)
    return cores
