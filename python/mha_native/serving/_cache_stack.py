"""The caches of a model's layers: slots of tokens, in pages that slots share."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..models.architecture.model import Model
from ..models.text.batching import packed
from ._scheduler import Run


class CacheStack:
    """Caches of all layers, whose sequences are the slots. All layers have the same slots and tokens.

    Parameters
    ----------
    model : Model
    num_pages, page_size, num_slots : int
        Of each layer.
    dtype : dtype, optional
        Default: that of the model.
    num_threads : int, optional
    """

    def __init__(
        self,
        model: Model,
        num_pages: int,
        page_size: int,
        num_slots: int,
        dtype: DTypeLike | None,
        num_threads: int | None,
    ) -> None:
        self._model, self._num_threads = model, num_threads
        self.num_pages, self.page_size, self.num_slots = num_pages, page_size, num_slots
        self._caches = model.paged_caches(num_slots, num_pages, page_size, dtype)
        self._is_level = True

    @property
    def free_pages(self) -> int:
        """How many pages no slot uses."""
        return self._caches[0].free_pages

    def lengths(self) -> list[int]:
        """How many tokens each slot holds."""
        if not self._is_level:
            self._level()
        lengths: list[int] = self._caches[0].lengths.tolist()
        return lengths

    def count_pages(self, slots: list[int]) -> int:
        """How many pages slots use together."""
        pages = self._caches[0].page_table[slots]
        return len(np.unique(pages[pages >= 0]))

    def fork(self, source: int, into: int, length: int) -> None:
        """Let a slot without tokens share the pages of the first `length` tokens of another one."""
        self._is_level = False
        for cache in self._caches:
            cache.fork(source, into, length)
        self._is_level = True

    def shorten(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of a slot, if it has more, and give back the pages behind them."""
        surplus = self.lengths()[slot] - length
        if surplus <= 0:
            return
        counts = np.zeros(self.num_slots, np.int64)
        counts[slot] = surplus
        self._is_level = False
        for cache in self._caches:
            cache.rollback(counts)
        self._is_level = True

    def read(self, runs: list[Run]) -> NDArray[Any]:
        """Append the tokens of all runs in one call of the model; the rows [n, E] of the last token of each."""
        tokens, cu_seqlens = packed([run.sequence.tokens[run.first : run.end] for run in runs])
        self._is_level = False
        rows = self._model.read(
            tokens,
            np.concatenate([np.arange(run.first, run.end) for run in runs]),
            cu_seqlens,
            self._caches,
            np.array([run.slot for run in runs], np.int64),
            self._num_threads,
        )
        self._is_level = True
        last: NDArray[Any] = rows[cu_seqlens[1:] - 1]
        return last

    def logits(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Logits [n, V] of rows [n, E]."""
        return self._model.logits(rows, self._num_threads)

    def close(self) -> None:
        """Free the memory of all pages."""
        for cache in self._caches:
            cache.clear()

    def _level(self) -> None:
        """Let all layers have the same tokens again, when an exception has come between two of them: none of a slot of
        which some layers have more than others."""
        lengths = np.stack([cache.lengths for cache in self._caches])
        counts = np.where((lengths == lengths[0]).all(0), 0, lengths)
        for cache, count in zip(self._caches, counts, strict=True):
            cache.rollback(count)
        self._is_level = True
