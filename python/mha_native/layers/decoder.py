"""A stack of decoder layers: the half of a transformer that writes, with an encoder's memory in view."""

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
from .decoder_layer import DecoderLayer, decode, masks_of_memory, stack_of
from .layer_norm import LayerNorm

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class Decoder(ModuleState):
    """`num_layers` layers, one after another, and a norm behind the last if there is a `final_norm`.

    Parameters
    ----------
    num_layers : int
        How many layers.
    embed_dim, num_heads, feedforward_dim : int
        E, H and F of each, as for `DecoderLayer`.
    memory_dim, activation, norm_first, eps, num_kv_heads, head_dim, bias, dtype, weight_dtype : optional
        As for `DecoderLayer`, the same for all; `eps` and `bias` also for the final norm.
    final_norm : bool, default False
        Normalise the result of the last layer, as models with `norm_first` do.
    seed : int or numpy.random.Generator, optional
        Of the initial weights, which differ from layer to layer.

    Attributes
    ----------
    layers : tuple of DecoderLayer
    norm : LayerNorm or None

    See Also
    --------
    generate : Tokens, one after another.

    Notes
    -----
    There is no dropout. The decoder is always batch-first. It may be called from several threads at once, but a cache
    by one only. A decoder that reads no memory is an `Encoder` with ``is_causal=True``.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> decoder = mha.Decoder(2, 64, 4, 256, seed=0)
    >>> x, memory = np.random.default_rng(1).standard_normal((2, 3, 7, 64), dtype=np.float32)
    >>> y = decoder(x, memory)

    Step by step, over keys and values of the memory that are projected once:

    >>> caches, memory_caches = decoder.new_caches(batch_size=3, capacity=7), decoder.project_memory(memory)
    >>> steps = [decoder(x[:, t : t + 1], caches=caches, memory_caches=memory_caches) for t in range(7)]
    >>> np.array_equal(np.concatenate(steps, axis=1), y)
    True
    """

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        *,
        memory_dim: int | None = None,
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
            DecoderLayer(
                embed_dim,
                num_heads,
                feedforward_dim,
                memory_dim=memory_dim,
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
            for _ in range(checked_size("Decoder", "num_layers", num_layers))
        )
        self.norm = LayerNorm(embed_dim, eps=eps, bias=bias, dtype=dtype) if final_norm else None

    def __call__(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        memory_attn_mask: Tensor | None = None,
        memory_key_mask: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
        memory_caches: Sequence[KVCache] | None = None,
        new_lengths: Tensor | None = None,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Tensor:
        """Take `x` through all layers.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the decoder.
        memory : [B, S, Em] or [S, Em], optional
            What an encoder made of the other sequence. Instead of it there may be `memory_caches`.
        memory_attn_mask, memory_key_mask, memory_lengths : optional
            As for the call of `DecoderLayer`.
        caches : sequence of KVCache, optional
            One for each layer, as `new_caches` gives them: the tokens before these, to which those of `x` are appended.
        memory_caches : sequence of KVCache, optional
            One for each layer, as `project_memory` gives them. They are read only.
        new_lengths : integer array [B], optional
            With caches: of sequence b only the first ``new_lengths[b]`` rows count; the others are padding.
        out : [B, T, E], optional
            Array to write the result to. It may be `x` itself, and must not overlap another input.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.
        **options
            The score options of the self-attention of every layer, as for the call of `MultiHeadAttention`; `is_causal`
            is True by default.

        Returns
        -------
        out : [B, T, E]
            Of the rank and kind of `x`.
        """
        name = "Decoder"
        given = core_options(name, {"is_causal": True, **options})
        return decode(
            name,
            self.layers,
            self.norm,
            x,
            memory,
            given,
            masks_of_memory(name, memory_attn_mask, memory_key_mask, memory_lengths),
            caches,
            memory_caches,
            new_lengths,
            out,
            num_threads,
        )

    def new_caches(self, batch_size: int, capacity: int, *, dtype: DTypeLike | None = None) -> list[KVCache]:
        """Empty caches for `capacity` tokens in each of `batch_size` sequences, one for each layer; `dtype` as for
        `MultiHeadAttention.new_cache`."""
        return [layer.new_cache(batch_size, capacity, dtype=dtype) for layer in self.layers]

    def project_memory(
        self, memory: Tensor, *, memory_lengths: Tensor | None = None, num_threads: int | None = None
    ) -> list[KVCache]:
        """Keys and values of the memory for each layer, projected once for all steps: `memory_caches` of the call.

        Parameters
        ----------
        memory : [B, S, Em] or [S, Em]
        memory_lengths : integer array [B], optional
            How much memory each sequence has; what is behind that is padding.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        memory_caches : list of KVCache
        """
        return [
            layer.project_memory(memory, memory_lengths=memory_lengths, num_threads=num_threads)
            for layer in self.layers
        ]

    @classmethod
    def from_torch(cls, module: Any) -> Decoder:
        """The decoder that computes what a ``torch.nn.TransformerDecoder`` does, with a copy of its weights.

        What differs is said at `DecoderLayer.from_torch`.

        Parameters
        ----------
        module : torch.nn.TransformerDecoder
            With or without a final norm. That of a ``torch.nn.Transformer`` is its ``decoder``.
        """
        function = "Decoder.from_torch"
        module = checked_module(function, module, "TransformerDecoder")
        decoder = cls.__new__(cls)
        decoder.layers = tuple(DecoderLayer.from_torch(layer) for layer in module.layers)
        decoder.norm = None
        if module.norm is not None:
            decoder.norm = LayerNorm._from_torch(function, module.norm, decoder.dtype)
        stack_of(decoder.layers, decoder.norm)  # which compares sizes and dtypes
        return decoder

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return self.layers[0].embed_dim

    @property
    def memory_dim(self) -> int:
        """Em, the features of the memory."""
        return self.layers[0].memory_dim

    def _children(self) -> dict[str, ModuleState]:
        layers: dict[str, ModuleState] = {f"layers.{i}.": layer for i, layer in enumerate(self.layers)}
        return layers if self.norm is None else layers | {"norm.": self.norm}

    def _configuration(self) -> dict[str, Any]:
        of_layer = self.layers[0]._configuration()
        return {"num_layers": len(self.layers), **of_layer, "final_norm": self.norm is not None}
