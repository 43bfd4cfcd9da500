"""Statistics of the softmax weights for sequences of any length, without storing the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from numpy import ndarray

from .. import _core
from .arrays import Tensor, like, to_numpy
from .options import KEYWORD_OPTIONS, KeywordOptions, core_options
from .token_cache import TokenCache, key_argument

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


class AttentionStatistics(NamedTuple):
    """Statistics of the weights w[i, j] of query i and key j, for each batch element and head.

    They describe the weights of `attention_weights`, and are arrays of the kind of `query`. With `sinks` these weights
    sum to 1 minus the weight of the sink. A sink is not a key, and does not count in any field.

    Attributes
    ----------
    entropy : [B, H, Tq]
        ``-sum_j w[i, j] * log(w[i, j])``, in nats: 0 if one key has all the weight, ``log(n)`` if n keys have equal
        weights. Add ``-p * log(p)`` to count a sink of weight p.
    max_weight : [B, H, Tq]
        The largest weight.
    max_key : int64 [B, H, Tq]
        The first key with the largest weight; -1 if no key has any weight, or a weight is NaN.
    mean_distance : [B, H, Tq]
        ``sum_j w[i, j] * |query_offset + i - j|``.
    received_weight : [B, H, Tk]
        ``sum_i w[i, j]``: the weight of key j, summed over all queries.

    See Also
    --------
    attention_statistics : Compute them.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.zeros((4, 8), dtype=np.float32)
    >>> statistics = mha.attention_statistics(x, x, is_causal=True)  # query i attends to i + 1 keys alike
    >>> np.allclose(statistics.entropy, np.log([1, 2, 3, 4]))
    True
    >>> entropy, max_weight, max_key, mean_distance, received_weight = statistics
    >>> mean_distance
    array([0. , 0.5, 1. , 1.5], dtype=float32)
    """

    entropy: Tensor
    max_weight: Tensor
    max_key: Tensor
    mean_distance: Tensor
    received_weight: Tensor


def attention_statistics(
    query: Tensor,
    key: Tensor | TokenCache,
    attn_mask: Tensor | None = None,
    *,
    num_threads: int | None = None,
    **options: Unpack[KeywordOptions],
) -> AttentionStatistics:
    """Return entropy, largest weight and mean distance of each query, and the weight that each key receives.

    They describe the weights ``softmax(scale * query @ key.T + masks)``, which are not stored: memory grows with
    Tq + Tk, and for `attention_weights` with Tq * Tk.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key : [B, Hk, Tk, D] or KVCache
    attn_mask, num_threads, **options
        As for `scaled_dot_product_attention`: `options` are its score options. The threads share the heads of the
        batch.

    Returns
    -------
    AttentionStatistics
        A named tuple of `entropy`, `max_weight`, `max_key` and `mean_distance`, each [B, H, Tq], and `received_weight`,
        [B, H, Tk], with as many leading axes as `query` has. `max_key` is int64; the others are float64 for float64,
        else float32. A query that sees no key has zeros, and a `max_key` of -1.

    See Also
    --------
    attention_weights : The weights themselves.

    Examples
    --------
    Each of three tokens attends mostly to itself, and also to the tokens before it:

    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.eye(3, dtype=np.float32)
    >>> statistics = mha.attention_statistics(x, x, is_causal=True, scale=np.log(4))
    >>> statistics.max_key
    array([0, 1, 2])
    >>> statistics.max_weight.round(2)
    array([1.  , 0.8 , 0.67], dtype=float32)
    >>> statistics.entropy.round(2)
    array([0.  , 0.5 , 0.87], dtype=float32)
    >>> statistics.received_weight.round(2)
    array([1.37, 0.97, 0.67], dtype=float32)
    """
    name = "attention_statistics"
    given = core_options(name, options, KEYWORD_OPTIONS)
    if attn_mask is not None:
        given["attn_mask"] = to_numpy(name, "attn_mask", attn_mask)
    results = _core.attention_statistics(
        query if type(query) is ndarray else to_numpy(name, "query", query),
        key if type(key) is ndarray else key_argument(name, key),
        given,
        num_threads,
    )
    return AttentionStatistics(*(like(query, result) for result in results))
