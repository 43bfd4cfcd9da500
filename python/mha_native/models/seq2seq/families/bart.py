"""BART: every other family is said by how it differs from this one."""

from ..family import Family

DEFAULTS = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "d_model": 1024,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 12),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4096),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 16),
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}

FAMILY = Family(model_types=("bart",), defaults={**DEFAULTS, "decoder_start_token_id": 2})
