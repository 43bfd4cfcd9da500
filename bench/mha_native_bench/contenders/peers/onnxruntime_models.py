"""ONNX Runtime: a BERT and its pooling as the graph that its optimizer makes of such models."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.sentence_model import bert_layer
from mha_native_bench.contenders.peers.onnxruntime_graph import serialized
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
        graph.of_layer(rows, bert_layer(tensors, i), eps, f"{i} ", lengths)
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
