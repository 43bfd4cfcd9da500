"""SigLIP: its encoder of texts, which all have the same number of tokens: padding is read like other tokens."""

from .clip_text import FAMILY as CLIP_TEXT

FAMILY = CLIP_TEXT._replace(
    model_types=("siglip", "siglip_text_model"),
    section={"siglip": "text_config"},
    defaults={
        **CLIP_TEXT.defaults,
        "vocab_size": 32000,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
    expected={"model_type": "siglip_text_model"},
    is_causal=False,
)
