"""Mixtral: Mistral with experts in every layer."""

from ..architecture.config import ExpertsConfig
from ..files.entries import Entries
from .mistral import FAMILY as MISTRAL


def _experts(entries: Entries, i: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=entries.size("num_local_experts"),
        experts_per_token=entries.size("num_experts_per_tok"),
        feedforward_dim=entries.size("intermediate_size"),
    )


(_STACK,) = MISTRAL.stacks

FAMILY = MISTRAL._replace(
    model_types=("mixtral",),
    stacks=(
        _STACK._replace(
            blocks=_STACK.blocks._replace(
                router="block_sparse_moe.gate",
                expert="block_sparse_moe.experts.{}.",
                expert_gate="w1",
                expert_up="w3",
                expert_down="w2",
            )
        ),
    ),
    defaults={
        **MISTRAL.defaults,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    bases={"": ("rope_theta", 1e6)},
    experts=_experts,
)
