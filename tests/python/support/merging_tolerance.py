"""How far merged shards may be from the float64 oracle, from what `tolerance` says of the shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from element_types import accumulator_of, limits
from tolerance import Array, Expected


@dataclass(frozen=True)
class Merged:
    """What shards of the keys come to together, and how far from it a merged result may be."""

    out: Array
    lse: Array
    out_bound: Array
    lse_bound: Array


def merged(shards: Sequence[Expected | Merged], dtype: Any) -> Merged:
    """The exact merge of shards that are off by their bounds, and the bound of a merge in float64 that rounds once.

    With the share w_s = exp(lse_s - lse) of a shard, errors do_s and dl_s of what is merged move the results by
    sum_s w_s (do_s + dl_s (out_s - out)) and sum_s w_s dl_s. The merge itself, with d_s = lse_s - max lse and u the
    unit roundoff of float64: an exponential is off by |d_s| u (the difference) + 2 u, the sum of S of them by their
    mean, D = sum_s w_s |d_s| and 2, and p u with p = ceil(log2 S), as it is made in pairs; the quotient and the product
    by 2 u, the sum of products by p u. Numbers below the smallest normal one of what they are computed in count as 0.
    """
    info, of_lse = limits(dtype), limits(accumulator_of(dtype))
    u, pairs = float(np.finfo(np.float64).eps) / 2, (len(shards) - 1).bit_length()
    with np.errstate(all="ignore"):
        outs, lses, out_bounds, lse_bounds = (
            np.array([getattr(shard, name) for shard in shards], np.longdouble)
            for name in ("out", "lse", "out_bound", "lse_bound")
        )
        unseen = np.isneginf(lses)
        top = lses.max(0)
        distance = np.where(unseen, 0, np.abs(lses - top))
        raw = np.where(unseen, 0, np.exp(lses - top))
        total = raw.sum(0)
        lse = np.where(total == 0, -np.inf, top + np.log(total))
        share = np.where(unseen, 0, raw / total)
        ratio = np.where(unseen, 0, np.expm1(lse_bounds))
        mean = (share * distance).sum(0)
        share, distance, ratio = share[..., None], distance[..., None], ratio[..., None]
        outs = np.where(unseen[..., None], 0, outs)
        out = (share * outs).sum(0)
        off = share * (out_bounds + ratio * np.abs(outs - out))
        computed = u * share * np.abs(outs) * (distance + mean[..., None] + 2 * pairs + 6)
        once = float(info.eps) / 2 * np.abs(out) + float(info.smallest_subnormal)
        out_bound = (off + computed).sum(0) + once + (len(shards) + 1) * float(of_lse.tiny)
        lse_bound = (share * ratio)[..., 0].sum(0) + u * (mean + pairs + 2 + 2 * np.log(len(shards)))
        lse_bound = lse_bound + (u + float(of_lse.eps) / 2) * np.abs(lse)
    return Merged(*(x.astype(np.float64) for x in (out, lse, out_bound, lse_bound)))
