"""Multi-head attention on a CPU: a C++ core with a thin NumPy face."""

from . import reference
from ._core import __version__
from .attention import attention_weights, scaled_dot_product_attention
from .kv_cache import KVCache
from .merging import merge_attention
from .multi_head_attention import MultiHeadAttention
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

__all__ = [
    "KVCache",
    "MultiHeadAttention",
    "__version__",
    "active_isa",
    "attention_weights",
    "available_isas",
    "last_used_isa",
    "merge_attention",
    "num_threads",
    "reference",
    "scaled_dot_product_attention",
    "set_num_threads",
    "show_config",
    "sinusoidal_positions",
    "use_isa",
    "use_threads",
]
