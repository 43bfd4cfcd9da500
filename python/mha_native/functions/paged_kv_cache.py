"""A cache in pages, which sequences share: for many sequences of different lengths or with equal beginnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import PagedKVCache as CoreCache
from .arrays import Tensor, to_numpy
from .messages import names_sizes
from .token_cache import TokenCache

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class PagedKVCache(TokenCache):
    """A cache whose tokens lie in pages of one pool, which the sequences share.

    Use it wherever a `KVCache` can be used; results have the same bits. A sequence takes pages as it grows, so that
    short sequences do not need the capacity of long ones. Sequences with equal beginnings can share pages.

    Parameters
    ----------
    num_pages : int
        Pages of all sequences together.
    page_size : int, default 64
        Tokens of a page: a multiple of 64.
    batch_size : int
        B, the number of sequences.
    num_kv_heads : int
        Hk, the heads of keys and values.
    head_dim : int
        D, the width of a head of the keys.
    value_head_dim : int, optional
        Dv, the width of a head of the values. Default: D.
    dtype : float32, float64, float16, bfloat16 or int8, default "float32"
        The dtype of keys and values. bfloat16 needs the package ml_dtypes.

    See Also
    --------
    KVCache : A dense cache.
    MultiHeadAttention.new_cache : With `num_pages`, a cache with the sizes of a layer.

    Notes
    -----
    `reorder` and `fork` share pages, and move no token. A page that several sequences have is copied before one of them
    appends to it.

    A call takes the pages for all its tokens before it computes anything. If too few are free, that is a ValueError,
    and nothing changes. A call that fails later, or is cancelled, gives its pages back.

    `rollback`, `release` and `clear` give back the pages that hold no token any more. `keep_last` gives back whole
    pages from the front and moves nothing: at least `count` tokens stay, and fewer than ``count + page_size``. If the
    bound must be exact, give `window` to the calls.

    `keys` and `values` are copies, [B, Hk, longest, D] and [B, Hk, longest, Dv], with zeros after each sequence. The
    `capacity` is the number of tokens in the pool: one sequence may have all pages. Threads are handled as in
    `KVCache`; in a process that is forked while another thread appends, call `clear` first.

    Examples
    --------
    A prompt of 100 tokens takes two pages. A second sequence begins with the first 64 of them and takes none:

    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 3, 8, 100, 64), dtype=np.float32)
    >>> cache = mha.PagedKVCache(num_pages=5, batch_size=3, num_kv_heads=8, head_dim=64)
    >>> cache.append(key, value, new_lengths=np.array([100, 0, 0]))
    >>> cache.fork(0, length=64)
    1
    >>> cache.lengths, cache.free_pages
    (array([100,  64,   0]), 3)
    >>> cache.page_table
    array([[ 0,  1],
           [ 0, -1],
           [-1, -1]])

    Each sequence continues by itself, and has the results of a sequence alone:

    >>> cache.append(key[:, :, :1], value[:, :, :1], new_lengths=np.array([1, 1, 0]))
    >>> cache.page_table
    array([[ 0,  1],
           [ 0,  2],
           [-1, -1]])
    >>> out = mha.scaled_dot_product_attention(query[:, :, :1], cache)
    >>> keys = np.concatenate([key[0, :, :64], key[1, :, :1]], axis=1)
    >>> values = np.concatenate([value[0, :, :64], value[1, :, :1]], axis=1)
    >>> np.array_equal(out[1], mha.scaled_dot_product_attention(query[1, :, :1], keys, values))
    True
    """

    _core: CoreCache
    _core_type = CoreCache
    _size_names = ("num_pages", "page_size", "batch_size", "num_kv_heads", "head_dim", "value_head_dim")

    @names_sizes
    def __init__(
        self,
        num_pages: int,
        page_size: int = 64,
        *,
        batch_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_head_dim: int | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        self._core = CoreCache(num_pages, page_size, batch_size, num_kv_heads, head_dim, value_head_dim, dtype)

    def fork(self, sequence: int, into: int | None = None, length: int | None = None) -> int:
        """Let an empty sequence begin with the tokens of another one. The two share the pages of these tokens.

        Parameters
        ----------
        sequence : int
            The sequence whose tokens are shared.
        into : int, optional
            The sequence that gets them, which must be empty. Default: the first empty one, without `sequence`.
        length : int, optional
            The number of tokens, from the first one on. Default: all of them.

        Returns
        -------
        into : int
            The sequence that got them.
        """
        return self._core.fork(sequence, into, length)

    def release(self, sequence: int | Tensor) -> None:
        """Forget the tokens of some sequences.

        Parameters
        ----------
        sequence : int or integer array
            One sequence, or several.
        """
        function = "PagedKVCache.release"
        self._core.release(sequence if type(sequence) is int else to_numpy(function, "sequence", sequence))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of the tokens: plain arrays, for `load_state_dict` or ``numpy.savez``.

        The arrays of `KVCache.state_dict` where no page is shared. Else each of the N pages in use is there once:
        ``keys`` [N, Hk, page_size, D] and ``values`` [N, Hk, page_size, Dv], with zeros where no token lies;
        ``lengths`` [B]; and ``page_table`` [B, most pages of a sequence], the pages of each sequence, 0 to N - 1, then
        -1. A cache of int8 gives integers, ``key_scales`` and ``value_scales`` [N, Hk, page_size].
        """
        table = self.page_table
        pages, places = np.unique(table[table >= 0], return_inverse=True)
        if len(pages) == len(places):
            return super().state_dict()
        table[table >= 0] = places
        keys, values, *scales = self._core.stored_pages()
        scales = [array[..., 0] for array in scales]
        tokens = {"keys": keys, "values": values, **dict(zip(("key_scales", "value_scales"), scales, strict=False))}
        return tokens | {"lengths": self.lengths, "page_table": table}

    @property
    def num_pages(self) -> int:
        """The number of pages in the pool."""
        return self._core.num_pages

    @property
    def page_size(self) -> int:
        """The number of tokens of a page."""
        return self._core.page_size

    @property
    def free_pages(self) -> int:
        """The number of pages that no sequence has."""
        return self._core.free_pages

    @property
    def page_table(self) -> NDArray[np.int64]:
        """The pages of each sequence, [B, most pages of one], in the order of its tokens, then -1."""
        return self._core.page_table

    @property
    def keys(self) -> NDArray[Any]:
        """A copy of all keys, [B, Hk, longest, D], with zeros after each sequence."""
        return super().keys

    @property
    def values(self) -> NDArray[Any]:
        """A copy of all values, [B, Hk, longest, Dv], with zeros after each sequence."""
        return super().values

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, used or not."""
        return self.capacity * self._bytes_of_token()

    def _check(self) -> bool:
        """Check for tests that the count of each page matches the tables, and that all other pages are free."""
        return self._core.check()
