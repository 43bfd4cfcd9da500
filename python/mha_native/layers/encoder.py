"""A stack of encoder layers: a transformer's encoder, or, causal and over caches, a decoder without memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from .._arrays import Tensor
from .._options import ScoreOptions, core_options
from ..kv_cache import KVCache
from ._constructor_arguments import Seed, WeightDType, checked_size
from ._module_state import ModuleState
from ._torch_modules import checked_module
from .encoder_layer import EncoderLayer, encode, stack_of
from .layer_norm import LayerNorm

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class Encoder(ModuleState):
    """`num_layers` layers, one after another, and a norm behind the last if there is a `final_norm`.

    Parameters
    ----------
    num_layers : int
        How many layers.
    embed_dim, num_heads, feedforward_dim : int
        E, H and F of each, as for `EncoderLayer`.
    activation, norm_first, eps, num_kv_heads, head_dim, bias, dtype, weight_dtype : optional
        As for `EncoderLayer`, the same for all; `eps` and `bias` also for the final norm.
    final_norm : bool, default False
        Normalise the result of the last layer, as models with `norm_first` do.
    seed : int or numpy.random.Generator, optional
        Of the initial weights, which differ from layer to layer.

    Attributes
    ----------
    layers : tuple of EncoderLayer
    norm : LayerNorm or None

    See Also
    --------
    generate : Tokens of a decoder without memory, one after another.

    Notes
    -----
    There is no dropout. The encoder is always batch-first. It may be called from several threads at once, but a cache
    by one only.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> encoder = mha.Encoder(2, 64, 4, 256, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((20, 64), dtype=np.float32)

    Texts of 4, 9 and 7 words, without padding:

    >>> y = encoder(x, cu_seqlens=np.cumsum([0, 4, 9, 7]))
    >>> np.array_equal(y[4:13], encoder(x[4:13]))
    True

    A decoder without memory reads the same words step by step:

    >>> caches = encoder.new_caches(batch_size=1, capacity=20)
    >>> steps = [encoder(x[t : t + 1], is_causal=True, caches=caches) for t in range(20)]
    >>> np.array_equal(np.concatenate(steps), encoder(x, is_causal=True))
    True
    """

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        *,
        activation: str = "relu",
        norm_first: bool = False,
        final_norm: bool = False,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.layers = tuple(
            EncoderLayer(
                embed_dim,
                num_heads,
                feedforward_dim,
                activation=activation,
                norm_first=norm_first,
                eps=eps,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                bias=bias,
                dtype=dtype,
                weight_dtype=weight_dtype,
                seed=rng,
            )
            for _ in range(checked_size("Encoder", "num_layers", num_layers))
        )
        self.norm = LayerNorm(embed_dim, eps=eps, bias=bias, dtype=dtype) if final_norm else None

    def __call__(
        self,
        x: Tensor,
        *,
        cu_seqlens: Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
        new_lengths: Tensor | None = None,
        need_weights: bool = False,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:
        """Take `x` through all layers.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the encoder.
        cu_seqlens : integer array [B + 1], optional
            A ragged batch, as for the call of `EncoderLayer`: `x` is [N, E].
        caches : sequence of KVCache, optional
            One for each layer, as `new_caches` gives them: the tokens before these, to which those of `x` are appended.
        new_lengths : integer array [B], optional
            With caches: of sequence b only the first ``new_lengths[b]`` rows count; the others are padding.
        need_weights : bool, default False
            Return the attention weights of every layer, too.
        out : [B, T, E], optional
            Array to write the result to. It may be `x` itself, and must not overlap another input.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.
        **options
            The score options, as for the call of `MultiHeadAttention`, the same for every layer.

        Returns
        -------
        out : [B, T, E]
            Of the rank and kind of `x`.
        weights : list of [B, H, T, Tk]
            Only with `need_weights`: one for each layer; without B if `x` has none.
        """
        name = "Encoder"
        given = core_options(name, options)
        result, weights = encode(
            name, self.layers, self.norm, x, given, cu_seqlens, caches, new_lengths, need_weights, out, num_threads
        )
        return (result, weights) if need_weights else result

    def new_caches(self, batch_size: int, capacity: int, *, dtype: DTypeLike | None = None) -> list[KVCache]:
        """Empty caches for `capacity` tokens in each of `batch_size` sequences, one for each layer; `dtype` as for
        `MultiHeadAttention.new_cache`."""
        return [layer.new_cache(batch_size, capacity, dtype=dtype) for layer in self.layers]

    @classmethod
    def from_torch(cls, module: Any) -> Encoder:
        """The encoder that computes what a ``torch.nn.TransformerEncoder`` does, with a copy of its weights.

        What differs is said at `EncoderLayer.from_torch`. Torch's ``enable_nested_tensor`` changes no result of a row
        that is not padding.

        Parameters
        ----------
        module : torch.nn.TransformerEncoder
            With or without a final norm. That of a ``torch.nn.Transformer`` is its ``encoder``.
        """
        function = "Encoder.from_torch"
        module = checked_module(function, module, "TransformerEncoder")
        encoder = cls.__new__(cls)
        encoder.layers = tuple(EncoderLayer.from_torch(layer) for layer in module.layers)
        encoder.norm = None
        if module.norm is not None:
            encoder.norm = LayerNorm._from_torch(function, module.norm, encoder.dtype)
        stack_of(encoder.layers, encoder.norm)  # which compares sizes and dtypes
        return encoder

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return self.layers[0].embed_dim

    def _children(self) -> dict[str, ModuleState]:
        layers: dict[str, ModuleState] = {f"layers.{i}.": layer for i, layer in enumerate(self.layers)}
        return layers if self.norm is None else layers | {"norm.": self.norm}

    def _configuration(self) -> dict[str, Any]:
        of_layer = self.layers[0]._configuration()
        return {"num_layers": len(self.layers), **of_layer, "final_norm": self.norm is not None}
