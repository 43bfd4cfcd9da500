"""Marian, the translators of Opus-MT: BART without a norm of embeddings, and with sines for positions."""

from ..architecture.family import UNGATED_WITH_SILU
from .bart import FAMILY as BART
from .bart import names

FAMILY = BART._replace(
    model_types=("marian",),
    stacks=names(embedding_norm=False),
    defaults={
        **BART.defaults,
        "vocab_size": 58101,
        "bos_token_id": None,
        "decoder_start_token_id": 58100,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    },
    expected={**BART.expected, "share_encoder_decoder_embeddings": True},
    activations=UNGATED_WITH_SILU,
    first_position=0,
    sines="below",
    text_files=("source.spm", "target.spm"),
)
