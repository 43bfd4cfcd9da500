"""A graph of ONNX with the arrays of its inputs, outputs and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from mha_native_bench.cases.case import Array, Case

CONTRIB = "com.microsoft"
OPSETS = [helper.make_opsetid("", 24), helper.make_opsetid(CONTRIB, 1)]


@dataclass(frozen=True)
class Model:
    """A graph that computes a case; `layout` reshapes the output "out" to the shape of the expected result."""

    operator: str
    nodes: list[NodeProto]
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    weights: dict[str, Array] = field(default_factory=dict)
    layout: Callable[[Array], Array] = np.asarray

    def to_array(self, _: None) -> Array:
        return self.layout(self.outputs["out"])

    def serialized(self) -> bytes:
        def infos(arrays: dict[str, Array]) -> list[Any]:
            of_numpy = helper.np_dtype_to_tensor_dtype
            return [helper.make_tensor_value_info(name, of_numpy(x.dtype), x.shape) for name, x in arrays.items()]

        return serialized(self.nodes, infos(self.inputs), infos(self.outputs), self.weights)


class Builder:
    """A graph under construction. The methods add nodes and return the name of the first output of the last one.

    `name` is a prefix for the names of weights.
    """

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.name = ""

    def add(self, operator: str, *inputs: str, results: int = 1, domain: str = CONTRIB, **attributes: Any) -> str:
        names = [f"{operator} {len(self.nodes)} {i}" for i in range(results)]
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names[0]

    def constant(self, name: str, array: Array) -> str:
        self.weights[self.name + name] = np.asarray(array, order="C")
        return self.name + name

    def split(self, rows: str, count: int) -> list[str]:
        self.add("Split", rows, results=count, domain="", axis=-1, num_outputs=count)
        return list(self.nodes[-1].output)


def serialized(nodes: list[NodeProto], inputs: list[Any], outputs: list[Any], weights: dict[str, Array]) -> bytes:
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    made: bytes = helper.make_model(graph, opset_imports=OPSETS, ir_version=11).SerializeToString()
    return made


def side_by_side(heads: Array) -> Array:
    """[B, T, H D] from [B, H, T, D]."""
    batch, _, length, _ = heads.shape
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(batch, length, -1)


def heads_apart(case: Case, rows: Array) -> Array:
    """The inverse of `side_by_side`."""
    return rows.reshape(case.B, case.Tq, case.H, case.D).swapaxes(1, 2)
