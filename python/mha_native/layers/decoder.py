"""The decoder of a transformer, which reads the memory of an encoder: one layer, and a stack of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..functions.arrays import Tensor, to_numpy
from ..functions.attention import attention_weights
from ..functions.messages import in_the_name_of, name_of_type
from ..functions.runtime import threads_of_call
from ..functions.token_cache import TokenCache
from ._layer_call import DecoderOptions
from ._module_state import snapshots
from .experts import Experts
from .feed_forward import FeedForward
from .multi_head_attention import MultiHeadAttention
from .norm import Norm
from .transformer import TransformerLayer, TransformerStack

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on


class DecoderLayer(TransformerLayer):
    """``y = norm1(x + self_attn(x))``, ``z = norm2(y + cross_attn(y, memory))``, ``norm3(z + feed_forward(z))``.

    This is post-LN, as in the Transformer paper. With `norm_first` (pre-LN) the norms are applied to the inputs of the
    parts, as in `EncoderLayer`. The parts are layers that can be called by themselves. Self-attention is causal unless
    a call has ``is_causal=False``; in ``torch.nn.TransformerDecoderLayer`` it is causal only with a mask.

    Parameters
    ----------
    embed_dim, num_heads, feedforward_dim : int
        E, H of both attentions, and F, as for `EncoderLayer`.
    memory_dim : int, optional
        Em, the features of the memory. Default: E.
    activation, gated, norm_first, norm, output_norms, eps, num_kv_heads, head_dim, bias : optional
    qk_norm, qk_norm_eps, rotary, dtype, weight_dtype, seed : optional
        As for `EncoderLayer`. Both attentions have `num_kv_heads` and `head_dim`.

    Attributes
    ----------
    self_attn, cross_attn : MultiHeadAttention
        In state dicts ``cross_attn`` is ``multihead_attn``, as in torch.
    feed_forward : FeedForward or Experts
    norm1, norm2, norm3 : LayerNorm or RMSNorm
    output_norm1, output_norm2, output_norm3 : LayerNorm or RMSNorm, or None
        As for `EncoderLayer`.
    norm_first : bool

    See Also
    --------
    from_parts : A layer of your own parts.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> layer = mha.DecoderLayer(64, 4, 256, seed=0)
    >>> x, memory = np.random.default_rng(1).standard_normal((2, 3, 10, 64), dtype=np.float32)
    >>> layer(x, memory).shape
    (3, 10, 64)
    """

    cross_attn: MultiHeadAttention

    _reads_memory, _is_causal = True, True
    _torch_name = "TransformerDecoderLayer"

    @classmethod
    def from_parts(
        cls,
        self_attn: MultiHeadAttention,
        cross_attn: MultiHeadAttention,
        feed_forward: FeedForward | Experts,
        norm1: Norm | None = None,
        norm2: Norm | None = None,
        norm3: Norm | None = None,
        *,
        output_norm1: Norm | None = None,
        output_norm2: Norm | None = None,
        output_norm3: Norm | None = None,
        norm_first: bool = False,
    ) -> Self:
        """Return a layer of these parts. It shares them with the caller, and does not copy their weights.

        Parameters
        ----------
        self_attn, cross_attn : MultiHeadAttention
            Attention to the tokens and to the memory. All features are E, but those of the key and value of
            `cross_attn`, which are Em.
        feed_forward : FeedForward or Experts
        norm1, norm2, norm3 : LayerNorm or RMSNorm, optional
            Before each part with `norm_first`, else after its addition. Default: no norm.
        output_norm1, output_norm2, output_norm3 : LayerNorm or RMSNorm, optional
            Applied to the result of each part before it is added. Default: no norm.
        norm_first : bool, default False
            Apply the norms to the inputs of the parts (pre-LN), and not to the sums (post-LN).

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or if sizes or dtypes of the parts differ.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> self_attn, hidden = mha.MultiHeadAttention(64, 4, seed=0), mha.FeedForward(64, 256, seed=1)
        >>> cross_attn = mha.MultiHeadAttention(64, 4, kdim=48, vdim=48, seed=2)
        >>> layer = mha.DecoderLayer.from_parts(self_attn, cross_attn, hidden, *(mha.LayerNorm(64) for _ in range(3)))
        >>> layer.memory_dim, layer(np.ones((2, 5, 64), np.float32), np.ones((2, 7, 48), np.float32)).shape
        (48, (2, 5, 64))
        """
        norms = {"norm1": norm1, "norm2": norm2, "norm3": norm3}
        norms |= {"output_norm1": output_norm1, "output_norm2": output_norm2, "output_norm3": output_norm3}
        function = f"{cls.__name__}.from_parts"
        return cls._of_parts(function, self_attn, cross_attn, feed_forward, norms, norm_first)

    def __call__(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        memory_cache: TokenCache | None = None,
        cache: TokenCache | None = None,
        need_weights: bool = False,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[DecoderOptions],
    ) -> Tensor:
        """Let the tokens of each sequence attend to one another and to the memory, then feed each one forward.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the layer.
        memory : [B, S, Em] or [S, Em], optional
            The result of an encoder for the other sequence. Needed unless there is a `memory_cache`.
        memory_cache : KVCache, optional
            Keys and values of the memory, from `project_memory`. The call does not change them.
        cache, need_weights, out, num_threads : optional
            As for the call of `EncoderLayer`. `need_weights` returns the weights of the self-attention.
        memory_attn_mask : broadcastable to [B, H, T, S], optional
            Boolean: which of the memory each token sees. Or numbers that are added to the scores of the memory.
        memory_key_mask : boolean, broadcastable to [B, S], optional
            Which of the memory all tokens see. True takes part.
        memory_lengths : integer array [B], optional
            The length of the memory of each sequence. A `memory_cache` has its own lengths.
        memory_scale : float, optional
            Factor of the scores of the memory. Default: ``1 / sqrt(D)``.
        new_lengths : integer array [B], optional
            With a cache: only the first ``new_lengths[b]`` rows of sequence b count; the others are padding.
        cu_seqlens, sequences : optional
            As for the call of `EncoderLayer`. A ragged batch reads a `memory_cache`.
        memory_sequences : integer array [B], optional
            For a ragged batch: the sequence of the `memory_cache` that each of its B sequences reads. Those that read
            the same one must be neighbours, such as the beams of a search; its keys are then read once for all of
            them. Default: sequence b reads sequence b.
        **options
            The score options of the self-attention, and `positions`, as for the call of `MultiHeadAttention`, but
            `is_causal` is True by default. Rows of padding are computed like others; no other row sees them.

        Returns
        -------
        out : [B, T, E]
            With the rank and the kind of `x`.
        weights : [B, H, T, Tk]
            Only with `need_weights`; without B if `x` has no batch axis.
        """
        return self._call(x, memory, memory_cache, cache, need_weights, out, num_threads, options)

    def project_memory(
        self, memory: Tensor, *, memory_lengths: Tensor | None = None, num_threads: int | None = None
    ) -> TokenCache:
        """Project the memory to keys and values, once for all steps.

        Parameters
        ----------
        memory : [B, S, Em] or [S, Em]
        memory_lengths : integer array [B], optional
            The length of the memory of each sequence; the rest is padding.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        memory_cache : KVCache
        """
        name = f"{type(self).__name__}.project_memory"
        return _projected(name, self.cross_attn, memory, memory_lengths, num_threads)

    def _memory_weights(
        self, x: NDArray[Any], memory_cache: TokenCache, sequence: int, heads: Sequence[int], num_threads: int | None
    ) -> NDArray[Any]:
        """Return the weights [h, T, S] of some heads of the attention of rows `x` [T, E] to a sequence of a memory.

        The weights of the other heads are not computed.
        """
        call: Any = {"num_threads": num_threads}
        given = self.norm1(x, **call) if self.norm_first and self.norm1 is not None else x
        added: Any = self.self_attn(given, is_causal=True, **call)
        if self.output_norm1 is not None:
            added = self.output_norm1(added, **call)
        rows: Any = x + added
        norm = self.norm2 if self.norm_first else self.norm1
        query = self.cross_attn._query_heads(rows if norm is None else norm(rows, **call), heads, num_threads)
        keys = memory_cache.keys[sequence, list(heads), : memory_cache.lengths[sequence]]
        weights: NDArray[Any] = attention_weights(query, keys, **call)
        return weights

    @property
    def memory_dim(self) -> int:
        """Em, the features of the memory."""
        return self.cross_attn.kdim


class Decoder(TransformerStack):
    """`num_layers` layers, one after another, and a final norm if you ask for it.

    As in a `DecoderLayer`, self-attention is causal unless a call has ``is_causal=False``.

    Parameters
    ----------
    num_layers, embed_dim, num_heads, feedforward_dim, final_norm
        As for `Encoder`.
    layer_options : sequence of dict, optional
        As for `Encoder`: options of the self-attention of each layer.
    **arguments
        As for `Encoder`, and `memory_dim`, Em, the features of the memory. Default: E.

    Attributes
    ----------
    layers : tuple of DecoderLayer
    norm : LayerNorm, RMSNorm or None
    layer_options : tuple of dict, or None

    See Also
    --------
    CausalDecoder : A decoder without memory.
    generate : Generate tokens.
    from_layers : A stack of your own layers.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> decoder = mha.Decoder(2, 64, 4, 256, seed=0)
    >>> x, memory = np.random.default_rng(1).standard_normal((2, 3, 7, 64), dtype=np.float32)
    >>> y = decoder(x, memory)

    Step by step, with the memory projected once:

    >>> caches, memory_caches = decoder.new_caches(batch_size=3, capacity=7), decoder.project_memory(memory)
    >>> steps = [decoder(x[:, t : t + 1], caches=caches, memory_caches=memory_caches) for t in range(7)]
    >>> np.array_equal(np.concatenate(steps, axis=1), y)
    True
    """

    _layer_type, _is_causal, _reads_memory = DecoderLayer, True, True
    _torch_name = "TransformerDecoder"

    def __call__(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        memory_caches: Sequence[TokenCache] | None = None,
        caches: Sequence[TokenCache] | None = None,
        need_weights: bool = False,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[DecoderOptions],
    ) -> Tensor:
        """Take `x` through all layers, each over the same memory.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the layers.
        memory : [B, S, Em] or [S, Em], optional
            The result of an encoder for the other sequence. Needed unless there are `memory_caches`.
        memory_caches : sequence of KVCache, optional
            Keys and values of the memory, one cache for each layer, from `project_memory`. The call does not change
            them.
        caches, need_weights, out, num_threads : optional
            As for the call of `Encoder`.
        memory_attn_mask, memory_key_mask, memory_lengths, memory_scale, cu_seqlens, new_lengths, sequences : optional
        memory_sequences : optional
            As for the call of `DecoderLayer`, the same for all layers.
        **options
            The score options of the self-attention of every layer, in addition to `layer_options`; and `positions` for
            the layers that have a `RotaryEmbedding`.

        Returns
        -------
        out : [B, T, E]
        weights : list of [B, H, T, Tk]
            Only with `need_weights`: one for each layer; without B if `x` has no batch axis.
        """
        return self._call(x, memory, memory_caches, caches, need_weights, out, num_threads, options)

    def project_memory(
        self, memory: Tensor, *, memory_lengths: Tensor | None = None, num_threads: int | None = None
    ) -> list[TokenCache]:
        """Project the memory for each layer, as `DecoderLayer.project_memory`. The result is for `memory_caches`."""
        name = f"{type(self).__name__}.project_memory"
        attentions = snapshots([layer.cross_attn for layer in self.layers])
        num_threads = threads_of_call(name, num_threads)
        return [_projected(name, attention, memory, memory_lengths, num_threads) for attention in attentions]

    @property
    def memory_dim(self) -> int:
        """Em, the features of the memory."""
        return int(self.layers[0].memory_dim)


def _projected(
    function: str,
    attention: MultiHeadAttention,
    memory: Tensor,
    memory_lengths: Tensor | None,
    num_threads: int | None,
) -> TokenCache:
    array = to_numpy(function, "memory", memory)
    if not isinstance(array, np.ndarray):
        rule = "must be a NumPy array, or a CPU tensor that speaks DLPack"
        raise TypeError(f"{function}: memory {rule}; got {name_of_type(array)}")
    if array.ndim not in (2, 3):
        raise ValueError(f"{function}: memory must be [B, S, Em] or [S, Em]; got {list(array.shape)}")
    with in_the_name_of(function, key="memory", value="memory", new_lengths="memory_lengths"):
        cache = attention.new_cache(array.shape[0] if array.ndim == 3 else 1, array.shape[-2])
        attention.append_to(cache, array, new_lengths=memory_lengths, num_threads=num_threads)
    return cache
