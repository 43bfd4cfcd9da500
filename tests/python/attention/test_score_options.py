"""softcap, alibi_slopes, position_bias, sinks: what the list of cases does not show. Their cases are in `cases.py`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import textbook
import tolerance
from cases import Call, Case, make_call
from dlpack_tensor import Foreign
from element_types import BFLOAT16, HALF, accumulator_of, limits
from matrix import ALL, WIDE, matrix, nightly
from tolerance import assert_close, assert_same_bits

from mha_native import MultiHeadAttention, attention_weights, reference, scaled_dot_product_attention
from mha_native.functions.options import FUNCTION_OPTIONS, KEYWORD_OPTIONS

pytestmark = matrix(dtype=ALL)

PLAIN = Case("score-options", "", B=2, H=4, Hk=2, Tq=40, Tk=150, D=24, Dv=9, query_offset=60)
OPTIONS = {
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi": True},
    "position bias": {"position_bias": 25},
    "sinks": {"sinks": True},
    "all": {"softcap": 2.0, "alibi": True, "position_bias": 25, "sinks": True},
}
each_option = pytest.mark.parametrize("option", OPTIONS)


def _make(option: str, dtype: Any, **more: Any) -> Call:
    fields = {name: getattr(PLAIN, name) for name in ("B", "H", "Hk", "Tq", "Tk", "D", "Dv", "query_offset")}
    return make_call(Case("score-options", "", **(fields | OPTIONS[option] | more)), dtype)


def _check(call: Call, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out, lse, weights), within their bounds."""
    expected = tolerance.attention(*call.arrays, call.options)
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    weights = attention_weights(call.query, call.key, **call.options)
    assert_close(out, expected.out, expected.out_bound, label=f"{label} out")
    assert_close(lse, expected.lse, expected.lse_bound, label=f"{label} lse")
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{label} weights")
    return out, lse, weights


@matrix(dtype=WIDE)
@pytest.mark.parametrize("softcap", [1e-3, 0.5, 1.0, 30.0, 50.0, 1e4])
def test_softcap_keeps_relative_accuracy(softcap: float, isa: str, dtype: Any) -> None:
    # The lse over one key is its score, so this reads capped scores one by one: 5 eps as in tolerance.py, and one
    # for the oracle. A tangent made of exponentials would lose all digits of the small ones.
    sizes = np.concatenate([np.logspace(-20, 20, 3001), softcap * np.linspace(0.01, 12, 3001)])
    scores = np.concatenate([sizes, -sizes]).astype(dtype)[:, None]
    one = np.ones((1, 1), dtype)
    _, lse = scaled_dot_product_attention(scores, one, one, scale=1, softcap=softcap, return_lse=True)
    expected = softcap * np.tanh(scores[:, 0].astype(np.float64) / softcap)
    assert_close(lse, expected, 6 * float(np.finfo(dtype).eps) * np.abs(expected), label=f"softcap {softcap}")
    assert (np.abs(lse) <= dtype(softcap)).all(), "a score beyond its cap"


@pytest.mark.parametrize("softcap", [1e-300, 1e-45, 1e-38, 1e38, 1e39, 1e300])
def test_softcap_of_any_size(softcap: float, isa: str, dtype: Any) -> None:
    # Also of one that float32 does not hold.
    call = _make("softcap", dtype)
    call.query[0, 0, 0] = 0  # scores of 0
    call.options["softcap"] = softcap
    capped = _check(call, f"softcap {softcap}")
    if softcap > 1:
        del call.options["softcap"]
        expected = tolerance.attention(*call.arrays, call.options)
        assert_close(capped[0], expected.out, expected.out_bound, label="a cap out of reach")


@matrix(dtype=WIDE)
@pytest.mark.parametrize("query_scale", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("softcap", [1e-3, 0.1, 50.0])
def test_scores_of_any_size_under_softcap(softcap: float, query_scale: float, isa: str, dtype: Any) -> None:
    call = _make("softcap", dtype)
    call.query[...] *= dtype(query_scale)
    call.options["softcap"] = softcap
    _check(call, f"query * {query_scale}, softcap {softcap}")


def test_softcap_comes_before_what_is_added(isa: str, dtype: Any) -> None:
    call = _make("softcap", dtype, mask="finite HQK", alibi=True, position_bias=9)
    call.options["attn_mask"] *= 20
    _, lse, _ = _check(call, "bias beyond the cap")
    assert np.abs(lse).max() > 10


@each_option
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_in_the_open_is_not_lost(where: str, option: str, isa: str, dtype: Any) -> None:
    call = _make(option, dtype)
    getattr(call, where)[1, -1, 17, 3] = np.nan
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    expected = tolerance.attention(*call.arrays, call.options)
    assert np.isnan(expected.out).any()
    assert not np.isnan(expected.out).all()
    assert_close(out, expected.out, expected.out_bound, label=f"NaN {where}")
    assert_close(lse, expected.lse, expected.lse_bound, label=f"NaN {where} lse")


@each_option
@matrix(poison=nightly([np.nan, np.inf, -np.inf], quick=[np.nan]))
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_nothing_behind_a_mask_within_a_row(kind: str, poison: float, option: str, isa: str, dtype: Any) -> None:
    call = _make(option, dtype, mask=f"{kind} QK")
    clean = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    clean_weights = attention_weights(call.query, call.key, **call.options)
    call.key[:, :, 20] = call.value[:, :, 20] = poison
    call.key[:, :, 101, 5] = poison
    seen = textbook.visible(clean_weights.shape, call.options)
    blind = ~seen[..., 20] & ~seen[..., 101]
    assert blind.any()
    dirty = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    assert_same_bits(dirty[0][blind], clean[0][blind])
    assert_same_bits(dirty[1][blind], clean[1][blind])
    assert_same_bits(attention_weights(call.query, call.key, **call.options)[blind], clean_weights[blind])


@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("option", ["softcap", "all"])
def test_softcap_makes_infinite_scores_finite(option: str, where: str, isa: str, dtype: Any) -> None:
    call = _make(option, dtype)
    getattr(call, where)[:, :, 17, 0] = np.inf
    out, lse, _ = _check(call, f"infinite {where}")
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("option", ["alibi", "position bias", "sinks"])
def test_an_infinite_key(option: str, isa: str, dtype: Any) -> None:
    call = _make(option, dtype)
    call.key[0, 0, 17, 0] = np.inf
    expected = tolerance.attention(*call.arrays, call.options)
    assert np.isnan(expected.out).any()
    out = scaled_dot_product_attention(*call.arrays, **call.options)
    assert_close(out, expected.out, expected.out_bound, label="infinite key")


def _hide(how: str, dtype: Any) -> dict[str, Any]:
    """Options under which rows 5, 6 and 7 of the last batch element, or all of it, see no key."""
    if how == "boolean":
        mask = np.ones((2, 1, 40, 150), bool)
        mask[1, :, 5:8] = False
        return {"attn_mask": mask}
    if how == "additive":
        bias = np.zeros((2, 1, 40, 150), dtype)
        bias[1, :, 5:8] = -np.inf
        return {"attn_mask": bias}
    return {
        "lengths": {"key_lengths": np.array([150, 0])},
        "causal": {"is_causal": True, "query_offset": np.array([0, -10])},
        "window": {"window": (0, 0), "query_offset": np.array([0, 145])},
    }[how]


@pytest.mark.parametrize("how", ["boolean", "additive", "lengths", "causal", "window"])
@pytest.mark.parametrize("option", ["sinks", "all"])
@pytest.mark.parametrize("sinks", ["normal", "huge", "mixed"])
def test_a_row_that_sees_nothing_but_its_sink(sinks: str, option: str, how: str, isa: str, dtype: Any) -> None:
    call = _make(option, dtype)
    call.options.update(_hide(how, dtype))
    call.options["sinks"] = np.array(
        {
            "normal": [0.3, -1.7, 0.0, 2.5],
            "huge": [1e3, -1e4, 80, -300],
            "mixed": [-np.inf, 0.7, -np.inf, 1e-30],
        }[sinks],
        accumulator_of(dtype),
    )
    out = np.full((2, 4, 40, 9), np.nan, dtype)
    _, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, out=out, **call.options)
    weights = attention_weights(call.query, call.key, **call.options)
    blind = ~textbook.visible(weights.shape, call.options).any(-1)
    assert blind[1].any()
    assert not blind.all()
    assert (out[blind] == 0).all()
    assert (weights[blind] == 0).all()
    of_each_row = np.broadcast_to(call.options["sinks"][:, None], lse.shape)
    assert_same_bits(lse[blind], of_each_row[blind], label="the lse is the sink")
    _check(call, "rows beside them")


@pytest.mark.parametrize("sink", [np.nan, np.inf])
def test_a_sink_that_is_no_number(sink: float, isa: str, dtype: Any) -> None:
    # Like a score of plus infinity, or NaN: its head has no softmax, the others are as they were.
    call = _make("sinks", dtype)
    clean = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    call.options["sinks"][1] = sink
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    weights = attention_weights(call.query, call.key, **call.options)
    assert np.isnan(out[:, 1]).all()
    assert np.isnan(lse[:, 1]).all()
    assert np.isnan(weights[:, 1]).all()
    others = [0, 2, 3]
    assert_same_bits(out[:, others], clean[0][:, others])
    assert_same_bits(lse[:, others], clean[1][:, others])


@pytest.mark.parametrize("option", ["sinks", "all"])
def test_no_keys_but_sinks(option: str, isa: str, dtype: Any) -> None:
    call = _make(option, dtype, Tk=0)
    call.options["sinks"] = np.array([0.5, -np.inf, 3, -200], accumulator_of(dtype))
    out = np.full((2, 4, 40, 9), np.nan, dtype)
    _, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, out=out, **call.options)
    assert (out == 0).all()
    assert_same_bits(lse, np.broadcast_to(call.options["sinks"][:, None], lse.shape).copy())
    assert attention_weights(call.query, call.key, **call.options).shape == (2, 4, 40, 0)


def test_no_head_dimension(isa: str, dtype: Any) -> None:
    # All scores are 0, with or without a cap; the sink takes as much as 64 keys.
    call = make_call(Case("no-head-dim", "", H=2, Tq=3, Tk=64, D=0, Dv=5), dtype)
    call.value[...] = 1
    sinks = np.array([-np.inf, np.log(64)], accumulator_of(dtype))
    out = scaled_dot_product_attention(*call.arrays, softcap=5.0, sinks=sinks).astype(np.float64)
    np.testing.assert_allclose(out[0, 0], 1, rtol=4 * float(limits(dtype).eps))
    np.testing.assert_allclose(out[0, 1], 0.5, rtol=8 * float(limits(dtype).eps))


def test_a_sink_of_minus_infinity_changes_no_bit(isa: str, dtype: Any) -> None:
    call = _make("alibi", dtype, is_causal=True)
    none = np.full(4, -np.inf, accumulator_of(dtype))
    expected = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, sinks=none, **call.options)
    assert_same_bits(out, expected[0])
    assert_same_bits(lse, expected[1])


@matrix(dtype=WIDE)
@pytest.mark.parametrize("mask", [None, "boolean BHQK", "additive HQK"])
def test_a_sink_is_a_key_without_value(mask: str | None, isa: str, dtype: Any) -> None:
    call = _make("sinks", dtype, mask=mask)
    heads = [np.concatenate([x, np.zeros_like(x[:, :, :1])], axis=2) for x in (call.key, call.value)]
    bias = np.zeros((2, 4, 40, 151), dtype)
    given = call.options.get("attn_mask")
    if given is not None:
        bias[..., :150] = np.where(given, 0, -np.inf) if given.dtype == bool else given
    bias[..., 150] = call.options["sinks"][:, None]
    expected = tolerance.attention(*call.arrays, call.options)
    out, lse = scaled_dot_product_attention(call.query, *heads, attn_mask=bias, return_lse=True)
    weights = attention_weights(call.query, heads[0], attn_mask=bias)
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(lse, expected.lse, expected.lse_bound, label="lse")
    assert_close(weights[..., :150], expected.weights, expected.weights_bound, label="weights")


@matrix(dtype=WIDE)
@pytest.mark.parametrize("offset", [0, -30, 75, np.array([3, -200])], ids=str)
def test_alibi_is_a_bias_of_distances(offset: Any, isa: str, dtype: Any) -> None:
    call = _make("alibi", dtype, query_offset=0)
    slopes = call.options["alibi_slopes"]
    slopes[2] *= -1  # prefers the distant
    call.options["query_offset"] = offset
    position = np.reshape(offset, (-1, 1, 1, 1)) + np.arange(40)[:, None]
    bias = (-slopes[:, None, None] * np.abs(position - np.arange(150))).astype(dtype)
    expected = tolerance.attention(*call.arrays, call.options)
    for options in (call.options, {"attn_mask": bias}):
        out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **options)
        assert_close(out, expected.out, expected.out_bound, label="out")
        assert_close(lse, expected.lse, expected.lse_bound, label="lse")


def test_alibi_far_from_the_keys(isa: str, dtype: Any) -> None:
    for offset in (2**20, -(2**20), 2**31, 2**40):
        call = _make("alibi", dtype, query_offset=offset)
        _check(call, f"offset {offset}")


@matrix(dtype=WIDE)
@pytest.mark.parametrize("offset", [0, 75, np.array([3, -200]), -(2**62), 2**62 - 200], ids=str)
@pytest.mark.parametrize("farthest", [0, 25, 1000])
def test_position_bias_is_a_bias_of_clamped_distances(farthest: int, offset: Any, isa: str, dtype: Any) -> None:
    call = _make("position bias", dtype, query_offset=0, position_bias=farthest)
    call.options["query_offset"] = offset
    table = call.options["position_bias"]
    table[...] = table.astype(dtype)
    position = np.reshape(offset, (-1, 1, 1)) + np.arange(40)[:, None]
    distance = np.clip(np.arange(150) - position, -farthest, farthest)
    bias = np.moveaxis(table[:, distance + farthest], 0, 1).astype(dtype)  # [B | 1, H, Tq, Tk]
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    same = scaled_dot_product_attention(*call.arrays, bias, return_lse=True)
    assert_same_bits(out, same[0])
    assert_same_bits(lse, same[1])
    assert_same_bits(
        attention_weights(*call.arrays[:2], **call.options), attention_weights(*call.arrays[:2], attn_mask=bias)
    )
    row = call.query[:, :, 7:8], *call.arrays[1:]  # goes to the kernel for few rows
    alone = scaled_dot_product_attention(*row, position_bias=table, query_offset=offset + 7)
    assert_same_bits(alone, out[:, :, 7:8])


def test_a_position_bias_of_minus_infinity_is_no_mask(isa: str, dtype: Any) -> None:
    # The key takes no weight, but it is visible, as one with a score of minus infinity is: only masks hide NaN.
    call = _make("position bias", dtype, position_bias=3)
    call.options["position_bias"][:, :2] = -np.inf
    _, _, weights = _check(call, "minus infinity")
    assert (weights[:, :, 0, :59] == 0).all()
    call.value[:, :, 0] = np.nan
    assert np.isnan(scaled_dot_product_attention(*call.arrays, **call.options)).all()


@each_option
def test_nothing_to_compute(option: str, dtype: Any) -> None:
    for axis in ("B", "Tq"):
        call = _make(option, dtype, **{axis: 0})
        out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
        assert out.size == lse.size == 0
    call = _make(option, dtype, H=0, Hk=0) if option == "softcap" else _make("softcap", dtype, H=0, Hk=0)
    empty = np.zeros(0, accumulator_of(dtype))
    options = {"alibi_slopes": empty, "position_bias": np.zeros((0, 5), empty.dtype), "sinks": empty}
    assert scaled_dot_product_attention(*call.arrays, **options, **call.options).size == 0


@each_option
@pytest.mark.parametrize("rank", [2, 3])
def test_missing_leading_axes(rank: int, option: str, isa: str, dtype: Any) -> None:
    call = _make(option, dtype, B=1, **({"H": 1, "Hk": 1} if rank == 2 else {}))
    expected = scaled_dot_product_attention(*call.arrays, **call.options)
    lower = [x.reshape(x.shape[4 - rank :]) for x in call.arrays]
    out = scaled_dot_product_attention(*lower, **call.options)
    assert_same_bits(out, expected.reshape(expected.shape[4 - rank :]))
    exact = reference.scaled_dot_product_attention(*lower, **call.options)
    assert exact.shape == out.shape
    assert_same_bits(exact, reference.scaled_dot_product_attention(*call.arrays, **call.options).reshape(out.shape))


@pytest.mark.parametrize("half", HALF, ids=["f16", "bf16"])
def test_sinks_in_the_dtype_of_the_query(isa: str, half: Any) -> None:
    call = _make("all", half)
    call.options["sinks"] = call.options["sinks"].astype(half)
    wide = call.options | {"sinks": call.options["sinks"].astype(np.float32)}
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    expected = scaled_dot_product_attention(*call.arrays, return_lse=True, **wide)
    assert_same_bits(out, expected[0])
    assert_same_bits(lse, expected[1])
    assert_same_bits(attention_weights(*call.arrays[:2], **call.options), attention_weights(*call.arrays[:2], **wide))


def test_sinks_of_another_small_dtype() -> None:
    call = _make("softcap", np.float16)
    with pytest.raises(
        TypeError, match=r"sinks must be of the dtype of lse, float32, or of query, float16; got .*sinks bfloat16"
    ):
        scaled_dot_product_attention(*call.arrays, sinks=np.ones(4, BFLOAT16), **call.options)


@pytest.mark.parametrize("offset", [0, 75, np.array([3, -200])], ids=str)
@pytest.mark.parametrize("rows", [1, 40])
def test_slopes_of_each_batch_element(rows: int, offset: Any, isa: str, dtype: Any) -> None:
    call = _make("all", dtype, query_offset=0, is_causal=True)
    query, key, value = call.query[:, :, :rows], call.key, call.value
    slopes = np.stack([call.options["alibi_slopes"], -call.options["alibi_slopes"][::-1]])
    options = call.options | {"query_offset": offset, "return_lse": True}
    out, lse = scaled_dot_product_attention(query, key, value, **options | {"alibi_slopes": slopes})
    strided = np.asfortranarray(np.repeat(slopes, 2, 1))[:, ::2]
    assert_same_bits(scaled_dot_product_attention(query, key, value, **options | {"alibi_slopes": strided})[0], out)
    for b in range(2):
        one = options | {"alibi_slopes": slopes[b], "query_offset": int(np.broadcast_to(offset, 2)[b])}
        alone = scaled_dot_product_attention(query[b], key[b], value[b], **one)
        assert_same_bits(out[b], alone[0])
        assert_same_bits(lse[b], alone[1])
    same = scaled_dot_product_attention(query, key, value, **options | {"alibi_slopes": slopes[:1]})
    assert_same_bits(same[0], scaled_dot_product_attention(query, key, value, **options)[0])


@pytest.mark.parametrize(("option", "shape"), [("alibi_slopes", 4), ("position_bias", (4, 7)), ("sinks", 4)])
def test_the_dtype_is_that_of_lse(option: str, shape: Any, dtype: Any) -> None:
    call = _make("softcap", dtype)
    name = np.dtype(accumulator_of(dtype)).name
    other = np.float64 if name == "float32" else np.float32
    with pytest.raises(
        TypeError,
        match=rf"{option} must be of the dtype of lse, {name}(, or of query, .*)?; got .*{option} {np.dtype(other)}",
    ):
        scaled_dot_product_attention(*call.arrays, **{option: np.ones(shape, other)})


def test_options_of_another_library(dtype: Any) -> None:
    call = _make("all", dtype)
    expected = scaled_dot_product_attention(*call.arrays, **call.options)
    expected_weights = attention_weights(*call.arrays[:2], **call.options)
    for name in ("alibi_slopes", "position_bias", "sinks"):
        call.options[name] = Foreign(call.options[name])
    assert_same_bits(scaled_dot_product_attention(*call.arrays, **call.options), expected)
    assert_same_bits(attention_weights(*call.arrays[:2], **call.options), expected_weights)


@matrix(dtype=WIDE)
@pytest.mark.parametrize("option", ["alibi_slopes", "position_bias", "sinks"])
def test_out_over_an_option(option: str, dtype: Any) -> None:
    call = _make("softcap", dtype)
    memory = np.ones(2 * 4 * 40 * 9, dtype)
    numbers = memory[7:35].reshape(4, 7) if option == "position_bias" else memory[7:11]
    with pytest.raises(ValueError, match=f"out must not overlap {option}"):
        scaled_dot_product_attention(*call.arrays, out=memory.reshape(2, 4, 40, 9), **{option: numbers}, **call.options)
    assert (memory == 1).all()


def test_signatures_list_every_option_and_none_is_the_default() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6), dtype=np.float32)
    layer = MultiHeadAttention(6, 2, seed=0)
    listed = inspect.signature(scaled_dot_product_attention).parameters
    of_functions = FUNCTION_OPTIONS - {"attn_mask"}
    options = dict.fromkeys(KEYWORD_OPTIONS - {"is_causal"})
    assert listed.keys() - {"query", "key", "value", "attn_mask", "return_lse", "out", "num_threads"} == of_functions
    assert inspect.signature(MultiHeadAttention.__call__).parameters.keys() >= KEYWORD_OPTIONS
    defaults = dict.fromkeys(of_functions) | {"is_causal": False}
    assert {name: listed[name].default for name in of_functions} == defaults
    for is_causal in (False, True):
        for call in (
            lambda **to: scaled_dot_product_attention(x, x, x, **to),
            lambda **to: attention_weights(x, x, **to),
            lambda **to: layer(x, **to),
        ):
            assert_same_bits(call(is_causal=is_causal, **options), call(is_causal=is_causal))
