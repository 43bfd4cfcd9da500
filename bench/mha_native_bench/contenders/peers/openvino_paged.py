"""OpenVINO: its operator of attention over caches in blocks of 32 tokens, which is not part of any opset."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset
from openvino.op import _PagedAttentionExtension

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import Program
from mha_native_bench.contenders.peers.openvino_graphs import settings

TOKENS = 32  # of a block
FORMATS = {"": "f32", "int8": "u8"}  # of caches; it has those of 16 bits only where the processor computes in them

# Types of the inputs behind the caches, in the order of the operator; those of which a call gives none are empty.
OF_SEQUENCES = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
OF_ROTATION, OF_SPARSITY, OF_EVICTION, OF_IMAGES = "i32 i32 f32", "f32", "i32 i32 i32", "i32 u8 i32"


def paged_programs(contender: str, case: Case, inputs: Inputs, threads: int) -> list[Program]:
    """The operator over blocks in order, shuffled or shared; dense caches of int8 are blocks in order here.

    The queries bring their keys and values along, which it writes to where they are already.
    """
    if case.dtype != "f32" or not (case.pages or case.cache):
        return []
    call = PagedCall(case, inputs, threads)
    return [Program(contender, threads, call, to_array=call.result, variant="paged")]


@lru_cache(maxsize=8)
def compiled_operator(heads: int, kv_heads: int, width: int, cache: str, threads: int) -> Any:
    """The operator alone, for any number of sequences, shared by all inputs of these sizes."""
    kinds = {name: getattr(openvino.Type, name) for name in ("f32", "i32", "u8", "dynamic")}
    rows = [opset.parameter([-1, count * width], kinds["f32"]) for count in (heads, kv_heads, kv_heads)]
    caches = []
    for name in (
        "key_cache.0",
        "value_cache.0",
    ):  # by which the compiler finds them, to give them a shape
        caches.append(opset.parameter(openvino.PartialShape.dynamic(4), kinds["dynamic"], name=name))
        caches[-1].output(0).set_names({name})
    of_sequences = [opset.parameter([-1], kinds["i32"], name=name) for name in OF_SEQUENCES]
    longest = opset.parameter([], kinds["i32"])

    def number(value: float, kind: str) -> Any:
        return opset.constant(np.array(value), dtype=kinds[kind])

    def empty(names: str, rank: int = 1) -> list[Any]:
        return [opset.constant(np.zeros((0,) * rank), dtype=kinds[name]) for name in names.split()]

    operator = _PagedAttentionExtension([node.output(0) for node in [
        *rows, *caches, *of_sequences,
        number(width**-0.5, "f32"), number(0, "i32"), *empty("f32"), longest,  # scale, window, slopes
        *empty("i32"), *empty(OF_ROTATION),  # the first is a window for sums of scores
        *empty(OF_SPARSITY), number(0, "i32"), number(0, "i32"), *empty("f32", 4),  # the last is of sinks
        number(0, "i32"), *empty(OF_EVICTION), *empty(OF_IMAGES),
    ]])  # fmt: skip
    sizes = {"num_k_heads": kv_heads, "num_v_heads": kv_heads, "k_head_size": width, "v_head_size": width}
    for name, size in sizes.items():
        operator.get_rt_info()[name] = size
    graph = openvino.Model([operator.output(0)], [*rows, *caches, *of_sequences, longest])
    formats = {"KV_CACHE_PRECISION": cache}
    return openvino.Core().compile_model(graph, "CPU", settings("f32", threads) | formats)


class PagedCall:
    """A call on caches and arrays allocated beforehand, which it keeps alive, as OpenVINO does not."""

    def __init__(self, case: Case, inputs: Inputs, threads: int) -> None:
        self._case = case
        model = compiled_operator(case.H, case.Hk, case.D, FORMATS[case.cache], threads)
        self._request = model.create_infer_request()
        table = block_table(case)
        for i in (3, 4):
            _, *block = model.input(i).partial_shape
            shape = openvino.Shape([int(table.max()) + 1, *(size.get_length() for size in block)])
            cache = openvino.Tensor(model.input(i).element_type, shape)
            cache.data[...] = 0
            self._request.set_input_tensor(i, cache)
        self._fill(inputs, table)
        before = case.Tk - case.Tq
        last = [array[:, :, -case.Tq :].swapaxes(1, 2).reshape(case.B * case.Tq, -1) for array in inputs.arrays]
        self._give(last, [before] * case.B, np.arange(case.B + 1) * case.Tq, table, case.Tk)

    def __call__(self) -> None:
        self._request.infer()

    def result(self, _: None) -> Array:
        rows: Array = self._request.get_output_tensor(0).data
        heads: Array = rows.reshape(self._case.B, self._case.Tq, -1, self._case.D).swapaxes(1, 2)
        return heads

    def _fill(self, inputs: Inputs, table: Array) -> None:
        """Writes all keys and values, each block as a sequence of its own, so that attention takes next to no time."""
        rows = [array.swapaxes(1, 2).reshape(-1, array.shape[1] * array.shape[3]) for array in inputs.arrays[1:]]
        query = np.zeros((len(rows[0]), self._case.H * self._case.D), np.float32)
        sizes = np.minimum(TOKENS, self._case.Tk - np.arange(0, self._case.Tk, TOKENS))
        begins = np.concatenate([[0], np.cumsum(np.tile(sizes, self._case.B))])
        self._give([query, *rows], [0] * table.size, begins, table.reshape(-1, 1), TOKENS)
        self._request.infer()

    def _give(self, rows: list[Array], past: list[int], begins: Array, table: Array, longest: int) -> None:
        of_table = [table.ravel(), np.arange(len(table) + 1) * table.shape[1]]
        integers = [np.asarray(array, np.int32) for array in (past, begins, *of_table, longest)]
        self._given = [*(np.ascontiguousarray(array) for array in rows), *integers]
        for i, array in zip((0, 1, 2, 5, 6, 7, 8, 9), self._given, strict=True):
            self._request.set_input_tensor(i, openvino.Tensor(array))


def block_table(case: Case) -> Array:
    """The block of every 32 tokens of each sequence, [B, ceil(Tk / 32)]: in order, at random places, or with the whole
    blocks of the prefix shared."""
    table = np.arange(case.B * -(-case.Tk // TOKENS), dtype=np.int32).reshape(case.B, -1)
    if case.pages == "shuffled":
        return np.random.default_rng(0).permutation(table.ravel()).reshape(table.shape)
    if case.pages == "shared":
        table[:, : case.prefix // TOKENS] = table[0, : case.prefix // TOKENS]
    return table
