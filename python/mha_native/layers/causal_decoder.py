"""A decoder without memory: the stack of a language model."""

from __future__ import annotations

from .encoder import EncoderLayer
from .transformer import TransformerStack


class CausalDecoder(TransformerStack):
    """A decoder without memory: an `Encoder` in which each token attends to itself and to the tokens before it.

    Parameters
    ----------
    num_layers, embed_dim, num_heads, feedforward_dim, final_norm, layer_options
        As for `Encoder`.
    **arguments
        As for `Encoder`. Most language models have ``norm_first`` and a `final_norm`.

    Attributes
    ----------
    layers : tuple of EncoderLayer
    norm : LayerNorm, RMSNorm or None
    layer_options : tuple of dict, or None

    See Also
    --------
    generate : Generate tokens.
    from_layers : A stack of your own layers.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> decoder = mha.CausalDecoder(2, 64, 4, 256, norm_first=True, final_norm=True, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((3, 7, 64), dtype=np.float32)

    All tokens at once, or step by step over caches:

    >>> caches = decoder.new_caches(batch_size=3, capacity=7)
    >>> steps = [decoder(x[:, t : t + 1], caches=caches) for t in range(7)]
    >>> np.array_equal(np.concatenate(steps, axis=1), decoder(x))
    True

    Texts of different length, without padding, then a step of two of them together with a fourth text:

    >>> caches = decoder.new_caches(batch_size=4, capacity=7)
    >>> texts = decoder(np.concatenate([x[0], x[1, :2], x[2, :5]]), caches=caches, cu_seqlens=np.array([0, 7, 9, 14]),
    ...                 sequences=np.array([0, 1, 2]))
    >>> rows = np.concatenate([x[2, 5:6], x[1, 2:3], x[0, :4]])
    >>> y = decoder(rows, caches=caches, cu_seqlens=np.array([0, 1, 2, 6]), sequences=np.array([2, 1, 3]))
    >>> caches[0].lengths
    array([7, 3, 6, 4])
    >>> np.array_equal(y[0], decoder(x)[2, 5])
    True

    In every other layer a token sees the last three tokens only:

    >>> window = {"window": (2, 0)}
    >>> local = mha.CausalDecoder(2, 64, 4, 256, layer_options=[window, {}], seed=0)
    >>> np.array_equal(local(x), local.layers[1](local.layers[0](x, is_causal=True, **window), is_causal=True))
    True
    """

    _layer_type, _is_causal = EncoderLayer, True
    _torch_name = "TransformerEncoder"
