"""Qwen3-MoE: Qwen3 with experts in most layers."""

from ..architecture.config import ExpertsConfig
from ..files.entries import Entries
from .mistral import is_sliding
from .qwen2_moe import FAMILY as QWEN2_MOE
from .qwen2_moe import has_experts
from .qwen3 import FAMILY as QWEN3


def _experts(entries: Entries, i: int) -> ExpertsConfig | None:
    if not has_experts(entries, i):
        return None
    return ExpertsConfig(
        # The name of the number in the files of transformers, and in most others.
        num_experts=entries.size("num_local_experts" if entries.has("num_local_experts") else "num_experts"),
        experts_per_token=entries.size("num_experts_per_tok"),
        feedforward_dim=entries.size("moe_intermediate_size"),
        normalize=entries.flag("norm_topk_prob"),
    )


FAMILY = QWEN3._replace(
    model_types=("qwen3_moe",),
    keys=QWEN3.keys._replace(layer_types=""),
    stacks=QWEN2_MOE.stacks,
    defaults={
        **QWEN3.defaults,
        "head_dim": None,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
    },
    is_sliding=is_sliding,
    experts=_experts,
)
