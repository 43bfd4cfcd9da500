"""Marian, the translators of Opus-MT: BART without a norm of embeddings, and with positions that are sines."""

from ...architecture.config_entries import LATER_ACTIVATIONS
from ..family import Family, bart_names
from .bart import DEFAULTS

FAMILY = Family(
    model_types=("marian",),
    encoder=bart_names("encoder", embedding_norm=False),
    decoder=bart_names("decoder", embedding_norm=False),
    defaults={
        **DEFAULTS,
        "vocab_size": 58101,
        "bos_token_id": None,
        "decoder_start_token_id": 58100,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    },
    activations={name: (ours, False) for name, ours in LATER_ACTIVATIONS.items()},
    first_position=0,
    sinusoidal=True,
    expected={"is_encoder_decoder": True, "is_decoder": False, "share_encoder_decoder_embeddings": True},
    pieces=("source.spm", "target.spm"),
)
