"""ONNX Runtime: a BERT and its pooling, and a ViT, as the graphs that its optimizer makes of such models."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from mha_native_bench.cases.case import PATCH, Array, Case
from mha_native_bench.cases.image_model import EPS, PROJECTION, VIT
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.sentence_model import BERT
from mha_native_bench.contenders.peers.onnxruntime_graph import Builder, Model, serialized
from mha_native_bench.contenders.peers.onnxruntime_layers import Layer


@lru_cache(maxsize=2)
def sentence_model(directory: Path, case: Case, with_mask: bool) -> bytes:
    """A graph from token ids [B, T], and a mask [B, T] if `with_mask`, to the output "out" [B, E], for any B and T."""
    from safetensors.numpy import load_file

    tensors = load_file(directory / "model.safetensors")
    eps = json.loads((directory / "config.json").read_text(encoding="utf-8"))["layer_norm_eps"]
    graph = Layer(case, Inputs((), {}))
    operator = "QAttention" if case.weights else "contrib Attention"
    tables = {name: tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    given = [graph.constant("words", tables["word"])]
    given.append(graph.constant("positions", tables["position"] + tables["token_type"][0]))
    given += [
        "",
        *(graph.constant(f"norm {end}", tensors[f"embeddings.LayerNorm.{end}"]) for end in ("weight", "bias")),
    ]
    inputs = ["ids", "mask"] if with_mask else ["ids"]
    rows = graph.add("EmbedLayerNormalization", "ids", "", *given, *inputs[1:], results=2, epsilon=eps)
    lengths = graph.nodes[-1].output[1] if with_mask else ""
    for i in range(case.layers):
        graph.of_layer(rows, BERT.to_torch(tensors, i), eps, f"{i} ", lengths)
        rows = graph.norms_and_feed_forward(graph.project_and_attend(operator))
    graph.of_layer(rows, {}, eps, "pooling ")
    if with_mask:
        unmasked = graph.add("Cast", "mask", domain="", to=TensorProto.FLOAT)
        rows = graph.add(
            "Mul", rows, graph.add("Unsqueeze", unmasked, graph.constant("last", np.array([2])), domain=""), domain=""
        )
    total = graph.add("ReduceSum", rows, graph.constant("length", np.array([1])), domain="", keepdims=0)
    graph.add("LpNormalization", total, domain="", axis=-1, p=2)  # the mean has the direction of the sum
    graph.nodes[-1].output[0] = "out"
    shape = ["batch", "length"]
    infos = [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name in inputs]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", case.E])
    return serialized(graph.nodes, infos, [out], graph.weights)


def image_model(case: Case, directory: Path, pixels: Array) -> Model:
    """A ViT from "pixels" [B, 3, height, width] to "out" [B, E], with one operator for each attention."""
    from safetensors.numpy import load_file

    tensors, graph = load_file(directory / "model.safetensors"), Builder()
    kernel = [graph.constant(f"patch {end}", tensors[f"{PROJECTION}.{end}"]) for end in ("weight", "bias")]
    grid = graph.add("Conv", "pixels", *kernel, domain="", strides=[PATCH, PATCH])
    flat = graph.add("Reshape", grid, graph.constant("flat", np.array([case.B, case.E, -1])), domain="")
    patches = graph.add("Transpose", flat, domain="", perm=[0, 2, 1])
    first = graph.constant("class", np.repeat(tensors["embeddings.cls_token"], case.B, axis=0))
    rows = graph.add("Concat", first, patches, domain="", axis=1)
    rows = graph.add("Add", rows, graph.constant("positions", tensors["embeddings.position_embeddings"]), domain="")

    def norm(rows: str, name: str, state: dict[str, Array]) -> str:
        parts = [graph.constant(f"{name} {end}", state[f"{name}.{end}"]) for end in ("weight", "bias")]
        return graph.add("LayerNormalization", rows, *parts, domain="", axis=-1, epsilon=EPS)

    def product(rows: str, name: str, state: dict[str, Array]) -> str:
        made = graph.add("MatMul", rows, graph.constant(f"{name} weight", state[f"{name}.weight"].T), domain="")
        return graph.add("Add", made, graph.constant(f"{name} bias", state[f"{name}.bias"]), domain="")

    for i in range(case.layers):
        graph.name, state = f"{i} ", VIT.to_torch(tensors, i)
        of_heads = [
            graph.constant("in weight", state["self_attn.in_proj_weight"].T),
            graph.constant("in bias", state["self_attn.in_proj_bias"]),
        ]
        attended = graph.add("Attention", norm(rows, "norm1", state), *of_heads, num_heads=case.H)
        rows = graph.add("Add", product(attended, "self_attn.out_proj", state), rows, domain="")
        active = graph.add("Gelu", product(norm(rows, "norm2", state), "linear1", state))
        rows = graph.add("Add", product(active, "linear2", state), rows, domain="")
    graph.name = ""
    row = graph.add("Gather", rows, graph.constant("first row", np.array(0)), domain="", axis=1)
    norm(row, "layernorm", tensors)
    graph.nodes[-1].output[0] = "out"
    out = {"out": np.empty((case.B, case.E), np.float32)}
    return Model("contrib Attention", graph.nodes, {"pixels": pixels}, out, graph.weights)
