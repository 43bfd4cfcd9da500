"""NumPy, unfused: product, softmax, product, each stored in full, in the dtype of the inputs.

Also the yardstick of accuracy: a fused kernel should be no further from the oracle than this.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shapes import Case, Inputs

from .contender import Contender, Program

Array = NDArray[Any]


class NumPyUnfused(Contender):
    name = "numpy"

    def __init__(self, thread_counts: list[int]) -> None:
        super().__init__(thread_counts)
        self._blas: Any = None
        if find_spec("threadpoolctl") is not None:
            from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped, unused-ignore]

            self._blas = ThreadpoolController().select(user_api="blas")

    def description(self) -> str:
        if self._blas is not None:
            how = "threads by threadpoolctl, in the BLAS only"
        else:
            count = os.environ.get("OPENBLAS_NUM_THREADS")
            how = f"no threadpoolctl, so OPENBLAS_NUM_THREADS={count} before the import, and absent at other counts"
        return f"{np.__version__}; {how}"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        if self._blas is None and os.environ.get("OPENBLAS_NUM_THREADS") != str(threads):
            return []
        if case.kind not in ("sdpa", "mha") or case.changes_scores:
            return []
        if case.dtype not in ("f32", "f64") or case.weights:  # no BLAS has products of 16 bits for it
            return []
        hidden = ~case.visible(case.Tq, case.Tk) if case.causal or case.is_masked else None
        if case.kind == "sdpa":
            query, key, value = inputs.arrays
            return [Program(self.name, threads, lambda: attention(query, key, value, hidden), self._turn(threads))]
        x, state = inputs.arrays[0], inputs.state
        return [Program(self.name, threads, lambda: layer(x, state, case.H, hidden), self._turn(threads))]

    def _turn(self, threads: int) -> Any:
        def turn() -> AbstractContextManager[Any]:
            if self._blas is None:
                return nullcontext()
            limit: AbstractContextManager[Any] = self._blas.limit(limits=threads)
            return limit

        return turn


def attention(query: Array, key: Array, value: Array, hidden: Array | None) -> Array:
    """[B, H, Tq, D] from [B, H, Tq, D] and twice [B, Hk, Tk, D]; `hidden` [Tq, Tk] is True behind the mask."""
    batch, heads, queries, width = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * queries, width)  # one product for a group of heads
    scores = grouped @ key.swapaxes(-1, -2)
    scores *= width**-0.5
    if hidden is not None:
        np.copyto(scores.reshape(batch, heads, queries, -1), -np.inf, where=hidden)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return (scores @ value).reshape(batch, heads, queries, value.shape[-1])


def layer(x: Array, state: dict[str, Array], num_heads: int, hidden: Array | None) -> Array:
    """[B, T, E] from [B, T, E]."""
    batch, length, features = x.shape
    projected = x @ state["in_proj_weight"].T
    projected += state["in_proj_bias"]
    split = projected.reshape(batch, length, 3, num_heads, features // num_heads)
    query, key, value = split.transpose(2, 0, 3, 1, 4)  # [B, H, T, D] each
    heads = attention(query, key, value, hidden).swapaxes(1, 2).reshape(x.shape)
    out: Array = heads @ state["out_proj.weight"].T
    out += state["out_proj.bias"]
    return out
