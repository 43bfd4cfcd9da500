"""One layer of a transformer's encoder. It is made of layers that work by themselves, and composed for each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike

from .. import _core
from .._arrays import Tensor, like, to_numpy
from .._options import ScoreOptions, core_options
from ..kv_cache import KVCache
from ._constructor_arguments import Seed, WeightDType
from ._module_state import ModuleState
from ._torch_modules import checked_module
from .feed_forward import FeedForward
from .layer_norm import LayerNorm
from .multi_head_attention import MultiHeadAttention

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class EncoderLayer(ModuleState):
    """``y = norm1(x + self_attn(x))``, ``norm2(y + feed_forward(y))``: post-LN, as in the Transformer paper and BERT.

    With `norm_first` (pre-LN) ``y = x + self_attn(norm1(x))``, ``y + feed_forward(norm2(y))``.

    Parameters
    ----------
    embed_dim : int
        E, the features of a token.
    num_heads : int
        H.
    feedforward_dim : int
        F, the features in the middle of the feed-forward.
    activation : {"relu", "gelu", "gelu_tanh"}, default "relu"
        Of the feed-forward, as for `FeedForward`.
    norm_first : bool, default False
        Normalise what a block reads, instead of the sum of that and what it gives.
    eps : float, default 1e-5
        Of both norms.
    num_kv_heads, head_dim : int, optional
        As for `MultiHeadAttention`.
    bias : bool, default True
        Whether all parts have biases.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Of the weights, and of what the layer takes and gives. Arrays of bfloat16 are those of the package ml_dtypes;
        tensors of other libraries do without it.
    weight_dtype : {"float32", "bfloat16", "int8"}, optional
        What the matrices of weights are stored as, of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Of the initial weights, which follow the rules of torch.

    Attributes
    ----------
    self_attn : MultiHeadAttention
    feed_forward : FeedForward
    norm1, norm2 : LayerNorm
    norm_first : bool

    Notes
    -----
    There is no dropout. The layer is always batch-first. It may be called from several threads at once, but a cache by
    one only.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> layer = mha.EncoderLayer(64, 4, 256, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
    >>> layer(x, key_lengths=np.array([10, 7])).shape
    (2, 10, 64)

    It is what its parts make:

    >>> y = layer.norm1(x + layer.self_attn(x))
    >>> np.allclose(layer(x), layer.norm2(y + layer.feed_forward(y)), atol=1e-5)
    True
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        *,
        activation: str = "relu",
        norm_first: bool = False,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.self_attn = MultiHeadAttention(
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            bias=bias,
            dtype=dtype,
            weight_dtype=weight_dtype,
            seed=rng,
        )
        self.feed_forward = FeedForward(
            embed_dim,
            feedforward_dim,
            activation=activation,
            bias=bias,
            dtype=dtype,
            weight_dtype=weight_dtype,
            seed=rng,
        )
        self.norm1 = LayerNorm(embed_dim, eps=eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(embed_dim, eps=eps, bias=bias, dtype=dtype)
        self.norm_first = bool(norm_first)

    def __call__(
        self,
        x: Tensor,
        *,
        cu_seqlens: Tensor | None = None,
        cache: KVCache | None = None,
        new_lengths: Tensor | None = None,
        need_weights: bool = False,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:
        """Let the tokens of each sequence attend to one another, then feed each one forward.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the layer.
        cu_seqlens : integer array [B + 1], optional
            A ragged batch: `x` is [N, E], sequences one after another, and ``cu_seqlens`` says where each begins, and
            the end of the last. `key_mask` is then [N], and there are no weights to return.
        cache : KVCache, optional
            Keys and values of the tokens before these, to which those of `x` are appended: see `new_cache`.
        new_lengths : integer array [B], optional
            With a cache: of sequence b only the first ``new_lengths[b]`` rows count; the others are padding.
        need_weights : bool, default False
            Return the attention weights, too.
        out : [B, T, E], optional
            Array to write the result to. It may be `x` itself, and must not overlap another input.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.
        **options
            The score options, as for the call of `MultiHeadAttention`. Rows of padding are computed like others; no
            other row sees them.

        Returns
        -------
        out : [B, T, E]
            Of the rank and kind of `x`.
        weights : [B, H, T, Tk]
            Only with `need_weights`; without B if `x` has none.
        """
        name = "EncoderLayer"
        given = core_options(name, options)
        caches = None if cache is None else [cache]
        result, weights = encode(
            name, [self], None, x, given, cu_seqlens, caches, new_lengths, need_weights, out, num_threads
        )
        return (result, weights[0]) if need_weights else result

    def new_cache(self, batch_size: int, capacity: int, *, dtype: DTypeLike | None = None) -> KVCache:
        """An empty cache for `capacity` tokens in each of `batch_size` sequences, for a decoder without memory; `dtype`
        as for `MultiHeadAttention.new_cache`."""
        return self.self_attn.new_cache(batch_size, capacity, dtype=dtype)

    @classmethod
    def from_torch(cls, module: Any) -> EncoderLayer:
        """The layer that computes what a ``torch.nn.TransformerEncoderLayer`` does, with a copy of its weights.

        What differs: the layer is batch-first, whatever torch's is, which by default is not. Boolean masks are the
        other way round: True takes part. Dropout is not applied, not even in training mode: results are those of
        ``module.eval()``.

        Parameters
        ----------
        module : torch.nn.TransformerEncoderLayer
            On the CPU, in float32, float64, float16 or bfloat16, pre-LN or post-LN, with or without biases, with
            torch's relu or gelu.
        """
        function = "EncoderLayer.from_torch"
        module = checked_module(function, module, "TransformerEncoderLayer")
        layer = cls.__new__(cls)
        layer.self_attn = MultiHeadAttention.from_torch(module.self_attn)
        layer.feed_forward = FeedForward._from_torch(function, module)
        layer.norm1, layer.norm2 = (
            LayerNorm._from_torch(function, norm, layer.self_attn.dtype) for norm in (module.norm1, module.norm2)
        )
        layer.norm_first = bool(module.norm_first)
        stack_of([layer], None)  # which compares sizes and dtypes
        return layer

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return self.self_attn.embed_dim

    def _children(self) -> dict[str, ModuleState]:
        return {"self_attn.": self.self_attn, "": self.feed_forward, "norm1.": self.norm1, "norm2.": self.norm2}

    def _configuration(self) -> dict[str, Any]:
        return block_configuration(self.self_attn, self.feed_forward, self.norm1, self.norm_first)

    def _handle(self) -> _core.EncoderLayer:
        return _core.EncoderLayer(
            self.self_attn._core, self.feed_forward._core, self.norm1._core, self.norm2._core, self.norm_first
        )


def stack_of(layers: Sequence[EncoderLayer], norm: LayerNorm | None) -> _core.Encoder:
    """Layers and a norm as one thing to compute, with the weights that they have now."""
    return _core.Encoder([layer._handle() for layer in layers], None if norm is None else norm._core)


def encode(
    name: str,
    layers: Sequence[EncoderLayer],
    norm: LayerNorm | None,
    x: Tensor,
    options: ScoreOptions,
    cu_seqlens: Tensor | None,
    caches: Any,
    new_lengths: Tensor | None,
    need_weights: bool,
    out: Tensor | None,
    num_threads: int | None,
) -> tuple[Tensor, list[Tensor]]:
    """What `layers` make of `x`, and the weights of each, if they are needed."""
    result: Any = stack_of(layers, norm).forward(
        x if type(x) is ndarray else to_numpy(name, "x", x),
        options,
        cu_seqlens if cu_seqlens is None else to_numpy(name, "cu_seqlens", cu_seqlens),
        cores_of_caches(name, "caches", caches),
        new_lengths if new_lengths is None else to_numpy(name, "new_lengths", new_lengths),
        need_weights,
        out if out is None or type(out) is ndarray else to_numpy(name, "out", out),
        num_threads,
    )
    array, weights = result if need_weights else (result, [])
    if type(x) is ndarray:
        return array, weights
    return like(x, array) if out is None else out, [like(x, of_layer) for of_layer in weights]


def cores_of_caches(name: str, argument: str, caches: Any) -> list[_core.KVCache] | None:
    """Those of a sequence of caches, or None if there is none."""
    if caches is None:
        return None
    caches = list(caches)
    for cache in caches:
        if not isinstance(cache, KVCache):
            raise TypeError(f"{name}: {argument} must hold a KVCache for each layer; got a {type(cache).__name__}")
    return [cache._core for cache in caches]


def block_configuration(
    self_attn: MultiHeadAttention, feed_forward: FeedForward, norm: LayerNorm, norm_first: bool
) -> dict[str, Any]:
    """The arguments that the constructors of encoder and decoder layers share."""
    return {
        "embed_dim": self_attn.embed_dim,
        "num_heads": self_attn.num_heads,
        "feedforward_dim": feed_forward.feedforward_dim,
        "activation": feed_forward.activation,
        "norm_first": norm_first,
        "eps": norm.eps,
        "num_kv_heads": self_attn.num_kv_heads,
        "head_dim": self_attn.head_dim,
        "bias": self_attn.bias,
    }
