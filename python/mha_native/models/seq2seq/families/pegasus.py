"""Pegasus, which summarises: mBART without a norm of embeddings, and with positions that are sines."""

from ..family import Family, bart_names
from .bart import DEFAULTS

FAMILY = Family(
    model_types=("pegasus",),
    encoder=bart_names("encoder", embedding_norm=False, final_norm=True),
    decoder=bart_names("decoder", embedding_norm=False, final_norm=True),
    defaults={
        **DEFAULTS,
        "bos_token_id": None,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
    },
    norm_first=True,
    first_position=0,
    sinusoidal=True,
    pieces=("spiece.model",),
)
