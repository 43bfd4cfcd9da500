"""How far statistics of the weights may be from the float64 oracle, from what `tolerance` says of the weights.

With the bound b_j of a weight: the largest weight is off by max_j b_j; a sum over the queries by sum_i b_ij, and it
rounds once, since it is made in float64; a mean distance by sum_j b_j |p - j| + (gamma(2 n) + 2 eps) sum_j w_j |p - j|,
where 2 eps are for distances beyond 2^24.

The entropy -sum_j w_j log w_j moves by sum_j b_j (1 + |log w_j|). With m = max_j w_j it is computed as -sum_j w_j
log(w_j / m) - log m sum_j w_j, two terms of one sign. The logarithms are those of weights before they are rounded, and
off by no more than b_j / w_j together, which another b_j (1 + |log w_j|) has room for; each sum is a chain, gamma(2 n)
of the entropy at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tolerance
from element_types import accumulator_of, is_half, limits
from tolerance import assert_close, assert_same_bits

from mha_native import attention_statistics, attention_weights, reference

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ExpectedStatistics:
    """What the oracle says of the weights, and how far from it a result may be; each bound is named after its field."""

    entropy: Array
    max_weight: Array
    mean_distance: Array
    received_weight: Array
    bounds: dict[str, Array]


def statistics(query: Array, key: Array, options: dict[str, Any]) -> ExpectedStatistics:
    """Oracle and bounds for `attention_statistics` of inputs with four axes."""
    dtype = accumulator_of(query.dtype)
    info = limits(dtype)
    eps, keys, queries = float(info.eps), key.shape[2], query.shape[2]
    expected = tolerance.attention(query, key, key[..., :0], options, dtype)
    weights, off = expected.weights, expected.weights_bound
    entropy, max_weight, _, mean_distance, received_weight = reference.attention_statistics(query, key, **options)
    with np.errstate(all="ignore"):
        size = np.abs(np.log(np.where(weights > 0, weights, 2 * float(info.tiny))))
        position = np.reshape(options.get("query_offset", 0), (-1, 1, 1, 1)) + np.arange(queries)[:, None]
        chain = tolerance.gamma(2 * keys, eps)
        in_float64 = tolerance.gamma(queries, float(np.finfo(np.float64).eps))
        bounds = {
            "entropy": 2 * (off * (1 + size)).sum(-1) + 2 * chain * entropy + 2 * eps * entropy,
            "max_weight": off.max(-1, initial=0),
            "mean_distance": (off * np.abs(position - np.arange(keys))).sum(-1) + (chain + 2 * eps) * mean_distance,
            "received_weight": off.sum(-2) + (in_float64 + eps) * received_weight,
        }
    return ExpectedStatistics(entropy, max_weight, mean_distance, received_weight, bounds)


def assert_statistics(
    query: Array, key: Array, options: dict[str, Any], label: str, expected: ExpectedStatistics | None = None
) -> None:
    """Check `attention_statistics` against the oracle, and by bits against the weights where these say the same."""
    expected = expected or statistics(query, key, options)
    actual = attention_statistics(query, key, **options)
    for name, bound in expected.bounds.items():
        array = getattr(actual, name)
        assert array.dtype == accumulator_of(query.dtype)
        assert_close(array, getattr(expected, name), bound, label=f"{label} {name}")
    weights = attention_weights(query, key, **options)
    rounded = actual.max_weight.astype(query.dtype)
    assert_same_bits(rounded, weights.max(-1, initial=0), label=f"{label} max_weight")
    assert actual.max_key.dtype == np.int64
    with_one_more = np.pad(weights, [(0, 0), (0, 0), (0, 0), (0, 1)])  # there may be no keys
    first = np.where(actual.max_weight > 0, with_one_more.argmax(-1), -1)
    if is_half(query.dtype):  # of weights that are rounded more than one may be the largest
        its_weight = np.take_along_axis(with_one_more, actual.max_key[..., None], -1)[..., 0]
        assert_same_bits(its_weight, rounded, label=f"{label} max_key")
        assert (actual.max_key >= first).all()
    else:
        assert np.array_equal(actual.max_key, first), f"{label} max_key"
