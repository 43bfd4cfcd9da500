"""OpenVINO: graphs of its operator of attention, and of a layer around it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset
from shapes import Array, Case, Inputs

from .contender import Program


def settings(precision: str, threads: int) -> dict[str, Any]:
    """What is computed in, whatever arrays are of."""
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }


def graph_programs(contender: str, case: Case, inputs: Inputs, threads: int) -> list[Program]:
    """In bf16 once with arrays of that, and once with arrays of f32, which it rounds itself."""
    elements = ["f32"] if case.dtype == "f32" else [case.dtype, "f32"]
    if case.kind == "sdpa" and can_attend(case):
        sizes = (case.B, case.H, case.Tq, case.Tk, case.D)
        models = [attention(sizes, case.causal, element, case.dtype, threads) for element in elements]
    elif case.kind == "mha":
        graphs = [layer_graph(case, inputs.state, element) for element in elements]
        models = [compiled_graph(graph, case.dtype, threads, case.E if case.weights else 0) for graph in graphs]
    else:
        return []
    programs = []
    for element, model in zip(elements, models, strict=True):
        request = Request(model, inputs.arrays, element)
        variant = "" if case.dtype == "f32" else f"{element} arrays"
        programs.append(Program(contender, threads, request, to_array=request.result, variant=variant))
    return programs


def can_attend(case: Case) -> bool:
    """Its operator knows no groups of heads, and counts positions from the first key."""
    return case.Hk == case.H and not case.options.keys() - {"is_causal"} and (not case.causal or case.Tq == case.Tk)


@lru_cache(maxsize=4)
def attention(sizes: tuple[int, ...], causal: bool, element: str, precision: str, threads: int) -> Any:
    """One for all arrays of its shapes."""
    batch, heads, queries, keys, width = sizes
    kind = getattr(openvino.Type, element)
    inputs = [opset.parameter([batch, heads, length, width], kind) for length in (queries, keys, keys)]
    out = opset.scaled_dot_product_attention(*inputs, causal=causal)
    return compiled_graph(openvino.Model([out], inputs), precision, threads)


def compiled_graph(graph: Any, precision: str, threads: int, quantized_features: int = 0) -> Any:
    """So many features of a row that meets int8 weights share a scale; none: it is not quantized."""
    quantization = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": quantized_features}
    return openvino.Core().compile_model(graph, "CPU", settings(precision, threads) | quantization)


def layer_graph(case: Case, state: dict[str, Array], element: str) -> Any:
    """Three linear maps in, attention, one linear map out: the form that its compiler makes the most of."""
    kind = getattr(openvino.Type, element)
    x = opset.parameter([case.B, case.Tq, case.E], kind)

    def constant(array: Array) -> Any:
        return opset.constant(np.ascontiguousarray(array, np.float32), dtype=kind)

    def matrix(weight: Array) -> Any:
        if not case.weights:
            return constant(weight)
        scales = np.abs(weight).max(axis=1, keepdims=True) / 127
        integers = opset.constant(np.rint(weight / scales).astype(np.int8))
        return opset.multiply(opset.convert(integers, "f32"), constant(scales))

    def project(rows: Any, weight: Array, bias: Array) -> Any:
        return opset.add(opset.matmul(rows, matrix(weight), False, True), constant(bias))

    def heads_of(rows: Any) -> Any:
        split = opset.reshape(rows, [case.B, case.Tq, case.H, case.D], False)
        return opset.transpose(split, [0, 2, 1, 3])

    weights, biases = np.split(state["in_proj_weight"], 3), np.split(state["in_proj_bias"], 3)
    projected = [heads_of(project(x, weight, bias)) for weight, bias in zip(weights, biases, strict=True)]
    heads = opset.scaled_dot_product_attention(*projected, causal=case.causal)
    rows = opset.reshape(opset.transpose(heads, [0, 2, 1, 3]), [case.B, case.Tq, case.E], False)
    return openvino.Model([project(rows, state["out_proj.weight"], state["out_proj.bias"])], [x])


class Request:
    """A call on memory that is there already, which OpenVINO itself does not keep alive."""

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
    """bfloat16 as what NumPy itself has of its size."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
