"""Trains a tiny language model on text, and prints its perplexity with weights in each format.

    python -m mha_native_bench.perplexity docs/*.md

Tokens are bytes. The last tenth of the text is held out. Needs torch and transformers for training, and gguf for the
formats of GGUF files; q4_k, q5_k and q6_k also need llama-cpp-python, which has their quantization.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mha_native
from mha_native_bench.cases.case import BLOCKED, Array, Case
from mha_native_bench.cases.language_model import EMBEDDINGS
from mha_native_bench.contenders.ours import make_decoder

CASE = Case(
    "tiny", "decoder", "f32", B=1, H=4, Hk=2, Tq=128, Tk=128, D=64, E=256, causal=False,
    F=768, activation="silu", layers=3, V=256,
)  # fmt: skip
STEPS, BATCH, RATE = 300, 16, 3e-3


def main(paths: list[str]) -> None:
    text = b"".join(Path(path).read_bytes() for path in sorted(paths))
    tokens = np.frombuffer(text, np.uint8).astype(np.int64)
    held_out = len(tokens) // 10
    state = trained(CASE, tokens[:-held_out], STEPS)
    print(f"{len(tokens):,} bytes, perplexity of the last {held_out:,}:")
    before = 0.0
    for name, weights, stored in formats(state):
        model = make_decoder(CASE, weights, stored)
        found = perplexity(CASE, model, state[EMBEDDINGS], tokens[-held_out:])
        before = before or found
        print(f"{name:8} {found:.4f} {found / before - 1:+.2%}", flush=True)


def perplexity(case: Case, model: tuple[Any, Any], embeddings: Array, tokens: NDArray[np.int64]) -> float:
    """Return the exponential of the mean negative log-likelihood of a token after up to Tk - 1 others."""
    layers, head = model
    texts = tokens[: len(tokens) // case.Tk * case.Tk].reshape(-1, case.Tk)
    logits = head(layers(embeddings[texts[:, :-1]])).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    of_next = np.take_along_axis(logits, texts[:, 1:, None], -1)[..., 0]
    return float(np.exp(np.mean(np.log(np.exp(logits).sum(-1)) - of_next)))


def formats(state: dict[str, Array]) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """The name of each format, the weights in it, and the format that numbers are rounded to when they are loaded."""
    yield "float32", state, None
    for name in ("bfloat16", "int8", "int4"):
        yield name, state, name
    for name in BLOCKED:
        quantize = quantizer(name)
        if quantize is not None:
            blocks = {key: quantize(array) for key, array in state.items() if array.ndim == 2}
            yield name, state | blocks, None


def quantizer(dtype: str) -> Any:
    """A function from a matrix to its blocks; None without the package that has it."""
    if not find_spec("gguf"):
        return None
    import gguf

    kind = gguf.GGMLQuantizationType[dtype.upper()]

    def by_gguf(array: Array) -> mha_native.BlockMatrix:
        return mha_native.BlockMatrix(gguf.quants.quantize(array, kind), dtype, array.shape[1])

    try:
        by_gguf(np.zeros((1, 256), np.float32))
    except NotImplementedError:
        return by_llama_cpp(dtype, int(kind)) if find_spec("llama_cpp") else None
    return by_gguf


def by_llama_cpp(dtype: str, kind: int) -> Any:
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    library = ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_row_size.restype = ctypes.c_size_t

    def quantize(array: Array) -> mha_native.BlockMatrix:
        rows, columns = array.shape
        given = np.ascontiguousarray(array, np.float32)
        data = np.empty((rows, library.ggml_row_size(kind, ctypes.c_int64(columns))), np.uint8)
        where = ctypes.c_void_p(given.ctypes.data), ctypes.c_void_p(data.ctypes.data)
        sizes = ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(columns)
        library.ggml_quantize_chunk(kind, *where, *sizes, None)
        return mha_native.BlockMatrix(data, dtype, columns)

    return quantize


def trained(case: Case, tokens: NDArray[np.int64], steps: int) -> dict[str, Array]:
    """The weights of a Llama after `steps` steps of AdamW, as `language_model_state` names them; seeded."""
    import torch
    import transformers

    from mha_native_bench.contenders.peers.transformers_decoder import NAMES, llama_config

    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(case)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        begins = rng.integers(0, len(tokens) - case.Tk, BATCH)
        batch = torch.from_numpy(np.stack([tokens[begin : begin + case.Tk] for begin in begins]))
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    tensors = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    state = {EMBEDDINGS: tensors["model.embed_tokens.weight"], "norm.weight": tensors["model.norm.weight"]}
    for i in range(case.layers):
        prefix = f"model.layers.{i}."
        parts = [tensors[f"{prefix}self_attn.{letter}_proj.weight"] for letter in "qkv"]
        state[f"layers.{i}.self_attn.in_proj_weight"] = np.concatenate(parts)
        state |= {f"layers.{i}.{ours}.weight": tensors[f"{prefix}{name}.weight"] for name, ours in NAMES.items()}
    return state


if __name__ == "__main__":
    main(sys.argv[1:])
