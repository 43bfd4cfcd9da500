"""Merge the results of workers, or of single blocks, into one result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core

_Results = tuple[NDArray[Any], NDArray[Any]]


def merged_workers(parts: Sequence[_Results], sinks: NDArray[Any] | None) -> _Results:
    """Return the merge of one result of each worker, [B, H, Tq, Dv] with lses [B, H, Tq] in float64.

    Workers compute without sinks; the sinks [H] are added here, once.
    """
    outs, lses = [out for out, _ in parts], [lse for _, lse in parts]
    dtype = np.float64 if outs[0].dtype == np.float64 else np.float32
    if len(parts) == 1 and sinks is None:
        return outs[0], lses[0].astype(dtype)
    _add_sinks(outs, lses, sinks)
    out, lse = _core.merge_attention(outs, lses, None, None)
    return out, lse.astype(dtype)


def merged_blocks(parts: Sequence[_Results], sinks: NDArray[Any] | None) -> _Results:
    """Return the merge of the results of all blocks, from each worker [blocks, B, H, Tq, Dv], lses [blocks, B, H, Tq].

    The bits do not depend on the number of workers: `merge_attention` adds pairs of results that see a key, in the
    order of blocks.
    """
    workers = len(parts)
    count = workers * max(len(out) for out, _ in parts)
    outs: list[Any] = [None] * count
    lses: list[Any] = [None] * count
    for worker, (of_out, of_lse) in enumerate(parts):
        outs[worker : worker + workers * len(of_out) : workers] = list(of_out)
        lses[worker : worker + workers * len(of_lse) : workers] = list(of_lse)
    outs, lses = [out for out in outs if out is not None], [lse for lse in lses if lse is not None]
    _add_sinks(outs, lses, sinks)
    out, lse = _core.merge_attention(outs, lses, None, None)
    return out, lse


def _add_sinks(outs: list[Any], lses: list[Any], sinks: NDArray[Any] | None) -> None:
    """Append sinks [H] as one more result: weight without a value."""
    if sinks is not None:
        outs.append(np.zeros_like(outs[0]))
        lses.append(np.broadcast_to(np.asarray(sinks, lses[0].dtype)[:, None], lses[0].shape))
