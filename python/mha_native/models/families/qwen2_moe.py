"""Qwen2-MoE: Qwen2 with experts, and a shared expert with a gate, in most layers."""

from ...functions.messages import shown
from ..architecture.config import ExpertsConfig
from ..files.entries import Entries
from .qwen2 import FAMILY as QWEN2


def has_experts(entries: Entries, i: int) -> bool:
    """Return whether layer i has experts: every so many layers, but for those of a list."""
    dense = entries.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise ValueError(f"{entries.path}: mlp_only_layers must be a list of integers; got {shown(dense)}")
    return i not in dense and (i + 1) % entries.size("decoder_sparse_step") == 0


def _experts(entries: Entries, i: int) -> ExpertsConfig | None:
    if not has_experts(entries, i):
        return None
    return ExpertsConfig(
        num_experts=entries.size("num_experts"),
        experts_per_token=entries.size("num_experts_per_tok"),
        feedforward_dim=entries.size("moe_intermediate_size"),
        normalize=entries.flag("norm_topk_prob"),
        shared_dim=entries.size("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )


def _is_sliding(entries: Entries, i: int) -> bool:
    return i % 2 == 0 and i < entries.count("max_window_layers")


(_STACK,) = QWEN2.stacks

FAMILY = QWEN2._replace(
    model_types=("qwen2_moe",),
    stacks=(
        _STACK._replace(
            blocks=_STACK.blocks._replace(
                router="mlp.gate",
                expert="mlp.experts.{}.",
                shared="mlp.shared_expert.",
                shared_gate="mlp.shared_expert_gate",
            )
        ),
    ),
    defaults={
        **QWEN2.defaults,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
    },
    biases={"qkv_bias": frozenset({"query", "key", "value"})},
    is_sliding=_is_sliding,
    experts=_experts,
)
