"""A cache in pages, which sequences share: for many sequences of different lengths, and those that begin alike."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .arrays import Tensor, to_numpy
from .dtypes import checked_dtype, unpacked_state
from .kv_cache import KVCache


class PagedKVCache(KVCache):
    """A `KVCache` whose tokens lie in pages of one pool, which the sequences share.

    It goes wherever a `KVCache` goes, and results have the same bits. Memory is taken by the page, as a sequence grows,
    so that short sequences do not pay for the capacity of long ones; sequences that begin alike can have the same
    pages.

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
    dtype : float32, float64, float16 or bfloat16, default "float32"
        Of keys and values. bfloat16 takes the package ml_dtypes.

    See Also
    --------
    MultiHeadAttention.new_cache : With `num_pages`, a cache of the sizes of a layer.

    Notes
    -----
    What a `KVCache` copies, sequences share here: `reorder` and `fork` move no token. A page that several sequences
    have is copied before one of them appends to it.

    A call takes the pages for all its tokens before it computes anything. If too few are free, that is a ValueError,
    and nothing is changed; a call that fails later, or is cancelled, gives its pages back.

    `rollback`, `release` and `clear` give back the pages that no token lies in any more. `keep_last` gives back whole
    pages from the front and moves nothing: at least `count` tokens stay, and fewer than ``count + page_size``. Where
    the bound must be exact, give `window` to the calls.

    `keys` and `values` are copies, [B, Hk, longest, D] and [B, Hk, longest, Dv], with zeros behind each sequence. The
    `capacity` is that of the pool: one sequence may have all pages. The rules about threads are those of `KVCache`; in
    a process that is forked while another thread appends, `clear` comes first.

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

    Each sequence goes on by itself, and is attended to as if it were alone:

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

    _core: _core.PagedKVCache

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
        self._core = _core.PagedKVCache(num_pages, page_size, batch_size, num_kv_heads, head_dim, value_head_dim, dtype)

    def fork(self, sequence: int, into: int | None = None, length: int | None = None) -> int:
        """Let one sequence begin as another one does. The two share the pages of these tokens.

        Parameters
        ----------
        sequence : int
            The one whose tokens are shared.
        into : int, optional
            The one that gets them, which must have no tokens. Default: the first one that has none.
        length : int, optional
            How many tokens, from the first one on. Default: all of them.

        Returns
        -------
        into : int
            The sequence that has got them.
        """
        return self._core.fork(sequence, into, length)

    def release(self, sequence: int | Tensor) -> None:
        """Forget the tokens of some sequences.

        Parameters
        ----------
        sequence : int or integer array
            Which one, or which ones.
        """
        function = "PagedKVCache.release"
        self._core.release(sequence if type(sequence) is int else to_numpy(function, "sequence", sequence))

    @property
    def num_pages(self) -> int:
        """Pages of all sequences together."""
        return self._core.num_pages

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._core.page_size

    @property
    def free_pages(self) -> int:
        """Pages that no sequence has."""
        return self._core.free_pages

    @property
    def page_table(self) -> NDArray[np.int64]:
        """The pages of each sequence, [B, most pages of one], in the order of its tokens; -1 behind them."""
        return self._core.page_table

    @property
    def keys(self) -> NDArray[Any]:
        """A copy of all keys, [B, Hk, longest, D], with zeros behind each sequence."""
        return super().keys

    @property
    def values(self) -> NDArray[Any]:
        """A copy of all values, [B, Hk, longest, Dv], with zeros behind each sequence."""
        return super().values

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, used or not."""
        return self.capacity * self._bytes_of_token()

    def _sizes(self) -> dict[str, int]:
        names = ("num_pages", "page_size", "batch_size", "num_kv_heads", "head_dim", "value_head_dim")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        pages, page_size, batch, heads, width, value_width, name = saved["sizes"]
        dtype = name if name == "int8" else checked_dtype("PagedKVCache", name)
        self._core = _core.PagedKVCache(pages, page_size, batch, heads, width, value_width, dtype)
        self.load_state_dict(unpacked_state(saved["state"]))

    def _check(self) -> bool:
        """Whether every page is counted as often as tables name it, and all others are free: for tests."""
        return self._core.check()
