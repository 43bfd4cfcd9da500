"""Attention over ragged batches: the public function, which documents and forwards. The core checks and computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import ndarray

from .. import _core
from .arrays import Tensor, like, to_numpy
from .options import FUNCTION_OPTIONS, FunctionOptions, core_options

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


def scaled_dot_product_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    return_lse: bool = False,
    out: Tensor | None = None,
    num_threads: int | None = None,
    **options: Unpack[FunctionOptions],
) -> Tensor:
    """`scaled_dot_product_attention` of each sequence of a ragged batch: sequences along one axis, without padding.

    Sequence b has the rows ``cu_seqlens_q[b]`` to ``cu_seqlens_q[b + 1]`` of `query`, and attends to the rows
    ``cu_seqlens_k[b]`` to ``cu_seqlens_k[b + 1]`` of `key` and `value`. B is the number of sequences, Nq and Nk are the
    numbers of queries and keys in all sequences, Tq and Tk in one. Only pairs within a sequence are computed.

    Parameters
    ----------
    query : [Nq, H, D]
        Kinds, dtypes and strides as for `scaled_dot_product_attention`.
    key : [Nk, Hk, D]
    value : [Nk, Hk, Dv]
    cu_seqlens_q, cu_seqlens_k : integer array [B + 1]
        Cumulative lengths: they begin with 0, never decrease, and end with Nq and Nk. A sequence may be empty.
    attn_mask : broadcastable to [H, Nq, max Tk], optional
        One row for each query. Entry j is for key j of the sequence of the query; entries after the last key are not
        read. Boolean: True means that the key takes part. Or numbers in the dtype of `query`, which are added to the
        scaled and capped scores; minus infinity masks.
    key_mask : boolean [Nk], optional
        True means that the key takes part, for every query and head.
    return_lse : bool, default False
        Return the logarithm of the sum of the exponentials of the masked scores, and of the sink, too.
    out : [Nq, H, Dv], optional
        Array to write the result to; it must not overlap an input.
    num_threads : int, optional
        As for `scaled_dot_product_attention`.
    **options
        The other options of `scaled_dot_product_attention`. Positions count from the begin of each sequence, and
        `query_offset` and `key_lengths` have one entry for each sequence. See the notes.

    Returns
    -------
    out : [Nq, H, Dv]
        With the dtype and kind of `query`.
    lse : [Nq, H]
        Only with `return_lse`: float64 for float64, else float32, as `merge_attention` takes it.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule; the message shows the arguments.

    See Also
    --------
    scaled_dot_product_attention : For sequences of equal length, or with padding.
    MultiHeadAttention : The layer, which takes ragged batches, too.

    Notes
    -----
    A row has the same bits as in a call of `scaled_dot_product_attention` on its sequence alone.

    The names are taken from FlashAttention's ``flash_attn_varlen_func``, with two differences. FlashAttention aligns
    causal masks and windows with the last key of a sequence. Give ``query_offset=np.diff(cu_seqlens_k) -
    np.diff(cu_seqlens_q)`` for the same; by default the first query is aligned with the first key. And the `lse` of
    FlashAttention is [H, Nq].

    Examples
    --------
    Sentences of three, one and five words, with eight heads:

    >>> import numpy as np
    >>> import mha_native as mha
    >>> cu_seqlens = np.cumsum([0, 3, 1, 5])
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 9, 8, 64), dtype=np.float32)
    >>> out = mha.scaled_dot_product_attention_varlen(query, key, value, cu_seqlens, cu_seqlens)
    >>> out.shape
    (9, 8, 64)

    The only word of the second sentence attends to itself:

    >>> np.array_equal(out[3], value[3])
    True

    One new query at the end of each sentence, as with FlashAttention's ``causal=True``:

    >>> cu_seqlens_q = np.arange(4)
    >>> last = np.diff(cu_seqlens) - np.diff(cu_seqlens_q)
    >>> mha.scaled_dot_product_attention_varlen(
    ...     query[:3], key, value, cu_seqlens_q, cu_seqlens, is_causal=True, query_offset=last
    ... ).shape
    (3, 8, 64)
    """
    name = "scaled_dot_product_attention_varlen"
    result = _core.scaled_dot_product_attention_varlen(
        query if type(query) is ndarray else to_numpy(name, "query", query),
        key if type(key) is ndarray else to_numpy(name, "key", key),
        value if type(value) is ndarray else to_numpy(name, "value", value),
        to_numpy(name, "cu_seqlens_q", cu_seqlens_q),
        to_numpy(name, "cu_seqlens_k", cu_seqlens_k),
        core_options(name, options, FUNCTION_OPTIONS),
        return_lse,
        out if out is None else to_numpy(name, "out", out),
        num_threads,
    )
    if type(query) is ndarray:
        return result
    if not return_lse:
        return like(query, result) if out is None else out
    return like(query, result[0]) if out is None else out, like(query, result[1])
