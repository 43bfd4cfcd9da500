"""The multi-head attention layer. This class documents and forwards; the core stores the weights and computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .. import _core
from ..functions.arrays import Tensor, like, to_numpy, widened
from ..functions.dtypes import checked_dtype
from ..functions.kv_cache import KVCache
from ..functions.linear import linear
from ..functions.messages import in_the_name_of, name_of_type
from ..functions.options import (
    ATTENTION_OPTIONS,
    RARE_OPTIONS,
    AttentionOptions,
    RareOptions,
    core_options,
    lists_options,
)
from ..functions.paged_kv_cache import PagedKVCache
from ..functions.token_cache import TokenCache
from ._attention_tape import record_attention
from ._constructor_arguments import Biases, Seed, WeightDType, checked_weight_dtype
from ._head_steps import checked_steps
from ._layer_state import LayerState
from ._layer_weights import checked_parts, initial_state, resolve_sizes
from ._tape import Backward, Recording, Tape, record
from .rotary_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class MultiHeadAttention(LayerState):
    """``concat(head_1 ... head_H) W_O`` with ``head_i = attention(query W_Q_i, key W_K_i, value W_V_i)``.

    Parameters
    ----------
    embed_dim : int
        E, the features of the query.
    num_heads : int
        H, the heads of queries.
    num_kv_heads : int, optional
        Hk, a divisor of H: the heads of keys and values, each shared by H / Hk heads of queries. Default: H.
    head_dim : int, optional
        D, the width of a head. Default: E / H.
    value_head_dim : int, optional
        Dv, the width of a head of the values. Default: D.
    kdim, vdim, out_dim : int, optional
        Features of the key, the value and the result. Default: E.
    bias : bool or a set of {"query", "key", "value", "out"}, default True
        Add a bias in all four projections, in none, or in the named ones.
    add_bias_kv : bool, default False
        Each query also sees one more key and value, which are weights of the layer.
    add_zero_attn : bool, default False
        Each query also sees a key and a value of zeros.
    qk_norm : {"layer", "rms", "rms_unit_offset", "rms_joint"}, optional
        A norm of the D features of each head of query and of key, before the rotation: `LayerNorm`, or `RMSNorm`
        without or with a `unit_offset`. All heads of the query share their weights, as do all heads of the key.
        "rms_joint" is one `RMSNorm` of the H D features of all heads of the query together, and one of the Hk D of the
        key.
    qk_norm_eps : float, optional
        The `eps` of these norms. Default: 1e-5 for "layer", else 1e-6, as for `LayerNorm` and `RMSNorm`.
    rotary : RotaryEmbedding, optional
        Rotate queries and keys by their positions: ``query_offset + i`` for row i of the query, j for row j of the key.
        Over a cache, positions continue after its tokens; in a ragged batch, they count from the begin of each
        sequence. The `positions` of a call replace them.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        The dtype of weights, inputs and results. Arrays of bfloat16 need the package ml_dtypes; tensors of other
        libraries do not.
    weight_dtype : str, optional
        The storage format of the four matrices of a layer in float32: see `quantize`. Default: `dtype`.
    seed : int or numpy.random.Generator, optional
        Seed of the initial weights, which follow the rule of ``torch.nn.MultiheadAttention``: Xavier-uniform, with
        biases of zero.

    See Also
    --------
    from_weights, from_torch, load_state_dict : A layer with your own weights.
    quantize : Weights in fewer bits.
    astype : The layer in another dtype.

    Notes
    -----
    Several threads may call a layer at once, but only one thread may use a cache at a time. A layer is always
    batch-first, and has no dropout.

    Keys that the layer adds come after all others. No mask hides them, they have no position, and no cache holds them.

    A cache holds rotated keys. After `KVCache.keep_last` its rows are counted from 0 again, but its keys keep their
    rotation. Give `positions` to all later calls.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> layer = mha.MultiHeadAttention(512, 8, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((2, 10, 512), dtype=np.float32)
    >>> layer(x).shape
    (2, 10, 512)
    >>> y, weights = layer(x, is_causal=True, need_weights=True)
    >>> weights.shape
    (2, 8, 10, 10)

    Texts of 4, 9 and 7 words, without padding:

    >>> layer(x.reshape(20, 512), cu_seqlens_q=np.cumsum([0, 4, 9, 7])).shape
    (20, 512)

    A layer in half the memory. Inputs must be in its dtype, too:

    >>> half = layer.astype("float16")
    >>> y = half(x.astype(np.float16))
    >>> y.dtype, float(np.abs(y - layer(x)).max() / np.abs(layer(x)).max()) < 0.002
    (dtype('float16'), True)

    Weights in a quarter of the memory:

    >>> small = layer.quantize("int8")
    >>> small.weight_dtype
    'int8'
    >>> float(np.abs(small(x) - layer(x)).max() / np.abs(layer(x)).max()) < 0.02
    True
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        out_dim: int | None = None,
        bias: Biases = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        qk_norm: str | None = None,
        qk_norm_eps: float | None = None,
        rotary: RotaryEmbedding | None = None,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        sizes = resolve_sizes(embed_dim, num_heads, num_kv_heads, head_dim, value_head_dim, kdim, vdim, out_dim)
        kind = checked_dtype("MultiHeadAttention", dtype)
        parts = checked_parts(bias, add_bias_kv, add_zero_attn)
        steps = checked_steps("MultiHeadAttention", qk_norm, qk_norm_eps, rotary)
        stored = checked_weight_dtype("MultiHeadAttention", weight_dtype, kind)
        state = initial_state(sizes, parts, kind, seed)
        state |= steps.initial_state(sizes, kind)
        self._set_state(sizes, parts, kind, stored, state, steps)

    @lists_options(RareOptions)
    def __call__(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        positions: Tensor | None = None,
        cache: TokenCache | None = None,
        append: bool = True,
        new_lengths: Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        sequences: Tensor | None = None,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[RareOptions],
    ) -> Tensor:
        """Attend from `query` to `key`. Without a `key` this is self-attention.

        Parameters
        ----------
        query : [B, Tq, E] or [Tq, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, with the dtype of the layer.
        key : [B, Tk, kdim], default `query`
        value : [B, Tk, vdim], default `key`
        attn_mask : broadcastable to [B, H, Tq, Tk], optional
            Boolean: True means that the key takes part, the opposite of ``torch.nn.MultiheadAttention``. Or numbers in
            the dtype of the layer, which are added to the scaled scores.
        key_mask : boolean, broadcastable to [B, Tk], optional
            True means that the key takes part: the negation of torch's ``key_padding_mask``.
        is_causal : bool, default False
            Query i sees the keys up to i. If the call appends to a cache, it also sees all older tokens.
        query_offset, key_lengths, block_mask, window, scale, softcap, alibi_slopes, position_bias, sinks : optional
            As for `scaled_dot_product_attention`. If the call appends to a cache, do not give the first two.
        positions : integer array [T] or [B, T], for a ragged batch [N], optional
            For a layer with `rotary`: the rows of its table for `query`, and for `key`, which must have as many rows.
            They replace the counted positions, but not in masks and biases.
        cache : KVCache or PagedKVCache, optional
            Attend to the keys in the cache. The keys of this call (of `query` if there is no `key`) are appended first,
            so that the new rows have the results of one call over the whole sequences. Tk, the length of masks and
            weights, is then the length of the longest sequence after the call.
        append : bool, default True
            With a cache: False attends to its tokens and appends nothing; do not give a `key` then.
        new_lengths : integer array [B], optional
            With a cache: only the first ``new_lengths[b]`` rows of sequence b count, as in prompts of different length.
            The others are padding: they are not appended, and have the results of rows that see no key.
        need_weights : bool, default False
            Return the attention weights, too.
        average_attn_weights : bool, default False
            Average the weights over the heads.
        cu_seqlens_q, cu_seqlens_k : integer array [B + 1], optional
            A ragged batch, as for `scaled_dot_product_attention_varlen`: sequences one after another, without padding.
            Then `query`, `key`, `value` and `out` are [Nq, E], [Nk, kdim], [Nk, vdim] and [Nq, out_dim], `key_mask` is
            [Nk], and `attn_mask` broadcasts to [H, Nq, max Tk]. Weights cannot be returned. The default of
            `cu_seqlens_k` is `cu_seqlens_q`. A row has the same bits as in a call on its sequence alone.
        sequences : integer array [B], optional
            For a ragged batch over a cache: the sequence of the cache that each of its sequences continues, all
            different. The others do not change. `key_mask` then broadcasts to [B, Tk]. Default: all sequences of the
            cache.
        out : [B, Tq, out_dim], optional
            Array to write the result to; it must not overlap an input.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Returns
        -------
        out : [B, Tq, out_dim]
            With the rank and kind of `query`.
        weights : [B, H, Tq, Tk], averaged: [B, Tq, Tk]
            Only with `need_weights`; without B if `query` has no batch axis. Keys that the layer adds have the last
            columns, first the key of `add_bias_kv`.

        Raises
        ------
        TypeError, ValueError
            Before any work, if an argument breaks a rule, or if the cache is too small; the cache does not change.

        Examples
        --------
        The steps of a decoder, one token at a time, have the results of one causal call:

        >>> import numpy as np
        >>> import mha_native as mha
        >>> layer = mha.MultiHeadAttention(64, 4, seed=0)
        >>> x = np.random.default_rng(1).standard_normal((2, 5, 64), dtype=np.float32)
        >>> cache = layer.new_cache(batch_size=2, capacity=16)
        >>> steps = [layer(x[:, t : t + 1], cache=cache, is_causal=True) for t in range(5)]
        >>> np.array_equal(np.concatenate(steps, axis=1), layer(x, is_causal=True))
        True

        A step of the first sequence together with the first three tokens of another one, without padding:

        >>> cache = layer.new_cache(batch_size=8, capacity=16)
        >>> y = layer(x[0, :4], cache=cache, cu_seqlens_q=np.array([0, 4]), sequences=np.array([6]), is_causal=True)
        >>> rows = np.concatenate([x[0, 4:], x[1, :3]])
        >>> y = layer(rows, cache=cache, cu_seqlens_q=np.array([0, 1, 4]), sequences=np.array([6, 2]), is_causal=True)
        >>> cache.lengths
        array([0, 0, 3, 0, 0, 0, 5, 0])
        >>> np.array_equal(y[0], steps[4][0, 0])
        True
        """
        name = "MultiHeadAttention"
        if append is not True:
            append = _core.boolean(name, "append", append)
        if average_attn_weights is not False:
            average_attn_weights = _core.boolean(name, "average_attn_weights", average_attn_weights)
        if sequences is not None and (cache is None or cu_seqlens_q is None):
            raise ValueError(f"{name}: sequences needs a cache and cu_seqlens_q")
        if cache is None:
            if not append or new_lengths is not None:
                raise ValueError(f"{name}: append and new_lengths need a cache")
        elif not isinstance(cache, TokenCache):
            raise TypeError(f"{name}: cache must be a KVCache; got {name_of_type(cache)}")
        elif not append and not (key is None and value is None and new_lengths is None):
            raise ValueError(f"{name}: with append=False nothing is appended: there is no key, value or new_lengths")
        q = query if type(query) is ndarray else to_numpy(name, "query", query)
        k: Any = q if key is None else key if type(key) is ndarray else to_numpy(name, "key", key)
        v = k if value is None else value if type(value) is ndarray else to_numpy(name, "value", value)
        given: Any = core_options(name, options, RARE_OPTIONS) if options else {}
        if is_causal is not False:
            given["is_causal"] = is_causal
        if attn_mask is not None:
            given["attn_mask"] = attn_mask if type(attn_mask) is ndarray else to_numpy(name, "attn_mask", attn_mask)
        if positions is not None:
            given["positions"] = positions if type(positions) is ndarray else to_numpy(name, "positions", positions)
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            if cu_seqlens_q is None:
                raise ValueError(f"{name}: cu_seqlens_q must be given if cu_seqlens_k is")
            if not append or new_lengths is not None:
                raise ValueError(f"{name}: append=False and new_lengths cannot be combined with cu_seqlens_q")
            if need_weights is not False and _core.boolean(name, "need_weights", need_weights):
                raise ValueError(f"{name}: need_weights must be False with cu_seqlens_q: weights have no ragged form")
            offsets = to_numpy(name, "cu_seqlens_q", cu_seqlens_q)
            rows = self._core.forward_varlen(
                q,
                k,
                v,
                offsets,
                offsets if cu_seqlens_k is None else to_numpy(name, "cu_seqlens_k", cu_seqlens_k),
                given,
                None if cache is None else cache._core,
                sequences if sequences is None else to_numpy(name, "sequences", sequences),
                out if out is None else to_numpy(name, "out", out),
                num_threads,
            )
            return rows if type(query) is ndarray else like(query, rows) if out is None else out
        if not append:
            k = v = None
        result: Any = self._core.forward(
            q,
            k,
            v,
            given,
            None if cache is None else cache._core,
            new_lengths if new_lengths is None else to_numpy(name, "new_lengths", new_lengths),
            need_weights,
            out if out is None or type(out) is ndarray else to_numpy(name, "out", out),
            num_threads,
        )
        array = result[0] if need_weights else result
        if type(query) is not ndarray:
            array = like(query, array) if out is None else out
        if not need_weights:
            return array
        weights = result[1]
        if average_attn_weights:
            weights = _core.convert(widened(weights).mean(axis=-3), weights.dtype)
        return array, weights if type(query) is ndarray else like(query, weights)

    def forward_and_record(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        recompute: str = "none",
        wrt: Collection[str] | None = None,
        num_threads: int | None = None,
        **options: Unpack[AttentionOptions],
    ) -> tuple[Tensor, Tape]:
        """Attend from `query` to `key`, and record what the gradients need.

        Parameters
        ----------
        query, key, value, cu_seqlens_q, cu_seqlens_k, num_threads, **options
            As for the call, without a cache.
        recompute, wrt : optional
            As for `EncoderLayer.forward_and_record`. Inputs are "query", "key", "value", as they are given, and options
            with gradients: "attn_mask" (if it is added to scores), "alibi_slopes", "position_bias" and "sinks".

        Returns
        -------
        out : [B, Tq, out_dim]
            With the bits of the call.
        tape : Tape

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> layer = mha.MultiHeadAttention(64, 4, seed=0)
        >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
        >>> y, tape = layer.forward_and_record(x, is_causal=True, wrt=("in_proj_weight", "query"))
        >>> gradients = tape.backward(np.ones_like(y))
        >>> gradients.weights["in_proj_weight"].shape, gradients.inputs["query"].shape
        ((192, 64), (2, 10, 64))
        """
        function = "MultiHeadAttention.forward_and_record"
        given: dict[str, Any] = {**core_options(function, options, ATTENTION_OPTIONS)}
        offsets = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        if cu_seqlens_q is None and cu_seqlens_k is not None:
            raise ValueError(f"{function}: cu_seqlens_q must be given if cu_seqlens_k is")
        inputs = {"query": query, "key": key, "value": value}
        return record(self, inputs, given | offsets, recompute, wrt, num_threads)

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        return record_attention(self, arrays, options, recording)

    def new_cache(
        self,
        batch_size: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        page_size: int | None = None,
        num_pages: int | None = None,
    ) -> TokenCache:
        """Return an empty cache for the keys and values of this layer.

        Parameters
        ----------
        batch_size : int
            B, the number of sequences.
        capacity : int
            The most tokens of a sequence.
        dtype : optional
            Default: the dtype of the layer. For a layer in float32 also float16, bfloat16 or int8: keys and values are
            rounded after their projection. They take a half or about a quarter of the memory, and of the time of a step
            that waits for memory.
        page_size, num_pages : int, optional
            Give one of them to get a `PagedKVCache`: the tokens of a page, default 64, and the pages in the pool, by
            default enough for `capacity` tokens of each sequence.
        """
        sizes = self._sizes
        dtype = self.dtype if dtype is None else dtype
        with in_the_name_of(f"{type(self).__name__}.new_cache"):
            if page_size is None and num_pages is None:
                return KVCache(batch_size, sizes.num_kv_heads, capacity, sizes.head_dim, sizes.value_head_dim, dtype)
            page_size = 64 if page_size is None else page_size
            return PagedKVCache(
                batch_size * -(-capacity // max(page_size, 1)) if num_pages is None else num_pages,
                page_size,
                batch_size=batch_size,
                num_kv_heads=sizes.num_kv_heads,
                head_dim=sizes.head_dim,
                value_head_dim=sizes.value_head_dim,
                dtype=dtype,
            )

    def _query_heads(self, x: NDArray[Any], heads: Sequence[int], num_threads: int | None) -> NDArray[Any]:
        """Return the queries [h, T, D] of some heads for rows `x` [T, E]."""
        weight, bias, scale = self._core.weights()[0][0]
        rows = np.concatenate([head * self.head_dim + np.arange(self.head_dim) for head in heads])
        chosen = weight[rows] if scale is None else weight[rows].astype(np.float32) * scale[rows, np.newaxis]
        query: NDArray[Any] = linear(x, chosen, None if bias is None else bias[rows], num_threads=num_threads)
        return query.reshape(len(x), len(heads), self.head_dim).swapaxes(0, 1)

    def append_to(
        self,
        cache: TokenCache,
        key: Tensor,
        value: Tensor | None = None,
        *,
        new_lengths: Tensor | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Project `key` and `value` into `cache`, without attention.

        Parameters
        ----------
        cache : KVCache or PagedKVCache
        key : [B, T, kdim] or [T, kdim]
        value : [B, T, vdim], default `key`
        new_lengths : integer array [B], optional
            Only the first ``new_lengths[b]`` rows of sequence b are appended.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.

        Examples
        --------
        Cross-attention: the result of the encoder is projected once, for all steps of the decoder.

        >>> import numpy as np
        >>> import mha_native as mha
        >>> layer = mha.MultiHeadAttention(64, 4, seed=0)
        >>> x, encoded = np.random.default_rng(1).standard_normal((2, 3, 7, 64), dtype=np.float32)
        >>> cache = layer.new_cache(batch_size=3, capacity=7)
        >>> layer.append_to(cache, encoded)
        >>> y = layer(x[:, :1], cache=cache, append=False)
        >>> np.array_equal(y, layer(x[:, :1], encoded))
        True
        """
        name = "MultiHeadAttention.append_to"
        if not isinstance(cache, TokenCache):
            raise TypeError(f"{name}: cache must be a KVCache; got {name_of_type(cache)}")
        k = key if type(key) is ndarray else to_numpy(name, "key", key)
        v = k if value is None else value if type(value) is ndarray else to_numpy(name, "value", value)
        counts = new_lengths if new_lengths is None else to_numpy(name, "new_lengths", new_lengths)
        self._core.append_to(cache._core, k, v, counts, num_threads)
