"""Gemma 2: norms before and behind each sublayer, of 1 more than their weights, caps, and every other layer local."""

from ...architecture.build import ATTENTION, BEFORE_OR_BEHIND, OF_OUTPUTS
from ..entries import Entries
from ..family import BLOCK_NAMES, Family, Keys, Names


def scale(entries: Entries, i: int) -> float:
    """``1 / sqrt(query_pre_attn_scalar)``."""
    return float(entries.positive("query_pre_attn_scalar") ** -0.5)


def _window(entries: Entries) -> int:
    return entries.size("sliding_window")


def _is_sliding(entries: Entries, i: int) -> bool:
    return i % 2 == 0


FAMILY = Family(
    model_types=("gemma2",),
    keys=Keys(
        activation="hidden_activation",
        layer_types="layer_types",
        softcap="attn_logit_softcapping",
        logit_softcap="final_logit_softcapping",
    ),
    names=Names(
        blocks=BLOCK_NAMES._replace(
            output_norm1="post_attention_layernorm",
            norm2="pre_feedforward_layernorm",
            output_norm2="post_feedforward_layernorm",
        )
    ),
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    norm="rms_unit_offset",
    norms=BEFORE_OR_BEHIND | OF_OUTPUTS,
    biases={"attention_bias": ATTENTION},
    window=_window,
    is_sliding=_is_sliding,
    scale=scale,
    scales_embeddings=True,
    absent={"use_bidirectional_attention": "tokens must see none behind them"},
)
