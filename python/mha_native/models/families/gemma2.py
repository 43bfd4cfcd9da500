"""Gemma 2: norms before and after each sublayer, with 1 plus their weights; caps; windows in every other layer."""

from ..architecture.config import ATTENTION, NORMS, OUTPUT_NORMS
from ..architecture.family import GENERATION
from ..files.entries import Entries
from .llama import FAMILY as LLAMA
from .llama import NAMES


def _scale(entries: Entries, i: int) -> float:
    return float(entries.positive("query_pre_attn_scalar") ** -0.5)


def _window(entries: Entries) -> tuple[int, int]:
    return entries.size("sliding_window") - 1, 0


def is_sliding(entries: Entries, i: int) -> bool:
    """Return whether layer i has a window: every other one, from the first on."""
    return i % 2 == 0


FAMILY = LLAMA._replace(
    model_types=("gemma2",),
    roles=frozenset({GENERATION}),
    keys=LLAMA.keys._replace(
        activation="hidden_activation",
        layer_types="layer_types",
        softcap="attn_logit_softcapping",
        logit_softcap="final_logit_softcapping",
    ),
    stacks=(
        NAMES._replace(
            blocks=NAMES.blocks._replace(
                output_norm1="post_attention_layernorm",
                norm2="pre_feedforward_layernorm",
                output_norm2="post_feedforward_layernorm",
            )
        ),
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
    refused={**LLAMA.refused, "use_bidirectional_attention": "tokens must not see later tokens"},
    norm="rms_unit_offset",
    norms=NORMS | OUTPUT_NORMS,
    biases={"attention_bias": ATTENTION},
    window=_window,
    is_sliding=is_sliding,
    scale=_scale,
    scales_embeddings=True,
)
