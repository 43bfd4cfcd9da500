"""PagedKVCache: the tokens that a model of lists has, the pages that they take, and no page lost."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from scattered_pages import grow, over_pages, poisoned, scatter
from tolerance import assert_same_bits

import mha_native
from mha_native import KVCache, MultiHeadAttention, PagedKVCache, scaled_dot_product_attention

B, HK, D, DV = 4, 2, 3, 5
F32 = np.float32
Tokens = tuple[np.ndarray, np.ndarray]


def _cache(num_pages: int = 12, page_size: int = 64, dtype: Any = F32, batch: int = B) -> PagedKVCache:
    return PagedKVCache(
        num_pages, page_size, batch_size=batch, num_kv_heads=HK, head_dim=D, value_head_dim=DV, dtype=dtype
    )


def _tokens(rng: np.random.Generator, length: int, dtype: Any = F32, batch: int = B) -> Tokens:
    shapes = ((batch, HK, length, D), (batch, HK, length, DV))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)  # type: ignore[return-value]


class Model:
    """Sequences as dense arrays, each with the pages that its tokens lie in."""

    def __init__(self, cache: PagedKVCache) -> None:
        self.size = cache.page_size
        self.keys = [np.zeros((HK, 0, D), cache.dtype) for _ in range(cache.batch_size)]
        self.values = [np.zeros((HK, 0, DV), cache.dtype) for _ in range(cache.batch_size)]

    def lengths(self) -> list[int]:
        return [key.shape[1] for key in self.keys]

    def has_room(self, cache: PagedKVCache, counts: np.ndarray) -> bool:
        """Whether there are pages for the new tokens, and for copies of those that others have, too."""
        needed, table, shared = 0, cache.page_table, {}
        for length, count, pages in zip(self.lengths(), counts, table, strict=True):
            if count == 0:
                continue
            needed += -(-(length + count) // self.size) - -(-length // self.size)
            if length % self.size:
                shared.setdefault(pages[length // self.size], []).append(1)
        for page, writers in shared.items():
            needed += min(len(writers), int((table == page).sum()) - 1)
        return needed <= cache.free_pages

    def append(self, key: np.ndarray, value: np.ndarray, counts: np.ndarray) -> None:
        for b, count in enumerate(counts):
            self.keys[b] = np.concatenate([self.keys[b], key[b, :, :count]], axis=1)
            self.values[b] = np.concatenate([self.values[b], value[b, :, :count]], axis=1)

    def cut(self, b: int, first: int, last: int) -> None:
        self.keys[b], self.values[b] = self.keys[b][:, first:last], self.values[b][:, first:last]

    def become(self, b: int, source: int, length: int | None = None) -> None:
        self.keys[b], self.values[b] = self.keys[source][:, :length], self.values[source][:, :length]

    def check(self, cache: PagedKVCache) -> None:
        assert cache.lengths.tolist() == self.lengths()
        assert cache._check()
        table = cache.page_table
        assert (table >= 0).sum(axis=1).tolist() == [-(-length // self.size) for length in self.lengths()]
        assert cache.free_pages == cache.num_pages - len(set(table[table >= 0].tolist()))
        keys, values = cache.keys, cache.values
        for b, length in enumerate(self.lengths()):
            assert_same_bits(keys[b, :, :length], self.keys[b], label=f"keys of sequence {b}")
            assert_same_bits(values[b, :, :length], self.values[b], label=f"values of sequence {b}")
            assert not keys[b, :, length:].any()
            assert not values[b, :, length:].any()


def _state(cache: PagedKVCache) -> tuple[Any, ...]:
    return cache.lengths.tolist(), cache.page_table.tolist(), cache.free_pages, cache.keys.tobytes()


@pytest.mark.parametrize("page_size", [64, 128, 192])
@pytest.mark.parametrize("seed", range(8))
def test_any_history(seed: int, page_size: int) -> None:
    rng = np.random.default_rng(seed)
    cache = poisoned(_cache(int(rng.integers(4, 14)), page_size))
    model = Model(cache)
    for _ in range(60):
        lengths, before = np.array(model.lengths()), _state(cache)
        match rng.integers(9):
            case 0 | 1 | 2:
                tokens = _tokens(rng, int(rng.choice([0, 1, 5, page_size, 2 * page_size + 3])))
                counts = rng.integers(tokens[0].shape[2] + 1, size=B) * (rng.random(B) < 0.7)
                if model.has_room(cache, counts):
                    cache.append(*tokens, new_lengths=counts)
                    model.append(*tokens, counts)
                else:
                    with pytest.raises(ValueError, match=r"of \d+ tokens: \d+ needed, \d+ free|has a capacity of"):
                        cache.append(*tokens, new_lengths=counts)
                    assert _state(cache) == before
            case 3:
                counts = rng.integers(lengths + 1)
                cache.rollback(counts)
                for b, count in enumerate(counts):
                    model.cut(b, 0, lengths[b] - count)
            case 4:
                index = rng.permutation(B) if rng.random() < 0.5 else rng.integers(B, size=B)
                cache.reorder(index)
                keys, values = list(model.keys), list(model.values)
                model.keys, model.values = [keys[i] for i in index], [values[i] for i in index]
            case 5 | 6 if not lengths.all():
                source = int(rng.integers(B))
                into = int(np.flatnonzero(lengths == 0)[0])
                if into == source:
                    continue
                length = int(rng.integers(lengths[source] + 1)) if rng.random() < 0.7 else None
                assert cache.fork(source, None if rng.random() < 0.5 else into, length) == into
                model.become(into, source, length)
            case 7:
                gone = rng.permutation(B)[: int(rng.integers(1, 3))]
                cache.release(gone if rng.random() < 0.5 else int(gone[0]))
                for b in gone if cache.lengths[gone[-1]] == 0 else gone[:1]:
                    model.cut(b, 0, 0)
                model.keys = [key[:, :n] for key, n in zip(model.keys, cache.lengths, strict=True)]
                model.values = [value[:, :n] for value, n in zip(model.values, cache.lengths, strict=True)]
                assert cache.lengths[gone[0]] == 0
            case 8:
                count = int(rng.integers(4 * page_size))
                cache.keep_last(count)
                for b, length in enumerate(lengths):
                    drop = max(length - count, 0) // page_size * page_size
                    model.cut(b, drop, length)
                    kept = length - drop
                    assert kept == length if length <= count else count <= kept < count + page_size
        model.check(cache)
    for other in (pickle.loads(pickle.dumps(cache)), copy.deepcopy(cache)):
        assert type(other) is PagedKVCache
        if other.lengths.any():
            assert_same_bits(other.keys, cache.keys)
    cache.clear()
    assert cache.free_pages == cache.num_pages
    assert cache._check()


def test_pages_are_shared_until_they_are_written_to() -> None:
    rng = np.random.default_rng(0)
    cache = poisoned(_cache())
    model = Model(cache)
    prompt = _tokens(rng, 100)
    only_first = np.array([100, 0, 0, 0])
    cache.append(*prompt, new_lengths=only_first)
    model.append(*prompt, only_first)
    for length in (100, 64, 70):
        into = cache.fork(0, length=length)
        model.become(into, 0, length)
    assert cache.free_pages == 10
    assert (cache.page_table[:, 0] == 0).all()
    tokens = _tokens(rng, 1)
    one_each = np.ones(B, int)
    cache.append(*tokens, one_each)
    model.append(*tokens, one_each)
    model.check(cache)
    # Three had the second page: the last of them writes to it as it is, the others to copies.
    assert len(set(cache.page_table[:, 1].tolist())) == 4
    assert cache.free_pages == 12 - 5


def test_a_sequence_that_grows_alone_has_neighbouring_pages() -> None:
    cache = _cache()
    for _ in range(5):
        grow(cache, 1, 1, 50)
    assert cache.page_table[1].tolist() == [0, 1, 2, 3]
    grow(cache, 0, 1, 1)
    grow(cache, 1, 1, 64)
    assert cache.page_table[1].tolist() == [0, 1, 2, 3, 5]
    cache.rollback(np.array([1, 100, 0, 0]))
    assert cache.free_pages == 12 - 4


@pytest.mark.parametrize("pages", range(2, 7))
@pytest.mark.parametrize("call", ["append", "layer", "stack"])
def test_a_pool_that_is_too_small_changes_nothing(call: str, pages: int) -> None:
    """A new page each for two sequences, and a copy of a shared one: all of them, or none, in no cache of a stack."""
    stack = mha_native.CausalDecoder(3, 16, 2, 32, seed=1)
    caches = [layer.new_cache(3, 0, num_pages=pages if i == 2 else 9) for i, layer in enumerate(stack.layers)]
    for cache in caches:
        grow(cache, 0, 1, 30)
        grow(cache, 1, 2, 64)
        assert cache.fork(1, length=20) == 2
    before = [_state(cache) for cache in caches]
    x = np.random.default_rng(1).standard_normal((3, 40, 16)).astype(F32)
    tokens = np.ones((3, 2, 40, 8), F32)
    calls = {
        "append": lambda: caches[2].append(tokens, tokens),
        "layer": lambda: stack.layers[2].self_attn(x, cache=caches[2]),
        "stack": lambda: stack(x, caches=caches),
    }
    if pages < 5:
        with pytest.raises(ValueError, match=f"too few free pages of 64 tokens: 3 needed, {pages - 2} free"):
            calls[call]()
        assert [_state(cache) for cache in caches] == before
    else:
        calls[call]()
        assert caches[2].free_pages == pages - 5
        assert caches[2].lengths.tolist() == [70, 104, 60]
    assert all(cache._check() for cache in caches)


def test_a_call_that_is_refused_changes_nothing() -> None:
    layer = MultiHeadAttention(64, 4, seed=0)
    cache = layer.new_cache(1, 0, num_pages=100)
    x = np.random.default_rng(2).standard_normal((1, 3000, 64)).astype(F32)
    layer(x[:, :70], cache=cache)
    before = _state(cache)
    with pytest.raises(TypeError):
        layer(x, cache=cache, attn_mask=np.zeros((3000, 3070), np.int8))
    with pytest.raises(ValueError, match="out must"):
        layer(x, cache=cache, out=np.empty((1, 2, 64), F32))
    assert _state(cache) == before
    assert cache._check()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"page_size": 63}, "PagedKVCache: page_size must be a multiple of 64; got 63"),
        ({"page_size": 0}, "PagedKVCache: page_size must be a multiple of 64; got 0"),
        ({"num_pages": -1}, "PagedKVCache: num_pages must be at least 0; got -1"),
        ({"num_pages": 2**31}, "PagedKVCache: num_pages must be at most 2147483646"),
        ({"head_dim": 0}, "PagedKVCache: head_dim must be at least 1; got 0"),
        ({"value_head_dim": 0}, "PagedKVCache: value_head_dim"),
    ],
)
def test_sizes_that_no_cache_has(arguments: dict[str, Any], sentence: str) -> None:
    sizes = {"num_pages": 3, "batch_size": 2, "num_kv_heads": 1, "head_dim": 4}
    with pytest.raises(ValueError, match=re.escape(sentence)):
        PagedKVCache(**(sizes | arguments))


def test_memory_that_there_is_not() -> None:
    with pytest.raises(MemoryError):
        PagedKVCache(2**31 - 2, 2**20, batch_size=2**20, num_kv_heads=2**10, head_dim=2**10)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda c: c.fork(4), "PagedKVCache.fork: sequence must name one of 4 sequences; got 4"),
        (lambda c: c.fork(0, -1), "PagedKVCache.fork: into must name one of 4 sequences; got -1"),
        (lambda c: c.fork(0, 0), "PagedKVCache.fork: into must be another sequence than 0"),
        (lambda c: c.fork(0, 1), "PagedKVCache.fork: into must have no tokens; sequence 1 has 64"),
        (lambda c: c.fork(0, 2, 31), "PagedKVCache.fork: length must be from 0 to what the sequence has: sequence 0"),
        (lambda c: c.fork(0, 2, -1), "PagedKVCache.fork: length must be at least 0; got -1"),
        (lambda c: c.release(4), "PagedKVCache.release: sequence must name one of 4 sequences; got 4"),
        (lambda c: c.release(np.array([0, 7])), "PagedKVCache.release: sequence must name one of 4 sequences; got 7"),
        (lambda c: c.reorder(np.array([0, 1, 2, 4])), "KVCache.reorder: index must name sequences"),
        (lambda c: c.rollback(31), "KVCache.rollback: count"),
        (lambda c: c.append(*(np.ones((B, HK, 13 * 64, n), F32) for n in (D, DV))), "KVCache.append: the cache has"),
        (lambda c: c.append(*(np.ones((B, HK, 300, n), F32) for n in (D, DV))), "too few free pages of 64 tokens"),
    ],
)
def test_misuse_changes_nothing(call: Any, sentence: str) -> None:
    cache = _cache()
    grow(cache, 0, 1, 30)
    grow(cache, 1, 2, 64)
    before = _state(cache)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call(cache)
    assert _state(cache) == before
    assert cache._check()


def test_every_sequence_has_tokens() -> None:
    cache = _cache(batch=1)
    grow(cache, 0, 1, 3)
    with pytest.raises(ValueError, match="into must be given: every sequence has tokens"):
        cache.fork(0)


def test_state_dicts_go_between_dense_and_paged() -> None:
    rng = np.random.default_rng(3)
    paged, dense = scatter(_cache(), rng), KVCache(B, HK, 200, D, DV)
    tokens, counts = _tokens(rng, 130), np.array([130, 1, 0, 65])
    dense.append(*tokens, new_lengths=counts)
    paged.load_state_dict(dense.state_dict())
    assert paged._check()
    for name, array in paged.state_dict().items():
        assert_same_bits(array, dense.state_dict()[name])
    small = _cache(num_pages=5)
    grow(small, 2, 7, 3)
    before = _state(small)
    with pytest.raises(ValueError, match=r"KVCache.load_state_dict: .*6 needed, 5 free"):
        small.load_state_dict(dense.state_dict())
    assert _state(small) == before


def test_what_it_says_of_itself() -> None:
    cache = _cache(num_pages=3)
    assert (cache.num_pages, cache.page_size, cache.capacity, cache.batch_size) == (3, 64, 192, B)
    assert cache.nbytes == 3 * 64 * HK * (D + DV) * 4
    assert repr(cache) == (
        "PagedKVCache(num_pages=3, page_size=64, batch_size=4, num_kv_heads=2, head_dim=3, value_head_dim=5, "
        "dtype='float32', lengths=[0, 0, 0, 0])"
    )
    assert cache.page_table.shape == (B, 0)
    assert cache.keys.shape == (B, HK, 0, D)
    assert not cache.keys.flags.writeable


@pytest.mark.parametrize("key_heads", [1, 4])
def test_queries_are_the_last_tokens(key_heads: int, rng: np.random.Generator) -> None:
    lengths = np.array([70, 3, 129])
    key, value = rng.standard_normal((2, 3, key_heads, 130, 16)).astype(F32)
    query = rng.standard_normal((3, 4, 3, 16)).astype(F32)
    dense = KVCache(3, key_heads, 130, 16)
    dense.append(key, value, new_lengths=lengths)
    expected = scaled_dot_product_attention(
        query, key, value, is_causal=True, key_lengths=lengths, query_offset=lengths - 3
    )
    first = scaled_dot_product_attention(query, key, value, is_causal=True, key_lengths=lengths)
    for cache in (dense, over_pages(key, value, lengths, 64, rng)):
        assert_same_bits(scaled_dot_product_attention(query, cache, is_causal=True), expected)
        assert_same_bits(scaled_dot_product_attention(query, cache, is_causal=True, query_offset=0), first)


@pytest.mark.parametrize("paged", [False, True])
def test_rules_of_attention_to_a_cache(paged: bool) -> None:
    cache = _cache(batch=2) if paged else KVCache(2, HK, 100, D, DV)
    cache.append(*_tokens(np.random.default_rng(0), 5, batch=2))
    query = np.ones((2, 4, 1, D), F32)
    name = "scaled_dot_product_attention: "
    with pytest.raises(ValueError, match=name + "value must not be given with a cache"):
        scaled_dot_product_attention(query, cache, query)
    with pytest.raises(ValueError, match=name + "key_lengths are those of the cache"):
        scaled_dot_product_attention(query, cache, key_lengths=np.array([1, 1]))
    with pytest.raises(ValueError, match=name + "query must have the batch size of the cache, 2"):
        scaled_dot_product_attention(query[:1], cache)
    with pytest.raises(TypeError, match=name):
        scaled_dot_product_attention(query.astype(np.float64), cache)
    with pytest.raises(ValueError, match=name + "the heads of query must be a multiple"):
        scaled_dot_product_attention(query[:, :3], cache)
    with pytest.raises(TypeError, match=name + "value"):
        scaled_dot_product_attention(query, query)


def test_a_stack_over_pages_has_the_bits_of_dense_caches(isa: str, num_threads: int) -> None:
    """Prompts, steps, beams and rolled back drafts of a decoder whose memory lies in pages, too."""
    rng = np.random.default_rng(5)
    decoder = mha_native.Decoder(2, 32, 4, 64, seed=2)
    memory, lengths = rng.standard_normal((3, 150, 32)).astype(F32), np.array([150, 1, 64])
    dense_memory = decoder.project_memory(memory, memory_lengths=lengths)
    paged_memory = [layer.cross_attn.new_cache(3, 150, page_size=64) for layer in decoder.layers]
    for layer, cache in zip(decoder.layers, paged_memory, strict=True):
        layer.cross_attn.append_to(cache, memory, new_lengths=lengths)
    dense, paged = decoder.new_caches(3, 300), decoder.new_caches(3, 300, page_size=64)
    for length in (70, 1, 1, 130, 1):
        x, counts = rng.standard_normal((3, length, 32)).astype(F32), rng.integers(length + 1, size=3)
        both = (
            decoder(x, memory_caches=of_memory, caches=caches, new_lengths=counts, num_threads=num_threads)
            for of_memory, caches in ((dense_memory, dense), (paged_memory, paged))
        )
        assert_same_bits(*both, label=f"{length} rows")
        index, back = rng.integers(3, size=3), rng.integers(2, size=3)
        for cache in (*dense, *paged):
            cache.reorder(index)
            cache.rollback(np.minimum(back, cache.lengths))
        assert all(cache._check() for cache in paged)
    for ours, theirs in zip(paged, dense, strict=True):
        assert_same_bits(ours.keys, theirs.state_dict()["keys"])
        assert_same_bits(ours.values, theirs.state_dict()["values"])
