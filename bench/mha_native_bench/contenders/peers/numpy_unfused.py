"""NumPy, unfused: product, softmax, product, each stored in full, in the dtype of the inputs.

Its error in the report is what a fused kernel should not exceed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program, of_arrays


class NumPyUnfused(Contender):
    name = "numpy"

    def __init__(self, thread_counts: list[int]) -> None:
        super().__init__(thread_counts)
        self._blas: Any = None
        if find_spec("threadpoolctl") is not None:
            from threadpoolctl import ThreadpoolController

            self._blas = ThreadpoolController().select(user_api="blas")

    def description(self) -> str:
        if self._blas is not None:
            how = "threads by threadpoolctl, in the BLAS only"
        else:
            count = os.environ.get("OPENBLAS_NUM_THREADS")
            how = f"no threadpoolctl, so OPENBLAS_NUM_THREADS={count} before the import, and absent at other counts"
        return f"{np.__version__}; {how}"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        case = of_arrays(case)
        if self._blas is None and os.environ.get("OPENBLAS_NUM_THREADS") != str(threads):
            raise CannotCompute("no threadpoolctl")
        if case.has_feed_forward:
            raise CannotCompute("no error function for a gelu" if case.activation == "gelu" else "no feed-forward here")
        if case.dtype not in ("f32", "f64") or case.cache:
            raise CannotCompute("no BLAS of 16 bits")
        if case.weights:
            raise CannotCompute(f"no BLAS of {case.weights} weights")
        run = {"sdpa": dense, "ragged": ragged, "mha": layer, "step": step}[case.kind](case, inputs)
        return [Program(self.name, threads, run, self._turn(threads))]

    def _turn(self, threads: int) -> Any:
        def turn() -> AbstractContextManager[Any]:
            if self._blas is None:
                return nullcontext()
            limit: AbstractContextManager[Any] = self._blas.limit(limits=threads)
            return limit

        return turn


def dense(case: Case, inputs: Inputs) -> Callable[[], Array]:
    query, key, value = inputs.arrays
    hidden = case.hidden(case.Tq, case.Tk)
    bias, softcap = case.alibi_bias(), case.softcap
    return lambda: attention(query, key, value, hidden, bias, softcap)


def ragged(case: Case, inputs: Inputs) -> Callable[[], Array]:
    """Computes one sequence after another."""
    hidden = case.hidden(case.Tq, case.Tq)
    parts = [
        [array[None, first:last].swapaxes(1, 2) for array in inputs.arrays]  # [1, heads, T, D]
        for first, last in zip(case.offsets, case.offsets[1:], strict=False)
    ]

    def run() -> Array:
        out = np.empty_like(inputs.arrays[0])
        for first, (query, key, value) in zip(case.offsets, parts, strict=False):
            length = query.shape[2]
            hidden_here = None if hidden is None else hidden[:length, :length]
            out[first : first + length] = attention(query, key, value, hidden_here)[0].swapaxes(0, 1)
        return out

    return run


def attention(
    query: Array,
    key: Array,
    value: Array,
    hidden: Array | None,
    bias: Array | None = None,
    softcap: float | None = None,
) -> Array:
    """Attention of query [B, H, Tq, D] over key and value [B, Hk, Tk, D].

    `hidden` [Tq, Tk] is True where a key is masked; `bias` [1, H, Tq, Tk] is added to the scores.
    """
    batch, heads, queries, width = query.shape
    kv_heads = key.shape[1]
    # The heads of a group are rows of one product.
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * queries, width)
    scores = grouped @ key.swapaxes(-1, -2)
    scores *= width**-0.5
    if softcap is not None:
        scores /= softcap
        np.tanh(scores, out=scores)
        scores *= softcap
    of_heads = scores.reshape(batch, heads, queries, -1)
    if bias is not None:
        of_heads += bias
    if hidden is not None:
        np.copyto(of_heads, -np.inf, where=hidden)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return (scores @ value).reshape(batch, heads, queries, value.shape[-1])


def layer(case: Case, inputs: Inputs) -> Callable[[], Array]:
    x, memory = inputs.arrays[0], inputs.arrays[-1]
    state, hidden = inputs.state, case.hidden(case.Tq, case.Tk)
    weights, biases = state["in_proj_weight"], state["in_proj_bias"]
    first = case.E if case.is_cross else 0  # row of the weights where those of the memory begin

    def run() -> Array:
        projected = memory @ weights[first:].T
        projected += biases[first:]
        heads = in_heads(case, projected)
        if case.is_cross:
            queries = x @ weights[:first].T
            queries += biases[:first]
            heads = in_heads(case, queries) + heads
        query, key, value = heads
        return project_out(attention(query, key, value, hidden), state)

    return run


def step(case: Case, inputs: Inputs) -> Callable[[], Array]:
    """The last token attends to keys and values of all tokens, after its own are written over the last ones."""
    state, token = inputs.state, inputs.arrays[0][:, -1:]
    weights, biases = state["in_proj_weight"], state["in_proj_bias"]
    key, value = (x.copy() for x in in_heads(case, inputs.arrays[0] @ weights[case.E :].T + biases[case.E :]))

    def run() -> Array:
        projected = token @ weights.T
        projected += biases
        query, key[:, :, -1:], value[:, :, -1:] = in_heads(case, projected)
        return project_out(attention(query, key, value, None), state)

    return run


def in_heads(case: Case, rows: Array) -> list[Array]:
    """Rows [B, T, n E] as n arrays [B, H, T, D]."""
    return list(rows.reshape(*rows.shape[:2], -1, case.H, case.D).transpose(2, 0, 3, 1, 4))


def project_out(heads: Array, state: dict[str, Array]) -> Array:
    """Heads [B, H, T, D] as rows [B, T, E], times the output projection."""
    batch, _, length, _ = heads.shape
    out: Array = heads.swapaxes(1, 2).reshape(batch, length, -1) @ state["out_proj.weight"].T
    out += state["out_proj.bias"]
    return out
