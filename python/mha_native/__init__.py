"""Multi-head attention on a CPU: a C++ core with a thin NumPy face."""

from . import compat, models, reference, serving
from ._core import __version__
from .attention import attention_weights, scaled_dot_product_attention
from .kv_cache import KVCache
from .layers.causal_decoder import CausalDecoder
from .layers.decoder import Decoder, DecoderLayer
from .layers.encoder import Encoder, EncoderLayer
from .layers.feed_forward import FeedForward
from .layers.layer_norm import LayerNorm
from .layers.linear import Linear
from .layers.multi_head_attention import MultiHeadAttention
from .layers.rms_norm import RMSNorm
from .layers.rotary_embedding import RotaryEmbedding
from .merging import merge_attention
from .models.generation import GenerationStep, generate
from .paged_kv_cache import PagedKVCache
from .positions import sinusoidal_positions
from .runtime import (
    active_isa,
    available_isas,
    last_used_isa,
    num_threads,
    set_num_threads,
    show_config,
    use_isa,
    use_threads,
)
from .statistics import AttentionStatistics, attention_statistics
from .varlen import scaled_dot_product_attention_varlen

__all__ = [
    "AttentionStatistics",
    "CausalDecoder",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GenerationStep",
    "KVCache",
    "LayerNorm",
    "Linear",
    "MultiHeadAttention",
    "PagedKVCache",
    "RMSNorm",
    "RotaryEmbedding",
    "__version__",
    "active_isa",
    "attention_statistics",
    "attention_weights",
    "available_isas",
    "compat",
    "generate",
    "last_used_isa",
    "merge_attention",
    "models",
    "num_threads",
    "reference",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_varlen",
    "serving",
    "set_num_threads",
    "show_config",
    "sinusoidal_positions",
    "use_isa",
    "use_threads",
]
