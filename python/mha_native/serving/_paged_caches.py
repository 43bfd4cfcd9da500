"""The caches of a model's layers: slots of tokens, in pages that slots share."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..models.generation.engine import CachedModel, Caches, last_rows
from ..models.text.batching import packed
from ._scheduler import Run


class PagedCaches(Caches):
    """Caches of all layers, whose sequences are the slots. All layers have the same slots and tokens.

    The numbers of pages and of slots are for each layer. The default of `dtype` is the dtype of the model.
    """

    def __init__(
        self, model: CachedModel, num_pages: int, page_size: int, num_slots: int, dtype: DTypeLike | None
    ) -> None:
        super().__init__(model, num_slots, 1, None, dtype=dtype, page_size=page_size, num_pages=num_pages)
        self.num_pages, self.page_size, self.num_slots = num_pages, page_size, num_slots
        self._is_level = True

    @property
    def free_pages(self) -> int:
        """Number of pages that no slot uses."""
        free: int = self.caches[0].free_pages
        return free

    def lengths(self) -> list[int]:
        """Return the number of tokens in each slot."""
        if not self._is_level:
            self._level()
        lengths: list[int] = self.caches[0].lengths.tolist()
        return lengths

    def count_pages(self, slots: list[int]) -> int:
        """Return the number of pages that slots use together."""
        pages = self.caches[0].page_table[slots]
        return len(np.unique(pages[pages >= 0]))

    def fork(self, source: int, into: int, length: int) -> None:
        """Let a slot without tokens share the pages of the first `length` tokens of another one."""
        self._is_level = False
        for cache in self.caches:
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
        for cache in self.caches:
            cache.rollback(counts)
        self._is_level = True

    def read(self, runs: list[Run]) -> NDArray[Any]:
        """Append the tokens of all runs in one call of the model; return the rows [n, E] of the last token of each.

        The observers of sequences get the rows of all their tokens.
        """
        tokens, cu_seqlens = packed([run.sequence.tokens[run.first : run.end] for run in runs])
        begins, slots = np.array([(run.first, run.slot) for run in runs], np.int64).T
        self._is_level = False
        rows = self.append(tokens, begins, np.diff(cu_seqlens), slots)
        self._is_level = True
        ends = cu_seqlens[1:]
        for run, first, end in zip(runs, cu_seqlens[:-1], ends, strict=True):
            sequence = run.sequence
            if sequence.observer is not None and run.end > sequence.num_observed:
                sequence.observer(run.first, rows[first:end], self.logits)
                sequence.num_observed = run.end
        return last_rows(rows, ends)

    def close(self) -> None:
        """Free the memory of all pages."""
        for cache in self.caches:
            cache.clear()

    def _level(self) -> None:
        """Give all layers the same tokens again after an exception between two of them: drop the slots of which some
        layers have more tokens than others."""
        lengths = np.stack([cache.lengths for cache in self.caches])
        counts = np.where((lengths == lengths[0]).all(0), 0, lengths)
        for cache, count in zip(self.caches, counts, strict=True):
            cache.rollback(count)
        self._is_level = True
