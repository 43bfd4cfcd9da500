"""What holds for any input, sought out by Hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY, calls, isas, restrictions
from tolerance import assert_close, assert_same_bits, attention, gamma

import mha_native
from mha_native import attention_weights, scaled_dot_product_attention


@PROPERTY
@given(st.data(), calls(), isas)
def test_the_oracle_is_right(data: st.DataObject, call: Any, isa: str) -> None:
    query, key, value, rng = call
    options = data.draw(restrictions(query, key, rng))
    expected = attention(query, key, value, options)
    with mha_native.use_isa(isa):
        out, lse = scaled_dot_product_attention(query, key, value, return_lse=True, **options)
        weights = attention_weights(query, key, **options)
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(lse, expected.lse, expected.lse_bound, label="lse")
    assert_close(weights, expected.weights, expected.weights_bound, label="weights")


@PROPERTY
@given(calls(), isas)
def test_weights_sum_to_one(call: Any, isa: str) -> None:
    query, key, _, _ = call
    with mha_native.use_isa(isa):
        weights = attention_weights(query, key)
    total = weights.sum(-1, dtype=np.float64)
    assert (weights >= 0).all()
    assert (np.abs(total - 1) <= gamma(2 * key.shape[2], np.finfo(query.dtype).eps)).all()


@PROPERTY
@given(calls(), isas)
def test_the_order_of_the_keys_does_not_matter(call: Any, isa: str) -> None:
    query, key, value, rng = call
    order = rng.permutation(key.shape[2])
    expected = attention(query, key, value, {})
    with mha_native.use_isa(isa):
        out, lse = scaled_dot_product_attention(query, key[:, :, order], value[:, :, order], return_lse=True)
        weights = attention_weights(query, key[:, :, order])
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(lse, expected.lse, expected.lse_bound, label="lse")
    assert_close(weights, expected.weights[..., order], expected.weights_bound[..., order], label="weights")


@PROPERTY
@given(calls(), isas)
def test_the_result_is_within_the_values(call: Any, isa: str) -> None:
    query, key, value, _ = call
    with mha_native.use_isa(isa):
        out = scaled_dot_product_attention(query, key, value)
    group = query.shape[1] // key.shape[1]
    low, high = (np.repeat(f(value, 2, keepdims=True), group, 1) for f in (np.min, np.max))
    slack = (
        2
        * gamma(2 * key.shape[2], np.finfo(query.dtype).eps)
        * np.repeat(np.abs(value).max(2, keepdims=True), group, 1)
    )
    assert (out >= low - slack).all()
    assert (out <= high + slack).all()


@PROPERTY
@given(st.data(), st.integers(1, 4).flatmap(lambda group: calls(group=group)), isas)
def test_grouped_heads_are_repeated_ones(data: st.DataObject, call: Any, isa: str) -> None:
    query, key, value, rng = call
    options = data.draw(restrictions(query, key, rng))
    group = query.shape[1] // key.shape[1]
    repeated = np.repeat(key, group, 1), np.repeat(value, group, 1)
    with mha_native.use_isa(isa):
        out, lse = scaled_dot_product_attention(query, key, value, return_lse=True, **options)
        same, same_lse = scaled_dot_product_attention(query, *repeated, return_lse=True, **options)
        weights, same_weights = (
            attention_weights(query, key, **options),
            attention_weights(query, repeated[0], **options),
        )
    assert_same_bits(out, same)
    assert_same_bits(lse, same_lse)
    assert_same_bits(weights, same_weights)


@PROPERTY
@given(calls(), isas, st.sampled_from((np.nan, np.inf, -np.inf)))
def test_a_causal_row_ignores_later_keys(call: Any, isa: str, poison: float) -> None:
    query, key, value, rng = call
    with mha_native.use_isa(isa):
        clean, clean_lse = scaled_dot_product_attention(query, key, value, is_causal=True, return_lse=True)
        first_late = int(rng.integers(0, key.shape[2] + 1))
        key[:, :, first_late:] = value[:, :, first_late:] = poison
        out, lse = scaled_dot_product_attention(query, key, value, is_causal=True, return_lse=True)
    assert_same_bits(out[:, :, :first_late], clean[:, :, :first_late])
    assert_same_bits(lse[:, :, :first_late], clean_lse[:, :, :first_late])


@PROPERTY
@given(st.data(), calls(), isas)
def test_splitting_a_batch_changes_no_bit(data: st.DataObject, call: Any, isa: str) -> None:
    query, key, value, rng = call
    options = data.draw(restrictions(query, key, rng))
    with mha_native.use_isa(isa):
        together = scaled_dot_product_attention(query, key, value, **options)
        for b in range(len(query)):
            one = dict(options)
            for name in ("query_offset", "key_lengths"):
                if name in one:
                    one[name] = one[name][b : b + 1]
            mask = one.get("attn_mask")
            if mask is not None and mask.ndim == 4 and len(mask) > 1:
                one["attn_mask"] = mask[b : b + 1]
            part = slice(b, b + 1)
            alone = scaled_dot_product_attention(query[part], key[part], value[part], **one)
            assert_same_bits(alone, together[part])


@PROPERTY
@given(st.data(), calls(), isas, st.integers(2, 7))
def test_threads_change_no_bit(data: st.DataObject, call: Any, isa: str, threads: int) -> None:
    query, key, value, rng = call
    options = data.draw(restrictions(query, key, rng))
    # More heads, so that the work is worth several threads.
    query, key, value = (np.tile(x, (1, 8, 1, 1)) for x in (query, key, value))
    options.pop("attn_mask", None)
    options |= {name: np.tile(options[name], 8) for name in ("alibi_slopes", "sinks") if name in options}
    if "position_bias" in options:
        options["position_bias"] = np.tile(options["position_bias"], (8, 1))
    with mha_native.use_isa(isa):
        one = scaled_dot_product_attention(query, key, value, num_threads=1, **options)
        assert_same_bits(scaled_dot_product_attention(query, key, value, num_threads=threads, **options), one)


@PROPERTY
@given(calls(), isas, st.floats(-1e3, 1e3))
def test_a_constant_added_to_all_scores_does_not_matter(call: Any, isa: str, constant: float) -> None:
    query, key, value, _ = call
    mask = np.full((1, 1), constant, query.dtype)
    expected = attention(query, key, value, {"attn_mask": mask})
    plain = attention(query, key, value, {})
    with mha_native.use_isa(isa):
        out, lse = scaled_dot_product_attention(query, key, value, attn_mask=mask, return_lse=True)
    assert_close(out, plain.out, expected.out_bound, label="out")
    assert_close(lse, plain.lse + mask[0, 0], expected.lse_bound, label="lse")
