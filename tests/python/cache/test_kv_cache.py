"""KVCache: what is appended is there, in the right sequence, whatever was done to it; what fails changes nothing."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import ALL, WIDE, matrix
from tolerance import assert_same_bits

from mha_native import KVCache, MultiHeadAttention, scaled_dot_product_attention

pytestmark = matrix(dtype=ALL)

B, HK, CAPACITY, D, DV = 3, 2, 10, 5, 7
F32 = np.float32
Tokens = tuple[np.ndarray, np.ndarray]


def _cache(dtype: Any = F32, batch: int = B, capacity: int = CAPACITY) -> KVCache:
    return KVCache(batch, HK, capacity, D, DV, dtype)


def _in_arrays(dtype: Any, batch: int = B) -> KVCache:
    """The same over arrays of its own, whose heads and sequences lie apart, with NaN around them."""
    memory = np.full((HK, batch + 2, 2, CAPACITY, DV), np.nan, dtype)
    values = memory[:, 1:-1, 1].transpose(1, 0, 2, 3)
    keys = np.full((batch, 2 * HK, CAPACITY, D), np.nan, dtype)[:, ::-2]
    return KVCache.over(keys, values)


def _tokens(rng: np.random.Generator, length: int, dtype: Any = F32, batch: int = B) -> Tokens:
    shapes = ((batch, HK, length, D), (batch, HK, length, DV))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)  # type: ignore[return-value]


def _filled(dtype: Any = F32) -> KVCache:
    """Sequences of 6, 2 and no tokens."""
    cache = _cache(dtype)
    cache.append(*_tokens(np.random.default_rng(0), 6, dtype), new_lengths=np.array([6, 2, 0]))
    return cache


class Model:
    """The same as lists of tokens."""

    def __init__(self, batch: int) -> None:
        self.sequences: list[list[Tokens]] = [[] for _ in range(batch)]

    def append(self, key: np.ndarray, value: np.ndarray, counts: np.ndarray) -> None:
        for b, count in enumerate(counts):
            self.sequences[b] += [(key[b, :, t], value[b, :, t]) for t in range(count)]

    def check(self, cache: KVCache) -> None:
        assert cache.lengths.tolist() == [len(s) for s in self.sequences]
        assert cache.longest == max(map(len, self.sequences))
        for b, sequence in enumerate(self.sequences):
            for t, (key, value) in enumerate(sequence):
                assert_same_bits(cache.keys[b, :, t], key, label=f"key {t} of sequence {b}")
                assert_same_bits(cache.values[b, :, t], value, label=f"value {t} of sequence {b}")


@pytest.mark.parametrize("make", [_cache, _in_arrays])
@pytest.mark.parametrize("seed", range(40))
def test_any_history(seed: int, make: Any, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(1, 9))
    cache, model = make(dtype, batch), Model(batch)
    for _ in range(30):
        lengths = cache.lengths
        match rng.integers(7):
            case 0 | 1:
                room = CAPACITY - lengths
                tokens = _tokens(rng, int(rng.integers(room.max() + 1)), dtype, batch)
                counts = np.minimum(rng.integers(tokens[0].shape[2] + 1, size=batch), room)
                for x in tokens:  # padding is never read
                    for b, count in enumerate(counts):
                        x[b, :, count:] = np.nan
                cache.append(*tokens, new_lengths=counts)
                model.append(*tokens, counts)
            case 2:
                count = int(rng.integers(min(3, CAPACITY - lengths.max()) + 1))
                tokens = _tokens(rng, count, dtype, batch)
                cache.append(*tokens)
                model.append(*tokens, np.full(batch, count))
            case 3:
                counts = rng.integers(lengths + 1)
                cache.rollback(counts)
                model.sequences = [s[: len(s) - count] for s, count in zip(model.sequences, counts, strict=True)]
            case 4 | 5:
                index = rng.permutation(batch) if rng.random() < 0.5 else rng.integers(batch, size=batch)
                cache.reorder(index)
                model.sequences = [list(model.sequences[i]) for i in index]
            case _:
                count = int(rng.integers(CAPACITY))
                cache.keep_last(count)
                model.sequences = [s[max(len(s) - count, 0) :] for s in model.sequences]
        model.check(cache)
    other = _cache(dtype, batch, max(cache.longest, 1))
    other.load_state_dict(cache.state_dict())
    model.check(other)
    cache.clear()
    assert not cache.lengths.any()


@pytest.mark.parametrize("length", [1, 500, 1000])
def test_circles_longer_than_what_is_put_aside(length: int, dtype: Any) -> None:
    # Sequences in two circles, of lengths that differ, beyond a page.
    rng = np.random.default_rng(1)
    cache, model = _cache(dtype, 6, length), Model(6)
    tokens, counts = _tokens(rng, length, dtype, 6), np.array([length, length // 2, 0, length - 1, 1, length // 3])
    cache.append(*tokens, new_lengths=counts)
    model.append(*tokens, counts)
    index = np.array([2, 4, 3, 0, 1, 5])
    cache.reorder(index)
    model.sequences = [model.sequences[i] for i in index]
    model.check(cache)


def test_any_memory(dtype: Any) -> None:
    key, value = _tokens(np.random.default_rng(2), 4, dtype)
    expected = _cache(dtype)
    expected.append(key, value)
    for view in (
        lambda x: np.repeat(x, 2, -1)[..., ::2],
        lambda x: np.asfortranarray(x),
        lambda x: np.ascontiguousarray(x[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
        lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    ):
        k, v = view(key), view(value)
        k.flags.writeable = v.flags.writeable = False
        cache = _cache(dtype)
        cache.append(k, v, new_lengths=np.array([4, 4, 4], np.uint8))
        assert_same_bits(cache.keys[:, :, :4], key)
        assert_same_bits(cache.values[:, :, :4], value)


def test_missing_axes(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    key, value = rng.standard_normal((2, 4, 6)).astype(dtype)
    cache = KVCache(1, 1, 8, 6, dtype=dtype)
    cache.append(key, value)
    cache.append(key[None], value[None])
    assert_same_bits(cache.keys[0, 0], np.concatenate([key, key]))
    assert_same_bits(cache.values[0, 0], np.concatenate([value, value]))


def test_tensors_of_others() -> None:
    torch = pytest.importorskip("torch")
    key, value = _tokens(np.random.default_rng(4), 2)
    cache = _cache()
    cache.append(torch.from_numpy(key), torch.from_numpy(value), torch.tensor([2, 1, 0]))
    cache.reorder(torch.tensor([0, 0, 1]))
    cache.rollback(torch.tensor([1, 0, 0]))
    assert cache.lengths.tolist() == [1, 2, 1]
    assert_same_bits(cache.keys[1, :, :2], key[0])


def test_views_are_read_only_and_not_copies() -> None:
    cache = _filled()
    keys, values, lengths = cache.keys, cache.values, cache.lengths
    for array in (keys, values):
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    assert np.shares_memory(keys, cache.keys)
    assert np.shares_memory(values, cache.values)
    assert not np.shares_memory(keys, values)
    new = _tokens(np.random.default_rng(5), 1)
    cache.append(*new)
    assert_same_bits(keys[0, :, 6], new[0][0, :, 0])
    assert lengths.tolist() == [6, 2, 0], "lengths are those of when they were asked for"
    expected = keys.copy()
    del cache
    gc.collect()
    assert_same_bits(keys, expected)


def test_memory_is_taken_when_it_is_used() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("the system does not say how much memory a process has")
    before = resident()
    cache = KVCache(2, 4, 2**17, 64)
    cache.append(*np.ones((2, 2, 4, 3, 64), F32))
    assert cache.nbytes == 2 * 2 * 4 * 2**17 * 64 * 4
    assert resident() - before < cache.nbytes // 8


def _rollback(count: Any) -> Any:
    return lambda cache: cache.rollback(count)


def _append(key: Any, value: Any, new_lengths: Any = None) -> Any:
    return lambda cache: cache.append(key, value, new_lengths)


def _load(**changes: Any) -> Any:
    key, value = _ones(4)
    return lambda cache: cache.load_state_dict({"keys": key, "values": value, "lengths": np.array([4, 0, 1])} | changes)


def _ones(length: int, dtype: Any = F32, batch: int = B) -> Tokens:
    return np.ones((batch, HK, length, D), dtype), np.ones((batch, HK, length, DV), dtype)


K, V = _ones(1)
FAULTS: list[tuple[Any, type[Exception], list[str]]] = [
    # (what is done to sequences of 6, 2 and 0 of 10 tokens, kind of error, words of the message)
    (_append(*_ones(5)), ValueError, ["append", "capacity of 10", "sequence 0", "6 + 5"]),
    (_append(*_ones(9), np.array([4, 9, 0])), ValueError, ["append", "capacity of 10", "sequence 1", "2 + 9"]),
    (_append(*_ones(2), np.array([0, 0, 3])), ValueError, ["append", "new_lengths", "[0, 2]", "3"]),
    (_append(*_ones(2), np.array([0, -1, 2])), ValueError, ["append", "new_lengths", "-1"]),
    (_append(*_ones(2), np.array([1, 1])), ValueError, ["append", "new_lengths", "3"]),
    (_append(*_ones(2), np.ones(3)), TypeError, ["append", "new_lengths", "float64"]),
    (_append(*_ones(2), [1, 1, 1]), TypeError, ["append", "new_lengths", "list"]),
    (_append(K[:2], V), ValueError, ["append", "key", "[2, 2, 1, 5]"]),
    (_append(K, V[:, :1]), ValueError, ["append", "value", "[3, 1, 1, 7]"]),
    (_append(K, V[:, :, :0]), ValueError, ["append", "length", "[3, 2, 0, 7]"]),
    (_append(K, K), ValueError, ["append", "value", "[3, 2, 1, 5]"]),
    (_append(K[0, 0, 0], V), ValueError, ["append", "key", "[5]"]),
    (_append(K.astype(float), V), TypeError, ["append", "key float64", "cache, float32"]),
    (_append(K, V.astype(float)), TypeError, ["append", "value float64", "cache, float32"]),
    (_append(K, [1.0]), TypeError, ["append", "value list"]),
    (_append(np.ma.masked_array(K), V), TypeError, ["append", "key", "MaskedArray"]),
    (_rollback(1), ValueError, ["rollback", "sequence 2", "0 tokens"]),
    (_rollback(np.array([7, 0, 0])), ValueError, ["rollback", "sequence 0", "6 tokens", "7"]),
    (_rollback(np.array([2, -1, 0])), ValueError, ["rollback", "-1"]),
    (_rollback(-1), ValueError, ["rollback", "count", "-1"]),
    (_rollback(np.array([1, 1])), ValueError, ["rollback", "count", "3"]),
    (_rollback(1.0), TypeError, ["rollback", "count", "1.0"]),
    (_rollback(True), TypeError, ["rollback", "count", "True"]),
    (lambda cache: cache.reorder(np.array([0, 1, 3])), ValueError, ["reorder", "index", "0 to 2", "3"]),
    (lambda cache: cache.reorder(np.array([-1, 1, 2])), ValueError, ["reorder", "index", "-1"]),
    (lambda cache: cache.reorder(np.array([0, 1])), ValueError, ["reorder", "index", "3"]),
    (lambda cache: cache.reorder([0, 1, 2]), TypeError, ["reorder", "index", "list"]),
    (lambda cache: cache.keep_last(-1), ValueError, ["keep_last", "count", "-1"]),
    (lambda cache: cache.keep_last(1.5), TypeError, ["keep_last", "count", "1.5"]),
    (_load(keys=_ones(4, batch=2)[0]), ValueError, ["key", "[2, 2, 4, 5]"]),
    (_load(lengths=np.array([5, 0, 0])), ValueError, ["load_state_dict: lengths", "[0, 4]", "5"]),
    (_load(keys=_ones(11)[0], values=_ones(11)[1], lengths=np.array([0, 11, 1])), ValueError, ["capacity of 10", "11"]),
    (_load(keys=_ones(4, np.float64)[0]), TypeError, ["float64", "float32"]),
    (_load(other=1), ValueError, ["load_state_dict", "keys, values and lengths", "other"]),
    (lambda cache: cache.load_state_dict({}), ValueError, ["load_state_dict", "nothing"]),
]


@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS, ids=lambda x: "-".join(x[:2]) if type(x) is list else "")
def test_what_fails_changes_nothing(fault: Any, kind: type[Exception], words: list[str]) -> None:
    cache = _filled()
    keys, values = cache.keys.copy(), cache.values.copy()
    with pytest.raises(kind) as error:
        fault(cache)
    message = str(error.value)
    assert re.match(r"KVCache\.\w+: ", message), message
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert cache.lengths.tolist() == [6, 2, 0]
    assert_same_bits(cache.keys, keys)
    assert_same_bits(cache.values, values)


@pytest.mark.parametrize("where", ["key", "value"])
def test_tokens_of_the_cache_itself(where: str) -> None:
    cache = KVCache(1, 1, 8, 4)
    cache.append(*np.ones((2, 2, 4), F32))
    tokens = {"key": np.ones((1, 1, 2, 4), F32), "value": np.ones((1, 1, 2, 4), F32)}
    tokens[where] = cache.keys[:, :, 1:3]
    with pytest.raises(ValueError, match="overlap the cache"):
        cache.append(**tokens)
    other = KVCache(1, 1, 8, 4)
    other.append(cache.keys[:, :, :2], cache.values[:, :, :2])
    assert_same_bits(other.keys, cache.keys)


SIZES: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"batch_size": -1}, ValueError, ["batch_size", "-1"]),
    ({"num_kv_heads": 0}, ValueError, ["num_kv_heads", "0"]),
    ({"capacity": -3}, ValueError, ["capacity", "-3"]),
    ({"head_dim": 0}, ValueError, ["head_dim", "0"]),
    ({"value_head_dim": 0}, ValueError, ["value_head_dim", "0"]),
    ({"batch_size": 2.0}, TypeError, ["batch_size", "2.0"]),
    ({"capacity": True}, TypeError, ["capacity", "True"]),
    ({"dtype": "int32"}, TypeError, ["dtype", "int32", "float32", "float64"]),
    ({"dtype": "bool"}, TypeError, ["dtype", "bool"]),
    ({"capacity": 2**62}, MemoryError, ["could not allocate"]),
    ({"capacity": 2**50}, MemoryError, ["could not allocate"]),
]


@pytest.mark.parametrize(("fault", "kind", "words"), SIZES, ids=lambda x: str(x) if type(x) is dict else "")
def test_wrong_sizes(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        KVCache(**({"batch_size": 2, "num_kv_heads": 2, "capacity": 4, "head_dim": 4} | fault))
    for word in words:
        assert word in str(error.value), str(error.value)


@pytest.mark.parametrize("sizes", [(0, 2, 4, 3), (2, 2, 0, 3), (0, 1, 0, 1)], ids=str)
def test_empty_caches(sizes: tuple[int, int, int, int]) -> None:
    batch, heads, capacity, width = sizes
    cache = KVCache(*sizes)
    none = np.ones((batch, heads, 0, width), F32)
    cache.append(none, none)
    cache.reorder(np.arange(batch)[::-1])
    cache.rollback(0)
    cache.keep_last(0)
    assert cache.longest == 0
    assert cache.keys.shape == (batch, heads, capacity, width)
    assert cache.state_dict()["keys"].shape == (batch, heads, 0, width)


def test_sizes_can_be_read() -> None:
    cache = _filled(np.float64)
    names = ("batch_size", "num_kv_heads", "capacity", "head_dim", "value_head_dim")
    assert [getattr(cache, name) for name in names] == [B, HK, CAPACITY, D, DV]
    assert cache.dtype == np.float64
    assert cache.nbytes == B * HK * CAPACITY * (D + DV) * 8
    assert cache.keys.shape == (B, HK, CAPACITY, D)
    assert cache.values.shape == (B, HK, CAPACITY, DV)
    assert KVCache(1, 1, 1, 9).value_head_dim == 9
    assert KVCache(1, 1, 0, 4, 2**33).value_head_dim == 2**33
    for word in (*(f"{name}={getattr(cache, name)}" for name in names), "'float64'", "lengths=[6, 2, 0]"):
        assert word in repr(cache)


@matrix(dtype=WIDE)
def test_state_is_plain_arrays(tmp_path: Path, dtype: Any) -> None:
    cache = _filled(dtype)
    np.savez(tmp_path / "cache.npz", **cache.state_dict())
    with np.load(tmp_path / "cache.npz", allow_pickle=False) as saved:
        state = dict(saved)
    assert state["keys"].shape == (B, HK, 6, D), "only what is there"
    assert not state["keys"][1, :, 2:].any()
    assert not state["values"][2].any()
    smaller = _cache(dtype, capacity=6)
    smaller.append(*_tokens(np.random.default_rng(6), 3, dtype))
    smaller.load_state_dict(state)
    for name, array in smaller.state_dict().items():
        assert_same_bits(array, cache.state_dict()[name], label=name)
    state["keys"][...] = np.nan
    assert not np.isnan(smaller.keys).any(), "a copy"


@pytest.mark.parametrize("how", ["pickle", "copy"])
def test_copies(how: str, dtype: Any) -> None:
    cache = _filled(dtype)
    other = pickle.loads(pickle.dumps(cache)) if how == "pickle" else copy.deepcopy(cache)
    assert repr(other) == repr(cache)
    assert not np.shares_memory(other.keys, cache.keys)
    other.append(*_tokens(np.random.default_rng(7), 4, dtype))
    assert cache.lengths.tolist() == [6, 2, 0]
    assert_same_bits(other.keys[0, :, :6], cache.keys[0, :, :6])


def test_a_cache_outlives_its_layer() -> None:
    layer = MultiHeadAttention(8, 2, seed=0)
    cache = layer.new_cache(1, 4)
    assert (cache.num_kv_heads, cache.head_dim, cache.value_head_dim, cache.dtype) == (2, 4, 4, F32)
    del layer
    cache.append(*np.ones((2, 2, 4, 4), F32))
    assert cache.lengths.tolist() == [4]


def test_attention_over_a_cache(isa: str, dtype: Any) -> None:
    # Rows of one causal call, and the same rows as steps of any size over a cache, are the same bits.
    for seed in range(20):
        rng = np.random.default_rng(seed)
        batch, heads, group, length = (int(n) for n in rng.integers((1, 1, 1, 1), (4, 3, 5, 200)))
        query = rng.standard_normal((batch, heads * group, length, D)).astype(dtype)
        key, value = (rng.standard_normal((batch, heads, length, n)).astype(dtype) for n in (D, DV))
        whole = scaled_dot_product_attention(query, key, value, is_causal=True, num_threads=1)
        cache = KVCache(batch, heads, length + 3, D, DV, dtype)
        start = 0
        while start < length:
            stop = min(length, start + int(rng.choice([1, 1, 2, 7, 65])))
            before = cache.lengths
            cache.append(key[:, :, start:stop], value[:, :, start:stop])
            out = scaled_dot_product_attention(
                query[:, :, start:stop],
                cache.keys,
                cache.values,
                is_causal=True,
                query_offset=before,
                key_lengths=cache.lengths,
                num_threads=int(rng.integers(1, 4)),
            )
            assert_same_bits(out, whole[:, :, start:stop], label=f"seed {seed}, rows {start} to {stop}")
            start = stop
