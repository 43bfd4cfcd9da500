"""Gemma 3, of texts: Gemma 2 with norms of heads in place of the cap, and other bases in local layers."""

from ..entries import Entries
from .gemma2 import FAMILY as GEMMA2


def _is_sliding(entries: Entries, i: int) -> bool:
    return (i + 1) % entries.size("sliding_window_pattern") != 0


FAMILY = GEMMA2._replace(
    model_types=("gemma3_text",),
    keys=GEMMA2.keys._replace(softcap=None),
    defaults={
        **GEMMA2.defaults,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
    },
    qk_norm=True,
    bases={
        "full_attention": ("rope_theta", 1e6),
        "sliding_attention": ("rope_local_base_freq", 1e4),
    },
    is_sliding=_is_sliding,
    absent={**GEMMA2.absent, "attn_logit_softcapping": "transformers does not compute it"},
)
