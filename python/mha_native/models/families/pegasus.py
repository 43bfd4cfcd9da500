"""Pegasus, which summarises: mBART without a norm of embeddings, and with sines for positions."""

from .bart import names
from .mbart import FAMILY as MBART

FAMILY = MBART._replace(
    model_types=("pegasus",),
    stacks=names(embedding_norm=False, final_norm=True),
    defaults={
        **MBART.defaults,
        "bos_token_id": None,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
    },
    first_position=0,
    sines="below",
    text_files=("spiece.model",),
)
