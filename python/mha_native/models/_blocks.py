"""What one layer of a transformer computes, as data, and the layer that computes it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._options import ModelOptions
from ..layers._layer_weights import PROJECTIONS, Parts, Sizes
from ..layers.encoder import EncoderLayer
from ..layers.feed_forward import FeedForward
from ..layers.feed_forward import Sizes as FeedForwardSizes
from ..layers.layer_norm import LayerNorm
from ..layers.multi_head_attention import MultiHeadAttention
from ._rotary_tables import RotaryConfig

ATTENTION = frozenset(PROJECTIONS)
FEED_FORWARD = frozenset({"up", "down"})  # and a gate
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


def make_layer(
    config: BlockConfig, weights: Mapping[str, NDArray[Any]], dtype: np.dtype[Any], weight_dtype: str
) -> EncoderLayer:
    """The layer with these weights.

    Parameters
    ----------
    config : BlockConfig
    weights : dict of arrays
        In `dtype`: ``query.weight`` and so on, by the names of `BlockConfig.products` and `all_norms`, and
        ``query.bias`` and so on for `biases`, and norms that have one.
    dtype : dtype
        What is computed in.
    weight_dtype : str
        What the matrices are stored as.
    """
    layer = EncoderLayer.__new__(EncoderLayer)
    layer.self_attn = _attention(config, weights, dtype, weight_dtype)
    layer.feed_forward = FeedForward.__new__(FeedForward)
    sizes = FeedForwardSizes(config.embed_dim, config.feedforward_dim, config.activation, config.biases >= FEED_FORWARD)
    state = _renamed(weights, {"up": "linear1", "down": "linear2"})
    layer.feed_forward._set_state(sizes, dtype, weight_dtype, state)
    layer.norm1, layer.norm2 = (make_norm(config.norm, weights, name, dtype) for name in ("norm1", "norm2"))
    layer.norm_first = config.norm_first
    return layer


def make_norm(config: NormConfig, weights: Mapping[str, NDArray[Any]], name: str, dtype: np.dtype[Any]) -> LayerNorm:
    """The norm whose weights begin with `name`."""
    norm = LayerNorm.__new__(LayerNorm)
    norm._set_state(config.eps, dtype, _part(weights, name))
    return norm


class _Product:
    """Stands in for Linear."""

    def __init__(self, weight: NDArray[Any]) -> None:
        self.weight = weight

    def __call__(self, x: NDArray[Any], out: Any = None, num_threads: int | None = None) -> NDArray[Any]:
        result: NDArray[Any] = x @ self.weight.T
        return result


def make_linear(weight: NDArray[Any], weight_dtype: str) -> Any:
    return _Product(weight)


def in_dtype(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`numbers` themselves if they are in `dtype`, else rounded to it."""
    return numbers if _core.dtype_name(numbers.dtype) == _core.dtype_name(dtype) else _core.convert(numbers, dtype)


def _attention(
    config: BlockConfig, weights: Mapping[str, NDArray[Any]], dtype: np.dtype[Any], weight_dtype: str
) -> MultiHeadAttention:
    state = {
        f"{name[0]}_proj_{which}": numbers
        for name in ("query", "key", "value")
        for which, numbers in _part(weights, name).items()
    }
    attention = MultiHeadAttention.__new__(MultiHeadAttention)
    width = config.embed_dim
    heads = config.num_heads, config.num_kv_heads, config.head_dim, config.head_dim
    biases = tuple(name for name in PROJECTIONS if name in config.biases)
    parts = Parts(biases if 0 < len(biases) < len(PROJECTIONS) else bool(biases), False, False)
    sizes = Sizes(width, *heads, width, width, width)
    attention._set_state(sizes, parts, dtype, weight_dtype, state | _renamed(weights, {"out": "out_proj"}))
    return attention


def _part(weights: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """The weight of a part, and its bias if it has one."""
    return {which: weights[f"{name}.{which}"] for which in ("weight", "bias") if f"{name}.{which}" in weights}


def _renamed(weights: Mapping[str, NDArray[Any]], names: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    return {f"{new}.{which}": x for old, new in names.items() for which, x in _part(weights, old).items()}
