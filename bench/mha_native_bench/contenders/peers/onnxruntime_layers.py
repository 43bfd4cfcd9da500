"""ONNX Runtime: layers of attention, encoders and decoders, as the graphs that its optimizer makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.contenders.peers.int8_weights import has_vnni, in_int8
from mha_native_bench.contenders.peers.onnxruntime_graph import Builder, Model


def layer_models(case: Case, inputs: Inputs) -> list[Model]:
    if case.kind == "step":
        return [Layer(case, inputs).step()]
    operators = ["Attention", "MHA"]
    if not case.is_cross:
        operators.append("QAttention" if case.weights else "contrib Attention")
    return [Layer(case, inputs).model(operator) for operator in operators]


def in_integers(weight: Array) -> tuple[Array, Array]:
    """int8 weights as ONNX Runtime's documentation advises: in 7 bits where the processor has no VNNI instructions,
    since pairs of products are then added up in 16 bits and would saturate."""
    return in_int8(weight, 127 if has_vnni() else 63)


class Layer(Builder):
    """A layer, or one after another."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        super().__init__()
        self.case = case
        self.arrays = dict(zip(("x", "memory"), inputs.arrays, strict=False))
        self.of_layer("x", inputs.state, 1e-5)

    def of_layer(self, rows: str, state: dict[str, Array], eps: float, name: str = "", lengths: str = "") -> None:
        """Starts a layer over `rows`: its weights, and a prefix for their names; `lengths` are those of padded rows."""
        self.rows, self.eps, self.name, self.lengths = rows, eps, name, lengths
        self.state = {name.removeprefix("self_attn."): array for name, array in state.items()}

    def model(self, operator: str) -> Model:
        heads = self.attend(operator) if operator in ("Attention", "MHA") else self.project_and_attend(operator)
        if self.case.has_feed_forward:
            self.norms_and_feed_forward(heads)
        else:
            self.linear(heads, "out_proj.weight", "out_proj.bias")
        return self.ending_here(operator)

    def ending_here(self, operator: str, **others: Array) -> Model:
        self.nodes[-1].output[0] = "out"
        out = {"out": np.empty_like(self.arrays["x"])}
        return Model(operator, self.nodes, self.arrays, out | others, self.weights)

    def product(self, rows: str, name: str, part: slice = slice(None), bias: str = "") -> str:
        """Rows times a weight. int8 weights have a scale for each output feature; all rows of a call share one."""
        weight = self.state[name][part]
        name = f"{name} {part.start}"
        if not self.case.weights:
            product = self.add("MatMul", rows, self.constant(name, weight.T), domain="")
            return self.add("Add", product, bias, domain="") if bias else product
        integers, scales = in_integers(weight)
        given = [self.constant(name, integers.T), self.constant(f"{name} scales", scales)]
        given.append(self.constant(f"{name} zeros", np.zeros(len(scales), np.int8)))
        return self.add("DynamicQuantizeMatMul", rows, *given, *([bias] if bias else []))

    def linear(self, rows: str, weight: str, bias: str, part: slice = slice(None)) -> str:
        return self.product(rows, weight, part, self.constant(f"{bias} {part.start}", self.state[bias][part]))

    def attend(self, operator: str) -> str:
        """Projections and attention as separate nodes; MultiHeadAttention adds the biases of the projections itself."""
        case = self.case
        of_memory = [("x", slice(0, case.E), 1), ("memory", slice(case.E, None), 2)]
        heads: list[str] = []
        for rows, part, count in of_memory if case.is_cross else [("x", slice(None), 3)]:
            if operator == "MHA":
                projected = self.product(rows, "in_proj_weight", part)
            else:
                projected = self.linear(rows, "in_proj_weight", "in_proj_bias", part)
            heads += [projected] if count == 1 else self.split(projected, count)
        if operator == "Attention":
            counts: dict[str, Any] = {"q_num_heads": case.H, "kv_num_heads": case.H}
            return self.add("Attention", *heads, domain="", is_causal=int(case.causal), **counts)
        heads.append(self.constant("biases", self.state["in_proj_bias"]))
        return self.add("MultiHeadAttention", *heads, num_heads=case.H, unidirectional=int(case.causal))

    def project_and_attend(self, operator: str) -> str:
        """Projections and attention as one node of ONNX Runtime's own operator."""
        case = self.case
        weight, bias = self.state["in_proj_weight"], self.constant("biases", self.state["in_proj_bias"])
        attributes: dict[str, Any] = {"num_heads": case.H, "unidirectional": int(case.causal)}
        if operator != "QAttention":
            weights = self.constant("weights", weight.T)
            return self.add("Attention", self.rows, weights, bias, self.lengths, **attributes)
        integers, scales = in_integers(weight)
        names = [self.constant("weights", integers.T), self.constant("scales", scales)]
        zeros = self.constant("zeros", np.zeros(len(scales), np.int8))
        self.add("DynamicQuantizeLinear", self.rows, results=3, domain="")
        rows, scale, zero = self.nodes[-1].output
        return self.add(operator, rows, names[0], bias, scale, names[1], self.lengths, zero, zeros, **attributes)

    def norms_and_feed_forward(self, heads: str) -> str:
        rows = self.norm("norm1", self.product(heads, "out_proj.weight"), self.rows, "out_proj.bias")
        bias = self.constant("linear1.bias", self.state["linear1.bias"])
        if self.case.activation == "gelu":
            hidden = self.add("BiasGelu", self.product(rows, "linear1.weight"), bias)
        else:
            hidden = self.add("Relu", self.product(rows, "linear1.weight", bias=bias), domain="")
        return self.norm("norm2", self.product(hidden, "linear2.weight"), rows, "linear2.bias")

    def norm(self, name: str, rows: str, others: str, bias: str) -> str:
        """The norm of the sum of `rows`, `others` and a bias."""
        given = [self.constant(of, self.state[of]) for of in (f"{name}.weight", f"{name}.bias", bias)]
        return self.add("SkipLayerNormalization", rows, others, *given, epsilon=self.eps)

    def step(self) -> Model:
        """The last token of each sequence attends to a cache, into which its key and value are written first."""
        case, tokens = self.case, self.arrays["x"]
        self.arrays["x"] = np.ascontiguousarray(tokens[:, -1:])
        projected = self.linear("x", "in_proj_weight", "in_proj_bias")
        heads = self.split(projected, 3)
        weight, bias = self.state["in_proj_weight"][case.E :], self.state["in_proj_bias"][case.E :]
        cached = (tokens @ weight.T + bias).reshape(case.B, case.Tk, 2, case.H, case.D)
        keys, values = np.ascontiguousarray(cached.transpose(2, 0, 3, 1, 4))  # [B, H, Tk, D] each
        self.arrays |= {"past_key": keys, "past_value": values}
        self.arrays |= {"last": np.full(case.B, case.Tk - 1, np.int32), "total": np.array([case.Tk], np.int32)}
        given = [*heads, "past_key", "past_value", "last", "total"]
        attended = self.add("GroupQueryAttention", *given, results=3, num_heads=case.H, kv_num_heads=case.H)
        self.nodes[-1].output[1:] = ["present_key", "present_value"]
        self.linear(attended, "out_proj.weight", "out_proj.bias")
        return self.ending_here("GQA", present_key=keys, present_value=values)
