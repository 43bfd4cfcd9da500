"""A pool of pages without a model: it holds tokens themselves, and finds what a scheduler does wrong."""

from __future__ import annotations

from mha_native.serving._scheduler import Run


class PagePool:
    """Slots that share pages of tokens, as `PagedKVCache` shares pages of keys and values."""

    def __init__(self, num_pages: int, page_size: int, num_slots: int) -> None:
        self.num_pages, self.page_size, self.num_slots = num_pages, page_size, num_slots
        self.slots: list[list[list[int]]] = [[] for _ in range(num_slots)]  # pages, which are lists of tokens

    @property
    def free_pages(self) -> int:
        return self.num_pages - len({id(page) for slot in self.slots for page in slot})

    def lengths(self) -> list[int]:
        return [sum(map(len, slot)) for slot in self.slots]

    def count_pages(self, slots: list[int]) -> int:
        return len({id(page) for slot in slots for page in self.slots[slot]})

    def fork(self, source: int, into: int, length: int) -> None:
        assert not self.slots[into], "a fork into a slot that has tokens"
        assert 0 < length <= self.lengths()[source]
        assert length % self.page_size == 0, "part of a page is shared, which has to be copied later"
        self.slots[into] = self.slots[source][: length // self.page_size]

    def shorten(self, slot: int, length: int) -> None:
        assert length >= 0
        if length >= self.lengths()[slot]:
            return
        kept, rest = divmod(length, self.page_size)
        parts = [self.slots[slot][kept][:rest]] if rest else []
        self.slots[slot] = self.slots[slot][:kept] + parts

    def read(self, runs: list[Run]) -> None:
        """Put the tokens of all runs into their slots, or AssertionError."""
        assert len({run.slot for run in runs}) == len(runs)
        for run in runs:
            slot = self.slots[run.slot]
            assert [token for page in slot for token in page] == run.sequence.tokens[: run.first]
            for token in run.sequence.tokens[run.first : run.end]:
                if not slot or len(slot[-1]) == self.page_size:
                    assert self.free_pages > 0, "the pool has no page for a token of the step"
                    slot.append([])
                assert sum(any(page is slot[-1] for page in other) for other in self.slots) == 1, "the page is shared"
                slot[-1].append(token)
