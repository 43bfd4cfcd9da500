"""Multi-head attention on a CPU: a C++ core with a thin NumPy face.

Functions and layers are loaded at once. Sub-packages, and the names that need one, are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from ._core import __version__
from .functions.activation import ActivationGradients, activation, activation_gradient
from .functions.attention import attention_weights, scaled_dot_product_attention
from .functions.block_matrix import BlockMatrix
from .functions.cancellation import CancellationToken
from .functions.cross_entropy import CrossEntropy, cross_entropy
from .functions.embedding_gradient import embedding_gradient
from .functions.gradient import AttentionGradients, attention_gradient, attention_gradient_varlen
from .functions.kv_cache import KVCache
from .functions.linear import LinearGradients, linear, linear_gradient
from .functions.maxsim import maxsim, quantize_tokens
from .functions.merging import merge_attention
from .functions.norm_gradient import NormGradients, layer_norm_gradient, rms_norm_gradient
from .functions.paged_kv_cache import PagedKVCache
from .functions.positions import sinusoidal_positions
from .functions.runtime import (
    active_isa,
    available_isas,
    last_used_isa,
    num_threads,
    set_num_threads,
    show_config,
    use_isa,
    use_threads,
)
from .functions.statistics import AttentionStatistics, attention_statistics
from .functions.varlen import scaled_dot_product_attention_varlen
from .layers._tape import Gradients, Tape
from .layers.causal_decoder import CausalDecoder
from .layers.decoder import Decoder, DecoderLayer
from .layers.encoder import Encoder, EncoderLayer
from .layers.experts import Experts
from .layers.feed_forward import FeedForward
from .layers.layer_norm import LayerNorm
from .layers.linear import Linear
from .layers.multi_head_attention import MultiHeadAttention
from .layers.rms_norm import RMSNorm
from .layers.rotary_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from . import compat as compat
    from . import distributed, interop, models, optim, reference, sentence_transformers, serving
    from .models.generation.generate import GenerationStep, generate

__all__ = [
    "ActivationGradients",
    "AttentionGradients",
    "AttentionStatistics",
    "BlockMatrix",
    "CancellationToken",
    "CausalDecoder",
    "CrossEntropy",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "Experts",
    "FeedForward",
    "GenerationStep",
    "Gradients",
    "KVCache",
    "LayerNorm",
    "Linear",
    "LinearGradients",
    "MultiHeadAttention",
    "NormGradients",
    "PagedKVCache",
    "RMSNorm",
    "RotaryEmbedding",
    "Tape",
    "__version__",
    "activation",
    "activation_gradient",
    "active_isa",
    "attention_gradient",
    "attention_gradient_varlen",
    "attention_statistics",
    "attention_weights",
    "available_isas",
    "cross_entropy",
    "distributed",
    "embedding_gradient",
    "generate",
    "interop",
    "last_used_isa",
    "layer_norm_gradient",
    "linear",
    "linear_gradient",
    "maxsim",
    "merge_attention",
    "models",
    "num_threads",
    "optim",
    "quantize_tokens",
    "reference",
    "rms_norm_gradient",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_varlen",
    "sentence_transformers",
    "serving",
    "set_num_threads",
    "show_config",
    "sinusoidal_positions",
    "use_isa",
    "use_threads",
]

# Where each name is that is loaded when it is first used (PEP 562): a sub-package, or a name in a module.
_LATER = {
    **dict.fromkeys(
        ("compat", "distributed", "interop", "models", "optim", "reference", "sentence_transformers", "serving"), ""
    ),
    **dict.fromkeys(("GenerationStep", "generate"), ".models.generation.generate"),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATER[name] or f".{name}", __name__)
    value = getattr(module, name) if _LATER[name] else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
