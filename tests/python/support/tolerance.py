"""How far a result may be from the float64 oracle: one derived bound, used by every numeric comparison.

A sum of n products
-------------------
With unit roundoff u = eps / 2, a chain of n rounded operations on terms t_j is off by at most n u sum|t_j|. Rounding
errors behave like independent random variables of mean zero, so the error is below lambda sqrt(n) u sum|t_j| with
probability 1 - 2 n exp(-lambda^2 / 2) (Higham and Mary, 2019). lambda = 6 leaves 3e-8 n. So

    gamma(n) = min(n / 2, 3 sqrt(n)) eps

Scores
------
s_j = scale q.k_j + b_j. With a_j = |scale| sum_d |q_d k_jd|, the sum is off by gamma(D) a_j. The scale, its product
with log2(e), the addition of the bias and the subtraction of the maximum m round at most six times, each by u times a
magnitude below a_j + |b_j|, or by u |s_j - m| <= u |log w_j|. A polynomial exponential adds 2 eps. So log w_j is off
by

    delta_j = (gamma(D) + 3 eps) (a_j + |b_j|) + (2 + |log w_j|) eps

and the weight, before it is normalised, by a factor 1 +- r_j with r_j = expm1(delta_j).

A softcap c makes c tanh(t_j) of the scaled score, with t_j = scale q.k_j / c. What the score is off by so far, e_j =
(gamma(D) + 3 eps) a_j, counts 1 / cosh(t_j)^2 times; or, since e_j need not be small against c, what that is at most
within e_j / c of t_j. A relative change of t_j or of c changes the result relatively by no more: 1 / c, its product
with the score and c itself round three times, the last product once, and the hyperbolic tangent adds 3 eps. Those are
5 eps of what comes out, which is also what all later steps round:

    (gamma(D) + 3 eps) a_j   becomes   e_j / cosh(max(|t_j| - e_j / c, 0))^2 + (5 + 3) eps |c tanh t_j|

The term of ALiBi, slope times distance, is one more bias. It rounds four times: the position and the distance (beyond
2^24), the product, the sum; each by u times a magnitude below a_j + |b_j|. With it the 3 eps are 5 eps. An entry of
position_bias is another bias, whose sum rounds once more: 1 eps.

Results
-------
The normalised weight depends on the other errors through their mean R = sum_i w_i r_i, and on the rounding of the sum.
A sink is one of the i: a score of size |sink| that no sum over d went into. Sums over keys, and their rescaling when
the running maximum moves, are a chain of at most 2 n operations, with n = Tk, or Tk + 1 with a sink:

    weights   w_j (r_j + R + gamma(2 n))
    lse       R + gamma(2 n) + 2 eps (|lse| + log(n) + 1)          (the last: changes of base and the logarithm)
    out       sum_j w_j r_j |v_j| + R |out| + gamma(2 n) (sum_j w_j |v_j| + |out|)

Types of 16 bits
----------------
Everything above is computed in float32, with its eps, and exact inputs. With e = eps of the type, results are rounded
to it once, by e / 2 of themselves. A kernel that multiplies pairs of bfloat16 rounds each weight before its product
with a value, by e / 2 of it at most: sum_j w_j |v_j| e / 2. That sum is also no less than |out|, so that beside the
bounds of float32

    out       e sum_j w_j |v_j|
    weights   e / 2 w_j
    scores    e / 2 |s_j|

lse and statistics are float32 and see no rounding.

Numbers below the smallest normal one of the type that is computed in count as 0, as operands and as results: each
factor of a product, each product and each sum may be off by so much. exp(s_j - m) may be lost below twice that, since
an exponential that scales by adding to the exponent field needs one to spare.

Layers
------
A projection x W + b of n features is off by gamma(n + 1) (|x| |W| + |b|), plus |x's error| |W|. The errors of q, k and
v enter delta_j as |scale| sum_d (|dq_d| |k_jd| + |q_d| |dk_jd|) and `out` as sum_j w_j |dv_j|.

Keys that a layer adds are a shard, whose lse is a sink of the other keys and makes its share of the weight, exp(lse of
the shard - lse). So the weights of all keys together are off, relatively, by the bounds of both lse more. Those have
room for the rounding of the product, too.

In 16 bits, with e as above: what a projection gives is rounded once, and so are the heads. A joined result and a joined
weight are rounded once more, each by e / 2 of its magnitude. bfloat16 may take a subnormal factor for 0 here, too. Such
errors are a thousand times those of float32, and sums of them are bounded as the independent ones that they are: at 6
standard deviations, which of a rounding of y are sqrt(3) e |y|, and in quadrature over d, over j and over features.

Every bound is of first order in eps. `weights` and `out` of one row have one bound for each element: nothing is
measured against the largest element of an array. Comparisons are written `not (error <= bound)`, so that NaN fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import textbook
from element_types import BFLOAT16, accumulator_of, is_half, limits

from mha_native import MultiHeadAttention, last_used_isa, reference

Array = np.ndarray[Any, np.dtype[Any]]

SCORE_STAGES = ("scaled", "capped", "masked")

# What an element of a sentence embedding of length 1 may be off by, after all layers: the promise of docs/numerics.md.
EMBEDDING_BOUND = 1e-5
# Of embeddings in fewer bits, of layers or of weights, with those in float32; likewise.
LEAST_COSINE = {"float16": 0.999, "bfloat16": 0.999, "int8": 0.99, "int4": 0.95}


def gamma(n: float, eps: float) -> float:
    """Relative error of a chain of `n` rounded operations."""
    return float(min(n / 2, 3 * np.sqrt(n)) * eps)


@dataclass(frozen=True)
class Expected:
    """What the oracle says, and how far from it a result may be."""

    out: Array
    lse: Array
    weights: Array
    out_bound: Array
    lse_bound: Array
    weights_bound: Array


def attention(
    query: Array,
    key: Array,
    value: Array,
    options: dict[str, Any],
    dtype: Any = None,
    errors: tuple[Array, ...] | None = None,
) -> Expected:
    """Oracle and bounds for inputs [B, H, Tq, D], [B, Hk, Tk, D], [B, Hk, Tk, Dv] (or fewer leading axes).

    `errors` are bounds on the errors that query, key and value carry already; `dtype` defaults to that of query.
    """
    dtype = query.dtype if dtype is None else dtype
    info = limits(accumulator_of(dtype))
    eps, lost = float(info.eps), 2 * float(info.tiny)
    out, lse = reference.scaled_dot_product_attention(query, key, value, return_lse=True, **options)
    weights = reference.attention_weights(query, key, **options)
    with np.errstate(all="ignore"):
        v, keys, sinks = _size(value, query.shape), key.shape[-2], options.get("sinks")
        log_error = _score_error(query, key, options, dtype, errors)
        log_weight = np.where(weights > 0, np.log(weights), np.log(lost))
        ratio = np.expm1(log_error + (2 + np.abs(log_weight)) * eps)
        off = weights * ratio
        mean = off.sum(-1, keepdims=True)
        if sinks is not None:
            sink = sinks.astype(np.float64)[:, None, None]
            sink_weight = np.where(np.isneginf(sink), 0, np.exp(sink - lse[..., None]))
            sink_error = 3 * eps * np.abs(sink) + (2 + np.abs(np.log(sink_weight))) * eps
            mean = mean + np.where(sink_weight == 0, 0, sink_weight * np.expm1(sink_error))
            keys += 1
        chain = gamma(2 * keys, eps)
        magnitude = np.abs(out)
        out_bound = off @ v + mean * magnitude + chain * (weights @ v + magnitude)
        if errors is not None:
            out_bound = out_bound + _summed(weights, _matrix(errors[2], query.shape), dtype)
        out_bound = out_bound + keys * lost * (v.max(-2, keepdims=True, initial=0) + 1)
        lse_bound = mean[..., 0] + chain + 2 * eps * (np.abs(lse) + np.log(max(keys, 1)) + 1)
        weights_bound = off + weights * (mean + chain) + lost
        if is_half(dtype):
            once = _rounded_once(weights @ v, dtype)
            out_bound = out_bound + 2 * once
            weights_bound = weights_bound + _rounded_once(weights, dtype)
    return Expected(out, lse, weights, out_bound, lse_bound, weights_bound)


def scores(query: Array, key: Array, options: dict[str, Any], stage: str) -> tuple[Array, Array]:
    """What the oracle says of the scores at a stage, and how far from it they may be."""
    names = {"scaled": ("scale", "key_lengths"), "capped": ("scale", "key_lengths", "softcap")}.get(stage, options)
    done = {name: options[name] for name in names if name in options}
    info, head_dim = limits(accumulator_of(query.dtype)), query.shape[-1]
    with np.errstate(all="ignore"):
        bound = _score_error(query, key, done, query.dtype)
    scale, softcap = done.get("scale"), done.get("softcap", 0)
    scale = 1 if scale is None else max(1, abs(scale))
    steps = scale * (head_dim + 1) + softcap + 1  # products, scaled; the division by the cap, and all the rest
    q, k = (_size(x, query.shape).sum(-1) for x in (query, key))
    bound = bound + float(info.tiny) * (steps + scale * (q[..., None] + k[..., None, :]))
    exact = reference.attention_weights(query, key, stage=stage, **options)
    if is_half(query.dtype):
        bound = bound + _rounded_once(exact, query.dtype)
    return exact, bound


def _summed(left: Array, right: Array, dtype: Any) -> Array:
    """A product of magnitudes, one of which holds errors; those of 16 bits add up in quadrature."""
    product: Array = np.sqrt(left**2 @ right**2) if is_half(dtype) else left @ right
    return product


def _rounded_once(exact: Array, dtype: Any) -> Array:
    """How far from `exact` the nearest number of `dtype` may be."""
    return float(limits(dtype).eps) / 2 * np.abs(exact) + float(limits(dtype).smallest_subnormal) / 2


def _score_error(
    query: Array, key: Array, options: dict[str, Any], dtype: Any, errors: tuple[Array, ...] | None = None
) -> Array:
    """How far masked scores may be from the exact ones: delta_j without what the exponential adds."""
    eps = float(limits(accumulator_of(dtype)).eps)
    q, k = _size(query, query.shape), _size(key, query.shape)
    keys, head_dim = k.shape[-2:]
    scale = options.get("scale")
    scale = 1 / np.sqrt(max(head_dim, 1)) if scale is None else abs(scale)
    slopes, softcap = options.get("alibi_slopes"), options.get("softcap")
    table = options.get("position_bias")
    rounding = gamma(head_dim, eps) + (3 + 2 * (slopes is not None) + (table is not None)) * eps
    error = rounding * scale * (q @ k.swapaxes(-1, -2))
    if errors is not None:
        dq, dk = (_matrix(x, query.shape) for x in errors[:2])
        of_query, of_key = _summed(dq, k.swapaxes(-1, -2), dtype), _summed(q, dk.swapaxes(-1, -2), dtype)
        error = error + scale * (np.hypot(of_query, of_key) if is_half(dtype) else of_query + of_key)
    if softcap is not None:
        product = _matrix(query, query.shape) @ _matrix(key, query.shape).swapaxes(-1, -2)
        error = _through_softcap(error, scale * product, softcap, eps)
    bias = options.get("attn_mask")
    if bias is not None and bias.dtype != bool:
        error = error + rounding * np.where(np.isinf(bias), 0, np.abs(bias.astype(np.float64)))
    if slopes is not None:
        position = np.reshape(options.get("query_offset", 0), (-1, 1, 1, 1)) + np.arange(query.shape[-2])[:, None]
        distance = np.abs(position - np.arange(keys))
        error = error + rounding * np.abs(slopes.astype(np.float64))[..., None, None] * distance
    if table is not None:
        biases = textbook.position_biases(options, (query.shape[-2], keys)).astype(np.float64)
        error = error + rounding * np.where(np.isinf(biases), 0, np.abs(biases))
    return error


def _through_softcap(error: Array, score: Array, softcap: float, eps: float) -> Array:
    """The error of a capped score, from that of the scaled one."""
    bent = np.nan_to_num(np.abs(score) / softcap)
    steepest: Array = np.cosh(np.maximum(bent - error / softcap, 0)) ** -2.0
    return error * steepest + 8 * eps * softcap * np.tanh(bent)


def layer(layer: MultiHeadAttention, query: Array, key: Array, value: Array, options: dict[str, Any]) -> Expected:
    """Oracle and bounds for a layer; `out` [B, Tq, out_dim], the others as for its heads."""
    dtype = layer.dtype
    state, projected, errors = layer.state_dict(), [], []
    for x, (weight, bias, count) in zip((query, key, value), in_projections(layer), strict=True):
        exact, bound = projection(x, weight, bias, dtype)
        projected.append(split_heads(exact, count))
        errors.append(split_heads(bound, count))
    if layer.add_bias_kv or layer.add_zero_attn:
        inner = heads_with_added_keys(layer, projected, errors, options)
    else:
        inner = attention(*projected, options, layer.dtype, tuple(errors))
    weight, bias, of_heads = state["out_proj.weight"], state.get("out_proj.bias"), joined_heads(inner.out_bound)
    _, out_bound = projection(joined_heads(inner.out), weight, bias, dtype, of_heads)
    out, weights = reference.multi_head_attention(
        query, key, value, state, layer.num_heads, num_kv_heads=layer.num_kv_heads, add_zero_attn=layer.add_zero_attn,
        need_weights=True, **options,
    )  # fmt: skip
    return Expected(out, inner.lse, weights, out_bound, inner.lse_bound, inner.weights_bound)


def in_projections(layer: MultiHeadAttention) -> list[tuple[Array, Array | None, int]]:
    """The weight, the bias and the heads of the projections of query, key and value."""
    state, counts = layer.state_dict(), (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    rows = np.cumsum(np.multiply(counts[:2], layer.head_dim))
    weights = [state.get(f"{letter}_proj_weight") for letter in "qkv"]
    biases = [state.get(f"{letter}_proj_bias") for letter in "qkv"]
    if "in_proj_weight" in state:
        weights = np.split(state["in_proj_weight"], rows)
    if "in_proj_bias" in state:
        biases = np.split(state["in_proj_bias"], rows)
    return list(zip(weights, biases, counts, strict=True))


def split_heads(x: Array, count: int) -> Array:
    """[..., T, count * D] -> [..., count, T, D]."""
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count).swapaxes(-3, -2)


def joined_heads(x: Array) -> Array:
    """[..., H, T, D] -> [..., T, H * D]."""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], -1)


def heads_with_added_keys(
    layer: MultiHeadAttention, projected: list[Array], errors: list[Array], options: dict[str, Any]
) -> Expected:
    """`attention` for the projected heads of a layer that adds keys, which carry no error and which no mask hides."""
    query, state, dtype = projected[0], layer.state_dict(), layer.dtype
    shard, together, shard_errors, all_errors = [query], [query], [errors[0]], [errors[0]]
    for name, x, error in zip(("bias_k", "bias_v"), projected[1:], errors[1:], strict=True):
        heads, width = x.shape[-3], x.shape[-1]
        rows = [state[name].reshape(heads, 1, width).astype(np.float64)] if layer.add_bias_kv else []
        rows += [np.zeros((heads, 1, width))] if layer.add_zero_attn else []
        added = np.broadcast_to(np.concatenate(rows, -2), (*x.shape[:-2], len(rows), width)).astype(np.float64)
        shard.append(added)
        together.append(np.concatenate([x, added], -2))
        shard_errors.append(np.zeros_like(added))
        all_errors.append(np.concatenate([error, np.zeros_like(added)], -2))

    masks = dict(options)
    of_scores = {name: masks.pop(name) for name in ("scale", "softcap", "sinks") if name in masks}
    slopes = masks.pop("alibi_slopes", None)
    mask = np.asarray(masks.pop("attn_mask", True))
    shape = (*(1,) * (4 - query.ndim), *query.shape[:-1], projected[1].shape[-2])  # of the scores, [B, H, Tq, Tk]
    bias = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
    if slopes is not None:
        position = np.reshape(masks.get("query_offset", 0), (-1, 1, 1, 1)) + np.arange(shape[2])[:, None]
        bias = bias - slopes.astype(np.float64)[..., None, None] * np.abs(position - np.arange(shape[3]))
    if "position_bias" in masks:
        table = masks.pop("position_bias").astype(np.float64)
        bias = bias + textbook.position_biases({**masks, "position_bias": table}, shape[2:])
    bias = np.where(reference.visible_keys(shape, **masks), bias, -np.inf)
    bias = np.pad(bias, [(0, 0), (0, 0), (0, 0), (0, len(rows))])[(0,) * (4 - query.ndim)]
    of_shard = attention(*shard, of_scores, dtype, tuple(shard_errors))
    of_all = attention(*together, {"attn_mask": bias, **of_scores}, dtype, tuple(all_errors))
    off = (of_shard.lse_bound + of_all.lse_bound)[..., None]
    with np.errstate(all="ignore"):
        magnitude = of_all.weights @ _size(together[2], query.shape)
        out_bound, weights_bound = of_all.out_bound + off * magnitude, of_all.weights_bound + off * of_all.weights
        if is_half(dtype):
            out_bound = out_bound + _rounded_once(magnitude, dtype)
            weights_bound = weights_bound + _rounded_once(of_all.weights, dtype)
    return replace(of_all, out_bound=out_bound, weights_bound=weights_bound)


def projection(
    x: Array, weight: Array, bias: Array | None, dtype: Any, error: Array | float = 0
) -> tuple[Array, Array]:
    """x W^T + b in float64, and its bound in `dtype`: x [..., in] off by `error`, weight [out, in]."""
    eps = float(limits(accumulator_of(dtype)).eps)
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    exact, magnitude = x @ weight.T, np.abs(x) @ np.abs(weight).T
    if bias is not None:
        exact, magnitude = exact + bias, magnitude + np.abs(bias)
    bound = gamma(weight.shape[1] + 1, eps) * magnitude
    if is_half(dtype):
        bound = bound + 2 * np.sqrt(3) * _rounded_once(exact, dtype)
    if dtype == BFLOAT16:
        subnormal = float(limits(dtype).tiny)
        bound = bound + subnormal * (np.abs(x).sum(-1, keepdims=True) + np.abs(weight).sum(-1))
    return exact, bound + _summed(np.broadcast_to(error, x.shape), np.abs(weight).T, dtype)


def assert_close(actual: Array, expected: Array, bound: Array, *, label: str) -> None:
    """Each finite element within its bound; NaN and infinities exactly where the oracle has them."""
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape}, expected {expected.shape}"
    info = limits(actual.dtype)
    eps = float(info.eps)
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype(np.float64) - expected)
        finite = np.isfinite(expected)
        right = np.where(finite, error <= bound, (actual == expected) | (np.isnan(actual) & np.isnan(expected)))
        if right.all():
            return
        excess = np.where(right, -1.0, np.nan_to_num(error / bound, nan=np.inf))
        worst = np.unravel_index(np.argmax(excess), excess.shape)
        in_eps = error[worst] / (eps * max(abs(expected[worst]), float(info.tiny)))
    raise AssertionError(
        f"{label} [{last_used_isa()}, {actual.dtype}]: {np.count_nonzero(~right)} of {right.size} elements are off; "
        f"worst at {tuple(int(i) for i in worst)}: expected {expected[worst]!r}, actual {actual[worst]!r}, "
        f"error {error[worst]:.3g} ({in_eps:.3g} eps), bound {bound[worst]:.3g}"
    )


def assert_no_further_off(ours: Array, theirs: Array, exact: Array, eps: float) -> None:
    """No further from `exact` than `theirs`, and a unit in the last place of its largest element."""
    unit = eps * np.abs(exact).max()
    assert np.abs(ours - exact).max() <= np.abs(theirs - exact).max() + unit


def assert_same_bits(actual: Array, expected: Array, *, label: str = "") -> None:
    """Equal element by element, as bit patterns: -0 is not 0, and NaN equals the same NaN."""
    assert actual.dtype == expected.dtype, label
    assert actual.shape == expected.shape, label
    bits = np.dtype(f"u{actual.dtype.itemsize}")
    left, right = (np.ascontiguousarray(x).view(bits) for x in (actual, expected))
    if not np.array_equal(left, right):
        where = tuple(int(i) for i in np.argwhere(left != right)[0])
        raise AssertionError(f"{label}: first difference at {where}: {actual[where]!r} is not {expected[where]!r}")


def assert_same_numbers(actual: Array, expected: Array, *, label: str = "") -> None:
    """`assert_same_bits`, but that any NaN is as good as another."""
    if actual.dtype.kind != "i":
        actual, expected = (np.where(np.isnan(x), x.dtype.type(np.nan), x) for x in (actual, expected))
    assert_same_bits(actual, expected, label=label)


def _size(x: Array, query_shape: tuple[int, ...]) -> Array:
    """The magnitudes of a `_matrix`; what is not finite has none."""
    return np.abs(np.nan_to_num(_matrix(x, query_shape), posinf=0, neginf=0))


def _matrix(x: Array, query_shape: tuple[int, ...]) -> Array:
    """[..., T, D] in float64, key-value heads repeated for each query head of their group."""
    x = x.astype(np.float64)
    if x.ndim > 2 and x.shape[-3] != query_shape[-3]:
        x = np.repeat(x, query_shape[-3] // max(x.shape[-3], 1), axis=-3)
    return x
