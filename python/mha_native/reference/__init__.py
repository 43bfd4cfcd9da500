"""The specification, in NumPy and float64: slow, and short enough to be believed.

Attention is in `attention.py`, the blocks of a transformer around it in `transformer.py`.
"""

from .attention import (
    attention_statistics,
    attention_weights,
    multi_head_attention,
    rotate,
    scaled_dot_product_attention,
    scaled_dot_product_attention_varlen,
    visible_keys,
)
from .transformer import (
    activate,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    feed_forward,
    layer_norm,
    linear,
    rms_norm,
)

__all__ = [
    "activate",
    "attention_statistics",
    "attention_weights",
    "decoder",
    "decoder_layer",
    "encoder",
    "encoder_layer",
    "feed_forward",
    "layer_norm",
    "linear",
    "multi_head_attention",
    "rms_norm",
    "rotate",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_varlen",
    "visible_keys",
]
