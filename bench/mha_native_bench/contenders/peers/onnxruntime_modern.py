"""ONNX Runtime: ModernBERT and the decoder of a language model, of the operators that its model builders choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mha_native_bench.cases.case import FULL_EVERY, Array, Case
from mha_native_bench.cases.inputs import Inputs, make_inputs
from mha_native_bench.cases.language_model import BASE, EMBEDDINGS, angles
from mha_native_bench.cases.language_model import EPS as DECODER_EPS
from mha_native_bench.cases.modernbert import EPS as MODERNBERT_EPS
from mha_native_bench.cases.modernbert import FULL_BASE, WINDOW_BASE, modernbert_layer
from mha_native_bench.contenders.peers.onnxruntime_graph import Builder, Model

BLOCK = 32  # columns of a weight in int8 that share a scale


class Graph(Builder):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def product(self, rows: str, name: str, weight: Array) -> str:
        """Rows times a weight [out, in]; integers have scales for blocks of a row, as have the rows in each call."""
        if not self.case.weights:
            return self.add("MatMul", rows, self.constant(name, weight.T), domain="")
        out, width = weight.shape
        blocks = weight.reshape(out, width // BLOCK, BLOCK)
        bits = self.case.whole_bits
        scales = np.abs(blocks).max(-1) / (2 ** (bits - 1) - 1)
        integers = (np.rint(blocks / np.where(scales > 0, scales, 1)[..., None]) + 2 ** (bits - 1)).astype(np.uint8)
        if bits == 4:
            integers = integers[..., ::2] | integers[..., 1::2] << 4
        given = [self.constant(name, integers), self.constant(f"{name} scales", scales.astype(np.float32))]
        of_rows: dict[str, Any] = {"K": width, "N": out, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
        return self.add("MatMulNBits", rows, *given, **of_rows)

    def feed_forward(self, rows: str, name: str, state: dict[str, Array]) -> str:
        gate = self.product(rows, f"{name} gate", state["gate.weight"])
        other = self.product(rows, f"{name} up", state["linear1.weight"])
        # A QuickGelu of alpha 1 is a silu.
        active = self.add("Gelu", gate) if self.case.activation == "gelu" else self.add("QuickGelu", gate, alpha=1.0)
        gated = self.add("Mul", active, other, domain="")
        return self.product(gated, f"{name} down", state["linear2.weight"])

    def turns(self, name: str, positions: int, base: float) -> list[str]:
        """Cosine and sine of the angles by which heads turn."""
        tables = angles(positions, self.case.D, base)
        return [
            self.constant(f"{part} {name}", table.astype(np.float32))
            for part, table in zip(("cos", "sin"), tables, strict=True)
        ]

    def attend(self, rows: str, name: str, state: dict[str, Array], turns: list[str], bias: str) -> str:
        """ModernBERT's attention, and its product behind it."""
        case = self.case
        stacked = self.product(rows, f"{name} in", state["self_attn.in_proj_weight"])
        query, key, value = self.split(stacked, 3)
        first = self.constant("first position", np.array([0]))
        query, key = (self.add("RotaryEmbedding", one, first, *turns) for one in (query, key))
        given = [query, key, value] + ["", "", bias] * bool(bias)
        attended = self.add("MultiHeadAttention", *given, num_heads=case.H)
        return self.product(attended, f"{name} out", state["self_attn.out_proj.weight"])

    def modernbert(self, tensors: dict[str, Array]) -> None:
        """From "ids" [B, T] to "out" [B, E], for the length of the case, without padding."""
        case = self.case
        words = self.constant("words", tensors["embeddings.tok_embeddings.weight"])
        rows = self.add("Gather", words, "ids", domain="")
        norm = self.constant("first norm", tensors["embeddings.norm.weight"])
        rows = normal = self.add("LayerNormalization", rows, norm, domain="", axis=-1, epsilon=MODERNBERT_EPS)
        turns = {base: self.turns(f"{base}", case.Tq, base) for base in (FULL_BASE, WINDOW_BASE)}
        hidden = np.where(case.visible(case.Tq, case.Tq), 0, -np.inf).astype(np.float32)
        window = self.constant("window", hidden[None, None])
        for i in range(case.layers):
            state, is_full = modernbert_layer(tensors, i), i % FULL_EVERY == 0
            of_layer = (turns[FULL_BASE], "") if is_full else (turns[WINDOW_BASE], window)
            normal, rows = self.add_and_norm(
                rows, self.attend(normal, f"{i}", state, *of_layer), f"{i} norm2", state["norm2.weight"]
            )
            is_last = i == case.layers - 1
            weight = tensors["final_norm.weight" if is_last else f"layers.{i + 1}.attn_norm.weight"]
            normal, rows = self.add_and_norm(rows, self.feed_forward(normal, f"{i}", state), f"{i + 1} norm1", weight)
        mean = self.add("ReduceMean", normal, self.constant("length", np.array([1])), domain="", keepdims=0)
        self.add("LpNormalization", mean, domain="", axis=-1, p=2)
        self.nodes[-1].output[0] = "out"

    def add_and_norm(self, rows: str, others: str, name: str, weight: Array) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        given = [rows, others, self.constant(name, weight)]
        if self.case.kind == "decoder":
            norm = self.add("SkipSimplifiedLayerNormalization", *given, results=4, epsilon=DECODER_EPS)
        else:
            norm = self.add("SkipLayerNormalization", *given, results=4, epsilon=MODERNBERT_EPS)
        outputs = self.nodes[-1].output
        outputs[1:3] = ["", ""]
        return norm, outputs[3]

    def decoder(self, state: dict[str, Array]) -> None:
        """From "ids" [B, Tq] to "out" [B, V], and from caches with room for Tk tokens to the same caches."""
        case = self.case
        words = self.constant("words", state[EMBEDDINGS])
        rows = self.add("Gather", words, "ids", domain="")
        norm = self.constant("0 norm1", state["layers.0.norm1.weight"])
        normal = self.add("SimplifiedLayerNormalization", rows, norm, domain="", axis=-1, epsilon=DECODER_EPS)
        turns = self.turns("table", case.Tk, BASE)
        heads: dict[str, Any] = {"num_heads": case.H, "kv_num_heads": case.Hk, "do_rotary": 1}
        for i in range(case.layers):
            prefix = f"layers.{i}."
            layer = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            stacked = self.product(normal, f"{i} in", layer["self_attn.in_proj_weight"])
            caches = [f"past_key {i}", f"past_value {i}"]
            given = [stacked, "", "", *caches, "last", "total", *turns]
            attended = self.add("GroupQueryAttention", *given, results=3, **heads)
            self.nodes[-1].output[1:] = [f"present_key {i}", f"present_value {i}"]
            behind = self.product(attended, f"{i} out", layer["self_attn.out_proj.weight"])
            normal, rows = self.add_and_norm(rows, behind, f"{i} norm2", layer["norm2.weight"])
            is_last = i == case.layers - 1
            weight = state["norm.weight" if is_last else f"layers.{i + 1}.norm1.weight"]
            normal, rows = self.add_and_norm(rows, self.feed_forward(normal, f"{i}", layer), f"{i + 1} norm1", weight)
        last = self.add("Gather", normal, self.constant("end", np.array(-1)), domain="", axis=1)
        self.product(last, "head", state[EMBEDDINGS])
        self.nodes[-1].output[0] = "out"


def modernbert_model(case: Case, directory: Path, ids: Array) -> Model:
    from safetensors.numpy import load_file

    graph = Graph(case)
    graph.modernbert(load_file(directory / "model.safetensors"))
    out = {"out": np.empty((case.B, case.E), np.float32)}
    return Model("one shape", graph.nodes, {"ids": ids.astype(np.int32)}, out, graph.weights)


def decoder_model(case: Case, first: int, end: int, caches: dict[str, Array]) -> Model:
    """The tokens from `first` to `end` of each sequence over `caches`, which hold those before, and get these."""
    graph = Graph(case)
    inputs = make_inputs(case)
    graph.decoder(inputs.state)
    given = {"ids": inputs.arrays[0][:, first:end].astype(np.int32)}
    given |= {"last": np.full(case.B, end - 1, np.int32), "total": np.array([end], np.int32)}
    given |= {f"past_{name}": array for name, array in caches.items()}
    out = {"out": np.empty((case.B, case.V), np.float32)}
    out |= {f"present_{name}": array for name, array in caches.items()}
    return Model("GQA", graph.nodes, given, out, graph.weights)


def product_model(case: Case, inputs: Inputs) -> Model:
    """One product, "x" to "out"."""
    graph = Graph(case)
    graph.product("x", "weight", inputs.state["weight"])
    graph.nodes[-1].output[0] = "out"
    out = {"out": np.empty((case.B, case.Tq, case.F), np.float32)}
    return Model("MatMulNBits" if case.weights else "MatMul", graph.nodes, {"x": inputs.arrays[0]}, out, graph.weights)


def empty_caches(case: Case) -> dict[str, Array]:
    """Keys and values of each layer, with room for all tokens."""
    shape = (case.B, case.Hk, case.Tk, case.D)
    return {f"{part} {i}": np.zeros(shape, np.float32) for i in range(case.layers) for part in ("key", "value")}
