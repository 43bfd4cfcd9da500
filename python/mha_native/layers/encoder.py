"""A transformer's encoder: one layer, and a stack of them."""

from .transformer import TransformerLayer, TransformerStack


class EncoderLayer(TransformerLayer):
    """``y = norm1(x + self_attn(x))``, ``norm2(y + feed_forward(y))``: post-LN, as in the Transformer paper and BERT.

    With `norm_first` (pre-LN) ``y = x + self_attn(norm1(x))``, ``y + feed_forward(norm2(y))``. With `output_norms` what
    is added is ``output_norm1(self_attn(...))``, ``output_norm2(feed_forward(...))``. The layer is made of layers that
    work by themselves.

    Parameters
    ----------
    embed_dim : int
        E, the features of a token.
    num_heads : int
        H.
    feedforward_dim : int
        F, the features in the middle of the feed-forward.
    memory_dim : None
        Of a `DecoderLayer` only.
    activation : {"relu", "gelu", "gelu_tanh", "silu"}, default "relu"
        Of the feed-forward, as for `FeedForward`.
    gated : bool, default False
        Whether the feed-forward has a gate, as for `FeedForward`.
    norm_first : bool, default False
        Normalise what a block reads, instead of the sum of that and what it gives.
    norm : {"layer", "rms", "rms_unit_offset"}, default "layer"
        Kind of the norms: `LayerNorm`, or `RMSNorm` without or with a `unit_offset`.
    output_norms : bool, default False
        Normalise what a block gives, too, before it is added to what the block reads.
    eps : float, default 1e-5
        Of the norms.
    num_kv_heads, head_dim : int, optional
        As for `MultiHeadAttention`.
    bias : bool, default True
        Whether all parts have biases.
    qk_norm, qk_norm_eps, rotary : optional
        Of the self-attention: norms of the heads of query and key, and rotary positions, as for `MultiHeadAttention`.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Of the weights, and of what the layer takes and gives. Arrays of bfloat16 are those of the package ml_dtypes;
        tensors of other libraries do without it.
    weight_dtype : str, optional
        What the matrices of weights are stored as, of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Of the initial weights, which follow the rules of torch.

    Attributes
    ----------
    self_attn : MultiHeadAttention
    feed_forward : FeedForward
    norm1, norm2 : LayerNorm or RMSNorm
        Each may be set to None: there is no norm at that place.
    output_norm1, output_norm2 : LayerNorm or RMSNorm, or None
        Likewise.
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

    _reads_memory, _is_causal = False, False
    _torch_name = "TransformerEncoderLayer"


class Encoder(TransformerStack):
    """`num_layers` layers, one after another, and a norm behind the last if there is a `final_norm`.

    Parameters
    ----------
    num_layers : int
        How many layers.
    embed_dim, num_heads, feedforward_dim : int
        E, H and F of each, as for `EncoderLayer`.
    final_norm : bool, default False
        Normalise the result of the last layer, as models with `norm_first` do.
    layer_options : sequence of dict, optional
        Score options of each layer, for all calls: those from `window` to `sinks` of `scaled_dot_product_attention`.
        They join those of a call, which must not have the same ones.
    **arguments
        `activation`, `gated`, `norm_first`, `norm`, `output_norms`, `eps`, `num_kv_heads`, `head_dim`, `bias`,
        `qk_norm`, `qk_norm_eps`, `rotary`, `dtype`, `weight_dtype`, `seed`, as for `EncoderLayer`, the same for all;
        `norm`, `eps`, `bias` and `dtype` also of the final norm. Initial weights differ from layer to layer.

    Attributes
    ----------
    layers : tuple of EncoderLayer
    norm : LayerNorm, RMSNorm or None
    layer_options : tuple of dict, or None

    See Also
    --------
    CausalDecoder : The same, causal unless told otherwise: a decoder without memory.

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
