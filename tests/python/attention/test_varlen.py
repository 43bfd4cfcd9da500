"""Ragged batches: every sequence has the bits that it has by itself, and what is not its own has no effect."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tolerance
from matrix import ALL, matrix, nightly
from merging_tolerance import merged
from ragged import Array, Ragged, heads_first, random_batch
from tolerance import assert_close, assert_same_bits

from mha_native import merge_attention, reference, scaled_dot_product_attention, scaled_dot_product_attention_varlen

pytestmark = matrix(dtype=ALL)

SEEDS = range(100)


def _attend(batch: Ragged, **more: Any) -> tuple[Array, Array]:
    """Out and lse, written over NaN."""
    out = np.full((*batch.query.shape[:2], batch.value.shape[2]), np.nan, batch.query.dtype)
    result, lse = scaled_dot_product_attention_varlen(
        *batch.arguments, return_lse=True, out=out, **batch.options, **more
    )
    assert result is out
    return out, lse


@matrix(seeds=nightly([SEEDS[i::4] for i in range(4)], quick=[SEEDS[::4]]))
def test_a_sequence_by_itself(seeds: range, isa: str, dtype: Any) -> None:
    for seed in seeds:
        batch = random_batch(seed, dtype)
        results = [_attend(batch, num_threads=threads) for threads in (1, 2, 3, 7)]
        for i, (rows, arrays, options) in enumerate(batch.sequences()):
            out, lse = scaled_dot_product_attention(*arrays, return_lse=True, **options)
            for together in results:
                label = f"seed {seed}, sequence {i}"
                assert_same_bits(heads_first(together[0][rows]), out, label=label)
                assert_same_bits(together[1][rows].T, lse, label=f"{label}, lse")


def test_against_the_oracle(isa: str, dtype: Any) -> None:
    for seed in range(1000, 1020):
        batch = random_batch(seed, dtype)
        out, lse = _attend(batch)
        exact_out, exact_lse = reference.scaled_dot_product_attention_varlen(
            *batch.arguments, return_lse=True, **batch.options
        )
        for rows, arrays, options in batch.sequences():
            expected = tolerance.attention(*arrays, options)
            assert np.array_equal(heads_first(exact_out[rows]), expected.out, equal_nan=True)
            assert np.array_equal(exact_lse[rows].T, expected.lse, equal_nan=True)
            assert_close(heads_first(out[rows]), expected.out, expected.out_bound, label=f"seed {seed} out")
            assert_close(lse[rows].T, expected.lse, expected.lse_bound, label=f"seed {seed} lse")


def test_what_is_hidden_is_not_read(isa: str, dtype: Any) -> None:
    for seed in range(2000, 2030):
        batch = random_batch(seed, dtype)
        clean_out, clean_lse = _attend(batch)
        hidden = batch.hidden_keys()
        batch.key[hidden] = batch.value[hidden] = np.nan
        mask = batch.options.get("attn_mask")
        if mask is not None and mask.dtype != bool and mask.shape[1] > 1:
            for q, k in batch.rows():  # beyond the last key of a sequence
                mask[:, q, k.stop - k.start :] = np.nan
        out, lse = _attend(batch)
        assert_same_bits(out, clean_out, label=f"seed {seed}")
        assert_same_bits(lse, clean_lse, label=f"seed {seed}")


def test_other_sequences_have_no_effect(isa: str, dtype: Any) -> None:
    for seed in range(3000, 3015):
        batch = random_batch(seed, dtype)
        clean_out, clean_lse = _attend(batch)
        for q, k in batch.rows():
            poisoned = batch.changed(query=batch.query.copy(), key=batch.key.copy(), value=batch.value.copy())
            poisoned.query[: q.start] = poisoned.query[q.stop :] = np.nan
            for x in (poisoned.key, poisoned.value):
                x[: k.start] = x[k.stop :] = np.nan
            out, lse = _attend(poisoned)
            assert_same_bits(out[q], clean_out[q], label=f"seed {seed}")
            assert_same_bits(lse[q], clean_lse[q], label=f"seed {seed}")


def _interleaved(x: Array) -> Array:
    packed = np.full((x.shape[0], 3, *x.shape[1:]), np.nan, x.dtype)  # [N, 3, H, D]
    packed[:, 1] = x
    return packed[:, 1]


LAYOUTS = {
    "heads first": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "axes reversed": np.asfortranarray,
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
    "every third": lambda x: np.repeat(x, 3, axis=2)[..., 1::3],
    "q, k and v in one array": _interleaved,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_as_it_lies(layout: str, isa: str, dtype: Any) -> None:
    for seed in [4001, 4002, 4003]:
        batch = random_batch(seed, dtype)
        expected_out, expected_lse = _attend(batch)
        arrays = [LAYOUTS[layout](x) for x in (batch.query, batch.key, batch.value)]
        before = [x.copy() for x in arrays]
        options = {k: LAYOUTS[layout](v) if k == "attn_mask" else v for k, v in batch.options.items()}
        offsets = [np.repeat(x, 2).astype(np.int32)[::2] for x in (batch.cu_seqlens_q, batch.cu_seqlens_k)]
        for x in (*arrays, *offsets, *(v for v in options.values() if isinstance(v, np.ndarray))):
            x.flags.writeable = False
        out = LAYOUTS[layout](np.full_like(expected_out, np.nan))
        result, lse = scaled_dot_product_attention_varlen(*arrays, *offsets, return_lse=True, out=out, **options)
        assert result is out
        assert_same_bits(out, expected_out, label=f"seed {seed}")
        assert_same_bits(lse, expected_lse, label=f"seed {seed}")
        for x, same in zip(arrays, before, strict=True):
            assert_same_bits(x, same, label=f"seed {seed}")


@pytest.mark.parametrize("integer", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_offsets_of_any_integer_type(integer: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((10, 2, 8)).astype(np.float32)
    expected = scaled_dot_product_attention_varlen(x, x, x, np.array([0, 3, 10]), np.array([0, 3, 10]))
    offsets = np.array([0, 3, 10], integer)
    assert_same_bits(scaled_dot_product_attention_varlen(x, x, x, offsets, offsets), expected)


@pytest.mark.parametrize("axes", ["K", "QK", "Q1", "HQK", "1QK", "H11", "H1K", "1", "1HQK"])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_masks_broadcast(kind: str, axes: str, isa: str, dtype: Any, rng: np.random.Generator) -> None:
    lengths_q, lengths_k = np.array([9, 0, 70, 3]), np.array([80, 5, 13, 0])
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(lengths)]) for lengths in (lengths_q, lengths_k))
    query = rng.standard_normal((82, 6, 16)).astype(dtype)
    key, value = rng.standard_normal((2, 98, 2, 16)).astype(dtype)
    sizes = {"H": 6, "Q": 82, "K": 80, "1": 1}
    mask = rng.standard_normal([sizes[axis] for axis in axes]).astype(dtype)
    if kind == "boolean":
        mask = mask < 1
    whole = np.broadcast_to(mask, (1, 6, 82, 80))[0]
    batch = Ragged(query, key, value, cu_q, cu_k, {"attn_mask": mask})
    out, lse = _attend(batch)
    for rows, arrays, options in batch.changed(options={"attn_mask": whole}).sequences():
        alone, lse_alone = scaled_dot_product_attention(*arrays, return_lse=True, **options)
        assert_same_bits(heads_first(out[rows]), alone)
        assert_same_bits(lse[rows].T, lse_alone)


def test_sequences_without_keys_or_queries(isa: str, dtype: Any, rng: np.random.Generator) -> None:
    query, key = rng.standard_normal((6, 2, 4)).astype(dtype), rng.standard_normal((5, 2, 4)).astype(dtype)
    batch = Ragged(query, key, key, np.array([0, 0, 4, 4, 6]), np.array([0, 3, 3, 3, 5]), {})
    out, lse = _attend(batch)
    assert_same_bits(out[:4], np.zeros((4, 2, 4), dtype))
    assert np.isneginf(lse[:4]).all()
    alone = scaled_dot_product_attention(heads_first(query[4:]), heads_first(key[3:]), heads_first(key[3:]))
    assert_same_bits(heads_first(out[4:]), alone)
    sinks = np.array([1.5, -2], lse.dtype)
    assert np.array_equal(_attend(batch.changed(options={"sinks": sinks}))[1][:4], np.broadcast_to(sinks, (4, 2)))


@pytest.mark.parametrize("shape", [(0, 2, 4), (0, 0, 4), (3, 0, 4), (3, 2, 0), (0, 2, 0)], ids=str)
@pytest.mark.parametrize("sequences", [0, 1, 4])
def test_empty_sizes(shape: tuple[int, ...], sequences: int, dtype: Any) -> None:
    if shape[0] > 0 and sequences == 0:
        sequences = 2
    x = np.ones(shape, dtype)
    offsets = np.minimum(np.arange(sequences + 1), shape[0])
    offsets[-1] = shape[0]
    out, lse = scaled_dot_product_attention_varlen(x, x, x, offsets, offsets, return_lse=True)
    assert out.shape == shape
    assert lse.shape == shape[:2]
    # Without features all scores are 0.
    assert shape[2] > 0 or np.array_equal(
        np.exp(lse).round(), np.repeat(np.diff(offsets), np.diff(offsets))[:, None] + 0 * lse
    )


def test_the_last_query_at_the_last_key(isa: str, dtype: Any, rng: np.random.Generator) -> None:
    # What FlashAttention calls causal: a batch of decode steps and of prefills over caches of different lengths.
    lengths_q, lengths_k = np.array([1, 7, 1, 40]), np.array([50, 7, 1, 90])
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(lengths)]) for lengths in (lengths_q, lengths_k))
    query = rng.standard_normal((49, 4, 16)).astype(dtype)
    key, value = rng.standard_normal((2, 148, 2, 16)).astype(dtype)
    offset = np.diff(cu_k) - np.diff(cu_q)
    out = scaled_dot_product_attention_varlen(query, key, value, cu_q, cu_k, is_causal=True, query_offset=offset)
    for b in range(4):
        q, k = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
        lower_right = np.tri(lengths_q[b], lengths_k[b], lengths_k[b] - lengths_q[b], dtype=bool)
        arrays = (heads_first(x) for x in (query[q], key[k], value[k]))
        assert_same_bits(heads_first(out[q]), scaled_dot_product_attention(*arrays, lower_right))


@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_changes_no_bit(is_causal: bool, isa: str, dtype: Any, rng: np.random.Generator) -> None:
    lengths = np.array([33, 1, 200, 64, 10])
    cu = np.concatenate([[0], np.cumsum(lengths)])
    query, key, value = rng.standard_normal((3, cu[-1], 4, 24)).astype(dtype)
    out = scaled_dot_product_attention_varlen(query, key, value, cu, cu, is_causal=is_causal)
    padded = np.full((3, 5, 4, 200, 24), np.nan, dtype)
    for b, length in enumerate(lengths):
        for i, x in enumerate((query, key, value)):
            padded[i, b, :, :length] = heads_first(x[cu[b] : cu[b + 1]])
    dense = scaled_dot_product_attention(*padded, is_causal=is_causal, key_lengths=lengths)
    for b, length in enumerate(lengths):
        assert_same_bits(heads_first(out[cu[b] : cu[b + 1]]), dense[b, :, :length])


def test_order_and_company_change_no_bit(isa: str, dtype: Any, rng: np.random.Generator) -> None:
    lengths = np.array([33, 1, 200, 64, 10])
    cu = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.standard_normal((cu[-1], 4, 24)).astype(dtype)
    parts = [scaled_dot_product_attention_varlen(x, x, x, cu, cu)[cu[b] : cu[b + 1]] for b in range(5)]
    for order in ([4, 2, 0, 1, 3], [2, 2, 1], [3]):
        y = np.concatenate([x[cu[b] : cu[b + 1]] for b in order])
        offsets = np.concatenate([[0], np.cumsum(lengths[order])])
        expected = np.concatenate([parts[b] for b in order])
        assert_same_bits(scaled_dot_product_attention_varlen(y, y, y, offsets, offsets), expected)


def test_shards_of_the_keys_merge(isa: str, dtype: Any, rng: np.random.Generator) -> None:
    cu_q = np.array([0, 5, 30])
    query = rng.standard_normal((30, 4, 16)).astype(dtype)
    key, value = rng.standard_normal((2, 100, 4, 16)).astype(dtype)
    first = np.r_[0:30, 60:75]  # half of the keys of each sequence
    halves = [
        scaled_dot_product_attention_varlen(query, key[rows], value[rows], cu_q, offsets, return_lse=True)
        for rows, offsets in ((first, np.array([0, 30, 45])), (np.delete(np.r_[:100], first), np.array([0, 30, 55])))
    ]
    out, lse = merge_attention(*zip(*halves, strict=True))
    for b, (q, k) in enumerate(((slice(0, 5), slice(0, 60)), (slice(5, 30), slice(60, 100)))):
        middle = k.start + (30, 15)[b]
        q_of, k_of, v_of = heads_first(query[q]), heads_first(key[k]), heads_first(value[k])
        parts = [slice(0, middle - k.start), slice(middle - k.start, None)]
        bound = merged([tolerance.attention(q_of, k_of[:, p], v_of[:, p], {}) for p in parts], dtype)
        assert_close(heads_first(out[q]), bound.out, bound.out_bound, label="out")
        assert_close(lse[q].T, bound.lse, bound.lse_bound, label="lse")


def test_torch_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((10, 2, 8)).astype(np.float32)
    offsets = np.array([0, 3, 10], np.int32)
    expected, expected_lse = scaled_dot_product_attention_varlen(x, x, x, offsets, offsets, return_lse=True)
    tensor, of_torch = torch.from_numpy(x), torch.from_numpy(offsets)
    out, lse = scaled_dot_product_attention_varlen(tensor, tensor, tensor, of_torch, of_torch, return_lse=True)
    assert type(out) is type(lse) is torch.Tensor
    assert_same_bits(out.numpy(), expected)
    assert_same_bits(lse.numpy(), expected_lse)
    target = torch.empty_like(tensor)
    assert scaled_dot_product_attention_varlen(tensor, tensor, tensor, offsets, of_torch, out=target) is target
    assert_same_bits(target.numpy(), expected)


def _array(*shape: int, dtype: Any = np.float32) -> Array:
    return np.ones(shape, dtype)


def _good() -> dict[str, Any]:
    """Sequences of 2 and 3 queries and of 4 and 3 keys: Nq 5, Nk 7, H 4, Hk 2, D 8, Dv 6."""
    return {
        "query": _array(5, 4, 8),
        "key": _array(7, 2, 8),
        "value": _array(7, 2, 6),
        "cu_seqlens_q": np.array([0, 2, 5]),
        "cu_seqlens_k": np.array([0, 4, 7]),
    }


WRONG = [
    # (argument, value, kind of error, words of the message)
    ("cu_seqlens_q", np.array([1, 2, 5]), ValueError, "must begin with 0; got 1"),
    ("cu_seqlens_q", np.array([-1, 2, 5]), ValueError, "must begin with 0; got -1"),
    ("cu_seqlens_q", np.array([0, 6, 5]), ValueError, "must never fall; got 5 after 6 at the end of sequence 1"),
    ("cu_seqlens_q", np.array([0, -2, 5]), ValueError, "must never fall; got -2 after 0 at the end of sequence 0"),
    ("cu_seqlens_q", np.array([0, 2**62, 5]), ValueError, "must never fall; got 5 after 4611686018427387904"),
    ("cu_seqlens_q", np.array([0, -(2**63), 5]), ValueError, "must never fall; got -9223372036854775808"),
    ("cu_seqlens_q", np.array([0, 2, 6]), ValueError, "must end with the rows of query, 5; got 6"),
    ("cu_seqlens_q", np.array([0, 2, 4]), ValueError, "must end with the rows of query, 5; got 4"),
    ("cu_seqlens_q", np.array([0, 2, 2**63 - 1]), ValueError, "must end with the rows of query, 5; got 92233"),
    ("cu_seqlens_q", np.array([0, 2, 2**63], np.uint64), ValueError, "must hold integers of at most 63 bits"),
    ("cu_seqlens_q", np.array([], int), ValueError, "must have at least one entry; got .*cu_seqlens_q [0]"),
    ("cu_seqlens_q", np.array(5), ValueError, "must have 1 axis; got .*cu_seqlens_q []"),
    ("cu_seqlens_q", np.array([[0, 2, 5]]), ValueError, "must have 1 axis; got .*cu_seqlens_q [1, 3]"),
    ("cu_seqlens_q", np.array([0.0, 2.0, 5.0]), TypeError, "must be an integer array; got .*cu_seqlens_q float64"),
    ("cu_seqlens_q", np.array([False, True, True]), TypeError, "must be an integer array; got .*cu_seqlens_q bool"),
    ("cu_seqlens_q", np.array([0, 2, 5], ">i8"), TypeError, "must be in native byte order"),
    ("cu_seqlens_q", [0, 2, 5], TypeError, "must be an integer array; got .*cu_seqlens_q list"),
    ("cu_seqlens_q", None, TypeError, "must be an integer array; got .*cu_seqlens_q NoneType"),
    ("cu_seqlens_k", np.array([0, 7]), ValueError, "must have as many entries as cu_seqlens_q, 3; got .*k [2]"),
    ("cu_seqlens_k", np.array([0, 2, 4, 7]), ValueError, "must have as many entries as cu_seqlens_q, 3; got .*k [4]"),
    ("cu_seqlens_k", np.array([2, 4, 7]), ValueError, "must begin with 0; got 2"),
    ("cu_seqlens_k", np.array([0, 8, 7]), ValueError, "must never fall; got 7 after 8"),
    ("cu_seqlens_k", np.array([0, 4, 8]), ValueError, "must end with the rows of key, 7; got 8"),
    ("cu_seqlens_k", np.array([0, 4, 6]), ValueError, "must end with the rows of key, 7; got 6"),
    ("cu_seqlens_k", np.array([0.0, 4.0, 7.0]), TypeError, "must be an integer array"),
    ("query", _array(5, 32), ValueError, "must have 3 axes; got query [5, 32], key [7, 2, 8], value [7, 2, 6]"),
    ("query", _array(1, 5, 4, 8), ValueError, "must have 3 axes; got query [1, 5, 4, 8]"),
    ("query", _array(5, 3, 8), ValueError, "must be a multiple of the heads of key; got query [5, 3, 8]"),
    ("key", _array(7, 2, 9), ValueError, "must have the head_dim of query"),
    ("value", _array(6, 2, 6), ValueError, "must have the length of key"),
    ("value", _array(7, 4, 6), ValueError, "must have the heads of key"),
    ("value", _array(7, 2, 6, dtype=np.float64), TypeError, "must be of the dtype of query"),
    ("attn_mask", _array(5, 7), ValueError, "must broadcast to [H, Nq, longest Tk] = [4, 5, 4]; got attn_mask [5, 7]"),
    ("attn_mask", _array(2, 4, 5, 4), ValueError, "must broadcast to [H, Nq, longest Tk] = [4, 5, 4]; got attn_mask"),
    ("attn_mask", _array(5, 4, dtype=np.float64), TypeError, "must be bool or of the dtype of query"),
    ("key_mask", _array(2, 4, dtype=bool), ValueError, "must broadcast to [Nk] = [7]; got key_mask [2, 4]"),
    ("key_mask", _array(5, dtype=bool), ValueError, "must broadcast to [Nk] = [7]; got key_mask [5]"),
    ("key_mask", _array(7), TypeError, "must be bool"),
    ("query_offset", np.array([1]), ValueError, "must have one entry for each batch element, 2"),
    ("key_lengths", np.array([4, 3, 0]), ValueError, "must have one entry for each batch element, 2"),
    ("key_lengths", np.array([4, 4]), ValueError, "must lie in [0, Tk] = [0, 3]; got 4 for batch element 1"),
    ("key_lengths", np.array([-1, 3]), ValueError, "must lie in [0, Tk] = [0, 4]; got -1 for batch element 0"),
    ("sinks", _array(2), ValueError, "must be [H] = [4]; got sinks [2]"),
    ("window", (0, -2), ValueError, "must be (left, right)"),
    ("num_threads", 0, ValueError, "must be at least 1"),
    ("return_lse", 1, TypeError, "must be a bool"),
    ("out", _array(5, 4, 7), ValueError, "must have the axes of query, ending in 6"),
    ("out", _array(4, 5, 6), ValueError, "must have the axes of query, ending in 6; got out [4, 5, 6]"),
    ("out", _array(5, 24), ValueError, "must have the axes of query, ending in 6; got out [5, 24]"),
]


@pytest.mark.parametrize(("argument", "value", "kind", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_refused(argument: str, value: Any, kind: type[Exception], words: str) -> None:
    out = np.full((5, 4, 6), 3, np.float32)
    pattern = re.escape(words).replace(re.escape(".*"), ".*")
    with pytest.raises(kind) as error:
        scaled_dot_product_attention_varlen(**({"out": out} | _good() | {argument: value}))
    message = str(error.value)
    assert type(error.value) is kind, message
    assert re.match(rf"scaled_dot_product_attention_varlen: .*\b{argument}\b", message), message
    assert re.search(pattern, message), message
    assert not re.search(r"\n|\. ", message), "is one sentence"
    assert (out == 3).all(), "work was done before the error"


def test_out_over_an_input(rng: np.random.Generator) -> None:
    call = _good()
    memory = rng.standard_normal((5, 4, 8)).astype(np.float32)
    with pytest.raises(ValueError, match="out must not overlap query"):
        scaled_dot_product_attention_varlen(**(call | {"query": memory}), out=memory[..., :6])
