"""What one layer of a transformer computes, as data, and the layer that computes it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.options import ModelOptions
from ...layers._layer_weights import PROJECTIONS
from ...layers.encoder import EncoderLayer
from ...layers.feed_forward import FeedForward
from ...layers.layer_norm import LayerNorm
from ...layers.linear import Linear
from ...layers.multi_head_attention import MultiHeadAttention
from ...layers.norm import Norm
from ...layers.rms_norm import RMSNorm
from ...layers.rotary_embedding import RotaryEmbedding
from .rotary import RotaryConfig

ATTENTION = frozenset(PROJECTIONS)
_FEED_FORWARD = {"up": "linear1", "down": "linear2", "gate": "gate"}  # as `FeedForward` calls them
FEED_FORWARD = frozenset(_FEED_FORWARD)
BEFORE_OR_BEHIND = frozenset({"norm1", "norm2"})
OF_OUTPUTS = frozenset({"output_norm1", "output_norm2"})


class NormConfig(NamedTuple):
    """A norm of rows of features.

    Attributes
    ----------
    kind : {"layer", "rms", "rms_unit_offset"}
        Of the last, what is multiplied with is 1 more than its weight.
    """

    kind: str
    eps: float
    bias: bool = False


class BlockConfig(NamedTuple):
    """A layer: self-attention and a feed-forward, with the norms and additions around them.

    Attributes
    ----------
    num_kv_heads, head_dim : int
        Hk, D.
    norm : NormConfig
        Of every norm that the layer has.
    norms : set of str
        Those that it has: of ``norm1`` and ``norm2``, which are before or behind a sublayer, and ``output_norm1`` and
        ``output_norm2``, of what a sublayer gives before it is added.
    norm_first : bool
        ``norm1`` and ``norm2`` are of what a sublayer reads (pre-LN), and not of the sum behind it.
    gated : bool
        The feed-forward is ``down(activation(gate(x)) * up(x))``, and not ``down(activation(up(x)))``.
    biases : set of str
        The products that add one: of query, key, value, out, up, down and gate.
    qk_norm : NormConfig, optional
        Of each head of queries and keys, before it is turned.
    rotary : RotaryConfig, optional
        By what queries and keys are turned.
    window : (left, right), optional
        How many keys before and behind a query it sees besides its own; -1: all.
    scale : float, optional
        What scores are multiplied with. Default: ``1 / sqrt(D)``.
    softcap : float, optional
        Scores become ``softcap * tanh(score / softcap)``.
    """

    embed_dim: int  # E
    num_heads: int  # H
    num_kv_heads: int
    head_dim: int
    feedforward_dim: int  # F
    activation: str
    norm: NormConfig
    norms: frozenset[str] = BEFORE_OR_BEHIND
    norm_first: bool = True
    gated: bool = False
    biases: frozenset[str] = frozenset()
    qk_norm: NormConfig | None = None
    rotary: RotaryConfig | None = None
    window: tuple[int, int] | None = None
    scale: float | None = None
    softcap: float | None = None

    @property
    def options(self) -> ModelOptions:
        """The score options of the self-attention."""
        options: Any = {name: getattr(self, name) for name in ("window", "scale", "softcap")}
        return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]

    def products(self) -> dict[str, tuple[int, int]]:
        """The matrix products, each with the shape of its matrix: [features of its result, features that it reads]."""
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        width, inner = self.embed_dim, self.feedforward_dim
        shapes = {"query": (heads, width), "key": (kv_heads, width), "value": (kv_heads, width), "out": (width, heads)}
        gate = {"gate": (inner, width)} if self.gated else {}
        return shapes | gate | {"up": (inner, width), "down": (width, inner)}

    def all_norms(self) -> Iterator[tuple[str, int, NormConfig]]:
        """The norms, each with the features that it is of."""
        for name in sorted(self.norms):
            yield name, self.embed_dim, self.norm
        if self.qk_norm is not None:
            yield "query_norm", self.head_dim, self.qk_norm
            yield "key_norm", self.head_dim, self.qk_norm


def rotary_tables(configs: Iterable[BlockConfig], dtype: np.dtype[Any]) -> dict[RotaryConfig, RotaryEmbedding]:
    """The tables of layers in `dtype`, each once, as `make_layer` takes them."""
    kind = np.float64 if dtype == np.float64 else np.float32
    return {
        rotary: RotaryEmbedding(*rotary.table(kind), interleaved=rotary.interleaved)
        for rotary in {config.rotary for config in configs}
        if rotary is not None
    }


def make_layer(
    config: BlockConfig,
    weights: Mapping[str, NDArray[Any]],
    tables: Mapping[RotaryConfig, RotaryEmbedding],
    dtype: np.dtype[Any],
    weight_dtype: str,
) -> EncoderLayer:
    """The layer with these weights.

    Parameters
    ----------
    config : BlockConfig
    weights : dict of arrays
        In `dtype`: ``query.weight`` and so on, by the names of `BlockConfig.products` and `all_norms`, and
        ``query.bias`` and so on for `biases`, and norms that have one.
    tables : dict
        What `rotary_tables` makes of the layers of the model.
    dtype : dtype
        What is computed in.
    weight_dtype : str
        What the matrices are stored as.
    """
    rotary = None if config.rotary is None else tables[config.rotary]
    return EncoderLayer.from_parts(
        make_attention(config, weights, rotary, dtype, weight_dtype),
        _feed_forward(config, weights, dtype, weight_dtype),
        norm_first=config.norm_first,
        **{name: make_norm(config.norm, _part(weights, name), dtype) for name in config.norms},
    )


def make_norm(config: NormConfig, weights: Mapping[str, NDArray[Any]], dtype: np.dtype[Any]) -> Norm:
    """The norm with these weights, in `dtype`: ``weight``, and ``bias`` if it has one."""
    weight, options = weights["weight"], dict[str, Any](eps=config.eps, dtype=dtype)
    if config.kind == "layer":
        return LayerNorm.from_weights(weight, weights.get("bias"), **options)
    return RMSNorm.from_weights(weight, unit_offset=config.kind == "rms_unit_offset", **options)


def make_linear(weight: NDArray[Any], weight_dtype: str) -> Linear:
    """The map by a matrix [features of its result, features that it reads], in the dtype of the matrix."""
    return Linear.from_weights(weight, weight_dtype=weight_dtype)


def in_dtype(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`numbers` themselves if they are in `dtype`, else rounded to it."""
    return numbers if _core.dtype_name(numbers.dtype) == _core.dtype_name(dtype) else _core.convert(numbers, dtype)


def make_attention(
    config: BlockConfig,
    weights: Mapping[str, NDArray[Any]],
    rotary: RotaryEmbedding | None,
    dtype: np.dtype[Any],
    weight_dtype: str,
) -> MultiHeadAttention:
    """The self-attention of a layer, or an attention of the same sizes to a memory; weights are as for `make_layer`."""
    state = {
        f"{name[0]}_proj_{which}": numbers
        for name in ("query", "key", "value")
        for which, numbers in _part(weights, name).items()
    }
    state |= _renamed(weights, {"out": "out_proj", "query_norm": "q_norm", "key_norm": "k_norm"})
    norm: Any = {} if config.qk_norm is None else {"qk_norm": config.qk_norm.kind, "qk_norm_eps": config.qk_norm.eps}
    return MultiHeadAttention.from_weights(
        state,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        rotary=rotary,
        dtype=dtype,
        weight_dtype=weight_dtype,
        **norm,
    )


def _feed_forward(
    config: BlockConfig, weights: Mapping[str, NDArray[Any]], dtype: np.dtype[Any], weight_dtype: str
) -> FeedForward:
    state = _renamed(weights, _FEED_FORWARD)
    return FeedForward.from_weights(state, activation=config.activation, dtype=dtype, weight_dtype=weight_dtype)


def _part(weights: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """The weight of a part, and its bias if it has one."""
    return {which: weights[f"{name}.{which}"] for which in ("weight", "bias") if f"{name}.{which}" in weights}


def _renamed(weights: Mapping[str, NDArray[Any]], names: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    return {f"{new}.{which}": x for old, new in names.items() for which, x in _part(weights, old).items()}
