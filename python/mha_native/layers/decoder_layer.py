"""One layer of a transformer's decoder. It is made of layers that work by themselves, and composed for each call."""

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
from ._constructor_arguments import Seed, WeightDType, checked_size
from ._module_state import ModuleState
from ._torch_modules import checked_module
from .encoder_layer import block_configuration, cores_of_caches
from .feed_forward import FeedForward
from .layer_norm import LayerNorm
from .multi_head_attention import MultiHeadAttention

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class DecoderLayer(ModuleState):
    """``y = norm1(x + self_attn(x))``, ``z = norm2(y + cross_attn(y, memory))``, ``norm3(z + feed_forward(z))``.

    That is post-LN, as in the Transformer paper. With `norm_first` (pre-LN) each norm is that of what its block reads,
    as in `EncoderLayer`.

    Parameters
    ----------
    embed_dim : int
        E, the features of a token.
    num_heads : int
        H, of both attentions.
    feedforward_dim : int
        F, the features in the middle of the feed-forward.
    memory_dim : int, optional
        Em, the features of the memory. Default: E.
    activation : {"relu", "gelu", "gelu_tanh"}, default "relu"
        Of the feed-forward, as for `FeedForward`.
    norm_first : bool, default False
        Normalise what a block reads, instead of the sum of that and what it gives.
    eps : float, default 1e-5
        Of the norms.
    num_kv_heads, head_dim : int, optional
        As for `MultiHeadAttention`, of both attentions.
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
    self_attn, cross_attn : MultiHeadAttention
        In state dicts ``cross_attn`` is ``multihead_attn``, as in torch.
    feed_forward : FeedForward
    norm1, norm2, norm3 : LayerNorm
    norm_first : bool

    Notes
    -----
    There is no dropout. The layer is always batch-first. It may be called from several threads at once, but a cache by
    one only.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> layer = mha.DecoderLayer(64, 4, 256, seed=0)
    >>> x, memory = np.random.default_rng(1).standard_normal((2, 3, 10, 64), dtype=np.float32)
    >>> layer(x, memory).shape
    (3, 10, 64)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        *,
        memory_dim: int | None = None,
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
        features = embed_dim if memory_dim is None else checked_size("DecoderLayer", "memory_dim", memory_dim)
        self.self_attn, self.cross_attn = (
            MultiHeadAttention(
                embed_dim,
                num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                kdim=kdim,
                vdim=kdim,
                bias=bias,
                dtype=dtype,
                weight_dtype=weight_dtype,
                seed=rng,
            )
            for kdim in (embed_dim, features)
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
        self.norm1, self.norm2, self.norm3 = (LayerNorm(embed_dim, eps=eps, bias=bias, dtype=dtype) for _ in range(3))
        self.norm_first = bool(norm_first)

    def __call__(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        memory_attn_mask: Tensor | None = None,
        memory_key_mask: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        cache: KVCache | None = None,
        memory_cache: KVCache | None = None,
        new_lengths: Tensor | None = None,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:
        """Let the tokens of each sequence attend to those before them and to its memory, then feed each one forward.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the layer.
        memory : [B, S, Em] or [S, Em], optional
            What an encoder made of the other sequence. Instead of it there may be a `memory_cache`.
        memory_attn_mask : broadcastable to [B, H, T, S], optional
            Which of the memory each token sees, or what is added to its scores.
        memory_key_mask : boolean, broadcastable to [B, S], optional
            Which of the memory all tokens see. True takes part.
        memory_lengths : integer array [B], optional
            How much memory each sequence has. Of a `memory_cache` this is known.
        cache : KVCache, optional
            Keys and values of the tokens before these, to which those of `x` are appended: see `new_cache`.
        memory_cache : KVCache, optional
            Keys and values of the memory, as `project_memory` gives them. They are read only.
        new_lengths : integer array [B], optional
            With a cache: of sequence b only the first ``new_lengths[b]`` rows count; the others are padding.
        out : [B, T, E], optional
            Array to write the result to. It may be `x` itself, and must not overlap another input.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.
        **options
            The score options of the self-attention, as for the call of `MultiHeadAttention`; `is_causal` is True by
            default.

        Returns
        -------
        out : [B, T, E]
            Of the rank and kind of `x`.
        """
        name = "DecoderLayer"
        given = core_options(name, {"is_causal": True, **options})
        memory_options = masks_of_memory(name, memory_attn_mask, memory_key_mask, memory_lengths)
        caches = None if cache is None else [cache]
        memory_caches = None if memory_cache is None else [memory_cache]
        return decode(
            name, [self], None, x, memory, given, memory_options, caches, memory_caches, new_lengths, out, num_threads
        )

    def new_cache(self, batch_size: int, capacity: int, *, dtype: DTypeLike | None = None) -> KVCache:
        """An empty cache for `capacity` tokens in each of `batch_size` sequences, for the self-attention."""
        return self.self_attn.new_cache(batch_size, capacity, dtype=dtype)

    def project_memory(
        self, memory: Tensor, *, memory_lengths: Tensor | None = None, num_threads: int | None = None
    ) -> KVCache:
        """Keys and values of the memory, projected once for all steps.

        Parameters
        ----------
        memory : [B, S, Em] or [S, Em]
        memory_lengths : integer array [B], optional
            How much memory each sequence has; what is behind that is padding.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        memory_cache : KVCache
        """
        shape = np.shape(memory)
        if len(shape) not in (2, 3):
            raise ValueError(f"DecoderLayer.project_memory: memory must be [B, S, Em] or [S, Em]; got {list(shape)}")
        cache = self.cross_attn.new_cache(shape[0] if len(shape) == 3 else 1, shape[-2])
        self.cross_attn.append_to(cache, memory, new_lengths=memory_lengths, num_threads=num_threads)
        return cache

    @classmethod
    def from_torch(cls, module: Any) -> DecoderLayer:
        """The layer that computes what a ``torch.nn.TransformerDecoderLayer`` does, with a copy of its weights.

        What differs: the layer is causal unless told otherwise, where torch wants a mask; it is batch-first, whatever
        torch's is, which by default is not. Boolean masks are the other way round: True takes part. Dropout is not
        applied, not even in training mode: results are those of ``module.eval()``.

        Parameters
        ----------
        module : torch.nn.TransformerDecoderLayer
            On the CPU, in float32, float64, float16 or bfloat16, pre-LN or post-LN, with or without biases, with
            torch's relu or gelu.
        """
        function = "DecoderLayer.from_torch"
        module = checked_module(function, module, "TransformerDecoderLayer")
        layer = cls.__new__(cls)
        layer.self_attn = MultiHeadAttention.from_torch(module.self_attn)
        layer.cross_attn = MultiHeadAttention.from_torch(module.multihead_attn)
        layer.feed_forward = FeedForward._from_torch(function, module)
        layer.norm1, layer.norm2, layer.norm3 = (
            LayerNorm._from_torch(function, norm, layer.self_attn.dtype)
            for norm in (module.norm1, module.norm2, module.norm3)
        )
        layer.norm_first = bool(module.norm_first)
        stack_of([layer], None)  # which compares sizes and dtypes
        return layer

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return self.self_attn.embed_dim

    @property
    def memory_dim(self) -> int:
        """Em, the features of the memory."""
        return self.cross_attn.kdim

    def _children(self) -> dict[str, ModuleState]:
        return {
            "self_attn.": self.self_attn,
            "multihead_attn.": self.cross_attn,
            "": self.feed_forward,
            "norm1.": self.norm1,
            "norm2.": self.norm2,
            "norm3.": self.norm3,
        }

    def _configuration(self) -> dict[str, Any]:
        shared = block_configuration(self.self_attn, self.feed_forward, self.norm1, self.norm_first)
        return shared | {"memory_dim": self.memory_dim}

    def _handle(self) -> _core.DecoderLayer:
        return _core.DecoderLayer(
            self.self_attn._core,
            self.cross_attn._core,
            self.feed_forward._core,
            self.norm1._core,
            self.norm2._core,
            self.norm3._core,
            self.norm_first,
        )


def stack_of(layers: Sequence[DecoderLayer], norm: LayerNorm | None) -> _core.Decoder:
    """Layers and a norm as one thing to compute, with the weights that they have now."""
    return _core.Decoder([layer._handle() for layer in layers], None if norm is None else norm._core)


def decode(
    name: str,
    layers: Sequence[DecoderLayer],
    norm: LayerNorm | None,
    x: Tensor,
    memory: Tensor | None,
    options: ScoreOptions,
    memory_options: ScoreOptions,
    caches: Sequence[KVCache] | None,
    memory_caches: Sequence[KVCache] | None,
    new_lengths: Tensor | None,
    out: Tensor | None,
    num_threads: int | None,
) -> Tensor:
    """What `layers` make of `x` and the memory."""
    array = stack_of(layers, norm).forward(
        x if type(x) is ndarray else to_numpy(name, "x", x),
        memory if memory is None or type(memory) is ndarray else to_numpy(name, "memory", memory),
        options,
        memory_options,
        cores_of_caches(name, "caches", caches),
        cores_of_caches(name, "memory_caches", memory_caches),
        new_lengths if new_lengths is None else to_numpy(name, "new_lengths", new_lengths),
        out if out is None or type(out) is ndarray else to_numpy(name, "out", out),
        num_threads,
    )
    return array if type(x) is ndarray else like(x, array) if out is None else out


def masks_of_memory(
    name: str, attn_mask: Tensor | None, key_mask: Tensor | None, lengths: Tensor | None
) -> ScoreOptions:
    """Options of the attention to the memory; messages have the names that callers give them."""
    given = {"memory_attn_mask": attn_mask, "memory_key_mask": key_mask, "memory_lengths": lengths}
    masks = {which: None if x is None else to_numpy(name, which, x) for which, x in given.items()}
    return {
        "attn_mask": masks["memory_attn_mask"],
        "key_mask": masks["memory_key_mask"],
        "key_lengths": masks["memory_lengths"],
    }
