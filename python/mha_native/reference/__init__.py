"""The specification, in NumPy and float64: slow, and short enough to check by reading.

Attention is in `attention.py`, the other parts of a transformer are in `transformer.py`, norms in `norms.py`,
late interaction in `maxsim.py`, and gradients of all but attention in `gradients.py`.
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
from .dropout import dropout_factors
from .gradients import activation_gradient, cross_entropy, embedding_gradient, layer_norm_gradient, rms_norm_gradient
from .maxsim import maxsim
from .norms import layer_norm, rms_norm
from .transformer import (
    activate,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    experts,
    feed_forward,
    linear,
    linear_gradient,
)

__all__ = [
    "activate",
    "activation_gradient",
    "attention_gradient",
    "attention_statistics",
    "attention_weights",
    "cross_entropy",
    "decoder",
    "decoder_layer",
    "dropout_factors",
    "embedding_gradient",
    "encoder",
    "encoder_layer",
    "experts",
    "feed_forward",
    "layer_norm",
    "layer_norm_gradient",
    "linear",
    "linear_gradient",
    "maxsim",
    "multi_head_attention",
    "rms_norm",
    "rms_norm_gradient",
    "rotate",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_varlen",
    "visible_keys",
]
