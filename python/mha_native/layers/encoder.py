"""A transformer's encoder: one layer, and a stack of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from ..functions.arrays import Tensor
from ..functions.token_cache import TokenCache
from ._constructor_arguments import LayerArguments
from ._layer_call import LayerOptions
from .experts import Experts
from .feed_forward import FeedForward
from .multi_head_attention import MultiHeadAttention
from .norm import Norm
from .transformer import TransformerLayer, TransformerStack

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on


class EncoderLayer(TransformerLayer):
    """``y = norm1(x + self_attn(x))``, ``norm2(y + feed_forward(y))``: post-LN, as in the Transformer paper and BERT.

    With `norm_first` (pre-LN) ``y = x + self_attn(norm1(x))``, ``y + feed_forward(norm2(y))``. With `output_norms` the
    results of both parts are normalised before they are added: ``output_norm1(self_attn(...))``,
    ``output_norm2(feed_forward(...))``. The parts are layers that can be called by themselves.

    Parameters
    ----------
    embed_dim : int
        E, the features of a token.
    num_heads : int
        H, the heads of the self-attention.
    feedforward_dim : int
        F, the features in the middle of the feed-forward.
    **arguments
        The keyword arguments that follow; encoders and decoders have the same ones.
    activation : {"relu", "gelu", "gelu_tanh", "silu", "swiglu_oai", "quick_gelu"}, default "relu"
        The activation of the `FeedForward`.
    gated : bool, default False
        Whether the `FeedForward` has a gate.
    norm_first : bool, default False
        Apply the norms to the inputs of the parts (pre-LN), and not to the sums (post-LN).
    norm : {"layer", "rms", "rms_unit_offset"}, default "layer"
        Kind of the norms: `LayerNorm`, or `RMSNorm` without or with a `unit_offset`.
    output_norms : bool, default False
        Normalise the result of each part, too, before it is added to the input of that part.
    eps : float, optional
        The `eps` of the norms. Default: 1e-5 for "layer", else 1e-6, as for `LayerNorm` and `RMSNorm`.
    num_kv_heads, head_dim : int, optional
        As for `MultiHeadAttention`.
    bias : bool, default True
        Whether all parts have biases.
    qk_norm, qk_norm_eps, rotary : optional
        As for `MultiHeadAttention`: norms of the heads of query and key in the self-attention, and rotary positions.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        The dtype of weights, inputs and results. Arrays of bfloat16 need the package ml_dtypes; tensors of other
        libraries do not.
    weight_dtype : str, optional
        The storage format of the matrices of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Seed of the initial weights, which follow the rules of torch.

    Attributes
    ----------
    self_attn : MultiHeadAttention
    feed_forward : FeedForward or Experts
    norm1, norm2 : LayerNorm or RMSNorm
        Set one to None to leave that norm out.
    output_norm1, output_norm2 : LayerNorm or RMSNorm, or None
        None: no norm at that place.
    norm_first : bool
    parallel : bool
        As for `from_parts`.

    See Also
    --------
    from_parts : A layer of your own parts.

    Notes
    -----
    There is no dropout. The layer is always batch-first. Several threads may call it at once, but only one thread may
    use a cache at a time.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> layer = mha.EncoderLayer(64, 4, 256, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
    >>> layer(x, key_lengths=np.array([10, 7])).shape
    (2, 10, 64)

    The same result from its parts:

    >>> y = layer.norm1(x + layer.self_attn(x))
    >>> np.allclose(layer(x), layer.norm2(y + layer.feed_forward(y)), atol=1e-5)
    True
    """

    _reads_memory, _is_causal = False, False
    _torch_name = "TransformerEncoderLayer"

    def __init__(
        self, embed_dim: int, num_heads: int, feedforward_dim: int, **arguments: Unpack[LayerArguments]
    ) -> None:
        super().__init__(embed_dim, num_heads, feedforward_dim, **arguments)

    def __call__(
        self,
        x: Tensor,
        *,
        cache: TokenCache | None = None,
        need_weights: bool = False,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> Tensor:
        """Let the tokens of each sequence attend to one another, then feed each one forward.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the layer.
        cache : KVCache, optional
            Keys and values of the tokens before these, from `new_cache`. The tokens of `x` are appended.
        need_weights : bool, default False
            Return the weights of the self-attention, too.
        out : [B, T, E], optional
            Array to write the result to. It may be `x` itself, and must not overlap another input.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.
        cu_seqlens : integer array [B + 1], optional
            A ragged batch: `x` is [N, E], sequences one after another. ``cu_seqlens`` holds the begin of each sequence,
            and the end of the last. `key_mask` is then [N], and weights cannot be returned.
        new_lengths : integer array [B], optional
            With a cache: only the first ``new_lengths[b]`` rows of sequence b count; the others are padding.
        sequences : integer array [B], optional
            For a ragged batch over a cache: the sequence of the cache that each of its sequences continues, all
            different. The others do not change. `key_mask` is then [B, Tk]. Default: all sequences of the cache.
        **options
            The score options of the self-attention, and `positions`, as for the call of `MultiHeadAttention`. Rows of
            padding are computed like others; no other row sees them.

        Returns
        -------
        out : [B, T, E]
            With the rank and the kind of `x`.
        weights : [B, H, T, Tk]
            Only with `need_weights`; without B if `x` has no batch axis.
        """
        return self._call(x, None, None, cache, need_weights, out, num_threads, options)

    @classmethod
    def from_parts(
        cls,
        self_attn: MultiHeadAttention,
        feed_forward: FeedForward | Experts,
        norm1: Norm | None = None,
        norm2: Norm | None = None,
        *,
        output_norm1: Norm | None = None,
        output_norm2: Norm | None = None,
        norm_first: bool = False,
        parallel: bool = False,
    ) -> Self:
        """Return a layer of these parts. It shares them with the caller, and does not copy their weights.

        Parameters
        ----------
        self_attn : MultiHeadAttention
            Its features are E; key, value and result have as many.
        feed_forward : FeedForward or Experts
        norm1, norm2 : LayerNorm or RMSNorm, optional
            Before each part with `norm_first`, else after its addition. Default: no norm.
        output_norm1, output_norm2 : LayerNorm or RMSNorm, optional
            Applied to the result of each part before it is added. Default: no norm.
        norm_first : bool, default False
            Apply the norms to the inputs of the parts (pre-LN), and not to the sums (post-LN).
        parallel : bool, default False
            Let both parts read the input of the layer: ``x + self_attn(norm1(x)) + feed_forward(norm2(x))``. Without
            `norm2` the feed-forward reads ``norm1(x)``. Then `norm_first` is True. Such a layer has no gradients.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or if sizes or dtypes of the parts differ.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> attention, hidden = mha.MultiHeadAttention(64, 4, seed=0), mha.FeedForward(64, 256, seed=1)
        >>> layer = mha.EncoderLayer.from_parts(attention, hidden, mha.RMSNorm(64), mha.RMSNorm(64), norm_first=True)
        >>> x = np.random.default_rng(2).standard_normal((2, 10, 64), dtype=np.float32)
        >>> y = x + attention(layer.norm1(x))
        >>> np.allclose(layer(x), y + hidden(layer.norm2(y)), atol=1e-5)
        True
        """
        norms = {"norm1": norm1, "norm2": norm2, "output_norm1": output_norm1, "output_norm2": output_norm2}
        function = f"{cls.__name__}.from_parts"
        parallel = _core.boolean(function, "parallel", parallel)
        layer = cls._of_parts(function, self_attn, None, feed_forward, norms, True if parallel else norm_first)
        layer.parallel = parallel
        return layer


class Encoder(TransformerStack):
    """`num_layers` layers, one after another, and a final norm if you ask for it.

    Parameters
    ----------
    num_layers : int
        The number of layers.
    embed_dim, num_heads, feedforward_dim : int
        E, H and F of each, as for `EncoderLayer`.
    final_norm : bool, default False
        Normalise the result of the last layer, as models with `norm_first` do.
    layer_options : sequence of dict, optional
        Score options of each layer, for all calls: `window`, `scale`, `softcap`, `alibi_slopes`, `position_bias` and
        `sinks` of `scaled_dot_product_attention`. An option must not be given both here and in a call.
    **arguments
        `activation`, `gated`, `norm_first`, `norm`, `output_norms`, `eps`, `num_kv_heads`, `head_dim`, `bias`,
        `qk_norm`, `qk_norm_eps`, `rotary`, `dtype`, `weight_dtype`, `seed`, as for `EncoderLayer`, the same for all
        layers. The final norm has the same `norm`, `eps`, `bias` and `dtype`. Initial weights differ from layer to
        layer.

    Attributes
    ----------
    layers : tuple of EncoderLayer
    norm : LayerNorm, RMSNorm or None
    layer_options : tuple of dict, or None

    See Also
    --------
    CausalDecoder : The same stack, causal by default: a decoder without memory.
    from_layers : A stack of your own layers.

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

    A window in one layer of two:

    >>> local = mha.Encoder(2, 64, 4, 256, layer_options=[{"window": (3, 3)}, {}], seed=0)
    >>> y = local.layers[1](local.layers[0](x, window=(3, 3)))
    >>> np.array_equal(local(x), y)
    True
    """

    _layer_type, _is_causal = EncoderLayer, False
    _torch_name = "TransformerEncoder"
