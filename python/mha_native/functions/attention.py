"""Attention over arrays: the public functions, which document and forward. The core checks and computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from numpy import ndarray

from .. import _core
from .arrays import Tensor, like, to_numpy
from .messages import rename_arguments
from .options import (
    KEYWORD_OPTIONS,
    RARE_FUNCTION_OPTIONS,
    KeywordOptions,
    RareFunctionOptions,
    core_options,
    lists_options,
)
from .token_cache import TokenCache, key_argument, value_argument

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


@lists_options(RareFunctionOptions)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor | TokenCache,
    value: Tensor | None = None,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    return_lse: bool = False,
    out: Tensor | None = None,
    num_threads: int | None = None,
    **options: Unpack[RareFunctionOptions],
) -> Tensor:
    """``softmax(scale * query @ key.T + masks) @ value``, for each batch element and head.

    Arrays are NumPy arrays, or CPU tensors of any library that speaks DLPack (PyTorch, JAX, ...), of float32, float64,
    float16 or bfloat16 (in NumPy by the package ml_dtypes), with one dtype in a call. They are read without a copy,
    with any strides. B is the batch size, H and Hk the number of query heads and key-value heads, Tq and Tk the number
    of queries and keys, D and Dv the width of a head.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key : [B, Hk, Tk, D] or KVCache
        With the rank of `query`, as is `value`. H is a multiple of Hk, and query head h reads key-value head
        ``h // (H // Hk)``. A B of 1, in `query` or in `key` and `value`, is broadcast; missing axes count as 1.
    value : [B, Hk, Tk, Dv], optional
        Not given with a cache.
    attn_mask : broadcastable to [B, H, Tq, Tk], optional
        Boolean: True means that the key takes part (the opposite of ``torch.nn.MultiheadAttention``). Or numbers in the
        dtype of `query`, which are added to the scaled and capped scores; minus infinity masks.
    is_causal : bool, default False
        Query i sees key j only if ``j <= query_offset + i``.
    query_offset : int or integer array [B], optional
        Position of the first query among the keys, at most 2^62 from the first key. ``Tk - Tq`` aligns the last query
        with the last key. Default: 0; over a cache ``cache.lengths - Tq``, so that the queries are the last tokens.
    key_lengths : integer array [B], optional
        Keys ``j >= key_lengths[b]`` do not exist, and their memory is not read.
    key_mask : boolean, broadcastable to [B, Tk], optional
        True means that the key takes part, for every query and head, as in an `attn_mask` [B, 1, 1, Tk]. Use it for
        padding, in addition to an `attn_mask` that is the same for all sequences.
    block_mask : boolean [B or 1, H or 1, ceil(Tq / 64), ceil(Tk / 64)], optional
        ``block_mask[b, h, i // 64, j // 64]`` says whether query i may see key j; missing leading axes are 1. Masked
        blocks of keys and values are not read, and take no time.
    window : (left, right), optional
        Query i sees key j only if ``query_offset + i - left <= j <= query_offset + i + right``; -1 is unbounded.
    scale : float, optional
        Default: ``1 / sqrt(D)``.
    softcap : float, optional
        A positive number: a scaled score s becomes ``softcap * tanh(s / softcap)``, before anything is added to it.
    alibi_slopes : array [H] or [B or 1, H], optional
        ``alibi_slopes[b, h] * |query_offset + i - j|`` is subtracted from the score of query i and key j in head h. Its
        dtype is the dtype of `lse`.
    position_bias : array [H, 2 R + 1], optional
        ``position_bias[h, clip(j - (query_offset + i), -R, R) + R]`` is added to the score of query i and key j in head
        h: a number for each distance up to R; larger distances have the number of R. Its dtype is the dtype of `lse`.
    sinks : array [H], optional
        One more score for each query of head h, which is not scaled: it takes weight, but has no value. In the dtype
        of `lse` or of `query`.
    dropout_p : float, optional
        For training, without a cache: the probability, below 1, that a weight is replaced by 0. Other weights are
        multiplied by ``1 / (1 - dropout_p)``. `lse` is the logarithm before dropout. Default: 0.
    dropout_seed : int, optional
        A weight is replaced if a random number below `dropout_p` belongs to this seed, its batch element, head, query
        position and key. Give each call its own seed, and the same seed to `attention_gradient`. Default: 0.
    return_lse : bool, default False
        Return the logarithm of the sum of the exponentials of the masked scores, and of the sink, too.
    out : [B, H, Tq, Dv], optional
        Array to write the result to; it must not overlap an input.
    num_threads : int, optional
        Threads for this call; default: `mha_native.num_threads`. The number does not change one bit of the result.

    Returns
    -------
    out : [B, H, Tq, Dv]
        With the rank, dtype and kind of `query`.
    lse : [B, H, Tq]
        Only with `return_lse`: float64 for float64, else float32.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule; the message shows the dtypes or shapes of all.

    See Also
    --------
    attention_weights : The weights of this average.
    scaled_dot_product_attention_varlen : For sequences of different length, without padding.
    MultiHeadAttention : The layer, with projections.
    KVCache : Keys and values of the tokens so far, for decoding.

    Notes
    -----
    A `KVCache` as `key` stands for the keys and values of its tokens. `query` must have its batch size and dtype. Give
    neither `value` nor lengths. Tk is the length of its longest sequence.

    Scores are scaled, then capped, then the terms of `alibi_slopes`, `position_bias` and `attn_mask` are added, in this
    order, and then they are masked. All masks compose: a key takes part if each mask admits it. A query that sees no
    key gets zeros, and an `lse` of minus infinity, or of its sink. Masked numbers, even NaN, never reach the result.
    Scores, softmax and sums are float32, or float64 for float64. The [Tq, Tk] scores are never stored.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 2, 8, 5, 64), dtype=np.float32)
    >>> mha.scaled_dot_product_attention(query, key, value).shape
    (2, 8, 5, 64)

    The first query of a causal call sees one key, so that the result is the value of this key:

    >>> out = mha.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> np.array_equal(out[:, :, 0], value[:, :, 0])
    True

    Sentences of three and five words in one batch:

    >>> lengths = np.array([3, 5])
    >>> out = mha.scaled_dot_product_attention(query, key, value, key_lengths=lengths)
    >>> same = mha.scaled_dot_product_attention(query[0], key[0, :, :3], value[0, :, :3])
    >>> np.allclose(out[0], same, atol=1e-6)
    True

    The same with padding in front, and a bias for each query and key:

    >>> takes_part = np.array([[False, False, True, True, True], [True] * 5])
    >>> bias = rng.standard_normal((5, 5), dtype=np.float32)
    >>> out = mha.scaled_dot_product_attention(query, key, value, bias, key_mask=takes_part)
    >>> same = mha.scaled_dot_product_attention(query[0], key[0, :, 2:], value[0, :, 2:], bias[:, 2:])
    >>> np.allclose(out[0], same, atol=1e-6)
    True

    A long document in which each block of 64 tokens attends to itself and to the first block:

    >>> long = rng.standard_normal((8, 512, 64), dtype=np.float32)
    >>> blocks = np.eye(8, dtype=bool)
    >>> blocks[:, 0] = True
    >>> out = mha.scaled_dot_product_attention(long, long, long, block_mask=blocks)
    >>> same = mha.scaled_dot_product_attention(long, long, long, blocks.repeat(64, 0).repeat(64, 1))
    >>> np.array_equal(out, same)
    True

    With a sink a query need not attend to anything. Here it takes as much weight as both keys together:

    >>> zeros, ones = np.zeros((2, 4), np.float32), np.ones((2, 1), np.float32)
    >>> mha.scaled_dot_product_attention(zeros, zeros, ones, sinks=np.log([2], dtype=np.float32)).round(3)
    array([[0.5],
           [0.5]], dtype=float32)
    """
    name = "scaled_dot_product_attention"
    given = core_options(name, options, RARE_FUNCTION_OPTIONS) if options else {}
    if is_causal is not False:
        given["is_causal"] = is_causal
    if attn_mask is not None:
        given["attn_mask"] = attn_mask if type(attn_mask) is ndarray else to_numpy(name, "attn_mask", attn_mask)
    result = _core.scaled_dot_product_attention(
        query if type(query) is ndarray else to_numpy(name, "query", query),
        key if type(key) is ndarray else key_argument(name, key),
        value if type(value) is ndarray else value_argument(name, key, value),
        given,
        return_lse,
        out if out is None or type(out) is ndarray else to_numpy(name, "out", out),
        num_threads,
    )
    if type(query) is ndarray:
        return result
    if not return_lse:
        return like(query, result) if out is None else out
    return like(query, result[0]) if out is None else out, like(query, result[1])


def attention_weights(
    query: Tensor,
    key: Tensor | TokenCache,
    attn_mask: Tensor | None = None,
    *,
    stage: Literal["scaled", "capped", "masked", "weights"] = "weights",
    out: Tensor | None = None,
    num_threads: int | None = None,
    **options: Unpack[KeywordOptions],
) -> Tensor:
    """``softmax(scale * query @ key.T + masks)``: the weights of the keys for each query, or the scores before softmax.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key : [B, Hk, Tk, D] or KVCache
    attn_mask, num_threads, **options
        As for `scaled_dot_product_attention`: `options` are its score options.
    stage : {"scaled", "capped", "masked", "weights"}, default "weights"
        The stage of the computation to return:

        - "scaled": ``scale * query @ key.T``, also where a mask hides the key;
        - "capped": after `softcap`, also where a mask hides the key;
        - "masked": after all additions to scores, and minus infinity where a key is masked;
        - "weights": after the softmax.

        Keys from `key_lengths` on are not read at any stage, and their scores are minus infinity. Options of later
        stages have no effect, but are checked. `sinks` do not change scores.
    out : [B, H, Tq, Tk], optional
        Array to write the result to; it must not overlap an input.

    Returns
    -------
    weights : [B, H, Tq, Tk]
        With the rank, dtype and kind of `query`. Rows sum to 1, or with `sinks` to 1 minus the weight of the sink.
        Masked keys have the weight 0, and a query that sees no key has only zeros. For another `stage`, the scores;
        scores too large for float16 are infinite.

    See Also
    --------
    scaled_dot_product_attention : The average of the values with these weights, without storing them.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.eye(3, dtype=np.float32)
    >>> mha.attention_weights(x, x, is_causal=True, scale=np.log(4)).round(2)
    array([[1.  , 0.  , 0.  ],
           [0.2 , 0.8 , 0.  ],
           [0.17, 0.17, 0.67]], dtype=float32)

    The scores of these weights, after and before the mask:

    >>> mha.attention_weights(x, x, is_causal=True, stage="masked", scale=3)
    array([[  3., -inf, -inf],
           [  0.,   3., -inf],
           [  0.,   0.,   3.]], dtype=float32)
    >>> mha.attention_weights(x, x, is_causal=True, stage="scaled", scale=3)
    array([[3., 0., 0.],
           [0., 3., 0.],
           [0., 0., 3.]], dtype=float32)
    """
    name = "attention_weights"
    given = core_options(name, options, KEYWORD_OPTIONS)
    if attn_mask is not None:
        given["attn_mask"] = to_numpy(name, "attn_mask", attn_mask)
    try:
        result = _core.attention_weights(
            query if type(query) is ndarray else to_numpy(name, "query", query),
            key if type(key) is ndarray else key_argument(name, key),
            given,
            stage,
            out if out is None or type(out) is ndarray else to_numpy(name, "out", out),
            num_threads,
        )
    except ValueError as error:
        if str(error).startswith(f"{name}: weights "):  # as the core calls the result
            rename_arguments(error, weights="out")
        raise
    if type(query) is ndarray:
        return result
    return like(query, result) if out is None else out
