"""ONNX Runtime: a BERT and its pooling, a ViT, and the text tower of a CLIP, as its optimizer makes them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from mha_native_bench.cases.case import PATCH, Array, Case
from mha_native_bench.cases.clip_text import CLIP_TEXT, END, FINAL_NORM, TEXTS
from mha_native_bench.cases.clip_text import EPS as CLIP_EPS
from mha_native_bench.cases.image_model import EPS as VIT_EPS
from mha_native_bench.cases.image_model import PROJECTION, VIT
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.sentence_model import BERT
from mha_native_bench.cases.weights import LayerNames
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


class NormFirst(Builder):
    """Layers with norms before their sublayers, with one operator for each attention."""

    def __init__(self, case: Case, eps: float) -> None:
        super().__init__()
        self._case, self._eps = case, eps

    def norm(self, rows: str, name: str, state: dict[str, Array]) -> str:
        parts = [self.constant(f"{name} {end}", state[f"{name}.{end}"]) for end in ("weight", "bias")]
        return self.add("LayerNormalization", rows, *parts, domain="", axis=-1, epsilon=self._eps)

    def product(self, rows: str, name: str, state: dict[str, Array]) -> str:
        made = self.add("MatMul", rows, self.constant(f"{name} weight", state[f"{name}.weight"].T), domain="")
        return self.add("Add", made, self.constant(f"{name} bias", state[f"{name}.bias"]), domain="")

    def layers(self, rows: str, names: LayerNames, tensors: dict[str, Array]) -> str:
        case = self._case
        for i in range(case.layers):
            self.name, state = f"{i} ", names.to_torch(tensors, i)
            of_heads = [
                self.constant("in weight", state["self_attn.in_proj_weight"].T),
                self.constant("in bias", state["self_attn.in_proj_bias"]),
            ]
            sees: dict[str, Any] = {"num_heads": case.H, "unidirectional": int(case.causal)}
            attended = self.add("Attention", self.norm(rows, "norm1", state), *of_heads, **sees)
            rows = self.add("Add", self.product(attended, "self_attn.out_proj", state), rows, domain="")
            hidden = self.product(self.norm(rows, "norm2", state), "linear1", state)
            is_quick = case.activation == "quick_gelu"
            active = self.add("QuickGelu", hidden, alpha=1.702) if is_quick else self.add("Gelu", hidden)
            rows = self.add("Add", self.product(active, "linear2", state), rows, domain="")
        self.name = ""
        return rows

    def model(self, **inputs: Array) -> Model:
        """The graph, whose last node has the result [B, E]."""
        self.nodes[-1].output[0] = "out"
        out = {"out": np.empty((self._case.B, self._case.E), np.float32)}
        return Model("contrib Attention", self.nodes, inputs, out, self.weights)


def image_model(case: Case, directory: Path, pixels: Array) -> Model:
    """A ViT from "pixels" [B, 3, height, width] to "out" [B, E]."""
    from safetensors.numpy import load_file

    tensors, graph = load_file(directory / "model.safetensors"), NormFirst(case, VIT_EPS)
    kernel = [graph.constant(f"patch {end}", tensors[f"{PROJECTION}.{end}"]) for end in ("weight", "bias")]
    grid = graph.add("Conv", "pixels", *kernel, domain="", strides=[PATCH, PATCH])
    flat = graph.add("Reshape", grid, graph.constant("flat", np.array([case.B, case.E, -1])), domain="")
    patches = graph.add("Transpose", flat, domain="", perm=[0, 2, 1])
    first = graph.constant("class", np.repeat(tensors["embeddings.cls_token"], case.B, axis=0))
    rows = graph.add("Concat", first, patches, domain="", axis=1)
    rows = graph.add("Add", rows, graph.constant("positions", tensors["embeddings.position_embeddings"]), domain="")
    rows = graph.layers(rows, VIT, tensors)
    row = graph.add("Gather", rows, graph.constant("first row", np.array(0)), domain="", axis=1)
    graph.norm(row, "layernorm", tensors)
    return graph.model(pixels=pixels)


def clip_text_model(case: Case, directory: Path, ids: Array) -> Model:
    """The text tower of a CLIP from "ids" [B, T] to "out" [B, E], of length 1."""
    from safetensors.numpy import load_file

    tensors, graph = load_file(directory / "model.safetensors"), NormFirst(case, CLIP_EPS)
    words, positions = (tensors[f"{TEXTS}embeddings.{name}_embedding.weight"] for name in ("token", "position"))
    rows = graph.add("Gather", graph.constant("words", words), "ids", domain="")
    rows = graph.add("Add", rows, graph.constant("positions", positions[: case.Tq]), domain="")
    rows = graph.norm(graph.layers(rows, CLIP_TEXT, tensors), FINAL_NORM, tensors)
    is_end = graph.add("Equal", "ids", graph.constant("end", np.array(END, np.int32)), domain="")
    ends = graph.add("Cast", is_end, domain="", to=TensorProto.INT32)
    places = graph.add("ArgMax", ends, domain="", axis=1)  # [B, 1]
    row = graph.add("GatherND", rows, places, domain="", batch_dims=1)
    weight = graph.constant("projection", tensors["text_projection.weight"].T)
    vectors = graph.add("MatMul", row, weight, domain="")
    graph.add("LpNormalization", vectors, domain="", axis=-1, p=2)
    return graph.model(ids=ids.astype(np.int32))
