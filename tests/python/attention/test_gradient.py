"""Gradients of attention: against the oracle, and the oracle against differences and torch; bits, hidden memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import gradient_tolerance
import numpy as np
import pytest
import ragged
import textbook
from cases import CASES, QUICK_CASES, Call, Case, make_call
from element_types import accumulator_of
from gradient_tolerance import differentiable
from matrix import ALL, WIDE, is_best_of_its_own, matrix, nightly
from tolerance import assert_close, assert_same_bits

import mha_native
from mha_native import AttentionGradients, attention_gradient, attention_gradient_varlen, reference
from mha_native.functions.options import SCORE_OPTIONS

# Gradients of 16-bit arrays are those of float32 after a conversion: a few tests look at them, on their best kernels.
pytestmark = matrix(dtype=WIDE)
Array = np.ndarray[Any, np.dtype[Any]]
ARRAYS = ("query", "key", "value")
every_dtype = matrix(dtype=ALL, where=lambda isa, dtype, **_: dtype in WIDE or is_best_of_its_own(isa, dtype))


def _upstream(call: Call) -> tuple[Array, Array]:
    """Gradients by out and by lse."""
    rng = np.random.default_rng(call.query.size)
    rows = call.query.shape[:-1]
    dout = rng.standard_normal((*rows, call.value.shape[-1])).astype(call.query.dtype)
    return dout, rng.standard_normal(rows).astype(accumulator_of(call.query.dtype))


def _differentiate(call: Call, **more: Any) -> AttentionGradients:
    """All gradients of a call, by the results of its forward pass."""
    dout, dlse = _upstream(call)
    out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    given: dict[str, Any] = {"dlse": dlse, "wrt": differentiable(call.options), **call.options, **more}
    return attention_gradient(*call.arrays, out, lse, dout, **given)


def _assert_same(actual: AttentionGradients, expected: AttentionGradients, *, label: str = "") -> None:
    for name, ours, theirs in zip(AttentionGradients._fields, actual, expected, strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert_same_bits(ours, theirs, label=f"{label} {name}")


def _assert_all_close(found: AttentionGradients, call: Call, label: str) -> None:
    expected = gradient_tolerance.gradients(call.arrays, *_upstream(call), call.options)
    for name, (exact, bound) in expected.items():
        assert_close(getattr(found, name), exact, bound, label=f"{label} {name}")


@functools.cache
def _solved(case: Case, dtype: Any) -> tuple[Call, dict[str, tuple[Array, Array]]]:
    call = make_call(case, dtype)
    return call, gradient_tolerance.gradients(call.arrays, *_upstream(call), call.options)


@every_dtype
@matrix(case=nightly(CASES, quick=QUICK_CASES))
def test_every_gradient(case: Case, isa: str, dtype: Any, num_threads: int) -> None:
    call, expected = _solved(case, dtype)
    found = _differentiate(call, num_threads=num_threads)
    for name, gradient in found._asdict().items():
        assert (gradient is not None) == (name in expected), name
    for name, (exact, bound) in expected.items():
        gradient = getattr(found, name)
        assert gradient.dtype == (dtype if name in ARRAYS else accumulator_of(dtype))
        assert_close(gradient, exact, bound, label=f"{case} {name}")
    seen = textbook.visible((case.B, case.H, case.Tq, case.keys), call.options)
    assert not found.query[~seen.any(-1)].any(), "a query that sees no key has a gradient of exactly 0"
    of_group = seen.reshape(case.B, case.kv_heads, -1, case.keys).any(2)
    assert not found.key[~of_group].any(), "a key that no query sees has a gradient of exactly 0"
    assert not found.value[~of_group].any()


# Every option, so that ignoring it changes gradients.
SMALL = Case("gradient", "", B=2, H=4, Hk=2, Tq=6, Tk=9, D=5, Dv=4)
OPTIONS: dict[str, dict[str, Any]] = {
    "is_causal": {"is_causal": True},
    "query_offset": {"is_causal": True, "query_offset": np.array([1, 2])},
    "key_lengths": {"key_lengths": np.array([4, 7])},
    "window": {"window": (2, 1)},
    "scale": {"scale": 0.9},
    "softcap": {"softcap": 0.7},
    "alibi_slopes": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 0.3])},
    "position_bias": {"position_bias": np.random.default_rng(3).standard_normal((4, 7))},
    "sinks": {"sinks": np.array([0.5, -1, 2, 1])},
    "attn_mask": {"attn_mask": np.random.default_rng(4).standard_normal((2, 1, 6, 9))},
    "key_mask": {"key_mask": np.arange(9) % 3 > 0},
    "block_mask": {"block_mask": np.array([True, False, True, True]).reshape(1, 4, 1, 1)},
}


def _in_dtype(options: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Options with floating-point arrays in the dtype of a call."""
    kinds = {"attn_mask": dtype}
    return {
        name: x.astype(kinds.get(name, accumulator_of(dtype))) if getattr(x, "dtype", None) == np.float64 else x
        for name, x in options.items()
    }


@pytest.mark.parametrize("name", sorted(SCORE_OPTIONS))
def test_an_option_that_is_ignored_is_noticed(name: str, isa: str, dtype: Any) -> None:
    plain = make_call(SMALL, dtype)
    call = Call(*plain.arrays, _in_dtype(OPTIONS[name], dtype))
    found = _differentiate(call)
    dense = dict(call.options)
    for mask in ("key_mask", "block_mask"):  # the bounds know no other masks than attn_mask
        if mask in dense:
            seen = reference.visible_keys((2, 4, 6, 9), **{mask: dense.pop(mask)})
            dense["attn_mask"] = seen
    _assert_all_close(found, Call(*plain.arrays, dense), name)
    del call.options[name]
    with pytest.raises(AssertionError, match="elements are off"):
        _assert_all_close(found, Call(*plain.arrays, call.options), f"without {name}")


MIXTURES: list[dict[str, Any]] = [
    *OPTIONS.values(),
    {},
    {name: x for options in OPTIONS.values() for name, x in options.items() if name not in ("block_mask", "window")},
    {**OPTIONS["alibi_slopes"], "alibi_slopes": np.array([[0.5, 0.2, 0.1, 0], [0.3, 0.4, -0.1, 1]]), "softcap": 2.0},
]


@pytest.mark.parametrize("options", MIXTURES, ids=lambda options: "-".join(options) or "plain")
def test_the_oracle_against_differences(options: dict[str, Any]) -> None:
    assert {name for mixture in MIXTURES for name in mixture} == SCORE_OPTIONS
    call = Call(*make_call(SMALL, np.float64).arrays, options)
    dout, dlse = _upstream(call)
    given = dict(zip(ARRAYS, call.arrays, strict=True)) | options
    found = reference.attention_gradient(*call.arrays, dout, dlse=dlse, **options)
    rng = np.random.default_rng(1)
    for name in differentiable(options):
        direction = rng.standard_normal(given[name].shape)

        def along(step: float, name: str = name, direction: Array = direction) -> float:
            moved = given | {name: given[name] + step * direction}
            out, lse = reference.scaled_dot_product_attention(**moved, return_lse=True)
            return float((out * dout).sum() + np.where(np.isinf(lse), 0, lse * dlse).sum())

        # Of order 4, so that a step of 1e-3 leaves an error near 1e-12.
        slope = (8 * (along(1e-3) - along(-1e-3)) - (along(2e-3) - along(-2e-3))) / 12e-3
        parts = found[name] * direction
        assert abs(slope - parts.sum()) <= 1e-9 * max(1, np.abs(parts).sum()), name


def test_the_oracle_against_torch() -> None:
    torch = pytest.importorskip("torch")
    options = MIXTURES[-2] | {"query_offset": np.array([1, 2])}
    call = Call(*make_call(SMALL, np.float64).arrays, options)
    dout, dlse = map(torch.tensor, _upstream(call))
    names = differentiable(options)
    given = dict(zip(ARRAYS, call.arrays, strict=True)) | options
    leaf = {name: torch.tensor(given[name], requires_grad=True) for name in names}
    key, value = (leaf[name].repeat_interleave(2, 1) for name in ("key", "value"))
    scores = options["scale"] * leaf["query"] @ key.transpose(-1, -2)
    scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    distance = torch.arange(9) - (torch.tensor(options["query_offset"])[:, None, None] + torch.arange(6)[:, None])
    scores = scores - leaf["alibi_slopes"][:, None, None] * distance[:, None].abs()
    scores = scores + leaf["position_bias"][:, distance.clamp(-3, 3) + 3].transpose(0, 1) + leaf["attn_mask"]
    masks = {name: options[name] for name in ("is_causal", "query_offset", "key_lengths", "key_mask")}
    scores = scores.masked_fill(~torch.tensor(reference.visible_keys((2, 4, 6, 9), **masks)), -np.inf)
    sinks = leaf["sinks"][:, None, None].expand(2, 4, 6, 1)
    every = torch.cat([scores, sinks], -1)
    out, lse = every.softmax(-1)[..., :9] @ value, every.logsumexp(-1)
    ((out * dout).sum() + (lse * dlse).sum()).backward()
    found = reference.attention_gradient(*call.arrays, dout.numpy(), dlse=dlse.numpy(), **options)
    for name in names:
        np.testing.assert_allclose(found[name], leaf[name].grad.numpy(), rtol=1e-11, atol=1e-12, err_msg=name)


BITS = Case("gradient-bits", "", B=3, H=4, Hk=2, Tq=150, Tk=200, D=24, Dv=17, is_causal=True, query_offset=(0, 9, 60))
LONG = Case("gradient-spans", "four spans of one head, shared among threads", H=1, Tq=150, Tk=1600, D=24, Dv=17)


@pytest.mark.parametrize("case", [BITS, LONG], ids=str)
@pytest.mark.parametrize("all_options", [False, True])
def test_bits_do_not_depend_on_threads(case: Case, all_options: bool, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    if all_options:
        rng = np.random.default_rng(0)
        more = {"alibi_slopes": rng.random(case.H), "position_bias": rng.standard_normal((case.H, 31))}
        more |= {"sinks": rng.standard_normal(case.H), "attn_mask": rng.standard_normal((case.Tq, case.keys))}
        call.options.update(_in_dtype(more | {"softcap": 3.0}, dtype))
    expected = _differentiate(call, num_threads=1)
    for num_threads in (2, 3, 4):
        _assert_same(_differentiate(call, num_threads=num_threads), expected, label=f"{num_threads} threads")


@every_dtype
def test_bits_do_not_depend_on_the_batch(isa: str, dtype: Any) -> None:
    call = make_call(BITS, dtype)
    call.options["attn_mask"] = np.random.default_rng(0).standard_normal((3, 4, 150, 200)).astype(dtype)
    together = _differentiate(call, wrt=(*ARRAYS, "attn_mask"))
    dout, dlse = _upstream(call)
    out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    for b in range(3):
        alone = attention_gradient(
            *(x[b] for x in (*call.arrays, out, lse, dout)),
            call.options["attn_mask"][b],
            dlse=dlse[b],
            wrt=(*ARRAYS, "attn_mask"),
            is_causal=True,
            query_offset=BITS.query_offset[b],  # type: ignore[index]
        )
        for name in (*ARRAYS, "attn_mask"):
            assert_same_bits(getattr(alone, name), getattr(together, name)[b], label=f"{name} of {b}")


@every_dtype
@matrix(seed=nightly(range(60), quick=range(4)))
def test_ragged_batches(seed: int, isa: str, dtype: Any) -> None:
    batch = ragged.random_batch(seed, dtype)
    out, lse = mha_native.scaled_dot_product_attention_varlen(*batch.arguments, return_lse=True, **batch.options)
    rng = np.random.default_rng(seed)
    dout, dlse = rng.standard_normal(out.shape).astype(dtype), rng.standard_normal(lse.shape).astype(lse.dtype)
    wrt = differentiable(batch.options)
    found, one = (
        attention_gradient_varlen(
            *batch.arguments, out, lse, dout, dlse=dlse, wrt=wrt, num_threads=threads, **batch.options
        )
        for threads in (3, 1)
    )
    _assert_same(found, one)
    sums = {name: np.zeros(batch.options[name].shape) for name in wrt if name not in ARRAYS}
    rows = zip(batch.rows(), batch.sequences(), strict=True)
    for b, ((q, k), (_, arrays, options)) in enumerate(rows):
        heads_first = (ragged.heads_first(x[q]) for x in (out, lse, dout))
        of_wrt = tuple(name for name in wrt if name != "attn_mask" or options["attn_mask"].dtype != bool)
        dense = attention_gradient(
            *arrays, *heads_first, dlse=ragged.heads_first(dlse[q]), wrt=of_wrt, num_threads=1, **options
        )
        for name, part in (("query", q), ("key", k), ("value", k)):
            expected = ragged.heads_first(getattr(dense, name))
            assert_same_bits(getattr(found, name)[part], np.ascontiguousarray(expected), label=f"{name} of {b}")
        for name in sums:
            gradient = getattr(dense, name)
            if name == "alibi_slopes" and sums[name].ndim == 2:
                sums[name][b] += gradient
            elif name == "attn_mask":
                rows_of_mask = slice(None) if sums[name].shape[1] == 1 else q
                sums[name][:, rows_of_mask, : gradient.shape[2]] += gradient
            else:
                sums[name] += gradient
    eps = float(np.finfo(lse.dtype).eps)
    for name, expected in sums.items():
        error = np.abs(getattr(found, name) - expected)
        assert (error <= 100 * eps * max(1, np.abs(expected).max(initial=0))).all(), name


def _reversed_axes(x: Array) -> Array:
    return np.asfortranarray(x)


def _backwards(x: Array) -> Array:
    flipped = x[(slice(None, None, -1),) * x.ndim].copy()
    return flipped[(slice(None, None, -1),) * x.ndim]


def _every_third(x: Array) -> Array:
    return np.repeat(x, 3, -1)[..., ::3]


@every_dtype
@pytest.mark.parametrize("layout", [_reversed_axes, _backwards, _every_third], ids=lambda f: f.__name__.strip("_"))
def test_memory_as_it_lies(layout: Callable[[Array], Array], isa: str, dtype: Any) -> None:
    case = Case("gradient-views", "", B=2, H=4, Hk=2, Tq=37, Tk=101, D=32, Dv=16, is_causal=True, mask="finite BHQK")
    call = make_call(case, dtype)
    dout, dlse = _upstream(call)
    out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    mask = call.options["attn_mask"]
    wrt = (*ARRAYS, "attn_mask")
    given = (*call.arrays, out, lse, dout, mask, dlse)
    views = tuple(map(layout, given))
    for view, array in zip(views, given, strict=True):
        assert np.array_equal(view, array)
        view.flags.writeable = False
    expected, found = (
        attention_gradient(*arrays[:-1], dlse=arrays[-1], wrt=wrt, is_causal=True) for arrays in (given, views)
    )
    _assert_same(found, expected)
    for view, array in zip(views, given, strict=True):
        assert np.array_equal(view, array), "inputs are only read"


@pytest.mark.parametrize("repeated", ["query", "key"])
def test_a_batch_of_one_that_is_repeated(repeated: str, isa: str, dtype: Any) -> None:
    call = make_call(Case("gradient-repeated", "", B=3, H=2, Tq=20, Tk=30), dtype)
    arrays = dict(zip(ARRAYS, call.arrays, strict=True))
    for name in ("query",) if repeated == "query" else ("key", "value"):
        arrays[name] = arrays[name][:1]
    full = Call(*(np.broadcast_to(x, (3, *x.shape[1:])).copy() for x in arrays.values()), {})
    dout, dlse = _upstream(full)
    out, lse = mha_native.scaled_dot_product_attention(**arrays, return_lse=True)
    found = attention_gradient(**arrays, out=out, lse=lse, dout=dout, dlse=dlse)
    expected = gradient_tolerance.gradients(full.arrays, dout, dlse, {})
    for name, (exact, bound) in expected.items():
        if len(arrays[name]) == 1:
            exact, bound = exact.sum(0, keepdims=True), 2 * bound.sum(0, keepdims=True)
        assert_close(getattr(found, name), exact, bound, label=name)


HIDDEN: dict[str, dict[str, Any]] = {
    "key_mask": {"key_mask": np.arange(200) % 7 != 3},
    "key_lengths": {"key_lengths": np.array([130])},
    "window": {"window": (3, 2), "query_offset": 190},
    "boolean": {"attn_mask": (np.arange(200) % 5 != 2) & (np.arange(90)[:, None] % 4 != 1)},
    "additive": {"attn_mask": np.where((np.arange(200) % 5 != 2) & (np.arange(90)[:, None] < 40), 0.5, -np.inf)},
    "causal": {"is_causal": True, "query_offset": -40},
    "blocks": {"block_mask": np.array([[1, 0, 1, 0], [0, 0, 0, 0]], bool)},
}


@pytest.mark.parametrize("filling", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("which", HIDDEN)
def test_hidden_memory_reaches_no_gradient(which: str, filling: float, isa: str, dtype: Any) -> None:
    plain = make_call(Case("gradient-hidden", "", H=4, Hk=2, Tq=90, Tk=200, D=20, Dv=17), dtype)
    options = _in_dtype(HIDDEN[which], dtype) | _in_dtype({"softcap": 3.0, **OPTIONS["position_bias"]}, dtype)
    options |= _in_dtype(OPTIONS["alibi_slopes"], dtype)
    seen = reference.attention_weights(*plain.arrays[:2], **options)[0] > 0
    no_key, unseen = ~seen.any((0, 2)), ~seen.any((0, 1))
    assert no_key.any() or unseen.any()
    call = Call(*plain.arrays, options)
    dout, dlse = _upstream(call)
    out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True, **options)
    wrt = differentiable(options)
    clean = attention_gradient(*call.arrays, out, lse, dout, dlse=dlse, wrt=wrt, **options)
    bounds = gradient_tolerance.gradients(call.arrays, dout, dlse, _with_dense_masks(options, seen))
    hidden = [x.copy() for x in (*call.arrays, out, dout, dlse)]
    for x, rows in zip(hidden, (no_key, unseen, unseen, no_key, no_key, no_key), strict=True):
        x[:, :, rows] = filling
    query, key, value, out, dout, dlse = hidden
    found = attention_gradient(query, key, value, out, lse, dout, dlse=dlse, wrt=wrt, **options)
    assert not found.query[:, :, no_key].any(), "exact zeros"
    assert not found.key[:, :, unseen].any(), "exact zeros"
    assert not found.value[:, :, unseen].any(), "exact zeros"
    for name in wrt:
        for gradients in (found, clean):
            assert_close(getattr(gradients, name), *bounds[name], label=f"{which} {name}")


def _with_dense_masks(options: dict[str, Any], seen: Array) -> dict[str, Any]:
    """The options with an attn_mask in place of the masks that bounds do not know."""
    rest = {name: x for name, x in options.items() if name not in ("key_mask", "block_mask")}
    return rest if len(rest) == len(options) else rest | {"attn_mask": seen}


@pytest.mark.parametrize("filling", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("which", ["query", "key", "value", "dout"])
def test_what_is_not_finite_stays_where_it_is_seen(which: str, filling: float, isa: str, dtype: Any) -> None:
    call = make_call(Case("gradient-not-finite", "", H=2, Hk=1, Tq=90, Tk=90, D=20, Dv=17, is_causal=True), dtype)
    clean = _differentiate(call)
    bounds = gradient_tolerance.gradients(call.arrays, *_upstream(call), call.options)
    arrays = dict(zip(ARRAYS, call.arrays, strict=True))
    dout, dlse = _upstream(call)
    at = 41
    if which == "dout":
        dout[:, :, at, 5] = filling
    else:
        arrays[which][:, :, at, 5] = filling
    with np.errstate(invalid="ignore"):
        out, lse = mha_native.scaled_dot_product_attention(**arrays, return_lse=True, is_causal=True)
        found = attention_gradient(**arrays, out=out, lse=lse, dout=dout, dlse=dlse, is_causal=True)
    if which in ("query", "dout"):  # row `at` sees keys up to `at`
        rows = np.arange(90) != at
        untouched = {"query": rows, "key": np.arange(90) > at, "value": np.arange(90) > at}
    else:  # key `at` is seen from row `at` on, and these rows see all keys before
        before = np.arange(90) < at
        none = np.zeros(90, bool)
        untouched = {"query": before, "key": none, "value": none}
    for name, rows in untouched.items():
        exact, bound = (x[:, :, rows] for x in bounds[name])
        assert_close(getattr(found, name)[:, :, rows], exact, bound, label=name)
        assert_close(getattr(clean, name)[:, :, rows], exact, bound, label=name)
    assert not np.isfinite(found.query[:, :, at]).all(), "a row that sees it shows it"


@every_dtype
@pytest.mark.parametrize("sizes", [{"Tq": 0}, {"Tk": 0}, {"H": 0, "Hk": 0}, {"D": 0}, {"Dv": 0}, {"B": 0}], ids=str)
def test_empty_sizes(sizes: dict[str, int], isa: str, dtype: Any) -> None:
    case = Case("gradient-empty", "", **({"B": 2, "H": 2, "Tq": 5, "Tk": 7, "D": 8, "Dv": 6} | sizes))  # type: ignore[arg-type]
    call = make_call(case, dtype)
    call.options["position_bias"] = np.zeros((case.H, 5), accumulator_of(dtype))
    found = _differentiate(call)
    arguments = dict(zip(ARRAYS, call.arrays, strict=True)) | call.options
    for name, argument in arguments.items():
        gradient = getattr(found, name)
        assert gradient.shape == argument.shape, name
        assert np.isfinite(gradient).all(), name
    if "D" in sizes:  # all scores are 0: the gradient of value is a mean
        expected = gradient_tolerance.gradients(call.arrays, *_upstream(call), call.options)
        assert_close(found.value, *expected["value"], label="value")
    if case.keys == 0:
        assert not any(gradient.any() for gradient in found if gradient is not None)


def test_hidden_blocks_are_not_read(isa: str, dtype: Any) -> None:
    # The blocks of a triangle without its first column, and a query block that sees nothing.
    call = make_call(Case("gradient-blocks", "", H=2, Tq=250, Tk=300, D=16, Dv=24), dtype)
    blocks = np.tri(4, 5, dtype=bool)
    blocks[:, 0] = False
    seen = reference.visible_keys((1, 2, 250, 300), block_mask=blocks)
    dense = Call(*call.arrays, {"attn_mask": seen})
    expected = gradient_tolerance.gradients(call.arrays, *_upstream(call), dense.options)
    for x, axes in zip(call.arrays, ((0, 1, 3), (0, 1, 2), (0, 1, 2)), strict=True):
        x[:, :, ~seen.any(axes)] = np.nan
    found = _differentiate(Call(*call.arrays, {"block_mask": blocks}))
    for name, (exact, bound) in expected.items():
        assert_close(getattr(found, name), exact, bound, label=name)


@every_dtype
def test_only_what_is_asked_for(isa: str, dtype: Any) -> None:
    case = Case(
        "gradient-wrt", "", B=2, H=4, Hk=2, Tq=70, Tk=600, D=20, Dv=17, mask="additive BHQK", softcap=2.0, alibi=True,
        position_bias=9, sinks=True, is_causal=True, query_offset=500,
    )  # fmt: skip
    call = make_call(case, dtype)
    names = differentiable(call.options)
    assert set(names) == set(AttentionGradients._fields)
    every = _differentiate(call)
    for wrt in [(), *((name,) for name in names), ("query", "value"), ("sinks", "key"), ("value", "attn_mask")]:
        expected = AttentionGradients(**{name: getattr(every, name) for name in wrt})
        _assert_same(_differentiate(call, wrt=wrt), expected, label=str(wrt))
    without_lse = _differentiate(call, dlse=None)
    _assert_same(_differentiate(call, dlse=np.zeros_like(_upstream(call)[1])), without_lse)


def _good() -> dict[str, Any]:
    """A call without a fault: B 2, H 4, Hk 2, Tq 5, Tk 7, D 8, Dv 6."""
    shapes = {"query": (2, 4, 5, 8), "key": (2, 2, 7, 8), "value": (2, 2, 7, 6), "out": (2, 4, 5, 6), "lse": (2, 4, 5)}
    shapes |= {"dout": shapes["out"], "dlse": shapes["lse"]}
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def _good_ragged() -> dict[str, Any]:
    """The same in two sequences, of 2 and 3 queries and 3 and 4 keys."""
    shapes = {"query": (5, 4, 8), "key": (7, 2, 8), "value": (7, 2, 6), "out": (5, 4, 6), "lse": (5, 4)}
    shapes |= {"dout": shapes["out"], "dlse": shapes["lse"]}
    ends = {"cu_seqlens_q": np.array([0, 2, 5]), "cu_seqlens_k": np.array([0, 3, 7])}
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()} | ends


FUNCTIONS = [(attention_gradient, _good), (attention_gradient_varlen, _good_ragged)]
each_function = pytest.mark.parametrize(("function", "make"), FUNCTIONS, ids=["dense", "varlen"])
RESULTS = ("out", "lse", "dout", "dlse")


def _assert_refused(function: Callable[..., Any], kind: type[Exception], argument: str, **arguments: Any) -> None:
    with pytest.raises(kind) as error:
        function(**arguments)
    message = str(error.value)
    assert re.match(rf"{function.__name__}: .*\b{argument}\b", message), message
    assert "\n" not in message


@each_function
@pytest.mark.parametrize("name", [*ARRAYS, *RESULTS])
def test_wrong_shapes_and_dtypes(name: str, function: Callable[..., Any], make: Callable[[], dict[str, Any]]) -> None:
    good = make()
    function(**good)
    array = good[name]
    for axis in range(array.ndim):
        longer = np.repeat(array, 3, axis)
        if name != "query" and (name, axis) != ("value", array.ndim - 1):  # whose sizes others must have
            _assert_refused(function, ValueError, name, **good | {name: longer})
    for shape in ((1,), (1, 1, *array.shape), ()):
        _assert_refused(function, ValueError, name, **good | {name: np.ones(shape, np.float32)})
    for dtype in ("float64", "float16", "int32", "bool", "complex64", "object"):
        argument = "query|key|value|out|dout" if name in ARRAYS else name
        _assert_refused(function, TypeError, argument, **good | {name: array.astype(dtype)})
    _assert_refused(function, TypeError, name, **good | {name: "text"})
    if name != "dlse":
        _assert_refused(function, TypeError, name, **good | {name: None})


@each_function
def test_wrong_wrt(function: Callable[..., Any], make: Callable[[], dict[str, Any]]) -> None:
    good = make()
    for wrt in ("query", ["query"], None, 3, (3,), {"query"}):
        _assert_refused(function, TypeError, "wrt", **good, wrt=wrt)
    for wrt in (("quary",), ("query", ""), ("out",), ("softcap",), ("scale",)):
        _assert_refused(function, ValueError, "wrt", **good, wrt=wrt)
    for name in gradient_tolerance.OPTIONS:
        _assert_refused(function, ValueError, f"wrt names {name}", **good, wrt=("query", name))
    mask = np.ones((5, 7) if make is _good else (1, 5, 4), bool)
    _assert_refused(function, TypeError, "attn_mask", **good, attn_mask=mask, wrt=("attn_mask",))


def test_other_arguments_that_are_refused() -> None:
    _assert_refused(attention_gradient, TypeError, "unknown", **_good(), unknown=1)
    _assert_refused(attention_gradient, ValueError, "num_threads", **_good(), num_threads=0)
    wide = np.ones((2, 4, 5))
    _assert_refused(attention_gradient, TypeError, "lse must be of the dtype of scores", **_good() | {"lse": wide})
    _assert_refused(attention_gradient, ValueError, "sinks", **_good(), sinks=np.ones(3, np.float32))
    cache = mha_native.KVCache(2, 2, 7, 8, 6)
    good = _good()
    cache.append(good.pop("key"), good.pop("value"))
    _assert_refused(attention_gradient, TypeError, "key", **good, key=cache, value=None)
    _assert_refused(attention_gradient, TypeError, "key", **good, key=cache, value=_good()["value"])
