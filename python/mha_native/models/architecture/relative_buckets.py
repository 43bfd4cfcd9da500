"""The relative position buckets of T5 and MPNet, as the score option `position_bias`."""

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray


def position_bias_of_buckets(table: NDArray[Any], max_distance: int = 128, is_causal: bool = False) -> NDArray[Any]:
    """Return the bias of each distance and head, [H, 2 R + 1] with R = `max_distance`, from a table [buckets, H].

    The first half of the buckets is for the query itself and keys before it, the other half for keys after it.
    Distances from `max_distance` on have the last bucket of their half. If `is_causal`, all buckets are for the query
    itself and keys before it. Keys after it, which no query sees, then have the bucket of the query itself.
    """
    half = len(table) if is_causal else len(table) // 2
    buckets = [_bucket(distance, half, max_distance) for distance in range(max_distance + 1)]
    after = [0] * max_distance if is_causal else [half + bucket for bucket in buckets[1:]]
    rows = buckets[::-1] + after
    bias: NDArray[Any] = np.ascontiguousarray(table[rows].T)
    return bias


def _bucket(distance: int, buckets: int, max_distance: int) -> int:
    """Return the bucket of a distance in one direction with `buckets` buckets.

    Each bucket of the first half is one distance n. The others divide the logarithms from there to `max_distance`:

        exact + floor((buckets - exact) * log(n / exact) / log(max_distance / exact)),  where exact = buckets // 2

    The definition takes logarithms in float32. Here powers of integers are compared, so that no boundary depends on the
    rounding of a logarithm. The buckets are the same.
    """
    exact = buckets // 2
    if distance < exact:
        return distance
    steps = buckets - exact
    # The boundaries grow with i. A damaged file can ask for thousands of them, and the powers are then long.
    power, divisor = distance**steps, exact**steps
    return exact + bisect_left(range(1, steps), True, key=lambda i: power * exact**i < max_distance**i * divisor)
