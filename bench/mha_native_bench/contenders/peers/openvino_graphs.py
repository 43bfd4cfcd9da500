"""OpenVINO: graphs of its operator of attention, and compiled programs of these and of layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.contender import CannotCompute, Program
from mha_native_bench.contenders.peers.openvino_layers import layer_graph


def settings(precision: str, threads: int) -> dict[str, Any]:
    """Settings of a compiled model; `precision` is what it computes in, whatever the type of its arrays."""
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }


def graph_programs(contender: str, case: Case, inputs: Inputs, threads: int) -> list[Program]:
    """Programs of all forms; a case in bf16 runs on bf16 arrays, and on f32 arrays that OpenVINO rounds itself.

    A case with a mask of keys runs on bf16 arrays only: version 2026.4 rounds a mask of one row to another mask.
    """
    programs = []
    for element in [case.dtype] if case.dtype == "f32" or case.admitted is not None else [case.dtype, "f32"]:
        for form, model in compiled_forms(case, inputs, element, threads):
            request = Request(model, inputs.arrays, element)
            variant = ", ".join(filter(None, [form, "" if case.dtype == "f32" else f"{element} arrays"]))
            programs.append(Program(contender, threads, request, to_array=request.result, variant=variant))
    return programs


def compiled_forms(case: Case, inputs: Inputs, element: str, threads: int) -> Iterator[tuple[str, Any]]:
    if case.kind in ("mha", "encoder_layer"):
        for form in ("three maps", "one map") if not case.is_cross else ("three maps", "two maps"):
            graph = layer_graph(case, inputs.state, element, form)
            yield form, compiled_graph(graph, case.dtype, threads, case.E if case.weights else 0)
        return
    if case.kind == "ragged":
        raise CannotCompute("no ragged batch")
    if case.kind == "step":
        raise CannotCompute("only caches that grow inside of a model")
    if case.softcap is not None:
        raise CannotCompute("no softcap")
    forms = ["groups as queries", "broadcast keys"] if case.Hk != case.H else [""]
    for form in forms:
        yield form, attention(case, form, element, threads)


@lru_cache(maxsize=4)
def attention(case: Case, form: str, element: str, threads: int) -> Any:
    """A compiled graph, shared by all inputs of the same shapes. Masks and biases are constants, added to the scores.

    The operator has no groups of heads: either the queries of a group become queries of one head, or keys and values
    are broadcast to all heads.
    """
    kind = getattr(openvino.Type, element)
    shapes = [(case.H, case.Tq), (case.Hk, case.Tk), (case.Hk, case.Tk)]
    inputs = [opset.parameter([case.B, heads, length, case.D], kind) for heads, length in shapes]
    query, key, value = inputs
    group = case.H // case.Hk
    is_folded = form == "groups as queries"
    given = added_mask(case, with_causal=case.Tq != case.Tk or is_folded)
    if is_folded:
        query = opset.reshape(query, [case.B, case.Hk, group * case.Tq, case.D], False)
        given = None if given is None else of_groups(case, given)
    elif group > 1:
        key, value = (broadcast(case, heads, group) for heads in (key, value))
    mask = [] if given is None else [opset.constant(given, dtype=kind)]
    is_causal = case.causal and given is None
    out = opset.scaled_dot_product_attention(query, key, value, *mask, causal=is_causal)
    if is_folded:
        out = opset.reshape(out, [case.B, case.H, case.Tq, case.D], False)
    return compiled_graph(openvino.Model([out], inputs), case.dtype, threads)


def added_mask(case: Case, with_causal: bool) -> Array | None:
    """Masks and biases as one array to be added. It includes causality, as a causal operator ignores a mask."""
    bias = case.alibi_bias()
    if not case.is_masked and bias is None and not (case.causal and with_causal):
        return None
    rows = case.Tq if case.hides_by_query else 1
    added: Array = np.where(case.visible(rows, case.Tk), 0 if bias is None else bias, -np.inf).astype(np.float32)
    return added.reshape(1, -1, *added.shape[-2:])


def of_groups(case: Case, mask: Array) -> Array:
    """A mask [1, 1 or H, 1 or Tq, Tk] for the queries of all heads of a group, one head after another."""
    if mask.shape[1:3] == (1, 1):
        return mask
    rows = np.broadcast_to(mask, (1, case.H, case.Tq, case.Tk))
    return rows.reshape(1, case.Hk, -1, case.Tk)


def broadcast(case: Case, heads: Any, group: int) -> Any:
    apart = opset.broadcast(
        opset.unsqueeze(heads, opset.constant(2)), opset.constant([case.B, case.Hk, group, case.Tk, case.D])
    )
    return opset.reshape(apart, [case.B, case.H, case.Tk, case.D], False)


def compiled_graph(graph: Any, precision: str, threads: int, quantized_features: int = 0) -> Any:
    """Compiles a graph. Rows are quantized with one scale for so many features each; 0: not at all."""
    quantization = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": quantized_features}
    return openvino.Core().compile_model(graph, "CPU", settings(precision, threads) | quantization)


class Request:
    """A call on arrays allocated beforehand, which it keeps alive, as OpenVINO does not."""

    def __init__(self, model: Any, arrays: tuple[Array, ...], element: str) -> None:
        kind = getattr(openvino.Type, element)
        self._given = [
            np.ascontiguousarray(array.astype(np.float32) if element == "f32" else array) for array in arrays
        ]
        self._out = np.empty(tuple(model.output(0).shape), self._given[0].dtype)
        self._request = model.create_infer_request()
        for i, array in enumerate(self._given):
            self._request.set_input_tensor(i, openvino.Tensor(words(array), array.shape, kind))
        self._request.set_output_tensor(0, openvino.Tensor(words(self._out), self._out.shape, kind))

    def __call__(self) -> None:
        self._request.infer()

    def result(self, _: None) -> Array:
        return self._out


def words(array: Array) -> Array:
    """The array, with bfloat16 viewed as uint16, a type that NumPy itself has."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
