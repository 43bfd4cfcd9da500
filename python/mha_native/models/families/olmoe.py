"""OLMoE: Llama with experts, and one norm of all heads of queries, and one of keys."""

from ..architecture.config import ATTENTION, ExpertsConfig
from ..files.entries import Entries
from .llama import FAMILY as LLAMA
from .qwen2_moe import FAMILY as QWEN2_MOE


def _experts(entries: Entries, i: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=entries.size("num_experts"),
        experts_per_token=entries.size("num_experts_per_tok"),
        feedforward_dim=entries.size("intermediate_size"),
        normalize=entries.flag("norm_topk_prob"),
    )


FAMILY = LLAMA._replace(
    model_types=("olmoe",),
    keys=LLAMA.keys._replace(head_dim=""),
    stacks=QWEN2_MOE.stacks,
    defaults={
        **LLAMA.defaults,
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    refused={**LLAMA.refused, "clip_qkv": "queries, keys and values are not clipped"},
    joint_qk_norm=True,
    biases={"attention_bias": ATTENTION},
    experts=_experts,
)
