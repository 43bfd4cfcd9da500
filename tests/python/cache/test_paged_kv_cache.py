"""PagedKVCache: the tokens that a model of lists has, the pages that they take, and no page lost."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from paged_history import DV, HK, B, D, History, Model, check
from scattered_pages import grow, over_pages, poisoned, scatter
from tolerance import assert_same_bits

import mha_native
from mha_native import KVCache, MultiHeadAttention, PagedKVCache, scaled_dot_product_attention
from mha_native.functions.token_cache import TokenCache

F32 = np.float32
Tokens = tuple[np.ndarray, np.ndarray]


def _cache(num_pages: int = 12, page_size: int = 64, dtype: Any = F32, batch: int = B) -> PagedKVCache:
    return PagedKVCache(
        num_pages, page_size, batch_size=batch, num_kv_heads=HK, head_dim=D, value_head_dim=DV, dtype=dtype
    )


def _tokens(rng: np.random.Generator, length: int, dtype: Any = F32, batch: int = B) -> Tokens:
    shapes = ((batch, HK, length, D), (batch, HK, length, DV))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)  # type: ignore[return-value]


def _state(cache: PagedKVCache) -> tuple[Any, ...]:
    return cache.lengths.tolist(), cache.page_table.tolist(), cache.free_pages, cache.keys.tobytes()


@pytest.mark.parametrize("page_size", [64, 128, 192])
@pytest.mark.parametrize("seed", range(8))
def test_any_history(seed: int, page_size: int) -> None:
    history = History(seed, page_size)
    for _ in range(60):
        history.step()
    history.cache.clear()
    assert history.cache.free_pages == history.cache.num_pages
    assert history.cache._check()


def test_pages_are_shared_until_they_are_written_to() -> None:
    rng = np.random.default_rng(0)
    cache = poisoned(_cache())
    model = Model(64, F32)
    prompt = _tokens(rng, 100)
    only_first = np.array([100, 0, 0, 0])
    cache.append(*prompt, new_lengths=only_first)
    model.append(*prompt, only_first)
    for length in (100, 64, 70):
        into = cache.fork(0, length=length)
        model.fork(0, into, length)
    assert cache.free_pages == 10
    assert (cache.page_table[:, 0] == 0).all()
    tokens = _tokens(rng, 1)
    one_each = np.ones(B, int)
    cache.append(*tokens, one_each)
    model.append(*tokens, one_each)
    check(cache, model, rng)
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
    cache.clear()
    with pytest.raises(ValueError, match="into must be given: every other sequence has tokens"):
        cache.fork(0)


def test_a_fork_into_the_first_other_sequence_without_tokens() -> None:
    cache = _cache()
    assert cache.fork(0) == 1
    grow(cache, 1, 1, 3)
    assert cache.fork(0) == 2
    assert cache.fork(1) == 0
    assert cache.lengths.tolist() == [3, 3, 0, 0]


def _forked(dtype: Any = F32) -> PagedKVCache:
    """Four sequences in four pages; two share all of them, and two, whose first page is gone, the rest."""
    cache = _cache(6, dtype=dtype)
    cache.append(
        *_tokens(np.random.default_rng(1), 200, F32 if dtype == "int8" else cache.dtype), np.arange(B) // 3 * 200
    )
    for length in (150, 200, 150):
        cache.fork(3, length=length)
    cache.keep_last(100)
    return cache


COPIES: dict[str, Callable[[PagedKVCache], PagedKVCache]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle{p}": lambda cache, p=p: pickle.loads(pickle.dumps(cache, p)) for p in range(6)},
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("how", COPIES)
def test_copies_share_the_pages_that_the_original_shares(how: str, dtype: Any) -> None:
    cache = _forked(dtype)
    assert cache.free_pages == 2
    other = COPIES[how](cache)
    assert other.free_pages == 2
    assert other._check()
    for ours, theirs in ((other.keys, cache.keys), (other.values, cache.values)):
        assert_same_bits(ours, theirs)
    before = _state(cache)
    grow(other, 0, 1, 1)
    assert other.free_pages == 1, "the shared page was copied, since another sequence has it"
    assert _state(cache) == before


def test_a_state_holds_each_page_once() -> None:
    cache = _forked()
    state = cache.state_dict()
    assert {name: array.shape for name, array in state.items()} == {
        "keys": (4, HK, 64, D),
        "values": (4, HK, 64, DV),
        "lengths": (B,),
        "page_table": (B, 3),
    }
    assert_same_bits(
        state["keys"][state["page_table"][0]].swapaxes(0, 1).reshape(HK, -1, D)[:, :136], cache.keys[0, :, :136]
    )
    loaded = _cache(4)
    loaded.load_state_dict(state)
    assert loaded.free_pages == 0
    dense, larger = KVCache(B, HK, 150, D, DV), _cache(8, 128)
    for other in (dense, larger):
        other.load_state_dict(state)
        for name, array in other.state_dict().items():
            assert_same_bits(array, TokenCache.state_dict(cache)[name])
    assert larger.free_pages == 0


def _changed(**entries: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A state in which some entries are functions of what they were."""
    return lambda state: state | {name: change(state[name]) for name, change in entries.items()}


def _some(name: str) -> list[Any]:
    """What no entry may be: a function of the entry for each."""
    wrong_dtype = (lambda x: x.astype(np.complex64), lambda x: x.astype(bool), lambda x: x.astype(object))
    wrong_shape = (lambda x: x[None, None, ..., None], lambda x: x[:-1], lambda x: x.ravel()[:0], lambda x: x[..., 0])
    every = [lambda x: None, lambda x: "words", lambda x: x.tolist(), lambda x: 3, *wrong_dtype, *wrong_shape]
    if name in ("lengths", "page_table"):
        every += [
            lambda x: -2 - x,
            lambda x: x * 2**40,
            lambda x: x.astype(float) * np.nan,
            lambda x: x.astype("u8") + 2**63,
        ]
    if name in ("keys", "values"):
        every += [lambda x: x.astype(np.int16), lambda x: x.astype(np.float64), lambda x: x.astype(">f4")]
    return [_changed(**{name: change}) for change in every]


@pytest.mark.parametrize("form", ["dense", "paged", "shared"])
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(form: str) -> None:
    cache: Any = {"dense": KVCache(B, HK, 200, D, DV), "paged": _cache(), "shared": _forked()}[form]
    if form != "shared":
        cache.append(*_tokens(np.random.default_rng(0), 90), np.array([90, 0, 3, 64]))
    state = cache.state_dict()
    assert ("page_table" in state) == (form == "shared")
    faults = [(name, change) for name in state for change in _some(name)]
    # Without its page_table the state of shared pages has more tokens than rows.
    faults += [
        (
            "lengths" if name == "page_table" else name,
            lambda state, name=name: {k: v for k, v in state.items() if k != name},
        )
        for name in state
    ]
    faults += [("more", lambda state: state | {"more": state["keys"]}), ("3", lambda state: state | {3: state["keys"]})]
    before = cache.state_dict(), cache.keys.tobytes(), cache.values.tobytes()
    for other in (cache, KVCache(B, HK, 200, D, DV), _cache(8, 128)):
        other.load_state_dict(state)
        for name, change in faults:
            with pytest.raises((TypeError, ValueError), match=rf"^KVCache\.load_state_dict: .*\b{name}\b"):
                other.load_state_dict(change(state))
            for kept, array in other.state_dict().items():
                if other is cache:
                    assert_same_bits(array, before[0][kept])
        if other is cache:
            assert (cache.keys.tobytes(), cache.values.tobytes()) == before[1:]
        assert other.lengths.tolist() == cache.lengths.tolist()


@pytest.mark.parametrize("form", ["paged", "shared"])
def test_a_state_of_any_strides_and_integers_loads(form: str) -> None:
    cache = _cache() if form == "paged" else _forked()
    if form == "paged":
        cache.append(*_tokens(np.random.default_rng(0), 90), np.array([90, 0, 3, 64]))
    strided = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in cache.state_dict().items()}
    strided |= {name: strided[name].astype(np.int16) for name in strided if name in ("lengths", "page_table")}
    strided["keys"] = np.asfortranarray(strided["keys"])
    other = _cache()
    other.load_state_dict(strided)
    for name, array in other.state_dict().items():
        assert_same_bits(array, cache.state_dict()[name])


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
