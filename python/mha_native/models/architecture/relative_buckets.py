"""The relative position buckets of T5 and MPNet, as the score option `position_bias`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def position_bias_of_buckets(table: NDArray[Any], max_distance: int = 128, is_causal: bool = False) -> NDArray[Any]:
    """[buckets, H] -> [H, 2 R + 1] with R = `max_distance`: the row of the bucket of each distance, for each head.

    The first half of the buckets is for keys before the query and at it, the other half for those after it. A distance
    from `max_distance` on is in the last bucket of its half. If `is_causal`, all buckets are for keys before the query
    and at it, and those after it, which no query sees, have that of the query itself.
    """
    half = len(table) if is_causal else len(table) // 2
    buckets = [_bucket(distance, half, max_distance) for distance in range(max_distance + 1)]
    after = [0] * max_distance if is_causal else [half + bucket for bucket in buckets[1:]]
    rows = buckets[::-1] + after
    bias: NDArray[Any] = np.ascontiguousarray(table[rows].T)
    return bias


def _bucket(distance: int, buckets: int, max_distance: int) -> int:
    """Of a distance in one direction, which has so many buckets.

    Each of the first half of them is one distance n. The others share out the logarithms from there to `max_distance`:

        exact + floor((buckets - exact) * log(n / exact) / log(max_distance / exact)),  where exact = buckets // 2

    The definition takes logarithms in float32. This compares powers of integers, so that no boundary depends on how a
    logarithm rounds; the buckets are the same ones.
    """
    exact = buckets // 2
    if distance < exact:
        return distance
    steps = buckets - exact
    reached = (distance**steps * exact**i >= max_distance**i * exact**steps for i in range(1, steps))
    return exact + sum(map(int, reached))
