"""ONNX Runtime: each operator that computes attention, and layers around them. The fastest counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper
from shapes import Case, Inputs, padded, unpadded

from .contender import Contender, Program

Array = NDArray[Any]

CONTRIB = "com.microsoft"
OPSETS = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]


class OnnxRuntime(Contender):
    name = "onnxruntime"

    def description(self) -> str:
        return (
            f"{onnxruntime.__version__}; threads by intra_op_num_threads, a session for each count; "
            "IO binding, into arrays that are there already"
        )

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        models = models_of(case, inputs) if case.dtype == "f32" and case.weights != "bf16" else []
        return [
            Program(self.name, threads, bound(model, threads), to_array=model.to_array, variant=model.operator)
            for model in models
        ]


@dataclass(frozen=True)
class Model:
    """A graph, with arrays for its inputs and its outputs. `layout` brings the output "out" into ours."""

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

        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, self.operator, infos(self.inputs), infos(self.outputs), weights)
        serialized: bytes = helper.make_model(graph, opset_imports=OPSETS, ir_version=11).SerializeToString()
        return serialized


@lru_cache(maxsize=16)
def session_of(model: bytes, threads: int) -> Any:
    """One for all arrays of its shapes: each has threads of its own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bound(model: Model, threads: int) -> Callable[[], None]:
    session = session_of(model.serialized(), threads)
    binding = session.io_binding()
    for name, array in model.inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in model.outputs.items():
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding)


def models_of(case: Case, inputs: Inputs) -> list[Model]:
    if (
        case.kind == "step" or case.changes_scores or case.has_feed_forward
    ):  # one of the operators knows a softcap, and none slopes
        return []
    if case.kind == "mha":
        return [layer(case, inputs, node) for node in (attention_node, contrib_node)]
    if case.kind == "ragged":
        return [] if case.causal else [padded_attention(case, inputs)]
    models = [attention(case, inputs)]
    if not case.options and case.Hk == case.H:
        models.append(contrib_attention(case, inputs))
    decodes = case.Tq == 1 and not case.options
    if decodes or (case.causal and not case.is_masked and case.Tq == case.Tk):
        models.append(grouped_query_attention(case, inputs))
    return models


def attention_node(case: Case, *inputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node("Attention", inputs, ["out"], is_causal=int(case.causal), **attributes)


def contrib_node(case: Case, *inputs: str, **_: Any) -> NodeProto:
    return helper.make_node(
        "MultiHeadAttention", inputs, ["out"], domain=CONTRIB, num_heads=case.H, unidirectional=int(case.causal)
    )


def attention(case: Case, inputs: Inputs) -> Model:
    """The operator of the standard. Its masks have a row for each query here, even if they are all the same."""
    arrays = dict(zip("qkv", inputs.arrays, strict=True))
    if case.is_masked:
        arrays["mask"] = case.visible(case.Tq, case.Tk)
    return Model("Attention", [attention_node(case, *arrays)], arrays, {"out": np.empty_like(arrays["q"])})


def padded_attention(case: Case, inputs: Inputs) -> Model:
    arrays = {name: padded(case, array) for name, array in zip("qkv", inputs.arrays, strict=True)}
    admitted = np.arange(case.Tk) < case.lengths[:, None, None, None]
    arrays["mask"] = np.repeat(admitted, case.Tq, axis=2)
    return Model(
        "padded",
        [attention_node(case, *arrays)],
        arrays,
        {"out": np.empty_like(arrays["q"])},
        layout=lambda out: unpadded(case, out),
    )


def contrib_attention(case: Case, inputs: Inputs) -> Model:
    """ONNX Runtime's own: fused if nothing is masked. Heads of queries lie side by side."""
    query, key, value = inputs.arrays
    arrays = {"q": side_by_side(query), "k": key, "v": value}
    return Model(
        "MHA",
        [contrib_node(case, *arrays)],
        arrays,
        {"out": np.empty_like(arrays["q"])},
        layout=lambda out: heads_apart(case, out),
    )


def grouped_query_attention(case: Case, inputs: Inputs) -> Model:
    """ONNX Runtime's own, of decoders, always causal. Several queries are a prompt, and the cache begins empty.

    One query is the last token of a cache that has it already: writing its key and value there changes nothing.
    """
    query, key, value = inputs.arrays
    new = slice(case.Tk - 1, None) if case.Tq == 1 else slice(None)
    arrays = {name: side_by_side(x) for name, x in zip("qkv", (query, key[:, :, new], value[:, :, new]), strict=True)}
    cache = {"past_key": key, "past_value": value} if case.Tq == 1 else {}
    lengths = {"last": np.full(case.B, case.Tk - 1, np.int32), "total": np.array([case.Tk], np.int32)}
    node = helper.make_node(
        "GroupQueryAttention",
        [*"qkv", *(cache or ("", "")), *lengths],
        ["out", "present_key", "present_value"],
        domain=CONTRIB,
        num_heads=case.H,
        kv_num_heads=case.Hk,
    )
    presents = (key, value) if cache else (np.empty_like(key), np.empty_like(value))
    return Model(
        "GQA",
        [node],
        {**arrays, **cache, **lengths},
        {"out": np.empty_like(arrays["q"]), "present_key": presents[0], "present_value": presents[1]},
        layout=lambda out: heads_apart(case, out),
    )


def layer(case: Case, inputs: Inputs, node: Callable[..., NodeProto]) -> Model:
    """One linear map in, attention over heads side by side, one linear map out."""
    x = inputs.arrays[0]
    attend = node(case, *"qkv", q_num_heads=case.H, kv_num_heads=case.H)
    attend.output[0] = "heads"
    project = quantized_map if case.weights else linear_map
    in_nodes, in_weights = project("in", "x", inputs.state["in_proj_weight"], inputs.state["in_proj_bias"])
    out_nodes, out_weights = project("out", "heads", inputs.state["out_proj.weight"], inputs.state["out_proj.bias"])
    split = helper.make_node("Split", ["in"], [*"qkv"], axis=-1, num_outputs=3)
    nodes, weights = [*in_nodes, split, attend, *out_nodes], in_weights | out_weights
    operator = "Attention" if node is attention_node else "MHA"
    return Model(operator, nodes, {"x": x}, {"out": np.empty_like(x)}, weights)


def linear_map(name: str, rows: str, weight: Array, bias: Array) -> tuple[list[NodeProto], dict[str, Array]]:
    """Nodes that compute `name` from `rows`, and the arrays that they are given."""
    nodes = [
        helper.make_node("MatMul", [rows, f"{name}_weight"], [f"{name}_product"]),
        helper.make_node("Add", [f"{name}_product", f"{name}_bias"], [name]),
    ]
    return nodes, {f"{name}_weight": np.ascontiguousarray(weight.T), f"{name}_bias": bias}


def quantized_map(name: str, rows: str, weight: Array, bias: Array) -> tuple[list[NodeProto], dict[str, Array]]:
    """The same with weights in int8, a scale for each output feature; rows share one, of each call."""
    scales = np.abs(weight).max(axis=1) / 127
    arrays = {
        f"{name}_weight": np.ascontiguousarray(np.rint(weight / scales[:, None]).astype(np.int8).T),
        f"{name}_scales": scales,
        f"{name}_zeros": np.zeros(len(scales), np.int8),
        f"{name}_bias": bias,
    }
    return [helper.make_node("DynamicQuantizeMatMul", [rows, *arrays], [name], domain=CONTRIB)], arrays


def side_by_side(heads: Array) -> Array:
    """[B, T, H D] from [B, H, T, D]."""
    batch, _, length, _ = heads.shape
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(batch, length, -1)


def heads_apart(case: Case, rows: Array) -> Array:
    """The way back."""
    return rows.reshape(case.B, case.Tq, case.H, case.D).swapaxes(1, 2)
