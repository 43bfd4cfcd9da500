"""How far a gradient of attention may be from the float64 oracle: the bounds of tolerance.py, taken one pass further.

Weights come from scores and lse, so the logarithm of w_j is off by the error delta_j of the score, by the error of lse
(both in tolerance.py), by eps |lse| for its change of base, and by (2 + |log w_j|) eps as there: w_j by a factor
1 +- r_j. With A_j = sum_d |dO_d v_jd| and M = sum_d |dO_d out_d| + |dlse|,

    dP_j    gamma(Dv) A_j
    delta   gamma(Dv + 1) M + sum_d |dO_d| (error of out_d)
    dS_j    w_j (r_j |dP_j - delta| + (1 + r_j) (the errors of dP_j and delta + 2 eps |dP_j - delta|))

A softcap multiplies dS_j by 1 - t^2 with t = tanh(x), x = scale q.k_j / c. x is off by e = (gamma(D) + 3 eps) a_j / c,
the tangent by 3 eps of itself, and the square and the difference round: 2 |t| e / cosh(max(|x| - e, 0))^2 + 8 eps.

Each gradient is a sum of n products of dS_j, or of w_j, with exact numbers: the errors of the factor, times the
magnitudes of those numbers, and gamma(2 n) of the sum of magnitudes; with n = Tk for dQ, Tq times the size of the group
for dK and dV, and as many elements of dS as an element of an option has a part in.

The weight of a sink is off by the error of lse and of delta.

Types of 16 bits: everything is computed in float32, but `out` has been rounded once, and pair kernels have rounded each
weight of it. Those roundings are independent, and 6 standard deviations are sqrt(3) e |y| (tolerance.py), so delta of
row i is off by h_i, their sum in quadrature over the features. That error is the same for all keys of a row: dQ is off
by h_i |sum_j w_j k_j|, and dK by the sum of h_i w_ij q_i in quadrature over the rows. Options sum it in magnitude.
Gradients of 16 bits are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tolerance
from element_types import accumulator_of, is_half, limits
from tolerance import gamma

from mha_native import reference

Array = np.ndarray[Any, np.dtype[Any]]
OPTIONS = ("attn_mask", "alibi_slopes", "position_bias", "sinks")
"""Those with a gradient. A mask has one if it is added."""


def differentiable(options: dict[str, Any]) -> tuple[str, ...]:
    """All names that `wrt` may have in a call with these options."""
    given = [name for name in OPTIONS if name in options and options[name].dtype != bool]
    return ("query", "key", "value", *given)


def gradients(
    arrays: tuple[Array, Array, Array], dout: Array, dlse: Array, options: dict[str, Any]
) -> dict[str, tuple[Array, Array]]:
    """The oracle's gradients and their bounds by name, for arrays with four axes."""
    dtype = arrays[0].dtype
    exact = reference.attention_gradient(*arrays, dout, dlse=dlse, **options)
    with np.errstate(all="ignore"):
        bounds = _bounds(arrays, dout, dlse, options)
    found = {}
    for name in differentiable(options):
        bound = bounds[name]
        if is_half(dtype) and name not in OPTIONS:
            bound = bound + float(limits(dtype).eps) / 2 * (np.abs(exact[name]) + bound)
            bound = bound + float(limits(dtype).smallest_subnormal) / 2
        found[name] = exact[name], bound
    return found


def _bounds(arrays: tuple[Array, Array, Array], dout: Array, dlse: Array, options: dict[str, Any]) -> dict[str, Array]:
    query, key, _ = arrays
    dtype, shape = query.dtype, query.shape
    info = limits(accumulator_of(dtype))
    eps, tiny = float(info.eps), float(info.tiny)
    forward = tolerance.attention(*arrays, options)
    q, k, v = (tolerance._matrix(x, shape) for x in arrays)
    do, w = dout.astype(np.float64), forward.weights
    sees_none = np.isneginf(forward.lse)
    lse, lse_error = (np.where(sees_none, 0, x)[..., None] for x in (forward.lse, forward.lse_bound))

    log_weight = np.abs(np.where(w > 0, np.log(w), np.log(2 * tiny)))
    log_error = tolerance._score_error(query, key, options, dtype) + lse_error
    ratio = np.expm1(log_error + eps * np.abs(lse) + (2 + log_weight) * eps)
    weight_error = w * ratio + 2 * tiny

    out_error, of_rounding = forward.out_bound, np.zeros(shape[:-1])
    if is_half(dtype):  # in quadrature, and by itself
        each = [2 * np.sqrt(3) * tolerance._rounded_once(x, dtype) for x in (forward.out, np.sqrt(w**2 @ v**2))]
        of_rounding = np.sqrt((do**2 * (each[0] ** 2 + each[1] ** 2)).sum(-1))
        out_error = out_error - 2 * tolerance._rounded_once(w @ np.abs(v), dtype)
    size = (np.abs(do) * np.abs(forward.out)).sum(-1) + np.abs(dlse)
    delta = ((do * forward.out).sum(-1) - dlse)[..., None]
    width = v.shape[-1]
    delta_error = gamma(width + 1, eps) * size + (np.abs(do) * out_error).sum(-1)
    delta_error = (delta_error + tiny * (np.abs(do).sum(-1) + np.abs(forward.out).sum(-1) + width))[..., None]
    product_error = gamma(width, eps) * (np.abs(do) @ np.abs(v).swapaxes(-1, -2))
    product_error += tiny * (np.abs(do).sum(-1)[..., None] + np.abs(v).sum(-1)[..., None, :] + width)
    apart = do @ v.swapaxes(-1, -2) - delta
    scores = w * apart
    all_errors = product_error + delta_error + 2 * eps * np.abs(apart)
    errors = weight_error * np.abs(apart) + (w + weight_error) * all_errors + tiny * (w > 0)
    shared = w * of_rounding[..., None]  # of 16 bits: the same error, times these

    found = _of_options(options, np.abs(scores), errors + shared, eps)
    if "sinks" in options:
        sink = options["sinks"].astype(np.float64)[:, None] - forward.lse
        share = np.where(sees_none, 0, np.exp(sink))[..., None]
        off = share * ((np.expm1(lse_error) + 2 * eps) * np.abs(delta) + delta_error + of_rounding[..., None])
        found["sinks"] = off.sum((0, 2, 3)) + tiny

    scale = options.get("scale")
    scale = 1 / np.sqrt(max(shape[-1], 1)) if scale is None else abs(scale)
    if (softcap := options.get("softcap")) is not None:
        x = scale * (q @ k.swapaxes(-1, -2)) / softcap
        off = (gamma(shape[-1], eps) + 3 * eps) * scale * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)) / softcap
        slope = np.cosh(x) ** -2.0
        slope_error = 2 * np.abs(np.tanh(x)) * np.cosh(np.maximum(np.abs(x) - off, 0)) ** -2.0 * off + 8 * eps
        errors = errors * slope + (np.abs(scores) + errors + shared) * slope_error
        scores, shared = scores * slope, shared * slope

    def chain(count: float) -> float:
        return gamma(2 * count, eps)

    group = shape[1] // max(key.shape[1], 1)
    keys, rows = key.shape[2], shape[2] * group
    lost = tiny * (1 + scale)

    def of_keys(x: Array) -> Array:
        """[B, H, Tk, D] -> [B, Hk, Tk, D]"""
        return x.reshape(len(x), key.shape[1], group, *x.shape[2:]).sum(2)

    def summed(errors: Array, sizes: Array, factors: Array, count: int) -> Array:
        factors = np.abs(factors)
        more = lost * (count + sizes.sum(-1, keepdims=True) + factors.sum(-2, keepdims=True))
        total: Array = errors @ factors + chain(count) * (sizes @ factors) + more
        return total

    sizes = np.abs(scores)
    of_query = summed(errors, sizes, k, keys) + np.abs(shared @ k)
    to_keys = [x.swapaxes(-1, -2) for x in (errors, sizes, weight_error, w)]
    found["query"] = scale * of_query + 2 * tiny
    found["key"] = scale * of_keys(summed(*to_keys[:2], q, rows)) + 2 * tiny
    found["key"] += scale * np.sqrt(of_keys((shared**2).swapaxes(-1, -2) @ q**2))
    found["value"] = of_keys(summed(*to_keys[2:], do, rows)) + 2 * tiny
    # `scale` rounds once, and the product with it.
    found["query"] += eps * scale * (sizes @ np.abs(k))
    found["key"] += eps * scale * of_keys(to_keys[1] @ np.abs(q))
    return found


def _of_options(options: dict[str, Any], sizes: Array, errors: Array, eps: float) -> dict[str, Array]:
    """For options that are added to scores: sums of `errors`, and the rounding of the sums of `sizes`."""
    found = {}
    for name, add in _sums(options, sizes.shape).items():
        count = add(np.ones_like(sizes), False)
        rounding = np.minimum(count, 3 * np.sqrt(2 * count)) * eps
        found[name] = add(errors, True) + (rounding + 4 * eps) * add(sizes, True)
    return found


def _sums(options: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Callable[[Array, bool], Array]]:
    """By options that are added to scores: the sum of x [B, H, Tq, Tk] over all scores that each element has a part in.

    The sum is weighted by the size of that part, if asked for.
    """
    position = np.reshape(options.get("query_offset", 0), (-1, 1, 1, 1)) + np.arange(shape[2])[:, None]
    distance = np.arange(shape[3]) - position

    def of_mask(x: Array, weighted: bool) -> Array:
        return _summed(x, options["attn_mask"].shape)

    def of_slopes(x: Array, weighted: bool) -> Array:
        parts = x * np.abs(distance) if weighted else x
        return _summed(parts.sum((2, 3)), options["alibi_slopes"].shape)

    def of_table(x: Array, weighted: bool) -> Array:
        total = np.zeros(options["position_bias"].shape)
        farthest = total.shape[1] // 2
        column = np.broadcast_to(np.clip(distance, -farthest, farthest) + farthest, x.shape)
        for h in range(x.shape[1]):
            total[h] = np.bincount(column[:, h].ravel(), x[:, h].ravel(), minlength=total.shape[1])
        return total

    every = {"attn_mask": of_mask, "alibi_slopes": of_slopes, "position_bias": of_table}
    return {name: add for name, add in every.items() if name in differentiable(options)}


def _summed(x: Array, shape: tuple[int, ...]) -> Array:
    wide = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, wide, strict=True)) if n != m)
    total: Array = x.sum(axes, keepdims=True).reshape(shape)
    return total
