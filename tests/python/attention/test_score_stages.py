"""attention_weights at the stages before the softmax. The list of cases: test_attention.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import textbook
from cases import EVERY_RESTRICTION, Case, make_call
from element_types import accumulator_of
from matrix import ALL, WIDE, matrix
from tolerance import SCORE_STAGES, assert_same_bits

from mha_native import attention_weights, reference

pytestmark = matrix(dtype=ALL)

EVERYTHING = Case(
    "stages",
    "every option at once; two tiles of every instruction set, and two blocks of keys",
    **EVERY_RESTRICTION,
    D=24,
    mask="additive BHQK",
    softcap=2.0,
    alibi=True,
    position_bias=35,
    sinks=True,
)
each_stage = pytest.mark.parametrize("stage", SCORE_STAGES)


@matrix(dtype=WIDE)
@pytest.mark.parametrize("softcap", [1e-30, 2e-38])
def test_a_tiny_cap_is_no_larger(softcap: float, isa: str, dtype: Any) -> None:
    call = make_call(Case("tiny cap", "", Tq=3, Tk=70, D=8), dtype)
    capped = attention_weights(call.query, call.key, stage="capped", softcap=softcap)
    np.testing.assert_allclose(np.abs(capped), softcap, rtol=8 * float(np.finfo(dtype).eps))


def test_what_comes_later_changes_no_bit(isa: str, dtype: Any) -> None:
    call = make_call(EVERYTHING, dtype)
    lengths = {"key_lengths": call.options["key_lengths"]}
    plain = attention_weights(call.query, call.key, stage="scaled", **lengths)
    assert_same_bits(attention_weights(call.query, call.key, stage="scaled", **call.options), plain)
    assert_same_bits(attention_weights(call.query, call.key, stage="capped", **lengths), plain)
    masked = attention_weights(call.query, call.key, stage="masked", is_causal=True)
    seen = np.tri(EVERYTHING.Tq, EVERYTHING.keys, dtype=bool)
    whole = attention_weights(call.query, call.key, stage="scaled")
    assert_same_bits(masked, np.where(seen, whole, dtype(-np.inf)))
    capped = attention_weights(call.query, call.key, stage="capped", **call.options)
    assert_same_bits(capped, attention_weights(call.query, call.key, stage="capped", softcap=2.0, **lengths))
    without_sinks = {name: x for name, x in call.options.items() if name != "sinks"}
    assert_same_bits(
        attention_weights(call.query, call.key, stage="masked", **call.options),
        attention_weights(call.query, call.key, stage="masked", **without_sinks),
    )


@matrix(dtype=WIDE)
def test_each_step_is_rounded(isa: str, dtype: Any) -> None:
    # A compiler that fuses the product of slope and distance with the difference makes other bits, here and not there.
    rng = np.random.default_rng(11)
    query, key = rng.standard_normal((2, 1, 4, 70, 24)).astype(dtype)
    slopes, mask = rng.random(4).astype(dtype), rng.standard_normal((70, 70)).astype(dtype)
    distance = np.abs(np.arange(70)[:, None] - np.arange(70)).astype(dtype)
    scaled = attention_weights(query, key, stage="scaled", scale=0.3)
    with_alibi = scaled - slopes[:, None, None] * distance
    assert_same_bits(attention_weights(query, key, stage="masked", scale=0.3, alibi_slopes=slopes), with_alibi)
    every = attention_weights(query, key, mask, stage="masked", scale=0.3, alibi_slopes=slopes)
    assert_same_bits(every, with_alibi + mask)
    table = rng.standard_normal((4, 41)).astype(dtype)
    of_distance = table[:, np.clip(np.arange(70) - np.arange(70)[:, None], -20, 20) + 20]
    by_distance = attention_weights(query, key, stage="masked", scale=0.3, position_bias=table)
    assert_same_bits(by_distance, scaled + of_distance)
    options = {"alibi_slopes": slopes, "position_bias": table}
    every = attention_weights(query, key, mask, stage="masked", scale=0.3, **options)
    assert_same_bits(every, with_alibi + of_distance + mask)


@each_stage
def test_nan_in_a_key(stage: str, isa: str, dtype: Any) -> None:
    # Before the masks it reaches every query, behind a mask none, and behind key_lengths it is never read.
    clean = make_call(EVERYTHING, dtype)
    call = make_call(EVERYTHING, dtype)
    call.key[2, :, 70] = np.nan
    call.key[2, :, 101:] = np.nan
    call.key[1] = np.nan
    scores = attention_weights(call.query, call.key, stage=stage, **call.options)
    expected = attention_weights(clean.query, clean.key, stage=stage, **clean.options)
    reached = np.zeros(scores.shape, bool)
    reached[2, :, :, 70] = True
    if stage == "masked":
        reached &= textbook.visible(scores.shape, call.options)
        assert 0 < reached.sum() < EVERYTHING.H * EVERYTHING.Tq, "the case must show both"
    assert np.array_equal(np.isnan(scores), reached)
    assert_same_bits(scores[~reached], expected[~reached])
    assert np.isneginf(scores[1]).all()
    assert np.isneginf(scores[2, :, :, 101:]).all()


@each_stage
def test_the_same_bits_in_any_company(stage: str, isa: str, dtype: Any, num_threads: int) -> None:
    call = make_call(EVERYTHING, dtype)
    whole = attention_weights(call.query, call.key, stage=stage, num_threads=num_threads, **call.options)
    call.options.update({name: call.options[name][2:] for name in ("query_offset", "key_lengths")})
    for row in (0, 17, 44):
        options = call.options | {"attn_mask": call.options["attn_mask"][2:, :, row : row + 1]}
        options["query_offset"] = options["query_offset"] + row
        alone = attention_weights(call.query[2:, :, row : row + 1], call.key[2:], stage=stage, **options)
        assert_same_bits(alone, whole[2:, :, row : row + 1], label=f"{stage} row {row}")


@each_stage
def test_memory_as_it_lies(stage: str, isa: str, dtype: Any) -> None:
    call = make_call(EVERYTHING, dtype)
    expected = attention_weights(call.query, call.key, stage=stage, **call.options)
    query, key = (np.repeat(x, 2, -1)[..., ::2] for x in (call.query, call.key))
    for x in (query, key, call.options["attn_mask"]):
        x.flags.writeable = False
    buffer = np.full((EVERYTHING.keys, EVERYTHING.Tq, 3, EVERYTHING.H), np.nan, dtype)
    out = buffer.transpose(2, 3, 1, 0)
    assert attention_weights(query, key, stage=stage, out=out, **call.options) is out
    assert_same_bits(out, expected)


@each_stage
@pytest.mark.parametrize("rank", [2, 3])
def test_missing_leading_axes(rank: int, stage: str, isa: str, dtype: Any) -> None:
    call = make_call(Case("stages-rank", "", H=1 if rank == 2 else 4, Tq=9, Tk=70, softcap=1.5), dtype)
    expected = attention_weights(call.query, call.key, stage=stage, is_causal=True, **call.options)
    query, key = (x.reshape(x.shape[4 - rank :]) for x in (call.query, call.key))
    scores = attention_weights(query, key, stage=stage, is_causal=True, **call.options)
    assert_same_bits(scores, expected.reshape(expected.shape[4 - rank :]))
    exact = reference.attention_weights(query, key, stage=stage, is_causal=True, **call.options)
    assert exact.shape == scores.shape


@each_stage
def test_empty_sizes(stage: str, isa: str, dtype: Any) -> None:
    for empty in ({"B": 0}, {"H": 0}, {"Tq": 0}, {"Tk": 0}):
        call = make_call(Case("stages-empty", "", **({"Tk": 9} | empty)), dtype)
        scores = attention_weights(call.query, call.key, stage=stage)
        assert scores.size == 0
        assert scores.shape == reference.attention_weights(call.query, call.key, stage=stage).shape
    no_width = np.zeros((1, 1, 3, 0), dtype)
    assert not attention_weights(no_width, no_width, stage=stage).any(), "an empty sum is 0"


def test_a_stage_that_is_none(dtype: Any) -> None:
    x = np.ones((2, 3), dtype)
    with pytest.raises(ValueError, match=r"attention_weights: stage must be 'scaled', .*; got 'softmax'"):
        attention_weights(x, x, stage="softmax")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"attention_weights: stage must be .*; got None"):
        attention_weights(x, x, stage=None)  # type: ignore[arg-type]


@each_stage
def test_all_options_are_checked(stage: str, dtype: Any) -> None:
    x = np.ones((2, 3), dtype)
    for wrong in (
        {"attn_mask": np.ones((3, 3), bool)},
        {"window": (-2, 0)},
        {"softcap": -1.0},
        {"sinks": x.astype(accumulator_of(dtype))},
    ):
        with pytest.raises(ValueError, match="attention_weights"):
            attention_weights(x, x, stage=stage, **wrong)
    with pytest.raises(ValueError, match="must not overlap query"):
        attention_weights(x[:, :2], np.ones((2, 2), dtype), stage=stage, out=x[:, 1:])
