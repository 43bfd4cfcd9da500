"""The package torch: attention as one of its operators, and whole layers of models."""

from .acceleration import Acceleration, accelerate
from .attention import scaled_dot_product_attention
from .layers import MultiHeadAttention, TransformerEncoderLayer

__all__ = [
    "Acceleration",
    "MultiHeadAttention",
    "TransformerEncoderLayer",
    "accelerate",
    "scaled_dot_product_attention",
]
