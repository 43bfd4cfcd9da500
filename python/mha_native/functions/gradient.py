"""Gradients of attention: the public functions, which document and forward. The core checks and computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .arrays import Tensor, like, to_numpy
from .options import FUNCTION_OPTIONS, FunctionOptions, KeywordFunctionOptions, ScoreOptions, core_options

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

_ARRAYS = ("query", "key", "value")
_NEW_ARRAYS = (None, None, None)  # of the gradients by them


class AttentionGradients(NamedTuple):
    """Gradients by the arguments of attention, with their shapes; None where a gradient was not asked for.

    Attributes
    ----------
    query, key, value
        In the dtype of `query`.
    attn_mask, alibi_slopes, position_bias, sinks
        Float64 for float64, else float32.

    See Also
    --------
    attention_gradient : Compute them.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> x = np.random.default_rng(0).standard_normal((5, 16), dtype=np.float32)
    >>> out, lse = mha.scaled_dot_product_attention(x, x, x, return_lse=True)
    >>> gradients = mha.attention_gradient(x, x, x, out, lse, np.ones_like(out), wrt=("query", "value"))
    >>> gradients.value.shape, gradients.key is None
    ((5, 16), True)
    """

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    attn_mask: Tensor | None = None
    alibi_slopes: Tensor | None = None
    position_bias: Tensor | None = None
    sinks: Tensor | None = None


def attention_gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    attn_mask: Tensor | None = None,
    *,
    dlse: Tensor | None = None,
    wrt: tuple[str, ...] = _ARRAYS,
    num_threads: int | None = None,
    **options: Unpack[KeywordFunctionOptions],
) -> AttentionGradients:
    """Return the gradients of a function of `scaled_dot_product_attention`, from its gradient by the result.

    The weights are computed again from `lse`, block by block: memory grows with Tq + Tk, not with Tq * Tk.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key : [B, Hk, Tk, D]
    value : [B, Hk, Tk, Dv]
    out : [B, H, Tq, Dv]
        The result of ``scaled_dot_product_attention(query, key, value, attn_mask, return_lse=True, **options)``.
    lse : [B, H, Tq]
        The second result of the same call.
    dout : [B, H, Tq, Dv]
        The gradient of the function by `out`.
    attn_mask, num_threads, **options
        As in that call.
    dlse : [B, H, Tq], optional
        The gradient of the function by `lse`. Default: the function does not depend on it.
    wrt : tuple of str, default ("query", "key", "value")
        The arguments whose gradients you want; other gradients take no time. Options are "attn_mask" (if it is added to
        scores), "alibi_slopes", "position_bias" and "sinks". `scale` and `softcap` are constants.

    Returns
    -------
    AttentionGradients
        A named tuple with the gradients of `wrt`, each of the kind and shape of its argument.

    Raises
    ------
    TypeError, ValueError
        Before any work, if an argument breaks a rule.

    See Also
    --------
    attention_gradient_varlen : For sequences of different length, without padding.

    Notes
    -----
    Masked keys, and queries that see no key, have gradients of 0, even if they are NaN. Gradients of 16-bit arrays are
    computed in float32 and rounded once. Neither the number of threads nor other sequences of the batch change one bit,
    except in gradients that are summed over the batch.

    Source: Dao, "FlashAttention-2", 2023, algorithm 2.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> query, key, value, dout = rng.standard_normal((4, 8, 5, 64), dtype=np.float32)
    >>> out, lse = mha.scaled_dot_product_attention(query, key, value, is_causal=True, return_lse=True)
    >>> gradients = mha.attention_gradient(query, key, value, out, lse, dout, is_causal=True)
    >>> gradients.key.shape
    (8, 5, 64)

    The last key is seen by the last query alone, with its weight:

    >>> weights = mha.attention_weights(query, key, is_causal=True)
    >>> np.allclose(gradients.value[:, -1], weights[:, -1, -1:] * dout[:, -1], atol=1e-6)
    True
    """
    name = "attention_gradient"
    given = _options(name, options, attn_mask)
    q, k, v = to_numpy(name, "query", query), to_numpy(name, "key", key), to_numpy(name, "value", value)
    found = _core.attention_gradient(
        q,
        k,
        v,
        to_numpy(name, "out", out),
        to_numpy(name, "lse", lse),
        to_numpy(name, "dout", dout),
        to_numpy(name, "dlse", dlse),
        given,
        wrt,
        _NEW_ARRAYS,
        num_threads,
    )
    return _like(query, found, (q, k, v))


def attention_gradient_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    *,
    dlse: Tensor | None = None,
    wrt: tuple[str, ...] = _ARRAYS,
    num_threads: int | None = None,
    **options: Unpack[FunctionOptions],
) -> AttentionGradients:
    """`attention_gradient` of each sequence of a ragged batch, for `scaled_dot_product_attention_varlen`.

    Parameters
    ----------
    query : [Nq, H, D]
    key : [Nk, Hk, D]
    value : [Nk, Hk, Dv]
    cu_seqlens_q, cu_seqlens_k : integer array [B + 1]
    out : [Nq, H, Dv]
        The result of ``scaled_dot_product_attention_varlen`` with the same arguments.
    lse : [Nq, H]
    dout : [Nq, H, Dv]
    dlse : [Nq, H], optional
    wrt, num_threads, **options
        As for `attention_gradient` and `scaled_dot_product_attention_varlen`.

    Returns
    -------
    AttentionGradients

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> rng = np.random.default_rng(0)
    >>> query, key, value, dout = rng.standard_normal((4, 8, 2, 16), dtype=np.float32)
    >>> ends = np.array([0, 3, 8])  # sentences of three and five words
    >>> out, lse = mha.scaled_dot_product_attention_varlen(query, key, value, ends, ends, return_lse=True)
    >>> mha.attention_gradient_varlen(query, key, value, ends, ends, out, lse, dout).query.shape
    (8, 2, 16)
    """
    name = "attention_gradient_varlen"
    given = _options(name, options, None)
    q, k, v = to_numpy(name, "query", query), to_numpy(name, "key", key), to_numpy(name, "value", value)
    found = _core.attention_gradient_varlen(
        q,
        k,
        v,
        to_numpy(name, "cu_seqlens_q", cu_seqlens_q),
        to_numpy(name, "cu_seqlens_k", cu_seqlens_k),
        to_numpy(name, "out", out),
        to_numpy(name, "lse", lse),
        to_numpy(name, "dout", dout),
        to_numpy(name, "dlse", dlse),
        given,
        wrt,
        _NEW_ARRAYS,
        num_threads,
    )
    return _like(query, found, (q, k, v))


def _options(name: str, options: Any, attn_mask: Tensor | None) -> ScoreOptions:
    given = core_options(name, options, FUNCTION_OPTIONS)
    if attn_mask is not None:
        given["attn_mask"] = to_numpy(name, "attn_mask", attn_mask)
    return given


def _like(
    query: Tensor, found: tuple[NDArray[Any] | None, ...], arguments: tuple[NDArray[Any], ...]
) -> AttentionGradients:
    """Return gradients of the kind of `query`, summed over a batch of one that was repeated."""
    gradients = list(found)
    for i, argument in enumerate(arguments):
        gradient = gradients[i]
        if gradient is not None and gradient.shape != argument.shape:
            wide = np.float64 if gradient.dtype == np.float64 else np.float32
            gradients[i] = gradient.astype(wide).sum(0).reshape(argument.shape).astype(gradient.dtype)
    return AttentionGradients(*(None if x is None else like(query, x) for x in gradients))
