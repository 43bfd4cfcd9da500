"""OpenVINO: weights in 8 and 4 bits, and a linear map with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset

from mha_native_bench.cases.case import Array, Case

GROUPS = (32, 128)  # features that share a scale


def groups_of(case: Case) -> list[int]:
    """Numbers of features that share a scale, one for each program: all of one map in 8 bits. Without integers: 0."""
    if not case.weights:
        return [0]
    if case.whole_bits == 8 and case.kind == "linear":
        return [case.E]
    widths = [case.E] if case.kind == "linear" else [case.E, case.F]
    return [group for group in GROUPS if not any(width % group for width in widths)]


def product_graph(case: Case, weight: Array, group: int) -> Any:
    x = opset.parameter([case.B, case.Tq, case.E], openvino.Type.f32)
    matrix = compressed(weight, case.whole_bits, group) if group else opset.constant(weight)
    return openvino.Model([opset.matmul(x, matrix, False, True)], [x])


def compressed(weight: Array, bits: int, group: int) -> Any:
    """The weight [out, in] as integers with a scale for each `group` features, by the nodes of a compressed model."""
    out, width = weight.shape
    blocks = weight.reshape(out, width // group, group)
    scales = np.abs(blocks).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)
    integers = np.rint(blocks / np.where(scales > 0, scales, 1)).astype(np.int8)
    if bits == 8:
        stored = opset.constant(integers)
    else:
        nibbles = integers.view(np.uint8).reshape(-1) & 15
        tensor = openvino.Tensor(nibbles[::2] | nibbles[1::2] << 4, list(integers.shape), openvino.Type.i4)
        stored = openvino.op.Constant(tensor, False)
    numbers = opset.multiply(opset.convert(stored, "f32"), opset.constant(scales.astype(np.float32)))
    return opset.reshape(numbers, opset.constant(np.array(weight.shape)), False)


def compress(model: Any, bits: int, group: int) -> None:
    """Replaces each constant weight of a product in a model by integers with scales."""
    for operation in model.get_ops():
        if operation.get_type_name() != "MatMul" or not operation.get_attributes()["transpose_b"]:
            continue
        source = operation.input_value(1).get_node()
        if source.get_type_name() == "Constant" and len(source.shape) == 2:
            operation.input(1).replace_source_output(compressed(source.data, bits, group).output(0))
