"""OpenVINO: graphs of attention layers and of encoder layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.contenders.peers.int8_weights import in_int8

EPS = 1e-5  # of the norms


def layer_graph(case: Case, state: dict[str, Array], element: str, form: str) -> Any:
    """A layer with three projections into heads, or with those of the same rows as one; `form` says which."""
    return Graph(case, state, element).layer(form)


class Graph:
    def __init__(self, case: Case, state: dict[str, Array], element: str) -> None:
        self.case = case
        self.state = {name.removeprefix("self_attn."): array for name, array in state.items()}
        self.kind = getattr(openvino.Type, element)

    def layer(self, form: str) -> Any:
        case = self.case
        inputs = [opset.parameter([case.B, case.Tq, case.E], self.kind)]
        if case.is_cross:
            inputs.append(opset.parameter([case.B, case.Tk, case.E], self.kind))
        x, memory = inputs[0], inputs[-1]
        first, rest = slice(0, case.E), slice(case.E, None)
        if form == "three maps":
            parts = [slice(i * case.E, (i + 1) * case.E) for i in range(3)]
            heads = [self.heads(rows, part)[0] for rows, part in zip((x, memory, memory), parts, strict=True)]
        else:
            heads = self.heads(x, first) + self.heads(memory, rest) if case.is_cross else self.heads(x, slice(None))
        attended = opset.scaled_dot_product_attention(*heads, causal=case.causal)
        rows = opset.reshape(opset.transpose(attended, [0, 2, 1, 3]), [case.B, case.Tq, case.E], False)
        out = self.linear(rows, "out_proj.weight", "out_proj.bias")
        if case.has_feed_forward:
            out = self.norms_and_feed_forward(x, out)
        return openvino.Model([out], inputs)

    def heads(self, rows: Any, part: slice) -> list[Any]:
        """Heads [B, H, T, D] of each projection whose weights are in the rows `part`."""
        case = self.case
        projected = self.linear(rows, "in_proj_weight", "in_proj_bias", part)
        batch, length, features = projected.shape
        count = int(features) // case.E
        maps = opset.split(projected, opset.constant(2), count).outputs() if count > 1 else [projected]
        split = [opset.reshape(one, [batch, length, case.H, case.D], False) for one in maps]
        return [opset.transpose(one, [0, 2, 1, 3]) for one in split]

    def constant(self, array: Array) -> Any:
        return opset.constant(np.ascontiguousarray(array, np.float32), dtype=self.kind)

    def linear(self, rows: Any, weight: str, bias: str, part: slice = slice(None)) -> Any:
        product = opset.matmul(rows, self.matrix(self.state[weight][part]), False, True)
        return opset.add(product, self.constant(self.state[bias][part]))

    def matrix(self, weight: Array) -> Any:
        if not self.case.weights:
            return self.constant(weight)
        integers, scales = in_int8(weight)
        return opset.multiply(opset.convert(opset.constant(integers), "f32"), self.constant(scales[:, None]))

    def norms_and_feed_forward(self, x: Any, attended: Any) -> Any:
        rows = self.norm(opset.add(x, attended), "norm1")
        hidden = self.linear(rows, "linear1.weight", "linear1.bias")
        hidden = opset.relu(hidden) if self.case.activation == "relu" else opset.gelu(hidden, "erf")
        return self.norm(opset.add(rows, self.linear(hidden, "linear2.weight", "linear2.bias")), "norm2")

    def norm(self, rows: Any, name: str) -> Any:
        normal = opset.mvn(rows, opset.constant([2]), True, EPS, "inside_sqrt")
        scaled = opset.multiply(normal, self.constant(self.state[f"{name}.weight"]))
        return opset.add(scaled, self.constant(self.state[f"{name}.bias"]))
