"""Transformers on torch: the experts of its Qwen3-MoE, by each way in which it computes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs, make_inputs
from mha_native_bench.contenders.contender import CannotCompute, Program
from mha_native_bench.contenders.peers.torch_peer import array_of, turn

# One product for each expert; one grouped product of all; one batched product, for which weights are copied.
WAYS = ("eager", "grouped_mm", "batched_mm")
MOST_COPIED = 8  # rows up to which the copies of the last way fit in memory


def experts_programs(contender: str, case: Case, inputs: Inputs, threads: int) -> list[Program]:
    """A layer of experts, in float32, or with weights in bf16 computed in bf16."""
    if case.weights == "int8" or case.dtype != "f32":
        raise CannotCompute("experts in f32, or with weights in bf16")
    block = load_block(case)
    x = torch.from_numpy(inputs.arrays[0])

    def program(way: str) -> Program:
        def run() -> torch.Tensor:
            block.experts.config._experts_implementation = way
            result: torch.Tensor = block(x.to(torch.bfloat16) if case.weights else x)
            return result

        return Program(contender, threads, run, turn(threads, True), array_of, way)

    return [program(way) for way in WAYS if way != "batched_mm" or case.B * case.Tq <= MOST_COPIED]


@lru_cache(maxsize=1)
def load_block(case: Case) -> Any:
    """The layer, shared by all numbers of threads."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=case.E,
        moe_intermediate_size=case.F,
        num_experts=case.X,
        num_experts_per_tok=case.used,
        norm_topk_prob=True,
    )
    with torch.device("meta"):
        block = Qwen3MoeSparseMoeBlock(config)
    block = block.to_empty(device="cpu").to(torch.bfloat16 if case.weights else torch.float32).eval()
    state = {name: torch.from_numpy(array) for name, array in make_inputs(case).state.items()}
    with torch.no_grad():
        block.gate.weight.copy_(state["router.weight"])
        for i in range(case.X):
            block.experts.gate_up_proj[i, : case.F].copy_(state[f"experts.{i}.gate.weight"])
            block.experts.gate_up_proj[i, case.F :].copy_(state[f"experts.{i}.linear1.weight"])
            block.experts.down_proj[i].copy_(state[f"experts.{i}.linear2.weight"])
    return block
