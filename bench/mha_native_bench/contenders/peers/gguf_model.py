"""The decoder of a case as a file of the format GGUF, for llama.cpp."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from mha_native_bench.cases.case import BLOCKED, Array, Case
from mha_native_bench.cases.language_model import BASE, EMBEDDINGS, EPS, language_model_blocks, language_model_state

# By the format of weights: as many bits a weight in llama.cpp.
TYPES = {
    "": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.F16,
    "int8": gguf.GGMLQuantizationType.Q8_0,
    "int4": gguf.GGMLQuantizationType.Q4_0,
    **{name: gguf.GGMLQuantizationType[name.upper()] for name in BLOCKED},
}

# Llama's names of the parts of a layer in such files, and this library's.
NAMES = {
    "attn_output": "self_attn.out_proj",
    "ffn_gate": "gate",
    "ffn_up": "linear1",
    "ffn_down": "linear2",
    "attn_norm": "norm1",
    "ffn_norm": "norm2",
}


def write_gguf(case: Case, path: Path) -> None:
    """Writes the model without a tokenizer; matrices are in the type of the case, norms in F32."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(case.Tk)
    writer.add_embedding_length(case.E)
    writer.add_block_count(case.layers)
    writer.add_feed_forward_length(case.F)
    writer.add_head_count(case.H)
    writer.add_head_count_kv(case.Hk)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(BASE)
    writer.add_rope_dimension_count(case.D)
    writer.add_vocab_size(case.V)
    writer.add_tokenizer_model("no_vocab")
    blocks = {name: one.data for name, one in language_model_blocks(case).items()}
    for name, array in gguf_tensors(case, language_model_state(case) | blocks).items():
        kind = TYPES[case.weights] if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        given = np.ascontiguousarray(array)
        raw = given if given.dtype == np.uint8 else gguf.quants.quantize(given, kind)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(case: Case, state: dict[str, Array]) -> dict[str, Array]:
    """The arrays by their names in such files. Rows of matrices are numbers, or the bytes of blocks."""
    tensors = {"token_embd": state[EMBEDDINGS], "output_norm": state["norm.weight"]}
    kv_width = case.Hk * case.D
    for i in range(case.layers):
        stacked = state[f"layers.{i}.self_attn.in_proj_weight"]
        query, key, value = np.split(stacked, [case.E, case.E + kv_width])
        tensors[f"blk.{i}.attn_q"] = by_neighbours(query, case.H)
        tensors[f"blk.{i}.attn_k"] = by_neighbours(key, case.Hk)
        tensors[f"blk.{i}.attn_v"] = value
        tensors |= {f"blk.{i}.{name}": state[f"layers.{i}.{ours}.weight"] for name, ours in NAMES.items()}
    return tensors


def by_neighbours(weight: Array, heads: int) -> Array:
    """The rows of each head in such an order that neighbours are turned together, and not halves, as llama.cpp does."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)
