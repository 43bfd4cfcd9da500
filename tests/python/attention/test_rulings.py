"""What the library decides where the field disagrees: masks, rows that see nothing, empty sizes, grouped heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Call, Case, make_call
from element_types import accumulator_of
from matrix import ALL, matrix
from tolerance import assert_same_bits

import mha_native
from mha_native import attention_weights, scaled_dot_product_attention

pytestmark = matrix(dtype=ALL)

PLAIN = Case("plain", "", B=2, H=2, Tq=70, Tk=130, D=16)


def _hide(call: Call, rows: list[int], how: str) -> None:
    """Restricts the call so that `rows` of batch element 1 see no key, and every other row what it saw before."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    if how == "boolean":
        mask = np.ones((batch, heads, queries, keys), bool)
        mask[1, :, rows] = False
    else:
        mask = np.zeros((batch, heads, queries, keys), call.query.dtype)
        mask[1, :, rows] = -np.inf
    call.options["attn_mask"] = mask


@pytest.mark.parametrize("rows", [[0], [69], [13, 14, 15, 16], list(range(64)), list(range(70))], ids=len)
@pytest.mark.parametrize("how", ["boolean", "additive"])
def test_a_fully_masked_row(rows: list[int], how: str, isa: str, dtype: Any) -> None:
    call = make_call(PLAIN, dtype)
    _hide(call, [], how)
    full, full_lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    _hide(call, rows, how)
    out = np.full_like(full, np.nan)
    _, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, out=out, **call.options)
    weights = attention_weights(call.query, call.key, **call.options)
    assert (out[1, :, rows] == 0).all()
    assert (lse[1, :, rows] == -np.inf).all()
    assert (weights[1, :, rows] == 0).all()
    others = np.ones(out.shape[:3], bool)
    others[1, :, rows] = False
    assert_same_bits(out[others], full[others])
    assert_same_bits(lse[others], full_lse[others])


@pytest.mark.parametrize(
    "options",
    [
        {"key_lengths": np.array([0, 0])},
        {"is_causal": True, "query_offset": -70},
        {"window": (0, 0), "query_offset": 130},
        {"window": (5, -1), "query_offset": 200},
        {"window": (-1, 3), "query_offset": -100},
        {"attn_mask": np.zeros((1, 1), bool)},
        {"is_causal": True, "query_offset": -(2**62)},
        {"window": (0, 0), "query_offset": 2**62},
    ],
    ids=str,
)
def test_no_row_sees_a_key(options: dict[str, Any], isa: str, dtype: Any) -> None:
    call = make_call(PLAIN, dtype)
    call.key[...] = call.value[...] = np.nan
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **options)
    assert (out == 0).all()
    assert (lse == -np.inf).all()
    assert (attention_weights(call.query, call.key, **options) == 0).all()


@pytest.mark.parametrize("far", [2**31, 2**62])
def test_far_offsets_do_not_overflow(far: int, isa: str, dtype: Any) -> None:
    call = make_call(PLAIN, dtype)
    expected = scaled_dot_product_attention(*call.arrays)
    assert_same_bits(scaled_dot_product_attention(*call.arrays, is_causal=True, query_offset=far), expected)
    assert_same_bits(scaled_dot_product_attention(*call.arrays, window=(far, far)), expected)


@pytest.mark.parametrize("axis", ["B", "H", "Tq"])
def test_nothing_to_compute(axis: str, dtype: Any) -> None:
    sizes = {"B": 2, "H": 3, "Tq": 4} | {axis: 0}
    call = make_call(Case("empty", "", Tk=5, D=6, Dv=7, **sizes), dtype)
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True)
    leading = tuple(sizes.values())
    assert out.shape == (*leading, 7)
    assert lse.shape == leading
    assert out.dtype == dtype
    assert lse.dtype == accumulator_of(dtype)
    assert attention_weights(call.query, call.key).shape == (*leading, 5)


def test_no_keys(isa: str, dtype: Any) -> None:
    call = make_call(Case("no-keys", "", B=2, Tq=70, Tk=0, D=6, Dv=7), dtype)
    out = np.full((2, 2, 70, 7), np.nan, dtype)
    _, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, out=out)
    assert (out == 0).all()
    assert (lse == -np.inf).all()
    assert attention_weights(call.query, call.key).shape == (2, 2, 70, 0)


def test_no_head_dimension_weighs_all_keys_alike(isa: str, dtype: Any) -> None:
    call = make_call(Case("no-head-dim", "", Tq=3, Tk=64, D=0, Dv=5), dtype)
    call.value[...] = np.arange(64)[:, None]
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True)
    assert (attention_weights(call.query, call.key) == 1 / 64).all()
    assert (out == 31.5).all()
    np.testing.assert_allclose(lse, np.log(64), rtol=4 * np.finfo(lse.dtype).eps)
    causal = scaled_dot_product_attention(*call.arrays, is_causal=True)
    assert (causal == np.array([0, 0.5, 1])[:, None]).all()


def test_no_value_dimension(isa: str, dtype: Any) -> None:
    call = make_call(Case("no-value-dim", "", Tq=3, Tk=40, D=8, Dv=0), dtype)
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True)
    assert out.shape == (1, 2, 3, 0)
    wide = np.ones((1, 2, 40, 4), dtype)
    _, expected = scaled_dot_product_attention(call.query, call.key, wide, return_lse=True)
    assert_same_bits(lse, expected)


def test_true_takes_part(isa: str, dtype: Any) -> None:
    call = make_call(Case("one-true", "", H=1, Tq=5, Tk=9, D=8), dtype)
    mask = np.zeros((5, 9), bool)
    mask[np.arange(5), [8, 0, 3, 3, 7]] = True
    out = scaled_dot_product_attention(*call.arrays, attn_mask=mask)
    assert_same_bits(out[0, 0], call.value[0, 0, [8, 0, 3, 3, 7]])


def test_a_boolean_mask_has_the_bits_of_the_same_mask_added(isa: str, dtype: Any) -> None:
    """Any byte but 0 is True; the last block has 2 keys, and the last tile fewer rows than lanes."""
    call = make_call(PLAIN, dtype)
    rng = np.random.default_rng(3)
    seen = rng.random((2, 2, 70, 130)) < 0.6
    seen[0, :, :, :64] = False
    seen[1, :, :, 64:128] = True
    seen[1, 1, 5] = False
    bytes_of_mask = np.where(seen, rng.choice([1, 2, 128, 255], seen.shape), 0).astype(np.uint8).view(bool)
    added = np.where(seen, 0, -np.inf).astype(call.query.dtype)
    for causal in (False, True):
        options: dict[str, Any] = {"scale": 1.0, "is_causal": causal, "query_offset": 60, "return_lse": True}
        results = [
            scaled_dot_product_attention(call.query, call.key, call.value, mask, **options)
            for mask in (seen, bytes_of_mask, added, np.asfortranarray(seen))
        ]
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                assert_same_bits(one, two)


def test_a_nan_that_is_added_shows_no_hidden_value_to_other_rows(isa: str, dtype: Any) -> None:
    call = make_call(PLAIN, dtype)
    mask = np.zeros((70, 130), call.query.dtype)
    mask[:, 7] = -np.inf
    mask[3, 5] = np.nan
    want = scaled_dot_product_attention(call.query, call.key, call.value, mask)
    call.value[:, :, 7] = np.nan
    got = scaled_dot_product_attention(call.query, call.key, call.value, mask)
    others = np.arange(70) != 3
    assert np.isfinite(got[:, :, others].astype(np.float64)).all()
    assert np.isnan(got[:, :, 3].astype(np.float64)).all()
    assert_same_bits(got[:, :, others], want[:, :, others])


def test_causal_counts_from_the_first_key(isa: str, dtype: Any) -> None:
    # Not from the last: with more keys than queries, row 0 sees key 0 alone.
    call = make_call(Case("aligned", "", H=1, Tq=3, Tk=9, D=8), dtype)
    out = scaled_dot_product_attention(*call.arrays, is_causal=True)
    assert_same_bits(out[0, 0, 0], call.value[0, 0, 0])
    weights = attention_weights(call.query, call.key, is_causal=True, query_offset=6)[0, 0]
    assert np.array_equal(weights > 0, np.arange(9) <= np.arange(3)[:, None] + 6)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 1), (6, 3), (12, 4), (9, 9)])
def test_query_head_reads_its_group(heads: int, kv_heads: int, isa: str, dtype: Any) -> None:
    query = np.zeros((2, heads, 5, 4), dtype)
    key = np.zeros((2, kv_heads, 8, 4), dtype)
    value = np.zeros((2, kv_heads, 8, 3), dtype)
    value += np.arange(kv_heads)[:, None, None]
    out = scaled_dot_product_attention(query, key, value)
    assert (out == np.arange(heads)[:, None, None] // (heads // kv_heads)).all()


@pytest.mark.parametrize("rank", [2, 3])
def test_missing_leading_axes(rank: int, isa: str, dtype: Any) -> None:
    call = make_call(Case("rank", "", H=4 if rank == 3 else 1, Tq=7, Tk=30, D=8, is_causal=True), dtype)
    expected, expected_lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    lower = [x.reshape(x.shape[4 - rank :]) for x in call.arrays]
    out, lse = scaled_dot_product_attention(*lower, return_lse=True, **call.options)
    assert out.ndim == rank
    assert_same_bits(out, expected.reshape(expected.shape[4 - rank :]))
    assert_same_bits(lse, expected_lse.reshape(expected_lse.shape[4 - rank :]))
    assert attention_weights(*lower[:2]).ndim == rank


@pytest.mark.parametrize(
    "options",
    [
        {"window": None},
        {"window": (-1, -1)},
        {"query_offset": 12},
        {"key_lengths": np.array([130, 130])},
        {"attn_mask": np.ones((70, 130), bool)},
        {"scale": 0.25},
        {"query_offset": np.array([0, 0])},
        {"is_causal": False},
    ],
    ids=str,
)
def test_an_option_that_changes_nothing_changes_no_bit(options: dict[str, Any], isa: str, dtype: Any) -> None:
    call = make_call(PLAIN, dtype)
    assert_same_bits(scaled_dot_product_attention(*call.arrays, **options), scaled_dot_product_attention(*call.arrays))


@pytest.mark.parametrize("function", [scaled_dot_product_attention, attention_weights], ids=lambda f: f.__name__)
def test_results_are_new_arrays(function: Callable[..., np.ndarray], dtype: Any) -> None:
    call = make_call(PLAIN, dtype)
    arrays = call.arrays if function is scaled_dot_product_attention else call.arrays[:2]
    first, second = function(*arrays), function(*arrays)
    assert first.dtype == dtype
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert not np.shares_memory(first, second)
    assert type(first) is np.ndarray


def test_reference_is_public() -> None:
    call = make_call(PLAIN, np.float32)
    assert mha_native.reference.scaled_dot_product_attention(*call.arrays).dtype == np.float64


@pytest.mark.parametrize("single", ["query", "keys"])
@pytest.mark.parametrize("has_batch_axis", [True, False])
def test_a_batch_of_one_serves_every_batch_element(single: str, has_batch_axis: bool, isa: str, dtype: Any) -> None:
    call = make_call(PLAIN, dtype)
    query, key, value = call.arrays
    options = {"is_causal": True, "query_offset": np.array([3, 40]), "key_lengths": np.array([130, 77])}
    if single == "query":
        repeated = np.repeat(query[:1], 2, axis=0), key, value
        given = query[:1] if has_batch_axis else query[0], key, value
    else:
        repeated = query, np.repeat(key[:1], 2, axis=0), np.repeat(value[:1], 2, axis=0)
        given = query, *(x[:1] if has_batch_axis else x[0] for x in (key, value))
    expected, expected_lse = scaled_dot_product_attention(*repeated, return_lse=True, **options)
    out, lse = scaled_dot_product_attention(*given, return_lse=True, **options)
    assert_same_bits(out, expected)
    assert_same_bits(lse, expected_lse)
    assert_same_bits(attention_weights(*given[:2], **options), attention_weights(*repeated[:2], **options))
    for given_field, field in zip(
        mha_native.attention_statistics(*given[:2], **options),
        mha_native.attention_statistics(*repeated[:2], **options),
        strict=True,
    ):
        assert_same_bits(given_field, field)
    oracle = mha_native.reference.scaled_dot_product_attention
    assert_same_bits(oracle(*given, **options), oracle(*repeated, **options))


def test_batches_of_other_sizes_are_refused() -> None:
    x = np.zeros((2, 1, 4, 8), np.float32)
    with pytest.raises(ValueError, match=r"same batch size, or one of them 1; got query \[2, 1, 4, 8\], key \[3, 1, 4"):
        scaled_dot_product_attention(x, np.zeros((3, 1, 4, 8), np.float32), np.zeros((3, 1, 4, 8), np.float32))
    with pytest.raises(ValueError, match="value must have the batch size of key"):
        scaled_dot_product_attention(x, x, x[:1])
