"""The specification, in NumPy and float64: slow, and short enough to check by reading.

Attention is in `attention.py`, the other parts of a transformer are in `transformer.py`, norms in `norms.py`.
"""

from .attention import (
    attention_gradient,
    attention_statistics,
    attention_weights,
    multi_head_attention,
    rotate,
    scaled_dot_product_attention,
    scaled_dot_product_attention_varlen,
    visible_keys,
)
from .norms import layer_norm, rms_norm
from .transformer import activate, decoder, decoder_layer, encoder, encoder_layer, feed_forward, linear, linear_gradient

__all__ = [
    "activate",
    "attention_gradient",
    "attention_statistics",
    "attention_weights",
    "decoder",
    "decoder_layer",
    "encoder",
    "encoder_layer",
    "feed_forward",
    "layer_norm",
    "linear",
    "linear_gradient",
    "multi_head_attention",
    "rms_norm",
    "rotate",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_varlen",
    "visible_keys",
]
