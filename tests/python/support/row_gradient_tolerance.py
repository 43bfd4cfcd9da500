"""Gradients of norms and activations by the oracle, and how far from them a result may be: goes on from tolerance.py.

Errors of each step are those of its roundings; eps is that of the accumulator. With E features, g = dout weight, the
normal row n = c r, c = x - mean and r = 1 / sqrt(v + e):

    dc   = eps |c| + gamma(E + 1) mean |x|, cut to eps (|c| + mean |x|): the mean is corrected by the mean of c
    dn   = r dc + (gamma(E + 2) + 4 eps) |n|
    dm   = gamma(E + 1) mean |g| + eps |mean g|                                        m = mean g, 0 of RMSNorm
    dp   = gamma(E + 2) mean |g n| + mean |g| dn + eps |p|                             p = mean g n
    ddx  = r (dm + |n| dp + dn |p| + 2 eps (|g| + |m| + |n p|)) + (gamma(E + 2) + 4 eps) |dx|

A sum over R rows of terms t_i with errors dt_i is off by sum dt_i + gamma(64 + 1) sum |t_i|: spans of 64 rows are added
in the accumulator's type, and their sums in float64.

A derivative of an activation is 1 - u or u with u = t - a f(a), a = |x|: tail and density have the error of an
exponential of -z, which is (8 + 2 z) eps, and are 0 below the smallest normal number. So a derivative d is off by
(8 + 2 z) eps (t + a f) + 2 eps |d|, and the value by 4 eps |x|. Results of 16 bits are rounded once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from element_types import accumulator_of, limits
from tolerance import Array, gamma

from mha_native import reference

Near = tuple[Array, Array]  # the oracle, and a bound


def norm(
    x: Array, weight: Array | None, dout: Array, eps_of_norm: float, kind: str = "layer", **options: Any
) -> dict[str, Near]:
    """By names of arguments; `options` are those of ``reference.rms_norm_gradient``, if `kind` is "rms"."""
    dtype, features = x.dtype, x.shape[-1]
    eps = float(limits(accumulator_of(dtype)).eps)
    z, do, w = (np.asarray(1.0 if a is None else a).astype(np.float64) for a in (x, dout, weight))
    exact = getattr(reference, f"{kind}_norm_gradient")(
        z, None if weight is None else w, do, eps=eps_of_norm, **options
    )

    def mean(a: Array) -> Array:
        return a.mean(-1, keepdims=True)

    is_centred = kind == "layer"
    c = z - mean(z) if is_centred else z
    r = 1 / np.sqrt(mean(c**2) + eps_of_norm)
    n, g = c * r, do * (w + options.get("unit_offset", False))
    dc = eps * (np.abs(c) + mean(np.abs(z))) if is_centred else 0 * z
    dn = r * dc + (gamma(features + 2, eps) + 4 * eps) * np.abs(n)
    m, p = mean(g) * is_centred, mean(g * n)
    dm = (gamma(features + 1, eps) * mean(np.abs(g)) + eps * np.abs(m)) * is_centred
    dp = gamma(features + 2, eps) * mean(np.abs(g * n)) + mean(np.abs(g) * dn) + eps * np.abs(p)
    ddx = r * (dm + np.abs(n) * dp + dn * np.abs(p) + 2 * eps * (np.abs(g) + np.abs(m) + np.abs(n * p)))
    bounds = {
        "x": ddx + (gamma(features + 2, eps) + 4 * eps) * np.abs(exact["x"]),
        "weight": _of_rows(np.abs(do) * dn + gamma(65, eps) * np.abs(do * n)),
        "bias": _of_rows(gamma(65, eps) * np.abs(do)),
    }
    return {name: (found, _rounded(found, bounds[name], dtype)) for name, found in exact.items()}


def activation(x: Array, dout: Array, kind: str, up: Array | None = None) -> dict[str, Near]:
    """By names of arguments."""
    dtype = x.dtype
    eps = float(limits(accumulator_of(dtype)).eps)
    z, do, factor = (np.asarray(1.0 if a is None else a).astype(np.float64) for a in (x, dout, up))
    slope = reference.activation_gradient(z, np.ones_like(z), activation=kind)["x"]
    exact = reference.activation_gradient(z, do, activation=kind, up=None if up is None else factor)
    a = np.abs(z)
    with np.errstate(all="ignore"):
        exponent = {
            "relu": 0 * a,
            "gelu": a**2 / 2,
            "gelu_tanh": np.sqrt(8 / np.pi) * (a + 0.044715 * a**3),
            "silu": a,
            "quick_gelu": 1.702 * a,
        }[kind]
        exponent = np.minimum(exponent, 2000)
        # The tail, and a f(a) <= (1 + exponent's slope times a) tail.
        terms = (1 + 3 * exponent) * np.exp(-exponent)
    of_slope = eps * ((8 + 2 * exponent) * terms + 2 * np.abs(slope))
    of_slope += (1 + 3 * exponent) * float(limits(accumulator_of(dtype)).tiny)  # a tail may be 0
    bounds = {"x": np.abs(do * factor) * (of_slope + 3 * eps * np.abs(slope)), "up": np.abs(do) * 5 * eps * a}
    return {name: (found, _rounded(found, bounds[name], dtype)) for name, found in exact.items()}


def _of_rows(terms: Array) -> Array:
    total: Array = terms.reshape(-1, terms.shape[-1]).sum(0)
    return total


def _rounded(exact: Array, bound: Array, dtype: Any) -> Array:
    """Rounded to the type once; a number below the smallest normal one may be 0."""
    rounded: Array = bound + float(limits(dtype).eps) / 2 * (np.abs(exact) + bound) + float(limits(dtype).tiny)
    return rounded
