"""Statistics of the weights against the statistics of materialised weights. The list of cases: test_attention.py."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import statistics_tolerance
import textbook
from cases import BY_NAME, CASES, QUICK_CASES, Call, Case, make_call
from dlpack_tensor import Foreign
from element_types import accumulator_of
from hypothesis import given
from hypothesis import strategies as st
from matrix import ALL, WIDE, matrix, nightly
from row_cases import LARGE, OF_EACH_HEAD, ROW_CASES, SLICES, of_batch_element
from statistics_tolerance import assert_statistics
from strategies import PROPERTY, calls, isas, restrictions
from tolerance import assert_close, assert_same_bits

import mha_native
from mha_native import AttentionStatistics, _core, attention_statistics, reference

pytestmark = matrix(dtype=ALL)

OF_EACH_ROW = ("entropy", "max_weight", "max_key", "mean_distance")


def _statistics(call: Call, **more: Any) -> AttentionStatistics:
    return attention_statistics(call.query, call.key, **call.options, **more)


def _assert_equal(actual: AttentionStatistics, expected: AttentionStatistics, part: Any = (), label: str = "") -> None:
    """The same bits as that part of `expected`."""
    for name in AttentionStatistics._fields:
        assert_same_bits(getattr(actual, name), getattr(expected, name)[part], label=f"{label} {name}")


@PROPERTY
@given(st.data(), calls(), isas)
def test_any_call(data: st.DataObject, call: Any, isa: str) -> None:
    query, key, _, rng = call
    options = data.draw(restrictions(query, key, rng))
    with mha_native.use_isa(isa):
        assert_statistics(query, key, options, "any")


def test_the_oracle_is_a_few_lines_of_numpy() -> None:
    call = make_call(BY_NAME["modified-everything-additive"], np.float64)
    weights = reference.attention_weights(call.query, call.key, **call.options)
    entropy, max_weight, max_key, mean_distance, received = reference.attention_statistics(
        call.query, call.key, **call.options
    )
    for b, h, i in np.ndindex(entropy.shape):
        row = weights[b, h, i]
        assert entropy[b, h, i] == pytest.approx(sum(-w * np.log(w) for w in row if w > 0))
        distance = np.abs(call.options["query_offset"][b] + i - np.arange(len(row)))
        assert mean_distance[b, h, i] == pytest.approx(row @ distance)
        assert max_weight[b, h, i] == max(row)
        assert max_key[b, h, i] == (list(row).index(max(row)) if max(row) > 0 else -1)
    assert received == pytest.approx(np.einsum("bhij->bhj", weights))
    assert (max_key == -1).any()


ORDINARY = Case("statistics", "", B=2, H=4, Hk=2, Tq=70, Tk=150, D=24, alibi=True, sinks=True, query_offset=60)


@matrix(dtype=WIDE)
@pytest.mark.parametrize("wrong", ["last key", "distance", "sink", "weights", "entropy of a distribution"])
def test_a_wrong_result_is_outside(wrong: str, dtype: Any) -> None:
    call = make_call(ORDINARY, dtype)
    expected = statistics_tolerance.statistics(call.query, call.key, call.options)
    weights = textbook.attention(*call.arrays, call.options)[2]
    distance = np.abs(60 + np.arange(70)[:, None] - np.arange(150))
    right = {
        "entropy": -(weights * np.log(weights)).sum(-1),
        "max_weight": weights.max(-1),
        "mean_distance": (weights * distance.astype(dtype)).sum(-1),
        "received_weight": weights.sum(-2),
    }
    for name, array in right.items():
        assert_close(array, getattr(expected, name), expected.bounds[name], label=name)
    shorter, half = weights[..., :-1], weights.astype(np.float16).astype(dtype)
    total = weights.sum(-1)
    name, array = {
        "last key": ("entropy", -(shorter * np.log(shorter)).sum(-1)),
        "distance": ("mean_distance", (weights * (distance + 1).astype(dtype)).sum(-1)),
        "sink": ("max_weight", right["max_weight"] / total),
        "weights": ("received_weight", half.sum(-2)),
        "entropy of a distribution": ("entropy", right["entropy"] - (1 - total) * np.log(1 - total)),
    }[wrong]
    with pytest.raises(AssertionError, match="worst at"):
        assert_close(array, getattr(expected, name), expected.bounds[name], label=wrong)


def test_sinks_count_in_no_field(isa: str, dtype: Any) -> None:
    # Four keys and a sink of one logit: each has a fifth, and what is said of the keys says nothing of the sink.
    x = np.zeros((1, 1, 4, 8), dtype)
    eps = float(np.finfo(accumulator_of(dtype)).eps)
    actual = attention_statistics(x, x, sinks=np.zeros(1, accumulator_of(dtype)))
    np.testing.assert_allclose(actual.entropy, 0.8 * np.log(5), rtol=8 * eps)
    np.testing.assert_allclose(actual.max_weight, 0.2, rtol=eps)
    np.testing.assert_allclose(actual.received_weight, 0.8, rtol=4 * eps)
    assert (actual.max_key == 0).all()
    # One that takes all leaves nothing to say.
    actual = attention_statistics(x, x, sinks=np.full(1, 1e4, accumulator_of(dtype)))
    for name in ("entropy", "max_weight", "mean_distance", "received_weight"):
        assert_same_bits(getattr(actual, name), np.zeros((1, 1, 4), accumulator_of(dtype)), label=name)
    assert (actual.max_key == -1).all()


def test_the_first_of_equal_keys(isa: str, dtype: Any) -> None:
    x = np.zeros((1, 2, 150, 8), dtype)
    actual = attention_statistics(x, x, window=(40, 0))
    first = np.maximum(np.arange(150) - 40, 0)
    seen = np.arange(150) - first + 1
    assert (actual.max_key == first).all()
    eps = float(np.finfo(accumulator_of(dtype)).eps)
    np.testing.assert_allclose(actual.entropy, np.broadcast_to(np.log(seen), (1, 2, 150)), rtol=8 * eps)
    np.testing.assert_allclose(actual.mean_distance[0, 1], (seen - 1) / 2, rtol=16 * eps)
    assert (actual.entropy[:, :, 0] == 0).all()
    assert not np.signbit(actual.entropy).any()


def test_distances_from_afar(isa: str, dtype: Any) -> None:
    call = make_call(Case("afar", "", Tq=40, Tk=130), dtype)
    for offset in (2**24, -(2**31), 2**40):
        assert_statistics(call.query, call.key, {"query_offset": offset}, f"offset {offset}")


@matrix(dtype=WIDE, case=LARGE)
def test_threads(case: Case, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    one = _statistics(call, num_threads=1)
    for threads in (2, 3, 7):
        _assert_equal(_statistics(call, num_threads=threads), one, label=f"{threads} threads")


@matrix(dtype=WIDE, case=["batch", "lengths", "boolean-everything", "modified-everything-additive"])
def test_batch_element_by_itself(case: str, isa: str, dtype: Any) -> None:
    call = make_call(BY_NAME[case], dtype)
    together = _statistics(call)
    for b in range(len(call.query)):
        one = of_batch_element(call.options, b)
        alone = attention_statistics(call.query[b : b + 1], call.key[b : b + 1], **one)
        _assert_equal(alone, together, slice(b, b + 1), label=f"b={b}")


@matrix(dtype=WIDE, case=["group-8-2-70", "modified-group"])
def test_heads_by_themselves_and_repeated(case: str, isa: str, dtype: Any) -> None:
    call = make_call(BY_NAME[case], dtype)
    together = _statistics(call, is_causal=True)
    repeated = attention_statistics(call.query, np.repeat(call.key, 4, 1), is_causal=True, **call.options)
    _assert_equal(repeated, together, label="repeated")
    for h in range(8):
        options = {name: option[h : h + 1] if name in OF_EACH_HEAD else option for name, option in call.options.items()}
        key = call.key[:, h // 4 : h // 4 + 1]
        alone = attention_statistics(call.query[:, h : h + 1], key, is_causal=True, **options)
        _assert_equal(alone, together, np.s_[:, h : h + 1], label=f"head {h}")


@matrix(dtype=WIDE, case=ROW_CASES)
def test_some_rows_by_themselves(case: Case, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    together = _statistics(call)
    for first, last in SLICES:
        options = dict(call.options)
        options["query_offset"] = options.get("query_offset", 0) + first
        if "attn_mask" in options:
            options["attn_mask"] = options["attn_mask"][:, first:last]
        some = attention_statistics(call.query[:, :, first:last], call.key, **options)
        for name in OF_EACH_ROW:
            expected = getattr(together, name)[:, :, first:last]
            assert_same_bits(getattr(some, name), expected, label=f"{case} rows {first} to {last} {name}")


@pytest.mark.parametrize("where", ["query", "key"])
@matrix(case=nightly([case for case in CASES if "everything" in case.name], quick=QUICK_CASES))
def test_nan_reaches_what_depends_on_it(case: Case, where: str, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    clean = _statistics(call)
    getattr(call, where)[0, -1, 30, -1] = np.nan
    actual, expected = _statistics(call), statistics_tolerance.statistics(call.query, call.key, call.options)
    rows = np.isnan(expected.entropy)
    assert rows.any()
    assert not rows.all()
    for name in AttentionStatistics._fields:
        array, before = getattr(actual, name), getattr(clean, name)
        clear = ~rows if name == "max_key" else ~np.isnan(getattr(expected, name))
        assert_same_bits(array[clear], before[clear], label=f"{case} {name}")
        assert (array[~clear] == -1 if name == "max_key" else np.isnan(array[~clear])).all(), f"{case} {name}"


@matrix(dtype=WIDE, case=["long", "group-6-2-70", "causal-more-keys"])
def test_a_visible_score_of_minus_infinity(case: str, isa: str, dtype: Any) -> None:
    # It weighs nothing, and its logarithm does not count.
    call = make_call(BY_NAME[case], dtype)
    call.query[..., 0] = np.abs(call.query[..., 0])
    call.key[:, :, ::7, 0] = -np.inf
    assert_statistics(call.query, call.key, call.options, case)
    assert np.isfinite(_statistics(call).entropy).all()


@pytest.mark.parametrize(
    "options",
    [
        {"key_lengths": np.array([0, 0])},
        {"is_causal": True, "query_offset": -70},
        {"attn_mask": np.zeros((1, 1), bool)},
        {"attn_mask": np.zeros((1, 1), bool), "sinks": np.array([0, np.nan], np.float32)},
        {"window": (0, 0), "query_offset": 2**62},
    ],
    ids=str,
)
def test_no_row_sees_a_key(options: dict[str, Any], isa: str) -> None:
    call = make_call(Case("blind", "", B=2, Tq=70, Tk=130), np.float32)
    call.key[...] = np.nan
    actual = attention_statistics(call.query, call.key, **options)
    for name in ("entropy", "max_weight", "mean_distance", "received_weight"):
        array = getattr(actual, name)
        assert_same_bits(array, np.zeros_like(array), label=name)
    assert (actual.max_key == -1).all()


def test_empty_sizes(isa: str, dtype: Any) -> None:
    actual = _statistics(make_call(Case("no-keys", "", B=2, H=3, Tq=70, Tk=0), dtype))
    assert (actual.entropy == 0).all()
    assert (actual.max_key == -1).all()
    assert actual.received_weight.shape == (2, 3, 0)
    actual = _statistics(make_call(Case("no-queries", "", B=2, H=3, Tq=0, Tk=70), dtype))
    assert actual.entropy.shape == (2, 3, 0)
    assert_same_bits(actual.received_weight, np.zeros((2, 3, 70), accumulator_of(dtype)))
    actual = _statistics(make_call(Case("no-width", "", Tq=3, Tk=64, D=0), dtype))
    assert (actual.received_weight == 3 / 64).all()
    np.testing.assert_allclose(actual.entropy, np.log(64), rtol=4 * float(np.finfo(accumulator_of(dtype)).eps))


@pytest.mark.parametrize("sizes", [{"B": 0}, {"H": 0}])
def test_nothing_to_compute(sizes: dict[str, int], dtype: Any) -> None:
    actual = _statistics(make_call(Case("empty", "", **({"B": 2, "H": 3, "Tq": 4, "Tk": 5} | sizes)), dtype))
    shape = tuple(({"B": 2, "H": 3} | sizes).values())
    assert [array.shape for array in actual] == [(*shape, 4)] * 4 + [(*shape, 5)]


@pytest.mark.parametrize("rank", [2, 3])
def test_missing_leading_axes(rank: int, isa: str, dtype: Any) -> None:
    call = make_call(Case("axes", "", H=1 if rank == 2 else 3, Tq=9, Tk=70, is_causal=True, query_offset=50), dtype)
    query, key = (x.reshape(x.shape[4 - rank :]) for x in (call.query, call.key))
    _assert_equal(attention_statistics(query, key, **call.options), _statistics(call), (0,) * (4 - rank))
    exact = reference.attention_statistics(query, key, **call.options)
    for array, other in zip(attention_statistics(query, key, **call.options), exact, strict=True):
        assert array.shape == other.shape


def test_any_strides_and_read_only(isa: str, dtype: Any) -> None:
    call = make_call(BY_NAME["group-6-2-70"], dtype)
    expected = _statistics(call)
    query = np.asfortranarray(call.query)
    key = np.repeat(call.key[:, :, ::-1], 2, -1)[:, :, ::-1, ::2]
    query.flags.writeable = key.flags.writeable = False
    _assert_equal(attention_statistics(query, key), expected)


@matrix(dtype=WIDE)
def test_tensors_of_another_library(dtype: Any) -> None:
    call = make_call(ORDINARY, dtype)
    options = {name: Foreign(x) if isinstance(x, np.ndarray) else x for name, x in call.options.items()}
    results = attention_statistics(Foreign(call.query), Foreign(call.key), **options)
    assert all(isinstance(result, Foreign) for result in results)
    _assert_equal(AttentionStatistics(*(result.array for result in results)), _statistics(call))


def test_weights_are_not_stored() -> None:
    held: list[int] = []

    def measure() -> None:
        for length in (1000, 2000):
            x = np.ones((length, 8), np.float32)
            attention_statistics(x, x, num_threads=1)
            held.append(_core.scratch_bytes())  # of this thread

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    assert 0 <= held[1] - held[0] <= 2 * 8 * 1000, "grows by no more than a float64 and its rounding for each key"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"query": np.ones(8, np.float32)}, ValueError, r"query must have 2 to 4 axes; got query \[8\]"),
        ({"key": np.ones((2, 3, 7, 8), np.float32)}, ValueError, r"heads.*query \[2, 4, 5, 8\], key \[2, 3, 7, 8\]"),
        ({"key": np.ones((2, 2, 7, 8))}, TypeError, r"key must be of the dtype of query.*key float64"),
        ({"attn_mask": np.ones((5, 8), bool)}, ValueError, r"broadcast.*\[2, 4, 5, 7\].*\[5, 8\]"),
        ({"sinks": np.ones(2, np.float32)}, ValueError, r"sinks must be \[H\] = \[4\]; got sinks \[2\]"),
        ({"key_lengths": np.array([7, 8])}, ValueError, r"key_lengths.*8 for batch element 1"),
        ({"window": 3}, TypeError, r"window"),
        ({"num_threads": 0}, ValueError, r"num_threads must be at least 1; got 0"),
    ],
)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments = {"query": np.ones((2, 4, 5, 8), np.float32), "key": np.ones((2, 2, 7, 8), np.float32)} | change
    with pytest.raises(error, match=rf"^attention_statistics: .*{words}"):
        attention_statistics(**arguments)
