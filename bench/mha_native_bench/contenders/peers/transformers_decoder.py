"""Transformers on torch: its Llama with fused attention, over its cache."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import transformers

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.language_model import BASE, EMBEDDINGS, EPS, language_model_state
from mha_native_bench.contenders.contender import CannotCompute, Program
from mha_native_bench.contenders.peers.torch_peer import array_of, turn

# Llama's names of the parts of a layer, and this library's.
NAMES = {
    "self_attn.o_proj": "self_attn.out_proj",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "linear1",
    "mlp.down_proj": "linear2",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
}


def decoder_programs(contender: str, case: Case, inputs: Inputs, threads: int) -> list[Program]:
    """The last Tq tokens of each sequence over a cache of the others, which is cut back behind each call.

    Weights in bf16 make a model that computes in bf16.
    """
    if case.weights == "int8":  # by dynamic quantization
        raise CannotCompute("int8 logits off by a tenth of the largest")
    if case.weights not in ("", "bf16"):
        raise CannotCompute("no integer weights without another package")
    model = load_decoder(case)
    tokens = torch.from_numpy(inputs.arrays[0])
    before = case.Tk - case.Tq
    cache = transformers.DynamicCache(config=model.config)
    with torch.inference_mode():
        if before:
            model(tokens[:, :before], past_key_values=cache, logits_to_keep=1)

    def run() -> torch.Tensor:
        over = cache if before else transformers.DynamicCache(config=model.config)
        logits: torch.Tensor = model(tokens[:, before:], past_key_values=over, logits_to_keep=1).logits[:, -1]
        if before:
            cache.crop(-case.Tq)
        return logits

    return [Program(contender, threads, run, turn(threads, True), array_of)]


@lru_cache(maxsize=1)
def load_decoder(case: Case) -> Any:
    """The model, shared by all numbers of threads."""
    config = transformers.LlamaConfig(**llama_config(case), attn_implementation="sdpa")
    model: Any = transformers.LlamaForCausalLM(config).eval()
    state = {name: torch.from_numpy(array) for name, array in llama_tensors(case, language_model_state(case)).items()}
    model.load_state_dict(state, strict=False)  # the head is that of the embeddings
    return model.to(torch.bfloat16) if case.weights == "bf16" else model


def llama_config(case: Case) -> dict[str, Any]:
    """config.json."""
    return {
        "vocab_size": case.V,
        "hidden_size": case.E,
        "intermediate_size": case.F,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.H,
        "num_key_value_heads": case.Hk,
        "hidden_act": case.activation,
        "max_position_embeddings": case.Tk,
        "rms_norm_eps": EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "tie_word_embeddings": True,
    }


def llama_tensors(case: Case, state: dict[str, Array]) -> dict[str, Array]:
    """The weights as transformers names them."""
    tensors = {"model.embed_tokens.weight": state[EMBEDDINGS], "model.norm.weight": state["norm.weight"]}
    ends = [0, case.E, case.E + case.Hk * case.D, case.E + 2 * case.Hk * case.D]
    for i in range(case.layers):
        stacked = state[f"layers.{i}.self_attn.in_proj_weight"]
        for letter, first, end in zip("qkv", ends, ends[1:], strict=False):
            tensors[f"model.layers.{i}.self_attn.{letter}_proj.weight"] = stacked[first:end]
        tensors |= {
            f"model.layers.{i}.{name}.weight": state[f"layers.{i}.{ours}.weight"] for name, ours in NAMES.items()
        }
    return tensors
