"""The architectures of GGUF files: the names of their tensors in a folder of Hugging Face."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Names in the file, with {} for the number of a layer, and names in transformers without `prefix`.
_DECODER = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{}.attn_norm.weight": "layers.{}.input_layernorm.weight",
    "blk.{}.attn_q.weight": "layers.{}.self_attn.q_proj.weight",
    "blk.{}.attn_k.weight": "layers.{}.self_attn.k_proj.weight",
    "blk.{}.attn_v.weight": "layers.{}.self_attn.v_proj.weight",
    "blk.{}.attn_output.weight": "layers.{}.self_attn.o_proj.weight",
    "blk.{}.ffn_norm.weight": "layers.{}.post_attention_layernorm.weight",
    "blk.{}.ffn_gate.weight": "layers.{}.mlp.gate_proj.weight",
    "blk.{}.ffn_up.weight": "layers.{}.mlp.up_proj.weight",
    "blk.{}.ffn_down.weight": "layers.{}.mlp.down_proj.weight",
}
_BIASES = {f"blk.{{}}.attn_{part}.bias": f"layers.{{}}.self_attn.{part}_proj.bias" for part in "qkv"}
_HEAD_NORMS = {f"blk.{{}}.attn_{part}_norm.weight": f"layers.{{}}.self_attn.{part}_norm.weight" for part in "qk"}
_FOUR_NORMS = {
    "blk.{}.post_attention_norm.weight": "layers.{}.post_attention_layernorm.weight",
    "blk.{}.ffn_norm.weight": "layers.{}.pre_feedforward_layernorm.weight",
    "blk.{}.post_ffw_norm.weight": "layers.{}.post_feedforward_layernorm.weight",
}
_GPT2 = {
    "token_embd.weight": "wte.weight",
    "position_embd.weight": "wpe.weight",
    "output.weight": "lm_head.weight",
    **{
        f"{theirs}.{part}": f"{name}.{part}"
        for theirs, name in {
            "output_norm": "ln_f",
            "blk.{}.attn_norm": "h.{}.ln_1",
            "blk.{}.attn_qkv": "h.{}.attn.c_attn",
            "blk.{}.attn_output": "h.{}.attn.c_proj",
            "blk.{}.ffn_norm": "h.{}.ln_2",
            "blk.{}.ffn_up": "h.{}.mlp.c_fc",
            "blk.{}.ffn_down": "h.{}.mlp.c_proj",
        }.items()
        for part in ("weight", "bias")
    },
}


class Architecture(NamedTuple):
    """Models with the same layout in GGUF files."""

    model_type: str  # in config.json
    # The names of tensors in transformers, without the prefix of a model with a head, by their names in the file.
    names: Mapping[str, str]
    fixed: Mapping[str, Any]  # entries of config.json with the same value in all these models
    # Rows of queries and keys have the order for interleaved pairs: feature i of the first half of a head is row 2 i,
    # and feature i of the second half is row 2 i + 1.
    turns_neighbours: bool = False
    norms_add_one: bool = False  # norms multiply with 1 plus the weight in transformers, and the file holds the sum
    # Matrices with the shape [in, out] in transformers, by the ends of their names in the file.
    transposed: frozenset[str] = frozenset()

    def name_in_file(self, name: str) -> str:
        """Return the name in files of the tensor `name` of transformers; `name` itself if no file has it."""
        number = re.search(r"\d+", name.partition(".")[2])
        template = name if number is None else name.replace(number[0], "{}", 1)
        for theirs, own in self.names.items():
            if own == template:
                return theirs.format(number[0]) if number else theirs
        return name

    def is_known(self, name: str) -> bool:
        """Return whether the tensor `name` of a file belongs to this architecture."""
        return re.sub(r"^blk\.\d+\.", "blk.{}.", name) in self.names

    def is_transposed(self, name: str) -> bool:
        """Return whether the tensor `name` of a file is transposed in transformers."""
        return name.startswith("blk.") and name.split(".", 2)[2] in self.transposed

    def as_in_transformers(self, name: str, tensor: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
        """Return the tensor `name` of a file in the layout of transformers."""
        if self.is_transposed(name):
            return np.ascontiguousarray(tensor.T)
        if self.norms_add_one and name.endswith("norm.weight"):
            tensor -= 1
        return self.rows_in_transformers(name, tensor, head_dim)

    def rows_in_transformers(self, name: str, rows: NDArray[Any], head_dim: int) -> NDArray[Any]:
        """Return the rows of the tensor `name` of a file, of any elements, in the order of transformers."""
        if self.turns_neighbours and name.endswith((".attn_q.weight", ".attn_k.weight")):
            heads = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
            return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)
        return rows


_SILU = {"hidden_act": "silu"}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}

# By the names in general.architecture. Mistral and SmolLM2 are called llama, too.
ARCHITECTURES = {
    "llama": Architecture("llama", _DECODER, _SILU, turns_neighbours=True),
    "qwen2": Architecture("qwen2", _DECODER | _BIASES, _SILU),
    "qwen3": Architecture("qwen3", _DECODER | _HEAD_NORMS, _SILU),
    "gemma2": Architecture("gemma2", _DECODER | _FOUR_NORMS, _GEMMA, norms_add_one=True),
    "gemma3": Architecture("gemma3_text", _DECODER | _FOUR_NORMS | _HEAD_NORMS, _GEMMA, norms_add_one=True),
    "gpt2": Architecture(
        "gpt2",
        _GPT2,
        {"activation_function": "gelu_new"},
        transposed=frozenset({"attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"}),
    ),
}
