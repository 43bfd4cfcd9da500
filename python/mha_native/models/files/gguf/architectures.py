"""The architectures of GGUF files: the names of their tensors in a folder of Hugging Face."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# The number of a layer or of an expert in a name.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")

# Names in the file, with {} for the number of a layer or of an expert, and names in transformers without `prefix`.
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
_DENSE = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
_EXPERTS = {theirs: own for theirs, own in _DECODER.items() if not theirs.endswith(_DENSE)}
_EXPERTS |= {
    "blk.{}.ffn_gate_inp.weight": "layers.{}.mlp.gate.weight",
    **{
        f"blk.{{}}.ffn_{part}_exps.{{}}.weight": f"layers.{{}}.mlp.experts.{{}}.{part}_proj.weight"
        for part in ("gate", "up", "down")
    },
}
_SHARED_EXPERT = {
    "blk.{}.ffn_gate_inp_shexp.weight": "layers.{}.mlp.shared_expert_gate.weight",
    **{
        f"blk.{{}}.ffn_{part}_shexp.weight": f"layers.{{}}.mlp.shared_expert.{part}_proj.weight"
        for part in ("gate", "up", "down")
    },
}
_MIXTRAL = {
    theirs: own.replace("mlp.", "block_sparse_moe.")
    .replace("gate_proj", "w1")
    .replace("up_proj", "w3")
    .replace("down_proj", "w2")
    for theirs, own in _EXPERTS.items()
}
_WITHOUT_GATE = {theirs: own for theirs, own in _DECODER.items() if "ffn_gate" not in theirs}
_FUSED_GATE = _WITHOUT_GATE | {"blk.{}.ffn_up.weight": "layers.{}.mlp.gate_up_proj.weight"}
_FUSED = {
    theirs: own for theirs, own in _FUSED_GATE.items() if not theirs.endswith(("_q.weight", "_k.weight", "_v.weight"))
}
_PHI3 = _FUSED | {
    "blk.{}.attn_qkv.weight": "layers.{}.self_attn.qkv_proj.weight",
    **{f"rope_factors_{which}.weight": f"rope_factors_{which}.weight" for which in ("long", "short")},
}
_OUTPUT_NORMS = {
    theirs: own for theirs, own in _DECODER.items() if not theirs.endswith(("attn_norm.weight", "ffn_norm.weight"))
}
_OUTPUT_NORMS |= {
    "blk.{}.post_attention_norm.weight": "layers.{}.post_attention_layernorm.weight",
    "blk.{}.post_ffw_norm.weight": "layers.{}.post_feedforward_layernorm.weight",
}
_GLM4 = _FUSED_GATE | {
    "blk.{}.post_attention_norm.weight": "layers.{}.post_self_attn_layernorm.weight",
    "blk.{}.post_ffw_norm.weight": "layers.{}.post_mlp_layernorm.weight",
}
_COHERE = {theirs: own for theirs, own in _DECODER.items() if "ffn_norm" not in theirs and theirs != "output.weight"}
_STARCODER2 = _WITHOUT_GATE | {
    f"blk.{{}}.ffn_{part}.weight": f"layers.{{}}.mlp.{own}.weight" for part, own in (("up", "c_fc"), ("down", "c_proj"))
}


def _with_biases(names: Mapping[str, str], *parts: str) -> dict[str, str]:
    """Return names with the biases of `parts`, which are ends of names in the file without ``.weight``."""
    biased = {theirs: own for theirs, own in names.items() if theirs.removesuffix(".weight").endswith(parts)}
    return {**names, **{theirs[:-6] + "bias": own[:-6] + "bias" for theirs, own in biased.items()}}


_GPT_OSS = {theirs: own for theirs, own in _EXPERTS.items() if "ffn_norm" not in theirs}
_GPT_OSS |= {
    "blk.{}.post_attention_norm.weight": "layers.{}.post_attention_layernorm.weight",
    "blk.{}.attn_sinks.weight": "layers.{}.self_attn.sinks",
    "blk.{}.ffn_gate_inp.weight": "layers.{}.mlp.router.weight",
}
_GPT_OSS = _with_biases(_GPT_OSS, "_q", "_k", "_v", "attn_output", "_inp", "_exps.{}")
_GPT_NEOX = {
    f"{theirs}.weight": f"{own}.weight"
    for theirs, own in {
        "token_embd": "embed_in",
        "output_norm": "final_layer_norm",
        "output": "lm_head",
        "blk.{}.attn_norm": "layers.{}.input_layernorm",
        "blk.{}.attn_qkv": "layers.{}.attention.query_key_value",
        "blk.{}.attn_output": "layers.{}.attention.dense",
        "blk.{}.ffn_norm": "layers.{}.post_attention_layernorm",
        "blk.{}.ffn_up": "layers.{}.mlp.dense_h_to_4h",
        "blk.{}.ffn_down": "layers.{}.mlp.dense_4h_to_h",
    }.items()
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
    by_heads: bool = False  # query, key and value in one matrix are stacked head by head in transformers
    eps: str = "rms_norm_eps"  # the entry of config.json
    bias_flag: str = ""  # the entry of config.json that says whether queries have biases
    is_partial: bool = False  # some features of a head may not be rotated
    # Further numbers and flags that a file must have, with their entries of config.json.
    numbers: Mapping[str, str] = {}
    flags: Mapping[str, str] = {}
    has_experts: bool = False
    # Matrices with the shape [in, out] in transformers, by the ends of their names in the file.
    transposed: frozenset[str] = frozenset()

    def name_in_file(self, name: str) -> str:
        """Return the name in files of the tensor `name` of transformers; `name` itself if no file has it."""
        template = _NUMBER.sub("{}", name)
        for theirs, own in self.names.items():
            if own == template:
                return theirs.format(*_NUMBER.findall(name))
        return name

    def is_known(self, name: str) -> bool:
        """Return whether the tensor `name` of a file belongs to this architecture."""
        return _NUMBER.sub("{}", name) in self.names

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
        if self.by_heads and ".attn_qkv." in name:
            heads = rows.reshape(3, -1, head_dim, *rows.shape[1:])
            return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(rows.shape)
        return rows


_SILU = {"hidden_act": "silu"}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}

# By the names in general.architecture. Mistral and SmolLM2 are called llama, too.
ARCHITECTURES = {
    "llama": Architecture("llama", _DECODER, _SILU, turns_neighbours=True),
    "qwen2": Architecture("qwen2", _DECODER | _BIASES, _SILU),
    "qwen3": Architecture("qwen3", _DECODER | _HEAD_NORMS, _SILU),
    "qwen2moe": Architecture(
        "qwen2_moe", _EXPERTS | _BIASES | _SHARED_EXPERT, _SILU | {"norm_topk_prob": False}, has_experts=True
    ),
    "qwen3moe": Architecture("qwen3_moe", _EXPERTS | _HEAD_NORMS, _SILU | {"norm_topk_prob": True}, has_experts=True),
    "olmoe": Architecture("olmoe", _EXPERTS | _HEAD_NORMS, _SILU | {"norm_topk_prob": False}, has_experts=True),
    "gpt-oss": Architecture("gpt_oss", _GPT_OSS, {"experts_layout": ""}, has_experts=True),
    "gemma2": Architecture("gemma2", _DECODER | _FOUR_NORMS, _GEMMA, norms_add_one=True),
    "gemma3": Architecture("gemma3_text", _DECODER | _FOUR_NORMS | _HEAD_NORMS, _GEMMA, norms_add_one=True),
    "phi3": Architecture("phi3", _PHI3, _SILU, is_partial=True),
    "olmo2": Architecture("olmo2", _OUTPUT_NORMS | _HEAD_NORMS, _SILU),
    "exaone4": Architecture("exaone4", _OUTPUT_NORMS | _HEAD_NORMS, _SILU),
    "granite": Architecture(
        "granite",
        _DECODER,
        _SILU,
        turns_neighbours=True,
        numbers={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "smollm3": Architecture("smollm3", _DECODER, _SILU | {"no_rope_layer_interval": 4}, turns_neighbours=True),
    "ernie4_5": Architecture("ernie4_5", _DECODER, _SILU),
    "glm4": Architecture(
        "glm4", _with_biases(_GLM4, "_q", "_k", "_v"), _SILU, bias_flag="attention_bias", is_partial=True
    ),
    "command-r": Architecture("cohere", _COHERE, _SILU, eps="layer_norm_eps", numbers={"logit_scale": "logit_scale"}),
    "cohere2": Architecture("cohere2", _COHERE, _SILU, eps="layer_norm_eps", numbers={"logit_scale": "logit_scale"}),
    "starcoder2": Architecture(
        "starcoder2",
        _with_biases(_STARCODER2, "_q", "_k", "_v", "_output", "_up", "_down", "_norm"),
        {"hidden_act": "gelu_pytorch_tanh"},
        eps="norm_epsilon",
        bias_flag="use_bias",
    ),
    "stablelm": Architecture(
        "stablelm",
        _with_biases(_DECODER, "_q", "_k", "_v", "_norm"),
        _SILU,
        eps="layer_norm_eps",
        bias_flag="use_qkv_bias",
        is_partial=True,
        flags={"use_parallel_residual": "use_parallel_residual"},
    ),
    "gptneox": Architecture(
        "gpt_neox",
        _with_biases(_GPT_NEOX, "_qkv", "_output", "_up", "_down", "_norm"),
        {"hidden_act": "gelu", "attention_bias": True},
        by_heads=True,
        eps="layer_norm_eps",
        is_partial=True,
        flags={"use_parallel_residual": "use_parallel_residual"},
    ),
    "gpt2": Architecture(
        "gpt2",
        _GPT2,
        {"activation_function": "gelu_new"},
        transposed=frozenset({"attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"}),
    ),
}

# The same architectures with experts, where files have one name for both.
WITH_EXPERTS = {
    "llama": Architecture(
        "mixtral", _MIXTRAL, _SILU | {"sliding_window": None}, turns_neighbours=True, has_experts=True
    )
}


def architecture_of(metadata: Mapping[str, Any]) -> Architecture:
    """Return the architecture that metadata name, one of `ARCHITECTURES`."""
    name = metadata["general.architecture"]
    has_experts = metadata.get(f"{name}.expert_count", 0) != 0
    return WITH_EXPERTS[name] if has_experts and name in WITH_EXPERTS else ARCHITECTURES[name]
