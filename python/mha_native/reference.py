"""The specification, in NumPy and float64: slow, and short enough to be believed.

Attention is in `attention_reference`, the blocks of a transformer around it in `transformer_reference`.
"""

from .attention_reference import (
    attention_statistics,
    attention_weights,
    multi_head_attention,
    scaled_dot_product_attention,
    scaled_dot_product_attention_varlen,
    visible_keys,
)
from .transformer_reference import activate, decoder, decoder_layer, encoder, encoder_layer, feed_forward, layer_norm

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
    "multi_head_attention",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_varlen",
    "visible_keys",
]
