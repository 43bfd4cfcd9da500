"""Random histories of a PagedKVCache with copies among the steps, compared with dense sequences and counted pages.

Run a long one with ``python tests/python/support/paged_history.py --steps 20000 --seed 0``.
"""

from __future__ import annotations

import argparse
import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
from scattered_pages import grow, poisoned, scatter
from tolerance import assert_same_bits

from mha_native import KVCache, PagedKVCache, scaled_dot_product_attention

B, HK, D, DV = 4, 2, 3, 5
Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = ("float32", "float32", "float32", "int8", "float64", "float16", "bfloat16")


class Model:
    """Sequences as dense arrays of tokens, each with the numbers of the pages that its tokens lie in."""

    def __init__(self, size: int, dtype: Any) -> None:
        self.size, self.dtype, self.num_made = size, dtype, 0
        self.keys, self.values = ([np.zeros((HK, 0, width), dtype) for _ in range(B)] for width in (D, DV))
        self.pages: list[list[int]] = [[] for _ in range(B)]

    def lengths(self) -> Array:
        return np.array([key.shape[1] for key in self.keys])

    def num_used(self) -> int:
        return len({page for pages in self.pages for page in pages})

    def appended(self, counts: Array) -> list[list[int]]:
        """The pages after an append: of all that write to a page that they share, the last one keeps it if no other
        sequence has it."""
        pages = [list(each) for each in self.pages]
        made = self.num_made
        writes = {b: int(length) // self.size for b, length in enumerate(self.lengths()) if counts[b]}
        users = {b: sum(pages[b][i] in each for each in pages) for b, i in writes.items() if i < len(pages[b])}
        last = {pages[b][writes[b]]: b for b in users}
        for b, i in writes.items():
            if b in users and users[b] > 1:
                page = pages[b][i]
                writers = sum(other in users and self.pages[other][writes[other]] == page for other in writes)
                if writers < users[b] or last[page] != b:
                    made, pages[b][i] = made + 1, made
            while len(pages[b]) * self.size < self.lengths()[b] + counts[b]:
                made, pages[b] = made + 1, [*pages[b], made]
        return pages

    def append(self, key: Array, value: Array, counts: Array) -> None:
        self.pages = self.appended(counts)
        self.num_made = 1 + max((page for pages in self.pages for page in pages), default=-1)
        for b, count in enumerate(counts):
            self.keys[b] = np.concatenate([self.keys[b], key[b, :, :count]], axis=1)
            self.values[b] = np.concatenate([self.values[b], value[b, :, :count]], axis=1)

    def keep(self, b: int, first: int, last: int) -> None:
        """`first` is at the beginning of a page."""
        self.keys[b], self.values[b] = self.keys[b][:, first:last], self.values[b][:, first:last]
        self.pages[b] = self.pages[b][first // self.size : -(-last // self.size)]

    def become(self, index: list[int], lengths: list[int | None]) -> None:
        """Sequence b gets the first lengths[b] tokens of sequence index[b]."""
        ends = [self.keys[i].shape[1] if length is None else length for i, length in zip(index, lengths, strict=True)]
        self.keys, self.values, self.pages = (
            [self.keys[i] for i in index],
            [self.values[i] for i in index],
            [list(self.pages[i]) for i in index],
        )
        for b, end in enumerate(ends):
            self.keep(b, 0, end)

    def unshare(self) -> None:
        """Each sequence gets pages of its own."""
        counts = [len(pages) for pages in self.pages]
        ends = np.cumsum(counts).tolist()
        self.pages = [list(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]
        self.num_made = ends[-1]

    def fork(self, source: int, into: int, length: int | None) -> None:
        index: list[int] = list(range(B))
        lengths: list[int | None] = [None] * B
        index[into], lengths[into] = source, length
        self.become(index, lengths)

    def dense(self, dtype: Any) -> KVCache:
        """A dense cache with the same tokens."""
        lengths = self.lengths()
        cache = KVCache(B, HK, int(lengths.max()) + 1, D, DV, dtype)
        for b, length in enumerate(lengths):
            shapes = ((B, HK, int(length), width) for width in (D, DV))
            key, value = (np.zeros(shape, self.dtype) for shape in shapes)
            key[b], value[b] = self.keys[b], self.values[b]
            cache.append(key, value, new_lengths=np.where(np.arange(B) == b, length, 0))
        return cache


def renumbered(tables: list[list[int]]) -> list[list[int]]:
    """The same tables with pages numbered in the order in which they occur."""
    numbers: dict[int, int] = {}
    return [[numbers.setdefault(page, len(numbers)) for page in table] for table in tables]


def check(cache: PagedKVCache, model: Model, rng: np.random.Generator) -> None:
    assert cache.lengths.tolist() == model.lengths().tolist()
    assert cache._check()
    assert cache.free_pages == cache.num_pages - model.num_used()
    table = [[page for page in row if page >= 0] for row in cache.page_table.tolist()]
    assert renumbered(table) == renumbered(model.pages)
    dense = model.dense(cache.dtype)
    for name, ours, theirs in (("keys", cache.keys, dense.keys), ("values", cache.values, dense.values)):
        for b, length in enumerate(cache.lengths):
            assert_same_bits(ours[b, :, :length], theirs[b, :, :length], label=f"{name} of sequence {b}")
            assert not ours[b, :, length:].astype(np.float64).any()
    query = rng.standard_normal((B, 2 * HK, int(rng.integers(1, 4)), D)).astype(model.dtype)
    causal = bool(rng.random() < 0.7)
    outs = [scaled_dot_product_attention(query, each, is_causal=causal) for each in (cache, dense)]
    assert_same_bits(*outs, label="attention")


class History:
    """A cache and its model. `step` changes both and compares them; `seen` counts the kinds of steps."""

    def __init__(self, seed: int, page_size: int) -> None:
        self.rng = rng = np.random.default_rng([seed, page_size])
        self.dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        self.cache = poisoned(self.fresh(int(rng.integers(4, 14)), page_size))
        tokens_dtype = np.dtype(np.float32) if self.dtype == "int8" else self.cache.dtype
        self.model = Model(page_size, tokens_dtype)
        self.seen: dict[str, int] = {}
        self.num_shared_copies = 0

    def fresh(self, num_pages: int, page_size: int) -> PagedKVCache:
        return PagedKVCache(
            num_pages, page_size, batch_size=B, num_kv_heads=HK, head_dim=D, value_head_dim=DV, dtype=self.dtype
        )

    def step(self) -> None:
        kept = [self.copied, self.state_into_fresh, self.state_into_used]  # what is shared stays shared
        unshared = [self.through_dense, self.earlier_layout]
        changes = [self.rollback, self.reorder, self.fork, self.release, self.keep_last]
        weighted = {2: [*changes, *kept], 4: [self.fork, self.reorder], 8: [self.append], 1: unshared}
        every = [step for weight, steps in weighted.items() for step in steps * weight]
        step = every[int(self.rng.integers(len(every)))]
        self.seen[step.__name__] = self.seen.get(step.__name__, 0) + 1
        step()
        if step in kept:
            self.num_shared_copies += sum(map(len, self.model.pages)) > self.model.num_used()
        self.check(self.cache)

    def check(self, cache: PagedKVCache) -> None:
        check(cache, self.model, self.rng)

    def tokens(self, length: int) -> tuple[Array, Array]:
        shapes = ((B, HK, length, width) for width in (D, DV))
        key, value = (self.rng.standard_normal(shape).astype(self.model.dtype) for shape in shapes)
        return key, value

    def append(self) -> None:
        rng, size, cache = self.rng, self.model.size, self.cache
        key, value = self.tokens(int(rng.choice([0, 1, 5, size, 2 * size + 3])))
        counts = rng.integers(key.shape[2] + 1, size=B) * (rng.random(B) < 0.7)
        pages = self.model.appended(counts)
        if len({page for each in pages for page in each}) <= cache.num_pages:
            cache.append(key, value, new_lengths=counts)
            self.model.append(key, value, counts)
        else:
            before = cache.page_table.tolist()
            with pytest.raises(ValueError, match=r"of \d+ tokens: \d+ needed, \d+ free|has a capacity of"):
                cache.append(key, value, new_lengths=counts)
            assert cache.page_table.tolist() == before

    def rollback(self) -> None:
        lengths = self.model.lengths()
        counts = self.rng.integers(lengths + 1) if self.rng.random() < 0.5 else np.minimum(lengths, 1)
        self.cache.rollback(counts)
        for b, count in enumerate(counts):
            self.model.keep(b, 0, int(lengths[b] - count))

    def reorder(self) -> None:
        index = self.rng.permutation(B) if self.rng.random() < 0.5 else self.rng.integers(B, size=B)
        self.cache.reorder(index)
        self.model.become(index.tolist(), [None] * B)

    def fork(self) -> None:
        lengths = self.model.lengths()
        source = int(self.rng.integers(B))
        empty = [b for b in range(B) if lengths[b] == 0 and b != source]
        if not empty:
            with pytest.raises(ValueError, match=r"into must be given: every (other )?sequence has tokens"):
                self.cache.fork(source)
            return
        length = int(self.rng.integers(lengths[source] + 1)) if self.rng.random() < 0.7 else None
        into = None if self.rng.random() < 0.5 else int(self.rng.choice(empty))
        got = self.cache.fork(source, into, length)
        assert got == (empty[0] if into is None else into)
        self.model.fork(source, got, length)

    def release(self) -> None:
        gone = self.rng.permutation(B)[: int(self.rng.integers(1, B + 1))]
        if len(gone) == B:
            self.cache.clear()
        else:
            self.cache.release(gone if len(gone) > 1 else int(gone[0]))
        for b in gone:
            self.model.keep(b, 0, 0)

    def keep_last(self) -> None:
        count = int(self.rng.integers(4 * self.model.size))
        self.cache.keep_last(count)
        for b, length in enumerate(self.model.lengths().tolist()):
            self.model.keep(b, max(length - count, 0) // self.model.size * self.model.size, length)

    def copied(self) -> None:
        """Go on with a copy, or with the original after the copy has changed."""
        kind = int(self.rng.integers(8))
        if kind < 2:
            other = (copy.copy, copy.deepcopy)[kind](self.cache)
        else:
            other = pickle.loads(pickle.dumps(self.cache, protocol=kind - 2))
        assert type(other) is PagedKVCache
        assert repr(other) == repr(self.cache)
        self.check(other)
        if self.rng.random() < 0.5:
            self.cache = other
        else:
            other.clear()
            scatter(other, self.rng)

    def state(self) -> dict[str, Array]:
        state = self.cache.state_dict()
        if self.dtype == "bfloat16" or self.rng.random() < 0.5:  # NumPy saves bfloat16 as bytes
            return state
        file = io.BytesIO()
        np.savez(file, **state)
        file.seek(0)
        return dict(np.load(file))

    def state_into_fresh(self) -> None:
        """A pool with as many pages as are in use is large enough, and one with a page less is too small."""
        used, state = self.model.num_used(), self.state()
        if used:
            small = self.fresh(used - 1, self.model.size)
            with pytest.raises(ValueError, match=r"KVCache.load_state_dict: the cache has .*\d+"):
                small.load_state_dict(state)
            assert small.free_pages == used - 1
        other = self.fresh(used + int(self.rng.integers(3)) * 4, self.model.size)
        other.load_state_dict(state)
        self.cache = other

    def state_into_used(self) -> None:
        state = self.state()
        other = self.cache
        if self.rng.random() < 0.7:
            other = scatter(self.fresh(max(4, self.cache.num_pages), self.model.size), self.rng)
            if self.rng.random() < 0.5:
                grow(other, 0, 3, other.free_pages * self.model.size)
                other.reorder(np.zeros(B, int))
        other.load_state_dict(state)
        self.cache = other

    def through_dense(self) -> None:
        """Into a dense cache, or into pages of another size, and back: sequences have pages of their own then."""
        state, lengths = self.state(), self.model.lengths()
        if self.rng.random() < 0.5:
            other: Any = KVCache(B, HK, int(lengths.max()), D, DV, self.dtype)
        else:
            size = 64 if self.model.size != 64 else 128
            other = self.fresh(int((-(-lengths // size)).sum()), size)
        other.load_state_dict(state)
        self.load_unshared(other.state_dict())

    def earlier_layout(self) -> None:
        """A state without pages, as every cache gave it before pages were saved."""
        self.load_unshared(self.model.dense(self.dtype).state_dict())

    def load_unshared(self, state: dict[str, Array]) -> None:
        needed = sum(map(len, self.model.pages))
        if needed > self.cache.num_pages:
            with pytest.raises(ValueError, match=r"KVCache.load_state_dict: .*needed"):
                self.cache.load_state_dict(state)
        else:
            self.cache.load_state_dict(state)
            self.model.unshare()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first history; each has 100 steps")
    arguments = parser.parse_args()
    seen: dict[str, int] = {}
    for k in range(-(-arguments.steps // 100)):
        history = History(arguments.seed + k, (64, 128, 192)[k % 3])
        try:
            for _ in range(100):
                history.step()
        except BaseException:
            print(f"seed {arguments.seed + k}, steps so far: {history.seen}")
            raise
        for name, count in (history.seen | {"copies with shared pages": history.num_shared_copies}).items():
            seen[name] = seen.get(name, 0) + count
    print(seen)


if __name__ == "__main__":
    main()
